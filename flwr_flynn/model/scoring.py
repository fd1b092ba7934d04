"""Decision rules: scores of the classes for a hash, from class counts.

Notation: C[l, i] is the number of the n_l training samples of class l whose hash has
bit i active, h the rho active bits of a new sample, gamma the decay, 0 <= gamma < 1,
with 0 ** 0 = 1. A rule gives every class a score. The highest score wins, and the first
class among equal scores.

============  ========================================================================
rule          score of class l
============  ========================================================================
``novelty``   -log f_l, f_l = sum over i in h of gamma ** C[l, i]
              (Ram & Sinha 2022, Algorithm 1)
``balanced``  the same with C[l, i] * n_mean / n_l for C[l, i]; n_mean is the mean n_l
              of the classes with samples
============  ========================================================================

A class without samples never wins against a class with samples: its score is one less
than the lowest of theirs. With gamma = 0, f_l is an integer, and -log(max(f_l, 1/2))
keeps f_l = 0 apart from f_l = 1.

A sum f_l below 1e-280, of which terms may have underflowed, is computed again as a
logarithm, relative to its largest term. Terms are added in the order of the active
bits, one sample at a time. Last, scores are rounded to multiples of 2 ** -36, so that
classes which the formula ranks alike do tie. Logarithms are those of `model.portable`:
scores are the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn._types import Floats, Integers, Mask
from flwr_flynn._validation import freeze, number, one_of
from flwr_flynn.errors import ConfigError
from flwr_flynn.hashing.batching import batches
from flwr_flynn.model.counts import ClassCounts, active_bits
from flwr_flynn.model.portable import exp, log, maximum

Counts = Integers
Sizes = Integers | Floats
Scores = Floats
Active = npt.NDArray[np.int32]

# Temperatures to choose from, T = 33; roots are exact on every machine.
TEMPERATURES = tuple(math.sqrt(2.0**k) for k in range(16, -17, -1))
RULES = ("balanced", "novelty")
MAX_LOSS = 64.0  # upper bound of the log-loss of one sample
# Unit of log-losses in tables: integers, so that sums over parties are exact.
LOSS_UNIT = 2.0**-20

# Temperature for use without training samples, see docs/explanation/defaults.md.
SUGGESTED_TEMPERATURE = 0.2

_SMALL = 1e-280  # sums below this may miss terms that underflowed
_GRAIN = 2.0**36  # scores are multiples of its inverse
_LEAST_LOG = -1e9  # of a probability in a model of several members
BLOCK = 2**20  # scores computed at a time
_STEPS = 173  # of a fourth root of 1/2 in weight, per unit of accuracy
# 2 ** -(k / 4)
_ROOTS = (1.0, 0.8408964152537145, 0.7071067811865476, 0.5946035575013605)


@dataclass(frozen=True)
class ScoringRule:
    """Decision rule with its parameters, as chosen.

    Parameters
    ----------
    rule : {"balanced", "novelty"}
        See `flwr_flynn.model.scoring`.
    decay : float
        gamma, 0 <= decay < 1.
    temperature : float, optional
        Divisor of `log_odds` that makes them logarithms of probabilities, above 0.
        None: not chosen.

    Raises
    ------
    ConfigError
        A field is out of range.

    Examples
    --------
    >>> ScoringRule("balanced", 0.5)
    ScoringRule(rule='balanced', decay=0.5, temperature=None)
    """

    rule: str
    decay: float
    temperature: float | None = None

    def __post_init__(self) -> None:
        one_of("rule", self.rule, RULES, error=ConfigError)
        freeze(self, decay=number("decay", self.decay, least=0, below=1))
        if self.temperature is not None:
            freeze(self, temperature=number("temperature", self.temperature, above=0))


def given_scoring(rule: str, decay: str | float) -> ScoringRule | None:
    """ScoringRule of the user's settings, checked.

    It is None where "auto" leaves the decay to be chosen.
    """
    one_of("rule", rule, RULES)
    if decay == "auto":
        return None
    return ScoringRule(rule, decay)  # type: ignore[arg-type]


def class_scores(
    counts: ClassCounts, active: npt.ArrayLike, scoring: ScoringRule
) -> Scores:
    """Scores, (n, L) float64, finite, of samples that are not in the counts, from their
    active bits, (n, rho).
    """
    bits = active_bits(active, counts.hash_dim, counts.hash_nnz)
    array, n_per_class = counts.nonnegative()
    few, small = _restrict(array, bits)
    table = ScoreTable(few, n_per_class, mean_size(n_per_class), scoring)
    scores = np.empty((len(bits), len(array)))
    no_class = np.full(len(bits), -1, np.int64)
    for part in blocks(len(bits), len(array)):
        scores[part] = table.scores(small[part], no_class[part])
    return empty_below(scores, n_per_class == 0)


def empty_below(scores: Scores, empty: Mask) -> Scores:
    """Scores, (n, L), changed so that empty classes are below all others."""
    if empty.any() and not empty.all():
        scores[:, empty] = scores[:, ~empty].min(axis=1, keepdims=True) - 1
    return scores


def class_novelty(counts: ClassCounts, active: npt.ArrayLike, decay: float) -> Scores:
    """Novelty of samples to each class, f_l(x) / rho, (n, L) float64 from 0 to 1
    (paper, Algorithm 1).
    """
    bits = active_bits(active, counts.hash_dim, counts.hash_nnz)
    few, small = _restrict(counts.nonnegative()[0], bits)
    weights = _powers(few, 0, np.ones(len(few)), ScoringRule("novelty", decay).decay)
    sums = weight_sums(small, weights)
    sums /= counts.hash_nnz
    return sums


def weight_sums(active: Active, weights: Floats) -> Scores:
    """Sums of the weights, (m, L), of active bits, (n, rho), for each class, (n, L)."""
    sums = np.empty((len(active), weights.shape[1]))
    no_class = np.full(len(active), -1, np.int64)
    add_weights(active, no_class, weights, weights, sums)
    return sums


def log_odds(scores: Scores, hash_nnz: int) -> Scores:
    """Scores, (n, L), on a scale on which differences are about proportional to log
    odds.

    -log(f_l / rho + 0.1) - log(f_l) / 4096. Without the 0.1, a class that knows a
    sample very well would be far more probable than a class that knows it well. The
    second term keeps the order.
    """
    odds: Scores = _log_odds(
        np.ascontiguousarray(scores, np.float64).ravel(), float(hash_nnz)
    ).reshape(scores.shape)
    return odds


@njit(nogil=True, cache=True)
def _log_odds(scores, hash_nnz):  # type: ignore[no-untyped-def]
    odds = np.empty(len(scores))
    for i in range(len(scores)):
        odds[i] = scores[i] / 4096 - log(exp(-scores[i]) / hash_nnz + 0.1)
    return odds


@njit(nogil=True, cache=True)
def add_log_probabilities(odds, temperature, weight, total):  # type: ignore[no-untyped-def]
    """Add weight times the log probabilities of odds over the temperature, (n, L), to
    the total.

    None is below -1e9, so that sums stay finite at any temperature.
    """
    for p in range(odds.shape[0]):
        row = odds[p]
        highest = maximum(row)
        mass = 0.0
        for label in range(len(row)):
            mass += exp((row[label] - highest) / temperature)
        shift = log(mass)
        for label in range(len(row)):
            total[p, label] += weight * max(
                (row[label] - highest) / temperature - shift, _LEAST_LOG
            )


def log_probabilities(odds: Scores) -> Scores:
    """Log probabilities, (n, L), of log odds, none below -1e9."""
    total = np.zeros(odds.shape)
    add_log_probabilities(odds, 1.0, 1.0, total)
    return total


def falling_weight(behind: float) -> float:
    """Weight of a model whose balanced accuracy is so far behind the best: about
    exp(-30 behind).

    In steps that are the same on every machine.
    """
    step = math.floor(behind * _STEPS)
    return _ROOTS[step % 4] * 2.0 ** -(step // 4)


class ScoreTable:
    """Term of each bit in the sum of each class, for counts, (L, m).

    `with_own` also makes the terms of a training sample in the sum of its own class
    once it is taken out of the counts.
    """

    def __init__(
        self,
        counts: Counts,
        n_per_class: Sizes,
        mean: float,
        scoring: ScoringRule,
        with_own: bool = False,
    ) -> None:
        self.counts = counts
        self.decay = scoring.decay
        self.factors = size_factors(n_per_class, 0, mean, scoring.rule)
        self.own_factors = size_factors(n_per_class, 1, mean, scoring.rule)
        self.weights = _powers(counts, 0, self.factors, self.decay)
        if with_own:
            self.own = _powers(counts, 1, self.own_factors, self.decay)
        else:
            self.own = self.weights

    def scores(self, active: Active, own_class: Counts) -> Scores:
        """Scores, (n, L), of active bits, (n, rho).

        Each sample is taken out of its `own_class`, -1 for none.
        """
        sums = np.empty((len(active), len(self.counts)))
        add_weights(active, own_class, self.weights, self.own, sums)
        _minus_logs(
            sums,
            active,
            own_class,
            self.counts,
            self.factors,
            self.own_factors,
            self.decay,
        )
        np.rint(sums * _GRAIN, out=sums)
        sums /= _GRAIN
        return sums


def mean_size(n_per_class: Sizes, n_left_out: int = 0, empties: int = 0) -> float:
    """Mean size of the classes with samples, less `n_left_out` samples and `empties`
    classes.

    It is 1 if no class is left.
    """
    n_filled = int((n_per_class > 0).sum()) - empties
    if not n_filled:
        return 1.0
    total: float = sum(n_per_class.tolist())
    return (total - n_left_out) / n_filled


def size_factors(n_per_class: Sizes, n_left_out: int, mean: float, rule: str) -> Scores:
    """Factor of the counts of each class, (L,), once `n_left_out` samples are gone.

    It is arbitrary where none is left.
    """
    if rule == "novelty":
        return np.ones(len(n_per_class))
    return mean / np.maximum(n_per_class - n_left_out, 1)


def blocks(n_samples: int, n_classes: int) -> Iterator[slice]:
    """Slices of the samples, each of a bounded number of scores."""
    return batches(n_samples, max(1, BLOCK // n_classes))


def _restrict(counts: Counts, active: Active) -> tuple[Counts, Active]:
    """Restrict counts to the bits that occur, and renumber the active bits, if these
    are fewer than all.
    """
    if active.size >= counts.shape[1]:
        return counts, active
    bits, indices = np.unique(active, return_inverse=True)
    few = np.ascontiguousarray(counts[:, bits])
    # As all counts are: a kernel is compiled for either kind.
    few.flags.writeable = False
    return few, indices.reshape(active.shape).astype(np.int32)


@njit(nogil=True, cache=True)
def _powers(counts, n_left_out, factors, decay):  # type: ignore[no-untyped-def]
    """Tabulate decay ** ((C[l, i] - n_left_out) * factors[l]) as (m, L): the classes of
    one bit side by side.
    """
    n_classes, n_bits = counts.shape
    out = np.empty((n_bits, n_classes))
    table = np.empty(n_bits)
    if decay > 0.0:
        log_decay = log(decay)
    else:
        log_decay = -np.inf
    for label in range(n_classes):
        top = 0
        for i in range(n_bits):
            top = max(top, counts[label, i])
        if top < n_bits:
            for count in range(top + 1):
                rest = max(count - n_left_out, 0)
                table[count] = _power(log_decay, rest * factors[label])
            for i in range(n_bits):
                out[i, label] = table[counts[label, i]]
        else:
            for i in range(n_bits):
                rest = max(counts[label, i] - n_left_out, 0)
                out[i, label] = _power(log_decay, rest * factors[label])
    return out


@njit(nogil=True, cache=True)
def _power(log_decay, exponent):  # type: ignore[no-untyped-def]
    """Power of the decay with this logarithm; 0 ** 0 is 1."""
    if exponent == 0.0:
        return 1.0
    return exp(log_decay * exponent)


@njit(nogil=True, cache=True)
def add_weights(active, own_class, weights, own, sums):  # type: ignore[no-untyped-def]
    """Sum weights[bit, l] over the active bits into sums[p, l], or own[bit, l] for the
    own class of sample p.
    """
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
def _minus_logs(  # type: ignore[no-untyped-def]
    sums, active, own_class, counts, factors, own_factors, decay
):
    """Replace each sum f by -log f, computed again from its terms where f is too small
    to be exact.
    """
    log_decay = 0.0
    if decay > 0.0:
        log_decay = log(decay)
    for p in range(sums.shape[0]):
        for label in range(sums.shape[1]):
            total = sums[p, label]
            if decay == 0.0:
                sums[p, label] = -log(max(total, 0.5))
            elif total >= _SMALL:
                sums[p, label] = -log(total)
            else:
                if own_class[p] == label:
                    n_left_out = 1
                    factor = own_factors[label]
                else:
                    n_left_out = 0
                    factor = factors[label]
                lowest = np.inf
                for k in range(active.shape[1]):
                    rest = counts[label, np.uint64(active[p, k])] - n_left_out
                    lowest = min(lowest, rest * factor)
                total = 0.0
                for k in range(active.shape[1]):
                    rest = counts[label, np.uint64(active[p, k])] - n_left_out
                    exponent = rest * factor
                    total += exp(log_decay * (exponent - lowest))
                sums[p, label] = -log_decay * lowest - log(total)
