"""NPZ files: plain arrays, no pickles, and no more memory than the file can fill."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flwr_flynn._files import npz_array
from flwr_flynn.app.data.table_file import Block, Layout, Reading, TableFile
from flwr_flynn.errors import DataError, with_names, with_rows
from flwr_flynn.tables.raw_column import Raw
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.texts import as_name

Array = npt.NDArray[Any]
Features = tuple[str, ...]


class Arrays(NamedTuple):
    """Arrays of a file; `names` are those of the columns of `X`, None without."""

    X: Array
    y: Array | None
    groups: Array | None
    names: Features | None

    def layout(self, name: str, reading: Reading) -> Layout:
        """The layout of the columns of `X`; without names they are taken for features that are given by name."""
        n, features = self.X.shape[1], reading.features
        if self.names is not None:
            return replace(reading, label=None, group="").layout(name, self.names)
        if reading.ignore:
            raise DataError(name, "an array 'feature_names', which names the columns to ignore", "none")
        if features and (isinstance(features, Schema) or n != len(features)):
            wanted = len(features.columns if isinstance(features, Schema) else features)
            raise DataError(name, f"an array 'feature_names', for the run's {wanted} features", f"{n} without names")
        return Layout(None, None, [*range(n)], tuple(map(as_name, features)), ())  # type: ignore[arg-type]

    def cells(self, rows: slice = slice(None)) -> tuple[list[Array], list[str] | None]:
        """The columns of some rows and their names, with the labels, which come first in the order of the names."""
        columns = [*self.X[rows].T, *([] if self.y is None else [self.y[rows]])]
        return columns, None if self.names is None else [*self.names, *["\0"] * (self.y is not None)]


class ArrayFile(TableFile):
    """Arrays in memory, from an NPZ file or elsewhere."""

    def __init__(self, name: str, arrays: Arrays, reading: Reading) -> None:
        super().__init__(name, reading)
        layout = arrays.layout(name, reading)
        self._arrays, self.names, self.left_out = arrays, layout.names, layout.left_out
        self.is_named = bool(layout.names)
        self.columns = self.key_names = tuple(arrays.cells(slice(0))[1] or ())
        self._values = [_raw(name, arrays.X[:, index]) for index in layout.order]
        kinds = {"f": "number", "M": "date"}
        self.look(["category" if isinstance(v, list) else kinds.get(v.dtype.kind, "number") for v in self._values])

    def blocks(self, with_cells: bool = False) -> Iterator[Block]:
        """The rows, all at once."""
        cells = self._arrays.cells()[0] if with_cells else ()
        yield Block(self._values, self._arrays.y, self._arrays.groups, cells)


def _raw(name: str, values: Array) -> Raw:
    """A column as numbers, dates or texts."""
    if values.dtype.kind in "biuf":
        return values
    try:
        column = Table.of(values[:, None]).columns[0]
    except DataError:
        raise DataError(name, "numbers, texts or dates", f"an array of type {values.dtype}") from None
    return column.tolist() if column.dtype.kind == "O" else column


def read_npz(path: Path, label: str | None, group: str = "") -> Arrays:
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
    return Arrays(X, y, groups, None if names is None else tuple(map(as_name, names.tolist())))


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
