"""Flower's names that moved between versions, and the newest tested version, see docs/reference/versions.md."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

try:
    from flwr.compat.common import recorddict_compat
    from flwr.compat.server.typing import Workflow
except ImportError:  # before 1.32
    from flwr.common import recorddict_compat  # type: ignore[no-redef]
    from flwr.server.typing import Workflow  # type: ignore[import-not-found, no-redef]

__all__ = ["Workflow", "is_simulated", "recorddict_compat", "untested"]

NEWEST_TESTED = (1, 42)
"""The newest minor version that `python -m tests.flower_versions` ran."""


def is_simulated(grid: Any) -> bool:
    """True for the grid of a simulation."""
    try:
        from flwr.superlink.grid import InMemoryGrid
    except ImportError:  # before 1.31
        from flwr.server.grid import InMemoryGrid  # type: ignore[import-not-found, no-redef]
    return isinstance(grid, InMemoryGrid)


def untested() -> str:
    """A warning if Flower is newer than the newest tested version; else ""."""
    here = version("flwr")
    if tuple(map(int, here.split(".")[:2])) <= NEWEST_TESTED:
        return ""
    return f"Flower {here} is newer than {NEWEST_TESTED[0]}.{NEWEST_TESTED[1]}, the newest that was tested"
