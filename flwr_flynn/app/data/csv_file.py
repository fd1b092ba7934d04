"""CSV files as tables: the first pass decides about encoding and kinds, the second gives the values."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._text import clean
from flwr_flynn.app.data.csv_texts import NotTaken, chunks, header_of
from flwr_flynn.app.data.dialect import Dialect, detected
from flwr_flynn.app.data.held_out import HeldOut, keys_of_texts
from flwr_flynn.app.data.layout import Layout
from flwr_flynn.app.data.readers import objects, unreadable
from flwr_flynn.app.data.table_file import Batch, ColumnReport, TableFile
from flwr_flynn.app.data.values import ColumnFacts, Texts, months_come_first
from flwr_flynn.errors import DataError
from flwr_flynn.tables.column import Column
from flwr_flynn.tables.schema import Schema


class CsvFile(TableFile):
    """A CSV file. With a schema its columns are read in the kinds of the schema."""

    def __init__(
        self,
        path: Path,
        label: str | None,
        group: str,
        features: Sequence[str],
        given: Dialect | None,
        schema: Schema | None,
        column_gaps: Mapping[str, Sequence[str]],
        held_out: HeldOut | None,
    ) -> None:
        self._held_out = held_out
        self.name, self.announced, self._path, self._schema = path.name, bool(features), path, schema
        self._column_gaps = column_gaps
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

    def _survey(self, label: str | None, group: str, features: Sequence[str]) -> None:
        self._header = header_of(self._path, self.dialect)
        layout = Layout.of(self.name, self._header, label, group, features)
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
            ColumnReport(typed.kind, typed.dtype, facts.gaps, facts.infinite, _n_unfit(facts)) for typed, facts in pairs
        ]

    def _look(self) -> None:
        """The first pass over all rows."""
        wanted: dict[str, Column] = {}
        if self._schema is not None:
            names = self._schema.names if self._schema.is_named else self.names
            wanted = dict(zip(names, self._schema.columns, strict=False))
        self._facts = [ColumnFacts(self._dialect_of(name), wanted.get(name)) for name in self.names]
        self.n_rows = self.n_broken = self.n_unlabelled = 0
        for columns_of_texts, labels, _, n_broken, _ in self._chunks():
            self.n_broken += n_broken
            for facts, texts in zip(self._facts, columns_of_texts, strict=True):
                facts.add(texts)
            n = len(columns_of_texts[0]) if columns_of_texts else 0
            self.n_rows += n
            if labels is not None:
                different, codes = labels.distinct()
                self.n_unlabelled += int(
                    np.isin(codes, [i for i, text in enumerate(different) if not text.strip()]).sum()
                )

    def _dialect_of(self, name: str) -> Dialect:
        own = self._column_gaps.get(name, ())
        return replace(self.dialect, gap_texts=(*self.dialect.gap_texts, *own)) if own else self.dialect

    def _chunks(
        self, keyed: bool = False
    ) -> Iterator[tuple[list[Texts], Texts | None, Texts | None, int, list[bytes]]]:
        """Some rows at a time: texts of the features, the labels and the groups, number of broken rows, and keys."""
        layout = self._layout
        wanted = [*layout.order, *(index for index in (layout.label, layout.group) if index is not None)]
        n, keyed = len(layout.order), keyed and layout.group is None
        if keyed:
            wanted += range(len(self._header))
        for chunk in chunks(self._path, self.dialect, self._header, wanted, fast=self._fast):
            rest = chunk.columns[n : n + len(wanted)]
            labels = rest.pop(0) if layout.label is not None else None
            groups = rest.pop(0) if layout.group is not None else None
            keys = keys_of_texts(zip(*(texts.tolist() for texts in rest), strict=True)) if keyed else []
            yield chunk.columns[:n], labels, groups, chunk.n_broken, keys

    def batches(self) -> Iterator[Batch]:
        """The rows of the file, some at a time."""
        try:
            for columns, labels, groups, _, keys in self._chunks(self._held_out is not None):
                values = [typed.values(texts) for typed, texts in zip(self._typed, columns, strict=True)]
                y, ids = (None if texts is None else _objects(texts) for texts in (labels, groups))
                yield Batch(values, y, ids, self._mask(ids, keys))
        except (OSError, UnicodeError, csv.Error, NotTaken) as error:  # the file has changed
            raise unreadable(self._path, error) from None

    def described(self) -> str:
        """The file in one line, for the log of this machine."""
        forms = ", ".join(sorted({typed.date_format for typed in self._typed if typed.kind == "date"} - {""}))
        return f"{clean(self.name, 200)}: {self.dialect}; {super().described()}{f'; dates as {forms}' if forms else ''}"


def _n_unfit(facts: ColumnFacts) -> int:
    """Number of values that are not of the kind that a schema wants."""
    kind = "" if facts.wanted is None else facts.wanted.kind
    if kind == "number":
        return facts.words
    n_values = facts.n - facts.gaps
    return n_values - max(facts.fits.values(), default=0) if kind == "date" else 0


def _objects(texts: Texts) -> npt.NDArray[Any]:
    different, codes = texts.distinct()
    return objects([text.strip() for text in different])[codes]
