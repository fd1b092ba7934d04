"""Metrics of a classifier from confusion matrices, over all parties and for each.

A confusion matrix is an (L, L) int64 array of counts with entries [true, predicted]. Those of disjoint samples add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import PayloadError

Confusion = npt.NDArray[np.int64]

# The sum of the matrices of 32768 parties with so many samples each fits int64.
_MAX_EXAMPLES = 2**48


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


def summary(matrices: Mapping[str, Confusion]) -> dict[str, Any]:
    """Metrics over the samples of all parties, and their spread over the parties, worst first, for JSON."""
    total = sum(matrices.values(), start=np.zeros_like(next(iter(matrices.values()))))
    parties: list[dict[str, Any]] = [
        {"name": name, "accuracy": scores(matrix)["accuracy"], "examples": int(matrix.sum())}
        for name, matrix in matrices.items()
    ]
    parties.sort(key=lambda party: (party["accuracy"], party["name"]))
    return {
        **scores(total),
        "examples": int(total.sum()),
        "parties": parties,
        "worst_party": parties[0],
        "best_party": parties[-1],
        "accuracy_std": float(np.std([party["accuracy"] for party in parties])),
        "confusion": total.tolist(),
    }


def confusion_to_bytes(matrix: Confusion) -> bytes:
    """Encode a confusion matrix as bytes, a metrics value of Flower: int64, little-endian, row by row."""
    return matrix.astype("<i8", copy=False).tobytes()


def confusion_from_bytes(raw: Any, n_classes: int, n_examples: int) -> Confusion:
    """Decode the confusion matrix of a party; a `PayloadError` for any but L x L counts of sum `n_examples`."""
    size = 8 * n_classes**2
    if not isinstance(raw, bytes) or len(raw) != size:
        got = f"{len(raw)} bytes" if isinstance(raw, bytes) else type(raw).__name__
        raise PayloadError("confusion matrix", f"{size} bytes", got)
    if n_examples > _MAX_EXAMPLES:
        raise PayloadError("confusion matrix", f"at most {_MAX_EXAMPLES} examples", n_examples)
    matrix = np.frombuffer(raw, "<i8").astype(np.int64).reshape(n_classes, n_classes)
    if int(matrix.min()) < 0:
        raise PayloadError("confusion matrix", "counts of at least 0", "a negative count")
    # Python's integers: counts near 2**63 would overflow an int64 sum.
    total = sum(matrix.ravel().tolist())
    if total != n_examples:
        raise PayloadError("confusion matrix", f"{n_examples} examples as announced", total)
    return matrix
