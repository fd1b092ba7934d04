"""A value is the same in every array that can hold it.

NumPy, pandas and Parquet choose the type of a column by all its values: one row more
makes texts of numbers, floats of integers, or objects of dates. For every such row
the others are read as before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flwr_flynn.app.data.held_out import id_keys, row_keys
from flwr_flynn.app.data.own_file import private_file
from flwr_flynn.app.data.source import Dialect, Reading, mapped, objects, unlabelled
from flwr_flynn.errors import FlyNNError
from flwr_flynn.federated.labels import codebook, codes_in
from flwr_flynn.tables.cells import CellReader, Gaps
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.row_wise import encode_rows, raw_columns
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table

GAP_TEXTS = ("-9", "1", "2020-01-03", "1.5")
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
    "integers": [1, 0, -9, 7, 2**53, -(2**40)],
    "floats": [1.0, 0.0, 1.5, -9.0, 0.1, 1e16, 1e22, 1e-7, 1e300, np.inf],
    "floats with a gap": [1.0, np.nan, 2.5, -9.0],
    "complex numbers": [1 + 0j, -9 + 0j, 1.5 + 0j, 2j, 0j, -0j],
    "decimals": [*map(Decimal, ("1", "1.0", "-9.00", "1.50", "0.1", "1E+3", "1E-7"))],
    "extended precision": [*map(np.longdouble, ("1", "-9", "1.5", "0", "1e300"))],
    "days": [*map(np.datetime64, _DAYS)],
    "days with a gap": [np.datetime64("2020-01-01"), np.datetime64("NaT")],
    "minutes": [*map(np.datetime64, _MOMENTS)],
    "moments": [np.datetime64(f"{moment}:07.250", "us") for moment in _MOMENTS],
    "Python's dates": [*map(date.fromisoformat, _DAYS)],
    "Python's moments": [datetime(2020, 1, 3), datetime(2020, 1, 3, 4, 5)],
    "texts": ["1", "01", "True", "m", "1.50", " 7 ", "x\0", "nan", "2020-01-01"],
}
ODD: list[Any] = [
    *(None, np.nan, "", "x", "True", "a much longer text", True, 2, 2.5, -1e300, 3j),
    *(2**62, np.datetime64("2020-05-05"), np.datetime64("2020-05-05T05:05:05.5", "us")),
    *(date(2020, 5, 5), datetime(2020, 5, 5, 5), b"bytes", pd.NA, pd.NaT),
]


def _objects(values: list[Any]) -> Any:
    return objects(values)


def _series(values: list[Any]) -> Any:
    return raw_columns(pd.DataFrame({"a": pd.Series(values)}))[1][0]


def _joined(values: list[Any]) -> Any:
    """The column of a frame to which the last row was added."""
    rows = pd.DataFrame({"a": pd.Series(values[:-1])})
    more = pd.DataFrame({"a": pd.Series(values[-1:])})
    return raw_columns(pd.concat([rows, more]))[1][0]


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
    """What every reader makes of the cells of a column, one by one."""
    made: list[list[Any]] = []
    for reader in READERS:
        read, good = reader.column(values)
        made += [_exact(read), good.tolist()]
    made += [row_keys([values]), id_keys(values)]
    made += [codes_in(book, values).tolist() for book in BOOKS]
    numbers, fits = encode_rows(BESIDE, Table(["a"], [values]), GAP_TEXTS)
    made += [_exact(numbers), fits.tolist()]
    labels = mapped(objects(values), LABEL_MAP)
    named = codebook(["yes", "no", "none", "first", "b", "2.5"])
    return [*made, codes_in(named, labels).tolist(), unlabelled(labels).tolist()]


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
    are_large = any(abs(value) > 2**53 for value in whole)
    return are_large and array.dtype.kind in "fc"


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_row_that_changes_the_type_of_a_column_changes_no_other_row(
    column: str, container: str
) -> None:
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
        Column("a", "number", low=-1e9, high=1e9),
        Column("b", "category", ["1", "0", "7", "1.5", "2020-01-01", "m"]),
    ]
)


def _rows(folder: Path, cells: list[Any], labels: list[Any]) -> list[str]:
    """The training rows of a private NPZ file."""
    X = np.array([cells, cells]).T
    path = folder / "a.npz"
    np.savez(
        path, X=X, y=np.array(labels), id=np.array(cells), feature_names=["a", "b"]
    )
    reading = Reading(group="id", dialect=Dialect(gap_texts=GAP_TEXTS))
    rows = private_file(path, reading, LABEL_MAP)
    book = codebook(["yes", "no", "b", "2"])
    made = []
    for block in rows.blocks(2**14):
        X, y = block.read(slice(0, block.n))
        numbers, fits = encode_rows(SCHEMA, X, rows.gap_texts)
        codes = codes_in(book, y)
        made += [
            f"{row} {fit} {code}"
            for row, fit, code in zip(numbers.tolist(), fits, codes, strict=True)
        ]
    return made


_FILES = [values for values in COLUMNS.values() if np.array(values).dtype.kind != "O"]


@pytest.mark.parametrize("label", ["x", True, 2.5, 1])
def test_one_row_more_changes_no_other_row_of_a_private_array(
    label: Any, tmp_path: Path
) -> None:
    n_tried = 0
    for cells, odd in itertools.product(_FILES, ODD):
        for labels in ([True, False], [1, 0], ["True", "01"], [1.0, 2.0]):
            own_labels = list(itertools.islice(itertools.cycle(labels), len(cells)))
            try:
                more = np.array([*cells, odd])
                np.array([*own_labels, label])
            except (TypeError, ValueError, OverflowError):
                continue
            if more.dtype.kind in "Om" or _loses([*cells, odd], more):
                continue
            one = _rows(tmp_path, cells, own_labels)
            try:
                other = _rows(tmp_path, [*cells, odd], [*own_labels, label])
            except FlyNNError:
                raise AssertionError((cells, odd)) from None
            assert other[: len(cells)] == one, (cells, odd)
            n_tried += 1
    assert n_tried > 100
