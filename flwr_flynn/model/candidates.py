"""Candidates of the selection: hashes for a shape of data and a scaling, and scorings
for given counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from flwr_flynn._types import Floats, Integers
from flwr_flynn._validation import finite_floats, integer, one_of
from flwr_flynn.errors import DataError, SpecError
from flwr_flynn.hashing.rank_codes import edges_of_ranges
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.portable import exp
from flwr_flynn.model.scoring import (
    ScoringRule,
    Sizes,
    given_scoring,
    mean_size,
    size_factors,
)

_OF_HASH = {
    "n_features",
    "n_examples",
    "n_classes",
    "hash_dim",
    "row_nnz",
    "hash_nnz",
    "seed",
    "signed",
}
"""Fields of a plan that `HashSpec.suggest` takes."""

CenterAndScale = tuple[Sequence[float] | None, Sequence[float] | None]

# Features up to which "auto" has waves: beyond, they are slower than the rest of the
# hash.
_WAVES_UP_TO = 128
# Features up to which "auto" has rank codes: they are several inputs each.
_RANKS_UP_TO = 1024
_PERIOD = 2.2  # of a wave, in typical distances between samples
# Weight of an uninformative column, beside 1.02 of the most informative one.
_FAINT = 0.02

_MOST = 2**15  # samples from which still more rows pay, and fewer winners
_MANY = 4096  # samples from which more rows for each winner pay
# Rows and winners, for the most samples, for many and for fewer.
_SIZE_OF_MOST = (5 * 2**14, 48)
_SIZE_OF_MANY = (2**16, 64)
_SIZE_OF_FEW = (2**15, 128)
# Rows and winners of effort "quick", and by default for few samples of many classes.
_SMALL = (2**14, 64)
_MANY_CLASSES = 8
# Counts of all classes of a member, at most: five candidates fit the memory that a party
# allows by default.
_MOST_COUNTS = 2**24

THOROUGH_TREES = 100  # of effort "thorough"


class _Effort(NamedTuple):
    """Parts of a model that scaling "auto" makes.

    They are a committee or its first candidate alone, and trees.
    """

    has_committee: bool
    n_trees: int


_EFFORTS = {
    "quick": _Effort(False, 0),
    "default": _Effort(True, 0),
    "thorough": _Effort(True, THOROUGH_TREES),
}
EFFORTS = tuple(_EFFORTS)


class _Coded(NamedTuple):
    """Candidate with rank codes.

    It has their shape, the codes of a feature, and the entries of a row; features may
    be drawn by weight.
    """

    coding: str
    n_codes: int
    row_nnz: int
    is_weighted: bool

    def fields(
        self, edges: Floats, weights: tuple[int, ...] | None = None
    ) -> dict[str, object]:
        """Fields of the specification."""
        row_nnz = min(self.row_nnz, len(edges) * self.n_codes // 2)
        coded = {"coding": self.coding, "n_codes": self.n_codes, "row_nnz": row_nnz}
        if not self.is_weighted:
            weights = None
        return coded | {
            "edges": tuple(map(tuple, edges.tolist())),
            "row_weights": weights,
        }


_PUBLIC = _Coded("bumps", 5, 6, is_weighted=False)  # of public ranges
_CODED = (
    _Coded("bumps", 5, 6, is_weighted=True),
    _Coded("steps", 16, 4, is_weighted=True),
)

# Factors of the suggested exponent in a grid of decays.
_MULTIPLES = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125, 16.0, 0.0625)
_LEAST_EXPONENT = 0.75
_STEEPEST = 60  # exponent that more and more samples lead to


@dataclass(frozen=True)
class HashPlan:
    """Decisions about the hash before any party has looked at its data.

    Parameters
    ----------
    n_features, n_classes : int
    n_examples : int, optional
        Training samples of all parties together, roughly. Default: as many as the
        histograms are of.
    scaling : None, "auto" or a pair (center, scale)
        None: raw columns, or `ranges`. "auto" derives five candidates from the
        histograms of the columns: two kinds of rank codes, waves over weighted
        columns (up to 128 features; beyond, centred columns that are weighted but not
        standardised), weighted columns, and centred columns under rows of ones. Above
        1024 features it has no rank codes.
    signed : bool, optional
        Default: True where features are centred or scaled, but for the last candidate
        of "auto".
    hash_dim, row_nnz, hash_nnz : int, optional
        Sizes. Default: chosen by `HashSpec.suggest` and `effort`. "auto" leaves out
        candidates that cannot have `row_nnz` entries in a row, and refuses it where
        none can.
    seed : int, default=0
    effort : {"quick", "default", "thorough"}, default="default"
        Bytes and time that "auto" may cost. "quick": the first candidate alone, not
        calibrated, of 16384 rows and 64 winners. "default": all, of 32768 rows and 128
        winners; from 4096 samples on 65536 and 64, and from 32768 on 81920 and 48;
        16384 and 64 for fewer samples of more than 8 classes. "thorough": the same, and
        100 trees. At most 2**24 / n_classes rows. `hash_dim` and `hash_nnz` take the
        place of these sizes.
    max_members : int, default=3
        Candidates of "auto" that the model keeps, at most, see `model.selection`.
    ranges : pair (low, high), optional
        Public ranges of the features, n_features finite floats each: rank codes with
        edges at equal distances within them, without a look at the data. Only with
        scaling None.

    Raises
    ------
    SpecError
        A field is not as described.

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
    effort: str = "default"
    max_members: int = 3
    ranges: tuple[Sequence[float], Sequence[float]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.scaling, str) and self.scaling != "auto":
            raise SpecError(
                "scaling", "None, auto or a pair (center, scale)", self.scaling
            )
        if not isinstance(self.scaling, str | None) and len(self.scaling) != 2:
            raise SpecError(
                "scaling", "a pair (center, scale)", f"{len(self.scaling)} entries"
            )
        if self.ranges is not None and self.scaling is not None:
            raise SpecError("ranges", "none beside a scaling", self.scaling)
        if self.ranges is not None:
            _check_ranges(self.ranges, self.n_features)
        one_of("effort", self.effort, EFFORTS, error=SpecError)
        integer("max_members", self.max_members, error=SpecError)

    @property
    def most_members(self) -> int:
        """Members of the model, at most: one but for "auto"."""
        if self.needs_columns and _EFFORTS[self.effort].has_committee:
            return self.max_members
        return 1

    @property
    def needs_columns(self) -> bool:
        """True if `specs` needs the histograms of the columns."""
        return self.scaling == "auto"

    @property
    def n_trees(self) -> int:
        """Trees of the model by its effort."""
        if not self.needs_columns:
            return 0
        return _EFFORTS[self.effort].n_trees

    @property
    def is_calibrated(self) -> bool:
        """True if the model gets a calibration, see `model.calibration`."""
        return not self.needs_columns or _EFFORTS[self.effort].has_committee

    def specs(self, columns: ColumnHistograms | None = None) -> tuple[HashSpec, ...]:
        """Candidate specifications, the default first.

        Raises a `SpecError` without histograms if it `needs_columns`.
        """
        if self.ranges is not None:
            return (self._spec(_PUBLIC.fields(edges_of_ranges(*self.ranges))),)
        if not isinstance(self.scaling, str):
            center, scale = self.scaling or (None, None)
            is_signed = center is not None or scale is not None
            return (
                self._spec({"center": center, "scale": scale, "signed": is_signed}),
            )
        if columns is None:
            raise SpecError(
                "columns",
                f"the histograms of the columns for scaling {self.scaling!r}",
                None,
            )
        if self.n_examples is None:
            n_examples = columns.n_examples
        else:
            n_examples = self.n_examples
        small = not _EFFORTS[self.effort].has_committee
        sizes = committee_sizes(n_examples, self.n_classes, small)
        specs = []
        refusals = []
        for fields in _candidates(columns):
            try:
                specs.append(self._spec(fields, sizes))
            except SpecError as error:
                if self.row_nnz is None or error.field != "row_nnz":
                    raise
                refusals.append(str(error.expected))
        if not specs:
            raise SpecError(
                "row_nnz", " or ".join(dict.fromkeys(refusals)), self.row_nnz
            )
        # Columns that do not vary make some specs the same.
        different = tuple(dict.fromkeys(specs))
        if small:
            return different[:1]
        return different

    def _spec(
        self, fields: Mapping[str, object], sizes: Mapping[str, int] | None = None
    ) -> HashSpec:
        """Specification with these fields, the given sizes, and where none of these is
        given, the others.
        """
        chosen = {
            name: value
            for name, value in vars(self).items()
            if name in _OF_HASH and value is not None
        }
        suggested: dict[str, Any] = {"signed": True, **fields}
        if sizes is not None and not chosen.keys() & {"hash_dim", "hash_nnz"}:
            suggested |= sizes
        return HashSpec.suggest(**suggested | chosen)


