"""Tokens of each package, of the simulations and of the tests, against a table.

Tokens are counted as `tests.code.n_tokens` says, so that layout, names, comments,
docstrings and imports cost nothing. A number has 3 % of room above it. Raising one is a
commit of its own, which says what went for it; code 6 % below its number lowers it.
"""

from __future__ import annotations

from collections import Counter

from tests.code import FOLDERS, n_tokens, sources

SIZES = {
    "top level": 3_300,
    "tables": 24_600,
    "hashing": 13_000,
    "model": 45_600,
    "privacy": 9_150,
    "federated": 54_300,
    "flower": 9_300,
    "app": 53_700,
    "flwr_flynn": 210_600,
    "simulations": 62_400,
    "tests": 317_800,
}
ROOM = 0.03
"""Share of a number by which the code may be above it."""

SLACK = 0.06
"""Share of a number by which the code may be below it before the number is lowered."""


def _package_of(path: str) -> str:
    """The name in `SIZES` of the package that a file of ``flwr_flynn`` belongs to."""
    folders = path.split("/")[1:-1]
    if folders:
        return folders[0]
    return "top level"


def _sizes() -> Counter[str]:
    sizes: Counter[str] = Counter()
    for folder in FOLDERS:
        for name, path in sources(folder).items():
            size = n_tokens(path.read_text())
            sizes[folder] += size
            if folder == "flwr_flynn":
                sizes[_package_of(name)] += size
    return sizes


def test_sizes_are_within_the_room_of_their_numbers():
    sizes = _sizes()
    assert sizes.keys() == SIZES.keys()
    too_large = {}
    to_lower = {}
    for name, size in sizes.items():
        if size > SIZES[name] * (1 + ROOM):
            too_large[name] = size
        if size < SIZES[name] * (1 - SLACK):
            to_lower[name] = size
    assert not too_large, f"more tokens than SIZES and its room allow: {too_large}"
    assert not to_lower, f"numbers of SIZES to lower: {to_lower}"
