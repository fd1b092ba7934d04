"""CSV files as tables: the first pass decides about encoding and kinds, the second gives the values."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from flwr_flynn.app.data.dialect import Dialect, codec, detected, objects, unreadable
from flwr_flynn.app.data.table_file import Block, Reading, TableFile
from flwr_flynn.errors import DataError

CHUNK = 2**14
"""Rows that are read at a time, at most."""


def header_of(path: Path, dialect: Dialect) -> list[str]:
    """The fields of the first line that is not blank."""
    with path.open(encoding=codec(dialect.encoding), newline="") as stream:
        return next(filter(None, csv.reader(stream, delimiter=dialect.separator)), None) or []


class CsvFile(TableFile):
    """A CSV file. With a schema its columns are read in the kinds of the schema."""

    def __init__(self, path: Path, reading: Reading) -> None:
        try:
            dialect = detected(path, reading.dialect)
            known = [dialect.encoding]
            if not reading.dialect.encoding:
                known += {"utf-8": ["windows-1252", "latin-1"], "windows-1252": ["latin-1"]}.get(known[0], [])
            for encoding in known:
                super().__init__(path.name, replace(reading, dialect=replace(dialect, encoding=encoding)))
                try:
                    self._look(path)
                    return
                except UnicodeError:  # beyond the head
                    continue
        except (OSError, csv.Error) as error:
            raise unreadable(path, error) from None
        raise DataError(path.name, f"text in {known[0].upper()}", "another encoding")

    def _look(self, path: Path) -> None:
        self._path, header = path, header_of(path, self.reading.dialect)
        self._layout = layout = self.reading.layout(self.name, header)
        self.columns = self.key_names = tuple(header)
        self.names, self.left_out, self._is_known = layout.names, layout.left_out, False
        self._check_header(self.look([None] * len(layout.order)))
        self._is_known = True

    def _check_header(self, first: Sequence[str]) -> None:
        """Refuse a file with another header below the first, or with rows within quotes that opened by mistake."""
        words = [{*map(str.strip, report.numerals.words)} for report in self.reports]
        has_numbers = any(report.numerals.n_numbers for report in self.reports)
        if has_numbers and all(name in each for name, each in zip(self._layout.names, words, strict=False)):
            raise DataError(self.name, "one header", "the header again below")
        triples = zip(first, words, self.reports, strict=False)
        mixed = [some == {text.strip()} for text, some, report in triples if report.numerals.n_numbers]
        if len(mixed) > 1 and all(mixed) and self.n_rows > 2 and len({*first}) == len(first):
            raise DataError(self.name, "one header", "a second one in the first row")
        width = len(self.columns) - 1
        for report in self.reports:
            for text in report.numerals.words if width else ():
                inner = [line.count(self.reading.dialect.separator) for line in text.splitlines()[1:-1]]
                if len(inner) > 1 and all(n == width for n in inner):
                    raise DataError(self.name, "quotes that are closed in their row", "whole rows within a field")

    def blocks(self, with_cells: bool = False) -> Iterator[Block]:
        """The rows with as many fields as the header, without blank lines."""
        layout, width = self._layout, len(self.columns)
        most, last = max(1, min(CHUNK, 2**20 // max(1, width))), [""]
        try:
            with self._path.open(encoding=codec(self.reading.dialect.encoding), newline="") as stream:
                rows = filter(None, csv.reader(stream, delimiter=self.reading.dialect.separator))
                next(rows, None)
                while some := list(islice(rows, most)):
                    last = some[-1]
                    fitting = [row for row in some if len(row) == width]
                    texts = [*map(list, zip(*fitting, strict=True))] or [[]] * width
                    labels, ids = (None if at is None else texts[at] for at in (layout.label, layout.group))
                    y = None if labels is None else objects([label.strip() for label in labels])
                    columns = [texts[index] for index in layout.order]
                    yield Block(columns, y, ids, texts, len(some) - len(fitting))
        except (OSError, csv.Error, UnicodeError) as error:
            if isinstance(error, UnicodeError) and not self._is_known:
                raise  # the encoding is another one
            raise unreadable(self._path, error) from None  # or the file has changed since the first pass
        _check_end(self._path, last[-1])

    def described(self) -> str:
        """The file in one line, for the log of this machine."""
        forms = ", ".join(sorted({report.form for report in self.reports if report.kind == "date"} - {""}))
        return f"{super().described()}; {self.reading.dialect}{f'; dates as {forms}' if forms else ''}"


def _check_end(path: Path, last: str) -> None:
    """Refuse a file whose last quote is open: from it to the end all would be the last field of one row."""
    if "\n" not in last and "\r" not in last:
        return
    with path.open("rb") as stream:
        stream.seek(-min(64, path.stat().st_size), os.SEEK_END)
        tail = stream.read().replace(b"\0", b"").rstrip(b"\r\n ")
    if not tail.endswith(b'"'):
        raise DataError(path.name, "quotes that are closed", "one that is open at the end of the file")
