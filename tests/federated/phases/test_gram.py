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
from flwr_flynn.federated.compression import pack, pack_signed, unpack
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions
from flwr_flynn.federated.phases.gram import GRAM, GramRequest
from flwr_flynn.federated.protocol import PHASE, REFUSED, TRAIN, Config, Reply
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec, deflated_specs
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.gram import (
    LARGEST_BIAS,
    LARGEST_CLASS_WEIGHT,
    LARGEST_WEIGHT,
    LEVELS,
    GramMatrix,
    GramScoring,
    LearnedGram,
    class_weights,
    fold_sizes,
    gram_specs,
    memory_of_gram,
)
from flwr_flynn.model.metrics import N_LEVELS, N_SUMS
from flwr_flynn.model.portable import content_shares
from flwr_flynn.model.scoring import ScoringRule
from tests.fakes import evaluation_of
from tests.federated.runs import DUE, Exchange, in_process, refusal
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
POOLED = FlyNNClassifier(hash_dim=64, gram=ROWS).fit(X, LABELS)
assert POOLED.model_.gram is not None
OWN = gram_specs([SPEC], ROWS)
SIZES = np.bincount(Y)
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
    assert found.sha256() == pooled.sha256()
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
    assert [spec.hash_dim for spec in run.model.model_.gram.specs] == [9, 9, 10, 10, 10]


# ---- parties that are lost and come back


@pytest.mark.parametrize("how", ["failed", "gone", "silent"])
def test_a_party_lost_in_the_exchange_is_missing_from_that_alone(how: str) -> None:
    steps = counted()
    reasons = {"failed": "failed: no", "gone": "not there to be asked", "silent": "no reply"}
    steps.lost = {"3"} if how == "silent" else set()
    steps.step(DUE, "012" if how == "gone" else None, {"3": "failed: no"} if how == "failed" else None)
    steps.lost = set()
    run = steps.rounds(1)
    assert run.state.absent("gram") == {"party-3": reasons[how]}
    assert (run.counted.missing, run.counts.n_examples) == ({}, 240)
    some, weights = np.arange(240) % 4 != 3, class_weights(SIZES)  # of all that are counted
    expected = GramMatrix.from_data(OWN, weights, X[some], Y[some]).scoring(OWN, weights)
    assert expected is not None
    found = scoring_of(run)
    assert found is not None
    assert found.sha256() == expected.sha256()
    assert digest(run) == replace(PLAIN.model.model_, gram=expected).sha256()


def test_where_nobody_answers_there_is_no_gram_matrix() -> None:
    steps = counted()
    steps.step(DUE, failures=dict.fromkeys("0123", "failed: gone"))
    run = steps.rounds(1)
    assert scoring_of(run) is None
    assert list(run.state.absent("gram")) == [f"party-{i}" for i in range(4)]
    assert digest(run) == digest(PLAIN)


def test_sums_without_a_class_that_is_counted_are_of_no_use() -> None:
    """They would speak against the class, whatever the sample."""
    steps = counted("one class each")
    steps.step(DUE, failures={"1": "failed: no"})
    run = steps.rounds(1)
    assert scoring_of(run) is None
    assert run.state.absent("gram") == {"party-1": "failed: no"}
    assert digest(run) == digest(PLAIN)
    # A class without samples anywhere is in no one's way.
    fewer = [{**part, "X": part["X"][keep], "y": part["y"][keep]} for part in parts() for keep in [part["y"] != "ash"]]
    assert scoring_of(in_process(options(SPEC, decay=0.5), fewer)) is not None


def test_parties_without_samples_have_no_gram_matrix() -> None:
    empty = [{**part, "X": part["X"][:0], "y": part["y"][:0]} for part in parts()[:2]]
    run = in_process(options(SPEC, decay=0.5), empty)
    assert run.state.results["gram"].scoring is None
    assert not run.state.absent("gram")


# ---- hostile replies


