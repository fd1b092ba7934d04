"""What a site sees before anything is counted: each remark, and that its setting mends it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.cli import main
from flwr_flynn.app.data.own_file import opened, opened_own, own_share
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.errors import DataError
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phases.table_schema import SchemaRequest
from tests.federated.runs import statistic_of
from tests.raising import raises

EXPORTS = Path(__file__).parents[3] / "shared" / "four_exports.py"

Change = Callable[[int, dict[str, Any]], dict[str, Any]]


def rows(n: int, seed: int, change: Change) -> list[dict[str, Any]]:
    """Patients of a site, each changed."""
    random = np.random.default_rng(seed)
    made = []
    for index in range(n):
        ill = int(random.integers(2))
        row = {
            "age": int(40 + 20 * ill + random.normal() * 8),
            "crp": f"{np.exp(random.normal() + ill):.1f}",
            "sex": ("female", "male")[index % 2],
            "label": ("no", "yes")[ill],
        }
        made.append(change(index, row))
    return made


def write(name: str, table: Sequence[dict[str, Any]]) -> None:
    with open(f"{name}.csv", "w", newline="") as stream:
        out = csv.DictWriter(stream, [*table[0]])
        out.writeheader()
        out.writerows(table)


def same(index: int, row: dict[str, Any]) -> dict[str, Any]:
    return row


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the ordinary files of two sites."""
    monkeypatch.chdir(tmp_path)
    write("a", rows(90, 1, same))
    write("b", rows(90, 2, same))
    return tmp_path


def tried(
    capsys: Any, *settings: str, n: int = 150, change: Change = same
) -> tuple[int, list[str], dict[str, Any]]:
    """Exit code, remarks about the third site, and the report, {} without one."""
    write("c", rows(n, 3, change))
    given = [text for setting in settings for text in ("--set", setting)]
    code = main(["try", "a.csv", "b.csv", "c.csv", "--set", "effort=quick", *given])
    lines = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("NOTICED", "REFUSED"))
    ]
    report = {}
    if code == 0:
        report = json.loads(Path("flwr-flynn-try", "metrics.json").read_text())
    return code, lines, report


def names(report: dict[str, Any]) -> list[str]:
    return [column["name"] for column in report["schema"]["columns"]]


