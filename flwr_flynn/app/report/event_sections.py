"""Sections about the event: the first screen, its use at thresholds, and by site."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from flwr_flynn.app.report.derived import (
    KINDS,
    PAIRED,
    decision_curve,
    event_class,
    rates_at,
    reference,
    spreads,
    standard_errors,
    thresholds,
)
from flwr_flynn.app.report.markup import (
    NONE,
    Markup,
    figure,
    gallery,
    tag,
    with_interval,
)
from flwr_flynn.app.report.plots import DIAGONAL, Axis, Layer, Row, forest, plot
from flwr_flynn.app.report.sections import (
    MOST_BARS,
    Facts,
    Report,
    Section,
    bounded,
    left_out,
    more,
    sentence,
    status_of,
)

_LEAST = 100  # samples of a class, for which calibration can be judged


def in_short(report: Report) -> Section:
    """One sentence, ROC and calibration, and the AUROC by site."""
    of_event = event_class(report)
    if of_event is None:
        return Section("In short", [])
    event = report["event"]
    why = "named by the run setting event"
    if event["why"] == "rarer":
        why = "the rarer of two classes; event sets another"
    facts = [("event", f"{event['label']} ({why})")]
    parts = [
        tag("p", _in_short(report, of_event), class_="lead"),
        gallery(pictures(of_event)),
        *_by_site(report),
    ]
    return Section("In short", facts, parts)


def _in_short(report: Report, of_event: Report) -> str:
    level = reference(report, of_event)
    n = in_all(of_event)
    own = n * of_event["examples"] / (of_event["examples"] + of_event["others"])
    rates = rates_at(of_event, level)
    found = own * rates["sensitivity"][0]
    wrong = (n - own) * (1 - rates["specificity"][0])
    words = (
        f"Of {n:,} rows like these, flagging {of_event['label']} at {100 * level:g} % "
        f"finds {found:.0f} of {own:.0f} and flags {wrong:.0f} wrongly"
    )
    expected = spreads(report).get("without", {}).get("prediction")
    if expected:
        _, low, high = expected
        words += (
            f"; at a site that was not in it expect an AUROC of {low:.2f} to {high:.2f}"
        )
    return f"{words}."


def in_all(of_class: Report) -> int:
    """Samples of which sentences speak: 1000 where a class is rare."""
    if 20 * of_class["examples"] < of_class["examples"] + of_class["others"]:
        return 1000
    return 100


def pictures(of_class: Report) -> list[tuple[str, str, Markup]]:
    """The ROC curve of a class, and its calibration."""
    label = of_class["label"]
    area = f"AUROC {with_interval(of_class['auroc'])}"
    axes = (Axis("false alarms"), Axis("found"))
    roc = ("curve", of_class["roc"])
    drawn = plot(f"ROC curve of {label}", area, *axes, [DIAGONAL, roc])
    calibration = of_class["calibration"] or {}
    slope = f"slope {with_interval(calibration.get('slope'))}"
    groups = [row for row in of_class["reliability"] if row["observed"]]
    layers: list[Layer] = [DIAGONAL, *_smooth(of_class["smooth"])]
    for row in groups:
        at = row["predicted"]
        _, low, high = row["observed"]
        layers.append(("other", [(at, low), (at, high)]))
    dots = [(row["predicted"], row["observed"][0]) for row in groups]
    layers.append(("dot", dots))
    axes = (Axis("predicted"), Axis("observed"))
    calibrated = plot(f"Calibration of {label}", slope, *axes, layers)
    return [(f"ROC of {label}", area, drawn), ("Calibration", slope, calibrated)]


def _smooth(curve: Sequence[Report]) -> list[Layer]:
    known = [(row["predicted"], *row["observed"]) for row in curve if row["observed"]]
    low = [(at, end) for at, _, end, _ in known]
    high = [(at, end) for at, _, _, end in reversed(known)]
    line = [(at, value) for at, value, _, _ in known]
    return [("band", low + high), ("curve", line)]


# ---- by site


def _by_site(report: Report) -> list[Markup | None]:
    """AUROC by site, and its spread."""
    rows: list[Row] = []
    areas = [0.5]
    for site in report["sites"][:MOST_BARS]:
        shown = [
            Row(f"{name}, {figure(site[kind]['rows'])} rows", site[kind]["auroc"])
            for kind, name in KINDS.items()
            if site[kind] and site[kind]["auroc"]
        ]
        if shown:
            rows += [Row(_name(report, site)), *shown]
            areas += [row.interval[1] for row in shown if row.interval]
    if not rows:
        return []
    for kind, spread in spreads(report).items():
        rows += [
            Row(f"{spread['sites']} sites, {KINDS[kind]}"),
            Row("mean", spread["mean"], "mean"),
        ]
        if spread["prediction"]:
            rows.append(Row("to expect at a new site", spread["prediction"], "range"))
            areas.append(spread["prediction"][1])
    low = int(10 * min(areas)) / 10
    title = "AUROC by site"
    introduction = (
        "AUROC by site, with 95 % intervals: on held-out rows; on all of its rows by the "
        "model without the site's own counts; and of a model of its own rows alone."
    )
    note = left_out(len(report["sites"]), "sites", MOST_BARS)
    drawn = forest(title, introduction, rows, low)
    return [sentence(introduction), drawn, note]


def _name(report: Report, site: Report) -> str:
    """The name of a site, with what the run did to it."""
    words = [site["name"], status_of(report, site["name"])]
    if site["is_validation"]:
        words.append("(validation)")
    return " ".join(filter(None, words))


_COLUMNS = {
    "auroc": "AUROC",
    "observed_expected": "O:E",
    "slope": "slope",
    "intercept": "intercept",
}


def sites(report: Report) -> Section:
    """Figures by site, their spread, and what joining gains."""
    title = "By site"
    rows = []
    for site in report["sites"]:
        for kind, name in KINDS.items():
            figures = site[kind]
            row = [_name(report, site), name]
            if figures:
                row += [figures["rows"], figures["events"]]
                row += [with_interval(figures[key]) for key in _COLUMNS]
            else:
                reason = site["reasons"].get(kind) or NONE
                row += [NONE, NONE, reason, *[NONE] * 3]
            rows.append(row)
    if not rows:
        return Section(title, [])
    head = ("site", "figures", "rows", "events", *_COLUMNS.values())
    introduction = sentence(
        "The model without a site has none of its counts; columns, hashes, weights and "
        "calibration still come from all sites."
    )
    parts = [introduction, *bounded("Figures by site", head, rows, "rows", "wide")]
    return Section(title, _spread_facts(report), [*parts, *_paired(report)])


def _spread_facts(report: Report) -> Facts:
    facts = []
    for kind, spread in spreads(report).items():
        text = (
            f"mean {with_interval(spread['mean'])}, tau {spread['tau']:.2f}, "
            f"I squared {100 * spread['i_squared']:.0f} %"
        )
        if spread["prediction"]:
            _, low, high = spread["prediction"]
            text += f"; at a new site {low:.2f} to {high:.2f}"
        facts.append((f"AUROC of {spread['sites']} sites, {KINDS[kind]}", text))
    return facts


def _paired(report: Report) -> list[Markup | None]:
    """Held-out samples that the federation and the site alone get right."""
    rows = []
    for site in report["sites"]:
        alone = site["alone"]
        if alone and alone.get("paired"):
            areas = map(with_interval, (alone["federation_auroc"], alone["auroc"]))
            p = f"{alone['mcnemar']:.2g}"
            name = _name(report, site)
            rows.append((name, *chain(*alone["paired"]), p, *areas))
    if not rows:
        return []
    tests = ("McNemar's p", "AUROC of the federation", "AUROC alone")
    head = ("site", *PAIRED, *tests)
    caption = "Gain of joining: held-out rows that each model gets right"
    return [*bounded(caption, head, rows, "sites", "wide")]


# ---- at thresholds


def use(report: Report) -> Section:
    """Net benefit, probabilities by class, and thresholds in words."""
    of_event = event_class(report)
    if of_event is None:
        return Section("Use", [])
    curve = decision_curve(of_event)
    label = of_event["label"]
    own = of_event["examples"]
    rest = of_event["others"]
    high = max(own / (own + rest), 0.01)
    x = Axis("threshold", 0.0, 0.6)
    y = Axis("net benefit", -high / 4, high)
    layers: list[Layer] = [
        (
            class_,
            [(row["threshold"], row[key]) for row in curve if row[key] >= y.low],
        )
        for class_, key in (("other", "treat_all"), ("curve", "net_benefit"))
    ]
    text = "The model, against treating all (dashed) and none (the line at 0)."
    none: Layer = ("grid", [(0, 0), (0.6, 0)])
    drawn = plot(f"Decision curve of {label}", text, x, y, [none, *layers])
    shares = _shares(of_event)
    text = f"Above the line: rows of {label}; below: all others."
    most = max(chain(*shares), default=1.0)
    y = Axis("share of rows", -most, most)
    layers = [
        ("band", _steps([part for part, _ in shares])),
        ("other", _steps([-part for _, part in shares])),
    ]
    x = Axis("probability")
    spread = plot(f"Probabilities of {label}", text, x, y, layers)
    names = ("Net benefit", "Probabilities")
    texts = ("The model; dashed: treat all; line at 0: none.", text)
    shown = gallery([*zip(names, texts, (drawn, spread), strict=True)])
    return Section("Use", [], [shown, *in_words(report, [of_event])])


def _shares(of_class: Report) -> list[tuple[float, float]]:
    """Shares of the class and of the rest in twenty levels of the probability."""
    ends = [(of_class["examples"], of_class["others"])]
    ends += [*of_class["flagged"][9::10], (0, 0)]
    return [
        ((own - next_own) / ends[0][0], (rest - next_rest) / ends[0][1])
        for (own, rest), (next_own, next_rest) in pairwise(ends)
    ]


def _steps(shares: Sequence[float]) -> list[tuple[float, float]]:
    points = [(0.0, 0.0)]
    for index, share in enumerate(shares):
        points += [(index / len(shares), share), ((index + 1) / len(shares), share)]
    return [*points, (1.0, 0.0)]


_RATES = ("sensitivity", "specificity", "ppv", "npv")


def in_words(report: Report, classes: Sequence[Report]) -> list[Markup | None]:
    """Rates of classes at thresholds, in words and in a table; of several it opens."""
    rows = []
    for of_class in classes:
        if not of_class["examples"] or not of_class["others"]:
            continue
        n = in_all(of_class)
        per_row = n / (of_class["examples"] + of_class["others"])
        for level in thresholds(report):
            rates = rates_at(of_class, level)
            hit = per_row * rates["found"]
            flagged = hit + per_row * rates["false_alarms"]
            missed = per_row * of_class["examples"] - hit
            words = (
                f"of {n:,} rows {flagged:.0f} are flagged, {hit:.0f} rightly; "
                f"{missed:.0f} are missed"
            )
            shown = [with_interval(rates[name]) for name in _RATES]
            rows.append((of_class["label"], f"{rates['threshold']:g}", words, *shown))
    if not rows:
        return []
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
    if len(classes) == 1:
        return table
    return [more("Thresholds of the probability", *table)]


# ---- sample size


def sample_size(report: Report) -> Section:
    """Samples of the event and others, and the standard errors that follow."""
    of_event = event_class(report)
    if of_event is None:
        return Section("Sample size", [])
    sizes = (
        f"{figure(of_event['examples'])} events, {figure(of_event['others'])} others"
    )
    least = min(of_event["examples"], of_event["others"])
    if least < _LEAST:
        sizes += f"; calibration is uncertain with fewer than {_LEAST} of each"
    facts = [("held-out rows", sizes)]
    facts += [
        (f"standard error of {name}", f"{error:.2g}")
        for name, error in standard_errors(report).items()
    ]
    return Section("Sample size", facts)
