"""Sections of a report about accuracy: by party, figures with intervals, confusion,
curves, subgroups.
"""

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
    count,
    curve,
    figure,
    gallery,
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


def figures_of(report: Report) -> dict[str, Any]:
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
    parties = sorted(
        evaluation.get("parties", ()),
        key=lambda party: (party["accuracy"], party["name"]),
    )
    if not parties:
        return Section(title, [])
    if of_party:
        keys: tuple[str, ...] = ("auroc", "brier", "calibration_error")
    else:
        keys = ()
    rows = [
        (
            party["name"],
            party["examples"],
            _share(party),
            *map(of_party.get(party["name"], {}).get, keys),
        )
        for party in parties
    ]
    said = (
        f"{count(len(rows), 'party', 'parties')} tried the model on test samples "
        "of their own, the worst first. "
    )
    said += f"Over all samples the accuracy is {figure(evaluation['accuracy'])}."
    head = "party", "test samples", "accuracy", *(NAMES[key] for key in keys)
    return Section(title, [], [sentence(said), *_figures(title, "parties", head, rows)])


def _share(party: dict[str, Any]) -> Interval:
    accuracy = party["accuracy"]
    n = party["examples"]
    return share(accuracy * n, n) or (accuracy,) * 3


def _figures(
    title: str, noun: str, head: Sequence[str], rows: Sequence[Any]
) -> list[Markup | None]:
    """Rows of a name, a number of samples and figures with intervals: the first as
    bars, and all as a table.
    """
    shown = [(name, n, *map(with_interval, figures)) for name, n, *figures in rows]
    caption = f"Figures {title.removeprefix('Accuracy ')}"
    known = [
        (name, with_interval(value), value[0]) for name, _, value, *_ in rows if value
    ]
    return [
        bars(title, f"{title}; the table below has the numbers", known[:MOST_BARS])
        if known
        else None,
        more(f"{caption} as a table", *bounded(caption, head, shown, noun)),
    ]


def scores(report: Report) -> Section:
    """Discrimination and calibration, over all samples and by class, and rates at
    thresholds.
    """
    figures = figures_of(report)
    evaluation = report["evaluation"]
    if not evaluation:
        return Section("Figures", [("evaluation", _why_none(report))])
    overall = figures["overall"] or {}
    samples = figures.get("examples") or evaluation["examples"]
    said = (
        f"Over {count(samples, 'test sample')} of all "
        f"parties{', with 95 % intervals in brackets' * bool(overall)}. "
    )
    if len(figures["classes"]) > 2 and overall:
        said += (
            "AUROC, AUPRC and calibration are means over the classes, each "
            "against the rest. "
        )
    if figures.get("resolution"):
        said += (
            f"Scores travel in bins: AUROC is off by {figures['resolution']:.2g} "
            "at most. "
        )
    if samples < evaluation["examples"]:
        said += (
            f"{count(evaluation['examples'] - samples, 'more sample')} are of "
            "parties below their floor. "
        )
    parts: list[Markup | None] = [sentence(said)]
    classes = _shown(report)
    rates = [
        (
            of["label"],
            f"{row['threshold']:g}",
            _in_words(of, row),
            *(with_interval(row[name]) for name in _RATES),
        )
        for of in classes[:MOST_CLASSES]
        for row in of["thresholds"][:MOST_CLASSES]
    ]
    if rates:
        columns = (
            "class",
            "threshold",
            "in words",
            "sensitivity",
            "specificity",
            "PPV",
            "NPV",
        )
        shown = bounded(
            "What thresholds of the probability would do",
            columns,
            rates,
            "rows",
            "thresholds",
        )
        parts += (
            shown
            if len(classes) == 1
            else [more("Thresholds of the probability", *shown)]
        )
    parts.append(left_out(len(classes), "classes", MOST_CLASSES))
    return Section("Figures", _overall(evaluation, overall), parts)


