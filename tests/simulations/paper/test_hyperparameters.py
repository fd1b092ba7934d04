"""`python -m simulations hyperparameters` in miniature."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import __main__ as command
from simulations.paper import hyperparameters
from simulations.paper.hyperparameters import FULL, NAMES, Plan, grid
from tests.simulations.tables import read, run_again, shown


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("letters", "mnist"):
        y = np.arange(60) % 3
        X = 4 * generator.normal(size=(3, 8))[y] + generator.normal(size=(60, 8))
        np.savez(tmp_path / f"{name}.npz", X=X.astype(np.float32), y=y)
    return tmp_path


@pytest.mark.slow
def test_a_run_writes_curves_figures_and_a_summary_and_keeps_its_cells(
    folder, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    monkeypatch.setattr(
        hyperparameters, "QUICK", Plan(points=60, largest_dim=512, values=3, folds=3)
    )
    arguments = [
        "hyperparameters",
        "--quick",
        "--sets",
        "Letters,MNIST",
        "--data",
        str(folder),
    ]
    assert command.main([*arguments, "--out", str(out)]) == 0
    rows = read(out / "hyperparameters.csv")
    stand_in = "MNIST, 3468 points, for Gina Prior 2"
    assert {(row["set"], row["parameter"]) for row in rows} == {
        (n, p) for n in ("Letters", stand_in) for p in NAMES
    }
    assert all(
        0 <= float(row["accuracy"]) <= 1 and int(row["m"]) >= 2 * int(row["rho"])
        for row in rows
    )
    gammas = sorted(
        {float(row["gamma"]) for row in rows if row["parameter"] == "gamma"}
    )
    assert gammas == pytest.approx([0, 0.1, 0.45, 0.8])
    text = shown(out, "hyperparameters_1")
    assert "hardly matters above 0" in text  # the paper's claim
    assert stand_in in text
    assert "Segment" in capsys.readouterr().err
    run_again(arguments, out, (hyperparameters, "panel"))


@pytest.mark.parametrize(
    ("parameter", "smallest", "largest"),
    [("m", 4, 4096), ("s", 0.1, 0.8), ("rho", 4, 256)],
)
def test_the_full_grid_is_the_papers(parameter, smallest, largest):
    settings = list(grid(parameter, 784, FULL))
    values = sorted({value for value, *_ in settings})
    assert len(values) == 10
    assert len(settings) == 10 * 2 * 2
    assert values[0] == pytest.approx(smallest)
    assert values[-1] == pytest.approx(largest)
    assert all(gammas == [0.0, 0.5] for *_, gammas in settings)


def test_the_full_grid_of_gamma_is_the_papers():
    settings = list(grid("gamma", 784, FULL))
    assert len(settings) == 2 * 2 * 2
    assert len(settings[0][4]) == 11


def test_a_grid_is_capped():
    capped = {m for _, m, *_ in grid("m", 784, Plan(largest_dim=2**14, values=5))}
    assert len(capped) == 5
    assert max(capped) <= 2**14


def test_without_any_data_there_are_digits_and_generated_ones():
    assert list(hyperparameters.sets(None)) == ["Digits", "synthetic, R^50"]
