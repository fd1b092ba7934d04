"""Schema of a table: the names and kinds of its columns, and how they become numbers.

In a file it is TOML.

Everybody with the same schema makes the same numbers of the same rows. A number stays
as it is; NaN stands for a gap, and the hash then sees nothing of the column. A category
becomes a 0/1 column for each level, so that an unknown level is all zeros. A date
becomes days since 1970, month, weekday (Monday is 0) and hour. Where a column may have
gaps, one more 0/1 column tells them.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn._validation import boolean, listed
from flwr_flynn.errors import DataError, FlyNNError, SchemaError, with_names, with_rows
from flwr_flynn.tables.cells import Gaps, missing, of_gaps
from flwr_flynn.tables.column_encoding import Column, is_nameable, shown, unusual
from flwr_flynn.tables.raw_column import RawColumn
from flwr_flynn.tables.table import (
    ColumnReader,
    RawColumns,
    Table,
    by_name,
    form_of,
    kind_of,
)
from flwr_flynn.tables.texts import is_beside

MOST_COLUMNS = 2**14
MOST_NUMBERS = 2**16
MOST_CLASSES = 2**16
"""Numbers of a row, at most."""


@dataclass(frozen=True)
class Schema:
    """Columns in the order of their numbers. A wrong one is a `SchemaError`.

    Parameters
    ----------
    columns : sequence of Column
        Of different names.
    is_named : bool, default=True
        False for the columns of an array, which are found by position.
    label : str
        Name of the column of labels in files.
    classes : sequence of str or of int
        The labels, where they are public.
    ignore : sequence of str
        Columns that tables may have and that are not used, such as ids.

    Examples
    --------
    >>> sex = Column("sex", "category", ["f", "m"], gaps=False)
    >>> schema = Schema([sex, Column("age", "number")])
    >>> schema.inputs
    ('sex=f', 'sex=m', 'age', 'age missing')
    >>> table = Table(["age", "sex"], [np.array([50.0, np.nan]), np.array(["m", "x"], object)])
    >>> schema.encode(table)
    array([[ 0.,  1., 50.,  0.],
           [ 0.,  0., nan,  1.]])
    """

    columns: Sequence[Column]
    is_named: bool = True
    label: str = ""
    classes: Sequence[str | int] = ()
    ignore: Sequence[str] = ()

    def __post_init__(self) -> None:
        bounds = {
            "columns": (1, MOST_COLUMNS),
            "classes": (0, MOST_CLASSES),
            "ignore": (0, MOST_COLUMNS),
        }
        for name, (least, most) in bounds.items():
            values = getattr(self, name)
            if not isinstance(values, Sequence) or isinstance(values, str):
                raise SchemaError(
                    name, f"a list of at most {most}", type(values).__name__
                )
            if not least <= len(values) <= most:
                raise SchemaError(name, f"a list of at most {most}", len(values))
            object.__setattr__(self, name, tuple(values))
        are_texts = all(isinstance(name, str) for name in self.ignore)
        if not are_texts or {*self.ignore} & {*self.names}:
            raise SchemaError(
                "ignore",
                "names of other columns than the schema's",
                f"{len(self.ignore)} entries",
            )
        are_alike = {*map(type, self.classes)} in ({str}, {int}, set())
        if not are_alike or len({*self.classes}) < len(self.classes):
            raise SchemaError(
                "classes", "different texts or integers", f"{len(self.classes)} entries"
            )
        boolean("is_named", self.is_named, SchemaError)
        n_same = len(self.columns) - len(set(self.names))
        if n_same:
            raise SchemaError(
                "columns", "columns of different names", f"{n_same} named again"
            )
        if not 1 <= self.width <= MOST_NUMBERS:
            raise SchemaError(
                "columns", f"1 to {MOST_NUMBERS} numbers a row", self.width
            )
        n_synonyms = sum(len(column.synonyms) for column in self.columns)
        if n_synonyms > MOST_NUMBERS:
            raise SchemaError(
                "columns", f"at most {MOST_NUMBERS} synonyms in all", n_synonyms
            )
        if self.label != "" and (
            not is_nameable(self.label) or self.label in self.names
        ):
            raise SchemaError("label", "the name of no other column", shown(self.label))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the numbers of a row."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def width(self) -> int:
        """Number of the numbers of a row."""
        return sum(column.width for column in self.columns)

    @property
    def is_plain(self) -> bool:
        """True if all columns are hashed as they stand."""
        return all(column.is_plain for column in self.columns)

    @property
    def without_range(self) -> list[str]:
        """Names of the dates, and of the numbers without `low` or `high`."""
        return [
            column.name
            for column in self.columns
            if column.kind != "category" and None in (column.low, column.high)
        ]

    @property
    def ranges(self) -> tuple[list[float], list[float]] | None:
        """Public ranges of the numbers of a row; None unless every number has one.

        Dates have none.
        """
        if self.without_range:
            return None
        low: list[float] = []
        high: list[float] = []
        for column in self.columns:
            n_bits = column.width
            if column.low is not None and column.high is not None:
                n_bits -= 1
                # -0.0 + 0.0 is 0.0.
                low.append(column.low + 0.0)
                high.append(column.high + 0.0)
            low += [0.0] * n_bits
            high += [1.0] * n_bits
        return low, high

    def encode(self, X: object) -> Array:
        """The numbers of rows, (n, width) float64 with NaN for gaps, see `encoded`."""
        return self.encoded(X)[0]

    def encoded(self, X: object) -> tuple[Array, list[str]]:
        """The numbers of rows, and warnings about columns that are not there, and
        categories in which nothing is known.

        X is what `RawColumns.of` takes. A `DataError` names a column that is missing
        or of another kind, or that has values which are refused, and how many.
        """
        columns = RawColumns.of(X)
        indices = self._indices_in(columns)
        table = self._table(columns, indices)
        for column, values in zip(self.columns, table.columns, strict=True):
            n_refused = int(column.refused(values).sum())
            if n_refused:
                expected = "finite numbers"
                if column.low is not None or column.high is not None:
                    low = _end_of_range(column.low)
                    high = _end_of_range(column.high)
                    expected = f"numbers in {low} to {high}"
                error = DataError(f"column {column.name!r}", expected, "others")
                raise with_rows(error, f"{n_refused} of {len(values)} rows")
        numbers = self.numbers(table)
        remarks = []
        first = 0
        for column, at, values in zip(
            self.columns, indices, table.columns, strict=True
        ):
            levels = numbers[:, first : first + len(column.levels)]
            if at is None and not is_beside(column.name, {*self.names}):
                remarks.append(
                    f"column {column.name!r} is not there: all of its values are gaps"
                )
            elif column.levels and not (levels.any() or missing(values).all()):
                remarks.append(f"column {column.name!r}: no value is one of its levels")
            first += column.width
        return numbers, remarks

    def numbers(self, table: Table) -> Array:
        """The numbers of a checked table."""
        out = np.empty((len(table), self.width))
        first = 0
        for column, values in zip(self.columns, table.columns, strict=True):
            end = first + column.width
            column.write(values, out[:, first:end])
            first = end
        return out

    def complete_rows(self, numbers: Array) -> Mask:
        """Mask of the rows without gaps, for a hash that takes none.

        Raises a `DataError` where a column has no value.
        """
        is_gap: Array = np.isnan(numbers)
        empty = [
            name
            for name, has_none in zip(self.inputs, is_gap.T, strict=True)
            if has_none.all()
        ]
        if empty and len(numbers):
            expected = "values in each, since this hash (scaling) takes no gaps"
            raise with_names(
                DataError("columns", expected, f"{len(empty)} without any"),
                empty,
                most=20,
            )
        return np.asarray(~is_gap.any(axis=1))

    def _indices_in(self, columns: RawColumns) -> Sequence[int | None]:
        """Index of each column of this schema, None for one that is not there."""
        if not self.is_named:
            if len(columns.names) != len(self.columns):
                raise DataError("X", f"{len(self.columns)} columns", len(columns.names))
            return range(len(self.columns))
        if not columns.is_named:
            raise DataError(
                "X", "a table with the names of its columns", "an array without"
            )
        return self.found(columns.names)

    def _table(self, columns: RawColumns, indices: Sequence[int | None]) -> Table:
        """The columns of this schema, each of its kind.

        A column that is not there is one of gaps, or of the texts beside numbers.
        """
        present = {
            column: columns.raw(at)
            for column, at in zip(self.columns, indices, strict=True)
            if at is not None
        }
        raws = [*present.values()]
        reports = [
            RawColumn(
                kind_of(raw),
                column.kind,
                gap_cells=Gaps.of(column.gap_texts),
                reads_each=True,
                unit=column.unit,
            )
            for column, raw in present.items()
        ]
        reader = ColumnReader(
            [column.name for column in present], reports, columns.is_named
        )
        table = reader.read(raws, self.names)
        values = dict(zip(table.names, table.columns, strict=True))
        every = [
            values.get(column.name, of_gaps(column.kind, len(columns)))
            for column in self.columns
        ]
        return Table(self.names, every)

    def found(self, names: Sequence[str]) -> list[int | None]:
        """Index of each column among the names of a table, None for one that is not
        there.

        A `DataError` refuses a table without a required column, and one that has a name
        that nobody knows in the place of one that all know: probably another spelling.
        """
        indices = by_name(names, self.names)
        pairs = zip(self.columns, indices, strict=True)
        known = {*self.names}
        lacking = [
            column
            for column, at in pairs
            if at is None and not is_beside(column.name, known)
        ]
        used = {form_of(name) for name in (*self.ignore, self.label)}
        used |= {form_of(names[index]) for index in indices if index is not None}
        there = {*names}
        own = [
            name
            for name in names
            if form_of(name) not in used and not is_beside(name, there)
        ]
        bad = [
            column.name
            for column in lacking
            if own or column.required or len(lacking) == len(self.names)
        ]
        if bad:
            expected = (
                "the columns of the schema (a table that lacks one has no "
                "others, or names them in ignore)"
            )
            got = (
                f"{len(bad)} of {len(self.names)} missing: "
                f"{listed([shown(name) for name in bad])}"
            )
            error = DataError("columns", expected, f"{got}; {len(own)} others")
            raise with_names(error, own or names, most=20)
        return indices

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values that JSON can hold."""
        return {
            "columns": [column.to_dict() for column in self.columns],
            **unusual(self, "columns"),
        }

    @classmethod
    def from_dict(cls, values: Any) -> Schema:
        """The schema of such values, which may come from anybody.

        Raises a `SchemaError` for anything else.
        """
        _check_keys(
            "schema",
            values,
            {"columns", "is_named", "label", "classes", "ignore"},
            {"columns"},
        )
        entries = values["columns"]
        if not isinstance(entries, list) or len(entries) > MOST_COLUMNS:
            raise SchemaError(
                "columns", f"a list of at most {MOST_COLUMNS}", type(entries).__name__
            )
        known = {field.name for field in fields(Column)}
        for entry in entries:
            _check_keys("column", entry, known, {"name", "kind"})
        return cls(**{**values, "columns": [Column(**entry) for entry in entries]})


