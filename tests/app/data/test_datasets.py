"""Loading, the held-out rule, and what simulated parties hold."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_flynn.app.data import datasets, own_file
from flwr_flynn.app.data.datasets import deal, splitmix64
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import PARTITIONERS, RunConfig
from flwr_flynn.errors import (
    ConfigError,
    DataError,
    full_text,
)
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.spec import HashSpec
from tests.app.data.files import READERS, node, npz, written
from tests.app.data.private import private_share
from tests.memory import traced
from tests.raising import raises
from tests.snapshots import assert_refused_as_on_record

DIGITS = datasets.load_dataset("digits")


@pytest.fixture(scope="module", autouse=True)
def flwr_datasets() -> None:
    """Import it in the one process that runs this file: it takes seconds."""
    pytest.importorskip("flwr_datasets")


# -------- the held-out rule


def test_the_rule_is_golden():
    """Pinned: other points held out would silently change every figure."""
    # The first outputs of SplitMix64 seeded with 0 are its hash at multiples of its
    # increment.
    states = [(i * 0x9E3779B97F4A7C15) % 2**64 for i in range(3)]
    assert splitmix64(states).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    golden = [5, 14, 18, 19, 23, 26, 31, 35]
    assert np.flatnonzero(held_out(0)[:40]).tolist() == golden
    golden = [9, 10, 23, 27, 28, 31, 32, 34, 36, 38, 39]
    assert np.flatnonzero(held_out(2**63 - 1)[:40]).tolist() == golden


def held_out(seed: int, fraction: float = 0.2) -> Any:
    """Mask of the digits that a simulation with this seed holds out."""
    config = RunConfig(split_seed=seed, test_fraction=fraction)
    return datasets.simulated_dataset(config).test


def test_held_out_takes_its_share():
    shares = [held_out(seed).mean() for seed in range(20)]
    assert abs(np.mean(shares) - 0.2) < 0.005
    # Seeds are independent: two of them agree on 0.2 ** 2 of the points.
    assert abs((held_out(1) & held_out(2)).mean() - 0.04) < 0.015
    assert not held_out(0, 0.0).any()
    assert held_out(0, 0.9).mean() > 0.85


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_simulation_holds_out_the_rows_that_its_parties_would(ending, tmp_path):
    """It is as it is for their files, whatever column says to whom rows belong."""
    wards = [*"xyyz"] * 100
    columns = {"a": [*range(400)], "ward": wards, "label": [*"nnnj"] * 100}
    path = str(written(tmp_path / f"all.{ending}", columns))

    def held(seed: int) -> set[int]:
        own = {**SETTINGS["natural-id"], "partitioner": "natural-id"}
        config = RunConfig.parse({**own, "dataset": path, "split-seed": seed})
        return {*np.flatnonzero(datasets.simulated_dataset(config).test).tolist()}

    at_parties = set[int]()
    for ward in "xyz":
        rows = [index for index in range(400) if wards[index] == ward]
        own = {name: [columns[name][row] for row in rows] for name in ("a", "label")}
        part = written(tmp_path / f"{ward}.{ending}", own)
        at_parties |= {
            *own_file.own_share(NodeConfig(data_path=str(part))).X_test[:, 0]
        }
    assert held(0) == at_parties != held(1)
    assert 40 < len(at_parties) < 120


# -------- partitioners

SETTINGS: dict[str, dict[str, Any]] = {
    "shard": {"partitioner-options": '{"keep_incomplete_shard": true}'},
    "natural-id": {"partitioner-options": '{"partition_by": "ward"}'},
}
REFUSED_BY_FLWR_DATASETS = [("exponential", 10), ("natural-id", 1)]
DEALT = [
    (name, n)
    for name in PARTITIONERS
    for n in (1, 7, 10)
    if (name, n) not in REFUSED_BY_FLWR_DATASETS
]


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in a file, with a column of ids."""
    path = tmp_path_factory.mktemp("data") / "wards.npz"
    np.savez(
        path,
        X=DIGITS.X,
        y=DIGITS.y,
        ward=np.array([f"w{i % 7}" for i in range(len(DIGITS.y))]),
    )
    return path


def config_of(partitioner: str, path: Path) -> RunConfig:
    settings = {"partitioner": partitioner, "dataset": str(path)}
    return RunConfig.parse(settings | SETTINGS.get(partitioner, {}))


