"""The report of a run: rows of its table, and the comparison with the pool's model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.server import Server

from flwr_flynn import FlyNNClient, FlyNNStrategy
from flwr_flynn.app import metrics_json as reports
from flwr_flynn.app.data import datasets
from flwr_flynn.app.model_facts import facts_of
from flwr_flynn.app.report.page import log_table
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_plan import RunPlan
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phases.trees import FOREST
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.samples import Samples
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from tests.app.report.example import FOLDER, KNOWN, REPORT
from tests.fakes import CLASSES, Proxy, manager, points
from tests.federated.runs import DUE, Exchange
from tests.snapshots import assert_on_record


def test_the_tables_of_reports_are_those_on_record():
    made = {
        name: "\n".join(log_table(REPORT | changes, Path("/out")))
        for name, changes in KNOWN["cases"].items()
    }
    assert_on_record(
        FOLDER / "tables.txt",
        "".join(f"# {name}\n{text}\n" for name, text in made.items()),
    )


# ---- facts about trees

PRODUCT = np.random.default_rng(3).normal(size=(400, 4))
SIDES = (PRODUCT[:, 0] * PRODUCT[:, 1] > 0).astype(int)


def grown(trees: int = 20, products: bool = True) -> Run:
    """A run over four parties, of which one is lost at the second level of trees."""
    options = PartyOptions(min_examples=1, products=products)
    parties = {
        str(i): Party(
            Samples(PRODUCT[i::4], SIDES[i::4], PRODUCT[i::4], SIDES[i::4]),
            replace(options, name=f"party-{i}"),
        )
        for i in range(4)
    }
    plan = HashPlan(4, 2, 400, "auto", hash_dim=128)
    steps = Exchange(Run(RunOptions(plan, (0, 1), 1, trees=trees)), parties)
    steps.until("trees 2").step(DUE, failures={"3": "failed: gone"})
    return steps.until("").run


def test_a_party_that_missed_a_level_is_absent_once():
    run = grown()
    absent = {
        phase: reasons["party-3"]
        for phase, reasons in reports.absences(run).items()
        if "party-3" in reasons
    }
    assert absent == {"trees 2": "failed: gone; not asked again"}
    assert {"trees 2", "trees 3", "forest"} <= run.state.results.keys()


def trees_of(run: Run) -> Any:
    return FOREST.report(run.state, run.options).entries["trees"]


def test_a_run_tells_what_its_trees_gained():
    run = grown()
    facts = trees_of(run)
    forest = run.model.model_.forest
    assert facts is not None
    assert forest is not None
    assert facts["share"] == forest.calibration.share > 0
    assert facts["leaf_nodes"] == len(forest.trees.leaf_nodes) > facts["trees"] == 20
    without, least = facts["log_losses"]
    assert least < without < 1
    assert 1 <= facts["levels"] <= 16
    assert facts_of(run.model.model_)["trees"] == {
        "trees": 20,
        "leaf_nodes": facts["leaf_nodes"],
        **forest.calibration.facts(),
    }
    assert facts["lack"] == ""


def test_a_run_without_trees_says_why():
    assert trees_of(grown(trees=0)) is None
    facts = trees_of(grown(products=False))
    assert facts is not None
    assert facts["lack"] == "no sums: no party consents, or too few replied"
    assert (facts["share"], facts["leaf_nodes"], facts["log_losses"]) == (
        None,
        None,
        [],
    )


SILENT = {"b": "no reply"}


# ---- comparison with the pooled samples


def run_of(
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    pooled: Any = lambda X: X,
    spec: HashSpec | None = None,
    first: int = 60,
) -> tuple[bool, bool | None]:
    """True where the counts, and the model, of three parties equal the pool's.

    `pooled` maps the pool's samples. The first party has so many of them.
    """
    X, y = points(180)
    codes = np.array([CLASSES.index(label) for label in y])
    config = RunConfig.parse({"hash-dim": 64, "min-examples": 1} | settings)
    plan = config.plan(4, 180, 3)
    decay: float | str = "auto"
    if spec:
        decay = 0.5
    strategy = FlyNNStrategy(
        spec=spec or plan,
        classes=CLASSES,
        min_available_clients=3,
        min_parties=3,
        decay=decay,
        trees=config.trees_value(),
    )
    owner = np.where(np.arange(180) < first, 0, 1 + np.arange(180) % 2)
    least = config.min_examples
    parties = [
        FlyNNClient(
            X[owner == i],
            y[owner == i],
            min_examples=least,
            products=True,
            name=f"party-{i}",
        )
        for i in range(3)
    ]
    clients = manager(*(Proxy(str(i), party) for i, party in enumerate(parties)))
    Server(client_manager=clients, strategy=strategy).fit(
        strategy.num_rounds, timeout=None
    )

    def rows_of(_: RunConfig, parties: int) -> list[Any]:
        return [np.flatnonzero(owner == party) for party in range(parties)]

    def pool(_: RunConfig, rows: Any) -> tuple[Any, Any]:
        every = np.sort(np.concatenate([np.zeros(0, int), *rows]))
        return pooled(X.copy())[every], codes[every]

    monkeypatch.setattr(datasets, "training_rows", rows_of)
    monkeypatch.setattr(datasets, "pooled_training", pool)
    comparison = reports.compared(
        RunPlan(config, 3, plan, strategy), 3, strategy.federation("1")
    )
    return comparison["equal"], comparison["model_equal"]


FLOOR = {"min-examples": 4}
RUNS = [
    ({}, None),
    (FLOOR, None),
    ({}, HashSpec(4, 64, 2, 6, 0, signed=True)),
    ({"effort": "thorough"} | FLOOR, None),
    ({"effort": "quick", "min-examples": 8}, None),
]


@pytest.mark.parametrize(("settings", "spec"), RUNS, ids=str)
def test_a_run_is_compared_with_a_run_over_the_pooled_samples(
    settings, spec, monkeypatch
):
    assert run_of(settings, monkeypatch, spec=spec) == (True, True)
    assert run_of(settings, monkeypatch, lambda X: X[::-1].copy(), spec) == (
        False,
        False,
    )


@pytest.mark.parametrize("effort", ["default", "thorough"])
@pytest.mark.parametrize(("first", "least"), [(3, 5), (20, 5), (20, 10), (60, 40)])
def test_further_parts_are_in_the_pool_where_they_are_in_the_run(
    first, least, effort, monkeypatch
):
    """The first party has small classes alone, and so no sums for a linear part.

    In the last case all have, but trees have no floor.
    """
    rng = np.random.default_rng(5)
    slopes = 1.5 * rng.normal(size=(4, 3))

    def linear_points(n: int) -> Any:
        samples = rng.normal(size=(n, 4))
        scores = samples @ slopes + rng.gumbel(size=(n, 3))
        return samples, np.array(CLASSES)[scores.argmax(axis=1)]

    monkeypatch.setattr(f"{__name__}.points", linear_points)
    settings = {"min-examples": least, "effort": effort}
    assert run_of(settings, monkeypatch, first=first) == (True, True)


def test_trees_without_columns_to_grow_on_are_not_in_the_pool_either(monkeypatch):
    settings = {"min-examples": 100, "effort": "thorough"}
    assert run_of(settings, monkeypatch) == (True, True)


def test_parties_of_fewer_samples_than_their_floor_are_apart_in_the_pool(monkeypatch):
    assert run_of({"min-examples": 12}, monkeypatch, first=10) == (True, True)


@pytest.mark.parametrize(
    ("absent", "model_equal"),
    [({"selection": SILENT}, None), ({"evaluation": SILENT}, True)],
)
def test_a_model_without_a_party_s_part_of_a_phase_is_not_compared(
    absent, model_equal, monkeypatch
):
    monkeypatch.setattr(reports, "absences", lambda run: {"evaluation": {}} | absent)
    assert run_of({}, monkeypatch) == (True, model_equal)


def test_a_run_is_compared_with_what_the_pool_would_tell_of_its_columns(monkeypatch):
    def nudged(X: np.ndarray) -> np.ndarray:
        X[0, 0] += 100  # the columns of the pool have another centre
        return X

    assert run_of({}, monkeypatch, nudged)[1] is False
