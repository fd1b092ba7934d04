"""Figures of `python -m simulations accuracy`, and helpers of other figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulations.results import Row

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple")
_MARKERS = ("o", "s", "^", "D")


def _panels(n: int, width: float, height: float, most: int = 3) -> tuple[Any, Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(n, most)
    rows = -(-n // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    for unused in axes.flat[n:]:
        unused.set_axis_off()
    return plt, figure, list(axes.flat[:n])


def _save(plt: Any, figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)
    print(f"written: {path}")


def _legend_below(axis: Any, columns: int) -> None:
    """Place the legend below the axis, where it hides no point."""
    legend = axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=columns, fontsize=8, frameon=False)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([25])


def scatter(
    panels: Sequence[tuple[str, Mapping[str, float], str, Mapping[str, float]]], title: str, path: Path
) -> None:
    """The paper's scatter plots: a point per data set, FlyNN's accuracy to the right, the other's up.

    Points under the red dashed diagonal are sets on which FlyNN is better. The four furthest from it are named.

    Parameters
    ----------
    panels : sequence of (name of FlyNN, its accuracies, name of the other, its accuracies)
        Accuracies by data set; a panel shows the sets that both have.
    title : str
    path : Path
        The PNG.
    """
    plt, figure, axes = _panels(len(panels), 4.2, 4.6)
    points: list[tuple[Any, list[str], list[float], list[float]]] = []
    for axis, (name, ours, other, theirs) in zip(axes, panels, strict=True):
        both = [one for one in ours if one in theirs]
        x, y = [ours[one] for one in both], [theirs[one] for one in both]
        low, high = min([*x, *y], default=0.0) - 0.04, 1.02
        axis.plot([low, high], [low, high], "--", color="red", linewidth=1, zorder=1)
        better = [a >= b for a, b in zip(x, y, strict=True)]
        for wanted, colour, marker in ((True, "tab:blue", "o"), (False, "tab:orange", "^")):
            chosen = [i for i, is_better in enumerate(better) if is_better == wanted]
            what = "FlyNN better or equal" if wanted else "FlyNN worse"
            axis.scatter(
                [x[i] for i in chosen], [y[i] for i in chosen], s=22, color=colour, marker=marker, alpha=0.75,
                linewidths=0, label=f"{what}: {len(chosen)}", zorder=2,
            )  # fmt: skip
        axis.set(xlim=(low, high), ylim=(low, high), xlabel=name, ylabel=other, aspect="equal")
        ticks = [tick for tick in axis.get_yticks() if low <= tick <= 1.001]
        axis.set(xticks=ticks, yticks=ticks)
        _legend_below(axis, 2)
        points.append((axis, both, x, y))
    figure.suptitle(title, fontsize=11)
    figure.canvas.draw()  # names are placed where everything stands in the end
    figure.set_layout_engine("none")
    for panel in points:
        _name_points(*panel)
    _save(plt, figure, path)


def _name_points(axis: Any, names: Sequence[str], x: Sequence[float], y: Sequence[float]) -> None:
    """Name the four points furthest from the diagonal, each at the nearest place that is free of points and names."""
    far = [i for i in sorted(range(len(names)), key=lambda i: -abs(x[i] - y[i]))[:4] if abs(x[i] - y[i]) > 0.01]
    inside = axis.get_window_extent()
    taken = [tuple(point) for point in axis.transData.transform(list(zip(x, y, strict=True)))] if names else []
    # Where the diagonal runs it counts as a row of points.
    corners = [(inside.x0 + f * inside.width, inside.y0 + f * inside.height) for f in (i / 60 for i in range(61))]
    for i in far:
        side = 1 if y[i] <= x[i] else -1  # away from the diagonal first
        for radius, (dx, dy) in itertools.product(range(8, 130, 8), _DIRECTIONS):
            label = axis.annotate(
                names[i], (x[i], y[i]), (side * radius * dx, -side * radius * dy), textcoords="offset points",
                fontsize=7, ha="left" if side * dx > 0 else "right" if side * dx < 0 else "center", va="center",
                arrowprops={"arrowstyle": "-", "color": "grey", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
            )  # fmt: skip
            box = _text_box(label).expanded(1.04, 1.4)
            if box.x0 > inside.x0 and box.x1 < inside.x1 and box.y0 > inside.y0 and box.y1 < inside.y1:
                free = not box.count_contains([*taken, *corners])
            else:
                free = False
            if free:
                taken += [(a, b) for a in _spread(box.x0, box.x1) for b in _spread(box.y0, box.y1)]
                break
            label.remove()


_DIRECTIONS = ((1, 0), (0.8, 0.6), (0, 1), (0.6, 0.8), (0.8, -0.6), (-0.6, 0.8), (-1, 0), (0, -1))


def _text_box(label: Any) -> Any:
    from matplotlib.text import Text

    label.update_positions(label.figure.canvas.get_renderer())
    return Text.get_window_extent(label)  # of the words, without the line


def _spread(low: float, high: float) -> list[float]:
    return [low + (high - low) * i / 12 for i in range(13)]


def reliability(rows: Sequence[Row], path: Path) -> None:
    """Accuracy of predictions against the method's confidence in them, a panel per data set.

    Parameters
    ----------
    rows : sequence of dict
        Rows of `simulations.methods.calibration`, with the name of the ``set``.
    path : Path
        The PNG.
    """
    sets = list(dict.fromkeys(row["set"] for row in rows))
    plt, figure, axes = _panels(len(sets), 4.2, 4.2)
    for axis, name in zip(axes, sets, strict=True):
        axis.plot([0, 1], [0, 1], "--", color="grey", linewidth=1, label="calibrated")
        mine = [row for row in rows if row["set"] == name]
        for row, colour, marker in zip(mine, _COLOURS, _MARKERS, strict=False):
            # Bins with few samples say little: they are small.
            sizes = [8 + 100 * n / row["points"] for n in row["in bin"]]
            axis.plot(row["confidence"], row["right"], color=colour, linewidth=1)
            axis.scatter(
                row["confidence"], row["right"], s=sizes, color=colour, marker=marker, alpha=0.8, zorder=2,
                label=f"{row['method']}: log-loss {row['log-loss']:.3f}",
            )  # fmt: skip
        axis.set(xlim=(0, 1.03), ylim=(-0.03, 1.03), title=name, aspect="equal")
        axis.set(xlabel="confidence in the predicted class", ylabel="fraction right (area: share of the points)")
        _legend_below(axis, 2)
    _save(plt, figure, path)
