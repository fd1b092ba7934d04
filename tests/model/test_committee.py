"""Models of several members: their scores, their laws, and the same default everywhere."""

from __future__ import annotations

import hashlib
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
from scipy.special import log_softmax
from sklearn.datasets import load_digits, make_classification

from flwr_flynn import ClassCounts, FlyNNClassifier, HashPlan, HashSpec
from flwr_flynn.errors import CountsError, SpecError
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.candidates import candidate_scorings, suggest_decay
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.model import Model, ModelMember, ScoringRule, counted_prior
from flwr_flynn.model.scoring import RULES, class_novelty, class_scores
from flwr_flynn.model.selection import N_LEFT_OUT, best_temperature, choose, kept, leave_one_out_tables
from tests.raising import raises

X, CODES = make_classification(
    120, 5, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=0
)
X = X.round(2)
LABELS = np.array(["ant", "bee", "cicada"])
Y = LABELS[CODES]
SPECS = (
    HashSpec(5, 200, 2, 10, seed=3, signed=True),
    HashSpec(
        5, 90, 4, 7, seed=4, signed=True, coding="steps", n_codes=4, edges=np.quantile(X, [0.1, 0.5, 0.9], axis=0).T
    ),
    HashSpec(5, 64, 3, 5, seed=5, n_waves=16, wave_frequency=0.3),
)
WEIGHTS = (0.5, 0.25, 0.25)
READOUTS = {
    "balanced": [("balanced", 0.8, 0.2), ("balanced", 0.5, 1.0), ("balanced", 0.0, 0.7)],
    "novelty": [("novelty", 0.8, 0.2), ("novelty", 0.5, None), ("novelty", 0.9, 3.0)],
    "several": [("balanced", 0.7, 0.2), ("novelty", 0.5, 4.0), ("novelty", 0.6, 0.5)],
}


def committee(points=X, codes=CODES, rule="balanced", weights=WEIGHTS, n_classes=3):
    members = [
        ModelMember(
            spec, ClassCounts.from_data(flynn_hash(spec), points, codes, n_classes), ScoringRule(*scoring), weight
        )
        for spec, scoring, weight in zip(SPECS, READOUTS[rule], weights, strict=True)
    ]
    return Model(tuple(members), LABELS[:n_classes])


def oracle_scores(model, points):
    """Weighted sum of log-softmaxes of the members' log odds over their temperatures."""
    total = np.zeros((len(points), len(model.classes)))
    for member in model.members:
        scores = class_scores(member.counts, member.hash.active(points), member.scoring)
        scores = scores / 4096 - np.log(np.exp(-scores) / member.spec.hash_nnz + 0.1)
        temperature = 0.2 if member.scoring.temperature is None else member.scoring.temperature
        total += member.weight * log_softmax(scores / temperature, axis=1)
    return total


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", READOUTS)
def test_scores_agree_with_the_oracle(rule):
    model = committee(rule=rule)
    points = np.concatenate([X, np.random.default_rng(0).normal(size=(50, 5))])
    expected = oracle_scores(model, points)
    assert_allclose(model.scores(points), expected, rtol=1e-9, atol=1e-12)
    novelty = sum(
        member.weight * class_novelty(member.counts, member.hash.active(points), member.scoring.decay)
        for member in model.members
    )
    assert_allclose(model.novelty(points), novelty, rtol=1e-12)
    proba = np.exp(log_softmax(expected, axis=1))
    classifier = FlyNNClassifier.from_model(model)
    assert_allclose(classifier.predict_proba(points), proba, rtol=1e-9)
    assert_allclose(classifier.predict_proba(points).sum(axis=1), 1)
    assert_array_equal(classifier.predict(points), LABELS[expected.argmax(axis=1)])
    assert_allclose(classifier.decision_function(points), expected, rtol=1e-9, atol=1e-12)
    assert_array_equal(classifier.predict(sp.csr_array(points)), classifier.predict(points))
    assert_array_equal(
        FlyNNClassifier.from_model(model, n_jobs=2).predict_proba(points), classifier.predict_proba(points)
    )


