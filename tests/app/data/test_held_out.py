"""Rows that are held out: the same for every request, order and neighbour, and for a private party by a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn.app.data import datasets
from flwr_flynn.app.data.held_out import HeldOut, keys_of_ids, keys_of_values
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.federated.samples import Samples
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from tests.app.data.private import private_share

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
    read = private_share if is_private else datasets.own_share
    first = held(read(node(path), ("age", "crp")))
    assert 30 < len(first) < 90
    assert {row[::-1] for row in held(read(node(path), ("crp", "age")))} == first
    assert {row[0] for row in held(read(node(path), ("age",)))} == {row[0] for row in first}
    by_schema = private_share(node(path), SCHEMA) if is_private else datasets.encoded_share(node(path), SCHEMA)
    assert {(row[1], row[0]) for row in ((r[0], r[2]) for r in np.asarray(by_schema.X_test).tolist())} == first


@ENDINGS
@pytest.mark.parametrize("is_private", [False, True])
def test_rows_that_come_and_go_move_no_other(ending: str, is_private: bool, tmp_path: Path) -> None:
    """In 0.8 one patient fewer at an update reshuffled the test samples of an open party."""
    path, read = tmp_path / f"mine.{ending}", private_share if is_private else datasets.own_share
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
    path, read = tmp_path / f"mine.{ending}", private_share if is_private else datasets.own_share
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
    assert one != other != held(datasets.own_share(node(tmp_path / "a.csv"), ("age", "crp")))


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
    keys = keys_of_ids(range(20_000))
    assert abs(HeldOut(0.2, b"a").mask(keys).mean() - 0.2) < 0.01
    assert not HeldOut(0.0, b"a").mask(keys).any()


def test_keys_follow_from_what_values_are_and_not_from_the_type_of_their_array() -> None:
    expected = keys_of_values([np.array([1, 2, 3]), np.array([0.5, 1.5, 2.5])])
    for column in (np.array([1.0, 2, 3]), np.array(["1", "2", "3"]), [1, 2, 3], np.array([1, 2, 3], np.uint8)):
        assert keys_of_values([column, [0.5, 1.5, 2.5]]) == expected
    assert keys_of_ids([3, "b"]) == keys_of_ids([3.0, "b"]) == keys_of_ids(["3", "b"])
