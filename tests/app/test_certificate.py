"""Certificates of changed samples: written at both ends, and compared with the files of today."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity

from flwr_flynn.app.cli import main
from flwr_flynn.app.client_app import deployed_client
from flwr_flynn.errors import AggregationError
from flwr_flynn.federated import certificate
from flwr_flynn.federated.federation_file import Federation
from tests.app.test_client_app import context
from tests.app.test_server_app import Loopback, Runner, Spoil
from tests.docs.pages import ROOT
from tests.fakes import points


class Deployed(Loopback):
    """Parties with files of their own: Ulm has the file `now` of `folder`, and had `then`."""

    folder: Path
    ulm: dict[str, Any]

    def __init__(self, nodes: Iterable[int], spoil: Spoil) -> None:
        super().__init__([], spoil)
        bonn = {"data-path": str(self.folder / "bonn.npz"), "party-id": "Bonn"}
        self.clients = {node: deployed_client(context([self.ulm, bonn][node - 1])) for node in nodes}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    X, y = points(60)
    for name, rows in (("then", slice(40)), ("now", slice(3, 42)), ("bonn", slice(42, 60))):
        np.savez(tmp_path / f"{name}.npz", X=X[rows], y=y[rows])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Deployed, "folder", tmp_path, raising=False)
    then = {"data-path": "then.npz", "party-id": "Ulm", "record-path": "left.jsonl"}
    monkeypatch.setattr(Deployed, "ulm", then, raising=False)
    runner = Runner(tmp_path)
    runner.grid = Deployed
    runner(federation="kept.npz")
    return runner


def check(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    capsys.readouterr()
    assert main(["certificate", "check", *arguments]) == status
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return printed.out + printed.err


def unequal(printed: str) -> list[str]:
    return [line.split("NOT EQUAL")[0].strip() for line in printed.splitlines() if "NOT EQUAL" in line]


def test_both_ends_certify_an_update_and_a_withdrawal(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    then = Deployed.ulm
    Deployed.ulm = then | {"data-path": "now.npz", "previous-path": "then.npz"}
    run(action="update", federation="kept.npz")
    ours, theirs, model = "out/certificate-1-1.json", "left-certificate-1.json", ("--model", "kept.npz")
    files = *model, "--data", "now.npz", "--previous", "then.npz"
    found = check(capsys, ours, *files, "--other", theirs)
    assert "NOT" not in found
    assert found.count("  equal\n") == 6 + 3 + 3  # the other end, the federation, the files
    assert "models that were distributed before" in found
    assert check(capsys, theirs, *files).count("  equal\n") == 2 + 3
    assert check(capsys, ours, "--model", "out/model.npz", "--data", "now.npz").count("  equal\n") == 2
    assert "unchanged since it was written" in check(capsys, ours)
    assert unequal(check(capsys, ours, *model, "--data", "then.npz", status=1)) == ["now"]
    wrong = check(capsys, ours, *model, "--data", "now.npz", "--test-fraction", "0", status=1)
    assert "NOT EQUAL: certificate 32 samples" in wrong
    assert "no such file" in check(capsys, ours, *model, "--data", "none.npz", status=1)
    # The party leaves: nothing of it is in the federation, and the former certificate says so.
    Deployed.ulm = then | {"data-path": "now.npz", "leave": True}
    Path(ours).rename("update.json")
    run(action="withdraw", federation="kept.npz")
    found = check(capsys, ours, *model, "--previous", "now.npz", "--other", theirs)
    assert "NOT" not in found
    assert found.count("  equal\n") == 6 + 2 + 2
    found = check(capsys, "update.json", *model, status=1)
    assert unequal(found) == ["federation now", "counts of now in the federation"]


def test_a_federation_that_is_learned_again_is_as_if_it_had_never_had_other_samples(run: Runner) -> None:
    then = Path("kept.npz").read_bytes()
    Deployed.ulm = Deployed.ulm | {"data-path": "now.npz"}
    run(federation="kept.npz", relearn=True)
    run(federation="new.npz")
    assert then != Path("kept.npz").read_bytes() == Path("new.npz").read_bytes()


def update_and_die(folder: str, at: int) -> None:
    """Update the federation in a process that is killed before its call number `at` that syncs or renames a file."""
    calls = 0

    def killing(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return call

    for name in ("_run_id", "_node_id", "_task_id"):
        setattr(TaskIdentity, name, 1)
    os.fsync, os.replace = killing(os.fsync), killing(os.replace)
    Deployed.folder, Deployed.ulm = Path(folder), {"data-path": "now.npz", "party-id": "Ulm"} | THEN
    runner = Runner(Path(folder))
    runner.grid = Deployed
    runner(action="update", federation="kept.npz")


THEN = {"previous-path": "then.npz"}


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.parametrize(
    ("at", "is_saved"),
    [
        pytest.param(1, False, id="while it writes the federation"),
        pytest.param(2, False, id="before the new one takes its place", marks=pytest.mark.slow),
        pytest.param(3, True, id="just after"),
        pytest.param(5, True, id="before the model", marks=pytest.mark.slow),
    ],
)
def test_a_killed_update_is_there_as_a_whole_or_not_at_all(
    run: Runner, at: int, is_saved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    then, before = Deployed.ulm, Path("kept.npz").read_bytes()
    code = f"from tests.app.test_certificate import update_and_die as u; u({str(tmp_path)!r}, {at})"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    assert (Path("kept.npz").read_bytes() != before) == is_saved
    assert not list(tmp_path.glob("out/certificate*"))  # it certifies what is on the disk alone
    now = Federation.load("kept.npz")
    Deployed.ulm = then | {"data-path": "now.npz"} | THEN
    if is_saved:  # the same again is refused, and changes nothing
        with pytest.raises(AggregationError, match="another SHA-256"):
            run(action="update", federation="kept.npz")
        assert Federation.load("kept.npz").totals == now.totals
        Deployed.ulm = then | {"data-path": "now.npz", "previous-path": "now.npz"}
    run(action="update", federation="kept.npz")
    check(capsys, "out/certificate-1-1.json", "--model", "kept.npz", "--data", "now.npz")


ODD = (None, -1, 2**70, "", "x" * 300, "a\nb", [], [None], [["x"]], {}, {"sha256": []}, {"examples": "1", "sha256": []})


def test_a_certificate_may_come_from_anybody(run: Runner, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Deployed.ulm = Deployed.ulm | {"data-path": "now.npz", "previous-path": "then.npz"}
    run(action="update", federation="kept.npz")
    made = json.loads(Path("left-certificate-1.json").read_text())
    path = tmp_path / "odd.json"
    for text in ("", "{", "[]", "null", "[" * 10**5, '{"format": NaN}', json.dumps(made | {"party": "Bonn"})):
        path.write_text(text)
        assert len(check(capsys, str(path), status=1).splitlines()) == 1
    for name in set(made) - {"sha256", "versions", "federation"}:
        for value in ODD:
            odd = made | {name: value}
            path.write_text(json.dumps(odd | {"sha256": certificate.digest(odd)}))
            main(["certificate", "check", str(path), "--model", "kept.npz", "--data", "now.npz"])
            found = capsys.readouterr().out  # and no exception
            assert "NOT EQUAL" in found or not found or name in ("by", "action", "run", "time", "party", "traces")