N_PRODUCTS = ROWS * (ROWS + 1) // 2


def sizes(change: Callable[[np.ndarray], Any]) -> Callable[[Reply], Reply]:
    return lambda reply: changed(reply, lambda arrays: [change(arrays[0].copy()), *arrays[1:]])


def packed(place: int, change: Callable[[np.ndarray], Any]) -> Callable[[Reply], Reply]:
    """Put another array in place of the packed sums of products, or of responses."""
    shape = {1: (2, N_PRODUCTS), 2: (6, ROWS)}[place]

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
    one = np.where((places[0] + places[1]) % 2 == 1, LEVELS**2 * 5, 0)
    return pack(np.stack([one, one]))


ANY: dict[str, Callable[[Reply], Reply]] = {
    "junk": lambda reply: replace(reply, tensors=[b"junk", *reply.tensors[1:]]),
    "a refusal": lambda reply: replace(reply, metrics={REFUSED: "no"}),
    "a fault of form": lambda reply: replace(reply, fault="statistic: no"),
}
SUMS: dict[str, Callable[[Reply], Reply]] = {
    **ANY,
    "sizes of other samples": sizes(lambda each: each + np.array([[1, -1, 0]] * 2)),
    "a sample less of a class": sizes(lambda each: each - np.array([[1, 0, 0], [0, 0, 0]])),
    "sizes of one fold": sizes(lambda each: each[:1]),
    "products of the wrong shape": packed(1, lambda table: pack(table[:, 1:])),
    "transposed products": packed(1, lambda table: pack(table.T)),
    "responses of the wrong shape": packed(2, lambda table: pack(table[1:])),
    "transposed responses": packed(2, lambda table: pack(table.T)),
    "responses above those of the class": packed(2, lambda table: entry(LEVELS * 60)(0 * table)),
    "products of nobody": packed(1, lambda table: pack(0 * table)),
    "products that are all the largest": packed(1, lambda table: pack(0 * table + LEVELS**2 * 60)),
    "a square below the responses": packed(1, lambda table: pack(np.where(np.arange(N_PRODUCTS) == 0, 1, table))),
    "products that are no squares": packed(1, checkerboard),
    "the whole square": packed(1, lambda table: pack(np.tile(table, 2)[:, : ROWS * ROWS])),
    "products of one fold": packed(1, lambda table: pack(table[:1])),
}


@cache
def without_one() -> str:
    """The model of a run that loses a party in the exchange."""
    silent = counted()
    silent.step(DUE, failures={"3": "failed"})
    return digest(silent.rounds())


@pytest.mark.parametrize("name", SUMS)
def test_a_hostile_reply_costs_its_sender_alone(name: str) -> None:
    steps = counted()
    taken = steps.step(DUE, spoil=lambda reply: SUMS[name](reply) if reply.cid == "3" else reply)
    assert taken is not None
    assert taken.phase is GRAM
    assert list(taken.missing) == list(steps.run.state.absent("gram")) == ["party-3"]
    assert "unreadable" not in taken.missing["party-3"]
    assert digest(steps.rounds()) == without_one()


# ---- hostile requests

RUN = RunSpec(SPEC, NAMES)
COUNTS = (ClassCounts.from_data(FlyHash(SPEC), X, Y, 3),)
TWO = tuple(replace(SPEC, hash_dim=32, hash_nnz=8, seed=seed) for seed in (0, 1))
LEARNED = LearnedGram.of(TWO, X, Y, 3).scoring
assert LEARNED is not None
SUMS_REQUEST = GramRequest(RunSpec(TWO, NAMES), (1, 2, 1))
EVALUATION = evaluation_of(RUN, COUNTS, (ScoringRule("balanced", 0.5, 1.0),), (1.0,), gram=LEARNED)
BOTH = [SUMS_REQUEST, EVALUATION]


