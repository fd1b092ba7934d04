"""Files whose columns have types: NPZ as plain arrays, without pickles, and Parquet."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn._files import npz_array
from flwr_flynn._types import Array
from flwr_flynn.app.data.source import (
    Features,
    FileColumns,
    Part,
    Reading,
    Source,
    decoding,
)
from flwr_flynn.errors import ConfigError, DataError, with_names, with_rows
from flwr_flynn.hashing.batching import batches
from flwr_flynn.tables.raw_column import Raw
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.texts import as_name

# ---- NPZ


class ArrayColumns(Source):
    """The columns of a file's array ``X`` (n, d), with labels and ids behind them.

    No labels are read where `label` is None. An array ``feature_names`` (d,) may have
    their names.
    """

    def __init__(self, path: Path, label: str | None, group: str) -> None:
        self.name = path.name
        own = [key for key in ("X", label, group) if key]
        with decoding(path), zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            lacking = [key for key in own if key not in members]
            if lacking:
                got = f"{len(members)} others"
                error = DataError(path.name, f"an array {lacking[0]!r}", got)
                raise with_names(error, members)
            X, *rest = (_array(archive, members[key], path.name) for key in own)
            names = None
            if "feature_names" in members:
                names = _array(archive, members["feature_names"], path.name)
        n_dims = [X.ndim, *(array.ndim for array in rest)]
        if n_dims != [2, 1, 1][: len(own)]:
            got = f"arrays of {' and '.join(map(str, n_dims))} dimension(s)"
            expected = "a matrix of numbers with a label for each row"
            raise DataError(path.name, expected, got)
        for key, array in zip(own[1:], rest, strict=True):
            if len(array) != len(X):
                expected = f"a value of {key!r} for each row"
                error = DataError(path.name, expected, "more or fewer")
                raise with_rows(error, f"{len(array)} for {len(X)}")
        width = X.shape[1]
        if not width:
            raise DataError(path.name, "at least one feature", "none")
        self._n = width
        self._all = [*X.T, *rest]
        self.columns = ()
        self.key_names = None
        self.keys = range(width + bool(label))
        kinds = {"M": "date", "U": "category"}
        self.kinds = [kinds.get(X.dtype.kind, "number")] * width
        if names is not None:
            if names.dtype.kind != "U" or names.shape != (width,):
                got = f"type {names.dtype.kind!r} of shape {names.shape}"
                expected = f"'feature_names' to be {width} strings"
                raise DataError(path.name, expected, got)
            self.columns = tuple(map(as_name, names.tolist()))
            # Labels come first in the order of the names.
            self.key_names = (*self.columns, "\0")

    def layout(self, reading: Reading) -> FileColumns:
        """The columns by their use.

        Without names they are the features in their order, as many as asked for.
        """
        behind = [*range(self._n, len(self._all)), None]
        label = behind.pop(0) if reading.label else None
        group = behind[0] if reading.group else None
        if self.columns:
            # Ids among X are no feature either.
            names = {*self.columns} & {as_name(reading.group)} - {""}
            ignore = (*reading.ignore, *names)
            rest = replace(reading, label=None, group="", ignore=ignore)
            layout = rest.layout(self.name, self.columns)
            return layout._replace(label=label, group=group)
        dialect = reading.dialect
        if reading.ignore or dialect.convert or dialect.synonyms:
            expected = "an array 'feature_names', which names columns of settings"
            raise DataError(self.name, expected, "none")
        features = reading.features
        if isinstance(features, Schema):
            features = features.names
        elif not features or len(features) == self._n:
            by_position = tuple(map(as_name, features))
            return FileColumns(label, group, [*range(self._n)], by_position, ())
        expected = f"an array 'feature_names', for {len(features)} features"
        raise DataError(self.name, expected, f"{self._n} without names")

    def parts(
        self, n_rows: int, wanted: Collection[int] | None = None
    ) -> Iterator[Part]:
        """The rows."""
        for rows in batches(len(self._all[0]), n_rows):
            yield Part(rows.stop - rows.start, partial(self._cells, rows))

    def _cells(self, rows: slice, part: slice) -> list[Array]:
        return [column[rows][part] for column in self._all]


def _array(archive: zipfile.ZipFile, member: str, file: str) -> Array:
    """An array of an archive.

    32-bit values of texts that are no characters, of which Python makes no string, are
    replaced, as bytes that are none are in other files.
    """
    what = f"{file}: not a readable array {member[:80]!r}"
    array = npz_array(archive, member, what, DataError)
    if array.dtype.kind == "U" and array.size:
        array = np.ascontiguousarray(array)
        characters = array.view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        characters[characters > sys.maxunicode] = ord("\ufffd")
    return array


# ---- Parquet


@contextmanager
def opened_parquet(path: Path) -> Iterator[Any]:
    """A Parquet file. Every failure in the block is a DataError without a folder."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            error.name or "pyarrow",
            "flwr-flynn[data]",
            "none; pip install 'flwr-flynn[data]'",
        ) from None
    with decoding(path), parquet.ParquetFile(path) as file:
        yield file


