"""Expressions that a reader must unfold, against a table of numbers that only fall.

A statement has one thought, and a value has a name. What the table counts puts two
thoughts into one expression: nothing that is counted here makes code shorter in tokens
by much, and all of it makes code slower to read.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.code import FOLDERS, sources

LONGEST = 100
"""Characters of a line, at most. Code is laid out at 88."""

DENSITY = {
    "joined assignments": {"flwr_flynn": 3},
    "ternaries": {"flwr_flynn": 43, "simulations": 15, "tests": 31},
    "nested ternaries": {},
    "walruses": {"flwr_flynn": 3},
    "values from truth values": {},
    "long lines": {},
}
"""The most of each kind in each folder. A change may lower a number, and does so where
it can."""


def _is_truth_value(node: ast.AST | None) -> bool:
    """True for an expression that is plainly True or False."""
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("bool", "isinstance")
    if isinstance(node, ast.Name):
        return node.id.startswith(("is_", "has_"))
    return isinstance(node, ast.Attribute) and node.attr.startswith(("is_", "has_"))


def _is_joined(node: ast.AST) -> bool:
    """True for `a, b = x, y`."""
    if not isinstance(node, ast.Assign):
        return False
    pairs = (ast.Tuple, ast.List)
    is_unpacked = any(isinstance(target, pairs) for target in node.targets)
    return is_unpacked and isinstance(node.value, pairs)


def _is_ternary(node: ast.AST) -> bool:
    """True for `a if x else b` and for `x and a or b`."""
    if isinstance(node, ast.IfExp):
        return True
    if not isinstance(node, ast.BoolOp) or not isinstance(node.op, ast.Or):
        return False
    first = node.values[0]
    is_pair = len(node.values) == 2 and isinstance(first, ast.BoolOp)
    return is_pair and not _is_truth_value(node.values[1])


def _is_nested(node: ast.AST) -> bool:
    """True for a ternary with another one in it."""
    if not isinstance(node, ast.IfExp):
        return False
    inner = set(ast.walk(node)) - {node}
    return any(isinstance(part, ast.IfExp) for part in inner)


def _is_from_truth_value(node: ast.AST) -> bool:
    """True for `text * (a == b)`, `1 + (a == b)`, `x[: 2 - (a == b)]` and
    `(a, b)[flag]`.
    """
    literals = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple)
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        is_arithmetic = isinstance(node.op, ast.Add | ast.Sub | ast.Mult)
        has_literal = any(isinstance(side, literals) for side in sides)
        return is_arithmetic and has_literal and any(map(_is_truth_value, sides))
    if not isinstance(node, ast.Subscript):
        return False
    index = node.slice
    if isinstance(index, ast.Slice):
        return _is_truth_value(index.lower) or _is_truth_value(index.upper)
    is_table = isinstance(node.value, ast.Tuple | ast.List | ast.Dict)
    return is_table and _is_truth_value(index)


def _is_keyed_by_truth_values(node: ast.AST) -> bool:
    """True for `{True: a, False: b}`."""
    if not isinstance(node, ast.Dict):
        return False
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
    return any(key is True for key in keys) and any(key is False for key in keys)


def _kinds_of(node: ast.AST) -> Iterator[str]:
    """Kinds of `DENSITY` that an expression or a statement is of."""
    if _is_joined(node):
        yield "joined assignments"
    if _is_ternary(node):
        yield "ternaries"
    if _is_nested(node):
        yield "nested ternaries"
    if isinstance(node, ast.NamedExpr):
        yield "walruses"
    if _is_from_truth_value(node) or _is_keyed_by_truth_values(node):
        yield "values from truth values"


def _counted(text: str) -> Counter[str]:
    """The number of expressions and lines of each kind in a file."""
    counted: Counter[str] = Counter()
    for node in ast.walk(ast.parse(text)):
        counted.update(_kinds_of(node))
    counted["long lines"] = sum(len(line) > LONGEST for line in text.splitlines())
    return counted


def _density() -> dict[str, dict[str, int]]:
    """`DENSITY` as the code has it."""
    density: dict[str, dict[str, int]] = {kind: {} for kind in DENSITY}
    for folder in FOLDERS:
        total: Counter[str] = Counter()
        for path in sources(folder).values():
            total += _counted(path.read_text())
        for kind, numbers in density.items():
            numbers[folder] = total[kind]
    return density


def test_code_is_no_denser_than_the_numbers():
    for kind, numbers in _density().items():
        for folder, number in numbers.items():
            most = DENSITY[kind].get(folder, 0)
            assert number <= most, f"{folder} has {number} {kind}, at most {most}"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("a, b = x, y", "joined assignments"),
        ("[a, b] = [x, y]", "joined assignments"),
        ("a = x if y else z", "ternaries"),
        ("a = x and y or z", "ternaries"),
        ("a = x if y else (z if u else v)", "nested ternaries"),
        ("if (a := x): pass", "walruses"),
        ("a = 'text' * (x == y)", "values from truth values"),
        ("a = x[: 2 - (y != z)]", "values from truth values"),
        ("a = x[y == z :]", "values from truth values"),
        ("a = (x, y)[not z]", "values from truth values"),
        ("a = {True: x, False: y}[z]", "values from truth values"),
        ("a = " + "x" * LONGEST, "long lines"),
    ],
)
def test_each_kind_is_counted(line, kind):
    assert _counted(line)[kind] == 1


@pytest.mark.parametrize(
    "line",
    [
        "a, b = f(x)",
        "a = b = x",
        "a = x or y",
        "a = x == y or z",
        "mask = (x == y) * z",
        "a[x == y] = z",
    ],
)
def test_plain_lines_are_not_counted(line):
    assert not +_counted(line)
