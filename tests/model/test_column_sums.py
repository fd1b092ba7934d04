"""Sums of columns: no sample adds more than stated, and the hash that they make."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from flwr_flynn.errors import SpecError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.column_sums import UNIT, largest_norm, moments, spec_of_sums
from tests.raising import raises

RANGED = HashSpec(3, 8, 2, 2, 0, center=(5.0, 0.0, -1.0), scale=(0.5, 1.0, 0.01))
KINDS = [(2, 2), (1, 1), (1, 2)]
"""Moments, and the order of the norm."""


def ranged(X):
    """Samples of values from -1 to 1, as they are within the ranges."""
    return np.array(RANGED.center) + X / np.array(RANGED.scale)


def norms(integers, order):
    """Norms of integers of samples, (n, n_moments, d)."""
    rows = integers.reshape(len(integers), -1)
    return np.linalg.norm(rows, ord=order, axis=1)


@pytest.mark.parametrize(("n_moments", "order"), KINDS)
def test_no_value_adds_more_than_the_largest_norm_and_the_ends_add_it(n_moments, order):
    """All integers of a column, and all pairs of them."""
    spec = HashSpec(1, 8, 1, 2, 0, center=(0.0,), scale=(1.0,))
    values = np.arange(-UNIT, UNIT + 1)[:, None] / UNIT
    integers = moments(values, spec, n_moments)
    assert_array_equal(integers[:, 0], UNIT * values)
    assert norms(integers, order).max() == largest_norm(1, n_moments, order, False)
    changes = (integers[:, None] - integers[None]).reshape(-1, n_moments, 1)
    assert norms(changes, order).max() == largest_norm(1, n_moments, order, True)


finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(("n_moments", "order"), KINDS)
@given(st.lists(st.lists(finite, min_size=3, max_size=3), min_size=2, max_size=2))
def test_whatever_two_samples_hold_neither_they_nor_their_difference_are_larger(
    n_moments, order, rows
):
    with np.errstate(over="ignore"):
        integers = moments(np.array(rows), RANGED, n_moments)
    assert integers.shape == (2, n_moments, 3)
    assert abs(integers).max() <= UNIT
    room = 1 + 1e-12
    most, of_two = (largest_norm(3, n_moments, order, two) for two in (False, True))
    assert norms(integers, order).max() <= room * most
    assert norms(np.diff(integers, axis=0), order).max() <= room * of_two


def test_ranges_are_needed():
    with raises(SpecError, field="center, scale"):
        moments(np.zeros((1, 3)), HashSpec(3, 8, 2, 2, 0), 1)


def made(X, n_moments=2, variance=0.0):
    """The hash of the exact sums of some values from -1 to 1."""
    sums = moments(ranged(X), RANGED, n_moments).sum(axis=0)
    return spec_of_sums(RANGED, sums, len(X), variance)


X = np.random.default_rng(0).uniform(-0.8, 0.9, (20000, 3))


def test_without_noise_centre_and_scale_are_means_and_deviations():
    spec = made(X)
    values = ranged(X)
    # As finely as the integers have them.
    near = {"atol": 0.01, "rtol": 0}
    assert_allclose((spec.center - values.mean(axis=0)) * RANGED.scale, 0, **near)
    assert_allclose(spec.scale * values.std(axis=0), 1, atol=0.01)
    one = made(X, n_moments=1)
    assert (one.center, one.scale) == (spec.center, RANGED.scale)


def test_a_column_varies_by_half_as_much_as_the_mean_of_all_at_least():
    narrow = X * [1, 1, 0.01]
    spec = made(narrow)
    variances = narrow.var(axis=0)
    variances[2] = variances.mean() / 2
    inner = np.array(spec.scale) / RANGED.scale
    assert_allclose(inner**-2, variances, rtol=0.02)


@pytest.mark.parametrize("n_moments", [1, 2])
def test_columns_are_alike_beside_overwhelming_noise(n_moments):
    spec = made(X * [0.1, 1, 0.5], n_moments, variance=1e20)
    moved = (np.array(spec.center) - RANGED.center) * RANGED.scale
    assert_allclose(moved, moved[0])
    scaled = np.array(spec.scale) / RANGED.scale
    assert_allclose(scaled, scaled[0])


NOISE = (0.0, 1.0, 1e6, 1e30)
SUMS = (-(2**52), -1, 0, 1, 2**52)


@pytest.mark.parametrize("n_moments", [1, 2])
@pytest.mark.parametrize("n_examples", [0, 1, 10**9])
def test_whatever_the_sums_the_centre_is_in_the_ranges_and_the_scale_above_0(
    n_moments, n_examples
):
    """Constant columns, one column and sums that no samples have."""
    one = HashSpec(1, 8, 1, 2, 0, center=(1.0,), scale=(4.0,))
    for spec, value, variance in itertools.product((one, RANGED), SUMS, NOISE):
        sums = np.full((n_moments, spec.n_features), value)
        made = spec_of_sums(spec, sums, n_examples, variance)
        moved = (np.array(made.center) - spec.center) * spec.scale
        assert abs(moved).max() <= 1 + 1e-12
        assert all(0 < scale < math.inf for scale in made.scale)
