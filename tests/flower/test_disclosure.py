"""A party's record of what leaves it.

It is equal, field for field, to what somebody else sees leave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.common import FitIns, Parameters
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    Key,
    Stage,
)

from flwr_flynn import FlyNNClient, message
from flwr_flynn.app.client_app import unready_client
from flwr_flynn.federated import codec
from flwr_flynn.federated.disclosure import Disclosure
from flwr_flynn.federated.protocol import FLOOR, PARTY, REFUSED, SECONDS, STATISTIC
from flwr_flynn.federated.run import Run
from flwr_flynn.flower import records
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import CLASSES, LAPLACE, RUN, SPEC, FakeGrid, counting, points
from tests.federated.runs import AUTO, options_for, shares
from tests.flower.networks import BOTH, Api, Legacy
from tests.flower.test_secagg import counted, party

Seen = tuple[
    int,
    list[tuple[tuple[int, ...], str, int]],
    dict[str, int],
    int,
    str | None,
    str | None,
]
OPTIONS = options_for(AUTO)
FIELDS = {
    "columns": ["class sizes", "gaps", "cells", "group squares"],
    "counts": [*["fingerprint", "counts"] * 5, "class sizes", "products", "sums"],
    "selection": ["left out", *["correct", "log-losses"] * 5],
    "calibration": ["left out", "log-losses", "probabilities", "products", "levels"],
    "evaluation": [
        "confusion matrix",
        "own confusion matrix",
        "paired",
        "sets",
        "scores",
        "sums of scores",
        "scores without the site",
        "sums of scores without the site",
        "scores alone",
        "sums of scores alone",
    ],
}


def size_of(value: Any) -> int:
    """Letters of a text; a number has eight bytes."""
    if isinstance(value, str):
        return len(value)
    return 8


def seen(tensors: Sequence[bytes], n_examples: int, metrics: Mapping[str, Any]) -> Seen:
    """A message as an observer describes it, who knows NumPy's files and no layout."""
    others = dict(metrics)
    if STATISTIC in others:
        tensors = codec.split(others.pop(STATISTIC))
    arrays = codec.read_tensors(tensors)
    described = [
        (array.shape, array.dtype.name, len(tensor))
        for array, tensor in zip(arrays, tensors, strict=True)
    ]
    entries = {name: len(name) + size_of(others[name]) for name in others}
    total = sum(map(len, tensors)) + sum(entries.values())
    digest = None
    if tensors:
        digest = hashlib.sha256(b"".join(tensors)).hexdigest()
    return n_examples, described, entries, total, digest, others.get(REFUSED)


def recorded(record: Disclosure) -> Seen:
    """The same of a party's own record."""
    arrays = [(array.shape, array.dtype, array.bytes) for array in record.arrays]
    return (
        record.examples,
        arrays,
        dict(record.entries),
        record.bytes,
        record.sha256,
        record.refused,
    )


def observed(
    api: Api, options: dict[str, Any], parties: list[FlyNNClient]
) -> tuple[Run, list[list[Seen]]]:
    """A run, and what was seen of the messages of each party on their way.

    Where it can be, the third party is late: its answers come when nobody waits any
    more.
    """
    network = api(parties)
    out = [list[Seen]() for _ in parties]
    for i, mine in enumerate(out):
        network.watch(
            i, lambda *answer, mine=mine: mine.append(seen(*answer)), is_late=i == 2
        )
    return network.finished(**options), out


def recording(
    parts: Sequence[dict[str, Any]], **more: Any
) -> tuple[list[FlyNNClient], list[list[Disclosure]]]:
    """Parties that keep their records."""
    ledgers: list[list[Disclosure]] = [[] for _ in parts]
    parties = [
        FlyNNClient(on_answer=ledgers[i].append, name=f"party-{i}", **more, **part)
        for i, part in enumerate(parts)
    ]
    return parties, ledgers


