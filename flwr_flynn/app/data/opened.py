"""The one way in which files of open parties are opened and read."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from flwr_flynn.app.data.csv_file import CsvFile, header_of
from flwr_flynn.app.data.dialect import ENDINGS, Dialect, detected, ending, unreadable
from flwr_flynn.app.data.npz import Arrays, read_npz
from flwr_flynn.app.data.parquet_file import ParquetFile, opened_parquet, parquet_columns
from flwr_flynn.app.data.table_file import ALL, Block, Reading, TableFile
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.tables.raw_column import Raw
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.texts import as_name

Array = npt.NDArray[Any]


class ArrayFile(TableFile):
    """Arrays in memory, from an NPZ file or elsewhere."""

    def __init__(self, name: str, arrays: Arrays, reading: Reading) -> None:
        super().__init__(name, reading)
        layout = arrays.layout(name, reading)
        self._arrays, self.names, self.left_out = arrays, layout.names, layout.left_out
        self.is_named = bool(layout.names)
        self.columns = self.key_names = tuple(arrays.cells(slice(0))[1] or ())
        self._values = [_raw(name, arrays.X[:, index]) for index in layout.order]
        kinds = {"f": "number", "M": "date"}
        self.look(["category" if isinstance(v, list) else kinds.get(v.dtype.kind, "number") for v in self._values])

    def blocks(self, with_cells: bool = False) -> Iterator[Block]:
        """The rows, all at once."""
        cells = self._arrays.cells()[0] if with_cells else ()
        yield Block(self._values, self._arrays.y, self._arrays.groups, cells)


def _raw(name: str, values: Array) -> Raw:
    """A column as numbers, dates or texts."""
    if values.dtype.kind in "biuf":
        return values
    try:
        column = Table.of(values[:, None]).columns[0]
    except DataError:
        raise DataError(name, "numbers, texts or dates", f"an array of type {values.dtype}") from None
    return column.tolist() if column.dtype.kind == "O" else column


def opened(path: Path, reading: Reading = ALL) -> TableFile:
    """A file whose columns are known, from a first pass over it; its rows are still to be checked (`check`)."""
    label = reading.label if reading.label != "" else "y" if ending(path) == ".npz" else "label"
    by_schema = reading.schema is not None and reading.schema.is_named and not reading.features
    features: Any = reading.schema if by_schema else tuple(reading.features)  # type: ignore[arg-type]
    reading = replace(reading, label=label, features=features)
    if ending(path) == ".npz":
        return ArrayFile(path.name, read_npz(path, label, reading.group), reading)
    return CsvFile(path, reading) if ending(path) == ".csv" else ParquetFile(path, reading)


def existing(source: str | Path, field: str = "", place: str = "") -> Path:
    """The path of a file that is there and has a known ending; a `ConfigError` about the `field` else."""
    name = repr(Path(source).name[:80])
    try:
        path = Path(source).expanduser()
        is_there = path.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, an unknown home, a NUL
        is_there = False
    if not is_there:
        raise ConfigError(field or name, f"a file {place or name}", "no such file")
    if ending(path) not in ENDINGS:
        raise ConfigError(field or name, f"a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file", name)
    return path


def columns_of(path: Path, dialect: Dialect | None = None) -> list[str] | None:
    """The names of all columns of a file, None without names."""
    if ending(path) == ".csv":
        try:
            return [*map(as_name, header_of(path, detected(path, dialect)))]
        except (OSError, UnicodeError, csv.Error) as error:
            raise unreadable(path, error) from None
    if ending(path) == ".npz":
        names = read_npz(path, None).names
        return None if names is None else list(names)
    with opened_parquet(path) as file:
        return [*map(as_name, parquet_columns(file.schema_arrow))]
