"""A trial: candidates are compared with small hashes, and the chosen ones counted in their final size.

Every driver ends in the model of the pooled samples; a saved run goes on to the same one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn.errors import AggregationError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.model.candidates import HashPlan, candidate_readouts, suggest_decay
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.selection import fit_members
from tests.federated.runs import (
    DRIVERS,
    GRID,
    LABELS,
    NAMES,
    SPLITS,
    TRAINING,
    Exchange,
    X,
    Y,
    exchange,
    in_process,
    options_for,
    sha256,
    shares,
)
from tests.raising import raises

PLAN = HashPlan(4, 3, 120, "auto")
TRIAL = ["columns", "histograms", "trial", "selection", "counts", "evaluation"]


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of 64 rows, and final sizes of 256, for as few samples as there are."""
    monkeypatch.setattr(HashPlan, "final_dim", property(lambda plan: 256 if plan.scaling == "auto" else None))
    sizes = HashPlan._sizes.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(HashPlan, "_sizes", property(lambda plan: sizes(plan) | {"hash_dim": 64}))


def final_run(changes: dict[str, Any], parts: Any = None) -> Run:
    return in_process(options_for(PLAN, **changes), shares() if parts is None else parts)


def digest(run: Run) -> str:
    return run.model.model_.sha256()


def pooled(**changes: Any) -> FlyNNClassifier:
    return FlyNNClassifier(**changes).fit(X[TRAINING], LABELS[TRAINING])


def lonely() -> list[dict[str, Any]]:
    """All samples, at parties of which one is empty and two have a single sample."""
    first, *others = shares("pathological")
    none = {"X": X[:0], "y": LABELS[:0], "X_test": X[:0], "y_test": LABELS[:0]}
    one, two = ({**none, "X": first["X"][[i]], "y": first["y"][[i]]} for i in (0, 1))
    rest = {**first, "X": first["X"][2:], "y": first["y"][2:]}
    return [one, none, two, rest, *others]


# ---- the pooled model


