"""Means and deviations that depend on nothing but the values, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from flwr_flynn.errors import SpecError
from flwr_flynn.scaling import center_and_scale, column_statistics


@pytest.mark.parametrize("power", [-900, -300, 0, 300, 1000])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6])
def test_column_statistics(power, offset):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 3)) + offset
    mean, deviation = column_statistics(np.ldexp(values, power))
    assert_allclose(np.ldexp(mean, -power), values.mean(axis=0), rtol=1e-12, atol=1e-13)
    assert_allclose(np.ldexp(deviation, -power), values.std(axis=0), rtol=1e-9)


def test_column_statistics_of_constant_columns():
    values = np.array([[0.1, 0.0, -7e300, 5e-324]] * 11)
    mean, deviation = column_statistics(values)
    assert_array_equal(mean, values[0])
    assert_array_equal(deviation, 1)


@given(st.randoms(use_true_random=False), st.sampled_from([np.float64, np.float32, np.int16, np.uint8, np.bool_]))
def test_column_statistics_do_not_depend_on_how_the_data_lie(random, dtype):
    rng = np.random.default_rng(random.randrange(2**32))
    data = rng.normal(size=(40, 6)) * 100 * (rng.random((40, 6)) < 0.3)
    data = np.abs(data).astype(dtype) if dtype in (np.uint8, np.bool_) else data.astype(dtype)
    expected = column_statistics(data)
    shuffled = data[rng.permutation(40)]
    for other in (
        shuffled,
        np.asfortranarray(shuffled),
        shuffled.astype(np.float64),
        sp.csr_array(shuffled),
        sp.csr_matrix(data.astype(float)),
    ):
        assert_array_equal(column_statistics(other), expected)


def test_column_statistics_of_duplicate_entries():
    twice = sp.csr_array((np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    assert_array_equal(column_statistics(twice), column_statistics(twice.toarray()))
    assert twice.nnz == 3


def test_center_and_scale():
    data = np.array([[1.0, 7.0], [5.0, 7.0]])
    assert center_and_scale(None, data) == (None, None)
    assert center_and_scale("center", data) == ((3.0, 7.0), None)
    assert center_and_scale("standard", data) == ((3.0, 7.0), (0.5, 1.0))
    assert center_and_scale((None, [1, 2]), data) == (None, [1, 2])
    with pytest.raises(SpecError, match="expected a pair"):
        center_and_scale((None,), data)