def _overall(evaluation: dict[str, Any], overall: dict[str, Any]) -> Facts:
    """Figures over all parties, and those of the worst party and of the parties' own
    copies.
    """
    if overall.get("accuracy"):
        plain = {}
    else:
        plain = {"accuracy": "accuracy"}
    plain |= {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1"}
    facts = [
        (name, with_interval(overall[key]))
        for key, name in NAMES.items()
        if overall.get(key)
    ]
    facts += [(name, figure(evaluation[key])) for key, name in plain.items()]
    worst = evaluation["worst_party"]
    if worst:
        facts.append(
            (
                "worst party",
                f"{worst['accuracy']:.4f} ({worst['name']}, {worst['examples']} test "
                "samples)",
            )
        )
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
    shown = [
        (name, row[:MOST_CLASSES]) for name, row in zip(names, matrix, strict=True)
    ][:MOST_CLASSES]
    said = (
        "Rows are true classes, columns predicted ones. The stronger the colour, "
        "the more samples, by row."
    )
    drawn = shades(
        "Test samples by true and predicted class",
        "true \\ predicted",
        names[:MOST_CLASSES],
        shown,
    )
    return Section(
        "Confusion",
        [],
        [sentence(said), drawn, left_out(len(names), "classes", MOST_CLASSES)],
    )


def _shown(report: Report) -> list[dict[str, Any]]:
    """The classes; of two the rarer alone, as the other is its mirror image."""
    classes: list[dict[str, Any]] = figures_of(report)["classes"]
    if len(classes) == 2:
        return [min(reversed(classes), key=lambda each: each["examples"] or 0)]
    return classes


def curves(report: Report) -> Section:
    """A ROC curve and a reliability curve of each class, beside each other."""
    classes = [of for of in _shown(report) if of["roc"] or of["reliability"]]
    if not classes:
        return Section("ROC and calibration", [])
    pictures = []
    for of in classes[:MOST_CLASSES]:
        error = with_interval((of["calibration"] or {}).get("error"))
        area = f"AUROC {with_interval(of['auroc'])}"
        error = f"calibration error {error}"
        pictures.append(
            (of["label"], area, curve(f"ROC curve of {of['label']}", area, of["roc"]))
        )
        drawn = reliability(
            f"Reliability curve of {of['label']}", error, of["reliability"]
        )
        pictures.append((of["label"], error, drawn))
    said = (
        "Left: the share that is found over that of false alarms, at all thresholds. "
        "Right: the share that is of the "
        "class over the predicted one. The left diagonal is chance, the right one "
        "perfect. Points: figures.csv."
    )
    noted = left_out(len(classes), "classes", MOST_CLASSES)
    return Section(
        "ROC and calibration", [], [sentence(said), gallery(pictures), noted]
    )


def _in_words(of: dict[str, Any], row: dict[str, Any]) -> str:
    """Samples of 100, or of 1000 where the class is rare, that a threshold flags, flags
    rightly and misses.
    """
    own = of["examples"]
    rest = of["others"]
    found = row["sensitivity"]
    passed = row["specificity"]
    if not own or not rest or not found or not passed:
        return NONE
    n = 1000
    if 20 * own >= own + rest:
        n = 100
    of_class = own / (own + rest)
    hit = of_class * found[0]
    wrong = (1 - of_class) * (1 - passed[0])
    lost = of_class * (1 - found[0])
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
    said = sentence(
        f"Test samples by the level of the column {column}, the lowest accuracy first."
    )
    return Section(
        "Subgroups",
        [],
        [said, *_figures(f"Accuracy by level of {column}", "levels", head, rows)],
    )


def as_csv(report: Report) -> str:
    """The figures of these sections, with the ends of their intervals."""
    stream = io.StringIO()
    evaluation = dict(report["evaluation"] or {})
    names = report["classes"]
    matrix = zip(names, evaluation.pop("confusion", ()), strict=False)
    evaluation["confusion"] = {
        name: dict(zip(names, row, strict=False)) for name, row in matrix
    }
    rows = ((cell(" / ".join(path)), *values) for path, values in _leaves(evaluation))
    csv.writer(stream, lineterminator="\n").writerows(
        [("figure", "value", "low", "high"), *rows]
    )
    return stream.getvalue()


_NAMES = ("name", "label", "level", "threshold", "predicted")
"""Keys of what a row is about."""


def _leaves(
    value: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Sequence[float]]]:
    """Figures, those with an interval as three numbers, by their paths; of a curve each
    point by its first number.
    """
    is_point = isinstance(value, list) and not any(
        isinstance(each, dict | list) for each in value
    )
    if isinstance(value, int | float) and not (path and path[-1] in _NAMES):
        yield path, [value]
    elif is_point and value:
        yield (
            (*path, f"{value[0]:g}")[: len(path) + (len(value) == 2)],
            value[len(value) == 2 :],
        )
    elif isinstance(value, dict | list):
        for name, each in (
            value.items() if isinstance(value, dict) else enumerate(value)
        ):
            if isinstance(value, list):
                names = [each[key] for key in _NAMES if key in each]
            else:
                names = [name]
            yield from _leaves(each, (*path, *map(str, names[:1])))
