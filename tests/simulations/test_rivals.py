"""`python -m simulations rivals`: bytes and exchanges of the models, and the page."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.tree import DecisionTreeClassifier

from simulations import __main__ as command
from simulations import rivals
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
    assert np.mean([float(row["balanced"]) for row in rows]) > 0.8
