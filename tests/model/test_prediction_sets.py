"""Prediction sets: levels, thresholds and coverage, against plain oracles."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.special import logit, softmax
from sklearn.datasets import make_classification
from sklearn.model_selection import StratifiedKFold

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import DataError
from flwr_flynn.model.calibration import Calibration, CalibrationSums
from flwr_flynn.model.prediction_sets import (
    LARGEST_COUNT,
    N_LEVELS,
    as_levels,
    checked_levels,
    level_table,
    levels_of,
    thresholds,
)
from tests.raising import raises

RNG = np.random.default_rng(3)
EDGES = np.arange(-6, 6.1, 1 / 8)


def table_of(levels):
    """Table of one class with samples at these levels."""
    return as_levels(np.bincount(levels, minlength=N_LEVELS))


# ---- levels


@pytest.mark.parametrize("n_classes", [2, 3, 12])
@pytest.mark.parametrize("sharpness", [0.3, 3.0, 30.0])
def test_levels_are_of_the_log_odds_against_the_rest(n_classes, sharpness):
    scores = sharpness * RNG.normal(size=(200, n_classes))
    with np.errstate(divide="ignore"):
        odds = logit(softmax(scores, axis=1))
    near = np.abs(odds[..., None] - EDGES).min(axis=2) < 1e-9
    expected = np.searchsorted(EDGES, odds, side="right")
    assert_array_equal(levels_of(scores)[~near], expected[~near])


def test_extreme_scores_have_the_levels_at_the_ends():
    scores = np.array([[0.0, -1e12], [-np.inf, 5.0], [900.0, -900.0]])
    expected = [[N_LEVELS - 1, 0], [0, N_LEVELS - 1], [N_LEVELS - 1, 0]]
    assert_array_equal(levels_of(scores), expected)
    assert_array_equal(levels_of(np.zeros((1, 2))), [[49, 49]])  # at an edge


def test_tables_of_samples_add_up_to_that_of_all():
    levels = RNG.integers(N_LEVELS, size=(50, 3))
    true = RNG.integers(3, size=50)
    whole = level_table(levels, true)
    parts = [
        level_table(levels[rows], true[rows]) for rows in (slice(20), slice(20, 50))
    ]
    assert_array_equal(sum(parts), whole)
    for label in range(3):
        own = levels[true == label, label]
        assert_array_equal(whole[label], np.bincount(own, minlength=N_LEVELS))


# ---- thresholds


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 8, 9, 10, 19, 100, 1001])
def test_the_threshold_is_the_rank_of_split_conformal_prediction(n, coverage):
    """Of a class alone the level of sample ceil((n + 1) coverage), the best first."""
    levels = np.sort(RNG.integers(N_LEVELS, size=n))[::-1]
    rank = ceil((n + 1) * coverage - 1e-9)
    expected = 0
    if rank <= n:
        expected = levels[rank - 1]
    assert thresholds(table_of(levels), (), coverage)[0] == expected


def test_a_class_of_few_samples_is_in_all_sets_and_a_site_leans_on_all_sites():
    table = np.zeros((2, N_LEVELS), np.int64)
    table[0, 80] = 1000
    table[1, 20] = 2
    few = thresholds(as_levels(table), (), 0.9)
    assert_array_equal(few, [80, 0])
    table[1, 20] = 9
    assert_array_equal(thresholds(as_levels(table), (), 0.9), [80, 20])
    table[1, 20] = 1000
    assert_array_equal(thresholds(as_levels(table), (), 0.9), [80, 20])
    own = np.zeros((2, N_LEVELS), np.int64)
    own[0, 30] = 1
    assert_array_equal(thresholds(as_levels(table), as_levels(own), 0.9), [80, 20])
    own[0, 30] = 300
    assert_array_equal(thresholds(as_levels(table), as_levels(own), 0.9), [30, 20])


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 1.5, "0.9", None, float("nan")])
def test_other_coverages_are_refused(coverage):
    with raises(DataError, field="coverage"):
        thresholds(table_of([5]), (), coverage)


@pytest.mark.parametrize(
    "table",
    [
        ((1,) * 97,) * 2,
        ((1,) * 98,),
        ((1.5,) * 98,) * 2,
        ((-1,) * 98,) * 2,
        ((2**30,) * 98,) * 2,
        ((1,) * 98, (1,)),
    ],
    ids=["narrow", "one class", "fractions", "negative", "large", "ragged"],
)
def test_other_tables_are_refused(table):
    with raises(DataError, field="levels"):
        checked_levels("levels", table, 2)
    with raises(DataError, field="levels"):
        Calibration(1.0, (0.0, 0.0), levels=table)


# ---- of a classifier


def rare(seed, n=1500, classes=2):
    weights = [0.9] if classes == 2 else [0.6, 0.3]
    return make_classification(
        n,
        12,
        n_informative=5,
        n_classes=classes,
        weights=weights,
        class_sep=0.8,
        random_state=seed,
    )


@pytest.mark.parametrize("effort", ["quick", "default", "thorough"])
@pytest.mark.parametrize("classes", [2, 3])
def test_each_class_is_covered(effort, classes):
    covered = {0.8: [], 0.9: []}
    for seed in range(3):
        X, y = rare(seed, 2400, classes)
        model = FlyNNClassifier(effort=effort).fit(X[:1200], y[:1200])
        for coverage, own in covered.items():
            is_in = model.predict_set(X[1200:], coverage)
            assert is_in.dtype == bool
            assert is_in.shape == (1200, classes)
            own.append([is_in[y[1200:] == c, c].mean() for c in range(classes)])
    for coverage, own in covered.items():
        mean = np.mean(own, axis=0)
        assert (coverage - 0.04 < mean).all()
        assert (mean < coverage + 0.07).all()


def test_sets_grow_with_the_coverage_and_do_not_know_the_prior():
    X, y = rare(0, 600, 3)
    model = FlyNNClassifier().fit(X, y)
    small, large = (model.predict_set(X, coverage) for coverage in (0.7, 0.95))
    assert (small <= large).all()
    assert small.sum() < large.sum()
    other = model.with_prior(frequencies=[1, 5, 50])
    assert_array_equal(other.predict_set(X, 0.7), small)


@pytest.mark.parametrize("effort", ["quick", "default"])
def test_the_table_is_that_of_models_without_each_sample(effort):
    """By its members alone: a linear part has the weights of the other fold."""
    X, y = rare(4, 90)
    model = FlyNNClassifier(effort=effort, linear=0).fit(X, y).model_
    calibration = model.calibration
    table = np.zeros((2, N_LEVELS), np.int64)
    for row in range(len(y)):
        rest = np.arange(len(y)) != row
        members = []
        for member in model.members:
            own = type(member.counts).from_data(member.hash, X[rest], y[rest], 2)
            members.append(replace(member, counts=own))
        without = replace(model, members=tuple(members))
        scores = without.shared_scores(X[[row]]) - calibration.intercepts
        table += level_table(levels_of(scores), y[[row]])
    assert_array_equal(calibration.levels, table)


def test_a_site_leans_on_its_own_samples_and_a_file_keeps_both_tables(tmp_path):
    X, y = rare(5, 600)
    model = FlyNNClassifier().fit(X, y)
    harder = as_levels(np.roll(np.array(model.model_.calibration.levels), -20, axis=1))
    own = FlyNNClassifier.from_model(model.model_.with_own_levels(harder))
    assert own.predict_set(X).sum() > model.predict_set(X).sum()
    assert own.model_.sha256() == model.model_.sha256()
    own.save(tmp_path / "model.npz")
    read = FlyNNClassifier.load(tmp_path / "model.npz")
    assert read.model_.calibration == own.model_.calibration
    assert_array_equal(read.predict_set(X), own.predict_set(X))


def test_a_table_without_samples_is_none():
    nothing = ((0,) * N_LEVELS,) * 2
    calibration = Calibration(1.0, (0.0, 0.0), levels=nothing, own_levels=nothing)
    assert (calibration.levels, calibration.own_levels) == ((), ())
    assert Calibration.of_integers(calibration.integers, 2) == calibration


def test_samples_at_a_level_are_bounded():
    # A party may claim as many as it likes, and no claim ends the run of all.
    X, y = rare(7, 300)
    counts = FlyNNClassifier().fit(X, y).model_.members[0].counts
    batch = (np.zeros((2, 2)), None, np.array([0, 1]))
    sums = CalibrationSums.of_scores([batch], counts)
    many = CalibrationSums(tuple(LARGEST_COUNT * 2 * table for table in sums.tables))
    assert np.max(many.calibration(counts).levels) == LARGEST_COUNT


def test_an_empty_class_is_in_no_set_and_changes_none():
    X, y = rare(6, 600)
    model = FlyNNClassifier().fit(X, y)
    # `classes` alone may name a class without samples.
    wide = FlyNNClassifier(linear=0).fit(X, y).model_
    members = []
    for member in wide.members:
        array = np.vstack([member.counts.array, np.zeros(member.spec.hash_dim, int)])
        members.append(replace(member, counts=replace(member.counts, array=array)))
    calibration = replace(
        wide.calibration,
        intercepts=(*wide.calibration.intercepts, 0.0),
        levels=(*wide.calibration.levels, (0,) * N_LEVELS),
    )
    prior = np.append(wide.prior, -1000.0)
    with_empty = replace(
        wide,
        members=tuple(members),
        classes=np.arange(3),
        prior=prior,
        calibration=calibration,
    )
    expected = FlyNNClassifier.from_model(wide).predict_set(X)
    got = FlyNNClassifier.from_model(with_empty).predict_set(X)
    assert_array_equal(got[:, :2], expected)
    assert not got[:, 2].any()
    assert model.predict_set(X).any()


def with_trees(X):
    """A model with trees, of an outcome for which they help."""
    y = ((X[:, 0] > 0.3) != (X[:, 1] > 0)).astype(int)
    model = FlyNNClassifier(effort="thorough").fit(X, y)
    assert model.model_.forest is not None
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda m, X, y: m.partial_fit(X[:5], y[:5]),
        lambda m, X, y: with_trees(X).partial_fit(X[:5], y[:5]),
        lambda m, X, y: m.forget(X[:5], y[:5]),
        lambda m, X, y: FlyNNClassifier.paper(hash_dim=64).fit(X, y),
        lambda m, X, y: FlyNNClassifier(decay=0.5).fit(X, y),
        lambda m, X, y: FlyNNClassifier().partial_fit(X, y, classes=[0, 1]),
    ],
)
@pytest.mark.filterwarnings("ignore:the model has no")
def test_without_a_table_there_are_no_sets(change):
    X, y = rare(7, 300)
    model = FlyNNClassifier().fit(X, y)
    model = change(model, X, y)
    with raises(DataError, field="coverage"):
        model.predict_set(X)


@pytest.mark.slow
def test_coverage_is_that_asked_for_of_sets_that_nobody_chose():
    """Mean over folds, of sets that no constant was chosen by."""
    from sklearn.datasets import load_breast_cancer, load_digits, load_wine

    for load in (load_breast_cancer, load_digits, load_wine):
        X, y = load(return_X_y=True)
        is_covered = []
        for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
            model = FlyNNClassifier().fit(X[train], y[train])
            is_in = model.predict_set(X[test])
            is_covered.append(is_in[np.arange(len(test)), y[test]].mean())
        assert 0.87 < np.mean(is_covered) <= 1.0
