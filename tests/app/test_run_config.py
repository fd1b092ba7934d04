"""Run and node settings: values taken and refused; pyproject.toml agrees with the table."""

from __future__ import annotations

import json
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from flwr_flynn.app.data import datasets
from flwr_flynn.app.node_config import POLICY_KEYS, NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.errors import ConfigError
from flwr_flynn.model.candidates import HashPlan, placeholder_specs
from flwr_flynn.privacy.ledger import Policy
from tests.app.snapshots import assert_refused_as_on_record
from tests.app.test_settings_parser import Example
from tests.raising import raises

ROOT = Path(__file__).parents[2]


def test_pyproject_declares_every_key_with_its_default():
    text = (ROOT / "pyproject.toml").read_text()
    declared = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    table = {row.key: row.default for row in RunConfig.rows()}
    assert declared == table
    assert {k: type(v) for k, v in declared.items()} == {k: type(v) for k, v in table.items()}
    assert RunConfig.parse(declared) == RunConfig()
    block = "".join(
        f"# {group}\n" + "".join(f"{row.key} = {json.dumps(row.default)}\n" for row in rows)
        for group, rows in groupby(RunConfig.rows(), lambda row: row.group)
    )
    assert f"[tool.flwr.app.config]\n{block}\n[" in text


def test_every_setting_has_a_group_and_an_example_of_each_fact():
    groups = {row.name: row.group for row in RunConfig.rows()}
    wanted = {"alpha": "partitioner", "hash_dim": "hash", "scaling": "hash", "epsilon": "privacy", "delta": "privacy"}
    assert wanted.items() <= groups.items()
    assert "" not in groups.values()
    facts = {row.name: row.facts for row in RunConfig.rows()}
    assert (facts["alpha"].simulation_only, facts["classes"].deployment_only) == (True, True)
    assert facts["seed"].fixed_by_federation == ("join", "withdraw", "update", "evaluate", "resume")
    assert facts["max_examples"].fixed_by_federation == ("withdraw", "evaluate")
    assert facts["min_examples"].fixed_by_federation == ()
    assert not any(fact.simulation_only and fact.deployment_only for fact in facts.values())
    assert {"state-path", "max-delta"} <= set(POLICY_KEYS) < {row.key for row in NodeConfig.rows()}


# ---- what is refused

SECURE = {"secure": True, "max-examples": 100}
PRIVATE_AND_SECURE = {"epsilon": 1.0, "delta": 1e-5, "honest-parties": 4}
PRIVATE = {"data-path": "a.csv", "max-epsilon": 1.0, "state-path": "/var/lib/flynn/state"}


def test_settings_that_are_none_or_do_not_go_together_are_refused_as_it_is_on_record():
    """Settings of runs and nodes, of a simulation that cannot be dealt, and of the example of test_settings_parser."""
    takes = {"run": RunConfig.parse, "node": NodeConfig.parse, "example": Example.parse, "dealt": dealt}
    assert_refused_as_on_record(Path(__file__).parent / "refused.txt", takes)


def dealt(settings: dict[str, Any]) -> object:
    """The shares of four parties."""
    return datasets.simulated_shares(RunConfig.parse(settings), 4)


GONE = [{key: 0} for key in sorted(RunConfig.gone)]
GONE += [{key: "[" * 10**5} for key in ("classes", "partitioner-options")]


@pytest.mark.parametrize("settings", GONE, ids=lambda value: str(value)[:40])
def test_settings_of_an_earlier_version_and_deep_ones_are_refused(settings):
    with raises(ConfigError, field=f"run-config {next(iter(settings))}"):
        RunConfig.parse(settings)


@pytest.mark.parametrize(
    ("settings", "field", "got"),
    [
        ({"center": "1,2"}, "center", '"1,2"'),
        ({"center": "inf"}, "center", '"inf"'),
        ({"scale": "0"}, "scale", "0.0 at index 0"),
        ({"ranges": "0:1,0:2,0:3"}, "ranges", '"0:1,0:2,0:3"'),
    ],
)
def test_a_plan_that_does_not_fit(settings, field, got):
    with raises(ConfigError, field=f"run-config {field}", got=got):
        RunConfig.parse(settings).plan(4, 100, 2)


