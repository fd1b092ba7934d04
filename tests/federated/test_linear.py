"""The linear part of a run: pooled on any split, at home without consent, never forged."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import ModelFileError, PrivacyError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.announced_specs import deflated_basis
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.party_options import Asked, decide
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.protocol import EXACT, SECURE
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.gram import (
    NO_SAMPLES,
    GramMatrix,
    memory_of_gram,
)
from tests.federated.hostile import integers, plus
from tests.federated.runs import (
    Exchange,
    digest,
    in_process,
    refusal,
    saved_of,
    statistic_of,
)
from tests.federated.secure_runs import secretly
from tests.federated.test_run_laws import nobody
from tests.model.test_linear_part import X, Y
from tests.raising import raises

PLAN = HashPlan(6, 3, 300, "auto", hash_dim=64)
OPTIONS = {"spec": PLAN, "classes": (0, 1, 2), "min_parties": 1}
POOLED = FlyNNClassifier(hash_dim=64).fit(X, Y)
BASIS = POOLED._linear.terms
ORDER = np.random.default_rng(4).permutation(300)
LAST = np.flatnonzero(Y == 2)
REST = np.flatnonzero(Y < 2)
FEW = np.append(REST, LAST[:7])
QUARTERS = np.split(ORDER, 4)


def samples(rows):
    return {"X": X[rows], "y": Y[rows], "X_test": X[rows], "y_test": Y[rows]}


def party(rows, **changes):
    return party_of(**samples(rows), **{"min_examples": 1, "products": True, **changes})


def go(parties, before=None, **changes):
    """A run that has not begun, of a plan or from a file."""
    options = OPTIONS | changes
    if before is not None:
        options |= {"spec": before.run_spec.specs, "federation": before}
    return Exchange(Run(RunOptions(**options)), parties)


def parties_of(rows=QUARTERS, n_consents=4):
    """Parties by their node ids, of which the first ones let their products leave."""
    return {str(n): party(own, products=n < n_consents) for n, own in enumerate(rows)}


def of_rows(rows, basis=BASIS):
    return GramMatrix.from_data(basis, X[rows], Y[rows], 3)


@pytest.mark.parametrize("cuts", [(75, 150, 225), (0, 1, 4), range(5, 300, 5)], ids=str)
def test_of_any_split_the_model_is_the_pooled_one(cuts):
    parts = list(map(samples, np.split(ORDER, cuts)))
    for run in (in_process(OPTIONS, parts), secretly(OPTIONS, parts, bound=1024)):
        assert digest(run) == POOLED.model_.sha256()
        assert run.totals.linear == POOLED._linear


# ---- who leaves, joins and changes

FOURTH = QUARTERS[3]
PREVIOUS = Samples(X[FOURTH], Y[FOURTH])


@pytest.mark.parametrize(
    ("purpose", "there", "options"),
    [
        ("join", FOURTH, {}),
        ("withdraw", FOURTH[:0], {"leaves": True}),
        ("update", FOURTH[9:], {"previous": PREVIOUS}),
    ],
)
def test_after_a_change_the_model_is_that_of_the_rows_that_are_there(
    purpose, there, options
):
    others = parties_of(QUARTERS[:3])
    first = parties_of()
    sent = there
    if purpose == "withdraw":
        sent = FOURTH
    if purpose == "join":
        first = others
    before = go(first).rounds().federation("1")
    changed = others | {"3": party(sent, **options)}
    run = go(changed, before, purpose=purpose).rounds()
    expected = of_rows(np.concatenate([*QUARTERS[:3], there]), before.basis)
    assert run.totals.linear.sha256() == expected.sha256()
    empty = replace(nobody(before), linear=expected - expected)
    anew = go(others | {"3": party(there)}, empty, purpose="join").rounds()
    assert digest(run) == digest(anew)
    assert run.model.model_.linear is not None


def left_by_second(rows):
    """The model once the second of two consenting parties has left."""
    before = go(parties_of(rows, 2)).rounds().federation("1")
    leaver = {"1": party(rows[1], leaves=True)}
    return go(leaver, before, purpose="withdraw").rounds().model.model_


def test_products_that_are_too_few_by_now_make_no_linear_part():
    assert left_by_second(np.split(ORDER[:290], [9, 150])).linear is None


def test_the_linear_part_says_nothing_of_a_class_that_its_sums_lack():
    model = left_by_second([REST, LAST[:8], LAST[8:16]])
    parts = {"linear": None, "calibration": replace(model.calibration, share=0.0)}
    alone = replace(model, **parts)
    whole = model.probabilities(model.scores(X[LAST]))[:, 2]
    committee = alone.probabilities(alone.scores(X[LAST]))[:, 2]
    assert model.linear is not None
    assert_allclose(np.log(whole), np.log(committee), atol=2)


def test_a_join_needs_the_parties_that_the_first_run_needed():
    rows = np.split(ORDER[:290], [150, 200, 250])
    before = go(parties_of(rows, 1), min_parties=4).rounds().federation("1")
    joined = {"4": party(ORDER[290:], products=False)}
    run = go(parties_of(rows, 1) | joined, before, purpose="join").rounds()
    assert run.model.model_.linear is None


@pytest.mark.parametrize("index", [0, 1, 2])
def test_sums_of_a_file_are_those_that_samples_can_have(index, tmp_path):
    saved = go(parties_of()).rounds().federation("1")
    tables = [table.copy() for table in saved.linear.tables]
    tables[index] += 10**9
    forged = replace(saved.linear, tables=tuple(tables))
    replace(saved, linear=forged).save(tmp_path / "f.npz")
    with raises(ModelFileError):
        Federation.load(tmp_path / "f.npz")


@pytest.mark.parametrize("phase", ["selection", "calibration", "evaluation", ""])
def test_a_saved_run_keeps_basis_and_sums_and_goes_on(phase, tmp_path):
    stopped = go(parties_of()).until(phase)
    saved = saved_of(stopped.run, tmp_path / "f.npz")
    assert saved.linear == POOLED._linear
    resumed = go(parties_of(), saved, purpose="resume").rounds(9)
    assert digest(resumed) == POOLED.model_.sha256()


# ---- consent

REQUEST = CountsRequest(RunSpec([HashSpec(6, 64, 2, 8, 1)], (0, 1, 2)), BASIS)


def test_without_consent_no_products_leave_and_there_is_no_linear_part():
    counts = statistic_of(REQUEST, party(LAST, products=False))
    assert counts.linear == GramMatrix.zeros(BASIS, 3)
    assert counts.sha256[-1] == NO_SAMPLES
    parts = list(map(samples, QUARTERS))
    run = in_process(OPTIONS, parts, products=False)
    assert not run.totals.linear.n_examples
    assert digest(run) == digest(in_process(OPTIONS | {"linear": 0}, parts))


@pytest.mark.parametrize(
    ("rows", "n_consents", "least", "is_there"),
    [
        (QUARTERS, 3, 4, False),
        (QUARTERS, 3, 3, True),
        ([ORDER[:0], *QUARTERS], 5, 5, True),
        (np.split(ORDER, [149]), 1, 1, False),
        (np.split(ORDER, [150]), 1, 1, True),
    ],
)
def test_it_needs_min_parties_and_half_of_the_rows(rows, n_consents, least, is_there):
    run = go(parties_of(rows, n_consents), min_parties=least).rounds()
    assert run.totals.linear == of_rows(np.concatenate(rows[:n_consents]))
    assert (run.model.model_.linear is not None) == is_there


@pytest.mark.parametrize(("least", "rows"), [(5, REST), (1, FEW)])
def test_classes_of_few_rows_in_a_fold_stay_at_home_in_clear(least, rows):
    own = party(FEW, min_examples=least)
    assert statistic_of(REQUEST, own).linear == of_rows(rows)


def test_a_phase_that_needs_a_consent_leaves_in_clear_only_with_it():
    asked = Asked(EXACT, "of one's own", consent="products")
    with raises(PrivacyError, field="node-config products"):
        decide(PartyOptions(), asked)
    decide(PartyOptions(products=True), asked)
    decide(PartyOptions(), asked._replace(kind=SECURE))


# ---- forged replies and hostile requests


def opposed(parts):
    """Every two terms opposed to each other, each pair as samples could have it."""
    rows, columns = np.triu_indices(BASIS.n_terms)
    for products in parts[-2]:
        squares = products[rows == columns]
        pairs = -0.9 * np.sqrt(squares[rows] * squares[columns])
        products[:] = np.where(rows == columns, products, pairs.astype(int))
    return parts


FORGED = {
    "a product above its squares": plus(-2, (1, 10**6)),
    "a square above the largest": plus(-2, (0, 10**6)),
    "a negative square": plus(-2, (0, -(10**6))),
    "products of no samples, pair by pair of some": integers(opposed),
    "fewer of a class": plus(-3, (0, -1)),
    "more of a class": plus(-3, (0, 1)),
    "sums above the largest": plus(-1, (0, -3000), (BASIS.n_terms, 3000)),
    "a sum above its squares": plus(-1, (BASIS.n_terms, 2000)),
}
"""Changes of a reply, whose last fields are class sizes, products and sums."""


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_reply_costs_its_sender_alone(name):
    steps = go(parties_of()).until("counts")
    assert steps.spoiled(FORGED[name]).startswith("refused: ")
    run = steps.rounds()
    assert run.totals.linear == of_rows(np.concatenate(QUARTERS[:3]))
    assert run.model.model_.linear is not None


ENTRIES = {
    name: zlib.compress(json.dumps(BASIS.to_dict() | {name: value}).encode())
    for name, value in (("columns", [6] * 6), ("center", {"as": 2}), ("more", []))
}
ENTRIES["endless"] = zlib.compress(b" " * (2**24 + 1))


@pytest.mark.parametrize("name", [*ENTRIES, "memory"])
def test_a_hostile_basis_is_refused_before_samples_are_loaded(name):
    entries = {"flynn-basis": ENTRIES.get(name, deflated_basis(BASIS, ()))}
    limit = memory_of_gram(BASIS.n_terms, 3) - 1
    own = Party(lambda _: pytest.fail("loaded"), PartyOptions(memory_limit=limit))
    start = "flynn-basis: "
    if name == "memory":
        start = "memory: products"
    assert refusal(REQUEST, own, entries).startswith(start)
