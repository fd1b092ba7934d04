"""HTML and SVG of the pages: elements, tables, bars, curves, and their style.

Texts are escaped, and there is one accent colour. The markup is well-formed XML, too.
It has no script and loads nothing.
"""

from __future__ import annotations

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


def figure(value: float | None) -> str:
    """A figure with four digits behind the point, or in all.

    An integer has commas between thousands.
    """
    if value is None:
        return NONE
    if isinstance(value, int):
        if abs(value) < 10**15:
            return f"{value:,}"
        return f"{float(value):.4g}"
    if value == 0 or 0.001 <= abs(value) < 10**6:
        return f"{value:.4f}"
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


# ---- tables and bars


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    class_: str | None = None,
) -> Markup:
    """A table whose rows begin with their header.

    Numbers, and texts that begin with a digit or a dash, are figures.
    """
    body = [*rows]
    sides: list[str | None] = [None] * len(head)
    for index, column in enumerate(zip(*body, strict=True)):
        if index and all(map(_is_figure, column)):
            sides[index] = "n"
    names = [
        tag("th", name, scope="col", class_=side)
        for name, side in zip(head, sides, strict=True)
    ]
    filled = tag("tbody", [tag("tr", _cells(row, sides)) for row in body])
    parts = tag("caption", caption), tag("thead", tag("tr", names)), filled
    return scroll(caption, tag("table", *parts, class_=class_))


def scroll(label: str, *children: object) -> Markup:
    """A region that scrolls sideways where its content is wider than the screen.

    It scrolls by the keyboard, too.
    """
    return tag(
        "div", *children, class_="scroll", tabindex=0, role="region", aria_label=label
    )


def _is_figure(cell: object) -> bool:
    if isinstance(cell, str):
        return cell[:1] in f"{NONE}-0123456789"
    return cell is None or isinstance(cell, int | float)


def _cells(row: Sequence[object], sides: Sequence[str | None]) -> list[Markup]:
    shown = [
        figure(cell) if cell is None or isinstance(cell, int | float) else cell
        for cell in row
    ]
    cells = [tag("th", shown[0], scope="row")]
    for cell, side in zip(shown[1:], sides[1:], strict=True):
        cells.append(tag("td", cell, class_=side))
    return cells


def svg(
    title: str, description: str, *children: object, **attributes: object
) -> Markup:
    """A picture with a name and a description for those who do not see it."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *children,
        role="img",
        **attributes,
    )


def bars(
    title: str, description: str, rows: Sequence[tuple[str, str, float]]
) -> Markup:
    """Bars as wide as the page, each below its label and its figure.

    The third entry of a row is the length of the bar, from 0 to 1.
    """
    drawn = []
    for index, (label, text, share) in enumerate(rows):
        top = 34 * index
        width = f"{100 * min(max(share, 0.0), 1.0):.2f}%"
        drawn += [
            tag("text", shortened(label, 32), x=0, y=top + 13),
            tag("text", text, x="100%", y=top + 13, text_anchor="end"),
            tag("rect", x=0, y=top + 19, width="100%", height=6, rx=3, class_="rest"),
            tag("rect", x=0, y=top + 19, width=width, height=6, rx=3, class_="bar"),
        ]
    return svg(title, description, *drawn, width="100%", height=34 * len(rows))


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
@media screen and (max-width:30rem){.facts .n{white-space:normal}}
.note,footer,caption,thead th,figcaption{overflow-wrap:anywhere;color:var(--soft);
font-size:.9rem;text-align:left}
.cell{background:color-mix(in srgb,var(--accent) calc(var(--v,0)*1%),transparent);
padding:.4rem .6rem}
.shades td{border:2px solid var(--paper)}.thresholds td:nth-child(3){min-width:9.5rem}
figure{margin:0}
svg{display:block;overflow:visible;font:inherit;margin:1.1rem 0}svg text{fill:currentColor;
font-size:13px}
svg .bar{fill:var(--accent)}svg .rest{fill:currentColor;opacity:.1}svg .soft{fill:var(--soft)}
svg .grid,svg .frame{stroke:var(--line);fill:none}
svg .whisker,svg .curve{stroke:var(--accent);fill:none;stroke-width:2}
svg.square{width:100%;max-width:30rem}svg.square text{font-size:11px}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));
gap:1.6rem 2rem}
@media print{nav,.skip{display:none}.scroll{overflow:visible}table{font-size:7.5pt}
tr,figure,svg{break-inside:avoid}
details::details-content{content-visibility:visible;display:block;height:auto}}
"""
)


