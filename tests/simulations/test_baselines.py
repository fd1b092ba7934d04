"""The methods that FlyNN is compared with, against plain slow versions of the same."""

from __future__ import annotations

import json
import warnings
from collections import Counter

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from simulations import baselines
from simulations.data import DataSet


def plain_neighbours(train, point, k, own=-1):
    distances = [
        (sum((a - b) ** 2 for a, b in zip(row, point, strict=True)), i)
        for i, row in enumerate(train)
    ]
    return [i for _, i in sorted(distances) if i != own][:k]


def as_is(X, train):
    return X


def test_neighbours_are_the_nearest_and_of_equals_the_first():
    # A coarse grid, with many ties and duplicates: of all neighbours, equally far ones
    # come in their own order.
    generator = np.random.default_rng(0)
    train = generator.integers(0, 3, (60, 4)).astype(float)
    points = generator.integers(0, 3, (20, 4)).astype(float)
    of_points = baselines.neighbour_labels(train, np.arange(60), points, 60)
    for row, point in zip(of_points.tolist(), points, strict=True):
        assert row == plain_neighbours(train, point, 60)
    of_samples = baselines.neighbour_labels(train, np.arange(60), None, 59)
    for i, row in enumerate(of_samples.tolist()):
        assert row == plain_neighbours(train, train[i], 59, own=i)
    alike = baselines.neighbour_labels(
        np.zeros((4, 2)), np.arange(4), np.zeros((1, 2)), 4
    )
    assert sorted(alike[0]) == [0, 1, 2, 3]


def test_samples_are_scaled_by_columns_or_rows():
    X = np.array([[1.0, 5.0], [3.0, 5.0], [100.0, 7.0]])
    np.testing.assert_allclose(
        baselines.standardised(X, np.array([0, 1])), [[-1, 0], [1, 0], [98, 2]]
    )
    np.testing.assert_allclose(
        baselines.unit_rows(np.array([[3, 4], [0, 0]])), [[0.6, 0.8], [0, 0]]
    )


def test_figures_weigh_the_classes_that_occur_alike():
    generator = np.random.default_rng(0)
    y = np.arange(60) ** 2 % 3
    p = generator.dirichlet(np.ones(4), 60)
    shown = baselines.figures(p, y)
    first, second = (p[y == label] for label in (0, 1))
    losses = -np.log(first[:, 0]).mean() - np.log(second[:, 1]).mean()
    assert shown["log-loss"] == pytest.approx(losses / 2)
    recalls = (first.argmax(axis=1) == 0).mean() + (second.argmax(axis=1) == 1).mean()
    assert shown["balanced accuracy"] == pytest.approx(recalls / 2)
    y = np.arange(60) % 4
    theirs = roc_auc_score(y, p, multi_class="ovr")
    assert baselines.figures(p, y)["AUROC"] == pytest.approx(theirs)


def test_samples_of_no_fold_are_never_held_out():
    fold = np.array([-1, 0, -1, 0])
    data = DataSet("made", np.zeros((4, 1)), np.arange(4) % 2, fold)
    ((train, test),) = data.splits
    assert train.tolist() == [0, 2]
    assert test.tolist() == [1, 3]


def test_numbers_of_neighbours_are_below_the_size_of_the_training_fold():
    y = np.arange(6) % 2
    few = baselines.knn_rows(
        DataSet("made", np.arange(6.0)[:, None], y, np.arange(6) // 2),
        "as is",
        as_is,
        64,
    )
    assert {*json.loads(few["nested"]["detail"])["k"]} <= {1, 2, 3}


def test_votes_for_every_k_at_once():
    labels = np.random.default_rng(4).integers(0, 4, (40, 12))
    predicted = baselines.knn_predictions(labels, 4)
    for row, mine in zip(labels.tolist(), predicted.tolist(), strict=True):
        for k in range(1, 13):
            votes = Counter(row[:k])
            assert mine[k - 1] == min(
                label for label, n in votes.items() if n == max(votes.values())
            )


def test_balanced_accuracy_is_scikit_learns():
    generator = np.random.default_rng(6)
    y = generator.integers(0, 3, 50)
    predicted = generator.integers(0, 5, (50, 4))
    with warnings.catch_warnings():
        # Some classes that were predicted do not occur.
        warnings.simplefilter("ignore", UserWarning)
        expected = [balanced_accuracy_score(y, column) for column in predicted.T]
    np.testing.assert_allclose(baselines.balanced_accuracy(y, predicted, 6), expected)
    np.testing.assert_allclose(
        baselines.balanced_accuracy(y, predicted[:, 0], 6), expected[0]
    )


def plain_sbfc(X, y, fold, planes, size):
    """Sets of candidate classes: those whose filter lacks the fewest of a point's bits."""
    bits = X @ planes[:, :size] > 0
    result = []
    for i in range(len(X)):
        missing = []
        for label in range(y.max() + 1):
            members = bits[(fold != fold[i]) & (y == label)]
            if len(members):
                seen = members.any(axis=0)
            else:
                seen = np.zeros(size, bool)
            missing.append(int((bits[i] & ~seen).sum()))
        result.append(
            {label for label, count in enumerate(missing) if count == min(missing)}
        )
    return result


def test_sbfc_is_its_definition():
    generator = np.random.default_rng(8)
    y = np.arange(60) % 3
    X = generator.normal(size=(60, 8)) + 3 * generator.normal(size=(3, 8))[y]
    fold = np.arange(60) // 20
    planes = generator.normal(size=(8, 1100))
    sizes = [1, 7, 40, 1100]
    predicted = baselines.sbfc_predictions(DataSet("made", X, y, fold), planes, sizes)
    for column, size in enumerate(sizes):
        classes = predicted[:, column].tolist()
        candidates = plain_sbfc(X, y, fold, planes, size)
        for label, some in zip(classes, candidates, strict=True):
            assert label in some
        if size == 1:
            # Ties, of which one bit makes many, are broken at random.
            of_ties = [
                label
                for label, some in zip(classes, candidates, strict=True)
                if len(some) == 3
            ]
            assert set(of_ties) == {0, 1, 2}


def test_sbfc_sizes_go_down_and_up_from_d():
    sizes = baselines.sbfc_sizes(50, 20, 2**14)
    assert sizes == sorted(set(sizes) | {50})
    assert 15 <= len(sizes) <= 20
    assert sizes[0] == 2
    assert sizes[-1] == 2**14
    assert baselines.sbfc_sizes(2, 20, 2**14)[-1] == 4096
    assert baselines.sbfc_sizes(784, 3, 512) == [39, 784]  # no room above


@pytest.mark.parametrize(("kind", "grid"), baselines.GRIDS.items())
def test_one_epoch_warns_of_nothing_and_learns_something(kind, grid):
    generator = np.random.default_rng(9)
    y = np.arange(300) % 2
    X = generator.normal(size=(300, 3)) + 2 * y[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predicted = baselines.once_trained(kind, grid[1], X, y, seed=0).predict(X)
    assert (predicted == y).mean() > 0.9
