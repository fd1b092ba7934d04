"""A party gives nothing where its settings do not fit.

No refusal looks at its records.
"""

from __future__ import annotations

import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common import FitIns, FitRes, ndarrays_to_parameters

from flwr_flynn import FlyNNClient
from flwr_flynn.app.client_app import client_fn
from flwr_flynn.app.data import own_file
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phases.selection import SelectionRequest
from flwr_flynn.federated.protocol import PHASE, REFUSED, TRAIN, Reply, key
from flwr_flynn.federated.roster import Failures
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.flower.logging import result_lines
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import (
    GaussianCounts,
    LaplaceCounts,
    Mechanism,
    SimulatedRelease,
)
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import (
    CLASSES,
    RUN,
    SHAPE,
    SPEC,
    config_of,
    counting,
    counts_of,
    evaluation_of,
    points,
    with_spec,
)
from tests.raising import raises

BOUND = 256


LEAVE = {PHASE: "withdraw"}
SHARED = SimulatedRelease(GaussianCounts(1.0, 1e-5, **SHAPE, n_honest=2), seed=7)


def asking(mechanism: Mechanism, bound: int | None = None) -> dict[str, Any]:
    return counting(RunSpec(SPEC, CLASSES, mechanism, bound))


def noisy(epsilon: float = 1.0) -> dict[str, Any]:
    return asking(SimulatedRelease(LaplaceCounts(epsilon, **SHAPE), seed=1))


def drawn(epsilon: float = 1.0) -> dict[str, Any]:
    """The same with noise that nobody can draw again."""
    return asking(LaplaceCounts(epsilon, **SHAPE))


TOTAL = counts_of(*points(60))
SHARE = asking(SHARED, BOUND)
SELECTING = config_of(
    SelectionRequest(RUN, CountsOfSpecs((TOTAL,)), ((ScoringRule("balanced", 0.5),),))
)
_MODEL = evaluation_of(RUN, (TOTAL,), (ScoringRule("balanced", 0.5, 1.0),))
TRYING = config_of(_MODEL)
KEEPING = config_of(replace(_MODEL, tries=False))


def budget(folder: Path, **policy: Any) -> Budget:
    return Budget(
        folder / "state",
        Policy(**{"max_epsilon": 1.0, "mechanisms": ["simulated"]} | policy),
    )


# ---- the runtime


def write(folder: Path) -> Path:
    X, y = points(60)
    np.savez(folder / "secret.npz", X=X, y=y)
    return folder / "secret.npz"


def fit(node: dict[str, Any], config: dict[str, Any] | None = None) -> FitRes:
    """The reply of a deployed party with these settings."""
    context = Context(
        1, 2, node, RecordDict(), {row.key: row.default for row in RunConfig.rows()}
    )
    reply: FitRes = client_fn(context).fit(
        FitIns(ndarrays_to_parameters([]), config or counting())
    )
    return reply


def private_node(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "data-path": str(write(folder)),
        "max-epsilon": 1.0,
        "state-path": str(folder / "state"),
        **more,
    }


# Flower's tutorials give them to every node
NUMBERED = {"partition-id": 0, "num-partitions": 2}


def test_a_missing_data_path_is_named():
    assert str(fit(NUMBERED).metrics[REFUSED]).startswith(
        "node-config data-path: expected the party's own"
    )


@pytest.mark.parametrize("initialised", [False, True])
@pytest.mark.parametrize("actor", [None, "1"])
@pytest.mark.parametrize("called", [False, True], ids=["outside", "called"])
def test_a_simulation_is_what_an_actor_of_flower_s_engine_runs(
    initialised,
    actor,
    called,
    monkeypatch,
):
    from flwr_flynn.app.client_app import in_simulation

    class Actor:
        def run(self) -> bool:
            return in_simulation()

    runtime = types.SimpleNamespace(get_actor_id=lambda: actor)
    ray = types.SimpleNamespace(
        is_initialized=lambda: initialised, get_runtime_context=lambda: runtime
    )
    engine = types.SimpleNamespace(VirtualClientEngineActor=Actor)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    assert not Actor().run()  # without Flower's actors there is no proof
    actors = "flwr.simulation.ray_transport.ray_actor"
    monkeypatch.setitem(sys.modules, actors, engine)  # type: ignore[arg-type]
    if called:
        assert Actor().run() == (initialised and actor is not None)
    else:
        assert not in_simulation()


