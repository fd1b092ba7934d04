"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# Compilation and shared machines make single examples slow now and then; the number of examples is the bound.
# CI draws the same examples every time: what it says depends on the change alone. Elsewhere they are new each time.
settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("default")

# No test may leave this machine.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"