@pytest.mark.parametrize("how", [*SPLITS, "lonely"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_driver_ends_in_the_pooled_model(driver: str, how: str) -> None:
    run = DRIVERS[driver](options_for(PLAN), lonely() if how == "lonely" else shares(how))
    assert [phase.name for phase in run.phases] == list(run.state.results) == TRIAL
    assert run.num_rounds == 4
    assert run.counted.missing == {}
    model = run.model.model_
    assert model.sha256() == pooled().model_.sha256()
    assert len(model.members) > 1
    assert {(member.spec.hash_dim, member.counts.n_examples) for member in model.members} == {(256, 120)}
    assert {part.array.shape for part in run.state.results["trial"].parts} == {(3, 64)}
    assert run.state.results["evaluation"].figures["accuracy"] == np.mean(
        pooled().predict(X[~TRAINING]) == LABELS[~TRAINING]
    )


@pytest.mark.parametrize(
    "changes",
    [{"rule": "novelty"}, {"rule": "bayes"}, {"decay": 0.5}, {"max_members": 1}, {"max_members": 2}],
    ids=str,
)
def test_settings_of_the_model_hold_for_both(changes: dict[str, Any]) -> None:
    n = changes.get("max_members", 4)
    options = {name: value for name, value in changes.items() if name != "max_members"}
    run = in_process(options_for(replace(PLAN, max_members=n), **options), shares("dirichlet"))
    assert digest(run) == pooled(**changes).model_.sha256()
    assert len(run.model.model_.members) <= n


@pytest.mark.parametrize("how", SPLITS)
def test_of_many_samples_some_are_left_out(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("flwr_flynn.model.selection", "flwr_flynn.federated.phases.selection"):
        monkeypatch.setattr(f"{module}.N_LEFT_OUT", 60)
    run = final_run({}, shares(how))
    assert 0 < run.state.results["selection"].examples < 120
    assert digest(run) == pooled().model_.sha256()


def test_the_selection_is_about_the_trial() -> None:
    run = final_run({})
    selection = run.state.results["selection"]
    assert selection.is_trial
    assert len(selection.candidates) == len(run.state.results["trial"].parts) == 6
    assert (selection.parties, selection.examples, selection.missing) == (4, 120, {})
    for choice, readout, member in zip(selection.choices, selection.readouts, run.model.model_.members, strict=True):
        grid = candidate_readouts(member.counts)
        assert member.readout == replace(grid[choice.readout], temperature=readout.temperature)
        assert member.weight == choice.weight
    assert run.traffic.keys() == set(TRIAL)


# ---- nobody selects


@pytest.mark.parametrize("hand_out", [False, True])
@pytest.mark.parametrize("driver", DRIVERS)
def test_where_nobody_tries_the_model_it_is_the_first_candidate_in_its_final_size(driver: str, hand_out: bool) -> None:
    run = DRIVERS[driver](options_for(PLAN, fraction_evaluate=0, hand_out=hand_out), shares())
    assert list(run.state.results) == ["columns", "histograms", "counts", *(["evaluation"] if hand_out else [])]
    member = run.model.model_.member
    specs = PLAN.specs(run.state.results["columns"].moments, run.state.results["histograms"].histograms)
    assert member.spec == PLAN.final(specs[0])
    assert member.spec.hash_dim == 256
    assert member.counts == ClassCounts.from_data(member.hash, X[TRAINING], Y[TRAINING], 3)
    assert (member.readout.decay, member.weight) == (suggest_decay(member.counts), 1.0)


def test_where_nobody_answers_the_selection_the_first_candidate_is_counted() -> None:
    steps = exchange(PLAN)
    for _ in range(3):
        steps.step(TRAIN)
    steps.step(EVALUATE, failures=dict.fromkeys("0123", "failed: gone"))
    steps.rounds()
    member = steps.run.model.model_.member
    assert (member.spec.hash_dim, member.counts.n_examples) == (256, 120)
    assert member.readout.decay == suggest_decay(member.counts)
    assert steps.run.state.results["selection"].accuracy is None


def test_where_no_party_sends_sums_one_hash_of_raw_columns_is_counted() -> None:
    run = final_run({"min_examples": 1000})
    assert run.state.results["histograms"].trouble
    assert len(run.state.results["trial"].parts) == 1
    assert (run.model.model_.member.spec.hash_dim, run.model.model_.member.spec.center) == (256, None)


# ---- parties that come and go


def test_a_party_of_the_trial_that_is_not_counted_keeps_its_say() -> None:
    steps = exchange(PLAN)
    for _ in range(3):
        steps.step(TRAIN)
    steps.step(EVALUATE)
    steps.lost.add("3")
    run = steps.rounds()
    n_lost = len(shares()[3]["y"])
    assert run.state.results["selection"].examples == 120
    assert run.counted.missing == {"party-3": "no reply"}
    assert {member.counts.n_examples for member in run.model.model_.members} == {120 - n_lost}
    whole = final_run({})
    assert [member.spec for member in run.model.model_.members] == [m.spec for m in whole.model.model_.members]
    assert [member.weight for member in run.model.model_.members] == [m.weight for m in whole.model.model_.members]


def test_a_party_that_comes_after_the_trial_is_counted_without_a_say() -> None:
    steps = exchange(PLAN)
    for _ in range(3):
        steps.step(TRAIN, "012")
    steps.step(EVALUATE, "0123")
    assert steps.asked[-1] == ("selection", ["0", "1", "2"])  # the others were not in what it is about
    run = steps.rounds()
    n_late = len(shares()[3]["y"])
    assert run.state.results["selection"].examples == 120 - n_late
    assert steps.asked[-2:] == [("counts", ["0", "1", "2", "3"]), ("evaluation", ["0", "1", "2", "3"])]
    assert {member.counts.n_examples for member in run.model.model_.members} == {120}
    for member in run.model.model_.members:
        assert member.counts == ClassCounts.from_data(member.hash, X[TRAINING], Y[TRAINING], 3)


def test_late_parties_of_the_counting_are_added_to_the_members_that_were_chosen() -> None:
    steps = exchange(PLAN)
    for _ in range(3):
        steps.step(TRAIN)
    steps.step(EVALUATE)
    steps.step(TRAIN, "012")
    steps.step(EVALUATE, "012")
    chosen, before = steps.run.state.results["selection"], digest(steps.run)
    assert "evaluation" in steps.run.state.results
    steps.step(TRAIN, "123")  # party 0 is gone: nothing is lost
    assert steps.asked[-1] == ("counts", ["3"])
    assert steps.run.state.results["selection"] is chosen
    assert "evaluation" not in steps.run.state.results
    steps.step(EVALUATE)
    assert digest(steps.run) == pooled().model_.sha256() != before
    assert steps.run.state.results["evaluation"].figures["examples"] == 30


def test_a_party_lost_in_the_trial_alone_is_in_the_counts() -> None:
    steps = exchange(PLAN)
    for _ in range(2):
        steps.step(TRAIN)
    steps.step(TRAIN, failures={"3": "failed: gone"})
    run = steps.rounds()
    assert run.rosters["trial"].missing == {"node 3": "failed: gone"}
    assert run.counted.missing == {}
    assert run.state.results["selection"].examples == 120 - len(shares()[3]["y"])
    assert {member.counts.n_examples for member in run.model.model_.members} == {120}


def test_without_the_trial_there_is_no_model() -> None:
    steps = exchange(PLAN, accept_failures=False)
    for _ in range(2):
        steps.step(TRAIN)
    steps.step(TRAIN, failures={"3": "failed: gone"})
    assert "trial" not in steps.run.state.results
    for result in (lambda: steps.run.model, lambda: steps.run.counts, lambda: steps.run.federation("1")):
        with raises(AggregationError, counted=0) as caught:
            result()
        assert caught.value.missing["node 3"] == "failed: gone"
    steps.rounds()
    assert digest(steps.run) == pooled().model_.sha256()


# ---- saved and resumed


def resumed(saved: Federation, **changes: Any) -> dict[str, Any]:
    return options_for(saved.run_spec.specs, federation=saved, purpose="resume", **changes)


@pytest.mark.parametrize("changes", [{}, {"rule": "bayes"}, {"decay": 0.5}, {"fraction_evaluate": 0}], ids=str)
@pytest.mark.parametrize("has_trial", [True, False], ids=["trial", "one size"])
def test_a_run_that_goes_on_ends_in_the_same_model(has_trial: bool, changes: dict[str, Any], tmp_path: Path) -> None:
    plan = PLAN if has_trial else replace(PLAN, scaling="weighted")
    whole = exchange(plan, **changes).rounds()
    saves = 0
    for stop in range(1, len(whole.phases) + 1):
        steps = exchange(plan, **changes)
        for phase in whole.phases[:stop]:
            steps.step(phase.channel)
        left = [phase.name for phase in whole.phases[stop:]]
        if "counts" in left and left[0] != "counts":
            with raises(AggregationError, counted=0):
                steps.run.federation("1")
            continue
        steps.run.federation("1").save(tmp_path / "f.npz")
        saved = Federation.load(tmp_path / "f.npz")
        assert saved.phase == (left[0] if left else "")
        steps.run = Run(RunOptions(**resumed(saved, **changes)))
        assert [phase.name for phase in steps.run.phases] == left
        steps.rounds(3)
        assert digest(steps.run) == digest(whole)
        steps.run.federation("2").save(tmp_path / "after.npz")
        assert Federation.load(tmp_path / "after.npz").model.model_.sha256() == digest(whole)
        saves += 1
    assert saves >= 2 - (changes == {"fraction_evaluate": 0} and not has_trial)


def test_a_run_without_a_trial_keeps_the_size_of_its_committee(tmp_path: Path) -> None:
    """It stops before its selection: the candidates are saved, and how many of them the model keeps."""
    plan = replace(PLAN, hash_dim=64, max_members=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HashPlan, "final_dim", None)
        whole = exchange(plan).rounds()
        for stop in (2, 3, 4):
            steps = exchange(plan)
            for phase in whole.phases[:stop]:
                steps.step(phase.channel)
            steps.run.federation("1").save(tmp_path / "f.npz")
            saved = Federation.load(tmp_path / "f.npz")
            assert (saved.phase, saved.is_selected) == (whole.phases[stop].name, stop == 4)
            steps.run = Run(RunOptions(**resumed(saved)))
            assert digest(steps.rounds(3)) == digest(whole)
    assert len(whole.model.model_.members) == 3


def test_a_run_that_stopped_in_its_counting_goes_on_with_the_decays_of_all(tmp_path: Path) -> None:
    """The decays follow from the counts, which grow: they keep their place among the candidates."""
    steps = exchange(PLAN, min_parties=4)
    for _ in range(3):
        steps.step(TRAIN)
    steps.step(EVALUATE)
    for present, n_members in (("01", 2), ("2", 3)):
        steps.step(TRAIN, present)
        steps.run.federation("1").save(tmp_path / "f.npz")
        saved = Federation.load(tmp_path / "f.npz")
        assert (saved.phase, len(saved.members), saved.is_selected) == ("counts", n_members, True)
        steps.run = Run(RunOptions(**resumed(saved, min_parties=4)))
    assert digest(steps.rounds()) == pooled().model_.sha256()


# ---- members that join and leave


def go(before: Federation, purpose: str, who: str, leaver: str = "", **changes: Any) -> Run:
    parts = dict(zip("0123", shares(), strict=True))
    options = options_for(before.run_spec.specs, federation=before, purpose=purpose, **changes)
    parties = {
        f"{purpose}{cid}": party_of(**parts[cid], name=f"party-{cid}", min_examples=1, leaves=cid == leaver)
        for cid in who
    }
    return Exchange(Run(RunOptions(**options)), parties).rounds()


def nobody(made: Federation) -> Federation:
    """A federation of the same members of the model, before anybody was counted."""
    empty = Run(RunOptions(**options_for(made.run_spec.specs))).totals
    return replace(made, totals=empty, members=())


@pytest.mark.parametrize("changes", [{}, {"decay": 0.5}, {"fraction_evaluate": 0}], ids=str)
def test_a_party_that_leaves_a_committee_was_never_there(changes: dict[str, Any], tmp_path: Path) -> None:
    whole = final_run(changes).federation("1")
    whole.save(tmp_path / "f.npz")
    whole = Federation.load(tmp_path / "f.npz")
    left = go(whole, "withdraw", "0123", leaver="3", **changes)
    never = go(nobody(whole), "join", "012", **changes)
    assert len(left.counted.members) == 3
    assert digest(left) == digest(never)
    assert sha256(left.model) == sha256(never.model)
    again = go(left.federation("2"), "join", "0123", **changes)
    assert digest(again) == digest(go(nobody(left.federation("2")), "join", "0123", **changes))
    n_left = len(shares()[3]["y"])
    assert {member.counts.n_examples for member in left.model.model_.members} == {120 - n_left}
    assert {member.counts.n_examples for member in again.model.model_.members} == {120}


def test_a_party_that_joins_a_committee_makes_the_model_of_all_at_fixed_members() -> None:
    part = in_process(options_for(PLAN), shares()[:3]).federation("1")
    joined = go(part, "join", "0123")
    assert len(joined.counted.members) == 4
    expected = fit_members(
        part.run_spec.specs, X[TRAINING], Y[TRAINING], 3, plan=HashPlan(4, 3, max_members=len(part.run_spec.specs))
    )
    assert joined.model.model_.members == expected
    assert joined.state.results["selection"].examples == 120
    assert not joined.state.results["selection"].is_trial


def test_a_committee_is_handed_out_as_it_is() -> None:
    whole = final_run({})
    saved = whole.federation("1")
    run = go(saved, "evaluate", "0")
    assert run.federation("2") is saved
    assert digest(run) == digest(whole)
    assert run.state.results["evaluation"].figures["examples"] == len(shares()[0]["X_test"])


def test_grids_given_by_hand_make_one_member() -> None:
    run = in_process(options_for(GRID), shares())
    assert len(run.model.model_.members) == 1
    assert run.options.max_members == 1
    assert list(run.options.classes) == list(NAMES)
