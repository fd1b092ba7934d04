"""A committee: a run ends in the model of the pooled samples, and a saved run goes on to the same one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import PartyOptions
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.model.candidates import HashPlan, candidate_scorings, placeholder_specs, suggest_decay
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.selection import fit_members
from tests.federated.runs import LABELS, SPLITS, TRAINING, X, Y, exchange, in_process, options_for, shares
from tests.federated.test_run_laws import PLAN, digest, go


def made(parts: Any = None, plan: HashPlan = PLAN, **changes: Any) -> Run:
    return in_process(options_for(plan, **changes), shares() if parts is None else parts)


def pooled(**changes: Any) -> FlyNNClassifier:
    return FlyNNClassifier(**{"hash_dim": 64, **changes}).fit(X[TRAINING], LABELS[TRAINING])


# ---- the pooled model


@pytest.mark.parametrize("effort", ["quick", "default", "thorough"])
def test_sizes_follow_from_the_effort_alike(effort: str) -> None:
    run = made(shares("dirichlet"), HashPlan(4, 3, 120, "auto", effort=effort))
    expected = pooled(hash_dim=None, effort=effort)
    assert digest(run) == expected.model_.sha256()
    assert run.model.model_.members[0].spec.hash_dim == (2**14 if effort == "quick" else 2**15)
    found = run.model.model_.gram
    assert (None if found is None else len(found.weights)) == (1024 if effort == "thorough" else None)


@pytest.mark.parametrize("effort", ["default", "thorough"])
@pytest.mark.parametrize("n_classes", [10, 64, 1000, 2**15])
def test_a_party_has_the_memory_for_all_candidates(effort: str, n_classes: int) -> None:
    specs = placeholder_specs(HashPlan(128, n_classes, 10**6, "auto", effort=effort))
    assert len(specs) == 6
    assert sum(memory_needed(spec, n_classes) for spec in specs) < PartyOptions().memory_limit
    assert all(spec.hash_nnz <= spec.hash_dim // 16 for spec in specs)


def test_a_plan_without_the_number_of_samples_has_it_from_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr_flynn.model.candidates._MANY", 100)
    run = made(shares("dirichlet"), HashPlan(4, 3, None, "auto"))
    assert digest(run) == pooled(hash_dim=None).model_.sha256()
    assert run.model.model_.members[0].spec.hash_dim == 2**16


@pytest.mark.parametrize(
    "changes", [{"rule": "novelty"}, {"decay": 0.5}, {"max_members": 1}, {"max_members": 2}, {"seed": 5}], ids=str
)
def test_settings_of_the_model_hold_for_both(changes: dict[str, Any]) -> None:
    of_plan = {name: value for name, value in changes.items() if name in ("max_members", "seed")}
    options = {name: value for name, value in changes.items() if name not in of_plan}
    run = made(shares("dirichlet"), replace(PLAN, **of_plan), **options)
    assert digest(run) == pooled(**changes).model_.sha256()
    assert len(run.model.model_.members) <= changes.get("max_members", PLAN.max_members)


@pytest.mark.parametrize("how", SPLITS)
def test_of_many_samples_some_are_left_out(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("flwr_flynn.model.selection", "flwr_flynn.federated.phases.selection"):
        monkeypatch.setattr(f"{module}.N_LEFT_OUT", 60)
    run = made(shares(how))
    assert 0 < run.state.results["selection"].examples < 120
    assert digest(run) == pooled().model_.sha256()


@pytest.mark.parametrize("rule", ["balanced", "novelty"])
def test_where_no_sample_is_left_out_the_model_is_the_pooled_one(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal samples are kept or dropped together, so that a subsample may have none of them."""
    for module in ("flwr_flynn.model.selection", "flwr_flynn.federated.phases.selection"):
        monkeypatch.setattr(f"{module}.kept", lambda X, y, n_per_class, n: np.zeros(len(y), bool))
    run = made(shares("dirichlet"), rule=rule)
    assert run.state.results["selection"].examples == 0
    (member,) = run.model.model_.members
    assert member.scoring.temperature == 0.2
    assert digest(run) == pooled(rule=rule).model_.sha256()


