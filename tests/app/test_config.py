"""Run and node settings: values taken and refused; pyproject.toml agrees with the table."""

from __future__ import annotations

import json
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.app.config import POLICY_KEYS, NodeConfig, RunConfig
from flwr_flynn.errors import ConfigError
from flwr_flynn.model.candidates import foreseen
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
    assert facts["seed"].fixed_by_federation == ("join", "withdraw", "evaluate", "resume")
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
        ("rounds", -1, "expected an integer from 0 to 1000, got -1"),
        ("check-pooled", 1, "expected true or false, got 1"),
        ("signed", 1, "expected one of auto, true, false, got 1"),
        ("alpha", 10**400, "expected a number above 0, got 1" + 79 * "0"),
        ("rounds", -(10**400), "expected an integer from 0 to 1000, got -1" + 78 * "0"),
        ("effort", "maximal", 'expected one of quick, default, thorough, got "maximal"'),
        ("refine-rounds", -1, "expected an integer from 0 to 1000, got -1"),
        ("refine-rounds", 1001, "expected an integer from 0 to 1000, got 1001"),
        ("gram", -1, "expected an integer from 0 to 4096, got -1"),
        ("gram", 15, "expected 0, or at least 16, got 15"),
        ("gram", 4097, "expected an integer from 0 to 4096, got 4097"),
        ("max-members", 0, "expected an integer from 1 to 16, got 0"),
        ("max-members", 17, "expected an integer from 1 to 16, got 17"),
        ("min-examples", 0, "expected an integer of at least 1, got 0"),
        ("rule", "best", 'expected one of balanced, novelty, bayes, got "best"'),
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
    config = RunConfig.parse({"alpha": 1, "timeout": 5, "decay": 0.8, "rounds": 2.0})
    assert (config.alpha, config.timeout, config.rounds) == (1.0, 5.0, 2)
    assert config.decay_value() == 0.8
    assert RunConfig().decay_value() == "auto"


def test_keys_of_other_apps_are_left_alone() -> None:
    assert RunConfig.parse({"learning-rate": 0.1}) == RunConfig()


def test_min_parties_cannot_exceed_min_available() -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({"min-available": 2, "min-parties": 3})
    assert (caught.value.field, caught.value.got) == ("run-config min-parties", "3")


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


@pytest.mark.parametrize("text", ["a,a", "a,,b", '["a", 1]', "[1.5]", "[", '{"a": 1}, x, x', "[" * 100_000])
def test_bad_class_list(text: str) -> None:
    with raises(ConfigError, field="run-config classes"):
        RunConfig.parse({"classes": text}).class_list()


def test_feature_names() -> None:
    assert RunConfig.parse({}).feature_list() == ()
    assert RunConfig.parse({"feature-names": "age, body weight,1"}).feature_list() == ("age", "body weight", "1")
    assert RunConfig.parse({"feature-names": '["a, b", "c"]', "n-features": 2}).feature_list() == ("a, b", "c")
    for text in ("a,a", "a,,b", "[1, 2]", "[", '["a", "a"]'):
        with raises(ConfigError, field="run-config feature-names"):
            RunConfig.parse({"feature-names": text}).feature_list()
    with raises(ConfigError, field="run-config n-features", got=3):
        RunConfig.parse({"feature-names": "a,b", "n-features": 3}).feature_list()


def test_a_plan_takes_what_is_given_and_leaves_the_rest_open() -> None:
    settings = {"hash-dim": 300, "row-nnz": 5, "seed": 3, "signed": True, "scaling": "none"}
    (spec,) = RunConfig.parse(settings).plan(64, 1000, 10).specs()
    assert (spec.n_features, spec.hash_dim, spec.row_nnz, spec.seed, spec.signed) == (64, 300, 5, 3, True)
    assert 1 <= spec.hash_nnz <= 300
    assert spec.signed
    assert spec.center is None
    (shifted,) = RunConfig.parse({"center": "8", "scale": "0.5, 2"}).plan(2, None, 3).specs()
    assert (shifted.center, shifted.scale) == ((8.0, 8.0), (0.5, 2.0))


