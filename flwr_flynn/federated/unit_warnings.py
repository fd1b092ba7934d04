"""Columns whose values are far from those of others, as in another unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flwr_flynn._types import Floats
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.tables.schema import Schema

FAR = 2.0
"""Standard deviations from the others beyond which the unit may be another one."""

_BULK = 0.55
"""Share of all values from which on it is the others that are far."""

_MANY = 10
"""Values of a column whose place is no matter of chance, at least."""

_FEW = 8
"""Different edges of a column that is measured, at least."""


def elsewhere(specs: Sequence[HashSpec], schema: Schema, X: Floats) -> Iterator[str]:
    """Names of the columns of numbers that are far from those of others."""
    edges = next((spec.edges for spec in specs if spec.edges is not None), None)
    if edges is None:
        return
    index = 0
    for column in schema.columns:
        if column.kind == "number" and apart(X[:, index], np.array(edges[index])) > FAR:
            yield column.name
        index += column.width


def apart(values: Floats, edges: Floats) -> float:
    """Standard deviations between values and the others of all; 0.0 for the bulk.

    `edges` are quantiles of all values, with or without these, whose share of all is at
    most as if the others were on one side of them. The larger of the differences of
    numbers and, where all are positive, of logarithms: a factor moves a skewed column
    by less than its standard deviation.
    """
    values = values[np.isfinite(values)]
    n_edges = len(edges)
    if len(values) < _MANY or len(np.unique(edges)) < _FEW or not are_of_samples(edges):
        return 0.0
    middle = np.median(values)
    rank = float(np.mean([edges < middle, edges <= middle]))
    share = 2 * min(rank, 1 - rank)
    if share > _BULK:
        return 0.0
    ranks = (np.arange(n_edges) + 0.5) / n_edges
    own = np.quantile(values, ranks)
    rest = ranks - share * np.searchsorted(own, edges) / n_edges
    others = np.interp((1 - share) * ranks, np.maximum.accumulate(rest), edges)
    numbers = np.stack([own, others])
    scales = [numbers]
    if numbers.min() > 0:
        scales.append(np.log(numbers))
    return max(
        float(np.ptp(pair.mean(axis=1)) / np.sqrt(pair.var(axis=1).mean()))
        for pair in scales
    )


def are_of_samples(edges: Floats) -> bool:
    """False for edges at equal distances, which are those of a public range."""
    return bool(np.abs(np.diff(edges, 2)).max(initial=0.0) > 1e-9 * np.ptp(edges))
