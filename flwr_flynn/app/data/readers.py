"""Rows of a party's file, CSV, Parquet or NPZ: one reader for open and for private parties.

A reader refuses a file that no parser reads, or in which a column is not there. It marks the rows with something wrong:
an open party's file is then refused whole (`datasets.checked`), a private party's samples are left out one by one where
they are counted (`federated.samples`).

With ``row_wise``, no row decides about the file or about others, since a private answer would tell: every line of a CSV
file is a row by itself, a value of a Parquet file that cannot be decoded is missing, and numbers are float64. Without,
columns keep the narrowest type that holds them, so that integers are hashed exactly.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.npz_file import read_arrays, read_head
from flwr_flynn.app.data.schema import Layout, by_name
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.samples import plain

Array = npt.NDArray[Any]

ENDINGS = (".csv", ".parquet", ".npz")

CHUNK = 2**14  # rows of a CSV file that are texts at a time

_TRUTHS = {"false": 0.0, "true": 1.0}
_GAPS = {"", "-", ".", "?", "#n/a", "<na>", "n/a", "na", "nan", "none", "null"}  # texts of a value that is missing


@dataclass(frozen=True)
class Rows:
    """The rows of a file, with marks on those that are wrong."""

    name: str
    X: Array
    y: Array
    feature_names: tuple[str, ...] | None = None
    announced: bool = False
    groups: Array | None = None
    left_out: tuple[str, ...] = ()
    words: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    unlabelled: Array = field(default_factory=lambda: np.zeros(0, bool))
    broken: Array = field(default_factory=lambda: np.zeros(0, bool))

    def __post_init__(self) -> None:
        if self.X.ndim != 2 or self.y.ndim != 1:
            got = f"arrays of {self.X.ndim} and {self.y.ndim} dimension(s)"
            raise DataError(self.name, "a matrix of numbers with a label for each row", got)
        if len(self.X) != len(self.y):
            raise DataError(self.name, "a label for each row", "arrays of different lengths")
        if self.X.shape[1] == 0:
            raise DataError(self.name, "at least one feature", "none")

    @property
    def bad(self) -> npt.NDArray[np.bool_]:
        """(n,) mask of the rows of a table with a value that is missing, infinite or no number, or without a label."""
        bad = np.asarray(~np.isfinite(self.X).all(axis=1))
        for mask in (self.unlabelled, self.broken):
            if len(mask):
                bad |= mask
        return bad


def ending(path: Path) -> str:
    """The ending of a file's name, one of `ENDINGS` where the file can be read."""
    return path.suffix.lower()


def read_rows(
    path: Path, label: str = "", group: str = "", features: Sequence[str] = (), *, row_wise: bool = False
) -> Rows:
    """The rows of a file."""
    if ending(path) == ".npz":
        return _npz(path, label or "y", group, tuple(features), row_wise)
    if ending(path) == ".csv":
        return _csv(path, label or "label", group, tuple(features), row_wise)
    read = _parquet_row_wise if row_wise else _parquet
    return read(path, label or "label", group, tuple(features))


def read_width(path: Path, label: str = "", features: Sequence[str] = ()) -> int:
    """The number of features that `read_rows` would find, from the head of a file: no row is looked at."""
    if ending(path) == ".npz":
        shape, names = read_head(path, {"samples": "X", "label": label or "y"}, "feature_names" if features else None)
        if len(shape) != 2:
            raise DataError(path.name, "a matrix of numbers with a label for each row", f"{len(shape)} dimension(s)")
        return len(_npz_order(path, shape[1], names, features)[0]) if features else shape[1]
    if ending(path) == ".csv":
        try:
            columns = next((fields for fields in _records(path, row_wise=True) if fields != []), None) or []
        except OSError as error:
            raise _unreadable(path, error) from None
    else:
        _, parquet = _parquet_packages(path)
        try:
            with parquet.ParquetFile(path) as file:
                columns = _parquet_columns(file.schema_arrow)
        except Exception as error:  # noqa: BLE001 - Arrow and json raise a dozen kinds
            raise _unreadable(path, error) from None
    return len(Layout.of(path.name, columns, label or "label", "", tuple(features)).order)


def _csv(path: Path, label: str, group: str, features: tuple[str, ...], row_wise: bool) -> Rows:
    try:
        records = (fields for fields in _records(path, row_wise) if fields != [])
        header = next(records, None) or []
        layout = Layout.of(path.name, header, label, group, features)
        parts: list[list[Array]] = [[np.zeros(0, bool)] for _ in layout.order]
        words, broken = np.zeros(len(layout.order), np.int64), []
        labels: list[str] = []
        groups: list[str] = []
        while chunk := list(islice(records, CHUNK)):
            broken += [fields is None or len(fields) != len(header) for fields in chunk]
            whole = [fields if fields and len(fields) == len(header) else [""] * len(header) for fields in chunk]
            labels += [fields[layout.label] for fields in whole]
            groups += [] if layout.group is None else [fields[layout.group] for fields in whole]
            for place, index in enumerate(layout.order):
                values, n_words = parsed_numbers([fields[index] for fields in whole])
                parts[place].append(values)
                words[place] += n_words
    except (OSError, UnicodeError, csv.Error) as error:
        raise _unreadable(path, error) from None
    y = _objects(labels)
    return Rows(
        path.name,
        _matrix((np.concatenate(part) for part in parts), len(y), len(parts), row_wise),
        y,
        layout.names,
        bool(features),
        None if layout.group is None else _objects(groups),
        layout.left_out,
        words,
        y == "",
        np.array(broken, bool),
    )


