"""The algorithm in process is what both strategies do, and ends in the model of the pooled samples."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.run import Run
from tests.federated.runs import AUTO, DRIVERS, GRID, LABELS, X, in_process, options_for, sha256, shares


@pytest.mark.parametrize(
    ("spec", "changes"),
    [(GRID, {}), (GRID[0], {"decay": 0.5}), (GRID[1], {"fraction_evaluate": 0})],
    ids=["grid", "decay", "counts alone"],
)
def test_all_drivers_end_in_the_same_model(spec: Any, changes: dict[str, Any]) -> None:
    runs = [drive(options_for(spec, **changes), shares("pathological")) for drive in DRIVERS.values()]
    assert len({sha256(run.model) for run in runs}) == 1
    assert len({run.counts.sha256() for run in runs}) == 1
    figures = [run.state.results["evaluation"].figures for run in runs if "evaluation" in run.state.results]
    assert all(each == figures[0] for each in figures)


def test_a_party_without_samples_changes_nothing_and_fails_at_nothing() -> None:
    empty = {"X": X[:0], "y": LABELS[:0], "X_test": X[:0], "y_test": LABELS[:0]}
    runs = [in_process(options_for(GRID), parts) for parts in (shares(), [*shares(), empty])]
    assert runs[1].counted.missing == {}
    assert sha256(runs[0].model) == sha256(runs[1].model)
    selections = [run.state.results["selection"] for run in runs]
    assert (selections[1].parties, runs[1].state.absent("selection")) == (5, {})
    assert selections[1].accuracies == selections[0].accuracies
    assert len({run.state.results["evaluation"].figures["accuracy"] for run in runs}) == 1


def test_a_party_that_refuses_costs_nobody_else() -> None:
    parts = shares()
    parts[2] = {**parts[2], "X": parts[2]["X"][:, :3]}
    with pytest.warns(UserWarning, match=r"^phase counts: no answer of party-2 \("):
        run = in_process(options_for(GRID), parts)
    assert list(run.counted.missing) == ["party-2"]
    others = in_process(options_for(GRID), [parts[i] for i in (0, 1, 3)])
    assert sha256(run.model) == sha256(others.model)


def test_the_traffic_of_every_phase_is_the_same_for_all_drivers() -> None:
    runs = [drive(options_for(AUTO), shares()) for drive in DRIVERS.values()]
    for run in runs:
        assert run.traffic.keys() == {"columns", "counts", "selection", "evaluation"}
        for name, each in run.traffic.items():
            assert each.asked == each.replied == 4, name
            assert min(each.per_party.values()) > 0


def test_a_run_without_parties_has_no_model() -> None:
    run = in_process(options_for(GRID), [])
    assert isinstance(run, Run)
    assert not run.is_enough
    assert RunOptions(**options_for(GRID)).run_spec == run.state.run_spec
