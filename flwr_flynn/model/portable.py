"""Exponential function and logarithm that are the same on every machine.

Those of a machine's library differ in the last digit from CPU to CPU. These use only operations that are rounded
exactly, in a fixed order, and are within a few units in the last place.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

_LN2_HIGH = 6.93147180369123816490e-01  # the first 32 bits of log 2: a multiple of it is exact
_LN2_LOW = 1.90821492927058770002e-10
_EXP = tuple(1.0 / math.factorial(i) for i in range(14))  # coefficients of the series
_LOG = tuple(2.0 / i for i in range(3, 24, 2))


@njit(nogil=True, cache=True, inline="always")
def _two_to(k):  # type: ignore[no-untyped-def]
    """Return 2.0 ** k for an integer k, exactly; 0.0 below the smallest float and infinity beyond the largest."""
    result, factor = 1.0, 2.0 if k >= 0 else 0.5
    k = abs(k)
    while k:
        if k & 1:
            result *= factor
        factor *= factor
        k >>= 1
    return result


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
    half = int(k) // 2  # in two steps, as a factor alone could overflow
    return series * _two_to(half) * _two_to(int(k) - half)


@njit(nogil=True, cache=True)
def log(x):  # type: ignore[no-untyped-def]
    """Return the natural logarithm of a float of at least 0: minus infinity of 0."""
    if x == 0.0 or x == np.inf:
        return x if x > 0.0 else -np.inf
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa *= 2.0
        exponent -= 1
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    series = 0.0  # log(1 + f) = 2 s + s (2 z / 3 + 2 z**2 / 5 + ...), and 2 s = f - s f: |s| < 0.172
    for i in range(10, -1, -1):
        series = (series + _LOG[i]) * z
    half = 0.5 * f * f  # s f = half - s half, whose first term has a smaller error
    return exponent * _LN2_HIGH - ((half - (s * (half + series) + exponent * _LN2_LOW)) - f)
