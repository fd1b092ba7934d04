"""Figures of the experiments that redo the paper's: bars, curves over a parameter, and scaling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