@pytest.mark.parametrize(("name", "n_parties"), DEALT)
def test_every_partitioner_deals_disjoint_shares(name, n_parties, wards):
    shares = datasets.simulated_shares(config_of(name, wards), n_parties)
    assert len(shares) == n_parties
    dealt = np.concatenate(shares)
    assert len(set(dealt.tolist())) == len(dealt)
    assert dealt.min() >= 0
    assert dealt.max() < 1797
    if name not in ("pathological", "shard"):  # these leave points out
        assert len(dealt) == 1797


@pytest.mark.parametrize(("name", "n_parties"), REFUSED_BY_FLWR_DATASETS)
def test_what_flwr_datasets_refuses_is_refused_in_one_line(name, n_parties, wards):
    config = config_of(name, wards)
    with raises(ConfigError, field="run-config partitioner", got=name) as caught:
        datasets.simulated_shares(config, n_parties)
    assert len(str(caught.value).splitlines()) == 1


def test_partitioners_that_cannot_deal_are_refused_as_it_is_on_record():
    takes = {
        "dealt": lambda settings: datasets.simulated_shares(
            RunConfig.parse(settings), 4
        )
    }
    assert_refused_as_on_record(Path(__file__).parent / "dealt.txt", takes)


def test_partitioners_are_those_of_flwr_datasets_that_split_points():
    import flwr_datasets.partitioner as module

    names = {
        name.removesuffix("Partitioner").lower()
        for name in module.__all__
        if name.endswith("Partitioner")
    }
    # The vertical ones split features; IdToSizeFnc is what linear, square and
    # exponential are made of.
    names = {
        n for n in names if n and not n.startswith("vertical") and n != "idtosizefnc"
    }
    others = {"distribution", "continuous", "innerdirichlet", "groupednaturalid"}
    assert names - others == {name.replace("-", "") for name in PARTITIONERS}


def test_an_empty_party_is_a_valid_party():
    config = RunConfig.parse({"alpha": 0.01})
    sizes = [len(share) for share in datasets.simulated_shares(config, 50)]
    assert min(sizes) == 0
    share = datasets.simulated_share(config, int(np.argmin(sizes)), 50)
    assert share.X.shape == (0, 64)
    assert share.X.dtype == DIGITS.X.dtype
    assert len(share.y) == len(share.y_test) == 0


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet"])
@pytest.mark.parametrize("n_parties", [2, 10])
def test_training_points_are_the_same_however_they_are_split(partitioner, n_parties):
    config = RunConfig.parse({"partitioner": partitioner})
    parties = [datasets.simulated_share(config, i, n_parties) for i in range(n_parties)]
    train = np.concatenate([np.column_stack([p.X, p.y]) for p in parties])
    rest = ~held_out(0)
    expected = np.column_stack([DIGITS.X[rest], DIGITS.y[rest]])
    assert sorted(train.tolist()) == sorted(expected.tolist())
    rows = datasets.training_rows(config, n_parties)
    X, codes = datasets.pooled_training(config, rows)
    assert (DIGITS.X[rest] == X).all()
    assert (codes == DIGITS.y[rest]).all()
    assert len(codes) == datasets.n_training(config)
    assert len(datasets.pooled_training(config, rows[:1])[0]) == len(parties[0].y)
    assert sum(len(p.y) + len(p.y_test) for p in parties) == 1797


def test_split_seed_moves_the_split():
    def dealt(seed: int) -> list[list[int]]:
        shares = deal(RunConfig(split_seed=seed), 5, DIGITS.y)
        return [share.tolist() for share in shares]

    assert dealt(1) == dealt(1)
    assert dealt(1) != dealt(2)


def test_options_are_arguments_of_flwr_datasets():
    config = RunConfig.parse(
        {
            "partitioner": "size",
            "partitioner-options": '{"partition_sizes": [100, 200, 300]}',
        }
    )
    assert [len(s) for s in datasets.simulated_shares(config, 3)] == [100, 200, 300]


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with raises(ConfigError, expected="flwr-flynn[simulation]"):
        deal(RunConfig(), 2, DIGITS.y)


# -------- loading


