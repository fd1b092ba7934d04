"""The verb `try`: a federation of files in this process, and their faults."""

from __future__ import annotations

import csv
import json
import logging
import re
import shlex
import stat
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
from flwr_flynn.federated.labels import codes_of
from flwr_flynn.model.model import counts_sha256
from tests.docs.pages import text_of
from tests.snapshots import assert_on_record, assert_refused_as_on_record

COLUMNS = ("age", "pressure", "sex", "ward", "outcome")
QUICK = ("--label", "outcome", "--set", "effort=quick")


def hospital(
    path: str,
    n: int,
    seed: int,
    columns: Sequence[str] = COLUMNS,
    separator: str = ",",
    **renamed: str,
) -> list[dict[str, str]]:
    """Write a file of patients, and return its rows.

    Some columns or labels may have other names.
    """
    random = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        ill = int(random.integers(2))
        pressure = ""
        if i % 10:
            pressure = f"{120 + 15 * ill + random.normal() * 9:.1f}"
        values = (
            str(int(40 + 20 * ill + random.normal() * 8)),
            pressure,
            "fm"[i % 2],
            "ABC"[i % 3],
            ("no", "yes")[ill],
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    with open(path, "w", newline="") as stream:
        out = csv.writer(stream, delimiter=separator)
        for row in [{name: name for name in columns}, *rows]:
            cells = [renamed.get(row[name], row[name]) for name in columns]
            if separator == ";":
                cells = [text.replace(".", ",") for text in cells]
            out.writerow(cells)
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
    assert main(["try", *arguments, *QUICK, "--out", out]) == 0
    report: dict[str, Any] = json.loads(Path(out, "metrics.json").read_text())
    return report


def names(report: dict[str, Any]) -> list[str]:
    return [party["name"] for party in report["parties"]]


def features(report: dict[str, Any]) -> list[str]:
    return [column["name"] for column in report["schema"]["columns"]]


# -------- the run


def test_the_command_that_readme_opens_with_leads_to_a_report(folder):
    command = shlex.split(
        re.findall(r"^`(flwr-flynn [^`]+)`$", text_of("README.md"), re.MULTILINE)[0]
    )
    assert main(command[1:]) == 0
    assert {"report.html", "model.npz"} <= {
        path.name for path in (folder / "flwr-flynn-try").iterdir()
    }


def test_gaps_that_tell_the_site_are_in_table_and_report(folder, capsys):
    hospital("basel.csv", 160, 1)
    hospital("bern.csv", 160, 1)
    hospital("chur.csv", 300, 1, ("age", "sex", "ward", "outcome"))
    lines = (folder / "chur.csv").read_text().splitlines(keepends=True)
    (folder / "chur.csv").write_text(
        "".join(
            line for line in lines if not line.startswith("no", line.rindex(",") + 1)
        )
    )
    report = tried("basel.csv", "bern.csv", "chur.csv", out="made")
    ((column, text),) = report["schema"]["coinciding"].items()
    assert column == "pressure"
    assert text in (folder / "made" / "report.html").read_text()
    assert text in capsys.readouterr().out


def test_three_files_are_a_deployment_of_three_parties(folder, capsys):
    level = logging.getLogger("flwr").level
    report = tried("basel.csv", "bern.csv", "chur.csv", out="made")
    assert (names(report), report["missing"], report["classes"]) == (
        ["basel", "bern", "chur"],
        {},
        ["no", "yes"],
    )
    assert "simulation" not in report
    assert features(report) == ["age", "pressure", "sex", "ward"]
    assert 0 < report["evaluation"]["examples"] == 210 - report["examples"]
    written = [
        "report.html",
        "left.html",
        "figures.csv",
        "model.npz",
        "metrics.json",
    ]
    made = [path for path in (folder / "made").iterdir() if path.suffix != ".lock"]
    assert {path.name for path in made} == {*written}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}
    assert stat.S_IMODE((folder / "made").stat().st_mode) == 0o700
    assert capsys.readouterr().out.splitlines()[-5:] == [
        str(folder / "made" / name) for name in written
    ]
    assert logging.getLogger("flwr").level == level
    assert tried("chur.csv", "basel.csv", "bern.csv")["sha256"] == report["sha256"]

    # The counts are those of the rows that a deployed party would count.
    model = FlyNNClassifier.load(folder / "made" / "model.npz").model_
    nodes = [
        NodeConfig(data_path=f"{name}.csv", label="outcome") for name in names(report)
    ]
    shares = [encoded_share(node, model.schema) for node in nodes]  # type: ignore[arg-type]
    X, y = (
        np.concatenate([getattr(share, name) for share in shares])
        for name in ("X", "y")
    )
    (member,) = model.members
    counts = ClassCounts.from_data(
        member.hash, X, codes_of(model.classes.tolist(), y), 2
    )
    assert counts.sha256() == member.counts.sha256()
    assert counts_sha256(model.members) == report["sha256"]["federated"]


