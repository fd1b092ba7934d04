"""Laws of both strategies, each over Flower's own loop and parties in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.server import Server

from flwr_flynn import message
from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.flower import records
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.flower.strategy import BaseStrategy, FlyNNStrategy
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.privacy import LaplaceCounts
from tests.fakes import CLASSES, HASHER, SPEC, FakeGrid, Node, Proxy, counts_of, manager, points
from tests.federated.runs import AUTO, GRID, clients, in_process, options_for, sha256, shares
from tests.raising import raises

X, Y = points(60)
Log = Callable[[int, list[np.ndarray]], None]


class Legacy:
    """Flower's `Strategy` API."""

    members = "clients"

    def __init__(self, parties: Sequence[FlyNNClient], failing: Sequence[int] = ()) -> None:
        self.proxies = [Proxy(str(i), party) for i, party in enumerate(parties)]
        for i in failing:
            self.proxies[i].fails = RuntimeError("gone")

    def make(self, **changes: Any) -> FlyNNStrategy:
        return FlyNNStrategy(**_settings(self.members, len(self.proxies), changes))

    def run(self, strategy: Any, rounds: int | None = None, evaluate: Log | None = None) -> Any:
        """Run, and return metrics of the first round: of the training and of the evaluation."""
        strategy.evaluate_fn = None if evaluate is None else lambda number, arrays, _: evaluate(number, arrays)
        server = Server(client_manager=manager(*self.proxies), strategy=strategy)
        history, _ = server.fit(strategy.num_rounds if rounds is None else rounds, timeout=None)
        found = history.metrics_distributed_fit, history.metrics_distributed
        return tuple({name: values[0][1] for name, values in each.items()} for each in found)

    def asked(self) -> list[list[str]]:
        return [["train"] * proxy.fits + ["evaluate"] * proxy.evaluations for proxy in self.proxies]


class Messages(Legacy):
    """Flower's Message API."""

    members = "nodes"

    def __init__(self, parties: Sequence[FlyNNClient], failing: Sequence[int] = ()) -> None:
        self.nodes = {i: Node(party, fails="gone" if i in failing else None) for i, party in enumerate(parties)}

    def make(self, **changes: Any) -> Any:
        return message.FlyNNStrategy(**_settings(self.members, len(self.nodes), changes))

    def run(self, strategy: Any, rounds: int | None = None, evaluate: Log | None = None) -> Any:
        def evaluate_fn(number: int, arrays: Any) -> None:
            assert evaluate is not None
            evaluate(number, codec.read_tensors(records.tensors_of(RecordDict({"arrays": arrays}))))

        more: dict[str, Any] = {} if evaluate is None else {"evaluate_fn": evaluate_fn}
        result = strategy.start(FakeGrid(self.nodes), num_rounds=rounds, timeout=7, **more)
        assert result.arrays == (strategy.arrays if strategy.run.is_specified and strategy.run.is_enough else {})
        found = result.train_metrics_clientapp, result.evaluate_metrics_clientapp
        return tuple(dict(each.get(1, {})) for each in found)

    def asked(self) -> list[list[str]]:
        return [node.asked for node in self.nodes.values()]


def _settings(members: str, n: int, changes: dict[str, Any]) -> dict[str, Any]:
    settings = {"spec": SPEC, "classes": CLASSES, "min_parties": min(n, 2) or 1, "wait_timeout": 0, "decay": 0.8}
    given = settings | {"min_available": n or 1} | changes
    return {f"{name}_{members}" if name == "min_available" else name: given[name] for name in given}


BOTH = pytest.mark.parametrize("api", [Legacy, Messages], ids=["legacy", "message"])
Api = type[Legacy]


def federation(n: int, **more: Any) -> list[FlyNNClient]:
    """Parties with interleaved shares of the samples, the second half of which is held out."""
    shares = ((slice(i, 30, n), slice(30 + i, None, n)) for i in range(n))
    return [
        FlyNNClient(X[mine], Y[mine], X_test=X[test], y_test=Y[test], name=f"party-{i}", **more)
        for i, (mine, test) in enumerate(shares)
    ]


# ---- settings


@BOTH
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"min_parties": 0}, "min_parties"),
        ({"min_parties": 3}, "min_parties"),
        ({"min_available": 2.0}, "min_available_{}"),
        ({"min_available": True}, "min_available_{}"),
        ({"wait_timeout": -1}, "wait_timeout"),
        ({"fraction_evaluate": 1.5}, "fraction_evaluate"),
        ({"classes": []}, "classes"),
        ({"spec": FlyHash.from_rows(HASHER.rows, 4, 3)}, "spec"),
        ({"spec": SPEC.to_dict()}, "spec"),
    ],
)
def test_bad_settings_are_refused_at_once(api: Api, change: dict[str, Any], field: str) -> None:
    with raises(ConfigError, field=field.format(api.members)):
        api(federation(2)).make(**change)


