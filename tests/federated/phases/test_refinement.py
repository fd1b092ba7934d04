"""The refinement: of any split the pooled one; who is lost, comes back or sends nonsense costs its own part alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.datasets import make_classification

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.compression import pack_signed
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.outcome import searched
from flwr_flynn.federated.phases.refinement import HeldOutRequest, RefinementRequest
from flwr_flynn.federated.protocol import EVALUATE, PHASE, REFUSED, TRAIN, Reply
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.refinement import LARGEST_WEIGHT, class_factors, held_out, start_weights
from flwr_flynn.model.refinement_search import Search, refine
from flwr_flynn.model.score_histograms import N_LEVELS, N_SUMS
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts
from tests.fakes import evaluation_of
from tests.federated.runs import Exchange, in_process, refusal, sha256, statistic_of
from tests.memory import traced
from tests.raising import raises

X, Y = make_classification(240, 4, n_informative=4, n_redundant=0, n_classes=3, random_state=1)
X = X.round(2)
NAMES = ("ash", "birch", "cedar")
LABELS = np.array(NAMES)[Y]
PLAN = HashPlan(4, 3, 240, "auto", hash_dim=64)
SPEC = HashSpec(4, 64, 2, 6, 0, signed=True)
ROUNDS = 4
REFINEMENTS = ["held-out", *(f"refinement {k}" for k in range(1, ROUNDS + 1))]
POOLED = FlyNNClassifier(hash_dim=64, refine_rounds=ROUNDS).fit(X, LABELS)
assert POOLED.model_.refined is not None

SPLITS: dict[str, list[Any]] = {
    "turns": [slice(i, None, 4) for i in range(4)],
    "one class each": [label == Y for label in range(3)],
    "one party": [slice(None)],
    "an empty one and two of one sample": [slice(0, 1), slice(0, 0), slice(1, 2), slice(2, 200), slice(200, None)],
}


def parts(split: str = "turns") -> list[dict[str, Any]]:
    return [{"X": X[rows], "y": LABELS[rows], "X_test": X[:9], "y_test": LABELS[:9]} for rows in SPLITS[split]]


def options(spec: Any = PLAN, **changes: Any) -> dict[str, Any]:
    own = {"min_parties": 1, "refine_rounds": ROUNDS}
    return {"spec": spec, "classes": NAMES, **own, **changes}


def exchange(split: str = "turns", spec: Any = PLAN, **changes: Any) -> Exchange:
    parties = {str(i): party_of(**part, name=f"party-{i}", min_examples=1) for i, part in enumerate(parts(split))}
    return Exchange(Run(RunOptions(**options(spec, **changes))), parties)


def counted(spec: Any = SPEC, **changes: Any) -> Exchange:
    """A run whose next phase is "held-out"."""
    steps = exchange(spec=spec, **{"decay": 0.5, **changes})
    steps.step(TRAIN)
    assert steps.run.due is not None
    assert steps.run.due.name == "held-out"
    return steps


def digest(run: Run) -> str:
    return run.model.model_.sha256()


# ---- the pooled model


@pytest.mark.parametrize("changes", [{}, {"decay": 0.5}, {"rule": "bayes"}], ids=str)
def test_a_spec_of_one_s_own_is_refined_alike(changes: dict[str, Any]) -> None:
    run = in_process(options(SPEC, **changes), parts())
    pooled = FlyNNClassifier(SPEC, refine_rounds=ROUNDS, **changes).fit(X, LABELS).model_
    assert run.model.model_.refined is not None
    for mine, theirs in zip(run.model.model_.refined, pooled.refined or (), strict=True):
        assert_array_equal(mine, theirs)


def test_a_search_that_is_done_early_leaves_the_other_rounds_out(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Search.advance

    def once(self: Search, total: Any, answered: frozenset[str] = frozenset()) -> Search:
        return replace(take(self, total, answered), is_done=True)

    monkeypatch.setattr(Search, "advance", once)
    run = exchange().rounds()
    assert not set(REFINEMENTS[2:]) & set(run.traffic)
    assert set(REFINEMENTS) <= set(run.state.results)
    assert run.state.results["evaluation"].figures is not None
    search = searched(run.state)
    assert search is not None
    assert len(search.accuracies) == 2


# ---- parties that are lost and come back


@pytest.mark.parametrize("how", ["failed", "gone", "silent"])
def test_a_party_lost_for_a_round_is_missing_from_that_round_alone(how: str) -> None:
    steps = counted()
    reasons = {"failed": "failed: no", "gone": "not there to be asked", "silent": "no reply"}
    for name in REFINEMENTS:
        if name == "refinement 2" and how != "silent":
            steps.step(EVALUATE, "012" if how == "gone" else None, {"3": "failed: no"} if how == "failed" else None)
            continue
        steps.lost = {"3"} if name == "refinement 2" else set()
        steps.step(EVALUATE)
    run = steps.rounds(1)
    missing = {name: run.state.results[name].missing for name in REFINEMENTS}
    assert missing == {name: {"party-3": reasons[how]} if name == "refinement 2" else {} for name in REFINEMENTS}
    assert run.counted.missing == {}
    search = searched(run.state)
    assert search is not None
    assert len(search.accuracies) == 1 + ROUNDS
    assert run.counts.n_examples == 240


def test_a_party_lost_after_the_counting_is_in_the_counts_alone() -> None:
    steps = counted()
    steps.lost = {"3"}
    run = steps.rounds()
    assert all(run.state.results[name].missing == {"party-3": "no reply"} for name in REFINEMENTS)
    # The others refine from counts of all, less the held-out samples of their own.
    some = np.arange(240) % 4 != 3
    there = federate(
        RunOptions(**options(SPEC, decay=0.5)), [party_of(**part, name=str(i)) for i, part in enumerate(parts()[:3])]
    )
    search, of_others = searched(run.state), searched(there.state)
    assert search is not None
    assert of_others is not None
    member = run.model.model_.members[0]
    out = some & held_out(X)
    taught = member.counts - ClassCounts.from_data(member.hash, X[out], Y[out], 3)
    assert search.counts == (taught,)
    assert member.counts.n_examples == 240


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_round_that_nobody_answers_changes_nothing(lost: int) -> None:
    steps = counted()
    nobody = dict.fromkeys("0123", "failed: gone")
    for number in range(len(REFINEMENTS)):
        before = searched(steps.run.state)
        steps.step(EVALUATE, failures=nobody if number == lost else None)
        if number == lost and before is not None:
            assert searched(steps.run.state) is before
    run = steps.rounds(1)
    search = searched(run.state)
    if not lost:  # without samples that judge there are no rounds
        assert (search, run.model.model_.refined) == (None, None)
        assert "refinement 1" not in run.traffic
    else:
        assert search is not None
        assert len(search.accuracies) == ROUNDS
        assert digest(run) == digest(in_process(options(SPEC, decay=0.5, refine_rounds=ROUNDS - 1), parts()))


def test_where_nobody_ever_answers_the_model_is_not_refined() -> None:
    steps = counted()
    steps.lost = set("0123")
    run = steps.rounds()
    assert run.model.model_.refined is None
    assert searched(run.state) is None


# ---- hostile replies


def changed(reply: Reply, change: Callable[[list[Any]], list[Any]]) -> Reply:
    return replace(reply, tensors=codec.write_tensors(change(list(codec.read_tensors(reply.tensors)))))


def figure(place: int, value: Any) -> Callable[[Reply], Reply]:
    """Put a value into the figures: the loss, then held-out samples, correct ones and those before, by class."""

    def change(arrays: list[Any]) -> list[Any]:
        figures = arrays[0].copy()
        figures[place] = value(figures) if callable(value) else value
        return [figures, *arrays[1:]]

    return lambda reply: changed(reply, change)


def gradient(change: Callable[[np.ndarray], Any]) -> Callable[[Reply], Reply]:
    table = np.zeros((64, 3), np.int64)
    return lambda reply: changed(reply, lambda arrays: [arrays[0], change(table)])


def entry(value: int) -> Callable[[np.ndarray], Any]:
    def change(table: np.ndarray) -> Any:
        table = table.copy()
        table[5, 1] = value
        return pack_signed(table)

    return change


REPLIES: dict[str, Callable[[Reply], Reply]] = {
    "junk": lambda reply: replace(reply, tensors=[b"junk", *reply.tensors[1:]]),
    "more correct than held out": figure(4, lambda figures: figures[1] + 1),
    "more correct before than held out": figure(7, lambda figures: figures[1] + 1),
    "a gradient of the wrong shape": gradient(lambda table: pack_signed(table[1:])),
    "a transposed gradient": gradient(lambda table: pack_signed(table.T)),
    "an endless gradient": gradient(entry(-(2**61))),
    "a refusal": lambda reply: replace(reply, metrics={REFUSED: "no"}),
    "a fault of form": lambda reply: replace(reply, fault="statistic: no"),
}


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("number", [1, 2])
def test_a_hostile_reply_costs_its_sender_alone(name: str, number: int) -> None:
    def until(steps: Exchange) -> Exchange:
        for _ in range(number):
            steps.step(EVALUATE)
        return steps

    steps, silent = until(counted()), until(counted())
    taken = steps.step(EVALUATE, spoil=lambda reply: REPLIES[name](reply) if reply.cid == "3" else reply)
    assert taken is not None
    phase = f"refinement {number}"
    assert list(taken.missing) == list(steps.run.state.results[phase].missing) == ["party-3"]
    assert "unreadable" not in taken.missing["party-3"]
    silent.step(EVALUATE, failures={"3": "failed"})
    assert digest(steps.rounds()) == digest(silent.rounds())


HELD_OUT_REPLIES: dict[str, Callable[[Reply], Reply]] = {
    "more held out than counted": lambda reply: replace(
        reply,
        tensors=codec.write_tensors(codec.encode(ClassCounts.from_data(FlyHash(SPEC), X[:200], Y[:200], 3))),
        n_examples=200,
    ),
    "other samples than announced": lambda reply: replace(reply, n_examples=reply.n_examples + 1),
    "no number": lambda reply: replace(reply, n_examples=None),  # type: ignore[arg-type]
    "a refusal": lambda reply: replace(reply, metrics={REFUSED: "no"}),
}


@pytest.mark.parametrize("name", HELD_OUT_REPLIES)
def test_hostile_counts_of_held_out_samples_cost_their_sender_alone(name: str) -> None:
    steps, silent = counted(), counted()
    taken = steps.step(EVALUATE, spoil=lambda reply: HELD_OUT_REPLIES[name](reply) if reply.cid == "3" else reply)
    assert taken is not None
    assert list(taken.missing) == list(steps.run.state.results["held-out"].missing) == ["party-3"]
    silent.step(EVALUATE, failures={"3": "failed"})
    assert digest(steps.rounds()) == digest(silent.rounds())


def test_held_out_samples_that_were_never_counted_are_not_taken_out() -> None:
    """Within its class sizes a party may send counts of other samples; the sum of all would be negative."""
    steps = counted()
    odd = np.full((60, 4), 1e6)

    def spoil(reply: Reply) -> Reply:
        counts = ClassCounts.from_data(FlyHash(SPEC), odd[:15], np.full(15, 1), 3)
        return replace(reply, tensors=codec.write_tensors(codec.encode(counts)), n_examples=15)

    steps.step(EVALUATE, spoil=lambda reply: spoil(reply) if reply.cid == "3" else reply)
    search = searched(steps.run.state)
    assert search is not None
    assert all((part.array >= 0).all() for part in search.counts)
    assert steps.rounds().model.predict(X).shape == (240,)


def test_the_samples_that_judge_are_held_out_by_their_content() -> None:
    member = Member("", "1", sizes=tuple(np.bincount(Y).tolist()))
    for request in (HeldOutRequest(RUN), FIRST, LATER):
        statistic = statistic_of(request, party_of(X, LABELS), member)
        held = statistic.parts[0].n_per_class if isinstance(request, HeldOutRequest) else statistic.held_out
        assert_array_equal(held, np.bincount(Y[held_out(X)], minlength=3))


# ---- hostile requests


def first(run: RunSpec, counts: tuple[ClassCounts, ...]) -> RefinementRequest:
    """The request of the first round, which has counts."""
    members = tuple(
        ModelMember(s, c, ScoringRule("balanced", 0.5, 1.0), 1.0) for s, c in zip(run.specs, counts, strict=True)
    )
    return RefinementRequest(run, start_weights(counts), class_factors(counts[0].n_per_class), members)


def later(run: RunSpec, counts: tuple[ClassCounts, ...]) -> RefinementRequest:
    """The request of a later round, which has weights."""
    return RefinementRequest(run, start_weights(counts), class_factors(counts[0].n_per_class))


RUN = RunSpec(SPEC, NAMES)
COUNTS = (ClassCounts.from_data(FlyHash(SPEC), X, Y, 3),)
FIRST, LATER = first(RUN, COUNTS), later(RUN, COUNTS)
EVALUATION = evaluation_of(RUN, COUNTS, (ScoringRule("balanced", 0.5, 1.0),), (1.0,), refined=LATER.weights)


def too_wide(value: int) -> list[Any]:
    weights = np.zeros((64, 3), np.int64)
    weights[1, 1] = value
    return [pack_signed(weights)]


REQUESTS: dict[str, tuple[Any, dict[str, Any], list[Any] | None]] = {
    "a factor less": (LATER, {"flynn-factors": "[1, 2]"}, None),
    "a factor more": (LATER, {"flynn-factors": "[1, 2, 3, 4]"}, None),
    "floats as factors": (LATER, {"flynn-factors": "[1, 2, 3.0]"}, None),
    "booleans as factors": (LATER, {"flynn-factors": "[1, 2, true]"}, None),
    "negative factors": (LATER, {"flynn-factors": "[1, 2, -1]"}, None),
    "endless factors": (LATER, {"flynn-factors": f"[1, 2, {2**20 + 1}]"}, None),
    "weights of the wrong shape": (LATER, {}, [pack_signed(LATER.weights[0].T)]),
    "a row less": (LATER, {}, [pack_signed(LATER.weights[0][1:])]),
    "weights too large": (LATER, {}, too_wide(LARGEST_WEIGHT + 1)),
    "weights too small": (LATER, {}, too_wide(-LARGEST_WEIGHT - 1)),
    "counts with factors": (LATER, {}, FIRST.arrays()),
    "weights with scorings": (FIRST, {}, LATER.arrays()),
    "scorings that are none": (FIRST, {"flynn-scorings": "[[]]"}, None),
    "an endless decay": (FIRST, {"flynn-scorings": '[["balanced", 7, 1.0, 1.0]]'}, None),
    "weights for the model too large": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], *too_wide(2**20 + 1)]),
    "more weights than announced": (EVALUATION, {"flynn-is-refined": False}, None),
    "another hash": (HeldOutRequest(RUN), {"flynn-fingerprints": 64 * "0"}, None),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_is_refused_by_the_party(name: str) -> None:
    request, entries, arrays = REQUESTS[name]
    assert "failed" not in refusal(request, party_of(X, LABELS, X, LABELS), entries, arrays)


@pytest.mark.parametrize("request_", [FIRST, LATER, EVALUATION], ids=["first", "later", "evaluation"])
def test_weights_beyond_the_memory_of_a_party_are_refused_before_they_are_unpacked(request_: Any) -> None:
    hash_needs, weights_need = memory_needed(SPEC, 3) + 32 * 9, 40 * 64 * 3
    config = {PHASE: request_.phase, **request_.to_config()}

    def asked(limit: int) -> Any:
        return party_of(X, LABELS, X, LABELS, memory_limit=limit).answer(config, request_.arrays())

    enough = max(hash_needs, weights_need, 24 * (6 * N_LEVELS + N_SUMS) if request_ is EVALUATION else 0)
    assert REFUSED not in asked(enough).metrics
    assert str(asked(enough - 1).metrics[REFUSED]).startswith("memory: ")


def test_a_small_request_for_many_weights_allocates_nothing() -> None:
    wide = RunSpec(HashSpec(4, 2**17, 2, 6, 0), NAMES)
    config = {PHASE: "refinement", **wide.to_config(), "flynn-factors": json.dumps([1, 1, 1])}
    bomb = [pack_signed(np.zeros((2**17, 3), np.int64))]
    assert bomb[0].nbytes < 5000
    party = party_of(X, LABELS, memory_limit=2**20)
    with traced() as memory:
        answer = party.answer(config, bomb)
    assert str(answer.metrics[REFUSED]).startswith("memory: ")
    assert memory.peak < 2**18


# ---- who may refine


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": LaplaceCounts.for_spec(SPEC, 3, 1.0), "fraction_evaluate": 1.0},
        {"fraction_evaluate": 0},
        {"fraction_evaluate": 0, "distribute": True},
        {"refine_rounds": -1},
        {"refine_rounds": 1.5},
        {"refine_rounds": True},
        {"refine_rounds": "4"},
        {"refine_rounds": 10**9},
    ],
    ids=str,
)
def test_where_there_is_no_refinement_rounds_are_refused(changes: dict[str, Any]) -> None:
    with raises(ConfigError, field="refine_rounds"):
        RunOptions(**options(SPEC, **changes))


def test_a_run_that_distributes_a_model_refines_nothing() -> None:
    saved = in_process(options(SPEC), parts()).federation("1")
    with raises(ConfigError, field="refine_rounds"):
        RunOptions(**options(saved.run_spec.specs, federation=saved, purpose="evaluate"))


# ---- the law, over the wire


def test_the_pooled_refinement_of_a_federated_model_is_its_own() -> None:
    run = in_process(options(), parts("one class each"))
    unrefined = replace(run.model.model_, refined=None)
    assert refine(unrefined, X, Y, ROUNDS).sha256() == digest(run)
    assert sha256(run.model) != sha256(FlyNNClassifier.from_model(unrefined))
