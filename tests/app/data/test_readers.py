"""The readers of CSV, Parquet and NPZ files: the same rows under both policies, types,
rows with errors.
"""

from __future__ import annotations

import sys
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
from flwr_flynn.federated.private_rows import meaning
from flwr_flynn.tables.row_wise import as_kind
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
    assert as_kind("number", texts)[0].tolist() == [float(value) for value in values]


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


def write(path: Path, rows: list[Any]) -> None:
    if path.suffix == ".csv":
        lines = [
            row if isinstance(row, str) else ",".join(map(str, row)) for row in rows
        ]
        path.write_text("\n".join(["a,b,label", *lines]) + "\n")
    elif path.suffix == ".npz":
        np.savez(
            path,
            X=np.array([row[:2] for row in rows]),
            y=np.array([row[2] for row in rows]),
        )
    else:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        kinds = arrow.float64(), arrow.int64(), arrow.int64()
        columns = [
            arrow.array(values, kind)
            for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)
        ]
        parquet.write_table(
            arrow.table(dict(zip(("a", "b", "label"), columns, strict=True))), path
        )


@pytest.mark.parametrize(
    ("ending", "odd"),
    [(ending, odd) for ending, rows in ODD.items() for odd in rows],
    ids=str,
)
@pytest.mark.parametrize("evaluate", [False, True])
def test_no_record_of_a_private_file_changes_how_another_is_read_or_if_it_is_held_out(
    ending, odd, evaluate, tmp_path
):
    # one missing label makes floats of all in NumPy
    first = 0
    if ending != ".npz":
        first = BIG
    rows: list[Any] = [(i + 0.5, i, first + i % 7) for i in range(60)]
    path = tmp_path / f"mine{ending}"

    def read(rows: list[Any]) -> list[list[str]]:
        """Samples that fit, those to train with and those held out, in their order."""
        write(path, rows)
        share = private_share(NodeConfig(data_path=str(path), evaluate=evaluate))
        sides = (share.X, share.y), (share.X_test, share.y_test)
        return [
            [
                f"{x} {meaning(y)}"
                for x, y in zip(X.tolist(), labels.tolist(), strict=True)
            ]
            for X, labels in sides
        ]

    whole = read(rows)
    assert (len(whole[0]) + len(whole[1]), bool(whole[1])) == (60, evaluate)
    for place in (0, 31, 60):
        mixed = read([*rows[:place], odd, *rows[place:]])
        # a long line is none
        assert len(mixed[0]) + len(mixed[1]) - 60 in (
            (0, 1) if ending == ".csv" else (1,)
        )
        assert [
            [each for each in part if each in {*whole[0], *whole[1]}] for part in mixed
        ] == whole


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
        # beyond the calendar of Python
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
    "name", ["mine.csv.gz", "mine.CSV.GZ", "mine.xlsx", "mine", "gone.csv"]
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
    weights = [gap, gap if ending == "csv" else None, "7654"]
    columns = {"age": [1, 2, 3], "weight": weights, "label": ["x", "y", "y"]}
    party = node(written(tmp_path / f"mine.{ending}", columns))
    table = own_share(party).X
    assert table.kinds == ("number", kind)
    assert [
        value
        for value in table.columns[1].tolist()
        if value is not None and value == value
    ] == [known]
    assert np.isnan(private_share(party).X[:, 1]).tolist() == [True, True, False]


ENCODINGS = {
    "latin-1": (True, None),
    "cp1252": (True, None),
    "utf-8-sig": (True, True),
    "utf-16": (True, False),
}
ENCODINGS |= dict.fromkeys(("utf-16-le", "utf-16-be", "utf-32"), (False, False))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoding_is_detected_or_named(encoding, tmp_path):
    party = node(
        written(tmp_path / "mine.csv", "größe,label\r\n1,x\r\n2,ü\r\n".encode(encoding))
    )
    for read, is_read in zip(
        (own_share, private_share), ENCODINGS[encoding], strict=True
    ):
        if is_read:
            assert read(party, ("größe",)).y.tolist() == ["x", "ü"]
        elif is_read is not None:
            with raises(DataError, field="mine.csv", got="UTF-16 or UTF-32"):
                read(party)
