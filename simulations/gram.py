"""Gram matrix of effort "thorough": what it adds to the committee, and what its parts are worth.

Means of draws: each draws training samples from a set, stratified, and tests on all others, up to 1000. "change" is the
balanced accuracy with the Gram matrix less that of the committee. "its error" is the standard error by the draws alone:
too small, as draws of a set share samples (all of them are from a subsample of 1000 more than are drawn). Training
samples are four fifths of a set at most: fewer than a table says, in small sets. Sets are those of the folder, and six
generated families (`simulations.families`), which nothing was chosen on, beside forest and boosting with balanced
weights.

The parts, each put in the place of what is built: rows of one kind alone; half and twice as many rows; all samples of
the same weight; and the Gram matrix without the committee. Log-loss is that of the probabilities with all classes
alike. Finished pieces are kept under the output folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import log_softmax

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.model.gram import GramMatrix, LearnedGram
from flwr_flynn.model.gram_scoring import MOST_ROWS, GramScoring
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

BUILT, ALONE = "as built", "without the committee"
KINDS = ("bumps", "steps", "waves", "scaled", "ones")
ROWS = {"half of the rows": 0.5, "twice the rows": 2.0}
ALIKE = "samples alike"
TREES = ("forest", "boosting")
VARIANTS = (BUILT, *(f"{kind} alone" for kind in KINDS), *ROWS, ALIKE, ALONE)
_MOST_TEST = 1000
_TRAINING = 2250  # samples of all draws of a size together, at least: small sizes vary most
_CODE = code_digest(*MODEL, "simulations.gram", "simulations.accuracy", "simulations.families", "simulations.baselines")


def resized(specs: Sequence[HashSpec], n_rows: int) -> list[HashSpec]:
    """The hashes with so many rows together, and the same share of winners."""
    rows = n_rows // len(specs)
    return [replace(each, hash_dim=rows, hash_nnz=rows * each.hash_nnz // each.hash_dim) for each in specs]


def scorings(gram: LearnedGram | None, X: Array, y: Array) -> Iterator[tuple[str, GramScoring | None]]:
    """The scores of a Gram matrix, with each of its parts exchanged in turn. `y` are indices of all classes."""
    yield BUILT, gram and gram.scoring
    if gram is None:
        return
    specs, n_classes = gram.scoring.specs, len(gram.weights)
    n_rows = sum(spec.hash_dim for spec in specs)
    others = {name: resized(specs, min(int(times * n_rows), MOST_ROWS)) for name, times in ROWS.items()}
    if len(specs) == len(KINDS):
        others |= {f"{k} alone": resized([spec], n_rows) for k, spec in zip(KINDS, specs, strict=True)}
    for name, other in others.items():
        yield name, getattr(LearnedGram.of(other, X, y, n_classes), "scoring", None)
    alike = (1,) * n_classes
    yield ALIKE, GramMatrix.from_data(specs, alike, X, y).scoring(specs, alike)


def draw_row(X: Array, y: Array, X_test: Array, y_test: Array, rows: int | None, has_trees: bool) -> Row:
    """Balanced accuracies and log-losses of the variants in one draw, and balanced accuracies of trees."""
    n_classes = int(max(y.max(), y_test.max())) + 1
    row: Row = {}

    def judge(name: str, scores: Array) -> None:
        odds, true = log_softmax(scores, axis=1), np.searchsorted(model.classes_, y_test)
        row[name] = float(baselines.balanced_accuracy(y_test, model.classes_[odds.argmax(axis=1)], n_classes))
        row[f"{name}: log-loss"] = float(-odds[np.arange(len(true)), true].mean())

    model = FlyNNClassifier(effort="thorough", gram=rows, class_weight="balanced").fit(X, y)
    codes = np.unique(y, return_inverse=True)[1].astype(np.int64)
    for name, scoring in [("committee", None), *scorings(model._gram, X, codes)]:
        judge(name, replace(model.model_, gram=scoring).scores(X_test))
        if name == BUILT and scoring is not None:
            judge(ALONE, scoring.log_odds(X_test))
    for kind in TREES if has_trees else ():
        predicted = baselines.centralised(kind, y, seed=0, threads=1).fit(X, y).predict(X_test)
        row[kind] = float(baselines.balanced_accuracy(y_test, predicted, n_classes))
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
    shown = {BUILT: "with Gram matrix"}
    columns = ["set", "samples", "committee", *shown.values(), "change", "its error", *TREES]
    table = means.rename(columns=shown)[columns]
    return [{k: v for k, v in line.items() if k not in TREES or v == v} for line in table.to_dict("records")]


def by_size(lines: Sequence[Row], most: float = 0.01) -> list[Row]:
    """Means of all sets, a line for each size."""
    table = []
    for n, group in pd.DataFrame(lines).groupby("samples"):
        below = [f"{line['set']} {line['change']:.3f}" for _, line in group.iterrows() if line["change"] < -most]
        row: Row = {"samples": n, "sets": len(group)} | group[["committee", "with Gram matrix"]].mean().to_dict()
        row |= {f"below by more than {most}": ", ".join(below) or "none"}
        table.append(row)
    return table


def by_variant(rows: Sequence[Row]) -> list[Row]:
    """Means of all sets, a line for each variant and size."""
    table = []
    frame = pd.DataFrame(rows).dropna(subset=[*VARIANTS])
    for n, group in frame.groupby("samples"):
        means = group.groupby("set").mean(numeric_only=True)
        for name in VARIANTS:
            row: Row = {"samples": n, "variant": name, "accuracy": float(means[name].mean())}
            table.append(row | {"log-loss": float(means[f"{name}: log-loss"].mean())})
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
    parts = [about(__doc__), markdown_table(sizes), "## Parts", markdown_table(variants)]
    for n in sorted({line["samples"] for line in lines}):
        of_size = [{k: v for k, v in line.items() if k != "samples"} for line in lines if line["samples"] == n]
        families = [line for line in of_size if TREES[0] in line]
        rest = [line for line in of_size if TREES[0] not in line]
        parts += [f"## {n} training samples", markdown_table(families), markdown_table(rest)]
    write_summary(folder, "Gram matrix", "gram", arguments, time.perf_counter() - start, parts)
