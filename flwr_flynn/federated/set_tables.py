"""Coverage of prediction sets on held-out samples, as an answer about an evaluation has
it, see `model.prediction_sets`.

A table has for each of `COVERAGES` and each class, of its held-out samples: how many
there are, those whose set has the class, those with one class in the set, and with
none; of the samples of all classes those whose set is this class alone, and of these
the ones of the class; and the classes in all sets of its samples. A site tries the
thresholds of its own copy of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.reply_fields import PLAIN, Field
from flwr_flynn.model.metrics import Figures
from flwr_flynn.model.model import Model
from flwr_flynn.model.prediction_sets import COVERAGES
from flwr_flynn.model.scoring import Scores

FIGURES = ("samples", "covered", "one", "none", "alone", "right", "size")


def set_field(model: Model, total: int) -> Field:
    """The table over at most `total` samples; without rows for a model without sets."""
    n_rows = 0
    if model.has_sets:
        n_rows = len(COVERAGES) * len(model.classes)
    most = np.full((n_rows, len(FIGURES)), total)
    most[:, -1] *= len(model.classes)
    return Field("sets", most.shape, most, PLAIN)


def add_sets(table: Array, model: Model, scores: Scores, true: Integers) -> None:
    """Add samples with shared scores, (n, L), to a table."""
    if not len(table):
        return
    n_classes = scores.shape[1]
    blocks = table.reshape(len(COVERAGES), n_classes, -1)
    for coverage, block in zip(COVERAGES, blocks, strict=True):
        is_in = model.sets(scores, coverage)
        sizes = is_in.sum(axis=1)
        covered = is_in[np.arange(len(true)), true]
        one = sizes == 1
        of_class = {
            "samples": np.ones(len(true)),
            "covered": covered,
            "one": one,
            "none": sizes == 0,
            "right": covered & one,
            "size": sizes,
        }
        for name, column in of_class.items():
            sums = np.bincount(true, column, n_classes)
            block[:, FIGURES.index(name)] += sums.astype(np.int64)
        block[:, FIGURES.index("alone")] += is_in[one].sum(axis=0)


def shown_sets(table: Array, least: int) -> Array:
    """The table with classes alone of which there are so many samples, or none."""
    if not len(table):
        return table
    blocks = table.reshape(len(COVERAGES), -1, len(FIGURES))
    sizes = blocks[:, :, :1]
    is_shown = ((sizes == 0) | (sizes >= least)) & (sizes.sum(axis=1)[:, None] >= least)
    shown: Array = (blocks * is_shown).reshape(table.shape)
    return shown


def check_sets(table: Array, matrix: Array) -> None:
    """Refuse a table that no samples of a confusion matrix make."""
    n_classes = len(matrix)
    blocks = table.reshape(-1, n_classes, len(FIGURES))
    samples, covered, one, none, alone, right, size = blocks.T
    sizes = matrix.sum(axis=1)[:, None]
    is_possible = (
        ((samples == 0) | (samples == sizes))
        & (covered + none <= samples)
        & (one + none <= samples)
        & (right <= np.minimum(np.minimum(covered, one), alone))
        & (alone <= matrix.sum())
        & (size >= covered)
        & (size >= 2 * (samples - none) - one)
        & (size <= one + n_classes * (samples - one - none))
    )
    if not is_possible.all():
        raise PayloadError("sets", "those of the held-out samples", "others")


def set_figures(table: Array, classes: Sequence[Any]) -> list[Figures]:
    """Figures by coverage, for JSON, of all samples and by class.

    They are the shares of samples whose set has their class, with several classes, and
    with none, and the mean size; and of the samples with one class alone, whatever
    theirs is, the share that is of it. None without samples.
    """
    if not table.any():
        return []
    figures = []
    blocks = table.reshape(len(COVERAGES), -1, len(FIGURES))
    for coverage, block in zip(COVERAGES, blocks, strict=True):
        by_class = [
            {"class": label, **_shares(row)}
            for label, row in zip(classes, block, strict=True)
        ]
        whole = _shares(block.sum(axis=0))
        figures.append({"coverage": coverage, **whole, "classes": by_class})
    return figures


def _shares(row: Array) -> Figures:
    """Figures of the samples in a row of a table."""
    samples, covered, one, none, alone, right, size = row.tolist()
    figures: Figures = {"samples": samples, "right": None}
    if alone:
        figures["right"] = right / alone
    sums = {
        "covered": covered,
        "several": samples - one - none,
        "none": none,
        "size": size,
    }
    for name, total in sums.items():
        figures[name] = None
        if samples:
            figures[name] = total / samples
    return figures
