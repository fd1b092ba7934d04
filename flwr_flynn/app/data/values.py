"""Texts of a file's columns as numbers, dates and levels.

The kind of a column follows from all its values that are no gaps: numbers if all are numbers (true and false are 1 and
0), dates if all are dates of one form, texts otherwise. Neither the order of the rows nor how many are read at a time
has an effect.
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
from flwr_flynn.tables.row_wise import TRUTHS
from flwr_flynn.tables.table import as_level, level_of

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


def number_of(text: str, decimal: str) -> tuple[float | None, str]:
    """The number that a text spells, None for none, and its type: "b", "i" or "f".

    >>> number_of("1,5", ","), number_of("TRUE", "."), number_of("7", "."), number_of("1.5", ",")
    ((1.5, 'f'), (1.0, 'b'), (7.0, 'i'), (None, ''))
    """
    truth = TRUTHS.get(text.lower()) if len(text) < 6 else None
    if truth is not None:
        return truth, "b"
    if "_" in text or (decimal == "," and "." in text):
        return None, ""
    text = text.replace(",", ".") if decimal == "," else text
    try:
        value = float(text)
    except ValueError:
        return None, ""
    if math.isnan(value):
        return None, ""
    try:
        return value, "i" if -(2**63) <= int(text) < 2**63 else "f"
    except ValueError:
        return value, "f"


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
    words: int = 0  # neither numbers nor gaps
    infinite: int = 0
    types: set[str] = field(default_factory=set)
    fits: Counter[str] = field(default_factory=Counter)  # words that are dates of each form

    @property
    def is_text(self) -> bool:
        """True if no further value can change that the column has texts."""
        return bool(self.words) and not self.forms

    @property
    def forms(self) -> list[str]:
        """Forms of dates that all values have."""
        n_values = self.n - self.gaps
        return [form for form in DATE_FORMATS if n_values and self.fits[form] == n_values]

    def add(self, texts: Texts) -> None:
        """Look at more rows."""
        wanted = "" if self.wanted is None else self.wanted.kind
        self.n += len(texts)
        if wanted == "category" or (self.is_text and not wanted):
            self.words = max(self.words, 1)
            return
        numbers = None if self.words and not wanted else texts.numbers(self.dialect)
        if numbers is None:
            self._add_distinct(texts)
            return
        n_gaps = int(np.isnan(numbers).sum())
        self.gaps += n_gaps
        self.infinite += int(np.isinf(numbers).sum())
        if n_gaps < len(numbers) and "f" not in self.types:
            self.types.add("i" if not n_gaps and texts.integers() is not None else "f")

    def _add_distinct(self, texts: Texts) -> None:
        different, codes = texts.distinct()
        gaps, before = self.dialect.gaps, self.n - len(texts) - self.gaps
        known = [self.dialect.date_format] if self.dialect.date_format else DATE_FORMATS
        forms = [form for form in known if self.fits[form] == before]
        for text, n_rows in zip(different, np.bincount(codes, minlength=len(different)).tolist(), strict=True):
            if is_gap_text(text, gaps):
                self.gaps += n_rows
                continue
            value, kind = number_of(text, self.dialect.decimal)
            if value is not None:
                self.types.add(kind)
                self.infinite += n_rows if math.isinf(value) else 0
                continue
            self.words += n_rows
            for form in forms:
                if date_of(text, form) is not None:
                    self.fits[form] += n_rows

    def decided(self, month_first: bool = False) -> TypedColumn:
        """Reading of the column; between day and month first, where both fit, `month_first` decides."""
        forms = self.forms
        if self.wanted is not None:
            kind = self.wanted.kind
        else:
            kind = "number" if not self.words else "date" if forms else "category"
        if kind == "date" and not forms:  # the schema says so: values that are none are counted elsewhere
            forms = sorted(self.fits, key=lambda each: (-self.fits[each], DATE_FORMATS.index(each)))
        form = forms[0] if forms else ""
        if month_first:
            form = next((month for month, day in _DAY_FIRST.items() if day == form and month in forms), form)
        dtype = {"b": np.bool_, "i": np.int64}.get("".join(self.types), np.float64) if self.types else np.bool_
        if self.gaps or kind != "number":
            dtype = np.float64
        levels = self.wanted.levels if self.wanted is not None else ()
        return TypedColumn(kind, np.dtype(dtype), self.dialect, form, frozenset(levels))


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
    levels: frozenset[str] = frozenset()

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

    def _each(self, texts: Texts, value_of: Callable[[str], Any], dtype: Any) -> Array:
        different, codes = texts.distinct()
        values = np.empty(len(different), dtype)
        for index, text in enumerate(different):
            values[index] = value_of(text)
        return values[codes]

    def _number(self, text: str) -> float:
        value = None if is_gap_text(text, self.dialect.gaps) else number_of(text, self.dialect.decimal)[0]
        return math.nan if value is None else value

    def _moment(self, text: str) -> np.datetime64:
        is_gap = not self.date_format or is_gap_text(text, self.dialect.gaps)
        moment = None if is_gap else date_of(text, self.date_format)
        return np.datetime64("NaT" if moment is None else moment, "us")

    def _level(self, text: str) -> str | None:
        level = None if is_gap_text(text, self.dialect.gaps) else as_level(text)
        if level is not None and self.levels and level not in self.levels:
            # Another site's file may show the same levels as numbers, for example 1.0 for 1.
            value = number_of(text, self.dialect.decimal)[0]
            return level if value is None or math.isinf(value) else level_of(value)
        return level
