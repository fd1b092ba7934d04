"""Loading, the held-out rule, and what simulated parties hold."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_flynn.app.data import datasets, own_file
from flwr_flynn.app.data.datasets import deal, held_out, splitmix64
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import PARTITIONERS, RunConfig
from flwr_flynn.errors import ConfigError, DataError, PayloadError
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.spec import HashSpec
from tests.app.data.private import private_share
from tests.memory import traced
from tests.raising import raises

DIGITS = datasets.load_dataset("digits")


@pytest.fixture(scope="module", autouse=True)
def flwr_datasets() -> None:
    """Import it in the one process that runs this file: it takes seconds, and each process collects every file."""
    pytest.importorskip("flwr_datasets")


# -------- the held-out rule


def test_splitmix64_golden() -> None:
    # The first outputs of SplitMix64 seeded with 0 are its hash at multiples of its increment.
    increment = 0x9E3779B97F4A7C15
    states = [(i * increment) % 2**64 for i in range(3)]
    assert splitmix64(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_held_out_golden() -> None:
    """Pinned: another version holding out other points would silently change every figure."""
    assert np.flatnonzero(held_out(40, 0.2, 0)).tolist() == [3, 8, 13, 23, 28, 35, 37]
    assert np.flatnonzero(held_out(40, 0.2, 2**63 - 1)).tolist() == [0, 5, 10, 12, 15, 20, 25, 26, 33, 36]


@given(st.integers(0, 2000), st.floats(0, 1), st.integers(0, 2**63 - 1))
def test_held_out_is_a_rule_on_the_point(n: int, fraction: float, seed: int) -> None:
    mask = held_out(n, fraction, seed)
    assert mask.shape == (n,)
    assert (held_out(n + 100, fraction, seed)[:n] == mask).all()
    assert not held_out(n, 0.0, seed).any()
    assert held_out(n, 1.0, seed).all()


def test_held_out_takes_its_share() -> None:
    shares = [held_out(20_000, 0.2, seed).mean() for seed in range(20)]
    assert abs(np.mean(shares) - 0.2) < 0.005
    # Seeds are independent: two of them agree on 0.2 ** 2 of the points.
    assert abs((held_out(20_000, 0.2, 1) & held_out(20_000, 0.2, 2)).mean() - 0.04) < 0.01


# -------- partitioners

SETTINGS: dict[str, dict[str, Any]] = {
    "shard": {"partitioner-options": '{"keep_incomplete_shard": true}'},
    "natural-id": {"partitioner-options": '{"partition_by": "ward"}'},
}
LEAVES_POINTS_OUT = {"pathological", "shard"}


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in a file, with a column of ids."""
    path = tmp_path_factory.mktemp("data") / "wards.npz"
    np.savez(path, X=DIGITS.X, y=DIGITS.y, ward=np.array([f"w{i % 7}" for i in range(len(DIGITS.y))]))
    return path


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("n_parties", [1, 7, 10])
def test_every_partitioner_deals_disjoint_shares(name: str, n_parties: int, wards: Path) -> None:
    config = RunConfig.parse({"partitioner": name, "dataset": str(wards)} | SETTINGS.get(name, {}))
    try:
        shares = datasets.simulated_shares(config, n_parties)
    except ConfigError as error:
        # A refusal by flwr-datasets becomes one line.
        assert (name, n_parties) in {("exponential", 10), ("natural-id", 1)}
        assert len(str(error).splitlines()) == 1
        assert (error.field, error.got) == ("run-config partitioner", name)
        return
    assert len(shares) == n_parties
    dealt = np.concatenate(shares)
    assert len(set(dealt.tolist())) == len(dealt)
    assert dealt.min() >= 0
    assert dealt.max() < 1797
    assert len(dealt) == 1797 or name in LEAVES_POINTS_OUT


