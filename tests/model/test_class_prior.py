"""The class prior: frequencies of the counted samples, or of one party.

The other parts of a model take all classes alike.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax

from flwr_flynn import ClassCounts, FlyNNClassifier, HashSpec
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.prior import counted_prior, log_frequencies, own_prior
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease, TopTLaplace

SPECS = (
    HashSpec(3, 60, 2, 8, seed=1, signed=True),
    HashSpec(3, 40, 1, 5, seed=2),
    HashSpec(3, 50, 2, 4, seed=3),
)
WEIGHTS = (0.5, 0.375, 0.125)
LABELS = np.array(["ash", "birch", "cedar", "date"])
RNG = np.random.default_rng(4)
X = RNG.normal(size=(60, 3)).round(2)
CODES = RNG.choice(4, 60, p=[0.5, 0.3, 0.2, 0.0])
X[np.arange(60), np.minimum(CODES, 2)] += 1.5


def trained(points, codes, n_members=1):
    """A model of some samples, by all four classes."""
    weights = WEIGHTS
    if n_members == 1:
        weights = (1.0,)
    members = []
    for spec, weight in zip(SPECS[:n_members], weights, strict=True):
        counts = ClassCounts.from_data(flynn_hash(spec), points, codes, 4)
        members.append(
            ModelMember(spec, counts, ScoringRule("balanced", 0.6, 0.7), weight)
        )
    return Model(tuple(members), LABELS)


# ---- the frequencies


def likelihood(own, shares, strength):
    """Log probability of a sequence with these class sizes from an urn that learns."""
    urn = [
        strength * share + before
        for mine, share in zip(own, shares, strict=True)
        for before in range(mine)
    ]
    return math.fsum(map(math.log, urn)) - math.fsum(
        math.log(strength + drawn) for drawn in range(sum(own))
    )


@given(
    st.lists(st.integers(0, 60), min_size=4, max_size=4),
    st.lists(st.integers(0, 10**6), min_size=4, max_size=4),
)
def test_frequencies_are_smoothed_by_each_number_of_samples_as_likely_as_it_makes_the_party(
    own, everyone
):
    shares = [(size + 1) / (sum(everyone) + 4) for size in everyone]
    strengths = [2.0**power for power in range(-1, 16)]
    logs = [likelihood(own, shares, m) for m in strengths]
    likely = np.exp(np.array(logs) - max(logs))
    smoothed = [
        [
            (mine + m * share) / (sum(own) + m)
            for mine, share in zip(own, shares, strict=True)
        ]
        for m in strengths
    ]
    frequencies = np.exp(log_frequencies(own, everyone))
    assert_allclose(
        frequencies, np.average(smoothed, axis=0, weights=likely), rtol=1e-6
    )
    assert frequencies.sum() == pytest.approx(1)
    assert (frequencies > 0).all()


def test_the_prior_is_of_the_counts_of_the_model_and_of_noisy_ones_of_equal_classes():
    model = trained(X, CODES)
    sizes = np.bincount(CODES, minlength=4)
    assert_array_equal(
        own_prior(model.members[0].counts, np.array([1, 1, 2])),
        log_frequencies([0, 2, 1, 0], sizes),
    )
    noise = SimulatedRelease(LaplaceCounts(5.0, hash_nnz=8, n_classes=4), 3)
    noisy = Model(
        (replace(model.member, counts=noise.release(model.member.counts)),), LABELS
    )
    assert_array_equal(
        own_prior(noisy.members[0].counts, np.array([1, 1, 2])),
        log_frequencies([0, 2, 1, 0], [0, 0, 0, 0]),
    )


# ---- frequencies of the counted samples


@given(
    st.lists(st.integers(0, 30), min_size=4, max_size=4),
    st.lists(st.floats(0, 100), min_size=4, max_size=4),
)
def test_the_prior_of_counts_is_their_class_sizes_times_the_weights(sizes, weights):
    counts = ClassCounts(
        np.repeat(sizes, 5).reshape(4, 5), hash_nnz=5, spec_fingerprint=64 * "0"
    )
    for weight in (np.ones(4), np.array(weights)):
        weighted = np.array(sizes) * weight
        if not weighted.any():
            weighted = np.ones(4)
        expected = weighted / weighted.sum()
        assert_allclose(
            np.exp(counted_prior(counts, weight)), expected, rtol=1e-9, atol=1e-300
        )
    assert_array_equal(counted_prior(counts, None), counted_prior(counts, np.ones(4)))
    assert counted_prior(counts, "balanced") is None


def test_the_prior_of_noisy_counts_is_of_sizes_from_0_and_a_sample_more_of_each_class():
    exact = ClassCounts.from_data(flynn_hash(SPECS[0]), X, CODES, 4)
    noisy = SimulatedRelease(LaplaceCounts(0.1, hash_nnz=8, n_classes=4), 3).release(
        exact
    )
    assert (noisy.n_per_class < 0).any()
    sizes = [max(size, 0) + 1 for size in noisy.n_per_class]
    assert_allclose(
        np.exp(counted_prior(noisy, None)), np.array(sizes) / sum(sizes), rtol=1e-12
    )
    selected = SimulatedRelease(
        TopTLaplace(1.0, hash_nnz=8, n_classes=4, n_released=16), 3
    ).release(exact)
    assert_allclose(np.exp(counted_prior(selected, None)), np.full(4, 0.25))


# ---- the classifier


POSITIVE = np.where(RNG.random(60) < 0.2, "sick", "well")
WEIGHTED = (None, {"sick": 3.0, "well": 0.5}, {"sick": 2}, {})


@pytest.mark.parametrize(
    "given_",
    [
        {},
        {"effort": "quick"},
        {"spec": SPECS[0]},
        {"spec": SPECS[0], "rule": "novelty"},
    ],
)
def test_probabilities_are_those_of_equal_classes_times_frequencies_and_weights(given_):
    given_ = {**given_, "temperature": 0.3}  # which else follows from the weights
    equal = FlyNNClassifier(class_weight="balanced", **given_).fit(X, POSITIVE)
    assert equal.model_.prior is None
    for weight in WEIGHTED:
        model = FlyNNClassifier(class_weight=weight, **given_).fit(X, POSITIVE)
        if "rule" in given_ and weight is None:  # as in the paper
            assert_array_equal(model.predict_proba(X), equal.predict_proba(X))
            continue
        sizes = [
            (label == POSITIVE).sum() * (weight or {}).get(label, 1)
            for label in ("sick", "well")
        ]
        expected = equal.predict_proba(X) * sizes
        assert_allclose(
            model.predict_proba(X),
            expected / expected.sum(axis=1, keepdims=True),
            rtol=1e-9,
        )
        assert_array_equal(model.predict(X), model.classes_[expected.argmax(axis=1)])
        assert_array_equal(model.novelty(X), equal.novelty(X))
        assert_allclose(
            model.decision_function(X),
            np.log(expected[:, 1] / expected[:, 0]),
            atol=1e-7,
        )


@pytest.mark.parametrize("weight", WEIGHTED)
def test_the_prior_follows_the_counts(weight):
    spec = SPECS[0]
    parts = [slice(0, 20), slice(20, 45), slice(45, 60)]

    def of(rows):
        return FlyNNClassifier(
            spec, decay=0.5, temperature=0.4, class_weight=weight
        ).fit(X[rows], POSITIVE[rows])

    whole = of(slice(0, 60)).model_.sha256()
    rest = of(slice(0, 45)).model_.sha256()
    batches = FlyNNClassifier(spec, decay=0.5, temperature=0.4, class_weight=weight)
    for rows in parts:
        batches.partial_fit(X[rows], POSITIVE[rows], classes=["sick", "well"])
    merged = of(parts[0]).merge(of(parts[1])).merge(of(parts[2]))
    counted = FlyNNClassifier.from_counts(
        spec,
        merged.counts_,
        merged.classes_,
        decay=0.5,
        temperature=0.4,
        class_weight=weight,
    )
    for same in (batches, merged, counted):
        assert same.model_.sha256() == whole
    assert merged.forget(X[parts[2]], POSITIVE[parts[2]]).model_.sha256() == rest
    # A prior of one's own is gone.
    assert merged.with_prior(["sick"]).with_prior().model_.sha256() == rest


def test_files_keep_the_prior_and_whether_it_follows_the_counts(tmp_path):
    for weight, expected in (
        (None, None),
        ("balanced", "balanced"),
        ({"sick": 2}, None),
    ):
        model = FlyNNClassifier(SPECS[0], class_weight=weight).fit(X, POSITIVE)
        model.save(tmp_path / "model.npz")
        loaded = FlyNNClassifier.load(tmp_path / "model.npz")
        assert loaded.class_weight == expected
        assert loaded.model_.sha256() == model.model_.sha256()


def test_a_weight_of_0_excludes_a_class():
    never = FlyNNClassifier(SPECS[0], class_weight={"sick": 0}).fit(X, POSITIVE)
    assert set(never.predict(X)) == {"well"}


def classifier(n_members=1):
    return FlyNNClassifier.from_model(trained(X, CODES, n_members))


@pytest.mark.parametrize("n_members", [1, 3])
def test_probabilities_are_those_of_the_model_times_the_frequencies(n_members):
    model = classifier(n_members)
    frequencies = np.array([1.0, 5.0, 2.0, 50.0])
    own = model.with_prior(frequencies=frequencies)
    expected = model.predict_proba(X) * frequencies
    assert_allclose(
        own.predict_proba(X), expected / expected.sum(axis=1, keepdims=True), atol=1e-12
    )
    assert_array_equal(own.predict(X), LABELS[expected.argmax(axis=1)])
    scores = own.decision_function(X)
    assert_allclose(
        softmax(scores[:, :3], axis=1), own.predict_proba(X)[:, :3], atol=1e-12
    )
    assert (scores[:, 3] < scores[:, :3].min(axis=1)).all()  # nobody has a date
    assert_array_equal(own.novelty(X), model.novelty(X))
    assert model.model_.prior is None
    assert own.model_.members == model.model_.members
    assert own.model_.sha256() != model.model_.sha256()
    assert replace(own.model_, prior=None).sha256() == model.model_.sha256()


def test_priors_come_from_labels_or_frequencies_or_are_taken_away():
    model = classifier()
    from_labels = model.with_prior(["birch", "birch", "date"]).model_.prior
    assert_array_equal(
        from_labels, own_prior(model.model_.members[0].counts, np.array([1, 1, 3]))
    )
    assert (from_labels.dtype, from_labels.flags.writeable) == (np.float64, False)
    for scale in (1.0, 1e200):
        given_ = model.with_prior(frequencies=scale * np.exp(from_labels))
        assert_allclose(given_.model_.prior, from_labels)
    assert model.with_prior(["ash"]).with_prior().model_.prior is None


@pytest.mark.parametrize("n_members", [1, 3])
def test_whatever_changes_the_counts_drops_the_prior_of_a_party(n_members):
    for change in (
        lambda model: model.partial_fit(X[:5], LABELS[CODES[:5]]),
        lambda model: model.partial_fit(X[:1], LABELS[CODES[:1]]).forget(
            X[:1], LABELS[CODES[:1]]
        ),
        lambda model: model.merge(classifier(n_members)),
        lambda model: model.forget(X[:5], LABELS[CODES[:5]]),
    ):
        plain = classifier(n_members)
        own = classifier(n_members).with_prior(["ash"])
        assert change(own).model_.prior is None
        assert own.model_.sha256() == change(plain).model_.sha256()
    nothing = FlyNNClassifier.from_model(trained(X[:0], CODES[:0], n_members))
    assert classifier(n_members).with_prior(["ash"]).merge(nothing).model_.prior is None
    assert (
        classifier(n_members)
        .merge(classifier(n_members).with_prior(["ash"]))
        .model_.prior
        is None
    )
