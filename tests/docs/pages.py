"""README.md and the pages under docs/, as text and as code blocks."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]

_FILES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in _FILES if "_build" not in path.parts
)


class Block(NamedTuple):
    """One fenced block of a page: its language, its text, and its output if any."""

    language: str
    text: str
    output: str | None


_FENCE = re.compile(
    r"^```(\S*)[^\n]*\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)


def text_of(page: str) -> str:
    """The Markdown of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def all_blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page in their order.

    A block `text` right behind another one is the output of that.
    """
    for language, text, output in _FENCE.findall(text_of(page)):
        yield Block(language, text, output or None)


def blocks(page: str, language: str) -> list[str]:
    """The texts of a page's blocks in one language."""
    return [block.text for block in all_blocks(page) if block.language == language]


def run_python(text: str, page: str, names: dict[str, Any]) -> str:
    """Run a Python block of a page with the names of earlier ones; returns the output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, page, "exec"), names)
    return printed.getvalue()
