"""Ridge regression from sums, the same on every machine.

Minimised over the weights W, (m, L), is the sum over samples of |y - b - W'z|**2 + strength |W|**2, with the mean of
the targets kept by the intercept b. All of it follows from sums over the samples, see `solve`. The strength is the one
of the lowest generalised cross-validation (Golub, Heath & Wahba 1979) of 2**-8, 2**-10 and so on times the trace of the
centred products, up to the first that is worse than the one before or has leverages above 0.6 on average.

LAPACK's results depend on the machine in their last digits. The Cholesky factorisation here has a fixed order of
operations, each rounded exactly. The trace of the inverse is estimated with 16 vectors of fixed signs (Hutchinson).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn.hashing.philox import draw_signs

Floats = npt.NDArray[np.float64]

MOST_LEVERAGE = 0.6
"""Largest mean leverage: beyond, leave-one-out from it means little."""

_STRENGTHS = tuple(2.0**-k for k in range(8, 33, 2))  # times the trace
_PROBES = 16
_BLOCK = 32  # rows of the factor that are applied together: they stay in the cache


class Ridge(NamedTuple):
    """Weights, (m, L) float64, and the mean leverage of a sample, without the intercept's 1 / n."""

    weights: Floats
    leverage: float


def solve(products: Floats, moments: Floats, variance: float, n_samples: int) -> Ridge:
    """Ridge regression of the best strength; weights of 0 where nothing varies.

    Parameters
    ----------
    products : (m, m) float64
        Sum of the products of the features, each less its mean. It is overwritten.
    moments : (m, L) float64
        Sum of the products of features and targets, each less its mean.
    variance : float
        Sum of the squares of the targets, each less its mean.
    n_samples : int
    """
    m, n_targets = moments.shape
    trace = np.cumsum(products.diagonal())[-1]  # one after the other, unlike the pairs of a sum
    best, lowest = Ridge(np.zeros((m, n_targets)), 0.0), np.inf
    if not trace > 0.0:
        return best
    probes = draw_signs(np.uint64(0), m, _PROBES).astype(np.float64)
    right = np.concatenate([moments, probes], axis=1)
    factor = np.empty_like(products)
    for strength in _STRENGTHS:
        factor[:] = products
        if not factorise(factor, strength * trace):
            break
        found = right.copy()
        substitute(factor, found)
        if not np.isfinite(found).all():  # of products that no samples have
            break
        leverage, loss = _figures(found, right, n_targets, strength * trace, variance, n_samples)
        if np.isfinite(lowest) and (loss >= lowest or leverage > MOST_LEVERAGE):
            break
        best, lowest = Ridge(np.ascontiguousarray(found[:, :n_targets]), min(leverage, MOST_LEVERAGE)), loss
    return best


@njit(nogil=True, cache=True)
def factorise(a, strength):  # type: ignore[no-untyped-def]
    """Replace the upper triangle of a by U with U'U = a + strength I; return False where that is not definite."""
    m = a.shape[0]
    for i in range(m):
        a[i, i] += strength
    for first in range(0, m, _BLOCK):
        last = min(first + _BLOCK, m)
        for k in range(first, last):
            if not a[k, k] > 0.0:
                return False
            pivot = np.sqrt(a[k, k])
            for j in range(k, m):
                a[k, j] /= pivot
            for i in range(k + 1, last):
                c = a[k, i]
                for j in range(i, m):
                    a[i, j] -= c * a[k, j]
        for i in range(last, m):
            row = a[i]
            for k in range(first, last, 4):  # the block is a whole one, as there are rows behind it
                u0, u1, u2, u3 = a[k], a[k + 1], a[k + 2], a[k + 3]
                c0, c1, c2, c3 = u0[i], u1[i], u2[i], u3[i]
                for j in range(i, m):
                    row[j] = row[j] - c0 * u0[j] - c1 * u1[j] - c2 * u2[j] - c3 * u3[j]
    return True


@njit(nogil=True, cache=True)
def substitute(u, x):  # type: ignore[no-untyped-def]
    """Replace x, (m, k), by the solution of U'U x = x."""
    m, width = x.shape
    for k in range(m):
        for c in range(width):
            x[k, c] /= u[k, k]
        for i in range(k + 1, m):
            factor = u[k, i]
            for c in range(width):
                x[i, c] -= factor * x[k, c]
    for k in range(m - 1, -1, -1):
        for c in range(width):
            x[k, c] /= u[k, k]
        for i in range(k):
            factor = u[i, k]
            for c in range(width):
                x[i, c] -= factor * x[k, c]


@njit(nogil=True, cache=True)
def _figures(found, right, n_targets, strength, variance, n_samples):  # type: ignore[no-untyped-def]
    """Mean leverage, and the generalised cross-validation of a solution."""
    m, width = found.shape
    explained, size, inverse = 0.0, 0.0, 0.0
    for j in range(m):
        for c in range(n_targets):
            explained += found[j, c] * right[j, c]
            size += found[j, c] * found[j, c]
        for c in range(n_targets, width):
            inverse += found[j, c] * right[j, c]
    freedom = max(m - strength * inverse / (width - n_targets), 0.0)
    leverage = freedom / n_samples
    residual = max(variance - explained - strength * size, 0.0)
    left = max(1.0 - (freedom + 1.0) / n_samples, 1e-3)
    return leverage, residual / (left * left)
