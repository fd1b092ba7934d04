"""Raw columns and tables: numbers, texts and dates, each with gaps.

A data frame, an array or a file has raw columns: cells of any type. A reader of columns
looks at all of them, and gives a table, whose columns are of three kinds: "number" (NaN
for a gap), "category" (texts, None for a gap) and "date" (datetime64[us], NaT for a
gap). Booleans and durations are numbers (of days), and texts lose blanks around them,
so that an empty one is a gap.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import Any, Self, TypeGuard

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn._validation import listed
from flwr_flynn.errors import DataError, with_names
from flwr_flynn.tables.cells import (
    KIND_OF_DTYPE,
    CellReader,
    Cells,
    is_gap,
    missing,
    objects,
    plain_values,
    text_of,
)
from flwr_flynn.tables.raw_column import Raw, RawColumn, months_come_first
from flwr_flynn.tables.texts import BESIDE, CONVERTED, as_name, unit_form

KINDS = ("number", "category", "date")

_DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True, eq=False)
class RawColumns:
    """Columns of the same length with cells as they stand.

    Parameters
    ----------
    names : sequence of str
        All different.
    columns : sequence of (n,) arrays
        Of any type.
    is_named : bool, default=True
        False if the names stand for the columns of an array, which are found by their
        positions.
    typed : mapping of str to str
        By name: "levels" for a column whose values are these, whatever they spell.
    """

    names: Sequence[str]
    columns: Sequence[Array]
    is_named: bool = True
    typed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "columns", tuple(self.columns))
        _check_different(self.names)

    @staticmethod
    def of(X: object) -> RawColumns:
        """The columns of a data frame (pandas, polars), an array, or a table.

        There are none of what has not two dimensions.
        """
        if isinstance(X, RawColumns):
            return X
        if is_frame(X):
            names = names_of(X)
            known = names or _numbers(len(X.columns))
            series = dict(zip(known, (X[key] for key in X.columns), strict=True))
            typed = {name: "levels" for name in known if _has_levels(series[name])}
            cells = [*map(cells_of, series.values())]
            return RawColumns(known, cells, names is not None, typed)
        array: Any = X
        if not isinstance(X, np.ndarray):
            array = _array_of(X)
        if array.ndim != 2:
            return RawColumns((), (), False)
        return RawColumns(_numbers(array.shape[1]), [*array.T], False)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of columns."""
        n_rows = 0
        if self.columns:
            n_rows = len(self.columns[0])
        return n_rows, len(self.columns)

    @property
    def is_plain(self) -> bool:
        """True for plain numbers without gaps, of types that an array of them has."""
        kinds = {*map(_plain_kind, self.columns)}
        return "" not in kinds and ("b" not in kinds or len(kinds) == 1)

    def raw(self, index: int) -> Raw:
        """The values of a column, as `raw_of` has them."""
        name = self.names[index]
        return raw_of(self.columns[index], self.typed.get(name), name)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Self:
        """The same columns of some rows: a slice, indices or a mask."""
        return replace(self, columns=[column[rows] for column in self.columns])


