"""HTML and SVG as text: elements, tables and bars, escaped.

The markup is well-formed XML, too. It has no script and loads nothing. Pages are made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.sax.saxutils import escape

LONGEST = 200  # characters of a name, a label or a reason
NONE = "\u2013"  # in the place of a figure that is not known
_UNSEEN = re.compile(r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")
"""Control characters, lone surrogates, and characters that change the direction of the text around them."""
_VOID = ("meta", "br")

STYLE = """
.flynn{--bar:var(--accent,#3b7fc4)}
.flynn table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.flynn caption{text-align:left}
.flynn th,.flynn td{padding:.4rem .9rem .4rem 0;text-align:left;vertical-align:top;font-weight:400}
.flynn th[scope=row]{overflow-wrap:anywhere;min-width:7rem;max-width:22rem}
.flynn .n{text-align:right;white-space:nowrap}
.flynn .scroll{overflow-x:auto;max-width:100%}
.flynn svg{display:block;overflow:visible;font:inherit}
.flynn svg text{fill:currentColor;font-size:13px}
.flynn svg .bar{fill:var(--bar)}
.flynn svg .rest{fill:currentColor;opacity:.1}
"""
"""Rules of tables and bars, in the colours of the page around them."""


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def shortened(value: object, most: int = LONGEST) -> str:
    """A value as text of at most so many characters."""
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _escaped(value: object) -> str:
    return escape(_UNSEEN.sub("\ufffd", value if isinstance(value, str) else str(value)), {'"': "&quot;"})


def _parts(children: Iterable[Any]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, list | tuple):
            yield from _parts(child)
        elif child is not None:
            yield _escaped(child)


def joined(*children: Any) -> Markup:
    """Markup of children without an element around them."""
    return Markup("".join(_parts(children)))


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element. Children are markup, texts, numbers, lists of these, or None; so are attributes, without lists.

    Of an attribute's name a last underscore is dropped, and others become hyphens: ``class_``, ``aria_label``.
    """
    given = (
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    start = f"<{name}{''.join(given)}"
    return Markup(f"{start}/>" if name in _VOID else f"{start}>{joined(*children)}</{name}>")


# ---- figures


def figure(value: float | None) -> str:
    """A figure with four digits behind the point, or in all; an integer with commas between thousands."""
    if value is None:
        return NONE
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{float(value):.4g}"
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 10**6 else f"{value:.4g}"


def in_bytes(n: float) -> str:
    """A number of bytes in the unit that fits."""
    return f"{n:.0f} B" if n < 1000 else f"{n / 1e3:.1f} kB" if n < 1e6 else f"{n / 1e6:.4g} MB"


def count(n: int, one: str, many: str = "") -> str:
    """A number and its noun: "1 party", "2 parties"."""
    return f"{figure(n)} {one if n == 1 else many or one + 's'}"


# ---- tables and bars


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]], class_: str | None = None) -> Markup:
    """A table whose rows begin with their header; numbers, and texts that begin with a digit or a dash, are figures."""
    body, are_figures = [], [True] * len(head)
    for row in rows:
        are_figures = [old and _is_figure(cell) for old, cell in zip(are_figures, row, strict=True)]
        body.append(row)
    sides = [None, *("n" if is_figure and body else None for is_figure in are_figures[1:])]
    names = [tag("th", name, scope="col", class_=side) for name, side in zip(head, sides, strict=True)]
    filled = tag("tbody", [tag("tr", _cells(row, sides)) for row in body])
    parts = tag("caption", caption), tag("thead", tag("tr", names)), filled
    return scroll(caption, tag("table", *parts, class_=class_))


def scroll(label: str, *children: Any) -> Markup:
    """A region that scrolls sideways where its content is wider than the screen, also by the keyboard."""
    return tag("div", *children, class_="scroll", tabindex=0, role="region", aria_label=label)


def _is_figure(cell: Any) -> bool:
    return cell is None or isinstance(cell, int | float) or (isinstance(cell, str) and cell[:1] in f"{NONE}-0123456789")


def _cells(row: Sequence[Any], sides: Sequence[str | None]) -> list[Markup]:
    shown = [figure(cell) if cell is None or isinstance(cell, int | float) else cell for cell in row]
    first = tag("th", shown[0], scope="row")
    return [first, *(tag("td", cell, class_=side) for cell, side in zip(shown[1:], sides[1:], strict=True))]


def svg(title: str, description: str, *children: Any, **attributes: Any) -> Markup:
    """A picture with a name and a description for those who do not see it."""
    return tag("svg", tag("title", title), tag("desc", description), *children, role="img", **attributes)


def bars(title: str, description: str, rows: Sequence[tuple[str, str, float]]) -> Markup:
    """Bars as wide as the page, each below its label and its value; the third entry is its length, from 0 to 1."""
    drawn = []
    for index, (label, value, share) in enumerate(rows):
        top, width = 34 * index, f"{100 * min(max(share, 0.0), 1.0):.2f}%"
        drawn += [
            tag("text", shortened(label, 32), x=0, y=top + 13),
            tag("text", value, x="100%", y=top + 13, text_anchor="end"),
            tag("rect", x=0, y=top + 19, width="100%", height=6, rx=3, class_="rest"),
            tag("rect", x=0, y=top + 19, width=width, height=6, rx=3, class_="bar"),
        ]
    return svg(title, description, *drawn, width="100%", height=34 * len(rows))
