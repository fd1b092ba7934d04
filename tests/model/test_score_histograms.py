"""Histograms of probabilities, and the figures that follow.

The expected ones are those of plain loops and of scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    roc_auc_score,
)

from flwr_flynn.model import metrics as figures
from flwr_flynn.model.metrics import (
    CENTRES,
    EDGES,
    MAX_LOSS,
    N_LEVELS,
    N_SUMS,
    UNIT,
    above_floor,
    scored,
)


def probabilities(
    n: int, n_classes: int, seed: int = 0, spread: float = 2.0
) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    true = rng.integers(0, n_classes, n)
    odds = rng.normal(0, spread, (n, n_classes))
    odds[np.arange(n), true] += spread
    p = np.exp(odds)
    return p / p.sum(axis=1, keepdims=True), true


def by_sklearn(y: Any, proba: Any) -> dict[str, float]:
    """The figures of pooled probabilities by scikit-learn.

    Over several classes they are means of each against the rest.
    """
    n_classes = proba.shape[1]
    brier = np.square(proba - np.eye(n_classes)[y]).sum(axis=1).mean()
    positive = range(n_classes)
    if n_classes == 2:
        brier /= 2
        positive = range(1, 2)
    pairs = [(y == c, proba[:, c]) for c in positive if (y == c).any()]
    clipped = np.clip(proba, np.exp(-32), 1)
    return {
        "auroc": float(np.mean([roc_auc_score(*pair) for pair in pairs])),
        "auprc": float(np.mean([average_precision_score(*pair) for pair in pairs])),
        "brier": float(brier),
        "log_loss": float(log_loss(y, clipped, labels=range(n_classes))),
        "calibration_error": float(
            np.mean([_calibration_error(*pair) for pair in pairs])
        ),
    }


def _calibration_error(true: Any, p: Any) -> float:
    observed, predicted = calibration_curve(true, p, n_bins=10)
    n = np.histogram(p, np.linspace(0, 1, 11))[0]
    return float((np.abs(observed - predicted) * n[n > 0]).sum() / len(p))


def test_levels_have_the_edges_of_hundredths_and_a_middle_each():
    assert N_LEVELS == len(CENTRES) == len(EDGES) + 1 == 530
    assert (np.diff(EDGES) > 0).all()
    assert all(np.isclose(EDGES, k / 200).any() for k in range(1, 200))
    assert EDGES[0] < 2e-6 < 1 - EDGES[-1] + 1e-6
    assert ((CENTRES[1:] > EDGES) & (CENTRES[:-1] < EDGES)).all()


@given(st.integers(0, 40), st.integers(2, 5), st.integers(0, 99))
def test_histograms_and_sums_are_those_of_a_plain_loop(n, n_classes, seed):
    p, true = probabilities(n, n_classes, seed, spread=5.0)
    p[p < 1e-3] = 0.0
    predicted = p.argmax(axis=1)
    histograms, sums = scored(p, true, predicted)
    table = np.zeros((2 * n_classes, N_LEVELS), np.int64)
    expected = [0] * (N_SUMS + n_classes)
    for row, label, guess in zip(p, true, predicted, strict=True):
        for c in range(n_classes):
            table[2 * c + (c == label), sum(row[c] >= edge for edge in EDGES)] += 1
        brier = sum((row[c] - (c == label)) ** 2 for c in range(n_classes))
        if row[label] > math.exp(-MAX_LOSS):
            loss = -math.log(row[label])
        else:
            loss = MAX_LOSS
        expected[0] += 1
        expected[1] += int(guess == label)
        for i, figure in enumerate((brier, brier**2, loss, loss**2), 2):
            expected[i] += round(float(figure / UNIT))
        for c in range(n_classes):
            expected[N_SUMS + c] += round(float(row[c] / UNIT))
    np.testing.assert_array_equal(histograms, table)
    np.testing.assert_allclose(sums, expected, atol=max(1, n))
    assert histograms.dtype == sums.dtype == np.int64


@given(st.integers(1, 60), st.integers(2, 4), st.integers(1, 9))
def test_a_class_below_the_floor_is_not_told_and_a_floor_of_one_tells_all(
    n, n_classes, least
):
    p, true = probabilities(n, n_classes)
    histograms, sums = scored(p, true, p.argmax(axis=1))
    shown, (shown_sums,) = above_floor(histograms, sums[None], least)
    expected = histograms.copy()
    for c in range(n_classes):
        own = int((true == c).sum())
        if 0 < own < least or 0 < n - own < least:
            expected[2 * c : 2 * c + 2] = 0
    np.testing.assert_array_equal(shown, expected)
    is_shown = shown.reshape(n_classes, -1).any(axis=1)
    np.testing.assert_array_equal(shown_sums[:N_SUMS], sums[:N_SUMS] * (n >= least))
    np.testing.assert_array_equal(shown_sums[N_SUMS:], sums[N_SUMS:] * is_shown)
    if least == 1:
        np.testing.assert_array_equal(shown, histograms)


def width(histograms):
    """Half the share of pairs within one level, at most of the classes."""
    own = histograms[1::2]
    rest = histograms[::2].astype(float)
    pairs = own.sum(axis=1) * rest.sum(axis=1)
    return ((own * rest).sum(axis=1) / pairs / 2).max()


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_figures_are_those_of_scikit_learn_up_to_the_width_of_the_levels(
    n_classes, spread
):
    p, true = probabilities(3000, n_classes, spread=spread)
    histograms, sums = scored(p, true, p.argmax(axis=1))
    overall = figures.overall(histograms, sums)
    near = {
        "auroc": width(histograms) + 1e-12,
        "auprc": 0.006,
        "calibration_error": 0.003,
    }
    for name, expected in by_sklearn(true, p).items():
        assert overall[name][0] == pytest.approx(expected, abs=near.get(name, 1e-6)), (
            name
        )
    assert overall.pop("examples") == 3000
    ratio = overall.pop("observed_expected")
    assert ratio is None or n_classes == 2
    assert overall["accuracy"][0] == (p.argmax(axis=1) == true).mean()
    assert all(low <= value <= high for value, low, high in overall.values())


def test_figures_of_rounded_probabilities_are_exact():
    p, true = probabilities(500, 2)
    rounded = CENTRES[np.searchsorted(EDGES, p[:, 1], side="right")]
    histograms, sums = scored(
        np.stack([1 - rounded, rounded], axis=1), true, (rounded > 0.5).astype(int)
    )
    overall = figures.overall(histograms, sums)
    for name, of, near in (
        ("auroc", roc_auc_score, 1e-12),
        ("auprc", average_precision_score, 1e-12),
        ("brier", brier_score_loss, 1e-6),
        ("log_loss", log_loss, 1e-6),
    ):
        assert overall[name][0] == pytest.approx(of(true, rounded), abs=near), name
    _, positive = figures.by_class(histograms, ["a", "b"])
    assert positive["label"] == "b"
    assert positive["examples"] == (true == 1).sum()
    assert positive["others"] == (true == 0).sum()
    for at in positive["thresholds"]:
        (tn, fp), (fn, tp) = confusion_matrix(
            true, rounded >= at["threshold"], labels=[0, 1]
        )
        assert_is_rate(at["sensitivity"], tp, fn)
        assert_is_rate(at["specificity"], tn, fp)
        assert_is_rate(at["ppv"], tp, fp)
        assert_is_rate(at["npv"], tn, fn)
    rates = np.array(positive["roc"])
    assert rates[0].tolist() == [0, 0]
    assert rates[-1].tolist() == [1, 1]
    assert (np.diff(rates, axis=0) >= 0).all()
    assert sum(level["examples"] for level in positive["reliability"]) == 500


def assert_is_rate(rate: list[float] | None, good: int, bad: int) -> None:
    if good + bad == 0:
        assert rate is None
    else:
        assert rate is not None
        assert rate[0] == pytest.approx(good / (good + bad))


def test_figures_without_a_meaning_are_none():
    p, true = probabilities(20, 2)
    histograms, sums = scored(
        p[true == 1], true[true == 1], p[true == 1].argmax(axis=1)
    )
    overall = figures.overall(histograms, sums)
    assert overall["auroc"] is overall["auprc"] is overall["calibration_slope"] is None
    assert overall["accuracy"] is not None
    nobody = figures.overall(
        np.zeros((4, N_LEVELS), np.int64), np.zeros(N_SUMS + 2, np.int64)
    )
    assert {value for name, value in nobody.items() if name != "examples"} == {None}
    apart = np.zeros((4, N_LEVELS), np.int64)
    apart[[0, 3], [0, -1]] = apart[[1, 2], [-1, 0]] = 30
    perfect = figures.overall(apart[[2, 1, 2, 1]], np.array([60, 60, 0, 0, 0, 0, 0, 0]))
    assert perfect["auroc"][0] == perfect["auroc"][2] == 1.0
    assert 0.85 < perfect["auroc"][1] < 1
    assert perfect["calibration_slope"] is None  # of any steepness
    # Counts of lying parties are beyond the exact floats.
    assert figures.share(2.0**60 + 2.0**10, 2.0**60)[0] == 1.0
    assert figures.share(-(2.0**10), 2.0**60)[0] == 0.0


def steep(rng: np.random.Generator) -> Any:
    """Histograms of two classes that a probability parts, but for a few samples."""
    cut = int(rng.integers(20, N_LEVELS - 20))
    most = 10 ** int(rng.integers(1, 7))
    levels = np.arange(N_LEVELS)
    samples = rng.integers(0, most, N_LEVELS) * (rng.random(N_LEVELS) < rng.random())
    rest = np.where(levels < cut, samples, 0)
    own = np.where(levels < cut, 0, samples)
    for _ in range(rng.integers(1, 4)):
        distance = int(rng.integers(0, 20))
        rest[min(cut + distance, N_LEVELS - 1)] += 1
        own[max(cut - 1 - distance, 0)] += 1
    return np.stack([own, rest, rest, own])


def root(falling: Callable[[float], float], low: float, high: float) -> float:
    """The root of a falling function, by bisection."""
    for _ in range(80):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def slope_of(rest: Any, own: Any) -> float:
    """The slope of the logistic regression, by a root within a root."""
    x = logit(figures.CENTRES)

    def residuals(slope: float, intercept: float) -> Any:
        # Of own - (own + rest) * p the last digits, which decide here, would be lost.
        odds = slope * x + intercept
        return own * expit(-odds) - rest * expit(odds)

    def gradient(slope: float) -> float:
        intercept = root(lambda at: residuals(slope, at).sum(), -1e5, 1e5)
        return float((residuals(slope, intercept) * x).sum())

    return root(gradient, 0.0, 1e4)


def test_a_steep_calibration_has_its_slope():
    """As samples overlap, there is a slope, however steep it is."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        table = steep(rng)
        first, second = (curve.fitted(1) for curve in figures._curves(table))
        expected = slope_of(table[2], table[3])
        assert second is not None
        assert second[0] == pytest.approx(expected, rel=1e-6)
        assert second[1] < second[0] < second[2]
        assert first is not None


