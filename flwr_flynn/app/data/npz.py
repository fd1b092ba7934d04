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

from flwr_flynn._files import npy_header, npz_array
from flwr_flynn.app.data.layout import by_name
from flwr_flynn.errors import DataError, with_names
from flwr_flynn.tables.table import as_name, needs_table

Array = npt.NDArray[Any]
Features = tuple[str, ...]


class Arrays(NamedTuple):
    """Arrays of a file; `names` are those of the file's columns or None, in the order of the features asked for."""

    X: Array
    y: Array | None
    groups: Array | None
    names: Features | None
    left_out: Features


def read_npz(
    path: Path, label: str | None, group: str = "", features: Features = (), *, reads_names: bool = False
) -> Arrays:
    """Arrays ``X`` (n, d) and ``y`` (n,), and optionally ``feature_names`` (d,); no labels where `label` is None.

    Names are read where features are asked for, or with `reads_names` where X is no array of numbers without gaps.
    """
    with _opened_npz(path, ["X", *([label] if label else []), *([group] if group else [])]) as (has_names, array, _):
        X, y, groups = array("X"), array(label) if label else None, array(group) if group else None
        names = array("feature_names") if has_names and (features or (reads_names and needs_table(X))) else None
    if groups is not None and groups.shape != X.shape[:1]:
        raise DataError(f"{path.name} {group}", f"an array of shape {X.shape[:1]}", groups.shape)
    if features and X.ndim == 2:
        order, left_out = _npz_order(path, X.shape[1], names, features)
        return Arrays(X[:, order], y, groups, features, left_out)
    are_names = names is not None and names.dtype.kind == "U" and names.shape == X.shape[1:]
    return Arrays(X, y, groups, tuple(map(as_name, names.tolist())) if are_names and names is not None else None, ())


def npz_names(path: Path) -> Features | None:
    """The names of the columns in a file, None where it has none."""
    with _opened_npz(path, ["X"]) as (has_names, array, _):
        names = array("feature_names") if has_names else None
    return (
        tuple(map(as_name, names.tolist()))
        if names is not None and names.dtype.kind == "U" and names.ndim == 1
        else None
    )


def npz_width(path: Path, label: str, features: Features) -> int:
    """The number of features that a file has, from the head of its array."""
    with _opened_npz(path, ["X", label]) as (has_names, array, shape_of):
        shape = shape_of("X")
        names = array("feature_names") if features and has_names else None
    if len(shape) != 2:
        raise DataError(path.name, "a matrix of numbers with a label for each row", f"{len(shape)} dimension(s)")
    return len(_npz_order(path, shape[1], names, features)[0]) if features else shape[1]


@contextmanager
def _opened_npz(
    path: Path, wanted: Sequence[str]
) -> Iterator[tuple[bool, Callable[[str], Array], Callable[[str], tuple[int, ...]]]]:
    """True if an .npz file has names of features, and readers of an array and of a shape by name.

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

            def shape_of(key: str) -> tuple[int, ...]:
                with archive.open(members[key]) as stream:
                    return npy_header(stream, described(key), DataError).shape

            yield "feature_names" in members, array, shape_of
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


def _npz_order(
    path: Path, n_columns: int, names: Array | None, features: Sequence[str]
) -> tuple[list[int], tuple[str, ...]]:
    """The indices of the features among the columns of ``X``, and the names of the other columns.

    Without names in the file, its columns are taken for the features as they stand.
    """
    if names is None:
        if n_columns != len(features):
            expected = f"the run's {len(features)} features or an array 'feature_names'"
            raise DataError(path.name, expected, f"{n_columns} columns without names")
        return list(range(n_columns)), ()
    if names.dtype.kind != "U" or names.shape != (n_columns,):
        got = f"type {names.dtype.kind!r} of shape {names.shape}"
        raise DataError(path.name, f"'feature_names' to be {n_columns} strings", got)
    return by_name([*map(as_name, names.tolist())], [*map(as_name, features)], path.name)
