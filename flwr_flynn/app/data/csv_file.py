"""CSV files as tables.

Their dialect follows from the head, encoding and kinds from a first pass, and values
from a second. The standard library's `csv.reader` tries four separators; the one that
gives most rows as many fields as the header wins. It agrees with clevercsv on plain,
quoted, German and ragged samples, where `csv.Sniffer` refuses some, and needs no
further package (DuckDB's sniffer is 66 MB).
"""

from __future__ import annotations

import codecs
import csv
import io
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO

from flwr_flynn.app.data.held_out import Cells
from flwr_flynn.app.data.source import (
    SEPARATORS,
    Dialect,
    Part,
    Reading,
    Source,
    decoding,
)
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.errors import DataError
from flwr_flynn.tables.texts import GROUPS, proves

log = logging.getLogger("flwr")  # Flower's own

SEPARATOR_NAMES = {",": ",", ";": ";", "tab": "\t", "pipe": "|"}
"""Separators by their names in settings."""

ENCODINGS = ("utf-8", "utf-16", "windows-1252", "latin-1")

_HEAD = 2**22  # bytes
_ROWS = 200
_BINARY = {
    b"PK\x03\x04": "a zip archive or an .xlsx file",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an .xls file",
    **dict.fromkeys(
        (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"), "a compressed file"
    ),
}


def _text_of(path: Path, dialect: Dialect) -> IO[str]:
    return path.open(encoding=codec(dialect.encoding), newline="")


def header_of(path: Path, dialect: Dialect) -> list[str]:
    """The fields of the first line that is not blank."""
    with _text_of(path, dialect) as stream:
        rows = csv.reader(stream, delimiter=dialect.separator)
        return next(filter(None, rows), [])


class _CsvSource(Source):
    """A CSV file, whose columns are of texts alone."""

    def _set_columns(self, header: Sequence[str]) -> None:
        self.columns = tuple(header)
        self.key_names = self.columns
        self.keys = range(len(header))
        self.kinds = [None] * len(header)


class CsvText(_CsvSource):
    """A CSV file in a dialect, whose fields may have line breaks."""

    dialect: Dialect

    def __init__(self, path: Path, dialect: Dialect) -> None:
        self.name = path.name
        self._path = path
        self.dialect = dialect
        self._set_columns(header_of(path, dialect))

    def parts(
        self, n_rows: int, wanted: Collection[int] | None = None
    ) -> Iterator[Part]:
        """The rows with as many fields as the header, without blank lines."""
        width = len(self.columns)
        last = [""]
        with (
            decoding(self._path, self.dialect.encoding),
            _text_of(self._path, self.dialect) as stream,
        ):
            rows = filter(None, csv.reader(stream, delimiter=self.dialect.separator))
            next(rows, None)
            while batch := list(islice(rows, n_rows)):
                last = batch[-1]
                fitting = [row for row in batch if len(row) == width]
                texts = _transposed(fitting, width)
                yield Part(
                    len(fitting),
                    lambda part, texts=texts: texts,  # type: ignore[misc]
                    len(batch) - len(fitting),
                )
        _check_end(self._path, last[-1])


def _transposed(rows: Sequence[Cells], width: int) -> list[Cells]:
    """The columns of some rows."""
    return [*map(list, zip(*rows, strict=True))] or [[] for _ in range(width)]


def opened_csv(path: Path, reading: Reading) -> TableFile:
    """A CSV file. With a schema its columns are read in the kinds of the schema."""
    with decoding(path):
        dialect = detected(path, reading.dialect)
    with decoding(path, dialect.encoding):
        file = TableFile(CsvText(path, dialect), replace(reading, dialect=dialect))
    _check_quotes(file)
    return file


def _check_quotes(file: TableFile) -> None:
    """Refuse a file with quotes that opened by mistake.

    Such quotes have whole rows between them.
    """
    words = [{*map(str.strip, report.numerals.words)} for report in file.reports]
    triples = zip(file.first, words, file.reports, strict=False)
    mixed = [
        own == {text.strip()}
        for text, own, report in triples
        if report.numerals.n_numbers
    ]
    are_different = len({*file.first}) == len(file.first)
    if len(mixed) > 1 and all(mixed) and file.n_rows > 2 and are_different:
        raise DataError(file.name, "one header", "a second one in the first row")
    width = len(file.columns) - 1
    if not width:
        return
    separator = file.reading.dialect.separator
    for report in file.reports:
        for text in report.numerals.words:
            inner = [line.count(separator) for line in text.splitlines()[1:-1]]
            if len(inner) > 1 and all(n == width for n in inner):
                raise DataError(
                    file.name,
                    "quotes that are closed in their row",
                    "whole rows within a field",
                )


def _check_end(path: Path, last: str) -> None:
    """Refuse a file whose last quote is open.

    From it to the end all would be the last field of one row.
    """
    if "\n" not in last and "\r" not in last:
        return
    with path.open("rb") as stream:
        stream.seek(-min(64, path.stat().st_size), os.SEEK_END)
        tail = stream.read().replace(b"\0", b"").rstrip(b"\r\n ")
    if not tail.endswith(b'"'):
        raise DataError(
            path.name,
            "quotes that are closed",
            "one that is open at the end of the file",
        )


# ---- the dialect


def detected(path: Path, given: Dialect | None = None) -> Dialect:
    """The dialect of a file, with what is given and the rest from its head."""
    if given is None:
        given = Dialect()
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
        is_whole = not stream.read(1)
    encoding = given.encoding or _encoding_of(path, head)
    text = codecs.getincrementaldecoder(codec(encoding))("replace").decode(
        head, final=is_whole
    )
    separator = given.separator or _separator_of(text, is_whole)
    decimal = given.decimal or _decimal_of(path, text, separator, is_whole)
    return replace(given, separator=separator, decimal=decimal, encoding=encoding)


def codec(encoding: str) -> str:
    """The name of Python's codec, which takes a byte order mark away."""
    return {"utf-8": "utf-8-sig", "windows-1252": "cp1252"}.get(encoding, encoding)


def _encoding_of(path: Path, head: bytes) -> str:
    for magic, what in _BINARY.items():
        if head.startswith(magic):
            raise DataError(path.name, "a text file", what)
    wide = head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE))
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not wide:
        return "utf-16"
    if wide or b"\0" in head[:4]:
        raise DataError(
            path.name,
            "text in UTF-8, or in UTF-16 with a byte order mark",
            "UTF-16 or UTF-32",
        )
    for encoding in ("utf-8", "windows-1252"):
        decoder = codecs.getincrementaldecoder(codec(encoding))()
        line = 1
        try:
            with path.open("rb") as stream:
                while chunk := stream.read(_HEAD):
                    decoder.decode(chunk)
                    line += chunk.count(b"\n")
            return encoding
        except UnicodeDecodeError as error:
            # Where other characters are right, a byte is broken.
            if encoding == "utf-8" and _UTF8.search(head):
                line += error.object.count(b"\n", 0, error.start)
                expected = "text in UTF-8, or the setting encoding"
                raise DataError(
                    path.name, expected, f"a byte that is none in line {line}"
                ) from None
    return "latin-1"


