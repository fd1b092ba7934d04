"""Processes that die, hang or start again in the middle of a run, and its outcome."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import ClassCounts, FlyHash, FlyNNClassifier, HashPlan

from .conftest import DIGITS, PUBLIC, ROOT, Deployment, Run, config_text

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SIZES = {"hash_dim": 512, "seed": 7}
SETTINGS = PUBLIC | SIZES | {"scaling": "none", "decay": 0.5, "evaluate": "false"}
# Seconds of a busy machine; where somebody will not answer, the tests say SOON
SETTINGS["timeout"] = 240
SOON = 60
RUN = 400
DONE = "finished:completed"


During = Callable[[Path], object]


def begin(
    flower: Deployment, output: Path, name: str = "run", **settings: Any
) -> subprocess.Popen[bytes]:
    """`flwr run` in the background; what it prints goes to a file beside `output`."""
    pairs = {
        "min_parties": 2,
        "min_available": 3,
        "output_dir": str(output),
        **SETTINGS,
        **settings,
    }
    command = (
        "flwr",
        "run",
        str(ROOT),
        flower.superlink,
        "--stream",
        "--run-config",
        config_text(pairs),
    )
    return flower.background(output.parent / f"{name}.log", *command)


def run_through(
    flower: Deployment,
    output: Path,
    during: During = str,
    ends: str = DONE,
    **settings: Any,
) -> Run:
    """A run to its end, and what is done in the meantime."""
    process = begin(flower, output, **settings)
    log = output.parent / "run.log"
    during(log)
    process.wait(RUN)
    return flower.finished(log.read_text(), ends)


def wait_for(text: str, log: Path, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < end, (
            f"no {text!r} in:\n{log.read_text(errors='replace')[-4000:]}"
        )
        time.sleep(0.1)


def pooled(*sites: int) -> ClassCounts:
    """The pooled counts of these parties' points."""
    rows = np.sort(np.concatenate([np.arange(site, 300, 3) for site in sites]))
    hasher = FlyHash(HashPlan(64, 10, **SIZES).specs()[0])
    return ClassCounts.from_data(hasher, DIGITS.X[rows], DIGITS.y[rows], 10)


def check_model(run: Run, output: Path, *sites: int) -> None:
    assert run.row("parties counted").split()[0] == str(len(sites))
    assert FlyNNClassifier.load(output / "model.npz").counts_ == pooled(*sites)


@pytest.fixture(scope="module")
def federation(deployment: Callable[..., Deployment]) -> Deployment:
    """Three parties with 100 digits each, for all tests.

    The last two tests end parties for good.
    """
    parties = {
        f"site{i}": {
            "data": (DIGITS.X[i:300:3], DIGITS.y[i:300:3]),
            "test_fraction": 0.0,
        }
        for i in range(3)
    }
    return deployment(parties)


def test_two_runs_at_once_do_not_mix(federation, tmp_path):
    other = begin(
        federation, tmp_path / "other", "other", seed=8, min_parties=3, timeout=RUN
    )
    run = run_through(federation, tmp_path / "one", min_parties=3, timeout=RUN)
    other.wait(RUN)
    check_model(run, tmp_path / "one", 0, 1, 2)
    theirs = FlyNNClassifier.load(tmp_path / "other" / "model.npz")
    assert theirs.spec_.seed == 8
    assert theirs.counts_.n_per_class.tolist() == pooled(0, 1, 2).n_per_class.tolist()


def test_a_restart_leaves_no_half_a_model_and_who_is_killed_later_counts(
    federation, tmp_path
):
    federation.send("site2", signal.SIGSTOP)
    process = begin(federation, tmp_path / "cut")
    wait_for("configure_fit: strategy sampled", tmp_path / "run.log")
    federation.end("superlink")
    federation.send("site2", signal.SIGCONT)
    process.wait(RUN)
    federation.start_link()

    def kill_site2(log: Path) -> None:
        wait_for("FlyNN: counts: 3 of 3 parties", log)
        federation.end("site2")

    # The parties come back by themselves, and a new run asks them anew.
    run = run_through(
        federation,
        tmp_path / "new",
        kill_site2,
        evaluate="true",
        min_parties=3,
        timeout=2 * SOON,
    )
    check_model(run, tmp_path / "new", 0, 1, 2)
    assert not (tmp_path / "cut" / "model.npz").exists()


def test_silence_costs_the_timeout_and_a_death_ends_a_run_of_too_few(
    federation, tmp_path
):
    """A party was killed before, which Flower may not have noticed yet."""
    federation.send("site1", signal.SIGSTOP)
    start = time.monotonic()
    try:
        run = run_through(
            federation, tmp_path / "two", min_available=2, min_parties=1, timeout=SOON
        )
    finally:
        federation.send("site1", signal.SIGCONT)
    assert time.monotonic() - start < SOON + 120  # Flower's own start and end
    check_model(run, tmp_path / "two", 0)
    assert "left out of counts: " in run.output

    federation.send("site1", signal.SIGSTOP)  # the counting lasts until it is killed

    def kill_site1(log: Path) -> None:
        wait_for("configure_fit: strategy sampled", log)
        federation.end("site1")

    given = {"min_available": 2, "timeout": SOON, "ends": "finished:failed"}
    run = run_through(federation, tmp_path / "during", kill_site1, **given)
    assert "1 of at least 2 parties counted; missing: " in run.output
    assert not (tmp_path / "during" / "model.npz").exists()
