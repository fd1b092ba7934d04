"""Rows of a CSV file as texts, some at a time.

pyarrow reads them where it is installed and takes the file, and the standard library everywhere else, a file with
ragged rows among them: the texts are the same.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.dialect import Dialect, codec
from flwr_flynn.app.data.values import Texts
from flwr_flynn.errors import DataError
from flwr_flynn.tables.row_wise import GAP_TEXTS

CHUNK = 2**14
"""Rows that the standard library reads at a time, at most."""

BLOCK = 2**22
"""Bytes that pyarrow reads at a time."""

_ENCODINGS = {"utf-8": "utf8", "windows-1252": "cp1252"}


class NotTaken(Exception):
    """pyarrow does not take a file; the standard library may."""


@dataclass(frozen=True)
class Chunk:
    """Some rows of the wanted columns, and the number of rows that have more or fewer fields than the header."""

    columns: list[Texts]
    n_broken: int = 0


def header_of(path: Path, dialect: Dialect) -> list[str]:
    """The fields of the first line that is not blank."""
    with path.open(encoding=codec(dialect.encoding), newline="") as stream:
        return next(filter(None, csv.reader(stream, delimiter=dialect.separator)), None) or []


def chunks(
    path: Path, dialect: Dialect, header: Sequence[str], wanted: Sequence[int], *, fast: bool
) -> Iterator[Chunk]:
    """The rows of a file: those with as many fields as the header, without blank lines.

    With `fast` by pyarrow, or `NotTaken`. A `UnicodeError` shows that the encoding is another one.
    """
    if not fast:
        return _by_reader(path, dialect, len(header), wanted)
    return _by_arrow(path, dialect, header, wanted)


def _by_reader(path: Path, dialect: Dialect, width: int, wanted: Sequence[int]) -> Iterator[Chunk]:
    most = max(1, min(CHUNK, 2**20 // max(1, width)))
    with path.open(encoding=codec(dialect.encoding), newline="") as stream:
        rows = filter(None, csv.reader(stream, delimiter=dialect.separator))
        last = next(rows, None) or []
        while some := list(islice(rows, most)):
            last = some[-1]
            fitting = [row for row in some if len(row) == width]
            yield Chunk([Texts([row[index] for row in fitting]) for index in wanted], len(some) - len(fitting))
    _check_end(path, last[-1] if last else "")


def _by_arrow(path: Path, dialect: Dialect, header: Sequence[str], wanted: Sequence[int]) -> Iterator[Chunk]:
    try:
        arrow, arrow_csv = import_module("pyarrow"), import_module("pyarrow.csv")
    except ImportError:
        raise NotTaken from None
    names, last = list(dict.fromkeys([*(header[index] for index in wanted), header[-1]])), ""
    try:
        reader = arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(
                use_threads=False, block_size=BLOCK, encoding=_ENCODINGS.get(dialect.encoding, dialect.encoding)
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, arrow.string()), include_columns=names, strings_can_be_null=False
            ),
        )
        if reader.schema.names != names:
            raise NotTaken
        for batch in reader:
            if batch.num_rows:
                last = batch.column(header[-1])[-1].as_py()
            yield Chunk([ArrowTexts(batch.column(header[index])) for index in wanted])
        _check_end(path, last)
    except (arrow.ArrowException, KeyError) as error:
        if "UTF8" in str(error):
            raise UnicodeError from None
        raise NotTaken from None


def _check_end(path: Path, last: str) -> None:
    """Refuse a file whose last quote is open: from it to the end all would be the last field of one row."""
    if "\n" not in last and "\r" not in last:
        return
    with path.open("rb") as stream:
        stream.seek(-min(64, path.stat().st_size), os.SEEK_END)
        tail = stream.read().replace(b"\0", b"").rstrip(b"\r\n ")
    if not tail.endswith(b'"'):
        raise DataError(path.name, "quotes that are closed", "one that is open at the end of the file")


class ArrowTexts(Texts):
    """Texts in an Arrow array. What Arrow takes for a number Python takes for the same one."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def tolist(self) -> list[str]:
        """The texts as Python's."""
        texts: list[str] = self.array.to_pylist()
        return texts

    def distinct(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The different texts, and the index of each row's among them."""
        found = self.array.dictionary_encode()
        return found.dictionary.to_pylist(), found.indices.to_numpy().astype(np.int64)

    def numbers(self, dialect: Dialect) -> npt.NDArray[Any] | None:
        """Float64, NaN for gaps, where that is quick to tell; None says nothing."""
        arrow, compute = import_module("pyarrow"), import_module("pyarrow.compute")
        if dialect.decimal != "," and not dialect.gap_texts:
            try:
                numbers: npt.NDArray[Any] = compute.cast(self.array, arrow.float64()).to_numpy()
                if not np.isnan(numbers).any():
                    return numbers
            except arrow.ArrowInvalid:
                pass
        is_gap = compute.is_in(self.array, _gaps(tuple(dialect.gap_texts)))
        texts = compute.if_else(is_gap, arrow.scalar(None, arrow.string()), self.array)
        if dialect.decimal == ",":
            if compute.any(compute.match_substring(texts, ".")).as_py():
                return None
            texts = compute.replace_substring(texts, ",", ".")
        try:
            found = compute.cast(texts, arrow.float64())
        except arrow.ArrowInvalid:
            return None
        numbers = found.to_numpy(zero_copy_only=False)
        # What is NaN but no gap is left to Python.
        return numbers if np.isnan(numbers).sum() == found.null_count else None

    def integers(self) -> npt.NDArray[Any] | None:
        """Int64, where all are integers within 64 bits; else None."""
        arrow, compute = import_module("pyarrow"), import_module("pyarrow.compute")
        try:
            compute.cast(self.array, arrow.float64())  # takes no 0x10, which the next one does
            integers: npt.NDArray[Any] = compute.cast(self.array, arrow.int64()).to_numpy()
        except arrow.ArrowInvalid:
            return super().integers()
        return integers


@lru_cache(maxsize=64)
def _gaps(gap_texts: tuple[str, ...]) -> Any:
    """Usual spellings of the texts of gaps, as an Arrow array."""
    known = {*GAP_TEXTS, *(text.strip() for text in gap_texts), "NaN", "#N/A", "<NA>"}
    return import_module("pyarrow").array(
        sorted({form for text in known for form in (text, text.lower(), text.upper(), text.capitalize())})
    )
