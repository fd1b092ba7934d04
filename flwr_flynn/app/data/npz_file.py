"""Plain arrays of an untrusted .npz file: no pickles, and no more memory than the file can fill.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder, "mine.npz")
...     np.savez(path, X=np.eye(2), y=[0, 1])
...     sorted(read_arrays(path, {"samples": "X", "label": "y"}, {"names": "feature_names"}))
['label', 'samples']
"""

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
            for role, key in wanted.items():
                if key not in members:
                    text = f"{path.name}: no array {key!r} for the {role} among {len(members)}"
                    error = DataError(path.name, f"an array {key!r}", f"{len(members)} others", text=text)
                    raise with_names(error, map(str, members))
            yield archive, members
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile, its decompressors and NumPy's parser raise a dozen kinds
        text = f"{path.name}: not a readable .npz file of plain arrays ({type(error).__name__})"
        raise DataError(path.name, "a readable .npz file", type(error).__name__, text=text) from None


def _member(archive: zipfile.ZipFile, member: str, path: Path) -> npt.NDArray[Any]:
    what = f"{path.name}: not a readable array {member[:80]!r}"
    array = npz_array(archive, member, what, DataError)
    # NumPy takes any 32 bits for a character, and Python then fails to make a string of them.
    if array.dtype.kind == "U" and array.size:
        characters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(characters.max()) > sys.maxunicode:
            text = f"{what}: texts with characters beyond Unicode"
            raise DataError(what, "texts of Unicode characters", "characters beyond", text=text)
    return array
