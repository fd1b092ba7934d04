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
import gzip
import io
import json
import re
import tempfile
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, Any

from flwr_flynn.app.data.source import (
    LARGE,
    SEPARATORS,
    Dialect,
    Part,
    Source,
    decoding,
    read_once,
)
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.errors import DataError
from flwr_flynn.federated.flower_log import log
from flwr_flynn.tables.cells import Cells
from flwr_flynn.tables.texts import GROUPS, proves

SEPARATOR_NAMES = {",": ",", ";": ";", "tab": "\t", "pipe": "|"}
"""Separators by their names in settings."""

ENCODINGS = ("utf-8", "utf-16", "windows-1252", "latin-1")

_HEAD = 2**22  # bytes
_ROWS = 200
_FEW_ROWS = 20
_FIELDS = 2**17  # that are looked at for the decimal mark, in more than a few rows
_BINARY = {
    b"PK\x03\x04": "a zip archive or an .xlsx file",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an .xls file",
    **dict.fromkeys(
        (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"), "a compressed file"
    ),
}


_UNPACKED = 2**26
_PACKING = 200
"""Bytes of an unpacked file, or times its packed size, at most: a small file may be one
of terabytes, in one line."""


class _Unpacked(io.RawIOBase):
    """Bytes of a .gz file, up to a bound."""

    def __init__(self, path: Path) -> None:
        self._file = gzip.open(path)  # noqa: SIM115 - closed with this one
        self._room = max(_UNPACKED, _PACKING * path.stat().st_size)
        self._name = path.name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = self._file.readinto(buffer)
        self._room -= n
        if self._room < 0:
            expected = f"a .gz file that unpacks to at most {_PACKING} times its size"
            raise DataError(self._name, f"{expected} (unpack it yourself)", "more")
        return n

    def close(self) -> None:
        self._file.close()
        super().close()


def _bytes_of(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return io.BufferedReader(_Unpacked(path), 2**16)
    return path.open("rb")


@contextmanager
def _rows_of(path: Path, dialect: Dialect) -> Iterator[Iterator[list[str]]]:
    """The header, and the rows that are not blank."""
    with io.TextIOWrapper(
        _bytes_of(path), encoding=codec(dialect.encoding), newline=""
    ) as stream:
        rows = filter(None, csv.reader(stream, delimiter=dialect.separator))
        yield islice(rows, dialect.above, None)


def header_of(path: Path, dialect: Dialect) -> list[str]:
    """The fields of the header."""
    with _rows_of(path, dialect) as rows:
        return next(rows, [])


class _CsvSource(Source):
    """A CSV file, whose columns are of texts alone."""

    def _set_columns(self, header: Sequence[str]) -> None:
        self.columns = tuple(header)
        self.key_names = self.columns
        self.keys = range(len(header))
        self.kinds = [None] * len(header)


class CsvText(_CsvSource):
    """A CSV file in a dialect, whose fields may have line breaks.

    It is read once. Later passes are over its columns as they were stored.
    """

    dialect: Dialect

    def __init__(self, path: Path, dialect: Dialect) -> None:
        self.name = path.name
        self._path = path
        self.dialect = dialect
        self._set_columns(header_of(path, dialect))
        self._stored: list[StoredColumns] = []  # also that of copies

    def parts(
        self, n_rows: int, wanted: Collection[int] | None = None
    ) -> Iterator[Part]:
        """The rows with as many fields as the header, without blank lines."""
        if self._stored:
            yield from self._stored[0].parts()
            return
        stored = StoredColumns()
        for part in self._read(n_rows):
            stored.add(part)
            yield part
        self._stored.append(stored)

    def _read(self, n_rows: int) -> Iterator[Part]:
        width = len(self.columns)
        last = [""]
        with (
            decoding(self._path, self.dialect.encoding),
            _rows_of(self._path, self.dialect) as rows,
        ):
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


class StoredColumns:
    """Columns of texts, some rows at a time.

    They are in memory, and above `LARGE` bytes in a file without a name.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(LARGE)  # noqa: SIM115 - see below
        weakref.finalize(self, self._file.close)
        self._parts: list[tuple[int, int, int, int]] = []

    def add(self, part: Part) -> None:
        """Store some rows."""
        start = self._file.tell()
        self._file.write(json.dumps(part.cells(slice(None))).encode())
        self._parts.append((part.n, part.n_broken, start, self._file.tell()))

    def parts(self) -> Iterator[Part]:
        """The rows as they were added."""
        for n, n_broken, start, end in self._parts:
            self._file.seek(start)
            columns = json.loads(self._file.read(end - start))
            yield Part(n, partial(_slices, columns), n_broken)


def _slices(columns: list[list[str]], part: slice) -> list[Cells]:
    return [column[part] for column in columns]


def _transposed(rows: Sequence[Cells], width: int) -> list[Cells]:
    """The columns of some rows."""
    return [*map(list, zip(*rows, strict=True))] or [[] for _ in range(width)]


def csv_text(path: Path, given: Dialect) -> CsvText:
    """A CSV file in the dialect that is given, and else detected."""
    text = copy(
        read_once(path, _text, path, given.separator, given.decimal, given.encoding)
    )
    own = text.dialect
    names = ("separator", "decimal", "encoding", "above")
    text.dialect = replace(given, **{name: getattr(own, name) for name in names})
    return text


def _text(path: Path, separator: str, decimal: str, encoding: str) -> CsvText:
    given = Dialect(separator=separator, decimal=decimal, encoding=encoding)
    with decoding(path):
        dialect = detected(path, given)
    with decoding(path, dialect.encoding):
        return CsvText(path, dialect)


def check_quotes(file: TableFile) -> None:
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
    width = len(file.source.columns) - 1
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
    tail = b""
    with _bytes_of(path) as stream:
        for chunk in iter(partial(stream.read, _HEAD), b""):
            tail = (tail + chunk)[-64:]
    if not tail.replace(b"\0", b"").rstrip(b"\r\n ").endswith(b'"'):
        raise DataError(
            path.name,
            "quotes that are closed",
            "one that is open at the end of the file",
        )


# ---- the dialect


def detected(path: Path, given: Dialect) -> Dialect:
    """The dialect of a file, with what is given and the rest from its head."""
    with _bytes_of(path) as stream:
        head = stream.read(_HEAD)
        is_whole = not stream.read(1)
    encoding = given.encoding or _encoding_of(path, head)
    text = codecs.getincrementaldecoder(codec(encoding))("replace").decode(
        head, final=is_whole
    )
    said = _SAID.match(text)
    separator = given.separator
    if said is not None and not separator:
        separator = said[1]
    if not separator:
        separator = _separator_of(path, text, is_whole)
    rows = _sample(text, separator, is_whole)
    above = _n_above(rows)
    _check_first(path, rows[above:])
    decimal = given.decimal or _decimal_of(path, rows[above + 1 :], separator)
    return replace(
        given, separator=separator, decimal=decimal, encoding=encoding, above=above
    )


_SAID = re.compile(f"(?:\ufeff)?sep=([{''.join(SEPARATORS)}])\r?\n", re.IGNORECASE)
"""A first line by which spreadsheets say the separator."""


def _is_title(row: Sequence[str]) -> bool:
    """True for a row with a text in the first field alone, which no header is."""
    first = "".join(row[:1])
    is_text = first.isprintable() and not first.isspace() and first != ""
    return is_text and not any(map(str.strip, row[1:]))


def _n_above(rows: Sequence[Sequence[str]]) -> int:
    """Number of the rows above the header: titles, and comments of another width."""
    width = 0
    if rows:
        ((width, _),) = Counter(map(len, rows)).most_common(1)
    for index, row in enumerate(rows):
        is_comment = row[0].startswith("#") and len(row) != width
        if width > 1 and not (_is_title(row) or is_comment):
            return index
    return 0


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
            with _bytes_of(path) as stream:
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


_GAP_BETWEEN = re.compile(r"\S {2,}\S")


def _separator_of(path: Path, text: str, is_whole: bool) -> str:
    """The separator that gives most rows as many fields as the header.

    There are titles above it only if few rows have as many as the first one.
    """
    samples = {mark: _sample(text, mark, is_whole) for mark in SEPARATORS}
    share, separator = _best_of(samples)
    if share < 0.5:
        share, below = _best_of(
            {mark: rows[_n_above(rows) :] for mark, rows in samples.items()}
        )
        separator = below or separator
    if not separator:
        _check_fields(path, text)
    return separator or ","


def _check_first(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Refuse a first line that has other fields than all rows."""
    widths = [*map(len, rows)]
    if len({*widths[1:]}) == 1 and len(rows) > 2 and widths[0] != widths[1]:
        expected = f"a first line with a name for each of {widths[1]} fields"
        got = f"{widths[0]} (take lines above the header out)"
        raise DataError(path.name, expected, got)


def _best_of(samples: Mapping[str, Sequence[Sequence[str]]]) -> tuple[float, str]:
    """The share of rows as wide as the first, and the separator, "" for none."""
    best = (0.0, 1)
    separator = ""
    for mark, rows in samples.items():
        if not rows or len(rows[0]) == 1:
            continue
        width = len(rows[0])
        fitting = sum(len(row) == width for row in rows) / len(rows)
        if (fitting, width) > best:
            best = (fitting, width)
            separator = mark
    return best[0], separator


def _check_fields(path: Path, text: str) -> None:
    """Refuse columns of fixed width."""
    lines = [*filter(str.strip, text.splitlines())][:_ROWS]
    n_words = {len(line.split()) for line in lines}
    n_wide = sum(_GAP_BETWEEN.search(line) is not None for line in lines)
    are_wide = len(n_words) == 1 or 2 * n_wide > len(lines)
    if len(lines) > 1 and n_words != {1} and are_wide:
        raise DataError(
            path.name,
            "fields with a separator between them: pandas.read_fwf(FILE) reads such a "
            "file, and .to_csv(FILE, index=False) saves it as CSV",
            "columns of fixed width",
        )


def _decimal_of(path: Path, rows: Sequence[Sequence[str]], separator: str) -> str:
    """The decimal mark that most fields prove.

    A group of three digits proves none, and a file with such groups alone is refused.
    1.5 and 1,234,567 prove a point. Of 1.234 nothing is said, unless integers stand in
    the same column; between commas a comma separates thousands.
    """
    proofs = Counter[str]()
    groups = 0
    rows = rows[: max(_FEW_ROWS, _FIELDS // max(1, len(rows[0]) if rows else 1))]
    for column in zip_longest(*rows, fillvalue=""):
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

    Nothing of its dialect is detected. A line with another number of fields has no
    values. Lines with an open quote, which may be parts of one record, are counted in
    the log of the machine.
    """

    def __init__(self, path: Path, dialect: Dialect) -> None:
        self.name = path.name
        self._path = path
        self._separator = dialect.separator or ","
        self._codec = codec(dialect.encoding or "utf-8")
        with _bytes_of(path) as stream:
            head = stream.read(4)
        is_wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if is_wide or b"\0" in head:
            expected = "text in UTF-8, Windows-1252 or Latin-1"
            raise DataError(path.name, expected, "UTF-16 or UTF-32")
        closed = _closed(self._separator)
        with _bytes_of(path) as stream:
            lines = _lines(stream)
            self._set_columns(self._header(lines))
            n_open = sum(
                b'"' in line and closed.fullmatch(line) is None for line in lines
            )
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
        with _bytes_of(self._path) as stream:
            lines = _lines(stream)
            batch = []
            size = 0
            self._header(lines)
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
        rows = filter(None, map(self._fields, lines[part]))
        return _transposed([row if len(row) == width else empty for row in rows], width)

    def _header(self, lines: Iterator[bytes]) -> list[str]:
        """The fields of the first line that is neither blank nor a title.

        In a file of such lines alone, which is refused, it is the first of them.
        """
        titles: list[list[str]] = []
        for line in lines:
            row = self._fields(line)
            if not line.removeprefix(codecs.BOM_UTF8).strip():
                continue
            if not _is_title(row):
                return row
            titles = titles or [row]
        return [*titles, []][0]

    def _fields(self, line: bytes) -> list[str]:
        """The fields of a line, none of one that is blank or cannot be read alone."""
        text = line.decode(self._codec, "replace").removeprefix("\ufeff")
        try:
            return next(csv.reader([text], delimiter=self._separator), [])
        except csv.Error:
            return []


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file without their ends, and NUL for one that is too long."""
    while line := stream.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(_LONGEST_LINE)
            line = b"\0"
        yield line.rstrip(b"\r\n")


def _closed(separator: str) -> re.Pattern[bytes]:
    """Pattern of a line without a quote that is open at its end, as `csv` sees them."""
    mark = re.escape(separator.encode())
    quoted = rb'"[^"]*(?:""[^"]*)*"(?!")[^%b]*' % mark
    field = rb'(?:%b|[^%b"][^%b]*|)' % (quoted, mark, mark)
    return re.compile(rb"%b(?:%b%b)*" % (field, mark, field))
