"""Section of a report with the columns by site, as Table 1 of a paper."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flwr_flynn._validation import listed
from flwr_flynn.app.report.markup import NONE
from flwr_flynn.app.report.sections import Report, Section, bounded, more, sentence

_ABREAST = 3  # sites of a table, so that it is no wider than the page


def table_one(report: Report) -> Section:
    """Rows, events and columns by site; sites beyond the first three open."""
    title = "Columns by site"
    made = report["table_one"]
    if not made:
        return Section(title, [])
    parts = []
    names = [site["name"] for site in made["sites"]]
    for first in range(0, len(names), _ABREAST):
        shown = slice(first, first + _ABREAST)
        caption = f"Columns at {listed(names[shown])}"
        head = ["column", *names[shown], "difference"]
        rows = [*_rows(report, shown)]
        table = bounded(caption, head, rows, "rows", "facts")
        if first:
            table = [more(caption, *table)]
        parts += table
    introduction = (
        "Training samples; of numbers the median, with the quartiles. The difference is "
        "the largest standardised mean difference between two sites."
    )
    if made["not_shown"]:
        introduction += f" Not shown: {listed(made['not_shown'])}."
    return Section(title, [], [sentence(introduction), *parts])


def _rows(report: Report, shown: slice) -> Iterator[list[object]]:
    """Rows of the table of some sites."""
    sites = report["table_one"]["sites"][shown]
    yield ["rows", *(site["rows"] for site in sites), ""]
    if report["event"]:
        cells = [_share(site["events"], site) for site in sites]
        yield [report["event"]["label"], *cells, ""]
    for column in report["table_one"]["columns"]:
        yield from _lines(column, column["sites"][shown], sites)


def _lines(
    column: Report, entries: list[Report], sites: list[Report]
) -> Iterator[list[object]]:
    """Rows of a column: its quartiles, levels and gaps."""
    name = " ".join(filter(None, (column["name"], column["unit"])))
    difference = column["differences"]["largest"]
    shown = NONE
    if difference is not None:
        shown = f"{difference:.2f}"
    if column["kind"] != "category":
        yield [name, *(_quartiles(entry, column["kind"]) for entry in entries), shown]
        shown = ""
    levels = column["levels"]
    for index, part in enumerate([*levels, "missing"]):
        told = [entry["rows"] and entry["rows"][index] for entry in entries]
        if index < len(levels) or any(told):
            yield [f"{name}: {part}", *map(_share, told, sites), shown]
            shown = ""


def _share(n: int | None, site: Report) -> str:
    """Rows of a site, and their share."""
    if n is None:
        return NONE
    if n < site["floor"] != 1:
        return f"below {site['floor']}"
    return f"{n} ({n / site['rows']:.0%})"


def _quartiles(entry: Report, kind: str) -> str:
    """Median and quartiles, of dates as days."""
    if entry["quartiles"] is None:
        return NONE
    low, middle, high = [f"{quartile:.4g}" for quartile in entry["quartiles"]]
    if kind == "date":
        days = np.array(entry["quartiles"]).astype("datetime64[D]")
        low, middle, high = days.astype(str)
    return f"{middle} ({low} to {high})"
