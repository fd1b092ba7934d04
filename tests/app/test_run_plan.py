"""The plan of a run: what a deployment must say, memory, and noise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn import secagg
from flwr_flynn.app import run_plan
from flwr_flynn.app.data import datasets
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_noise import (
    LEAST_NU,
    SharedNoise,
    beside_noise,
    nu,
    private_plan,
    run_mechanism,
)
from flwr_flynn.app.run_plan import RunPlan, check_memory, training_plan
from flwr_flynn.errors import ConfigError
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import GaussianCounts, Mechanism
from tests.fakes import SPEC, FakeGrid
from tests.raising import raises
from tests.snapshots import assert_refused_as_on_record

DEPLOYED = {"n-features": 4, "classes": "a,b", "min-available": 2}


def test_sizes_of_a_simulation_do_not_depend_on_the_split(
    caplog,
):
    pytest.importorskip("flwr_datasets")
    one = training_plan(RunConfig(), 2)
    assert one == training_plan(RunConfig(partitioner="shard"), 10)
    assert one[1] == list(range(10))
    with caplog.at_level(logging.WARNING, logger="flwr"):
        training_plan(RunConfig.parse({"n-features": 3, "classes": "a,b"}), 2)
    assert [record.args for record in caplog.records] == [("n-features, classes",)]


def check(config: RunConfig, parties: int | None = None) -> None:
    """Make the plan of a new federation, and check its memory."""
    hashes, strategy = run_plan._strategy(config, FakeGrid({}), parties, None)
    check_memory(RunPlan(config, parties, hashes, strategy))


def words(
    plan: Callable[[RunConfig], object], *facts: str
) -> Callable[[dict[str, Any]], str]:
    """The facts of the error by which a plan of such settings is refused, if it is."""

    def take(settings: dict[str, Any]) -> str:
        if settings.get("classes") == "many":
            many = {"classes": ",".join(map(str, range(5000)))}
        else:
            many = {}
        try:
            planned = plan(RunConfig.parse(settings | many))
        except ConfigError as error:
            return (
                f"{error.field}: "
                f"{', '.join(f'{name} {getattr(error, name)}' for name in facts)}"
            )
        if isinstance(planned, Mechanism):
            return repr(planned)
        return "fits"

    return take


def test_plans_that_lack_a_setting_or_memory_are_refused_as_it_is_on_record():
    """All that a server cannot see is asked for at once; memory covers all phases.

    Beside them the mechanisms that follow from settings.

    1e5 samples of 1000 columns are 1e8 values in as many bins of 96 bytes, as a
    deployed party may have any floor.
    """
    pytest.importorskip("flwr_datasets")
    takes = {
        "deployed": words(
            lambda config: training_plan(config, None), "expected", "got"
        ),
        "simulated": words(lambda config: training_plan(config, 4), "got"),
        "mechanism": words(
            lambda config: run_mechanism(config, SPEC, 3, 2), "expected"
        ),
        "memory": words(check, "expected", "got"),
    }
    assert_refused_as_on_record(Path(__file__).parent / "plans.txt", takes)


def test_a_deployment_without_features_learns_a_schema():
    given = {name: DEPLOYED[name] for name in ("classes", "min-available")}
    assert training_plan(RunConfig.parse(given), None)[2:] == (None, True)


def test_the_histograms_of_pixels_have_few_bins(
    monkeypatch,
):
    config = RunConfig(min_examples=1, memory_limit=1.0, hash_dim=64)
    monkeypatch.setattr(datasets, "n_training", lambda _: 10**5)
    monkeypatch.setattr(datasets, "simulated_shares", lambda *_: [])

    def plan(config: RunConfig, X: np.ndarray) -> None:
        dataset = datasets.Dataset(X, np.arange(4) % 2, [0, 1], "images")
        monkeypatch.setattr(datasets, "simulated_dataset", lambda _: dataset)
        check(config, 2)

    plan(config, np.zeros((4, 1000), np.uint8))
    for limit in (1.0, 2.0):
        with raises(ConfigError, field="run-config memory-limit") as caught:
            plan(replace(config, memory_limit=limit), np.zeros((4, 1000), np.float32))
        assert "histograms of 1000 columns" in caught.value.got
    # The simulated parties' own floor: a bin has five values or more.
    plan(
        replace(config, memory_limit=2.0, min_examples=5),
        np.zeros((4, 1000), np.float32),
    )


def test_before_flower_1_38_nobody_is_known_by_a_key():
    assert run_plan._identify(object())("7") == ""


# ---- noise


def test_one_setting_has_the_parties_of_a_secure_sum_share_one_noise(
    caplog,
):
    pytest.importorskip("dp_accounting")
    config = RunConfig.parse({"epsilon": 1, "delta": 1e-5, "honest-parties": 8})
    assert config.secure
    with caplog.at_level("INFO", "flwr"):
        mechanism = run_mechanism(config, SPEC, 3, 10)
    assert mechanism == GaussianCounts(
        1.0, 1e-5, hash_nnz=SPEC.hash_nnz, n_classes=3, n_honest=8
    )
    assert "at least 8 of 10 parties follow the protocol" in caplog.text
    assert "Up to 2 may drop out" in caplog.text
    for n_honest in (1, 11):
        with raises(
            ConfigError,
            field="run-config honest-parties",
            expected="from 2 to the 10 parties of the run",
        ):
            run_mechanism(
                RunConfig.parse(
                    {"epsilon": 1, "delta": 1e-5, "honest-parties": n_honest}
                ),
                SPEC,
                3,
                10,
            )


@given(n_parties=st.integers(3, 500), share=st.floats(0, 1))
def test_no_sum_opens_without_the_shares_of_as_many_parties_as_are_honest(
    n_parties, share
):
    shared = SharedNoise(n_parties, max(2, round(share * n_parties)))
    assert shared.n_honest <= shared.n_needed <= n_parties
    assert 3 * shared.n_needed >= 2 * n_parties - 1
    secagg.workflow(256, shared.n_needed, 1.0)  # takes it


def test_sizes_follow_from_public_figures():
    pytest.importorskip("dp_accounting")
    config = RunConfig.parse(
        {"epsilon": 1, "delta": 1e-5, "hash-dim": 512, "center": "8", "seed": 3}
    )
    plan = private_plan(config, config.plan(64, 2000, 10), n_parties=3)
    (spec,) = plan.specs()
    assert (spec.hash_dim, spec.seed, spec.signed, spec.center) == (
        512,
        3,
        True,
        (8.0,) * 64,
    )
    assert spec.hash_nnz == 512 // 4
    bad = RunConfig.parse({"epsilon": 1, "hash-dim": 512})
    with raises(ConfigError, field="run-config hash-nnz"):
        private_plan(bad, HashPlan(64, 10, 2000, hash_dim=512, hash_nnz=513), 3)


def test_a_run_that_would_leave_nothing_of_the_rarest_class_is_refused():
    pytest.importorskip("dp_accounting")
    settings = {"epsilon": 1, "delta": 1e-5, "ranges": "-4:4"}

    def found(n_examples: int, n_parties: int = 3, **more: Any) -> float:
        config = RunConfig.parse(
            settings | {key.replace("_", "-"): value for key, value in more.items()}
        )
        plan = private_plan(config, config.plan(12, n_examples, 2), n_parties)
        noise = run_mechanism(config, plan.specs()[0], 2, n_parties)
        assert noise is not None
        assert beside_noise(config, plan, noise, n_parties)
        return nu(plan, config.rarest_share or 0.5, noise, n_parties)

    with raises(ConfigError, field="run-config epsilon"):
        found(250, rarest_share=0.08)
    for more in ({"any_noise": True}, {"noise": "seeded"}):
        assert found(250, rarest_share=0.08, **more) < LEAST_NU
    # By default the rarest is one of as many classes as there are.
    assert found(250) > LEAST_NU
    assert found(4 * 250, rarest_share=0.08) > LEAST_NU
    assert found(250, rarest_share=0.08, epsilon=4) > LEAST_NU
    alone, shared = (
        found(250, 9, rarest_share=0.08, any_noise=True, honest_parties=n)
        for n in (0, 9)
    )
    assert shared == pytest.approx(3 * alone, rel=0.02)


def test_sizes_of_a_private_simulation_follow_from_its_training_samples():
    pytest.importorskip("flwr_datasets")
    pytest.importorskip("dp_accounting")
    config = RunConfig.parse({"epsilon": 1, "delta": 1e-5})
    plan, more = (training_plan(config, n_parties)[0] for n_parties in (3, 10))
    assert (plan.n_examples, plan.needs_columns) == (1447, False)
    assert more.hash_nnz >= plan.hash_nnz
