"""Calibration: sums over samples, and what follows from them, against plain oracles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import root
from scipy.special import log_softmax, softmax
from sklearn.datasets import make_classification

from flwr_flynn import ClassCounts, FlyHash, FlyNNClassifier, HashSpec
from flwr_flynn.errors import DataError
from flwr_flynn.model import subsample
from flwr_flynn.model.calibration import (
    RELATIVE_TEMPERATURES,
    Calibration,
    CalibrationSums,
)
from flwr_flynn.model.scoring import LOSS_UNIT
from flwr_flynn.model.selection import UnseenScoring
from tests.raising import raises

HASH = HashSpec(12, 256, 3, 16, seed=2, signed=True)
HASHER = FlyHash(HashSpec(4, 64, 2, 8, seed=1))
RNG = np.random.default_rng(5)


def counts_of(sizes):
    """Counts of samples that are all alike, so many of each class."""
    X = np.ones((sum(sizes), 4))
    return ClassCounts.from_data(
        HASHER, X, np.repeat(range(len(sizes)), sizes), len(sizes)
    )


def scores_of(y, n_classes, sharpness=2.0):
    """Scores that know something of the class, and are too sharp or too flat."""
    noise = RNG.normal(size=(len(y), n_classes))
    is_own = y[:, None] == np.arange(n_classes)
    return sharpness * np.where(is_own, noise + 1.5, noise)


def labels(sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


SIZES = [(60, 40), (190, 10), (30, 50, 20), (5, 20, 75, 40), (9,) * 12]


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_are_those_of_posteriors(sizes, class_weight):
    y = labels(sizes)
    scores = scores_of(y, len(sizes))
    sums = CalibrationSums.of_scores(
        [(scores, None, y)], counts_of(sizes), class_weight
    )
    prior = np.log(np.array(sizes) / sum(sizes))
    weights = np.ones(len(sizes))
    if class_weight:
        prior = np.zeros(len(sizes))
        weights = min(sizes) / np.array(sizes)
    left_out, losses, probabilities, products, _ = sums.tables
    assert_array_equal(left_out, [sizes])
    own = weights[y][:, None]
    for t, temperature in enumerate(RELATIVE_TEMPERATURES):
        posterior = scores / temperature + prior
        logs = -log_softmax(posterior, axis=1)[np.arange(len(y)), y]
        shares = softmax(posterior, axis=1)
        bounds = {"atol": len(y) * LOSS_UNIT}
        assert_allclose(losses[t] * LOSS_UNIT, [(logs * own[:, 0]).sum()], **bounds)
        assert_allclose(
            probabilities[t] * LOSS_UNIT, (shares * own).sum(axis=0), **bounds
        )
        if len(sizes) <= 10:
            square = (shares * own).T @ shares
            upper = square[np.triu_indices(len(sizes), 1)]
            assert_allclose(products[t] * LOSS_UNIT, upper, **bounds)
    assert (products.shape[1] == 0) == (len(sizes) > 10)


def solved(scores, y, prior, weights):
    """Intercepts with which mean probabilities are frequencies, by SciPy."""
    n_classes = len(prior)
    target = np.bincount(y, weights[y], n_classes)

    def errors(rest):
        intercepts = np.append(rest, -rest.sum())
        shares = softmax(scores + prior + intercepts, axis=1) * weights[y][:, None]
        return (shares.sum(axis=0) - target)[:-1]

    rest = root(errors, np.zeros(n_classes - 1)).x
    return np.append(rest, -rest.sum())


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("sharpness", [0.7, 2.0])
@pytest.mark.parametrize("sizes", [(600, 400), (1900, 100), (300, 500, 200)], ids=str)
def test_mean_probabilities_are_frequencies_within_five_percent(
    sizes, sharpness, class_weight
):
    y = labels(sizes)
    scores = scores_of(y, len(sizes), sharpness)
    # As of a model whose probabilities of the last class are too low.
    scores[:, -1] -= 0.6
    counts = counts_of(sizes)
    sums = CalibrationSums.of_scores([(scores, None, y)], counts, class_weight)
    made = sums.calibration(counts, class_weight)
    best = np.argmin(sums.tables[1])
    assert made.temperature == RELATIVE_TEMPERATURES[best]
    prior = np.log(np.array(sizes) / sum(sizes))
    weights = np.ones(len(sizes))
    if class_weight:
        prior = np.zeros(len(sizes))
        weights = 1 / np.array(sizes)
    expected = solved(scores / made.temperature, y, prior, weights)
    assert_allclose(made.intercepts, expected, atol=0.06)
    shares = softmax(made.applied(scores) + prior, axis=1) * weights[y][:, None]
    assert_allclose(shares.sum(axis=0), np.bincount(y, weights[y]), rtol=0.05)


@pytest.mark.parametrize("n_empty", [1, 4])
def test_classes_without_samples_change_nothing(n_empty):
    X, y = rare(2, 400)
    known = FlyNNClassifier(HASH, class_weight="balanced").fit(X, y).model_
    counts = known.member.counts
    wide = np.zeros((2 + n_empty, counts.hash_dim), np.int64)
    wide[:2] = counts.array
    member = replace(known.member, counts=replace(counts, array=wide))
    more = replace(
        known, members=(member,), classes=np.arange(2 + n_empty), calibration=None
    )
    scores = UnseenScoring(more).scores(X, y)
    sums = CalibrationSums.of_scores(scores, member.counts, "balanced")
    made = sums.calibration(member.counts, "balanced")
    assert made.temperature == known.calibration.temperature
    assert made.intercepts[:2] == known.calibration.intercepts
    assert made.intercepts[2:] == (0.0,) * n_empty


def test_a_gain_that_may_be_chance_leaves_the_temperature():
    y = labels((6, 5))
    counts = counts_of((6, 5))
    sums = CalibrationSums.of_scores([(scores_of(y, 2), None, y)], counts)
    losses = sums.tables[1]
    losses[:] = 2**21
    losses[0] -= 2**19
    assert sums.calibration(counts).temperature == 1.0
    losses[0] -= 2**20
    assert sums.calibration(counts).temperature == 0.5


def test_integers_are_those_of_a_calibration():
    made = Calibration(0.85, (0.5, -1.25, 2.0**-20))
    assert Calibration.of_integers(made.integers, 3) == made
    levels = tuple(tuple(range(start, start + 98)) for start in (0, 5, 7))
    with_levels = replace(made, levels=levels)
    own = replace(with_levels, own_levels=levels)  # it stays at the site
    assert Calibration.of_integers(own.integers, 3) == with_levels


def test_there_is_none_without_samples_and_a_class_without_any_has_no_intercept():
    counts = counts_of((60, 0, 40))
    assert CalibrationSums.zeros(3).calibration(counts) is None
    y = labels((60, 0, 40))
    scores = scores_of(y, 3)
    scores[:, 1] = -np.inf
    made = CalibrationSums.of_scores([(scores, None, y)], counts).calibration(counts)
    assert made.intercepts[1] == 0.0
    assert np.isfinite(made.intercepts).all()
    alone = np.full((1, 3), -np.inf)
    alone[0, 1] = 0.0
    rare = CalibrationSums.of_scores(
        [(scores, None, y), (alone, None, np.array([0]))], counts
    )
    assert np.abs(rare.calibration(counts).intercepts).max() <= 4.0


@pytest.mark.parametrize(
    ("temperature", "intercepts", "field"),
    [
        (0.4, (0.0, 0.0), "calibration"),
        (2.5, (0.0, 0.0), "calibration"),
        ("1", (0.0, 0.0), "calibration"),
        (1.0, (0.0, 4.5), "intercepts"),
        (1.0, (0.0, float("nan")), "intercepts"),
        (1.0, ((0.0,), (0.0,)), "intercepts"),
        (1.0, 0.0, "intercepts"),
        (1.0, ("a", "b"), "intercepts"),
    ],
)
def test_other_values_are_refused(temperature, intercepts, field):
    with raises(DataError, field=field):
        Calibration(temperature, intercepts)


# ---- of a model


def rare(seed, n=1500):
    return make_classification(
        n, 12, n_informative=5, weights=[0.94], class_sep=0.8, random_state=seed
    )


def test_the_mean_probability_of_a_rare_outcome_is_its_frequency():
    observed = expected = 0.0
    for seed in range(3):
        X, y = rare(seed)
        model = FlyNNClassifier().fit(X[:1000], y[:1000])
        observed += y[1000:].sum()
        expected += model.predict_proba(X[1000:])[:, 1].sum()
    assert 0.8 < observed / expected < 1.25


def test_scores_are_divided_and_moved_and_other_models_stay_as_they_are():
    X, y = rare(1, 400)
    model = FlyNNClassifier().fit(X, y)
    made = model.model_.calibration
    unchanged = Calibration(1.0, (0.0, 0.0), made.share)
    plain = replace(model.model_, calibration=unchanged)
    expected = plain.shared_scores(X) / made.temperature + made.intercepts
    assert_allclose(model.model_.shared_scores(X), expected)
    assert_allclose(model.model_.scores(X), expected + model.model_.prior)
    for given in ({"decay": 0.5}, {"temperature": 1.0}):
        assert FlyNNClassifier(**given).fit(X, y).model_.calibration is None
    quick = FlyNNClassifier(effort="quick").fit(X, y).model_
    assert quick.calibration.without_levels == Calibration(1.0, (0.0, 0.0))
    without = replace(quick, calibration=None)
    assert_array_equal(quick.scores(X), without.scores(X))
    assert quick.sha256() == without.sha256()
    assert FlyNNClassifier.paper(hash_dim=64).fit(X, y).model_.calibration is None
    in_parts = FlyNNClassifier().partial_fit(X, y, classes=[0, 1])
    assert in_parts.model_.calibration is None


def test_intercepts_stay_where_counts_change():
    X, y = rare(1, 400)
    model = FlyNNClassifier().fit(X[:300], y[:300])
    intercepts = model.model_.calibration.intercepts
    for change in (model.partial_fit, model.forget):
        change(X[300:], y[300:])
        assert model.model_.calibration.intercepts == intercepts
        assert model.model_.calibration.temperature == 1.0


def test_of_many_samples_those_left_out_stand_for_all(monkeypatch):
    y = labels((900, 100))
    scores = scores_of(y, 2)
    counts = counts_of((900, 100))
    whole = CalibrationSums.of_scores([(scores, None, y)], counts).calibration(counts)
    monkeypatch.setattr(subsample, "N_LEFT_OUT", 200)
    some = np.sort(np.append(RNG.choice(900, 100, replace=False), np.arange(900, 1000)))
    part = CalibrationSums.of_scores([(scores[some], None, y[some])], counts)
    assert_allclose(part.calibration(counts).intercepts, whole.intercepts, atol=0.4)
