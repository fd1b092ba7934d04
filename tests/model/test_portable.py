"""Exponential function and logarithm against exact decimal arithmetic."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_flynn.model.portable import exp, log

ULPS = 2  # units in the last place


def off(found, x, function):
    """Distance of a result from the exact one, in units of its last place."""
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 60, -(10**6), 10**6
        exact = getattr(Decimal(x), function)()
        return float(abs(Decimal(found) - exact) / Decimal(math.ulp(float(exact))))


@given(st.floats(-745.1, 709.78) | st.floats(-1, 1) | st.floats(-1e-300, 1e-300))
@settings(max_examples=500)
def test_exponentials(x):
    assert off(exp(x), x, "exp") <= ULPS


@given(
    st.floats(5e-324, 1.7e308)
    | st.floats(0.5, 2)
    | st.floats(1 - 2**-47, 1 + 2**-47)
    | st.integers(1, 2**53).map(float)
    | st.integers(0, 1022).map(math.exp2)
)
@settings(max_examples=500)
def test_logarithms(x):
    assert off(log(x), x, "ln") <= ULPS


def test_limits():
    beyond = [0.0, -0.0, -746.0, -1e308, -math.inf, 709.8, math.inf]
    assert [exp(x) for x in beyond] == [1, 1, 0, 0, 0, math.inf, math.inf]
    assert [log(x) for x in (0.0, -0.0, 1.0, math.inf)] == [-math.inf, -math.inf, 0, math.inf]


# Pinned on purpose: predictions would depend on the machine, or on the version.
EXPONENTIALS = {
    -700.25: "0x1.af5fe9a485c8ep-1011",
    -1.0: "0x1.78b56362cef38p-2",
    0.1: "0x1.1aec7b35a00d4p+0",
    3.5: "0x1.08ec721396bdbp+5",
    700.0: "0x1.d945df4f8ec8ep+1009",
}
LOGARITHMS = {
    5e-324: "-0x1.74385446d71c3p+9",
    0.1: "-0x1.26bb1bbb55515p+1",
    0.75: "-0x1.269621134db92p-2",
    10.0: "0x1.26bb1bbb55516p+1",
    1e300: "0x1.5963447f87fb5p+9",
}


# Pinned on purpose: predictions would depend on the machine, or on the version.
def test_golden_values():
    assert {x: exp(x).hex() for x in EXPONENTIALS} == EXPONENTIALS
    assert {x: log(x).hex() for x in LOGARITHMS} == LOGARITHMS