def _records(path: Path, row_wise: bool) -> Iterator[list[str] | None]:
    """The fields of every row, [] for a blank line and None for a line that cannot be read by itself."""
    with path.open("rb") as stream:
        head = stream.read(4)  # of the header
    if b"\0" in head or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(path.name, "text in UTF-8", "UTF-16 or UTF-32")
    if not row_wise:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            yield from csv.reader(stream)
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                yield next(csv.reader([line.decode("utf-8", "replace").removeprefix("\ufeff")]), [])
            except csv.Error:
                yield None


def parsed_numbers(texts: list[str]) -> tuple[Array, int]:
    """Numbers that texts spell, in the narrowest type for all, NaN for words and gaps; and the number of words.

    >>> parsed_numbers(["1", "2"]), parsed_numbers(["0.5", "x", "NA", "TRUE"])
    ((array([1, 2]), 0), (array([0.5, nan, nan, 1. ]), 1))
    """
    values = np.array(texts, dtype=object)
    if "_" not in "".join(texts):  # which Python allows between digits
        for kind in (np.int64, np.float64):
            try:
                return values.astype(kind), 0
            except (ValueError, OverflowError):
                continue
    numbers = np.fromiter(map(_number, texts), np.float64, len(texts))
    if all(text.lower() in _TRUTHS for text in texts):
        return numbers.astype(bool), 0
    return numbers, sum(texts[i].strip().lower() not in _GAPS for i in np.flatnonzero(np.isnan(numbers)))


def _number(text: str) -> float:
    try:
        return _TRUTHS[text.lower()] if text.lower() in _TRUTHS else np.nan if "_" in text else float(text)
    except ValueError:
        return np.nan


def _objects(values: list[Any]) -> Array:
    # Values as Python has them: in a type of NumPy's one long text would be the width of all.
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects


def _matrix(columns: Iterable[Array], n_rows: int, n_columns: int, row_wise: bool) -> Array:
    """Columns side by side, in a type that holds all of them; in float64 where there are no rows to tell a type."""
    kind: Any = np.float64
    if not row_wise and n_rows and n_columns:
        columns = list(columns)
        kind = np.result_type(*{column.dtype for column in columns})
    X = np.empty((n_rows, n_columns), kind)
    for index, column in enumerate(columns):
        X[:, index] = column
    return X


def _parquet_row_wise(path: Path, label: str, group: str, features: tuple[str, ...]) -> Rows:
    """Rows of the wanted columns alone: the schema decides about columns, and a value about its own row."""
    _, parquet = _parquet_packages(path)
    try:
        with parquet.ParquetFile(path) as file:
            schema, n_rows = file.schema_arrow, file.metadata.num_rows
            columns = _parquet_columns(schema)
            layout = Layout.of(path.name, columns, label, group, features)

            def values(index: int) -> list[Any]:
                name = columns[index]
                if not _is_read(schema.field(name).type):
                    return [None] * n_rows
                table = file.read(columns=[name], use_pandas_metadata=False)
                return [value for chunk in table.column(name).chunks for value in _arrow_values(chunk)]

            X, words = np.empty((n_rows, len(layout.order))), np.zeros(len(layout.order), np.int64)
            for place, index in enumerate(layout.order):
                found = values(index)
                X[:, place] = [np.nan if value is None else _number(str(value)) for value in found]
                words[place] = sum(value is not None for value in found) - (~np.isnan(X[:, place])).sum()
            labels = values(layout.label)
            groups = None if layout.group is None else _objects(values(layout.group))
    except Exception as error:  # noqa: BLE001 - Arrow and json raise a dozen kinds
        raise _unreadable(path, error) from None
    missing = np.array([value is None or value != value for value in labels], bool)
    return Rows(path.name, X, _objects(labels), layout.names, bool(features), groups, layout.left_out, words, missing)


def _is_read(kind: Any) -> bool:
    """True for the Arrow types of numbers, truths and texts, and for dictionaries of these."""
    types = import_module("pyarrow").types
    if types.is_dictionary(kind):
        return _is_read(kind.value_type)
    takes = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_string)
    return any(takes(kind) for takes in (*takes, types.is_large_string, types.is_binary, types.is_large_binary))


