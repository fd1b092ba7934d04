"""Gram matrix: second-order statistics that add, and the classifier that follows from
them.

Counts look at one bit at a time. A Gram matrix has the sums, over samples, of the
products of every two terms of a sample, with the sums of the terms by class: integers
that add exactly, so they are those of the pooled samples however these are split. Of
neural features this is known as analytic federated learning (He et al. 2025).

Terms are those of a `Basis`, and the classifier is the linear part of a model.

The samples are in two folds, by a hash of their content, and each fold has sums of its
own. Ridge regression of the classes on the terms follows from the sums of one fold,
and so do the class means and the pooled covariance of its scores on the other fold: an
exact 2-fold cross-validation, without another look at a sample. The ridge strength is
the one whose held-out scores separate the classes best, by the Hotelling-Lawley trace.
The regression is then solved on both folds together, and linear discriminant analysis
of the held-out scores turns its scores into log probabilities.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from threadpoolctl import threadpool_limits

from flwr_flynn._types import Array, Floats, Integers, Mask, Matrix
from flwr_flynn._validation import freeze, integers
from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.hashing.batching import batches
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.portable import content_shares
from flwr_flynn.model.scoring import Scores, log_probabilities

UNIT = 2.0**-18  # weight of the integer 1
# Largest magnitude of a weight. Sums of such weights times terms are exact in float64.
LARGEST_WEIGHT = 2**24
LARGEST_BIAS = 2**44  # largest magnitude of a bias
BATCH = 2**12  # samples whose terms are held at a time, at most
N_FOLDS = 2
# Strengths of the regression, times the trace of the centred products of a fold.
_STRENGTHS = tuple(2.0**-k for k in range(6, 20, 2))
# Share of the strength for both folds together: they have twice the samples, and the
# committee steadies them.
_LESS = 0.125
# Share of the covariance of the class means in that of the scores, which have heavy
# tails.
_BETWEEN = 0.1
_ROUNDING = 1e-9  # share of the variance of scores that is rounding
_NEVER = -(2**40)  # bias of a class without samples


@dataclass(frozen=True, eq=False)
class GramScoring:
    """Scores of a linear part, with all classes taken for equally frequent.

    Parameters
    ----------
    terms : Basis
    weights : (m, L) array-like of int
        Of the terms, in units of `UNIT`. Kept as read-only int32.
    bias : (L,) array-like of int
        Likewise, as int64.

    Raises
    ------
    DataError
        A field is not as described.
    """

    terms: Basis
    weights: Array
    bias: Array

    def __post_init__(self) -> None:
        shape = self.terms.n_terms, len(self.bias)
        weights = integers(
            "linear", self.weights, shape, -LARGEST_WEIGHT, LARGEST_WEIGHT, DataError
        )
        bias = integers(
            "linear", self.bias, shape[1:], -LARGEST_BIAS, LARGEST_BIAS, DataError
        )
        freeze(self, weights=weights.astype(np.int32), bias=bias)

    def log_probabilities(self, scores: Scores, X: Matrix) -> Scores:
        """Log probabilities of the classes, (n, L), for samples, (n, d).

        Those of classes that the sums do not have are those of other scores, (n, L).
        """
        odds = np.empty(scores.shape)
        for rows in batches(len(odds), BATCH // 4):
            # Scores are integers of units, and so exact.
            z = self.terms.integers(X[rows]).astype(np.float64)
            odds[rows] = (z @ self.weights + self.bias) * UNIT
        logs = log_probabilities(odds)
        is_unknown = self.bias == _NEVER
        if is_unknown.any():
            logs[:, is_unknown] = log_probabilities(scores)[:, is_unknown]
        return logs

    def sha256(self) -> str:
        """SHA-256 over all of it; the same for equal ones everywhere."""
        facts = [self.terms.to_dict(), self.bias.tolist()]
        sha256 = hashlib.sha256(b"flynn gram 3 " + json.dumps(facts).encode())
        sha256.update(np.ascontiguousarray(self.weights, "<i4").data)
        return sha256.hexdigest()


@dataclass(frozen=True, eq=False)
class GramMatrix(Tables):
    """Sums of two folds of samples: products of every two terms, terms by class, and
    samples.

    They add, and scores follow from them. The products of a fold are the upper triangle
    of an (m, m) matrix, row by row.
    """

    terms: Basis

    @classmethod
    def zeros(cls, terms: Basis, n_classes: int) -> GramMatrix:
        """Sums of no samples."""
        n_terms = terms.n_terms
        shapes = (
            (N_FOLDS, n_terms * (n_terms + 1) // 2),
            (N_FOLDS, n_classes, n_terms),
            (N_FOLDS, n_classes),
        )
        return cls(tuple(np.zeros(shape, np.int64) for shape in shapes), terms)

    @classmethod
    def from_data(
        cls, terms: Basis, X: Matrix, y: Integers, n_classes: int
    ) -> GramMatrix:
        """Sums of samples in one place, (n, d), with class indices, (n,): equal to the
        sums of parties with these.
        """
        total = cls.zeros(terms, n_classes)
        for rows in batches(len(y), BATCH):
            # Floats hold the sums exactly, whatever the order in which BLAS adds them.
            every = terms.integers(X[rows]).astype(np.float64)
            folds = folds_of(X[rows])
            for fold in range(N_FOLDS):
                total._add(fold, every[folds == fold], y[rows][folds == fold])
        return total

    def _add(self, fold: int, z: Array, labels: Integers) -> None:
        """Add the terms of samples, (n, m), to the sums of a fold."""
        n_classes = self.n_per_class.shape[1]
        products = (z.T @ z)[np.triu_indices(z.shape[1])]
        self.products[fold] += products.astype(np.int64)
        is_of_class = (labels == np.arange(n_classes)[:, None]).astype(z.dtype)
        self.sums[fold] += (is_of_class @ z).astype(np.int64)
        self.n_per_class[fold] += np.bincount(labels, minlength=n_classes)

    @property
    def products(self) -> Integers:
        """Upper triangles of the products, (2, m (m + 1) / 2)."""
        return self.tables[0]

    @property
    def sums(self) -> Integers:
        """Sums of the terms by class, (2, L, m)."""
        return self.tables[1]

    @property
    def n_per_class(self) -> Integers:
        """Samples of each class, (2, L)."""
        return self.tables[2]

    @property
    def fewest(self) -> int:
        """Number of samples of the smaller fold."""
        return int(self.n_per_class.sum(axis=1).min())

    @property
    def least(self) -> int:
        """Samples of each fold, at least, of sums that other sites may get."""
        return 2 * self.terms.n_terms

    @property
    def n_examples(self) -> int:
        """Number of samples."""
        return sum(self.n_per_class.ravel().tolist())

    @property
    def scoring(self) -> GramScoring | None:
        """The scores of the whole, if there are some."""
        return next(iter(self.scorings), None)

    @property
    def folds(self) -> tuple[GramScoring, ...]:
        """The scores for the samples of each fold, or ()."""
        return self.scorings[1:]

    @cached_property
    def scorings(self) -> tuple[GramScoring, ...]:
        """The part of a model that follows from the sums and, where they can be solved,
        those for the samples of each fold; () unless two classes have samples that
        differ.

        The regression of the latter is that of the other fold, and its means and
        covariance are of samples of the other fold. These few numbers, as the ridge
        strength, still know a little of the fold: they are of scores by the fold's own
        regression, so that a difference that is chance in both looks real.
        """
        is_filled = self.n_per_class.sum(axis=0) > 0
        in_both = self.n_per_class.min(axis=0) > 0
        whole, *of_folds = self._solved(is_filled)
        if whole is None:
            return ()
        if (in_both != is_filled).any():
            _, *of_folds = self._solved(in_both)
        usable = [scoring for scoring in of_folds if scoring is not None]
        if len(usable) < N_FOLDS:
            usable = []
        return (whole, *usable)

    def _solved(self, is_known: Mask) -> list[GramScoring | None]:
        """Scorings of the whole and of the folds, of the classes that are known."""
        folds = [self._fold(fold, is_known) for fold in range(N_FOLDS)]
        # With several threads the solution would depend on the number of cores.
        with threadpool_limits(1, "blas"):
            solutions = _discriminants(folds)
        if solutions is None:
            return [None]
        return [_rounded(self.terms, *own, is_known) for own in solutions]

    def upper(self, fold: int) -> Floats:
        """Products of a fold as a matrix, (m, m), with zeros below the diagonal."""
        n_terms = self.terms.n_terms
        upper = np.zeros((n_terms, n_terms))
        upper[np.triu_indices(n_terms)] = self.products[fold]
        return upper

    def _fold(self, fold: int, is_filled: Mask) -> _Sums:
        upper = self.upper(fold)
        square = upper + np.triu(upper, 1).T
        sums = self.sums[fold, is_filled].astype(np.float64)
        sizes = self.n_per_class[fold, is_filled].astype(np.float64)
        return _Sums(square, sums, sizes)

    def sha256(self) -> str:
        """SHA-256 of the sums, the same for equal ones everywhere."""
        if not self.n_examples:
            return NO_SAMPLES
        sha256 = hashlib.sha256(b"flynn gram 4 ")
        for table in self.tables:
            sha256.update(f"{table.shape} ".encode())
            sha256.update(np.ascontiguousarray(table, "<i8").data)
        return sha256.hexdigest()

    def __eq__(self, other: object) -> bool:
        same_terms = isinstance(other, GramMatrix) and self.terms == other.terms
        return same_terms and super().__eq__(other)

    def _combined(self, other: Self, sign: int) -> Self:
        if self.terms != other.terms:
            raise CountsError("linear", "equal terms", "others")
        return super()._combined(other, sign)


def fold_sizes(X: Matrix, y: Integers, n_classes: int) -> Integers:
    """Samples of each class in each fold, (2, L), of samples, (n, d), with class
    indices, (n,).
    """
    sizes = np.zeros((N_FOLDS, n_classes), np.int64)
    for rows in batches(len(y), BATCH):
        np.add.at(sizes, (folds_of(X[rows]), y[rows]), 1)
    return sizes


def folds_of(X: Matrix) -> Integers:
    """Fold of each sample, (n,), by its content."""
    return (content_shares(X) < 0.5).astype(np.int64)


class _Sums(NamedTuple):
    """Sums of samples: products, (m, m), terms by class, (L, m), and sizes of
    the classes, (L,).
    """

    products: Scores
    terms: Scores
    sizes: Scores

    def plus(self, other: _Sums) -> _Sums:
        """The sums of the samples of both."""
        return _Sums(*map(np.add, self, other))

    def regression(self, share: float) -> tuple[Scores, Scores]:
        """Weights, (m, L), and intercepts, (L,), of ridge regression of the classes at
        a share of the trace.
        """
        total = self.sizes.sum()
        mean = self.terms.sum(axis=0) / total
        moments = (self.terms - self.sizes[:, None] * mean).T
        centred = np.multiply.outer(mean, -total * mean)
        centred += self.products
        centred.flat[:: len(mean) + 1] += max(
            share * centred.trace(), np.finfo(float).tiny
        )
        # The matrix is symmetric, and its transpose is in LAPACK's order.
        factor = cho_factor(centred.T, overwrite_a=True)
        weights: Scores = cho_solve(factor, moments)
        return weights, self.sizes / total - mean @ weights

    def of_scores(self, weights: Scores, intercepts: Scores) -> _Sums:
        """The same sums of the scores of the samples by a regression."""
        sums = self.terms @ weights + self.sizes[:, None] * intercepts
        total = (self.terms.sum(axis=0) @ weights)[:, None] * intercepts
        square = np.multiply.outer(intercepts, intercepts) * self.sizes.sum()
        return _Sums(
            weights.T @ self.products @ weights + total + total.T + square,
            sums,
            self.sizes,
        )

    def discriminant(self, weights: Scores, intercepts: Scores) -> Solution:
        """Linear discriminant analysis of scores with these sums, by a regression."""
        means, within, between = self.covariances()
        centre = means.mean(axis=0)
        apart = (means - centre).T
        directions = np.linalg.solve(within + _BETWEEN * between, apart)
        biases = (intercepts - centre) @ directions
        return weights @ directions, biases - (apart * directions).sum(axis=0) / 2

    def covariances(self) -> tuple[Scores, Scores, Scores]:
        """Class means, (L, L), pooled covariance within the classes, and covariance of
        the means, each class alike.
        """
        means = self.terms / self.sizes[:, None]
        within = (self.products - self.terms.T @ means) / self.sizes.sum()
        between: Scores = np.cov(means.T, bias=True)
        within.flat[:: len(within) + 1] += _ROUNDING * (
            within.trace() + between.trace()
        )
        return means, within, between


Solution = tuple[Scores, Scores]
"""Weights, (m, L), and biases, (L,), of log probabilities, up to a constant of a
sample."""


def _discriminants(folds: Sequence[_Sums]) -> list[Solution] | None:
    """Solution for new samples, and one for the samples of each fold, of the regression
    of the other one.

    It is None where no regression can be solved.
    """
    both = folds[0].plus(folds[1])
    if len(both.sizes) < 2 or not min(fold.sizes.sum() for fold in folds):
        return None
    best = -np.inf
    chosen = None
    for share in _STRENGTHS:
        try:
            regressions = [fold.regression(share) for fold in folds]
            held_out = [
                fold.of_scores(*other)
                for fold, other in zip(folds, reversed(regressions), strict=True)
            ]
            _, within, between = held_out[0].plus(held_out[1]).covariances()
            trace = float(np.trace(np.linalg.solve(within, between)))
        except LinAlgError:
            # Samples are all alike, or no samples have these products.
            continue
        if trace > best:
            best = trace
            chosen = (share, regressions, held_out)
    if chosen is None:
        return None
    share, regressions, held_out = chosen
    try:
        whole = both.regression(_LESS * share)
        solutions = [held_out[0].plus(held_out[1]).discriminant(*whole)]
    except LinAlgError:  # of such products: the strength is less than that of the folds
        return None
    if min(fold.sizes.min() for fold in folds) > 0:
        # Of a fold both the regression and the samples of the held-out scores are those
        # of the other fold.
        with suppress(LinAlgError):
            solutions += [
                held_out[1].discriminant(*regressions[1]),
                held_out[0].discriminant(*regressions[0]),
            ]
    return solutions


def _rounded(
    terms: Basis, directions: Scores, intercepts: Scores, is_filled: Mask
) -> GramScoring | None:
    """A solution as integers; None where it is not finite, or 0."""
    if not (np.isfinite(directions).all() and np.isfinite(intercepts).all()):
        return None
    # Scores that are beyond the integers are made smaller, all alike.
    unit = max(UNIT, np.abs(directions).max() / LARGEST_WEIGHT)
    rounded = np.zeros((len(directions), len(is_filled)), np.int32)
    rounded[:, is_filled] = np.rint(directions / unit)
    if not rounded.any():
        return None
    bias = np.full(len(is_filled), _NEVER, np.int64)
    bias[is_filled] = np.rint(intercepts / unit)
    return GramScoring(terms, rounded, np.clip(bias, _NEVER, -_NEVER))


def by_fold(
    folds: Sequence[GramScoring], X: Matrix
) -> Iterator[tuple[Mask, GramScoring]]:
    """Training samples, (n,) bool, and the scoring for them, fold by fold."""
    own_folds = folds_of(X)
    for fold, scoring in enumerate(folds):
        yield own_folds == fold, scoring


NO_SAMPLES = hashlib.sha256(b"flynn gram of no samples").hexdigest()
"""Digest of the sums of a party that sends none."""


def memory_of_gram(n_terms: int, n_classes: int) -> int:
    """Estimate the memory of a Gram matrix and what becomes of it, in bytes, samples
    not included.
    """
    return 48 * n_terms**2 + n_terms * (8 * BATCH + 128 * n_classes)
