"""Files as sites have them: dialects, kinds of columns, gaps, dates, hostile files, and files larger than memory."""

from __future__ import annotations

import gzip
import logging
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.app.data import own_file, table_file
from flwr_flynn.app.data.csv_file import detected
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.own_file import columns_of, counted, encoded_share, opened, own_share
from flwr_flynn.app.data.source import Dialect, Reading
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.errors import ConfigError, DataError, SchemaError
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.kinds_and_levels import TableSummary
from flwr_flynn.tables.raw_column import int64_of, plain_numbers
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.texts import DATE_FORMATS, GAP_TEXTS, date_of, number_of
from tests.app.data.private import private_share
from tests.raising import raises


def written(folder: Path, text: str | bytes, name: str = "mine.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def table_of(path: Path, **options: Any) -> Table:
    options.setdefault("label", "label")
    file = opened(path, Reading(**options))
    file.check()
    X = file.whole()[0]
    return X if isinstance(X, Table) else Table(file.names, [column.astype(float) for column in X.T])


EXCEL = "Größe;Datum;Stadt;label\r\n1,75;31.01.2024;Köln;ja\r\n;01.02.2024 08:30;;nein\r\n2;;Ulm;ja\r\n"


# -------- dialects


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_an_export_of_excel_is_read_with_nothing_set(
    encoding: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = NodeConfig(data_path=str(written(tmp_path, EXCEL.encode(encoding))), test_fraction=0.0)
    with caplog.at_level(logging.INFO):
        found = own_share(node)
    assert found.X.names == ("Größe", "Datum", "Stadt")
    assert found.X.kinds == ("number", "date", "category")
    np.testing.assert_array_equal(found.X.columns[0], [1.75, np.nan, 2])
    assert found.X.columns[1].astype(str).tolist() == [
        "2024-01-31T00:00:00.000000",
        "2024-02-01T08:30:00.000000",
        "NaT",
    ]
    assert found.X.columns[2].tolist() == ["Köln", None, "Ulm"]
    assert found.y.tolist() == ["ja", "nein", "ja"]
    (line,) = [record.getMessage() for record in caplog.records if "data:" in record.getMessage()]
    for part in ("semicolons", "decimal comma", "3 rows", "1 of texts", "gaps in 3", "dates as dd.mm.yyyy"):
        assert part in line


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_detected(separator: str, tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,label\n1,2.5,x y\n3,4.5,z\n".replace(",", separator))
    assert detected(path) == Dialect(separator, ".", "utf-8")
    assert load_dataset(str(path)).X.tolist() == [[1, 2.5], [3, 4.5]]


@pytest.mark.parametrize(
    ("text", "separator", "decimal"),
    [
        ("label\nx\ny\n", ",", "."),  # one column
        ('a,label\n"1,234",x\n"5,678",y\n', ",", "."),  # thousands, perhaps
        ('name,"q;w",label\n"a, b",1,x\n"c, d",2,y\n', ",", "."),
        ("a;b;label\n1,5;2,5;x, y\n2;3,5;y\n", ";", ","),
        ("a;b;label\n1.5;2;x\n2;3.5;y\n", ";", "."),
        ("a,b,label\n1,2,x\n1,2,3,y\n4,5,z\n", ",", "."),  # ragged
        ('a,note,label\n1,"two\nlines; and; more",x\n2,"b",y\n', ",", "."),
        ("a;b;label\n", ";", "."),
    ],
)
def test_hard_dialects(text: str, separator: str, decimal: str, tmp_path: Path) -> None:
    found = detected(written(tmp_path, text))
    assert (found.separator, found.decimal) == (separator, decimal)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("read", [own_share, private_share])
def test_blanks_line_breaks_and_forms_of_unicode_in_a_header_do_not_matter(
    read: Any, ending: str, tmp_path: Path
) -> None:
    """Names as spreadsheets and other systems write them are those of a schema, and of another site."""
    path, own = tmp_path / f"mine.{ending}", [" age\n(years) ", "Gro\u0308\u00dfe", "label"]
    if ending == "npz":
        np.savez(path, X=[[1, 3], [2, 4]], y=["x", "y"], feature_names=own[:2])
    elif ending == "csv":
        header = (
            "age (years), Gro\u0308\u00dfe, label"
            if read is private_share
            else '" age\n(years) ",Gro\u0308\u00dfe, label'
        )
        written(tmp_path, f"{header}\n1,3, x\n2,4, y\n")
    else:
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame([[1, 3, "x"], [2, 4, "y"]], columns=own).to_parquet(path)
    schema = Schema(
        [Column("Gr\u00f6\u00dfe", "category", ["3", "4"], gaps=False), Column("age (years)", "number", gaps=False)]
    )
    node = NodeConfig(data_path=str(path), test_fraction=0.0)
    found = read(node, schema) if read is private_share else encoded_share(node, schema)
    assert (found.X.tolist(), found.y.tolist()) == ([[1, 0, 1], [0, 1, 2]], ["x", "y"])
    if read is own_share:
        assert {*(columns_of(path) or ())} >= set(schema.names)


def test_settings_of_the_node_win(tmp_path: Path) -> None:
    path = written(tmp_path, "a|b|c|label\n1,5|-999|03/04/2024|x\n2|7|05/06/2024|y\n".encode("latin-1"))
    given = {"separator": "pipe", "decimal": ",", "encoding": "latin-1", "gap-texts": '["-999", "unknown"]'}
    node = NodeConfig.parse({"data-path": str(path), "test-fraction": 0.0, "date-format": "mm/dd/yyyy"} | given)
    table = own_share(node).X
    np.testing.assert_array_equal(table.columns[0], [1.5, 2])
    np.testing.assert_array_equal(table.columns[1], [np.nan, 7])
    assert table.columns[2].astype("datetime64[D]").astype(str).tolist() == ["2024-03-04", "2024-05-06"]
    tab = NodeConfig.parse({"data-path": "a.csv", "separator": "tab"})
    assert tab.dialect().separator == "\t"


@pytest.mark.parametrize(
    ("key", "value"),
    [("separator", "#"), ("decimal", "'"), ("encoding", "ebcdic"), ("date-format", "yy"), ("gap-texts", "[1]")],
)
def test_settings_that_are_none_are_refused(key: str, value: str) -> None:
    with raises(ConfigError, field=f"node-config {key}"):
        NodeConfig.parse({"data-path": "a.csv", key: value})


def test_private_parties_have_no_dialects(tmp_path: Path) -> None:
    private = {"data-path": "a.csv", "max-epsilon": 1.0, "state-path": str(tmp_path)}
    for key, value in (("separator", ";"), ("gap-texts", "x"), ("date-format", "dd.mm.yyyy")):
        with raises(ConfigError, field=f"node-config {key}"):
            NodeConfig.parse(private | {key: value})


def test_an_encoding_that_shows_behind_the_head_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr_flynn.app.data.csv_file._HEAD", 64)
    path = written(tmp_path, b"town,label\n" + b"Bern,x\n" * 50 + "Zürich,y\n".encode("cp1252"))
    assert table_of(path).columns[0][-1] == "Zürich"
    with raises(DataError, field="mine.csv", expected="text in UTF-8", got="another encoding"):
        opened(path, Reading(dialect=Dialect(encoding="utf-8")))


# -------- kinds


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["1", "2", ""], "number", [1, 2, np.nan]),
        (["TRUE", "false", "NA"], "number", [1, 0, np.nan]),
        (["1", "true", "2.5"], "number", [1, 1, 2.5]),
        (["1", "2", "x"], "category", ["1", "2", "x"]),
        (["01", "007", "1A"], "category", ["01", "007", "1A"]),
        (["0x10", "1_0", " 7 "], "category", ["0x10", "1_0", "7"]),
        (["", "?", "null"], "number", [np.nan] * 3),
        ([" m ", "m", "None"], "category", ["m", "m", None]),
        (["2024-01-31", "2024-02-01T10:30", ""], "date", ["2024-01-31", "2024-02-01T10:30", None]),
        (
            ["2024-01-31 23:30:00+02:00", "2024-01-31T00:00:00.25Z", "-"],
            "date",
            ["2024-01-31T21:30", "2024-01-31T00:00:00.25", None],
        ),
        (["13/01/2024", "02/03/2024"], "date", ["2024-01-13", "2024-03-02"]),
        (["01/13/2024", "02/03/2024"], "date", ["2024-01-13", "2024-02-03"]),
        (["02/03/2024", "03/03/2024"], "date", ["2024-03-02", "2024-03-03"]),  # the day is first if nothing tells
        (["13/01/2024", "01/13/2024"], "category", ["13/01/2024", "01/13/2024"]),
        (["1/5/2024 3:05 PM", "12/31/2024 12:00 AM"], "date", ["2024-01-05T15:05", "2024-12-31T00:00"]),
        (["2024-02-30", "2024-02-01"], "category", ["2024-02-30", "2024-02-01"]),
        (["2024-01-31", "5"], "category", ["2024-01-31", "5"]),
        (["=cmd|'/c calc'!A0", "+1", "@x"], "category", ["=cmd|'/c calc'!A0", "+1", "@x"]),
        (["-nan", "1", "2"], "category", ["-nan", "1", "2"]),
        (["\uff11", "2"], "number", [1, 2]),
    ],
)
def test_the_kind_of_a_column(values: list[str], kind: str, expected: list[Any], tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,label\n" + "".join(f'"{value}",u{index},x\n' for index, value in enumerate(values)))
    table = table_of(path)
    assert table.kinds[0] == kind
    column = table.columns[0]
    if kind == "date":
        assert column.tolist() == np.array(expected, "datetime64[us]").tolist()
    else:
        np.testing.assert_array_equal(column, np.array(expected, column.dtype))


def test_another_column_tells_that_the_month_is_first(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,label\n02/03/2024,12/31/2024,x\n")
    assert [column.astype(str).tolist()[0][:10] for column in table_of(path).columns] == ["2024-02-03", "2024-12-31"]


@pytest.mark.parametrize("last", ["word", "", "2024-01-01", "3.5", str(2**63), "True"])
@pytest.mark.parametrize("first", ["1", "2024-05-06", "True", "0.5", "text"])
def test_the_first_rows_do_not_decide_about_the_kind(
    first: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "MOST_ROWS", 8)
    rows = [f"{first},{i},x\n" for i in range(200)]
    forth = opened(written(tmp_path, "a,b,label\n" + "".join([*rows, f"{last},0,x\n"])))
    back = opened(written(tmp_path, "a,b,label\n" + "".join([f"{last},0,x\n", *rows]), "back.csv"))
    assert [each.kind for each in forth.reports] == [each.kind for each in back.reports]
    assert [each.dtype for each in forth.reports] == [each.dtype for each in back.reports]
    one, other = forth.whole()[0], back.whole()[0]
    assert type(one) is type(other)
    if isinstance(one, Table):
        assert one.columns[0][-1:].astype(str).tolist() == other.columns[0][:1].astype(str).tolist()
    else:
        assert one.dtype == other.dtype
        assert one[-1].tolist() == other[0].tolist()


NUMBERS = ["1", "2.5", " 7 ", "+5", "0x1", "1e5", "True", "inf", "nan", "-nan", "1,5", "1.5", "9" * 25, "-999", "-0"]
OTHERS = ["", "x", "NA", "2024-01-05", "05/06/2024", 'quo"te', "two\nlines", "ü", "\uff19", "\0"]
CELLS = st.sampled_from([*NUMBERS, *OTHERS])


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12), decimal=st.sampled_from([".", ","]))
def test_values_are_the_same_however_many_rows_are_read_at_a_time(
    rows: list[tuple[str, str]], decimal: str, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("both") / "mine.csv"
    cells = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in rows]
    path.write_text("a;b;label\n" + "".join(f"{a};{b};x\n" for a, b in cells), newline="")
    given_dialect = Dialect(";", decimal, "utf-8", ("-999",))
    try:
        whole = opened(path, Reading(dialect=given_dialect))
    except DataError as error:  # a first row of words above numbers is taken for a header
        assert error.expected == "one header"
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_file, "MOST_ROWS", 1)
        parts = opened(path, Reading(dialect=given_dialect))
        others = [table for table, *_ in parts.tables()]
    assert [(each.kind, each.dtype, each.gaps, each.texts, each.infinite) for each in whole.reports] == [
        (each.kind, each.dtype, each.gaps, each.texts, each.infinite) for each in parts.reports
    ]
    for index, column in enumerate(next(iter(whole.tables()))[0].columns):
        np.testing.assert_array_equal(column, np.concatenate([table.columns[index] for table in others]))


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4))
def test_what_is_read_at_once_are_the_numbers_of_each_text(texts: list[str]) -> None:
    numbers = plain_numbers(texts, GAP_TEXTS)
    for text, value in zip(texts, [] if numbers is None else numbers.tolist(), strict=numbers is not None):
        alone = number_of(text)[0]
        assert value == alone if alone is not None else (value != value and text in GAP_TEXTS)


