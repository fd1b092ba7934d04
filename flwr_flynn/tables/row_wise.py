"""Rows read one by one, for private parties: no row decides about the kind of a column,
or about others.

A value that is no value of its column, or beyond the range, is a fault of its row
alone. Dates are 2024-01-31 or 31.01.2024: of 03/04/2024 other rows would have to tell
the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn.errors import DataError
from flwr_flynn.tables.raw_column import is_gap_text, of_gaps, plain_numbers
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import (
    Table,
    is_frame,
    is_gap,
    level_of,
    moment_of,
    names_of,
    places,
    series_values,
)
from flwr_flynn.tables.texts import (
    BESIDE,
    GAP_TEXTS,
    gaps_with,
    is_beside,
    number_of,
    plain_date,
)


def encode_rows(schema: Schema, X: Any) -> tuple[Array, Mask]:
    """The numbers of rows, (n, width), and a mask of the rows without a fault, (n,).

    X is a data frame, a `Table`, or an array of the schema's columns. A `DataError`
    refuses one without a column of the schema, which no row decides.
    """
    columns = _schema_columns(schema, X)
    n = len(columns[0])
    fits = np.ones(n, np.bool_)
    parsed = []
    for column, values in zip(schema.columns, columns, strict=True):
        array, good = as_kind(column.kind, values, gaps_with(column.gap_texts))
        parsed.append(array)
        fits &= good & ~column.refused(array)
    return schema.numbers(Table(schema.names, parsed)), fits


def raw_columns(X: Any) -> tuple[Sequence[str] | None, list[Array]]:
    """Names of the columns of a data frame, a `Table` or an array, None without any,
    and their values as they are.
    """
    if isinstance(X, Table):
        return X.names if X.is_named else None, [*X.columns]
    if is_frame(X):
        return names_of(X), [series_values(X[name]) for name in X.columns]
    array = np.asarray(X)
    if array.dtype.kind == "m":  # numbers that stand beside one duration
        array = np.where(np.isnat(array), np.nan, array.astype(np.int64))
    return None, [*array.T] if array.ndim == 2 else []


def _schema_columns(schema: Schema, X: Any) -> list[Any]:
    names, columns = raw_columns(X)
    if schema.is_named != (names is not None) or (
        names is None and len(columns) != len(schema.columns)
    ):
        if schema.is_named:
            expected = "a table with the names of its columns"
        else:
            expected = f"{len(schema.columns)} columns"
        raise DataError(
            "X", expected, f"{len(columns)} columns{' with names' if names else ''}"
        )
    if names is None:
        return columns
    there = {*names}
    known = {*schema.names}
    wanted = [
        name for name in schema.names if name in there or not is_beside(name, known)
    ]
    indices = places("columns", names, wanted, "those of the schema")
    found: dict[str, Any] = {
        name: columns[index] for name, index in zip(wanted, indices, strict=True)
    }
    # texts beside the numbers of a column
    for name in (name for name in schema.names if name not in found):
        numbers = _values(found[own := name.removesuffix(BESIDE)])
        found[name] = [value if _is_text(value) else None for value in numbers]
        found[own] = [None if _is_text(value) else value for value in numbers]
    return [found[name] for name in schema.names]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and number_of(value.strip())[0] is None


def _values(column: Any) -> list[Any]:
    """The values of a column as Python's; complex numbers, which one makes of all in an
    array, as real if they are.
    """
    if isinstance(column, np.ndarray):
        column = (
            column.astype(f"{column.dtype.kind}8[us]")
            if column.dtype.kind in "mM"
            else column
        ).tolist()
    return [*map(real_of, column)]


def real_of(value: Any) -> Any:
    """The real number that a complex one is; any other value as it is."""
    if isinstance(value, complex | np.complexfloating) and not value.imag:
        return value.real
    return value


def as_kind(
    kind: str, column: Any, gaps: frozenset[str] = GAP_TEXTS
) -> tuple[Array, Mask]:
    """Values in the dtype of a kind, each by itself, and a mask of those that are
    values of it, or gaps.

    A value that is none is a gap in the array.
    """
    if (
        kind == "number"
        and isinstance(column, np.ndarray)
        and column.dtype.kind in "biuf"
    ):
        return column.astype(np.float64), np.ones(len(column), np.bool_)
    values = _values(column)
    # the same, much faster
    if kind == "number" and (numbers := plain_numbers(values, gaps)) is not None:
        return numbers, np.ones(len(numbers), np.bool_)
    out = of_gaps(kind, len(values))
    good = np.ones(len(values), np.bool_)
    for index, value in enumerate(values):
        try:
            if isinstance(value, bytes):
                text = value.decode()
            else:
                text = value
            if isinstance(text, str):
                text = text.strip()
            if not is_gap(text) and not (
                isinstance(text, str) and is_gap_text(text, gaps)
            ):
                out[index] = _PARSERS[kind](text)
        except Exception:  # noqa: BLE001 - what is no value is a fault, whatever keeps it
            good[index] = False
    return out, good


def _number(value: Any) -> float:
    # a complex number, as NumPy writes it beside a text
    if isinstance(value, str) and value[:1] == "(":
        value = real_of(complex(value))
    if isinstance(value, timedelta):
        return value / timedelta(days=1)
    if isinstance(value, np.timedelta64):  # beside it in an array numbers are such, too
        return float(value.astype(np.int64))
    if isinstance(value, date | complex | np.complexfloating):
        raise TypeError
    if isinstance(value, str):
        number = number_of(value)[0]
    else:
        number = float(value)
    if number is None or np.isnan(number):
        raise ValueError
    return number


def _date(value: Any) -> Any:
    if isinstance(value, str):
        moment = plain_date(value)
        if moment is None:
            raise ValueError
        return np.datetime64(moment, "us")
    if not isinstance(value, date | np.datetime64):
        raise TypeError
    return moment_of(value)


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "number": _number,
    "category": level_of,
    "date": _date,
}
