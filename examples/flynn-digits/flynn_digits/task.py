"""The data of a party."""

from __future__ import annotations

import numpy as np
from flwr.app import Context
from sklearn.datasets import load_digits

N_FEATURES = 64
CLASSES = list(range(10))


def load_data(
    context: Context,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A node's share of Digits: X, y, X_test, y_test. Every fifth sample of it is held
    out.
    """
    X, y = load_digits(return_X_y=True)
    mine = slice(
        int(context.node_config["partition-id"]),
        None,
        int(context.node_config["num-partitions"]),
    )
    X, y = X[mine], y[mine]
    test = np.arange(len(y)) % 5 == 0
    return X[~test], y[~test], X[test], y[test]