@BOTH
@pytest.mark.parametrize("floor", [1, 5])
def test_the_records_of_a_run_are_what_was_seen_to_leave(api, floor):
    refusing = {"X": np.eye(4), "y": ["unheard of"] * 4}
    parts = [*shares("iid", 4), refusing]
    parties, ledgers = recording(parts, products=True, min_examples=floor)
    run, out = observed(api, OPTIONS, parties)
    assert [[recorded(record) for record in ledger] for ledger in ledgers] == out
    assert [record.phase for record in ledgers[0]] == list(FIELDS)
    for record in ledgers[0]:
        fields = [", ".join(array.fields) for array in record.arrays]
        assert fields == FIELDS[record.phase]
        if record.phase == "evaluation":
            assert record.kind == "results"
            assert record.entries.keys() == {PARTY, "accuracy", "flynn-taken-out"}
        else:
            assert record.kind == "exact"
            floors = {FLOOR} if record.phase == "columns" and floor == 1 else set()
            assert record.entries.keys() == {PARTY, SECONDS} | floors
    for record in ledgers[4]:
        assert record.kind == "nothing"
        assert record.sha256 is None
    assert ledgers[4]
    # The server knows as much: it had these messages of all parties that it counted.
    counted_parties = [0, 1, 3]
    if api is Legacy:
        # The third party is not late.
        counted_parties = [0, 1, 2, 3]
    for name, traffic in run.traffic.items():
        replied = [
            record
            for i in counted_parties
            for record in ledgers[i]
            if record.phase == name and record.arrays
        ]
        assert traffic.kind == replied[0].kind
        assert traffic.arrivals.parties == len(replied)
        for i, field in enumerate(traffic.arrivals.to_dict()["fields"]):
            arrays = [record.arrays[i] for record in replied if len(record.arrays) > i]
            sizes = [array.bytes for array in arrays]
            assert field["name"] == ", ".join(arrays[0].fields)
            assert field["bytes"][::2] == [min(sizes), max(sizes)]


def test_the_record_of_a_secure_sum_is_of_the_vector_that_leaves_masked():
    ledgers: list[list[Disclosure]] = [[] for _ in range(5)]
    clients = [party(i, secure=True, on_answer=ledgers[i].append) for i in range(4)]
    refusing = unready_client("site 4", "no file", ledgers[4].append).to_client()
    _, wire = counted(
        [*clients, refusing], lambda node, stage: node == 4 and stage == Stage.UNMASK
    )
    masked = wire.masked()
    assert masked.keys() == {1, 2, 3, 4}
    for node, content in masked.items():
        configs = content.config_records[RECORD_KEY_CONFIGS]
        _, vector = codec.read_tensors(configs[Key.MASKED_PARAMETERS])
        (record,) = ledgers[node - 1]
        (array,) = record.arrays
        assert array.fields == ("counts",)
        (tensor,) = codec.write_tensors([vector])
        assert array.shape == vector.shape
        assert array.dtype == vector.dtype.name
        assert array.bytes == len(tensor)
        assert record.kind == "secure"
        assert record.examples == 1
        assert record.sha256 is None
    (record,) = ledgers[4]
    assert record.kind == "nothing"
    assert record.refused == "no file"


@BOTH
def test_the_record_of_noisy_counts_has_no_number_of_samples(api, tmp_path):
    pytest.importorskip("opendp")
    X, y = points(20)
    budget = Budget(tmp_path / "s", Policy(1.0))
    parties, (ledger,) = recording([{"X": X, "y": y}], budget=budget)
    run, (out,) = observed(
        api,
        {"spec": SPEC, "classes": CLASSES, "min_parties": 1, "mechanism": LAPLACE},
        parties,
    )
    (record,) = ledger
    assert [recorded(record)] == out
    assert record.kind == "noisy"
    assert record.examples == 1
    assert len(record.arrays) == 2
    assert run.traffic["counts"].kind == "noisy"
    assert list(record.entries) == [PARTY]


def test_what_cannot_be_recorded_does_not_leave():
    def full(_: Disclosure) -> None:
        raise OSError("No space left on device: /secret/folder")

    X, y = points(20)
    arrays, n_examples, metrics = FlyNNClient(X, y, name="Basel", on_answer=full).fit(
        [], counting(RUN)
    )
    assert arrays == []
    assert n_examples == 0
    assert metrics == {
        REFUSED: "the record of this party's answers cannot be written",
        PARTY: "Basel",
    }


def test_a_malformed_request_is_on_record():
    FakeGrid({})
    X, y = points(20)
    (client,), (ledger,) = recording([{"X": X, "y": y}])
    content = records.request([codec.write_tensors([np.zeros(3)])[0]], counting(RUN))
    content["arrays"]["0"].dtype = "int8"
    reply = message.train(Message(content, dst_node_id=1, message_type="train"), client)
    spoiled = client.to_client().fit(
        FitIns(Parameters([b"x"], "numpy.ndarray"), counting(RUN))
    )
    by_message, by_client = ledger
    assert by_message.refused == reply.content["config"][REFUSED]
    assert by_client.refused == spoiled.metrics[REFUSED]
    for record in ledger:
        assert record.phase == "counts"
        assert record.channel == "train"
        assert record.kind == "nothing"
