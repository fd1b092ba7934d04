"""Matrix scaling: what the scores of a model confuse, learned from sums in a few small exchanges.

Scores of ridge regression say little of which classes pass for which. Matrix scaling (Guo, Pleiss, Sun & Weinberger
2017, section 4.2) puts a logistic regression behind them: the log odds of class l are c_l + sum_k A[k, l] s_k, with s
the scores of a sample as logarithms of probabilities with all classes equally frequent, each about as without the
sample itself. With the classes' shares in the samples they give the probability p_y of the true class. Minimised is
the sum over the samples of -log p_y, plus the ridge 30 / 2 (|A - I|**2 + |c|**2), which keeps the scores nearly as
they are where samples are few and scores moderate.

Scores are rounded to multiples of 1/32, A and c to multiples of 2**-12: what A makes of them is exact in float64. In
each exchange a party sends a `ScalingStatistic`, a sum over its samples of integers: losses by the best matrix so far
and by the one that is tried, the gradient there, and at the identity, with which the search begins, the curvature of
each class. The server goes on by L-BFGS from that curvature (`model.lbfgs`), and keeps the last matrix that lowered the
loss of those that answered. How many samples it gets right is not asked, for these have taught it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.model.lbfgs import Step, descent, is_low_enough, shorter
from flwr_flynn.model.portable import dot, exp, log
from flwr_flynn.model.ridge import factorise, substitute

Table = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

N_EXCHANGES = 5
"""Exchanges, with the first at the identity."""

MOST_CLASSES = 64
"""Classes, at most: the curvature has about L**3 / 2 entries."""

UNIT = 2.0**-12
"""Weight of the integer 1 in a matrix."""

LARGEST_WEIGHT = 2**16
"""Largest magnitude of an entry of a matrix."""

_RIDGE = 30.0
_LEVELS = 2**8  # units of a probability of 1
_SCORES, _LARGEST_SCORE = 32.0, 2**13  # units of a score of 1, and the largest score in them
_COARSE, _LARGEST_COARSE = 4.0, 2**7  # likewise for the curvature, whose sums would be too large
_LOSSES, _LARGEST_LOSS = 2**10, 2**16  # likewise of losses


def scaled(scores: Floats, matrix: npt.NDArray[np.int32]) -> Floats:
    """Log odds, (n, L), of scores, (n, L), by a matrix, (L + 1, L): A above c."""
    found: Floats = (_rounded(scores) @ matrix[:-1] + _SCORES * matrix[-1]) * (UNIT / _SCORES)
    return found


def identity(n_classes: int) -> npt.NDArray[np.int32]:
    """The matrix that leaves scores as they are, (L + 1, L)."""
    return np.eye(n_classes + 1, n_classes, dtype=np.int32) * np.int32(1 / UNIT)


def is_scaled(n_classes: int) -> bool:
    """True if the scores of so many classes get a matrix."""
    return 1 < n_classes <= MOST_CLASSES


def is_identity(matrix: npt.NDArray[np.int32]) -> bool:
    """True where the search starts: statistics have the curvature there."""
    return np.array_equal(matrix, identity(matrix.shape[1]))


def checked_matrix(values: Any, n_classes: int) -> npt.NDArray[np.int32]:
    """A read-only matrix from an array or lists that may come from anybody; a `DataError` if they are none."""
    expected = f"integers up to {LARGEST_WEIGHT} of shape {(n_classes + 1, n_classes)}, for 2 to {MOST_CLASSES} classes"
    if isinstance(values, list | tuple) and not all(
        isinstance(row, list | tuple) and all(type(value) is int for value in row) for row in values
    ):
        raise DataError("matrix", expected, "other lists")
    try:
        matrix = np.array(values)
    except ValueError:
        raise DataError("matrix", expected, "rows of different lengths") from None
    if not is_scaled(n_classes) or matrix.shape != (n_classes + 1, n_classes) or matrix.dtype.kind not in "iu":
        raise DataError("matrix", expected, f"{matrix.dtype} of shape {matrix.shape}")
    if (matrix < -LARGEST_WEIGHT).any() or (matrix > LARGEST_WEIGHT).any():
        raise DataError("matrix", expected, "larger ones")
    found = matrix.astype(np.int32)
    found.flags.writeable = False
    return found


@dataclass(frozen=True, eq=False)
class ScalingStatistic:
    """Sums over samples, all int64: losses, (2,), in units of 2**-10, and gradient, (L + 1, L), in those of 2**-13.

    The first loss and the gradient are those by the matrix that is tried, the second loss that by the best so far.
    `curvature`, (L, (L + 1) (L + 2) / 2), has the upper triangle of an (L + 1, L + 1) matrix for each class, in units
    of 2**-12. The statistics of disjoint sets of samples add.
    """

    loss: Table
    gradient: Table
    curvature: Table | None = None

    @property
    def parts(self) -> tuple[Table, ...]:
        """All arrays, as `shapes` has them."""
        return (self.loss, self.gradient) if self.curvature is None else (self.loss, self.gradient, self.curvature)

    @classmethod
    def zeros(cls, n_classes: int, with_curvature: bool) -> ScalingStatistic:
        """Sums of no samples."""
        return cls(*(np.zeros(shape, np.int64) for shape in shapes(n_classes, with_curvature)))

    def __add__(self, other: ScalingStatistic) -> ScalingStatistic:
        mine, theirs = ([each.shape for each in statistic.parts] for statistic in (self, other))
        if mine != theirs:
            raise CountsError("scaling", f"shapes {mine} on both sides", theirs)
        return ScalingStatistic(*map(np.add, self.parts, other.parts))


def shapes(n_classes: int, with_curvature: bool) -> list[tuple[int, ...]]:
    """Shapes of the arrays of a statistic, in their order."""
    size = n_classes + 1
    curvature = [(n_classes, size * (size + 1) // 2)] if with_curvature else []
    return [(2,), (size, n_classes), *curvature]


def largest(n_samples: int) -> list[int]:
    """Largest magnitudes of the arrays of a statistic of so many samples, in their order."""
    each = _LARGEST_LOSS, _LEVELS * _LARGEST_SCORE, _LEVELS * _LARGEST_COARSE**2
    return [n_samples * most for most in each]


def memory_of_scaling(n_classes: int, n_samples: int) -> int:
    """Estimate the memory of a statistic and of the scores of so many samples at a time, in bytes."""
    return 16 * n_classes * (n_classes + 1) * (n_classes + 2) + 64 * n_samples * n_classes


def statistic_of(
    scores: Floats,
    y: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    matrix: npt.NDArray[np.int32],
    best: npt.NDArray[np.int32],
) -> ScalingStatistic:
    """Sums at a matrix, and the loss by the best so far, over samples of these scores, (n, L), and classes, (n,).

    `sizes`, (L,), are all samples that taught the scores. Classes without any have no part in it, nor have samples
    that are alone in their class: without them nothing is known of it.
    """
    n_classes, is_there = len(sizes), sizes > 0
    total = ScalingStatistic.zeros(n_classes, is_identity(matrix))
    rows = sizes[y] > 1
    inputs, true = _rounded(scores[rows]), y[rows]
    inputs[:, ~is_there] = 0.0
    n = sum(sizes.tolist())
    log_shares = np.array([log(size / n) if size else 0.0 for size in sizes.tolist()])
    coarse = np.clip(np.rint(inputs * (_COARSE / _SCORES)), -_LARGEST_COARSE, _LARGEST_COARSE).astype(np.int64)
    odds, before = (scaled(inputs / _SCORES, each) for each in (matrix, best))
    curvature = np.zeros((n_classes, 0), np.int64) if total.curvature is None else total.curvature
    whole = inputs.astype(np.int64)
    _add(whole, coarse, odds, before, true, is_there, log_shares, total.loss, total.gradient, curvature)
    return total


def _rounded(scores: Floats) -> Floats:
    whole: Floats = np.clip(np.rint(scores * _SCORES), -_LARGEST_SCORE, _LARGEST_SCORE)
    return whole


@njit(nogil=True, cache=True)
def _loss(odds, own, is_there, log_shares, shares):  # type: ignore[no-untyped-def]
    """Loss of a sample of class `own` in integers; `shares` gets the probabilities of all classes."""
    highest, mass = -np.inf, 0.0
    for label in range(len(odds)):
        if is_there[label]:
            highest = max(highest, odds[label] + log_shares[label])
    for label in range(len(odds)):
        shares[label] = exp(odds[label] + log_shares[label] - highest) if is_there[label] else 0.0
        mass += shares[label]
    lost = (log(mass) - (odds[own] + log_shares[own] - highest)) * _LOSSES
    shares /= mass
    return np.int64(np.rint(min(lost, np.float64(_LARGEST_LOSS))))


@njit(nogil=True, cache=True)
def _add(inputs, coarse, odds, before, true, is_there, log_shares, loss, gradient, curvature):  # type: ignore[no-untyped-def]
    """Add each sample to all sums."""
    n_classes = odds.shape[1]
    shares = np.empty(n_classes)
    for p in range(len(true)):
        own = true[p]
        loss[1] += _loss(before[p], own, is_there, log_shares, shares)
        loss[0] += _loss(odds[p], own, is_there, log_shares, shares)
        for label in range(n_classes):
            share = shares[label]
            residual = np.int64(np.rint(_LEVELS * (share - (label == own))))
            if residual != 0:
                for k in range(n_classes):
                    gradient[k, label] += residual * inputs[p, k]
                gradient[n_classes, label] += residual * np.int64(_SCORES)
            weight = np.int64(np.rint(_LEVELS * (share * (1.0 - share)))) if curvature.shape[1] else 0
            if weight != 0:
                place = 0
                for i in range(n_classes):
                    for j in range(i, n_classes):
                        curvature[label, place] += weight * coarse[p, i] * coarse[p, j]
                        place += 1
                    curvature[label, place] += weight * coarse[p, i] * np.int64(_COARSE)
                    place += 1
                curvature[label, place] += weight * np.int64(_COARSE * _COARSE)


@dataclass(frozen=True, eq=False)
class Scaling:
    """State of the search at the server: the matrix that it tries next, and the best so far.

    Parameters
    ----------
    trial : (L + 1, L) int32 array
        What the next exchange is about.
    best : (L + 1, L) int32 array, optional
        None before the first exchange.
    """

    trial: npt.NDArray[np.int32]
    best: npt.NDArray[np.int32] | None = None
    _blocks: Floats | None = None  # the factored curvature of each class
    _gradient: Floats | None = None
    _direction: Floats | None = None
    _length: float = 1.0
    _steps: tuple[Step, ...] = ()
    _parties: frozenset[str] = frozenset()  # those whose gradient it is

    @classmethod
    def of(cls, n_classes: int) -> Scaling:
        """The start."""
        return cls(identity(n_classes))

    @property
    def is_done(self) -> bool:
        """True if there is nothing left to try."""
        return self.best is not None and np.array_equal(self.trial, self.best)

    @property
    def known(self) -> npt.NDArray[np.int32]:
        """The best matrix so far, the identity before there is one."""
        return identity(self.trial.shape[1]) if self.best is None else self.best

    def take(self, total: ScalingStatistic, parties: frozenset[str] = frozenset()) -> Scaling:
        """Go on with the sum of the statistics at `trial`; the same without samples. `parties` names those in it.

        Both losses are of the same samples, whoever answered before. Gradients of others than before do not compare.
        """
        if not any(part.any() for part in total.parts):
            return self
        penalty, gradient = _penalty(self.trial)
        loss = float(total.loss[0]) / _LOSSES + penalty
        gradient = total.gradient.ravel() / (_LEVELS * _SCORES) + gradient
        blocks, steps = self._blocks, self._steps
        if blocks is None:
            blocks = _factored(total.curvature, self.trial.shape[1])
        if self.best is not None:
            assert self._gradient is not None
            assert self._direction is not None
            change = loss - (float(total.loss[1]) / _LOSSES + _penalty(self.best)[0])
            slope = dot(self._gradient, self._direction)
            if not is_low_enough(change, slope, self._length):
                return self._towards(self._direction, shorter(change, slope, self._length))
            moved = (self.trial - self.best).ravel().astype(np.float64) * UNIT
            steps = (*steps, *Step.between(moved, gradient - self._gradient))
        if parties != self._parties:
            steps = ()
        search = replace(
            self,
            best=self.trial,
            _parties=parties,
            _blocks=blocks,
            _gradient=gradient,
            _steps=steps,
        )
        return search._towards(descent(gradient, steps, partial(_solved, blocks)), 1.0)

    def _towards(self, direction: Floats, length: float) -> Scaling:
        assert self.best is not None
        wanted = np.rint((self.best * UNIT + length * direction.reshape(self.best.shape)) / UNIT)
        trial = np.clip(wanted, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int32)
        return replace(self, trial=trial, _direction=direction, _length=length)


def _penalty(matrix: npt.NDArray[np.int32]) -> tuple[float, Floats]:
    """Ridge at a matrix, and its gradient."""
    difference = (matrix - identity(matrix.shape[1])).ravel().astype(np.float64) * UNIT
    return _RIDGE / 2 * dot(difference, difference), _RIDGE * difference


def _solved(blocks: Floats, vector: Floats) -> Floats:
    """Multiply a vector, (n,), by the inverse of the curvature, of which each class has a block."""
    found = vector.reshape(-1, len(blocks)).T.copy()[:, :, None]
    for block, each in zip(blocks, found, strict=True):
        substitute(block, each)
    return found[:, :, 0].T.ravel()


def _factored(curvature: Table | None, n_classes: int) -> Floats:
    """Triangular factors, (L, L + 1, L + 1), of each class's curvature with the ridge."""
    size = n_classes + 1
    blocks = np.zeros((n_classes, size, size))
    if curvature is not None:
        blocks[(slice(None), *np.triu_indices(size))] = curvature / (_LEVELS * _COARSE * _COARSE)
    for block in blocks:
        if not factorise(block, _RIDGE):  # never of samples; invented sums must not end the run
            block[:] = np.eye(size) * np.sqrt(_RIDGE)
    return blocks
