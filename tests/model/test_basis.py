"""Terms of columns against a slow oracle, the columns that have them, and refusals."""

from __future__ import annotations

import json
from math import isnan
from statistics import NormalDist

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from flwr_flynn.errors import DataError
from flwr_flynn.model.basis import LARGEST, Basis
from flwr_flynn.model.column_histograms import ColumnHistograms
from tests import oracle
from tests.raising import raises

RNG = np.random.default_rng(3)
Y = RNG.integers(0, 2, 200)
NORMAL = RNG.normal(size=200)
HAS_GAP = NORMAL > 1
COLUMNS = [
    (NORMAL + Y, 2),
    (1e308 * np.sign(NORMAL) * RNG.random(200), 2),
    (np.where(Y > 0, 7.0, 3.0), 1),
    (np.arange(200) == 7, 1),
    (np.full(200, 0.25), 0),
    (np.where(HAS_GAP, np.nan, NORMAL), 3),
    (np.where(HAS_GAP, np.nan, 1.0), 1),
]
"""Columns, and the number of their terms."""
X = np.column_stack([column for column, _ in COLUMNS])
HISTOGRAMS = ColumnHistograms.from_data(X, Y, 2)
BASIS = Basis.of_columns(HISTOGRAMS)
ONE = Basis(2, [1], [0.0], [5e-324], [[0.0] * 16 + [1.0] * 16], [True])


def score_of(value, edges):
    """The normal score of a number: the quantile at its rank among the edges."""
    keys = list(map(oracle.key, edges))
    key = oracle.key(value)
    rank = sum(edge < key for edge in keys) + sum(edge <= key for edge in keys)
    return round(32 * NormalDist().inv_cdf(min(max(rank / 64, 1 / 128), 127 / 128)))


def terms_of(values):
    """Terms of a sample, one after the other."""
    numbers = []
    scores = []
    gaps = []
    rows = zip(*BASIS.to_dict().values(), strict=True)
    for column, center, deviation, edges, has_gaps in rows:
        value = values[column]
        number = 0
        score = 0
        if deviation and not isnan(value):
            number = round(32 * min(max((value - center) / deviation, -5), 5))
            score = score_of(value, edges)
        if deviation:
            numbers.append(number)
        if deviation and len(set(edges)) > 2:
            scores.append(score)
        if has_gaps:
            gaps.append(32 * isnan(value))
    return numbers + scores + gaps


def test_terms_are_those_of_a_slow_oracle():
    terms = BASIS.integers(X)
    assert terms.dtype == np.int16
    assert np.abs(terms).max() == LARGEST == 160
    assert_array_equal(terms, list(map(terms_of, X.tolist())))
    assert_array_equal(BASIS.integers(sp.csr_array(X)), terms)
    # The quotients are beyond the floats.
    assert ONE.integers(np.array([[0, -1], [0, 1.0]])).tolist() == [[-160, 0], [160, 0]]
    of_column = np.array(BASIS.columns)[np.nonzero(BASIS._terms)[1]]
    assert_array_equal(np.bincount(of_column, minlength=7), [n for _, n in COLUMNS])


@pytest.mark.parametrize(
    ("most", "columns"), [(1, (2,)), (2, (2,)), (3, (0, 2)), (6, (0, 1, 2, 3))]
)
def test_at_most_so_many_terms_are_those_of_the_most_relevant_columns(most, columns):
    assert Basis.of_columns(HISTOGRAMS, most).columns == columns
    assert Basis.of_columns(HISTOGRAMS, 0) is None


def test_constant_columns_many_classes_and_no_samples_have_no_basis():
    for n_classes, column, has_basis in (
        (500, 0, True),
        (501, 0, False),
        (2, 4, False),
    ):
        known = ColumnHistograms.from_data(X[:, [column]], Y, n_classes)
        assert (Basis.of_columns(known) is not None) == has_basis
        assert Basis.of_columns(known - known) is None


def test_the_basis_is_that_of_any_split():
    total = ColumnHistograms.zeros(7, 2)
    for rows in np.split(RNG.permutation(200), [0, 1, 4, 99]):
        total += ColumnHistograms.from_data(X[rows], Y[rows], 2)
    assert Basis.of_columns(total) == BASIS


# ---- values from anybody


def test_a_basis_is_that_of_its_values():
    values = json.loads(json.dumps(BASIS.to_dict()))
    assert Basis.from_dict(values, 7) == BASIS


NAN = float("nan")
WIDE = {name: values * 257 for name, values in ONE.to_dict().items()}
WIDE["columns"] = list(range(257))
REFUSED = {
    "columns": [[2], [-1], [], [1.0], ["1"], [[1]], [2**70], [1, 1], [1, 0]],
    "center": [[NAN], ["a"], [[0.0]], []],
    "deviation": [[float("inf")], [NAN], [-1.0]],
    "edges": [[[0.0] * 31], [[1.0] + [0.0] * 31], [[NAN] * 32]],
    "has_gaps": [[1], []],
}
"""Values of the fields of a basis of one column."""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field, values in REFUSED.items() for value in values),
        ("columns", [[1], [0, 1]]),
    ],
    ids=str,
)
def test_other_values_are_refused(field, value):
    with raises(DataError, field=field):
        Basis.from_dict(ONE.to_dict() | {field: value}, 2)


@pytest.mark.parametrize(
    "changes", [{"more": []}, {"edges": {}}, {"deviation": [0]}, WIDE]
)
def test_no_lists_and_another_number_of_terms_are_refused(changes):
    values = ONE.to_dict() | {"has_gaps": [False]} | changes
    with raises(DataError, field="basis"):
        Basis.from_dict(values, 300)
