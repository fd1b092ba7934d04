"""Files of open parties and of simulations, CSV, Parquet and NPZ, read twice: kinds of the columns, and then values.

Values come some rows at a time (`TableFile.batches`), so that a file may be larger than memory. A file of numbers
without gaps is an array of the narrowest type that holds them, so that integers are hashed exactly; every other file is
a `Table`.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flwr_flynn._text import clean
from flwr_flynn._validation import listed
from flwr_flynn.app.data.held_out import HeldOut, row_keys
from flwr_flynn.errors import DataError, with_names, with_rows
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.raw_column import Raw, RawColumn, months_come_first, of_gaps
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table, is_gap, level_of, places
from flwr_flynn.tables.texts import BESIDE, as_name, gaps_with

Array = npt.NDArray[Any]

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "pipes"}

ENDINGS = (".csv", ".parquet", ".npz")


def ending(path: Path) -> str:
    """The ending of a file's name, one of `ENDINGS` if the file can be read."""
    return path.suffix.lower()


def unreadable(path: Path, error: Exception) -> DataError:
    """The error about a file that no parser reads."""
    if isinstance(error, DataError):
        return error
    got = str(error)[:80] if isinstance(error, csv.Error) else type(error).__name__  # of a parser, which names no value
    return DataError(path.name, f"a readable {ending(path)} file", got)


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


class Batch(NamedTuple):
    """Some rows: values of each feature, labels, ids of groups, and a mask of those held out.

    Labels, ids and mask are None where they are not asked for.
    """

    columns: list[Array]
    labels: Array | None
    groups: Array | None = None
    test: npt.NDArray[np.bool_] | None = None


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


ALL = Reading()


class Block(NamedTuple):
    """Some rows as a file has them."""

    columns: Sequence[Raw]  # of the features
    labels: Array | None
    groups: Any = None
    cells: Sequence[Any] = ()  # of all columns, where they are asked for
    n_broken: int = 0  # rows with more or fewer fields than the header