@given(st.datetimes(), st.sampled_from(DATE_FORMATS))
def test_dates_are_read_as_they_were_written(moment: Any, form: str) -> None:
    text = (
        form.replace("yyyy", f"{moment.year:04}").replace("mm", f"{moment.month:02}").replace("dd", f"{moment.day:02}")
    )
    assert date_of(text, form) == moment.replace(hour=0, minute=0, second=0, microsecond=0)
    assert date_of(f"{text} {moment:%H:%M:%S.%f}", form) == moment


def test_integers_beyond_float64_stay_exact(tmp_path: Path) -> None:
    big = 2**60 + 1
    X = load_dataset(str(written(tmp_path, f"a,label\n{big},x\n+5,y\n"))).X
    assert X.dtype == np.int64
    assert X.tolist() == [[big], [5]]
    assert int64_of(["1", "x"]) is None


# -------- with a schema


SCHEMA = Schema([Column("zip", "category", ["01", "1A"]), Column("age", "number", high=120.0), Column("day", "date")])
SCHEMA_TEXT = "age,zip,day,label\n50,01,2024-01-05,x\n,1A,,y\n70,1,2024-03-05,x\n"


def test_a_schema_keeps_texts_that_look_like_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, SCHEMA_TEXT.replace("1A", "02"))
    assert own_share(NodeConfig(data_path=str(path))).X.kinds == ("number", "number", "date")
    table = own_file.opened_own(NodeConfig(data_path=str(path)), schema=SCHEMA).whole()[0]
    assert table.names == SCHEMA.names
    assert table.columns[0].tolist() == ["01", "02", "1"]
    assert SCHEMA.encode(table)[:, :2].tolist() == [[1, 0], [0, 0], [1, 0]]  # 1 is 01


