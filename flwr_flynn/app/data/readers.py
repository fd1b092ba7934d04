"""Parts that the readers of files of all kinds share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import DataError

Array = npt.NDArray[Any]

ENDINGS = (".csv", ".parquet", ".npz")


def ending(path: Path) -> str:
    """The ending of a file's name, one of `ENDINGS` if the file can be read."""
    return path.suffix.lower()


def check_shapes(name: str, X: Array, y: Array) -> None:
    """Refuse arrays that are not samples with a label each."""
    if X.ndim != 2 or y.ndim != 1:
        got = f"arrays of {X.ndim} and {y.ndim} dimension(s)"
        raise DataError(name, "a matrix of numbers with a label for each row", got)
    if len(X) != len(y):
        raise DataError(name, "a label for each row", "arrays of different lengths")
    if X.shape[1] == 0:
        raise DataError(name, "at least one feature", "none")


def unreadable(path: Path, error: Exception) -> DataError:
    """The error about a file that no parser reads."""
    if isinstance(error, DataError):
        return error
    return DataError(path.name, f"a readable {ending(path)} file", type(error).__name__)


def objects(values: Sequence[Any] | Array) -> Array:
    """Python's values in an array: in a text type of NumPy each value would be as wide as the longest."""
    found = np.empty(len(values), object)
    found[:] = values.tolist() if isinstance(values, np.ndarray) else values
    return found
