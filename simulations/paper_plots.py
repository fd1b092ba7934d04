"""Figures of the experiments that redo the paper's: bars, curves over a parameter, and scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulations.plots import _panels, _save
from simulations.results import Row

Array = npt.NDArray[Any]
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:cyan", "tab:pink", "tab:olive")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def _powers_of_two(axis: Any) -> None:
    """A logarithmic axis with few, plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis._set_axes_scale("log", base=2)
    axis.set_major_locator(LogLocator(base=2, numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value / 1024:.4g}k" if value >= 2**13 else f"{value:.4g}")


def bars(panels: Sequence[tuple[str, Sequence[tuple[str, Array, tuple[float, float]]]]], path: Path) -> None:
    """A bar with its spread for each method, a panel per case, and the paper's printed figure as a diamond.

    Parameters
    ----------
    panels : sequence of (title, sequence of (label, values over data sets, (printed mean, printed spread)))
    path : Path
        The PNG.
    """
    plt, figure, axes = _panels(len(panels), 4.0, 3.0)
    for axis, (title, cases) in zip(axes, panels, strict=True):
        for place, (label, values, (mean, spread)) in enumerate(cases):
            colour = "tab:blue" if label.startswith("FlyNN") else "tab:grey"
            error = values.std(ddof=1) if len(values) > 1 else None
            axis.bar(place, values.mean(), 0.65, yerr=error, color=colour, alpha=0.8, capsize=3)
            if not np.isnan(mean):
                axis.errorbar(
                    place, mean, spread, fmt="D", color="black", markersize=5, markerfacecolor="gold", capsize=3
                )
        axis.axhline(0, color="red", linewidth=1, linestyle="--")
        axis.set_xticks(range(len(cases)), [label.replace(" (", "\n(").replace(", ", ",\n") for label, *_ in cases])
        axis.tick_params(axis="x", labelsize=7)
        axis.set_title(title, fontsize=10)
        axis.set_ylabel("1 - a / a(kNN)", fontsize=8)
        axis.tick_params(axis="y", labelsize=8)
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color="tab:blue", alpha=0.8, label="ours: FlyNN"),
        Patch(color="tab:grey", alpha=0.8, label="ours: baselines"),
        Line2D([], [], marker="D", color="black", markerfacecolor="gold", linestyle="", label="printed in the paper"),
        Line2D([], [], color="red", linestyle="--", linewidth=1, label="tuned kNN; lower is better"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncol=4, fontsize=9, frameon=False)
    _save(plt, figure, path)


class Panel(NamedTuple):
    """Curves of accuracy over one parameter."""

    title: str
    label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log: bool


def curves(rows: Sequence[Sequence[Panel]], path: Path) -> None:
    """A row of panels for each data set, a column for each parameter, one legend under each panel.

    Parameters
    ----------
    rows : sequence of sequences of Panel
    path : Path
        The PNG.
    """
    columns = len(rows[0])
    plt, figure, axes = _panels(len(rows) * columns, 4.2, 4.1, most=columns)
    for axis, panel in zip(axes, [panel for row in rows for panel in row], strict=True):
        # Lines that differ in gamma alone have one colour; gamma = 0, the binary filter, is dashed.
        families = list(dict.fromkeys(_family(name) for name in panel.lines))
        for name, points in panel.lines.items():
            place = families.index(_family(name))
            x, y = zip(*sorted(points), strict=True)
            axis.plot(
                x, y, linestyle=(0, (3, 2)) if name.endswith("gamma=0") else "-", color=COLOURS[place],
                marker=MARKERS[place], markersize=4, linewidth=1.2, label=name,
            )  # fmt: skip
        axis.set_xlabel(panel.label)
        axis.set_title(panel.title, fontsize=9)
        axis.grid(alpha=0.3)
        if panel.log:
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
        axis.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.17), ncol=2, fontsize=6.5, frameon=False, handlelength=3.2
        )
    for row in range(len(rows)):
        axes[row * columns].set_ylabel("accuracy")
        low = min(y for panel in rows[row] for points in panel.lines.values() for _, y in points)
        for axis in axes[row * columns : (row + 1) * columns]:
            axis.set_ylim(low - 0.03, 1.02)
    _save(plt, figure, path)


def _family(line: str) -> str:
    return ", ".join(part for part in line.split(", ") if not part.startswith("gamma"))


