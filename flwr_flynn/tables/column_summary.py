"""Summary of a column: numbers of rows with its kinds, gaps and levels, which add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.cells import missing
from flwr_flynn.tables.code_values import codes_among_dates, missing_codes
from flwr_flynn.tables.column_encoding import is_nameable
from flwr_flynn.tables.personal_columns import (
    OFTEN,
    PERSONAL,
    are_ids,
    are_names,
    are_text_ids,
    nearly_all_differ,
)
from flwr_flynn.tables.table import KINDS
from flwr_flynn.tables.texts import CONVERTED, as_level, is_unit

LEFT_OUT = PERSONAL | {
    "outcome": "there, or missing, in rows of one class alone, as what follows from it"
}
"""Kinds of columns that are features where a site keeps them alone."""

MOST_ROWS = 2**53
_MOST_UNITS = 10  # of a column

# Rows, their share with one label, and the share of it in all rows at most, of a column
# that is filled when the label is known.
_MANY = 30
_ONE_LABEL = 0.98
_USUAL = 0.8


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
        differ, or look like names, is of a kind of its own, see `LEFT_OUT`.
    gaps : int
        Rows without a value.
    levels : mapping of str to int
        Rows with each level of a category.
    units, codes : mapping of str to int
        Rows with each unit, "" for none, and with each value that is far outside all
        others.
    """

    n_rows: int
    rows: Mapping[str, int]
    gaps: int = 0
    levels: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {"n_rows": self.n_rows, "gaps": self.gaps}
        for what, values in (
            ("rows", self.rows),
            ("levels", self.levels),
            ("units", self.units),
            ("codes", self.codes),
            ("sizes", sizes),
        ):
            if not isinstance(values, Mapping) or not all(
                _is_number(value) for value in values.values()
            ):
                raise SchemaError(
                    f"summary {what}", "numbers of rows", type(values).__name__
                )
        if set(self.rows) - {*KINDS, *LEFT_OUT}:
            raise SchemaError(
                "summary rows",
                f"kinds among {', '.join(KINDS)}",
                f"{len(self.rows)} others",
            )
        # Two forms of one level, or below of one name, would make a schema that nobody
        # can use.
        n_bad = sum(
            not is_nameable(level) or as_level(level) != level for level in self.levels
        ) + sum(not is_nameable(text) for text in {*self.units, *self.codes} - {""})
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
            *(
                _added(getattr(self, name), getattr(other, name))
                for name in ("levels", "units", "codes")
            ),
        )

    @property
    def kind(self) -> str | None:
        """The kind at most rows, the first by name among equals.

        It is None where all values are missing.
        """
        if self.rows:
            return min(self.rows, key=lambda kind: (-self.rows[kind], kind))
        return None


def summary_of(
    values: Array,
    kind: str,
    others: Sequence[Array] = (),
    units: Mapping[str, int] | None = None,
    is_kept: bool = False,
    name: str = "",
) -> ColumnSummary:
    """The summary of one column of a kind, with all its levels.

    `others` are labels and texts of its rows, see `are_ids`, `units` have their rows.
    One that `is_kept` is of no kind that may name persons.
    """
    n = len(values)
    if kind == "category":
        return _summary_of_texts(Counter(values.tolist()), n, is_kept, units)
    is_gap = missing(values)
    n_gaps = int(is_gap.sum())
    if n_gaps == n:
        return ColumnSummary(n, {}, n)
    known = values[~is_gap]
    if kind == "number":
        known = known.astype(np.float64, copy=False)
    others = [labels[~is_gap] for labels in others]
    if kind == "number" and not is_kept and are_ids(known, others, name):
        return ColumnSummary(n, {"id": n}, n_gaps)
    if units is not None and not units:  # accepted as it is
        return ColumnSummary(n, {kind: n}, n_gaps)
    if units is None and kind == "number":
        units = {"": n - n_gaps}
    return ColumnSummary(n, {kind: n}, n_gaps, {}, units or {}, missing_codes(known))


def _summary_of_texts(
    levels: Counter[str | None], n: int, is_kept: bool, units: Mapping[str, int] | None
) -> ColumnSummary:
    """The summary of a column of `n` rows, with so many rows of each text, None for
    gaps.
    """
    units = units or {}
    n_gaps = levels.pop(None, 0)
    n_texts = n - n_gaps
    if not n_texts:
        return ColumnSummary(n, {}, n)
    kind = "category"
    least = 1
    if not is_kept:
        if are_names(levels):
            return ColumnSummary(n, {"name": n}, n_gaps)
        if are_text_ids(levels, n_texts):
            return ColumnSummary(n, {"text": n}, n_gaps, {}, units)
    if not is_kept and nearly_all_differ(levels, n_texts):
        kind = "text"
        least = OFTEN
    named = {
        text: k
        for text, k in levels.items()
        if text is not None and k >= least and is_nameable(text)
    }
    codes = codes_among_dates(levels)
    return ColumnSummary(n, {kind: n}, n_gaps, named, units, codes)


def tells_label(values: Array, codes: Integers) -> bool:
    """True for gaps, or values, in many rows that nearly all have one label, which is
    that of fewer of all rows.
    """
    is_gap = missing(values)
    shares = np.bincount(codes, minlength=1) / max(len(codes), 1)
    for own in (codes[is_gap], codes[~is_gap]):
        n_rows = np.bincount(own, minlength=1)
        label = n_rows.argmax()
        is_one = n_rows[label] >= _ONE_LABEL * len(own)
        if len(own) >= _MANY and is_one and shares[label] < _USUAL:
            return True
    return False


def _by_rows(n_rows: Mapping[str, int]) -> list[str]:
    """Names by their rows, the most first, and those of as many by themselves."""
    return sorted(n_rows, key=lambda name: (-n_rows[name], name))


def floored(summary: ColumnSummary, least: int, most: int) -> ColumnSummary:
    """A summary as it may leave its party.

    Numbers of rows are rounded down to multiples of the floor, so that no rest is
    exact. A unit may be any text behind a number: those of known parts alone are told.
    """
    levels, units, codes = (
        {text: n // least * least for text, n in rows.items() if n >= least}
        for rows in (summary.levels, summary.units, summary.codes)
    )
    units = {unit: n for unit, n in units.items() if unit == CONVERTED or is_unit(unit)}
    return replace(
        summary,
        gaps=summary.gaps // least * least,
        levels=most_frequent(levels, most),
        units=most_frequent(units, _MOST_UNITS),
        codes=codes,
    )


def most_frequent(levels: Mapping[str, int], most: int) -> dict[str, int]:
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
