"""Code of the package, the simulations and the tests: their files, text and tokens."""

from __future__ import annotations

import ast
import io
import tokenize
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


def sources(folder: str) -> dict[str, Path]:
    """Python files of a top folder of the checkout, by their paths in the checkout."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path for path in paths}


def modules() -> dict[str, Path]:
    """Modules of the package by their paths in it."""
    return {
        name.removeprefix("flwr_flynn/"): path
        for name, path in sources("flwr_flynn").items()
    }


class _Bare(ast.NodeTransformer):
    """Remove docstrings and, unless they are wanted, imports."""

    def __init__(self, imports: bool) -> None:
        self.imports = imports

    def generic_visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Import | ast.ImportFrom) and not self.imports:
            return None
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            return None
        super().generic_visit(node)
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]
        return node


def bare(text: str, imports: bool = False) -> str:
    """Code as it is written out again, without comments and docstrings."""
    tree = _Bare(imports).visit(ast.parse(text))
    return ast.unparse(ast.fix_missing_locations(tree))


def n_tokens(text: str) -> int:
    """Tokens of code, however it is laid out: without comments, docstrings and imports.

    A text with values in it is one token, as it is to Python before 3.12.
    """
    depth = 0
    number = 0
    for token in tokenize.generate_tokens(io.StringIO(bare(text)).readline):
        kind = tokenize.tok_name[token.type]
        if token.type not in _SILENT and not depth:
            number += 1
        if kind == "FSTRING_START":
            depth += 1
        elif kind == "FSTRING_END":
            depth -= 1
    return number
