"""Figures of `python -m simulations noniid`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulations.plots import _panels, _save
from simulations.results import Row

Array = npt.NDArray[Any]

# FedProx often lies on FedAvg: thin and dark on wide and light, both are seen.
_COLOURS: dict[str, dict[str, str]] = {
    "LR": {"FedAvg": "sandybrown", "SCAFFOLD": "saddlebrown"},
    "MLP": {
        "FedAvg": "mediumaquamarine",
        "FedProx": "darkgreen",
        "SCAFFOLD": "olive",
        "own heads": "tab:red",
        "one round": "tab:green",
    },
}
_STYLES: dict[str, dict[str, Any]] = {
    "FedAvg": {"linestyle": "-", "marker": "s", "linewidth": 2.6},
    "FedProx": {"linestyle": "--", "marker": ".", "linewidth": 1.0},
    "SCAFFOLD": {"linestyle": "-.", "marker": "x", "linewidth": 1.3},
    "own heads": {"linestyle": "-", "marker": "+", "linewidth": 1.3},
    "one round": {"linestyle": ":", "marker": "v", "linewidth": 1.3},
}
_APART = ("quantity skew", "feature shift")  # not on a scale of label skew with the others
_FLYNN: dict[str, dict[str, Any]] = {
    "FlyNN": {"color": "black", "linestyle": "-", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "FlyNN default": {"color": "tab:blue", "linestyle": "-", "marker": "D", "linewidth": 1.6, "zorder": 5},
    "FlyNN thorough": {"color": "magenta", "linestyle": "-", "marker": "P", "linewidth": 1.6, "zorder": 5},
}


def name_of(what: str, name: str, n_parties: int) -> str:
    """The file name of a figure."""
    return f"{what}-{name}-{n_parties}.png"


def style(method: str) -> dict[str, Any]:
    """Colour by model, line by algorithm; FlyNN apart from all."""
    if method in _FLYNN:
        return _FLYNN[method]
    algorithm, model = method.rsplit(" ", 1)
    return {"color": _COLOURS[model][algorithm]} | _STYLES[algorithm]


def skew(tables: Mapping[str, Array], title: str, path: Path) -> None:
    """A heat map for every split: parties to the right, classes up, darker for more samples.

    Parameters
    ----------
    tables : mapping of split to (parties, L) array
        Training samples of each class at each party.
    title : str
    path : Path
        The PNG.
    """
    plt, figure, axes = _panels(len(tables), 3.6, 2.2, most=4)
    # Few samples and none must look different, and one split must not set the scale for all others.
    for axis, (split, counts) in zip(axes, tables.items(), strict=True):
        shares = counts.T / max(counts.max(), 1)
        image = axis.imshow(np.where(counts.T > 0, 0.08 + 0.92 * shares**0.5, 0), aspect="auto", cmap="Blues",
                            vmin=0, vmax=1, origin="lower", interpolation="nearest")  # fmt: skip
        empty = int((counts.sum(axis=1) == 0).sum())
        # A party may hold no sample at all, and is a party all the same.
        note = f", {empty} without points" if empty else ""
        axis.set_title(f"{split} (most: {counts.max()}{note})", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.yaxis.get_major_locator().set_params(integer=True)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, ticks=[0, 0.08 + 0.92 * 0.25**0.5, 1])
    bar.ax.set_yticklabels(["none", "a quarter", "most"], fontsize=8)
    figure.supxlabel("party", fontsize=10)
    figure.supylabel("class", fontsize=10)
    figure.suptitle(title, fontsize=11)
    _save(plt, figure, path)


def accuracy(rows: Sequence[Row], methods: Sequence[str], title: str, path: Path) -> None:
    """Accuracy over all samples, and at the worst party, by split, with class prior: two panels for a data set.

    Parameters
    ----------
    rows : sequence of dict
        Rows of `noniid.Study.rows` for one number of parties.
    methods : sequence of str
    title : str
    path : Path
        The PNG.
    """
    sets = list(dict.fromkeys(row["set"] for row in rows))
    splits = list(dict.fromkeys(row["split"] for row in rows))
    panels = [(name, what) for name in sets for what in ("accuracy", "worst party")]
    plt, figure, axes = _panels(len(panels), 6.0, 3.0, most=2)
    for axis, (name, what) in zip(axes, panels, strict=True):
        for method in methods:
            means = [
                np.mean([
                    row["personal worst" if what == "worst party" else "personal accuracy"] for row in rows
                    if (row["set"], row["split"], row["method"]) == (name, split, method)
                ] or [np.nan])
                for split in splits
            ]  # fmt: skip
            joined = [i for i, split in enumerate(splits) if split not in _APART and not np.isnan(means[i])]
            apart = [i for i, split in enumerate(splits) if split in _APART]
            look: dict[str, Any] = {"markersize": 4} | style(method)
            if np.isnan(means).any():  # a line would pass over splits that it was not measured on
                look |= {"linestyle": "none", "markersize": 8}
            axis.plot(joined, [means[i] for i in joined], label=method, **look)
            axis.plot(apart, [means[i] for i in apart], **look | {"linestyle": "none"})
        last = name == sets[-1]
        axis.set_xticks(range(len(splits)), splits if last else [], rotation=40, ha="right", fontsize=9)
        axis.set_title(f"{name}: {what}", fontsize=10)
        axis.grid(axis="y", alpha=0.3)
    figure.suptitle(f"{title}: accuracy by split, with class prior", fontsize=12)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=4, fontsize=9, frameon=False)
    _save(plt, figure, path)


def by_bytes(rows: Sequence[Row], methods: Sequence[str], title: str, path: Path) -> None:
    """Accuracy against the bytes that a party has sent and got, round by round, for up to three of the splits."""
    wanted = [split for split in ("IID", "Dirichlet 0.1", "1 class") if any(row["split"] == split for row in rows)]
    shown = wanted or list(dict.fromkeys(row["split"] for row in rows))[:3]
    plt, figure, axes = _panels(len(shown), 4.4, 4.0)
    seed = rows[0]["seed"]
    for axis, split in zip(axes, shown, strict=True):
        for method in methods:
            row = next((r for r in rows if (r["split"], r["method"], r["seed"]) == (split, method, seed)), None)
            if row is None or np.isnan(row["accuracy"]):
                continue
            curve = row.get("curve") or [row["accuracy"]]
            spent = (row["up"] + row["down"]) / len(curve) * np.arange(1, len(curve) + 1) / 1000
            look = style(method)
            if len(curve) > 1:
                look = look | {"marker": None}
            axis.plot(spent, curve, label=method, markersize=7, **look)
        axis.set(xscale="log", xlabel="kB of one party, up and down", title=split)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    limits = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    axes[0].set_ylabel("accuracy, all held-out points")
    figure.suptitle(f"{title}: accuracy after each round", fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=7, fontsize=8, frameon=False)
    _save(plt, figure, path)
