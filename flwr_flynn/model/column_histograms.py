"""Exact histograms of columns, class by class: all that a hash learns of the columns is
derived from them.

The bins are the same for everybody and need no look at the data: a value falls into the
bin that `hashing.rank_codes` calls its key, the sign, the exponent and the first bits
of its float64. So the histograms of any split of the samples, added in any order, are
equal. A gap, NaN, has a bin of its own, from which nothing but the number of gaps
follows.

With a floor, `min_examples` above 1, a party tells order statistics in the place of all
values: those of ranks that follow from the number of its samples alone. So no request
leads to other groups of samples, and no two answers differ in the values that they tell
of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from flwr_flynn._types import Floats, Integers, Matrix
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.rank_codes import (
    FIRST_GAP,
    GAP,
    KEY_BITS,
    MANTISSA_BITS,
    N_EDGES,
    keys_of,
    values_of,
)
from flwr_flynn.model.column_cells import (
    SHARED,
    cells_of,
    coarse,
    dense_batches,
    floor_of,
    floored_cells,
    summed,
)
from flwr_flynn.model.counts import Additive

# Classes times columns, at most, so that the cells fit int64.
_LARGEST_GRID = 2 ** (62 - KEY_BITS)
# Edges of a column that are borders: seven between eight ranges of as many samples.
_BORDERS = slice(3, 28, 4)
_LOW = (1 << KEY_BITS) - 1
LARGEST_GROUP = 2**20  # whose square is told
# Variance that the groups of a party add to the samples of a class in a range, beside
# that of samples one by one, in squares of the size of a group.
_GROUP_NOISE = 3.0


@dataclass(frozen=True, eq=False, repr=False)
class ColumnHistograms(Additive):
    """Number of samples of each class in each bin of each column. Immutable.

    Only filled cells are kept.

    Parameters
    ----------
    n_features : int
    n_per_class : (L,) int64
        Samples of each class: each has one value in every column.
    cells : (k,) int64
        Filled cells, ascending: (class * n_features + column) * 2**KEY_BITS + key.
    counts : (k,) int64
        Samples in each, at least 1.
    group_squares : (L,) int64
        Of values that are told by groups: the square of the size of a party's groups,
        summed over parties; 0 of exact histograms.

    Raises
    ------
    DataError
        Arrays that are the histograms of no samples.

    Examples
    --------
    >>> X, y = np.array([[1.0], [2.0], [2.0]]), np.array([0, 0, 1])
    >>> ColumnHistograms.from_data(X, y, n_classes=2).center_and_deviation()[0]
    [1.65625]
    """

    n_features: int
    n_per_class: Integers
    cells: Integers
    counts: Integers
    group_squares: Integers

    def __post_init__(self) -> None:
        sizes = self.n_per_class
        cells = self.cells
        counts = self.counts
        n_rows = len(sizes) * self.n_features
        if (
            sizes.ndim != 1
            or not len(sizes)
            or not 0 < n_rows <= _LARGEST_GRID
            or sizes.min() < 0
        ):
            raise DataError(
                "histograms",
                "at least 1 class and 1 column",
                f"{len(sizes)} and {self.n_features}",
            )
        if (
            cells.ndim != 1
            or cells.shape != counts.shape
            or (cells[1:] <= cells[:-1]).any()
        ):
            raise DataError(
                "histograms",
                "ascending cells, each with a count",
                f"{cells.shape} and {counts.shape}",
            )
        if len(cells) and not (
            cells[0] >= 0 and cells[-1] < n_rows << KEY_BITS and counts.min() >= 1
        ):
            raise DataError(
                "histograms",
                "cells of these classes and columns with counts above 0",
                "others",
            )
        # Every sample is in one bin of every column.
        totals = _row_sums(cells, counts, n_rows)
        if totals is None or (totals != np.repeat(sizes, self.n_features)).any():
            raise DataError(
                "histograms",
                "as many values in each column as samples of the class",
                "other numbers",
            )
        squares = self.group_squares
        if squares.shape != sizes.shape or squares.min() < 0:
            raise DataError("histograms", f"{len(sizes)} squares", str(squares.shape))
        for array in (sizes, cells, counts, squares):
            array.flags.writeable = False

    @classmethod
    def zeros(cls, n_features: int, n_classes: int) -> ColumnHistograms:
        """Histograms of no samples."""
        return cls(
            n_features,
            np.zeros(n_classes, np.int64),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.zeros(n_classes, np.int64),
        )

    @classmethod
    def from_data(
        cls, X: Matrix, y: Integers, n_classes: int, min_examples: int = 1
    ) -> ColumnHistograms:
        """Histograms of samples, (n, d) finite or NaN, dense or CSR.

        With `min_examples` above 1, classes of fewer samples are left out. In each
        column the samples of a class, in the order of their values (gaps last), form
        groups of `min_examples` consecutive ranks; the remainder joins the last group.
        All samples of a group count at one value: that of its highest rank, in the last
        group that of its lowest rank, and of a single group the median. So at least
        `min_examples` samples of the class are at or below each value told, and as many
        at or above it, unless it is the median; the lowest and the highest value are
        told only where so many samples share them, or, in a class of fewer than twice
        as many, about half. The ranks do not depend on the values. Floors of 2 and 3
        are taken as 4, see `floor_of`.
        """
        d = X.shape[1]
        least = floor_of(min_examples)
        if least > 1:
            n_per_class = np.bincount(y, minlength=n_classes)
            n_per_class[n_per_class < least] = 0
            squares = np.where(n_per_class > 0, min(least, LARGEST_GROUP) ** 2, 0)
            told = floored_cells(X, y, n_per_class, least)
            return cls(d, n_per_class, *told, squares)
        sums = [cls.zeros(d, n_classes)]  # of batches, each of more cells than the next
        for rows, labels in dense_batches(X, y):
            sums.append(
                cls(
                    d,
                    np.bincount(labels, minlength=n_classes),
                    *cells_of(rows, labels, n_classes),
                    np.zeros(n_classes, np.int64),
                )
            )
            # Sums of about as many cells are added, so that a cell goes through log2 of
            # the number of batches.
            while len(sums) > 1 and len(sums[-2].cells) < 2 * len(sums[-1].cells):
                sums.append(sums.pop() + sums.pop())
        total = sums.pop()
        while sums:
            total += sums.pop()
        return total

    def table(self, cuts: Integers, by_class: bool) -> Integers:
        """Samples of each class, or of all together, in bins of the columns, (L or 1,
        bins).

        `cuts`, ascending, are the lowest keys of the bins, column * 2**KEY_BITS + key;
        one for key 0 of each column.
        """
        rows = self.cells >> KEY_BITS
        keys = self.cells & _LOW
        bins = (
            np.searchsorted(
                cuts, (rows % self.n_features << KEY_BITS) + keys, side="right"
            )
            - 1
        )
        labels = np.zeros_like(rows)
        n_rows = 1
        if by_class:
            labels = rows // self.n_features
            n_rows = len(self.n_per_class)
        table = np.zeros((n_rows, len(cuts)), np.int64)
        np.add.at(table, (labels, bins), self.counts)
        return table

    @classmethod
    def of_table(
        cls,
        n_features: int,
        cuts: Integers,
        table: Integers,
        group_squares: Integers,
    ) -> ColumnHistograms:
        """Histograms with samples in the bins of `table`, as if all of a bin had its
        lowest key.

        In the lowest bin of a column, which no finite value may start, they have its
        highest. A bin from `FIRST_GAP` on is of gaps.
        """
        ends = np.append(cuts[1:], n_features << KEY_BITS)
        keys = np.where(cuts & _LOW == 0, ends - 1, cuts)
        keys[cuts & _LOW == FIRST_GAP] += GAP - FIRST_GAP
        labels, bins = np.nonzero(table)
        cells = (labels * n_features << KEY_BITS) + keys[bins]
        sizes = table[:, cuts >> KEY_BITS == 0].sum(axis=1)
        counts = table[labels, bins]
        return cls(n_features, sizes, cells, counts, group_squares)

    def finer(self, cuts: Integers, n_parts: int) -> Integers:
        """Cuts that split each bin in which the lowest, the highest or an edge of a
        column is.

        Bins between are one.
        """
        d = self.n_features
        columns, keys, counts = self._over_classes()
        # Of all columns one after the other the numbers are numbered.
        first = np.concatenate([[0], np.cumsum(self.n_numbers)])
        ranks = [
            first[j] + np.array(_ranks(n), np.int64)
            for j, n in enumerate(self.n_numbers)
            if n
        ]
        ranks_of_all = np.concatenate([np.zeros(0, np.int64), *ranks])
        at_ranks = np.unique(
            np.searchsorted(np.cumsum(counts), ranks_of_all, side="right")
        )
        bins = np.unique(
            np.searchsorted(
                cuts, (columns[at_ranks] << KEY_BITS) + keys[at_ranks], side="right"
            )
            - 1
        )
        low = cuts[bins]
        end = np.append(cuts[1:], d << KEY_BITS)[bins]
        steps = -(-(end - low) // n_parts)[:, None] * np.arange(n_parts)
        inner = (low[:, None] + steps)[steps < (end - low)[:, None]]
        starts = np.arange(d) << KEY_BITS
        gaps = cuts[cuts & _LOW == FIRST_GAP]
        return np.unique(
            np.concatenate([starts, inner, end[end < d << KEY_BITS], gaps])
        )

    @property
    def n_examples(self) -> int:
        """Number of samples."""
        return sum(self.n_per_class.tolist())

    def __repr__(self) -> str:
        classes = len(self.n_per_class)
        columns = self.n_features
        return (
            f"<ColumnHistograms of {self.n_examples} samples, {classes} classes, "
            f"{columns} columns>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ColumnHistograms):
            return NotImplemented
        names = ("n_per_class", "cells", "counts", "group_squares")
        same = all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in names
        )
        return same and self.n_features == other.n_features

    def _combined(self, other: ColumnHistograms, sign: int) -> ColumnHistograms:
        shape = (len(self.n_per_class), self.n_features)
        other_shape = (len(other.n_per_class), other.n_features)
        if shape != other_shape:
            raise DataError(
                "histograms",
                f"{shape} classes and columns on both sides",
                str(other_shape),
            )
        both = np.concatenate([self.cells, other.cells])
        cells, counts = summed(both, np.concatenate([self.counts, sign * other.counts]))
        filled = counts != 0
        sizes = self.n_per_class + sign * other.n_per_class
        squares = self.group_squares + sign * other.group_squares
        return ColumnHistograms(
            self.n_features, sizes, cells[filled], counts[filled], squares
        )

    def edges(self) -> Floats:
        """Quantiles of the numbers of every column over all classes at (k + 1/2) / 32,
        (d, 32): lower ends of bins.

        A `DataError` without samples.
        """
        return self.quantiles[:, 1:-1]

    def center_and_deviation(self) -> tuple[list[float], list[float]]:
        """Centre and standard deviation of each column: those of its edges.

        So a few large values do not matter. Where all edges are equal, the lowest and
        the highest value of the column join them: a value that is rare still makes a
        difference. A column whose values are in two neighbouring bins at most may be
        constant but for rounding: it has deviation 0, or the width of a bin where that
        exceeds 1. A `DataError` without samples.
        """
        centers = []
        deviations = []
        keys = self._at_ranks[0]
        for quantiles, (lowest, *_, highest) in zip(
            self.quantiles.tolist(), keys.tolist(), strict=True
        ):
            typical = quantiles[1:-1]
            if typical[0] == typical[-1]:
                typical = quantiles
            center, deviation = _mean_and_deviation(typical)
            if highest - lowest <= 1:
                deviation = 0.0
                width = math.ldexp(abs(center), -MANTISSA_BITS)
                if width > 1:
                    deviation = width
            centers.append(center)
            deviations.append(deviation)
        return centers, deviations

    def relevance(self) -> list[float]:
        """Relevance of each column to the class, d floats from 0 to 1.

        The most informative column has 1.

        From the table of classes and of eight ranges of about as many samples: chi
        squared over n (the classes taken as equally frequent), less its value by
        chance; 0 below what the best of so many uninformative columns reaches. If no
        column exceeds that, all are 1. Groups of values move at random over the borders
        of the ranges: as if there were fewer samples.
        """
        sizes = self.n_per_class.astype(np.float64)
        sizes /= 1 + _GROUP_NOISE * self.group_squares / np.maximum(sizes, 1.0)
        filled = np.flatnonzero(sizes > 0)
        k = len(filled) - 1
        shares = _shares(self._table(self._at_ranks[0][:, 1:-1][:, _BORDERS])[filled])
        # Of a column without information it is about chi squared distributed, over n,
        # if the classes are of one size.
        n = len(filled) ** 2 / math.fsum((1 / sizes[filled]).tolist())
        # This is about log(d) / 2; a logarithm would depend on the machine.
        t = 0.35 * self.n_features.bit_length()
        gains = []
        for column in range(self.n_features):
            table = shares[:, column]
            mean = np.array(
                [math.fsum(part) / len(filled) for part in table.T.tolist()]
            )
            table = table[:, mean > 0]
            mean = mean[mean > 0]
            terms = np.square(table - mean) / mean
            chi_squared = math.fsum(terms.ravel().tolist()) / len(filled)
            degrees = max(len(mean) - 1, 0) * k
            by_chance = (degrees + 2 * math.sqrt(degrees * t) + 2 * t) / n
            gain = 0.0
            if chi_squared > by_chance:
                gain = max(chi_squared - degrees / n, 0.0)
            gains.append(gain)
        largest = max(gains)
        if not largest:
            return [1.0] * self.n_features
        return [gain / largest for gain in gains]

    @cached_property
    def quantiles(self) -> Floats:
        """Lowest value, edges and highest value of each column, (d, 34): lower ends of
        bins.

        They are 0 for a column without a number.

        They have no more digits than they need, but for values that several samples
        share, see `coarse`.
        """
        keys, counts = self._at_ranks
        values = values_of(keys)
        low = values[:, [0, *range(N_EDGES + 1)]]
        high = values[:, [*range(1, N_EDGES + 2), N_EDGES + 1]]
        with np.errstate(over="ignore"):
            return coarse(
                values, low, high, values[:, -1:] - values[:, :1], counts >= SHARED
            )

    @cached_property
    def _at_ranks(self) -> tuple[Integers, Integers]:
        """Keys of the lowest value, the edges and the highest value of each column, (d,
        34), and the samples in their bins.
        """
        if not self.n_examples:
            raise DataError("histograms", "at least 1 sample", 0)
        columns, keys, counts = self._over_classes()
        shape = (self.n_features, N_EDGES + 2)
        at_ranks = np.full(shape, keys_of(np.zeros(1)))
        sizes = at_ranks.copy()
        bounds = np.searchsorted(columns, np.arange(self.n_features + 1))
        for column, (first, last) in enumerate(pairwise(bounds.tolist())):
            if first < last:
                up_to = np.cumsum(counts[first:last])
                at = first + np.searchsorted(
                    up_to, _ranks(int(up_to[-1])), side="right"
                )
                at_ranks[column] = keys[at]
                sizes[column] = counts[at]
        return at_ranks, sizes

    @property
    def n_numbers(self) -> list[int]:
        """Samples with a number, and no gap, in each column."""
        columns, _, counts = self._over_classes()
        sums = np.zeros(self.n_features, np.int64)
        np.add.at(sums, columns, counts)
        numbers: list[int] = sums.tolist()
        return numbers

    def _over_classes(self) -> tuple[Integers, Integers, Integers]:
        """Columns, keys and counts of the filled bins of the columns, in order, without
        gaps.
        """
        is_number = self.cells & _LOW != GAP
        cells, counts = summed(
            self.cells[is_number] % (self.n_features << KEY_BITS),
            self.counts[is_number],
        )
        return cells >> KEY_BITS, cells & _LOW, counts

    def _table(self, borders: Integers) -> Floats:
        """Samples of each class in the ranges between borders, (L, d, ranges).

        A border belongs to the range below.
        """
        starts = np.arange(self.n_features)[:, None] << KEY_BITS
        cuts = starts + np.pad(
            borders + 1, ((0, 0), (1, 1)), constant_values=(0, FIRST_GAP)
        )
        table = self.table(cuts.ravel(), by_class=True).reshape(-1, *cuts.shape)
        return table[:, :, :-1].astype(np.float64)  # without gaps


def _shares(table: Floats) -> Floats:
    """Shares of the ranges among the numbers of each class and column.

    A class without numbers has the shares of the other classes.
    """
    sums = table.sum(axis=2, keepdims=True)  # of integers, exact in any order
    shares: Floats = table / np.maximum(sums, 1.0)
    for index in np.argwhere(sums[:, :, 0] == 0).tolist():
        others = sums[:, index[1], 0] > 0
        if others.any():
            shares[index[0], index[1]] = (
                shares[others, index[1]].sum(axis=0) / others.sum()
            )
    return shares


def _mean_and_deviation(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation of some finite floats, of any size and in any order
    the same.
    """
    # Sums and squares of the floats might overflow.
    exponent = math.frexp(max(map(abs, values)))[1]
    scaled = [math.ldexp(value, -exponent) for value in values]
    mean = math.fsum(scaled) / len(scaled)
    deviation = math.sqrt(
        math.fsum((value - mean) * (value - mean) for value in scaled) / len(scaled)
    )
    return math.ldexp(mean, exponent), math.ldexp(deviation, exponent)


def _ranks(n: int) -> list[int]:
    """Ranks, from 0, of the lowest value of a column, its edges and its highest value."""
    return [0, *((2 * k + 1) * n // (2 * N_EDGES) for k in range(N_EDGES)), n - 1]


def _row_sums(cells: Integers, counts: Integers, n_rows: int) -> Integers | None:
    """Sums of the counts of each row, (n_rows,); None if they leave int64."""
    if float(counts.astype(np.float64).sum()) >= 2.0**62:
        return None
    sums = np.zeros(n_rows, np.int64)
    np.add.at(sums, cells >> KEY_BITS, counts)
    return sums