def committee_sizes(n_examples: int, n_classes: int, small: bool) -> dict[str, int]:
    """Rows and winners of the candidates of "auto" for so many samples and classes."""
    has_many = n_examples >= _MANY
    if small or not (has_many or n_classes <= _MANY_CLASSES):
        hash_dim, hash_nnz = _SMALL
    elif n_examples >= _MOST:
        hash_dim, hash_nnz = _SIZE_OF_MOST
    elif has_many:
        hash_dim, hash_nnz = _SIZE_OF_MANY
    else:
        hash_dim, hash_nnz = _SIZE_OF_FEW
    hash_dim = max(min(hash_dim, _MOST_COUNTS // n_classes), 256)
    return {"hash_dim": hash_dim, "hash_nnz": min(hash_nnz, hash_dim // 16)}


def _candidates(columns: ColumnHistograms) -> Iterator[Mapping[str, object]]:
    """Fields of the candidates of "auto": rank codes, waves, weighted columns, and
    centred ones under rows of ones.
    """
    n_features = columns.n_features
    relevance = columns.relevance()
    if n_features <= _RANKS_UP_TO:
        edges = columns.edges()
        by_relevance = row_weights(relevance)
        yield from (kind.fields(edges, by_relevance) for kind in _CODED)
    center, deviation = columns.center_and_deviation()
    weights = [value + _FAINT for value in relevance]
    weighted: dict[str, object] = {"center": center}
    weighted["scale"] = [
        weight * _inverse(spread)
        for weight, spread in zip(weights, deviation, strict=True)
    ]
    # A common factor does not change the hash, and numbers of moderate size fit float32
    # better.
    common = _common_factor(max(deviation))
    scale = None
    if common != 1.0:
        scale = [common] * n_features
    centred = {"center": center, "scale": scale, "signed": False}
    if n_features > _WAVES_UP_TO:
        yield from (
            weighted,
            centred,
            {"center": center, "scale": [weight * common for weight in weights]},
        )
        return
    distance = math.sqrt(
        2
        * math.fsum(
            w * w for w, spread in zip(weights, deviation, strict=True) if spread
        )
    )
    if distance:
        n_waves = min(max(64, 4 * n_features), 256)
        yield weighted | {
            "n_waves": n_waves,
            "wave_frequency": 1 / (_PERIOD * distance),
        }
    yield from (weighted, centred)


def derive_specs(
    plan: HashPlan, columns: ColumnHistograms
) -> tuple[tuple[HashSpec, ...], str]:
    """Specs of a plan that `needs_columns`, and "" or the reason why they are unscaled."""
    reason = "no party sent the histograms of any sample"
    if columns.n_examples:
        try:
            return plan.specs(columns), ""
        except (SpecError, DataError) as error:
            reason = str(error)
    return _unscaled(plan).specs(), reason


def placeholder_specs(plan: HashPlan) -> tuple[HashSpec, ...]:
    """Specs of the number and the sizes of the plan's.

    Only what is learned of the columns may change.
    """
    if not plan.needs_columns:
        return plan.specs()
    _unscaled(plan).specs()
    samples = np.repeat(np.arange(3.0)[:, None], plan.n_features, axis=1)
    # One class is enough.
    return plan.specs(ColumnHistograms.from_data(samples, np.zeros(3, np.int64), 1))


def _unscaled(plan: HashPlan) -> HashPlan:
    """The plan without anything that is learned of the columns."""
    # row_nnz may be meant for waves, of which there can be more than columns.
    row_nnz = None
    if plan.row_nnz is not None:
        row_nnz = min(plan.row_nnz, plan.n_features)
    return replace(plan, scaling=None, row_nnz=row_nnz)


def _inverse(deviation: float) -> float:
    """One over the deviation of a column; 1 for one that does not vary."""
    if deviation and math.isfinite(1 / deviation):
        return 1 / deviation
    return 1.0


def _common_factor(deviation: float) -> float:
    """A power of two that makes deviations of this size moderate; 1 where they are."""
    exponent = math.frexp(deviation)[1]
    if abs(exponent) < 64:
        return 1.0
    return 2.0 ** -max(min(exponent, 1020), -1020)


def _check_ranges(ranges: object, n_features: int) -> None:
    """Raise a `SpecError` unless ranges are as described."""
    expected = (
        f"a pair (low, high) of {n_features} finite floats each (n_features), "
        "low up to high"
    )
    low, high = finite_floats("ranges", ranges, (2, n_features), expected, SpecError)
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~(np.isfinite(high - low) & (low <= high)))
    if len(bad):
        raise SpecError(
            "ranges", expected, f"{low[bad[0]]} to {high[bad[0]]} at index {bad[0]}"
        )


def row_weights(relevance: Sequence[float]) -> tuple[int, ...]:
    """Weights for the draw of the rows, integers from 1 to 255, in proportion to the
    root of the relevance.
    """
    return tuple(max(1, round(255 * math.sqrt(value))) for value in relevance)


def candidate_scorings(
    counts: ClassCounts, rule: str, decay: str | float = "auto"
) -> list[ScoringRule]:
    """Scorings to choose from, without temperatures: one for each decay of
    `decay_grid`, or the one given.
    """
    given = given_scoring(rule, decay)
    if given is not None:
        return [given]
    return [ScoringRule(rule, gamma) for gamma in decay_grid(counts, rule)]


def suggest_decay(counts: ClassCounts, rule: str = "balanced") -> float:
    """Suggest a decay, 0 < gamma < 1, from the counts alone, for use without training
    samples.

    gamma = exp(-lambda / c), where c is the typical count of a training sample at its
    active bits in its own class (of size-scaled counts under rule "balanced"), so that
    lambda is its typical exponent: lambda = max(x / (1 + x / 60), 3/4) with x = 5 (c -
    c0) / sqrt(c), where c0 is the value of c if classes differed by chance only
    (`typical_counts`). With noise of standard deviation sigma, lambda is x, but at most
    2 c / sigma, as an exponent is wrong by lambda sigma / c, and at most 0.8 c / q0,
    where q0 is the mean count. docs/explanation/defaults.md has the measurements behind
    the constants.
    """
    return decay_grid(counts, rule)[0]


def decay_grid(counts: ClassCounts, rule: str) -> list[float]:
    """Decays worth trying: `suggest_decay`, then the decays of 2, 1/2, 4, 1/4, ... 16,
    1/16 times its lambda.
    """
    if counts.noise:
        typical, exponent = _noisy_exponent(counts, rule)
    else:
        typical, by_chance = typical_counts(counts.array, counts.n_per_class, rule)
        # It is less only where there are no samples, and any decay will do.
        typical = max(typical, 1.0)
        clear = 5 * (typical - by_chance) / math.sqrt(typical)
        exponent = max(clear / (1 + clear / _STEEPEST), _LEAST_EXPONENT)
    below_one = math.nextafter(1.0, 0.0)
    return [
        min(exp(-multiple * exponent / typical), below_one) for multiple in _MULTIPLES
    ]


def typical_counts(
    array: Integers, n_per_class: Sizes, rule: str
) -> tuple[float, float]:
    """Typical count of a training sample at its active bits in its own class, and its
    value under independent labels.

    Both are size-biased means, sum q ** 2 / sum q, of the counts q, (L, m), scaled by
    class as `rule` does. Random labels would make counts around the mean of all
    classes, with the variance of a Poisson variable. 0.0 without samples.
    """
    filled = np.flatnonzero(n_per_class > 0)
    factors = size_factors(n_per_class, 0, mean_size(n_per_class), rule)
    total, squares, poisson, of_all = _sums(array, factors, filled)
    if not total:
        return 0.0, 0.0
    return squares / total, (of_all / len(filled) + poisson) / total


@njit(nogil=True, cache=True)
def _sums(counts, factors, labels):  # type: ignore[no-untyped-def]
    """Sum scaled counts, their squares, their variances, and the squares of their sums
    over the classes.

    One term after the other: the order of NumPy's sums is not the same everywhere.
    """
    pooled = np.zeros(counts.shape[1])
    total = squares = poisson = of_all = 0.0
    for label in labels:
        for i in range(counts.shape[1]):
            scaled = counts[label, i] * factors[label]
            total += scaled
            squares += scaled * scaled
            poisson += scaled * factors[label]
            pooled[i] += scaled
    for value in pooled:
        of_all += value * value
    return total, squares, poisson, of_all


def _noisy_exponent(counts: ClassCounts, rule: str) -> tuple[float, float]:
    """Typical count c and exponent lambda of noisy counts.

    The squares are corrected for the noise in them.
    """
    array = counts.array.astype(np.float64)
    sizes = counts.n_per_class
    noise_variance = counts.noise_variance
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
    by_chance = (
        float((scaled.sum(axis=0) ** 2).sum()) - noise
    ) / counts.n_classes + float((factors * scaled).sum())
    clear = 5 * (typical - by_chance / total) / math.sqrt(typical)
    quiet = 2 * typical / math.sqrt(noise_variance)
    spread = 0.8 * typical / (total / array.size)
    return typical, max(min(clear, quiet, spread), _LEAST_EXPONENT)
