"""Directives that write reference pages from the code, so that the two cannot differ.

``flynn-settings``   tables of run settings or node settings, one for each group
``flynn-errors``     the error classes, each with its base classes, docstring and attributes
``flynn-constants``  constants of the wire protocol with their values

At the end of a build, every public name that has no page is a warning. The role of `names` between single backticks in
docstrings makes a link where the name has a page, and code otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any, ClassVar

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from flwr_flynn import errors
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.settings_parser import Row, Settings, group_of, key_of

_log = logging.getLogger(__name__)

_PUBLIC = ("", ".message", ".privacy", ".privacy.ledger", ".secagg", ".federation")
_WITHOUT_PAGE = {"message", "MECHANISMS", "NEIGHBOURS", "main"}  # explained on the page that lists the others

_TABLES: dict[str, type[Settings]] = {"run": RunConfig, "node": NodeConfig}


@cache
def _groups(table: type[Settings]) -> dict[str, str]:
    """Words on each group of a table: the docstring of its class."""
    names = {row.group for row in table.rows()}
    owners = {group_of(owner): owner for owner in table.__mro__}
    return {name: " ".join((inspect.getdoc(owners[name]) or "").split()) for name in names}


def _code(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


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
        for word, bound in (("from", facts.low), ("above", facts.above), ("to", facts.high), ("below", facts.below))
        if bound is not None
    ]
    return f"{' '.join([kind, *bounds])}."


def _number(bound: float) -> str:
    """An integer bound, large ones as a power.

    >>> _number(100), _number(10**8), _number(2**63 - 1), _number(0.5)
    ('100', '10<sup>8</sup>', '2<sup>63</sup> - 1', '0.5')
    """
    if bound == int(bound) and bound > 10**5:
        for offset, ending in ((0, ""), (1, " - 1")):
            for base in (10, 2):
                power = round(len(bin(int(bound) + offset)) - 3) if base == 2 else len(str(int(bound))) - 1
                if base**power == int(bound) + offset:
                    return f"{base}<sup>{power}</sup>{ending}"
    return f"{bound:g}"


def notes(row: Row, prefix: str, shared: bool) -> Iterator[str]:
    """Conditions on a setting, each a sentence in Markdown; without those that its whole group has."""
    facts = row.facts
    if facts.required:
        yield "Required."
    if facts.needs:
        needed = " and ".join(f"[`{key_of(name)}`](#{prefix}-{key_of(name)})" for name in facts.needs)
        yield f"Only with {needed}."
    if facts.simulation_only and not shared:
        yield "Simulations only."
    if facts.deployment_only:
        yield "Deployments only."
    if facts.fixed_by_federation:
        actions = ", ".join(f"`{action}`" for action in facts.fixed_by_federation)
        yield f"With action {actions}: from the federation's file."


def settings_table(rows: list[Row], prefix: str) -> str:
    """Settings as a table in Markdown, each key with an anchor: the meaning, then the values and the default."""
    shared = all(row.facts.simulation_only for row in rows)
    lines = ["| key | meaning |", "|---|---|"]
    for row in rows:
        meaning = row.facts.meaning[0].upper() + row.facts.meaning[1:]
        default = _code(row.default)
        facts = [f"{meaning.rstrip('.')}.", allowed(row), f"Default: {default}." if default else ""]
        text = " ".join(filter(None, [*facts, *notes(row, prefix, shared)]))
        lines.append(f"| [`{row.key}`]{{#{prefix}-{row.key}}} | {text} |")
    return "\n".join(lines) + "\n"


class SettingsTables(SphinxDirective):
    """All settings of one table (``run`` or ``node``), a section for each group."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Make the sections."""
        name = self.arguments[0]
        table = _TABLES[name]
        about = _groups(table)
        parts = []
        for group, rows in groupby(table.rows(), lambda row: row.group):
            several = len(about) > 1
            heading = f"## {group.capitalize()}\n\n{about[group]}\n\n" if several else ""
            parts.append(heading + settings_table(list(rows), f"{name}-setting"))
        return self.parse_text_to_nodes("\n\n".join(parts), allow_section_headings=True)


def error_classes() -> list[type[errors.FlyNNError]]:
    """The public error classes, in the order in which the module has them."""
    classes = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.FlyNNError)]
    return [each for each in classes if each.__module__ == errors.__name__]


class ErrorsTable(SphinxDirective):
    """The error classes as a table, and each in full."""

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        lines = ["| error | is also a | raised when |", "|---|---|---|"]
        for each in error_classes():
            also = [base.__name__ for base in each.__bases__ if base.__module__ == "builtins"]
            doc = (inspect.getdoc(each) or "").split("\n\nParameters")[0].replace("\n", " ")
            lines.append(f"| {{py:class}}`~flwr_flynn.errors.{each.__name__}` | `{', '.join(also)}` | {doc} |")
        names = "\n\n".join(f".. autoexception:: flwr_flynn.errors.{each.__name__}" for each in error_classes())
        lines += ["", "```{eval-rst}", names, "```"]
        return self.parse_text_to_nodes("\n".join(lines) + "\n")


class Constants(SphinxDirective):
    """Constants of modules, one ``module:NAME  meaning`` a line, with their values."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        lines = ["| constant | value | meaning |", "|---|---|---|"]
        for line in self.content:
            place, _, meaning = line.partition("  ")
            module, _, name = place.partition(":")
            value = getattr(import_module(f"flwr_flynn.{module}"), name)
            lines.append(f"| `{module}.{name}` | `{value}` | {meaning.strip()} |")
        return self.parse_text_to_nodes("\n".join(lines) + "\n")


class Maybe(XRefRole):
    """A link to a Python object if the pages have it, code otherwise."""

    def process_link(
        self, env: Any, refnode: nodes.Element, has_explicit_title: bool, title: str, target: str
    ) -> tuple[str, str]:
        """Make a node as that of the role ``py:obj``."""
        attributes = {"refdomain": "py", "reftype": "obj", "maybe": True}
        for name, value in (attributes | {key: env.ref_context.get(key) for key in ("py:module", "py:class")}).items():
            refnode[name] = value
        return title, target


def _accept(app: Sphinx, domain: Any, node: pending_xref) -> bool | None:
    """Keep Sphinx from warning about names that have no page."""
    return True if node.get("maybe") else None


def _check_complete(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of public names that no page describes."""
    described = {name for name, *_ in env.get_domain("py").get_objects()}
    for place in _PUBLIC:
        module = import_module(f"flwr_flynn{place}")
        for name in set(module.__all__) - _WITHOUT_PAGE:
            home = errors.__name__ if hasattr(errors, name) else module.__name__
            if f"{home}.{name}" not in described:
                _log.warning("%s.%s is public and has no page in the reference", module.__name__, name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives and the role."""
    app.add_role("maybe", Maybe())
    app.connect("warn-missing-reference", _accept)
    app.connect("env-check-consistency", _check_complete)
    app.add_directive("flynn-settings", SettingsTables)
    app.add_directive("flynn-errors", ErrorsTable)
    app.add_directive("flynn-constants", Constants)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
