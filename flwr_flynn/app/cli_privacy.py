"""The verb `flwr-flynn privacy plan`: what a private run would reach, before any epsilon is spent."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flwr_flynn._files import writing
from flwr_flynn._markup import Markup
from flwr_flynn.app.report.pictures import intervals
from flwr_flynn.app.report.style import whole_page
from flwr_flynn.privacy.planning import PrivacyPlan, plan

_NUMBERS: dict[str, tuple[type, str]] = {
    "examples": (int, "samples of all parties together, roughly"),
    "features": (int, "columns"),
    "classes": (int, "classes"),
    "parties": (int, "parties"),
    "epsilon": (float, "bound on the privacy loss"),
}
_OPTIONS: dict[str, tuple[type, str]] = {
    "delta": (float, "probability with which the bound may fail (default: 1e-5); 0: Laplace noise"),
    "honest-parties": (int, "parties that share one noise, follow the protocol and stay; default: each its own noise"),
    "rounds": (int, "the setting private-rounds (default: 0)"),
}


def add_verb(verbs: Any) -> None:
    """Add the verb and its options to a parser's verbs."""
    parent = verbs.add_parser("privacy", help="what a private run would reach, before any epsilon is spent")
    verb = parent.add_subparsers(dest="what", required=True, metavar="plan").add_parser("plan")
    for is_required, options in ((True, _NUMBERS), (False, _OPTIONS)):
        for name, (kind, meaning) in options.items():
            verb.add_argument(f"--{name}", type=kind, required=is_required, help=meaning)
    verb.add_argument("--class-sizes", type=_sizes, help="public sizes of the classes, with commas between")
    verb.add_argument(
        "--measured", type=_pair, metavar="RATIO@EPSILON", help="a ratio to no noise that is known of such data"
    )
    verb.add_argument("--html", type=Path, metavar="FILE", help="write a page with a picture, too")


def _sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("expected integers with commas between") from None


def _pair(text: str) -> tuple[float, float]:
    try:
        ratio, epsilon = map(float, text.split("@"))
    except ValueError:
        raise argparse.ArgumentTypeError("expected a ratio and an epsilon, such as 0.9@1") from None
    return epsilon, ratio


def show(options: argparse.Namespace) -> int:
    """Print the plan, and write its page."""
    counted = {f"n_{name}": getattr(options, name) for name in ("examples", "features", "classes", "parties")}
    others = ("delta", "honest_parties", "rounds", "class_sizes", "measured")
    given = {name: value for name in others if (value := getattr(options, name)) is not None}
    found = plan(**counted, epsilon=options.epsilon, **given)
    print(found)
    if options.html is not None:
        with writing(options.html) as stream:
            stream.write(page(found).encode())
    return 0


def page(found: PrivacyPlan) -> str:
    """The plan as a page with a picture."""
    title = "Balanced accuracy to expect, as a ratio to that without noise"
    rows = [(name.strip(), (each.ratio, each.low, each.high)) for name, each in found.rows]
    picture = intervals(title, "A point with an interval of 80 % for each choice", rows, found.expected.ratio)
    return whole_page("Before epsilon is spent", Markup(found._repr_html_()), picture)