def test_digits_are_bytes():
    assert (DIGITS.X.dtype, DIGITS.classes) == (np.uint8, list(range(10)))
    assert len(DIGITS.feature_names or ()) == 64


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        pytest.param([2, 0, 2], [0, 2], id="integers"),
        pytest.param([1.0, 0.0, 1.0], [0, 1], id="whole numbers"),
        pytest.param([0.5, 1, 1], ["0.5", "1.0"], id="fractions"),
        pytest.param([True, False, True], ["False", "True"], id="truths"),
    ],
)
def test_classes_are_integers_or_strings(y, classes, tmp_path):
    """Those of CSV files stand in csv_files.txt."""
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=np.array(y))
    assert datasets.load_dataset(str(tmp_path / "a.npz")).classes == classes


def test_a_problem_is_told_without_the_folder_of_the_file(tmp_path):
    path = written(tmp_path / "site.csv", "63,male,HIV+\n41,female,HIV-\n")
    with raises(
        DataError, field="site.csv", expected="a column 'a'", got="other columns"
    ) as caught:
        datasets.load_dataset(str(path), label="a")
    assert str(tmp_path) not in full_text(caught.value)


NAMES = {"a": "A", "b": "\uff42", "c": " c ", "d": "d", "label": "label"}
"""Columns by their names, as a file has these in capitals and other forms."""


@READERS
@pytest.mark.parametrize("ending", ["csv", "parquet", "npz", "CSV", "Parquet", "NPZ"])
@given(order=st.permutations([*NAMES]))
@settings(max_examples=10)
def test_columns_are_found_by_name_whatever_their_order(
    read, ending, order, tmp_path_factory
):
    values = {
        "a": [1, 2, 3],
        "b": [4, 5, 6],
        "c": [7, 8, 9],
        "d": [10, 11, 12],
        "label": ["x", "y", "x"],
    }
    path = tmp_path_factory.mktemp("order") / f"mine.{ending}"
    of_one = node(written(path, {NAMES[name]: values[name] for name in order}))
    share = read(of_one, ("c", "a", "D"))
    assert share.X.tolist() == [[7, 1, 10], [8, 2, 11], [9, 3, 12]]
    assert share.y.tolist() == ["x", "y", "x"]
    if read is own_file.own_share:
        opened = own_file.opened_own(of_one, ("c", "a", "d"))
        assert opened.left_out == (NAMES["b"],)
    loaded = datasets.load_dataset(str(path))
    assert loaded.classes == ["x", "y"]
    assert loaded.y.tolist() == [0, 1, 0]
    # Names stay as they stand in the file.
    assert {*(loaded.feature_names or ())} in ({"A", "\uff42", "c", "d"}, set())


@READERS
@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_missing_columns_are_refused_by_the_names_that_the_run_announced(
    read, ending, tmp_path
):
    path = written(
        tmp_path / f"mine.{ending}", {"age": [1], "secret": [2], "label": [7]}
    )
    expected = {"field": path.name, "got": "2 of 3 missing: weight, height"}
    if read is private_share:  # tells neither names nor how many
        expected = {"field": "columns", "got": "other columns"}
    with raises(DataError, **expected) as caught:
        read(node(path), ("weight", "age", "height"))
    assert "secret" not in str(caught.value)  # the server gets this
    assert "in this file: 'age', 'secret'" in full_text(caught.value)


@READERS
def test_npz_files_without_names_are_taken_as_they_are(read, tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, X=[[1, 2]], y=[0])
    assert read(node(path), ("b", "a")).X.tolist() == [[1, 2]]
    with pytest.raises(DataError):
        read(node(path), ("b",))
    np.savez(path, X=[[1, 2]], y=[0], feature_names=["a"])
    with raises(
        DataError, field="mine.npz", expected="'feature_names' to be 2 strings"
    ):
        read(node(path), ("b", "a"))


@pytest.mark.parametrize(
    ("features", "got"),
    [
        (("age",), "1 of 1 features: age"),
        (("height", "age"), "2 of 2 features: height, age"),
        (("who", "height"), "1 of 2 features: height"),
    ],
)
def test_columns_that_the_run_announced_are_told_by_name(features, got, tmp_path):
    path = written(
        tmp_path / "mine.csv",
        "who,height,age,label\nAnna,1.5,inf,x\nBert,-inf,7654,y\nCleo,2,inf,y\n",
    )
    with raises(DataError, field="mine.csv", got=f"others in {got}") as caught:
        own_file.own_share(NodeConfig(data_path=str(path)), features)
    assert not any(value in full_text(caught.value) for value in ("Anna", "7654"))


