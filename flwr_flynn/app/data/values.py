"""Texts of a file's columns as numbers, dates and levels.

The kind of a column follows from all its values that are no gaps: dates if all are dates of one form, numbers if most
are numbers (see `tables.texts`; true and false are 1 and 0), texts otherwise. Neither the order of the rows nor how
many are read at a time has an effect.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.dialect import DATE_FORMATS, Dialect
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.table import as_level
from flwr_flynn.tables.texts import Numerals

Array = npt.NDArray[Any]

_DAY_FIRST = {"mm/dd/yyyy": "dd/mm/yyyy", "mm-dd-yyyy": "dd-mm-yyyy"}
_LONGEST_DATE = 60  # characters
_MOMENT = re.compile(
    r"(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})"
    r"(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?(?: ?([AaPp])[Mm])?(?: ?(Z|[+-]\d{2}:?\d{2}))?)?",
    re.ASCII,
)


class Texts:
    """Texts of one column, some rows."""

    def __init__(self, values: list[str]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def tolist(self) -> list[str]:
        """The texts as Python's."""
        return self.values

    def first(self) -> str:
        """The text of the first row."""
        return self.tolist()[0]

    def distinct(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The different texts, and the index of each row's among them."""
        index: dict[str, int] = {}
        codes = np.fromiter((index.setdefault(text, len(index)) for text in self.values), np.int64, len(self.values))
        return list(index), codes

    def numbers(self, dialect: Dialect) -> Array | None:
        """Float64, NaN for gaps, where that is quick to tell; None says nothing."""
        if dialect.decimal == "," or dialect.gap_texts or any("_" in text for text in self.values):
            return None
        try:
            numbers = np.array(self.values, object).astype(np.float64)
        except ValueError:
            return None
        return None if np.isnan(numbers).any() else numbers

    def integers(self) -> Array | None:
        """Int64, where all are integers within 64 bits; else None."""
        try:
            return np.array([whole(text) for text in self.tolist()], np.int64)
        except (ValueError, OverflowError):
            return None


def whole(text: str) -> int:
    """The integer that a text spells; a `ValueError` or an `OverflowError` without one."""
    if "_" in text:  # which Python allows between digits
        raise ValueError
    return int(text)


def date_of(text: str, form: str) -> datetime | None:
    """The moment, in UTC, that a text of this form names; None for none.

    >>> date_of("31.01.2024 08:30", "dd.mm.yyyy")
    datetime.datetime(2024, 1, 31, 8, 30)
    """
    found = _MOMENT.fullmatch(text.strip()) if len(text) <= _LONGEST_DATE else None
    if found is None or found[2] != form[4 if form[0] == "y" else 2]:
        return None
    first, middle, last = found[1], found[3], found[4]
    if form[0] == "y":
        year, month, day = first, middle, last
    else:
        day, month, year = (first, middle, last) if form[0] == "d" else (middle, first, last)
    if len(year) != 4 or len(day) > 2 or len(month) > 2:
        return None
    hour, minute, second = (int(part or 0) for part in (found[5], found[6], found[7]))
    if found[9]:
        hour = hour % 12 + 12 * (found[9] in "Pp") if 1 <= hour <= 12 else 99
    try:
        moment = datetime(
            int(year), int(month), int(day), hour, minute, second, int((found[8] or "0")[:6].ljust(6, "0"))
        )
        zone = found[10] or "Z"
        if zone != "Z":
            ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
            moment += ahead if zone[0] == "-" else -ahead
    except (ValueError, OverflowError):
        return None
    return moment


@dataclass
class ColumnFacts:
    """Facts about a column from a pass over a file; `wanted` is its column in a schema."""

    dialect: Dialect
    wanted: Column | None = None
    n: int = 0
    gaps: int = 0
    infinite: int = 0
    types: set[str] = field(default_factory=set)
    fits: Counter[str] = field(default_factory=Counter)  # texts that are dates of each form
    numerals: Numerals = field(default_factory=Numerals)

    @property
    def forms(self) -> list[str]:
        """Forms of dates that all values have."""
        n_values = self.n - self.gaps
        return [form for form in DATE_FORMATS if n_values and self.fits[form] == n_values]

    @property
    def kind(self) -> str:
        """The kind that a schema wants, or that the values have."""
        if self.wanted is not None:
            return self.wanted.kind
        return "date" if self.forms else "number" if self.numerals.are_numbers else "category"

    @property
    def n_texts(self) -> int:
        """Values of a column of numbers or dates that are none of these, and count as gaps."""
        if self.kind == "date":
            return self.n - self.gaps - max(self.fits.values(), default=0)
        return self.numerals.n_others if self.kind == "number" else 0

    @property
    def n_unfit(self) -> int:
        """All values, where none is of the kind that a schema wants."""
        return self.n_texts if self.n_texts == self.n - self.gaps else 0

    def add(self, texts: Texts) -> None:
        """Look at more rows."""
        self.n += len(texts)
        if self.wanted is not None and self.wanted.kind == "category":
            return
        numbers = texts.numbers(self.dialect)
        if numbers is None:
            self._add_distinct(texts)
            return
        is_gap = np.isnan(numbers)
        n_gaps = int(is_gap.sum())
        self.gaps += n_gaps
        self.infinite += int(np.isinf(numbers).sum())
        self.numerals.add_numbers(numbers[~is_gap], len(numbers) - n_gaps)
        if n_gaps < len(numbers) and "f" not in self.types:
            self.types.add("i" if not n_gaps and texts.integers() is not None else "f")

    def _add_distinct(self, texts: Texts) -> None:
        different, codes = texts.distinct()
        gaps, before = self.dialect.gaps, self.n - len(texts) - self.gaps
        known = [self.dialect.date_format] if self.dialect.date_format else DATE_FORMATS
        forms = [form for form in known if self.wanted is not None or self.fits[form] == before]
        for text, n_rows in zip(different, np.bincount(codes, minlength=len(different)).tolist(), strict=True):
            if is_gap_text(text, gaps):
                self.gaps += n_rows
            elif kind := self.numerals.add(text.strip(), n_rows, self.dialect.decimal):
                self.types.add(kind)
                self.infinite += n_rows if math.isinf(self.numerals.value(text, self.dialect.decimal) or 0) else 0
            else:
                for form in forms:
                    if date_of(text, form) is not None:
                        self.fits[form] += n_rows

    def decided(self, month_first: bool = False) -> TypedColumn:
        """Reading of the column; between day and month first, where both fit, `month_first` decides."""
        kind, forms = self.kind, self.forms
        if kind == "date" and not forms:  # the schema says so: values that are none are counted elsewhere
            forms = sorted(self.fits, key=lambda each: (-self.fits[each], DATE_FORMATS.index(each)))
        form = forms[0] if forms else ""
        if month_first:
            form = next((month for month, day in _DAY_FIRST.items() if day == form and month in forms), form)
        dtype = {"b": np.bool_, "i": np.int64}.get("".join(self.types), np.float64) if self.types else np.bool_
        if self.gaps or self.n_texts or kind != "number":
            dtype = np.float64
        return TypedColumn(kind, np.dtype(dtype), self.dialect, form, self.numerals)


def is_gap_text(text: str, gaps: frozenset[str]) -> bool:
    """True for a text that stands for a missing value."""
    return len(text) <= 256 and text.strip().lower() in gaps


def months_come_first(columns: Sequence[ColumnFacts]) -> bool:
    """True if some column has dates with the month first, and none with the day first alone."""
    pairs = [(month in each.forms, day in each.forms) for each in columns for month, day in _DAY_FIRST.items()]
    return (True, False) in pairs and (False, True) not in pairs


@dataclass(frozen=True)
class TypedColumn:
    """Kind of a column, and how its texts become values."""

    kind: str
    dtype: np.dtype[Any]  # the narrowest of its numbers
    dialect: Dialect
    date_format: str = ""
    numerals: Numerals = field(default_factory=Numerals)

    def values(self, texts: Texts) -> Array:
        """The values of some rows: numbers of `dtype`, texts or None, or datetime64[us]."""
        if self.kind == "category":
            return self._each(texts, self._level, object)
        if self.kind == "date":
            return self._each(texts, self._moment, "datetime64[us]")
        if self.dtype == np.int64 and (integers := texts.integers()) is not None:
            return integers
        numbers = texts.numbers(self.dialect) if self.dtype == np.float64 else None
        return self._each(texts, self._number, self.dtype) if numbers is None else numbers

    def beside(self, texts: Texts) -> Array:
        """The texts of some rows that are neither numbers nor gaps, None for others."""
        return self._each(texts, lambda text: self._level(text) if math.isnan(self._number(text)) else None, object)

    def _each(self, texts: Texts, value_of: Callable[[str], Any], dtype: Any) -> Array:
        different, codes = texts.distinct()
        values = np.empty(len(different), dtype)
        for index, text in enumerate(different):
            values[index] = value_of(text)
        return values[codes]

    def _number(self, text: str) -> float:
        is_gap = is_gap_text(text, self.dialect.gaps)
        value = None if is_gap else self.numerals.value(text.strip(), self.dialect.decimal)
        return math.nan if value is None else value

    def _moment(self, text: str) -> np.datetime64:
        is_gap = not self.date_format or is_gap_text(text, self.dialect.gaps)
        moment = None if is_gap else date_of(text, self.date_format)
        return np.datetime64("NaT" if moment is None else moment, "us")

    def _level(self, text: str) -> str | None:
        return None if is_gap_text(text, self.dialect.gaps) else as_level(text)