@BOTH
def test_numbers_of_parties_have_no_default_and_may_be_numpy_s(api: Api) -> None:
    strategy = api(federation(2)).make(min_available=np.int64(2), min_parties=np.uint8(1))
    assert repr(strategy) == f"FlyNNStrategy(counted=0, min_parties=1, min_available_{api.members}=2)"
    for name in (f"min_available_{api.members}", "min_parties"):
        given = {"spec": SPEC, "classes": CLASSES, f"min_available_{api.members}": 2, "min_parties": 2}
        del given[name]
        with pytest.raises((TypeError, ConfigError), match=name):
            type(strategy)(**given)


# ---- whole runs


@BOTH
@pytest.mark.parametrize("n_parties", [1, 3, 40])
@pytest.mark.parametrize("rounds", [None, 1, 3])
def test_a_run_gives_the_pooled_model_however_many_rounds(api: Api, n_parties: int, rounds: int | None) -> None:
    received: list[FlyNNClassifier] = []
    network = api(federation(n_parties, on_model=received.append))
    strategy = network.make(min_parties=n_parties)
    training, evaluation = network.run(strategy, rounds)
    assert strategy.model.counts_ == counts_of(X[:30], Y[:30])
    assert sorted(str(party) for party in strategy.parties) == sorted(f"party-{i}" for i in range(n_parties))
    assert network.asked() == [["train", "evaluate"]] * n_parties
    assert [model.counts_ == strategy.counts for model in received] == [True] * n_parties
    accuracy = np.mean(strategy.model.predict(X[30:]) == Y[30:])
    assert evaluation["accuracy"] == strategy.evaluation["accuracy"] == accuracy
    assert (training["examples"], training["parties"]) == (30, n_parties)


@BOTH
def test_the_results_of_a_run_are_attributes(api: Api) -> None:
    network = api(clients(shares()))
    strategy: BaseStrategy = network.make(**options_for(AUTO), decay="auto")
    network.run(strategy)
    run = strategy.run
    assert strategy.num_rounds == 3
    assert strategy.model is run.model is strategy.model
    assert strategy.counts == strategy.model.model_.members[0].counts
    assert sorted(map(str, strategy.parties)) == [f"party-{i}" for i in range(4)]
    assert sum(party.examples or 0 for party in strategy.parties) == 120
    assert strategy.missing == {}
    assert strategy.selection is run.state.results["selection"]
    assert strategy.evaluation is not None
    X_test, y_test = (np.concatenate([part[name] for part in shares()]) for name in ("X_test", "y_test"))
    assert strategy.evaluation["accuracy"] == np.mean(strategy.model.predict(X_test) == y_test)
    assert (strategy.secure_bound, strategy.guarantee) == (None, None)
    assert strategy.federation("1").model.model_.sha256() == strategy.model.model_.sha256()
    assert "counted=4, min_parties=1" in repr(strategy)


@BOTH
def test_of_too_few_parties_there_is_no_model_and_the_error_says_who_is_missing(api: Api) -> None:
    parts = shares()
    parts[2] = {**parts[2], "X": parts[2]["X"][:, :3]}
    network = api(clients(parts))
    strategy = network.make(**options_for(AUTO, min_parties=4), decay="auto")
    network.run(strategy)
    with raises(AggregationError, counted=3, min_parties=4) as caught:
        _ = strategy.model
    assert caught.value.missing["party-2"].startswith("declined: n_features: ")
    assert sorted(party.name for party in strategy.parties) == ["party-0", "party-1", "party-3"]


@BOTH
@pytest.mark.parametrize("spec", [SPEC, HashPlan(4, 3, scaling="auto")], ids=["spec", "plan"])
def test_without_parties_there_is_no_model(api: Api, spec: Any) -> None:
    network = api([])
    strategy = network.make(spec=spec)
    assert network.run(strategy) == ({}, {})
    assert (strategy.selection, strategy.evaluation, strategy.parties, strategy.missing) == (None, None, [], {})
    with raises(AggregationError, counted=0, missing={}):
        _ = strategy.model