@pytest.mark.parametrize(
    ("settings", "field", "got"),
    [
        ({"row-nnz": 9, "scaling": "none"}, "row-nnz", "9"),
        ({"row-nnz": 99}, "row-nnz", "99"),  # for no candidate
        ({"hash-dim": 10, "hash-nnz": 11}, "hash-nnz", "11"),
        ({"center": "1,2"}, "center", '"1,2"'),
        ({"center": "inf"}, "center", '"inf"'),
        ({"scale": "0"}, "scale", "0.0 at index 0"),
    ],
)
def test_a_plan_that_does_not_fit(settings: dict[str, Any], field: str, got: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(settings).plan(4, 100, 2)
    assert (caught.value.field, caught.value.got) == (f"run-config {field}", got)


@pytest.mark.parametrize(
    ("settings", "signed"),
    [
        ({"scaling": "none"}, False),
        ({"center": "1"}, True),
        ({"center": "1", "signed": False}, False),
        ({"scaling": "none", "signed": True}, True),
        ({"preset": "paper"}, False),
    ],
)
def test_rows_are_signed_where_columns_are_scaled(settings: dict[str, Any], signed: bool) -> None:
    (spec,) = foreseen(RunConfig.parse(settings).resolved().plan(20, None, 3))
    assert spec.signed == signed


def test_scaling_auto_excludes_one_by_hand() -> None:
    for name, value in (("center", "1"), ("scale", "1"), ("ranges", "0:1")):
        with pytest.raises(ConfigError) as caught:
            RunConfig.parse({"scaling": "auto", name: value})
        assert (caught.value.field, caught.value.expected) == (f"run-config {name}", "none beside scaling = auto")


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        ({}, "auto"),
        ({"scaling": "default", "effort": "quick", "max-members": 1}, "auto"),
        ({"decay": 0.5, "rule": "bayes"}, "auto"),
        ({"epsilon": 1.0}, "none"),
        ({"secure": True, "max-examples": 100}, "auto"),
        ({"secure": True, "max-examples": 100, "epsilon": 1.0, "delta": 1e-5}, "none"),
        ({"center": "1"}, "none"),
        ({"scale": "2"}, "none"),
        ({"ranges": "0:16"}, "none"),
        ({"preset": "paper"}, "none"),
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
    assert len(foreseen(plan)) == (6 if scaling == "auto" else 1)


@pytest.mark.parametrize("more", [{}, {"delta": 1e-5, "secure": True, "max-examples": 100}])
def test_nothing_is_learned_of_the_columns_in_private_runs(more: dict[str, Any]) -> None:
    with raises(ConfigError, field="run-config scaling"):
        RunConfig.parse({"epsilon": 1.0, **more, "scaling": "auto"})


def test_a_secure_run_learns_and_refines_as_one_in_clear_and_aligns_nothing() -> None:
    secure = {"secure": True, "max-examples": 100}
    for setting in (
        {"effort": "thorough", "max-members": 2},
        {"refine-rounds": 3},
        {"gram": 64},
    ):
        RunConfig.parse({**secure, **setting})
    with raises(ConfigError, field="run-config align"):
        RunConfig.parse({**secure, "align": True})


@pytest.mark.parametrize(
    "setting",
    [{"epsilon": 1.0}, {"epsilon": 1.0, "delta": 1e-5, "secure": True, "max-examples": 100}, {"action": "evaluate"}],
)
def test_private_and_finished_runs_refine_nothing_and_have_no_new_gram_matrix(setting: dict[str, Any]) -> None:
    more = {"federation": "f.npz"} if "action" in setting else {}
    with raises(ConfigError, field="run-config refine-rounds"):
        RunConfig.parse({**setting, **more, "refine-rounds": 3})
    with raises(ConfigError, field="run-config gram"):
        RunConfig.parse({**setting, **more, "gram": 64})


def test_the_gram_matrix_and_refinement_exclude_each_other() -> None:
    with raises(ConfigError, field="run-config gram"):
        RunConfig.parse({"gram": 64, "refine-rounds": 1})


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"trusted": ""}, "trusted"),
        ({"groups": 0}, "trusted"),
        ({"groups": 257}, "groups"),
        ({"scaling": "auto"}, "scaling"),
        ({"refine-rounds": 2}, "refine-rounds"),
        ({"gram": 64}, "gram"),
        ({"align": True}, "align"),
        ({"epsilon": 1.0}, "epsilon"),
        ({"secure": True, "max-examples": 100}, "secure"),
        ({"action": "withdraw", "federation": "f.npz"}, "groups"),
        ({"action": "evaluate", "federation": "f.npz"}, "groups"),
    ],
)
def test_groups_come_with_samples_and_without_what_a_party_can_spoil(more: dict[str, Any], field: str) -> None:
    settings = {"groups": 40, "trusted": "mine.npz"}
    assert RunConfig.parse(settings).resolved().scaling == "none"
    with raises(ConfigError, field=f"run-config {field}"):
        RunConfig.parse(settings | more)


@pytest.mark.parametrize(("key", "sums"), [("gram", "Gram matrix"), ("refine-rounds", "gradients")])
def test_the_refusal_says_why_groups_exclude_sums_over_all_parties(key: str, sums: str) -> None:
    with raises(ConfigError, field=f"run-config {key}") as error:
        RunConfig.parse({"groups": 40, "trusted": "mine.npz", key: 64})
    reason = f"{sums} are sums over all parties, out of which no group can be taken"
    assert error.value.expected == f"none with groups: {reason}"


def test_effort_and_members_are_those_of_the_plan() -> None:
    default = RunConfig().plan(8, 100, 3)
    assert (default.effort, default.max_members, default.most_members) == ("default", 3, 3)
    sizes = {}
    for effort in ("quick", "default", "thorough"):
        plan = RunConfig.parse({"effort": effort, "max-members": 2}).plan(8, 100, 3)
        assert (plan.effort, plan.most_members) == (effort, 2)
        sizes[effort] = {(spec.hash_dim, spec.hash_nnz) for spec in foreseen(plan)}
    assert sizes == {"quick": {(2**14, 64)}, "default": {(2**15, 128)}, "thorough": {(2**16, 256)}}
    assert RunConfig(scaling="none", max_members=2).plan(8, 100, 3).most_members == 1


