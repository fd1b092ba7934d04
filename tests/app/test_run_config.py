"""Run and node settings: values taken and refused; pyproject.toml agrees with the table."""

from __future__ import annotations

import json
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from flwr_flynn.app.node_config import POLICY_KEYS, NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.errors import ConfigError
from flwr_flynn.model.candidates import HashPlan, placeholder_specs
from flwr_flynn.privacy.ledger import Policy
from tests.raising import raises

ROOT = Path(__file__).parents[2]


def test_pyproject_declares_every_key_with_its_default() -> None:
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


def test_every_setting_has_a_group_and_an_example_of_each_fact() -> None:
    groups = {row.group: set() for row in RunConfig.rows()}
    for row in RunConfig.rows():
        groups[row.group].add(row.name)
    assert {"alpha", "partitioner_options"} <= groups["partitioner"]
    assert {"hash_dim", "scaling"} <= groups["hash"]
    assert {"epsilon", "delta"} <= groups["privacy"]
    assert "" not in groups
    facts = {row.name: row.facts for row in RunConfig.rows()}
    assert facts["alpha"].simulation_only
    assert facts["classes"].deployment_only
    assert facts["seed"].fixed_by_federation == ("join", "withdraw", "update", "evaluate", "resume")
    assert facts["max_examples"].fixed_by_federation == ("withdraw", "evaluate")
    assert facts["min_examples"].fixed_by_federation == ()
    assert not any(fact.simulation_only and fact.deployment_only for fact in facts.values())
    assert {"state-path", "max-delta"} <= set(POLICY_KEYS) < {row.key for row in NodeConfig.rows()}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("alpha", 0, "expected a number above 0, got 0"),
        ("alpha", "x", 'expected a number above 0, got "x"'),
        ("alpha", float("nan"), "expected a number above 0, got NaN"),
        ("alpha", True, "expected a number above 0, got true"),
        ("test-fraction", 1, "expected a number from 0 below 1, got 1"),
        ("test-fraction", 1.5, "expected a number from 0 below 1, got 1.5"),
        ("hash-dim", -1, "expected an integer of at least 0, got -1"),
        ("hash-dim", 2.5, "expected an integer of at least 0, got 2.5"),
        ("nodes-at-a-time", -1, "expected an integer from 0 to 1000000, got -1"),
        ("check-pooled", 1, "expected true or false, got 1"),
        ("evaluate", 1, "expected one of auto, true, false, got 1"),
        ("alpha", 10**400, "expected a number above 0, got 1" + 79 * "0"),
        ("nodes-at-a-time", -(10**400), "expected an integer from 0 to 1000000, got -1" + 78 * "0"),
        ("effort", "maximal", 'expected one of quick, default, thorough, got "maximal"'),
        ("gram", -1, 'expected "auto" or an integer from 0 to 4096, got "-1"'),
        ("gram", 15, 'expected 0, or at least 16, got "15"'),
        ("gram", 4097, 'expected "auto" or an integer from 0 to 4096, got "4097"'),
        ("min-examples", 0, "expected an integer of at least 1, got 0"),
        ("rule", "best", 'expected one of balanced, novelty, got "best"'),
        ("dataset", True, "expected a string, got true"),
        ("timeout", 1e12, "expected a number from 0 to 1e+09, got 1000000000000.0"),
        ("decay", 1, 'expected "auto" or a number from 0 below 1, got "1"'),
        ("decay", "fast", 'expected "auto" or a number from 0 below 1, got "fast"'),
    ],
)
def test_a_bad_value_is_one_line_with_key_expected_and_got(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({key: value})
    error = caught.value
    assert error.field == f"run-config {key}"
    assert f"expected {error.expected}, got {error.got}" == expected


def test_numbers_are_taken_as_users_type_them() -> None:
    config = RunConfig.parse({"alpha": 1, "timeout": 5, "decay": 0.8, "min-parties": 2.0})
    assert (config.alpha, config.timeout, config.min_parties) == (1.0, 5.0, 2)
    assert config.decay_value() == 0.8
    assert RunConfig().decay_value() == "auto"


def test_keys_of_other_apps_are_left_alone() -> None:
    assert RunConfig.parse({"learning-rate": 0.1}) == RunConfig()


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
    ],
)
def test_class_list(text: str, classes: list[str | int]) -> None:
    assert RunConfig.parse({"classes": text}).class_list() == classes


