"""Selection of hash and readout by exact leave-one-out.

`select` makes the choice for samples in one place from the `leave_one_out_tables` of a single party, so that it equals
the federated choice by construction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.hashing.flyhash import FlyHash, flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import candidate_readouts
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.leave_one_out import TEMPERATURES, Table, hashed_batches, leave_one_out_tables
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.scoring import Active

HELD = 2**24  # active bits kept for the choice; those of more samples are computed again

Batches = Iterable[tuple[Active, npt.NDArray[np.int64]]]


def select(
    specs: Sequence[HashSpec],
    X: Any,
    y: npt.NDArray[np.int64],
    n_classes: int,
    rule: str = "balanced",
    decay: str | float = "auto",
    n_jobs: int | None = None,
) -> ModelMember:
    """Count (n, d) samples by every spec; keep spec, readout and temperature of the best leave-one-out results."""
    parties = [_Party(flynn_hash(spec), X, y, n_classes, n_jobs) for spec in specs]
    candidates = [candidate_readouts(party.counts, rule, decay) for party in parties]
    correct = [
        leave_one_out_tables(party.counts, party.batches(), readouts, with_losses=False).correct
        for party, readouts in zip(parties, candidates, strict=True)
    ]
    chosen, k = best(correct, parties[0].counts.n_per_class)
    counts, readout = parties[chosen].counts, candidates[chosen][k]
    losses = leave_one_out_tables(counts, parties[chosen].batches(), [readout]).log_losses
    return ModelMember(specs[chosen], counts, replace(readout, temperature=best_temperature(losses[0])))


class _Party:
    """Counts of samples, and batches of their active bits: kept where they are few enough, else computed again."""

    def __init__(self, hasher: FlyHash, X: Any, y: npt.NDArray[np.int64], n_classes: int, n_jobs: int | None) -> None:
        self._hasher, self._samples, self._n_jobs = hasher, (X, y), n_jobs
        self._active = hasher.active(X, n_jobs=n_jobs) if len(y) * hasher.hash_nnz <= HELD else None
        if self._active is None:
            self.counts = ClassCounts.from_data(hasher, X, y, n_classes, n_jobs=n_jobs)
        else:
            self.counts = ClassCounts.from_active(hasher, self._active, y, n_classes)

    def batches(self) -> Batches:
        """Batches of active bits and class indices."""
        X, y = self._samples
        return hashed_batches(self._hasher, X, y, self._n_jobs) if self._active is None else [(self._active, y)]


def best(correct: Sequence[Table], n_per_class: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Indices of spec and readout of the best balanced accuracy, from `correct`, (K, L), of each; first of equals."""
    filled = np.flatnonzero(n_per_class > 0)
    scores = [[_balanced_accuracy(row[filled], n_per_class[filled]) for row in table] for table in correct]
    spec = max(range(len(scores)), key=lambda i: max(scores[i]))
    return spec, scores[spec].index(max(scores[spec]))


def best_temperature(log_losses: npt.NDArray[Any]) -> float:
    """Temperature of the lowest of the summed log-losses, (T,), the first among equals; 1.0 without samples."""
    return TEMPERATURES[int(np.argmin(log_losses))] if log_losses.any() else 1.0


def _balanced_accuracy(correct: Table, sizes: Table) -> float:
    """Mean recall, rounded so that ties do not depend on the order of the classes or on errors of division."""
    if len(sizes) == 0:
        return 0.0
    return round(math.fsum((correct / sizes).tolist()) / len(sizes), 12)
