"""NPZ files: plain arrays, no pickles, and no more memory than the file can fill."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flwr_flynn._files import npz_array
from flwr_flynn.app.data.held_out import row_keys
from flwr_flynn.app.data.table_file import Wanted, ignored, ordered
from flwr_flynn.errors import DataError, with_names, with_rows
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import as_name

Array = npt.NDArray[Any]
Features = tuple[str, ...]


class Arrays(NamedTuple):
    """Arrays of a file; `names` are those of the file's columns or None, in the order of the features asked for.

    `all_columns` is the array as it stands in the file.
    """

    X: Array
    y: Array | None
    groups: Array | None
    names: Features | None
    left_out: Features
    all_columns: Array
    all_names: Features | None


def read_npz(
    path: Path,
    label: str | None,
    group: str = "",
    features: Wanted = (),
    *,
    all_names: bool = False,
    ignore: Sequence[str] = (),
) -> Arrays:
    """Arrays ``X`` (n, d) and ``y`` (n,), and optionally ``feature_names`` (d,); no labels where `label` is None.

    With `all_names`, names of the columns that are none are an error.
    """
    with _opened_npz(path, ["X", *([label] if label else []), *([group] if group else [])]) as (has_names, array):
        X, y, groups = array("X"), array(label) if label else None, array(group) if group else None
        names = array("feature_names") if has_names else None
    if groups is not None and groups.shape != X.shape[:1]:
        error = DataError(f"{path.name} {group}", "a value for each row", "more or fewer")
        raise with_rows(error, f"{groups.shape} for {X.shape[:1]}")
    whole, all_of = X, _named(names, X)
    if ignore:
        if all_of is None:
            raise DataError(path.name, "an array 'feature_names', which names the columns to ignore", "none")
        unused = {*ignored(all_of, ignore, path.name)}
        rest = [index for index in range(len(all_of)) if index not in unused]
        X, names = X[:, rest], np.array([all_of[index] for index in rest], np.str_)
    if features and X.ndim == 2:
        order, found, left_out = _npz_order(path, X.shape[1], names, features)
        return Arrays(X[:, order], y, groups, found, left_out, whole, all_of)
    are_names = _named(names, X) is not None
    if all_names and names is not None and not are_names and X.ndim == 2:
        raise _no_names(path, names, X.shape[1])
    return Arrays(X, y, groups, _named(names, X), (), whole, all_of)


def _named(names: Array | None, X: Array) -> Features | None:
    """Names of the columns; None for an array that has none."""
    is_one = names is not None and names.dtype.kind == "U" and names.shape == X.shape[1:]
    return tuple(map(as_name, names.tolist())) if is_one and names is not None else None


def array_keys(arrays: Arrays, rows: slice = slice(None)) -> list[bytes]:
    """Keys of rows for the held-out rule, see `held_out`."""
    columns = [column[rows] for column in arrays.all_columns.T] if arrays.all_columns.ndim == 2 else []
    columns += [] if arrays.y is None else [arrays.y[rows]]
    names = None if arrays.all_names is None else [*arrays.all_names, "\0"]  # the labels first
    return row_keys(columns, None if arrays.groups is None else arrays.groups[rows], names)


def npz_names(path: Path) -> Features | None:
    """The names of the columns in a file, None where it has none."""
    with _opened_npz(path, ["X"]) as (has_names, array):
        names = array("feature_names") if has_names else None
    return (
        tuple(map(as_name, names.tolist()))
        if names is not None and names.dtype.kind == "U" and names.ndim == 1
        else None
    )


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


def _no_names(path: Path, names: Array, n_columns: int) -> DataError:
    got = f"type {names.dtype.kind!r} of shape {names.shape}"
    return DataError(path.name, f"'feature_names' to be {n_columns} strings", got)


def _npz_order(
    path: Path, n_columns: int, names: Array | None, features: Wanted
) -> tuple[list[int], Features, Features]:
    """Indices and names of the features among the columns of ``X``, and the names of the other columns.

    Without names in the file, its columns are taken for features that are given by name, but for no schema's.
    """
    if names is None:
        if isinstance(features, Schema) or n_columns != len(features):
            n = len(features.columns if isinstance(features, Schema) else features)
            expected = f"an array 'feature_names', for the run's {n} features"
            raise DataError(path.name, expected, f"{n_columns} columns without names")
        return list(range(n_columns)), tuple(features), ()
    if names.dtype.kind != "U" or names.shape != (n_columns,):
        raise _no_names(path, names, n_columns)
    columns = [*map(as_name, names.tolist())]
    if n_same := len(columns) - len({*columns}):
        raise DataError(path.name, "columns of different names", f"{n_same} that stand more than once")
    return ordered(columns, features, path.name)
