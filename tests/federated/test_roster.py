"""The roster of those who were asked, counted and missing.

Everybody is under a name that nobody else can take.
"""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.errors import AggregationError
from flwr_flynn.federated.protocol import MEMBER, PARTY, Reply
from flwr_flynn.federated.roster import Member, Roster, Sender, clean
from tests.memory import traced
from tests.raising import raises


def counted(**names: str) -> Roster:
    roster = Roster()
    for cid, name in names.items():
        roster.enter(Member(name, cid.removeprefix("n"), sizes=(1, 2)))
    return roster


def test_parties_are_missing_until_they_are_counted():
    roster = Roster()
    roster.ask(["1", "2", "3"])
    roster.fail("3", "failed: \x1b[31mgone\n")
    roster.introduce({"1": "Ulm"})
    roster.fail("1", "declined: no")
    assert roster.missing == {
        "Ulm": "declined: no",
        "node 2": "no reply",
        "node 3": "failed: [31mgone",
    }
    with raises(
        AggregationError, counted=0, min_parties=2, missing=roster.missing
    ) as error:
        roster.require(2)
    assert all(
        f"{name} ({reason})" in str(error.value)
        for name, reason in roster.missing.items()
    )
    for cid in "12":
        roster.enter(Member("", cid))
    assert roster.missing == {"node 3": "failed: [31mgone"}
    roster.require(2)
    roster.ask(["1"])
    roster.fail("1", "too late")
    roster.fail("4", "\x00")
    assert roster.missing == {
        "node 3": "failed: [31mgone",
        "node 4": "failed without a reason",
    }


@pytest.mark.parametrize("n", [0, 50])
def test_a_long_list_of_missing_parties_is_cut(n):
    roster = Roster()
    roster.ask(map(str, range(n)))
    missing = {f"node {cid}": "no reply" for cid in range(n)}
    with raises(AggregationError, counted=0, min_parties=1, missing=missing) as error:
        roster.require(1)
    assert str(error.value).count("no reply") == min(n, 20)


def test_no_party_passes_for_another():
    roster = counted(
        n1="Basel", n2="Basel", n3="Basel (node 1)", n4="node 5", n5="", n6="Ulm"
    )
    names = [
        "Basel (node 1)",
        "Basel (node 2)",
        "Basel (node 1) (node 3)",
        "node 5 (node 4)",
        "node 5 (node 5)",
        "Ulm",
    ]
    assert roster.names() == dict(zip("123456", names, strict=True))
    assert [str(member) for member in roster.counted] == names
    assert roster.namesakes() == {"Basel": ["1", "2"]}
    assert counted(n1="Basel", n2="").namesakes() == {}


def test_members_of_a_saved_run_are_known_by_one_thing_in_common():
    before = [Member("a", "1", key="k1"), Member("b", "2", key="k2"), Member("", "3")]
    roster = Roster(before, identify=lambda cid: {"9": "k2"}.get(cid, ""))
    found = {("1",): [0], ("9",): [1], ("8", "a"): [0], ("8",): [], ("8", ""): []}
    found[("1", "b")] = [0]  # a name is anybody's
    assert {who: roster.find(*who) for who in found} == found
    roster.introduce({"8": "b", "9": "a"})
    assert roster.find("8") == [1]
    members = {
        ("8",): before[1],
        ("1", "b"): before[0],
        ("9",): before[1],
        ("3",): before[2],
    }
    assert {who: roster.member(*who) for who in members} == members
    other = Roster(before, identify=lambda cid: "k9")
    # A node has another key after a start.
    assert other.find("7", "a") == [0]
    assert other.member("7", "a") == before[0]


def test_who_was_taken_out_is_a_member_no_more():
    roster = Roster([Member("a", "1"), Member("b", "2")])
    assert roster.staying([0, 1]) == [0, 1]
    roster.enter(Member("b", "22"), taken_out=1)
    assert roster.staying([0, 1]) == [0]
    assert roster.staying([0, 1], gone={0}) == []
    assert [str(member) for member in roster.members] == ["a"]
    assert roster.member("2") is roster.member("22") is None
    assert "22" in roster  # it is not asked again
    roster.enter(Member("c", "3"))
    assert [str(member) for member in roster.members] == ["a", "c"]


def test_a_member_is_found_without_a_look_at_all_others():
    """The server asks for each of its nodes."""
    roster = Roster([Member(f"party-{i}", str(i)) for i in range(5000)])
    with traced() as memory:
        assert roster.member("7") is roster.before[7]
    assert memory.peak < 10_000


def test_a_twin_has_the_same_name_and_counts():
    roster = Roster()
    roster.enter(Member("a", "1", sha256=("x", "y")))
    assert roster.twin("2", "a", ("x", "y")) == "1"
    for cid, name, sha256 in (
        ("1", "a", ("x", "y")),
        ("2", "b", ("x", "y")),
        ("2", "a", ("x",)),
        ("2", "a", ()),
    ):
        assert roster.twin(cid, name, sha256) is None
    # Without a name or counts nobody is anybody's twin.
    for name, sha256 in (("", ("x", "y")), ("b", ())):
        roster.enter(Member(name, "3", sha256=sha256))
        assert roster.twin("2", name, sha256) is None
    # Whichever of the two ids is the smaller one.
    assert roster.twin("0", "a", ("x", "y")) == "1"


@pytest.mark.parametrize(
    ("proof", "expected"),
    [
        ("", ""),
        (None, ""),
        (7, ""),
        (b"ab", ""),
        ("x" * 257, ""),
        ("x" * 256, hashlib.sha256(b"x" * 256).hexdigest()),
    ],
)
def test_a_proof_of_membership_is_a_short_text_that_is_known_by_its_sha256(
    proof, expected
):
    metrics = {PARTY: "Ulm", MEMBER: proof}
    assert Sender.of(Reply("1", [], 1, metrics)) == Sender("1", "Ulm", expected)


@given(st.text(), st.integers(1, 20))
def test_cleaned_text_is_one_short_printable_line(text, longest):
    line = clean(text, longest)
    assert len(line) <= longest
    assert line.isprintable()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"Basel", ""), (None, ""), ("\0" * 79 + "Basel", "B"), ("\0" * 80 + "Basel", "")],
)
def test_clean_takes_texts_alone_and_reads_no_more_than_four_times_what_is_shown(
    value, expected
):
    assert clean(value, 20) == expected
