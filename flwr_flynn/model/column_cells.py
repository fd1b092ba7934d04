"""Cells of the histograms of columns: the values of each class and column by the bins
that they fall into.

A cell is (class * d + column) * 2**KEY_BITS + key, where the key of a value is that of
`hashing.rank_codes`. A gap, NaN, has a key above those of all numbers: in the order of
the values it is the last.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from flwr_flynn._types import Array, Floats, Integers, Matrix
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.rank_codes import GAP, KEY_BITS, N_EDGES, keys_of

_BATCH = 2**22  # values at a time
_LARGEST_TABLE = 2**22  # entries of a table of all values


def floor_of(min_examples: int) -> int:
    """Fewest samples of a class of which anything is told: `min_examples`, but 4 for 2
    and 3.

    A median and the class size tell much of two or three values.
    """
    if min_examples in (2, 3):
        return 4
    return min_examples


def dense_batches(X: Matrix, y: Integers) -> Iterator[tuple[Array, Integers]]:
    """Samples and labels, some at a time, dense."""
    for rows in batches(X.shape[0], max(1, _BATCH // X.shape[1])):
        samples = X[rows]
        if sp.issparse(samples):
            samples = samples.toarray()
        yield samples, y[rows]


def cells_of(X: Array, y: Integers, n_classes: int) -> tuple[Integers, Integers]:
    """Filled cells, ascending, and the samples in each."""
    d = X.shape[1]
    if _fits_table(X, n_classes):
        table = np.zeros((n_classes, d, 256), np.int64)
        _add_values(X, y, table)
        return _cells_of_table(table)
    keys = _checked_keys(X)
    return np.unique(
        ((y[:, None] * d + np.arange(d)) << KEY_BITS) + keys, return_counts=True
    )


def floored_cells(
    X: Matrix, y: Integers, n_per_class: Integers, least: int
) -> tuple[Integers, Integers]:
    """Filled cells, ascending, and the samples in each, of groups of ranks.

    `n_per_class` has 0 for classes that are left out.
    """
    if _fits_table(X, len(n_per_class)):
        return _floored_table(X, y, n_per_class, least)
    d = X.shape[1]
    labels = np.flatnonzero(n_per_class).tolist()
    weights = {
        label: _weights_of_ranks(int(n_per_class[label]), least) for label in labels
    }
    order = np.argsort(y, kind="stable")
    ends = np.cumsum(np.bincount(y, minlength=len(n_per_class)))
    columns = X
    if sp.issparse(X):
        columns = sp.csc_array(X)
    step = max(1, _BATCH // max(len(y), 1))  # columns at a time
    parts: dict[int, list[tuple[Integers, Integers]]] = {label: [] for label in labels}
    for first in range(0, d, step):
        block = columns[:, first : first + step]
        if sp.issparse(block):
            block = block.toarray()
        values = np.ascontiguousarray(block[order].T)
        if np.isinf(values).any():
            raise _infinite()
        place = np.arange(first, first + len(values))[:, None]
        for label in labels:
            start = ends[label] - n_per_class[label]
            ranked = values[:, start : ends[label]]
            ranks = np.flatnonzero(weights[label])
            ranked.sort(axis=1)
            cells = ((label * d + place) << KEY_BITS) + _checked_keys(
                _coarse_at_ranks(ranked, ranks, least)
            )
            parts[label].append(
                _merged(cells.ravel(), np.tile(weights[label][ranks], len(place)))
            )
    none = np.zeros(0, np.int64)
    # Cells of a class and block of columns ascend, and so do classes and blocks.
    ascending = [(none, none), *(part for label in labels for part in parts[label])]
    all_cells = [cells for cells, _ in ascending]
    all_counts = [counts for _, counts in ascending]
    return np.concatenate(all_cells), np.concatenate(all_counts)


def _floored_table(
    X: Matrix, y: Integers, n_per_class: Integers, least: int
) -> tuple[Integers, Integers]:
    """The cells of `floored_cells` for samples of one byte a value."""
    table = np.zeros((len(n_per_class), X.shape[1], 256), np.int64)
    for rows, codes in dense_batches(X, y):
        _add_values(rows, codes, table)
    table[n_per_class == 0] = 0
    for label in np.flatnonzero(n_per_class).tolist():
        # A value has the ranks from the number of samples below it; so many count at
        # values of lower ranks.
        weights = _weights_of_ranks(int(n_per_class[label]), least)
        before = np.append(0, np.cumsum(weights))
        up_to = before[np.cumsum(table[label], axis=1)]
        table[label] = np.diff(up_to, axis=1, prepend=0)
    return _cells_of_table(table)


SHARED = 5  # samples of equal values that need no rounding

_TINY = 2.0**-1000


def coarse(
    values: Floats,
    low: Floats,
    high: Floats,
    whole: Floats | float,
    is_shared: npt.ArrayLike,
) -> Floats:
    """Ascending values with as many digits as their ranks need, a thousandth of all, so
    that they name nobody.

    `low` and `high` are about a thirty-second of the ranks below and above each, and
    `whole` is the spread of all. Values that several samples share stay as they are.
    The last digit is one of two, so that all machines round alike.

    >>> values = np.array([1001.0, 50_000.0, 123_456.0])
    >>> coarse(values, values - 8000, values + 8000, 122_455.0, [False, True, False])
    array([  1024.,  50000., 123456.])
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        below = np.subtract(values, low)
        above = np.subtract(high, values)
        # Beside a jump the spread is that of the other side.
        nearest = np.minimum(below, above)
        spread = np.minimum(
            np.where(nearest > 0, 2 * nearest, np.maximum(below, above)),
            np.divide(whole, 16),
        )
        spread = np.nan_to_num(np.where(spread > 0, spread, np.divide(whole, 16)))
        step = np.ldexp(1.0, np.frexp(spread)[1] - 7)
        rounded = np.rint(values / step) * step
        stays = is_shared | ~(np.abs(values / step) < 2.0**52) | (spread < _TINY)
    # No value passes another one, least of all one that stays.
    is_fixed = stays & ~np.isnan(values)
    most = np.minimum.accumulate(
        np.where(is_fixed, values, np.inf)[..., ::-1], axis=-1
    )[..., ::-1]
    out: Floats = np.maximum.accumulate(
        np.where(stays, values, np.minimum(rounded, most)), axis=-1
    )
    return out


