"""NPZ files: plain arrays, no pickles, and no more memory than the file can fill."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn._files import npz_array
from flwr_flynn.app.data.source import Array, Features, Layout, Part, Reading, Source
from flwr_flynn.errors import DataError, with_names, with_rows
from flwr_flynn.hashing.batching import batches
from flwr_flynn.tables.raw_column import Raw
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.texts import as_name


class ArrayColumns(Source):
    """Columns in memory, with labels and ids behind them: of an NPZ file, or from elsewhere."""

    def __init__(
        self, name: str, columns: Sequence[Array], y: Array | None, groups: Array | None, names: Features | None
    ) -> None:
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
            raise DataError(
                self.name, f"an array 'feature_names', for the run's {wanted} features", f"{n} without names"
            )
        return Layout(label, group, [*range(n)], tuple(map(as_name, features)), ())  # type: ignore[arg-type]

    def parts(self, n_rows: int, wanted: Collection[int] | None = None) -> Iterator[Part]:
        """The rows."""
        for rows in batches(len(self._all[0]), n_rows):  # type: ignore[arg-type]
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
    with _opened_npz(path, ["X", *([label] if label else []), *([group] if group else [])]) as (has_names, array):
        X, y, groups = array("X"), array(label) if label else None, array(group) if group else None
        names = array("feature_names") if has_names else None
    if groups is not None and groups.shape != X.shape[:1]:
        error = DataError(f"{path.name} {group}", "a value for each row", "more or fewer")
        raise with_rows(error, f"{groups.shape} for {X.shape[:1]}")
    _check_shapes(path.name, X, np.zeros(len(X)) if y is None and X.ndim else y)  # type: ignore[arg-type]
    if names is not None and (names.dtype.kind != "U" or names.shape != X.shape[1:]):
        got = f"type {names.dtype.kind!r} of shape {names.shape}"
        raise DataError(path.name, f"'feature_names' to be {X.shape[1]} strings", got)
    return ArrayColumns(path.name, [*X.T], y, groups, None if names is None else tuple(map(as_name, names.tolist())))


@contextmanager
def _opened_npz(path: Path, wanted: Sequence[str]) -> Iterator[tuple[bool, Callable[[str], Array]]]:
    """True if an .npz file has names of features, and a reader of an array by name.

    The arrays wanted must be there. Every failure in the block is a DataError without a folder.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for key in wanted:
                if key not in members:
                    raise with_names(DataError(path.name, f"an array {key!r}", f"{len(members)} others"), members)

            def described(key: str) -> str:
                return f"{path.name}: not a readable array {members[key][:80]!r}"

            def array(key: str) -> Array:
                return _characters_checked(npz_array(archive, members[key], described(key), DataError), described(key))

            yield "feature_names" in members, array
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile, its decompressors and NumPy's parser raise a dozen kinds
        raise DataError(path.name, f"a readable {path.suffix.lower()} file", type(error).__name__) from None


def _characters_checked(array: Array, what: str) -> Array:
    """The array; refused if it has 32-bit values that are no characters, of which Python makes no string."""
    if array.dtype.kind == "U" and array.size:
        characters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(characters.max()) > sys.maxunicode:
            raise DataError(what, "texts of Unicode characters", "characters beyond")
    return array


def _check_shapes(name: str, X: Array, y: Array) -> None:
    """Refuse arrays that are not samples with a label each."""
    if X.ndim != 2 or y.ndim != 1:
        got = f"arrays of {X.ndim} and {y.ndim} dimension(s)"
        raise DataError(name, "a matrix of numbers with a label for each row", got)
    if len(X) != len(y):
        raise DataError(name, "a label for each row", "arrays of different lengths")
    if X.shape[1] == 0:
        raise DataError(name, "at least one feature", "none")
