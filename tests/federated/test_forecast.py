"""The forecast of bytes: known before a run, for the phases of the run, and no less than it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flwr_flynn.federated import run_spec
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.forecast import forecast
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import LaplaceCounts
from flwr_flynn.tables.column import Column
from flwr_flynn.tables.schema import Schema
from tests.federated.runs import AUTO, GRID, options_for, shares
from tests.federated.secure_runs import BOUND, secretly


@pytest.mark.parametrize(
    "changes",
    [{}, {"gram": 1024}, {"gram": 256}, {"fraction_evaluate": 0}, {"fraction_evaluate": 0, "distribute": True}],
    ids=str,
)
def test_a_run_takes_no_more_bytes_than_were_forecast(changes: dict[str, Any]) -> None:
    X, y = load_digits(return_X_y=True)
    plan = HashPlan(64, 10, len(y), "auto", hash_dim=4096)
    options = RunOptions(plan, tuple(range(10)), 1, **changes)
    found = forecast(options, 5)
    run = federate(options, [party_of(X[i::5], y[i::5], X[i::5], y[i::5], min_examples=1, gram=True) for i in range(5)])
    assert found.keys() == run.traffic.keys()
    total = sum(each.up + each.down for each in found.values())
    taken = sum(sum(each.per_party.values()) for each in run.traffic.values())
    assert taken <= total <= 3 * taken
    if options.gram:  # by far the most of it
        assert run.traffic["gram"].per_party["up"] <= found["gram"].up <= 2 * run.traffic["gram"].per_party["up"]
        assert run.traffic["gram evaluation"].per_party["down"] <= found["gram evaluation"].down


def test_directions_and_weights_of_two_classes_take_no_more_bytes_than_were_forecast() -> None:
    X = np.random.default_rng(0).normal(size=(1000, 20))
    y = (X[:, 0] > 0).astype(np.int64)
    options = RunOptions(HashPlan(20, 2, len(y), "auto", hash_dim=512), (0, 1), 1, gram=256)
    found = forecast(options, 2)
    run = federate(options, [party_of(X[i::2], y[i::2], X[i::2], y[i::2], min_examples=1, gram=True) for i in range(2)])
    taken = run.traffic["gram evaluation"].per_party["down"]
    assert taken <= found["gram evaluation"].down <= 1.3 * taken


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (GRID, {}),
        (HashPlan(4, 3, None, "auto"), {}),
        (HashPlan(4, 3, 120, hash_dim=64, hash_nnz=4), {"mechanism": LaplaceCounts(1.0, hash_nnz=4, n_classes=3)}),
    ],
)
def test_where_sizes_are_not_known_there_is_no_forecast(spec: Any, changes: dict[str, Any]) -> None:
    assert forecast(RunOptions(**options_for(spec, **changes)), 4) is None


@pytest.mark.parametrize("changes", [{}, {"gram": 256}], ids=str)
def test_a_secure_run_takes_no_more_bytes_than_were_forecast(changes: dict[str, Any]) -> None:
    options = options_for(replace(AUTO, hash_dim=2048), **changes)
    found = forecast(RunOptions(**options | {"secure_bound": BOUND, "min_parties": 3}), 4)
    run = secretly(options, shares())
    assert found.keys() == run.traffic.keys()
    for name in found.keys() - {"evaluation"}:
        assert run.traffic[name].per_party["up"] <= found[name].up, name
    total = sum(each.up + each.down for each in found.values())
    taken = sum(sum(each.per_party.values()) for each in run.traffic.values())
    assert taken <= total <= 3 * taken


def test_a_forecast_draws_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_spec, "flynn_hash", lambda _: pytest.fail("drawn"))
    found = forecast(RunOptions(**options_for(AUTO)), 5)
    assert found["counts"].down > 4 * 32 * 4  # the edges of four columns are in it


def test_more_parties_send_less_each() -> None:
    few, many = (forecast(RunOptions(**options_for(AUTO)), n) for n in (2, 20))
    assert many["counts"].up < few["counts"].up
    assert many["columns"].up < few["columns"].up
    assert many["evaluation"].up < few["evaluation"].up
    assert many["evaluation"].down == few["evaluation"].down


def test_scores_of_subgroups_are_in_the_forecast() -> None:
    schema = Schema([Column("sex", "category", ["f", "m"]), Column("age", "number", gaps=False)])
    plan = HashPlan(schema.width, 3, 120, "auto", hash_dim=1024)
    without, found = (
        forecast(RunOptions(plan, ("a", "b", "c"), 1, feature_names=schema, group_column=column), 4)
        for column in ("", "sex")
    )
    assert without["evaluation"].up < found["evaluation"].up
