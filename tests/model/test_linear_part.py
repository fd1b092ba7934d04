"""The linear part of a model: its share, its sums, and what becomes of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.metrics import log_loss

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import CountsError
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.calibration import (
    RELATIVE_TEMPERATURES,
    SETTINGS,
    Calibration,
    CalibrationSums,
)
from flwr_flynn.model.gram import GramMatrix
from tests.model.test_calibration import counts_of, labels, scores_of
from tests.raising import raises


def outcome(is_linear, seed, n):
    """Samples, and three classes that depend on the columns, or on two signs."""
    random = np.random.default_rng(seed)
    samples = random.normal(size=(n, 6)).round(1)
    total = 4 * np.sign(samples[:, 0] * samples[:, 1])
    if is_linear:
        total = samples @ (1.0, 1.0, -1.0, 0.8, 0.6, -0.5)
    return samples, np.digitize(total + 0.7 * random.logistic(size=n), (-1.5, 1.5))


X, Y = outcome(True, 1, 300)
FIRST = X[:200], Y[:200]


def fitted():
    """The classifier of the first 200 samples."""
    return FlyNNClassifier(hash_dim=64).fit(*FIRST)


FITTED = fitted()

# ---- its share


@pytest.mark.parametrize("seed", [2, 3, 4])
@pytest.mark.parametrize("is_linear", [True, False])
def test_it_has_a_share_where_the_outcome_is_linear_and_then_it_helps(
    is_linear, seed, monkeypatch
):
    samples, y = outcome(is_linear, seed, 1300)
    classifier = FlyNNClassifier(hash_dim=256)
    losses = []
    shares = []
    for _ in range(2):
        classifier.fit(samples[:300], y[:300])
        shares.append(classifier.model_.share)
        losses.append(log_loss(y[300:], classifier.predict_proba(samples[300:])))
        monkeypatch.setattr(Basis, "of_columns", lambda *_: None)
    assert (shares[0] > 0) == (losses[0] < losses[1]) == is_linear
    assert shares[1] == 0


@pytest.mark.parametrize("sizes", [(60, 40), (9,) * 12], ids=str)
def test_sums_are_those_of_mixed_scores(sizes):
    """Those of given scores are held against an oracle in `test_calibration`."""
    y = labels(sizes)
    scores = scores_of(y, len(sizes))
    linear = scores_of(y, len(sizes))
    counts = counts_of(sizes)
    sums = CalibrationSums.of_scores([(scores, linear, y)], counts, None, True)
    for index, (share, temperature) in enumerate(SETTINGS):
        both = (1 - share) * scores + share * linear
        alone = CalibrationSums.of_scores([(both, None, y)], counts)
        row = RELATIVE_TEMPERATURES.index(temperature)
        for table, expected in zip(sums.tables[1:], alone.tables[1:], strict=True):
            assert_array_equal(table[index], expected[row])


@pytest.mark.parametrize("index", range(len(SETTINGS)))
def test_the_pair_of_the_least_loss_is_chosen_where_the_gain_is_no_chance(index):
    sums = CalibrationSums.zeros(2, has_part=True)
    for table in sums.tables[:-1]:
        table += 2**23
    least = 1.0
    if SETTINGS[index][0]:
        least = 3.0
    for pair in ((0.0, 1.0), SETTINGS[index]):
        sums.tables[1][index] -= int(least * 2**19)
        made = sums.calibration(counts_of((6, 5)))
        assert (made.share, made.temperature) == pair
    assert made.integers[0] == index
    assert Calibration.of_integers(made.integers, 2) == made


@pytest.mark.parametrize("shape", [(60, 10), (100, 20), (200, 30)], ids=str)
def test_of_noise_there_is_hardly_ever_a_linear_part(shape):
    """Scores of a fold know a little of it, see `GramMatrix.scorings`."""
    shares = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=shape)
        model = FlyNNClassifier(hash_dim=64).fit(
            noise, rng.integers(2, size=len(noise))
        )
        shares.append(model.model_.share)
    assert np.count_nonzero(shares) <= 1


# ---- samples that come and go


def test_it_follows_the_samples_that_are_there(tmp_path):
    model = fitted()
    there = np.arange(200)
    for gone, come in (([0, 100], [200]), (range(1, 60), range(201, 300)), ([80], [1])):
        there = np.concatenate([np.setdiff1d(there, gone), come])
        model.forget(X[gone], Y[gone]).partial_fit(X[come], Y[come])
        expected = GramMatrix.from_data(FITTED._linear.terms, X[there], Y[there], 3)
        assert model._linear == expected
        assert model.model_.linear.sha256() == expected.scoring.sha256()
    with raises(CountsError):
        model.forget(X[:200], (Y[:200] + 1) % 3)
    assert model._linear == expected
    model.save(tmp_path / "model.npz")
    loaded = FlyNNClassifier.load(tmp_path / "model.npz")
    assert loaded.model_.sha256() == model.model_.sha256()
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_a_class_without_samples_is_never_right():
    rows = np.flatnonzero(FIRST[1] == 2)
    model = fitted().forget(X[rows], Y[rows])
    assert model.model_.linear is not None
    probabilities = model.predict_proba(X)
    assert np.isfinite(probabilities).all()
    assert not probabilities[:, 2].any()
    assert model.partial_fit(X[rows], Y[rows])._linear == FITTED._linear


@pytest.mark.parametrize("change", ["forget", "partial_fit", "merge"])
def test_without_its_sums_it_goes_with_a_warning(change):
    """Models of files have none."""
    model = FlyNNClassifier.from_model(FITTED.model_)
    given = FIRST
    if change == "merge":
        model = fitted()
        given = [FITTED]
    with pytest.warns(UserWarning, match="linear part"):
        getattr(model, change)(*given)
    assert model._linear is model.model_.linear is None
    assert model.model_.share == 0.0
    assert model.model_.calibration.intercepts == FITTED.model_.calibration.intercepts


def test_it_can_be_left_out():
    without = FlyNNClassifier(hash_dim=64, linear=0).fit(X, Y)
    assert (without.model_.linear, without.model_.share) == (None, 0.0)
    few = FlyNNClassifier(hash_dim=64, linear=4).fit(X, Y).model_
    assert few.linear is None or few.linear.terms.n_terms <= 4


def test_a_class_of_one_row_does_not_cost_the_others_their_linear_part():
    rows = np.flatnonzero(Y < 2)
    alone = FlyNNClassifier(hash_dim=64).fit(X[rows], Y[rows]).model_
    rows = np.append(rows, np.flatnonzero(Y == 2)[:1])
    beside = FlyNNClassifier(hash_dim=64).fit(X[rows], Y[rows]).model_
    assert min(alone.share, beside.share) > 0
