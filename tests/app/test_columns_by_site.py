"""Table 1: nothing of fewer rows than a site's floor follows, and its figures are right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flwr_flynn.app.columns_by_site import Site, _head, far_apart, rows_of, table_one
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.protocol import FLOOR
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.column_summary import ColumnSummary, floored
from flwr_flynn.tables.table import Table
from tests.federated.runs import LABELS, NAMES, X, replied

# ---- the law, by all small tables


def tables(n: int, n_cells: int) -> Iterator[tuple[int, ...]]:
    """All tables of `n` rows in so many cells."""
    if n_cells == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for others in tables(n - first, n_cells - 1):
            yield (first, *others)


def published(table: tuple[int, ...], floor: int, n_named: int) -> Any:
    """Rows of a category as they are shown: of named levels, gaps, and other levels."""
    names = [f"level {index}" for index in range(len(table) - 1)]
    rows = {name: n for name, n in zip(names, table, strict=False) if n}
    n_rows = sum(table)
    kinds = {"category": n_rows} if rows else {}
    summary = floored(ColumnSummary(n_rows, kinds, table[-1], rows), floor, 1000)
    shown = rows_of(Column("a", "category", names[:n_named]), summary, floor)
    return shown and tuple(shown)


@pytest.mark.parametrize("floor", [1, 2, 3, 4])
@pytest.mark.parametrize(("n_cells", "n_named"), [(2, 1), (3, 2), (3, 1), (4, 3)])
def test_no_cell_below_the_floor_follows_from_the_others(floor, n_cells, n_named):
    """Whoever knows the number of rows, the rule, and that some cells are empty, cannot
    tell what is in a cell of fewer rows.

    All tables that look alike are compared.
    """
    for n in range(2 * floor, 2 * floor + 9):
        alike = defaultdict(list)
        for table in tables(n, n_cells):
            alike[published(table, floor, n_named)].append(table)
        for group in alike.values():
            for n_empty in range(n_cells):
                for empty in combinations(range(n_cells), n_empty):
                    assert_unknown(group, empty, floor)


def assert_unknown(group: list[tuple[int, ...]], empty: Any, floor: int) -> None:
    possible = [table for table in group if not any(table[i] for i in empty)]
    for column in zip(*possible, strict=True):
        values = {*column}
        assert len(values) != 1 or values.isdisjoint(range(1, floor)), possible


@pytest.mark.parametrize("floor", [1, 2, 3, 5])
def test_no_number_of_events_below_the_floor_follows(floor):
    for n in range(2 * floor, 4 * floor + 4):
        alike = defaultdict(list)
        for table in tables(n, 2):
            head = _head(Site("a", table, floor, np.zeros((1, 32)), {}), 0)
            alike[head["rows"], head["events"]].append(table)
        for group in alike.values():
            assert_unknown(group, (), floor)


def test_with_a_floor_of_one_every_number_is_shown():
    for table in tables(6, 4):
        assert published(table, 1, 3) == (*table, 0)
        assert published(table, 1, 1) == (table[0], table[3], table[1] + table[2])


# ---- whole runs

RNG = np.random.default_rng(5)
SITES = {"a": (1, 60), "b": (1, 90), "c": (5, 80), "d": (5, 70), "e": (5, 9)}


def rows_at(n: int, shift: float) -> tuple[pd.DataFrame, Any]:
    frame = pd.DataFrame(
        {
            "age": np.round(RNG.normal(50 + shift, 10, n), 1),
            "sex": RNG.choice(["f", "m"], n, p=[0.4, 0.6]),
            "day": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(RNG.integers(0, 400, n), unit="D"),
        }
    )
    frame.loc[RNG.random(n) < 0.15, "age"] = np.nan
    frame.loc[RNG.random(n) < 0.1, "sex"] = None
    return frame, np.where(RNG.random(n) < 0.3, "yes", "no")


ROWS = {name: rows_at(n, i * 4) for i, (name, (_, n)) in enumerate(SITES.items())}


def run_of(rows: Any, **consent: bool) -> Any:
    """A run of parties with these rows, some of which agree."""
    parties = [
        party_of(
            *rows[name],
            name=name,
            min_examples=SITES[name][0],
            table_one=consent.get(name, False),
        )
        for name in rows
    ]
    plan = HashPlan(1, 2, 300, "auto", hash_dim=64, hash_nnz=4)
    return federate(
        RunOptions(plan, ["no", "yes"], 1, learn_schema=True, decay=0.5), parties
    )


def table_of(run: Any, event: int | None = 1) -> Any:
    return table_one(run.state, run.counted.counted, event)


RUN = run_of(ROWS, c=True, e=True)
TABLE = table_of(RUN)


def test_sites_that_agree_are_shown_and_the_others_named():
    """A site of fewer than two floors of rows is not shown either."""
    assert [site["name"] for site in TABLE["sites"]] == ["a", "b", "c"]
    assert TABLE["not_shown"] == ["d", "e"]
    for site in TABLE["sites"]:
        y = ROWS[site["name"]][1]
        assert site["rows"] == len(y)
        assert site["events"] == (y == "yes").sum()
    assert table_of(RUN, None)["sites"][0]["events"] is None


def test_no_figure_depends_on_a_site_that_is_not_shown():
    frame, y = ROWS["d"]
    others = frame[::-1].assign(age=frame["age"] + 7, sex=frame["sex"].fillna("f"))
    again = table_of(run_of(ROWS | {"d": (others, y)}, c=True, e=True))
    assert again == TABLE


def test_rows_of_levels_and_gaps_are_exact_without_a_floor_and_rounded_with_one():
    (sex,) = [column for column in TABLE["columns"] if column["name"] == "sex"]
    assert sex["levels"] == ["f", "m"]
    for site, entry in zip("abc", sex["sites"], strict=True):
        known = ROWS[site][0]["sex"]
        exact = [(known == "f").sum(), (known == "m").sum(), known.isna().sum(), 0]
        floor = SITES[site][0]
        assert entry["rows"] == [n // floor * floor for n in exact]
    (age,) = [column for column in TABLE["columns"] if column["name"] == "age"]
    for site, entry in zip("ab", age["sites"], strict=False):
        n_gaps = int(ROWS[site][0]["age"].isna().sum())
        assert entry["rows"] == [n_gaps, 0]


# Spread of the logarithm, the factor at site b, and units there and elsewhere.
FAR_AWAY = [
    pytest.param(0.2, 2.2, None, "", id="age in other years"),
    pytest.param(0.2, 0.45, None, "", id="age in fewer years"),
    pytest.param(0.8, 10, None, "", id="skewed"),
    pytest.param(0.8, 0.1, None, "", id="skewed, and smaller"),
    pytest.param(0.1, 10, {"g/dl": 80}, "g/dl", id="units that are wrong"),
    pytest.param(0.1, 10, {"": 9, "g/dl": 71}, "g/dl", id="one in some rows"),
]


@pytest.mark.parametrize(("spread", "factor", "units", "unit"), FAR_AWAY)
def test_numbers_that_are_far_from_those_of_the_others_are_noticed(
    spread, factor, units, unit
):
    assert far_remarks(spread, 1, units) == []
    (remark,) = far_remarks(spread, factor, units)
    assert remark.column == "age"
    assert [*remark.parties] == ["b"]
    convert, ignore = remark.settings
    assert f"age:{unit}*..." in convert
    assert ignore == ":ignore=age"


def test_a_skewed_column_may_be_twice_as_large_at_a_site():
    assert far_remarks(0.8, 2, None) == []


def far_remarks(spread: float, factor: float, units: Any) -> Any:
    """Remarks on three sites, of which b has numbers larger by a factor."""
    generator = np.random.default_rng(0)
    rows = {}
    for name in "abc":
        age = 50 * np.exp(generator.normal(0, spread, 80))
        own = {"g/dl": 80}
        if name == "b":
            age *= factor
            own = units
        made = Table(["age"], [age])
        if units:
            made = Table(["age"], [age], units={"age": own})
        rows[name] = (made, generator.choice(["no", "yes"], 80))
    return far_apart(table_of(run_of(rows, c=True)))


@pytest.mark.parametrize("name", ["age", "day"])
def test_quartiles_have_their_ranks(name):
    """At a floor they are off by less than two floors of each class."""
    (column,) = [column for column in TABLE["columns"] if column["name"] == name]
    for site, entry in zip("abc", column["sites"], strict=True):
        values = ROWS[site][0][name].dropna()
        if name == "day":
            values = (values - pd.Timestamp("1970-01-01")).dt.days
        floor = SITES[site][0]
        most = 2 * 2 * floor / len(values)
        for share, quartile in zip((0.25, 0.5, 0.75), entry["quartiles"], strict=True):
            assert np.mean(values < quartile) <= share + most
            assert np.mean(values <= quartile) >= share - most


def smd(one: Any, other: Any) -> float:
    """The standardised mean difference of some rows."""
    spread = np.sqrt((np.var(one) + np.var(other)) / 2)
    return float(abs(np.mean(one) - np.mean(other)) / spread)


def test_differences_are_those_of_the_rows():
    sites = {name: ROWS[name] for name in "ab"}
    made = table_of(run_of(sites | {"c": rows_at(300, 30)}, c=False))
    assert made["not_shown"] == ["c"]
    for column in made["columns"]:
        a, b = (ROWS[name][0][column["name"]] for name in "ab")
        if column["name"] == "sex":
            expected = max(smd(a == level, b == level) for level in "fm")
            near = 1e-9
        elif column["name"] == "age":
            expected = smd(a.dropna(), b.dropna())
            near = 0.06
        else:
            days = [(own - a.min()).dt.days for own in (a, b)]
            expected = smd(*days)
            near = 0.06
        largest = column["differences"]["largest"]
        assert largest == pytest.approx(expected, abs=near)


# ---- the flag


@pytest.mark.parametrize(
    ("options", "floor"),
    [
        ({"min_examples": 1}, 1),
        ({"min_examples": 5}, None),
        ({"min_examples": 5, "table_one": True}, 5),
        ({"min_examples": 2, "table_one": True}, 2),
    ],
    ids=str,
)
def test_a_party_sends_its_floor_where_it_agrees(options, floor):
    party = Party(Samples(X, LABELS), PartyOptions(**options))
    reply = replied(ColumnsRequest(4, NAMES), party)
    assert reply.metrics.get(FLOOR) == floor


class Forger(Party):
    """A party that gives any floor."""

    def answer(self, *request: Any) -> Any:
        answer = Party.answer(self, *request)
        if FLOOR in answer.metrics:
            answer.metrics[FLOOR] = FORGED[0]
        return answer


FORGED: list[Any] = [1]


@pytest.mark.parametrize(
    ("floor", "n_shown"),
    [(1, 1), (0, 0), (-1, 0), (True, 0), (1.0, 0), ("1", 0), (None, 0), (2**70, 0)],
    ids=str,
)
def test_a_floor_that_is_none_shows_no_site(floor, n_shown):
    FORGED[0] = floor
    party = Forger(Samples(*ROWS["a"]), PartyOptions(min_examples=1))
    plan = HashPlan(1, 2, 300, "auto", hash_dim=64, hash_nnz=4)
    options = RunOptions(plan, ["no", "yes"], 1, learn_schema=True, decay=0.5)
    made = table_of(federate(options, [party])) or {"sites": []}
    assert len(made["sites"]) == n_shown


def test_a_run_without_a_schema_has_no_table():
    run = federate(
        RunOptions(HashPlan(4, 3, 150, "auto", hash_dim=64), NAMES, 1, decay=0.5),
        [party_of(X, LABELS, name="a", min_examples=1)],
    )
    assert table_of(run) is None


def test_with_a_schema_that_is_given_numbers_alone_are_shown():
    """Rows of levels and gaps travel for a schema that is learned."""
    schema = RUN.state.run_spec.feature_names
    plan = HashPlan(schema.width, 2, 300, "auto", hash_dim=64, hash_nnz=4)
    options = RunOptions(plan, ["no", "yes"], 1, feature_names=schema, decay=0.5)
    made = table_of(federate(options, [party_of(*ROWS["a"], min_examples=1)]))
    for column in made["columns"]:
        (entry,) = column["sites"]
        assert entry["rows"] is None
        assert (entry["quartiles"] is None) == (column["kind"] == "category")
