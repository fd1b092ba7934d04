"""Directives that write reference pages from the code, so that the two cannot differ.

``flynn-errors``     the error classes, each with its base classes, docstring and attributes
``flynn-constants``  constants of the wire protocol with their values
``flynn-requests``   requests of the server, each with the keys that its phase declares

At the end of a build, every public name that has no page is a warning. The role of
`names` between single backticks in docstrings makes a link where the name has a page,
and code otherwise.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from flwr_flynn import errors
from flwr_flynn.federated.run_spec import RUN_ENTRIES

_log = logging.getLogger(__name__)

_PUBLIC = ("", ".message", ".privacy", ".privacy.ledger", ".secagg", ".federation")
# explained on the page that lists the others
_WITHOUT_PAGE = {"message", "MECHANISMS", "NEIGHBOURS", "main"}


def error_classes() -> list[type[errors.FlyNNError]]:
    """The public error classes, in the order in which the module has them."""
    classes = [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, errors.FlyNNError)
    ]
    return [each for each in classes if each.__module__ == errors.__name__]


class ErrorsTable(SphinxDirective):
    """The error classes as a table, and each in full."""

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        lines = ["| error | is also a | raised when |", "|---|---|---|"]
        for each in error_classes():
            also = [
                base.__name__
                for base in each.__bases__
                if base.__module__ == "builtins"
            ]
            doc = (
                (inspect.getdoc(each) or "")
                .split("\n\nParameters")[0]
                .replace("\n", " ")
            )
            lines.append(
                f"| {{py:class}}`~flwr_flynn.errors.{each.__name__}` | "
                f"`{', '.join(also)}` | {doc} |"
            )
        names = "\n\n".join(
            f".. autoexception:: flwr_flynn.errors.{each.__name__}"
            for each in error_classes()
        )
        lines += ["", "```{eval-rst}", names, "```"]
        return self.parse_text_to_nodes("\n".join(lines) + "\n")


def _named(place: str) -> Any:
    """The object at ``module:NAME`` of the package."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"flwr_flynn.{module}"), name)


class Constants(SphinxDirective):
    """Constants of modules, one ``module:NAME  meaning`` a line, with their values."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        lines = ["| constant | value | meaning |", "|---|---|---|"]
        for line in self.content:
            place, _, meaning = line.partition("  ")
            shown = place.replace(":", ".")
            lines.append(f"| `{shown}` | `{_named(place)}` | {meaning.strip()} |")
        return self.parse_text_to_nodes("\n".join(lines) + "\n")


class Requests(SphinxDirective):
    """Requests, one ``module:Class`` a line, with what they ask for and their keys."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Make the table, without the keys of the run's spec."""
        lines = ["| phase | the request | keys |", "|---|---|---|"]
        for place in self.content:
            request = _named(place)
            asks = (inspect.getdoc(request) or "").split("\n\n")[0].replace("\n", " ")
            of_run = set(RUN_ENTRIES)
            if not of_run <= set(request.entries):
                of_run = set()
            keys = []
            for key, entry in request.entries.items():
                text = f"`{key.replace('_', '-')}`"
                if not entry.is_needed:
                    text = f"({text})"
                if key not in of_run:
                    keys.append(text)
            lines.append(f"| `{request.phase}` | {asks} | {', '.join(keys)} |")
        return self.parse_text_to_nodes("\n".join(lines) + "\n")


class Maybe(XRefRole):
    """A link to a Python object if the pages have it, code otherwise."""

    def process_link(
        self,
        env: Any,
        refnode: nodes.Element,
        has_explicit_title: bool,
        title: str,
        target: str,
    ) -> tuple[str, str]:
        """Make a node as that of the role ``py:obj``."""
        attributes = {"refdomain": "py", "reftype": "obj", "maybe": True}
        for name, value in (
            attributes
            | {key: env.ref_context.get(key) for key in ("py:module", "py:class")}
        ).items():
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
                _log.warning(
                    "%s.%s is public and has no page in the reference",
                    module.__name__,
                    name,
                )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives and the role."""
    app.add_role("maybe", Maybe())
    app.connect("warn-missing-reference", _accept)
    app.connect("env-check-consistency", _check_complete)
    app.add_directive("flynn-errors", ErrorsTable)
    app.add_directive("flynn-constants", Constants)
    app.add_directive("flynn-requests", Requests)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