def drawn(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Figures of n samples of two normal classes whose probabilities are known."""
    y = rng.integers(0, 2, n)
    p = expit(rng.normal(size=n) + y - 0.5)
    return figures.overall(
        *scored(np.stack([1 - p, p], axis=1), y, (p > 0.5).astype(int))
    )


def test_intervals_cover():
    """With few draws: no interval is grossly wrong."""
    true = drawn(np.random.default_rng(1), 200_000)
    rng = np.random.default_rng(2)
    draws = [drawn(rng, 200) for _ in range(60)]
    for name in (
        "accuracy",
        "auroc",
        "auprc",
        "brier",
        "log_loss",
        "calibration_slope",
    ):
        intervals = [draw[name][1:] for draw in draws]
        covered = [low <= true[name][0] <= high for low, high in intervals]
        assert np.mean(covered) > 0.83, name


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_subgroups_below_the_floor_do_not_follow_from_the_others(sizes, least, seed):
    p, true = probabilities(sum(sizes), 3, seed)
    parts = []
    first = 0
    for n in sizes:
        rows = slice(first, first + n)
        parts.append(scored(p[rows], true[rows], true[rows]))
        first += n
    histograms, sums = map(np.stack, zip(*parts, strict=True))
    shown, shown_sums = above_floor(histograms.reshape(-1, N_LEVELS), sums, least)
    hidden = (histograms - shown.reshape(histograms.shape)).sum(axis=(0, 2))
    everything = histograms.sum(axis=(0, 2))
    assert ((hidden == 0) | (hidden >= least) | (hidden == everything)).all()
    n_hidden = int((sums - shown_sums)[:, 0].sum())
    assert n_hidden == 0 or n_hidden >= least or n_hidden == sum(sizes)


# ---- one class as the event


def delong(own: Any, rest: Any) -> float:
    """DeLong's variance of the AUROC, by its definition."""
    wins = (np.sign(own[:, None] - rest) + 1) / 2
    placements = wins.mean(axis=1), wins.mean(axis=0)
    return float(sum(part.var(ddof=1) / len(part) for part in placements))


@pytest.mark.parametrize("event", [0, 1, 2])
def test_figures_of_an_event_are_those_of_its_class_against_the_rest(event):
    p, true = probabilities(400, 3)
    histograms, sums = scored(p, true, true)
    made = figures.event_figures(histograms, sums, event)
    is_own = true == event
    assert made["rows"] == 400
    assert made["events"] == is_own.sum()
    ratio, low, high = made["observed_expected"]
    assert ratio == pytest.approx(is_own.sum() / p[:, event].sum(), abs=1e-5)
    assert low < ratio < high
    rounded = CENTRES[np.searchsorted(EDGES, p[:, event], side="right")]
    area = roc_auc_score(is_own, rounded)
    half = 1.959963984540054 * math.sqrt(delong(rounded[is_own], rounded[~is_own]))
    half /= area * (1 - area)
    expected = expit([logit(area) + side * half for side in (0, -1, 1)])
    assert made["auroc"] == pytest.approx(expected, abs=1e-9)
    of_class = figures.by_class(histograms, "abc")[event]
    assert made["auroc"] == of_class["auroc"]
    assert made["slope"] == of_class["calibration_slope"]
    assert made["intercept"] == of_class["calibration_intercept"]
    nobody = figures.event_figures(histograms * 0, sums * 0, event)
    assert nobody == dict.fromkeys(made) | {"rows": 0}
    level = figures.of_level(histograms, sums, event)
    assert level.pop("thresholds") == of_class["thresholds"]
    assert level == figures.overall(histograms, sums)
    assert level == figures.of_level(histograms, sums, None)


@pytest.mark.parametrize("event", [0, 1])
def test_the_ratio_of_two_classes_is_that_of_the_event(event):
    p, true = probabilities(200, 2)
    histograms, sums = scored(p, true, true)
    made = figures.overall(histograms, sums, event)
    ratio = (true == event).sum() / p[:, event].sum()
    assert made["observed_expected"][0] == pytest.approx(ratio, abs=1e-5)
    of_event = figures.event_figures(histograms, sums, event)
    assert of_event["auroc"] == made["auroc"]
    assert of_event["observed_expected"] == made["observed_expected"]


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_slope_and_intercept_are_those_of_a_regression(spread):
    linear_model = pytest.importorskip("statsmodels.api")
    p, true = probabilities(500, 2, spread=spread)
    rounded = CENTRES[np.searchsorted(EDGES, p[:, 1], side="right")]
    odds = logit(rounded)
    _, made = figures.by_class(scored(p, true, true)[0], "ab")
    theirs = linear_model.Logit(true, linear_model.add_constant(odds)).fit(disp=0)
    slope = [theirs.params[1], *theirs.conf_int()[1]]
    assert made["calibration_slope"] == pytest.approx(slope, abs=1e-5)
    family = linear_model.families.Binomial()
    theirs = linear_model.GLM(true, np.ones(len(true)), family, offset=odds).fit(
        cov_type="HC0"
    )
    intercept = [theirs.params[0], *theirs.conf_int()[0]]
    assert made["calibration_intercept"] == pytest.approx(intercept, abs=1e-5)


@pytest.mark.parametrize("n", [200, 3000])
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_figures_are_near_those_of_probabilities_that_are_not_rounded(n, spread):
    linear_model = pytest.importorskip("statsmodels.api")
    p, true = probabilities(n, 2, 3, spread)
    made = figures.overall(*scored(p, true, true))
    assert made["auroc"][0] == pytest.approx(roc_auc_score(true, p[:, 1]), abs=1e-3)
    odds = linear_model.add_constant(logit(np.clip(p[:, 1], 1e-9, 1 - 1e-9)))
    slope = linear_model.Logit(true, odds).fit(disp=0).params[1]
    assert made["calibration_slope"][0] == pytest.approx(slope, abs=1e-2)
    ratio = true.sum() / p[:, 1].sum()
    assert made["observed_expected"][0] == pytest.approx(ratio, abs=1e-6)


def test_net_benefit_is_that_of_dcurves():
    dcurves = pytest.importorskip("dcurves")
    pandas = pytest.importorskip("pandas")
    p, true = probabilities(600, 2, spread=0.7)
    _, of_class = figures.by_class(scored(p, true, true)[0], "ab")
    table = dcurves.dca(
        pandas.DataFrame({"y": true, "p": p[:, 1]}),
        outcome="y",
        modelnames=["p"],
        thresholds=np.arange(1, 61) / 100,
    )
    theirs = table.pivot_table(index="threshold", columns="model", values="net_benefit")
    assert len(theirs) == 60
    for threshold, row in theirs.iterrows():
        index = int(np.argmin(abs(figures.GRID - threshold)))
        hit, false_alarm = of_class["flagged"][index]
        mine = figures.net_benefit(figures.GRID[index], hit, false_alarm, 600)
        assert mine == pytest.approx(row["p"], abs=1e-3)
        all_of_them = (of_class["examples"], of_class["others"])
        mine = figures.net_benefit(figures.GRID[index], *all_of_them, 600)
        assert mine == pytest.approx(row["all"], abs=1e-9)


def test_the_smooth_curve_follows_the_truth():
    """Of probabilities that are too low by half of their log odds."""
    rng = np.random.default_rng(5)
    odds = rng.normal(0, 2, 20_000)
    true = (rng.random(20_000) < expit(2 * odds)).astype(int)
    p = expit(odds)
    _, made = figures.by_class(
        scored(np.stack([1 - p, p], axis=1), true, true)[0], "ab"
    )
    curve = made["smooth"]
    assert 0 < curve[0]["predicted"] < curve[-1]["predicted"] < 1
    for point in curve:
        value, low, high = point["observed"]
        expected = expit(2 * logit(point["predicted"]))
        assert value == pytest.approx(expected, abs=0.03)
        assert low <= value <= high
    one_level = np.zeros((4, N_LEVELS), np.int64)
    one_level[[0, 1, 2, 3], 100] = 5
    _, made = figures.by_class(one_level, "ab")
    shares = [point["observed"][0] for point in made["smooth"]]
    assert shares == pytest.approx([0.5] * len(shares))


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_the_exact_test_of_scipy(first, second):
    expected = 1.0
    if first + second:
        expected = binomtest(first, first + second).pvalue
    assert figures.mcnemar(first, second) == pytest.approx(expected, abs=1e-12)


def test_a_ratio_of_events_has_wilsons_interval():
    assert figures.observed_expected(0, 0, 0.0) is None
    assert figures.observed_expected(3, 10, 0.0) is None
    share = figures.share(30, 100)
    assert share is not None
    expected = [end * 100 / 40 for end in share]
    assert figures.observed_expected(30, 100, 40.0) == pytest.approx(expected)
