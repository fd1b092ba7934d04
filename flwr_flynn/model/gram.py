"""Gram matrix of graded responses: second-order statistics that add, and the classifier
that follows from them.

Counts look at one bit at a time. A Gram matrix has the sums, over samples, of the
products of the graded responses of every two rows (`hashing.graded`), with the sums of
the responses by class: integers that add exactly, so they are those of the pooled
samples however these are split. Of neural features this is known as analytic federated
learning (He et al. 2025).

The rows are those of up to five candidates side by side, in equal parts. The products
of a sample are multiplied by the weight of its class, see `class_weights`: else a rare
class would have no say.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from threadpoolctl import threadpool_limits

from flwr_flynn._types import Integers, Mask, Matrix
from flwr_flynn.errors import DataError
from flwr_flynn.hashing import graded
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.portable import content_shares
from flwr_flynn.model.scoring import Scores, bounded

LEAST_ROWS = 16
MOST_ROWS = 4096  # rows of the hashes of a Gram matrix together: bounds
UNIT = 2.0**-18  # weight of the integer 1
# Largest magnitude of a weight. Sums of such weights times responses are exact in
# float64.
LARGEST_WEIGHT = 2**24
LARGEST_BIAS = 2**44  # largest magnitude of a bias
MOST_SPECS = 5  # hashes of a Gram matrix, at most
LEVELS = graded.LEVELS // 2  # largest response: half of the grade, for fewer bytes
BATCH = 2**12  # samples whose responses are held at a time, at most
N_FOLDS = 2
LARGEST_CLASS_WEIGHT = 64  # largest weight of a sample of a class
# Largest product of two responses of a sample, times its weight.
LARGEST_PRODUCT = LEVELS**2 * LARGEST_CLASS_WEIGHT
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


@dataclass(frozen=True, eq=False)
class GramScoring:
    """Scores of a model from a Gram matrix, with all classes taken for equally
    frequent.

    Parameters
    ----------
    specs : sequence of HashSpec
        One to five, of the same number of features.
    weights : (m, L) int32 array
        Of the rows of all hashes, in units of `UNIT`. Kept read-only.
    bias : (L,) int64 array
        Likewise.

    Raises
    ------
    DataError
        A field is not as described.
    """

    specs: Sequence[HashSpec]
    weights: npt.NDArray[np.int32]
    bias: Integers

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", checked_gram_specs(self.specs))
        shape = sum(spec.hash_dim for spec in self.specs), len(self.bias)
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
            z = responses(self.specs, X[rows], n_jobs).astype(np.float64)
            out[rows] = (z @ self.weights + self.bias) * UNIT
        return out

    def sha256(self) -> str:
        """SHA-256 over all of it; the same for equal ones everywhere."""
        facts = [[spec.to_dict() for spec in self.specs], self.bias.tolist()]
        sha256 = hashlib.sha256(b"flynn gram 3 " + json.dumps(facts).encode())
        sha256.update(np.ascontiguousarray(self.weights, "<i4").data)
        return sha256.hexdigest()


def checked_gram_specs(specs: Iterable[object]) -> tuple[HashSpec, ...]:
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


def responses(
    specs: Sequence[HashSpec], X: Matrix, n_jobs: int | None = None
) -> npt.NDArray[np.uint8]:
    """Halves of the grades of samples by all the hashes, (n, m) uint8, rounded down,
    side by side.
    """
    grades = np.concatenate(
        [flynn_hash(spec).graded(X, n_jobs) for spec in specs], axis=1
    )
    grades >>= 1
    return grades


def gram_specs(specs: Sequence[HashSpec], n_rows: int) -> tuple[HashSpec, ...]:
    """The hashes of a Gram matrix of so many rows, one to five, from the candidates of
    a model.

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
    return tuple(
        replace(base, hash_dim=size, hash_nnz=max(size * eighths // 8, 1))
        for base, size in zip(bases, sizes, strict=True)
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
    """Sums of two folds of samples: weighted products of every two responses, responses
    by class, and samples.

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
        specs: Sequence[HashSpec],
        weights: Sequence[int],
        X: Matrix,
        y: Integers,
        n_jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> GramMatrix:
        """Sums of samples, (n, d), with class indices, (n,), and the weights of the
        classes, (L,).
        """
        n_rows = sum(spec.hash_dim for spec in specs)
        n_classes = len(weights)
        total = cls.zeros(n_rows, n_classes)
        factors = np.array(weights, np.float32)
        # Integers below 2**24, whatever the order in which BLAS adds them: float32
        # holds each exactly.
        for rows in batches(len(y), BATCH):
            every = responses(specs, X[rows], n_jobs)
            folds = _folds(X[rows])
            for fold in range(N_FOLDS):
                z = every[folds == fold].astype(np.float32)
                labels = y[rows][folds == fold]
                products = z.T @ (z * factors[labels, None])
                for row, at in _upper(n_rows):
                    np.add(
                        total.products[fold, at],
                        products[row, row:],
                        total.products[fold, at],
                        casting="unsafe",
                    )
                is_of_class = (labels == np.arange(n_classes)[:, None]).astype(
                    np.float32
                )
                total.sums[fold] += (is_of_class @ z).astype(np.int64)
                total.n_per_class[fold] += np.bincount(labels, minlength=n_classes)
            if progress is not None:
                progress(len(every))
        return total

    @property
    def products(self) -> Integers:
        """Upper triangles of the weighted products, (2, m (m + 1) / 2)."""
        return self.tables[0]

    @property
    def sums(self) -> Integers:
        """Sums of the responses by class, (2, L, m)."""
        return self.tables[1]

    @property
    def n_per_class(self) -> Integers:
        """Samples of each class, (2, L)."""
        return self.tables[2]

    def scorings(
        self, specs: Sequence[HashSpec], weights: Sequence[int]
    ) -> GramScorings | None:
        """The part of a model that follows from the sums, and those of the folds.

        It is None unless two classes have samples that differ.
        """
        is_filled = self.n_per_class.sum(axis=0) > 0
        folds = [self._fold(fold, weights, is_filled) for fold in range(N_FOLDS)]
        # With several threads the solution would depend on the number of cores.
        with threadpool_limits(1, "blas"):
            solutions = _discriminants(folds)
        if solutions is None:
            return None
        whole, *of_folds = (_rounded(specs, *own, is_filled) for own in solutions)
        if whole is None:
            return None
        usable = [scoring for scoring in of_folds if scoring is not None]
        if len(usable) < N_FOLDS:
            usable = []
        return GramScorings(whole, tuple(usable))

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
        np.add.at(sizes, (_folds(X[rows]), y[rows]), 1)
    return sizes


def _folds(X: Matrix) -> Integers:
    """Fold of each sample, (n,), by its content."""
    return (content_shares(X) < 0.5).astype(np.int64)


class _Sums(NamedTuple):
    """Weighted sums of samples: products, (m, m), responses by class, (L, m), and sizes
    of the classes, (L,).
    """

    products: Scores
    responses: Scores
    sizes: Scores

    def plus(self, other: _Sums) -> _Sums:
        """The sums of the samples of both."""
        return _Sums(*map(np.add, self, other))

    def regression(self, share: float) -> tuple[Scores, Scores]:
        """Weights, (m, L), and intercepts, (L,), of ridge regression of the classes at
        a share of the trace.
        """
        total = self.sizes.sum()
        mean = self.responses.sum(axis=0) / total
        moments = (self.responses - self.sizes[:, None] * mean).T
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
        sums = self.responses @ weights + self.sizes[:, None] * intercepts
        total = (self.responses.sum(axis=0) @ weights)[:, None] * intercepts
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
        means = self.responses / self.sizes[:, None]
        within = (self.products - self.responses.T @ means) / self.sizes.sum()
        between: Scores = np.cov(means.T, bias=True)
        within.flat[:: len(within) + 1] += _ROUNDING * (
            within.trace() + between.trace()
        )
        return means, within, between


Solution = tuple[Scores, Scores]
"""Weights, (m, L), and biases, (L,), of log probabilities, up to a constant of a
sample."""


def _discriminants(folds: Sequence[_Sums]) -> list[Solution] | None:
    """Solution for new samples, and one for the samples of each fold, which follows
    from the other one alone.

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
        # Of a fold both the regression and what is known of its held-out scores are of
        # the other fold.
        with suppress(LinAlgError):
            solutions += [
                held_out[1].discriminant(*regressions[1]),
                held_out[0].discriminant(*regressions[0]),
            ]
    return solutions


def _rounded(
    specs: Sequence[HashSpec], directions: Scores, intercepts: Scores, is_filled: Mask
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
    return GramScoring(tuple(specs), rounded, np.clip(bias, _NEVER, -_NEVER))


@dataclass(frozen=True, eq=False)
class GramScorings:
    """The part of a model from a Gram matrix, and that for the samples of each fold.

    The latter follows from the other fold alone: its scores are of samples that it has
    not seen. It is () where these cannot be solved.
    """

    whole: GramScoring
    folds: tuple[GramScoring, ...]


def fold_scores(
    folds: Sequence[GramScoring], X: Matrix, n_jobs: int | None = None
) -> Scores:
    """Scores of training samples, (n, L), by the scoring for the fold of each."""
    scores = np.empty((X.shape[0], len(folds[0].bias)))
    own_folds = _folds(X)
    for fold, scoring in enumerate(folds):
        rows = own_folds == fold
        scores[rows] = scoring.log_odds(X[rows], n_jobs)
    return scores


@dataclass(frozen=True, eq=False)
class LearnedGram:
    """Sums of a Gram matrix with the weights of the classes, and the scores that follow
    from them.
    """

    sums: GramMatrix
    weights: tuple[int, ...]
    scorings: GramScorings

    @classmethod
    def of(
        cls,
        specs: Sequence[HashSpec],
        X: Matrix,
        y: Integers,
        n_classes: int,
        n_jobs: int | None = None,
    ) -> LearnedGram | None:
        """Learn from samples in one place, (n, d), with class indices, (n,): equal to
        what parties with these learn.

        None where no scores follow.
        """
        weights = class_weights(np.bincount(y, minlength=n_classes))
        return cls._of_sums(
            specs, weights, GramMatrix.from_data(specs, weights, X, y, n_jobs)
        )

    @classmethod
    def _of_sums(
        cls, specs: Sequence[HashSpec], weights: tuple[int, ...], sums: GramMatrix
    ) -> LearnedGram | None:
        scorings = sums.scorings(specs, weights)
        if scorings is None:
            return None
        return cls(sums, weights, scorings)

    @property
    def scoring(self) -> GramScoring:
        """The scores that follow from the sums."""
        return self.scorings.whole

    def changed(self, sums: GramMatrix) -> LearnedGram | None:
        """The scores that follow from other sums; None where none do."""
        return self._of_sums(self.scoring.specs, self.weights, sums)


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
