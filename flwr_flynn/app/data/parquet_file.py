"""Parquet files as tables: columns keep the types that they have in the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._text import clean
from flwr_flynn.app.data.dialect import Dialect, objects
from flwr_flynn.app.data.held_out import HeldOut
from flwr_flynn.app.data.table_file import Batch, ColumnReport, Layout, TableFile, Wanted, unlabelled
from flwr_flynn.app.data.values import Texts, TypedColumn
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.tables.table import Table, missing


@contextmanager
def opened_parquet(path: Path) -> Iterator[Any]:
    """A Parquet file. Every failure in the block is a DataError without a folder."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(error.name or "pyarrow", "flwr-flynn[data]", "none; pip install 'flwr-flynn[data]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - Arrow and json raise a dozen kinds
        raise DataError(path.name, f"a readable {path.suffix.lower()} file", type(error).__name__) from None


def parquet_columns(schema: Any) -> list[str]:
    """Names of the columns of an Arrow schema, without the row labels of pandas, which a note in the file names."""
    noted = json.loads((schema.metadata or {}).get(b"pandas", b'{"index_columns": []}'))
    row_labels = [name for name in noted["index_columns"] if isinstance(name, str)]
    return [str(name) for name in schema.names if name not in row_labels]


def is_numeric(kind: Any) -> bool:
    """True for the Arrow types of integers, floats and booleans."""
    types = import_module("pyarrow").types
    return any(is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_boolean))


def is_text(kind: Any) -> bool:
    """True for the Arrow types of texts, and of bytes, which may be texts."""
    types = import_module("pyarrow").types
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(is_kind(kind) for is_kind in texts)


def is_read(kind: Any) -> bool:
    """True for the Arrow types of numbers, booleans and texts, and for dictionaries of these."""
    types = import_module("pyarrow").types
    if types.is_dictionary(kind):
        return is_read(kind.value_type)
    return is_numeric(kind) or is_text(kind) or types.is_decimal(kind)


def is_date(kind: Any) -> bool:
    types = import_module("pyarrow").types
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def arrow_values(chunk: Any) -> list[Any]:
    """The values of an Arrow array, None for a value that is missing or cannot be decoded."""
    arrow = import_module("pyarrow")
    if arrow.types.is_dictionary(chunk.type):
        known = arrow_values(chunk.dictionary)
        places = chunk.indices.to_pylist()
        return [None if place is None or not 0 <= place < len(known) else known[place] for place in places]
    if arrow.types.is_string(chunk.type):
        chunk = chunk.cast(arrow.binary())  # not validated
    elif arrow.types.is_large_string(chunk.type):
        chunk = chunk.cast(arrow.large_binary())
    return [_plain(value) for value in chunk.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, np.floating):  # of float16, in older versions of pyarrow
        return float(value)
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return None


def arrow_column(column: Any) -> npt.NDArray[Any] | list[Any]:
    """The values of an Arrow array: numbers without gaps, dates, or Python's values with None for those missing."""
    if is_date(column.type):
        return moments(column)
    if not is_read(column.type):
        return [None] * len(column)
    if is_numeric(column.type) and not column.null_count:
        numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return numbers
    return arrow_values(column)


_MICROSECONDS = {"D": 86_400_000_000, "s": 10**6, "ms": 1000, "us": 1}


def moments(chunk: Any) -> npt.NDArray[Any]:
    """Dates and times of an Arrow array in UTC, datetime64[us]; NaT for those missing or beyond what that holds."""
    arrow, kind = import_module("pyarrow"), chunk.type
    integers = chunk.fill_null(0)
    integers = integers.cast(arrow.int32()) if arrow.types.is_date32(kind) else integers
    ticks = integers.cast(arrow.int64()).to_numpy(zero_copy_only=False)
    unit = kind.unit if arrow.types.is_timestamp(kind) else "ms" if arrow.types.is_date64(kind) else "D"
    if unit == "ns":
        unit, ticks = "us", ticks // 1000
    largest = (2**63 - 1) // _MICROSECONDS[unit]
    is_gap = chunk.is_null().to_numpy(zero_copy_only=False) | (ticks > largest) | (ticks < -largest)
    found = np.where(is_gap, 0, ticks) * _MICROSECONDS[unit]
    return np.where(is_gap, np.datetime64("NaT"), found.astype("datetime64[us]"))


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
        features: Wanted,
        ignore: Sequence[str],
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
            layout = Layout.of(path.name, columns, label, group, features, ignore)
            self.names, self.left_out, self._layout = layout.names, layout.left_out, layout
            self._features = [columns[index] for index in layout.order]  # as they stand in the file
            self._label = None if layout.label is None else columns[layout.label]
            self._group = None if layout.group is None else columns[layout.group]
            self._types = {name: schema.field(name).type for name in columns}
            n_promised = file.metadata.num_rows
        self.reports = [_report_of(self._types[name]) for name in self._features]
        self.n_rows = 0
        for batch in self._batches(None):
            self.n_rows += len(batch.columns[0]) if batch.columns else 0
            for report, values in zip(self.reports, batch.columns, strict=True):
                _look(report, values)
            if batch.labels is not None:
                self.n_unlabelled += int(unlabelled(batch.labels).sum())
        if self.reports and self.n_rows != n_promised:  # a damaged file
            raise DataError(path.name, "as many rows as the file says", "more or fewer")

    def batches(self) -> Iterator[Batch]:
        """The rows of the file, some at a time."""
        return self._batches(self._held_out)

    def _batches(self, held_out: HeldOut | None) -> Iterator[Batch]:
        wanted = [name for name in (*self._features, self._label, self._group) if name is not None]
        wanted += [] if held_out is None else [name for name in self._types if name not in wanted]
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
                test = None
                if held_out is not None:
                    test = self._mask([arrow_column(found[name]) for name in read], groups, read)
                yield Batch(columns, labels, groups, test)

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