def test_feature_names() -> None:
    lists = {"": (), "age, body weight,1": ("age", "body weight", "1"), '["a, b", "c"]': ("a, b", "c")}
    for text, names in lists.items():
        config = RunConfig.parse({"feature-names": text, "n-features": len(names)})
        assert config.names("feature_names") == names


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        *(({"classes": text}, "classes") for text in ("a,a", "a,,b", '["a", 1]', "[1.5]", "[", '{"a": 1}, x, x')),
        ({"classes": "[" * 100_000}, "classes"),
        *(({"feature-names": text}, "feature-names") for text in ("a,a", "a,,b", "[1, 2]", "[", '["a", "a"]')),
        ({"feature-names": "a,b", "n-features": 3}, "n-features"),
    ],
)
def test_lists_that_are_none_are_refused(settings: dict[str, Any], field: str) -> None:
    with raises(ConfigError, field=f"run-config {field}"):
        RunConfig.parse(settings)


# ---- settings that exclude each other

SECURE = {"secure": True, "max-examples": 100}
PRIVATE_AND_SECURE = {"epsilon": 1.0, "delta": 1e-5, "honest-parties": 4}
EVALUATE = {"action": "evaluate", "federation": "f.npz"}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"min-available": 2, "min-parties": 3}, "min-parties"),
        # public transformations of the columns, and learned ones
        *(
            ({"scaling": "auto", name: value}, name)
            for name, value in (("center", "1"), ("scale", "1"), ("ranges", "0:1"))
        ),
        ({"ranges": "0:1", "center": "1"}, "ranges"),
        ({"ranges": "0:1", "scale": "1"}, "ranges"),
        # noise
        ({"delta": 1e-5}, "delta"),
        ({"noise": "seeded"}, "noise"),
        ({"n-released": 4}, "n-released"),
        ({"epsilon": 1, "delta": 1e-5, "n-released": 4}, "n-released"),
        *(({**private, "scaling": "auto"}, "scaling") for private in ({"epsilon": 1.0}, PRIVATE_AND_SECURE)),
        *(({**more, "gram": 64}, "gram") for more in ({"epsilon": 1.0}, PRIVATE_AND_SECURE, EVALUATE)),
        # secure sums
        ({"secure": True}, "max-examples"),
        ({**SECURE, "nodes-at-a-time": 5}, "nodes-at-a-time"),
        ({**SECURE, "epsilon": 1.0, "delta": 1e-5}, "honest-parties"),
        *(({**more, "honest-parties": 3}, "honest-parties") for more in ({}, SECURE, {"epsilon": 1.0})),
        ({**PRIVATE_AND_SECURE, "nodes-at-a-time": 5}, "nodes-at-a-time"),
        # a federation that exists
        ({"action": "join"}, "federation"),
        ({"action": "join", "federation": "f.npz", "seed": 3}, "seed"),
        ({"action": "resume", "federation": "f.npz", "classes": "a,b"}, "classes"),
        *(({"parties": text}, "parties") for text in ("a", "1-", "3-2", "-1", "1,,2", "0-9999999")),
        *(
            ({"ranges": text}, "ranges")
            for text in ("16", "0:1:2", "a:b", "3:3", "2:1", "0:inf", "nan:1", "0:1,", ":", "0:1;1:2")
        ),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], field: str) -> None:
    with raises(ConfigError, field=f"run-config {field}"):
        RunConfig.parse(settings)


@pytest.mark.parametrize("setting", [{"scaling": "auto"}, {"effort": "thorough"}, {"gram": 64}])
def test_a_secure_run_learns_as_one_in_clear(setting: dict[str, Any]) -> None:
    RunConfig.parse({**SECURE, **setting})


def test_parties_are_numbers_and_ranges() -> None:
    assert RunConfig().party_numbers() is None
    assert RunConfig.parse({"parties": "0-2, 7"}).party_numbers() == {0, 1, 2, 7}


