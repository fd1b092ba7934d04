"""Declarations of a phase are in plan.json, log, report and page, also of a phase that the
package does not know.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from flwr_flynn import FlyNNStrategy
from flwr_flynn.app.dry_run import plan_json
from flwr_flynn.app.metrics_json import run_metrics
from flwr_flynn.app.report.page import page
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_plan import RunPlan
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import SiteSetting
from flwr_flynn.federated.phase import Needs, RunState, Section
from flwr_flynn.federated.phases.counts import no_counts
from flwr_flynn.federated.plan import every_phase, phases_of
from flwr_flynn.federated.protocol import NOTHING
from flwr_flynn.federated.run import Run
from flwr_flynn.flower.logging import plan_lines
from tests.federated.runs import AUTO, GRID, in_process, options_for, shares
from tests.own_phase_app.own_phase_app.histogram import HISTOGRAM

DECLARED = replace(
    HISTOGRAM,
    content="samples in bins of the first column",
    memory=lambda options, scale: Needs(
        {"a histogram": 160.0 * scale.n_parties}, {"a histogram": 160.0}
    ),
    asks=lambda options: [SiteSetting("min_examples", None, "nothing is left out")],
    announce=lambda options: ["the histogram has no floor"],
    discloses=lambda options: NOTHING,
    report=lambda state, options: Section(
        {"histogram": state.results["histogram"].tolist()},
        {"largest bin": str(state.results["histogram"].max())},
    ),
)


def test_what_a_phase_by_hand_declares_is_in_plan_log_and_report():
    given = options_for(GRID)
    given["phases"] = (DECLARED, *phases_of(RunOptions(**given)))
    strategy = FlyNNStrategy(min_available_clients=4, **given)
    plan = RunPlan(RunConfig(min_available=4), None, None, strategy)
    made = plan_json(plan)
    assert made["phases"][0] == {
        "name": "histogram",
        "round": 1,
        "kind": NOTHING,
        "content": "",
    }
    assert made["memory"]["server"]["a histogram"] == 640
    assert made["memory"]["party"]["a histogram"] == 160
    reasons = {setting["key"]: setting["reason"] for setting in made["sites"]}
    assert reasons["min-examples"] == "nothing is left out"
    lines = [line for _, line in plan_lines(strategy.run, 4, 1.0)]
    assert "the histogram has no floor" in lines
    strategy.run = in_process(given, shares())
    report = run_metrics(plan, strategy.run.federation("1"))
    bins = strategy.run.state.results["histogram"]
    assert report["histogram"] == bins.tolist()
    assert report["facts"]["largest bin"] == str(bins.max())
    ending = {"run": {"run_id": "1", "seconds": 1.0}, "evaluation_errors": []}
    assert "largest bin" in page(report | ending)


# ---- the package's own phases


@cache
def whole() -> Run:
    return in_process(options_for(replace(AUTO, effort="thorough")), shares())


def facts_of(state: RunState, options: RunOptions) -> dict[str, str]:
    """Texts of all phases, by their names."""
    sections = [phase.report(state, options) for phase in every_phase(options)]
    return {name: text for section in sections for name, text in section.facts.items()}


def with_result(name: str, **changes: Any) -> RunState:
    state = whole().state
    return state.with_result(name, replace(state.results[name], **changes))


def test_facts_of_a_whole_run():
    run = whole()
    facts = facts_of(run.state, run.options)
    selection = run.state.results["selection"]
    assert facts["scaling"].startswith("auto, ")
    assert "120 samples" in facts["candidates"]
    n_members = sum(name.startswith("  member ") for name in facts)
    assert n_members == len(selection.choices) == len(run.model.model_.members)
    assert "8 terms, 120 samples" in facts["linear part"]
    assert facts["calibration"] == run.state.results["calibration"].described()
    assert facts["trees"].startswith("100, ")


@pytest.mark.parametrize(
    ("state", "changes", "name", "words"),
    [
        pytest.param(
            lambda: with_result("selection", accuracies=()),
            {},
            "selection",
            "too few parties",
            id="nobody compared",
        ),
        pytest.param(
            lambda: whole().state,
            {"min_parties": 9},
            "linear part",
            "sums of 4 of at least 9 parties",
            id="too few sums of products",
        ),
        pytest.param(
            lambda: with_result("calibration", calibration=None),
            {},
            "calibration",
            "not chosen",
            id="no calibration",
        ),
    ],
)
def test_facts_say_what_is_lacking(state, changes, name, words):
    facts = facts_of(state(), replace(whole().options, **changes))
    assert words in facts[name]


def test_a_phase_without_a_result_has_no_facts():
    options = RunOptions(**options_for(GRID[0], decay=0.5))
    state = RunState(options.run_spec, {"counts": no_counts(options.run_spec)})
    entries: dict[str, object] = {}
    for phase in every_phase(options):
        section = phase.report(state, options)
        assert section.facts == {}
        entries |= section.entries
    assert entries.pop("sites") == []
    assert entries.pop("evaluates") is True
    names = "schema columns linear separation selection calibration trees evaluation"
    assert entries == dict.fromkeys(names.split())