def test_partitioners_are_those_of_flwr_datasets_that_split_points() -> None:
    import flwr_datasets.partitioner as module

    names = {name.removesuffix("Partitioner").lower() for name in module.__all__ if name.endswith("Partitioner")}
    # The vertical ones split features; IdToSizeFnc is what linear, square and exponential are made of.
    names = {n for n in names if n and not n.startswith("vertical") and n != "idtosizefnc"}
    others = {"distribution", "continuous", "innerdirichlet", "groupednaturalid"}
    assert names - others == {name.replace("-", "") for name in PARTITIONERS}


def test_an_empty_party_is_a_valid_party() -> None:
    config = RunConfig.parse({"alpha": 0.01})
    shares = datasets.simulated_shares(config, 50)
    assert min(map(len, shares)) == 0
    share = datasets.simulated_share(config, int(np.argmin([len(s) for s in shares])), 50)
    assert share.X.shape == (0, 64)
    assert share.X.dtype == DIGITS.X.dtype
    assert len(share.y) == len(share.y_test) == 0


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet"])
@pytest.mark.parametrize("n_parties", [2, 10])
def test_training_points_are_the_same_however_they_are_split(partitioner: str, n_parties: int) -> None:
    config = RunConfig.parse({"partitioner": partitioner})
    parties = [datasets.simulated_share(config, i, n_parties) for i in range(n_parties)]
    train = np.concatenate([np.column_stack([p.X, p.y]) for p in parties])
    test = ~held_out(1797, 0.2, 0)
    expected = np.column_stack([DIGITS.X[test], DIGITS.y[test]])
    assert (np.sort(train.view("i8") if train.dtype == "i8" else train, axis=0) == np.sort(expected, axis=0)).all()
    X, codes = datasets.pooled_training(config, n_parties)
    assert (DIGITS.X[test] == X).all()
    assert (codes == DIGITS.y[test]).all()
    assert len(codes) == datasets.n_training(config)
    some, _ = datasets.pooled_training(config, n_parties, [0])
    assert len(some) == len(parties[0].y)
    assert sum(len(p.y) + len(p.y_test) for p in parties) == 1797


