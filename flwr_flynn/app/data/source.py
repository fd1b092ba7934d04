"""Files as they stand, for open and for private parties.

They have columns and rows, and each column has a use in a run.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flwr_flynn._types import Array, Mask, T
from flwr_flynn.app.data.held_out import HeldOut, row_keys
from flwr_flynn.errors import DataError, FlyNNError, with_names
from flwr_flynn.tables.cells import (
    Cells,
    Gaps,
    each_once,
    level_of,
    objects,
    plain,
    plain_values,
)
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.raw_column import Raw, RawColumn
from flwr_flynn.tables.row_wise import CellSettings
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import by_name, form_of, places, raw_of
from flwr_flynn.tables.texts import as_name

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "pipes"}

_TEXTS = (".csv", ".tsv", ".txt", ".gz")
ENDINGS = (*_TEXTS, ".parquet", ".npz")

MOST_ROWS = 2**14
"""Rows of a file that are read at a time, at most."""

LARGE = 2**28
"""Bytes of a file's numbers above which they are in files without a name."""

_READ: ContextVar[dict[Any, Any] | None] = ContextVar("read", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Keep what `read_once` makes of files until the end of the block."""
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)


def read_once(path: Path, make: Callable[..., T], *settings: Any) -> T:
    """The result of `make`, a function of a file and some settings.

    Within a block of `reading_once` it is made once, unless the file has changed.
    """
    known = _READ.get()
    if known is None:
        return make(*settings)
    state = path.stat()
    stamp = (state.st_mtime_ns, state.st_size)
    key = (make, settings)
    if known.get(key, (None,))[0] != stamp:
        known[key] = (stamp, make(*settings))
    value: T = known[key][1]
    return value


def ending(path: Path) -> str:
    """The ending of a file's name, one of `ENDINGS` if the file can be read.

    It is .csv for all texts.
    """
    suffix = path.suffix.lower()
    if suffix in _TEXTS:
        return ".csv"
    return suffix


def stem(path: Path) -> str:
    """The name of a file without its endings."""
    if path.suffix.lower() == ".gz":
        path = path.with_suffix("")
    return path.stem


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


@dataclass(frozen=True)
class Dialect(CellSettings):
    """Form of a file: its names, texts, and labels as the site writes them.

    Parameters
    ----------
    separator, encoding : str
        "" is detected from the head of the file, as `decimal` is.
    rename : mapping of str to str
        Columns of the file by the names that others use.
    label_map : mapping of str to str
        Labels as the others write them.
    above : int
        Lines above the header, which are no rows.
    """

    separator: str = ""
    encoding: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    label_map: Mapping[str, str] = field(default_factory=dict)
    above: int = 0

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
    reading: Reading
    used: FileColumns

    def rename(self, names: Mapping[str, str]) -> None:
        """Give columns the names that others use."""
        own = [*map(as_name, self.columns)]
        indices = by_name(own, [*names])
        new = dict(zip(indices, names.values(), strict=True))
        columns = [new.get(index, name) for index, name in enumerate(own)]
        forms = Counter(map(form_of, columns))
        pairs = zip(names, indices, strict=True)
        wrong = [name for name, index in pairs if index is None]
        wrong += [name for name in names.values() if forms[form_of(name)] > 1]
        if wrong:
            expected = (
                "columns of the file, each with a new name that no other column has "
                "(setting rename)"
            )
            error = DataError(self.name, expected, f"{len(wrong)} others")
            raise with_names(with_names(error, wrong, 20), self.columns, 20)
        if names:
            self.columns = tuple(columns)

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
        return raw_of(values, self.kinds[index], self.name)

    def labels(self, values: Any) -> Array:
        """The values of a column of labels or ids, texts without blanks around them."""
        if isinstance(values, np.ndarray):
            return values
        return objects([text.strip() if type(text) is str else text for text in values])

    def use(self, reading: Reading) -> FileColumns:
        """Find the use of each column in a reading."""
        if self.dialect:
            reading = replace(reading, dialect=self.dialect)
        self.reading = reading
        self.used = self.layout(reading)
        return self.used

    def labels_in(self, cells: Cells) -> Array:
        """Labels of rows, as the others write them."""
        labels = self.labels(cells[self.used.label or 0])
        return mapped(labels, self.reading.dialect.label_map)

    def held_out(self, cells: Cells, n: int) -> Mask:
        """Mask of the rows that are held out, of so many.

        Their ids decide, and without them all of their cells.
        """
        rule = self.reading.held_out
        if rule is None:
            return np.zeros(n, np.bool_)
        group = self.used.group
        ids = None
        keys = self.keys
        if group is not None and rule.has_ids:
            ids = cells[group]
        elif group is not None:
            keys = [index for index in keys if index != group]
        names = self.key_names
        if names is not None:
            names = [names[index] for index in keys]
        return rule.mask(row_keys([cells[index] for index in keys], ids, names))

    def cells(self, indices: Sequence[int]) -> Iterator[Sequence[Any]]:
        """The values of some columns, row by row, as they stand."""
        for part in self.parts(MOST_ROWS, indices):
            cells = part.cells(slice(None))
            columns = [plain_values(cells[index]) for index in indices]
            yield from zip(*columns, strict=True)


def mapped(labels: Array, book: Mapping[str, str]) -> Array:
    """The labels, some of them by other names."""
    if not book:
        return labels
    names = {level_of(text): name for text, name in book.items()}

    def named(label: Any) -> Any:
        return names.get(level_of(label), label)

    return objects(each_once(named, labels.tolist()))


def label_gaps(settings: CellSettings, labels: Collection[str] = ()) -> Gaps:
    """Labels that are missing, in a column with these labels.

    They are the gaps of features, but "none", which may be a class, and "-" beside "+".
    """
    classes = {"none"}
    if "+" in labels:
        classes.add("-")
    return Gaps(settings.gaps().texts - (classes - {*settings.gap_texts}))


def unlabelled(labels: Array, gaps: Gaps) -> Mask:
    """Mask of the labels that are missing."""

    def is_missing(label: object) -> bool:
        return gaps.has(plain(label))

    return np.array(each_once(is_missing, labels.tolist()), np.bool_)


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
    is_strict : bool, default=True
        False lets settings name columns that are not there.
    keep, accept : sequence of str
        Columns that are no ids or names, and those whose remarks are accepted.
    """

    label: str | None = ""
    group: str = ""
    features: Wanted = ()
    dialect: Dialect = field(default_factory=Dialect)
    schema: Schema | None = None
    held_out: HeldOut | None = None
    ignore: Sequence[str] = ()
    is_strict: bool = True
    keep: Sequence[str] = ()
    accept: Sequence[str] = ()

    def renames(self, columns: Sequence[str]) -> Mapping[str, str]:
        """New names of columns, by their names in the file."""
        names = self.dialect.rename
        return {own: names[own] for own in self._present(columns, [*names])}

    def _present(self, columns: Sequence[str], names: Sequence[str]) -> Sequence[str]:
        """Names that settings give, without those of no column if these may be."""
        indices = by_name([*map(as_name, columns)], [*map(as_name, names)])
        pairs = zip(names, indices, strict=True)
        return [name for name, index in pairs if self.is_strict or index is not None]

    def layout(self, name: str, columns: Sequence[str]) -> FileColumns:
        """The layout of a file's columns.

        The features are those asked for, or every column but label, group and ignored
        ones. A column without a name is none.
        """
        columns = _checked_names(name, columns)

        def indices_of(names: Sequence[str], expected: str) -> list[int]:
            return places(name, columns, self._present(columns, names), expected)

        def index_of(column: str | None) -> int | None:
            if not column:
                return None
            return places(name, columns, [column], f"a column {column!r}")[0]

        label = index_of(self.label)
        group = index_of(self.group)
        # A column to ignore that is not there may be misspelt, and would be used under
        # its own name.
        ignored = indices_of(self.ignore, "the columns to ignore")
        for key in ("convert", "synonyms"):
            own = [*getattr(self.dialect, key)]
            indices_of(own, f"the columns of the setting {key}")
        unused = {label, group, *ignored}
        rest = [
            index
            for index, column in enumerate(columns)
            if column and index not in unused
        ]
        if not rest:
            raise DataError(name, "at least one feature", "none")
        names, indices = self._features_in(name, [columns[index] for index in rest])
        features = {
            rest[index]: feature
            for index, feature in zip(indices, names, strict=True)
            if index is not None
        }
        left_out = tuple(columns[index] for index in rest if index not in features)
        order = [*features]
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
        return [
            self._raw_column(name, columns.get(name), kind)
            for name, kind in zip(names, kinds, strict=True)
        ]

    def accepts(self, name: str) -> bool:
        """True for a column whose remarks are accepted."""
        return by_name(self.accept, [name]) != [None]

    def _raw_column(
        self, name: str, column: Column | None, kind: str | None
    ) -> RawColumn:
        """A column by its entry in the schema, and by its kind in the file."""
        dialect = self.dialect
        words = dialect.words(name)
        unit = ""
        gap_texts: Sequence[str] = ()
        wanted = None
        if column is not None:
            gap_texts = column.gap_texts
            unit = column.unit
            wanted = column.kind
        scales = dialect.scales(name, unit)
        if scales:
            wanted = "number"
        if scales or self.accepts(name):
            unit = ""
        return RawColumn(
            kind,
            wanted,
            dialect.decimal,
            dialect.date_format,
            dialect.gaps(name, *gap_texts),
            scales,
            words,
            unit=unit,
        )


def named_files(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Each file with a name of its own.

    The name is the file's stem, behind the name of its folder where several files have
    the same stem.
    """
    stems = [*map(stem, paths)]
    names = list[str]()
    for path in paths:
        name = stem(path)
        if stems.count(name) > 1:
            name = f"{path.absolute().parent.name}-{name}"
        if name in names:
            name = f"{name}-{len(names) + 1}"
        names.append(name)
        yield name, path


def _checked_names(name: str, columns: Sequence[str]) -> list[str]:
    """Names of the columns of a file; equal ones are refused, and a file without any."""
    columns = [*map(as_name, columns)]
    numbers = Counter(filter(None, columns))
    if not numbers:
        raise DataError(name, "a first line with the names of the columns", "none")
    again = [column for column, n in numbers.items() if n > 1]
    if again:
        got = f"{len(again)} names that stand more than once"
        raise with_names(DataError(name, "columns of different names", got), again)
    return columns


ALL = Reading()
