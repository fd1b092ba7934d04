"""The statistic of the refinement: a plain oracle, the law of sums, and the derivative of the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.datasets import load_iris

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn.errors import CountsError
from flwr_flynn.model import portable, refinement
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.refinement import (
    GRID,
    LARGEST_FACTOR,
    LEVELS,
    MOST_LOSS,
    UNIT,
    RefinementStatistic,
    Weights,
    class_factors,
    hashed,
    held_out,
    refined_scores,
    start_weights,
    statistic_of,
    weights_sha256,
)
from flwr_flynn.model.scoring import log_rates
from tests.raising import raises

X, Y = load_iris(return_X_y=True)
HASHERS = [
    FlyHash(HashSpec(4, dim, 2, rho, seed, signed=True, center=(5.8, 3.0, 3.8, 1.2)))
    for dim, rho, seed in ((24, 3, 0), (16, 2, 1))
]
SHAPES = [(24, 3), (16, 3)]
FACTORS = np.array([64, 70, 32])


def weights_of(seed: int, spread: int = 400) -> Weights:
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(-spread, spread + 1, shape).astype(np.int32) for shape in SHAPES)


def found(
    weights: Weights, places: Any = slice(None), factors: np.ndarray = FACTORS, before: Any = None
) -> RefinementStatistic:
    return statistic_of(weights, factors, hashed(HASHERS, X[places], Y[places]), before)


def shown(statistic: RefinementStatistic) -> tuple[Any, ...]:
    tables = [*statistic.gradient, statistic.held_out, statistic.correct, statistic.before]
    assert all(table.dtype == np.int64 for table in tables)
    assert type(statistic.loss) is int
    return statistic.loss, [table.tolist() for table in tables]


def oracle(weights: Weights, factors: list[int], places: Any) -> tuple[Any, ...]:
    """The statistic, with loops over samples, members, bits and classes."""
    gradient = [[[0] * 3 for _ in range(dim)] for dim, _ in SHAPES]
    loss, sizes, correct = 0, [0] * 3, [0] * 3
    is_held_out = held_out(X)
    for place in places:
        bits = [hasher.active(X[place : place + 1])[0].tolist() for hasher in HASHERS]
        label = int(Y[place])
        scores = [
            sum(int(member[i, c]) for member, each in zip(weights, bits, strict=True) for i in each) / 1024
            for c in range(3)
        ]
        filled = [c for c in range(3) if factors[c]]
        if is_held_out[place]:
            sizes[label] += 1
            best = max(filled, key=lambda c: scores[c]) if filled else 0  # `max` takes the first among equals
            correct[label] += best == label
            continue
        if not factors[label]:
            continue
        highest = max(scores[c] for c in filled)
        mass = 0.0
        for c in filled:
            mass += portable.exp(scores[c] - highest)
        for c in filled:
            share = portable.exp(scores[c] - highest) / mass
            residual = round(factors[label] * (share - (c == label)))
            for member, each in zip(gradient, bits, strict=True):
                for i in each:
                    member[i][c] += residual
        loss += round(factors[label] * min(portable.log(mass) - (scores[label] - highest), MOST_LOSS) * 1024)
    return loss, [*gradient, sizes, correct, [0, 0, 0]]


@pytest.mark.parametrize("factors", [[64, 70, 32], [0, 64, 1], [0, 0, 5], [0, 0, 0], [LARGEST_FACTOR, 1, 0]], ids=str)
@pytest.mark.parametrize("spread", [0, 30, 400, 2**20])
def test_the_statistic_is_what_loops_make_of_it(spread: int, factors: list[int]) -> None:
    weights = weights_of(3, spread)
    assert shown(found(weights, factors=np.array(factors))) == oracle(weights, factors, range(150))


def test_samples_held_out_teach_nothing_and_others_judge_nothing() -> None:
    judges = np.flatnonzero(held_out(X))
    others = np.setdiff1d(np.arange(150), judges)
    judged, taught = found(weights_of(1), judges), found(weights_of(1), others)
    assert judged.loss == 0
    assert not any(each.any() for each in judged.gradient)
    assert_array_equal(judged.held_out, np.bincount(Y[judges], minlength=3))
    assert taught.loss > 0
    assert not taught.held_out.any()
    assert not taught.correct.any()


def test_the_model_without_refinement_is_tried_on_the_samples_held_out() -> None:
    seen = []

    def first_class(active: Any) -> np.ndarray:
        seen.append([len(bits) for bits in active])
        return np.tile([1.0, 1.0, 0.0], (len(active[0]), 1))

    sizes = np.bincount(Y[held_out(X)], minlength=3)
    statistic = found(weights_of(0), before=first_class)
    assert statistic.before.tolist() == [sizes[0], 0, 0]
    assert seen == [[sizes.sum()] * 2]
    assert not found(weights_of(0)).before.any()


@given(owners=st.lists(st.integers(0, 6), min_size=150, max_size=150), seed=st.integers(0, 9))
@example(owners=Y.tolist(), seed=0)  # a class each; the others have no samples
@example(owners=[0] * 149 + [1], seed=1)
@settings(max_examples=10, deadline=None)
def test_statistics_of_any_partition_add_up_to_that_of_the_pool(owners: list[int], seed: int) -> None:
    weights = weights_of(seed)
    total = RefinementStatistic.zeros(SHAPES)
    for party in range(7):
        total = total + found(weights, np.array(owners) == party)
    assert shown(total) == shown(found(weights))


def test_statistics_for_other_weights_do_not_add() -> None:
    one, other = RefinementStatistic.zeros(SHAPES), RefinementStatistic.zeros(SHAPES[:1])
    with raises(CountsError, field="tables"):
        one + other


def test_batches_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, done = found(weights_of(2)), []
    monkeypatch.setattr(refinement, "HELD", 35)
    batches = list(hashed(HASHERS, X, Y, progress=done.append))
    assert [len(y) for _, y, _ in batches] == done == [7] * 21 + [3]
    assert shown(statistic_of(weights_of(2), FACTORS, batches)) == shown(whole)
    monkeypatch.setattr(refinement, "_SCORES", 10)  # of three classes: three samples at a time
    assert shown(statistic_of(weights_of(2), FACTORS, batches)) == shown(whole)
    assert list(hashed(HASHERS, X[:0], Y[:0])) == []


def test_the_gradient_is_the_derivative_of_the_loss() -> None:
    """By differences, with factors so large that rounding of the residuals is small."""
    factors = np.array([2**20, 2**19, 2**18])
    weights = weights_of(5, 100)
    gradient = found(weights, factors=factors).gradient
    for member, bit, label in [(0, 3, 0), (0, 17, 2), (1, 5, 1), (1, 9, 0)]:
        losses = []
        for step in (-4, 4):
            moved = [each.copy() for each in weights]
            moved[member][bit, label] += step
            losses.append(found(tuple(moved), factors=factors).loss)
        slope = (losses[1] - losses[0]) / 8  # of a loss in units of UNIT, by weights in the same units
        assert slope == pytest.approx(gradient[member][bit, label], rel=1e-3, abs=100)


def test_a_sure_sample_costs_nothing_and_a_hopeless_one_no_more_than_the_most() -> None:
    for sign, loss, residual in ((1, 0, 0), (-1, round(64 * MOST_LOSS / UNIT), 64)):
        weights = tuple(np.zeros(shape, np.int32) for shape in SHAPES)
        for each in weights:
            each[:, 0] = sign * 2**20
        place = int(np.flatnonzero(~held_out(X) & (Y == 0))[0])
        statistic = found(weights, [place], np.array([64, 64, 64]))
        assert statistic.loss == loss
        assert int(statistic.gradient[0][:, 0].sum()) == -3 * residual
        assert int(sum(each.sum() for each in statistic.gradient)) == 0


def test_scores_are_exact_sums_of_weights() -> None:
    active = [hasher.active(X[:9]) for hasher in HASHERS]
    for weights in (weights_of(0), weights_of(0, 2**20)):
        expected = sum(each[bits].astype(np.int64).sum(axis=1) for each, bits in zip(weights, active, strict=True))
        assert_array_equal(refined_scores(weights, active), expected / 1024)
        fortran = tuple(np.asfortranarray(each) for each in weights)
        assert_array_equal(refined_scores(fortran, active), expected / 1024)
        assert weights_sha256(fortran) == weights_sha256(weights)
    assert len({weights_sha256(weights_of(seed)) for seed in range(3)}) == 3


# ---- factors


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([50, 50, 50], [64, 64, 64]),
        ([0, 50, 50], [0, 64, 64]),
        ([1, 99, 0], [3200, 32, 0]),
        ([0, 0, 0], [0, 0, 0]),
        ([7], [64]),
        ([1, 2**40], [LARGEST_FACTOR, 32]),
        ([10**9, *[1] * 999], [1, *[64 * 10**6] * 999]),
    ],
)
def test_factors_make_classes_weigh_the_same(sizes: list[int], expected: list[int]) -> None:
    found = class_factors(np.array(sizes))
    assert found.dtype == np.int64
    assert found.tolist() == [min(factor, LARGEST_FACTOR) for factor in expected]


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=300))
def test_every_class_with_samples_has_a_factor(sizes: list[int]) -> None:
    factors = class_factors(np.array(sizes))
    assert ((factors > 0) == (np.array(sizes) > 0)).all()
    assert factors.max() <= LARGEST_FACTOR
    mean = sum(sizes) / max(np.count_nonzero(sizes), 1)
    for size, factor in zip(sizes, factors.tolist(), strict=True):
        if size and 1 < factor < LARGEST_FACTOR:
            assert abs(factor - LEVELS * mean / size) <= 0.5 + 1e-6


# ---- samples held out


@given(st.permutations(range(150)), st.integers(1, 149))
@settings(max_examples=20)
def test_samples_are_held_out_by_their_content(order: list[int], cut: int) -> None:
    mask = held_out(X)
    shuffled = X[order]
    assert_array_equal(np.concatenate([held_out(shuffled[:cut]), held_out(shuffled[cut:])]), mask[order])


def test_dense_and_sparse_samples_are_held_out_alike() -> None:
    rng = np.random.default_rng(0)
    dense = rng.integers(0, 3, (4000, 6)) * rng.integers(0, 2, (4000, 6)) * 1.0 + rng.integers(0, 1000, (4000, 1))
    mask = held_out(dense)
    for other in (sp.csr_array(dense), sp.csr_matrix(dense), np.asfortranarray(dense), dense.astype(np.float32)):
        assert_array_equal(held_out(other), mask)
    assert 0.05 < mask.mean() < 0.15
    assert held_out(dense[:0]).tolist() == []


# ---- the start


def counts_of(places: Any, n_classes: int = 3) -> list[ClassCounts]:
    return [ClassCounts.from_data(hasher, X[places], Y[places], n_classes) for hasher in HASHERS]


def test_the_start_is_read_from_the_counts() -> None:
    counts = counts_of(slice(None))
    weights = start_weights(counts)
    assert [(each.shape, each.dtype) for each in weights] == [(shape, np.int32) for shape in SHAPES]
    for each, part in zip(weights, counts, strict=True):
        rates = log_rates(part)
        expected = 3 / 5 * 1024 * (rates - rates.mean(axis=1, keepdims=True))
        assert not (each % GRID).any()
        assert np.abs(each - expected).max() <= GRID / 2 + 1e-9


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_class_without_samples_starts_at_0_and_changes_nothing(empty: int) -> None:
    counts = counts_of(empty != Y)
    for each, part in zip(start_weights(counts), counts, strict=True):
        assert not each[:, empty].any()
        rates = np.delete(log_rates(part), empty, axis=1)
        expected = 3 / 5 * 1024 * (rates - rates.mean(axis=1, keepdims=True))
        assert np.abs(np.delete(each, empty, axis=1) - expected).max() <= GRID / 2 + 1e-9


def test_counts_of_nothing_of_one_sample_and_of_one_class_start_somewhere() -> None:
    for places in ([], [3], Y == 1):
        for each in start_weights(counts_of(places)):
            assert (each == 0).all()
    one = FlyHash(HashSpec(4, 2000, 2, 1, 0))
    lopsided = ClassCounts.from_data(one, np.tile(X[:1], (2000, 1)), np.arange(2000) // 1999, 2)
    (weights,) = start_weights([lopsided])
    assert 0 < np.abs(weights).max() < 2**20