def _arrow_values(chunk: Any) -> list[Any]:
    """The values of an Arrow array, None where one is missing or cannot be decoded."""
    arrow = import_module("pyarrow")
    if arrow.types.is_dictionary(chunk.type):
        known = _arrow_values(chunk.dictionary)
        places = chunk.indices.to_pylist()
        return [None if place is None or not 0 <= place < len(known) else known[place] for place in places]
    if arrow.types.is_string(chunk.type):
        chunk = chunk.cast(arrow.binary())  # not validated
    elif arrow.types.is_large_string(chunk.type):
        chunk = chunk.cast(arrow.large_binary())
    return [_decoded(value) if isinstance(value, bytes) else value for value in chunk.to_pylist()]


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _parquet(path: Path, label: str, group: str, features: tuple[str, ...]) -> Rows:
    pandas, frame = _parquet_frame(path)
    layout = Layout.of(path.name, [str(column) for column in frame.columns], label, group, features)
    words = np.zeros(len(layout.order), np.int64)
    columns = []
    for place, index in enumerate(layout.order):
        column = frame.iloc[:, index]
        if pandas.api.types.is_numeric_dtype(column.dtype):
            columns.append(column.to_numpy())
        else:
            texts = ["" if missing else str(value) for value, missing in zip(column, column.isna(), strict=True)]
            values, words[place] = parsed_numbers(texts)
            columns.append(values)
    labels = frame.iloc[:, layout.label]
    return Rows(
        path.name,
        _matrix(columns, len(frame), len(columns), False),
        labels.to_numpy(),
        layout.names,
        bool(features),
        None if layout.group is None else frame.iloc[:, layout.group].to_numpy(),
        layout.left_out,
        words,
        labels.isna().to_numpy(),
    )


def _parquet_frame(path: Path) -> tuple[Any, Any]:
    """pandas, and a data frame of a Parquet file's columns in Arrow's types.

    The notes of pandas in the file (types and row labels) may have been altered, and pandas believes them. Only the
    names of the columns that are row labels are taken from them, and these columns are left out.
    """
    pandas, parquet = _parquet_packages(path)
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)  # texts that are none would be found later, by whoever looks at them
        columns = _parquet_columns(table.schema)
        kept = [i for i, name in enumerate(table.column_names) if name in columns]
        # Without the option, one integer that is missing makes floats of a column, and other integers of large ones.
        frame = table.select(kept).replace_schema_metadata(None).to_pandas(integer_object_nulls=True)
        return pandas, frame
    except Exception as error:  # noqa: BLE001 - Arrow and json raise a dozen kinds
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, DataError):
        return error
    if isinstance(error, UnicodeError) and ending(path) == ".csv":
        return DataError(path.name, "text in UTF-8", "another encoding, such as Latin-1 or Windows-1252")
    return DataError(path.name, f"a readable {ending(path)} file", type(error).__name__)


def _parquet_packages(path: Path) -> tuple[Any, Any]:
    try:
        return import_module("pandas"), import_module("pyarrow.parquet")
    except ImportError as error:
        needed = error.name or "pandas and pyarrow"
        raise ConfigError(needed, "flwr-flynn[data]", "none; pip install 'flwr-flynn[data]'") from None


def _parquet_columns(schema: Any) -> list[str]:
    """Names of the columns of an Arrow schema that are not row labels by the notes of pandas."""
    noted = json.loads((schema.metadata or {}).get(b"pandas", b'{"index_columns": []}'))
    row_labels = [name for name in noted["index_columns"] if isinstance(name, str)]
    return [str(name) for name in schema.names if name not in row_labels]


def _npz(path: Path, label: str, group: str, features: tuple[str, ...], row_wise: bool) -> Rows:
    """Arrays ``X`` (n, d) and ``y`` (n,), and maybe ``feature_names`` (d,)."""
    wanted = {"samples": "X", "label": label} | ({"partition-by": group} if group else {})
    arrays = read_arrays(path, wanted, {"names": "feature_names"} if features else {})
    X, groups = arrays["samples"], arrays.get("partition-by")
    if groups is not None and groups.shape != X.shape[:1]:
        raise DataError(f"{path.name} {group}", f"an array of shape {X.shape[:1]}", groups.shape)
    left_out: tuple[str, ...] = ()
    if features and X.ndim == 2:
        order, left_out = _npz_order(path, X.shape[1], arrays.get("names"), features)
        X = X[:, order]
    # One value that is no real number decides the type of the array: `plain` reads each by itself.
    X = plain(X) if row_wise else X
    return Rows(path.name, X, arrays["label"], features or None, bool(features), groups, left_out)


def _npz_order(
    path: Path, n_columns: int, names: Array | None, features: Sequence[str]
) -> tuple[list[int], tuple[str, ...]]:
    """The indices of the features among the columns of ``X``, and the names of the other columns.

    Without names in the file, its columns are taken for the features as they stand.
    """
    if names is None:
        if n_columns != len(features):
            expected = f"the run's {len(features)} features or an array 'feature_names'"
            raise DataError(path.name, expected, f"{n_columns} columns without names")
        return list(range(n_columns)), ()
    if names.dtype.kind != "U" or names.shape != (n_columns,):
        got = f"type {names.dtype.kind!r} of shape {names.shape}"
        raise DataError(path.name, f"'feature_names' to be {n_columns} strings", got)
    return by_name(names.tolist(), features, path.name)
