"""A party answers every request: with its counts, its confusion matrix, or a reason that gives nothing away."""

from __future__ import annotations

import json
import logging
import re
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from flwr.common import EvaluateIns, FitIns, Parameters, ndarrays_to_parameters
from flwr_flynn.flower.progress import Progress
from sklearn.metrics import confusion_matrix

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import Terms
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.metrics import confusion_from_bytes
from tests.fakes import CLASSES, HASHER, SPEC, TERMS, counts_of, points

FIT = TERMS.to_config()
EVALUATE = {**FIT, "flynn-decay": 0.8, "flynn-rule": "balanced"}
SECRET = 123456.789


def refusal(client: FlyNNClient, config: dict[str, Any] = FIT) -> str:
    """The reason of a client that does not count."""
    arrays, n_examples, metrics = client.fit([], config)
    assert (arrays, n_examples) == ([], 0)
    return metrics["flynn-refused"]


def test_a_party_sends_its_counts() -> None:
    X, y = points(20)
    arrays, n_examples, metrics = FlyNNClient(X, y, name="Basel").fit([], FIT)
    assert codec.decode(arrays, HASHER, 3, n_examples=n_examples) == counts_of(X, y)
    assert metrics.keys() == {"flynn-party", "flynn-seconds"}
    assert metrics["flynn-party"] == "Basel"


@pytest.mark.parametrize("convert", [sp.csr_matrix, sp.csc_array, np.asfortranarray, np.ndarray.tolist, np.float32])
def test_points_may_come_in_any_form(convert: Any) -> None:
    X, y = points(20)
    X = np.round(X)  # the same in float32
    arrays, _, _ = FlyNNClient(convert(X), y.tolist()).fit([], FIT)
    assert codec.decode(arrays, HASHER, 3) == counts_of(X, y)


def test_an_empty_party_sends_zeros() -> None:
    arrays, n_examples, metrics = FlyNNClient(np.empty((0, 4)), []).fit([], FIT)
    assert "flynn-refused" not in metrics
    assert n_examples == 0
    assert not codec.decode(arrays, HASHER, 3, n_examples=0).array.any()


def test_what_is_not_ours_in_the_config_is_ignored() -> None:
    X, y = points(3)
    assert FlyNNClient(X, y).fit([np.zeros(3)], {**FIT, "epochs": 3})[1] == 3


@pytest.mark.parametrize(
    ("X", "y", "reason"),
    [
        (np.full((2, 5), SECRET), ["ash"] * 2, "n_features is 4, but the data has 5 columns"),
        (np.full(4, SECRET), ["ash"], "X: expected shape"),
        (np.full((2, 4), SECRET), ["ash", str(SECRET)], "1 of 2 labels are not in the class list"),
        (np.full((2, 4), SECRET), ["ash"], "expected 2 labels, one for every point, got 1"),
        (np.array([[SECRET, np.nan, 0, 0]]), ["ash"], "NaN or inf"),
        (np.array([[SECRET, np.inf, 0, 0]]), ["ash"], "NaN or inf"),
        (sp.csr_matrix([[SECRET, np.nan, 0, 0]]), ["ash"], "NaN or inf"),
        (np.array([[str(SECRET), "a", "b", "c"]]), ["ash"], ""),
        (np.array([[SECRET, None, "b", {}]], object), ["ash"], ""),
        (None, None, "X: expected shape"),
    ],
)
def test_data_that_do_not_fit_are_refused_without_showing_them(X: Any, y: Any, reason: str) -> None:
    text = refusal(FlyNNClient(X, y))
    assert reason in text
    assert "123456" not in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flynn-spec": "{"}, "flynn-spec: expected JSON"),
        ({"flynn-spec": None}, "flynn-spec: expected a string, got nothing"),
        ({"flynn-classes": "[]"}, "classes"),
        ({"flynn-mode": "secret"}, "mode"),
        ({"flynn-fingerprint": "0" * 64}, "fingerprint"),
        ({"flynn-fingerprint": 3}, "flynn-fingerprint"),
    ],
)
def test_hostile_requests_are_refused(change: dict[str, Any], reason: str) -> None:
    client = FlyNNClient(*points(3))
    assert reason in refusal(client, {**FIT, **change})
    loss, n_examples, metrics = client.evaluate([], {**EVALUATE, **change})
    assert (loss, n_examples) == (0.0, 0)
    assert reason in metrics["flynn-refused"]


