"""Code of the package, the simulations and the tests: their files, lines and tokens."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import flwr_flynn

PACKAGE = Path(flwr_flynn.__file__).parent
ROOT = PACKAGE.parent
FOLDERS = ("flwr_flynn", "simulations", "tests")

_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
"""Kinds of tokens that are layout and no code."""

_WITH_BODY = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> dict[str, Path]:
    """Modules of the package by their paths in it."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): path for path in paths}


def sources(folder: str) -> dict[str, Path]:
    """Python files of a top folder of the checkout, by their paths in the checkout."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path for path in paths}


def is_text_alone(statement: ast.stmt) -> bool:
    """True for a docstring, of whatever it stands behind."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


class _WithoutTexts(ast.NodeTransformer):
    """Remove docstrings and imports, and put `pass` where nothing else would be left."""

    def generic_visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return None
        if isinstance(node, ast.stmt) and is_text_alone(node):
            return None
        super().generic_visit(node)
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node


def n_tokens(text: str) -> int:
    """Tokens of code, however it is laid out: without comments, docstrings and imports."""
    tree = _WithoutTexts().visit(ast.parse(text))
    written = ast.unparse(ast.fix_missing_locations(tree))
    tokens = tokenize.generate_tokens(io.StringIO(written).readline)
    return sum(token.type not in _SILENT for token in tokens)


def _silent_statements(tree: ast.AST, imports: bool) -> Iterator[ast.stmt]:
    """Docstrings of a tree, and its import statements unless they are asked for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and not imports:
            yield node
        elif isinstance(node, _WITH_BODY) and any(map(is_text_alone, node.body[:1])):
            yield node.body[0]


def code_lines(path: Path, imports: bool = False) -> list[str]:
    """Lines of a file that are code, without comments; with `imports`, its imports too."""
    text = path.read_text()
    lines = ["", *text.splitlines()]
    skipped: set[int] = set()
    for statement in _silent_statements(ast.parse(text), imports):
        last = statement.end_lineno or statement.lineno
        skipped.update(range(statement.lineno, last + 1))
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        number, position = token.start
        if token.type == tokenize.COMMENT:
            lines[number] = lines[number][:position]
        elif token.type not in _SILENT:
            numbers.update(range(number, token.end[0] + 1))
    return [lines[number] for number in sorted(numbers - skipped)]
