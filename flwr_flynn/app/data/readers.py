"""Rows of a private party's file, CSV, Parquet or NPZ, each read by itself; open files are in `table_file`.

A file that no parser reads, or that lacks a column, is refused. No row decides about the file or about other rows,
since a private answer would show it: every line of a CSV file is a row by itself, numbers are float64, and rows with
errors stay, with NaN for a value that is no number; they are left out where they are counted (`federated.samples`). A
text of a Parquet file that cannot be decoded is a missing value.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.dialect import Dialect
from flwr_flynn.app.data.layout import Layout
from flwr_flynn.app.data.npz import npz_width, read_npz
from flwr_flynn.app.data.parquet import arrow_values, is_date, is_numeric, is_read, opened_parquet, parquet_columns
from flwr_flynn.app.data.values import Texts, number_of
from flwr_flynn.errors import DataError
from flwr_flynn.federated.samples import plain

Array = npt.NDArray[Any]
Features = tuple[str, ...]

ENDINGS = (".csv", ".parquet", ".npz")

CHUNK = 2**14  # rows of a CSV file that are texts at a time


class Rows(NamedTuple):
    """The rows of a file: float64 or narrower samples, labels as they stand, and columns that are left out."""

    X: Array
    y: Array
    left_out: Features


def ending(path: Path) -> str:
    """The ending of a file's name, one of `ENDINGS` if the file can be read."""
    return path.suffix.lower()


def read_rows(path: Path, label: str = "", features: Sequence[str] = (), *, raw: bool = False) -> Rows:
    """The rows of a file, each by itself: as numbers, or `raw`, as the texts or the objects of the file."""
    read = {".npz": _npz, ".csv": _csv}.get(ending(path), _parquet)
    rows = read(path, label or ("y" if read is _npz else "label"), tuple(features), raw)
    check_shapes(path.name, rows.X, rows.y)
    return rows


def check_shapes(name: str, X: Array, y: Array) -> None:
    """Refuse arrays that are not samples with a label each."""
    if X.ndim != 2 or y.ndim != 1:
        got = f"arrays of {X.ndim} and {y.ndim} dimension(s)"
        raise DataError(name, "a matrix of numbers with a label for each row", got)
    if len(X) != len(y):
        raise DataError(name, "a label for each row", "arrays of different lengths")
    if X.shape[1] == 0:
        raise DataError(name, "at least one feature", "none")


def read_width(path: Path, label: str = "", features: Sequence[str] = ()) -> int:
    """The number of features that `read_rows` would find, from the head of a file: no row is read."""
    if ending(path) == ".npz":
        return npz_width(path, label or "y", tuple(features))
    if ending(path) == ".csv":
        try:
            columns = next((fields for fields in _records(path) if fields != []), None) or []
        except OSError as error:
            raise _unreadable(path, error) from None
    else:
        with opened_parquet(path) as file:
            columns = parquet_columns(file.schema_arrow)
    return len(Layout.of(path.name, columns, label or "label", "", tuple(features)).order)


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(path.name, f"a readable {ending(path)} file", type(error).__name__)


# ---- columns


def parsed_numbers(texts: list[str]) -> Array:
    """Numbers of texts, float64, each by itself; NaN for words and gaps.

    >>> parsed_numbers(["1", "2"]), parsed_numbers(["0.5", "x", "NA", "TRUE"])
    (array([1., 2.]), array([0.5, nan, nan, 1. ]))
    """
    numbers = Texts(texts).numbers(Dialect())
    return np.array([number_of(text, ".")[0] for text in texts], np.float64) if numbers is None else numbers


def objects(values: Sequence[Any] | Array) -> Array:
    """Python's values in an array: in a text type of NumPy each value would be as wide as the longest."""
    found = np.empty(len(values), object)
    found[:] = values.tolist() if isinstance(values, np.ndarray) else values
    return found


# ---- CSV


def _csv(path: Path, label: str, features: Features, raw: bool) -> Rows:
    try:
        records = (fields for fields in _records(path) if fields != [])
        header = next(records, None) or []
        layout = Layout.of(path.name, header, label, "", features)
        assert layout.label is not None
        kind: Any = object if raw else np.float64
        parts: list[list[Array]] = [[np.zeros(0, kind)] for _ in layout.order]
        labels: list[str] = []
        while chunk := list(islice(records, CHUNK)):
            whole = [fields if fields and len(fields) == len(header) else [""] * len(header) for fields in chunk]
            labels += [fields[layout.label].strip() for fields in whole]
            for place, index in enumerate(layout.order):
                texts = [fields[index] for fields in whole]
                parts[place].append(objects(texts) if raw else parsed_numbers(texts))
    except OSError as error:
        raise _unreadable(path, error) from None
    X = np.empty((len(labels), len(parts)), kind)
    for place, part in enumerate(parts):
        X[:, place] = np.concatenate(part)
    return Rows(X, objects(labels), layout.left_out)


def _records(path: Path) -> Iterator[list[str] | None]:
    """The fields of every line, [] for a blank line and None for a line that cannot be read by itself."""
    with path.open("rb") as stream:
        head = stream.read(4)  # of the header
    if b"\0" in head or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(path.name, "text in UTF-8", "UTF-16 or UTF-32")
    with path.open("rb") as lines:
        for line in lines:
            try:
                yield next(csv.reader([line.decode("utf-8", "replace").removeprefix("\ufeff")]), [])
            except csv.Error:
                yield None


# ---- Parquet


def _parquet(path: Path, label: str, features: Features, raw: bool) -> Rows:
    """Rows of the wanted columns: the schema decides about columns, and a value about its own row."""
    with opened_parquet(path) as file:
        schema, n_rows = file.schema_arrow, file.metadata.num_rows
        columns = parquet_columns(schema)
        layout = Layout.of(path.name, columns, label, "", features)

        def column(index: int) -> Array | list[Any]:
            """The values of a column: an array of numbers without gaps, or a list with None for missing values."""
            name = columns[index]
            if not (is_read(schema.field(name).type) or (raw and is_date(schema.field(name).type))):
                return [None] * n_rows
            found = file.read(columns=[name], use_pandas_metadata=False).column(name)
            if len(found) != n_rows:  # in a damaged file
                raise DataError(path.name, f"{n_rows} values in column {name}, as the file says", len(found))
            if not found.null_count and is_numeric(found.type):
                numbers: Array = found.to_numpy()
                return numbers
            return [value for chunk in found.chunks for value in arrow_values(chunk)]

        X = np.empty((n_rows, len(layout.order)), object if raw else np.float64)
        for place, index in enumerate(layout.order):
            values = column(index)
            if raw:
                values = objects(values)
            elif isinstance(values, list):
                values = parsed_numbers(["" if value is None else str(value) for value in values])
            X[:, place] = values
        assert layout.label is not None
        y = objects(column(layout.label))
    return Rows(X, y, layout.left_out)


# ---- NPZ


def _npz(path: Path, label: str, features: Features, raw: bool) -> Rows:
    arrays = read_npz(path, label, "", features)
    assert arrays.y is not None
    # One value that is no real number decides the type of the array: `plain` reads each value by itself.
    return Rows(arrays.X if raw else plain(arrays.X), arrays.y, arrays.left_out)
