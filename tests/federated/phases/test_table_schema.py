"""Tables across parties: the schema learned from summaries, and runs by it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import ConfigError, PayloadError, SchemaError
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.phases.table_schema import SchemaRequest
from flwr_flynn.federated.protocol import Config
from flwr_flynn.federated.run_spec import RUN_ENTRIES, RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.privacy import LaplaceCounts
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.row_wise import encode_rows
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.table_summary import TableSummary
from tests.fakes import tally_of
from tests.federated.runs import DRIVERS, refusal, replied, statistic_of
from tests.federated.secure_runs import secretly
from tests.raising import raises

RNG = np.random.default_rng(3)
N = 120
NAMES = ["no", "perhaps", "yes"]
CODES = RNG.integers(0, 3, N)
LABELS = np.array(NAMES)[CODES]
FRAME = pd.DataFrame(
    {
        "number": np.where(RNG.random(N) < 0.2, np.nan, CODES + RNG.normal(size=N)),
        "text": pd.Series(
            np.where(RNG.random(N) < 0.6, np.array(["a", "b", "c"])[CODES], "d"),
            dtype=object,
        ),
        "date": pd.Timestamp("2020-01-01")
        + pd.to_timedelta(RNG.integers(0, 900, N), unit="D"),
    }
)
FRAME.loc[::9, "text"] = None
PLAN = HashPlan(1, 3, N, "auto", hash_dim=256, hash_nnz=8)
LEARNED: dict[str, Any] = {
    "spec": PLAN,
    "classes": NAMES,
    "learn_schema": True,
    "min_parties": 1,
}


# Columns are in another order at every second party, and one has one more.
SPLITS = {
    "iid": RNG.integers(0, 4, N),
    "by class": CODES,
    "an empty party": RNG.integers(0, 2, N) * 2,
    "a level at one party": np.where(FRAME["text"] == "d", 3, np.arange(N) % 3),
    "one party": np.zeros(N, int),
}


def split(how: str) -> list[dict[str, Any]]:
    """One of five ways to distribute the rows."""
    parts = []
    for party in range(max(SPLITS[how]) + 1):
        is_own = SPLITS[how] == party
        if party % 2:
            frame = FRAME[is_own]
        else:
            frame = FRAME.loc[is_own, FRAME.columns[::-1]]
        if party == 0 and is_own.sum() < 0.4 * N:
            frame = frame.assign(other="more")
        parts.append(
            {
                "X": frame,
                "y": LABELS[is_own],
                "X_test": frame[:5],
                "y_test": LABELS[is_own][:5],
            }
        )
    return parts


def pooled(**options: Any) -> Any:
    return (
        FlyNNClassifier(hash_dim=256, hash_nnz=8, **options).fit(FRAME, LABELS).model_
    )


POOLED = pooled()
SCHEMA = POOLED.schema


@pytest.mark.parametrize(
    ("driver", "how"),
    [*(("in process", how) for how in SPLITS), ("legacy", "iid"), ("message", "iid")],
)
def test_any_split_gives_the_pooled_model(driver, how):
    model = DRIVERS[driver](LEARNED, split(how), min_examples=1).model.model_
    assert model.schema == SCHEMA
    assert model.sha256() == POOLED.sha256()


def test_a_secure_run_with_a_schema_gives_the_same_model():
    options = {
        "spec": replace(PLAN, n_features=SCHEMA.width),
        "classes": NAMES,
        "feature_names": SCHEMA,
    }
    assert (
        secretly(options, split("iid"), bound=128).model.model_.sha256()
        == POOLED.sha256()
    )


def test_a_saved_run_keeps_its_schema(tmp_path):
    first = DRIVERS["in process"](LEARNED, split("iid")[:2], min_examples=1)
    first.federation("first").save(tmp_path / "federation.npz")
    saved = Federation.load(tmp_path / "federation.npz")
    assert saved.run_spec.feature_names == first.model.model_.schema
    run = saved.run_spec
    joining = {"federation": saved, "purpose": "join", "min_parties": 1}
    joining |= {
        "spec": run.specs,
        "classes": run.classes,
        "feature_names": run.feature_names,
    }
    (part,) = split("a level at one party")[3:]
    # Their levels are known, and not asked.
    members = [party_of(share["X"], share["y"]) for share in split("iid")[:2]]
    again = federate(RunOptions(**joining), [*members, party_of(**part, name="new")])
    assert again.counts.n_examples == first.counts.n_examples + int(
        (FRAME["text"] == "d").sum()
    )
    assert again.model.model_.schema == first.model.model_.schema


# ---- at a party


def party(X: Any = FRAME, **options: Any) -> Party:
    return Party(Samples(X, LABELS[: len(X)]), PartyOptions(**options))


def test_few_rows_are_not_told():
    summary = statistic_of(SchemaRequest(NAMES), party(min_examples=40))
    assert summary == TableSummary.of(FRAME, 40)
    # Each party has fewer.
    assert summary.columns["text"].gaps == 0
    assert dict(summary.columns["text"].levels) == {}


def test_a_column_of_another_kind_is_refused_by_its_name():
    parts = split("by class")
    parts[0]["X"] = parts[0]["X"].assign(number="high")
    with pytest.warns(UserWarning, match="column 'number'"):
        run = DRIVERS["in process"](LEARNED | {"min_parties": 2}, parts, min_examples=1)
    assert run.model.model_.schema == SCHEMA
    (reason,) = run.rosters["columns"].missing.values()
    assert "column 'number'" in reason
    assert "kind category" in reason
    assert "high" not in reason


def test_a_run_without_a_schema_names_the_columns_that_need_one():
    request = ColumnsRequest(1, NAMES, ["number"])
    assert "no gaps in a run without a schema" in refusal(
        request, party(FRAME[["number"]].to_numpy()), {}
    )


def test_noisy_counts_by_a_schema_are_of_the_rows_that_fit(tmp_path):
    """Rows with a value that is none, or an unknown label, are left out.

    Rows with gaps and unknown levels are not.
    """
    schema = Schema(
        [Column("a", "number", low=0, high=9), Column("b", "category", ["x", "y"])]
    )
    frame = pd.DataFrame(
        {"b": ["x", "z", None, "x"], "a": ["1", "2.5", "NA", "word"]}, dtype=object
    )
    spec = HashPlan(
        schema.width, 2, 4, ranges=schema.ranges, hash_dim=64, hash_nnz=4
    ).specs()[0]
    mechanism = LaplaceCounts(100.0, hash_nnz=4, n_classes=2)  # with next to no noise
    run = RunSpec(spec, ["no", "yes"], mechanism, feature_names=schema)
    budget = Budget(tmp_path / "state", Policy(100.0, 0.0, ["laplace"]))
    one = Party(Samples(frame, ["no", "yes", "yes", "no"]), PartyOptions(budget=budget))
    X, fits = encode_rows(schema, frame)
    assert fits.tolist() == [True, True, True, False]
    exact = ClassCounts.from_data(FlyHash(spec), X[fits], np.array([0, 1, 1]), 2)
    assert_array_equal(
        statistic_of(CountsRequest(run), one).parts[0].array, exact.array
    )


# ---- at the server


def summary(*columns: Any, n_rows: int = 120) -> bytes:
    return json.dumps({"columns": columns, "n_rows": n_rows, "is_named": True}).encode()


SUMMARIES = [
    b"",
    b"{",
    b"[" * 100_000,
    summary(n_rows=1),
    summary(["a", 121, {"number": 121}, 0, {}, {}, {}], n_rows=121),
    summary(["a", 120, {"number": 120}, 0, {"x" * 300: 1}, {}, {}]),
    # More or fewer fields than a party writes.
    summary(["a", 120, {"number": 120}, 0, {}, {"": 120}]),
    summary(["a", 120, {"number": 120}, 0, {}, {"": 120}, {}, "any text"]),
]


@pytest.mark.parametrize("values", SUMMARIES)
def test_a_summary_of_anything_else_is_refused(values):
    request = SchemaRequest(NAMES)
    arrays = [
        request.layout.fields[0].packed(
            np.frombuffer(values, np.uint8).astype(np.int64)
        )
    ]
    reply = replied(request, party())
    with pytest.raises(PayloadError):
        tally_of(request).read(arrays, reply, None)


def test_a_schema_that_a_server_announces_is_checked():
    run = RunSpec(HashSpec(SCHEMA.width, 64, 2, 4, 0), NAMES, feature_names=SCHEMA)
    assert RunSpec.from_config(Config(run.to_config(), RUN_ENTRIES)) == run
    names = {
        "flynn-feature-names": json.dumps(
            {"columns": [{"name": "a", "kind": "number"}]}
        )
    }
    assert "feature" in refusal(CountsRequest(run), party(), names)


CHANGES = [
    {"spec": HashSpec(4, 64, 2, 4, 0)},
    {"feature_names": ["a"]},
    {"learn_schema": 1},
]


@pytest.mark.parametrize(
    "change", [*CHANGES, {"secure_bound": 64, "min_parties": 3}], ids=str
)
def test_a_schema_is_learned_in_clear_for_a_plan_alone(change):
    with raises(ConfigError, field="learn_schema"):
        RunOptions(**LEARNED | change)


# Spread of the logarithm of a column at sites, and the factors of their units.
FAR_AWAY = [
    pytest.param(0.1, [1, 0.1, 1], [1], id="g/dl in the middle"),
    pytest.param(0.1, [1, 1, 10], [2], id="mg/dl at the end"),
    pytest.param(0.1, [1, 0.1], [0, 1], id="two, and nobody knows which"),
    pytest.param(0.1, [0.1] + 11 * [1], [0], id="one of twelve"),
    pytest.param(0.8, [1, 0.1, 1], [1], id="skewed"),
    pytest.param(0.8, [1, 1, 10], [2], id="skewed, and larger"),
    pytest.param(0.8, [1, 10], [0, 1], id="two of skewed"),
    pytest.param(0.8, [1, 2, 1], [], id="another hospital"),
    pytest.param(0.1, [1, 1, 1], [], id="alike"),
]


@pytest.mark.parametrize(("spread", "factors", "asked"), FAR_AWAY)
def test_parties_whose_values_lie_elsewhere_are_asked_once(
    spread, factors, asked, caplog
):
    """The party's own log asks about the unit. The server learns nothing of it."""
    generator = np.random.default_rng(0)
    parts = []
    for factor in factors:
        crp = factor * np.exp(1.6 + spread * generator.normal(size=100))
        frame = pd.DataFrame({"crp": crp, "day": FRAME["date"][:100]})
        labels = LABELS[:100]
        part = {"X": frame, "y": labels, "X_test": frame[:9], "y_test": labels[:9]}
        parts.append(part)
    DRIVERS["in process"](LEARNED | {"decay": 0.5}, parts, min_examples=1)
    warned = [
        record.args for record in caplog.records if "is the unit the same" in record.msg
    ]
    assert warned == [(f"party-{index}", "crp") for index in asked]


