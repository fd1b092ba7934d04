"""Sections of the page about accuracy: by party, figures with intervals, confusion, curves, subgroups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flwr_flynn._markup import Markup, count, figure, table
from flwr_flynn.app.report.pictures import curve, gallery, intervals, reliability, shades, thinned, with_interval
from flwr_flynn.app.report.sections import (
    MOST_BARS,
    MOST_CLASSES,
    MOST_ROWS,
    Parts,
    Report,
    left_out,
    more,
    quantiles,
    sentence,
)
from flwr_flynn.model.metrics import share

NAMES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "brier": "Brier score",
    "log_loss": "log-loss",
    "calibration_error": "calibration error",
    "calibration_slope": "calibration slope",
    "calibration_intercept": "calibration intercept",
    "accuracy": "accuracy",
}
"""Figures with intervals, and their names."""


def figures_of(report: Report) -> dict[str, Any]:
    """The figures from scores; without entries in a run that has none."""
    return (report["evaluation"] or {}).get("figures") or {"classes": [], "parties": [], "groups": None, "overall": {}}


def accuracy(report: Report) -> Parts:
    """Accuracy by party, worst first."""
    evaluation = report["evaluation"] or {}
    of_party = {each["name"]: each for each in figures_of(report)["parties"]}
    rows = sorted(evaluation.get("parties", ()), key=lambda each: (each["accuracy"], each["name"]))
    if not rows:
        return []
    with_ends = [(each["name"], _share(each["accuracy"], each["examples"])) for each in rows]
    keys = ("auroc", "brier", "calibration_error") if of_party else ()
    listed = [
        (name, each["examples"], *map(with_interval, (interval, *(of_party.get(name, {}).get(key) for key in keys))))
        for each, (name, interval) in zip(rows[:MOST_ROWS], with_ends, strict=False)
    ]
    head = ("party", "test samples", "accuracy", *(NAMES[key] for key in keys))
    said = f"{count(len(rows), 'party', 'parties')} tried the model on test samples of their own, the worst first"
    said += ", with 95 % intervals. "
    said += "" if len(rows) < 5 else f"Accuracy: {quantiles(each['accuracy'] for each in rows)}."
    if prior := evaluation.get("class_prior"):
        said += f" With each party's class prior the accuracy over all is {figure(prior['accuracy'])}."
    all_ = evaluation["accuracy"]
    line = "" if all_ is None else f" The dashed line is the accuracy over all samples, {figure(all_)}."
    title = "Accuracy by party"
    return [
        sentence(said, line),
        intervals(title, f"{title}; the table below has the numbers", with_ends[:MOST_BARS], all_),
        left_out(len(rows), "parties", MOST_BARS, " of the picture, the best ones"),
        more("Figures by party as a table", table("Figures by party", head, listed)),
        left_out(len(rows), "parties", order=" of the table, the best ones"),
    ]


def _share(value: float, n: int) -> Sequence[float]:
    return share(value * n, n) or (value,) * 3


def scores(report: Report) -> Parts:
    """Discrimination and calibration, over all samples and by class, and rates at thresholds."""
    figures, evaluation = figures_of(report), report["evaluation"]
    overall = figures["overall"] or {}
    rows = [(name, with_interval(overall[key])) for key, name in NAMES.items() if overall.get(key)]
    if evaluation:
        plain = {} if overall.get("accuracy") else {"accuracy": "accuracy"}
        plain |= {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1"}
        rows += [(name, figure(evaluation[key])) for key, name in plain.items() if evaluation[key] is not None]
    if not rows:
        return []
    samples = figures.get("examples") or evaluation["examples"]
    said = f"Over {count(samples, 'test sample')} of all parties" if samples else "Over the test samples of all parties"
    said += ", with 95 % intervals in brackets. " if overall else ". "
    if len(figures["classes"]) > 2 and overall:
        said += "AUROC, AUPRC and calibration are means over the classes, each against the rest. "
    if figures.get("resolution"):
        said += f"Scores travel in bins: AUROC is off by {figures['resolution']:.2g} at most. "
    if evaluation and samples and evaluation["examples"] and samples < evaluation["examples"]:
        said += f"{count(evaluation['examples'] - samples, 'more sample')} are of parties below their floor. "
    found = [sentence(said), table("Figures over all parties", ("figure", "value"), rows)]
    classes = figures["classes"][:MOST_CLASSES]
    by_class = [
        (each["label"], each["examples"], *map(with_interval, (each["auroc"], each["auprc"])), *_calibration(each))
        for each in classes
    ]
    rates = [
        (each["label"], figure(row["threshold"]), *map(with_interval, (row[name] for name in _RATES)))
        for each in classes
        for row in each["thresholds"][:MOST_CLASSES]
    ]
    if by_class:
        head = "class", "samples", "AUROC", "AUPRC", "calibration error", "slope", "intercept"
        found.append(more("Each class against the rest", table("Figures by class", head, by_class)))
    if rates:
        columns = "class", "threshold", "sensitivity", "specificity", "PPV", "NPV"
        shown = table("Rates at thresholds of the probability", columns, rates[:MOST_ROWS])
        found.append(more("Sensitivity, specificity, PPV and NPV", shown, left_out(len(rates), "rows")))
    return [*found, left_out(len(figures["classes"]), "classes", MOST_CLASSES)]


_RATES = ("sensitivity", "specificity", "ppv", "npv")


def _calibration(of: dict[str, Any]) -> list[str]:
    found = of["calibration"] or {}
    return [with_interval(found.get(name)) for name in ("error", "slope", "intercept")]


def confusion(report: Report) -> Parts:
    """The confusion matrix."""
    matrix, names = (report["evaluation"] or {}).get("confusion", ()), report["classes"]
    if not matrix or len(matrix) != len(names) or any(len(row) != len(names) for row in matrix):
        return []
    shown = [(name, row[:MOST_CLASSES]) for name, row in zip(names, matrix, strict=True)][:MOST_CLASSES]
    said = "Rows are true classes, columns predicted ones. The stronger the colour, the more samples, by row."
    caption = "Test samples by true and predicted class"
    return [
        sentence(said),
        shades(caption, "true \\ predicted", names[:MOST_CLASSES], shown),
        left_out(len(names), "classes", MOST_CLASSES),
    ]


def _pictured(report: Report, key: str) -> list[dict[str, Any]]:
    """Classes with a curve; of two classes the second alone, as the first is its mirror image."""
    classes = [each for each in figures_of(report)["classes"] if each[key]]
    return classes[-1:] if len(classes) == 2 else classes


def roc(report: Report) -> Parts:
    """ROC curves."""

    def drawn(of: dict[str, Any]) -> tuple[str, Markup, list[Any]]:
        area = f"AUROC {with_interval(of['auroc'])}"
        return area, curve(f"ROC curve of {of['label']}", area, of["roc"]), thinned(of["roc"], 11)

    said = "Share of the class that is found over the share of false alarms, at all thresholds; chance is the diagonal."
    return _curves(_pictured(report, "roc"), said, drawn, "ROC curves", ("false positive rate", "sensitivity"))


def calibration(report: Report) -> Parts:
    """Reliability curves."""

    def drawn(of: dict[str, Any]) -> tuple[str, Markup, list[Any]]:
        error, bins = f"calibration error {_calibration(of)[0]}", thinned(of["reliability"], 20)
        points = [(each["predicted"], with_interval(each["observed"]), each["examples"]) for each in bins]
        return error, reliability(f"Reliability curve of {of['label']}", error, of["reliability"]), points

    said = "Share of samples that are of the class, over the probability that the model gives; the diagonal is right."
    columns = "mean predicted", "observed", "samples"
    return _curves(_pictured(report, "reliability"), said, drawn, "Reliability curves", columns)


def _curves(
    classes: list[dict[str, Any]],
    said: str,
    drawn: Callable[[dict[str, Any]], tuple[str, Markup, list[Any]]],
    title: str,
    columns: Sequence[str],
) -> Parts:
    """A curve of each class, and their points as one table."""
    if not classes:
        return []
    shown = [(each["label"], *drawn(each)) for each in classes[:MOST_CLASSES]]
    rows = [(label, *point) for label, _, _, points in shown for point in points]
    return [
        sentence(said),
        gallery([(label, words, picture) for label, words, picture, _ in shown]),
        left_out(len(classes), "classes", MOST_CLASSES),
        more(f"{title} as a table", table(f"Points of the {title}", ("class", *columns), rows), class_="points"),
    ]


def subgroups(report: Report) -> Parts:
    """Figures by level of a column."""
    groups = figures_of(report)["groups"]
    if not groups or not groups["levels"]:
        return []
    levels = sorted(groups["levels"], key=lambda each: each["accuracy"][0] if each["accuracy"] else 2.0)
    known = [(each["level"], each["accuracy"]) for each in levels if each["accuracy"]]
    keys = ("accuracy", "auroc", "auprc", "brier", "calibration_error")
    rows = [(each["level"], each["examples"], *(with_interval(each[key]) for key in keys)) for each in levels]
    title, head = f"Accuracy by level of {groups['column']}", ["level", "samples", *(NAMES[key] for key in keys)]
    return [
        sentence(f"Test samples by the level of the column {groups['column']}, the lowest accuracy first."),
        intervals(title, f"{title}; the table below has the numbers", known[:MOST_BARS], None) if known else None,
        more("Subgroups as a table", table(f"Figures by level of {groups['column']}", head, rows[:MOST_ROWS])),
        left_out(len(rows), "levels", MOST_BARS if len(rows) <= MOST_ROWS else MOST_ROWS),
    ]
