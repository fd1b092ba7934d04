"""Deployed parties whose settings do not fit give nothing, whatever the server names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flwr_flynn.app.data.datasets import load_dataset

from .conftest import Deployment

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_nothing_leaves_two_supernodes_with_a_misspelt_key(
    deployment: Callable[..., Deployment], tmp_path: Path
) -> None:
    """Both have Flower's numbers of the tutorials; the server names a file on their disk as the run's data set."""
    digits = load_dataset("digits")
    theirs = str(tmp_path / "theirs.npz")
    np.savez(theirs, X=digits.X, y=digits.y)
    node = {"num_partitions": 2, "data_pth": theirs, "max_epsilon": 1.0, "secure": True}
    flower = deployment({f"site{i}": {"partition_id": i, "party_id": f"site{i}", **node} for i in range(2)})
    public = {"n_features": 64, "classes": ",".join(map(str, range(10))), "min_available": 2, "decay": "0.8"}
    run = flower.run(dataset=theirs, partitioner="iid", hash_dim=512, **public)
    assert run.status == "finished:failed", run.output[-6000:]
    assert "0 of at least 2 parties counted" in run.output
    for i in range(2):
        assert f"site{i} (declined: node-config data-pth: unknown" in run.output
