"""Subsamples by content: the same samples are in it, however they are split over parties.

A sample is kept if a hash of its values is small enough. The hash is a sum over the values that are not zero, so that
sparse and dense forms of a sample have the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

N_LEFT_OUT = 4096
"""Samples, about, that are left out in turn: as many of each class as there are."""

_BATCH = 2**20  # values at a time


def kept(X: Any, y: npt.NDArray[np.int64], n_per_class: npt.NDArray[np.int64], n_samples: int) -> npt.NDArray[np.bool_]:
    """Choose about `n_samples` samples, as many of each class as there are: a mask, (n,) bool.

    `n_per_class`, (L,), are the class sizes of all parties together; small classes are kept whole.
    """
    filled = max(int((n_per_class > 0).sum()), 1)
    shares = np.minimum(n_samples / filled / np.maximum(n_per_class, 1), 1.0)
    if (shares[n_per_class > 0] == 1.0).all():
        return np.ones(len(y), np.bool_)
    mask = np.zeros(len(y), np.bool_)
    step = max(1, _BATCH // max(X.shape[1], 1))
    for first in range(0, len(y), step):
        mask[first : first + step] = content_shares(X[first : first + step]) < shares[y[first : first + step]]
    return mask


def batches_of_kept(
    X: Any, y: npt.NDArray[np.int64], n_per_class: npt.NDArray[np.int64], n_samples: int, most: int = 2**12
) -> Iterator[npt.NDArray[np.intp]]:
    """Indices of the samples that `kept` chooses, at most `most` at a time: few, where samples are long.

    A server that announces small classes has all samples of a party chosen, which are not to be copied at once.
    """
    chosen = np.flatnonzero(kept(X, y, n_per_class, n_samples))
    step = min(most, max(16, _BATCH // 8 // max(X.shape[1], 1)))
    for first in range(0, len(chosen), step):
        yield chosen[first : first + step]


def content_shares(X: Any) -> npt.NDArray[np.float64]:
    """Hash of each sample, (n, d) dense or CSR, to a number from 0 to below 1."""
    if sp.issparse(X):
        rows = sp.csr_array(X)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        sums = np.zeros(rows.shape[0], np.uint64)
        of_row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        _add(rows.data.astype(np.float64), rows.indices.astype(np.int64), of_row, sums)
    else:
        values = np.ascontiguousarray(X, np.float64)
        sums = np.zeros(len(values), np.uint64)
        _add_dense(values, sums)
    shares: npt.NDArray[np.float64] = _mixed(sums)
    return shares


@njit(nogil=True, cache=True)
def _mix(word):  # type: ignore[no-untyped-def]
    """Mix the bits of a word: the finisher of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014)."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit(nogil=True, cache=True)
def _term(bits, column):  # type: ignore[no-untyped-def]
    return _mix(_mix(np.uint64(column) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(bits))


@njit(nogil=True, cache=True)
def _add(values, columns, of_row, sums):  # type: ignore[no-untyped-def]
    """Add the term of each value to the sum of its row."""
    bits = values.view(np.uint64)
    for k in range(len(values)):
        if values[k] != 0.0:
            sums[of_row[k]] += _term(bits[k], columns[k])


@njit(nogil=True, cache=True)
def _add_dense(values, sums):  # type: ignore[no-untyped-def]
    """Add the terms of each row to its sum."""
    bits = values.view(np.uint64)
    for p in range(values.shape[0]):
        for j in range(values.shape[1]):
            if values[p, j] != 0.0:
                sums[p] += _term(bits[p, j], j)


@njit(nogil=True, cache=True)
def _mixed(sums):  # type: ignore[no-untyped-def]
    out = np.empty(len(sums))
    for p in range(len(sums)):
        word = sums[p] + np.uint64(0x9E3779B97F4A7C15)  # a sample of zeros, whose sum is 0, would always be kept
        out[p] = np.float64(_mix(word) >> np.uint64(11)) * 2.0**-53
    return out
