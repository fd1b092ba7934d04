"""Models of several members: their scores, their laws, and the same default everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax
from sklearn.datasets import make_classification

from flwr_flynn import ClassCounts, FlyNNClassifier, HashSpec
from flwr_flynn.errors import CountsError, SpecError
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.candidates import suggest_decay
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.scoring import RULES, ScoringRule, class_novelty, class_scores
from flwr_flynn.model.subsample import N_LEFT_OUT
from tests.model.samples import CODES, LABELS, SPEC, X, Y
from tests.raising import raises

SPECS = (
    SPEC,
    HashSpec(
        5,
        90,
        4,
        7,
        seed=4,
        signed=True,
        coding="steps",
        n_codes=4,
        edges=np.quantile(X, [0.1, 0.5, 0.9], axis=0).T,
    ),
    HashSpec(5, 64, 3, 5, seed=5, n_waves=16, wave_frequency=0.3),
)
WEIGHTS = (0.5, 0.25, 0.25)
READOUTS = {
    "balanced": [
        ("balanced", 0.8, 0.2),
        ("balanced", 0.5, 1.0),
        ("balanced", 0.0, 0.7),
    ],
    "novelty": [("novelty", 0.8, 0.2), ("novelty", 0.5, None), ("novelty", 0.9, 3.0)],
    "several": [("balanced", 0.7, 0.2), ("novelty", 0.5, 4.0), ("novelty", 0.6, 0.5)],
}


def committee(points=X, codes=CODES, rule="balanced", n_classes=3):
    members = []
    for spec, scoring, weight in zip(SPECS, READOUTS[rule], WEIGHTS, strict=True):
        counts = ClassCounts.from_data(flynn_hash(spec), points, codes, n_classes)
        members.append(ModelMember(spec, counts, ScoringRule(*scoring), weight))
    return Model(tuple(members), LABELS[:n_classes])


def oracle_scores(model, points):
    """Weighted sum of log-softmaxes of the members' log odds over their temperatures."""
    total = np.zeros((len(points), len(model.classes)))
    for member in model.members:
        scores = class_scores(member.counts, member.hash.active(points), member.scoring)
        scores = scores / 4096 - np.log(np.exp(-scores) / member.spec.hash_nnz + 0.1)
        temperature = 0.2
        if member.scoring.temperature is not None:
            temperature = member.scoring.temperature
        total += member.weight * log_softmax(scores / temperature, axis=1)
    return total


# --- scores ---------------------------------------------------------------------------


@pytest.mark.parametrize("rule", READOUTS)
def test_scores_agree_with_the_oracle(rule):
    model = committee(rule=rule)
    points = np.concatenate([X, np.random.default_rng(0).normal(size=(50, 5))])
    expected = oracle_scores(model, points)
    novelty = 0
    for member in model.members:
        active = member.hash.active(points)
        novelties = class_novelty(member.counts, active, member.scoring.decay)
        novelty += member.weight * novelties
    assert_allclose(model.scores(points), expected, rtol=1e-9, atol=1e-12)
    assert_allclose(model.novelty(points), novelty, rtol=1e-12)
    classifier = FlyNNClassifier.from_model(model)
    threaded = FlyNNClassifier.from_model(model, n_jobs=2)
    proba = classifier.predict_proba(points)
    assert_allclose(proba, softmax(expected, axis=1), rtol=1e-9)
    assert_allclose(
        classifier.decision_function(points), expected, rtol=1e-9, atol=1e-12
    )
    assert_array_equal(classifier.predict(points), LABELS[expected.argmax(axis=1)])
    assert_array_equal(classifier.predict_proba(sp.csr_array(points)), proba)
    assert_array_equal(threaded.predict_proba(points), proba)


@pytest.mark.parametrize("rule", READOUTS)
def test_classes_without_samples_come_last_and_get_no_probability(rule):
    some = CODES != 1
    model = committee(X[some], CODES[some], rule)
    scores = model.scores(X)
    assert (scores[:, [1]] < scores[:, [0, 2]]).all()
    without = committee(X[some], np.where(CODES[some] == 2, 1, 0), rule, n_classes=2)
    probabilities = FlyNNClassifier.from_model(model).predict_proba(X)
    assert (probabilities[:, 1] == 0).all()
    assert_allclose(
        probabilities[:, [0, 2]],
        FlyNNClassifier.from_model(without).predict_proba(X),
        rtol=1e-6,
    )
    empty = FlyNNClassifier.from_model(committee(X[:0], CODES[:0], rule))
    assert_allclose(empty.predict_proba(X), 1 / 3)
    assert_array_equal(empty.predict(X), "ant")


@pytest.mark.parametrize("temperature", [1e-300, 1e300])
def test_no_temperature_makes_probabilities_of_nothing(temperature):
    members = [
        replace(member, scoring=replace(member.scoring, temperature=temperature))
        for member in committee().members
    ]
    probabilities = FlyNNClassifier.from_model(
        Model(tuple(members), LABELS)
    ).predict_proba(X)
    assert np.isfinite(probabilities).all()
    assert_allclose(probabilities.sum(axis=1), 1)


@pytest.mark.parametrize("rule", RULES)
def test_a_member_alone_has_the_log_probabilities_of_its_rule(rule):
    """Whatever its weight. The order of the classes is that of the rule."""
    member = committee(rule=rule).members[0]
    active = member.hash.active(X)
    for weight in (1.0, 0.25):
        model = Model((replace(member, weight=weight),), LABELS)
        assert_allclose(
            model.scores(X),
            oracle_scores(Model((member,), LABELS), X) / member.weight,
            rtol=1e-9,
        )
        order = class_scores(member.counts, active, member.scoring).argsort(
            axis=1, kind="stable"
        )
        assert_array_equal(model.scores(X).argsort(axis=1, kind="stable"), order)
        assert_allclose(
            model.novelty(X),
            class_novelty(member.counts, active, member.scoring.decay),
            rtol=1e-15,
        )
        assert model.sha256() == Model((member,), LABELS).sha256()


