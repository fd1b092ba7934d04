"""Sections of a report about accuracy, with the intervals of its figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from flwr_flynn.app.report.markup import (
    NONE,
    Interval,
    Markup,
    bars,
    cell,
    curve,
    figure,
    gallery,
    plural,
    reliability,
    shades,
    with_interval,
)
from flwr_flynn.app.report.sections import (
    MOST_BARS,
    MOST_CLASSES,
    Facts,
    Report,
    Section,
    bounded,
    left_out,
    more,
    sentence,
)
from flwr_flynn.model.metrics import share

_WORDS = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "brier": "Brier score",
    "log_loss": "log-loss",
}
_CALIBRATION = ("calibration_error", "calibration_slope", "calibration_intercept")
NAMES = _WORDS | {key: key.replace("_", " ") for key in (*_CALIBRATION, "accuracy")}
"""Figures with intervals, and their names."""


def figures_of(report: Report) -> Report:
    """The figures from scores; without entries in a run that has none."""
    return (report["evaluation"] or {}).get("figures") or {
        "classes": [],
        "parties": [],
        "groups": None,
        "overall": {},
    }


def accuracy(report: Report) -> Section:
    """Accuracy by party, worst first."""
    evaluation = report["evaluation"] or {}
    title = "Accuracy by party"
    of_party = {party["name"]: party for party in figures_of(report)["parties"]}
    parties = evaluation.get("parties", ())
    if not parties:
        return Section(title, [])
    keys: tuple[str, ...] = ()
    if of_party:
        keys = ("auroc", "brier", "calibration_error")
    rows = [
        (
            party["name"],
            party["examples"],
            _share(party),
            *map(of_party.get(party["name"], {}).get, keys),
        )
        for party in parties
    ]
    introduction = (
        f"{plural(len(rows), 'party', 'parties')} tried the model on test samples "
        "of their own, the worst first. "
        f"Over all samples the accuracy is {figure(evaluation['accuracy'])}."
    )
    head = "party", "test samples", "accuracy", *(NAMES[key] for key in keys)
    figures = _figures(title, "parties", head, rows)
    return Section(title, [], [sentence(introduction), *figures])


def _share(party: Report) -> Interval:
    accuracy = party["accuracy"]
    n = party["examples"]
    return share(accuracy * n, n) or (accuracy,) * 3


def _figures(
    title: str, noun: str, head: Sequence[str], rows: Sequence[Any]
) -> list[Markup | None]:
    """Rows of a name, a number of samples, and figures with intervals.

    The first figure is shown as bars, and all as a table.
    """
    shown = [(name, n, *map(with_interval, figures)) for name, n, *figures in rows]
    caption = f"Figures {title.removeprefix('Accuracy ')}"
    known = [
        (name, with_interval(first), first[0]) for name, _, first, *_ in rows if first
    ]
    drawn = None
    if known:
        drawn = bars(
            title, f"{title}; the table below has the numbers", known[:MOST_BARS]
        )
    return [drawn, more(f"{caption} as a table", *bounded(caption, head, shown, noun))]


def probability_section(report: Report) -> Section:
    """Discrimination and calibration over all samples, and rates at thresholds."""
    figures = figures_of(report)
    evaluation = report["evaluation"]
    if not evaluation:
        return Section("Figures", [("evaluation", _why_none(report))])
    overall = figures["overall"] or {}
    n_samples = figures.get("examples") or evaluation["examples"]
    introduction = f"Over {plural(n_samples, 'test sample')} of all parties"
    if overall:
        introduction += ", with 95 % intervals in brackets"
    introduction += ". "
    if len(figures["classes"]) > 2 and overall:
        introduction += (
            "AUROC, AUPRC and calibration are means over the classes, each "
            "against the rest. "
        )
    if figures.get("resolution"):
        introduction += (
            f"Scores travel in bins: AUROC is off by {figures['resolution']:.2g} "
            "at most. "
        )
    n_more = evaluation["examples"] - n_samples
    if n_more > 0:
        introduction += (
            f"{plural(n_more, 'more sample')} are of parties below their floor. "
        )
    classes = _shown(report)
    parts = [
        sentence(introduction),
        *_thresholds(classes),
        left_out(len(classes), "classes", MOST_CLASSES),
    ]
    facts = [*_event(report), *_overall(evaluation, overall)]
    return Section("Figures", facts, parts)


def _event(report: Report) -> Facts:
    """The event, and why it is this class."""
    event = report["event"]
    if not event:
        return []
    text = f"{event['label']}"
    if event["why"] == "rarer":
        text += " (the rarer of two classes; event sets another)"
    return [("event", text)]


def _thresholds(classes: list[Report]) -> list[Markup | None]:
    """Rates of some classes at thresholds; a table of several classes opens."""
    rows = [
        (
            of_class["label"],
            f"{rates['threshold']:g}",
            _in_words(of_class, rates),
            *(with_interval(rates[name]) for name in _RATES),
        )
        for of_class in classes[:MOST_CLASSES]
        for rates in of_class["thresholds"][:MOST_CLASSES]
    ]
    if not rows:
        return []
    columns = (
        "class",
        "threshold",
        "in words",
        "sensitivity",
        "specificity",
        "PPV",
        "NPV",
    )
    caption = "What thresholds of the probability would do"
    shown = bounded(caption, columns, rows, "rows", "thresholds")
    if len(classes) == 1:
        return shown
    return [more("Thresholds of the probability", *shown)]


def _overall(evaluation: Report, overall: Report) -> Facts:
    """Figures of all parties, of the worst party, and of the parties' own copies."""
    plain = {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1"}
    if not overall.get("accuracy"):
        plain = {"accuracy": "accuracy", **plain}
    facts = [
        (name, with_interval(overall[key]))
        for key, name in NAMES.items()
        if overall.get(key)
    ]
    facts += [(name, figure(evaluation[key])) for key, name in plain.items()]
    worst = evaluation["worst_party"]
    if worst:
        of = f"({worst['name']}, {worst['examples']} test samples)"
        facts.append(("worst party", f"{worst['accuracy']:.4f} {of}"))
    prior = evaluation.get("class_prior")
    if prior:
        worst = prior["worst_party"]
        shown = (
            f"{prior['accuracy']:.4f}, worst party {worst['accuracy']:.4f} "
            f"({worst['name']})"
        )
        facts.append(("with class prior", shown))
    return facts


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


_RATES = ("sensitivity", "specificity", "ppv", "npv")


def confusion(report: Report) -> Section:
    """The confusion matrix."""
    matrix = (report["evaluation"] or {}).get("confusion", ())
    names = report["classes"]
    if not matrix:
        return Section("Confusion", [])
    rows = zip(names, matrix, strict=True)
    shown = [(name, row[:MOST_CLASSES]) for name, row in rows]
    introduction = (
        "Rows are true classes, columns predicted ones. The stronger the colour, "
        "the more samples, by row."
    )
    drawn = shades(
        "Test samples by true and predicted class",
        "true \\ predicted",
        names[:MOST_CLASSES],
        shown[:MOST_CLASSES],
    )
    note = left_out(len(names), "classes", MOST_CLASSES)
    return Section("Confusion", [], [sentence(introduction), drawn, note])


def _shown(report: Report) -> list[Report]:
    """The event's class; all classes where there is no event."""
    classes: list[Report] = figures_of(report)["classes"]
    event = report["event"]
    if event and classes:
        return [classes[event["index"]]]
    return classes


def curves(report: Report) -> Section:
    """A ROC curve and a reliability curve of each class, beside each other."""
    title = "ROC and calibration"
    shown = _shown(report)
    classes = [
        of_class for of_class in shown if of_class["roc"] or of_class["reliability"]
    ]
    if not classes:
        return Section(title, [])
    pictures = []
    for of_class in classes[:MOST_CLASSES]:
        label = of_class["label"]
        area = f"AUROC {with_interval(of_class['auroc'])}"
        calibration = of_class["calibration"] or {}
        error = f"calibration error {with_interval(calibration.get('error'))}"
        drawn = curve(f"ROC curve of {label}", area, of_class["roc"])
        pictures.append((label, area, drawn))
        name = f"Reliability curve of {label}"
        drawn = reliability(name, error, of_class["reliability"])
        pictures.append((label, error, drawn))
    introduction = (
        "Left: the share that is found over that of false alarms, at all thresholds. "
        "Right: the share that is of the "
        "class over the predicted one. The left diagonal is chance, the right one "
        "perfect. Points: figures.csv."
    )
    note = left_out(len(classes), "classes", MOST_CLASSES)
    return Section(title, [], [sentence(introduction), gallery(pictures), note])


def _in_words(of_class: Report, rates: Report) -> str:
    """Samples of 100 that a threshold flags, flags rightly and misses, in words.

    Where the class is rare, they are samples of 1000.
    """
    own = of_class["examples"]
    rest = of_class["others"]
    sensitivity = rates["sensitivity"]
    specificity = rates["specificity"]
    if not own or not rest or not sensitivity or not specificity:
        return NONE
    n = 1000
    if 20 * own >= own + rest:
        n = 100
    share_of_class = own / (own + rest)
    hit = share_of_class * sensitivity[0]
    wrong = (1 - share_of_class) * (1 - specificity[0])
    lost = share_of_class * (1 - sensitivity[0])
    return (
        f"of {n:,} samples {n * (hit + wrong):.0f} are flagged, {n * hit:.0f} "
        f"rightly; {n * lost:.0f} are missed"
    )


def subgroups(report: Report) -> Section:
    """Figures by level of a column."""
    groups = figures_of(report)["groups"]
    if not groups or not groups["levels"]:
        return Section("Subgroups", [])
    levels = sorted(
        groups["levels"],
        key=lambda level: level["accuracy"][0] if level["accuracy"] else 2.0,
    )
    keys = ("accuracy", "auroc", "auprc", "brier", "calibration_error")
    rows = [
        (level["level"], level["examples"], *map(level.get, keys)) for level in levels
    ]
    column = groups["column"]
    head = ["level", "samples", *(NAMES[key] for key in keys)]
    introduction = sentence(
        f"Test samples by the level of the column {column}, the lowest accuracy first."
    )
    figures = _figures(f"Accuracy by level of {column}", "levels", head, rows)
    return Section("Subgroups", [], [introduction, *figures])


def as_csv(report: Report) -> str:
    """The figures of these sections, with the ends of their intervals.

    The first one is the number of their run.
    """
    stream = io.StringIO()
    evaluation = dict(report["evaluation"] or {})
    names = report["classes"]
    matrix = zip(names, evaluation.pop("confusion", ()), strict=False)
    evaluation["confusion"] = {
        name: dict(zip(names, row, strict=False)) for name, row in matrix
    }
    rows = [(cell(" / ".join(path)), *numbers) for path, numbers in _leaves(evaluation)]
    csv.writer(stream, lineterminator="\n").writerows(
        [
            ("figure", "value", "low", "high"),
            ("run", report["run"]["run_id"]),
            *rows,
        ]
    )
    return stream.getvalue()


_NAMES = ("name", "label", "level", "threshold", "predicted")
"""Keys of what a row is about."""


def _leaves(
    tree: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Sequence[float]]]:
    """Figures by their paths, those with an interval as three numbers.

    The first number of a curve's point is the end of its path.
    """
    if isinstance(tree, int | float):
        if not path or path[-1] not in _NAMES:
            yield path, [tree]
    elif isinstance(tree, dict):
        for name, branch in tree.items():
            yield from _leaves(branch, (*path, str(name)))
    elif isinstance(tree, list) and any(isinstance(row, dict | list) for row in tree):
        for row in tree:
            names = [str(row[key]) for key in _NAMES if key in row]
            yield from _leaves(row, (*path, *names[:1]))
    elif isinstance(tree, list) and len(tree) == 2:
        x, y = tree
        yield (*path, f"{x:g}"), [y]
    elif isinstance(tree, list) and tree:
        yield path, tree
