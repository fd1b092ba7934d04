"""Accuracy predicted before epsilon is spent, beside what runs then measured.

Balanced accuracy on held-out samples as a ratio to that of the same run without noise: one hash of the usual size over
the same columns. Images are hashed as they are, columns of tables centred and scaled as by public figures. At most 3000
training samples of a set, and 10000 to 20000 of some as well. Noise is simulated for every party; each draw is a
measurement: epsilon .25, .5, 1, 2 and 4 at delta 1e-5, one, two and ten parties with noise of their own, and ten with
one noise of which seven are honest; one release of counts, counts and 24 rounds, and Laplace noise.

`flwr_flynn.privacy.planning` predicts the ratio, with an interval of 80 %. Its constants are fitted here to all sets.
What the page says about a set comes from constants and intervals that were made without it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares
from scipy.special import logit
from sklearn.datasets import load_digits

from flwr_flynn.privacy import planning
from simulations.plan_runs import CODE, DRAWS, KINDS, MODES, MOST, Task, measure, read, run, tasks
from simulations.plots import _panels, _save
from simulations.results import (
    Cells,
    Row,
    about,
    markdown_table,
    output_folder,
    parser,
    text_table,
    write_csv,
    write_summary,
)

Array = npt.NDArray[Any]
Entry = tuple[tuple[float, ...], ...]

TAIL = 0.08  # of the measurements beyond each end of an interval
RATIOS = "all ratio", "small ratio"
TITLES = (
    "Intervals on sets that were left out",
    "Epsilon 1, two parties: each set from the others",
    "The smallest quarter of the classes, where these have less than .7 of the mean number of samples",
    "Each party's noise, or one for all: balanced accuracy at epsilon 1",
    "Constants of the package",
)


def _given(rows: pd.DataFrame, small: bool = False) -> tuple[Any, ...]:
    return rows["n smallest"] if small else rows["n"] / rows["L"], rows["noise"], rows["L"]


def _weights(rows: pd.DataFrame) -> Array:
    """Weights by which every set counts alike."""
    return 1 / rows.groupby("set")["set"].transform("size").to_numpy()


def fitted(rows: pd.DataFrame) -> Entry:
    """The entry of `planning.CURVES` for the rows of one mechanism."""

    def error(curve: Array) -> Any:
        return (planning.relative(curve, 0.0, *_given(rows)) - rows["all ratio"]) * np.sqrt(_weights(rows))

    found = least_squares(error, [4.0, 0.7, 0.3], loss="soft_l1", f_scale=0.003).x
    curve = tuple(round(float(each), 3) for each in found)
    return curve, _shifts(curve, rows, small=False), _shifts(curve, uneven(rows), small=True)


def uneven(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of sets with a quarter of small classes that can be learned at all."""
    return rows[(rows["small plain"] > 0.2) & (rows["n smallest"] < 0.7 * rows["n"] / rows["L"])]


def _shifts(curve: Sequence[float], rows: pd.DataFrame, small: bool) -> tuple[float, ...]:
    """Shifts with `TAIL`, a half and all but `TAIL` of the measurements below the curve."""
    guess, weights, found = 1 / rows["L"], _weights(rows), []
    for level, slack in ((TAIL, planning.SLACK), (0.5, 0.0), (1 - TAIL, -planning.SLACK)):
        ratios = rows[RATIOS[small]] + slack, planning.relative(curve, 0.0, *_given(rows, small))
        kept = [
            ((each * planning.TYPICAL - guess) / (planning.TYPICAL - guess)).clip(1e-4, 1 - 1e-4) for each in ratios
        ]
        shifts = (logit(kept[0]) - logit(kept[1])).to_numpy()
        order = np.argsort(shifts, kind="stable")
        reached = np.cumsum(weights[order]) / weights.sum()
        found.append(round(float(shifts[order][min(np.searchsorted(reached, level), len(order) - 1)]), 3))
    return tuple(found)


def predicted(rows: pd.DataFrame, entry: Entry, small: bool) -> pd.DataFrame:
    """The rows with prediction and interval, of all classes or the smallest quarter."""
    low, ratio, high = (planning.relative(entry[0], shift, *_given(rows, small)) for shift in entry[1 + small])
    low, high = np.maximum(low - planning.SLACK, 0.0), np.minimum(high + planning.SLACK, 1.0)
    measured = rows[RATIOS[small]]
    inside = (measured >= low) & ((measured <= high) | (high == 1))
    return rows.assign(ratio=np.minimum(ratio, 1.0), low=low, high=high, measured=measured, inside=inside)


def left_out(rows: pd.DataFrame, small: bool) -> pd.DataFrame:
    """Predictions for each set from the other ones."""
    wanted = uneven(rows) if small else rows
    others = {name: fitted(rows[rows["set"] != name]) for name in wanted["set"].unique()}
    return pd.concat([predicted(mine, others[name], small) for name, mine in wanted.groupby("set")])


# ---- the page


def errors(found: dict[str, pd.DataFrame]) -> list[Row]:
    """Coverage and width of the intervals."""
    lines: list[Row] = []
    for mode, each in found.items():
        error, width = (each["measured"] - each["ratio"]).abs(), each["high"] - each["low"]
        line: Row = {"mechanism": KINDS[mode], "sets": each["set"].nunique(), "measurements": len(each)}
        line |= {"in the interval": float(each["inside"].mean()), "mean width": float(width.mean())}
        line |= {f"width at epsilon {epsilon:g}": float(width[each["epsilon"] == epsilon].mean()) for epsilon in (1, 4)}
        lines.append(line | {"mean error": float(error.mean())})
    return lines


