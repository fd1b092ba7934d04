"""The command `flwr-flynn`: each verb in this process, and the whole of it as a process."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, brier_score_loss, log_loss, roc_auc_score

from flwr_flynn import FlyNNClassifier, HashSpec, __version__
from flwr_flynn.app.cli import main
from flwr_flynn.app.data import table_file
from flwr_flynn.app.data.own_file import opened
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema, read_schema, to_toml
from tests.app.report.example import metrics
from tests.docs.pages import ROOT, blocks, text_of

ROWS = [
    ["age", "ward", "since", "label"],
    *([str(20 + i % 50) if i % 9 else "", "ABC"[i % 3], f"2024-01-{i % 28 + 1:02}", "ny"[i % 2]] for i in range(90)),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file, its schema and a model of plain numbers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text("\n".join(";".join(row) for row in ROWS) + "\n")
    columns = [
        Column("age", "number", low=0, high=120),
        Column("ward", "category", list("ABC")),
        Column("since", "date"),
    ]
    schema = Schema(columns, label="label", classes=["n", "y"])
    (tmp_path / "schema.toml").write_text(to_toml(schema))
    return tmp_path


def plain_model(names: list[str] | None = None, labels: tuple[str, str] = ("no", "=yes")) -> FlyNNClassifier:
    """A model of two numbers, in model.npz."""
    X = np.random.default_rng(0).normal(size=(80, 2)) + 3 * (np.arange(80) % 2)[:, None]
    spec = HashSpec(n_features=2, hash_dim=256, row_nnz=1, hash_nnz=8, seed=1, signed=True)
    model = FlyNNClassifier(spec).fit(X, np.array(labels)[np.arange(80) % 2])
    counts = FlyNNClassifier.from_counts(spec, model.counts_, model.classes_, feature_names=names)
    counts.save("model.npz")
    return counts


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    """Output of a command on its two streams."""
    assert main(list(arguments)) == status
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    if status == 1 and not printed.out:
        assert len(printed.err.splitlines()) == 1
    return printed.out, printed.err


# -------- schema and check


def test_a_draft_is_a_schema_that_refuses_nothing_of_its_file(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    draft, log = run(capsys, "schema", "own.csv")
    assert "semicolons" in log
    assert "90" not in draft  # not even how many rows there are
    for words in ("Discloses which classes", "these 3 levels", "missing values here", "low and high: not drafted"):
        assert words in draft
    (folder / "draft.toml").write_text(draft)
    schema = read_schema("draft.toml")
    assert [(column.name, column.kind, column.gaps) for column in schema.columns] == [
        ("age", "number", True),
        ("since", "date", False),
        ("ward", "category", False),
    ] or schema.names == ("age", "ward", "since")
    assert (schema.label, schema.classes) == ("label", ("n", "y"))
    assert all(column.low is column.high is None for column in schema.columns)
    table, _ = run(capsys, "check", "own.csv", "draft.toml")
    assert "REFUSED" not in table


def test_rare_levels_and_unusable_columns_are_left_out_of_a_draft(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    lines = [f"n{i},{'rare' if i < 3 else 'often'},{i % 2}" for i in range(40)]
    (folder / "own.csv").write_text("name,town,outcome\n" + "\n".join(lines) + "\n")
    draft, _ = run(capsys, "schema", "own.csv", "--label", "outcome")
    assert "# 'name': texts that nearly all differ" in draft
    (folder / "draft.toml").write_text(draft)
    assert read_schema("draft.toml").columns[0].levels == ("often",)
    assert read_schema("draft.toml").classes == (0, 1)
    draft, _ = run(capsys, "schema", "own.csv", "--label", "outcome", "--min-examples", "1")
    assert '"rare"' in draft


def test_check_counts_what_would_be_refused(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    rows = ["200;D;2024-01-01;y", "old;A;2024-01-01;y", "5;A;soon;maybe", ";B;2024-01-01;n", "5;A;2024-01-01;"]
    (folder / "own.csv").write_text("age;ward;since;label\n" + "\n".join(rows) + "\n")
    table, _ = run(capsys, "check", "own.csv", "schema.toml", status=1)
    by_name = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line.startswith("'")}
    assert by_name == {
        "'age'": ["number", "1", "1", "1"],
        "'ward'": ["category", "0", "0", "1"],
        "'since'": ["date", "0", "1"],
    }
    for words in ("1 rows have a label that is none", "1 columns have values beyond their range"):
        assert f"REFUSED: {words}" in table
    assert table.count("REFUSED") == 2
    assert "1 rows without a label are left out" in table
    assert "maybe" not in table
    assert "soon" not in table


def test_check_names_missing_columns_and_ragged_rows(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "own.csv").write_text("age,label\n5,y\n6,y,7\n")
    table, _ = run(capsys, "check", "own.csv", "schema.toml", status=1)
    assert table.count("  missing") == 2  # their values are gaps
    assert "columns are missing" not in table
    assert "REFUSED: 1 rows have more or fewer fields" in table
    (folder / "own.csv").write_text("weight,label\n5,y\n")
    _, error = run(capsys, "check", "own.csv", "schema.toml", status=1)
    assert "none of them" in error


def test_gap_texts_of_a_schema_count_as_gaps(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    text = (folder / "schema.toml").read_text()
    (folder / "schema.toml").write_text(
        'gap-texts = ["unknown"]\n' + text.replace('"age"', '"age"\ngap-texts = ["-1"]')
    )
    (folder / "own.csv").write_text("age;ward;since;label\n-1;unknown;2024-01-01;y\n")
    table, _ = run(capsys, "check", "own.csv", "schema.toml")
    assert [line.split()[2] for line in table.splitlines() if line.startswith("'")] == ["1", "1", "0"]


@pytest.mark.parametrize("verb", ["schema", "check"])
def test_options_of_csv_files(verb: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "own.csv").write_bytes(
        "age|ward|since|label\n1|Ä|04/05/2024|y\n2|a|04/05/2024|y\n?|none here|04/05/2024|n\n".encode("latin-1")
    )
    rest = ["schema.toml"] if verb == "check" else ["--min-examples", "1"]
    given = ["--separator", "pipe", "--encoding", "latin-1", "--gap-text", "none here", "--date-format", "mm/dd/yyyy"]
    out, log = run(capsys, verb, "own.csv", *rest, *given, "--decimal", ".")
    assert "dates as mm/dd/yyyy" in out + log
    assert "LATIN-1, pipes" in out + log


# -------- show and predict


def test_show_tells_what_a_model_holds(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    plain_model(["a", "b\x1b[31m"])
    shown, _ = run(capsys, "show", "model.npz")
    assert "\x1b" not in shown
    facts = json.loads(shown)
    digest = hashlib.sha256((folder / "model.npz").read_bytes()).hexdigest()
    assert [column["name"] for column in facts["columns"]] == ["a", "b\x1b[31m"]
    assert facts["classes"] == [
        {"class": "=yes", "samples": 40, "prior": 0.5},
        {"class": "no", "samples": 40, "prior": 0.5},
    ]
    assert facts["file sha256"] == digest
    assert (facts["members"][0]["hash_dim"], facts["members"][0]["hash_nnz"]) == (256, 8)
    assert facts["guarantee"] is None


def predictions(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
def test_predict_finds_columns_by_name_and_ignores_others(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "MOST_ROWS", 16)
    model = plain_model(["a", "b"])
    X = np.random.default_rng(1).normal(size=(60, 2)).round(3) + 1.5
    lines = [f"{b:.3f},words,{a:.3f}" for a, b in X]
    (folder / "new.csv").write_text("b,note,a\n" + "\n".join(lines) + "\n")
    out, _ = run(capsys, "predict", "model.npz", "new.csv")
    head, *rows = predictions(out)
    assert head == ["class", "p(=yes)", "p(no)", "novelty"]
    X = np.array([[float(line.split(",")[2]), float(line.split(",")[0])] for line in lines])
    assert {row[0] for row in rows} == {"'=yes", "no"}  # which no spreadsheet computes
    assert [row[0].removeprefix("'") for row in rows] == model.predict(X).tolist()
    np.testing.assert_allclose(np.array(rows)[:, 1:3].astype(float), model.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(np.array(rows)[:, 3].astype(float), model.novelty(X).min(axis=1), atol=1e-6)
    abstaining = predictions(run(capsys, "predict", "model.npz", "new.csv", "--abstain", "0.9")[0])[1:]
    for row in abstaining:
        assert (row[0] == "") == (max(float(row[1]), float(row[2])) < 0.9)


def test_predict_says_where_columns_do_not_fit(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    plain_model(["a", "b"])
    (folder / "new.csv").write_text("a,c\n1,2\n")
    assert "1 of 2 missing: 'b'; 1 others" in run(capsys, "predict", "model.npz", "new.csv", status=1)[1]
    (folder / "new.csv").write_text("a,b\n1,y\n2,x\n")
    assert "others in 1 of 2 features: b" in run(capsys, "predict", "model.npz", "new.csv", status=1)[1]
    plain_model()
    (folder / "new.csv").write_text("a,b,c\n1,2,3\n")
    assert "expected 2 columns" in run(capsys, "predict", "model.npz", "new.csv", status=1)[1]
    (folder / "new.csv").write_text("p,q\n1,2\n")
    assert len(predictions(run(capsys, "predict", "model.npz", "new.csv")[0])) == 2


def test_predict_reads_a_table_by_the_model_s_schema(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    X, y, *_ = opened(folder / "own.csv").whole()
    model = FlyNNClassifier(effort="quick").fit(X, y)
    model.save("model.npz")
    assert {column["kind"] for column in json.loads(run(capsys, "show", "model.npz")[0])["columns"]} == {
        "number",
        "category",
        "date",
    }
    told = {column["name"]: column for column in json.loads(run(capsys, "show", "model.npz")[0])["columns"]}
    assert told["ward"]["levels"] == ["A", "B", "C"]
    low, high = told["age"]["edges"]
    assert 20 <= low < high <= 69
    rows = predictions(run(capsys, "predict", "model.npz", "own.csv")[0])[1:]
    assert [row[0] for row in rows] == model.predict(X).tolist()


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz"])
def test_predict_copies_columns_as_they_stand(ending: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    plain_model(["a", "b"])
    (folder / "new.csv").write_text("id;b;a; two  words\n007;1,50;2;=A1\n\n008;2,5;3;\n")
    kept = [["007", "1,50", "=A1"], ["008", "2,5", ""]]
    if ending == ".parquet":
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        frame = pandas.DataFrame({"id": ["007", "008"], "b": [1.5, 2.5], "a": [2, 3], "two words": ["=A1", None]})
        frame.to_parquet("new.parquet")
        kept = [["007", "1.5", "=A1"], ["008", "2.5", ""]]
    elif ending == ".npz":
        names = ["id", "b", "a", "two words"]
        np.savez("new.npz", X=[[7.0, 1.5, 2.0, 0.0], [8.0, 2.5, 3.0, 1.0]], feature_names=names)
        kept = [["7.0", "1.5", "0.0"], ["8.0", "2.5", "1.0"]]
    arguments = ["predict", "model.npz", f"new{ending}"]
    plain = predictions(run(capsys, *arguments)[0])
    keep = [part for name in ("id", "b", "two words") for part in ("--keep", name)]
    rows = predictions(run(capsys, *arguments, *keep)[0])
    assert [row[:3] for row in rows] == [["id", "b", "two words"], *kept]
    assert [row[3:] for row in rows] == plain
    out, error = run(capsys, *arguments, "--keep", "gone", status=1)
    assert out == ""
    assert "--keep" in error
    assert "gone" in error


# -------- score


def figures(path: str) -> dict[str, float]:
    return {row["figure"]: float(row["value"]) for row in csv.DictReader(io.StringIO(Path(path).read_text()))}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
@pytest.mark.parametrize("n_classes", [2, 3])
def test_figures_of_a_model_are_those_of_scikit_learn(
    n_classes: int, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "MOST_ROWS", 16)
    random = np.random.default_rng(0)
    y = random.integers(n_classes, size=200)
    X = (random.normal(size=(200, 2)) + 1.5 * y[:, None]).round(3)
    labels = np.array(["ash", "birch", "cedar"])[y]
    model = FlyNNClassifier(effort="quick").fit(X[:100], labels[:100])
    spec = model.spec_
    model = FlyNNClassifier.from_counts(spec, model.counts_, model.classes_, feature_names=["a", "b"])
    model.save("model.npz")
    rows = [f"{a},{b},{label}" for (a, b), label in zip(X[100:], labels[100:], strict=True)]
    more = ["1,2,", "1,2,elm", "3,2,elm", "1,1,fir"]
    (folder / "new.csv").write_text("\n".join(["a,b,kind", *rows, *more]))
    shown, _ = run(capsys, "score", "model.npz", "new.csv", "--label", "kind", "--out", "own.csv")
    assert shown.splitlines()[-1] == "own.csv"
    found = figures("own.csv")
    p = model.predict_proba(X[100:])
    true, best = labels[100:], model.classes_[p.argmax(axis=1)]
    auroc = roc_auc_score(true, p[:, 1] if n_classes == 2 else p, multi_class="ovr", average="macro")
    brier = ((p - (true[:, None] == model.classes_)) ** 2).sum(axis=1).mean() / (2 if n_classes == 2 else 1)
    if n_classes == 2:
        np.testing.assert_allclose(brier, brier_score_loss(true == "birch", p[:, 1]))
    expected = {
        "rows": 100,
        "rows without a label": 1,
        "rows with an unknown label": 3,
        "unknown labels": 2,
        "accuracy": accuracy_score(true, best),
        "balanced accuracy": balanced_accuracy_score(true, best),
        "log-loss": log_loss(true, p, labels=model.classes_),
        "Brier score": brier,
        "AUROC": auroc,
    }
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(list(found.values()), list(expected.values()))
    assert {line.split("  ")[0]: line.split()[-1] for line in shown.splitlines()[:4]} == {
        name: str(expected[name]) for name in list(expected)[:4]
    }


@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
@pytest.mark.parametrize(("n_first", "rarer"), [(25, 0), (40, 1), (55, 1)])
def test_a_threshold_takes_the_rarer_of_two_classes(
    n_first: int, rarer: int, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    y = (np.arange(80) >= n_first).astype(int)
    X = np.random.default_rng(0).normal(size=(80, 2)).round(3) + y[:, None]
    spec = HashSpec(n_features=2, hash_dim=256, row_nnz=1, hash_nnz=8, seed=1, signed=True)
    counted = FlyNNClassifier(spec).fit(X, np.array(["no", "yes"])[y])
    model = FlyNNClassifier.from_counts(spec, counted.counts_, counted.classes_, feature_names=["a", "b"])
    model.save("model.npz")
    rows = [f"{a},{b},{model.classes_[label]}" for (a, b), label in zip(X.tolist(), y, strict=True)]
    (folder / "new.csv").write_text("\n".join(["a,b,label", *rows]))
    flagged = model.predict_proba(X)[:, rarer] >= 0.2
    assert 0 < flagged.sum() < 80
    out, _ = run(capsys, "predict", "model.npz", "new.csv", "--threshold", "0.2")
    classes = [row[0] for row in predictions(out)[1:]]
    assert classes == model.classes_[np.where(flagged, rarer, 1 - rarer)].tolist()
    run(capsys, "score", "model.npz", "new.csv", "--threshold", "0.2")
    found, positive = figures("scores.csv"), y == rarer
    assert found["threshold"] == 0.2
    np.testing.assert_allclose(found["accuracy"], (flagged == positive).mean())
    counts = flagged.sum(), (flagged & positive).sum(), (positive & ~flagged).sum()
    assert tuple(found[name] for name in ("flagged", "flagged rightly", "missed")) == counts


def test_a_threshold_is_for_two_classes(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    FlyNNClassifier(effort="quick").fit(np.arange(24.0).reshape(12, 2), np.arange(12) % 3).save("model.npz")
    (folder / "new.csv").write_text("a,b,label\n1,2,0\n2,3,1\n")
    for verb in ("predict", "score"):
        given = ["--label", "label"] if verb == "score" else []
        out, log = run(capsys, verb, "model.npz", "new.csv", "--threshold", "0.2", *given, status=1)
        assert out == ""
        assert "--threshold" in log


def test_score_needs_a_label_that_the_model_knows(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    plain_model(["a", "b"], ("no", "yes"))
    (folder / "new.csv").write_text("a,b,label\n1,2,elm\n1,3,\n")
    assert run(capsys, "score", "model.npz", "new.csv", status=1)[0] == ""
    (folder / "new.csv").write_text("a,b,label\n1,2,yes\n1,3,yes\n")
    run(capsys, "score", "model.npz", "new.csv")
    assert np.isnan(figures("scores.csv")["AUROC"])  # of one class
    assert "--out" in run(capsys, "score", "model.npz", "new.csv", "--out", "new.csv", status=1)[1]
    assert (folder / "new.csv").read_text().startswith("a,b,label")


# -------- the command line


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bake"],
        ["schema"],
        ["check", "own.csv"],
        ["predict", "model.npz"],
        ["predict", "m", "f", "--abstain", "2"],
        ["predict", "m", "f", "--abstain", "nan"],
        ["try"],
        ["score", "model.npz"],
        ["schema", "own.csv", "--separator", "#"],
        ["schema", "own.csv", "--min-examples", "few"],
    ],
)
def test_a_wrong_command_line_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage: flwr-flynn" in run(capsys, *arguments, status=2)[1]


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert "predict" in run(capsys, "--help")[0]
    assert run(capsys, "--version")[0] == f"flwr-flynn {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["schema", "gone.csv"],
        ["schema", "schema.toml"],
        ["schema", "own.csv", "--label", "gone"],
        ["check", "own.csv", "gone.toml"],
        ["check", "own.csv", "own.csv"],
        ["show", "gone.npz"],
        ["show", "own.csv"],
        ["predict", "own.csv", "own.csv"],
        ["score", "own.csv", "own.csv"],
        ["try", "own.csv", "--by", "gone"],
        ["try", "own.csv", "--set", "gone=1"],
        ["schema", "own.csv", "--min-examples", "0"],
    ],
)
def test_a_refused_file_is_status_1_and_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, error = run(capsys, *arguments, status=1)
    assert out == ""
    assert error.startswith("flwr-flynn: ")


def shell_lines() -> list[str]:
    """The commands on docs/how_to/files.md and docs/reference/commands.md."""
    listed = re.findall(r"^- `(flwr-flynn [^`]+)`", text_of("docs/reference/commands.md"), re.MULTILINE)
    pages = blocks("docs/how_to/files.md", "bash")
    return [*"".join(pages).splitlines(), *listed]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_commands_of_the_pages_do_what_they_say(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    X, y, *_ = opened(folder / "own.csv").whole()
    FlyNNClassifier(effort="quick").fit(X, y).save("model.npz")
    (folder / "new.csv").write_text((folder / "own.csv").read_text())
    (folder / "metrics.json").write_text(json.dumps(metrics()))
    for name in ("basel", "bern", "chur"):
        text = (folder / "own.csv").read_text().replace("label", "outcome", 1)
        (folder / f"{name}.csv").write_text(text if name == "chur" else text.replace(";", ","))
    lines = shell_lines()
    verbs = {"schema", "check", "try", "show", "predict", "score"}
    assert {line.split()[1] for line in lines} == verbs
    for line in lines:
        command, _, target = line.partition(" > ")
        out, _ = run(capsys, *shlex.split(command)[1:])
        assert out
        if target:
            (folder / target).write_text(out)
    assert len((folder / "classes.csv").read_text().splitlines()) == len(ROWS)


@pytest.mark.slow
def test_the_command_as_a_process(folder: Path) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flwr_flynn", *arguments],
            env={"PYTHONPATH": str(ROOT), "PATH": "", "FLWR_TELEMETRY_ENABLED": "0"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    done = command("schema", "own.csv")
    assert done.returncode == 0, done.stderr
    (folder / "draft.toml").write_text(done.stdout)
    assert command("check", "own.csv", "draft.toml").returncode == 0
    plain_model(["age", "weight"])
    failed = command("predict", "model.npz", "own.csv")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert len(failed.stderr.splitlines()) == 1
    # Whoever reads the output may stop.
    (folder / "many.csv").write_text("age,weight\n" + "1,2\n" * 20_000)
    line = f"{sys.executable} -m flwr_flynn predict model.npz many.csv | head -n 1"
    piped = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert "Traceback" not in piped.stderr
    assert piped.stdout.startswith('"class"')
