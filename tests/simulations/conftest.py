"""The tier of experiments."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what looks at the files of a finished experiment, or runs on Ray."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and {"finished", "on_ray"} & set(
            getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.slow)
