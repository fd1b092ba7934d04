"""`flwr run .` as users start it: simulated parties, real SuperLink, real Ray."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.data.datasets import held_out, load_dataset
from tests.docs.pages import blocks

from .conftest import Flower

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DIGITS = load_dataset("digits")
SMALL = {"scaling": "none", "hash_dim": 2048, "seed": 7}


@pytest.fixture(scope="module")
def first(flower: Flower, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run of three parties at alpha 0.01, its output folder, and the checks that every run must pass."""
    folder = tmp_path_factory.mktemp("out") / "first"
    run = flower.run(nodes=3, alpha=0.01, output_dir=str(folder), **SMALL)
    assert run.row("parties counted") == "3 of 3"
    assert run.row("equal") == "yes"
    assert run.row("output folder") == str(folder)
    for name in ("bytes per party", "accuracy", "balanced accuracy", "macro-F1", "worst party"):
        assert run.row(name)
    assert "Traceback" not in run.output
    return run.row("SHA-256 of the counts"), folder


def test_the_files_hold_what_the_table_says(first: tuple[str, Path]) -> None:
    sha, folder = first
    files = {".federation.npz.lock", "federation.npz", "figures.csv", "metrics.json", "model.npz", "report.html"}
    assert {path.name for path in folder.iterdir()} == files
    metrics = json.loads((folder / "metrics.json").read_text())
    model = FlyNNClassifier.load(folder / "model.npz").model_.sha256()
    same = {"federated": sha, "pooled": sha, "equal": True, "model_equal": True}
    assert metrics["sha256"] == {"model": model, **same}
    assert [member["spec"]["hash_dim"] for member in metrics["members"]] == [2048]
    assert metrics["settings"]["alpha"] == 0.01
    assert sorted(party["name"] for party in metrics["parties"]) == ["party-0", "party-1", "party-2"]
    assert metrics["simulation"]["dealt"] == 1797
    assert metrics["versions"]["flwr"] == version("flwr")


def test_the_saved_model_is_the_pooled_model(first: tuple[str, Path]) -> None:
    sha, folder = first
    model = FlyNNClassifier.load(folder / "model.npz")
    training = ~held_out(1797, 0.2, 0)
    pooled = FlyNNClassifier(spec=model.spec_, decay=model.model_.member.scoring.decay)
    assert model.counts_.sha256() == sha
    assert (pooled.fit(DIGITS.X[training], DIGITS.y[training]).counts_.array == model.counts_.array).all()
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["evaluation"]["accuracy"] == pytest.approx(accuracy_of(model), abs=1e-12)
    assert metrics["examples"] == int(training.sum())


def accuracy_of(model: FlyNNClassifier) -> float:
    """Accuracy on what all parties hold out."""
    test = held_out(1797, 0.2, 0)
    return float(np.mean(model.predict(pd.DataFrame(DIGITS.X[test], columns=DIGITS.feature_names)) == DIGITS.y[test]))


def test_the_counts_do_not_depend_on_the_split_or_the_api(first: tuple[str, Path], flower: Flower) -> None:
    # A second round counts nobody twice.
    run = flower.run(nodes=5, partitioner="iid", nodes_at_a_time=2, **SMALL)
    assert run.row("parties counted") == "5 of 5"
    assert run.row("SHA-256 of the counts") == first[0]
    assert run.row("equal") == "yes"
    # Without output-dir: under FLWR_HOME.
    assert Path(run.row("output folder")).is_relative_to(flower.folder / "home" / "flynn")


def test_columns_are_looked_at_and_the_members_are_selected(flower: Flower, tmp_path: Path) -> None:
    """Three rounds: histograms of the columns, counts of six hashes and the selection, the evaluation."""
    run = flower.run(nodes=3, output_dir=str(tmp_path), hash_dim=512, min_examples=1)
    assert (run.row("equal"), run.row("whole model equal")) == ("yes", "yes")
    assert run.row("parties counted") == "3 of 3"
    report = json.loads((tmp_path / "metrics.json").read_text())
    selection, traffic = report["selection"], report["traffic"]
    assert len(report["specs"]) == len(selection["accuracies"]) == 6
    assert selection["accuracy"] == max(max(each) for each in selection["accuracies"])
    for spec, _, weight in selection["choices"]:
        assert run.row(f"member {spec + 1}").startswith(f"weight {weight:.2f}, decay ")
    assert selection["parties"] == traffic["columns"]["parties"] == 3
    assert selection["examples"] == report["columns"]["examples"] == report["examples"]
    model = FlyNNClassifier.load(tmp_path / "model.npz")
    members = model.model_.members
    assert [[each.scoring.rule, each.scoring.decay, each.scoring.temperature] for each in members] == selection[
        "scorings"
    ]
    assert [each.weight for each in members] == [weight for _, _, weight in selection["choices"]]
    assert report["evaluation"]["accuracy"] == pytest.approx(accuracy_of(model), abs=1e-12)


def test_data_that_cannot_be_used_are_told_first_and_the_page_s_command_reports_the_failure(
    flower: Flower, tmp_path: Path
) -> None:
    (tmp_path / "own.csv").write_text("a,town,label\n" + 9 * "1,Basel,0\n2,Bern\n")
    run = flower.run(nodes=2, dataset=str(tmp_path / "own.csv"), ends="finished:failed")
    printed = [each for each in run.output.splitlines() if each]
    failed = "FAILED: DataError: own.csv: expected as many fields in each row as in the header, "
    told = [i for i, each in enumerate(printed) if each.startswith(failed)]
    assert len(told) == 2, run.output[-6000:]
    assert told[1] == len(printed) - 1
    assert "Exit Code" in printed[told[1] - 1]
    assert "Traceback" not in run.output
    assert not any("ray" in each for each in printed[: told[0]])  # Ray has not started yet
    submit, status, choice = blocks("docs/how_to/run_status.md", "bash")
    assert {pair.split("=")[0] for pair in choice.split()[1:]} <= flower.env.keys()  # by which all tests choose ports
    assert "tee run.log" in submit
    (flower.cwd / "run.log").write_text(run.output)
    # `test_pages.py` runs the page's commands for a run that does not fail.
    found = flower.call("bash", "-c", f"{status}\necho exit $?")
    assert found.split() == ['"status":', '"finished:failed",', "exit", "1"]
