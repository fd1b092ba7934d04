"""Exact leave-one-out: the scores of n models, each trained without the sample that it scores, from the counts alone.

Taking a sample out of class y changes C[y] at its active bits, n_y, and through n_mean the exponents of all classes
alike. The tables for that are the same for all samples of classes that keep a sample. A sample that is alone in its
class empties it, which changes n_mean differently, and so gets tables of its own. Every sum is that of the retrained
model, in the same order: predictions are equal, given the hash. (Its centre and scale were learned from all samples.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import FlyHash, class_indices
from flwr_flynn.model.counts import ClassCounts, active_bits
from flwr_flynn.model.portable import exp, log
from flwr_flynn.model.scoring import Active, Scores, ScoreTable, ScoringRule, blocks, log_odds, mean_size

Table = npt.NDArray[np.int64]

TEMPERATURES = tuple(math.sqrt(2.0**k) for k in range(16, -17, -1))  # candidates, T = 33; roots are exact everywhere
MAX_LOSS = 64.0  # upper bound of the log-loss of one sample
LOSS_UNIT = 2.0**-20  # of log-losses in tables: integers, so that sums over parties are exact
HELD = 2**22  # active bits hashed at a time


class LeaveOneOutTables(NamedTuple):
    """Leave-one-out results of K candidates on some samples. Tables of disjoint samples add.

    `correct`, (K, L) int64: samples of each class that are classified correctly. `log_losses`, (K, T) int64: summed
    log-loss at each of `TEMPERATURES` in units of `LOSS_UNIT`; all 0 where they were not asked for.
    """

    correct: Table
    log_losses: Table


def leave_one_out_tables(
    counts: ClassCounts,
    batches: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
    candidates: Sequence[ScoringRule],
    with_losses: bool = True,
) -> LeaveOneOutTables:
    """Tables of one party for its batches of active bits, (n, rho), and class indices, (n,).

    The counts contain these samples, and those of other parties perhaps; a `DataError` if they cannot, a `CountsError`
    for noisy counts. Without losses it is much faster.
    """
    correct = np.zeros((len(candidates), counts.n_classes), np.int64)
    log_losses = np.zeros((len(candidates), len(TEMPERATURES)), np.int64)
    for active, y in batches:
        for k, true, scores in left_out_scores(counts, active, y, candidates):
            correct[k] += np.bincount(true[scores.argmax(axis=1) == true], minlength=counts.n_classes)
            if with_losses:
                log_losses[k] += _log_losses(log_odds(scores, counts.hash_nnz), true)
    return LeaveOneOutTables(correct, log_losses)


def hashed_batches(
    hasher: FlyHash,
    X: Any,
    y: npt.NDArray[np.int64],
    n_jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[tuple[Active, npt.NDArray[np.int64]]]:
    """Batches of active bits and class indices; `progress` is called with the size of each after its use."""
    for rows in batches(len(y), max(1, HELD // hasher.hash_nnz)):
        yield hasher.active(X[rows], n_jobs=n_jobs), y[rows]
        if progress is not None:
            progress(len(y[rows]))


def left_out_scores(
    counts: ClassCounts, active: npt.ArrayLike, y: npt.ArrayLike, candidates: Sequence[ScoringRule]
) -> Iterator[tuple[int, Table, Scores]]:
    """Leave-one-out scores by blocks: candidate index, class indices, (b,) int64, scores, (b, L) float64.

    Scores are -inf for a class without samples, and equal where the left-out sample is the only one of all. The order
    of the samples is not that of `y`.
    """
    bits, labels = _counted_samples(counts, active, y)
    array, sizes = counts.array, counts.n_per_class
    alone = sizes[labels] == 1
    empty = sizes == 0
    for empties in (False, True):
        samples = np.flatnonzero(alone == empties)
        if len(samples) == 0:
            continue
        if empties and (~empty).sum() == 1:  # nothing is left; the first class wins by the rule on ties
            for k in range(len(candidates)):
                yield k, labels[samples], np.zeros((len(samples), counts.n_classes))
            continue
        mean = mean_size(sizes, taken=1, empties=int(empties))
        for k, candidate in enumerate(candidates):
            table = ScoreTable(array, sizes, mean, candidate, with_own=True)
            for part in blocks(len(samples), counts.n_classes):
                true = labels[samples[part]]
                scores = table.scores(bits[samples[part]], true)
                scores[:, empty] = -np.inf
                if empties:
                    scores[np.arange(len(true)), true] = -np.inf
                yield k, true, scores


def _log_losses(odds: Scores, true: Table) -> Table:
    """Sum the log-losses of samples at each of `TEMPERATURES`, (T,) int64, in units of `LOSS_UNIT`.

    Each is cut off at `MAX_LOSS` and rounded first: sums over parties equal the pooled ones.
    """
    sums = np.zeros(len(TEMPERATURES), np.int64)
    _add_losses(odds, true, np.array(TEMPERATURES), sums)
    return sums


@njit(nogil=True, cache=True)
def _add_losses(odds, true, temperatures, sums):  # type: ignore[no-untyped-def]
    """Add the log-loss of each sample to the sum of each temperature."""
    for p in range(odds.shape[0]):
        row = odds[p]
        highest = row.max()
        for t in range(len(temperatures)):
            total = 0.0
            for label in range(len(row)):
                total += exp((row[label] - highest) / temperatures[t])
            loss = log(total) - (row[true[p]] - highest) / temperatures[t]
            sums[t] += np.int64(np.rint(min(loss, MAX_LOSS) / LOSS_UNIT))


def _counted_samples(counts: ClassCounts, active: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Active, Table]:
    """Check that samples can be in the counts; return their active bits and class indices."""
    if counts.noise:
        raise CountsError("leave_one_out", "counts without noise", f"{len(counts.noise)} releases in them")
    bits = active_bits(active, counts.hash_dim, counts.hash_nnz)
    labels = class_indices(y, len(bits), counts.n_classes)
    for label in range(counts.n_classes):
        own = bits[labels == label]
        if len(own) > counts.n_per_class[label]:
            raise DataError("active, y", "samples that are in the counts", f"too many of class {label}")
        if (counts.array[label, own] == 0).any():
            raise DataError("active, y", "samples that are in the counts", f"bits without a count in class {label}")
    return bits, labels
