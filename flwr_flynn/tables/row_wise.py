"""Rows read one by one, for private parties: no row decides about the kind of a column,
or about others.

A value that is no value of its column, or beyond the range, is a fault of its row
alone. Dates are 2024-01-31 or 31.01.2024: of 03/04/2024 other rows would have to tell
the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn.errors import DataError
from flwr_flynn.tables.cells import ByLevel, CellReader, Gaps, plain_values
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import (
    Table,
    by_name,
    is_frame,
    names_of,
    places,
    series_values,
)
from flwr_flynn.tables.texts import BESIDE, is_beside, unit_form

T = TypeVar("T")


@dataclass(frozen=True)
class CellSettings:
    """A site's own settings about cells: each is a map of one cell by itself.

    Parameters
    ----------
    gap_texts : sequence of str
        Texts of missing values beside `GAP_TEXTS`.
    decimal, date_format : str
        Mark of decimals and form of dates; "" is a point, and each form that is
        unmistakable, or detected in an open file.
    convert : mapping of str to mapping of str to float
        By column and unit: what a number with the unit is multiplied by.
    synonyms : mapping of str to mapping of str to str
        By column: texts of the site as the others write them.
    """

    gap_texts: Sequence[str] = ()
    decimal: str = ""
    date_format: str = ""
    convert: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    synonyms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def gaps(self, *texts: str) -> Gaps:
        """The gaps of a column, with these texts of a schema."""
        return Gaps.of([*self.gap_texts, *texts])

    def factors(self, name: str, unit: str = "") -> Mapping[str, float]:
        """Factors of a column by unit, {} for none; the unit of a schema has 1."""
        factors = _entry(self.convert, name, {})
        if factors and unit:
            return {unit_form(unit): 1.0, **factors}
        return factors

    def words(self, name: str) -> ByLevel[str | None] | None:
        """Texts of a column that stand for others; None without any."""
        words = _entry(self.synonyms, name.removesuffix(BESIDE), {})
        if words:
            return ByLevel(words, None, None)
        return None

    def reader(
        self, kind: str, name: str, gap_texts: Sequence[str] = (), unit: str = ""
    ) -> CellReader:
        """The reader of cells for a column, with gap texts and unit of a schema."""
        return CellReader(
            kind,
            self.gaps(*gap_texts),
            self.decimal or ".",
            self.date_format,
            self.factors(name, unit) or {"": 1.0, unit_form(unit): 1.0},
            self.words(name),
        )


PLAIN = CellSettings()


def _entry(entries: Mapping[str, T], name: str, default: T) -> T:
    """The entry of a column, whose name is compared as in files."""
    names = [*entries]
    (index,) = by_name(names, [name])
    if index is None:
        return default
    return entries[names[index]]


def encode_rows(
    schema: Schema, X: object, settings: CellSettings = PLAIN
) -> tuple[Array, Mask]:
    """The numbers of rows, (n, width), and a mask of the rows without a fault, (n,).

    X and `settings` are those of `read_columns`.
    """
    columns = [*read_columns(schema, X, settings)]
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
    schema: Schema, X: object, settings: CellSettings = PLAIN
) -> Iterator[ReadColumn]:
    """Each column of a schema with its values in rows, and a mask of those that are of
    its kind, or gaps.

    X is a data frame, a `Table`, or an array of the schema's columns. A `DataError`
    refuses one without a column of the schema, which no row decides. `settings` are
    the party's own.
    """
    columns = _schema_columns(schema, X, settings)
    for column, cells in zip(schema.columns, columns, strict=True):
        own = (column.kind, column.name, column.gap_texts, column.unit)
        yield column, *settings.reader(*own).column(cells)


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


def _schema_columns(schema: Schema, X: object, settings: CellSettings) -> list[Any]:
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
    values: dict[str, Any] = {
        name: columns[index] for name, index in zip(wanted, indices, strict=True)
    }
    lacking = known - {*wanted}
    for column in schema.columns:
        beside = f"{column.name}{BESIDE}"
        if beside in lacking:
            # The column has the texts that stand beside the numbers of another one.
            cells = plain_values(values[column.name])
            reader = settings.reader("number", column.name, unit=column.unit)
            values[column.name], values[beside] = _apart(cells, reader)
    return [values[name] for name in schema.names]


def _apart(
    values: Sequence[object], reader: CellReader
) -> tuple[list[object], list[object]]:
    """Numbers and gaps, and all else, with None in the place of the others."""
    numbers = [*values]
    texts: list[object] = [None] * len(values)
    _, are_numbers = reader.column(values)
    for index in np.flatnonzero(~are_numbers).tolist():
        numbers[index] = None
        texts[index] = values[index]
    return numbers, texts
