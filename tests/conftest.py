"""Settings for all tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from functools import partial
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

# Files that are begun first, so that no process is left with a long one at the end:
# two that compile what all need, the longest of the slow tests, of which those that
# start processes, which wait much, stand between others, and the longest of the quick.
FIRST = (
    "federated/test_run_laws",
    "test_fuzz",
    "integration/test_deployment",
    "privacy/test_noise_mechanisms",
    "test_neighbours",
    "integration/test_disclosure",
    "simulations/test_command",
    "integration/test_faults",
    "federated/test_update",
    "integration/test_pages",
    "simulations/test_notebooks",
    "integration/test_simulation",
    "simulations/test_noniid",
    "integration/test_private",
    "model/test_classifier",
    "integration/test_message",
    "integration/test_installed",
    "federated/test_own_phase",
    "integration/test_secure",
    "model/test_committee",
    "flower/test_secagg",
    "hashing/test_flyhash",
    "app/data/test_datasets",
    "app/test_server_app",
    "test_policy_table",
    "federated/test_laws",
    "flower/test_turns",
    "privacy/test_ledger",
)


MEMORY = Path("/dev/shm")
NEEDED = 4 * 2**30  # bytes


def pytest_configure(config: pytest.Config) -> None:
    """Put the files of tests into memory, where there is room and nobody says otherwise.

    They need not outlive the machine, and tests of many small files wait for its disk most
    of the time.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return
    if shutil.disk_usage(MEMORY).free < NEEDED:
        return
    folder = tempfile.mkdtemp(prefix="flynn-", dir=MEMORY)
    # Processes that tests start, those of xdist among them, have it too.
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Put the tests of some files before the others, and mark those of slow.txt, unless
    they are named.
    """
    known = Path(__file__).with_name("slow.txt").read_text().split()
    if "::" in str(config.args):
        known = []
    n_cases = Counter(item.nodeid.partition("[")[0] for item in items)
    seen = set[str]()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in known and (name in seen or n_cases[name] == 1):
            item.add_marker(pytest.mark.slow)
        seen.add(name)
    places = {
        Path(__file__).parent / f"{name}.py": place for place, name in enumerate(FIRST)
    }
    items.sort(key=lambda item: places.get(item.path, len(places)))
