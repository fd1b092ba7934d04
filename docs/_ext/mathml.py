"""Formulas as MathML, which browsers show without scripts and without fonts from elsewhere.

docutils translates the TeX. What it does not know is a warning, and so an error of the build.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, wrap_math_code
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_log = logging.getLogger(__name__)


def _mathml(node: nodes.Element, as_block: bool) -> str:
    code = node.astext()
    try:
        lines = wrap_math_code(code, as_block) if r"\\" in code else code  # several lines are aligned
        return str(tex2mathml(lines, as_block=as_block))
    except MathError as error:
        _log.warning("formula %r: %s", code, error, location=node)
        return f"<code>{code}</code>"


def visit_math(translator: Any, node: nodes.math) -> None:
    """Write a formula in a line."""
    translator.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on lines of its own."""
    names = "".join(f'<span id="{name}"></span>' for name in node["ids"])
    translator.body.append(f'<div class="math">{names}{_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer of formulas."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
