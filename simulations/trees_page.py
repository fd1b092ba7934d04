"""Tables and the figure of `python -m simulations trees`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from simulations import plots
from simulations.plots import Line, Panel
from simulations.results import Row, behind, markdown_table

FLYNN = "FlyNN"
FLOOR_1 = "FlyNN, floor 1"
EFFORTS = {"FlyNN quick": "quick", FLYNN: "default", "FlyNN thorough": "thorough"}
BAGGING = "FedXgbBagging"
CYCLIC = "FedXgbCyclic"
FOREST = "federated forest"
POOLED = {"pooled forest": "forest", "pooled boosting": "boosting"}
TREES = (BAGGING, CYCLIC, FOREST)
METHODS = (*EFFORTS, FLOOR_1, *TREES, *POOLED)

ONE_CLASS = "one class"
EVERYWHERE = "pooled"
KB = "kB, median"
SPLITS = ("IID", "Dirichlet 0.3", "Dirichlet 0.1", ONE_CLASS)


def complete(rows: Sequence[Row]) -> pd.DataFrame:
    """The lines of `averaged` for the sets of which no cell is missing."""
    frame = averaged(rows)
    there = (
        frame["balanced"]
        .unstack("method")
        .reindex(columns=METHODS)
        .notna()
        .all(axis=1)
        .groupby("set")
        .sum()
    )
    return frame[
        frame.index.get_level_values("set").isin(there.index[there == len(SPLITS)])
    ]


def averaged(rows: Sequence[Row]) -> pd.DataFrame:
    """A line for every set, split and method: means over the seeds.

    Pooled models stand in each split.
    """
    frame = pd.DataFrame(rows)
    everywhere = frame[frame["split"] == EVERYWHERE]
    frame = pd.concat(
        [
            frame[frame["split"] != EVERYWHERE],
            *(everywhere.assign(split=split) for split in SPLITS),
        ]
    )
    frame["kB"] = (frame["up"] + frame["down"]) / 1000
    return frame.groupby(["set", "split", "method"], sort=False)[
        ["balanced", "kB"]
    ].mean()


def means(frame: pd.DataFrame) -> list[Row]:
    """A line for every method: mean balanced accuracy over the sets by split, and the
    median of kilobytes.

    Kilobytes are those without "one class", where trees have nothing to learn and stop
    at once.
    """
    spent = (
        frame[frame.index.get_level_values("split") != ONE_CLASS]["kB"]
        .groupby("method")
        .median()
    )
    table = frame["balanced"].groupby(["method", "split"]).mean()
    lines: list[Row] = []
    for method in METHODS:
        kilobytes = "all samples"
        if method not in POOLED:
            kilobytes = f"{spent[method]:.0f}"
        lines.append(
            {"method": method}
            | {split: float(table[method, split]) for split in SPLITS}
            | {KB: kilobytes}
        )
    return lines


def kilobytes(frame: pd.DataFrame) -> list[Row]:
    """A line for every federated method: median kilobytes by split."""
    spent = frame["kB"].groupby(["method", "split"]).median()
    federated = [name for name in METHODS if name not in POOLED]
    return [
        {"method": name} | {split: f"{spent[name, split]:.0f}" for split in SPLITS}
        for name in federated
    ]


def wins(frame: pd.DataFrame, ours: str = FLYNN) -> list[Row]:
    """A line for every other method: sets where `ours` is ahead, equal and behind, by
    split.
    """
    table = frame["balanced"].unstack("method").round(9)
    lines: list[Row] = []
    for other in (*TREES, *POOLED):
        signs = np.sign(table[ours] - table[other])
        counts = {
            split: [
                (signs.xs(split, level="split") == sign).sum() for sign in (1, 0, -1)
            ]
            for split in SPLITS
        }
        lines.append(
            {"against": other}
            | {split: "/".join(map(str, counts[split])) for split in SPLITS}
        )
    return lines


def by_set(frame: pd.DataFrame, split: str, figure: str = "balanced") -> list[Row]:
    """A line for every set, a column for every method."""
    table = frame[figure].xs(split, level="split").unstack("method")[list(METHODS)]
    return [
        {"set": name} | {method: float(line[method]) for method in METHODS}
        for name, line in table.iterrows()
    ]


def headline(frame: pd.DataFrame) -> str:
    """Number of sets, and the price of the default floor in accuracy, in two sentences."""
    table = frame["balanced"].unstack("method")
    cost = table[FLOOR_1] - table[FLYNN]
    return (
        f"Means over {table.index.get_level_values('set').nunique()} sets. FlyNN's "
        "default floor of five samples "
        f"costs it {cost.mean():.3f} on average, and {cost.max():.3f} at most "
        f"({', '.join(cost.idxmax())})."
    )


def draw(frame: pd.DataFrame, title: str, path: Path) -> str:
    """Mean accuracy by split, and beside it by kilobytes for "Dirichlet 0.1"."""
    spent = frame["kB"].xs("Dirichlet 0.1", level="split").groupby("method").median()
    by_split = []
    by_bytes = []
    for line in (line for line in means(frame) if line["method"] != FLOOR_1):
        method = line["method"]
        is_pooled = line["method"] in POOLED
        look: Row = {}
        if is_pooled:
            look = {"linestyle": ":", "marker": None}
        by_split.append(
            Line(
                method, range(len(SPLITS)), [line[split] for split in SPLITS], look=look
            )
        )
        if is_pooled:
            x = []
        else:
            x = [float(spent[method])]
        look = {"linestyle": "none", "markersize": 10}
        by_bytes.append(Line(method, x, [line["Dirichlet 0.1"]][: len(x)], look=look))
    ticks = {
        "xticks": range(len(SPLITS)),
        "xticklabels": SPLITS,
        "ylabel": "balanced accuracy, mean over sets",
    }
    scale = {"xscale": "log", "xlabel": "kB of one party, up and down (median)"}
    panels = [
        Panel("by split", by_split, ticks),
        Panel("Dirichlet 0.1, by bytes", by_bytes, scale),
    ]
    return plots.lines(panels, path, (5.2, 4.4), title=title)


def summary(
    rows: Sequence[Row], frame: pd.DataFrame, methods: str, figure: str
) -> list[str]:
    """The results, paragraph by paragraph, with a description of the methods and the
    figure.
    """
    names = list(dict.fromkeys(frame.index.get_level_values("set")))
    lines = means(frame)
    complete_rows = [row for row in rows if row["set"] in names]
    seeds = {
        name: len({row["seed"] for row in complete_rows if row["set"] == name})
        for name in names
    }
    fewer = [name for name in names if seeds[name] < max(seeds.values())]
    ran = f"{max(seeds.values())} for each set"
    if fewer:
        ran += f", one for {', '.join(fewer)}"
    same = [row["same"] for row in complete_rows if row["method"] == FLOOR_1]
    parts = [headline(frame), markdown_table(lines), figure]
    parts += [
        "Sets where FlyNN, untuned, is ahead / equal / behind:",
        markdown_table(wins(frame)),
    ]
    parts += [
        "The same for FlyNN thorough:",
        markdown_table(wins(frame, "FlyNN thorough")),
    ]
    parts += [
        "Where federated trees are furthest ahead of FlyNN:",
        markdown_table(behind(frame["balanced"].unstack("method"), FLYNN, TREES, 12)),
    ]
    parts += ["## The methods", methods]
    parts.append(
        f"Samples of a set: at most {max(row['n'] for row in complete_rows)}. Seeds of the "
        f"split: {ran}; in a single cell "
        f"differences of 0.01 are chance. In {sum(same)} of {len(same)} runs with "
        "`min-examples=1` over parties of one "
        "class each the SHA-256 was that of the pooled model."
    )
    for split in SPLITS:
        parts += [f"## {split}", markdown_table(by_set(frame, split))]
    sizes = {
        row["set"]: {name: row[name] for name in ("set", "n", "d", "classes")}
        for row in complete_rows
    }
    spent = frame["kB"].groupby(["set", "method"], sort=False).mean()
    federated = [method for method in METHODS if method not in POOLED]
    by_name = [
        sizes[name] | {method: f"{spent[name, method]:.0f}" for method in federated}
        for name in names
    ]
    parts += [
        "## Kilobytes of a party",
        "Up and down; median over the sets:",
        markdown_table(kilobytes(frame)),
    ]
    return [*parts, "Mean over splits and seeds by set:", markdown_table(by_name)]
