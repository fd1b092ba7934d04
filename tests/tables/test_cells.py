"""The value of a cell follows from the cell, the schema and the site's settings alone."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flwr_flynn.app.data.held_out import row_keys
from flwr_flynn.app.data.own_file import coded_labels, private_file
from flwr_flynn.app.data.source import Dialect, Reading
from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.cells import ByLevel, CellReader, Gaps, missing
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.row_wise import CellSettings, encode_rows
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.texts import is_value, number_of
from tests.neighbours import HOSTILE_TEXTS
from tests.raising import raises

KINDS = ("number", "category", "date")
GAP_TEXTS = ("-9", "73412", "not  Known", "1,5", "inf")
SETTINGS = CellSettings(GAP_TEXTS)
SHORT = [text for text in HOSTILE_TEXTS if len(text) < 999]
TEXTS = (
    st.sampled_from([*SHORT, " -9", "-9,0", "Not known", "1,234", "1.234", "5 mg"])
    | st.text(max_size=8)
    | st.text("0123456789.,-+eE_ \u00a0\u0661naif", max_size=8)
    | st.floats().map(repr)
)
OBJECTS = TEXTS | st.sampled_from(
    [
        *(None, np.nan, pd.NA, pd.NaT, True, False, 1, 0, 1.0, 0.0, -0.0, -9, -9.0),
        *(Decimal(1), Decimal("1.0"), Decimal("-9"), Decimal("NaN"), 2**70, 10**400),
        *(1j, 1 + 0j, np.float32(0.1), np.float32(1), np.int8(1), np.bool_(True)),
        *(date(2020, 1, 2), datetime(2020, 1, 2), np.datetime64("2020-01-02")),
        *(timedelta(1), np.timedelta64(1, "D"), pd.Timestamp("2020-01-02"), b"-9"),
        *(b"\xff", [1], (), object),
    ]
)


def same(one: Any, other: Any) -> bool:
    """True for values of one type that are equal, NaN and NaT included."""
    return type(one) is type(other) and repr(one) == repr(other)


WORDS = ByLevel({"m": "male", "1": "2.5", "mg": "-9", "None": "1"}, None, None)
READERS = [
    CellReader(kind, gaps, decimal, form, scales, words)
    for words in (None, WORDS)
    for kind in KINDS
    for gaps in (Gaps(), Gaps.of(GAP_TEXTS), Gaps(frozenset()))
    for decimal in ".,"
    for form, scales in (
        ("", {"": (1.0, 0.0)}),
        ("mm/dd/yyyy", {"": (0.1, -17.78), "mg": (88.4, 0.0)}),
    )
]
OF_NUMBERS = [reader for reader in READERS if reader.kind == "number"]


@given(st.lists(OBJECTS, max_size=9), st.sampled_from(READERS))
def test_each_cell_of_a_column_is_what_it_is_alone(cells, reader):
    values, good = reader.column(cells)
    for cell, value, is_good in zip(cells, values, good.tolist(), strict=True):
        alone, is_good_alone = reader(cell)
        single, single_good = reader.column([cell])
        assert is_good == is_good_alone == single_good[0]
        assert same(value, single[0])
        assert repr(single[0]) == repr(reader.column([None, cell])[0][1])
        if isinstance(alone, float):
            np.testing.assert_equal(float(value), alone)


@given(st.lists(TEXTS, max_size=9), st.sampled_from(OF_NUMBERS))
def test_numbers_that_are_read_at_once_are_those_of_the_slow_way(texts, reader):
    for text, value in zip(texts, reader.at_once(texts).tolist(), strict=True):
        if math.isnan(value):
            continue
        number, _ = number_of(text.strip(), reader.decimal)
        assert number is not None
        factor, added = reader.scales[""]
        assert value == number * factor + added
        assert reader(text) == (value, True)
        assert not reader.gaps.has(text, reader.decimal)


NUMERALS = st.from_regex(
    r"\s?[-+]?[0-9]{0,4}([.,' ][0-9]{0,4}){0,3}(e[-+]?[0-9])?\s?", fullmatch=True
)


@given(st.lists(NUMERALS | OBJECTS, max_size=9), st.sampled_from(OF_NUMBERS))
@settings(max_examples=300)
def test_numerals_between_any_cells_are_those_of_the_slow_way(cells, reader):
    values, good = reader.column(cells)
    for cell, value, is_good, at_once in zip(
        cells, values.tolist(), good.tolist(), reader.at_once(cells), strict=True
    ):
        np.testing.assert_equal((value, is_good), reader(cell))
        if not math.isnan(at_once):
            assert same(at_once.item(), reader(cell)[0])


@given(
    st.lists(st.tuples(OBJECTS, TEXTS, st.floats(), st.integers(-9, 9)), min_size=1),
    st.permutations(range(4)),
)
def test_the_key_of_a_row_has_those_of_its_cells(rows, order):
    dtypes = (object, object, np.float64, np.int8)
    columns: list[Any] = []
    for values, dtype in zip(zip(*rows, strict=True), dtypes, strict=True):
        column = np.empty(len(rows), dtype)
        column[:] = [*values]
        columns.append(column)
    columns[1] = columns[1].tolist()
    columns = [columns[place] for place in order]
    for index, key in enumerate(row_keys(columns)):
        cells = [row_keys([column[index : index + 1]])[0] for column in columns]
        assert key == b"".join(cells)


@given(
    st.lists(st.floats(width=32) | st.sampled_from([-9.0, 73412.0, 1.5, np.inf])),
    st.sampled_from([np.float32, np.float64, object]),
)
def test_typed_numbers_are_read_as_one_by_one(values, dtype):
    reader = CellReader("number", Gaps.of(GAP_TEXTS))
    whole, good = reader.column(np.array(values, dtype))
    assert good.all()
    np.testing.assert_array_equal(whole, [reader(value)[0] for value in values])


@pytest.mark.parametrize(
    "cell",
    [" -9", "-9.0", "-9,0", "-9e0", "\u22129", -9, -9.0, np.int8(-9), Decimal("-9.00")],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_gap_that_is_a_number_is_compared_as_one(cell, kind):
    reader = CellReader(kind, Gaps.of(["-9"]))
    values, good = reader.column([cell])
    assert good.all()
    assert pd.isna(values[0])
    # An array of booleans becomes one of numbers, or of texts, by one row more.
    for true in (True, np.bool_(True), "true", 1.0, "1"):
        assert pd.isna(CellReader(kind, Gaps.of(["1"])).column([true])[0][0])
    assert CellReader("category")("NAT") == ("NAT", True)


def test_a_fraction_is_a_gap_in_single_precision_too():
    reader = CellReader("number", Gaps.of(["-99,9"]))
    column = np.array([-99.9, 1.0], np.float32)
    for cells in (column, column.tolist()):
        assert np.isnan(reader.column(cells)[0]).tolist() == [True, False]


# -------- in every path and source

SCHEMA = Schema(
    [
        Column("number", "number", low=-1e9, high=1e9),
        Column("category", "category", ["1", "0", "-9", "m", "1.5", "yes", "x"]),
        Column("date", "date"),
    ]
)


def rows_of(path: Path) -> list[list[str]]:
    """Numbers of the rows that a private party reads from a file, in texts."""
    reading = Reading(dialect=Dialect(gap_texts=GAP_TEXTS))
    rows = private_file(path, reading)
    made = []
    for block in rows.blocks(2**14):
        X, y = block.read(slice(0, block.n))
        numbers, fits = encode_rows(SCHEMA, X, rows.settings)
        made += [
            f"{row} {fit}" for row, fit in zip(numbers.tolist(), fits, strict=True)
        ]
        assert len(y) == len(fits)
    return made


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def write(path: Path, texts: list[str]) -> None:
    """Write a file whose three columns have these texts."""
    columns = {column.name: texts for column in SCHEMA.columns}
    columns["label"] = ["x"] * len(texts)
    if path.suffix == ".csv":
        lines = [",".join([_quoted(text)] * 3 + ["x"]) for text in texts]
        path.write_text("\n".join(["number,category,date,label", *lines]), "utf-8")
    elif path.suffix == ".npz":
        names = np.array(SCHEMA.names)
        X = np.array([texts] * 3).T
        np.savez(path, X=X, y=np.array(columns["label"]), feature_names=names)
    else:
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)


LINES = st.lists(
    TEXTS.filter(
        lambda text: (
            text.encode(errors="ignore").decode() == text and not {*text} & {*"\n\r\0"}
        )
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("ending", [".csv", ".npz", ".parquet"])
@given(texts=LINES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_of_a_private_file_is_what_it_is_alone(ending, texts, tmp_path):
    write(tmp_path / f"all{ending}", texts)
    alone = []
    for text in texts:
        write(tmp_path / f"one{ending}", [text])
        alone += rows_of(tmp_path / f"one{ending}")
    assert rows_of(tmp_path / f"all{ending}") == alone
    # A frame has the same rows, and an open party the same numbers of those that fit.
    frame = pd.DataFrame(dict.fromkeys(SCHEMA.names, texts), dtype=object)
    numbers, fits = encode_rows(SCHEMA, frame, SETTINGS)
    rows = zip(numbers.tolist(), fits, strict=True)
    assert [f"{row} {fit}" for row, fit in rows] == alone


@given(st.lists(OBJECTS, min_size=1, max_size=6))
def test_a_row_of_a_frame_is_what_it_is_alone(cells):
    objects = np.empty(len(cells), object)
    objects[:] = [*cells]
    frame = pd.DataFrame(dict.fromkeys(SCHEMA.names, objects))
    numbers, fits = encode_rows(SCHEMA, frame, SETTINGS)
    for index in range(len(cells)):
        alone, fit = encode_rows(SCHEMA, frame.iloc[index : index + 1], SETTINGS)
        np.testing.assert_array_equal(alone[0], numbers[index])
        assert fit[0] == fits[index]


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_an_open_frame_is_read_as_a_private_one(texts):
    schema = Schema([Column("category", "category", ["1", "m", "x", "-9"])])
    frame = pd.DataFrame({"category": texts}, dtype=object)
    np.testing.assert_array_equal(schema.encode(frame), encode_rows(schema, frame)[0])


# -------- equal values of different types


@pytest.mark.parametrize("first", [1, True, 1.0, Decimal(1), "1"])
def test_equal_values_of_other_types_are_read_by_themselves(first):
    """They have one key in a dictionary: the first one decided about all."""
    cells = [first, 1, True, 1.0, 0.0, -0.0, "x"]
    levels = [str(cell) for cell in Table.of(np.array([cells], object).T).columns[0]]
    alone = [CellReader("category")(cell)[0] for cell in cells]
    assert levels == alone == ["1", "1", "1", "1", "0", "0", "x"]
    classes, codes = coded_labels(np.array([first, "y", True], object), "a.csv")
    assert classes[codes[2]] == "True"


# -------- gap texts of a schema

VALUES = ["-9", "1,5", "TRUE", "false", "5 mg", "45 %", "1e5", "inf", "\u22129"]
VALUES += ["2020-01-31", "31.01.2020", "01/31/2020", "31-01-2020", " 7 ", "1.234,5"]


@pytest.mark.parametrize("text", VALUES)
def test_a_gap_of_a_schema_that_spells_a_value_is_refused_with_the_line_to_move(
    text,
):
    assert is_value(text)
    line = f"gap-texts = {json.dumps([text], ensure_ascii=False)}"
    with raises(SchemaError, field="column 'a' gap_texts", got="1 of them") as caught:
        Column("a", "category", ["x"], gap_texts=["n.d.", text])
    assert line in str(caught.value)


def test_a_gap_of_a_schema_that_spells_no_value_is_taken():
    words = ["n.d.", "unknown", "<5", "12A", "?", "", "nan", "x1"]
    assert Column("a", "number", gap_texts=words).gap_texts == tuple(words)


@pytest.mark.parametrize(
    ("kind", "decimal", "form", "code", "cell"),
    [
        pytest.param("number", ".", "", "-9", "-9", id="as it is"),
        pytest.param("number", ",", "", "-9", " -9,0", id="decimal comma"),
        pytest.param("number", ".", "", "-9", -9.0, id="a number"),
        pytest.param("number", ".", "", "-9", np.float32(-9), id="a short number"),
        pytest.param(
            "date", ".", "dd.mm.yyyy", "1900-01-01", "01.01.1900", id="a date"
        ),
        pytest.param("date", ".", "", "1900-01-01", date(1900, 1, 1), id="a day"),
        pytest.param("category", ".", "", "unknown", "Unknown", id="a level"),
    ],
)
def test_a_text_that_stands_for_a_gap_is_one_in_each_form_in_its_column_alone(
    kind, decimal, form, code, cell
):
    synonyms = {"crp": {code: "NA"}}
    site = CellSettings(decimal=decimal, date_format=form, synonyms=synonyms)
    for name in ("CRP", "base excess"):
        values, good = site.reader(kind, name).column([cell, cell])
        assert good.all()
        assert missing(values).tolist() == [name == "CRP"] * 2


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("text", ["9,999", "9.999", "-9", "1,5", "1.234,5"])
def test_a_gap_text_is_a_number_by_the_mark_of_the_column(text, decimal):
    """Of Parquet texts the mark is known after a first look at all of them."""
    reader = CellReader("number", Gaps.of([text]), decimal)
    cells = [*NASTY_NUMERALS, text]
    read_at_once = reader.at_once(cells)
    for cell, value in zip(cells, read_at_once.tolist(), strict=True):
        if not np.isnan(value):
            assert reader(cell) == (value, True)
    assert np.isnan(reader(text)[0])


NASTY_NUMERALS = [
    "1,5",
    "1.5",
    "2,5",
    "9,999",
    "9.999",
    "9999",
    " -9",
    "-9,0",
    "1234.5",
]


@pytest.mark.parametrize(
    ("text", "cell", "is_gap"),
    [
        ("-9", "-9 g/l", True),
        ("-9", "-9,5", False),
        ("1", "1e+16", False),
        ("1900-01-01", "01.01.1900", True),
        ("1900-01-01", "02.01.1900", False),
    ],
)
def test_a_gap_text_stands_for_what_it_means(text, cell, is_gap):
    assert Gaps.of([text]).has(cell) == is_gap
