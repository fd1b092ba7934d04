"""The centre and the scale of the columns, learned from the points.

They are part of the hash, so two runs over the same points should find the same, bit for bit. Floating-point sums
depend on the order of the terms; those here are of whole numbers, which have no order.

>>> mean, deviation = column_statistics(np.array([[1.0, 7.0], [3.0, 7.0]]))
>>> mean, deviation
(array([2., 7.]), array([1., 1.]))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.utils import gen_batches

from flwr_flynn.errors import SpecError

Floats = npt.NDArray[np.float64]

Scaling = str | tuple[Sequence[float] | None, Sequence[float] | None] | None
"""None, "center", "standard" or a pair (center, scale): see `FlyNNClassifier`."""


def center_and_scale(scaling: Scaling, X: Any) -> tuple[Any, Any]:
    """Centre and scale for a hash.

    Parameters
    ----------
    scaling : None, "center", "standard" or a pair (center, scale)
        Nothing; the mean; the mean and one over the standard deviation; what is given.
    X : (n, d) array or scipy CSR
        Points, finite; n >= 1.

    Returns
    -------
    center, scale : sequence of d floats, or None
        A given pair comes back as it is; `HashSpec` checks it.

    Raises
    ------
    SpecError
        `scaling` is not a pair.

    Examples
    --------
    >>> center_and_scale("center", np.array([[1.0, 7.0], [3.0, 7.0]]))
    ((2.0, 7.0), None)
    """
    if scaling is None:
        return None, None
    if isinstance(scaling, str):
        mean, deviation = column_statistics(X)
        return tuple(mean.tolist()), tuple((1 / deviation).tolist()) if scaling == "standard" else None
    if len(scaling) != 2:
        raise SpecError(f"scaling: expected a pair (center, scale), got {len(scaling)} entries")
    return scaling


def column_statistics(X: Any) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each column, the same for every order of the rows, dtype, and sparse or dense.

    Parameters
    ----------
    X : (n, d) array or scipy CSR
        Points, finite; n >= 1.

    Returns
    -------
    mean, deviation : (d,) float64 arrays
        For columns that are constant their very value, and 1.

    Notes
    -----
    Values, and then squared deviations from the mean, are scaled by a power of two to at most 1 in magnitude and
    rounded to multiples of 2 ** -(60 - log2(n)), so that n of them add up within 63 bits.
    """
    n, d = X.shape
    sparse = sp.issparse(X)
    if sparse and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    low, high = (
        np.asarray(sp.coo_array(edge).todense() if sparse else edge, np.float64).reshape(d)
        for edge in (X.min(0), X.max(0))
    )
    exponent = _exponent(low, high)
    places = 60 - n.bit_length()

    def mean_of(term: Callable[[Floats, Any], Floats]) -> Floats:
        sums = np.zeros(d, np.int64)
        if sparse:
            zeros = n - np.bincount(X.indices, minlength=d)
            sums += zeros * _fixed(term(np.zeros(d), slice(None)), places)
            values = np.ldexp(X.data.astype(np.float64), -exponent[X.indices])
            np.add.at(sums, X.indices, _fixed(term(values, X.indices), places))
        else:
            for rows in gen_batches(n, max(1, 2**20 // d)):
                values = np.ldexp(X[rows].astype(np.float64), -exponent)
                sums += _fixed(term(values, slice(None)), places).sum(axis=0)
        means: Floats = np.ldexp(sums / n, -places)
        return means

    mean = mean_of(lambda values, columns: values)
    reach = _exponent(np.ldexp(low, -exponent) - mean, np.ldexp(high, -exponent) - mean)
    variance = mean_of(lambda values, columns: np.ldexp(values - mean[columns], -reach[columns]) ** 2)
    deviation = np.ldexp(np.sqrt(variance), exponent + reach)
    constant = (low == high) | (deviation < np.finfo(np.float64).tiny)
    return np.where(constant, low, np.ldexp(mean, exponent)), np.where(constant, 1.0, deviation)


def _exponent(low: Floats, high: Floats) -> npt.NDArray[np.int32]:
    """The power of two that scales what lies between the two into [-1, 1]."""
    exponent: npt.NDArray[np.int32] = np.frexp(np.maximum(np.abs(low), np.abs(high)))[1]
    return exponent


def _fixed(values: Floats, places: int) -> npt.NDArray[np.int64]:
    return np.rint(np.ldexp(values, places)).astype(np.int64)
