"""Gram matrix of effort "thorough": what it adds to the committee, what it claims, and what its parts are worth.

Balanced accuracy, means of draws: each draws training samples from a set, stratified, and tests on all others, up to
1000. "change" is the accuracy with the Gram matrix less that of the committee. "its error" is the standard error by the
draws alone: too small, as draws of a set share samples (all of them are from a subsample of 1000 more than are drawn).
"claimed" is the leave-one-out balanced accuracy of the Gram matrix's scores, which are chosen by its log-loss, and
"fresh" that of the same scores on the test samples. Training samples are four fifths of a set at most: fewer than a
table says, in small sets. Sets are those of the folder, and six generated families (`simulations.families`), which
nothing was chosen on, beside forest and boosting with balanced weights.

The parts, each put in the place of what is built, with the same sums: leverages of samples from 0, 32, 128 or all
directions in the place of 256 (0: by the distance from the mean alone; all: exact); half of the weight for the Gram
matrix, or all of it. Finished pieces are kept under the output folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_flynn import FlyNNClassifier
from flwr_flynn.model.gram import DIRECTION_UNIT, GramFit, GramMatrix, LeverageModel
from flwr_flynn.model.gram_scoring import GramScoring
from flwr_flynn.model.selection import N_LEFT_OUT, kept
from simulations import baselines
from simulations.accuracy import drawn, load_problems, make_problem
from simulations.families import FAMILIES
from simulations.methods import Problem, Settings
from simulations.results import (
    MODEL,
    Cells,
    Row,
    about,
    code_digest,
    markdown_table,
    output_folder,
    parser,
    text_table,
    write_csv,
    write_summary,
)

Array = npt.NDArray[Any]

BUILT = "as built"
DIRECTIONS = {"0 directions": 0, "32 directions": 32, "128 directions": 128, "all directions": -1}
SHARES = {"all of the weight": 1.0}
TREES = ("forest", "boosting")
VARIANTS = (BUILT, *DIRECTIONS, *SHARES)
_MOST_TEST = 1000
_TRAINING = 2250  # samples of all draws of a size together, at least: small sizes vary most
_CODE = code_digest(*MODEL, "simulations.gram", "simulations.accuracy", "simulations.families", "simulations.baselines")


def leverage_by(fit: GramFit, matrix: GramMatrix, n_directions: int) -> LeverageModel:
    """The leverages of a regression by another number of directions; all for a negative one."""
    model = fit.leverage
    if n_directions < 0:
        totals = matrix.sums.sum(axis=0)
        values, vectors = np.linalg.eigh(matrix.square - np.outer(totals, totals) / matrix.n_per_class.sum())
        directions = np.rint(vectors / DIRECTION_UNIT).astype(np.int32)
        return model._replace(
            directions=directions,
            eigenvalues=np.maximum(values, 0.0),
            residual=0.0,
            residual_leverage=np.zeros_like(model.strengths),
        )
    values, rest = np.split(model.eigenvalues, [n_directions])
    residual = model.residual + rest.sum()
    freedom = model.residual * model.residual_leverage + (rest / (rest + model.strengths[:, None])).sum(axis=1)
    return model._replace(
        directions=model.directions[:, :n_directions],
        eigenvalues=values,
        residual=float(residual),
        residual_leverage=freedom / residual if residual > 0 else np.zeros_like(freedom),
    )


def scorings(model: FlyNNClassifier, X: Array, y: Array) -> Iterator[tuple[str, GramScoring | None]]:
    """The scores of a Gram matrix, with each of its parts exchanged in turn. `y` are indices of all classes."""
    built, n_classes = model.model_.gram, len(model.classes_)
    yield BUILT, built
    if built is None:
        return
    yield from ((name, replace(built, share=share)) for name, share in SHARES.items())
    assert model._gram is not None
    matrix = model._gram.sums
    fit = GramFit.of(matrix)
    left_out = kept(X, y, matrix.n_per_class, N_LEFT_OUT)
    n_per_class = np.bincount(y[left_out], minlength=n_classes)
    for name, n_directions in DIRECTIONS.items():
        other = replace(fit, leverage=leverage_by(fit, matrix, n_directions))
        tables = other.tables(built.specs, X[left_out], y[left_out])
        found = other.scoring(built.specs, n_per_class, *tables)
        yield name, found and replace(found, share=built.share)


def draw_row(X: Array, y: Array, X_test: Array, y_test: Array, rows: int | None, has_trees: bool) -> Row:
    """Balanced accuracies of the variants in one draw, and of trees."""
    n_classes = int(max(y.max(), y_test.max())) + 1

    def recall(predicted: Array) -> float:
        return float(baselines.balanced_accuracy(y_test, predicted, n_classes))

    model = FlyNNClassifier(effort="thorough", gram=rows, class_weight="balanced").fit(X, y)
    inputs, codes = X, np.unique(y, return_inverse=True)[1].astype(np.int64)
    row: Row = {}
    for name, scoring in [("committee", None), *scorings(model, inputs, codes)]:
        whole = FlyNNClassifier.from_model(replace(model.model_, gram=scoring))
        row[name] = recall(whole.predict(X_test))
        if scoring is not None:
            scores = scoring.log_odds(X_test)
            row[f"{name}: claimed"] = scoring.accuracy
            row[f"{name}: fresh"] = recall(model.classes_[scores.argmax(axis=1)])
    for kind in TREES if has_trees else ():
        row[kind] = recall(baselines.centralised(kind, y, seed=0, threads=1).fit(X, y).predict(X_test))
    return row


def measure(problem: Problem, n: int, n_draws: int, rows: int | None, has_trees: bool) -> list[Row]:
    """A row for each draw of n training samples."""
    X, y, generator = problem.X, problem.y, np.random.default_rng(0)
    found = []
    for number in range(n_draws):
        train = drawn(y, min(n, len(y) * 4 // 5), generator)
        test = generator.permutation(np.setdiff1d(np.arange(len(y)), train))[:_MOST_TEST]
        row = draw_row(X[train], y[train], X[test], y[test], rows, has_trees)
        found.append({"set": problem.name, "samples": n, "draw": number} | row)
    return found


def by_set(rows: Sequence[Row]) -> list[Row]:
    """Means of the draws, a line for each set and size."""
    frame = pd.DataFrame(rows)
    frame["change"] = frame[BUILT] - frame["committee"]
    groups = frame.groupby(["samples", "set"], sort=False)
    means = groups.mean().assign(**{"its error": groups["change"].sem()}).reset_index()
    shown = {BUILT: "with Gram matrix", f"{BUILT}: claimed": "claimed", f"{BUILT}: fresh": "fresh"}
    columns = ["set", "samples", "committee", *shown.values(), "change", "its error", *TREES]
    table = means.rename(columns=shown)[columns]
    return [{k: v for k, v in line.items() if k not in TREES or v == v} for line in table.to_dict("records")]


def by_size(lines: Sequence[Row], most: float = 0.01) -> list[Row]:
    """Means of all sets, a line for each size."""
    table = []
    for n, group in pd.DataFrame(lines).groupby("samples"):
        error = (group["claimed"] - group["fresh"]).dropna()
        below = [f"{line['set']} {line['change']:.3f}" for _, line in group.iterrows() if line["change"] < -most]
        row: Row = {"samples": n, "sets": len(group)} | group[["committee", "with Gram matrix"]].mean().to_dict()
        row |= {f"below by more than {most}": ", ".join(below) or "none"}
        table.append(row | {"claimed - fresh": float(error.mean()), "its size": float(error.abs().mean())})
    return table


def by_variant(rows: Sequence[Row]) -> list[Row]:
    """Means of all sets, a line for each variant and size."""
    table = []
    frame = pd.DataFrame(rows).dropna(subset=[*VARIANTS])
    for n, group in frame.groupby("samples"):
        means = group.groupby("set").mean(numeric_only=True)
        for name in VARIANTS:
            row: Row = {"samples": n, "variant": name, "accuracy": float(means[name].mean())}
            error = (means[f"{name}: claimed"] - means[f"{name}: fresh"]).abs().mean()
            table.append(row | {"size of claimed - fresh": "the same" if name in SHARES else float(error)})
    return table


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("gram", __doc__)
    options.add_argument("--sets", default="", help="names of data sets, separated by commas (default: all)")
    options.add_argument("--sizes", default="150,500,1500", help="training samples (default: %(default)s)")
    options.add_argument("--draws", type=int, help="of each size (default: 5; of small sizes more, 15 of 150)")
    options.add_argument("--gram", type=int, help="rows of the Gram matrix (default: as effort thorough has)")
    chosen = options.parse_args(arguments)
    given = list(map(int, chosen.sizes.split(",")))
    if min(given) < 2 or (chosen.draws is not None and chosen.draws < 1):
        options.error("--sizes: at least 2 samples; --draws: at least 1")
    start, folder = time.perf_counter(), output_folder(chosen)
    cells, rows = Cells(folder / "cells"), []
    settings = Settings(folds=2)  # which are made, and not used
    for n in [100] if chosen.quick else given:
        most, n_draws = n + _MOST_TEST, 2 if chosen.quick else chosen.draws or max(5, _TRAINING // n)
        problems = load_problems(chosen.data, [name for name in chosen.sets.split(",") if name], settings, most)
        generated = [make_problem(f"generated: {name}", *make(most, 0), settings, 0) for name, make in FAMILIES.items()]
        for problem, has_trees in [*((each, False) for each in problems), *((each, True) for each in generated)]:
            key = {"set": problem.name, "job": f"{n} samples", "data": problem.digest()}
            key |= {"code": _CODE, "gram": chosen.gram, "draws": n_draws}
            rows += cells.finish(key, partial(measure, problem, n, n_draws, chosen.gram, has_trees))
    write_csv(folder / "draws.csv", rows)
    lines, variants = by_set(rows), by_variant(rows)
    write_csv(folder / "sets.csv", lines)
    sizes = by_size(lines)
    print(text_table(sizes), text_table(variants), sep="\n\n")
    _plot(lines, folder / "claims.png")
    parts = [about(__doc__), markdown_table(sizes), "![claims](claims.png)", "## Parts", markdown_table(variants)]
    for n in sorted({line["samples"] for line in lines}):
        of_size = [{k: v for k, v in line.items() if k != "samples"} for line in lines if line["samples"] == n]
        families = [line for line in of_size if TREES[0] in line]
        rest = [line for line in of_size if TREES[0] not in line]
        parts += [f"## {n} training samples", markdown_table(families), markdown_table(rest)]
    write_summary(folder, "Gram matrix", "gram", arguments, time.perf_counter() - start, parts)


def _plot(lines: Sequence[Row], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (claims, gains) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for n in sorted({line["samples"] for line in lines}):
        of_size = [line for line in lines if line["samples"] == n]
        claims.plot(
            [line["fresh"] for line in of_size], [line["claimed"] for line in of_size], "o", label=f"{n} samples"
        )
        gains.plot(sorted(line["change"] for line in of_size), "o-", label=f"{n} samples")
    claims.axline((1, 1), slope=1, color="grey", linewidth=1)
    claims.set(xlabel="balanced accuracy on fresh samples", ylabel="claimed by leave-one-out")
    gains.axhline(0, color="grey", linewidth=1)
    gains.set(xlabel="sets, in order", ylabel="change by the Gram matrix")
    claims.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
