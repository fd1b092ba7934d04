"""Rows that are held out: the same for every request, order and neighbour.

A private party holds them out by a secret.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn.app.data import own_file, table_file
from flwr_flynn.app.data.held_out import HeldOut, id_keys, row_keys
from flwr_flynn.app.data.own_file import counter_of_file, opened
from flwr_flynn.app.data.source import Reading
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.federated.party import Party, PartyOptions
from flwr_flynn.federated.phases.table_schema import SchemaRequest
from flwr_flynn.federated.protocol import REFUSED
from flwr_flynn.federated.samples import Samples
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from tests.app.data.files import ENDINGS, READERS, node, written
from tests.app.data.private import private_share
from tests.fakes import config_of
from tests.federated.runs import statistic_of

RNG = np.random.default_rng(3)
ASK = SchemaRequest(("0", "1", "a", "x", "ill", "well"))
COLUMNS: dict[str, Any] = {
    "age": RNG.integers(20, 90, 200).tolist(),
    "crp": np.round(RNG.normal(5, 2, 200), 2).tolist(),
    "patient": [f"p{i // 3}" for i in range(200)],
    "label": ["well", "ill", "ill", "ill"] * 50,
}
SCHEMA = Schema([Column("crp", "number"), Column("age", "number")])


def held(share: Samples) -> set[tuple[float, ...]]:
    """The first two features of the samples that are held out."""
    assert len(share.X_test) == len(share.y_test)
    rows = share.X_test
    if hasattr(rows, "columns"):
        rows = np.column_stack(rows.columns)
    return {tuple(row[:2]) for row in np.asarray(rows).tolist()}


def own(path: Path, columns: dict[str, Any] = COLUMNS, **settings: Any) -> NodeConfig:
    """A party that holds three in ten rows of its file out."""
    return node(written(path, columns), test_fraction=0.3, evaluate=True, **settings)


@ENDINGS
@READERS
def test_neither_requests_nor_orders_of_columns_have_a_part_in_it(
    ending, read, tmp_path
):
    """A server must not see other rows evaluated by another order of the features.

    In 0.8 it did, at a private party.
    """
    read_by_schema = own_file.encoded_share
    if read is private_share:
        read_by_schema = private_share
    party = own(tmp_path / f"mine.{ending}")
    first = held(read(party, ("age", "crp")))
    assert 30 < len(first) < 90
    assert {row[::-1] for row in held(read(party, ("crp", "age")))} == first
    assert {row[0] for row in held(read(party, ("age",)))} == {row[0] for row in first}
    by_schema = np.asarray(read_by_schema(party, SCHEMA).X_test)
    assert {(row[2], row[0]) for row in by_schema.tolist()} == first
    other = own(
        tmp_path / f"other.{ending}",
        {name: COLUMNS[name] for name in ("label", "patient", "crp", "age")},
    )
    assert held(read(other, ("age", "crp"))) == first


@ENDINGS
@READERS
def test_rows_that_come_and_go_move_no_other(ending, read, tmp_path):
    """In 0.8 one patient fewer reshuffled the test samples of an open party."""
    whole = held(read(own(tmp_path / f"mine.{ending}"), ("age", "crp")))
    for rows in (
        [i for i in range(200) if i != 7],
        np.random.default_rng(1).permutation(200),
        range(50, 150),
    ):
        part = {name: [values[i] for i in rows] for name, values in COLUMNS.items()}
        rest = held(read(own(tmp_path / f"part.{ending}", part), ("age", "crp")))
        assert rest == whole & {*zip(part["age"], part["crp"], strict=True)}


@ENDINGS
@READERS
def test_rows_of_one_patient_stay_together_and_a_corrected_cell_moves_none(
    ending, read, tmp_path
):
    party = own(tmp_path / f"mine.{ending}", held_out_key="patient")
    before = held(read(party, ("age", "crp")))
    groups: dict[str, set[bool]] = {}
    for age, crp, patient in zip(
        COLUMNS["age"], COLUMNS["crp"], COLUMNS["patient"], strict=True
    ):
        groups.setdefault(patient, set()).add((age, crp) in before)
    assert all(len(sides) == 1 for sides in groups.values())
    assert 0 < sum(side == {True} for side in groups.values()) < len(groups)
    corrected = [value + 100 for value in COLUMNS["crp"]]
    own(tmp_path / f"mine.{ending}", {**COLUMNS, "crp": corrected})
    after = held(read(party, ("age", "crp")))
    assert {(age, round(crp - 100, 2)) for age, crp in after} == before


@ENDINGS
@READERS
def test_the_ids_that_keep_rows_together_are_no_feature(ending, read, tmp_path):
    party = own(tmp_path / f"mine.{ending}", held_out_key="patient")
    assert read(party).X.shape[1] == 2


def summary_told(settings: NodeConfig) -> Any:
    """The summary of its columns that a party with these settings tells."""
    options = PartyOptions(min_examples=settings.min_examples)
    party = Party(partial(own_file.own_share, settings), options)
    return statistic_of(ASK, party)


@ENDINGS
def test_what_rows_of_few_patients_share_stays_at_home(ending, tmp_path):
    """The floor counts patients where ids are known.

    Before, names of patients with six visits each stood in a model.
    """
    who = np.repeat(np.arange(40), 6)
    columns = {
        # Towns of 5, 4 and 31 patients.
        "town": np.where(who < 5, "Ulm", np.where(who < 9, "Bonn", "Bern")),
        "name": np.array([f"patient {i}" for i in who]),
        "four": np.where(who < 4, "", "a"),
        "five": np.where(who < 5, "", "a"),
    }
    content = {name: values.tolist() for name, values in columns.items()}
    path = written(
        tmp_path / f"mine.{ending}",
        {**content, "patient": [f"p{i}" for i in who], "label": (who % 2).tolist()},
    )
    party = node(path, held_out_key="patient")
    by_patients = summary_told(party).columns
    levels = {name: {*column.levels} for name, column in by_patients.items()}
    gaps = {name: column.gaps for name, column in by_patients.items()}
    assert levels == {
        "town": {"Ulm", "Bern"},
        "name": set(),
        "four": {"a"},
        "five": {"a"},
    }
    assert gaps == {"town": 0, "name": 0, "four": 0, "five": 30}
    label = "label"
    if ending == "npz":
        label = "y"
    by_rows = counter_of_file(opened(path, Reading(label)), 5).summary().columns
    assert {*by_rows["town"].levels} == {"Ulm", "Bonn", "Bern"}
    assert len(by_rows["name"].levels) == 40
    assert by_rows["four"].gaps == 20


def test_an_entry_too_many_passes_no_floor(tmp_path):
    """In 0.8 names of features beside a schema request had the file loaded otherwise.

    Then the names of patients with six rows each were told.
    """
    who = np.repeat(np.arange(40), 6)
    columns = {"name": [f"patient {i}" for i in who], "age": (20 + who).tolist()}
    path = written(
        tmp_path / "mine.csv",
        {**columns, "patient": who.tolist(), "label": (who % 2).tolist()},
    )
    settings = node(path, held_out_key="patient")
    party = Party(partial(own_file.own_share, settings), PartyOptions())
    entries = {"flynn-feature-names": json.dumps(["name", "age"])}
    answer = party.answer({**config_of(ASK), **entries})
    assert answer.arrays == []
    assert str(answer.metrics[REFUSED]).startswith("flynn-feature-names: ")
    # Nor does it matter by which loader the samples come.
    for features in ((), ("name", "age")):
        share = own_file.own_share(settings, features)
        given = Party(share, PartyOptions())
        summary = statistic_of(ASK, given)
        assert not any(column.levels for column in summary.columns.values())


@pytest.mark.parametrize("n_texts", [0, 1, 4, 5])
def test_few_texts_beside_numbers_are_no_column_to_be_told(n_texts, tmp_path):
    """In 0.8 its name told that some row has a text where others have a number."""
    ages = [*["< 1"] * n_texts, *map(str, range(20, 60))]
    path = written(tmp_path / "mine.csv", {"age": ages, "label": ["a"] * len(ages)})
    names = ["age"]
    if n_texts >= 5:
        names.append("age text")
    assert [*summary_told(node(path)).columns] == names


def test_a_refusal_counts_no_column_of_texts_beside_numbers(tmp_path):
    texts = [["30"], ["30", "< 1"]]
    reasons = []
    for rows in texts:
        ages = [*rows, *map(str, range(20, 60))]
        content = {"age": ages, "crp": ["inf", *["1.5"] * (len(ages) - 1)]}
        path = written(tmp_path / "a.csv", {**content, "label": ["x"] * len(ages)})
        party = Party(partial(own_file.own_share, node(path)), PartyOptions())
        reasons.append(party.answer(config_of(ASK)).metrics[REFUSED])
    assert reasons[0] == reasons[1]
    assert "1 of 2 features" in str(reasons[0])


def test_a_table_in_memory_is_counted_at_once(tmp_path, monkeypatch):
    """The few rows of a wide file that are read at a time do not decide about kinds.

    In them nearly all values differ, and no text stands often.
    """
    monkeypatch.setattr(table_file, "MOST_ROWS", 40)
    who = np.repeat(np.arange(100), 4)
    content = {
        "size": RNG.normal(5000, 100, 400).round().tolist(),
        "ward": [f"w{i % 20}" for i in range(400)],
    }
    path = written(
        tmp_path / "a.csv",
        {**content, "patient": who.tolist(), "label": (who % 2).tolist()},
    )
    summary = summary_told(node(path, held_out_key="patient"))
    kinds = {name: column.kind for name, column in summary.columns.items()}
    assert kinds == {"size": "number", "ward": "category"}
    assert len(summary.columns["ward"].levels) == 20


WHO = np.repeat(np.arange(40), 6)
NUMBERS = 2**59 + WHO.astype(np.int64)


def with_ids(path: Path, ids: Any, kind: str | None = None) -> NodeConfig:
    """A party with six rows of each patient, whose ids are of an Arrow type."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    types = {None: None, "timestamp": pa.timestamp("ns"), "fixed": pa.binary(8)}
    table = {
        "x": WHO % 2,
        "town": np.where(WHO < 20, "Ulm", "Bern"),
        "label": WHO % 2,
        "patient": pa.array(ids, types[kind]),
    }
    pq.write_table(pa.table(table), path)
    return node(path, test_fraction=0.3, held_out_key="patient")


