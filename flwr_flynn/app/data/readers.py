"""Rows of a party's file, CSV, Parquet or NPZ: one reader for open and for private parties.

A reader refuses a file that no parser reads, or that lacks a column. It marks rows with errors: an open party's file is
then refused whole (`datasets.checked`), a private party's samples are left out one by one where they are counted
(`federated.samples`).

With ``row_wise``, no row decides about the file or about other rows, since a private answer would show it: every line
of a CSV file is a row by itself, and numbers are float64. Without, columns keep the narrowest type that holds them, so
that integers are hashed exactly. A text of a Parquet file that cannot be decoded is a missing value.
"""

from __future__ import annotations

import codecs
import csv
import json
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._files import npy_header, npz_array
from flwr_flynn.app.data.schema import Layout, by_name
from flwr_flynn.errors import ConfigError, DataError, with_names
from flwr_flynn.federated.samples import plain

Array = npt.NDArray[Any]
Features = tuple[str, ...]

ENDINGS = (".csv", ".parquet", ".npz")

CHUNK = 2**14  # rows of a CSV file that are texts at a time

_TRUTHS = {"false": 0.0, "true": 1.0}
_GAPS = {"", "-", ".", "?", "#n/a", "<na>", "n/a", "na", "nan", "none", "null"}  # texts of missing values


@dataclass(frozen=True)
class Rows:
    """The rows of a file, with marks on rows with errors."""

    name: str
    X: Array
    y: Array
    feature_names: Features | None = None
    announced: bool = False  # True: the run announced the features
    groups: Array | None = None
    left_out: Features = ()
    words: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # number of texts in each column
    unlabelled: Array = field(default_factory=lambda: np.zeros(0, bool))
    broken: Array = field(default_factory=lambda: np.zeros(0, bool))  # rows with more or fewer fields than the header

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
        """(n,) mask of rows with a value that is missing, infinite or no number, or without a label."""
        bad = np.asarray(~np.isfinite(self.X).all(axis=1))
        for mask in (self.unlabelled, self.broken):
            if len(mask):
                bad |= mask
        return bad


def ending(path: Path) -> str:
    """The ending of a file's name, one of `ENDINGS` if the file can be read."""
    return path.suffix.lower()


def read_rows(
    path: Path, label: str = "", group: str = "", features: Sequence[str] = (), *, row_wise: bool = False
) -> Rows:
    """The rows of a file."""
    read = {".npz": _npz, ".csv": _csv}.get(ending(path), _parquet)
    return read(path, label or ("y" if read is _npz else "label"), group, tuple(features), row_wise)


def read_width(path: Path, label: str = "", features: Sequence[str] = ()) -> int:
    """The number of features that `read_rows` would find, from the head of a file: no row is read."""
    if ending(path) == ".npz":
        return _npz_width(path, label or "y", tuple(features))
    if ending(path) == ".csv":
        try:
            columns = next((fields for fields in _records(path, row_wise=True) if fields != []), None) or []
        except OSError as error:
            raise _unreadable(path, error) from None
    else:
        with _opened_parquet(path) as file:
            columns = _parquet_columns(file.schema_arrow)
    return len(Layout.of(path.name, columns, label or "label", "", tuple(features)).order)


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, DataError):
        return error
    if isinstance(error, UnicodeError) and ending(path) == ".csv":
        return DataError(path.name, "text in UTF-8", "another encoding, such as Latin-1 or Windows-1252")
    return DataError(path.name, f"a readable {ending(path)} file", type(error).__name__)


# ---- columns


def parsed_numbers(texts: list[str]) -> tuple[Array, int]:
    """Numbers of texts, in the narrowest type for all, NaN for words and gaps; and the number of words.

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


def _objects(values: Sequence[Any] | Array) -> Array:
    # Python's values: in a text type of NumPy each value is as wide as the longest.
    objects = np.empty(len(values), object)
    objects[:] = values.tolist() if isinstance(values, np.ndarray) else values
    return objects


def _matrix(columns: Iterable[Array], n_rows: int, n_columns: int, row_wise: bool) -> Array:
    """Columns side by side, in a type that holds all of them; in float64 without rows."""
    kind: Any = np.float64
    if not row_wise and n_rows and n_columns:
        columns = list(columns)
        kind = np.result_type(*{column.dtype for column in columns})
    X = np.empty((n_rows, n_columns), kind)
    for index, column in enumerate(columns):
        X[:, index] = column
    return X


# ---- CSV


def _csv(path: Path, label: str, group: str, features: Features, row_wise: bool) -> Rows:
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


# ---- Parquet


def _parquet(path: Path, label: str, group: str, features: Features, row_wise: bool) -> Rows:
    """Rows of the wanted columns: the schema decides about columns, and a value about its own row."""
    with _opened_parquet(path) as file:
        schema, n_rows = file.schema_arrow, file.metadata.num_rows
        columns = _parquet_columns(schema)
        layout = Layout.of(path.name, columns, label, group, features)

        def column(index: int) -> Array | list[Any]:
            """The values of a column: an array of numbers without gaps, or a list with None for missing values."""
            name = columns[index]
            if not _is_read(schema.field(name).type):
                return [None] * n_rows
            found = file.read(columns=[name], use_pandas_metadata=False).column(name)
            if len(found) != n_rows:  # in a damaged file
                raise DataError(path.name, f"{n_rows} values in column {name}, as the file says", len(found))
            if not found.null_count and _is_numeric(found.type):
                numbers: Array = found.to_numpy()
                return numbers
            return [value for chunk in found.chunks for value in _arrow_values(chunk)]

        parts, words = [], np.zeros(len(layout.order), np.int64)
        for place, index in enumerate(layout.order):
            values = column(index)
            if isinstance(values, list):
                values, words[place] = parsed_numbers(["" if value is None else str(value) for value in values])
                if not _is_read(schema.field(columns[index]).type):
                    words[place] = n_rows
            parts.append(values)
        labels = column(layout.label)
        groups = None if layout.group is None else _objects(column(layout.group))
    missing = np.array([value is None or value != value for value in labels], bool)
    y = labels if isinstance(labels, np.ndarray) and not row_wise else _objects(labels)
    X = _matrix(parts, n_rows, len(parts), row_wise)
    return Rows(path.name, X, y, layout.names, bool(features), groups, layout.left_out, words, missing)


@contextmanager
def _opened_parquet(path: Path) -> Iterator[Any]:
    """A Parquet file. Every failure in the block is a DataError without a folder."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(error.name or "pyarrow", "flwr-flynn[data]", "none; pip install 'flwr-flynn[data]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except Exception as error:  # noqa: BLE001 - Arrow and json raise a dozen kinds
        raise _unreadable(path, error) from None


