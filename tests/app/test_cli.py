"""The command `flwr-flynn`: each verb in this process, and all of it as one."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import flwr.common.logger  # noqa: F401 - its handler keeps the stream of its import
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
)

from flwr_flynn import FlyNNClassifier, HashSpec, __version__
from flwr_flynn.app.cli import main
from flwr_flynn.app.data import table_file
from flwr_flynn.app.data.own_file import opened
from flwr_flynn.app.data.source import Reading
from flwr_flynn.model.reasons import edges_of
from flwr_flynn.tables import column_encoding
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema, to_toml
from flwr_flynn.tables.table import Table
from tests.app.data.files import written
from tests.app.report.example import metrics
from tests.docs.pages import ROOT, blocks, text_of
from tests.snapshots import assert_on_record

AGES = [str(20 + i % 50) for i in range(90)]
AGES[::9] = [""] * 10
OWN: dict[str, list[str]] = {
    "age": AGES,
    "ward": ["ABC"[i % 3] for i in range(90)],
    "since": [f"2024-01-{i % 28 + 1:02}" for i in range(90)],
    "label": ["ny"[i % 2] for i in range(90)],
}
COLUMNS = [
    Column("age", "number", low=0, high=120),
    Column("ward", "category", list("ABC")),
    Column("since", "date"),
]
NAMELESS = pytest.mark.filterwarnings(
    "ignore:X does not have valid feature names:UserWarning"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file and its schema."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "own.csv", OWN, sep=";")
    written(
        tmp_path / "schema.toml",
        to_toml(Schema(COLUMNS, label="label", classes=["n", "y"])),
    )
    return tmp_path


def samples(y: Any) -> Any:
    """Two numbers, the greater the higher the class."""
    return (
        np.random.default_rng(0).normal(size=(len(y), 2)) + 1.5 * np.asarray(y)[:, None]
    ).round(3)


def saved_model(
    y: Any, classes: Sequence[str] = ("no", "=yes"), names: Any = ("a", "b")
) -> FlyNNClassifier:
    """A model of two numbers, in model.npz."""
    spec = HashSpec(
        n_features=2, hash_dim=256, row_nnz=1, hash_nnz=8, seed=1, signed=True
    )
    counted = FlyNNClassifier(spec).fit(samples(y), np.array(classes)[y])
    model = FlyNNClassifier.from_counts(
        spec, counted.counts_, counted.classes_, feature_names=names
    )
    model.save("model.npz")
    return model


HALF = np.arange(80) % 2


def run(
    capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0
) -> tuple[str, str]:
    """Output of a command on its two streams."""
    assert main(list(arguments)) == status
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    if status == 1 and not printed.out:
        assert len(printed.err.splitlines()) == 1
    return printed.out, printed.err


# -------- schema and check


def test_schema_check_and_refused_predictions_print_what_is_on_record(capsys, folder):
    """A session in which `cat` shows a file beforehand.

    No rows are told but what stands in a refusal.
    """
    saved_model(HALF, names=None)
    Path("model.npz").rename("nameless.npz")
    saved_model(HALF)
    record = Path(__file__).parent / "console.txt"
    shown = ""
    for block in re.split(r"^\$ ", record.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        command, content = block.split("\n", 1)
        verb, *arguments = shlex.split(command)
        if verb == "cat":
            (name,) = arguments
            encoding = "utf-8"
            if name == "latin.csv":
                encoding = "latin-1"
            written(folder / name, content[:-1].encode(encoding))
        else:
            status = main(arguments)
            printed = capsys.readouterr()
            content = f"{printed.out}{printed.err}status {status}\n\n"
        shown += f"$ {command}\n{content}"
    assert_on_record(record, shown)


# -------- show and predict


def test_show_tells_what_a_model_holds(capsys, folder):
    saved_model(HALF, names=["a", "b\x1b[31m"])
    shown, _ = run(capsys, "show", "model.npz")
    assert "\x1b" not in shown
    facts = json.loads(shown)
    assert [column["name"] for column in facts["columns"]] == ["a", "b\x1b[31m"]
    assert facts["classes"] == [
        {"class": label, "samples": 40, "prior": 0.5} for label in ("=yes", "no")
    ]
    assert (
        facts["file sha256"]
        == hashlib.sha256((folder / "model.npz").read_bytes()).hexdigest()
    )
    assert (
        facts["members"][0]["hash_dim"],
        facts["members"][0]["hash_nnz"],
        facts["guarantee"],
    ) == (256, 8, None)


def predictions(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """The rows that `predict` prints, the head included."""
    return list(
        csv.reader(io.StringIO(run(capsys, "predict", "model.npz", *arguments)[0]))
    )


@NAMELESS
def test_predict_finds_columns_by_name_and_ignores_others(capsys, folder, monkeypatch):
    monkeypatch.setattr(table_file, "MOST_ROWS", 16)
    model = saved_model(HALF)
    X = samples(HALF[:60])
    written(folder / "new.csv", {"b": X[:, 1], "note": "words", "a": X[:, 0]})
    head, *rows = predictions(capsys, "new.csv")
    assert head == ["class", "p(=yes)", "p(no)", "novelty"]
    assert {row[0] for row in rows} == {"'=yes", "no"}  # which no spreadsheet computes
    assert [row[0].removeprefix("'") for row in rows] == model.predict(X).tolist()
    figures = np.column_stack([model.predict_proba(X), model.novelty(X).min(axis=1)])
    np.testing.assert_allclose(np.array(rows)[:, 1:].astype(float), figures, atol=1e-6)


def test_predict_notes_values_that_the_model_cannot_know(capsys, folder):
    rng = np.random.default_rng(0)
    ages = rng.normal(50, 9, 300).round()
    frame = pd.DataFrame({"age": ages, "ward": rng.choice([*"ABC"], 300)})
    model = FlyNNClassifier(max_members=5)
    model.fit(frame, (ages + rng.normal(0, 5, 300) > 55).astype(int))
    assert not np.isnan(edges_of(model.model_)).any()
    model.save("model.npz")
    asked = ("predict", "model.npz", "new.csv")
    written(folder / "new.csv", {"age": [40, 55, 71], "ward": ["A", "B", "C"]})
    assert run(capsys, *asked)[1] == ""
    written(folder / "new.csv", {"age": [-99, 55, 9000], "ward": ["A", "B", "moon"]})
    noted = run(capsys, *asked)[1].splitlines()
    assert [re.findall(r"'(\w+)'|\((\d) of 3 rows\)", line) for line in noted] == [
        [("age", ""), ("", "2")],
        [("ward", ""), ("", "1")],
    ]


def test_predict_tells_the_set_of_each_row_in_words(capsys, folder):
    X = samples(HALF[:60])
    written(folder / "new.csv", {"b": X[:, 1], "a": X[:, 0]})
    saved_model(HALF)
    asked = ("predict", "model.npz", "new.csv", "--coverage", "0.9")
    assert run(capsys, *asked, status=1)[0] == ""  # one of counts alone has none
    model = FlyNNClassifier(effort="quick")
    model.fit(samples(HALF), np.array(["no", "=yes"])[HALF])
    model.model_ = replace(model.model_, feature_names=("a", "b"))
    model.save("model.npz")
    head, *rows = predictions(capsys, "new.csv", "--coverage", "0.95")
    assert head[-2:] == ["novelty", "set"]
    words = {
        (True, False): "'=yes",
        (False, True): "no",
        (True, True): "unsure",
        (False, False): "none",
    }
    sets = model.predict_set(X, 0.95)
    assert [row[-1] for row in rows] == [words[tuple(row)] for row in sets.tolist()]


def test_a_refused_row_leaves_no_line(capsys, folder):
    schema = Schema([Column("age", "number", low=0, high=120, gaps=False)])
    model = FlyNNClassifier(effort="quick").fit([[20.0], [40.0], [60.0]], [0, 1, 1])
    model.model_ = replace(model.model_, feature_names=schema)
    model.save("model.npz")
    written(folder / "new.csv", {"age": [20, 250]})
    out, error = run(capsys, "predict", "model.npz", "new.csv", status=1)
    assert out == ""
    assert "'age'" in error


def test_a_model_without_names_takes_columns_by_their_order(capsys, folder):
    saved_model(HALF, names=None)
    written(folder / "new.csv", "p,q\n1,2\n")
    assert len(predictions(capsys, "new.csv")) == 2


def test_predict_reads_a_table_by_the_model_s_schema(capsys, folder):
    X, y, *_ = opened(folder / "own.csv").whole()
    model = FlyNNClassifier(effort="quick").fit(X, y)
    model.save("model.npz")
    printed = json.loads(run(capsys, "show", "model.npz")[0])["columns"]
    columns = {column["name"]: column for column in printed}
    kinds = {column["kind"] for column in printed}
    assert kinds == {"number", "category", "date"}
    assert columns["ward"]["levels"] == ["A", "B", "C"]
    low, high = columns["age"]["edges"]
    assert 20 <= low < high <= 69
    _, *rows = predictions(capsys, "own.csv")
    assert [row[0] for row in rows] == model.predict(X).tolist()


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz"])
def test_predict_and_score_take_the_gaps_of_a_site(ending, capsys, folder):
    X, y = opened(folder / "own.csv", Reading(features=("age",))).whole()[:2]
    ages = np.array(X.columns[0])
    FlyNNClassifier(effort="quick").fit(Table(["age"], [ages]), y).save("model.npz")
    asked: dict[str, Any] = {"age": [-9.0, 20.0, np.nan], "label": ["y", "n", "y"]}
    columns = dict(asked)
    if ending == ".csv":
        columns["age"] = [" -9.00", "20", ""]
    name = written(folder / f"new{ending}", columns).name
    without = predictions(capsys, name)
    assert without[1][1:] != without[3][1:]
    with_gap = predictions(capsys, name, "--gap-text=-9")
    assert with_gap[1][1:] == with_gap[3][1:] == without[3][1:]
    run(capsys, "score", "model.npz", name)
    plain = figures()
    run(capsys, "score", "model.npz", name, "--gap-text=-9")
    assert figures()["log-loss"] != plain["log-loss"]


def test_a_model_of_a_schema_with_numbers_for_gaps_is_refused_with_the_line(
    capsys, folder, monkeypatch
):
    """Files of 0.8 may have them."""
    with monkeypatch.context() as patched:
        patched.setattr(column_encoding, "is_value", lambda _: False)
        gaps = [(), ["-9"]]
        columns = [
            Column(name, "number", gaps=False, gap_texts=texts)
            for name, texts in zip("ab", gaps, strict=True)
        ]
        saved_model(HALF, names=Schema(columns))
    for verb, *more in (("show", "model.npz"), ("predict", "model.npz", "own.csv")):
        _, error = run(capsys, verb, *more, status=1)
        assert 'gap-texts = ["-9"]' in error
        assert "site's own settings" in error


def test_reasons_are_the_columns_that_add_the_most_in_words(capsys, folder):
    """Whatever the order of the columns in the file, and with some missing."""
    X, y, *_ = opened(folder / "own.csv").whole()
    model = FlyNNClassifier(effort="quick").fit(X, y)
    model.save("model.npz")
    ages = np.array(X.columns[X.names.index("age")])
    added = FlyNNClassifier.load("model.npz").contributions(X)
    schema = model.model_.schema
    written(folder / "new.csv", {name: OWN[name] for name in ("since", "age", "ward")})
    head, *rows = predictions(capsys, "new.csv", "--reasons", "3")
    assert head[-3:] == ["reason 1", "reason 2", "reason 3"]
    assert predictions(capsys, "new.csv") == [row[:-3] for row in [head, *rows]]
    wide, *_ = predictions(capsys, "new.csv", "--reasons", "9")
    assert wide == head
    for row, own, age in zip(rows, added, ages, strict=True):
        order = np.argsort(-np.abs(own), kind="stable")
        for text, j in zip(row[-3:], order, strict=True):
            assert text.startswith(schema.names[j])
            assert text.endswith(f": {own[j]:+.1f}")
            if schema.names[j] == "age":
                word = "missing" if np.isnan(age) else f"{age:g}"
                assert text.startswith(f"age {word}")
                share = (ages < age).mean() / (~np.isnan(ages)).mean()
                if 0.2 < share < 0.8:
                    assert "of all" not in text
                if share > 0.98:
                    assert "(above 9" in text
    written(folder / "part.csv", {"ward": ["A", "none"]})
    texts = [row[-3:] for row in predictions(capsys, "part.csv", "--reasons", "3")[1:]]
    starts = [{word.partition(":")[0] for word in words} for words in texts]
    # Of a row without any value nothing is told.
    assert starts == [{"ward=A", "age missing", "since missing"}, {""}]


@pytest.mark.parametrize("is_even", [False, True])
def test_places_are_those_among_samples_and_not_within_a_public_range(
    is_even, capsys, folder
):
    edges = np.linspace(0, 31, 32)
    if not is_even:
        edges = edges**2
    spec = HashSpec(1, 64, 2, 8, seed=1, coding="bumps", n_codes=5, edges=(edges,))
    y = np.arange(32) % 2
    model = FlyNNClassifier(spec).fit(edges[:, None], y)
    FlyNNClassifier.from_counts(
        spec, model.counts_, [0, 1], feature_names=["crp"]
    ).save("model.npz")
    values = [edges[-1] + 1, edges[30], edges[5], edges[0] - 1]
    written(folder / "new.csv", {"crp": values})
    places = [
        " (above 98 % of all)",
        " (above 92 % of all)",
        "",
        " (below 98 % of all)",
    ]
    if is_even:
        places = 4 * [""]
    rows = predictions(capsys, "new.csv", "--reasons", "1")[1:]
    texts = [row[-1].partition(":")[0] for row in rows]
    assert texts == [
        f"crp {value:g}{place}" for value, place in zip(values, places, strict=True)
    ]


@pytest.mark.parametrize(
    ("cells", "n_unknown"),
    [
        pytest.param([9.5, 12, 31] * 5, 0, id="numbers alone"),
        pytest.param([9.5, 12, ""] * 5, 0, id="gaps"),
        pytest.param(["<5", 12, "<5"] * 5, 0, id="texts that are known"),
        pytest.param(["<5", "n.d.", 12] * 5, 5, id="texts that are not"),
    ],
)
def test_a_number_is_no_unknown_text_beside_it(cells, n_unknown, capsys, folder):
    known = [f"{9 + index % 23}" for index in range(60)] + ["<5"] * 20
    sexes = list("mf") * 40
    labels = ["well"] * 50 + ["ill"] * 30
    written(folder / "known.csv", {"crp": known, "sex": sexes, "label": labels})
    X, y, *_ = opened(folder / "known.csv").whole()
    FlyNNClassifier(effort="quick").fit(X, y).save("model.npz")
    rows = {"crp": cells, "sex": sexes[:15], "label": labels[45:60]}
    written(folder / "new.csv", rows)
    _, notes = run(capsys, "score", "model.npz", "new.csv")
    noted = re.findall(r"'crp text': .*\((\d+) of 15 rows", notes)
    assert noted == [*filter(int, [str(n_unknown)])]
    rows = predictions(capsys, "new.csv", "--reasons", "3")[1:]
    for row, text in zip(rows, cells, strict=True):
        reasons = " ".join(row[-3:])
        assert "sex" in reasons
        assert "other" not in reasons
        assert ("crp text" in reasons) == (text == "<5")
        assert len(row) == 7


@pytest.mark.parametrize(
    ("factor", "share", "n_noted"),
    [(1, 1, 0), (2, 1, 0), (0.1, 1, 60), (10, 1, 60), (1e4, 0.1, 6), (1, 0, 0)],
)
def test_a_file_in_another_unit_and_a_code_in_some_rows_are_noted(
    factor, share, n_noted, capsys, folder
):
    generator = np.random.default_rng(0)
    crp = np.exp(1.6 + 0.8 * generator.normal(size=200))
    labels = np.array(["ill", "well"])[generator.integers(0, 2, 200)]
    written(folder / "known.csv", {"crp": crp, "label": labels})
    X, y, *_ = opened(folder / "known.csv").whole()
    FlyNNClassifier(effort="quick").fit(X, y).save("model.npz")
    own = np.exp(1.6 + 0.8 * generator.normal(size=60))
    own[: int(60 * share)] *= factor
    written(folder / "new.csv", {"crp": own, "label": labels[:60]})
    _, notes = run(capsys, "score", "model.npz", "new.csv")
    noted = re.findall(r"\((\d+) of 60 rows\)", notes)
    assert noted == [*filter(int, [str(n_noted)])]


def test_reasons_are_of_the_class_that_a_threshold_gives(capsys, folder):
    saved_model(HALF[:60])
    written(folder / "new.csv", dict(zip("ab", samples(HALF).T, strict=True)))
    usual = predictions(capsys, "new.csv", "--reasons", "1")[1:]
    turned = predictions(capsys, "new.csv", "--reasons", "1", "--threshold", "0")[1:]
    signs = {"+": "-", "-": "+"}
    n_turned = 0
    for row, other in zip(usual, turned, strict=True):
        words, sign, number = re.split(r": ([+-])", row[-1])
        if row[0] != other[0]:
            n_turned += 1
            sign = signs[sign]
        assert other[-1] == f"{words}: {sign}{number}"
    assert n_turned


TYPED = {"id": ["007", "008"], "b": [1.5, 2.5], "a": [2, 3], "two words": ["=A1", None]}
COPIED: dict[str, tuple[Any, list[list[str]]]] = {
    ".csv": (
        "id;b;a; two  words\n007;1,50;2;=A1\n\n008;2,5;3;\n",
        [["007", "1,50", "'=A1"], ["008", "2,5", ""]],
    ),
    ".parquet": (TYPED, [["007", "1.5", "'=A1"], ["008", "2.5", ""]]),
    ".npz": (
        TYPED | {"id": [7.0, 8.0], "two words": [0.0, 1.0]},
        [["7.0", "1.5", "0.0"], ["8.0", "2.5", "1.0"]],
    ),
}


@pytest.mark.parametrize("ending", COPIED)
def test_predict_copies_columns_but_for_an_apostrophe_before_formulas(
    ending, capsys, folder
):
    saved_model(HALF)
    content, saved = COPIED[ending]
    name = written(folder / f"new{ending}", content).name
    keep = [part for column in ("id", "b", "two words") for part in ("--keep", column)]
    rows = predictions(capsys, name, *keep)
    assert [row[:3] for row in rows] == [["id", "b", "two words"], *saved]
    assert [row[3:] for row in rows] == predictions(capsys, name)
    out, error = run(capsys, "predict", "model.npz", name, "--keep", "gone", status=1)
    assert out == ""
    assert "--keep" in error
    assert "gone" in error


# -------- score


def figures(path: str = "scores.csv") -> dict[str, float]:
    return {
        row["figure"]: float(row["value"])
        for row in csv.DictReader(io.StringIO(Path(path).read_text()))
    }


@NAMELESS
@pytest.mark.parametrize("n_classes", [2, 3])
def test_figures_of_a_model_are_those_of_scikit_learn(
    n_classes, capsys, folder, monkeypatch
):
    monkeypatch.setattr(table_file, "MOST_ROWS", 16)
    y = np.random.default_rng(0).integers(n_classes, size=100)
    classes = np.array(["ash", "birch", "cedar"])
    model = saved_model(y, classes)
    X = samples(y[::-1])
    true = classes[y[::-1]]
    rows = [f"{a},{b},{label}" for (a, b), label in zip(X, true, strict=True)]
    written(
        folder / "new.csv",
        "\n".join(["a,b,kind", *rows, "1,2,", "1,2,elm", "3,2,elm", "1,1,fir"]),
    )
    shown, _ = run(
        capsys, "score", "model.npz", "new.csv", "--label", "kind", "--out", "own.csv"
    )
    assert shown.splitlines()[-1] == "own.csv"
    printed = figures("own.csv")
    p = model.predict_proba(X)
    best = model.classes_[p.argmax(axis=1)]
    if n_classes == 2:
        scores = p[:, 1]
        brier = brier_score_loss(true == "birch", scores)
    else:
        scores = p
        brier = ((p - (true[:, None] == model.classes_)) ** 2).sum(axis=1).mean()
    expected = {
        "rows": 100,
        "rows without a label": 1,
        "rows with an unknown label": 3,
        "unknown labels": 2,
        "accuracy": accuracy_score(true, best),
        "balanced accuracy": balanced_accuracy_score(true, best),
        "log-loss": log_loss(true, p, labels=model.classes_),
        "Brier score": brier,
        "AUROC": roc_auc_score(true, scores, multi_class="ovr", average="macro"),
    }
    assert printed.keys() == expected.keys()
    np.testing.assert_allclose(list(printed.values()), list(expected.values()))
    sizes = [(line.split("  ")[0], line.split()[-1]) for line in shown.splitlines()[:4]]
    assert sizes == [*zip(expected, ["100", "1", "3", "2"], strict=False)]


@NAMELESS
@pytest.mark.parametrize(("n_first", "rarer"), [(25, 0), (40, 1), (55, 1)])
def test_a_threshold_takes_the_rarer_of_two_classes(n_first, rarer, capsys, folder):
    y = (np.arange(80) >= n_first).astype(int)
    model = saved_model(y, ("no", "yes"))
    X = samples(y)
    written(
        folder / "new.csv", {"a": X[:, 0], "b": X[:, 1], "label": model.classes_[y]}
    )
    flagged = model.predict_proba(X)[:, rarer] >= 0.2
    positive = y == rarer
    assert 0 < flagged.sum() < 80
    _, *rows = predictions(capsys, "new.csv", "--threshold", "0.2")
    predicted = [row[0] for row in rows]
    assert predicted == model.classes_[np.where(flagged, rarer, 1 - rarer)].tolist()
    run(capsys, "score", "model.npz", "new.csv", "--threshold", "0.2")
    scored = figures()
    assert scored["flagged"] == flagged.sum()
    assert scored["flagged rightly"] == (flagged & positive).sum()
    assert scored["missed"] == (positive & ~flagged).sum()
    assert scored["threshold"] == 0.2
    assert scored["accuracy"] == pytest.approx((flagged == positive).mean())


@pytest.mark.parametrize("verb", ["predict", "score"])
def test_a_threshold_is_for_two_classes(verb, capsys, folder):
    saved_model(np.arange(12) % 3, ("ash", "birch", "cedar"))
    written(folder / "new.csv", "a,b,label\n1,2,ash\n2,3,birch\n")
    out, log = run(capsys, verb, "model.npz", "new.csv", "--threshold", "0.2", status=1)
    assert out == ""
    assert "--threshold" in log


@pytest.mark.parametrize(
    ("classes", "named"), [(("1", "1.0"), "'1', '1.0'"), (("nan", "yes"), "'nan'")]
)
def test_score_names_classes_that_no_label_of_a_file_can_mean_alone(
    classes, named, capsys, folder
):
    saved_model(HALF, classes)
    written(folder / "new.csv", "a,b,label\n1,2,yes\n1,3,1\n")
    assert f"got {named}" in run(capsys, "score", "model.npz", "new.csv", status=1)[1]


def test_score_needs_a_label_that_the_model_knows(capsys, folder, monkeypatch):
    saved_model(HALF, ("no", "yes"))
    written(folder / "new.csv", "a,b,label\n1,2,elm\n1,3,\n")
    assert run(capsys, "score", "model.npz", "new.csv", status=1)[0] == ""
    written(folder / "new.csv", "a,b,label\n1,2,yes\n1,3,yes\n")
    run(capsys, "score", "model.npz", "new.csv")
    assert np.isnan(figures()["AUROC"])  # of one class
    before = {name: (folder / name).read_bytes() for name in ("new.csv", "model.npz")}
    monkeypatch.setenv("HOME", str(folder))
    for name, file in product(before, ("new.csv", "~/new.csv")):
        arguments = ("score", "model.npz", file, "--out", name)
        _, log = run(capsys, *arguments, status=1)
        assert "--out" in log
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_a_draft_tells_no_text_of_few_persons(capsys, folder):
    towns = ["Ulm"] * 60 + ["Bern"] * 60
    rows = [f"p{i // 6},Meier {i // 6},{town},{i % 2}" for i, town in enumerate(towns)]
    written(folder / "new.csv", "\n".join(["pid,name,town,label", *rows]))
    drafted, _ = run(capsys, "schema", "new.csv", "--held-out-key", "pid")
    assert "Ulm" in drafted
    assert "Meier 3" not in drafted
    assert "p3" not in drafted
    assert "Meier 3" in run(capsys, "schema", "new.csv")[0]


# -------- the command line


USAGE = [
    "",
    "bake",
    "schema",
    "check own.csv",
    "predict model.npz",
    "try",
    "score model.npz",
]
USAGE += ["predict m f --coverage 2", "predict m f --coverage nan"]
USAGE += [f"predict m f --reasons {number}" for number in ("0", "11", "x")]
USAGE += ["schema own.csv --separator #", "schema own.csv --min-examples few"]
REFUSED = [
    "schema gone.csv",
    "schema schema.toml",
    "schema own.csv --label gone",
    "schema own.csv --min-examples 0",
]
REFUSED += [
    "check own.csv gone.toml",
    "check own.csv own.csv",
    "show gone.npz",
    "show own.csv",
]
REFUSED += [
    "predict own.csv own.csv",
    "score own.csv own.csv",
    "try own.csv --by gone",
    "try own.csv --set gone=1",
]


@pytest.mark.parametrize("line", USAGE)
def test_a_wrong_command_line_is_status_2(line, capsys):
    assert "usage: flwr-flynn" in run(capsys, *line.split(), status=2)[1]


@pytest.mark.parametrize("line", REFUSED)
def test_a_refused_file_is_status_1_and_one_line(line, capsys):
    out, error = run(capsys, *line.split(), status=1)
    assert out == ""
    assert error.startswith("flwr-flynn: ")


def test_help_and_version(capsys):
    assert "predict" in run(capsys, "--help")[0]
    assert run(capsys, "--version")[0] == f"flwr-flynn {__version__}\n"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_commands_of_the_pages_do_what_they_say(capsys, folder):
    """The commands on these pages, of files and models."""
    X, y, *_ = opened(folder / "own.csv").whole()
    FlyNNClassifier(effort="quick").fit(X, y).save("model.npz")
    written(folder / "new.csv", OWN)
    written(folder / "metrics.json", json.dumps(metrics()))
    features = {name: OWN[name] for name in ("age", "ward", "since")}
    outcome = features | {"outcome": OWN["label"]}
    for name, separator in (("basel", ","), ("bern", ","), ("chur", ";")):
        written(folder / f"{name}.csv", outcome, sep=separator)
    listed = re.findall(
        r"^- `(flwr-flynn [^`]+)`", text_of("docs/reference/commands.md"), re.MULTILINE
    )
    pages = "docs/how_to/files.md", "docs/how_to/bedside.md"
    written_out = "".join(block for page in pages for block in blocks(page, "bash"))
    lines = [*written_out.splitlines(), *listed]
    assert {line.split()[1] for line in lines} == {
        "schema",
        "check",
        "try",
        "show",
        "reset",
        "predict",
        "score",
    }
    written(folder / "state.exists", "of a ledger")
    for line in lines:
        command, _, target = line.partition(" > ")
        out, _ = run(capsys, *shlex.split(command)[1:])
        assert out
        if target:
            written(folder / target, out)
    assert len((folder / "classes.csv").read_text().splitlines()) == 91


@pytest.mark.slow
def test_the_command_as_a_process(folder):
    environment = {
        "PYTHONPATH": str(ROOT),
        "PATH": "/usr/bin:/bin",
        "FLWR_TELEMETRY_ENABLED": "0",
    }

    def command(line: str) -> subprocess.CompletedProcess[str]:
        start = (
            f"{sys.executable} -c 'import sys; from flwr_flynn.app.cli import "
            "main; sys.exit(main())'"
        )
        arguments = ["bash", "-c", f"{start} {line}"]
        return subprocess.run(
            arguments,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    done = command("schema own.csv > draft.toml")
    assert done.returncode == 0, done.stderr
    assert command("check own.csv draft.toml").returncode == 0
    saved_model(HALF, names=["age", "weight"])
    failed = command("predict model.npz own.csv")
    assert (failed.returncode, failed.stdout, len(failed.stderr.splitlines())) == (
        1,
        "",
        1,
    )
    # Whoever reads the output may stop.
    written(folder / "many.csv", "age,weight\n" + "1,2\n" * 20_000)
    piped = command("predict model.npz many.csv | head -n 1")
    assert "Traceback" not in piped.stderr
    assert piped.stdout.startswith('"class"')