def agreement(panels: Sequence[tuple[str, str, Mapping[str, Sequence[tuple[float, float]]]]], path: Path) -> None:
    """Agreement with kNN while one size grows, a panel each; the theorem's bound is black and dashed.

    Parameters
    ----------
    panels : sequence of (title, what grows, lines by name)
        Four to a row.
    path : Path
        The PNG.
    """
    plt, figure, axes = _panels(len(panels), 3.6, 3.2, most=4)
    for axis, (title, label, lines) in zip(axes, panels, strict=True):
        for place, (name, points) in enumerate(lines.items()):
            x, y = zip(*points, strict=True)
            if name.startswith("Theorem"):
                axis.plot(x, y, "--", color="black", label=name)
            else:
                # The second line must not hide the first where both are at 1.
                size = 8 if place == 0 else 4
                axis.plot(x, y, color=COLOURS[place], marker=MARKERS[place], markersize=size, alpha=0.85, label=name)
        axis.axhline(0.5, color="grey", linewidth=0.8, linestyle=":", label="by chance")
        axis.set(xlabel=label, ylim=(-0.04, 1.06))
        _powers_of_two(axis.xaxis)
        axis.set_title(title, fontsize=9)
        axis.grid(alpha=0.3)
    for axis in axes[::4]:
        axis.set_ylabel("share of test points")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=4, fontsize=9, frameon=False)
    figure.suptitle("Agreement of FlyNN with 3-NN", fontsize=11)
    _save(plt, figure, path)


def costs(rows: Sequence[Row], path: Path) -> None:
    """Costs relative to the first of each line, in double logarithmic scale, a panel for each quantity.

    Parameters
    ----------
    rows : sequence of dict
        Rows of `simulations.theory_costs.measure`.
    path : Path
        The PNG.
    """
    quantities = list(dict.fromkeys(row["quantity"] for row in rows))
    plt, figure, axes = _panels(len(quantities), 4.2, 3.6)
    sizes = list(dict.fromkeys(row["grows"] for row in rows))
    for axis, quantity in zip(axes, quantities, strict=True):
        mine = [row for row in rows if row["quantity"] == quantity]
        for grows in dict.fromkeys(row["grows"] for row in mine):
            line = [(row["value"], row["cost"]) for row in mine if row["grows"] == grows]
            place = sizes.index(grows)
            x, y = ([value / line[0][i] for value in values] for i, values in enumerate(zip(*line, strict=True)))
            axis.plot(
                x, y, marker=MARKERS[place], color=COLOURS[place], markersize=4, label=f"{grows} from {line[0][0]}"
            )
        top = max(row["value"] for row in mine) / min(row["value"] for row in mine)
        top = min(top, max(axis.get_xlim()[1], 2))
        axis.plot([1, top], [1, top], color="grey", linestyle="--", linewidth=1, label="slope 1")
        axis.set(xlabel="times its first value", ylabel="times the first cost")
        for which in (axis.xaxis, axis.yaxis):
            _powers_of_two(which)
        axis.set_title(quantity, fontsize=9)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    _save(plt, figure, path)


def scaling(panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[int, float]]]]], path: Path) -> None:
    """Speed-up over one party, a line for each data set and a panel for each way of measuring; linear is grey.

    Parameters
    ----------
    panels : sequence of (title, {data set: sequence of (parties, speed-up)})
    path : Path
        The PNG.
    """
    plt, figure, axes = _panels(len(panels), 4.2, 4.0)
    names = list(dict.fromkeys(name for _, lines in panels for name in lines))
    low = min(ratio for _, lines in panels for points in lines.values() for _, ratio in points)
    top = max(tau for _, lines in panels for points in lines.values() for tau, _ in points)
    for axis, (title, lines) in zip(axes, panels, strict=True):
        axis.plot([1, top], [1, top], color="grey", linewidth=1.5, label="linear")
        for name, points in lines.items():
            place = names.index(name)
            x, y = zip(*points, strict=True)
            axis.plot(x, y, color=COLOURS[place], marker=MARKERS[place], markersize=5, linewidth=1.2, label=name)
        axis.set(xlabel="parties", ylabel="times as fast as one party", ylim=(low / 1.2, top * 1.3))
        _powers_of_two(axis.xaxis)
        _powers_of_two(axis.yaxis)
        axis.set_title(title, fontsize=9)
        axis.grid(alpha=0.3)
    handles, labels = max((axis.get_legend_handles_labels() for axis in axes), key=lambda pair: len(pair[1]))
    figure.legend(handles, labels, loc="outside lower center", ncol=7, fontsize=9, frameon=False)
    _save(plt, figure, path)
