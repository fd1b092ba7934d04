"""Rank codes: small integers that tell where a value stands among the quantiles of its
column.

The hash sees only the direction of a sample, and a heavy tail takes all of it. Rank
codes take the place of the features: each value becomes its rank r from 0 to 2 K among
K edges,

    r = number of edges below the value + number of edges at or below it,

and the rank becomes `n_codes` integers from 0 to 15, by one of two shapes over u = r /
2 K:

- "bumps": rint(15 (1 - ((u - c_b) / w)**2)**2) within w = 1.54 / (n_codes - 1) of the
  centre c_b = b / (n_codes - 1), else 0. A row that adds bumps of several columns is a
  soft box.
- "steps": 1 where u exceeds (b + 1/2) / n_codes, else 0: a thermometer.

Values are compared by their keys, so a code is a matter of integers, and the same on
every machine. Before a signed hash, codes are centred by their mean over the edges. A
gap, NaN, has no rank: all its codes are 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn._types import Array, Floats, Integers, Mask

CODINGS = ("bumps", "steps")
MANTISSA_BITS = 20
# Bits of a key: sign, exponent and the highest bits of the mantissa of a float64.
KEY_BITS = 12 + MANTISSA_BITS

N_EDGES = 32  # edges of a column, K, that the defaults use

GAP = 2**31 + (0x7FF8 << 16)  # key of NaN, above those of all numbers

FIRST_GAP = 2**31 + (0x7FF0 << 16)  # lowest key above those of all finite numbers

_HEIGHT = 15  # of a bump
_WIDTH = 1.54  # of a bump, in distances between centres


def keys_of(values: Floats) -> Integers:
    """Keys of floats, integers from 0 to 2**KEY_BITS - 1, in the order of the values.

    The key of `np.nan` is `GAP`.
    """
    # -0.0 + 0.0 is 0.0
    bits = (np.ascontiguousarray(values, np.float64) + 0.0).view(np.int64)
    # Of a negative float all bits but the sign are turned over: the larger the
    # magnitude, the lower the key.
    ordered = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    keys: Integers = (ordered >> (64 - KEY_BITS)) + (1 << (KEY_BITS - 1))
    return keys


def values_of(keys: Integers) -> Floats:
    """Lowest float of each key, finite for keys of finite floats."""
    ordered = (np.asarray(keys, np.int64) - (1 << (KEY_BITS - 1))) << (64 - KEY_BITS)
    # A negative key's lowest value has the largest magnitude, all its low bits set.
    bits = np.where(ordered < 0, ordered ^ np.int64(2**63 - 1), ordered)
    return np.asarray(bits, np.int64).view(np.float64)


def edges_of_ranges(
    low: Sequence[float], high: Sequence[float], n_edges: int = N_EDGES
) -> Floats:
    """Return edges at equal distances within the ranges of columns, (d, n_edges), in
    the place of quantiles.
    """
    lows = np.array(low, np.float64)
    highs = np.array(high, np.float64)
    shares = (np.arange(n_edges) + 0.5) / n_edges
    return lows[:, None] + (highs - lows)[:, None] * shares


def ranks_of(values: Floats, edges: Floats) -> Integers:
    """Rank from 0 to 2 K of each value, (n, d), among the edges of its column, (d, K).

    The rank of a gap is 0.
    """
    d, n_edges = edges.shape
    ranks = np.arange(2 * n_edges + 1, dtype=np.int16)
    out = np.empty((*values.shape, 1), np.int16)
    codes = np.tile(ranks[:, None], (d, 1, 1))
    _encode(keys_of(values), keys_of(edges), codes, out)
    return out[:, :, 0].astype(np.int64)


class RankCodes:
    """Codes of a specification.

    Parameters
    ----------
    edges : (d, K) float64
        In each row not descending.
    n_codes : int
    coding : {"bumps", "steps"}
    centred : bool
        Multiply the codes by K and subtract their sum over the edges.
    """

    def __init__(self, edges: Floats, n_codes: int, coding: str, centred: bool) -> None:
        self._edges = keys_of(edges)
        d, n_edges = edges.shape
        table = _table(n_edges, n_codes, coding)
        middle = np.zeros((d, n_codes), np.int64)
        if centred:
            low = self._edges[:, None, :]
            high = self._edges[:, :, None]
            # Index of each edge among those of its column.
            ranks = (low < high).sum(axis=2) + (low <= high).sum(axis=2)
            middle = table[ranks].sum(axis=1)
            table *= n_edges
        # (d, 2 K + 1, n_codes)
        self._codes = (table - middle[:, None, :]).astype(np.int16)
        self.n_inputs = d * n_codes

    def fits(self, X: Array) -> Mask:
        """Tell the finite samples that have codes, (n,) bool: all of them."""
        return np.ones(len(X), np.bool_)

    def __call__(self, X: Array) -> npt.NDArray[np.int16]:
        """Compute the codes, (n, d * n_codes) int16, of samples, (n, d) of any real
        dtype, finite or NaN.
        """
        out = np.empty((len(X), self._edges.shape[0], self._codes.shape[2]), np.int16)
        _encode(keys_of(np.asarray(X, np.float64)), self._edges, self._codes, out)
        return out.reshape(len(X), self.n_inputs)


def _table(n_edges: int, n_codes: int, coding: str) -> Integers:
    """Codes of each rank, (2 K + 1, n_codes)."""
    u = np.arange(2 * n_edges + 1)[:, None] / (2 * n_edges)
    b = np.arange(n_codes)
    if coding == "steps":
        return np.asarray(u > (b + 0.5) / n_codes, np.int64)
    gaps = max(n_codes - 1, 1)
    distance = (u * gaps - b) / _WIDTH
    shape = np.maximum(1 - distance * distance, 0)
    return np.asarray(np.rint(_HEIGHT * shape * shape), np.int64)


@njit(nogil=True, cache=True)
def _encode(keys, edges, codes, out):  # type: ignore[no-untyped-def]
    """Write the codes of the values with these keys, (n, d), to `out`, (n, d, n_codes)."""
    n_edges = edges.shape[1]
    n_codes = codes.shape[2]
    for p in range(keys.shape[0]):
        for j in range(keys.shape[1]):
            key = keys[p, j]
            if key >= GAP:
                for b in range(n_codes):
                    out[p, j, b] = 0
                continue
            row = edges[j]
            low = 0
            high = n_edges  # edges below the value
            while low < high:
                middle = (low + high) >> 1
                if row[middle] < key:
                    low = middle + 1
                else:
                    high = middle
            rank = low
            while low < n_edges and row[low] == key:
                low += 1
            rank += low
            for b in range(n_codes):
                out[p, j, b] = codes[j, rank, b]
