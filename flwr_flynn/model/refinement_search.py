"""Search for the weights of a refined model, at the server, and the whole refinement of samples in one place.

From the sum of the parties' `RefinementStatistic` the server computes the weights of the next round: L-BFGS with a
diagonal start (`descent`), and a search along its direction that takes a round for each length it tries. What is
sent is rounded to multiples of `GRID`, which take half the bytes; what rounding takes away is added to the next step,
so that small steps add up. Kept are the weights of the round with the best balanced accuracy on the held-out samples,
the first among equals, if it is above that of the model without refinement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.metrics import mean_recall
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.portable import dot
from flwr_flynn.model.refinement import (
    GRID,
    LARGEST_WEIGHT,
    LEVELS,
    UNIT,
    Batch,
    Floats,
    RefinementStatistic,
    Table,
    Weights,
    class_factors,
    hashed,
    start_weights,
    statistic_of,
)

BYTES_PER_WEIGHT = 200
"""Memory of a search for each of its weights, with a statistic that is added to a sum."""

_RIDGE = 0.03  # times the active bits of a sample
_FIRST_LENGTH = 0.01  # of the direction, before any curvature is known: bits of a sample vary together
_HISTORY = 5  # steps that L-BFGS remembers
_KEPT = 2**24  # active bits kept from round to round


def refine(model: Model, X: Any, y: npt.NDArray[np.int64], n_rounds: int, n_jobs: int | None = None) -> Model:
    """Refine a model by rounds over its own training samples, (n, d), and their class indices, (n,)."""
    hashers = [member.hash for member in model.members]
    batches: Iterable[Batch] = hashed(hashers, X, y, n_jobs)
    is_kept = len(y) * sum(hasher.hash_nnz for hasher in hashers) <= _KEPT
    if is_kept:
        batches = list(batches)
    counts = [
        member.counts - part
        for member, part in zip(model.members, held_out_counts(hashers, len(model.classes), batches), strict=True)
    ]
    unrefined = replace(model, members=without_validation_samples(model.members, counts), refined=None)
    search = Search.of(counts)
    for number in range(n_rounds):
        if search.is_done:
            break
        before = unrefined.scores_of_active if number == 0 else None
        if not is_kept:
            batches = hashed(hashers, X, y, n_jobs)
        search = search.advance(statistic_of(search.trial, search.factors, batches, before))
    return replace(model, refined=search.best)


def held_out_counts(hashers: Sequence[FlyHash], n_classes: int, batches: Iterable[Batch]) -> list[ClassCounts]:
    """Counts of the held-out samples by each hash."""
    totals = [ClassCounts.zeros(hasher, n_classes) for hasher in hashers]
    for active, y, is_held_out in batches:
        for i, (hasher, bits) in enumerate(zip(hashers, active, strict=True)):
            totals[i] += ClassCounts.from_active(hasher, bits[is_held_out], y[is_held_out], n_classes)
    return totals


def without_validation_samples(
    members: Sequence[ModelMember], counts: Sequence[ClassCounts]
) -> tuple[ModelMember, ...]:
    """Members with other counts, those without the held-out samples, and with their temperatures."""
    pairs = zip(members, counts, strict=True)
    return tuple(replace(each, counts=part, scoring=each.calibrated) for each, part in pairs)


@dataclass(frozen=True, eq=False)
class Search:
    """State of the minimisation at the server: where it is, which weights it tries next, and the best so far.

    Parameters
    ----------
    counts : tuple of ClassCounts
        Of each member, without the held-out samples: the start and the curvature follow from them.
    """

    counts: tuple[ClassCounts, ...]
    trial: Weights
    best: Weights | None = None  # None: no weights were better than the model without refinement
    accuracies: tuple[float, ...] = ()  # balanced, on the held-out samples: without refinement, and of each round
    is_done: bool = False
    _at: Floats | None = None  # as it was sent
    _unrounded: Floats | None = None
    _loss: float = 0.0
    _gradient: Floats | None = None
    _direction: Floats | None = None
    _length: float = 1.0
    _steps: tuple[Step, ...] = ()
    _answered: frozenset[str] = field(default_factory=frozenset)
    _judges: tuple[int, ...] = ()  # held-out samples of each class in the first round
    _best_accuracy: float = -1.0

    @classmethod
    def of(cls, counts: Sequence[ClassCounts]) -> Search:
        """The start, for counts without the held-out samples."""
        return cls(tuple(counts), start_weights(counts))

    def advance(self, total: RefinementStatistic, answered: frozenset[str] = frozenset()) -> Search:
        """Go on with the sum of the statistics at `trial`; `answered` names the parties in it.

        Where other parties answered than the time before, losses do not compare: the search begins anew at `trial`. Nor
        do accuracies on other held-out samples than those of the first round: such a round is never the best.
        """
        before = self.accuracies or (mean_recall(total.before, total.held_out),)
        accuracy, judges = mean_recall(total.correct, total.held_out), tuple(total.held_out.tolist())
        search = replace(self, accuracies=(*before, accuracy), _answered=answered)
        if not self.accuracies:
            search = replace(search, _judges=judges, _best_accuracy=before[0])
        if answered != self._answered:
            search = replace(search, _at=None, _steps=())
        if judges == search._judges and accuracy > search._best_accuracy:
            search = replace(search, best=self.trial, _best_accuracy=accuracy)
        at, ridge = _joined(self.trial) * UNIT, self._ridge
        loss = float(total.loss) * UNIT + ridge / 2 * dot(at, at)
        if search._at is not None:
            assert search._gradient is not None
            assert search._direction is not None
            change, slope = loss - search._loss, dot(search._gradient, search._direction)
            if not is_low_enough(change, slope, search._length):
                length = shorter(change, slope, search._length)
                return replace(search, _length=length)._towards(search._direction)
        gradient = _joined(total.gradient) + ridge * at
        steps = search._steps
        if search._at is not None and search._gradient is not None:
            step = Step.between(at - search._at, gradient - search._gradient, np.float32)
            steps = (*steps, *step)[-_HISTORY:]
        unrounded = at if search._at is None else search._next
        search = replace(search, _at=at, _unrounded=unrounded, _loss=loss, _gradient=gradient, _steps=steps)
        search = replace(search, _length=1.0 if steps else _FIRST_LENGTH)
        curvature = search._curvature()
        return search._towards(descent(gradient, steps, lambda vector: vector / curvature))

    @property
    def factors(self) -> Table:
        """Factors of the classes' losses, (L,) int64."""
        return class_factors(self.counts[0].n_per_class)

    @property
    def _ridge(self) -> float:
        return LEVELS * _RIDGE * sum(each.hash_nnz for each in self.counts)

    def _towards(self, direction: Floats) -> Search:
        assert self._at is not None
        search = replace(self, _direction=direction)
        wanted = search._next
        at, tried = np.rint(self._at / UNIT), _joined(self.trial)  # the same, unless the trial was refused
        is_fine = (tried != at).any() and (tried % GRID).any()
        for grid in (1,) if is_fine else (GRID, 1):  # a step too small for the one may be there in the other
            weights = np.clip(np.rint(wanted / (UNIT * grid)) * grid, -LARGEST_WEIGHT, LARGEST_WEIGHT)
            if (weights != at).any() and (weights != tried).any():
                return replace(search, trial=self._split(weights.astype(np.int32)))
        return replace(search, trial=self._split(at.astype(np.int32)), is_done=True)

    @property
    def _next(self) -> Floats:
        """The weights to try, before they are rounded."""
        assert self._unrounded is not None
        assert self._direction is not None
        return self._unrounded + self._length * self._direction

    def _split(self, weights: npt.NDArray[np.int32]) -> Weights:
        ends = np.cumsum([each.hash_dim * each.n_classes for each in self.counts])[:-1]
        parts = np.split(weights, ends)
        return tuple(part.reshape(each.hash_dim, -1) for part, each in zip(parts, self.counts, strict=True))

    def _curvature(self) -> Floats:
        """Diagonal of the curvature where all classes are equally probable, and the ridge."""
        factors = self.factors
        n_classes = max(int((factors > 0).sum()), 1)
        share = (1 - 1 / n_classes) / n_classes
        parts = [np.repeat(factors @ each.array, len(factors)) * share + self._ridge for each in self.counts]
        return np.concatenate(parts)


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> Floats:
    return np.concatenate([each.ravel() for each in arrays]).astype(np.float64)