@pytest.mark.parametrize("n", [N, 2])
def test_a_schema_that_needs_too_much_memory_is_refused_before_it_is_applied(
    n,
):
    schema = Schema(
        [
            Column("number", "number"),
            Column("text", "category", [f"l{i}" for i in range(1000)]),
        ]
    )
    run = RunSpec(HashSpec(schema.width, 64, 2, 4, 0), NAMES, feature_names=schema)
    # Held-out rows are encoded, too.
    held = Samples(FRAME[:n], LABELS[:n], FRAME, LABELS)
    reason = refusal(
        CountsRequest(run), Party(held, PartyOptions(memory_limit=2**20)), {}
    )
    assert reason.startswith("memory: n_features 1003, ")


@pytest.mark.parametrize("driver", DRIVERS)
def test_units_that_differ_stop_a_run_by_name(driver):
    """No phase follows: nothing is counted in two units."""
    tables = [
        Table(["crp"], [np.exp(RNG.normal(size=40))], units=units)
        for units in ({"crp": {"mg/l": 40}}, {"crp": {"mg/dl": 40}})
    ]
    parts = [{"X": table, "y": LABELS[:40]} for table in tables]
    with raises(SchemaError, field="columns") as caught:
        DRIVERS[driver](LEARNED, parts)
    text = str(caught.value)
    for part in ("'crp'", "mg/l at", "mg/dl at", ":convert=crp:", ":accept=crp"):
        assert part in text
