"""`python -m simulations theory` in miniature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from simulations import __main__ as command
from simulations.paper import theory
from simulations.paper.theory import HARD, SPEAKS, K, Plan, Setting, agreement, clusters
from tests.simulations.tables import read, run_again, shown

SMALL = {
    (SPEAKS, "m"): (2**10, 2**11),
    (HARD, "m"): (2**8, 2**10),
    (HARD, "rho"): (4, 64),
    (HARD, "clusters"): (8, 32),
    (HARD, "distance"): (0.1, 0.4),
    (SPEAKS, "rho"): (64, 128),
    (SPEAKS, "clusters"): (4, 8),
    (SPEAKS, "distance"): (0.01, 0.02),
}


@pytest.mark.slow
def test_a_run_writes_agreement_and_keeps_its_pieces(tmp_path, monkeypatch):
    bases = {SPEAKS: Setting(1024, 128, 8, 0.01), HARD: Setting(1024, 32, 16, 0.25)}
    for name, value in (
        ("QUICK", Plan(tests=20, points=2)),
        ("RANGES", SMALL),
        ("BASES", bases),
    ):
        monkeypatch.setattr(theory, name, value)
    assert command.main(["theory", "--quick", "--out", str(tmp_path)]) == 0
    rows = read(tmp_path / "agreement.csv")
    assert {(row["base"], row["grows"]) for row in rows} == {
        (b, g) for b in bases for g in ("m", "rho", "n", "margin")
    }
    assert all(
        0 <= float(row["agreement"]) <= 1 and int(row["n"]) % K == 0 for row in rows
    )
    assert "The bound says something" in shown(tmp_path, "agreement")
    run_again(["theory", "--quick"], tmp_path, (theory, "agreement"))


def test_the_bound_is_the_proofs():
    setting = Setting(m=2**20, rho=512, clusters=20, distance=0.01)
    failure = 4 * 512 * 30 / 2**20 + math.exp(-512 / 150) + math.exp(-512 / 96)
    assert setting.bound == pytest.approx(1 - failure)
    assert Setting(m=1024, rho=8, clusters=20, distance=0.01).bound == 0


def test_the_neighbours_of_a_test_point_are_its_own_and_of_one_class():
    setting = Setting(m=64, rho=8, clusters=30, distance=0.05)
    X, y, tests = clusters(setting, np.random.default_rng(0))
    assert X.shape == (30 * K, 50)
    distances = cdist(tests, X, "chebyshev")
    own = distances.reshape(30, 30, K)[np.arange(30), np.arange(30)]
    assert own.max() <= 0.05
    np.testing.assert_array_equal(
        np.sort(np.argsort(distances)[:, :K], axis=1), np.arange(90).reshape(30, K)
    )
    assert (y.reshape(30, K) == y[::K, None]).all()
    assert y.mean() == 0.5


def test_agreement_is_whole_where_the_theorem_speaks_and_a_coins_where_filters_are_full():
    easy = agreement(Setting(m=2**14, rho=256, clusters=10, distance=0.01), 2, seed=0)
    assert easy["agreement"] == 1.0
    # Every bit of a tiny hash is seen in both classes: all scores tie.
    full = agreement(Setting(m=64, rho=32, clusters=100, distance=0.01), 2, seed=0)
    assert full["agreement"] == pytest.approx(0.5, abs=0.01)