@pytest.mark.parametrize(
    ("bad", "expected", "got"),
    [
        (("50,01", "old,01"), "numbers", "others in 1 of 3 features: age"),
        (("2024-0", "soon"), "dates of one form", "others in 1 of 3 features: day"),
    ],
)
def test_values_of_another_kind_than_the_schema_s_are_counted(
    bad: tuple[str, str], expected: str, got: str, tmp_path: Path
) -> None:
    path = written(tmp_path, SCHEMA_TEXT.replace(*bad).replace("\n70", "\n"))
    with raises(DataError, field="mine.csv", expected=expected, got=got):
        own_share(NodeConfig(data_path=str(path)), SCHEMA)


def test_an_encoded_share_has_the_numbers_of_the_table_in_memory_or_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "MOST_ROWS", 16)
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.integers(100) or ''},{rng.choice(['01', '1A', ''])},2024-01-{i % 28 + 1:02},c{i % 3}\n"
        for i in range(300)
    ]
    node = NodeConfig(data_path=str(written(tmp_path, "age,zip,day,label\n" + "".join(rows))))
    X, y, _, test = own_file.opened_own(node, schema=SCHEMA).whole()
    in_memory = encoded_share(node, SCHEMA)
    monkeypatch.setattr(own_file, "LARGE", 0)
    in_file = encoded_share(node, SCHEMA)
    assert isinstance(in_file.X, np.memmap)
    for found in (in_memory, in_file):
        np.testing.assert_array_equal(found.X, SCHEMA.encode(X[~test]))
        np.testing.assert_array_equal(found.X_test, SCHEMA.encode(X[test]))
        assert (found.y == y[~test]).all()
        assert (found.y_test == y[test]).all()
    assert not list(tmp_path.glob("tmp*"))


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def write(self, _: Any) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(own_file, "LARGE", 0)
    monkeypatch.setattr(own_file.tempfile, "TemporaryFile", Full)
    node = NodeConfig(data_path=str(written(tmp_path, SCHEMA_TEXT)), test_fraction=0.0)
    with raises(DataError, field="mine.csv", got="No space left on device"):
        encoded_share(node, SCHEMA)


