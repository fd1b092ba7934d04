"""A party as Flower calls it: every answer is a reply, whatever the request holds."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters

from flwr_flynn.app.client_app import deployed_client
from flwr_flynn.app.data.own_file import PrivateFile
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.party import PartyOptions, Samples
from flwr_flynn.federated.protocol import PARTY, STATISTIC
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from tests.fakes import (
    CLASSES,
    HASHER,
    RUN,
    config_of,
    counting,
    counts_of,
    evaluation_of,
    points,
    with_spec,
)
from tests.memory import traced
from tests.raising import raises

TOTAL = counts_of(*points(60, seed=1))


def fit(client: Any, run: RunSpec = RUN) -> Any:
    return client.fit(FitIns(ndarrays_to_parameters([]), counting(run)))


MODEL = evaluation_of(RUN, (TOTAL,), (ScoringRule("balanced", 0.8, 1.0),))
EVALUATE = config_of(MODEL)
ARRAYS = MODEL.arrays()


def test_samples_are_loaded_when_they_are_asked_for_by_the_names_of_the_run():
    asked: list[tuple[str, ...]] = []
    X, y = points(9)

    def load(names: tuple[str, ...]) -> Samples:
        asked.append(names)
        return Samples(orders[names], y)

    forward = tuple("abcd")
    backward = tuple("dcba")
    orders = {forward: X, backward: X[:, ::-1]}
    client = FlyNNClient(load=load)
    assert asked == []
    for names in (forward, forward, backward):
        run = RunSpec(RUN.specs, CLASSES, feature_names=names)
        arrays, _, _ = client.fit([], counting(run))
        (counts,) = codec.decode_all(arrays, [HASHER], 3)
        assert counts == counts_of(orders[names], y)
    assert asked == [forward, backward]


def test_a_party_tries_the_model_on_its_held_out_samples():
    X, y = points(30, seed=2)
    received: list[FlyNNClassifier] = []
    client = FlyNNClient(
        *points(5), X_test=X, y_test=y, name="Basel", on_model=received.append
    )
    loss, n_examples, metrics = client.evaluate(ARRAYS, EVALUATE)
    assert n_examples == 30
    assert received[0].counts_ == TOTAL
    assert metrics.keys() == {STATISTIC, "accuracy", PARTY, "flynn-taken-out"}
    assert loss == 1 - metrics["accuracy"] == 1 - received[0].with_prior().score(X, y)


@pytest.mark.slow
def test_trying_a_model_of_many_classes_stays_within_the_memory_limit():
    run = RunSpec(
        HashSpec(n_features=4, hash_dim=24, row_nnz=2, hash_nnz=3, seed=7), range(1000)
    )
    X = points(12000)[0]
    y = np.arange(12000) % 1000
    # The two confusion matrices take more while they are packed than hash and counts.
    needed = 24 * (2 * 1000**2 + 4)
    client = FlyNNClient(X, y, X_test=X, y_test=y, memory_limit=needed).to_client()
    counted = fit(client, run).parameters
    arrays = codec.read_tensors(counted.tensors)
    (counts,) = codec.decode_all(arrays, [run.hasher], 1000)
    request = evaluation_of(run, (counts,), (ScoringRule("balanced", 0.8, 1.0),))
    model = EvaluateIns(counted, config_of(request))
    client.evaluate(model)  # what comes with a first use is no matter of the model
    with traced() as memory:
        reply = client.evaluate(model)
    assert reply.num_examples == 12000
    # All scores at once are 92 MiB. A batch's scores, and a block of them on its way,
    # are not many.
    assert memory.peak < needed + 20 * 2**20


# ---- settings


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"X_test": np.zeros((1, 4))}, "X_test, y_test"),
        ({"load": lambda names: None}, "load"),
        ({"X": None, "y": None}, "X, y"),
        ({"y": None}, "X, y"),
        ({"X": None}, "X, y"),
        # One of the options of a party, which `federated/refused.txt` has.
        ({"response_seconds": -1.0}, "response_seconds"),
    ],
)
def test_bad_settings_are_refused(settings, field):
    with raises(ConfigError, field=field):
        X, y = points(3)
        FlyNNClient(**{"X": X, "y": y, **settings})


# ---- logs


ESCAPES = "\x1b[2J\r\nERROR all is lost\u202e"


@pytest.mark.parametrize("is_private", [False, True])
def test_no_text_of_a_server_is_logged_as_is(is_private, tmp_path, caplog):
    """In 0.8 seven of thirteen fields of a request did, ESC, CR and LF included."""
    budget = None
    if is_private:
        budget = Budget(tmp_path / "state", Policy(1.0))
    client = FlyNNClient(*points(9), budget=budget)
    mechanism = json.dumps({"mechanism": ESCAPES, "epsilon": 1.0})
    kinds = (mechanism, json.dumps({"mechanism": "laplace", ESCAPES: 1}))
    columns = (
        {"name": ESCAPES, "kind": "number"},
        {"name": "a", "kind": ESCAPES},
        {ESCAPES: 1},
    )
    texts = (
        ESCAPES,
        json.dumps(ESCAPES),
        json.dumps([ESCAPES] * 3),
        json.dumps({ESCAPES: ESCAPES}),
    )
    config = counting()
    configs = [
        *({**config, name: text} for name in config for text in texts),
        *({**config, "flynn-mechanism": text, "flynn-mode": "noisy"} for text in kinds),
        with_spec(config, coding=ESCAPES),
        with_spec(config, seed=ESCAPES),
        with_spec(config, **{ESCAPES: 1}),
        *(
            {**config, "flynn-feature-names": json.dumps({"columns": [column]})}
            for column in columns
        ),
    ]
    with caplog.at_level(logging.DEBUG, "flwr"):
        for spoiled in configs:
            client.fit([], spoiled)
            client.evaluate([], spoiled)
    assert len(caplog.records) > 30
    for record in caplog.records:
        assert record.getMessage().isprintable(), record.getMessage()


# ---- memory of a wide schema

LAPLACE = LaplaceCounts(0.5, hash_nnz=3, n_classes=3)


def wide(n_columns: int, n_levels: int, is_named: bool = True) -> Schema:
    """A schema of categories."""
    levels = [f"l{k}" for k in range(n_levels)]
    return Schema(
        [Column(str(index), "category", levels) for index in range(n_columns)],
        is_named=is_named,
    )


def write(path: Path, n_columns: int, n_rows: int) -> None:
    """A CSV file of equal rows."""
    head = ",".join([*map(str, range(n_columns)), "label"]) + "\n"
    row = ",".join(["l1"] * n_columns) + ",ash\n"
    path.write_text(head + row * n_rows)


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_a_wide_schema_is_refused_before_a_row_is_read(
    ending, is_private, tmp_path, monkeypatch
):
    """In 0.8 it took 2.2 GB at a limit of 51 MiB, and grew with the number of rows."""
    schema = wide(64, 1023, is_named=ending == "csv")
    path = tmp_path / f"a.{ending}"
    run = RunSpec(HashSpec(schema.width, 24, 2, 3, 7), CLASSES, feature_names=schema)
    if ending == "csv":
        write(path, 64, 200)
    else:
        np.savez(path, X=np.full((200, 64), "l1"), y=np.full(200, "ash"))
    node = {"data-path": str(path), "memory-limit": 0.05}
    if is_private:
        run = replace(run, mechanism=LAPLACE)
        node |= {"max-epsilon": 1.0, "state-path": str(tmp_path / "state")}
        monkeypatch.setattr(PrivateFile, "blocks", lambda *_: pytest.fail("read rows"))
    with traced() as memory:
        reply = fit(deployed_client(Context(1, 2, node, RecordDict(), {})), run)
    assert str(reply.metrics["flynn-refused"]).startswith("memory: n_features 65536, ")
    assert memory.peak < 51 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("is_private", [False, True])
def test_a_table_that_becomes_many_numbers_stays_within_the_memory_limit(
    is_private, tmp_path
):
    schema = wide(8, 1000)
    path = tmp_path / "a.csv"
    limit = 2**27
    write(path, 8, 3000)
    spec = HashSpec(schema.width, 24, 2, 3, 7, center=[0.0] * schema.width)
    run = RunSpec(spec, CLASSES, feature_names=schema)
    node: dict[str, Any] = {"data-path": str(path), "memory-limit": limit / 2**30}
    if is_private:
        run = replace(run, mechanism=LAPLACE)
        node |= {"max-epsilon": 1.0, "state-path": str(tmp_path / "state")}
    # All numbers are 192 MB.
    with traced() as memory:
        reply = fit(deployed_client(Context(1, 2, node, RecordDict(), {})), run)
    assert "flynn-refused" not in reply.metrics, reply.metrics
    assert memory.peak < limit, memory.peak / 2**20


def test_the_keywords_of_a_client_are_the_options_of_a_party_and_documented():
    documented = re.findall(r"`(\w+)`", FlyNNClient.__doc__ or "")
    assert {field.name for field in fields(PartyOptions)} <= set(documented)
    with pytest.raises(TypeError, match="minimum"):
        FlyNNClient(*points(3), minimum=1)
