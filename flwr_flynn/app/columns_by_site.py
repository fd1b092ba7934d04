"""Table 1: columns by site, from what sites told in the phases "schema" and "columns".

A site with a disclosure floor of k rows tells numbers of rows as multiples of k, rounded
down. As the number of all of its rows is known, a smaller one could still follow. So the
rows of levels are shown only where all that are not told could be 0: where the rest of
the rows is at most k - 1 for each number that is told. Sites of fewer than 2 k rows are
not shown, and nothing is added up over sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flwr_flynn._types import Floats
from flwr_flynn._validation import listed
from flwr_flynn.federated.phase import RunState
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.unit_warnings import FAR, apart
from flwr_flynn.model.metrics import Figures
from flwr_flynn.tables.column_encoding import Column, level_codes
from flwr_flynn.tables.column_summary import ColumnSummary
from flwr_flynn.tables.remarks import UNKNOWN, Remark, conversion, named
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import form_of
from flwr_flynn.tables.texts import CONVERTED

_MOST_COLUMNS = 200
_DRAWN = 100  # times that edges of sites stand for all samples together
_UNTOLD = ColumnSummary(0, {})


class Site(NamedTuple):
    """Figures that a site which agrees to be shown has told."""

    name: str
    sizes: Sequence[int]
    """Samples of each class."""
    floor: int
    edges: Floats
    """Quantiles of each number of a row, (d, 32), see `ColumnHistograms.edges`."""
    columns: Mapping[str, ColumnSummary]
    """Summaries by the forms of their names; none without a learned schema."""


def table_one(
    state: RunState, members: Sequence[Member], event: int | None
) -> Figures | None:
    """Rows, events and columns by site, and differences between sites, for JSON.

    None where no site is shown, or the run has no schema.
    """
    told = getattr(state.results.get("columns"), "sites", {})
    tables = getattr(state.results.get("schema"), "tables", {})
    sites = []
    for member in members:
        floor, edges = told.get(member.node, (0, None))
        if floor and member.sizes and sum(member.sizes) >= 2 * floor:
            columns = tables.get(member.node, {})
            sites.append(Site(str(member), member.sizes, floor, edges, columns))
    schema = state.run_spec.features
    if not sites or not isinstance(schema, Schema):
        return None
    entries = []
    first = 0
    for column in schema.columns[:_MOST_COLUMNS]:
        entries.append(_column(column, first, sites))
        first += column.width
    return {
        "sites": [_head(site, event) for site in sites],
        "not_shown": sorted({*map(str, members)} - {site.name for site in sites}),
        "columns": entries,
    }


def far_apart(table: Figures) -> list[Remark]:
    """Remarks on numbers of a site that are far from those of the others."""
    remarks = []
    for column in table["columns"]:
        rest = column["differences"]["rest"]
        for site, difference in zip(table["sites"], rest, strict=True):
            if column["kind"] == "number" and difference > FAR:
                name = column["name"]
                far = f"{difference:.1f} standard deviations from the other sites"
                text = f"{far}; another unit, or a code of missing values?"
                convert = conversion(name, {column["unit"]: UNKNOWN})
                settings = [convert, f":ignore={named(name)}"]
                remarks.append(Remark(name, text, settings, [site["name"]]))
    return remarks


def _head(site: Site, event: int | None) -> Figures:
    """Rows of a site, and its events where they and the others are enough."""
    rows = sum(site.sizes)
    events = None
    if event is not None:
        events = site.sizes[event]
        if min(events, rows - events) in range(1, site.floor):
            events = None
    return {"name": site.name, "rows": rows, "events": events}


def rows_of(column: Column, summary: ColumnSummary, floor: int) -> list[int] | None:
    """Rows of each level, with gaps, and of other levels, as told.

    None where smaller numbers would follow, or the site has no such column.
    """
    code = level_codes(column)
    told = [0] * (len(column.levels) + 2)
    told[-2] = summary.gaps
    for level, n in summary.levels.items():
        told[code(level)] += n
    rest = summary.n_rows - sum(told)
    most = (floor - 1) * (len(told) - told.count(0))
    is_hidden = column.kind == "category" and floor > 1 and rest > most
    if is_hidden or not summary.n_rows:
        return None
    return told


def _column(column: Column, first: int, sites: Sequence[Site]) -> Figures:
    """Rows of levels and gaps, and quartiles, of a column by site."""
    units = set[str]()
    entries = []
    means = np.full((len(sites), len(column.levels) or 1), np.nan)
    variances = means.copy()
    for index, site in enumerate(sites):
        summary = site.columns.get(form_of(column.name), _UNTOLD)
        units |= summary.units.keys() - {"", CONVERTED}
        rows = rows_of(column, summary, site.floor)
        quartiles = None
        edges = site.edges[first]
        if column.kind != "category" and np.isfinite(edges).all():
            quartiles = (edges[[7, 15, 23]] / 2 + edges[[8, 16, 24]] / 2).tolist()
            means[index] = edges.mean()
            variances[index] = edges.var()
        elif rows and column.levels:
            means[index] = np.divide(rows[:-2], summary.n_rows)
            variances[index] = means[index] * (1 - means[index])
        entries.append({"rows": rows, "quartiles": quartiles})
    edges = np.array([site.edges[first] for site in sites])
    sizes = np.array([sum(site.sizes) for site in sites])
    every = np.repeat(edges, 1 + _DRAWN * sizes // sizes.sum(), axis=0)
    every = np.sort(every[np.isfinite(every)])
    return {
        "name": column.name,
        "kind": column.kind,
        "unit": column.unit or listed(sorted(units)),
        "levels": [*column.levels],
        "sites": entries,
        "differences": {
            "largest": _largest(means, variances),
            "rest": [apart(own, every) for own in edges],
        },
    }


def _largest(means: Floats, variances: Floats) -> float | None:
    """The largest standardised mean difference between two sites, None without any.

    Of the numbers of a column, (sites, numbers), it is the largest.
    """
    with np.errstate(all="ignore"):
        pairs = np.abs(means[:, None] - means)
        pairs /= np.sqrt((variances[:, None] + variances) / 2)
    return max(pairs[np.isfinite(pairs)].tolist(), default=None)
