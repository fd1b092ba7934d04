"""Rules of a run about lost, late and refusing parties, and about members.

A run is saved and resumed, and members join and leave.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.disclosure import Content
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, Samples
from flwr_flynn.federated.protocol import EVALUATE, PHASE, REFUSED, TRAIN, Reply, merged
from flwr_flynn.federated.roster import Failures
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.traffic import Arrivals, Traffic
from flwr_flynn.model.candidates import suggest_decay
from flwr_flynn.model.selection import fit_members
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import CLASSES, SPEC, counts_of, federation_of, good_reply, points
from tests.federated.runs import (
    AUTO,
    DRIVERS,
    DUE,
    GRID,
    TRAINING,
    Exchange,
    X,
    Y,
    exchange,
    in_process,
    options_for,
    renamed,
    sha256,
    shares,
)
from tests.raising import raises

(POOLED,) = fit_members(GRID, X[TRAINING], Y[TRAINING], 3)


# ---- the plan and its rounds


ROUNDS = [
    (GRID[0], {"decay": 0.5}, 1),
    (GRID[0], {}, 3),
    (GRID, {"decay": 0.5}, 2),
    (GRID, {"fraction_evaluate": 0}, 1),
    (AUTO, {"decay": 0.5}, 3),
    (AUTO, {}, 4),
]


@pytest.mark.parametrize(("spec", "changes", "rounds"), ROUNDS)
def test_the_rounds_of_a_run_are_known_before_it_begins(spec, changes, rounds):
    steps = exchange(spec, **changes)
    assert steps.run.num_rounds == rounds
    run = steps.rounds()
    assert run.counts.n_examples == 120
    assert ("evaluation" in run.state.results) == (
        changes.get("fraction_evaluate") != 0
    )
    model = sha256(run.model)
    asked = list(steps.asked)
    # More rounds ask nobody and change nothing.
    steps.rounds(2)
    assert sha256(run.model) == model
    assert steps.asked == asked


def test_nobody_is_asked_before_the_phases_that_lead_there():
    steps = exchange(AUTO)
    for phase in ("columns", "counts", "selection", "calibration"):
        assert steps.step(EVALUATE) is None
        steps.step(TRAIN)
        assert steps.asked[-1][0] == phase
    assert steps.step(TRAIN) is None
    steps.step(EVALUATE)
    assert steps.asked[-1][0] == "evaluation"
    assert steps.step(DUE) is None
    assert steps.run.complete([], Failures()) is None


def replies_of(steps: Exchange, asked: str = "0123") -> list[Reply]:
    """The replies of all parties to a request that some of them are asked."""
    ask = steps.run.ask(TRAIN, list(asked))
    return [steps.reply(ask, cid) for cid in steps.parties]


@pytest.mark.parametrize("asked", ["0123", "01"])
def test_late_replies_and_those_of_parties_that_were_not_asked_change_nothing(
    asked,
):
    steps = exchange(GRID)
    replies = replies_of(steps, asked)
    outcome = steps.run.complete(replies[:3], Failures())
    assert list(outcome.batch.passed) == list(asked[:3])
    missing = []
    if "3" in asked:
        missing.append("node 3")
    assert list(outcome.missing) == missing
    before = steps.run.counts.sha256()
    assert steps.run.complete(replies[3:], Failures()) is None
    assert steps.run.counts.sha256() == before


def test_config_keys_of_this_package_are_not_the_user_s():
    assert merged({"lr": 0.1}, {PHASE: "counts"}) == {"lr": 0.1, PHASE: "counts"}
    with raises(ConfigError, field="config", got="flynn-specs"):
        merged({"flynn-specs": "x"}, {})


def test_traffic_is_told_per_party():
    traffic = Traffic()
    assert traffic.per_party == {"up": 0, "down": 0}
    traffic.ask(2, [b"123"], {"a": "é", "b": 1, "c": b"12"})
    traffic.arrivals += Arrivals.of(
        [Content(("d",), None)], Reply("1", [b"12345"], 1, {"d": 0.5})
    )
    assert traffic.per_party == {"up": 14, "down": 18}


# ---- counting goes on


def test_whoever_is_there_after_the_counting_is_not_counted_and_may_join():
    steps = exchange(GRID)
    steps.step(TRAIN, "012")
    steps.rounds()
    assert steps.asked == [
        ("counts", [*"012"]),
        ("selection", [*"012"]),
        ("calibration", [*"012"]),
        ("evaluation", [*"0123"]),
    ]
    saved = steps.run.federation("1")
    joining = options_for(saved.run_spec.specs, federation=saved, purpose="join")
    joined = Exchange(Run(RunOptions(**joining)), steps.parties).rounds()
    assert joined.counts == exchange(GRID).rounds().counts


def test_the_phases_after_the_counts_wait_for_enough_parties():
    steps = exchange(GRID, min_parties=3)
    steps.step(TRAIN, "01")
    assert steps.step(EVALUATE) is None
    with raises(AggregationError, counted=2, min_parties=3):
        _ = steps.run.model
    steps.step(TRAIN, "012")
    assert steps.step(DUE) is not None
    assert steps.run.model.counts_.n_examples > 0


def test_with_a_round_less_there_is_a_model_and_no_figures():
    run = exchange(GRID).rounds(1)
    member = run.model.model_.member
    assert member.spec == GRID[0]
    assert member.scoring.decay == suggest_decay(run.counts)
    assert run.state.results.keys() == {"counts"}


def test_an_error_in_the_user_s_function_changes_nothing():
    steps = exchange(GRID[0], decay=0.5)
    replies = replies_of(steps)
    run = steps.run

    def state() -> Any:
        n_replied = run.traffic["counts"].arrivals.parties
        return dict(run.state.results), run.counted.missing, n_replied

    before = state()
    with pytest.raises(ZeroDivisionError):
        run.complete(replies, Failures(), lambda _: {"x": 1 / 0})
    assert state() == before
    outcome = run.complete(replies, Failures())
    assert outcome.batch.repeated == []
    assert run.counts.n_examples == 120


# ---- failures and their senders


def test_a_failure_and_a_silence_are_told_of_their_senders():
    reasons = Failures({"1": "failed: x\n"}).reasons(["2"])
    assert reasons == {"1": "failed: x", "2": "no reply"}


def test_a_failure_without_a_name_is_of_the_only_one_who_did_not_reply():
    reasons = Failures(unnamed=["bad\0file"]).reasons(["2"])
    assert reasons == {"2": "failed: badfile"}


def test_a_failure_without_a_name_may_be_of_anybody_who_did_not_reply():
    unsure = "no reply or a failure (1 without a name, the first: bad file)"
    reasons = Failures(unnamed=["bad file"]).reasons(["2", "3"])
    assert reasons == {"2": unsure, "3": unsure}


def test_of_a_long_failure_the_start_and_the_end_are_told():
    named = f"failed: Traceback {'line, ' * 100} ValueError: cause"
    unnamed = f"Other {'line, ' * 100} KeyError: x"
    reasons = Failures({"1": named}, [unnamed]).reasons(["2"])
    assert reasons["1"].startswith("failed: Traceback")
    assert reasons["1"].endswith("ValueError: cause")
    assert reasons["2"].startswith("failed: Other")
    assert reasons["2"].endswith("KeyError: x")
    assert max(map(len, reasons.values())) <= 200


# ---- members that join and leave

NOBODY = federation_of(
    RunOptions(SPEC, CLASSES, 1).run_spec,
    Run(RunOptions(SPEC, CLASSES, 1)).totals,
    (),
    (POOLED.scoring,),
)


def reply(
    name: str, cid: str | None = None, n: int | None = None, seed: int | None = None
) -> Reply:
    """A party whose samples follow from its name."""
    if n is None:
        n = len(name) + 3
    if seed is None:
        seed = ord(name[0])
    return good_reply(
        cid or str(ord(name[0])),
        n,
        seed,
        flynn_party=name,
        flynn_member=f"secret of {name}",
    )


def changed(
    before: Federation, purpose: str, *replies: Reply, batches: int = 1, **more: Any
) -> Run:
    """A run that these replies come to, without the phases after the counting."""
    options = RunOptions(
        SPEC,
        CLASSES,
        1,
        federation=before,
        purpose=purpose,
        fraction_evaluate=0,
        **more,
    )
    run = Run(options)
    for places in np.array_split(np.arange(len(replies)), batches):
        batch = [replies[i] for i in places]
        if run.ask(TRAIN, [reply.cid for reply in batch]) is not None:
            run.complete(batch, Failures())
    return run


def joined(*names: str) -> Federation:
    return changed(NOBODY, "join", *map(reply, names)).federation("1")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_bad_reply_before_a_good_one_of_the_same_party_costs_nobody_anything(
    at_once,
):
    bad: Any = replace(good_reply("1"), tensors=[b"junk", None, b""])
    good = good_reply("1")
    run = Run(RunOptions(SPEC, CLASSES, 1, decay=0.5))
    run.ask(TRAIN, ["1"])
    if at_once:
        run.receive([bad, good])
    else:
        run.receive([bad])
        run.receive([good])
    assert run.complete([], Failures()).missing == {}
    assert run.counts == counts_of(*points(5))
    assert run.traffic["counts"].arrivals.bytes == good.n_bytes


AGAIN = {
    "party-id": reply("a", cid="555"),
    "node": reply("other", cid="97"),
    "key": renamed(reply("zed", cid="556"), "key-556"),
}
"""Replies of the party "a" by what shows that it is the same."""


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_nobody_joins_twice_whatever_they_are_known_by(again):
    keys = {"97": "a" * 64, "key-556": "a" * 64}
    identify = lambda cid: keys.get(cid, "")  # noqa: E731
    federation = changed(NOBODY, "join", reply("a"), identify=identify).federation("1")
    run = changed(federation, "join", again, reply("b"), identify=identify)
    assert [str(member) for member in run.federation("2").members] == ["a", "b"]
    assert run.counts == federation.counts + counts_of(*points(4, ord("b")))


OTHER_COUNTS = "refused: counts: expected those that b was counted by"
STAYS = {"flynn-party": "b", REFUSED: "stays"}
NO_LEAVERS = {
    "no member": (reply("zoe"), "refused: not in the federation"),
    "more samples": (reply("b", n=5), OTHER_COUNTS),
    "other samples": (reply("b", seed=5), OTHER_COUNTS),
    "a refusal": (replace(reply("b"), metrics=STAYS), "declined: stays"),
    "junk": (replace(reply("b"), tensors=[b"junk"]), "refused: array 1: expected"),
}


@pytest.mark.parametrize(("wrong", "reason"), NO_LEAVERS.values(), ids=NO_LEAVERS)
def test_nobody_leaves_by_other_counts_than_their_own(wrong, reason):
    run = changed(joined("a", "b", "c"), "withdraw", wrong, reply("c"))
    assert str(run.counted.missing).find(reason) > 0
    assert run.counts == joined("a", "b").counts
    assert [str(member) for member in run.federation("2").members] == ["a", "b"]


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_nobody_leaves_twice_in_one_batch_or_several(batches):
    again = [reply("b"), reply("b"), reply("b", cid="77"), reply("b", cid="78")]
    run = changed(joined("a", "b"), "withdraw", *again, batches=batches)
    assert run.counts == joined("a").counts
    assert [str(member) for member in run.federation("2").members] == ["a"]


def test_two_that_stand_for_one_member_count_once():
    saved = replace(joined("a"), phase="selection", is_selected=False)
    run = Run(RunOptions(SPEC, CLASSES, 1, federation=saved, purpose="resume"))
    assert [phase.name for phase in run.phases] == [
        "selection",
        "calibration",
        "evaluation",
    ]
    X, y = points(4, ord("a"))
    parties = {cid: party_of(X, y, name="a") for cid in ("55", "56")}
    outcome = Exchange(run, parties).step(TRAIN)
    assert list(outcome.batch.passed) == ["55"]
    assert run.state.results["selection"].examples == 4
    assert run.state.missing["selection"].keys() == {"a (node 56)"}


# The runs in one process are those of test_run_laws.
@pytest.mark.parametrize("driver", ["legacy", "message"])
def test_every_driver_serves_every_purpose(driver):
    parts = shares()
    drive = DRIVERS[driver]

    def go(before: Federation, purpose: str, parts: Any = parts) -> Run:
        specs = before.run_spec.specs
        return drive(options_for(specs, federation=before, purpose=purpose), parts)

    part = in_process(options_for(GRID[0]), parts[:3])
    whole = in_process(options_for(GRID[0]), parts)
    more = go(part.federation("1"), "join")
    assert more.traffic["counts"].asked == 1
    assert sha256(more.model) == sha256(whole.model)
    leaver = {**parts[3], "leaves": True}
    left = go(more.federation("2"), "withdraw", [*parts[:3], leaver])
    assert sha256(left.model) == sha256(part.model)
    assert left.federation("3").counts == part.counts
    seen = go(part.federation("1"), "evaluate")
    assert sha256(seen.model) == sha256(part.model)
    assert seen.state.results["evaluation"].figures["examples"] == 30
    # This run stops after the columns and the counts.
    steps = exchange(AUTO)
    steps.rounds(2)
    rest = go(steps.run.federation("1"), "resume")
    whole = in_process(options_for(AUTO), parts)
    assert sha256(rest.model) == sha256(whole.model)
    figures = whole.state.results["evaluation"].figures
    assert rest.state.results["evaluation"].figures == figures


@pytest.mark.parametrize(("purpose", "who"), [("join", "a"), ("withdraw", "z")])
def test_a_run_that_nobody_joins_or_leaves_has_no_model(purpose, who):
    run = changed(joined("a"), purpose, reply(who))
    with raises(AggregationError, counted=0, min_parties=1):
        _ = run.model


ULM = points(40)
BONN = points(30, 5)


def with_ulm(before: Federation | None, purpose: str, **parties: Party) -> Run:
    """A run of parties by their nodes."""
    options = RunOptions(
        SPEC,
        CLASSES,
        1,
        federation=before,
        purpose=purpose,
        fraction_evaluate=0.0,
        decay=0.5,
    )
    return Exchange(Run(options), parties).rounds()


def of_ulm_and_bonn() -> Federation:
    """A federation of two, whose nodes are n1 and n2."""
    ulm = party_of(*ULM, name="Ulm", member="a secret of Ulm")
    bonn = party_of(*BONN, name="Bonn")
    return with_ulm(None, "train", n1=ulm, n2=bonn).federation("1")


CHANGES_OF_MEMBERS = {
    "withdraw": {"leaves": True},
    "update": {"previous": Samples(*ULM)},
}
"""Options of a party that takes part in a run of the purpose."""


@pytest.mark.parametrize("purpose", CHANGES_OF_MEMBERS)
@pytest.mark.parametrize("member", ["", "another", "its proof"])
def test_a_member_is_not_withdrawn_by_its_name_and_counts_from_another_node(
    member, purpose
):
    """In 0.8 one of two parties could: the other's counts are the sum less its own."""
    before = of_ulm_and_bonn()
    (proof,) = [member.proof for member in before.members if member.name == "Ulm"]
    assert proof == hashlib.sha256(b"a secret of Ulm").hexdigest()
    if member == "its proof":
        # Whoever reads the file of the federation has it.
        member = proof
    options = CHANGES_OF_MEMBERS[purpose]
    forged = party_of(*ULM, name="Ulm", member=member, **options)
    refused = with_ulm(before, purpose, n9=forged)
    assert refused.totals.parts[0] == before.counts
    expected = "member: expected the node that was counted"
    assert expected in refused.counted.missing["Ulm"]


