"""Metrics of a classifier from confusion matrices, over all parties and for each.

A confusion matrix is an (L, L) int64 array of counts with entries [true, predicted]. Those of disjoint samples add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Confusion = npt.NDArray[np.int64]


def confusion(true: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], n_classes: int) -> Confusion:
    """Confusion matrix of class indices, (n,) int64, from 0 to `n_classes` - 1."""
    cells = np.bincount(true * n_classes + predicted, minlength=n_classes**2)
    return cells.astype(np.int64, copy=False).reshape(n_classes, n_classes)


def scores(matrix: Confusion) -> dict[str, float]:
    """Accuracy, balanced accuracy and macro-F1 of a confusion matrix of at least one sample.

    Balanced accuracy is the mean recall over the classes that occur; macro-F1 the mean of
    F1 = 2 correct / (occurrences + predictions) over the classes that occur or were predicted.
    """
    correct, occurs, predicted = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    present, seen = occurs > 0, occurs + predicted > 0
    return {
        "accuracy": float(correct.sum() / occurs.sum()),
        "balanced_accuracy": float(np.mean(correct[present] / occurs[present])),
        "macro_f1": float(np.mean(2 * correct[seen] / (occurs + predicted)[seen])),
    }


def mean_recall(correct: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> float:
    """Balanced accuracy from correct samples and sizes of the classes, (L,) both; 0 without samples.

    The same on every machine, and rounded so that ties do not depend on the order of the classes or on errors of
    division.
    """
    filled = sizes > 0
    recalls = (correct[filled] / sizes[filled]).tolist()
    return round(math.fsum(recalls) / len(recalls), 12) if recalls else 0.0


def summary(total: Confusion, by_party: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Metrics over the samples of all parties, and their spread over the parties, worst first, for JSON.

    `by_party` has for each party, by its name, the number of samples classified correctly and that of all, above 0;
    no party where only the sum is known.
    """
    parties: list[dict[str, Any]] = [
        {"name": name, "accuracy": right / n_examples, "examples": n_examples}
        for name, (right, n_examples) in by_party.items()
    ]
    parties.sort(key=lambda party: (party["accuracy"], party["name"]))
    return {
        **scores(total),
        "examples": int(total.sum()),
        "parties": parties,
        "worst_party": parties[0] if parties else None,
        "best_party": parties[-1] if parties else None,
        "accuracy_std": float(np.std([party["accuracy"] for party in parties])) if parties else None,
        "confusion": total.tolist(),
    }
