"""The verb `try`: a federation of files in this process, and the faults that it tells before."""

from __future__ import annotations

import csv
import json
import logging
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import ClassCounts, FlyNNClassifier
from flwr_flynn.app import try_files
from flwr_flynn.app.cli import main
from flwr_flynn.app.data.own_file import encoded_share
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.federated.samples import codes_of
from flwr_flynn.model.model import counts_sha256
from tests.docs.pages import text_of
from tests.raising import raises

COLUMNS = ("age", "pressure", "sex", "ward", "outcome")
QUICK = ("--label", "outcome", "--set", "effort=quick")


def hospital(
    path: str, n: int, seed: int, columns: Sequence[str] = COLUMNS, separator: str = ",", **renamed: str
) -> list[dict[str, str]]:
    """Write a file of patients, with other names for some columns or labels, and return its rows."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        ill = int(random.integers(2))
        pressure = f"{120 + 15 * ill + random.normal() * 9:.1f}" if i % 10 else ""
        values = str(int(40 + 20 * ill + random.normal() * 8)), pressure, "fm"[i % 2], "ABC"[i % 3], ("no", "yes")[ill]
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    with open(path, "w", newline="") as stream:
        out = csv.writer(stream, delimiter=separator)
        out.writerow([renamed.get(name, name) for name in columns])
        for row in rows:
            cells = [renamed.get(row[name], row[name]) for name in columns]
            out.writerow([text.replace(".", ",") for text in cells] if separator == ";" else cells)
    return rows


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the files of three hospitals."""
    monkeypatch.chdir(tmp_path)
    hospital("basel.csv", 90, 1)
    hospital("bern.csv", 60, 2, ("outcome", "ward", "age", "sex", "pressure"), ";")
    hospital("chur.csv", 60, 3, ("sex", "pressure", "age", "outcome", "ward"), "\t")
    return tmp_path


def tried(*arguments: str, out: str = "flwr-flynn-try") -> dict[str, Any]:
    """The report of a trial that succeeds."""
    assert main(["try", *arguments, "--out", out]) == 0
    report: dict[str, Any] = json.loads(Path(out, "metrics.json").read_text())
    return report


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[str]]:
    """The faults of each file in a trial that is refused."""
    capsys.readouterr()
    assert main(["try", *arguments]) == 1
    found: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("REFUSED: "):
            _, name, fault = line.split(": ", 2)
            found.setdefault(name, []).append(fault)
    assert not Path("flwr-flynn-try").exists()
    return found


# -------- the run


def test_the_command_that_readme_opens_with_leads_to_a_report(folder: Path) -> None:
    command = shlex.split(re.findall(r"^`(flwr-flynn [^`]+)`$", text_of("README.md"), re.MULTILINE)[0])
    assert main(command[1:]) == 0
    assert {"report.html", "model.npz"} <= {path.name for path in (folder / "flwr-flynn-try").iterdir()}


def test_gaps_that_tell_the_site_are_in_table_and_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, n in (("basel", 160), ("bern", 160), ("chur", 300)):
        ill = [row for row in hospital(f"{name}.csv", n, 1) if name != "chur" or row["outcome"] == "yes"]
        with open(f"{name}.csv", "w", newline="") as stream:
            out = csv.DictWriter(
                stream, [c for c in COLUMNS if name != "chur" or c != "pressure"], extrasaction="ignore"
            )
            out.writeheader()
            out.writerows(ill)
    report = tried("basel.csv", "bern.csv", "chur.csv", *QUICK, out="made")
    assert set(report["schema"]["coinciding"]) == {"pressure"}
    text = report["schema"]["coinciding"]["pressure"]
    assert text in (folder / "made" / "report.html").read_text()
    assert text in capsys.readouterr().out


