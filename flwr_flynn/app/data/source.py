"""Files as they stand, for open and for private parties: columns, rows, and the part that each column has in a run."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.held_out import HeldOut, row_keys
from flwr_flynn.errors import DataError, FlyNNError, with_names
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.raw_column import Raw, RawColumn
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import is_gap, level_of, places
from flwr_flynn.tables.texts import as_name, gaps_with

Array = npt.NDArray[Any]

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "pipes"}

ENDINGS = (".csv", ".parquet", ".npz")

MOST_ROWS = 2**14
"""Rows of a file that are read at a time, at most."""


def ending(path: Path) -> str:
    """The ending of a file's name, one of `ENDINGS` if the file can be read."""
    return path.suffix.lower()


@contextmanager
def decoding(path: Path, encoding: str = "") -> Iterator[None]:
    """Every failure of a parser in the block is a DataError without a folder and without a value."""
    try:
        yield
    except (FlyNNError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - Arrow, json, zipfile and NumPy's parser raise a dozen kinds
        got = str(error)[:80] if isinstance(error, csv.Error) else type(error).__name__
        readable = DataError(path.name, f"a readable {ending(path)} file", got)
        other = DataError(path.name, f"text in {encoding.upper()}", "another encoding")
        raise (other if encoding and isinstance(error, UnicodeError) else readable) from None


def objects(values: Sequence[Any] | Array) -> Array:
    """Python's values in an array: in a text type of NumPy each value would be as wide as the longest."""
    found = np.empty(len(values), object)
    found[:] = values.tolist() if isinstance(values, np.ndarray) else values
    return found


@dataclass(frozen=True)
class Dialect:
    """Form of the texts of a file.

    Parameters
    ----------
    separator, decimal, encoding, date_format : str
        "" is detected: the first three from the head of the file, the last by the values of each column.
    gap_texts : sequence of str
        Texts of missing values beside `GAP_TEXTS`.
    """

    separator: str = ""
    decimal: str = ""
    encoding: str = ""
    gap_texts: Sequence[str] = ()
    date_format: str = ""

    def __str__(self) -> str:
        mark = "decimal comma" if self.decimal == "," else "decimal point"
        return f"{self.encoding.upper()}, {SEPARATORS[self.separator]}, {mark}"


Wanted = Sequence[str] | Schema
"""Features of a run, by their names alone or with their kinds."""


class Layout(NamedTuple):
    """The columns of a table by their use."""

    label: int | None
    group: int | None
    order: list[int]
    names: tuple[str, ...]
    left_out: tuple[str, ...]


Features = tuple[str, ...]


class Part(NamedTuple):
    """Some rows that nobody has looked at; `cells` gives the values of all columns in a slice of them."""

    n: int
    cells: Callable[[slice], Sequence[Any]]
    n_broken: int = 0  # rows with more or fewer fields than the header, which are left out


class Source(ABC):
    """A file as it stands, for open and for private parties: the names of its columns, and its rows.

    Attributes
    ----------
    columns : sequence of str
        Names of the columns, () without names.
    kinds : sequence of str or None
        Kind of each column by the types of the file; None in a file of texts alone.
    keys : sequence of int
        Columns that stand in keys of rows, see `held_out`, and `key_names` in whose order; None for their own.
    """

    name: str
    columns: Features
    kinds: Sequence[str | None]
    keys: Sequence[int]
    key_names: Sequence[str] | None
    dialect: Dialect | None = None  # of a CSV file

    def layout(self, reading: Reading) -> Layout:
        """The columns by their use."""
        return reading.layout(self.name, self.columns)

    @abstractmethod
    def parts(self, n_rows: int, wanted: Collection[int] | None = None) -> Iterator[Part]:
        """All rows, at most so many at a time; of other columns than those wanted there need not be values."""

    def raw(self, index: int, values: Any) -> Raw:
        """The values of a column, for a feature of an open file."""
        return values  # type: ignore[no-any-return]

    def labels(self, values: Any) -> Array:
        """The values of a column of labels or ids."""
        return objects([text and text.strip() for text in values])

    def cells(self, indices: Sequence[int]) -> Iterator[Sequence[Any]]:
        """The values of some columns, row by row, as they stand."""
        for part in self.parts(MOST_ROWS, indices):
            cells = part.cells(slice(None))
            chosen = [cells[index] for index in indices]
            yield from zip(*(each.tolist() if isinstance(each, np.ndarray) else each for each in chosen), strict=True)


def mapped(labels: Array, book: Mapping[str, str]) -> Array:
    """The labels, some of them by other names."""
    if not book:
        return labels
    return objects([book.get(str(label).strip(), book.get(level_of(label) or "", label)) for label in labels.tolist()])


def unlabelled(labels: Array) -> npt.NDArray[np.bool_]:
    """Mask of the labels that are missing."""
    pairs = ((each, isinstance(each, str)) for each in labels.tolist())
    return np.array([each.strip().lower() in _NO_LABELS if text else is_gap(each) for each, text in pairs], np.bool_)


_NO_LABELS = frozenset({"", "na", "n/a", "#n/a", "nan", "<na>", "null"})  # "none" and "-" may be classes


@dataclass(frozen=True)
class Reading:
    """Labels, features and dialect of a file to read, and its rows to hold out.

    Parameters
    ----------
    label : str or None, default=""
        Column of the labels, "" for `label` (`y` of an NPZ file); None if there are none to read.
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

    def layout(self, name: str, columns: Sequence[str]) -> Layout:
        """The layout of a file's columns: the features asked for, or every column but label, group and ignored ones.

        A column without a name is none.
        """
        columns = [*map(as_name, columns)]
        at = {column: index for index, column in enumerate(columns) if column}
        if not at:
            raise DataError(name, "a first line with the names of the columns", "none")
        if again := [column for column, n in Counter(filter(None, columns)).items() if n > 1]:
            error = DataError(name, "columns of different names", f"{len(again)} names that stand more than once")
            raise with_names(error, again)

        named = [*at]

        def chosen(wanted: Sequence[str], expected: str) -> list[int]:
            return [at[named[index]] for index in places(name, named, wanted, expected)]

        wanted = (self.label, self.group)
        label_at, group_at = (chosen([each], f"a column {each!r}")[0] if each else None for each in wanted)
        # A column to ignore that is not there may be misspelt, and would be used under its own name.
        unused = {label_at, group_at, *chosen(self.ignore, "the columns to ignore")}
        rest = [column for column, index in at.items() if index not in unused]
        if not rest:
            raise DataError(name, "at least one feature", "none")
        indices: Sequence[int | None]
        if isinstance(self.features, Schema):
            indices, names = self.features.found(rest), self.features.names
        else:
            names = tuple(map(as_name, self.features or rest))
            if n_same := len(names) - len({*names}):
                raise DataError(name, "features of different names", f"{n_same} of the run's again")
            indices = places(name, rest, names, f"each of the run's {len(names)} features", announced=True)
        there = {rest[index]: name for index, name in zip(indices, names, strict=True) if index is not None}
        left_out = tuple(column for column in rest if column not in there)
        return Layout(label_at, group_at, [at[column] for column in there], tuple(there.values()), left_out)

    def columns(self, names: Sequence[str], kinds: Sequence[str | None]) -> list[RawColumn]:
        """The features of a file, with what is known of them beforehand."""
        wanted: dict[str, Column] = {}
        if self.schema is not None:
            wanted = dict(zip(self.schema.names if self.schema.is_named else names, self.schema.columns, strict=False))
        dialect, columns = self.dialect, list[RawColumn]()
        for column, kind in zip(map(wanted.get, names), kinds, strict=True):
            gaps = gaps_with((*dialect.gap_texts, *(column.gap_texts if column else ())))
            wanted_kind = column.kind if column else "category" if kind == "levels" else None
            typed = "category" if kind == "levels" else kind
            columns.append(RawColumn(typed, wanted_kind, dialect.decimal, dialect.date_format, gaps))
        return columns


def keys_of(source: Source, cells: Sequence[Any], group: int | None) -> list[bytes]:
    """Keys of rows, by which they are held out: by the column of ids, without one by all cells."""
    ids = None if group is None else cells[group]
    return row_keys([cells[index] for index in source.keys], ids, source.key_names)


ALL = Reading()