def _end_of_range(end: float | None) -> str:
    if end is None:
        return "any"
    return f"{end:g}"


def _check_keys(what: str, values: object, known: set[str], required: set[str]) -> None:
    if not isinstance(values, Mapping):
        raise SchemaError(what, "a table of keys", type(values).__name__)
    unknown = sorted(shown(key) for key in set(values) - known)
    if unknown:
        raise SchemaError(
            what, f"some of {', '.join(sorted(known))}", f"unknown {listed(unknown)}"
        )
    missing = sorted(required - set(values))
    if missing:
        raise SchemaError(
            what, ", ".join(sorted(required)), f"none named {', '.join(missing)}"
        )


LARGEST = 2**23
"""Bytes of a schema file, at most: room for the drafts of files with thousands of
columns."""

_MOST_MARKS = 2**19
"""Ends of lines, and marks of entries and values, of a schema file, at most: its parser
takes long for each."""

_DOTTED = re.compile(
    r"""(?<![\w\\-])(?:([\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""",
    re.ASCII,
)
"""A key of many parts, for which the time of the parser grows with their square."""

_TOP = ("label", "classes", "is-named", "ignore", "gap-texts", "column")


def to_toml(
    schema: Schema, comments: Mapping[tuple[str, str], str] | None = None
) -> str:
    """The text of the file.

    `comments` stand in front of an entry, by column (or "") and key.

    >>> from flwr_flynn.tables.column_encoding import Column
    >>> print(to_toml(Schema([Column("age", "number", low=0.0)]), {("age", "low"): "public"}))
    [[column]]
    name = "age"
    kind = "number"
    gaps = true
    # public
    low = 0.0
    <BLANKLINE>
    """
    notes = dict(comments or {})
    top = schema.to_dict()
    lines = _entries(
        "",
        {key: top.get(key) for key in ("label", "classes", "is_named", "ignore")},
        notes,
    )
    for column in schema.columns:
        values = {
            "name": column.name,
            "kind": column.kind,
            "gaps": column.gaps,
            **column.to_dict(),
        }
        if lines:
            lines.append("")
        lines += ["[[column]]", *_entries(column.name, values, notes)]
    return "\n".join(lines) + "\n"


