"""The study of private runs over tables: its tasks, its runs, and its files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from simulations import __main__ as command
from simulations import private_tables
from simulations.private_tables import KINDS, Task, became, rare, runs, sizes, summed
from tests.simulations.tables import read, shown

RNG = np.random.default_rng(5)
X = RNG.normal(size=(600, 4))
Y = (X[:, 0] > 0.6).astype(np.int64)
TASK = Task.of(X, Y, np.arange(400), np.arange(400, 600))


def test_each_party_adds_its_noise_and_one_has_all_samples():
    noises = [3, -1, 10]
    drawn = iter(noises)
    total = summed(lambda array: array + next(drawn), np.arange(4), 3)
    assert_array_equal(total, np.arange(4) + sum(noises))


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (400, [200]),
        (1899, [949]),
        (1900, [950, 500]),
        (7000, [3500, 2000, 500]),
        (20000, [8000, 2000, 500]),
    ],
)
def test_cells_have_at_most_half_of_the_samples(n, expected):
    assert sizes(n) == expected


def test_rare_outcomes_are_8_percent_and_never_held_out():
    task = rare(X, Y, 300, [0])
    assert task.y.mean() == pytest.approx(0.08, abs=0.002)
    assert len(task.y) == 300
    assert not {*task.X[:, 0]} & {*task.X_test[:, 0]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_now", [False, True])
def test_runs_have_the_noise_of_all_parties_and_a_centre_of_noisy_sums(kind, is_now):
    def of(n_parties):
        return [model for model, _ in runs(TASK, kind, n_parties, is_now, 2, 2)]

    models = of(3)
    assert len({model.counts.sha256() for model in models}) == 4
    assert len({model.spec.center for model in models}) == (2 if is_now else 1)
    if is_now:  # of the same sizes
        alone = of(1)[0].counts.noise_variance
        assert models[0].counts.noise_variance == pytest.approx(3 * alone)
    assert all((model.means is not None) == is_now for model in models)
    is_mirrored = is_now and kind == "add-remove"
    assert models[0].counts.are_mirrored == is_mirrored


def test_runs_are_told_by_what_was_known_of_them():
    frame = pd.DataFrame({"nu": [0.5, 1, 1.5], "AUROC": [0.5, 0.5, 0.9]})
    assert became(frame, "nu", (0, 1, np.inf)) == [
        {"nu": "0 to 1", "runs": 1, "below .6": 1.0, "AUROC": 0.5},
        {"nu": "1 to inf", "runs": 2, "below .6": 0.5, "AUROC": 0.7},
    ]


@pytest.mark.slow
def test_the_study_writes_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(private_tables, "PARTIES", (1, 3))
    assert command.main(["private", "--quick", "--out", str(tmp_path)]) == 0
    rows = read(tmp_path / "shares.csv")
    assert [row["kind"] for row in rows] == [
        kind for _ in range(2) for kind in KINDS for _ in range(2)
    ]
    assert {row["set"] for row in rows} == {"digits"}
    assert "replace-one" in shown(tmp_path, "shares")
