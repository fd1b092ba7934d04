"""Exact histograms of columns, class by class: the counts from which the rank codes of a hash are derived.

The bins are the same for everybody and need no look at the data: a value falls into the bin that `hashing.rank_codes`
calls its key, the sign, the exponent and the first ten bits of its float64. So the histograms of any split of the
samples, added in any order, are equal.

With a floor, `min_examples` above 1, a party tells order statistics in the place of all values: those of ranks that
follow from the number of its samples alone. So no request leads to other groups of samples, and no two answers differ
in the values that they tell of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from flwr_flynn.errors import DataError
from flwr_flynn.hashing.rank_codes import KEY_BITS, N_EDGES, keys_of, values_of
from flwr_flynn.model.column_moments import floor_of

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

        With `min_examples` above 1, classes of fewer samples are left out. In each column the samples of a class, in
        the order of their values, form groups of `min_examples` consecutive ranks; the remainder joins the last group.
        All samples of a group count at one value: that of its highest rank, in the last group that of its lowest rank,
        and of a single group the median. So at least `min_examples` samples of the class are at or below each value
        told, and as many at or above it, unless it is the median; the lowest and the highest value are told only where
        so many samples share them, or, in a class of fewer than twice as many, about half. The ranks do not depend on
        the values or the centre: histograms about another centre tell the same order statistics. Floors of 2 and 3 are
        taken as 4, see `floor_of`.
        """
        d = X.shape[1]
        middle = np.zeros(d) if center is None else np.asarray(center, np.float64)
        if (least := floor_of(min_examples)) > 1:
            kept = np.bincount(y, minlength=n_classes)
            kept[kept < least] = 0
            return cls(d, kept, *_floored_cells(X, y, kept, middle, least))
        sums = [cls.zeros(d, n_classes)]  # of batches, each of more cells than the next
        for rows, labels in _batches(X, y):
            cells, counts = _cells(rows, labels, n_classes, middle)
            sums.append(cls(d, np.bincount(labels, minlength=n_classes), cells, counts))
            # Sums of about as many cells are added, so that a cell goes through log2 of the number of batches.
            while len(sums) > 1 and len(sums[-2].cells) < 2 * len(sums[-1].cells):
                sums.append(sums.pop() + sums.pop())
        total = sums.pop()
        while sums:
            total += sums.pop()
        return total

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


