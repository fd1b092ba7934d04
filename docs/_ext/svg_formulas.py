"""Formulas as SVG within the page, which needs no scripts and no fonts from elsewhere.

ziamath sets the TeX. A formula that it does not understand is a warning, and so an
error of the build.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

import ziafont
import ziamath
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

_log = logging.getLogger(__name__)

_SIZE = 17.0  # font size of the drawings; on the page they scale with the text
_TEXT = 16.0  # size of the text that it goes with

ziafont.config.svg2 = False  # no glyphs that one drawing defines and another one uses


def svg(code: str, inline: bool) -> str:
    """A formula as an SVG element that stands on the line of the text around it.

    A `ValueError` if it cannot be set.
    """
    formula = ziamath.Latex(code, size=_SIZE, inline=inline, color="currentColor")
    if unknown := re.search(r">\s*(\\[A-Za-z]+)", formula.mathmlstr()):
        raise ValueError(f"unknown command {unknown[1]}")
    text = formula.svg()
    box = re.search(r'viewBox="([^"]*)"', text)[1]  # type: ignore[index]
    _, top, width, height = map(float, box.split())
    style = (
        f"width:{width / _TEXT:.3f}em;"
        f"height:{height / _TEXT:.3f}em;"
        f"vertical-align:{-(top + height) / _TEXT:.3f}em"
    )
    head = (
        f'<svg class="formula" role="img" aria-label="{escape(code)}" style="{style}"'
    )
    return re.sub(
        r'^<svg([^>]*) width="[^"]*" height="[^"]*"',
        lambda match: head + match[1],
        text,
        count=1,
    )


def _formula(node: nodes.Element, inline: bool) -> str:
    code = node.astext().strip()
    try:
        return svg(code, inline)
    except Exception as error:  # noqa: BLE001 - the parsers below raise many kinds
        reason = str(error) or type(error).__name__
        _log.warning("formula %r: %s", code, reason, location=node)
        return f"<code>{escape(code)}</code>"


def visit_math(translator: Any, node: nodes.math) -> None:
    """Write a formula in a line."""
    translator.body.append(_formula(node, inline=True))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on lines of its own."""
    names = "".join(f'<span id="{name}"></span>' for name in node["ids"])
    translator.body.append(
        f'<div class="formula">{names}{_formula(node, inline=False)}</div>'
    )
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer of formulas."""
    app.add_html_math_renderer("svg", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
