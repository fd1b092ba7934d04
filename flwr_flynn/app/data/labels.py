"""Labels of a file: strings, or integers where all are integers as Python prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.readers import objects
from flwr_flynn.app.settings_parser import whole_numbers
from flwr_flynn.errors import DataError, with_rows

_WIDEST = 256  # bytes of a label in an array of NumPy
_LONGEST = 1024  # characters, as in a list of classes


def labels_of(classes: Sequence[str | int], codes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The label of every code."""
    labels = np.asarray(classes)
    # In a text type of NumPy each label is as wide as the longest.
    return (labels if labels.dtype.itemsize <= _WIDEST else objects(classes))[codes]


def coded_labels(y: npt.NDArray[Any], name: str) -> tuple[list[str | int], npt.NDArray[np.int64]]:
    """The different labels of a file in their order, and the index of each row's among them."""
    if y.dtype.kind == "f":
        if n_missing := int((~np.isfinite(y)).sum()):
            raise with_rows(DataError(name, "a label in each row", "rows without one"), f"{n_missing} rows")
        if (y == np.floor(y)).all():
            if (np.abs(y) >= 2**63).any():
                raise DataError(name, "labels within int64", "labels beyond")
            y = y.astype(np.int64)
    if y.dtype.kind in "iu":
        values, codes = np.unique(y, return_inverse=True)
        return values.tolist(), codes.astype(np.int64).reshape(-1)
    index: dict[Any, int] = {}
    codes = np.fromiter((index.setdefault(label, len(index)) for label in y.tolist()), np.int64, len(y))
    if any(isinstance(label, bytes) for label in index):
        raise DataError(name, "strings or integers as labels", "bytes")
    texts = [str(label) for label in index]
    if longest := sum(len(text) > _LONGEST for text in texts):
        error = DataError(name, f"labels of at most {_LONGEST} characters", "some that are longer")
        raise with_rows(error, f"{longest} labels")
    found = whole_numbers(texts)
    labels: list[Any] = sorted(set(texts if found is None else found))
    place = {label: code for code, label in enumerate(labels)}
    return labels, np.array([place[label] for label in (texts if found is None else found)], np.int64)[codes]
