"""Mirrored counts, and scores by class means, against plain oracles."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from flwr_flynn import ClassCounts, FlyHash
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.class_means import (
    MOST_ROWS,
    add_mirrored,
    both_bits,
    has_mirror,
    mean_scoring,
    reads_means,
)
from flwr_flynn.model.counts import SIZE_ENTRIES, Release
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.scoring import SUGGESTED_TEMPERATURE, ScoringRule
from flwr_flynn.privacy import GaussianCounts, SimulatedRelease
from tests.raising import raises

SPEC = HashSpec(5, 40, 2, 9, 3, signed=True, center=(1.0, 0.0, -1.0, 2.0, 0.5))
HASHER = FlyHash(SPEC)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)) + SPEC.center
Y = RNG.integers(0, 3, 60)
X[:, 0] += 3 * Y
MECHANISMS = {
    is_mirrored: GaussianCounts(
        1.0, 1e-5, hash_nnz=9, n_classes=3, mirrored=is_mirrored
    )
    for is_mirrored in (False, True)
}
MIRRORED = pytest.mark.parametrize("is_mirrored", [False, True])


def mirrored(rows):
    """The mirrored counts of some samples."""
    array = np.zeros((3, 40), np.int64)
    add_mirrored(array, Y[rows], both_bits(HASHER, X[rows]))
    return array


def noisy(is_mirrored, seed=0, rows=slice(None)):
    """A release of the counts of some samples, mirrored or not."""
    mechanism = SimulatedRelease(MECHANISMS[is_mirrored], seed)
    array = mirrored(rows)
    if not is_mirrored:
        array = ClassCounts.from_data(HASHER, X[rows], Y[rows], 3).array
    return mechanism.received(mechanism.noisy(array), HASHER.fingerprint)


def of_array(array, is_mirrored):
    """Noisy counts of this array."""
    return MECHANISMS[is_mirrored].received(np.asarray(array), HASHER.fingerprint)


# ---- mirrored counts


def test_mirrored_counts_are_those_of_samples_less_those_of_their_images_and_sizes():
    plain, images = (
        ClassCounts.from_data(HASHER, side, Y, 3).array
        for side in (X, 2 * np.array(SPEC.center) - X)
    )
    expected = plain - images
    expected[:, -SIZE_ENTRIES:] = np.bincount(Y)[:, None]
    assert_array_equal(mirrored(slice(None)), expected)
    assert_array_equal(of_array(expected, True).n_per_class, np.bincount(Y))


def test_counts_of_parties_add_up_to_those_of_all():
    owners = RNG.integers(0, 4, 60)
    parts = [mirrored(owners == party) for party in range(5)]  # the last has nobody
    assert_array_equal(sum(parts), mirrored(slice(None)))


@pytest.mark.parametrize("row", range(0, 60, 7))
def test_a_sample_changes_few_entries_of_its_class_by_one(row):
    change = mirrored([*range(60)]) - mirrored(np.arange(60) != row)
    assert_array_equal(np.flatnonzero(change.any(axis=1)), [Y[row]])
    assert abs(change).max() == 1
    assert np.count_nonzero(change) <= MECHANISMS[True].n_changed == 2 * 9 + 16


def test_a_sample_that_is_its_own_image_is_counted_in_the_sizes_alone():
    array = np.zeros((1, 40), np.int64)
    bits = both_bits(HASHER, np.array([SPEC.center]))
    add_mirrored(array, np.zeros(1, np.int64), bits)
    assert array[0].tolist() == [0] * (40 - SIZE_ENTRIES) + [1] * SIZE_ENTRIES


NO_MIRROR = {
    "no centre": {"center": None},
    "unsigned": {"signed": False},
    "no room": {"hash_dim": SIZE_ENTRIES},
    "many rows": {"hash_dim": MOST_ROWS + 1},
    "waves": {"n_waves": 8, "wave_frequency": 1.0, "scale": (1.0,) * 5},
}


@pytest.mark.parametrize("changes", NO_MIRROR.values(), ids=NO_MIRROR)
def test_a_hash_without_mirror_images_is_not_read_by_class_means(changes):
    assert has_mirror(SPEC)
    spec = replace(SPEC, **changes)
    assert not has_mirror(spec)
    assert not reads_means(spec, noisy(True))


def test_images_need_a_centre():
    with raises(DataError, field="spec"):
        both_bits(FlyHash(replace(SPEC, center=None)), X)


# ---- scores


def dense_rows():
    """The lifting matrix, (m, d)."""
    rows = np.zeros((40, 5))
    np.put_along_axis(rows, HASHER.rows, HASHER.signs, axis=1)
    return rows


def oracle(counts, is_mirrored, samples):
    """Scores as the module's first lines have them, by NumPy's own solver."""
    rows = dense_rows()
    array = counts.array.astype(float)
    norm = 9
    size_variance = counts.noise_variance * 40 / 9**2
    if is_mirrored:
        rows[-SIZE_ENTRIES:] = 0
        array[:, -SIZE_ENTRIES:] = 0
        norm = 18
        size_variance = counts.noise_variance / SIZE_ENTRIES
    squares = rows @ rows.T
    given = counts.n_per_class
    mean = max(given.sum(), 2 * math.sqrt(3 * size_variance)) / 3
    share = 1 / (1 + size_variance / (0.5 * mean) ** 2)
    sizes = np.maximum(mean + share * (given - mean), 0.05 * mean)
    means = array / sizes[:, None] / math.sqrt(norm)
    noise = counts.noise_variance / norm / sizes**2
    shares = 1 / noise / (1 / noise).sum()
    centre = shares @ means
    apart = means - centre
    # Of each, apart is (e_l - shares) times means, of independent noise.
    weights = np.eye(3) - shares
    of_noise = (weights**2) @ noise
    whole = of_noise.sum() * np.trace(squares)
    beyond = np.einsum("li,ij,lj", apart, squares, apart) - whole
    of_spread = (weights**2).sum()
    total = (squares**2).sum()
    spread = max(beyond, 0.01 * whole) / (of_spread * total / np.trace(squares))
    squares /= np.trace(squares)
    scores = []
    hashed = np.zeros((len(samples), 40))
    images = np.zeros_like(hashed)
    np.put_along_axis(hashed, HASHER.active(samples), 1, axis=1)
    if is_mirrored:
        other = 2 * np.array(SPEC.center) - samples
        np.put_along_axis(images, HASHER.active(other), 1, axis=1)
    for label in range(3):
        covariance = squares + noise[label] / spread * np.eye(40)
        shrunk = squares @ np.linalg.solve(covariance, apart[label])
        own = 2 * np.linalg.solve(squares + np.eye(40) / 40, shrunk)
        values = (hashed - images) / math.sqrt(norm)
        scores.append((values - centre - shrunk / 2) @ own)
    return 0.2 * SUGGESTED_TEMPERATURE * np.array(scores).T


@MIRRORED
@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_a_plain_oracle(is_mirrored, seed):
    counts = noisy(is_mirrored, seed)
    scores = mean_scoring(counts, HASHER).scores(HASHER, X)
    assert_allclose(scores, oracle(counts, is_mirrored, X), rtol=1e-9, atol=1e-9)
    member = ModelMember(SPEC, counts, ScoringRule("balanced", 0.5))
    assert_array_equal(member.log_odds(X), scores)


@MIRRORED
def test_with_little_noise_the_scores_tell_the_classes_apart(is_mirrored):
    array = mirrored(slice(None))
    if not is_mirrored:
        array = ClassCounts.from_data(HASHER, X, Y, 3).array
    release = Release("0" * 64, 1e-3, mirrored=is_mirrored)
    counts = replace(noisy(is_mirrored), array=array, noise=(release,))
    scoring = mean_scoring(counts, HASHER)
    assert (scoring.scores(HASHER, X).argmax(axis=1) == Y).mean() > 0.6
    assert scoring.separation > 100


@MIRRORED
def test_the_order_of_classes_is_that_of_their_scores(is_mirrored):
    counts = noisy(is_mirrored)
    order = [2, 0, 1]
    scores, permuted = (
        mean_scoring(of_array(array, is_mirrored), HASHER).scores(HASHER, X)
        for array in (counts.array, counts.array[order])
    )
    assert_allclose(permuted, scores[:, order], rtol=1e-9, atol=1e-12)


@MIRRORED
def test_scores_are_the_same_bits_in_whatever_order_parties_are_added(is_mirrored):
    parts = [noisy(is_mirrored, seed, slice(seed, None, 3)) for seed in range(3)]
    totals = [parts[0] + parts[1] + parts[2], parts[2] + (parts[1] + parts[0])]
    one, other = (mean_scoring(total, HASHER).scores(HASHER, X) for total in totals)
    assert one.tobytes() == other.tobytes()
    assert totals[0].size_variance == pytest.approx(3 * parts[0].size_variance)


@MIRRORED
@pytest.mark.parametrize("fill", [0, 1, -1, -(10**6), 10**9])
@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_scores_of_any_counts_are_finite(is_mirrored, fill, n_classes):
    array = np.full((n_classes, 40), fill)
    array[0] = 0
    release = Release("0" * 64, 100.0, mirrored=is_mirrored)
    counts = replace(noisy(is_mirrored), array=array, noise=(release,))
    member = ModelMember(SPEC, counts, ScoringRule("balanced", 0.5))
    assert (member.means is None) == (n_classes == 1)
    assert np.isfinite(member.log_odds(X)).all()