def test_held_out_figures_are_for_simulations() -> None:
    private = RunConfig.parse({"epsilon": 1})
    assert (private.evaluates(simulated=True), private.evaluates(simulated=False)) == (True, False)
    assert RunConfig().evaluates(simulated=False)
    assert RunConfig.parse({"epsilon": 1, "evaluate": True}).evaluates(simulated=False)
    assert not RunConfig.parse({"evaluate": False}).evaluates(simulated=True)


@pytest.mark.parametrize("action", ["join", "withdraw", "update", "evaluate", "resume"])
def test_runs_that_go_on_with_noisy_counts_have_no_exact_results_unless_asked(action: str) -> None:
    later = RunConfig.parse({"action": action, "federation": "f.npz"})
    assert later.evaluates(False, goes_on_with_noise=True) == (action == "evaluate")
    assert later.evaluates(False)
    assert RunConfig.parse({"action": action, "federation": "f.npz", "evaluate": True}).evaluates(False, True)


def test_settings_that_a_simulation_or_a_deployment_ignores() -> None:
    assert RunConfig().ignored(simulated=True) == RunConfig().ignored(simulated=False) == []
    config = RunConfig.parse({"n-features": 3, "classes": "0,1", "n-examples": 9, "min-available": 2})
    assert config.ignored(simulated=True) == ["n-features", "n-examples", "classes"]
    assert RunConfig(feature_names="a").ignored(simulated=True) == ["feature-names"]
    config = RunConfig.parse(
        {"test-fraction": 0, "min-examples": 9, "check-pooled": False, "seed": 3, "min-parties": 2}
    )
    assert config.ignored(simulated=False) == ["test-fraction", "min-examples", "check-pooled"]


# ---- the plan of the hashes


def test_a_plan_takes_what_is_given_and_leaves_the_rest_open() -> None:
    settings = {"hash-dim": 300, "seed": 3, "scaling": "none"}
    (spec,) = RunConfig.parse(settings).plan(64, 1000, 10).specs()
    assert (spec.n_features, spec.hash_dim, spec.seed, spec.signed) == (64, 300, 3, False)
    assert 1 <= spec.hash_nnz <= 300
    assert spec.center is None
    (shifted,) = RunConfig.parse({"center": "8", "scale": "0.5, 2"}).plan(2, None, 3).specs()
    assert (shifted.center, shifted.scale, shifted.signed) == ((8.0, 8.0), (0.5, 2.0), True)


@pytest.mark.parametrize(
    ("settings", "field", "got"),
    [
        ({"center": "1,2"}, "center", '"1,2"'),
        ({"center": "inf"}, "center", '"inf"'),
        ({"scale": "0"}, "scale", "0.0 at index 0"),
        ({"ranges": "0:1,0:2,0:3"}, "ranges", '"0:1,0:2,0:3"'),
    ],
)
def test_a_plan_that_does_not_fit(settings: dict[str, Any], field: str, got: str) -> None:
    with raises(ConfigError, field=f"run-config {field}", got=got):
        RunConfig.parse(settings).plan(4, 100, 2)


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        ({}, "auto"),
        ({"scaling": "default", "effort": "thorough"}, "auto"),
        ({"decay": 0.5, "rule": "novelty"}, "auto"),
        ({"epsilon": 1.0}, "none"),
        (SECURE, "auto"),
        (PRIVATE_AND_SECURE, "none"),
        ({"center": "1"}, "none"),
        ({"scale": "2"}, "none"),
        ({"ranges": "0:16"}, "none"),
        ({"scaling": "none"}, "none"),
    ],
)
def test_the_default_scaling_is_the_choice_among_six_where_nothing_forbids_it(
    settings: dict[str, Any], scaling: str
) -> None:
    config = RunConfig.parse(settings)
    assert config.resolved().scaling == scaling
    assert config.resolved().resolved() == config.resolved()
    plan = config.plan(8, 100, 3)
    assert plan == config.resolved().plan(8, 100, 3)
    assert len(placeholder_specs(plan)) == (6 if scaling == "auto" else 1)


