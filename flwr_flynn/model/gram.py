"""Gram matrix: second-order statistics that add, and the classifier that follows from
them.

Counts look at one bit at a time. A Gram matrix has the sums, over samples, of the
products of every two terms of a sample, with the sums of the terms by class: integers
that add exactly, so they are those of the pooled samples however these are split. Of
neural features this is known as analytic federated learning (He et al. 2025).

Terms are those of a `Basis`, the columns themselves, which make the linear part of a
model. Or they are `Responses`, the graded responses (`hashing.graded`) of up to five
candidates side by side, in equal parts. The products of a sample are then multiplied by
the weight of its class, see `class_weights`: else a rare class would have no say.

The samples are in two folds, by a hash of their content, and each fold has sums of its
own. Ridge regression of the classes on the responses follows from the sums of one fold,
and so do the class means and the pooled covariance of its scores on the other fold: an
exact 2-fold cross-validation, without another look at a sample. The ridge strength is
the one whose held-out scores separate the classes best, by the Hotelling-Lawley trace.
The regression is then solved on both folds together, and linear discriminant analysis
of the held-out scores turns its scores into log probabilities.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from threadpoolctl import threadpool_limits

from flwr_flynn._types import Array, Integers, Mask, Matrix
from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.hashing import graded
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.counts import Additive, Tables
from flwr_flynn.model.portable import content_shares
from flwr_flynn.model.scoring import Scores, bounded, log_probabilities

LEAST_ROWS = 16
MOST_ROWS = 4096  # rows of the hashes of a Gram matrix together
UNIT = 2.0**-18  # weight of the integer 1
# Largest magnitude of a weight. Sums of such weights times responses are exact in
# float64.
LARGEST_WEIGHT = 2**24
LARGEST_BIAS = 2**44  # largest magnitude of a bias
MOST_SPECS = 5  # hashes of a Gram matrix, at most
LEVELS = graded.LEVELS // 2  # largest response: half of the grade, for fewer bytes
BATCH = 2**12  # samples whose terms are held at a time, at most
N_FOLDS = 2
LARGEST_CLASS_WEIGHT = 64  # largest weight of a sample of a class
_FLOAT32_EXACT = 2**24
_MANY_ROWS = 2048  # from which a quarter of the rows win, and not three eighths
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


@dataclass(frozen=True)
class Responses:
    """Halves of the grades of samples by some hashes, rounded down, side by side.

    Parameters
    ----------
    specs : sequence of HashSpec
        One to five, of the same number of features. Kept as a tuple.

    Raises
    ------
    DataError
        A field is not as described.
    """

    specs: Sequence[HashSpec]

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", _checked_specs(self.specs))

    @property
    def n_features(self) -> int:
        """Number of features of a sample."""
        return self.specs[0].n_features

    @property
    def n_terms(self) -> int:
        """Number of rows of all hashes together."""
        return sum(spec.hash_dim for spec in self.specs)

    @property
    def largest(self) -> int:
        """Largest response."""
        return LEVELS

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of the hashes."""
        return [flynn_hash(spec).fingerprint for spec in self.specs]

    def to_dict(self) -> dict[str, object]:
        """The responses as JSON can hold them."""
        specs = [spec.to_dict() for spec in self.specs]
        return {"specs": specs, "fingerprints": self.fingerprints}

    def integers(self, X: Matrix, n_jobs: int | None = None) -> npt.NDArray[np.uint8]:
        """Responses of samples, (n, m)."""
        grades = np.concatenate(
            [flynn_hash(spec).graded(X, n_jobs) for spec in self.specs], axis=1
        )
        grades >>= 1
        return grades


Terms = Basis | Responses
"""Terms of a sample, of which every two are multiplied."""