@pytest.mark.parametrize(
    ("ids", "kind"),
    [(NUMBERS, None), (WHO * 10**9, "timestamp")],
    ids=["int64", "timestamp"],
)
def test_ids_of_numbers_and_dates_keep_rows_together(ids, kind, tmp_path):
    party = with_ids(tmp_path / "a.parquet", ids, kind)
    assert {*summary_told(party).columns["town"].levels} == {"Ulm", "Bern"}
    assert 20 < len(own_file.own_share(party, ("x",)).y_test) < 120


@READERS
@pytest.mark.parametrize("kind", [None, "fixed"], ids=["binary", "fixed"])
def test_ids_of_any_type_keep_rows_together(kind, read, tmp_path):
    """One id of bytes among texts, or a UUID, had refused a private party's file."""
    ids = [number.tobytes() for number in NUMBERS]
    party = with_ids(tmp_path / "a.parquet", ids, kind)
    n_held_out = len(read(replace(party, evaluate=True), ("x",)).y_test)
    assert 20 < n_held_out < 120
    assert n_held_out % 6 == 0


def test_ids_in_x_of_an_npz_file_are_no_feature(tmp_path):
    ids = np.arange(20.0)
    path = tmp_path / "a.npz"
    np.savez(
        path,
        X=np.stack([ids, ids % 3, ids], axis=1),
        feature_names=["pid", "age", ""],
        y=ids % 2,
        pid=ids,
    )
    assert own_file.own_share(node(path, held_out_key="pid")).names == ("age",)
    assert own_file.own_share(node(path)).names == ("pid", "age")


