"""The reader of CSV, Parquet and NPZ files: the same rows under both policies, types, marks of bad rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.app.config import NodeConfig
from flwr_flynn.app.data.datasets import load_dataset, own_share, private_share
from flwr_flynn.app.data.partition import held_out_by_content
from flwr_flynn.app.data.readers import CHUNK, parsed_numbers, read_rows
from flwr_flynn.errors import ConfigError, DataError
from tests.raising import raises

POLICIES = pytest.mark.parametrize("row_wise", [False, True], ids=["open", "private"])


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
    assert read_rows(path).X.dtype == dtype
    assert read_rows(path, row_wise=True).X.dtype == np.float64


def test_integers_stay_exact_over_many_rows_and_beside_narrower_columns(tmp_path: Path) -> None:
    n, big = CHUNK + 3, 2**60 + 1
    path = csv_file(tmp_path, "a,flag,label\n" + "".join(f"{big + i},True,x\n" for i in range(n)))
    X = load_dataset(str(path)).X
    assert X.dtype == np.int64
    assert X.shape == (n, 2)
    assert X[-1].tolist() == [big + n - 1, 1]


@POLICIES
def test_bad_rows_are_marked_and_texts_counted(row_wise: bool, tmp_path: Path) -> None:
    text = "a,b,label\n1,2,x\n1,?,x\n1,,x\n1,inf,x\n1,2\n1,2,3,x\n1,2,\n1_0,2,x\n"
    rows = read_rows(csv_file(tmp_path, text), row_wise=row_wise)
    assert rows.bad.tolist() == [False, True, True, True, True, True, True, True]
    assert rows.words.tolist() == [1, 1]
    assert rows.broken.tolist() == [False] * 4 + [True, True] + [False] * 2
    assert rows.unlabelled.tolist() == [False] * 4 + [True] * 3 + [False]


def test_a_quoted_field_may_span_lines_for_an_open_party_only(tmp_path: Path) -> None:
    path = csv_file(tmp_path, 'a,note,label\n1,"two\nlines",x\n2,one,y\n')
    assert own_share(NodeConfig(data_path=str(path), test_fraction=0.0), ("a",)).X.tolist() == [[1], [2]]
    assert len(read_rows(path, features=("a",), row_wise=True).y) == 3


@given(st.lists(st.floats(allow_nan=False) | st.integers(-(2**70), 2**70), min_size=1))
def test_numbers_are_those_that_python_prints(values: list[float]) -> None:
    numbers, n_words = parsed_numbers([repr(value) for value in values])
    assert n_words == 0
    assert numbers.tolist() == [float(value) if numbers.dtype.kind == "f" else value for value in values]


@given(st.lists(st.sampled_from(["1", "2.5", "", "x", "TRUE", "false", "1_0", "9" * 30, " 7 "]), max_size=8))
def test_no_text_of_a_column_changes_the_number_of_another(texts: list[str]) -> None:
    together, _ = parsed_numbers(texts)
    alone = [float(parsed_numbers([text])[0][0]) for text in texts]
    np.testing.assert_array_equal(together.astype(float), np.array(alone, float))


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
        rows = read_rows(tmp_path / f"mine.{ending}", row_wise=row_wise)
        assert (rows.X == X).all()
        assert rows.y.tolist() == labels.tolist()
        assert not rows.bad.any()


def test_one_record_of_a_private_npz_file_that_is_no_real_number_spoils_itself_alone(tmp_path: Path) -> None:
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    complex_X = X.astype(complex)
    complex_X[2, 1] += 1j
    for spoiled in (complex_X, np.where(np.arange(12).reshape(6, 2) == 5, "word", X.astype(str))):
        np.savez(tmp_path / "mine.npz", X=spoiled, y=y)
        node = NodeConfig(data_path=str(tmp_path / "mine.npz"))
        share = private_share(node)
        assert np.isnan(share.X[2, 1])
        assert np.delete(share.X, 2, axis=0).tolist() == np.delete(X, 2, axis=0).tolist()
        with pytest.raises(DataError):
            own_share(node)


def test_content_decides_by_what_a_label_means() -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))
    expected = held_out_by_content(X, np.ones(300, int), 0.3, 0)
    assert 0 < expected.sum() < 300
    for labels in (np.ones(300), np.ones(300, bool), np.full(300, "1"), np.array([True, 1.0, "1.0"] * 100, object)):
        assert (held_out_by_content(X, labels, 0.3, 0) == expected).all()
    assert (held_out_by_content(X, np.full(300, "one"), 0.3, 0) != expected).any()


@POLICIES
def test_columns_of_the_same_name_are_refused(row_wise: bool, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_rows(csv_file(tmp_path, "a,a,label\n1,2,x\n"), row_wise=row_wise)
    assert caught.value.expected == "columns of different names"


@POLICIES
def test_a_missing_package_is_named_with_its_extra(
    row_wise: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with raises(ConfigError, field="pyarrow.parquet", expected="flwr-flynn[data]"):
        read_rows(csv_file(tmp_path, "", "mine.parquet"), row_wise=row_wise)


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
    rows = read_rows(path, features=features, row_wise=True)
    nan = np.nan
    expected = [[1, 1, 1, 0.5, 7, nan, nan], [nan, 0, nan, 1.5, nan, nan, nan], [3, nan, 3, 2.5, 7, nan, nan]]
    np.testing.assert_array_equal(rows.X, expected)
    assert rows.y.tolist() == ["1", None, "3"]
    assert rows.unlabelled.tolist() == [False, True, False]
    assert rows.left_out == ("unused",)
    with pytest.raises(DataError):
        read_rows(path, features=features)
