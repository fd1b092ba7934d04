"""Summary of tables: kinds, levels and gaps of the columns as numbers of rows, which
add over parties.

The schema that follows from the sum is the one that follows from all rows together. A
party names no level, and tells of no gaps, that fewer than `min_examples` of its rows
have.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Floats
from flwr_flynn._validation import listed
from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.column_encoding import MOST_LEVELS, Column, is_nameable
from flwr_flynn.tables.raw_column import missing
from flwr_flynn.tables.schema import LEARNED_LEVELS, MOST_COLUMNS, MOST_NUMBERS, Schema
from flwr_flynn.tables.table import (
    KINDS,
    Table,
    form_of,
    forms_of_level,
    is_frame,
    names_of,
    needs_table,
)
from flwr_flynn.tables.texts import BESIDE, as_level, as_name, is_beside

MOST_ROWS = 2**53


@dataclass(frozen=True)
class ColumnSummary:
    """Numbers of rows with the kinds, gaps and levels of a column.

    Parameters
    ----------
    n_rows : int
        Rows of the parties that have the column.
    rows : mapping of str to int
        Rows of the parties at which the column is of each kind, those with gaps
        included. A column of gaps alone is of none, and one whose values nearly all
        differ is of a kind of its own: "id" or "text".
    gaps : int
        Rows without a value.
    levels : mapping of str to int
        Rows with each level of a category.
    """

    n_rows: int
    rows: Mapping[str, int]
    gaps: int = 0
    levels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {"n_rows": self.n_rows, "gaps": self.gaps}
        for what, values in (
            ("rows", self.rows),
            ("levels", self.levels),
            ("sizes", sizes),
        ):
            if not isinstance(values, Mapping) or not all(
                _is_number(value) for value in values.values()
            ):
                raise SchemaError(
                    f"summary {what}", "numbers of rows", type(values).__name__
                )
        if set(self.rows) - {*KINDS, *_PERSONAL}:
            raise SchemaError(
                "summary rows",
                f"kinds among {', '.join(KINDS)}",
                f"{len(self.rows)} others",
            )
        # Two forms of one level, or below of one name, would make a schema that nobody
        # can use.
        n_bad = sum(
            not is_nameable(level) or as_level(level) != level for level in self.levels
        )
        if n_bad:
            raise SchemaError(
                "summary levels", "short printable texts", f"{n_bad} others"
            )
        n_texts = self.rows.get("category", 0) + self.rows.get("text", 0)
        n_with_level = sum(self.levels.values())
        if n_with_level > n_texts:
            raise SchemaError(
                "summary levels", f"levels of at most {n_texts} rows", n_with_level
            )
        n_known = max(sum(self.rows.values()), self.gaps)
        if n_known > self.n_rows:
            raise SchemaError("summary rows", f"at most {self.n_rows}", n_known)

    def __add__(self, other: ColumnSummary) -> ColumnSummary:
        return ColumnSummary(
            self.n_rows + other.n_rows,
            _added(self.rows, other.rows),
            self.gaps + other.gaps,
            _added(self.levels, other.levels),
        )

    @property
    def kind(self) -> str | None:
        """The kind at most rows, the first by name among equals; None where all values
        are missing.
        """
        if self.rows:
            return min(self.rows, key=lambda kind: (-self.rows[kind], kind))
        return None


@dataclass(frozen=True)
class TableSummary:
    """The columns of one or more tables by name.

    Parameters
    ----------
    columns : mapping of str to ColumnSummary
    n_rows : int
    is_named : bool, default=True

    Examples
    --------
    >>> import numpy as np
    >>> here = TableSummary.of(Table(["sex"], [np.array(["f", "f", "m", None], object)]))
    >>> there = TableSummary.of(Table(["sex"], [np.array(["m"], object)]))
    >>> (here + there).schema()[0].inputs
    ('sex=f', 'sex=m', 'sex missing')
    """

    columns: Mapping[str, ColumnSummary]
    n_rows: int
    is_named: bool = True

    @classmethod
    def of(cls, X: object, min_examples: int = 1) -> TableSummary:
        """The summary of a table, or of what `Table.of` takes, as it may be told."""
        return cls.counted(Table.of(X, is_learned=True)).told(min_examples)

    @classmethod
    def counted(cls, table: Table) -> TableSummary:
        """The summary of a table with all its levels, as it is counted at home."""
        pairs = zip(table.names, table.columns, table.kinds, strict=True)
        columns = {name: _counted(values, kind) for name, values, kind in pairs}
        return cls(columns, len(table), table.is_named)

    def told(self, min_examples: int, most: int = MOST_LEVELS) -> TableSummary:
        """The summary without gaps and levels of fewer rows, in multiples of these, and
        with the most frequent levels.

        So above 1, or with more than `MOST_LEVELS` levels at a party, the sum may
        differ from the pool's.
        """
        columns = {
            name: _above_floor(summary, min_examples, most)
            for name, summary in self.columns.items()
        }
        return replace(self, columns=columns)

    def only(self, keep: Callable[[str, str | None], bool]) -> TableSummary:
        """The summary with the levels, and for None the gaps, to keep: by the name of
        the column and the level.
        """
        columns = {}
        for name, summary in self.columns.items():
            levels = {
                level: n for level, n in summary.levels.items() if keep(name, level)
            }
            n_gaps = 0
            if keep(name, None):
                n_gaps = summary.gaps
            columns[name] = replace(summary, gaps=n_gaps, levels=levels)
        return replace(self, columns=columns)

    def __add__(self, other: TableSummary) -> TableSummary:
        if self.columns and other.columns and self.is_named != other.is_named:
            # Columns without names cannot be told which they are: their party declines,
            # whoever answers first.
            if self.is_named:
                return self
            return other
        names = dict.fromkeys((*self.columns, *other.columns))
        empty = ColumnSummary(0, {})
        columns = {
            name: self.columns.get(name, empty) + other.columns.get(name, empty)
            for name in names
        }
        if self.columns:
            is_named = self.is_named
        else:
            is_named = other.is_named
        return TableSummary(columns, self.n_rows + other.n_rows, is_named)

    def schema(
        self, ignore: Sequence[str] = (), keep: Sequence[str] = ()
    ) -> tuple[Schema, dict[str, str]]:
        """The schema of these tables, and columns that are left out, with the reasons.

        It has the columns that more than half of the rows have, in the order of their
        names, the most frequent `LEARNED_LEVELS` of each category in the order of their
        texts, and bits for gaps where there are any. Left out are columns to `ignore`,
        columns without values, and, but for those to `keep`, columns in which nearly
        all values differ: texts, and integers that are no measurements. Names that
        differ in capitals are one.
        """
        columns: Mapping[str, ColumnSummary] = self.columns
        if self.is_named:
            columns = self._by_form()
        _check_known(columns, (*ignore, *keep))
        ignored = {form_of(as_name(name)) for name in ignore}
        forced = {form_of(as_name(name)) for name in keep}
        in_schema: list[Column] = []
        left_out: dict[str, str] = {}
        width = 0
        for name in self._in_order(columns):
            summary = columns[name]
            form = form_of(name)
            reason = _reason(name, summary, self.n_rows, columns, form in forced)
            if form in ignored:
                left_out[name] = "ignored"
                continue
            # Without names all columns are needed.
            if self.is_named and reason:
                left_out[name] = reason
                continue
            column = _column_of(name, summary)
            width += column.width
            if width > MOST_NUMBERS and self.is_named:
                left_out[name] = f"beyond {MOST_NUMBERS} numbers a row"
            else:
                in_schema.append(column)
        if not in_schema:
            ids = [name for name in left_out if columns[name].kind == "id"]
            unforced = [name for name in ids if name not in ignore]
            if unforced:
                # A table of ids alone is rather one of measurements.
                return self.schema(ignore, unforced)
            raise _no_column(left_out)
        known = [
            name
            for name in left_out
            if 2 * columns[name].n_rows > self.n_rows and is_nameable(name)
        ]
        return Schema(in_schema, self.is_named, ignore=known), left_out

    def _in_order(self, columns: Iterable[str]) -> list[str]:
        """Names of columns in the order of the schema: parties have orders of their
        own.
        """
        if self.is_named:
            return sorted(columns)
        return sorted(columns, key=int)

    def _by_form(self) -> dict[str, ColumnSummary]:
        """The columns, with names that differ in capitals as one, under that of most
        rows.
        """
        columns: dict[str, ColumnSummary] = {}
        n_rows = {name: summary.n_rows for name, summary in self.columns.items()}
        for names in _alike(n_rows, form_of):
            total = ColumnSummary(0, {})
            for name in names:
                total += self.columns[name]
            if len(names) > 1 and total.n_rows > self.n_rows:  # a table has both
                columns |= {name: self.columns[name] for name in names}
            else:
                columns[names[0]] = total
        return columns

    def to_dict(self) -> dict[str, object]:
        """Plain Python values that JSON can hold."""
        columns = [
            [
                name,
                summary.n_rows,
                dict(summary.rows),
                summary.gaps,
                dict(summary.levels),
            ]
            for name, summary in self.columns.items()
        ]
        return {"columns": columns, "n_rows": self.n_rows, "is_named": self.is_named}

    @classmethod
    def from_dict(cls, values: Any) -> TableSummary:
        """The summary of such values, which may come from anybody; a `SchemaError` for
        anything else.
        """
        try:
            entries = values["columns"]
            n_rows = values["n_rows"]
            is_named = values["is_named"]
            columns = {name: ColumnSummary(*rest) for name, *rest in entries}
            if not is_named:
                columns = {
                    name: columns[name] for name in map(str, range(len(columns)))
                }
            is_valid = (
                len(columns) == len(entries) <= MOST_COLUMNS
                and _is_number(n_rows)
                and isinstance(is_named, bool)
                and all(_is_column_name(name) for name in columns)
                and all(summary.n_rows <= n_rows for summary in columns.values())
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(
                "summary", "columns, n_rows and is_named", type(error).__name__
            ) from None
        if not is_valid:
            raise SchemaError(
                "summary", "different names, each with numbers of rows", "others"
            )
        return cls(columns, n_rows, is_named)


def learned(
    X: Any, min_examples: int, ignore: Sequence[str] = (), keep: Sequence[str] = ()
) -> tuple[Any, Any]:
    """X as it is and None, if it is of plain numbers; else as a table, with its schema.

    A warning names the columns that are left out, a `SchemaError` is raised where all
    are.
    """
    is_plain = not needs_table(X)
    if is_plain and not (is_frame(X) and names_of(X)):
        if ignore or keep:
            raise SchemaError(
                "ignore, keep", "none for samples whose columns have no names", "names"
            )
        return X, None
    table = Table.of(X)
    schema, left_out = TableSummary.of(X, min_examples).schema(ignore, keep)
    chosen = {name: reason for name, reason in left_out.items() if reason != "ignored"}
    if chosen:
        named = listed([f"{name[:60]!r} ({reason})" for name, reason in chosen.items()])
        warnings.warn(f"columns are left out: {named}", UserWarning, stacklevel=4)
    if is_plain and not left_out:
        return (X, None)
    return (table, schema)


def _counted(values: Array, kind: str) -> ColumnSummary:
    """The summary of one column of a kind, with all its levels."""
    n = len(values)
    if kind == "category":
        return _counted_texts(Counter(values.tolist()), n)
    n_gaps = int(missing(values).sum())
    if n_gaps == n:
        return ColumnSummary(n, {}, n)
    if kind == "number" and _are_ids(values[~np.isnan(values)]):
        kind = "id"
    return ColumnSummary(n, {kind: n}, n_gaps)


def _counted_texts(levels: Counter[str | None], n: int) -> ColumnSummary:
    """The summary of a column of `n` rows, with so many rows of each text, None for
    gaps.
    """
    n_gaps = levels.pop(None, 0)
    n_texts = n - n_gaps
    if not n_texts:
        return ColumnSummary(n, {}, n)
    kind = "category"
    least = 1
    if n_texts >= _FEW:
        most = _NEARLY_ALL
        if sum(len(text or "") * k for text, k in levels.items()) > _LONG * n_texts:
            most = _SOME
        if len(levels) > most * n_texts:
            kind = "text"
            least = _OFTEN
    named = {
        text: k
        for text, k in levels.items()
        if text is not None and k >= least and is_nameable(text)
    }
    return ColumnSummary(n, {kind: n}, n_gaps, named)


_PERSONAL = {
    "id": "integers that nearly all differ, as ids do",
    "text": "texts that nearly all differ",
}
# values; shares of different texts, longer ones with the second
_FEW = 30
_NEARLY_ALL = 0.8
_SOME = 0.2
_LONG = 40
_OFTEN = 5  # rows that share a text of a column whose texts nearly all differ


def _are_ids(values: Floats) -> bool:
    """True for integers that nearly all differ, and are no measurements.

    Of a small range ids are more different than integers drawn by chance, and of a
    large one they are spread evenly; measurements are negative, round, or nearer to the
    middle. A few ids may stand twice.
    """
    n = len(values)
    if n < _FEW or (values < 0).any() or (values % 1 != 0).any():
        return False
    n_different = len(np.unique(values))
    size = values.max() - values.min() + 1
    if n_different < _NEARLY_ALL * n:
        return False
    missed = np.exp(-n / size)  # share of the range that chance leaves out
    deviation = np.sqrt(max(size * missed * (1 - (1 + n / size) * missed), 0.0))
    if n_different > size * (1 - missed) + 4 * deviation and deviation > 0.5:
        return True
    if size < 10 * n:
        return False
    shares = (np.sort(values) - values.min()) / (size - 1)
    # as Kolmogorov and Smirnov test it
    is_even = np.abs(shares - np.linspace(0, 1, n)).max() < 1.6 / np.sqrt(n)
    return bool((values % 10 == 0).mean() < 0.25 and is_even)


def _check_known(columns: Iterable[str], names: Iterable[str]) -> None:
    """Raise a `SchemaError` for names that no column has."""
    forms = {*map(form_of, columns)}
    unknown = [repr(name[:60]) for name in names if form_of(as_name(name)) not in forms]
    if unknown:
        raise SchemaError(
            "ignore, keep", "names of columns", f"others: {listed(unknown)}"
        )


def _no_column(left_out: Mapping[str, str]) -> SchemaError:
    """An error about tables of which no column can be used."""
    reasons = [f"{name[:60]!r} ({reason})" for name, reason in left_out.items()]
    return SchemaError(
        "columns",
        "at least one that can be used (keep names columns to use all the same)",
        f"{len(left_out)} that cannot: {listed(reasons)}",
    )


def _reason(
    name: str,
    summary: ColumnSummary,
    n_rows: int,
    names: Iterable[str],
    is_forced: bool,
) -> str:
    """The reason to leave a column out; "" for one that is used."""
    if not is_beside(name, names) and 2 * summary.n_rows <= n_rows:
        return f"only {summary.n_rows} of {n_rows} rows have it"
    if summary.kind is None:
        return "no values"
    if summary.kind in _PERSONAL and not is_forced:
        return _PERSONAL[summary.kind]
    if (
        summary.kind in ("category", "text")
        and max(summary.levels.values(), default=0) < 2
    ):
        return "no text occurs twice, or often enough to be told"
    if is_nameable(name):
        return ""
    return "a name that is long or not printable"


def _column_of(name: str, summary: ColumnSummary) -> Column:
    """The column of a schema that follows from a summary."""
    has_gaps = summary.gaps > 0 and not name.endswith(BESIDE)
    kind = summary.kind or "number"
    if kind in ("category", "text"):
        levels = _most_frequent(_of_one_form(summary.levels), LEARNED_LEVELS)
        return Column(name, "category", sorted(levels), has_gaps)
    if kind == "id":
        kind = "number"
    return Column(name, kind, (), has_gaps)


def _of_one_form(levels: Mapping[str, int]) -> dict[str, int]:
    """The levels, of those that differ in form alone the most frequent with the rows of
    all.
    """
    alike = _alike(levels, lambda level: forms_of_level(level)[-1])
    return {names[0]: sum(levels[name] for name in names) for names in alike}


def _alike(n_rows: Mapping[str, int], form: Callable[[str], str]) -> list[list[str]]:
    """Names of the same form together, those of more rows first."""
    alike: dict[str, list[str]] = {}
    for name in _by_rows(n_rows):
        alike.setdefault(form(name), []).append(name)
    return [*alike.values()]


def _by_rows(n_rows: Mapping[str, int]) -> list[str]:
    """Names by their rows, the most first, and those of as many by themselves."""
    return sorted(n_rows, key=lambda name: (-n_rows[name], name))


def _above_floor(summary: ColumnSummary, least: int, most: int) -> ColumnSummary:
    """A summary as it may leave its party.

    Numbers of rows are rounded down to multiples of the floor, so that no rest is
    exact.
    """
    levels = {
        level: n // least * least for level, n in summary.levels.items() if n >= least
    }
    n_gaps = summary.gaps // least * least
    return replace(summary, gaps=n_gaps, levels=_most_frequent(levels, most))


def _most_frequent(levels: Mapping[str, int], most: int) -> dict[str, int]:
    """At most so many levels, the most frequent and of these the first by their texts,
    in the order of their texts.
    """
    return {level: levels[level] for level in sorted(_by_rows(levels)[:most])}


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {
        name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})
    }


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_ROWS


def _is_column_name(name: object) -> bool:
    is_short = isinstance(name, str) and len(name) <= 10 * MOST_LEVELS
    return is_short and as_name(name) == name
