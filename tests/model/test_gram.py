"""The Gram matrix: sums that add, scores that follow from them in whole numbers, and a model that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import Ridge

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.gram import GRAM_TEMPERATURES, GramFit, GramMatrix, LearnedGram, gram_specs
from flwr_flynn.model.gram_scoring import LARGEST_WEIGHT, MOST_ROWS, UNIT, GramScoring, checked_gram_specs, responses
from flwr_flynn.model.scoring import TEMPERATURES
from flwr_flynn.model.selection import LOSS_UNIT
from tests.raising import raises

X, Y = make_classification(300, 6, n_informative=5, n_redundant=0, n_classes=3, random_state=1)
X = X.round(2)
SPECS = (
    HashSpec(6, 24, 2, 6, seed=1, signed=True, center=(0.0,) * 6, scale=(1.0,) * 6),
    HashSpec(6, 24, 3, 6, seed=2, signed=True, coding="bumps", n_codes=4, edges=((-1.0, 0.0, 1.0),) * 6),
)
GRAM = GramMatrix.from_data(SPECS, X, Y, 3)
FIT = GramFit.of(GRAM)
SCORING = GramScoring(SPECS, FIT.weights[0], FIT.bias[0], TEMPERATURES[20], 0.5)


# ---- hashes


def test_the_hashes_are_those_of_two_candidates() -> None:
    plain = HashSpec(6, 512, 2, 16, seed=1)
    waves = HashSpec(6, 512, 2, 16, seed=1, scale=(1.0,) * 6, n_waves=8, wave_frequency=0.5)
    steps = replace(SPECS[1], coding="steps")
    assert gram_specs([plain], 64) == (replace(plain, hash_dim=64, hash_nnz=16),)
    assert gram_specs([plain, waves], 64) == (replace(plain, hash_dim=64, hash_nnz=16),)
    assert gram_specs([waves, *SPECS], 64) == tuple(replace(s, hash_dim=32, hash_nnz=8) for s in reversed(SPECS))
    assert gram_specs([steps, SPECS[1], SPECS[0], plain], 17) == tuple(
        replace(spec, hash_dim=8, hash_nnz=2) for spec in (steps, SPECS[0])
    )


def test_specs_that_cannot_be_those_of_the_gram_matrix_are_refused() -> None:
    wide = replace(SPECS[0], hash_dim=MOST_ROWS)
    other = HashSpec(5, 24, 2, 6, seed=1)
    for wrong in ((), SPECS * 2, (SPECS[0], "b"), (SPECS[0], other), (wide, SPECS[1])):
        with raises(DataError, field="gram"):
            checked_gram_specs(wrong)


# ---- sums


def test_sums_are_those_of_the_samples_one_by_one() -> None:
    z = responses(SPECS, X).astype(np.int64)
    assert_array_equal(z, np.hstack([flynn_hash(spec).graded(X) for spec in SPECS]))
    products = np.zeros((48, 48), np.int64)
    sums = np.zeros((3, 48), np.int64)
    for row, label in zip(z, Y, strict=True):
        products += np.outer(row, row)
        sums[label] += row
    assert_array_equal(GRAM.products, products[np.triu_indices(48)])
    assert_array_equal(GRAM.square, products)
    assert_array_equal(GRAM.sums, sums)
    assert GRAM.n_per_class.tolist() == np.bincount(Y).tolist()
    assert {each.dtype for each in (GRAM.products, GRAM.sums, GRAM.n_per_class)} == {np.dtype(np.int64)}


@given(st.lists(st.integers(0, 4), min_size=300, max_size=300))
def test_sums_of_the_parts_of_any_split_add_up(parties: list[int]) -> None:
    held = np.array(parties)
    total = GramMatrix.zeros(48, 3)
    for party in range(5):
        total += GramMatrix.from_data(SPECS, X[held == party], Y[held == party], 3)
    assert total == GRAM


def test_batches_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = FIT.tables(SPECS, X, Y)
    for module in ("gram", "gram_scoring"):
        monkeypatch.setattr(f"flwr_flynn.model.{module}.BATCH", 28)
    done: list[int] = []
    assert GramMatrix.from_data(SPECS, X, Y, 3, progress=done.append) == GRAM
    assert sum(done) == 300
    for mine, theirs in zip(FIT.tables(SPECS, X, Y), tables, strict=True):
        assert_array_equal(mine, theirs)


def test_sums_of_other_shapes_do_not_add() -> None:
    with raises(CountsError, field="tables"):
        GRAM + GramMatrix.zeros(48, 4)
    assert GramMatrix.zeros(48, 3) != GRAM
    assert GRAM != "sums"


def test_a_set_of_samples_is_taken_out_of_the_sums() -> None:
    assert GRAM - GramMatrix.from_data(SPECS, X[:40], Y[:40], 3) == GramMatrix.from_data(SPECS, X[40:], Y[40:], 3)


# ---- scores


def exact_leverages(points: np.ndarray, specs: Sequence[HashSpec], strength: float) -> np.ndarray:
    z = responses(specs, points).astype(float)
    z -= z.mean(axis=0)
    return 1 / len(z) + np.einsum("ij,ji->i", z, np.linalg.solve(z.T @ z + strength * np.eye(z.shape[1]), z.T))


def left_out_by_hand(fit: GramFit, at: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores without the sample, (n, L), and leverages, (n,), by the written rule."""
    z = responses(SPECS, X).astype(float)
    own = fit.leverage.of(z, len(z))[:, at]
    scores = z @ (fit.weights[at] * UNIT) + fit.bias[at] * UNIT
    return (scores - own[:, None] * np.eye(3)[Y]) / (1 - own[:, None]), own


