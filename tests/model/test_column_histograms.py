"""Histograms of columns: exact sums over parties, and what a hash learns from them,
against sorted values.
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
    rows = histograms.cells >> KEY_BITS
    keys = histograms.cells & (2**KEY_BITS - 1)
    parts = zip(
        (rows // histograms.n_features).tolist(),
        (rows % histograms.n_features).tolist(),
        keys.tolist(),
        strict=True,
    )
    return Counter(dict(zip(parts, histograms.counts.tolist(), strict=True)))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_batches_do_not_show(kind, monkeypatch):
    rng = np.random.default_rng(0)
    X = KINDS[kind](10 * rng.normal(size=(100, 30)).round(1))
    y = rng.integers(0, L, 100)
    expected = (
        ColumnHistograms.from_data(X, y, L),
        ColumnHistograms.from_data(X, y, L, min_examples=9),
    )
    for size in (20, 300, 1000):
        monkeypatch.setattr(column_cells, "_BATCH", size)
        assert (
            ColumnHistograms.from_data(X, y, L),
            ColumnHistograms.from_data(X, y, L, min_examples=9),
        ) == expected


def test_a_cell_is_merged_only_so_often_as_batches_can_be_halved(monkeypatch):
    """One batch after the other would take 64 / 2 merges of every cell on average."""
    merged = []
    combine = ColumnHistograms._combined

    def counting(a, b, sign):
        merged.append(len(b.cells) + len(a.cells))
        return combine(a, b, sign)

    monkeypatch.setattr(column_cells, "_BATCH", 10)
    monkeypatch.setattr(ColumnHistograms, "_combined", counting)
    found = ColumnHistograms.from_data(
        np.arange(640.0)[:, None] + 1000, np.zeros(640, np.int64), 1
    )
    assert len(found.cells) == 640
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
            n = len(values)
            ranks = []
            if least <= n < 2 * least:
                ranks = [(n // 2, n)]
            elif n:
                while len(values) - least * len(ranks) >= 2 * least:
                    ranks.append((least * len(ranks) + least - 1, least))
                if n >= least:
                    ranks.append((least * len(ranks), n - least * len(ranks)))
            told = rounded(
                [values[rank] for rank, _ in ranks],
                values,
                [rank for rank, _ in ranks],
                least,
            )
            for value, (_, count) in zip(told, ranks, strict=True):
                cells[label, column, oracle.key(value)] += count
    return cells


def rounded(told, values, ranks, least):
    """Some of ascending values with a last digit of about a 64th of the values around,
    unless `least` are equal.
    """
    found = []
    last = len(values) - 1
    width = max(len(values) // 32, 1)
    stays = []
    steps = []
    for value, rank in zip(told, ranks, strict=True):
        sides = (
            value - values[max(rank - width, 0)],
            values[min(rank + width, last)] - value,
        )
        whole = (values[-1] - values[0]) / 16
        spread = min(2 * min(sides) or max(sides) or whole, whole)
        steps.append(
            2.0 ** (math.frexp(min(spread, sys.float_info.max))[1] - 7)
            if spread >= 2.0**-1000
            else 0.0
        )
        stays.append(
            values.count(value) >= least
            or not steps[-1]
            or abs(value / steps[-1]) >= 2.0**52
        )
    for index, value in enumerate(told):
        if not stays[index]:
            high = min(
                (
                    v
                    for v, stay in zip(told[index:], stays[index:], strict=True)
                    if stay
                ),
                default=math.inf,
            )
            value = min(round(value / steps[index]) * steps[index], high)
        found.append(max([value, *found[-1:]]))
    return found


def dense(X):
    if sp.issparse(X):
        return X.toarray()
    return np.asarray(X)


MANY = np.random.default_rng(0).normal(size=(300, 2)), np.arange(300) % L
# the grouping ends exactly there
TO_THE_TOP = np.arange(20.0, 120)[:, None], np.zeros(100, np.int64)


@given(labelled(), st.just(1) | st.integers(2, 9), st.sampled_from(sorted(KINDS)))
@example(MANY, 1, "CSR of uint8")
@example(MANY, 5, "float64")
@example(TO_THE_TOP, 5, "float64")
def test_cells_agree_with_the_oracle_and_tell_values_with_the_least_of_samples_on_either_side(
    case, least, kind
):
    """Or the median of the class: of fewer than twice as many samples no value has so
    many on both sides.
    """
    X = KINDS[kind](case[0])
    y = case[1]
    found = ColumnHistograms.from_data(X, y, L, least)
    points = dense(X)
    n_per_class = np.bincount(y, minlength=L)
    cells = as_counter(found)
    assert cells == grouped(points, y, least)
    is_told = n_per_class >= (1 if least == 1 else max(least, 4))
    assert found.n_per_class.tolist() == np.where(is_told, n_per_class, 0).tolist()
    assert found.n_examples == found.n_per_class.sum()
    assert (found.counts >= least).all()
    sizes = np.zeros((L, X.shape[1]), np.int64)
    for (label, column, key), count in cells.items():
        values = [float(value) for value in points[y == label, column]]
        sizes[label, column] += count
        wanted = min(least, len(values) - len(values) // 2)
        # A value that fewer share is rounded: to a 64th of the spread around it, at
        # most.
        near = (max(values) - min(values)) / 64
        told = float(values_of(np.array([key]))[0])
        assert any(
            sum(other <= value for other in values)
            >= wanted
            <= sum(other >= value for other in values)
            for value in values
            if oracle.key(value) == key or abs(value - told) <= near + abs(told) / 2**19
        )
    assert (sizes == found.n_per_class[:, None]).all()


# ---- gaps


@given(labelled(least=1), st.integers(0, 2**32 - 1))
@example((np.zeros((1, 2)), np.zeros(1, np.int64)), 11)  # a column of gaps alone
def test_what_follows_from_columns_with_gaps_is_what_follows_from_their_numbers(
    case, seed
):
    X, y = case
    X = np.where(np.random.default_rng(seed).random(X.shape) < 0.3, np.nan, X)
    found = ColumnHistograms.from_data(X, y, 3)
    centers, deviations = found.center_and_deviation()
    for column in range(X.shape[1]):
        has_number = ~np.isnan(X[:, column])
        assert found.n_numbers[column] == has_number.sum()
        if has_number.any():
            alone = ColumnHistograms.from_data(
                X[has_number, column][:, None], y[has_number], 3
            )
            assert_array_equal(found.quantiles[column], alone.quantiles[0])
            assert (
                [centers[column]],
                [deviations[column]],
            ) == alone.center_and_deviation()
    assert np.isfinite(found.quantiles).all()
    assert np.isfinite(found.relevance()).all()


@pytest.mark.parametrize("least", [1, 5])
def test_gaps_are_the_last_in_the_order(least):
    X = np.append(np.arange(19.0), [np.nan] * 6)[:, None]
    found = ColumnHistograms.from_data(X, np.zeros(25, np.int64), 1, least)
    # of the last groups of five, one straddles
    assert found.counts[-1] == (6 if least == 1 else 10)
    assert found.n_numbers == [19 if least == 1 else 15]


# ---- what follows


@given(labelled(least=1))
def test_quantiles_are_those_of_the_sorted_values(case):
    X, y = case
    columns = ColumnHistograms.from_data(X, y, L)
    n = len(X)
    for column in range(X.shape[1]):
        values = np.sort(X[:, column])
        wanted = values[
            [0, *(int((k + 0.5) / 32 * n + 1e-9) for k in range(32)), n - 1]
        ]
        exact = values_of(keys_of(wanted))
        with np.errstate(all="ignore"):
            assert (
                np.abs(columns.quantiles[column] - exact)
                <= (values[-1] - values[0]) / 64 + 1e-300
            ).all()
            shared = np.isin(
                exact,
                [v for v in exact if (values_of(keys_of(values)) == v).sum() >= 5],
            )
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
            # subnormal numbers have fewer digits
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
    "far from zero": (1e4 + np.random.default_rng(0).normal(size=3000), 1e4, 0.97),
    "rare: the highest value joins the edges": (
        [0.0] * 999 + [1.0],
        1 / 34,
        math.sqrt(33) / 34,
    ),
    "rare and large": ([0.0] * 999 + [1e200], 1e200 / 34, 1e200 * math.sqrt(33) / 34),
    "largest": ([-(2.0**1023), 2.0**1023] * 32, 0.0, 2.0**1023),
    "a few large values do not matter": (
        [*range(32)] * 10 + [1e300, -1e300],
        15.5,
        math.sqrt((32**2 - 1) / 12),
    ),
}


@pytest.mark.parametrize(("values", "center", "deviation"), ODD.values(), ids=ODD)
def test_centre_and_deviation_of_odd_columns(values, center, deviation):
    values = np.array(values, float)[:, None]
    (found,), (spread,) = ColumnHistograms.from_data(
        values, np.zeros(len(values), int), 1
    ).center_and_deviation()
    assert found == pytest.approx(center, rel=0.05, abs=1e-5 * deviation)
    assert spread == pytest.approx(deviation, rel=0.1)


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
        cuts = ColumnHistograms.of_table(
            d, cuts, full.table(cuts, by_class=False)
        ).finer(cuts, parts)
        assert len(cuts) <= MOST_BINS * d
    assert len(cuts) <= 70 * d
    table = full.table(cuts, by_class=True)
    found = ColumnHistograms.of_table(d, cuts, table)
    assert_array_equal(found.table(cuts, by_class=True), table)
    assert_array_equal(found.quantiles, full.quantiles)
    assert found.center_and_deviation() == full.center_and_deviation()
    assert found.relevance() == full.relevance()
    assert_array_equal(found.n_per_class, full.n_per_class)


def chi_squared(x, y, borders):
    """Chi squared over n of classes of equal sizes, less its degrees of freedom over n;
    0 within chance.
    """
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
        values.append(value - dof / n if value > by_chance else 0.0)
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
        # the same shares of a class
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
    for name in ("n_features", "n_per_class", "cells", "counts")
}
CUTS = np.arange(8) << KEY_BITS - 2
ENDLESS = [np.append(np.arange(19.0), wrong)[:, None] for wrong in (np.inf, -np.inf)]


def with_fields(**change):
    return lambda: ColumnHistograms(**(FIELDS | change))


def table_with(entry):
    table = np.ones((2, 8), np.int64)
    table[1, 6] = entry
    return lambda: ColumnHistograms.of_table(2, CUTS, table)


def of(points, labels, least=None):
    return ColumnHistograms.from_data(
        points, np.array(labels), 2, *([] if least is None else [least])
    )


REFUSED = [
    *[(with_fields(n_features=bad), "histograms") for bad in (0, 2**30, 3)],
    *[
        (with_fields(n_per_class=np.array(bad, np.int64)), "histograms")
        for bad in ([1, 2], [-1, 1], [])
    ],
    *[
        (with_fields(cells=bad), "histograms")
        for bad in (GOOD.cells[::-1].copy(), np.repeat(GOOD.cells[:2], 2))
    ],
    *[
        (with_fields(cells=bad), "histograms")
        for bad in (GOOD.cells[:3], GOOD.cells - 2**60)
    ],
    (with_fields(cells=GOOD.cells + (2 << KEY_BITS)), "histograms"),
    *[
        (with_fields(counts=np.array(bad)), "histograms")
        for bad in ([1, 1, 1, 0], [1, 1, 2, 1], [2**62] * 4)
    ],
    *[(table_with(entry), "histograms") for entry in (2, -1)],
    *[
        (lambda row=row, y=y: GOOD - of(np.array([row]), [y]), "histograms")
        for row, y in ([[1.0, 5.0], 0], [[1.0, 2.0], 1])
    ],
    *[
        (lambda least=least, X=X: of(X, [0] * 20, least), "X")
        for least in (1, 5)
        for X in ENDLESS
    ],
    *[
        (lambda least=least: of(sp.csr_array(ENDLESS[0]), [0] * 20, least), "X")
        for least in (1, 5)
    ],
    *[
        (getattr(ColumnHistograms.zeros(2, 2), name), "histograms")
        for name in ("edges", "center_and_deviation")
    ],
    *[
        (lambda shape=shape: GOOD + ColumnHistograms.zeros(*shape), "histograms")
        for shape in ((2, 3), (1, 2))
    ],
]


@pytest.mark.parametrize(("act", "field"), REFUSED)
def test_what_no_samples_have_is_refused(act, field):
    with raises(DataError, field=field):
        act()


def test_histograms_are_values():
    assert with_fields()() == GOOD
    assert table_with(1)().n_features == 2
    assert GOOD + GOOD - GOOD == GOOD != 1
    assert repr(GOOD) == "<ColumnHistograms of 2 samples, 2 classes, 2 columns>"