def test_of_a_large_table_a_schema_follows_by_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "age,town,label\n" + "1,Ulm,x\n,Bern,y\n3,Ulm,y\n" * 20)
    expected = TableSummary.counted(own_share(NodeConfig(data_path=str(path))).X)
    monkeypatch.setattr(own_file, "LARGE", 0)
    summary: Any = own_share(NodeConfig(data_path=str(path))).X
    assert summary == expected


def test_the_summary_of_a_file_is_that_of_its_table(tmp_path: Path) -> None:
    path = written(tmp_path, "age,town,note,label\n" + "1,Ulm,,x\n,Bern,,y\n3,Ulm,,y\n" * 3)
    for least in (1, 4):
        assert counted(opened(path)).told(least) == TableSummary.of(table_of(path), least)


# -------- Parquet and NPZ


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from datetime import UTC, date, datetime, timedelta, timezone
    from decimal import Decimal

    noon = datetime(2024, 1, 5, 12, tzinfo=timezone(timedelta(hours=2)))
    columns = {
        "int": pa.array([1, None], pa.int8()),
        "bool": pa.array([True, None]),
        "decimal": pa.array([Decimal("1.10"), None]),
        "text": pa.array([" a ", "NA"]),
        "kinds": pa.array(["x", None]).dictionary_encode(),
        "codes": pa.array([7, None]).dictionary_encode(),
        "day": pa.array([date(2024, 1, 5), None]),
        "zone": pa.array([noon, None], pa.timestamp("ns", "Europe/Zurich")),
        "span": pa.array([timedelta(hours=12), None]),
        "nothing": pa.nulls(2),
        "label": pa.array(["u", "v"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "mine.parquet")
    table = own_share(NodeConfig(data_path=str(tmp_path / "mine.parquet"), test_fraction=0.0)).X
    kinds = ["number"] * 3 + ["category"] * 2 + ["number"] + ["date"] * 2 + ["number"] * 2
    assert list(table.kinds) == kinds
    first = [column[0] for column in table.columns]
    assert first[:6] == [1, 1, 1.1, "a", "x", 7]
    assert [str(moment)[:16] for moment in first[6:8]] == ["2024-01-05T00:00", "2024-01-05T10:00"]
    assert noon.astimezone(UTC).hour == 10
    assert first[8] == 0.5
    assert all(value is None or value != value for value in (column[1] for column in table.columns))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "float32", "bool"])
