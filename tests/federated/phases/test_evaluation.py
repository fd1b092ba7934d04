"""The evaluation: the model reaches the parties, and only whole confusion matrices are added up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.metrics import confusion_matrix

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.compression import pack, pack_signed, unpack
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phases.evaluation import Result, SecureEvaluationRequest, evaluated
from flwr_flynn.federated.protocol import EVALUATE, REFUSED, TRAIN, UNKEPT, Reply
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts, Tables
from flwr_flynn.model.metrics import N_LEVELS, above_floor, overall, scored, scores
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from tests.fakes import config_of, evaluation_of
from tests.federated.runs import GRID, LABELS, NAMES, X, Y, exchange, in_process, options_for, refusal, replied, shares
from tests.raising import raises

RUN = RunSpec(GRID[0], NAMES)
COUNTS = ClassCounts.from_data(FlyHash(GRID[0]), X, Y, 3)
REQUEST = evaluation_of(RUN, (COUNTS,), (ScoringRule("balanced", 0.8, 0.5),), (1.0,))
COMMITTEE = evaluation_of(
    RunSpec(GRID, NAMES),
    tuple(ClassCounts.from_data(FlyHash(spec), X, Y, 3) for spec in GRID),
    (ScoringRule("balanced", 0.8, 0.5), ScoringRule("balanced", 0.5, 2.0)),
    (0.75, 0.25),
)
NOISE = SimulatedRelease(LaplaceCounts(5.0, hash_nnz=GRID[0].hash_nnz, n_classes=3), 3)


# ---- at a party


def matrices_of(reply: Reply) -> tuple[Any, Any]:
    """Both confusion matrices in a reply."""
    matrix, own, *_ = codec.read_tensors(reply.tensors)
    return matrix, unpack(own, (3, 3), 150)


def test_a_party_tries_the_model_on_its_held_out_samples() -> None:
    received: list[FlyNNClassifier] = []
    reply = replied(REQUEST, party_of(X, LABELS, X[::3], LABELS[::3], name="Basel", on_model=received.append))
    predicted = received[0].with_prior().predict(X[::3])
    matrix, own = matrices_of(reply)
    np.testing.assert_array_equal(own, confusion_matrix(LABELS[::3], received[0].predict(X[::3]), labels=NAMES))
    np.testing.assert_array_equal(matrix, confusion_matrix(LABELS[::3], predicted, labels=NAMES))
    assert reply.n_examples == 50
    assert reply.metrics == {"accuracy": np.mean(LABELS[::3] == predicted), "flynn-party": "Basel"}
    assert received[0].counts_ == COUNTS


def test_a_party_tries_a_committee_as_a_whole() -> None:
    received: list[FlyNNClassifier] = []
    reply = replied(COMMITTEE, party_of(X, LABELS, X[::3], LABELS[::3], on_model=received.append))
    (model,) = received
    assert model.with_prior().model_.sha256() == COMMITTEE.model.sha256()
    assert [(each.scoring, each.weight) for each in model.model_.members] == [
        (ScoringRule("balanced", 0.8, 0.5), 0.75),
        (ScoringRule("balanced", 0.5, 2.0), 0.25),
    ]
    matrices = matrices_of(reply)
    for matrix, each in zip(matrices, (model.with_prior(), model), strict=True):
        np.testing.assert_array_equal(matrix, confusion_matrix(LABELS[::3], each.predict(X[::3]), labels=NAMES))


def test_the_model_is_read_as_the_server_says() -> None:
    received: list[FlyNNClassifier] = []
    run = RunSpec(GRID[0], NAMES, feature_names=list("abcd"))
    request = evaluation_of(run, (COUNTS,), (ScoringRule("novelty", 0.25, 3.0),), (1.0,))
    replied(request, party_of(X, LABELS, on_model=received.append, class_prior=False))
    (model,) = received
    assert (model.rule, model.model_.member.scoring.decay, model.model_.member.temperature) == ("novelty", 0.25, 3.0)
    assert list(model.feature_names_in_) == list("abcd")
    named = pd.DataFrame(X, columns=list("abcd"))
    assert np.array_equal(model.predict_proba(named), FlyNNClassifier.from_model(request.model).predict_proba(named))


@pytest.mark.parametrize("held_out", [(), (X[:0], LABELS[:0])])
def test_without_samples_held_out_the_model_is_taken_and_nothing_reported(held_out: Any) -> None:
    received: list[FlyNNClassifier] = []
    reply = replied(REQUEST, party_of(X, LABELS, *held_out, on_model=received.append))
    assert (list(reply.tensors), reply.n_examples, reply.metrics) == ([], 0, {})
    assert len(received) == 1


def test_a_party_that_only_takes_the_model_tells_nothing() -> None:
    received: list[FlyNNClassifier] = []
    party = party_of(X, LABELS, X, LABELS, name="Basel", on_model=received.append)
    reply = replied(replace(REQUEST, tries=False), party)
    assert (list(reply.tensors), reply.n_examples, reply.metrics) == ([], 0, {"flynn-party": "Basel"})
    assert len(received) == 1


ARRAYS = REQUEST.arrays()


@pytest.mark.parametrize(
    ("entries", "arrays", "said"),
    [
        ({}, [], "message"),
        ({}, [ARRAYS[0], ARRAYS[1][:2]], "counts"),
        ({}, [ARRAYS[0], ARRAYS[1] // 2], "counts"),
        ({}, [ARRAYS[0] ^ 1, ARRAYS[1]], "fingerprint"),
        *(
            ({"flynn-scorings": scorings}, ARRAYS, "scoring")
            for scorings in (
                None,
                7,
                "{",
                "[]",
                "{}",
                "[[]]",
                '["balanced", 0.5, 1, 1]',
                '[["balanced", 0.5, 1]]',
                '[["balanced", 0.5, null, 1]]',
                '[["balanced", 0.5, 0, 1]]',
                '[["balanced", 0.5, "1", 1]]',
                '[["balanced", "auto", 1, 1]]',
                '[["balanced", NaN, 1, 1]]',
                '[["balanced", 7, 1, 1]]',
                '[["anything", 0.5, 1, 1]]',
                '[[["balanced"], 0.5, 1, 1]]',
                '[["balanced", 0.5, 1, 0]]',
                '[["balanced", 0.5, 1, -1]]',
                '[["balanced", 0.5, 1, NaN]]',
                '[["balanced", 0.5, 1, 1.5]]',
                '[["balanced", 0.5, 1, Infinity]]',
                '[["balanced", 0.5, 1, "1"]]',
                '[["balanced", 0.5, 1, true]]',
                '[["balanced", 0.5, 1, null]]',
                '[["balanced", 0.5, 1, 1], ["balanced", 0.5, 1, 1]]',
            )
        ),
        ({"flynn-tries": 1}, ARRAYS, "flynn-tries"),
        ({"flynn-n-releases": -1}, ARRAYS, "flynn-n-releases"),
        ({"flynn-n-releases": True}, ARRAYS, "flynn-n-releases"),
        ({"flynn-fingerprints": "0" * 64}, ARRAYS, "fingerprint"),
        (RunSpec(GRID, NAMES).to_config(), ARRAYS, "message"),
        (RunSpec(GRID, NAMES).to_config(), COMMITTEE.arrays(), "scoring"),
        (COMMITTEE.to_config(), ARRAYS, "message"),
        (COMMITTEE.to_config(), COMMITTEE.arrays()[2:] + ARRAYS, "fingerprint"),
        ({}, [*ARRAYS, pack_signed(np.zeros((64, 3), np.int64))], "message"),  # weights that were not announced
    ],
)
def test_hostile_models_are_refused(entries: dict[str, Any], arrays: list[Any], said: str) -> None:
    party = party_of(X, LABELS, X, LABELS, on_model=lambda _: pytest.fail("taken"))
    assert said in refusal(REQUEST, party, entries, arrays)


@pytest.mark.parametrize(
    ("X_test", "y_test"),
    [
        (X[:, :3], LABELS),
        (X[0], LABELS[:1]),
        (np.full((1, 4), np.nan), ["setosa"]),
        (sp.coo_array([[123456.0, np.inf, 0, 0]]), ["setosa"]),
        (X[:1], ["123456"]),
        (X[:1], ["setosa"] * 2),
    ],
)
def test_test_samples_that_do_not_fit_are_named_and_the_model_is_kept(X_test: Any, y_test: Any) -> None:
    received: list[FlyNNClassifier] = []
    reply = replied(REQUEST, party_of(X, LABELS, X_test, y_test, on_model=received.append))
    assert reply.n_examples == 0
    assert reply.metrics.keys() == {REFUSED}
    assert reply.metrics[REFUSED].startswith("X_test, y_test: ")
    assert "123456" not in reply.metrics[REFUSED]
    assert len(received) == 1


@pytest.mark.parametrize("convert", [sp.coo_array, sp.csc_matrix, np.asfortranarray, np.ndarray.tolist])
def test_many_test_samples_are_tried_in_batches(convert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    party = party_of(X, LABELS, convert(X), LABELS)
    whole = replied(REQUEST, party)
    monkeypatch.setattr("flwr_flynn.federated.sample_access._SCORES", 256 * 7)
    assert replied(REQUEST, party) == whole


def test_a_second_matrix_of_zeros_takes_next_to_no_bytes() -> None:
    labels, n = range(200), 200
    run = RunSpec(GRID[0], labels)
    counts = ClassCounts.from_data(FlyHash(GRID[0]), X[np.arange(n) % 150], np.arange(n), n)
    request = evaluation_of(run, (counts,), (ScoringRule("balanced", 0.8, 0.5),), (1.0,))
    party = party_of(X, np.arange(150), X, np.arange(150), class_prior=False)
    sizes = [len(tensor) for tensor in replied(request, party).tensors]
    assert sizes[0] > 8 * n * n
    assert sizes[1] < 1000


# ---- at the server

GOOD, BAD = [[3, 0, 0], [0, 2, 1], [0, 0, 4]], [[0, 1, 0], [0, 1, 0], [0, 0, 0]]


def with_matrix(reply: Reply, matrix: Any, n: Any = None, own: Any = None) -> Reply:
    """The reply with these confusion matrices, zeros for the second by default, and without scores."""
    matrix = np.array(matrix)
    own = np.zeros_like(matrix) if own is None else np.array(own)
    arrays = [matrix, pack(own), pack(np.zeros((6, N_LEVELS), np.int64)), np.zeros(6, np.int64)]
    return replace(reply, tensors=codec.write_tensors(arrays), n_examples=int(matrix.sum()) if n is None else n)


def with_matrices(reply: Reply, shared: Any, own: Any) -> Reply:
    return with_matrix(reply, shared, own=own)


HOSTILE: dict[str, Any] = {
    "another number": lambda reply: with_matrix(reply, GOOD, 9),
    "too large": lambda reply: with_matrix(reply, [[2**48 + 1, 0, 0], [0, 0, 0], [0, 0, 0]]),
    "wraps around": lambda reply: with_matrix(reply, [[2**62] * 3, [2**62] * 1 + [10, 0], [0] * 3], 10),
    "four matrices": lambda reply: replace(reply, tensors=[*reply.tensors, *reply.tensors]),
    "three matrices": lambda reply: replace(reply, tensors=[*reply.tensors, reply.tensors[0]]),
    "other samples in the second": lambda reply: with_matrices(reply, GOOD, [[3, 0, 0], [0, 2, 0], [0, 0, 5]]),
    "more samples in the second": lambda reply: with_matrices(reply, BAD, GOOD),
    "a second that wraps around": lambda reply: with_matrices(reply, GOOD, [[2**62] * 3, [2**62, 10, 0], [0] * 3]),
    "junk": lambda reply: replace(reply, tensors=[b"junk"]),
    "a refusal": lambda reply: replace(reply, metrics={REFUSED: "no"}),
    "a fault of form": lambda reply: replace(reply, fault="statistic: no"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_costs_its_sender_alone(name: str) -> None:
    steps = exchange(GRID[0], decay=0.5)
    steps.step(TRAIN)
    before = steps.run.counts.sha256(), steps.run.model.model_.member.scoring.decay
    taken = steps.step(EVALUATE, spoil=lambda reply: HOSTILE[name](reply) if reply.cid == "3" else reply)
    assert taken is not None
    evaluation = steps.run.state.results["evaluation"]
    assert list(taken.missing) == list(steps.run.state.absent("evaluation")) == ["party-3"]
    assert evaluation.figures["examples"] == 30 - len(shares()[3]["y_test"])
    assert (steps.run.counts.sha256(), steps.run.model.model_.member.scoring.decay) == before


def test_confusion_matrices_are_added_up() -> None:
    steps = exchange(GRID[0], decay=0.5)
    steps.step(TRAIN)
    matrices = {"0": GOOD, "1": BAD}

    def spoil(reply: Reply) -> Reply:
        if reply.cid in matrices:
            return with_matrix(reply, matrices[reply.cid])
        return replace(reply, tensors=[], n_examples=0)

    steps.step(EVALUATE, spoil=spoil)
    figures = steps.run.state.results["evaluation"].figures
    total = np.array(GOOD) + np.array(BAD)
    assert {name: figures[name] for name in scores(total)} == scores(total)
    assert figures["confusion"] == total.tolist()
    assert figures["worst_party"] == {"name": "party-1", "accuracy": 0.5, "examples": 2}
    assert figures["best_party"] == {"name": "party-0", "accuracy": 0.9, "examples": 10}
    assert steps.run.state.absent("evaluation") == {}


def test_an_evaluation_without_samples_reports_nothing() -> None:
    steps = exchange(GRID[0], decay=0.5)
    steps.step(TRAIN)
    steps.step(EVALUATE, spoil=lambda reply: replace(reply, tensors=[], n_examples=0))
    evaluation = steps.run.state.results["evaluation"]
    assert (evaluation.figures, steps.run.state.absent("evaluation")) == (None, {})
    tables = np.array(GOOD), np.array(GOOD), np.zeros((1, 1), np.int64)
    right = int(np.trace(tables[0]))
    assert evaluated(Tables(tables), {"a": Result((right, right), int(tables[0].sum()))}) is not None


def test_figures_that_nobody_asked_for_are_not_looked_at() -> None:
    request = replace(REQUEST, tries=False)
    reply = with_matrix(replied(request, party_of(X, LABELS)), GOOD)
    assert request.read(codec.read_tensors(reply.tensors), reply, None) is None
    with pytest.raises(PayloadError):
        REQUEST.read([], reply, None)


def test_who_could_not_keep_the_model_is_told() -> None:
    steps = exchange(GRID[0], decay=0.5)
    steps.step(TRAIN)
    said = {"0": "disk\nfull", "1": 7}
    steps.step(
        EVALUATE,
        spoil=lambda reply: (
            replace(reply, metrics={**reply.metrics, UNKEPT: said[reply.cid]}) if reply.cid in said else reply
        ),
    )
    evaluation = steps.run.state.results["evaluation"]
    assert evaluation.unkept == {"party-0": "disk full", "party-1": "no reason given"}
    assert steps.run.state.absent("evaluation") == {}


# ---- the parties' class prior


def test_results_of_both_models_are_reported_over_the_same_samples() -> None:
    steps = exchange(GRID[0], decay=0.5)
    steps.step(TRAIN)
    shared, own = [[3, 0, 0], [1, 2, 1], [0, 0, 3]], [[2, 1, 0], [0, 4, 0], [0, 0, 3]]

    def spoil(reply: Reply) -> Reply:
        if reply.cid == "0":
            return with_matrices(reply, shared, own)
        return with_matrix(reply, BAD) if reply.cid == "1" else replace(reply, tensors=[], n_examples=0)

    taken = steps.step(EVALUATE, spoil=spoil)
    assert taken is not None
    assert taken.missing == {}
    figures = steps.run.state.results["evaluation"].figures
    assert (figures["confusion"], figures["examples"]) == ((np.array(shared) + BAD).tolist(), 12)
    class_prior = figures["class_prior"]
    # The party that sent one matrix has the shared model.
    assert (class_prior["confusion"], class_prior["examples"], class_prior["sent"]) == (
        (np.array(own) + BAD).tolist(),
        12,
        1,
    )
    assert class_prior["accuracy"] == 10 / 12
    assert class_prior["worst_party"] == {"name": "party-1", "accuracy": 0.5, "examples": 2}


def test_without_class_prior_there_is_nothing_about_them() -> None:
    run = in_process(options_for(GRID[0], decay=0.5), shares("pathological"), class_prior=False)
    assert run.state.results["evaluation"].figures["class_prior"] is None
    both = in_process(options_for(GRID[0], decay=0.5), shares("pathological"))
    figures = both.state.results["evaluation"].figures
    assert figures["class_prior"]["sent"] == sum(len(share["y_test"]) > 0 for share in shares("pathological"))
    shared = run.state.results["evaluation"].figures
    assert {name: figures[name] for name in shared if name != "class_prior"} == {
        name: shared[name] for name in shared if name != "class_prior"
    }


@pytest.mark.parametrize("spec", [GRID[0], GRID])
@pytest.mark.parametrize("how", ["iid", "dirichlet", "pathological"])
def test_what_is_shared_is_the_same_bytes_at_server_and_parties(spec: Any, how: str, tmp_path: Path) -> None:
    received: list[FlyNNClassifier] = []
    run = in_process(options_for(spec), shares(how), on_model=received.append)
    shared = run.model.model_
    run.model.save(tmp_path / "server.npz")
    with np.load(tmp_path / "server.npz") as server:
        for model in received:
            model.save(tmp_path / "party.npz")
            with np.load(tmp_path / "party.npz") as mine:
                assert set(mine) == set(server) > {"prior"}
                for name in set(server) - {"digest", "prior"}:
                    assert (mine[name].dtype, mine[name].tobytes()) == (server[name].dtype, server[name].tobytes())
            assert model.with_prior().model_.sha256() == shared.sha256()
    if how != "iid":
        assert any(not np.array_equal(model.model_.prior, shared.prior) for model in received)


def skewed() -> tuple[Any, Any]:
    """Samples of a party that has hardly any but two classes, which resemble each other."""
    rows = np.concatenate([np.arange(50, 98), np.arange(100, 103)])
    return X[rows], LABELS[rows]


def test_a_party_without_a_prior_keeps_the_shared_model() -> None:
    X_own, y_own = skewed()
    for X_train, y_train, options in (
        (X[:0], LABELS[:0], {}),  # no samples
        (X_own[:, :3], y_own, {}),  # not of this form
        (X_own, y_own, {"class_prior": False}),
    ):
        received: list[FlyNNClassifier] = []
        reply = replied(REQUEST, party_of(X_train, y_train, X, LABELS, on_model=received.append, **options))
        assert REFUSED not in reply.metrics
        assert received[0].model_.sha256() == REQUEST.model.sha256()
        shared, own = matrices_of(reply)
        np.testing.assert_array_equal(own, 0 if options else shared)


@pytest.mark.parametrize("tries", [True, False])
def test_noise_budgets_and_secure_sums_send_nothing_of_class_prior(tries: bool, tmp_path: Path) -> None:
    noisy = evaluation_of(
        RunSpec(GRID[0], NAMES, NOISE), (NOISE.release(COUNTS),), (ScoringRule("balanced", 0.8, 0.5),), (1.0,), 1, tries
    )
    secure = evaluation_of(
        RunSpec(GRID[0], NAMES, bound=256), (COUNTS,), (ScoringRule("balanced", 0.8, 0.5),), (1.0,), tries=tries
    )
    plain = replace(REQUEST, tries=tries)
    budget = Budget(tmp_path / "state", Policy(10.0, 1e-4, mechanisms=["laplace", "simulated"]))
    for request, options, has_prior in (
        (noisy, {}, False),
        (noisy, {"budget": budget, "evaluates": True}, False),
        (plain, {"budget": budget, "evaluates": True}, False),
        (plain, {"secure": True, "evaluates": True}, True),  # stays at home
        (secure, {"secure": True, "evaluates": True}, True),
        (secure, {}, True),
    ):
        received: list[FlyNNClassifier] = []
        reply = replied(request, party_of(*skewed(), X, LABELS, on_model=received.append, **options))
        assert REFUSED not in reply.metrics
        assert len(reply.tensors) == 4 * tries
        assert reply.metrics.keys() == ({"accuracy"} if tries else set())
        assert (received[0].model_.sha256() != request.model.sha256()) == has_prior
        if tries:
            matrix, own = matrices_of(reply)
            assert not own.any()
            expected = confusion_matrix(LABELS, received[0].with_prior().predict(X), labels=NAMES)
            np.testing.assert_array_equal(matrix, expected)


def test_a_second_matrix_beside_noise_or_a_secure_sum_is_refused() -> None:
    for mode in ({"mechanism": NOISE}, {"bound": 256}):
        request = replace(REQUEST, run=RunSpec(GRID[0], NAMES, **mode))
        reply = with_matrices(replied(REQUEST, party_of(X, LABELS, X, LABELS)), GOOD, GOOD)
        with pytest.raises(PayloadError):
            request.read(codec.read_tensors(reply.tensors), reply, None)


def test_results_of_a_secure_sum_do_not_leave_in_clear() -> None:
    clear = SecureEvaluationRequest(RUN, REQUEST.model)
    party = party_of(X, LABELS, X, LABELS, secure=True)
    assert refusal(clear, party, {}).startswith("bound: expected the bound of a secure sum")


def test_a_secure_party_tells_nothing_of_its_training_samples_in_an_evaluation() -> None:
    seen = []
    for rows in (slice(0, 150), slice(0, 60), slice(50, 110)):  # of other class frequencies
        party = party_of(X[rows], LABELS[rows], X, LABELS, secure=True, evaluates=True)
        answer = party.answer(config_of(REQUEST), REQUEST.arrays())
        assert REFUSED not in answer.metrics
        seen.append([matrix.tolist() for matrix in answer.arrays])
    assert seen[0] == seen[1] == seen[2]
    assert not unpack(np.array(seen[0][1], np.uint8), (3, 3), 150).any()  # the second matrix


# ---- histograms of scores


def scores_of(reply: Reply) -> list[Any]:
    return codec.read_tensors(reply.tensors)[-2:]


def test_scores_are_those_of_the_shared_model_above_the_floor() -> None:
    received: list[FlyNNClassifier] = []
    test = np.r_[0:20, 50:60, 100:103]  # of the last class fewer than the floor
    reply = replied(REQUEST, party_of(*skewed(), X[test], LABELS[test], on_model=received.append))
    model = received[0].with_prior()
    found = scored(model.predict_proba(X[test]), Y[test], model.model_.scores(X[test]).argmax(axis=1))
    told = above_floor(*found, 5)
    table, sums = scores_of(reply)
    np.testing.assert_array_equal(sums, told[1])
    np.testing.assert_array_equal(unpack(table, told[0].shape, 33), told[0])
    assert told[0].sum(axis=1).tolist() == [13, 20, 23, 10, 0, 0]
    few = replied(REQUEST, party_of(X, LABELS, X[:4], LABELS[:4]))
    hidden = scores_of(few)
    assert not unpack(hidden[0], told[0].shape, 4).any()
    assert not hidden[1].any()


@pytest.mark.parametrize("how", ["iid", "dirichlet", "pathological"])
def test_figures_do_not_depend_on_the_split(how: str) -> None:
    run = in_process(options_for(GRID[0], decay=0.5), shares(how), min_examples=1)
    found = run.state.results["evaluation"].figures["figures"]
    everything = {name: np.concatenate([share[name] for share in shares(how)]) for name in shares()[0]}
    pooled = in_process(options_for(GRID[0], decay=0.5, min_parties=1), [everything], min_examples=1)
    expected = pooled.state.results["evaluation"].figures["figures"]
    assert {name: found[name] for name in found.keys() - {"parties"}} == {
        name: expected[name] for name in expected.keys() - {"parties"}
    }
    assert [each["label"] for each in found["classes"]] == list(NAMES)
    assert found["overall"]["accuracy"][0] == run.state.results["evaluation"].figures["accuracy"]
    assert {each["name"] for each in found["parties"]} <= {f"party-{i}" for i in range(4)}


SCORES: dict[str, Any] = {
    "one sample of a class less": lambda table, sums: (table * (np.arange(6) != 3)[:, None], sums),
    "another number of samples": lambda table, sums: (table, sums + np.array([1, 0, 0, 0, 0, 0])),
    "sums over fewer samples": lambda table, sums: (table, sums - np.array([1, 0, 0, 0, 0, 0])),
    "more right than in the matrix": lambda table, sums: (table, sums + np.array([0, 1, 0, 0, 0, 0])),
    "too large a loss": lambda table, sums: (table, sums + np.array([0, 0, 2**52, 0, 0, 0])),
    "negative": lambda table, sums: (table, -sums),
    "another shape": lambda table, sums: (table[:4], sums),
    "fewer sums": lambda table, sums: (table, sums[:5]),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_that_do_not_fit_the_matrix_are_refused(name: str) -> None:
    reply = replied(REQUEST, party_of(X, LABELS, X, LABELS, class_prior=False))
    matrix, own, packed, sums = codec.read_tensors(reply.tensors)
    assert REQUEST.read([matrix, own, packed, sums], reply, None) is not None
    table, sums = SCORES[name](unpack(packed, (6, N_LEVELS), 150), sums)
    with pytest.raises(PayloadError):
        REQUEST.read([matrix, own, pack(table), sums], reply, None)


SEX = Schema([Column("sex", "category", ["f", "m"]), *(Column(name, "number", gaps=False) for name in "abcd")])


def with_sex(rows: Any, sexes: Any) -> pd.DataFrame:
    return pd.DataFrame(X[rows], columns=list("abcd")).assign(sex=sexes)


def test_figures_of_subgroups_are_those_of_their_samples() -> None:
    spec = replace(GRID[0], n_features=SEX.width, center=np.zeros(SEX.width))
    sexes = np.array(["f", "m", "m", None, "x"], object)[np.arange(150) % 5]
    parties = [
        party_of(with_sex(part, sexes[part]), LABELS[part], with_sex(part, sexes[part]), LABELS[part], min_examples=1)
        for part in (np.arange(0, 150, 2), np.arange(1, 150, 2))
    ]
    options = options_for(spec, decay=0.5, min_parties=2, feature_names=SEX, group_column="sex")
    run = federate(RunOptions(**options), parties)
    groups = run.state.results["evaluation"].figures["figures"]["groups"]
    assert groups["column"] == "sex"
    model = run.model
    for level, rows in (("f", sexes == "f"), ("m", sexes == "m"), ("(other)", sexes == "x"), ("(missing)", None)):
        chosen = np.flatnonzero(rows if rows is not None else [each is None for each in sexes])
        inputs = SEX.encode(with_sex(chosen, sexes[chosen]))
        read = model.model_.scores(inputs)
        found = scored(model.model_.probabilities(read), Y[chosen], read.argmax(axis=1))
        assert {"level": level, **overall(*found)} in groups["levels"]
    assert len(groups["levels"]) == 4


def test_a_subgroup_below_the_floor_does_not_follow_from_the_other_levels() -> None:
    spec = replace(GRID[0], n_features=SEX.width, center=np.zeros(SEX.width))
    sexes = np.array(["f"] * 2 + ["m"] * 140 + ["x"] * 8, object)
    party = party_of(*[with_sex(np.arange(150), sexes), LABELS] * 2)
    options = options_for(spec, decay=0.5, min_parties=1, feature_names=SEX, group_column="sex")
    groups = federate(RunOptions(**options), [party]).state.results["evaluation"].figures["figures"]["groups"]
    assert [(each["level"], each["examples"]) for each in groups["levels"]] == [("m", 140)]


@pytest.mark.parametrize("column", ["a", "height"])
def test_a_subgroup_is_by_a_category_of_the_schema(column: str) -> None:
    spec = replace(GRID[0], n_features=SEX.width, center=np.zeros(SEX.width))
    with raises(ConfigError, field="group_column"):
        RunOptions(**options_for(spec, feature_names=SEX, group_column=column))
    with raises(ConfigError, field="group_column"):
        RunOptions(**options_for(GRID[0], group_column="sex"))
