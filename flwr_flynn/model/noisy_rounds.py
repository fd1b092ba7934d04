"""Noisy refinement: a logistic regression over centred active bits, from noisy counts and noisy sums of gradients.

With c the mean of the hashes in units of 1 / 32, as the noisy counts tell it, a sample has the integers 32 h - c, of
L2 norm f. Its score of class l is the sum of the weights of its active bits over f. Its residuals are p - [y = l] with
the softmax p of the scores, clipped to the L2 norm that they have at weights of 0, divided by f, and rounded towards
zero to integers q. What a party sums over its samples are the products of q and 32 h - c. Each sample adds a matrix of
an L2 norm of at most `gradient_bound`, whatever the weights and c are; integers alone decide that.

The server adds the parties' noisy sums and takes steps of the heavy-ball method, the first one by the counts, whose
deviations from the mean are the gradient at weights of 0. Steps follow from the noise and the number of samples
(`Descent`); docs/results/privacy.md has the measurements. Nothing is judged on samples: that would cost
privacy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn.model.counts import ClassCounts, Tables
from flwr_flynn.model.portable import exp
from flwr_flynn.model.scoring import add_weights

Weights = npt.NDArray[np.int32]
Table = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LARGEST_WEIGHT = 2**20  # largest magnitude of a weight

UNIT = 2.0**-10  # a weight of 1

BYTES_PER_WEIGHT = 80  # memory of a descent for each of its weights, with a gradient that is added to a sum

CENTRE = 32  # a mean of 1: the hashes' mean is sent in units of its inverse

_LEVELS = 128  # of the residuals
_TOTAL = 0.6  # learning rate of all rounds together, by which scores gain as much noise as they need
_STEP = 50.0  # learning rate of a round without momentum: the largest that is stable on all data sets measured
_LARGEST_STEP = 300.0  # with momentum


def gradient_bound(hash_nnz: int) -> int:
    """Largest L2 norm of what one sample adds to a sum of gradients."""
    return _LEVELS * CENTRE * (math.isqrt(hash_nnz - 1) + 1)


def clip_norm(n_classes: int) -> float:
    """L2 norm to which residuals are clipped: that of weights of 0."""
    return math.sqrt(1 - 1 / n_classes)


def n_steps(n_samples: float, n_classes: int, noise: float) -> float:
    """Steps of full length, without momentum, for which there is room in the noise; see `Descent.of`."""
    return _TOTAL / _STEP * n_samples / (clip_norm(n_classes) * noise)


@dataclass(frozen=True, eq=False)
class NoisyGradient(Tables):
    """Gradient of some samples, (m, L), or a sum of such with noise. Adds exactly."""

    @property
    def gradient(self) -> Table:
        """Gradient of the weights, (m, L) int64."""
        return self.tables[0]


def clipped_gradient(
    weights: npt.NDArray[np.int32], centre: Table, hash_nnz: int, batches: Iterable[tuple[Any, Any]]
) -> NoisyGradient:
    """The sum over samples, batches of active bits (n, rho) and class indices (n,), without noise.

    Parameters
    ----------
    weights : (m, L) int32 array
    centre : (m,) int64 array
        From 0 to `CENTRE`.
    """
    gradient, sums = np.zeros(weights.shape, np.int64), np.zeros(weights.shape[1], np.int64)
    bound, typical = gradient_bound(hash_nnz), _typical_norm(centre, hash_nnz)
    for active, y in batches:
        _add_clipped(active, y, weights, centre, typical, bound, clip_norm(weights.shape[1]), gradient, sums)
    return NoisyGradient((gradient - centre[:, None] * sums,))


def _typical_norm(centre: Table, hash_nnz: int) -> float:
    """The root of the mean square of f, if `centre` is the mean."""
    return math.sqrt(max(hash_nnz * CENTRE**2 - int(centre @ centre), CENTRE**2))


@njit(nogil=True, cache=True, error_model="numpy")  # a division by 0 raises nothing
def _add_clipped(active, y, weights, centre, typical, bound, most, gradient, sums):  # type: ignore[no-untyped-def]
    """Add CENTRE q to the rows of the active bits, and q to the sums; nothing of a sample without a finite factor."""
    n_classes = weights.shape[1]
    at_centre = np.int64(0)
    for i in range(len(centre)):
        at_centre += centre[i] * centre[i]
    row, q = np.empty(n_classes), np.empty(n_classes, np.int64)
    for p in range(active.shape[0]):
        row[:] = 0.0
        square = at_centre + active.shape[1] * CENTRE * CENTRE
        for k in range(active.shape[1]):
            bit = np.uint64(active[p, k])
            square -= 2 * CENTRE * centre[bit]
            for label in range(n_classes):
                row[label] += weights[bit, label]
        if square <= 0:
            continue
        norm = math.sqrt(square)
        row *= UNIT * typical / norm
        highest, mass, length = row.max(), 0.0, 0.0
        for label in range(n_classes):
            row[label] = exp(row[label] - highest)
            mass += row[label]
        for label in range(n_classes):
            row[label] = row[label] / mass - (label == y[p])
            length += row[label] * row[label]
        factor = bound / (norm * max(most, math.sqrt(length)))
        if not factor < np.inf:  # of a single class residuals are 0
            continue
        for label in range(n_classes):
            q[label] = np.int64(row[label] * factor)
        while (q * q).sum() * square > bound * bound:  # never, but for the rounding of floats
            q -= np.sign(q)
        for k in range(active.shape[1]):
            sums_of_bit = gradient[np.uint64(active[p, k])]
            for label in range(n_classes):
                sums_of_bit[label] += CENTRE * q[label]
        sums += q


@dataclass(frozen=True, eq=False)
class Descent:
    """State of the descent at the server: the weights for the next round, or of the model.

    Parameters
    ----------
    n_samples : float
        As the noisy counts tell it, at least 1.
    centre : (m,) int64 array
    step, momentum : float
    """

    hash_nnz: int
    n_samples: float
    centre: Table
    step: float
    momentum: float
    _weights: Floats  # (m, L), of unit vectors
    _velocity: Floats

    @classmethod
    def of(cls, counts: ClassCounts, n_rounds: int, noise: float) -> Descent:
        """The state after the step by the sum of the noisy counts.

        `noise` is the standard deviation that a gradient of unit vectors and unclipped residuals would have if it were
        the only release of all parties: the larger, the shorter all steps together.
        """
        array, rho, n_classes = counts.array.T.astype(np.float64), counts.hash_nnz, counts.n_classes
        per_class = array.sum(axis=0) / rho
        n_samples = max(float(per_class.sum()), 1.0)
        mean = array.sum(axis=1) / n_samples
        level = float(mean.mean())
        spread = float(((mean - level) ** 2).sum())
        own = len(mean) * n_classes * counts.noise_variance / n_samples**2
        mean = level + max(0.0, 1 - own / spread if spread > 0 else 0.0) * (mean - level)  # James and Stein
        centre = np.rint(np.clip(mean, 0, 1) * CENTRE).astype(np.int64)
        step = min(_STEP * n_steps(n_samples, n_classes, noise) / (n_rounds + 1), _LARGEST_STEP)
        momentum, zeros = max(0.0, 1 - _STEP / step), np.zeros(array.shape)
        start = cls(rho, n_samples, centre, step, momentum, zeros, zeros)
        gradient = (centre[:, None] / CENTRE * per_class - array) * (CENTRE / _typical_norm(centre, rho))
        return start._stepped(gradient)

    def advance(self, total: NoisyGradient) -> Descent:
        """Take a step by the sum of the parties' noisy gradients."""
        n_classes = self._weights.shape[1]
        unit = clip_norm(n_classes) / gradient_bound(self.hash_nnz)
        return self._stepped(total.gradient.astype(np.float64) * unit)

    def _stepped(self, gradient: Floats) -> Descent:
        gradient -= gradient.mean(axis=1, keepdims=True)  # residuals of a sample sum to 0
        velocity = self.momentum * self._velocity + gradient
        weights = self._weights - self.step * (1 - self.momentum) / self.n_samples * velocity
        return replace(self, _weights=weights, _velocity=velocity)

    @property
    def best(self) -> Weights:
        """The weights of the active bits, (m, L) int32."""
        typical = _typical_norm(self.centre, self.hash_nnz)
        offset = self.centre @ self._weights / self.hash_nnz
        found = np.rint((CENTRE * self._weights - offset) / (typical * UNIT))
        return np.clip(found, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int32)


def refined_scores(weights: Weights, active: npt.NDArray[np.int32]) -> Floats:
    """Scores, (n, L) float64, of samples from their active bits, (n, rho): log odds, exact."""
    scores = np.empty((len(active), weights.shape[1]))
    add_weights(active, np.full(len(active), -1, np.int64), weights, weights, scores)  # in units: exact
    scores *= UNIT
    return scores


def weights_sha256(weights: Weights) -> str:
    """SHA-256 over the weights."""
    sha256 = hashlib.sha256(f"flynn weights 1{weights.shape} ".encode())
    sha256.update(np.ascontiguousarray(weights, "<i4").data)
    return sha256.hexdigest()
