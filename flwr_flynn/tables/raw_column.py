"""Columns of files and frames as numbers, dates and levels.

The kind of a column of texts follows from all its values that are no gaps: dates if
nearly all are of one form, numbers if most are numbers (see `tables.texts`; true and
false are 1 and 0), texts otherwise. Neither the order of the rows nor how many are read
at a time has an effect. A file with types, or a frame, has the kinds of these; its
texts are read as others are, but for codes, such as 01, which stay texts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.tables.cells import (
    AS_IT_IS,
    KIND_OF_DTYPE,
    ByLevel,
    CellReader,
    Gaps,
    Scale,
    level_of,
    missing,
    text_of,
)
from flwr_flynn.tables.texts import (
    DATE_FORMATS,
    Numerals,
    date_of,
    number_of,
    pointed,
    proves,
    unit_form,
)

_DAY_FIRST = {"mm/dd/yyyy": "dd/mm/yyyy", "mm-dd-yyyy": "dd-mm-yyyy"}

Raw = Array | list[Any]
"""Values of a column as a file has them: an array of numbers or dates, or texts, with
None for a missing one."""


def int64_of(numerals: Iterable[str]) -> Array | None:
    """Int64 of numerals that all are integers within 64 bits; else None."""
    try:
        return np.array([*map(int, numerals)], np.int64)
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass
class RawColumn:
    """A column as a file or a frame has it: facts from a first pass, the kind that
    follows from them, and its values.

    Parameters
    ----------
    typed : str, optional
        Its kind by the types of the file, "levels" where it tells these, "" for one
        that is not read; None in a file of texts alone.
    wanted : str, optional
        Its kind in a schema, which decides how texts are read.
    decimal, date_format : str
        Mark of decimals and form of dates; "" is detected, the mark by the texts that
        prove one, a point else.
    gap_cells : Gaps
        Cells that are missing values.
    scales, words
        See `CellReader`; with scales no unit is detected.
    """

    typed: str | None = None
    wanted: str | None = None
    decimal: str = ""
    date_format: str = ""
    gap_cells: Gaps = field(default_factory=Gaps)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    words: ByLevel[str | None] | None = None
    month_first: bool = False  # where day and month may be either
    has_beside: bool = False  # a column beside it has its texts
    is_strict: bool = False  # texts among numbers are faults
    reads_each: bool = False  # no text decides about the form of other dates
    unit: str = ""  # in a schema: no other is taken off
    n: int = 0
    n_empty: int = 0
    gap_values: set[Any] = field(default_factory=set)  # of cells that are not empty
    n_infinite: int = 0
    n_foreign: int = 0  # numbers in a column of dates, and dates in one of numbers
    types: set[Any] = field(default_factory=set)
    # Numbers of texts that are dates of each form.
    fits: Counter[str] = field(default_factory=Counter)
    numerals: Numerals = field(default_factory=Numerals)
    # Numbers of different texts that prove each mark of decimals.
    proofs: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.unit:
            self.scales = {"": AS_IT_IS, unit_form(self.unit): AS_IT_IS}
        self.numerals.converted = self.scales
        if self.scales:
            self.types.add(np.float64)

    @property
    def mark(self) -> str:
        """The mark of decimals."""
        if self.decimal:
            return self.decimal
        if self.proofs[","] > self.proofs["."]:
            return ","
        return "."

    @property
    def forms(self) -> list[str]:
        """Forms of dates that most values have, if these are nearly all: a tenth of
        words at most.
        """
        n_values = self.n - self.n_empty
        most = max(self.fits.values(), default=0)
        return [
            form
            for form in DATE_FORMATS
            if 10 * most >= 9 * n_values > 0 and self.fits[form] == most
        ]

    @property
    def has_two_forms(self) -> bool:
        """True for dates that may have the day or the month first."""
        forms = {*self.forms}
        return any(forms.issuperset(pair) for pair in _DAY_FIRST.items())

    @property
    def form(self) -> str:
        """The form of its dates, "" for no dates."""
        if self.kind != "date" or self.reads_each:
            return ""
        # A schema may say that it is of dates: values that are none are counted.
        forms = self.forms
        if not forms:
            # Of as many dates the first form comes first.
            forms = [form for form in DATE_FORMATS if form in self.fits]
            forms.sort(key=self.fits.__getitem__, reverse=True)
        if not forms:
            return ""
        months = [
            month
            for month, day in _DAY_FIRST.items()
            if day == forms[0] and month in forms
        ]
        if months and self.month_first:
            return months[0]
        return forms[0]

    @property
    def kind(self) -> str:
        """Its kind, "" for values that are neither numbers, texts nor dates."""
        if self.typed == "":
            return ""
        if self.wanted is not None:
            return self.wanted
        if self.typed == "levels" or self._makes_words:
            return "category"
        if self.typed not in (None, "category"):
            return self.typed
        are_numbers = self.numerals.are_numbers and not (
            self.typed and self.numerals.are_codes
        )
        if self.forms:
            return "date"
        if are_numbers:
            return "number"
        return "category"

    @property
    def _makes_words(self) -> bool:
        """True where a text stands for one that is neither a number nor a gap."""
        commons = filter(None, (self.words or {}).values())
        return any(
            number_of(common)[0] is None and not self._is_gap(common)
            for common in commons
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers, for texts the narrowest.

        It is float64 where there are gaps, or several types.
        """
        if self.kind != "number" or self.gaps or len(self.types) > 1:
            return np.dtype(np.float64)
        return np.dtype(next(iter(self.types), np.bool_))

    @property
    def gaps(self) -> int:
        """Values that are missing, or not of the kind."""
        return self.n_empty + self.texts

    @property
    def infinite(self) -> int:
        """Infinite numbers."""
        if self.kind == "number":
            return self.n_infinite
        return 0

    @property
    def texts(self) -> int:
        """Values of a column of numbers or dates that are none of these, and count as
        gaps.
        """
        if self.n_foreign or (self.kind == "date" and self.typed != "date"):
            n_dates = max(self.fits.values(), default=0)
            if self.reads_each:
                n_dates = sum(self.fits[form] for form in DATE_FORMATS[:3])
            return self.n - self.n_empty - n_dates
        if self.kind == "number":
            return self.numerals.n_others
        return 0

    @property
    def unfit(self) -> int:
        """Values that a schema refuses: texts that would be lost, or all.

        All are refused where none is of the kind that the schema wants.
        """
        if self.is_strict or (
            self.texts == self.n - self.n_empty and not self.has_beside
        ):
            return self.texts
        return 0

    def add(self, values: Raw) -> None:
        """Look at more rows."""
        self.n += len(values)
        if isinstance(values, np.ndarray) and self.words is not None:
            values = [*map(text_of, values)]
        if isinstance(values, np.ndarray):
            cells = values
            values = self.gap_cells.blanked(cells, self.decimal)
            are_gaps = missing(values)
            self.n_empty += int(are_gaps.sum())
            if values is not cells:
                self.gap_values.update(cells[are_gaps].tolist())
            if values.dtype.kind == "f":
                self.n_infinite += int(np.isinf(values).sum())
            if self.kind != "category" and not self._has_kind(values):
                self.n_foreign += int((~are_gaps).sum())
            self.types.add(values.dtype)
        elif self.wanted is None or self.kind != "category":
            self._add_texts(Counter(values))
        else:
            self.gap_values.update(filter(self._is_gap, {*values}))

    def _has_kind(self, values: Array) -> bool:
        return KIND_OF_DTYPE[values.dtype.kind] == self.kind

    def _add_texts(self, n_rows: Counter[Any]) -> None:
        """Look at texts that so many rows have."""
        texts = [*n_rows]
        numbers = self._reader("number", self.decimal).at_once(texts)
        plain = [*compress(texts, ~np.isnan(numbers))]
        if plain:
            rows = np.array([n_rows[text] for text in plain])
            some = numbers[~np.isnan(numbers)]
            self.n_infinite += int(rows[np.isinf(some)].sum())
            self.numerals.add_numbers(some, int(rows.sum()))
            if np.float64 not in self.types:
                integers = int64_of(plain)
                if integers is None:
                    integers = int64_of(pointed(text, self.decimal) for text in plain)
                self.types.add(np.float64 if integers is None else np.int64)
        if not self.decimal:
            for text in filter(None, texts):
                self.proofs.update(mark for mark in ",." if proves(text.strip(), mark))
        for text in compress(texts, np.isnan(numbers)):
            self._add_text(text, n_rows[text])

    def _is_gap(self, cell: Any) -> bool:
        return self.gap_cells.has(cell, self.decimal)

    def _add_text(self, raw: str | None, n_rows: int) -> None:
        """Look at a text that so many rows have."""
        if raw is not None and self.words is not None:
            raw = self.words(level_of(raw)) or raw
        if raw is None or self._is_gap(raw):
            self.n_empty += n_rows
            self.gap_values.add(raw)
            return
        text = raw.strip()
        kind = self.numerals.add(text, n_rows, self.decimal)
        if kind:
            self.types.add({"b": np.bool_, "i": np.int64}.get(kind, np.float64))
            if number_of(text, self.decimal)[0] in (math.inf, -math.inf):
                self.n_infinite += n_rows
        elif text[:1].isdigit():
            forms: Sequence[str] = DATE_FORMATS
            if self.date_format:
                forms = [self.date_format]
            for form in forms:
                if date_of(raw, form) is not None:
                    self.fits[form] += n_rows

    def _reader(self, kind: str, decimal: str) -> CellReader:
        form = self.form or self.date_format
        scales = self.scales or {"": AS_IT_IS, self.numerals.unit: AS_IT_IS}
        return CellReader(kind, self.gap_cells, decimal, form, scales, self.words)

    def values(self, raw: Raw) -> Array:
        """The values of some rows: numbers of `dtype`, texts or None, or
        datetime64[us].
        """
        is_as_read = not (self.scales or self.words)
        if isinstance(raw, np.ndarray) and is_as_read and self._has_kind(raw):
            return self.gap_cells.blanked(raw, self.decimal)
        dtype = self.dtype
        if dtype == np.int64 and isinstance(raw, list) and self.words is None:
            integers = int64_of(raw)
            if integers is not None:
                return integers
        kind = self.kind
        values, _ = self._reader(kind, self.mark).column(raw)
        if kind == "number":
            return values.astype(dtype)
        return values

    def beside(self, raw: Raw) -> Array:
        """The texts of some rows that are neither numbers nor gaps, None for others."""
        _, good = self._reader("number", self.mark).column(raw)
        levels, _ = self._reader("category", self.mark).column(raw)
        levels[good] = None
        return levels


def months_come_first(columns: Sequence[RawColumn]) -> bool:
    """True if some column has dates with the month first, and none with the day first
    alone.
    """
    pairs = [
        (month in column.forms, day in column.forms)
        for column in columns
        for month, day in _DAY_FIRST.items()
    ]
    return (True, False) in pairs and (False, True) not in pairs
