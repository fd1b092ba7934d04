"""Read-outs against their formulas in exact decimal arithmetic, and leave-one-out against retraining."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from flwr_flynn import ClassCounts
from flwr_flynn.model import scoring
from flwr_flynn.model.scoring import RULES

FINGERPRINT = 64 * "0"
WIDE = Context(prec=50, Emin=-(10**17), Emax=10**17)


def counted(active, y, n_classes, hash_dim):
    """Counts of hashes, one at a time."""
    array = np.zeros((n_classes, hash_dim), np.int64)
    for bits, label in zip(active, y, strict=True):
        for bit in bits:
            array[label, bit] += 1
    return ClassCounts(array, hash_nnz=active.shape[1], spec_fingerprint=FINGERPRINT)


def naive_score(counts, bits, label, decay, rule):
    """One class's score of one point, from the formula in the module's docstring."""
    sizes = counts.n_per_class.tolist()
    filled = [size for size in sizes if size]
    with localcontext(WIDE):
        row = [Decimal(int(counts.array[label, bit])) for bit in bits]
        if rule == "bayes":
            a = Decimal("0.1")
            size = Decimal(sizes[label]) + a * counts.hash_dim / counts.hash_nnz
            return float(sum(((count + a) / size).ln() for count in row))
        if rule == "balanced" and sizes[label]:
            scale = Decimal(sum(filled)) / len(filled) / sizes[label]
            row = [count * scale for count in row]
        f = sum(Decimal(1) if exponent == 0 else Decimal(decay) ** exponent for exponent in row)
        return float(-max(f, Decimal("0.5") if decay == 0 else f).ln())


def naive_scores(counts, active, decay, rule):
    scores = np.empty((len(active), counts.n_classes))
    filled = [label for label in range(counts.n_classes) if counts.n_per_class[label]]
    for p, bits in enumerate(active):
        for label in filled or range(counts.n_classes):
            scores[p, label] = naive_score(counts, bits, label, decay, rule)
        for label in set(range(counts.n_classes)) - set(filled or range(counts.n_classes)):
            scores[p, label] = scores[p, filled].min() - 1
    return scores


def hashes(rng, n_points, hash_dim, hash_nnz):
    rows = [np.sort(rng.choice(hash_dim, hash_nnz, replace=False)) for _ in range(n_points)]
    return np.array(rows, np.int32).reshape(n_points, hash_nnz)


def retrained(active, y, n_classes, hash_dim, decays, rule):
    """Confusion matrices of as many models as there are points."""
    matrices = np.zeros((len(decays), n_classes, n_classes), np.int64)
    for p in range(len(y)):
        rest = np.arange(len(y)) != p
        model = counted(active[rest], y[rest], n_classes, hash_dim)
        for d, decay in enumerate(decays):
            matrices[d, y[p], model.scores(active[p : p + 1], decay, rule)[0].argmax()] += 1
    return matrices


@st.composite
def training_sets(draw):
    """Hashes and classes: few bits and points, so that ties, empty classes and classes of one point are common."""
    hash_dim = draw(st.integers(1, 9))
    hash_nnz = draw(st.integers(1, hash_dim))
    n_classes = draw(st.integers(1, 4))
    n_points = draw(st.integers(0, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return hashes(rng, n_points, hash_dim, hash_nnz), rng.integers(0, n_classes, n_points), n_classes, hash_dim


decays = st.one_of(st.sampled_from([0.0, 0.5, 0.8, 0.999999]), st.floats(1e-9, 0.9999))


@given(training_sets(), decays, st.sampled_from(RULES))
def test_scores_are_the_formula(training, decay, rule):
    active, y, n_classes, hash_dim = training
    counts = counted(active, y, n_classes, hash_dim)
    points = hashes(np.random.default_rng(0), 6, hash_dim, active.shape[1])
    scores = counts.scores(points, decay, rule)
    assert scores.shape == (6, n_classes)
    assert_allclose(scores, naive_scores(counts, points, decay, rule), rtol=1e-12, atol=2**-36)


@given(training_sets(), decays)
def test_novelty_is_the_papers(training, decay):
    active, y, n_classes, hash_dim = training
    counts = counted(active, y, n_classes, hash_dim)
    points = hashes(np.random.default_rng(0), 6, hash_dim, active.shape[1])
    expected = [
        [sum(decay ** counts.array[c, i] for i in bits) / len(bits) for c in range(n_classes)] for bits in points
    ]
    assert_allclose(counts.novelty(points, decay), expected, rtol=1e-13)


@given(training_sets(), decays, st.sampled_from(RULES))
def test_leave_one_out_is_retraining(training, decay, rule):
    active, y, n_classes, hash_dim = training
    counts = counted(active, y, n_classes, hash_dim)
    expected = retrained(active, y, n_classes, hash_dim, [decay], rule)
    assert_array_equal(counts.leave_one_out(active, y, [decay], rule), expected)


@pytest.mark.parametrize("rule", RULES)
def test_leave_one_out_is_retraining_on_larger_sets(rule):
    rng = np.random.default_rng(5)
    y = np.sort(rng.choice(6, 120, p=[0.5, 0.3, 0.1, 0.05, 0.04, 0.01]))
    y[y == 4] = 0  # an empty class, and with the last a class of one
    active = hashes(rng, 120, 60, 12)
    grid = [0.0, 0.3, 0.9, 0.999999, 1e-300]
    expected = retrained(active, y, 7, 60, grid, rule)
    assert_array_equal(counted(active, y, 7, 60).leave_one_out(active, y, grid, rule), expected)


def test_leave_one_out_takes_the_point_out_of_the_mean_class_size():
    # It changes all exponents alike, and so seldom the winner: many small sets are needed to see it.
    rng = np.random.default_rng(7)
    for _ in range(300):
        active, y = hashes(rng, 6, 12, 6), rng.choice(3, 6, p=[0.6, 0.2, 0.2])
        expected = retrained(active, y, 3, 12, [0.3, 0.6], "balanced")
        assert_array_equal(counted(active, y, 3, 12).leave_one_out(active, y, [0.3, 0.6]), expected)


def test_leave_one_out_of_some_points():
    rng = np.random.default_rng(1)
    active, y = hashes(rng, 30, 40, 5), rng.integers(0, 3, 30)
    counts = counted(active, y, 3, 40)
    parts = [counts.leave_one_out(active[part], y[part], [0.5, 0.9]) for part in (slice(12), slice(12, 30))]
    assert_array_equal(sum(parts), counts.leave_one_out(active, y, [0.5, 0.9]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999999, 1e-300])
@pytest.mark.parametrize("size", [10**3, 10**6, 10**12])
def test_no_count_underflows(decay, size, rule):
    counts = ClassCounts([[size, size, 0], [size - 1, size, 1]], hash_nnz=2, spec_fingerprint=FINGERPRINT)
    points = np.array([[0, 1], [0, 2], [1, 2]])
    scores = counts.scores(points, decay, rule)
    assert np.isfinite(scores).all()
    assert_allclose(scores, naive_scores(counts, points, decay, rule), rtol=1e-12, atol=2**-36)


@pytest.mark.parametrize("decay", [0.1, 0.9])
@pytest.mark.parametrize("rule", ["balanced", "novelty"])
def test_one_point_more_makes_a_difference_at_any_count(decay, rule):
    counts = ClassCounts([[10**12, 0, 0], [10**12 - 1, 1, 0]], hash_nnz=1, spec_fingerprint=FINGERPRINT)
    (scores,) = counts.scores([[0]], decay, rule)
    assert scores[0] > scores[1]


def test_no_decay_counts_the_new_bits():
    counts = ClassCounts([[3, 3, 3, 0], [3, 3, 2, 1], [3, 2, 1, 3]], hash_nnz=3, spec_fingerprint=FINGERPRINT)
    scores = counts.scores([[0, 1, 2], [0, 1, 3]], 0.0, "novelty")
    assert_allclose(scores, [[np.log(2), np.log(2), np.log(2)], [0, np.log(2), np.log(2)]], atol=2**-36)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", [0.0, 0.7, 0.999])
def test_a_score_does_not_depend_on_its_company(rule, decay, monkeypatch):
    rng = np.random.default_rng(2)
    active, y = hashes(rng, 200, 64, 16), rng.integers(0, 5, 200)
    counts = counted(active, y, 5, 64)
    points = hashes(rng, 50, 64, 16)
    together = counts.scores(points, decay, rule)
    assert_array_equal(together, np.concatenate([counts.scores(points[p : p + 1], decay, rule) for p in range(50)]))
    assert_array_equal(counts.novelty(points, decay)[:1], counts.novelty(points[:1], decay))
    confusion = counts.leave_one_out(active, y, [decay], rule)
    monkeypatch.setattr(scoring, "_BLOCK", 7)
    assert_array_equal(together, counts.scores(points, decay, rule))
    assert_array_equal(confusion, counts.leave_one_out(active, y, [decay], rule))


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.99])
def test_rules_agree_on_classes_of_equal_size(decay):
    rng = np.random.default_rng(3)
    active, y = hashes(rng, 40, 32, 6), np.arange(40) % 4
    counts = counted(active, y, 4, 32)
    assert_array_equal(counts.scores(active, decay, "balanced"), counts.scores(active, decay, "novelty"))
    assert counts.suggest_decay("balanced") == counts.suggest_decay("novelty")


@pytest.mark.parametrize("rule", RULES)
def test_balanced_rules_do_not_care_for_the_number_of_copies(rule):
    rng = np.random.default_rng(4)
    counts = counted(hashes(rng, 40, 32, 6), np.arange(40) % 2, 2, 32)
    copied = ClassCounts(counts.array * [[100], [1]], hash_nnz=6, spec_fingerprint=FINGERPRINT)
    points = hashes(rng, 200, 32, 6)
    once, often = (c.scores(points, 0.9 ** (20 / c.n_examples), rule).argmax(axis=1) for c in (counts, copied))
    agreement = (once == often).mean()
    assert agreement < 0.9 if rule == "novelty" else agreement > 0.9


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.99, 0.999999])
def test_classes_that_the_formula_ranks_alike_tie(decay, rule):
    # Class 1 has the counts of class 0 in another order, so the same terms are added in another order.
    rng = np.random.default_rng(6)
    for _ in range(20):
        row = rng.integers(0, 50, 40)
        rows = np.array([np.concatenate([half, 50 - half]) for half in (row, rng.permutation(row))])
        counts = ClassCounts(rows, hash_nnz=40, spec_fingerprint=FINGERPRINT)
        ((first, second),) = counts.scores(np.arange(40)[None], decay, rule)
        assert first == second


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_class_never_wins(rule):
    counts = ClassCounts([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]], hash_nnz=2, spec_fingerprint=FINGERPRINT)
    for decay in (0.0, 0.5, 0.999999):
        scores = counts.scores([[2, 3], [0, 1]], decay, rule)  # the first point is new to every class
        assert_array_equal(scores.argmax(axis=1), 1)
        assert_array_equal(scores[:, 0], scores[:, 1] - 1)


@pytest.mark.parametrize("rule", RULES)
def test_without_any_points_the_first_class_wins(rule):
    counts = ClassCounts(np.zeros((3, 4), int), hash_nnz=2, spec_fingerprint=FINGERPRINT)
    scores = counts.scores([[2, 3]], 0.5, rule)
    assert np.isfinite(scores).all()
    assert_array_equal(scores, scores[0, 0])


def test_typical_counts():
    counts = ClassCounts([[4, 2, 2, 0], [0, 0, 2, 2]], hash_nnz=2, spec_fingerprint=FINGERPRINT)  # 4 and 2 points
    typical, alike = scoring.typical_counts(counts.array, counts.n_per_class, "novelty")
    assert typical == (16 + 4 + 4 + 4 + 4) / 12
    assert alike == pytest.approx(((4**2 + 2**2 + 4**2 + 2**2) / 2 + 12) / 12)
    typical, _ = scoring.typical_counts(counts.array, counts.n_per_class, "balanced")  # scaled to 3 points each
    assert typical == pytest.approx((3**2 + 2 * 1.5**2 + 2 * 3**2) / 12)


@pytest.mark.parametrize("seed", range(3))
def test_classes_of_random_labels_are_alike(seed):
    rng = np.random.default_rng(seed)
    counts = counted(hashes(rng, 3000, 100, 10), rng.choice(3, 3000, p=[0.6, 0.3, 0.1]), 3, 100)
    typical, alike = scoring.typical_counts(counts.array, counts.n_per_class, "balanced")
    assert typical == pytest.approx(alike, rel=0.02)


def test_log_odds_keep_the_order_of_scores():
    scores = np.unique((np.random.default_rng(0).normal(size=10**4) ** 4 * 20 - np.log(32)).round(9))
    for rule in scoring.RULES:
        odds = scoring.log_odds(scores[None], 32, rule)[0]
        assert (np.diff(odds) > 0).all()
    close = 40 + np.arange(20) / 2**36  # scores are multiples of this
    assert (np.diff(scoring.log_odds(close[None], 32, "balanced")) > 0).all()
    assert_array_equal(scoring.log_odds(np.array([[-np.inf, 0.0]]), 32, "balanced")[0, 0], -np.inf)