@pytest.mark.parametrize(
    ("text", "classes", "code"),
    [
        ("1", ["1", "b"], 0),
        ("b", ["1", "b"], 1),
        ("1", [0, 1], 1),
        ("1.0", [0, 1], 1),
        ("01", ["1", "01"], 1),
    ],
)
def test_labels_mean_the_same_at_a_party_that_has_numbers_only(
    text, classes, code, tmp_path
):
    share = own_file.own_share(
        node(written(tmp_path / "a.csv", f"x,label\n7,{text}\n"))
    )
    assert RunSpec(HashSpec(1, 4, 1, 1, 0), classes).codes(share.y).tolist() == [code]


# -------- notes of pandas in Parquet files

PARQUETS = pytest.mark.parametrize(
    "index", [None, "id", ""], ids=["no row labels", "named", "without a name"]
)


def parquet(path: Path, index: str | None, notes: Any = None) -> NodeConfig:
    """A party with a Parquet file of pandas, with other notes of pandas in it."""
    import pandas as pd
    import pyarrow.parquet as pq

    rows = None
    if index is not None:
        rows = pd.Index([7, 9], name=index or None)
    frame = pd.DataFrame(
        {"a": [1, 2], "b": [0.5, 0.25], "label": ["x", "y"]}, index=rows
    )
    frame.to_parquet(path, compression=None)
    if notes is not None:
        table = pq.read_table(path)
        if callable(notes):
            notes = notes(json.loads(table.schema.metadata[b"pandas"]))
        pq.write_table(table.replace_schema_metadata({b"pandas": notes}), path)
    return node(path)


def with_note(**change: Any) -> Callable[[dict[str, Any]], str]:
    return lambda notes: json.dumps(notes | change)


def with_other_types(notes: dict[str, Any]) -> str:
    text = json.dumps(notes).replace("int64", "float128")
    return text.replace("numpy_type", "numpy_typo")


def with_a_range(notes: dict[str, Any]) -> str:
    notes["index_columns"].append({"kind": "range", "start": "x"})
    return json.dumps(notes)


def without_row_labels(notes: dict[str, Any]) -> str:
    del notes["index_columns"]
    return json.dumps(notes)


READ: dict[str, Any] = {
    "as they are": None,
    "types": with_other_types,
    "columns": with_note(columns=None),
    "column labels": with_note(column_indexes=[{"name": 5}]),
    "range": with_a_range,
}
UNREAD: dict[str, Any] = {
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "a list": b"[]",
    "nothing": b"",
    "a number": b"5",
    "deep": b"[" * 10**5,
    "without row labels": without_row_labels,
    "row labels that are none": with_note(index_columns=5),
    "the label as row label": with_note(index_columns=["label"]),
}


@READERS
@PARQUETS
@pytest.mark.parametrize("case", READ)
def test_row_labels_are_no_features(read, case, index, tmp_path):
    share = read(parquet(tmp_path / "mine.parquet", index, READ[case]))
    assert share.X.tolist() == [[1, 0.5], [2, 0.25]]
    assert share.y.tolist() == ["x", "y"]


@READERS
@PARQUETS
@pytest.mark.parametrize("case", UNREAD)
def test_notes_that_name_no_row_labels_are_refused(read, case, index, tmp_path):
    party = parquet(tmp_path / "mine.parquet", index, UNREAD[case])
    with raises(DataError, field="mine.parquet") as caught:
        read(party)
    assert caught.value.expected in ("a readable .parquet file", "a column 'label'")


@READERS
def test_a_damaged_parquet_file_is_refused(read, tmp_path):
    path = tmp_path / "mine.parquet"
    own = parquet(path, None)
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    no_footer = whole[:footer] + bytes(100) + whole[footer + 100 :]
    two_rows = b"\x16\x04\x19\x1c"  # and a list of one row group
    assert whole.count(two_rows) == 1

    def refused(content: bytes, expected: str) -> None:
        path.write_bytes(content)
        with raises(DataError, field="mine.parquet", expected=expected):
            read(own)

    for damaged in (b"", b"PAR1", whole[:-1], whole[:100], whole + b"x", no_footer):
        refused(damaged, "a readable .parquet file")
    three_rows = whole.replace(two_rows, b"\x16\x06\x19\x1c")
    refused(three_rows, "as many rows as the file says")


