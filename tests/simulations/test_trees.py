"""`python -m simulations trees`: Flower's boosted trees, and a federated forest."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from simulations import boosted as federated
from simulations import splits, trees
from simulations import trees_page as page
from simulations.results import behind
from simulations.trees import Recipe
from simulations.trees_page import BAGGING, CYCLIC, ONE_CLASS
from tests.simulations.tables import read, run_again, run_once, shown

pytest.importorskip("flwr_datasets")
xgboost = pytest.importorskip("xgboost")

TINY = trees.Plan((0,), 200, (0.3,), (2,), ("own",), (2, 3), (1,))


def parts_of(n_classes, split="Dirichlet 0.3"):
    data = splits.read("digits", 400)
    rows = data.y < n_classes
    few = splits.Dataset(data.X[rows], data.y[rows], list(range(n_classes)), "few")
    return trees.dealt(few, split, 0)


@pytest.mark.parametrize("method", [BAGGING, CYCLIC])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_trees_without_messages_are_those_of_flowers_strategy(method, n_classes):
    parts = parts_of(n_classes)
    recipe = Recipe(0.3, 3, "own", 7)
    after = trees.boosted(parts, method, recipe)
    assert len(after) == 7
    margins, _ = trees.by_flower(parts, method, recipe)
    np.testing.assert_allclose(after[-1], margins, rtol=1e-4, atol=1e-5)
    assert np.abs(after[-1] - after[-2]).max() > 0.01
    assert parts.scores(trees.classes_of(margins))["balanced"] > 0.5


def test_the_model_of_the_strategy_has_the_trees_of_all_parties_by_class():
    parts = parts_of(3, "IID")
    recipe = Recipe(0.3, 2, "own", 1)
    sites = federated.Sites(parts, BAGGING, recipe)
    replies = [json.loads(sites.trained(node, b"")) for node in sites.get_node_ids()]
    expected = [
        tree
        for reply in replies
        for tree in reply["learner"]["gradient_booster"]["model"]["trees"]
    ]
    margins, driven = trees.by_flower(parts, BAGGING, recipe)
    assert len(expected) == 5 * 3
    assert driven.up == sum(len(json.dumps(reply)) for reply in replies)
    # The sum of the replies goes to five parties, with one head.
    assert driven.up < driven.down / 5 + 5 * 2000
    cyclic = trees.by_flower(parts, CYCLIC, recipe)[1]
    assert cyclic.down == 5 * cyclic.up  # what is sent comes back
    # The margins are the sums of the parties' own models, class by class.
    X = parts.pooled.X_test.astype(np.float32)
    own = [
        xgboost.train(sites.settings, known, 1).inplace_predict(
            X, predict_type="margin"
        )
        for known in sites.known
    ]
    np.testing.assert_allclose(margins, np.sum(own, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_classes", [2, 3, 7, 10])
def test_no_two_parties_share_a_class_where_there_are_enough(n_classes):
    parts = parts_of(n_classes, ONE_CLASS)
    even = parts_of(n_classes, "IID")
    table = parts.class_table
    assert (table > 0).sum(axis=1).max() == -(-n_classes // 5)
    assert len(parts.shares) == 5
    if n_classes >= 5:
        assert (table > 0).sum(axis=0).max() == 1
    # The samples, held out or not, are those of another split.
    for name in ("X", "X_test"):
        rows = sorted(row.tobytes() for row in getattr(parts.pooled, name))
        assert rows == sorted(row.tobytes() for row in getattr(even.pooled, name))


def test_a_party_has_no_votes_for_classes_that_it_lacks():
    share = splits.Samples(
        np.zeros((4, 1)), np.array([0, 0, 0, 2]), np.zeros((0, 1)), np.zeros(0, int)
    )
    table = np.array([[3, 0, 1], [1, 0, 5]])
    own = trees.sample_weights(share, table, "own")
    pooled = trees.sample_weights(share, table, "pooled")
    np.testing.assert_allclose(own, [2 / 3] * 3 + [2])
    np.testing.assert_allclose(pooled, [10 / 8] * 3 + [10 / 12])
    parts = parts_of(7, ONE_CLASS)
    made = trees.forests(parts, "own", 1, seed=0)
    assert sum(len(forest.estimators_) for forest in made) == 200
    sizes = parts.class_table.sum(axis=1)
    by_trees = trees.votes(parts, made, by_samples=False)
    by_samples = trees.votes(parts, made, by_samples=True)
    np.testing.assert_allclose(by_trees.sum(axis=1), 5)
    np.testing.assert_allclose(by_samples.sum(axis=1), sizes.sum())
    np.testing.assert_allclose(by_trees[:, 2], 1)  # the third party has class 2 alone
    np.testing.assert_allclose(by_samples[:, 2], sizes[2])


def test_the_default_floor_alone_tells_the_parties_model_from_the_pooled_one():
    row = trees.pooled_flynn(parts_of(3, ONE_CLASS))
    assert row["same"]
    assert len(row["sha256"]) == 64
    assert row["up"] > 0 < row["down"]


def known_rows():
    """Two sets: FlyNN is ahead by 0.1 in the first, behind by 0.2 in the second."""
    rows = []
    for (name, mine), seed in product((("a", 0.9), ("b", 0.6)), (0, 1)):
        about = {"set": name, "n": 10, "d": 2, "classes": 2, "up": 600, "down": 400}
        about["seed"] = seed
        scores = dict.fromkeys(page.EFFORTS, mine) | dict.fromkeys(page.TREES, 0.5)
        scores[BAGGING] = 0.8
        for split, (method, score) in product(page.SPLITS, scores.items()):
            cell = {"split": split, "method": method, "balanced": score + 0.01 * seed}
            rows.append(about | cell)
        for method in (page.FLOOR_1, *page.POOLED):
            cell = {"split": page.EVERYWHERE, "method": method, "balanced": 0.7}
            rows.append(about | cell | {"same": True})
    return rows


def test_tables_of_known_rows():
    other = {
        "set": "c",
        "n": 10,
        "d": 2,
        "classes": 2,
        "split": "IID",
        "seed": 0,
        "method": BAGGING,
    }
    # Of the set c cells are missing.
    frame = page.complete(
        [*known_rows(), other | {"up": 1, "down": 1, "balanced": 1.0}]
    )
    lines = {line["method"]: line for line in page.means(frame)}
    assert list(lines) == list(page.METHODS)
    assert lines["FlyNN"]["IID"] == pytest.approx(0.755)
    assert lines["FlyNN"]["kB, median"] == "1"
    assert lines["pooled forest"][ONE_CLASS] == pytest.approx(0.7)
    assert lines["pooled forest"]["kB, median"] == "all samples"
    won = {line["against"]: line["IID"] for line in page.wins(frame)}
    assert won[BAGGING] == "1/0/1"
    assert won[CYCLIC] == "2/0/0"
    assert won["pooled forest"] == "1/0/1"
    lost = behind(frame["balanced"].unstack("method"), "FlyNN", page.TREES)
    assert len(lost) == 4
    for line in lost:
        assert (line["set"], line["by"]) == ("b", BAGGING)
        assert line["gap"] == pytest.approx(0.2)
    assert "costs it -0.055 on average, and 0.095 at most (b, IID)" in page.headline(
        frame
    )
    assert "Seeds of the split: 2 for each set;" in "".join(
        page.summary(known_rows(), frame, "Their methods.", "")
    )


finished = run_once("trees", smaller=[(trees, "QUICK", TINY)])


def test_every_cell_is_there_once_and_is_not_run_again(finished):
    rows = read(finished / "trees.csv")
    cells = [(row["split"], row["method"]) for row in rows]
    assert len(set(cells)) == len(cells) == 4 * 6 + 3
    assert {row["rounds"] for row in rows if row["method"] == "federated forest"} == {
        "1"
    }
    text = shown(finished, "trees")
    assert all(f"## {split}" in text for split in page.SPLITS)
    parts = ("defaults", "by_flower", "boosted", "forests", "centralised")
    for more in ([], ["--finished"]):
        run_again(
            ["trees", "--quick", *more], finished, *((trees, name) for name in parts)
        )
