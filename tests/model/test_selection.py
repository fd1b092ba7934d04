"""Plans, and the choice by leave-one-out: that of the pooled points, however they are split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.errors import SpecError
from flwr_flynn.model.column_moments import SCALINGS, ColumnSums
from flwr_flynn.model.selection import (
    TEMPERATURES,
    Plan,
    Readout,
    best,
    coolest,
    hits,
    losses,
    readouts,
    select,
)

X, Y = load_iris(return_X_y=True)
SUMS = ColumnSums.from_data(X, Y, 3)
SPECS = [HashSpec(4, 100, 2, rho, seed, signed=True, center=(5.0, 3.0, 4.0, 1.0)) for rho, seed in ((5, 0), (20, 1))]


def test_a_plan_without_scaling_needs_no_sums():
    plan = Plan(4, 3, 150, hash_dim=64, seed=5, signed=False)
    assert not plan.needs_sums
    assert plan.specs() == (HashSpec.suggest(4, 150, 3, hash_dim=64, seed=5),)
    pair = Plan(4, 3, scaling=((1.0,) * 4, None))
    assert not pair.needs_sums
    assert pair.specs()[0].center == (1.0,) * 4


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_scaling_by_name_is_that_of_the_sums(scaling):
    plan = Plan(4, 3, scaling=scaling, waves=False)
    assert plan.needs_sums
    (spec,) = plan.specs(SUMS)
    assert (spec.center, spec.scale) == SUMS.center_and_scale(scaling)
    assert spec.signed
    (waving,) = Plan(4, 3, scaling=scaling).specs(SUMS)
    assert waving.n_waves == 64
    assert waving.wave_frequency == pytest.approx(1 / (2.2 * SUMS.distance(spec.scale)))


def test_scalings_that_ignore_classes_need_no_sums_class_by_class():
    assert not Plan(4, 3, scaling="standard").needs_classes
    together = ColumnSums.from_data(X, np.zeros(150, np.int64), 1)
    assert Plan(4, 3, scaling="standard").specs(together) == Plan(4, 3, scaling="standard").specs(SUMS)


@pytest.mark.parametrize(("d", "waves"), [(4, [1, 0, 0, 0]), (20, [0, 1, 0, 0]), (200, [0, 0, 0])])
def test_candidates_of_auto(d, waves):
    points = np.random.default_rng(0).normal(size=(30, d))
    specs = Plan(d, 2, scaling="auto").specs(ColumnSums.from_data(points, np.arange(30) % 2, 2))
    assert [int(spec.n_waves > 0) for spec in specs] == waves
    assert len(set(specs)) == len(specs)


def test_points_that_are_all_alike_have_no_waves():
    sums = ColumnSums.from_data(np.ones((5, 2)), np.array([0, 1, 0, 1, 0]), 2)
    assert all(spec.n_waves == 0 for spec in Plan(2, 2, scaling="auto").specs(sums))


def test_bad_plans_are_refused():
    with pytest.raises(SpecError, match="scaling: expected one of center"):
        Plan(4, 3, scaling="best")
    with pytest.raises(SpecError, match="scaling: expected a pair"):
        Plan(4, 3, scaling=(None,))
    with pytest.raises(SpecError, match="needs the sums"):
        Plan(4, 3, scaling="auto").specs()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=150, max_size=150))
def test_parties_choose_what_the_pooled_points_choose(party_of):
    party = np.array(party_of)
    right, cold, sizes = [], [], None
    for spec in SPECS:
        hasher = FlyHash(spec)
        counts = ClassCounts.from_data(hasher, X, Y, 3)
        sizes = counts.n_per_class
        candidates = readouts(counts)
        parts = [(hasher.active(X[party == k]), Y[party == k]) for k in range(5)]
        right.append(sum(hits(counts, active, y, candidates) for active, y in parts))
        cold.append([[losses(counts, active, y, readout) for active, y in parts] for readout in candidates])
    spec, readout = best(right, sizes)
    chosen = select(SPECS, X, Y, 3)
    assert chosen.spec == SPECS[spec]
    assert chosen.readout == readouts(chosen.counts)[readout]
    assert chosen.temperature == coolest(cold[spec][readout])


def test_points_that_do_not_fit_are_hashed_again(monkeypatch):
    expected = select(SPECS, X, Y, 3)
    monkeypatch.setattr("flwr_flynn.model.selection._HELD", 300)
    assert select(SPECS, X, Y, 3) == expected


def test_classes_without_points_have_no_say():
    right = [np.array([[5, 0, 1], [4, 0, 2]])]
    assert best(right, np.array([5, 0, 2])) == (0, 1)
    equal = [np.array([[7, 4, 1], [7, 0, 3]])]
    assert best(equal, np.array([8, 6, 3])) == (0, 0)
    assert best([np.zeros((2, 3), np.int64)], np.zeros(3, np.int64)) == (0, 0)


def test_a_given_decay_leaves_no_choice():
    counts = ClassCounts.from_data(FlyHash(SPECS[0]), X, Y, 3)
    assert readouts(counts, "novelty", 0.5) == [Readout("novelty", 0.5)]
    assert len(readouts(counts, "bayes")) == 1
    assert coolest([]) == 1.0
    assert sorted(TEMPERATURES, reverse=True) == list(TEMPERATURES)
