"""`python -m simulations theory` in miniature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from simulations import __main__ as command
from simulations.paper import theory, theory_costs
from simulations.paper.theory import HARD, SPEAKS, Plan
from simulations.paper.theory_agreement import K, Setting, agreement, clusters
from tests.simulations.tables import read

SMALL = {
    (SPEAKS, "m"): (2**10, 2**11), (HARD, "m"): (2**8, 2**10), (HARD, "rho"): (4, 64), (HARD, "clusters"): (8, 32),
    (HARD, "distance"): (0.1, 0.4), (SPEAKS, "rho"): (64, 128), (SPEAKS, "clusters"): (4, 8),
    (SPEAKS, "distance"): (0.01, 0.02),
}  # fmt: skip


@pytest.mark.slow
def test_a_run_writes_agreement_costs_slopes_and_keeps_its_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(theory, "QUICK", Plan(tests=20, points=2, repeats=1))
    monkeypatch.setattr(theory, "RANGES", SMALL)
    bases = {SPEAKS: Setting(1024, 128, 8, 0.01), HARD: Setting(1024, 32, 16, 0.25)}
    monkeypatch.setattr(theory, "BASES", bases)
    ranges = {"n": (32, 128), "m": (256, 1024), "s": (4, 16), "rho": (8, 32), "L": (2, 8), "tau": (1, 4)}
    monkeypatch.setattr(theory_costs, "RANGES", ranges)
    arguments = ["theory", "--quick", "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    rows = read(tmp_path / "agreement.csv")
    assert {(row["base"], row["grows"]) for row in rows} == {(b, g) for b in bases for g in ("m", "rho", "n", "margin")}
    assert all(0 <= float(row["agreement"]) <= 1 and int(row["n"]) % K == 0 for row in rows)
    slopes = read(tmp_path / "slopes.csv")
    assert [(row["quantity"], row["grows"]) for row in slopes] == list(theory_costs.LEMMAS)
    assert {row["slope, all"] for row in slopes if row["quantity"] == theory_costs.DENSE} == {"1.00"}
    for name in ("agreement.png", "costs.png"):
        assert (tmp_path / name).stat().st_size > 20_000
    assert "Lemma 5: 1" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    before = read(tmp_path / "costs.csv")
    monkeypatch.setattr(theory, "agreement", lambda *_: pytest.fail("computed again"))
    monkeypatch.setattr(theory_costs, "cost", lambda *_: pytest.fail("computed again"))
    assert command.main(arguments) == 0
    assert read(tmp_path / "agreement.csv") == rows
    assert read(tmp_path / "costs.csv") == before


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
    np.testing.assert_array_equal(np.sort(np.argsort(distances)[:, :K], axis=1), np.arange(90).reshape(30, K))
    assert (y.reshape(30, K) == y[::K, None]).all()
    assert y.mean() == 0.5


def test_agreement_is_whole_where_the_theorem_speaks_and_a_coins_where_filters_are_full():
    easy = agreement(Setting(m=2**14, rho=256, clusters=10, distance=0.01), 2, seed=0)
    assert easy["agreement"] == 1.0
    # Every bit of a tiny hash is seen in both classes: all scores tie.
    full = agreement(Setting(m=64, rho=32, clusters=100, distance=0.01), 2, seed=0)
    assert full["agreement"] == pytest.approx(0.5, abs=0.01)


def test_slopes_of_powers_are_their_exponents():
    rows = [
        {"quantity": quantity, "grows": grows, "value": 2**i, "cost": 3.0 * 2 ** (0.5 * i)}
        for quantity, grows in theory_costs.LEMMAS
        for i in range(5)
    ]
    assert {row["slope, upper half"] for row in theory_costs.slopes(rows)} == {"0.50"}
