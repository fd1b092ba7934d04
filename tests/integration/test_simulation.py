"""`flwr run .` as users start it: simulated parties, real SuperLink, real Ray."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flwr_flynn import ClassCounts, FlyNNClassifier
from flwr_flynn.app.data.datasets import simulated_dataset
from flwr_flynn.app.run_config import RunConfig
from tests.docs.pages import blocks

from .conftest import DIGITS

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_files_hold_what_the_table_says_and_any_other_run_ends_in_the_same(
    flower, tmp_path
):
    """Three rounds: columns, counts of five hashes and selection, evaluation."""
    given = {"hash_dim": 512, "min_examples": 1, "seed": 7}
    run = flower.run(nodes=3, alpha=0.01, output_dir=str(tmp_path), **given)
    assert "Traceback" not in run.output
    assert run.row("equal") == "yes"
    assert run.row("whole model equal") == "yes"
    assert run.row("parties counted") == "3 of 3"
    assert run.row("output folder") == str(tmp_path)
    for name in (
        "bytes per party",
        "accuracy",
        "balanced accuracy",
        "macro-F1",
        "worst party",
    ):
        assert run.row(name)
    files = {
        ".federation.npz.lock",
        "federation.npz",
        "figures.csv",
        "left.html",
        "metrics.json",
        "model.npz",
        "report.html",
    }
    assert {path.name for path in tmp_path.iterdir()} == files
    report = json.loads((tmp_path / "metrics.json").read_text())
    model = FlyNNClassifier.load(tmp_path / "model.npz")
    counts = run.row("SHA-256 of the counts")
    digests = {
        "federated": counts,
        "pooled": counts,
        "equal": True,
        "model_equal": True,
    }
    assert report["sha256"] == {"model": model.model_.sha256(), **digests}
    assert report["settings"]["alpha"] == 0.01
    assert sorted(party["name"] for party in report["parties"]) == [
        "party-0",
        "party-1",
        "party-2",
    ]
    assert report["simulation"]["dealt"] == 1797
    assert report["versions"]["flwr"] == version("flwr")

    selection = report["selection"]
    members = model.model_.members
    test = simulated_dataset(RunConfig()).test
    assert len(report["specs"]) == len(selection["accuracies"]) == 5
    assert (
        selection["examples"]
        == report["columns"]["examples"]
        == report["examples"]
        == (~test).sum()
    )
    for (spec, _, weight), scoring, member in zip(
        selection["choices"], selection["scorings"], members, strict=True
    ):
        assert run.row(f"member {spec + 1}").startswith(f"weight {weight:.2f}, decay ")
        assert member.weight == weight
        assert [*asdict(member.scoring).values()] == scoring
        assert member.counts == ClassCounts.from_data(
            member.hash, DIGITS.X[~test], DIGITS.y[~test], 10
        )
    predicted = model.predict(
        pd.DataFrame(DIGITS.X[test], columns=DIGITS.feature_names)
    )
    assert report["evaluation"]["accuracy"] == pytest.approx(
        np.mean(predicted == DIGITS.y[test]), abs=1e-12
    )

    # A second round counts nobody twice. Without output-dir the files are under
    # FLWR_HOME.
    split = flower.run(nodes=5, partitioner="iid", nodes_at_a_time=2, **given)
    assert split.row("parties counted") == "5 of 5"
    assert Path(split.row("output folder")).is_relative_to(
        flower.folder / "home" / "flynn"
    )
    secret = flower.run(nodes=4, secure=True, max_examples=2000, **given)
    assert "Secure aggregation completed" in secret.output
    same = (
        "equal",
        "whole model equal",
        "SHA-256 of the counts",
        "SHA-256 of the model",
        "leave-one-out",
        "accuracy",
    )
    for other in (split, secret):
        assert [other.row(what) for what in same] == [run.row(what) for what in same]


def test_unusable_data_are_told_first_and_the_page_s_command_reports_the_failure(
    flower, tmp_path
):
    (tmp_path / "own.csv").write_text("a,town,label\n" + 9 * "1,Basel,0\n2,Bern\n")
    run = flower.run(nodes=2, dataset=str(tmp_path / "own.csv"), ends="finished:failed")
    printed = [line for line in run.output.splitlines() if line]
    failed = (
        "FAILED: DataError: own.csv: expected as many fields in each row as in "
        "the header, "
    )
    places = [i for i, line in enumerate(printed) if line.startswith(failed)]
    assert len(places) == 2, run.output[-6000:]
    assert places[1] == len(printed) - 1
    assert "Exit Code" in printed[places[1] - 1]
    assert "Traceback" not in run.output
    # Ray has not started yet
    assert not any("ray" in line for line in printed[: places[0]])
    submit, status, choice = blocks("docs/how_to/run_status.md", "bash")
    # All tests choose ports by this variable.
    assert {pair.split("=")[0] for pair in choice.split()[1:]} <= flower.env.keys()
    assert "tee run.log" in submit
    (flower.cwd / "run.log").write_text(run.output)
    # `test_pages.py` runs the page's commands for a run that does not fail.
    status_page = flower.call("bash", "-c", f"{status}\necho exit $?")
    assert status_page.split() == ['"status":', '"finished:failed",', "exit", "1"]