def test_the_linear_part_asks_nobody_for_consent_in_one_process():
    files = ["basel.csv", "bern.csv", "--label", "outcome"]
    assert main(["try", *files, "--set", "effort=thorough"]) == 0
    report = json.loads(Path("flwr-flynn-try/metrics.json").read_text())
    assert report["linear"]["examples"] == report["examples"]
    typed = "flwr-flynn try basel.csv bern.csv --label outcome --set effort=thorough"
    assert report["run"]["command"] == typed
    assert f"<pre>{typed}</pre>" in Path("flwr-flynn-try/report.html").read_text()


def test_labels_that_are_numbers_are_numbers_in_every_form():
    hospital("a.csv", 60, 1, no="0", yes="1")
    hospital("b.csv", 60, 2, no="0.0", yes="1.0")
    report = tried("a.csv", "b.csv")
    assert (report["classes"], names(report)) == ([0, 1], ["a", "b"])


def test_files_of_one_name_are_parties_of_their_own(folder):
    for name in ("bern", "basel"):
        (folder / name).mkdir()
        hospital(f"{name}/own.csv", 60, len(name))
    report = tried("bern/own.csv", "basel/own.csv", "basel/own.csv")
    assert names(report) == ["bern-own", "basel-own", "basel-own-3"]


def test_a_dry_run_asks_nobody(folder, capsys):
    assert main(["try", "basel.csv", "bern.csv", *QUICK, "--set", "dry-run=true"]) == 0
    (path,) = (folder / "flwr-flynn-try").iterdir()
    assert capsys.readouterr().out.splitlines()[-1] == str(path)
    assert (path.name, json.loads(path.read_text())["parties"]) == ("plan.json", 2)


# -------- one file that is split


def test_a_column_splits_a_file_into_parties(capsys):
    rows = hospital("own.csv", 120, 4, separator=";", A="Bâle", B="B/2", C="")
    report = tried("own.csv", "--by", "ward")
    assert names(report) == ["B_2", "Bâle"]
    assert report["examples"] + report["evaluation"]["examples"] == sum(
        row["ward"] != "C" for row in rows
    )
    assert features(report) == ["age", "pressure", "sex"]
    assert " 40 rows" in capsys.readouterr().out


def test_the_parts_of_a_file_are_read_as_the_whole_one(folder, capsys):
    """One part alone would not tell the decimal mark: it has groups of three digits."""
    labels = ["yes", "no"] * 20
    rows = [f"a;1,{i % 10}5;{label}" for i, label in enumerate(labels)]
    rows += [f"b;{i + 1},250;{label}" for i, label in enumerate(labels)]
    (folder / "whole.csv").write_text("site;dose;label\n" + "\n".join(rows) + "\n")
    parts, dialect = try_files._split([str(folder / "whole.csv")], "site", {}, folder)
    assert dialect == {"separator": ";", "decimal": ",", "encoding": "utf-8"}
    assert [part.stem for part in parts] == ["a", "b"]
    settings = {"test-fraction": 0.0}
    assert try_files.run_files([str(folder / "whole.csv")], settings, "site") == 0
    assert "REFUSED" not in capsys.readouterr().out


# -------- faults


@pytest.fixture
def faulty(folder: Path) -> None:
    """Files with faults, beside that of Basel."""
    head, *rows = (folder / "basel.csv").read_text().splitlines()
    hospital("label.csv", 60, 4, outcome="result")
    hospital("codes.csv", 60, 5, yes="ja", no="nein")
    contents = {
        "ragged": [head.replace("age", "years"), *rows[:60], "1,2", "3,4,f,A,"],
        "empty": [head],
        "words": [head, *("unknown" + row[2:] for row in rows[:60])],
        "more": [head, *rows, *(row.replace(",no", ",perhaps") for row in rows[:19])],
    }
    for name, lines in contents.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.usefixtures("faulty")
def test_the_faults_of_all_files_are_told_at_once(capsys):
    """Each with the setting that mends it, in the words on record; nothing is written."""
    record = Path(__file__).parent / "faults.txt"
    shown = ""
    for line in re.findall(
        r"^\$ flwr-flynn try (.*)$", record.read_text("utf-8"), re.MULTILINE
    ):
        assert main(["try", *line.split(), *QUICK]) == 1
        shown += f"$ flwr-flynn try {line}\n{capsys.readouterr().out}\n"
    assert not Path("flwr-flynn-try").exists()
    assert_on_record(record, shown)


@pytest.mark.usefixtures("faulty")
def test_the_settings_mend_the_faults_as_it_is_on_record(capsys):
    """Parties and classes of a run with these files and settings.

    Also a note about a label of few, and a party alone.
    """

    def mended(case: list[str]) -> str:
        files, settings = case
        given = [part for text in settings.split() for part in ("--set", text)]
        report = tried(*(f"{name}.csv" for name in files.split()), *given)
        assert report["missing"].keys() == {*files.split()} - {*names(report)}
        text = f"{', '.join(names(report))} with the classes {report['classes']}"
        if "more.csv: note: 1 of 3" in capsys.readouterr().out:
            text += ", with a note"
        return text

    assert_refused_as_on_record(Path(__file__).parent / "mended.txt", {"try": mended})


