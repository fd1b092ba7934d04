"""Rows that are held out: the same for every request, order and neighbour, and for a private party by a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn.app.data import own_file
from flwr_flynn.app.data.source import HeldOut, row_keys
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.samples import Samples
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from tests.app.data.private import private_share
from tests.raising import raises

RNG = np.random.default_rng(3)
COLUMNS: dict[str, Any] = {
    "age": RNG.integers(20, 90, 200).tolist(),
    "crp": np.round(RNG.normal(5, 2, 200), 2).tolist(),
    "patient": [f"p{i // 3}" for i in range(200)],
    "label": ["ill" if i % 4 else "well" for i in range(200)],
}
ENDINGS = pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
SCHEMA = Schema([Column("crp", "number"), Column("age", "number")])


def write(path: Path, columns: dict[str, Any], rows: Any = slice(None)) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns).iloc[rows]
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        names = [name for name in columns if name not in ("label", "patient")]
        np.savez(
            path,
            X=frame[names].to_numpy(),
            label=frame["label"].to_numpy(str),
            patient=frame["patient"].to_numpy(str),
            feature_names=np.array(names),
        )


def held(share: Samples) -> set[tuple[float, ...]]:
    assert len(share.X_test) == len(share.y_test)
    rows = np.asarray(share.X_test if not hasattr(share.X_test, "columns") else np.column_stack(share.X_test.columns))
    return {tuple(row[:2]) for row in rows.tolist()}


def node(path: Path, **more: Any) -> NodeConfig:
    return NodeConfig(data_path=str(path), label="label", test_fraction=0.3, evaluate=True, **more)


@ENDINGS
@pytest.mark.parametrize("is_private", [False, True])
def test_no_request_has_a_part_in_it(ending: str, is_private: bool, tmp_path: Path) -> None:
    """In 0.8 a server saw other rows of a private party evaluated by each order of the same features."""
    path = tmp_path / f"mine.{ending}"
    write(path, COLUMNS)
    read = private_share if is_private else own_file.own_share
    first = held(read(node(path), ("age", "crp")))
    assert 30 < len(first) < 90
    assert {row[::-1] for row in held(read(node(path), ("crp", "age")))} == first
    assert {row[0] for row in held(read(node(path), ("age",)))} == {row[0] for row in first}
    by_schema = private_share(node(path), SCHEMA) if is_private else own_file.encoded_share(node(path), SCHEMA)
    assert {(row[1], row[0]) for row in ((r[0], r[2]) for r in np.asarray(by_schema.X_test).tolist())} == first


@ENDINGS
@pytest.mark.parametrize("is_private", [False, True])
def test_rows_that_come_and_go_move_no_other(ending: str, is_private: bool, tmp_path: Path) -> None:
    """In 0.8 one patient fewer at an update reshuffled the test samples of an open party."""
    path, read = tmp_path / f"mine.{ending}", private_share if is_private else own_file.own_share
    write(path, COLUMNS)
    whole = held(read(node(path), ("age", "crp")))
    for rows in ([i for i in range(200) if i != 7], np.random.default_rng(1).permutation(200), range(50, 150)):
        write(path, COLUMNS, list(rows))
        there = {(COLUMNS["age"][i], COLUMNS["crp"][i]) for i in rows}
        assert held(read(node(path), ("age", "crp"))) == whole & there


@ENDINGS
@pytest.mark.parametrize("is_private", [False, True])
def test_rows_of_one_patient_stay_together_and_a_corrected_cell_moves_none(
    ending: str, is_private: bool, tmp_path: Path
) -> None:
    path, read = tmp_path / f"mine.{ending}", private_share if is_private else own_file.own_share
    chosen = node(path, held_out_key="patient")
    write(path, COLUMNS)
    before = held(read(chosen, ("age", "crp")))
    groups: dict[str, set[bool]] = {}
    for age, crp, patient in zip(COLUMNS["age"], COLUMNS["crp"], COLUMNS["patient"], strict=True):
        groups.setdefault(patient, set()).add((age, crp) in before)
    assert all(len(sides) == 1 for sides in groups.values())
    assert 0 < sum(side == {True} for side in groups.values()) < len(groups)
    write(path, {**COLUMNS, "crp": [value + 100 for value in COLUMNS["crp"]]})
    assert {(age, round(crp - 100, 2)) for age, crp in held(read(chosen, ("age", "crp")))} == before
    features = read(chosen).X
    assert (len(features.columns) if hasattr(features, "columns") else features.shape[1]) == 2  # ids are none


def test_a_private_party_s_secret_decides(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", COLUMNS)
    one, other = (held(private_share(node(tmp_path / "a.csv"), ("age", "crp"), secret)) for secret in (b"1", b"2"))
    assert one != other != held(own_file.own_share(node(tmp_path / "a.csv"), ("age", "crp")))


def test_the_secret_of_a_party_is_made_once_and_outlives_a_reset(tmp_path: Path) -> None:
    budget = Budget(tmp_path / "state", Policy(1.0))
    secret = budget.secret()
    assert len(secret) == 32
    assert Budget(tmp_path / "elsewhere", Policy(1.0)).secret() != secret
    assert not budget.is_begun
    budget.reset()
    assert Budget(tmp_path / "state", Policy(2.0)).secret() == secret
    assert budget.has(tmp_path / "state.secret")
    assert (tmp_path / "state.secret").stat().st_mode & 0o777 == 0o600


def test_a_share_of_all_rows_is_held_out() -> None:
    keys = row_keys([np.arange(20_000)])
    assert abs(HeldOut(0.2, b"a").mask(keys).mean() - 0.2) < 0.01
    assert not HeldOut(0.0, b"a").mask(keys).any()


def test_keys_follow_from_what_values_are_and_not_from_the_type_of_their_array() -> None:
    expected = row_keys([np.array([1, 2, 3]), np.array([0.5, 1.5, 2.5])])
    for column in (
        *(np.array([1.0, 2, 3]), np.array(["1", "2", "3"]), [1, 2, 3], np.array([1, 2, 3], np.uint8)),
        *(np.array([1, 2, 3 + 0j]), ["1", " 2", "3.0"], ["1", 2, 3.0], [np.float16(1), 2, 3]),
    ):
        assert row_keys([column, [0.5, 1.5, 2.5]]) == expected
    assert row_keys([], [3, "b"]) == row_keys([], [3.0, "b"]) == row_keys([], ["3", "b"])


def test_a_value_is_the_same_alone_as_among_others() -> None:
    odd: list[Any] = [1, 2.5, None, "x", "", "NA", "1_0", "nan", "1e999", -0.0, 0, True, "True", b"\xff", 10**400]
    odd += ["3", 1j, "a\x1f"]
    (whole,) = [row_keys([odd])]
    assert [row_keys([[value]])[0] for value in odd] == whole
    assert whole[odd.index(None)] == whole[odd.index("")] == whole[odd.index("NA")] != whole[odd.index("x")]


@ENDINGS
@pytest.mark.parametrize("is_private", [False, True])
def test_the_order_of_columns_moves_no_row(ending: str, is_private: bool, tmp_path: Path) -> None:
    read, sides = private_share if is_private else own_file.own_share, []
    for index, order in enumerate((("age", "crp", "patient", "label"), ("label", "patient", "crp", "age"))):
        path = tmp_path / f"{index}.{ending}"
        write(path, {name: COLUMNS[name] for name in order})
        sides.append(held(read(node(path), ("age", "crp"))))
    assert sides[0] == sides[1] != set()


@pytest.mark.parametrize("is_private", [False, True])
def test_rows_without_an_id_are_held_out_one_by_one(is_private: bool, tmp_path: Path) -> None:
    read, path = private_share if is_private else own_file.own_share, tmp_path / "a.csv"
    write(path, {**COLUMNS, "patient": ["" if i % 2 else f"p{i // 6}" for i in range(200)]})
    found = held(read(node(path, held_out_key="patient"), ("age", "crp")))
    without = [(COLUMNS["age"][i], COLUMNS["crp"][i]) for i in range(1, 200, 2)]
    assert 10 < sum(row in found for row in without) < 60


def test_labels_are_no_ids() -> None:
    for settings in ({"held-out-key": "label"}, {"held-out-key": "y"}, {"held-out-key": "ill", "label": "ill"}):
        with raises(ConfigError, field="node-config held-out-key"):
            NodeConfig.parse({"data-path": "a.csv", **settings})
