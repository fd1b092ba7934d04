"""Records of SuperNodes as processes: they say what the server got.

In one process: tests/flower/test_disclosure.py.
"""

from __future__ import annotations

import json

import pytest

from flwr_flynn.app.disclosure_file import lines

from .conftest import DIGITS, PUBLIC

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_supernodes_record_what_the_server_got(deployment, tmp_path):
    """Of three parties one refuses, and one is killed behind the counts.

    The one that is killed misses the next run.
    """
    sites = {
        f"site{i}": {
            "data": (DIGITS.X[i::3], DIGITS.y[i::3]),
            "record_path": str(tmp_path / f"site{i}.jsonl"),
        }
        for i in range(3)
    }
    sites["site2"]["secure"] = True
    flower = deployment(sites)
    public = PUBLIC | {"min_available": 3, "min_parties": 1, "seed": 7}
    # There are fewer.
    alone = public | {"min_available": 9, "output_dir": str(tmp_path / "dry")}
    flower.run(hash_dim=512, dry_run=True, **alone)
    assert not list(tmp_path.glob("*.jsonl"))
    planned = json.loads((tmp_path / "dry" / "plan.json").read_text())
    for counted in ({"site0", "site1"}, {"site0"}):
        if len(counted) == 1:
            more = {"min_available": 2, "timeout": 60.0}
        else:
            more = {}
        flower.run(hash_dim=512, output_dir=str(tmp_path / "out"), **public | more)
        report = json.loads((tmp_path / "out" / "metrics.json").read_text())
        assert [phase["name"] for phase in planned["phases"]] == list(
            report["messages"]
        )
        assert (
            report["class_sizes"].keys()
            == {party["name"] for party in report["parties"]}
            == counted
        )
        for party in report["parties"]:
            every = lines(tmp_path / f"{party['name']}.jsonl")
            mine = [line for line in every if line["run"] == report["run"]["run_id"]]
            assert [line["phase"] for line in mine if line["arrays"]] == list(
                report["messages"]
            )
            counts = next(line for line in mine if line["phase"] == "counts")
            assert party["bytes"] == sum(array["bytes"] for array in counts["arrays"])
        flower.end("site1")
    assert all(line["refused"] for line in lines(tmp_path / "site2.jsonl"))
    assert "site0.jsonl" in (tmp_path / "site0.html").read_text()
