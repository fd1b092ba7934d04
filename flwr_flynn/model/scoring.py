"""Read-outs: what class counts say about a hash.

Notation: C[l, i] is how many of the n_l training points of class l have bit i, h the rho active bits of a new point,
gamma the decay, 0 <= gamma < 1, with 0 ** 0 = 1. A read-out gives every class a score; the highest wins, the first
class of those that tie.

=============  ====================================================================================================
rule           score of class l
=============  ====================================================================================================
``novelty``    -log f_l, f_l = sum over i in h of gamma ** C[l, i]  (Ram & Sinha 2022, Algorithm 1)
``balanced``   the same with C[l, i] * n_mean / n_l for C[l, i]; n_mean is the mean n_l of the classes that have points
``bayes``      sum over i in h of log((C[l, i] + a) / (n_l + a m / rho)), a = 0.1: but for a constant, what naive Bayes
               gives as the logarithm of the odds of l if all classes are equally frequent and each starts with `a`
               of a point at every bit
=============  ====================================================================================================

A class without points never wins against one that has some: its score is one less than the lowest of those. With
gamma = 0, f_l is a whole number, and -log(max(f_l, 1/2)) keeps f_l = 0 apart from f_l = 1.

How it is computed
------------------
f_l is a sum of table entries gamma ** count, made once per class and distinct count. Where it comes out below 1e-280,
so that its terms may have underflowed, log f_l is computed again relative to its largest term: no count is too large.

Terms are added in the order of the active bits, one point at a time: a score depends on nothing but counts and point.
Last, scores are rounded to multiples of 2 ** -36, so that classes which the formula ranks alike do tie; without that,
errors of the last place in sums of different order (or in another machine's `pow`) would choose between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn.errors import DataError

Counts = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Active = npt.NDArray[np.int32]

RULES = ("balanced", "novelty", "bayes")

_SMALL = 1e-280  # sums below this may miss terms that underflowed
_GRAIN = 2.0**36  # scores are multiples of its inverse
_BLOCK = 2**20  # scores computed at a time
_SMOOTHING = 0.1  # the `a` of rule "bayes": the best of .001 to 1 on 36 data sets, by leave-one-out


def class_scores(counts: Counts, n_per_class: Counts, active: Active, decay: float, rule: str) -> Scores:
    """Scores of points that are not in the counts.

    Parameters
    ----------
    counts : (L, m) int64 array
    n_per_class : (L,) int64 array
    active : (n, rho) int32 array
        Active bits, each row ascending, 0 <= bit < m.
    decay : float
        0 <= decay < 1. Rule "bayes" does not use it.
    rule : {"balanced", "novelty", "bayes"}

    Returns
    -------
    (n, L) float64 array
        Finite; higher is better.
    """
    few, small = _restrict(counts, active)
    table = _Table(few, n_per_class, counts.shape[1] / active.shape[1], _mean(n_per_class, 0), decay, rule)
    scores = np.empty((len(active), len(counts)))
    nobody = np.full(len(active), -1, np.int64)
    for part in _blocks(len(active), len(counts)):
        scores[part] = table.scores(small[part], nobody[part])
    empty = n_per_class == 0
    if empty.any() and not empty.all():
        scores[:, empty] = scores[:, ~empty].min(axis=1, keepdims=True) - 1
    return scores


def class_novelty(counts: Counts, active: Active, decay: float) -> Scores:
    """f_l(x) / rho of Algorithm 1: 1 where a class saw none of the active bits, near 0 where it saw all of them often.

    Parameters
    ----------
    counts, active, decay
        As for `class_scores`.

    Returns
    -------
    (n, L) float64 array
    """
    few, small = _restrict(counts, active)
    weights = _powers(few, 0, np.ones(len(counts)), float(decay))
    sums = np.empty((len(active), len(counts)))
    nobody = np.full(len(active), -1, np.int64)
    _add_weights(small, nobody, weights, weights, sums)
    sums /= active.shape[1]
    return sums


def leave_one_out(
    counts: Counts,
    n_per_class: Counts,
    active: Active,
    y: Counts,
    decays: Sequence[float],
    rule: str,
) -> Counts:
    """What n models would predict for the training points, each trained without the point it is asked about.

    Taking a point out of class y changes C[y] at its active bits, n_y, and through n_mean the exponents of all
    classes alike. The tables for that are the same for all points of classes that keep a point; points that are alone
    in their class empty it, which changes n_mean differently, and so get tables of their own. Every entry and every
    sum is what the retrained model would compute, in the same order: predictions are equal, not just close.

    Parameters
    ----------
    counts, n_per_class, active, rule
        As for `class_scores`; all points are in the counts.
    y : (n,) int64 array
        Classes of the points.
    decays : sequence of D floats

    Returns
    -------
    (D, L, L) int64 array
        Confusion matrices, entry [true, predicted].
    """
    n_classes = len(counts)
    result = np.zeros((len(decays), n_classes, n_classes), np.int64)
    for d, true, scores in _left_out(counts, n_per_class, active, y, decays, rule):
        result[d] += np.bincount(true * n_classes + scores.argmax(axis=1), minlength=n_classes**2).reshape(
            n_classes, -1
        )
    return result


def leave_one_out_hits(
    counts: Counts, n_per_class: Counts, active: Active, y: Counts, decays: Sequence[float], rule: str
) -> Counts:
    """The diagonals of the matrices of `leave_one_out`, without the matrices: (D, L) int64."""
    result = np.zeros((len(decays), len(counts)), np.int64)
    for d, true, scores in _left_out(counts, n_per_class, active, y, decays, rule):
        result[d] += np.bincount(true[scores.argmax(axis=1) == true], minlength=len(counts))
    return result


def leave_one_out_losses(
    counts: Counts,
    n_per_class: Counts,
    active: Active,
    y: Counts,
    decay: float,
    rule: str,
    temperatures: Sequence[float],
) -> Counts:
    """Log-loss of `log_odds` / temperature, by the n models of `leave_one_out`.

    Parameters
    ----------
    counts, n_per_class, active, y, rule
        As for `leave_one_out`.
    decay : float
    temperatures : sequence of T floats

    Returns
    -------
    (T,) int64 array
        Sums over the points of -log p, cut off at 64 and rounded to a multiple of 2 ** -20, in that unit: whole
        numbers, so that sums over parties are the pooled ones, but for logarithms that another machine rounds
        otherwise.
    """
    result = np.zeros(len(temperatures), np.int64)
    for _, true, scores in _left_out(counts, n_per_class, active, y, [decay], rule):
        odds = log_odds(scores, active.shape[1], rule)
        above = odds - odds.max(axis=1, keepdims=True)
        own = above[np.arange(len(true)), true]
        for t, temperature in enumerate(temperatures):
            losses = np.log(np.exp(above / temperature).sum(axis=1)) - own / temperature
            result[t] += np.rint(np.minimum(losses, 64.0) * 2.0**20).astype(np.int64).sum()
    return result


def log_odds(scores: Scores, hash_nnz: int, rule: str) -> Scores:
    """Scores on a scale on which differences are about proportional to logarithms of odds.

    -log(f_l / rho + 0.1) - log(f_l) / 4096, or under rule "bayes" the scores themselves. Without the 0.1, classes that
    know a point very well would be very much more probable than classes that know it well: where f_l is small,
    differences of its logarithm are large, and mean little. The second term is there to keep the order of all scores.

    Parameters
    ----------
    scores : (n, L) float64 array
        Of `class_scores`; -inf for classes that are out of the question.
    hash_nnz : int
        rho.
    rule : str
    """
    if rule == "bayes":
        return scores
    with np.errstate(over="ignore"):
        odds: Scores = scores / 4096 - np.log(np.exp(-scores) / hash_nnz + 0.1)
    return odds


def _left_out(
    counts: Counts, n_per_class: Counts, active: Active, y: Counts, decays: Sequence[float], rule: str
) -> Iterator[tuple[int, Counts, Scores]]:
    """Place of the decay, classes and scores of points, a block at a time; classes left without points have -inf.

    Where no class is left with any, all have the same score.
    """
    alone = n_per_class[y] == 1
    empty = n_per_class == 0
    for leaves_empty in (False, True):
        points = np.flatnonzero(alone == leaves_empty)
        if len(points) == 0:
            continue
        if leaves_empty and (~empty).sum() == 1:  # nothing is left; the first class wins by the rule on ties
            for d in range(len(decays)):
                yield d, y[points], np.zeros((len(points), len(counts)))
            continue
        mean = _mean(n_per_class, 1, leaves_empty)
        for d, decay in enumerate(decays):
            table = _Table(counts, n_per_class, counts.shape[1] / active.shape[1], mean, decay, rule, with_own=True)
            for part in _blocks(len(points), len(counts)):
                true = y[points[part]]
                scores = table.scores(active[points[part]], true)
                scores[:, empty] = -np.inf
                if leaves_empty:
                    scores[np.arange(len(true)), true] = -np.inf
                yield d, true, scores


def typical_counts(counts: Counts, n_per_class: Counts, rule: str) -> tuple[float, float]:
    """What a training point finds at its active bits in its own class, and what it would find if labels meant nothing.

    Both are size-biased means of the counts, scaled by class as `rule` does: sum q ** 2 / sum q. Points whose labels
    were dealt out at random would make counts around the mean of all classes, with the variance of a Poisson
    variable.

    Returns
    -------
    typical, by_chance : float
        0.0 if there are no points.
    """
    filled = np.flatnonzero(n_per_class > 0)
    factors = _factors(n_per_class, 0, _mean(n_per_class, 0), rule)
    total = squares = poisson = 0.0
    pooled = np.zeros(counts.shape[1])
    for label in filled:
        scaled = counts[label] * factors[label]
        total += float(scaled.sum())
        squares += float((scaled**2).sum())
        poisson += float(factors[label] * scaled.sum())
        pooled += scaled
    if not total:
        return 0.0, 0.0
    return squares / total, (float((pooled**2).sum()) / len(filled) + poisson) / total


class _Table:
    """The term that each bit adds to each class's sum, for given counts, rule and decay.

    With `with_own` also the terms that a training point adds to its own class's sum once it is taken out of the counts.
    """

    def __init__(
        self,
        counts: Counts,
        n_per_class: Counts,
        spread: float,
        mean: float,
        decay: float,
        rule: str,
        with_own: bool = False,
    ) -> None:
        self.counts, self.rule, self.decay = counts, rule, float(decay)
        if rule == "bayes":
            self.weights = _log_rates(counts, 0, n_per_class, spread, _SMOOTHING)
            self.own = _log_rates(counts, 1, n_per_class, spread, _SMOOTHING) if with_own else self.weights
            return
        self.factors = _factors(n_per_class, 0, mean, rule)
        self.own_factors = _factors(n_per_class, 1, mean, rule)
        self.weights = _powers(counts, 0, self.factors, self.decay)
        self.own = _powers(counts, 1, self.own_factors, self.decay) if with_own else self.weights

    def scores(self, active: Active, own_class: Counts) -> Scores:
        """(n, L) scores; `own_class` is the class each point is taken out of, -1 for none."""
        sums = np.empty((len(active), len(self.counts)))
        _add_weights(active, own_class, self.weights, self.own, sums)
        if self.rule != "bayes":
            _minus_logs(sums, active, own_class, self.counts, self.factors, self.own_factors, self.decay)
        np.rint(sums * _GRAIN, out=sums)
        sums /= _GRAIN
        return sums


def _mean(n_per_class: Counts, taken: int, leaves_empty: bool = False) -> float:
    """Mean size of the classes that have points, `taken` points being gone, with their class if it `leaves_empty`."""
    n_filled = int((n_per_class > 0).sum()) - leaves_empty
    return (sum(n_per_class.tolist()) - taken) / n_filled if n_filled else 1.0


def _factors(n_per_class: Counts, taken: int, mean: float, rule: str) -> Scores:
    """What each class's counts are multiplied by in the exponent; where no point is left it does not matter."""
    if rule == "novelty":
        return np.ones(len(n_per_class))
    return mean / np.maximum(n_per_class - taken, 1)