@dataclass(frozen=True, eq=False)
class GramScoring:
    """Scores of a model from a Gram matrix, with all classes taken for equally
    frequent.

    Parameters
    ----------
    terms : Basis or Responses
    weights : (m, L) int32 array
        Of the terms, in units of `UNIT`. Kept read-only.
    bias : (L,) int64 array
        Likewise.

    Raises
    ------
    DataError
        A field is not as described.
    """

    terms: Terms
    weights: npt.NDArray[np.int32]
    bias: Integers

    def __post_init__(self) -> None:
        shape = self.terms.n_terms, len(self.bias)
        object.__setattr__(
            self,
            "weights",
            bounded("gram", self.weights, shape, np.int32, LARGEST_WEIGHT),
        )
        object.__setattr__(
            self, "bias", bounded("gram", self.bias, shape[1:], np.int64, LARGEST_BIAS)
        )

    def log_odds(self, X: Matrix, n_jobs: int | None = None) -> Scores:
        """Log probabilities of the classes up to a constant of each sample, (n, L)
        float64, for samples, (n, d).
        """
        out = np.empty((X.shape[0], len(self.bias)))
        for rows in batches(len(out), BATCH // 4):
            # Scores are integers of units, and so exact.
            z = self.terms.integers(X[rows], n_jobs).astype(np.float64)
            out[rows] = (z @ self.weights + self.bias) * UNIT
        return out

    def log_probabilities(
        self, scores: Scores, X: Matrix, n_jobs: int | None = None
    ) -> Scores:
        """Log probabilities of the classes, (n, L), for samples, (n, d).

        Those of classes that the sums do not have are those of other scores, (n, L).
        """
        logs = log_probabilities(self.log_odds(X, n_jobs))
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


def _checked_specs(specs: Iterable[object]) -> tuple[HashSpec, ...]:
    """Specs of a Gram matrix as a tuple, if they can be some; else a `DataError`."""
    several = tuple(specs)
    hashes = tuple(spec for spec in several if isinstance(spec, HashSpec))
    if not 1 <= len(several) <= MOST_SPECS or len(hashes) < len(several):
        kinds = [type(spec).__name__ for spec in several[: MOST_SPECS + 1]]
        raise DataError("gram", f"1 to {MOST_SPECS} HashSpecs", kinds)
    if len({spec.n_features for spec in hashes}) > 1:
        raise DataError(
            "gram",
            "specs of the same n_features",
            sorted({spec.n_features for spec in hashes}),
        )
    n_rows = sum(spec.hash_dim for spec in hashes)
    if n_rows > MOST_ROWS:
        raise DataError("gram", f"at most {MOST_ROWS} rows", n_rows)
    return hashes


def responses_of(specs: Sequence[HashSpec], n_rows: int) -> Responses:
    """Responses of so many rows, by one to five hashes, from the candidates of a model.

    They are those that look at the classes or have no rank codes. Rows with rank codes
    are drawn by the relevance of the features itself, where candidates have its root.
    """
    bases = [
        _by_relevance(spec) for spec in specs if spec.row_weights or not spec.coding
    ]
    if not bases:
        bases = [specs[0]]
    eighths = 2
    if n_rows < _MANY_ROWS:
        eighths = 3
    sizes = [(n_rows + i) // len(bases) for i in range(len(bases))]
    return Responses(
        tuple(
            replace(base, hash_dim=size, hash_nnz=max(size * eighths // 8, 1))
            for base, size in zip(bases, sizes, strict=True)
        )
    )


def _by_relevance(spec: HashSpec) -> HashSpec:
    if not spec.row_weights:
        return spec
    weights = tuple(max(1, round(weight**2 / 255)) for weight in spec.row_weights)
    return replace(spec, row_weights=weights)


def class_weights(n_per_class: Integers) -> tuple[int, ...]:
    """Weight of a sample of each class, about n ** -1/2 in quarters of that of the
    largest class, as integers.
    """
    sizes = n_per_class.tolist()
    largest = max(sizes)
    weights = []
    for size in sizes:
        weight = 0
        if size:
            weight = min(round(4 * math.sqrt(largest / size)), LARGEST_CLASS_WEIGHT)
        weights.append(weight)
    divisor = math.gcd(*weights) or 1
    return tuple(max(weight // divisor, 1) for weight in weights)


@dataclass(frozen=True, eq=False)
class GramMatrix(Tables):
    """Sums of two folds of samples: weighted products of every two terms, terms by
    class, and samples.

    The products of a fold are the upper triangle of an (m, m) matrix, row by row.
    """

    @classmethod
    def zeros(cls, n_rows: int, n_classes: int) -> GramMatrix:
        """Sums of no samples."""
        shapes = (
            (N_FOLDS, n_rows * (n_rows + 1) // 2),
            (N_FOLDS, n_classes, n_rows),
            (N_FOLDS, n_classes),
        )
        return cls(tuple(np.zeros(shape, np.int64) for shape in shapes))

    @classmethod
    def from_data(
        cls,
        terms: Terms,
        weights: Sequence[int],
        X: Matrix,
        y: Integers,
        n_jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> GramMatrix:
        """Sums of samples, (n, d), with class indices, (n,), and the weights of the
        classes, (L,).
        """
        n_classes = len(weights)
        total = cls.zeros(terms.n_terms, n_classes)
        # Sums of integers that the type holds exactly, whatever the order in which BLAS
        # adds them.
        dtype: type[np.floating[Any]] = np.float64
        if BATCH * max(weights) * terms.largest**2 < _FLOAT32_EXACT:
            dtype = np.float32
        factors = np.array(weights, dtype)
        for rows in batches(len(y), BATCH):
            every = terms.integers(X[rows], n_jobs)
            folds = folds_of(X[rows])
            for fold in range(N_FOLDS):
                z = every[folds == fold].astype(dtype)
                labels = y[rows][folds == fold]
                total._add(fold, z, labels, factors)
            if progress is not None:
                progress(len(every))
        return total

    def _add(self, fold: int, z: Array, labels: Integers, factors: Array) -> None:
        """Add the terms of samples, (n, m), to the sums of a fold."""
        n_rows = z.shape[1]
        n_classes = len(factors)
        products = z.T @ (z * factors[labels, None])
        for row, at in _upper(n_rows):
            own = self.products[fold, at]
            np.add(own, products[row, row:], own, casting="unsafe")
        is_of_class = (labels == np.arange(n_classes)[:, None]).astype(z.dtype)
        self.sums[fold] += (is_of_class @ z).astype(np.int64)
        self.n_per_class[fold] += np.bincount(labels, minlength=n_classes)

    @property
    def products(self) -> Integers:
        """Upper triangles of the weighted products, (2, m (m + 1) / 2)."""
        return self.tables[0]

    @property
    def sums(self) -> Integers:
        """Sums of the terms by class, (2, L, m)."""
        return self.tables[1]

    @property
    def n_per_class(self) -> Integers:
        """Samples of each class, (2, L)."""
        return self.tables[2]

    def scorings(self, terms: Terms, weights: Sequence[int]) -> GramScorings | None:
        """The part of a model that follows from the sums, and those of the folds.

        It is None unless two classes have samples that differ.
        """
        is_filled = self.n_per_class.sum(axis=0) > 0
        in_both = self.n_per_class.min(axis=0) > 0
        whole, *of_folds = self._solved(terms, weights, is_filled)
        if whole is None:
            return None
        if isinstance(terms, Basis) and (in_both != is_filled).any():
            _, *of_folds = self._solved(terms, weights, in_both)
        usable = [scoring for scoring in of_folds if scoring is not None]
        if len(usable) < N_FOLDS:
            usable = []
        return GramScorings(whole, tuple(usable))

    def _solved(
        self, terms: Terms, weights: Sequence[int], is_known: Mask
    ) -> list[GramScoring | None]:
        """Scorings of the whole and of the folds, of the classes that are known."""
        folds = [self._fold(fold, weights, is_known) for fold in range(N_FOLDS)]
        # With several threads the solution would depend on the number of cores.
        with threadpool_limits(1, "blas"):
            solutions = _discriminants(folds)
        if solutions is None:
            return [None]
        return [_rounded(terms, *own, is_known) for own in solutions]

    def _fold(self, fold: int, weights: Sequence[int], is_filled: Mask) -> _Sums:
        factors = np.array(weights, np.float64)[is_filled]
        n_rows = self.sums.shape[2]
        square = np.empty((n_rows, n_rows))
        for row, at in _upper(n_rows):
            products = self.products[fold, at]
            square[row, row:] = products
            square[row:, row] = products
        sums = self.sums[fold, is_filled]
        sizes = self.n_per_class[fold, is_filled]
        return _Sums(square, sums * factors[:, None], sizes * factors)


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
    """Weighted sums of samples: products, (m, m), terms by class, (L, m), and sizes of
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
    terms: Terms, directions: Scores, intercepts: Scores, is_filled: Mask
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


@dataclass(frozen=True, eq=False)
class GramScorings:
    """The part of a model from a Gram matrix, and that for the samples of each fold.

    The regression of the latter is that of the other fold, and its means and covariance
    are of samples of the other fold. These few numbers, as the ridge strength, still know
    a little of the fold: they are of scores by the fold's own regression, so that a
    difference that is chance in both looks real. It is () where these cannot be solved.
    """

    whole: GramScoring
    folds: tuple[GramScoring, ...]


def by_fold(
    folds: Sequence[GramScoring], X: Matrix
) -> Iterator[tuple[Mask, GramScoring]]:
    """Training samples, (n,) bool, and the scoring for them, fold by fold."""
    own_folds = folds_of(X)
    for fold, scoring in enumerate(folds):
        yield own_folds == fold, scoring


NO_SAMPLES = hashlib.sha256(b"flynn gram of no samples").hexdigest()
"""Digest of the sums of a party that sends none."""


@dataclass(frozen=True)
class LearnedGram(Additive):
    """Sums of a Gram matrix with its terms and the weights of the classes.

    They add, and scores follow from them.
    """

    terms: Terms
    weights: tuple[int, ...]
    sums: GramMatrix

    @classmethod
    def of(
        cls,
        terms: Terms,
        X: Matrix,
        y: Integers,
        n_classes: int,
        n_jobs: int | None = None,
    ) -> LearnedGram:
        """Learn from samples in one place, (n, d), with class indices, (n,): equal to
        what parties with these learn.
        """
        weights = (1,) * n_classes
        if isinstance(terms, Responses):
            weights = class_weights(np.bincount(y, minlength=n_classes))
        return cls(terms, weights, GramMatrix.from_data(terms, weights, X, y, n_jobs))

    @classmethod
    def zeros(cls, basis: Basis, n_classes: int) -> LearnedGram:
        """Sums of no samples, for a linear part."""
        return cls(basis, (1,) * n_classes, GramMatrix.zeros(basis.n_terms, n_classes))

    @cached_property
    def scorings(self) -> GramScorings | None:
        """The scores that follow from the sums; None where none do."""
        return self.sums.scorings(self.terms, self.weights)

    @property
    def scoring(self) -> GramScoring | None:
        """The scores of the whole, if there are some."""
        if self.scorings is None:
            return None
        return self.scorings.whole

    @property
    def folds(self) -> tuple[GramScoring, ...]:
        """The scores for the samples of each fold, or ()."""
        if self.scorings is None:
            return ()
        return self.scorings.folds

    @property
    def n_examples(self) -> int:
        """Number of samples."""
        return sum(self.sums.n_per_class.ravel().tolist())

    def sha256(self) -> str:
        """SHA-256 of the sums, the same for equal ones everywhere."""
        if not self.n_examples:
            return NO_SAMPLES
        sha256 = hashlib.sha256(b"flynn gram 4 ")
        for table in self.sums.tables:
            sha256.update(f"{table.shape} ".encode())
            sha256.update(np.ascontiguousarray(table, "<i8").data)
        return sha256.hexdigest()

    def _combined(self, other: LearnedGram, sign: int) -> LearnedGram:
        if (self.terms, self.weights) != (other.terms, other.weights):
            raise CountsError("gram", "equal terms and weights", "others")
        combine = operator.add
        if sign < 0:
            combine = operator.sub
        return replace(self, sums=combine(self.sums, other.sums))


def _upper(n_rows: int) -> Iterator[tuple[int, slice]]:
    """Rows of a square matrix, each with its place in the upper triangle that is
    written row by row.
    """
    first = 0
    for row in range(n_rows):
        end = first + n_rows - row
        yield row, slice(first, end)
        first = end


def memory_of_gram(n_rows: int, n_classes: int) -> int:
    """Estimate the memory of a Gram matrix and what becomes of it, in bytes, samples
    not included.
    """
    return 48 * n_rows**2 + n_rows * (8 * BATCH + 128 * n_classes)
