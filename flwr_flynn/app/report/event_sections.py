"""Sections about the event: the first screen, its use at thresholds, and by site."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from flwr_flynn.app.report.derived import (
    KINDS,
    PAIRED,
    areas_of,
    decision_curve,
    event_class,
    rates_at,
    reference,
    share_of,
    shown_classes,
    spreads,
    standard_errors,
    thresholds,
)
from flwr_flynn.app.report.markup import (
    NONE,
    Markup,
    figure,
    joined,
    tag,
    with_interval,
)
from flwr_flynn.app.report.plots import DIAGONAL, Axis, Layer, Row, forest, plot
from flwr_flynn.app.report.sections import (
    MOST_BARS,
    MOST_CLASSES,
    Items,
    Report,
    bounded,
    left_out,
    more,
    sentence,
)
from flwr_flynn.federated.purposes import PURPOSES

_LEAST = 100  # samples of a class, for which calibration can be judged


def in_short(report: Report) -> Items:
    """One sentence, ROC and calibration, and the AUROC by site."""
    evaluation = report["evaluation"]
    if not evaluation:
        return
    classes = shown_classes(report)
    drawn = [picture for row in classes[:MOST_CLASSES] for picture in pictures(row)]
    drawn += _by_site(report)
    event = report["event"]
    words = _all_right(report)
    if event and classes:
        why = "named by the run setting event"
        if event["why"] == "rarer":
            why = "the rarer of two classes; event sets another"
        yield "event", f"{event['label']} ({why})"
        words = _in_short(report, classes[0])
    yield joined(tag("p", words, class_="lead"), _gallery(drawn))
    yield left_out(len(classes), "classes", MOST_CLASSES)
    yield left_out(len(report["sites"]), "sites", MOST_BARS)


def _all_right(report: Report) -> str:
    """The share of rows that are right, beside that of the most frequent class."""
    evaluation = report["evaluation"]
    words = (
        f"The model gets {100 * evaluation['accuracy']:.0f} % of held-out rows right"
    )
    if "confusion" in evaluation:
        sizes = np.sum(evaluation["confusion"], axis=1)
        most = report["classes"][sizes.argmax()]
        words += f"; {100 * sizes.max() / sizes.sum():.0f} % are {most}"
    return f"{words}."


def _gallery(pictures: Sequence[Markup]) -> Markup:
    return tag("div", pictures, class_="gallery")


def _in_short(report: Report, of_event: Report) -> str:
    level = reference(report, of_event)
    n, own, found, wrong = _per_hundred(of_event, level)
    words = (
        f"Of {n:,} rows like these, flagging {of_event['label']} at {100 * level:g} % "
        f"finds {found:.0f} of {own:.0f} and flags {wrong:.0f} wrongly"
    )
    expected = spreads(report).get("without", {}).get("prediction")
    areas = areas_of(report, "without")
    if expected:
        _, low, high = expected
        words += (
            f"; at a site that was not in it expect an AUROC of {low:.2f} to {high:.2f}"
        )
    elif areas:
        low = min(area[0] for area in areas)
        words += f"; at a site whose rows were taken out its AUROC was {low:.2f}"
        if len(areas) > 1:
            words += ", the lowest"
    return f"{words}."


def _per_hundred(of_class: Report, level: float) -> tuple[int, float, float, float]:
    """A number of samples, those of the class, and those found and flagged wrongly at a
    threshold: of 100, or of 1000 where the class is rare.
    """
    n = 100
    if share_of(of_class) < 0.05:
        n = 1000
    rates = rates_at(of_class, level)
    numbers = (of_class["examples"], rates["found"], rates["false_alarms"])
    size = of_class["examples"] + of_class["others"]
    own, found, wrong = (n * number / size for number in numbers)
    return n, own, found, wrong


def pictures(of_class: Report) -> list[Markup]:
    """The ROC curve of a class, and its calibration."""
    label = of_class["label"]
    area = f"AUROC {with_interval(of_class['auroc'])}"
    slope = f"slope {with_interval(of_class['calibration_slope'])}"
    roc = [DIAGONAL, ("curve", of_class["roc"])]
    smooth = np.array(
        [[row["predicted"], *row["observed"]] for row in of_class["smooth"]]
    )
    groups = [(row["predicted"], row["observed"][0]) for row in of_class["reliability"]]
    calibration: list[Layer] = [
        DIAGONAL,
        ("band", [*smooth[:, [0, 2]], *smooth[::-1, [0, 3]]]),
        ("curve", smooth[:, :2]),
        ("dot", groups),
    ]
    observed = Axis("predicted"), Axis("observed")
    return [
        plot(f"ROC of {label}", area, Axis("false alarms"), Axis("found"), roc),
        plot(f"Calibration of {label}", slope, *observed, calibration),
    ]


# ---- by site


def _by_site(report: Report) -> list[Markup]:
    """AUROC by site, and its spread."""
    rows: list[Row] = []
    for site in report["sites"][:MOST_BARS]:
        rows.append(Row(_name(report, site)))
        for kind, name in KINDS.items():
            figures = site[kind]
            if figures and figures["auroc"]:
                words = f"{name}, {figure(figures['rows'])} rows"
                rows.append(Row(words, figures["auroc"]))
    for kind, spread in spreads(report).items():
        rows += [
            Row(f"{spread['sites']} sites, {KINDS[kind]}"),
            Row("mean", spread["mean"], "mean"),
        ]
        if spread["prediction"]:
            rows.append(Row("to expect at a new site", spread["prediction"], "range"))
    if not rows:
        return []
    title = "AUROC by site"
    text = (
        "on held-out rows; on all of its rows by the model without the site's counts, "
        "a little too good (see By site); and of a model of its rows alone"
    )
    return [forest(title, text, rows)]


def _name(report: Report, site: Report) -> str:
    """The name of a site, with what the run did to it."""
    name: str = site["name"]
    action = report["action"]
    changed = [update["party"] for update in report["updates"]]
    if action == "join":
        changed = [party["name"] for party in report["parties"]]
    if name in changed:
        name += f" ({PURPOSES[action].done})"
    if site.get("is_validation"):
        name += " (validation)"
    return name


_COLUMNS = {
    "auroc": "AUROC",
    "observed_expected": "O:E",
    "slope": "slope",
    "intercept": "intercept",
}


def sites(report: Report) -> Items:
    """Figures by site, their spread, and what joining gains."""
    rows = []
    for site in report["sites"]:
        for kind, name in KINDS.items():
            figures = site[kind] or {"rows": None, "events": None}
            texts = [with_interval(figures.get(key)) for key in _COLUMNS]
            if not site[kind]:
                texts[0] = site["reasons"].get(kind, NONE)
            sizes = (figures["rows"], figures["events"])
            rows.append((_name(report, site), name, *sizes, *texts))
    if not rows:
        return
    trees = report["trees"] or {}
    yield sentence(
        "The model without a site has none of its counts",
        " and no trees" if trees.get("share") else "",
        "; edges and relevance of columns, hashes, weights and calibration still come "
        "from all sites, so that its labels had a part: with few rows, many columns or "
        "values unlike all others the figure is too good.",
    )
    for kind, spread in spreads(report).items():
        text = (
            f"mean {with_interval(spread['mean'])}, tau {spread['tau']:.2f}, "
            f"I squared {100 * spread['i_squared']:.0f} %"
        )
        if spread["prediction"]:
            _, low, high = spread["prediction"]
            text += f"; at a new site {low:.2f} to {high:.2f}"
        yield f"AUROC of {spread['sites']} sites, {KINDS[kind]}", text
    head = ("site", "figures", "rows", "events", *_COLUMNS.values())
    yield from bounded("Figures by site", head, rows, "rows")
    paired = [
        (
            _name(report, site),
            *chain(*site["alone"]["paired"]),
            f"{site['alone']['mcnemar']:.2g}",
        )
        for site in report["sites"]
        if site["alone"]
    ]
    if paired:
        caption = "Held-out rows that the federation and the site alone get right"
        yield from bounded(caption, ("site", *PAIRED, "McNemar's p"), paired, "sites")


# ---- at thresholds


def use(report: Report) -> Items:
    """Net benefit, probabilities by class, and thresholds in words."""
    of_event = event_class(report)
    if of_event:
        yield _gallery([_benefit(of_event), _probabilities(of_event)])
    yield from in_words(report)


def _benefit(of_event: Report) -> Markup:
    """The decision curve."""
    text = "of the model; dashed: treat all; line at 0: treat none"
    most = share_of(of_event)
    x = Axis("threshold", 0.0, 0.6)
    y = Axis("net benefit", -most / 3, most)
    layers: list[Layer] = [("grid", [(0, 0), (0.6, 0)])]
    rows = decision_curve(of_event)[:60]
    for class_, key in (("other", "treat_all"), ("curve", "net_benefit")):
        points = [(row["threshold"], row[key]) for row in rows if row[key] >= y.low]
        layers.append((class_, points))
    return plot("Net benefit", text, x, y, layers)


def _probabilities(of_event: Report) -> Markup:
    """Shares of the event's samples, and of others, in twenty levels."""
    text = f"of {of_event['label']}; dashed: of all others"
    # From each twentieth on.
    everyone = (of_event["examples"], of_event["others"])
    sizes = [everyone, *of_event["flagged"][9::10], (0, 0)]
    shares = -np.diff(sizes, axis=0) / everyone
    own, rest = shares.T
    points = (np.arange(20) + 0.5) / 20
    layers = [
        ("curve", np.column_stack((points, own))),
        ("other", np.column_stack((points, rest))),
    ]
    y = Axis("share of rows", 0.0, float(shares.max()))
    return plot("Probabilities", text, Axis("probability"), y, layers)


