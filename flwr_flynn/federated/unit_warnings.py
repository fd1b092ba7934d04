"""Columns whose values are far from those of others, as in another unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_flynn._types import Floats
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.tables.schema import Schema

_MANY = 10
"""Values of a column whose place is no matter of chance, at least."""


def elsewhere(specs: Sequence[HashSpec], schema: Schema, X: Floats) -> list[str]:
    """Names of the columns whose values are all far from those of others.

    The values, numbers or dates, may have another unit. Between them and the edges
    beyond is a gap of three times the range of these edges, at least a quarter of all.
    """
    edges = next(
        (np.array(spec.edges) for spec in specs if spec.edges is not None), None
    )
    names: list[str] = []
    if edges is None:
        return names
    index = 0
    for column in schema.columns:
        if column.kind != "category":
            numbers = X[~np.isnan(X[:, index]), index]
            if len(numbers) >= _MANY and _are_far(numbers, edges[index]):
                names.append(column.name)
        index += column.width
    return names


def _are_far(numbers: Floats, edges: Floats) -> bool:
    low = numbers.min()
    high = numbers.max()
    few = max(1, len(edges) // 4)
    below = edges[edges < low]
    if len(below) >= few and low - below[-1] > 3 * (below[-1] - below[0]) > 0:
        return True
    above = edges[edges > high]
    return bool(len(above) >= few and above[0] - high > 3 * (above[-1] - above[0]) > 0)
