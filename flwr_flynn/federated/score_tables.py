"""Histograms and sums of probabilities, as an answer about an evaluation has them.

They are of held-out samples by the model, and by the levels of a column; of all samples
of the site by the model without it; and of the held-out ones by what the site makes
alone, see `model.site_models`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.reply_fields import PLAIN, Field
from flwr_flynn.model.metrics import (
    LARGEST_SUM,
    MOST_CLASSES,
    N_LEVELS,
    N_SUMS,
    UNIT,
    above_floor,
    scored,
)
from flwr_flynn.model.scoring import Scores

_LARGEST = 2**50  # a party's sum of scores; 1024 of them add up within int64

HELD_OUT = 0
WITHOUT = -2
ALONE = -1
"""Indices in `by_group`."""

Pair = tuple[Array, Array]
"""Histograms, (2 L, N_LEVELS), and sums, (N_SUMS + L,)."""


def score_fields(
    n_classes: int, n_groups: int, total: int, most_tried: int
) -> list[Field]:
    """Histograms and sums over at most `total` held-out samples, over so many
    subgroups, and over at most `most_tried` samples of the site.

    There are none of too many classes.
    """
    if n_classes > MOST_CLASSES:
        return []
    fields = []
    for name, n, most in (
        ("scores", 1, total),
        ("scores by group", n_groups, total),
        ("scores without the site", 1, most_tried),
        ("scores alone", 1, total),
    ):
        bounds = np.full((n, N_SUMS + n_classes), min(most * LARGEST_SUM, _LARGEST))
        bounds[:, :2] = most
        if n:
            fields += [
                Field(name, (2 * n_classes * n, N_LEVELS), most),
                Field(f"sums of {name}", bounds.shape, bounds, PLAIN),
            ]
    return fields


def by_group(tables: Sequence[Array]) -> list[Pair]:
    """Views of histograms and sums: of held-out samples, of each subgroup of these, of
    the site's samples without it, and alone.
    """
    groups: list[Pair] = []
    for histograms, sums in zip(tables[::2], tables[1::2], strict=True):
        of_groups = histograms.reshape(len(sums), -1, N_LEVELS)
        groups += zip(of_groups, sums, strict=True)
    return groups


def add_scored(
    pair: Pair, probabilities: Scores, true: Integers, predicted: Integers
) -> None:
    """Add samples with probabilities, (n, L), to histograms and sums."""
    for total, new in zip(pair, scored(probabilities, true, predicted), strict=True):
        total += new


def shown(tables: Sequence[Array], least: int) -> list[Array]:
    """Histograms and sums without those of fewer samples than `least`."""
    parts: list[Array] = []
    for histograms, sums in zip(tables[::2], tables[1::2], strict=True):
        parts += above_floor(histograms, sums, least)
    return parts


def n_samples(pair: Pair) -> int:
    """Number of samples in the sums."""
    return int(pair[1][0])


def check_held_out(pair: Pair, matrix: Array, n_right: int | None = None) -> None:
    """Refuse histograms and sums of other samples than those of a confusion matrix.

    With `n_right`, of all of these, they are of all, or left out where they are of few;
    without, of some.
    """
    check_sums(pair)
    histograms, sums = pair
    n_per_class = matrix.sum(axis=1)
    sizes = histograms.sum(axis=1).reshape(-1, 2)
    every = np.stack([matrix.sum() - n_per_class, n_per_class], axis=1)
    is_possible = (sizes <= every).all(axis=1)
    if n_right is not None:
        is_possible = (sizes == every).all(axis=1) | (sizes == 0).all(axis=1)
    expected = "the samples of the confusion matrix"
    if not is_possible.all():
        raise PayloadError("scores", expected, "others")
    if n_right is not None and tuple(sums[:2]) not in ((0, 0), (matrix.sum(), n_right)):
        raise PayloadError("sums of scores", expected, "others")


def check_sums(pair: Pair) -> None:
    """Refuse sums that no samples have, or others than those of the histograms.

    Histograms of a class and its rest are left out where they are of few.
    """
    histograms, sums = pair
    n_examples, n_right = sums[:2].tolist()
    sizes = histograms.sum(axis=1).reshape(-1, 2).sum(axis=1)
    of_classes = sums[N_SUMS:]
    # The probabilities of a sample add up to 1, but for the rounding of each.
    room = sizes.sum()
    is_whole = (sizes < n_examples).any() or (
        abs(of_classes.sum() - round(n_examples / UNIT)) <= room
    )
    most = np.round(sizes / UNIT) + sizes
    if n_right > n_examples or not is_whole or (of_classes > most).any():
        raise PayloadError("sums of scores", "those of the samples", "others")
    if n_examples and not np.isin(sizes, (0, n_examples)).all():
        raise PayloadError("scores", "the samples of the sums, or none", "others")
