"""Run and node settings: values that are taken and refused, and pyproject.toml."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from flwr_flynn.app.node_config import POLICY_KEYS, NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.errors import ConfigError
from flwr_flynn.model.candidates import HashPlan, placeholder_specs
from tests.app.test_settings_parser import Example
from tests.raising import raises
from tests.snapshots import assert_refused_as_on_record

ROOT = Path(__file__).parents[2]


def test_pyproject_declares_every_key_with_its_default():
    text = (ROOT / "pyproject.toml").read_text()
    declared = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    table = {row.key: row.default for row in RunConfig.rows()}
    assert declared == table
    assert {k: type(v) for k, v in declared.items()} == {
        k: type(v) for k, v in table.items()
    }
    assert RunConfig.parse(declared) == RunConfig()
    block = "".join(
        f"# {group}\n"
        + "".join(f"{row.key} = {json.dumps(row.default)}\n" for row in rows)
        for group, rows in groupby(RunConfig.rows(), lambda row: row.group)
    )
    assert f"[tool.flwr.app.config]\n{block}\n[" in text


def test_every_setting_has_a_group_and_an_example_of_each_fact():
    groups = {row.name: row.group for row in RunConfig.rows()}
    wanted = {
        "alpha": "partitioner",
        "hash_dim": "hash",
        "scaling": "hash",
        "epsilon": "privacy",
        "delta": "privacy",
    }
    assert wanted.items() <= groups.items()
    assert "" not in groups.values()
    facts = {row.name: row.facts for row in RunConfig.rows()}
    assert (facts["alpha"].simulation_only, facts["classes"].deployment_only) == (
        True,
        True,
    )
    assert facts["seed"].fixed_by_federation == (
        "join",
        "withdraw",
        "update",
        "evaluate",
        "resume",
    )
    assert facts["max_examples"].fixed_by_federation == ("withdraw", "evaluate")
    assert facts["min_examples"].fixed_by_federation == ()
    assert not any(
        fact.simulation_only and fact.deployment_only for fact in facts.values()
    )
    assert (
        {"state-path", "max-delta"}
        <= set(POLICY_KEYS)
        < {row.key for row in NodeConfig.rows()}
    )


# ---- what is refused

SECURE = {"secure": True, "max-examples": 100}
PRIVATE = {
    "data-path": "a.csv",
    "max-epsilon": 1.0,
    "state-path": "/var/lib/flynn/state",
}


def test_settings_that_are_none_or_do_not_go_together_are_refused_as_it_is_on_record():
    """Settings of runs and nodes, and of the example of test_settings_parser."""
    takes = {"run": RunConfig.parse, "node": NodeConfig.parse, "example": Example.parse}
    assert_refused_as_on_record(Path(__file__).parent / "refused.txt", takes)


GONE = [{key: 0} for key in sorted(RunConfig.gone)]
GONE += [{key: "[" * 10**5} for key in ("classes", "partitioner-options")]


@pytest.mark.parametrize("settings", GONE, ids=lambda value: str(value)[:40])
def test_settings_of_an_earlier_version_and_deep_ones_are_refused(settings):
    with raises(ConfigError, field=f"run-config {next(iter(settings))}"):
        RunConfig.parse(settings)


# ---- what is taken


def planned(settings: dict[str, Any]) -> str:
    """The plan for samples of four features and three classes, or its refusal."""
    config = RunConfig.parse(settings)
    try:
        plan = config.plan(4, 100, 3)
    except ConfigError as error:
        return f"{error.field}: got {error.got}"
    resolved = config.resolved()
    specs = placeholder_specs(plan)
    assert (resolved.resolved(), resolved.plan(4, 100, 3)) == (resolved, plan)
    text = (
        f"{plan.effort}, scaling {resolved.scaling}: "
        f"{plan.most_members} of {len(specs)} hashes of {specs[0].hash_dim} "
        f"rows, {specs[0].hash_nnz} of them active"
    )
    if plan.n_trees:
        text += ", and trees"
    return text


def changes(parsed: Any) -> str:
    """The settings that are not at their defaults."""
    defaults = {row.name: row.default for row in parsed.rows()}
    texts = [
        f"{name}={value!r}"
        for name, value in asdict(parsed).items()
        if value != defaults[name]
    ]
    return ", ".join(texts) or "the defaults"


def evaluates(settings: dict[str, Any]) -> str:
    """Runs that are evaluated: a simulation, a deployment, and one with noisy counts."""
    config = RunConfig.parse(settings)
    return (
        f"{config.evaluates(True)}, {config.evaluates(False)}, "
        f"{config.evaluates(False, goes_on_with_noise=True)}"
    )


def test_noisy_federations_give_no_exact_results_unless_asked():
    noisy = RunConfig.parse({"epsilon": 1})
    asked = RunConfig.parse({"epsilon": 1, "evaluate": True})
    assert not noisy.evaluates(False)
    assert not RunConfig.parse({}).evaluates(False, goes_on_with_noise=True)
    assert asked.evaluates(False)
    assert asked.evaluates(False, goes_on_with_noise=True)


def test_the_meanings_of_settings_are_those_on_record():
    """Values as users type them, lists, evaluations, ignored settings, and plans.

    Keys of other apps are left alone; the scaling is "auto" where nothing forbids it.
    """
    takes = {
        "run": lambda settings: changes(RunConfig.parse(settings)),
        "node": lambda settings: changes(NodeConfig.parse(settings)),
        "example": lambda settings: changes(Example.parse(settings)),
        "policy": lambda settings: str(NodeConfig.parse(settings).policy()),
        "decay": lambda value: repr(RunConfig.parse({"decay": value}).decay_value()),
        "parties": lambda text: str(RunConfig.parse({"parties": text}).party_numbers()),
        "evaluates": evaluates,
        "classes": lambda text: str(RunConfig.parse({"classes": text}).class_list()),
        "names": lambda text: str(
            RunConfig.parse({"feature-names": text}).names("feature_names")
        ),
        "simulation": lambda settings: (
            f"ignores {RunConfig.parse(settings).ignored(simulated=True)}"
        ),
        "deployment": lambda settings: (
            f"ignores {RunConfig.parse(settings).ignored(simulated=False)}"
        ),
        "plan": planned,
    }
    assert_refused_as_on_record(Path(__file__).parent / "meanings.txt", takes)


# ---- the plan of the hashes


def test_a_plan_takes_what_is_given_and_leaves_the_rest_open():
    settings = {"hash-dim": 300, "seed": 3, "scaling": "none"}
    (spec,) = RunConfig.parse(settings).plan(64, 1000, 10).specs()
    assert (spec.n_features, spec.hash_dim, spec.seed, spec.signed, spec.center) == (
        64,
        300,
        3,
        False,
        None,
    )
    assert 1 <= spec.hash_nnz <= 300
    (shifted,) = (
        RunConfig.parse({"center": "8", "scale": "0.5, 2"}).plan(2, None, 3).specs()
    )
    assert (shifted.center, shifted.scale, shifted.signed) == (
        (8.0, 8.0),
        (0.5, 2.0),
        True,
    )
    paper = RunConfig.parse({"scaling": "none"}).plan(4, None, 2)
    # The settings are those of `FlyNNClassifier.paper()`.
    assert paper.specs() == HashPlan(4, 2, signed=False, scaling=None).specs()
    assert (paper.most_members, paper.specs()[0].signed) == (1, False)


@pytest.mark.parametrize("more", [{}, {"epsilon": 1.0}, SECURE])
def test_public_ranges_make_rank_codes_without_a_look_at_the_data(more):
    plan = RunConfig.parse({"ranges": "0:16", **more}).plan(3, 100, 2)
    (spec,) = plan.specs()
    assert (plan.needs_columns, spec.coding) == (False, "bumps")
    assert spec.edges == spec.edges[:1] * 3
    assert (spec.edges[0][0], spec.edges[0][-1]) == (0.25, 15.75)
    (other,) = (
        RunConfig.parse({"ranges": "0:16, -1.5:1e3,2:3", **more})
        .plan(3, 100, 2)
        .specs()
    )
    assert other.edges[0] == spec.edges[0]
    assert -1.5 < other.edges[1][0] < other.edges[1][-1] < 1e3


def test_very_wide_samples_are_left_as_they_are_by_auto():
    needs = [
        RunConfig(scaling="auto").plan(n, None, 2).needs_columns
        for n in (2**14, 2**14 + 1)
    ]
    assert needs == [True, False]
