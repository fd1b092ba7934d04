"""Private runs with real processes.

There is a simulation, and parties that hold on to their own policies.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.data.datasets import simulated_dataset
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.privacy import mechanism_from_dict
from flwr_flynn.privacy.ledger import Budget, Policy

from .conftest import DIGITS, PUBLIC

pytest.importorskip("opendp")
pytest.importorskip("dp_accounting")
pytestmark = [pytest.mark.integration, pytest.mark.slow]

SMALL = {"hash_dim": 512, "center": "8", "seed": 7}


def test_a_private_simulation_keeps_and_prints_its_guarantee(flower, tmp_path):
    run = flower.run(
        nodes=3, epsilon=2.0, delta=1e-5, output_dir=str(tmp_path), **SMALL
    )
    assert "Traceback" not in run.output
    assert run.row("parties counted") == "3 of 3"
    assert run.row("equal") == "n/a, noisy"
    assert run.row("training samples").startswith("hidden, about ")
    assert run.row("privacy").startswith("epsilon ")
    privacy = json.loads((tmp_path / "metrics.json").read_text())["privacy"]
    assert privacy["guarantee"] in " ".join(run.output.split())
    assert 1.9 < privacy["epsilon"] <= 2.0
    model = FlyNNClassifier.load(tmp_path / "model.npz")
    assert (
        model.guarantee_
        == privacy["guarantee"]
        == mechanism_from_dict(privacy["mechanism"]).guarantee()
    )
    assert len(model.counts_.noise) == 3
    test = simulated_dataset(RunConfig()).test
    assert (
        np.mean(
            model.predict(pd.DataFrame(DIGITS.X[test], columns=DIGITS.feature_names))
            == DIGITS.y[test]
        )
        > 0.5
    )
    for party in range(3):
        (ledger,) = tmp_path.glob(f"state/*/party-{party}")
        assert Budget(ledger, Policy(2.0)).spent() == (privacy["epsilon"], 1e-5)


def test_a_seeded_simulation_can_be_repeated_and_promises_nothing(
    flower,
):
    runs = [
        flower.run(nodes=2, epsilon=2.0, noise="seeded", evaluate="false", **SMALL)
        for _ in range(2)
    ]
    for run in runs:
        assert run.row("privacy").startswith("NONE: seeded noise")
        assert "No privacy: noise from seed" in run.output
        assert run.row("evaluation") == "none: parties send no results"
    assert runs[0].row("SHA-256 of the counts") == runs[1].row("SHA-256 of the counts")


def test_parties_spend_no_more_than_their_policies_allow(deployment, tmp_path):
    """Two parties with a policy of epsilon 1 each; one has a sample that does not fit.

    A third one misspells `data-path` and has Flower's numbers of the tutorials; it
    gives nothing, although the server names a file on its disk as the run's data set.
    """
    X = DIGITS.X.astype(float)
    X[3, 5] = np.nan
    parties: dict[str, Any] = {}
    for i in range(2):
        places = {
            "state_path": str(tmp_path / f"state{i}"),
            "model_path": str(tmp_path / f"model{i}.npz"),
        }
        parties[f"site{i}"] = {
            "data": (X[i::2], DIGITS.y[i::2]),
            "max_epsilon": 1.0,
            "max_delta": 1e-4,
            **places,
        }
    federation = deployment(parties)
    public = PUBLIC | {"n_examples": 1800, "min_available": 2}
    first = federation.run(epsilon=0.75, delta=1e-5, **public, **SMALL)
    assert first.row("parties counted") == "2 of 2"
    assert first.row("evaluation") == "none: parties send no results"
    # The model reaches them all the same.
    guarantees = {
        FlyNNClassifier.load(tmp_path / f"model{i}.npz").guarantee_ for i in range(2)
    }
    assert len(guarantees) == 1
    assert guarantees.pop() in " ".join(first.output.split())
    again = federation.run(epsilon=0.75, delta=1e-5, **public, **SMALL)
    assert again.row("SHA-256 of the counts") == first.row("SHA-256 of the counts")
    more = federation.run(
        epsilon=0.5, delta=1e-5, ends="finished:failed", **public, **SMALL
    )
    assert "site0 (declined: policy max-epsilon: " in more.output
    theirs = str(federation.folder / "site1.npz")
    node = {"num_partitions": 2, "data_pth": theirs, "max_epsilon": 1.0, "secure": True}
    federation.start_party("site2", partition_id=0, party_id="site2", **node)
    del public["n_examples"]
    public |= {"min_available": 3, "ends": "finished:failed"}
    exact = federation.run(dataset=theirs, partitioner="iid", **public)
    assert "only noisy counts leave this party, not phase" in exact.output
    assert "site2 (declined: node-config data-pth: unknown" in exact.output
    assert all("Traceback" not in run.output for run in (first, again, more, exact))
    for i in range(2):
        epsilon, delta = Budget(tmp_path / f"state{i}", Policy(1.0)).spent()
        assert 0.7 < epsilon <= 0.75
        assert delta == 1e-5
