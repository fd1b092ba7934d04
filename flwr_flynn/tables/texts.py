"""Texts as values: the one parser of numbers and dates, for files, frames, parties and
the console.

A column is of numbers if most of its values are. A unit behind them is taken off where
all values with one have the same. What else stands in such a column, `<5` or `n.d.`, is
a gap of the number and a level of a column beside it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

GAP_TEXTS = frozenset(
    {"", "-", ".", "?", "#n/a", "<na>", "n/a", "na", "nan", "none", "null"}
)
"""Texts of missing values, in lower case."""

TRUTHS = {"false": 0.0, "true": 1.0}
"""Texts of booleans, in lower case."""

DATE_FORMATS = (
    "yyyy-mm-dd",
    "yyyy/mm/dd",
    "dd.mm.yyyy",
    "dd/mm/yyyy",
    "mm/dd/yyyy",
    "dd-mm-yyyy",
    "mm-dd-yyyy",
)
"""Forms of dates, each with or without a time behind it. In front is what a column
means where several forms fit."""

BESIDE = " text"
"""End of the name of the column that has the texts of a column of numbers."""

GROUPS = {
    mark: re.compile(
        rf"[+-]?[0-9]{{1,3}}(?:{re.escape(mark)}[0-9]{{3}})+(?:{re.escape(other)}[0-9]+)?"
    )
    for mark, other in (",.", ".,")
}
"""Numbers with a mark between groups of three digits, by the mark; the other one is
that of decimals."""

_DECIMAL = {mark: re.compile(rf"[+-]?[0-9]+{re.escape(mark)}[0-9]+") for mark in ".,"}
_SPACED = re.compile(
    "[+-]?[0-9]{1,3}(?:[ \u00a0\u2009\u202f'\u2019][0-9]{3})+(?:[.,][0-9]+)?"
)
_CODE = re.compile("[0-9]+E[0-9]+|0+e[0-9]+")
_POINT = re.compile(r"[+-]?[0-9]+\.[0-9]+")
_QUANTITY = re.compile(r"([+-]?[0-9][0-9.,]*) ?((?:[^\W\d_]|[%‰°])[^\s,;:]{0,11})")
_UNIT_IN_NAME = re.compile(
    r"[\[(]([^\[\]()]+)[\])]$|[\s,;:_-]([^\s,;:_()\[\]]+/[^\s,;:_()\[\]]+)$"
)
_WORD = re.compile(r"°?[^\W_]+|[%‰]")
_PRINTED = re.compile(
    r"-?(?:(?:0|[1-9][0-9]{0,15})\.0|[1-9](?:\.[0-9]+)?e\+[0-9]{2,3})"
)
_STAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2})(:[0-9]{2})?(\.[0-9]+)?"
)
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_FEW = 10  # different numbers that may be codes
_MOST_WORDS = 2**12  # that are counted


_UNITS_TEXT = (
    "bar bpm c cal cells cm cmh cmol d day days db dl eq f fl fmol ft g gpt gtt h hour "
    "hours hpa hr hrs hz in inch inches iu j jahre k kcal kg kj kpa l lb lbs m mcg mcl "
    "mcmol meq mg mhz min mins minutes miu ml mm mmh mmhg mmol mo mol month months mosm "
    "mpa ms mu mv n ng nl nm nmol o oz pa pack packs pg pmol ppb ppm s sec st t tpt u ug "
    "ul um umol units uv v w week weeks wk x y year years yr yrs celsius fahrenheit "
    "gdl gl kilo kilos mgdl mgl mmoll mmolmol ngml pound "
    "pounds ugl umoll m2 % ‰ percent pct °c °f"
)
_UNITS = frozenset(_UNITS_TEXT.split())
"""Parts of units, in small letters."""

_UNCLEAR_TEXT = "c f in k m mo n pa st w x"
_UNCLEAR = frozenset(_UNCLEAR_TEXT.split())
"""Parts of units that end other names, too: sex m/f, walk in, chest pa."""

_SAME_TEXT = (
    "% percent pct, y year years yr yrs jahre, mo month months, w week weeks wk, d day days, "
    "h hour hours hr hrs, min mins minutes, in inch inches, lb lbs pound pounds, ug mcg, "
    "kg kilo kilos, °f fahrenheit f, °c celsius c, "
    "g/dl gdl, g/l gl, mg/dl mgdl, mg/l mgl, mmol/l mmoll, umol/l umoll"
)
_SHORTEST = {
    name: names.split()[0] for names in _SAME_TEXT.split(",") for name in names.split()
}
"""The shortest form of units that have several."""

_LONGEST_DATE = 60  # characters
_MOMENT = re.compile(
    r"(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})"
    r"(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?"
    r"(?: ?([AaPp])[Mm])?(?: ?(Z|[+-]\d{2}:?\d{2}))?)?",
    re.ASCII,
)


def as_name(name: Any) -> str:
    """The name of a column: in Unicode's composed form, with one blank for each gap
    between words.

    >>> as_name(" age\\n(years)")
    'age (years)'
    """
    return " ".join(unicodedata.normalize("NFC", str(name)).split())


def as_level(text: str) -> str | None:
    """A text as a level: in the form of a name (see `as_name`), and as `common_form`
    has it; None for an empty one.

    >>> as_level(" m "), as_level(" "), as_level("1.0"), as_level("day\\ncare")
    ('m', None, '1', 'day care')
    """
    return common_form(as_name(text)) or None


def common_form(text: str) -> str:
    """A text, or the one form of a boolean, an integer or a moment that Python and
    NumPy print in several.

    Files and arrays turn 1 into 1.0 where another value is no integer.

    >>> common_form("True"), common_form("1e+16"), common_form("2020-01-31T00:00:00.000")
    ('1', '10000000000000000', '2020-01-31')
    """
    # The longest of them has five letters; other texts may be very long.
    truth = TRUTHS.get(text[:6].lower())
    if truth is not None:
        return f"{truth:g}"
    if _PRINTED.fullmatch(text) and float(text).is_integer():
        return f"{float(text) + 0.0:.0f}"  # there is no -0
    stamp = _STAMP.fullmatch(text)
    if stamp is None:
        return text
    day, minutes, seconds, fraction = stamp.groups(default="")
    clock = f" {minutes}{seconds or ':00'}{fraction.rstrip('0').rstrip('.')}"
    return day + clock.removesuffix(" 00:00:00")


def forms_of_level(level: str) -> tuple[str, ...]:
    """Forms that a level may have elsewhere: in other capitals, or as a number.

    >>> forms_of_level("Heart"), forms_of_level("01")
    (('heart',), ('01', '1'))
    """
    folded = level.casefold()
    if _NUMBER.fullmatch(folded):
        number = f"{float(folded):.15g}"
        if number != folded:
            return (folded, number)
    return (folded,)


def number_of(text: str, decimal: str = ".") -> tuple[float | None, str]:
    """The number that a text spells, None for none, and its type: "b", "i" or "f".

    The decimal mark decides about groups of three digits alone.

    >>> number_of("1,5"), number_of("TRUE"), number_of("7"), number_of("1.234,5", ",")
    ((1.5, 'f'), (1.0, 'b'), (7.0, 'i'), (1234.5, 'f'))
    >>> number_of("2,352"), number_of("2,352", ","), number_of("2.352", ",")
    ((2352.0, 'i'), (2.352, 'f'), (2352.0, 'i'))
    """
    truth = TRUTHS.get(text[:6].lower())
    if truth is not None:
        return truth, "b"
    # Python allows _ between digits; 1E3 may be a room as well.
    if "_" in text or _CODE.fullmatch(text.strip()):
        return None, ""
    if not text.isascii() or "'" in text or " " in text.strip():
        text = text.replace("\u2212", "-")
        if _SPACED.fullmatch(text.strip()):
            text = re.sub("[^-+0-9.,]", "", text)
    if "," in text or (decimal == "," and "." in text):
        text = pointed(text, decimal)
    try:
        value = float(text)
    except ValueError:
        return None, ""
    if math.isnan(value):
        return None, ""
    # Asked first, since the refusal of a fraction as an integer takes longer.
    if value.is_integer():
        with suppress(ValueError):
            if -(2**63) <= int(text) < 2**63:
                return value, "i"
    return value, "f"


def pointed(text: str, decimal: str) -> str:
    """A numeral with a point for the mark of decimals, and none between groups.

    It is "" for one of which it is not known what a point means.
    """
    other = ","
    if decimal == ",":
        other = "."
    if GROUPS[other].fullmatch(text.strip()):
        return text.replace(other, "").replace(",", ".")
    is_plain = decimal != "," or "," in text or _POINT.fullmatch(text.strip())
    if not is_plain:
        return ""
    return text.replace(",", ".")


def proves(text: str, mark: str) -> bool:
    """True for a number with a mark of decimals: one that is no group of three digits,
    or groups of the other one.

    >>> proves("1.5", "."), proves("1,234", ","), proves("0,234", ","), proves("1.234.567", ",")
    (True, False, True, True)
    """
    other = ","
    if mark == ",":
        other = "."
    if text.count(other) > 1:
        return GROUPS[other].fullmatch(text) is not None
    is_group = (
        GROUPS[mark].fullmatch(text) is not None
        and text[0] != "0"
        and text.count(mark) == 1
    )
    return _DECIMAL[mark].fullmatch(text) is not None and not is_group


def quantity_of(text: str, decimal: str = ".") -> tuple[float | None, str]:
    """The number in front of a unit, and the unit as `unit_form` has it.

    Of anything else they are None and "".

    >>> quantity_of("1.55 mg/dl"), quantity_of("45 %"), quantity_of("<5"), quantity_of("2024-01-31")
    ((1.55, 'mg/dl'), (45.0, '%'), (None, ''), (None, ''))
    """
    match = None
    if len(text) < 60:
        match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        return None, ""
    numeral, unit = match.group(1, 2)
    number = number_of(numeral, decimal)[0]
    is_code = len(unit) == 1 and unit.isalpha() and " " not in text.strip()
    if number is None or is_code:  # such as 12A
        return None, ""
    return number, unit_form(unit)


CONVERTED = "*"
"""The unit of numbers that the site's own settings convert."""