def visits(index: int, row: dict[str, Any]) -> dict[str, Any]:
    return {"mrn": int(np.random.default_rng(index // 3).integers(9999)), **row}


def doctors(index: int, row: dict[str, Any]) -> dict[str, Any]:
    return {"doctor": ("Dr. Meier", "Dr. Graf", "Dr. Wyss")[index % 3], **row}


def coded(index: int, row: dict[str, Any]) -> dict[str, Any]:
    if index % 6:
        return row
    return row | {"crp": -9}


def with_unit(index: int, row: dict[str, Any]) -> dict[str, Any]:
    return row | {"crp": f"{row['crp']} mg/l"}


def one_odd(index: int, row: dict[str, Any]) -> dict[str, Any]:
    if index:
        return row
    return row | {"label": "Total"}


def is_silent(lines: list[str], column: str) -> bool:
    return not any(f"'{column}'" in line for line in lines)


def test_ordinary_files_are_not_remarked_on(capsys):
    code, lines, report = tried(capsys)
    assert (code, lines) == (0, [])
    assert (report["schema"]["remarks"], report["schema"]["n_remarks"]) == ([], 0)
    assert "What was noticed" not in Path("flwr-flynn-try/report.html").read_text()


def everywhere(change: Change) -> None:
    write("a", rows(90, 1, change))
    write("b", rows(90, 2, change))


@pytest.mark.parametrize(
    ("change", "column", "settings"),
    [
        (visits, "mrn", ["c:held-out-key=mrn", "c:ignore=mrn", "c:keep=mrn"]),
        (doctors, "doctor", ["c:ignore=doctor", "c:keep=doctor"]),
    ],
)
def test_ids_and_names_are_named_and_left_out_until_a_setting_says_otherwise(
    change, column, settings, capsys
):
    everywhere(change)
    code, lines, report = tried(capsys, change=change)
    (line,) = [line for line in lines if f"'{column}'" in line and "c.csv" in line]
    assert [f"--set {setting}" in line for setting in settings] == [True] * len(
        settings
    )
    assert code == 0
    assert column not in names(report)
    (remark,) = report["schema"]["remarks"]
    assert (remark["column"], remark["parties"]) == (column, ["a", "b", "c"])
    page = Path("flwr-flynn-try/report.html").read_text()
    assert "What was noticed" in page
    assert "Meier" not in page + Path("flwr-flynn-try/metrics.json").read_text()
    assert b"Meier" not in Path("flwr-flynn-try/model.npz").read_bytes()
    for setting in settings:
        given = [setting.replace("c:", f"{party}:") for party in "abc"]
        code, lines, report = tried(capsys, *given, change=change)
        assert code == 0
        assert is_silent(lines, column)
        assert (column in names(report)) == ("keep" in setting)


def test_codes_of_missing_values_are_counted_until_they_are_gaps_or_accepted(capsys):
    code, (line,), report = tried(capsys, change=coded)
    assert code == 0
    assert "column 'crp': -9 is far outside" in line
    assert "--set c:synonyms=crp:-9=NA or --set c:gap-texts=-9" in line
    (remark,) = report["schema"]["remarks"]
    settings = ["c:synonyms=crp:-9=NA", "c:gap-texts=-9", "c:accept=crp"]
    assert remark["settings"] == settings
    assert remark["rows"] > 5
    for setting in remark["settings"]:
        code, lines, after = tried(capsys, setting, change=coded)
        assert (code, lines, after["schema"]["remarks"]) == (0, [], [])
        gaps = after["schema"]["columns"][1].get("gaps", True)
        assert gaps == ("accept" not in setting)


def test_units_that_differ_stop_a_run_until_they_are_accepted(capsys):
    code, (line,), _ = tried(capsys, change=with_unit)
    assert code == 1
    assert "column 'crp': units differ: no unit at a, b; mg/l at c" in line
    assert "--set c:accept=crp" in line
    for setting in ("c:accept=crp", "c:convert=crp:mg/l*1"):
        code, lines, _ = tried(capsys, setting, change=with_unit)
        assert (code, lines) == (0, [])


@pytest.mark.parametrize(
    ("unit", "step", "settings", "code"),
    [
        ("mg/l", 1, (), 0),
        ("MG/L", 1, (), 0),
        ("", 1, (), 0),
        ("mg/dl", 1, (), 1),
        ("mg/dl", 4, (), 1),
        ("mg/dl", 1, ("--set", "c:convert=crp:mg/dl*10"), 0),
        ("mg/dl", 1, ("--set", "c:accept=CRP "), 0),
        ("mg/dl", 1, ("--set", "c:ignore=sex", "--set", "c:ignore=crp"), 0),
    ],
)
def test_numbers_in_another_unit_than_the_schema_s_are_refused(
    unit, step, settings, code, capsys
):
    table = rows(90, 3, with_unit)
    write("a", table)
    assert main(["schema", "a.csv"]) == 0
    Path("schema.toml").write_text(capsys.readouterr().out)
    for row in table[::step]:
        row["crp"] = row["crp"].replace("mg/l", unit)
    write("c", table)
    files = ["a.csv", "c.csv", "--set", "schema=schema.toml"]
    assert main(["try", *files, *settings]) == code
    if settings:
        return
    assert main(["check", "c.csv", "schema.toml"]) == code
    if code == 0:
        assert main(["predict", "flwr-flynn-try/model.npz", "c.csv"]) == 0


def test_a_model_of_a_frame_knows_its_units():
    table = rows(90, 3, with_unit)
    frame = pandas.DataFrame(table)
    labels = frame.pop("label")
    model = FlyNNClassifier(effort="quick").fit(frame, labels)
    whole = model.predict_proba(frame)
    assert (model.predict_proba(frame[:1]) == whole[:1]).all()
    frame.loc[5, "crp"] = "8 mg/dl"
    with raises(DataError, field="column 'crp'"):
        model.predict(frame)


def test_two_units_in_one_file_are_named_with_the_setting_that_converts_them(capsys):
    def two(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"crp": f"{row['crp']} {('mg/dl', 'mg/l', 'mg/l')[index % 3]}"}

    code, lines, _ = tried(capsys, change=two)
    assert code == 1
    assert "mg/dl in " in lines[0]
    assert "mg/l in " in lines[0]
    setting = "c:convert=crp:mg/l*1,crp:mg/dl*..."
    assert f"--set {setting}" in lines[0].replace("'", "")
    mend = setting.replace("...", "10")
    code, lines, report = tried(capsys, mend, change=two)
    assert (code, lines, names(report)) == (0, [], ["age", "crp", "sex"])


def test_a_class_of_one_row_is_refused_until_it_is_accepted_or_mapped(capsys):
    code, (line,), _ = tried(capsys, change=one_odd)
    assert code == 1
    assert "'Total'" in line
    assert "--set c:label-map=Total=... or --set c:accept=label" in line
    for setting in ("c:label-map=Total=yes", "c:accept=label"):
        code, _, report = tried(capsys, setting, change=one_odd)
        assert code == 0
        assert ("Total" in report["classes"]) == ("accept" in setting)


def test_a_misspelt_label_of_some_rows_is_refused_with_the_nearest(capsys):
    def misspelt(index: int, row: dict[str, Any]) -> dict[str, Any]:
        if index > 20 or row["label"] != "yes":
            return row
        return row | {"label": "yess"}

    def few(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return misspelt(index * 3, row)

    code, lines, _ = tried(capsys, change=few)
    assert code == 1
    assert "--set c:label-map=yess=yes or" in lines[-1]
    code, _, report = tried(capsys, "c:label-map=yess=yes", change=few)
    assert (code, report["classes"]) == (0, ["no", "yes"])
    code, lines, _ = tried(capsys, change=misspelt)  # a class of many rows
    assert code == 1
    assert "--set c:label-map=yess=... or --set c:accept=label" in lines[-1]
    code, _, report = tried(capsys, "c:accept=label", change=misspelt)
    assert (code, report["classes"]) == (0, ["no", "yes", "yess"])


def test_two_labels_of_which_the_others_share_one_are_refused(capsys):
    codes = {"no": "1", "yes": "2"}

    def coded(add: int) -> Change:
        return lambda _, row: row | {"label": int(codes[row["label"]]) + add}

    everywhere(coded(-1))
    code, lines, _ = tried(capsys, change=coded(0))
    assert code == 1
    assert "--set c:label-map=1=...,2=... or" in lines[-1]
    code, _, report = tried(capsys, "c:label-map=1=0,2=1", change=coded(0))
    assert (code, report["classes"]) == (0, [0, 1])


def test_two_files_whose_two_labels_share_one_are_refused(capsys):
    def coded(add: int) -> Change:
        return lambda _, row: row | {"label": ("no", "yes").index(row["label"]) + add}

    write("a", rows(90, 1, coded(0)))
    write("b", rows(90, 2, coded(1)))
    command = ["try", "a.csv", "b.csv", "--set", "effort=quick"]
    assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("--set b:label-map=1=...,2=... or" in line for line in lines)
    assert main([*command, "--set", "b:label-map=1=0,2=1"]) == 0


def test_a_code_of_a_missing_label_is_mended_by_what_is_printed(capsys):
    def unknown(index: int, row: dict[str, Any]) -> dict[str, Any]:
        if index % 10:
            return row
        return row | {"label": "-9"}

    code, (line,), _ = tried(capsys, change=unknown)
    assert code == 1
    assert "--set c:label-map=-9=NA or --set c:accept=label" in line
    code, lines, report = tried(capsys, "c:label-map=-9=NA", change=unknown)
    assert (code, lines, report["classes"]) == (0, [], ["no", "yes"])


def test_labels_that_are_exchanged_are_noticed(capsys):
    def rare(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"label": ["yes", *["no"] * 9][index % 10]}

    def exchanged(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"label": ["no", *["yes"] * 9][index % 10]}

    everywhere(rare)
    code, lines, _ = tried(capsys, change=rare)
    assert (code, lines) == (0, [])
    code, lines, _ = tried(capsys, change=exchanged)
    assert code == 0
    assert any(line.startswith("NOTICED: c.csv: 10% of the rows") for line in lines)


def test_names_that_differ_in_the_unit_alone_are_one_column_where_the_site_says_so(
    capsys,
):
    def named(name: str, factor: float) -> Change:
        return lambda _, row: {
            name: round(float(row.pop("crp")) * factor, 2),
            **row,
        }

    write("a", rows(90, 1, named("crp", 1)))
    write("b", rows(90, 2, named("CRP [mg/l]", 1)))
    change = named("crp_mg_dl", 0.1)
    code, lines, report = tried(capsys, change=change)
    for setting in ("b:rename=CRP [mg/l]=crp", "c:rename=crp_mg_dl=crp"):
        assert any(setting in line for line in lines)
    settings = ["b:rename=CRP [mg/l]=crp", "b:convert=crp:mg/l*1"]
    settings += ["c:rename=crp_mg_dl=crp", "c:convert=crp:mg/dl*10"]
    code, lines, report = tried(capsys, *settings, change=change)
    assert (code, lines, names(report)) == (0, [], ["age", "crp", "sex"])


def test_an_id_is_not_offered_for_a_column_that_is_missing(capsys):
    def without_age(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return visits(index, {key: row[key] for key in row if key != "age"})

    code, lines, _ = tried(capsys, change=without_age)
    assert code == 1
    assert not any("rename" in line for line in lines)


def test_columns_of_other_names_are_named_with_the_nearest(capsys):
    def renamed(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return {"aage": row.pop("age"), **row}

    code, lines, _ = tried(capsys, change=renamed)
    assert code == 1
    assert lines[-1].endswith("; --set c:rename=aage=age")
    code, lines, _ = tried(capsys, "c:rename=aage=age", change=renamed)
    assert (code, lines) == (0, [])


def test_words_of_one_site_are_named_with_those_of_the_others(capsys):
    def german(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"sex": {"female": "weiblich", "male": "männlich"}[row["sex"]]}

    code, (line,), report = tried(capsys, change=german)
    assert code == 0
    assert report["schema"]["remarks"][0]["column"] == "sex"
    setting = "c:synonyms=sex:männlich=male,sex:weiblich=female"
    assert f"--set {setting}" in line
    code, lines, report = tried(capsys, setting, change=german)
    assert (code, lines, report["schema"]["remarks"]) == (0, [], [])


def test_words_beside_numbers_are_mended_by_what_is_printed(capsys):
    def smokers(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"smoker": index % 3 // 2}

    def german(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"smoker": ("nein", "ja")[index % 3 // 2]}

    everywhere(smokers)
    _, lines, _ = tried(capsys, change=german)
    assert "--set c:synonyms=smoker:ja=...,smoker:nein=..." in lines[0]
    setting = "c:synonyms=smoker:ja=1,smoker:nein=0"
    code, lines, report = tried(capsys, setting, change=german)
    assert (code, lines, report["schema"]["remarks"]) == (0, [], [])
    (smoker,) = (row for row in report["schema"]["columns"] if row["name"] == "smoker")
    assert smoker["kind"] == "number"


def test_a_draft_of_a_site_has_what_was_noticed_and_what_mends_it(capsys):
    def odd(index: int, row: dict[str, Any]) -> dict[str, Any]:
        return with_unit(index, coded(index, visits(index, row)))

    write("c", rows(150, 3, odd))
    command = ["try", "a.csv", "b.csv", "c.csv", "--set", "effort=quick"]
    assert main([*command, "--write-sites", "sites"]) == 1
    path = Path("sites", "c.toml")
    lines = path.read_text().splitlines()
    noticed = [line for line in lines if line.startswith("# NOTICED")]
    assert [line.split("'")[1] for line in noticed] == ["mrn", "crp", "crp"]
    for line in ('ignore = "mrn"', 'gap-texts = "-9"', 'convert = "crp:mg/l*..."'):
        at = lines.index(f"# {line}")
        lines[at] = line.replace("...", "1")
    path.write_text("\n".join(lines))
    capsys.readouterr()
    assert main([*command, "--set", "c:site=sites/c.toml"]) == 0
    assert "NOTICED: c" not in capsys.readouterr().out


# -------- one file


def path_of(text: str) -> Path:
    path = Path("own.csv")
    path.write_text(text)
    return path


def test_a_header_in_the_middle_is_refused_with_its_line(capsys):
    lines = "age,sex,label\n" + "41,m,yes\n52,f,no\n" * 3
    path = path_of(lines + lines)
    with raises(DataError, got="the header again below") as caught:
        opened(path).check()
    assert "line 8" in "".join(caught.value.__notes__)
    assert main(["schema", "own.csv"]) == 1
    # A cell that is the name of its column is none.
    opened(path_of(lines + "42,sex,no\n")).check()


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["0E1", "0E2", "0E3"], "category"),
        (["1E3", "2E3", "1E4"], "category"),
        (["0e1", "0e2", "0e3"], "category"),
        (["1.5E3", "2.5E3", "1.25E4"], "number"),
        (["1E+3", "2e-05", "1e+16"], "number"),
    ],
)
def test_different_texts_that_would_be_one_number_are_texts(cells, kind):
    text = "".join(f"{cell},{index % 2}\n" for index, cell in enumerate(cells * 9))
    file = opened(path_of(f"room,label\n{text}"))
    assert file.reports[0].kind == kind


def test_dates_of_a_frame_that_read_csv_read_are_dates():
    pd = pytest.importorskip("pandas")
    days = pd.date_range("2024-01-01", periods=60).strftime("%Y-%m-%d")
    X = pd.DataFrame({"seen": days, "crp": np.arange(60.0) ** 2 % 17})
    y = np.arange(60) % 2
    model = FlyNNClassifier(effort="quick").fit(X, y)
    (kind,) = {
        column.kind for column in model.model_.schema.columns if column.name == "seen"
    }
    assert kind == "date"
    assert len(model.predict(X)) == 60


def test_check_and_schema_say_what_try_says(capsys):
    write("own", rows(150, 3, lambda i, row: doctors(i, visits(i, coded(i, row)))))
    assert main(["schema", "own.csv"]) == 0
    out, err = capsys.readouterr()
    wanted = ["column 'crp': -9 is far", "column 'doctor': ", "column 'mrn': "]
    assert [text in err for text in wanted] == [True] * 3
    Path("schema.toml").write_text(out)
    main(["check", "own.csv", "schema.toml"])
    out, _ = capsys.readouterr()
    assert [text in out for text in wanted] == [True] * 3


@pytest.mark.skipif(not EXPORTS.exists(), reason="the exports are not here")
def test_of_four_exports_all_is_named_in_the_first_run(folder, capsys):
    subprocess.run([sys.executable, EXPORTS, folder], check=True, capture_output=True)
    (folder / "chur.txt").rename(folder / "chur.csv")
    files = ["aarau.csv", "bern.csv", "chur.csv", "davos.csv"]
    assert main(["try", *files, "--label", "readmitted"]) == 1
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith(("NOTI", "REFU"))]
    for texts in (
        *[
            (f"{site}.csv", "'mrn'", "held-out-key")
            for site in ("aarau", "bern", "chur")
        ],
        *[(file, "'attending'", "keep=attending") for file in files],
        *[
            ("bern.csv", f"'{name}'", "gap-texts=-9")
            for name in ("haemoglobin", "creatinine", "sodium", "bmi", "medications")
        ],
        ("'haemoglobin'", "units differ", "aarau:convert=haemoglobin"),
        ("'creatinine'", "units differ", "aarau:convert=creatinine"),
        ("'diabetes'", "bern:synonyms=diabetes:ja=yes,diabetes:nein=no"),
        ("'sex'", "chur:synonyms=sex:F=female,sex:M=male"),
        ("davos.csv", "davos:rename=creatinina=creatinine"),
        ("bern.csv", "bern:label=wiederaufnahme"),
    ):
        assert any(all(text in line for text in texts) for line in lines), texts
    assert "Dr. " not in out


def summary_told(rows, **settings):
    """The summary that a party tells of a file with these cells of x."""
    keys = [f"p{i % 50}" for i in range(len(rows))]
    keys = settings.pop("keys", keys)
    lines = [
        f"{cell},{key},{'yn'[i % 2]}"
        for i, (cell, key) in enumerate(zip(rows, keys, strict=True))
    ]
    Path("told.csv").write_text("x,who,label\n" + "\n".join(lines) + "\n")
    settings = {"data-path": "told.csv", "test-fraction": 0.0, **settings}
    share = own_share(NodeConfig.parse(settings))
    party = Party(share, PartyOptions())
    return statistic_of(SchemaRequest(("y", "n")), party).columns["x"]


PLAIN = [f"{i}.5" for i in range(95)]
OF_ONE = ["P0"] * 10 + [f"P{i}" for i in range(90)]


@pytest.mark.parametrize(
    ("rows", "settings", "units"),
    [
        ([*PLAIN, "5 Brzezinska"], {}, {"": 95}),  # a name behind one number
        ([*PLAIN, *["5 Brzezinska"] * 5], {}, {"": 95}),
        ([*PLAIN, "5 mg/dl"], {}, {"": 95}),
        ([*PLAIN, *["5 mg/dl"] * 5], {}, {"": 95, "mg/dl": 5}),
        ([f"{i}.5 mg/dl" for i in range(100)], {}, {"mg/dl": 100}),
        # One person's rows have it.
        (
            [*["5 mg/dl"] * 10, *PLAIN[:90]],
            {"keys": OF_ONE, "held-out-key": "who"},
            {},
        ),
        (
            [f"{i}.5 mg/dl" for i in range(100)],
            {"keys": OF_ONE, "held-out-key": "who"},
            {"mg/dl": 100},
        ),
        ([f"{i} Huber" for i in range(2000, 2100)], {}, {}),
    ],
)
def test_a_unit_that_leaves_is_one_of_many_rows_and_no_name(
    folder, rows, settings, units
):
    assert summary_told(rows, **settings).units == units


def test_numbers_without_a_unit_are_no_numbers_beside_a_converted_one(folder):
    rows = [*["139 g/l"] * 60, *["132"] * 40]
    Path("mixed.csv").write_text(
        "hb,label\n" + "".join(f"{cell},{'yn'[i % 2]}\n" for i, cell in enumerate(rows))
    )
    read = {}
    for convert in ("hb:g/l*0.1", "hb:g/l*0.1,hb:*0.1"):
        node = NodeConfig.parse({"data-path": "mixed.csv", "convert": convert})
        file = opened_own(node)
        file.check()
        (values, *_) = file.in_one().table.columns
        read[convert] = {round(value, 3) for value in values if not np.isnan(value)}
    assert [*read.values()] == [{13.9}, {13.9, 13.2}]
