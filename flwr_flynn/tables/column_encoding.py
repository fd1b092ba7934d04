"""Columns of a schema: their kinds, and how their values become numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn._validation import boolean, number, one_of
from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.cells import ByLevel, each_once
from flwr_flynn.tables.table import KINDS, days_of, parts_of
from flwr_flynn.tables.texts import as_level, as_name, is_value

MOST_LEVELS = 1024
"""Levels of a category in a schema, at most; a learned one has `LEARNED_LEVELS`."""

LONGEST = 200
"""Characters of a name or a level, at most."""

_DATE_PARTS = ("month", "weekday", "hour")


def is_nameable(text: Any) -> bool:
    """True for a text that may be a name or a level: short, printable, and without
    blanks around it.
    """
    return (
        isinstance(text, str)
        and 0 < len(text) <= LONGEST
        and text.isprintable()
        and text == text.strip()
    )


@dataclass(frozen=True)
class Column:
    """One column of a schema. A wrong field is a `SchemaError`.

    Parameters
    ----------
    name : str
    kind : {"number", "category", "date"}
    levels : sequence of str
        Of a category, all different; values that are none of these are "other".
    gaps : bool, default=True
        One more 0/1 column tells where the value is missing. A gap is allowed without,
        too.
    low, high : float, optional
        Of a number: public range. Values beyond are refused.
    unit : str
        Of a number. Numbers with another unit are refused, unless a site converts them.
    gap_texts : sequence of str
        Texts of missing values in files, beside the usual ones. A text that spells a
        value, such as -9, is one of the site's own settings.
    required : bool, default=False
        Refuse a table without the column, in which all values would be gaps.
    synonyms : mapping of str to str
        Of a category: other texts of a level, such as ``{"ja": "yes"}``; kept as sorted
        pairs.
    """

    name: str
    kind: str
    levels: Sequence[str] = ()
    gaps: bool = True
    low: float | None = None
    high: float | None = None
    unit: str = ""
    gap_texts: Sequence[str] = ()
    required: bool = False
    synonyms: Mapping[str, str] | Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        if isinstance(self.name, str):
            object.__setattr__(self, "name", as_name(self.name))
        if not is_nameable(self.name):
            raise SchemaError(
                "name", f"1 to {LONGEST} printable characters", shown(self.name)
            )
        one_of(f"column {self.name!r} kind", self.kind, KINDS, error=SchemaError)
        for name in ("gaps", "required"):
            boolean(f"column {self.name!r} {name}", getattr(self, name), SchemaError)
        levels = _checked_texts(f"column {self.name!r} levels", self.levels)
        levels = tuple(as_level(level) or "" for level in levels)
        if levels and (
            self.kind != "category"
            or len({*levels}) < len(levels)
            or not all(map(is_nameable, levels))
        ):
            expected = (
                f"different texts of 1 to {LONGEST} characters, of a category alone"
            )
            raise SchemaError(
                f"column {self.name!r} levels",
                expected,
                f"{len(levels)} of a {self.kind}",
            )
        object.__setattr__(self, "levels", levels)
        object.__setattr__(
            self,
            "synonyms",
            _checked_synonyms(f"column {self.name!r} synonyms", self.synonyms, levels),
        )
        gap_texts = _checked_texts(f"column {self.name!r} gap_texts", self.gap_texts)
        values = [text for text in gap_texts if is_value(text)]
        if values:
            # By such texts whoever writes the schema would ask about values.
            line = json.dumps(values[:20], ensure_ascii=False)
            raise SchemaError(
                f"column {self.name!r} gap_texts",
                "texts that spell no number, boolean or date; such gaps belong in each "
                f"site's own settings (commands take --gap-text): gap-texts = {line}",
                f"{len(values)} of them",
            )
        object.__setattr__(self, "gap_texts", gap_texts)
        for end in ("low", "high"):
            if getattr(self, end) is not None:
                if self.kind != "number":
                    raise SchemaError(
                        f"column {self.name!r} {end}",
                        "none but for a number",
                        f"a {self.kind}",
                    )
                value = number(
                    f"column {self.name!r} {end}", getattr(self, end), error=SchemaError
                )
                object.__setattr__(self, end, value)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise SchemaError(
                f"column {self.name!r} low",
                "at most high",
                f"{self.low:g} above {self.high:g}",
            )
        if not isinstance(self.unit, str) or len(self.unit) > LONGEST:
            raise SchemaError(
                f"column {self.name!r} unit",
                f"at most {LONGEST} characters",
                shown(self.unit),
            )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the numbers that a value becomes."""
        if self.kind == "category":
            names = tuple(f"{self.name}={level}" for level in self.levels)
        elif self.kind == "date":
            names = (
                f"{self.name} days",
                *(f"{self.name} {part}" for part in _DATE_PARTS),
            )
        else:
            names = (self.name,)
        if self.gaps:
            return (*names, f"{self.name} missing")
        return names

    @property
    def width(self) -> int:
        """Number of the numbers that a value becomes."""
        n = 1
        if self.kind == "category":
            n = len(self.levels)
        elif self.kind == "date":
            n = 1 + len(_DATE_PARTS)
        if self.gaps:
            n += 1
        return n

    @property
    def is_plain(self) -> bool:
        """True if the values are hashed as they stand."""
        return self.kind == "number" and not self.gaps

    def to_dict(self) -> dict[str, Any]:
        """Fields that differ from their defaults, as plain Python values."""
        values = unusual(self)
        if self.synonyms:
            values["synonyms"] = dict(self.synonyms)
        return values

    def write(self, values: Array, out: Array) -> None:
        """Write the numbers of values, (n,) of this kind, to `out`, (n, width)."""
        if self.kind == "category":
            codes = np.array(each_once(level_codes(self), values.tolist()), np.int64)
            known = np.flatnonzero(codes >= 0)
            out[:] = 0.0
            out[known, codes[known]] = 1.0
            missing = codes == -2
        elif self.kind == "date":
            missing, part = parts_of(values)
            out[:, 0] = days_of(values)
            for index, name in enumerate(_DATE_PARTS, 1):
                out[:, index] = np.where(missing, np.nan, part(name))
        else:
            out[:, 0] = values
            missing = np.isnan(values)
            out[missing, 0] = np.nan  # the one NaN that all machines write alike
        if self.gaps:
            out[:, -1] = missing

    def refused(self, values: Array) -> Mask:
        """Mask of the values that are no samples of this column: infinite, or beyond
        the range.
        """
        if self.kind != "number":
            return np.zeros(len(values), np.bool_)
        beyond = np.isinf(values)
        with np.errstate(invalid="ignore"):
            if self.low is not None:
                beyond |= values < self.low
            if self.high is not None:
                beyond |= values > self.high
        return np.asarray(beyond)


