"""Files of open parties and of simulations, CSV, Parquet and NPZ, read twice: kinds of
the columns, and then values.

Values come some rows at a time (`TableFile.batches`), so that a file may be larger than
memory. A file of numbers without gaps is an array of the narrowest type that holds
them, so that integers are hashed exactly; every other file is a `Table`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flwr_flynn._validation import listed
from flwr_flynn.app.data.source import (
    MOST_ROWS,
    Array,
    Features,
    Part,
    Reading,
    Source,
    keys_of,
    mapped,
    unlabelled,
)
from flwr_flynn.errors import DataError, clean, with_names, with_rows
from flwr_flynn.tables.raw_column import Raw, RawColumn, months_come_first, of_gaps
from flwr_flynn.tables.table import Table, places
from flwr_flynn.tables.texts import BESIDE, as_name


class Batch(NamedTuple):
    """Some rows: values of each feature, labels, ids of groups, and a mask of those
    held out.

    Labels, ids and mask are None where they are not asked for.
    """

    columns: list[Array]
    labels: Array | None
    groups: Array | None = None
    test: npt.NDArray[np.bool_] | None = None


class TableFile:
    """An open file with its features, `reports` on them, and its rows.

    A first pass finds kinds and faults of the columns.
    """

    label_map: Mapping[str, str] = MappingProxyType({})

    def __init__(self, source: Source, reading: Reading) -> None:
        self.source = source
        self.reading = reading
        self.name = source.name
        self.columns = source.columns
        self._layout = layout = source.layout(reading)
        self.names = layout.names
        self.left_out = layout.left_out
        # by the run
        self.is_named = bool(layout.names)
        self.announced = bool(reading.features)
        self.first = self._look()

    def _parts(
        self, with_cells: bool = False
    ) -> Iterator[tuple[Part, Sequence[Any], list[Raw], Array | None]]:
        """The rows as they stand, some at a time: cells, the features among them, and
        labels.
        """
        source = self.source
        layout = self._layout
        if with_cells:
            wanted = None
        else:
            wanted = {*layout.order, layout.label, layout.group} - {None}
        n_rows = max(1, min(MOST_ROWS, 2**20 // max(1, len(source.kinds))))
        for part in source.parts(n_rows, wanted):  # type: ignore[arg-type]
            cells = part.cells(slice(None))
            labels = None
            if layout.label is not None:
                labels = source.labels(cells[layout.label])
            yield (
                part,
                cells,
                [source.raw(index, cells[index]) for index in layout.order],
                labels,
            )

    def _look(self) -> list[str]:
        """Look at all rows, and return the texts of the first, if there are any."""
        # columns of numbers whose texts make a column of their own
        self._beside: list[int] = []
        kinds = [self.source.kinds[index] for index in self._layout.order]
        self.reports = self.reading.columns(
            self.names or [*map(str, range(len(kinds)))], kinds
        )
        self.n_rows = self.n_broken = self.n_unlabelled = 0
        first: list[str] = []
        for part, _, columns, labels in self._parts():
            self.n_broken += part.n_broken
            self.n_rows += part.n
            if not first and part.n:
                first = [values[0] for values in columns if isinstance(values, list)]
            for report, values in zip(self.reports, columns, strict=True):
                report.add(values)
            self.n_unlabelled += 0 if labels is None else int(unlabelled(labels).sum())
        month_first = months_come_first(self.reports)
        for report in self.reports:
            report.month_first = month_first
            report.is_strict = not self.names
        self._split()
        return first

    def _split(self) -> None:
        """Make columns of the texts in columns of numbers, unless a schema does not
        have them.
        """
        schema = self.reading.schema
        there = {*self.names}
        wanted = (
            {f"{name}{BESIDE}" for name in there} if schema is None else {*schema.names}
        ) - there
        for index, (name, report) in enumerate(
            zip(self.names, [*self.reports], strict=False)
        ):
            if report.texts and report.kind == "number" and f"{name}{BESIDE}" in wanted:
                report.has_beside = True
                self._beside.append(index)
                self.reports.append(RawColumn("category"))
        self.names += tuple(f"{self.names[index]}{BESIDE}" for index in self._beside)

    def batches(self, labelled: bool = True) -> Iterator[Batch]:
        """The rows of the file, some at a time; of those whose labels are read the
        labelled ones, or all.
        """
        rule = self.reading.held_out
        source = self.source
        group = self._layout.group
        for _, cells, raws, y in self._parts(with_cells=rule is not None):
            columns = [
                report.values(raw)
                for report, raw in zip(self.reports, raws, strict=False)
            ]
            columns += [
                self.reports[index].beside(raws[index]) for index in self._beside
            ]
            test = None
            if rule is not None:
                test = rule.mask(keys_of(source, cells, group))
            labels = None
            if y is not None:
                labels = mapped(y, self.label_map)
            ids = None
            if group is not None:
                ids = cells[group]
            if not (ids is None or isinstance(ids, np.ndarray)):
                ids = source.labels(ids)
            batch = Batch(columns, labels, ids, test)
            if (
                labelled
                and labels is not None
                and (missing := unlabelled(labels)).any()
            ):
                rest = (None if some is None else some[~missing] for some in batch[1:])
                batch = Batch([column[~missing] for column in columns], *rest)
            yield batch

    def indices(self, names: Sequence[str], expected: str) -> list[int]:
        """Indices of columns by name; a `DataError` for one that is not there."""
        return places(
            self.name, [*map(as_name, self.columns)], names, expected, announced=True
        )

    @property
    def needs_table(self) -> bool:
        """True unless all features are numbers without gaps."""
        return any(report.kind != "number" or report.gaps for report in self.reports)

    @property
    def all_names(self) -> Features:
        """Names of the features, or their numbers."""
        return self.names or tuple(map(str, range(len(self.reports))))

    def described(self) -> str:
        """The file in one line, for the log of this machine."""
        words = {"number": "of numbers", "category": "of texts", "date": "of dates"}
        kinds = {
            word: sum(report.kind == kind for report in self.reports)
            for kind, word in words.items()
        }
        told = (
            f"{self.n_rows} rows; columns: "
            f"{', '.join(f'{n} {word}' for word, n in kinds.items() if n)}"
        )
        n_gaps = sum(report.gaps > 0 for report in self.reports)
        if n_gaps:
            told += f"; gaps in {n_gaps}"
        if self.n_unlabelled:
            told += f"; {self.n_unlabelled} rows without a label are left out"
        for name, report in zip(self.all_names, self.reports, strict=True):
            is_number = report.kind == "number"
            if report.texts or (is_number and report.numerals.unit):
                told += (
                    f"; {name[:60]}: "
                    f"{report.numerals.described() if is_number else f'{report.texts} no dates'}"
                )
        dialect = self.source.dialect
        if dialect:
            forms = ", ".join(
                sorted(
                    {report.form for report in self.reports if report.kind == "date"}
                    - {""}
                )
            )
            told += f"; {dialect}{f'; dates as {forms}' if forms else ''}"
        return f"{clean(self.name, 200)}: {clean(told, 2000)}"

    def check(self) -> None:
        """Refuse a file with rows or columns that are no samples."""
        for error, _ in self.faults():
            raise error

    def faults(self) -> Iterator[tuple[DataError, str]]:
        """Errors about rows or columns that are no samples, and the node setting that
        mends it; notes have numbers.
        """
        if self.n_broken:
            error = DataError(
                self.name,
                "as many fields in each row as in the header",
                "rows with more or fewer",
            )
            yield with_rows(error, f"{self.n_broken} rows"), "separator"
        if self.n_rows and self.n_unlabelled == self.n_rows:
            yield DataError(self.name, "a label in some rows", "none in any"), "label"
        faults: dict[str, Callable[[RawColumn], int]] = {
            "numbers, texts or dates": lambda report: 0 if report.kind else self.n_rows,
            "numbers": lambda report: report.unfit if report.kind == "number" else 0,
            "dates of one form": lambda report: (
                report.unfit if report.kind == "date" else 0
            ),
            "finite numbers that float64 holds": lambda report: report.infinite,
        }
        for expected, n_of in faults.items():
            found = {
                index: n
                for index, report in enumerate(self.reports)
                if (n := n_of(report))
            }
            if found:
                yield self._error(expected, found), "gap-texts"

    def _error(self, expected: str, n_rows: dict[int, int]) -> DataError:
        """The error about rows with a fault in some features; its notes have numbers of
        rows and names of columns.
        """
        if self.announced:
            names = self.names
        else:
            names = ()
        called = [
            clean(names[index], 60) if names else f"number {index + 1}"
            for index in n_rows
        ]
        found = (
            f"others in {len(n_rows)} of {len(self.reports)} features: {listed(called)}"
        )
        error = DataError(
            self.name,
            expected,
            found,
            text=f"{self.name}: expected {expected}, got {found}",
        )
        error = with_rows(
            error,
            ", ".join(f"{n} of {self.n_rows} samples" for n in [*n_rows.values()][:20]),
        )
        if self.names:
            return with_names(error, [self.names[index] for index in n_rows])
        return error

    def table(self, columns: Sequence[Array]) -> Table:
        """Values of the features as a table."""
        kinds = [
            np.float64 if column.dtype.kind in "biuf" else column.dtype
            for column in columns
        ]
        values = [
            column.astype(kind, copy=False)
            for column, kind in zip(columns, kinds, strict=True)
        ]
        return Table(self.all_names, values, self.is_named)

    def tables(
        self,
    ) -> Iterator[tuple[Table, Array | None, npt.NDArray[np.bool_] | None]]:
        """The rows as tables, with their labels and the mask of those held out, some at
        a time.
        """
        for batch in self.batches():
            yield self.table(batch.columns), batch.labels, batch.test

    def in_one(self) -> Batch:
        """All rows in memory."""
        empty = [of_gaps(report.kind, 0) for report in self.reports]
        parts = [*self.batches()] or [
            Batch(empty, np.zeros(0, object), test=np.zeros(0, np.bool_))
        ]
        columns = [
            np.concatenate(some)
            for some in zip(*(part.columns for part in parts), strict=True)
        ]
        rest = zip(*(part[1:] for part in parts), strict=True)
        return Batch(
            columns,
            *(None if some[0] is None else np.concatenate(some) for some in rest),
        )

    def whole(self) -> tuple[Any, Array, Array | None, npt.NDArray[np.bool_]]:
        """All rows in memory: an array or a table, labels, ids of groups or None, and
        the mask of those held out.

        Numbers without gaps are an array in the narrowest type that holds them; all
        else is a table.
        """
        self.check()
        columns, y, groups, test = self.in_one()
        if self.needs_table:
            X: Any = self.table(columns)
        else:
            X = np.stack(columns, axis=1)
        if test is None:
            test = np.zeros(len(columns[0]), np.bool_)
        return X, np.zeros(0, object) if y is None else y, groups, test
