"""Experiments leave the files that they promise."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from flwr_flynn import FlyHash, HashSpec
from simulations import __main__ as command
from simulations.baselines import lean_count, lean_matrix, lean_rows


def test_the_lean_baseline_counts_what_we_count_where_nothing_ties():
    X = np.random.default_rng(0).random((150, 40)).astype(np.float32)
    y = np.arange(150) % 3
    hasher = FlyHash(HashSpec(40, 500, 8, 9, seed=1))
    counts = lean_count(lean_matrix(hasher), X, y, 3, 9)
    # SciPy adds in another order; sums that it rounds differently may swap places at the very edge.
    assert np.abs(counts - hasher.count(X, y, 3)).sum() <= 4


def test_lean_rows_are_subsets():
    rows = np.sort(lean_rows(10, 50, 4), axis=1)
    assert rows.shape == (50, 4)
    assert (np.diff(rows, axis=1) > 0).all()


def test_an_unknown_experiment_is_answered_with_the_list(capsys):
    assert command.main(["nothing"]) == 2
    assert "bench" in capsys.readouterr().out


@pytest.mark.slow
def test_bench_writes_its_files(tmp_path):
    assert command.main(["bench", "--quick", "--output", str(tmp_path)]) == 0
    with (tmp_path / "bench.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["shape"] for row in rows] == [
        "Digits", "Letters", "MNIST", "Fashion-MNIST", "CIFAR-10", "CIFAR-100",
    ]  # fmt: skip
    assert (tmp_path / "bench.png").stat().st_size > 10_000
