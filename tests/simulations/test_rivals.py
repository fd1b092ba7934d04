"""`python -m simulations rivals`: bytes and exchanges of the models, and the page."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from simulations import __main__ as command
from simulations import large, rivals
from tests.simulations.tables import read, shown

X, Y = load_iris(return_X_y=True)


def asked(left: list[int], right: list[int], node: int = 0) -> int:
    """Histograms below a node that is split: one if any child is split, else none."""
    below = [child for child in (left[node], right[node]) if left[child] >= 0]
    return bool(below) + sum(asked(left, right, child) for child in below)


def test_a_tree_asks_for_the_root_and_one_child_of_each_split():
    tree = DecisionTreeClassifier(random_state=0).fit(X, Y).tree_
    n_histograms = 1 + asked(tree.children_left.tolist(), tree.children_right.tolist())
    exchanges, size = rivals._spent([[tree]], 1000)
    assert exchanges == 1 + tree.max_depth
    assert size == 1000 * (1 + n_histograms) + rivals.NODE * tree.node_count
    together, _ = rivals._spent([[tree, tree]], 1000)
    one_by_one, _ = rivals._spent([[tree], [tree]], 1000)
    assert (together, one_by_one) == (exchanges, 2 * exchanges - 1)
    leaf = DecisionTreeClassifier().fit(X[:3], Y[:3]).tree_
    assert rivals._spent([[leaf]], 1000) == (1, 1000 + rivals.NODE)


def test_boosted_trees_are_counted_like_others():
    made = HistGradientBoostingClassifier(
        max_iter=3, max_bins=rivals.BINS, random_state=0
    ).fit(X, Y)
    for tree in chain.from_iterable(made._predictors):
        nodes = rivals._Nodes(tree.nodes)
        assert (nodes.children_left >= 0).sum() == tree.get_n_leaf_nodes() - 1
        assert nodes.max_depth == tree.get_max_depth()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_strengths_and_folds_of_a_regression_share_exchanges(n_classes):
    chosen = n_classes > Y
    known = X[chosen]
    labels = Y[chosen]
    search, spent = rivals.logistic(X.shape[1], n_classes)
    search.fit(known, labels)

    def n_gradients(strength, rows):
        scaled = StandardScaler().fit_transform(known[rows])
        model = LogisticRegression(C=strength, class_weight="balanced", max_iter=1000)
        return 1 + model.fit(scaled, labels[rows]).n_iter_[0]

    halves = [rows for rows, _ in StratifiedKFold(2).split(known, labels)]
    strengths = [10.0**k for k in range(-4, 3)]
    tried = [n_gradients(C, rows) for C in strengths for rows in halves]
    best = search.best_params_["logisticregression__C"]
    last = n_gradients(best, np.arange(len(known)))
    exchanges, size = spent(search)
    assert exchanges == 1 + max(tried) + 1 + last
    n_weights = 5 * {2: 1, 3: 3}[n_classes]
    moments = 2 * 2 * (n_classes + 2 * 4)
    choice = 7 * 2 * (n_classes + rivals.N_TEMPERATURES)
    descent = (sum(tried) + last) * (2 * n_weights + 1)
    assert size == 8 * (moments + descent + choice)


# the pipeline weighs the classes itself
@pytest.mark.filterwarnings("ignore:Since .* does not appear to accept sample_weight")
def test_a_temperature_is_the_best_of_the_folds_and_changes_no_class():
    search, _ = rivals.linear("ridge", X.shape[1], 3)
    model = search.fit(X, Y).best_estimator_
    scaled = rivals.calibrated(model, X, Y)
    assert_array_equal(scaled.predict(X), search.predict(X))
    scores = cross_val_predict(model, X, Y, cv=2, method="decision_function")
    losses = {b: log_loss(Y, softmax(b * scores, axis=1)) for b in 1.1 ** np.r_[-60:60]}
    best = min(losses, key=losses.__getitem__)
    p = softmax(best * model.decision_function(X), axis=1)
    assert_allclose(scaled.predict_proba(X), p, atol=0.02)


@pytest.mark.slow
def test_the_page_has_every_method(tmp_path, capsys):
    given = [
        "rivals",
        "--quick",
        "--max-examples",
        "150",
        "--sets",
        "wine",
        "--output",
        str(tmp_path),
    ]
    assert command.main(given) == 0
    rows = read(tmp_path / "rivals.csv")
    assert {row["method"] for row in rows} == {*rivals.METHODS}
    assert all(float(row["kB"]) > 0 and float(row["exchanges"]) >= 1 for row in rows)
    assert all(
        f"| {method} |" in shown(tmp_path, "rivals") for method in rivals.METHODS
    )
    means = pd.DataFrame(rows)[[*rivals.FIGURES]].astype(float).mean()
    assert means["balanced accuracy"] > 0.8
    assert means["AUROC"] > 0.9
    assert means["log-loss"] < 0.5


@pytest.mark.slow
def test_sets_of_fewer_samples_are_left_out_of_the_larger_size(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "METHODS", ("FlyNN", "LDA"))
    n = 700
    np.savez(tmp_path / "pol.npz", X=np.arange(n)[:, None] % 90, y=np.arange(n) % 2)
    given = ["large", "--quick", "--data", str(tmp_path), "--output", str(tmp_path)]
    assert command.main(given) == 0
    rows = pd.DataFrame(read(tmp_path / "large.csv")).astype({"n": int})
    made = {f"generated, {n_classes} classes" for n_classes in (2, 3, 4)}
    assert {*rows[rows["n"] == 500]["set"]} == {"pol"} | made
    assert {*rows[rows["n"] == 1000]["set"]} == made
