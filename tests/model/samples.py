"""Samples of three classes, and a specification, for several tests of models."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import make_classification

from flwr_flynn import HashSpec

SPEC = HashSpec(n_features=5, hash_dim=200, row_nnz=2, hash_nnz=10, seed=3, signed=True)
X, CODES = make_classification(
    120,
    5,
    n_informative=4,
    n_redundant=0,
    n_classes=3,
    n_clusters_per_class=1,
    random_state=0,
)
X = X.round(2)
LABELS = np.array(["ant", "bee", "cicada"])
Y = LABELS[CODES]
