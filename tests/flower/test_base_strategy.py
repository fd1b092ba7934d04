"""Tests of the base of both strategies: results, and the methods that a user calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.server import Server

from flwr_flynn import message
from flwr_flynn.errors import AggregationError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.flower.strategy import BaseStrategy, FlyNNStrategy
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import LaplaceCounts
from tests.fakes import CLASSES, SPEC, FakeGrid, Node, Proxy, manager
from tests.federated.runs import AUTO, GRID, clients, options_for, shares
from tests.raising import raises


def legacy(options: dict[str, Any], parts: Any, **settings: Any) -> FlyNNStrategy:
    strategy = FlyNNStrategy(min_available_clients=max(len(parts), 1), wait_timeout=0, **options, **settings)
    proxies = [Proxy(str(i), client) for i, client in enumerate(clients(parts))]
    Server(client_manager=manager(*proxies), strategy=strategy).fit(strategy.num_rounds, timeout=None)
    return strategy


def messages(options: dict[str, Any], parts: Any) -> message.FlyNNStrategy:
    strategy = message.FlyNNStrategy(min_available_nodes=max(len(parts), 1), wait_timeout=0, **options)
    strategy.start(FakeGrid({i: Node(client) for i, client in enumerate(clients(parts))}))
    return strategy


BOTH = pytest.mark.parametrize("drive", [legacy, messages])


@BOTH
def test_the_results_of_a_run_are_attributes(drive: Any) -> None:
    strategy: BaseStrategy = drive(options_for(AUTO), shares())
    run = strategy.run
    assert strategy.num_rounds == 4
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
def test_without_the_sums_there_is_no_model_and_the_error_says_who_is_missing(drive: Any) -> None:
    parts = shares()
    parts[2] = {**parts[2], "X": parts[2]["X"][:, :3]}
    strategy = drive(options_for(AUTO, accept_failures=False), parts)
    with raises(AggregationError, counted=0, min_parties=1) as caught:
        _ = strategy.model
    assert caught.value.missing["party-2"].startswith("declined: n_features: ")
    assert strategy.parties == []
    for result in (lambda: strategy.counts, lambda: strategy.federation("1")):
        with pytest.raises(AggregationError):
            result()
    with raises(AggregationError, counted=0, missing={}):
        _ = drive(options_for(HashPlan(4, 3, scaling="standard")), []).model


@BOTH
def test_without_parties_there_is_no_model(drive: Any) -> None:
    strategy = drive(options_for(GRID), [])
    assert (strategy.selection, strategy.evaluation, strategy.parties, strategy.missing) == (None, None, [], {})
    assert strategy.counts.n_examples == 0
    with raises(AggregationError, counted=0, missing={}):
        _ = strategy.model


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


def test_the_server_s_own_evaluation_gets_the_selected_counts_and_none_before_there_is_a_spec() -> None:
    seen = []

    def evaluate(server_round: int, arrays: list[np.ndarray], config: dict[str, Any]) -> None:
        hashers = [FlyHash(spec) for spec in strategies[0].run.state.run_spec.specs]
        place = [hasher.fingerprint for hasher in hashers].index(arrays[0].tobytes().hex())
        seen.append((server_round, place, codec.decode(arrays, hashers[place], 3).n_examples))

    strategies: list[FlyNNStrategy] = []

    class Known(FlyNNStrategy):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            strategies.append(self)

    strategy = Known(**options_for(AUTO), min_available_clients=4, evaluate_fn=evaluate)
    proxies = [Proxy(str(i), client) for i, client in enumerate(clients(shares()))]
    Server(client_manager=manager(*proxies), strategy=strategy).fit(4, timeout=None)
    assert seen == [(2, 0, 0), (3, 0, 120), (4, strategy.selection.specs[0], 120)]
