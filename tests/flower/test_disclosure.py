"""A party's record of what leaves it: equal, field for field, to what somebody else
sees leave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from flwr_flynn.app.client_app import UnreadyClient
from flwr_flynn.federated import codec
from flwr_flynn.federated.permissions import Disclosure
from flwr_flynn.federated.protocol import PARTY, REFUSED, SECONDS, STATISTIC
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
GRAM = options_for(AUTO, gram=64)
FIELDS = {
    "columns": ["class sizes", "gaps", "cells"],
    "counts": ["fingerprint", "counts"] * 6,
    "selection": ["left out", *["correct", "log-losses"] * 6],
    "gram": ["class sizes", "products", "sums"],
    "evaluation": [
        "confusion matrix",
        "own confusion matrix",
        "scores",
        "sums of scores",
    ],
}


def seen(tensors: Sequence[bytes], n_examples: int, metrics: Mapping[str, Any]) -> Seen:
    """A message as an observer describes it, who knows NumPy's files and no layout."""
    others = dict(metrics)
    if STATISTIC in others:
        tensors = codec.split(others.pop(STATISTIC))
    arrays = [(each.shape, each.dtype.name) for each in codec.read_tensors(tensors)]
    entries = {
        name: len(name) + (len(each) if isinstance(each, str) else 8)
        for name, each in others.items()
    }
    total = sum(map(len, tensors)) + sum(entries.values())
    described = [
        (*array, len(tensor)) for array, tensor in zip(arrays, tensors, strict=True)
    ]
    digest = None
    if tensors:
        digest = hashlib.sha256(b"".join(tensors)).hexdigest()
    return n_examples, described, entries, total, digest, others.get(REFUSED)


def told(record: Disclosure) -> Seen:
    """The same of a party's own record."""
    arrays = [(each.shape, each.dtype, each.bytes) for each in record.arrays]
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
    """A run whose messages are written down on their way, and what was seen of each
    party.

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
    kept: list[list[Disclosure]] = [[] for _ in parts]
    given = [
        {"on_answer": kept[i].append, "name": f"party-{i}", **more, **part}
        for i, part in enumerate(parts)
    ]
    return [FlyNNClient(**each) for each in given], kept


@BOTH
@pytest.mark.parametrize("floor", [1, 5])
def test_the_records_of_a_run_are_what_was_seen_to_leave(api: Api, floor: int) -> None:
    # the last one refuses
    parts = [*shares("iid", 4), {"X": np.eye(4), "y": ["unheard of"] * 4}]
    parties, kept = recording(parts, gram=True, min_examples=floor)
    run, out = observed(api, GRAM, parties)
    assert [[told(each) for each in records] for records in kept] == out
    assert [record.phase for record in kept[0]] == list(FIELDS)
    for record in kept[0]:
        assert [", ".join(array.fields) for array in record.arrays] == FIELDS[
            record.phase
        ]
        assert record.kind == ("results" if record.phase == "evaluation" else "exact")
        assert record.entries.keys() == {
            PARTY,
            "accuracy" if record.phase == "evaluation" else SECONDS,
        }
    assert {(each.kind, each.sha256) for each in kept[4]} == {("nothing", None)}
    # The server knows as much: it had these messages of all parties that it counted.
    for name, traffic in run.traffic.items():
        replied = [
            record
            for i in (0, 1, 2, 3)
            for record in kept[i]
            if record.phase == name and record.arrays
        ]
        replied = [each for each in replied if api is Legacy or each not in kept[2]]
        assert traffic.kind == replied[0].kind
        assert traffic.arrivals.parties == len(replied)
        for i, field in enumerate(traffic.arrivals.to_dict()["fields"]):
            arrays = [record.arrays[i] for record in replied if len(record.arrays) > i]
            assert field["name"] == ", ".join(arrays[0].fields)
            assert field["bytes"][::2] == [
                min(each.bytes for each in arrays),
                max(each.bytes for each in arrays),
            ]


def test_the_record_of_a_secure_sum_is_of_the_vector_that_leaves_masked() -> None:
    kept: list[list[Disclosure]] = [[] for _ in range(4)]
    clients = [party(i, secure=True, on_answer=kept[i].append) for i in range(4)]
    refusing = UnreadyClient(
        "site 4", "no file", (late := list[Disclosure]()).append
    ).to_client()
    _, wire = counted(
        [*clients, refusing], lambda node, stage: node == 4 and stage == Stage.UNMASK
    )
    masked = {
        node: codec.read_tensors(
            reply.content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
        )[1]
        for node, stage, reply in wire.sent
        if stage == Stage.COLLECT_MASKED_VECTORS
    }
    assert masked.keys() == {1, 2, 3, 4}
    for node, vector in masked.items():
        (record,) = kept[node - 1]
        (array,) = record.arrays
        assert array.fields == ("counts",)
        (tensor,) = codec.write_tensors([vector])
        assert array.shape == vector.shape
        assert array.dtype == vector.dtype.name
        assert array.bytes == len(tensor)
        assert record.kind == "secure"
        assert record.examples == 1
        assert record.sha256 is None
    assert [(each.kind, each.refused) for each in late] == [("nothing", "no file")]


@BOTH
def test_the_record_of_noisy_counts_has_no_number_of_samples(
    api: Api, tmp_path: Path
) -> None:
    pytest.importorskip("opendp")
    parties, kept = recording(
        [dict(zip("Xy", points(20), strict=True))],
        budget=Budget(tmp_path / "s", Policy(1.0)),
    )
    run, out = observed(
        api,
        {"spec": SPEC, "classes": CLASSES, "min_parties": 1, "mechanism": LAPLACE},
        parties,
    )
    assert [[told(each) for each in records] for records in kept] == out
    (record,) = kept[0]
    assert record.kind == "noisy"
    assert record.examples == 1
    assert len(record.arrays) == 2
    assert run.traffic["counts"].kind == "noisy"
    assert list(record.entries) == [PARTY]


def test_what_cannot_be_recorded_does_not_leave() -> None:
    def full(_: Disclosure) -> None:
        raise OSError("No space left on device: /secret/folder")

    X, y = points(20)
    arrays, n_examples, metrics = FlyNNClient(X, y, name="Basel", on_answer=full).fit(
        [], counting(RUN)
    )
    assert arrays == []
    assert n_examples == 0
    assert metrics == {
        REFUSED: "the record of what leaves this party cannot be written",
        PARTY: "Basel",
    }


def test_a_malformed_request_is_on_record() -> None:
    FakeGrid({})
    (client,), (kept,) = recording([dict(zip("Xy", points(20), strict=True))])
    content = records.request([codec.write_tensors([np.zeros(3)])[0]], counting(RUN))
    content["arrays"]["0"].dtype = "int8"
    reply = message.train(Message(content, dst_node_id=1, message_type="train"), client)
    spoiled = client.to_client().fit(
        FitIns(Parameters([b"x"], "numpy.ndarray"), counting(RUN))
    )
    assert [each.refused for each in kept] == [
        reply.content["config"][REFUSED],
        spoiled.metrics[REFUSED],
    ]
    assert {(each.phase, each.channel, each.kind) for each in kept} == {
        ("counts", "train", "nothing")
    }
