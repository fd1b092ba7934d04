"""Spread of AUROCs between sites, against plain formulas and statsmodels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logit

from flwr_flynn.model.heterogeneity import heterogeneity, paule_mandel

Z = float(stats.norm.ppf(0.975))

SITES = {
    "four that differ": [(2.0, 0.1), (2.2, 0.05), (0.6, 0.3), (1.0, 0.04)],
    "three alike": [(1.0, 0.2), (1.1, 0.3), (0.9, 0.1)],
    "two": [(0.0, 0.01), (2.0, 0.02)],
    "ten": [(0.1 * i * (-1) ** i + 1, 0.01 * (i + 1)) for i in range(10)],
}


def areas(sites: Any) -> list[list[float]]:
    return [
        [float(expit(y + side * Z * math.sqrt(v))) for side in (0, -1, 1)]
        for y, v in sites
    ]


def by_bisection(sites: Any) -> tuple[float, float, float]:
    """Variance between sites, mean, and its variance by Hartung and Knapp.

    It is no smaller than without them (Roever, Knapp and Friede, 2015).
    """

    def squares(tau2: float) -> tuple[float, float, float]:
        weights = [1 / (v + tau2) for _, v in sites]
        mean = sum(w * y for w, (y, _) in zip(weights, sites, strict=True))
        mean /= sum(weights)
        q = sum(w * (y - mean) ** 2 for w, (y, _) in zip(weights, sites, strict=True))
        return q, mean, max(q / (len(sites) - 1), 1.0) / sum(weights)

    low = 0.0
    high = 100.0
    for _ in range(200):
        middle = (low + high) / 2
        if squares(middle)[0] > len(sites) - 1:
            low = middle
        else:
            high = middle
    return high, *squares(high)[1:]


@pytest.mark.parametrize("name", SITES)
def test_tau_and_prediction_are_those_of_plain_formulas(name):
    sites = SITES[name]
    made = heterogeneity(areas(sites))
    assert made is not None
    tau2, mean, error = by_bisection(sites)
    k = len(sites)
    assert made["sites"] == k
    assert made["tau"] == pytest.approx(math.sqrt(tau2), abs=1e-6)
    half = stats.t.ppf(0.975, k - 1) * math.sqrt(error)
    expected = [mean, mean - half, mean + half]
    assert made["mean"] == pytest.approx(expit(expected), abs=1e-6)
    if k < 3:
        assert made["prediction"] is None
        return
    half = stats.t.ppf(0.975, k - 2) * math.sqrt(error + tau2)
    expected = [mean, mean - half, mean + half]
    assert made["prediction"] == pytest.approx(expit(expected), abs=1e-6)


@pytest.mark.parametrize("name", SITES)
def test_tau_and_i_squared_are_those_of_statsmodels(name):
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    values, variances = np.array(SITES[name]).T
    made = heterogeneity(areas(SITES[name]))
    assert made is not None
    theirs = meta.combine_effects(
        values, variances, method_re="iterated", use_t=True, atol=1e-12, maxiter=1000
    )
    assert paule_mandel(values, variances) == pytest.approx(theirs.tau2, abs=1e-6)
    assert made["tau"] ** 2 == pytest.approx(theirs.tau2, abs=1e-6)
    assert made["i_squared"] == pytest.approx(max(theirs.i2, 0.0), abs=1e-6)
    assert logit(made["mean"][0]) == pytest.approx(theirs.mean_effect_re, abs=1e-6)
    error = max(theirs.sd_eff_w_re_hksj, theirs.sd_eff_w_re)
    half = stats.t.ppf(0.975, len(values) - 1) * error
    assert logit(made["mean"][2]) == pytest.approx(
        theirs.mean_effect_re + half, abs=1e-6
    )


def test_sites_without_an_error_of_their_area_are_left_out():
    three = areas(SITES["three alike"])
    assert heterogeneity([[1.0, 0.8, 1.0], *three]) == heterogeneity(three)
    assert heterogeneity([[0.0, 0.0, 0.2], three[0]]) is None
    assert heterogeneity([]) is None
