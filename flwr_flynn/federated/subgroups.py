"""Subgroups of samples: the levels of one category among the columns of a run's schema."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.tables.column import Column
from flwr_flynn.tables.schema import Schema

OTHER, MISSING = "(other)", "(missing)"
"""Names of the subgroups of no level."""


def subgroup_names(features: Any, column: str) -> tuple[str, ...]:
    """Names of the subgroups by a column; () where it is no category of a schema."""
    found = _found(features, column)
    return () if found is None else (*found[0].levels, OTHER, MISSING)


def subgroup_codes(features: Any, column: str, X: Any) -> npt.NDArray[np.int64]:
    """Index of each sample among `subgroup_names`, (n,) int64, from the numbers of the rows."""
    found = _found(features, column)
    assert found is not None  # else there are no names
    category, first = found
    n_levels = len(category.levels)
    numbers = np.asarray(X[:, first : first + category.width])
    is_level = numbers[:, :n_levels] > 0
    codes = np.where(is_level.any(axis=1), is_level.argmax(axis=1) if n_levels else 0, n_levels)
    if category.gaps:
        codes[numbers[:, -1] > 0] = n_levels + 1
    return codes.astype(np.int64, copy=False)


def _found(features: Any, name: str) -> tuple[Column, int] | None:
    """The category of this name, and the index of its first number."""
    first = 0
    for column in features.columns if isinstance(features, Schema) else ():
        if column.name == name:
            return (column, first) if column.kind == "category" else None
        first += column.width
    return None
