"""A value is the same in every array that can hold it.

NumPy, pandas and Parquet choose the type of a column by all its values: one row more
makes texts of numbers, floats of integers, or objects of dates. For every such row
the others are read as before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flwr_flynn.app.data.held_out import HeldOut, id_keys, row_keys
from flwr_flynn.app.data.own_file import private_file
from flwr_flynn.app.data.source import (
    Dialect,
    Reading,
    label_gaps,
    mapped,
    unlabelled,
)
from flwr_flynn.errors import FlyNNError
from flwr_flynn.federated.labels import codebook, codes_in
from flwr_flynn.federated.private_rows import GivenRows
from flwr_flynn.federated.samples import Samples
from flwr_flynn.tables.cells import CellReader, Gaps, is_gap, objects
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.row_wise import CellSettings, encode_rows
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import RawColumns

GAP_TEXTS = ("-9", "1", "2020-01-03", "1.5")
SETTINGS = CellSettings(GAP_TEXTS)
BESIDE = Schema(
    [
        Column("a", "number"),
        Column("a text", "category", ["x", "01", "m", "2020-01-01", "2j", "1.5"]),
    ]
)
READERS = [
    CellReader(kind, gaps, decimal)
    for kind, decimal in [
        ("number", "."),
        ("number", ","),
        ("category", "."),
        ("date", "."),
    ]
    for gaps in (Gaps(), Gaps.of(GAP_TEXTS))
]

_DAYS = ["2020-01-01", "2020-01-03", "2020-02-29", "1969-12-31"]
_MOMENTS = ["2020-01-01T00:00", "2020-01-03T12:30", "2020-02-29T23:59"]
COLUMNS: dict[str, list[Any]] = {
    "booleans": [True, False, True],
    "integers": [1, 0, -9, 7, 2**53, -(2**40), 2**62, 10**16 + 1],
    "floats": [1.0, 0.0, 1.5, -9.0, 0.1, 1e16, 1e22, 1e-7, 1e300, np.inf],
    "floats with a gap": [1.0, np.nan, 2.5, -9.0],
    "complex numbers": [1 + 0j, -9 + 0j, 1.5 + 0j, 2j, 0j],
    "decimals": [*map(Decimal, ("1", "1.0", "-9.00", "1.50", "0.1", "1E+3", "1E-7"))],
    "extended precision": [*map(np.longdouble, ("1", "-9", "1.5", "0", "1e300"))],
    "days": [*map(np.datetime64, _DAYS)],
    "days with a gap": [np.datetime64("2020-01-01"), np.datetime64("NaT")],
    "minutes": [*map(np.datetime64, _MOMENTS)],
    "moments": [np.datetime64(f"{moment}:07.250", "us") for moment in _MOMENTS],
    "Python's dates": [*map(date.fromisoformat, _DAYS)],
    "Python's moments": [datetime(2020, 1, 3), datetime(2020, 1, 3, 4, 5)],
    "texts": ["NAT", "1", "01", "True", "m", "1.50", " 7 ", "x\0", "nan", "2020-01-01"],
}
ODD: list[Any] = [
    *(None, np.nan, "", "x", "True", "a much longer text", True, 2, 2.5, -1e300, 3j),
    *(2**62, np.datetime64("2020-05-05"), np.datetime64("2020-05-05T05:05:05.5", "us")),
    *(date(2020, 5, 5), datetime(2020, 5, 5, 5), b"bytes", b"\xff", pd.NA, pd.NaT),
]


def _objects(values: list[Any]) -> Any:
    return objects(values)


def _series(values: Any) -> Any:
    return RawColumns.of(pd.DataFrame({"a": pd.Series(values)})).columns[0]


def _joined(values: list[Any]) -> Any:
    """The column of a frame to which the last row was added."""
    rows = pd.DataFrame({"a": pd.Series(values[:-1])})
    more = pd.DataFrame({"a": pd.Series(values[-1:])})
    return RawColumns.of(pd.concat([rows, more])).columns[0]


def _appended(values: list[Any]) -> Any:
    """The array to which the last row was added."""
    return np.append(np.array(values[:-1]), np.array(values[-1:]))


CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "NumPy": np.array,
    "NumPy, appended": _appended,
    "objects": _objects,
    "pandas": _series,
    "pandas, joined": _joined,
}
_TEXTS = ["m", "True", "1.50", "2020-01-01", "2020-01-03 12:30:07.25", "x"]
BOOKS = [
    codebook(["1", "0", "-9", "1.5", "7", "10000000000000000", *_TEXTS[2:]]),
    codebook([1, 0, -9, 2**53]),
]
LABEL_MAP = {"True": "yes", "0": "no", "-9.0": "none", "2020-01-01": "first", "01": "b"}


def _exact(values: Any) -> list[str]:
    return [f"{type(value).__name__} {value!r}" for value in values.tolist()]


def figures(values: Any) -> list[list[Any]]:
    """Values, keys and codes that each reader makes of the cells of a column."""
    made: list[list[Any]] = []
    for reader in READERS:
        read, good = reader.column(values)
        made += [_exact(read), good.tolist()]
    made += [row_keys([values]), id_keys(values)]
    made += [codes_in(book, values).tolist() for book in BOOKS]
    numbers, fits = encode_rows(BESIDE, RawColumns(["a"], [values]), SETTINGS)
    made += [_exact(numbers), fits.tolist()]
    labels = mapped(objects(values), LABEL_MAP)
    named = codebook(["yes", "no", "none", "first", "b", "2.5"])
    return [
        *made,
        codes_in(named, labels).tolist(),
        unlabelled(labels, label_gaps(Dialect())).tolist(),
    ]


def _made(container: str, values: list[Any]) -> Any:
    try:
        return CONTAINERS[container](values)
    except (TypeError, ValueError, OverflowError):
        return None  # such values are in no array of this kind


def _loses(values: list[Any], array: Any) -> bool:
    """True for an array whose type has rounded some values, or reads none as they are."""
    if getattr(array, "ndim", 1) != 1:
        return True
    whole = [value for value in values if isinstance(value, int)]
    are_rounded = any(float(value) != value for value in whole)
    others = [type(value) for value in array.tolist() if not is_gap(value)]
    return are_rounded and bool({*others} & {float, complex})


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_row_that_changes_the_type_of_a_column_changes_no_other_row(
    column, container
):
    values = COLUMNS[column]
    whole = _made("NumPy", values)
    if column.startswith("Python") or column == "decimals":
        whole = objects(values)
    before = figures(whole)
    n_tried = 0
    for odd in ODD:
        more = _made(container, [*values, odd])
        if more is None or _loses([*values, odd], more):
            continue
        if more.dtype.kind == "m":
            continue
        n_tried += 1
        for one, other in zip(before, figures(more), strict=True):
            assert other[: len(values)] == one, (odd, more.dtype)
    assert n_tried >= 7


SCHEMA = Schema(
    [
        Column("a", "number"),
        Column("b", "category", ["1", "0", "7", "1.5", "2020-01-01", "m"]),
    ]
)


def _sides(path: Path) -> list[list[str]]:
    """The rows on both sides of a private file, or why it is refused."""
    dialect = Dialect(gap_texts=GAP_TEXTS, label_map=LABEL_MAP)
    reading = Reading("label", "id", dialect=dialect, held_out=HeldOut(0.5, b"secret"))
    try:
        rows = private_file(path, reading)
    except FlyNNError as error:
        return [[str(error)]]
    book = codebook(["yes", "no", "b", *range(2, 9)])
    sides = []
    for held_out in (False, True):
        (block,) = rows.blocks(999, held_out)
        X, y = block.read(slice(0, block.n))
        numbers, fits = encode_rows(SCHEMA, X, rows.settings)
        made = zip(numbers.tolist(), fits, codes_in(book, y), strict=True)
        sides.append([*map(str, made)])
    return sides


def assert_one_more(before: list[list[str]], after: list[list[str]]) -> None:
    """Require the same rows on both sides, and one more at the end of one."""
    assert len(before) == 2
    for one, other in zip(before, after, strict=True):
        assert other[: len(one)] == one
    assert sum(map(len, after)) == 1 + sum(map(len, before))


@pytest.mark.parametrize("kind", ["Int64", "UInt64", "arrow", "categories"])
def test_a_gap_in_a_column_of_pandas_changes_no_other_row(kind):
    """`to_numpy` gives integers as long as there is no gap, then floats or objects."""
    arrow = pytest.importorskip("pyarrow")
    integers = [1, 10**16 + 1, 3, 2**62]
    types = {
        "arrow": pd.ArrowDtype(arrow.int64()),
        "categories": pd.CategoricalDtype(integers),
    }
    dtype = types.get(kind, kind)
    whole, more = (
        figures(_series(pd.array(values, dtype)))
        for values in (integers, [*integers, None])
    )
    assert [figure[:4] for figure in more] == whole


_FILES = [values for values in COLUMNS.values() if np.array(values).dtype.kind != "O"]


@pytest.mark.parametrize("label", ["x", True, 2.5, 1])
def test_one_row_more_changes_no_other_row_of_a_private_array(label, tmp_path):
    n_tried = 0
    for cells, odd in itertools.product(_FILES, ODD):
        more = _made("NumPy", [*cells, odd])
        for labels in ([True, False], [1, 0], ["True", "01"], [1.0, 2.0]):
            own_labels = (labels * len(cells))[: len(cells)]
            if more is None or more.dtype.kind in "Om" or _loses([*cells, odd], more):
                continue
            sides = []
            for X, y in ((cells, own_labels), ([*cells, odd], [*own_labels, label])):
                arrays = {
                    "X": np.array([X, X]).T,
                    "label": np.array(y),
                    "id": np.array(X),
                }
                np.savez(tmp_path / "a.npz", feature_names=["a", "b"], **arrays)
                sides.append(_sides(tmp_path / "a.npz"))
            assert_one_more(*sides)
            n_tried += 1
    assert n_tried > 100


# -------- Parquet and CSV files

_NOTHING = [None] * 8
_DECIMALS = [*map(Decimal, range(8))]
PARQUET: dict[str, tuple[dict[str, list[Any]], dict[str, Any]]] = {
    "scale of labels": ({"label": _DECIMALS}, {"label": Decimal("0.25")}),
    "scale of ids": ({"id": _DECIMALS}, {"id": Decimal("0.25")}),
    "a time in an empty column": ({"t": _NOTHING}, {"t": time(8, 30)}),
    "a list in an empty column": ({"t": _NOTHING}, {"t": [1]}),
    "a number in an empty column": ({"t": _NOTHING}, {"t": 1.5}),
    "an id of bytes": ({"id": [*"abcdabcd"]}, {"id": b"c"}),
    "an id that is a list": ({"id": _NOTHING}, {"id": [1]}),
    "integers and a gap": ({"a": [*range(8)]}, {"a": None}),
    "booleans and a gap": ({"t": [True, False] * 4}, {"t": None}),
}


@pytest.mark.parametrize("case", PARQUET)
def test_one_row_more_changes_no_other_row_of_a_parquet_file(case, tmp_path):
    pytest.importorskip("pyarrow")
    own, odd = PARQUET[case]
    columns = {"a": [*range(8)], "b": [*"m1"] * 4, "id": _NOTHING, "label": [*range(8)]}
    columns |= own
    row = {name: values[0] for name, values in columns.items()} | odd
    more = {name: [*values, row[name]] for name, values in columns.items()}
    sides = []
    for rows in (columns, more):
        pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
        sides.append(_sides(tmp_path / "a.parquet"))
    assert_one_more(*sides)


@pytest.mark.parametrize(
    "header", ["a\ry,b,label,id", "x" * 2**21 + ",label,id", "\x00"]
)
def test_no_row_takes_the_place_of_a_header_that_cannot_be_read(header, tmp_path):
    refusals = []
    for rows in ("1,a,1,1\n", "a,b,label,id\n1,a,1,1\n", "1,1\n1,a,1,1\n"):
        (tmp_path / "a.csv").write_text(f"{header}\n{rows}", newline="")
        refusals.append(_sides(tmp_path / "a.csv"))
    assert [len(refusal) for refusal in refusals] == [1, 1, 1]
    assert refusals[1:] == refusals[:1] * 2


def test_a_text_among_named_numbers_of_a_loader_refuses_nothing():
    X = np.array([["1", "2"], ["q", "1"]])
    (block,) = GivenRows(Samples(X, [0, 1], names=["a", "b"])).blocks(9)
    table, _ = block.read(slice(0, 2))
    assert [column.tolist() for column in table.columns] == [["1", "q"], ["2", "1"]]


def test_a_date_beyond_the_calendar_is_no_number_in_any_array():
    dates = np.array(["12000-12-31", "2020-01-01"], "M8[s]")
    for kind in ("number", "date"):
        reader = CellReader(kind)
        values, good = reader.column(dates)
        others, also_good = reader.column(objects([*map(pd.Timestamp, dates)]))
        assert good.tolist() == also_good.tolist()
        np.testing.assert_array_equal(values, others)
