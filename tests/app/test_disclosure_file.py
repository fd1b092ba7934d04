"""A party's record: on the disk before a message leaves, and whole after a crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from flwr_flynn.app.client_app import deployed_client
from flwr_flynn.app.disclosure_file import KINDS, lines, page, recorder, sentence_of
from flwr_flynn.app.report.markup import in_bytes
from flwr_flynn.federated.disclosure import Disclosure
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import TREES
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.phases.evaluation import EVALUATION
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.federated.protocol import EXACT, REFUSED
from flwr_flynn.federated.request import SENTENCES
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import LaplaceCounts
from tests.app.test_client_app import (
    ROWS,
    RUN,
    asking,
    context,
    csv_file,
    fit,
    noisy,
    own,
)

__all__ = ["own"]

HOSTILE = "<script>alert(1)</script>"
PLAIN = Disclosure(
    "2026-11-24T10:00:00+00:00",
    HOSTILE,
    "train",
    "nothing",
    HOSTILE,
    0,
    (),
    {HOSTILE: 9},
    9,
    None,
)


@pytest.fixture
def recorded(own: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The node config of a party with a file of 64 samples and a record."""
    return own | {"record-path": str(tmp_path / "left.jsonl")}


def test_each_message_is_a_line_and_a_row_of_the_page(recorded, tmp_path):
    assert fit(context(recorded), deployed_client)[1] == 64
    fit(context(recorded | {"data-path": "none.npz"}), deployed_client)
    fit(context(recorded | {"no-such-key": 1}), deployed_client)
    records = lines(tmp_path / "left.jsonl")
    for record in records:
        assert (record["run"], record["phase"]) == ("1", "counts")
    sent, no_file, no_setting = records
    assert (sent["kind"], sent["examples"]) == ("exact", 64)
    of_arrays = sum(array["bytes"] for array in sent["arrays"])
    assert of_arrays + sum(sent["entries"].values()) == sent["bytes"]
    assert (no_file["kind"], no_file["examples"]) == ("nothing", 0)
    assert "none.npz" in no_file["refused"]
    assert (no_setting["kind"], no_setting["examples"]) == ("nothing", 0)
    assert no_setting["refused"].startswith("node-config no-such-key")
    shown = (tmp_path / "left.html").read_text()
    size = in_bytes(sum(record["bytes"] for record in records))
    assert f"3 messages, {size}" in shown
    assert "number of samples sent along: 64</div><div>fingerprint: 32 uint8" in shown
    # The sentence stands at the top, and in its row.
    sentence = CountsRequest.sentence
    assert shown.count(sentence) == 2
    assert shown.count("<details>") == 3
    assert shown.index(sentence) < shown.index("<table") < shown.index("<details>")
    # The latest message comes first.
    assert shown.index("none.npz") < shown.index("number of samples sent along: 64")
    if os.name != "nt":
        for name in ("left.jsonl", "left.html"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_the_page_says_how_many_rows_of_a_private_site_fitted(tmp_path):
    """A file that does not fit at all is answered, and charged, like any other."""
    node = csv_file(tmp_path / "mine.csv", [*ROWS[:9], "x" + ROWS[9], "1,2"])
    node |= {"max-epsilon": 3.0, "state-path": str(tmp_path / "state")}
    node |= {"record-path": str(tmp_path / "left.jsonl"), "gap-texts": "x"}
    fit(context(node), run=noisy())
    fit(context(node), run=noisy())  # the same answer again
    csv_file(tmp_path / "mine.csv", [])
    other = noisy(LaplaceCounts(0.5, hash_nnz=4, n_classes=10))
    fit(context(node | {"data-path": str(tmp_path / "other.csv")}), run=other)
    none = csv_file(tmp_path / "none.csv", ["?" + row for row in ROWS])
    state = {"state-path": str(tmp_path / "other")}
    fit(context(node | none | state), run=noisy())
    read = [
        (record.get("rows_fitting"), record.get("rows_read"), record["refused"] is None)
        for record in lines(tmp_path / "left.jsonl")
    ]
    n = len(ROWS)
    assert read == [
        (9, 11, True),
        (None, None, True),
        (None, None, False),
        (0, n, True),
    ]
    shown = (tmp_path / "left.html").read_text()
    assert "rows 9 of 11 fitted the request" in shown
    assert f"rows 0 of {n} fitted" in shown
    sizes = [record["bytes"] for record in lines(tmp_path / "left.jsonl")]
    assert sizes[0] == sizes[3]


def test_each_exchange_of_a_run_has_a_sentence_of_its_own_or_of_its_kind():
    options = RunOptions(
        HashPlan(4, 2, scaling="auto", effort="thorough"),
        ("a", "b"),
        2,
        learn_schema=True,
    )
    names = [phase.name for phase in phases_of(options) if phase is not EVALUATION]
    before = ["schema", "columns", "counts", "selection", "calibration"]
    assert names == [*before, *TREES, "forest"]
    plain = {"refused": None, "kind": EXACT}
    # Levels of trees have one request, and the forest is calibrated by that of before.
    for name in [*before, "trees"]:
        assert sentence_of(plain | {"phase": name}) != SENTENCES[EXACT]
    for kind in KINDS:
        record = {"refused": None, "phase": "an own phase", "kind": kind}
        assert sentence_of(record) == SENTENCES[kind]
    assert sentence_of({"refused": "why"}) not in SENTENCES.values()


def test_a_line_that_a_crash_cut_off_costs_no_other_line(tmp_path):
    path = tmp_path / "left.jsonl"
    path.write_text(PLAIN.to_json(run="6") + '\n{"time": "2026')
    recorder(path, 7, {})(PLAIN)
    assert [record.get("run") for record in lines(path)] == ["6", "7"]
    text = page(lines(path) * 600, "left.jsonl")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "The latest 1,000 messages" in text
    # The cost of the page does not grow with the file.
    assert len(lines(path, 300)) == 1
    assert text.count("<tr>") == 1001


def test_without_the_line_nothing_leaves_and_without_the_page_all(recorded, tmp_path):
    (tmp_path / "left.html").mkdir()
    refused = fit(context(recorded), deployed_client)
    assert refused[:2] == (0, 0)
    assert refused[2][REFUSED].startswith("node-config record-path: ")
    (tmp_path / "left.html").rmdir()
    client = deployed_client(context(recorded))
    (tmp_path / "left.html").mkdir()
    assert client.fit(asking(CountsRequest(RUN))).num_examples == 64
    (tmp_path / "left.jsonl").unlink()
    (tmp_path / "left.jsonl").mkdir()
    answer = client.fit(asking(CountsRequest(RUN)))
    assert (answer.parameters.tensors, answer.num_examples) == ([], 0)
    assert (
        answer.metrics[REFUSED]
        == "the record of this party's answers cannot be written"
    )
