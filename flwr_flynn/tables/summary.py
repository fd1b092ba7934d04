"""Summary of tables: kinds, levels and gaps of the columns as numbers of rows, which add over parties.

The schema that follows from the sum is the one that follows from all rows together. A party names no level, and tells
of no gaps, that fewer than `min_examples` of its rows have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.schema import LEARNED_LEVELS, MOST_COLUMNS, MOST_LEVELS, Column, Schema, is_empty, is_nameable
from flwr_flynn.tables.table import KINDS, Table

MOST_ROWS = 2**53


@dataclass(frozen=True)
class ColumnSummary:
    """What is known of a column.

    Parameters
    ----------
    rows : mapping of str to int
        Rows of the parties at which the column is of each kind, those with gaps included.
    gaps : int
        Rows without a value.
    levels : mapping of str to int
        Rows with each level of a category.
    """

    rows: Mapping[str, int]
    gaps: int = 0
    levels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, values in (("rows", self.rows), ("levels", self.levels), ("gaps", {"": self.gaps})):
            if not isinstance(values, Mapping) or not all(_is_number(value) for value in values.values()):
                raise SchemaError(f"summary {what}", "numbers of rows", type(values).__name__)
        if set(self.rows) - set(KINDS):
            raise SchemaError("summary rows", f"kinds among {', '.join(KINDS)}", f"{len(self.rows)} others")
        if bad := sum(not is_nameable(level) for level in self.levels):
            raise SchemaError("summary levels", "short printable texts", f"{bad} others")
        n = sum(self.rows.values())
        if self.gaps > n or sum(self.levels.values()) > self.rows.get("category", 0):
            raise SchemaError("summary", f"at most {n} gaps and levels, as there are rows", "more")

    def __add__(self, other: ColumnSummary) -> ColumnSummary:
        rows, levels = (_added(a, b) for a, b in ((self.rows, other.rows), (self.levels, other.levels)))
        return ColumnSummary(rows, self.gaps + other.gaps, levels)

    @property
    def kind(self) -> str | None:
        """The kind at most rows, the first by name among equals; None where all values are missing."""
        return min(self.rows, key=lambda kind: (-self.rows[kind], kind)) if self.rows else None


@dataclass(frozen=True)
class TableSummary:
    """The columns of one or more tables by name.

    Parameters
    ----------
    columns : mapping of str to ColumnSummary
        In the order of the first table.
    n_rows : int
    n_tables : mapping of str to int
        Tables with rows that have the column.
    is_named : bool, default=True

    Examples
    --------
    >>> here = TableSummary.of(Table(["sex"], [np.array(["f", "f", "m", None], object)]))
    >>> there = TableSummary.of(Table(["sex"], [np.array(["m"], object)]))
    >>> (here + there).schema()[0].columns
    (Column(name='sex', kind='category', levels=('f', 'm'), gaps=True, low=None, high=None, unit=''),)
    """

    columns: Mapping[str, ColumnSummary]
    n_rows: int
    n_tables: Mapping[str, int]
    is_named: bool = True

    @classmethod
    def of(cls, X: Any, min_examples: int = 1) -> TableSummary:
        """The summary of a table, or of what `Table.of` takes."""
        table = Table.of(X)
        pairs = zip(table.names, table.columns, table.kinds, strict=True)
        columns = {name: _summary_of(values, kind, min_examples) for name, values, kind in pairs}
        return cls(columns, len(table), {name: int(len(table) > 0) for name in table.names}, table.is_named)

    def __add__(self, other: TableSummary) -> TableSummary:
        names = dict.fromkeys((*self.columns, *other.columns))
        empty = ColumnSummary({})
        columns = {name: self.columns.get(name, empty) + other.columns.get(name, empty) for name in names}
        n_tables = {name: self.n_tables.get(name, 0) + other.n_tables.get(name, 0) for name in names}
        return TableSummary(columns, self.n_rows + other.n_rows, n_tables, self.is_named and other.is_named)

    def schema(self) -> tuple[Schema, dict[str, str]]:
        """The schema of these tables, and columns that are left out, with the reasons.

        It has the columns of more than half of the tables with rows, the most frequent `LEARNED_LEVELS` of each
        category in the order of their texts, and bits for gaps where there are any. Left out are columns without
        values, and texts that are nearly all different.
        """
        most = max(self.n_tables.values(), default=0)
        kept, left_out = [], {}
        for name, summary in self.columns.items():
            if 2 * self.n_tables[name] <= most:
                left_out[name] = f"only {self.n_tables[name]} of {most} parties have it"
            elif summary.kind is None:
                left_out[name] = "no values"
            elif summary.kind == "category" and max(summary.levels.values(), default=0) < 2:
                left_out[name] = "no text occurs twice, or often enough to be told"
            elif not is_nameable(name):
                left_out[name] = "a name that is long or not printable"
            else:
                order = sorted(summary.levels, key=lambda level: (-summary.levels[level], level))
                levels = sorted(order[:LEARNED_LEVELS]) if summary.kind == "category" else ()
                kept.append(Column(name, summary.kind, levels, summary.gaps > 0))
        if not kept:
            raise SchemaError("columns", "at least one that can be used", f"{len(left_out)} that cannot")
        return Schema(kept, self.is_named), left_out

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values that JSON can hold."""
        columns = [
            [name, dict(each.rows), each.gaps, dict(each.levels), self.n_tables[name]]
            for name, each in self.columns.items()
        ]
        return {"columns": columns, "n_rows": self.n_rows, "is_named": self.is_named}

    @classmethod
    def from_dict(cls, values: Any) -> TableSummary:
        """The summary of such values, which may come from anybody; a `SchemaError` for anything else."""
        try:
            entries, n_rows, is_named = values["columns"], values["n_rows"], values["is_named"]
            columns = {name: ColumnSummary(*rest) for name, *rest, _ in entries}
            n_tables = {entry[0]: entry[-1] for entry in entries}
            right = len(columns) == len(entries) <= MOST_COLUMNS and _is_number(n_rows) and isinstance(is_named, bool)
            right &= all(isinstance(name, str) and len(name) <= 10 * MOST_LEVELS for name in columns)
            right &= all(_is_number(n) for n in n_tables.values())
            right &= all(sum(each.rows.values()) <= n_rows for each in columns.values())
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError("summary", "columns, n_rows and is_named", type(error).__name__) from None
        if not right:
            raise SchemaError("summary", "different names, each with numbers of rows", "others")
        return cls(columns, n_rows, n_tables, is_named)


def _summary_of(values: Any, kind: str, min_examples: int) -> ColumnSummary:
    n = len(values)
    if is_empty(values):
        return ColumnSummary({}, 0)
    if kind != "category":
        n_gaps = int((np.isnat if kind == "date" else np.isnan)(values).sum())
        return ColumnSummary({kind: n}, n_gaps if n_gaps >= min_examples else 0)
    found = Counter(values.tolist())
    n_gaps = found.pop(None, 0)
    named = {text: k for text, k in found.items() if k >= min_examples and is_nameable(text)}
    most = sorted(named, key=lambda text: (-named[text], text))[:MOST_LEVELS]
    levels = {text: named[text] for text in sorted(most)}
    return ColumnSummary({kind: n}, n_gaps if n_gaps >= min_examples else 0, levels)


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_ROWS
