"""A SuperLink and two SuperNodes as processes, each party with a file of its own."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.partition import held_out
from tests.docs.pages import blocks

from .conftest import ROOT, Deployment, Flower, Run, free_ports

pytestmark = pytest.mark.integration

PAGE = "docs/how_to/deploy_tls.md"
DIGITS = load_dataset("digits")
SPEC = {"scaling": "none", "hash_dim": 2048, "row_nnz": 19, "hash_nnz": 32, "seed": 7, "n_features": 64}
CLASSES = ",".join(map(str, range(10)))


Federation = tuple[Flower, list[str]]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """The page's federation with real paths and ports, and its `flwr run`; 300 digits as CSV, 500 as NPZ."""
    flower = Flower(tmp_path_factory.mktemp("deployment").resolve(), superlink="loopback")
    flower.call(sys.executable, "-c", blocks(PAGE, "python")[0])
    site1 = (flower.cwd / "site1.csv").rename(flower.cwd / "site 1.csv")  # a path with a space

    link, one, two = free_ports(3)
    (Path(flower.env["FLWR_HOME"]) / "config.toml").write_text(blocks(PAGE, "toml")[0].replace("29000", str(link)))
    places = {"29000": link, "29101": one, "29102": two, "site1.csv": site1}
    commands = [shlex.split(line) for line in blocks(PAGE, "bash")[0].splitlines()]
    for place, real in places.items():
        commands = [[word.replace(place, str(real)) for word in command] for command in commands]
    try:
        flower.start("superlink", *commands[0])
        flower.wait_for_health(link)
        flower.start("site1", *commands[1])
        flower.start("site2", *commands[2])
        yield flower, commands[3]
    finally:
        flower.stop()


def test_two_supernodes_make_one_model(deployment: Callable[..., Deployment], tmp_path: Path) -> None:
    """The shortest run: one round, no evaluation."""
    flower = deployment({f"site{i}": {"data": (DIGITS.X[i::2], DIGITS.y[i::2])} for i in range(2)})
    given = {"classes": CLASSES, "min_available": 2, "decay": "0.5", "evaluate": "false", "output_dir": str(tmp_path)}
    run = flower.run(**SPEC, **given)
    assert run.status == "finished:completed", run.output[-6000:]
    assert run.row("parties counted") == "2 of 2"
    model = FlyNNClassifier.load(tmp_path / "model.npz")
    rows = np.concatenate([np.arange(i, len(DIGITS.y), 2)[~held_out(len(DIGITS.y[i::2]), 0.2, 0)] for i in range(2)])
    assert FlyNNClassifier(spec=model.spec_).fit(DIGITS.X[rows], DIGITS.y[rows]).counts_ == model.counts_


@pytest.mark.slow
def test_two_files_make_one_model(federation: Federation, tmp_path: Path) -> None:
    flower, command = federation
    sizes = "hash-dim=2048 seed=7"
    command = [str(ROOT) if word == "." else word for word in command]
    run = flower.finished(flower.call(*command, "--run-config", f"{sizes} output-dir={json.dumps(str(tmp_path))}"))
    assert run.status == "finished:completed", run.output[-6000:]
    assert run.row("parties counted") == "2 of 2"
    train1, train2 = ~held_out(300, 0.2, 0), ~held_out(500, 0.2, 0)
    assert run.row("training examples") == str(int(train1.sum() + train2.sum()))

    model = FlyNNClassifier.load(tmp_path / "model.npz")
    X = np.concatenate([DIGITS.X[:300][train1], DIGITS.X[300:800][train2]])
    y = np.concatenate([DIGITS.y[:300][train1], DIGITS.y[300:800][train2]])
    for member in model.model_.members:
        assert (FlyNNClassifier(spec=member.spec).fit(X, y).counts_.array == member.counts.array).all()
    # No server is needed to use it.
    assert np.mean(model.predict(DIGITS.X[800:]) == DIGITS.y[800:]) > 0.85


@pytest.mark.slow
def test_the_page_s_parties_join_leave_and_are_private(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    flower = Deployment(tmp_path.resolve() / "flower")
    flower.call(sys.executable, "-c", blocks(PAGE, "python")[0])
    first, train, join, leave, private = (
        [shlex.split(line) for line in block.splitlines()] for block in blocks(PAGE, "bash")
    )
    ports = dict(zip(("29000", "29101", "29102", "29103"), (flower.link, *free_ports(3)), strict=True))

    def real(command: list[str]) -> list[str]:
        for place, port in ports.items():
            command = [word.replace(place, str(port)).replace("$PWD", str(flower.cwd)) for word in command]
        return [str(ROOT) if word == "." else word for word in command]

    def run(command: list[str], more: str = "") -> Run:
        done = flower.finished(flower.call(*real([*command[:-1], f"{command[-1]} {more}"])))
        assert done.status == "finished:completed", done.output[-6000:]
        return done

    try:
        flower.start("superlink", *real(first[0]))
        flower.wait_for_health(flower.link)
        for name, command in (("site1", first[1]), ("site2", first[2])):
            flower.start(name, *real(command))
        assert run(train[0], "hash-dim=1024").row("parties counted") == "2 of 2"
        flower.start("site3", *real(join[0]))
        joined = run(join[1])
        assert (joined.row("parties joined"), joined.row("parties in all")) == ("1 of 1", "3")
        flower.end("site2", signal.SIGTERM)
        flower.start("site2", *real(leave[0]))
        assert run(leave[1]).row("parties in all") == "2"
        for name in ("site1", "site2", "site3"):
            flower.end(name, signal.SIGTERM)
        for name, command in (("site1", private[0]), ("site2", private[1])):
            flower.start(name, *real(command))
        done = run(private[2])
        assert done.row("parties counted") == "2 of 2"
        assert done.row("privacy").startswith("epsilon ")
        assert (flower.cwd / "digits.npz").is_file()
        assert (flower.cwd / "state1").is_dir()
    finally:
        flower.stop()


@pytest.mark.slow
def test_a_party_that_refuses_is_named_with_its_reason(federation: Federation) -> None:
    run = federation[0].run(classes="0,1,2", min_available=2, **SPEC)
    assert run.status == "finished:failed"
    assert "site1" in run.output
    assert "site2" in run.output
    assert "AggregationError" in run.output
    assert "Traceback" not in run.output


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["n_features", "classes", "min_available"])
def test_what_the_server_cannot_see_must_be_given(missing: str, federation: Federation) -> None:
    given = {"n_features": 64, "classes": CLASSES, "min_available": 2}
    del given[missing]
    run = federation[0].run(**given)
    assert run.status == "finished:failed"
    assert f"run-config {missing.replace('_', '-')}: " in run.output
    assert "Traceback" not in run.output