@pytest.mark.parametrize("rule", READOUTS)
def test_classes_without_samples_come_last_and_get_no_probability(rule):
    some = CODES != 1
    model = committee(X[some], CODES[some], rule)
    scores = model.scores(X)
    assert (scores[:, [1]] < scores[:, [0, 2]]).all()
    without = committee(X[some], np.where(CODES[some] == 2, 1, 0), rule, n_classes=2)
    classifier = FlyNNClassifier.from_model(model)
    probabilities = classifier.predict_proba(X)
    assert (probabilities[:, 1] == 0).all()
    assert_allclose(probabilities.sum(axis=1), 1)
    assert_allclose(probabilities[:, [0, 2]], FlyNNClassifier.from_model(without).predict_proba(X), rtol=1e-6)
    empty = committee(X[:0], CODES[:0], rule)
    assert_allclose(FlyNNClassifier.from_model(empty).predict_proba(X), 1 / 3)
    assert_array_equal(FlyNNClassifier.from_model(empty).predict(X), "ant")


def test_two_classes_have_one_decision():
    some = CODES < 2
    classifier = FlyNNClassifier.from_model(committee(X[some], CODES[some], n_classes=2))
    decisions = classifier.decision_function(X)
    assert decisions.shape == (120,)
    assert_array_equal(classifier.predict(X), LABELS[(decisions > 0).astype(int)])


@pytest.mark.parametrize("temperature", [1e-300, 1e300])
def test_no_temperature_makes_probabilities_of_nothing(temperature):
    members = [
        replace(member, scoring=replace(member.scoring, temperature=temperature)) for member in committee().members
    ]
    probabilities = FlyNNClassifier.from_model(Model(tuple(members), LABELS)).predict_proba(X)
    assert np.isfinite(probabilities).all()
    assert_allclose(probabilities.sum(axis=1), 1)


@pytest.mark.parametrize("rule", RULES)
def test_a_member_alone_has_the_log_probabilities_of_its_rule(rule):
    """Whatever its weight. The order of the classes is that of the rule."""
    member = committee(rule=rule).members[0]
    active = member.hash.active(X)
    for weight in (1.0, 0.25):
        model = Model((replace(member, weight=weight),), LABELS)
        assert_allclose(model.scores(X), oracle_scores(Model((member,), LABELS), X) / member.weight, rtol=1e-9)
        order = class_scores(member.counts, active, member.scoring).argsort(axis=1, kind="stable")
        assert_array_equal(model.scores(X).argsort(axis=1, kind="stable"), order)
        assert_allclose(model.novelty(X), class_novelty(member.counts, active, member.scoring.decay), rtol=1e-15)
        assert model.sha256() == Model((member,), LABELS).sha256()


@pytest.mark.parametrize("bad", [0, -1.0, 1.0001, float("nan"), float("inf"), "1", True, None])
def test_weights_out_of_range_are_refused(bad):
    with raises(SpecError, field="weight"):
        replace(committee().members[0], weight=bad)


def test_models_are_told_apart_by_weights_and_order():
    model = committee()
    others = [committee(weights=(0.5, 0.3, 0.2)), replace(model, members=model.members[::-1])]
    others.append(replace(model, members=model.members[:2]))
    assert len({each.sha256() for each in (model, *others)}) == 4
    assert committee().sha256() == model.sha256()


# --- learning more and less -------------------------------------------------------------------------------------------


def counts_of(classifier):
    return [member.counts for member in classifier.model_.members]


