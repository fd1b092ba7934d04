"""Prints of the app: the terminal shows texts of files, models and parties, and obeys
none.
"""

from __future__ import annotations

import re
import sys

_OBEYED = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that move the cursor or turn the direction of writing, and half ones."""


def _line(text: object) -> str:
    """A text as one line, with an escape of JSON for each character that is obeyed."""
    line = str(text).replace("\n", " ")
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def say(*lines: object) -> None:
    """Print lines at once."""
    print(*map(_line, lines), sep="\n", flush=True)


def note(line: object) -> None:
    """Print a line about the work on stderr."""
    print(f"flwr-flynn: {_line(line)}", file=sys.stderr)


def write(row: str) -> None:
    """Print a row of a CSV file that ends with a line break, as a stream does."""
    print(_line(row[:-1]))
