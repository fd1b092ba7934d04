"""The Message API: whatever comes back, it leads to what it leads to over the legacy API, and to the pooled model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result, Strategy

import flwr_flynn
from flwr_flynn import message
from flwr_flynn.app.client_app import UnreadyClient
from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.flower import strategy as legacy
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import (
    CLASSES,
    SPEC,
    FakeGrid,
    Node,
    Proxy,
    content_of,
    counting,
    counts_of,
    dealt,
    good_res,
    make_message,
    manager,
    points,
)
from tests.flower.test_strategy import HOSTILE
from tests.raising import raises


def make(**changes: Any) -> message.FlyNNStrategy:
    settings = {"spec": SPEC, "classes": CLASSES, "min_available_nodes": 2, "min_parties": 2, "wait_timeout": 0}
    return message.FlyNNStrategy(**{**settings, "decay": 0.8, **changes})


def federation(n: int, n_points: int = 60, **changes: Any) -> dict[int, Node]:
    """Nodes that hold interleaved shares of some points, the second half of which is held out."""
    X, y = points(n_points)
    half = n_points // 2
    nodes = {}
    for i in range(n):
        settings = {"X_test": X[half + i :: n], "y_test": y[half + i :: n], "name": f"party-{i}", **changes}
        nodes[10 + i] = Node(FlyNNClient(X[i:half:n], y[i:half:n], **settings))
    return nodes


def pooled(n_points: int = 60) -> Any:
    X, y = points(n_points)
    return counts_of(X[: n_points // 2], y[: n_points // 2])


# ---- settings


@pytest.mark.parametrize(
    ("change", "field"),
    [({"action": "a.b"}, "action"), ({"action": 3}, "action"), ({"secure_bound": 256}, "secure_bound")],
)
def test_bad_settings_are_refused_at_once(change: dict[str, Any], field: str) -> None:
    with raises(ConfigError, field=field):
        make(**change)


def test_it_is_found_under_the_package_and_loaded_when_asked_for() -> None:
    assert flwr_flynn.message.FlyNNStrategy is message.FlyNNStrategy
    assert "message" in dir(flwr_flynn)


# ---- the whole run


def test_stragglers_are_counted_in_a_later_round_and_the_lost_are_not_waited_for() -> None:
    nodes = federation(3)
    late = nodes.pop(12)
    nodes[11].fails = "not yet"
    rounds = []

    def between(messages: list[Message]) -> list[Message]:
        rounds.append(messages)
        if len(rounds) == 2:
            nodes[12] = late
        if len(rounds) == 4:
            nodes[11].fails = None
            del nodes[10]
        return []

    strategy = make(min_available_nodes=3, min_parties=3)
    strategy.start(FakeGrid(nodes, between=between), num_rounds=4)
    assert strategy.model.counts_ == pooled()
    assert (nodes[11].asked.count("train"), late.asked) == (3, ["train", "evaluate"])


def test_an_action_of_its_own_and_config_for_the_users_code() -> None:
    grid = FakeGrid(federation(2))
    config = ConfigRecord({"mine": 1.5})
    sent = make(action="flynn").configure_train(3, ArrayRecord(), config, grid)
    assert [msg.metadata.message_type for msg in sent] == ["train.flynn"] * 2
    assert dict(sent[0].content["config"]) == {"mine": 1.5, "server-round": 3, **counting()}
    assert dict(config) == {"mine": 1.5}
    with raises(ConfigError, field="config", got="flynn-mode"):
        make().configure_train(1, ArrayRecord(), ConfigRecord({"flynn-mode": "x"}), grid)


# ---- what can come back


def counted_both(res: Any, spoil: Any) -> tuple[legacy.FlyNNStrategy, message.FlyNNStrategy]:
    """The same reply of node 2 beside a good one of node 1, over either API."""
    settings = {"spec": SPEC, "classes": CLASSES, "min_parties": 1, "wait_timeout": 0, "decay": 0.8}
    old = legacy.FlyNNStrategy(**settings, min_available_clients=2)
    old.configure_fit(1, None, manager(Proxy("1"), Proxy("2")))
    old.aggregate_fit(1, [(Proxy("1"), good_res()), (Proxy("2"), res)], [])
    new = message.FlyNNStrategy(**settings, min_available_nodes=2)
    nodes = {1: Node(FlyNNClient(*points(5)), spoil=lambda _: content_of(good_res())), 2: Node(FlyNNClient(*points(5)))}
    nodes[2].spoil = spoil
    new.start(FakeGrid(nodes), num_rounds=1)
    return old, new


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_is_refused_as_over_the_legacy_api(name: str) -> None:
    res, reason = HOSTILE[name]
    old, new = counted_both(res, lambda _: content_of(res))
    assert new.counts == old.counts == counts_of(*points(5))
    assert new.parties == old.parties
    assert new.missing == old.missing
    assert any(reason in each for each in new.missing.values())


def changed(**fields: Any) -> Any:
    """A good reply whose second array is described otherwise."""
    content = content_of(good_res())
    array = content["arrays"]["1"]
    values = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data, **fields}
    content["arrays"]["1"] = Array(**values)
    return content


def without(name: str, **records: Any) -> RecordDict:
    content = content_of(good_res())
    del content[name]
    for key, record in records.items():
        content[key] = record
    return content


def renamed() -> RecordDict:
    content = content_of(good_res())
    content["arrays"]["weight"] = content["arrays"].pop("1")
    return content


MALFORMED = {
    "another stype": (changed(stype="torch"), "array 2: expected stype numpy.ndarray"),
    "another dtype": (changed(dtype="float32"), "array 2: expected uint8 "),
    "another shape": (changed(shape=(24, 3)), "array 2: expected uint8 "),
    "a huge shape": (changed(shape=(2**40, 2**40)), "array 2: expected uint8 "),
    "another key": (renamed(), "arrays: expected keys 0, 1"),
    "nothing at all": (RecordDict(), "num_examples: expected an integer"),
    "no metrics": (without("metrics"), "num_examples: expected an integer"),
    "no arrays": (without("arrays"), "message: expected 2 arrays"),
    "arrays that are numbers": (without("arrays", arrays=MetricRecord({"0": 1})), "message: expected 2 arrays"),
    "a list of examples": (without("metrics", metrics=MetricRecord({"num-examples": [5]})), "num_examples"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_costs_its_sender_only(name: str) -> None:
    content, reason = MALFORMED[name]
    _, new = counted_both(good_res(), lambda _: content)
    assert new.counts == counts_of(*points(5))
    assert [party.node for party in new.parties] == ["1"]
    assert new.missing == {"node 2": f"refused: {new.missing['node 2'].removeprefix('refused: ')}"}
    assert reason in new.missing["node 2"]


def error_by_the_superlink(request: Message) -> Message:
    """The reply that Flower makes up for a party that is gone: by node 1, to node 1."""
    about = request.metadata
    metadata = Metadata(1, "x", 1, 1, about.message_id, "", about.created_at, about.ttl, about.message_type)
    return make_message(metadata, error=Error(5, "Node Unavailable"))


@pytest.mark.parametrize("gives_ids", [True, False])
def test_who_failed_is_told_as_far_as_it_is_known(gives_ids: bool) -> None:
    nodes = federation(4)
    nodes[10].fails = "<class 'OSError'>:<'no\nfile'>"
    for lost in (11, 12):
        nodes[lost].answers = lambda msg: [error_by_the_superlink(msg)]
    strategy = make(min_available_nodes=4)
    strategy.start(FakeGrid(nodes, gives_ids), num_rounds=1)
    known = "failed: Node Unavailable"
    unknown = "no reply or a failure (2 without a name, the first: Node Unavailable)"
    assert strategy.missing == {
        "node 10": "failed: <class 'OSError'>:<'no file'>",
        "node 11": known if gives_ids else unknown,
        "node 12": known if gives_ids else unknown,
    }
    with raises(AggregationError, counted=1, min_parties=2, missing=strategy.missing):
        _ = strategy.model


def test_with_too_few_the_result_has_no_arrays() -> None:
    nodes = federation(2)
    nodes[10].spoil = lambda _: None  # late: Flower hands out nothing
    strategy = make()
    result = strategy.start(FakeGrid(nodes))
    assert len(result.arrays) == 0
    assert strategy.missing == {"node 10": "no reply"}
    with raises(AggregationError, missing={"node 10": "no reply"}):
        _ = strategy.model
    unscaled = make(spec=HashPlan(4, 3, scaling="auto"))
    assert len(unscaled.start(FakeGrid({})).arrays) == 0


def test_keywords_of_later_versions_of_flower_go_to_its_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    original, given = Strategy.start, []

    def start(self: Strategy, *arguments: Any, should_stop: Any = None) -> Result:  # that of Flower 1.43
        given.append(should_stop)
        return original(self, *arguments)

    monkeypatch.setattr(Strategy, "start", start)
    strategy, stop = make(), object()
    strategy.start(FakeGrid(federation(2)), should_stop=stop)
    assert given == [stop]
    assert len(strategy.parties) == 2


def test_replies_count_once_and_those_of_strangers_do_not(caplog: pytest.LogCaptureFixture) -> None:
    nodes = federation(2)

    def between(messages: list[Message]) -> list[Message]:
        if not messages or messages[0].metadata.message_type != "train":
            return []
        again = [reply for msg in messages for reply in nodes[msg.metadata.dst_node_id].answers(msg)]
        mine = messages[0].metadata.message_id
        return [
            *again,
            *(
                make_message(Metadata(1, "x", sender, 1, about, "", 0.0, 60.0, "train"), content=content_of(good_res()))
                for sender, about in ((99, "something"), (99, mine), (11, mine), (10, "of another run"))
            ),
        ]

    strategy = make()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy.start(FakeGrid(nodes, between=between))
    assert strategy.model.counts_ == pooled()
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    # Replies to nothing that the sender was asked; the other two are second replies, told by the party's name.
    assert {sender: sum(f"node {sender}:" in line for line in told) for sender in (99, 10, 11)} == {99: 2, 10: 1, 11: 1}
    assert len(told) == 6
    assert strategy.missing == {}


# ---- the party's side


def asked(content: RecordDict, kind: str = "evaluate") -> Message:
    FakeGrid({})
    return Message(content, dst_node_id=7, message_type=kind)


def test_a_party_refuses_a_request_that_is_none() -> None:
    party = FlyNNClient(*points(5), name="Basel")
    for kind, answer in (("train", message.train), ("evaluate", message.evaluate)):
        reply = answer(asked(RecordDict(), kind), party)
        assert reply.content["config"]["flynn-party"] == "Basel"
        assert "flynn-refused" in reply.content["config"]
        assert reply.content["metrics"]["num-examples"] == 0


def test_a_party_refuses_arrays_that_are_none() -> None:
    for content in (changed(data=b"junk"), changed(stype="torch"), renamed()):
        for kind, answer in (("train", message.train), ("evaluate", message.evaluate)):
            reply = answer(asked(content, kind), FlyNNClient(*points(5), name="Basel"))
            assert reply.content["config"]["flynn-party"] == "Basel"
            assert "array" in reply.content["config"]["flynn-refused"]


def test_any_client_of_flower_s_legacy_api_may_stand_for_the_party() -> None:
    reply = message.train(asked(RecordDict(), "train"), UnreadyClient("Basel", "no file"))
    assert dict(reply.content["config"]) == {"flynn-refused": "no file", "flynn-party": "Basel"}


# ---- private runs


def test_a_private_run_tells_nothing_but_its_noisy_counts(tmp_path: Path) -> None:
    mechanism = SimulatedRelease(LaplaceCounts(1.0, hash_nnz=SPEC.hash_nnz, n_classes=len(CLASSES)), 4)
    X, y = points(300)
    forms = []
    nodes = {}
    for i, share in enumerate(dealt(y, 3, "pathological")):
        budget = Budget(tmp_path / str(i), Policy(100.0, mechanisms=["simulated"]))
        nodes[i + 1] = Node(FlyNNClient(X[share], y[share], X_test=X, y_test=y, budget=budget))

        def look(content: RecordDict) -> RecordDict:
            arrays = [(array.dtype, array.shape, len(array.data)) for array in content["arrays"].values()]
            forms.append((arrays, dict(content["metrics"]), dict(content["config"])))
            return content

        nodes[i + 1].spoil = look
    strategy = make(mechanism=mechanism, min_available_nodes=3, decay="auto")
    result = strategy.start(FakeGrid(nodes), num_rounds=3)
    assert forms == [forms[0]] * 3
    assert forms[0][1:] == ({"num-examples": 1}, {})
    assert [node.asked for node in nodes.values()] == [["train"]] * 3
    assert strategy.model.guarantee_ == strategy.guarantee
    assert dict(result.train_metrics_clientapp[1]) == {"parties": 3, "bytes": sum(p.bytes for p in strategy.parties)}
    assert result.evaluate_metrics_clientapp == {}
    assert len(result.arrays) == 2
    again = make(mechanism=mechanism, min_available_nodes=3, decay="auto")
    again.start(FakeGrid(nodes))
    assert again.counts == strategy.counts  # the same request gets the same release
