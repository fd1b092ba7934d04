"""Parquet files as tables: columns keep the types that they have in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._text import clean
from flwr_flynn.app.data.dialect import Dialect
from flwr_flynn.app.data.held_out import HeldOut
from flwr_flynn.app.data.layout import Layout
from flwr_flynn.app.data.parquet import (
    arrow_values,
    is_date,
    is_numeric,
    is_read,
    is_text,
    opened_parquet,
    parquet_columns,
    raw_keys,
)
from flwr_flynn.app.data.readers import objects
from flwr_flynn.app.data.table_file import Batch, ColumnReport, TableFile
from flwr_flynn.app.data.values import Texts, TypedColumn
from flwr_flynn.errors import DataError
from flwr_flynn.tables.table import Table, missing

Array = npt.NDArray[Any]

_ROWS = 2**16  # at a time
_VALUES = 2**22  # at a time


class ParquetFile(TableFile):
    """A Parquet file: nulls are gaps, and dates with a time zone are in UTC."""

    def __init__(
        self,
        path: Path,
        label: str | None,
        group: str,
        features: Sequence[str],
        given: Dialect | None,
        column_gaps: Mapping[str, Sequence[str]],
        held_out: HeldOut | None,
    ) -> None:
        self._held_out = held_out
        self.name, self.announced, self._path = path.name, bool(features), path
        self._given, self._column_gaps = given or Dialect(), column_gaps
        with opened_parquet(path) as file:
            schema = file.schema_arrow
            columns = parquet_columns(schema)
            layout = Layout.of(path.name, columns, label, group, features)
            self.names, self.left_out, self._layout = layout.names, layout.left_out, layout
            self._features = [columns[index] for index in layout.order]  # as they stand in the file
            self._label = None if layout.label is None else columns[layout.label]
            self._group = None if layout.group is None else columns[layout.group]
            self._types = {name: schema.field(name).type for name in columns}
            n_promised = file.metadata.num_rows
        self.reports = [_report_of(self._types[name]) for name in self._features]
        self.n_rows = 0
        for batch in self.batches():
            self.n_rows += len(batch.columns[0]) if batch.columns else 0
            for report, values in zip(self.reports, batch.columns, strict=True):
                _look(report, values)
            if batch.labels is not None:
                self.n_unlabelled += sum(value is None or value != value for value in batch.labels.tolist())
        if self.reports and self.n_rows != n_promised:  # a damaged file
            raise DataError(path.name, "as many rows as the file says", "more or fewer")

    def batches(self) -> Iterator[Batch]:
        """The rows of the file, some at a time."""
        wanted = [name for name in (*self._features, self._label, self._group) if name is not None]
        if keyed := self._held_out is not None and self._group is None:
            wanted += [name for name in self._types if name not in wanted]
        # Nothing is asked of pyarrow about columns that are not read.
        read = [name for name in dict.fromkeys(wanted) if _is_taken(self._types[name])]
        rows = max(1, min(_ROWS, _VALUES // max(1, len(wanted))))
        with opened_parquet(self._path) as file:
            for batch in file.iter_batches(batch_size=rows, columns=read, use_pandas_metadata=False):
                found = {name: batch.column(name) for name in read}
                n = batch.num_rows
                features = zip(self.names, self._features, strict=True)
                columns = [self._values(name, found.get(own), n) for name, own in features]
                labels, groups = (
                    None if name is None else _labels(found.get(name), n) for name in (self._label, self._group)
                )
                yield Batch(
                    columns,
                    labels,
                    groups,
                    self._mask(
                        groups, raw_keys(batch, [name for name in self._types if name in read]) if keyed else []
                    ),
                )

    def _values(self, name: str, found: Any, n: int) -> Array:
        """The values of a feature: numbers, texts or None, or datetime64[us]."""
        if found is None:
            return np.full(n, np.nan)
        types, kind = import_module("pyarrow").types, found.type
        if is_numeric(kind):
            if found.null_count and types.is_boolean(kind):
                found = found.cast("int8")
            numbers: Array = found.to_numpy(zero_copy_only=False)
            return numbers
        if types.is_decimal(kind):
            values = [np.nan if value is None else float(value) for value in found.to_pylist()]
            return np.array(values, np.float64 if found.null_count else _report_of(kind).dtype)
        if is_text(kind) or types.is_dictionary(kind):
            own = self._column_gaps.get(name, ())
            typed = TypedColumn("category", np.dtype(object), Dialect(gap_texts=(*self._given.gap_texts, *own)))
            return typed.values(Texts(["" if value is None else str(value) for value in arrow_values(found)]))
        if types.is_null(kind):
            return np.full(n, np.nan)
        return _moments(found)

    def described(self) -> str:
        """The file in one line, for the log of this machine."""
        return f"{clean(self.name, 200)}: Parquet; {super().described()}"


def _is_taken(kind: Any) -> bool:
    types = import_module("pyarrow").types
    return is_read(kind) or is_date(kind) or bool(types.is_duration(kind) or types.is_null(kind))


def _report_of(kind: Any) -> ColumnReport:
    """The kind of a column of an Arrow type, and the dtype of its numbers."""
    types = import_module("pyarrow").types
    if not _is_taken(kind):
        return ColumnReport("", np.dtype(np.float64))
    if is_numeric(kind):
        return ColumnReport("number", np.dtype(kind.to_pandas_dtype()))
    if types.is_decimal(kind):
        is_whole = kind.scale == 0 and kind.precision <= 15  # float64 holds these
        return ColumnReport("number", np.dtype(np.int64 if is_whole else np.float64))
    if is_text(kind) or types.is_dictionary(kind):
        return ColumnReport("category", np.dtype(np.float64))
    return ColumnReport("date" if is_date(kind) else "number", np.dtype(np.float64))


def _look(report: ColumnReport, values: Array) -> None:
    report.gaps += int(missing(values).sum())
    report.infinite += int(np.isinf(values).sum()) if values.dtype.kind == "f" else 0


def _moments(found: Any) -> Array:
    """Dates and times in UTC as datetime64[us], durations as days."""
    arrow = import_module("pyarrow")
    if not arrow.types.is_duration(found.type):
        compute = import_module("pyarrow.compute")
        found = found.cast(options=compute.CastOptions(arrow.timestamp("us"), allow_time_truncate=True))
    return Table.of(found.to_numpy(zero_copy_only=False)[:, None]).columns[0]


def _labels(found: Any, n: int) -> Array:
    """Labels as they stand, None for those that are missing or cannot be decoded."""
    if found is None or not is_read(found.type):
        return objects([None] * n)
    if is_numeric(found.type) and not found.null_count:
        labels: Array = found.to_numpy(zero_copy_only=False)
        return labels
    return objects(arrow_values(found))
