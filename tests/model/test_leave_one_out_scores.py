"""Leave-one-out against retraining, and its tables as sums over parties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.special import log_softmax

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.model import scoring as scoring_module
from flwr_flynn.model import selection as leave_one_out
from flwr_flynn.model import subsample
from flwr_flynn.model.scoring import (
    RULES,
    TEMPERATURES,
    ScoringRule,
    class_scores,
    log_odds,
)
from flwr_flynn.model.selection import (
    hashed_batches,
    leave_one_out_tables,
    left_out_scores,
)
from tests.strategies import counted, hashes, training_sets

decays = st.one_of(st.sampled_from([0.0, 0.5, 0.8, 0.999999]), st.floats(1e-9, 0.9999))


def retrained(active, y, n_classes, hash_dim, decays, rule):
    """Confusion matrices of as many models as there are points."""
    matrices = np.zeros((len(decays), n_classes, n_classes), np.int64)
    for p in range(len(y)):
        rest = np.arange(len(y)) != p
        model = counted(active[rest], y[rest], n_classes, hash_dim)
        for d, decay in enumerate(decays):
            matrices[
                d,
                y[p],
                class_scores(model, active[p : p + 1], ScoringRule(rule, decay))[
                    0
                ].argmax(),
            ] += 1
    return matrices


def left_out(counts, active, y, decays, rule):
    """Confusion matrices, (D, L, L), of the predictions by leave-one-out."""
    matrices = np.zeros((len(decays), counts.n_classes, counts.n_classes), np.int64)
    for k, true, scores in left_out_scores(
        counts, active, y, [ScoringRule(rule, decay) for decay in decays]
    ):
        np.add.at(matrices[k], (true, scores.argmax(axis=1)), 1)
    return matrices


@given(
    training_sets(), st.lists(decays, min_size=1, max_size=3), st.sampled_from(RULES)
)
def test_leave_one_out_is_retraining_and_tables_have_what_is_right_of_each_class(
    training, gammas, rule
):
    active, y, n_classes, hash_dim = training
    counts = counted(active, y, n_classes, hash_dim)
    expected = retrained(active, y, n_classes, hash_dim, gammas, rule)
    assert_array_equal(left_out(counts, active, y, gammas, rule), expected)
    candidates = [ScoringRule(rule, gamma) for gamma in gammas]
    table = leave_one_out_tables(counts, [(active, y)], candidates)
    assert_array_equal(table.correct, np.diagonal(expected, axis1=1, axis2=2))
    assert table.correct.dtype == table.log_losses.dtype == np.int64
    assert not leave_one_out_tables(
        counts, [(active, y)], candidates, with_losses=False
    ).log_losses.any()


@pytest.mark.parametrize("rule", RULES)
def test_leave_one_out_takes_the_point_out_of_the_mean_class_size(rule):
    # It changes all exponents alike, and so seldom the winner: many small sets are
    # needed to see it.
    rng = np.random.default_rng(7)
    grid = [0.0, 0.3, 0.6, 0.999999, 1e-300]
    for _ in range(300):
        active = hashes(rng, 6, 12, 6)
        y = rng.choice(3, 6, p=[0.6, 0.2, 0.2])
        expected = retrained(active, y, 4, 12, grid, rule)
        assert_array_equal(
            left_out(counted(active, y, 4, 12), active, y, grid, rule), expected
        )


@pytest.mark.parametrize("class_weight", [None, "balanced", np.array([1.0, 0.5, 3.0])])
@pytest.mark.parametrize("rule", RULES)
def test_log_losses_are_those_of_posteriors_of_retrained_models(rule, class_weight):
    """With the frequencies of all samples as prior.

    Weights are those of samples, too, up to a factor.
    """
    rng = np.random.default_rng(8)
    active = hashes(rng, 40, 30, 6)
    y = rng.choice(3, 40, p=[0.6, 0.3, 0.1])
    counts = counted(active, y, 3, 30)
    one = [ScoringRule(rule, 0.7)]
    table = leave_one_out_tables(
        counts, [(active, y)], one, class_weight=class_weight
    ).log_losses[0]
    if class_weight is None:
        weights = np.ones(3)
    else:
        weights = class_weight
    if isinstance(weights, str):
        frequencies = np.ones(3)
    else:
        frequencies = np.bincount(y) * weights
    if isinstance(weights, str):  # each class weighs the same in all
        importance = np.bincount(y).min() / np.bincount(y)
    else:
        importance = weights / weights.max()
    expected = np.zeros(len(TEMPERATURES))
    for p in range(len(y)):
        rest = np.arange(len(y)) != p
        model = counted(active[rest], y[rest], 3, 30)
        (odds,) = log_odds(
            class_scores(model, active[p : p + 1], ScoringRule(rule, 0.7)), 6
        )
        for t, temperature in enumerate(TEMPERATURES):
            posterior = log_softmax(
                (odds - odds.max()) / temperature + np.log(frequencies)
            )
            expected[t] += min(-posterior[y[p]], 64.0) * importance[y[p]]
    np.testing.assert_allclose(table / 2.0**20, expected, atol=len(y) * 2.0**-20)


def test_losses_of_a_class_of_which_some_samples_are_left_out_weigh_as_all_of_them(
    monkeypatch,
):
    rng = np.random.default_rng(3)
    active = hashes(rng, 60, 30, 6)
    y = np.repeat([0, 1, 2], [40, 15, 5])
    counts = counted(active, y, 3, 30)
    one = [ScoringRule("balanced", 0.7)]
    by_class = [
        leave_one_out_tables(counts, [(active[y == c], y[y == c])], one).log_losses[0]
        for c in range(3)
    ]
    monkeypatch.setattr(subsample, "N_LEFT_OUT", 30)  # about 10 of each class
    for label, share in enumerate([10 / 40, 10 / 15, 1.0]):
        some = (active[y == label], y[y == label])
        losses = leave_one_out_tables(counts, [some], one).log_losses[0]
        np.testing.assert_allclose(losses, by_class[label] * (10 / 40) / share, atol=40)


def test_blocks_and_batches_do_not_show(monkeypatch):
    rng = np.random.default_rng(2)
    hasher = FlyHash(HashSpec(4, 64, 2, 16, seed=1, signed=True))
    X = rng.normal(size=(200, 4))
    y = rng.integers(0, 5, 200)
    counts = ClassCounts.from_data(hasher, X, y, 5)
    candidates = [
        ScoringRule(rule, decay) for rule in RULES for decay in (0.0, 0.7, 0.999)
    ]
    expected = leave_one_out_tables(counts, [(hasher.active(X), y)], candidates)
    monkeypatch.setattr(scoring_module, "BLOCK", 7)
    monkeypatch.setattr(leave_one_out, "HELD", 300)
    held = list(hashed_batches(hasher, X, y))
    tables = leave_one_out_tables(counts, held, candidates)
    assert_array_equal(tables.correct, expected.correct)
    assert_array_equal(tables.log_losses, expected.log_losses)
    assert len(held) > 5
    assert sum(len(codes) for _, codes in held) == 200
    assert list(hashed_batches(hasher, X[:0], y[:0])) == []
