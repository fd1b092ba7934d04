"""Rows read one by one, for private parties: no row decides about the kind of a column,
or about others.

A value that is no value of its column, or beyond the range, is a fault of its row
alone. Dates are 2024-01-31 or 31.01.2024: of 03/04/2024 other rows would have to tell
the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn.errors import DataError
from flwr_flynn.tables.cells import CellReader, Gaps, plain_values
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table, is_frame, names_of, places, series_values
from flwr_flynn.tables.texts import BESIDE, is_beside


def encode_rows(
    schema: Schema, X: object, gap_texts: Sequence[str] = ()
) -> tuple[Array, Mask]:
    """The numbers of rows, (n, width), and a mask of the rows without a fault, (n,).

    X and `gap_texts` are those of `read_columns`.
    """
    columns = [*read_columns(schema, X, gap_texts)]
    table = Table(schema.names, [values for _, values, _ in columns])
    return schema.numbers(table), fitting_rows(columns)


ReadColumn = tuple[Column, Array, Mask]
"""A column of a schema, its values, and a mask of those of its kind, or gaps."""


def fitting_rows(columns: Iterable[ReadColumn]) -> Mask:
    """Mask of the rows without a fault in any column, (n,)."""
    masks = [good & ~column.refused(values) for column, values, good in columns]
    fits: Mask = np.all(masks, axis=0)
    return fits


def read_columns(
    schema: Schema, X: object, gap_texts: Sequence[str] = ()
) -> Iterator[ReadColumn]:
    """Each column of a schema with its values in rows, and a mask of those that are of
    its kind, or gaps.

    X is a data frame, a `Table`, or an array of the schema's columns. A `DataError`
    refuses one without a column of the schema, which no row decides. `gap_texts` are
    those of the party's own settings.
    """
    for column, cells in zip(schema.columns, _schema_columns(schema, X), strict=True):
        gaps = Gaps.of([*gap_texts, *column.gap_texts])
        yield column, *CellReader(column.kind, gaps).column(cells)


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
            numbers, texts = _apart(plain_values(by_name[of_numbers]))
            by_name[of_numbers] = numbers
            by_name[name] = texts
    return [by_name[name] for name in schema.names]


def _apart(values: Sequence[object]) -> tuple[list[object], list[object]]:
    """Numbers and gaps, and all else, with None in the place of the others."""
    numbers = [*values]
    texts: list[object] = [None] * len(values)
    _, are_numbers = CellReader("number").column(values)
    for index in np.flatnonzero(~are_numbers).tolist():
        numbers[index] = None
        texts[index] = values[index]
    return numbers, texts
