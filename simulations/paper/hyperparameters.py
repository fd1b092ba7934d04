"""The paper's Figures 4 and 5: the effect of m, s, rho and gamma on its FlyNN's
accuracy, the others fixed.

Six data sets, 10-fold cross-validation, ten values of one parameter for each of eight
choices of the others. The figure captions speak of accuracy, 1 - misclassification
rate, and so it is here; the authors' programs compute balanced accuracy. Where the
paper gives m as 256 or 1024 it means multiples of d, as its programs do. Settings whose
hash would not be half empty (m < 2 rho) are left out, as there.

`--data` has files for Letters, Segment, USPS, Gina Prior 2 and Madeline. For the last
two it may have what is most like them: Gina Prior 2 is made of MNIST's digits, Madeline
is of the family of Madelon. A stand-in is named as such in every table and plot. m is
capped, see below: where the cap is less than the paper's 4096 d, it also stands in for
the 1024 d of the other panels, and a quarter of it for their 256 d.

A large m repeats the rows of M where columns are few: with s = .1 d, Letters has but
120 different rows, Segment 171; once there are more than rho copies of each, all
winners are copies of one row, and a larger m makes it worse.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from flwr_flynn import HashSpec
from flwr_flynn.errors import DataError
from simulations import plots
from simulations.data import BUNDLED, DataSet, Reader, data_sets, load, paths
from simulations.paper.flynn import cross_validated
from simulations.plots import Line, Panel
from simulations.results import Array, Row, chosen, markdown_table
from simulations.study import MODEL, Option, Study, code_digest, names

NAMES = {"m": "m / d", "s": "s / d", "rho": "rho", "gamma": "gamma"}
_CODE = code_digest(*MODEL, "simulations.paper", "simulations.data")


@dataclass(frozen=True)
class Plan:
    """Samples of each set (0: all), the largest m, values of a parameter, folds, and
    the seed of hash and folds.
    """

    points: int = 600
    largest_dim: int = 2**15
    values: int = 8
    folds: int = 10
    seed: int = 0


QUICK = Plan(300, 2**13, 4, 5)
FULL = Plan(0, 4096 * 1000, 10)


def grid(
    parameter: str, d: int, plan: Plan
) -> Iterator[tuple[float, int, int, int, list[float]]]:
    """The hashes of one figure panel: value of the parameter (m over d), m, s, rho, and
    the gammas that are tried.

    All are those of the paper's supplement, but for an m that is capped.
    """
    if parameter == "m":
        ratios = np.geomspace(4, 4096, plan.values)
    else:
        ratios = np.array([256.0, 1024.0])
    # the same number of values, in what is left of the range
    if plan.largest_dim < ratios.max() * d:
        top = plan.largest_dim / d
        if parameter == "m":
            ratios = np.geomspace(4, top, plan.values)
        else:
            ratios = np.array([top / 4, top])
    if parameter == "s":
        densities = np.geomspace(0.1, 0.8, plan.values)
    else:
        densities = np.array([0.1, 0.3])
    if parameter == "rho":
        winners = np.geomspace(4, 256, plan.values)
    else:
        winners = np.array([8.0, 32.0])
    if parameter == "gamma":
        gammas = [0.0, *np.linspace(0.1, 0.8, plan.values)]
    else:
        gammas = [0.0, 0.5]
    for ratio in ratios:
        for density in densities:
            for rho in np.unique(winners.astype(int)):
                m = int(ratio * d)
                s = max(1, round(density * d))
                if m >= 2 * rho:
                    value = {"m": ratio, "s": density, "rho": rho, "gamma": 0}[
                        parameter
                    ]
                    yield (
                        float(value),
                        m,
                        s,
                        int(rho),
                        [float(gamma) for gamma in gammas],
                    )


def panel(data: DataSet, parameter: str, plan: Plan) -> list[Row]:
    """Accuracies of one data set for all values of one parameter."""

    def right(y: Array, predicted: Array, n_classes: int) -> float:
        return float((y == predicted).mean())

    d = data.X.shape[1]
    rows = []
    for value, m, s, rho, gammas in grid(parameter, d, plan):
        scores = cross_validated(
            data, HashSpec(d, m, s, rho, seed=plan.seed), gammas, right
        )
        # The line that a point belongs to, named by the parameters which do not vary
        # along it.
        fixed = {"m": f"m={m / d:.4g}d", "s": f"s={s / d:.2g}d", "rho": f"rho={rho}"}
        for gamma, score in zip(gammas, scores, strict=True):
            line = [
                text
                for name, text in (fixed | {"gamma": f"gamma={gamma:g}"}).items()
                if name != parameter
            ]
            at = {"s": s / d, "gamma": gamma}.get(parameter, value)
            row = {
                "parameter": parameter,
                "value": at,
                "line": ", ".join(line),
                "m": m,
                "s": s,
                "rho": rho,
            }
            rows.append(
                row
                | {
                    "gamma": gamma,
                    "accuracy": float(score.mean()),
                    "sd": float(score.std()),
                }
            )
    return rows


_FILES = {"Letters": "letters", "Segment": "segment", "USPS": "usps"}
_OR_STAND_INS = (
    (
        ("Gina Prior 2", "gina_prior2"),
        ("MNIST, 3468 points, for Gina Prior 2", "mnist"),
    ),
    (("Madeline", "madeline"), ("Madelon for Madeline", "madelon")),
)


def sets(folder: Path | None) -> dict[str, Reader]:
    """Readers of the six sets, or of their stand-ins."""
    there = paths(folder)
    found = {"Digits": BUNDLED["digits"]}
    for pairs in [*([pair] for pair in _FILES.items()), *_OR_STAND_INS]:
        for name, stem in [pair for pair in pairs if pair[1] in there][:1]:
            found[name] = partial(
                _first, there[stem], 3468 if stem == "mnist" else None
            )
        if not {stem for _, stem in pairs} & there.keys():
            print(
                f"{pairs[0][0]} is left out: no {pairs[0][1]}.npz in a folder --data",
                file=sys.stderr,
            )
    if len(found) > 1:
        return found
    return found | {"synthetic, R^50": BUNDLED["synthetic"]}


def _first(path: Path, most: int | None) -> tuple[Array, Array]:
    X, y, _ = load(path)
    return X[:most], y[:most]


CLAIMS = (
    (
        "m",
        "for fixed rho, accuracy grows with m, up to a bound; clear for many columns, "
        "erratic for few",
    ),
    (
        "s",
        "d <= 20: better up to about s = .5 d, then worse; d larger: s hardly matters",
    ),
    ("rho", "grows with rho, unless rho is too large for m"),
    (
        "gamma",
        "hardly matters above 0; a significant drop from gamma > 0 to gamma = 0 on "
        "every set",
    ),
)
"""Statements of the paper on its figures, which it prints without numbers."""


def verdicts(rows: Sequence[Row]) -> list[Row]:
    """The paper's statements beside our measurements, by the means over the lines of
    each panel.
    """
    found: dict[str, list[str]] = {parameter: [] for parameter, _ in CLAIMS}
    means = (
        pd.DataFrame(rows)
        .groupby(["set", "parameter", "value"], sort=True)["accuracy"]
        .mean()
    )
    for name, (parameter, said) in product(
        dict.fromkeys(row["set"] for row in rows), found.items()
    ):
        mine = means[name, parameter]
        if parameter == "gamma":
            rest = mine.iloc[1:]
            said.append(
                f"{name}: {mine.iloc[0]:.2f} at 0, {rest.min():.2f} to "
                f"{rest.max():.2f} above"
            )
        else:
            best = f"{mine.max():.2f} at {mine.idxmax():.3g}"
            said.append(
                f"{name}: {mine.iloc[0]:.2f} to {best}, {mine.iloc[-1]:.2f} at the end"
            )
    return [
        {"parameter": NAMES[p], "the paper": claim, "ours": "; ".join(found[p])}
        for p, claim in CLAIMS
    ]


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study(
        "hyperparameters",
        "Figures 4 and 5: hyper-parameters",
        __doc__,
        arguments,
        "all samples of each set, m up to 4096 d: about a day on one core",
        sets=Option(
            "names of data sets, or their beginnings, with commas between (default: "
            "all)",
            names,
            (),
        ),
    )
    plan = study.sized(Plan(), QUICK, FULL)
    wanted = study.chosen.sets
    known = sets(study.chosen.data)
    kept = [
        name
        for name in known
        if not wanted or any(name.startswith(one) for one in wanted)
    ]
    if not kept:
        raise DataError("--sets", f"some of {', '.join(known)}", ", ".join(wanted))
    rows: list[Row] = []
    shown = data_sets(known, kept, folds=plan.folds, seed=plan.seed, most=plan.points)
    for data, parameter in product(shown, NAMES):
        work = partial(panel, data, parameter, plan)
        done = study.cells.finish(
            f"{data.name}: {parameter}", (data.digest, _CODE, plan), work
        )
        shape = {
            "set": data.name,
            "n": len(data.X),
            "d": data.X.shape[1],
            "seed": plan.seed,
        }
        rows += [shape | row for row in done]
    study.write("hyperparameters", rows)
    pictures = []
    for part in range(0, len(shown), 3):
        panels = [
            _panel(rows, data.name, name)
            for data in shown[part : part + 3]
            for name in NAMES
        ]
        path = study.folder / f"hyperparameters_{part // 3 + 1}.png"
        pictures.append(plots.lines(panels, path, (4.2, 4.1), len(NAMES), legend=0))
    shapes = "; ".join(
        f"{d.name} {len(d.X)} x {d.X.shape[1]}, {d.n_classes} classes" for d in shown
    )
    extent = (
        f"{plan.values} values of each parameter, {plan.folds} folds, m at most "
        f"{plan.largest_dim}. {shapes}."
    )
    claims = markdown_table(verdicts(rows))
    study.finish([study.about, extent, claims, *pictures])
    print("\n" + claims)


def _panel(rows: Sequence[Row], name: str, parameter: str) -> Panel:
    mine = chosen(rows, set=name, parameter=parameter)
    lines = []
    for label in dict.fromkeys(row["line"] for row in mine):
        x, y = zip(
            *sorted(
                (row["value"], row["accuracy"]) for row in chosen(mine, line=label)
            ),
            strict=True,
        )
        lines.append(
            Line(
                label,
                x,
                y,
                look={"linestyle": "--" if label.endswith("gamma=0") else "-"},
            )
        )
    if parameter == "gamma":
        scale = {}
    else:
        scale = {"xscale": "log2"}
    return Panel(
        name, lines, {"xlabel": NAMES[parameter], "ylabel": "accuracy"} | scale
    )
