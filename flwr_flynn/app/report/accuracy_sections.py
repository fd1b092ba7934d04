"""Sections of a report about accuracy, with the intervals of its figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import chain

from flwr_flynn.app.report.derived import PAIRED, derived, event_class, figures_of, gaps
from flwr_flynn.app.report.markup import cell, figure, plural, with_interval
from flwr_flynn.app.report.plots import Row, forest
from flwr_flynn.app.report.sections import (
    MOST_BARS,
    MOST_CLASSES,
    Fact,
    Items,
    Report,
    bounded,
    sentence,
    shades,
)

NAMES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "brier": "Brier score",
    "log_loss": "log-loss",
    "calibration_error": "calibration error",
    "calibration_slope": "calibration slope",
    "calibration_intercept": "calibration intercept",
    "accuracy": "accuracy",
    "observed_expected": "O:E",
}
"""Figures with intervals, and their names."""

_OF_CLASSES = NAMES.keys() - {"brier", "log_loss", "accuracy"}
"""Those of a class against the rest."""


def probability_section(report: Report) -> Items:
    """Discrimination and calibration over all samples."""
    figures = figures_of(report)
    evaluation = report["evaluation"]
    if not evaluation:
        yield "evaluation", _why_none(report)
        return
    overall = figures["overall"]
    n_samples = figures.get("examples", evaluation["examples"])
    introduction = f"Over {plural(n_samples, 'test sample')} of all parties. "
    if overall:
        introduction += "In brackets are 95 % intervals. "
    if len(figures["classes"]) > 2:
        introduction += (
            "AUROC, AUPRC and calibration are means over the classes, each "
            "against the rest. "
        )
    n_more = evaluation["examples"] - n_samples
    if n_more > 0:
        introduction += (
            f"{plural(n_more, 'more sample')} are of parties below their floor. "
        )
    of_event = event_class(report)
    if of_event and of_event["examples"] + of_event["others"] < n_samples:
        n_known = of_event["examples"] + of_event["others"]
        introduction += (
            f"Discrimination, calibration and thresholds are of {figure(n_known)}: the "
            "others are of parties with fewer of a class than their floor. "
        )
    yield sentence(introduction)
    of = ""
    if len(figures["classes"]) > 2:
        of = ", mean of the classes"
    yield from _overall(evaluation, overall, of)


def _overall(evaluation: Report, overall: Report, of: str) -> Iterator[Fact]:
    """Figures of all parties, of the worst party, and of the parties' own copies."""
    for key, name in NAMES.items():
        if overall.get(key):
            if key in _OF_CLASSES:
                name += of
            yield name, with_interval(overall[key])
    plain = {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1"}
    if not overall.get("accuracy"):
        plain = {"accuracy": "accuracy", **plain}
    for key, name in plain.items():
        yield name, figure(evaluation[key])
    worst = evaluation["worst_party"]
    if worst:
        of = f"({worst['name']}, {worst['examples']} test samples)"
        yield "worst party", f"{figure(worst['accuracy'])} {of}"
    prior = evaluation["class_prior"]
    if prior:
        worst = prior["worst_party"]
        shown = (
            f"{figure(prior['accuracy'])}, worst party "
            f"{figure(worst['accuracy'])} ({worst['name']})"
        )
        yield "with class prior", shown


def _why_none(report: Report) -> str:
    """Reason why there are no figures."""
    errors = dict.fromkeys(report["evaluation_errors"])
    if errors:
        return f"failed with {', '.join(errors)}"
    if not report["evaluates"]:
        return "none: parties send no results"
    silent = {
        name
        for phase in ("secure evaluation", "evaluation")
        for name in report["absent"].get(phase, {})
    }
    if silent:
        return f"failed at {len(silent)} parties"
    return "none: no party holds test samples"


def confusion(report: Report) -> Items:
    """The confusion matrix."""
    matrix = (report["evaluation"] or {}).get("confusion")
    if matrix:
        names = report["classes"]
        rows = [*zip(names, matrix, strict=True)][:MOST_CLASSES]
        caption = "Test samples by true and predicted class"
        yield from shades(caption, "true \\ predicted", names, rows)


def subgroups(report: Report) -> Items:
    """Figures by level of a column."""
    groups = figures_of(report)["groups"]
    named = report["settings"].get("group-column")
    if named and not groups:
        yield sentence(f"No category {named} is among the columns of the run.")
    if not groups or not groups["levels"]:
        return
    levels = groups["levels"]
    column = groups["column"]
    keys = ["accuracy", "auroc", "calibration_slope", "calibration_intercept"]
    if report["event"]:
        keys.insert(2, "observed_expected")
    yield sentence(f"Held-out rows by the level of the column {column}.")
    for name, (gap, low, high) in gaps(report).items():
        yield f"gap of the {name}", f"{gap:.2f} ({low:.2f} to {high:.2f})"
    drawn = [
        Row(row["level"], row["auroc"]) for row in levels[:MOST_BARS] if row["auroc"]
    ]
    yield forest(f"AUROC by level of {column}", "on held-out rows", drawn)
    rows = [
        (
            level["level"],
            level["examples"],
            *(with_interval(level[key]) for key in keys),
        )
        for level in levels
    ]
    head = ("level", "rows", *(NAMES[key] for key in keys))
    yield from bounded(f"Figures by level of {column}", head, rows, "levels")


def as_csv(report: Report) -> str:
    """The figures of these sections, with the ends of their intervals.

    The first one is the number of their run.
    """
    evaluation = dict(report["evaluation"] or {})
    names = report["classes"]
    matrix = zip(names, evaluation.pop("confusion", ()), strict=False)
    evaluation["confusion"] = {
        name: dict(zip(names, row, strict=True)) for name, row in matrix
    }
    tree = evaluation | derived(report) | {"sites": [*map(_site, report["sites"])]}
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("figure", "value", "low", "high"))
    writer.writerow(("run", report["run"]["run_id"]))
    for path, numbers in _leaves(tree):
        writer.writerow((cell(" / ".join(path)), *numbers))
    return stream.getvalue()


def _site(site: Report) -> Report:
    """Figures of a site, with its paired table by name."""
    alone = site["alone"]
    if alone:
        paired = zip(PAIRED, chain(*alone["paired"]), strict=True)
        alone = alone | {"paired": dict(paired)}
    return site | {"alone": alone}


_NAMES = ("name", "label", "level", "threshold", "predicted")
"""Keys of what a row is about."""


def _leaves(
    tree: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Sequence[float]]]:
    """Figures by their paths, those with an interval as three numbers.

    The first number of a curve's point is the end of its path.
    """
    if isinstance(tree, bool):
        return
    if isinstance(tree, dict):
        for name, branch in tree.items():
            if name != "flagged":  # they are in the decision curve
                yield from _leaves(branch, (*path, str(name)))
    elif isinstance(tree, list) and tree:
        if isinstance(tree[0], dict | list):
            for row in tree:
                names = [str(row[key]) for key in _NAMES if key in row]
                yield from _leaves(row, (*path, *names[:1]))
        elif len(tree) == 2:
            x, y = tree
            yield (*path, f"{x:g}"), [y]
        else:
            yield path, tree
    elif isinstance(tree, int | float) and path[-1] not in _NAMES:
        yield path, [tree]