@settings(max_examples=10)
@given(st.lists(st.integers(0, 3), min_size=120, max_size=120), st.sampled_from(sorted(READOUTS)))
def test_merging_parties_is_the_model_of_the_pooled_samples(party_of, rule):
    party = np.array(party_of)
    parameters = {"decay": 0.7, "temperature": 0.5}
    merged = FlyNNClassifier.from_model(committee(X[:0], CODES[:0], rule), **parameters)
    for k in range(4):
        merged.merge(FlyNNClassifier.from_model(committee(X[party == k], CODES[party == k], rule)))
    assert counts_of(merged) == [member.counts for member in committee().members]
    assert [member.weight for member in merged.model_.members] == list(WEIGHTS)
    other_order = FlyNNClassifier.from_model(committee(X[:0], CODES[:0], rule), **parameters)
    for k in (2, 0, 3, 1):
        other_order.merge(FlyNNClassifier.from_model(committee(X[party == k], CODES[party == k], rule)))
    assert other_order.model_.sha256() == merged.model_.sha256()


def test_forgetting_is_never_having_learned():
    keep = np.arange(len(X)) % 3 != 0
    parameters = {"decay": 0.7, "temperature": 0.5}
    model = FlyNNClassifier.from_model(committee(), **parameters).forget(X[~keep], Y[~keep])
    expected = FlyNNClassifier.from_model(committee(X[:0], CODES[:0]), **parameters).partial_fit(X[keep], Y[keep])
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
    parameters = {"hash_dim": 256, "max_members": 3}
    model = FlyNNClassifier(**parameters).fit(X, Y)
    whole = model.model_
    assert len(whole.members) == 3
    assert_allclose(sum(member.weight for member in whole.members), 1)
    model.partial_fit(X[:30], Y[:30])
    model.forget(X[:30], Y[:30])
    assert [(member.spec, member.counts, member.weight) for member in model.model_.members] == [
        (member.spec, member.counts, member.weight) for member in whole.members
    ]
    for member in model.model_.members:  # "auto" is suggested anew, as for a model of one
        assert member.scoring.decay == suggest_decay(member.counts)
    merged = FlyNNClassifier(**parameters).fit(X, Y)
    assert counts_of(merged.merge(FlyNNClassifier(**parameters).fit(X, Y))) == [
        member.counts + member.counts for member in whole.members
    ]
    batches = FlyNNClassifier(**parameters).partial_fit(X[:60], Y[:60], classes=LABELS).partial_fit(X[60:], Y[60:])
    for member in batches.model_.members:
        assert member.counts == ClassCounts.from_data(member.hash, X, CODES, 3)


def test_committees_that_differ_do_not_merge():
    model = FlyNNClassifier.from_model(committee())
    before = model.model_
    with raises(SpecError, field="merge", got=2):
        model.merge(FlyNNClassifier.from_model(replace(before, members=before.members[:2])))
    with raises(SpecError, field="merge"):
        model.merge(FlyNNClassifier.from_model(replace(before, members=before.members[::-1])))
    with raises(SpecError, field="merge"):
        model.merge(FlyNNClassifier.from_model(Model(before.members[:1], LABELS)))
    assert model.model_ is before


def test_samples_that_say_nothing_still_make_a_model():
    """Constant columns, one sample, one class."""
    for points, labels in [(np.ones((6, 3)), [0, 1] * 3), (np.ones((1, 2)), [5]), (X[:9], np.zeros(9, int))]:
        model = FlyNNClassifier(hash_dim=64).fit(points, labels)
        assert_allclose(model.predict_proba(points).sum(axis=1), 1)
        assert set(model.predict(points)) <= set(labels)


# --- one default ------------------------------------------------------------------------------------------------------


