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
from simulations.results import Row, behind, chosen, markdown_table, mean_by
from simulations.splits import LEAST, MENDED, QUANTITY, SHIFT

FLYNN = "FlyNN"
DEFAULT = "FlyNN default"
THOROUGH = "FlyNN thorough"
HEADS = "own heads"
COMMITTEES = {DEFAULT: "default", THOROUGH: "thorough"}
"""Models of several hashes, by their effort."""

BASELINES = (
    "FedAvg LR",
    "SCAFFOLD LR",
    "FedAvg MLP",
    "FedProx MLP",
    "SCAFFOLD MLP",
    f"{HEADS} MLP",
)
"""Trained for many rounds."""

ONE_ROUND = "one round MLP"
MAIN = (*COMMITTEES, *BASELINES)
METHODS = (FLYNN, *MAIN, ONE_ROUND)
FIGURES = ("accuracy", "balanced", "worst", "personal accuracy", "personal worst")

_CELL = ["set", "parties", "split", "seed"]
_APART = (QUANTITY, SHIFT, MENDED)  # not on a scale of label skew with the others
_PERSONAL = {"personal accuracy": "mean", "personal worst": "worst party"}


def table(
    rows: Sequence[Row], figure: str, methods: Sequence[str], beside: str = ""
) -> list[Row]:
    """A line for every split, a column for every method: the mean over seeds of a
    figure, in brackets that of the one beside it, with an asterisk where no party takes
    more than one step in a round (see the module).
    """
    frame = pd.DataFrame(rows)
    lines = []
    for split, mine in frame[frame["method"].isin(methods)].groupby(
        "split", sort=False
    ):
        line = {"split": split} | dict.fromkeys(methods, "")
        for method, of in mine.groupby("method", sort=False):
            cell = f"{of[figure].mean():.3f}"
            if beside:
                cell += f" ({of[beside].mean():.2f})"
            if (of["steps"] == 1).all():
                cell += "*"
            line[method] = cell
        lines.append(line)
    return lines


def beside(rows: Sequence[Row], ours: str = THOROUGH) -> pd.DataFrame:
    """A line for every cell that `ours` and all of `BASELINES` have: the personal
    figures of all, and the ``best`` of the baselines; columns are (figure, method).
    """
    cells = pd.DataFrame(rows)
    frame = cells.pivot(index=_CELL, columns="method", values=list(_PERSONAL))
    # in the order of the rows
    frame = frame.reindex(pd.MultiIndex.from_frame(cells[_CELL].drop_duplicates()))
    frame = frame.reindex(
        columns=pd.MultiIndex.from_product([_PERSONAL, (ours, *BASELINES)])
    )
    frame = frame[frame["personal accuracy"].notna().all(axis=1)].astype(float)
    for figure in _PERSONAL:
        frame[figure, "best"] = frame[figure][list(BASELINES)].max(axis=1)
    return frame


def ahead(frame: pd.DataFrame, ours: str = THOROUGH) -> list[Row]:
    """A line for every baseline, and one for all of them: share of the cells where
    `ours` is ahead or equal.
    """
    lines: list[Row] = []
    for other in (*BASELINES, "best"):
        against = other
        if other == "best":
            against = "all of them"
        line: Row = {"against": against, "cells": len(frame)}
        for figure, name in _PERSONAL.items():
            # no party may have enough held-out samples
            gain = (frame[figure][ours] - frame[figure][other]).dropna()
            line |= {
                f"{name}: ahead or equal": _percent(gain >= -1e-9),
                f"{name}: gain": f"{gain.mean():+.3f}",
            }
        lines.append(line)
    return lines


def _percent(which: pd.Series) -> str:
    return f"{100 * which.mean():.0f} %"


def by_set(rows: Sequence[Row], frame: pd.DataFrame, ours: str = THOROUGH) -> list[Row]:
    """A line for every data set and number of parties, and for all: `ours` against the
    best baseline of each cell, and medians of bytes.
    """
    spent = kilobytes_of(rows)
    lines = list[Row]()
    for group, mine in [
        *frame.groupby(["set", "parties"], sort=False),
        (("all of them", ""), frame),
    ]:
        kB, mlp = (
            [spent[(method, *cell[:2])] for cell in mine.index]
            for method in (ours, "FedAvg MLP")
        )
        line: Row = {"set": group[0], "parties": group[1], "cells": len(mine)}
        for figure, name in _PERSONAL.items():
            both = mine[figure].dropna(subset=[ours, "best"])
            line[f"{name}: {ours}"] = f"{both[ours].mean():.3f}"
            line[f"{name}: best baseline"] = f"{both['best'].mean():.3f}"
            line[f"{name}: ahead or equal"] = _percent(
                both[ours] - both["best"] >= -1e-9
            )
        line[f"kB: {ours}"] = f"{np.median(kB):.0f}"
        lines.append(line | {"of the MLP's": f"{np.median(np.divide(kB, mlp)):.2f}"})
    return lines