def test_scores_are_those_of_a_regression_with_an_intercept() -> None:
    z = responses(SPECS, X).astype(float)
    for at, strength in enumerate(FIT.leverage.strengths):
        scores = z @ (FIT.weights[at] * UNIT) + FIT.bias[at] * UNIT
        fitted = Ridge(alpha=strength).fit(z, np.eye(3)[Y])
        assert_allclose(scores, fitted.predict(z), atol=1e-3)


@pytest.mark.parametrize("times", [1, 12])
def test_leverages_are_about_those_of_the_samples_even_where_these_differ_much(times: int) -> None:
    """Few samples far out and many equal ones: the mean says nothing of either. With and without a part outside."""
    specs = [replace(spec, hash_dim=times * spec.hash_dim, hash_nnz=times * spec.hash_nnz) for spec in SPECS]
    points = np.concatenate([X[:280], np.repeat(X[280:285], 30, axis=0), X[285:300] * 20])
    fit = GramFit.of(GramMatrix.from_data(specs, points, np.arange(len(points)) % 3, 3))
    found = fit.leverage.of(responses(specs, points).astype(float), len(points))
    assert (fit.leverage.residual > 0) == (times > 1)
    for at, strength in enumerate(fit.leverage.strengths):
        exact = exact_leverages(points, specs, strength)
        assert np.mean(np.abs(found[:, at] - exact)) < 0.1 * exact.mean()
        assert fit.leverage.mean_at(at, len(points)) == pytest.approx(exact.mean(), rel=0.05)


def test_leave_one_out_is_that_of_regressions_without_the_sample() -> None:
    z = responses(SPECS, X).astype(float)
    for at in (0, FIT.n_strengths - 1):
        by_hand, _ = left_out_by_hand(FIT, at)
        scores = z @ (FIT.weights[at] * UNIT) + FIT.bias[at] * UNIT
        gaps = []
        for i in range(20):
            rest = np.arange(300) != i
            fitted = Ridge(alpha=FIT.leverage.strengths[at]).fit(z[rest], np.eye(3)[Y[rest]])
            exact = fitted.predict(z[i : i + 1])[0]
            gaps.append((np.abs(by_hand[i] - exact).max(), np.abs(scores[i] - exact).max()))
        assert np.mean(gaps, axis=0)[0] < 0.15 * np.mean(gaps, axis=0)[1]


def test_tables_are_those_of_the_written_rule() -> None:
    correct, losses = FIT.tables(SPECS, X, Y)
    assert correct.shape == losses.shape == (FIT.n_strengths, len(GRAM_TEMPERATURES), 3)
    logs = np.log(np.bincount(Y) / 300)
    for at in range(FIT.n_strengths):
        scores, own = left_out_by_hand(FIT, at)
        assert (own < 0.9).all()
        for t, temperature in enumerate(GRAM_TEMPERATURES):
            found = log_softmax(scores / temperature - logs, axis=1)
            right = found.argmax(axis=1) == Y
            assert correct[at, t].tolist() == np.bincount(Y[right], minlength=3).tolist()
            expected = -np.maximum(found[np.arange(300), Y], -64)
            assert_allclose(losses[at, t] * LOSS_UNIT, np.bincount(Y, expected), atol=1e-3)


