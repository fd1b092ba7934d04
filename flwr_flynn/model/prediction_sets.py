"""Prediction sets: the classes that hold the true one with a given probability.

They are conformal prediction from counts. A sample has a level for each class, by the
log odds of the class against the rest, with all classes taken for equally frequent. A
table has, for each class, how many of its samples have each level for it, by scores
that have not seen them. The set of a sample has the classes for which its level is at
least that which the coverage wants of the class's samples. So each class is covered,
rare ones too, and no frequency of the classes matters.

Tables are sums over samples: a federation has that of the pooled samples. Where a site
has few samples of a class its threshold leans on that of all sites. A class of too few
samples for the coverage is in all sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from flwr_flynn._types import Integers
from flwr_flynn._validation import integers, number
from flwr_flynn.errors import DataError
from flwr_flynn.model.metrics import cross_table
from flwr_flynn.model.portable import exp, log
from flwr_flynn.model.scoring import Scores

N_LEVELS = 98
"""Levels of the log odds: steps of 1/8 from -6 to 6, and what is beyond."""

LARGEST_COUNT = 2**22  # samples at a level

MOST_CLASSES = 256
"""Classes of a model, at most, of which tables are made."""

SHRINKAGE = 30
"""Samples of a class that all sites weigh beside one's own.

The coverage is the same from 10 to 100, see ``docs/results/coverage.md``.
"""

_ROUNDING = 1e-9  # of sums of samples

COVERAGES = (0.8, 0.9, 0.95)
"""Coverages that an evaluation tries."""

Levels = tuple[tuple[int, ...], ...]
"""Table, (L, N_LEVELS), as a value: samples of each class at each level for it."""


def most_levels(n_classes: int) -> int:
    """Integers in a table; none of too many classes."""
    if n_classes > MOST_CLASSES:
        return 0
    return N_LEVELS * n_classes


def as_levels(integers: Sequence[int] | Integers) -> Levels:
    """A table as a value, of its integers, row by row."""
    table = np.reshape(integers, (-1, N_LEVELS))
    return tuple(map(tuple, table.tolist()))


def checked_levels(name: str, levels: object, n_classes: int) -> Levels:
    """A table as a value, if it is one of so many classes, or empty; () for one of no
    samples, from which no sets follow.
    """
    if isinstance(levels, list | tuple) and not levels:
        return ()
    table = integers(name, levels, (n_classes, N_LEVELS), 0, LARGEST_COUNT, DataError)
    if not table.any():
        return ()
    return as_levels(table)


def levels_of(scores: Scores) -> Integers:
    """Level of each class, (n, L) int64, from 0 to 97.

    `scores`, (n, L), are logarithms of probabilities, up to a constant of each sample,
    with all classes taken for equally frequent.
    """
    levels = np.empty(scores.shape, np.int64)
    _fill_levels(np.ascontiguousarray(scores), levels)
    return levels


@njit(nogil=True, cache=True)
def _fill_levels(scores, levels):  # type: ignore[no-untyped-def]
    """Fill in the level of each class of each sample."""
    n_classes = scores.shape[1]
    shares = np.empty(n_classes)
    for p in range(scores.shape[0]):
        best = scores[p].argmax()
        rest = 0.0  # of the best class
        for label in range(n_classes):
            shares[label] = exp(scores[p, label] - scores[p, best])
            if label != best:
                rest += shares[label]
        for label in range(n_classes):
            others = rest
            if label != best:
                others = rest + 1.0 - shares[label]
            if shares[label] == 0.0:
                levels[p, label] = 0
            elif others == 0.0:
                levels[p, label] = N_LEVELS - 1
            else:
                odds = log(shares[label]) - log(others)
                level = np.floor(odds * 8.0) + N_LEVELS // 2
                levels[p, label] = int(min(max(level, 0.0), N_LEVELS - 1.0))


def level_table(levels: Integers, true: Integers) -> Integers:
    """Samples of each class at each level for it, (L, N_LEVELS) int64."""
    own = levels[np.arange(len(true)), true]
    return cross_table(true, own, (levels.shape[1], N_LEVELS))


def thresholds(levels: Levels, own: Levels, coverage: float) -> Integers:
    """Least level of each class in a set, (L,) int64.

    `own` is the table of a site; () stands for none.

    Raises
    ------
    DataError
        The coverage is not above 0 and below 1, or the table has no samples.
    """
    coverage = number("coverage", coverage, above=0, below=1, error=DataError)
    table = np.array(levels, np.int64)
    if not table.any():
        expected = (
            "a model with a table of levels, as fit makes it, and a run of effort "
            'default or thorough: not "quick", nor with epsilon or a decay of one\'s '
            "own, nor after partial_fit, merge or forget"
        )
        raise DataError("coverage", expected, "a model without one")
    told = table.astype(float)
    if own:
        sizes = told.sum(axis=1, keepdims=True)
        weights = np.minimum(sizes, SHRINKAGE) / np.maximum(sizes, 1)
        told = np.array(own) + weights * told
    room = (1 - coverage) * (told.sum(axis=1) + 1) - 1 + _ROUNDING
    # Whole levels: a set is rather too large than too small.
    least: Integers = (told.cumsum(axis=1) <= room[:, None]).sum(axis=1)
    return least