@dataclass(frozen=True, eq=False)
class Table(RawColumns):
    """Columns of numbers, texts or None, or datetime64[us]; see the kinds above.

    Parameters
    ----------
    units : mapping of str to mappings of str to int
        Rows with each unit, "" for none; no unit of a column is compared without any.

    Examples
    --------
    >>> table = Table.of(np.array([["a", 1.5], [None, 2.0]], dtype=object))
    >>> table.kinds, table.shape
    (('category', 'number'), (2, 2))
    """

    units: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(X: object) -> Table:
        """The table of a data frame (pandas, polars), an array, or a table.

        A `DataError` names the columns with values that are no numbers, texts or dates.
        """
        if isinstance(X, Table):
            return X
        columns = RawColumns.of(X)
        if not columns.columns:
            raise DataError("X", "shape (samples, features)", "no columns")
        raws = [*map(columns.raw, range(len(columns.names)))]
        kinds = [
            columns.typed.get(name) or kind_of(raw)
            for name, raw in zip(columns.names, raws, strict=True)
        ]
        reports = [*map(RawColumn, kinds)]
        return ColumnReader(columns.names, reports, columns.is_named).read(raws)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each column."""
        return tuple(KIND_OF_DTYPE[column.dtype.kind] for column in self.columns)


class ColumnReader:
    """Raw columns as a table, by facts of a first pass over all rows.

    Parameters
    ----------
    names : sequence of str
    reports : sequence of RawColumn
    is_named : bool, default=True
    """

    def __init__(
        self, names: Sequence[str], reports: Sequence[RawColumn], is_named: bool = True
    ) -> None:
        self.names = tuple(names)
        self.reports = [*reports]
        self.is_named = is_named
        self._beside: list[int] = []  # numbers whose texts make a column of their own

    def look(self, raws: Sequence[Raw]) -> None:
        """Look at some rows."""
        for report, raw in zip(self.reports, raws, strict=True):
            report.add(raw)

    def settle(self, wanted: Collection[str] | None = None) -> None:
        """Decide about the columns, when all rows were looked at.

        Texts that stand among numbers make a column beside them, where it has a name
        and, if only some are `wanted`, is one of these.
        """
        month_first = months_come_first(self.reports)
        there = {*self.names}
        for index, (name, report) in enumerate(self.items()):
            report.month_first = month_first
            report.is_strict = not self.is_named
            beside = f"{name}{BESIDE}"
            if not (report.texts and report.kind == "number" and self.is_named):
                continue
            if beside not in there and (wanted is None or beside in wanted):
                report.has_beside = True
                self._beside.append(index)
                self.reports.append(RawColumn("category"))
                self.names += (beside,)

    def read(self, raws: Sequence[Raw], wanted: Collection[str] | None = None) -> Table:
        """All rows as a table, where the values are those of their columns."""
        self.look(raws)
        self.settle(wanted)
        for (name, report), raw in zip(self.items(), raws, strict=False):
            if report.unfit:
                expected = f"values of kind {report.kind}"
                raise DataError(f"column {name!r}", expected, f"kind {kind_of(raw)}")
        for error, _ in self.other_units():
            raise error
        return self.table(raws)

    @property
    def units(self) -> dict[str, Mapping[str, int]]:
        """Rows of the columns with each unit, where one has a unit."""
        units: dict[str, Mapping[str, int]] = {}
        for name, report in self.items():
            rows = report.numerals.rows_by_unit
            if report.scales and not report.unit:
                units[name] = {CONVERTED: report.n}
            elif report.numerals.units:
                units[name] = {
                    unit: n for unit, n in rows.items() if unit.isprintable()
                }
        return units

    def other_units(self) -> Iterator[tuple[DataError, str]]:
        """Errors about numbers in another unit than the schema's, and the setting that
        converts them.
        """
        for name, report in self.items():
            others = sorted(report.numerals.foreign)
            if report.unit and others:
                expected = f"numbers in {report.unit} (setting convert)"
                error = DataError(f"column {name!r}", expected, "another unit")
                yield with_names(error, others), f"convert={name}:{others[0]}*..."

    def items(self) -> list[tuple[str, RawColumn]]:
        """The columns by their names."""
        return [*zip(self.names, self.reports, strict=True)]

    def table(self, raws: Sequence[Raw]) -> Table:
        """Some rows as a table."""
        pairs = zip(self.reports, raws, strict=False)
        columns = [report.values(raw) for report, raw in pairs]
        columns += [self.reports[index].beside(raws[index]) for index in self._beside]
        return Table(self.names, columns, self.is_named, units=self.units)


def is_frame(X: object) -> TypeGuard[Any]:
    """True for a data frame: an object with named columns that can be taken one by one."""
    # The first attribute is that of pandas, the second of polars.
    return hasattr(X, "columns") and (hasattr(X, "iloc") or hasattr(X, "get_column"))


def names_of(frame: Any) -> list[str] | None:
    """Names of the columns of a data frame.

    It is None where pandas numbered them, so that they have positions alone.
    """
    if not any(isinstance(name, str) for name in frame.columns):
        return None
    names = [as_name(name) for name in frame.columns]
    _check_different(names)
    return names


def by_name(columns: Sequence[str], wanted: Sequence[str]) -> list[int | None]:
    """Index of the column of each wanted name, None without one.

    Where no column has exactly the name, it is the one whose name differs in capitals,
    blanks or forms of Unicode.
    """
    exact = {name: index for index, name in enumerate(columns)}
    open_forms = Counter(form_of(name) for name in wanted if name not in exact)
    forms = Counter(map(form_of, columns))
    known = {*wanted}
    alike = {
        form_of(name): index
        for name, index in exact.items()
        if name not in known and forms[form_of(name)] == open_forms[form_of(name)] == 1
    }
    return [exact.get(name, alike.get(form_of(name))) for name in wanted]


def places(
    source: str,
    columns: Sequence[str],
    names: Sequence[str],
    expected: str,
    *,
    announced: bool = False,
) -> list[int]:
    """Index of the column of each name, see `by_name`.

    Raises a `DataError` where one is missing, which notes the columns.

    Names are told if they were `announced` by a run.
    """
    indices = by_name(columns, [*map(as_name, names)])
    missing = [
        str(name)[:60]
        for name, index in zip(names, indices, strict=True)
        if index is None
    ]
    if missing:
        got = "other columns"
        if len(names) > 1:
            got = f"{len(missing)} of {len(names)} missing"
            if announced:
                got += f": {listed(missing)}"
        raise with_names(DataError(source, expected, got), columns, most=20)
    return [index for index in indices if index is not None]


def form_of(name: str) -> str:
    """A name without what people write differently: capitals, blanks, forms of Unicode
    and of a unit behind it.
    """
    name = unicodedata.normalize("NFKC", name)
    unit = re.search(r"[\[(]([^\[\]()]+)[\])]$", name)
    if unit is not None:
        name = f"{name[: unit.start()]}({unit_form(unit[1])})"
    return "".join(name.casefold().split())


def _check_different(names: Sequence[str]) -> None:
    n_same = len(names) - len(set(names))
    if n_same:
        raise DataError(
            "columns",
            "columns of different names",
            f"{len(names)} columns, {n_same} of them named again",
        )


def _numbers(n: int) -> list[str]:
    return [str(index) for index in range(n)]


def _array_of(X: object) -> Array:
    """An array of lists: of objects where these are not all numbers, which would make
    texts of one another.
    """
    try:
        array = np.asarray(X)
        if array.dtype.kind in "UTM":
            return np.asarray(X, object)
        return array
    except ValueError:  # rows of different lengths
        return np.empty(0, object)


def cells_of(series: Any) -> Array:
    """The values of a column of a data frame, which are read alike in each slice."""
    name = str(series.dtype).lower()
    if isinstance(series.dtype, np.dtype) or name.startswith(_FAST):
        values: Array = series.to_numpy()
        # Integers become floats where there is a gap.
        is_exact = values.dtype.kind != "f" or not (np.abs(values) >= 2**53).any()
        if isinstance(series.dtype, np.dtype) or (values.dtype != object and is_exact):
            return values
    return objects(series.to_list())


_FAST = ("int", "uint", "float", "bool", "date")
"""Types whose values an array has."""


def _has_levels(series: Any) -> bool:
    name = str(series.dtype).lower()
    return name.startswith(("category", "categorical", "enum"))


def _plain_kind(cells: Array) -> str:
    """The kind of the type of plain numbers without gaps, "" for other cells."""
    if cells.dtype.kind == "O":
        values = cells.tolist()
        if any(is_gap(value) or isinstance(value, str | date) for value in values):
            return ""
        return "f"
    if cells.dtype.kind not in "biufc":
        return ""
    if cells.dtype.kind == "f" and np.isnan(np.sum(cells)) and missing(cells).any():
        return ""
    return cells.dtype.kind


def raw_of(cells: Cells, kind: str | None = None, name: str = "") -> Raw:
    """The values of a column of a kind, or of the one that all of them have.

    They are an array of numbers, durations in days or dates, or a list of texts, with
    None for a gap. Numbers beside texts are texts.
    """
    dtype = getattr(cells, "dtype", np.dtype(object))
    if dtype.kind in "biuf":
        return np.asarray(cells)
    if dtype.kind == "M":
        return np.asarray(cells, "datetime64[us]")
    if dtype.kind == "m":
        return _days(np.asarray(cells))
    if dtype.kind not in "OUT":
        expected = "numbers, texts or dates"
        raise DataError(name, expected, f"values of type {dtype}")
    values = plain_values(cells)
    types = {*map(type, values)}
    if types <= _TEXTS and str in types:
        return [*values]
    if types <= _NUMBERS and kind in (None, "number"):
        with suppress(OverflowError):
            return np.array(values, np.float64)
    values = [None if is_gap(value) else value for value in values]
    are_texts = kind in ("category", "levels")
    if are_texts or any(isinstance(value, str) for value in values):
        if all(are_texts or isinstance(value, _LEVELS) for value in values):
            return [
                value if type(value) in _TEXTS else text_of(value) for value in values
            ]
    else:
        for own in ("number", "date"):
            read, good = CellReader(own).column(values)
            if good.all():
                return read
    kinds = listed(sorted(own_type.__name__ for own_type in types))
    raise DataError(name, "numbers, texts or dates", f"values of types {kinds}")


_TEXTS = {str, type(None)}
_NUMBERS = {int, float, bool, type(None)}
_LEVELS = (str, Real, Decimal, np.bool_, type(None))


def kind_of(raw: Raw) -> str:
    """The kind of the values of a column by their type."""
    if isinstance(raw, np.ndarray):
        return KIND_OF_DTYPE[raw.dtype.kind]
    return "category"


def _days(values: Array) -> Array:
    """Durations in days, NaN for a gap."""
    durations = values.astype("timedelta64[us]")
    return np.where(np.isnat(durations), np.nan, durations.astype(np.int64) / _DAY)


def days_of(moments: Array) -> Array:
    """Days since 1970-01-01 of dates, with their time as a fraction; NaN for a gap."""
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / _DAY)


def parts_of(moments: Array) -> tuple[Array, Callable[[str], Array]]:
    """Mask of the dates that are none, and a function for a part of the others by its
    name, 0 where there is none.
    """
    is_gap = np.isnat(moments)
    filled = np.where(is_gap, np.datetime64(0, "us"), moments)
    days = filled.astype("datetime64[D]")

    def part(name: str) -> Array:
        if name == "month":
            months = filled.astype("datetime64[M]").astype(np.int64)
            return np.asarray(months % 12 + 1, np.float64)
        if name == "weekday":
            # 1970-01-01 was a Thursday; Monday is 0.
            return np.asarray((days.astype(np.int64) + 3) % 7, np.float64)
        microseconds = (filled - days).astype("timedelta64[us]").astype(np.int64)
        return np.asarray(microseconds / (_DAY / 24), np.float64)

    return is_gap, part
