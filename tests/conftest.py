"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# Compilation and shared machines make single examples slow now and then; the number of examples is the bound.
# CI draws the same examples every time: what it says depends on the change alone. Elsewhere they are new each time.
# A property whose examples are costly names a lower number; `--hypothesis-profile ci` is for CI and before a release.
settings.register_profile("quick", max_examples=20, deadline=None, derandomize=bool(os.environ.get("CI")))
settings.register_profile("ci", settings.get_profile("quick"), max_examples=300)
settings.load_profile("quick")

# No test may leave this machine.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"
