"""The evaluation: the model reaches the parties.

Only whole confusion matrices are added up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.metrics import confusion_matrix

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.compression import unpack
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.protocol import EVALUATE, REFUSED, UNKEPT, Reply
from flwr_flynn.federated.reply_fields import Sizes, to_arrays
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.metrics import above_floor, accuracies, of_level, scored
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from tests.fakes import evaluation_of, tally_of
from tests.federated.registry import CASES
from tests.federated.runs import (
    GRID,
    LABELS,
    NAMES,
    X,
    Y,
    exchange,
    in_process,
    options_for,
    replied,
    shares,
)
from tests.raising import raises

RUN = RunSpec(GRID[0], NAMES)
COUNTS = ClassCounts.from_data(FlyHash(GRID[0]), X, Y, 3)
REQUEST = evaluation_of(RUN, (COUNTS,), (ScoringRule("balanced", 0.8, 0.5),), (1.0,))
NOISE = SimulatedRelease(LaplaceCounts(5.0, hash_nnz=GRID[0].hash_nnz, n_classes=3), 3)


# ---- at a party


def matrices_of(reply: Reply) -> tuple[Any, Any]:
    """Both confusion matrices in a reply."""
    matrix, own, *_ = codec.read_tensors(reply.tensors)
    return matrix, unpack(own, (3, 3), 150)


@pytest.mark.parametrize(
    "request_", [REQUEST, CASES["evaluation"].request], ids=["one", "committee"]
)
def test_a_party_tries_the_model_on_its_held_out_samples(
    request_,
):
    received: list[FlyNNClassifier] = []
    reply = replied(
        request_,
        party_of(
            X, LABELS, X[::3], LABELS[::3], name="Basel", on_model=received.append
        ),
    )
    (model,) = received
    shared = model.with_prior()
    for matrix, classifier in zip(matrices_of(reply), (shared, model), strict=True):
        np.testing.assert_array_equal(
            matrix,
            confusion_matrix(LABELS[::3], classifier.predict(X[::3]), labels=NAMES),
        )
    assert reply.n_examples == 50
    assert reply.metrics == {
        "accuracy": np.mean(LABELS[::3] == shared.predict(X[::3])),
        "flynn-party": "Basel",
    }
    assert shared.model_.sha256() == request_.model.sha256()


@pytest.mark.parametrize(
    ("held_out", "tries"),
    [((), True), ((X[:0], LABELS[:0]), True), ((X, LABELS), False)],
    ids=["none", "empty", "few"],
)
def test_a_party_that_tries_nothing_takes_the_model_and_tells_nothing(held_out, tries):
    received: list[FlyNNClassifier] = []
    party = party_of(X, LABELS, *held_out, name="Basel", on_model=received.append)
    reply = replied(replace(REQUEST, tries=tries), party)
    assert list(reply.tensors) == []
    assert reply.n_examples == 0
    assert reply.metrics == {"flynn-party": "Basel"}
    assert len(received) == 1


def test_test_samples_that_do_not_fit_are_named_and_the_model_is_kept():
    received: list[FlyNNClassifier] = []
    reply = replied(
        REQUEST, party_of(X, LABELS, X[:, :3], LABELS, on_model=received.append)
    )
    assert str(reply.metrics[REFUSED]).startswith("X_test, y_test: ")
    assert len(received) == 1


@pytest.mark.parametrize(
    "convert", [sp.coo_array, sp.csc_matrix, np.asfortranarray, np.ndarray.tolist]
)
def test_many_test_samples_are_tried_in_batches(convert, monkeypatch):
    party = party_of(X, LABELS, convert(X), LABELS)
    whole = replied(REQUEST, party)
    monkeypatch.setattr("flwr_flynn.federated.views.SCORES", 256 * 7)
    assert replied(REQUEST, party) == whole


# ---- at the server

GOOD = [[3, 0, 0], [0, 2, 1], [0, 0, 4]]
BAD = [[0, 1, 0], [0, 1, 0], [0, 0, 0]]


def with_matrix(reply: Reply, matrix: Any, n: Any = None, own: Any = None) -> Reply:
    """The reply with these confusion matrices and without scores.

    The second matrix is of zeros by default.
    """
    matrix = np.array(matrix)
    n_examples = int(matrix.sum())
    fields = REQUEST.fields(Sizes(n_examples, n_examples))
    parts = [matrix, *(np.zeros(field.shape, np.int64) for field in fields[1:])]
    if own is not None:
        parts[1] = np.array(own)
    arrays = to_arrays(fields, parts)
    return replace(
        reply,
        tensors=codec.write_tensors(arrays),
        n_examples=n_examples if n is None else n,
    )


def with_matrices(reply: Reply, shared: Any, own: Any) -> Reply:
    """The reply with both matrices; None: that of a party without samples."""
    if shared is None:
        return replace(reply, tensors=[], n_examples=0)
    return with_matrix(reply, shared, own=own)


def test_confusion_matrices_of_both_models_are_added_up():
    steps = exchange(GRID[0], decay=0.5).until("evaluation")
    shared = [[3, 0, 0], [1, 2, 1], [0, 0, 3]]
    own = [[2, 1, 0], [0, 4, 0], [0, 0, 3]]
    # The party that sent one matrix has the shared model.
    matrices = {"0": (shared, own), "1": (BAD, None)}
    outcome = steps.step(
        EVALUATE,
        spoil=lambda reply: with_matrices(
            reply, *matrices.get(reply.cid, (None, None))
        ),
    )
    assert outcome.missing == steps.run.state.missing["evaluation"] == {}
    figures = steps.run.state.results["evaluation"].figures
    total = np.array(shared) + BAD
    mine = np.array(own) + BAD
    assert {name: figures[name] for name in accuracies(total)} == accuracies(total)
    prior = figures["class_prior"]
    assert figures["confusion"] == total.tolist()
    assert figures["examples"] == 12
    assert prior["confusion"] == mine.tolist()
    assert prior["examples"] == 12
    assert prior["sent"] == 1
    assert (
        figures["worst_party"]
        == prior["worst_party"]
        == {"name": "party-1", "accuracy": 0.5, "examples": 2}
    )


def test_an_evaluation_without_samples_reports_nothing():
    steps = exchange(GRID[0], decay=0.5).until("evaluation")
    steps.step(EVALUATE, spoil=lambda reply: with_matrices(reply, None, None))
    evaluation = steps.run.state.results["evaluation"]
    assert evaluation.figures is None
    assert steps.run.state.missing["evaluation"] == {}


def test_figures_that_nobody_asked_for_are_not_looked_at():
    request = replace(REQUEST, tries=False)
    reply = with_matrix(replied(request, party_of(X, LABELS)), GOOD)
    assert (
        tally_of(request).read(codec.read_tensors(reply.tensors), reply, None) is None
    )
    with pytest.raises(PayloadError):
        tally_of(REQUEST).read([], reply, None)


def test_who_could_not_keep_the_model_is_told():
    steps = exchange(GRID[0], decay=0.5).until("evaluation")
    said = {"0": "disk\nfull", "1": 7}

    def spoil(reply: Reply) -> Reply:
        if reply.cid not in said:
            return reply
        return replace(reply, metrics=reply.metrics | {UNKEPT: said[reply.cid]})

    steps.step(EVALUATE, spoil=spoil)
    evaluation = steps.run.state.results["evaluation"]
    assert evaluation.unkept == {"party-0": "disk full", "party-1": "no reason given"}
    assert steps.run.state.missing["evaluation"] == {}


# ---- the parties' class prior


def test_without_class_prior_there_is_nothing_about_them():
    both, alone = (
        in_process(
            options_for(GRID[0], decay=0.5),
            shares("pathological"),
            class_prior=has_prior,
        )
        for has_prior in (True, False)
    )
    figures = both.state.results["evaluation"].figures
    assert figures["class_prior"]["sent"] == sum(
        len(share["y_test"]) > 0 for share in shares("pathological")
    )
    assert alone.state.results["evaluation"].figures == {**figures, "class_prior": None}


def skewed() -> tuple[Any, Any]:
    """Samples of a party that has hardly any but two classes, which are alike."""
    rows = np.concatenate([np.arange(50, 98), np.arange(100, 103)])
    return X[rows], LABELS[rows]


OF_FEW = skewed()
WITHOUT: list[Any] = [
    ((X[:0], LABELS[:0]), {}),
    ((OF_FEW[0][:, :3], OF_FEW[1]), {}),
    (OF_FEW, {"class_prior": False}),
]


@pytest.mark.parametrize(
    ("own", "options"), WITHOUT, ids=["no samples", "of another form", "not wanted"]
)
def test_a_party_without_a_prior_keeps_the_shared_model(own, options):
    received: list[FlyNNClassifier] = []
    reply = replied(
        REQUEST, party_of(*own, X, LABELS, on_model=received.append, **options)
    )
    assert REFUSED not in reply.metrics
    assert received[0].model_.sha256() == REQUEST.model.sha256()
    matrices = matrices_of(reply)
    np.testing.assert_array_equal(matrices[1], 0 if options else matrices[0])


SECURE = replace(REQUEST, run=RunSpec(GRID[0], NAMES, bound=256))
NOISY = evaluation_of(
    RunSpec(GRID[0], NAMES, NOISE),
    (NOISE.release(COUNTS),),
    (ScoringRule("balanced", 0.8, 0.5),),
    n_releases=1,
)


HIDDEN: list[Any] = [
    (NOISY, "", False),
    (NOISY, "budget", False),
    (REQUEST, "budget", False),
]
# With secure sums the prior stays at home.
HIDDEN += [(REQUEST, "secure", True), (SECURE, "secure", True), (SECURE, "", True)]
POLICY = Policy(10.0, 1e-4, mechanisms=["laplace", "simulated"])


@pytest.mark.parametrize("tries", [True, False])
@pytest.mark.parametrize(("request_", "own", "has_prior"), HIDDEN)
def test_class_prior_is_hidden(request_, own, has_prior, tries, tmp_path):
    options = {
        "": {},
        "secure": {"secure": True},
        "budget": {"budget": Budget(tmp_path, POLICY)},
    }[own]
    received: list[FlyNNClassifier] = []
    party = party_of(
        *skewed(), X, LABELS, on_model=received.append, evaluates=True, **options
    )
    reply = replied(replace(request_, tries=tries), party)
    assert REFUSED not in reply.metrics
    assert len(reply.tensors) == 9 * tries
    known = {"accuracy"} if tries else set()
    assert reply.metrics.keys() - {"flynn-taken-out"} == known
    assert (received[0].model_.sha256() != request_.model.sha256()) == has_prior
    if tries:
        matrix, personal = matrices_of(reply)
        assert not personal.any()
        shared = received[0].with_prior().predict(X)
        np.testing.assert_array_equal(
            matrix, confusion_matrix(LABELS, shared, labels=NAMES)
        )


@pytest.mark.parametrize("request_", [NOISY, SECURE], ids=["noise", "secure"])
def test_a_second_matrix_beside_noise_or_a_secure_sum_is_refused(request_):
    reply = with_matrices(replied(REQUEST, party_of(X, LABELS, X, LABELS)), GOOD, GOOD)
    with pytest.raises(PayloadError):
        tally_of(request_).read(codec.read_tensors(reply.tensors), reply, None)


# ---- histograms of scores


def scores_of(reply: Reply) -> list[Any]:
    return codec.read_tensors(reply.tensors)[3:5]


def test_scores_are_those_of_the_shared_model_above_the_floor():
    received: list[FlyNNClassifier] = []
    test = np.r_[0:20, 50:60, 100:103]  # of the last class fewer than the floor
    reply = replied(
        REQUEST, party_of(*skewed(), X[test], LABELS[test], on_model=received.append)
    )
    model = received[0].with_prior()
    found = scored(
        model.predict_proba(X[test]),
        Y[test],
        model.model_.scores(X[test]).argmax(axis=1),
    )
    told = above_floor(found[0], found[1][None], 5)
    table, sums = scores_of(reply)
    np.testing.assert_array_equal(sums, told[1])
    np.testing.assert_array_equal(unpack(table, told[0].shape, 33), told[0])
    assert told[0].sum(axis=1).tolist() == [13, 20, 23, 10, 0, 0]
    few = replied(REQUEST, party_of(X, LABELS, X[:4], LABELS[:4]))
    hidden = scores_of(few)
    assert not unpack(hidden[0], told[0].shape, 4).any()
    assert not hidden[1].any()


def test_figures_are_by_class():
    run = in_process(options_for(GRID[0], decay=0.5), shares("pathological"))
    found = run.state.results["evaluation"].figures
    assert [row["label"] for row in found["figures"]["classes"]] == list(NAMES)
    assert found["figures"]["overall"]["accuracy"][0] == found["accuracy"]


SEX = Schema(
    [
        Column("sex", "category", ["f", "m"]),
        *(Column(name, "number", gaps=False) for name in "abcd"),
    ]
)


def with_sex(rows: Any, sexes: Any) -> pd.DataFrame:
    return pd.DataFrame(X[rows], columns=list("abcd")).assign(sex=sexes)


SEXED = replace(GRID[0], n_features=SEX.width, center=np.zeros(SEX.width))


def groups_of(sexes: Any, *parts: Any, **options: Any) -> tuple[Any, FlyNNClassifier]:
    """Figures of the subgroups in a run of parties with these rows, and the model.

    The parties train and test with the same rows.
    """
    parties = [
        party_of(*[with_sex(part, sexes[part]), LABELS[part]] * 2, **options)
        for part in parts
    ]
    given = options_for(
        SEXED, decay=0.5, min_parties=len(parts), feature_names=SEX, group_column="sex"
    )
    run = federate(RunOptions(**given), parties)
    return run.state.results["evaluation"].figures["figures"]["groups"], run.model


def test_figures_of_subgroups_are_those_of_their_samples():
    sexes = np.array(["f", "m", "m", None, "x"], object)[np.arange(150) % 5]
    groups, model = groups_of(
        sexes, np.arange(0, 150, 2), np.arange(1, 150, 2), min_examples=1
    )
    assert groups["column"] == "sex"
    for level, value in (("f", "f"), ("m", "m"), ("(other)", "x"), ("(missing)", None)):
        chosen = np.array([i for i, sex in enumerate(sexes) if sex == value])
        read = model.model_.scores(SEX.encode(with_sex(chosen, sexes[chosen])))
        found = scored(model.model_.probabilities(read), Y[chosen], read.argmax(axis=1))
        assert {"level": level, **of_level(*found, None)} in groups["levels"]
    assert len(groups["levels"]) == 4


def test_a_subgroup_below_the_floor_does_not_follow_from_the_other_levels():
    groups, _ = groups_of(
        np.array(["f"] * 2 + ["m"] * 140 + ["x"] * 8, object), np.arange(150)
    )
    assert [(row["level"], row["examples"]) for row in groups["levels"]] == [("m", 140)]


@pytest.mark.parametrize("column", ["a", "height"])
def test_a_subgroup_is_by_a_category_of_the_schema(column):
    with raises(ConfigError, field="group_column"):
        RunOptions(**options_for(SEXED, feature_names=SEX, group_column=column))
    with raises(ConfigError, field="group_column"):
        RunOptions(**options_for(GRID[0], group_column="sex"))