def read_schema(path: str | os.PathLike[str]) -> Schema:
    """The schema in a file.

    Raises a `SchemaError` with the file's name for anything else, and an `OSError`
    without a file.
    """
    name = Path(path).name
    with open(path, "rb") as stream:
        text = stream.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise SchemaError(name, f"at most {LARGEST // 2**20} MiB", "a larger file")
    try:
        return parsed(text.decode("utf-8"))
    except FlyNNError as error:
        raise SchemaError(f"{name}: {error.field}", error.expected, error.got) from None
    except (ValueError, RecursionError) as error:
        # The text of a parser's error may hold a part of the file.
        where = ""
        if isinstance(error, tomllib.TOMLDecodeError):
            where = f" ({str(error).rpartition('(')[2].rstrip(')')})"
        raise SchemaError(
            name, "a schema in TOML", f"{type(error).__name__}{where}"[:120]
        ) from None


def parsed(text: str) -> Schema:
    """The schema in a text.

    Raises a `SchemaError`, a `ValueError` or a `RecursionError` for anything else.
    """
    n_marks = sum(map(text.count, "\n=[,."))
    if n_marks > _MOST_MARKS:
        raise SchemaError(
            "schema", f"at most {_MOST_MARKS} lines, entries and values", n_marks
        )
    if _DOTTED.search(text):
        raise SchemaError("schema", "keys of one part", "a key of 32 parts or more")
    values = tomllib.loads(text.removeprefix("\ufeff"))
    unknown = sorted(set(values) - set(_TOP))
    if unknown:
        raise SchemaError(
            f"key {unknown[0][:60]!r}", f"one of {', '.join(_TOP)}", "an unknown key"
        )
    columns = values.pop("column", None)
    gap_texts = values.pop("gap-texts", [])
    if not isinstance(columns, list) or not all(
        isinstance(column, dict) for column in columns
    ):
        raise SchemaError("column", "tables [[column]]", type(columns).__name__)
    columns = [
        {key.replace("-", "_"): value for key, value in column.items()}
        for column in columns
    ]
    if gap_texts:
        # Texts of gaps at the top are those of all columns.
        for column in columns:
            own = column.get("gap_texts", [])
            column["gap_texts"] = gap_texts
            if isinstance(gap_texts, list) and isinstance(own, list):
                column["gap_texts"] = [*gap_texts, *own]
    return Schema.from_dict(
        {
            "columns": columns,
            **{key.replace("-", "_"): value for key, value in values.items()},
        }
    )


def _entries(
    column: str, values: Mapping[str, object], notes: Mapping[tuple[str, str], str]
) -> list[str]:
    """Lines of the values that are not None, and of all comments."""
    lines = []
    for key, value in values.items():
        lines += [f"# {line}" for line in notes.get((column, key), "").splitlines()]
        if value is not None:
            lines.append(f"{key.replace('_', '-')} = {in_toml(value)}")
    lines += [f"# {line}" for line in notes.get((column, ""), "").splitlines()]
    return lines


def in_toml(value: object) -> str:
    """A value of Python as one of TOML, names of a table in quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(in_toml, value))}]"
    if isinstance(value, dict):
        pairs = [f"{in_toml(key)} = {in_toml(entry)}" for key, entry in value.items()]
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, str):
        # TOML takes JSON's escapes, but no pairs of surrogates, and the last control
        # character of ASCII not as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return repr(value).lower()
    return repr(value)
