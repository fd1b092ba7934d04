"""Texts on record: what the app prints, whole."""

from __future__ import annotations

import os
from pathlib import Path


def assert_on_record(path: Path, text: str) -> None:
    """Require the text on record; with RECORD=1 in the environment, tests write it anew."""
    if os.environ.get("RECORD"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
