"""A prior of one party: its decision is that of retraining, and the shared part of the model stays as it is."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits

from flwr_flynn import ClassCounts, FlyNNClassifier, HashSpec
from flwr_flynn.errors import DataError, ModelFileError
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model import class_prior
from flwr_flynn.model import scoring as scoring_module
from flwr_flynn.model.class_prior import is_better, log_frequencies, own_prior
from flwr_flynn.model.gram import GramFit, GramMatrix
from flwr_flynn.model.model import Model, ModelMember, ScoringRule
from flwr_flynn.model.scoring import RULES
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from tests.memory import traced
from tests.model.forgery import put, rewrite
from tests.raising import raises

SPECS = (HashSpec(3, 60, 2, 8, seed=1, signed=True), HashSpec(3, 40, 1, 5, seed=2), HashSpec(3, 50, 2, 4, seed=3))
WEIGHTS = (0.5, 0.375, 0.125)
LABELS = np.array(["ash", "birch", "cedar", "date"])
RNG = np.random.default_rng(4)
X, CODES = RNG.normal(size=(60, 3)).round(2), RNG.choice(4, 60, p=[0.5, 0.3, 0.2, 0.0])
X[np.arange(60), np.minimum(CODES, 2)] += 1.5


def trained(points, codes, n_members=1, rule="balanced", temperature=0.7):
    """A model of some samples, by all four classes."""
    members = [
        ModelMember(
            spec, ClassCounts.from_data(flynn_hash(spec), points, codes, 4), ScoringRule(rule, 0.6, temperature), w
        )
        for spec, w in list(zip(SPECS, WEIGHTS, strict=True))[:n_members]
    ]
    if n_members == 1:
        members = [replace(members[0], weight=1.0)]
    return Model(tuple(members), LABELS)


def frequencies_of(sizes):
    """Frequencies of four classes, the amount added to each being that by which the labels are most likely."""
    labels = np.repeat(np.arange(4), sizes)
    amounts = [amount for amount in (1 / 8, 1 / 32, 1 / 128, 1 / 512) if amount >= 1 / max(len(labels), 1)]
    likelihoods = [
        sum(np.log((np.sum(labels == y) - 1 + amount) / (len(labels) - 1 + 4 * amount)) for y in labels)
        for amount in (0.5, *amounts)
    ]
    amount = (0.5, *amounts)[np.argmax(np.round(likelihoods, 9))]
    return (sizes + amount) / (len(labels) + 4 * amount)


def retrained(points, codes, own, *how):
    """Changes in samples right, and log-loss saved, for a party with the samples `own`, by training without each."""
    changes = []
    for sample in own:
        rest = np.arange(len(codes)) != sample
        model = trained(points[rest], codes[rest], *how)
        sizes = np.bincount(codes[[other for other in own if other != sample]], minlength=4)
        prior = np.log(frequencies_of(sizes))
        true, here = codes[sample], points[sample : sample + 1]
        right, losses = [], []
        for each, scored in (
            (model, replace(model, prior=np.full(4, np.log(0.25)))),
            (replace(model, prior=prior),) * 2,
        ):
            right.append(int(each.scores(here)[0].argmax() == true))
            losses.append(min(-log_softmax(scored.scores(here)[0])[true], 64.0))
        changes.append((right[1] - right[0], losses[0] - losses[1]))
    return sorted(changes)


def compared(model, points, codes):
    """The same changes as `own_prior` has them, and its decision."""
    seen = []

    def spy(right, saved):
        seen.extend(zip(right.tolist(), saved.tolist(), strict=True))
        return is_better(right, saved)

    with mock.patch.object(class_prior, "is_better", spy):
        prior = own_prior(model, points, codes)
    return sorted(seen), prior


# ---- the decision


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n_members", [1, 3])
def test_the_decision_is_that_of_retraining_without_each_sample(n_members, rule):
    @given(st.integers(2, 14), st.integers(0, 10**6), st.sampled_from([0.05, 0.7, 20.0]))
    @settings(max_examples=12, deadline=None)
    def check(n, seed, temperature):
        rng = np.random.default_rng(seed)
        pool = rng.permutation(60)[: 2 * n]
        points, codes = X[pool], CODES[pool]
        own = np.arange(n)
        found, prior = compared(trained(points, codes, n_members, rule, temperature), points[own], codes[own])
        expected = retrained(points, codes, own, n_members, rule, temperature)
        assert_allclose(np.array(found), np.array(expected), rtol=1e-9, atol=1e-9)
        # One standard error, in the words of the documentation.
        right, saved = np.array(expected).T
        if abs(saved.mean() - saved.std(ddof=1) / np.sqrt(n)) > 1e-9:
            assert (prior is not None) == (right.sum() >= 0 and saved.mean() > saved.std(ddof=1) / np.sqrt(n))
        if prior is not None:
            assert_allclose(np.exp(prior), frequencies_of(np.bincount(codes[own], minlength=4)))

    check()


@pytest.mark.parametrize("n_members", [1, 3])
def test_the_gram_matrix_takes_part_in_the_decision_as_if_without_each_sample(n_members):
    specs = (HashSpec(3, 16, 2, 4, seed=7, signed=True),)
    points, codes = np.concatenate([X[:30], [[9.0, 0.0, 9.0]]]), np.append(CODES[:30], 3)  # one alone of its class
    sums = GramMatrix.from_data(specs, points, codes, 4)
    fit = GramFit.of(sums)
    scoring = fit.scoring(specs, sums.n_per_class, *fit.tables(specs, points, codes), 0.8)
    expected = []
    own = [3, 30, 7, 12, 0, 25]
    for sample in own:
        rest, here = np.arange(31) != sample, points[sample : sample + 1]
        model = replace(trained(points[rest], codes[rest], n_members), prior=np.full(4, np.log(0.25)))
        known, true = np.bincount(codes[rest], minlength=4) > 0, codes[sample]
        odds = scoring.left_out(here, np.array([true]), sums.n_per_class)
        shared = np.full(4, -np.inf)
        shared[known] = (1 - scoring.share) * log_softmax(model.scores(here)[0][known])
        shared[known] += scoring.share * log_softmax(odds[0])[known]
        others = np.bincount(codes[[other for other in own if other != sample]], minlength=4)
        each = [shared, shared + np.log(frequencies_of(others))]
        for scores in each:
            scores[~known] = scores[known].min() - 1  # what has no samples is below the others
        right = [int(scores.argmax() == true) for scores in each]
        losses = [min(-log_softmax(scores)[true], 64.0) for scores in each]
        expected.append((right[1] - right[0], losses[0] - losses[1]))
    model = replace(trained(points, codes, n_members), gram=scoring)
    found, _ = compared(model, points[own], codes[own])
    assert_allclose(np.array(found), np.array(sorted(expected)), atol=1e-9)


def test_of_a_party_that_is_not_in_the_gram_matrix_no_sample_is_taken_out():
    specs = (HashSpec(3, 16, 2, 4, seed=7, signed=True),)
    sums = GramMatrix.from_data(specs, X[:40], CODES[:40], 4)
    fit = GramFit.of(sums)
    scoring = fit.scoring(specs, sums.n_per_class, *fit.tables(specs, X[:40], CODES[:40]), 0.8)
    seen = {}
    for in_gram in (True, False):
        with mock.patch.object(class_prior, "is_better", lambda right, saved, k=in_gram: seen.update({k: saved.sum()})):
            own_prior(replace(trained(X, CODES), gram=scoring), X[40:], CODES[40:], in_gram=in_gram)
    with (
        mock.patch.object(type(scoring), "left_out", lambda self, points, *_: self.log_odds(points)),
        mock.patch.object(class_prior, "is_better", lambda right, saved: seen.update({"as it is": saved.sum()})),
    ):
        own_prior(replace(trained(X, CODES), gram=scoring), X[40:], CODES[40:])
    assert seen[False] == seen["as it is"] != seen[True]


def test_a_subsample_with_nothing_in_it_decides_nothing(monkeypatch):
    monkeypatch.setattr(class_prior, "kept", lambda X, *_: np.zeros(len(X), bool))
    assert own_prior(trained(X, CODES), X, CODES) is None


def test_thousands_of_classes_take_no_table_of_all_by_all():
    n_classes = 5000
    points = np.random.default_rng(0).normal(size=(n_classes, 3))
    counts = ClassCounts.from_data(flynn_hash(SPECS[0]), points, np.arange(n_classes), n_classes)
    model = Model((ModelMember(SPECS[0], counts, ScoringRule("balanced", 0.6, 0.7)),), np.arange(n_classes))
    mine = np.arange(0, n_classes, 5)
    own_prior(model, points[mine[:9]], mine[:9])  # what comes with a first use
    with traced() as memory:
        own_prior(model, points[mine], mine)
    assert memory.peak < 8 * len(mine) * n_classes  # 40 MB


def test_little_is_added_where_no_class_came_as_a_surprise():
    for sizes, amount in (
        ([0, 0, 0], 0.5),
        ([1, 0, 0], 0.5),
        ([3, 0, 0], 0.5),  # too few to rule out others
        ([40, 0, 0], 1 / 32),
        ([600, 0, 0], 1 / 512),
        ([300, 300, 1], 0.5),  # a class came as a surprise
        ([1, 1, 1], 0.5),
    ):
        assert class_prior.smoothing(sizes) == amount
        assert_allclose(np.exp(log_frequencies(sizes)), (np.array(sizes) + amount) / (sum(sizes) + 3 * amount))


@pytest.mark.parametrize(
    ("right", "saved", "expected"),
    [
        ([1, 1, 0], [0.5, 0.4, 0.3], True),
        ([1, -1, 0], [0.5, 0.4, 0.3], True),  # as many right
        ([1, -1, -1], [0.5, 0.4, 0.3], False),  # fewer right
        ([1, 1, 1], [1.0, -1.0, 0.3], False),  # by chance
        ([1, 1, 1], [-0.1, -0.2, -0.1], False),
        ([0, 0, 0], [0.0, 0.0, 0.0], False),  # equal models
        ([1, 1], [0.5, 0.5], True),
        ([1], [0.5], False),  # of one sample there is no error
        ([], [], False),
    ],
)
def test_a_prior_has_to_be_better_by_more_than_chance(right, saved, expected):
    assert is_better(np.array(right, float), np.array(saved, float)) is expected


def test_blocks_do_not_show(monkeypatch):
    model = trained(X, CODES, 3)
    whole, prior = compared(model, X[:40], CODES[:40])
    monkeypatch.setattr(class_prior, "_PART", 9)
    monkeypatch.setattr(class_prior, "HELD", 50)
    monkeypatch.setattr(scoring_module, "BLOCK", 7)
    parts, again = compared(model, X[:40], CODES[:40])
    assert_allclose(parts, whole, atol=1e-12)
    assert_array_equal(again, prior)


def test_of_many_samples_some_are_left_out_and_all_are_counted(monkeypatch):
    points = np.random.default_rng(0).normal(size=(400, 3))
    codes = np.repeat([0, 1], [360, 40])
    points[:, 0] += codes
    model = trained(points, codes)
    monkeypatch.setattr(class_prior, "N_LEFT_OUT", 100)
    seen, _ = compared(model, points, codes)
    assert 60 < len(seen) < 140
    again, _ = compared(model, points[::-1], codes[::-1])
    assert_allclose(again, seen)
    monkeypatch.setattr(class_prior, "is_better", lambda right, saved: True)
    assert_array_equal(own_prior(model, points, codes), log_frequencies([360, 40, 0, 0]))


def test_too_few_samples_and_noise_get_no_prior():
    model = trained(X, CODES)
    for n in (0, 1):
        assert own_prior(model, X[:n], CODES[:n]) is None
    noise = SimulatedRelease(LaplaceCounts(5.0, hash_nnz=8, n_classes=4), 3)
    noisy = Model((replace(model.member, counts=noise.release(model.member.counts)),), LABELS)
    assert own_prior(noisy, X, CODES) is None


@pytest.mark.parametrize("n_members", [1, 3])
def test_of_samples_that_cannot_be_in_the_counts_the_model_is_used_as_it_is(n_members):
    model = trained(X[:30], CODES[:30], n_members)
    strangers, codes = X[30:] + 0.5, CODES[30:]
    sizes = np.bincount(codes, minlength=4)
    right, saved = [], []
    for sample, true in zip(strangers, codes, strict=True):
        others = sizes - np.eye(4)[true]
        prior = np.log(frequencies_of(others.astype(int)))
        flat = replace(model, prior=np.full(4, np.log(0.25)))
        shared, own = (log_softmax(each.scores(sample[None])[0]) for each in (flat, replace(model, prior=prior)))
        right.append(float(own.argmax() == true) - float(shared.argmax() == true))
        saved.append(min(-shared[true], class_prior.MAX_LOSS) - min(-own[true], class_prior.MAX_LOSS))
    expected = log_frequencies(sizes) if is_better(np.array(right), np.array(saved)) else None
    prior = own_prior(model, strangers, codes)
    assert (prior is None) == (expected is None)
    if expected is not None:
        assert_array_equal(prior, expected)


def test_a_party_of_one_class_may_have_a_prior():
    prior = own_prior(trained(X, CODES), X[CODES == 1], CODES[CODES == 1])
    assert prior is not None
    assert prior.argmax() == 1


# ---- the classifier


def classifier(n_members=1):
    return FlyNNClassifier.from_model(trained(X, CODES, n_members))


@pytest.mark.parametrize("n_members", [1, 3])
def test_probabilities_are_those_of_the_model_times_the_frequencies(n_members):
    model = classifier(n_members)
    before = model.model_
    frequencies = np.array([1.0, 5.0, 2.0, 50.0])
    own = model.with_prior(frequencies=frequencies)
    expected = model.predict_proba(X) * frequencies
    assert_allclose(own.predict_proba(X), expected / expected.sum(axis=1, keepdims=True), atol=1e-12)
    assert_array_equal(own.predict(X), LABELS[expected.argmax(axis=1)])
    assert (own.predict_proba(X)[:, 3] == 0).all()  # nobody has a date
    scores = own.decision_function(X)
    assert_allclose(softmax(scores[:, :3], axis=1), own.predict_proba(X)[:, :3], atol=1e-12)
    assert (scores[:, 3] < scores[:, :3].min(axis=1)).all()
    assert_array_equal(own.novelty(X), model.novelty(X))
    assert model.model_ is before
    assert (before.prior, own.model_.members) == (None, before.members)
    assert own.model_.sha256() == before.sha256()
    assert own.model_.fingerprint == before.fingerprint


def test_priors_come_from_labels_or_frequencies_or_are_taken_away():
    model = classifier()
    from_labels = model.with_prior(["birch", "birch", "date"]).model_.prior
    assert_allclose(np.exp(from_labels), np.array([0.5, 2.5, 0.5, 1.5]) / 5)
    assert (from_labels.dtype, from_labels.flags.writeable) == (np.float64, False)
    assert_allclose(model.with_prior(frequencies=[1, 5, 1, 3]).model_.prior, from_labels)
    assert_allclose(model.with_prior(frequencies=[1e200, 5e200, 1e200, 3e200]).model_.prior, from_labels)
    assert model.with_prior(["ash"]).with_prior().model_.prior is None
    assert_array_equal(model.with_prior([]).predict_proba(X).argmax(axis=1), model.predict_proba(X).argmax(axis=1))


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        ({"y": ["elm"]}, "y"),
        ({"y": ["ash"], "frequencies": [1, 1, 1, 1]}, "y, frequencies"),
        ({"frequencies": [1, 1, 1]}, "frequencies"),
        ({"frequencies": [1, 1, 1, 0]}, "frequencies"),
        ({"frequencies": [1, 1, 1, -1]}, "frequencies"),
        ({"frequencies": [1, 1, 1, np.nan]}, "frequencies"),
        ({"frequencies": [1, 1, 1, np.inf]}, "frequencies"),
    ],
)
def test_other_priors_are_refused(given_, field):
    with raises(DataError, field=field):
        classifier().with_prior(**given_)


@pytest.mark.parametrize(
    "prior", [np.zeros(3), np.zeros((4, 1)), np.full(4, -1001.0), np.full(4, 0.1), [0, 0, 0, np.nan], ["a"] * 4, "a"]
)
def test_a_model_refuses_other_log_frequencies(prior):
    with raises(DataError, field="prior"):
        replace(classifier().model_, prior=prior)


@pytest.mark.parametrize("n_members", [1, 3])
def test_whatever_changes_the_counts_drops_the_prior(n_members):
    for change in (
        lambda model: model.partial_fit(X[:5], LABELS[CODES[:5]]),
        lambda model: model.partial_fit(X[:1], LABELS[CODES[:1]]).forget(X[:1], LABELS[CODES[:1]]),
        lambda model: model.merge(classifier(n_members)),
        lambda model: model.forget(X[:5], LABELS[CODES[:5]]),
    ):
        plain, own = classifier(n_members), classifier(n_members).with_prior(["ash"])
        assert change(own).model_.prior is None
        assert own.model_.sha256() == change(plain).model_.sha256()
    nothing = FlyNNClassifier.from_model(trained(X[:0], CODES[:0], n_members))
    assert classifier(n_members).with_prior(["ash"]).merge(nothing).model_.prior is None
    assert classifier(n_members).merge(classifier(n_members).with_prior(["ash"])).model_.prior is None


def test_personalized_is_the_decision_for_own_samples():
    model = classifier(3)
    for rows in (slice(0, 60), CODES == 0, CODES < 2):
        own = model.personalized(X[rows], LABELS[CODES[rows]])
        prior = own_prior(model.model_, X[rows], CODES[rows])
        assert (own.model_.prior is None) == (prior is None)
        if prior is not None:
            assert_array_equal(own.model_.prior, prior)
    assert model.model_.prior is None
    with raises(DataError, field="y"):
        model.personalized(X[:1], ["elm"])


# ---- files


@pytest.mark.parametrize("n_members", [1, 3])
def test_a_prior_is_an_array_of_its_own_in_the_file(n_members, tmp_path):
    shared, own = classifier(n_members), classifier(n_members).with_prior(["ash", "birch"])
    shared.save(tmp_path / "shared.npz")
    own.save(tmp_path / "own.npz")
    with np.load(tmp_path / "shared.npz") as theirs, np.load(tmp_path / "own.npz") as mine:
        assert set(mine) == {*theirs, "prior"}
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in theirs if name != "digest")
    loaded = FlyNNClassifier.load(tmp_path / "own.npz")
    assert_array_equal(loaded.model_.prior, own.model_.prior)
    assert_array_equal(loaded.predict_proba(X), own.predict_proba(X))
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "own.npz").read_bytes()
    own.with_prior().save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "shared.npz").read_bytes()


@pytest.mark.parametrize(
    "prior",
    [
        np.zeros(3),
        np.zeros((4, 1)),
        np.zeros((2, 4)),
        np.zeros(4, "<f4"),
        np.zeros(4, ">f8"),
        np.zeros(4, "<i8"),
        np.zeros(10**6),
        np.array([0, 0, 0, np.nan]),
        np.array([0, 0, 0, -np.inf]),
        np.array([0, 0, 0, 1e-9]),
        np.array([0, 0, 0, -1e300]),
    ],
)
def test_forged_priors_are_refused(prior, tmp_path):
    path = tmp_path / "model.npz"
    classifier().with_prior(["ash"]).save(path)
    rewrite(path, put("prior", lambda _: prior))
    with pytest.raises(ModelFileError):
        FlyNNClassifier.load(path)


@pytest.mark.parametrize("change", [put("prior", lambda prior: prior - 1), lambda _, arrays: arrays.pop("prior")])
def test_an_altered_or_lost_prior_is_noticed(change, tmp_path):
    path = tmp_path / "model.npz"
    classifier().with_prior(["ash"]).save(path)
    rewrite(path, change, seal=False)
    with raises(ModelFileError, field="digest"):
        FlyNNClassifier.load(path)


# ---- what it is for


def dealt(how, n_parties=10, seed=0):
    """Training and held-out rows of Digits at each party: label skew of Dirichlet 0.1, or the same everywhere."""
    points, codes = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, n_parties, len(codes))
    if how == "skewed":
        shares = rng.dirichlet(np.full(n_parties, 0.1), 10)
        owner = np.array([rng.choice(n_parties, p=shares[code]) for code in codes])
    test = rng.random(len(codes)) < 0.2
    return [
        [points[rows & ~test], codes[rows & ~test], points[rows & test], codes[rows & test]]
        for rows in (owner == party for party in range(n_parties))
    ]


def test_on_skewed_digits_class_prior_help_and_elsewhere_they_do_no_harm():
    spec = HashSpec.suggest(64, 1400, 10, seed=1)
    worst = []
    for seed in range(2):
        found = {}
        for how in ("skewed", "alike"):
            parties = [party_of(*part) for part in dealt(how, seed=seed)]
            run = federate(RunOptions(spec=spec, classes=range(10), min_parties=1), parties)
            found[how] = run.state.results["evaluation"].figures
        shared, own = found["skewed"], found["skewed"]["class_prior"]
        assert own["accuracy"] > shared["accuracy"]
        worst.append([min(p["accuracy"] for p in each["parties"] if p["examples"] >= 5) for each in (own, shared)])
        # Alike, chance alone makes a difference: no party loses more than two of its 36 samples or so.
        before = {party["name"]: party for party in found["alike"]["parties"]}
        for party in found["alike"]["class_prior"]["parties"]:
            lost = (before[party["name"]]["accuracy"] - party["accuracy"]) * party["examples"]
            assert lost < 2.5
    assert all(own >= shared for own, shared in worst)
    assert any(own > shared for own, shared in worst)
