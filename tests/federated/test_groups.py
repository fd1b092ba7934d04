"""Groups of parties: their sums add up to the plain sum, and the server's samples decide which of them stay in it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.groups import MOST_GROUPS, GroupedCounts, Grouping, Judge
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phases.counts import no_counts
from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.counts import ClassCounts, CountsOfSpecs
from flwr_flynn.privacy import LaplaceCounts
from tests.federated.runs import AUTO, DRIVERS, GRID, LABELS, NAMES, TRAINING, Exchange, X, options_for, sha256, shares
from tests.raising import raises

SEED = "5e" * 16
SPEC = GRID[1]
OWN = np.flatnonzero(~TRAINING)[::3]  # the server's samples: of every class
TRUSTED = (X[OWN], LABELS[OWN])
GROUPED: dict[str, Any] = {"groups": 6, "trusted": TRUSTED, "group_seed": SEED}


def lying(part: dict[str, Any], times: int = 4) -> dict[str, Any]:
    """The samples of a party that calls each class the next, and claims each sample several times."""
    named = np.array([*NAMES[1:], NAMES[0]])[np.searchsorted(NAMES, part["y"])]
    return part | {"X": np.repeat(part["X"], times, axis=0), "y": np.repeat(named, times)}


@cache
def parts(n: int = 8, liars: tuple[int, ...] = (1, 4)) -> list[dict[str, Any]]:
    return [lying(part) if i in liars else part for i, part in enumerate(shares(n=n))]


def count(part: dict[str, Any]) -> ClassCounts:
    return ClassCounts.from_data(flynn_hash(SPEC), part["X"], np.searchsorted(NAMES, part["y"]), 3)


def of(counts: ClassCounts) -> CountsOfSpecs:
    return CountsOfSpecs((counts,))


def judge(trusted: Any = TRUSTED) -> Judge:
    return Judge(RunOptions(**options_for(SPEC)).run_spec, trusted)


# ---- the groups


@given(st.integers(1, MOST_GROUPS), st.text(max_size=20), st.binary(min_size=16, max_size=64))
def test_a_group_follows_from_key_and_node_alone(n_groups: int, cid: str, key: bytes) -> None:
    grouping = Grouping(n_groups, key.hex())
    assert 0 <= grouping.of(cid) < n_groups
    assert grouping.of(cid) == Grouping(n_groups, key.hex()).of(cid)


def test_another_key_makes_other_groups_and_every_group_is_drawn() -> None:
    cids = [str(i) for i in range(600)]
    one, other = ([Grouping(6, key).of(cid) for cid in cids] for key in (SEED, "5f" * 16))
    assert np.mean(np.equal(one, other)) < 0.3
    assert min(np.bincount(one, minlength=6)) > 60


def test_a_run_without_a_key_draws_a_new_one() -> None:
    seeds = set()
    for _ in range(3):
        grouping = RunOptions(**options_for(SPEC, **GROUPED | {"group_seed": None})).grouping
        seeds.add(grouping.seed)
    assert len(seeds) == 3


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=12),
    st.lists(st.sets(st.integers(0, 3)), max_size=3),
)
def test_sums_of_groups_add_up_to_the_plain_sum_whatever_is_left_out(
    members: list[tuple[int, int]], choices: list[set[int]]
) -> None:
    zero = no_counts(RunOptions(**options_for(SPEC)).run_spec)
    total, plain = GroupedCounts(zero.parts), zero
    for index, number in members:
        counts = of(count(parts()[number]))
        total, plain = total + GroupedCounts(counts.parts, {index: counts}), plain + counts
    assert CountsOfSpecs(total.parts) == plain
    assert set(total.groups) == {index for index, _ in members}
    for chosen in choices:
        total = total.leaving_out(chosen & set(total.groups))
        kept = zero
        for index, number in members:
            kept = kept + of(count(parts()[number])) if index not in chosen else kept
        assert CountsOfSpecs(total.parts) == kept
        assert total.left_out == chosen & set(total.groups)
        again = total + GroupedCounts(zero.parts)  # later parties come to all groups
        assert (CountsOfSpecs(again.parts), again.left_out) == (plain, frozenset())


def test_one_party_changes_its_own_group_alone() -> None:
    honest = federate(RunOptions(**options_for(SPEC, **GROUPED)), [party_of(**p) for p in parts(liars=())])
    lied = federate(RunOptions(**options_for(SPEC, **GROUPED)), [party_of(**p) for p in parts(liars=(3,))])
    sums = [run.state.results["counts"].groups for run in (honest, lied)]
    assert {index for index in sums[0] if sums[0][index] != sums[1][index]} == {Grouping(6, SEED).of("3")}


# ---- the judgement


def loss(counts: ClassCounts | None) -> np.ndarray[Any, Any]:
    """Losses of the server's samples, in plain NumPy."""
    zero = no_counts(RunOptions(**options_for(SPEC)).run_spec).parts[0]
    counts = zero if counts is None else counts
    rates = np.log((counts.array + 0.1) / (counts.n_per_class[:, None] + 0.1 * SPEC.hash_dim / SPEC.hash_nnz)).T
    scores = np.array([rates[bits].sum(axis=0) for bits in flynn_hash(SPEC).active(TRUSTED[0])]) / (SPEC.hash_nnz / 2)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return -np.maximum(scores[np.arange(len(OWN)), np.searchsorted(NAMES, TRUSTED[1])], -20)


