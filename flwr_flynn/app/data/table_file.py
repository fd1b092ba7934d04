"""Files of open parties and of simulations: CSV, Parquet and NPZ.

A file is read twice: for the kinds of its columns, and then for its values. Values come
some rows at a time (`TableFile.batches`), so that a file may be larger than memory. A
file of numbers without gaps is an array of the narrowest type that holds them, so that
integers are hashed exactly; every other file is a `Table`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn._validation import listed
from flwr_flynn.app.data.source import (
    MOST_ROWS,
    Part,
    Reading,
    Source,
    label_gaps,
    unlabelled,
)
from flwr_flynn.errors import DataError, clean, with_names, with_rows
from flwr_flynn.tables.cells import Cells, Gaps, each_once, of_gaps, plain, text_of
from flwr_flynn.tables.raw_column import Raw
from flwr_flynn.tables.remarks import named
from flwr_flynn.tables.table import ColumnReader, Table, places
from flwr_flynn.tables.texts import as_name


class Rows(NamedTuple):
    """Some rows; labels and ids are None where they are not asked for."""

    table: Table
    test: Mask  # of the rows that are held out
    labels: Array | None
    ids: Array | None = None

    def of(self, rows: Mask | slice) -> Rows:
        """Some of the rows."""
        rest = (None if array is None else array[rows] for array in self[2:])
        return Rows(self.table[rows], self.test[rows], *rest)


class TableFile(ColumnReader):
    """An open file with its features, `reports` on them, and its rows.

    A first pass finds kinds and faults of the columns.
    """

    def __init__(self, source: Source, reading: Reading) -> None:
        layout = source.use(reading)
        self.source = source
        self.reading = source.reading
        self.name = source.name
        self._layout = layout
        self.left_out = layout.left_out
        kinds = [source.kinds[index] for index in layout.order]
        names = layout.names or [*map(str, range(len(kinds)))]
        reports = self.reading.columns(names, kinds)
        super().__init__(names, reports, bool(layout.names))
        self.announced = bool(reading.features)  # by the run
        self.first = self._look()

    def _parts(
        self, with_cells: bool = False
    ) -> Iterator[tuple[Part, Cells, list[Raw], Array | None]]:
        """The rows as they stand, some at a time: cells, features, and labels.

        Columns that are neither may be without values unless `with_cells` asks for all.
        """
        source = self.source
        layout = self._layout
        wanted = None
        if not with_cells:
            places = (*layout.order, layout.label, layout.group)
            wanted = {index for index in places if index is not None}
        n_rows = max(1, min(MOST_ROWS, 2**20 // max(1, len(source.kinds))))
        for part in source.parts(n_rows, wanted):
            cells = part.cells(slice(None))
            labels = None
            if layout.label is not None:
                labels = source.labels_in(cells)
            features = [source.raw(index, cells[index]) for index in layout.order]
            yield part, cells, features, labels

    def _look(self) -> list[str]:
        """Look at all rows, and return the texts of the first, if there are any."""
        self.n_rows = 0
        self.n_broken = 0
        self.labels = Counter[str]()  # rows with each, "" for none
        self.headers = list[int]()  # lines that have the header again
        first: list[str] = []
        for part, _, columns, labels in self._parts():
            lines = self._headers_in(columns, labels)
            self.headers += [self.n_rows + 2 + line for line in lines]
            self.n_broken += part.n_broken
            self.n_rows += part.n
            if not first and part.n:
                first = [values[0] for values in columns if isinstance(values, list)]
            self.look(columns)
            if labels is not None:
                self.labels.update(each_once(text_of, labels.tolist()))
        self._label_gaps = label_gaps(self.reading.dialect, self.labels)
        wanted = None
        if self.reading.schema is not None:
            wanted = self.reading.schema.names
        self.settle(wanted)
        return first

    def _headers_in(self, columns: Sequence[Raw], labels: Array | None) -> list[int]:
        """Indices of the rows in which each text is the name of its column."""
        header = self.source.key_names or self.source.columns
        columns = [values for values in columns if isinstance(values, list)]
        if not header or len(columns) < len(self._layout.order):
            return []
        names = [header[index] for index in self._layout.order]
        if names[0] not in columns[0]:
            return []
        if labels is not None and self._layout.label is not None:
            names.append(str(header[self._layout.label]).strip())
            columns.append(labels.tolist())
        return [
            index
            for index, cells in enumerate(zip(*columns, strict=True))
            if len(cells) > 1 and [*cells] == names
        ]

    def batches(self, labelled: bool = True) -> Iterator[Rows]:
        """The rows of the file, some at a time.

        Rows without a label are among them only where labels are not read, or if
        `labelled` is False.
        """
        with_cells = self.reading.held_out is not None
        source = self.source
        group = self._layout.group
        for part, cells, raws, labels in self._parts(with_cells):
            test = source.held_out(cells, part.n)
            ids = None
            if group is not None:
                ids = source.labels(cells[group])
            rows = Rows(self.table(raws), test, labels, ids)
            if labelled and labels is not None:
                is_missing = unlabelled(labels, self._label_gaps)
                if is_missing.any():
                    rows = rows.of(~is_missing)
            yield rows

    def indices(self, names: Sequence[str], expected: str) -> list[int]:
        """Indices of columns by name; a `DataError` for one that is not there."""
        return places(
            self.name,
            [*map(as_name, self.source.columns)],
            names,
            expected,
            announced=True,
        )

    @property
    def n_unlabelled(self) -> int:
        """Rows whose label is missing."""
        return self.labels.total() - sum(self.classes.values())

    @property
    def classes(self) -> dict[str, int]:
        """Rows with each label that is none that is missing."""
        has = self._label_gaps.has
        return {text: n for text, n in self.labels.items() if text and not has(text)}

    @property
    def needs_table(self) -> bool:
        """True unless all features are numbers without gaps."""
        return any(report.kind != "number" or report.gaps for report in self.reports)

    def described(self) -> str:
        """The file in one line, for the log of this machine."""
        words = {"number": "of numbers", "category": "of texts", "date": "of dates"}
        kinds = {
            word: sum(report.kind == kind for report in self.reports)
            for kind, word in words.items()
        }
        numbers = ", ".join(f"{n} {word}" for word, n in kinds.items() if n)
        sentence = f"{self.n_rows} rows; columns: {numbers}"
        n_gaps = sum(report.gaps > 0 for report in self.reports)
        if n_gaps:
            sentence += f"; gaps in {n_gaps}"
        if self.n_unlabelled:
            sentence += f"; {self.n_unlabelled} rows without a label are left out"
        for name, report in self.items():
            if report.kind == "number":
                if report.texts or report.numerals.unit:
                    sentence += f"; {name[:60]}: {report.numerals.described()}"
            elif report.texts:
                sentence += f"; {name[:60]}: {report.texts} no dates"
        unseen = [text for text in self.reading.dialect.gap_texts if self._lacks(text)]
        if unseen:
            sentence += f"; gap-texts that stand nowhere: {listed(unseen)}"
        dialect = self.source.dialect
        if dialect:
            sentence += f"; {dialect}"
            dates = [report for report in self.reports if report.kind == "date"]
            forms = ", ".join(sorted({report.form for report in dates} - {""}))
            if forms:
                sentence += f"; dates as {forms}"
            sure = {report.form for report in dates if not report.has_two_forms}
            if {report.form for report in dates} - sure:
                sentence += ", where day and month may be either (setting date-format)"
        return f"{clean(self.name, 200)}: {clean(sentence, 2000)}"

    def _lacks(self, text: str) -> bool:
        """True for a text of gaps that no cell of the features has."""
        gaps = Gaps(frozenset({as_name(text).lower()}))
        return not any(
            gaps.has(plain(cell), report.mark)
            for report in self.reports
            for cell in report.gap_values - {None}
        )

    def check(self, needs_labels: bool = True) -> None:
        """Refuse a file with rows or columns that are no samples."""
        for error, _ in self.faults(needs_labels):
            raise error

    def faults(self, needs_labels: bool = True) -> Iterator[tuple[DataError, str]]:
        """Errors about rows or columns that are no samples.

        With each is a node setting that mends it. Notes of the errors have numbers.
        """
        if self.n_broken:
            error = DataError(
                self.name,
                "as many fields in each row as in the header",
                "rows with more or fewer",
            )
            yield with_rows(error, f"{self.n_broken} rows"), "separator=..."
        if self.headers:
            lines = listed([f"line {line}" for line in self.headers])
            error = DataError(self.name, "one header", "the header again below")
            yield with_rows(error, lines), ""
        if needs_labels and self.n_rows and self.n_unlabelled == self.n_rows:
            yield (
                DataError(self.name, "a label in some rows", "none in any"),
                "label=...",
            )
        yield from self.other_units()
        faulty_rows: dict[str, dict[int, int]] = {
            name: {} for name in (*_EXPECTED.values(), _FINITE)
        }
        for index, report in enumerate(self.reports):
            n_unfit = report.unfit
            if not report.kind:
                n_unfit = self.n_rows
            if n_unfit and report.kind in _EXPECTED:
                faulty_rows[_EXPECTED[report.kind]][index] = n_unfit
            if report.infinite:
                faulty_rows[_FINITE][index] = report.infinite
        for expected, n_rows in faulty_rows.items():
            mend = "gap-texts=inf,-inf"
            if expected != _FINITE:
                names = [self.names[index] for index in n_rows]
                mend = f"ignore={named(*names)}"
            if n_rows:
                yield self._error(expected, n_rows), mend

    def _error(self, expected: str, n_rows: dict[int, int]) -> DataError:
        """The error about rows with a fault in some features.

        Its notes have numbers of rows and names of columns.
        """
        columns = [f"number {index + 1}" for index in n_rows]
        if self.announced and self.is_named:
            columns = [clean(self.names[index], 60) for index in n_rows]
        n_columns = f"{len(n_rows)} of {len(self._layout.order)}"
        got = f"others in {n_columns} features: {listed(columns)}"
        text = f"{self.name}: expected {expected}, got {got}"
        error = DataError(self.name, expected, got, text=text)
        numbers = [f"{n} of {self.n_rows} samples" for n in n_rows.values()]
        error = with_rows(error, ", ".join(numbers[:20]))
        if self.is_named:
            return with_names(error, [self.names[index] for index in n_rows])
        return error

    @cached_property
    def units(self) -> dict[str, Mapping[str, int]]:
        """Rows of the features with each unit; none of accepted ones."""
        accepted = filter(self.reading.accepts, self.names)
        return super().units | {name: {} for name in accepted}

    def in_one(self) -> Rows:
        """All rows in memory."""
        empty = [of_gaps(report.kind, 0) for report in self.reports]
        nothing = Table(self.names, empty, self.is_named, units=self.units)
        none = Rows(nothing, np.zeros(0, np.bool_), np.zeros(0, object))
        batches = [*self.batches()] or [none]
        columns = zip(*(rows.table.columns for rows in batches), strict=True)
        table = replace(nothing, columns=[*map(np.concatenate, columns)])
        test = np.concatenate([rows.test for rows in batches])
        rest = (
            None if arrays[0] is None else np.concatenate(arrays)
            for arrays in zip(*(rows[2:] for rows in batches), strict=True)
        )
        return Rows(table, test, *rest)

    def whole(self) -> tuple[Array | Table, Array, Array | None, Mask]:
        """All rows in memory: samples, labels, ids or None, and mask of those held out.

        Numbers without gaps are an array in the narrowest type that holds them; all
        else is a table.
        """
        self.check()
        table, test, y, ids = self.in_one()
        X: Array | Table = table
        if not self.needs_table:
            X = np.stack(table.columns, axis=1)
        if y is None:
            y = np.zeros(0, object)
        return X, y, ids, test


_EXPECTED = {
    "": "numbers, texts or dates",
    "number": "numbers",
    "date": "dates of one form",
}
"""Values that are expected, by the kind of a column."""

_FINITE = "finite numbers that float64 holds"
