"""A SuperLink and two SuperNodes as processes, each party with a file of its own."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.federated.federation_file import Federation
from tests.docs.pages import blocks

from .conftest import DIGITS, Deployment, Run, command_of, replaced, training_rows

pytestmark = pytest.mark.integration

PAGE = "docs/how_to/deploy_tls.md"
Federated = tuple[Deployment, list[list[list[str]]]]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federated]:
    """The page's first federation, and the commands of its blocks with real ports.

    The parties have 300 digits as CSV and 500 as NPZ.
    """
    flower = Deployment(tmp_path_factory.mktemp("deployment").resolve())
    flower.call(sys.executable, "-c", blocks(PAGE, "python")[0])
    (flower.cwd / "site1.npz").rename(flower.cwd / "site 1.npz")  # a path with a space
    places = {"$PWD": flower.cwd, "site1.npz": "site 1.npz", **flower.places()}
    config = Path(flower.env["FLWR_HOME"]) / "config.toml"
    config.write_text(replaced(blocks(PAGE, "toml")[0], places))
    commands = [
        [command_of(line, places) for line in block.splitlines()]
        for block in blocks(PAGE, "bash")
    ]
    try:
        flower.start("superlink", *commands[0][0])
        flower.wait_for_health(flower.link)
        flower.start("site1", *commands[0][1])
        flower.start("site2", *commands[0][2])
        yield flower, commands
    finally:
        flower.stop()


@pytest.mark.slow
def test_the_page_s_parties_make_one_model_join_leave_and_are_private(
    federation, tmp_path
):
    flower, (first, train, join, update, leave, private) = federation
    files = [flower.cwd / name for name in ("site 1.npz", "site2.npz", "site3.npz")]

    def run(command: list[str], more: str = "") -> Run:
        given = f"{command[-1]} {more} output-dir={json.dumps(str(tmp_path))}"
        return flower.finished(flower.call(*command[:-1], given))

    def check(*sites: int) -> FlyNNClassifier:
        """The server's model has the pooled counts, its federation these parties."""
        saved = Federation.load(flower.cwd / "digits.npz").members
        assert [member.name for member in saved] == [
            f"site{site + 1}" for site in sites
        ]
        assert all(member.key and member.sha256 for member in saved)
        X, y = training_rows(*(files[site] for site in sites))
        model = FlyNNClassifier.load(tmp_path / "model.npz")
        for member in model.model_.members:
            counts = FlyNNClassifier(spec=member.spec).fit(X, y).counts_
            assert (counts.array == member.counts.array).all()
        return model

    # The page's first run is this one without the file.
    assert train == [[*first[3][:-1], f'{first[3][-1]} federation="digits.npz"']]
    done = run(train[0], "hash-dim=2048 seed=7")
    assert done.row("parties counted") == "2 of 2"
    assert done.row("training samples") == str(len(training_rows(*files[:2])[1]))
    # No server is needed to use it.
    assert np.mean(check(0, 1).predict(DIGITS.X[800:]) == DIGITS.y[800:]) > 0.85

    flower.start("site3", *join[0])
    joined = run(join[1])
    assert joined.row("parties joined") == "1 of 1"
    assert joined.row("parties in all") == "3"
    check(0, 1, 2)

    flower.end("site3", signal.SIGTERM)
    flower.call(*update[0])
    flower.start("site3", *update[1])
    files[2] = flower.cwd / "site3_now.npz"
    updated = run(update[2])
    assert updated.row("parties updated") == "1 of 3"
    assert updated.row("parties in all") == "3"
    check(0, 1, 2)
    theirs = [
        json.loads(line)["change"]
        for line in (flower.cwd / "site3.jsonl").read_text().splitlines()
    ]
    ours = json.loads((tmp_path / "metrics.json").read_text())["updates"]
    assert ours == [{"party": "site3", **change} for change in theirs if change]
    assert len(ours) == 1

    # Another SuperNode: another key and node id, the same party-id and secret.
    flower.end("site2", signal.SIGTERM)
    flower.start("site2", *leave[0])
    assert run(leave[1]).row("parties in all") == "2"
    check(0, 2)

    pytest.importorskip("opendp")
    for name in ("site1", "site2", "site3"):
        flower.end(name, signal.SIGTERM)
    for name, command in (("site1", private[0]), ("site2", private[1])):
        flower.start(name, *command)
    done = run(private[2])
    assert done.row("parties counted") == "2 of 2"
    assert done.row("privacy").startswith("epsilon ")
    assert (flower.cwd / "state1").is_file()
