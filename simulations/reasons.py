"""Contributions of columns beside known log odds, and by the columns that they name.

"quantiles" are `FlyNNClassifier.contributions`, with their time. "gaps" has a gap in the
place of a value. "Shapley" are Shapley values of the model, sampled by six orders of the
columns and six values of each.

Known log odds: the rank correlation of the contributions to a sample with the Shapley
values of its log odds, columns drawn each by its own distribution, in the mean of 200
samples; 4000 others are trained on. Columns are normal, exponential, uniform and binary.
"additive" is a sum of x, |x| and tanh(3 x), "interactions" of x and of products of pairs,
and "correlated" of normal columns, five of which at a time have correlation 0.7.

Deleted columns: the log-likelihood that 200 held-out samples lose when the columns of
the largest contributions to each, from one to five, have the values of another sample,
in the mean of eight others. "TreeSHAP" are those of boosting, "permutation" is
permutation importance, the same for all samples. All columns are deleted of one model.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from flwr_flynn import FlyNNClassifier
from flwr_flynn.model import reasons
from simulations.data import DataSet, data_sets, files
from simulations.results import Array, Row, mean_by, with_headings
from simulations.study import MODEL, Piece, Study, code_digest

_CODE = code_digest(*MODEL, "simulations.reasons", "simulations.data")
KNOWN = {"additive": (20, 2.0), "interactions": (10, 1.0), "correlated": (20, 1.5)}
SETS = (
    "ailerons bank32nh cpu_act kc1 pc3 qsar_biodeg segment spambase sylvine "
    "thyroid_ann digits"
)
N_ORDERS = 6


def known(kind: str, n: int, generator: Any) -> tuple[Array, Array]:
    """Samples, and what each column adds to their log odds, (n, d) both."""
    d, scale = KNOWN[kind]
    X = generator.normal(size=(n, d))
    if kind == "correlated":
        shared = generator.normal(size=(n, d // 5)).repeat(5, axis=1)
        X = 0.7**0.5 * shared + 0.3**0.5 * X
    else:
        X[:, 1::4] = generator.exponential(size=X[:, 1::4].shape) - 1
        X[:, 2::4] = generator.uniform(-(3**0.5), 3**0.5, X[:, 2::4].shape)
        X[:, 3::4] = np.sign(X[:, 3::4])
    values = X
    if kind == "additive":
        values = np.choose(np.arange(d) % 3, [X, np.abs(X), np.tanh(3 * X)])
    weights = generator.choice([-scale, scale], d) * np.linspace(0.1, 1, d)
    added = generator.permutation(weights) * (values - values.mean(axis=0))
    if kind == "interactions":
        # Of a product of two columns of mean 0 each has a half.
        added += 0.75 * X * X[:, ::-1]
    return X, added


def shapley(model: FlyNNClassifier, X: Array) -> Array:
    """Sampled Shapley values."""
    generator = np.random.default_rng(0)
    codes = model.model_.scores(X).argmax(axis=1)
    edges = generator.permuted(reasons.edges_of(model.model_), axis=1)
    added = np.zeros(X.shape)
    for values in edges.T[:N_ORDERS]:
        samples = np.tile(values, (len(X), 1))
        for j in generator.permutation(X.shape[1]):
            added[:, j] -= reasons.log_odds_of(model.model_, samples, codes, None)
            samples[:, j] = X[:, j]
            added[:, j] += reasons.log_odds_of(model.model_, samples, codes, None)
    return added / N_ORDERS


def tree_shap(X: Array, y: Array, asked: Array, codes: Array) -> Any:
    """TreeSHAP of boosting for these classes of samples."""
    import xgboost

    settings = {"objective": "multi:softprob", "num_class": y.max() + 1, "eta": 0.1}
    booster = xgboost.train(settings, xgboost.DMatrix(X, y), 100)
    added = booster.predict(xgboost.DMatrix(asked), pred_contribs=True)[..., :-1]
    return added[range(len(codes)), codes] - added.mean(axis=1)


def all_ways(model: FlyNNClassifier, X: Array) -> tuple[Row, dict[str, Array]]:
    """Facts of a row, and contributions by each way."""
    start = time.perf_counter()
    added = {"quantiles": model.contributions(X)}
    ms = 1000 * (time.perf_counter() - start) / len(X)
    gaps = np.full((X.shape[1], 1), np.nan)
    with mock.patch.object(reasons, "edges_of", return_value=gaps):
        added["gaps"] = model.contributions(X)
    added["Shapley"] = shapley(model, X)
    return {"columns": X.shape[1], "ms a sample": ms}, added


def correlations(kind: str, n: int, seed: int) -> Row:
    """Rank correlation with known log odds."""
    from scipy.stats import spearmanr

    generator = np.random.default_rng(seed)
    X, truth = known(kind, n, generator)
    y = truth.sum(axis=1) + generator.logistic(size=n) > 0
    model = FlyNNClassifier().fit(X[200:], y[200:])
    row, every = all_ways(model, X[:200])
    sides = np.where(model.predict(X[:200]), 1, -1)
    for way, added in every.items():
        triples = zip(added, truth, sides, strict=False)
        row[way] = np.mean([side * spearmanr(a, b)[0] for a, b, side in triples])
    return {"log odds": kind} | row


def deleted(data: DataSet) -> Row:
    """Log-likelihood that is lost."""
    from scipy.stats import rankdata
    from sklearn.inspection import permutation_importance
    from sklearn.metrics import log_loss

    X = data.X.astype(np.float64)
    train, test = next(data.splits)
    model = FlyNNClassifier().fit(X[train], data.y[train])
    y = data.y[test]
    asked = X[test[:200]]
    row, every = all_ways(model, asked)
    codes = model.predict(asked)
    every["TreeSHAP"] = tree_shap(X[train], data.y[train], asked, codes)
    importance = permutation_importance(
        model, X[test], y, scoring="neg_log_loss", random_state=0
    )
    every["permutation"] = 0 * asked + importance["importances_mean"]
    every["chance"] = np.random.default_rng(0).normal(size=asked.shape)

    def loss(samples: Array) -> float:
        p = model.predict_proba(samples)
        return float(log_loss(y[:200], p, labels=model.classes_))

    for way, added in every.items():
        ranks = rankdata(-np.abs(added), "ordinal", axis=1)
        losses = [
            loss(np.where(ranks <= n_named, np.roll(asked, shift, axis=0), asked))
            for n_named, shift in product(range(1, 6), range(10, 90, 10))
        ]
        row[way] = np.mean(losses) - loss(asked)
    return {"set": data.name} | row


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study("reasons", "Contributions of columns", __doc__, arguments)
    n = study.sized(4200, 600)
    there = files(study.chosen.data)
    sets = [name for name in SETS.split() if name in there]
    pieces = [
        Piece(f"{kind}, {seed}", (n, _CODE), partial(correlations, kind, n, seed))
        for kind, seed in product(KNOWN, range(study.sized(3, 1)))
    ]
    made = study.cells.run(pieces)
    pieces = [
        Piece(data.name, (data.digest, _CODE), partial(deleted, data))
        for data in data_sets(there, sets, folds=5, most=study.sized(2500, 600))
    ]
    rows = study.cells.run(pieces)
    study.write("known", made)
    study.write("deleted", rows)
    losses = pd.DataFrame(rows).iloc[:, 3:]
    better = losses.gt(losses["permutation"], axis=0).sum()
    rows.append({"set": f"better than permutation, of {len(losses)}"} | dict(better))
    means = mean_by(made, ["log odds"]).reset_index().to_dict("records")
    tables = {"## Known log odds": means, "## Deleted columns": rows}
    study.finish([*with_headings(tables), "## The methods", study.about])
