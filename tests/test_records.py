"""Records are taken one by one: none decides what becomes of another, and none makes anything raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from flwr_flynn import records
from flwr_flynn.counts import ClassCounts
from flwr_flynn.errors import DataError
from flwr_flynn.hashing import FlyHash
from flwr_flynn.spec import HashSpec
from tests.fakes import CLASSES, HASHER, TERMS, counts_of, points

ODD = [
    ([np.nan, 0, 0, 0], "ash"),
    ([0, np.inf, 0, 0], "ash"),
    ([1e300, 1, 2, 3], "birch"),
    ([None, 0, 0, 0], "cedar"),
    (["many", 0, 0, 0], "cedar"),
    ([{}, 0, 0, 0], "cedar"),
    ([0, 1, 2, 3], "oak"),
    ([0, 1, 2, 3], None),
    ([0, 1, 2, 3], float("nan")),
    ([0, 1, 2, 3], ["ash"]),
]


def count(X: Any, y: Any) -> tuple[ClassCounts, int]:
    records.check_form(X, y)
    return records.count(HASHER, CLASSES, X, y)


def test_records_that_fit_are_counted_as_ever() -> None:
    X, y = points(50)
    assert count(X, y) == (counts_of(X, y), 0)
    assert count(sp.coo_array(X), y.tolist()) == (counts_of(X, y), 0)
    assert count(X[:0], y[:0]) == (counts_of(X[:0], y[:0]), 0)


@pytest.mark.parametrize("place", [0, 7, 20])
@pytest.mark.parametrize("odd", ODD)
def test_one_that_does_not_fit_is_left_out_and_changes_no_other(odd: Any, place: int) -> None:
    X, y = points(20)
    mixed = np.empty((21, 4), object)
    mixed[np.arange(21) != place], mixed[place] = X, odd[0]
    labels = [*y[:place], odd[1], *y[place:]]
    assert count(mixed, labels) == (counts_of(X, y), 1)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_many_that_do_not_fit_are_left_out(convert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = points(60)
    spoiled = X.copy()
    spoiled[::3, 1] = np.nan
    spoiled[1::3, 2] = 1e300
    expected = counts_of(X[2::3], y[2::3])
    assert count(convert(spoiled), y) == (expected, 40)
    monkeypatch.setattr(records, "_HELD", 4 * 7)
    assert count(convert(spoiled), y) == (expected, 40)


def test_a_data_frame_is_taken_row_by_row() -> None:
    pandas = pytest.importorskip("pandas")
    X, y = points(20)
    frame = pandas.DataFrame(X).astype(object)
    frame.iloc[3, 1], frame.iloc[4, 2] = "none", pandas.NA
    keep = ~np.isin(np.arange(20), [3, 4])
    assert count(frame, pandas.Series(y)) == (counts_of(X[keep], y[keep]), 2)


def test_a_fraction_among_integers_changes_none_of_them() -> None:
    """NumPy makes floats of all of them; large integers are read as floats in either case."""
    X = np.random.default_rng(1).integers(-(2**62), 2**62, (30, 4))
    y = np.array(CLASSES)[np.arange(30) % 3]
    alone, _ = count(X, y)
    both, _ = count(np.vstack([X, [[0.5, 0, 1, 2]]]), [*y, "ash"])
    assert both - count(np.array([[0.5, 0, 1, 2]]), ["ash"])[0] == alone
    small = X % 2**20
    for dtype in (np.int32, np.int64, np.float64, object):
        assert count(small.astype(dtype), y) == count(small, y)


@pytest.mark.parametrize(
    ("classes", "labels"), [((0, 1), ["0", 1, 1.0, "1.0"]), (("0", "1.5"), [0, 1.5, "1.5", "1.5"])]
)
def test_a_label_may_come_in_any_form(classes: Any, labels: list[Any]) -> None:
    hasher = FlyHash(HashSpec(n_features=1, hash_dim=4, row_nnz=1, hash_nnz=1, seed=1))
    counts, dropped = records.count(hasher, classes, np.ones((4, 1)), labels)
    assert (counts.n_per_class.tolist(), dropped) == ([1, 3], 0)


@pytest.mark.parametrize(
    ("X", "y"),
    [([[1.0] * 4], ["ash"]), (np.zeros(4), ["ash"]), (np.zeros((2, 4)), ["ash"]), (np.zeros((1, 4)), None)],
)
def test_a_form_that_no_record_decides_is_refused(X: Any, y: Any) -> None:
    with pytest.raises(DataError):
        count(X, y)


def test_whatever_a_label_does_it_is_left_out() -> None:
    class Hostile:
        def __hash__(self) -> int:
            raise RuntimeError

    assert count(np.zeros((1, 4)), [Hostile()]) == (ClassCounts.zeros(HASHER, TERMS.n_classes), 1)
