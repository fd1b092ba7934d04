"""`python -m simulations synthetic` in miniature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulations import methods
from simulations.baselines import KNN, KNN_AS_IS
from simulations.methods import FLYNN, PAPER
from simulations.paper import synthetic
from simulations.paper.synthetic import CASES, SHOWN, Plan
from tests.simulations.tables import read, run_again, run_once, shown

SMALL = tuple(replace(case, n=150) for case in (CASES[0], CASES[3]))
PLAN = Plan(2, 0, replace(synthetic.QUICK.settings, folds=3, draws=2, largest_dim=256))
finished = run_once(
    "synthetic", smaller=[(synthetic, "CASES", SMALL), (synthetic, "QUICK", PLAN)]
)


def test_each_data_set_and_method_has_a_row_and_none_is_computed_again(
    finished,
):
    rows = read(finished / "synthetic.csv")
    assert {(row["case"], row["seed"], row["method"]) for row in rows} == {
        (case.name, str(seed), name)
        for case in SMALL
        for seed in range(PLAN.sets)
        for name in (KNN_AS_IS, KNN, *SHOWN)
    }
    for row in rows:
        for column, name in (("normalised", KNN_AS_IS), ("by best kNN", KNN)):
            knn = next(
                r
                for r in rows
                if (r["case"], r["seed"], r["method"])
                == (row["case"], row["seed"], name)
            )
            assert float(row[column]) == pytest.approx(
                1 - float(row["mean"]) / float(knn["mean"])
            )
    text = shown(finished, "synthetic")
    # The second is of 1-NN in the first line of Table 1.
    for part in (
        "python -m simulations synthetic --quick",
        "+0.11 ± 0.05",
        "FlyNN (paper), ours",
    ):
        assert part in text
    run_again(["synthetic", "--quick"], finished, (methods, "call"))


def test_the_table_holds_means_and_spreads():
    case = synthetic.CASES[0]
    rows = [
        {
            "case": case.name,
            "method": name,
            "mean": 0.8,
            "normalised": value,
            "by best kNN": value,
        }
        for name in (KNN_AS_IS, KNN, *SHOWN)
        for value in (0.1, 0.3)
    ]
    (line,) = synthetic.table(rows)
    assert line["FlyNN (paper), ours"] == f"+0.20 ± {np.std([0.1, 0.3], ddof=1):.2f}"
    assert (line["sets"], line["FlyNN (paper), printed"]) == (2, "-0.05 ± 0.02")
    assert {PAPER, FLYNN} < set(SHOWN)


def test_the_lines_are_those_of_both_tables():
    assert len([case for case in CASES if "1" in case.tables]) == 6
    assert sorted(case.ones for case in CASES if "6" in case.tables) == [10, 20, 30, 40]
    data = CASES[0].data_set(3, folds=5)
    assert data.X.shape == (1000, 50)
    assert data.n_classes == 5
    assert data.digest == CASES[0].data_set(3, folds=5).digest
