"""Selection by leave-one-out: the choice of the pooled samples, however they are split."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_iris

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.model import subsample
from flwr_flynn.model.candidates import candidate_scorings
from flwr_flynn.model.scoring import TEMPERATURES
from flwr_flynn.model.selection import (
    Choice,
    best_temperature,
    choose,
    fit_members,
    leave_one_out_tables,
)
from flwr_flynn.model.subsample import subsample_mask

X, Y = load_iris(return_X_y=True)
SPECS = [
    HashSpec(4, 100, 2, rho, seed, signed=True, center=(5.0, 3.0, 4.0, 1.0))
    for rho, seed in ((5, 0), (20, 1))
]


def test_without_a_number_of_members_the_best_is_alone():
    (member,) = fit_members(SPECS, X, Y, 3)
    assert (member,) == fit_members(SPECS, X, Y, 3, max_members=1)
    two = fit_members(SPECS, X, Y, 3, max_members=2)
    assert member == replace(two[0], weight=1.0)


def oracle_choose(correct, sizes, max_members):
    """The best rows of tables, one after the other.

    Weights go by steps of a fourth root of 1/2.
    """
    filled = [label for label, size in enumerate(sizes) if size]
    best = []
    for spec, table in enumerate(correct):
        scores = []
        for row in table:
            recalls = [row[label] / sizes[label] for label in filled]
            scores.append(round(sum(recalls) / max(len(filled), 1), 12))
        best.append((max(scores), spec, scores.index(max(scores))))
    best = sorted(best, key=lambda row: -row[0])[:max_members]
    highest, spec, scoring = best[0]
    if not filled:
        return [Choice(spec, scoring, 1.0)]
    choices = []
    for score, spec, scoring in best:
        steps = math.floor((highest - score) * 173)
        if steps <= 16:
            choices.append(Choice(spec, scoring, 0.5 ** (steps / 4)))
    total = sum(choice.weight for choice in choices)
    return [replace(choice, weight=choice.weight / total) for choice in choices]


@given(st.data())
def test_choices_are_those_of_a_plain_oracle(data):
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    row = st.tuples(*[st.integers(0, size) for size in sizes])
    tables = data.draw(
        st.lists(st.lists(row, min_size=1, max_size=3), min_size=1, max_size=5)
    )
    max_members = data.draw(st.integers(1, 6))
    choices = choose(
        [np.array(table) for table in tables], np.array(sizes), max_members
    )
    for choice, expected in zip(
        choices, oracle_choose(tables, sizes, max_members), strict=True
    ):
        assert choice == replace(expected, weight=choice.weight)
        assert choice.weight == pytest.approx(expected.weight, rel=1e-12)
    weights = [choice.weight for choice in choices]
    assert math.isclose(sum(weights), 1.0)
    assert weights == sorted(weights, reverse=True)
    assert min(weights) >= weights[0] / 16


@pytest.mark.parametrize("rule", ["balanced", "novelty"])
def test_members_that_leave_out_a_subsample(monkeypatch, rule):
    """The counts are of all samples; the tables are of those that the subsample keeps."""
    monkeypatch.setattr(subsample, "N_LEFT_OUT", 60)
    mask = subsample_mask(X, Y, np.array([50, 50, 50]))
    assert 20 < mask.sum() < 110
    members = fit_members(SPECS, X, Y, 3, rule, max_members=2)
    assert len(members) == 2
    for member in members:
        hasher = FlyHash(member.spec)
        assert member.counts == ClassCounts.from_data(hasher, X, Y, 3)
        scorings = candidate_scorings(member.counts, rule)
        tables = leave_one_out_tables(
            member.counts, [(hasher.active(X[mask]), Y[mask])], scorings
        )
        (choice,) = choose([tables.correct], np.bincount(Y[mask], minlength=3))
        assert member.scoring.decay == scorings[choice.scoring].decay
        assert member.scoring.temperature == best_temperature(
            tables.log_losses[choice.scoring]
        )


def test_the_temperature_of_no_samples():
    assert best_temperature(np.zeros(len(TEMPERATURES), np.int64)) == 1.0
    assert (
        best_temperature(np.array([2**80, *range(2**70, 2**70 + 32)], object))
        == TEMPERATURES[1]
    )
    assert sorted(TEMPERATURES, reverse=True) == list(TEMPERATURES)


def test_without_any_sample_the_first_is_alone():
    nothing = np.zeros((2, 3), np.int64)
    assert choose([nothing, nothing], nothing[0], 4) == [Choice(0, 0, 1.0)]
