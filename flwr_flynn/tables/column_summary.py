"""Summary of a column: numbers of rows with its kinds, gaps and levels, which add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from flwr_flynn._types import Array, Integers, Mask
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
    "outcome": "there, or missing, as one class is, which what follows from it would be"
}
"""Kinds of columns that are features where a site keeps them alone."""

MOST_ROWS = 2**53
_MOST_UNITS = 10  # of a column

# Share of rows with one label, the share of it in all rows at most, and what chance
# makes of as many, for a column that is filled when the label is known.
_ONE_LABEL = 0.98
_USUAL = 0.8
_BY_CHANCE = 1e-6

# Between the shares of gaps of a label and of the others: a column of the outcome, and
# one that may be.
_OF_OUTCOME = 0.85
_APART = 0.7

_FEW = 20  # rows of a label, and different values
_FEWEST = 5  # rows of a label that are told apart without an error

# AUROC of one column alone: of few different values, and of more.
_OF_FEW = 0.94
_OF_MANY = 0.99


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
    is_telling : bool
        True for one that tells the labels apart by itself; this stays at its site.
    """

    n_rows: int
    rows: Mapping[str, int]
    gaps: int = 0
    levels: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    is_telling: bool = field(default=False, compare=False)

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
        added = {
            name: _added(getattr(self, name), getattr(other, name))
            for name in ("rows", "levels", "units", "codes")
        }
        return ColumnSummary(
            self.n_rows + other.n_rows,
            gaps=self.gaps + other.gaps,
            is_telling=self.is_telling or other.is_telling,
            **added,
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
    units: Mapping[str, int] | None = None,
    is_kept: bool = False,
) -> ColumnSummary:
    """The summary of one column of a kind, with all its levels.

    `units` have their rows. One that `is_kept` is of no kind that may name persons.
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


class RowFacts(NamedTuple):
    """Facts about the rows of a table, beside a column.

    Parameters
    ----------
    one_each : ndarray of bool
        One row of each id, and all where rows have none.
    least : int
        Rows that a kind needs which the labels decide: it leaves the site.
    labels : ndarray of integers, optional
        Code of the label of each row.
    texts : sequence of ndarray
        Columns of few different texts.
    """

    one_each: Mask
    least: int
    labels: Integers | None = None
    texts: Sequence[Array] = ()


def odd_kind(name: str, values: Array, is_gap: Mask, kind: str, facts: RowFacts) -> str:
    """The kind in `LEFT_OUT` that a column is of by its rows, "" for none."""
    rows = facts.one_each
    if kind == "number":
        known = rows & ~is_gap
        others = [text[known] for text in facts.texts]
        if facts.labels is not None:
            others.append(facts.labels[known])
        if are_ids(values[known].astype(np.float64), others, name):
            return "id"
    if facts.labels is not None and tells_label(
        is_gap[rows], facts.labels[rows], facts.least
    ):
        return "outcome"
    return ""


def tells_label(is_gap: Mask, codes: Integers, least: int) -> bool:
    """True where values are nearly all of one label, of which others have none, or
    nearly all of one label have a value, or a gap, and nearly no others.

    Gaps alone may be of one label, where a test is made of those that may have another.
    Of fewer rows than `least` with a value or a gap, or of a label, it is never true.
    """
    if np.bincount(is_gap, minlength=2).min() < least:
        return False
    shares = np.bincount(codes, minlength=1) / max(len(codes), 1)
    own = codes[~is_gap]
    n_own = np.bincount(own, minlength=1)
    label = n_own.argmax()
    is_one = n_own[label] >= max(_ONE_LABEL * len(own), least)
    chance = shares[label] ** len(own)
    if is_one and shares[label] < _USUAL and chance < _BY_CHANCE:
        return True
    return _gap_difference(is_gap, codes, least) > _OF_OUTCOME


def _gap_difference(is_gap: Mask, codes: Integers, least: int = 0) -> float:
    """The largest difference between the shares of gaps of a label and of the others."""
    n = np.bincount(codes, minlength=1)
    n_gaps = np.bincount(codes[is_gap], minlength=len(n))
    rest = len(codes) - n
    here = n_gaps / np.maximum(n, 1)
    elsewhere = (n_gaps.sum() - n_gaps) / np.maximum(rest, 1)
    are_many = np.minimum(n, rest) >= max(_FEW, least)
    return float(np.abs(here - elsewhere)[are_many].max(initial=0.0))


def separates(values: Array, is_gap: Mask, kind: str, facts: RowFacts) -> bool:
    """True for a column that tells a label apart by its gaps, or by its values: one of
    two nearly without an error, and else without one, which chance does not make.
    """
    if facts.labels is None:
        return False
    rows = facts.one_each
    gaps = is_gap[rows]
    labels = facts.labels[rows]
    if tells_label(gaps, labels, 0) or _gap_difference(gaps, labels) > _APART:
        return True
    labels = labels[~gaps]
    known = values[rows & ~is_gap]
    if kind == "category":
        known = known.astype(str)  # compares faster
    different, places = np.unique(known, return_inverse=True)
    size = len(different)
    is_few = size <= _FEW
    n = np.bincount(labels)
    is_of_two = np.count_nonzero(n) == 2
    if not is_few and (kind == "category" or not is_of_two):
        return False
    ways = 2.0 ** min(size, _FEW)
    nearly = _OF_MANY
    if is_few:
        nearly = _OF_FEW
    by_label = np.bincount(labels * size + places, minlength=len(n) * size)
    table = by_label.reshape(len(n), size)
    counts = table.sum(axis=0)
    for own in table:
        others = counts - own
        least = min(own.sum(), others.sum())
        if least < _FEWEST or (not is_of_two and (own * others).any()):
            continue
        if is_few:  # codes, in whatever order
            order = np.argsort(own / counts)
            own = own[order]
            others = others[order]
        # Of equal values half are below.
        below = np.cumsum(others) - others / 2
        auroc = own @ below / own.sum() / others.sum()
        chance = ways * (least / len(labels)) ** least
        is_exact = auroc == 1 and chance < _BY_CHANCE
        if is_exact or (is_of_two and least >= _FEW and auroc > nearly):
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