def test_long_ids_differ_by_their_last_digit():
    numbers = [202400000000000123 + i for i in range(3)]
    keys = id_keys(numbers)
    assert len({*keys}) == 3
    texts = [f" {number}" for number in numbers]
    assert keys == id_keys(texts)
    assert keys == id_keys(np.array(numbers))
    assert keys == id_keys([text.encode() for text in texts])
    for number in (7, 2024000000000123):
        (key,) = id_keys([number])
        assert id_keys([f"{number}", f"{number}.0", float(number)]) == [key] * 3


@READERS
def test_rows_without_an_id_are_held_out_one_by_one(read, tmp_path):
    ids = [f"p{i // 6}" for i in range(200)]
    ids[1::2] = [""] * 100
    columns = {**COLUMNS, "patient": ids}
    party = own(tmp_path / "a.csv", columns, held_out_key="patient")
    rows = held(read(party, ("age", "crp")))
    without = [*zip(COLUMNS["age"][1::2], COLUMNS["crp"][1::2], strict=True)]
    assert 10 < sum(row in rows for row in without) < 60


def test_a_private_party_s_secret_decides(tmp_path):
    party = own(tmp_path / "a.csv")
    features = ("age", "crp")
    one = held(private_share(party, features, b"1"))
    other = held(private_share(party, features, b"2"))
    assert one != other
    assert other != held(own_file.own_share(party, features))


def test_the_secret_of_a_party_is_made_once_and_outlives_a_reset(tmp_path):
    budget = Budget(tmp_path / "state", Policy(1.0))
    secret = budget.secret()
    assert len(secret) == 32
    assert Budget(tmp_path / "elsewhere", Policy(1.0)).secret() != secret
    assert not budget.is_begun
    budget.reset()
    assert Budget(tmp_path / "state", Policy(2.0)).secret() == secret
    assert budget.has(tmp_path / "state.secret")
    assert (tmp_path / "state.secret").stat().st_mode & 0o777 == 0o600


def test_a_share_of_all_rows_is_held_out():
    keys = row_keys([np.arange(20_000)])
    assert abs(HeldOut(0.2, b"a").mask(keys).mean() - 0.2) < 0.01
    assert not HeldOut(0.0, b"a").mask(keys).any()


def test_keys_follow_from_what_values_are_and_not_from_the_type_of_their_array():
    expected = row_keys([np.array([1, 2, 3]), np.array([0.5, 1.5, 2.5])])
    for column in (
        np.array([1, 2, 3], np.uint8),
        ["1", " 2", "3.0"],
        ["1", 2, 3.0],
        [np.float16(1), 2, 3],
    ):
        assert row_keys([column, [0.5, 1.5, 2.5]]) == expected
    for label in (3.0, "3"):
        assert row_keys([], [label, "b"]) == row_keys([], [3, "b"])
    for gap in ("", "NA", np.nan):
        assert row_keys([[gap, "x"]]) == row_keys([[None, "x"]])
