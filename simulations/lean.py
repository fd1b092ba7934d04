"""FlyNN by SciPy and NumPy alone, and a clock: what `bench` measures speed by."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from flwr_flynn import FlyHash
from simulations.results import Array


def best_in_turn(
    calls: dict[str, Callable[[], object]], repeats: int
) -> dict[str, float]:
    """Seconds of each call, best of `repeats`, the calls taking turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def lean_rows(n_features: int, hash_dim: int, row_nnz: int, seed: int = 0) -> Array:
    """(m, s) column indices, row by row with NumPy's `choice`, as a first
    implementation would draw them.
    """
    generator = np.random.default_rng(seed)
    return np.stack(
        [generator.choice(n_features, row_nnz, replace=False) for _ in range(hash_dim)]
    )


def lean_matrix(hasher: FlyHash) -> sp.csr_array:
    """The lifting matrix of an unsigned hash as CSR."""
    m, s = hasher.rows.shape
    ones = np.ones(m * s, np.float32)
    return sp.csr_array(
        (ones, hasher.rows.ravel(), np.arange(0, m * s + 1, s)),
        shape=(m, hasher.n_features),
    )


def lean_count(
    matrix: sp.csr_array,
    X: Array,
    y: Array,
    n_classes: int,
    hash_nnz: int,
    batch: int = 100,
) -> Array:
    """(L, m) counts: sparse product in batches, argpartition, bincount.

    No rule breaks ties.
    """
    m = matrix.shape[0]
    counts = np.zeros(n_classes * m, np.int64)
    for first in range(0, len(X), batch):
        sums = (matrix @ X[first : first + batch].T.astype(np.float32)).T
        active = np.argpartition(sums, m - hash_nnz, axis=1)[:, m - hash_nnz :]
        counts += np.bincount(
            (active + y[first : first + batch, None] * m).ravel(),
            minlength=n_classes * m,
        )
    return counts.reshape(n_classes, m)
