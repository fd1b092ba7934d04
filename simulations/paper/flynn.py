"""The paper's FlyNN, cross-validated at the price of one pass of hashing.

Its hash knows nothing of the data, so that no fold needs one of its own: samples are
hashed once, and the counts of a training fold are those of all samples less those of
the fold held out. The predictions are those of a `FlyNNClassifier` trained on each
fold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.scoring import ScoringRule, class_scores
from simulations.baselines import balanced_accuracy
from simulations.data import DataSet
from simulations.results import Array


def cross_validated(
    data: DataSet,
    spec: HashSpec,
    decays: Sequence[float],
    score: Callable[[Array, Array, int], Any] = balanced_accuracy,
) -> npt.NDArray[np.float64]:
    """Scores of the paper's rule in each fold, for several decays.

    Parameters
    ----------
    data : DataSet
    spec : HashSpec
    decays : sequence of D float
    score : callable
        Called with true classes, predicted classes and L.

    Returns
    -------
    (D, folds) float64 array
    """
    y = data.y
    n_classes = data.n_classes
    hasher = FlyHash(spec)
    active = hasher.active(data.X)
    whole = ClassCounts.from_active(hasher, active, y, n_classes)
    scores: list[list[float]] = [[] for _ in decays]
    for _, test in data.splits:
        counts = whole - ClassCounts.from_active(
            hasher, active[test], y[test], n_classes
        )
        for mine, decay in zip(scores, decays, strict=True):
            predicted = class_scores(
                counts, active[test], ScoringRule("novelty", decay)
            ).argmax(axis=1)
            mine.append(float(score(y[test], predicted, n_classes)))
    return np.array(scores)
