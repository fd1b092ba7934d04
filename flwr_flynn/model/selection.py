"""Which hash and which read-out: candidates, and the choice among them by exact leave-one-out.

The counts of a training set tell what n models would say that were each trained without the point they are asked about
(`ClassCounts.leave_one_out`). That is exact for a given hash; where its scale was learned from all points and their
classes, the point has had its part in that. How many points of each class they get right is a whole number: parties
that hold the points add theirs up, and the choice is the one that the pooled points lead to.

>>> import numpy as np
>>> from flwr_flynn import ClassCounts, FlyHash
>>> plan = Plan(n_features=2, n_classes=2, scaling="standard", hash_dim=256)
>>> X, y = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.2], [0.9, 0.0]]), np.array([0, 0, 1, 1])
>>> (spec,) = plan.specs(ColumnSums.from_data(X, y, n_classes=2))
>>> hasher = FlyHash(spec)
>>> counts = ClassCounts.from_data(hasher, X, y, n_classes=2)
>>> candidates = readouts(counts)
>>> right = hits(counts, hasher.active(X), y, candidates)
>>> right.shape == (len(candidates), 2)
True
>>> best([right], counts.n_per_class)
(0, 0)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.utils import gen_batches

from flwr_flynn.errors import SpecError
from flwr_flynn.hashing.flyhash import FlyHash, flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.column_moments import SCALINGS, ColumnSums
from flwr_flynn.model.counts import ClassCounts

Hits = npt.NDArray[np.int64]

_HELD = 2**24  # active bits kept for the choice; of more points they are made again

Pair = tuple[Sequence[float] | None, Sequence[float] | None]


class Readout(NamedTuple):
    """A rule of `flwr_flynn.model.scoring` and its decay."""

    rule: str
    decay: float


_FEW = 7  # columns up to which a single spec gets waves
_WAVES_UP_TO = 128  # columns up to which one of several does: beyond, 256 waves are slower than the rest of the hash
_PERIOD = 2.2  # of a wave, in typical distances between points

_CANDIDATES = (
    ("weighted", True, False),
    ("weighted", True, True),
    ("weighted-center", True, False),
    ("center", False, False),
)
"""What "auto" chooses from: scaling, signed, waves."""


@dataclass(frozen=True)
class Plan:
    """What is decided about the hash before any party has looked at its columns.

    Parameters
    ----------
    n_features, n_classes : int
    n_examples : int, optional
        Training points of all parties together, roughly.
    scaling : None, one of `moments.SCALINGS`, "auto" or a pair (center, scale)
        "auto" has several candidates, see Notes.
    signed : bool, optional
        None: if columns are centred or scaled, but for one of the candidates of "auto".
    hash_dim, row_nnz, hash_nnz : int, optional
        Those left out are chosen by `HashSpec.suggest`.
    seed : int
    waves : bool, optional
        Whether there are waves. None: as the notes say.

    Raises
    ------
    SpecError
        `scaling` is none of these.

    Notes
    -----
    The candidates of "auto": weighted columns, the same with waves (up to 128 columns), centred columns that are
    weighted but not standardised, and centred columns under rows of ones. On 36 public sets of up to 2000 points,
    5-fold, r = 1 - a / a_kNN against the better of two tuned kNNs (median, mean, sets won, worst):

    ===========================================  =====  =====  ====  =====
    choice among the four by leave-one-out       -.024  -.097  67 %  +.083
    weighted columns                             -.012  -.062  64 %  +.098
    standardised columns                         +.003  +.008  42 %  +.282
    rows of ones, raw columns: the paper's hash  +.060  +.112  19 %  +.542
    ===========================================  =====  =====  ====  =====

    A greedy search among sixteen specs found the four, and found them again on 35 of the 36 collections with one set
    left out; the one that lacked madelon missed the third, and lost .156 there. (That was with weights of all columns;
    now those of columns that tell less than chance would are cut off, which was decided on pure noise and the 36.)

    Waves (`hashing.wave_features`) take the place of the columns where there are 7 or fewer and the scaling is by name:
    two moons .83 -> .96, circles .48 -> .99, iris .85 -> .95, three to five columns of synthetic data +.10 to +.15;
    with 13 columns (wine) .98 -> .92.
    """

    n_features: int
    n_classes: int
    n_examples: int | None = None
    scaling: str | Pair | None = None
    signed: bool | None = None
    hash_dim: int | None = None
    row_nnz: int | None = None
    hash_nnz: int | None = None
    seed: int = 0
    waves: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.scaling, str) and self.scaling not in (*SCALINGS, "auto"):
            raise SpecError(f"scaling: expected one of {', '.join(SCALINGS)}, auto, got {self.scaling[:40]!r}")
        if not isinstance(self.scaling, str | None) and len(self.scaling) != 2:
            raise SpecError(f"scaling: expected a pair (center, scale), got {len(self.scaling)} entries")

    @property
    def needs_sums(self) -> bool:
        """Whether `specs` wants the sums of the columns."""
        return isinstance(self.scaling, str)

    @property
    def needs_classes(self) -> bool:
        """Whether it wants them class by class; else those of all classes together, as one class, will do."""
        return self.scaling in ("weighted", "weighted-center", "auto")

    def specs(self, sums: ColumnSums | None = None) -> tuple[HashSpec, ...]:
        """The candidates, at least one; the first is the one to take where nothing can be compared.

        Parameters
        ----------
        sums : ColumnSums, optional
            Of all parties; `needs_sums` says whether they are wanted.

        Raises
        ------
        SpecError
            They are wanted but missing, or a size does not fit.
        """
        if not isinstance(self.scaling, str):
            center, scale = self.scaling or (None, None)
            signed = self.signed if self.signed is not None else center is not None or scale is not None
            return (self._spec(center, scale, signed),)
        if sums is None:
            raise SpecError(f"scaling: {self.scaling!r} needs the sums of the columns")
        few = self.n_features <= _FEW
        if self.scaling != "auto":
            waves = few if self.waves is None else self.waves
            return (self._scaled(sums, self.scaling, self.signed is not False, waves),)
        candidates = list(_CANDIDATES)
        if self.waves is None and self.n_features > _WAVES_UP_TO:
            candidates = [each for each in candidates if not each[2]]
        elif self.waves is not None:
            candidates = [each for each in candidates if each[2] == self.waves]
        elif few:
            candidates.sort(key=lambda each: not each[2])
        if self.signed is not None:
            candidates = [(scaling, self.signed, waves) for scaling, _, waves in candidates]
        return tuple(dict.fromkeys(self._scaled(sums, *each) for each in candidates))

    def _scaled(self, sums: ColumnSums, scaling: str, signed: bool, waves: bool) -> HashSpec:
        center, scale = sums.center_and_scale(scaling)
        distance = sums.distance(scale) if waves else 0.0
        if not distance or not math.isfinite(1 / distance):
            return self._spec(center, scale, signed)
        n_waves = min(max(64, 4 * self.n_features), 256)
        return self._spec(center, scale, signed, n_waves, 1 / (_PERIOD * distance))

    def _spec(self, center: Any, scale: Any, signed: bool, n_waves: int = 0, frequency: float = 0.0) -> HashSpec:
        return HashSpec.suggest(
            self.n_features,
            self.n_examples,
            self.n_classes,
            hash_dim=self.hash_dim,
            row_nnz=self.row_nnz,
            hash_nnz=self.hash_nnz,
            seed=self.seed,
            signed=signed,
            center=center,
            scale=scale,
            n_waves=n_waves,
            wave_frequency=frequency,
        )


class Chosen(NamedTuple):
    """What `select` found.

    `temperature` makes scores probabilities, see `FlyNNClassifier.predict_proba`.
    """

    spec: HashSpec
    counts: ClassCounts
    readout: Readout
    temperature: float


def select(
    specs: Sequence[HashSpec],
    X: Any,
    y: npt.NDArray[np.int64],
    n_classes: int,
    rule: str = "balanced",
    decay: str | float = "auto",
    n_jobs: int | None = None,
) -> Chosen:
    """Count points by every spec, and keep the spec and the read-out of the best leave-one-out balanced accuracy.

    Parameters
    ----------
    specs : sequence of HashSpec
        Of equals the first is chosen.
    X : (n, d) array or scipy sparse
    y : (n,) integers
        Classes, 0 <= y < n_classes.
    n_classes : int
    rule, decay
        As for `readouts`.
    n_jobs : int, optional
        Threads for hashing.
    """
    found = []
    for spec in specs:
        hasher = flynn_hash(spec)
        held = len(y) * spec.hash_nnz <= _HELD
        if held:
            active = hasher.active(X, n_jobs=n_jobs)
            counts = ClassCounts.from_active(hasher, active, y, n_classes)
        else:
            counts = ClassCounts.from_data(hasher, X, y, n_classes, n_jobs=n_jobs)

        def blocks(hasher: FlyHash = hasher, active: Any = active if held else None) -> Iterator[tuple[Any, Any]]:
            for part in gen_batches(len(y), max(1, _HELD // hasher.hash_nnz)):
                yield (hasher.active(X[part], n_jobs=n_jobs) if active is None else active), y[part]

        candidates = readouts(counts, rule, decay)
        right = sum(
            (hits(counts, bits, codes, candidates) for bits, codes in blocks()),
            np.zeros((len(candidates), n_classes), np.int64),
        )
        found.append((right, counts, candidates, blocks))
    chosen, place = best([right for right, *_ in found], found[0][1].n_per_class)
    _, counts, candidates, blocks = found[chosen]
    readout = candidates[place]
    return Chosen(
        specs[chosen], counts, readout, coolest([losses(counts, bits, codes, readout) for bits, codes in blocks()])
    )


def readouts(counts: ClassCounts, rule: str = "balanced", decay: str | float = "auto") -> list[Readout]:
    """The read-outs to choose from: those of `ClassCounts.decay_grid`, or the one whose decay is given."""
    if decay != "auto":
        return [Readout(rule, float(decay))]
    if rule == "bayes":  # does not use it
        return [Readout(rule, counts.suggest_decay(rule))]
    return [Readout(rule, gamma) for gamma in counts.decay_grid(rule)]


def hits(counts: ClassCounts, active: npt.ArrayLike, y: npt.NDArray[np.int64], candidates: Sequence[Readout]) -> Hits:
    """Training points of each class that a model without them gets right.

    Parameters
    ----------
    counts : ClassCounts
        With all the points in it, and those of others perhaps.
    active : (n, rho) integers
        Their active bits.
    y : (n,) int64 array
        Their classes.
    candidates : sequence of K Readout

    Returns
    -------
    (K, L) int64 array
    """
    result = np.empty((len(candidates), counts.n_classes), np.int64)
    for rule in dict.fromkeys(candidate.rule for candidate in candidates):
        members = [k for k, candidate in enumerate(candidates) if candidate.rule == rule]
        result[members] = counts.leave_one_out_hits(active, y, [candidates[k].decay for k in members], rule)
    return result


def best(right: Sequence[Hits], n_per_class: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Spec and read-out of the highest balanced accuracy, the first of equals.

    Parameters
    ----------
    right : sequence of (K, L) arrays
        `hits` of each spec, summed over the parties. K may differ.
    n_per_class : (L,) int64 array
        Training points of each class.

    Returns
    -------
    spec, readout : int
    """
    filled = np.flatnonzero(n_per_class > 0)
    scores = [[_balanced(row[filled], n_per_class[filled]) for row in table] for table in right]
    spec = max(range(len(scores)), key=lambda i: max(scores[i]))
    return spec, scores[spec].index(max(scores[spec]))


