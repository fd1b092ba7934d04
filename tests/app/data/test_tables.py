"""Files as sites have them.

Dialects, kinds of columns, gaps, dates, hostile files, and files larger than memory.
"""

from __future__ import annotations

import gzip
import logging
import re
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.app.data import own_file, table_file
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.own_file import (
    columns_of,
    counter_of_file,
    encoded_share,
    opened,
    own_share,
)
from flwr_flynn.app.data.source import Dialect, Reading
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.errors import DataError, SchemaError, full_text
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.learned_schema import schema_of
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.table_summary import TableSummary
from flwr_flynn.tables.texts import DATE_FORMATS, date_of
from tests.app.data.files import ENDINGS, READERS, node, table_of, written
from tests.app.data.private import private_share
from tests.memory import traced
from tests.raising import raises
from tests.snapshots import assert_on_record

pd = pytest.importorskip("pandas")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.csv"


def days(column: Any) -> list[str]:
    return column.astype("datetime64[m]").astype(str).tolist()


# -------- dialects


@ENDINGS
@READERS
def test_blanks_line_breaks_and_forms_of_unicode_in_a_header_do_not_matter(
    read, ending, tmp_path
):
    """Names as other systems write them are those of a schema, and of another site."""
    size = "Gro\u0308\u00dfe"
    content: Any = {" age\n(years) ": [1, 2], size: [3, 4], "label": ["x", "y"]}
    read_by_schema = encoded_share
    if read is private_share:
        read_by_schema = private_share
    if ending == "csv" and read is private_share:
        # A private party reads a record in each line.
        content = f"age (years), {size}, label\n1,3, x\n2,4, y\n"
    path = written(tmp_path / f"mine.{ending}", content)
    levels = Column("Gr\u00f6\u00dfe", "category", ["3", "4"], gaps=False)
    schema = Schema([levels, Column("age (years)", "number", gaps=False)])
    share = read_by_schema(node(path), schema)
    assert share.X.tolist() == [[1, 0, 1], [0, 1, 2]]
    assert share.y.tolist() == ["x", "y"]
    assert {*(columns_of(path) or ())} >= set(schema.names)


def test_settings_of_the_node_win_and_the_log_has_what_was_read(path, caplog):
    written(
        path, "a|b|c|label\n1,5|-999|03/04/2024|x\n2|7|05/06/2024|y\n".encode("latin-1")
    )
    dialect = {
        "separator": "pipe",
        "decimal": ",",
        "encoding": "latin-1",
        "gap-texts": '["-999", "unknown"]',
    }
    settings = {
        "data-path": str(path),
        "test-fraction": 0.0,
        "date-format": "mm/dd/yyyy",
    } | dialect
    with caplog.at_level(logging.INFO):
        table = own_share(NodeConfig.parse(settings)).X
    assert "mine.csv: 2 rows; columns: 2 of numbers, 1 of dates" in caplog.text
    np.testing.assert_array_equal(table.columns[:2], [[1.5, 2], [np.nan, 7]])
    assert days(table.columns[2]) == ["2024-03-04T00:00", "2024-05-06T00:00"]
    tabs = NodeConfig.parse({"data-path": "a.csv", "separator": "tab"})
    assert tabs.dialect().separator == "\t"


def test_an_encoding_that_shows_behind_the_head_is_found(path, monkeypatch):
    monkeypatch.setattr("flwr_flynn.app.data.csv_file._HEAD", 64)
    written(path, b"town,label\n" + b"Bern,x\n" * 50 + "Zürich,y\n".encode("cp1252"))
    assert table_of(path).columns[0][-1] == "Zürich"
    # Windows-1252 does not have this byte.
    written(path, b"town,label\n" + b"Bern,x\n" * 50 + b"Z\xfcrich\x81,y\n")
    assert table_of(path).columns[0][-1] == "Zürich\x81"
    with raises(
        DataError, field="mine.csv", expected="text in UTF-8", got="another encoding"
    ):
        opened(path, Reading(dialect=Dialect(encoding="utf-8")))


