"""Waves: the written formula, the same bits everywhere, and what they are for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.philox import TriangleFeatures
from tests import oracle
from tests.raising import raises


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(0, 4), st.just(3)),
        elements=st.floats(-1e6, 1e6),
    ),
    st.integers(0, 2**64 - 1),
    st.floats(1e-6, 1e3),
    st.booleans(),
)
def test_waves_follow_the_written_formula(X, seed, frequency, scaled):
    if scaled:
        vectors = {"center": (0.1, -7.0, 3e5), "scale": (0.3, 1e-3, 17.0)}
    else:
        vectors = {}
    spec = HashSpec(
        3, 5, 2, 1, seed=seed, n_waves=6, wave_frequency=frequency, **vectors
    )
    center, scale = (
        None if vector is None else np.array(vector)
        for vector in (spec.center, spec.scale)
    )
    levels = TriangleFeatures(seed, 6, frequency, center, scale, 3)(X)
    assert levels.dtype == np.int8
    assert_array_equal(
        levels, np.reshape([oracle.waves(x, spec) for x in X], (len(X), 6))
    )


GOLDEN = [66, -124, -15, 100, -13, 43, -121, 11, -68, 114, -64, 83]


def test_golden_waves():
    # A product and a sum rounded as one, which some processors can, would change some
    # of these.
    X = np.random.default_rng(5).integers(-(10**9), 10**9, (200, 5)) / 3**15
    levels = TriangleFeatures(11, 64, 1 / 3, None, None, 5)(X)
    expected = np.array(
        [
            oracle.waves(x, HashSpec(5, 2, 2, 1, 11, n_waves=64, wave_frequency=1 / 3))
            for x in X
        ]
    )
    assert_array_equal(levels, expected)
    assert levels[0, :12].tolist() == expected[0, :12].tolist() == GOLDEN


def test_values_that_overflow_are_refused():
    hasher = FlyHash(
        HashSpec(2, 8, 2, 3, 1, scale=(1e300, 1.0), n_waves=4, wave_frequency=1.0)
    )
    with raises(DataError, field="X", got="larger values"):
        hasher.active([[1e300, 0.0]])
    with raises(DataError, field="X", got="NaN or infinity in 1 of 2 features"):
        hasher.active([[np.nan, 0.0]])
