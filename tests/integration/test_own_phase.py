"""A Flower app whose plan has a phase that the package does not know."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from sklearn.datasets import load_iris

from flwr_flynn import FlyNNClassifier
from flwr_flynn.model.selection import fit_members

from .conftest import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_phase_of_one_s_own_runs_without_a_change_to_the_package(theirs, tmp_path):
    app = shutil.copytree(ROOT / "tests" / "own_phase_app", tmp_path / "own_phase_app")
    run = theirs.run(app, nodes=3, output=str(tmp_path / "model.npz"))
    X, y = load_iris(return_X_y=True)
    match = re.search(r"HISTOGRAM \[(.*)\]", run.output)
    assert match, run.output[-6000:]
    pooled = np.bincount(np.floor(X[:, 0]).astype(int), minlength=20)
    assert [int(number) for number in match.group(1).split(",")] == pooled.tolist()
    model = FlyNNClassifier.load(tmp_path / "model.npz")
    (best,) = fit_members([model.spec_], X, y, 3)
    assert model.counts_.sha256() == best.counts.sha256()
    member = model.model_.member
    assert member.scoring.decay == best.scoring.decay
    assert member.temperature == best.scoring.temperature
