"""Pages, their style and their pictures: points with intervals, curves, tables in shades of one accent colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr_flynn._markup import NONE, STYLE, Markup, figure, scroll, shortened, svg, tag

PAGE_STYLE = Markup(
    STYLE
    + """
:root{color-scheme:light dark;--ink:#1b232d;--soft:#566271;--line:#dce1e7;--paper:#fdfdfc;--accent:#0a6299}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#a4afbb;--line:#303943;--paper:#13171c;
--accent:#6fb6ea}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.6 system-ui,sans-serif}
header,main,footer,nav{max-width:66rem;margin:0 auto;padding:0 1.5rem}header{padding-top:1.2rem}
h1{line-height:1.15;margin:2rem 0 1rem}h2{margin:0 0 .5rem}
section{padding:2rem 0;border-top:1px solid var(--line)}
p{margin:.5rem 0 1rem;max-width:42rem;overflow-wrap:anywhere}
.note,footer,caption,thead th,figcaption{color:var(--soft);font-size:.9rem}
.fault{border-left:3px solid var(--accent);padding-left:1rem;font-weight:600}
a,summary{color:var(--accent)}
.skip{position:absolute;left:-100vw;background:var(--paper)}.skip:focus{left:0}
nav ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}
table{font-size:.9rem;line-height:1.45;margin:.4rem 0 1rem;min-width:60%}
tbody th,td{border-bottom:1px solid var(--line)}.facts td{overflow-wrap:anywhere}
.flynn .cell{background:color-mix(in srgb,var(--accent) calc(var(--v,0)*1%),transparent);padding:.4rem .6rem}
.flynn .shades td{border:2px solid var(--paper)}.flynn .thresholds td:nth-child(3){min-width:15rem}
svg{margin:1.1rem 0}.flynn svg .soft{fill:var(--soft)}svg .grid,svg .frame{stroke:var(--line);fill:none}
svg .whisker,svg .curve{stroke:var(--accent);fill:none;stroke-width:2}
.flynn svg.square{width:100%;max-width:30rem}.flynn svg.square text{font-size:11px}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));gap:1.6rem 2rem}
figure{margin:0}figcaption{overflow-wrap:anywhere}
@media print{nav,.skip{display:none}.scroll{overflow:visible}table{font-size:7.5pt}tr,figure,svg{break-inside:avoid}
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
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', skip, *body, class_='flynn'), lang='en')}\n"


def whole_page(title: str, *parts: Markup) -> str:
    """A page of one section."""
    header, main = tag("header", tag("h1", title)), tag("main", *parts, id="content", tabindex=-1)
    return html_page(title, header, main)


Interval = Sequence[float]
"""A figure with the ends of its 95 % interval."""

_SIDE, _EDGE = 300, 8  # of a curve's square, and the room around it
_CELL = 45  # percent of the accent in the strongest cell, on which text can still be read


def with_interval(interval: Interval | None) -> str:
    """A figure with its interval in words."""
    if interval is None:
        return NONE
    value, low, high = map(figure, interval)
    return f"{value} ({low}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{high})"


def _xy(x: float, y: float) -> tuple[float, float]:
    x, y = (min(max(value, 0.0), 1.0) for value in (x, y))
    return round(_EDGE + _SIDE * x, 1), round(_EDGE + _SIDE * (1 - y), 1)


def _square(title: str, description: str, x: str, y: str, *drawn: Any) -> Markup:
    """A square from 0 to 1 both ways, with its diagonal and the names of its axes."""
    end = _SIDE + _EDGE
    frame = [
        tag("rect", x=_EDGE, y=_EDGE, width=_SIDE, height=_SIDE, class_="frame"),
        tag("line", x1=_EDGE, y1=end, x2=end, y2=_EDGE, class_="grid"),
        tag("text", f"{x} →", x=end, y=end + 16, text_anchor="end", class_="soft"),
        tag("text", f"↑ {y}", x=_EDGE, y=-1, class_="soft"),
    ]
    return svg(title, description, *frame, *drawn, viewBox=f"-2 -14 {end + 6} {end + 34}", class_="square")


def curve(title: str, description: str, points: Sequence[Sequence[float]]) -> Markup:
    """A ROC curve."""
    path = " ".join(f"{x},{y}" for x, y in (_xy(*point) for point in points))
    return _square(title, description, "false alarms", "found", tag("polyline", points=path, class_="curve"))


def reliability(title: str, description: str, bins: Sequence[dict[str, Any]]) -> Markup:
    """Observed shares over predicted probabilities, with intervals; the larger the point, the more samples."""
    most, drawn = max([*(each["examples"] for each in bins), 1]), []
    for each in [each for each in bins if each["observed"] is not None]:
        (x, y), (_, bottom), (_, top) = (_xy(each["predicted"], value) for value in each["observed"])
        drawn += [
            tag("line", x1=x, x2=x, y1=bottom, y2=top, class_="whisker"),
            tag("circle", cx=x, cy=y, r=round(2 + 3 * (each["examples"] / most) ** 0.5, 1), class_="bar"),
        ]
    return _square(title, description, "predicted", "observed", *drawn)


def gallery(pictures: Sequence[tuple[str, str, Markup]]) -> Markup:
    """Pictures side by side, each below its name and one line of text."""
    items = [tag("figure", tag("figcaption", tag("b", name), " ", text), picture) for name, text, picture in pictures]
    return tag("div", items, class_="gallery")


def shades(caption: str, corner: str, head: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]) -> Markup:
    """A table of numbers of samples; the stronger the colour, the more samples, compared with the row's largest."""
    body = []
    for name, cells in rows:
        strengths = [f"--v:{_CELL * n / max([*cells, 1]):.0f}" if n else None for n in cells]
        shown = (tag("td", figure(n), class_="n cell", style=v) for n, v in zip(cells, strengths, strict=True))
        body.append(tag("tr", tag("th", name, scope="row"), *shown))
    names = [tag("th", shortened(name, 24), scope="col", class_="n") for name in head]
    headed = tag("thead", tag("tr", tag("th", corner, scope="col"), names))
    return scroll(caption, tag("table", tag("caption", caption), headed, tag("tbody", body), class_="shades"))
