"""Graded responses of a hash: which rows win, and by how much, as integers from 0 to
15.

With t the (rho + 1)-th largest of the sums M x of a sample, and e_i = max((M x)_i - t,
0), the grade of row i is 15 e_i / max e, rounded: 15 for the first of the winners, and
0 for all rows that lose. Like the hash, it depends on the direction of the sample
alone, and ties make no difference, as what equals t has grade 0.

The inputs of the matrix are first rounded to integers, each sample on a scale of its
own on which its largest is 1023. All sums are sums of integers then, which floats hold
exactly: grades are the same on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn._types import Array

LEVELS = 15  # highest grade

_LARGEST_INPUT = 1023
_FLOAT32_EXACT = 2**24
_SUMS = 2**20  # held at a time


def lifting_matrix(rows: Array, signs: Array | None, n_inputs: int) -> sp.csr_array:
    """Sparse (m, n_inputs) matrix with these columns of its entries, (m, s), and signs,
    in the dtype of its sums.
    """
    m, row_nnz = rows.shape
    # The largest value of all that `grades` computes.
    largest = 2 * row_nnz * _LARGEST_INPUT * (2 * LEVELS + 1)
    if largest < _FLOAT32_EXACT:
        dtype: type[np.floating[Any]] = np.float32
    else:
        dtype = np.float64
    if signs is None:
        entries = np.ones(rows.size, dtype)
    else:
        entries = signs.ravel().astype(dtype)
    return sp.csr_array(
        (entries, rows.ravel(), np.arange(m + 1) * row_nnz), shape=(m, n_inputs)
    )


def grades(
    inputs: Array, matrix: sp.csr_array, hash_nnz: int, out: npt.NDArray[np.uint8]
) -> None:
    """Write the grades of samples, (n, m), to `out`, from their finite inputs of the
    matrix, (n, n_inputs).
    """
    m = matrix.shape[0]
    step = max(1, _SUMS // m)
    for first in range(0, len(inputs), step):
        part = inputs[first : first + step].astype(np.float64)
        largest = np.abs(part).max(axis=1, initial=0.0, keepdims=True)
        part /= np.where(largest > 0, largest, 1.0)
        levels = np.rint(part * _LARGEST_INPUT).astype(matrix.dtype)
        excess = np.ascontiguousarray((matrix @ levels.T).T)
        if hash_nnz < m:
            excess -= np.partition(excess, m - hash_nnz - 1, axis=1)[
                :, m - hash_nnz - 1, None
            ]
        else:
            excess -= excess.min(axis=1, keepdims=True)
        np.maximum(excess, 0, out=excess)
        highest = excess.max(axis=1, keepdims=True)
        highest[highest == 0] = 1
        # The cast rounds down. Numerators are integers below 2**24 (of float64 2**53):
        # A quotient below an integer is further from it than half a unit in the last
        # place.
        excess *= 2 * LEVELS
        excess += highest
        excess /= 2 * highest
        out[first : first + step] = excess
