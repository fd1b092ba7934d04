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
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.tables.texts import (
    DATE_FORMATS,
    GAP_TEXTS,
    Numerals,
    as_level,
    date_of,
    proves,
)

_DAY_FIRST = {"mm/dd/yyyy": "dd/mm/yyyy", "mm-dd-yyyy": "dd-mm-yyyy"}

Raw = Array | list[Any]
"""Values of a column as a file has them: an array of numbers or dates, or texts, with
None for a missing one."""


def plain_numbers(
    texts: Sequence[Any], gaps: frozenset[str] = frozenset()
) -> Array | None:
    """Float64 of texts that all are numbers with a decimal point, NaN for `gaps`.

    None says nothing about the texts.
    """
    try:
        if "_" in "".join(texts):  # which Python allows between digits
            return None
        if gaps.isdisjoint(texts):
            n_gaps = 0
        else:
            n_gaps = sum(text in gaps for text in texts)
        filled = np.array(texts, object)
        if n_gaps:
            filled[[text in gaps for text in texts]] = "nan"
        numbers = filled.astype(np.float64)
    except (TypeError, ValueError):
        return None
    # A NaN that is no gap is looked at by itself.
    if int(np.isnan(numbers).sum()) == n_gaps:
        return numbers
    return None


def int64_of(texts: Sequence[str]) -> Array | None:
    """Int64 of texts that all are integers within 64 bits; else None."""
    try:
        if "_" in "".join(texts):
            return None
        return np.array([*map(int, texts)], np.int64)
    except (TypeError, ValueError, OverflowError):
        return None


def distinct(values: Raw) -> tuple[list[Any], Integers]:
    """The different values, and the index of each one's among them."""
    index: dict[Any, int] = {}
    codes = np.fromiter(
        (index.setdefault(value, len(index)) for value in values), np.int64, len(values)
    )
    return list(index), codes


def missing(values: Array) -> Array:
    """Mask of the gaps of a column, (n,) of any kind."""
    if values.dtype.kind == "O":
        return np.array([value is None for value in values.tolist()], np.bool_)
    if values.dtype.kind == "M":
        return np.asarray(np.isnat(values))
    return np.asarray(np.isnan(values))


def of_gaps(kind: str, n: int) -> Array:
    """A column of this kind without values."""
    value, dtype = {
        "number": (np.nan, "f8"),
        "category": (None, "O"),
        "date": (np.datetime64("NaT"), "M8[us]"),
    }[kind]
    return np.full(n, value, dtype)


