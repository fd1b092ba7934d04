"""Records of SuperNodes as processes: a mod outside the package sees the same messages leave."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flwr_flynn.app.disclosure_file import lines

from .conftest import DIGITS, Deployment
from .test_pages import checkout

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MOD = '''

def observed(request, context, call_next):
    """Write down the size of a reply on its way, beside the party's record, as the outermost mod."""
    import json, pathlib
    from flwr_flynn.federated import codec
    from flwr_flynn.federated.permissions import n_bytes
    reply = call_next(request, context)
    content = reply.content
    kind = "fitres" if "fitres.metrics" in content.config_records else "evaluateres"
    metrics = dict(content.config_records[f"{kind}.metrics"])
    joined = metrics.pop("flynn-statistic", b"")
    arrays = [array.data for each in content.array_records.values() for array in each.values()]
    arrays = codec.split(joined) if joined else arrays
    line = {"bytes": sum(map(len, arrays)) + n_bytes(metrics), "refused": metrics.get("flynn-refused")}
    path = pathlib.Path(context.node_config["record-path"]).with_suffix(".seen")
    with path.open("a") as file:
        file.write(json.dumps(line) + chr(10))
    return reply


app = ClientApp(client_fn=client_fn, mods=[observed, secagg.mod, in_message_api])
'''


def test_the_records_of_supernodes_are_what_a_mod_saw(deployment: Callable[..., Deployment], tmp_path: Path) -> None:
    """Three parties, of which one refuses, and one is killed behind the counts and misses the next run."""
    folder = checkout(tmp_path / "app")
    client = folder / "flwr_flynn" / "app" / "client_app.py"
    client.write_text(client.read_text() + MOD)
    sites = {
        f"site{i}": {"data": (DIGITS.X[i::3], DIGITS.y[i::3]), "record_path": str(tmp_path / f"site{i}.jsonl")}
        for i in range(3)
    }
    sites["site2"]["secure"] = True
    flower = deployment(sites)
    public = {"n_features": 64, "classes": "0,1,2,3,4,5,6,7,8,9", "min_available": 3, "min_parties": 1, "seed": 7}
    alone = public | {"min_available": 9, "output_dir": str(tmp_path / "dry")}  # more than there are
    flower.run(folder, hash_dim=512, dry_run=True, **alone)
    assert not list(tmp_path.glob("*.jsonl"))
    for killed in (False, True):
        if killed:
            flower.end("site1")
        more = {"min_available": 2, "timeout": 60.0} if killed else {}
        flower.run(folder, hash_dim=512, output_dir=str(tmp_path / "out"), **public | more)
        report = json.loads((tmp_path / "out" / "metrics.json").read_text())
        planned = json.loads((tmp_path / "dry" / "plan.json").read_text())
        assert [phase["name"] for phase in planned["phases"]] == list(report["messages"])
        for i in range(3):
            records = lines(tmp_path / f"site{i}.jsonl")
            seen = [json.loads(line) for line in (tmp_path / f"site{i}.seen").read_text().splitlines()]
            assert [{name: each[name] for name in ("bytes", "refused")} for each in records] == seen
        last = [each for each in lines(tmp_path / "site0.jsonl") if each["run"] == report["run"]["run_id"]]
        assert [each["phase"] for each in last if each["arrays"]] == list(report["messages"])
        (mine,) = [party for party in report["parties"] if party["name"] == "site0"]
        counts = next(each for each in last if each["phase"] == "counts")
        assert mine["bytes"] == sum(array["bytes"] for array in counts["arrays"])
        assert report["class_sizes"].keys() == ({"site0"} if killed else {"site0", "site1"})
    assert all(each["refused"] for each in lines(tmp_path / "site2.jsonl"))
    assert "site0.jsonl" in (tmp_path / "site0.html").read_text()
    shutil.rmtree(folder)
