"""A party as Flower calls it: every answer is a reply, whatever the request holds."""

from __future__ import annotations

import logging
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.common import EvaluateIns, FitIns, Parameters, ndarrays_to_parameters

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.party import Samples
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.phases.selection import SelectionRequest
from flwr_flynn.federated.protocol import PARTY, PHASE, REFUSED, SECONDS, STATISTIC
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import CountsOfSpecs, memory_needed
from flwr_flynn.model.scoring import ScoringRule
from tests.fakes import CLASSES, HASHER, RUN, counting, counts_of, evaluation_of, points
from tests.memory import traced
from tests.raising import raises

TOTAL = counts_of(*points(60, seed=1))
FIT = counting()


def config_of(request: Request[Any]) -> dict[str, Any]:
    return {PHASE: request.phase, **request.to_config()}


MODEL = evaluation_of(RUN, (TOTAL,), (ScoringRule("balanced", 0.8, 1.0),), (1.0,))
EVALUATE, ARRAYS = config_of(MODEL), MODEL.arrays()


def test_a_party_sends_its_counts() -> None:
    X, y = points(20)
    arrays, n_examples, metrics = FlyNNClient(X, y, name="Basel").fit([], FIT)
    assert (codec.decode(arrays, HASHER, 3), n_examples) == (counts_of(X, y), 20)
    assert metrics.keys() == {PARTY, SECONDS}
    assert metrics[PARTY] == "Basel"


def test_samples_may_be_loaded_later() -> None:
    X, y = points(20)
    asked: list[tuple[str, ...]] = []

    def load(names: tuple[str, ...]) -> Samples:
        asked.append(names)
        return Samples(X, y)

    client = FlyNNClient(load=load)
    assert asked == []
    named = CountsRequest(RunSpec(RUN.specs, CLASSES, feature_names=tuple("abcd")))
    assert client.fit([], config_of(named))[1] == 20
    assert asked == [tuple("abcd")]


@pytest.mark.parametrize(
    "change", [{"flynn-specs": "{"}, {"flynn-classes": "[]"}, {"flynn-mode": "secret"}, {PHASE: "x"}]
)
def test_hostile_requests_are_refused_on_either_channel(change: dict[str, Any]) -> None:
    client = FlyNNClient(*points(3))
    arrays, n_examples, metrics = client.fit([], {**FIT, **change})
    assert (arrays, n_examples, metrics.keys()) == ([], 0, {REFUSED})
    loss, n_examples, metrics = client.evaluate(ARRAYS, {**EVALUATE, **change})
    assert (loss, n_examples, metrics.keys()) == (0.0, 0, {REFUSED})
    assert client.fit([], {})[2].keys() == {REFUSED}


def test_a_party_tries_the_model_on_its_held_out_samples() -> None:
    X, y = points(30, seed=2)
    received: list[FlyNNClassifier] = []
    client = FlyNNClient(*points(5), X_test=X, y_test=y, name="Basel", on_model=received.append)
    loss, n_examples, metrics = client.evaluate(ARRAYS, EVALUATE)
    matrix, own, *_ = codec.read_tensors(codec.split(metrics[STATISTIC]))
    assert own.sum() == 30
    assert (n_examples, matrix.sum(), received[0].counts_) == (30, 30, TOTAL)
    assert metrics["accuracy"] == np.trace(matrix) / 30
    assert loss == 1 - metrics["accuracy"]
    assert metrics.keys() == {STATISTIC, "accuracy", PARTY}


def test_in_a_selection_there_is_no_loss() -> None:
    X, y = points(60, seed=1)
    request = SelectionRequest(RUN, CountsOfSpecs((TOTAL,)), ((ScoringRule("balanced", 0.5),),))
    loss, n_examples, metrics = FlyNNClient(X, y).evaluate(request.arrays(), config_of(request))
    assert (loss, n_examples, metrics.keys()) == (0.0, 60, {STATISTIC, SECONDS})


def test_trying_a_model_of_many_classes_stays_within_the_memory_limit() -> None:
    run = RunSpec(HashSpec(n_features=4, hash_dim=24, row_nnz=2, hash_nnz=3, seed=7), range(1000))
    X, y = points(12000)[0], np.arange(12000) % 1000
    needed = memory_needed(run.spec, 1000) + 32 * 1000**2
    client = FlyNNClient(X, y, X_test=X, y_test=y, memory_limit=needed).to_client()
    fit = client.fit(FitIns(ndarrays_to_parameters([]), counting(run)))
    counts = codec.decode(codec.read_tensors(fit.parameters.tensors), run.hasher, 1000)
    request = evaluation_of(run, (counts,), (ScoringRule("balanced", 0.8, 1.0),), (1.0,))
    model = EvaluateIns(fit.parameters, config_of(request))
    client.evaluate(model)  # what comes with a first use is no matter of the model
    with traced() as memory:
        reply = client.evaluate(model)
    assert reply.num_examples == 12000
    # All scores at once are 92 MiB. A batch's scores, and a block of them on its way, are not many.
    assert memory.peak < needed + 50 * 2**20


# ---- inside Flower


def test_flower_s_wrapper_takes_every_answer() -> None:
    X, y = points(5)
    client = FlyNNClient(X, y, X_test=X, y_test=y).to_client()
    nothing, model = ndarrays_to_parameters([]), ndarrays_to_parameters(ARRAYS)
    for fit, evaluate in ((FIT, EVALUATE), ({}, {})):
        assert client.fit(FitIns(nothing, fit)).status.code.value == 0
        assert client.evaluate(EvaluateIns(model, evaluate)).status.code.value == 0


def test_nothing_that_a_server_declares_is_allocated() -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999,), }\n"
    tensor = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    parameters = Parameters([tensor], "numpy.ndarray")
    client = FlyNNClient(*points(5), name="Basel", memory_limit=2**20).to_client()
    with traced() as memory:
        replies = client.fit(FitIns(parameters, FIT)), client.evaluate(EvaluateIns(parameters, EVALUATE))
    reason = "array 1: expected 79999999992 bytes as its header declares, got 0"
    for reply in replies:
        assert reply.num_examples == 0
        assert reply.metrics == {REFUSED: reason, PARTY: "Basel"}
    assert memory.peak < 2**20


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"memory_limit": 0}, "memory_limit"),
        ({"name": 5}, "name"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"budget": "state"}, "budget"),
        ({"X_test": np.zeros((1, 4))}, "X_test, y_test"),
        ({"load": lambda names: None}, "load"),
        *(({"X": None, "y": None} | given, "X, y") for given in ({}, {"X": np.zeros((1, 4))}, {"y": ["ash"]})),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], field: str) -> None:
    with raises(ConfigError, field=field):
        FlyNNClient(**dict(zip("Xy", points(3), strict=True)) | settings)


def test_long_hashing_is_told_to_the_partys_own_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = count(step=20)
    monkeypatch.setattr("flwr_flynn.flower.logging.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    X, y = points(200)
    expected, *_ = FlyNNClient(X, y).fit([], FIT)
    with caplog.at_level(logging.INFO, logger="flwr"):
        arrays, _, metrics = FlyNNClient(X, y, n_jobs=2).fit([], FIT)
    assert caplog.records[-1].args[:2] == (200, 200)
    assert metrics.keys() == {SECONDS}
    for ours, theirs in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
