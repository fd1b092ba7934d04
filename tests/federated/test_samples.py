"""Samples and labels are coded whatever their type.

Where counts are private they are read one by one.
"""

from __future__ import annotations

import datetime
import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.labels import checked_classes, codebook, codes_in, codes_of
from flwr_flynn.federated.protocol import REFUSED
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.samples import checked_names
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import MOST_CLASSES, Schema
from tests.app.data.private import count as count_rows
from tests.fakes import CLASSES, HASHER, RUN, SPEC, counting, counts_of, points
from tests.raising import raises

ODD = {
    "a gap": ([np.nan, 0, 0, 0], "ash"),
    "infinity": ([np.inf, 0, 0, 0], "ash"),
    "a number too large": ([1e300, 0, 0, 0], "ash"),
    "None": ([None, 0, 0, 0], "ash"),
    "a text": (["many", 0, 0, 0], "ash"),
    "an object": ([{}, 0, 0, 0], "ash"),
    "a label of no class": ([0, 1, 2, 3], "oak"),
    "no label": ([0, 1, 2, 3], None),
    "a label that is NaN": ([0, 1, 2, 3], float("nan")),
    "a list as a label": ([0, 1, 2, 3], ["ash"]),
}
"""Samples and labels that do not fit."""


def count(X: Any, y: Any, n_rows: int = 2**14) -> tuple[ClassCounts, int]:
    return count_rows(HASHER, CLASSES, X, y, n_rows)


@pytest.mark.parametrize("place", [0, 7, 20])
@pytest.mark.parametrize(("odd", "odd_label"), ODD.values(), ids=ODD)
def test_one_that_does_not_fit_is_left_out_and_changes_no_other(odd, odd_label, place):
    X, y = points(20)
    mixed = np.empty((21, 4), object)
    mixed[np.arange(21) != place] = X
    mixed[place] = odd
    labels = [*y[:place], odd_label, *y[place:]]
    assert count(mixed, labels) == (counts_of(X, y), 1)


@pytest.mark.parametrize(
    "convert",
    [np.asarray, sp.csr_array, sp.coo_array, lambda X: pd.DataFrame(X).astype(object)],
)
@pytest.mark.parametrize(("n_rows", "step"), [(2**14, 3), (7, 3), (2**14, 100)])
def test_rows_that_do_not_fit_are_left_out(convert, n_rows, step):
    X, y = points(60)
    spoiled = X.copy()
    fits = np.arange(60) % step > 1
    spoiled[::step, 1] = np.nan
    spoiled[1::step, 2] = 1e300
    counts, n_dropped = count(convert(spoiled), pd.Series(y), n_rows)
    assert counts == counts_of(X[fits], y[fits])
    assert n_dropped == (~fits).sum()
    assert count(convert(X[:0]), []) == (counts_of(X[:0], y[:0]), 0)


ONE_FEATURE = FlyHash(HashSpec(n_features=1, hash_dim=4, row_nnz=1, hash_nnz=1, seed=1))


def counted(classes: Any, labels: Any) -> Any:
    """Counts of equal samples with some labels."""
    return count_rows(ONE_FEATURE, classes, np.ones((len(labels), 1)), labels)[0].array


def summed(classes: Any, labels: Any) -> Any:
    """The sum of the counts of each label alone."""
    return sum(
        (counted(classes, [label]) for label in labels), start=counted(classes, [])
    )


@pytest.mark.parametrize(
    ("X", "y"),
    [
        ([[1.0] * 4], ["ash"]),
        (np.zeros(4), ["ash"]),
        (np.zeros((2, 4)), ["ash"]),
        (np.zeros((1, 4)), None),
    ],
)
def test_a_form_that_no_sample_decides_is_refused(X, y):
    with pytest.raises(DataError):
        count(X, y)


@pytest.mark.parametrize("method", ["__hash__", "__str__"])
def test_whatever_a_label_does_it_is_left_out(method):
    hostile = type("Hostile", (), {method: lambda self: 1 / 0})()
    nothing = ClassCounts.zeros(HASHER, RUN.n_classes)
    assert count(np.zeros((1, 4)), [hostile]) == (nothing, 1)


# ---- the type of a container is inferred from all of its records