def _batches(file: Any, **options: Any) -> Iterator[Any]:
    """Rows of a Parquet file, some at a time.

    pyarrow's own threads may go on with a damaged column when another one has failed,
    and end the process.
    """
    batches: Iterator[Any] = file.iter_batches(
        use_threads=False, use_pandas_metadata=False, **options
    )
    return batches


def parquet_columns(schema: Any) -> list[str]:
    """Names of the columns of an Arrow schema.

    The row labels of pandas, which a note in the file names, are not among them.
    """
    noted = json.loads((schema.metadata or {}).get(b"pandas", b'{"index_columns": []}'))
    row_labels = [name for name in noted["index_columns"] if isinstance(name, str)]
    named = [str(name) for name in schema.names if name not in row_labels]
    # Of several columns without a name none can be read.
    return [name for name in named if name or named.count("") < 2]


_TYPES = re.compile(
    r"(?P<plain>u?int\d+|bool|halffloat|float|double)|(?P<decimal>decimal\d+\(.*)"
    r"|(?P<span>duration\[.*|null)"
    r"|(?P<text>(?:large_)?(?:string|binary))|(?P<date>(?:date|timestamp).*)"
)
_KINDS = {
    "plain": "number",
    "decimal": "number",
    "span": "number",
    "text": "category",
    "": "",
}


def type_of(arrow_type: Any) -> str:
    """The group of an Arrow type; "levels" of a dictionary, "" if it is not read."""
    if import_module("pyarrow").types.is_dictionary(arrow_type):
        if type_of(arrow_type.value_type) in ("plain", "decimal", "text"):
            return "levels"
        return ""
    match = _TYPES.fullmatch(str(arrow_type))
    if match is None:
        return ""
    return match.lastgroup or ""


def arrow_values(chunk: Any) -> list[Any]:
    """The values of an Arrow array, None for a missing or an undecodable one."""
    arrow = import_module("pyarrow")
    if arrow.types.is_dictionary(chunk.type):
        known = arrow_values(chunk.dictionary)
        places = chunk.indices.to_pylist()
        is_known = range(len(known))
        return [known[place] if place in is_known else None for place in places]
    return [_plain(value) for value in arrow_objects(chunk)]


def arrow_objects(chunk: Any) -> list[Any]:
    """The values of an Arrow array, with bytes for texts."""
    arrow = import_module("pyarrow")
    if arrow.types.is_string(chunk.type):
        chunk = chunk.cast(arrow.binary())  # not validated
    elif arrow.types.is_large_string(chunk.type):
        chunk = chunk.cast(arrow.large_binary())
    values: list[Any] = chunk.to_pylist()
    return values


def _plain(value: Any) -> Any:
    """A value that Python has as well; None for bytes that are no text."""
    if isinstance(value, np.floating):  # of float16, in older versions of pyarrow
        return float(value)
    try:
        if isinstance(value, bytes):
            return value.decode("utf-8")
        return value
    except UnicodeDecodeError:
        return None