def harm(rows: Sequence[Row]) -> list[Row]:
    """A line for every method: parties that are worse and better off with their own
    frequencies, and the worst loss.
    """
    lines: list[Row] = []
    for method in (*COMMITTEES, *BASELINES):
        mine = [row for row in rows if row["method"] == method and "drop" in row]
        judged = sum(row["judged"] for row in mine)
        if judged:
            worst = max(mine, key=lambda row: row["drop"])
            share = {
                name: f"{100 * sum(row[name] for row in mine) / judged:.1f} %"
                for name in ("worse", "better")
            }
            where = f"{worst['set']}, {worst['parties']} parties, {worst['split']}"
            drop = "none"
            if worst["drop"]:
                drop = f"{worst['drop']:.3f} of {worst['drop of']} samples ({where})"
            lines.append(
                {"method": method, "parties": judged} | share | {"worst loss": drop}
            )
    return lines


def kilobytes_of(rows: Sequence[Row]) -> dict[tuple[str, str, int], float]:
    """Mean kilobytes of a party, up and down, by method, data set and number of
    parties.
    """
    spent = (
        pd.DataFrame(rows).groupby(["method", "set", "parties"])[["up", "down"]].mean()
    )
    return dict(spent.sum(axis=1) / 1000)


def kilobytes(rows: Sequence[Row]) -> list[Row]:
    """A line for every method: rounds, and kilobytes of a party by data set and number
    of parties.
    """
    spent = kilobytes_of(rows)
    lines = []
    for method in (method for method in METHODS if chosen(rows, method=method)):
        line = {
            "method": method,
            "rounds": str(chosen(rows, method=method)[0]["rounds"]),
        }
        for name, n in groups(rows):
            cell = ""
            if (method, name, n) in spent:
                cell = f"{spent[method, name, n]:.0f}"
            line[f"{name}, {n}"] = cell
        lines.append(line)
    return lines


