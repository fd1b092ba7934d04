"""What README.md shows is run as it stands there."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flwr_flynn import FlyNNClassifier

from .conftest import ROOT, Flower, readme_blocks, write_app

pytestmark = pytest.mark.integration


def test_the_ten_lines() -> None:
    names: dict[str, Any] = {}
    exec(compile(readme_blocks("python")[0], "README.md", "exec"), names)
    assert names["pooled"].counts_.n_examples == 1797


def test_the_other_examples() -> None:
    for block in readme_blocks("python")[1:]:
        exec(compile(block, "README.md", "exec"), {})


def their_app(folder: Path, change: Callable[[str], str] = str) -> Path:
    """README's server and client of the legacy API in an app of its own."""
    return write_app(folder, "LegacyContext(", "client_fn=", change)


@pytest.mark.slow
def test_strategy_and_client_in_somebody_elses_app(theirs: Flower, tmp_path: Path) -> None:
    run = theirs.run(their_app(tmp_path), nodes=2)
    assert run.status == "finished:completed", run.output[-6000:]
    for party in ("party-0", "party-1"):
        assert party in run.output, run.output[-6000:]
    assert FlyNNClassifier.load(theirs.cwd / "model.npz").counts_.n_examples == 1797


@pytest.mark.slow
def test_somebody_elses_app_fails_where_a_party_refuses(theirs: Flower, tmp_path: Path) -> None:
    (theirs.cwd / "model.npz").unlink(missing_ok=True)
    run = theirs.run(their_app(tmp_path, lambda server: server.replace("range(10)", "range(9)")), nodes=2)
    assert run.status == "finished:failed", run.output[-6000:]
    assert "0 of at least 2 parties counted; missing: party-" in run.output
    assert not (theirs.cwd / "model.npz").exists()


def test_the_bundle_holds_the_whole_package(theirs: Flower) -> None:
    output = theirs.call("flwr", "build", "--app", str(ROOT))
    (bundle,) = theirs.cwd.glob("*.fab")
    packed = {name for name in zipfile.ZipFile(bundle).namelist() if name.startswith("flwr_flynn/")}
    assert packed == {path.relative_to(ROOT).as_posix() for path in (ROOT / "flwr_flynn").rglob("*.py")}, output


def test_ci_runs_the_commands_of_the_readme() -> None:
    main, tests, deployment, checks = readme_blocks("bash")
    assert len(main.splitlines()) == len(tests.splitlines()) == 1
    assert "flwr run . --stream" in main
    assert "pytest" in tests
    assert len(deployment.splitlines()) == 4  # see test_deployment.py
    script = (ROOT / ".ci" / "run").read_text()
    assert all(f"readme_block {number}" in script for number in (1, 2, 4))
    assert not any(line and line in script for line in (main + tests + checks).splitlines())