@pytest.mark.parametrize("how", ["alone", "far out"])
def test_a_sample_that_nothing_else_tells_of_is_wrong(how: str) -> None:
    labels = np.where(np.arange(300) == 7, 3, Y) if how == "alone" else Y
    fit = GramFit.of(GramMatrix.from_data(SPECS, X, labels, 4))
    if how == "far out":
        fit = replace(fit, leverage=fit.leverage._replace(directions=fit.leverage.directions * 10))
    correct, losses = fit.tables(SPECS, X[7:8], labels[7:8])
    assert not correct.any()
    assert (losses[:, :, labels[7]] == round(64 / LOSS_UNIT)).all()


def test_no_samples_give_no_scores_and_a_class_without_samples_is_never_right() -> None:
    nothing = GramFit.of(GramMatrix.zeros(48, 3))
    assert not nothing.weights.any()
    assert nothing.scoring(SPECS, np.zeros(3, np.int64), *nothing.tables(SPECS, X[:0], Y[:0])) is None
    assert LearnedGram.of(SPECS, X[:0], Y[:0], 3) is None
    found = LearnedGram.of(SPECS, X, Y, 5).scoring
    assert found is not None
    assert found.log_odds(X).argmax(axis=1).max() == 2
    assert np.isfinite(found.log_odds(X)).all()


def test_samples_that_go_and_come_leave_the_sums_and_scores_of_those_that_are_there() -> None:
    model = FlyNNClassifier(gram=64, effort="quick").fit(X[:200], Y[:200])
    learned, first = model._gram, model.model_
    assert learned is not None
    assert learned.scoring is first.gram
    there = np.arange(200)
    for gone, come in (
        (there[::100], np.arange(200, 201)),
        (there[1:60], np.arange(201, 300)),
        (there[80:90], there[1:3]),
    ):
        there = np.concatenate([np.setdiff1d(there, gone), come])
        model.forget(X[gone], Y[gone]).partial_fit(X[come], Y[come])
        fit, scoring = GramFit.of(GramMatrix.from_data(learned.scoring.specs, X[there], Y[there], 3)), model.model_.gram
        assert scoring is not None
        assert_array_equal(scoring.weights, fit.weights[learned.at])
        expected = fit.scoring_at(learned.at, scoring.specs, scoring.temperature, scoring.share, scoring.accuracy)
        assert scoring.sha256() == expected.sha256()
        assert (scoring.share, scoring.temperature) == (learned.scoring.share, learned.scoring.temperature)
        assert getattr(model._gram, "scoring", None) is scoring
    with pytest.raises(CountsError):
        model.forget(X[:200], 1 - np.minimum(Y[:200], 1))  # never there
    assert model.model_.gram is scoring
    back = np.setdiff1d(there, np.arange(200))
    missing = np.setdiff1d(np.arange(200), there)
    model.forget(X[back], Y[back]).partial_fit(X[missing], Y[missing])
    assert model.model_.gram is not None
    assert model.model_.gram.sha256() == learned.scoring.sha256()
    assert model.forget(X[:200], Y[:200]).model_.gram is None  # without samples there are no scores


def test_other_sums_keep_the_strength_or_have_the_last_one_and_it_is_back_with_the_samples() -> None:
    at = FIT.n_strengths - 2
    learned, n_solved = LearnedGram(GRAM, FIT.scoring_at(at, SPECS, 0.25, 0.5, 0.9), at), set()
    for n in (300, 200, 40, 20, 300):
        sums = GramMatrix.from_data(SPECS, X[:n], Y[:n], 3)
        every, changed = GramFit.of(sums), learned.changed(sums)
        n_solved.add(every.n_strengths)
        assert changed is not None
        learned, solved = changed, min(at, every.n_strengths - 1)
        assert learned.scoring.sha256() == every.scoring_at(solved, SPECS, 0.25, 0.5, 0.9).sha256()
    assert at + 1 < max(n_solved)
    assert at >= min(n_solved)


def test_one_class_alone_and_samples_that_are_all_alike_give_no_scores() -> None:
    for some, labels in ((X[:9], np.zeros(9, np.int64)), (np.ones((8, 6)), np.arange(8) % 2), (X[:1], Y[:1])):
        assert LearnedGram.of(SPECS, some, labels, 3) is None
    found = LearnedGram.of(SPECS, X[:2], np.arange(2), 3).scoring
    assert found is not None
    assert np.isfinite(found.log_odds(X)).all()


