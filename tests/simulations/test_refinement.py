"""`python -m simulations refinement`: its figures are those of runs of so many rounds."""

from __future__ import annotations

import pytest

from flwr_flynn import HashPlan
from flwr_flynn.federated.algorithm import federate
from flwr_flynn.federated.options import RunOptions
from simulations import __main__ as command
from simulations import refinement
from simulations.refinement import Plan, task_of
from tests.simulations.tables import read

pytestmark = pytest.mark.slow

PLAN = Plan(refine=2, average=2, trial=1, largest=300, gram=64)


def test_rows_are_those_of_runs_of_so_many_rounds(tmp_path, monkeypatch):
    pytest.importorskip("flwr_datasets")
    monkeypatch.setattr(refinement, "QUICK", PLAN)
    command.main(["refinement", "--quick", "--sets", "digits", "--efforts", "default,quick", "--out", str(tmp_path)])
    rows = read(tmp_path / "rounds.csv")
    last = {"FlyNN": 3, "FlyNN quick": 3, "FlyNN Gram": 1, "FedAvg LR": 2, "FedAvg MLP": 2}
    assert {row["method"]: int(row["round"]) for row in rows} == last
    assert (tmp_path / "refinement.png").stat().st_size > 0
    task = task_of("digits", PLAN)
    kinds = [("FlyNN", 1, {}), ("FlyNN", 3, {"refine_rounds": 2}), ("FlyNN Gram", 1, {"gram": 64})]
    for method, number, given in kinds:
        plan = HashPlan(64, 10, len(task.parts.pooled.y), "auto")
        run = federate(RunOptions(plan, range(10), 10, **given), task.parts.parties())
        (row,) = [row for row in rows if (row["method"], row["round"]) == (method, str(number))]
        assert float(row["accuracy"]) == task.score(run.model.predict(task.X_test))
        assert abs(float(row["down"]) - sum(each.down for each in run.traffic.values()) / 10) < 200  # settings
        assert float(row["up"]) == sum(each.up for name, each in run.traffic.items() if name != "evaluation") / 10


def test_a_test_split_tests_and_all_other_samples_train(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 3)), np.repeat(["a", "b", "c"], 30)
    np.savez(tmp_path / "set.npz", X=X, y=y, X_test=X[:6], y_test=y[:6])
    task = task_of(str(tmp_path / "set.npz"), Plan())
    assert len(task.parts.pooled.y) == 90
    assert len(task.parts.pooled.y_test) == 0
    assert task.y_test.tolist() == [0] * 6
