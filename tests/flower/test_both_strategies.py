"""Laws of both strategies, each over Flower's own loop and parties in this process."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.classifier import FlyNNClassifier
from tests.fakes import CLASSES, SPEC, counts_of, fit_res, good_res, points
from tests.federated.runs import (
    AUTO,
    GRID,
    clients,
    in_process,
    options_for,
    sha256,
    shares,
)
from tests.flower.networks import BOTH, POOLED, Legacy, Messages, X, Y, federation
from tests.raising import raises

# ---- settings


@BOTH
def test_numbers_of_parties_have_no_default_and_may_be_numpy_s(api):
    strategy = api(federation(2)).make(
        min_available=np.int64(2), min_parties=np.uint8(1)
    )
    available = f"min_available_{api.members}"
    assert repr(strategy) == f"FlyNNStrategy(counted=0, min_parties=1, {available}=2)"
    needed = {available: 2, "min_parties": 2}
    for name in needed:
        without = {"spec": SPEC, "classes": CLASSES, **needed}
        del without[name]
        with pytest.raises((TypeError, ConfigError), match=name):
            type(strategy)(**without)


@BOTH
def test_functions_that_cannot_be_called_are_refused_before_a_party_counts(api):
    strategy = api(federation(2)).make(min_parties=2)
    names = [name for name in vars(strategy) if name.endswith("_fn")]
    assert len(names) >= 2
    for name in names:
        with raises(ConfigError, field=name):
            api(federation(2)).make(min_parties=2, **{name: "mean"})


# ---- whole runs


@BOTH
@pytest.mark.parametrize(
    ("n_parties", "rounds"), [(1, None), (3, 1), (3, 3), (40, None)]
)
def test_a_run_gives_the_pooled_model_however_many_rounds(api, n_parties, rounds):
    received: list[FlyNNClassifier] = []
    network = api(federation(n_parties, on_model=received.append))
    strategy = network.make(min_parties=n_parties)
    training, evaluation = network.run(strategy, rounds)
    assert strategy.model.counts_ == POOLED
    names = {f"party-{i}" for i in range(n_parties)}
    assert {str(party) for party in strategy.parties} == names
    assert len(strategy.parties) == n_parties
    assert network.asked() == [["train", "evaluate"]] * n_parties
    assert [model.counts_ for model in received] == [strategy.counts] * n_parties
    accuracy = np.mean(strategy.model.predict(X[30:]) == Y[30:])
    assert evaluation["accuracy"] == strategy.evaluation["accuracy"] == accuracy
    n_bytes = sum(party.bytes for party in strategy.parties)
    assert training == {"examples": 30, "parties": n_parties, "bytes": n_bytes}


@BOTH
def test_the_results_of_a_run_are_attributes(api):
    network = api(clients(shares()))
    strategy = network.make(**options_for(AUTO), decay="auto")
    network.run(strategy)
    run = strategy.run
    assert strategy.num_rounds == 4
    assert strategy.model is run.model is strategy.model
    assert strategy.counts == strategy.model.model_.members[0].counts
    assert strategy.secure_bound is None
    assert strategy.guarantee is None
    assert strategy.selection is run.state.results["selection"]
    assert strategy.evaluation is run.state.results["evaluation"].figures
    saved = strategy.federation("1").model
    assert saved.model_.sha256() == strategy.model.model_.sha256()
    assert "counted=4, min_parties=1" in repr(strategy)


@BOTH
def test_of_too_few_parties_there_is_no_model_and_the_error_says_who_is_missing_and_why(
    api,
):
    odd = [
        FlyNNClient(X, ["oak"] * len(X), name="Ulm"),
        FlyNNClient(X[:, :3], Y, name="Genf"),
    ]
    network = api([*federation(1), *odd, *federation(1)])
    network.fail(3, "no `fit`\x07\n")
    strategy = network.make()
    network.run(strategy)
    with raises(
        AggregationError, counted=1, min_parties=2, missing=strategy.missing
    ) as caught:
        _ = strategy.model
    reasons = strategy.missing
    assert reasons.keys() == {"Ulm", "Genf", "node 3"}
    of_ulm = "declined: y: some labels are not in the class list"
    of_genf = "declined: n_features: expected the run's 4 columns, got 3 at this party"
    assert reasons["Ulm"].startswith(of_ulm)
    assert reasons["Genf"] == of_genf
    assert reasons["node 3"] == "failed: no `fit`"
    for name, reason in reasons.items():
        assert f"{name} ({reason})" in str(caught.value)
    assert "oak" not in str(caught.value)
    assert [party.name for party in strategy.parties] == ["party-0"]


@BOTH
@pytest.mark.parametrize(
    "spec", [SPEC, HashPlan(4, 3, scaling="auto")], ids=["spec", "plan"]
)
def test_without_parties_there_is_no_model(api, spec):
    network = api([])
    strategy = network.make(spec=spec)
    assert network.run(strategy) == ({}, {})
    assert strategy.selection is None
    assert strategy.evaluation is None
    assert strategy.parties == []
    assert strategy.missing == {}
    with raises(AggregationError, counted=0, missing={}):
        _ = strategy.model


@BOTH
@pytest.mark.parametrize("spec", [AUTO, GRID, GRID[0]], ids=["auto", "grid", "one"])
def test_the_server_s_own_evaluation_gets_the_selected_counts_once_there_is_a_spec(
    api, spec
):
    network = api(clients(shares("dirichlet")))
    seen = []
    strategy = network.make(**options_for(spec), decay="auto")

    def evaluate(number: int, arrays: list[np.ndarray]) -> None:
        hashers = strategy.run.state.run_spec.hashers
        fingerprints = [hasher.fingerprint for hasher in hashers]
        index = fingerprints.index(arrays[0].tobytes().hex())
        (counts,) = codec.decode_all(arrays, [hashers[index]], 3)
        seen.append((number, index, counts.n_examples))

    network.run(strategy, evaluate=evaluate)
    first = 0
    if spec is AUTO:
        # Before the first round there is no spec.
        first = 1
    numbers = [number for number, _, _ in seen]
    assert numbers == list(range(first, strategy.num_rounds + 1))
    assert [n_examples for _, _, n_examples in seen[:2]] == [0, 120]
    assert seen[-1][1:] == (strategy.selection.specs[0], 120)
    run = in_process(options_for(spec), shares("dirichlet"))
    assert sha256(strategy.model) == sha256(run.model)


@BOTH
def test_after_waiting_it_starts_with_those_that_are_there(api, caplog):
    network = api(federation(2))
    strategy = network.make(min_available=3, wait_timeout=0.01)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        network.run(strategy)
    assert [record.args[-2:] for record in caplog.records] == [(3, 2)]
    assert len(strategy.parties) == 2


@BOTH
def test_stragglers_are_counted_in_a_later_round_and_the_lost_are_not_waited_for(
    api,
):
    network = api(federation(3))
    network.leave(2)
    network.fail(1, "not yet")
    strategy = network.make(min_available=3, min_parties=3)

    def before(server_round: int) -> None:
        if server_round == 2:
            network.join(2)
        if server_round == 3:
            network.fail(1, None)
            # This one is counted already: nothing is lost, and nobody waits for it.
            network.leave(0)

    network.run(strategy, 4, before=before)
    assert strategy.model.counts_ == POOLED
    assert [asked.count("train") for asked in network.asked()] == [1, 3, 1]
    assert network.asked()[2] == ["train", "evaluate"]


@BOTH
@pytest.mark.parametrize("fails", [False, True])
def test_a_model_may_go_to_parties_that_send_no_figures(api, fails, caplog):
    received: list[FlyNNClassifier] = []

    def keep(model: FlyNNClassifier) -> None:
        received.append(model)
        if fails:
            raise OSError(28, "full", "/secret/model.npz")

    network = api(federation(3, on_model=keep))
    strategy = network.make(fraction_evaluate=0, distribute=True)
    assert strategy.num_rounds == 1
    _, evaluation = network.run(strategy)
    assert [model.counts_ for model in received] == [strategy.counts] * 3
    result = strategy.run.state.results["evaluation"]
    assert strategy.evaluation is None
    assert strategy.run.state.missing["evaluation"] == {}
    assert evaluation == {}
    reason = "failed with OSError: No space left on device"
    if fails:
        assert result.unkept == {f"party-{i}": reason for i in range(3)}
        assert reason in caplog.text
    else:
        assert result.unkept == {}
        assert reason not in caplog.text


# ---- replies that are none

MALLORY = "Mallory 2026 INFO all is well"
JUNK = good_res()
JUNK.parameters.tensors[1] = b"junk"
HOSTILE = {
    "nothing": (fit_res([], 0), "refused: message: "),
    "a refusal": (
        fit_res([], 0, flynn_refused="X: \n3 columns"),
        "declined: X: 3 columns",
    ),
    "a refusal with counts": (good_res(flynn_refused=7), "declined: no reason given"),
    "no number": (
        fit_res(codec.encode(counts_of(*points(5))), 5.0),
        "refused: num_examples: ",
    ),
    "junk": (JUNK, "refused: array 2: "),
}


@BOTH
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_costs_its_sender_alone(api, name, caplog):
    res, reason = HOSTILE[name]
    res.metrics["flynn-party"] = "Mallory\n2026 INFO all is well"
    network = api(federation(2))
    network.spoil(1, res)
    strategy = network.make(min_parties=1, fraction_evaluate=0.0)
    network.run(strategy, 1)
    assert strategy.counts == counts_of(X[:30:2], Y[:30:2])
    assert [party.name for party in strategy.parties] == ["party-0"]
    assert strategy.missing.keys() == {MALLORY}
    assert strategy.missing[MALLORY].startswith(reason)
    warned = f"{MALLORY} ({strategy.missing[MALLORY]})"
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING"
    ]
    assert sum(warned in line for line in lines) == 1


# ---- a user's own functions


def test_metrics_are_aggregated_as_in_fedavg():
    def weighted(replies: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        return {"n": sum(n for n, _ in replies), "parties": len(replies)}

    network = Legacy(federation(3))
    functions = {
        "fit_metrics_aggregation_fn": weighted,
        "evaluate_metrics_aggregation_fn": weighted,
    }
    training, evaluation = network.run(network.make(**functions))
    assert training["n"] == 30
    assert training["parties"] == 3
    assert evaluation["n"] == 30
    assert evaluation["parties"] == 3

    def summed(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        assert isinstance(replies[0]["config"], ConfigRecord)
        return MetricRecord(
            {"n": sum(int(reply["metrics"][weighted_by]) for reply in replies)}
        )

    network = Messages(federation(3))
    functions = {"train_metrics_aggr_fn": summed, "evaluate_metrics_aggr_fn": summed}
    training, evaluation = network.run(network.make(**functions))
    assert training["n"] == 30
    assert training["examples"] == 30
    assert evaluation["n"] == 30


def test_a_failure_outside_the_transport_can_be_noted():
    strategy = Legacy(federation(2)).make()
    assert strategy.run.ask(TRAIN, ["6", "7"])
    strategy.note_failure("7", "dropped out")
    strategy.aggregate_fit(1, [], [])
    assert strategy.missing == {"node 6": "no reply", "node 7": "dropped out"}
