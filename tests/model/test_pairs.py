"""Pair sums: sums that add, scores that follow from them in whole numbers, and a model that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits, make_classification

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import ConfigError, CountsError, DataError
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.leave_one_out import LOSS_UNIT, TEMPERATURES, LeaveOneOutTables
from flwr_flynn.model.pair_scoring import LARGEST_WEIGHT, MOST_ROWS, UNIT, PairScoring, checked_pair_specs, responses
from flwr_flynn.model.pairs import PairFit, PairSums, learn_pairs, pair_specs
from tests.raising import raises

X, Y = make_classification(300, 6, n_informative=5, n_redundant=0, n_classes=3, random_state=1)
X = X.round(2)
SPECS = (
    HashSpec(6, 24, 2, 6, seed=1, signed=True, center=(0.0,) * 6, scale=(1.0,) * 6),
    HashSpec(6, 24, 3, 6, seed=2, signed=True, coding="bumps", n_codes=4, edges=((-1.0, 0.0, 1.0),) * 6),
)
SUMS = PairSums.from_data(SPECS, X, Y, 3)
FIT = PairFit.of(SUMS)
READOUT = PairScoring(SPECS, FIT.weights, FIT.bias, TEMPERATURES[20], 0.5)


# ---- hashes


def test_the_hashes_are_those_of_two_candidates() -> None:
    plain = HashSpec(6, 512, 2, 16, seed=1)
    waves = HashSpec(6, 512, 2, 16, seed=1, scale=(1.0,) * 6, n_waves=8, wave_frequency=0.5)
    steps = replace(SPECS[1], coding="steps")
    assert pair_specs([plain], 64) == (replace(plain, hash_dim=64, hash_nnz=16),)
    assert pair_specs([plain, waves], 64) == (replace(plain, hash_dim=64, hash_nnz=16),)
    assert pair_specs([waves, *SPECS], 64) == tuple(replace(s, hash_dim=32, hash_nnz=8) for s in reversed(SPECS))
    assert pair_specs([steps, SPECS[1], SPECS[0], plain], 17) == tuple(
        replace(spec, hash_dim=8, hash_nnz=2) for spec in (steps, SPECS[0])
    )


def test_specs_that_cannot_be_those_of_pair_sums_are_refused() -> None:
    wide = replace(SPECS[0], hash_dim=MOST_ROWS)
    other = HashSpec(5, 24, 2, 6, seed=1)
    for wrong in ((), SPECS * 2, (SPECS[0], "b"), (SPECS[0], other), (wide, SPECS[1])):
        with raises(DataError, field="pairs"):
            checked_pair_specs(wrong)


# ---- sums


def test_sums_are_those_of_the_samples_one_by_one() -> None:
    z = responses(SPECS, X).astype(np.int64)
    assert_array_equal(z, np.hstack([flynn_hash(spec).graded(X) for spec in SPECS]))
    products = np.zeros((48, 48), np.int64)
    sums = np.zeros((3, 48), np.int64)
    for row, label in zip(z, Y, strict=True):
        products += np.outer(row, row)
        sums[label] += row
    assert_array_equal(SUMS.products, products[np.triu_indices(48)])
    assert_array_equal(SUMS.square, products)
    assert_array_equal(SUMS.sums, sums)
    assert SUMS.n_per_class.tolist() == np.bincount(Y).tolist()
    assert {each.dtype for each in (SUMS.products, SUMS.sums, SUMS.n_per_class)} == {np.dtype(np.int64)}


@given(st.lists(st.integers(0, 4), min_size=300, max_size=300))
def test_sums_of_the_parts_of_any_split_add_up(parties: list[int]) -> None:
    held = np.array(parties)
    total = PairSums.zeros(48, 3)
    for party in range(5):
        total += PairSums.from_data(SPECS, X[held == party], Y[held == party], 3)
    assert total == SUMS


def test_batches_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = FIT.tables(SPECS, X, Y)
    for module in ("pairs", "pair_scoring"):
        monkeypatch.setattr(f"flwr_flynn.model.{module}.BATCH", 28)
    done: list[int] = []
    assert PairSums.from_data(SPECS, X, Y, 3, progress=done.append) == SUMS
    assert sum(done) == 300
    for mine, theirs in zip(FIT.tables(SPECS, X, Y), tables, strict=True):
        assert_array_equal(mine, theirs)


def test_sums_of_other_shapes_do_not_add() -> None:
    with raises(CountsError, field="pair sums"):
        SUMS + PairSums.zeros(48, 4)
    assert PairSums.zeros(48, 3) != SUMS
    assert SUMS != "sums"


# ---- scores


def test_scores_are_those_of_a_regression_with_an_intercept() -> None:
    z = responses(SPECS, X).astype(float)
    weights = FIT.weights * UNIT
    assert_array_equal(FIT.weights, np.rint(FIT.weights))
    residuals = np.eye(3)[Y] - (z @ weights + FIT.bias * UNIT)
    assert np.abs(residuals.mean(axis=0)).max() < 2 * UNIT * 48  # of an intercept that is rounded down
    assert (z @ weights + FIT.bias * UNIT).argmax(axis=1).tolist() == pytest.approx(Y.tolist(), abs=2)
    assert ((FIT.leverages > 0) & (FIT.leverages < 0.8)).all()


def test_samples_that_are_scored_had_about_no_say() -> None:
    """Beside 20 regressions that leave a sample out for good."""
    z = responses(SPECS, X).astype(float)
    scores = z @ (FIT.weights * UNIT) + FIT.bias * UNIT
    own = FIT.leverages[Y, None]
    about = (scores - own * np.eye(3)[Y]) / (1 - own)
    gaps = []
    for i in range(20):
        rest = np.arange(300) != i
        fit = PairFit.of(PairSums.from_data(SPECS, X[rest], Y[rest], 3))
        exact = z[i] @ (fit.weights * UNIT) + fit.bias * UNIT
        gaps.append((np.abs(about[i] - exact).max(), np.abs(scores[i] - exact).max()))
    assert np.mean(gaps, axis=0)[0] < 0.5 * np.mean(gaps, axis=0)[1]


def test_tables_are_those_of_the_written_rule() -> None:
    z = responses(SPECS, X).astype(float)
    scores = z @ (FIT.weights * UNIT) + FIT.bias * UNIT
    own = FIT.leverages[Y, None]
    scores = (scores - own * np.eye(3)[Y]) / (1 - own)
    correct, losses = FIT.tables(SPECS, X, Y)
    logs = np.log(np.bincount(Y) / 300)
    for t, temperature in enumerate(TEMPERATURES):
        found = log_softmax(scores / temperature - logs, axis=1)
        right = found.argmax(axis=1) == Y
        assert correct[t].tolist() == np.bincount(Y[right], minlength=3).tolist()
        expected = -np.maximum(found[np.arange(300), Y], -64)
        assert losses[0, t] * LOSS_UNIT == pytest.approx(expected.sum(), abs=1e-3)


def test_no_samples_give_no_scores_and_a_class_without_samples_is_never_right() -> None:
    nothing = PairFit.of(PairSums.zeros(48, 3))
    assert not nothing.weights.any()
    assert nothing.scoring(SPECS, np.zeros(3, np.int64), nothing.tables(SPECS, X[:0], Y[:0]), None) is None
    assert learn_pairs(SPECS, X[:0], Y[:0], 3, None) is None
    found = learn_pairs(SPECS, X, Y, 5, 0.5)
    assert found is not None
    assert found.log_odds(X).argmax(axis=1).max() == 2
    assert np.isfinite(found.log_odds(X)).all()


def test_one_class_alone_and_samples_that_are_all_alike_give_no_scores() -> None:
    for some, labels in ((X[:9], np.zeros(9, np.int64)), (np.ones((8, 6)), np.arange(8) % 2), (X[:1], Y[:1])):
        assert learn_pairs(SPECS, some, labels, 3, None) is None
    found = learn_pairs(SPECS, X[:2], np.arange(2), 3, None)
    assert found is not None
    assert np.isfinite(found.log_odds(X)).all()


@pytest.mark.parametrize(("accuracy", "share"), [(None, 0.5), (0.9, 0.5), (0.0, 16 / 17), (0.95, 0.18), (1.0, 1 / 17)])
def test_the_better_side_has_more_weight(accuracy: float | None, share: float) -> None:
    correct = np.tile([[90, 90, 90]], (33, 1))
    losses = np.arange(33)[None] + 5
    tables = LeaveOneOutTables(correct, losses)
    found = FIT.scoring(SPECS, np.full(3, 100), tables, accuracy)
    assert found is not None
    assert found.accuracy == 0.9
    assert found.temperature == TEMPERATURES[0]
    assert found.share == pytest.approx(share, abs=0.025)
    assert 1 / 17 <= found.share <= 16 / 17


def wrong_weights(value: int) -> np.ndarray:
    weights = np.array(FIT.weights)
    weights[3, 1] = value
    return weights


def test_leverages_are_about_those_of_the_samples_of_each_class() -> None:
    digits, y = load_digits(return_X_y=True)
    sizes = [100, 100, 100, 100, 5, 5, 5, 2, 2, 1]
    some = np.concatenate([np.flatnonzero(y == label)[:size] for label, size in enumerate(sizes)])
    points, labels = digits[some], y[some]
    model = FlyNNClassifier(hash_dim=1024, pairs=256).fit(points, labels).model_
    assert model.pairs is not None
    z = responses(model.pairs.specs, points).astype(float)
    z -= z.mean(axis=0)
    targets = np.eye(10)[labels] - np.array(sizes) / len(some)
    products, weights = z.T @ z, model.pairs.weights * UNIT
    # The ridge that led to the weights: (products + strength) weights = moments.
    strength = np.sum((z.T @ targets - products @ weights) * weights) / np.sum(weights * weights)
    exact = np.einsum("ij,ji->i", z, np.linalg.solve(products + strength * np.eye(len(products)), z.T))
    of_class = np.array([exact[labels == label].mean() for label in range(10)])
    found = np.asarray(model.pairs.leverages)
    assert np.abs(found - of_class)[:7].max() < 0.1
    assert np.abs(found - of_class)[7:].max() < 0.2
    assert found[4:7].min() > found[:4].max()


def test_the_only_sample_of_its_class_is_never_right() -> None:
    labels = np.where(np.arange(300) == 7, 3, Y)
    fit = PairFit.of(PairSums.from_data(SPECS, X, labels, 4))
    correct, losses = fit.tables(SPECS, X[7:8], labels[7:8])
    assert not correct.any()
    assert (losses == round(64 / LOSS_UNIT)).all()


def test_small_classes_are_not_flattered() -> None:
    """Of 5 samples each has much say in the scores of its class; with the mean leverage of all they seemed right."""
    order = np.random.default_rng(0).permutation(1797)  # the first digits are all of one writer
    digits, y = (array[order] for array in load_digits(return_X_y=True))
    for few in (5, 2):
        sizes = [100] * 4 + [few] * 6
        some = np.concatenate([np.flatnonzero(y == label)[:size] for label, size in enumerate(sizes)])
        rest = np.setdiff1d(np.arange(len(y)), some)
        model = FlyNNClassifier(hash_dim=1024, pairs=512).fit(digits[some], y[some])
        pairs = model.model_.pairs
        assert pairs is not None
        alone = replace(model.model_, pairs=replace(pairs, share=1.0)).scores(digits[rest]).argmax(axis=1)
        right = np.mean([np.mean(alone[y[rest] == label] == label) for label in range(10)])
        assert pairs.accuracy < right + 0.1


def test_samples_are_left_out_as_they_were_tried() -> None:
    tables = FIT.tables(SPECS, X, Y)
    scoring = FIT.scoring(SPECS, SUMS.n_per_class, tables, 0.8)
    assert scoring is not None
    best = int(np.argmin(tables.log_losses[0]))
    odds = scoring.left_out(X, Y, SUMS.n_per_class)
    right = odds.argmax(axis=1) == Y
    assert_array_equal(np.bincount(Y[right], minlength=3), tables.correct[best])
    losses = -log_softmax(odds, axis=1)[np.arange(len(Y)), Y]
    assert_allclose(losses.sum(), tables.log_losses[0, best] * LOSS_UNIT, atol=len(Y) * LOSS_UNIT)
    assert_array_equal(scoring.leverages, FIT.leverages)


def test_samples_that_are_left_out_score_about_as_by_training_without_them() -> None:
    scoring = FIT.scoring(SPECS, SUMS.n_per_class, FIT.tables(SPECS, X, Y), 0.8)
    assert scoring is not None
    own, whole, nearer = scoring.left_out(X, Y, SUMS.n_per_class), scoring.log_odds(X), []
    for i in range(40):
        rest = np.arange(len(Y)) != i
        sums = PairSums.from_data(SPECS, X[rest], Y[rest], 3)
        fit = PairFit.of(sums)
        scores = responses(SPECS, X[i : i + 1]) @ fit.weights.astype(np.int64) + fit.bias
        retrained = log_softmax(scores[0] * UNIT / scoring.temperature - fit.log_shares)
        left_out, with_it = (log_softmax(each[i])[Y[i]] - retrained[Y[i]] for each in (own, whole))
        nearer.append(abs(left_out) <= abs(with_it) + 1e-9)
    assert np.mean(nearer) > 0.75


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": FIT.weights[1:]},
        {"weights": FIT.weights.T},
        {"weights": FIT.weights.astype(np.int64)},
        {"weights": wrong_weights(LARGEST_WEIGHT + 1)},
        {"bias": FIT.bias[:2]},
        {"bias": FIT.bias.astype(float)},
        {"bias": np.array([0, 0, -(2**63)])},
        {"temperature": 0.7},
        {"share": 1.5},
        {"share": float("nan")},
        {"accuracy": -0.1},
        {"specs": SPECS[:1]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_scoring_that_cannot_be_is_refused(changes: dict) -> None:
    with raises(DataError):
        replace(READOUT, **changes)


def test_equal_scorings_have_equal_digests() -> None:
    assert READOUT.sha256() == replace(READOUT, weights=READOUT.weights.copy()).sha256()
    others = [{"share": 0.25}, {"temperature": 1.0}, {"bias": FIT.bias + 1}, {"weights": wrong_weights(5)}]
    digests = {replace(READOUT, **each).sha256() for each in others} | {READOUT.sha256()}
    assert len(digests) == 5
    assert not READOUT.weights.flags.writeable


# ---- a model with pair sums


def test_a_model_has_both_opinions_by_their_weights() -> None:
    labels = np.array(["ash", "birch", "cedar"])[Y]
    for parameters in ({"hash_dim": 64}, {"spec": HashSpec(6, 64, 2, 6, seed=1, signed=True)}):
        plain = FlyNNClassifier(**parameters).fit(X, labels)
        both = FlyNNClassifier(pairs=48, **parameters).fit(X, labels)
        found = both.model_.pairs
        assert found is not None
        assert both.model_.members == plain.model_.members
        ours, theirs = np.log(plain.predict_proba(X)), log_softmax(found.log_odds(X), axis=1)
        expected = softmax((1 - found.share) * ours + found.share * theirs, axis=1)
        np.testing.assert_allclose(both.predict_proba(X), expected, rtol=1e-6, atol=1e-9)
        assert_array_equal(both.novelty(X), plain.novelty(X))
        mostly = both.with_prior(frequencies=[1, 1, 8])
        np.testing.assert_allclose(
            mostly.predict_proba(X), softmax(np.log(expected) + np.log([1, 1, 8]), axis=1), rtol=1e-5, atol=1e-9
        )
        assert mostly.personalized(X, labels).model_.sha256() == both.model_.sha256() != plain.model_.sha256()


def test_pair_sums_are_dropped_with_the_counts_that_they_belong_to() -> None:
    spec = HashSpec(6, 64, 2, 6, seed=1, signed=True)
    fitted = FlyNNClassifier(spec, pairs=48).fit(X[:200], Y[:200])
    other = FlyNNClassifier(spec).fit(X[200:], Y[200:])
    whole = FlyNNClassifier(spec).fit(X, Y)
    assert fitted.model_.pairs is not None
    assert fitted.merge(other).counts_ == whole.counts_
    assert fitted.model_.pairs is None
    again = FlyNNClassifier(spec, pairs=48).fit(X, Y).forget(X[:3], Y[:3])
    assert again.model_.pairs is None
    assert FlyNNClassifier(spec, pairs=48).partial_fit(X, Y, [0, 1, 2]).model_.pairs is None


def test_files_keep_pair_sums(tmp_path) -> None:
    fitted = FlyNNClassifier(hash_dim=64, pairs=48).fit(X, Y)
    fitted.save(tmp_path / "model.npz")
    loaded = FlyNNClassifier.load(tmp_path / "model.npz")
    assert loaded.model_.sha256() == fitted.model_.sha256()
    assert_array_equal(loaded.decision_function(X), fitted.decision_function(X))
    found = loaded.model_.pairs
    assert found is not None
    assert fitted.model_.pairs is not None
    assert found.accuracy == fitted.model_.pairs.accuracy


def test_what_contradicts_pair_sums_is_refused() -> None:
    with raises(ConfigError, field="pairs"):
        FlyNNClassifier(pairs=48, refine_rounds=2).fit(X, Y)
    for wrong in (5, -1, MOST_ROWS + 1, 48.0, "48"):
        with pytest.raises(ValueError, match="pairs"):
            FlyNNClassifier(pairs=wrong).fit(X, Y)
    model = FlyNNClassifier(hash_dim=32, refine_rounds=2).fit(X, Y).model_
    for changes in ({"pairs": READOUT}, {"pairs": replace(READOUT, specs=[HashSpec(5, 48, 2, 6, 1)]), "refined": None}):
        with raises(DataError, field="pairs"):
            replace(model, **changes)


def test_a_class_without_samples_is_below_the_others() -> None:
    fitted = FlyNNClassifier(hash_dim=64, pairs=48).fit(X, Y)
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
                FlyNNClassifier(effort="quick", pairs=n).fit(digits[train], y[train]).score(digits[~train], y[~train])
                for train in folds
            ]
        )
        for n in (0, 1024)
    ]
    assert right[1] > right[0] > 0.95


@pytest.mark.slow
def test_every_processor_and_number_of_threads_makes_the_same_model(tmp_path) -> None:
    code = (
        "import hashlib; from sklearn.datasets import load_digits; from flwr_flynn import FlyNNClassifier;"
        "X, y = load_digits(return_X_y=True); model = FlyNNClassifier(effort='quick', pairs=200).fit(X, y);"
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
