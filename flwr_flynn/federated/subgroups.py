"""Subgroups of samples by the levels of a category."""

from __future__ import annotations

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.federated.labels import Codes
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema

OTHER = "(other)"

MISSING = "(missing)"
"""Names of the subgroups of no level."""


def subgroup_names(features: object, column: str) -> tuple[str, ...]:
    """Names of the subgroups by a column; () where it is no category of a schema."""
    placed = _category(features, column)
    if placed is None:
        return ()
    category, _ = placed
    return (*category.levels, OTHER, MISSING)


def subgroup_codes(features: object, column: str, X: Array) -> Codes:
    """Index of each sample among `subgroup_names`, (n,), from the numbers of the rows."""
    placed = _category(features, column)
    assert placed is not None  # else there are no names
    category, first = placed
    n_levels = len(category.levels)
    numbers = np.asarray(X[:, first : first + category.width])
    codes = np.full(len(numbers), n_levels, np.int64)
    is_level = numbers[:, :n_levels] > 0
    if n_levels:
        has_level = is_level.any(axis=1)
        codes[has_level] = is_level.argmax(axis=1)[has_level]
    if category.gaps:
        codes[numbers[:, -1] > 0] = n_levels + 1
    return codes


def _category(features: object, name: str) -> tuple[Column, int] | None:
    """The category of this name, and the index of its first number."""
    if not isinstance(features, Schema):
        return None
    first = 0
    for column in features.columns:
        if column.name == name:
            if column.kind == "category":
                return (column, first)
            return None
        first += column.width
    return None
