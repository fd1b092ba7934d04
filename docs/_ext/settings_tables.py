"""Tables of the settings in `docs/reference`, in plain Markdown:
`python docs/_ext/settings_tables.py` writes them.

They stand between two comments of their page. A test compares them with the
declarations in the package.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.settings_parser import Row, Settings, group_of, key_of

PAGES: dict[Path, type[Settings]] = {
    Path(__file__).parents[1] / "reference" / name: table
    for name, table in (
        ("run_settings.md", RunConfig),
        ("node_settings.md", NodeConfig),
    )
}
BEGIN, END = (
    "<!-- settings: written by docs/_ext/settings_tables.py -->\n",
    "<!-- end of settings -->\n",
)


def _code(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


def _number(bound: float) -> str:
    """An integer bound, large ones as a power.

    >>> _number(100), _number(10**8), _number(2**63 - 1), _number(0.5)
    ('100', '10<sup>8</sup>', '2<sup>63</sup> - 1', '0.5')
    """
    if bound == int(bound) and bound > 10**5:
        for offset, ending in ((0, ""), (1, " - 1")):
            for base in (10, 2):
                power = (
                    round(len(bin(int(bound) + offset)) - 3)
                    if base == 2
                    else len(str(int(bound))) - 1
                )
                if base**power == int(bound) + offset:
                    return f"{base}<sup>{power}</sup>{ending}"
    return f"{bound:g}"


def allowed(row: Row) -> str:
    """Values that a setting may have, as a sentence in Markdown; none for texts."""
    facts, default = row.facts, row.default
    if facts.choices:
        named = ", ".join(_code(choice) for choice in facts.choices if choice != "")
        return f"Empty or {named}." if "" in facts.choices else f"One of {named}."
    if isinstance(default, bool):
        return "`true` or `false`."
    if isinstance(default, str):
        return ""
    kind = "An integer" if isinstance(default, int) else "A number"
    bounds = [
        f"{word} {_number(bound)}"
        for word, bound in (
            ("from", facts.low),
            ("above", facts.above),
            ("to", facts.high),
            ("below", facts.below),
        )
        if math.isfinite(bound)
    ]
    return f"{' '.join([kind, *bounds])}."


def notes(row: Row, shared: bool) -> Iterator[str]:
    """Conditions on a setting, each a sentence in Markdown; without those that its
    whole group has.
    """
    facts = row.facts
    if facts.required:
        yield "Required."
    if facts.needs:
        yield f"Only with {' and '.join(_code(key_of(name)) for name in facts.needs)}."
    if facts.simulation_only and not shared:
        yield "Simulations only."
    if facts.deployment_only:
        yield "Deployments only."
    if facts.fixed_by_federation:
        yield (
            f"With action {', '.join(map(_code, facts.fixed_by_federation))}: from "
            "the federation's file."
        )


def _table(rows: list[Row]) -> str:
    shared = all(row.facts.simulation_only for row in rows)
    lines = ["| key | meaning |", "|---|---|"]
    for row in rows:
        meaning = row.facts.meaning[0].upper() + row.facts.meaning[1:]
        default = _code(row.default)
        facts = [
            f"{meaning.rstrip('.')}.",
            allowed(row),
            f"Default: {default}." if default else "",
        ]
        text = " ".join(filter(None, [*facts, *notes(row, shared)]))
        lines.append(f"| {_code(row.key)} | {text} |")
    return "\n".join(lines) + "\n"


def tables(settings: type[Settings]) -> str:
    """All settings: a section for each group, with the docstring of its class, where
    there is more than one group.
    """
    groups = {
        name: list(rows)
        for name, rows in groupby(settings.rows(), lambda row: row.group)
    }
    about = {
        group_of(owner): " ".join((inspect.getdoc(owner) or "").split())
        for owner in settings.__mro__
    }
    headings = {
        name: f"## {name.capitalize()}\n\n{about[name]}\n\n" if len(groups) > 1 else ""
        for name in groups
    }
    return "\n".join(headings[name] + _table(rows) for name, rows in groups.items())


def page_with(text: str, settings: type[Settings]) -> str:
    """A page with the tables of today."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{tables(settings)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    for path, settings in PAGES.items():
        path.write_text(
            page_with(path.read_text(encoding="utf-8"), settings), encoding="utf-8"
        )
