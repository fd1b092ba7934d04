"""The tier of experiments."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what looks at the files of a finished experiment, or runs on Ray."""
    for item in items:
        if {"finished", "on_ray"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
