"""The Gram matrix: of any split the pooled one; a party that is lost or sends nonsense is missing, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import algorithm, codec
from flwr_flynn.federated.compression import pack, pack_numbers, pack_signed, unpack, unpack_numbers
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions
from flwr_flynn.federated.phases.gram import GRAM, LARGEST_COLUMN, GramEvaluationRequest, GramRequest
from flwr_flynn.federated.protocol import EVALUATE, PHASE, REFUSED, TRAIN, Reply
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec, deflated_specs
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.gram import GramFit, GramMatrix, LearnedGram, gram_specs, memory_of_gram
from flwr_flynn.model.gram_scoring import LARGEST_BIAS, LARGEST_WEIGHT, GramScoring
from flwr_flynn.model.metrics import N_LEVELS, N_SUMS
from flwr_flynn.model.ridge import MOST_DIRECTIONS, MOST_STRENGTHS
from flwr_flynn.model.scoring import ScoringRule
from tests.fakes import evaluation_of
from tests.federated.runs import Exchange, in_process, refusal
from tests.memory import traced
from tests.raising import raises

X, Y = make_classification(240, 4, n_informative=4, n_redundant=0, n_classes=3, random_state=1)
X = X.round(2)
NAMES = ("ash", "birch", "cedar")
LABELS = np.array(NAMES)[Y]
PLAN = HashPlan(4, 3, 240, "auto", hash_dim=64)
SPEC = HashSpec(4, 64, 2, 6, 0, signed=True)
SPLITS: dict[str, list[Any]] = {
    "turns": [slice(i, None, 4) for i in range(4)],
    "one class each": [label == Y for label in range(3)],
    "one party": [slice(None)],
    "an empty one and two of one sample": [slice(0, 1), slice(0, 0), slice(1, 2), slice(2, 200), slice(200, None)],
}


def parts(split: str = "turns") -> list[dict[str, Any]]:
    return [{"X": X[rows], "y": LABELS[rows], "X_test": X[:9], "y_test": LABELS[:9]} for rows in SPLITS[split]]


def changed(reply: Reply, change: Callable[[list[Any]], list[Any]]) -> Reply:
    return replace(reply, tensors=codec.write_tensors(change(list(codec.read_tensors(reply.tensors)))))


ROWS = 64
PHASES = ["gram", "gram evaluation"]
POOLED = FlyNNClassifier(hash_dim=64, gram=ROWS).fit(X, LABELS)
assert POOLED.model_.gram is not None
OWN = gram_specs([SPEC], ROWS)
party_of = partial(algorithm.party_of, gram=True)


def options(spec: Any = PLAN, **changes: Any) -> dict[str, Any]:
    return {"spec": spec, "classes": NAMES, "min_parties": 1, "gram": ROWS, **changes}


def exchange(split: str = "turns", spec: Any = PLAN, **changes: Any) -> Exchange:
    parties = {str(i): party_of(**part, name=f"party-{i}", min_examples=1) for i, part in enumerate(parts(split))}
    return Exchange(Run(RunOptions(**options(spec, **changes))), parties)


def counted(split: str = "turns", spec: Any = SPEC, **changes: Any) -> Exchange:
    """A run whose next phase is "gram"."""
    steps = exchange(split, spec, **{"decay": 0.5, **changes})
    steps.step(TRAIN)
    assert steps.run.due is GRAM
    return steps


def digest(run: Run) -> str:
    return run.model.model_.sha256()


def scoring_of(run: Run) -> GramScoring | None:
    return run.model.model_.gram


PLAIN = in_process(options(SPEC, decay=0.5, gram=0), parts())


# ---- the pooled model


@pytest.mark.parametrize(("rows", "changes"), [(16, {}), (17, {"decay": 0.5}), (100, {"rule": "novelty"})], ids=str)
def test_a_spec_of_one_s_own_has_the_gram_matrix_alike(rows: int, changes: dict[str, Any]) -> None:
    run = in_process(options(SPEC, gram=rows, **changes), parts())
    pooled = FlyNNClassifier(SPEC, gram=rows, **changes).fit(X, LABELS).model_.gram
    found = run.model.model_.gram
    assert found is not None
    assert pooled is not None
    assert (found.sha256(), found.accuracy) == (pooled.sha256(), pooled.accuracy)
    assert [spec.hash_dim for spec in found.specs] == [rows]


def test_the_rows_of_a_thorough_run_follow_from_the_samples_of_all_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(*shape: int) -> int:
        asked.append(shape)
        return 48

    for module in ("federated.options", "model.classifier"):
        monkeypatch.setattr(f"flwr_flynn.{module}.gram_rows", rows)
    pooled = FlyNNClassifier(hash_dim=64, effort="thorough").fit(X, LABELS)
    assert asked == [(X.shape[1], 3, len(X))]
    # Nothing but the sum tells how many samples there are.
    run = in_process(options(replace(PLAN, n_examples=None, effort="thorough"), gram=None), parts())
    assert set(asked) == {(X.shape[1], 3, len(X))}
    assert run.model.model_.sha256() == pooled.model_.sha256()
    assert [spec.hash_dim for spec in run.model.model_.gram.specs] == [24, 24]


def test_of_many_samples_some_judge_and_the_split_does_not_decide_which(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LearnedGram.of(OWN, X, Y, 3).scoring
    phases = "flwr_flynn.federated.phases"
    for module in (f"{phases}.gram", "flwr_flynn.model.gram"):
        monkeypatch.setattr(f"{module}.N_LEFT_OUT", 60)
    some = LearnedGram.of(OWN, X, Y, 3).scoring
    assert whole is not None
    assert some is not None
    assert some.accuracy != whole.accuracy
    for split in SPLITS:
        found = scoring_of(in_process(options(SPEC, decay=0.5), parts(split)))
        assert found is not None
        assert (found.sha256(), found.accuracy) == (some.sha256(), some.accuracy)


# ---- parties that are lost and come back


@pytest.mark.parametrize("how", ["failed", "gone", "silent"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_party_lost_in_an_exchange_is_missing_from_that_alone(phase: str, how: str) -> None:
    steps = counted()
    reasons = {"failed": "failed: no", "gone": "not there to be asked", "silent": "no reply"}
    for name in PHASES:
        if name == phase and how != "silent":
            steps.step(EVALUATE, "012" if how == "gone" else None, {"3": "failed: no"} if how == "failed" else None)
            continue
        steps.lost = {"3"} if name == phase else set()
        steps.step(EVALUATE)
    steps.lost = set()
    run = steps.rounds(1)
    missing = {name: run.state.results[name].missing for name in PHASES}
    assert missing == {name: {"party-3": reasons[how]} if name == phase else {} for name in PHASES}
    assert (run.counted.missing, run.counts.n_examples) == ({}, 240)
    # Only who is in the sums is asked to take its samples out of them.
    some = np.arange(240) % 4 != 3
    summed, tried = some if phase == "gram" else np.full(240, True), some
    fit = GramFit.of(GramMatrix.from_data(OWN, X[summed], Y[summed], 3))
    coverage = int(fit.n_per_class.sum()) / 240
    expected = fit.scoring(OWN, np.bincount(Y[tried]), *fit.tables(OWN, X[tried], Y[tried]), coverage)
    assert expected is not None
    found = scoring_of(run)
    assert found is not None
    assert (found.sha256(), found.accuracy) == (expected.sha256(), expected.accuracy)
    assert digest(run) == replace(PLAIN.model.model_, gram=expected).sha256()


@pytest.mark.parametrize("phase", PHASES)
def test_where_nobody_answers_there_is_no_gram_matrix(phase: str) -> None:
    steps = counted()
    for name in PHASES:
        steps.step(EVALUATE, failures=dict.fromkeys("0123", "failed: gone") if name == phase else None)
    run = steps.rounds(1)
    assert scoring_of(run) is None
    assert list(run.state.results[phase].missing) == [f"party-{i}" for i in range(4)]
    assert digest(run) == digest(PLAIN)
    # Weights that nobody's samples led to are not tried.
    assert ("gram evaluation" in run.traffic) == (phase == "gram evaluation")


def test_sums_without_a_class_that_is_counted_are_of_no_use() -> None:
    """They would speak against the class, whatever the sample."""
    steps = counted("one class each")
    steps.step(EVALUATE, failures={"1": "failed: no"})
    assert steps.run.state.results["gram"].fit.n_per_class[1] == 0
    run = steps.rounds(1)
    assert scoring_of(run) is None
    assert run.state.results["gram evaluation"].missing == {"party-1": "failed: no"}
    assert digest(run) == digest(PLAIN)
    # A class without samples anywhere is in no one's way.
    fewer = [{**part, "X": part["X"][keep], "y": part["y"][keep]} for part in parts() for keep in [part["y"] != "ash"]]
    assert scoring_of(in_process(options(SPEC, decay=0.5), fewer)) is not None


def test_parties_without_samples_have_no_gram_matrix() -> None:
    empty = [{**part, "X": part["X"][:0], "y": part["y"][:0]} for part in parts()[:2]]
    run = in_process(options(SPEC, decay=0.5), empty)
    assert run.state.results["gram evaluation"].scoring is None
    assert not any(run.state.results[name].missing for name in PHASES)


# ---- hostile replies


N_PRODUCTS = ROWS * (ROWS + 1) // 2


def sizes(change: Callable[[np.ndarray], Any]) -> Callable[[Reply], Reply]:
    return lambda reply: changed(reply, lambda arrays: [change(arrays[0].copy()), *arrays[1:]])


def packed(place: int, change: Callable[[np.ndarray], Any]) -> Callable[[Reply], Reply]:
    """Put another array in place of the packed sums of products, or of responses."""
    shape = {1: (1, N_PRODUCTS), 2: (3, ROWS)}[place]

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
RESULTS: dict[str, Callable[[Reply], Reply]] = {**ANY}


def figure(array: int, place: int, value: Any) -> Callable[[Reply], Reply]:
    """Put a value into the samples left out, the correct ones or the log-losses."""

    def change(arrays: list[Any]) -> list[Any]:
        tables = [unpack_numbers(each, 10**4, 2**62) for each in arrays]
        tables[array][place] = value(tables) if callable(value) else value
        return [pack_numbers(each) for each in tables]

    return lambda reply: changed(reply, change)


RESULTS |= {
    "more left out than counted": figure(0, 1, 100),
    "endless left out": figure(0, 1, 2**62),
    "more right than left out": figure(1, 4, lambda tables: tables[0][1] + 1),
    "a log-loss above that of the samples": figure(2, 3, lambda tables: 64 * 2**20 * tables[0][0] + 1),
    "an endless log-loss": figure(2, 3, 2**63 - 1),
    "an entry less": lambda reply: changed(
        reply, lambda arrays: [*arrays[:2], pack_numbers(unpack_numbers(arrays[2], 10**4, 2**62)[1:])]
    ),
    "no entries": lambda reply: changed(reply, lambda arrays: [pack_numbers(np.zeros(0, np.int64))] * 3),
    "tables in another order": lambda reply: changed(reply, lambda arrays: arrays[::-1]),
    "tables that are not packed": lambda reply: changed(reply, lambda arrays: [each.astype("<i8") for each in arrays]),
}
HOSTILE = [("gram", name, SUMS[name]) for name in SUMS] + [("gram evaluation", name, RESULTS[name]) for name in RESULTS]


@cache
def without(phase: str) -> str:
    """The model of a run that loses a party in a phase."""
    silent = counted()
    for _ in PHASES[: PHASES.index(phase)]:
        silent.step(EVALUATE)
    silent.step(EVALUATE, failures={"3": "failed"})
    return digest(silent.rounds())


@pytest.mark.parametrize(("phase", "name", "change"), HOSTILE, ids=[f"{phase}: {name}" for phase, name, _ in HOSTILE])
def test_a_hostile_reply_costs_its_sender_alone(phase: str, name: str, change: Callable[[Reply], Reply]) -> None:
    steps = counted()
    for _ in PHASES[: PHASES.index(phase)]:
        steps.step(EVALUATE)
    taken = steps.step(EVALUATE, spoil=lambda reply: change(reply) if reply.cid == "3" else reply)
    assert taken is not None
    assert taken.phase.name == phase
    assert list(taken.missing) == list(steps.run.state.results[phase].missing) == ["party-3"]
    assert "unreadable" not in taken.missing["party-3"]
    assert digest(steps.rounds()) == without(phase)


# ---- hostile requests

RUN = RunSpec(SPEC, NAMES)
COUNTS = (ClassCounts.from_data(FlyHash(SPEC), X, Y, 3),)
TWO = tuple(replace(SPEC, hash_dim=32, hash_nnz=8, seed=seed) for seed in (0, 1))
FIT = GramFit.of(GramMatrix.from_data(TWO, X, Y, 3))
LEARNED = LearnedGram.of(TWO, X, Y, 3).scoring
assert LEARNED is not None
SUMS_REQUEST = GramRequest(RunSpec(TWO, NAMES))
EVALUATION_REQUEST = GramEvaluationRequest(RunSpec(TWO, NAMES), FIT)
EVALUATION = evaluation_of(RUN, COUNTS, (ScoringRule("balanced", 0.5, 1.0),), (1.0,), gram=LEARNED)
THREE = [SUMS_REQUEST, EVALUATION_REQUEST, EVALUATION]


def specs(*found: HashSpec) -> dict[str, Any]:
    """The entries of a run of other specs."""
    prints = " ".join(FlyHash(spec).fingerprint for spec in found)
    return {"flynn-specs": deflated_specs(found), "flynn-fingerprints": prints}


def fit(place: int, value: Any, index: int | None = None) -> dict[str, Any]:
    """The figures of the fit with another value at a place."""
    return with_figure(EVALUATION_REQUEST, "flynn-fit", place, value, index)


def figures_of_gram(place: int, value: Any, index: int | None = None) -> dict[str, Any]:
    return with_figure(EVALUATION, "flynn-gram", place, value, index)


def with_figure(request: Any, entry: str, place: int, value: Any, index: int | None) -> dict[str, Any]:
    figures = json.loads(str(request.to_config()[entry]))
    if index is None:
        figures[place] = value
    else:
        figures[place][index] = value
    return {entry: json.dumps(figures)}


def gram_entries(*found: HashSpec) -> dict[str, Any]:
    """The entries of scores by other specs."""
    prints = " ".join(FlyHash(spec).fingerprint for spec in found)
    return {"flynn-gram-specs": deflated_specs(found, [SPEC]), "flynn-gram-fingerprints": prints}


def weights(value: int, shape: tuple[int, int] = (ROWS, 3)) -> Any:
    table = np.zeros(shape, np.int64)
    table[1, 1] = value
    return pack_signed(table)


N_STRENGTHS = FIT.n_strengths
WIDTH = ROWS, 3 * N_STRENGTHS
WEIGHTS, DIRECTIONS = EVALUATION_REQUEST.arrays()
WIDE = replace(SPEC, hash_dim=4000, hash_nnz=8)
REFINED = [pack_signed(np.zeros((64, 3), np.int64))]
REQUESTS: dict[str, tuple[Any, dict[str, Any], list[Any] | None]] = {
    "sums of too many rows": (SUMS_REQUEST, specs(WIDE, replace(TWO[1], hash_dim=97)), None),
    "sums of three specs": (SUMS_REQUEST, specs(*TWO, replace(TWO[0], seed=7)), None),
    "sums of other features": (SUMS_REQUEST, specs(TWO[0], HashSpec(5, 32, 2, 8, 0)), None),
    "sums by another hash": (SUMS_REQUEST, {"flynn-fingerprints": " ".join([64 * "0"] * 2)}, None),
    "sums by one hash more": (SUMS_REQUEST, {"flynn-fingerprints": " ".join([64 * "0"] * 3)}, None),
    "sums of samples of other features": (SUMS_REQUEST, specs(*(replace(each, n_features=5) for each in TWO)), None),
    "an evaluation of too many rows": (EVALUATION_REQUEST, specs(WIDE, replace(TWO[1], hash_dim=97)), None),
    "an evaluation of three specs": (EVALUATION_REQUEST, specs(*TWO, replace(TWO[0], seed=7)), None),
    "an evaluation by another hash": (EVALUATION_REQUEST, {"flynn-fingerprints": " ".join([64 * "0"] * 2)}, None),
    "no figures": (EVALUATION_REQUEST, {"flynn-fit": None}, None),
    "figures that are no JSON": (EVALUATION_REQUEST, {"flynn-fit": "[[1, 2"}, None),
    "figures that are a number": (EVALUATION_REQUEST, {"flynn-fit": 7}, None),
    "figures that are a list of numbers": (EVALUATION_REQUEST, {"flynn-fit": "[1, 2, 3]"}, None),
    "figures less": (EVALUATION_REQUEST, {"flynn-fit": "[[[0, 0, 0]], [1, 1, 1]]"}, None),
    "an endless text": (EVALUATION_REQUEST, {"flynn-fit": "[" + " " * 10**6 + "[0, 0, 0], [1, 1, 1], 0.5]"}, None),
    "biases that are no lists": (EVALUATION_REQUEST, fit(0, [0] * N_STRENGTHS), None),
    "biases of a strength less": (EVALUATION_REQUEST, fit(0, FIT.bias.tolist()[1:]), None),
    "a bias less": (EVALUATION_REQUEST, fit(0, [0, 0], 0), None),
    "a bias more": (EVALUATION_REQUEST, fit(0, [0] * 4, 0), None),
    "a float as a bias": (EVALUATION_REQUEST, fit(0, [0, 1.0, 0], 1), None),
    "a boolean as a bias": (EVALUATION_REQUEST, fit(0, [0, True, 0], 1), None),
    "a bias too large": (EVALUATION_REQUEST, fit(0, [0, LARGEST_BIAS + 1, 0], 1), None),
    "a bias too small": (EVALUATION_REQUEST, fit(0, [0, -LARGEST_BIAS - 1, 0], 1), None),
    "a size less": (EVALUATION_REQUEST, fit(1, [1, 1]), None),
    "a negative size": (EVALUATION_REQUEST, fit(1, -1, 0), None),
    "an endless size": (EVALUATION_REQUEST, fit(1, 2**48, 0), None),
    "a float as a size": (EVALUATION_REQUEST, fit(1, 80.0, 0), None),
    "sizes of nobody": (EVALUATION_REQUEST, fit(1, [0, 0, 0]), None),
    "no directions": (EVALUATION_REQUEST, fit(2, []), None),
    "a direction less": (EVALUATION_REQUEST, fit(2, [1.0] * (MOST_DIRECTIONS - 1)), None),
    "directions without end": (EVALUATION_REQUEST, fit(2, [1.0] * (MOST_DIRECTIONS + 1)), None),
    "a negative value": (EVALUATION_REQUEST, fit(2, -1.0, 0), None),
    "no strengths": (EVALUATION_REQUEST, fit(3, []), None),
    "strengths without end": (EVALUATION_REQUEST, fit(3, [1.0] * (MOST_STRENGTHS + 1)), None),
    "a strength of 0": (EVALUATION_REQUEST, fit(3, 0.0, 0), None),
    "a strength that is none": (EVALUATION_REQUEST, fit(3, float("nan"), 0), None),
    "an endless strength": (EVALUATION_REQUEST, fit(3, float("inf"), 0), None),
    "a strength that is a text": (EVALUATION_REQUEST, fit(3, "0.5", 0), None),
    "a strength that is true": (EVALUATION_REQUEST, fit(3, True, 0), None),
    "a rest less": (EVALUATION_REQUEST, fit(4, [0.0] * (N_STRENGTHS - 1)), None),
    "a negative rest": (EVALUATION_REQUEST, fit(4, -0.1, 0), None),
    "an outside that is a list": (EVALUATION_REQUEST, fit(5, [0.0]), None),
    "a negative outside": (EVALUATION_REQUEST, fit(5, -1.0), None),
    "no weights": (EVALUATION_REQUEST, {}, []),
    "weights alone": (EVALUATION_REQUEST, {}, EVALUATION_REQUEST.arrays()[:1]),
    "weights twice": (EVALUATION_REQUEST, {}, EVALUATION_REQUEST.arrays() * 2),
    "weights that are not packed": (EVALUATION_REQUEST, {}, [FIT.weights[0], DIRECTIONS]),
    "weights of the wrong shape": (EVALUATION_REQUEST, {}, [pack_signed(FIT.weights[0]), DIRECTIONS]),
    "a row less": (EVALUATION_REQUEST, {}, [weights(1, (ROWS - 1, 3 * N_STRENGTHS)), DIRECTIONS]),
    "weights too large": (EVALUATION_REQUEST, {}, [weights(LARGEST_WEIGHT + 1, WIDTH), DIRECTIONS]),
    "weights too small": (EVALUATION_REQUEST, {}, [weights(-LARGEST_WEIGHT - 1, WIDTH), DIRECTIONS]),
    "junk": (EVALUATION_REQUEST, {}, [np.arange(60, dtype=np.uint8), DIRECTIONS]),
    "directions too large": (
        EVALUATION_REQUEST, {}, [WEIGHTS, weights(LARGEST_COLUMN + 1, (ROWS, MOST_DIRECTIONS + 1))],
    ),
    "directions without the mean": (
        EVALUATION_REQUEST, {}, [WEIGHTS, weights(1, (ROWS, MOST_DIRECTIONS))],
    ),
    "a model without the weights": (EVALUATION, {}, EVALUATION.arrays()[:-1]),
    "a model without arrays": (EVALUATION, {}, []),
    "a model of more weights than announced": (EVALUATION, {"flynn-gram": None}, None),
    "a model of other weights": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], weights(1, (ROWS - 1, 3))]),
    "a model of weights too large": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], weights(LARGEST_WEIGHT + 1)]),
    "a model of weights too small": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], weights(-LARGEST_WEIGHT - 1)]),
    "a model of junk": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], np.arange(60, dtype=np.uint8)]),
    "a model of figures that are a number": (EVALUATION, {"flynn-gram": 7}, None),
    "a model of figures that are no JSON": (EVALUATION, {"flynn-gram": "[["}, None),
    "a model of figures less": (EVALUATION, {"flynn-gram": "[[0, 0, 0], 1.0, 0.5]"}, None),
    "a model of an endless text": (EVALUATION, {"flynn-gram": "[" + " " * 10**6 + "[0, 0, 0], 1.0, 0.5, 0.5]"}, None),
    "a model of a bias less": (EVALUATION, figures_of_gram(0, [0, 0]), None),
    "a model of a bias too large": (EVALUATION, figures_of_gram(0, LARGEST_BIAS + 1, 2), None),
    "a model of a bias that is a float": (EVALUATION, figures_of_gram(0, 0.0, 2), None),
    "a model of another temperature": (EVALUATION, figures_of_gram(1, 0.3), None),
    "a model of a temperature that is a text": (EVALUATION, figures_of_gram(1, "1.0"), None),
    "a model of a temperature that is true": (EVALUATION, figures_of_gram(1, True), None),
    "a model of an endless temperature": (EVALUATION, figures_of_gram(1, 10**400), None),
    "a model of a share above 1": (EVALUATION, figures_of_gram(2, 1.01), None),
    "a model of a negative share": (EVALUATION, figures_of_gram(2, -0.1), None),
    "a model of a share that is none": (EVALUATION, figures_of_gram(2, float("nan")), None),
    "a model of a share that is nothing": (EVALUATION, figures_of_gram(2, None), None),
    "a model of an accuracy above 1": (EVALUATION, figures_of_gram(3, 1.5), None),
    "a model of a leverage of 1": (EVALUATION, figures_of_gram(4, 1.0), None),
    "a model of a negative leverage": (EVALUATION, figures_of_gram(4, -0.1), None),
    "a model of an endless leverage": (EVALUATION, figures_of_gram(4, 10**400), None),
    "a model of a leverage that is a text": (EVALUATION, figures_of_gram(4, "0"), None),
    "a model of a list of leverages": (EVALUATION, figures_of_gram(4, [0.5, 0.5]), None),
    "a model of no specs of its Gram matrix": (EVALUATION, {"flynn-gram-specs": None}, None),
    "a model of specs that are a text": (EVALUATION, {"flynn-gram-specs": "[]"}, None),
    "a model of specs that are junk": (EVALUATION, {"flynn-gram-specs": b"junk"}, None),
    "a model of three specs": (EVALUATION, gram_entries(*TWO, replace(TWO[0], seed=7)), None),
    "a model of too many rows": (EVALUATION, gram_entries(WIDE, replace(TWO[1], hash_dim=97)), None),
    "a model of specs of different features": (EVALUATION, gram_entries(TWO[0], HashSpec(5, 32, 2, 8, 0)), None),
    "a model of specs of other features": (
        EVALUATION, gram_entries(*(replace(each, n_features=5) for each in TWO)), None,
    ),
    "a model of no fingerprints": (EVALUATION, {"flynn-gram-fingerprints": None}, None),
    "a model of one fingerprint": (EVALUATION, {"flynn-gram-fingerprints": 64 * "0"}, None),
    "a model of other fingerprints": (EVALUATION, {"flynn-gram-fingerprints": " ".join([64 * "0"] * 2)}, None),
    "a refined model": (
        EVALUATION, {"flynn-is-refined": True}, [*EVALUATION.arrays()[:-1], *REFINED, EVALUATION.arrays()[-1]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_is_refused_by_the_party(name: str) -> None:
    request, entries, arrays = REQUESTS[name]
    assert entries.keys() <= {PHASE: request.phase, **request.to_config()}.keys()
    assert "failed" not in refusal(request, party_of(X, LABELS, X, LABELS), entries, arrays)


@pytest.mark.parametrize("request_", THREE, ids=["sums", "trial", "evaluation"])
def test_what_is_beyond_the_memory_of_a_party_is_refused(request_: Any) -> None:
    model_needs = max(memory_needed(SPEC, 3) + 32 * 9, sum(memory_needed(spec, 3) for spec in TWO) + 64 * ROWS * 3)
    results = 24 * (6 * N_LEVELS + N_SUMS)
    needed = max(model_needs, results) if request_ is EVALUATION else memory_of_gram(ROWS, 3)
    config = {PHASE: request_.phase, **request_.to_config()}

    def asked(limit: int) -> Any:
        return party_of(X, LABELS, X, LABELS, memory_limit=limit).answer(config, request_.arrays())

    assert REFUSED not in asked(needed).metrics
    assert str(asked(needed - 1).metrics[REFUSED]).startswith("memory: ")


def test_a_party_takes_no_more_memory_than_it_was_asked_for() -> None:
    request = GramRequest(RunSpec(gram_specs([SPEC], 256), NAMES))
    party, config = party_of(X, LABELS), {PHASE: request.phase, **request.to_config()}
    assert REFUSED not in party.answer(config).metrics  # rows are drawn, code is compiled
    with traced() as memory:
        party.answer(config)
    assert memory.peak < memory_of_gram(256, 3)


def test_a_small_request_for_many_rows_allocates_nothing() -> None:
    wide = RunSpec(WIDE, NAMES)
    bomb = [pack_signed(np.zeros((4000, 3), np.int64))]
    assert bomb[0].nbytes < 1000
    party = party_of(X, LABELS, memory_limit=2**20)
    for phase, entries, arrays in (
        ("gram", wide.to_config(), []),
        (
            "gram evaluation",
            {**wide.to_config(), "flynn-fit": json.dumps([[[0] * 3], [1] * 3, [1.0], [1.0], [0.0], 0.0])},
            [bomb[0], bomb[0]],
        ),
    ):
        with traced() as memory:
            answer = party.answer({PHASE: phase, **entries}, arrays)
        assert str(answer.metrics[REFUSED]).startswith("memory: ")
        assert memory.peak < 2**18


# ---- who may have the Gram matrix


@pytest.mark.parametrize("changes", [{"fraction_evaluate": 0}, {"fraction_evaluate": 0, "distribute": True}], ids=str)
def test_where_there_is_no_gram_matrix_a_thorough_plan_is_refused(changes: dict[str, Any]) -> None:
    plan = replace(PLAN, effort="thorough")
    with raises(ConfigError, field="spec"):
        RunOptions(**options(plan, gram=None, **changes))
    assert not RunOptions(**options(plan, gram=0, **changes)).has_gram
    assert not RunOptions(**options(PLAN, gram=None, **changes)).has_gram


@pytest.mark.parametrize("rows", [0, 16, 4096, np.int64(64)])
def test_rows_within_bounds_are_taken(rows: int) -> None:
    assert RunOptions(**options(SPEC, gram=rows)).gram == rows


def test_a_run_that_hands_a_model_out_has_no_exchange_of_the_gram_matrix() -> None:
    saved = in_process(options(SPEC), parts()).federation("1")
    with raises(ConfigError, field="gram"):
        RunOptions(**options(saved.run_spec.specs, federation=saved, purpose="evaluate"))


def test_the_gram_matrix_leaves_in_clear_only_where_the_party_allows_it() -> None:
    steps = counted()
    steps.parties["3"].options = PartyOptions(name="party-3", min_examples=1)
    steps.step(EVALUATE)
    missing = steps.run.state.results["gram"].missing
    assert list(missing) == ["party-3"]
    assert "node-config gram" in missing["party-3"]
    assert digest(steps.rounds()) == without("gram")
    settings_ = {"secure": True, "evaluates": True}
    masked = Party(algorithm.party_of(X, LABELS)._held(), PartyOptions(**settings_), lambda *_: None)
    request = GramRequest(RunSpec(OWN, NAMES, bound=1024))
    assert REFUSED not in masked.answer({PHASE: request.phase, **request.to_config()}, (), TRAIN).metrics


# ---- saved and resumed


def resumed(saved: Federation, **changes: Any) -> dict[str, Any]:
    return options(saved.run_spec.specs, federation=saved, purpose="resume", **changes)


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_goes_on_without_the_gram_matrix_has_none(phase: str, tmp_path: Path) -> None:
    steps = counted()
    for _ in PHASES[: PHASES.index(phase)]:
        steps.step(EVALUATE)
    steps.run.federation("1").save(tmp_path / "f.npz")
    saved = Federation.load(tmp_path / "f.npz")
    steps.run = Run(RunOptions(**resumed(saved, gram=0, decay=0.5)))
    assert [each.name for each in steps.run.phases] == ["evaluation"]
    assert digest(steps.rounds(1)) == digest(PLAIN)


def test_a_join_that_goes_on_ends_in_the_same_model(tmp_path: Path) -> None:
    three = in_process(options(), parts()[:3]).federation("1")

    def run_of(before: Federation, purpose: str) -> Exchange:
        made = options(before.run_spec.specs, federation=before, purpose=purpose)
        joining = enumerate(parts())
        return Exchange(
            Run(RunOptions(**made)), {f"{purpose}{i}": party_of(**p, name=f"party-{i}") for i, p in joining}
        )

    whole, steps = run_of(three, "join").rounds(), run_of(three, "join")
    assert [phase.name for phase in whole.phases] == ["counts", "selection", *PHASES, "evaluation"]
    for phase in whole.phases:
        steps.step(phase.channel)
        steps.run.federation("2").save(tmp_path / "f.npz")
        again = run_of(Federation.load(tmp_path / "f.npz"), "resume")
        again.parties = steps.parties
        assert digest(again.rounds()) == digest(whole)


# ---- the law, over the wire


def test_the_sums_are_those_of_the_candidates_that_the_members_came_from() -> None:
    run = in_process(options(), parts("one class each"))
    found, (coded, scaled) = scoring_of(run), gram_specs(run.state.run_spec.specs, ROWS)
    assert found is not None
    assert found.specs == (coded, scaled)
    assert coded.coding
    assert scaled.scale is not None
    pooled = LearnedGram.of(found.specs, X, Y, 3).scoring
    assert pooled is not None
    assert pooled.sha256() == found.sha256()


# ---- parties of which only some consent


def test_a_thorough_run_in_process_says_which_parties_do_not_consent_and_how_they_would() -> None:
    parties = [algorithm.party_of(**part, min_examples=1) for part in parts()]
    thorough = RunOptions(**options(replace(PLAN, effort="thorough"), gram=None))
    with pytest.warns(UserWarning, match=r"phase gram: no answer of node 0 .*gram: expected true .*gram=True"):
        run = algorithm.federate(thorough, parties)
    assert scoring_of(run) is None


def test_the_weight_falls_with_the_share_of_the_samples_that_are_in_the_gram_matrix() -> None:
    """One party of easy samples does not take the model over."""
    steps = counted()
    steps.step(EVALUATE, "0", dict.fromkeys("123", "refused: no"))
    steps.step(EVALUATE, "0")
    found = scoring_of(steps.rounds(1))
    assert found is not None
    assert found.share == 60 / 240 / 2


def test_a_run_goes_on_without_the_evaluation_where_all_that_are_in_the_gram_matrix_have_left() -> None:
    steps = counted()
    steps.step(EVALUATE, "01", dict.fromkeys("23", "refused: no"))
    steps.step(EVALUATE, "23")
    assert steps.asked[-1] == ("evaluation", ["2", "3"])
    assert list(steps.run.state.results["gram evaluation"].missing) == ["party-0", "party-1"]
    assert digest(steps.run) == digest(PLAIN)


def test_a_thorough_run_that_goes_on_is_as_thorough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rows(*shape: int) -> int:
        asked.append(shape)
        return 48  # by the rule 1024, which takes long

    monkeypatch.setattr("flwr_flynn.federated.options.gram_rows", rows)
    stopped, files = exchange(spec=replace(PLAN, effort="thorough"), gram=None), []
    while stopped.run.due is not None:
        stopped.step(stopped.run.due.channel)
        if stopped.run.due is None or stopped.run.due.name != "counts":  # before those there is no file
            files.append(tmp_path / f"{len(files)}.npz")
            stopped.run.federation("1").save(files[-1])
    assert scoring_of(stopped.run) is not None
    assert len(files) == 5
    for file in files:
        saved = Federation.load(file)
        assert saved.is_thorough
        steps = Exchange(Run(RunOptions(**resumed(saved, gram=None))), stopped.parties)
        assert digest(steps.rounds(6)) == digest(stopped.run)
        assert not Run(RunOptions(**resumed(saved, gram=0))).options.has_gram
        assert steps.run.federation("2").is_thorough
    assert set(asked) == {(X.shape[1], 3, len(X))}
