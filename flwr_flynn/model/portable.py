"""Exponential function, logarithm and hash of a sample's content that are the same on
every machine.

Those of a machine's library differ in the last digit from CPU to CPU. These use only
operations that are rounded exactly, in a fixed order, and are within a few units in the
last place.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from flwr_flynn._types import Floats, Matrix

# The first 32 bits of log 2: a multiple of it is exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_EXP = tuple(1.0 / math.factorial(i) for i in range(14))  # coefficients of the series
_LOG = tuple(2.0 / i for i in range(3, 24, 2))


@njit(nogil=True, cache=True)
def exp(x):  # type: ignore[no-untyped-def]
    """Return e to the power of a float; 0.0 below -745 and infinity above 709.7."""
    if not x > -745.2:
        return 0.0
    if x > 709.79:
        return np.inf
    k = np.rint(x / 0.6931471805599453)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    series = 0.0  # |r| < 0.35
    for i in range(13, -1, -1):
        series = series * r + _EXP[i]
    return math.ldexp(series, int(k))


@njit(nogil=True, cache=True)
def maximum(values):  # type: ignore[no-untyped-def]
    """Return the largest of some floats: NumPy's function compiles for half a second."""
    found = values[0]
    for value in values:
        found = max(found, value)
    return found


@njit(nogil=True, cache=True)
def temper(row, temperature, prior, out):  # type: ignore[no-untyped-def]
    """Write a row of log odds, less its largest, over the temperature, with the prior,
    and return the largest of these.
    """
    highest = maximum(row)
    for label in range(len(row)):
        out[label] = (row[label] - highest) / temperature + prior[label]
    return maximum(out)


@njit(nogil=True, cache=True)
def log(x):  # type: ignore[no-untyped-def]
    """Return the natural logarithm of a float of at least 0: minus infinity of 0."""
    if x == 0.0 or x == np.inf:
        if x > 0.0:
            return x
        return -np.inf
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa *= 2.0
        exponent -= 1
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    # log(1 + f) = 2 s + s (2 z / 3 + 2 z**2 / 5 + ...), and 2 s = f - s f: |s| < 0.172
    series = 0.0
    for i in range(10, -1, -1):
        series = (series + _LOG[i]) * z
    half = 0.5 * f * f  # s f = half - s half, whose first term has a smaller error
    return exponent * _LN2_HIGH - (
        (half - (s * (half + series) + exponent * _LN2_LOW)) - f
    )


def content_shares(X: Matrix) -> Floats:
    """Hash of each sample, (n, d) dense or CSR, to a number from 0 to below 1."""
    shares: Floats = content_words(X).astype(np.float64) * 2.0**-53
    return shares


def content_words(X: Matrix) -> npt.NDArray[np.uint64]:
    """Hash of each sample, (n, d) dense or CSR, to an integer from 0 to below 2**53."""
    if sp.issparse(X):
        rows = sp.csr_array(X)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        sums = np.zeros(rows.shape[0], np.uint64)
        of_row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        _add(rows.data.astype(np.float64), rows.indices.astype(np.int64), of_row, sums)
    else:
        values = np.ascontiguousarray(X, np.float64)
        sums = np.zeros(len(values), np.uint64)
        _add_dense(values, sums)
    # A sample of zeros, whose sum is 0, would always be kept.
    words: npt.NDArray[np.uint64] = mix(sums + INCREMENT) >> np.uint64(11)
    return words


INCREMENT = np.uint64(0x9E3779B97F4A7C15)
"""Step of the counter of SplitMix64."""


@njit(nogil=True, cache=True)
def mix(word):  # type: ignore[no-untyped-def]
    """Mix the bits of a word: the finisher of SplitMix64 (Steele, Lea & Flood, OOPSLA
    2014).
    """
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit(nogil=True, cache=True)
def _term(bits, column):  # type: ignore[no-untyped-def]
    return mix(mix(np.uint64(column) + INCREMENT) ^ np.uint64(bits))


@njit(nogil=True, cache=True)
def _add(values, columns, of_row, sums):  # type: ignore[no-untyped-def]
    """Add the term of each value to the sum of its row."""
    bits = values.view(np.uint64)
    for k in range(len(values)):
        if values[k] != 0.0:
            sums[of_row[k]] += _term(bits[k], columns[k])


@njit(nogil=True, cache=True)
def _add_dense(values, sums):  # type: ignore[no-untyped-def]
    """Add the terms of each row to its sum."""
    bits = values.view(np.uint64)
    for p in range(values.shape[0]):
        for j in range(values.shape[1]):
            if values[p, j] != 0.0:
                sums[p] += _term(bits[p, j], j)
