"""HTML of the pages: elements, tables, and their style.

Texts are escaped, and there is one accent colour. The markup is well-formed XML, too.
It has no script and loads nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.sax.saxutils import escape

LONGEST = 200  # characters of a name, a label or a reason
NONE = "\u2013"  # in the place of a figure that is not known
_UNSEEN = re.compile(
    r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]"
)
"""Control characters, lone surrogates, and characters that change the direction of the
text around them."""
_VOID = ("meta", "br")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def shortened(value: object, most: int = LONGEST) -> str:
    """A value as text of at most so many characters."""
    text = str(value)
    if len(text) <= most:
        return text
    return text[: most - 1] + "…"


def _escaped(value: object) -> str:
    return escape(_UNSEEN.sub("\ufffd", str(value)), {'"': "&quot;"})


def _parts(children: Iterable[object]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, list | tuple):
            yield from _parts(child)
        elif child is not None:
            yield _escaped(child)


def joined(*children: object) -> Markup:
    """Markup of children without an element around them."""
    return Markup("".join(_parts(children)))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element.

    Children are markup, texts, numbers, lists of these, or None; so are attributes,
    without lists.

    Of an attribute's name a last underscore is dropped, and others become hyphens:
    ``class_``, ``aria_label``.
    """
    named = {
        key.rstrip("_").replace("_", "-"): value
        for key, value in attributes.items()
        if value is not None
    }
    given = (f' {key}="{_escaped(value)}"' for key, value in named.items())
    start = f"<{name}{''.join(given)}"
    if name in _VOID:
        return Markup(f"{start}/>")
    return Markup(f"{start}>{joined(*children)}</{name}>")


# ---- figures


def figure(value: str | float | None) -> str:
    """A figure with three digits behind the point, or four in all.

    An integer has commas between thousands, and a text stays as it is.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return NONE
    if isinstance(value, int):
        if abs(value) < 10**15:
            return f"{value:,}"
        return f"{float(value):.4g}"
    if value == 0 or 0.001 <= abs(value) < 10**6:
        return f"{value:.3f}"
    return f"{value:.4g}"


def in_bytes(n: float) -> str:
    """A number of bytes in the unit that fits."""
    if n < 1000:
        return f"{n:.0f} B"
    if n < 1e6:
        return f"{n / 1e3:.1f} kB"
    return f"{n / 1e6:.4g} MB"


def plural(n: int, one: str, many: str = "") -> str:
    """A number and its noun: "1 party", "2 parties"."""
    noun = many or f"{one}s"
    if n == 1:
        noun = one
    return f"{figure(n)} {noun}"


# ---- tables


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    class_: str | None = None,
) -> Markup:
    """A table whose rows begin with their header, in a region that scrolls sideways
    where it is wider than the screen, by the keyboard, too.

    Numbers, and texts that begin with a digit or a dash, are figures. On a narrow
    screen the cells of more than three columns stand below each other.
    """
    labels: Sequence[str | None] = [None] * len(head)
    if len(head) > 3 and class_ != "shades":
        labels = head
        class_ = f"wide {class_ or ''}".strip()
    body = [[*map(figure, row)] for row in rows]
    sides: list[str | None] = [None] * len(head)
    for index, column in enumerate(zip(*body, strict=True)):
        if index and all(cell[:1] in f"{NONE}-0123456789" for cell in column):
            sides[index] = "n"
    names = [
        tag("th", name, scope="col", class_=side)
        for name, side in zip(head, sides, strict=True)
    ]
    lines = []
    for first, *cells in body:
        line = [tag("th", first, scope="row")]
        for cell, side, label in zip(cells, sides[1:], labels[1:], strict=True):
            line.append(tag("td", cell, class_=side, data_head=label))
        lines.append(tag("tr", line))
    parts = tag("caption", caption), tag("thead", tag("tr", names)), tag("tbody", lines)
    made = tag("table", *parts, class_=class_)
    return tag(
        "div", made, class_="scroll", tabindex=0, role="region", aria_label=caption
    )


_FORMULA = re.compile(r"[=@\t\r\n]|[-+](?![\d.,]+([eE][-+]?\d+)?\Z)")
"""The beginning of a formula; a number is none."""


def cell(value: object) -> object:
    """A value that no spreadsheet takes for a formula.

    A text has an apostrophe before it where a spreadsheet would.

    >>> cell("=cmd|' /C calc'!A0"), cell("well")
    ("'=cmd|' /C calc'!A0", 'well')
    """
    if isinstance(value, str) and _FORMULA.match(value):
        return f"'{value}"
    return value


# ---- pages

PAGE_STYLE = Markup(
    """
