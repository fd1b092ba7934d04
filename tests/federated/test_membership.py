"""Joining and leaving: what is left is what the others alone would have made, and nobody is in it twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters
from flwr.server import Server
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn import FlyNNClient, FlyNNStrategy
from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.membership import Joining, Leaving, Standing
from flwr_flynn.federated.protocol import Terms
from flwr_flynn.federated.roster import Reply
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import CLASSES, HASHER, SPEC, TERMS, ClassCounts, Proxy, counts_of, manager, points

NOBODY = Federation(TERMS, ClassCounts.zeros(HASHER, 3), ())


def reply(name: str, cid: str | None = None, n: int | None = None, seed: int | None = None) -> Reply:
    """A party whose points follow from its name."""
    n, seed = (len(name) + 3 if n is None else n), (ord(name[0]) if seed is None else seed)
    tensors = ndarrays_to_parameters(codec.encode(counts_of(*points(n, seed)))).tensors
    return Reply(cid or str(ord(name[0])), tensors, n, {"flynn-party": name})


def after(server: Joining | Leaving, *replies: Reply) -> Federation:
    server.commit(server.check(replies))
    return server.federation("1")


def joined(before: Federation, *names: str) -> Federation:
    return after(Joining(before, 1), *map(reply, names))


@given(first=st.sets(st.sampled_from("abcdef")), later=st.permutations("abcdef"), data=st.data())
def test_whoever_joins_and_leaves_in_any_order_what_is_left_is_what_the_others_make(
    first: set[str], later: list[str], data: st.DataObject
) -> None:
    federation = joined(NOBODY, *sorted(first))
    federation = joined(federation, *[name for name in later if name not in first])
    gone = data.draw(st.permutations("abcdef"))[: data.draw(st.integers(0, 6))]
    federation = after(Leaving(federation, 1), *[reply(name, cid="9" + name) for name in gone])
    alone = joined(NOBODY, *sorted(set("abcdef") - set(gone)))
    assert federation.counts == alone.counts
    assert federation.counts.sha256() == alone.counts.sha256()
    assert sorted(map(str, federation.members)) == sorted(map(str, alone.members))


def test_the_file_of_those_who_are_left_is_the_file_of_a_federation_without_the_others(tmp_path: Path) -> None:
    federation = replace(joined(NOBODY, "a", "b", "c"), decay=0.5)
    after(Leaving(federation, 1), reply("c")).save(tmp_path / "left.npz")
    replace(joined(NOBODY, "a", "b"), decay=0.5).save(tmp_path / "never.npz")
    assert (tmp_path / "left.npz").read_bytes() == (tmp_path / "never.npz").read_bytes()


@pytest.mark.parametrize(
    "again",
    [reply("a", cid="555"), reply("other", cid="97"), replace(reply("zed", cid="556"), cid="key-556")],
    ids=["party-id", "node", "key"],
)
def test_nobody_joins_twice_whatever_they_are_known_by(again: Reply) -> None:
    keys = {"97": "a" * 64, "key-556": "a" * 64}
    first = Joining(NOBODY, 1, identify=lambda cid: keys.get(cid, ""))
    federation = after(first, reply("a"))
    server = Joining(federation, 1, identify=lambda cid: keys.get(cid, ""))
    server.commit(server.check([again, reply("b")]))
    assert [str(member) for member in server.federation("2").members] == ["a", "b"]
    assert list(server.missing.values()) == ["refused: in the federation already, as a"]
    assert server.counts == federation.counts + counts_of(*points(4, ord("b")))


def test_those_who_are_in_by_node_or_key_are_not_even_asked() -> None:
    server = Joining(joined(NOBODY, "a"), 1, identify=lambda cid: "")
    assert (server.is_due("97"), server.is_due("98")) == (False, True)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (reply("zoe"), "refused: not in the federation"),
        (reply("b", n=5), "refused: counts: expected those that b was counted by, got others; have its data"),
        (reply("b", seed=5), "refused: counts: expected those that b was counted by, got others; have its data"),
        (replace(reply("b"), metrics={"flynn-party": "b", "flynn-refused": "stays"}), "declined: stays"),
        (replace(reply("b"), tensors=[b"junk"]), "refused: array 1: expected the bytes of numpy.save"),
    ],
)
def test_nobody_leaves_by_other_counts_than_their_own(wrong: Reply, reason: str) -> None:
    federation = joined(NOBODY, "a", "b", "c")
    server = Leaving(federation, 1)
    server.commit(server.check([wrong, reply("c")]))
    assert str(server.missing).find(reason) > 0
    assert server.counts == joined(NOBODY, "a", "b").counts
    assert [str(member) for member in server.federation("2").members] == ["a", "b"]


def test_nobody_leaves_twice_in_one_batch_or_two() -> None:
    federation = joined(NOBODY, "a", "b")
    server = Leaving(federation, 1)
    server.commit(server.check([reply("b"), reply("b"), reply("b", cid="77")]))
    server.commit(server.check([reply("b", cid="78")]))
    assert server.counts == joined(NOBODY, "a").counts
    assert set(server.missing.values()) == {"refused: not in the federation"}


def test_checking_who_leaves_changes_nothing_until_it_is_committed() -> None:
    server = Leaving(joined(NOBODY, "a", "b"), 1)
    server.check([reply("b")])
    assert len(server.federation("2").members) == 2
    assert after(server, reply("b", cid="77")).counts == joined(NOBODY, "a").counts


def test_who_was_added_by_a_secure_sum_cannot_be_taken_out() -> None:
    federation = joined(NOBODY, "a", "b")
    hidden = [replace(member, sizes=None, sha256=None) for member in federation.members]
    secure = Terms(SPEC, CLASSES, "secure", bound=256)
    server = Leaving(replace(federation, terms=secure, members=hidden), 1)
    server.commit(server.check([reply("b")]))
    assert "secure sum" in server.missing["b"]
    assert server.counts == federation.counts


def test_a_joining_party_has_no_more_room_than_the_sum_leaves() -> None:
    federation = joined(NOBODY, "a", "b")
    server = Joining(federation, 1)
    assert server._room == codec.capacity(HASHER) - federation.counts.n_examples


# ---- through Flower's strategy, with parties in this process


def party(name: str, **more: Any) -> FlyNNClient:
    X, y = points(len(name) + 30, ord(name[0]))
    return FlyNNClient(X, y, X_test=X, y_test=y, name=name, **more)


def run(federation: Federation | None, purpose: str, *parties: tuple[str, FlyNNClient], **more: Any) -> FlyNNStrategy:
    given: dict[str, Any] = {"spec": SPEC, "classes": CLASSES}
    if federation is not None:
        given = {"spec": federation.terms.spec, "classes": federation.terms.classes, "federation": federation}
        given["mechanism"] = federation.terms.mechanism
    given |= {"min_available_clients": len(parties), "min_parties": 1} | more
    strategy = FlyNNStrategy(**given, purpose=purpose)
    proxies = [Proxy(cid, client) for cid, client in parties]
    Server(client_manager=manager(*proxies), strategy=strategy).fit(strategy.num_rounds, timeout=None)
    return strategy


def test_a_federation_goes_on_through_runs_with_the_choice_made_anew() -> None:
    a, b, c = ((name, party(name)) for name in "abc")
    whole = run(None, "train", a, b, c)
    part = run(None, "train", a, b).federation("1")
    # Nodes have other ids now: without authentication only the names are left.
    more = run(part, "join", ("21", a[1]), ("22", b[1]), ("23", c[1]))
    assert [str(member) for member in more.federation("2").members] == ["a", "b", "c"]
    assert more.counts == whole.counts
    assert more.choice is not None
    assert whole.choice is not None
    assert (more.model.decay_, more.model.temperature_) == (whole.model.decay_, whole.model.temperature_)
    assert more.choice.examples == whole.counts.n_examples
    left = run(more.federation("2"), "withdraw", ("31", a[1]), ("32", b[1]), ("33", party("c", leaves=True)))
    assert left.counts == run(None, "train", a, b).counts
    assert left.missing == {"a": "declined: stays (leave is not set)", "b": "declined: stays (leave is not set)"}
    assert left.model.decay_ == run(None, "train", a, b).model.decay_
    again = run(left.federation("3"), "evaluate", ("41", a[1]))
    assert again.counts == left.counts
    assert (again.model.decay_, again.model.temperature_) == (left.model.decay_, left.model.temperature_)
    assert again.evaluation is not None
    assert again.evaluation["examples"] == 31


def test_a_federation_is_kept_with_the_read_out_of_the_last_run(tmp_path: Path) -> None:
    part = run(None, "train", ("1", party("a")), ("2", party("b"))).federation("1")
    for purpose, who in (("join", party("c")), ("withdraw", party("b", leaves=True))):
        strategy = run(part, purpose, ("3", who), rule="novelty", decay=0.25)
        strategy.federation("2").save(tmp_path / "f.npz")
        after = Federation.load(tmp_path / "f.npz")
        assert (after.rule, after.decay, after.decay_) == ("novelty", 0.25, 0.25)
        assert (after.model.rule, after.model.decay_) == (strategy.model.rule, strategy.model.decay_)


def test_a_run_that_nobody_joins_or_leaves_has_no_model() -> None:
    federation = run(None, "train", ("a", party("a"))).federation("1")
    for purpose in ("join", "withdraw"):
        with pytest.raises(AggregationError, match=r"^0 of at least 1 parties counted; missing: "):
            run(federation, purpose, ("1", party("a"))).federation("2")


def test_a_party_that_leaves_is_in_no_other_counting() -> None:
    strategy = run(None, "train", ("1", party("a", leaves=True)), ("2", party("b")))
    assert strategy.missing == {"a": "declined: leave: takes part in nothing else"}


def test_a_private_party_leaves_by_the_very_release_it_sent(tmp_path: Path) -> None:
    mechanism = SimulatedRelease(LaplaceCounts.for_spec(SPEC, 3, 1.0), seed=1)

    def private(name: str, **more: Any) -> FlyNNClient:
        return party(name, budget=Budget(tmp_path / name, Policy(1.0, mechanisms=["simulated"])), **more)

    a, b = ("1", private("a")), ("2", private("b"))
    whole = run(None, "train", a, b, mechanism=mechanism).federation("1")
    alone = run(None, "train", a, mechanism=mechanism)
    spent = Budget(tmp_path / "b", Policy(1.0)).spent()
    left = run(whole, "withdraw", ("5", private("a")), ("6", private("b", leaves=True)))
    assert left.counts == alone.counts
    assert left.counts.noise == alone.counts.noise
    assert Budget(tmp_path / "b", Policy(1.0)).spent() == spent
    nobody = run(left.federation("2"), "withdraw", ("7", private("a", leaves=True))).federation("3")
    nobody.save(tmp_path / "nobody.npz")
    again = run(Federation.load(tmp_path / "nobody.npz"), "join", ("8", private("a")))
    assert again.counts == alone.counts
    assert again.federation("4").guarantee == again.model.guarantee_ == mechanism.guarantee()
    newcomer = private("c", leaves=True)
    refused = run(left.federation("2"), "withdraw", ("7", newcomer))
    assert refused.missing == {"c": "declined: this request was never answered: there is nothing to take out"}
    assert Budget(tmp_path / "c", Policy(1.0)).spent() == (0.0, 0.0)
    rejoined = run(left.federation("2"), "join", ("8", private("a")), ("9", private("b")))
    assert rejoined.counts == whole.counts


@pytest.mark.parametrize("purpose", ["join", "withdraw", "evaluate", "drop", None])
def test_a_purpose_and_a_federation_go_together(purpose: Any) -> None:
    with pytest.raises(ConfigError, match=r"^(purpose|federation): "):
        FlyNNStrategy(spec=SPEC, classes=CLASSES, min_available_clients=1, min_parties=1, purpose=purpose)
    with pytest.raises(ConfigError, match=r"^federation: expected none with purpose = train, got Federation"):
        FlyNNStrategy(spec=SPEC, classes=CLASSES, min_available_clients=1, min_parties=1, federation=NOBODY)


def test_other_terms_than_the_federation_s_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected those of the federation"):
        run(NOBODY, "join", spec=replace(SPEC, seed=8), min_available_clients=1)


def test_a_standing_federation_asks_nobody() -> None:
    server = Standing(joined(NOBODY, "a"), 1)
    assert server.enough
    assert (server.is_due("97"), server.is_due("1"), server.is_counted("97")) == (False, False, True)
    assert server.federation("2").members == joined(NOBODY, "a").members


def test_two_that_stand_for_one_member_have_one_say() -> None:
    server = Joining(joined(NOBODY, "a"), 1)
    server.check([reply("a", cid="55"), reply("a", cid="56")])
    server.commit(server.check([reply("a", cid="55"), reply("a", cid="56")]))
    sizes = server.sizes_of("55")
    assert sizes is not None
    np.testing.assert_array_equal(sizes, server.before.members[0].sizes)
    assert server.sizes_of("56") is None