def test_parquet_of_plain_numbers_keeps_its_dtype(dtype: str, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": np.array([1, 0], dtype), "label": ["x", "y"]}), tmp_path / "a.parquet")
    assert load_dataset(str(tmp_path / "a.parquet")).X.dtype == dtype


def test_arrays_with_gaps_or_texts_are_tables(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=[[1.0, np.nan], [3.0, 4.0]], y=[0, 1], feature_names=["p", "q"])
    data = load_dataset(str(tmp_path / "a.npz"))
    assert isinstance(data.X, Table)
    assert (data.X.names, data.X.is_named) == (("p", "q"), True)
    np.savez(tmp_path / "a.npz", X=[["1", "b"], ["2", ""]], y=[0, 1])
    data = load_dataset(str(tmp_path / "a.npz"))
    assert (data.X.kinds, data.X.is_named) == (("category", "category"), False)
    (only,) = opened(tmp_path / "a.npz").tables()
    assert only[0].shape == (2, 2)
    assert only[1] is not None
    assert columns_of(tmp_path / "a.npz") is None


# -------- hostile files


HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "a first line with the names of the columns"),
    "blank lines": (b"\n\n\n", "a first line with the names of the columns"),
    "one column": (b"label\nx\n", "at least one feature"),
    "gzip": (gzip.compress(b"a,label\n1,x\n"), "a text file"),
    "zip": (b"PK\x03\x04" + bytes(100), "a text file"),
    "NULs": (bytes(100), "text in UTF-8, or in UTF-16 with a byte order mark"),
    "equal names": (b"a,a,label\n1,2,x\n", "columns of different names"),
    "ragged": (b"a,label\n1,x\n1\n1,2,x\n", "as many fields in each row as in the header"),
    "no label": (b"a,label\n1,\n", "a label in some rows"),
    "half a UTF-16": ("a,label\n1,x\n".encode("utf-16")[:-1], "text in UTF-16"),
    "an open quote": (b'a,label\n1,"x\n' + b"2,y\n" * 10, "quotes that are closed"),
    "control characters": (b"\x1b[31m,label\ninf,x\n", "finite numbers that float64 holds"),
    "long label": (b"a,label\n1," + b"x" * 5000 + b"\n", "labels of at most 1024 characters"),
}


