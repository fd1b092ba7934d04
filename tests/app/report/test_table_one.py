"""The section of columns by site: a cell for each site, and no table of many."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from flwr_flynn.app.report.markup import NONE, tag
from flwr_flynn.app.report.table_one import table_one


def report(n_sites: int = 2, **parts: Any) -> dict[str, Any]:
    """A report of sites that are alike, with a column of each kind."""
    sites = [
        {"name": f"site {index}", "rows": 50, "events": 20} for index in range(n_sites)
    ]
    columns = [
        column("age", "years", [], {"rows": [6, 0], "quartiles": [40.0, 51.25, 60.0]}),
        column("sex", "", ["f", "m"], {"rows": [20, 30, 0, 0], "quartiles": None}),
        column("day", "", [], {"rows": None, "quartiles": [0.0, 31.5, 365.0]}, "date"),
        column("ward", "", ["east"], {"rows": None, "quartiles": None}),
    ]
    for entry in columns:
        entry["sites"] *= n_sites
    table = {"sites": sites, "not_shown": [], "columns": columns}
    event = {"label": "ill", "index": 1, "why": "rarer"}
    return {"event": event, "table_one": table | parts}


def column(name: str, unit: str, levels: Any, site: Any, kind: str = "") -> Any:
    return {
        "name": name,
        "kind": kind or ("category" if levels else "number"),
        "unit": unit,
        "levels": levels,
        "sites": [site],
        "differences": {"largest": 0.123 if levels else None, "rest": [0.0]},
    }


def shown(made: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(tag("div", *table_one(made)))


def rows_of(table: ElementTree.Element) -> dict[str, list[str]]:
    lines = [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
    return {name: cells for name, *cells in lines}


def test_each_part_of_a_column_has_a_row_with_a_cell_for_each_site():
    (table,) = shown(report()).iter("table")
    assert rows_of(table) == {
        "column": ["site 0", "site 1"],
        "rows": ["50"] * 2,
        "ill": ["20 (40%)"] * 2,
        "age years": ["51.2 (40 to 60)"] * 2,
        "age years: missing": ["6 (12%)"] * 2,
        "sex (SMD 0.12)": [""] * 2,
        "sex: f": ["20 (40%)"] * 2,
        "sex: m": ["30 (60%)"] * 2,
        "day": ["1970-02-01 (1970-01-01 to 1971-01-01)"] * 2,
        "ward (SMD 0.12)": [""] * 2,
    }


@pytest.mark.parametrize(("n_sites", "sizes"), [(1, [1]), (3, [3]), (7, [3, 3, 1])])
def test_no_table_has_more_than_three_sites_and_the_others_open(n_sites, sizes):
    root = shown(report(n_sites))
    tables = [*root.iter("table")]
    assert [len(rows_of(table)["column"]) for table in tables] == sizes
    assert len([*root.iter("details")]) == len(sizes) - 1


def test_figures_that_are_not_told_are_no_figures():
    made = report()
    made["table_one"]["sites"][1]["events"] = None
    made["table_one"]["columns"][1]["sites"][1] = {"rows": None, "quartiles": None}
    (table,) = shown(made).iter("table")
    rows = rows_of(table)
    assert rows["ill"] == ["20 (40%)", NONE]
    assert rows["sex: f"] == ["20 (40%)", NONE]


def test_sites_that_are_not_shown_are_named():
    text = "".join(shown(report(not_shown=["south", "west"])).itertext())
    assert re.search("south, west", text)


def test_without_a_table_there_is_no_section():
    assert not [*table_one({"event": None, "table_one": None})]