def specs(*found: HashSpec) -> dict[str, Any]:
    """The entries of a run of other specs."""
    prints = " ".join(FlyHash(spec).fingerprint for spec in found)
    return {"flynn-specs": deflated_specs(found), "flynn-fingerprints": prints}


def biases(change: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """The biases of a model's scores, changed."""
    return {"flynn-gram": json.dumps(change(json.loads(str(EVALUATION.to_config()["flynn-gram"]))))}


def class_weights_of(value: Any) -> dict[str, Any]:
    return {"flynn-weights": json.dumps(value)}


def gram_entries(*found: HashSpec) -> dict[str, Any]:
    """The entries of scores by other specs."""
    prints = " ".join(FlyHash(spec).fingerprint for spec in found)
    return {"flynn-gram-specs": deflated_specs(found, [SPEC]), "flynn-gram-fingerprints": prints}


def weights(value: int, shape: tuple[int, int] = (ROWS, 3)) -> Any:
    table = np.zeros(shape, np.int64)
    table[1, 1] = value
    return pack_signed(table)


WIDE = replace(SPEC, hash_dim=4000, hash_nnz=8)
SIX = [replace(TWO[0], seed=seed) for seed in range(6)]
REQUESTS: dict[str, tuple[Any, dict[str, Any], list[Any] | None]] = {
    "sums of too many rows": (SUMS_REQUEST, specs(WIDE, replace(TWO[1], hash_dim=97)), None),
    "sums of six specs": (SUMS_REQUEST, specs(*SIX), None),
    "sums of other features": (SUMS_REQUEST, specs(TWO[0], HashSpec(5, 32, 2, 8, 0)), None),
    "sums by another hash": (SUMS_REQUEST, {"flynn-fingerprints": " ".join([64 * "0"] * 2)}, None),
    "sums by one hash more": (SUMS_REQUEST, {"flynn-fingerprints": " ".join([64 * "0"] * 3)}, None),
    "sums of samples of other features": (SUMS_REQUEST, specs(*(replace(each, n_features=5) for each in TWO)), None),
    "no weights": (SUMS_REQUEST, {"flynn-weights": None}, None),
    "weights that are no JSON": (SUMS_REQUEST, {"flynn-weights": "[1, 2"}, None),
    "weights that are a number": (SUMS_REQUEST, class_weights_of(7), None),
    "a weight less": (SUMS_REQUEST, class_weights_of([1, 1]), None),
    "a weight of 0": (SUMS_REQUEST, class_weights_of([1, 0, 1]), None),
    "a weight too large": (SUMS_REQUEST, class_weights_of([1, LARGEST_CLASS_WEIGHT + 1, 1]), None),
    "a weight that is a float": (SUMS_REQUEST, class_weights_of([1, 1.0, 1]), None),
    "a weight that is true": (SUMS_REQUEST, class_weights_of([1, True, 1]), None),
    "an endless text": (SUMS_REQUEST, {"flynn-weights": "[" + " " * 10**6 + "1, 1, 1]"}, None),
    "a model without the weights": (EVALUATION, {}, EVALUATION.arrays()[:-1]),
    "a model without arrays": (EVALUATION, {}, []),
    "a model of more weights than announced": (EVALUATION, {"flynn-gram": None}, None),
    "a model of other weights": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], weights(1, (ROWS - 1, 3))]),
    "a model of weights too large": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], weights(LARGEST_WEIGHT + 1)]),
    "a model of weights too small": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], weights(-LARGEST_WEIGHT - 1)]),
    "a model of junk": (EVALUATION, {}, [*EVALUATION.arrays()[:-1], np.arange(60, dtype=np.uint8)]),
    "a model of biases that are a number": (EVALUATION, {"flynn-gram": "7"}, None),
    "a model of biases that are no JSON": (EVALUATION, {"flynn-gram": "[["}, None),
    "a model of an endless text": (EVALUATION, {"flynn-gram": "[" + " " * 10**6 + "0, 0, 0]"}, None),
    "a model of a bias less": (EVALUATION, biases(lambda each: each[1:]), None),
    "a model of a bias too large": (EVALUATION, biases(lambda each: [*each[1:], LARGEST_BIAS + 1]), None),
    "a model of a bias that is a float": (EVALUATION, biases(lambda each: [*each[1:], 0.0]), None),
    "a model of a bias that is true": (EVALUATION, biases(lambda each: [*each[1:], True]), None),
    "a model of no specs of its Gram matrix": (EVALUATION, {"flynn-gram-specs": None}, None),
    "a model of specs that are a text": (EVALUATION, {"flynn-gram-specs": "[]"}, None),
    "a model of specs that are junk": (EVALUATION, {"flynn-gram-specs": b"junk"}, None),
    "a model of six specs": (EVALUATION, gram_entries(*SIX), None),
    "a model of too many rows": (EVALUATION, gram_entries(WIDE, replace(TWO[1], hash_dim=97)), None),
    "a model of specs of different features": (EVALUATION, gram_entries(TWO[0], HashSpec(5, 32, 2, 8, 0)), None),
    "a model of specs of other features": (
        EVALUATION, gram_entries(*(replace(each, n_features=5) for each in TWO)), None,
    ),
    "a model of no fingerprints": (EVALUATION, {"flynn-gram-fingerprints": None}, None),
    "a model of one fingerprint": (EVALUATION, {"flynn-gram-fingerprints": 64 * "0"}, None),
    "a model of other fingerprints": (EVALUATION, {"flynn-gram-fingerprints": " ".join([64 * "0"] * 2)}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request_is_refused_by_the_party(name: str) -> None:
    request, entries, arrays = REQUESTS[name]
    assert entries.keys() <= {PHASE: request.phase, **request.to_config()}.keys()
    assert "failed" not in refusal(request, party_of(X, LABELS, X, LABELS), entries, arrays)


@pytest.mark.parametrize("request_", BOTH, ids=["sums", "evaluation"])
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
    request = GramRequest(RunSpec(gram_specs([SPEC], 256), NAMES), (1, 1, 1))
    party, config = party_of(X, LABELS), {PHASE: request.phase, **request.to_config()}
    assert REFUSED not in party.answer(config).metrics  # rows are drawn, code is compiled
    with traced() as memory:
        party.answer(config)
    assert memory.peak < memory_of_gram(256, 3)


def test_a_small_request_for_many_rows_allocates_nothing() -> None:
    wide = RunSpec(WIDE, NAMES)
    party, config = party_of(X, LABELS, memory_limit=2**20), {**wide.to_config(), **class_weights_of([1, 1, 1])}
    party.answer({PHASE: "gram", **SUMS_REQUEST.to_config()})  # imports come with the first answer
    with traced() as memory:
        answer = party.answer({PHASE: "gram", **config}, [])
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
    steps.step(DUE)
    missing = steps.run.state.absent("gram")
    assert list(missing) == ["party-3"]
    assert "node-config gram" in missing["party-3"]
    assert digest(steps.rounds()) == without_one()
    settings_ = {"secure": True, "evaluates": True}
    masked = Party(algorithm.party_of(X, LABELS)._held(), PartyOptions(**settings_), lambda *_: None)
    request = GramRequest(RunSpec(OWN, NAMES, bound=1024), (1, 1, 1))
    assert REFUSED not in masked.answer({PHASE: request.phase, **request.to_config()}, (), TRAIN).metrics


# ---- saved and resumed


def resumed(saved: Federation, **changes: Any) -> dict[str, Any]:
    return options(saved.run_spec.specs, federation=saved, purpose="resume", **changes)


def test_a_run_that_goes_on_without_the_gram_matrix_has_none(tmp_path: Path) -> None:
    steps = counted()
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
    assert [phase.name for phase in whole.phases] == ["counts", "selection", "gram", "evaluation"]
    for phase in whole.phases:
        steps.step(phase.channel)
        steps.run.federation("2").save(tmp_path / "f.npz")
        again = run_of(Federation.load(tmp_path / "f.npz"), "resume")
        again.parties = steps.parties
        assert digest(again.rounds()) == digest(whole)


# ---- the law, over the wire


def test_the_sums_are_those_of_the_candidates_that_the_members_came_from() -> None:
    run = in_process(options(), parts("one class each"))
    found, expected = scoring_of(run), gram_specs(run.state.run_spec.specs, ROWS)
    assert found is not None
    assert found.specs == expected
    assert len(expected) == 5
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


def test_a_class_of_few_samples_stays_at_home_in_clear_and_not_in_a_secure_sum() -> None:
    fold = content_shares(X) >= 0.5
    few = np.concatenate(
        [
            np.flatnonzero((label == Y) & (fold == in_second))[:n]
            for label, sizes in enumerate(([4, 20], [5, 20], [0, 5]))
            for in_second, n in enumerate(sizes)
        ]
    )
    rest = few[Y[few] != 0]
    expected = GramMatrix.from_data(TWO, (1, 2, 1), X[rest], Y[rest])
    assert sorted(map(sorted, expected.n_per_class.T.tolist())) == [[0, 0], [0, 5], [5, 20]]
    assert (fold_sizes(X[rest], Y[rest], 3) == expected.n_per_class).all()
    party = party_of(X[few], LABELS[few], min_examples=5)
    assert SUMS_REQUEST.measured(admitted(party, SUMS_REQUEST)) == (expected, 54)
    secure = replace(SUMS_REQUEST, run=replace(SUMS_REQUEST.run, bound=64))
    everything = GramMatrix.from_data(TWO, (1, 2, 1), X[few], Y[few])
    assert secure.measured(admitted(party, secure)) == (everything, 54)
    alone = party_of(X[few], LABELS[few], min_examples=1)
    assert SUMS_REQUEST.measured(admitted(alone, SUMS_REQUEST)) == (everything, 54)


def admitted(party: Party, request: GramRequest) -> Party:
    GramRequest.from_config(Config({PHASE: "gram", **request.to_config()}), (), party).admit(party.options)
    party._admitted = request.discloses
    return party


def test_the_server_takes_sums_without_a_class_that_stayed_at_home() -> None:
    some = parts()
    parties = {
        str(i): party_of(**part, name=f"party-{i}", min_examples=8 if i == 3 else 1) for i, part in enumerate(some)
    }
    rows = np.flatnonzero(np.arange(240) % 4 == 3)
    kept = np.concatenate([rows[Y[rows] == 0][:15], rows[Y[rows] != 0]])
    parties["3"] = party_of(X[kept], LABELS[kept], X[:9], LABELS[:9], name="party-3", min_examples=8)
    steps = Exchange(Run(RunOptions(**options(SPEC, decay=0.5))), parties)
    run = steps.rounds()
    assert not run.state.absent("gram")
    others = np.concatenate([np.flatnonzero(np.arange(240) % 4 != 3), kept[15:]])
    assert run.state.results["gram"].n_examples == len(others) == run.counts.n_examples - 15
    weights = class_weights(SIZES - np.array([(Y[rows] == 0).sum() - 15, 0, 0]))
    expected, found = GramMatrix.from_data(OWN, weights, X[others], Y[others]).scoring(OWN, weights), scoring_of(run)
    assert expected is not None
    assert found is not None
    assert found.sha256() == expected.sha256()


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
    assert len(files) == 4
    for file in files:
        saved = Federation.load(file)
        assert saved.is_thorough
        steps = Exchange(Run(RunOptions(**resumed(saved, gram=None))), stopped.parties)
        assert digest(steps.rounds(6)) == digest(stopped.run)
        assert not Run(RunOptions(**resumed(saved, gram=0))).options.has_gram
        assert steps.run.federation("2").is_thorough
    assert set(asked) == {(X.shape[1], 3, len(X))}