def is_unit(unit: str) -> bool:
    """True for a unit of known parts, which no name of a person is, and for none.

    >>> [is_unit(unit) for unit in ("", "mg/dl", "10^9/l", "%", "brzezinska")]
    [True, True, True, True, False]
    """
    parts = re.split(r"[\W\d_]+", re.sub("[%‰°]", "", unit))
    return len(unit) <= 20 and _UNITS.issuperset(filter(None, parts))


def unit_in(name: str) -> str:
    """The unit in the name of a column, as `unit_form` has it, "" for none.

    >>> unit_in("HbA1c (mmol/mol)"), unit_in("body_weight_kg"), unit_in("urea_mg_dl")
    ('mmol/mol', 'kg', 'mg/dl')
    >>> unit_in("Hb in g/dl"), unit_in("Hb..g.dl."), unit_in("hb_g_per_dl")
    ('g/dl', 'g/dl', 'g/dl')
    >>> unit_in("hba1c_percent"), unit_in("score (0-10)"), unit_in("vitamin_c")
    ('%', '', '')
    """
    name = re.sub("[\u00b5\u03bc]", "u", name.lower())
    match = _UNIT_IN_NAME.search(name)
    if match is not None:
        text = match[1] or match[2]
        parts = _WORD.findall(text)
        is_known = is_unit(text) and not _UNITS.isdisjoint(parts)
        if is_known and _UNCLEAR.isdisjoint(parts[1:]):
            return unit_form(text)
    # In names without brackets other marks, or none, stand for a slash.
    words = [word for word in _WORD.findall(name) if word != "per"]
    if len(words) < 2 or words[-1] not in _UNITS:
        return ""
    before, last = words[-2:]
    is_clear = last not in _UNCLEAR
    if is_clear and before != "in" and before in _UNITS and len(words) > 2:
        return unit_form(f"{before}/{last}")
    # A letter may be of a vitamin, too.
    is_word = is_clear and (len(last) > 1 or not last.isalpha())
    is_temperature = last in "cf" and re.search("(?<!t)temp", name)  # no attempt
    if is_word or is_temperature or before == "in":
        return unit_form(last)
    return ""


