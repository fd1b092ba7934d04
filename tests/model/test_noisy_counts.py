"""The algebra of noisy counts: arrays add exactly, and their noise is always known."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import asdict, replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from flwr_flynn import ClassCounts
from flwr_flynn.errors import CountsError
from flwr_flynn.model.candidates import decay_grid, suggest_decay
from flwr_flynn.model.counts import Release, release_name
from flwr_flynn.model.scoring import ScoringRule, class_novelty, class_scores
from flwr_flynn.model.selection import leave_one_out_tables
from tests.raising import raises

FINGERPRINT = 64 * "0"
NAMES = [digit * 64 for digit in "abcdef"]


def plain(array):
    return ClassCounts(array, hash_nnz=2, spec_fingerprint=FINGERPRINT)


def noisy(array, name, variance=4.0, **fields):
    noise = (Release(NAMES[name], variance, **fields),)
    return ClassCounts(array, hash_nnz=2, spec_fingerprint=FINGERPRINT, noise=noise)


@st.composite
def counts(draw):
    """Plain or noisy counts of two classes and three bits.

    Releases with the same name are the same.
    """
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(0, 5), min_size=2, max_size=2))
        return plain([[n, n, 0] for n in sizes])
    name = draw(st.integers(0, 3))
    return noisy(
        np.random.default_rng(name).integers(-50, 50, (2, 3)), name, 1.0 + name
    )


@given(st.lists(counts(), min_size=1, max_size=4))
def test_sums_do_not_depend_on_the_order(several):
    totals = [sum(order) for order in permutations(several)]
    for total in totals:
        assert total == totals[0]
        assert total.sha256() == totals[0].sha256()
    assert_array_equal(totals[0].array, sum(one.array for one in several))


@given(counts(), counts(), counts())
def test_what_was_added_can_be_subtracted_exactly(a, b, c):
    assert (a + b) - b == a
    assert (a + b + c) - (c + b) == a
    assert a - a == plain(np.zeros((2, 3), int))
    if a.noise and b.noise and c.noise:
        assert a - b == a - c + c - b


def test_variances_add_and_a_release_is_itself():
    a = noisy([[-3, 2, 9], [0, 0, 1]], 0, 4.0)
    b = noisy([[1, 1, -1], [0, 0, 0]], 1, 9.0)
    exact = plain([[1, 2, 1], [0, 0, 0]])
    thrice = noisy(a.array, 0, times=3) + b
    assert (a + b).noise_variance == 13.0
    assert (a - b).noise_variance == 13.0
    assert ((a + b) - b).noise_variance == 4.0
    for beside_exact in (a + exact, exact + a, exact - a):
        assert beside_exact.noise_variance == 4.0
    assert (a + a).noise_variance == 16.0  # the same noise twice, not two of them
    assert (a + thrice).noise_variance == 16 * 4.0 + 9.0
    assert (a - thrice).noise_variance == 4 * 4.0 + 9.0
    assert ((a + thrice) - thrice).noise == a.noise
    assert ((exact + a) - a).noise == exact.noise == ()


def test_sizes_are_estimates():
    counts = noisy([[5, 2, -2], [-3, 0, -2]], 0)
    assert_array_equal(counts.n_per_class, [2.5, -2.5])
    assert counts.n_examples == 0
    assert noisy([[5, 0, 0], [0, 0, 0]], 0, selected=True).n_per_class is None
    assert "noise sd 2" in repr(counts)
    assert not counts.n_per_class.flags.writeable


def test_noise_is_part_of_what_is_equal():
    array = [[1, 1, 0], [0, 0, 0]]
    different = [
        plain(array),
        noisy(array, 0),
        noisy(array, 1),
        noisy(array, 0, 5.0),
        noisy(array, 0, times=2),
        noisy(array, 0, selected=True),
        noisy(array, 0, mirrored=True),
    ]
    assert len({counts.sha256() for counts in different}) == 7
    assert len(set(different)) == 7
    for counts in different:
        assert pickle.loads(pickle.dumps(counts)) == counts


@pytest.mark.parametrize("rule", ["balanced", "novelty"])
@pytest.mark.parametrize("scale", [1, 10**6])
@pytest.mark.parametrize("selected", [False, True])
def test_whatever_the_noise_counts_can_be_read_out(rule, scale, selected):
    noise = np.random.default_rng(1).integers(-9, 9, (3, 40))
    for array in (
        noise,
        np.zeros((3, 40), int),
        np.full((3, 40), -5),
        np.full((3, 40), 7),
    ):
        counts = noisy(array * scale, 0, 16.0 * scale**2, selected=selected)
        for decay in decay_grid(counts, rule):
            assert 0 < decay < 1
            assert np.isfinite(
                class_scores(counts, [[0, 1]], ScoringRule(rule, decay))
            ).all()
            assert np.isfinite(class_novelty(counts, [[0, 1]], decay)).all()


def test_read_outs_clip_after_the_sum():
    clipped = np.array([[4, 0, 0], [0, 0, 2]])
    counts = noisy([[9, 0, 3], [0, 0, 0]], 0) + noisy([[-5, -1, -4], [-1, 0, 2]], 1)
    assert_array_equal(counts.nonnegative()[0], clipped)
    assert_array_equal(class_novelty(counts, [[0, 1]], 0.5), [[(0.5**4 + 1) / 2, 1]])


def test_more_noise_makes_exponents_smaller():
    rng = np.random.default_rng(2)
    exact = np.repeat([[40, 2], [2, 40]], 2000, axis=1)
    decays = []
    for sd in (1.0, 8.0, 32.0, 64.0):
        array = exact + np.rint(rng.normal(0, sd, exact.shape)).astype(int)
        decays.append(suggest_decay(noisy(array, 0, sd**2)))
    assert all(quieter < louder + 1e-3 for quieter, louder in pairwise(decays)), decays
    # With next to no noise the exponent of the mean count is 0.8, gamma = exp(-0.8 /
    # 21).
    assert math.log(decays[0]) == pytest.approx(-0.8 / 21, rel=0.02)


ZERO = [0, 0, 0]
A, B = (noisy([[5, 2, -2], [-3, 0, -2]], 0, variance) for variance in (4.0, 9.0))


def leave_one_out_of_noise():
    leave_one_out_tables(A, [([[0, 1]], [0])], [ScoringRule("balanced", 0.5)])


@pytest.mark.parametrize(
    ("act", "field"),
    [
        pytest.param(leave_one_out_of_noise, "leave_one_out", id="leave one out"),
        pytest.param(lambda: plain(A.array), "array", id="plain"),
        pytest.param(lambda: noisy([[2**62, 0, 0], ZERO], 0), "array", id="large"),
        pytest.param(lambda: noisy([[-(2**63), 0, 0], ZERO], 0), "array", id="small"),
        pytest.param(lambda: A + noisy(A.array, 0, 9.0), "sum", id="other noise"),
        pytest.param(lambda: release_name([0.5], FINGERPRINT), "array", id="floats"),
    ],
)
def test_what_noisy_counts_cannot_do(act, field):
    with raises(CountsError, field=field):
        act()


@pytest.mark.parametrize("noise", ["abc", [1], A.noise + B.noise, 5, None])
def test_noise_that_is_none_is_refused(noise):
    with raises(CountsError, field="noise"):
        replace(A, noise=noise)


RELEASE = asdict(Release(NAMES[0], 2.0, -3, True, True))


def test_a_release_survives_json_and_other_values_are_none():
    assert asdict(Release.from_dict(json.loads(json.dumps(RELEASE)))) == RELEASE
    less = [
        {name: RELEASE[name] for name in RELEASE if name != field}
        for field in RELEASE.keys() - {"mirrored"}  # which files of before lack
    ]
    for values in (None, [], {}, *less):
        with raises(CountsError, field="release"):
            Release.from_dict(values)


def test_a_name_is_of_shape_and_values():
    array = np.arange(6).reshape(2, 3)
    name = release_name(array, FINGERPRINT)
    for same in (array.astype(np.int8), np.asfortranarray(array)):
        assert release_name(same, FINGERPRINT) == name
    others = {
        release_name(array.reshape(3, 2), FINGERPRINT),
        release_name(-array, FINGERPRINT),
        release_name(array, 64 * "1"),
    }
    assert len({name} | others) == 4
