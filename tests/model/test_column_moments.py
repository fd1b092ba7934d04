"""Column sums: exact, whatever the split, and refused when they cannot be any."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from flwr_flynn.errors import DataError
from flwr_flynn.model.column_moments import SCALINGS, ColumnMoments
from tests.raising import raises

VALUES = st.sampled_from([0.0, -0.0, 0.1, -0.1, 1.0, 5e-324, -1e-310, 1.7e308, -1.7e308, 2.0**53 + 2]) | st.floats(
    -1e10, 1e10
)
POINTS = hnp.arrays(np.float64, st.tuples(st.integers(0, 8), st.integers(1, 3)), elements=VALUES)


def labels(n, seed=0):
    return np.random.default_rng(seed).integers(0, 3, n)


@given(POINTS)
def test_sums_are_those_of_fractions(X):
    y = labels(len(X))
    sums = ColumnMoments.from_data(X, y, 3)
    assert_array_equal(sums.n_per_class, np.bincount(y, minlength=3))
    for label in range(3):
        for column in range(X.shape[1]):
            values = [Fraction(value) for value in X[y == label, column].tolist()]
            assert Fraction(sums.sums[label, column], 2**1074) == sum(values)
            assert Fraction(sums.squares[label, column], 2**2148) == sum(value**2 for value in values)


@given(POINTS, st.lists(st.integers(0, 3), min_size=8, max_size=8), st.permutations(range(4)))
def test_any_split_in_any_order_has_the_same_sums(X, party_of, order):
    y, party = labels(len(X)), np.array(party_of[: len(X)], np.int64)
    total = ColumnMoments.zeros(X.shape[1], 3)
    for k in order:
        total += ColumnMoments.from_data(X[party == k], y[party == k], 3)
    pooled = ColumnMoments.from_data(X, y, 3)
    assert total == pooled
    if len(X):
        for scaling in SCALINGS:
            assert total.center_and_scale(scaling) == pooled.center_and_scale(scaling)


@given(POINTS)
def test_sums_travel(X):
    sums = ColumnMoments.from_data(X, labels(len(X)), 3)
    arrays = sums.to_limbs()
    assert [array.dtype for array in arrays] == [np.int64, np.uint32, np.uint32]
    assert ColumnMoments.from_limbs(arrays, X.shape[1], 3) == sums


@pytest.mark.parametrize("container", [sp.csr_array, sp.csc_matrix, np.asfortranarray])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float32, np.float64])
def test_container_and_dtype_do_not_matter(container, dtype):
    X = np.random.default_rng(0).integers(0, 3, (50, 4)).astype(dtype)
    y = labels(50)
    given_one = container(X)
    if sp.issparse(given_one):
        given_one = given_one.tocsr()
    assert ColumnMoments.from_data(given_one, y, 3) == ColumnMoments.from_data(X.astype(np.float64), y, 3)


def test_centre_and_scale_are_mean_and_deviation():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 3)) * [1.0, 1e-30, 1e100] + [5.0, 0.0, 1e101]
    sums = ColumnMoments.from_data(X, labels(500), 3)
    center, scale = sums.center_and_scale("standard")
    assert_allclose(center, X.mean(axis=0), rtol=1e-12)
    assert_allclose(scale, 1 / X.std(axis=0), rtol=1e-9)
    assert sums.center_and_scale("center") == (center, (2.0**-333,) * 3)  # 1e100 is much
    assert ColumnMoments.from_data(X[:, :1], labels(500), 3).center_and_scale("center") == (center[:1], None)
    Z = (X - center) * scale
    distances = ((Z[:, None] - Z[None]) ** 2).sum(axis=2)
    assert sums.distance(scale) == pytest.approx(math.sqrt(distances.mean()), rel=1e-6)


def test_columns_that_do_not_vary_keep_their_scale():
    X = np.array([[0.1, -7e300, 5e-324]] * 11)
    for scaling in ("standard", "weighted"):
        center, scale = ColumnMoments.from_data(X, labels(11), 3).center_and_scale(scaling)
        assert (center, scale) == (tuple(X[0]), (1.0, 1.0, 1.0))


def test_weights_are_the_correlation_ratio_without_chance():
    rng = np.random.default_rng(2)
    y = labels(300)
    X = np.column_stack([y + rng.normal(size=300), rng.normal(size=300), 10 * y + rng.normal(size=300)])
    sums = ColumnMoments.from_data(X, y, 3)
    weights = np.array(sums.center_and_scale("weighted")[1]) * X.std(axis=0)
    assert_allclose(weights, sums.center_and_scale("weighted-center")[1], rtol=1e-9)
    means = np.array([X[y == label].mean(axis=0) for label in range(3)])
    sizes = np.bincount(y)[:, None]
    ratio = (sizes * (means - X.mean(axis=0)) ** 2).sum(axis=0) / (300 * X.var(axis=0))
    t = 0.35 * 2
    adjusted = np.where(ratio > (2 + 2 * np.sqrt(2 * t) + 2 * t) / 300, ratio - 2 / 300, 0)
    assert_allclose(weights, np.sqrt(adjusted / adjusted.max()) + 0.05, rtol=1e-9)
    assert weights[2] == pytest.approx(1.05)
    assert weights[1] < 0.2


def test_weights_of_columns_that_tell_nothing_are_alike():
    rng = np.random.default_rng(0)
    for n in (2, 3, 40):  # with as many points as classes, every column tells everything
        y = np.arange(n) % 3
        scale = ColumnMoments.from_data(rng.normal(size=(n, 20)), y, 3).center_and_scale("weighted-center")[1]
        assert scale == (1.0,) * 20


def test_columns_that_vary_in_the_last_place_only_do_not_vary():
    X = np.array([[0.3, 1.0], [0.1 + 0.2, 2.0]] * 5)
    assert ColumnMoments.from_data(X, labels(10), 3).center_and_scale("standard")[1] == (1.0, 2.0)


GOLDEN = [
    "-0x1.e3a83a83a83a8p+3",
    "0x1.7d33333333333p+5",
    "-0x1.7750750750750p+2",
    "0x1.a0fdd3974ab1cp-7",
    "0x1.77cd1396c7b06p-7",
    "0x1.c83ae71e91bacp-7",
]


def test_golden_scale():
    X = np.random.default_rng(3).integers(-999, 999, (40, 3)) / 7
    X[:, 1] += 60 * (np.arange(40) % 2)
    center, scale = ColumnMoments.from_data(X, np.arange(40) % 2, 2).center_and_scale("weighted")
    assert [value.hex() for value in (*center, *scale)] == GOLDEN


def test_classes_of_few_points_are_left_out():
    X, y = np.arange(14.0).reshape(7, 2), np.array([0, 0, 0, 0, 1, 2, 2])
    sums = ColumnMoments.from_data(X, y, 3, min_examples=4)
    assert sums.n_per_class.tolist() == [4, 0, 0]
    assert sums == ColumnMoments.from_data(X[:4], y[:4], 3)
    assert ColumnMoments.from_data(X, y, 3, min_examples=5) == ColumnMoments.zeros(2, 3)


def test_of_no_points_there_is_no_centre():
    with raises(DataError, field="column moments", got=0):
        ColumnMoments.zeros(2, 3).center_and_scale("center")


def test_not_a_number_is_refused():
    with raises(DataError, field="X", got="NaN or infinity"):
        ColumnMoments.from_data(np.array([[1.0, np.inf]]), np.array([0]), 1)


def good():
    X = np.random.default_rng(0).normal(size=(20, 2))
    return ColumnMoments.from_data(X, labels(20), 3).to_limbs()


def beyond(total, square):
    """Sums of one point that is a little larger than the largest float."""
    sums = ColumnMoments.zeros(2, 3)
    arrays = [np.array([1, 0, 0]), *(np.zeros((3, 2), object) for _ in range(2))]
    arrays[1][0, 0], arrays[2][0, 0] = total, square
    forged = object.__new__(ColumnMoments)
    for name, array in zip(("n_per_class", "sums", "squares"), arrays, strict=True):
        object.__setattr__(forged, name, array)
    assert sums.n_features == 2
    return ColumnMoments.to_limbs(forged)


def change(place, value):
    def spoil(arrays):
        arrays[place[0]] = arrays[place[0]].copy()
        arrays[place[0]][place[1:]] = value
        return arrays

    return spoil


THREE = {"expected": "3 arrays (sizes, sums, squares)"}
SIZES = {"expected": "3 class sizes of int64"}
LIMBS = {"expected": "uint32 of shape (3, 2, limbs)"}
ONE_INDEX = {"expected": "1 to 69 limbs from one index of at most 69"}
NO_SUCH_SET = {"got": "sums of no such set"}


@pytest.mark.parametrize(
    ("spoil", "facts"),
    [
        (lambda arrays: arrays[:2], THREE),
        (lambda arrays: [None, *arrays[1:]], THREE),
        (lambda arrays: 3, THREE),
        (lambda arrays: [arrays[0].astype(np.int32), *arrays[1:]], SIZES),
        (lambda arrays: [arrays[0][:2], *arrays[1:]], SIZES),
        (lambda arrays: [arrays[0], arrays[1].astype(np.int64), arrays[2]], LIMBS),
        (lambda arrays: [arrays[0], arrays[1][:, :1], arrays[2]], LIMBS),
        (lambda arrays: [arrays[0], arrays[1][:, :, :1], arrays[2]], ONE_INDEX),
        (lambda arrays: [arrays[0], np.zeros((3, 2, 1000), np.uint32), arrays[2]], ONE_INDEX),
        (change((1, 0, 0, 0), 7), ONE_INDEX),
        (change((1, slice(None), slice(None), 0), 2**31), ONE_INDEX),
        (change((0, 0), -1), {"got": "sizes out of range"}),
        (change((0, slice(None)), 2**62), {"got": "sizes out of range"}),
        (change((0, 0), 0), NO_SUCH_SET),
        (change((2, 0, 0, -1), 2**31), NO_SUCH_SET),
        (change((2, 0, 0, slice(1, None)), 0), NO_SUCH_SET),
        (change((1, slice(None), slice(None), 0), 60), NO_SUCH_SET),
        (lambda arrays: beyond(1 << 2098, 1 << 4196), NO_SUCH_SET),
        (lambda arrays: beyond(0, 1 << 4196), NO_SUCH_SET),
    ],
)
def test_what_no_points_sum_up_to_is_refused(spoil, facts):
    with raises(DataError, field="column moments", **facts):
        ColumnMoments.from_limbs(spoil(good()), 2, 3)
    ColumnMoments.from_limbs(good(), 2, 3)


def test_sums_of_different_shapes_do_not_add():
    with pytest.raises(DataError) as caught:
        ColumnMoments.zeros(2, 3) + ColumnMoments.zeros(3, 3)
    assert (caught.value.field, caught.value.got) == ("column moments", "shape (3, 3)")