def test_split_seed_moves_the_split_and_the_held_out_points() -> None:
    codes = DIGITS.y
    one, again, other = (deal(RunConfig(split_seed=s), 5, codes) for s in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(one, again, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(one, other, strict=True))


def test_options_are_arguments_of_flwr_datasets() -> None:
    config = RunConfig.parse({"partitioner": "size", "partitioner-options": '{"partition_sizes": [100, 200, 300]}'})
    assert [len(s) for s in datasets.simulated_shares(config, 3)] == [100, 200, 300]
    shards = json.dumps({"num_shards_per_partition": 10**18})
    for refused, n_parties in (
        (config, 4),
        (RunConfig(partitioner="iid", partitioner_options='{"strictness": 1}'), 2),
        (RunConfig(partitioner="shard", partitioner_options=shards), 10),  # more than points
    ):
        with raises(ConfigError, field="run-config partitioner"):
            datasets.simulated_shares(refused, n_parties)


@pytest.mark.parametrize(
    "bad", ["a,b", "[1]", "3", '{"seed": 1}', '{"num_partitions": 3}', '{"alpha": 2}', "[" * 10**5]
)
def test_options_that_are_none_are_refused(bad: str) -> None:
    with raises(ConfigError, field="run-config partitioner-options"):
        RunConfig.parse({"partitioner-options": bad})


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with raises(ConfigError, expected="flwr-flynn[simulation]"):
        deal(RunConfig(), 2, DIGITS.y)


# -------- loading


def test_digits_are_bytes() -> None:
    assert DIGITS.X.dtype == np.uint8
    assert DIGITS.classes == list(range(10))
    assert DIGITS.feature_names is not None
    assert len(DIGITS.feature_names) == 64


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([2, 0, 2], [0, 2]),
        ([1.0, 0.0, 1.0], [0, 1]),
        ([0.5, 1, 1], ["0.5", "1.0"]),
        ([True, False, True], ["False", "True"]),
    ],
)
def test_classes_are_integers_or_strings(y: list[Any], classes: list[Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=np.array(y))
    assert datasets.load_dataset(str(tmp_path / "a.npz")).classes == classes


def test_problems_travel_as_positions_and_counts_and_names_stay_here(tmp_path: Path) -> None:
    notes = ""

    def problem(text: str, **options: str) -> tuple[str, str]:
        """Expected and got of the error about a file."""
        nonlocal notes
        (tmp_path / "site.csv").write_text(text)
        with pytest.raises((DataError, ConfigError)) as caught:
            datasets.load_dataset(str(tmp_path / "site.csv"), **options)
        assert str(tmp_path) not in str(caught.value)
        notes = own_file.full_text(caught.value).removeprefix(str(caught.value))
        assert caught.value.field == "site.csv"
        return caught.value.expected, caught.value.got

    finite, others = "finite numbers that float64 holds", "others in 1 of 2 features: number 2"
    assert problem("a,age,label\n1,7654,x\n1,inf,y\n1,1e999,y\n") == (finite, others)
    assert notes == "; 2 of 3 samples; in this file: 'age'"
    assert problem("age,label\n7654,\n1,\n") == ("a label in some rows", "none in any")
    # Without a header, a record stands where the names should be.
    assert problem("63,male,HIV+\n41,female,HIV-\n") == ("a column 'label'", "3 others")
    assert notes == "; in this file: '63', 'male', 'HIV+'"
    text = "63,m,i,44,5,6,7,a\ninf,inf,inf,44,5,6,7,a\n1,-inf,2,44,5,6,7,a\n"
    expected = "in 3 of 7 features: number 1, number 2, number 3"
    assert problem(text, label="a")[1].endswith(expected)
    assert problem("label\nx\n") == ("at least one feature", "none")
    fields = "as many fields in each row as in the header"
    assert problem("a,b,label\n1,2,3,x\n4,5,6,y\n") == (fields, "rows with more or fewer")
    assert problem("") == ("a first line with the names of the columns", "none")


def write(path: Path, columns: dict[str, list[Any]]) -> None:
    """A file of whatever kind its ending says."""
    import pandas as pd

    if path.suffix == ".npz":
        points = {name: values for name, values in columns.items() if name != "label"}
        X = np.array(list(points.values())).T
        np.savez(path, X=X, y=np.array(columns["label"]), feature_names=np.array(list(points)))
    elif path.suffix == ".csv":
        pd.DataFrame(columns).to_csv(path, index=False)
    else:
        pd.DataFrame(columns).to_parquet(path, index=False)


READERS = pytest.mark.parametrize("read", [own_file.own_share, private_share])
ENDINGS = pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])