# ---- what is taken


def test_values_are_taken_as_users_type_them():
    config = RunConfig.parse({"alpha": 1, "timeout": 5, "decay": 0.8, "min-parties": 2.0, "parties": "0-2, 7"})
    assert (config.alpha, config.timeout, config.min_parties, config.decay_value()) == (1.0, 5.0, 2, 0.8)
    assert config.party_numbers() == {0, 1, 2, 7}
    assert (RunConfig().decay_value(), RunConfig().party_numbers()) == ("auto", None)
    assert RunConfig.parse({"learning-rate": 0.1}) == RunConfig()  # keys of other apps are left alone
    for setting in ({"scaling": "auto"}, {"effort": "thorough"}, {"gram": 64}):  # a secure run learns as one in clear
        RunConfig.parse(SECURE | setting)


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("cat, dog", ["cat", "dog"]),
        ("0,1,2", [0, 1, 2]),
        ('["0", "1"]', ["0", "1"]),
        ("[3, 1]", [3, 1]),
        ("1_0,2", ["1_0", "2"]),
        ("01,1", ["01", "1"]),
        ("", []),
        ('["a, b", "c"]', ["a, b", "c"]),
    ],
)
def test_lists_of_classes_and_of_feature_names(text, classes):
    config = RunConfig.parse({"classes": text})
    assert config.class_list() == classes
    if not text.startswith("[3"):  # names are texts
        config = RunConfig.parse({"feature-names": text, "n-features": len(classes)})
        assert config.names("feature_names") == tuple(map(str, classes))


def test_held_out_figures_are_for_simulations():
    private = RunConfig.parse({"epsilon": 1})
    assert (private.evaluates(simulated=True), private.evaluates(simulated=False)) == (True, False)
    assert RunConfig().evaluates(simulated=False)
    assert RunConfig.parse({"epsilon": 1, "evaluate": True}).evaluates(simulated=False)
    assert not RunConfig.parse({"evaluate": False}).evaluates(simulated=True)


@pytest.mark.parametrize("action", ["join", "withdraw", "update", "evaluate", "resume"])
def test_runs_that_go_on_with_noisy_counts_have_no_exact_results_unless_asked(action):
    later = {"action": action, "federation": "f.npz"}
    assert RunConfig.parse(later).evaluates(False, goes_on_with_noise=True) == (action == "evaluate")
    assert RunConfig.parse(later).evaluates(False)
    assert RunConfig.parse(later | {"evaluate": True}).evaluates(False, True)


@pytest.mark.parametrize(
    ("settings", "simulated", "ignored"),
    [
        ({}, True, []),
        ({}, False, []),
        ({"n-features": 3, "classes": "0,1", "min-available": 2}, True, ["n-features", "classes"]),
        ({"n-examples": 9}, True, ["n-examples"]),
        ({"feature-names": "a"}, True, ["feature-names"]),
        ({"test-fraction": 0, "min-examples": 9, "seed": 3}, False, ["test-fraction", "min-examples"]),
        ({"check-pooled": False, "min-parties": 2}, False, ["check-pooled"]),
    ],
)
def test_settings_that_a_simulation_or_a_deployment_ignores(settings, simulated, ignored):
    assert RunConfig.parse(settings).ignored(simulated=simulated) == ignored


def test_nodes_that_are_taken():
    assert NodeConfig.parse({"data-path": "a.csv", "party-id": 7}).party_id == "7"
    assert NodeConfig.parse({"data-path": "a.csv", "partition-id": 0, "num-partitions": 2}).data_path == "a.csv"
    assert NodeConfig.parse({"data-path": "a.csv", "secure": True, "evaluate": True}).evaluate
    assert NodeConfig.parse(PRIVATE | {"max-delta": 0.01}).policy() == Policy(1.0, 0.01)
    more = {"neighbours": "replace-one", "records-per-person": 2, "secure": True}
    expected = Policy(1.0, 0.0, neighbours="replace-one", records_per_person=2, secure_sum=True)
    assert NodeConfig.parse(PRIVATE | more).policy() == expected


