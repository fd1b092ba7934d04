"""Cells as values: a function of one cell, the kind of its column, and settings.

Files and frames, of open and of private parties, are read by it. No cell has a part in
how another one is read, nor in how long that takes: a column is read by its different
texts, and each value that is no text by itself. A value is the same in every array that
can hold it (see `plain`): one word among numbers makes texts of them, one gap makes
floats of integers. What an array's type has rounded before, such as integers beyond
2**53 in one of float64, is not seen here. What a party does about cells that are no
values of their column is its own policy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import cache
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn.tables.texts import (
    GAP_TEXTS,
    as_level,
    as_name,
    common_form,
    date_of,
    forms_of_level,
    number_of,
    plain_date,
    quantity_of,
)

T = TypeVar("T")
Numbers = TypeVar("Numbers", float, Array)

Cells = Sequence[Any] | Array
"""Values as a file has them: of a column, of a row, or of each column."""

KIND_OF_DTYPE = {**dict.fromkeys("biuf", "number"), "O": "category", "M": "date"}
"""Kind of a column by the kind of its dtype."""


@dataclass(frozen=True)
class Gaps:
    """Cells that stand for a missing value, beside empty ones.

    Parameters
    ----------
    texts : frozenset of str
        In the form of names, and in lower case. One that spells a number stands for it
        in whatever form it comes: -9, " -9.0", and -9.0 of a type; and 1 for true.
    """

    texts: frozenset[str] = GAP_TEXTS

    @classmethod
    def of(cls, texts: Iterable[str]) -> Gaps:
        """The usual gaps and these texts."""
        return cls(GAP_TEXTS | {as_name(text).lower() for text in texts})

    def has(self, cell: Any, decimal: str = ".") -> bool:
        """True for a cell, as `plain` gives it, that is a gap."""
        if cell is None:
            return True
        # The usual texts are none of these; a site's own may be.
        if isinstance(cell, int | float | datetime) and self.texts <= GAP_TEXTS:
            return False
        if as_name(text_of(cell)).lower() in self.texts:
            return True
        numbers = _numbers_in(self.texts, decimal)
        if isinstance(cell, str) and self.texts != GAP_TEXTS:
            day = plain_date(cell)
            if day is not None and text_of(day) in self.texts:
                return True
        if not numbers:
            return False
        if isinstance(cell, str):
            value, _ = number_of(cell.strip(), decimal)
            if value is None:
                value, _ = quantity_of(cell, decimal)
            return value in numbers
        return isinstance(cell, Real) and float(cell) in numbers

    def blanked(self, values: Array, decimal: str = ".") -> Array:
        """Values of a type, with NaN for numbers that are gaps."""
        numbers = _numbers_in(self.texts, decimal)
        if not numbers or values.dtype.kind not in "biuf":
            return values
        are_gaps = np.isin(values.astype(np.float64), [*numbers])
        if are_gaps.any():
            return np.where(are_gaps, np.nan, values)
        return values


@cache
def _numbers_in(texts: frozenset[str], decimal: str) -> frozenset[float]:
    """Numbers that some of the texts spell with a mark of decimals."""
    numbers = set[float]()
    for text in texts:
        value, _ = number_of(text, decimal)
        if value is not None:
            numbers.add(value)
            # A column of float32 has fractions in another form.
            if abs(value) % 1 > 1e-9:
                numbers.add(float(np.float32(value)))
    return frozenset(numbers)


class ByLevel(dict[Any, T]):
    """Values by level, called with a level of any form.

    A value that is no level is looked up in the forms that levels may have elsewhere
    (`forms_of_level`), unless levels of two values have the form: what a file writes as
    Heart or 01 another one writes as heart or 1.

    Parameters
    ----------
    values : mapping of str
    gap, unknown : object
        The value for a gap, and for a text in no form of a level.
    """

    def __init__(self, values: Mapping[str, T], gap: T, unknown: T) -> None:
        forms = dict[str, set[T]]()
        for text, value in values.items():
            for form in forms_of_level(text):
                forms.setdefault(form, set()).add(value)
        super().__init__(values)
        self[None] = gap
        self._forms = {form: own.pop() for form, own in forms.items() if len(own) == 1}
        self._unknown = unknown

    def __call__(self, level: Any) -> T:
        if level in self:
            return self[level]
        forms = forms_of_level(level)
        values = [self._forms[form] for form in forms if form in self._forms]
        return [*values, self._unknown][0]


Scale = tuple[float, float]
"""Factor of a unit, and what is added then."""

AS_IT_IS = (1.0, 0.0)


def scaled(numbers: Numbers, scale: Scale) -> Numbers:
    """Numbers of a unit in the one that a scale converts to."""
    factor, added = scale
    return numbers * factor + added


@dataclass(frozen=True)
class CellReader:
    """A reader of cells for a column of one kind.

    Parameters
    ----------
    kind : {"number", "category", "date"}
    gaps : Gaps
    decimal : str
        Mark of decimals.
    form : str
        Form of dates; "" for each that is unmistakable.
    scales : mapping of str to (float, float)
        By unit, "" for none: what a number with it is multiplied by, and what is added.
        No other unit may stand behind a number.
    words : ByLevel, optional
        Texts that stand for others, which are read in their place.
    """

    kind: str
    gaps: Gaps = field(default_factory=Gaps)
    decimal: str = "."
    form: str = ""
    scales: Mapping[str, Scale] = field(default_factory=lambda: {"": AS_IT_IS})
    words: ByLevel[str | None] | None = None

    def __call__(self, cell: Any) -> tuple[Any, bool]:
        """The value of a cell, and True if it is one of this kind, or a gap.

        A cell that is none has the value of a gap.
        """
        value = _GAPS[self.kind]
        try:
            cell = plain(cell)
            if self.words is not None:
                cell = self.words(level_of(cell)) or cell
            if not self.gaps.has(cell, self.decimal):
                value = _PARSERS[self.kind](self, cell)
        except Exception:  # noqa: BLE001 - what is no value is a fault, whatever keeps it
            return value, False
        return value, True

    def column(self, cells: Sequence[Any] | Array) -> tuple[Array, Mask]:
        """The values of cells, and a mask of those that are of this kind, or gaps."""
        good = np.ones(len(cells), np.bool_)
        dtype = getattr(cells, "dtype", np.dtype(object))
        is_direct = self.kind == "number" and self.words is None
        if is_direct and dtype.kind in "biuf":
            values = self.gaps.blanked(np.asarray(cells), self.decimal)
            values = values.astype(np.float64)
            if "" in self.scales:
                return scaled(values, self.scales[""]), good
            good = np.isnan(values)  # a number has one of the units
            return of_gaps("number", len(values)), good
        cells = plain_values(cells)
        values = of_gaps(self.kind, len(cells))
        if self.kind == "number":
            values = self.at_once(cells)
        rest = np.flatnonzero(missing(values)).tolist()
        if rest:
            pairs = each_once(self, [cells[index] for index in rest])
            values[rest] = [value for value, _ in pairs]
            good[rest] = [is_good for _, is_good in pairs]
        return values, good

    def at_once(self, cells: Sequence[Any]) -> Array:
        """Numbers of the cells that are plain numerals, and NaN for all others.

        This reads each alike, and much faster.
        """
        if self.words is not None:
            return of_gaps("number", len(cells))
        decimal = self.decimal or "."
        numbers: list[float] | None = None
        with suppress(TypeError, ValueError):
            joined = "\n".join(cells)
            numerals = joined.replace(decimal, ".").split("\n")
            is_plain = _PLAIN[decimal].fullmatch(joined) is not None
            if is_plain and len(numerals) == len(cells):
                numbers = [float(numeral or "nan") for numeral in numerals]
        if numbers is None:
            numbers = [_plain_number(cell, decimal) for cell in cells]
        values = self.gaps.blanked(np.array(numbers, np.float64), decimal)
        return scaled(values, self.scales.get("", (math.nan, 0.0)))


def _plain_number(cell: Any, decimal: str) -> float:
    """The number of a cell that is one, or a plain numeral, NaN for all others."""
    if type(cell) is float:
        return cell
    if type(cell) is str and _NUMERAL[decimal].fullmatch(cell):
        return float(cell.replace(decimal, "."))
    return math.nan


def each_once(read: Callable[[Any], T], cells: Iterable[Any]) -> list[T]:
    """A function of each cell, which is called once for cells that are the same."""
    # 1, 1.0 and True are equal, as keys, too, and so are 0.0 and -0.0.
    readers = {kind: cache(read) for kind in (str, int, bool)}
    return [readers.get(type(cell), read)(cell) for cell in cells]


def of_gaps(kind: str, n: int) -> Array:
    """A column of this kind without values."""
    dtype = {"number": "f8", "category": "O", "date": "M8[us]"}[kind]
    return np.full(n, _GAPS[kind], dtype)


def missing(values: Array) -> Array:
    """Mask of the gaps of a column, (n,) of any kind."""
    if values.dtype.kind == "O":
        return np.array([value is None for value in values.tolist()], np.bool_)
    return np.asarray(np.isnan(values))


def plain_values(cells: Sequence[Any] | Array) -> Sequence[Any]:
    """The values of a column as Python's."""
    if not isinstance(cells, np.ndarray):
        return cells
    kind = cells.dtype.kind
    if kind in "mM":
        cells = cells.astype(f"{kind}8[us]")
    values: list[Any] = cells.tolist()
    if kind == "M":  # Python's calendar ends with the year 9999
        for index in np.flatnonzero([type(value) is int for value in values]):
            values[index] = _moment(cells[index])
    return values