@READERS
@ENDINGS
@given(order=st.permutations(["a", "b", "c", "d", "label"]))
@settings(max_examples=10)
def test_columns_are_found_by_name_whatever_their_order(
    read: Any, ending: str, order: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    values: dict[str, list[Any]] = {"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9], "d": [10, 11, 12]}
    values["label"] = ["x", "y", "x"]
    path = tmp_path_factory.mktemp("order") / f"mine.{ending}"
    write(path, {name: values[name] for name in order})
    node = NodeConfig(data_path=str(path), test_fraction=0.0)
    share = read(node, ("c", "a", "d"))
    assert share.X.tolist() == [[7, 1, 10], [8, 2, 11], [9, 3, 12]]
    assert share.y.tolist() == ["x", "y", "x"]
    assert read is private_share or own_file.opened_own(node, ("c", "a", "d")).left_out == ("b",)


@READERS
@ENDINGS
def test_missing_columns_are_refused_by_the_names_that_the_run_announced(
    read: Any, ending: str, tmp_path: Path
) -> None:
    write(tmp_path / f"mine.{ending}", {"age": [1], "secret": [2], "label": [7]})
    node = NodeConfig(data_path=str(tmp_path / f"mine.{ending}"))
    told = {"field": f"mine.{ending}", "got": "2 of 3 missing: weight, height"}
    if read is private_share:  # tells no names
        told = {"field": "columns", "expected": "the features of the run", "got": "not all"}
    with raises(DataError, **told):
        read(node, ("weight", "age", "height"))


@READERS
def test_npz_files_without_names_are_taken_as_they_are(read: Any, tmp_path: Path) -> None:
    node = NodeConfig(data_path=str(tmp_path / "mine.npz"), test_fraction=0.0)
    np.savez(tmp_path / "mine.npz", X=[[1, 2]], y=[0])
    assert read(node, ("b", "a")).X.tolist() == [[1, 2]]
    with pytest.raises(DataError if read is own_file.own_share else PayloadError):
        read(node, ("b",))
    np.savez(tmp_path / "mine.npz", X=[[1, 2]], y=[0], feature_names=["a"])
    with raises(DataError, field="mine.npz", expected="'feature_names' to be 2 strings"):
        read(node, ("b", "a"))


def test_columns_that_the_run_announced_are_told_by_name(tmp_path: Path) -> None:
    text = "who,height,age,label\nAnna,1.5,inf,x\nBert,-inf,7654,y\nCleo,2,inf,y\n"
    (tmp_path / "mine.csv").write_text(text)
    node = NodeConfig(data_path=str(tmp_path / "mine.csv"))
    for features, got in (
        (("age",), "others in 1 of 1 features: age"),
        (("height", "age"), "others in 2 of 2 features: height, age"),
        (("who", "height"), "others in 1 of 2 features: height"),
    ):
        with raises(DataError, field="mine.csv", got=got) as caught:
            own_file.own_share(node, features)
        assert not any(value in own_file.full_text(caught.value) for value in ("Anna", "7654"))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ("1 2 2", [1, 2]),
        ("1 b 2", ["1", "2", "b"]),
        ("01 1 1", ["01", "1"]),
        ("NA None nan -", ["-", "None"]),  # the others are what R and pandas write for a missing label
        ("1e30 0 1", ["0", "1", "1e30"]),
        ("True False 1_0", ["1_0", "False", "True"]),
    ],
)
def test_labels_of_a_csv_file_are_taken_as_they_stand(labels: str, classes: list[Any], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label\n" + "".join(f"1,{label}\n" for label in labels.split()))
    assert datasets.load_dataset(str(tmp_path / "a.csv")).classes == classes


def test_labels_mean_the_same_at_a_party_that_has_numbers_only(tmp_path: Path) -> None:
    """One party's file has the labels 1 and b, another's only 1; one writes integers as floats."""
    spec = HashSpec(n_features=1, hash_dim=4, row_nnz=1, hash_nnz=1, seed=0)
    for text, classes, codes in [
        ("1", ["1", "b"], 0),
        ("b", ["1", "b"], 1),
        ("1", [0, 1], 1),
        ("1.0", [0, 1], 1),
        ("01", ["1", "01"], 1),
    ]:
        (tmp_path / "a.csv").write_text(f"x,label\n7,{text}\n")
        share = own_file.own_share(NodeConfig(data_path=str(tmp_path / "a.csv"), test_fraction=0))
        assert RunSpec(spec, classes).codes(share.y).tolist() == [codes]


PARQUETS = pytest.mark.parametrize("index", [None, "id", ""], ids=["no row labels", "named", "without a name"])


def parquet(path: Path, index: str | None, notes: Any = None) -> None:
    """A Parquet file of pandas, with other notes of pandas in it."""
    import pandas as pd
    import pyarrow.parquet as pq

    rows = None if index is None else pd.Index([7, 9], name=index or None)
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 0.25], "label": ["x", "y"]}, index=rows)
    frame.to_parquet(path, compression=None)
    if notes is not None:
        table = pq.read_table(path)
        given = json.loads(table.schema.metadata[b"pandas"])
        notes = notes(given) if callable(notes) else notes
        pq.write_table(table.replace_schema_metadata({b"pandas": notes}), path)


