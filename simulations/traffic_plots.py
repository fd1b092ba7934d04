"""The figure of `python -m simulations traffic`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulations.plots import _panels, _save
from simulations.results import Row

_LINES = {"packed": "o-", "entropy": "--", "dense, narrow": ":"}
_COLOURS = {"FlyNN": "tab:blue", "FedAvg LR": "tab:orange", "FedAvg MLP": "tab:green"}


def draw(sizes: Sequence[Row], rows: Sequence[Row], path: Path) -> None:
    """One panel of bytes against samples, and for each set one of accuracy against bytes (first seed).

    Parameters
    ----------
    sizes : sequence of dict
        Rows of `traffic.party_rows`.
    rows : sequence of dict
        Rows of `traffic.federations`.
    path : Path
        The PNG.
    """
    sets = list(dict.fromkeys(row["set"] for row in rows))
    plt, figure, axes = _panels(1 + len(sets), 5.0, 4.2)
    for number, name in enumerate(dict.fromkeys(row["set"] for row in sizes)):
        mine = [row for row in sizes if row["set"] == name]
        for form, style in _LINES.items():
            label = name if form == "packed" else form if number == 0 else None
            points, n_bytes = [row["points"] for row in mine], [row[form] for row in mine]
            axes[0].plot(points, n_bytes, style, color=f"C{number}", label=label, markersize=4, linewidth=1.2)
    axes[0].set(xscale="log", yscale="log", xlabel="points of the party", ylabel="bytes", title="one party's counts")
    ticks = sorted({row["points"] for row in sizes})
    axes[0].set_xticks(ticks, [str(tick) for tick in ticks], fontsize=7, rotation=45)
    axes[0].minorticks_off()
    axes[0].legend(fontsize=8)
    for axis, name in zip(axes[1:], sets, strict=True):
        first = min(row["seed"] for row in rows if row["set"] == name)
        for row in rows:
            if (row["set"], row["seed"]) != (name, first):
                continue
            colour, up, down = _COLOURS[row["method"]], row["up"], row["down"]
            if "curve" not in row:
                axis.plot([(up + down) / 1000], [row["accuracy"]], "*", color=colour, markersize=14, label="FlyNN")
                axis.axhline(row["accuracy"], color=colour, linewidth=0.8, linestyle=":")
                continue
            size = up / len(row["curve"])
            spent = [(2 * done + 1) * size / 1000 for done in range(1, len(row["curve"]) + 1)]
            axis.plot(spent, row["curve"], ".-", color=colour, label=row["method"], linewidth=1, markersize=4)
        axis.set(xscale="log", xlabel="kB of a party, up and down", ylabel="accuracy", title=name)
        axis.legend(fontsize=8)
    _save(plt, figure, path)
