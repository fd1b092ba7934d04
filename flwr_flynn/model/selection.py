"""Selection of the members of a model by exact leave-one-out.

`fit_members` makes the choice for samples in one place from the `leave_one_out_tables`
of a single party, so that it equals the federated choice by construction.

Taking a sample out of class y changes C[y] at its active bits, n_y, and through n_mean
the exponents of all classes alike. The tables for that are the same for all samples of
classes that keep a sample. A sample that is alone in its class empties it, which
changes n_mean differently, and so gets tables of its own. Every sum is that of the
retrained model, in the same order: predictions are equal, given the hash. (Its centre
and scale are those of all samples, and so is the class prior of log-losses.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn._types import Array, Integers, Matrix
from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import FlyHash, class_indices, flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.calibration import Calibration, ScoredBatch, mixed
from flwr_flynn.model.candidates import candidate_scorings
from flwr_flynn.model.counts import ClassCounts, active_bits
from flwr_flynn.model.forest import Forest
from flwr_flynn.model.gram import GramScoring, by_fold
from flwr_flynn.model.metrics import mean_recall
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.portable import exp, log, temper
from flwr_flynn.model.prediction_sets import Levels, as_levels, level_table, levels_of
from flwr_flynn.model.prior import ClassWeight
from flwr_flynn.model.scoring import (
    LOSS_UNIT,
    MAX_LOSS,
    TEMPERATURES,
    Active,
    Scores,
    ScoreTable,
    ScoringRule,
    blocks,
    falling_weight,
    log_odds,
    mean_size,
)
from flwr_flynn.model.subsample import class_terms, subsample_mask

HELD = 2**22  # active bits hashed at a time
_SCORES = 2**20  # class scores held at a time
_NEVER = -1e12  # score of a class without samples


class LeaveOneOutTables(NamedTuple):
    """Leave-one-out results of K candidates on some samples.

    Tables of disjoint samples add.

    `correct`, (K, L) int64: samples of each class that are classified correctly, all
    classes taken for equally frequent. `log_losses`, (K, T) int64: log-loss of the
    posterior at each of `TEMPERATURES` in units of `LOSS_UNIT`, summed with weights
    that make up for the classes of which only some samples are left out; all 0 where
    they were not asked for.
    """

    correct: Integers
    log_losses: Integers


def leave_one_out_tables(
    counts: ClassCounts,
    batches: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
    candidates: Sequence[ScoringRule],
    with_losses: bool = True,
    class_weight: ClassWeight = None,
) -> LeaveOneOutTables:
    """Tables of one party for its batches of active bits, (n, rho), and class indices,
    (n,).

    The counts contain these samples, and those of other parties perhaps; a `DataError`
    if they cannot, a `CountsError` for noisy counts. Without losses it is much faster.
    The prior is that of all samples.
    """
    judged = class_terms(counts, class_weight)
    correct = np.zeros((len(candidates), counts.n_classes), np.int64)
    log_losses = np.zeros((len(candidates), len(TEMPERATURES)), np.int64)
    for active, y in batches:
        for k, true, scores in left_out_scores(counts, active, y, candidates):
            correct[k] += np.bincount(
                true[scores.argmax(axis=1) == true], minlength=counts.n_classes
            )
            if with_losses:
                _add_losses(
                    log_odds(scores, counts.hash_nnz),
                    true,
                    np.array(TEMPERATURES),
                    *judged,
                    log_losses[k],
                )
    return LeaveOneOutTables(correct, log_losses)


def hashed_batches(
    hasher: FlyHash, X: Matrix, y: Integers, n_jobs: int | None = None
) -> Iterator[tuple[Active, Integers]]:
    """Batches of active bits and class indices, hashed when they are asked for."""
    for rows in batches(len(y), max(1, HELD // hasher.hash_nnz)):
        yield hasher.remembered(X[rows], n_jobs=n_jobs), y[rows]


def left_out_scores(
    counts: ClassCounts,
    active: npt.ArrayLike,
    y: npt.ArrayLike,
    candidates: Sequence[ScoringRule],
) -> Iterator[tuple[int, Integers, Scores]]:
    """Leave-one-out scores by blocks: candidate index, class indices, (b,) int64,
    scores, (b, L) float64.

    Scores are -inf for a class without samples, and equal where the left-out sample is
    the only one of all. The order of the samples is not that of `y`.
    """
    bits, labels = _counted_samples(counts, active, y)
    array = counts.array
    sizes = counts.n_per_class
    alone = sizes[labels] == 1
    empty = sizes == 0
    for is_alone in (False, True):
        samples = np.flatnonzero(alone == is_alone)
        n_emptied = int(is_alone)
        is_nothing_left = (~empty).sum() == n_emptied
        mean = mean_size(sizes, n_left_out=1, empties=n_emptied)
        if not len(samples):
            continue
        for k, candidate in enumerate(candidates):
            table = ScoreTable(array, sizes, mean, candidate, with_own=True)
            for part in blocks(len(samples), counts.n_classes):
                true = labels[samples[part]]
                scores = table.scores(bits[samples[part]], true)
                scores[:, empty] = -np.inf
                if is_alone:
                    scores[np.arange(len(true)), true] = -np.inf
                if is_nothing_left:  # the first class wins by the rule on ties
                    scores[:] = 0.0
                yield k, true, scores


@dataclass(frozen=True)
class UnseenScoring:
    """Scores of samples, some at a time, by what has not seen them.

    It is the model without a sample, unless samples are not counted, and, of a linear
    part, the scoring for the sample's fold, see `GramMatrix.scorings`; () stands for none.
    """

    model: Model
    linear: Sequence[GramScoring] = ()
    n_jobs: int | None = None
    are_counted: bool = True

    def scores(self, X: Matrix, y: Integers) -> Iterator[ScoredBatch]:
        """Scores of samples; a class without samples is far below all."""
        model = self.model
        step = max(1, _SCORES // max(len(model.classes), 256))
        for rows in batches(len(y), step):
            chosen = X[rows]
            if self.are_counted:
                odds = (
                    _left_out_odds(own, chosen, y[rows], self.n_jobs)
                    for own in model.members
                )
            else:
                odds = (own.log_odds(chosen, self.n_jobs) for own in model.members)
            scores = model.combined(len(y[rows]), odds)
            scores[:, model.empty_classes] = _NEVER
            of_linear = None
            if self.linear:
                of_linear = np.empty(scores.shape)
                for own, scoring in by_fold(self.linear, chosen):
                    part = chosen[own]
                    of_linear[own] = scoring.log_probabilities(scores[own], part)
                of_linear[:, model.empty_classes] = _NEVER
            yield scores, of_linear, y[rows]

    def calibrated(self, calibration: Calibration, X: Matrix, y: Integers) -> Scores:
        """Scores of samples, (n, L), from which a forest grows: mixed and calibrated."""
        calibrated = np.empty((len(y), len(self.model.classes)))
        start = 0
        for scores, of_linear, true in self.scores(X, y):
            rows = slice(start, start + len(true))
            shared = mixed(scores, of_linear, calibration.share)
            calibrated[rows] = calibration.applied(shared)
            start = rows.stop
        return calibrated

    def with_trees(
        self,
        calibration: Calibration | None,
        trees: Forest | None,
        X: Matrix,
        y: Integers,
    ) -> Iterable[ScoredBatch]:
        """The `scores`; with trees the calibrated ones, and these with what trees add
        that have not seen the samples.
        """
        if trees is None or calibration is None:
            return self.scores(X, y)
        rest = self.calibrated(calibration, X, y)
        return [(rest, rest + trees.unseen_scores(X), y)]

    def levels(self, X: Matrix, y: Integers) -> Levels:
        """Table of levels of samples, see `model.prediction_sets`, by the model, if it
        is calibrated; of many, those that a calibration would choose. Without the
        scores of its linear part for each fold there is none.

        A `DataError` if the counts cannot contain them.
        """
        model = self.model
        last = model.last_calibration
        lacks_folds = model.share and not self.linear
        if model.calibration is None or last is None or lacks_folds:
            return ()
        rows = subsample_mask(X, y, model.members[0].counts.n_per_class)
        chosen = X[rows]
        scores = self.calibrated(model.calibration, chosen, y[rows])
        if model.forest is not None:
            of_trees = model.forest.trees.unseen_scores(chosen)
            scores = model.forest.added(scores, of_trees)
        levels = levels_of(scores - np.array(last.intercepts))
        return as_levels(level_table(levels, y[rows]))


def _left_out_odds(
    member: ModelMember, X: Matrix, y: Integers, n_jobs: int | None
) -> Scores:
    """Leave-one-out log odds, (n, L), in the order of the samples, times the
    temperature.
    """
    counts = member.counts
    active = member.hash.remembered(X, n_jobs=n_jobs)
    blocks = left_out_scores(counts, active, y, [member.scoring])
    scores = [np.array(block) for _, _, block in blocks]
    odds = np.zeros((len(y), counts.n_classes))
    order = np.argsort(counts.n_per_class[y] == 1, kind="stable")
    if scores:
        odds[order] = log_odds(np.concatenate(scores), counts.hash_nnz)
    return odds


@njit(nogil=True, cache=True)
def _add_losses(odds, true, temperatures, prior, importance, sums):  # type: ignore[no-untyped-def]
    """Add the log-loss of each sample, times the importance of its class, to the sum of
    each temperature.

    Each is cut off at `MAX_LOSS` and rounded to units of `LOSS_UNIT` first: sums over
    parties equal the pooled ones.
    """
    n_classes = odds.shape[1]
    posterior = np.empty(n_classes)
    for p in range(odds.shape[0]):
        for t in range(len(temperatures)):
            top = temper(odds[p], temperatures[t], prior, posterior)
            total = 0.0
            for label in range(n_classes):
                if posterior[label] == top:  # exp(0), most often
                    total += 1.0
                else:
                    total += exp(posterior[label] - top)
            loss = min(log(total) - (posterior[true[p]] - top), MAX_LOSS)
            sums[t] += np.int64(np.rint(loss * importance[true[p]] / LOSS_UNIT))


def _counted_samples(
    counts: ClassCounts, active: npt.ArrayLike, y: npt.ArrayLike
) -> tuple[Active, Integers]:
    """Check that samples can be in the counts.

    Return their active bits and class indices.
    """
    if counts.noise:
        raise CountsError(
            "leave_one_out",
            "counts without noise",
            f"{len(counts.noise)} releases in them",
        )
    bits = active_bits(active, counts.hash_dim, counts.hash_nnz)
    labels = class_indices(y, len(bits), counts.n_classes)
    for label in range(counts.n_classes):
        own = bits[labels == label]
        if len(own) > counts.n_per_class[label]:
            raise DataError(
                "active, y",
                "samples that are in the counts",
                f"too many of class {label}",
            )
        if (counts.array[label, own] == 0).any():
            raise DataError(
                "active, y",
                "samples that are in the counts",
                f"bits without a count in class {label}",
            )
    return bits, labels


_LEAST_WEIGHT = 1 / 16  # of the best


@dataclass(frozen=True)
class Choice:
    """A chosen candidate: the index of its spec, that of its scoring, and its weight in
    the model.
    """

    spec: int
    scoring: int
    weight: float


def fit_members(
    specs: Sequence[HashSpec],
    X: Matrix,
    y: Integers,
    n_classes: int,
    rule: str = "balanced",
    decay: str | float = "auto",
    n_jobs: int | None = None,
    max_members: int = 1,
    class_weight: ClassWeight = None,
) -> tuple[ModelMember, ...]:
    """Count (n, d) samples by every spec, and keep the best by leave-one-out,
    `max_members` at most.

    Of many samples some are left out, by the content of their rows. Where none is
    (`subsample_mask` may keep none of many equal ones), scorings have no temperature.
    """
    n_per_class = np.bincount(y, minlength=n_classes)
    subsample = subsample_mask(X, y, n_per_class)
    is_whole = bool(subsample.all())
    chosen = X
    if not is_whole:
        chosen = X[subsample]
    chosen_classes = y[subsample]
    # Of each spec: active bits of the subsample, and counts of all samples.
    active = []
    counts = []
    for hasher in map(flynn_hash, specs):
        bits = hasher.remembered(chosen, n_jobs=n_jobs)
        total = ClassCounts.from_active(hasher, bits, chosen_classes, n_classes)
        if not is_whole:
            total += ClassCounts.from_data(
                hasher, X[~subsample], y[~subsample], n_classes, n_jobs=n_jobs
            )
        active.append(bits)
        counts.append(total)
    candidates = [candidate_scorings(total, rule, decay) for total in counts]
    correct = []
    for bits, total, scorings in zip(active, counts, candidates, strict=True):
        tables = leave_one_out_tables(
            total, [(bits, chosen_classes)], scorings, with_losses=False
        )
        correct.append(tables.correct)
    members = []
    sizes = np.bincount(chosen_classes, minlength=n_classes)
    for choice in choose(correct, sizes, max_members):
        total = counts[choice.spec]
        scoring = candidates[choice.spec][choice.scoring]
        if len(chosen_classes):
            batch = (active[choice.spec], chosen_classes)
            losses = leave_one_out_tables(
                total, [batch], [scoring], True, class_weight
            ).log_losses
            scoring = replace(scoring, temperature=best_temperature(losses[0]))
        members.append(ModelMember(specs[choice.spec], total, scoring, choice.weight))
    return tuple(members)


def choose(
    correct: Sequence[Integers], n_per_class: Integers, max_members: int = 1
) -> list[Choice]:
    """The best scoring of each spec, and of these the best, with weights that add up to
    1, the best first.

    `correct` has a (K, L) table for each spec; `n_per_class` are the samples that they
    are about. The weight of a member falls with its distance from the best, see
    `falling_weight`. Of equals the first is taken; without samples the first of all.
    """
    filled = np.flatnonzero(n_per_class > 0)
    scores = [[mean_recall(row, n_per_class) for row in table] for table in correct]
    best = sorted(range(len(scores)), key=lambda i: -max(scores[i]))[:max_members]
    top = max(scores[best[0]])
    weights = [falling_weight(top - max(scores[i])) for i in best]
    heavy = [i for i, weight in enumerate(weights) if weight >= _LEAST_WEIGHT]
    if not len(filled):
        heavy = heavy[:1]
    total = math.fsum(weights[i] for i in heavy)
    return [
        Choice(best[i], scores[best[i]].index(max(scores[best[i]])), weights[i] / total)
        for i in heavy
    ]


def best_temperature(log_losses: Array) -> float:
    """Temperature of the lowest of the summed log-losses, (T,), the first among equals.

    It is 1.0 without samples.
    """
    if log_losses.any():
        return TEMPERATURES[int(np.argmin(log_losses))]
    return 1.0


Candidates = tuple[tuple[ScoringRule, ...], ...]


@dataclass(frozen=True)
class Selection:
    """Members that a run selected, and how the candidates compare."""

    choices: tuple[Choice, ...]  # the best first
    scorings: tuple[ScoringRule, ...]
    """Scorings of the choices; without a temperature where no party with samples
    replied."""
    candidates: Candidates
    accuracies: tuple[tuple[float, ...], ...]
    """Leave-one-out, balanced; () where no party with samples replied."""
    examples: int  # samples that the accuracies are about
    parties: int  # parties that replied

    @property
    def specs(self) -> tuple[int, ...]:
        """Indices of the chosen specs."""
        return tuple(choice.spec for choice in self.choices)

    @property
    def accuracy(self) -> float | None:
        """Leave-one-out balanced accuracy of the best candidate alone."""
        if self.accuracies:
            return max(map(max, self.accuracies))
        return None

    def to_dict(self) -> dict[str, object]:
        """The selection as JSON can hold it."""
        choices = [
            [choice.spec, choice.scoring, choice.weight] for choice in self.choices
        ]
        scorings = [
            [scoring.rule, scoring.decay, scoring.temperature]
            for scoring in self.scorings
        ]
        return asdict(self) | {
            "choices": choices,
            "scorings": scorings,
            "candidates": pairs_of(self.candidates),
            "accuracy": self.accuracy,
        }


def pairs_of(candidates: Candidates) -> list[list[list[str | float]]]:
    """Rule and decay of each scoring of each spec, as JSON can hold them."""
    return [
        [[scoring.rule, scoring.decay] for scoring in scorings]
        for scorings in candidates
    ]
