"""docs/how_to/install.md: the package as others get it.

Its environments do not have this repository.
"""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from flwr_flynn import FlyNNClassifier, __version__
from tests.docs.pages import ROOT, blocks

from .conftest import Flower
from .test_pages import checkout

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = "docs/how_to/install.md"
HUB = ROOT / "examples" / "flynn-digits"


def test_the_app_for_the_hub_is_bundled_whole(theirs):
    output = theirs.call("flwr", "build", "--app", str(HUB))
    (bundle,) = theirs.cwd.glob("*.fab")
    packed = zipfile.ZipFile(bundle)
    sources = {path.relative_to(HUB).as_posix() for path in HUB.rglob("*.py")}
    assert {"LICENSE", "README.md", "pyproject.toml"} | sources <= set(
        packed.namelist()
    ), output
    project = tomllib.loads(packed.read("pyproject.toml").decode())
    assert project["tool"]["flwr"]["app"]["fab-format-version"] == 1
    assert project["tool"]["flwr"]["app"]["flwr-version-target"]
    assert packed.read("LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_a_run_installs_the_wheel_and_versions_name_no_index(tmp_path, monkeypatch):
    monkeypatch.setattr(Flower, "installed", None)  # Flower unpacks the app by itself
    flower = Flower(tmp_path.resolve() / "flower")
    del flower.env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]
    flower.cwd = checkout(tmp_path / "flwr-flynn")
    try:
        wheel, versions, run = blocks(PAGE, "bash")
        flower.shell(wheel)
        flower.shell(versions)
        listed = (flower.cwd / "requirements.txt").read_text()
        assert re.search(
            rf"^flwr-flynn=={re.escape(__version__)} \\\n    --hash=sha256:",
            listed,
            re.MULTILINE,
        )
        assert "://" not in listed
        assert "--index" not in listed
        printed = flower.shell(run)
        ended = flower.ended()
        # Flower removes the run's environment before it reports the end and allows
        # itself five seconds for both; a busy disk needs more (PAGE says so).
        unreported = "No heartbeat received from the task"
        assert (
            ended["status"] == "finished:completed"
            or ended["status-details"] == unreported
        ), printed[-6000:]
        assert "Strategy execution finished" in printed
        # What the run installed comes before the package that these tests have.
        (place,) = set(
            re.findall(rf"flwr-flynn {re.escape(__version__)} in (\S+),", printed)
        )
        assert Path(place).is_relative_to(
            Path(flower.env["FLWR_HOME"]) / "runtime-envs"
        )
        assert (
            len(
                FlyNNClassifier.load(
                    flower.cwd / "build" / "run" / "model.npz"
                ).classes_
            )
            == 10
        )
    finally:
        flower.stop()