def fit_by_parties(X, y, n_classes, party_of, **parameters):
    """`FlyNNClassifier().fit` as sums over parties, one phase after the other."""
    parties = [party_of == k for k in range(party_of.max() + 2)]  # the last is empty
    d = X.shape[1]
    plan = HashPlan(d, n_classes, len(y), "auto", **parameters)  # with the frequencies of all as prior
    specs = plan.specs(sum_of(ColumnHistograms.from_data(X[p], y[p], n_classes) for p in parties))
    counts = [counts_by_parties(spec, X, y, n_classes, parties) for spec in specs]
    sizes = counts[0].n_per_class
    scorings = [candidate_scorings(each) for each in counts]
    left_out = [kept(X[p], y[p], sizes, N_LEFT_OUT) for p in parties]

    def tables(spec, counts, candidates):
        hasher = flynn_hash(spec)
        batches = [
            (hasher.active(X[p][mask]), y[p][mask]) for p, mask in zip(parties, left_out, strict=True) if mask.any()
        ]
        parts = [leave_one_out_tables(counts, [batch], candidates) for batch in batches]
        return sum(part.correct for part in parts), sum(part.log_losses for part in parts)

    results = [tables(*parts) for parts in zip(specs, counts, scorings, strict=True)]
    asked = sum_of(np.bincount(y[p][mask], minlength=n_classes) for p, mask in zip(parties, left_out, strict=True))
    members = []
    for choice in choose([correct for correct, _ in results], asked, plan.max_members):
        index = choice.spec
        temperature = best_temperature(results[index][1][choice.scoring])
        scoring = replace(scorings[index][choice.scoring], temperature=temperature)
        members.append(ModelMember(specs[index], counts[index], scoring, choice.weight))
    return Model(tuple(members), np.arange(n_classes), prior=counted_prior(counts[0], None))


def sum_of(parts):
    first, *others = parts
    for other in others:
        first = first + other
    return first


def counts_by_parties(spec, X, y, n_classes, parties):
    return sum_of(ClassCounts.from_data(flynn_hash(spec), X[p], y[p], n_classes) for p in parties)


@pytest.mark.parametrize("parameters", [{"hash_dim": 512}, {"hash_dim": 512, "max_members": 7}])
@pytest.mark.parametrize("split", ["random", "by class", "one sample each"])
def test_the_fit_is_a_sum_over_parties(split, parameters):
    n = len(X)
    party = {
        "random": np.random.default_rng(0).integers(0, 5, n),
        "by class": CODES,
        "one sample each": np.maximum(np.arange(n) - 90, 0),
    }[split]
    expected = FlyNNClassifier(**parameters).fit(X, CODES).model_
    assert fit_by_parties(X, CODES, 3, party, **parameters).sha256() == expected.sha256()


LARGE, LARGE_Y = make_classification(
    6000, 4, n_informative=3, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=1
)


@pytest.mark.slow
def test_many_samples_leave_out_a_subsample_of_the_pool():
    """Beyond the samples that are left out, and beyond those from which hashes have more rows for each winner."""
    assert len(LARGE) > N_LEFT_OUT
    model = FlyNNClassifier(n_jobs=2).fit(LARGE, LARGE_Y).model_
    assert {(member.spec.hash_dim, member.spec.hash_nnz) for member in model.members} == {(2**16, 64)}
    order = np.random.default_rng(0).permutation(len(LARGE))
    other = FlyNNClassifier(n_jobs=2).fit(sp.csr_array(LARGE[order]), LARGE_Y[order]).model_
    assert other.sha256() == model.sha256()
    party = np.where(np.arange(6000) < 3, np.arange(6000), 3 + LARGE_Y)
    assert fit_by_parties(LARGE, LARGE_Y, 3, party).sha256() == model.sha256()


@pytest.mark.slow
def test_every_processor_makes_the_same_model(tmp_path):
    """Code for a processor without vectors, which is compiled afresh, gives the same model and predictions."""
    digits, y = load_digits(return_X_y=True)
    model = FlyNNClassifier().fit(digits, y)
    code = (
        "import hashlib; from sklearn.datasets import load_digits; from flwr_flynn import FlyNNClassifier;"
        "X, y = load_digits(return_X_y=True); model = FlyNNClassifier().fit(X, y);"
        "print(model.model_.sha256(), hashlib.sha256(model.decision_function(X).tobytes()).hexdigest())"
    )
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | generic
    )
    scores = hashlib.sha256(model.decision_function(digits).tobytes()).hexdigest()
    assert result.stdout.split() == [model.model_.sha256(), scores]
