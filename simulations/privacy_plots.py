"""Figures of `python -m simulations privacy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulations.plots import _panels, _save
from simulations.privacy_settings import READ_OFF
from simulations.results import Row

_STYLES: dict[str, dict[str, Any]] = {  # by mechanism, in the order of the legend
    "paper, best T on the test set": {"color": "tab:orange", "marker": "s"},
    "Gaussian, 24 rounds": {"color": "tab:purple", "marker": "D"},
    "Gaussian": {"color": "tab:blue", "marker": "o"},
    "Laplace": {"color": "tab:green", "marker": "^"},
    "Gaussian, the paper's hash": {"color": "tab:blue", "linestyle": ":"},
    "Laplace, the paper's hash": {"color": "tab:green", "linestyle": ":"},
}
_NAMES = {"Gaussian": "Gaussian, delta 1e-5", "Laplace": "Laplace, pure epsilon"}


def _of(rows: Sequence[Row], setting: str, mechanism: str) -> list[Row]:
    return sorted(
        (row for row in rows if row["setting"] == setting and row["mechanism"] == mechanism),
        key=lambda row: (row["epsilon"], row["T"] or 0),
    )


def _line(axis: Any, x: list[float], rows: Sequence[Row], name: str, style: dict[str, Any]) -> None:
    mean, sd = [row["mean"] for row in rows], [row["sd"] for row in rows]
    axis.plot(x, mean, label=name, linewidth=1.2, markersize=3.5, **style)
    low, high = ([m + f * s for m, s in zip(mean, sd, strict=True)] for f in (-1, 1))
    axis.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _against_t(axis: Any, rows: Sequence[Row], setting: str) -> None:
    """Accuracy of the paper's mechanism against T, a line for each epsilon."""
    from matplotlib import colormaps

    mine = _of(rows, setting, "paper")
    epsilons = sorted({row["epsilon"] for row in mine})
    for i, epsilon in enumerate(epsilons):
        line = [row for row in mine if row["epsilon"] == epsilon]
        colour = colormaps["viridis"](0.9 * i / max(len(epsilons) - 1, 1))
        _line(axis, [row["T"] for row in line], line, f"epsilon {epsilon:g}", {"color": colour, "marker": "."})
    for row in _of(rows, setting, "non-private"):
        axis.axhline(row["mean"], color="grey", linestyle="--", linewidth=1, label="non-private")
    axis.set(xlabel="T, entries released by each party", ylabel="balanced accuracy", title=setting)


def _against_epsilon(axis: Any, rows: Sequence[Row], setting: str) -> None:
    """Accuracy against epsilon, of all mechanisms."""
    data = setting.split(",")[0]
    for mechanism, style in _STYLES.items():
        for where in (setting, data):
            line = _of(rows, where, mechanism)
            if line:
                _line(axis, [row["epsilon"] for row in line], line, _NAMES.get(mechanism, mechanism), style)
    if setting in READ_OFF:
        read = [(epsilon, value) for epsilon, value in READ_OFF[setting].items() if epsilon is not None]
        axis.plot(*zip(*read, strict=True), "x", color="tab:red", markersize=5, label="paper, read off its figure")
    for where, colour, what in ((setting, "tab:orange", "the paper's hash and scoring rule"), (data, "black", "ours")):
        for row in _of(rows, where, "non-private"):
            axis.axhline(row["mean"], color=colour, linestyle="--", linewidth=1, label=f"non-private, {what}")
    axis.set(xlabel="epsilon", ylabel="balanced accuracy", title=setting)


def _legend(figure: Any, axes: Sequence[Any], columns: int) -> None:
    """Draw one legend for all panels, below them."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncol=columns, fontsize=8, frameon=False
    )


def _same_height(axes: Sequence[Any]) -> None:
    low, high = min(axis.get_ylim()[0] for axis in axes), max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(low, high)
        axis.title.set_fontsize(9)


def draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """The paper's Figures 3, 7, 8 and 9, and one like it for all ten digits, as far as there are data for them.

    Parameters
    ----------
    rows : sequence of dict
        Rows of `simulations.privacy.measure`.
    folder : Path

    Returns
    -------
    list of str
        The files' names.
    """
    written = []
    settings = list(dict.fromkeys(row["setting"] for row in rows if row["mechanism"] == "paper"))
    made = [name for name in settings if name.startswith("synthetic")]
    for number, panel, columns in ((7, _against_t, 7), (8, _against_epsilon, 4)):
        if made:
            plt, figure, axes = _panels(len(made), 3.4, 3.1, most=4)
            for axis, setting in zip(axes, made, strict=True):
                panel(axis, rows, setting)
            _same_height(axes)
            _legend(figure, axes, columns)
            _save(plt, figure, folder / f"figure{number}.png")
            written.append(f"figure{number}.png")
    pairs = [("figure3", "synthetic n=1e5, m=300, rho=30")]
    pairs += [("figure9" if "3 v 8" in name else "mnist10", name) for name in settings if name.startswith("MNIST")]
    for name, setting in pairs:
        if setting in settings:
            plt, figure, axes = _panels(2, 4.6, 4.2)
            for axis, panel in zip(axes, (_against_t, _against_epsilon), strict=True):
                panel(axis, rows, setting)
                axis.title.set_fontsize(9)
                handles = axis.get_legend_handles_labels()[0]
                axis.legend(
                    handles=handles,
                    loc="upper center",
                    bbox_to_anchor=(0.5, -0.14),
                    ncol=2,
                    fontsize=7.5,
                    frameon=False,
                )
            _save(plt, figure, folder / f"{name}.png")
            written.append(f"{name}.png")
    return written
