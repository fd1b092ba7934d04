"""Rank codes against the plain oracle, and the keys by which values are compared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.rank_codes import (
    KEY_BITS,
    MANTISSA_BITS,
    RankCodes,
    edges_of_ranges,
    keys_of,
    values_of,
)
from tests import oracle
from tests.raising import raises
from tests.strategies import coded_cases

FINITE = st.floats(allow_nan=False, allow_infinity=False)
# These are the exponent bits of infinity, above those of the mantissa.
INFINITE = 0x7FF << MANTISSA_BITS


def codes_of(spec, X):
    return RankCodes(np.array(spec.edges), spec.n_codes, spec.coding, spec.signed)(X)


# --- keys -----------------------------------------------------------------------------


@given(st.lists(FINITE, min_size=1, max_size=30))
def test_keys_are_in_the_order_of_the_values(values):
    ordered = np.sort(np.array(values))
    keys = keys_of(ordered)
    assert_array_equal(keys, [oracle.key(value) for value in ordered.tolist()])
    assert (np.diff(keys) >= 0).all()
    assert 0 <= keys.min() <= keys.max() < 2**KEY_BITS
    lowest = values_of(keys)
    assert np.isfinite(lowest).all()
    assert (lowest <= ordered).all()
    assert_array_equal(keys_of(lowest), keys)
    # These have bins of their own.
    integers = np.round(ordered[np.abs(ordered) <= 2**20])
    assert_array_equal(
        np.ceil(values_of(keys_of(integers[:, None]))), integers[:, None]
    )


@given(st.integers(0, INFINITE - 1), st.booleans())
def test_the_value_of_a_key_is_the_lowest_that_has_it(magnitude, negative):
    middle = 2 ** (KEY_BITS - 1)
    if negative:
        key = middle - 1 - magnitude
    else:
        key = middle + magnitude
    (value,) = values_of(np.array([key])).tolist()
    assert keys_of(np.array([value])).tolist() == [key]
    below = math.nextafter(value, -math.inf)
    if math.isfinite(below):
        assert keys_of(np.array([below])).tolist() == [key - 1]


# --- codes ----------------------------------------------------------------------------


@given(coded_cases())
def test_codes_agree_with_the_oracle(case):
    spec, X = case
    expected = np.array([oracle.rank_codes(x, spec) for x in X], np.int64).reshape(
        len(X), spec.n_inputs
    )
    codes = codes_of(spec, X.astype(np.float64))
    assert codes.dtype == np.int16
    assert_array_equal(codes, expected)


def test_values_that_are_not_finite_are_refused():
    hasher = FlyHash(
        HashSpec(2, 10, 1, 1, 0, coding="steps", n_codes=2, edges=[[0.0], [0.0]])
    )
    with raises(DataError, field="X", got="NaN or infinity in 1 of 2 features"):
        hasher.active([[np.inf, 0.0]])
    assert hasher.fits(np.array([[1e308, -1e308]])).all()
    hasher.active([[1e308, -1e308]])


@pytest.mark.parametrize("signed", [False, True])
def test_a_gap_has_no_codes(signed):
    spec = HashSpec(
        2,
        10,
        1,
        1,
        0,
        signed=signed,
        coding="bumps",
        n_codes=3,
        edges=[[0.0, 1.0], [0.0, 1.0]],
    )
    codes = codes_of(spec, np.array([[np.nan, 0.5], [0.5, np.nan]]))
    assert not codes[0, :3].any()
    assert not codes[1, 3:].any()
    assert_array_equal(codes[0, 3:], codes[1, :3])
    assert_array_equal(
        FlyHash(spec).active([[np.nan, 1.0]]), FlyHash(spec).active([[-np.nan, 1.0]])
    )
    assert FlyHash(spec).fits(np.array([[np.nan, 1.0]])).all()


def test_a_gap_is_at_the_centre():
    values = {"center": (2.0, 3.0), "scale": (0.5, 4.0)}
    for more in ({}, {"n_waves": 8, "wave_frequency": 0.3}, {"signed": True}):
        hasher = FlyHash(HashSpec(2, 64, 2, 5, 3, **values, **more))
        assert_array_equal(
            hasher.active([[np.nan, 1.0], [1.0, np.nan]]),
            hasher.active([[2.0, 1.0], [1.0, 3.0]]),
        )
        assert hasher.fits(np.array([[np.nan, 1.0]])).all()
    with raises(DataError, field="X"):
        FlyHash(HashSpec(2, 64, 2, 5, 3)).active([[np.nan, 1.0]])


def test_edges_of_a_public_range():
    edges = edges_of_ranges([0.0, -1.0], [32.0, 1.0], 4)
    assert edges.tolist() == [[4.0, 12.0, 20.0, 28.0], [-0.75, -0.25, 0.25, 0.75]]
    assert edges_of_ranges([0.0], [1.0]).shape == (1, 32)
    HashSpec(2, 10, 1, 1, 0, coding="steps", n_codes=2, edges=edges)
