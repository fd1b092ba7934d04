"""Replies of a phase are summed exactly in any order, nobody's twice.

A bad reply costs its sender alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn import ClassCounts
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch, collect
from flwr_flynn.federated.compression import pack
from flwr_flynn.federated.phases.counts import CountsRequest, CountsTally, no_counts
from flwr_flynn.federated.protocol import Reply
from flwr_flynn.federated.roster import Roster
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from tests.fakes import HASHER, RUN, SPEC, counts_of, good_reply, points


class Counting:
    """A roster and a sum, to which batches are added."""

    def __init__(self, **limits: Any) -> None:
        self.tally = CountsTally(CountsRequest(RUN), **limits)
        self.roster = Roster()
        self.total = no_counts(RUN)

    def check(self, *replies: Reply) -> Batch[CountsOfSpecs]:
        batch = Batch(self.total)
        collect(self.tally, batch, self.roster, self.roster, replies)
        return batch

    def take(self, *replies: Reply) -> Batch[CountsOfSpecs]:
        batch = self.check(*replies)
        self.total = batch.total
        self.roster.introduce(batch.names)
        for cid, reason in batch.refused.items():
            self.roster.fail(cid, reason)
        for member in batch.members.values():
            self.roster.enter(member)
        return batch

    @property
    def counts(self) -> ClassCounts:
        return self.total.parts[0]


def reply_with(cid: str, array: np.ndarray, n: int, **metrics: Any) -> Reply:
    """Counts that a party made up."""
    fingerprint = codec.encode(counts_of(*points(0)))[0]
    return Reply(cid, codec.write_tensors([fingerprint, pack(array)]), n, metrics)


def test_a_sum_of_others_is_never_without_room_and_none_overflows():
    room = codec.capacity(HASHER)
    array = np.zeros((RUN.n_classes, SPEC.hash_dim), np.uint64)
    array[0, : SPEC.hash_nnz] = room - 3
    giant = reply_with("1", array, room - 3)
    server = Counting(max_examples=room)
    batch = server.take(giant, good_reply("2", n=5), good_reply("3", n=3))
    assert server.counts.n_examples == room
    assert list(batch.refused) == ["2"]
    server = Counting()  # by default nobody takes the others' room
    assert list(server.take(giant, good_reply("2", n=5)).refused) == ["1"]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.permutations(range(24))), max_size=12),
    st.booleans(),
    st.integers(-2, 2),
)
def test_a_party_has_the_influence_of_its_samples(winners, alike, more):
    """A party that invents counts has no more influence than its samples.

    It may put all of them on the same bits, and its number of samples fits them or not.
    No entry of the sum grows by more than the samples that are counted, nor the sum by
    more than their winners.
    """
    array = np.zeros((3, 24), np.int64)
    for label, order in winners:
        array[label, sorted((winners[0][1] if alike else order)[: SPEC.hash_nnz])] += 1
    claims = max(len(winners) + more, 0)
    server = Counting()
    server.take(good_reply("1"), good_reply("2", seed=1))
    batch = server.check(reply_with("3", array.astype(np.uint64), claims))
    assert ("3" in batch.passed) == (claims == len(winners))
    n = 0
    if batch.passed:
        n = claims
    gained = batch.total.parts[0].array - server.counts.array
    assert 0 <= gained.min() <= gained.max() <= n
    assert gained.sum() == SPEC.hash_nnz * n
    assert server.roster.missing == {}  # nothing is changed before the reply is counted


RAISING = {
    "read": CountsTally,
    "facts": CountsTally,
    "load": CountsTally,
    "match": CountsTally,
    "_combined": CountsOfSpecs,
}


@pytest.mark.parametrize("where", RAISING)
def test_whatever_a_reply_raises_is_its_sender_s_refusal(where, monkeypatch):
    original = getattr(RAISING[where], where)
    calls = iter(range(100))

    def broken(*args: Any) -> Any:
        if next(calls) == 1:
            raise OverflowError("of a library, with SECRET")
        return original(*args)

    server = Counting()
    monkeypatch.setattr(RAISING[where], where, broken)
    batch = server.take(
        good_reply("1"),
        good_reply("2", seed=2, flynn_party="Ulm"),
        good_reply("3", seed=3),
    )
    assert len(batch.passed) == 2
    (reason,) = batch.refused.values()
    assert reason == "refused: unreadable (OverflowError)"


def test_a_node_that_restarted_under_another_id_is_not_counted_again():
    server = Counting()
    server.take(good_reply("1", flynn_party="Basel"), good_reply("2"))
    before = server.counts.n_examples
    again = [
        good_reply(cid, flynn_party=name)
        for cid, name in (("5", "Basel"), ("6", "Ulm"), ("7", "Ulm"))
    ]
    batch = server.take(*again)
    assert server.counts.n_examples == before + 5
    assert list(batch.passed) == ["6"]
    assert batch.refused.keys() == {"5", "7"}
    assert "node 1" in batch.refused["5"]
    assert "node 6" in batch.refused["7"]
    # With other samples it is another party of that name.
    assert list(server.take(good_reply("8", n=4, flynn_party="Basel")).passed) == ["8"]


def test_a_batch_tells_who_sent_what():
    good = good_reply("17", flynn_party="Basel", flynn_seconds=1.5)
    batch = Counting().take(
        good, good_reply("18", n=0, flynn_party=3, flynn_seconds=float("nan"))
    )
    first, second = batch.members.values()
    assert first.name == "Basel"
    assert first.node == "17"
    assert first.examples == 5
    assert first.bytes == good.n_bytes
    assert first.seconds == 1.5
    assert first.sha256 == (counts_of(*points(5)).sha256(),)
    assert str(second) == "node 18"
    assert second.examples == 0
    assert second.seconds is None
    # Single statistics are kept only where a phase reports on parties.
    assert batch.parts == {}


def test_nobody_is_counted_twice():
    server = Counting()
    server.take(good_reply("1"), good_reply("1", seed=3), good_reply("2"))
    batch = server.take(good_reply("2", seed=8), good_reply("1"))
    assert batch.repeated == ["2", "1"]
    assert [member.node for member in server.roster.counted] == ["1", "2"]
    assert server.counts.n_examples == 10
