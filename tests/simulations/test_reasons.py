"""The study of contributions: its truth, and the files that it leaves."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from numpy.testing import assert_allclose

from flwr_flynn import FlyNNClassifier
from flwr_flynn.model import reasons as model_reasons
from simulations import __main__ as command
from simulations import reasons
from tests.model.samples import X, Y
from tests.simulations.tables import read


@pytest.mark.parametrize("kind", ["additive", "interactions"])
def test_the_truth_is_the_shapley_value_of_the_log_odds(kind, monkeypatch):
    """Of four columns by all subsets, the others replaced by those of all samples."""
    monkeypatch.setitem(reasons.KNOWN, kind, (4, 1.5))
    samples, truth = reasons.known(kind, 100_000, np.random.default_rng(0))

    def log_odds(these):
        """Terms of the columns, and of pairs, for least squares, which fit exactly."""
        pairs = these[:, :2] * these[:, :1:-1]
        ones = np.ones((len(these), 1))
        terms = [these, np.abs(these), np.tanh(3 * these), pairs, ones]
        return np.concatenate(terms, axis=1)

    known = truth.sum(axis=1)
    weights = np.linalg.lstsq(log_odds(samples), known, rcond=None)[0]
    assert_allclose(log_odds(samples) @ weights, known, atol=1e-8)

    def value(subset):
        others = samples[1000:].copy()
        others[:, subset] = samples[0, subset]
        return (log_odds(others) @ weights).mean()

    for j in range(4):
        rest = [i for i in range(4) if i != j]
        exact = sum(
            (value([*subset, j]) - value([*subset])) / (4 * comb(3, size))
            for size in range(4)
            for subset in combinations(rest, size)
        )
        assert exact == pytest.approx(truth[0, j], abs=0.05)


def test_sampled_shapley_values_add_up_to_the_difference_of_the_log_odds():
    model = FlyNNClassifier(effort="quick").fit(X, Y)
    edges = model_reasons.edges_of(model.model_)
    drawn = np.random.default_rng(0).permuted(edges, axis=1).T[: reasons.N_ORDERS]
    scores = model.model_.scores(X)
    codes = scores.argmax(axis=1)

    def log_odds(samples, codes):
        p = model.predict_proba(samples)[np.arange(len(samples)), codes]
        return np.log(p / (1 - p))

    start = [log_odds(drawn, np.full(len(drawn), code)).mean() for code in codes]
    added = reasons.shapley(model, X)
    assert_allclose(added.sum(axis=1), log_odds(X, codes) - start, atol=1e-6)


@pytest.mark.slow
def test_the_study_writes_its_files(tmp_path):
    assert command.main(["reasons", "--quick", "--out", str(tmp_path)]) == 0
    rows = read(tmp_path / "known.csv")
    assert [row["log odds"] for row in rows] == [*reasons.KNOWN]
    (row,) = read(tmp_path / "deleted.csv")
    assert row["set"] == "digits"
    assert float(row["chance"]) < float(row["quantiles"])
    assert "better than permutation, of 1" in (tmp_path / "summary.md").read_text()
