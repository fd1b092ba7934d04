"""Figures of the experiments that redo the paper's: bars, curves over a parameter, and scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulations.plots import _panels, _save

Array = npt.NDArray[Any]
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:cyan", "tab:pink", "tab:olive")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def bars(panels: Sequence[tuple[str, Sequence[tuple[str, Array, tuple[float, float]]]]], path: Path) -> None:
    """A bar with its spread for each method, a panel per case, and what the paper printed as a diamond.

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
                x, y, "--" if name.endswith("gamma=0") else "-", color=COLOURS[place], marker=MARKERS[place],
                markersize=4, linewidth=1.2, label=name,
            )  # fmt: skip
        axis.set_xlabel(panel.label)
        axis.set_title(panel.title, fontsize=9)
        axis.grid(alpha=0.3)
        if panel.log:
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncol=2, fontsize=6.5, frameon=False)
    for row in range(len(rows)):
        axes[row * columns].set_ylabel("accuracy")
        low = min(y for panel in rows[row] for points in panel.lines.values() for _, y in points)
        for axis in axes[row * columns : (row + 1) * columns]:
            axis.set_ylim(low - 0.03, 1.02)
    _save(plt, figure, path)


def _family(line: str) -> str:
    return ", ".join(part for part in line.split(", ") if not part.startswith("gamma"))