NOTES: dict[str, Any] = {
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "a list": b"[]",
    "nothing": b"",
    "a number": b"5",
    "deep": b"[" * 10**5,
    "without row labels": lambda notes: notes.pop("index_columns") and json.dumps(notes),
    "row labels that are none": lambda notes: json.dumps(notes | {"index_columns": 5}),
    "the label as row label": lambda notes: json.dumps(notes | {"index_columns": ["label"]}),
}


@READERS
@PARQUETS
@pytest.mark.parametrize("notes", NOTES)
def test_parquet_whose_notes_name_no_row_labels_is_refused(
    read: Any, notes: str, index: str | None, tmp_path: Path
) -> None:
    parquet(tmp_path / "mine.parquet", index, NOTES[notes])
    with raises(DataError, field="mine.parquet") as caught:
        read(NodeConfig(data_path=str(tmp_path / "mine.parquet")))
    assert caught.value.expected in ("a readable .parquet file", "a column 'label'")


HARMLESS: dict[str, Any] = {
    "as they are": None,
    "types": lambda notes: json.dumps(notes).replace("int64", "float128").replace("numpy_type", "numpy_typo"),
    "columns": lambda notes: json.dumps(notes | {"columns": None}),
    "column labels": lambda notes: json.dumps(notes | {"column_indexes": [{"name": 5}]}),
    "range": lambda notes: json.dumps(
        notes | {"index_columns": [*notes["index_columns"], {"kind": "range", "start": "x"}]}
    ),
}


@READERS
@PARQUETS
@pytest.mark.parametrize("notes", HARMLESS)
def test_row_labels_of_a_parquet_file_are_no_features_whatever_else_pandas_notes(
    read: Any, notes: str, index: str | None, tmp_path: Path
) -> None:
    parquet(tmp_path / "mine.parquet", index, HARMLESS[notes])
    share = read(NodeConfig(data_path=str(tmp_path / "mine.parquet"), test_fraction=0.0))
    assert share.X.tolist() == [[1, 0.5], [2, 0.25]]
    assert share.y.tolist() == ["x", "y"]


