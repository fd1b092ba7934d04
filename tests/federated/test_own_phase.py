"""A phase is one file.

One that the package does not know runs in every driver, is saved and resumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.federated.request import register
from flwr_flynn.federated.run import Run
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.federated.runs import (
    AUTO,
    DRIVERS,
    DUE,
    GRID,
    NAMES,
    TRAINING,
    Exchange,
    X,
    in_process,
    options_for,
    saved_of,
    sha256,
    shares,
)
from tests.federated.secure_runs import BOUND, Masked
from tests.own_phase_app.own_phase_app.histogram import (
    HISTOGRAM,
    HistogramRequest,
    HistogramTally,
    histogram,
    with_histogram,
)
from tests.raising import raises

POOLED = histogram(X[TRAINING], 20)


@pytest.mark.parametrize("driver", DRIVERS)
def test_it_runs_in_every_driver_and_changes_no_model(driver):
    run = DRIVERS[driver](with_histogram(**options_for(GRID)), shares("pathological"))
    np.testing.assert_array_equal(run.state.results["histogram"], POOLED)
    assert sha256(run.model) == sha256(
        in_process(options_for(GRID), shares("pathological")).model
    )
    assert run.traffic["histogram"].arrivals.parties == 4
    assert run.num_rounds == 4


def test_a_run_that_stopped_in_it_is_not_resumed_without_it(tmp_path):
    options = with_histogram(**options_for(GRID))
    saved = saved_of(Run(RunOptions(**options)), tmp_path / "f.npz")
    assert saved.phase == "histogram"
    with raises(ConfigError, field="phases"):
        Run(RunOptions(**options_for(GRID, federation=saved, purpose="resume")))


# ---- saved and resumed, wherever a phase of one's own stands

NOISE = SimulatedRelease(LaplaceCounts(5.0, hash_nnz=GRID[0].hash_nnz, n_classes=3), 3)
PLANS: dict[str, dict[str, Any]] = {
    "clear": {"spec": AUTO},
    "clear, of two specs": {"spec": GRID},
    "clear, of one spec and scoring": {"spec": GRID[0], "decay": 0.5},
    "clear, evaluated by nobody": {
        "spec": GRID,
        "fraction_evaluate": 0,
        "distribute": True,
    },
    "secure": {"spec": GRID, "secure_bound": BOUND, "min_parties": 3},
    "noisy": {"spec": GRID[0], "mechanism": NOISE, "distribute": True},
}


@register
@dataclass(frozen=True)
class OtherRequest(HistogramRequest):
    """The same over the evaluate channel, where secure runs have phases in clear."""

    phase: ClassVar[str] = "other"
    channel: ClassVar[str] = EVALUATE


OTHER = replace(
    HISTOGRAM,
    name="other",
    channel=EVALUATE,
    tally=lambda *_: HistogramTally(OtherRequest(4, NAMES, 20)),
    resumes_at=("columns", "counts", "selection"),
    fold=lambda state, *_: state.with_result("other", True),
)


def steps_of(plan: str, folder: Path, phases: Any, **changes: Any) -> Exchange:
    """A run of `PLANS` that has not begun, by these phases and other options."""
    options = options_for(**{**PLANS[plan], "phases": phases, **changes})
    parties = {}
    for number, share in enumerate(shares()):
        settings: dict[str, Any] = {
            "min_examples": 1,
            "products": True,
            "evaluates": True,
        }
        if plan == "secure":
            settings["secure"] = True
        if plan == "noisy":
            policy = Policy(5.0, mechanisms=["simulated"])
            settings["budget"] = Budget(folder / str(number), policy)
        party_options = PartyOptions(name=f"party-{number}", **settings)
        samples = Samples(*share.values())
        parties[str(number)] = Party(samples, party_options, lambda *_: None)
    run = Run(RunOptions(**options))
    if plan == "secure":
        return Masked(run, parties)
    return Exchange(run, parties)


def finished(steps: Exchange) -> Run:
    """The run of some steps, gone on to its end."""
    for _ in steps.run.phases:
        steps.step(DUE)
    assert steps.run.due is None
    return steps.run


# The train channel of a secure run has secure sums alone.
@pytest.mark.slow
@pytest.mark.parametrize("is_near", [True, False])
@pytest.mark.parametrize(
    ("plan", "own"),
    [(plan, OTHER) for plan in PLANS]
    + [(plan, HISTOGRAM) for plan in PLANS if plan != "secure"],
)
def test_a_run_resumes_after_any_phase_wherever_a_phase_of_ones_own_stands(
    plan, own, is_near, tmp_path
):
    usual = phases_of(RunOptions(**options_for(**PLANS[plan])))
    whole = finished(steps_of(plan, tmp_path / "whole", usual)).model.model_.sha256()
    for place in range(len(usual) + 1):
        phases = (*usual[:place], own, *usual[place:])
        folder = tmp_path / str(place)
        stopped = steps_of(plan, folder, phases)
        near = phases[max(place - 1, 0) : place + 1]
        for phase in phases:
            stopped.step(phase.channel)
            if (phase in near) != is_near:
                continue
            if not stopped.run.is_specified:
                with raises(AggregationError, counted=0):
                    stopped.run.federation("1")
                continue
            saved = saved_of(stopped.run, tmp_path / "f.npz")
            changes = {
                "spec": saved.run_spec.specs,
                "federation": saved,
                "purpose": "resume",
            }
            if plan == "secure":
                # Nobody's counts are known, so that nobody else can be counted; the
                # model is in the file as soon as the run has it.
                with raises(ConfigError, field="purpose", got="resume"):
                    steps_of(plan, folder, phases, **changes)
                run = stopped.run
                if "calibration" in run.state.results and run.restart is run.due:
                    assert saved.model.model_.sha256() == whole
                continue
            model = finished(steps_of(plan, folder, phases, **changes)).model.model_
            assert model.sha256() == whole, f"stopped after {phase.name}"


def test_phases_need_names_of_their_own_and_one_that_counts():
    counting, *rest = phases_of(RunOptions(**options_for(GRID)))
    for phases in ((counting, counting), tuple(rest), ()):
        with raises(ConfigError, field="phases"):
            RunOptions(**{**options_for(GRID), "phases": phases})


def test_a_phase_in_clear_is_not_asked_in_a_secure_run():
    options = options_for(GRID, secure_bound=64, min_parties=3)
    run = Run(
        RunOptions(**options, phases=(HISTOGRAM, *phases_of(RunOptions(**options))))
    )
    with raises(ConfigError, field="phases", got="histogram"):
        run.ask(TRAIN, ["0", "1", "2"])