# --- learning more and less -----------------------------------------------------------


FIXED = {"decay": 0.7, "temperature": 0.5}
OWNERS = st.lists(st.integers(0, 3), min_size=120, max_size=120)


def counts_of(classifier):
    return [member.counts for member in classifier.model_.members]


@settings(max_examples=10)
@given(OWNERS, st.permutations(range(4)), st.sampled_from(sorted(READOUTS)))
def test_merging_parties_is_the_model_of_the_pooled_samples(party_of, order, rule):
    merged = FlyNNClassifier.from_model(committee(X[:0], CODES[:0], rule), **FIXED)
    for k in order:
        mine = np.array(party_of) == k
        merged.merge(FlyNNClassifier.from_model(committee(X[mine], CODES[mine], rule)))
    pooled = FlyNNClassifier.from_model(
        committee(X[:0], CODES[:0], rule), **FIXED
    ).partial_fit(X, Y)
    assert counts_of(merged) == [member.counts for member in committee().members]
    assert [member.weight for member in merged.model_.members] == list(WEIGHTS)
    assert merged.model_.sha256() == pooled.model_.sha256()


@pytest.mark.parametrize("rule", READOUTS)
def test_forgetting_is_never_having_learned(rule):
    keep = np.arange(len(X)) % 3 != 0
    model = FlyNNClassifier.from_model(committee(rule=rule), **FIXED).forget(
        X[~keep], Y[~keep]
    )
    expected = FlyNNClassifier.from_model(
        committee(X[:0], CODES[:0], rule), **FIXED
    ).partial_fit(X[keep], Y[keep])
    assert counts_of(model) == counts_of(expected)
    assert model.model_.sha256() == expected.model_.sha256()
    assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    before = model.model_
    with pytest.raises(CountsError):
        model.forget(np.tile(X[:1], (100, 1)), np.repeat(Y[:1], 100))
    assert model.model_ is before
    model.partial_fit(X[~keep], Y[~keep])
    assert counts_of(model) == [member.counts for member in committee().members]


def test_fit_of_a_committee_learns_and_forgets():
    model = FlyNNClassifier(hash_dim=256, max_members=3).fit(X, Y)
    whole = model.model_
    assert len(whole.members) == 3
    assert_allclose(sum(member.weight for member in whole.members), 1)
    model.partial_fit(X[:30], Y[:30]).forget(X[:30], Y[:30])
    assert [
        (member.spec, member.counts, member.weight) for member in model.model_.members
    ] == [(member.spec, member.counts, member.weight) for member in whole.members]
    # "auto" is suggested anew, as for a model of one
    for member in model.model_.members:
        assert member.scoring.decay == suggest_decay(member.counts)


@pytest.mark.parametrize(
    "members",
    [slice(2), slice(None, None, -1), slice(1)],
    ids=["fewer", "another order", "one"],
)
def test_committees_that_differ_do_not_merge(members):
    model = FlyNNClassifier.from_model(committee())
    before = model.model_
    with raises(SpecError, field="merge"):
        model.merge(
            FlyNNClassifier.from_model(replace(before, members=before.members[members]))
        )
    assert model.model_ is before


def test_samples_that_say_nothing_still_make_a_model():
    """Constant columns, one sample, one class."""
    for points, labels in [
        (np.ones((6, 3)), [0, 1] * 3),
        (np.ones((1, 2)), [5]),
        (X[:9], np.zeros(9, int)),
    ]:
        model = FlyNNClassifier(hash_dim=64).fit(points, labels)
        assert_allclose(model.predict_proba(points).sum(axis=1), 1)
        assert set(model.predict(points)) <= set(labels)


@pytest.mark.slow
def test_many_samples_leave_out_a_subsample_of_the_pool():
    """So many samples are more than are left out; hashes have more rows for a winner."""
    points, labels = make_classification(
        6000, 4, n_informative=3, n_redundant=0, n_classes=3, random_state=1
    )
    assert len(points) > N_LEFT_OUT
    model = FlyNNClassifier(n_jobs=2).fit(points, labels).model_
    assert {
        (member.spec.hash_dim, member.spec.hash_nnz) for member in model.members
    } == {(2**16, 64)}
    order = np.random.default_rng(0).permutation(len(points))
    other = (
        FlyNNClassifier(n_jobs=2).fit(sp.csr_array(points[order]), labels[order]).model_
    )
    assert other.sha256() == model.sha256()


FITTED = (
    "import hashlib; from sklearn.datasets import load_digits; from flwr_flynn import "
    "FlyNNClassifier;"
    "X, y = load_digits(return_X_y=True); model = FlyNNClassifier(**{}).fit(X, y);"
    "print(model.model_.sha256(), "
    "hashlib.sha256(model.decision_function(X).tobytes()).hexdigest())"
)
# Without vectors, compiled afresh.
GENERIC = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
THREADS = [{"OPENBLAS_NUM_THREADS": number} for number in "12"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "settings"),
    [({}, [GENERIC]), ({}, THREADS)],
)
def test_every_processor_and_number_of_threads_makes_the_same_model(
    parameters, settings, tmp_path
):
    if GENERIC in settings:
        caches = {"NUMBA_CACHE_DIR": str(tmp_path)}
    else:
        caches = {}
    command = [sys.executable, "-c", FITTED.format(parameters)]
    environments = [os.environ, *(os.environ | caches | more for more in settings)]
    printed = {
        subprocess.run(command, capture_output=True, check=True, env=environment).stdout
        for environment in environments
    }
    assert len(printed) == 1