def _balanced(right: Hits, sizes: Hits) -> float:
    """Mean recall, so rounded that equal ones are equal whatever the order of classes and the errors of division."""
    if len(sizes) == 0:
        return 0.0
    return round(math.fsum((right / sizes).tolist()) / len(sizes), 12)


TEMPERATURES = tuple(2.0 ** (k / 2) for k in range(16, -17, -1))
"""What `readout.log_odds` may be divided by to become logarithms of probabilities."""


def losses(counts: ClassCounts, active: npt.ArrayLike, y: npt.NDArray[np.int64], readout: Readout) -> Hits:
    """Leave-one-out log-loss of training points at each of `TEMPERATURES`, as `ClassCounts.leave_one_out_losses` does.

    Parameters
    ----------
    counts, active, y
        As for `hits`.
    readout : Readout

    Returns
    -------
    (T,) int64 array
    """
    return counts.leave_one_out_losses(active, y, readout.decay, readout.rule, TEMPERATURES)


def coolest(tables: Sequence[Hits]) -> float:
    """The temperature of the lowest loss, the first of equals; 1 where there are no points.

    Parameters
    ----------
    tables : sequence of (T,) arrays
        `losses` of the parties.
    """
    total = np.sum([np.zeros(len(TEMPERATURES), np.int64), *tables], axis=0)
    return TEMPERATURES[int(total.argmin())] if total.any() else 1.0
