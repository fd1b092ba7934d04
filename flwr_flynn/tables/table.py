"""A table of raw columns: numbers, texts and dates, each with gaps.

A data frame, an array or a file has columns of three kinds: "number" (float64, NaN for
a gap), "category" (texts, None for a gap) and "date" (datetime64[us], NaT for a gap).
Booleans and durations are numbers (of days), and texts lose blanks around them, so that
an empty one is a gap.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any, TypeGuard

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn._validation import listed
from flwr_flynn.errors import DataError, with_names
from flwr_flynn.tables.cells import CellReader, Gaps, is_gap
from flwr_flynn.tables.raw_column import RawColumn
from flwr_flynn.tables.texts import BESIDE, DATE_FORMATS, as_name

KINDS = ("number", "category", "date")

_KIND_OF_DTYPE = {"f": "number", "O": "category", "M": "date"}
_DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of the same length.

    Parameters
    ----------
    names : sequence of str
        All different.
    columns : sequence of (n,) arrays
        float64, object (str or None) or datetime64[us]; see the kinds above.
    is_named : bool, default=True
        False if the names stand for the columns of an array, which are found by their
        positions.
    units : mapping of str to mappings of str to int
        Rows with each unit, "" for none; no unit of a column is compared without any.

    Examples
    --------
    >>> table = Table.of(np.array([["a", 1.5], [None, 2.0]], dtype=object))
    >>> table.kinds, table.shape
    (('category', 'number'), (2, 2))
    """

    names: Sequence[str]
    columns: Sequence[Array]
    is_named: bool = True
    units: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "columns", tuple(self.columns))
        _check_different(self.names)

    @classmethod
    def of(cls, X: object, *, is_learned: bool = False) -> Table:
        """The table of a data frame (pandas, polars), an array, or a table.

        Where a schema `is_learned` of it, a column of texts that are numbers mostly is
        one of numbers, and one of texts beside it; else a schema knows. A `DataError`
        names the columns with values that are no numbers, texts or dates.
        """
        if isinstance(X, cls):
            return X
        if is_frame(X):
            return cls._of_frame(X, is_learned)
        if isinstance(X, np.ndarray):
            array = X
        else:
            array = _array_of(X)
        if array.ndim != 2:
            raise DataError(
                "X", "shape (samples, features)", f"{array.ndim} dimension(s)"
            )
        names = [str(index) for index in range(array.shape[1])]
        return cls(
            names,
            [_of_values(array[:, j], f"column {j}") for j in range(array.shape[1])],
            is_named=False,
        )

    @classmethod
    def _of_frame(cls, frame: Any, is_learned: bool) -> Table:
        names = names_of(frame)
        known = names or [str(index) for index in range(len(frame.columns))]
        columns: dict[str, Array] = {}
        for name, key in zip(known, frame.columns, strict=True):
            series = frame[key]
            values = _of_series(series, name)
            columns[name] = values
            is_text = values.dtype.kind == "O" and not _is_category(series)
            if is_learned and names and is_text and f"{name}{BESIDE}" not in names:
                columns |= _split(name, values)
        return cls([*columns], [*columns.values()], names is not None)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each column."""
        return tuple(_KIND_OF_DTYPE[column.dtype.kind] for column in self.columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of columns."""
        n_rows = 0
        if self.columns:
            n_rows = len(self.columns[0])
        return n_rows, len(self.columns)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Table:
        """The table of some rows: a slice, indices or a mask."""
        return replace(self, columns=[column[rows] for column in self.columns])


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
    forms = Counter(form_of(name) for name in columns)
    alike = {
        form_of(name): index
        for index, name in enumerate(columns)
        if forms[form_of(name)] == 1
    }
    known = {*wanted}
    alike = {
        form: index
        for form, index in alike.items()
        if open_forms[form] == 1 and columns[index] not in known
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
    """A name without what people write differently: capitals, blanks and forms of
    Unicode.
    """
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def _check_different(names: Sequence[str]) -> None:
    n_same = len(names) - len(set(names))
    if n_same:
        raise DataError(
            "columns",
            "columns of different names",
            f"{len(names)} columns, {n_same} of them named again",
        )


def needs_table(X: object) -> bool:
    """True unless X is an array or a frame of plain numbers without gaps, which is
    hashed as it stands.
    """
    if isinstance(X, Table):
        return True
    if is_frame(X):
        names_of(X)
        dtypes = {X[name].dtype for name in X.columns}
        # Booleans beside numbers, and pandas' own types beside others, become objects
        # in an array.
        mixes = len(dtypes) > 1 and not all(
            isinstance(dtype, np.dtype) and dtype.kind != "b" for dtype in dtypes
        )
        return mixes or any(_needs_table(X[name]) for name in X.columns)
    if isinstance(X, np.ndarray):
        array = X
    else:
        array = _array_of(X)
    if array.ndim != 2:
        return False
    if array.dtype.kind == "f":
        return bool(np.isnan(np.sum(array)) and np.isnan(array).any())
    if array.dtype.kind == "O":
        return any(
            is_gap(value) or isinstance(value, str | date)
            for value in array.ravel().tolist()
        )
    return array.dtype.kind in "UTM"


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


def _needs_table(series: Any) -> bool:
    values = series.to_numpy()
    if _is_category(series) or values.dtype.kind not in "biufc":
        return True
    return values.dtype.kind == "f" and bool(np.isnan(values).any())


def series_values(series: Any) -> Array:
    """The values of a column of a data frame, in a form that its type decides and no
    value: slices are read alike.
    """
    if isinstance(series.dtype, np.dtype):
        values: Array = series.to_numpy()
        return values
    # Nullable, categorical and Arrow columns become floats or objects where a slice of
    # them has a gap.
    objects = series.to_list()
    out = np.empty(len(objects), object)
    out[:] = objects
    return out


def _is_category(series: Any) -> bool:
    return str(series.dtype).split("(")[0].lower() in (
        "category",
        "categorical",
        "enum",
    )


def _of_series(series: Any, name: str) -> Array:
    """The values of a column of a data frame."""
    values = series.to_numpy()
    if _is_category(series):
        return CellReader("category", Gaps(frozenset())).column(values)[0]
    return _of_values(values, name)


def _split(name: str, values: Array) -> dict[str, Array]:
    """A column of texts as numbers, with what is none in a column beside it.

    It is {} where most texts are none, or codes.
    """
    raw = RawColumn("category")
    texts = values.tolist()
    raw.add(texts)
    # Of other forms no single text tells which it is.
    if raw.form in DATE_FORMATS[:3]:
        return {name: raw.values(texts)}
    if raw.kind != "number":
        return {}
    if raw.texts:
        beside = {f"{name}{BESIDE}": raw.beside(texts)}
    else:
        beside = {}
    return {name: raw.values(texts).astype(np.float64), **beside}


def _of_values(values: Array, name: str) -> Array:
    """The values of a column, (n,) of any dtype."""
    kind = values.dtype.kind
    if kind in "biuf":
        return values.astype(np.float64)
    if kind == "M":
        return values.astype("datetime64[us]")
    if kind == "m":
        return _days(values)
    if kind in "UT":
        return CellReader("category").column(values)[0]
    if kind == "O":
        return _of_objects(values, name)
    raise DataError(name, "numbers, texts or dates", f"values of type {values.dtype}")


_TYPES_OF_KIND = {
    "number": (Real, Decimal, np.bool_),
    "date": (date, np.datetime64),
    "category": (str, Real, Decimal, np.bool_),
}


def _of_objects(values: Array, name: str) -> Array:
    """The values of a column of Python objects: the kind that all of them have.

    Numbers beside texts are texts.
    """
    objects = [None if is_gap(value) else value for value in values.tolist()]
    known = {type(value) for value in objects} - {type(None)}
    if all(issubclass(kind, timedelta | np.timedelta64) for kind in known) and known:
        return _days(np.array(objects, "timedelta64[us]"))
    for kind, types in _TYPES_OF_KIND.items():
        if all(issubclass(own_type, types) for own_type in known):
            read, good = CellReader(kind).column(objects)
            if not good.all():
                raise DataError(name, "numbers that float64 holds, or dates", "others")
            return read
    kinds = listed(sorted(own_type.__name__ for own_type in known))
    raise DataError(name, "numbers, texts or dates", f"values of types {kinds}")


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
