"""Parquet files: opened with care, and columns as Python's values whatever stands in the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.held_out import keys_of_values
from flwr_flynn.errors import ConfigError, DataError


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


def raw_keys(batch: Any, names: Sequence[str]) -> list[bytes]:
    """Keys of the rows of a batch for the held-out rule, by columns in the order of the file."""
    return keys_of_values(arrow_column(batch.column(name)) for name in names)


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
