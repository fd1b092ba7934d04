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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._files import npy_header, npz_array
from flwr_flynn.errors import DataError, with_names


def read_arrays(
    path: Path, wanted: Mapping[str, str], optional: Mapping[str, str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of a file by their role.

    Parameters
    ----------
    path : Path
    wanted : mapping of role to name in the file
    optional : mapping of role to name in the file, optional
        Likewise; arrays that the file does not have are left out.

    Raises
    ------
    DataError
        The file is no .npz file, or an array is not there, holds pickled objects or has a header that promises more
        than the file holds. The message has no folder, and names of other arrays are a note of the error.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for role, key in wanted.items():
                if key not in members:
                    error = DataError(f"{path.name}: no array {key!r} for the {role} among {len(members)}")
                    raise with_names(error, members)
                arrays[role] = _member(archive, members[key], path)
            for role, key in (optional or {}).items():
                if key in members:
                    arrays[role] = _member(archive, members[key], path)
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile, its decompressors and NumPy's parser raise a dozen kinds
        raise DataError(f"{path.name}: not a readable .npz file of plain arrays ({type(error).__name__})") from None
    return arrays


def read_head(
    path: Path, wanted: Mapping[str, str], names: str | None
) -> tuple[tuple[int, ...], npt.NDArray[Any] | None]:
    """The shape of the first array wanted, from its header, and the array of names, if it is there.

    Parameters
    ----------
    path, wanted
        As for `read_arrays`.
    names : str or None
        Name of the array of names, of as many entries as there are columns.

    Raises
    ------
    DataError
        As `read_arrays`, as far as the headers tell.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for role, key in wanted.items():
                if key not in members:
                    error = DataError(f"{path.name}: no array {key!r} for the {role} among {len(members)}")
                    raise with_names(error, members)
            member = members[next(iter(wanted.values()))]
            with archive.open(member) as stream:
                shape = npy_header(stream, f"{path.name}: not a readable array {member[:80]!r}", DataError).shape
            found = _member(archive, members[names], path) if names in members else None
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile and its decompressors raise a dozen kinds
        raise DataError(f"{path.name}: not a readable .npz file of plain arrays ({type(error).__name__})") from None
    return shape, found


def _member(archive: zipfile.ZipFile, member: str, path: Path) -> npt.NDArray[Any]:
    what = f"{path.name}: not a readable array {member[:80]!r}"
    array = npz_array(archive, member, what, DataError)
    # NumPy takes any 32 bits for a character, and Python then fails to make a string of them.
    if array.dtype.kind == "U" and array.size:
        characters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(characters.max()) > sys.maxunicode:
            raise DataError(f"{what}: texts with characters beyond Unicode")
    return array
