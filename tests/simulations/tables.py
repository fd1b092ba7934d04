"""Tables that the experiments write."""

from __future__ import annotations

import csv
from pathlib import Path


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