@dataclass
class RawColumn:
    """A column as a file or a frame has it: facts from a first pass, the kind that
    follows from them, and its values.

    Parameters
    ----------
    typed : str, optional
        Its kind by the types of the file, "" for one that is not read; None in a file
        of texts alone.
    wanted : str, optional
        Its kind in a schema, which decides how texts are read.
    decimal, date_format : str
        Mark of decimals and form of dates; "" is detected, the mark by the texts that
        prove one, a point else.
    gap_texts : frozenset of str
        Texts of missing values, in lower case.
    """

    typed: str | None = None
    wanted: str | None = None
    decimal: str = ""
    date_format: str = ""
    gap_texts: frozenset[str] = GAP_TEXTS
    month_first: bool = False  # where day and month may be either
    has_beside: bool = False  # a column beside it has its texts
    is_strict: bool = False  # texts among numbers are faults
    n: int = 0
    n_empty: int = 0
    n_infinite: int = 0
    types: set[Any] = field(default_factory=set)
    # Numbers of texts that are dates of each form.
    fits: Counter[str] = field(default_factory=Counter)
    numerals: Numerals = field(default_factory=Numerals)
    # Numbers of different texts that prove each mark of decimals.
    proofs: Counter[str] = field(default_factory=Counter)

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
    def form(self) -> str:
        """The form of its dates, "" for no dates."""
        if self.kind != "date":
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
        if self.typed not in (None, "category"):
            return self.typed or ""
        if self.wanted is not None:
            return self.wanted
        are_numbers = self.numerals.are_numbers and not (
            self.typed and self.numerals.are_codes
        )
        if self.forms:
            return "date"
        if are_numbers:
            return "number"
        return "category"

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
        if self.kind == "date" and self.typed != "date":
            return self.n - self.n_empty - max(self.fits.values(), default=0)
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
        if isinstance(values, np.ndarray):
            self.n_empty += int(missing(values).sum())
            if values.dtype.kind == "f":
                self.n_infinite += int(np.isinf(values).sum())
            self.types.add(values.dtype)
        elif self.wanted is None or self.kind != "category":
            numbers = self._plain(values)
            if numbers is None:
                self._add_distinct(values)
                return
            some = numbers[~np.isnan(numbers)]
            self.n_empty += len(numbers) - len(some)
            self.n_infinite += int(np.isinf(some).sum())
            self.numerals.add_numbers(some, len(some))
            if len(some) and np.float64 not in self.types:
                are_integers = (
                    len(some) == len(numbers) and int64_of(values) is not None
                )
                self.types.add(np.int64 if are_integers else np.float64)

    def _add_distinct(self, texts: list[Any]) -> None:
        different, codes = distinct(texts)
        n_rows = np.bincount(codes, minlength=len(different)).tolist()
        for text, n in zip(different, n_rows, strict=True):
            self._add_text(text, n)

    def _add_text(self, raw: str | None, n_rows: int) -> None:
        """Look at a text that so many rows have."""
        if raw is None or is_gap_text(raw, self.gap_texts):
            self.n_empty += n_rows
            return
        text = raw.strip()
        kind = self.numerals.add(text, n_rows, self.decimal)
        if kind:
            if not self.decimal:
                self.proofs.update(mark for mark in ",." if proves(text, mark))
            self.types.add({"b": np.bool_, "i": np.int64}.get(kind, np.float64))
            if math.isinf(self.numerals.value(raw, self.decimal) or 0):
                self.n_infinite += n_rows
        elif text[:1].isdigit():
            forms: Sequence[str] = DATE_FORMATS
            if self.date_format:
                forms = [self.date_format]
            for form in forms:
                if date_of(raw, form) is not None:
                    self.fits[form] += n_rows

    def _plain(self, texts: Sequence[Any]) -> Array | None:
        if self.gap_texts != GAP_TEXTS or (
            self.mark == "," and any("." in text for text in texts if text)
        ):
            return None  # gaps may look like numbers
        if self.mark == ",":
            texts = [text and text.replace(",", ".") for text in texts]
        return plain_numbers(texts, self.gap_texts)

    def values(self, raw: Raw) -> Array:
        """The values of some rows: numbers of `dtype`, texts or None, or
        datetime64[us].
        """
        if isinstance(raw, np.ndarray):
            return raw
        kind = self.kind
        dtype = self.dtype
        if kind == "category":
            return self._each(raw, self._level, object)
        if kind == "date":
            form = self.form
            return self._each(
                raw, lambda text: self._moment(text, form), "datetime64[us]"
            )
        if dtype == np.int64:
            numbers = int64_of(raw)
        elif dtype == np.float64:
            numbers = self._plain(raw)
        else:
            numbers = None
        if numbers is None:
            return self._each(raw, self._number, dtype)
        return numbers

    def beside(self, raw: Raw) -> Array:
        """The texts of some rows that are neither numbers nor gaps, None for others."""
        return self._each(raw, self._text_beside, object)

    def _text_beside(self, text: str) -> str | None:
        if math.isnan(self._number(text)):
            return self._level(text)
        return None

    def _each(self, raw: Raw, value_of: Callable[[Any], Any], dtype: Any) -> Array:
        different, codes = distinct(raw)
        values = np.empty(len(different), dtype)
        for index, text in enumerate(different):
            values[index] = value_of(text)
        return values[codes]

    def _number(self, text: str) -> float:
        if is_gap_text(text, self.gap_texts):
            return math.nan
        number = self.numerals.value(text.strip(), self.mark)
        if number is None:
            return math.nan
        return number

    def _moment(self, text: str, form: str) -> np.datetime64:
        moment = None
        if form and not is_gap_text(text, self.gap_texts):
            moment = date_of(text, form)
        if moment is None:
            return np.datetime64("NaT", "us")
        return np.datetime64(moment, "us")

    def _level(self, text: str) -> str | None:
        if is_gap_text(text, self.gap_texts):
            return None
        return as_level(text)


def is_gap_text(text: str | None, gaps: Set[str]) -> bool:
    """True for a text that stands for a missing value, and for None."""
    return text is None or (len(text) <= 256 and text.strip().lower() in gaps)


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
