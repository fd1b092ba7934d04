"""Tables and figures of `python -m simulations noniid`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from simulations import plots
from simulations.plots import Line, Panel
from simulations.results import Row, chosen, markdown_table, mean_by
from simulations.splits import LEAST, QUANTITY, SHIFT

FLYNN, DEFAULT, THOROUGH, HEADS = "FlyNN", "FlyNN default", "FlyNN thorough", "own heads"
COMMITTEES: dict[str, dict[str, Any]] = {DEFAULT: {}, THOROUGH: {"effort": "thorough"}}
"""Models of several hashes, by the parameters of `FlyNNClassifier` that they have."""

BASELINES = ("FedAvg LR", "SCAFFOLD LR", "FedAvg MLP", "FedProx MLP", "SCAFFOLD MLP", f"{HEADS} MLP")
"""Trained for many rounds."""

ONE_ROUND = "one round MLP"
MAIN = (*COMMITTEES, *BASELINES)
METHODS = (FLYNN, *MAIN, ONE_ROUND)
FIGURES = ("accuracy", "balanced", "worst", "personal accuracy", "personal worst")

_CELL = ["set", "parties", "split", "seed"]
_PERSONAL = {"personal accuracy": "mean", "personal worst": "worst party"}


def table(rows: Sequence[Row], figure: str, methods: Sequence[str], beside: str = "") -> list[Row]:
    """A line for every split, a column for every method: the mean over seeds of a figure, in brackets that of the one
    beside it, with an asterisk where no party takes more than one step in a round (see the module)."""
    frame = pd.DataFrame(rows)
    lines = []
    for split, mine in frame[frame["method"].isin(methods)].groupby("split", sort=False):
        line = {"split": split} | dict.fromkeys(methods, "")
        for method, of in mine.groupby("method", sort=False):
            more = f" ({of[beside].mean():.2f})" if beside else ""
            line[method] = f"{of[figure].mean():.3f}{more}" + "*" * bool((of["steps"] == 1).all())
        lines.append(line)
    return lines


def beside(rows: Sequence[Row], ours: str = THOROUGH) -> pd.DataFrame:
    """A line for every cell that `ours` and all of `BASELINES` have: the personal figures of all, and the ``best`` of
    the baselines; columns are (figure, method)."""
    cells = pd.DataFrame(rows)
    frame = cells.pivot(index=_CELL, columns="method", values=list(_PERSONAL))
    frame = frame.reindex(pd.MultiIndex.from_frame(cells[_CELL].drop_duplicates()))  # in the order of the rows
    frame = frame.reindex(columns=pd.MultiIndex.from_product([_PERSONAL, (ours, *BASELINES)]))
    frame = frame[frame["personal accuracy"].notna().all(axis=1)].astype(float)
    for figure in _PERSONAL:
        frame[figure, "best"] = frame[figure][list(BASELINES)].max(axis=1)
        frame[figure, "of"] = frame[figure][list(BASELINES)].fillna(-1).idxmax(axis=1)
    return frame


def ahead(frame: pd.DataFrame, ours: str = THOROUGH) -> list[Row]:
    """A line for every baseline, and one for all of them: share of the cells where `ours` is ahead or equal."""
    lines: list[Row] = []
    for other in (*BASELINES, "best"):
        line: Row = {"against": "all of them" if other == "best" else other, "cells": len(frame)}
        for figure, name in _PERSONAL.items():
            gain = (frame[figure][ours] - frame[figure][other]).dropna()  # no party may have enough held-out samples
            line |= {f"{name}: ahead or equal": _percent(gain >= -1e-9), f"{name}: gain": f"{gain.mean():+.3f}"}
        lines.append(line)
    return lines


def _percent(which: pd.Series) -> str:
    return f"{100 * which.mean():.0f} %"


def by_set(rows: Sequence[Row], frame: pd.DataFrame, ours: str = THOROUGH) -> list[Row]:
    """A line for every data set and number of parties: `ours` against the best baseline of each cell, and bytes."""
    spent = pd.DataFrame(rows)
    spent["kB"] = (spent["up"] + spent["down"]) / 1000
    lines: list[Row] = []
    for group, mine in frame.groupby(["set", "parties"], sort=False):
        kilobytes = spent[(spent["set"] == group[0]) & (spent["parties"] == group[1])].groupby("method")["kB"].mean()
        line: Row = {"set": group[0], "parties": group[1], "cells": len(mine)}
        for figure, name in _PERSONAL.items():
            both = mine[figure].dropna(subset=[ours, "best"])
            line |= {
                f"{name}: {ours}": f"{both[ours].mean():.3f}",
                f"{name}: best baseline": f"{both['best'].mean():.3f}",
                f"{name}: ahead or equal": _percent(both[ours] - both["best"] >= -1e-9),
            }
        mlp = kilobytes["FedAvg MLP"]
        lines.append(line | {f"kB: {ours}": f"{kilobytes[ours]:.0f}", "of the MLP's": f"{kilobytes[ours] / mlp:.2f}"})
    return lines


def losses(frame: pd.DataFrame, ours: str = THOROUGH) -> list[Row]:
    """A line for every data set, number of parties and split with a cell where `ours` is behind a baseline, the mean
    over the seeds of these cells."""
    lines: list[Row] = []
    for (name, n_parties, split), mine in frame.groupby(_CELL[:3], sort=False):
        line: Row = {"set": name, "parties": n_parties, "split": split}
        for figure, what in _PERSONAL.items():
            behind = mine[figure][mine[figure][ours] < mine[figure]["best"] - 1e-9]
            line[what] = ""
            if len(behind):
                seeds = f", {len(behind)} of {len(mine)} seeds" if len(mine) > 1 else ""
                of = ", ".join(dict.fromkeys(behind["of"]))
                line[what] = f"{behind[ours].mean():.3f}, {behind['best'].mean():.3f} by {of}{seeds}"
        if line["mean"] or line["worst party"]:
            lines.append(line)
    return lines


def harm(rows: Sequence[Row]) -> list[Row]:
    """A line for every method: parties that are worse and better off with their own frequencies, and the worst loss."""
    lines: list[Row] = []
    for method in (*COMMITTEES, *BASELINES):
        mine = [row for row in rows if row["method"] == method and "drop" in row]
        judged = sum(row["judged"] for row in mine)
        if judged:
            worst = max(mine, key=lambda row: row["drop"])
            share = {name: f"{100 * sum(row[name] for row in mine) / judged:.1f} %" for name in ("worse", "better")}
            where = f"{worst['set']}, {worst['parties']} parties, {worst['split']}"
            drop = f"{worst['drop']:.3f} of {worst['drop of']} samples ({where})" if worst["drop"] else "none"
            lines.append({"method": method, "parties": judged} | share | {"worst loss": drop})
    return lines


def kilobytes(rows: Sequence[Row]) -> list[Row]:
    """A line for every method: rounds, and kilobytes of a party by data set and number of parties."""
    frame = pd.DataFrame(rows)
    spent = ((frame["up"] + frame["down"]) / 1000).groupby([frame[key] for key in ("method", "set", "parties")]).mean()
    lines = []
    for method in METHODS:
        rounds = next((str(row["rounds"]) for row in rows if row["method"] == method), "")
        found = {f"{name}, {n}": spent.get((method, name, n)) for name, n in groups(rows)}
        shown = {key: "" if value is None else f"{value:.0f}" for key, value in found.items()}
        lines.append({"method": method, "rounds": rounds} | shown)
    return lines


def results(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Summaries of the cells: sentences, each with its table."""
    frame = beside(rows)
    if len(frame):
        what = "a cell is a data set, number of parties, split and seed"
        yield f"{THOROUGH} beside the baselines of many rounds, with class prior; {what}:", ahead(frame)
        yield "By data set, beside the best of these baselines in each cell:", by_set(rows, frame)
    if len(other := beside(rows, DEFAULT)):
        yield f"{DEFAULT} beside them:", ahead(other, DEFAULT)[-1:]
        yield f"{DEFAULT} by data set:", by_set(rows, other, DEFAULT)
    yield f"Effect of the class prior on parties with {LEAST} or more held-out samples, over all cells:", harm(rows)
    if len(frame) and (lost := losses(frame)):
        yield f"Where {THOROUGH} is behind: its figure, then that of the best baseline:", lost


