"""Basis of the linear part of a model: what is made of each column before products of
every two are summed.

Of a column there are up to three terms, small integers in units of 1/32:

- the number itself, standardised by centre and deviation of the column, and clipped at
  5 deviations;
- its normal score: the quantile of the normal distribution at the rank of the value
  among 32 edges of the column. A column of two values has none: it would be the number
  again;
- 1 for a gap, where the column has gaps. The other terms of a gap are 0.

Centre, deviation and edges follow from the summed histograms of the columns, so that all
parties have the same. Values are compared and rounded alike on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import ndtri

from flwr_flynn._types import Floats, Integers, Mask, Matrix
from flwr_flynn._validation import (
    checked_fields,
    finite_floats,
    freeze,
    integer,
    integers,
)
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.rank_codes import N_EDGES, ranks_of
from flwr_flynn.model.column_histograms import ColumnHistograms

UNIT = 32  # integers of a deviation
LARGEST = 5 * UNIT  # largest magnitude of a term
MOST_TERMS = 512  # of a basis
_MOST_CLASSES = 500  # beyond, there is no linear part
_FIELDS = ("columns", "center", "deviation", "edges", "has_gaps")
_FEW = 2  # different edges up to which a column has no normal score


def _normal_scores() -> Integers:
    """Normal score of each rank from 0 to 64 among 32 edges."""
    shares = np.arange(2 * N_EDGES + 1) / (2 * N_EDGES)
    inner = np.clip(shares, 1 / (4 * N_EDGES), 1 - 1 / (4 * N_EDGES))
    scores: Integers = np.rint(UNIT * ndtri(inner)).astype(np.int64)
    return scores


@dataclass(frozen=True)
class Basis:
    """Terms of some of the columns of a table.

    Parameters
    ----------
    n_features : int
        Columns of the table.
    columns : (k,) sequence of int
        Indices of the columns with terms, ascending.
    center, deviation : (k,) sequence of float
        A column of deviation 0 has no term for its number.
    edges : (k, 32) sequence of sequences of float
        Edges of the ranks, not descending.
    has_gaps : (k,) sequence of bool

    All are kept as tuples.

    Raises
    ------
    DataError
        A field is not as described, a column has no term, or all have more than 512.

    Examples
    --------
    >>> basis = Basis(2, [1], [10.0], [2.0], [[10.0] * 32], [True])
    >>> basis.integers(np.array([[0.0, 11.0], [0.0, np.nan]]))
    array([[16,  0],
           [ 0, 32]], dtype=int16)
    """

    n_features: int
    columns: tuple[int, ...]
    center: tuple[float, ...]
    deviation: tuple[float, ...]
    edges: tuple[tuple[float, ...], ...]
    has_gaps: tuple[bool, ...]

    def __post_init__(self) -> None:
        integer("n_features", self.n_features, error=DataError)
        columns = _checked_columns(self.columns, self.n_features)
        k = len(columns)
        checked: dict[str, tuple[Any, ...]] = {"columns": columns}
        for name in ("center", "deviation"):
            expected = f"{k} finite numbers"
            floats = finite_floats(name, getattr(self, name), (k,), expected, DataError)
            checked[name] = tuple((floats + 0.0).tolist())
        if min(checked["deviation"]) < 0:
            raise DataError("deviation", "numbers of at least 0", "a negative one")
        expected = f"{k} x {N_EDGES} finite numbers that do not descend"
        edges = finite_floats("edges", self.edges, (k, N_EDGES), expected, DataError)
        if (edges[:, 1:] < edges[:, :-1]).any():
            raise DataError("edges", expected, "some that descend")
        checked["edges"] = tuple(map(tuple, (edges + 0.0).tolist()))
        gaps = list(self.has_gaps)
        if len(gaps) != k or not all(type(value) is bool for value in gaps):
            raise DataError("has_gaps", f"{k} booleans", f"{len(gaps)} values")
        checked["has_gaps"] = tuple(gaps)
        freeze(self, **checked)
        if not self._terms.any(axis=0).all() or self.n_terms > MOST_TERMS:
            expected = f"a term of each column, {MOST_TERMS} at most"
            raise DataError("basis", expected, f"{self.n_terms} of {k} columns")

    @classmethod
    def of_columns(
        cls, histograms: ColumnHistograms, most: int = MOST_TERMS
    ) -> Basis | None:
        """The basis that follows from the histograms of all parties.

        It has at most so many terms, those of the columns that are the most relevant to
        the class. None where no column varies, and of more than 500 classes.
        """
        is_many = len(histograms.n_per_class) > _MOST_CLASSES
        if is_many or not histograms.n_examples:
            return None
        center, deviation = histograms.center_and_deviation()
        edges = histograms.edges()
        gaps = np.array(histograms.n_numbers) < histograms.n_examples
        n_terms = _terms(np.array(deviation), edges, gaps).sum(axis=0)
        relevance = np.array(histograms.relevance())
        order = np.argsort(-relevance, kind="stable")
        order = order[n_terms[order] > 0]
        chosen = np.sort(order[np.cumsum(n_terms[order]) <= most])
        if not len(chosen):
            return None
        return cls(
            histograms.n_features,
            tuple(chosen.tolist()),
            tuple(np.array(center)[chosen].tolist()),
            tuple(np.array(deviation)[chosen].tolist()),
            tuple(map(tuple, edges[chosen].tolist())),
            tuple(gaps[chosen].tolist()),
        )

    @property
    def n_terms(self) -> int:
        """Number of terms, p."""
        return int(self._terms.sum())

    @cached_property
    def _terms(self) -> Mask:
        edges = np.array(self.edges).reshape(-1, N_EDGES)
        return _terms(np.array(self.deviation), edges, np.array(self.has_gaps, bool))

    def integers(self, X: Matrix) -> npt.NDArray[np.int16]:
        """Terms of samples, (n, p): numbers, then normal scores, then gaps."""
        values = self.values(X)
        has_number, has_score, has_gap = self._terms
        is_gap = np.isnan(values)
        center = np.array(self.center)[has_number]
        deviation = np.array(self.deviation)[has_number]
        with np.errstate(over="ignore"):
            numbers = (values[:, has_number] - center) / deviation
        numbers = np.rint(UNIT * np.clip(numbers, -5.0, 5.0))
        numbers[is_gap[:, has_number]] = 0.0
        edges = np.array(self.edges)[has_score]
        scores = _SCORES[ranks_of(values[:, has_score], edges)]
        scores[is_gap[:, has_score]] = 0
        gaps = UNIT * is_gap[:, has_gap]
        return np.concatenate([numbers, scores, gaps], axis=1).astype(np.int16)

    def values(self, X: Matrix) -> Floats:
        """Values of the columns with terms, (n, k) float64, of samples, (n, d)."""
        values = X[:, list(self.columns)]
        if sp.issparse(values):
            values = values.toarray()
        return np.ascontiguousarray(values, np.float64)

    def to_dict(self) -> dict[str, object]:
        """The basis as JSON can hold it."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_dict(cls, values: object, n_features: int) -> Basis:
        """The basis with these values, which may come from anybody."""
        given = checked_fields("basis", values, {*_FIELDS}, error=DataError)
        if not all(isinstance(value, list | tuple) for value in given.values()):
            raise DataError("basis", "a list for each of its fields", "others")
        return cls(n_features, **given)


_SCORES = _normal_scores()


def _terms(deviation: Floats, edges: Floats, has_gaps: Mask) -> Mask:
    """Terms that columns have, (3, k) bool: number, normal score, gap."""
    n_different = 1 + (edges[:, 1:] > edges[:, :-1]).sum(axis=1)
    has_number = deviation > 0
    return np.stack([has_number, has_number & (n_different > _FEW), has_gaps])


def _checked_columns(columns: object, n_features: int) -> tuple[int, ...]:
    """Indices of columns as a tuple, if they ascend within the features."""
    indices = integers("columns", columns, (None,), 0, n_features - 1, DataError)
    if not 1 <= len(indices) <= MOST_TERMS or (np.diff(indices) <= 0).any():
        raise DataError("columns", f"1 to {MOST_TERMS} that ascend", "others")
    return tuple(indices.tolist())