def _restrict(counts: Counts, active: Active) -> tuple[Counts, Active]:
    """Counts of the bits that occur and where those stand now, where that is less than all."""
    if active.size >= counts.shape[1]:
        return counts, active
    bits, places = np.unique(active, return_inverse=True)
    return np.ascontiguousarray(counts[:, bits]), places.reshape(active.shape).astype(np.int32)


def _blocks(n_points: int, n_classes: int) -> Iterator[slice]:
    step = max(1, _BLOCK // n_classes)
    return (slice(first, first + step) for first in range(0, n_points, step))


@njit(nogil=True, cache=True)
def _powers(counts, taken, factors, decay):  # type: ignore[no-untyped-def]
    """decay ** ((C[l, i] - taken) * factors[l]) as (m, L): the classes of one bit side by side."""
    n_classes, n_bits = counts.shape
    out = np.empty((n_bits, n_classes))
    table = np.empty(n_bits)
    for label in range(n_classes):
        top = 0
        for i in range(n_bits):
            top = max(top, counts[label, i])
        if top < n_bits:
            for count in range(top + 1):
                table[count] = decay ** (max(count - taken, 0) * factors[label])
            for i in range(n_bits):
                out[i, label] = table[counts[label, i]]
        else:
            for i in range(n_bits):
                out[i, label] = decay ** (max(counts[label, i] - taken, 0) * factors[label])
    return out


@njit(nogil=True, cache=True)
def _log_rates(counts, taken, n_per_class, spread, smoothing):  # type: ignore[no-untyped-def]
    """log((C[l, i] - taken + a) / (n_l - taken + a * spread)) as (m, L)."""
    n_classes, n_bits = counts.shape
    out = np.empty((n_bits, n_classes))
    for label in range(n_classes):
        size = max(n_per_class[label] - taken, 0) + smoothing * spread
        for i in range(n_bits):
            out[i, label] = math.log((max(counts[label, i] - taken, 0) + smoothing) / size)
    return out


@njit(nogil=True, cache=True)
def _add_weights(active, own_class, weights, own, sums):  # type: ignore[no-untyped-def]
    """sums[p, l] = sum over the active bits of weights[bit, l], or of own[bit, l] for the point's own class."""
    for p in range(active.shape[0]):
        row = sums[p]
        row[:] = 0.0
        for k in range(active.shape[1]):
            terms = weights[np.uint64(active[p, k])]
            for label in range(len(row)):
                row[label] += terms[label]
        label = own_class[p]
        if label >= 0:
            total = 0.0
            for k in range(active.shape[1]):
                total += own[np.uint64(active[p, k]), label]
            row[label] = total


@njit(nogil=True, cache=True)
def _minus_logs(sums, active, own_class, counts, factors, own_factors, decay):  # type: ignore[no-untyped-def]
    """Replace each sum f by -log f, computed afresh where f is too small to be trusted."""
    log_decay = math.log(decay) if decay > 0.0 else 0.0
    for p in range(sums.shape[0]):
        for label in range(sums.shape[1]):
            total = sums[p, label]
            if decay == 0.0:
                sums[p, label] = -math.log(max(total, 0.5))
            elif total >= _SMALL:
                sums[p, label] = -math.log(total)
            else:
                taken = 1 if own_class[p] == label else 0
                factor = own_factors[label] if taken else factors[label]
                lowest = np.inf
                for k in range(active.shape[1]):
                    lowest = min(lowest, (counts[label, np.uint64(active[p, k])] - taken) * factor)
                total = 0.0
                for k in range(active.shape[1]):
                    exponent = (counts[label, np.uint64(active[p, k])] - taken) * factor
                    total += math.exp(log_decay * (exponent - lowest))
                sums[p, label] = -log_decay * lowest - math.log(total)


def checked_active(active: Any, hash_dim: int, hash_nnz: int) -> Active:
    """`active` as a C-contiguous int32 array. The compiled loops trust its bits to be in range."""
    array = np.asarray(active)
    if array.ndim != 2 or array.shape[1] != hash_nnz or array.dtype.kind not in "iu":
        raise DataError(f"active: expected (n, {hash_nnz}) integers, got {array.dtype} of shape {array.shape}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < hash_dim:
        raise DataError(f"active: expected bits 0 to {hash_dim - 1}")
    return np.ascontiguousarray(array, np.int32)
