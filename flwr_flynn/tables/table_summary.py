"""Summary of tables: kinds, levels and gaps of the columns as numbers of rows, which
add over parties.

A party names no level, and tells of no gaps, that fewer than `min_examples` of its rows
have. The schema that follows from the sum is the one that follows from all rows
together, see `learned_schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.column_encoding import MOST_LEVELS
from flwr_flynn.tables.column_summary import (
    ColumnSummary,
    _is_number,
    floored,
    summary_of,
)
from flwr_flynn.tables.schema import MOST_COLUMNS
from flwr_flynn.tables.table import (
    Table,
)
from flwr_flynn.tables.texts import as_name


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
    >>> (here + there).columns["sex"].levels
    {'f': 2, 'm': 2}
    """

    columns: Mapping[str, ColumnSummary]
    n_rows: int
    is_named: bool = True

    @classmethod
    def of(cls, X: object, min_examples: int = 1) -> TableSummary:
        """The summary of a table, or of what `Table.of` takes, as it may be told."""
        return cls.of_table(Table.of(X, is_learned=True)).floored(min_examples)

    @classmethod
    def of_table(cls, table: Table) -> TableSummary:
        """The summary of a table with all its levels, as it is counted at home."""
        pairs = zip(table.names, table.columns, table.kinds, strict=True)
        columns = {name: summary_of(values, kind) for name, values, kind in pairs}
        return cls(columns, len(table), table.is_named)

    def floored(self, min_examples: int, most: int = MOST_LEVELS) -> TableSummary:
        """The summary without gaps and levels of fewer rows, in multiples of these, and
        with the most frequent levels.

        So above 1, or with more than `MOST_LEVELS` levels at a party, the sum may
        differ from the pool's.
        """
        columns = {
            name: floored(summary, min_examples, most)
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
        """The summary of such values, which may come from anybody.

        Raises a `SchemaError` for anything else.
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
                all(summary.n_rows <= n_rows for summary in columns.values())
                and len(columns) == len(entries) <= MOST_COLUMNS
                and _is_number(n_rows)
                and isinstance(is_named, bool)
                and all(
                    isinstance(name, str) and len(name) <= 10 * MOST_LEVELS
                    for name in columns
                )
                and all(as_name(name) == name for name in columns)
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