# ---- L-BFGS (Nocedal & Wright, Numerical Optimization, 2006, section 7.2), the same bits on every machine: sums of
# floats run in a fixed order, and products stand for powers, which are rounded differently from machine to machine


@dataclass(frozen=True, eq=False)
class Step:
    """A step of the search: differences of weights and gradients, (n,) float32 or float64, and 1 / their product."""

    weights: npt.NDArray[Any]
    gradient: npt.NDArray[Any]
    inverse: float

    @classmethod
    def between(cls, weights: Floats, gradient: Floats, dtype: npt.DTypeLike = np.float64) -> list[Step]:
        """The step with these differences in a list; an empty list where it tells of no curvature upwards."""
        product = dot(weights, gradient)
        return [cls(weights.astype(dtype), gradient.astype(dtype), 1 / product)] if product > 0 else []


def descent(gradient: Floats, steps: Sequence[Step], solved: Callable[[Floats], Floats]) -> Floats:
    """Direction, (n,): minus the gradient times an approximate inverse of the curvature.

    `solved` multiplies vectors by the inverse of a rough curvature, to which the steps, the oldest first, add.
    """
    direction, shares = gradient.copy(), []
    for step in reversed(steps):
        shares.append(step.inverse * dot(step.weights, direction))
        direction -= shares[-1] * step.gradient.astype(np.float64)
    direction = solved(direction)
    if steps:
        last = steps[-1].gradient.astype(np.float64)
        direction /= steps[-1].inverse * dot(last, solved(last))
    for step, share in zip(steps, reversed(shares), strict=True):
        direction += (share - step.inverse * dot(step.gradient, direction)) * step.weights.astype(np.float64)
    return -direction


def is_low_enough(change: float, slope: float, length: float) -> bool:
    """True if the loss changed as a step of this length along a direction of this slope lets one expect (Armijo)."""
    return change <= 1e-4 * length * slope


def shorter(change: float, slope: float, length: float) -> float:
    """Length to try instead: where a parabola through what is known has its minimum, from a tenth to half."""
    return max(0.1 * length, min(0.5 * length, -slope * length * length / 2 / (change - slope * length)))
