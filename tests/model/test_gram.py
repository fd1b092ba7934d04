"""The Gram matrix: sums that add, and scores that follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax
from sklearn.datasets import make_classification

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.model.basis import LARGEST, Basis
from flwr_flynn.model.calibration import Calibration
from flwr_flynn.model.gram import GramMatrix, GramScoring
from flwr_flynn.model.portable import content_shares
from tests import oracle
from tests.raising import raises

X, Y = make_classification(
    300, 6, n_informative=5, n_redundant=0, n_classes=3, random_state=1
)
X = X.round(2)
EDGES = np.linspace(-3.0, 3.0, 32)
TERMS = Basis(6, range(6), [0.0] * 6, [0.5] * 6, [EDGES] * 6, [False] * 6)
GRAM = GramMatrix.from_data(TERMS, X, Y, 3)
N = TERMS.n_terms


def logs_of(scoring, points=X):
    """Log probabilities of the classes."""
    return scoring.log_probabilities(np.zeros((len(points), len(scoring.bias))), points)


SCORING = GRAM.scoring


def learned(
    points: np.ndarray, labels: np.ndarray, n_classes: int = 3
) -> GramScoring | None:
    return GramMatrix.from_data(TERMS, points, labels, n_classes).scoring


# ---- sums


def test_sums_are_those_of_the_samples_one_by_one():
    assert GRAM != "sums"
    z = TERMS.integers(X).astype(np.int64)
    assert z.max() == LARGEST
    second = content_shares(X) < 0.5
    assert 100 < second.sum() < 200
    for fold, held in enumerate((~second, second)):
        products = np.zeros((N, N), np.int64)
        sums = np.zeros((3, N), np.int64)
        for row, label in zip(z[held], Y[held], strict=True):
            products += np.outer(row, row)
            sums[label] += row
        assert_array_equal(GRAM.products[fold], products[np.triu_indices(N)])
        assert_array_equal(GRAM.sums[fold], sums)
        assert (
            GRAM.n_per_class[fold].tolist()
            == np.bincount(Y[held], minlength=3).tolist()
        )
    for table in GRAM.tables:
        assert table.dtype == np.int64


def test_batches_make_no_rounding(monkeypatch):
    whole = GramMatrix.from_data(TERMS, np.tile(X, (20, 1)), np.tile(Y, 20), 3)
    monkeypatch.setattr("flwr_flynn.model.gram.BATCH", 28)
    one = GramMatrix.from_data(TERMS, X, Y, 3)
    assert whole == GramMatrix(tuple(20 * table for table in one.tables), TERMS)


# ---- scores


@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_are_those_of_a_discriminant_analysis_of_held_out_scores(
    n_classes,
):
    some = n_classes > Y
    scoring = GramMatrix.from_data(TERMS, X[some], Y[some], n_classes).scoring
    assert scoring is not None
    z = TERMS.integers(X[some]).astype(float)
    fold = content_shares(X[some]) < 0.5
    expected = log_softmax(oracle.gram_log_odds(z, Y[some], fold, z), axis=1)
    assert_allclose(logs_of(scoring, X[some]), expected, atol=2e-3)


def test_too_few_samples_give_no_scores():
    assert GramMatrix.zeros(TERMS, 3).scoring is None
    assert learned(X[:0], Y[:0]) is None
    assert learned(X[:1], Y[:1]) is None
    assert learned(X[:9], np.zeros(9, np.int64)) is None
    assert learned(np.ones((8, 6)), np.arange(8) % 2) is None
    for n in range(2, 12):
        scoring = learned(X[:n], np.arange(n) % 2)
        assert scoring is None or np.isfinite(logs_of(scoring)).all()
    assert np.isfinite(logs_of(learned(X, Y, 5))).all()


def nearly_of_samples(share: float, seed: int) -> list[np.ndarray]:
    """Tables with a direction whose square is below 0.

    By less than the strength of one fold, and by more than both.
    """
    direction = np.random.default_rng(seed).normal(size=N)
    direction /= np.linalg.norm(direction)
    tables = [table.copy() for table in GRAM.tables]
    for fold in range(2):
        square = np.zeros((N, N))
        square[np.triu_indices(N)] = tables[0][fold]
        square += np.triu(square, 1).T
        size = direction @ square @ direction + share * square.trace()
        rest = square - size * np.outer(direction, direction)
        tables[0][fold] = np.rint(rest[np.triu_indices(N)]).astype(np.int64)
    return tables


def of_no_samples(seed: int) -> list[np.ndarray]:
    draws = np.random.default_rng(seed)
    return [
        draws.integers(0, 2 ** draws.integers(1, 60), table.shape)
        for table in GRAM.tables
    ]


def test_sums_of_no_samples_give_no_scores_or_finite_ones():
    forged = [of_no_samples(seed) for seed in range(20)]
    forged += [
        nearly_of_samples(2.0**-k, seed) for k in range(4, 24) for seed in range(8)
    ]
    for tables in forged:
        scoring = GramMatrix(tuple(tables), TERMS).scoring
        assert scoring is None or np.isfinite(logs_of(scoring)).all()


def wrong_weights(value: int) -> np.ndarray:
    weights = np.array(SCORING.weights)
    weights[3, 1] = value
    return weights


def test_sums_of_other_classes_and_scores_of_other_features_are_refused():
    """Those of files are in `test_model_file`."""
    with raises(CountsError, field="tables"):
        _ = GRAM + GramMatrix.zeros(TERMS, 4)
    other = replace(GRAM, terms=replace(TERMS, center=[1.0] * 6))
    assert other != GRAM
    with raises(CountsError, field="linear"):
        _ = GRAM + other
    model = FlyNNClassifier(hash_dim=32, linear=0).fit(X, Y).model_
    calibration = Calibration(1.0, (0.0, 0.0, 0.0), 0.5)
    of_others = replace(SCORING, terms=replace(TERMS, n_features=7))
    with raises(DataError, field="linear"):
        replace(model, calibration=calibration, linear=of_others)


def test_equal_scorings_have_equal_digests():
    assert SCORING.sha256() == replace(SCORING, weights=SCORING.weights.copy()).sha256()
    of_another_bias = replace(SCORING, bias=SCORING.bias + 1)
    of_other_weights = replace(SCORING, weights=wrong_weights(5))
    different = {SCORING.sha256(), of_another_bias.sha256(), of_other_weights.sha256()}
    assert len(different) == 3
    assert not SCORING.weights.flags.writeable
