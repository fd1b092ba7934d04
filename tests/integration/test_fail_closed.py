"""Deployed parties whose settings do not fit give nothing, whatever the server names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flwr_flynn.app.data.datasets import load_dataset

from .conftest import ROOT, Flower, free_ports

pytestmark = pytest.mark.integration


def test_nothing_leaves_two_supernodes_with_a_misspelt_key(tmp_path: Path) -> None:
    """Both have Flower's numbers of the tutorials; the server names a file on their disk as the run's data set."""
    flower = Flower((tmp_path / "flower").resolve(), superlink="loopback")
    digits = load_dataset("digits")
    theirs = tmp_path / "theirs.npz"
    np.savez(theirs, X=digits.X, y=digits.y)
    link, *ports = free_ports(3)
    home = Path(flower.env["FLWR_HOME"])
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.loopback]\naddress = "127.0.0.1:{link}"\ninsecure = true\n')
    options = ("--insecure", "--isolation", "subprocess")
    public = {"n_features": 64, "classes": ",".join(map(str, range(10))), "min_available": 2, "decay": "0.8"}
    try:
        flower.start(
            "superlink",
            *("flower-superlink", *options, "--host", "127.0.0.1", "--port", str(link)),
            "--disable-runtime-dependency-installation",
        )
        flower.wait_for_health(link)
        for i, port in enumerate(ports):
            node = {
                "partition-id": i,
                "num-partitions": 2,
                "data-pth": str(theirs),
                "max-epsilon": 1.0,
                "secure": True,
                "party-id": f"site{i}",
            }
            flower.start(
                f"site{i}",
                *("flower-supernode", *options, "--superlink", f"127.0.0.1:{link}", "--port", str(port)),
                *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in node.items())),
            )
        run = flower.run(ROOT, dataset=str(theirs), partitioner="iid", hash_dim=512, **public)
        assert run.status == "finished:failed", run.output[-6000:]
        assert "0 of at least 2 parties counted" in run.output
        for i in range(2):
            assert f"site{i} (declined: node-config data-pth: unknown" in run.output
    finally:
        flower.stop()