def beside(found: dict[str, pd.DataFrame]) -> list[Row]:
    """Prediction and measurement at epsilon 1 for two parties, of each set at its largest size."""
    lines: dict[str, Row] = {}
    for mode, each in ((mode, found[mode]) for mode in ("counts", "rounds")):
        chosen = each[(each["epsilon"] == 1) & (each["parties"] == 2)]
        for name, mine in chosen[chosen["n"] == chosen.groupby("set")["n"].transform("max")].groupby("set"):
            first = mine.iloc[0]
            line = lines.setdefault(
                str(name), {"set": name, "n": int(first["n"]), "d": int(first["d"]), "L": int(first["L"])}
            )
            line[f"{mode}, predicted"] = str(
                planning.Expected(*(float(first[key]) for key in ("ratio", "low", "high")))
            )
            line[f"{mode}, measured"] = f"{mine['measured'].mean():.2f}"
    return list(lines.values())


def rare(found: dict[str, pd.DataFrame]) -> list[Row]:
    """Coverage and width for the smallest quarter of the classes, and means measured by what was predicted."""
    lines = []
    for line, each in zip(errors(found), found.values(), strict=True):
        for low, high in ((0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.01)):
            part = each[(each["ratio"] >= low) & (each["ratio"] < high)]
            line[f"measured at {low:g} to {min(high, 1):g}"] = f"{part['measured'].mean():.2f}" if len(part) else ""
        lines.append(line)
    return lines


def sharing(folder: Path | None, cells: Cells) -> list[Row]:
    """Accuracy with noise of each party's own and with one noise, all parties present or three lost."""
    chosen = [(Task.of("digits", *load_digits(return_X_y=True), MOST), 10, 7, DRAWS)]
    if folder is not None and (folder / "mnist.npz").exists():
        chosen.append((read(folder / "mnist.npz", 60000), 16, 13, 1))
    lines = []
    for task, n_parties, n_honest, n_draws in chosen:
        for mode, lost in product(("counts", "rounds"), (0, 3)):
            line: Row = {"set": task.name, "parties": n_parties, "lost": lost, "mechanism": KINDS[mode]}
            for name, honest in (("own noise", 0), (f"one noise, honest-parties {n_honest} of {n_parties}", n_honest)):
                key = {
                    "set": task.name,
                    "job": f"sharing {mode} {lost} {name} {n_draws}",
                    "data": task.digest,
                    "code": CODE,
                }
                scores = partial(run, task, mode, 1.0, n_parties, honest, n_draws, lost)
                done = cells.finish(key, lambda scores=scores: [{"all": each[0]} for each in scores()])
                line[name.partition(",")[0]] = float(np.mean([row["all"] for row in done]))
            lines.append(line | {"honest-parties": n_honest})
    return lines


def draw(found: dict[str, pd.DataFrame], path: Path) -> None:
    """Measured ratios over predicted ones, each set predicted from the others."""
    plt, figure, axes = _panels(len(MODES), 3.6, 3.4, most=3)
    for axis, mode in zip(axes, MODES, strict=True):
        each = found[mode].sort_values("ratio")
        axis.scatter(each["ratio"], each["measured"], s=3, alpha=0.35, linewidths=0)
        for end in ("low", "high"):
            axis.plot(
                each["ratio"],
                each[end].rolling(75, center=True, min_periods=1).median(),
                color="tab:orange",
                linewidth=1,
            )
        axis.plot([0, 1], [0, 1], color="grey", linewidth=1)
        axis.set(
            xlabel="predicted ratio to no noise", ylabel="measured", title=KINDS[mode], xlim=(0, 1.02), ylim=(0, 1.15)
        )
    _save(plt, figure, path)


def main(arguments: list[str]) -> None:
    """Measure, fit, print, write."""
    chosen = parser("plan", __doc__).parse_args(arguments)
    start, folder = time.perf_counter(), output_folder(chosen)
    cells = Cells(folder / "cells")
    found = [row for task in tasks(chosen.data, quick=chosen.quick) for row in measure(task, cells)]
    rows = pd.DataFrame(found)
    write_csv(folder / "plan.csv", found)
    parts = {mode: rows[rows["mode"] == mode] for mode in MODES}
    all_, small = ({mode: left_out(part, is_small) for mode, part in parts.items()} for is_small in (False, True))
    constants = [
        dict(
            zip(
                ("mechanism", "curve", "shifts", "of the smallest"),
                (KINDS[mode], *map(_text, fitted(part))),
                strict=True,
            )
        )
        for mode, part in parts.items()
    ]
    tables = [errors(all_), beside(all_), rare(small), sharing(None if chosen.quick else chosen.data, cells), constants]
    print("\n" + "\n\n".join(map(text_table, tables)))
    draw(all_, folder / "plan.png")
    page = [about(__doc__)]
    for title, each in zip(TITLES, tables, strict=True):
        page += [f"## {title}", markdown_table(each)]
    page.insert(3, "![measured ratios over predicted ones](plan.png)")
    seconds = time.perf_counter() - start
    write_summary(folder, "Accuracy before epsilon is spent", "plan", arguments, seconds, page)


def _text(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
