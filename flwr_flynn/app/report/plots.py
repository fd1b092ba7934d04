"""Plots of the pages, as SVG: curves in a square, and values with intervals by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flwr_flynn._types import Floats
from flwr_flynn.app.report.markup import Interval, Markup, shortened, tag, with_interval

_SIDE = 300  # of a square
_ROW = 34  # of a value with its interval
_HEADING = 26


class Axis(NamedTuple):
    """An axis, and the values at its ends, which are shown in percent."""

    name: str
    low: float = 0.0
    high: float = 1.0

    def share(self, value: float) -> float:
        """The part of the axis below a value."""
        return (value - self.low) / (self.high - self.low)

    def mark(self, share: float) -> str:
        """The value at a part of the axis."""
        return f"{100 * (self.low + (self.high - self.low) * share):.0f}"


Layer = tuple[str, Iterable[Sequence[float]] | Floats]
"""A class of the style, and points (x, y): "dot" for each point, "band" for the area
that they enclose, else a line through them."""

DIAGONAL: Layer = ("grid", [(0, 0), (1, 1)])


def picture(title: str, text: str, *children: object, **attributes: object) -> Markup:
    """A picture below its name and a line of text.

    It has both for those who do not see it, too.
    """
    named = tag("title", title), tag("desc", text)
    return tag(
        "figure",
        tag("figcaption", tag("b", title), " ", text),
        tag("svg", *named, *children, role="img", **attributes),
    )


def plot(title: str, text: str, x: Axis, y: Axis, layers: Sequence[Layer]) -> Markup:
    """Layers in a square, with the names of its axes and five marks at each."""
    drawn = [tag("rect", width=_SIDE, height=_SIDE, class_="frame")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = _SIDE * share
        up = _SIDE - at
        drawn += [
            tag("text", x.mark(share), x=at, y=_SIDE + 14, text_anchor="middle"),
            tag("text", y.mark(share), x=-5, y=up + 4, text_anchor="end"),
        ]
    drawn += [
        tag("text", f"{x.name}, % →", x=_SIDE, y=_SIDE + 30, text_anchor="end"),
        tag("text", f"↑ {y.name}, %", x=0, y=-9),
    ]
    for class_, points in layers:
        placed = [
            f"{_SIDE * x.share(left):.1f},{_SIDE * (1 - y.share(up)):.1f}"
            for left, up in points
        ]
        step = "h0M" if class_ == "dot" else "L"
        drawn.append(tag("path", d=f"M{step.join(placed)}h0", class_=class_))
    return picture(title, text, *drawn, viewBox="-28 -22 336 356", class_="square")


class Row(NamedTuple):
    """A value with its interval, or a heading without one."""

    label: str
    interval: Interval | None = None
    class_: str = "dot"  # also "mean", and "range" of an interval without its value


def forest(title: str, text: str, rows: Sequence[Row]) -> Markup:
    """Intervals as wide as the page, from 0 to 1, each below its label and figures."""
    drawn = []
    top = 14
    for label, interval, class_ in rows:
        name = shortened(label, 32)
        if interval is None:
            drawn.append(tag("text", name, x=0, y=top, font_weight="bold"))
            top += _HEADING
            continue
        middle, left, right = (f"{end:.2%}" for end in interval)
        words = with_interval(interval)
        if class_ == "range":
            words = words.partition("(")[2].rstrip(")")
        y = top + 9
        drawn += [
            tag("text", name, x=0, y=top),
            tag("text", words, x="100%", y=top, text_anchor="end"),
            tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid"),
            tag("line", x1=left, x2=right, y1=y, y2=y, class_=f"whisker {class_}"),
            tag("rect", x=middle, y=y, width=9, height=9, class_=f"bar {class_}"),
        ]
        top += _ROW
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        place = {"x": f"{share:.0%}", "y": top, "text_anchor": anchor}
        drawn.append(tag("text", f"{share:.2f}", class_="soft", **place))
    return picture(title, text, *drawn, width="100%", height=top + 6)
