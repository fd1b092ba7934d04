"""Types of arrays, by what their entries are; shapes stand in docstrings."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

Array = npt.NDArray[Any]
"""Of any type that NumPy has."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Matrix(Protocol):
    """Samples by features, (n, d): a dense array, or a sparse one of SciPy."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, index: Any, /) -> Any: ...
