"""The report of a run: rows of its table, and the comparison with a model of the pooled samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.server import Server

from flwr_flynn import FlyNNClient, FlyNNStrategy
from flwr_flynn.app import metrics_json as reports
from flwr_flynn.app.data import datasets
from flwr_flynn.app.report.page import log_table
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_plan import RunPlan
from flwr_flynn.hashing.spec import HashSpec
from tests.fakes import CLASSES, Proxy, manager, points

REPORT: dict[str, Any] = {
    "action": "train",
    "run": {"run_id": "7", "seconds": 1.25},
    "parties": [
        {"name": "a", "examples": 3, "bytes": 900, "seconds": 0.5},
        {"name": "b", "examples": 4, "bytes": 2_100_000, "seconds": None},
    ],
    "federation": [{"party": "a"}, {"party": "b"}],
    "updates": [],
    "missing": {"c": "no reply"},
    "examples": 7,
    "privacy": None,
    "evaluates": True,
    "evaluation": None,
    "absent": {},
    "evaluation_errors": [],
    "schema": None,
    "columns": None,
    "selection": None,
    "refinement": 0,
    "gram": None,
    "classes": ["ash", "birch"],
    "class_sizes": None,
    "messages": {},
    "settings": {},
    "versions": {},
    "specs": [],
    "members": [],
    "traffic": {},
    "sha256": {"federated": "12ab"},
}

A = {"party": "a"}


def member(**more: Any) -> dict[str, Any]:
    return {"hash_dim": 64, "hash_nnz": 16, "weight": 0.5, "decay": 0.25} | more


def traffic(**bytes_of: tuple[float, float]) -> dict[str, Any]:
    return {name: {"up": up, "down": down} for name, (up, down) in bytes_of.items()}


SIMULATION = {"parties": 3, "samples": 9, "dealt": 8, "empty_parties": 1}
SHA = {"federated": "12ab", "pooled": "12ab", "equal": True}
EVALUATION = {
    "accuracy": 0.75,
    "balanced_accuracy": 0.75,
    "macro_f1": 0.5,
    "worst_party": {"name": "Ulm", "accuracy": 0.5, "examples": 2},
    "examples": 8,
    "class_prior": None,
}
PRIOR = {"accuracy": 0.875, "worst_party": {"name": "Bonn", "accuracy": 0.625, "examples": 8}, "sent": 2}
SELECTION = {
    "choices": [[1, 0, 0.75], [0, 0, 0.25]],
    "scorings": [["balanced", 0.25, 1.5], ["balanced", 0.5, 1.0]],
    "candidates": [[["balanced", 0.5]], [["balanced", 0.25]], [["balanced", 0.5]]],
    "accuracies": [[0.75], [0.875], [0.5]],
    "accuracy": 0.875,
    "examples": 7,
}
ONE_CANDIDATE = {
    "choices": [[0, 1, 1.0]],
    "candidates": [[["balanced", 0.5], ["balanced", 0.25]]],
    "accuracies": [[0.75, 0.875]],
    "examples": 7,
}
MEMBERS = [member(), member(hash_dim=128, decay=0.5)]
SILENT = {"b": "no reply"}
GRAM = {"rows": 64, "examples": 90, "used": True}
PRIVACY = {
    "examples_estimate": None,
    "epsilon": 0.99996,
    "delta": 1e-5,
    "noise_sd": 3.0,
    "guarantee": "A promise.",
    "notes": ["One."],
}


@pytest.mark.parametrize(
    ("changes", "rows", "absent"),
    [
        (
            {"traffic": traffic(counts=(900_000.0, 40.0), evaluation=(200_000.0, 2000.0))},
            [
                "parties counted 2 of 3",
                "left out of counts: c no reply",
                "training samples 7",
                "bytes per party 1.1 MB up, 2.0 kB down",
                "counts 900.0 kB up, 40 B down",
                "model and evaluation 200.0 kB up, 2.0 kB down",
                "evaluation none: no party holds test samples",
                "SHA-256 of the counts 12ab",
            ],
            ["equal"],
        ),
        (
            {"action": "withdraw", "federation": [{"party": "a"}] * 5},
            ["parties withdrawn 2 of 3", "parties in all 5"],
            [],
        ),
        ({"action": "evaluate", "federation": [{"party": "a"}]}, ["parties in all 1"], ["parties counted"]),
        (
            {"simulation": SIMULATION, "sha256": SHA | {"pooled": "34cd", "equal": False, "model_equal": None}},
            [
                "samples distributed 8 of 9, training and test samples",
                "parties with no samples 1",
                "trained on pooled data 34cd",
                "equal NO",
                "whole model equal n/a, some samples were left out",
            ],
            [],
        ),
        ({"sha256": SHA | {"equal": None, "model_equal": True}}, ["equal n/a, 1 missing", "whole model equal yes"], []),
        (
            {"absent": {"evaluation": {"a": "declined: X_test", "b": "no reply"}}},
            [
                "evaluation failed at 2 parties",
                "left out of evaluation: a declined: X_test",
                "left out of evaluation: b no reply",
            ],
            [],
        ),
        ({"evaluation_errors": ["KeyError", "KeyError"]}, ["evaluation failed with KeyError"], []),
        (
            {"evaluates": False, "absent": {"evaluation": {"a": "no reply"}, "saving the model": {"b": "disk full"}}},
            [
                "evaluation none: parties send no results",
                "left out of evaluation: a no reply",
                "left out of saving the model: b disk full",
            ],
            [],
        ),
        (
            {"evaluation": EVALUATION},
            ["accuracy 0.7500", "macro-F1 0.5000", "worst party 0.5000 (Ulm, 2 test samples)"],
            ["with class prior"],
        ),
        (
            {"evaluation": EVALUATION | {"class_prior": PRIOR}},
            ["with class prior 0.8750, worst party 0.6250 (Bonn)"],
            [],
        ),
        (
            {
                "columns": {"examples": 6},
                "absent": {"columns": {"a": "declined: ranks"}, "selection": SILENT},
                "scaling": "auto",
                "selection": SELECTION,
                "members": MEMBERS,
                "traffic": traffic(columns=(10, 20), selection=(10, 20)),
            },
            [
                "scaling auto, from histograms of the columns of 6 samples",
                "left out of columns: a declined: ranks",
                "candidates 3 with 1 decays each, compared on 7 samples",
                "leave-one-out 0.7500, 0.8750, 0.5000",
                "member 2 weight 0.75, decay 0.25, 64 rows, 16 winners",
                "member 1 weight 0.25, decay 0.5, 128 rows, 16 winners",
                "left out of selection: b no reply",
                "histograms of the columns 10 B up, 20 B down",
                "selection 10 B up, 20 B down",
            ],
            ["decay"],
        ),
        (
            {"selection": SELECTION | {"accuracies": []}},
            ["selection none: too few parties with samples replied"],
            ["candidates"],
        ),
        (
            {"selection": ONE_CANDIDATE, "members": [member()]},
            ["decay 0.25, leave-one-out 0.8750, 2 compared on 7 samples"],
            ["candidates", "member"],
        ),
        (
            {"gram": GRAM, "absent": {"gram": SILENT}},
            ["Gram matrix 64 rows, 90 samples, half of the weight", "left out of gram: b no reply"],
            [],
        ),
        ({"gram": GRAM | {"used": False}}, ["Gram matrix none: too few parties replied, or the regression failed"], []),
        (
            {"privacy": PRIVACY, "evaluation": EVALUATION, "simulation": SIMULATION},
            [
                "training samples hidden",
                "privacy epsilon 1, delta 1e-05; noise of standard deviation 3 at each party",
                "not covered the confusion matrices behind the figures above",
                "equal n/a, noisy",
                "A promise.",
            ],
            [],
        ),
        (
            {"privacy": PRIVACY | {"epsilon": None, "examples_estimate": 9}},
            [
                "training samples hidden, about 9 (estimate from the noisy counts)",
                "privacy NONE: seeded noise, for simulations; noise of standard deviation 3 at each party",
            ],
            ["not covered"],
        ),
    ],
)
def test_rows_of_the_table(changes: dict[str, Any], rows: list[str], absent: list[str], tmp_path: Path) -> None:
    shown = [" ".join(line.split()) for line in log_table(REPORT | changes, tmp_path).splitlines() if line]
    assert set(rows) <= set(shown), shown
    assert not [row for row in shown for start in absent if row.startswith(start)]
    assert shown[0] == "FlyNN"
    assert f"output folder {tmp_path}" in shown


# ---- comparison with the pooled samples


def run_of(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, pooled: Any = lambda X: X, spec: HashSpec | None = None
) -> dict[str, Any]:
    """Entries about the pooled samples in the report of a run of three parties; `pooled` maps theirs to the pool."""
    X, y = points(180)
    codes = np.array([CLASSES.index(label) for label in y])
    config = RunConfig.parse({"hash-dim": 64} | settings)
    plan = config.plan(4, 180, 3)
    strategy = FlyNNStrategy(
        spec=spec or plan,
        classes=CLASSES,
        min_available_clients=3,
        min_parties=3,
        decay=0.5 if spec else "auto",
        gram=config.gram_value(),
    )
    parties = [FlyNNClient(X[i::3], y[i::3], min_examples=config.min_examples, gram=True) for i in range(3)]
    clients = manager(*(Proxy(str(i), party) for i, party in enumerate(parties)))
    Server(client_manager=clients, strategy=strategy).fit(strategy.num_rounds, timeout=None)
    monkeypatch.setattr(datasets, "pooled_training", lambda *_: (pooled(X.copy()), codes))
    found = reports.compared(RunPlan(config, 3, plan, strategy), 3, strategy.federation("1"))
    if config.gram_value():
        n_rows = sum(spec.hash_dim for spec in strategy.model.model_.gram.specs)
        assert reports.gram(strategy.run) == {"rows": n_rows, "examples": 180, "used": True}
    return found


@pytest.mark.parametrize(
    ("settings", "spec", "min_examples"),
    [
        ({}, None, 1),
        ({"gram": 32}, None, 1),
        ({"gram": 32}, None, 4),
        ({"effort": "thorough"}, None, 1),
        ({"effort": "thorough"}, None, 4),
        ({"effort": "quick"}, None, 8),
        ({"gram": 32}, HashSpec(4, 64, 2, 6, 0, signed=True), 1),
    ],
    ids=str,
)
def test_a_run_is_compared_with_a_run_over_the_pooled_samples(
    settings: dict[str, Any], spec: HashSpec | None, min_examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings | {"min-examples": min_examples}
    found = run_of(settings, monkeypatch, spec=spec)
    assert (found["equal"], found["model_equal"]) == (True, True)
    found = run_of(settings, monkeypatch, lambda X: X[::-1].copy(), spec)
    assert (found["equal"], found["model_equal"]) == (False, False)


def test_a_model_without_a_party_s_part_of_a_phase_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "absences", lambda run: {"selection": {"2": "no reply"}, "evaluation": {}})
    assert run_of({"min-examples": 1}, monkeypatch)["model_equal"] is None
    monkeypatch.setattr(reports, "absences", lambda run: {"evaluation": {"2": "no reply"}})
    assert run_of({"min-examples": 1}, monkeypatch)["model_equal"] is True


def test_a_run_is_compared_with_what_the_pool_would_tell_of_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def nudged(X: np.ndarray) -> np.ndarray:
        X[0, 0] += 100  # the columns of the pool have another centre
        return X

    assert run_of({"min-examples": 1}, monkeypatch, nudged)["model_equal"] is False
