"""Section about prediction sets: how sure the model is, by class and by site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flwr_flynn._validation import listed
from flwr_flynn.app.report.markup import figure
from flwr_flynn.app.report.sections import Items, Report, bounded, sentence

_SHOWN = 0.9  # the coverage of the tables
_HEAD = (
    "rows",
    "class in the set",
    "several classes",
    "none",
    "right where a class is alone",
    "classes in a set",
)


def prediction_sets(report: Report) -> Items:
    """Coverage and size of prediction sets on held-out rows."""
    if not report["evaluation"]:
        return
    told = report["evaluation"].get("sets")
    untried = [
        site["name"]
        for site in report["sites"]
        if site["held_out"] and not site["sets"]
    ]
    if untried and not told:
        why = "none (effort quick, noise), or not tried: held-out rows made thresholds"
        yield "prediction sets", f"{why} (held-out-key)"
    if not told:
        return
    yield sentence(
        "Of the rows of each class a set has the class in the share asked for "
        "(flwr-flynn predict --coverage); of the rows with the set of a rare class "
        "alone many may be of others. Each site tried the thresholds of its own copy of "
        "the model, in secure runs those of all, on held-out rows without a part in them."
    )
    if untried:
        yield (
            "sets not tried",
            f"{listed(untried, 10)}: held-out rows made thresholds (held-out-key)",
        )
    several = "several classes"
    if len(told[0]["classes"]) == 2:
        several = "unsure"
    for row in told:
        yield (
            f"sets at {_percent(row['coverage'])}",
            f"{_percent(row['covered'])} of {figure(row['samples'])} rows have their "
            f"class in the set; {_percent(row['several'])} {several}, "
            f"{_percent(row['none'])} none",
        )
    by_site = [
        (site["name"], own)
        for site in report["sites"]
        for own in _shown(site["sets"])
        if own["samples"]
    ]
    if len(by_site) > 1:
        shares = [own["covered"] for _, own in by_site]
        yield (
            f"sets at {_percent(_SHOWN)}, by site",
            f"{_percent(min(shares))} to {_percent(max(shares))}",
        )
    rows = [
        (f"class {own['class']}", *_cells(own))
        for whole in _shown(told)
        for own in whole["classes"]
    ]
    rows += [(name, *_cells(own)) for name, own in by_site]
    caption = f"Prediction sets at {_percent(_SHOWN)}"
    yield from bounded(caption, ("held-out rows of", *_HEAD), rows, "rows")


def _shown(told: Sequence[Report]) -> Iterator[Report]:
    """Figures at the coverage of the tables."""
    return (row for row in told if row["coverage"] == _SHOWN)


def _cells(row: Report) -> tuple[str, ...]:
    """Figures of some rows; dashes of classes that are not told."""
    names = ("covered", "several", "none", "right")
    shares = (_percent(row[name]) for name in names)
    return figure(row["samples"] or None), *shares, figure(row["size"])


def _percent(share: float | None) -> str:
    if share is None:
        return figure(None)
    return f"{100 * share:.0f} %"
