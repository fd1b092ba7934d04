"""Random numbers of the hash, by integer arithmetic on (seed, row) alone, and the wave
features that follow from them.

They are the same on every machine and with every NumPy. Rows can be drawn in parallel,
and a larger `hash_dim` extends a smaller one.

- Random words: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
  3", SC 2011) with key (seed mod 2**32, seed div 2**32) and counter (i, row, stream,
  0), i = 0, 1, ...; each block gives its four words in order.
- Columns, stream 0: Floyd's subset algorithm. For j = d - s, ..., d - 1: draw t uniform
  on 0..j; take t, or j if t is is_drawn.
- Uniform on 0..j: multiply and shift, 32 bits, rejecting the words that would bias it
  (Lemire, ACM TOMACS 29, 2019).
- Signs, stream 1: bit k of the words (lowest first) is set if the k-th smallest column
  of the row carries -1.
- Weighted columns, stream 3: draw a feature with a chance in proportion to its weight
  (uniform below the sum of the weights), then one of its codes, until s different ones
  are found.
- Waves, stream 2, "row" k for wave k: the first word over 2**32 is the phase. Words 2 j
  + 2 and 2 j + 3 have 64 bits. The number of set bits among them, less 32, over 4, is
  the slope along column j: close to normal, of variance 1, exact.

The hash sees only the direction of a sample. Wave features carry the position: feature
k of a sample x is

    q_k(x) = rint(127 (4 |t - 1/2| - 1)),  t = u - floor(u),  u = b_k + f sum over j of w_kj z_j,

a triangle wave of period 1 / f along the direction w_k, where z is the centred and
scaled sample: random Fourier features (Rahimi & Recht, NIPS 2007) with a triangle for
the cosine, as it takes only operations that are rounded exactly, in a fixed order. So
wave features, integers from -127 to 127, are the same on every machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn._types import Array, Floats, Mask
from flwr_flynn.errors import DataError


# Without types it would be compiled for each constant that a caller has.
@njit("(uint64[::1], uint64, uint64, uint64, uint64)", nogil=True, cache=True)
def philox(words, seed, c0, c1, c2):  # type: ignore[no-untyped-def]
    """Write the four words of Philox4x32-10 for counter (c0, c1, c2, 0) and key
    `seed`: block, row and stream.
    """
    low32 = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c3 = np.uint64(0)
    k0 = seed & low32
    k1 = seed >> shift
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p1 = np.uint64(0xCD9E8D57) * c2
        c0 = (p1 >> shift) ^ c1 ^ k0
        c1 = p1 & low32
        c2 = (p0 >> shift) ^ c3 ^ k1
        c3 = p0 & low32
        k0 = (k0 + np.uint64(0x9E3779B9)) & low32
        k1 = (k1 + np.uint64(0xBB67AE85)) & low32
    words[0], words[1], words[2], words[3] = c0, c1, c2, c3


@njit(nogil=True, cache=True)
def _is_fair(product, size):  # type: ignore[no-untyped-def]
    """Tell if the high half of a product, random word times `size`, may be taken as a
    uniform number below `size`.

    The loops around it stand in their functions: as a function of its own, a loop that
    hands `words` and its position back takes half as long again.
    """
    return (product & np.uint64(0xFFFFFFFF)) >= (np.uint64(2**32) - size) % size


@njit(nogil=True, cache=True)
def draw_rows(seed, hash_dim, n_features, row_nnz):  # type: ignore[no-untyped-def]
    """Draw the column indices of every row, in no order: (hash_dim, row_nnz) int32,
    stream 0.
    """
    rows = np.empty((hash_dim, row_nnz), np.int32)
    words = np.empty(4, np.uint64)
    is_drawn = np.zeros(n_features, np.bool_)
    shift = np.uint64(32)
    for row in range(hash_dim):
        block = 0
        used = 4
        for j in range(n_features - row_nnz, n_features):
            size = np.uint64(j + 1)
            while True:
                if used == 4:
                    philox(words, seed, block, row, 0)
                    block = block + 1
                    used = 0
                product = words[used] * size
                used += 1
                if _is_fair(product, size):
                    break
            column = product >> shift
            if is_drawn[column]:
                column = np.uint64(j)
            is_drawn[column] = True
            rows[row, row_nnz - n_features + j] = column
        for column in rows[row]:
            is_drawn[column] = False
    return rows


@njit(nogil=True, cache=True)
def draw_weighted_rows(seed, hash_dim, up_to, n_codes, row_nnz):  # type: ignore[no-untyped-def]
    """Draw columns by the weights of their features, in no order: (hash_dim, row_nnz)
    int32, stream 3.

    `up_to`, (d,) uint64: sums of the weights up to and with each feature, the last
    below 2**32. Feature j has the columns from j * n_codes.
    """
    rows = np.empty((hash_dim, row_nnz), np.int32)
    words = np.empty(4, np.uint64)
    is_drawn = np.zeros(len(up_to) * n_codes, np.bool_)
    shift = np.uint64(32)
    total = up_to[-1]
    codes = np.uint64(n_codes)
    for row in range(hash_dim):
        block = 0
        used = 4
        k = 0
        while k < row_nnz:
            column = np.uint64(0)
            for part in range(2):
                if part == 0:
                    size = total
                else:
                    size = codes
                while True:
                    if used == 4:
                        philox(words, seed, block, row, 3)
                        block = block + 1
                        used = 0
                    product = words[used] * size
                    used += 1
                    if _is_fair(product, size):
                        break
                drawn = product >> shift
                if part == 0:
                    # A search by hand compiles in a tenth of the time of NumPy's.
                    low = 0
                    high = len(up_to)
                    while low < high:
                        middle = (low + high) // 2
                        if up_to[middle] <= drawn:
                            low = middle + 1
                        else:
                            high = middle
                    column = np.uint64(low) * codes
                else:
                    column += drawn
            if is_drawn[column]:
                continue  # drawn again
            is_drawn[column] = True
            rows[row, k] = column
            k += 1
        for column in rows[row]:
            is_drawn[column] = False
    return rows


@njit(nogil=True, cache=True)
def draw_signs(seed, hash_dim, row_nnz):  # type: ignore[no-untyped-def]
    """Draw +1 or -1 for every entry of every row: (hash_dim, row_nnz) int8, stream 1."""
    signs = np.empty((hash_dim, row_nnz), np.int8)
    words = np.empty(4, np.uint64)
    for row in range(hash_dim):
        for k in range(row_nnz):
            if k % 128 == 0:
                philox(words, seed, k // 128, row, 1)
            bit = words[k % 128 // 32] >> np.uint64(k % 32) & np.uint64(1)
            signs[row, k] = 1
            if bit:
                signs[row, k] = -1
    return signs


@njit(nogil=True, cache=True)
def draw_waves(seed, n_waves, n_features):  # type: ignore[no-untyped-def]
    """Draw slopes, (n_features, n_waves) float64, and phases, (n_waves,) float64:
    stream 2.
    """
    slopes = np.empty((n_features, n_waves))
    phases = np.empty(n_waves)
    words = np.empty(4, np.uint64)
    one = np.uint64(1)
    for wave in range(n_waves):
        philox(words, seed, 0, wave, 2)
        phases[wave] = words[0] / 2.0**32
        for j in range(n_features):
            index = 2 * j + 2
            if index % 4 == 0:
                philox(words, seed, index // 4, wave, 2)
            n_set = 0
            for k in range(2):
                word = words[index % 4 + k]
                while word:
                    n_set += 1
                    word &= word - one
            slopes[j, wave] = (n_set - 32) / 4.0
    return slopes, phases


_LARGEST = 1e300  # far enough below what float64 holds for any rounding on the way


class TriangleFeatures:
    """Wave features of a specification.

    `center` and `scale` are (n_features,) float64 or None.
    """

    def __init__(
        self,
        seed: int,
        n_waves: int,
        frequency: float,
        center: Floats | None,
        scale: Floats | None,
        n_features: int,
    ) -> None:
        self.n_waves = n_waves
        self._frequency = frequency
        if center is None:
            self._center = np.zeros(n_features)
        else:
            self._center = center
        if scale is None:
            self._scale = np.ones(n_features)
        else:
            self._scale = scale
        self._slopes, self._phases = draw_waves(np.uint64(seed), n_waves, n_features)

    def fits(self, X: Array) -> Mask:
        """Tell the finite samples whose projections are well within float64, each by
        its own values alone.
        """
        with np.errstate(over="ignore"):
            sizes = np.abs(
                (np.asarray(X, np.float64) - self._center) * self._scale
            ).sum(axis=1)
            reach = sizes * (
                np.abs(self._slopes).max(initial=1.0) * max(1.0, self._frequency)
            )
        return np.asarray(reach < _LARGEST)

    def __call__(self, X: Array) -> npt.NDArray[np.int8]:
        """Compute the wave features, (n, n_waves) int8, of finite samples, (n, d) of
        any real dtype.
        """
        out = np.empty((len(X), self.n_waves), np.int8)
        X = np.ascontiguousarray(X, np.float64)
        if not _waves(
            X,
            self._center,
            self._scale,
            self._slopes,
            self._phases,
            self._frequency,
            out,
        ):
            raise DataError(
                "X",
                "values whose projections fit float64 (rescale the features)",
                "larger values",
            )
        return out


@njit(nogil=True, cache=True)
def _waves(X, center, scale, slopes, phases, frequency, out):  # type: ignore[no-untyped-def]
    """Write the wave features of each sample to `out`.

    Return False at the first projection that is not finite.
    """
    n_waves = slopes.shape[1]
    sums = np.empty(n_waves)
    for p in range(X.shape[0]):
        sums[:] = 0.0
        for j in range(X.shape[1]):
            z = (X[p, j] - center[j]) * scale[j]
            for k in range(n_waves):
                sums[k] += z * slopes[j, k]
        for k in range(n_waves):
            u = phases[k] + frequency * sums[k]
            if not np.isfinite(u):
                return False
            out[p, k] = np.rint(127.0 * (4.0 * abs(u - np.floor(u) - 0.5) - 1.0))
    return True