@pytest.mark.parametrize("coverage", [1.0, 0.5, 0.01])
def test_the_lowest_loss_is_chosen_and_each_side_has_half_of_the_weight_but_for_parties_that_are_missing(
    coverage: float,
) -> None:
    correct, losses = FIT.tables(SPECS, X, Y)
    correct, losses = np.full_like(correct, 90), np.full_like(losses, 10**6)
    losses[1, 5, 2] -= 1
    found = FIT.scoring(SPECS, np.full(3, 100), correct, losses, coverage)
    assert found is not None
    assert (found.accuracy, found.share) == (0.9, coverage / 2)
    assert found.temperature == GRAM_TEMPERATURES[5]
    assert_array_equal(found.weights, FIT.weights[1])


def test_all_classes_count_alike_in_the_choice() -> None:
    """Of 1 sample in 100 the loss counts as much as that of the 99 others."""
    correct, losses = FIT.tables(SPECS, X, Y)
    losses[:] = np.array([99, 1, 0]) * 10**6
    losses[2, 3] = [99 * 10**6 // 2, 10**6, 0]
    losses[1, 4] = [99 * 10**6, 10**6 // 4, 0]
    found = FIT.scoring(SPECS, np.array([99, 1, 0]), np.minimum(correct, 0), losses)
    assert found is not None
    assert found.temperature == GRAM_TEMPERATURES[4]


def wrong_weights(value: int) -> np.ndarray:
    weights = np.array(FIT.weights[0])
    weights[3, 1] = value
    return weights


@pytest.mark.parametrize("few", [5, 2])
def test_small_classes_and_repeated_samples_are_not_flattered(few: int) -> None:
    """Of five samples each has much leverage in its class; fresh samples bear the claimed accuracy out all the same."""
    order = np.random.default_rng(0).permutation(1797)  # the first digits are all of one writer
    digits, y = (array[order] for array in load_digits(return_X_y=True))
    sizes = [100] * 4 + [few] * 6
    some = np.concatenate([np.flatnonzero(y == label)[:size] for label, size in enumerate(sizes)])
    rest = np.setdiff1d(np.arange(len(y)), some)
    model = FlyNNClassifier(hash_dim=1024, gram=512, class_weight="balanced").fit(digits[some], y[some]).model_
    assert model.gram is not None
    alone = replace(model, gram=replace(model.gram, share=1.0)).scores(digits[rest]).argmax(axis=1)
    right = np.mean([np.mean(alone[y[rest] == label] == label) for label in range(10)])
    assert model.gram.accuracy < right + 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": FIT.weights[0, 1:]},
        {"weights": FIT.weights[0].T},
        {"weights": FIT.weights[0].astype(np.int64)},
        {"weights": wrong_weights(LARGEST_WEIGHT + 1)},
        {"bias": FIT.bias[0, :2]},
        {"bias": FIT.bias[0].astype(float)},
        {"bias": np.array([0, 0, -(2**63)])},
        {"temperature": 0.7},
        {"share": 1.5},
        {"share": float("nan")},
        {"accuracy": -0.1},
        {"leverage": 1.0},
        {"specs": SPECS[:1]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_scoring_that_cannot_be_is_refused(changes: dict) -> None:
    with raises(DataError):
        replace(SCORING, **changes)


def test_equal_scorings_have_equal_digests() -> None:
    assert SCORING.sha256() == replace(SCORING, weights=SCORING.weights.copy()).sha256()
    others = [
        {"share": 0.25},
        {"temperature": 1.0},
        {"leverage": 0.5},
        {"bias": FIT.bias[0] + 1},
        {"weights": wrong_weights(5)},
    ]
    digests = {replace(SCORING, **each).sha256() for each in others} | {SCORING.sha256()}
    assert len(digests) == 6
    assert not SCORING.weights.flags.writeable


# ---- a model with the Gram matrix


def test_a_model_averages_both_log_probabilities_by_their_weights() -> None:
    labels = np.array(["ash", "birch", "cedar"])[Y]
    for parameters in ({"hash_dim": 64}, {"spec": HashSpec(6, 64, 2, 6, seed=1, signed=True)}):
        plain = FlyNNClassifier(**parameters).fit(X, labels)
        both = FlyNNClassifier(gram=48, **parameters).fit(X, labels)
        found = both.model_.gram
        assert found is not None
        assert both.model_.members == plain.model_.members
        ours = plain.with_prior(frequencies=[1, 1, 1]).predict_proba(X)
        theirs = log_softmax(found.log_odds(X), axis=1)
        equal = softmax((1 - found.share) * np.log(ours) + found.share * theirs, axis=1)
        expected = softmax(np.log(equal) + np.log(np.bincount(Y)), axis=1)
        np.testing.assert_allclose(both.predict_proba(X), expected, rtol=1e-6, atol=1e-9)
        assert_array_equal(both.novelty(X), plain.novelty(X))
        mostly = both.with_prior(frequencies=[1, 1, 8])
        np.testing.assert_allclose(
            mostly.predict_proba(X), softmax(np.log(equal) + np.log([1, 1, 8]), axis=1), rtol=1e-5, atol=1e-9
        )
        assert mostly.with_prior().model_.sha256() == both.model_.sha256() != plain.model_.sha256()


def test_the_gram_matrix_is_dropped_with_the_counts_that_they_belong_to() -> None:
    spec = HashSpec(6, 64, 2, 6, seed=1, signed=True)
    fitted = FlyNNClassifier(spec, gram=48).fit(X[:200], Y[:200])
    other = FlyNNClassifier(spec).fit(X[200:], Y[200:])
    whole = FlyNNClassifier(spec).fit(X, Y)
    assert fitted.model_.gram is not None
    assert fitted.merge(other).counts_ == whole.counts_
    assert fitted.model_.gram is None
    loaded = FlyNNClassifier.from_model(FlyNNClassifier(spec, gram=48).fit(X, Y).model_)  # without sums
    assert loaded.forget(X[:3], Y[:3]).model_.gram is None
    assert FlyNNClassifier(spec, gram=48).partial_fit(X, Y, [0, 1, 2]).model_.gram is None


def test_what_contradicts_the_gram_matrix_is_refused() -> None:
    assert FlyNNClassifier(effort="thorough", hash_dim=32, gram=0).fit(X, Y).model_.gram is None
    for wrong in (5, -1, MOST_ROWS + 1, 48.0, "48"):
        with pytest.raises(ValueError, match="gram"):
            FlyNNClassifier(gram=wrong).fit(X, Y)
    model = FlyNNClassifier(hash_dim=32).fit(X, Y).model_
    model = replace(model, members=model.members[:1], refined=np.zeros((32, 3), np.int32))
    for changes in ({"gram": SCORING}, {"gram": replace(SCORING, specs=[HashSpec(5, 48, 2, 6, 1)]), "refined": None}):
        with raises(DataError, field="gram"):
            replace(model, **changes)


def test_a_class_without_samples_is_below_the_others() -> None:
    fitted = FlyNNClassifier(hash_dim=64, gram=48).fit(X, Y)
    scores = fitted.model_.scores(X)
    members = tuple(
        replace(each, counts=each.counts - type(each.counts).from_data(each.hash, X[Y == 2], Y[Y == 2], 3))
        for each in fitted.model_.members
    )
    without = replace(fitted.model_, members=members)
    assert (without.scores(X).argmax(axis=1) < 2).all()
    assert (scores.argmax(axis=1) == 2).any()


def test_more_samples_of_digits_are_told_apart() -> None:
    digits, y = load_digits(return_X_y=True)
    folds = [np.arange(len(y)) % 4 != fold for fold in range(4)]
    right = [
        np.mean(
            [
                FlyNNClassifier(effort="quick", gram=n).fit(digits[train], y[train]).score(digits[~train], y[~train])
                for train in folds
            ]
        )
        for n in (0, 512)
    ]
    assert right[1] > right[0] > 0.95


@pytest.mark.slow
def test_every_processor_and_number_of_threads_makes_the_same_model(tmp_path) -> None:
    code = (
        "import hashlib; from sklearn.datasets import load_digits; from flwr_flynn import FlyNNClassifier;"
        "X, y = load_digits(return_X_y=True); model = FlyNNClassifier(effort='quick', gram=200).fit(X, y);"
        "print(model.model_.sha256(), hashlib.sha256(model.decision_function(X).tobytes()).hexdigest())"
    )
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    others = [{"OPENBLAS_NUM_THREADS": "1"}, {"OPENBLAS_NUM_THREADS": "2", "OPENBLAS_CORETYPE": "Prescott"}, generic]
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | more
        ).stdout
        for more in others
    }
    assert len(printed) == 1