:root{color-scheme:light dark;--ink:#1b232d;--soft:#566271;--line:#dce1e7;--paper:#fdfdfc;
--accent:#0a6299}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#a4afbb;--line:#303943;
--paper:#13171c;
--accent:#6fb6ea}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.6 system-ui,sans-serif}
header,main,footer,nav{max-width:66rem;margin:0 auto;padding:0 1.5rem}header{padding-top:1.2rem}
section{padding:2rem 0;border-top:1px solid var(--line)}h1{line-height:1.15;margin:2rem 0 1rem}
h2{margin:0 0 .5rem}
p{margin:.5rem 0 1rem;max-width:42rem;overflow-wrap:anywhere}
.lead{font-size:1.2rem;font-weight:600}
.fault{border-left:3px solid var(--accent);padding-left:1rem;font-weight:600}
a,summary{color:var(--accent)}
.skip{position:absolute;left:-100vw;background:var(--paper)}.skip:focus{left:0}
nav ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem;
line-height:1.45;margin:.4rem 0 1rem;
min-width:60%}
th,td{padding:.4rem .9rem .4rem 0;text-align:left;vertical-align:top;font-weight:400}
th[scope=row]{overflow-wrap:anywhere;min-width:7rem;max-width:22rem}
tbody th,td{border-bottom:1px solid var(--line)}.facts td{overflow-wrap:anywhere}
.n{text-align:right;white-space:nowrap}
@media screen and (max-width:30rem){.facts .n{white-space:normal}.wide thead{display:none}
.wide tr,.wide tbody th{display:block;max-width:none;font-weight:600;padding-top:.5rem}
.wide td{font-weight:400}.wide td{display:flex;border:0;gap:1rem;
justify-content:space-between;white-space:normal;padding:.1rem 0}
.wide td::before{content:attr(data-head);color:var(--soft)}}
.note,footer,caption,thead th,figcaption{overflow-wrap:anywhere;color:var(--soft);
font-size:.9rem;text-align:left}
.shades span{background:color-mix(in srgb,var(--accent) calc(var(--v)*1%),transparent);
padding:.4rem .6rem;display:block;min-width:3rem}
.shades span,.shades th+th{text-align:right;padding-right:.6rem}
.shades td{border:2px solid var(--paper);padding:0}.thresholds td:nth-child(3){min-width:9.5rem}
figure{margin:0}pre{white-space:pre-wrap;overflow-wrap:anywhere}
svg{display:block;overflow:visible;font:inherit;margin:1.1rem 0}svg text{fill:currentColor;
font-size:13px}
svg .bar,svg .band{fill:var(--accent)}svg .soft,svg.square text{fill:var(--soft)}
svg .band{opacity:.25}svg .grid,svg .frame{stroke:var(--line);fill:none}
svg .whisker,svg .curve,svg .other{stroke:var(--accent);fill:none;stroke-width:2}
svg path.dot{stroke:var(--accent);stroke-width:6;stroke-linecap:round}
svg .other{stroke:var(--soft);stroke-dasharray:5 4}svg .whisker.mean{stroke-width:5;opacity:.5}
svg .range{stroke-dasharray:2 3}svg .bar{transform-box:fill-box;transform-origin:center;
transform:translate(-50%,-50%)}svg .bar.dot{rx:50%}svg .bar.range{display:none}
svg .bar.mean{transform:translate(-50%,-50%) rotate(45deg) scale(1.2)}
svg.square{width:100%;max-width:30rem}svg.square text{font-size:11px}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,18rem),1fr));
gap:1.6rem 2rem}
@media print{nav,.skip{display:none}.scroll{overflow:visible}table{font-size:7.5pt}
.n{white-space:normal}th,td{padding:.2rem .4rem .2rem 0}
tr,figure,svg{break-inside:avoid}
details::details-content{content-visibility:visible;display:block;height:auto}}
"""
)


def whole_page(
    title: str,
    *parts: object,
    above: object = None,
    nav: object = None,
    foot: object = None,
) -> str:
    """A page of elements, the main one of which has the id "content"."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title}: FlyNN report"),
        tag("style", PAGE_STYLE),
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", above, tag("h1", title)),
        nav,
        tag("main", parts, id="content", tabindex=-1),
        foot,
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


Interval = Sequence[float]
"""A figure with the ends of its 95 % interval."""

_TO = "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}"


def with_interval(interval: Interval | None) -> str:
    """A figure with its interval in words.

    Digits are two behind the point, and more where the interval is below a hundredth.
    """
    if interval is None:
        return NONE
    _, low, high = interval
    digits = max(2, math.ceil(-math.log10(max(high - low, 1e-4))))
    middle, *ends = (f"{end:.{digits}f}" for end in interval)
    return f"{middle} ({_TO.join(ends)})"