@READERS
def test_a_damaged_parquet_file_is_refused(read: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    parquet(path, None)
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    no_footer = whole[:footer] + bytes(100) + whole[footer + 100 :]
    no_text = whole.replace(b"\x01\0\0\0x", b"\x01\0\0\0\xff")  # a label
    assert no_text != whole
    for damaged in (b"", b"PAR1", whole[:-1], whole[:100], whole + b"x", no_footer, no_text):
        path.write_bytes(damaged)
        if damaged is no_text:  # no record decides about the file
            share = read(NodeConfig(data_path=str(path), test_fraction=0.0))
            assert share.y.tolist() == ([None, "y"] if read is private_share else ["y"])
            continue
        with raises(DataError, field="mine.parquet", expected="a readable .parquet file"):
            read(NodeConfig(data_path=str(path)))


def test_an_empty_file_is_an_empty_party_but_nothing_to_simulate_with(tmp_path: Path) -> None:
    import pandas as pd

    np.savez(tmp_path / "a.npz", X=np.zeros((0, 2)), y=np.zeros(0))
    (tmp_path / "a.csv").write_text("p,q,label\n")
    pd.DataFrame({"p": [1.0], "q": [2], "label": ["x"]})[:0].to_parquet(tmp_path / "a.parquet")
    for ending in ("npz", "csv", "parquet"):
        path = str(tmp_path / f"a.{ending}")
        share = own_file.own_share(NodeConfig(data_path=path))
        assert share.X.shape == share.X_test.shape == (0, 2)
        assert share.X.dtype.kind == "f"
        assert share.y.shape == (0,)
        with raises(DataError, expected="at least one sample"):
            datasets.simulated_dataset(RunConfig(dataset=path))


def test_sources_that_are_not_there() -> None:
    odd = ("~nosuchuser/a.csv", f"{'a' * 300}.csv", "a\0b.csv")
    for source in ("nowhere.npz", "mnist", "openml:x", "folder.csv/", "x.pkl", *odd):
        with raises(ConfigError, field="dataset"):
            datasets.load_dataset(source)


def test_a_party_does_not_tell_where_its_file_should_be(tmp_path: Path) -> None:
    with raises(ConfigError, field="node-config data-path", got="no such file") as caught:
        own_file.own_share(NodeConfig(data_path=str(tmp_path / "gone.csv")))
    assert str(tmp_path) not in str(caught.value)


def test_a_label_column_is_for_files() -> None:
    with raises(ConfigError, field="label", expected="none with digits", got="species"):
        datasets.simulated_dataset(RunConfig(label="species"))


# -------- hostile files


def npz(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


GOOD_X, GOOD_Y = npy(np.eye(3)), npy(np.arange(3))


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"X.npy": GOOD_X},
        {"X.npy": b"", "y.npy": GOOD_Y},
        {"X.npy": GOOD_X[:-9], "y.npy": GOOD_Y},
        {"X.npy": npy(np.array([[object()]], dtype=object)), "y.npy": GOOD_Y},
        {"X.npy": npy(np.array([[b"a"] * 2] * 3)), "y.npy": GOOD_Y},
        {"X.npy": npy(np.zeros(3)), "y.npy": GOOD_Y},
        {"X.npy": npy(np.zeros((3, 2), complex)), "y.npy": GOOD_Y},
        {"X.npy": npy(np.zeros((3, 2))), "y.npy": npy(np.zeros((3, 1)))},
        {"X.npy": npy(np.zeros((0, 2))), "y.npy": npy(np.zeros(1))},
        {"X.npy": GOOD_X, "y.npy": npy(np.array([b"a", b"b", b"a"]))},
        {"X.npy": GOOD_X, "y.npy": npy(np.array([65, 2**31, 65], "<u4").view("<U1"))},
        {"X.npy": GOOD_X, "y.npy": npy(np.array([1e30, 0, 1]))},
        {"X.npy": npy(np.full((3, 2), np.inf)), "y.npy": GOOD_Y},
        {"X.npy": GOOD_X, "y.npy": npy(np.full(3, np.nan))},
    ],
)
def test_malformed_npz_is_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(npz(members))
    with raises(DataError) as caught:
        datasets.load_dataset(str(path))
    assert caught.value.field.partition(":")[0] == "bad.npz"


def test_a_header_that_promises_terabytes_allocates_nothing(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)})
    path = tmp_path / "bad.npz"
    path.write_bytes(npz({"X.npy": header.getvalue() + bytes(64), "y.npy": GOOD_Y}))
    with raises(DataError, field="bad.npz: not a readable array 'X.npy'"):
        datasets.load_dataset(str(path))


def test_other_compressions_than_numpy_s_are_refused(tmp_path: Path) -> None:
    """LZMA allocates the dictionary that a file asks for: 4 GiB, if it likes."""
    path = tmp_path / "bad.npz"
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path.write_bytes(npz({"X.npy": GOOD_X, "y.npy": GOOD_Y}, method))
        with raises(DataError, field="bad.npz: not a readable array 'X.npy'"):
            datasets.load_dataset(str(path))


def test_a_size_that_no_compression_makes_allocates_nothing(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**3)})
    content = bytearray(npz({"X.npy": header.getvalue(), "y.npy": GOOD_Y}, zipfile.ZIP_DEFLATED))
    entry = content.index(b"PK\x01\x02")  # of X in the directory, where it says how large it is
    content[entry + 24 : entry + 28] = (2**32 - 2).to_bytes(4, "little")
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with traced() as memory, raises(DataError, field="bad.npz: not a readable array 'X.npy'"):
        datasets.load_dataset(str(path))
    assert memory.peak < 2**21


def test_a_partitioner_by_a_column_needs_that_column() -> None:
    options = '{"partition_by": "no such column"}'
    config = RunConfig.parse({"partitioner": "natural-id", "partitioner-options": options})
    expected = "partition_by: a file's column of ids"
    with raises(ConfigError, field="run-config partitioner-options", expected=expected):
        datasets.simulated_shares(config, 3)
