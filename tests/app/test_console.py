"""The terminal shows texts of files, models and parties; it never obeys them."""

from __future__ import annotations

import ast
import csv
import io
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.app import console
from flwr_flynn.app.cli import main
from flwr_flynn.app.report.markup import cell
from flwr_flynn.errors import clean
from flwr_flynn.tables.schema import read_schema
from tests.code import modules

ODD = "x\x1b[2J\u202eold\x9b31m\x85y\rz\nFORGED: all is well"
"""A text that clears a screen, turns its letters round and forges a line."""

HIDDEN = "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
HIDDEN += "\u2066\u2067\u2068\u2069\ufeff\u00ad\ud800"
"""Characters that turn the direction of writing, break a line or show nothing."""

FLOWERS = re.compile(r"^\x1b\[9\dm\w+ *\x1b\[0m", re.MULTILINE)
"""The level of a log line, which Flower writes in colour."""


def assert_harmless(text: str) -> None:
    """No character of a text is obeyed, and no line of it is a name's."""
    text = FLOWERS.sub("", text)
    kinds = {unicodedata.category(character) for character in {*text} - {*"\n\t"}}
    assert {kind for kind in kinds if kind[0] == "C"} | {"Zl", "Zp"} & kinds == set()
    assert not any(line.startswith("FORGED") for line in text.split("\n"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def hostile_file(name: str, shift: int = 0, label: str = f"la{ODD}") -> str:
    """A file whose name, columns, levels and labels all are hostile."""
    stream = io.StringIO(newline="")
    out = csv.writer(stream)
    out.writerow([f"n{ODD}", f"c{ODD}", "=note", "size", label])
    for i in range(60):
        level = f"{'uv'[i % 2]}{ODD}"
        size = i % 7 + 0.5
        out.writerow([i + shift, level, f"=1+{i}", size, f"{'pq'[i % 2]}{ODD}"])
    Path(name).write_text(stream.getvalue(), encoding="utf-8", newline="")
    return name


def forged_model(name: str, names: Any) -> str:
    """A model with hostile classes and names."""
    spec = HashSpec(n_features=2, hash_dim=64, row_nnz=1, hash_nnz=4, seed=1)
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = np.array([f"p{ODD}", f"=q{ODD}"])[np.arange(40) % 2]
    counted = FlyNNClassifier(spec).fit(X, y)
    model = FlyNNClassifier.from_counts(
        spec, counted.counts_, counted.classes_, feature_names=names
    )
    model.save(name)
    return name


def verbs() -> list[list[str]]:
    """Command lines of every verb, most of them about hostile files."""
    own = hostile_file(f"own{ODD}.csv")
    other = hostile_file(f"oth{ODD}.csv", 3)
    plain = hostile_file(f"plain{ODD}.csv", label="label")
    third = hostile_file(f"third{ODD}.csv", 3, label="=other")
    label = f"la{ODD}"
    named = forged_model(f"model{ODD}.npz", [f"n{ODD}", "gone"])
    fits = forged_model("fits.npz", ["a", "b"])
    Path(f"new{ODD}.csv").write_text("a,b,=note,-5\n1,2,=1+2,-5.5\n3,4,-1e3,x\n")
    scored = f'a,b,label\n1,2,"p{ODD}"\n3,4,"=q{ODD}"\n5,6,"r{ODD}"\n'
    Path(f"scored{ODD}.csv").write_text(scored, newline="")
    Path("schema.toml").write_text(
        '[[column]]\nname = "a\\u001b[2J\\u202e"\nkind = "number"\n'
    )
    keep = ["--keep", "=note", "--keep", "-5"]
    return [
        ["schema", plain],
        ["schema", own, "--label", label],
        ["schema", own, "--label", f"no{ODD}"],
        ["check", own, "schema.toml"],
        ["check", own, f"no{ODD}.toml"],
        ["try", own, other, "--label", label, "--set", "effort=quick"],
        ["try", own, third, "--label", label],
        ["try", own, other, "--set", f"label={ODD}"],
        ["try", own, "--by", f"c{ODD}", "--label", label, "--set", "dry-run=true"],
        ["show", named],
        ["show", f"no{ODD}"],
        ["predict", named, own],
        ["predict", fits, f"new{ODD}.csv", *keep],
        ["predict", named, own, "--keep", ODD],
        ["score", named, own, "--label", label],
        ["score", fits, f"scored{ODD}.csv", "--out", f"s{ODD}.csv"],
        *([verb, f"no{ODD}", f"no{ODD}"] for verb in ("predict", "score", "check")),
        ["schema", own, f"--{ODD}"],
        [ODD],
    ]


def test_no_verb_lets_a_text_reach_the_terminal_as_it_is(
    capsys,
):
    commands = verbs()
    statuses = []
    for command in commands:
        statuses.append(main(command))
        printed = capsys.readouterr()
        assert printed.out or printed.err
        assert_harmless(printed.out)
        assert_harmless(printed.err)
        assert "Traceback" not in printed.err
    assert statuses.count(0) >= 5
    assert {1, 2} < {*statuses}


def test_a_schema_that_is_printed_has_the_names_of_the_file(
    capsys,
):
    own = hostile_file("own.csv", label="label")
    assert main(["schema", own]) == 0
    Path("own.toml").write_text(capsys.readouterr().out, encoding="utf-8")
    schema = read_schema("own.toml")
    assert "size" in schema.names
    assert schema.classes == (f"p{ODD}", f"q{ODD}")
    assert main(["check", own, "own.toml"]) == 0


def test_predictions_are_cells_that_no_spreadsheet_computes(
    capsys,
):
    forged_model("fits.npz", ["a", "b"])
    Path("new.csv").write_text("a,b,=note,-5\n1,2,=1+2,-5.5\n3,4,-1e3,+x\n")
    keep = ["--keep", "=note", "--keep", "-5"]
    assert main(["predict", "fits.npz", "new.csv", *keep]) == 0
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    # Negative numbers are no formulas.
    assert head[:3] == ["'=note", "-5", "class"]
    assert [row[:2] for row in rows] == [["'=1+2", "-5.5"], ["-1e3", "'+x"]]
    assert all(row[2][:2] in ("'=", "p") or row[2][0] == "p" for row in rows)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("=1", "'=1"),
        ("-1", "-1"),
        ("+1,5", "+1,5"),
        ("-1.5e-3", "-1.5e-3"),
        ("-1+2", "'-1+2"),
        ("-", "'-"),
        ("@x", "'@x"),
        ("\tx", "'\tx"),
        ("a=b", "a=b"),
    ],
)
def test_a_cell_is_guarded_unless_it_is_a_number(text, safe):
    assert cell(text) == safe