def test_the_number_of_texts_of_a_column_is_printed(folder, capsys):
    """Texts of patients who came often are levels like others: a trial shows them."""
    head, *rows = (folder / "basel.csv").read_text().splitlines()
    named = [
        f"{row},Meier {index % 25}, Hans,{index % 25}"
        for index, row in enumerate(rows * 3)
    ]
    (folder / "named.csv").write_text("\n".join([f"{head},patient,first,id", *named]))
    tried("named.csv", "--set", "ignore=id")
    assert re.search("patient +category +0 +25\n", capsys.readouterr().out)
    usual = ["age", "pressure", "sex", "ward"]
    assert features(tried("named.csv", "--set", "ignore=patient,id")) == [
        usual[0],
        "first",
        *usual[1:],
    ]
    # Where the ids are known, a level needs so many patients.
    assert features(tried("named.csv", "--set", "named:held-out-key=id")) == [
        usual[0],
        "first",
        *usual[1:],
    ]


def test_no_result_replaces_a_file_that_was_read(capsys):
    before = Path("basel.csv").read_bytes()
    Path("figures.csv").symlink_to("basel.csv")
    assert main(["try", "figures.csv", "bern.csv", "--out", ".", *QUICK]) == 1
    assert Path("basel.csv").read_bytes() == before
    assert not Path("model.npz").exists()


def test_a_column_of_groups_that_is_not_learned_is_named(capsys, caplog):
    tried("basel.csv", "bern.csv", "--set", "group-column=ward")
    assert "'ward'" not in caplog.text
    tried("basel.csv", "bern.csv", "--set", "group-column=age")
    assert "no category 'age' was learned" in caplog.text


@pytest.mark.parametrize(("event", "why"), [("", "rarer"), ("no", "set")])
def test_the_event_of_the_command_is_in_the_report(event, why):
    known = tried("basel.csv", "bern.csv", "--event", event)["event"]
    assert known["why"] == why
    assert event in ("", known["label"])


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("seed=0", ["basel", "bern"]),
        ("basel:table-one=false", ["bern"]),
        ("table-one=false", []),
    ],
)
def test_the_columns_of_files_that_agree_are_in_the_report(setting, shown):
    made = tried("basel.csv", "bern.csv", "--set", setting)["table_one"]
    assert [site["name"] for site in (made or {"sites": []})["sites"]] == shown
    if made:
        assert made["not_shown"] == sorted({"basel", "bern"} - {*shown})


def test_an_event_that_is_no_class_is_refused_before_anything_runs(capsys):
    arguments = ["--event", "maybe", "--out", "out", *QUICK]
    assert main(["try", "basel.csv", "bern.csv", *arguments]) == 1
    expected = "event: expected one of no, yes, got maybe"
    assert expected in capsys.readouterr().err
    assert not Path("out", "metrics.json").exists()


def test_labels_of_very_many_values_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(try_files, "MOST_CLASSES", 1)
    assert main(["try", "basel.csv", "bern.csv", *QUICK]) == 1
    refused = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("REFUSED: ")
    ]
    assert [line.split(": ")[1] for line in refused] == ["all files"]


# -------- settings


def test_what_cannot_be_set_or_split_is_refused_as_it_is_on_record(folder, monkeypatch):
    """Files, the column to split one by, and settings.

    More than two parts are too many here.
    """
    monkeypatch.setattr(try_files, "_MOST_PARTS", 2)
    np.savez(folder / "own.npz", X=np.zeros((2, 2)), y=np.zeros(2))

    def tried(case: list[str]) -> object:
        paths, by, *settings = case
        return try_files.run_files(
            paths.split(), {"label": "outcome"}, by, settings=settings
        )

    assert_refused_as_on_record(Path(__file__).parent / "not_tried.txt", {"try": tried})


def test_settings_reach_the_run_and_the_party():
    given = ["seed=7", 'classes=["no", "yes"]', "decay=0.5", "group-column=ward"]
    given += ["basel:test-fraction=0.5", "bern:test-fraction=0"]
    report = tried(
        "basel.csv", "bern.csv", *(part for text in given for part in ("--set", text))
    )
    assert (
        report["settings"].items()
        >= {"seed": 7, "effort": "quick", "decay": "0.5"}.items()
    )
    assert report["members"][0]["seed"] == 7
    assert report["parties"][1]["examples"] == 60
    assert report["evaluation"]["examples"] > 30


def test_options_of_csv_files_are_node_settings_of_all_parties():
    for name in ("a", "b"):
        hospital(f"{name}.csv", 60, ord(name), separator="|", **{"f": "not known"})
    options = [
        "--separator",
        "pipe",
        "--decimal",
        ".",
        "--encoding",
        "utf-8",
        "--gap-text",
        "not known",
    ]
    report = tried("a.csv", "b.csv", *options)
    (column,) = (
        column for column in report["schema"]["columns"] if column["name"] == "sex"
    )
    assert (column["levels"], column.get("gaps", True)) == (["m"], True)
