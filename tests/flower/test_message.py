"""The Message API: its contents, errors and keywords, and parties of a ClientApp."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import Result, Strategy

from flwr_flynn import message
from flwr_flynn.app.client_app import unready_client
from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.flower.client import FlyNNClient
from tests.fakes import (
    FakeGrid,
    Node,
    content_of,
    counting,
    counts_of,
    good_res,
    make_message,
    points,
)
from tests.flower.networks import POOLED, Messages, X, Y, federation, settings
from tests.raising import raises


def test_an_action_of_its_own_and_config_for_the_users_code():
    network = Messages(federation(2))
    config = ConfigRecord({"mine": 1.5})
    grid = FakeGrid(network.nodes)
    sent = network.make(action="flynn").configure_train(3, ArrayRecord(), config, grid)
    assert [msg.metadata.message_type for msg in sent] == ["train.flynn"] * 2
    assert dict(sent[0].content["config"]) == {
        "mine": 1.5,
        "server-round": 3,
        **counting(),
    }
    assert dict(config) == {"mine": 1.5}
    with raises(ConfigError, field="config", got="flynn-mode"):
        network.make().configure_train(
            1, ArrayRecord(), ConfigRecord({"flynn-mode": "x"}), grid
        )


# ---- what can come back, beside what can over both APIs


def changed(**fields: Any) -> RecordDict:
    """A good reply whose second array is described otherwise."""
    content = content_of(good_res())
    array = content["arrays"]["1"]
    values = {
        "dtype": array.dtype,
        "shape": array.shape,
        "stype": array.stype,
        "data": array.data,
        **fields,
    }
    content["arrays"]["1"] = Array(**values)
    return content


def without(name: str, **more: Any) -> RecordDict:
    content = content_of(good_res())
    return RecordDict({**{key: content[key] for key in content if key != name}, **more})


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
    "arrays that are numbers": (
        without("arrays", arrays=MetricRecord({"0": 1})),
        "message: expected 2 arrays",
    ),
    "a list of examples": (
        without("metrics", metrics=MetricRecord({"num-examples": [5]})),
        "num_examples",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_costs_its_sender_only(name):
    content, reason = MALFORMED[name]
    network = Messages(federation(2))
    network.spoil(1, content)
    strategy = network.make(min_parties=1)
    network.run(strategy, 1)
    assert strategy.counts == counts_of(X[:30:2], Y[:30:2])
    assert [party.name for party in strategy.parties] == ["party-0"]
    assert strategy.missing["node 1"].startswith(f"refused: {reason}")


def error_by_the_superlink(request: Message) -> Message:
    """The reply that Flower makes up for a party that is gone: by node 1, to node 1."""
    about = request.metadata
    metadata = Metadata(
        1,
        "x",
        1,
        1,
        about.message_id,
        "",
        about.created_at,
        about.ttl,
        about.message_type,
    )
    return make_message(metadata, error=Error(5, "Node Unavailable"))


@pytest.mark.parametrize("gives_ids", [True, False])
def test_who_failed_is_told_as_far_as_it_is_known(gives_ids):
    nodes = {10 + i: Node(party) for i, party in enumerate(federation(4))}
    nodes[10].fails = "<class 'OSError'>:<'no\nfile'>"
    for lost in (11, 12):
        nodes[lost].answers = lambda msg: [error_by_the_superlink(msg)]
    strategy = message.FlyNNStrategy(**settings(min_available_nodes=4))
    strategy.start(FakeGrid(nodes, gives_ids), num_rounds=1)
    unknown = "no reply or a failure (2 without a name, the first: Node Unavailable)"
    told = dict.fromkeys(
        ("node 11", "node 12"), "failed: Node Unavailable" if gives_ids else unknown
    )
    assert strategy.missing == {
        "node 10": "failed: <class 'OSError'>:<'no file'>",
        **told,
    }
    with raises(AggregationError, counted=1, min_parties=2, missing=strategy.missing):
        _ = strategy.model


def test_keywords_of_later_versions_of_flower_go_to_its_own_start(
    monkeypatch,
):
    original = Strategy.start
    given = []

    # This one is of Flower 1.43.
    def start(self: Strategy, *arguments: Any, should_stop: Any = None) -> Result:
        given.append(should_stop)
        return original(self, *arguments)

    monkeypatch.setattr(Strategy, "start", start)
    network = Messages(federation(2))
    stop = object()
    strategy = network.make()
    strategy.start(FakeGrid(network.nodes), should_stop=stop)
    assert given == [stop]
    assert len(strategy.parties) == 2


def test_replies_count_once_and_those_of_strangers_do_not(
    caplog,
):
    network = Messages(federation(2))

    def between(messages: list[Message]) -> list[Message]:
        if not messages or messages[0].metadata.message_type != "train":
            return []
        again = [
            reply
            for msg in messages
            for reply in network.nodes[msg.metadata.dst_node_id].answers(msg)
        ]
        mine = messages[0].metadata.message_id
        for sender, about in (
            (99, "something"),
            (99, mine),
            (1, mine),
            (0, "of another run"),
        ):
            metadata = Metadata(1, "x", sender, 1, about, "", 0.0, 60.0, "train")
            again.append(make_message(metadata, content=content_of(good_res())))
        return again

    strategy = network.make()
    strategy.start(FakeGrid(network.nodes, between=between))
    assert strategy.model.counts_ == POOLED
    told = [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING"
    ]
    # Replies to nothing that the sender was asked; the other two are second replies,
    # told by the party's name.
    assert {
        sender: sum(f"node {sender}:" in line for line in told) for sender in (99, 0, 1)
    } == {99: 2, 0: 1, 1: 1}
    assert len(told) == 6
    assert strategy.missing == {}


# ---- the party's side


NO_REQUESTS = [
    (each, "array")
    for each in (changed(data=b"junk"), changed(stype="torch"), renamed())
]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(("content", "reason"), [(RecordDict(), "phase"), *NO_REQUESTS])
def test_a_party_refuses_a_request_that_is_none(content, reason, kind):
    FakeGrid({})
    asked = Message(content, dst_node_id=7, message_type=kind)
    reply = getattr(message, kind)(asked, FlyNNClient(*points(5), name="Basel")).content
    assert reply["config"]["flynn-party"] == "Basel"
    assert reason in reply["config"]["flynn-refused"]
    assert reply["metrics"]["num-examples"] == 0


def test_any_client_of_flower_s_legacy_api_may_stand_for_the_party():
    FakeGrid({})
    asked = Message(RecordDict(), dst_node_id=7, message_type="train")
    reply = message.train(asked, unready_client("Basel", "no file"))
    assert dict(reply.content["config"]) == {
        "flynn-refused": "no file",
        "flynn-party": "Basel",
    }