def test_the_app_prints_by_the_console_alone():
    """Neither `print` nor a standard stream occurs elsewhere in the app."""
    around = {}
    for name, path in modules().items():
        if not name.startswith("app/") or name == "app/console.py":
            continue
        around[name] = [
            node.lineno
            for node in ast.walk(ast.parse(path.read_text()))
            if getattr(node, "id", "") == "print"
            or getattr(node, "attr", "") in ("stdout", "stderr")
        ]
    assert {name: lines for name, lines in around.items() if lines} == {}


def test_a_line_stays_one_line(capsys):
    console.say(f"a{ODD}", "b  c\td", 5)
    console.note(f"a{ODD}")
    console.write('u,"v\nw\u2066"\n')
    line = r"ax\u001b[2J\u202eold\u009b31m\u0085y\u000dz FORGED: all is well"
    printed = capsys.readouterr()
    assert printed.out == f'{line}\nb  c\td\n5\nu,"v w\\u2066"\n'
    assert printed.err == f"flwr-flynn: {line}\n"


def test_characters_that_show_nothing_are_shown_or_left_out(
    capsys,
):
    console.say(f"a{HIDDEN}\U000e0041b\xa0c")
    escapes = "".join(f"\\u{ord(character):04x}" for character in HIDDEN)
    assert capsys.readouterr().out == f"a{escapes}\\U000e0041b\xa0c\n"
    assert clean(f"a{HIDDEN}b\u2028c", 80) == "ab c"