def _batches(X: Any, y: Integers) -> Iterator[tuple[npt.NDArray[Any], Integers]]:
    """Samples and labels, some at a time, dense."""
    step = max(1, _BATCH // X.shape[1])
    for first in range(0, X.shape[0], step):
        rows = X[first : first + step]
        yield rows.toarray() if sp.issparse(rows) else rows, y[first : first + step]


def _cells(
    X: npt.NDArray[Any], y: Integers, n_classes: int, center: npt.NDArray[np.float64]
) -> tuple[Integers, Integers]:
    """Filled cells, ascending, and the samples in each."""
    d = X.shape[1]
    if _fits_table(X, n_classes):
        table = np.zeros((n_classes, d, 256), np.int64)
        _count_values(np.ascontiguousarray(X).view(np.uint8), np.ascontiguousarray(y), table)
        return _cells_of_table(table, center)
    keys = _centred_keys(np.asarray(X, np.float64), center)
    return _summed((((y[:, None] * d + np.arange(d)) << KEY_BITS) + keys).ravel())


def _floored_cells(
    X: Any, y: Integers, kept: Integers, center: npt.NDArray[np.float64], least: int
) -> tuple[Integers, Integers]:
    """Filled cells, ascending, and the samples in each, of groups of ranks; `kept` has 0 for classes left out."""
    d, labels = X.shape[1], np.flatnonzero(kept).tolist()
    weights = {label: _weights_of_ranks(int(kept[label]), least) for label in labels}
    if _fits_table(X, len(kept)):
        table = np.zeros((len(kept), d, 256), np.int64)
        for rows, codes in _batches(X, y):
            _count_values(np.ascontiguousarray(rows).view(np.uint8), np.ascontiguousarray(codes), table)
        table[kept == 0] = 0
        for label in labels:
            # A value has the ranks from the number of samples below it; so many count at values of lower ranks.
            before = np.append(0, np.cumsum(weights[label]))
            table[label] = np.diff(before[np.cumsum(table[label], axis=1)], axis=1, prepend=0)
        return _cells_of_table(table, center)
    order, ends = np.argsort(y, kind="stable"), np.cumsum(np.bincount(y, minlength=len(kept)))
    columns = X.tocsc() if sp.issparse(X) else X
    step = max(1, _BATCH // max(len(y), 1))  # columns at a time
    parts: dict[int, list[tuple[Integers, Integers]]] = {label: [] for label in labels}
    for first in range(0, d, step):
        block = columns[:, first : first + step]
        values = np.ascontiguousarray((block.toarray() if sp.issparse(block) else block)[order].T)
        if not np.isfinite(values).all():
            raise _not_finite()
        place = np.arange(first, first + len(values))[:, None]
        for label in labels:
            ranked, ranks = values[:, ends[label] - kept[label] : ends[label]], np.flatnonzero(weights[label])
            ranked.sort(axis=1)
            keys = _centred_keys(ranked[:, ranks].astype(np.float64), center[place])
            cells = ((label * d + place) << KEY_BITS) + keys
            parts[label].append(_merged(cells.ravel(), np.tile(weights[label][ranks], len(place))))
    none = np.zeros(0, np.int64)
    found = [(none, none), *(part for label in labels for part in parts[label])]  # which ascend
    return np.concatenate([cells for cells, _ in found]), np.concatenate([counts for _, counts in found])


def _weights_of_ranks(n: int, least: int) -> Integers:
    """Samples that count at the value of each rank, (n,): 0 but at one rank of each group."""
    weights, last = np.zeros(n, np.int64), (n // least - 1) * least
    weights[least - 1 : last : least] = least
    weights[last or n // 2] = n - last
    return weights


def _fits_table(X: Any, n_classes: int) -> bool:
    """Tell whether the values are counted in a table: of pixels only so many occur, which is a tenth of the work."""
    return X.dtype in (np.bool_, np.uint8) and n_classes * X.shape[1] <= _LARGEST_TABLE // 256


def _cells_of_table(table: Integers, center: npt.NDArray[np.float64]) -> tuple[Integers, Integers]:
    """Filled cells, ascending, and the samples in each, of the numbers of all pixels, (L, d, 256)."""
    labels, columns, pixels = np.nonzero(table)
    cells = (labels * table.shape[1] + columns) << KEY_BITS
    return _summed(cells + _centred_keys(pixels.astype(np.float64), center[columns]), table[labels, columns, pixels])


def _centred_keys(values: npt.NDArray[np.float64], center: npt.NDArray[np.float64]) -> Integers:
    """Keys of values less their centre; a `DataError` unless these are finite."""
    with np.errstate(over="ignore"):  # with a centre far away
        centred = values - center
    if not np.isfinite(centred).all():
        raise _not_finite()
    return keys_of(centred)


def _not_finite() -> DataError:
    return DataError("X", "finite numbers that stay finite less their centre", "NaN, infinity or larger numbers")


def _summed(cells: Integers, counts: Integers | None = None) -> tuple[Integers, Integers]:
    """The different cells, ascending, and the sum of the counts of each; a cell counts 1 without them."""
    if counts is None:
        ordered = np.sort(cells)
        first = np.flatnonzero(np.diff(ordered, prepend=-1))
        return ordered[first], np.diff(first, append=len(ordered))
    order = np.argsort(cells, kind="stable")  # which merges ascending parts in linear time
    return _merged(cells[order], counts[order])


def _merged(cells: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The different ones of cells that do not descend, and the sum of the counts of each."""
    first = np.flatnonzero(np.diff(cells, prepend=-1))
    return cells[first], np.add.reduceat(counts, first) if len(first) else counts[:0]


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
