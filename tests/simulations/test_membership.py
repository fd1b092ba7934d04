"""`python -m simulations membership`: the attack works, and the bound holds."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import __main__ as command
from simulations import membership
from tests.simulations.tables import read


def test_an_attack_finds_members_that_show_and_none_that_do_not():
    rng = np.random.default_rng(0)
    open_book = membership.attacked(
        lambda some: some + rng.normal(scale=0.01, size=len(some)), 200, 12
    )
    assert open_book["found at 0.1%"] == open_book["found at 1.0%"] == 1.0
    assert open_book["advantage"] == 1.0
    blind = membership.attacked(lambda some: rng.normal(size=len(some)), 200, 12)
    assert blind["found at 1.0%"] < 0.05
    assert blind["advantage"] < 0.1
    mu = 1.0  # of a Gaussian mechanism: the best attack finds Phi(mu + Phi^-1(rate))
    gaussian = membership.attacked(
        lambda some: mu * some + rng.normal(size=len(some)), 500, 60
    )
    assert abs(gaussian["advantage"] - 0.383) < 0.03


def test_what_a_guarantee_allows():
    assert membership.allowed(0.0) == membership.allowed(0.0, 0.01) == 1.0
    assert 0.46 < membership.allowed(1.0) < 0.4622
    assert membership.allowed(1.0, 0.01) == pytest.approx(np.e * 0.01 + 1e-5)
    assert membership.allowed(1.0, 1.0) <= 1.0


@pytest.mark.slow
def test_noise_hides_members(tmp_path, monkeypatch):
    names = {"server, counts", "server, counts, epsilon 1", "model, epsilon 1"}
    some = membership.attacks
    monkeypatch.setattr(
        membership,
        "attacks",
        lambda X, y: {k: v for k, v in some(X, y).items() if k in names},
    )
    arguments = ["membership", "--quick", "--samples", "600"]
    assert command.main([*arguments, "--output", str(tmp_path)]) == 0
    rows = read(tmp_path / "membership.csv")
    advantages = {row["attack"]: float(row["advantage"]) for row in rows}
    assert advantages.keys() == names
    assert advantages.pop("server, counts") > 0.5
    assert max(advantages.values()) < membership.allowed(1.0)
    assert (tmp_path / "membership.png").stat().st_size > 0
