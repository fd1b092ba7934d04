"""Columns that may name persons: ids, and texts that nearly all differ."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flwr_flynn._types import Floats

PERSONAL = {
    "id": "integers that nearly all differ, as ids do",
    "text": "texts that nearly all differ",
}

# Values of a column that is looked at, at least; and shares of different texts, the
# second for longer ones.
_FEW = 30

_NEARLY_ALL = 0.8

_SOME = 0.2

_LONG = 40

OFTEN = 5  # rows that share a text of a column whose texts nearly all differ


def nearly_all_differ(levels: Mapping[str | None, int], n_texts: int) -> bool:
    """True for texts of a column that nearly all differ, from the rows of each."""
    if n_texts < _FEW:
        return False
    most = _NEARLY_ALL
    if sum(len(text or "") * k for text, k in levels.items()) > _LONG * n_texts:
        most = _SOME
    return len(levels) > most * n_texts


def are_ids(values: Floats) -> bool:
    """True for integers that nearly all differ, and are no measurements.

    Of a small range ids are more different than integers drawn by chance, and of a
    large one they are spread evenly; measurements are negative, round, or nearer to the
    middle. A few ids may stand twice.
    """
    n = len(values)
    if n < _FEW or (values < 0).any() or (values % 1 != 0).any():
        return False
    n_different = len(np.unique(values))
    size = values.max() - values.min() + 1
    if n_different < _NEARLY_ALL * n:
        return False
    missed = np.exp(-n / size)  # share of the range that chance leaves out
    deviation = np.sqrt(max(size * missed * (1 - (1 + n / size) * missed), 0.0))
    if n_different > size * (1 - missed) + 4 * deviation and deviation > 0.5:
        return True
    if size < 10 * n:
        return False
    shares = (np.sort(values) - values.min()) / (size - 1)
    # Kolmogorov and Smirnov test it like this.
    is_even = np.abs(shares - np.linspace(0, 1, n)).max() < 1.6 / np.sqrt(n)
    return bool((values % 10 == 0).mean() < 0.25 and is_even)
