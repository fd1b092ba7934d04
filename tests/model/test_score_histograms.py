"""Histograms of probabilities, and the figures that follow: those of plain loops and of
scikit-learn.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
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
    """The figures of pooled probabilities by scikit-learn; over several classes means
    of each against the rest.
    """
    two = proba.shape[1] == 2
    pairs = [
        (y == c, proba[:, c]) for c in range(two, proba.shape[1]) if (y == c).any()
    ]
    return {
        "auroc": float(np.mean([roc_auc_score(*pair) for pair in pairs])),
        "auprc": float(np.mean([average_precision_score(*pair) for pair in pairs])),
        "brier": float(np.square(proba - np.eye(proba.shape[1])[y]).sum(axis=1).mean())
        / (2 if two else 1),
        "log_loss": float(
            log_loss(y, np.clip(proba, np.exp(-32), 1), labels=range(proba.shape[1]))
        ),
        "calibration_error": float(
            np.mean([_calibration_error(*pair) for pair in pairs])
        ),
    }


def _calibration_error(true: Any, p: Any) -> float:
    observed, predicted = calibration_curve(true, p, n_bins=10)
    n = np.histogram(p, np.linspace(0, 1, 11))[0]
    return float((np.abs(observed - predicted) * n[n > 0]).sum() / len(p))


def test_levels_have_the_edges_of_hundredths_and_a_middle_each() -> None:
    assert N_LEVELS == len(CENTRES) == len(EDGES) + 1 == 248
    assert (np.diff(EDGES) > 0).all()
    assert all(np.isclose(EDGES, k / 200).any() for k in range(1, 200))
    assert EDGES[0] < 2e-6 < 1 - EDGES[-1] + 1e-6
    assert ((CENTRES[1:] > EDGES) & (CENTRES[:-1] < EDGES)).all()


@given(st.integers(0, 40), st.integers(2, 5), st.integers(0, 99))
def test_histograms_and_sums_are_those_of_a_plain_loop(
    n: int, n_classes: int, seed: int
) -> None:
    p, true = probabilities(n, n_classes, seed, spread=5.0)
    p[p < 1e-3] = 0.0
    predicted = p.argmax(axis=1)
    found, sums = scored(p, true, predicted)
    table = np.zeros((2 * n_classes, N_LEVELS), np.int64)
    expected = [0] * N_SUMS
    for row, label, guess in zip(p, true, predicted, strict=True):
        for c in range(n_classes):
            table[2 * c + (c == label), sum(row[c] >= edge for edge in EDGES)] += 1
        brier = sum((row[c] - (c == label)) ** 2 for c in range(n_classes))
        if row[label] > math.exp(-MAX_LOSS):
            loss = -math.log(row[label])
        else:
            loss = MAX_LOSS
        for i, value in enumerate(
            (1, guess == label, *(x / UNIT for x in (brier, brier**2, loss, loss**2)))
        ):
            expected[i] += round(float(value))
    np.testing.assert_array_equal(found, table)
    np.testing.assert_allclose(sums, expected, atol=max(1, n))
    assert found.dtype == sums.dtype == np.int64


@given(st.integers(1, 60), st.integers(2, 4), st.integers(1, 9))
def test_a_class_below_the_floor_is_not_told_and_a_floor_of_one_tells_all(
    n: int, n_classes: int, least: int
) -> None:
    p, true = probabilities(n, n_classes)
    found, sums = scored(p, true, p.argmax(axis=1))
    told, told_sums = above_floor(found, sums, least)
    for c in range(n_classes):
        own = int((true == c).sum())
        is_told = all(size == 0 or size >= least for size in (own, n - own))
        np.testing.assert_array_equal(
            told[2 * c : 2 * c + 2], found[2 * c : 2 * c + 2] * is_told
        )
    np.testing.assert_array_equal(told_sums, sums * (n >= least))
    if least == 1:
        np.testing.assert_array_equal(told, found)


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_figures_are_those_of_scikit_learn_up_to_the_width_of_the_levels(
    n_classes: int, spread: float
) -> None:
    p, true = probabilities(3000, n_classes, spread=spread)
    found, sums = scored(p, true, p.argmax(axis=1))
    overall = figures.overall(found, sums)
    near = {
        "auroc": figures.resolution(found) + 1e-12,
        "auprc": 0.006,
        "calibration_error": 0.003,
    }
    for name, expected in by_sklearn(true, p).items():
        assert overall[name][0] == pytest.approx(expected, abs=near.get(name, 1e-6)), (
            name
        )
    assert overall.pop("examples") == 3000
    assert overall["accuracy"][0] == (p.argmax(axis=1) == true).mean()
    assert all(low <= value <= high for value, low, high in overall.values())


def test_figures_of_rounded_probabilities_are_exact() -> None:
    p, true = probabilities(500, 2)
    rounded = CENTRES[np.searchsorted(EDGES, p[:, 1], side="right")]
    found, sums = scored(
        np.stack([1 - rounded, rounded], axis=1), true, (rounded > 0.5).astype(int)
    )
    overall = figures.overall(found, sums)
    (_, positive) = figures.by_class(found, ["a", "b"])
    for name, of in (("auroc", roc_auc_score), ("auprc", average_precision_score)):
        assert overall[name][0] == pytest.approx(of(true, rounded), abs=1e-12)
    for name, of in (("brier", brier_score_loss), ("log_loss", log_loss)):
        assert overall[name][0] == pytest.approx(of(true, rounded), abs=1e-6)
    assert (positive["label"], positive["examples"], positive["others"]) == (
        "b",
        (true == 1).sum(),
        (true == 0).sum(),
    )
    for at in positive["thresholds"]:
        (tn, fp), (fn, tp) = confusion_matrix(
            true, rounded >= at["threshold"], labels=[0, 1]
        )
        parts = {
            "sensitivity": (tp, fn),
            "specificity": (tn, fp),
            "ppv": (tp, fp),
            "npv": (tn, fn),
        }
        for name, (good, bad) in parts.items():
            assert (at[name] or [None])[0] == (
                pytest.approx(good / (good + bad)) if good + bad else None
            )
    rates = np.array(positive["roc"])
    assert (rates[0].tolist(), rates[-1].tolist()) == ([0, 0], [1, 1])
    assert (np.diff(rates, axis=0) >= 0).all()
    assert sum(each["examples"] for each in positive["reliability"]) == 500


def test_figures_without_a_meaning_are_none() -> None:
    p, true = probabilities(20, 2)
    found, sums = scored(p[true == 1], true[true == 1], p[true == 1].argmax(axis=1))
    overall = figures.overall(found, sums)
    assert overall["auroc"] is overall["auprc"] is overall["calibration_slope"] is None
    assert overall["accuracy"] is not None
    nobody = figures.overall(
        np.zeros((4, N_LEVELS), np.int64), np.zeros(N_SUMS, np.int64)
    )
    assert {value for name, value in nobody.items() if name != "examples"} == {None}
    apart = np.zeros((4, N_LEVELS), np.int64)
    apart[[0, 3], [0, -1]] = apart[[1, 2], [-1, 0]] = 30
    perfect = figures.overall(apart[[2, 1, 2, 1]], np.array([60, 60, 0, 0, 0, 0]))
    assert perfect["auroc"][0] == perfect["auroc"][2] == 1.0
    assert 0.85 < perfect["auroc"][1] < 1
    assert perfect["calibration_slope"] is None  # of any steepness
    # Counts of lying parties are beyond the exact floats.
    assert (
        figures.share(2.0**60 + 2.0**10, 2.0**60)[0],
        figures.share(-(2.0**10), 2.0**60)[0],
    ) == (1.0, 0.0)


def drawn(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Figures of n samples of two normal classes whose probabilities are known."""
    y = rng.integers(0, 2, n)
    p = expit(rng.normal(size=n) + y - 0.5)
    return figures.overall(
        *scored(np.stack([1 - p, p], axis=1), y, (p > 0.5).astype(int))
    )


def test_intervals_cover() -> None:
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
        covered = [
            low <= true[name][0] <= high
            for _, low, high in (each[name] for each in draws)
        ]
        assert np.mean(covered) > 0.83, name


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_subgroups_below_the_floor_do_not_follow_from_the_others(
    sizes: list[int], least: int, seed: int
) -> None:
    p, true = probabilities(sum(sizes), 3, seed)
    parts = [
        scored(p[i : i + n], true[i : i + n], true[i : i + n])
        for n, i in zip(sizes, np.cumsum([0, *sizes[:-1]]), strict=True)
    ]
    found, sums = (np.stack(each) for each in zip(*parts, strict=True))
    told, told_sums = above_floor(found.reshape(-1, N_LEVELS), sums.ravel(), least)
    rows = (found - told.reshape(found.shape)).sum(axis=(0, 2))
    left = int((sums[:, 0] - told_sums.reshape(sums.shape)[:, 0]).sum())
    everything = found.sum(axis=(0, 2))
    assert ((rows == 0) | (rows >= least) | (rows == everything)).all()
    assert left == 0 or left >= least or left == sum(sizes)
