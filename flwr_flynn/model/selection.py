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
from flwr_flynn.model.leave_one_out import TEMPERATURES, Table, leave_one_out_tables
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
    kept_by: Any = None,
) -> tuple[tuple[ModelMember, ...], float | None]:
    """Count (n, d) samples by every spec, and keep the best by leave-one-out, `max_members` at most.

    Of many samples some are left out, by the content of their rows in `kept_by`, by default X. Where none is
    (`subsample.kept` may keep none of many equal ones), scorings have no temperature.

    Returns
    -------
    tuple
        The members, and the leave-one-out balanced accuracy of the best; None with nothing to choose.
    """
    n_per_class = np.bincount(y, minlength=n_classes)
    subsample = kept(X if kept_by is None else kept_by, y, n_per_class, N_LEFT_OUT)
    parties = [_Party(spec, X, y, subsample, n_classes, n_jobs) for spec in specs]
    candidates = [candidate_scorings(party.counts, rule, decay) for party in parties]
    correct = [
        leave_one_out_tables(party.counts, [party.batch], scorings, with_losses=False).correct
        for party, scorings in zip(parties, candidates, strict=True)
    ]
    sizes = np.bincount(y[subsample], minlength=n_classes)
    members, choices = [], choose(correct, sizes, max_members)
    is_choice = sum(map(len, candidates)) > 1 and subsample.any()
    accuracy = mean_recall(correct[choices[0].spec][choices[0].scoring], sizes) if is_choice else None
    for choice in choices:
        party, scoring = parties[choice.spec], candidates[choice.spec][choice.scoring]
        if subsample.any():
            losses = leave_one_out_tables(party.counts, [party.batch], [scoring]).log_losses
            scoring = replace(scoring, temperature=best_temperature(losses[0]))
        members.append(ModelMember(specs[choice.spec], party.counts, scoring, choice.weight))
    return tuple(members), accuracy


class _Party:
    """Counts of samples, and the active bits and class indices of those that are left out in turn."""

    def __init__(
        self,
        spec: HashSpec,
        X: Any,
        y: npt.NDArray[np.int64],
        left_out: npt.NDArray[np.bool_],
        n_classes: int,
        n_jobs: int | None,
    ) -> None:
        hasher = flynn_hash(spec)
        all_of_them = bool(left_out.all())
        active = hasher.active(X if all_of_them else X[left_out], n_jobs=n_jobs)
        self.batch = active, y[left_out]
        self.counts = ClassCounts.from_active(hasher, *self.batch, n_classes)
        if not all_of_them:
            self.counts += ClassCounts.from_data(hasher, X[~left_out], y[~left_out], n_classes, n_jobs=n_jobs)


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
