"""Prior of one party: its own class frequencies beside a model that takes all classes for equally frequent.

If parties differ in nothing but how often classes occur, the posterior of a class at a party is in proportion to its
probability by the shared model times its frequency at the party. A party learns the frequencies from its own training
samples, and decides by exact leave-one-out over them whether to use them. Nothing is sent for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from flwr_flynn.errors import DataError
from flwr_flynn.hashing.batching import batches
from flwr_flynn.model.leave_one_out_scores import HELD, MAX_LOSS, Table, left_out_scores
from flwr_flynn.model.model import Model
from flwr_flynn.model.scoring import Scores
from flwr_flynn.model.subsample import N_LEFT_OUT, kept

_PART = 2**17  # scores worked on at a time
_ADDED: tuple[float, ...] = tuple(0.5 / 4**k for k in range(5))  # samples added to each class


def log_frequencies(n_per_class: npt.ArrayLike) -> Scores:
    """Logarithms of the frequencies of the classes, (L,), with `smoothing` added to each class."""
    sizes = np.asarray(n_per_class, np.float64) + smoothing(n_per_class)
    logs: Scores = np.log(sizes / sizes.sum())
    return logs


def smoothing(n_per_class: npt.ArrayLike) -> float:
    """Constant of additive (Lidstone) smoothing of the class sizes, (L,): 1/2, 1/8 and so on to 1/512.

    The one by which the labels are most likely, each left out in turn and foretold from the others, of those that
    are no less than one sample in n. It is small where no class is there only once: none has come as a surprise.
    """
    sizes = np.asarray(n_per_class, np.float64)
    seen, n, n_classes = sizes[sizes > 0], sizes.sum(), len(sizes)

    def likelihood(added: float) -> float:
        return float((seen * np.log((seen - 1 + added) / (n - 1 + added * n_classes))).sum())

    return max([each for each in _ADDED if each == _ADDED[0] or each * n >= 1], key=likelihood)


def own_prior(
    model: Model, X: Any, y: npt.NDArray[np.int64], n_jobs: int | None = None, in_gram: bool = True
) -> Scores | None:
    """Log frequencies of a party's own classes, (L,), where leave-one-out decides for them; None for the model alone.

    Each of the samples, (n, d), with class indices, (n,), is classified by the model without it, with and without the
    frequencies of the others; `is_better` compares the two. Where they cannot be in the counts of the model, as of a
    party that joins later or was taken out, the model is without them as it is. Of many samples about `N_LEFT_OUT` are
    left out in turn, chosen by their content. None for fewer than two samples, and for noisy counts. A sample is taken
    out of the Gram matrix as by `GramScoring.left_out`, unless the party is not in it (`in_gram` False). Where the
    model is refined the counts decide, as the weights know every sample.
    """
    n_per_class = np.bincount(y, minlength=len(model.classes))
    if len(y) < 2 or any(member.counts.noise for member in model.members):
        return None
    model = replace(model, refined=None)
    subsample = kept(X, 0 * y, np.array([len(y)]), N_LEFT_OUT)  # as if of one class: as frequent as they are
    if not subsample.all():
        X, y = X[subsample], y[subsample]
    if len(y) < 2:
        return None
    try:
        gains = [_gains(model, *block, n_per_class) for block in _left_out(model, X, y, n_jobs, in_gram)]
    except DataError:  # not in the counts
        gains = [_gains(model, *block, n_per_class) for block in _as_it_is(model, X, y, n_jobs)]
    right, saved = np.concatenate(gains).T
    return log_frequencies(n_per_class) if is_better(right, saved) else None


def _gains(model: Model, true: Table, scores: Scores, n_per_class: Table) -> Scores:
    """Changes in samples right and log-loss saved by the frequencies of the others, (b, 2)."""
    if len(parts := list(_parts(scores))) > 1:
        return np.concatenate([_gains(model, true[part], scores[part], n_per_class) for part in parts])
    rows, flat, labels = np.arange(len(true)), np.zeros(len(model.classes)), np.arange(len(model.classes))
    classes, which = np.unique(true, return_inverse=True)
    mine = np.array([log_frequencies(n_per_class - (labels == label)) for label in classes])[which]
    shared, own = (log_softmax(model.posterior(scores, prior), axis=1) for prior in (flat, mine))
    right = (own.argmax(axis=1) == true) * 1.0 - (scores.argmax(axis=1) == true)
    before, after = (np.minimum(-each[rows, true], MAX_LOSS) for each in (shared, own))
    return np.stack([right, before - after], axis=1)


def is_better(right: Scores, saved: Scores) -> bool:
    """Decide for a prior by samples classified right, 1, 0 or -1 each, and log-loss saved on each, (n,) both.

    It is better if it classifies no fewer samples right, and saves log-loss by more than one standard error of the
    mean: of two models that are equal up to chance the simpler one is taken.
    """
    if len(saved) < 2 or right.sum() < 0:
        return False
    return bool(saved.mean() > saved.std(ddof=1) / math.sqrt(len(saved)))


def predicted(model: Model, scores: Scores) -> Table:
    """Class indices, (n,), by a model with its prior, if it has one, from the scores by its shared part."""
    best: Table = scores.argmax(axis=1)
    if model.prior is not None and len(best):
        best = np.concatenate([model.posterior(scores[part], model.prior).argmax(axis=1) for part in _parts(scores)])
    return best


def _parts(scores: Scores) -> Iterator[slice]:
    """Slices of at least one sample, so that work on them takes little memory."""
    return batches(len(scores), max(1, _PART // scores.shape[1]))


def _as_it_is(model: Model, X: Any, y: Table, n_jobs: int | None) -> Iterator[tuple[Table, Scores]]:
    """Batches of class indices, (b,), and of scores by the model, (b, L)."""
    for rows in batches(len(y), max(1, _PART // len(model.classes))):
        yield y[rows], model.shared_scores(X[rows], n_jobs)


def _left_out(model: Model, X: Any, y: Table, n_jobs: int | None, in_gram: bool) -> Iterator[tuple[Table, Scores]]:
    """Blocks of class indices, (b,), and of scores by the model without the sample, (b, L), as `Model.scores`."""
    most, sizes = max(member.spec.hash_nnz for member in model.members), model.members[0].counts.n_per_class
    batch = HELD // most if model.gram is None else min(HELD // most, _PART // len(model.classes))
    for rows in batches(len(y), max(1, batch)):
        inputs = X[rows]
        odds = None
        if model.gram is not None:  # in the order of the blocks: the only samples of their classes are the last
            order = np.argsort(sizes[y[rows]] == 1, kind="stable")
            gram = model.gram
            found = gram.left_out(inputs, y[rows], sizes, n_jobs) if in_gram else gram.log_odds(inputs, n_jobs)
            odds = found[order]
        # Blocks follow from sizes and labels, so those of all members are of the same samples.
        parts = [
            left_out_scores(member.counts, member.hash.active(inputs, n_jobs=n_jobs), y[rows], [member.scoring])
            for member in model.members
        ]
        done = 0
        for blocks in zip(*parts, strict=True):
            true, scores = blocks[0][1], model.combined(scores for _, _, scores in blocks)
            if odds is not None:
                scores = np.where(np.isneginf(scores), -np.inf, model.joined(scores, odds[done : done + len(true)]))
            done += len(true)
            yield true, scores
