"""A phase is one file: one that the package does not know runs in every driver, is
saved and resumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.federated.request import register
from flwr_flynn.federated.run import Run
from tests.federated.runs import (
    AUTO,
    DRIVERS,
    GRID,
    LABELS,
    NAMES,
    TRAINING,
    Exchange,
    X,
    exchange,
    in_process,
    options_for,
    replied,
    sha256,
    shares,
)
from tests.own_phase_app.own_phase_app.histogram import (
    HISTOGRAM,
    HistogramRequest,
    histogram,
    with_histogram,
)
from tests.raising import raises

POOLED = histogram(X[TRAINING], 20)


@pytest.mark.parametrize("driver", DRIVERS)
def test_it_runs_in_every_driver_and_changes_no_model(driver: str) -> None:
    run = DRIVERS[driver](with_histogram(**options_for(GRID)), shares("pathological"))
    np.testing.assert_array_equal(run.state.results["histogram"], POOLED)
    assert sha256(run.model) == sha256(
        in_process(options_for(GRID), shares("pathological")).model
    )
    assert run.traffic["histogram"].replied == 4
    assert run.num_rounds == 3


def test_it_may_come_before_the_columns() -> None:
    run = in_process(with_histogram(**options_for(AUTO)), shares())
    assert list(run.state.results) == [
        "histogram",
        "columns",
        "counts",
        "selection",
        "evaluation",
    ]
    np.testing.assert_array_equal(run.state.results["histogram"], POOLED)


def begun(**options: Any) -> Exchange:
    """A run with the phase that has not begun."""
    return Exchange(
        Run(RunOptions(**{**with_histogram(**options_for(GRID)), **options})),
        exchange(GRID).parties,
    )


def test_a_run_stops_before_and_after_it(tmp_path: Path) -> None:
    whole = exchange(GRID).rounds()
    for n_done, due in ((1, "counts"), (0, "histogram")):
        stopped = begun()
        for _ in range(n_done):
            stopped.step(TRAIN)
        stopped.run.federation("1").save(tmp_path / "f.npz")
        saved = Federation.load(tmp_path / "f.npz")
        assert saved.phase == due
        run = begun(federation=saved, purpose="resume").rounds(4)
        assert ("histogram" in run.state.results) == (due == "histogram")
        assert sha256(run.model) == sha256(whole.model)
    with raises(ConfigError, field="phases"):
        Run(
            RunOptions(
                **{**options_for(GRID), "federation": saved, "purpose": "resume"}
            )
        )


def test_a_party_decides_by_its_own_options_and_data() -> None:
    request = HistogramRequest(4, tuple(np.unique(LABELS)), 20)
    assert replied(request, party_of(X, LABELS)).n_examples == 150
    for party in (
        party_of(X[:, :3], LABELS),
        party_of(-X, LABELS),
        party_of(X, LABELS, secure=True),
    ):
        assert replied(request, party).metrics.keys() == {"flynn-refused"}
    assert replied(
        replace(request, n_bins=1001), party_of(X, LABELS)
    ).metrics.keys() == {"flynn-refused"}


@register
@dataclass(frozen=True)
class LaterRequest(HistogramRequest):
    """The same over the other channel."""

    phase: ClassVar[str] = "later"
    channel: ClassVar[str] = EVALUATE


@pytest.mark.parametrize("driver", DRIVERS)
def test_it_may_go_over_the_other_channel(driver: str) -> None:
    phase = replace(
        HISTOGRAM, channel=EVALUATE, request=lambda *_: LaterRequest(4, NAMES, 20)
    )
    counting, *rest = phases_of(RunOptions(**options_for(GRID)))
    run = DRIVERS[driver](
        {**options_for(GRID), "phases": (counting, phase, *rest)}, shares()
    )
    np.testing.assert_array_equal(run.state.results["histogram"], POOLED)
    assert list(run.state.results) == ["counts", "histogram", "selection", "evaluation"]


def test_phases_need_names_of_their_own_and_one_that_counts() -> None:
    counting, *rest = phases_of(RunOptions(**options_for(GRID)))
    for phases in ((counting, counting), tuple(rest), ()):
        with raises(ConfigError, field="phases"):
            RunOptions(**{**options_for(GRID), "phases": phases})


def test_a_phase_in_clear_is_not_asked_in_a_secure_run() -> None:
    options = options_for(GRID, secure_bound=64, min_parties=3)
    run = Run(
        RunOptions(**options, phases=(HISTOGRAM, *phases_of(RunOptions(**options))))
    )
    with raises(ConfigError, field="phases", got="histogram"):
        run.ask(TRAIN, ["0", "1", "2"])
