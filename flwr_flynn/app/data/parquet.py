"""Parquet files: opened with care, and columns as Python's values whatever stands in the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

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
    return [_decoded(value) if isinstance(value, bytes) else value for value in chunk.to_pylist()]


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
