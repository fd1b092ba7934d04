"""Points as the kernels want them: in blocks of lanes, in the narrowest arithmetic that is exact.

Which arithmetic a point gets is part of the hash (see `FlyHash`) and depends on the point alone:

- no centre, no scale, all values whole and at most the largest power of two of which `row_nnz` fit in 63 bits: exact
  integer sums;
- else (x - center) * scale in float64, rounded once to float32, and float32 sums in ascending order of the columns.

Which *dtype* carries it is not: a narrower one is used only where it gives the same winners. Two observations help.
Adding a constant to every entry that a row can pick moves all sums alike: so values are shifted to start at zero, those
of signed rows (which pick x or -x) too. And most rows lose by a wide margin: so float32 points travel as small whole
numbers of known error, and the few rows that come close are added again from the float32 values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn.errors import DataError
from flwr_flynn.hashing import kernels
from flwr_flynn.hashing.compiling import first_call

Array = npt.NDArray[Any]

_FLOAT32_EXACT = 2**24  # whole numbers up to here, and their sums, are exact in float32
_WIDE = 2**14  # columns; sparse points of more are not made dense as they are
_COUNTING_WIDTH = 8192  # widest range of sums for which each lane gets a full histogram
_CHUNK_BYTES = 2**22  # of one chunk of points as float64: small beside the caches that the kernels live in


def chunk_size(n_features: int) -> int:
    """Points of so many columns to prepare at a time."""
    fitting = _CHUNK_BYTES // (8 * n_features)
    return int(min(max(fitting // 64 * 64, 64), 1024))


@dataclass(frozen=True)
class Preparation:
    """What turns points into blocks: the parts of a hash that concern single values."""

    n_features: int
    row_nnz: int
    signed: bool
    center: Array | None
    scale: Array | None

    @property
    def chunk_size(self) -> int:
        """Points to prepare at a time: whole blocks of any dtype."""
        return chunk_size(self.n_features)

    def winners(self, chunk: Array | sp.csr_array, columns: Array, hash_nnz: int, out: Array) -> None:
        """Write the active bits of the points of a chunk to `out`, (n, hash_nnz) int32."""
        if chunk.shape[0] == 0:
            return
        if sp.issparse(chunk) and self.n_features > _WIDE and self.center is None:
            self._narrowed(chunk, columns, hash_nnz, out)
            return
        X = dense(chunk)
        if self.center is not None or self.scale is not None:
            self._float_winners(X, columns, hash_nnz, out)
            return
        whole, largest = _whole_points(X, 2 ** (((2**63 - 1) // self.row_nnz).bit_length() - 1))
        if whole.all():
            self._whole_winners(X, largest, columns, hash_nnz, out)
        elif largest * self.row_nnz <= _FLOAT32_EXACT:  # float32 sums of the whole points are exact as well
            self._float_winners(X, columns, hash_nnz, out)
        else:
            for members, winners in (
                (whole, partial(self._whole_winners, largest=largest)),
                (~whole, self._float_winners),
            ):
                part = np.empty((int(members.sum()), hash_nnz), np.int32)
                winners(X[members], columns=columns, hash_nnz=hash_nnz, out=part)
                out[members] = part

    def _narrowed(self, chunk: sp.csr_array, columns: Array, hash_nnz: int, out: Array) -> None:
        """Winners of wide sparse points, by way of the columns that occur in them and one column of zeros."""
        used = np.unique(chunk.indices)
        d = len(used) + 1
        X = np.zeros((chunk.shape[0], d), chunk.dtype)
        X[:, :-1] = chunk[:, used].toarray()
        place = np.full(self.n_features, d - 1, np.uint32)
        place[used] = np.arange(d - 1, dtype=np.uint32)
        if self.signed:
            place = np.concatenate([place, place + np.uint32(d)])
        scale = None if self.scale is None else np.append(self.scale[used], 1.0)
        narrow = replace(self, n_features=d, scale=scale)
        narrow.winners(X, place[columns], hash_nnz, out)

    def _whole_winners(self, X: Array, largest: int, columns: Array, hash_nnz: int, out: Array) -> None:
        """Winners of whole numbers of magnitude up to `largest`, by exact integer sums."""
        low, high = (-largest, largest) if self.signed else (int(X.min()), int(X.max()))
        span = high - low
        width = span * self.row_nnz + 1
        if width <= 2**15:
            dtype = "int8" if width <= 2**7 else "uint8" if span <= 255 else "int16"
            levels = X if low == 0 else X.astype(np.int64) - low
            data = _transpose(levels, dtype, span if self.signed else None)
            if width <= _COUNTING_WIDTH:
                _counting(data, columns, hash_nnz, len(X), width, 0, None, None, out)
            else:  # cells of several sums: the last cut is made by the sums themselves, exact in float32
                exact = (X if self.signed else levels).astype(np.float32)
                self._approximately(data, exact, np.ones(len(X), np.int64), width, columns, hash_nnz, out)
        elif largest * self.row_nnz <= _FLOAT32_EXACT:
            self._float_winners(X, columns, hash_nnz, out)
        else:
            _general(_transpose(X, "int64", 0 if self.signed else None), columns, hash_nnz, len(X), out)

    def _float_winners(self, X: Array, columns: Array, hash_nnz: int, out: Array) -> None:
        """Winners by float32 sums."""
        X = np.ascontiguousarray(self._float32(X))
        left = np.arange(len(X))  # points not yet done
        # How many typical spreads of a point's sums lie between their mean and the winners, roughly.
        depth = np.sqrt(2.0 * np.log(len(columns) / hash_nnz + 1.0))
        for dtype in ("uint8", "int16"):
            levels = (2**15 - 1) // self.row_nnz
            levels = min(levels, 255) if dtype == "uint8" else levels if levels >= 2 * 255 else 0
            if not levels or not len(left):
                continue
            points = X[left]
            approximation = np.empty(points.shape, dtype)
            slack = np.empty(len(points), np.int64)
            crowding = np.empty(len(points))
            with first_call(("approximate", dtype)):
                kernels.approximate(points, self.row_nnz, self.signed, levels, approximation, slack, crowding)
            good = crowding * depth < 1.0  # else e times as many rows would have to be looked at
            if not good.any():
                continue
            points, approximation, slack = points[good], approximation[good], slack[good]
            data = _transpose(approximation, dtype, levels if self.signed else None)
            part = np.empty((len(points), hash_nnz), np.int32)
            self._approximately(data, points, slack, levels * self.row_nnz + 1, columns, hash_nnz, part)
            out[left[good]] = part
            left = left[~good]
        if len(left):
            out[left] = self._plainly(X[left], columns, hash_nnz)

    def _approximately(
        self, data: Array, X: Array, slack: Array, width: int, columns: Array, hash_nnz: int, out: Array
    ) -> None:
        """Winners of float32 points by way of blocks that approximate them."""
        exact = np.concatenate([X, -X], axis=1) if self.signed else X
        shift = max(0, width.bit_length() - 10)  # about a thousand histogram cells
        failed = _counting(data, columns, hash_nnz, len(X), width, shift, slack, exact, out)
        if failed.any():
            out[failed] = self._plainly(X[failed], columns, hash_nnz)

    def _plainly(self, X: Array, columns: Array, hash_nnz: int) -> Array:
        """Winners of float32 points without approximation."""
        out = np.empty((len(X), hash_nnz), np.int32)
        _general(_transpose(X, "float32", 0 if self.signed else None), columns, hash_nnz, len(X), out)
        return out

    def fits(self, X: Array | sp.csr_array) -> npt.NDArray[np.bool_]:
        """Which points have sums that float32 holds, each by its own values alone; whole points always do.

        Parameters
        ----------
        X : (n, d) array or CSR matrix
            Finite.
        """
        if not isinstance(X, np.ndarray):
            values, columns = np.asarray(X.data), X.indices
            center, scale = (None if each is None else each[columns] for each in (self.center, self.scale))
            sizes = np.abs(_rounded(values, center, scale))
            # Where nothing is stored the value is the one that zero becomes; for all columns, to be plain.
            zero = (
                np.zeros(1)
                if self.center is None
                else np.abs(_rounded(np.zeros(len(self.center)), self.center, self.scale))
            )
            largest = np.full(X.shape[0], zero.max(initial=0.0))
            np.maximum.at(largest, np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)), sizes)
        else:
            largest = np.abs(_rounded(X, self.center, self.scale)).max(axis=1, initial=0.0)
        return np.asarray(self._summable(largest))

    def _summable(self, largest: Any) -> Any:
        """Whether sums over a row of values of at most this size stay within float32."""
        # Rounding makes a sum of s terms larger by at most s 2**-23 of itself; twice that and once more, to be plain.
        reach = np.asarray(largest, np.float64) * self.row_nnz * (2.0 + self.row_nnz * 2.0**-22)
        return reach < float(np.finfo(np.float32).max)

    def _float32(self, X: Array) -> Array:
        X = _rounded(X, self.center, self.scale)
        if not self._summable(np.abs(X).max(initial=0.0)):
            raise DataError(f"X: {self.row_nnz} of the largest values overflow float32 when added; rescale the columns")
        return X


def _rounded(X: Array, center: Array | None, scale: Array | None) -> Array:
    """(X - center) * scale in float64, rounded once to float32; what is too large shows as infinity."""
    with np.errstate(over="ignore"):
        if center is not None or scale is not None:
            X = X.astype(np.float64)
            if center is not None:
                X -= center
            if scale is not None:
                X *= scale
        elif X.dtype.kind != "f":
            X = X.astype(np.float64)
        return X.astype(np.float32, copy=False)


def dense(chunk: Array | sp.csr_array) -> Array:
    """The chunk as a dense array of integers or at most float64, free of NaN and infinity."""
    X: Array = chunk if isinstance(chunk, np.ndarray) else chunk.toarray()
    if X.dtype == np.bool_:
        X = X.view(np.uint8)
    if X.dtype.kind == "f":
        if X.dtype not in (np.float32, np.float64):
            X = X.astype(np.float64)
        finite = np.isfinite(X)
        if not finite.all():
            bad = int((~finite).any(axis=0).sum())
            raise DataError(f"X: NaN or infinity in {bad} of {X.shape[1]} columns; expected finite numbers")
    return X


def _whole_points(X: Array, bound: int) -> tuple[npt.NDArray[np.bool_], int]:
    """Which points are all whole numbers of at most `bound`, and the largest magnitude among those."""
    if X.dtype.kind == "f":
        magnitude = np.abs(X).max(axis=1)
        whole: npt.NDArray[np.bool_] = (magnitude <= bound) & (np.rint(X) == X).all(axis=1)
        return whole, int(magnitude[whole].max(initial=0.0))
    largest = max(-int(X.min()), int(X.max()))
    if largest <= bound:
        return np.ones(len(X), np.bool_), largest
    whole = np.asarray((np.less_equal(X, bound) & np.greater_equal(X, -bound)).all(axis=1))
    return whole, int(np.abs(X[whole].astype(np.int64)).max(initial=0))


def _counting(
    data: Array,
    columns: Array,
    hash_nnz: int,
    n_points: int,
    width: int,
    shift: int,
    slack: Array | None,
    exact: Array | None,
    out: Array,
) -> Array:
    """`kernels.winners_counting`; returns which points it left undone."""
    n_blocks, _, lanes = data.shape
    failed = np.zeros(n_points, np.bool_)
    slacks = np.zeros(n_blocks * lanes, np.int64)
    if slack is not None:
        slacks[:n_points] = slack
    if exact is None:
        exact = np.empty((0, 0), np.float32)
    sums = np.empty(lanes, kernels.accumulator(data.dtype))
    with first_call(("counting", data.dtype, columns.dtype)):
        kernels.winners_counting(data, columns, hash_nnz, n_points, width, shift, slacks, exact, sums, out, failed)
    return failed


def _general(data: Array, columns: Array, hash_nnz: int, n_points: int, out: Array) -> None:
    """`kernels.winners`."""
    sums = np.empty(data.shape[2], data.dtype)
    extremes = (-np.inf, np.inf) if data.dtype.kind == "f" else (np.iinfo(data.dtype).min, np.iinfo(data.dtype).max)
    with first_call(("general", data.dtype, columns.dtype)):
        kernels.winners(data, columns, hash_nnz, n_points, np.array(extremes, data.dtype), sums, out)


def _transpose(X: Array, dtype: str, total: int | None) -> Array:
    """(n, d) -> (n_blocks, d, lanes), lanes side by side; with a `total`, d more columns hold its difference from X."""
    n, d = X.shape
    lanes = kernels.LANES[dtype]
    n_blocks = -(-n // lanes)
    if n % lanes:
        padded = np.zeros((n_blocks * lanes, d), X.dtype)
        padded[:n] = X
        X = padded
    out = _aligned((n_blocks, d if total is None else 2 * d, lanes), dtype)
    if dtype == "uint8":  # the second half of the lanes sits in the high bytes of the first
        half = lanes // 2
        pairs = out[:, :d].reshape(n_blocks, d, half, 2)
        pairs[...] = X.reshape(n_blocks, 2, half, d).transpose(0, 3, 2, 1)
    else:
        out[:, :d] = X.reshape(n_blocks, lanes, d).transpose(0, 2, 1)
    if total is not None:
        np.subtract(out.dtype.type(total), out[:, :d], out=out[:, d:])
    return out


def _aligned(shape: tuple[int, int, int], dtype: str) -> Array:
    """An uninitialised array that starts on a cache line: vector loads across two lines cost double."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)
