"""The Gram matrix: sums that add, scores that follow, and a model that has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax
from sklearn.datasets import make_classification

from flwr_flynn import ClassCounts, FlyNNClassifier, HashSpec
from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.gram import (
    LARGEST_CLASS_WEIGHT,
    LEVELS,
    GramMatrix,
    GramScoring,
    LearnedGram,
    Responses,
    class_weights,
    responses_of,
)
from flwr_flynn.model.portable import content_shares
from tests import oracle
from tests.raising import raises

X, Y = make_classification(
    300, 6, n_informative=5, n_redundant=0, n_classes=3, random_state=1
)
X = X.round(2)
SPECS = (
    HashSpec(6, 24, 2, 6, seed=1, signed=True, center=(0.0,) * 6, scale=(1.0,) * 6),
    HashSpec(
        6,
        24,
        3,
        6,
        seed=2,
        signed=True,
        coding="bumps",
        n_codes=4,
        edges=((-1.0, 0.0, 1.0),) * 6,
    ),
)
TERMS = Responses(SPECS)
CLASSES = (4, 7, 5)
GRAM = GramMatrix.from_data(TERMS, CLASSES, X, Y)


def scoring_of(sums, terms=TERMS, weights=CLASSES):
    """The scores for new samples that follow from sums; None where none do."""
    return getattr(sums.scorings(terms, weights), "whole", None)


SCORING = scoring_of(GRAM)


def learned(
    points: np.ndarray, labels: np.ndarray, n_classes: int = 3
) -> GramScoring | None:
    return LearnedGram.of(TERMS, points, labels, n_classes).scoring


# ---- hashes


def test_the_hashes_are_those_of_five_kinds_of_candidates_side_by_side():
    plain = HashSpec(6, 512, 2, 16, seed=1)
    waves = HashSpec(
        6, 512, 2, 16, seed=1, scale=(1.0,) * 6, n_waves=8, wave_frequency=0.5
    )
    alike = SPECS[1]
    scaled = SPECS[0]
    bumps = replace(alike, row_weights=(255, 128, 1, 16, 200, 3))
    steps = replace(bumps, coding="steps")
    assert responses_of([alike], 64).specs == (
        replace(alike, hash_dim=64, hash_nnz=24),
    )
    by_relevance = (255, 64, 1, 1, 157, 1)  # the squares
    sizes = {"hash_dim": 13, "hash_nnz": 4}
    assert responses_of([bumps, steps, alike, waves, scaled, plain], 64).specs == (
        replace(bumps, row_weights=by_relevance, hash_dim=12, hash_nnz=4),
        replace(steps, row_weights=by_relevance, **sizes),
        replace(waves, **sizes),
        replace(scaled, **sizes),
        replace(plain, **sizes),
    )
    assert responses_of([scaled], 2048).specs[0].hash_nnz == 512


# ---- sums


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
def test_weights_of_classes_are_about_the_root_of_the_inverse_sizes(
    sizes,
):
    weights = class_weights(np.array(sizes))
    filled = [size for size in sizes if size]
    assert all(1 <= weight <= LARGEST_CLASS_WEIGHT for weight in weights)
    largest = max(sizes)
    if len(set(filled)) < 2:
        assert set(weights) == {1}
    for size in filled:
        exact = 4 * (largest / size) ** 0.5
        ratio = weights[sizes.index(size)] / weights[sizes.index(largest)]
        assert abs(4 * ratio - min(exact, LARGEST_CLASS_WEIGHT)) <= 0.5 + 1e-9


def test_sums_are_those_of_the_samples_one_by_one():
    assert GRAM != "sums"
    z = TERMS.integers(X).astype(np.int64)
    assert_array_equal(
        z, np.hstack([flynn_hash(spec).graded(X) for spec in SPECS]) // 2
    )
    assert z.max() == LEVELS
    second = content_shares(X) < 0.5
    assert 100 < second.sum() < 200
    for fold, held in enumerate((~second, second)):
        products = np.zeros((48, 48), np.int64)
        sums = np.zeros((3, 48), np.int64)
        for row, label in zip(z[held], Y[held], strict=True):
            products += CLASSES[label] * np.outer(row, row)
            sums[label] += row
        assert_array_equal(GRAM.products[fold], products[np.triu_indices(48)])
        assert_array_equal(GRAM.sums[fold], sums)
        assert (
            GRAM.n_per_class[fold].tolist()
            == np.bincount(Y[held], minlength=3).tolist()
        )
    for table in GRAM.tables:
        assert table.dtype == np.int64


@pytest.mark.parametrize("largest", [1, LARGEST_CLASS_WEIGHT])
def test_batches_and_weights_make_no_rounding(monkeypatch, largest):
    done: list[int] = []
    whole = GramMatrix.from_data(
        TERMS, (1, largest, 1), np.tile(X, (20, 1)), np.tile(Y, 20)
    )
    monkeypatch.setattr("flwr_flynn.model.gram.BATCH", 28)
    one = GramMatrix.from_data(TERMS, (1, largest, 1), X, Y, progress=done.append)
    assert sum(done) == 300
    assert whole == GramMatrix(tuple(20 * table for table in one.tables))


# ---- scores


@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_are_those_of_a_discriminant_analysis_of_held_out_scores(
    n_classes,
):
    some = n_classes > Y
    weights = CLASSES[:n_classes]
    sums = GramMatrix.from_data(TERMS, weights, X[some], Y[some])
    scoring = scoring_of(sums, TERMS, weights)
    assert scoring is not None
    z = TERMS.integers(X[some]).astype(float)
    fold = content_shares(X[some]) < 0.5
    expected = oracle.gram_log_odds(z, Y[some], np.array(weights), fold, z)
    assert_allclose(scoring.log_odds(X[some]), expected, atol=2e-3)


def test_too_few_samples_give_no_scores_and_a_class_without_samples_is_never_right():
    assert scoring_of(GramMatrix.zeros(48, 3)) is None
    assert learned(X[:0], Y[:0]) is None
    assert learned(X[:1], Y[:1]) is None
    assert learned(X[:9], np.zeros(9, np.int64)) is None
    assert learned(np.ones((8, 6)), np.arange(8) % 2) is None
    for n in range(2, 12):
        scoring = learned(X[:n], np.arange(n) % 2)
        assert scoring is None or np.isfinite(scoring.log_odds(X)).all()
    log_odds = learned(X, Y, 5).log_odds(X)
    assert log_odds.argmax(axis=1).max() == 2
    assert np.isfinite(log_odds).all()


def nearly_of_samples(share: float, seed: int) -> list[np.ndarray]:
    """Tables with a direction whose square is below 0.

    By less than the strength of one fold, and by more than both.
    """
    direction = np.random.default_rng(seed).normal(size=48)
    direction /= np.linalg.norm(direction)
    tables = [table.copy() for table in GRAM.tables]
    for fold in range(2):
        square = np.zeros((48, 48))
        square[np.triu_indices(48)] = tables[0][fold]
        square += np.triu(square, 1).T
        size = direction @ square @ direction + share * square.trace()
        rest = square - size * np.outer(direction, direction)
        tables[0][fold] = np.rint(rest[np.triu_indices(48)]).astype(np.int64)
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
        scoring = scoring_of(GramMatrix(tuple(tables)))
        assert scoring is None or np.isfinite(scoring.log_odds(X[:3])).all()


def test_samples_that_go_and_come_leave_the_sums_and_scores_of_those_that_are_there():
    model = FlyNNClassifier(gram=64, effort="quick").fit(X[:200], Y[:200])
    first = model._gram
    there = np.arange(200)
    for gone, come in (
        ([0, 100], [200]),
        (range(1, 60), range(201, 300)),
        (range(80, 90), [1, 2]),
    ):
        there = np.concatenate([np.setdiff1d(there, gone), come])
        model.forget(X[gone], Y[gone]).partial_fit(X[come], Y[come])
        sums = GramMatrix.from_data(first.terms, first.weights, X[there], Y[there])
        scoring = model.model_.gram
        expected = scoring_of(sums, first.terms, first.weights)
        assert scoring.sha256() == expected.sha256()
        assert model._gram.scoring is scoring
    with pytest.raises(CountsError):
        model.forget(X[:200], 1 - np.minimum(Y[:200], 1))  # never there
    assert model.model_.gram is scoring
    # Without samples there are no scores.
    assert model.forget(X[there], Y[there]).model_.gram is None


def wrong_weights(value: int) -> np.ndarray:
    weights = np.array(SCORING.weights)
    weights[3, 1] = value
    return weights


def test_sums_of_other_classes_and_specs_that_are_none_are_refused():
    """Other values are in `refused.txt`, and those of files in `test_model_file`."""
    with raises(CountsError, field="tables"):
        _ = GRAM + GramMatrix.zeros(48, 4)
    with raises(DataError, field="gram"):
        Responses((SPECS[0], "b"))


def test_a_model_has_no_gram_matrix_of_other_features():
    without = FlyNNClassifier(effort="thorough", hash_dim=32, gram=0).fit(X, Y)
    assert without.model_.gram is None
    model = FlyNNClassifier(hash_dim=32).fit(X, Y).model_
    with raises(DataError, field="gram"):
        replace(
            model, gram=replace(SCORING, terms=Responses([HashSpec(5, 48, 2, 6, 1)]))
        )


def test_equal_scorings_have_equal_digests():
    assert SCORING.sha256() == replace(SCORING, weights=SCORING.weights.copy()).sha256()
    of_another_bias = replace(SCORING, bias=SCORING.bias + 1)
    of_other_weights = replace(SCORING, weights=wrong_weights(5))
    different = {SCORING.sha256(), of_another_bias.sha256(), of_other_weights.sha256()}
    assert len(different) == 3
    assert not SCORING.weights.flags.writeable


# ---- a model with the Gram matrix


@pytest.mark.parametrize(
    "given_", [{"hash_dim": 64}, {"spec": HashSpec(6, 64, 2, 6, seed=1, signed=True)}]
)
def test_a_model_averages_both_log_probabilities(given_):
    # With a decay of its own a model is not calibrated.
    plain = FlyNNClassifier(gram=0, decay=0.5, **given_).fit(X, Y)
    both = FlyNNClassifier(gram=48, decay=0.5, **given_).fit(X, Y)
    assert both.model_.members == plain.model_.members
    ours = plain.with_prior(frequencies=[1, 1, 1]).predict_proba(X)
    theirs = log_softmax(both.model_.gram.log_odds(X), axis=1)
    equal = np.log(softmax((np.log(ours) + theirs) / 2 * np.sqrt(2 / 3), axis=1))
    assert_allclose(
        both.predict_proba(X),
        softmax(equal + np.log(np.bincount(Y)), axis=1),
        rtol=1e-6,
        atol=1e-9,
    )
    assert_array_equal(both.novelty(X), plain.novelty(X))
    mostly = both.with_prior(frequencies=[1, 1, 8])
    assert_allclose(
        mostly.predict_proba(X),
        softmax(equal + np.log([1, 1, 8]), axis=1),
        rtol=1e-5,
        atol=1e-9,
    )
    assert mostly.with_prior().model_.sha256() == both.model_.sha256()
    assert both.model_.sha256() != plain.model_.sha256()


def test_the_gram_matrix_is_dropped_with_the_counts_that_they_belong_to():
    spec = HashSpec(6, 64, 2, 6, seed=1, signed=True)
    fitted = FlyNNClassifier(spec, gram=48).fit(X[:200], Y[:200])
    other = FlyNNClassifier(spec).fit(X[200:], Y[200:])
    whole = FlyNNClassifier(spec).fit(X, Y)
    assert fitted.model_.gram is not None
    assert fitted.merge(other).counts_ == whole.counts_
    assert fitted.model_.gram is None
    without_sums = FlyNNClassifier.from_model(
        FlyNNClassifier(spec, gram=48).fit(X, Y).model_
    )
    assert without_sums.forget(X[:3], Y[:3]).model_.gram is None
    in_parts = FlyNNClassifier(spec, gram=48).partial_fit(X, Y, [0, 1, 2])
    assert in_parts.model_.gram is None


def test_a_class_without_samples_is_below_the_others():
    fitted = FlyNNClassifier(hash_dim=64, gram=48).fit(X, Y)
    scores = fitted.model_.scores(X)
    members = []
    for member in fitted.model_.members:
        gone = ClassCounts.from_data(member.hash, X[Y == 2], Y[Y == 2], 3)
        members.append(replace(member, counts=member.counts - gone))
    without = replace(fitted.model_, members=tuple(members))
    assert (without.scores(X).argmax(axis=1) < 2).all()
    assert (scores.argmax(axis=1) == 2).any()
