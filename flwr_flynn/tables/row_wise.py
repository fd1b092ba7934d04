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


def encode_rows(schema: Schema, X: object) -> tuple[Array, Mask]:
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
        names = None
        if X.is_named:
            names = X.names
        return names, [*X.columns]
    if is_frame(X):
        return names_of(X), [series_values(X[name]) for name in X.columns]
    array = np.asarray(X)
    if array.dtype.kind == "m":  # numbers that stand beside one duration
        array = np.where(np.isnat(array), np.nan, array.astype(np.int64))
    if array.ndim != 2:
        return None, []
    return None, [*array.T]


def _schema_columns(schema: Schema, X: object) -> list[Any]:
    names, columns = raw_columns(X)
    if schema.is_named and names is None:
        raise DataError(
            "X", "a table with the names of its columns", f"{len(columns)} columns"
        )
    if not schema.is_named and (
        names is not None or len(columns) != len(schema.columns)
    ):
        got = f"{len(columns)} columns"
        if names:
            got += " with names"
        raise DataError("X", f"{len(schema.columns)} columns", got)
    if names is None:
        return columns
    there = {*names}
    known = {*schema.names}
    wanted = [
        name for name in schema.names if name in there or not is_beside(name, known)
    ]
    indices = places("columns", names, wanted, "those of the schema")
    by_name: dict[str, Any] = {
        name: columns[index] for name, index in zip(wanted, indices, strict=True)
    }
    for name in schema.names:
        if name not in by_name:
            # The column has the texts that stand beside the numbers of another one.
            of_numbers = name.removesuffix(BESIDE)
            numbers, texts = _apart(_values(by_name[of_numbers]))
            by_name[of_numbers] = numbers
            by_name[name] = texts
    return [by_name[name] for name in schema.names]


def _apart(values: Sequence[object]) -> tuple[list[object], list[object]]:
    """Values that are no texts, and texts, with None in the place of the others."""
    numbers = []
    texts = []
    for value in values:
        is_text = isinstance(value, str) and number_of(value.strip())[0] is None
        numbers.append(None if is_text else value)
        texts.append(value if is_text else None)
    return numbers, texts


def _values(column: Any) -> list[Any]:
    """The values of a column as Python's.

    Complex numbers, which one of them makes of all numbers in an array, are real if
    they can be.
    """
    if isinstance(column, np.ndarray):
        if column.dtype.kind in "mM":
            column = column.astype(f"{column.dtype.kind}8[us]")
        column = column.tolist()
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
    if kind == "number":
        # This reads plain numbers alike, and much faster.
        numbers = plain_numbers(values, gaps)
        if numbers is not None:
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
    # NumPy writes a complex number in parentheses beside a text.
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
