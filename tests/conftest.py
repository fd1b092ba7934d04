"""Settings for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Compilation and shared machines make single examples slow now and then; the number of
# examples is the bound. CI draws the same examples every time: what it says depends on
# the change alone. Elsewhere they are new each time. A property whose examples are
# costly names a lower number; `--hypothesis-profile ci` is for CI and before a release.
settings.register_profile(
    "quick", max_examples=20, deadline=None, derandomize=bool(os.environ.get("CI"))
)
settings.register_profile("ci", settings.get_profile("quick"), max_examples=300)
settings.load_profile("quick")

# No test may leave this machine.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"

# Files that are begun first, so that no process is left with a long one at the end.
# Those of processes of their own, which wait much, come when the first two have
# compiled what all need, and one at a time.
FIRST = (
    "federated/test_run_laws",
    "federated/phases/test_gram",
    "model/test_classifier",
    "integration/test_simulation",
    "flower/test_secagg",
    "hashing/test_flyhash",
    "test_fuzz",
    "simulations/test_noniid",
    "privacy/test_noise_mechanisms",
    "app/data/test_datasets",
    "app/test_server_app",
    "test_policy_table",
    "federated/test_laws",
    "flower/test_turns",
    "privacy/test_ledger",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of some files before the others."""
    places = {
        Path(__file__).parent / f"{name}.py": place for place, name in enumerate(FIRST)
    }
    items.sort(key=lambda item: places.get(item.path, len(places)))
