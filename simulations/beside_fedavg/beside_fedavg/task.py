"""A party's data, and the model that it trains by FedAvg: what was there before FlyNN."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context
from sklearn.datasets import load_digits


def load_data(context: Context) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A node's share of Digits: X, y, X_test, y_test. Every fifth sample of it is held out."""
    X, y = load_digits(return_X_y=True)
    mine = slice(int(context.node_config["partition-id"]), None, int(context.node_config["num-partitions"]))
    X, y = X[mine], y[mine]
    test = np.arange(len(y)) % 5 == 0
    return X[~test], y[~test], X[test], y[test]


def initial_weights() -> list[np.ndarray]:
    """Softmax regression: weights (64, 10) and intercepts (10,)."""
    return [np.zeros((64, 10)), np.zeros(10)]


def trained(weights: list[np.ndarray], X: np.ndarray, y: np.ndarray, steps: int = 50) -> list[np.ndarray]:
    """Some steps of gradient descent."""
    W, b = (each.copy() for each in weights)
    Z = X / 16
    for _ in range(steps):
        scores = Z @ W + b
        probability = np.exp(scores - scores.max(axis=1, keepdims=True))
        probability /= probability.sum(axis=1, keepdims=True)
        error = (probability - np.eye(10)[y]) / len(y)
        W -= Z.T @ error
        b -= error.sum(axis=0)
    return [W, b]


def accuracy(weights: list[np.ndarray], X: np.ndarray, y: np.ndarray) -> float:
    """Share of samples that the linear model classifies right."""
    W, b = weights
    predicted: Any = (X / 16 @ W + b).argmax(axis=1)
    return float(np.mean(predicted == y))