def searched(sums: dict[int, ClassCounts], start: set[int]) -> tuple[float, set[int]]:
    """The search in its slowest form: every sum is made anew."""

    def total(indices: set[int]) -> np.ndarray[Any, Any]:
        chosen = [sums[i] for i in sorted(indices)]
        return loss(sum(chosen[1:], chosen[0]) if chosen else None)

    inside, now = set(start), total(start)
    while True:
        candidates = sorted(inside if start else set(sums) - inside)
        tried = {i: total(inside ^ {i}) for i in candidates}
        if not tried:
            break
        best = min(candidates, key=lambda i: tried[i].mean())
        gain = now - tried[best]
        error = gain.std(ddof=1) / math.sqrt(len(gain))
        if gain.mean() <= (error if start else -error):
            break
        inside, now = inside ^ {best}, tried[best]
    return now.mean(), set(sums) - inside


@pytest.mark.parametrize("liars", [(), (1,), (1, 4), (0, 2, 5), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("n_groups", [3, 6, 40])
def test_the_groups_left_out_are_those_of_a_slow_search(liars: tuple[int, ...], n_groups: int) -> None:
    total = GroupedCounts(no_counts(RunOptions(**options_for(SPEC)).run_spec).parts)
    for cid, part in enumerate(parts(liars=liars)):
        counts = of(count(part))
        total += GroupedCounts(counts.parts, {Grouping(n_groups, SEED).of(str(cid)): counts})
    sums = {index: counts.parts[0] for index, counts in total.groups.items()}
    expected = min((searched(sums, start) for start in (set(sums), set())), key=lambda found: found[0])[1]
    assert judge().harmful_groups(total) == expected
    # No order of the groups changes it.
    backwards = GroupedCounts(total.parts, dict(reversed(total.groups.items())))
    assert judge().harmful_groups(backwards) == expected


def test_liars_alone_in_their_groups_are_left_out() -> None:
    run = federate(RunOptions(**options_for(SPEC, **GROUPED | {"groups": 250})), [party_of(**p) for p in parts()])
    alone = Grouping(250, SEED)
    assert len({alone.of(str(i)) for i in range(8)}) == 8
    assert {member.node for member in run.left_out} >= {"1", "4"}
    plain = federate(RunOptions(**options_for(SPEC)), [party_of(**p) for p in parts()])
    held = np.setdiff1d(np.flatnonzero(~TRAINING), OWN)
    assert run.model.score(X[held], LABELS[held]) > plain.model.score(X[held], LABELS[held])


def test_groups_without_samples_stay_and_stop_no_search() -> None:
    some = parts(liars=(1, 4))
    empty = [{"X": part["X"][:0], "y": part["y"][:0]} for part in some[:4]]
    options = RunOptions(**options_for(SPEC, **GROUPED | {"groups": 250}))
    without = federate(options, [party_of(**part) for part in some])
    run = federate(replace(options, min_parties=12), [party_of(**part) for part in [*some, *empty]])
    assert len({options.grouping.of(str(i)) for i in range(12)}) == 12
    assert [member.node for member in run.left_out] == [member.node for member in without.left_out]


def test_a_saved_sum_is_judged_with_the_groups_and_never_left_out() -> None:
    zero = no_counts(RunOptions(**options_for(SPEC)).run_spec)
    good, bad = (of(count(lying(part) if lies else part)) for part, lies in zip(parts(liars=()), (0, 1), strict=False))
    total = GroupedCounts((zero + good).parts) + GroupedCounts(bad.parts, {5: bad})
    found = total.leaving_out(judge().harmful_groups(total))
    assert CountsOfSpecs(found.parts) == good


# ---- whole runs


@pytest.mark.parametrize("spec", [SPEC, HashPlan(4, 3, 120, ranges=((4.0, 2.0, 1.0, 0.0), (8.0, 5.0, 7.0, 3.0)))])
def test_all_drivers_end_with_the_sum_of_the_groups_that_stay(spec: Any) -> None:
    options = options_for(spec, **GROUPED)
    runs = [drive(options, parts()) for drive in DRIVERS.values()]
    (model,) = {sha256(run.model) for run in runs}
    for run in runs:
        gone = {member.node for member in run.left_out}
        assert gone  # the two liars are in some groups
        kept = [part for i, part in enumerate(parts()) if str(i) not in gone]
        without = federate(RunOptions(**options_for(spec, fraction_evaluate=0.0)), [party_of(**p) for p in kept])
        assert run.counts == without.counts
        assert sha256(without.model) == model
        assert len(run.counted) == 8
        assert run.num_rounds == 1
        assert run.state.results["evaluation"].figures is not None


def test_without_liars_and_with_all_in_one_group_it_is_the_plain_sum() -> None:
    for changes in ({}, GROUPED | {"groups": 1}):
        run = federate(RunOptions(**options_for(SPEC, decay=0.5, **changes)), [party_of(**p) for p in parts(liars=())])
        assert run.counts == sum((count(p) for p in parts(liars=())[1:]), count(parts(liars=())[0]))
        assert run.left_out == []


def test_late_parties_come_to_their_groups_and_all_are_judged_again() -> None:
    parties = {str(i): party_of(**part, name=f"party-{i}", min_examples=1) for i, part in enumerate(parts())}
    steps = Exchange(Run(RunOptions(**options_for(SPEC, **GROUPED))), parties)
    for present in (["0", "1", "2"], ["3", "4"], list(parties)):
        steps.step(TRAIN, present)
        steps.step(EVALUATE, present)
    at_once = federate(RunOptions(**options_for(SPEC, **GROUPED)), list(parties.values()))
    assert steps.run.counts == at_once.counts
    assert {m.node for m in steps.run.left_out} == {m.node for m in at_once.left_out}


@pytest.mark.parametrize("min_parties", [4, 8])
def test_late_parties_of_a_run_that_goes_on_are_judged(min_parties: int, tmp_path: Path) -> None:
    everybody = [party_of(**part, name=f"party-{i}", min_examples=1) for i, part in enumerate(parts(8, (5, 7)))]
    parties = {str(i): party for i, party in enumerate(everybody)}
    grouped = GROUPED | {"groups": 250}
    first = Exchange(Run(RunOptions(**options_for(SPEC, **grouped, min_parties=6))), parties)
    first.step(TRAIN, list("0123"))
    first.run.federation("first").save(tmp_path / "federation.npz")
    saved = Federation.load(tmp_path / "federation.npz")
    assert saved.phase == "counts"
    options = options_for(SPEC, **grouped, federation=saved, purpose="resume", min_parties=min_parties)
    steps = Exchange(Run(RunOptions(**options)), parties)
    steps.rounds(3)
    assert {"5", "7"} <= {member.node for member in steps.run.left_out}
    at_once = federate(RunOptions(**options_for(SPEC, **grouped)), everybody)
    assert steps.run.counts == at_once.counts


def test_the_file_has_the_parties_that_stay_and_others_join_it_in_groups(tmp_path: Path) -> None:
    everybody = [party_of(**part, name=f"party-{i}", min_examples=1) for i, part in enumerate(parts(10, (1, 4, 9)))]
    run = federate(RunOptions(**options_for(SPEC, **GROUPED)), everybody[:8])
    gone = {member.name for member in run.left_out}
    run.federation("first").save(tmp_path / "federation.npz")
    saved = Federation.load(tmp_path / "federation.npz")
    assert {member.name for member in saved.members} == {f"party-{i}" for i in range(8)} - gone
    assert sha256(saved.model) == sha256(run.model)
    # Those that were left out are in no sum: they may come again, and are judged again.
    options = options_for(SPEC, **GROUPED | {"groups": 100}, federation=saved, purpose="join")
    steps = Exchange(Run(RunOptions(**options)), {str(100 + i): party for i, party in enumerate(everybody)})
    steps.rounds()
    joined = {member.name for member in steps.run.federation("second").members}
    assert joined == {f"party-{i}" for i in range(10)} - {member.name for member in steps.run.left_out}
    assert "party-9" not in joined
    assert set(steps.run.counted.missing) == {f"party-{i}" for i in range(8)} - gone  # in it already


def test_a_member_leaves_a_sum_that_was_made_of_groups() -> None:
    parties = [party_of(**part, name=f"party-{i}", min_examples=1) for i, part in enumerate(parts())]
    run = federate(RunOptions(**options_for(SPEC, **GROUPED)), parties)
    stays = [i for i in range(8) if str(i) not in {member.node for member in run.left_out}]
    leaver = party_of(**parts()[stays[0]], name=f"party-{stays[0]}", min_examples=1, leaves=True)
    options = options_for(SPEC, federation=run.federation("first"), purpose="withdraw")
    after = Exchange(Run(RunOptions(**options)), {str(stays[0]): leaver}).rounds()
    assert after.counts == run.counts - count(parts()[stays[0]])


# ---- refusals


@pytest.mark.parametrize(
    ("spec", "changes", "field"),
    [
        (SPEC, {"groups": -1}, "groups"),
        (SPEC, {"groups": MOST_GROUPS + 1}, "groups"),
        (SPEC, {"groups": 0}, "trusted"),
        (SPEC, {"trusted": None}, "trusted"),
        (SPEC, {"trusted": TRUSTED[0]}, "trusted"),
        (SPEC, {"group_seed": "5e"}, "group_seed"),
        (SPEC, {"group_seed": "5E" * 16}, "group_seed"),
        (SPEC, {"group_seed": 7}, "group_seed"),
        (AUTO, {}, "groups"),
        (GRID, {}, "groups"),
        (SPEC, {"gram": 16}, "groups"),
        (SPEC, {"mechanism": LaplaceCounts(1.0, hash_nnz=SPEC.hash_nnz, n_classes=3)}, "groups"),
        (SPEC, {"secure_bound": 64, "min_parties": 3}, "groups"),
    ],
)
def test_what_groups_do_not_protect_is_refused(spec: Any, changes: dict[str, Any], field: str) -> None:
    with raises(ConfigError, field=field):
        RunOptions(**options_for(spec, **GROUPED | changes))


@pytest.mark.parametrize("purpose", ["withdraw", "evaluate"])
def test_groups_are_for_parties_that_come(purpose: str) -> None:
    federation = federate(RunOptions(**options_for(SPEC)), [party_of(**p) for p in parts(liars=())]).federation("a")
    with raises(ConfigError, field="groups"):
        RunOptions(**options_for(SPEC, **GROUPED, federation=federation, purpose=purpose))


@pytest.mark.parametrize(
    "trusted",
    [
        (X[OWN], LABELS[OWN][1:]),
        (X[OWN][:1], LABELS[OWN][:1]),
        (X[OWN][:0], LABELS[OWN][:0]),
        (X[OWN][:, :3], LABELS[OWN]),
        (np.full((3, 4), np.nan), LABELS[:3]),
        (X[OWN], np.arange(len(OWN)) + 7),
        (X[OWN], np.full(len(OWN), "rose")),
        (X[OWN][LABELS[OWN] != LABELS[0]], LABELS[OWN][LABELS[OWN] != LABELS[0]]),
    ],
)
def test_samples_of_the_server_that_do_not_fit_are_refused(trusted: Any) -> None:
    with pytest.raises(DataError):
        RunOptions(**options_for(SPEC, **GROUPED | {"trusted": trusted}))


def test_a_federation_of_liars_alone_is_left_out_whole() -> None:
    run = federate(RunOptions(**options_for(SPEC, **GROUPED)), [party_of(**lying(p)) for p in parts(liars=())])
    assert len(run.left_out) == 8
    assert run.counts.n_examples == 0
