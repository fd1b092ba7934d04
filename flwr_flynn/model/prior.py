"""Class prior: frequencies of the classes among counted samples, and those of a party.

A party's own frequencies are smoothed towards those of all, see `log_frequencies`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, softmax

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import ConfigError
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.portable import log
from flwr_flynn.model.scoring import Scores

# Magnitude of the logarithm of a class frequency, at most: that of the least float64
# above 0 is 745.
_LARGEST_LOG = 1000

ClassWeight = str | Scores | None
"""Factors of the class frequencies, (L,); None for factors of 1, "balanced" for
frequencies that are all equal."""


def rarer(sizes: Integers | None) -> int:
    """Index of the rarer of two classes; the second where they are equal, or unknown."""
    if sizes is not None and sizes[0] < sizes[1]:
        return 0
    return 1


def counted_prior(counts: ClassCounts, class_weight: ClassWeight) -> Scores | None:
    """Log frequencies of the classes of counted samples, (L,); None with "balanced".

    Sizes of noisy counts that are below 0 are taken as 0, and each class has one sample
    more, by Laplace's rule of succession. Where sizes are not known, they are all
    equal.
    """
    if isinstance(class_weight, str):
        return None
    sizes = counts.n_per_class
    if counts.noise:
        if sizes is None:
            sizes = np.ones(counts.n_classes)
        else:
            sizes = np.maximum(sizes, 0.0) + 1.0
    weights = weighted(sizes, class_weight)
    total = math.fsum(weights.tolist())
    if total:
        shares = weights / total
    else:
        shares = np.full(len(weights), 1 / len(weights))
    # The prior of a class without samples is as low as a prior may be.
    prior = np.full(len(shares), -_LARGEST_LOG, np.float64)
    for label in np.flatnonzero(shares > 0).tolist():
        # This logarithm is the same on every machine.
        prior[label] = log(float(shares[label]))
    return prior


def checked_weight(
    given: Mapping[Any, float] | str | None, rule: str, classes: Array
) -> ClassWeight:
    """The `class_weight` of an estimator as the functions here take it, for (L,) class
    labels.
    """
    if given is None or isinstance(given, str):
        if rule == "novelty":
            return "balanced"
        return given
    from sklearn.utils.class_weight import compute_class_weight

    weights: Scores = compute_class_weight(given, classes=classes, y=classes)
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise ConfigError("class_weight", "finite numbers from 0, some above", given)
    return weights


def weighted(n_per_class: npt.ArrayLike, class_weight: ClassWeight) -> Scores:
    """Class sizes times their factors, (L,): 1 for each class with "balanced"."""
    sizes = np.asarray(n_per_class, np.float64)
    if isinstance(class_weight, str):
        return np.ones(len(sizes))
    if class_weight is None:
        return sizes
    return sizes * class_weight


def log_frequencies(n_per_class: npt.ArrayLike, everyone: npt.ArrayLike) -> Scores:
    """Logarithms of the frequencies of a party's classes, (L,), from its class sizes
    and those of the federation.

    The m-estimate of Cestnik (1990): as if the party had m more samples, as frequent as
    in the federation, and the federation one more of each class. It is averaged over m
    = 1/2, 1, 2, ..., 32768, each with the likelihood that it gives to the party's class
    sizes (the compound multinomial of Mosimann, 1962): a large m for a party that is
    like the others, or has so few samples that it may be, and a small one for a party
    that is not.
    """
    own = np.asarray(n_per_class, np.float64)
    shares = np.asarray(everyone, np.float64) + 1
    shares /= shares.sum()
    strengths = 2.0 ** np.arange(-1, 16)
    pseudo = strengths[:, None] * shares
    likelihood = (gammaln(pseudo + own) - gammaln(pseudo)).sum(axis=1)
    likelihood += gammaln(strengths) - gammaln(strengths + own.sum())
    smoothed = (own + pseudo) / (own.sum() + strengths)[:, None]
    return np.asarray(np.log(softmax(likelihood) @ smoothed))


def own_prior(counts: ClassCounts, y: Integers) -> Scores:
    """Log frequencies, (L,), of the classes of a party's samples with class indices,
    (n,), beside the counts of the federation.

    Beside noisy counts the frequencies of the federation are taken for equal.
    """
    everyone = np.zeros(counts.n_classes)
    if not counts.noise:
        everyone = counts.n_per_class
    return log_frequencies(np.bincount(y, minlength=counts.n_classes), everyone)
