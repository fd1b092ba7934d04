"""The page `report.html`: a function of the content of metrics.json, in one file that loads nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr_flynn._markup import Markup, count, figure, in_bytes, tag
from flwr_flynn.app.report import content, results, sections
from flwr_flynn.app.report.pictures import html_page, tiles, with_interval
from flwr_flynn.app.report.sections import Parts, Report
from flwr_flynn.privacy.accounting import shown_bound

SECTIONS: dict[str, Callable[[Report], Parts]] = {
    "Who took part": sections.participation,
    "Classes by party": sections.skew,
    "Accuracy by party": results.accuracy,
    "Figures": results.scores,
    "Confusion": results.confusion,
    "ROC curves": results.roc,
    "Calibration": results.calibration,
    "Subgroups": results.subgroups,
    "Model": sections.model,
    "Bytes and seconds": sections.costs,
    "What left the sites": sections.messages,
    "Equality": sections.equality,
    "Privacy": sections.privacy,
    "Settings": sections.settings,
}
"""Sections by their headings, in their order; those without parts are left out."""

_DONE = {
    "train": "trained a model together",
    "join": "joined a model",
    "withdraw": "were withdrawn from a model",
    "update": "changed their samples in a model",
    "evaluate": "evaluated a model",
    "resume": "finished a model together",
}


def page(made: Any) -> str:
    """The page of a metrics.json from anywhere; a `DataError` where it is malformed."""
    report = content.checked("metrics.json", made, content.SHAPE)
    found = {name: parts for name, make in SECTIONS.items() if (parts := make(report))}
    done = _DONE.get(report["action"], "took part in a run")
    title = f"{count(len(report['parties']), 'party', 'parties')} {done}"
    anchors = {name: name.lower().replace(" ", "-").replace("'", "") for name in found}
    links = [tag("li", tag("a", name, href=f"#{anchors[name]}")) for name in found]
    body = [
        tag("section", tag("h2", name, id=f"{anchors[name]}-title"), *parts, id=anchors[name])
        for name, parts in found.items()
    ]
    versions = report["versions"]
    made_by = f"Made by flwr-flynn {versions.get('flwr-flynn', '')} from metrics.json, which has all figures in full."
    run = (report["run"] or {}).get("run_id")
    eyebrow = tag("p", "FlyNN report" if run is None else f"FlyNN report of run {run}", class_="eyebrow")
    head = tag("header", eyebrow, tag("h1", title), *_summary(report))
    nav, foot = tag("nav", tag("ul", links), aria_label="Sections"), tag("footer", tag("p", made_by))
    main = tag("main", body, id="content", tabindex=-1)
    return html_page(f"{title}: FlyNN report", head, nav, main, foot)


def show(path: str) -> int:
    """Print the page of a metrics.json, for the command `flwr-flynn report`."""
    text = page(content.read(Path(path)))
    sys.stdout.buffer.write(text.encode())
    sys.stdout.flush()
    return 0


def _summary(report: Report) -> list[Markup]:
    """The run in words, and its first figures."""
    members, simulation, counted = report["members"], report["simulation"], len(report["parties"])
    asked = simulation["parties"] if simulation else counted + len(report["missing"])
    action = f" in the action “{report['action']}”" if report["action"] else ""
    said = [f"{figure(counted)} of {count(asked, 'party', 'parties')} took part{action}."]
    samples = "a hidden number of samples" if report["examples"] is None else count(report["examples"], "sample")
    said.append(f"They hold {samples} of {count(len(report['classes']), 'class', 'classes')}.")
    if members:
        kind = "one hash" if len(members) == 1 else f"a committee of {len(members)} hashes"
        first = members[0]
        size = f"{figure(first['hash_dim'])} rows and {count(first['hash_nnz'], 'winner')}"
        of = f", chosen from {count(len(report['specs']), 'candidate')}" if len(report["specs"]) > len(members) else ""
        said.append(f"The model is {kind}{of}, {'the first ' if len(members) > 1 else ''}with {size}.")
    if report["traffic"]:
        said.append(f"The run took {count(len(report['traffic']), 'exchange')}.")
    if simulation:
        said.append("It was a simulation on one machine.")
    lead = [tag("p", " ".join(said), class_="lead")]
    if errors := report["evaluation_errors"]:
        lead.append(tag("p", f"The evaluation failed: {', '.join(errors[:5])}", class_="fault"))
    return [*lead, tiles(_first_figures(report))]


def _first_figures(report: Report) -> list[tuple[str, str, str]]:
    evaluation, overall = report["evaluation"] or {}, results.figures_of(report)["overall"] or {}
    found = []
    for key, name in (("accuracy", "Accuracy"), ("auroc", "AUROC")):
        if interval := overall.get(key):
            found.append((name, figure(interval[0]), with_interval(interval).partition(" ")[2].strip("()")))
        elif evaluation.get(key) is not None:
            found.append((name, figure(evaluation[key]), ""))
    if evaluation.get("parties"):
        worst = min(evaluation["parties"], key=lambda each: (each["accuracy"], each["name"]))
        found.append(("Worst party", figure(worst["accuracy"]), worst["name"]))
    if report["traffic"]:
        up = sum(each["up"] for each in report["traffic"].values())
        found.append(("Sent by a party", in_bytes(up), "on average"))
    privacy = report["privacy"]
    if privacy and privacy["epsilon"] is not None:
        return [*found, ("Privacy", shown_bound(privacy["epsilon"]), "epsilon")]
    return [*found, ("Privacy", "none", "seeded noise" if privacy else "no noise added")]
