"""The package in apps of somebody's own, as README and the how-to guides show them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from flwr_flynn import FlyNNClassifier

from .conftest import MESSAGE_API, OLDER_API, ROOT, Flower, write_app

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.parametrize(
    ("page", "marks", "counted"), [("README.md", MESSAGE_API, 1797 - 10), ("docs/how_to/own_app.md", OLDER_API, 1797)]
)
def test_the_app_of_a_page_counts_every_sample(
    page: str, marks: tuple[str, str], counted: int, theirs: Flower, tmp_path: Path
) -> None:
    (theirs.cwd / "model.npz").unlink(missing_ok=True)
    theirs.run(write_app(tmp_path, page, marks=marks), nodes=2)
    members = FlyNNClassifier.load(theirs.cwd / "model.npz").model_.members
    assert {member.counts.n_examples for member in members} == {counted}


def test_the_bundle_holds_the_whole_package(theirs: Flower) -> None:
    output = theirs.call("flwr", "build", "--app", str(ROOT))
    (bundle,) = theirs.cwd.glob("*.fab")
    packed = {name for name in zipfile.ZipFile(bundle).namelist() if name.startswith("flwr_flynn/")}
    assert packed == {path.relative_to(ROOT).as_posix() for path in (ROOT / "flwr_flynn").rglob("*.py")}, output
