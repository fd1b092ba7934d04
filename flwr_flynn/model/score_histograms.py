"""Histograms of predicted probabilities by class: sums over samples, from which `model.probability_metrics` follow.

One class against the rest: a histogram of the probabilities for the class of its own samples, and one of all others.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_CLASSES = 256
"""Classes of a model, at most, for which histograms are made."""

N_SUMS = 6
"""Sums beside the histograms: samples, correct ones, and Brier score and log-loss with their squares."""

UNIT = 2.0**-20
"""Unit of the sums of scores and losses, so that sums over parties are exact."""

MAX_LOSS = 32.0
"""Upper bound of the log-loss of one sample: the squares of so many samples as a secure sum allows fit."""

LARGEST_SUM = round(MAX_LOSS**2 / UNIT)
"""Bound of every sum, for one sample."""


def _edges() -> Floats:
    """Edges of the levels: steps of 1/200, and towards 0 and 1 two for each factor of two, down to some 1e-6."""
    tail = [0.005 * each * 2.0**-k for k in range(12) for each in (0.75, 0.5)]
    return np.array(sorted(tail) + [k / 200 for k in range(1, 200)] + sorted(1 - each for each in tail))


EDGES = _edges()
N_LEVELS = len(EDGES) + 1
CENTRES: Floats = (np.append(EDGES, 1.0) + np.insert(EDGES, 0, 0.0)) / 2
"""Middle of each level, (N_LEVELS,)."""


def scored(probabilities: Floats, true: Counts, predicted: Counts) -> tuple[Counts, Counts]:
    """Histograms, (2 L, N_LEVELS), and sums, (N_SUMS,), both int64, of samples with probabilities, (n, L).

    `true` and `predicted` are class indices, (n,). Row 2 c of the histograms is of the probabilities for class c of the
    samples of other classes, row 2 c + 1 of its own samples.
    """
    n_classes = probabilities.shape[1]
    levels = np.searchsorted(EDGES, probabilities, side="right")
    rows = 2 * np.arange(n_classes) + (true[:, None] == np.arange(n_classes))
    found = np.bincount((rows * N_LEVELS + levels).ravel(), minlength=2 * n_classes * N_LEVELS)
    own = probabilities[np.arange(len(true)), true]
    brier = np.square(probabilities).sum(axis=1) - 2 * own + 1
    loss = -np.log(np.maximum(own, math.exp(-MAX_LOSS)))
    parts = [int(np.rint(each / UNIT).sum()) for each in (brier, brier**2, loss, loss**2)]
    sums = np.array([len(true), int((predicted == true).sum()), *parts], np.int64)
    return found.astype(np.int64, copy=False).reshape(-1, N_LEVELS), sums


def above_floor(found: Counts, sums: Counts, least: int) -> tuple[Counts, Counts]:
    """Histograms and sums as a party with this disclosure floor tells them, of all samples or of several subgroups.

    Left out are classes of which, or of whose rest, some samples are there, but fewer than `least`; and the sums of
    fewer. So few must not follow from the figures of all either: the smallest other subgroups are left out with them,
    until there are enough. With a floor of 1 nothing is left out.
    """
    tables, totals = found.reshape(sums.size // N_SUMS, -1, N_LEVELS), sums.reshape(-1, N_SUMS)
    sizes = tables.sum(axis=2).reshape(len(tables), -1, 2)
    kept = np.stack([_kept(sizes[:, c], least) for c in range(sizes.shape[1])], axis=1)
    told = tables * np.repeat(kept, 2, axis=1)[:, :, None], totals * _kept(totals[:, :1], least)[:, None]
    return told[0].reshape(found.shape), told[1].reshape(sums.shape)


def _kept(sizes: Counts, least: int) -> npt.NDArray[np.bool_]:
    """True for each subgroup that is told, from its samples and those of the rest, (n, 1 or 2)."""
    kept: npt.NDArray[np.bool_] = ((sizes == 0) | (sizes >= least)).all(axis=1)
    for group in np.argsort(sizes.sum(axis=1), kind="stable"):
        hidden = sizes[~kept].sum(axis=0)
        if ((hidden == 0) | (hidden >= least)).all():
            break
        kept[group] &= not sizes[group].any()
    return kept