def html_page(title: str, *body: Markup) -> str:
    """A page of elements, the main one of which has the id "content"."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", PAGE_STYLE),
    )
    skip = tag("a", "Skip to the content", href="#content", class_="skip")
    return (
        f"<!DOCTYPE html>\n{tag('html', head, tag('body', skip, *body), lang='en')}\n"
    )


def whole_page(title: str, *parts: Markup) -> str:
    """A page of one section."""
    header = tag("header", tag("h1", title))
    main = tag("main", *parts, id="content", tabindex=-1)
    return html_page(title, header, main)


Interval = Sequence[float]
"""A figure with the ends of its 95 % interval."""

_SIDE = 300  # of a curve's square
_EDGE = 8  # the room around it
_CELL = 45
"""Percent of the accent in the strongest cell, on which text can still be read."""


def with_interval(interval: Interval | None) -> str:
    """A figure with its interval in words."""
    if interval is None:
        return NONE
    middle, low, high = map(figure, interval)
    return f"{middle} ({low}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{high})"


def _xy(x: float, y: float) -> tuple[float, float]:
    x = min(max(x, 0.0), 1.0)
    y = min(max(y, 0.0), 1.0)
    return round(_EDGE + _SIDE * x, 1), round(_EDGE + _SIDE * (1 - y), 1)


def _square(title: str, description: str, x: str, y: str, *drawn: object) -> Markup:
    """A square from 0 to 1 both ways, with its diagonal and the names of its axes."""
    end = _SIDE + _EDGE
    frame = [
        tag("rect", x=_EDGE, y=_EDGE, width=_SIDE, height=_SIDE, class_="frame"),
        tag("line", x1=_EDGE, y1=end, x2=end, y2=_EDGE, class_="grid"),
        tag("text", f"{x} →", x=end, y=end + 16, text_anchor="end", class_="soft"),
        tag("text", f"↑ {y}", x=_EDGE, y=-1, class_="soft"),
    ]
    return svg(
        title,
        description,
        *frame,
        *drawn,
        viewBox=f"-2 -14 {end + 6} {end + 34}",
        class_="square",
    )


def curve(title: str, description: str, points: Sequence[Sequence[float]]) -> Markup:
    """A ROC curve."""
    path = " ".join(f"{x},{y}" for x, y in (_xy(*point) for point in points))
    return _square(
        title,
        description,
        "false alarms",
        "found",
        tag("polyline", points=path, class_="curve"),
    )


def reliability(title: str, description: str, bins: Sequence[dict[str, Any]]) -> Markup:
    """Observed shares over predicted probabilities, with intervals.

    The larger the point, the more samples.
    """
    most = max([*(row["examples"] for row in bins), 1])
    drawn = []
    for row in bins:
        if row["observed"] is None:
            continue
        middle, low, high = row["observed"]
        x, y = _xy(row["predicted"], middle)
        _, bottom = _xy(0, low)
        _, top = _xy(0, high)
        radius = round(2 + 3 * (row["examples"] / most) ** 0.5, 1)
        drawn += [
            tag("line", x1=x, x2=x, y1=bottom, y2=top, class_="whisker"),
            tag("circle", cx=x, cy=y, r=radius, class_="bar"),
        ]
    return _square(title, description, "predicted", "observed", *drawn)


def gallery(pictures: Sequence[tuple[str, str, Markup]]) -> Markup:
    """Pictures side by side, each below its name and one line of text."""
    items = [
        tag("figure", tag("figcaption", tag("b", name), " ", text), picture)
        for name, text, picture in pictures
    ]
    return tag("div", items, class_="gallery")


def shades(
    caption: str,
    corner: str,
    head: Sequence[str],
    rows: Sequence[tuple[str, Sequence[int]]],
) -> Markup:
    """A table of numbers of samples.

    The stronger the colour, the more samples, compared with the row's largest.
    """
    body = []
    for name, cells in rows:
        most = max([*cells, 1])
        strengths = [f"--v:{_CELL * n / most:.0f}" if n else None for n in cells]
        shown = (
            tag("td", figure(n), class_="n cell", style=v)
            for n, v in zip(cells, strengths, strict=True)
        )
        body.append(tag("tr", tag("th", name, scope="row"), *shown))
    names = [tag("th", shortened(name, 24), scope="col", class_="n") for name in head]
    headed = tag("thead", tag("tr", tag("th", corner, scope="col"), names))
    parts = tag("caption", caption), headed, tag("tbody", body)
    return scroll(caption, tag("table", *parts, class_="shades"))
