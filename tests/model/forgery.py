"""Model files with other contents than they were written with."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn.model import model_file

Change = Callable[[dict[str, Any], dict[str, Any]], object]
"""A change of the fields of the header and of the arrays; bytes that it returns are the
header."""


def rewrite(
    path: Path,
    change: Change,
    seal: bool = True,
    compression: int = zipfile.ZIP_DEFLATED,
) -> None:
    """Rewrite a file with changed header and arrays; sealed, its digest fits."""
    with np.load(path) as file:
        arrays = dict(file)
    fields = json.loads(arrays.pop("header").tobytes())
    digest = arrays.pop("digest")
    header = change(fields, arrays)
    if isinstance(header, bytes):
        text = header
    else:
        text = json.dumps(fields).encode()
    parts = {"header": np.frombuffer(text, np.uint8), **arrays}
    if seal:
        digest = model_file.digest_of(*parts.values())
    parts["digest"] = digest
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in parts.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)


def put(name: str, change: Callable[[Any], Any]) -> Change:
    """Change one array, or add it."""
    return lambda _, arrays: arrays.update(
        {name: change(arrays.get(name, np.zeros(1, np.int8)))}
    )


def set_to(*keys: Any, value: Any) -> Change:
    """Give an entry of the header another value."""

    def change(fields: Any, _: Any) -> None:
        for key in keys[:-1]:
            fields = fields[key]
        fields[keys[-1]] = value

    change.__name__ = f"{keys[-1]}={value!r:.30}"  # which names the row of a table
    return change


def wrong_arrays(name: str, field: str, largest: int) -> dict[str, tuple[Change, str]]:
    """Wrong forms of a matrix of int32 up to a magnitude, and the fields of the errors."""
    of_shape = {
        "transposed": lambda array: np.ascontiguousarray(array.T),
        "flat": np.ravel,
        "a row less": lambda array: array[1:],
        "too large": lambda array: np.full(array.shape, largest + 1, np.int32),
        "too small": lambda array: np.full(array.shape, -(2**31), np.int32),
    }
    of_type = {
        "in another order": np.asfortranarray,
        "many rows more": lambda array: np.tile(array.astype(np.int32), (2, 1)),
        "unsigned": lambda array: np.abs(array).astype(np.uint8),
        "floats": lambda array: array.astype(np.float32),
        "wide": lambda array: array.astype(np.int64),
        "of the other end": lambda array: array.astype(">i4"),
        "objects": lambda array: array.astype(object),
    }
    wrong = {kind: (put(name, change), field) for kind, change in of_shape.items()}
    return wrong | {kind: (put(name, change), name) for kind, change in of_type.items()}
