"""Encoding of samples for the kernels: blocks of lanes, in the narrowest dtype whose
sums give the same winners.

A constant added to every entry that a row can pick moves all sums alike: so values are
shifted to start at zero, those of signed rows (which pick x or -x) too. Most rows lose
by a wide margin: so float32 samples travel as small integers of known error, and the
few rows that come close are summed again from the float32 values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from flwr_flynn._types import Array, Mask
from flwr_flynn.errors import DataError
from flwr_flynn.hashing import winner_kernels as kernels

_FLOAT32_EXACT = 2**24  # integers up to here, and their sums, are exact in float32
# Columns of sparse samples, at most: wider ones are restricted to the columns that occur
# before they are made dense.
_WIDE = 2**14
_COUNTING_WIDTH = 8192  # widest range of sums for which each lane gets a full histogram
# Size of one chunk of samples as float64, small beside the caches of the kernels.
_CHUNK_BYTES = 2**22


def batches(n: int, size: int) -> Iterator[slice]:
    """Slices of n samples, in their order, each of `size`, the last of what is left.

    Of no samples there is none.
    """
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def chunk_size(n_features: int) -> int:
    """Return the number of samples of `n_features` values to encode at a time: whole
    blocks of any dtype.
    """
    return int(min(max(_CHUNK_BYTES // (8 * n_features) // 64 * 64, 64), 1024))


@dataclass(frozen=True)
class BatchEncoder:
    """Encoder of samples as blocks of lanes.

    `center` and `scale` are (n_features,) float64 or None.
    """

    n_features: int
    row_nnz: int
    signed: bool
    center: Array | None
    scale: Array | None

    def winners(self, chunk: Array | sp.csr_array, columns: Array, out: Array) -> None:
        """Write the active bits of a chunk, (n, n_features), to `out`, (n, rho) int32,
        ascending.

        `columns`, (m, s) unsigned: the columns that each row of M adds; n_features + j
        stands for minus column j.
        """
        if chunk.shape[0] == 0:
            return
        if sp.issparse(chunk) and self._narrows:
            self._narrowed(chunk, columns, out)
            return
        X = dense(chunk, self.center)
        if self.center is not None or self.scale is not None:
            self._float_winners(X, columns, out)
            return
        is_integer, largest = _integer_samples(
            X, 2 ** (((2**63 - 1) // self.row_nnz).bit_length() - 1)
        )
        if is_integer.all():
            self._integer_winners(X, columns, out, largest)
        elif largest * self.row_nnz <= _FLOAT32_EXACT:
            # Sums of the integer samples are exact in float32 as well.
            self._float_winners(X, columns, out)
        else:
            part = out[is_integer]
            rest = out[~is_integer]
            self._integer_winners(X[is_integer], columns, part, largest)
            self._float_winners(X[~is_integer], columns, rest)
            out[is_integer], out[~is_integer] = part, rest

    @property
    def _narrows(self) -> bool:
        return self.n_features > _WIDE and self.center is None

    def _narrowed(self, chunk: sp.csr_array, columns: Array, out: Array) -> None:
        """Find the winners of wide sparse samples by the columns that occur in them and
        one column of zeros.
        """
        used = np.unique(chunk.indices)
        d = len(used) + 1
        X = np.zeros((chunk.shape[0], d), chunk.dtype)
        X[:, :-1] = chunk[:, used].toarray()
        index = np.full(self.n_features, d - 1, np.uint32)
        index[used] = np.arange(d - 1, dtype=np.uint32)
        if self.signed:
            index = np.concatenate([index, index + np.uint32(d)])
        scale = None
        if self.scale is not None:
            scale = np.append(self.scale[used], 1.0)
        replace(self, n_features=d, scale=scale).winners(X, index[columns], out)

    def _integer_winners(
        self, X: Array, columns: Array, out: Array, largest: int
    ) -> None:
        """Find the winners of integer samples of magnitude up to `largest`, by exact
        integer sums.
        """
        low = -largest
        high = largest
        if not self.signed:
            low = int(X.min())
            high = int(X.max())
        span = high - low
        width = span * self.row_nnz + 1
        if width <= 2**15:
            # With the middle subtracted, bytes with a sign hold twice as many sums.
            middle = -(-span // 2)
            if middle * self.row_nnz >= 2**7:
                middle = 0
            if middle or width <= 2**7:
                dtype = "int8"
            elif span <= 255:
                dtype = "uint8"
            else:
                dtype = "int16"
            if low == -middle:
                levels = X
            else:
                levels = X.astype(np.int64) - (low + middle)
            data = _transpose(levels, dtype, self._total(span - 2 * middle))
            if width <= _COUNTING_WIDTH:
                _counting(data, columns, width, middle * self.row_nnz, None, None, out)
                return
            # Wide histogram cells: the sums themselves, exact in float32, make the last
            # cut.
            if self.signed:
                exact = X
            else:
                exact = levels
            slack = np.ones(len(X), np.int64)
            out[:] = self._approximately(
                data, exact, slack, width, columns, out.shape[1]
            )
        elif largest * self.row_nnz <= _FLOAT32_EXACT:
            self._float_winners(X, columns, out)
        else:
            _general(_transpose(X, "int64", self._total(0)), columns, out)

    def _total(self, total: int) -> int | None:
        """Sum of a value and that of its negated column; None without negated columns."""
        if self.signed:
            return total
        return None

    def _float_winners(self, X: Array, columns: Array, out: Array) -> None:
        """Find the winners by float32 sums."""
        hash_nnz = out.shape[1]
        X = np.ascontiguousarray(self._float32(X))
        # Distance from the mean sum of a sample to its winners, in standard deviations
        # of its sums, roughly.
        depth = np.sqrt(2.0 * np.log(len(columns) / hash_nnz + 1.0))
        levels = min((2**15 - 1) // self.row_nnz, 255)
        good = np.zeros(len(X), np.bool_)
        if levels:
            approximation = np.empty(X.shape, np.uint8)
            slack = np.empty(len(X), np.int64)
            crowding = np.empty(len(X))
            kernels.approximate(
                X, self.row_nnz, self.signed, levels, approximation, slack, crowding
            )
            # For the others e times as many rows would be looked at.
            good = crowding * depth < 1.0
            data = _transpose(approximation[good], "uint8", self._total(levels))
            width = levels * self.row_nnz + 1
            out[good] = self._approximately(
                data, X[good], slack[good], width, columns, hash_nnz
            )
        if not good.all():
            out[~good] = self._plainly(X[~good], columns, hash_nnz)

    def _approximately(
        self,
        data: Array,
        X: Array,
        slack: Array,
        width: int,
        columns: Array,
        hash_nnz: int,
    ) -> Array:
        """Find the winners by float32 sums and blocks that approximate them, and
        without these where too many rows come close.
        """
        out = np.empty((len(X), hash_nnz), np.int32)
        exact = X.astype(np.float32, copy=False)
        if self.signed:
            exact = np.concatenate([exact, -exact], axis=1)
        failed = _counting(data, columns, width, 0, slack, exact, out)
        if failed.any():
            out[failed] = self._plainly(X[failed], columns, hash_nnz)
        return out

    def _plainly(self, X: Array, columns: Array, hash_nnz: int) -> Array:
        """Find the winners by float32 sums without approximation."""
        out = np.empty((len(X), hash_nnz), np.int32)
        X = X.astype(np.float32, copy=False)
        _general(_transpose(X, "float32", self._total(0)), columns, out)
        return out

    def fits(self, X: Array) -> Mask:
        """Tell the finite samples whose sums float32 holds, (n,) bool, each by its own
        values alone.
        """
        largest = np.abs(_rounded(dense(X, self.center), self.center, self.scale)).max(
            axis=1, initial=0.0
        )
        return np.asarray(self._summable(largest))

    def _summable(self, largest: Any) -> Any:
        """Tell whether sums over a row of values of at most this size stay within
        float32.
        """
        # Rounding makes a sum of s terms larger by at most s 2**-23 of itself. The
        # bound below is more than twice that.
        reach = (
            np.asarray(largest, np.float64)
            * self.row_nnz
            * (2.0 + self.row_nnz * 2.0**-22)
        )
        return reach < float(np.finfo(np.float32).max)

    def _float32(self, X: Array) -> Array:
        """Centre, scale and round samples to float32.

        Refuse those whose sums would overflow.
        """
        X = _rounded(X, self.center, self.scale)
        if not self._summable(np.abs(X).max(initial=0.0)):
            got = f"{self.row_nnz} of the largest overflow float32 when added"
            raise DataError(
                "X", "values whose sums fit float32 (rescale the features)", got
            )
        return X


def _rounded(X: Array, center: Array | None, scale: Array | None) -> Array:
    """Return (X - center) * scale in float64, rounded once to float32.

    An overflow becomes infinity.
    """
    with np.errstate(over="ignore"):
        if X.dtype.kind != "f" or center is not None or scale is not None:
            X = X.astype(np.float64)
        if center is not None:
            X -= center
        if scale is not None:
            X *= scale
        return X.astype(np.float32, copy=False)


def dense(chunk: Array | sp.csr_array, gaps: Array | float | None = None) -> Array:
    """Return the chunk as a dense array of integers or floats up to float64.

    Refuse NaN and infinity.

    With `gaps` NaN is a gap, in the place of which these are written: the centre, that
    nothing is left of the column.
    """
    if isinstance(chunk, np.ndarray):
        X: Array = chunk
    else:
        X = chunk.toarray()
    if X.dtype == np.bool_:
        X = X.view(np.uint8)
    if X.dtype.kind == "f":
        if X.dtype not in (np.float32, np.float64):
            X = X.astype(np.float64)
        finite = np.isfinite(X)
        if gaps is not None and not finite.all():
            is_gap = np.isnan(X)
            X = np.where(is_gap, gaps, X)
            finite = finite | is_gap
        if not finite.all():
            bad = int((~finite).any(axis=0).sum())
            raise DataError(
                "X",
                "finite numbers",
                f"NaN or infinity in {bad} of {X.shape[1]} features",
            )
    return X


def _integer_samples(X: Array, bound: int) -> tuple[Mask, int]:
    """Mask of samples of integers of magnitude at most `bound`, (n,) bool, and the
    largest magnitude among them.
    """
    if X.dtype.kind == "f":
        magnitude = np.abs(X).max(axis=1)
        fits: Mask = (magnitude <= bound) & (np.rint(X) == X).all(axis=1)
        return fits, int(magnitude[fits].max(initial=0.0))
    largest = max(-int(X.min()), int(X.max()))
    if largest <= bound:
        return np.ones(len(X), np.bool_), largest
    fits = np.asarray(
        (np.less_equal(X, bound) & np.greater_equal(X, -bound)).all(axis=1)
    )
    return fits, int(np.abs(X[fits].astype(np.int64)).max(initial=0))


def _counting(
    data: Array,
    columns: Array,
    width: int,
    offset: int,
    slack: Array | None,
    exact: Array | None,
    out: Array,
) -> Array:
    """Call `kernels.winners_counting` and return its mask, (n_samples,) bool.

    The mask is of the samples that are left undone.
    """
    # A histogram has about a thousand cells.
    shift = 0
    if slack is not None:
        shift = max(0, width.bit_length() - 10)
    n_blocks, _, lanes = data.shape
    n_samples, hash_nnz = out.shape
    failed = np.zeros(n_samples, np.bool_)
    slacks = np.zeros(n_blocks * lanes, np.int64)
    if slack is not None:
        slacks[:n_samples] = slack
    if exact is None:
        exact = np.empty((0, 0), np.float32)
    sums = np.empty(lanes, kernels.accumulator(data.dtype))
    kernels.winners_counting(
        data,
        columns,
        hash_nnz,
        n_samples,
        width,
        shift,
        offset,
        slacks,
        exact,
        sums,
        out,
        failed,
    )
    return failed


def _general(data: Array, columns: Array, out: Array) -> None:
    """Call `kernels.winners`."""
    sums = np.empty(data.shape[2], data.dtype)
    if data.dtype.kind == "f":
        extremes = (-np.inf, np.inf)
    else:
        extremes = (np.iinfo(data.dtype).min, np.iinfo(data.dtype).max)
    n_samples, hash_nnz = out.shape
    kernels.winners(
        data, columns, hash_nnz, n_samples, np.array(extremes, data.dtype), sums, out
    )


def _transpose(X: Array, dtype: str, total: int | None) -> Array:
    """Transpose (n, d) to (n_blocks, d, lanes), lanes side by side.

    A `total` appends the d columns total - X.
    """
    n, d = X.shape
    lanes = kernels.LANES[dtype]
    n_blocks = -(-n // lanes)
    if n % lanes:
        padded = np.zeros((n_blocks * lanes, d), X.dtype)
        padded[:n] = X
        X = padded
    n_columns = d
    if total is not None:
        n_columns = 2 * d
    shape = (n_blocks, n_columns, lanes)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    # The array starts with a cache line: vector loads across two lines cost double.
    start = -raw.ctypes.data % 64
    out = raw[start : start + size].view(dtype).reshape(shape)
    # The second half of the lanes is in the high bytes of the first.
    if dtype == "uint8":
        half = lanes // 2
        out[:, :d].reshape(n_blocks, d, half, 2)[...] = X.reshape(
            n_blocks, 2, half, d
        ).transpose(0, 3, 2, 1)
    else:
        out[:, :d] = X.reshape(n_blocks, lanes, d).transpose(0, 2, 1)
    if total is not None:
        np.subtract(out.dtype.type(total), out[:, :d], out=out[:, d:])
    return out
