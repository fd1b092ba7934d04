"""Subsample of the samples that are left out in turn.

It is by content: the same samples are in it, however they are split over parties. A
sample is kept if a hash of its values is small enough, a sum over the values that are
not zero, so that sparse and dense forms of a sample have the same one.
"""

from __future__ import annotations

import numpy as np

from flwr_flynn._types import Floats, Integers, Mask, Matrix
from flwr_flynn.hashing.batching import batches
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.portable import content_shares
from flwr_flynn.model.prior import ClassWeight, counted_prior, weighted

# Samples, about, that are left out in turn: as many of each class as there are.
N_LEFT_OUT = 4096

_BATCH = 2**20  # values at a time


def subsample_mask(X: Matrix, y: Integers, n_per_class: Integers) -> Mask:
    """Choose about `N_LEFT_OUT` samples, as many of each class as there are: a mask,
    (n,) bool.

    `n_per_class`, (L,), are the class sizes of all parties together; small classes are
    kept whole.
    """
    shares = shares_chosen(n_per_class)
    if (shares[n_per_class > 0] == 1.0).all():
        return np.ones(len(y), np.bool_)
    mask = np.zeros(len(y), np.bool_)
    for rows in batches(len(y), max(1, _BATCH // max(X.shape[1], 1))):
        mask[rows] = content_shares(X[rows]) < shares[y[rows]]
    return mask


def shares_chosen(n_per_class: Integers) -> Floats:
    """Share of the samples of each class, (L,), that `subsample_mask` chooses."""
    filled = max(int((n_per_class > 0).sum()), 1)
    shares: Floats = np.minimum(N_LEFT_OUT / filled / np.maximum(n_per_class, 1), 1.0)
    return shares


def class_terms(
    counts: ClassCounts, class_weight: ClassWeight
) -> tuple[Floats, Floats]:
    """Prior of the posterior that is judged, (L,), and the weight of a left-out sample
    of each class in sums, at most 1.

    The weights make up for the classes of which only some samples are left out. Where
    classes are equally frequent, each class has the same weight in all.
    """
    sizes = counts.n_per_class
    shares = shares_chosen(sizes)
    prior = counted_prior(counts, class_weight)
    if prior is None:
        prior = np.zeros(counts.n_classes)
        weights = 1 / np.maximum(sizes * shares, 1.0)
    else:
        weights = weighted(1 / shares, class_weight)
    weights = np.where(sizes > 0, weights, 0.0)
    return prior, weights / max(weights.max(), np.finfo(float).tiny)
