"""The page `report.html`: a function of the content of metrics.json, in one file that loads nothing.

The content may come from anywhere: it is checked, and cut to what the page shows, or refused with an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from flwr_flynn import _validation
from flwr_flynn._markup import Markup, count, figure, in_bytes, shortened, tag
from flwr_flynn._validation import LARGEST
from flwr_flynn.app.report import results, sections
from flwr_flynn.app.report.pictures import html_page, tiles, with_interval
from flwr_flynn.app.report.sections import Parts, Report
from flwr_flynn.errors import DataError
from flwr_flynn.privacy.accounting import shown_bound

_MOST_BYTES = 2**26
_LONGEST = 4000  # characters of a guarantee or a setting

Leaf = Callable[[str, Any], Any]


class Each(NamedTuple):
    """An object with any names, whose values have one shape."""

    shape: Any


def read(path: Path) -> Any:
    """Values of a JSON file, whose size is checked before it is read."""
    field = repr(path.name[:80])
    if not path.is_file():
        raise DataError(field, "a file", "none")
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise DataError(field, f"at most {_MOST_BYTES} bytes", size)
    try:
        return json.loads(path.read_bytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise DataError(field, "JSON with finite numbers", "something else") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


# ---- values


def _a(kind: type | tuple[type, ...], words: str, most: int = 200) -> Leaf:
    def leaf(field: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise DataError(field, words, type(value).__name__)
        return shortened(value, most) if isinstance(value, str) else value

    return leaf


def _figure(field: str, value: Any) -> float:
    _NUMBER(field, value)
    return _validation.number(field, value, error=DataError)


def _count(field: str, value: Any) -> int:
    _NUMBER(field, value)
    return _validation.integer(field, value, 0, LARGEST, DataError)


def _scalar(field: str, value: Any) -> Any:
    value = _a((str, bool, int, float), "a text, a number or a boolean", _LONGEST)(field, value)
    if isinstance(value, float):
        return _figure(field, value)
    return value if isinstance(value, str | bool) else _validation.integer(field, value, -LARGEST, error=DataError)


def _label(field: str, value: Any) -> str:
    return shortened(_scalar(field, value))


def _row(n: int) -> Leaf:
    """A leaf of so many figures."""

    def leaf(field: str, value: Any) -> list[float]:
        found = checked(field, value, [_figure])
        if len(found) != n:
            raise DataError(field, f"{n} numbers", len(found))
        return list(found)

    return leaf


def _maybe(leaf: Leaf) -> Leaf:
    return lambda field, value: None if value is None else leaf(field, value)


_NUMBER, _TEXT, _FLAG = _a((int, float), "a number"), _a(str, "a text"), _a(bool, "a boolean")
_LONG = _a(str, "a text", _LONGEST)
_MAYBE, _MAYBE_COUNT, _MAYBE_TEXT, _MAYBE_FLAG = _maybe(_figure), _maybe(_count), _maybe(_TEXT), _maybe(_FLAG)
_INTERVAL, _POINT = _maybe(_row(3)), _row(2)
_REASONS = Each(_TEXT)

# ---- the shape

_NAMES = ("auroc", "auprc", "brier", "log_loss", "calibration_error", "calibration_slope", "calibration_intercept")
FIGURES = {"examples": _MAYBE_COUNT, **dict.fromkeys((*_NAMES, "accuracy"), _INTERVAL)}
_PARTIES = [{"name": _TEXT, "accuracy": _figure, "examples": _count}]
_CLASS = {
    "label": _label,
    "examples": _MAYBE_COUNT,
    "others": _MAYBE_COUNT,
    "auroc": _INTERVAL,
    "auprc": _INTERVAL,
    "calibration": {"error": _INTERVAL, "slope": _INTERVAL, "intercept": _INTERVAL},
    "thresholds": [{"threshold": _figure, **dict.fromkeys(("sensitivity", "specificity", "ppv", "npv"), _INTERVAL)}],
    "roc": [_POINT],
    "reliability": [{"predicted": _figure, "observed": _INTERVAL, "examples": _count}],
}
_EVALUATION = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "accuracy_std"), _MAYBE),
    "examples": _MAYBE_COUNT,
    "parties": _PARTIES,
    "confusion": [[_count]],
    "class_prior": {"accuracy": _MAYBE, "balanced_accuracy": _MAYBE, "macro_f1": _MAYBE},
    "figures": {
        "examples": _MAYBE_COUNT,
        "resolution": _MAYBE,
        "overall": FIGURES,
        "classes": [_CLASS],
        "parties": [{"name": _TEXT, **FIGURES}],
        "groups": {"column": _TEXT, "levels": [{"level": _label, **FIGURES}]},
    },
}
_FIELD = {"name": _TEXT, "shape": [_count], "bytes": _maybe(_row(3))}
SHAPE: dict[str, Any] = {
    "action": _MAYBE_TEXT,
    "run": {"run_id": _MAYBE_TEXT, "seconds": _MAYBE},
    "simulation": {"parties": _count, "dealt": _MAYBE_COUNT, "samples": _MAYBE_COUNT},
    "parties": [{"name": _TEXT, "examples": _MAYBE_COUNT, "bytes": _MAYBE_COUNT, "seconds": _MAYBE}],
    "federation": [{"party": _MAYBE_TEXT}],
    "missing": _REASONS,
    "evaluation_missing": _REASONS,
    "unkept": _REASONS,
    "evaluation_errors": [_TEXT],
    "examples": _MAYBE_COUNT,
    "classes": [_label],
    "class_sizes": Each([_count]),
    "evaluation": _EVALUATION,
    "schema": {"missing": _REASONS, "coinciding": _REASONS},
    "columns": {"missing": _REASONS},
    "members": [{"hash_dim": _count, "row_nnz": _count, "hash_nnz": _count, "weight": _figure, "decay": _figure}],
    "specs": [{"hash_dim": _MAYBE_COUNT}],
    "selection": {"choices": [_row(3)], "accuracies": [[_figure]], "examples": _MAYBE_COUNT, "missing": _REASONS},
    "refinement": {"rounds": _count, "missing": Each(_REASONS)},
    "gram": {"rows": _count, "examples": _count, "used": _FLAG, "missing": Each(_REASONS)},
    "traffic": Each({"parties": _count, "up": _figure, "down": _figure}),
    "messages": Each({"kind": _TEXT, "parties": _MAYBE_COUNT, "fields": [_FIELD]}),
    "sha256": {
        **dict.fromkeys(("model", "federated", "pooled"), _MAYBE_TEXT),
        **dict.fromkeys(("equal", "model_equal"), _MAYBE_FLAG),
    },
    "privacy": {
        "guarantee": _LONG,
        "notes": [_LONG],
        "epsilon": _MAYBE,
        "delta": _MAYBE,
        "noise_sd": _MAYBE,
        "examples_estimate": _maybe(lambda field, value: _validation.integer(field, value, -LARGEST, error=DataError)),
        "covers_evaluation": _FLAG,
    },
    "settings": Each(_scalar),
    "versions": Each(_TEXT),
}
"""The parts of metrics.json that the page shows. An object may be missing, and is None then; lists are empty."""


def checked(field: str, value: Any, shape: Any) -> Any:
    """The value, with nothing but the entries of the shape; a `DataError` where an entry is of another kind."""
    if isinstance(shape, dict):
        _a(dict, "an object")(field, value)
        return {name: _entry(f"{field}.{name}", value.get(name), each) for name, each in shape.items()}
    if isinstance(shape, list):
        _a((list, tuple), "a list")(field, value)
        return [checked(f"{field}[{i}]", each, shape[0]) for i, each in enumerate(value)]
    if isinstance(shape, Each):
        _a(dict, "an object")(field, value)
        named = {_TEXT(f"a name in {field}", name): each for name, each in value.items()}
        return {name: checked(f"{field}[{name[:40]!r}]", each, shape.shape) for name, each in named.items()}
    return shape(field, value)


def _entry(field: str, value: Any, shape: Any) -> Any:
    if value is None and isinstance(shape, dict | list | Each):
        return None if isinstance(shape, dict) else [] if isinstance(shape, list) else {}
    return checked(field, value, shape)


SECTIONS: dict[str, Callable[[Report], Parts]] = {
    "Who took part": sections.participation,
    "Classes by party": sections.skew,
    "Accuracy by party": results.accuracy,
    "Figures": results.scores,
    "Confusion": results.confusion,
    "ROC and calibration": results.curves,
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
    report = checked("metrics.json", made, SHAPE)
    found = {name: parts for name, make in SECTIONS.items() if (parts := make(report))}
    done = _DONE.get(report["action"], "took part in a run")
    if report["action"] == "join":
        done += f" of {count(len(report['federation']), 'party', 'parties')}"
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


def figures_csv(made: Any) -> str:
    """The figures of the page's sections about accuracy, as CSV."""
    return results.as_csv(checked("metrics.json", made, SHAPE))


def show(path: str) -> int:
    """Print the page of a metrics.json, for the command `flwr-flynn report`."""
    text = page(read(Path(path)))
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
