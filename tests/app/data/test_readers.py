"""The readers of CSV, Parquet and NPZ files.

The same rows under both policies, types, and rows with errors.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.own_file import own_share
from flwr_flynn.app.data.source import MOST_ROWS
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.labels import meaning
from flwr_flynn.tables.cells import CellReader
from tests.app.data.files import READERS, node, written
from tests.app.data.private import private_share
from tests.raising import raises


def test_integers_stay_exact_over_many_rows_and_beside_narrower_columns(tmp_path):
    n = MOST_ROWS + 3
    big = 2**60 + 1
    path = written(
        tmp_path / "mine.csv",
        "a,flag,label\n" + "".join(f"{big + i},True,x\n" for i in range(n)),
    )
    X = load_dataset(str(path)).X
    assert (X.dtype, X.shape, X[-1].tolist()) == (np.int64, (n, 2), [big + n - 1, 1])


@given(st.lists(st.floats(allow_nan=False) | st.integers(-(2**70), 2**70), min_size=1))
def test_numbers_are_those_that_python_prints(values):
    texts = np.array([repr(value) for value in values], object)
    assert CellReader("number").column(texts)[0].tolist() == [
        float(value) for value in values
    ]


BIG = 2**53 + 1  # which float64 does not hold
ODD: dict[str, list[Any]] = {
    ".csv": [
        "1,2,x,9,9",
        "1,\0,x",
        "1,\ufffd,x",
        "1,2",
        "x" * 200_000,
        "1,word,x",
        "1,2,",
    ],
    ".npz": [
        ("word", 2, 1),
        (1j, 2, 1),
        (np.inf, 2, 1),
        (1, 2, np.nan),
        (1, 2, "word"),
    ],
    ".parquet": [(None, 2, 1), (1, 2, None), (None, None, None)],
}


def texts_of(X: Any, labels: Any) -> list[str]:
    # 1 and 1.0 are equal, and have the same place in a codebook.
    return [f"{x} {hash(meaning(y))}" for x, y in zip(X.tolist(), labels, strict=True)]


def write(path: Path, rows: list[Any]) -> None:
    if path.suffix == ".csv":
        lines = ["a,b,label"]
        for row in rows:
            if not isinstance(row, str):
                row = ",".join(map(str, row))
            lines.append(row)
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".npz":
        np.savez(
            path,
            X=np.array([row[:2] for row in rows]),
            y=np.array([row[2] for row in rows]),
        )
    else:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        a, b, labels = zip(*rows, strict=True)
        columns = {
            "a": arrow.array(a, arrow.float64()),
            "b": arrow.array(b, arrow.int64()),
            "label": arrow.array(labels, arrow.int64()),
        }
        parquet.write_table(arrow.table(columns), path)


ODD_ROWS = [
    pytest.param(ending, odd, id=f"{ending[1:]}-{str(odd)[:20]}")
    for ending, rows in ODD.items()
    for odd in rows
]


@pytest.mark.parametrize(("ending", "odd"), ODD_ROWS)
@pytest.mark.parametrize("evaluate", [False, True])
def test_no_record_of_a_private_file_changes_how_another_is_read_or_if_it_is_held_out(
    ending, odd, evaluate, tmp_path
):
    # In NumPy one missing label makes floats of all.
    first = 0
    if ending != ".npz":
        first = BIG
    rows: list[Any] = [(i + 0.5, i, first + i % 7) for i in range(60)]
    path = tmp_path / f"mine{ending}"

    def read(rows: list[Any]) -> list[list[str]]:
        """Samples that fit, those to train with and those held out, in their order."""
        write(path, rows)
        share = private_share(NodeConfig(data_path=str(path), evaluate=evaluate))
        return [texts_of(share.X, share.y), texts_of(share.X_test, share.y_test)]

    # A long line of a CSV file is no row.
    fewest = 61
    if ending == ".csv":
        fewest = 60
    train, test = read(rows)
    known = {*train, *test}
    assert len(train) + len(test) == 60
    assert bool(test) == evaluate
    for place in (0, 31, 60):
        mixed_train, mixed_test = read([*rows[:place], odd, *rows[place:]])
        assert fewest <= len(mixed_train) + len(mixed_test) <= 61
        assert [row for row in mixed_train if row in known] == train
        assert [row for row in mixed_test if row in known] == test


@READERS
def test_a_missing_package_is_named_with_its_extra(read, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with raises(ConfigError, field="pyarrow.parquet", expected="flwr-flynn[data]"):
        read(node(written(tmp_path / "mine.parquet", "")))


def test_no_value_decides_whether_a_private_parquet_file_is_read(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    buffers = [
        *arrow.array(["1", "\x7f", "3"]).buffers()[:2],
        arrow.py_buffer(b"1\xff3"),
    ]
    broken = arrow.Array.from_buffers(arrow.string(), 3, buffers)
    columns: dict[str, Any] = {
        "number": arrow.array([1, None, 3], arrow.int64()),
        "truth": arrow.array([True, False, None]),
        "text": broken,
        "half": arrow.array(np.array([0.5, 1.5, 2.5], np.float16)),
        "kinds": arrow.array(["7", "x", "7"]).dictionary_encode(),
        # Beyond the calendar of Python.
        "stamp": arrow.array([-(2**62), 0, 2**62], arrow.timestamp("ms")),
        "list": arrow.array([[1.0], [2.0], None]),
        "unused": broken,
        "label": broken,
    }
    path = tmp_path / "mine.parquet"
    parquet.write_table(arrow.table(columns), path)
    features = ("number", "truth", "text", "half", "kinds", "stamp", "list")
    rows = private_share(node(path), features)
    nan = np.nan
    expected = [
        [1, 1, 1, 0.5, 7, nan, nan],
        [nan, 0, nan, 1.5, nan, nan, nan],
        [3, nan, 3, 2.5, 7, nan, nan],
    ]
    np.testing.assert_array_equal(rows.X, expected)
    assert rows.y.tolist() == ["1", None, "3"]
    assert own_share(node(path), features[:5]).y.tolist() == [1, 3]
    party = node(path, label="half")
    table = own_share(party, ("number", "truth", "text", "kinds")).X
    assert table.kinds == ("number", "number", "category", "category")
    assert [column.tolist() for column in table.columns[2:]] == [
        ["1", None, "3"],
        ["7", "x", "7"],
    ]
    np.testing.assert_array_equal(table.columns[:2], [[1, nan, 3], [1, 0, nan]])
    with raises(DataError, field="mine.parquet", expected="numbers, texts or dates"):
        own_share(party, ("list",))
    with raises(DataError, field="dates"):
        own_share(party, ("stamp",))


@READERS
@pytest.mark.parametrize(
    "name", ["mine.csv.zip", "mine.XLSX", "mine.sav", "mine", "gone.csv"]
)
def test_a_path_of_no_such_file_or_kind_is_told_without_its_folder(
    read, name, tmp_path
):
    if name != "gone.csv":
        written(tmp_path / name, "a,label\n1,x\n")
    with raises(ConfigError, field="node-config data-path") as caught:
        read(node(tmp_path / name))
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    "gap", ["", " ", "?", "NA", "na", "N/A", "NaN", "nan", "null", "None", "-", "#N/A"]
)
@pytest.mark.parametrize(
    ("ending", "kind", "known"),
    [("csv", "number", 7654.0), ("parquet", "category", "7654")],
)
def test_texts_of_missing_values_are_gaps(gap, ending, kind, known, tmp_path):
    weights = [gap, None, "7654"]
    if ending == "csv":
        weights[1] = gap
    columns = {"age": [1, 2, 3], "weight": weights, "label": ["x", "y", "y"]}
    party = node(written(tmp_path / f"mine.{ending}", columns))
    table = own_share(party).X
    assert table.kinds == ("number", kind)
    values = table.columns[1].tolist()
    is_gap = [value is None or value != value for value in values]
    assert is_gap == [True, True, False]
    assert values[2] == known
    assert np.isnan(private_share(party).X[:, 1]).tolist() == [True, True, False]


def encoded(folder: Path, encoding: str) -> NodeConfig:
    content = "größe,label\r\n1,x\r\n2,ü\r\n".encode(encoding)
    return node(written(folder / "mine.csv", content))


@pytest.mark.parametrize(
    ("read", "encoding"),
    [
        (own_share, "latin-1"),
        (own_share, "cp1252"),
        (own_share, "utf-8-sig"),
        (private_share, "utf-8-sig"),
        (own_share, "utf-16"),
    ],
)
def test_an_encoding_is_detected(read, encoding, tmp_path):
    party = encoded(tmp_path, encoding)
    assert read(party, ("größe",)).y.tolist() == ["x", "ü"]


@pytest.mark.parametrize(
    ("read", "encoding"),
    [
        (private_share, "utf-16"),
        *product((own_share, private_share), ("utf-16-le", "utf-16-be", "utf-32")),
    ],
)
def test_an_encoding_that_is_not_detected_is_named(read, encoding, tmp_path):
    party = encoded(tmp_path, encoding)
    with raises(DataError, field="mine.csv", got="UTF-16 or UTF-32"):
        read(party)
