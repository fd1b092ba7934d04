"""Histograms of columns: exact sums over parties, and what follows for a hash.

The expected values are those of sorted samples.
"""

from __future__ import annotations

import math
import sys
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from scipy.stats import chi2_contingency

from flwr_flynn.errors import DataError
from flwr_flynn.federated.phases.columns import MOST_BINS, SPLITS
from flwr_flynn.hashing.rank_codes import FIRST_GAP, KEY_BITS, keys_of, values_of
from flwr_flynn.model import column_cells
from flwr_flynn.model.column_histograms import ColumnHistograms
from tests import oracle
from tests.raising import raises

L = 3
VALUES = st.sampled_from(
    [0.0, -0.0, 1.0, 1.0001, -2.5, 7.0, 1e300, -5e-324]
) | st.floats(-100, 100)


@st.composite
def labelled(draw, least=0):
    n = draw(st.integers(least, 25))
    d = draw(st.integers(1, 3))
    X = draw(hnp.arrays(np.float64, (n, d), elements=VALUES))
    return X, np.array(
        draw(st.lists(st.integers(0, L - 1), min_size=n, max_size=n)), np.int64
    )


def as_pixels(X):
    return np.clip(np.abs(X), 0, 255).astype(np.uint8)


def as_float32(X):
    return np.clip(X, -1e30, 1e30).astype(np.float32)


KINDS = {
    "float64": lambda X: X,
    "float64, columns first": np.asfortranarray,
    "float32": as_float32,
    "int16": lambda X: np.clip(X, -1000, 1000).astype(np.int16),
    "uint8": as_pixels,
    "bool": lambda X: X > 0,
    "CSR": sp.csr_array,
    "CSR of uint8": lambda X: sp.csr_array(as_pixels(X)),
    "CSR of float32": lambda X: sp.csr_matrix(as_float32(X)),
}


