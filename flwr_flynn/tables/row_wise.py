"""Rows read one by one, for private parties: no row decides about the kind of a column,
or about others.

A value that is no value of its column, or beyond the range, is a fault of its row
alone. Dates are 2024-01-31 or 31.01.2024: of 03/04/2024 other rows would have to tell
the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn.errors import DataError
from flwr_flynn.tables.cells import AS_IT_IS, ByLevel, CellReader, Gaps, Scale
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import RawColumns, Table, by_name, places
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
    convert : mapping of str to mapping of str to (float, float)
        By column and unit: what a number with the unit is multiplied by, and what is
        added.
    synonyms : mapping of str to mapping of str to str
        By column: texts of the site as the others write them.
    """

    gap_texts: Sequence[str] = ()
    decimal: str = ""
    date_format: str = ""
    convert: Mapping[str, Mapping[str, Scale]] = field(default_factory=dict)
    synonyms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def gaps(self, name: str = "", *texts: str) -> Gaps:
        """The gaps of a column, with these texts of a schema.

        Texts of its own that stand for a gap are gaps in each form of a number or date.
        """
        words = self._synonyms_of(name).items()
        own = [text for text, common in words if Gaps().has(common)]
        return Gaps.of([*self.gap_texts, *texts, *own])

    def _synonyms_of(self, name: str) -> Mapping[str, str]:
        return _entry(self.synonyms, name.removesuffix(BESIDE), {})

    def scales(self, name: str, unit: str = "") -> Mapping[str, Scale]:
        """Scales of a column by unit, {} for none; the unit of a schema stays."""
        scales = _entry(self.convert, name, {})
        if scales and unit:
            return {unit_form(unit): AS_IT_IS, **scales}
        return scales

    def words(self, name: str) -> ByLevel[str | None] | None:
        """Texts of a column that stand for others; None without any."""
        words = self._synonyms_of(name)
        if words:
            return ByLevel(words, None, None)
        return None

    def reader(
        self, kind: str, name: str, gap_texts: Sequence[str] = (), unit: str = ""
    ) -> CellReader:
        """The reader of cells for a column, with gap texts and unit of a schema."""
        return CellReader(
            kind,
            self.gaps(name, *gap_texts),
            self.decimal or ".",
            self.date_format,
            self.scales(name, unit) or {"": AS_IT_IS, unit_form(unit): AS_IT_IS},
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

    X is what `RawColumns.of` takes. A `DataError` refuses one without a column of the
    schema, which no row decides. `settings` are the party's own.
    """

    def read(column: Column, cells: Array) -> tuple[Array, Mask]:
        own = (column.kind, column.name, column.gap_texts, column.unit)
        return settings.reader(*own).column(cells)

    cells = _cells_of(schema, RawColumns.of(X))
    columns = {column.name: column for column in schema.columns}
    for name, column in columns.items():
        if name in cells:
            values, good = read(column, cells[name])
            if f"{name}{BESIDE}" in columns.keys() - cells.keys():
                good[:] = True  # the others stand in the column beside it
        else:
            own = name.removesuffix(BESIDE)
            values, good = read(column, cells[own])
            _, are_numbers = read(columns[own], cells[own])
            values[are_numbers] = None
        yield column, values, good


def _cells_of(schema: Schema, columns: RawColumns) -> dict[str, Array]:
    """Cells by the names of a schema, but of texts beside numbers that have none."""
    names: Sequence[str] = schema.names
    n_columns = f"{len(columns.names)} columns"
    if not schema.is_named:
        if columns.is_named:
            n_columns += " with names"
        if columns.is_named or len(columns.names) != len(names):
            raise DataError("X", f"{len(names)} columns", n_columns)
        return dict(zip(names, columns.columns, strict=True))
    if not columns.is_named:
        raise DataError("X", "a table with the names of its columns", n_columns)
    there = {*columns.names}
    known = {*names}
    names = [name for name in names if name in there or not is_beside(name, known)]
    indices = places("columns", columns.names, names, "those of the schema")
    return {
        name: columns.columns[index] for name, index in zip(names, indices, strict=True)
    }
