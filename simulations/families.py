"""Generated tables of kinds that are hard for sums over single bits, for judging rules that were chosen on other data.

>>> X, y = FAMILIES["thresholds"](100, 0)
>>> X.shape, y.shape
((100, 10), (100,))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Samples = tuple[Array, Array]


def curves(n: int, seed: int) -> Samples:
    """Curves of 40 values with three shapes, whose common level and scale drown the shape."""
    rng = np.random.default_rng([seed, 1])
    y, t = rng.integers(0, 3, n), np.linspace(0, 1, 40)
    shapes = np.stack([np.sin(2 * np.pi * t), np.sin(4 * np.pi * t), np.abs(t - 0.5)])
    level, scale = rng.normal(0, 20, (n, 1)), np.exp(rng.normal(0, 1, (n, 1)))
    return level + scale * (shapes[y] + rng.normal(0, 0.5, (n, 40))), y


def categories(n: int, seed: int) -> Samples:
    """Three classes that follow from combinations of three of eight columns with four levels each; a tenth is wrong."""
    rng = np.random.default_rng([seed, 2])
    X = rng.integers(0, 4, (n, 8))
    y = rng.integers(0, 3, 64)[X[:, 0] * 16 + X[:, 1] * 4 + X[:, 2]]
    return X.astype(np.float64), np.where(rng.random(n) < 0.1, rng.integers(0, 3, n), y)


def thresholds(n: int, seed: int) -> Samples:
    """Sixteen classes: cells between three sharp thresholds on each of two of ten columns."""
    rng = np.random.default_rng([seed, 3])
    X, edges = rng.normal(size=(n, 10)), np.sort(rng.normal(0, 0.8, (2, 3)))
    return X, np.searchsorted(edges[0], X[:, 0]) * 4 + np.searchsorted(edges[1], X[:, 1])


def cells(n: int, seed: int) -> Samples:
    """Sixteen classes: leaves of a tree of depth four with random cuts of four of ten columns."""
    rng = np.random.default_rng([seed, 4])
    X, y = rng.normal(size=(n, 10)), np.zeros(n, np.int64)
    for depth in range(4):
        columns, edges = rng.integers(0, 4, 2**depth), rng.normal(0, 0.5, 2**depth)
        y = 2 * y + (X[np.arange(n), columns[y]] > edges[y])
    return X, y


def parity(n: int, seed: int) -> Samples:
    """Two classes: the parity of the signs of two of eight columns, a tenth wrong."""
    rng = np.random.default_rng([seed, 5])
    X = rng.normal(size=(n, 8))
    return X, ((X[:, 0] > 0) ^ (X[:, 1] > 0) ^ (rng.random(n) < 0.1)).astype(np.int64)


def heavy(n: int, seed: int) -> Samples:
    """Four classes of overlapping clusters in twelve columns with heavy tails."""
    rng = np.random.default_rng([seed, 6])
    y, centers = rng.integers(0, 4, n), rng.normal(0, 0.6, (4, 12))
    return np.exp(centers[y] + rng.standard_t(3, (n, 12))), y


FAMILIES: dict[str, Callable[[int, int], Samples]] = {
    each.__name__: each for each in (curves, categories, thresholds, cells, parity, heavy)
}
"""Families by name; each makes n samples from a seed."""
