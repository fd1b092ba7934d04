"""Files as they stand, for open and for private parties: columns, rows, and the part
that each column has in a run.
"""

from __future__ import annotations

import csv
import hashlib
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
import numpy.typing as npt

from flwr_flynn.errors import DataError, FlyNNError, with_names
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.raw_column import Raw, RawColumn, is_gap_text, plain_numbers
from flwr_flynn.tables.row_wise import real_of
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import is_gap, level_of, places
from flwr_flynn.tables.texts import GAP_TEXTS, as_name, gaps_with

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
    """Every failure of a parser in the block is a DataError without a folder and
    without a value.
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
        readable = DataError(path.name, f"a readable {ending(path)} file", got)
        other = DataError(path.name, f"text in {encoding.upper()}", "another encoding")
        raise (
            other if encoding and isinstance(error, UnicodeError) else readable
        ) from None


def objects(values: Sequence[Any] | Array) -> Array:
    """Python's values in an array: in a text type of NumPy each value would be as wide
    as the longest.
    """
    found = np.empty(len(values), object)
    found[:] = values.tolist() if isinstance(values, np.ndarray) else values
    return found


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


class Layout(NamedTuple):
    """The columns of a table by their use."""

    label: int | None
    group: int | None
    order: list[int]
    names: tuple[str, ...]
    left_out: tuple[str, ...]


Features = tuple[str, ...]


class Part(NamedTuple):
    """Some rows that nobody has looked at; `cells` gives the values of all columns in a
    slice of them.
    """

    n: int
    cells: Callable[[slice], Sequence[Any]]
    # rows with more or fewer fields than the header, which are left out
    n_broken: int = 0


class Source(ABC):
    """A file as it stands, for open and for private parties: the names of its columns,
    and its rows.

    Attributes
    ----------
    columns : sequence of str
        Names of the columns, () without names.
    kinds : sequence of str or None
        Kind of each column by the types of the file; None in a file of texts alone.
    keys : sequence of int
        Columns that stand in keys of rows, see `held_out`, and `key_names` in whose
        order; None for their own.
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
    def parts(
        self, n_rows: int, wanted: Collection[int] | None = None
    ) -> Iterator[Part]:
        """All rows, at most so many at a time; of other columns than those wanted there
        need not be values.
        """

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
            yield from zip(
                *(
                    each.tolist() if isinstance(each, np.ndarray) else each
                    for each in chosen
                ),
                strict=True,
            )


def mapped(labels: Array, book: Mapping[str, str]) -> Array:
    """The labels, some of them by other names."""
    if not book:
        return labels
    return objects(
        [
            book.get(str(label).strip(), book.get(level_of(label) or "", label))
            for label in labels.tolist()
        ]
    )


def unlabelled(labels: Array) -> npt.NDArray[np.bool_]:
    """Mask of the labels that are missing."""
    pairs = ((each, isinstance(each, str)) for each in labels.tolist())
    return np.array(
        [
            each.strip().lower() in _NO_LABELS if text else is_gap(each)
            for each, text in pairs
        ],
        np.bool_,
    )


# "none" and "-" may be classes
_NO_LABELS = frozenset({"", "na", "n/a", "#n/a", "nan", "<na>", "null"})


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

    def layout(self, name: str, columns: Sequence[str]) -> Layout:
        """The layout of a file's columns: the features asked for, or every column but
        label, group and ignored ones.

        A column without a name is none.
        """
        columns = [*map(as_name, columns)]
        at = {column: index for index, column in enumerate(columns) if column}
        if not at:
            raise DataError(name, "a first line with the names of the columns", "none")
        again = [
            column for column, n in Counter(filter(None, columns)).items() if n > 1
        ]
        if again:
            error = DataError(
                name,
                "columns of different names",
                f"{len(again)} names that stand more than once",
            )
            raise with_names(error, again)

        named = [*at]

        def chosen(wanted: Sequence[str], expected: str) -> list[int]:
            return [at[named[index]] for index in places(name, named, wanted, expected)]

        wanted = (self.label, self.group)
        label_at, group_at = (
            chosen([each], f"a column {each!r}")[0] if each else None for each in wanted
        )
        # A column to ignore that is not there may be misspelt, and would be used under
        # its own name.
        unused = {label_at, group_at, *chosen(self.ignore, "the columns to ignore")}
        rest = [column for column, index in at.items() if index not in unused]
        if not rest:
            raise DataError(name, "at least one feature", "none")
        indices: Sequence[int | None]
        if isinstance(self.features, Schema):
            indices = self.features.found(rest)
            names = self.features.names
        else:
            names = tuple(map(as_name, self.features or rest))
            n_same = len(names) - len({*names})
            if n_same:
                raise DataError(
                    name, "features of different names", f"{n_same} of the run's again"
                )
            indices = places(
                name,
                rest,
                names,
                f"each of the run's {len(names)} features",
                announced=True,
            )
        there = {
            rest[index]: name
            for index, name in zip(indices, names, strict=True)
            if index is not None
        }
        left_out = tuple(column for column in rest if column not in there)
        return Layout(
            label_at,
            group_at,
            [at[column] for column in there],
            tuple(there.values()),
            left_out,
        )

    def columns(
        self, names: Sequence[str], kinds: Sequence[str | None]
    ) -> list[RawColumn]:
        """The features of a file, with what is known of them beforehand."""
        wanted: dict[str, Column] = {}
        if self.schema is not None:
            wanted = dict(
                zip(
                    self.schema.names if self.schema.is_named else names,
                    self.schema.columns,
                    strict=False,
                )
            )
        dialect = self.dialect
        columns = list[RawColumn]()
        for column, kind in zip(map(wanted.get, names), kinds, strict=True):
            gaps = gaps_with(
                (*dialect.gap_texts, *(column.gap_texts if column else ()))
            )
            if column:
                wanted_kind = column.kind
            elif kind == "levels":
                wanted_kind = "category"
            else:
                wanted_kind = None
            typed: str | None = "category"
            if kind != "levels":
                typed = kind
            columns.append(
                RawColumn(
                    typed, wanted_kind, dialect.decimal, dialect.date_format, gaps
                )
            )
        return columns


