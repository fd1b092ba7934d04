"""Agreement of FlyNN and kNN on data made for the paper's Theorem 2, and the bound of the theorem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.model.scoring import ScoringRule, class_scores
from simulations.results import Row

Array = npt.NDArray[Any]

K = 3  # neighbours, all of a test sample's own cluster
N_FEATURES = 50


@dataclass(frozen=True)
class Setting:
    """One point of a curve.

    Parameters
    ----------
    m, rho, s : int
    clusters : int
        Test samples; K times as many training samples.
    distance : float
        Largest distance of a test sample's own training samples from it, in L-infinity.
    """

    m: int
    rho: int
    clusters: int
    distance: float
    s: int = 5

    @property
    def bound(self) -> float:
        """Bound of Theorem 2, by the constants of its proof; 0 where it is negative."""
        other_class = K * self.clusters / 2
        failure = 4 * self.rho * other_class / self.m + math.exp(-self.rho / 150) + math.exp(-self.rho / 96)
        return max(0.0, 1 - failure)


def clusters(setting: Setting, generator: np.random.Generator) -> tuple[Array, Array, Array]:
    """Training samples, their classes, and test samples, one at the middle of each cluster."""
    middles = generator.random((setting.clusters, N_FEATURES))
    around = generator.uniform(-setting.distance, setting.distance, (setting.clusters, K, N_FEATURES))
    labels = generator.permutation(np.arange(setting.clusters) % 2)
    return (middles[:, None] + around).reshape(-1, N_FEATURES), np.repeat(labels, K), middles


def agreement(setting: Setting, draws: int, seed: int) -> Row:
    """Shares of test samples on which FlyNN and kNN agree, over several data sets, each with its own hash."""
    from scipy.spatial.distance import cdist

    agreed: dict[float, list[float]] = {0.0: [], 0.5: []}
    margins, reaches = [], []
    for draw in range(draws):
        X, y, tests = clusters(setting, np.random.default_rng([seed, draw]))
        hasher = FlyHash(HashSpec(N_FEATURES, setting.m, setting.s, setting.rho, seed=seed + draw))
        counts = ClassCounts.from_data(hasher, X, y, 2)
        active = hasher.active(tests)
        distances = cdist(tests, X, "chebyshev")
        nearest = np.argsort(distances, axis=1, kind="stable")[:, :K]
        knn = np.round(y[nearest].mean(axis=1)).astype(int)
        for gamma, shares in agreed.items():
            scores = class_scores(counts, active, ScoringRule("novelty", gamma))
            # Between classes that score alike FlyNN would take the first, and be right by chance: half each.
            own = scores[np.arange(len(tests)), knn] - scores[np.arange(len(tests)), 1 - knn]
            shares.append(float(((own > 0) + 0.5 * (own == 0)).mean()))
        margins.append(float(cdist(X[y == 0], X[y == 1], "chebyshev").min()))
        sums = np.sort(tests[0][hasher.rows].sum(axis=1))[::-1]
        half = sums[max(setting.rho // 2, 1) - 1] - sums[setting.rho - 1]
        reaches.append(float(half / 2 / setting.s))
    return {
        "agreement": float(np.mean(agreed[0.0])),
        "sd": float(np.std(agreed[0.0])),
        "agreement, gamma=0.5": float(np.mean(agreed[0.5])),
        "test points": draws * setting.clusters,
        "margin": float(np.mean(margins)),
        "Delta / s": float(np.mean(reaches)),
    }