@pytest.mark.parametrize(("content", "expected"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_with_a_clear_reason(content: bytes, expected: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with raises(DataError, field="mine.csv", expected=expected) as caught:
        own_share(NodeConfig(data_path=str(path)), ("\x1b[31m",) if b"\x1b" in content else ())
    assert all(text.isprintable() for text in (str(caught.value), *getattr(caught.value, "__notes__", ())))
    assert len(str(caught.value)) < 500


def test_a_quote_that_stays_open_for_long_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, b'a,b,label\n1,"x,y\n' + b"2,3,y\n" * 10**6)
    with raises(DataError, field="mine.csv"):
        own_share(NodeConfig(data_path=str(path)))


def test_strange_files_that_are_tables_are_read(tmp_path: Path) -> None:
    long = "x" * 100_000
    table = table_of(written(tmp_path, f'a,b,label\n{long},"two\nlines",x\ny,\0,y\n'))
    assert table.columns[0].tolist() == [long, "y"]
    assert table.columns[1].tolist() == ["two lines", "\0"]
    wide = ",".join(f"c{i}" for i in range(5000))
    row = ",".join(["1"] * 5000)
    assert load_dataset(str(written(tmp_path, f"{wide},label\n{row},x\n"))).X.shape == (1, 5000)
    assert load_dataset(str(written(tmp_path, "a;b;label\n"))).X.shape == (0, 2)
    assert load_dataset(str(written(tmp_path, "a,label\r1,x\r2,y\r"))).X.tolist() == [[1], [2]]


@pytest.mark.slow
def test_a_hundred_thousand_levels_take_bounded_memory(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = written(tmp_path, "a,label\n" + "".join(f"v{i},x\n" for i in range(10**5)))
    tracemalloc.start()
    found = opened(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.reports[0].kind == "category"
    assert peak < 2**27 / 10
    with raises(SchemaError, field="columns"):
        counted(found).schema()


def test_of_too_many_levels_those_of_one_row_are_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "a,label\n" + "".join(f"v{i},x\n" for i in range(100)) + "often,x\n" * 300)
    for most, n_levels in ((101, 101), (100, 1)):
        monkeypatch.setattr("flwr_flynn.app.data.own_file._MOST_TEXTS", most)
        found = counted(opened(path)).columns["a"]
        assert (found.n_rows, len(found.levels), found.levels["often"]) == (400, n_levels, 300)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_texts_among_numbers_are_beside_them_in_files_of_all_kinds(ending: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    crp = [*(f"{i / 4}" for i in range(40)), "<5", "<5", "n.d."]
    frame = pandas.DataFrame({"crp": crp, "code": ["01", "02"] * 21 + ["01"], "label": ["x"] * 43})
    path = tmp_path / f"mine.{ending}"
    if ending == "npz":
        np.savez(
            path, X=frame[["crp", "code"]].to_numpy(str), label=frame.label.to_numpy(str), feature_names=["crp", "code"]
        )
    else:
        getattr(frame, f"to_{ending}")(path, index=False)
    table = table_of(path)
    assert table.names == ("crp", "code", "crp text")
    assert table.kinds == (
        "number",
        "number" if ending == "csv" else "category",
        "category",
    )  # 01 where texts are typed
    np.testing.assert_array_equal(table.columns[0], [*(i / 4 for i in range(40)), np.nan, np.nan, np.nan])
    assert table.columns[2].tolist() == [None] * 40 + ["<5", "<5", "n.d."]
    framed = Table.of(frame[["crp", "code"]], is_learned=True)
    assert dict(zip(framed.names, framed.kinds, strict=True)) == {
        "crp": "number",
        "crp text": "category",
        "code": "category",
    }
