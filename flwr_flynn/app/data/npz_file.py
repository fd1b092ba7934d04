"""Plain arrays of an untrusted .npz file: no pickles, and no more memory than the file can fill."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._files import npy_header, npz_array
from flwr_flynn.errors import DataError, with_names


def read_arrays(
    path: Path, wanted: Mapping[str, str], optional: Mapping[str, str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Arrays of a file by their role; optional ones that the file does not have are left out."""
    with _opened(path, wanted) as (archive, members):
        there = {role: key for role, key in (optional or {}).items() if key in members}
        return {role: _member(archive, members[key], path) for role, key in [*wanted.items(), *there.items()]}


def read_head(
    path: Path, wanted: Mapping[str, str], names: str | None
) -> tuple[tuple[int, ...], npt.NDArray[Any] | None]:
    """The shape of the first array wanted, from its header, and the array of names, if it is there."""
    with _opened(path, wanted) as (archive, members):
        member = members[next(iter(wanted.values()))]
        with archive.open(member) as stream:
            shape = npy_header(stream, f"{path.name}: not a readable array {member[:80]!r}", DataError).shape
        return shape, _member(archive, members[names], path) if names in members else None


@contextmanager
def _opened(path: Path, wanted: Mapping[str, str]) -> Iterator[tuple[zipfile.ZipFile, dict[str | None, str]]]:
    """The archive and its members by name, those wanted among them. Every failure is a DataError without a folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            members: dict[str | None, str] = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for key in wanted.values():
                if key not in members:
                    error = DataError(path.name, f"an array {key!r}", f"{len(members)} others")
                    raise with_names(error, map(str, members))
            yield archive, members
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile, its decompressors and NumPy's parser raise a dozen kinds
        raise DataError(path.name, "a readable .npz file", type(error).__name__) from None


def _member(archive: zipfile.ZipFile, member: str, path: Path) -> npt.NDArray[Any]:
    what = f"{path.name}: not a readable array {member[:80]!r}"
    array = npz_array(archive, member, what, DataError)
    # NumPy takes any 32 bits for a character, and Python then fails to make a string of them.
    if array.dtype.kind == "U" and array.size:
        characters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(characters.max()) > sys.maxunicode:
            raise DataError(what, "texts of Unicode characters", "characters beyond")
    return array
