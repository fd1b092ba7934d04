"""The package in apps of somebody's own, as README and the how-to guides show them."""

from __future__ import annotations

import pytest
from sklearn.datasets import load_digits

from flwr_flynn import ClassCounts, FlyNNClassifier

from .conftest import MESSAGE_API, OLDER_API, ROOT, Flower, write_app

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = "docs/how_to/own_app.md"
X, Y = load_digits(return_X_y=True)


@pytest.mark.parametrize(
    ("page", "marks", "n_held_out"),
    [("README.md", MESSAGE_API, 10), (PAGE, MESSAGE_API, 0), (PAGE, OLDER_API, 0)],
)
def test_the_app_of_a_page_has_the_pooled_counts(
    page, marks, n_held_out, theirs, tmp_path
):
    (theirs.cwd / "model.npz").unlink(missing_ok=True)
    theirs.run(write_app(tmp_path, page, marks=marks), nodes=2)
    members = FlyNNClassifier.load(theirs.cwd / "model.npz").model_.members
    pooled = [
        ClassCounts.from_data(member.hash, X[n_held_out:], Y[n_held_out:], 10)
        for member in members
    ]
    assert [member.counts for member in members] == pooled


def test_the_bundle_holds_the_whole_package():
    assert Flower.installed is not None
    modules = {path.relative_to(ROOT) for path in (ROOT / "flwr_flynn").rglob("*.py")}
    assert {
        path.relative_to(Flower.installed)
        for path in (Flower.installed / "flwr_flynn").rglob("*.py")
    } == modules