_RATES = ("sensitivity", "specificity", "ppv", "npv")


def in_words(report: Report) -> Items:
    """Rates at thresholds, in words and in a table; of several classes it opens."""
    rows = []
    classes = shown_classes(report)
    for of_class in classes[:MOST_CLASSES]:
        for level in thresholds(report):
            rates = rates_at(of_class, level)
            n, own, found, wrong = _per_hundred(of_class, level)
            words = (
                f"of {n:,} rows {found + wrong:.0f} are flagged, {found:.0f} rightly; "
                f"{own - found:.0f} are missed"
            )
            shown = [with_interval(rates[name]) for name in _RATES]
            rows.append((of_class["label"], f"{rates['threshold']:g}", words, *shown))
    if not rows:
        return
    head = (
        "class",
        "threshold",
        "in words",
        "sensitivity",
        "specificity",
        "PPV",
        "NPV",
    )
    caption = "What thresholds of the probability would do"
    table = bounded(caption, head, rows, "rows", "thresholds")
    if len(classes) > 1:
        table = [more("Thresholds of the probability", *table)]
    yield from table


# ---- sample size


def sample_size(report: Report) -> Items:
    """Samples of the event and others, and the standard errors that follow."""
    of_event = event_class(report)
    if not of_event:
        return
    sizes = (
        f"{figure(of_event['examples'])} events, {figure(of_event['others'])} others"
    )
    if min(of_event["examples"], of_event["others"]) < _LEAST:
        sizes += f"; calibration is uncertain with fewer than {_LEAST} of each"
    yield "held-out rows", sizes
    for name, error in standard_errors(report).items():
        yield f"standard error of {name}", f"{error:.2g}"
