"""NPZ files: plain arrays, no pickles, and no more memory than the file can fill."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn._files import npz_array
from flwr_flynn.app.data.source import Array, Features, Layout, Part, Reading, Source, decoding
from flwr_flynn.errors import DataError, with_names, with_rows
from flwr_flynn.hashing.batching import batches
from flwr_flynn.tables.raw_column import Raw
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.texts import as_name


class ArrayColumns(Source):
    """Columns in memory, with labels and ids behind them: of an NPZ file, or from elsewhere."""

    def __init__(self, name: str, columns: Sequence[Array], y: Any, groups: Any, names: Features | None) -> None:
        self.name, self.columns, self._n = name, names or (), len(columns)
        self._all = [*columns, y, groups]
        kinds = {"M": "date", "U": "category", "O": "category"}
        self.kinds = [kinds.get(column.dtype.kind, "number") for column in columns]
        self.keys = range(self._n + (y is not None))
        # Labels come first in the order of the names.
        self.key_names = None if names is None else [*names, *["\0"] * (y is not None)]

    def layout(self, reading: Reading) -> Layout:
        """The columns by their use; without names they are taken for features that are given by name."""
        n, features = self._n, reading.features
        label, group = (None if self._all[index] is None else index for index in (n, n + 1))
        if self.columns:
            found = replace(reading, label=None, group="").layout(self.name, self.columns)
            return found._replace(label=label, group=group)
        if reading.ignore:
            raise DataError(self.name, "an array 'feature_names', which names the columns to ignore", "none")
        if features and (isinstance(features, Schema) or n != len(features)):
            wanted = len(features.columns if isinstance(features, Schema) else features)
            raise DataError(self.name, f"an array 'feature_names', for {wanted} features", f"{n} without names")
        return Layout(label, group, [*range(n)], tuple(map(as_name, features)), ())  # type: ignore[arg-type]

    def parts(self, n_rows: int, wanted: Collection[int] | None = None) -> Iterator[Part]:
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
            column = values if values.dtype.kind == "O" else Table.of(values[:, None]).columns[0]
        except DataError:
            raise DataError(self.name, "numbers, texts or dates", f"an array of type {values.dtype}") from None
        return column.tolist() if column.dtype.kind == "O" else column

    def labels(self, values: Array) -> Array:
        """Labels or ids as they are."""
        return values


def read_npz(path: Path, label: str | None, group: str = "") -> ArrayColumns:
    """Arrays ``X`` (n, d) and ``y`` (n,), and optionally ``feature_names`` (d,); no labels where `label` is None."""
    arrays: dict[str, Array] = {}
    with decoding(path), zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        for key in filter(None, ("X", label, group, "feature_names" if "feature_names" in members else "")):
            if key not in members:
                raise with_names(DataError(path.name, f"an array {key!r}", f"{len(members)} others"), members)
            arrays[key] = _array(archive, members[key], f"{path.name}: not a readable array {members[key][:80]!r}")
    X, y, groups, names = (arrays.get(key or "") for key in ("X", label, group, "feature_names"))
    n_dims = [array.ndim for array in (X, y) if array is not None]
    if n_dims not in ([2], [2, 1]):
        got = f"arrays of {' and '.join(map(str, n_dims))} dimension(s)"
        raise DataError(path.name, "a matrix of numbers with a label for each row", got)
    n, width = X.shape  # type: ignore[union-attr]
    if y is not None and len(y) != n:
        raise DataError(path.name, "a label for each row", "arrays of different lengths")
    if width == 0:
        raise DataError(path.name, "at least one feature", "none")
    if groups is not None and groups.shape != (n,):
        error = DataError(f"{path.name} {group}", "a value for each row", "more or fewer")
        raise with_rows(error, f"{groups.shape} for {n}")
    if names is not None and (names.dtype.kind != "U" or names.shape != (width,)):
        got = f"type {names.dtype.kind!r} of shape {names.shape}"
        raise DataError(path.name, f"'feature_names' to be {width} strings", got)
    columns, named = [*X.T], None if names is None else tuple(map(as_name, names.tolist()))  # type: ignore[union-attr]
    return ArrayColumns(path.name, columns, y, groups, named)


def _array(archive: zipfile.ZipFile, member: str, what: str) -> Array:
    """An array; refused if it has 32-bit values that are no characters, of which Python makes no string."""
    array = npz_array(archive, member, what, DataError)
    if array.dtype.kind == "U" and array.size:
        characters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(characters.max()) > sys.maxunicode:
            raise DataError(what, "texts of Unicode characters", "characters beyond")
    return array
