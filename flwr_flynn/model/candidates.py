"""Candidates of the selection: hashes for a shape of data and a scaling, and readouts for given counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import SpecError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.column_moments import SCALINGS, ColumnMoments
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.scoring import Readout, Sizes, given_readout, mean_size, size_factors

CenterAndScale = tuple[Sequence[float] | None, Sequence[float] | None]

_FEW = 7  # features up to which a single spec gets waves
_WAVES_UP_TO = 128  # features up to which one of several specs does: beyond, waves are slower than the rest of the hash
_PERIOD = 2.2  # of a wave, in typical distances between samples

_CANDIDATES = (  # of "auto": scaling, signed, waves
    ("weighted", True, False),
    ("weighted", True, True),
    ("weighted-center", True, False),
    ("center", False, False),
)

_MULTIPLES = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125, 16.0, 0.0625)  # of the suggested exponent in a grid of decays
_LEAST_EXPONENT = 0.75


@dataclass(frozen=True)
class HashPlan:
    """Decisions about the hash before any party has looked at its data.

    Parameters
    ----------
    n_features, n_classes : int
    n_examples : int, optional
        Training samples of all parties together, roughly.
    scaling : None, "center", "standard", "weighted", "weighted-center", "auto" or a pair (center, scale)
        A name needs the moments of the columns, see `ColumnMoments.center_and_scale`. "auto" has up to four candidates:
        weighted columns, weighted columns with waves (up to 128 features), centred columns that are weighted but not
        standardised, and centred columns under rows of ones.
    signed : bool, optional
        Default: True where features are centred or scaled, but for the last candidate of "auto".
    hash_dim, row_nnz, hash_nnz : int, optional
        Sizes. Default: chosen by `HashSpec.suggest`.
    seed : int, default=0
    waves : bool, optional
        True to use wave features. Default: with a scaling by name where there are 7 features or fewer.

    Raises
    ------
    SpecError
        `scaling` is not as described.

    Examples
    --------
    >>> HashPlan(n_features=4, n_classes=3, hash_dim=64, seed=5).specs()[0].hash_dim
    64
    """

    n_features: int
    n_classes: int
    n_examples: int | None = None
    scaling: str | CenterAndScale | None = None
    signed: bool | None = None
    hash_dim: int | None = None
    row_nnz: int | None = None
    hash_nnz: int | None = None
    seed: int = 0
    waves: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.scaling, str) and self.scaling not in (*SCALINGS, "auto"):
            raise SpecError("scaling", f"one of {', '.join(SCALINGS)}, auto", self.scaling)
        if not isinstance(self.scaling, str | None) and len(self.scaling) != 2:
            raise SpecError("scaling", "a pair (center, scale)", f"{len(self.scaling)} entries")

    @property
    def needs_sums(self) -> bool:
        """True if `specs` needs the moments of the columns."""
        return isinstance(self.scaling, str)

    @property
    def needs_classes(self) -> bool:
        """True if `specs` needs the moments class by class; otherwise those of all samples as one class will do."""
        return self.scaling in ("weighted", "weighted-center", "auto")

    def specs(self, moments: ColumnMoments | None = None) -> tuple[HashSpec, ...]:
        """Candidate specifications, the default first; a `SpecError` without the moments if `needs_sums`."""
        if not isinstance(self.scaling, str):
            center, scale = self.scaling or (None, None)
            signed = self.signed if self.signed is not None else center is not None or scale is not None
            return (self._spec(center, scale, signed),)
        if moments is None:
            raise SpecError("moments", f"the moments of the columns for scaling {self.scaling!r}", None)
        few = self.n_features <= _FEW
        if self.scaling != "auto":
            waves = few if self.waves is None else self.waves
            return (self._scaled(moments, self.scaling, self.signed is not False, waves),)
        candidates = list(_CANDIDATES)
        if self.waves is None and self.n_features > _WAVES_UP_TO:
            candidates = [each for each in candidates if not each[2]]
        elif self.waves is not None:
            candidates = [each for each in candidates if each[2] == self.waves]
        elif few:
            candidates.sort(key=lambda each: not each[2])
        if self.signed is not None:
            candidates = [(scaling, self.signed, waves) for scaling, _, waves in candidates]
        return tuple(dict.fromkeys(self._scaled(moments, *each) for each in candidates))

    def _scaled(self, moments: ColumnMoments, scaling: str, signed: bool, waves: bool) -> HashSpec:
        center, scale = moments.center_and_scale(scaling)
        distance = moments.distance(scale) if waves else 0.0
        if not distance or not math.isfinite(1 / distance):
            return self._spec(center, scale, signed)
        n_waves = min(max(64, 4 * self.n_features), 256)
        return self._spec(center, scale, signed, n_waves, 1 / (_PERIOD * distance))

    def _spec(self, center: Any, scale: Any, signed: bool, n_waves: int = 0, frequency: float = 0.0) -> HashSpec:
        names = ("n_features", "n_examples", "n_classes", "hash_dim", "row_nnz", "hash_nnz", "seed")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        values |= {"center": center, "scale": scale, "n_waves": n_waves, "wave_frequency": frequency}
        return HashSpec.suggest(**values, signed=signed)


def candidate_readouts(counts: ClassCounts, rule: str = "balanced", decay: str | float = "auto") -> list[Readout]:
    """Readouts to choose from, without temperatures: one for each decay of `decay_grid`, or the one given."""
    given = given_readout(rule, decay)
    if given is not None:
        return [given]
    if rule == "bayes":
        return [Readout(rule, suggest_decay(counts, rule))]
    return [Readout(rule, gamma) for gamma in decay_grid(counts, rule)]


def suggest_decay(counts: ClassCounts, rule: str = "balanced") -> float:
    """Suggest a decay, 0 < gamma < 1, from the counts alone, for use without training samples.

    gamma = exp(-lambda / c), where c is the typical count of a training sample at its active bits in its own class (of
    size-scaled counts under rule "balanced"), so that lambda is its typical exponent: lambda = max(5 (c - c0) /
    sqrt(c), 3/4), where c0 is the value of c if classes differed by chance only (`typical_counts`). With noise of
    standard deviation sigma, lambda is also at most 2 c / sigma, as an exponent is wrong by lambda sigma / c, and at
    most 0.8 c / q0, where q0 is the mean count. docs/explanation/defaults.md has the measurements behind the constants.
    """
    return decay_grid(counts, rule)[0]


def decay_grid(counts: ClassCounts, rule: str = "balanced") -> list[float]:
    """Decays worth trying: `suggest_decay`, then the decays of 2, 1/2, 4, 1/4, ... 16, 1/16 times its lambda."""
    if counts.noise:
        typical, exponent = _noisy_exponent(counts, rule)
    else:
        typical, by_chance = typical_counts(counts.array, counts.n_per_class, rule)
        typical = max(typical, 1.0)  # less only where there are no samples, and any decay will do
        exponent = max(5 * (typical - by_chance) / math.sqrt(typical), _LEAST_EXPONENT)
    below_one = math.nextafter(1.0, 0.0)
    return [min(math.exp(-multiple * exponent / typical), below_one) for multiple in _MULTIPLES]


def suggest_temperature(counts: ClassCounts, rule: str = "balanced") -> float:
    """Suggest a temperature for use without training samples: 0.2, or rho / 2 under rule "bayes"."""
    return counts.hash_nnz / 2 if rule == "bayes" else 0.2


def typical_counts(array: npt.NDArray[np.int64], n_per_class: Sizes, rule: str) -> tuple[float, float]:
    """Typical count of a training sample at its active bits in its own class, and its value if labels meant nothing.

    Both are size-biased means, sum q ** 2 / sum q, of the counts q, (L, m), scaled by class as `rule` does. Random
    labels would make counts around the mean of all classes, with the variance of a Poisson variable. 0.0 without
    samples.
    """
    filled = np.flatnonzero(n_per_class > 0)
    factors = size_factors(n_per_class, 0, mean_size(n_per_class), rule)
    total = squares = poisson = 0.0
    pooled = np.zeros(array.shape[1])
    for label in filled:
        scaled = array[label] * factors[label]
        total += float(scaled.sum())
        squares += float((scaled**2).sum())
        poisson += float(factors[label] * scaled.sum())
        pooled += scaled
    if not total:
        return 0.0, 0.0
    return squares / total, (float((pooled**2).sum()) / len(filled) + poisson) / total


def _noisy_exponent(counts: ClassCounts, rule: str) -> tuple[float, float]:
    """Typical count c and exponent lambda of noisy counts; the squares are corrected for the noise in them."""
    array, sizes, noise_variance = counts.array.astype(np.float64), counts.n_per_class, counts.noise_variance
    noisy_entries = np.full(counts.n_classes, float(counts.hash_dim))
    factors = np.ones((counts.n_classes, 1))
    if sizes is None:
        noisy_entries = np.count_nonzero(array, axis=1).astype(float)
    elif rule != "novelty":
        samples = np.maximum(sizes, 1.0)
        factors = (samples.mean() / samples)[:, None]
    scaled = array * factors
    total = float(scaled.sum())
    if total <= 0:
        return 1.0, _LEAST_EXPONENT
    noise = noise_variance * float((noisy_entries * factors[:, 0] ** 2).sum())
    typical = max((float((scaled**2).sum()) - noise) / total, 1.0)
    by_chance = (float((scaled.sum(axis=0) ** 2).sum()) - noise) / counts.n_classes + float((factors * scaled).sum())
    clear = 5 * (typical - by_chance / total) / math.sqrt(typical)
    quiet = 2 * typical / math.sqrt(noise_variance)
    spread = 0.8 * typical / (total / array.size)
    return typical, max(min(clear, quiet, spread), _LEAST_EXPONENT)