def headline(rows: Sequence[Row], ours: str = THOROUGH) -> str:
    """The results in two sentences."""
    frame = beside(rows)
    if not len(frame):
        return f"No cell has {ours} and all baselines."
    best, mine = ahead(frame)[-1], next(line for line in harm(rows) if line["method"] == ours)
    spent = pd.DataFrame(rows).assign(bytes=lambda table: table["up"] + table["down"])
    both = spent.pivot(index=_CELL, columns="method", values="bytes")
    return (
        f"{ours} is ahead of all baselines of many rounds, or equal to the best, in {best['mean: ahead or equal']} of "
        f"{len(frame)} cells in mean accuracy and in {best['worst party: ahead or equal']} at the worst party, at "
        f"{(both[ours] / both['FedAvg MLP']).median():.2f} times the bytes of FedAvg's MLP (median of the cells). The "
        f"class prior makes {mine['worse']} of its parties worse and {mine['better']} better; the worst loss is "
        f"{mine['worst loss']}."
    )


def groups(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """The rows of each data set and number of parties."""
    pairs = dict.fromkeys((row["set"], row["parties"]) for row in rows)
    return {pair: chosen(rows, set=pair[0], parties=pair[1]) for pair in pairs}


def summary(
    rows: Sequence[Row], n_rounds: int, about: str, skew: tuple[str, Mapping[str, npt.NDArray[Any]]], folder: Path
) -> list[str]:
    """The results, paragraph by paragraph, with the figures.

    Parameters
    ----------
    rows : sequence of dict
    n_rounds : int
        Rounds of the baselines.
    about : str
        Description of the methods.
    skew : (title, {split: (parties, L) samples of each class})
    folder : Path
        Gets the figures.
    """
    seeds = [f"{name} with {n}: {len({row['seed'] for row in mine})}" for (name, n), mine in groups(rows).items()]
    parts = [f"{n_rounds} rounds. Seeds by data set and number of parties: {'; '.join(seeds)}.", "## Summary"]
    parts.append(headline(rows))
    for sentence, lines in results(rows):
        parts += [sentence, markdown_table(lines)]
    parts += ["## Accuracy by split", "With the parties' class prior, and in brackets at the worst party."]
    for n_parties in dict.fromkeys(row["parties"] for row in rows):
        parts.append(draw_accuracy(rows, n_parties, folder / f"accuracy-all-{n_parties}.png"))
    for (name, n_parties), mine in groups(rows).items():
        shown = table(mine, "personal accuracy", MAIN, "personal worst")
        parts += [f"### {name}, {n_parties} parties", markdown_table(shown)]
    parts += ["## What it costs", "Kilobytes of a party, up and down:", markdown_table(kilobytes(rows))]
    for (name, n_parties), mine in groups(rows).items():
        parts.append(draw_bytes(mine, f"{name}, {n_parties} parties", folder / f"bytes-{name}-{n_parties}.png"))
    first = next(iter(groups(rows)))
    figure = plots.heat_maps(skew[1], skew[0], folder / f"skew-{first[0]}-{first[1]}.png")
    parts += ["## The methods", about, figure, "## Details"]
    parts.append("Accuracy of the shared model on all held-out samples; more in `noniid.csv`.")
    methods = [method for method in METHODS if not method.startswith(HEADS)]
    for (name, n_parties), mine in groups(rows).items():
        parts += [f"### {name}, {n_parties} parties, shared model", markdown_table(table(mine, "accuracy", methods))]
    recipes = [
        {name: row[name] for name in ("set", "parties", "method")} | row["recipe"] for row in rows if "recipe" in row
    ]
    unique = [line for number, line in enumerate(recipes) if line not in recipes[:number]]
    return [*parts, "Recipes that the grid led to:", markdown_table(unique)]


def draw_accuracy(rows: Sequence[Row], n_parties: int, path: Path) -> str:
    """Accuracy over all samples, and at the worst party, by split, with class prior: two panels for a data set.

    Quantity skew and feature shift are not on a scale of label skew with the others: no line leads to them.
    """
    mine, panels = chosen(rows, parties=n_parties), []
    splits = [*dict.fromkeys(row["split"] for row in mine)]
    means = mean_by(mine, ["set", "split", "method"])
    for name in dict.fromkeys(row["set"] for row in mine):
        for figure, what in (("personal accuracy", "accuracy"), ("personal worst", "worst party")):
            values = {
                method: [float(means[figure].get((name, split, method), np.nan)) for split in splits] for method in MAIN
            }
            lines = []
            for method, y in values.items():
                joined = [
                    np.nan if split in (QUANTITY, SHIFT) else value for split, value in zip(splits, y, strict=True)
                ]
                lines.append(Line(method, range(len(splits)), joined))
                apart = [
                    value if split in (QUANTITY, SHIFT) else np.nan for split, value in zip(splits, y, strict=True)
                ]
                lines.append(Line(method, range(len(splits)), apart, look={"linestyle": "none"}))
            axes = {"xticks": range(len(splits)), "xticklabels": [split.replace(" ", "\n") for split in splits]}
            panels.append(Panel(f"{name}: {what}", lines, axes))
    title = f"{n_parties} parties: accuracy by split, with class prior"
    return plots.lines(panels, path, (6.6, 3.2), 2, title)


def draw_bytes(rows: Sequence[Row], title: str, path: Path) -> str:
    """Accuracy against the bytes that a party has sent and got, round by round, for up to three of the splits."""
    splits = [*dict.fromkeys(row["split"] for row in rows)]
    shown = [split for split in ("IID", "Dirichlet 0.1", "1 class") if split in splits] or splits[:3]
    panels = []
    for split in shown:
        lines = []
        for row in chosen(rows, split=split, seed=rows[0]["seed"]):
            if not np.isnan(row["accuracy"]):
                curve = row.get("curve") or [row["accuracy"]]
                spent = (row["up"] + row["down"]) / len(curve) * np.arange(1, len(curve) + 1) / 1000
                look = {"markersize": 8} if len(curve) == 1 else {"marker": None}
                lines.append(Line(row["method"], spent, curve, look=look))
        axes = {"xscale": "log", "xlabel": "kB of one party, up and down", "ylabel": "accuracy, all held-out samples"}
        panels.append(Panel(split, lines, axes))
    return plots.lines(panels, path, (4.4, 4.0), title=f"{title}: accuracy after each round", legend=5)
