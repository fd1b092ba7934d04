"""Accuracy predicted before epsilon is spent, beside what runs then measured.

Balanced accuracy on held-out samples as a ratio to that of the same run without noise: one hash of the usual size over
the same columns. Images are hashed as they are, columns of tables centred and scaled as by public figures. At most 3000
training samples of a set, and 10000 to 20000 of some as well. Noise is simulated for every party; each draw is a
measurement: epsilon .25, .5, 1, 2 and 4 at delta 1e-5, one, two and ten parties with noise of their own, and ten with
one noise of which seven are honest; one release of counts, counts and 24 rounds, and Laplace noise.

`flwr_flynn.privacy.planning` predicts the ratio, with an interval of 80 %: from public figures, or from these and one
ratio of the same data, here that at epsilon 1 for two parties; ratios of other data of the same kind were not tried.
Its constants are fitted to all sets. What the page says about a set comes from constants and intervals that were made
without it.
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

FIGURES, SMALLEST, MEASURED = "public figures", "smallest classes", "one ratio"
BASES = FIGURES, SMALLEST, MEASURED
TAILS = {FIGURES: 0.08, SMALLEST: 0.08, MEASURED: 0.1}  # share of the measurements beyond each end, where fitted
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
    given = [each.to_numpy(float) for each in _given(rows)]
    ratio, weights = rows["all ratio"].to_numpy(float), np.sqrt(_weights(rows))

    def error(curve: Array) -> Array:
        return (planning.relative(curve, 0.0, *given) - ratio) * weights

    found = least_squares(error, [4.0, 0.7, 0.3], loss="soft_l1", f_scale=0.003).x
    curve = tuple(round(float(each), 3) for each in found)
    return curve, *(_shifts(curve, _about(rows, kind), kind, rows) for kind in BASES)


def _about(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Rows that a prediction is about: of sets with small classes that can be learned, or all but the references."""
    if kind == SMALLEST:
        return rows[(rows["small plain"] > 0.2) & (rows["n smallest"] < 0.7 * rows["n"] / rows["L"])]
    return rows[~_is_reference(rows)] if kind == MEASURED else rows


def _is_reference(rows: pd.DataFrame) -> Any:
    return (rows["epsilon"] == 1) & (rows["parties"] == 2)


def _base(curve: Sequence[float], rows: pd.DataFrame, kind: str, every: pd.DataFrame) -> Any:
    """The shift that is known of each row's set: that of its reference, or none."""
    if kind != MEASURED:
        return 0.0
    mine = every[_is_reference(every)]
    mine = mine.assign(shift=planning.shift_of(curve, mine["all ratio"], *_given(mine)))
    return rows.join(mine.groupby(["set", "n"])["shift"].median(), on=["set", "n"])["shift"]


def _shifts(curve: Sequence[float], rows: pd.DataFrame, kind: str, every: pd.DataFrame) -> tuple[float, ...]:
    """Shifts with a tail, a half and all but a tail of the measurements below the curve."""
    tail = TAILS[kind]
    is_small, weights, found = kind == SMALLEST, _weights(rows), []
    base = _base(curve, rows, kind, every)
    for level, slack in ((tail, planning.SLACK), (0.5, 0.0), (1 - tail, -planning.SLACK)):
        ratio = rows[RATIOS[is_small]] + slack
        shifts = (planning.shift_of(curve, ratio, *_given(rows, is_small)) - base).to_numpy()
        order = np.argsort(shifts, kind="stable")
        reached = np.cumsum(weights[order]) / weights.sum()
        found.append(round(float(shifts[order][min(np.searchsorted(reached, level), len(order) - 1)]), 3))
    return tuple(found)


def predicted(rows: pd.DataFrame, entry: Entry, kind: str) -> pd.DataFrame:
    """The rows of one set with prediction and interval."""
    mine, is_small, curve = _about(rows, kind), kind == SMALLEST, entry[0]
    base, given = _base(curve, mine, kind, rows), _given(mine, is_small)
    low, ratio, high = (planning.relative(curve, base + each, *given) for each in entry[1 + BASES.index(kind)])
    low, high = np.maximum(low - planning.SLACK, 0.0), np.minimum(high + planning.SLACK, 1.0)
    measured = mine[RATIOS[is_small]]
    inside = (measured >= low) & ((measured <= high) | (high == 1))
    return mine.assign(ratio=np.minimum(ratio, 1.0), low=low, high=high, measured=measured, inside=inside)


