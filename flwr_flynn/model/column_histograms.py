"""Exact histograms of columns, class by class: the counts from which the rank codes of a hash are derived.

The bins are the same for everybody and need no look at the data: a value falls into the bin that `hashing.rank_codes`
calls its key, the sign, the exponent and the first ten bits of its float64. So the histograms of any split of the
samples, added in any order, are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from flwr_flynn.errors import DataError
from flwr_flynn.hashing.rank_codes import KEY_BITS, N_EDGES, keys_of, values_of

Integers = npt.NDArray[np.int64]

_BATCH = 2**22  # values at a time
_RANK_BINS = 8  # of the table behind a weight
_LARGEST_TABLE = 2**22  # entries of a table of all values
_LARGEST_GRID = 2**40  # of classes times columns, so that the cells fit int64


@dataclass(frozen=True, eq=False, repr=False)
class ColumnHistograms:
    """Number of samples of each class in each bin of each column; only filled cells are kept. Immutable.

    Parameters
    ----------
    n_features : int
    n_per_class : (L,) int64
        Samples of each class: each has one value in every column.
    cells : (k,) int64
        Filled cells, ascending: (class * n_features + column) * 2**22 + key.
    counts : (k,) int64
        Samples in each, at least 1.

    Raises
    ------
    DataError
        Arrays that are the histograms of no samples.

    Examples
    --------
    >>> X, y = np.array([[1.0], [2.0], [2.0]]), np.array([0, 0, 1])
    >>> ColumnHistograms.from_data(X, y, n_classes=2).edges(2).tolist()
    [[1.0, 2.0]]
    """

    n_features: int
    n_per_class: Integers
    cells: Integers
    counts: Integers

    def __post_init__(self) -> None:
        sizes, cells, counts = self.n_per_class, self.cells, self.counts
        n_rows = len(sizes) * self.n_features
        if sizes.ndim != 1 or not len(sizes) or not 0 < n_rows <= _LARGEST_GRID or sizes.min() < 0:
            raise DataError("histograms", "at least 1 class and 1 column", f"{len(sizes)} and {self.n_features}")
        if cells.ndim != 1 or cells.shape != counts.shape or (cells[1:] <= cells[:-1]).any():
            raise DataError("histograms", "ascending cells, each with a count", f"{cells.shape} and {counts.shape}")
        if len(cells) and not (cells[0] >= 0 and cells[-1] < n_rows << KEY_BITS and counts.min() >= 1):
            raise DataError("histograms", "cells of these classes and columns with counts above 0", "others")
        # Every sample is in one bin of every column.
        totals = _row_sums(cells, counts, n_rows)
        if totals is None or (totals != np.repeat(sizes, self.n_features)).any():
            raise DataError("histograms", "as many values in each column as samples of the class", "other numbers")
        for array in (sizes, cells, counts):
            array.flags.writeable = False

    @classmethod
    def zeros(cls, n_features: int, n_classes: int) -> ColumnHistograms:
        """Histograms of no samples."""
        return cls(n_features, np.zeros(n_classes, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def from_data(
        cls,
        X: Any,
        y: npt.NDArray[np.int64],
        n_classes: int,
        center: Sequence[float] | None = None,
        min_examples: int = 1,
    ) -> ColumnHistograms:
        """Histograms of samples less a centre, (n, d) finite, dense or CSR.

        Classes of fewer than `min_examples` samples are left out. Of the others, neighbouring bins of a column are
        put together, from the lowest up, until each has so many samples; all then count as values of its highest bin.
        What is left at the top, too few, joins the bin below, so that no extreme value is told.
        """
        n, d = X.shape
        kept = np.bincount(y, minlength=n_classes)
        kept[kept < min_examples] = 0
        sums = [cls.zeros(d, n_classes)]  # of batches, each of more cells than the next
        middle = np.zeros(d) if center is None else np.asarray(center, np.float64)
        step = max(1, _BATCH // d)
        for first in range(0, n, step):
            rows, labels = X[first : first + step], y[first : first + step]
            keep = kept[labels] > 0
            rows, labels = (rows, labels) if keep.all() else (rows[keep], labels[keep])
            if rows.shape[0]:
                cells, counts = _cells(rows.toarray() if sp.issparse(rows) else rows, labels, n_classes, middle)
                sums.append(cls(d, np.bincount(labels, minlength=n_classes), cells, counts))
                # Sums of about as many cells are added, so that a cell goes through log2 of the number of batches.
                while len(sums) > 1 and len(sums[-2].cells) < 2 * len(sums[-1].cells):
                    sums.append(sums.pop() + sums.pop())
        total = sums.pop()
        while sums:
            total += sums.pop()
        return total if min_examples <= 1 else total._floored(min_examples)

    def table(self, cuts: Integers, by_class: bool) -> Integers:
        """Samples of each class, or of all together, in bins of the columns, (L or 1, bins).

        `cuts`, ascending, are the lowest keys of the bins, column * 2**22 + key; one for key 0 of each column.
        """
        rows, keys = self.cells >> KEY_BITS, self.cells & ((1 << KEY_BITS) - 1)
        bins = np.searchsorted(cuts, (rows % self.n_features << KEY_BITS) + keys, side="right") - 1
        table = np.zeros((len(self.n_per_class) if by_class else 1, len(cuts)), np.int64)
        np.add.at(table, (rows // self.n_features * by_class, bins), self.counts)
        return table

    @classmethod
    def of_table(cls, n_features: int, cuts: Integers, table: Integers) -> ColumnHistograms:
        """Histograms with samples in the bins of `table`, as if all of a bin had its lowest key.

        In the lowest bin of a column, which no finite value may start, they have its highest.
        """
        ends = np.append(cuts[1:], n_features << KEY_BITS)
        keys = np.where(cuts & ((1 << KEY_BITS) - 1) == 0, ends - 1, cuts)
        labels, bins = np.nonzero(table)
        cells = (labels * n_features << KEY_BITS) + keys[bins]
        sizes = table[:, cuts >> KEY_BITS == 0].sum(axis=1)
        return cls(n_features, sizes, cells, table[labels, bins])

    def finer(self, cuts: Integers, n_parts: int) -> Integers:
        """Cuts that split each bin in which `edges` or `relevance` look a quantile up; bins between are one."""
        wanted = sorted({*_ranks(self.n_examples, N_EDGES), *_ranks(self.n_examples, 2 * _RANK_BINS)[1:-1:2]})
        columns, keys, counts = self._over_classes()
        # Of each column the samples are numbered from n times its index.
        places = (np.arange(self.n_features)[:, None] * self.n_examples + np.array(wanted)).ravel()
        found = np.unique(np.searchsorted(np.cumsum(counts), places, side="right"))
        bins = np.unique(np.searchsorted(cuts, (columns[found] << KEY_BITS) + keys[found], side="right") - 1)
        low, end = cuts[bins], np.append(cuts[1:], self.n_features << KEY_BITS)[bins]
        steps = -(-(end - low) // n_parts)[:, None] * np.arange(n_parts)
        inner = (low[:, None] + steps)[steps < (end - low)[:, None]]
        starts = np.arange(self.n_features) << KEY_BITS
        return np.unique(np.concatenate([starts, inner, end[end < self.n_features << KEY_BITS]]))

    def _floored(self, least: int) -> ColumnHistograms:
        """Put neighbouring bins together until each has at least `least` samples."""
        cells: list[int] = []
        counts: list[int] = []
        rows = self.cells >> KEY_BITS
        bounds = [*np.flatnonzero(np.diff(rows, prepend=-1)).tolist(), len(rows)]
        for first, last in pairwise(bounds):
            held = 0
            begin = len(cells)
            for cell, count in zip(self.cells[first:last].tolist(), self.counts[first:last].tolist(), strict=True):
                held += count
                if held >= least:
                    cells.append(cell)
                    counts.append(held)
                    held = 0
            if held and len(cells) > begin:  # a class has at least so many samples, so there is a bin before
                counts[-1] += held
        sizes = self.n_per_class.copy()
        return ColumnHistograms(self.n_features, sizes, np.array(cells, np.int64), np.array(counts, np.int64))

    @property
    def n_examples(self) -> int:
        """Number of samples."""
        return sum(self.n_per_class.tolist())

    def __repr__(self) -> str:
        classes, columns = len(self.n_per_class), self.n_features
        return f"<ColumnHistograms of {self.n_examples} samples, {classes} classes, {columns} columns>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ColumnHistograms):
            return NotImplemented
        names = ("n_per_class", "cells", "counts")
        same = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)
        return same and self.n_features == other.n_features

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: ColumnHistograms) -> ColumnHistograms:
        return self._combine(other, 1) if isinstance(other, ColumnHistograms) else NotImplemented

    def __sub__(self, other: ColumnHistograms) -> ColumnHistograms:
        """Return the histograms without the samples of `other`; a `DataError` if they cannot be among these."""
        return self._combine(other, -1) if isinstance(other, ColumnHistograms) else NotImplemented

    def _combine(self, other: ColumnHistograms, sign: int) -> ColumnHistograms:
        shapes = [(len(each.n_per_class), each.n_features) for each in (self, other)]
        if shapes[0] != shapes[1]:
            raise DataError("histograms", f"{shapes[0]} classes and columns on both sides", str(shapes[1]))
        both = np.concatenate([self.cells, other.cells])
        cells, counts = _summed(both, np.concatenate([self.counts, sign * other.counts]))
        filled = counts != 0
        sizes = self.n_per_class + sign * other.n_per_class
        return ColumnHistograms(self.n_features, sizes, cells[filled], counts[filled])

    def edges(self, n_edges: int = N_EDGES) -> npt.NDArray[np.float64]:
        """Quantiles of every column over all classes at (k + 1/2) / n_edges, (d, n_edges): lower ends of bins.

        A `DataError` without samples.
        """
        n = self.n_examples
        if n == 0:
            raise DataError("histograms", "at least 1 sample", 0)
        columns, keys, counts = self._over_classes()
        edges = np.empty((self.n_features, n_edges))
        wanted = _ranks(n, n_edges)
        bounds = np.searchsorted(columns, np.arange(self.n_features + 1))
        for column, (first, last) in enumerate(pairwise(bounds.tolist())):
            up_to = np.cumsum(counts[first:last])
            edges[column] = values_of(keys[first:last][np.searchsorted(up_to, wanted, side="right")])
        return edges

    def relevance(self) -> list[float]:
        """Tell how much each column says of the class, d floats from 0 to 1, that of the most informative column.

        From the table of classes and of eight ranges of about as many samples: chi squared over n (the classes taken as
        equally frequent), less its value by chance; 0 below what the best of so many uninformative columns reaches. If
        no column exceeds that, all are 1.
        """
        sizes = self.n_per_class.astype(np.float64)
        filled = np.flatnonzero(sizes > 0)
        k = len(filled) - 1
        edges = self.edges(_RANK_BINS * 2)[:, 1::2][:, :-1]  # seven borders between eight ranges
        shares = self._table(keys_of(edges))[filled] / sizes[filled][:, None, None]
        # Of a column without information it is about chi squared distributed, over n, if the classes are of one size.
        n = len(filled) ** 2 / math.fsum((1 / sizes[filled]).tolist())
        t = 0.35 * self.n_features.bit_length()  # about log(d) / 2; logarithms depend on the machine
        values = []
        for column in range(self.n_features):
            table = shares[:, column]
            mean = [math.fsum(part) / len(filled) for part in table.T.tolist()]
            parts = [
                (share - middle) * (share - middle) / middle
                for row in table.tolist()
                for share, middle in zip(row, mean, strict=True)
                if middle
            ]
            value = math.fsum(parts) / len(filled)
            degrees = max(sum(middle > 0 for middle in mean) - 1, 0) * k
            by_chance = (degrees + 2 * math.sqrt(degrees * t) + 2 * t) / n
            values.append(max(value - degrees / n, 0.0) if value > by_chance else 0.0)
        most = max(values)
        return [value / most if most else 1.0 for value in values]

    def _over_classes(self) -> tuple[Integers, Integers, Integers]:
        """Columns, keys and counts of the filled bins of the columns, in order."""
        low = (1 << KEY_BITS) - 1
        cells = ((self.cells >> KEY_BITS) % self.n_features << KEY_BITS) | (self.cells & low)
        cells, counts = _summed(cells, self.counts)
        return cells >> KEY_BITS, cells & low, counts

    def _table(self, borders: Integers) -> npt.NDArray[np.float64]:
        """Samples of each class in the ranges between borders, (L, d, ranges); a border belongs to the range below."""
        n_ranges = borders.shape[1] + 1
        rows, keys = self.cells >> KEY_BITS, self.cells & ((1 << KEY_BITS) - 1)
        ranges = (borders[rows % self.n_features] < keys[:, None]).sum(axis=1)
        table = np.zeros(len(self.n_per_class) * self.n_features * n_ranges, np.int64)
        np.add.at(table, rows * n_ranges + ranges, self.counts)
        return table.reshape(len(self.n_per_class), self.n_features, n_ranges).astype(np.float64)


def _ranks(n: int, n_edges: int) -> list[int]:
    """Indices, in order of their values, of the samples at the quantiles of a column."""
    return [(2 * k + 1) * n // (2 * n_edges) for k in range(n_edges)]


def _cells(
    X: npt.NDArray[Any], y: npt.NDArray[np.int64], n_classes: int, center: npt.NDArray[np.float64]
) -> tuple[Integers, Integers]:
    """Filled cells, ascending, and the samples in each."""
    d = X.shape[1]
    if X.dtype in (np.bool_, np.uint8) and n_classes * d <= _LARGEST_TABLE // 256:
        # Of pixels only so many values occur: their numbers take a tenth of the time of sorting them.
        table = np.zeros((n_classes, d, 256), np.int64)
        _count_values(np.ascontiguousarray(X).view(np.uint8), np.ascontiguousarray(y), table)
        labels, columns, pixels = np.nonzero(table)
        counts: Integers | None = table[labels, columns, pixels]
        cells = ((labels * d + columns) << KEY_BITS) + keys_of(pixels - center[columns])
    else:
        with np.errstate(over="ignore"):  # with a centre far away; the result is refused
            values = np.asarray(X, np.float64) - center
        if not np.isfinite(values).all():
            raise DataError("X", "finite numbers that stay finite less their centre", "NaN, infinity or larger numbers")
        counts = None
        cells = (((y[:, None] * d + np.arange(d)) << KEY_BITS) + keys_of(values)).ravel()
    return _summed(cells, counts)


def _summed(cells: Integers, counts: Integers | None = None) -> tuple[Integers, Integers]:
    """The different cells, ascending, and the sum of the counts of each; a cell counts 1 without them."""
    if counts is None:
        ordered = np.sort(cells)
        first = np.flatnonzero(np.diff(ordered, prepend=-1))
        return ordered[first], np.diff(first, append=len(ordered))
    order = np.argsort(cells, kind="stable")  # which merges ascending parts in linear time
    ordered = cells[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    return ordered[first], np.add.reduceat(counts[order], first) if len(first) else counts[:0]


@njit(nogil=True, cache=True)
def _count_values(X, y, table):  # type: ignore[no-untyped-def]
    """Count the values of each column and class into the table, (L, d, 256)."""
    for p in range(X.shape[0]):
        for j in range(X.shape[1]):
            table[y[p], j, X[p, j]] += 1


def _row_sums(cells: Integers, counts: Integers, n_rows: int) -> Integers | None:
    """Sums of the counts of each row, (n_rows,); None if they leave int64."""
    if float(counts.astype(np.float64).sum()) >= 2.0**62:
        return None
    sums = np.zeros(n_rows, np.int64)
    np.add.at(sums, cells >> KEY_BITS, counts)
    return sums
