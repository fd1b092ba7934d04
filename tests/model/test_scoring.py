"""Decision rules against their formulas in exact decimal arithmetic."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from flwr_flynn import ClassCounts
from flwr_flynn.model import scoring as scoring_module
from flwr_flynn.model.scoring import RULES, ScoringRule, class_novelty, class_scores
from tests.strategies import FINGERPRINT, counted, hashes, training_sets

WIDE = Context(prec=50, Emin=-(10**17), Emax=10**17)


def naive_score(counts, bits, label, decay, rule):
    """One class's score of one point, from the formula in the module's docstring."""
    sizes = counts.n_per_class.tolist()
    filled = [size for size in sizes if size]
    with localcontext(WIDE):
        row = [Decimal(int(counts.array[label, bit])) for bit in bits]
        if rule == "balanced" and sizes[label]:
            scale = Decimal(sum(filled)) / len(filled) / sizes[label]
            row = [count * scale for count in row]
        f = Decimal(row.count(0))  # also where the decay is 0
        f += sum(Decimal(decay) ** exponent for exponent in row if exponent)
        if decay == 0:
            f = max(f, Decimal("0.5"))
        return float(-f.ln())


def naive_scores(counts, active, decay, rule):
    scores = np.empty((len(active), counts.n_classes))
    filled = [label for label in range(counts.n_classes) if counts.n_per_class[label]]
    for p, bits in enumerate(active):
        for label in filled or range(counts.n_classes):
            scores[p, label] = naive_score(counts, bits, label, decay, rule)
        for label in set(range(counts.n_classes)) - set(
            filled or range(counts.n_classes)
        ):
            scores[p, label] = scores[p, filled].min() - 1
    return scores


decays = st.one_of(st.sampled_from([0.0, 0.5, 0.8, 0.999999]), st.floats(1e-9, 0.9999))


@given(training_sets(), decays, st.sampled_from(RULES))
def test_scores_are_the_formula(training, decay, rule):
    active, y, n_classes, hash_dim = training
    counts = counted(active, y, n_classes, hash_dim)
    points = hashes(np.random.default_rng(0), 6, hash_dim, active.shape[1])
    scores = class_scores(counts, points, ScoringRule(rule, decay))
    assert scores.shape == (6, n_classes)
    assert_allclose(
        scores, naive_scores(counts, points, decay, rule), rtol=1e-12, atol=2**-36
    )


@given(training_sets(), decays)
def test_novelty_is_the_papers(training, decay):
    active, y, n_classes, hash_dim = training
    counts = counted(active, y, n_classes, hash_dim)
    points = hashes(np.random.default_rng(0), 6, hash_dim, active.shape[1])
    expected = [
        [
            sum(decay ** counts.array[c, i] for i in bits) / len(bits)
            for c in range(n_classes)
        ]
        for bits in points
    ]
    assert_allclose(class_novelty(counts, points, decay), expected, rtol=1e-13)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", [0.0, 0.1, 0.9, 0.999999, 1e-300])
@pytest.mark.parametrize("size", [10**3, 10**6, 10**12])
def test_no_count_underflows(decay, size, rule):
    counts = ClassCounts(
        [[size, size, 0], [size - 1, size, 1]], hash_nnz=2, spec_fingerprint=FINGERPRINT
    )
    points = np.array([[0, 1], [0, 2], [1, 2]])
    scores = class_scores(counts, points, ScoringRule(rule, decay))
    assert np.isfinite(scores).all()
    assert_allclose(
        scores, naive_scores(counts, points, decay, rule), rtol=1e-12, atol=2**-36
    )
    more = ClassCounts(
        [[size, 0, 0], [size - 1, 1, 0]], hash_nnz=1, spec_fingerprint=FINGERPRINT
    )
    ((one, less),) = class_scores(more, [[0]], ScoringRule(rule, decay))
    # A point more makes a difference at any count.
    assert one > less or decay not in (0.1, 0.9)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", [0.0, 0.7, 0.999])
def test_a_score_does_not_depend_on_its_company(rule, decay, monkeypatch):
    rng = np.random.default_rng(2)
    active = hashes(rng, 200, 64, 16)
    y = rng.integers(0, 5, 200)
    counts = counted(active, y, 5, 64)
    points = hashes(rng, 50, 64, 16)
    together = class_scores(counts, points, ScoringRule(rule, decay))
    alone = [
        class_scores(counts, points[p : p + 1], ScoringRule(rule, decay))
        for p in range(50)
    ]
    assert_array_equal(together, np.concatenate(alone))
    assert_array_equal(
        class_novelty(counts, points, decay)[:1],
        class_novelty(counts, points[:1], decay),
    )
    monkeypatch.setattr(scoring_module, "BLOCK", 7)
    assert_array_equal(together, class_scores(counts, points, ScoringRule(rule, decay)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.99, 0.999999])
def test_classes_that_the_formula_ranks_alike_tie(decay, rule):
    # Class 1 has the counts of class 0 in another order, so the same terms are added in
    # another order.
    rng = np.random.default_rng(6)
    for _ in range(20):
        row = rng.integers(0, 50, 40)
        rows = np.array(
            [np.concatenate([half, 50 - half]) for half in (row, rng.permutation(row))]
        )
        counts = ClassCounts(rows, hash_nnz=40, spec_fingerprint=FINGERPRINT)
        ((first, second),) = class_scores(
            counts, np.arange(40)[None], ScoringRule(rule, decay)
        )
        assert first == second


def test_log_odds_keep_the_order_of_scores():
    scores = np.unique(
        (np.random.default_rng(0).normal(size=10**4) ** 4 * 20 - np.log(32)).round(9)
    )
    assert (np.diff(scoring_module.log_odds(scores[None], 32)[0]) > 0).all()
    close = 40 + np.arange(20) / 2**36  # scores are multiples of this
    assert (np.diff(scoring_module.log_odds(close[None], 32)) > 0).all()
    assert_array_equal(
        scoring_module.log_odds(np.array([[-np.inf, 0.0]]), 32)[0, 0], -np.inf
    )


COUNTS = ClassCounts(np.zeros((2, 12), int), hash_nnz=4, spec_fingerprint=FINGERPRINT)


def test_no_samples_no_scores():
    nothing = np.empty((0, 4), np.int32)
    assert class_scores(COUNTS, nothing, ScoringRule("balanced", 0.5)).shape == (0, 2)
    assert class_novelty(COUNTS, nothing, 0.5).shape == (0, 2)