_UTF8 = re.compile(rb"[\xc3-\xdf][\x80-\xbf]|[\xe1-\xef][\x80-\xbf]{2}")


def _sample(text: str, separator: str, is_whole: bool) -> list[list[str]]:
    """The first rows of a text that are not blank; [] if it cannot be parsed so."""
    lines = io.StringIO(text, newline="")
    try:
        parsed = filter(None, csv.reader(lines, delimiter=separator))
        rows = list(islice(parsed, _ROWS))
    except csv.Error:
        return []
    # The last one may be cut off.
    if is_whole or len(rows) == _ROWS:
        return rows
    return rows[:-1]


def _separator_of(text: str, is_whole: bool) -> str:
    best = (0.0, 1)
    separator = ","
    for mark in SEPARATORS:
        rows = _sample(text, mark, is_whole)
        if not rows or len(rows[0]) == 1:
            continue
        width = len(rows[0])
        fitting = sum(len(row) == width for row in rows) / len(rows)
        if (fitting, width) > best:
            best = (fitting, width)
            separator = mark
    return separator


def _decimal_of(path: Path, text: str, separator: str, is_whole: bool) -> str:
    """The decimal mark that most fields prove.

    A group of three digits proves none, and a file with such groups alone is refused.
    1.5 and 1,234,567 prove a point. Of 1.234 nothing is said, unless integers stand in
    the same column; between commas a comma separates thousands.
    """
    proofs = Counter[str]()
    groups = 0
    for column in zip_longest(*_sample(text, separator, is_whole)[1:], fillvalue=""):
        fields = [field.strip() for field in column]
        has_integers = any(field.isdigit() for field in fields)
        for field in fields:
            for mark in ".,":
                proofs[mark] += proves(field, mark)
                is_group = (
                    field.count(mark) == 1
                    and GROUPS[mark].fullmatch(field) is not None
                    and field[0] != "0"
                )
                is_unclear = separator != "," and (mark == "," or has_integers)
                if is_group and is_unclear:
                    groups += 1
    if groups and not proofs.total():
        expected = (
            "a decimal mark (setting decimal), where numbers such as 1,234 "
            "have groups of three digits alone"
        )
        raise DataError(
            path.name,
            expected,
            f"{groups} fields in which it may also separate thousands",
        )
    if proofs[","] > proofs["."]:
        return ","
    return "."


