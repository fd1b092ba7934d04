"""Parties of a simulation join a saved federation and leave it; those of a deployment do in `test_deployment.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.partition import held_out

from .conftest import Flower, Run

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SMALL = {"scaling": "none", "hash_dim": 1024, "seed": 7}
DIGITS = load_dataset("digits")


def test_a_simulated_federation_grows_shrinks_and_is_handed_out(flower: Flower, tmp_path: Path) -> None:
    kept = tmp_path / "kept.npz"

    def run(action: str, folder: str, **more: Any) -> Run:
        done = flower.run(nodes=4, action=action, output_dir=str(tmp_path / folder), federation=str(kept), **more)
        assert done.status == "finished:completed", done.output[-6000:]
        assert done.row("equal") == "yes"
        assert "Traceback" not in done.output
        return done

    first = run("train", "first", parties="0-2", **SMALL)
    assert first.row("parties counted") == "3 of 4"
    assert "not counted: party-3  declined: takes no part in this run" in " ".join(first.output.split("  "))
    grown = run("join", "grown")
    assert (grown.row("parties joined"), grown.row("parties in all")) == ("1 of 4", "4")
    train = ~held_out(1797, 0.2, 0)
    model = FlyNNClassifier.load(tmp_path / "grown" / "model.npz")
    whole = FlyNNClassifier(spec=model.spec_).fit(DIGITS.X[train], DIGITS.y[train]).counts_
    assert grown.row("SHA-256 of the counts") == whole.sha256() == model.counts_.sha256()
    shrunk = run("withdraw", "shrunk", parties="3")
    assert shrunk.row("parties withdrawn") == "1 of 4"
    assert shrunk.row("SHA-256 of the counts") == first.row("SHA-256 of the counts")
    # Bit for bit the model that the fourth party was never in: counts, decay and all.
    assert (tmp_path / "shrunk" / "model.npz").read_bytes() == (tmp_path / "first" / "model.npz").read_bytes()
    before = kept.read_bytes()
    again = run("evaluate", "again")
    assert again.row("SHA-256 of the counts") == first.row("SHA-256 of the counts")
    assert again.row("accuracy")
    assert kept.read_bytes() == before
    assert "party-0" in flower.call("python", "-m", "flwr_flynn.federation", "show", str(kept))