# -------- kinds


def as_read(path: Path) -> Iterator[str]:
    """Columns and labels of a file, or the refusal, at an open and a private party."""
    try:
        file = opened(path)
        file.check()
        yield file.described()
        X, y, *_ = file.whole()
        if isinstance(X, Table):
            columns = X.columns
        else:
            columns = X.T
        for name, report, column in zip(file.names, file.reports, columns, strict=True):
            yield f"{name}: {report.kind}: {', '.join(map(value_of, column))}"
        yield (
            f"labels: {', '.join(y.astype(str))}; classes "
            f"{load_dataset(str(path)).classes}"
        )
    except DataError as error:
        assert_short(error)
        yield f"REFUSED: {error}"
        notes = full_text(error).removeprefix(str(error))
        if notes:
            yield f"in the party's own log: {notes}"
    try:
        share = private_share(node(path))
        for index, column in enumerate(share.X.T):
            yield f"privately, column {index}: {', '.join(map(value_of, column))}"
        yield f"labels: {', '.join(map(str, share.y))}"
    except DataError as error:
        yield f"privately REFUSED: {error}"


def assert_short(error: DataError) -> None:
    assert all(
        text.isprintable() for text in (str(error), *getattr(error, "__notes__", ()))
    )
    assert len(str(error)) < 500


def value_of(value: Any) -> str:
    is_gap = value is None or value != value
    if is_gap:
        return "a gap"
    if isinstance(value, str):
        return repr(value)
    return f"{value}"


@pytest.mark.parametrize("fast", [True, False])
def test_files_are_read_as_it_is_on_record(fast, path, monkeypatch):
    """Dialects, kinds and types of columns, gaps, dates, rows with errors, refusals."""
    if not fast:
        monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    record = Path(__file__).parent / "csv_files.txt"
    made = ""
    for name, text in re.findall(
        r"^## (.*)\n((?s:.*?))^=>$", record.read_text("utf-8"), re.MULTILINE
    ):
        lines = "".join(f"{line}\n" for line in as_read(written(path, text)))
        made += f"## {name}\n{text}=>\n{lines}\n"
    assert_on_record(record, made)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        pytest.param(["45 %", "12%", "7.5 %"], "number", id="one unit"),
        pytest.param(["1.5 mg", "2 g", "0.5 mg"], "category", id="two units"),
        pytest.param(["1A", "2B", "3A", "4"], "category", id="codes"),
        pytest.param(["low", "3", "high"], "category", id="a number among words"),
        pytest.param(["01", "02", "A3"], "category", id="leading zeros"),
    ],
)
def test_units_are_of_one_kind_and_codes_are_no_numbers(cells, kind, path):
    columns = {"c": cells * 9, "label": ["x"] * 9 * len(cells)}
    assert opened(written(path, columns)).reports[0].kind == kind
    assert Table.of(pd.DataFrame({"c": columns["c"]})).kinds[0] == kind


