"""Renderings of a report: the table at the end of the log, `report.html`, and
`left.html`.

The page loads nothing. Names and reasons come from the parties: they are cut here to
what the page shows, and escaped where it is made.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr_flynn.app.report.accuracy_sections import (
    confusion,
    probability_section,
    subgroups,
)
from flwr_flynn.app.report.event_sections import in_short, sample_size, sites, use
from flwr_flynn.app.report.left_page import edges, recipients, words
from flwr_flynn.app.report.markup import Markup, plural, shortened, tag, whole_page
from flwr_flynn.app.report.reporting_items import reporting_items
from flwr_flynn.app.report.sections import (
    EQUALITIES,
    Items,
    Part,
    Report,
    bounded,
    equality,
    guarantee,
    model,
    more,
    noticed,
    participation,
    privacy,
    settings,
    skew,
    traffic,
)
from flwr_flynn.app.report.set_section import prediction_sets
from flwr_flynn.app.report.table_one import table_one

_LONGEST = 4000  # characters of a guarantee or a setting; `LONGEST` of all other texts

Sections = Mapping[str, Callable[[Report], Items]]

SECTIONS: Sections = {
    "In short": in_short,
    "Figures": probability_section,
    "Use": use,
    "Sets": prediction_sets,
    "By site": sites,
    "Subgroups": subgroups,
    "Confusion": confusion,
    "Who took part": participation,
    "Classes by party": skew,
    "Columns by site": table_one,
    "Model": model,
    "What was noticed": noticed,
    "Sample size": sample_size,
    "TRIPOD+AI": reporting_items,
    "What left the sites": traffic,
    "Privacy": privacy,
    "Equality": equality,
    "Settings": settings,
}
"""Sections by their titles, in their order."""

_LEFT: Sections = {
    "Recipients": recipients,
    "Names, levels and words": words,
    "Values of columns": edges,
    "What left the sites": traffic,
    "Who took part": participation,
    "Privacy": privacy,
}
"""Those of the page for a data-protection officer."""


def log_table(report: Report, folder: Path) -> list[str]:
    """The facts of a report, as lines."""
    facts = [
        item
        for make in SECTIONS.values()
        for item in make(report)
        if isinstance(item, tuple)
    ]
    facts.append(("output folder", str(folder)))
    width = max(len(name) for name, _ in facts)
    lines = [f"  {name:<{width}}  {text}" for name, text in facts]
    for text in guarantee(report):
        lines += [
            "",
            *textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="  "),
        ]
    return ["", "FlyNN", *lines, ""]


# ---- the page


def page(report: Report) -> str:
    """The page of a report."""
    title = (
        f"{report['action'].capitalize()} with "
        f"{plural(len(report['parties']), 'party', 'parties')}"
    )
    fault = None
    if any(report["sha256"].get(name) is False for name in EQUALITIES):
        words = "The model DIFFERS from that of the pooled data."
        fault = tag("p", words, class_="fault")
    return _page(report, title, SECTIONS, fault)


def left_page(report: Report) -> str:
    """The page about what left the sites."""
    return _page(report, "What left the sites", _LEFT)


def _page(
    report: Report, title: str, sections: Sections, fault: Markup | None = None
) -> str:
    report = {
        name: _cut(value, _LONGEST if name in ("privacy", "settings", "run") else 200)
        for name, value in report.items()
    }
    links = []
    body = []
    for name, make in sections.items():
        items = [item for item in make(report) if item is not None]
        facts = [item for item in items if isinstance(item, tuple)]
        parts: list[Part] = [item for item in items if isinstance(item, Markup)]
        if facts:
            parts[1:1] = bounded(name, ("fact", "value"), facts, "facts", "facts")
        if parts:
            anchor = name.lower().replace(" ", "-")
            links.append(tag("li", tag("a", name, href=f"#{anchor}")))
            body.append(tag("section", tag("h2", name), parts, id=anchor))
    version = report["versions"].get("flwr-flynn", "")
    made_by = (
        f"Made by flwr-flynn {version} from metrics.json, which has all figures "
        "in full."
    )
    run = f"FlyNN report of run {report['run']['run_id']}"
    return whole_page(
        title,
        fault,
        body,
        above=tag("p", run),
        nav=tag("nav", more("Sections", tag("ul", links)), aria_label="Sections"),
        foot=tag("footer", tag("p", made_by)),
    )


def _cut(value: Any, most: int) -> Any:
    """A value with all texts in it, keys included, cut to so many characters."""
    if isinstance(value, dict):
        return {shortened(name): _cut(entry, most) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(entry, most) for entry in value]
    if isinstance(value, str):
        return shortened(value, most)
    return value