@pytest.mark.parametrize("more", [{}, {"epsilon": 1.0}, {"secure": True, "max-examples": 100}])
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


@pytest.mark.parametrize("text", ["16", "0:1:2", "a:b", "3:3", "2:1", "0:inf", "nan:1", "0:1,", ":", "0:1;1:2"])
def test_ranges_that_are_none_are_refused(text: str) -> None:
    with raises(ConfigError, field="run-config ranges"):
        RunConfig.parse({"ranges": text})


def test_there_is_one_range_for_all_features_or_one_for_each() -> None:
    config = RunConfig.parse({"ranges": "0:1,0:2"})
    assert config.plan(2, None, 2).ranges == ((0.0, 0.0), (1.0, 2.0))
    with raises(ConfigError, field="run-config ranges", got=2):
        config.plan(3, None, 2)
    for name in ("center", "scale"):
        with raises(ConfigError, field="run-config ranges"):
            RunConfig.parse({"ranges": "0:1", name: "1"})


def test_very_wide_samples_are_left_as_they_are_by_auto() -> None:
    assert RunConfig(scaling="auto").plan(2**14, None, 2).needs_columns
    assert not RunConfig(scaling="auto").plan(2**14 + 1, None, 2).needs_columns


def test_the_paper_s_preset() -> None:
    paper = RunConfig.parse({"preset": "paper"}).resolved()
    assert (paper.scaling, paper.signed, paper.rule, paper.decay_value()) == ("none", "false", "novelty", 0.5)
    assert RunConfig.parse({"preset": "paper", "decay": 0.2}).resolved().decay_value() == 0.2
    assert RunConfig.parse({"preset": "paper"}).plan(4, None, 2).most_members == 1
    refused = {"scaling": "auto", "signed": True, "rule": "bayes", "center": "1", "ranges": "0:1"}
    for key, value in refused.items():
        with pytest.raises(ConfigError) as caught:
            RunConfig.parse({"preset": "paper", key: value})
        assert caught.value.field == f"run-config {key}"


def test_settings_that_a_simulation_ignores() -> None:
    assert RunConfig().ignored(simulated=True) == []
    config = RunConfig.parse({"n-features": 3, "classes": "0,1", "n-examples": 9, "min-available": 2})
    assert config.ignored(simulated=True) == ["n-features", "n-examples", "classes"]
    assert RunConfig(feature_names="a").ignored(simulated=True) == ["feature-names"]


def test_node_config_needs_a_file() -> None:
    with raises(ConfigError, field="node-config data-path", got="missing"):
        NodeConfig.parse({"party-id": "site 1"})
    assert NodeConfig.parse({"data-path": "a.csv", "party-id": 7}).party_id == "7"


PRIVATE_NODE = {"data-path": "a.csv", "max-epsilon": 1.0, "state-path": "/var/lib/flynn/state"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max-delta": 0.011}, "node-config max-delta"),
        ({"state-path": "/"}, "node-config state-path"),
        ({"state-path": "/srv/.."}, "node-config state-path"),
        ({"state-path": "state"}, "node-config state-path"),
    ],
)
def test_bounds_of_a_private_node(change: dict[str, Any], field: str) -> None:
    assert NodeConfig.parse(PRIVATE_NODE | {"max-delta": 0.01}).max_delta == 0.01
    with pytest.raises(ConfigError) as caught:
        NodeConfig.parse(PRIVATE_NODE | change)
    assert caught.value.field == field


def test_results_may_leave_a_secure_node_without_a_policy() -> None:
    assert NodeConfig.parse({"data-path": "a.csv", "secure": True, "evaluate": True}).evaluate
    for value in (True, False):
        with pytest.raises(ConfigError) as caught:
            NodeConfig.parse({"data-path": "a.csv", "evaluate": value})
        assert caught.value.field == "node-config max-epsilon"


def test_a_misspelled_key_of_a_node_is_refused() -> None:
    with raises(ConfigError, field="node-config test-fracton", got="unknown"):
        NodeConfig.parse({"data-path": "a.csv", "test-fracton": 0})
    assert NodeConfig.parse({"data-path": "a.csv", "partition-id": 0, "num-partitions": 2}).data_path == "a.csv"


def test_settings_that_a_deployment_ignores() -> None:
    assert RunConfig().ignored(simulated=False) == []
    config = RunConfig.parse({"test-fraction": 0, "min-examples": 9, "check-pooled": False, "seed": 3, "rounds": 2})
    assert config.ignored(simulated=False) == ["test-fraction", "min-examples", "check-pooled"]


scalars = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=2),
    st.none(),
)


@given(st.dictionaries(st.sampled_from([row.key for row in RunConfig.rows()]), scalars))
def test_any_mapping_is_taken_or_refused_in_one_line(raw: dict[str, Any]) -> None:
    try:
        config = RunConfig.parse(raw)
        config.class_list()
        config.feature_list()
        config.options()
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
        assert error.field.startswith("run-config ")
