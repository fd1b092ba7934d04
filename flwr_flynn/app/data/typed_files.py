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
import numpy.typing as npt

from flwr_flynn._files import npz_array
from flwr_flynn.app.data.source import (
    Array,
    Features,
    Layout,
    Part,
    Reading,
    Source,
    decoding,
    objects,
)
from flwr_flynn.errors import ConfigError, DataError, with_names, with_rows
from flwr_flynn.hashing.batching import batches
from flwr_flynn.tables.raw_column import Raw
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.texts import as_name

# ---- NPZ


class ArrayColumns(Source):
    """Columns in memory, with labels and ids behind them: of an NPZ file, or from
    elsewhere.
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[Array],
        y: Any,
        groups: Any,
        names: Features | None,
    ) -> None:
        self.name = name
        self.columns = names or ()
        self._n = len(columns)
        self._all = [*columns, y, groups]
        kinds = {"M": "date", "U": "category", "O": "category"}
        self.kinds = [kinds.get(column.dtype.kind, "number") for column in columns]
        self.keys = range(self._n + (y is not None))
        # Labels come first in the order of the names.
        self.key_names = None
        if names is not None:
            self.key_names = [*names, *["\0"] * (y is not None)]

    def layout(self, reading: Reading) -> Layout:
        """The columns by their use; without names they are taken for features that are
        given by name.
        """
        n = self._n
        features = reading.features
        label, group = (
            None if self._all[index] is None else index for index in (n, n + 1)
        )
        if self.columns:
            # Ids among X are no feature either.
            names = {*map(as_name, self.columns)} & {as_name(reading.group)} - {""}
            rest = replace(
                reading, label=None, group="", ignore=(*reading.ignore, *names)
            )
            found = rest.layout(self.name, self.columns)
            return found._replace(label=label, group=group)
        if reading.ignore:
            raise DataError(
                self.name,
                "an array 'feature_names', which names the columns to ignore",
                "none",
            )
        if features and (isinstance(features, Schema) or n != len(features)):
            wanted = len(features.columns if isinstance(features, Schema) else features)
            raise DataError(
                self.name,
                f"an array 'feature_names', for {wanted} features",
                f"{n} without names",
            )
        by_position = tuple(map(as_name, features))  # type: ignore[arg-type]
        return Layout(label, group, [*range(n)], by_position, ())

    def parts(
        self, n_rows: int, wanted: Collection[int] | None = None
    ) -> Iterator[Part]:
        """The rows."""
        for rows in batches(len(self._all[0]), n_rows):
            yield Part(rows.stop - rows.start, partial(self._cells, rows))

    def _cells(self, rows: slice, part: slice) -> list[Any]:
        return [None if column is None else column[rows][part] for column in self._all]

    def raw(self, index: int, values: Array) -> Raw:
        """Numbers, dates or texts."""
        if values.dtype.kind in "biuf":
            return values
        try:
            if values.dtype.kind == "O":
                column = values
            else:
                column = Table.of(values[:, None]).columns[0]
        except DataError:
            raise DataError(
                self.name, "numbers, texts or dates", f"an array of type {values.dtype}"
            ) from None
        if column.dtype.kind == "O":
            texts: Raw = column.tolist()
            return texts
        return column

    def labels(self, values: Array) -> Array:
        """Labels or ids as they are."""
        return values


def read_npz(path: Path, label: str | None, group: str = "") -> ArrayColumns:
    """Arrays ``X`` (n, d) and ``y`` (n,), and optionally ``feature_names`` (d,); no
    labels where `label` is None.
    """
    arrays: dict[str, Array] = {}
    with decoding(path), zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        for key in filter(
            None,
            ("X", label, group, "feature_names" if "feature_names" in members else ""),
        ):
            if key not in members:
                raise with_names(
                    DataError(path.name, f"an array {key!r}", f"{len(members)} others"),
                    members,
                )
            arrays[key] = _array(
                archive,
                members[key],
                f"{path.name}: not a readable array {members[key][:80]!r}",
            )
    X, y, groups, names = (
        arrays.get(key or "") for key in ("X", label, group, "feature_names")
    )
    n_dims = [array.ndim for array in (X, y) if array is not None]
    if n_dims not in ([2], [2, 1]):
        got = f"arrays of {' and '.join(map(str, n_dims))} dimension(s)"
        raise DataError(path.name, "a matrix of numbers with a label for each row", got)
    n, width = X.shape  # type: ignore[union-attr]
    if y is not None and len(y) != n:
        raise DataError(
            path.name, "a label for each row", "arrays of different lengths"
        )
    if width == 0:
        raise DataError(path.name, "at least one feature", "none")
    if groups is not None and groups.shape != (n,):
        error = DataError(
            f"{path.name} {group}", "a value for each row", "more or fewer"
        )
        raise with_rows(error, f"{groups.shape} for {n}")
    if names is not None and (names.dtype.kind != "U" or names.shape != (width,)):
        got = f"type {names.dtype.kind!r} of shape {names.shape}"
        raise DataError(path.name, f"'feature_names' to be {width} strings", got)
    columns = [*X.T]  # type: ignore[union-attr]
    named = None
    if names is not None:
        named = tuple(map(as_name, names.tolist()))
    return ArrayColumns(path.name, columns, y, groups, named)


def _array(archive: zipfile.ZipFile, member: str, what: str) -> Array:
    """An array; refused if it has 32-bit values that are no characters, of which Python
    makes no string.
    """
    array = npz_array(archive, member, what, DataError)
    if array.dtype.kind == "U" and array.size:
        characters = np.ascontiguousarray(array).view(
            np.dtype("u4").newbyteorder(array.dtype.byteorder)
        )
        if int(characters.max()) > sys.maxunicode:
            raise DataError(what, "texts of Unicode characters", "characters beyond")
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


def parquet_columns(schema: Any) -> list[str]:
    """Names of the columns of an Arrow schema, without the row labels of pandas, which
    a note in the file names.
    """
    noted = json.loads((schema.metadata or {}).get(b"pandas", b'{"index_columns": []}'))
    row_labels = [name for name in noted["index_columns"] if isinstance(name, str)]
    named = [str(name) for name in schema.names if name not in row_labels]
    # of columns without names none can be read
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
    """The group of an Arrow type, of a dictionary "levels"; "" for one that is not
    read.
    """
    if import_module("pyarrow").types.is_dictionary(arrow_type):
        if type_of(arrow_type.value_type) in ("plain", "decimal", "text"):
            return "levels"
        return ""
    found = _TYPES.fullmatch(str(arrow_type))
    if found:
        return found.lastgroup or ""
    return ""


def arrow_values(chunk: Any) -> list[Any]:
    """The values of an Arrow array, None for a value that is missing or cannot be
    decoded.
    """
    arrow = import_module("pyarrow")
    if arrow.types.is_dictionary(chunk.type):
        known = arrow_values(chunk.dictionary)
        places = chunk.indices.to_pylist()
        return [
            None if place is None or not 0 <= place < len(known) else known[place]
            for place in places
        ]
    if arrow.types.is_string(chunk.type):
        chunk = chunk.cast(arrow.binary())  # not validated
    elif arrow.types.is_large_string(chunk.type):
        chunk = chunk.cast(arrow.large_binary())
    return [_plain(value) for value in chunk.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, np.floating):  # of float16, in older versions of pyarrow
        return float(value)
    try:
        if isinstance(value, bytes):
            return value.decode("utf-8")
        return value
    except UnicodeDecodeError:
        return None


def arrow_column(column: Any) -> npt.NDArray[Any] | list[Any]:
    """The values of an Arrow array: numbers without gaps, dates, days, or values with
    None for a gap.
    """
    kind = type_of(column.type)
    if kind == "date":
        return moments(column)
    if import_module("pyarrow").types.is_duration(column.type):
        return Table.of(column.to_numpy(zero_copy_only=False)[:, None]).columns[0]
    if kind == "plain" and not column.null_count:
        numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return numbers
    return arrow_values(column)


_MICROSECONDS = {"D": 86_400_000_000, "s": 10**6, "ms": 1000, "us": 1}


def moments(chunk: Any) -> npt.NDArray[Any]:
    """Dates and times of an Arrow array in UTC, datetime64[us]; NaT for those missing
    or beyond what that holds.
    """
    arrow = import_module("pyarrow")
    kind = chunk.type
    integers = chunk.fill_null(0)
    if arrow.types.is_date32(kind):
        integers = integers.cast(arrow.int32())
    ticks = integers.cast(arrow.int64()).to_numpy(zero_copy_only=False)
    if arrow.types.is_timestamp(kind):
        unit = kind.unit
    elif arrow.types.is_date64(kind):
        unit = "ms"
    else:
        unit = "D"
    if unit == "ns":
        unit = "us"
        ticks = ticks // 1000
    largest = (2**63 - 1) // _MICROSECONDS[unit]
    is_gap = (
        chunk.is_null().to_numpy(zero_copy_only=False)
        | (ticks > largest)
        | (ticks < -largest)
    )
    found = np.where(is_gap, 0, ticks) * _MICROSECONDS[unit]
    return np.where(is_gap, np.datetime64("NaT"), found.astype("datetime64[us]"))


class ParquetColumns(Source):
    """A Parquet file: nulls are gaps, and dates with a time zone are in UTC."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        with opened_parquet(path) as file:
            schema = file.schema_arrow
            self._n_promised = file.metadata.num_rows
            self.columns = tuple(parquet_columns(schema))
        types = [type_of(schema.field(name).type) for name in self.columns]
        self.kinds = [_KINDS.get(kind, kind) for kind in types]
        self.keys = [index for index, kind in enumerate(types) if kind]
        self._ids = [
            i
            for i in self.keys
            if "binary" not in str(schema.field(self.columns[i]).type)
        ]
        self.key_names = [self.columns[index] for index in self.keys]
        # of the columns in the part that was read last
        self._n_gaps: dict[int, int] = {}

    def layout(self, reading: Reading) -> Layout:
        """The columns by their use; ids of a type that is not read, or not as texts,
        would be missing.
        """
        found = super().layout(reading)
        if found.group not in (None, *self._ids):
            raise with_names(
                DataError(self.name, "ids that are numbers, texts or dates", "others"),
                [reading.group],
            )
        return found

    def parts(
        self, n_rows: int, wanted: Collection[int] | None = None
    ) -> Iterator[Part]:
        """The rows. Nothing is asked of pyarrow about columns that are not read."""
        read = [
            self.columns[index]
            for index in self.keys
            if wanted is None or index in wanted
        ]
        n_found = 0
        with opened_parquet(self._path) as file:
            for batch in file.iter_batches(
                batch_size=n_rows, columns=read, use_pandas_metadata=False
            ):
                n_found += batch.num_rows
                yield Part(batch.num_rows, partial(self._cells, batch, {*read}))
        if n_found != self._n_promised:  # a damaged file
            raise DataError(self.name, "as many rows as the file says", "more or fewer")

    def _cells(self, batch: Any, read: set[str], part: slice) -> list[Any]:
        start, stop, _ = part.indices(batch.num_rows)
        values: list[Any] = [[None] * (stop - start)] * len(self.columns)
        for index in [index for index, name in enumerate(self.columns) if name in read]:
            column = batch.column(self.columns[index]).slice(start, stop - start)
            values[index], self._n_gaps[index] = arrow_column(column), column.null_count
        return values

    def raw(self, index: int, values: Any) -> Raw:
        """Numbers, durations in days, dates, or texts with None for a missing one."""
        if isinstance(values, np.ndarray):
            if (
                values.dtype.kind == "M"
                and np.isnat(values).sum() > self._n_gaps[index]
            ):
                raise DataError("dates", "times within 290,000 years of 1970", "others")
            return values
        if self.kinds[index] in ("category", "levels"):
            return [None if value is None else str(value) for value in values]
        return np.array([np.nan if value is None else float(value) for value in values])

    def labels(self, values: Any) -> Array:
        """Labels as they stand, None for those that are missing or cannot be decoded."""
        if isinstance(values, np.ndarray) and values.dtype.kind != "M":
            return values
        return objects(values if isinstance(values, list) else [None] * len(values))

    def cells(self, indices: Sequence[int]) -> Iterator[Sequence[Any]]:
        """The values of some columns, row by row, in the types of the file."""
        with opened_parquet(self._path) as file:
            for batch in file.iter_batches(use_pandas_metadata=False):
                yield from zip(
                    *(
                        arrow_values(batch.column(self.columns[index]))
                        for index in indices
                    ),
                    strict=True,
                )
