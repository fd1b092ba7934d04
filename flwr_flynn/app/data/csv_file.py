"""CSV files as tables: the first pass decides about encoding and kinds, the second gives the values.

pyarrow reads the texts where it is installed and takes the file, and the standard library everywhere else, a file with
ragged rows among them: the texts are the same.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._text import clean
from flwr_flynn.app.data.dialect import Dialect, codec, detected, objects, unreadable
from flwr_flynn.app.data.held_out import HeldOut
from flwr_flynn.app.data.table_file import Batch, ColumnReport, Layout, TableFile, Wanted, unlabelled
from flwr_flynn.app.data.values import ColumnFacts, Texts, months_come_first
from flwr_flynn.errors import DataError
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.texts import BESIDE, GAP_TEXTS

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

    def first(self) -> str:
        """The text of the first row."""
        return str(self.array[0].as_py())

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


class CsvFile(TableFile):
    """A CSV file. With a schema its columns are read in the kinds of the schema."""

    def __init__(
        self,
        path: Path,
        label: str | None,
        group: str,
        features: Wanted,
        ignore: Sequence[str],
        given: Dialect | None,
        schema: Schema | None,
        column_gaps: Mapping[str, Sequence[str]],
        held_out: HeldOut | None,
    ) -> None:
        self._held_out = held_out
        self.name, self.announced, self._path, self._schema = path.name, bool(features), path, schema
        self._column_gaps, self._ignore = column_gaps, ignore
        try:
            self.dialect = detected(path, given)
            known = [self.dialect.encoding]
            if not (given and given.encoding):
                known += {"utf-8": ["windows-1252", "latin-1"], "windows-1252": ["latin-1"]}.get(known[0], [])
            for encoding in known:
                self.dialect = replace(self.dialect, encoding=encoding)
                try:
                    self._survey(label, group, features)
                    return
                except UnicodeError:  # beyond the head
                    continue
        except (OSError, csv.Error) as error:
            raise unreadable(path, error) from None
        raise DataError(path.name, f"text in {known[0].upper()}", "another encoding")

    def _survey(self, label: str | None, group: str, features: Wanted) -> None:
        self._header = header_of(self._path, self.dialect)
        layout = Layout.of(self.name, self._header, label, group, features, self._ignore)
        self.names, self.left_out, self._layout = layout.names, layout.left_out, layout
        for self._fast in (True, False):
            try:
                self._look()
                break
            except NotTaken:
                continue
        month_first = months_come_first(self._facts)
        self._typed = [facts.decided(month_first) for facts in self._facts]
        pairs = zip(self._typed, self._facts, strict=True)
        self.reports = [
            ColumnReport(
                *(typed.kind, typed.dtype, facts.gaps + facts.n_texts),
                *(facts.infinite if typed.kind == "number" else 0, facts.n_texts, facts.n_unfit),
            )
            for typed, facts in pairs
        ]
        names = self._schema.names if self._schema is not None else None
        for index, (name, report) in enumerate(zip(self.names, [*self.reports], strict=True)):
            beside = f"{name}{BESIDE}"
            is_wanted = beside not in self.names and (names is None or beside in names)
            if report.texts and report.kind == "number" and is_wanted:
                report.unfit = 0
                self._beside.append(index)
                self.reports.append(ColumnReport("category", np.dtype(np.float64)))
        self.names += tuple(f"{self.names[index]}{BESIDE}" for index in self._beside)

    def _look(self) -> None:
        """The first pass over all rows."""
        wanted: dict[str, Column] = {}
        self._beside: list[int] = []  # columns of numbers whose texts make a column of their own
        if self._schema is not None:
            names = self._schema.names if self._schema.is_named else self.names
            wanted = dict(zip(names, self._schema.columns, strict=False))
        self._facts = [ColumnFacts(self._dialect_of(name), wanted.get(name)) for name in self.names]
        self.n_rows = self.n_broken = self.n_unlabelled = 0
        first: list[str] = []
        for columns_of_texts, labels, _, n_broken, _ in self._chunks():
            self.n_broken += n_broken
            if not first and columns_of_texts and len(columns_of_texts[0]):
                first = [texts.first() for texts in columns_of_texts]
            for facts, texts in zip(self._facts, columns_of_texts, strict=True):
                facts.add(texts)
            n = len(columns_of_texts[0]) if columns_of_texts else 0
            self.n_rows += n
            self.n_unlabelled += 0 if labels is None else int(unlabelled(_objects(labels)).sum())

        self._check_header(first)

    def _check_header(self, first: Sequence[str]) -> None:
        """Refuse a file with another header below the first, or with rows within quotes that opened by mistake."""
        words = [{*map(str.strip, facts.numerals.words)} for facts in self._facts]
        has_numbers = any(facts.numerals.n_numbers for facts in self._facts)
        if has_numbers and all(name in each for name, each in zip(self.names, words, strict=False)):
            raise DataError(self.name, "one header", "the header again below")
        triples = zip(first, words, self._facts, strict=False)
        mixed = [some == {text.strip()} for text, some, facts in triples if facts.numerals.n_numbers]
        if len(mixed) > 1 and all(mixed) and self.n_rows > 2 and len({*first}) == len(first):
            raise DataError(self.name, "one header", "a second one in the first row")
        width = len(self._header) - 1
        for facts in self._facts:
            for text in facts.numerals.words if width else ():
                inner = [line.count(self.dialect.separator) for line in text.splitlines()[1:-1]]
                if len(inner) > 1 and all(n == width for n in inner):
                    raise DataError(self.name, "quotes that are closed in their row", "whole rows within a field")

    def _dialect_of(self, name: str) -> Dialect:
        own = self._column_gaps.get(name, ())
        return replace(self.dialect, gap_texts=(*self.dialect.gap_texts, *own)) if own else self.dialect

    def _chunks(
        self, keyed: bool = False
    ) -> Iterator[tuple[list[Texts], Texts | None, Texts | None, int, list[Texts]]]:
        """Some rows at a time: texts of features, labels and groups, number of broken rows, and, `keyed`, all texts."""
        layout = self._layout
        wanted = [*layout.order, *(index for index in (layout.label, layout.group) if index is not None)]
        n = len(layout.order)
        if keyed:
            wanted += range(len(self._header))
        for chunk in chunks(self._path, self.dialect, self._header, wanted, fast=self._fast):
            rest = chunk.columns[n : n + len(wanted)]
            labels = rest.pop(0) if layout.label is not None else None
            groups = rest.pop(0) if layout.group is not None else None
            yield chunk.columns[:n], labels, groups, chunk.n_broken, rest

    def batches(self) -> Iterator[Batch]:
        """The rows of the file, some at a time."""
        try:
            for columns, labels, groups, _, row in self._chunks(self._held_out is not None):
                values = [typed.values(texts) for typed, texts in zip(self._typed, columns, strict=True)]
                values += [self._typed[index].beside(columns[index]) for index in self._beside]
                y, ids = (None if texts is None else _objects(texts) for texts in (labels, groups))
                yield Batch(values, y, ids, self._mask(row, groups, self._header))
        except (OSError, UnicodeError, csv.Error, NotTaken) as error:  # the file has changed
            raise unreadable(self._path, error) from None

    def described(self) -> str:
        """The file in one line, for the log of this machine."""
        forms = ", ".join(sorted({typed.date_format for typed in self._typed if typed.kind == "date"} - {""}))
        mixed = [
            f"; {name[:60]}: {facts.numerals.described()}"
            for name, facts in zip(self.names, self._facts, strict=False)
            if facts.kind == "number" and (facts.n_texts or facts.numerals.unit)
        ]
        dates = f"; dates as {forms}" if forms else ""
        return f"{clean(self.name, 200)}: {self.dialect}; {super().described()}{dates}{clean(''.join(mixed), 2000)}"


def _objects(texts: Texts) -> npt.NDArray[Any]:
    different, codes = texts.distinct()
    return objects([text.strip() for text in different])[codes]
