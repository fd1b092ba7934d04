"""The app of docs/how_to/own_app.md with `evaluate_fn`.

Its test on the server's samples runs in each round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from flwr_flynn import FlyNNClassifier, FlyNNClient
from tests.docs.pages import blocks
from tests.fakes import FakeGrid, Node

X, Y = load_digits(return_X_y=True)


def test_the_app_of_the_page_gives_the_accuracy_on_the_server_s_samples(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    (block,) = (
        block
        for block in blocks("docs/how_to/own_app.md", "python")
        if "evaluate_fn" in block
    )
    exec(compile(block, "own_app.md", "exec"), names)
    own = names["own"]
    rows = np.setdiff1d(np.arange(len(Y)), names["own"])
    nodes = {
        i: Node(FlyNNClient(X[rows[i::10]], Y[rows[i::10]], name=f"party-{i}"))
        for i in range(10)
    }
    names["main"](FakeGrid(nodes), None)
    accuracy = FlyNNClassifier.load("model.npz").score(X[own], Y[own])
    assert accuracy > 0.95
    assert f"'accuracy': {accuracy}" in capsys.readouterr().out
