"""The ledger: exact sums in any order, nobody twice, everybody's reason under their own name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn import ClassCounts
from flwr_flynn.errors import AggregationError
from flwr_flynn.federated import codec
from flwr_flynn.federated.aggregator import Aggregator, Reply
from flwr_flynn.federated.compression import pack
from flwr_flynn.federated.roster import clean
from tests.fakes import SPEC, TERMS, counts_of, points


def reply(cid: str, n: int = 5, seed: int = 0, **metrics: Any) -> Reply:
    tensors = ndarrays_to_parameters(codec.encode(counts_of(*points(n, seed)))).tensors
    return Reply(cid, tensors, n, {key.replace("_", "-"): value for key, value in metrics.items()})


def aggregated(*replies: Reply, min_parties: int = 1) -> Aggregator:
    server = Aggregator(TERMS, min_parties)
    server.commit(server.check(replies))
    return server


@given(
    owners=st.lists(st.integers(0, 5), min_size=0, max_size=30),
    order=st.permutations(range(6)),
    first_round=st.integers(0, 6),
)
def test_every_partition_in_every_order_adds_up_to_the_pooled_counts(
    owners: list[int], order: list[int], first_round: int
) -> None:
    X, y = points(len(owners))
    replies = []
    for party in order:
        mine = np.array(owners, int) == party
        tensors = ndarrays_to_parameters(codec.encode(counts_of(X[mine], y[mine]))).tensors
        replies.append(Reply(str(party), tensors, int(mine.sum()), {}))
    server = Aggregator(TERMS, 6)
    for batch in (replies[:first_round], replies[first_round:]):
        server.commit(server.check(batch))
    np.testing.assert_array_equal(server.counts.array, counts_of(X, y).array)
    assert len(server.parties) == 6


def test_checking_changes_nothing() -> None:
    server = aggregated(reply("1"))
    server.ask(["2", "3"])
    before = server.counts.sha256(), server.parties, server.missing
    server.check([reply("2"), reply("1", seed=4), Reply("3", [b"junk"], 3, {"flynn-party": "Ulm"})])
    assert (server.counts.sha256(), server.parties, server.missing) == before


def test_nobody_is_counted_twice() -> None:
    server = aggregated(reply("1"), reply("1", seed=3), reply("2"))
    batch = server.check([reply("2", seed=8), reply("1")])
    assert batch.repeated == ["2", "1"]
    server.commit(batch)
    assert [party.cid for party in server.parties] == ["1", "2"]
    assert server.counts.n_examples == 10


def test_a_second_reply_may_mend_the_first() -> None:
    server = aggregated(Reply("1", [], 0, {}), reply("1"))
    assert server.missing == {}
    assert server.counts.n_examples == 5


def test_no_sum_can_overflow() -> None:
    room = codec.capacity(TERMS.hasher)
    array = np.zeros((TERMS.n_classes, SPEC.hash_dim), np.uint64)
    array[0, : SPEC.hash_nnz] = room - 3
    fingerprint = codec.encode(counts_of(*points(0)))[0]
    tensors = ndarrays_to_parameters([fingerprint, pack(array)]).tensors
    server = Aggregator(TERMS, 1, max_examples_per_party=room)
    server.commit(server.check([Reply("1", tensors, room - 3, {}), reply("2", n=5), reply("3", n=3)]))
    assert server.counts.n_examples == room
    assert server.missing == {"node 2": "refused: counts: expected at most 3 examples, got 5"}

    server = aggregated(Reply("1", tensors, room - 3, {}), reply("2", n=5))  # it takes nobody else's room
    assert server.missing == {"node 1": f"refused: counts: expected at most {room // 1024} examples, got {room - 3}"}


def test_more_examples_than_a_party_can_have_are_refused() -> None:
    server = Aggregator(TERMS, 1, max_examples_per_party=5)
    server.commit(server.check([reply("1", n=6), reply("2", n=5), reply("3", n=5)]))
    assert server.missing == {"node 1": "refused: counts: expected at most 5 examples, got 6"}


@given(
    winners=st.lists(st.tuples(st.integers(0, 2), st.permutations(range(24))), max_size=12),
    alike=st.booleans(),
    more=st.integers(-2, 2),
)
def test_a_party_has_the_influence_of_the_points_it_claims_and_no_more(
    winners: list[tuple[int, list[int]]], alike: bool, more: int
) -> None:
    """Counts that a party invents, all on the same bits if it likes, and a number of points that goes with them or not:
    no entry of the sum grows by more than the points that are counted, nor the sum by more than their winners."""
    array = np.zeros((3, 24), np.int64)
    for label, order in winners:
        array[label, sorted((winners[0][1] if alike else order)[: SPEC.hash_nnz])] += 1
    invented = ClassCounts(array, hash_nnz=SPEC.hash_nnz, spec_fingerprint=TERMS.hasher.fingerprint)
    claims = max(len(winners) + more, 0)
    server = aggregated(reply("1"), reply("2", seed=1))
    tensors = ndarrays_to_parameters(codec.encode(invented)).tensors
    batch = server.check([Reply("3", tensors, claims, {})])
    assert ("3" in batch.accepted) == (claims == len(winners))
    n = claims if batch.accepted else 0
    gained = batch.total[0].array - server.counts.array
    assert 0 <= gained.min() <= gained.max() <= n
    assert gained.sum() == SPEC.hash_nnz * n


def test_whatever_reading_a_reply_raises_is_that_party_s_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tensors: Any) -> Any:
        if tensors == ["broken"]:
            raise OverflowError("of a library")
        return read(tensors)

    read = codec.read_tensors
    monkeypatch.setattr(codec, "read_tensors", broken)
    server = aggregated(reply("1"), Reply("2", ["broken"], 5, {"flynn-party": "Ulm"}), reply("3"))
    assert [party.cid for party in server.parties] == ["1", "3"]
    assert server.missing == {"Ulm": "refused: unreadable (OverflowError)"}


def test_whatever_reading_an_evaluation_raises_is_that_party_s_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr_flynn.federated.aggregator.confusion_from_bytes", lambda *_: 1 / 0)
    assert aggregated().check_evaluation([reply("1")]) == ({}, {"1": "refused: unreadable (ZeroDivisionError)"})


def test_parties_of_one_name_are_told() -> None:
    server = aggregated(reply("1", flynn_party="Basel"), reply("2"), reply("3"), reply("4", flynn_party="Ulm"))
    assert server.namesakes() == {}
    server.commit(server.check([reply("5", n=4, flynn_party="Basel")]))
    assert server.namesakes() == {"Basel": ["1", "5"]}


def test_a_node_that_restarted_under_another_id_is_not_counted_again() -> None:
    server = aggregated(reply("1", flynn_party="Basel"), reply("2"))
    again = [reply("5", flynn_party="Basel"), reply("6", flynn_party="Ulm"), reply("7", flynn_party="Ulm")]
    before = server.counts.n_examples
    server.commit(server.check(again))
    assert server.counts.n_examples == before + 5
    assert [party.cid for party in server.parties] == ["1", "2", "6"]
    assert server.missing == {
        "Basel (node 5)": "refused: the same name and counts as node 1, which is counted",
        "Ulm (node 7)": "refused: the same name and counts as node 6, which is counted",
    }


@pytest.mark.parametrize("n_examples", [None, 5.0, "5", True, -5, [5], 2**70])
def test_a_senseless_number_of_examples_is_refused(n_examples: Any) -> None:
    good = reply("1")
    server = aggregated(Reply("1", good.tensors, n_examples, {}))
    assert server.parties == []
    assert server.missing["node 1"].startswith("refused: ")


def test_the_ledger_says_who_sent_what() -> None:
    good = reply("17", flynn_party="Basel", flynn_seconds=1.5)
    server = aggregated(good, reply("18", n=0, flynn_party=3, flynn_seconds=float("nan")))
    first, second = server.parties
    assert (first.name, first.cid, first.examples, first.bytes, first.seconds) == ("Basel", "17", 5, good.n_bytes, 1.5)
    assert (second.name, second.examples, second.seconds) == ("node 18", 0, None)


def test_reasons_stand_under_the_party_s_name_until_it_is_counted() -> None:
    server = Aggregator(TERMS, 2)
    server.ask(["1", "2", "3"])
    server.fail("3", "failed: \x1b[31mgone\n")
    refusal = Reply("1", [], 0, {"flynn-refused": "y: 2 of 3\nlabels", "flynn-party": "Ulm"})
    server.commit(server.check([refusal]))
    assert server.missing == {"Ulm": "declined: y: 2 of 3 labels", "node 2": "no reply", "node 3": "failed: [31mgone"}
    with pytest.raises(AggregationError) as error:
        server.require_enough()
    assert str(error.value) == (
        "0 of at least 2 parties counted; missing: Ulm (declined: y: 2 of 3 labels), node 2 (no reply), "
        "node 3 (failed: [31mgone)"
    )
    server.commit(server.check([reply("1"), reply("2")]))
    assert server.missing == {"node 3": "failed: [31mgone"}
    server.require_enough()


def test_a_long_list_of_missing_parties_is_cut() -> None:
    server = Aggregator(TERMS, 1)
    server.ask(map(str, range(50)))
    with pytest.raises(AggregationError, match=r"node 19 \(no reply\), and 30 more$"):
        server.require_enough()


def test_with_nobody_asked_the_error_says_so() -> None:
    with pytest.raises(AggregationError, match="nobody else was asked; too few parties were connected"):
        Aggregator(TERMS, 1).require_enough()


def test_no_party_passes_for_another() -> None:
    names = {"1": "Basel", "2": "Basel", "3": "Basel (node 1)", "4": "node 5", "6": "Ulm"}
    server = aggregated(*(reply(cid, flynn_party=name) for cid, name in names.items()), reply("5"))
    assert server.names() == {
        "1": "Basel (node 1)",
        "2": "Basel (node 2)",
        "3": "Basel (node 1) (node 3)",
        "4": "node 5 (node 4)",
        "5": "node 5 (node 5)",
        "6": "Ulm",
    }


@given(st.text(), st.integers(1, 20))
def test_cleaned_text_is_one_short_printable_line(text: str, longest: int) -> None:
    line = clean(text, longest)
    assert len(line) <= longest
    assert line.isprintable()


def test_clean_takes_no_other_types() -> None:
    assert clean(b"Basel", 10) == clean(None, 10) == ""


@given(st.lists(st.tuples(st.binary(max_size=200), st.integers(-1, 9)), max_size=3))
def test_junk_is_refused_and_changes_nothing(junk: list[tuple[bytes, int]]) -> None:
    server = aggregated(reply("1"))
    before = server.counts.sha256()
    batch = server.check([Reply(str(i + 2), [raw, raw], n, {}) for i, (raw, n) in enumerate(junk)])
    assert len(batch.refused) == len(junk)
    server.commit(batch)
    assert server.counts.sha256() == before
