"""Fewer replies than `min_parties` decide nothing behind the counts.

The model stays as it was before the exchange.
"""

from __future__ import annotations

import pytest

from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.run import Run
from tests.federated.runs import (
    AUTO,
    DUE,
    GRID,
    Exchange,
    exchange,
    in_process,
    options_for,
    sha256,
    shares,
)

REASON = "set aside: 1 of at least 3 parties replied"


@pytest.mark.parametrize("phase", ["selection", "calibration", "evaluation"])
def test_one_party_of_three_decides_nothing(phase):
    steps = exchange(GRID, min_parties=3).until(phase)
    before = sha256(steps.run.model)
    outcome = steps.step(DUE, failures=dict.fromkeys("123", "failed: killed"))
    assert outcome.phase.name == phase
    assert list(outcome.batch.passed) == []
    run = steps.run
    results = steps.run.state.results
    assert outcome.missing["party-0"] == run.state.missing[phase]["party-0"] == REASON
    assert sha256(run.model) == before
    made = {
        "selection": "accuracies",
        "calibration": "calibration",
        "evaluation": "figures",
    }[phase]
    assert not getattr(results[phase], made)


def test_as_many_as_are_needed_decide():
    steps = exchange(GRID, min_parties=3)
    steps.step(TRAIN)
    for cid in "321":
        steps.step(DUE, failures={cid: "failed: killed"})
    results = steps.run.state.results
    assert results["selection"].parties == 3
    assert results["evaluation"].figures is not None


def test_parties_without_held_out_samples_count_as_replies():
    parts = shares(n=4)
    for part in parts[1:]:
        part["X_test"] = part["y_test"] = None
    run = in_process(options_for(GRID, min_parties=4), parts)
    assert run.state.results["evaluation"].figures is not None


def test_a_saved_committee_stays_where_too_few_answer_the_selection_of_a_later_run():
    saved = in_process(options_for(AUTO, min_parties=2), shares()[:3]).federation("1")
    assert len(saved.shared.members) > 1
    strict = RunOptions(
        **options_for(
            saved.run_spec.specs, federation=saved, purpose="join", min_parties=2
        )
    )
    parties = [
        party_of(**shares(n=5)[i], name=f"new-{i}", min_examples=1) for i in (3, 4)
    ]
    steps = Exchange(Run(strict), {"8": parties[0], "9": parties[1]})
    steps.step(TRAIN)
    steps.step(DUE, failures={"9": "failed: killed"})
    members = steps.run.model.model_.members
    assert [member.spec for member in members] == list(saved.run_spec.specs)
    assert [member.weight for member in members] == [
        member.weight for member in saved.shared.members
    ]