def left_out(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Predictions of each kind for each set, from the other sets."""
    entries = {name: fitted(rows[rows["set"] != name]) for name in rows["set"].unique()}
    return {
        kind: pd.concat([predicted(mine, entries[name], kind) for name, mine in rows.groupby("set")]) for kind in BASES
    }


# ---- the page


def errors(found: dict[str, dict[str, pd.DataFrame]], kinds: Sequence[str]) -> list[Row]:
    """Coverage and width of the intervals."""
    lines: list[Row] = []
    for kind, mode in product(kinds, MODES):
        each = found[mode][kind]
        error, width = (each["measured"] - each["ratio"]).abs(), each["high"] - each["low"]
        line: Row = {"mechanism": KINDS[mode], "known": kind, "sets": each["set"].nunique(), "measurements": len(each)}
        line |= {"in the interval": float(each["inside"].mean()), "mean width": float(width.mean())}
        line |= {f"width at epsilon {epsilon:g}": float(width[each["epsilon"] == epsilon].mean()) for epsilon in (1, 4)}
        lines.append(line | {"mean error": float(error.mean())})
    return lines


def beside(found: dict[str, dict[str, pd.DataFrame]]) -> list[Row]:
    """Prediction and measurement at epsilon 1 for two parties, of each set at its largest size."""
    lines: dict[str, Row] = {}
    for mode, each in ((mode, found[mode][FIGURES]) for mode in ("counts", "rounds")):
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


def rare(found: dict[str, dict[str, pd.DataFrame]]) -> list[Row]:
    """Coverage and width for the smallest quarter of the classes, and means measured by what was predicted."""
    lines = []
    for line, mode in zip(errors(found, [SMALLEST]), MODES, strict=True):
        each = found[mode][SMALLEST]
        for low, high in ((0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.01)):
            part = each[(each["ratio"] >= low) & (each["ratio"] < high)]
            line[f"measured at {low:g} to {min(high, 1):g}"] = f"{part['measured'].mean():.2f}" if len(part) else ""
        lines.append({name: value for name, value in line.items() if name != "known"})
    return lines


def sharing(folder: Path | None, cells: Cells) -> list[Row]:
    """Accuracy with noise of each party's own and with one noise, all parties present or three lost."""
    chosen = [(Task.of("digits", *load_digits(return_X_y=True), MOST), 10, 7, DRAWS)]
    if folder is not None and (folder / "mnist.npz").exists():
        chosen.append((read(folder / "mnist.npz", 60000, 10000), 16, 13, 1))
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


def draw(found: dict[str, dict[str, pd.DataFrame]], path: Path) -> None:
    """Measured ratios over predicted ones, each set predicted from the others."""
    plt, figure, axes = _panels(len(MODES), 3.6, 3.4, most=3)
    for axis, mode in zip(axes, MODES, strict=True):
        each = found[mode][FIGURES].sort_values("ratio")
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
    measured = [row for task in tasks(chosen.data, quick=chosen.quick) for row in measure(task, cells)]
    rows = pd.DataFrame(measured)
    write_csv(folder / "plan.csv", measured)
    parts = {mode: rows[rows["mode"] == mode] for mode in MODES}
    found = {mode: left_out(part) for mode, part in parts.items()}
    constants = [
        dict(zip(("mechanism", "curve", *BASES), (KINDS[mode], *map(_text, fitted(part))), strict=True))
        for mode, part in parts.items()
    ]
    shared = sharing(None if chosen.quick else chosen.data, cells)
    tables = [errors(found, (FIGURES, MEASURED)), beside(found), rare(found), shared, constants]
    print("\n" + "\n\n".join(map(text_table, tables)))
    draw(found, folder / "plan.png")
    page = [about(__doc__)]
    for title, each in zip(TITLES, tables, strict=True):
        page += [f"## {title}", markdown_table(each)]
    page.insert(3, "![measured ratios over predicted ones](plan.png)")
    seconds = time.perf_counter() - start
    write_summary(folder, "Accuracy before epsilon is spent", "plan", arguments, seconds, page)


def _text(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