def _parquet_columns(schema: Any) -> list[str]:
    """Names of the columns of an Arrow schema, without the row labels of pandas, which a note in the file names."""
    noted = json.loads((schema.metadata or {}).get(b"pandas", b'{"index_columns": []}'))
    row_labels = [name for name in noted["index_columns"] if isinstance(name, str)]
    return [str(name) for name in schema.names if name not in row_labels]


def _is_numeric(kind: Any) -> bool:
    types = import_module("pyarrow").types
    return any(is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_boolean))


def _is_read(kind: Any) -> bool:
    """True for the Arrow types of numbers, booleans and texts, and for dictionaries of these."""
    types = import_module("pyarrow").types
    if types.is_dictionary(kind):
        return _is_read(kind.value_type)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return _is_numeric(kind) or any(is_kind(kind) for is_kind in (types.is_decimal, *texts))


def _arrow_values(chunk: Any) -> list[Any]:
    """The values of an Arrow array, None for a value that is missing or cannot be decoded."""
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


# ---- NPZ: plain arrays, no pickles, and no more memory than the file can fill


def _npz(path: Path, label: str, group: str, features: Features, row_wise: bool) -> Rows:
    """Arrays ``X`` (n, d) and ``y`` (n,), and optionally ``feature_names`` (d,)."""
    with _opened_npz(path, ["X", label, *([group] if group else [])]) as (has_names, array, _):
        X, y, groups = array("X"), array(label), array(group) if group else None
        names = array("feature_names") if features and has_names else None
    if groups is not None and groups.shape != X.shape[:1]:
        raise DataError(f"{path.name} {group}", f"an array of shape {X.shape[:1]}", groups.shape)
    left_out: Features = ()
    if features and X.ndim == 2:
        order, left_out = _npz_order(path, X.shape[1], names, features)
        X = X[:, order]
    # One value that is no real number decides the type of the array: `plain` reads each value by itself.
    X = plain(X) if row_wise else X
    return Rows(path.name, X, y, features or None, bool(features), groups, left_out)


def _npz_width(path: Path, label: str, features: Features) -> int:
    with _opened_npz(path, ["X", label]) as (has_names, array, shape_of):
        shape = shape_of("X")
        names = array("feature_names") if features and has_names else None
    if len(shape) != 2:
        raise DataError(path.name, "a matrix of numbers with a label for each row", f"{len(shape)} dimension(s)")
    return len(_npz_order(path, shape[1], names, features)[0]) if features else shape[1]


@contextmanager
def _opened_npz(
    path: Path, wanted: Sequence[str]
) -> Iterator[tuple[bool, Callable[[str], Array], Callable[[str], tuple[int, ...]]]]:
    """True if an .npz file has names of features, and readers of an array and of a shape by name.

    The arrays wanted must be there. Every failure in the block is a DataError without a folder.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for key in wanted:
                if key not in members:
                    raise with_names(DataError(path.name, f"an array {key!r}", f"{len(members)} others"), members)

            def described(key: str) -> str:
                return f"{path.name}: not a readable array {members[key][:80]!r}"

            def array(key: str) -> Array:
                return _characters_checked(npz_array(archive, members[key], described(key), DataError), described(key))

            def shape_of(key: str) -> tuple[int, ...]:
                with archive.open(members[key]) as stream:
                    return npy_header(stream, described(key), DataError).shape

            yield "feature_names" in members, array, shape_of
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile, its decompressors and NumPy's parser raise a dozen kinds
        raise _unreadable(path, error) from None


def _characters_checked(array: Array, what: str) -> Array:
    """The array; refused if it has 32-bit values that are no characters, of which Python makes no string."""
    if array.dtype.kind == "U" and array.size:
        characters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(characters.max()) > sys.maxunicode:
            raise DataError(what, "texts of Unicode characters", "characters beyond")
    return array


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