def test_an_empty_request_is_refused() -> None:
    assert "flynn-spec" in refusal(FlyNNClient(*points(3)), {})


def test_a_hash_that_needs_too_much_memory_is_refused_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = json.dumps({**SPEC.to_dict(), "hash_dim": 2**31 - 1})
    monkeypatch.setattr(Terms, "agree_on_rows", lambda *_: pytest.fail("drew the rows"))
    assert "this party allows 4096.0" in refusal(FlyNNClient(*points(3)), {**FIT, "flynn-spec": spec})


def test_the_memory_limit_is_the_party_s_own() -> None:
    X, y = points(3)
    needed = memory_needed(SPEC, 3) + 16 * 3 * 3
    assert FlyNNClient(X, y, memory_limit=needed).fit([], FIT)[1] == 3
    assert "memory: hash_dim 24, row_nnz 2 and 3 classes" in refusal(FlyNNClient(X, y, memory_limit=needed - 1))


def test_an_unexpected_error_shows_its_kind_only(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
            raise OSError(f"cannot read {SECRET}")

    with caplog.at_level(logging.ERROR, logger="flwr"):
        assert refusal(FlyNNClient(Broken(), [])) == "failed with OSError"
    assert "cannot read" in caplog.text  # in the party's own log it is told in full


# ---- the model


def model_arrays() -> list[np.ndarray]:
    return codec.encode(counts_of(*points(60, seed=1)))


def test_a_party_tries_the_model_on_its_held_out_points() -> None:
    X, y = points(30, seed=2)
    received: list[FlyNNClassifier] = []
    client = FlyNNClient(*points(5), X_test=X, y_test=y, name="Basel", on_model=received.append)
    loss, n_examples, metrics = client.evaluate(model_arrays(), EVALUATE)
    predicted = received[0].predict(X)
    matrix = confusion_from_bytes(metrics["flynn-confusion"], 3, 30)
    np.testing.assert_array_equal(matrix, confusion_matrix(y, predicted, labels=CLASSES))
    assert n_examples == 30
    assert loss == pytest.approx(1 - np.mean(y == predicted))
    assert metrics["accuracy"] == pytest.approx(np.mean(y == predicted))
    assert metrics["flynn-party"] == "Basel"


def test_the_model_is_read_as_the_server_says() -> None:
    received: list[FlyNNClassifier] = []
    config = {**EVALUATE, "flynn-decay": 0.25, "flynn-rule": "novelty", "flynn-feature-names": '["a", "b", "c", "d"]'}
    FlyNNClient(*points(5), on_model=received.append).evaluate(model_arrays(), config)
    (model,) = received
    assert model.decay_ == 0.25
    assert model.rule == "novelty"
    assert model.counts_ == counts_of(*points(60, seed=1))
    assert list(model.feature_names_in_) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("held_out", [{}, {"X_test": np.empty((0, 4)), "y_test": []}])
def test_without_points_held_out_the_model_is_taken_and_nothing_reported(held_out: dict[str, Any]) -> None:
    received: list[FlyNNClassifier] = []
    client = FlyNNClient(*points(5), **held_out, on_model=received.append)
    assert client.evaluate(model_arrays(), EVALUATE) == (0.0, 0, {})
    assert len(received) == 1


@pytest.mark.parametrize(
    ("arrays", "config", "reason"),
    [
        ([], {}, "expected 2 arrays"),
        ([model_arrays()[0], model_arrays()[1][:2]], {}, "counts: expected packed counts"),
        ([model_arrays()[0], model_arrays()[1] // 2], {}, "counts: "),
        (model_arrays(), {"flynn-decay": "auto"}, "flynn-decay"),
        (model_arrays(), {"flynn-decay": float("nan")}, ""),
        (model_arrays(), {"flynn-decay": 7.0}, ""),
        (model_arrays(), {"flynn-rule": "anything"}, ""),
        (model_arrays(), {"flynn-rule": 7}, "flynn-rule"),
    ],
)
def test_hostile_models_are_refused(arrays: list[np.ndarray], config: dict[str, Any], reason: str) -> None:
    received: list[FlyNNClassifier] = []
    client = FlyNNClient(*points(5), on_model=received.append)
    loss, n_examples, metrics = client.evaluate(arrays, {**EVALUATE, **config})
    assert (loss, n_examples) == (0.0, 0)
    assert reason in metrics["flynn-refused"]
    assert received == []


def test_a_model_that_cannot_be_kept_is_tried_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def disk_full(model: FlyNNClassifier) -> None:
        raise OSError(28, "No space left on device", "/secret/folder/model.npz")

    X, y = points(5)
    client = FlyNNClient(X, y, X_test=X, y_test=y, on_model=disk_full)
    with caplog.at_level(logging.ERROR, logger="flwr"):
        _, n_examples, metrics = client.evaluate(model_arrays(), EVALUATE)
    assert n_examples == 5
    assert metrics.keys() == {"flynn-confusion", "accuracy", "flynn-unkept"}
    assert metrics["flynn-unkept"] == "failed with OSError: No space left on device"
    assert "on_model failed" in caplog.text
    assert "No space left" in caplog.text


@pytest.mark.parametrize(
    ("X_test", "y_test", "reason"),
    [
        (np.full((1, 5), SECRET), ["ash"], r"X: expected shape \(n, 4\), got shape \(1, 5\)"),
        (np.full(4, SECRET), ["ash"], "X: expected shape"),
        (np.array([[SECRET, np.nan, 0, 0]]), ["ash"], "X: .*NaN or inf"),
        (sp.coo_array([[SECRET, np.nan, 0, 0]]), ["ash"], "X: .*NaN or inf"),
        (np.full((1, 4), SECRET), [str(SECRET)], "y: 1 of 1 labels"),
        (np.full((1, 4), SECRET), ["ash"] * 2, "y: expected 1 labels"),
    ],
)
def test_test_points_that_do_not_fit_are_named_and_the_model_is_kept(X_test: Any, y_test: Any, reason: str) -> None:
    received: list[FlyNNClassifier] = []
    client = FlyNNClient(*points(5), X_test=X_test, y_test=y_test, on_model=received.append)
    loss, n_examples, metrics = client.evaluate(model_arrays(), EVALUATE)
    assert (loss, n_examples) == (0.0, 0)
    assert re.match("X_test, y_test: " + reason, metrics["flynn-refused"])
    assert "123456" not in metrics["flynn-refused"]
    assert len(received) == 1


@pytest.mark.parametrize("convert", [sp.coo_array, sp.csc_matrix, np.asfortranarray, np.ndarray.tolist])
def test_many_test_points_are_tried_in_batches(convert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = points(30, seed=2)
    client = FlyNNClient(*points(5), X_test=convert(X), y_test=y)
    whole = client.evaluate(model_arrays(), EVALUATE)
    monkeypatch.setattr("flwr_flynn.flower.client._SCORES", 256 * 7)
    assert client.evaluate(model_arrays(), EVALUATE) == whole


def test_trying_a_model_of_many_classes_stays_within_the_memory_limit() -> None:
    terms = Terms(HashSpec(n_features=4, hash_dim=24, row_nnz=2, hash_nnz=3, seed=7), range(1000))
    X, y = points(20000)[0], np.arange(20000) % 1000
    needed = memory_needed(terms.spec, 1000) + 16 * 1000**2
    client = FlyNNClient(X, y, X_test=X, y_test=y, memory_limit=needed).to_client()
    request = FitIns(ndarrays_to_parameters([]), terms.to_config())
    config = {**request.config, "flynn-decay": 0.8, "flynn-rule": "balanced"}
    model = EvaluateIns(client.fit(request).parameters, config)
    tracemalloc.start()
    reply = client.evaluate(model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reply.num_examples == 20000
    # All scores at once are 153 MiB. A batch's scores, and a block of them on its way, are not many.
    assert peak < needed + 50 * 2**20


# ---- inside Flower


def test_flower_s_wrapper_takes_every_answer() -> None:
    X, y = points(5)
    client = FlyNNClient(X, y, X_test=X, y_test=y).to_client()
    nothing, model = ndarrays_to_parameters([]), ndarrays_to_parameters(model_arrays())
    for config in (FIT, {}):
        assert client.fit(FitIns(nothing, config)).status.code.value == 0
        assert client.evaluate(EvaluateIns(model, {**config, "flynn-decay": 0.8})).status.code.value == 0


def test_nothing_that_a_server_declares_is_allocated() -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999,), }\n"
    tensor = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    parameters = Parameters([tensor], "numpy.ndarray")
    client = FlyNNClient(*points(5), name="Basel", memory_limit=2**20).to_client()
    tracemalloc.start()
    counted, tried = client.fit(FitIns(parameters, FIT)), client.evaluate(EvaluateIns(parameters, EVALUATE))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counted.num_examples == 5  # to count, it needs nothing of the server's
    reason = "array 1: expected 79999999992 bytes as its header declares, got 0"
    assert tried.metrics == {"flynn-refused": reason, "flynn-party": "Basel"}
    assert peak < 2**20


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"memory_limit": 0}, "memory_limit"),
        ({"memory_limit": "4 GiB"}, "memory_limit"),
        ({"memory_limit": True}, "memory_limit"),
        ({"name": 5}, "name: expected a string, got int"),
        ({"n_jobs": 0}, "n_jobs: expected None or an integer other than 0, got 0"),
        ({"X_test": np.zeros((1, 4))}, "X_test, y_test"),
    ],
)
def test_bad_settings_are_refused(kwargs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        FlyNNClient(*points(3), **kwargs)


def test_a_party_that_is_only_to_take_the_model_tells_nothing() -> None:
    received: list[FlyNNClassifier] = []
    X, y = points(5)
    client = FlyNNClient(X, y, X_test=X, y_test=y, name="Basel", on_model=received.append)
    assert client.evaluate(model_arrays(), {**EVALUATE, "flynn-try": False}) == (0.0, 0, {"flynn-party": "Basel"})
    assert len(received) == 1
    keeps_to_itself = FlyNNClient(X, y, on_model=lambda model: {}["no such key"])
    assert keeps_to_itself.evaluate(model_arrays(), {**EVALUATE, "flynn-try": False})[2] == {
        "flynn-unkept": "failed with KeyError"
    }


def test_long_hashing_is_told_to_the_partys_own_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flwr_flynn.flower.client.Progress", partial(Progress, every=0.0))
    X, y = points(200)
    expected, *_ = FlyNNClient(X, y).fit([], FIT)
    with caplog.at_level(logging.INFO, logger="flwr"):
        arrays, _, metrics = FlyNNClient(X, y, n_jobs=2).fit([], FIT)
        FlyNNClient(X, y).evaluate(model_arrays(), {**FIT, "flynn-candidates": '[[["balanced", 0.5]]]'})
    lines = re.findall(r"FlyNN: (\d+) of 200 points hashed, \d+ s", caplog.text)
    assert lines.count("200") >= 1
    assert metrics.keys() == {"flynn-seconds"}
    for ours, theirs in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