class TableFile(ABC):
    """A file with its features, `reports` on them, and its rows; subclasses are kinds of files.

    A first pass (`look`) finds kinds and faults of the columns.
    """

    name: str
    names: Features
    columns: Features = ()  # all of them, as they stand; () without names
    key_names: Features = ()  # of those that stand in keys of rows, see `held_out`
    left_out: Features = ()
    is_named: bool = True
    n_rows: int
    n_broken: int = 0
    n_unlabelled: int = 0
    reports: list[RawColumn]
    label_map: Mapping[str, str] = MappingProxyType({})

    def __init__(self, name: str, reading: Reading) -> None:
        self.name, self.reading = name, reading
        self.announced = bool(reading.features)  # by the run

    @abstractmethod
    def blocks(self, with_cells: bool = False) -> Iterator[Block]:
        """The rows as they stand, some at a time."""

    def look(self, kinds: Sequence[str | None]) -> list[str]:
        """Look at all rows, and return the texts of the first, if there are any."""
        self._beside: list[int] = []  # columns of numbers whose texts make a column of their own
        self.reports = self.reading.columns(self.names or [*map(str, range(len(kinds)))], kinds)
        self.n_rows = self.n_broken = self.n_unlabelled = 0
        first: list[str] = []
        for block in self.blocks():
            self.n_broken += block.n_broken
            self.n_rows += (n := len(block.columns[0]) if block.columns else 0)
            if not first and n:
                first = [values[0] for values in block.columns if isinstance(values, list)]
            for report, values in zip(self.reports, block.columns, strict=True):
                report.add(values)
            self.n_unlabelled += 0 if block.labels is None else int(unlabelled(block.labels).sum())
        month_first = months_come_first(self.reports)
        for report in self.reports:
            report.month_first, report.is_strict = month_first, not self.names
        self._split()
        return first

    def _split(self) -> None:
        """Make columns of the texts in columns of numbers, unless a schema does not have them."""
        schema, there = self.reading.schema, {*self.names}
        wanted = ({f"{name}{BESIDE}" for name in there} if schema is None else {*schema.names}) - there
        for index, (name, report) in enumerate(zip(self.names, [*self.reports], strict=False)):
            if report.texts and report.kind == "number" and f"{name}{BESIDE}" in wanted:
                report.has_beside = True
                self._beside.append(index)
                self.reports.append(RawColumn("category"))
        self.names += tuple(f"{self.names[index]}{BESIDE}" for index in self._beside)

    def batches(self, labelled: bool = True) -> Iterator[Batch]:
        """The rows of the file, some at a time; of those whose labels are read the labelled ones, or all."""
        rule = self.reading.held_out
        for block in self.blocks(rule is not None):
            values = [report.values(raw) for report, raw in zip(self.reports, block.columns, strict=False)]
            values += [self.reports[index].beside(block.columns[index]) for index in self._beside]
            test = None if rule is None else rule.mask(row_keys(block.cells, block.groups, self.key_names or None))
            ids = objects([*map(str.strip, block.groups)]) if isinstance(block.groups, list) else block.groups
            batch = Batch(values, block.labels, ids, test)
            if labelled and block.labels is not None:
                labels = mapped(block.labels, self.label_map)
                rows: Any = ~unlabelled(labels)
                rows = slice(None) if rows.all() else rows
                rest = (None if some is None else some[rows] for some in (labels, ids, test))
                batch = Batch([column[rows] for column in values], *rest)
            yield batch

    def cells(self, indices: Sequence[int]) -> Iterator[Sequence[Any]]:
        """The values of some columns, row by row, as they stand."""
        for block in self.blocks(with_cells=True):
            chosen = [block.cells[index] for index in indices]
            yield from zip(*(each.tolist() if isinstance(each, np.ndarray) else each for each in chosen), strict=True)

    def indices(self, names: Sequence[str], expected: str) -> list[int]:
        """Indices of columns by name; a `DataError` for one that is not there."""
        return places(self.name, [*map(as_name, self.columns)], names, expected, announced=True)

    @property
    def needs_table(self) -> bool:
        """True unless all features are numbers without gaps."""
        return any(report.kind != "number" or report.gaps for report in self.reports)

    @property
    def all_names(self) -> Features:
        """Names of the features, or their numbers."""
        return self.names or tuple(map(str, range(len(self.reports))))

    def described(self) -> str:
        """The file in one line, for the log of this machine."""
        words = {"number": "of numbers", "category": "of texts", "date": "of dates"}
        kinds = {word: sum(report.kind == kind for report in self.reports) for kind, word in words.items()}
        told = f"{self.n_rows} rows; columns: {', '.join(f'{n} {word}' for word, n in kinds.items() if n)}"
        if n_gaps := sum(report.gaps > 0 for report in self.reports):
            told += f"; gaps in {n_gaps}"
        if self.n_unlabelled:
            told += f"; {self.n_unlabelled} rows without a label are left out"
        for name, report in zip(self.all_names, self.reports, strict=True):
            is_number = report.kind == "number"
            if report.texts or (is_number and report.numerals.unit):
                told += f"; {name[:60]}: {report.numerals.described() if is_number else f'{report.texts} no dates'}"
        return f"{clean(self.name, 200)}: {clean(told, 2000)}"

    def check(self) -> None:
        """Refuse a file with rows or columns that are no samples; notes of the error have numbers of rows."""
        if self.n_broken:
            expected = "as many fields in each row as in the header"
            raise with_rows(DataError(self.name, expected, "rows with more or fewer"), f"{self.n_broken} rows")
        if self.n_rows and self.n_unlabelled == self.n_rows:
            raise DataError(self.name, "a label in some rows", "none in any")
        faults: dict[str, Callable[[RawColumn], int]] = {
            "numbers, texts or dates": lambda report: 0 if report.kind else self.n_rows,
            "numbers": lambda report: report.unfit if report.kind == "number" else 0,
            "dates of one form": lambda report: report.unfit if report.kind == "date" else 0,
            "finite numbers that float64 holds": lambda report: report.infinite,
        }
        for expected, n_of in faults.items():
            if found := {index: n for index, report in enumerate(self.reports) if (n := n_of(report))}:
                raise self._error(expected, found)

    def _error(self, expected: str, n_rows: dict[int, int]) -> DataError:
        """The error about rows with a fault in some features; its notes have numbers of rows and names of columns."""
        called = [
            clean(self.names[index], 60) if self.names and self.announced else f"number {index + 1}" for index in n_rows
        ]
        found = f"others in {len(n_rows)} of {len(self.reports)} features: {listed(called)}"
        error = DataError(self.name, expected, found, text=f"{self.name}: expected {expected}, got {found}")
        error = with_rows(error, ", ".join(f"{n} of {self.n_rows} samples" for n in [*n_rows.values()][:20]))
        return with_names(error, [self.names[index] for index in n_rows]) if self.names else error

    def table(self, columns: Sequence[Array]) -> Table:
        """Values of the features as a table."""
        kinds = [np.float64 if column.dtype.kind in "biuf" else column.dtype for column in columns]
        values = [column.astype(kind, copy=False) for column, kind in zip(columns, kinds, strict=True)]
        return Table(self.all_names, values, self.is_named)

    def tables(self) -> Iterator[tuple[Table, Array | None, npt.NDArray[np.bool_] | None]]:
        """The rows as tables, with their labels and the mask of those held out, some at a time."""
        for batch in self.batches():
            yield self.table(batch.columns), batch.labels, batch.test

    def whole(self) -> tuple[Any, Array, Array | None, npt.NDArray[np.bool_]]:
        """All rows in memory: an array or a table, labels, ids of groups or None, and the mask of those held out.

        Numbers without gaps are an array in the narrowest type that holds them; all else is a table.
        """
        self.check()
        empty = [of_gaps(report.kind, 0) for report in self.reports]
        parts = [*self.batches()] or [Batch(empty, np.zeros(0, object), test=np.zeros(0, np.bool_))]
        columns = [np.concatenate(some) for some in zip(*(part.columns for part in parts), strict=True)]
        rest = zip(*((part.labels, part.groups, part.test) for part in parts), strict=True)
        y, groups, test = (None if some[0] is None else np.concatenate(some) for some in rest)
        X = self.table(columns) if self.needs_table else np.stack(columns, axis=1)
        test = np.zeros(len(columns[0]), np.bool_) if test is None else test
        return X, np.zeros(0, object) if y is None else y, groups, test