# ---- line by line, for private parties

_LONGEST_LINE = 2**20  # bytes of a row
_BLOCK = 2**22  # bytes of lines at a time


class CsvLines(_CsvSource):
    """A plain CSV file, every line of which is a row by itself, whatever its quotes.

    A line with another number of fields has no values. Lines with an open quote, which
    may be parts of one record, are counted in the log of the machine.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        with path.open("rb") as stream:
            head = stream.read(4)
            is_wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            if is_wide or b"\0" in head:
                raise DataError(path.name, "text in UTF-8", "UTF-16 or UTF-32")
            stream.seek(0)
            self._set_columns(_fields(next(filter(_is_filled, _lines(stream)), b"")))
            n_open = sum(b'"' in line and _is_open(line) for line in _lines(stream))
        if n_open:
            log.warning(
                "FlyNN: %s: lines with an open quote: %s; each line is a row by itself, "
                "so that a record of several lines may be several rows",
                path.name,
                n_open,
            )

    def parts(
        self, n_rows: int, wanted: Collection[int] | None = None
    ) -> Iterator[Part]:
        """The lines, without the header."""
        with self._path.open("rb") as stream:
            lines = _lines(stream)
            batch = []
            size = 0
            next(filter(_is_filled, lines), None)
            for line in lines:
                batch.append(line)
                size += len(line)
                if len(batch) >= n_rows or size >= _BLOCK:
                    yield Part(len(batch), partial(self._cells, batch))
                    batch = []
                    size = 0
            if batch:
                yield Part(len(batch), partial(self._cells, batch))

    def _cells(self, lines: list[bytes], part: slice) -> list[Cells]:
        width = len(self.columns)
        empty = [None] * width
        rows = filter(None, map(_fields, lines[part]))
        return _transposed([row if len(row) == width else empty for row in rows], width)


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file without their ends, and NUL for one that is too long."""
    while line := stream.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(_LONGEST_LINE)
            line = b"\0"
        yield line.rstrip(b"\r\n")


def _is_filled(line: bytes) -> bool:
    return bool(line.removeprefix(codecs.BOM_UTF8).strip())


def _fields(line: bytes) -> list[str]:
    """The fields of a line, none of one that is blank or cannot be read by itself."""
    try:
        return next(
            csv.reader([line.decode("utf-8", "replace").removeprefix("\ufeff")]), []
        )
    except csv.Error:
        return []


_QUOTED = rb'"[^"]*(?:""[^"]*)*"(?!")[^,]*'
_CLOSED = re.compile(
    rb'(?:%b|[^,"][^,]*|)(?:,(?:%b|[^,"][^,]*|))*' % (_QUOTED, _QUOTED)
)


def _is_open(line: bytes) -> bool:
    """True if a quote of the line is open at its end, as `csv` sees them."""
    return _CLOSED.fullmatch(line) is None