def test_the_members_are_the_choices_of_the_selection() -> None:
    run = made()
    selection, members = run.state.results["selection"], run.model.model_.members
    assert len(selection.candidates) == len(run.totals.parts) == 6
    assert (selection.parties, selection.examples, run.state.absent("selection")) == (4, 120, {})
    for choice, scoring, member in zip(selection.choices, selection.scorings, members, strict=True):
        assert (member.scoring, member.weight) == (scoring, choice.weight)
        assert replace(scoring, temperature=None) == candidate_scorings(member.counts)[choice.scoring]
        assert member.counts is run.totals.parts[choice.spec]
    assert run.counts is members[0].counts


# ---- nobody selects


@pytest.mark.parametrize("distribute", [False, True])
def test_where_nobody_tries_the_model_it_is_the_first_candidate(distribute: bool) -> None:
    run = in_process(options_for(PLAN, fraction_evaluate=0, distribute=distribute), shares())
    assert list(run.state.results) == ["columns", "counts", *(["evaluation"] if distribute else [])]
    assert len(run.totals.parts) == 1  # nobody counts what nobody compares
    member = run.model.model_.member
    assert member.spec == PLAN.specs(run.state.results["columns"].histograms)[0]
    assert member.counts == ClassCounts.from_data(member.hash, X[TRAINING], Y[TRAINING], 3)
    assert (member.scoring.decay, member.weight) == (suggest_decay(member.counts), 1.0)


# ---- parties that come and go


def test_a_party_lost_after_the_histograms_stays_in_them() -> None:
    steps = exchange(PLAN)
    steps.step(TRAIN)
    steps.lost.add("3")
    run = steps.rounds()
    assert run.state.results["columns"].histograms.n_examples == 120
    assert run.counted.missing == {"party-3": "no reply"}
    n_lost = len(shares()[3]["y"])
    assert {member.counts.n_examples for member in run.model.model_.members} == {120 - n_lost}
    assert run.state.run_spec.specs == made().state.run_spec.specs


def test_a_party_that_comes_after_the_histograms_is_counted_and_takes_part() -> None:
    steps = exchange(PLAN)
    steps.step(TRAIN, "012")
    run = steps.rounds()
    assert run.state.results["columns"].histograms.n_examples == 120 - len(shares()[3]["y"])
    assert run.state.results["selection"].examples == 120
    expected = fit_members(run.state.run_spec.specs, X[TRAINING], Y[TRAINING], 3, max_members=PLAN.max_members)
    assert run.model.model_.members == expected


# ---- saved and resumed


def resumed(saved: Federation, **changes: Any) -> dict[str, Any]:
    return options_for(saved.run_spec.specs, federation=saved, purpose="resume", **changes)


def test_a_run_that_stopped_in_its_counting_goes_on(tmp_path: Path) -> None:
    steps = exchange(PLAN, min_parties=4)
    steps.step(TRAIN)
    for present, n_members in (("01", 2), ("2", 3)):
        steps.step(TRAIN, present)
        steps.run.federation("1").save(tmp_path / "f.npz")
        saved = Federation.load(tmp_path / "f.npz")
        assert (saved.phase, len(saved.members), saved.is_selected) == ("counts", n_members, False)
        assert saved.max_members == PLAN.max_members
        steps.run = Run(RunOptions(**resumed(saved, min_parties=4)))
        assert steps.run.needed == 4 - n_members
    assert digest(steps.rounds()) == pooled().model_.sha256()


# ---- members that join and leave


def test_a_party_that_joins_a_committee_makes_the_model_of_all_at_fixed_members() -> None:
    part = in_process(options_for(PLAN), shares()[:3]).federation("1")
    joined = go("committee", part, "join", "0123")
    assert len(joined.counted.members) == 4
    expected = fit_members(part.run_spec.specs, X[TRAINING], Y[TRAINING], 3, max_members=len(part.run_spec.specs))
    assert joined.model.model_.members == expected
    assert joined.state.results["selection"].examples == 120
