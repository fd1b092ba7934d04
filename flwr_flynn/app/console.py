"""Prints of the app: the terminal shows texts of files, models and parties, and obeys
none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flwr_flynn.errors import printable


def _line(text: object) -> str:
    """A text as one line, with an escape for each character that is obeyed."""
    return printable(str(text), has_escapes=True)


def say(*lines: object) -> None:
    """Print lines at once."""
    print(*map(_line, lines), sep="\n", flush=True)


def note(line: object) -> None:
    """Print a line about the work on stderr."""
    print(f"flwr-flynn: {_line(line)}", file=sys.stderr)


def write(row: str) -> None:
    """Print a row of a CSV file that ends with a line break, as a stream does."""
    print(_line(row[:-1]))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of texts, those of each column as wide as the widest."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        padded = [f"{text:<{width}}" for text, width in zip(row, widths, strict=True)]
        say("  ".join(padded).rstrip())
