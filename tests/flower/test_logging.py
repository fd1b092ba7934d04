"""Log lines: they name the phase, the parties and the figure, and nothing of the data."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.flower.logging import plan_lines, result_lines, spans
from flwr_flynn.privacy import LaplaceCounts
from tests.federated.runs import AUTO, GRID, exchange


def texts(lines: Any, level: int | None = None) -> list[str]:
    return [text for each, text in lines if level is None or each == level]


def step(steps: Any, channel: str, **how: Any) -> list[str]:
    outcome = steps.step(channel, **how)
    return texts(result_lines(steps.run, outcome))


def test_the_plan_is_told_before_a_run():
    def told(spec: Any, **options: Any) -> list[str]:
        return texts(plan_lines(exchange(spec, **options).run, 4, 60.0))

    lines = told(AUTO, min_parties=2)
    names = "columns, counts, selection, calibration, evaluation"
    assert lines[0] == f"phases: {names}; rounds: 4"
    assert any("waits for 4" in line and "needs 2" in line for line in lines)
    assert any("scaling auto" in line for line in lines)
    noise = LaplaceCounts(1.0, hash_nnz=GRID[0].hash_nnz, n_classes=3)
    private = told(GRID[0], mechanism=noise, fraction_evaluate=1.0)
    assert any(noise.guarantee() in line for line in private)
    assert any(line.startswith("NOT COVERED") for line in private)
    assert "evaluation by the parties: none" in told(
        GRID[0], fraction_evaluate=0, distribute=True
    )


def test_every_phase_says_what_came_of_it_and_what_is_next():
    steps = exchange(AUTO)
    columns, counts, selection, calibration = (step(steps, TRAIN) for _ in range(4))
    evaluation = step(steps, EVALUATE)
    assert "columns: 4 of 4 parties; next: counts" in columns
    assert sum(line.startswith("hash: ") for line in columns) == 5
    assert any(" inputs -> " in line for line in columns)
    assert [line.split(", ")[-1] for line in counts[:4]] == ["accepted"] * 4
    member = steps.run.counted.counted[0]
    assert counts[0].startswith(
        f"counts: party-0: {member.examples} samples, {member.bytes} bytes, "
    )
    assert counts[-1] == "counts: 4 of 4 parties, 4 in all; next: selection"
    chosen, figures = (
        steps.run.state.results[name] for name in ("selection", "evaluation")
    )
    listed = ", ".join(
        f"{choice.spec + 1} ({choice.weight:.2f})" for choice in chosen.choices
    )
    assert selection[-1].startswith(
        f"selection: candidates {listed} of 5, decay {chosen.scorings[0].decay:.4g}, best "
    )
    assert selection[-1].endswith("4 of 4 parties); next: calibration")
    assert calibration[-1].startswith("calibration: temperature ")
    told = (
        f"evaluation: accuracy {figures.figures['accuracy']:.4f} on 30 test "
        "samples of 4 parties"
    )
    assert evaluation[-1].startswith(told)


def test_levels_of_trees_are_told_in_a_line_each():
    steps = exchange(replace(AUTO, effort="thorough"))
    (first, *_) = texts(plan_lines(steps.run, 4, 60.0))
    names = "columns, counts, selection, calibration, trees 1 to 16, forest, evaluation"
    assert first == f"phases: {names}; rounds: 21"
    level = step(steps.until("trees 2"), TRAIN)
    growth = steps.run.state.results["trees 2"]
    assert level == [
        f"trees 2: {len(growth.forest.leaf_nodes)} leaf nodes, least log-loss so far "
        f"{growth.best_loss:.4f} (4 of 4 parties); next: trees 3"
    ]
    assert 0 < growth.best_loss < 1


def test_trees_that_no_party_consents_to_are_told():
    steps = exchange(replace(AUTO, effort="thorough")).until("trees 1")
    for party in steps.parties.values():
        object.__setattr__(party, "options", replace(party.options, products=False))
    *warned, last = step(steps, TRAIN)
    assert last == "trees 1: no sums, so no trees (0 of 4 parties); next: evaluation"
    (warning,) = warned
    assert "node-config products" in warning


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["counts"], ["counts"]),
        (["a 1", "a 2", "a 3", "b"], ["a 1 to 3", "b"]),
        (["a 1", "b 2", "b", "b 9", "b 10"], ["a 1", "b 2", "b", "b 9 to 10"]),
    ],
    ids=str,
)
def test_phases_of_one_series_have_one_name(names, expected):
    series = spans(names)
    assert [*series] == expected
    assert [name for row in series.values() for name in row] == names


def test_missing_and_repeating_parties_are_told():
    steps = exchange(GRID, min_parties=4)
    outcome = steps.step(TRAIN, failures={"3": "failed: gone\n"})
    warned, lines = (
        texts(result_lines(steps.run, outcome), level)
        for level in (logging.WARNING, None)
    )
    assert warned == ["counts: missing: node 3 (failed: gone)"]
    assert (
        lines[-1]
        == "counts: 3 of 4 parties, 3 in all; at least 4 are needed; next: counts"
    )
    step(steps, TRAIN)
    lines = step(steps, TRAIN, failures=dict.fromkeys("0123", "failed: gone"))
    assert lines[-1].startswith("selection: candidates 1 (1.00) of 2, ")
    assert "not compared" in lines[-1]


def test_columns_that_are_left_as_they_are_are_told():
    warning = "columns: COLUMNS NOT SCALED: no party sent the histograms of any sample"
    assert warning in step(exchange(AUTO, floor=1000), TRAIN)


def test_the_missing_are_told_in_one_line_that_does_not_grow():
    steps = exchange(AUTO)
    outcome = steps.step(TRAIN)
    missing = {f"node {i}": "no reply" for i in range(1000)}
    (line,) = texts(
        result_lines(steps.run, replace(outcome, missing=missing)), logging.WARNING
    )
    assert line.startswith("columns: missing: node 0 (no reply), node 1 (no reply), ")
    assert len(line) < 500


def test_counted_parties_of_one_name_are_warned_of():
    steps = exchange(GRID)
    for cid in "01":
        object.__setattr__(steps.parties[cid].options, "name", "Basel")
    lines = step(steps, TRAIN)
    assert (
        sum(
            "2 COUNTED PARTIES GIVE THE SAME NAME" in line
            and "Basel (nodes 0, 1)" in line
            for line in lines
        )
        == 1
    )
