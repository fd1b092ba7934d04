"""Modules import one way, imports for types alone included, and can be read in one
sitting.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import grimp
import pytest

from tests.code import PACKAGE, modules, n_tokens

LONGEST_MODULE = 4_000
LONGEST_FUNCTION = 670
"""Tokens of a module, and of a function, at most; see `tests.code.n_tokens`."""

KERNELS = "hashing/winner_kernels.py"
"""Compiled functions, whose loops are not cut where a reader would cut them."""


def test_no_module_imports_itself_by_way_of_others():
    graph = grimp.build_graph("flwr_flynn", cache_dir=None)
    found = {
        name: graph.find_modules_directly_imported_by(name) for name in graph.modules
    }
    assert len(found) > 80
    # The package's own names are imported when they are first used; a module needs no
    # import of its own package.
    found = {
        name: {each for each in targets if not name.startswith(f"{each}.")}
        for name, targets in found.items()
    }
    assert len(
        list(TopologicalSorter({**found, "flwr_flynn": set()}).static_order())
    ) == len(found)


def test_nothing_is_unpickled():
    unpickles = re.compile(
        r"allow_pickle=(?!False)|^\s*(import|from) (pickle|marshal|shelve|joblib)\b",
        re.MULTILINE,
    )
    assert [
        path.name
        for path in PACKAGE.rglob("*.py")
        if unpickles.search(path.read_text())
    ] == []


def test_modules_and_functions_are_short():
    sizes = {}
    for name, path in modules().items():
        if name == KERNELS:
            continue
        code = path.read_text()
        size = n_tokens(code)
        if size > LONGEST_MODULE:
            sizes[name] = size
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.FunctionDef):
                function = ast.unparse(node)
                # A token has a character at least.
                if len(function) <= LONGEST_FUNCTION:
                    continue
                size = n_tokens(function)
                if size > LONGEST_FUNCTION:
                    sizes[f"{name} {node.name}"] = size
    assert not sizes


def imported_by(code: str) -> set[str]:
    """Modules that a new process has imported after some code."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    return set(
        subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.split()
    )


LATER = {"flwr_flynn": "flwr numpy numba scipy sklearn"}
# A deployed party imports the first for each message.
LATER |= dict.fromkeys(
    ("flwr_flynn.app.client_app", "flwr_flynn.app.server_app"),
    "sklearn scipy.stats pandas ray",
)


@pytest.mark.parametrize(("module", "later"), LATER.items())
def test_what_takes_long_to_import_is_imported_when_it_is_used(module, later):
    found = imported_by(f"import {module}")
    assert module in found
    assert not set(later.split()) & found


def test_what_a_party_needs_to_keep_a_model_is_imported_before_the_time_of_its_answers_runs():
    party = (
        "from flwr_flynn.federated.party import *; Party(lambda _: None, "
        "PartyOptions(on_model=print{}))"
    )
    assert "sklearn" not in imported_by(party.format(""))
    assert "sklearn" in imported_by(party.format(", response_seconds=1.0"))
