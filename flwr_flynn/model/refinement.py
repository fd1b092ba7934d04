"""Refinement: more rounds, in which the counts become the start of a logistic regression over the active bits.

Scores are linear in the bits of all members together: score of class l = 2**-10 times the sum of integer weights
W[i, l] over the active bits i. Minimised is the sum over the training samples of f_y (-log p_y), plus the ridge R / 2
|W|**2 (in units of 1, not of 2**-10), with the softmax p of the scores and factors f_l, 64 times the mean class size
over n_l, rounded: so classes weigh the same. R = 64 * 0.03 * (active bits of a sample).

Each round takes one `RefinementStatistic` of every party, a sum over its samples of integers:

- the gradient, with residuals f_y (p_l - [y = l]) rounded to integers. A sample that is sure of its class has residuals
  of zero, and costs nothing;
- the loss, in units of 2**-10;
- of samples that are held out of the gradient, about a tenth, picked by their content: how many are classified
  correctly.

The statistics of parties add up to that of the pooled samples, exactly. What the server makes of the sum is in
`model.refinement_search`. The start is read from the counts: 3 / (active bits) times the log rates of rule "bayes".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from sklearn.utils import gen_batches

from flwr_flynn.errors import DataError
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.counts import ClassCounts, Tables
from flwr_flynn.model.leave_one_out_scores import HELD
from flwr_flynn.model.portable import exp, log
from flwr_flynn.model.scoring import log_rates
from flwr_flynn.model.subsample import content_shares

Weights = tuple[npt.NDArray[np.int32], ...]
Table = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Active = Sequence[npt.NDArray[np.int32]]
Batch = tuple[Active, npt.NDArray[np.int64], npt.NDArray[np.bool_]]
"""Active bits of the same samples for each member, their class indices, and which of them are held out."""

LARGEST_WEIGHT = 2**20
"""Largest magnitude of a weight."""

UNIT = 2.0**-10
"""A weight of 1, and a loss of 1."""

LEVELS = 64
"""Factor of a class of mean size: residuals of so many levels."""

LARGEST_FACTOR = 2**20
"""Largest factor of a class."""

MOST_LOSS = 64.0
"""Largest loss of a sample, before its factor."""

GRID = 4
"""Weights are multiples of it, to take fewer bytes: an error of .02 in a score of 192 active bits."""

_START = 3.0  # over the active bits of a sample: factor of the log rates
_HELD_OUT = 0.1  # share of the samples
_SCORES = 2**22  # class scores held at a time, 32 MiB, and as many residuals


def held_out(X: Any) -> npt.NDArray[np.bool_]:
    """Choose about a tenth of (n, d) samples by their content: a mask, (n,) bool."""
    return content_shares(X) >= 1.0 - _HELD_OUT


def hashed(
    hashers: Sequence[FlyHash],
    X: Any,
    y: npt.NDArray[np.int64],
    n_jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[Batch]:
    """Samples batch by batch; `progress` is called with the number of each after its use."""
    n_active = sum(hasher.hash_nnz for hasher in hashers)
    # scikit-learn has no batches of no samples.
    for rows in gen_batches(len(y), max(1, HELD // n_active)) if len(y) else ():
        yield [hasher.active(X[rows], n_jobs=n_jobs) for hasher in hashers], y[rows], held_out(X[rows])
        if progress is not None:
            progress(len(y[rows]))


def class_factors(n_per_class: Table) -> Table:
    """Factors of the losses of the classes, (L,) int64, from the sizes of all parties together.

    From 1 to `LARGEST_FACTOR`; 0 for a class without samples.
    """
    sizes = [int(size) for size in n_per_class]
    mean = sum(sizes) / max(sum(size > 0 for size in sizes), 1)
    factors = [min(max(round(LEVELS * mean / n), 1), LARGEST_FACTOR) if n else 0 for n in sizes]
    return np.array(factors, np.int64)


def start_weights(counts: Sequence[ClassCounts]) -> Weights:
    """Weights to start from, (m, L) int32 for each member, read from the counts."""
    n_active = sum(each.hash_nnz for each in counts)
    filled = ~counts[0].empty_classes
    weights = []
    for each in counts:
        rates = log_rates(each)
        total = np.zeros(each.hash_dim)
        for label in np.flatnonzero(filled):  # one after the other: the same sum on every machine
            total += rates[:, label]
        centred = (rates - (total / max(filled.sum(), 1))[:, None]) * filled
        weights.append(np.rint(centred * (_START / n_active / UNIT / GRID)).astype(np.int32) * np.int32(GRID))
    return tuple(weights)


def refined_scores(weights: Weights, active: Active) -> Floats:
    """Scores, (n, L) float64, of samples from their active bits, (n, rho) for each member: log odds, exact."""
    scores = np.zeros((len(active[0]), weights[0].shape[1]))
    for bits, each in zip(active, weights, strict=True):
        _add_scores(bits, each, scores)
    scores *= UNIT
    return scores


@dataclass(frozen=True, eq=False)
class RefinementStatistic(Tables):
    """Gradient, loss and results on held-out samples of some samples. Adds exactly.

    Its tables are the loss, (1,); held-out samples of each class, those that the weights classify correctly, and those
    that the model without refinement does (zeros where it was not asked for), (L,) each; and for each member the
    gradient, (m, L).
    """

    @classmethod
    def zeros(cls, shapes: Sequence[tuple[int, int]]) -> RefinementStatistic:
        """The statistic of no samples, for weights of these shapes."""
        return cls(tuple(np.zeros(shape, np.int64) for shape in ((1,), *[(shapes[0][1],)] * 3, *shapes)))

    @property
    def loss(self) -> int:
        """Loss of the samples that are not held out."""
        return int(self.tables[0].item())

    @property
    def held_out(self) -> Table:
        """Held-out samples of each class, (L,)."""
        return self.tables[1]

    @property
    def correct(self) -> Table:
        """Held-out samples that the weights classify correctly, (L,)."""
        return self.tables[2]

    @property
    def before(self) -> Table:
        """Held-out samples that the model without refinement classifies correctly, (L,)."""
        return self.tables[3]

    @property
    def gradient(self) -> tuple[Table, ...]:
        """Gradient of the weights of each member, (m, L) each."""
        return self.tables[4:]


def statistic_of(
    weights: Weights, factors: Table, batches: Iterable[Batch], before: Callable[[Active], Floats] | None = None
) -> RefinementStatistic:
    """The statistic of samples under these weights; `before` gives scores of the model without refinement."""
    n_classes = len(factors)
    total = RefinementStatistic.zeros([each.shape for each in weights])
    loss, sizes, correct, correct_before = total.tables[:4]
    for active, y, is_held_out in _split(batches, max(1, _SCORES // n_classes)):
        scores = refined_scores(weights, active)
        residuals = np.zeros(scores.shape, np.int64)
        loss += int(_residuals(scores, y, factors, ~is_held_out, residuals))
        for bits, gradient in zip(active, total.gradient, strict=True):
            _add_gradient(bits, residuals, gradient)
        true = y[is_held_out]
        sizes += np.bincount(true, minlength=n_classes)
        scores = np.where(factors > 0, scores[is_held_out], -np.inf)
        correct += np.bincount(true[scores.argmax(axis=1) == true], minlength=n_classes)
        if before is not None and len(true):
            scores = before([bits[is_held_out] for bits in active])
            correct_before += np.bincount(true[scores.argmax(axis=1) == true], minlength=n_classes)
    return total


def _split(batches: Iterable[Batch], most: int) -> Iterator[Batch]:
    """The same samples in batches of at most `most`."""
    for active, y, is_held_out in batches:
        for rows in gen_batches(len(y), most) if len(y) else ():
            yield [bits[rows] for bits in active], y[rows], is_held_out[rows]


@njit(nogil=True, cache=True)
def _add_scores(active, weights, scores):  # type: ignore[no-untyped-def]
    """Add the weights of the active bits, in whole units: exact."""
    for p in range(active.shape[0]):
        row = scores[p]
        for k in range(active.shape[1]):
            terms = weights[np.uint64(active[p, k])]
            for label in range(len(row)):
                row[label] += terms[label]


@njit(nogil=True, cache=True)
def _residuals(scores, y, factors, learns, residuals):  # type: ignore[no-untyped-def]
    """Write the residuals of the samples that are learned, and return their loss."""
    loss = np.int64(0)
    for p in range(len(y)):
        factor = factors[y[p]]
        if not learns[p] or factor == 0:
            continue
        row = scores[p]
        highest = -np.inf
        for label in range(len(row)):
            if factors[label] > 0:
                highest = max(highest, row[label])
        mass = 0.0
        for label in range(len(row)):
            if factors[label] > 0:
                mass += exp(row[label] - highest)
        for label in range(len(row)):
            if factors[label] > 0:
                share = exp(row[label] - highest) / mass
                residuals[p, label] = np.int64(np.rint(factor * (share - (label == y[p]))))
        loss += np.int64(np.rint(factor * min(log(mass) - (row[y[p]] - highest), MOST_LOSS) / UNIT))
    return loss


@njit(nogil=True, cache=True)
def _add_gradient(active, residuals, gradient):  # type: ignore[no-untyped-def]
    """Add the residuals of each sample, where one of them is not zero, to the rows of its active bits."""
    for p in range(active.shape[0]):
        row = residuals[p]
        if not row.any():
            continue
        for k in range(active.shape[1]):
            sums = gradient[np.uint64(active[p, k])]
            for label in range(len(row)):
                sums[label] += row[label]


def checked_weights(weights: Any, shapes: Sequence[tuple[int, int]]) -> Weights:
    """Return weights as a tuple of read-only arrays, if they are of these shapes and within their bounds."""
    arrays = tuple(np.array(each) for each in weights)
    if [each.shape for each in arrays] != shapes or any(each.dtype != np.int32 for each in arrays):
        got = ", ".join(f"{each.dtype} {each.shape}" for each in arrays[:5])
        raise DataError("refined", f"int32 arrays of shapes {shapes}", got)
    extremes = [int(extreme) for each in arrays for extreme in (each.min(), each.max())]
    if any(abs(extreme) > LARGEST_WEIGHT for extreme in extremes):
        raise DataError("refined", f"weights from -{LARGEST_WEIGHT} to {LARGEST_WEIGHT}", max(extremes, key=abs))
    for each in arrays:
        each.flags.writeable = False
    return arrays


def weights_sha256(weights: Weights) -> str:
    """SHA-256 over the weights of all members."""
    sha256 = hashlib.sha256(b"flynn weights 1")
    for each in weights:
        sha256.update(f"{each.shape} ".encode())
        sha256.update(np.ascontiguousarray(each, "<i4").data)
    return sha256.hexdigest()
