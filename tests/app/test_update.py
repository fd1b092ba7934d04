"""Updates and withdrawals of deployed parties: digests, and killed processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity

from flwr_flynn.app.client_app import deployed_client
from flwr_flynn.app.report import sections
from flwr_flynn.errors import AggregationError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.model.gram import NO_SAMPLES
from tests.app.test_client_app import context
from tests.app.test_server_app import Loopback, Runner, Spoil
from tests.fakes import points


class Deployed(Loopback):
    """Parties with files of their own in `folder`: Ulm has `now`, and had `then`."""

    folder: Path
    ulm: dict[str, Any]

    def __init__(self, nodes: Iterable[int], spoil: Spoil) -> None:
        super().__init__([], spoil)
        bonn = {
            "data-path": str(self.folder / "bonn.npz"),
            "party-id": "Bonn",
            "member-path": "bonn.secret",
        }
        self.clients = {
            node: deployed_client(context([self.ulm, bonn][node - 1])) for node in nodes
        }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    X, y = points(60)
    for name, rows in (
        ("then", slice(40)),
        ("now", slice(3, 42)),
        ("bonn", slice(42, 60)),
    ):
        np.savez(tmp_path / f"{name}.npz", X=X[rows], y=y[rows])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Deployed, "folder", tmp_path, raising=False)
    then = {
        "data-path": "then.npz",
        "party-id": "Ulm",
        "record-path": "left.jsonl",
        "member-path": "ulm.secret",
    }
    monkeypatch.setattr(Deployed, "ulm", then, raising=False)
    runner = Runner(tmp_path)
    runner.grid = Deployed
    runner(federation="kept.npz")
    return runner


def digests(run: Runner, **settings: Any) -> dict[str, Any]:
    """The one change of a run: the same in the report and in the party's record."""
    report = run(federation="kept.npz", **settings)
    records = map(json.loads, Path("left.jsonl").read_text().splitlines())
    changes = [record["change"] for record in records if record["change"]]
    (ours,) = report["updates"]
    assert ours == {"party": "Ulm", **changes[-1]}
    items = sections.participation(report)
    facts = [item for item in items if isinstance(item, tuple)]
    assert facts
    assert not [name for name, _ in facts if "left out" in name]  # Bonn is untouched
    return dict(ours)


def test_both_ends_have_the_digests_of_an_update_and_a_withdrawal(run):
    def of_ulm() -> list[dict[str, Any]]:
        members = Federation.load("kept.npz").members
        return [
            {"examples": member.examples, "sha256": list(member.sha256)}
            for member in members
            if member.name == "Ulm"
        ]

    then = Deployed.ulm
    (first,) = of_ulm()
    Deployed.ulm = then | {"data-path": "now.npz", "previous-path": "then.npz"}
    update = digests(run, action="update")
    (now,) = of_ulm()
    assert update["before"] == first
    assert update["now"]["examples"] == now["examples"]
    # The file has those of the members that were selected.
    gone = {*first["sha256"]} - {NO_SAMPLES}
    assert {*now["sha256"]} <= {*update["now"]["sha256"]} - gone
    Deployed.ulm = then | {"data-path": "now.npz", "leave": True}
    assert digests(run, action="withdraw") == {
        "party": "Ulm",
        "before": now,
        "now": None,
    }
    assert of_ulm() == []


def update_and_die(folder: Path, at: int) -> None:
    """Update the federation, and be killed before a call that syncs or renames a file.

    `at` is the number of the call.
    """
    calls = 0

    def killing(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return call

    os.fsync = killing(os.fsync)
    os.replace = killing(os.replace)
    Deployed.ulm = {"data-path": "now.npz", "party-id": "Ulm"} | THEN
    runner = Runner(folder)
    runner.grid = Deployed
    runner(action="update", federation="kept.npz")


THEN = {"previous-path": "then.npz"}


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.parametrize(
    ("at", "is_saved"),
    [
        pytest.param(1, False, id="while it writes the federation"),
        pytest.param(2, False, id="before the new one takes its place"),
        pytest.param(3, True, id="just after"),
        pytest.param(5, True, id="before the model"),
    ],
)
def test_a_killed_update_is_there_as_a_whole_or_not_at_all(run, at, is_saved, tmp_path):
    then = Deployed.ulm
    before = Path("kept.npz").read_bytes()
    process = multiprocessing.get_context("fork").Process(
        target=update_and_die, args=(tmp_path, at)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (Path("kept.npz").read_bytes() != before) == is_saved
    now = Federation.load("kept.npz")
    Deployed.ulm = then | {"data-path": "now.npz"} | THEN
    if is_saved:  # the same again is refused, and changes nothing
        with pytest.raises(AggregationError, match="another SHA-256"):
            run(action="update", federation="kept.npz")
        assert Federation.load("kept.npz").totals == now.totals
        Deployed.ulm = then | {"data-path": "now.npz", "previous-path": "now.npz"}
    digests(run, action="update")
    assert is_saved == (Federation.load("kept.npz").totals == now.totals)