NUMBERS = [
    "1",
    "2.5",
    " 7 ",
    "+5",
    "0x1",
    "1e5",
    "True",
    "inf",
    "nan",
    "-nan",
    "1,5",
    "1.5",
    "9" * 25,
    "-999",
    "-0",
]
OTHERS = [
    "",
    "x",
    "NA",
    "2024-01-05",
    "05/06/2024",
    'quo"te',
    "two\nlines",
    "ü",
    "\uff19",
    "\0",
    str(2**63),
]
CELLS = st.sampled_from([*NUMBERS, *OTHERS])


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12),
    decimal=st.sampled_from([".", ","]),
)
def test_neither_order_nor_number_of_the_rows_read_at_a_time_decides_about_values(
    rows, decimal, tmp_path_factory
):
    path = tmp_path_factory.mktemp("both") / "mine.csv"
    dialect = Dialect(("-999",), decimal, separator=";", encoding="utf-8")

    def read(
        rows: list[tuple[str, str]], most_rows: int
    ) -> tuple[list[Any], list[Any]]:
        """The report on the columns, and their values."""
        cells = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in rows]
        written(path, "a;b;label\n" + "".join(f"{a};{b};x\n" for a, b in cells))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table_file, "MOST_ROWS", most_rows)
            file = opened(path, Reading(dialect=dialect))
            tables = [rows.table for rows in file.batches()]
        facts = [
            (report.kind, report.dtype, report.gaps, report.texts, report.infinite)
            for report in file.reports
        ]
        columns = zip(*(table.columns for table in tables), strict=True)
        return facts, [np.concatenate(column) for column in columns]

    try:
        whole = read(rows, 100)
        parts = read(rows, 1)
        back = read(rows[::-1], 1)
    except DataError as error:
        # A first row of words above numbers is taken for a header.
        assert error.expected == "one header"
        return
    assert whole[0] == parts[0] == back[0]
    for one, two, three in zip(whole[1], parts[1], back[1], strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three[::-1])


@given(st.datetimes(), st.sampled_from(DATE_FORMATS))
def test_dates_are_read_as_they_were_written(moment, form):
    text = form
    for part, digits in {
        "yyyy": f"{moment.year:04}",
        "mm": f"{moment.month:02}",
        "dd": f"{moment.day:02}",
    }.items():
        text = text.replace(part, digits)
    assert date_of(text, form) == moment.replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    assert date_of(f"{text} {moment:%H:%M:%S.%f}", form) == moment


# -------- with a schema


SCHEMA = Schema(
    [
        Column("zip", "category", ["01", "1A"]),
        Column("age", "number", high=120.0),
        Column("day", "date"),
    ]
)
SCHEMA_TEXT = "age,zip,day,label\n50,01,2024-01-05,x\n,1A,,y\n70,1,2024-03-05,x\n"


def test_a_schema_keeps_texts_that_look_like_numbers(path):
    party = NodeConfig(data_path=str(written(path, SCHEMA_TEXT.replace("1A", "02"))))
    assert own_share(party).X.kinds == ("number", "number", "date")
    table = own_file.opened_own(party, schema=SCHEMA).whole()[0]
    assert (table.names, table.columns[0].tolist()) == (SCHEMA.names, ["01", "02", "1"])
    assert SCHEMA.encode(table)[:, :2].tolist() == [[1, 0], [0, 0], [1, 0]]  # 1 is 01


@pytest.mark.parametrize(
    ("good", "bad", "expected", "name"),
    [
        pytest.param("50,01", "old,01", "numbers", "age", id="number"),
        pytest.param("2024-0", "soon", "dates of one form", "day", id="date"),
    ],
)
def test_values_of_another_kind_than_the_schema_s_are_counted(
    good, bad, expected, name, path
):
    written(path, SCHEMA_TEXT.replace(good, bad).replace("\n70", "\n"))
    others = f"others in 1 of 3 features: {name}"
    with raises(DataError, field="mine.csv", expected=expected, got=others):
        own_share(NodeConfig(data_path=str(path)), SCHEMA)


def test_an_encoded_share_has_the_numbers_of_the_table_in_memory_or_in_a_file(
    path, monkeypatch
):
    monkeypatch.setattr(table_file, "MOST_ROWS", 16)
    zips = np.random.default_rng(0).choice(["01", "1A", ""], 300)
    rows = [
        f"{i % 100 or ''},{zips[i]},2024-01-{i % 28 + 1:02},c{i % 3}\n"
        for i in range(300)
    ]
    party = NodeConfig(
        data_path=str(written(path, "age,zip,day,label\n" + "".join(rows)))
    )
    X, y, _, test = own_file.opened_own(party, schema=SCHEMA).whole()
    in_memory = encoded_share(party, SCHEMA)
    monkeypatch.setattr(own_file, "LARGE", 0)
    in_file = encoded_share(party, SCHEMA)
    assert isinstance(in_file.X, np.memmap)
    for share in (in_memory, in_file):
        np.testing.assert_array_equal(share.X, SCHEMA.encode(X[~test]))
        np.testing.assert_array_equal(share.X_test, SCHEMA.encode(X[test]))
        assert share.y.tolist() == y[~test].tolist()
        assert share.y_test.tolist() == y[test].tolist()
    assert not list(path.parent.glob("tmp*"))


