"""Exact moments of columns: the sums from which centre and scale of a hash are derived.

Floating-point sums depend on the order of their terms. The sums here are integers: a float64 is an integral multiple of
2 ** -1074 and its square of 2 ** -2148. `ColumnMoments` of any split of the samples, added in any order, are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from flwr_flynn.errors import DataError

Integers = npt.NDArray[np.object_]  # Python integers: no bound, no rounding

SCALINGS = ("center", "standard", "weighted", "weighted-center")  # see `ColumnMoments.center_and_scale`

_UNIT = 1074  # values are multiples of 2 ** -_UNIT
_LARGEST = int(np.finfo(np.float64).max) << _UNIT
_LIMB = 32  # bits
_BATCH = 2**22  # values at a time; sums of so many limbs fit int64
_EPSILON = float(np.finfo(np.float64).eps)
_FAINTEST = 0.05  # weight of an uninformative column; the most informative one has 1.05


def floor_of(min_examples: int) -> int:
    """Fewest samples of a class of which anything is told: `min_examples`, but 4 for 2 and 3.

    Sum and sum of squares determine two values; with the median of the histograms they determine three.
    """
    return 4 if min_examples in (2, 3) else min_examples


@dataclass(frozen=True, eq=False, repr=False)
class ColumnMoments:
    """Class sizes, (L,) int64, and for each class and column the sums of values and of squares, (L, d). Immutable.

    The sums are Python integers in units of 2 ** -1074, those of squares in units of 2 ** -2148. A `DataError` refuses
    sums of no set of numbers: one exists if and only if n * squares >= sums ** 2 and classes without samples have sums
    of 0.

    >>> ColumnMoments.from_data(np.array([[1.0], [3.0]]), np.array([0, 0]), n_classes=1).center_and_scale("standard")
    ((2.0,), (1.0,))
    """

    n_per_class: npt.NDArray[np.int64]
    sums: Integers
    squares: Integers

    def __post_init__(self) -> None:
        sizes, sums, squares = self.n_per_class, self.sums, self.squares
        if sums.ndim != 2 or sums.shape != squares.shape or sizes.shape != sums.shape[:1]:
            got = f"{sizes.shape}, {sums.shape}, {squares.shape}"
            raise DataError("column moments", "shapes (L,), (L, d), (L, d)", got)
        if sizes.min(initial=0) < 0 or sum(sizes.tolist()) >= 2**63:
            raise DataError("column moments", "class sizes from 0 with a sum below 2**63", "sizes out of range")
        n = sizes.astype(object)[:, None]
        # The largest float bounds the squares of so many samples, and the squares bound the sums (Cauchy-Schwarz).
        if (squares > n * _LARGEST**2).any() or (n * squares < sums * sums).any():
            raise DataError("column moments", "sums and squares of some set of finite numbers", "sums of no such set")
        if (sizes == 0).any() and (squares[sizes == 0] != 0).any():
            raise DataError("column moments", "sums of 0 in classes without samples", "other sums")
        for array in (sizes, sums, squares):
            array.flags.writeable = False

    @classmethod
    def zeros(cls, n_features: int, n_classes: int) -> ColumnMoments:
        """Moments of no samples."""
        nothing = np.zeros((n_classes, n_features), object)
        return cls(np.zeros(n_classes, np.int64), nothing, nothing.copy())

    @classmethod
    def from_data(cls, X: Any, y: npt.NDArray[np.int64], n_classes: int, min_examples: int = 1) -> ColumnMoments:
        """Moments of samples, (n, d) finite, dense or CSR, less those of classes of fewer than `min_examples`.

        Floors of 2 and 3 are taken as 4, see `floor_of`.
        """
        n, d = X.shape
        total = cls.zeros(d, n_classes)
        keep = np.bincount(y, minlength=n_classes) >= floor_of(min_examples)
        step = max(1, _BATCH // d)
        for first in range(0, n, step):
            rows, labels = X[first : first + step], y[first : first + step]
            if not keep.all():
                rows, labels = rows[keep[labels]], labels[keep[labels]]
            if rows.shape[0]:
                total += cls._of_batch(rows, np.ascontiguousarray(labels, np.int64), n_classes)
        return total

    @classmethod
    def _of_batch(cls, X: Any, y: npt.NDArray[np.int64], n_classes: int) -> ColumnMoments:
        d = X.shape[1]
        sizes = np.bincount(y, minlength=n_classes).astype(np.int64)
        if sp.issparse(X):
            X = sp.csr_array(X)
            if not X.has_canonical_format:
                X = X.copy()
                X.sum_duplicates()
            values, columns = X.data.astype(np.float64), X.indices.astype(np.int64)
            labels = np.repeat(y, np.diff(X.indptr))
        elif X.dtype in (np.bool_, np.uint8, np.int8, np.uint16, np.int16):  # pixels need no limbs
            low_sums, low_squares = np.zeros((2, n_classes, d), np.int64)
            _add_integers(np.ascontiguousarray(X), y, low_sums, low_squares)
            return cls(sizes, low_sums.astype(object) << _UNIT, low_squares.astype(object) << 2 * _UNIT)
        else:
            values = np.ascontiguousarray(X, np.float64).ravel()
            columns, labels = np.empty(0, np.int64), y
        if not np.isfinite(values).all():
            raise DataError("X", "finite numbers", "NaN or infinity")
        exponents = np.frexp(values[values != 0])[1]
        low, high = (int(exponents.min()), int(exponents.max())) if len(exponents) else (0, 0)
        # From the lowest of the 53 bits of a value, with room for two limbs into which a shift may push the highest.
        first = max(low - 53 + _UNIT, 0) // _LIMB
        limbs = np.zeros((n_classes, d, (high + _UNIT) // _LIMB - first + 3), np.int64)
        first_square = 2 * max(low - 53 + _UNIT, 0) // _LIMB
        square_limbs = np.zeros((n_classes, d, 2 * (high + _UNIT) // _LIMB - first_square + 5), np.int64)
        _add_limbs(values, columns, labels, first * _LIMB, first_square * _LIMB, limbs, square_limbs)
        return cls(sizes, _from_limbs(limbs, first), _from_limbs(square_limbs, first_square))

    @property
    def n_features(self) -> int:
        """Number of columns, d."""
        return int(self.sums.shape[1])

    @property
    def n_examples(self) -> int:
        """Number of samples."""
        return sum(self.n_per_class.tolist())

    def __repr__(self) -> str:
        return f"<ColumnMoments of {self.n_examples} samples, {self.sums.shape[0]} classes, {self.n_features} columns>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ColumnMoments):
            return NotImplemented
        names = ("n_per_class", "sums", "squares")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: ColumnMoments) -> ColumnMoments:
        if not isinstance(other, ColumnMoments):
            return NotImplemented
        self._check_shape(other)
        return ColumnMoments(self.n_per_class + other.n_per_class, self.sums + other.sums, self.squares + other.squares)

    def __sub__(self, other: ColumnMoments) -> ColumnMoments:
        """Return the moments without the samples of `other`; a `DataError` if they cannot be among these."""
        if not isinstance(other, ColumnMoments):
            return NotImplemented
        self._check_shape(other)
        return ColumnMoments(self.n_per_class - other.n_per_class, self.sums - other.sums, self.squares - other.squares)

    def _check_shape(self, other: ColumnMoments) -> None:
        if self.sums.shape != other.sums.shape:
            raise DataError("column moments", f"shape {self.sums.shape} on both sides", f"shape {other.sums.shape}")

    def to_limbs(self) -> list[npt.NDArray[Any]]:
        """Encode as `n_per_class` and, for sums and squares, (L, d, k + 1) uint32.

        These hold the index of the lowest limb, the same all over the array, then k limbs of 32 bits, lowest first, in
        two's complement; k is as small as possible.
        """
        return [self.n_per_class.copy(), _to_limbs(self.sums), _to_limbs(self.squares)]

    @classmethod
    def from_limbs(cls, arrays: list[npt.NDArray[Any]], n_features: int, n_classes: int) -> ColumnMoments:
        """Decode the arrays of `to_limbs`; nothing is assumed of them, and a `DataError` refuses any other."""
        if not isinstance(arrays, Sequence) or len(arrays) != 3 or not all(isinstance(a, np.ndarray) for a in arrays):
            got = f"{len(arrays)} entries" if isinstance(arrays, Sequence) else type(arrays).__name__
            raise DataError("column moments", "3 arrays (sizes, sums, squares)", got)
        sizes, *limbs = arrays
        if sizes.dtype.str != "<i8" or sizes.shape != (n_classes,):
            got = f"{sizes.dtype} of shape {str(sizes.shape)[:60]}"
            raise DataError("column moments", f"{n_classes} class sizes of int64", got)
        for array, most in zip(limbs, _MOST_LIMBS, strict=True):
            if array.dtype.str != "<u4" or array.ndim != 3 or array.shape[:2] != (n_classes, n_features):
                got = f"{array.dtype} of shape {str(array.shape)[:60]}"
                raise DataError("column moments", f"uint32 of shape ({n_classes}, {n_features}, limbs)", got)
            lowest = array[:, :, 0]
            if not 2 <= array.shape[2] <= most + 1 or (lowest != lowest[0, 0]).any() or lowest[0, 0] > most:
                expected = f"1 to {most} limbs from one index of at most {most}"
                raise DataError("column moments", expected, f"{array.shape[2] - 1} limbs from index {lowest[0, 0]}")
        return cls(sizes.copy(), *(_from_wire(array) for array in limbs))

    def center_and_scale(self, scaling: str) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
        """Derive centre and scale (a tuple of d floats, or None) for a hash; a `DataError` without samples.

        "center": the mean, no scale. "standard": the mean, and one over the standard deviation, or 1 for a column that
        is constant up to rounding. "weighted": "standard" times the weight of the column. "weighted-center": the mean,
        and the weight alone. A common power of two is added as a factor to the first and last where deviations are far
        from 1.

        The weight of a column is sqrt(w / max w) + 0.05, where w = r - (L - 1) / n and r is the share of the variance
        that lies between the class means (the correlation ratio). But w = 0 where r is below
        (k + 2 sqrt(k t) + 2 t) / n, k = L - 1, t = 0.35 times the number of bits of d: among d uninformative columns,
        less than one exceeds this bound by chance (after Laurent & Massart 2000, Lemma 1). If no column exceeds it, all
        weights are 1. Weights are not learned again for a left-out sample: leave-one-out is exact given the scaling.
        """
        n = self.n_examples
        if n == 0:
            raise DataError("column moments", "at least 1 sample", 0)
        center = tuple(_ratio(total, n) for total in self.sums.sum(axis=0))
        deviations = self.deviations()
        weights = self._weights() if scaling.startswith("weighted") else [1.0] * self.n_features
        if scaling in ("center", "weighted-center"):
            # A common factor does not change the hash, and numbers of moderate size fit float32 better.
            exponent = math.frexp(max(deviations))[1]
            common = 1.0 if abs(exponent) < 64 else 2.0 ** -max(min(exponent, 1020), -1020)
            if scaling == "center" and common == 1.0:
                return center, None
            return center, tuple(weight * common for weight in weights)
        scale = []
        for mean, deviation, weight in zip(center, deviations, weights, strict=True):
            # Values that differ in their last digits only are meant to be equal.
            varies = deviation > 10 * _EPSILON * abs(mean) and math.isfinite(1 / deviation)
            scale.append(weight / deviation if varies else 1.0)
        return center, tuple(scale)

    def deviations(self) -> list[float]:
        """Standard deviation of each column over all classes, d floats."""
        return [_ratio(spread, self.n_examples) for spread in self._spreads()]

    def distance(self, scale: Sequence[float] | None) -> float:
        """Typical distance of two scaled samples: the square root of the mean squared distance."""
        factors = [1.0] * self.n_features if scale is None else scale
        products = [factor * deviation for factor, deviation in zip(factors, self.deviations(), strict=True)]
        exponent = math.frexp(max(products))[1]  # their squares might overflow
        scaled = [math.ldexp(product, -exponent) for product in products]
        return math.ldexp(math.sqrt(2 * math.fsum(value * value for value in scaled)), exponent)

    def _spreads(self) -> list[int]:
        """n times the standard deviation of each column, in units of 2 ** -1074, rounded down."""
        n, sums, squares = self.n_examples, self.sums.sum(axis=0), self.squares.sum(axis=0)
        return [math.isqrt(n * square - total * total) for total, square in zip(sums, squares, strict=True)]

    def _weights(self) -> list[float]:
        """Weight of each column, from 0.05 to 1.05, see `center_and_scale`."""
        n, sums = self.n_examples, self.sums.sum(axis=0)
        filled = np.flatnonzero(self.n_per_class > 0).tolist()
        k = len(filled) - 1
        t = 0.35 * self.n_features.bit_length()  # about log(d) / 2; logarithms depend on the machine
        by_chance = (k + 2 * math.sqrt(k * t) + 2 * t) / n
        informative = []
        for column, spread in enumerate(self._spreads()):
            between = 0.0
            for label in filled if spread else []:
                size = int(self.n_per_class[label])
                # from the mean of all samples to the class mean, in standard deviations
                distance = (self.sums[label, column] * n - sums[column] * size) / (size * spread)
                between += size / n * distance * distance
            informative.append(between - k / n if between > by_chance else 0.0)
        most = max(informative)
        return [math.sqrt(value / most) + _FAINTEST if most else 1.0 for value in informative]


SUM_BITS = (_UNIT + 1024 + 64, 2 * (_UNIT + 1024) + 64)
"""Bits of a sum and of a sum of squares of fewer than 2**63 samples, at most."""

_MOST_LIMBS = tuple(bits // _LIMB + 2 for bits in SUM_BITS)
MOST_LIMBS = max(_MOST_LIMBS) + 1
"""Of a sum and the index of the lowest, in the form of `ColumnMoments.to_limbs`."""


def _ratio(numerator: int, denominator: int) -> float:
    """Divide numerator / denominator / 2 ** 1074, rounded once."""
    return float(numerator / (denominator << _UNIT))


def _from_limbs(limbs: npt.NDArray[Any], first: int) -> Integers:
    """Sum limbs of any size, lowest first, of which the lowest has index `first`."""
    total: Integers = np.zeros(limbs.shape[:2], object)
    for k in reversed(range(limbs.shape[2])):
        total = (total << _LIMB) + limbs[:, :, k].astype(object)
    total <<= _LIMB * first
    return total


def _to_limbs(values: Integers) -> npt.NDArray[np.uint32]:
    flat = values.ravel().tolist()
    together = 0
    longest = 0
    for value in flat:
        together |= value
        longest = max(longest, value.bit_length())
    first = ((together & -together).bit_length() - 1) // _LIMB if together else 0
    k = longest // _LIMB + 1 - first  # one bit more than the longest, for the sign
    size = 4 * k
    data = b"".join((value >> _LIMB * first).to_bytes(size, "little", signed=True) for value in flat)
    limbs = np.empty((*values.shape, k + 1), np.uint32)
    limbs[:, :, 0] = first
    limbs[:, :, 1:] = np.frombuffer(data, "<u4").reshape(*values.shape, k)
    return limbs


def _from_wire(limbs: npt.NDArray[np.uint32]) -> Integers:
    shift = _LIMB * int(limbs[0, 0, 0])
    size = 4 * (limbs.shape[2] - 1)
    data = np.ascontiguousarray(limbs[:, :, 1:]).tobytes()
    values = np.empty(limbs.shape[0] * limbs.shape[1], object)
    for i in range(len(values)):
        values[i] = int.from_bytes(data[i * size : (i + 1) * size], "little", signed=True) << shift
    matrix: Integers = values.reshape(limbs.shape[:2])
    return matrix


@njit(nogil=True, cache=True)
def _add_limbs(values, columns, labels, start, start_square, limbs, square_limbs):  # type: ignore[no-untyped-def]
    """Add each value and its square, as multiples of 2 ** (start - 1074) and 2 ** (start_square - 2148), to its limbs.

    With empty `columns`, `values` is a row-major matrix and `labels` has the class of each row.
    """
    low32, limb = np.uint64(0xFFFFFFFF), np.uint64(32)
    bits = values.view(np.uint64)
    n_features = limbs.shape[1]
    for i in range(len(values)):
        magnitude = bits[i] & np.uint64(0x7FFFFFFFFFFFFFFF)
        if magnitude == 0:
            continue
        if len(columns):
            label, column = labels[i], columns[i]
        else:
            label, column = labels[i // n_features], i % n_features
        sign = 1 if bits[i] == magnitude else -1
        exponent = np.int64(magnitude >> np.uint64(52))
        mantissa = magnitude & np.uint64(0xFFFFFFFFFFFFF)
        if exponent:
            mantissa |= np.uint64(0x10000000000000)
            exponent -= 1
        high, low = mantissa >> limb, mantissa & low32

        position = exponent - start
        row = limbs[label, column]
        k, shift = position // 32, np.uint64(position % 32)
        part = low << shift
        row[k] += sign * np.int64(part & low32)
        part = (high << shift) + (part >> limb)
        row[k + 1] += sign * np.int64(part & low32)
        row[k + 2] += sign * np.int64(part >> limb)

        position = 2 * exponent - start_square
        row = square_limbs[label, column]
        k, shift = position // 32, np.uint64(position % 32)
        square = low * low
        part = (square & low32) << shift
        row[k] += np.int64(part & low32)
        square = np.uint64(2) * low * high + (square >> limb)
        part = ((square & low32) << shift) + (part >> limb)
        row[k + 1] += np.int64(part & low32)
        square = high * high + (square >> limb)
        part = ((square & low32) << shift) + (part >> limb)
        row[k + 2] += np.int64(part & low32)
        part = ((square >> limb) << shift) + (part >> limb)
        row[k + 3] += np.int64(part & low32)
        row[k + 4] += np.int64(part >> limb)


@njit(nogil=True, cache=True)
def _add_integers(X, labels, sums, squares):  # type: ignore[no-untyped-def]
    """Add small integers and their squares to int64 sums."""
    for i in range(X.shape[0]):
        label = labels[i]
        for j in range(X.shape[1]):
            value = np.int64(X[i, j])
            sums[label, j] += value
            squares[label, j] += value * value