def without_unit(name: str) -> str:
    """The words of a name in small letters, without a unit.

    >>> without_unit("Hb [g/dl]"), without_unit("hb_g_per_dl"), without_unit("Body weight")
    ('hb', 'hb', 'bodyweight')
    """
    words = _WORD.findall(name.casefold())
    if unit_in(name):
        while len(words) > 1 and is_unit(words[-1].removeprefix("per")):
            words.pop()
    return "".join(words)


def unit_form(unit: str) -> str:
    """A unit in small letters, with u for micro, which has two characters, and in its
    shortest form.

    >>> unit_form("umol/L"), unit_form("\u00b5mol/l"), unit_form("\u03bcmol/l "), unit_form("Years")
    ('umol/l', 'umol/l', 'umol/l', 'y')
    """
    unit = re.sub("[\u00b5\u03bc](?=.)", "u", unit.strip().lower())
    return _SHORTEST.get(unit, unit)


def date_of(text: str, form: str) -> datetime | None:
    """The moment, in UTC, that a text of this form names; None for none.

    >>> date_of("31.01.2024 08:30", "dd.mm.yyyy")
    datetime.datetime(2024, 1, 31, 8, 30)
    """
    match = None
    if len(text) <= _LONGEST_DATE:
        match = _MOMENT.fullmatch(text.strip())
    if match is None:
        return None
    order = form[0]
    separator = form[2]
    if order == "y":
        separator = form[4]
    if match[2] != separator:
        return None
    places = {"y": (1, 3, 4), "d": (4, 3, 1), "m": (4, 1, 3)}
    year, month, day = (match[place] for place in places[order])
    if len(year) != 4 or len(day) > 2 or len(month) > 2:
        return None
    hour = int(match[5] or 0)
    half_of_day = match[9]
    if half_of_day:
        if not 1 <= hour <= 12:
            return None
        hour %= 12
        if half_of_day in "Pp":
            hour += 12
    try:
        moment = datetime(
            int(year),
            int(month),
            int(day),
            hour,
            int(match[6] or 0),
            int(match[7] or 0),
            int((match[8] or "0")[:6].ljust(6, "0")),
        )
        if match[10]:
            moment -= datetime.strptime(match[10], "%z").utcoffset() or timedelta()
    except (ValueError, OverflowError):
        return None
    return moment