def level_codes(column: Column) -> ByLevel[int]:
    """Index of each level of a column and of its synonyms, called with a value.

    It is -1 for an unknown level, and -2 for a gap.
    """
    codes = {level: index for index, level in enumerate(column.levels)}
    codes |= {text: codes[level] for text, level in dict(column.synonyms).items()}
    return ByLevel(codes, -2, -1)


def _checked_synonyms(
    what: str, given: Any, levels: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    pairs = None
    if isinstance(given, Mapping | tuple):
        pairs = dict(given)
    if (
        pairs is None
        or len(pairs) > MOST_LEVELS
        or not all(map(is_nameable, [*pairs, *pairs.values()]))
    ):
        raise SchemaError(
            what,
            f"a table of at most {MOST_LEVELS} short printable texts",
            type(given).__name__,
        )
    named = {
        as_level(text) or "": as_level(level) or "" for text, level in pairs.items()
    }
    bad = (
        sum(text in levels or level not in levels for text, level in named.items())
        + len(pairs)
        - len(named)
    )
    if bad:
        raise SchemaError(
            what,
            "different texts that are no levels, each for one of the levels",
            f"{bad} others",
        )
    return tuple(sorted(named.items()))


def _checked_texts(what: str, texts: Any) -> tuple[str, ...]:
    if (
        isinstance(texts, str)
        or not isinstance(texts, Sequence)
        or len(texts) > MOST_LEVELS
    ):
        raise SchemaError(
            what, f"a list of at most {MOST_LEVELS} texts", type(texts).__name__
        )
    bad = sum(
        not (isinstance(text, str) and text.isprintable() and len(text) <= LONGEST)
        for text in texts
    )
    if bad:
        raise SchemaError(
            what, f"printable texts of at most {LONGEST} characters", f"{bad} others"
        )
    return tuple(texts)


def unusual(record: Any, but: str = "") -> dict[str, Any]:
    """Fields of a record but one that differ from their defaults, tuples as lists."""
    values = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name == but or value == field.default:
            continue
        if isinstance(value, tuple):
            value = list(value)
        values[field.name] = value
    return values


def shown(value: Any) -> str:
    """A value for an error: short, and without control characters."""
    if isinstance(value, str):
        return repr(value)[:60]
    return type(value).__name__
