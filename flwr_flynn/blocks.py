"""Points as the kernels want them: in blocks of lanes, in the narrowest arithmetic that is exact.

Which arithmetic a point gets is part of the hash (DESIGN: "Arithmetic") and depends on the point alone:

- no centre, no scale, all values whole and at most the largest power of two of which `row_nnz` fit in 63 bits: exact
  integer sums;
- else (x - center) * scale in float64, rounded once to float32, and float32 sums in ascending order of the columns.

Which *dtype* carries it is not: a narrower one is used only where it gives the same winners. Adding a constant to every
value moves all sums of unsigned rows alike, so such points may be shifted to start at zero first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn import kernels
from flwr_flynn.errors import DataError

Array = npt.NDArray[Any]

_FLOAT32_EXACT = 2**24  # whole numbers up to here, and their sums, are exact in float32
_COUNTING_WIDTH = 8192  # widest range of sums for which each lane gets a full histogram
_CHUNK_BYTES = 2**22  # of one chunk of points as float64: small beside the caches that the kernels live in


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
        fitting = _CHUNK_BYTES // (8 * self.n_features)
        return int(min(max(fitting // 64 * 64, 64), 1024))

    def blocks(self, chunk: Array | sp.csr_array) -> Iterator[tuple[Array | slice, Block]]:
        """Blocks of a chunk of points, each with the positions of its points in the chunk.

        Usually one for the whole chunk; two where some points are whole numbers too large for float32 and others are not
        whole.
        """
        X = _dense(chunk)
        everything = slice(0, len(X))
        if self.center is not None or self.scale is not None:
            yield everything, self._float_block(X)
            return
        whole, largest = _whole_points(X, 2 ** ((2**63 - 1) // self.row_nnz).bit_length() // 2)
        if whole.all():
            yield everything, self._whole_block(X, largest)
            return
        too_wide = np.flatnonzero(whole)
        if largest * self.row_nnz > _FLOAT32_EXACT and len(too_wide):
            yield too_wide, self._whole_block(X[too_wide], largest)
            rest = np.flatnonzero(~whole)
            yield rest, self._float_block(X[rest])
        else:
            yield everything, self._float_block(X)

    def _float_block(self, X: Array) -> Block:
        with np.errstate(over="ignore"):  # an overflow shows as infinity, which is refused below
            if self.center is not None or self.scale is not None:
                X = X.astype(np.float64)
                if self.center is not None:
                    X -= self.center
                if self.scale is not None:
                    X *= self.scale
            elif X.dtype.kind != "f":
                X = X.astype(np.float64)
            X = X.astype(np.float32, copy=False)
        reach = float(np.abs(X).max(initial=0.0)) * self.row_nnz
        if not reach < float(np.finfo(np.float32).max):
            raise DataError(f"X: {self.row_nnz} of the largest values overflow float32 when added; rescale the columns")
        return Block(_transpose(X, "float32", self.signed), len(X), None)

    def _whole_block(self, X: Array, largest: int) -> Block:
        if self.signed:
            low, high = -largest, largest
        else:
            low, high = (int(X.min(initial=0)), int(X.max(initial=0))) if X.size else (0, 0)
        width = (high - low) * self.row_nnz + 1
        if not self.signed and high - low <= 255 and 128 < width <= 2**15:
            dtype = "uint8"
        elif width <= (255 if self.signed else 128):
            dtype = "int8"
        elif width <= (2**16 - 1 if self.signed else 2**15):
            dtype = "int16"
        elif largest * self.row_nnz <= _FLOAT32_EXACT:
            return Block(_transpose(X.astype(np.float32), "float32", self.signed), len(X), None)
        else:
            return Block(_transpose(X.astype(np.int64), "int64", self.signed), len(X), None)
        if self.signed:
            return Block(_transpose(X, dtype, True), len(X), (low * self.row_nnz, width))
        if low:
            X = X.astype(np.int64) - low
        return Block(_transpose(X, dtype, False), len(X), (0, width))


@dataclass(frozen=True)
class Block:
    """Points of one arithmetic: (n_blocks, columns, lanes), and the range of their sums where it is known."""

    data: Array
    n_points: int
    sums_range: tuple[int, int] | None  # (lowest, number of values)

    def winners(self, columns: Array, hash_nnz: int, out: Array) -> None:
        """Write the active bits of the points to `out`, (n_points, hash_nnz) int32."""
        dtype = kernels.accumulator(self.data.dtype)
        sums = np.empty(self.data.shape[2], dtype)
        if self.sums_range is not None and self.sums_range[1] <= _COUNTING_WIDTH:
            low, width = self.sums_range
            kernels.winners_counting(self.data, columns, hash_nnz, self.n_points, low, width, sums, out)
        else:
            lowest = -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
            floor = np.array([lowest], dtype)
            kernels.winners(self.data, columns, hash_nnz, self.n_points, floor, sums, out)


def _dense(chunk: Array | sp.csr_array) -> Array:
    """The chunk as a dense array of a real dtype, free of NaN and infinity."""
    X: Array = chunk.toarray() if sp.issparse(chunk) else chunk
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
    if X.size == 0:
        return np.ones(len(X), np.bool_), 0
    if X.dtype.kind == "f":
        magnitude = np.abs(X).max(axis=1)
        whole = (magnitude <= bound) & (np.rint(X) == X).all(axis=1)
        return whole, int(magnitude[whole].max(initial=0.0))
    largest = max(-int(X.min()), int(X.max()))
    if largest <= bound:
        return np.ones(len(X), np.bool_), largest
    whole = ((X <= bound) & (X >= -bound)).all(axis=1)
    return whole, int(np.abs(X[whole].astype(np.int64)).max(initial=0))


def _transpose(X: Array, dtype: str, signed: bool) -> Array:
    """(n, d) -> (n_blocks, d or 2 d, lanes): lanes side by side, negated columns after the others when signed."""
    n, d = X.shape
    lanes = kernels.LANES[dtype]
    n_blocks = -(-n // lanes)
    if n % lanes:
        padded = np.zeros((n_blocks * lanes, d), X.dtype)
        padded[:n] = X
        X = padded
    out = _aligned((n_blocks, 2 * d if signed else d, lanes), dtype)
    if dtype == "uint8":  # the second half of the lanes sits in the high bytes of the first
        half = lanes // 2
        pairs = out.reshape(n_blocks, d, half, 2)
        pairs[...] = X.reshape(n_blocks, 2, half, d).transpose(0, 3, 2, 1)
    else:
        out[:, :d] = X.reshape(n_blocks, lanes, d).transpose(0, 2, 1)
    if signed:
        np.negative(out[:, :d], out=out[:, d:])
    return out


def _aligned(shape: tuple[int, int, int], dtype: str) -> Array:
    """An uninitialised array that starts on a cache line: vector loads across two lines cost double."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)