def objects(values: Cells) -> Array:
    """Python's values in an array.

    In a text type of NumPy each value would be as wide as the longest.
    """
    array = np.empty(len(values), object)
    array[:] = plain_values(values)
    return array


def is_gap(value: object) -> bool:
    """True for None, NaN, NaT and pandas' NA."""
    # The NA of pandas is neither equal nor unequal to anything.
    if value is None or type(value).__name__ == "NAType":
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError, InvalidOperation):
        return False


def plain(value: Any) -> Any:
    """The value that a cell has in whatever array it comes.

    It is None for a gap, a text for bytes, an integer of Python for a boolean and for a
    number without a fraction, and a moment in UTC, without a zone, for a date. A text
    that NumPy makes of such a value stays a text; see `text_of`.
    """
    if isinstance(value, np.generic):
        value = _SCALARS.get(value.dtype.kind, type(value).item)(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        # NumPy drops these at the end of a text, and prints complex numbers so.
        value = value.rstrip("\0")
        if value in _PRINTED_GAPS:
            return None
        if value == "0j" or (value[:1] == "(" and value[-2:] == "j)"):
            with suppress(ValueError):
                value = complex(value)
    if isinstance(value, complex) and not value.imag:
        value = value.real
    if is_gap(value):
        return None
    if isinstance(value, Decimal):
        number = float(value)
        if number.is_integer():
            return int(value)
        value = number
    if isinstance(value, bool) or (
        isinstance(value, float) and value and value.is_integer()
    ):
        return int(value)
    if isinstance(value, date):
        return _moment(value)
    return value


def _moment(value: Any) -> Any:
    """A moment in UTC as Python's, or its text where Python's calendar has none."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    moment = np.datetime64(value, "us")
    item = moment.item()
    if isinstance(item, int):
        return str(moment)
    return item


_NUMERAL = {mark: re.compile(rf"[-+]?[0-9]+(?:[{mark}][0-9]*)?") for mark in ".,"}
_PLAIN = {mark: re.compile(f"[-+0-9{mark}\n]+") for mark in ".,"}
"""Plain numerals, and their characters below each other, by the mark of decimals."""

# `item` of extended precision is the value itself, and of durations a plain integer.
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "f": float,
    "c": complex,
    "m": lambda duration: duration,
    "M": _moment,
}
_PRINTED_GAPS = ("nan", "NaN", "NaT", "<NA>")


def text_of(value: Any) -> str:
    """The text of a value in whatever array it comes, "" for a gap."""
    value = plain(value)
    if value is None:
        return ""
    return common_form(str(value).strip())


def level_of(value: Any) -> str | None:
    """The level that a value of any type is, None for a gap."""
    value = plain(value)
    if value is None:
        return None
    return as_level(str(value))


def _number(reader: CellReader, cell: Any) -> float:
    if isinstance(cell, timedelta):
        return cell / timedelta(days=1)
    if isinstance(cell, np.timedelta64):  # beside it in an array numbers are such, too
        return float(cell.astype(np.int64))
    unit = ""
    if isinstance(cell, str):
        value = number_of(cell.strip(), reader.decimal)[0]
        if value is None:
            value, unit = quantity_of(cell, reader.decimal)
        if value is None:
            raise ValueError
        cell = value
    return scaled(float(cell), reader.scales[unit])


def _date(reader: CellReader, cell: Any) -> Any:
    """A moment without a time zone, in UTC where it has one."""
    moment = cell
    if isinstance(cell, str):
        moment = plain_date(cell)
        if reader.form:
            moment = date_of(cell, reader.form)
    if not isinstance(moment, date):
        raise TypeError
    return np.datetime64(moment, "us")


_PARSERS: dict[str, Callable[[CellReader, Any], Any]] = {
    "number": _number,
    "category": lambda _, cell: level_of(cell),
    "date": _date,
}
_GAPS: dict[str, Any] = {
    "number": math.nan,
    "category": None,
    "date": np.datetime64("NaT", "us"),
}
