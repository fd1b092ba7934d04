"""Files as they stand, for open and for private parties.

They have columns and rows, and each column has a use in a run.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flwr_flynn._types import Array, Floats, Mask
from flwr_flynn.errors import DataError, FlyNNError, with_names
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.raw_column import Raw, RawColumn, is_gap_text, plain_numbers
from flwr_flynn.tables.row_wise import real_of
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import is_gap, level_of, places
from flwr_flynn.tables.texts import GAP_TEXTS, as_name, gaps_with

Cells = Sequence[Any] | Array
"""Values as a file has them: of a column, of a row, or of each column."""

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "pipes"}

ENDINGS = (".csv", ".parquet", ".npz")

MOST_ROWS = 2**14
"""Rows of a file that are read at a time, at most."""


def ending(path: Path) -> str:
    """The ending of a file's name, one of `ENDINGS` if the file can be read."""
    return path.suffix.lower()


@contextmanager
def decoding(path: Path, encoding: str = "") -> Iterator[None]:
    """Make every failure of a parser in the block a `DataError`.

    Its text has no folder and no value of the file.
    """
    try:
        yield
    except (FlyNNError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001
        # Arrow, json, zipfile and NumPy's parser raise a dozen kinds.
        if isinstance(error, csv.Error):
            got = str(error)[:80]
        else:
            got = type(error).__name__
        refusal = DataError(path.name, f"a readable {ending(path)} file", got)
        if encoding and isinstance(error, UnicodeError):
            expected = f"text in {encoding.upper()}"
            refusal = DataError(path.name, expected, "another encoding")
        raise refusal from None


def objects(values: Cells) -> Array:
    """Python's values in an array.

    In a text type of NumPy each value would be as wide as the longest.
    """
    array = np.empty(len(values), object)
    array[:] = in_list(values)
    return array


def in_list(values: Cells) -> Cells:
    """Python's values of a column."""
    if isinstance(values, np.ndarray):
        return values.tolist()  # type: ignore[no-any-return]
    return values


@dataclass(frozen=True)
class Dialect:
    """Form of the texts of a file.

    Parameters
    ----------
    separator, decimal, encoding, date_format : str
        "" is detected: the first three from the head of the file, the last by the
        values of each column.
    gap_texts : sequence of str
        Texts of missing values beside `GAP_TEXTS`.
    """

    separator: str = ""
    decimal: str = ""
    encoding: str = ""
    gap_texts: Sequence[str] = ()
    date_format: str = ""

    def __str__(self) -> str:
        mark = "decimal point"
        if self.decimal == ",":
            mark = "decimal comma"
        return f"{self.encoding.upper()}, {SEPARATORS[self.separator]}, {mark}"


Wanted = Sequence[str] | Schema
"""Features of a run, by their names alone or with their kinds."""


class FileColumns(NamedTuple):
    """The columns of a table by their use."""

    label: int | None
    group: int | None
    order: list[int]
    names: tuple[str, ...]
    left_out: tuple[str, ...]


Features = tuple[str, ...]


class Part(NamedTuple):
    """Some rows that nobody has looked at.

    `cells` gives the values of each column in a slice of them.
    """

    n: int
    cells: Callable[[slice], Cells]
    n_broken: int = 0  # rows with more or fewer fields than the header, left out


class Source(ABC):
    """A file as it stands, for open and for private parties.

    Attributes
    ----------
    columns : sequence of str
        Names of the columns, () without names.
    kinds : sequence of str or None
        Kind of each column by the types of the file; None in a file of texts alone.
    keys : sequence of int
        Columns that stand in keys of rows, see `row_keys`.
    key_names : sequence of str or None
        The keys are joined in the order of these names; None for the columns' own.
    """

    name: str
    columns: Features
    kinds: Sequence[str | None]
    keys: Sequence[int]
    key_names: Sequence[str] | None
    dialect: Dialect | None = None  # of a CSV file

    def layout(self, reading: Reading) -> FileColumns:
        """The columns by their use."""
        return reading.layout(self.name, self.columns)

    @abstractmethod
    def parts(
        self, n_rows: int, wanted: Collection[int] | None = None
    ) -> Iterator[Part]:
        """All rows, at most so many at a time.

        Columns that are not wanted need not have values.
        """

    def raw(self, index: int, values: Any) -> Raw:
        """The values of a column, for a feature of an open file."""
        raw: Raw = values
        return raw

    def labels(self, values: Any) -> Array:
        """The values of a column of labels or ids."""
        return objects([text and text.strip() for text in values])

    def cells(self, indices: Sequence[int]) -> Iterator[Sequence[Any]]:
        """The values of some columns, row by row, as they stand."""
        for part in self.parts(MOST_ROWS, indices):
            cells = part.cells(slice(None))
            columns = [in_list(cells[index]) for index in indices]
            yield from zip(*columns, strict=True)


def mapped(labels: Array, book: Mapping[str, str]) -> Array:
    """The labels, some of them by other names."""
    if not book:
        return labels
    return objects([_renamed(label, book) for label in labels.tolist()])


def _renamed(label: object, book: Mapping[str, str]) -> object:
    text = str(label).strip()
    if text in book:
        return book[text]
    return book.get(level_of(label) or "", label)


def unlabelled(labels: Array) -> Mask:
    """Mask of the labels that are missing."""
    return np.array([_is_no_label(label) for label in labels.tolist()], np.bool_)


def _is_no_label(label: object) -> bool:
    if isinstance(label, str):
        return label.strip().lower() in _NO_LABELS
    return is_gap(label)


_NO_LABELS = frozenset({"", "na", "n/a", "#n/a", "nan", "<na>", "null"})
"""Texts of missing labels, in lower case; "none" and "-" may be classes."""


@dataclass(frozen=True)
class Reading:
    """Labels, features and dialect of a file to read, and its rows to hold out.

    Parameters
    ----------
    label : str or None, default=""
        Column of the labels, "" for `label` (`y` of an NPZ file); None if there are
        none to read.
    group : str
        A column of ids, which is no feature.
    features : sequence of str or Schema
        The columns to read, in this order; () for all, or those of `schema`.
    dialect : Dialect
        What is known of a CSV file; the rest is detected.
    schema : Schema, optional
        Its kinds are those of the columns: levels such as 01 stay texts.
    held_out : HeldOut, optional
        The rule by which rows are held out: by `group`, if it is given.
    ignore : sequence of str
        Columns that are no features.
    """

    label: str | None = ""
    group: str = ""
    features: Wanted = ()
    dialect: Dialect = field(default_factory=Dialect)
    schema: Schema | None = None
    held_out: HeldOut | None = None
    ignore: Sequence[str] = ()

    def layout(self, name: str, columns: Sequence[str]) -> FileColumns:
        """The layout of a file's columns.

        The features are those asked for, or every column but label, group and ignored
        ones. A column without a name is none.
        """
        at = _indices_by_name(name, columns)
        named = [*at]

        def indices_of(names: Sequence[str], expected: str) -> list[int]:
            return [at[named[index]] for index in places(name, named, names, expected)]

        def index_of(column: str | None) -> int | None:
            if not column:
                return None
            return indices_of([column], f"a column {column!r}")[0]

        label = index_of(self.label)
        group = index_of(self.group)
        # A column to ignore that is not there may be misspelt, and would be used under
        # its own name.
        ignored = indices_of(self.ignore, "the columns to ignore")
        unused = {label, group, *ignored}
        rest = [column for column, index in at.items() if index not in unused]
        if not rest:
            raise DataError(name, "at least one feature", "none")
        names, indices = self._features_in(name, rest)
        features = {
            rest[index]: feature
            for index, feature in zip(indices, names, strict=True)
            if index is not None
        }
        order = [at[column] for column in features]
        left_out = tuple(column for column in rest if column not in features)
        return FileColumns(label, group, order, tuple(features.values()), left_out)

    def _features_in(
        self, name: str, columns: list[str]
    ) -> tuple[Sequence[str], Sequence[int | None]]:
        """Names of the features, and the index of each among the columns."""
        if isinstance(self.features, Schema):
            return self.features.names, self.features.found(columns)
        names = [*map(as_name, self.features or columns)]
        n_same = len(names) - len({*names})
        if n_same:
            got = f"{n_same} of the run's again"
            raise DataError(name, "features of different names", got)
        expected = f"each of the run's {len(names)} features"
        return names, places(name, columns, names, expected, announced=True)

    def columns(
        self, names: Sequence[str], kinds: Sequence[str | None]
    ) -> list[RawColumn]:
        """The features of a file, with what is known of them beforehand."""
        columns: dict[str, Column] = {}
        if self.schema is not None:
            own_names = names
            if self.schema.is_named:
                own_names = self.schema.names
            columns = dict(zip(own_names, self.schema.columns, strict=False))
        pairs = zip(map(columns.get, names), kinds, strict=True)
        return [self._raw_column(column, kind) for column, kind in pairs]

    def _raw_column(self, column: Column | None, kind: str | None) -> RawColumn:
        """A column by its entry in the schema, and by its kind in the file."""
        dialect = self.dialect
        gap_texts = [*dialect.gap_texts]
        wanted = None
        if kind == "levels":
            kind = "category"
            wanted = "category"
        if column is not None:
            gap_texts += column.gap_texts
            wanted = column.kind
        gaps = gaps_with(gap_texts)
        return RawColumn(kind, wanted, dialect.decimal, dialect.date_format, gaps)


def _indices_by_name(name: str, columns: Sequence[str]) -> dict[str, int]:
    """Index of each column of a file by its name; equal names are refused."""
    columns = [*map(as_name, columns)]
    indices = {column: index for index, column in enumerate(columns) if column}
    if not indices:
        raise DataError(name, "a first line with the names of the columns", "none")
    numbers = Counter(filter(None, columns))
    again = [column for column, n in numbers.items() if n > 1]
    if again:
        got = f"{len(again)} names that stand more than once"
        raise with_names(DataError(name, "columns of different names", got), again)
    return indices


def keys_of(source: Source, cells: Cells, group: int | None) -> list[bytes]:
    """Keys of rows, by which they are held out.

    They follow from the column of ids, and without one from all cells.
    """
    ids = None
    if group is not None:
        ids = cells[group]
    return row_keys([cells[index] for index in source.keys], ids, source.key_names)


ALL = Reading()


# ---- rows that are held out

# By what stands in the row, or by a column of ids that the site names: no request, no
# order of columns or rows, and no other row has a part in it. A row of a file is held
# out for ever or never. With a column of ids, such as patients, rows of one id stay
# together, and a corrected cell moves none.

_GAP = struct.pack("<d", np.nan)


@dataclass(frozen=True)
class HeldOut:
    """The rule of a party.

    Parameters
    ----------
    fraction : float
        Expected share of the rows that are held out.
    secret : bytes
        At most 64; who knows it and a row knows if the row is held out.
    """

    fraction: float
    secret: bytes

    def mask(self, keys: Iterable[bytes]) -> Mask:
        """(n,) mask of the rows that are held out, by the key of each."""
        most = self.fraction * 2.0**64
        digests = (
            hashlib.blake2b(key, digest_size=8, key=self.secret).digest()
            for key in keys
        )
        return np.fromiter(
            (int.from_bytes(digest, "big") < most for digest in digests), np.bool_
        )


def row_keys(
    columns: Cells, ids: Cells | None = None, names: Sequence[str] | None = None
) -> list[bytes]:
    """Keys of rows, by their ids.

    Without ids, or where an id is missing, a key is of all cells in the order of the
    names. Columns are arrays or lists. A number is the same in whatever form it comes.
    """
    if ids is not None:
        keys = id_keys(ids)
        if _GAP not in keys:
            return keys
        rows = row_keys(columns, None, names)
        return [rows[index] if key == _GAP else key for index, key in enumerate(keys)]
    if names is not None:
        order = sorted(range(len(columns)), key=names.__getitem__)
        columns = [columns[index] for index in order]
    floats = [_floats(column) for column in columns]
    numbers = [column for column in floats if column is not None]
    if numbers and len(numbers) == len(floats):
        return _bytes(np.stack(numbers, axis=1))
    return [*map(b"".join, zip(*map(_cells, columns), strict=True))]


def id_keys(ids: Cells) -> list[bytes]:
    """The key of each id: that of a cell, or the digits of a very long integer."""
    keys = _cells(ids)
    for index, cell in enumerate(in_list(ids)):
        if isinstance(cell, bytes):
            text = cell.decode("utf-8", "replace").strip()
        else:
            text = str(cell).strip()
        if _is_long(text):
            keys[index] = f"{text}\x1f".encode()
    return keys


def _is_long(text: str) -> bool:
    """True for an integer of which float64 does not keep all digits."""
    return bool(re.fullmatch(r"[+-]?\d{16,}", text)) and (
        len(text) > 17 or abs(int(text)) > 2**53
    )


def _floats(column: Cells) -> Floats | None:
    """The numbers of a column, with one NaN and no -0.0; None where it has others."""
    if isinstance(column, np.ndarray):
        numbers: Array | None = column
    else:
        numbers = plain_numbers(column, GAP_TEXTS)
    if numbers is None or numbers.dtype.kind not in "biufmM":
        return None
    if numbers.dtype.kind in "mM":
        numbers = numbers.astype(np.int64)
    return np.asarray(np.where(np.isnan(numbers), np.nan, numbers).astype("<f8") + 0.0)


def _bytes(rows: Floats) -> list[bytes]:
    """The bytes of each row."""
    return rows.view(f"V{8 * rows.shape[1]}")[:, 0].tolist()  # type: ignore[no-any-return]


def _cells(column: Cells) -> list[bytes]:
    """A key for each value: 8 bytes of a number or a gap, the text of anything else."""
    floats = _floats(column)
    if floats is not None:
        return _bytes(floats[:, None])
    values = in_list(column)
    known = {value: _cell(value) for value in {*values}}
    return [known[value] for value in values]


def _cell(value: object) -> bytes:
    """The key of one value, the same as among others."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None or (isinstance(value, str) and is_gap_text(value, GAP_TEXTS)):
        return _GAP
    number: Any = real_of(value)
    if isinstance(number, Real) or (isinstance(number, str) and "_" not in number):
        with suppress(ValueError, OverflowError):
            real = float(number)
            if math.isnan(real):
                return _GAP
            return struct.pack("<d", real + 0.0)
    return f"{str(value).strip()}\x1f".encode("utf-8", "surrogatepass")
