"""Ridge regression from sums, at several strengths, and the leverages of samples; the same on every machine.

Minimised over the weights W, (m, L), is the sum over samples of |y - b - W'z|**2 + strength |W|**2, with the mean of
the targets kept by the intercept b. All of it follows from sums over the samples, see `solve`. The strengths are 2**-8,
2**-10 and so on times the trace of the centred products P, as long as the mean leverage is at most a half.

The leverage of a sample whose responses are z is 1 / n + (z - mean)' (P + strength I)**-1 (z - mean): its own share in
its own prediction, by which leave-one-out follows from one regression (Allen 1974). It follows from the sample's
coordinates on the directions in which the samples spread most, by their eigenvalues; outside these it follows from the
squared distance and the mean leverage.

LAPACK's results depend on the machine in their last digits. Here every operation has a fixed order, and each is
rounded exactly. The directions come from subspace iteration (Halko, Martinsson & Tropp 2011). What they leave of the
trace comes from 16 vectors of fixed signs (Hutchinson 1990).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn._validation import n_threads
from flwr_flynn.hashing.philox import draw_signs
from flwr_flynn.model.portable import dot

Floats = npt.NDArray[np.float64]

MOST_STRENGTHS = 6
"""Strengths of a solution, at most."""

MOST_DIRECTIONS = 256
"""Directions of a solution, at most."""

MOST_THREADS = 2
"""Strengths that are solved at the same time, at most: each holds a matrix of its own."""

_MOST_LEVERAGE = 0.5  # mean of the samples: beyond, leave-one-out means little
_STRENGTHS = tuple(2.0**-k for k in range(8, 8 + 2 * MOST_STRENGTHS, 2))  # times the trace
_ROUNDING = 1e-9  # share of the trace below which nothing is outside the directions
_PROBES = 16
_ITERATIONS = 4  # of the subspace
_SWEEPS = 12  # of Jacobi's rotations
_SMALL = 1e-16  # square of a cosine for which there is none
_BLOCK = 32  # rows of the factor that are applied together: they stay in the cache


class Solution(NamedTuple):
    """Ridge regression at S strengths; of samples without any variance one of weights 0."""

    weights: Floats  # (S, m, L)
    strengths: Floats  # (S,)
    directions: Floats  # (r, m), orthonormal
    eigenvalues: Floats  # (r,), sum of the samples' squared coordinates on each
    residual: float  # sum of the samples' squared distances from these directions
    residual_leverage: Floats  # (S,), for each unit of squared distance from the directions


def solve(
    products: Floats, moments: Floats, n_samples: int, n_jobs: int | None = None, at: int | None = None
) -> Solution:
    """Ridge regression at as many strengths as make sense.

    Parameters
    ----------
    products : (m, m) float64
        Sum of the products of the features, each less its mean.
    moments : (m, L) float64
        Sum of the products of features and targets, each less its mean.
    n_samples : int
    n_jobs : int, optional
        Threads, of which up to `MOST_THREADS` are used; as in scikit-learn. They make no difference to the result.
    at : int, optional
        Index of the one strength to solve at; where that makes no sense, the largest index below it that does.
    """
    m, n_targets = moments.shape
    trace = np.cumsum(products.diagonal())[-1]  # one after the other, unlike NumPy's sum
    nothing = Solution(np.zeros((1, m, n_targets)), np.ones(1), np.zeros((1, m)), np.zeros(1), 0.0, np.zeros(1))
    if not 0.0 < trace < np.inf:
        return nothing
    directions, values = _top_directions(np.ascontiguousarray(products), min(MOST_DIRECTIONS, m))
    outside = trace - math.fsum(values.tolist())
    outside = outside if outside > _ROUNDING * trace else 0.0
    probes = draw_signs(np.uint64(0), m, _PROBES).astype(np.float64)
    _project_out(directions, probes)
    right = np.concatenate([moments, probes], axis=1)
    found: list[tuple[Floats, float, float]] = []
    shares = _STRENGTHS if at is None else _STRENGTHS[at::-1]
    for share, solved in zip(shares, _solutions(products, right, shares, trace, n_jobs), strict=True):
        strength, makes_sense = share * trace, False
        if solved is not None and np.isfinite(solved).all():  # else of products that no samples have
            freedom = max(_freedom(probes, solved[:, n_targets:], strength), 0.0)
            along = math.fsum((values / (values + strength)).tolist())
            makes_sense = share == _STRENGTHS[0] or along + freedom <= _MOST_LEVERAGE * n_samples
            if makes_sense:
                rest = freedom / outside if outside > 0.0 else 0.0
                found.append((np.ascontiguousarray(solved[:, :n_targets]), strength, rest))
        if makes_sense != (at is None):  # the first of all that makes none, or the first that does
            break
    if not found:
        return nothing
    weights, strengths, rest = (np.array(each) for each in zip(*found, strict=True))
    return Solution(weights, strengths, directions, values, outside, rest)


def _solutions(
    products: Floats, right: Floats, shares: Sequence[float], trace: float, n_jobs: int | None
) -> Iterator[Floats | None]:
    """Solutions X of (products + share trace I) X = right, a few at a time; None where there is none."""

    def solved(share: float) -> Floats | None:
        factor, found = products.copy(), right.copy()
        if not factorise(factor, share * trace):
            return None
        substitute(factor, found)
        return found

    threads = min(n_threads(n_jobs), MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(shares), threads):
            yield from pool.map(solved, shares[first : first + threads])


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


def _top_directions(products: Floats, n: int) -> tuple[Floats, Floats]:
    """Directions of about the largest eigenvalues, (n, m), orthonormal but for zeros, and the values, (n,)."""
    basis = np.ascontiguousarray(draw_signs(np.uint64(1), products.shape[0], n).T.astype(np.float64))
    _orthonormalise(basis)
    for _ in range(_ITERATIONS):
        basis = _multiply(basis, products)
        _orthonormalise(basis)
    small, rotation = _multiply(_multiply(basis, products), np.ascontiguousarray(basis.T)), np.eye(n)
    _diagonalise(small, rotation)
    values = np.maximum(small.diagonal(), 0.0)
    order = np.argsort(-values, kind="stable")
    return _multiply(rotation[order], basis), values[order]


@njit(nogil=True, cache=True)
def _multiply(a, b):  # type: ignore[no-untyped-def]
    """Matrix product, (n, w), of (n, m) and (m, w), one term after the other."""
    n, m = a.shape
    out = np.zeros((n, b.shape[1]))
    for first in range(0, m, _BLOCK):
        last = min(first + _BLOCK, m)
        whole = last - (last - first) % 4
        for k in range(n):
            row = out[k]
            for i in range(first, whole, 4):
                c0, c1, c2, c3 = a[k, i], a[k, i + 1], a[k, i + 2], a[k, i + 3]
                b0, b1, b2, b3 = b[i], b[i + 1], b[i + 2], b[i + 3]
                for j in range(len(row)):
                    row[j] = row[j] + c0 * b0[j] + c1 * b1[j] + c2 * b2[j] + c3 * b3[j]
            for i in range(whole, last):
                for j in range(len(row)):
                    row[j] += a[k, i] * b[i, j]
    return out


@njit(nogil=True, cache=True)
def _orthonormalise(rows):  # type: ignore[no-untyped-def]
    """Make rows orthonormal, in their order; those that depend on the ones before become 0."""
    for j in range(rows.shape[0]):
        before = np.sqrt(dot(rows[j], rows[j]))
        for _ in range(2):
            for i in range(j):
                c = dot(rows[i], rows[j])
                for k in range(rows.shape[1]):
                    rows[j, k] -= c * rows[i, k]
        size = np.sqrt(dot(rows[j], rows[j]))
        for k in range(rows.shape[1]):
            rows[j, k] = rows[j, k] / size if size > 1e-10 * before else 0.0


@njit(nogil=True, cache=True)
def _project_out(rows, x):  # type: ignore[no-untyped-def]
    """Take the part along orthonormal rows, (r, m), out of the columns of x, (m, k)."""
    for c in range(x.shape[1]):
        column = x[:, c].copy()
        for j in range(rows.shape[0]):
            along = dot(rows[j], column)
            for i in range(len(column)):
                column[i] -= along * rows[j, i]
        x[:, c] = column


@njit(nogil=True, cache=True)
def _diagonalise(a, rotation):  # type: ignore[no-untyped-def]
    """Rotate a positive matrix until it is diagonal (Jacobi 1846); the rows of `rotation` are its eigenvectors."""
    n = a.shape[0]
    for _ in range(_SWEEPS):
        for p in range(n - 1):
            first = a[p]
            for q in range(p + 1, n):
                second = a[q]
                # Values are negative or not finite only of products that no samples have, and of 0 by rounding.
                if not first[q] * first[q] > _SMALL * abs(first[p] * second[q]):
                    continue
                top, cross, bottom = first[p], first[q], second[q]
                theta = (bottom - top) / (2.0 * cross)
                t = (1.0 if theta >= 0.0 else -1.0) / (abs(theta) + np.sqrt(theta * theta + 1.0))
                c = 1.0 / np.sqrt(t * t + 1.0)
                s = t * c
                for rows in (a, rotation):
                    for k in range(n):
                        x, y = rows[p, k], rows[q, k]
                        rows[p, k], rows[q, k] = c * x - s * y, s * x + c * y
                for k in range(n):  # symmetric: columns are rows; where they cross, see below
                    a[k, p], a[k, q] = first[k], second[k]
                first[p], second[q] = top - t * cross, bottom + t * cross
                first[q] = second[p] = 0.0


@njit(nogil=True, cache=True)
def _freedom(probes, solved, strength):  # type: ignore[no-untyped-def]
    """About the trace of P (P + s I)**-1 in the space of the probes g, (m, k); `solved` are (P + s I)**-1 g."""
    m, width = probes.shape
    total = 0.0
    for i in range(m):
        for c in range(width):
            total += probes[i, c] * (probes[i, c] - strength * solved[i, c])
    return total / width
