"""Dialect of a CSV file: separator, decimal mark, encoding, texts of gaps and form of dates, from the file's head.

The standard library's `csv.reader` tries four separators; the one that gives most rows as many fields as the header
wins. It agrees with clevercsv on plain, quoted, German and ragged samples, where `csv.Sniffer` refuses some, and needs
no further package (DuckDB's sniffer is 66 MB).
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import DataError
from flwr_flynn.tables.texts import GROUPS, proves

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "pipes"}
SEPARATOR_NAMES = {",": ",", ";": ";", "tab": "\t", "pipe": "|"}
"""Separators by their names in settings."""

ENCODINGS = ("utf-8", "utf-16", "windows-1252", "latin-1")

_HEAD = 2**22  # bytes
_ROWS = 200
_BINARY = {
    b"PK\x03\x04": "a zip archive or an .xlsx file",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an .xls file",
    **dict.fromkeys((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"), "a compressed file"),
}


@dataclass(frozen=True)
class Dialect:
    """Form of the texts of a file.

    Parameters
    ----------
    separator, decimal, encoding, date_format : str
        "" is detected: the first three from the head of the file, the last by the values of each column.
    gap_texts : sequence of str
        Texts of missing values beside `GAP_TEXTS`.
    """

    separator: str = ""
    decimal: str = ""
    encoding: str = ""
    gap_texts: Sequence[str] = ()
    date_format: str = ""

    def __str__(self) -> str:
        mark = "decimal comma" if self.decimal == "," else "decimal point"
        return f"{self.encoding.upper()}, {SEPARATORS[self.separator]}, {mark}"


def detected(path: Path, given: Dialect | None = None) -> Dialect:
    """The dialect of a file, with what is given and the rest from its head."""
    given = Dialect() if given is None else given
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
        is_whole = not stream.read(1)
    encoding = given.encoding or _encoding_of(path, head)
    text = codecs.getincrementaldecoder(codec(encoding))("replace").decode(head, final=is_whole)
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
        raise DataError(path.name, "text in UTF-8, or in UTF-16 with a byte order mark", "UTF-16 or UTF-32")
    for encoding in ("utf-8", "windows-1252"):
        try:
            codecs.getincrementaldecoder(codec(encoding))("strict").decode(head)
        except UnicodeDecodeError as error:
            if encoding == "utf-8" and _UTF8.search(head):  # other characters are right: a byte of it is broken
                line = head.count(b"\n", 0, error.start) + 1
                expected = "text in UTF-8, or the setting encoding"
                raise DataError(path.name, expected, f"a byte that is none in line {line}") from None
            continue
        return encoding
    return "latin-1"


_UTF8 = re.compile(rb"[\xc3-\xdf][\x80-\xbf]|[\xe1-\xef][\x80-\xbf]{2}")


def _sample(text: str, separator: str, is_whole: bool) -> list[list[str]]:
    """The first rows of a text that are not blank; [] if it cannot be parsed so."""
    try:
        rows = list(islice(filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator)), _ROWS))
    except csv.Error:
        return []
    return rows if is_whole or len(rows) == _ROWS else rows[:-1]  # the last one may be cut off


def _separator_of(text: str, is_whole: bool) -> str:
    best, separator = (0.0, 1), ","
    for each in SEPARATORS:
        rows = _sample(text, each, is_whole)
        if rows and (width := len(rows[0])) > 1:
            fitting = sum(len(row) == width for row in rows) / len(rows)
            if (fitting, width) > best:
                best, separator = (fitting, width), each
    return separator


def _decimal_of(path: Path, text: str, separator: str, is_whole: bool) -> str:
    """The decimal mark that most fields prove; a group of three digits alone proves none, and is refused alone.

    1.5 and 1,234,567 prove a point. Of 1.234 nothing is said, unless integers stand in the same column; between commas
    a comma separates thousands.
    """
    proofs, groups = Counter[str](), 0
    for column in zip_longest(*_sample(text, separator, is_whole)[1:], fillvalue=""):
        fields = [field.strip() for field in column]
        has_integers = any(field.isdigit() for field in fields)
        for field in fields:
            for mark in ".,":
                proofs[mark] += proves(field, mark)
                is_group = field.count(mark) == 1 and GROUPS[mark].fullmatch(field) is not None and field[0] != "0"
                groups += is_group and separator != "," and (mark == "," or has_integers)
    if groups and not proofs.total():
        expected = "a decimal mark (setting decimal), where numbers such as 1,234 have groups of three digits alone"
        raise DataError(path.name, expected, f"{groups} fields in which it may also separate thousands")
    return "," if proofs[","] > proofs["."] else "."


Array = npt.NDArray[Any]

ENDINGS = (".csv", ".parquet", ".npz")


def ending(path: Path) -> str:
    """The ending of a file's name, one of `ENDINGS` if the file can be read."""
    return path.suffix.lower()


def unreadable(path: Path, error: Exception) -> DataError:
    """The error about a file that no parser reads."""
    if isinstance(error, DataError):
        return error
    got = str(error)[:80] if isinstance(error, csv.Error) else type(error).__name__  # of a parser, which names no value
    return DataError(path.name, f"a readable {ending(path)} file", got)


def objects(values: Sequence[Any] | Array) -> Array:
    """Python's values in an array: in a text type of NumPy each value would be as wide as the longest."""
    found = np.empty(len(values), object)
    found[:] = values.tolist() if isinstance(values, np.ndarray) else values
    return found
