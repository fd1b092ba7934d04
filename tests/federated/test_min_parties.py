"""Fewer replies than `min_parties` decide nothing behind the counts: the model stays as it was before the exchange."""

from __future__ import annotations

from typing import Any

from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.run import Run
from tests.federated.runs import AUTO, DUE, GRID, Exchange, exchange, in_process, options_for, sha256, shares

REASON = "set aside: 1 of at least 3 parties replied"


def until(phase: str, **changes: Any) -> Exchange:
    """A run of four parties, three of which are needed, that has come to a phase."""
    steps = exchange(GRID, min_parties=3, **changes)
    for party in steps.parties.values():
        object.__setattr__(party.options, "gram", True)
    steps.step(TRAIN)
    while steps.run.due is not None and steps.run.due.name != phase:
        steps.step(DUE)
    return steps


def left_alone(steps: Exchange, phase: str) -> Run:
    """The run after an exchange that one party alone answers."""
    before = sha256(steps.run.model)
    taken = steps.step(DUE, failures=dict.fromkeys("123", "failed: killed"))
    assert (taken.phase.name, list(taken.batch.passed)) == (phase, [])
    assert taken.missing["party-0"] == REASON
    assert sha256(steps.run.model) == before
    return steps.run


def test_one_party_of_three_does_not_select_alone() -> None:
    run = left_alone(until("selection"), "selection")
    selection = run.state.results["selection"]
    assert (selection.accuracies, selection.specs, run.state.absent("selection")["party-0"]) == ((), (0,), REASON)


def test_one_party_of_three_does_not_decide_on_the_gram_matrix_alone() -> None:
    run = left_alone(until("gram", gram=16), "gram")
    assert run.state.absent("gram")["party-0"] == REASON
    assert run.model.model_.gram is None


def test_figures_of_one_party_of_three_are_none() -> None:
    steps = until("evaluation")
    run = left_alone(steps, "evaluation")
    evaluation = run.state.results["evaluation"]
    assert (evaluation.figures, run.state.absent("evaluation")["party-0"]) == (None, REASON)


def test_as_many_as_are_needed_decide() -> None:
    steps = until("selection")
    steps.step(DUE, failures={"3": "failed: killed"})
    assert steps.run.state.results["selection"].parties == 3
    steps.step(DUE, failures={"2": "failed: killed"})
    assert steps.run.state.results["evaluation"].figures is not None


def test_parties_without_held_out_samples_count_as_replies() -> None:
    parts = shares(n=4)
    for part in parts[1:]:
        part["X_test"] = part["y_test"] = None
    run = in_process(options_for(GRID, min_parties=4), parts)
    assert run.state.results["evaluation"].figures is not None


def test_a_saved_committee_stays_where_too_few_answer_the_selection_of_a_later_run() -> None:
    saved = in_process(options_for(AUTO, min_parties=2), shares()[:3]).federation("1")
    assert len(saved.shared.members) > 1
    strict = RunOptions(**options_for(saved.run_spec.specs, federation=saved, purpose="join", min_parties=2))
    parties = [party_of(**shares(n=5)[i], name=f"new-{i}", min_examples=1) for i in (3, 4)]
    steps = Exchange(Run(strict), {"8": parties[0], "9": parties[1]})
    steps.step(TRAIN)
    steps.step(DUE, failures={"9": "failed: killed"})
    members = steps.run.model.model_.members
    assert [member.spec for member in members] == list(saved.run_spec.specs)
    assert [member.weight for member in members] == [member.weight for member in saved.shared.members]