def test_a_full_disk_is_told(path, monkeypatch):
    class Full:
        closed = True

        def __init__(self, **_: Any) -> None:
            pass

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def close(self) -> None:
            pass

        def write(self, _: Any) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(own_file, "LARGE", 2)
    monkeypatch.setattr(own_file.tempfile, "TemporaryFile", Full)
    with raises(DataError, field="mine.csv", got="No space left on device"):
        encoded_share(node(written(path, SCHEMA_TEXT)), SCHEMA)


def test_the_summary_of_a_file_is_that_of_its_table_however_large(path, monkeypatch):
    written(path, "age,town,note,label\n" + "1,Ulm,,x\n,Bern,,y\n3,Ulm,,y\n" * 20)
    for least in (1, 4):
        assert counter_of_file(opened(path), least).summary() == TableSummary.of(
            table_of(path), least
        )
    party = NodeConfig(data_path=str(path), min_examples=1)
    expected = TableSummary.of(own_share(party).X)
    monkeypatch.setattr(own_file, "LARGE", 0)
    assert expected == own_share(party).X


# -------- Parquet and NPZ


def test_parquet_keeps_its_types(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    noon = datetime(2024, 1, 5, 12, tzinfo=timezone(timedelta(hours=2)))
    columns = {
        "integer": pa.array([1, None], pa.int8()),
        "truth": pa.array([True, None]),
        "decimal": pa.array([Decimal("1.10"), None]),
        "text": pa.array([" a ", "NA"]),
        "text of a dictionary": pa.array(["x", None]).dictionary_encode(),
        "number of a dictionary": pa.array([7, None]).dictionary_encode(),
        "date": pa.array([date(2024, 1, 5), None]),
        "time": pa.array([noon, None], pa.timestamp("ns", "Europe/Zurich")),
        "duration": pa.array([timedelta(hours=12), None]),
        "nothing": pa.nulls(2),
        "label": pa.array(["u", "v"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "mine.parquet")
    table = own_share(node(tmp_path / "mine.parquet")).X
    kinds = dict(zip(table.names, table.kinds, strict=True))
    of_kind: dict[str, dict[str, Any]] = {"number": {}, "category": {}, "date": {}}
    for name, column in zip(table.names, table.columns, strict=True):
        of_kind[kinds[name]][name] = column.tolist()
        if kinds[name] == "date":
            of_kind["date"][name] = days(column)
    gap = np.nan
    expected = {
        "integer": [1, gap],
        "truth": [1, gap],
        "decimal": [1.1, gap],
        "number of a dictionary": [7, gap],
        "duration": [0.5, gap],
        "nothing": [gap, gap],
    }
    assert of_kind["number"].keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(of_kind["number"][name], values, name)
    assert of_kind["category"] == {
        "text": ["a", None],
        "text of a dictionary": ["x", None],
    }
    assert of_kind["date"] == {
        "date": ["2024-01-05T00:00", "NaT"],
        "time": ["2024-01-05T10:00", "NaT"],
    }


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "float32", "bool"])
def test_parquet_of_plain_numbers_keeps_its_dtype(dtype, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(
        pa.table({"a": np.array([1, 0], dtype), "label": ["x", "y"]}),
        tmp_path / "a.parquet",
    )
    assert load_dataset(str(tmp_path / "a.parquet")).X.dtype == dtype


def test_arrays_with_gaps_or_texts_are_tables(tmp_path):
    path = written(
        tmp_path / "a.npz", {"p": [1.0, 3.0], "q": [np.nan, 4.0], "label": [0, 1]}
    )
    table = load_dataset(str(path)).X
    assert (table.names, table.is_named) == (("p", "q"), True)
    np.savez(path, X=[["1", "b"], ["2", ""]], y=[0, 1])
    table = load_dataset(str(path)).X
    assert (table.kinds, table.is_named) == (("category", "category"), False)
    (only,) = opened(path).batches()
    assert (only.table.shape, only.labels is None, columns_of(path)) == (
        (2, 2),
        False,
        None,
    )


# -------- hostile files

FINITE = "finite numbers that float64 holds"
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "gzip": (gzip.compress(b"a,label\n1,x\n"), "a text file"),
    "zip": (b"PK\x03\x04" + bytes(100), "a text file"),
    "NULs": (bytes(100), "text in UTF-8, or in UTF-16 with a byte order mark"),
    "half a UTF-16": ("a,label\n1,x\n".encode("utf-16")[:-1], "text in UTF-16"),
    "a quote that stays open for long": (
        'a,b,label\n1,"x,y\n' + "2,3,y\n" * 10**6,
        "a readable .csv file",
    ),
    "control characters": ("\x1b[31m,label\ninf,x\n", FINITE),
    "an integer beyond float64": (f"a,b,label\n1,{10**400},x\n2,3,y\n", FINITE),
    "long label": (
        "a,label\n1," + "x" * 5000 + "\n",
        "labels of at most 1024 characters",
    ),
    "a broken byte": (
        "a,c,label\n1,São,x\n".encode() + b"2,S\xe3o,y\n",
        "text in UTF-8, or the setting encoding",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_are_no_texts_of_one_encoding_or_too_long_are_refused_with_the_reason(
    case, path
):
    """Others stand in csv_files.txt."""
    content, expected = REFUSED[case]
    features: tuple[str, ...] = ()
    if case == "control characters":
        features = ("\x1b[31m",)
    with raises(DataError, field="mine.csv") as caught:
        own_share(node(written(path, content)), features)
    assert caught.value.expected.startswith(expected)
    assert_short(caught.value)


def test_strange_files_that_are_tables_are_read(path):
    long = "x" * 100_000
    table = table_of(written(path, f'a,b,label\n{long},"two\nlines",x\ny,\0,y\n'))
    a, b = table.columns
    assert a.tolist() == [long, "y"]
    assert b.tolist() == ["two lines", None]

    def loaded(text: str) -> Any:
        return load_dataset(str(written(path, text))).X

    names = ",".join(f"c{i}" for i in range(5000))
    row = ",".join(["1"] * 5000)
    assert loaded(f"{names},label\n{row},x\n").shape == (1, 5000)
    assert loaded("a;b;label\n").shape == (0, 2)
    assert loaded("a,label\r1,x\r2,y\r").tolist() == [[1], [2]]


@pytest.mark.slow
def test_a_hundred_thousand_levels_take_bounded_memory(path):
    pytest.importorskip("pyarrow")
    written(path, "a,label\n" + "".join(f"v{i},x\n" for i in range(10**5)))
    with traced() as memory:
        file = opened(path)
    assert file.reports[0].kind == "category"
    assert memory.peak < 2**27 / 10
    with raises(SchemaError, field="columns"):
        schema_of(counter_of_file(file).summary())


@pytest.mark.parametrize(("most", "n_levels"), [(101, 101), (100, 1)])
def test_of_too_many_levels_those_of_one_row_are_let_go_of(
    most, n_levels, path, monkeypatch
):
    written(
        path, "a,label\n" + "".join(f"v{i},x\n" for i in range(100)) + "often,x\n" * 300
    )
    monkeypatch.setattr("flwr_flynn.tables.table_summary._MOST_TEXTS", most)
    column = counter_of_file(opened(path)).summary().columns["a"]
    assert column.n_rows == 400
    assert len(column.levels) == n_levels
    assert column.levels["often"] == 300


@ENDINGS
def test_texts_among_numbers_are_beside_them_in_files_of_all_kinds(ending, tmp_path):
    crp = [*(f"{i / 4}" for i in range(40)), "<5", "<5", "n.d."]
    columns = {"crp": crp, "code": ["01", "02"] * 21 + ["01"], "label": ["x"] * 43}
    table = table_of(written(tmp_path / f"mine.{ending}", columns))
    assert table.names == ("crp", "code", "crp text")
    # Codes are texts where a file has types.
    kind_of_codes = "category"
    if ending == "csv":
        kind_of_codes = "number"
    assert table.kinds == ("number", kind_of_codes, "category")
    np.testing.assert_array_equal(
        table.columns[0], [*(i / 4 for i in range(40)), np.nan, np.nan, np.nan]
    )
    assert table.columns[2].tolist() == [None] * 40 + ["<5", "<5", "n.d."]
    framed = Table.of(pd.DataFrame(columns)[["crp", "code"]])
    kinds = {"crp": "number", "crp text": "category", "code": "category"}
    assert dict(zip(framed.names, framed.kinds, strict=True)) == kinds


@pytest.mark.parametrize(
    ("labels", "gap_texts", "classes"),
    [
        ("ill,well,?,.,-,none,N/A", [], {"ill": 1, "well": 1, "none": 1}),
        ("+,-,-,?", [], {"+": 1, "-": 2}),
        ("1,2,-9,-9.0", ["-9"], {"1": 1, "2": 1}),
        ("none,ill,-", ["none"], {"ill": 1}),
    ],
)
def test_a_label_that_is_a_gap_word_is_no_class(labels, gap_texts, classes, tmp_path):
    path = tmp_path / "mine.csv"
    rows = labels.split(",")
    path.write_text("x,label\n" + "".join(f"1,{label}\n" for label in rows))
    file = opened(path, Reading(dialect=Dialect(gap_texts=gap_texts)))
    assert file.classes == classes
    assert file.n_unlabelled == len(rows) - sum(classes.values())


CELLS: dict[str, list[Any]] = {
    "numbers": [1.5, None, 3.25, 4.0],
    "words": ["a", None, " b", "a"],
    "numerals": ["1,5", "2,5", "", "4"],
    "numerals beside words": ["1.5", "2.5", "3.5", "n.d."],
    "a unit": ["1.5 mg", "2 mg", "0.5 mg", None],
    "codes": ["1", "2", "3", "1"],
    "days": ["31.01.2024", "01.02.2024", None, "12.03.2024"],
    "American days": ["01/31/2024", "02/01/2024", None, "03/12/2024"],
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("dtype", ["object", "category"])
def test_a_frame_is_the_table_of_a_file_with_its_columns(name, dtype, tmp_path):
    if name == "numbers":
        dtype = "float"
    frame = pd.DataFrame({"a": pd.Series(CELLS[name], dtype=dtype)})
    path = written(tmp_path / "a.parquet", {"a": frame["a"], "label": [*"xyxy"]})
    (rows,) = opened(path).batches()
    own = Table.of(frame)
    assert (own.names, own.kinds) == (rows.table.names, rows.table.kinds)
    assert [*map(str, own.columns)] == [*map(str, rows.table.columns)]


def test_texts_among_the_numbers_of_an_array_are_refused_as_in_a_file(tmp_path):
    cells = np.array([["1.5"], ["2.5"], ["n.d."]])
    np.savez(tmp_path / "a.npz", X=cells, y=[*"xxy"])
    with raises(DataError, field="a.npz", expected="numbers"):
        opened(tmp_path / "a.npz").whole()
    with raises(DataError, field="column '0'", expected="values of kind number"):
        Table.of(cells)
