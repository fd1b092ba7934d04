"""Class prior: logarithms of class frequencies, beside parts of a model that take all classes for equally frequent.

The posterior of a class is in proportion to its probability by these parts times its frequency. The prior of a model is
the frequency of the classes among the counted samples, which the counts tell: it is exact on any split, and nothing is
sent for it. If parties differ in nothing but how often classes occur, the frequencies of a party replace it in the
party's own copy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import LARGEST_LOG, Model
from flwr_flynn.model.portable import log
from flwr_flynn.model.scoring import Scores

Table = npt.NDArray[np.int64]

ClassWeight = str | Scores | None
"""Factors of the class frequencies, (L,); None for factors of 1, "balanced" for frequencies that are all equal."""


def counted_prior(counts: ClassCounts, class_weight: ClassWeight) -> Scores | None:
    """Log frequencies of the classes of counted samples, (L,); None with "balanced".

    Sizes of noisy counts that are below 0 are taken as 0, and each class has one sample more, by Laplace's rule of
    succession. Where sizes are not known, they are all equal.
    """
    if isinstance(class_weight, str):
        return None
    sizes = counts.n_per_class
    if counts.noise:
        sizes = np.ones(counts.n_classes) if sizes is None else np.maximum(sizes, 0.0) + 1.0
    weights = weighted(sizes, class_weight)
    total = math.fsum(weights.tolist())
    return logs(weights / total if total else np.full(len(weights), 1 / len(weights)))


def checked_weight(given: Any, rule: str, classes: npt.NDArray[Any]) -> ClassWeight:
    """The `class_weight` of an estimator as the functions here take it, for (L,) class labels."""
    if given is None or isinstance(given, str):
        return "balanced" if rule == "novelty" else given
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
    return sizes if class_weight is None else sizes * class_weight


def logs(values: Scores) -> Scores:
    """Logarithms of numbers from 0, the same on every machine; that of 0 is as low as a prior may be."""
    return np.array([log(each) if each > 0 else -LARGEST_LOG for each in values.tolist()])


def log_frequencies(n_per_class: npt.ArrayLike, everyone: npt.ArrayLike) -> Scores:
    """Logarithms of the frequencies of a party's classes, (L,), from its class sizes and those of the federation.

    The m-estimate of Cestnik (1990), of a strength of L samples: as if the party had L more samples, as frequent as in
    the federation, and the federation one more of each class.
    """
    own, all_sizes = np.asarray(n_per_class, np.float64), np.asarray(everyone, np.float64) + 1
    sizes = own + len(own) * all_sizes / all_sizes.sum()
    found: Scores = np.log(sizes / sizes.sum())
    return found


def own_prior(model: Model, y: Table) -> Scores:
    """Log frequencies, (L,), of the classes of a party's samples with class indices, (n,).

    Beside noisy counts those of the federation are taken for equal.
    """
    counts, n_classes = model.members[0].counts, len(model.classes)
    everyone = np.zeros(n_classes) if counts.noise else counts.n_per_class
    return log_frequencies(np.bincount(y, minlength=n_classes), everyone)