def results(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Summaries of the cells: sentences, each with its table."""
    frame = beside(rows)
    if len(frame):
        what = "a cell is a data set, number of parties, split and seed"
        yield (
            f"{THOROUGH} beside the baselines of many rounds, with class prior; "
            f"{what}:",
            ahead(frame),
        )
        yield (
            "By data set, beside the best of these baselines in each cell:",
            by_set(rows, frame),
        )
    other = beside(rows, DEFAULT)
    if len(other):
        yield f"{DEFAULT} beside them:", ahead(other, DEFAULT)[-1:]
        yield f"{DEFAULT} by data set:", by_set(rows, other, DEFAULT)
    yield (
        f"Effect of the class prior on parties with {LEAST} or more held-out samples, "
        "over all cells:",
        harm(rows),
    )
    if not len(frame):
        return
    for figure, name in _PERSONAL.items():
        means = (
            frame[figure][[THOROUGH, *BASELINES]].groupby(_CELL[:3], sort=False).mean()
        )
        lost = behind(means, THOROUGH, BASELINES)
        if lost:
            yield f"Where {THOROUGH} is behind, means over the seeds, {name}:", lost


def groups(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """The rows of each data set and number of parties."""
    pairs = dict.fromkeys((row["set"], row["parties"]) for row in rows)
    return {pair: chosen(rows, set=pair[0], parties=pair[1]) for pair in pairs}


def summary(
    rows: Sequence[Row],
    n_rounds: int,
    about: str,
    skew: tuple[str, Mapping[str, npt.NDArray[Any]]],
    folder: Path,
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
    seeds = [
        f"{name} with {n}: {len({row['seed'] for row in mine})}"
        for (name, n), mine in groups(rows).items()
    ]
    parts = [
        f"{n_rounds} rounds. Seeds by data set and number of parties: "
        f"{'; '.join(seeds)}.",
        "## Summary",
    ]
    for sentence, lines in results(rows):
        parts += [sentence, markdown_table(lines)]
    parts += [
        "## Accuracy by split",
        "With the parties' class prior, and in brackets at the worst party.",
    ]
    for n_parties in dict.fromkeys(row["parties"] for row in rows):
        parts.append(
            draw_accuracy(rows, n_parties, folder / f"accuracy-all-{n_parties}.png")
        )
    for (name, n_parties), mine in groups(rows).items():
        shown = table(mine, "personal accuracy", MAIN, "personal worst")
        parts += [f"### {name}, {n_parties} parties", markdown_table(shown)]
    parts += [
        "## What it costs",
        "Kilobytes of a party, up and down:",
        markdown_table(kilobytes(rows)),
    ]
    for (name, n_parties), mine in groups(rows).items():
        parts.append(
            draw_bytes(
                mine,
                f"{name}, {n_parties} parties",
                folder / f"bytes-{name}-{n_parties}.png",
            )
        )
    first = next(iter(groups(rows)))
    figure = plots.heat_maps(
        skew[1], skew[0], folder / f"skew-{first[0]}-{first[1]}.png"
    )
    parts += ["## The methods", about, figure, "## Details"]
    parts.append(
        "Accuracy of the shared model on all held-out samples; more in `noniid.csv`."
    )
    methods = [method for method in METHODS if not method.startswith(HEADS)]
    for (name, n_parties), mine in groups(rows).items():
        parts += [
            f"### {name}, {n_parties} parties, shared model",
            markdown_table(table(mine, "accuracy", methods)),
        ]
    recipes = [
        {name: row[name] for name in ("set", "parties", "method")} | row["recipe"]
        for row in rows
        if "recipe" in row
    ]
    unique = [
        line for number, line in enumerate(recipes) if line not in recipes[:number]
    ]
    return [*parts, "Recipes that the grid led to:", markdown_table(unique)]


def draw_accuracy(rows: Sequence[Row], n_parties: int, path: Path) -> str:
    """Accuracy over all samples, and at the worst party, by split, with class prior:
    two panels for a data set.

    Quantity skew and feature shift are not on a scale of label skew with the others: no
    line leads to them.
    """
    mine = chosen(rows, parties=n_parties)
    panels = []
    splits = [*dict.fromkeys(row["split"] for row in mine)]
    means = mean_by(mine, ["set", "split", "method"])
    x = range(len(splits))
    axes = {"xticks": x, "xticklabels": [split.replace(" ", "\n") for split in splits]}
    for name in dict.fromkeys(row["set"] for row in mine):
        for figure, what in _PERSONAL.items():
            lines = []
            for method in MAIN:
                y = [
                    float(means[figure].get((name, split, method), np.nan))
                    for split in splits
                ]
                for look, are_apart in (({}, False), ({"linestyle": "none"}, True)):
                    shown = [
                        value if (split in _APART) == are_apart else np.nan
                        for split, value in zip(splits, y, strict=True)
                    ]
                    lines.append(Line(method, x, shown, look=look))
            panels.append(Panel(f"{name}: {what}", lines, axes))
    return plots.lines(
        panels,
        path,
        (6.6, 3.2),
        2,
        f"{n_parties} parties: accuracy by split, with class prior",
    )


def draw_bytes(rows: Sequence[Row], title: str, path: Path) -> str:
    """Accuracy against the bytes that a party has sent and got, round by round, for up
    to three of the splits.
    """
    splits = [*dict.fromkeys(row["split"] for row in rows)]
    shown = [
        split for split in ("IID", "Dirichlet 0.1", "1 class") if split in splits
    ] or splits[:3]
    panels = []
    for split in shown:
        lines = []
        for row in chosen(rows, split=split, seed=rows[0]["seed"]):
            if not np.isnan(row["accuracy"]):
                curve = row.get("curve") or [row["accuracy"]]
                spent = (
                    (row["up"] + row["down"])
                    / len(curve)
                    * np.arange(1, len(curve) + 1)
                    / 1000
                )
                look: Row = {"marker": None}
                if len(curve) == 1:
                    look = {"markersize": 8}
                lines.append(Line(row["method"], spent, curve, look=look))
        axes = {
            "xscale": "log",
            "xlabel": "kB of one party, up and down",
            "ylabel": "accuracy, all held-out samples",
        }
        panels.append(Panel(split, lines, axes))
    return plots.lines(
        panels, path, (4.4, 4.0), title=f"{title}: accuracy after each round", legend=5
    )
