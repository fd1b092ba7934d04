"""Plots of the pages, as SVG: curves in a square, and values with intervals by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


Layer = tuple[str, Sequence[Sequence[float]]]
"""A class of the style, and points (x, y): "dot" for each point, "band" for the area
that they enclose, else a line through them."""

DIAGONAL: Layer = ("grid", [(0, 0), (1, 1)])


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


def plot(
    title: str, description: str, x: Axis, y: Axis, layers: Sequence[Layer]
) -> Markup:
    """Layers in a square, with the names of its axes and five marks at each."""
    drawn = [tag("rect", width=_SIDE, height=_SIDE, class_="frame")]
    for quarter in range(5):
        at = _SIDE * quarter / 4
        mark = f"{100 * (x.low + (x.high - x.low) * quarter / 4):.0f}"
        drawn.append(tag("text", mark, x=at, y=_SIDE + 14, text_anchor="middle"))
        mark = f"{100 * (y.low + (y.high - y.low) * quarter / 4):.0f}"
        drawn.append(tag("text", mark, x=-5, y=_SIDE - at + 4, text_anchor="end"))
    drawn += [
        tag("text", f"{x.name}, % →", x=_SIDE, y=_SIDE + 30, text_anchor="end"),
        tag("text", f"↑ {y.name}, %", x=0, y=-9),
    ]
    for class_, points in layers:
        placed = [
            (round(_SIDE * x.share(left), 1), round(_SIDE * (1 - y.share(up)), 1))
            for left, up in points
        ]
        if class_ == "dot":
            drawn += [
                tag("circle", cx=cx, cy=cy, r=3, class_="bar") for cx, cy in placed
            ]
            continue
        shape = "polyline"
        if class_ == "band":
            shape = "polygon"
        path = " ".join(f"{cx},{cy}" for cx, cy in placed)
        drawn.append(tag(shape, points=path, class_=class_))
    return svg(title, description, *drawn, viewBox="-28 -22 336 356", class_="square")


class Row(NamedTuple):
    """A value with its interval, or a heading without one."""

    label: str
    interval: Interval | None = None
    class_: str = "dot"  # also "mean", and "range" of an interval without its value


def forest(
    title: str, description: str, rows: Sequence[Row], low: float = 0.0
) -> Markup:
    """Intervals as wide as the page, each below its label and its figures.

    The scale is from `low` to 1.
    """
    scale = Axis("", low)
    drawn = []
    top = 0
    for label, interval, class_ in rows:
        weight = "bold" if interval is None else None
        name = shortened(label, 32)
        drawn.append(tag("text", name, x=0, y=top + 14, font_weight=weight))
        if interval is None:
            top += _HEADING
            continue
        middle, left, right = (f"{100 * scale.share(end):.2f}%" for end in interval)
        text = with_interval(interval)
        if class_ == "range":
            text = text.partition("(")[2].rstrip(")")
        y = top + 23
        drawn += [
            tag("text", text, x="100%", y=top + 14, text_anchor="end"),
            tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid"),
            tag("line", x1=left, x2=right, y1=y, y2=y, class_=f"whisker {class_}"),
        ]
        if class_ == "dot":
            drawn.append(tag("circle", cx=middle, cy=y, r=4.5, class_="bar"))
        elif class_ == "mean":
            drawn.append(
                tag("rect", x=middle, y=y, width=11, height=11, class_="bar diamond")
            )
        top += _ROW
    ends = (
        ("0%", "start", low),
        ("50%", "middle", (low + 1) / 2),
        ("100%", "end", 1.0),
    )
    for at, anchor, value in ends:
        mark = f"{value:.2f}"
        drawn.append(
            tag("text", mark, x=at, y=top + 14, text_anchor=anchor, class_="soft")
        )
    return svg(title, description, *drawn, width="100%", height=top + 20)
