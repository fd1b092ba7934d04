"""Summary of tables: kinds, levels and gaps of the columns as numbers of rows, which
add over parties.

A party names no level, and tells of no gaps, that fewer than `min_examples` of its rows
have. The schema that follows from the sum is the one that follows from all rows
together, see `learned_schema`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.cells import missing
from flwr_flynn.tables.code_values import code_texts
from flwr_flynn.tables.column_encoding import MOST_LEVELS
from flwr_flynn.tables.column_summary import (
    ColumnSummary,
    RowFacts,
    _is_number,
    floored,
    odd_kind,
    separates,
    summary_of,
)
from flwr_flynn.tables.schema import MOST_COLUMNS
from flwr_flynn.tables.table import Table, form_of
from flwr_flynn.tables.texts import BESIDE, as_name, is_beside


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
    def of(
        cls,
        X: object,
        min_examples: int = 1,
        ids: Sequence[bytes] | None = None,
        y: Array | None = None,
        keep: Sequence[str] = (),
    ) -> TableSummary:
        """The summary of a table, or of what `Table.of` takes, as it may be told.

        `ids` are those of the rows, see `TableCounter`, `y` their labels.
        """
        counter = TableCounter(min_examples, keep)
        counter.add(Table.of(X), ids, y)
        return counter.summary()

    def floored(self, min_examples: int, most: int = MOST_LEVELS) -> TableSummary:
        """The summary without gaps and levels of fewer rows, in multiples of these, and
        with the most frequent levels.

        Nor has it a column of the texts beside numbers of fewer rows. So above 1, or
        with more than `MOST_LEVELS` levels at a party, the sum may differ from the
        pool's.
        """
        columns = {
            name: floored(summary, min_examples, most)
            for name, summary in self.columns.items()
            if not is_beside(name, self.columns)
            or summary.n_rows - summary.gaps >= min_examples
        }
        return replace(self, columns=columns)

    def __add__(self, other: TableSummary) -> TableSummary:
        if self.columns and other.columns and self.is_named != other.is_named:
            # Columns without names cannot be told which they are: their party declines,
            # whoever answers first.
            if self.is_named:
                return self
            return other
        empty = ColumnSummary(0, {})
        columns = {
            name: self.columns.get(name, empty) + other.columns.get(name, empty)
            for name in {**self.columns, **other.columns}
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
                *map(dict, (summary.levels, summary.units, summary.codes)),
            ]
            for name, summary in self.columns.items()
        ]
        return {"columns": columns, "n_rows": self.n_rows, "is_named": self.is_named}

    @classmethod
    def from_dict(cls, values: Any) -> TableSummary:
        """The summary of such values, which may come from anybody.

        Raises a `SchemaError` for anything else.
        """
        entries = None
        if isinstance(values, Mapping):
            entries = values.get("columns")
        # Asked before anything is built.
        if not isinstance(entries, list) or len(entries) > MOST_COLUMNS:
            raise SchemaError(
                "summary", f"a list of at most {MOST_COLUMNS} columns", "others"
            )
        try:
            n_rows = values["n_rows"]
            is_named = values["is_named"]
            # What stays at its site is in no message.
            columns = {
                name: ColumnSummary(n, rows, gaps, levels, units, codes)
                for name, n, rows, gaps, levels, units, codes in entries
            }
            if not is_named:
                columns = {
                    name: columns[name] for name in map(str, range(len(columns)))
                }
            is_valid = (
                all(summary.n_rows <= n_rows for summary in columns.values())
                and len(columns) == len(entries)
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


_FEW_TEXTS = 12
"""Different texts of a column from which ids may be known."""

_MOST_TEXTS = 2**20
"""Different texts of a column that are counted; beyond, those that occurred once are
dropped."""


def _row_facts(
    table: Table, ids: Sequence[bytes] | None, y: Array | None, least: int
) -> RowFacts:
    """Facts about the rows of a table, with their ids and labels."""
    facts = RowFacts(
        np.full(len(table), ids is None),
        least,
        texts=[
            values
            for values, kind in zip(table.columns, table.kinds, strict=True)
            if kind == "category" and len({*values.tolist()}) <= _FEW_TEXTS
        ],
    )
    if y is not None:
        codes = np.unique(y.astype(str), return_inverse=True)[1]
        facts = facts._replace(labels=codes)
    if ids is not None:
        index_of = {key: index for index, key in enumerate(ids)}
        facts.one_each[[*index_of.values()]] = True
    return facts


class TableCounter:
    """Kinds, gaps and levels of tables that come some rows at a time.

    Parameters
    ----------
    least : int
        Rows that gaps and levels need to be told; where rows have ids, such as those of
        patients, as many different ids as well: one person's name in many rows stays
        at home.
    keep : sequence of str
        Columns that are no ids or names, although they look so.
    """

    def __init__(self, least: int, keep: Sequence[str] = ()) -> None:
        self._least = least
        self._keep = {form_of(as_name(name)) for name in keep}
        self.everything = TableSummary({}, 0)  # for its own site
        # Ids by column and level, None for gaps, at most `least` of each.
        self._holders: dict[str, dict[str | None, set[bytes]]] = {}

    def add(
        self,
        table: Table,
        ids: Sequence[bytes] | None = None,
        y: Array | None = None,
    ) -> None:
        """Add the rows of a table, with their ids and labels."""
        columns = {}
        facts = _row_facts(table, ids, y, self._least)
        parts = {name for name in table.names if is_beside(name, table.names)}
        parts |= {name.removesuffix(BESIDE) for name in parts}
        for name, values, kind in zip(
            table.names, table.columns, table.kinds, strict=True
        ):
            units = table.units.get(name)
            is_kept = form_of(name) in self._keep
            is_gap = missing(values)
            odd = ""
            if not is_kept and name not in parts:
                odd = odd_kind(name, values, is_gap, kind, facts)
            if odd:
                n_gaps = int(is_gap.sum())
                summary = ColumnSummary(len(values), {odd: len(values)}, n_gaps)
            else:
                summary = summary_of(values, kind, units, is_kept)
                is_telling = not is_kept and separates(values, is_gap, kind, facts)
                summary = replace(summary, is_telling=is_telling)
            columns[name] = summary
            if ids is None:
                continue
            holders = self._holders.setdefault(name, {})
            cells = values.tolist()
            if kind != "category":
                codes = code_texts(values, summary.codes)
                cells = [
                    None if gap else code
                    for gap, code in zip(is_gap, codes, strict=True)
                ]
            for cell, key in zip(cells, ids, strict=True):
                keys = holders.setdefault(cell, set())
                if len(keys) < self._least:
                    keys.add(key)
        total = self.everything + TableSummary(columns, len(table), table.is_named)
        columns = {**total.columns}
        for name, summary in columns.items():
            holders = self._holders.get(name, {})
            if max(len(summary.levels), len(holders)) > _MOST_TEXTS:
                levels = {text: n for text, n in summary.levels.items() if n > 1}
                columns[name] = replace(summary, levels=levels)
                for cell in holders.keys() - levels.keys() - {None}:
                    del holders[cell]
        self.everything = replace(total, columns=columns)

    def summary(self) -> TableSummary:
        """The summary as it may be told."""
        columns = {**self.everything.columns}
        for name, holders in self._holders.items():
            summary = columns[name]
            shared = {
                cell for cell, keys in holders.items() if len(keys) >= self._least
            }
            levels, codes = (
                {text: n for text, n in rows.items() if text in shared}
                for rows in (summary.levels, summary.codes)
            )
            gaps = 0
            if None in shared:
                gaps = summary.gaps
            own = set[bytes]().union(*(holders[cell] for cell in holders if cell))
            if is_beside(name, columns) and len(own) < self._least:
                gaps = summary.n_rows  # it has no text to be told
            units = summary.units
            # Of which person's rows one of several is, is not known here.
            known = [keys for cell, keys in holders.items() if cell is not None]
            if len(units) > 1 or len(set[bytes]().union(*known)) < self._least:
                units = {}
            columns[name] = replace(
                summary, levels=levels, gaps=gaps, codes=codes, units=units
            )
        return replace(self.everything, columns=columns).floored(self._least)
