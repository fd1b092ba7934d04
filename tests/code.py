"""Code of the package: its lines without imports, docstrings, comments and blanks, which cost nothing."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import flwr_flynn

PACKAGE = Path(flwr_flynn.__file__).parent
_SILENT = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> dict[str, Path]:
    """Modules of the package by their paths in it."""
    return {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


def code_lines(path: Path, imports: bool = False) -> list[str]:
    """Lines of a module that are code, without their comments; with `imports`, its import statements too."""
    text, skipped, numbers = path.read_text(), set(), set()
    lines = ["", *text.splitlines()]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) and not imports:
            skipped.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, _DOCUMENTED) and node.body and ast.get_docstring(node, clean=False) is not None:
            skipped.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0]] = lines[token.start[0]][: token.start[1]]
        elif token.type not in _SILENT:
            numbers.update(range(token.start[0], token.end[0] + 1))
    return [lines[number] for number in sorted(numbers - skipped)]