# ---- the plan of the hashes


def test_a_plan_takes_what_is_given_and_leaves_the_rest_open():
    settings = {"hash-dim": 300, "seed": 3, "scaling": "none"}
    (spec,) = RunConfig.parse(settings).plan(64, 1000, 10).specs()
    assert (spec.n_features, spec.hash_dim, spec.seed, spec.signed, spec.center) == (64, 300, 3, False, None)
    assert 1 <= spec.hash_nnz <= 300
    (shifted,) = RunConfig.parse({"center": "8", "scale": "0.5, 2"}).plan(2, None, 3).specs()
    assert (shifted.center, shifted.scale, shifted.signed) == ((8.0, 8.0), (0.5, 2.0), True)
    paper = RunConfig.parse({"scaling": "none"}).plan(4, None, 2)
    assert paper.specs() == HashPlan(4, 2, signed=False, scaling=None).specs()  # as of FlyNNClassifier.paper()
    assert (paper.most_members, paper.specs()[0].signed) == (1, False)


AUTO = [{}, {"scaling": "default", "effort": "thorough"}, {"decay": 0.5, "rule": "novelty"}, SECURE]
NONE = [{"epsilon": 1.0}, PRIVATE_AND_SECURE, {"center": "1"}, {"scale": "2"}, {"ranges": "0:16"}, {"scaling": "none"}]


@pytest.mark.parametrize(
    ("settings", "scaling"), [*((each, "auto") for each in AUTO), *((each, "none") for each in NONE)]
)
def test_the_default_scaling_is_the_choice_among_six_where_nothing_forbids_it(settings, scaling):
    config = RunConfig.parse(settings)
    assert config.resolved().scaling == scaling
    assert config.resolved().resolved() == config.resolved()
    plan = config.plan(8, 100, 3)
    assert plan == config.resolved().plan(8, 100, 3)
    assert len(placeholder_specs(plan)) == (6 if scaling == "auto" else 1)


SIZES = {"quick": (1, [(2**14, 64)]), "default": (3, [(2**15, 128)] * 6), "thorough": (3, [(2**15, 128)] * 6)}


@pytest.mark.parametrize("effort", SIZES)
def test_effort_and_members_are_those_of_the_plan(effort):
    plan, (members, sizes) = RunConfig.parse({"effort": effort}).plan(8, 100, 3), SIZES[effort]
    assert (plan.effort, plan.most_members, plan.has_gram) == (effort, members, effort == "thorough")
    assert [(spec.hash_dim, spec.hash_nnz) for spec in placeholder_specs(plan)] == sizes
    assert (RunConfig().effort, RunConfig().plan(8, 100, 3).max_members) == ("default", 3)


@pytest.mark.parametrize("more", [{}, {"epsilon": 1.0}, SECURE])
def test_public_ranges_make_rank_codes_without_a_look_at_the_data(more):
    plan = RunConfig.parse({"ranges": "0:16", **more}).plan(3, 100, 2)
    (spec,) = plan.specs()
    assert (plan.needs_columns, spec.coding) == (False, "bumps")
    assert spec.edges == spec.edges[:1] * 3
    assert (spec.edges[0][0], spec.edges[0][-1]) == (0.25, 15.75)
    (other,) = RunConfig.parse({"ranges": "0:16, -1.5:1e3,2:3", **more}).plan(3, 100, 2).specs()
    assert other.edges[0] == spec.edges[0]
    assert -1.5 < other.edges[1][0] < other.edges[1][-1] < 1e3


def test_very_wide_samples_are_left_as_they_are_by_auto():
    needs = [RunConfig(scaling="auto").plan(n, None, 2).needs_columns for n in (2**14, 2**14 + 1)]
    assert needs == [True, False]
