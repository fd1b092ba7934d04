"""Selection by leave-one-out: the choice of the pooled samples, however they are split."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.model.candidates import candidate_readouts
from flwr_flynn.model.leave_one_out import TEMPERATURES, hashed_batches, leave_one_out_tables
from flwr_flynn.model.selection import best, best_temperature, select

X, Y = load_iris(return_X_y=True)
SPECS = [HashSpec(4, 100, 2, rho, seed, signed=True, center=(5.0, 3.0, 4.0, 1.0)) for rho, seed in ((5, 0), (20, 1))]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 4), min_size=150, max_size=150))
def test_parties_choose_what_the_pooled_samples_choose(party_of):
    party = np.array(party_of)
    correct, log_losses, sizes = [], [], None
    for spec in SPECS:
        hasher = FlyHash(spec)
        counts = ClassCounts.from_data(hasher, X, Y, 3)
        sizes = counts.n_per_class
        candidates = candidate_readouts(counts)
        parts = [
            leave_one_out_tables(counts, hashed_batches(hasher, X[party == k], Y[party == k]), candidates)
            for k in range(5)
        ]
        correct.append(sum(part.correct for part in parts))
        log_losses.append(sum(part.log_losses for part in parts))
    spec, k = best(correct, sizes)
    chosen = select(SPECS, X, Y, 3)
    readout = candidate_readouts(chosen.counts)[k]
    assert chosen.spec == SPECS[spec]
    assert (chosen.readout.rule, chosen.readout.decay) == (readout.rule, readout.decay)
    assert chosen.readout.temperature == best_temperature(log_losses[spec][k])


def test_samples_that_do_not_fit_are_hashed_again(monkeypatch):
    expected = select(SPECS, X, Y, 3)
    monkeypatch.setattr("flwr_flynn.model.selection.HELD", 300)
    assert select(SPECS, X, Y, 3) == expected


def test_classes_without_samples_have_no_say():
    correct = [np.array([[5, 0, 1], [4, 0, 2]])]
    assert best(correct, np.array([5, 0, 2])) == (0, 1)
    equal = [np.array([[7, 4, 1], [7, 0, 3]])]
    assert best(equal, np.array([8, 6, 3])) == (0, 0)
    assert best([np.zeros((2, 3), np.int64)], np.zeros(3, np.int64)) == (0, 0)


def test_the_temperature_of_no_samples():
    assert best_temperature(np.zeros(len(TEMPERATURES), np.int64)) == 1.0
    assert best_temperature(np.array([2**80, *range(2**70, 2**70 + 32)], object)) == TEMPERATURES[1]
    assert sorted(TEMPERATURES, reverse=True) == list(TEMPERATURES)
