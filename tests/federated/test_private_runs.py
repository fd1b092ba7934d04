"""Runs with noisy sums of the columns before noisy counts, from ranges to the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.run import Run
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_sums import spec_of_sums
from flwr_flynn.privacy import (
    GaussianCounts,
    LaplaceCounts,
    Mechanism,
    SimulatedRelease,
)
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.federated.runs import DUE, LABELS, NAMES, Exchange, X, saved_of, shares
from tests.federated.secure_runs import Masked, lost
from tests.raising import raises

RANGES = ((6.0, 3.25, 4.0, 1.25), (0.5, 0.8, 0.333, 0.8))
PLAN = HashPlan(4, 3, 120, RANGES, hash_dim=64, hash_nnz=16, signed=True)
SHAPE: dict[str, Any] = {"hash_nnz": 16, "n_classes": 3, "n_columns": 4}
MECHANISMS: dict[str, Mechanism] = {
    "gaussian": GaussianCounts(50.0, 1e-5, **SHAPE),
    "mirrored": GaussianCounts(50.0, 1e-5, **SHAPE, mirrored=True),
    "laplace": LaplaceCounts(100.0, **SHAPE),
}
PARTS = shares()


class Parties:
    """Parties with ledgers in a folder, and runs with some of them."""

    def __init__(self, folder: Path, mechanism: Mechanism) -> None:
        self.folder = folder
        self.mechanism = SimulatedRelease(mechanism, 3)
        self.cost = mechanism.target_epsilon

    def budget(self, i: str) -> Budget:
        policy = Policy(self.cost, 1e-5, ["simulated"], secure_sum=True)
        return Budget(self.folder / i, policy)

    def party(self, i: str, leaver: str = "") -> Party:
        part = PARTS[int(i)]
        options = {"name": f"party-{i}", "member": f"secret of {i}"}
        return party_of(
            part["X"], part["y"], budget=self.budget(i), leaves=i == leaver, **options
        )

    def exchange(self, cids: str = "0123", leaver: str = "", **more: Any) -> Exchange:
        options = {"spec": PLAN, "min_parties": 1, "mechanism": self.mechanism} | more
        if options.get("federation") is not None:
            options["spec"] = options["federation"].run_spec.specs
        run = Run(RunOptions(classes=NAMES, **options))
        return Exchange(run, {cid: self.party(cid, leaver) for cid in cids})

    def n_charges(self, i: str) -> int:
        return len(self.budget(i).account()[1])


@pytest.fixture(params=MECHANISMS)
def parties(request: pytest.FixtureRequest, tmp_path: Path) -> Parties:
    return Parties(tmp_path, MECHANISMS[request.param])


def test_a_run_sums_its_columns_counts_and_makes_a_model(parties, tmp_path):
    steps = parties.exchange()
    assert not steps.run.is_specified
    steps.step(DUE)
    (before,) = PLAN.specs()
    (sums,) = steps.run.state.results["column sums"].tables
    variance = 4 * parties.mechanism.sums_sd**2
    expected = spec_of_sums(before, sums, 120, variance)
    assert steps.run.state.run_spec.specs == (expected,)
    run = steps.rounds()
    assert [name for name, _ in steps.asked] == ["column sums", "counts"]
    model = run.model
    assert model.model_.members[0].spec == expected
    assert model.model_.members[0].means is not None
    assert np.mean(model.predict(X) == LABELS) > 0.6
    assert model.guarantee_ == parties.mechanism.guarantee()
    # One charge pays for both, and another run gets the same answers.
    assert {parties.n_charges(cid) for cid in "0123"} == {1}
    again = parties.exchange().rounds()
    assert again.model.model_.sha256() == model.model_.sha256()
    assert {parties.n_charges(cid) for cid in "0123"} == {1}
    model.save(tmp_path / "model.npz")
    loaded = FlyNNClassifier.load(tmp_path / "model.npz")
    assert loaded.predict_proba(X).tobytes() == model.predict_proba(X).tobytes()


def test_seeded_noise_is_the_same_again_and_another_in_each_part(parties, tmp_path):
    run = parties.exchange().rounds()
    parties.folder = tmp_path / "fresh"
    assert parties.exchange().rounds().counts == run.counts
    same = parties.mechanism
    fresh = SimulatedRelease(same.mechanism, 3)
    zeros = np.zeros((1, 9), np.int64)
    sums, again = (one.released_sums(zeros) for one in (fresh, same))
    assert sums.tolist() == again.tolist()
    ranks, of_sums = (drawn.ravel().argsort() for drawn in (fresh.noisy(zeros), sums))
    assert ranks.tolist() != of_sums.tolist()


def test_parties_join_and_leave_without_another_look_at_the_columns(parties, tmp_path):
    three = parties.exchange("012").rounds()
    saved = saved_of(three, tmp_path / "1.npz")
    joining = parties.exchange("3", federation=saved, purpose="join")
    assert joining.run.is_specified
    joined = joining.rounds()
    assert [name for name, _ in joining.asked] == ["counts"]
    assert joined.state.run_spec.specs == three.state.run_spec.specs
    assert parties.n_charges("3") == 1
    all_four = saved_of(joined, tmp_path / "2.npz")
    leaving = parties.exchange(
        "3", leaver="3", federation=all_four, purpose="withdraw"
    ).rounds()
    assert leaving.counts == three.counts
    assert leaving.model.model_.sha256() == three.model.model_.sha256()
    assert parties.n_charges("3") == 1


def test_a_party_that_is_lost_between_the_two_is_missing_in_the_counts(parties):
    steps = parties.exchange()
    steps.step(DUE)
    steps.lost.add("3")
    run = steps.rounds()
    assert len(run.counted.counted) == 3
    assert len(run.counts.noise) == 3
    assert np.isfinite(run.model.predict_proba(X)).all()


def test_a_run_that_stops_between_the_two_goes_on_at_the_counts(parties, tmp_path):
    whole = parties.exchange().rounds()
    steps = parties.exchange()
    steps.step(DUE)
    saved = saved_of(steps.run, tmp_path / "1.npz")
    resumed = parties.exchange(federation=saved, purpose="resume")
    run = resumed.rounds()
    assert [name for name, _ in resumed.asked] == ["counts"]
    assert run.model.model_.sha256() == whole.model.model_.sha256()
    assert {parties.n_charges(cid) for cid in "0123"} == {1}


def test_without_an_answer_the_hash_is_that_of_the_ranges_alone(parties):
    steps = parties.exchange()
    steps.lost |= {*"0123"}
    steps.step(DUE)
    (before,) = PLAN.specs()
    (after,) = steps.run.state.run_spec.specs
    assert after.center == before.center
    steps.lost.clear()
    assert len(steps.rounds().counted.counted) == 4


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("lost_in", "n_summed", "n_counted"),
    [("", 4, 4), ("column sums", 3, 4), ("counts", 4, 3)],
)
def test_shares_of_one_noise_are_in_both_sums(
    mirrored, lost_in, n_summed, n_counted, tmp_path
):
    pair = GaussianCounts(50.0, 1e-5, **SHAPE, mirrored=mirrored, n_honest=3)
    parties = Parties(tmp_path, pair)
    steps = parties.exchange(secure_bound=2**17, min_parties=3)
    members = {
        cid: replace(
            party, options=replace(party.options, member=""), mask=lambda *_: None
        )
        for cid, party in steps.parties.items()
    }
    masked = Masked(steps.run, members, masks=lost(lost_in))
    run = masked.rounds()
    assert len(run.counted.counted) == n_counted
    expected = n_counted * pair.noise_sd**2
    assert run.counts.noise_variance == pytest.approx(expected)
    (sums,) = run.state.results["column sums"].tables
    exact = sum(
        np.clip((part["X"] - RANGES[0]) * RANGES[1], -1, 1).sum(axis=0)
        for part in PARTS[:n_summed]
    )
    far = 6 * pair.sums_sd * n_summed**0.5 + 60
    assert abs(sums[0] - 256 * exact).max() < far
    assert np.mean(run.model.predict(X) == LABELS) > 0.6
    assert run.state.run_spec.is_secure


def bad_options(**changes: Any) -> None:
    options = {"spec": PLAN, "mechanism": MECHANISMS["mirrored"], "min_parties": 1}
    RunOptions(classes=NAMES, **options | changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rule": "novelty"}, "rule"),
        ({"spec": PLAN.specs()[0]}, "spec"),
    ],
)
def test_what_the_noise_does_not_allow_is_refused_before_anything_is_spent(
    changes, field
):
    bad_options()
    with raises(ConfigError, field=field):
        bad_options(**changes)