def _coarse_at_ranks(ranked: Array, ranks: Integers, least: int) -> Floats:
    """The values of some ranks of sorted values, (columns, n), gaps last: coarse but
    where `least` values are equal.
    """
    n = ranked.shape[1]
    values = ranked[:, ranks].astype(np.float64)
    is_shared = np.zeros(values.shape, np.bool_)
    for before in range(min(least, n)):
        first = np.clip(ranks - before, 0, max(n - least, 0))
        is_shared |= (ranked[:, first] == values) & (
            ranked[:, np.minimum(first + least - 1, n - 1)] == values
        )
    last = np.maximum(
        (~np.isnan(ranked.astype(np.float64))).sum(axis=1, keepdims=True) - 1, 0
    )
    width = max(n // N_EDGES, 1)
    rows = np.arange(len(ranked))[:, None]
    low = ranked[rows, np.minimum(np.maximum(ranks - width, 0), last)].astype(
        np.float64
    )
    high = ranked[rows, np.minimum(ranks + width, last)].astype(np.float64)
    return coarse(
        values,
        low,
        high,
        ranked[rows, last].astype(np.float64) - ranked[:, :1],
        is_shared,
    )


def _weights_of_ranks(n: int, least: int) -> Integers:
    """Samples that count at the value of each rank, (n,): 0 but at one rank of each
    group.
    """
    weights = np.zeros(n, np.int64)
    last = (n // least - 1) * least
    weights[least - 1 : last : least] = least
    weights[last or n // 2] = n - last
    return weights


def _fits_table(X: Matrix, n_classes: int) -> bool:
    """Tell whether the values are counted in a table: of pixels only so many occur,
    which is a tenth of the work.
    """
    return (
        X.dtype in (np.bool_, np.uint8)
        and n_classes * X.shape[1] <= _LARGEST_TABLE // 256
    )


def _cells_of_table(table: Integers) -> tuple[Integers, Integers]:
    """Filled cells, ascending, and the samples in each, of the numbers of all pixels,
    (L, d, 256).
    """
    labels, columns, pixels = np.nonzero(table)
    rows = labels * table.shape[1] + columns
    return (rows << KEY_BITS) + keys_of(pixels.astype(np.float64)), table[
        labels, columns, pixels
    ]


def _checked_keys(values: Array) -> Integers:
    """Keys of values, `GAP` for NaN; a `DataError` for infinite ones."""
    values = np.asarray(values, np.float64)
    keys = keys_of(values)
    if not np.isfinite(values).all():
        if np.isinf(values).any():
            raise _infinite()
        keys[np.isnan(values)] = GAP
    return keys


def _infinite() -> DataError:
    return DataError("X", "finite numbers, or NaN for a gap", "infinity")


def summed(cells: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The different cells, ascending, and the sum of the counts of each."""
    # A stable sort merges ascending parts in linear time.
    order = np.argsort(cells, kind="stable")
    return _merged(cells[order], counts[order])


def _merged(cells: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The different ones of cells that do not descend, and the sum of the counts of
    each.
    """
    is_first = np.ones(len(cells), np.bool_)
    np.not_equal(cells[1:], cells[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    if not len(first):
        return cells[first], counts[:0]
    return cells[first], np.add.reduceat(counts, first)


def _add_values(X: Array, y: Integers, table: Integers) -> None:
    """Count the values of samples of one byte a value into the table, (L, d, 256)."""
    pixels = np.ascontiguousarray(X).view(np.uint8)
    _count_values(pixels, np.ascontiguousarray(y), table)


@njit(nogil=True, cache=True)
def _count_values(X, y, table):  # type: ignore[no-untyped-def]
    """Count the values of each column and class into the table, (L, d, 256)."""
    for p in range(X.shape[0]):
        for j in range(X.shape[1]):
            table[y[p], j, X[p, j]] += 1