def keys_of(source: Source, cells: Sequence[Any], group: int | None) -> list[bytes]:
    """Keys of rows, by which they are held out: by the column of ids, without one by
    all cells.
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

    def mask(self, keys: Iterable[bytes]) -> npt.NDArray[np.bool_]:
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
    columns: Sequence[Any], ids: Any = None, names: Sequence[str] | None = None
) -> list[bytes]:
    """Keys of rows: by their ids; without, or where an id is missing, by all of their
    cells, in the order of the names.

    Columns are arrays or lists. A number is the same in whatever form it comes.
    """
    if names is None:
        order: Sequence[int] = range(len(columns))
    else:
        order = sorted(range(len(columns)), key=names.__getitem__)
    if ids is None:
        floats = [_floats(columns[index]) for index in order]
        if floats and not any(each is None for each in floats):
            return _bytes(np.stack(floats, axis=1))  # type: ignore[arg-type]
        return [
            *map(
                b"".join, zip(*(_cells(columns[index]) for index in order), strict=True)
            )
        ]
    by_id = id_keys(ids)
    if _GAP in by_id:
        rows = row_keys(columns, None, names)
        return [rows[index] if key == _GAP else key for index, key in enumerate(by_id)]
    return by_id


def id_keys(ids: Any) -> list[bytes]:
    """The key of each id: that of a cell, but the digits of a number of which float64
    does not keep all.
    """
    if isinstance(ids, list):
        values = ids
    else:
        values = ids.tolist()
    texts = (
        (
            each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each)
        ).strip()
        for each in values
    )
    return [
        f"{t}\x1f".encode() if _is_long(t) else key
        for t, key in zip(texts, _cells(ids), strict=True)
    ]


def _is_long(text: str) -> bool:
    """True for an integer of which float64 does not keep all digits."""
    return bool(re.fullmatch(r"[+-]?\d{16,}", text)) and (
        len(text) > 17 or abs(int(text)) > 2**53
    )


def _floats(column: Any) -> npt.NDArray[np.float64] | None:
    """The numbers of a column, with one NaN and no -0.0; None where it has other
    values.
    """
    if isinstance(column, list):
        numbers = plain_numbers(column, GAP_TEXTS)
    else:
        numbers = column
    if not isinstance(numbers, np.ndarray) or numbers.dtype.kind not in "biufmM":
        return None
    if numbers.dtype.kind in "mM":
        numbers = numbers.astype(np.int64)
    return np.asarray(np.where(np.isnan(numbers), np.nan, numbers).astype("<f8") + 0.0)


def _bytes(rows: npt.NDArray[np.float64]) -> list[bytes]:
    """The bytes of each row."""
    found: list[bytes] = rows.view(f"V{8 * rows.shape[1]}")[:, 0].tolist()
    return found


def _cells(column: Any) -> list[bytes]:
    """A key for each value: 8 bytes of a number or a gap, the text of anything else."""
    floats = _floats(column)
    if floats is not None:
        return _bytes(floats[:, None])
    if isinstance(column, list):
        values = column
    else:
        values = column.tolist()
    known: dict[Any, bytes] = {value: _cell(value) for value in {*values}}
    return [known[value] for value in values]


def _cell(value: Any) -> bytes:
    """The key of one value, the same as among others."""
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
    else:
        text = value
    if text is None or (isinstance(text, str) and is_gap_text(text, GAP_TEXTS)):
        return _GAP
    number: Any = real_of(text)
    if isinstance(number, Real) or (isinstance(number, str) and "_" not in number):
        with suppress(ValueError, OverflowError):
            found = float(number)
            if found == found:
                return struct.pack("<d", found + 0.0)
            return _GAP
    return f"{str(text).strip()}\x1f".encode("utf-8", "surrogatepass")
