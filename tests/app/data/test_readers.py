"""The readers of CSV, Parquet and NPZ files: the same rows under both policies, types, rows with errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.own_file import full_text, opened, own_share, private_file
from flwr_flynn.app.data.source import MOST_ROWS
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.private_rows import meaning
from flwr_flynn.tables.row_wise import as_kind
from flwr_flynn.tables.table import Table
from tests.app.data.private import private_share, share_of
from tests.raising import raises

POLICIES = pytest.mark.parametrize("row_wise", [False, True], ids=["open", "private"])


def rows_of(path: Path, row_wise: bool) -> tuple[Any, Any]:
    """Samples and labels of a file, as a private or as an open party reads them."""
    if row_wise:
        rows = share_of(private_file(path))
        return rows.X, rows.y
    X, y, *_ = opened(path).whole()
    return X, y


def csv_file(folder: Path, text: str, name: str = "mine.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        (["1", "2"], np.int64),
        (["1", "2.5"], np.float64),
        (["1", "99999999999999999999"], np.float64),
        (["True", "false"], np.bool_),
    ],
)
def test_a_column_keeps_the_narrowest_type_that_holds_it_for_an_open_party_only(
    columns: list[str], dtype: Any, tmp_path: Path
) -> None:
    path = csv_file(tmp_path, "a,label\n" + "".join(f"{text},x\n" for text in columns))
    assert rows_of(path, False)[0].dtype == dtype
    assert rows_of(path, True)[0].dtype == np.float64


def test_integers_stay_exact_over_many_rows_and_beside_narrower_columns(tmp_path: Path) -> None:
    n, big = MOST_ROWS + 3, 2**60 + 1
    path = csv_file(tmp_path, "a,flag,label\n" + "".join(f"{big + i},True,x\n" for i in range(n)))
    X = load_dataset(str(path)).X
    assert X.dtype == np.int64
    assert X.shape == (n, 2)
    assert X[-1].tolist() == [big + n - 1, 1]


BAD_ROWS = "a,b,label\n1,2,x\n1,much,x\n1,NA,x\n1,inf,x\n1,2\n1,2,3,x\n1,2,\n1_0,2,x\n"


def test_private_rows_with_errors_stay_and_have_values_that_are_no_numbers(tmp_path: Path) -> None:
    X, y = rows_of(csv_file(tmp_path, BAD_ROWS), True)
    assert np.isfinite(X).all(axis=1).tolist() == [True, False, False, False, False, False, True, False]
    assert y.tolist() == ["x", "x", "x", "x", None, None, "", "x"]


def test_open_rows_with_errors_are_counted(tmp_path: Path) -> None:
    file = opened(csv_file(tmp_path, BAD_ROWS))
    assert (file.n_rows, file.n_broken, file.n_unlabelled) == (6, 2, 1)
    kinds = [("category", 0), ("number", 2), ("category", 0)]  # the last one has the text beside numbers
    assert [(each.kind, each.gaps) for each in file.reports] == kinds


def test_a_quoted_field_may_span_lines_for_an_open_party_only(tmp_path: Path) -> None:
    path = csv_file(tmp_path, 'a,note,label\n1,"two\nlines",x\n2,one,y\n')
    assert own_share(NodeConfig(data_path=str(path), test_fraction=0.0), ("a",)).X.tolist() == [[1], [2]]
    with raises(DataError, field="mine.csv", got="open quotes"):
        private_file(path)


def numbers_of(texts: list[str]) -> Any:
    return as_kind("number", np.array(texts, object))[0]


@given(st.lists(st.floats(allow_nan=False) | st.integers(-(2**70), 2**70), min_size=1))
def test_numbers_are_those_that_python_prints(values: list[float]) -> None:
    assert numbers_of([repr(value) for value in values]).tolist() == [float(value) for value in values]


@given(st.lists(st.sampled_from(["1", "2.5", "", "x", "TRUE", "false", "1_0", "9" * 30, " 7 "]), max_size=8))
def test_no_text_of_a_column_changes_the_number_of_another(texts: list[str]) -> None:
    alone = [float(numbers_of([text])[0]) for text in texts]
    np.testing.assert_array_equal(numbers_of(texts), np.array(alone, float))


@POLICIES
def test_files_of_all_kinds_give_the_same_rows(row_wise: bool, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    X = np.random.default_rng(0).normal(size=(50, 3))
    labels = np.array(["cat", "dog"])[np.arange(50) % 2]
    frame = pandas.DataFrame(X, columns=["a", "b", "c"]).assign(label=labels)
    frame.to_csv(tmp_path / "mine.csv", index=False)
    frame.to_parquet(tmp_path / "mine.parquet", index=False)
    np.savez(tmp_path / "mine.npz", X=X, y=labels)
    for ending in ("csv", "parquet", "npz"):
        found, y = rows_of(tmp_path / f"mine.{ending}", row_wise)
        assert (found == X).all()
        assert y.tolist() == labels.tolist()
        loaded = load_dataset(str(tmp_path / f"mine.{ending}"))
        assert (loaded.classes, np.array(loaded.classes)[loaded.y].tolist()) == (["cat", "dog"], labels.tolist())
        assert loaded.feature_names == (None if ending == "npz" else ("a", "b", "c"))


BIG = 2**53 + 1  # which float64 does not hold
ODD: dict[str, list[Any]] = {
    ".csv": ["1,2,x,9,9", "1,\0,x", "1,\ufffd,x", "1,2", "x" * 200_000, "1,word,x", "1,2,"],
    ".npz": [("word", 2, 1), (1j, 2, 1), (np.inf, 2, 1), (1, 2, np.nan), (1, 2, "word")],
    ".parquet": [(None, 2, 1), (1, 2, None), (None, None, None)],
}


def write(path: Path, rows: list[Any]) -> None:
    if path.suffix == ".csv":
        lines = [row if isinstance(row, str) else ",".join(map(str, row)) for row in rows]
        path.write_text("\n".join(["a,b,label", *lines]) + "\n")
    elif path.suffix == ".npz":
        np.savez(path, X=np.array([row[:2] for row in rows]), y=np.array([row[2] for row in rows]))
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        kinds = arrow.float64(), arrow.int64(), arrow.int64()
        columns = [arrow.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        parquet.write_table(arrow.table(dict(zip(("a", "b", "label"), columns, strict=True))), path)


@pytest.mark.parametrize(("ending", "odd"), [(ending, odd) for ending, rows in ODD.items() for odd in rows], ids=str)
@pytest.mark.parametrize("evaluate", [False, True])
def test_no_record_of_a_private_file_changes_how_another_is_read_or_if_it_is_held_out(
    ending: str, odd: Any, evaluate: bool, tmp_path: Path
) -> None:
    first = 0 if ending == ".npz" else BIG  # one missing label makes floats of all in NumPy
    rows: list[Any] = [(i + 0.5, i, first + i % 7) for i in range(60)]
    path = tmp_path / f"mine{ending}"

    def read(rows: list[Any]) -> list[list[str]]:
        """Samples that fit, those to train with and those held out, in their order."""
        write(path, rows)
        share = private_share(NodeConfig(data_path=str(path), evaluate=evaluate))
        parts = (share.X, share.y), (share.X_test, share.y_test)
        return [
            [f"{row} {meaning(label)}" for row, label in zip(X.tolist(), y.tolist(), strict=True)] for X, y in parts
        ]

    whole = read(rows)
    assert (len(whole[0]) + len(whole[1]), bool(whole[1])) == (60, evaluate)
    for place in (0, 31, 60):
        mixed = read([*rows[:place], odd, *rows[place:]])
        assert len(mixed[0]) + len(mixed[1]) - 60 in ((0, 1) if ending == ".csv" else (1,))  # a long line is none
        assert [[each for each in part if each in {*whole[0], *whole[1]}] for part in mixed] == whole


@POLICIES
def test_columns_of_the_same_name_are_refused(row_wise: bool, tmp_path: Path) -> None:
    with raises(DataError, expected="columns of different names"):
        rows_of(csv_file(tmp_path, "a,a,label\n1,2,x\n"), row_wise)


@POLICIES
def test_a_missing_package_is_named_with_its_extra(
    row_wise: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with raises(ConfigError, field="pyarrow.parquet", expected="flwr-flynn[data]"):
        rows_of(csv_file(tmp_path, "", "mine.parquet"), row_wise)


@POLICIES
def test_a_parquet_file_that_announces_more_rows_than_it_has_is_refused(row_wise: bool, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "mine.parquet"
    parquet.write_table(arrow.table({"a": [1.0, 2.0], "label": ["x", "y"]}), path)
    written, two_rows = path.read_bytes(), b"\x16\x04\x19\x1c"  # two rows, and a list of one row group
    assert written.count(two_rows) == 1
    path.write_bytes(written.replace(two_rows, b"\x16\x06\x19\x1c"))  # three
    with raises(DataError, field="mine.parquet"):
        rows_of(path, row_wise)


def test_no_value_decides_whether_a_private_parquet_file_is_read(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    broken = arrow.Array.from_buffers(
        arrow.string(), 3, [*arrow.array(["1", "\x7f", "3"]).buffers()[:2], arrow.py_buffer(b"1\xff3")]
    )
    columns: dict[str, Any] = {
        "number": arrow.array([1, None, 3], arrow.int64()),
        "truth": arrow.array([True, False, None]),
        "text": broken,
        "half": arrow.array(np.array([0.5, 1.5, 2.5], np.float16)),
        "kinds": arrow.array(["7", "x", "7"]).dictionary_encode(),
        "stamp": arrow.array([-(2**62), 0, 2**62], arrow.timestamp("ms")),  # beyond the calendar of Python
        "list": arrow.array([[1.0], [2.0], None]),
        "unused": broken,
        "label": broken,
    }
    path = tmp_path / "mine.parquet"
    parquet.write_table(arrow.table(columns), path)
    features = ("number", "truth", "text", "half", "kinds", "stamp", "list")
    rows = share_of(private_file(path), features)
    nan = np.nan
    expected = [[1, 1, 1, 0.5, 7, nan, nan], [nan, 0, nan, 1.5, nan, nan, nan], [3, nan, 3, 2.5, 7, nan, nan]]
    np.testing.assert_array_equal(rows.X, expected)
    assert rows.y.tolist() == ["1", None, "3"]
    assert own_share(NodeConfig(data_path=str(path), test_fraction=0.0), features[:5]).y.tolist() == [1, 3]
    node = NodeConfig(data_path=str(path), label="half", test_fraction=0.0)
    table = own_share(node, ("number", "truth", "text", "kinds")).X
    assert table.kinds == ("number", "number", "category", "category")
    assert [column.tolist() for column in table.columns[2:]] == [["1", None, "3"], ["7", "x", "7"]]
    np.testing.assert_array_equal(table.columns[:2], [[1, nan, 3], [1, 0, nan]])
    with raises(DataError, field="mine.parquet", expected="numbers, texts or dates"):
        own_share(node, ("list",))
    with raises(DataError, field="dates"):
        own_share(node, ("stamp",))


@POLICIES
@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_endings_are_read_in_capitals_too(ending: str, row_wise: bool, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    X, y = np.array([[1, 2], [3, 4]]), np.array(["x", "y"])
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(label=y)
    path = tmp_path / f"mine.{ending.upper()}"
    with path.open("wb") as stream:
        if ending == "npz":
            np.savez(stream, X=X, y=y, feature_names=["a", "b"])
        elif ending == "csv":
            frame.to_csv(stream, index=False)
        else:
            frame.to_parquet(stream, index=False)
    node = NodeConfig(data_path=str(path), test_fraction=0.0)
    share = (private_share if row_wise else own_share)(node, ("b", "a"))
    assert share.X.tolist() == [[2, 1], [4, 3]]
    assert share.y.tolist() == ["x", "y"]
    assert load_dataset(str(path), label="y" if ending == "npz" else "label").X.tolist() == X.tolist()


@pytest.mark.parametrize("name", ["mine.csv.gz", "mine.CSV.GZ", "mine.xlsx", "mine"])
def test_other_endings_are_told_those_that_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a,label\n1,x\n")
    for read in (own_share, private_share):
        with raises(ConfigError, field="node-config data-path", expected="a .csv, .parquet or .npz file"):
            read(NodeConfig(data_path=str(tmp_path / name)))


@pytest.mark.parametrize("gap", ["", " ", "?", "NA", "na", "N/A", "NaN", "nan", "null", "None", "-", "#N/A"])
def test_texts_of_missing_values_are_called_so(gap: str, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    csv_file(tmp_path, f"age,weight,label\n1,{gap},x\n2,{gap},y\n3,7654,y\n")
    pd.DataFrame({"age": [1, 2, 3], "weight": [gap, None, "7654"], "label": ["x", "y", "y"]}).to_parquet(
        tmp_path / "mine.parquet"
    )
    for name, kind in (("mine.csv", "number"), ("mine.parquet", "category")):
        node = NodeConfig(data_path=str(tmp_path / name), test_fraction=0.0)
        table = own_share(node).X
        assert isinstance(table, Table)
        assert table.kinds == ("number", kind)
        known = [7654.0] if kind == "number" else ["7654"]
        assert [value for value in table.columns[1].tolist() if value is not None and value == value] == known
        assert np.isnan(private_share(node).X[:, 1]).tolist() == [True, True, False]


def test_integers_beyond_64_bits_are_numbers(tmp_path: Path) -> None:
    path = csv_file(tmp_path, f"a,b,label\n1,{10**22},x\n{2**64 - 1},-{10**30},y\n")
    share = own_share(NodeConfig(data_path=str(path), test_fraction=0.0))
    assert share.X.tolist() == [[1, 1e22], [2.0**64, -1e30]]
    csv_file(tmp_path, f"a,b,label\n1,{10**400},x\n2,3,y\n")
    got = "others in 1 of 2 features: number 2"
    with raises(DataError, field="mine.csv", expected="finite numbers that float64 holds", got=got):
        own_share(NodeConfig(data_path=str(path)))


def test_the_log_has_the_columns_of_a_file_without_a_wanted_one(tmp_path: Path) -> None:
    node = NodeConfig(data_path=str(csv_file(tmp_path, "age,mass,label\n1,2,x\n")), test_fraction=0.0)
    for read in (own_share, private_share):
        with pytest.raises(DataError) as caught:
            read(node, ("weight", "age"))
        told, kept = str(caught.value), full_text(caught.value).removeprefix(str(caught.value))
        assert "in this file: 'age', 'mass'" in kept
        assert "mass" not in told  # the server gets this, and names of the run alone


@pytest.mark.parametrize("column", ["Weight", "\uff57eight", " weight"])
def test_capitals_blanks_and_forms_of_unicode_do_not_count_in_names(column: str, tmp_path: Path) -> None:
    node = NodeConfig(data_path=str(csv_file(tmp_path, f"age,{column},Label\n1,2,x\n")), test_fraction=0.0)
    for read in (own_share, private_share):
        assert read(node, ("weight", "AGE")).X.tolist() == [[2, 1]]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_an_encoding_is_detected_or_named(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes("größe,label\n1,x\n2,ü\n".encode(encoding))
    node = NodeConfig(data_path=str(path), test_fraction=0.0)
    if encoding in ("utf-16-le", "utf-16-be", "utf-32"):
        with raises(DataError, field="mine.csv", got="UTF-16 or UTF-32"):
            own_share(node)
    else:
        assert own_share(node, ("größe",)).y.tolist() == ["x", "ü"]
    if encoding.startswith("utf-16") or encoding == "utf-32":
        with raises(DataError, field="mine.csv", expected="text in UTF-8", got="UTF-16 or UTF-32"):
            private_share(node)
    elif encoding == "utf-8-sig":
        assert private_share(node, ("größe",)).y.tolist() == ["x", "ü"]


def test_a_file_of_no_bytes_is_told_that_it_has_no_header(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "")
    for read in (own_share, private_share):
        with raises(DataError, field="mine.csv", expected="a first line with the names of the columns", got="none"):
            read(NodeConfig(data_path=str(path)))
