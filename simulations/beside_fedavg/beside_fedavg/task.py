"""Card payments of a bank, and the network that banks train on them by FedAvg: what was
there before FlyNN.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Context
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

COLUMNS = [
    "amount",
    "hour",
    "km from home",
    "hours since the last",
    "declined before",
    "days of the account",
]


def payments(bank: int, n: int = 5000) -> tuple[np.ndarray, np.ndarray]:
    """Payments at a bank, (n, 6), and which are fraud, (n,): some 2 %, of four kinds,
    one of which is more frequent.
    """
    rng = np.random.default_rng(bank)
    amount = rng.lognormal(3 + 0.4 * (bank % 4), 1.1, n)
    hour = rng.normal(14, 5, n) % 24
    away = rng.exponential(8, n) * np.where(rng.random(n) < 0.05, 40, 1)
    since = rng.exponential(20, n)
    declined = rng.poisson(0.15, n)
    age = rng.gamma(2, 300, n)
    tested = (amount < 8) & (since < 3)
    stolen = (away > 100) & (amount > 60)
    taken_over = (np.abs(hour - 2) < 3) & (declined > 0)
    opened = (age < 120) & (amount > 150)
    risk = np.full(n, 0.004)
    for kind, suspects in enumerate((tested, stolen, taken_over, opened)):
        fraud = 0.25
        if kind == bank % 4:
            fraud = 0.55
        risk = np.maximum(risk, suspects * fraud)
    return np.stack([amount, hour, away, since, declined, age], axis=1), (
        rng.random(n) < risk
    ).astype(np.int64)


def load_data(
    context: Context,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A node's payments: X, y, X_test, y_test. Every fifth one is held out."""
    X, y = payments(int(context.node_config["partition-id"]))
    test = np.arange(len(y)) % 5 == 0
    return X[~test], y[~test], X[test], y[test]


def scaled(X: np.ndarray) -> np.ndarray:
    """Columns as a network likes them: of moderate size, without long tails."""
    return np.asarray(np.log1p(X) / 3 - 1)


def network(weights: list[np.ndarray] | None = None) -> MLPClassifier:
    """A network of one hidden layer, with these weights."""
    model = MLPClassifier((32,), learning_rate_init=0.01, batch_size=64, random_state=0)
    X, y = payments(0, 100)
    model.partial_fit(scaled(X), y, classes=[0, 1])
    if weights is not None:
        model.coefs_ = [layer.copy() for layer in weights[:2]]
        model.intercepts_ = [layer.copy() for layer in weights[2:]]
    return model


def weights_of(model: MLPClassifier) -> list[np.ndarray]:
    """The weights, and then the intercepts, of both layers."""
    return [*model.coefs_, *model.intercepts_]


def auroc(model: MLPClassifier, X: np.ndarray, y: np.ndarray) -> float:
    """Probability that a fraud is ranked above another payment."""
    return float(roc_auc_score(y, model.predict_proba(scaled(X))[:, 1]))
