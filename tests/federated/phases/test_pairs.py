"""Pair sums: of any split the pooled ones; who is lost, comes back or sends nonsense costs its own say alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import algorithm
from flwr_flynn.federated.compression import pack, pack_numbers, pack_signed, unpack, unpack_numbers
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions
from flwr_flynn.federated.phases.evaluation import EvaluationRequest
from flwr_flynn.federated.phases.pairs import PAIRS, PairsRequest, PairTrialRequest
from flwr_flynn.federated.protocol import EVALUATE, PHASE, REFUSED, TRAIN, Reply
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec, deflated_specs, mode_of
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.leave_one_out import TEMPERATURES
from flwr_flynn.model.pair_scoring import LARGEST_BIAS, LARGEST_LEVERAGE, LARGEST_WEIGHT, PairScoring
from flwr_flynn.model.pairs import PairFit, PairSums, learn_pairs, memory_of_pairs, pair_specs
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts
from tests.federated.phases.test_refinement import LABELS, NAMES, PLAN, SPEC, SPLITS, X, Y, changed, parts
from tests.federated.runs import Exchange, in_process
from tests.memory import traced
from tests.raising import raises

ROWS = 64
PHASES = ["pairs", "pair trial"]
EXCHANGES = PHASES
POOLED = FlyNNClassifier(hash_dim=64, pairs=ROWS).fit(X, LABELS)
assert POOLED.model_.pairs is not None
OWN = pair_specs([SPEC], ROWS)
party_of = partial(algorithm.party_of, pairs=True)


def options(spec: Any = PLAN, **changes: Any) -> dict[str, Any]:
    return {"spec": spec, "classes": NAMES, "min_parties": 1, "pairs": ROWS, **changes}


def exchange(split: str = "turns", spec: Any = PLAN, **changes: Any) -> Exchange:
    parties = {str(i): party_of(**part, name=f"party-{i}", min_examples=1) for i, part in enumerate(parts(split))}
    return Exchange(Run(RunOptions(**options(spec, **changes))), parties)


def counted(split: str = "turns", spec: Any = SPEC, **changes: Any) -> Exchange:
    """A run whose next phase is "pairs"."""
    steps = exchange(split, spec, **{"decay": 0.5, **changes})
    steps.step(TRAIN)
    assert steps.run.due is PAIRS
    return steps


def digest(run: Run) -> str:
    return run.model.model_.sha256()


def scoring_of(run: Run) -> PairScoring | None:
    return run.model.model_.pairs


PLAIN = in_process(options(SPEC, decay=0.5, pairs=0), parts())


# ---- the pooled model


@pytest.mark.parametrize("rows", [16, 17, 100])
@pytest.mark.parametrize("changes", [{}, {"decay": 0.5}, {"rule": "bayes"}], ids=str)
def test_a_spec_of_one_s_own_has_pair_sums_alike(changes: dict[str, Any], rows: int) -> None:
    run = in_process(options(SPEC, pairs=rows, **changes), parts())
    pooled = FlyNNClassifier(SPEC, pairs=rows, **changes).fit(X, LABELS).model_.pairs
    found = run.model.model_.pairs
    assert found is not None
    assert pooled is not None
    assert (found.sha256(), found.accuracy) == (pooled.sha256(), pooled.accuracy)
    assert [spec.hash_dim for spec in found.specs] == [rows]


def test_of_many_samples_some_judge_and_the_split_does_not_decide_which(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learn_pairs(OWN, X, Y, 3, None)
    phases = "flwr_flynn.federated.phases"
    for module in (f"{phases}.pairs", "flwr_flynn.model.pairs"):
        monkeypatch.setattr(f"{module}.N_LEFT_OUT", 60)
    some = learn_pairs(OWN, X, Y, 3, None)
    assert whole is not None
    assert some is not None
    assert some.accuracy != whole.accuracy
    for split in SPLITS:
        found = scoring_of(in_process(options(SPEC, decay=0.5), parts(split)))
        assert found is not None
        assert (found.sha256(), found.accuracy) == (some.sha256(), some.accuracy)


# ---- parties that are lost and come back


@pytest.mark.parametrize("how", ["failed", "gone", "silent"])
@pytest.mark.parametrize("phases", [[name] for name in PHASES], ids=str)
def test_a_party_lost_in_an_exchange_is_missing_from_that_alone(phases: list[str], how: str) -> None:
    steps = counted()
    reasons = {"failed": "failed: no", "gone": "not there to be asked", "silent": "no reply"}
    for name in EXCHANGES:
        if name in phases and how != "silent":
            steps.step(EVALUATE, "012" if how == "gone" else None, {"3": "failed: no"} if how == "failed" else None)
            continue
        steps.lost = {"3"} if name in phases else set()
        steps.step(EVALUATE)
    steps.lost = set()
    run = steps.rounds(1)
    missing = {name: run.state.results[name].missing for name in EXCHANGES}
    assert missing == {name: {"party-3": reasons[how]} if name in phases else {} for name in EXCHANGES}
    assert (run.counted.missing, run.counts.n_examples) == ({}, 240)
    # Only who is in the sums is asked to take its samples out of them.
    some, every = np.arange(240) % 4 != 3, np.full(240, True)
    fit = PairFit.of(
        PairSums.from_data(OWN, X[some], Y[some], 3) if "pairs" in phases else PairSums.from_data(OWN, X, Y, 3)
    )
    judged = {name: some if {"pairs", name} & {*phases} else every for name in EXCHANGES[1:]}
    tried = judged["pair trial"]
    expected = fit.scoring(OWN, np.bincount(Y[tried]), fit.tables(OWN, X[tried], Y[tried]), None)
    assert expected is not None
    found = scoring_of(run)
    assert found is not None
    assert (found.sha256(), found.accuracy) == (expected.sha256(), expected.accuracy)
    assert digest(run) == replace(PLAIN.model.model_, pairs=expected).sha256()


@pytest.mark.parametrize("phase", PHASES)
def test_where_nobody_answers_there_are_no_pair_sums(phase: str) -> None:
    steps = counted()
    for name in PHASES:
        steps.step(EVALUATE, failures=dict.fromkeys("0123", "failed: gone") if name == phase else None)
    run = steps.rounds(1)
    assert scoring_of(run) is None
    assert list(run.state.results[phase].missing) == [f"party-{i}" for i in range(4)]
    assert digest(run) == digest(PLAIN)
    # Weights that nobody's samples led to are not tried.
    assert ("pair trial" in run.traffic) == (phase == "pair trial")


def test_sums_without_a_class_that_is_counted_are_of_no_use() -> None:
    """They would speak against the class, whatever the sample."""
    steps = counted("one class each")
    steps.step(EVALUATE, failures={"1": "failed: no"})
    assert steps.run.state.results["pairs"].fit.n_per_class[1] == 0
    run = steps.rounds(1)
    assert scoring_of(run) is None
    assert run.state.results["pair trial"].missing == {"party-1": "failed: no"}
    assert digest(run) == digest(PLAIN)
    # A class without samples anywhere is in no one's way.
    fewer = [{**part, "X": part["X"][keep], "y": part["y"][keep]} for part in parts() for keep in [part["y"] != "ash"]]
    assert scoring_of(in_process(options(SPEC, decay=0.5), fewer)) is not None


def test_parties_without_samples_have_no_pair_sums() -> None:
    empty = [{**part, "X": part["X"][:0], "y": part["y"][:0]} for part in parts()[:2]]
    run = in_process(options(SPEC, decay=0.5), empty)
    assert scoring_of(run) is None
    assert not any(run.state.results[name].missing for name in PHASES)


# ---- hostile replies


N_PAIRS = ROWS * (ROWS + 1) // 2
MOST = 10**6  # more than the responses of a party's samples make


def sizes(change: Callable[[np.ndarray], Any]) -> Callable[[Reply], Reply]:
    return lambda reply: changed(reply, lambda arrays: [change(arrays[0].copy()), *arrays[1:]])


def packed(place: int, change: Callable[[np.ndarray], Any]) -> Callable[[Reply], Reply]:
    """Put another array in place of the packed sums of products, or of responses."""
    shape = {1: (1, N_PAIRS), 2: (3, ROWS)}[place]

    def spoil(arrays: list[Any]) -> list[Any]:
        made = change(unpack(arrays[place], shape, 2**60))
        return [*arrays[:place], made, *arrays[place + 1 :]]

    return lambda reply: changed(reply, spoil)


def entry(value: int, place: tuple[int, int] = (0, 5)) -> Callable[[np.ndarray], Any]:
    def change(table: np.ndarray) -> Any:
        table[place] = value
        return pack(table)

    return change


def checkerboard(table: Any) -> Any:
    """Products 0 of each row with itself, and the largest of every other two."""
    places = np.triu_indices(ROWS)
    return pack(np.where((places[0] + places[1]) % 2 == 1, 225 * 5, 0)[None])


ANY: dict[str, Callable[[Reply], Reply]] = {
    "junk": lambda reply: replace(reply, tensors=[b"junk", *reply.tensors[1:]]),
    "a refusal": lambda reply: replace(reply, metrics={REFUSED: "no"}),
    "a fault of form": lambda reply: replace(reply, fault="statistic: no"),
}
SUMS: dict[str, Callable[[Reply], Reply]] = {
    **ANY,
    "sizes of other samples": sizes(lambda each: each + np.array([1, -1, 0])),
    "products of the wrong shape": packed(1, lambda table: pack(table[:, 1:])),
    "transposed products": packed(1, lambda table: pack(table.T)),
    "responses of the wrong shape": packed(2, lambda table: pack(table[1:])),
    "transposed responses": packed(2, lambda table: pack(table.T)),
    "responses above those of the class": packed(2, lambda table: entry(15 * 60)(0 * table)),
    "products of nobody": packed(1, lambda table: pack(0 * table)),
    "products that are all the largest": packed(1, lambda table: pack(0 * table + 225 * 60)),
    "a square below the responses": packed(1, lambda table: pack(np.where(np.arange(table.size) == 0, 1, table))),
    "products that are no squares": packed(1, checkerboard),
    "the whole square": packed(1, lambda table: pack(np.tile(table, 2)[:, : ROWS * ROWS])),
}
TRIAL: dict[str, Callable[[Reply], Reply]] = {**ANY}
N_T = len(TEMPERATURES)


def figure(array: int, place: int, value: Any) -> Callable[[Reply], Reply]:
    """Put a value into the samples left out, the correct ones or the log-losses."""

    def change(arrays: list[Any]) -> list[Any]:
        tables = [unpack_numbers(each, 10**4, 2**62) for each in arrays]
        tables[array][place] = value(tables) if callable(value) else value
        return [pack_numbers(each) for each in tables]

    return lambda reply: changed(reply, change)


TRIAL |= {
    "more left out than counted": figure(0, 1, 100),
    "endless left out": figure(0, 1, 2**62),
    "more right than left out": figure(1, 4, lambda tables: tables[0][1] + 1),
    "a log-loss above that of the samples": figure(2, 3, 64 * 2**20 * 61),
    "an endless log-loss": figure(2, 3, 2**63 - 1),
    "an entry less": lambda reply: changed(
        reply, lambda arrays: [*arrays[:2], pack_numbers(unpack_numbers(arrays[2], N_T, 2**62)[1:])]
    ),
    "no entries": lambda reply: changed(reply, lambda arrays: [pack_numbers(np.zeros(0, np.int64))] * 3),
    "tables in another order": lambda reply: changed(reply, lambda arrays: arrays[::-1]),
    "tables that are not packed": lambda reply: changed(reply, lambda arrays: [each.astype("<i8") for each in arrays]),
}
HOSTILE = [("pairs", name, SUMS[name]) for name in SUMS] + [("pair trial", name, TRIAL[name]) for name in TRIAL]


@pytest.mark.parametrize(("phase", "name", "change"), HOSTILE, ids=[f"{phase}: {name}" for phase, name, _ in HOSTILE])
def test_a_hostile_reply_costs_its_sender_s_say_alone(phase: str, name: str, change: Callable[[Reply], Reply]) -> None:
    steps, silent = counted(), counted()
    for each in (steps, silent) if phase == "pair trial" else ():
        each.step(EVALUATE)
    taken = steps.step(EVALUATE, spoil=lambda reply: change(reply) if reply.cid == "3" else reply)
    assert taken is not None
    assert taken.phase.name == phase
    assert list(taken.missing) == list(steps.run.state.results[phase].missing) == ["party-3"]
    assert "unreadable" not in taken.missing["party-3"]
    silent.step(EVALUATE, failures={"3": "failed"})
    assert digest(steps.rounds()) == digest(silent.rounds())


# ---- hostile requests

RUN = RunSpec(SPEC, NAMES)
COUNTS = (ClassCounts.from_data(FlyHash(SPEC), X, Y, 3),)
TWO = tuple(replace(SPEC, hash_dim=32, hash_nnz=8, seed=seed) for seed in (0, 1))
FIT = PairFit.of(PairSums.from_data(TWO, X, Y, 3))
LEARNED = learn_pairs(TWO, X, Y, 3, 0.5)
assert LEARNED is not None
SUMS_REQUEST = PairsRequest(RunSpec(TWO, NAMES))
TRIAL_REQUEST = PairTrialRequest(RunSpec(TWO, NAMES), FIT)
EVALUATION = EvaluationRequest(RUN, COUNTS, (ScoringRule("balanced", 0.5, 1.0),), (1.0,), pairs=LEARNED)
THREE = [SUMS_REQUEST, TRIAL_REQUEST, EVALUATION]


def specs(*found: HashSpec) -> dict[str, Any]:
    """The entries of a run of other specs."""
    prints = " ".join(FlyHash(spec).fingerprint for spec in found)
    return {"flynn-specs": deflated_specs(found), "flynn-fingerprints": prints}


def fit(place: int, value: Any, index: int | None = None) -> dict[str, Any]:
    """The figures of the fit with another value at a place."""
    return with_figure(TRIAL_REQUEST, "flynn-fit", place, value, index)


def figures_of_pairs(place: int, value: Any, index: int | None = None) -> dict[str, Any]:
    return with_figure(EVALUATION, "flynn-pairs", place, value, index)


def with_figure(request: Any, entry: str, place: int, value: Any, index: int | None) -> dict[str, Any]:
    figures = json.loads(str(request.to_config()[entry]))
    if index is None:
        figures[place] = value
    else:
        figures[place][index] = value
    return {entry: json.dumps(figures)}


def pair_entries(*found: HashSpec) -> dict[str, Any]:
    """The entries of scores by other specs."""
    prints = " ".join(FlyHash(spec).fingerprint for spec in found)
    return {"flynn-pair-specs": deflated_specs(found, [SPEC]), "flynn-pair-fingerprints": prints}


def weights(value: int, shape: tuple[int, int] = (ROWS, 3)) -> Any:
    table = np.zeros(shape, np.int64)
    table[1, 1] = value
    return pack_signed(table)


WIDE = replace(SPEC, hash_dim=4000, hash_nnz=8)
REFINED = [pack_signed(np.zeros((64, 3), np.int64))]
REQUESTS: dict[str, tuple[Any, dict[str, Any], list[Any] | None]] = {
    "sums of too many rows": (SUMS_REQUEST, specs(WIDE, replace(TWO[1], hash_dim=97)), None),
    "sums of three specs": (SUMS_REQUEST, specs(*TWO, replace(TWO[0], seed=7)), None),
    "sums of other features": (SUMS_REQUEST, specs(TWO[0], HashSpec(5, 32, 2, 8, 0)), None),
    "sums by another hash": (SUMS_REQUEST, {"flynn-fingerprints": " ".join([64 * "0"] * 2)}, None),
    "sums by one hash more": (SUMS_REQUEST, {"flynn-fingerprints": " ".join([64 * "0"] * 3)}, None),
    "sums of samples of other features": (SUMS_REQUEST, specs(*(replace(each, n_features=5) for each in TWO)), None),
    "a trial of too many rows": (TRIAL_REQUEST, specs(WIDE, replace(TWO[1], hash_dim=97)), None),
    "a trial of three specs": (TRIAL_REQUEST, specs(*TWO, replace(TWO[0], seed=7)), None),
    "a trial by another hash": (TRIAL_REQUEST, {"flynn-fingerprints": " ".join([64 * "0"] * 2)}, None),
    "figures that are a list of numbers": (TRIAL_REQUEST, {"flynn-fit": "[1, 2, 3]"}, None),
    "figures less": (TRIAL_REQUEST, {"flynn-fit": "[[0, 0, 0], [1, 1, 1]]"}, None),
    "a bias less": (TRIAL_REQUEST, fit(0, [0, 0]), None),
    "a bias more": (TRIAL_REQUEST, fit(0, [0] * 4), None),
    "a float as a bias": (TRIAL_REQUEST, fit(0, 1.0, 1), None),
    "a boolean as a bias": (TRIAL_REQUEST, fit(0, True, 1), None),
    "a bias too large": (TRIAL_REQUEST, fit(0, LARGEST_BIAS + 1, 1), None),
    "a bias too small": (TRIAL_REQUEST, fit(0, -LARGEST_BIAS - 1, 1), None),
    "a size less": (TRIAL_REQUEST, fit(1, [1, 1]), None),
    "a negative size": (TRIAL_REQUEST, fit(1, -1, 0), None),
    "an endless size": (TRIAL_REQUEST, fit(1, 2**48, 0), None),
    "a float as a size": (TRIAL_REQUEST, fit(1, 80.0, 0), None),
    "sizes of nobody": (TRIAL_REQUEST, fit(1, [0, 0, 0]), None),
    "a negative leverage": (TRIAL_REQUEST, fit(2, -0.1, 1), None),
    "a leverage too large": (TRIAL_REQUEST, fit(2, LARGEST_LEVERAGE + 0.01, 1), None),
    "a leverage that is none": (TRIAL_REQUEST, fit(2, float("nan"), 1), None),
    "a leverage that is a text": (TRIAL_REQUEST, fit(2, "0.5", 1), None),
    "a leverage that is true": (TRIAL_REQUEST, fit(2, True, 1), None),
    "a leverage alone": (TRIAL_REQUEST, fit(2, 0.5), None),
    "a leverage less": (TRIAL_REQUEST, fit(2, [0.5, 0.5]), None),
    "weights of the wrong shape": (TRIAL_REQUEST, {}, [pack_signed(FIT.weights.T)]),
    "a row less": (TRIAL_REQUEST, {}, [pack_signed(FIT.weights[1:])]),
    "weights too large": (TRIAL_REQUEST, {}, [weights(LARGEST_WEIGHT + 1)]),
    "weights too small": (TRIAL_REQUEST, {}, [weights(-LARGEST_WEIGHT - 1)]),
    "a model without the weights": (EVALUATION, {}, EVALUATION.arrays()[:-1]),
    "a model of more weights than announced": (EVALUATION, {"flynn-pairs": None}, None),
    "a model of other weights": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], weights(1, (ROWS - 1, 3))]),
    "a model of weights too large": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], weights(LARGEST_WEIGHT + 1)]),
    "a model of weights too small": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], weights(-LARGEST_WEIGHT - 1)]),
    "a model of junk": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], np.arange(60, dtype=np.uint8)]),
    "a model of figures less": (EVALUATION, {"flynn-pairs": "[[0, 0, 0], 1.0, 0.5]"}, None),
    "a model of a bias less": (EVALUATION, figures_of_pairs(0, [0, 0]), None),
    "a model of a bias too large": (EVALUATION, figures_of_pairs(0, LARGEST_BIAS + 1, 2), None),
    "a model of a bias that is a float": (EVALUATION, figures_of_pairs(0, 0.0, 2), None),
    "a model of another temperature": (EVALUATION, figures_of_pairs(1, 0.3), None),
    "a model of a temperature that is a text": (EVALUATION, figures_of_pairs(1, "1.0"), None),
    "a model of a temperature that is true": (EVALUATION, figures_of_pairs(1, True), None),
    "a model of an endless temperature": (EVALUATION, figures_of_pairs(1, 10**400), None),
    "a model of a share above 1": (EVALUATION, figures_of_pairs(2, 1.01), None),
    "a model of a negative share": (EVALUATION, figures_of_pairs(2, -0.1), None),
    "a model of a share that is none": (EVALUATION, figures_of_pairs(2, float("nan")), None),
    "a model of a share that is nothing": (EVALUATION, figures_of_pairs(2, None), None),
    "a model of an accuracy above 1": (EVALUATION, figures_of_pairs(3, 1.5), None),
    "a model of a leverage of 1": (EVALUATION, figures_of_pairs(4, 1.0, 2), None),
    "a model of a negative leverage": (EVALUATION, figures_of_pairs(4, -0.1, 2), None),
    "a model of an endless leverage": (EVALUATION, figures_of_pairs(4, 10**400, 2), None),
    "a model of a leverage that is a text": (EVALUATION, figures_of_pairs(4, "0", 2), None),
    "a model of a leverage less": (EVALUATION, figures_of_pairs(4, [0.5, 0.5]), None),
    "a model of one leverage": (EVALUATION, figures_of_pairs(4, 0.5), None),
    "a model of specs that are a text": (EVALUATION, {"flynn-pair-specs": "[]"}, None),
    "a model of three specs": (EVALUATION, pair_entries(*TWO, replace(TWO[0], seed=7)), None),
    "a model of too many rows": (EVALUATION, pair_entries(WIDE, replace(TWO[1], hash_dim=97)), None),
    "a model of specs of different features": (EVALUATION, pair_entries(TWO[0], HashSpec(5, 32, 2, 8, 0)), None),
    "a model of specs of other features": (
        EVALUATION, pair_entries(*(replace(each, n_features=5) for each in TWO)), None,
    ),
    "a model of one fingerprint": (EVALUATION, {"flynn-pair-fingerprints": 64 * "0"}, None),
    "a model of other fingerprints": (EVALUATION, {"flynn-pair-fingerprints": " ".join([64 * "0"] * 2)}, None),
    "a refined model": (
        EVALUATION, {"flynn-is-refined": True}, [*EVALUATION.arrays()[:-1], *REFINED, EVALUATION.arrays()[-1]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_is_refused_by_the_party(name: str) -> None:
    request, entries, arrays = REQUESTS[name]
    config = {PHASE: request.phase, **request.to_config()}
    assert entries.keys() <= config.keys()
    config = {key: value for key, value in {**config, **entries}.items() if value is not None}
    answer = party_of(X, LABELS, X, LABELS).answer(config, request.arrays() if arrays is None else arrays)
    assert answer.metrics.keys() == {REFUSED}
    assert "failed" not in str(answer.metrics[REFUSED])
    assert len(str(answer.metrics[REFUSED])) < 500


@pytest.mark.parametrize("request_", THREE, ids=["sums", "trial", "evaluation"])
def test_what_is_beyond_the_memory_of_a_party_is_refused(request_: Any) -> None:
    model_needs = max(memory_needed(SPEC, 3) + 32 * 9, sum(memory_needed(spec, 3) for spec in TWO) + 64 * ROWS * 3)
    needed = model_needs if request_ is EVALUATION else memory_of_pairs(ROWS, 3)
    config = {PHASE: request_.phase, **request_.to_config()}

    def asked(limit: int) -> Any:
        return party_of(X, LABELS, X, LABELS, memory_limit=limit).answer(config, request_.arrays())

    assert REFUSED not in asked(needed).metrics
    assert str(asked(needed - 1).metrics[REFUSED]).startswith("memory: ")


def test_a_party_takes_no_more_memory_than_it_was_asked_for() -> None:
    request = PairsRequest(RunSpec(pair_specs([SPEC], 256), NAMES))
    party, config = party_of(X, LABELS), {PHASE: request.phase, **request.to_config()}
    assert REFUSED not in party.answer(config).metrics  # rows are drawn, code is compiled
    with traced() as memory:
        party.answer(config)
    assert memory.peak < memory_of_pairs(256, 3)


def test_a_small_request_for_many_rows_allocates_nothing() -> None:
    wide = RunSpec(WIDE, NAMES)
    bomb = [pack_signed(np.zeros((4000, 3), np.int64))]
    assert bomb[0].nbytes < 1000
    party = party_of(X, LABELS, memory_limit=2**20)
    for phase, entries, arrays in (
        ("pairs", wide.to_config(), []),
        ("pair trial", {**wide.to_config(), "flynn-fit": json.dumps([[0] * 3, [1] * 3, [0.1] * 3])}, bomb),
    ):
        with traced() as memory:
            answer = party.answer({PHASE: phase, **entries}, arrays)
        assert str(answer.metrics[REFUSED]).startswith("memory: ")
        assert memory.peak < 2**18


# ---- who may have pair sums


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": LaplaceCounts.for_spec(SPEC, 3, 1.0), "fraction_evaluate": 1.0},
        {"fraction_evaluate": 0},
        {"fraction_evaluate": 0, "distribute": True},
        {"refine_rounds": 1},
        {"pairs": -1},
        {"pairs": 1},
        {"pairs": 15},
        {"pairs": 4097},
        {"pairs": 64.0},
        {"pairs": True},
        {"pairs": "64"},
        {"pairs": None},
    ],
    ids=str,
)
def test_where_there_are_no_pair_sums_rows_are_refused(changes: dict[str, Any]) -> None:
    with raises(ConfigError, field="pairs"):
        RunOptions(**options(SPEC, **changes))


@pytest.mark.parametrize("rows", [0, 16, 4096, np.int64(64)])
def test_rows_within_bounds_are_taken(rows: int) -> None:
    assert RunOptions(**options(SPEC, pairs=rows)).pairs == rows


def test_a_run_that_hands_a_model_out_has_no_exchange_of_pair_sums() -> None:
    saved = in_process(options(SPEC), parts()).federation("1")
    with raises(ConfigError, field="pairs"):
        RunOptions(**options(saved.run_spec.specs, federation=saved, purpose="evaluate"))


def test_pair_sums_leave_in_clear_only_where_the_party_allows_it() -> None:
    steps = counted()
    steps.parties["3"].options = PartyOptions(name="party-3", min_examples=1)
    steps.step(EVALUATE)
    missing = steps.run.state.results["pairs"].missing
    assert list(missing) == ["party-3"]
    assert "node-config pairs" in missing["party-3"]
    silent = counted()
    silent.step(EVALUATE, failures={"3": "failed"})
    assert digest(steps.rounds()) == digest(silent.rounds())
    settings_ = {"secure": True, "evaluates": True}
    masked = Party(algorithm.party_of(X, LABELS)._held(), PartyOptions(**settings_), lambda _: None)
    request = PairsRequest(RunSpec(OWN, NAMES, mode_of(None, 1024)))
    assert REFUSED not in masked.answer({PHASE: request.phase, **request.to_config()}, (), TRAIN).metrics


# ---- saved and resumed


def resumed(saved: Federation, **changes: Any) -> dict[str, Any]:
    return options(saved.run_spec.specs, federation=saved, purpose="resume", **changes)


@pytest.mark.parametrize("phase", EXCHANGES)
def test_a_run_that_goes_on_without_pair_sums_has_none(phase: str, tmp_path: Path) -> None:
    steps = counted()
    for _ in EXCHANGES[: EXCHANGES.index(phase)]:
        steps.step(EVALUATE)
    steps.run.federation("1").save(tmp_path / "f.npz")
    saved = Federation.load(tmp_path / "f.npz")
    steps.run = Run(RunOptions(**resumed(saved, pairs=0, decay=0.5)))
    assert [each.name for each in steps.run.phases] == ["evaluation"]
    assert digest(steps.rounds(1)) == digest(PLAIN)


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 6, 9])
def test_a_join_that_goes_on_ends_in_the_same_model(stop: int, tmp_path: Path) -> None:
    three = in_process(options(), parts()[:3]).federation("1")

    def run_of(before: Federation, purpose: str) -> Exchange:
        made = options(before.run_spec.specs, federation=before, purpose=purpose)
        joining = enumerate(parts())
        return Exchange(
            Run(RunOptions(**made)), {f"{purpose}{i}": party_of(**p, name=f"party-{i}") for i, p in joining}
        )

    whole, steps = run_of(three, "join").rounds(), run_of(three, "join")
    assert [phase.name for phase in whole.phases] == ["counts", "selection", *EXCHANGES, "evaluation"]
    for phase in whole.phases[:stop]:
        steps.step(phase.channel)
    steps.run.federation("2").save(tmp_path / "f.npz")
    again = run_of(Federation.load(tmp_path / "f.npz"), "resume")
    again.parties = steps.parties
    assert digest(again.rounds()) == digest(whole)


# ---- the law, over the wire


def test_the_sums_are_those_of_the_candidates_that_the_members_came_from() -> None:
    run = in_process(options(), parts("one class each"))
    found, (coded, scaled) = scoring_of(run), pair_specs(run.state.run_spec.specs, ROWS)
    assert found is not None
    assert found.specs == (coded, scaled)
    assert coded.coding
    assert scaled.scale is not None
    accuracy = run.state.results["selection"].accuracy
    pooled = learn_pairs(found.specs, X, Y, 3, accuracy)
    assert pooled is not None
    assert pooled.sha256() == found.sha256()
