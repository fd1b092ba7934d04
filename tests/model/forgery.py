"""Model files with other contents than they were written with."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn.model import model_file

Change = Callable[[dict[str, Any], dict[str, Any]], object]
"""A change of the fields of the header and of the arrays."""


def rewrite(path: Path, change: Change, seal: bool = True) -> None:
    """Rewrite a file with changed header and arrays, and a digest that fits if it is sealed."""
    with np.load(path) as file:
        arrays = dict(file)
    fields = json.loads(arrays.pop("header").tobytes())
    digest = arrays.pop("digest")
    change(fields, arrays)
    parts = {"header": np.frombuffer(json.dumps(fields).encode(), np.uint8), **arrays}
    parts["digest"] = model_file.digest_of(*parts.values()) if seal else digest
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in parts.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)


def put(name: str, change: Callable[[Any], Any]) -> Change:
    """Change one array, or add it."""
    return lambda _, arrays: arrays.update({name: change(arrays.get(name, np.zeros(1, np.int8)))})
