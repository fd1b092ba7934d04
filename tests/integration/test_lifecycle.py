"""Parties join a saved federation and leave it: with `flwr run`, in a simulation and with processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.partition import held_out
from flwr_flynn.federated.federation_file import Federation

from .conftest import Deployment, Flower, Run

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
    whole = flower.run(nodes=4, **SMALL)
    assert grown.row("SHA-256 of the counts") == whole.row("SHA-256 of the counts")
    shrunk = run("withdraw", "shrunk", parties="3")
    assert shrunk.row("parties taken out") == "1 of 4"
    assert shrunk.row("SHA-256 of the counts") == first.row("SHA-256 of the counts")
    # Bit for bit the model that the fourth party was never in: counts, decay and all.
    assert (tmp_path / "shrunk" / "model.npz").read_bytes() == (tmp_path / "first" / "model.npz").read_bytes()
    before = kept.read_bytes()
    again = run("evaluate", "again")
    assert again.row("SHA-256 of the counts") == first.row("SHA-256 of the counts")
    assert again.row("accuracy")
    assert kept.read_bytes() == before
    assert "party-0" in flower.call("python", "-m", "flwr_flynn.federation", "show", str(kept))
    refused = flower.run(nodes=4, action="train", federation=str(kept), **SMALL)
    assert refused.status == "finished:failed"
    assert "run-config federation: expected none yet, got one" in refused.output
    assert kept.read_bytes() == before


def test_parties_with_files_of_their_own_join_and_leave(deployment: Callable[..., Deployment], tmp_path: Path) -> None:
    def pooled(*sites: int) -> np.ndarray:
        train = np.concatenate([np.arange(i, 900, 3)[~held_out(300, 0.2, 0)] for i in sites])
        spec = FlyNNClassifier.load(tmp_path / "out" / "model.npz").spec_
        counts: np.ndarray = FlyNNClassifier(spec=spec).fit(DIGITS.X[train], DIGITS.y[train]).counts_.array
        return counts

    data = [(DIGITS.X[i:900:3], DIGITS.y[i:900:3]) for i in range(3)]
    settings = {"min_available": 2, "output_dir": str(tmp_path / "out")}
    kept = {"federation": str(tmp_path / "out" / "federation.npz")}
    flower = deployment({"site0": {"data": data[0]}, "site1": {"data": data[1]}})
    first = flower.run(action="train", n_features=64, classes="0,1,2,3,4,5,6,7,8,9", **settings, **SMALL)
    assert first.status == "finished:completed", first.output[-6000:]
    federation = Federation.load(kept["federation"])
    assert [member.name for member in federation.members] == ["site0", "site1"]
    assert all(member.key and member.sha256 for member in federation.members)

    flower.start_party("site2", data=data[2])
    joined = flower.run(action="join", **settings | {"min_available": 3}, **kept)
    assert joined.status == "finished:completed", joined.output[-6000:]
    assert joined.row("parties in all") == "3"
    assert (Federation.load(kept["federation"]).counts.array == pooled(0, 1, 2)).all()

    # Site 1 starts a second SuperNode, to leave with: another key and node id, the same party-id.
    flower.start_party("site1", data=data[1], name="site1-leaves", leave=True)
    left = flower.run(action="withdraw", **settings | {"min_available": 4}, **kept)
    assert left.status == "finished:completed", left.output[-6000:]
    assert left.row("parties taken out").startswith("1 of ")
    after = Federation.load(kept["federation"])
    assert [member.name for member in after.members] == ["site0", "site2"]
    assert (after.counts.array == pooled(0, 2)).all()
    twice = flower.run(action="withdraw", **settings | {"min_available": 4}, **kept)
    assert twice.status == "finished:failed"
    assert "refused: not in the federation" in twice.output
    assert Federation.load(kept["federation"]).counts == after.counts