@pytest.mark.parametrize(
    ("node", "member"),
    [
        pytest.param("n1", "", id="its node"),
        pytest.param("n9", "a secret of Ulm", id="its secret"),
    ],
)
@pytest.mark.parametrize(("purpose", "n_left"), [("withdraw", 0), ("update", 39)])
def test_a_member_is_known_by_its_node_or_its_secret(purpose, n_left, node, member):
    X, y = ULM
    if purpose == "update":
        X = X[:n_left]
        y = y[:n_left]
    options = CHANGES_OF_MEMBERS[purpose]
    ulm = party_of(X, y, name="Ulm", member=member, **options)
    run = with_ulm(of_ulm_and_bonn(), purpose, **{node: ulm})
    assert run.counted.missing == {}
    assert run.totals.parts[0].n_examples == 30 + n_left


def test_a_private_party_leaves_by_the_very_release_it_sent(tmp_path):
    mechanism = SimulatedRelease(LaplaceCounts.for_spec(SPEC, 3, 1.0), seed=1)

    def go(
        before: Federation | None, purpose: str, who: dict[str, str], leaver: str = ""
    ) -> Run:
        given = {"mechanism": mechanism, "federation": before, "purpose": purpose}
        parties = {}
        for cid, name in who.items():
            options = {"name": name, "member": f"secret of {name}"}
            budget = Budget(tmp_path / name, Policy(1.0, mechanisms=["simulated"]))
            parties[cid] = party_of(
                *points(31, ord(name)), budget=budget, leaves=name == leaver, **options
            )
        return Exchange(Run(RunOptions(SPEC, CLASSES, 1, **given)), parties).rounds()

    whole = go(None, "train", {"1": "a", "2": "b"}).federation("1")
    alone = go(None, "train", {"1": "a"})
    spent = Budget(tmp_path / "b", Policy(1.0)).spent()
    left = go(whole, "withdraw", {"5": "a", "6": "b"}, leaver="b")
    assert left.counts == alone.counts
    assert left.counts.noise == alone.counts.noise
    assert Budget(tmp_path / "b", Policy(1.0)).spent() == spent
    nobody = go(left.federation("2"), "withdraw", {"7": "a"}, leaver="a").federation(
        "3"
    )
    nobody.save(tmp_path / "nobody.npz")
    again = go(Federation.load(tmp_path / "nobody.npz"), "join", {"8": "a"})
    assert again.counts == alone.counts
    assert again.model.guarantee_ == mechanism.guarantee()
    refused = go(left.federation("2"), "withdraw", {"7": "c"}, leaver="c")
    assert refused.counted.missing.keys() == {"c"}
    assert Budget(tmp_path / "c", Policy(1.0)).spent() == (0.0, 0.0)
    assert go(left.federation("2"), "join", {"8": "a", "9": "b"}).counts == whole.counts