# ---- settings

BOUNDLESS: dict[str, Any] = {
    "state-path": "/var/lib/flynn/state",
    "max-delta": 1e-5,
    "neighbours": "add-remove",  # its default: who names it wants a policy all the same
    "records-per-person": 1,
    "evaluate": False,
    "composition": "basic",
    "response-seconds": 1.0,
}


@pytest.mark.parametrize("key", BOUNDLESS)
def test_what_private_answers_have_is_refused_without_a_bound(key, tmp_path):
    node = {"data-path": str(write(tmp_path)), key: BOUNDLESS[key]}
    with raises(ConfigError, field="node-config max-epsilon", got="none") as caught:
        NodeConfig.parse(node)
    assert key in caught.value.expected
    assert fit(node).parameters.tensors == []
    bounded = {"max-epsilon": 1.0, "state-path": "/var/lib/flynn/state", **node}
    assert NodeConfig.parse(bounded).policy().max_epsilon == 1.0


def test_every_bound_of_a_node_is_in_its_policy():
    node = {
        "data-path": "a.csv",
        "max-epsilon": 2.0,
        "max-delta": 1e-5,
        "state-path": "/s",
        "secure": True,
    }
    expected = Policy(2.0, 1e-5, secure_sum=True, composition="zcdp")
    assert NodeConfig.parse(node | {"composition": "zcdp"}).policy() == expected


# ---- nothing is looked at for a refusal


