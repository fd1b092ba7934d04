"""Selection of the members of a model by exact leave-one-out.

`fit_members` makes the choice for samples in one place from the `leave_one_out_tables` of a single party, so that it
equals the federated choice by construction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import candidate_scorings
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.leave_one_out_scores import TEMPERATURES, Table, leave_one_out_tables
from flwr_flynn.model.metrics import mean_recall
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.scoring import falling_weight
from flwr_flynn.model.subsample import N_LEFT_OUT, kept

_LEAST_WEIGHT = 1 / 16  # of the best


@dataclass(frozen=True)
class Choice:
    """A chosen candidate: the index of its spec, that of its scoring, and its weight in the model."""

    spec: int
    scoring: int
    weight: float


def fit_members(
    specs: Sequence[HashSpec],
    X: Any,
    y: npt.NDArray[np.int64],
    n_classes: int,
    rule: str = "balanced",
    decay: str | float = "auto",
    n_jobs: int | None = None,
    max_members: int = 1,
) -> tuple[tuple[ModelMember, ...], float | None]:
    """Count (n, d) samples by every spec, and keep the best by leave-one-out, `max_members` at most.

    Of many samples some are left out, by the content of their rows. Where none is
    (`subsample.kept` may keep none of many equal ones), scorings have no temperature.

    Returns
    -------
    tuple
        The members, and the leave-one-out balanced accuracy of the best; None with nothing to choose.
    """
    n_per_class = np.bincount(y, minlength=n_classes)
    subsample = kept(X, y, n_per_class, N_LEFT_OUT)
    batches, counts = [], []  # active bits and class indices of the subsample; and counts of all samples
    for hasher in map(flynn_hash, specs):
        batches.append((hasher.active(X if subsample.all() else X[subsample], n_jobs=n_jobs), y[subsample]))
        counts.append(ClassCounts.from_active(hasher, *batches[-1], n_classes))
        if not subsample.all():
            counts[-1] += ClassCounts.from_data(hasher, X[~subsample], y[~subsample], n_classes, n_jobs=n_jobs)
    candidates = [candidate_scorings(each, rule, decay) for each in counts]
    correct = [
        leave_one_out_tables(each, [batch], scorings, with_losses=False).correct
        for each, batch, scorings in zip(counts, batches, candidates, strict=True)
    ]
    sizes = np.bincount(y[subsample], minlength=n_classes)
    members, choices = [], choose(correct, sizes, max_members)
    is_choice = sum(map(len, candidates)) > 1 and subsample.any()
    accuracy = mean_recall(correct[choices[0].spec][choices[0].scoring], sizes) if is_choice else None
    for choice in choices:
        mine, scoring = counts[choice.spec], candidates[choice.spec][choice.scoring]
        if subsample.any():
            losses = leave_one_out_tables(mine, [batches[choice.spec]], [scoring]).log_losses
            scoring = replace(scoring, temperature=best_temperature(losses[0]))
        members.append(ModelMember(specs[choice.spec], mine, scoring, choice.weight))
    return tuple(members), accuracy


def choose(correct: Sequence[Table], n_per_class: npt.NDArray[np.int64], max_members: int = 1) -> list[Choice]:
    """The best scoring of each spec, and of these the best, with weights that add up to 1, the best first.

    `correct` has a (K, L) table for each spec; `n_per_class` are the samples that they are about. The weight of a
    member falls with its distance from the best, see `falling_weight`. Of equals the first is taken; without samples
    the first of all.
    """
    filled = np.flatnonzero(n_per_class > 0)
    scores = [[mean_recall(row, n_per_class) for row in table] for table in correct]
    best = sorted(range(len(scores)), key=lambda i: -max(scores[i]))[:max_members]
    top = max(scores[best[0]])
    weights = [falling_weight(top - max(scores[i])) for i in best]
    heavy = [i for i, weight in enumerate(weights) if weight >= _LEAST_WEIGHT and (len(filled) or i == 0)]
    total = math.fsum(weights[i] for i in heavy)
    return [Choice(best[i], scores[best[i]].index(max(scores[best[i]])), weights[i] / total) for i in heavy]


def best_temperature(log_losses: npt.NDArray[Any]) -> float:
    """Temperature of the lowest of the summed log-losses, (T,), the first among equals; 1.0 without samples."""
    return TEMPERATURES[int(np.argmin(log_losses))] if log_losses.any() else 1.0