def test_three_files_are_a_deployment_of_three_parties(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    level = logging.getLogger("flwr").level
    report = tried("basel.csv", "bern.csv", "chur.csv", *QUICK, out="made")
    assert [party["name"] for party in report["parties"]] == ["basel", "bern", "chur"]
    assert report["missing"] == {}
    assert "simulation" not in report
    assert report["classes"] == ["no", "yes"]
    assert [column["name"] for column in report["schema"]["columns"]] == ["age", "pressure", "sex", "ward"]
    assert 0 < report["evaluation"]["examples"] == 210 - report["examples"]
    assert sorted(path.name for path in (folder / "made").iterdir()) == [
        "figures.csv",
        "metrics.json",
        "model.npz",
        "report.html",
    ]
    printed = capsys.readouterr().out.splitlines()
    names = ("report.html", "figures.csv", "model.npz", "metrics.json")
    assert printed[-4:] == [str(folder / "made" / name) for name in names]
    assert logging.getLogger("flwr").level == level

    again = tried("chur.csv", "basel.csv", "bern.csv", *QUICK)
    assert again["sha256"] == report["sha256"]

    # The counts are those of the rows that a deployed party would count.
    model = FlyNNClassifier.load(folder / "made" / "model.npz").model_
    assert model.schema is not None
    nodes = [NodeConfig(data_path=f"{name}.csv", label="outcome") for name in ("basel", "bern", "chur")]
    shares = [encoded_share(node, model.schema) for node in nodes]
    X, y = (np.concatenate([getattr(share, name) for share in shares]) for name in ("X", "y"))
    (member,) = model.members
    counts = ClassCounts.from_data(member.hash, X, codes_of(model.classes.tolist(), y), 2)
    assert counts.sha256() == member.counts.sha256()
    assert counts_sha256(model.members) == report["sha256"]["federated"]


def test_one_file_is_a_party_alone() -> None:
    report = tried("basel.csv", *QUICK)
    assert [party["name"] for party in report["parties"]] == ["basel"]


def test_labels_that_are_numbers_are_numbers_in_every_form(folder: Path) -> None:
    hospital("a.csv", 60, 1, no="0", yes="1")
    hospital("b.csv", 60, 2, no="0.0", yes="1.0")
    report = tried("a.csv", "b.csv", *QUICK)
    assert report["classes"] == [0, 1]
    assert len(report["parties"]) == 2


def test_files_of_one_name_are_parties_of_their_own(folder: Path) -> None:
    for name in ("bern", "basel"):
        (folder / name).mkdir()
        hospital(f"{name}/own.csv", 60, len(name))
    report = tried("bern/own.csv", "basel/own.csv", "basel/own.csv", *QUICK)
    assert [party["name"] for party in report["parties"]] == ["bern-own", "basel-own", "basel-own-3"]


def test_a_dry_run_asks_nobody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", "basel.csv", "bern.csv", *QUICK, "--set", "dry-run=true"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder / "flwr-flynn-try" / "plan.json")
    assert [path.name for path in (folder / "flwr-flynn-try").iterdir()] == ["plan.json"]
    assert json.loads((folder / "flwr-flynn-try" / "plan.json").read_text())["parties"] == 2


# -------- one file that is split


def test_a_column_splits_a_file_into_parties(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = hospital("own.csv", 120, 4, separator=";", A="Bâle", B="B/2", C="")
    report = tried("own.csv", "--by", "ward", *QUICK)
    assert [party["name"] for party in report["parties"]] == ["B_2", "Bâle"]
    assert report["examples"] + report["evaluation"]["examples"] == sum(row["ward"] != "C" for row in rows)
    assert [column["name"] for column in report["schema"]["columns"]] == ["age", "pressure", "sex"]
    assert " 40 rows" in capsys.readouterr().out


def test_what_cannot_be_split_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_files, "_MOST_PARTS", 2)
    np.savez(folder / "own.npz", X=np.zeros((2, 2)), y=np.zeros(2))
    node = {"label": "outcome"}
    for paths, by in ((["own.npz"], "a"), (["basel.csv", "bern.csv"], "ward"), (["basel.csv"], "ward")):
        with raises(try_files.ConfigError, field="--by"):
            try_files.run_files(paths, node, by)
    with raises(try_files.DataError, field="basel.csv", expected="a column 'gone'"):
        try_files.run_files(["basel.csv"], node, "gone")


# -------- faults


def test_the_faults_of_all_files_are_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hospital("zug.csv", 60, 4, outcome="result")
    hospital("uri.csv", 60, 5, yes="ja", no="nein")
    files = ["basel.csv", "zug.csv", "uri.csv", "gone.csv"]
    faults = refused(capsys, *files, *QUICK)
    assert faults.keys() == {"zug.csv", "uri.csv", "gone.csv"}
    assert "'result'" in faults["zug.csv"][0]
    assert faults["zug.csv"][0].endswith("; --set zug:label=result")
    assert faults["uri.csv"][0].startswith("2 of 2 label values")
    assert faults["uri.csv"][0].endswith("'ja', 'nein'; --set uri:label-map=ja=...,nein=...")
    # The settings mend them, and a run may go on without a party.
    report = tried(*files, *QUICK, "--set", "zug:label=result", "--set", "min-parties=2")
    assert [party["name"] for party in report["parties"]] == ["basel", "zug"]
    assert report["missing"].keys() == {"uri", "gone"}
    assert tried("basel.csv", "uri.csv", *QUICK, "--set", "classes=ja,nein,no,yes")["classes"][0] == "ja"
    mapped = tried("basel.csv", "uri.csv", *QUICK, "--set", "uri:label-map=ja=yes,nein=no")
    assert (mapped["classes"], len(mapped["parties"])) == (["no", "yes"], 2)


def test_a_column_that_tells_many_texts_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of patients who came often are levels like others: a trial says so."""
    lines = (folder / "basel.csv").read_text().splitlines()
    rows = [f"{line},Meier {index % 25}, Hans" for index, line in enumerate(lines[1:] * 3)]
    (folder / "named.csv").write_text("\n".join([f"{lines[0]},patient,first", *rows]))
    tried("named.csv", *QUICK, out="one")
    assert "column 'patient' tells " in capsys.readouterr().out
    tried("named.csv", *QUICK, "--set", "ignore=patient", out="two")
    names = {column.name for column in FlyNNClassifier.load("two/model.npz").model_.schema.columns}  # type: ignore[union-attr]
    assert names == {"age", "pressure", "sex", "ward", "first"}


def test_all_faults_of_one_file_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "basel.csv").read_text().splitlines()
    (folder / "zug.csv").write_text("\n".join([lines[0].replace("age", "years"), *lines[1:60], "1,2", "3,4,f,A,"]))
    (folder / "uri.csv").write_text(lines[0] + "\n")
    words = ["unknown" + line[2:] for line in lines[1:60]]
    (folder / "glarus.csv").write_text("\n".join([lines[0], *words]))
    files = ["basel.csv", "bern.csv", "zug.csv", "uri.csv", "glarus.csv"]
    faults = refused(capsys, *files, *QUICK)
    assert [len(faults[name]) for name in ("zug.csv", "uri.csv", "glarus.csv")] == [2, 1, 1]
    broken, columns = faults["zug.csv"]
    assert broken.endswith("--set zug:separator=...")
    assert "1 of 4 missing: 'age'; 1 others; in this file: 'years'" in columns
    assert faults["glarus.csv"][0].endswith("--set glarus:gap-texts=...")
    report = tried("basel.csv", "glarus.csv", *QUICK, "--set", "glarus:gap-texts=unknown")
    assert len(report["parties"]) == 2


def test_a_class_that_one_site_alone_has_is_a_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "basel.csv").read_text().splitlines()
    (folder / "zug.csv").write_text("\n".join([*lines, *(line.replace(",no", ",perhaps") for line in lines[1:20])]))
    assert tried("basel.csv", "zug.csv", *QUICK)["classes"] == ["no", "perhaps", "yes"]
    assert "zug.csv: note: 1 of 3" in capsys.readouterr().out
    given = [*QUICK, "--set", "classes=no,yes"]
    assert main(["try", "basel.csv", "zug.csv", *given]) == 1


def test_labels_of_very_many_values_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(try_files, "MOST_CLASSES", 1)
    assert refused(capsys, "basel.csv", "bern.csv", *QUICK).keys() == {"all files"}


# -------- settings


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("decay=2", "run-config decay"),
        ("timeout=x", "run-config timeout"),
        ("dry-run=1", "run-config dry-run"),
        ("epsilon=1", "--set"),
        ("min-available=1", "--set"),
        ("dataset=x", "--set"),
        ("quick", "--set"),
        ("gone:label=x", "--set"),
        ("basel:min-available=1", "--set"),
    ],
)
def test_a_wrong_setting_is_refused(text: str, field: str) -> None:
    with raises(try_files.ConfigError, field=field):
        try_files.run_files(["basel.csv"], {"label": "outcome"}, settings=[text])


def test_settings_reach_the_run_and_the_party(folder: Path) -> None:
    given = ["seed=7", 'effort="quick"', 'classes=["no", "yes"]', "decay=0.5", "group-column=ward"]
    more = ["basel:test-fraction=0.5", "bern:test-fraction=0"]
    arguments = [part for text in (*given, *more) for part in ("--set", text)]
    report = tried("basel.csv", "bern.csv", "--label", "outcome", *arguments)
    assert {key: report["settings"][key] for key in ("seed", "effort", "decay")} == {
        "seed": 7,
        "effort": "quick",
        "decay": "0.5",
    }
    assert report["members"][0]["seed"] == 7
    assert [party["examples"] for party in report["parties"]][1] == 60
    assert report["evaluation"]["examples"] > 30


def test_options_of_csv_files_are_node_settings_of_all_parties(folder: Path) -> None:
    for name in ("a", "b"):
        hospital(f"{name}.csv", 60, ord(name), separator="|", f="not known")
    options = ["--separator", "pipe", "--decimal", ".", "--encoding", "utf-8", "--gap-text", "not known"]
    report = tried("a.csv", "b.csv", *QUICK, *options)
    column = next(column for column in report["schema"]["columns"] if column["name"] == "sex")
    assert (column["levels"], column.get("gaps", True)) == (["m"], True)


def test_the_parts_of_a_file_are_read_as_the_whole_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One part has groups of three digits alone, of which its own rows would not tell the decimal mark."""
    rows = [f"{site};{value},{i % 10}5;{'no' if i % 2 else 'yes'}" for i, (site, value) in enumerate([("a", 1)] * 40)]
    rows += [f"b;{i + 1},250;{'no' if i % 2 else 'yes'}" for i in range(40)]
    (folder / "whole.csv").write_text("site;dose;label\n" + "\n".join(rows) + "\n")
    parts, found = try_files._split([str(folder / "whole.csv")], "site", {}, folder)
    assert found == {"separator": ";", "decimal": ",", "encoding": "utf-8"}
    assert [part.stem for part in parts] == ["a", "b"]
    assert try_files.run_files([str(folder / "whole.csv")], {"test-fraction": 0.0}, "site") == 0
    assert "REFUSED" not in capsys.readouterr().out