@READERS
def test_a_damaged_label_does_not_decide_about_a_parquet_file(read, tmp_path):
    path = tmp_path / "mine.parquet"
    own = parquet(path, None)
    whole = path.read_bytes()
    no_text = whole.replace(b"\x01\0\0\0x", b"\x01\0\0\0\xff")
    assert no_text != whole
    path.write_bytes(no_text)
    labels = read(own).y.tolist()
    if read is private_share:
        assert labels == [None, "y"]
    else:
        assert labels == ["y"]


# -------- what is not there


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_an_empty_file_is_an_empty_party_but_nothing_to_simulate_with(ending, tmp_path):
    path = written(
        tmp_path / f"a.{ending}",
        {"p": np.zeros(0), "q": np.zeros(0), "label": np.zeros(0)},
    )
    share = own_file.own_share(NodeConfig(data_path=str(path)))
    assert share.X.shape == share.X_test.shape == (0, 2)
    assert (share.X.dtype.kind, share.y.shape) == ("f", (0,))
    with raises(DataError, expected="at least one sample"):
        datasets.simulated_dataset(RunConfig(dataset=str(path)))


SOURCES = [
    "nowhere.npz",
    "mnist",
    "openml:x",
    "folder.csv/",
    "x.pkl",
    "~nosuchuser/a.csv",
    "a" * 300,
    "a\0b.csv",
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: ascii(source)[:20])
def test_sources_that_are_not_there(source):
    with raises(ConfigError, field="dataset"):
        datasets.load_dataset(source)


def test_a_label_column_is_for_files():
    with raises(ConfigError, field="label", expected="none with digits", got="species"):
        datasets.simulated_dataset(RunConfig(label="species"))


# -------- hostile files


def npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def promise(rows: int, columns: int) -> bytes:
    """The header of an array, and nothing of it."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (rows, columns)}
    )
    return header.getvalue()


def oversized() -> bytes:
    """An archive whose directory says that an array is impossibly large."""
    content = bytearray(
        npz({"X": promise(10**6, 10**3), "y": GOOD_Y}, zipfile.ZIP_DEFLATED)
    )
    # The directory says how large X is.
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (2**32 - 2).to_bytes(4, "little")
    return bytes(content)


GOOD_X = npy(np.eye(3))
GOOD_Y = npy(np.arange(3))
GOOD = {"X": GOOD_X, "y": GOOD_Y}
MALFORMED: dict[str, bytes] = {
    "nothing": npz({}),
    "no labels": npz({"X": GOOD_X}),
    "no bytes": npz(GOOD | {"X": b""}),
    "cut off": npz(GOOD | {"X": GOOD_X[:-9]}),
    "objects": npz(GOOD | {"X": npy(np.array([[object()]], dtype=object))}),
    "bytes": npz(GOOD | {"X": npy(np.array([[b"a"] * 2] * 3))}),
    "flat": npz(GOOD | {"X": npy(np.zeros(3))}),
    "complex": npz(GOOD | {"X": npy(np.zeros((3, 2), complex))}),
    "labels in two dimensions": npz(
        {"X": npy(np.zeros((3, 2))), "y": npy(np.zeros((3, 1)))}
    ),
    "labels of other samples": npz({"X": npy(np.zeros((0, 2))), "y": npy(np.zeros(1))}),
    "labels of bytes": npz(GOOD | {"y": npy(np.array([b"a", b"b", b"a"]))}),
    "large labels": npz(GOOD | {"y": npy(np.array([1e30, 0, 1]))}),
    "infinite": npz(GOOD | {"X": npy(np.full((3, 2), np.inf))}),
    "no label": npz(GOOD | {"y": npy(np.full(3, np.nan))}),
    # These allocate nothing.
    "X: terabytes": npz(GOOD | {"X": promise(10**6, 10**6) + bytes(64)}),
    "X: an odd size": oversized(),
    "X: bzip2": npz(GOOD, zipfile.ZIP_BZIP2),
    # it allocates the dictionary that a file asks for: 4 GiB, if it likes
    "X: LZMA": npz(GOOD, zipfile.ZIP_LZMA),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_npz_is_refused(case, tmp_path):
    path = written(tmp_path / "bad.npz", MALFORMED[case])
    with traced() as memory, raises(DataError) as caught:
        datasets.load_dataset(str(path))
    assert memory.peak < 2**21
    name, _, array = caught.value.field.partition(":")
    assert name == "bad.npz"
    assert array == " not a readable array 'X.npy'" or not case.startswith("X: ")