def plain_date(text: str) -> datetime | None:
    """The moment of a text whose form is unmistakable, whatever others are.

    It is None for a text that is no such date.

    >>> plain_date("31.01.2024"), plain_date("01/02/2024")
    (datetime.datetime(2024, 1, 31, 0, 0), None)
    """
    return next(filter(None, (date_of(text, form) for form in DATE_FORMATS[:3])), None)


def is_value(text: str) -> bool:
    """True for a text that spells a number, a boolean or a date, in whatever form.

    >>> is_value("-9,5"), is_value("5 mg"), is_value("03/14/2024"), is_value("unknown")
    (True, True, True, False)
    """
    numbers = [
        read(text.strip(), mark)[0]
        for read in (number_of, quantity_of)
        for mark in ",."
    ]
    dates = [date_of(text, form) for form in DATE_FORMATS]
    return any(value is not None for value in [*numbers, *dates])


@dataclass
class Numerals:
    """Facts about the values of a column that are no gaps, from which follows if it is
    one of numbers.
    """

    n_numbers: int = 0
    # Rows with a number in front of each unit.
    units: Counter[str] = field(default_factory=Counter)
    # Rows with each other text, of the first `_MOST_WORDS`.
    words: Counter[str] = field(default_factory=Counter)
    n_words: int = 0
    n_inf: int = 0  # rows with inf: numbers, or beside words another one (infusion)
    some: set[float] = field(default_factory=set)  # different numbers
    # Units that the site's settings convert; no other is taken off then.
    converted: Mapping[str, object] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)  # other units then

    def add_numbers(self, values: Iterable[float], n_rows: int) -> None:
        """Add rows with these numbers."""
        self.n_numbers += n_rows
        for value in values:
            if len(self.some) > _FEW:
                return
            self.some.add(float(value))

    def add(self, text: str, n_rows: int, decimal: str = ".") -> str:
        """Add rows with a text, and return the type of the number that it is.

        It is "" for none, "q" for one with a unit.
        """
        value, kind = number_of(text, decimal)
        if value == math.inf and text.isalpha():
            self.n_inf += n_rows
            return kind
        unit = ""
        if value is None:
            value, unit = quantity_of(text, decimal)
        if value is not None and unit in self.converted:
            self.add_numbers((value,), n_rows)
            return "f"
        if value is None or self.converted:
            if unit and is_unit(unit):
                self.foreign.add(unit)
            self.n_words += n_rows
            if len(self.words) < _MOST_WORDS or text in self.words:
                self.words[text] += n_rows
            return ""
        if unit:
            self.units[unit] += n_rows
            self.add_numbers((value,), 0)
            return "q"
        self.add_numbers((value,), n_rows)
        return kind

    @property
    def unit(self) -> str:
        """The unit that is taken off, "" for none or several."""
        if len(self.units) == 1:
            return next(iter(self.units))
        return ""

    @property
    def rows_by_unit(self) -> Mapping[str, int]:
        """Rows with each unit, "" for numbers alone."""
        n_plain = self.n_read
        if self.unit:
            n_plain -= self.units.total()
        rows = {**self.units}
        if n_plain > 0:
            rows[""] = n_plain
        return rows

    @property
    def n_others(self) -> int:
        """Rows with neither a number nor one of the unit that is taken off."""
        n_others = self.n_words
        if n_others:
            n_others += self.n_inf
        if not self.unit:
            n_others += self.units.total()
        return n_others

    @property
    def n_read(self) -> int:
        """Rows with a number, those of the unit that is taken off included."""
        n_all = self.n_numbers + self.n_words + self.n_inf + self.units.total()
        return n_all - self.n_others

    @property
    def are_numbers(self) -> bool:
        """True where all values are numbers, or most of them, and these are no codes."""
        if not self.n_others and not self.units:
            return True
        return self.n_read > self.n_others and not self.are_codes

    @property
    def are_codes(self) -> bool:
        """True for few different numbers, all of them integers."""
        return len(self.some) <= _FEW and not any(value % 1 for value in self.some)

    def described(self) -> str:
        """The column in a line, for the log of the machine that has it."""
        line = f"{self.n_read} numbers"
        if self.unit:
            line += f" ({self.unit} taken off)"
        if not self.n_others:
            return line
        line += f", {self.n_others} others"
        recurring = [
            repr(text[:20]) for text, rows in self.words.most_common(3) if rows > 1
        ]
        if recurring:
            line += f" ({', '.join(recurring)})"
        return line


def is_beside(name: str, names: Iterable[str]) -> bool:
    """True for the name of a column that has the texts of one of the others, of
    numbers.
    """
    return name.endswith(BESIDE) and name.removesuffix(BESIDE) in names
