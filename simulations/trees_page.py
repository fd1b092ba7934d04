"""Tables and the figure of `python -m simulations trees`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from simulations.plots import _panels, _save
from simulations.results import Row, markdown_table

FLYNN, FLOOR_1 = "FlyNN", "FlyNN, floor 1"
EFFORTS = {"FlyNN quick": "quick", FLYNN: "default", "FlyNN thorough": "thorough"}
BAGGING, CYCLIC, FOREST = "FedXgbBagging", "FedXgbCyclic", "federated forest"
POOLED = {"pooled forest": "forest", "pooled boosting": "boosting"}
TREES = (BAGGING, CYCLIC, FOREST)
METHODS = (*EFFORTS, FLOOR_1, *TREES, *POOLED)

ONE_CLASS, EVERYWHERE = "one class", "pooled"
SPLITS = ("IID", "Dirichlet 0.3", "Dirichlet 0.1", ONE_CLASS)


def complete(rows: Sequence[Row]) -> pd.DataFrame:
    """The lines of `averaged` for the sets of which no cell is missing."""
    frame = averaged(rows)
    there = frame["balanced"].unstack("method").reindex(columns=METHODS).notna().all(axis=1).groupby("set").sum()
    return frame[frame.index.get_level_values("set").isin(there.index[there == len(SPLITS)])]


def averaged(rows: Sequence[Row]) -> pd.DataFrame:
    """A line for every set, split and method: means over the seeds. Pooled models stand in each split."""
    frame = pd.DataFrame(rows)
    everywhere = frame[frame["split"] == EVERYWHERE]
    frame = pd.concat([frame[frame["split"] != EVERYWHERE], *(everywhere.assign(split=split) for split in SPLITS)])
    frame["kB"] = (frame["up"] + frame["down"]) / 1000
    return frame.groupby(["set", "split", "method"], sort=False)[["balanced", "kB"]].mean()


def means(frame: pd.DataFrame) -> list[Row]:
    """A line for every method: mean balanced accuracy over the sets by split, and the median of kilobytes."""
    lines: list[Row] = []
    for method in METHODS:
        mine = frame.xs(method, level="method")
        spent = mine["kB"].median()
        scores = mine.groupby("split")["balanced"].mean()
        kilobytes = f"{spent:.0f}" if method not in POOLED else "all samples"
        lines.append({"method": method} | {split: float(scores[split]) for split in SPLITS} | {"kB, median": kilobytes})
    return lines


def wins(frame: pd.DataFrame, ours: str = FLYNN) -> list[Row]:
    """A line for every other method: sets where `ours` is ahead, equal and behind, by split."""
    table = frame["balanced"].unstack("method").round(9)
    lines: list[Row] = []
    for other in (*TREES, *POOLED):
        signs = np.sign(table[ours] - table[other])
        counts = {split: [(signs.xs(split, level="split") == sign).sum() for sign in (1, 0, -1)] for split in SPLITS}
        lines.append({"against": other} | {split: "/".join(map(str, counts[split])) for split in SPLITS})
    return lines


def losses(frame: pd.DataFrame, ours: str = FLYNN, most: int = 12) -> list[Row]:
    """A line for each of the cells where the best federated trees are furthest ahead of `ours`."""
    table = frame["balanced"].unstack("method")
    best, which = table[list(TREES)].max(axis=1), table[list(TREES)].idxmax(axis=1)
    gaps = (best - table[ours]).sort_values(ascending=False)[:most]
    return [
        {"set": name, "split": split, ours: float(table.loc[(name, split), ours])}
        | {"best trees": float(best[name, split]), "by": which[name, split], "gap": float(gap)}
        for (name, split), gap in gaps[gaps > 0].items()
    ]


def by_set(frame: pd.DataFrame, split: str, figure: str = "balanced") -> list[Row]:
    """A line for every set, a column for every method."""
    table = frame[figure].xs(split, level="split").unstack("method")[list(METHODS)]
    return [{"set": name} | {method: float(line[method]) for method in METHODS} for name, line in table.iterrows()]


def headline(lines: Sequence[Row], n_sets: int) -> str:
    """The results in two sentences."""
    of = {line["method"]: line for line in lines}
    shown = {name: ", ".join(f"{of[name][split]:.3f}" for split in SPLITS) for name in (FLYNN, *TREES)}
    trees = "; ".join(f"{name} {shown[name]} ({of[name]['kB, median']} kB)" for name in TREES)
    return (
        f"Mean balanced accuracy over {n_sets} sets, in the order {', '.join(SPLITS)}: FlyNN {shown[FLYNN]} for "
        f"{of[FLYNN]['kB, median']} kB a party (median); {trees}. With all samples in one place a forest has "
        f"{of['pooled forest']['IID']:.3f}, boosting {of['pooled boosting']['IID']:.3f}."
    )


_LOOKS: dict[str, tuple[str, str, str]] = {
    "FlyNN quick": ("tab:cyan", "-", "v"), FLYNN: ("tab:blue", "-", "o"), "FlyNN thorough": ("navy", "-", "^"),
    BAGGING: ("tab:red", "--", "s"), CYCLIC: ("tab:orange", "--", "D"), FOREST: ("tab:green", "--", "P"),
    "pooled forest": ("0.45", ":", ""), "pooled boosting": ("black", ":", ""),
}  # fmt: skip


def draw(lines: Sequence[Row], title: str, path: Path) -> None:
    """Mean accuracy by split, and beside it by kilobytes for "Dirichlet 0.1"."""
    plt, figure, axes = _panels(2, 5.2, 4.4)
    for line in (line for line in lines if line["method"] in _LOOKS):
        colour, dash, marker = _LOOKS[line["method"]]
        look = {"color": colour, "marker": marker or None, "markersize": 7, "label": line["method"]}
        axes[0].plot(range(len(SPLITS)), [line[split] for split in SPLITS], linestyle=dash, linewidth=1.8, **look)
        if line["method"] not in POOLED:
            axes[1].plot(
                float(line["kB, median"]), line["Dirichlet 0.1"], linestyle="none", **look | {"markersize": 10}
            )
    axes[0].set_xticks(range(len(SPLITS)), SPLITS)
    axes[0].set(ylabel="balanced accuracy, mean over sets", title="by split")
    axes[1].set(xscale="log", xlabel="kB of one party, up and down (median)", title="Dirichlet 0.1, by bytes")
    axes[1].xaxis.set_major_formatter("{x:g}")
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.suptitle(title, fontsize=11)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=4, fontsize=9, frameon=False)
    _save(plt, figure, path)


def summary(rows: Sequence[Row], frame: pd.DataFrame, methods: str) -> list[str]:
    """The results, paragraph by paragraph, with a description of the methods."""
    names, lines = list(dict.fromkeys(frame.index.get_level_values("set"))), means(frame)
    kept = [row for row in rows if row["set"] in names]
    seeds = {name: len({row["seed"] for row in kept if row["set"] == name}) for name in names}
    ran = "; ".join(
        f"{n}: {', '.join(name for name in names if seeds[name] == n)}" for n in sorted(set(seeds.values()))
    )
    same = [row["same"] for row in kept if row["method"] == FLOOR_1]
    parts = [headline(lines, len(names)), markdown_table(lines), "![accuracy by split, and by bytes](trees.png)"]
    parts += ["Sets where FlyNN, untuned, is ahead / equal / behind:", markdown_table(wins(frame))]
    parts += ["The same for FlyNN thorough:", markdown_table(wins(frame, "FlyNN thorough"))]
    parts += ["Where federated trees are furthest ahead of FlyNN:", markdown_table(losses(frame))]
    parts += ["## The methods", methods]
    parts.append(
        f"Samples of a set: at most {max(row['n'] for row in kept)}. Seeds of the split, by set: {ran}. In {sum(same)} "
        f"of {len(same)} runs with `min-examples=1` over parties of one class each the SHA-256 was that of the pooled "
        "model; where it is not, some class has no training samples."
    )
    for split in SPLITS:
        parts += [f"## {split}", markdown_table(by_set(frame, split))]
    sizes = [{k: row[k] for k in ("set", "n", "d", "classes")} for row in {row["set"]: row for row in kept}.values()]
    spent = frame["kB"].groupby(["set", "method"], sort=False).mean().unstack("method")
    federated = [method for method in METHODS if method not in POOLED]
    parts += ["## Kilobytes of a party", "Up and down, mean over splits and seeds."]
    parts.append(
        markdown_table(
            [one | {method: f"{spent.loc[one['set'], method]:.0f}" for method in federated} for one in sizes]
        )
    )
    return parts
