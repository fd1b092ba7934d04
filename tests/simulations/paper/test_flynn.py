"""The paper's FlyNN with one pass of hashing predicts as a classifier of each fold."""

from __future__ import annotations

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier, HashSpec
from simulations.baselines import balanced_accuracy
from simulations.data import DataSet, binary, real
from simulations.methods import PAPER_PRESET
from simulations.paper.flynn import cross_validated


@pytest.mark.parametrize("whole", [False, True])
def test_one_pass_gives_what_a_classifier_for_each_fold_gives(whole):
    generator = np.random.default_rng(0)
    y = np.arange(90) % 3
    y[:80] %= 2  # class 2 is absent from some folds
    X = 3 * generator.normal(size=(3, 6))[y] + generator.normal(size=(90, 6))
    if whole:
        X = X.round().astype(np.int16)
    data = DataSet("made", X, y, np.arange(90) // 18)
    spec = HashSpec(6, 64, 2, 5, seed=3)
    decays = [0.0, 0.5]
    expected = np.empty((2, 5))
    for i, decay in enumerate(decays):
        for number, (train, test) in enumerate(data.splits):
            classifier = FlyNNClassifier(
                spec=spec, decay=decay, rule=PAPER_PRESET["rule"]
            ).fit(X[train], y[train])
            expected[i, number] = balanced_accuracy(
                y[test], classifier.predict(X[test]), 3
            )
    np.testing.assert_array_equal(cross_validated(data, spec, decays), expected)


@pytest.mark.parametrize(("d", "ones"), [(50, 20), (100, 10)])
def test_binary_points_have_as_many_ones_as_asked_for(d, ones):
    X, y = binary(60, d, ones, seed=1)
    assert X.shape == (60, d)
    assert X.sum(axis=1).tolist() == [ones] * 60
    assert sorted(set(y)) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(X, binary(60, d, ones, seed=1)[0])
    assert not np.array_equal(X, binary(60, d, ones, seed=2)[0])


def test_real_points_have_five_classes_of_about_the_same_size():
    X, y = real(200, 20, seed=0)
    assert X.shape == (200, 20)
    assert np.ptp(np.bincount(y)) < 10
