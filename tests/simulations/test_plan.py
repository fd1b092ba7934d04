"""`python -m simulations plan`: constants that are found again, sets that are left out, and what it writes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flwr_flynn.privacy import planning
from simulations import __main__ as command
from simulations import plan, plan_runs
from tests.simulations.tables import read

pytest.importorskip("dp_accounting")

CURVE = (3.5, 0.8, 0.3)


def made(n_sets: int, spread: float) -> pd.DataFrame:
    """Rows of sets that are the curve, but for a shift of each set."""
    generator, rows = np.random.default_rng(0), []
    for number in range(n_sets):
        n_classes, n, shift = (
            int(generator.integers(2, 20)),
            int(generator.integers(500, 20000)),
            generator.normal(0, spread),
        )
        for step, noise in enumerate(np.geomspace(1, 100, 12)):
            ratios = [
                float(planning.relative(CURVE, shift, each, noise, n_classes)) for each in (n / n_classes, n / 40)
            ]
            named = {"set": f"set {number}", "n": n, "L": n_classes, "noise": noise, "n smallest": n / 40}
            named |= {"epsilon": 1, "parties": step}
            rows.append(named | {"all ratio": ratios[0], "small ratio": ratios[1], "small plain": 0.8})
    return pd.DataFrame(rows)


def test_constants_are_found_again_and_intervals_hold_the_sets() -> None:
    curve, shifts, smallest, around = plan.fitted(made(40, 0.0))
    assert curve == pytest.approx(CURVE, abs=0.01)
    assert shifts[1] == pytest.approx(0, abs=0.01) == pytest.approx(smallest[1], abs=0.01)
    assert shifts[0] > 0 > shifts[2]  # the slack alone covers sets without a spread
    rows = made(60, 1.0)
    curve, shifts, _, around = plan.fitted(rows)
    assert curve[1] == pytest.approx(CURVE[1], abs=0.2)
    # Normal quantiles of the shifts of sets; the slack makes them narrower.
    assert -1.9 < shifts[0] - shifts[1] < -0.9
    assert 0.7 < shifts[2] - shifts[1] < 1.9
    assert around == pytest.approx((0, 0, 0), abs=0.5)  # what a reference tells of a set is all that there is
    found = plan.left_out(rows)
    for kind in (plan.FIGURES, plan.SMALLEST):
        assert 0.75 < found[kind]["inside"].mean() < 0.97
    assert found[plan.MEASURED]["inside"].mean() > 0.75


def test_a_set_says_nothing_about_itself() -> None:
    rows = made(12, 0.5)
    before = plan.left_out(rows)[plan.FIGURES]
    name = rows["set"] == "set 3"
    rows.loc[name, "all ratio"] = rows.loc[name, "all ratio"] ** 3
    after = plan.left_out(rows)[plan.FIGURES]
    mine = before["set"] == "set 3"
    assert (before[mine]["ratio"].to_numpy() == after[mine]["ratio"].to_numpy()).all()
    assert (before[~mine]["ratio"].to_numpy() != after[~mine]["ratio"].to_numpy()).any()


def test_a_run_has_the_noise_of_all_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = (each for each in plan_runs.tasks(None, quick=True) if each.name == "R^20")
    drawn: list[float] = []

    class Noise(plan_runs.SeededNoise):
        def gaussian(self, size: int, sigma: float) -> np.ndarray:
            drawn.append(sigma)
            return np.zeros(size, np.int64)

    monkeypatch.setattr(plan_runs, "SeededNoise", Noise)
    for honest, lost in ((0, 0), (7, 0), (7, 3)):
        drawn.clear()
        (scores,) = plan_runs.run(task, "counts", 1.0, 10, honest, 1, lost)
        assert len(drawn) == 10 - lost
        assert scores[0] > 0.5  # without the noise, of five classes
        whole = drawn[0] * (honest or 1) ** 0.5
        spec = plan_runs.suggest_spec(1.0, 1e-5, 20, len(task.y), 5, 10, secure_sum=bool(honest))
        assert whole == pytest.approx(plan_runs.GaussianCounts.for_spec(spec, 5, 1.0, delta=1e-5).sigma, rel=0.01)


def test_a_quick_run_writes_its_tables(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(plan_runs, "EPSILONS", (1.0, 4.0))
    monkeypatch.setattr(plan_runs, "DRAWS", 1)
    assert command.main(["plan", "--quick", "--out", str(tmp_path)]) == 0
    rows = read(tmp_path / "plan.csv")
    assert len(rows) == 7 * 2 * (4 + 4 + 3)
    assert all(0 <= float(row["all"]) <= 1 and float(row["noise"]) > 0 for row in rows)
    text = (tmp_path / "summary.md").read_text()
    assert all(f"## {title}\n" in text for title in plan.TITLES)
    assert (tmp_path / "plan.png").exists()
    capsys.readouterr()
    assert command.main(["plan", "--quick", "--out", str(tmp_path)]) == 0
    assert "counts" not in capsys.readouterr().err  # nothing is measured twice