def test_effort_and_members_are_those_of_the_plan() -> None:
    default = RunConfig().plan(8, 100, 3)
    assert (default.effort, default.max_members, default.most_members) == ("default", 3, 3)
    sizes = {}
    for effort, members in (("quick", 1), ("default", 3), ("thorough", 3)):
        plan = RunConfig.parse({"effort": effort}).plan(8, 100, 3)
        assert (plan.effort, plan.most_members, plan.has_gram) == (effort, members, effort == "thorough")
        sizes[effort] = [(spec.hash_dim, spec.hash_nnz) for spec in placeholder_specs(plan)]
    assert sizes == {"quick": [(2**14, 64)], "default": [(2**15, 128)] * 6, "thorough": [(2**15, 128)] * 6}
    assert RunConfig(scaling="none").plan(8, 100, 3).most_members == 1


@pytest.mark.parametrize("more", [{}, {"epsilon": 1.0}, SECURE])
def test_public_ranges_make_rank_codes_without_a_look_at_the_data(more: dict[str, Any]) -> None:
    plan = RunConfig.parse({"ranges": "0:16", **more}).plan(3, 100, 2)
    assert not plan.needs_columns
    (spec,) = plan.specs()
    assert spec.coding == "bumps"
    assert spec.edges is not None
    assert len(spec.edges) == 3
    assert all(edges == spec.edges[0] for edges in spec.edges)
    assert (spec.edges[0][0], spec.edges[0][-1]) == (0.25, 15.75)
    (other,) = RunConfig.parse({"ranges": "0:16, -1.5:1e3,2:3", **more}).plan(3, 100, 2).specs()
    assert other.edges is not None
    assert other.edges[0] == spec.edges[0]
    assert -1.5 < other.edges[1][0] < other.edges[1][-1] < 1e3


def test_very_wide_samples_are_left_as_they_are_by_auto() -> None:
    assert RunConfig(scaling="auto").plan(2**14, None, 2).needs_columns
    assert not RunConfig(scaling="auto").plan(2**14 + 1, None, 2).needs_columns


def test_the_paper_s_hash_is_that_of_raw_columns() -> None:
    plan = RunConfig.parse({"scaling": "none"}).plan(4, None, 2)
    assert plan.specs() == HashPlan(4, 2, signed=False, scaling=None).specs()  # as of FlyNNClassifier.paper()
    assert (plan.most_members, plan.specs()[0].signed) == (1, False)


# ---- nodes

PRIVATE_NODE = {"data-path": "a.csv", "max-epsilon": 1.0, "state-path": "/var/lib/flynn/state"}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"party-id": "site 1"}, "data-path"),
        ({"data-path": "a.csv", "test-fracton": 0}, "test-fracton"),
        (PRIVATE_NODE | {"max-delta": 0.011}, "max-delta"),
        *((PRIVATE_NODE | {"state-path": path}, "state-path") for path in ("", "/", "/srv/..", "state")),
        *((PRIVATE_NODE | {key: 1}, key) for key in ("mechanisms", "split-seed", "max-releases")),  # of 0.8
        *((PRIVATE_NODE | {"max-epsilon": bound}, "max-epsilon") for bound in (-1, 0)),
        (PRIVATE_NODE | {"composition": "zcdp"}, "max-delta"),
        *(({"data-path": "a.csv", "evaluate": value}, "max-epsilon") for value in (True, False)),
    ],
)
def test_nodes_that_are_refused(settings: dict[str, Any], field: str) -> None:
    with raises(ConfigError, field=f"node-config {field}"):
        NodeConfig.parse(settings)


def test_nodes_that_are_taken() -> None:
    assert NodeConfig.parse({"data-path": "a.csv", "party-id": 7}).party_id == "7"
    assert NodeConfig.parse({"data-path": "a.csv", "partition-id": 0, "num-partitions": 2}).data_path == "a.csv"
    assert NodeConfig.parse({"data-path": "a.csv", "secure": True, "evaluate": True}).evaluate
    assert NodeConfig.parse(PRIVATE_NODE | {"max-delta": 0.01}).policy() == Policy(1.0, 0.01)
    more = {"neighbours": "replace-one", "records-per-person": 2, "secure": True}
    expected = Policy(1.0, 0.0, neighbours="replace-one", records_per_person=2, secure_sum=True)
    assert NodeConfig.parse(PRIVATE_NODE | more).policy() == expected


@pytest.mark.parametrize("key", sorted(RunConfig.gone))
def test_a_setting_of_an_earlier_version_is_refused_and_never_ignored(key: str) -> None:
    with raises(ConfigError, field=f"run-config {key}"):
        RunConfig.parse({key: 0})
