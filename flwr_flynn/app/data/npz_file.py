"""Plain arrays out of somebody's .npz file: no pickles, and no more memory than the file can fill.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder, "points.npz")
...     np.savez(path, X=np.eye(2), y=[0, 1])
...     sorted(read_arrays(path, {"points": "X", "label": "y"}, {"names": "feature_names"}))
['label', 'points']
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import DataError, with_names


def read_arrays(
    path: Path, wanted: Mapping[str, str], optional: Mapping[str, str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of a file by what they are for.

    Parameters
    ----------
    path : Path
    wanted : mapping of role to name in the file
    optional : mapping of role to name in the file, optional
        Likewise; those that the file has not are left out.

    Raises
    ------
    DataError
        An array is not there, holds pickled objects or has a header that promises more than the file holds; or it is
        not such a file. The message has no folder, and names of other arrays are a note of the error.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for role, key in wanted.items():
                if key not in members:
                    error = DataError(f"{path.name}: no array {key!r} for the {role} among {len(members)}")
                    raise with_names(error, members)
                arrays[role] = _member(archive, members[key])
            for role, key in (optional or {}).items():
                if key in members:
                    arrays[role] = _member(archive, members[key])
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile, its decompressors and NumPy's parser raise a dozen kinds
        raise DataError(f"{path.name}: not a readable .npz file of plain arrays ({type(error).__name__})") from None
    return arrays


def _member(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """One array of an open .npz, its header checked against the bytes there before anything is allocated."""
    header = np.lib.format
    # What np.savez writes. Other methods allocate as the file pleases, and deflate makes of a byte 1032 at most.
    info = archive.getinfo(name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("compressed by another method")
    if info.file_size > 1032 * os.fstat(archive.fp.fileno()).st_size:  # type: ignore[union-attr]
        raise ValueError("a size that the file cannot hold")
    with archive.open(name) as stream:
        version = header.read_magic(stream)
        read = header.read_array_header_1_0 if version == (1, 0) else header.read_array_header_2_0
        shape, _, dtype = read(stream)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize > archive.getinfo(name).file_size:
            raise ValueError("pickled objects, or a header that promises more than the file holds")
    with archive.open(name) as stream:
        array = header.read_array(stream, allow_pickle=False)
    # NumPy takes any 32 bits for a character, and Python then fails to make a text of them.
    if array.dtype.kind == "U" and array.size and array.itemsize:
        characters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(characters.max()) > sys.maxunicode:
            raise ValueError("texts of characters that there are not")
    return array
