"""Figures of all experiments: panels of lines, bars, scatter plots and heat maps.

A method has one colour and one marker in all panels with a common legend. Lines of
FlyNN are solid, others dashed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simulations.results import Array, Row

Figures = Sequence[float] | Array
COLOURS = (
    *(
        "tab:blue",
        "tab:orange",
        "tab:green",
        "tab:purple",
        "tab:brown",
        "tab:cyan",
        "tab:red",
        "tab:olive",
        "black",
    ),
    *("magenta", "darkgreen", "navy", "tab:pink", "gold", "tab:gray"),
)
MARKERS = "os^DvPX*<>pdh8H"


@dataclass(frozen=True)
class Line:
    """Points of one method; `look` has more keywords of matplotlib's `plot`, and
    `spread` a band around the line.
    """

    label: str
    x: Sequence[Any] | Array
    y: Figures
    spread: Figures = ()
    look: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """A panel of lines.

    Parameters
    ----------
    title : str
    lines : sequence of Line
    axes : mapping
        Keywords of matplotlib's `Axes.set`; a scale may be "log2", a logarithmic one
        with plain numbers.
    levels : sequence of (label, height)
        Horizontal lines.
    """

    title: str
    lines: Sequence[Line]
    axes: Mapping[str, Any] = field(default_factory=dict)
    levels: Sequence[tuple[str, float]] = ()


@contextmanager
def figure(
    path: Path,
    n: int,
    size: tuple[float, float],
    most: int = 3,
    title: str = "",
    legend: int = 0,
) -> Iterator[list[Any]]:
    """A figure of n panels, `most` to a row; saved at the end, with one legend of so
    many columns below all of them.

    Parameters
    ----------
    path : Path
        The PNG.
    n : int
    size : (float, float)
        Of a panel, in inches.
    most : int
    title : str
    legend : int
        0 for none.

    Yields
    ------
    list of Axes
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(n, most)
    shape = -(-n // columns), columns
    whole, axes = plt.subplots(
        *shape,
        figsize=(size[0] * columns, size[1] * shape[0]),
        squeeze=False,
        layout="constrained",
    )
    for unused in axes.flat[n:]:
        unused.set_axis_off()
    whole.suptitle(title, fontsize=11)
    yield list(axes.flat[:n])
    if legend:
        pairs = [
            pair
            for axis in axes.flat
            for pair in zip(*axis.get_legend_handles_labels(), strict=True)
        ]
        # of equal labels the first
        handles = {label: handle for handle, label in reversed(pairs)}
        labels = list(dict.fromkeys(label for _, label in pairs))
        shown = [handles[label] for label in labels]
        whole.legend(
            shown,
            labels,
            loc="outside lower center",
            ncol=legend,
            fontsize=8,
            frameon=False,
        )
    whole.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(whole)
    print(f"written: {path}")


def lines(
    panels: Sequence[Panel],
    path: Path,
    size: tuple[float, float] = (4.4, 3.8),
    most: int = 3,
    title: str = "",
    legend: int = 4,
) -> str:
    """Draw panels of lines; returns the figure in Markdown.

    With `legend` 0 each panel has its own, see `figure`.
    """
    with figure(path, len(panels), size, most, title, legend) as axes:
        for axis, panel in zip(axes, panels, strict=True):
            alike = [panel]
            if legend:
                alike = list(panels)
            labels = list(
                dict.fromkeys(line.label for one in alike for line in one.lines)
            )
            for line in panel.lines:
                place = labels.index(line.label)
                look: Row = {
                    "color": COLOURS[place % len(COLOURS)],
                    "marker": MARKERS[place % len(MARKERS)],
                }
                if line.label.startswith("FlyNN"):
                    look |= {"linestyle": "-", "linewidth": 1.8}
                else:
                    look |= {"linestyle": "--", "linewidth": 1.2}
                look |= {"markersize": 4, "alpha": 0.85, "label": line.label}
                look |= line.look
                axis.plot(line.x, line.y, **look)
                if len(line.spread):
                    low = np.subtract(line.y, line.spread)
                    high = np.add(line.y, line.spread)
                    axis.fill_between(
                        line.x, low, high, color=look["color"], alpha=0.2, linewidth=0
                    )
            for number, (label, height) in enumerate(panel.levels):
                axis.axhline(
                    height,
                    color=f"{0.3 * number}",
                    linestyle=":",
                    linewidth=1.2,
                    label=label,
                )
            settings = dict(panel.axes)
            powers = [
                which for which in "xy" if settings.get(f"{which}scale") == "log2"
            ]
            axis.set(
                **{name: value for name, value in settings.items() if value != "log2"}
            )
            for which in powers:
                _powers_of_two(getattr(axis, f"{which}axis"))
            axis.set_title(panel.title, fontsize=9)
            axis.grid(alpha=0.3)
            if not legend:
                axis.legend(
                    loc="upper center",
                    bbox_to_anchor=(0.5, -0.17),
                    ncol=2,
                    fontsize=7,
                    frameon=False,
                )
    return f"![{path.stem}]({path.name})"


def _powers_of_two(axis: Any) -> None:
    """A logarithmic axis with few, plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis._set_axes_scale("log", base=2)
    axis.set_major_locator(LogLocator(base=2, numticks=8))
    axis.set_minor_locator(NullLocator())

    def short(value: float, _: int) -> str:
        if value >= 2**13:
            return f"{value / 1024:.4g}k"
        return f"{value:.4g}"

    axis.set_major_formatter(short)


def bars(
    panels: Sequence[tuple[str, Mapping[str, Figures]]], path: Path, label: str,
    printed: Mapping[tuple[str, str], tuple[float, float]] = {},
    size: tuple[float, float] = (4.0, 3.0),
) -> str:  # fmt: skip
    """Bars of means with their spreads, a panel per case; a printed mean and spread is
    a diamond.

    Parameters
    ----------
    panels : sequence of (title, values by the name of the bar)
    path : Path
        The PNG.
    label : str
        Of the vertical axis.
    printed : mapping of (title, name of the bar) to (mean, spread)
    size : (float, float)
    """
    columns_of_legend = 0
    if printed:
        columns_of_legend = 4
    with figure(path, len(panels), size, legend=columns_of_legend) as axes:
        for axis, (title, cases) in zip(axes, panels, strict=True):
            for place, (name, values) in enumerate(cases.items()):
                error = None
                if len(values) > 1:
                    error = np.std(values, ddof=1)
                colour = "tab:grey"
                if name.startswith("FlyNN") or not printed:
                    colour = "tab:blue"
                shown = axis.bar(
                    place,
                    np.mean(values),
                    0.65,
                    yerr=error,
                    color=colour,
                    alpha=0.8,
                    capsize=3,
                )
                if not printed:
                    axis.bar_label(shown, fmt="%.0f")
                if (title, name) in printed:
                    mean, spread = printed[title, name]
                    look = {
                        "fmt": "D",
                        "color": "black",
                        "markersize": 5,
                        "markerfacecolor": "gold",
                        "capsize": 3,
                    }
                    axis.errorbar(
                        place, mean, spread, label="printed in the paper", **look
                    )
            axis.axhline(0, color="red", linewidth=1, linestyle="--")
            axis.set_xticks(
                range(len(cases)),
                [name.replace(" (", "\n(").replace(", ", ",\n") for name in cases],
            )
            axis.tick_params(labelsize=7)
            axis.set_title(title, fontsize=10)
            axis.set_ylabel(label, fontsize=8)
    return f"![{path.stem}]({path.name})"


def heat_maps(tables: Mapping[str, Array], title: str, path: Path) -> str:
    """A heat map for every split: parties to the right, classes up, darker for more
    samples.

    Parameters
    ----------
    tables : mapping of split to (parties, L) array
        Training samples of each class at each party.
    title : str
    path : Path
        The PNG.
    """
    with figure(path, len(tables), (3.6, 2.2), 4, title) as axes:
        # Few samples and none must look different, and one split must not set the scale
        # for all others.
        for axis, (split, counts) in zip(axes, tables.items(), strict=True):
            shares = np.where(
                counts.T > 0, 0.08 + 0.92 * (counts.T / max(counts.max(), 1)) ** 0.5, 0
            )
            axis.imshow(
                shares,
                aspect="auto",
                cmap="Blues",
                vmin=0,
                vmax=1,
                origin="lower",
                interpolation="nearest",
            )
            empty = int((counts.sum(axis=1) == 0).sum())
            note = ""
            if empty:
                note = f", {empty} parties without"
            axis.set_title(f"{split} (most: {counts.max()} samples{note})", fontsize=8)
            axis.set(xlabel="party", ylabel="class")
            axis.tick_params(labelsize=7)
            for which in (axis.xaxis, axis.yaxis):
                which.get_major_locator().set_params(integer=True)
    return f"![{path.stem}]({path.name})"


def scatter(
    panels: Sequence[tuple[str, Mapping[str, float], str, Mapping[str, float]]],
    title: str,
    path: Path,
) -> str:
    """The paper's scatter plots: a point per data set, FlyNN's accuracy to the right,
    the other's up.

    Points under the red dashed diagonal are sets on which FlyNN is better. The four
    furthest from it are named.

    Parameters
    ----------
    panels : sequence of (name of FlyNN, its accuracies, name of the other, its accuracies)
        Accuracies by data set; a panel shows the sets that both have.
    title : str
    path : Path
        The PNG.
    """
    with figure(path, len(panels), (4.2, 4.4), title=title) as axes:
        for axis, (name, ours, other, theirs) in zip(axes, panels, strict=True):
            points = {one: (ours[one], theirs[one]) for one in ours if one in theirs}
            low = min(itertools.chain(*points.values()), default=0.0) - 0.04
            axis.plot(
                [low, 1.02], [low, 1.02], "--", color="red", linewidth=1, zorder=1
            )
            for is_better, how, colour, marker in (
                (True, "better or equal", "tab:blue", "o"),
                (False, "worse", "tab:orange", "^"),
            ):
                chosen = [
                    point
                    for point in points.values()
                    if (point[0] >= point[1]) == is_better
                ]
                what = f"FlyNN {how}: {len(chosen)}"
                x, y = np.reshape(chosen, (-1, 2)).T
                axis.scatter(
                    x,
                    y,
                    s=22,
                    color=colour,
                    marker=marker,
                    alpha=0.75,
                    linewidths=0,
                    label=what,
                )
            axis.set(
                xlim=(low, 1.02),
                ylim=(low, 1.02),
                xlabel=name,
                ylabel=other,
                aspect="equal",
            )
            axis.legend(loc="upper left", fontsize=8, frameon=False)
            far = sorted(points, key=lambda one: -abs(points[one][0] - points[one][1]))[
                :4
            ]
            for place, one in enumerate(far):
                # away from the diagonal
                right = -1
                alignment = "right"
                if points[one][0] >= points[one][1]:
                    right = 1
                    alignment = "left"
                axis.annotate(
                    one,
                    points[one],
                    (right * 14, -right * (6 + 9 * (place % 2))),
                    textcoords="offset points",
                    fontsize=7,
                    ha=alignment,
                    va="center",
                    arrowprops={
                        "arrowstyle": "-",
                        "color": "grey",
                        "linewidth": 0.5,
                        "shrinkA": 0,
                        "shrinkB": 3,
                    },
                )
    return f"![{path.stem}]({path.name})"
