"""Secure sums by Flower's SecAgg+, in a simulation and between processes.

They have the bits of a plain run.
"""

from __future__ import annotations

import json

import pytest

from .conftest import DIGITS, PUBLIC, training_rows

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SMALL = {"scaling": "none", "hash_dim": 1024, "seed": 7}


def test_simulated_parties_share_one_noise(flower, tmp_path):
    pytest.importorskip("opendp")
    pytest.importorskip("dp_accounting")
    private = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "center": "8",
        "hash_dim": 512,
        "output_dir": str(tmp_path),
    }
    flower.run(nodes=5, honest_parties=4, **private)
    report = json.loads((tmp_path / "metrics.json").read_text())["privacy"]
    assert report["epsilon"] <= 1.0
    assert report["mechanism"]["n_honest"] == 4
    assert "at least 4 parties added theirs" in report["guarantee"]
    assert "at least 4 of 5 parties follow the protocol" in report["notes"][0]


def test_parties_that_are_processes_make_a_secure_sum(
    deployment,
):
    parties = {
        f"site{i}": {"data": (DIGITS.X[i::3], DIGITS.y[i::3]), "secure": i == 2}
        for i in range(3)
    }
    flower = deployment(parties)
    public = (
        PUBLIC
        | SMALL
        | {"min_available": 3, "secure": True, "evaluate": "false", "decay": "0.8"}
    )
    large = flower.run(max_examples=20, ends="finished:failed", **public)
    (line,) = {
        line for line in large.output.splitlines() if line.startswith("FAILED: ")
    }
    assert "max-examples" in line
    assert "Traceback" not in line
    secret = flower.run(max_examples=1000, **public)
    assert secret.row("parties counted") == "3 of 3"
    rows = training_rows(*(flower.folder / f"site{i}.npz" for i in range(3)))
    assert secret.row("training samples") == str(len(rows[1]))