def as_counter(histograms):
    """Counts by class, column and key."""
    rows = histograms.cells >> KEY_BITS
    labels = (rows // histograms.n_features).tolist()
    columns = (rows % histograms.n_features).tolist()
    keys = (histograms.cells & (2**KEY_BITS - 1)).tolist()
    places = zip(labels, columns, keys, strict=True)
    return Counter(dict(zip(places, histograms.counts.tolist(), strict=True)))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_batches_do_not_show(kind, monkeypatch):
    rng = np.random.default_rng(0)
    X = KINDS[kind](10 * rng.normal(size=(100, 30)).round(1))
    y = rng.integers(0, L, 100)
    whole = ColumnHistograms.from_data(X, y, L)
    with_a_floor = ColumnHistograms.from_data(X, y, L, min_examples=9)
    for size in (20, 300, 1000):
        monkeypatch.setattr(column_cells, "_BATCH", size)
        assert ColumnHistograms.from_data(X, y, L) == whole
        assert ColumnHistograms.from_data(X, y, L, min_examples=9) == with_a_floor


def test_a_cell_is_merged_only_so_often_as_batches_can_be_halved(monkeypatch):
    """One batch after the other would take 64 / 2 merges of every cell on average."""
    merged = []
    combine = ColumnHistograms._combined

    def counting(a, b, sign):
        merged.append(len(b.cells) + len(a.cells))
        return combine(a, b, sign)

    monkeypatch.setattr(column_cells, "_BATCH", 10)
    monkeypatch.setattr(ColumnHistograms, "_combined", counting)
    histograms = ColumnHistograms.from_data(
        np.arange(640.0)[:, None] + 1000, np.zeros(640, np.int64), 1
    )
    assert len(histograms.cells) == 640
    assert sum(merged) <= 640 * (6 + 1)


# ---- a floor


def grouped(X, y, least):
    """Counter of (class, column, key) of the groups of ranks, one value at a time."""
    if least in (2, 3):
        least = 4
    cells = Counter()
    for label in range(L):
        for column in range(X.shape[1]):
            values = sorted(float(value) for value in X[y == label, column])
            groups = groups_of(len(values), least)
            shown = rounded(values, [rank for rank, _ in groups], least)
            for value, (_, count) in zip(shown, groups, strict=True):
                cells[label, column, oracle.key(value)] += count
    return cells


def groups_of(n, least):
    """Ranks of the values that stand for groups of n samples, and sizes of the groups."""
    if n < least:
        return []
    if n < 2 * least:
        return [(n // 2, n)]
    groups = []
    first = 0
    while n - first >= 2 * least:
        groups.append((first + least - 1, least))
        first += least
    return [*groups, (first, n - first)]


def step_around(values, rank):
    """The last digit of a value: about a 64th of the spread of the values around it."""
    width = max(len(values) // 32, 1)
    below = values[rank] - values[max(rank - width, 0)]
    above = values[min(rank + width, len(values) - 1)] - values[rank]
    whole = (values[-1] - values[0]) / 16
    spread = min(2 * min(below, above) or max(below, above) or whole, whole)
    if spread < 2.0**-1000:
        return 0.0
    return 2.0 ** (math.frexp(min(spread, sys.float_info.max))[1] - 7)


def rounded(values, ranks, least):
    """Values of some ranks of ascending values, rounded unless `least` are equal."""
    steps = [step_around(values, rank) for rank in ranks]
    exact = []  # ascending
    for rank, step in zip(ranks, steps, strict=True):
        value = values[rank]
        is_shared = values.count(value) >= least
        if is_shared or not step or abs(value / step) >= 2.0**52:
            exact.append((rank, value))
    shown = []
    for rank, step in zip(ranks, steps, strict=True):
        value = values[rank]
        if (rank, value) not in exact:
            highest = min((v for r, v in exact if r > rank), default=math.inf)
            value = min(round(value / step) * step, highest)
        shown.append(max([value, *shown[-1:]]))
    return shown


def dense(X):
    if sp.issparse(X):
        return X.toarray()
    return np.asarray(X)


MANY = np.random.default_rng(0).normal(size=(300, 2)), np.arange(300) % L
TO_THE_TOP = np.arange(20.0, 120)[:, None], np.zeros(100, np.int64)
"""Samples of which the last group ends exactly with the last one."""


@given(labelled(), st.just(1) | st.integers(2, 9), st.sampled_from(sorted(KINDS)))
@example(MANY, 1, "CSR of uint8")
@example(MANY, 5, "float64")
@example(TO_THE_TOP, 5, "float64")
def test_cells_agree_with_the_oracle_and_tell_values_with_the_least_of_samples_on_either_side(
    case, least, kind
):
    """Or they tell the median of the class.

    Of fewer than twice the least of samples no value has so many on both sides.
    """
    X, y = case
    X = KINDS[kind](X)
    histograms = ColumnHistograms.from_data(X, y, L, least)
    points = dense(X)
    cells = as_counter(histograms)
    assert cells == grouped(points, y, least)
    fewest = least
    if least > 1:
        fewest = max(least, 4)
    n_per_class = np.bincount(y, minlength=L)
    n_per_class[n_per_class < fewest] = 0
    assert_array_equal(histograms.n_per_class, n_per_class)
    assert histograms.n_examples == n_per_class.sum()
    assert (histograms.counts >= least).all()
    sizes = np.zeros((L, X.shape[1]), np.int64)
    for (label, column, key), count in cells.items():
        values = [float(value) for value in points[y == label, column]]
        sizes[label, column] += count
        wanted = min(least, len(values) - len(values) // 2)
        # A value that fewer share is rounded: to a 64th of the spread around it, at
        # most.
        shown = float(values_of(np.array([key]))[0])
        near = (max(values) - min(values)) / 64 + abs(shown) / 2**19
        meant = [
            value
            for value in values
            if oracle.key(value) == key or abs(value - shown) <= near
        ]
        fewer_sides = [
            min(
                sum(other <= value for other in values),
                sum(other >= value for other in values),
            )
            for value in meant
        ]
        assert max(fewer_sides) >= wanted
    assert (sizes == n_per_class[:, None]).all()


# ---- gaps


@given(labelled(least=1), st.integers(0, 2**32 - 1))
@example((np.zeros((1, 2)), np.zeros(1, np.int64)), 11)  # a column of gaps alone
def test_what_follows_from_columns_with_gaps_is_what_follows_from_their_numbers(
    case, seed
):
    X, y = case
    X = np.where(np.random.default_rng(seed).random(X.shape) < 0.3, np.nan, X)
    histograms = ColumnHistograms.from_data(X, y, 3)
    centers, deviations = histograms.center_and_deviation()
    for column in range(X.shape[1]):
        has_number = ~np.isnan(X[:, column])
        assert histograms.n_numbers[column] == has_number.sum()
        if has_number.any():
            alone = ColumnHistograms.from_data(
                X[has_number, column][:, None], y[has_number], 3
            )
            assert_array_equal(histograms.quantiles[column], alone.quantiles[0])
            assert (
                [centers[column]],
                [deviations[column]],
            ) == alone.center_and_deviation()
    assert np.isfinite(histograms.quantiles).all()
    assert np.isfinite(histograms.relevance()).all()


GAPS_AT_THE_END = np.append(np.arange(19.0), [np.nan] * 6)[:, None]


def test_gaps_are_the_last_in_the_order_of_groups():
    histograms = of(GAPS_AT_THE_END, [0] * 25, 5)
    # Of the groups of five before the last one, one has numbers and gaps.
    assert histograms.counts[-1] == 10
    assert histograms.n_numbers == [15]


# ---- what follows


@given(labelled(least=1))
def test_quantiles_are_those_of_the_sorted_values(case):
    X, y = case
    columns = ColumnHistograms.from_data(X, y, L)
    n = len(X)
    for column in range(X.shape[1]):
        values = np.sort(X[:, column])
        inner = [int((k + 0.5) / 32 * n + 1e-9) for k in range(32)]
        exact = values_of(keys_of(values[[0, *inner, n - 1]]))
        with np.errstate(all="ignore"):
            near = (values[-1] - values[0]) / 64 + 1e-300
            assert (np.abs(columns.quantiles[column] - exact) <= near).all()
        same = values_of(keys_of(values)) == exact[:, None]
        shared = same.sum(axis=1) >= 5
        assert_array_equal(columns.quantiles[column][shared], exact[shared])
        assert_array_equal(columns.edges()[column], columns.quantiles[column, 1:-1])


@given(labelled(least=1))
def test_centre_and_deviation_are_those_of_the_edges(case):
    X, y = case
    columns = ColumnHistograms.from_data(X, y, L)
    keys = keys_of(columns.quantiles)
    for quantiles, key, center, deviation in zip(
        columns.quantiles, keys, *columns.center_and_deviation(), strict=True
    ):
        if len(set(quantiles[1:-1])) == 1:
            values = quantiles
        else:
            values = quantiles[1:-1]
        with np.errstate(all="ignore"):
            largest = np.abs(values).max() or 1.0
            # Subnormal numbers have fewer digits.
            near = 1e-12 + np.nextafter(0, 1) / largest
            assert center / largest == pytest.approx(
                (values / largest).mean(), abs=near
            )
            if key[-1] - key[0] > 1:
                assert deviation / largest == pytest.approx(
                    (values / largest).std(), abs=near
                )


ODD = {
    "constant": ([5.0] * 40, 5.0, 0.0),
    "rounding": ([0.1 + 0.2, 0.3] * 20, 0.3, 0.0),
    "in one bin, wider than 1": ([1.7e9 + 10, 1.7e9 + 20] * 20, 1.7e9, 1700),
    "largest": ([-(2.0**1023), 2.0**1023] * 32, 0.0, 2.0**1023),
}


@pytest.mark.parametrize(("values", "center", "deviation"), ODD.values(), ids=ODD)
def test_centre_and_deviation_of_odd_columns(values, center, deviation):
    values = np.array(values, float)[:, None]
    histograms = ColumnHistograms.from_data(values, np.zeros(len(values), int), 1)
    centers, deviations = histograms.center_and_deviation()
    near = 1e-5 * deviation
    assert centers == pytest.approx([center], rel=0.05, abs=near)
    assert deviations == pytest.approx([deviation], rel=0.1)


@given(
    labelled(least=1),
    st.integers(1, 4),
    st.sampled_from([SPLITS, (64, 64, 64, 64, 256)]),
    st.booleans(),
)
def test_quantiles_are_found_by_splitting_bins(case, least, splits, has_gaps):
    X, y = case
    if has_gaps:
        X = np.where(np.random.default_rng(len(y)).random(X.shape) < 0.3, np.nan, X)
    full = ColumnHistograms.from_data(X, y, 3, min_examples=least)
    d = X.shape[1]
    if not full.n_examples:
        return
    cuts = (
        (np.arange(d)[:, None] << KEY_BITS)
        + (np.arange(splits[0]) << KEY_BITS) // splits[0]
    ).ravel()
    if has_gaps:
        cuts = np.union1d(cuts, (np.arange(d) << KEY_BITS) + FIRST_GAP)
    for parts in (*splits[1:], 1):
        assert set(np.arange(d) << KEY_BITS) <= set(cuts)
        table = full.table(cuts, by_class=False)
        squares = full.group_squares[:1]
        cuts = ColumnHistograms.of_table(d, cuts, table, squares).finer(cuts, parts)
        assert len(cuts) <= MOST_BINS * d
    assert len(cuts) <= 70 * d
    table = full.table(cuts, by_class=True)
    histograms = ColumnHistograms.of_table(d, cuts, table, full.group_squares)
    assert_array_equal(histograms.table(cuts, by_class=True), table)
    assert_array_equal(histograms.quantiles, full.quantiles)
    assert histograms.center_and_deviation() == full.center_and_deviation()
    assert histograms.relevance() == full.relevance()
    assert_array_equal(histograms.n_per_class, full.n_per_class)


def chi_squared(x, y, borders):
    """Chi squared over n of classes of equal sizes, and its degrees of freedom."""
    table = np.zeros((y.max() + 1, 8))
    np.add.at(table, (y, (borders < x[:, None]).sum(axis=1)), 1)
    table = table[:, table.sum(axis=0) > 0]
    if table.shape[1] < 2:
        return 0.0, 0
    result = chi2_contingency(table, correction=False)
    return result.statistic / len(x), result.dof


@given(st.integers(0, 2**32 - 1))
def test_relevance_is_chi_squared_where_classes_are_of_one_size(seed):
    rng = np.random.default_rng(seed)
    n = 300
    d = 6
    y = np.arange(n) % L
    X = rng.normal(size=(n, d)) + np.outer(y, [2.0, 1.0, 0.3, 0.0, 0.0, 0.0])
    X[:, 3] = rng.integers(0, 3, n)
    X[:, 4] = 5.0
    X[:, 5] = np.where(y == 1, X[:, 5] * 5, X[:, 5])  # classes of one mean
    histograms = ColumnHistograms.from_data(X, y, L)
    values = []
    t = 0.35 * d.bit_length()
    for column, quantiles in enumerate(values_of(histograms._at_ranks[0])[:, 1:-1]):
        value, dof = chi_squared(
            values_of(keys_of(X[:, column])), y, quantiles[[3, 7, 11, 15, 19, 23, 27]]
        )
        by_chance = (dof + 2 * np.sqrt(dof * t) + 2 * t) / n
        if value > by_chance:
            values.append(value - dof / n)
        else:
            values.append(0.0)
    np.testing.assert_allclose(
        histograms.relevance(), np.array(values) / max(values), rtol=1e-9
    )
    assert histograms.relevance()[0] == 1.0
    assert histograms.relevance()[4] == 0.0
    assert histograms.relevance()[5] > 0.05


def test_relevance_does_not_depend_on_the_sizes_of_the_classes():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 400)
    X = rng.normal(size=(800, 2)) + np.outer(y, [2.0, 1.0])
    even = ColumnHistograms.from_data(X, y, 2)
    odd = even
    for _ in range(3):
        # Within the class the shares stay the same.
        odd += ColumnHistograms.from_data(X[:400], y[:400], 2)
    assert odd.n_per_class.tolist() == [1600, 400]
    np.testing.assert_allclose(odd.relevance(), even.relevance(), atol=0.15)


@pytest.mark.parametrize(
    "labels", [np.zeros(50, np.int64), np.full(50, 2), np.arange(50) % 3]
)
def test_columns_that_tell_nothing_are_all_alike(labels):
    X = np.repeat(np.random.default_rng(0).normal(size=(17, 4)), 3, axis=0)[:50]
    X[48:] = 0.0
    assert ColumnHistograms.from_data(X, labels, 3).relevance() == [1.0] * 4


GOOD = ColumnHistograms.from_data(
    np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0, 1]), 2
)
FIELDS = {
    name: getattr(GOOD, name)
    for name in ("n_features", "n_per_class", "cells", "counts", "group_squares")
}
CUTS = np.arange(8) << KEY_BITS - 2
ENDLESS = [np.append(np.arange(19.0), wrong)[:, None] for wrong in (np.inf, -np.inf)]


def with_fields(**change):
    return lambda: ColumnHistograms(**(FIELDS | change))


def table_with(entry):
    table = np.ones((2, 8), np.int64)
    table[1, 6] = entry
    return lambda: ColumnHistograms.of_table(2, CUTS, table, np.zeros(2, np.int64))


def of(points, labels, least=1):
    return ColumnHistograms.from_data(points, np.array(labels), 2, least)


REFUSED_FIELDS = {
    "no columns": {"n_features": 0},
    "too many columns": {"n_features": 2**30},
    "another number of columns": {"n_features": 3},
    "other class sizes": {"n_per_class": np.array([1, 2])},
    "a negative class size": {"n_per_class": np.array([-1, 1])},
    "no classes": {"n_per_class": np.zeros(0, np.int64)},
    "cells in another order": {"cells": GOOD.cells[::-1].copy()},
    "cells that occur twice": {"cells": np.repeat(GOOD.cells[:2], 2)},
    "a cell less": {"cells": GOOD.cells[:3]},
    "cells below all": {"cells": GOOD.cells - 2**60},
    "cells of another column": {"cells": GOOD.cells + (2 << KEY_BITS)},
    "a count of zero": {"counts": np.array([1, 1, 1, 0])},
    "a count too large": {"counts": np.array([1, 1, 2, 1])},
    "counts that overflow": {"counts": np.array([2**62] * 4)},
}
REFUSED = {
    "a table with more in a column": table_with(2),
    "a table with a negative count": table_with(-1),
    "a value that was not there": lambda: GOOD - of(np.array([[1.0, 5.0]]), [0]),
    "a sample of another class": lambda: GOOD - of(np.array([[1.0, 2.0]]), [1]),
    "edges of nothing": ColumnHistograms.zeros(2, 2).edges,
    "centres of nothing": ColumnHistograms.zeros(2, 2).center_and_deviation,
}


@pytest.mark.parametrize("name", REFUSED_FIELDS)
def test_fields_that_no_samples_have_are_refused(name):
    with raises(DataError, field="histograms"):
        with_fields(**REFUSED_FIELDS[name])()


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_samples_have_is_refused(name):
    with raises(DataError, field="histograms"):
        REFUSED[name]()


@pytest.mark.parametrize("least", [1, 5])
@pytest.mark.parametrize("X", [*ENDLESS, sp.csr_array(ENDLESS[0])])
def test_infinite_values_are_refused(X, least):
    with raises(DataError, field="X"):
        of(X, [0] * 20, least)


def test_histograms_are_values():
    assert with_fields()() == GOOD
    assert table_with(1)().n_features == 2
    assert GOOD + GOOD - GOOD == GOOD != 1
    assert repr(GOOD) == "<ColumnHistograms of 2 samples, 2 classes, 2 columns>"


@pytest.mark.parametrize("n_parties", [5, 10])
def test_groups_of_values_make_no_column_relevant(n_parties):
    """Else a column of noise would be taken for one that tells of the class."""
    rng = np.random.default_rng(n_parties)
    X = rng.normal(size=(600, 40))
    y = rng.integers(2, size=600)
    X[:, 0] += y
    parts = [slice(party, None, n_parties) for party in range(n_parties)]
    total = ColumnHistograms.zeros(40, 2)
    for rows in parts:
        total += ColumnHistograms.from_data(X[rows], y[rows], 2, min_examples=5)
    first, *others = total.relevance()
    assert total.group_squares.tolist() == [25 * n_parties] * 2
    assert first == 1.0
    assert sum(others) < 1.0
