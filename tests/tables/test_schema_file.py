"""Schema files: read as they were written, and refused by name where they are none."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.column_encoding import Column, is_nameable
from flwr_flynn.tables.schema import (
    LARGEST,
    MOST_COLUMNS,
    Schema,
    parsed,
    read_schema,
    to_toml,
)
from flwr_flynn.tables.table_summary import TableSummary
from flwr_flynn.tables.texts import as_level, is_value
from tests.raising import raises
from tests.snapshots import assert_refused_as_on_record

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    is_nameable
)
OTHERS = ("ja", "1", 'a "quoted" one', "a.b = c", "\U0001f600\u00e4")
NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def columns(draw: Any, name: str) -> Column:
    """A column of any kind."""
    kind = draw(st.sampled_from(["number", "category", "date"]))
    if kind == "category":
        levels = draw(st.lists(NAMES, unique_by=as_level, max_size=5))
    else:
        levels = []
    low, high = sorted(
        (draw(NUMBERS), draw(NUMBERS)), key=lambda end: (end is None, end or 0.0)
    )
    if kind != "number":
        low = high = None
    texts = st.text(st.characters(codec="utf-8"), max_size=9)
    words = texts.filter(lambda text: text.isprintable() and not is_value(text))
    gaps = draw(st.lists(words, max_size=3))
    column = Column(
        name, kind, levels, draw(st.booleans()), low, high, draw(texts), gaps
    )
    if column.levels:
        texts = [text for text in OTHERS if as_level(text) not in column.levels]
    else:
        texts = []
    synonyms = {
        text: draw(st.sampled_from(list(column.levels)))
        for text in texts[: draw(st.integers(0, 5))]
    }
    return replace(column, synonyms=synonyms)


@st.composite
def schemas(draw: Any) -> Schema:
    """A schema with all that one may hold."""
    names = draw(st.lists(NAMES, unique=True, min_size=2, max_size=5))
    drawn = [draw(columns(name)) for name in names[1:]]
    with_quote = f"{names[0]}'s"
    if with_quote not in names:
        drawn.append(Column(with_quote, "number"))
    classes = draw(
        st.lists(
            st.text(st.characters(codec="utf-8"), max_size=9), unique=True, max_size=4
        )
        | st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=4)
    )
    return Schema(
        drawn or [Column("a", "number")],
        draw(st.booleans()),
        draw(st.sampled_from(["", names[0]])),
        classes,
    )


@given(schemas())
def test_a_schema_survives_a_file_and_json(schema):
    assert parsed(to_toml(schema)) == schema
    comments = {
        ("", "classes"): "two\nlines",
        (schema.names[0], "kind"): 'a "quoted" # note',
    }
    assert parsed(to_toml(schema, comments)) == schema
    assert tomllib.loads(to_toml(schema))["column"][0]["name"] == schema.names[0]
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def read(content: bytes, path: Path) -> Schema:
    """The schema of such a file.

    An error about it begins with its name, and shows as one short line.
    """
    path.write_bytes(content)
    try:
        return read_schema(path)
    except SchemaError as error:
        text = str(error)
        assert text.startswith(path.name)
        assert text.isprintable()
        assert len(text) < 600
        raise


def test_what_is_no_schema_and_no_summary_is_refused_as_it_is_on_record(
    tmp_path,
):
    """Values that come from anybody, and texts of schema files."""
    takes = {"schema": Schema.from_dict, "summary": TableSummary.from_dict}
    takes |= {"file": lambda text: read(text.encode(), tmp_path / "our.toml")}
    assert_refused_as_on_record(Path(__file__).parent / "refused.txt", takes)


LEVELS, SYNONYMS = (
    b", ".join(b"%b%d%b" % (a, i, z) for i in range(1025))
    for a, z in ((b"'", b"'"), (b"k", b" = 'yes'"))
)
CATEGORY = (
    b"[[column]]\nname = 'a'\nkind = 'category'\nlevels = [%b]\nsynonyms = {%b}\n"
)
HOSTILE = {
    "no UTF-8": b'label = "\xff"\n',
    "deep": b"a = " + b"[" * 5000,
    "too many levels": CATEGORY % (LEVELS, b""),
    "too many synonyms": CATEGORY % (b"'yes'", SYNONYMS),
    "too large": b"#" * (LARGEST + 1),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_files_of_no_text_or_of_too_much_of_it_are_refused(content, tmp_path):
    assert parsed((CATEGORY % (b"'yes'", b"ja = 'yes'")).decode()).names == ("a",)
    with raises(SchemaError):
        read(content, tmp_path / "our.toml")


COLUMN = "[[column]]\nname = '%d'\nkind = 'number'\n"
DOTTED = ".".join("a" * 40)
TOO_MANY = {
    "columns": "".join(COLUMN % i for i in range(100_000)),
    "keys": "\n".join(f"a{i}=1" for i in range(300_000)),
    "numbers": f"a = [{'1,' * 600_000}]",
    "dots": f"{DOTTED} = 1",
    "dots of a table": f"[{DOTTED}]",
    "dots in a table": f"x = {{ b = 1, {DOTTED} = 1 }}",
    "quoted dots": "x = 1\n" + " . ".join(['"\\""', "'\"'", "a"] * 15) + " = 1",
}


@pytest.mark.parametrize("text", TOO_MANY.values(), ids=TOO_MANY)
def test_files_that_take_long_are_refused_before_they_are_parsed(text, monkeypatch):
    monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("it was parsed"))
    with raises(SchemaError, field="schema"):
        parsed(text)


def test_the_largest_schema_and_levels_with_dots_are_taken():
    full = COLUMN + "low = 0.0\nhigh = 1.5 # public\nunit = 'm'\ngap-texts = ['x']\n\n"
    text = "".join(full % i for i in range(MOST_COLUMNS))
    assert len(parsed(text).columns) == MOST_COLUMNS
    levels = ["1.2.840.10008.5.1.4.1.1.88.1.2.3.4.5", *(f"{i}.5" for i in range(999))]
    column = Column("a", "category", levels)
    assert parsed(to_toml(Schema([column]))).columns == (column,)


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_are_a_schema_or_refused(content):
    try:
        parsed(content.decode("utf-8"))
    except (SchemaError, ValueError):
        return


def test_gap_texts_stand_at_the_top_or_at_a_column(tmp_path):
    text = (
        'gap-texts = ["unknown"]\n\n[[column]]\nname = "age"\nkind = "number"\n'
        'gap-texts = ["n.d."]\n'
    )
    (tmp_path / "our.toml").write_text("\ufeff" + text, encoding="utf-8")
    schema = read_schema(tmp_path / "our.toml")
    assert schema == Schema([Column("age", "number", gap_texts=["unknown", "n.d."])])
    with pytest.raises(FileNotFoundError):
        read_schema(tmp_path / "gone.toml")


def test_synonyms_of_levels_are_in_a_schema_s_digest_where_it_has_some():
    plain = Column("a", "category", ["yes"])
    given = Column("a", "category", ["yes"], synonyms={"ja": "yes"})
    assert "synonyms" not in plain.to_dict()
    assert given.to_dict()["synonyms"] == {"ja": "yes"}
    assert Schema.from_dict(Schema([given]).to_dict()) == Schema([given])
    with raises(SchemaError, field="columns"):
        many = {
            "kind": "category",
            "levels": ["yes"],
            "synonyms": {str(i): "yes" for i in range(1024)},
        }
        Schema.from_dict({"columns": [{"name": str(i), **many} for i in range(65)]})
