"""Figures that follow from those of a report: of its event, and over its sites."""

from __future__ import annotations

import re

import numpy as np

from flwr_flynn.app.report.markup import Interval
from flwr_flynn.app.report.sections import Report
from flwr_flynn.model.heterogeneity import heterogeneity
from flwr_flynn.model.metrics import GRID, THRESHOLDS, net_benefit, rates
from flwr_flynn.model.recalibration import Z

KINDS = {"held_out": "held out", "without": "without the site", "alone": "alone"}
"""Figures of a site, and their names."""

PAIRED = ("both", "only the federation", "only alone", "neither")
"""Models that get a sample right, in the order of a paired table."""

_REFERENCES = (0.01, 0.02, 0.05, 0.1, 0.2)


def figures_of(report: Report) -> Report:
    """The figures from scores; without entries in a run that has none."""
    return (report["evaluation"] or {}).get("figures") or {
        "classes": [],
        "groups": None,
        "overall": {},
    }


def shown_classes(report: Report) -> list[Report]:
    """Classes that have samples, and others; the event's alone where there is one."""
    classes: list[Report] = figures_of(report)["classes"]
    event = report["event"]
    if event and classes:
        classes = [classes[event["index"]]]
    return [row for row in classes if row["examples"] and row["others"]]


def event_class(report: Report) -> Report | None:
    """Figures of the event's class; None without an event or its samples."""
    if not report["event"]:
        return None
    return next(iter(shown_classes(report)), None)


def share_of(of_class: Report) -> float:
    """The share of a class among the samples."""
    n: int = of_class["examples"] + of_class["others"]
    return float(of_class["examples"] / n)


def thresholds(report: Report) -> list[float]:
    """Thresholds that the run names, or those by default."""
    named = str(report["settings"].get("thresholds", ""))
    return [float(text) for text in re.findall(r"\.\d+", named)] or [*THRESHOLDS]


def reference(report: Report, of_class: Report) -> float:
    """The threshold of the first sentence: the first that is named, else one below the
    share of the class.
    """
    if report["settings"].get("thresholds"):
        return thresholds(report)[0]
    most = share_of(of_class)
    return max([level for level in _REFERENCES if level <= most], default=0.01)


def rates_at(of_class: Report, threshold: float) -> Report:
    """Rates, net benefit, and samples that are found and flagged in vain, at the
    threshold of `GRID` that is nearest.
    """
    index = int(np.abs(GRID - threshold).argmin())
    level = float(GRID[index])
    found, false_alarms = of_class["flagged"][index]
    n_own = of_class["examples"]
    n_rest = of_class["others"]
    return rates(level, found, false_alarms, n_own, n_rest) | {
        "found": found,
        "false_alarms": false_alarms,
        "net_benefit": net_benefit(level, found, false_alarms, n_own + n_rest),
        "treat_all": net_benefit(level, n_own, n_rest, n_own + n_rest),
    }


def decision_curve(of_class: Report) -> list[Report]:
    """Rates at each hundredth; see `rates_at`."""
    return [rates_at(of_class, float(level)) for level in GRID[1::2]]


def areas_of(report: Report, kind: str) -> list[Interval]:
    """AUROCs of the sites that have one: held out, of those that trained."""
    figures = [
        site[kind]
        for site in report["sites"]
        if site[kind] and not (kind == "held_out" and site.get("is_validation"))
    ]
    return [row["auroc"] for row in figures if row["auroc"]]


def spreads(report: Report) -> dict[str, Report]:
    """Heterogeneity of the AUROC over the sites, held out and without each site."""
    kinds = ("held_out", "without")
    spread = {kind: heterogeneity(areas_of(report, kind)) for kind in kinds}
    return {kind: found for kind, found in spread.items() if found}


def standard_errors(report: Report) -> dict[str, float]:
    """Standard errors of AUROC, O:E and slope over all sites, from their intervals."""
    overall = figures_of(report)["overall"] or {}
    names = {"auroc": "AUROC", "observed_expected": "O:E", "calibration_slope": "slope"}
    return {
        name: (overall[key][2] - overall[key][1]) / (2 * Z)
        for key, name in names.items()
        if overall.get(key)
    }


def gaps(report: Report) -> dict[str, Interval]:
    """Largest distances of true and of false positive rates between levels of the
    group, with the least and the largest rate, at the one of `THRESHOLDS` that is
    nearest to that of the first sentence.
    """
    of_event = event_class(report)
    groups = figures_of(report)["groups"]
    if of_event is None or not groups:
        return {}
    distances = np.abs(np.array(THRESHOLDS) - reference(report, of_event))
    rows = [level["thresholds"][distances.argmin()] for level in groups["levels"]]
    found = [row["sensitivity"][0] for row in rows if row["sensitivity"]]
    passed = [1 - row["specificity"][0] for row in rows if row["specificity"]]
    shares_of = {"true positive rate": found, "false positive rate": passed}
    return {
        name: [max(shares) - min(shares), min(shares), max(shares)]
        for name, shares in shares_of.items()
        if len(shares) > 1
    }


def derived(report: Report) -> Report:
    """All of these, for the file of figures."""
    of_event = event_class(report)
    decision = []
    if of_event:
        decision = decision_curve(of_event)
    return {
        "heterogeneity": spreads(report),
        "standard_errors": standard_errors(report),
        "gaps": gaps(report),
        "decision": decision,
    }
