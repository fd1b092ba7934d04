"""Rule "balanced" for noisy counts of few rows: scores from class means of known noise.

A class mean is the mean hash of its samples, as a vector of length 1 at most. With
noise it is the true one plus noise of a known variance; the true ones differ along the
rows of the lifting matrix more than across. So the differences of the means are shrunk
by their noise beside their spread, direction by direction, where both follow from S =
R R', R the rows (a Wiener filter), and discriminant analysis takes the shrunk means for
the true ones. Half of the covariance within the classes is in proportion to S, the
other half the same in all directions.

Mirrored counts are those of samples less those of their mirror images about the centre
of the hash: the part of a hash that does not change its sign, which tells classes apart
least, cancels, and twice as many entries tell of a sample. A norm of rho for a release
becomes one of 2 rho.

All is computed in a fixed order: scores are the same on every machine.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from flwr_flynn._types import Array, Floats, Integers, Matrix
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.flyhash import FlyHash, add_counts
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import SIZE_ENTRIES, ClassCounts
from flwr_flynn.model.scoring import SUGGESTED_TEMPERATURE, Scores, weight_sums

MOST_ROWS = 2**11
"""Rows up to which noisy counts are read by this rule: beyond, they tell more than the
means do."""

# Spread of the sizes of classes, as a share of their mean, beside which their noise is
# judged; and the least size of a class.
_SPREAD_OF_SIZES = 0.5
_LEAST_SIZE = 0.05
_LEAST_SAMPLES = 2  # of all classes, in standard deviations of their noise
_LEAST_SPREAD = 0.01  # of the means, as a share of their noise
# Samples are less different from a class mean than a normal distribution has it.
_CONFIDENCE = 0.2 * SUGGESTED_TEMPERATURE


def reads_means(spec: HashSpec, counts: ClassCounts) -> bool:
    """True if noisy counts are read by this rule: those of several classes and of few
    rows over columns with a centre, all of which were released.
    """
    all_released = counts.noise != () and counts.n_per_class is not None
    return has_mirror(spec) and all_released and counts.n_classes > 1


def has_mirror(spec: HashSpec) -> bool:
    """True if a hash has few signed rows over columns about a centre, so that samples
    have mirror images, with room for the sizes of classes.
    """
    is_of_columns = spec.center is not None and not spec.n_waves and not spec.coding
    is_small = SIZE_ENTRIES < spec.hash_dim <= MOST_ROWS
    return is_of_columns and is_small and spec.signed


# -------- mirrored counts


def both_bits(
    hasher: FlyHash, X: Matrix, n_jobs: int | None = None
) -> npt.NDArray[np.int32]:
    """Active bits of samples and, behind them, of their mirror images, (n, 2 rho)."""
    spec = hasher.spec
    if spec is None or spec.center is None:
        raise DataError("spec", "a hash with a centre, for mirror images", spec)
    values: Any = X
    if sp.issparse(values):
        values = values.toarray()
    mirrored = 2 * np.array(spec.center) - np.asarray(values, np.float64)
    return np.hstack([hasher.active(X, n_jobs), hasher.active(mirrored, n_jobs)])


def add_mirrored(array: Integers, labels: Integers, both: Array) -> None:
    """Add samples with class indices, (n,), and bits, as of `both_bits`, to mirrored
    counts, (L, m).
    """
    rho = both.shape[1] // 2
    counts = np.zeros_like(array)
    of_images = np.zeros_like(array)
    add_counts(counts, labels, np.ascontiguousarray(both[:, :rho]))
    add_counts(of_images, labels, np.ascontiguousarray(both[:, rho:]))
    counts -= of_images
    sizes = np.bincount(labels, minlength=len(array))
    counts[:, -SIZE_ENTRIES:] = sizes[:, None]
    array += counts


# -------- scores


def meaning_of(separation: float) -> str:
    """Share of worthless models of such a separation, in words, from
    docs/results/private.md.
    """
    if separation < 1:
        return "two of five such models have an AUROC below .6"
    if separation < 3:
        return "one of five such models has an AUROC below .6"
    return "one of thirty such models has an AUROC below .6"


class MeanScoring(NamedTuple):
    """Scores that are sums of weights of the active bits."""

    weights: Floats  # (m, L)
    bias: Floats  # (L,)
    separation: float
    """Distance of the class means beyond that of their noise alone, in standard
    deviations of the latter."""
    are_mirrored: bool

    def scores(self, hasher: FlyHash, X: Matrix, n_jobs: int | None = None) -> Scores:
        """Log odds of the classes, (n, L), times the suggested temperature."""
        if not self.are_mirrored:
            return weight_sums(hasher.active(X, n_jobs), self.weights) + self.bias
        halves = np.split(both_bits(hasher, X, n_jobs), 2, axis=1)
        own, of_images = (
            weight_sums(np.ascontiguousarray(half), self.weights) for half in halves
        )
        return own - of_images + self.bias


def mean_scoring(counts: ClassCounts, hasher: FlyHash) -> MeanScoring:
    """The scores of noisy counts by a hash."""
    n_classes, n_bits = counts.array.shape
    squares = _products_of_rows(hasher)
    array = counts.array.astype(np.float64)
    norm = float(counts.hash_nnz)
    if counts.are_mirrored:
        norm *= 2
        array[:, -SIZE_ENTRIES:] = 0.0
        squares[-SIZE_ENTRIES:] = 0.0
        squares[:, -SIZE_ENTRIES:] = 0.0
    sizes = _sizes(counts)
    means = array / (math.sqrt(norm) * sizes[:, None])
    noise = counts.noise_variance / (norm * sizes**2)
    # The mean of all, with the least noise.
    precision = math.fsum((1 / noise).tolist())
    shares = 1 / (noise * precision)
    centre = _product(shares[None], means)[0]
    apart = means - centre
    of_noise = noise - 1 / precision
    squared_shares = math.fsum((shares**2).tolist())
    of_spread = n_classes - 2 + n_classes * squared_shares
    trace = float(np.trace(squares))
    total = float((squares**2).sum())  # of integers, which are exact
    along = _product(apart, squares)
    whole_noise = math.fsum(of_noise.tolist()) * trace
    beyond = math.fsum((apart * along).ravel().tolist()) - whole_noise
    deviation = math.sqrt(2 * total * math.fsum((of_noise**2).tolist()))
    least = _LEAST_SPREAD * whole_noise
    spread = max(beyond, least) / (of_spread * total / trace)
    squares /= trace
    weights = np.empty((n_bits, n_classes))
    bias = np.empty(n_classes)
    within = _root(squares, 1 / n_bits)
    for label in range(n_classes):
        filtering = _root(squares, noise[label] / spread)
        shrunk = _product(_solved(filtering, apart[label])[None], squares)[0]
        own = 2 * _solved(within, shrunk)
        middle = centre + shrunk / 2
        bias[label] = -math.fsum((own * middle).tolist())
        weights[:, label] = own / math.sqrt(norm)
    weights *= _CONFIDENCE
    bias *= _CONFIDENCE
    return MeanScoring(weights, bias, beyond / deviation, counts.are_mirrored)


def _products_of_rows(hasher: FlyHash) -> Floats:
    """Products of every two rows of the lifting matrix, (m, m), of integers."""
    signs = hasher.signs
    if signs is None:
        signs = np.ones(hasher.rows.shape, np.int8)
    first = np.arange(hasher.hash_dim + 1) * hasher.row_nnz
    rows = sp.csr_array(
        (signs.ravel().astype(np.int64), hasher.rows.ravel(), first),
        (hasher.hash_dim, hasher.n_features),
    )
    products: Floats = (rows @ rows.T).toarray().astype(np.float64)
    return products


def _sizes(counts: ClassCounts) -> Floats:
    """Sizes of the classes, (L,), nearer to their mean, by their noise."""
    given = counts.n_per_class
    least = _LEAST_SAMPLES * math.sqrt(len(given) * counts.size_variance)
    mean = max(math.fsum(given.tolist()), least) / len(given)
    spread = (_SPREAD_OF_SIZES * mean) ** 2
    share = spread / (spread + counts.size_variance)
    sizes: Floats = np.maximum(mean + (given - mean) * share, _LEAST_SIZE * mean)
    return sizes


@njit(nogil=True, cache=True)
def _product(left, right):  # type: ignore[no-untyped-def]
    """Matrix product, (n, k) times (k, m), term after term."""
    out = np.zeros((left.shape[0], right.shape[1]))
    for i in range(left.shape[0]):
        for k in range(left.shape[1]):
            factor = left[i, k]
            for j in range(right.shape[1]):
                out[i, j] += factor * right[k, j]
    return out


@njit(nogil=True, cache=True)
def _root(matrix, shift):  # type: ignore[no-untyped-def]
    """Lower triangle of Cholesky's decomposition of matrix + shift I."""
    n = len(matrix)
    low = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            rest = matrix[i, j]
            if i == j:
                rest += shift
            for k in range(j):
                rest -= low[i, k] * low[j, k]
            if i == j:
                low[i, i] = math.sqrt(rest)
            else:
                low[i, j] = rest / low[j, j]
    return low


@njit(nogil=True, cache=True)
def _solved(low, right):  # type: ignore[no-untyped-def]
    """Solution x of low low' x = right."""
    n = len(low)
    x = right.copy()
    for i in range(n):
        for k in range(i):
            x[i] -= low[i, k] * x[k]
        x[i] /= low[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            x[i] -= low[k, i] * x[k]
        x[i] /= low[i, i]
    return x