PLAIN = [
    True,
    False,
    np.bool_(True),
    0,
    1,
    3,
    -2,
    2**53 + 1,
    2**62,
    2**70,
    np.int8(3),
    1.0,
    3.0,
    0.5,
    -0.0,
    1e22,
    float("nan"),
    float("inf"),
    np.float64(3),
    3 + 0j,
    1j,
    None,
    "3",
    "3.0",
    "0.5",
    "nan",
    "(3+0j)",
    "True",
    np.str_("3"),
    "ash",
    "word",
    "",
    b"3",
    b"ash",
    datetime.date(2020, 1, 1),
    datetime.datetime(2020, 1, 1),
    np.datetime64("2020-01-01"),
    np.timedelta64(5, "s"),
    datetime.timedelta(5),
]
"""Labels and cells of every type."""
CLASS_LISTS = [
    (0, 1, 3),
    (2**62, 2**53 + 1, 3),
    ("0", "1", "3"),
    ("True", "False"),
    ("ash", "3.0", "0.5"),
    ("ash", "word", "None"),
]


def length(value: Any) -> int:
    """Letters of a text, or bytes."""
    if isinstance(value, bytes):
        return len(value)
    return len(str(value))


def array(values: list[Any]) -> Any:
    """Return the array that NumPy makes of a list, in the type that it infers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = np.array(values)
    except Exception:  # noqa: BLE001 - there are lists of which NumPy makes nothing
        assume(False)
    same = np.array(values, object)
    assume(made.ndim == same.ndim)
    if made.dtype.kind == "M":
        # Beside a date NumPy makes dates of numbers and durations, too: these are other
        # samples then.
        assume(all(isinstance(value, np.datetime64) for value in same.ravel()))
    if made.dtype.kind in "US":
        # NumPy writes False in four letters beside an int8 and a text: a sample of its
        # own making, too.
        longest = made.itemsize
        if made.dtype.kind == "U":
            longest //= 4
        assume(max(map(length, same.ravel()), default=0) <= longest)
    return made


def labels_of(values: list[Any]) -> Any:
    """Return `array` of labels: beside a duration NumPy makes durations of integers."""
    made = array(values)
    if made.dtype.kind == "m":
        assume(all(isinstance(value, np.timedelta64) for value in values))
    return made


@given(
    st.sampled_from(CLASS_LISTS),
    st.lists(st.sampled_from(PLAIN), max_size=5),
    st.sampled_from(PLAIN),
)
@example((0, 1), [True, False, True], float("nan"))
@example(("True", "False"), [True, False, True], float("nan"))
@example(("True", "False"), [True, False, True], "word")
@example(("3", "1"), [3, 1, 3], float("nan"))
@example(("3", "1"), [3.0, 1.0], "word")
@example((3, 1), [3, 1], 1j)
@example((2**62, 2**53 + 1), [2**62, 2**53 + 1], 0.5)
def test_no_label_changes_how_another_is_read(classes, labels, odd):
    everything = [*labels, odd]
    expected = summed(classes, [*labels, odd])
    np.testing.assert_array_equal(counted(classes, everything), expected)
    np.testing.assert_array_equal(counted(classes, labels_of(everything)), expected)
    np.testing.assert_array_equal(
        expected - counted(classes, [odd]), counted(classes, labels_of(labels))
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(PLAIN), st.sampled_from(PLAIN)),
        min_size=1,
        max_size=5,
    )
)
@example([(True, False), (1j, 3)])
@example([(True, 3), (3, "word")])
@example([(True, 3 + 0j), (True, "3")])
@example([(np.complex64(3), 1), (np.complex64(1j), 1)])
@example([(3, 1), (np.timedelta64(5, "s"), 1)])
@example([(3, 2**53 + 1), (0.5, 1)])
@example([(np.datetime64("2020-01-01"), np.datetime64("2020-01-01"))])
@example([(b"3", 1), (3, True)])
def test_no_sample_changes_how_another_is_read(rows):
    hasher = FlyHash(
        HashSpec(n_features=2, hash_dim=16, row_nnz=1, hash_nnz=3, seed=1, signed=True)
    )

    def counted(X: Any) -> Any:
        return count_rows(hasher, ("ash",), X, ["ash"] * len(X))[0].array

    def alone(row: tuple[Any, Any]) -> Any:
        single = np.empty((1, 2), object)
        single[0, 0] = row[0]
        single[0, 1] = row[1]
        return counted(single)

    total = sum((alone(row) for row in rows[1:]), start=alone(rows[0]))
    np.testing.assert_array_equal(counted(array([list(row) for row in rows])), total)


@pytest.mark.parametrize("kind", ["c16", "c8"])
def test_complex_numbers_of_a_sparse_matrix_are_read_one_by_one(kind):
    X, y = points(20)
    X = np.rint(4 * X)
    mixed = X.astype(kind)
    mixed[7, 2] = 1 + 1j
    expected = counts_of(np.delete(X, 7, 0), np.delete(y, 7))
    assert count(sp.csr_array(mixed), y) == count(mixed, y) == (expected, 1)


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_dates_are_no_numbers(unit):
    dates = np.array([["2020-01-01"] * 4] * 3, f"M8[{unit}]")
    assert count(dates, ["ash"] * 3) == (ClassCounts.zeros(HASHER, 3), 3)


TIMES = [
    np.array([1, 2, 1], dtype)
    for dtype in ("M8[D]", "M8[ns]", "M8[Y]", "m8[D]", "m8[ns]", "m8[Y]")
]
TIMES += [list(values) for values in TIMES]
TIMES += [pd.Series(values) for values in TIMES[1:5:3]]


@pytest.mark.parametrize("times", TIMES, ids=lambda times: str(times)[:60])
def test_dates_and_durations_are_no_labels(times):
    X = np.ones((3, 4))
    nothing = (ClassCounts.zeros(HASHER, 2), 3)
    assert count_rows(HASHER, (1, 2), X, times, 2**14) == nothing
    with raises(DataError, field="y") as refusal:
        codes_of((1, 2), times)
    assert str(np.asarray(times).dtype) in str(refusal.value)


@pytest.mark.parametrize("classes", [("1", "1.0"), ("ash", "True", "1")])
def test_class_lists_that_a_type_would_mix_up_are_refused_before_a_run(
    classes,
):
    """`refused.txt` has others, which `checked_classes` refuses."""
    for made in (codebook, partial(RunSpec, SPEC)):
        with raises(ConfigError, field="classes"):
            made(classes)
    checked_classes(("1", "01", "1.50", "NAN", "ash", "None"))


def test_a_class_list_is_bounded_before_its_labels_are_looked_at():
    with raises(ConfigError, field="classes", got=MOST_CLASSES + 1):
        checked_classes([object()] * (MOST_CLASSES + 1))


VALUES = st.floats() | st.integers(-(2**62), 2**62).map(float)
VALUES |= st.sampled_from(
    [0.0, 1.0, 1e37, -8e37, 1.7e38, 3.4e38, 1e39, 1.7e308, np.nan, np.inf, -np.inf]
)
WAVES = {"n_waves": 4, "wave_frequency": 0.25}
CODES = {"edges": [[0.0, 1.0, 2.0]] * 4, "coding": "bumps", "n_codes": 2}


KINDS = [
    {},
    {"signed": True},
    {"scale": (2.0, 1e-3, 1.0, 1e30)},
    {"center": (1.0, -1e37, 0.0, 5.0)},
    WAVES,
    CODES,
]


@pytest.mark.parametrize("changes", KINDS, ids=str)
@given(st.lists(st.lists(VALUES, min_size=4, max_size=4), max_size=6))
def test_a_sample_that_fits_decides_for_itself_alone(changes, rows):
    sizes = {"n_features": 4, "hash_dim": 16, "row_nnz": 2, "hash_nnz": 3, "seed": 1}
    hasher = FlyHash(HashSpec(**{**sizes, **changes}))
    X = np.array(rows).reshape(-1, 4)
    fits = hasher.fits(X)
    assert fits.tolist() == [bool(hasher.fits(row[None])[0]) for row in X]
    together = hasher.active(X[fits])  # raises nothing
    for row, active in zip(X[fits], together, strict=True):
        assert (hasher.active(row[None])[0] == active).all()
    assert not fits[np.isinf(X).any(axis=1)].any()
    small = X[~(np.abs(X) >= 1e7).any(axis=1)]
    without_gap = ~np.isnan(small).any(axis=1)
    assert (hasher.fits(small) == (hasher.takes_gaps | without_gap)).all()
    if "n_waves" not in changes:
        for row in X[~fits]:
            with pytest.raises(DataError):
                hasher.active(row[None])


# ---- class lists and labels of parties that send exact figures


TEXTS = ["cedar", "ash", "ash"]
NUMBERS = [10, 30, 20]
CODED = {
    "a list": (CLASSES, TEXTS, [2, 0, 0]),
    "an array": (CLASSES, np.array(TEXTS), [2, 0, 0]),
    "objects": (CLASSES, np.array(TEXTS, object), [2, 0, 0]),
    "texts of NumPy": (CLASSES, [np.str_("cedar"), "ash", "ash"], [2, 0, 0]),
    **{
        dtype: ((30, 10, 20), np.array(NUMBERS, dtype), [1, 0, 2])
        for dtype in ("i8", "u1", "f4", "O", ">i4", "U2")
    },
    "integers for texts": (("0", "1"), [1, 0], [1, 0]),
    "texts for integers": ((0, 1), ["1", "0.0"], [1, 0]),
    "nothing": (CLASSES, [], []),
}
"""Classes, labels and their codes."""


@pytest.mark.parametrize(("classes", "labels", "codes"), CODED.values(), ids=CODED)
def test_labels_are_coded_whatever_their_type(classes, labels, codes):
    """A text in a file and an integer in the class list are one label."""
    coded = codes_of(classes, labels)
    assert coded.dtype == np.int64
    assert coded.tolist() == codes


def test_a_leading_zero_is_not_left_out_of_a_label():
    assert codebook(("01", "1"))[1] == 1
    with pytest.raises(DataError):
        codes_of((1,), ["01"])


UNKNOWN = [
    (["ash", "SECRET", "SECRET"], "some that are not"),
    ([1, 2], "some that are not"),
    ([float("nan")], "some that are not"),
    ([["ash"]], "2 dimensions"),
    (None, "0 dimensions"),
    (np.array([{}], object), "some that are not"),
]


@pytest.mark.parametrize(("labels", "got"), UNKNOWN)
def test_labels_outside_the_class_list_are_neither_shown_nor_counted_for_the_server(
    labels, got
):
    with raises(DataError, field="y", got=got) as error:
        codes_of(CLASSES, labels)  # type: ignore[arg-type]
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize(
    ("classes", "got"), [(["a" * 1025], "one of 1025"), ({"ash"}, "set")]
)
def test_bad_class_lists_are_refused(classes, got):
    """`refused.txt` has others."""
    with raises(ConfigError, field="classes", got=got):
        checked_classes(classes)


def test_class_lists_keep_their_order_and_become_python_s_types():
    for classes in (["b", "a"], [2, -1]):
        checked = checked_classes(np.array(classes))
        assert checked == tuple(classes)
        assert [type(label) for label in checked] == [type(label) for label in classes]


def test_names_of_features_become_python_s_texts():
    assert checked_names(np.array(["a", "b"]), 2) == ("a", "b")


@pytest.mark.parametrize("n_edges", [1, 2, 3, 4, 32])
def test_few_edges_of_a_server_refuse_nothing(n_edges):
    """A warning alone follows from the edges.

    With three or fewer it failed unless values were beyond them on both sides: so a
    server found the largest value of a secure party in 30 requests.
    """
    schema = Schema([Column("a", "number", gaps=False)])
    for edges in (np.linspace(25, 45, n_edges), np.linspace(-9, -8, n_edges)):
        spec = HashSpec(
            1, 8, 1, 1, 7, coding="steps", n_codes=2, edges=[edges.tolist()]
        )
        run = RunSpec(spec, ("a", "b"), feature_names=schema)
        frame = pd.DataFrame({"a": np.linspace(20, 50, 60)})
        party = party_of(frame, ["a", "b"] * 30)
        assert REFUSED not in party.answer(counting(run)).metrics


@pytest.mark.parametrize(
    ("classes", "labels", "codes"),
    [
        (["Sepsis", "no"], ["sepsis", " SEPSIS", "No"], [0, 0, 1]),
        (["type 1", "type 2"], ["type\u00a01", "Type 2", "type3"], [0, 1, -1]),
        (["a", "A"], ["a", "A", " A"], [0, 1, 1]),  # both are classes
        (["a", "A", "b"], ["B", "\uff41"], [2, -1]),
        ([1, 2], ["1", 2.0, "01"], [0, 1, -1]),
    ],
)
def test_labels_are_matched_whatever_their_capitals_and_blanks(classes, labels, codes):
    assert codes_in(codebook(classes), np.array(labels, object)).tolist() == codes


def test_a_fraction_among_integers_changes_none_of_them():
    """NumPy makes floats of all of them.

    Large integers are read as floats in either case.
    """
    X = np.random.default_rng(1).integers(-(2**62), 2**62, (30, 4))
    y = np.array(CLASSES)[np.arange(30) % 3]
    alone, _ = count(X, y)
    both, _ = count(np.vstack([X, [[0.5, 0, 1, 2]]]), [*y, "ash"])
    assert both - count(np.array([[0.5, 0, 1, 2]]), ["ash"])[0] == alone
    small = X % 2**20
    for dtype in (np.int32, np.int64, np.float64, object):
        assert count(small.astype(dtype), y) == count(small, y)
