"""Contributions of the columns of a table to the log odds of the predicted class, by the
model alone.

The value of one column is replaced, and all others stay: the contribution is the fall of
the log odds, in the mean of a few values that stand for the column among all samples.
These are quantiles, or the levels of a category, and a gap where the column has gaps in
the schema: as the edges tell that the model has of the columns. Without edges a gap, or
an unknown level, stands for the column.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp

from flwr_flynn._types import Floats, Integers, Matrix
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.rank_codes import N_EDGES
from flwr_flynn.model.model import Model
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.texts import BESIDE

N_QUANTILES = 4  # of a column of many values

_NUMBER = Column("number", "number", gaps=False)
_N_DRAWN = 200
_MOST_DRAWN = 2**12  # values
_DAY = 86_400_000_000  # microseconds
_MOST_NUMBERS = 2**22  # of samples and their hashes, at a time


def edges_of(model: Model) -> Floats:
    """Edges of the numbers of a sample, (d, K): those of rank codes, or of a linear
    part.

    Without either gaps stand for them, or 0 where the hash takes no gaps.
    """
    for member in model.members:
        if member.spec.edges is not None:
            return np.array(member.spec.edges)
    edges = np.zeros((model.members[0].spec.n_features, 1))
    if model.takes_gaps:
        edges[:] = np.nan
    if model.linear is not None:
        basis = model.linear.terms
        edges = np.repeat(edges, N_EDGES, axis=1)
        edges[list(basis.columns)] = basis.edges
    return edges


def places(model: Model) -> Iterator[tuple[Column, slice]]:
    """Each column, and its place among the numbers of a sample."""
    first = 0
    n_features = model.members[0].spec.n_features
    for column in getattr(model.schema, "columns", [_NUMBER] * n_features):
        yield column, slice(first, first + column.width)
        first += column.width


def substitutes(model: Model) -> Iterator[tuple[slice, Floats, Floats]]:
    """Place of each column among the numbers of a sample, the numbers of a few values,
    (k, width), and their weights, (k,), of sum 1.
    """
    edges = edges_of(model)
    for column, place in places(model):
        yield place, *_typical(column, edges[place])


def _typical(column: Column, edges: Floats) -> tuple[Floats, Floats]:
    """Numbers and weights of a few values, by the edges of these numbers, (width, K)."""
    # A number that is 0 or 1 is 1 as often among its edges as among samples.
    n_ones = (edges == 1.0).sum(axis=1)
    if column.kind == "category":
        if column.name.endswith(BESIDE) or not n_ones.any():
            # Samples of no level: numbers, mostly.
            n_ones = np.append(n_ones, max(edges.shape[1] - n_ones.sum(), 0))
        levels = np.flatnonzero(n_ones)
        values = np.eye(len(n_ones), column.width)[levels]
        return values, n_ones[levels] / n_ones.sum()
    step = max(edges.shape[1] // N_QUANTILES, 1)
    quantiles = edges[0, step // 2 :: step]
    values, counts = np.unique(quantiles, return_counts=True)
    weights = counts / counts.sum()
    if column.gaps and n_ones[-1]:
        share = n_ones[-1] / edges.shape[1]
        values = np.append(values, np.nan)
        weights = np.append(weights * (1 - share), share)
    numbers = np.empty((len(values), column.width))
    if column.kind == "date":
        values = (values * _DAY).astype("datetime64[us]")
    column.write(values, numbers)
    return numbers, weights


def contributions(model: Model, X: Matrix, n_jobs: int | None = None) -> Floats:
    """Contributions of the columns to the log odds of the predicted class of samples,
    (n, d): (n, columns) float64.

    As many samples at a time as take 32 MiB with their hashes.
    """
    every = [*substitutes(model)]
    added = np.zeros((X.shape[0], len(every)))
    if (~model.empty_classes).sum() < 2:
        return added
    # A hash has some 256 numbers.
    size = max(len(weights) for _, _, weights in every) * (X.shape[1] + 256)
    for rows in batches(len(added), max(_MOST_NUMBERS // size, 1)):
        # Dense, whether they were or not.
        samples = sp.csr_array(X[rows], dtype=np.float64).toarray()
        codes = model.scores(samples, n_jobs).argmax(axis=1)
        odds = log_odds_of(model, samples, codes, n_jobs)
        for own, (place, values, weights) in zip(added[rows].T, every, strict=True):
            differs = (samples[:, None, place] != values).any(axis=2)
            n, k = np.nonzero(differs)
            others = samples[n]
            others[:, place] = values[k]
            falls = odds[n] - log_odds_of(model, others, codes[n], n_jobs)
            own += np.bincount(n, weights[k] * falls, len(samples))
    return added


def importance(model: Model, n_jobs: int | None = None) -> Floats:
    """Mean absolute contribution of each column to the log odds, (columns,) float64.

    It is over 200 samples, fewer of many columns, whose values are drawn one by one
    from those that stand for the columns: no sample of anybody has a part.
    """
    every = [*substitutes(model)]
    n = min(_N_DRAWN, max(_MOST_DRAWN // len(every), 1))
    generator = np.random.default_rng(0)
    samples = np.empty((n, model.members[0].spec.n_features))
    for place, values, weights in every:
        samples[:, place] = values[generator.choice(len(weights), n, p=weights)]
    means: Floats = np.abs(contributions(model, samples, n_jobs)).mean(axis=0)
    return means


def log_odds_of(model: Model, X: Floats, codes: Integers, n_jobs: int | None) -> Floats:
    """Log odds of a class of each sample against all others, (n,)."""
    scores = model.scores(X, n_jobs)
    is_own = codes[:, None] == np.arange(scores.shape[1])
    rest = np.where(is_own | model.empty_classes, -np.inf, scores)
    odds: Floats = scores[is_own] - logsumexp(rest, axis=1)
    return odds
