"""The app of docs/how_to/liars.md: it leaves liars out, and its test on the server's samples runs in each round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flwr_flynn import FlyNNClassifier, FlyNNClient
from tests.docs.pages import blocks
from tests.fakes import FakeGrid, Node

X, Y = load_digits(return_X_y=True)


def test_the_app_of_the_page_leaves_liars_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks("docs/how_to/liars.md", "python"):
        exec(compile(block, "liars.md", "exec"), names)
    rows = np.setdiff1d(np.arange(len(Y)), np.concatenate([names["own"], names["test"]]))
    nodes = {}
    for i in range(10):
        mine = rows[i::10]
        y = (Y[mine] + 1) % 10 if i < 3 else Y[mine]
        nodes[i] = Node(FlyNNClient(X[mine], y, name=f"party-{i}"))
    names["main"](FakeGrid(nodes), None)
    left_out = capsys.readouterr().out.removeprefix("left out: ").strip().split(", ")
    assert {"party-0", "party-1", "party-2"} <= set(left_out)
    model = FlyNNClassifier.load("model.npz")
    assert model.score(X[names["test"]], Y[names["test"]]) > 0.9
    with np.load("results/trusted.npz") as trusted:
        assert np.bincount(trusted["y"]).tolist() == [5] * 10
