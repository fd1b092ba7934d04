"""Matrix scaling: sums against plain loops, and the search against a minimiser that needs no sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.special import log_softmax

from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.model.matrix_scaling import (
    LARGEST_WEIGHT,
    N_EXCHANGES,
    UNIT,
    Scaling,
    ScalingStatistic,
    checked_matrix,
    identity,
    is_identity,
    largest,
    scaled,
    shapes,
    statistic_of,
)
from tests.raising import raises

RNG = np.random.default_rng(0)
L, N = 4, 600
Y = RNG.integers(L, size=N)
# Classes 0 and 1 pass for each other, and all scores are twice as sure as they should be.
SCORES = 2 * (np.eye(L)[Y] + RNG.normal(size=(N, L)) + 0.7 * np.eye(L)[[1, 0, 2, 3]][Y])
SIZES, START = np.bincount(Y), identity(L)


def objective(matrix: np.ndarray, scores: np.ndarray, y: np.ndarray) -> float:
    """What is minimised, without sums of integers."""
    difference = matrix - np.eye(L + 1, L)
    logs = log_softmax(scores @ matrix[:-1] + matrix[-1] + np.log(SIZES / N), axis=1)
    return float(-logs[np.arange(len(y)), y].sum() + 15 * (difference**2).sum())


def searched(scores: np.ndarray, y: np.ndarray, n: int, sizes: np.ndarray = SIZES) -> Scaling:
    search = Scaling.of(scores.shape[1])
    for _ in range(n):
        if not search.is_done:
            search = search.take(statistic_of(scores, y, sizes, search.trial, search.known))
    return search


def test_sums_are_those_of_plain_loops() -> None:
    matrix, best = (identity(L) + RNG.integers(-2000, 2000, size=(L + 1, L)).astype(np.int32) for _ in range(2))
    for given_, has_curvature in ((matrix, False), (identity(L), True)):
        found = statistic_of(SCORES, Y, SIZES, given_, best)
        inputs = np.rint(SCORES * 32)
        before, logs = (
            log_softmax((inputs / 32) @ (each[:-1] * UNIT) + each[-1] * UNIT + np.log(SIZES / N), axis=1)
            for each in (best, given_)
        )
        residuals = np.rint(256 * (np.exp(logs) - np.eye(L)[Y]))
        inputs_and_1 = np.column_stack([inputs, np.full(N, 32)])
        losses = [sum(round(1024 * -each) for each in both[np.arange(N), Y]) for both in (logs, before)]
        assert found.loss.tolist() == losses
        assert_array_equal(found.gradient, inputs_and_1.T @ residuals)
        assert (found.curvature is not None) == has_curvature
        if found.curvature is None:
            continue
        coarse = np.column_stack([np.rint(inputs / 8), np.full(N, 4)])
        for label, row in enumerate(found.curvature):
            shares = np.exp(logs[:, label])
            whole = (coarse * np.rint(256 * shares * (1 - shares))[:, None]).T @ coarse
            assert_array_equal(row, whole[np.triu_indices(L + 1)])


@given(owners=st.lists(st.integers(0, 2), min_size=N, max_size=N))
@settings(max_examples=10, deadline=None)
def test_statistics_of_parts_add_up_to_that_of_the_whole(owners: list[int]) -> None:
    own = [np.array(owners) == i for i in range(3)]
    parts = [statistic_of(SCORES[each], Y[each], SIZES, START, START) for each in own]
    total = sum(parts, ScalingStatistic.zeros(L, True))
    for one, other in zip(total.parts, statistic_of(SCORES, Y, SIZES, START, START).parts, strict=True):
        assert_array_equal(one, other)
        assert one.dtype == np.int64


def test_statistics_of_different_exchanges_do_not_add() -> None:
    with pytest.raises(CountsError):
        ScalingStatistic.zeros(L, True) + ScalingStatistic.zeros(L, False)


def test_the_search_comes_near_the_minimum() -> None:
    start = np.eye(L + 1, L)
    best = minimize(lambda flat: objective(flat.reshape(L + 1, L), SCORES, Y), start.ravel(), method="BFGS")
    at_start = objective(start, SCORES, Y)
    gaps = []
    for n in (1, 3, N_EXCHANGES, 12):
        matrix = searched(SCORES, Y, n).best
        assert matrix is not None
        gaps.append((objective(matrix * UNIT, SCORES, Y) - best.fun) / (at_start - best.fun))
    assert gaps[0] == pytest.approx(1)
    assert gaps[1] < 0.1
    assert gaps[2] < 0.03
    assert gaps[3] < 0.003
    assert sorted(gaps, reverse=True) == gaps


def test_what_passes_for_another_class_is_told_apart() -> None:
    fresh_y = RNG.integers(L, size=N)
    fresh = 2 * (np.eye(L)[fresh_y] + RNG.normal(size=(N, L)) + 0.7 * np.eye(L)[[1, 0, 2, 3]][fresh_y])
    matrix = searched(SCORES, Y, N_EXCHANGES).best
    assert matrix is not None
    losses = [-log_softmax(each, axis=1)[np.arange(N), fresh_y].mean() for each in (fresh, scaled(fresh, matrix))]
    assert losses[1] < 0.9 * losses[0]


def test_few_samples_leave_the_scores_as_they_are() -> None:
    few = slice(0, 12)
    matrix = searched(SCORES[few], Y[few], N_EXCHANGES, np.bincount(Y[few], minlength=L)).best
    assert matrix is not None
    assert np.abs(matrix * UNIT - np.eye(L + 1, L)).max() < 0.35


def test_classes_without_samples_and_samples_alone_in_their_class_have_no_part_in_it() -> None:
    alone, empty = Y.copy(), np.array([0, 1, 3])
    alone[0], alone[1:] = 2, np.where(Y[1:] == 2, 0, Y[1:])
    sizes = np.bincount(alone, minlength=L)
    matrix = searched(SCORES, alone, N_EXCHANGES, sizes).best
    found = statistic_of(SCORES, alone, sizes, START, START)
    for one, other in zip(found.parts, statistic_of(SCORES[1:], alone[1:], sizes, START, START).parts, strict=True):
        assert_array_equal(one, other)
    assert matrix is not None
    some = np.isin(Y, empty)
    sizes = np.bincount(Y[some], minlength=L)
    wild = SCORES[some].copy()
    wild[:, 2] = -1e9
    matrix = searched(wild, Y[some], N_EXCHANGES, sizes).best
    assert matrix is not None
    assert_array_equal(matrix[2], identity(L)[2])
    assert_array_equal(matrix[:, 2], identity(L)[:, 2])
    again = searched(SCORES[some], Y[some], N_EXCHANGES, sizes).best
    assert_array_equal(matrix, again)


def test_the_identity_leaves_scores_as_they_are_but_for_rounding() -> None:
    assert_allclose(scaled(SCORES, identity(L)), SCORES, atol=1 / 64)
    wild = np.array([[1e9, -1e9, 0.0, 300.0]])
    assert_array_equal(scaled(wild, identity(L)), [[256.0, -256.0, 0.0, 256.0]])


def test_a_loss_that_is_no_lower_is_not_taken() -> None:
    first = Scaling.of(L).take(statistic_of(SCORES, Y, SIZES, START, START))
    found = statistic_of(SCORES, Y, SIZES, first.trial, first.known)
    worse = first.take(replace(found, loss=np.array([2**40, found.loss[1]])))
    assert_array_equal(worse.best, START)
    assert np.abs(worse.trial - START).max() < np.abs(first.trial - START).max()


def test_those_who_answer_judge_a_matrix_beside_the_best_so_far() -> None:
    """Whatever the losses of others were: those of fewer samples are lower."""
    search, some = searched(SCORES, Y, 3), slice(0, 300)
    assert search.best is not None
    assert not is_identity(search.best)
    found = statistic_of(SCORES[some], Y[some], SIZES, search.trial, search.known)
    worse, better = (replace(found, loss=np.array([loss, 10**6])) for loss in (2 * 10**6, 10**5))
    assert_array_equal(search.take(worse, frozenset("a")).best, search.best)
    after = search.take(better, frozenset("a"))
    assert_array_equal(after.best, search.trial)
    # What the others said of the curvature is still known; the steps that they led to are not.
    assert_array_equal(after._blocks, search._blocks)
    assert after._steps == ()
    assert len(search.take(better)._steps) == len(search._steps) + 1


def test_answers_without_samples_change_nothing() -> None:
    for search in (Scaling.of(L), searched(SCORES, Y, 3)):
        nothing = statistic_of(SCORES[:0], Y[:0], SIZES, search.trial, search.known)
        assert search.take(nothing, frozenset("a")) is search


def test_the_search_learns_from_its_steps() -> None:
    search = searched(SCORES, Y, N_EXCHANGES)
    assert len(search._steps) > 1
    total = statistic_of(SCORES, Y, SIZES, search.trial, search.known)
    forgetful = replace(search, _steps=search._steps[-1:])
    assert not np.array_equal(search.take(total).trial, forgetful.take(total).trial)


def test_the_loss_of_a_sample_is_bounded() -> None:
    scores, y = np.zeros((2, 2)), np.array([0, 0])
    scores[0] = -1e9, 1e9
    found = statistic_of(scores, y, np.array([2, 1]), identity(2), identity(2))
    assert found.loss.tolist() == [largest(1)[0] + round(1024 * np.log(1.5))] * 2


@pytest.mark.parametrize("n_classes", [1, 65])
def test_a_matrix_is_for_2_to_64_classes(n_classes: int) -> None:
    with raises(DataError, field="matrix"):
        checked_matrix(identity(n_classes), n_classes)
    assert_array_equal(checked_matrix(identity(64).tolist(), 64), identity(64))


@pytest.mark.parametrize("value", [0, 1, -1])
def test_sums_that_no_samples_have_lead_to_some_matrix(value: int) -> None:
    search = Scaling.of(L)
    for number in range(N_EXCHANGES):
        made: list[Any] = [
            np.full(shape, value * size) for shape, size in zip(shapes(L, number == 0), largest(2**16), strict=False)
        ]
        search = search.take(ScalingStatistic(*made))
        assert np.abs(search.trial).max() <= LARGEST_WEIGHT
        if search.is_done:
            break
    assert (search.best is None) == (value == 0)
