"""Federations of 8000 samples beside pooled boosting, with exchanges and bytes.

Samples of each set are dealt out to five parties by a Dirichlet distribution of their
classes (0.3), which changes no FlyNN model. Boosting, scikit-learn's histogram gradient
boosting by its defaults and with small steps and early stopping, sees all samples. All
have ``class_weight="balanced"``; the log-loss weighs held-out samples alike. Bytes are
those of one party.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from flwr_flynn.federated.samples import Samples
from flwr_flynn.model.candidates import HashPlan
from simulations.data import DataSet, data_sets, files, folded
from simulations.results import Array, Row, markdown_table
from simulations.splits import Parts, federated
from simulations.study import FEDERATED, Study, code_digest

_CODE = code_digest(*FEDERATED, "simulations.large", "simulations.data")
LARGE = ("ailerons", "bank32nh", "cpu_act", "fashion_mnist", "letters", "mnist", "pol")
N_PARTIES = 5
FIGURES = ("balanced accuracy", "log-loss", "AUROC", "exchanges", "kB up", "kB down")


def figures(p: Array, y: Array) -> Row:
    """Figures of probabilities, (n, L), for class indices, (n,)."""
    from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

    weights = 1 / np.bincount(y, minlength=p.shape[1])[y]
    auroc = np.nan
    if p.shape[1] == 2:
        auroc = roc_auc_score(y, p[:, 1])
    labels = range(p.shape[1])
    return {
        "balanced accuracy": balanced_accuracy_score(y, p.argmax(axis=1)),
        "log-loss": log_loss(y, p, labels=labels, sample_weight=weights),
        "AUROC": auroc,
    }


def by_flynn(data: DataSet, effort: str) -> Row:
    """Figures of a federation, and what it cost a party."""
    train, test = next(data.splits)
    X = np.asarray(data.X, np.float64)
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.full(N_PARTIES, 0.3), size=data.n_classes)
    chances = np.cumsum(shares, axis=1)[data.y[train]]
    party = (generator.random((len(train), 1)) > chances[:, :-1]).sum(axis=1)
    rows = [train[party == number] for number in range(N_PARTIES)]
    parts = Parts(
        [Samples(X[own], data.y[own], X[test], data.y[test]) for own in rows],
        data.n_classes,
    )
    plan = HashPlan(X.shape[1], data.n_classes, len(train), "auto", effort=effort)
    row, done = federated(parts, plan, class_weight="balanced", min_examples=1)
    return figures(done.model.predict_proba(X[test]), data.y[test]) | {
        "exchanges": row["exchanges"],
        "kB up": row["up"] / 1000,
        "kB down": row["down"] / 1000,
    }


def by_boosting(data: DataSet, **settings: Any) -> Row:
    """Figures of a pooled model."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    train, test = next(data.splits)
    model = HistGradientBoostingClassifier(
        class_weight="balanced", random_state=0, **settings
    )
    model.fit(data.X[train], data.y[train])
    return figures(model.predict_proba(data.X[test]), data.y[test])


METHODS: dict[str, Callable[[DataSet], Row]] = {
    "FlyNN": partial(by_flynn, effort="default"),
    "FlyNN thorough": partial(by_flynn, effort="thorough"),
    "boosting": by_boosting,
    "boosting, early stopping": partial(
        by_boosting, learning_rate=0.05, max_iter=500, early_stopping=True
    ),
}


def generated(n_classes: int, n: int) -> DataSet:
    """A set of scikit-learn's generator with twenty columns, eight of them informative."""
    from sklearn.datasets import make_classification

    X, y = make_classification(
        n, 20, n_informative=8, n_classes=n_classes, random_state=n_classes
    )
    return folded(f"generated, {n_classes} classes", X, y, folds=5)


def measure(data: DataSet, method: str) -> list[Row]:
    """The row of a set and a method."""
    about = {"set": data.name, "classes": data.n_classes, "method": method}
    return [about | METHODS[method](data)]


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study("large", "Beside boosting at 8000 samples", __doc__, arguments)
    there = files(study.chosen.data)
    n = study.sized(10_000, 500)
    known = [name for name in LARGE if name in there]
    sets = [
        *data_sets(there, known, folds=5, most=n),
        *(generated(n_classes, n) for n_classes in (2, 3, 4)),
    ]
    rows: list[Row] = []
    for data, method in product(sets, METHODS):
        label = f"{data.name}: {method}"
        work = partial(measure, data, method)
        rows += study.cells.finish(label, (data.digest, _CODE), work)
    study.write("large", rows)
    frame = pd.DataFrame(rows)
    means = [
        {"method": method} | own[[*FIGURES]].mean().to_dict()
        for method, own in frame.groupby("method", sort=False)
    ]
    print(markdown_table(means))
    tables = [markdown_table(means), "## Each set", markdown_table(rows)]
    study.finish([*tables, "## The methods", study.about])
