"""The study of coverage: its made sites, and the methods beside FlyNN."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from flwr_flynn.model.prediction_sets import levels_of
from simulations.coverage import (
    COVERAGE,
    N_NEW,
    N_SITES,
    figures,
    made_sites,
    of_sites,
    split_sets,
)

RNG = np.random.default_rng(8)


def test_figures_are_those_of_the_sets():
    is_in = np.array([[1, 0, 0]] * 10 + [[1, 1, 0]] * 9 + [[0, 0, 0]], bool)
    y = np.array([0] * 10 + [2] * 10)
    assert figures(is_in, y) == {
        "covered": 0.5,
        "worst class": 0.0,
        "several": 0.45,
        "none": 0.05,
        "size": 1.4,
    }


def test_one_threshold_is_that_of_the_other_half_of_the_samples():
    y = RNG.integers(2, size=401)
    scores = RNG.normal(size=(401, 2)) + 2 * np.eye(2)[y]
    levels = levels_of(scores)
    half = np.random.default_rng(0).permutation(401) % 2
    is_in = split_sets(scores, y, by_class=False)
    for number in (0, 1):
        own = np.sort(levels[np.arange(401), y][half == number])[::-1]
        least = own[ceil((len(own) + 1) * COVERAGE) - 1]
        assert_array_equal(is_in[half != number], levels[half != number] >= least)


@pytest.mark.parametrize("seed", [0, 1])
def test_made_sites_differ_in_levels_and_frequencies(seed):
    shares = made_sites(seed)
    assert len(shares) == N_SITES
    assert {len(share.y_test) for share in shares} == {N_NEW}
    assert {*np.concatenate([share.y for share in shares])} == {*range(2 + seed)}
    means = np.array([share.X_test.mean(axis=0) for share in shares])
    assert means.std(axis=0).min() > 0.3
    assert np.std([(share.y_test == 0).mean() for share in shares]) > 0.1
    for again, share in zip(made_sites(seed), shares, strict=True):
        assert_array_equal(again.X, share.X)


@pytest.mark.slow
def test_each_site_has_figures_by_its_own_thresholds_and_by_those_of_all():
    rows = [*of_sites("made 0", made_sites(0)[:4])]
    assert [row["thresholds"] for row in rows] == ["own", "all"] * 4
    own = [row["covered"] for row in rows[::2]]
    assert min(own) > 0.8
    assert rows[0]["covered"] != rows[1]["covered"]