def arrow_column(column: Any) -> Raw:
    """The values of an Arrow array.

    They are numbers without gaps, dates, days, or values with None for a gap.
    """
    kind = type_of(column.type)
    if kind == "date":
        return moments(column)
    is_duration = import_module("pyarrow").types.is_duration(column.type)
    if is_duration or (kind == "plain" and not column.null_count):
        numbers: Array = column.to_numpy(zero_copy_only=False)
        return numbers
    return arrow_values(column)


_MICROSECONDS = {"D": 86_400_000_000, "s": 10**6, "ms": 1000}


def moments(chunk: Any) -> Array:
    """Dates and times of an Arrow array in UTC, as datetime64[us].

    Those that are missing, or beyond what that type holds, are NaT.
    """
    values: Array = chunk.to_numpy(zero_copy_only=False).copy()
    unit, _ = np.datetime_data(values.dtype)
    most = (2**63 - 1) // _MICROSECONDS.get(unit, 1)
    ticks = values.astype(np.int64)
    values[(ticks > most) | (ticks < -most)] = "NaT"
    return values.astype("datetime64[us]")


class ParquetColumns(Source):
    """A Parquet file: nulls are gaps, and dates with a time zone are in UTC."""

    key_names: Features  # the names in the file

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        with opened_parquet(path) as file:
            schema = file.schema_arrow
            self._n_promised = file.metadata.num_rows
            self.columns = tuple(parquet_columns(schema))
        types = [type_of(schema.field(name).type) for name in self.columns]
        self.kinds = [_KINDS.get(kind, kind) for kind in types]
        # One value in an empty column gives it a type: columns that are not read stand
        # in the keys as empty ones do.
        self.keys = range(len(self.columns))
        self.key_names = self.columns
        self._read = {index for index, kind in enumerate(types) if kind}
        self._ids: int | None = None
        self._n_gaps: dict[int, int] = {}  # of columns, in the part that was read last

    def layout(self, reading: Reading) -> FileColumns:
        """The columns by their use. Ids are read whatever their type."""
        layout = super().layout(reading)
        self._ids = layout.group
        return layout

    def parts(
        self, n_rows: int, wanted: Collection[int] | None = None
    ) -> Iterator[Part]:
        """The rows. Nothing is asked of pyarrow about columns that are not read."""
        read = [
            name
            for index, name in enumerate(self.key_names)
            if index in self._read | {self._ids} and (wanted is None or index in wanted)
        ]
        n_rows_read = 0
        with opened_parquet(self._path) as file:
            for batch in _batches(file, columns=read, batch_size=n_rows):
                n_rows_read += batch.num_rows
                yield Part(batch.num_rows, partial(self._cells, batch, {*read}))
        if n_rows_read != self._n_promised:  # a damaged file
            raise DataError(self.name, "as many rows as the file says", "more or fewer")

    def _cells(self, batch: Any, read: set[str], part: slice) -> list[Any]:
        start, stop, _ = part.indices(batch.num_rows)
        cells: list[Any] = [[None] * (stop - start)] * len(self.columns)
        for index, name in enumerate(self.key_names):
            if name in read:
                column = batch.column(name).slice(start, stop - start)
                if index == self._ids and self.kinds[index] in ("", "category"):
                    with decoding(self._path):
                        cells[index] = arrow_objects(column)
                else:
                    cells[index] = arrow_column(column)
                self._n_gaps[index] = column.null_count
        return cells

    def raw(self, index: int, values: Any) -> Raw:
        """Numbers, durations in days, dates, or texts with None for a missing one."""
        is_date = getattr(values, "dtype", None) == np.dtype("M8[us]")
        if is_date and np.isnat(values).sum() > self._n_gaps[index]:
            raise DataError("dates", "times within 290,000 years of 1970", "others")
        return super().raw(index, values)

    def cells(self, indices: Sequence[int]) -> Iterator[Sequence[Any]]:
        """The values of some columns, row by row, in the types of the file."""
        with opened_parquet(self._path) as file:
            for batch in _batches(file):
                columns = [batch.column(self.key_names[index]) for index in indices]
                yield from zip(*map(arrow_values, columns), strict=True)
