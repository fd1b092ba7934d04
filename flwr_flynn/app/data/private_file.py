"""Files of private parties, CSV, Parquet or NPZ, as rows that are read one by one; open files are in `table_file`.

A file that no parser reads is an error of the constructor, which decodes all of it, whatever will be asked. After that
no row decides about the file or about other rows: every line of a CSV file is a row by itself, a line with another
number of fields is dropped, and a text of a Parquet file that cannot be decoded is a missing value.
"""

from __future__ import annotations

import codecs
import csv
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.held_out import row_keys
from flwr_flynn.app.data.npz import read_npz
from flwr_flynn.app.data.parquet_file import arrow_column, opened_parquet, parquet_columns
from flwr_flynn.app.data.table_file import ALL, Reading, ending, mapped, objects, unreadable
from flwr_flynn.errors import DataError
from flwr_flynn.federated.private_rows import Block, RowReader
from flwr_flynn.hashing.batching import batches
from flwr_flynn.tables.table import Table

Array = npt.NDArray[Any]
Rows = tuple[Sequence[Any], Any, Any]  # all columns, labels, and ids for the held-out rule

_LONGEST_LINE = 2**20  # bytes of a row of a CSV file
_BLOCK = 2**22  # bytes of lines at a time


def private_file(path: Path, reading: Reading = ALL, label_map: Mapping[str, str] | None = None) -> PrivateFile:
    """The rows of a file; its column of ids, for the held-out rule, is no feature."""
    kind = {".npz": _Npz, ".csv": _Csv}.get(ending(path), _Parquet)
    return kind(path, replace(reading, label=reading.label or ("y" if kind is _Npz else "label")), label_map or {})


class PrivateFile(RowReader):
    """Rows of a file, with those that are held out."""

    def __init__(self, path: Path, reading: Reading, book: Mapping[str, str]) -> None:
        self._path, self._reading, self._held_out, self._label_map = path, reading, reading.held_out, book
        try:
            self._open()
        except OSError as error:
            raise unreadable(path, error) from None

    @abstractmethod
    def _open(self) -> None:
        """Find the columns, and decode the file once."""

    @abstractmethod
    def _rows(self, n_rows: int) -> Iterator[tuple[int, Callable[[slice], Rows]]]:
        """Numbers of rows, and functions that read some of them."""

    def blocks(self, n_rows: int, held_out: bool = False) -> Iterator[Block]:
        """The training rows, or those that are held out, at most so many at a time."""
        if held_out and self._held_out is None:
            return
        for n, rows in self._rows(n_rows):
            yield Block(n, partial(self._one_side, rows, held_out))

    def _one_side(self, rows: Callable[[slice], Rows], held_out: bool, part: slice) -> tuple[Any, Any]:
        cells, labels, ids = rows(part)
        chosen = [cells[index] for index in self._layout.order]
        columns = [each if isinstance(each, np.ndarray) else objects(each) for each in chosen]
        X: Any = Table(self.names, columns) if self.names else np.stack([*cells[: self.width]], axis=1)
        y = mapped(objects(labels), self._label_map)
        if self._held_out is None:
            return X, y
        side = np.flatnonzero(self._held_out.mask(row_keys(cells, ids, self._columns)) == held_out)
        return X[side], y[side]

    def _find(self, columns: Sequence[str]) -> None:
        """Find features, labels and ids among columns by name."""
        self._layout = self._reading.layout(self._path.name, columns)
        self._columns: Sequence[str] | None = columns
        self.names, self.width = self._layout.names, len(self._layout.order)


class _Csv(PrivateFile):
    def _open(self) -> None:
        with self._path.open("rb") as stream:
            head = stream.read(4)
            if b"\0" in head or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise DataError(self._path.name, "text in UTF-8", "UTF-16 or UTF-32")
            stream.seek(0)
            header = next(filter(None, map(_fields, _lines(stream))), [])
            if any(b'"' in line and _is_open(line) for line in _lines(stream)):
                raise DataError(self._path.name, "a record in each line, without line breaks in quotes", "open quotes")
        self._find(header)

    def _rows(self, n_rows: int) -> Iterator[tuple[int, Callable[[slice], Rows]]]:
        with self._path.open("rb") as stream:
            lines, some, size = _lines(stream), [], 0
            next(filter(_fields, lines), None)  # the header
            for line in lines:
                some.append(line)
                size += len(line)
                if len(some) >= n_rows or size >= _BLOCK:
                    yield len(some), partial(self._cells, some)
                    some, size = [], 0
            if some:
                yield len(some), partial(self._cells, some)

    def _cells(self, lines: list[bytes], part: slice) -> Rows:
        width, label, key = len(self._columns or ()), self._layout.label or 0, self._layout.group
        fields = [some for line in lines[part] if (some := _fields(line))]
        # Without fields a row has no values, and no label.
        whole = [some if len(some) == width else [None] * width for some in fields]
        cells = [*map(list, zip(*whole, strict=True))] or [[] for _ in range(width)]
        return cells, [y and y.strip() for y in cells[label]], None if key is None else cells[key]


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file without their ends; an empty one in the place of one that is too long."""
    while line := stream.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            while (rest := stream.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
            line = b""
        yield line.rstrip(b"\r\n")


def _fields(line: bytes) -> list[str]:
    """The fields of a line, none of one that is blank or cannot be read by itself."""
    try:
        return next(csv.reader([line.decode("utf-8", "replace").removeprefix("\ufeff")]), [])
    except csv.Error:
        return []


def _is_open(line: bytes) -> bool:
    """True if a quote of the line is open at its end: the lines after it belong to the same record."""
    try:
        return len([*csv.reader([line.decode("utf-8", "replace"), "behind"])]) == 1
    except csv.Error:
        return True


class _Parquet(PrivateFile):
    def _open(self) -> None:
        with opened_parquet(self._path) as file:
            self.n_rows = file.metadata.num_rows
            self._find(parquet_columns(file.schema_arrow))
            n_found = sum(batch.num_rows for batch in file.iter_batches(use_pandas_metadata=False))
        if n_found != self.n_rows:
            raise DataError(self._path.name, "as many rows as the file says", "more or fewer")

    def _rows(self, n_rows: int) -> Iterator[tuple[int, Callable[[slice], Rows]]]:
        with opened_parquet(self._path) as file:
            for batch in file.iter_batches(batch_size=n_rows, use_pandas_metadata=False):
                yield batch.num_rows, partial(self._cells, batch)

    def _cells(self, batch: Any, part: slice) -> Rows:
        some, layout = batch.slice(part.start, part.stop - part.start), self._layout
        cells = [arrow_column(some.column(name)) for name in self._columns or ()]
        return cells, cells[layout.label or 0], None if layout.group is None else cells[layout.group]


class _Npz(PrivateFile):
    def _open(self) -> None:
        self._arrays = arrays = read_npz(self._path, self._reading.label, self._reading.group)
        self._layout = layout = arrays.layout(self._path.name, self._reading)
        self._columns = arrays.cells(slice(0))[1]
        self.names, self.n_rows, self.width = layout.names or None, len(arrays.X), len(layout.order)

    def _rows(self, n_rows: int) -> Iterator[tuple[int, Callable[[slice], Rows]]]:
        for some in batches(self.n_rows, n_rows):
            yield some.stop - some.start, partial(self._cells, some.start)

    def _cells(self, first: int, part: slice) -> Rows:
        arrays: Any = self._arrays
        some = slice(first + part.start, first + part.stop)
        return arrays.cells(some)[0], arrays.y[some], None if arrays.groups is None else arrays.groups[some]