@BOTH
@pytest.mark.parametrize("spec", [AUTO, GRID, GRID[0]], ids=["auto", "grid", "one"])
def test_the_server_s_own_evaluation_gets_the_selected_counts_and_none_before_there_is_a_spec(
    api: Api, spec: Any
) -> None:
    network, seen = api(clients(shares("dirichlet"))), []
    strategy = network.make(**options_for(spec), decay="auto")

    def evaluate(number: int, arrays: list[np.ndarray]) -> None:
        hashers = strategy.run.state.run_spec.hashers
        index = [hasher.fingerprint for hasher in hashers].index(arrays[0].tobytes().hex())
        seen.append((number, index, codec.decode_all(arrays, [hashers[index]], 3)[0].n_examples))

    network.run(strategy, evaluate=evaluate)
    assert [number for number, _, _ in seen] == list(range(int(spec is AUTO), strategy.num_rounds + 1))
    assert [n for _, _, n in seen[:2]] == [0, 120]
    assert seen[-1][1:] == (strategy.selection.specs[0], 120)
    assert sha256(strategy.model) == sha256(in_process(options_for(spec), shares("dirichlet")).model)


@BOTH
def test_after_waiting_it_starts_with_those_that_are_there(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    network = api(federation(2))
    strategy = network.make(min_available=3, wait_timeout=0.01)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        network.run(strategy)
    assert [record.args[-2:] for record in caplog.records] == [(3, 2)]
    assert len(strategy.parties) == 2


@BOTH
@pytest.mark.parametrize("fraction", [0, 1, 0.0, 1.0])
def test_all_parties_evaluate_or_none(api: Api, fraction: float) -> None:
    network = api(federation(8))
    network.run(network.make(fraction_evaluate=fraction), 1)
    assert sum("evaluate" in each for each in network.asked()) == 8 * fraction


@BOTH
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_may_be_distributed_to_parties_that_send_no_figures(
    api: Api, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[FlyNNClassifier] = []

    def keep(model: FlyNNClassifier) -> None:
        received.append(model)
        if fails:
            raise OSError(28, "full", "/secret/model.npz")

    network = api(federation(3, on_model=keep))
    strategy = network.make(fraction_evaluate=0, distribute=True)
    assert strategy.num_rounds == 1
    with caplog.at_level(logging.INFO, logger="flwr"):
        _, evaluation = network.run(strategy)
    assert [model.counts_ == strategy.counts for model in received] == [True] * 3
    result = strategy.run.state.results["evaluation"]
    assert (strategy.evaluation, strategy.run.state.absent("evaluation"), evaluation) == (None, {}, {})
    reason = "failed with OSError: No space left on device"
    assert result.unkept == ({f"party-{i}": reason for i in range(3)} if fails else {})
    assert (reason in caplog.text) == fails


def test_metrics_are_aggregated_as_in_fedavg() -> None:
    def weighted(replies: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        return {"n": sum(n for n, _ in replies), "parties": len(replies)}

    network = Legacy(federation(3))
    functions = {"fit_metrics_aggregation_fn": weighted, "evaluate_metrics_aggregation_fn": weighted}
    training, evaluation = network.run(network.make(**functions))
    assert (training["n"], training["parties"], evaluation["n"], evaluation["parties"]) == (30, 3, 30, 3)

    def summed(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        assert isinstance(replies[0]["config"], ConfigRecord)
        return MetricRecord({"n": sum(int(reply["metrics"][weighted_by]) for reply in replies)})

    network = Messages(federation(3))
    functions = {"train_metrics_aggr_fn": summed, "evaluate_metrics_aggr_fn": summed}
    training, evaluation = network.run(network.make(**functions))
    assert (training["n"], training["examples"], evaluation["n"]) == (30, 30, 30)


def test_a_private_strategy_tells_its_guarantee() -> None:
    noise = LaplaceCounts.for_spec(SPEC, 3, 1.0)
    strategy = FlyNNStrategy(spec=SPEC, classes=CLASSES, min_parties=1, min_available_clients=1, mechanism=noise)
    assert strategy.guarantee == noise.guarantee()
    bound = FlyNNStrategy(spec=SPEC, classes=CLASSES, min_parties=3, min_available_clients=3, secure_bound=256)
    assert bound.secure_bound == 256


def test_a_failure_outside_the_transport_can_be_noted() -> None:
    strategy = FlyNNStrategy(spec=SPEC, classes=CLASSES, min_parties=1, min_available_clients=1)
    assert strategy.run.ask(TRAIN, ["6", "7"])
    strategy.note_failure("7", "dropped out")
    strategy.aggregate_fit(1, [], [])
    assert strategy.missing == {"node 6": "no reply", "node 7": "dropped out"}
