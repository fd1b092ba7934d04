"""The dry run tells what a run then asks for and sends, and touches nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flwr_flynn.app import dry_run
from flwr_flynn.app.disclosure_file import KINDS
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.federated.phase import TREES
from tests.app.test_server_app import Loopback, Runner, run

__all__ = ["run"]


class Unasked(Loopback):
    """A grid that fails if anybody is asked, or looked for."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__([], *args[1:], **more)

    def get_node_ids(self) -> list[int]:
        raise AssertionError("looked for parties")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        raise AssertionError("asked")


def planned(run: Runner, **settings: Any) -> dict[str, Any]:
    """plan.json of a dry run, beside which nothing changes."""
    before = files(run)
    grid = run.grid
    run.grid = Unasked
    plan = run(**settings, dry_run=True)
    run.grid = grid
    (run.out / "plan.json").unlink()
    assert files(run) == before
    return plan


def files(run: Runner) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def agrees(plan: dict[str, Any], report: dict[str, Any]) -> None:
    """The phases and kinds of a plan are those that the run then had."""
    phases = {phase["name"]: phase for phase in plan["phases"]}
    messages = {}
    for name, message in report["messages"].items():
        # Levels of trees are one line of a plan, which may have more of them.
        if name in TREES:
            name = "trees 1 to 16"
        messages[name] = message
    if "forest" not in messages:
        phases.pop("forest", None)  # trees without a gain are not calibrated
    # The last phases may be missing: all others are away at a withdrawal.
    assert list(phases)[: len(messages)] == list(messages)
    for name, message in messages.items():
        assert phases[name]["kind"] == message["kind"], name
        assert bool(phases[name]["content"]) == (message["kind"] != "nothing"), name


PLAIN = {"hash_dim": 128, "scaling": "none"}
RUNS = [
    {"n_examples": 40},
    {"n_examples": 40, "hash_dim": 512, "effort": "thorough"},
    PLAIN | {"decay": "0.5"},
    PLAIN | {"evaluate": "false"},
    PLAIN | {"rule": "novelty", "decay": "0.5"},
]


@pytest.mark.parametrize("settings", RUNS, ids=str)
def test_a_run_does_what_its_dry_run_told(settings, run, capsys):
    run.party = {"products": True, "min_examples": 1}
    plan = planned(run, **settings)
    shown = capsys.readouterr().out
    report = run(**settings)
    agrees(plan, report)
    assert report["class_sizes"].keys() == {"Ulm", "Mallory"}
    assert sum(map(sum, report["class_sizes"].values())) == report["examples"] == 40
    for phase in plan["phases"]:
        assert f"{phase['name']}: {KINDS[phase['kind']]}" in shown
        assert phase["content"] in shown
    assert plan["rounds"] == plan["phases"][-1]["round"]
    assert plan["memory"]["server"]
    is_thorough = settings.get("effort") == "thorough"
    for needs in plan["memory"].values():
        assert ("100 trees (trees sets their number)" in needs) == is_thorough
    assert (report["trees"] is not None) == is_thorough
    keys = [setting["key"] for setting in plan["sites"]]
    assert set(keys) <= {row.key for row in NodeConfig.rows()}
    assert ("of trees, leave in clear" in shown) == ("products" in keys)
    assert ("products" in keys) == (
        settings.keys() <= {"n_examples", "hash_dim", "effort"}
    )
    assert all(f"    {key}" in shown for key in keys)


def test_a_private_dry_run_names_the_policy_that_admits_it(run):
    run.make_private()
    settings = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "scale": "1",
        "n_examples": 40,
        "evaluate": "true",
        "any_noise": True,
    }
    plan = planned(run, **settings)
    needs = {setting["key"]: setting["value"] for setting in plan["sites"]}
    assert needs["max-epsilon"] == 1.0
    assert needs["max-delta"] == 1e-5
    assert needs["evaluate"] is True
    # Each party has noise of its own: nothing is assumed of the others.
    assert len(plan["privacy"]) == 1
    run.party["evaluates"] = True
    report = run(**settings)
    assert report["privacy"]["notes"] == plan["privacy"]
    agrees(plan, report)
    assert report["class_sizes"] is None


def test_a_secure_dry_run_knows_the_memory_of_its_sums(run):
    settings = {
        "secure": True,
        "max_examples": 20,
        "min_available": 3,
        "min_parties": 3,
        "n_examples": 60,
    }
    plan = planned(run, **settings, hash_dim=64, nodes=(1, 2, 3))
    kinds = {phase["name"]: phase["kind"] for phase in plan["phases"]}
    # The evaluation hands out the model alone: results would be a secure sum, too.
    assert kinds.pop("evaluation") == "nothing"
    assert set(kinds.values()) == {"secure"}
    assert plan["memory"]["party"]["the secure sum of counts"] == 64 * 5 * 3 * 64


def test_a_dry_run_of_each_action_leaves_the_federation_as_it_is(run):
    given = {"federation": str(run.folder / "kept.npz")}
    assert planned(run, **given)["action"] == "train"
    run(**given)
    for action, phases in {
        "join": ["counts", "selection", "calibration", "evaluation"],
        "evaluate": ["evaluation"],
    }.items():
        plan = planned(run, action=action, **given)
        assert [phase["name"] for phase in plan["phases"]] == phases
        agrees(plan, run(action=action, **given, nodes=(3,)))
    run.party["leaves"] = True
    plan = planned(run, action="withdraw", **given)
    assert {"key": "leave", "value": True}.items() <= plan["sites"][3].items()
    agrees(plan, run(action="withdraw", **given, nodes=(3,)))


def test_hostile_names_are_told_in_part(run):
    names = ",".join(f"x{i}" for i in range(40))
    plan = planned(run, n_features=40, feature_names=names)
    assert "x19 and 20 more" in plan["sites"][0]["reason"]
    assert len("\n".join(dry_run.lines(plan))) < 10000