class Untouchable:
    """Records of which nobody may see more than how many they are."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.ndim = len(shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        if name == "columns":  # of a data frame alone
            raise AttributeError
        raise AssertionError(f"records were touched: {name}")

    def _touched(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("records were touched")

    __getitem__ = __iter__ = __array__ = _touched
    __contains__ = __eq__ = _touched  # type: ignore[assignment]


def untouchable(folder: Path, loads: bool = False, **more: Any) -> FlyNNClient:
    more |= {"name": "Basel", "budget": budget(folder)}
    if loads:
        return FlyNNClient(load=lambda _: pytest.fail("records were touched"), **more)
    return FlyNNClient(Untouchable(20, 4), Untouchable(20), **more)


REFUSALS = {
    "spent": noisy(0.5),
    "leave": noisy() | LEAVE,
    "fingerprint": noisy() | {key("fingerprints"): "no"},
    "spec": noisy() | {key("specs"): "{}"},
    "classes": noisy() | {key("classes"): '["ash", "1", "1.0"]'},
    "mechanism": drawn(),
    "memory": with_spec(noisy(), hash_dim=2000000),
    "share": SHARE,
    "phase": noisy() | {PHASE: "none of ours"},
}
"""Requests that a party refuses whatever its records are; of exact figures `test_laws`
has others."""
LOADS = pytest.mark.parametrize("loads", [False, True])


@LOADS
@pytest.mark.parametrize("asked", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_touches_no_record(asked, loads, tmp_path):
    FlyNNClient(*points(20), name="Basel", budget=budget(tmp_path)).fit([], noisy())
    arrays, _, metrics = untouchable(tmp_path, loads, memory_limit=2**20).fit([], asked)
    assert arrays == []
    assert "failed" not in str(metrics[REFUSED]), metrics
    assert budget(tmp_path).spent() == (1.0, 0.0)  # of the first answer alone


@LOADS
def test_an_answer_that_was_given_before_touches_no_record(loads, tmp_path):
    first = FlyNNClient(*points(20), name="Basel", budget=budget(tmp_path)).fit(
        [], noisy()
    )
    for client, asked in (
        (untouchable(tmp_path, loads), noisy()),
        (untouchable(tmp_path, loads, leaves=True), noisy() | LEAVE),
    ):
        arrays, n_examples, metrics = client.fit([], asked)
        assert [array.tolist() for array in arrays] == [
            array.tolist() for array in first[0]
        ]
        assert (n_examples, metrics) == first[1:]


@LOADS
@pytest.mark.parametrize(
    "asked", [TRYING, KEEPING, SELECTING], ids=["try", "keep", "select"]
)
def test_a_model_touches_no_record(asked, loads, tmp_path):
    received: list[Any] = []
    client = untouchable(tmp_path, loads, on_model=received.append)
    metrics = client.evaluate(codec.encode(TOTAL), asked)[2]
    assert "failed" not in str(metrics.get(REFUSED))
    assert len(received) == (asked[PHASE] == "evaluation")


def test_a_party_reads_its_file_for_admitted_requests_only(tmp_path, monkeypatch):
    pytest.importorskip("opendp")
    from flwr_flynn.app.data.own_file import PrivateFile

    node = private_node(tmp_path)
    read = PrivateFile.blocks
    reads = []

    def counted(*given: Any) -> Any:
        reads.append(1)
        return read(*given)

    monkeypatch.setattr(PrivateFile, "blocks", counted)
    assert REFUSED in fit(node).metrics
    assert reads == []
    first = fit(node, drawn())
    assert len(first.parameters.tensors) == 2
    assert len(reads) == 1
    assert fit(node, drawn()) == first
    assert REFUSED in fit(node, drawn(0.5)).metrics
    assert len(reads) == 1


@pytest.mark.parametrize(
    "asked",
    [
        noisy(),
        noisy(0.5),
        noisy(2.0),
        counting(),
        {},
        noisy() | {"flynn-version": "0.1"},
    ],
)
def test_every_private_answer_takes_the_time_that_the_party_says(
    asked,
    tmp_path,
    monkeypatch,
    caplog,
):
    slept: list[float] = []
    monkeypatch.setattr("flwr_flynn.federated.party.time.sleep", slept.append)
    client = FlyNNClient(*points(20), budget=budget(tmp_path), response_seconds=600.0)
    client.fit([], asked)
    assert 500 < slept.pop() <= 600
    client.evaluate(codec.encode(TOTAL), TRYING)
    assert 500 < slept.pop() <= 600
    client.party.decline("malformed", asked, TRAIN)  # what cannot be read at all
    assert 500 < slept.pop() <= 600
    client = FlyNNClient(*points(20), budget=budget(tmp_path), response_seconds=1e-9)
    client.fit([], asked)
    assert slept == []
    assert "response-seconds" in caplog.text


def test_response_seconds_cover_the_reading_of_the_file(tmp_path, monkeypatch):
    read = own_file.private_rows
    sleep = time.sleep
    slept = list[float]()

    def slowly(*arguments: Any) -> Any:
        sleep(0.5)
        return read(*arguments)

    monkeypatch.setattr(own_file, "private_rows", slowly)
    monkeypatch.setattr("flwr_flynn.federated.party.time.sleep", slept.append)
    fit(private_node(tmp_path, **{"response-seconds": 600.0}))
    assert slept.pop() <= 599.5


# ---- what is said of a secure sum


def test_exact_counts_of_a_secure_sum_are_not_called_noisy():
    for mechanism in (None, SHARED):
        server = Run(
            RunOptions(
                SPEC,
                CLASSES,
                3,
                mechanism=mechanism,
                secure_bound=BOUND,
                fraction_evaluate=0.0,
            )
        )
        assert server.ask(TRAIN, ["0", "1", "2"]) is not None
        tensors = codec.write_tensors([TOTAL.array.ravel() / 3.0])
        outcome = server.complete(
            [Reply(str(i), tensors, 1, {}) for i in range(3)], Failures()
        )
        lines = [
            line for _, line in result_lines(server, outcome) if "accepted" in line
        ]
        assert len(lines) == 3
        assert all(("noisy sums" in line) == (mechanism is not None) for line in lines)
