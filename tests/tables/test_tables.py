"""Tables, their schema, and the summary that a schema follows from."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from operator import add

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from flwr_flynn.errors import DataError, SchemaError
from flwr_flynn.tables import table_summary
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.column_summary import ColumnSummary
from flwr_flynn.tables.learned_schema import LEARNED_LEVELS, schema_of
from flwr_flynn.tables.row_wise import encode_rows
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import RawColumns, Table
from flwr_flynn.tables.table_summary import TableSummary
from tests.raising import raises

FRAME = pd.DataFrame(
    {
        "real": [1.5, None, 3.0],
        "integer": pd.array([1, None, 2], dtype="Int64"),
        "flag": [True, False, True],
        "maybe": pd.array([True, None, False], dtype="boolean"),
        "levels": pd.Categorical(["a", None, "b"]),
        "numbers": pd.Categorical([1, 2, 2]),
        "text": [" x", None, "e\u0301"],
        "mixed": [1, "a", None],
        "when": pd.to_datetime(["2024-01-02 06:00", None, "2025-02-03 12:00"]),
        "zoned": pd.to_datetime(
            ["2024-01-02 00:00", "2024-01-02 00:00", None], utc=True
        ),
        "span": pd.to_timedelta(["1 day", None, "36 h"]),
        "empty": [None, None, None],
    }
)

# ---- tables


def column(table, name):
    return table.columns[table.names.index(name)]


def test_a_frame_has_numbers_texts_and_dates():
    table = Table.of(FRAME)
    kinds = dict(zip(table.names, table.kinds, strict=True))
    assert kinds == {
        **dict.fromkeys(
            ("real", "integer", "flag", "maybe", "span", "empty"), "number"
        ),
        **dict.fromkeys(("levels", "numbers", "text", "mixed"), "category"),
        **dict.fromkeys(("when", "zoned"), "date"),
    }
    texts = {
        "text": ["x", None, "\u00e9"],
        "mixed": ["1", "a", None],
        "numbers": ["1", "2", "2"],
    }
    assert {name: column(table, name).tolist() for name in texts} == texts
    assert_array_equal(
        [column(table, "span"), column(table, "maybe")],
        [[1.0, np.nan, 1.5], [1.0, np.nan, 0.0]],
    )
    assert column(table, "zoned")[0] == np.datetime64("2024-01-02")
    assert (len(table), table.shape) == (3, (3, 12))
    assert column(table[1:], "mixed").tolist() == ["a", None]
    assert table[np.array([True, False, False])].shape == (1, 12)


def test_a_polars_frame_is_the_same_table():
    polars = pytest.importorskip("polars")
    columns = ["real", "integer", "flag", "maybe", "levels", "text", "when", "zoned"]
    here = Table.of(FRAME[columns])
    there = Table.of(polars.from_pandas(FRAME[columns]))
    assert (here.names, here.kinds) == (there.names, there.kinds)
    for one, other in zip(here.columns, there.columns, strict=True):
        assert_array_equal(one, other)


def test_objects_are_of_the_kind_of_all_of_them():
    def kind(*values: object) -> str:
        column = np.empty(len(values), object)
        column[:] = values
        return Table.of(column[:, None]).kinds[0]

    assert kind(1, 2.5, Decimal("1.5"), None, np.nan, True) == "number"
    assert (
        kind(
            date(2024, 1, 2),
            datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            pd.NaT,
        )
        == "date"
    )
    assert kind("a", None, pd.NA) == kind("a", 1) == "category"
    assert kind(timedelta(days=2), None) == "number"


MIXED = {
    "an array with a gap": np.array([[1.0, np.nan]]),
    "objects with a gap": np.array([[1, None]], object),
    "texts": np.array([["a"]]),
    "a list with a text": [[1, "a"]],
    "a frame with a gap": FRAME[["real"]],
    "a frame with categories": FRAME[["levels"]],
}
PLAIN = {
    "integers": np.zeros((2, 2), np.uint8),
    "an infinite number": np.array([[1.0, np.inf]]),
    "objects": np.array([[1, 2]], object),
    "a list": [[1, 2]],
    "a ragged list": [[1], [1, 2]],
    "a frame of truths": FRAME[["flag"]],
    "a frame of nullable integers": pd.DataFrame(
        {"a": pd.array([1, 2], dtype="Int64")}
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_gaps_and_texts_need_a_table(name):
    assert RawColumns.of(MIXED[name]).is_plain is False


@pytest.mark.parametrize("name", PLAIN)
def test_plain_numbers_need_no_table(name):
    assert RawColumns.of(PLAIN[name]).is_plain is True


# ---- schemas


def test_the_numbers_of_a_row():
    schema = Schema(
        [
            Column("when", "date"),
            Column("text", "category", ["x", "z"], gaps=False),
            Column("real", "number"),
        ]
    )
    X = schema.encode(FRAME[["real", "text", "when", "flag"]])
    assert schema.inputs == (
        *("when days", "when month", "when weekday", "when hour", "when missing"),
        *("text=x", "text=z", "real", "real missing"),
    )
    assert_array_equal(X[0], [19724.25, 1, 1, 6, 0, 1, 0, 1.5, 0])  # a Tuesday
    assert_array_equal(X[1], [np.nan] * 4 + [1, 0, 0, np.nan, 1])
    assert_array_equal(X[2, 5:], [0, 0, 3, 0])
    assert schema.width == X.shape[1]


def test_columns_are_found_by_name_and_checked():
    schema = Schema(
        [Column("a", "number", low=0, high=2), Column("b", "category", ["1", "2"])]
    )
    assert_array_equal(
        schema.encode(pd.DataFrame({"b": [1, 2], "c": "x", "a": [0, 2.0]}))[:, 2:4],
        [[1, 0], [0, 1]],
    )
    assert_array_equal(
        schema.encode(
            pd.DataFrame({"a": [None, None], "b": [None, "1"]}, dtype=object)
        )[:, 1],
        [1, 1],
    )
    # A column that is not there is a gap.
    assert_array_equal(schema.encode(pd.DataFrame({"a": [1.0]}))[:, 2:], [[0, 0, 1]])
    frame = pd.DataFrame({"a": [1.0, 3.0, np.inf, np.nan], "b": "1"})
    with raises(
        DataError, field="column 'a'", expected="numbers in 0 to 2", got="others"
    ) as caught:
        schema.encode(frame)
    # The notes are for this machine's log, as the server chose the range.
    assert caught.value.__notes__ == ["2 of 4 rows"]
    assert encode_rows(schema, frame)[1].tolist() == [True, False, False, True]


def numbers(*values):
    return pd.DataFrame({"a": pd.Series(values, dtype=object)})


NAMED = Schema(
    [Column("a", "number", low=0, high=2), Column("b", "category", ["1", "2"])]
)
NEEDED = Schema([Column("a", "number"), Column("b", "number", required=True)])
NAMELESS = Schema(NAMED.columns, is_named=False)
DAY = Schema([Column("day", "date")])


@pytest.mark.parametrize(
    ("schema", "X", "field", "got"),
    [
        pytest.param(
            NAMED,
            pd.DataFrame({"a": [1.0], "bb": ["1"]}),
            "columns",
            "1 of 2 missing: 'b'; 1 others",
            id="another name",
        ),
        pytest.param(
            NEEDED,
            pd.DataFrame({"a": [1.0]}),
            "columns",
            "1 of 2 missing: 'b'; 0 others",
            id="no required column",
        ),
        pytest.param(
            NAMED,
            pd.DataFrame({"a": ["x"], "b": ["1"]}),
            "column 'a'",
            "kind category",
            id="texts for numbers",
        ),
        pytest.param(
            DAY,
            pd.DataFrame({"day": ["soon", "later"]}),
            "column 'day'",
            "kind category",
            id="texts for dates",
        ),
        pytest.param(NAMED, np.zeros((1, 2)), "X", "an array without", id="no names"),
        pytest.param(NAMELESS, np.zeros((1, 3)), "X", "3", id="too many columns"),
    ],
)
def test_what_does_not_fit_a_schema_is_refused_by_name(schema, X, field, got):
    with raises(DataError, field=field, got=got):
        schema.encode(X)


@pytest.mark.parametrize(
    ("schema", "X", "field", "got"),
    [
        pytest.param(
            NEEDED,
            pd.DataFrame({"a": [1], "c": [1]}),
            "columns",
            "1 of 2 missing",
            id="no required column",
        ),
        pytest.param(NAMED, np.zeros((2, 3)), "X", "3 columns", id="no names"),
        pytest.param(
            NAMELESS, np.zeros((2, 3)), "X", "3 columns", id="too many columns"
        ),
    ],
)
def test_rows_of_other_columns_are_refused_by_name(schema, X, field, got):
    with raises(DataError, field=field, got=got):
        encode_rows(schema, X)


def test_columns_of_one_name_are_refused():
    got = "2 columns, 1 of them named again"
    with raises(DataError, field="columns", got=got):
        Table(["a", "a"], [np.zeros(1)] * 2)
    with raises(DataError, field="columns", got=got):
        RawColumns.of(pd.DataFrame(np.zeros((1, 2)), columns=["a", " a"]))


@pytest.mark.parametrize(
    "values",
    [
        [10**400],
        [Decimal("sNaN"), 1],
        ["a", [1, 2]],
        ["a", {"a": 1}],
        ["a", b"x"],
        ["a", 1j],
    ],
    ids=["an endless number", "no number", "a list", "a dict", "bytes", "a complex"],
)
def test_values_of_no_kind_are_refused_by_the_name_of_their_column(values):
    with raises(DataError, field="a"):
        Table.of(numbers(*values))


def test_ranges_of_the_numbers():
    columns = [
        Column("a", "number", low=-1, high=2),
        Column("b", "category", ["x", "y"], gaps=False),
    ]
    assert Schema(columns).ranges == ([-1.0, 0.0, 0.0, 0.0], [2.0, 1.0, 1.0, 1.0])
    assert Schema([*columns, Column("c", "number", low=0)]).ranges is None
    assert Schema([*columns, Column("c", "date")]).ranges is None


# ---- summaries


@st.composite
def tables(draw):
    """A table of categories and numbers with gaps, and of dates, and a split of it."""
    n = draw(st.integers(1, 30))
    texts = np.array(
        draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=n, max_size=n)),
        object,
    )
    numbers = np.array(
        draw(st.lists(st.sampled_from([1.0, 2.5, np.nan]), min_size=n, max_size=n))
    )
    dates = np.array(
        draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n)), "datetime64[us]"
    )
    owners = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    table = Table(["t", "n", "d"], [texts, numbers, dates])
    return table, [table[owners == party] for party in range(4)]


def parts(summary: TableSummary) -> tuple[object, ...]:
    return summary.n_rows, {
        name: (column.gaps, dict(column.levels))
        for name, column in summary.columns.items()
    }


@given(tables())
def test_summaries_of_a_split_add_to_that_of_all_rows(case):
    table, shares = case
    total = reduce(add, [TableSummary.of(share) for share in shares])
    whole = TableSummary.of(table)
    assert schema_of(total)[0].columns == schema_of(whole)[0].columns
    assert parts(total)[0] == parts(whole)[0]
    for name, column in whole.columns.items():
        assert total.columns[name].levels == column.levels
    assert TableSummary.from_dict(json.loads(json.dumps(total.to_dict()))) == total


IDS = np.arange(100.0) * 7919 % 100


@pytest.mark.parametrize(
    ("names", "ignore", "keep", "reason"),
    [
        (["a\x1b[2J"], (), (), "not printable"),
        (["a\x1b[2J"], (), ["a\x1b[2J"], "not printable"),
        (["a\x1b[2J", "b"], ["B"], ["a\x1b[2J"], "ignored"),
        (["ID"], ["id"], (), "ignored"),
        (["a", "b"], (), (), "only 100 of 200 rows have it"),
    ],
)
def test_ids_that_cannot_be_kept_either_are_refused(names, ignore, keep, reason):
    parts = [TableSummary.of(Table([name], [IDS])) for name in names]
    if ignore:
        parts = [TableSummary.of(Table(names, [IDS] * len(names)))]
    with raises(SchemaError, field="columns") as caught:
        schema_of(reduce(add, parts), ignore, keep)
    assert reason in caught.value.got


def test_a_reply_of_too_many_columns_is_refused_before_they_are_built(monkeypatch):
    def built(*_):
        raise AssertionError

    entries = [[str(i), 1, {}, 1, {}] for i in range(2**14 + 1)]
    monkeypatch.setattr(table_summary, "ColumnSummary", built)
    for columns in (entries, {}, "a"):
        values = {"columns": columns, "n_rows": 1, "is_named": True}
        with raises(SchemaError, field="summary", got="others"):
            TableSummary.from_dict(values)


def test_few_rows_are_not_told():
    column = np.array(["a"] * 5 + ["b"] * 4 + [None] * 4, object)
    summary = TableSummary.of(Table(["t"], [column]), min_examples=5)
    assert summary.columns["t"] == ColumnSummary(13, {"category": 13}, 0, {"a": 5})
    assert schema_of(summary)[0].columns == (
        Column("t", "category", ["a"], gaps=False),
    )


def test_columns_that_are_left_out():
    n = 200
    ids = np.array([f"p{index}" for index in range(n)], object)
    many = np.array([f"l{index % 100:03}" for index in range(n)], object)
    empty = np.full(n, np.nan)
    table = Table(["id", "many", "empty", "x" * 300], [ids, many, empty, np.zeros(n)])
    schema, left_out = schema_of(TableSummary.of(table))
    assert schema.names == ("many",)
    assert len(schema.columns[0].levels) == LEARNED_LEVELS
    assert set(left_out) == {"id", "empty", "x" * 300}
    alone = TableSummary.of(Table(["many", "alone"], [many, np.zeros(n)]))
    both, left_out = schema_of(TableSummary.of(table) + alone)
    assert both.columns == schema.columns
    # Of columns that are left out, those that most rows have are ignored.
    assert schema.ignore == ("empty", "id")
    assert both.ignore == ()
    assert set(left_out) == {"id", "empty", "x" * 300, "alone"}
    with raises(SchemaError, field="columns", got="1 that cannot: 'empty' (no values)"):
        schema_of(TableSummary.of(Table(["empty"], [empty])))


def test_the_kind_of_most_rows_wins():
    texts = TableSummary.of(Table(["a"], [np.array(["x", "x"], object)]))
    numbers = TableSummary.of(Table(["a"], [np.zeros(3)]))
    assert (texts + numbers).columns["a"].kind == "number"
    assert (texts + numbers + texts).columns["a"].kind == "category"


# ---- rows one by one


ROW_SCHEMA = Schema(
    [
        Column("a", "number", low=0, high=9),
        Column("b", "category", ["x", "1"]),
        Column("d", "date"),
    ]
)
ODD = [
    "1.5",
    " 2 ",
    "true",
    "1_0",
    "x",
    "-3",
    "NA",
    "",
    None,
    np.nan,
    4,
    True,
    1j,
    date(2024, 1, 2),
    "2024-01-02",
    "2024-13-02",
    np.datetime64("2024-01-02"),
    pd.NaT,
    pd.NA,
    object(),
    np.inf,
    "inf",
    "1e400",
]


@given(st.lists(st.tuples(*[st.sampled_from(ODD)] * 3), min_size=1, max_size=8))
def test_no_row_decides_about_another(rows):
    """All rows together are what each is by itself.

    The privacy of refusals rests on this law.
    """
    X = np.empty((len(rows), 3), object)
    for index, row in enumerate(rows):
        X[index] = row
    numbers, fits = encode_rows(ROW_SCHEMA, pd.DataFrame(X, columns=["a", "b", "d"]))
    for index in range(len(rows)):
        alone, fit = encode_rows(
            ROW_SCHEMA, pd.DataFrame(X[index : index + 1], columns=["a", "b", "d"])
        )
        assert fits[index] == fit[0]
        if fit[0]:
            assert_array_equal(numbers[index], alone[0])


def test_rows_that_do_not_fit():
    X = np.array(
        [
            ["1.5", "x", "2024-01-02"],
            ["10", "x", ""],
            ["word", "x", ""],
            ["", "", ""],
            ["1", "y", "word"],
        ],
        object,
    )
    rows, fits = encode_rows(ROW_SCHEMA, Table(["a", "b", "d"], list(X.T)))
    assert fits.tolist() == [True, False, False, True, False]
    assert_array_equal(rows[0], [1.5, 0, 1, 0, 0, 19724, 1, 1, 0, 0])
    assert_array_equal(rows[3], [np.nan, 1, 0, 0, 1, *[np.nan] * 4, 1])


def test_dates_of_one_row_are_those_of_a_table():
    schema = Schema([Column("d", "date")])
    moments = pd.DataFrame({"d": pd.to_datetime(["2020-01-31 06:00", None])})
    texts = pd.DataFrame({"d": ["31.01.2020 06:00", ""]}, dtype=object)
    for frame in (moments, texts):
        numbers, fits = encode_rows(schema, frame)
        assert fits.all()
        assert_array_equal(numbers, schema.encode(moments))
    odd = ["today", "20240131", "03/04/2024", "2024-13-01"]
    _, fits = encode_rows(schema, pd.DataFrame({"d": odd}))
    assert not fits.any()


_DAYS = ["2024-01-02", "2024-01-03"]


@pytest.mark.parametrize(
    ("levels", "forms"),
    [
        pytest.param(["1", "2.0"], [1, 2], id="integers"),
        pytest.param(["1", "2.0"], [1.0, 2.0], id="floats"),
        pytest.param(["1", "2.0"], ["1", "2.0"], id="the same"),
        pytest.param(["1", "2.0"], [True, 2], id="a truth"),
        pytest.param(["1", "2.0"], pd.Categorical([1.0, 2.0]), id="categories"),
        pytest.param(["True", "False", "unknown"], [True, False], id="truths"),
        pytest.param(["01", "02", "A3"], [1, 2], id="leading zeros"),
        pytest.param(["1", "0"], ["true", "False"], id="truths in words"),
        pytest.param(["heart", "lung"], ["Heart", " LUNG "], id="capitals"),
        pytest.param(["e\u0301", "o"], ["\u00e9", "O"], id="forms of Unicode"),
        pytest.param(_DAYS, pd.to_datetime(_DAYS), id="days"),
    ],
)
def test_a_level_is_known_in_every_form_that_it_may_have(levels, forms):
    """The forms are those of the first two levels."""
    schema = Schema([Column("a", "category", levels)])
    frame = pd.DataFrame({"a": forms})
    assert_array_equal(schema.encode(frame)[:, :2], np.eye(2))
    assert_array_equal(encode_rows(schema, frame)[0][:, :2], np.eye(2))
    assert "e\u0301" not in schema.columns[0].levels


def test_a_gap_of_numbers_is_no_text_beside_them():
    numbers = Column("a", "number", gap_texts=["n.d."])
    schema = Schema([numbers, Column("a text", "category", ["x", "n.d."])])
    frame = pd.DataFrame({"a": ["1", "x", "n.d."]})
    assert_array_equal(encode_rows(schema, frame)[0], schema.encode(frame))


def test_columns_of_an_array_keep_their_positions():
    X = np.array([[np.nan, 1.0], [np.nan, np.nan]])
    schema, left_out = schema_of(TableSummary.of(X))
    assert (schema.names, left_out) == (("0", "1"), {})
    assert_array_equal(schema.encode(X), [[np.nan, 1, 1, 0], [np.nan, 1, np.nan, 1]])
    named = TableSummary.of(pd.DataFrame({"a": [1.0]}))
    for one, other in ((TableSummary.of(X), named), (named, TableSummary.of(X))):
        assert one + other == named  # whose columns can be found by others


def test_numbers_of_rows_are_told_in_multiples_of_the_floor():
    """Exact ones would tell of the one row that is left.

    Here they are 99 gaps of 100 rows, and 60 and 39 of two levels.
    """
    hiv = np.array(["yes"] + [None] * 99, object)
    sex = np.array(["f"] * 60 + ["m"] * 39 + ["x"], object)
    summary = TableSummary.of(Table(["hiv", "sex"], [hiv, sex]), 5).columns
    assert summary["hiv"].gaps == 95
    assert summary["hiv"].levels == {}
    assert summary["sex"].levels == {"f": 60, "m": 35}


def test_a_learned_schema_is_bounded():
    levels = {f"l{index:05}": 2 for index in range(64)}
    columns = {
        f"c{index:05}": ColumnSummary(128, {"category": 128}, 0, levels)
        for index in range(2000)
    }
    schema, left_out = schema_of(TableSummary(columns, 128))
    assert schema.width <= 2**16
    assert len(schema.columns) + len(left_out) == 2000


def test_texts_of_a_frame_are_dates_where_a_schema_says_so():
    frame = pd.DataFrame({"day": ["31.01.2024", None, "soon", "01.02.2024 12:00"]})
    days = Schema([Column("day", "date", gaps=False)]).encode(frame)
    assert_array_equal(days[:, 0], [19753, np.nan, np.nan, 19754.5])
    assert days[3].tolist() == [19754.5, 2.0, 3.0, 12.0]
