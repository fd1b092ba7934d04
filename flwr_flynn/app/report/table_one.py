"""Section of a report with the columns by site, as Table 1 of a paper."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flwr_flynn._validation import listed
from flwr_flynn.app.report.markup import NONE
from flwr_flynn.app.report.sections import Items, Report, bounded, more, sentence

_ABREAST = 3  # sites of a table, so that it is no wider than the page


def table_one(report: Report) -> Items:
    """Rows, events and columns by site; sites beyond the first three open."""
    made = report["table_one"]
    if not made:
        return
    introduction = (
        "Training samples; of numbers the median, with the quartiles. SMD is the largest "
        "standardised mean difference between two sites. Rows of levels and gaps are "
        "rounded down to multiples of a site's min-examples; a dash is for too few, or none."
    )
    if made["not_shown"]:
        introduction += f" Not shown: {listed(made['not_shown'])}."
    yield sentence(introduction)
    names = [site["name"] for site in made["sites"]]
    for first in range(0, len(names), _ABREAST):
        shown = slice(first, first + _ABREAST)
        caption = f"Columns at {listed(names[shown])}"
        rows = [*_rows(report, shown)]
        table = bounded(caption, ["column", *names[shown]], rows, "rows", "facts")
        if first:
            table = [more(caption, *table)]
        yield from table


def _rows(report: Report, shown: slice) -> Iterator[list[object]]:
    """Rows of the table of some sites."""
    sites = report["table_one"]["sites"][shown]
    yield ["rows", *(site["rows"] for site in sites)]
    if report["event"]:
        events = [_share(site["events"], site) for site in sites]
        yield [report["event"]["label"], *events]
    for column in report["table_one"]["columns"]:
        entries = column["sites"][shown]
        name = f"{column['name']} {column['unit']}".strip()
        head = name
        difference = column["differences"]["largest"]
        if difference is not None:
            head += f" (SMD {difference:.2f})"
        yield [head, *(_quartiles(entry, column["kind"]) for entry in entries)]
        for index, level in enumerate([*column["levels"], "missing"]):
            told = [entry["rows"] and entry["rows"][index] for entry in entries]
            if any(told):
                yield [f"{name}: {level}", *map(_share, told, sites)]


def _share(n: int | None, site: Report) -> str:
    """Rows of a site, and their share; a dash for too few, or none."""
    if not n:
        return NONE
    return f"{n} ({n / site['rows']:.0%})"


def _quartiles(entry: Report, kind: str) -> str:
    """Median and quartiles, of dates as days; "" without."""
    if entry["quartiles"] is None:
        return ""
    texts = [f"{float(f'{quartile:.3g}'):g}" for quartile in entry["quartiles"]]
    if kind == "date":
        texts = [str(np.datetime64(int(day), "D")) for day in entry["quartiles"]]
    low, middle, high = texts
    return f"{middle} ({low} to {high})"
