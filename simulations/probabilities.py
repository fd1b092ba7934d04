"""Probabilities of FlyNN beside boosting, a calibrated forest and logistic regression.

Stratified folds of each set, the same for all methods, and generated outcomes of given frequencies. All methods
take the frequencies of the training samples, or all have ``class_weight="balanced"``. The Brier score is the sum over
classes. Calibration error, slope, intercept and AUROC are those of `flwr_flynn.model.metrics`: of the second of two
classes, or the mean over the classes, each against the rest.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_flynn import FlyNNClassifier
from flwr_flynn.model.metrics import overall, scored
from simulations.accuracy import bundled_sets, load_problems, make_problem
from simulations.methods import MODEL, Problem, Settings
from simulations.results import (
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

IMAGES = ("fashion_mnist", "mnist")
RATES = (0.01, 0.03, 0.09, 0.2)
FIGURES = ("log-loss", "Brier", "ECE", "slope", "intercept", "AUROC", "accuracy", "balanced accuracy", "mean error")
_CODE = code_digest(*MODEL, "flwr_flynn.model.metrics", "simulations.probabilities", "simulations.accuracy")
_LEAST = 1e-15  # of a probability in a log-loss


def classifiers(weight: str | None) -> dict[str, Any]:
    """FlyNN and its peers, untrained, with a class weight."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    forest = RandomForestClassifier(200, class_weight=weight, random_state=0)
    return {
        "default": FlyNNClassifier(class_weight=weight),
        "thorough": FlyNNClassifier(effort="thorough", class_weight=weight),
        "boosting": HistGradientBoostingClassifier(class_weight=weight, random_state=0),
        "calibrated forest": CalibratedClassifierCV(forest, cv=3),
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(class_weight=weight, max_iter=2000)),
    }


def figures(p: Array, y: Array) -> Row:
    """Figures of probabilities, (n, L), for class indices, (n,)."""
    from sklearn.metrics import balanced_accuracy_score

    best, n_classes = p.argmax(axis=1), p.shape[1]
    found = overall(*scored(p, y, best))
    names = {"ECE": "calibration_error", "slope": "calibration_slope", "intercept": "calibration_intercept"}
    return {
        "log-loss": float(-np.log(np.maximum(p[np.arange(len(y)), y], _LEAST)).mean()),
        "Brier": float(((p - np.eye(n_classes)[y]) ** 2).sum(axis=1).mean()),
        **{name: (found[key] or [np.nan])[0] for name, key in (names | {"AUROC": "auroc"}).items()},
        "accuracy": float((best == y).mean()),
        "balanced accuracy": float(balanced_accuracy_score(y, best)),
        "mean error": float(p[:, -1].mean() - (y == n_classes - 1).mean()),
    }


def measure(problem: Problem, names: list[str], weight: str | None) -> list[Row]:
    """A row for each fold and method."""
    rows = []
    for number, (train, test) in enumerate(problem.splits):
        X, y = np.asarray(problem.X, np.float64), problem.y
        for name in names:
            model, p = classifiers(weight)[name], np.zeros((len(test), problem.n_classes))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few samples of a class
                model.fit(X[train], y[train])
                p[:, model.classes_] = model.predict_proba(X[test])
                rows.append({"set": problem.name, "fold": number, "method": name} | figures(p, y[test]))
    return rows


def generated(rate: float, settings: Settings) -> Problem:
    """An outcome of a given frequency, whose log odds follow from twelve columns and a product of two."""
    generator = np.random.default_rng(1)
    X = generator.normal(size=(5800, 12))
    odds = X[:, :6] @ np.array([1.2, -1.0, 0.8, 0.6, -0.5, 0.4]) + 0.8 * X[:, 6] * X[:, 7]
    low, high = -20.0, 20.0
    for _ in range(60):  # the intercept of this frequency
        shift = (low + high) / 2
        low, high = (shift, high) if (1 / (1 + np.exp(-odds - shift))).mean() < rate else (low, shift)
    y = (generator.random(len(X)) < 1 / (1 + np.exp(-odds - shift))).astype(np.int64)
    return make_problem(f"generated, {rate:.0%}", X, y, settings, 0)


def means(rows: list[Row], by: list[str]) -> Iterator[Row]:
    """Means of the figures over sets and folds; of slope and intercept the medians."""
    for key, group in pd.DataFrame(rows).groupby(by, sort=False):
        per_set = group.groupby("set")[list(FIGURES)].mean()
        middle = per_set[["slope", "intercept"]].median().to_dict()
        yield dict(zip(by, key, strict=True)) | per_set.mean().to_dict() | middle


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("probabilities", __doc__)
    options.add_argument("--sets", default="", help="names of data sets, separated by commas (default: all but images)")
    options.add_argument("--folds", type=int, default=5, help="default: %(default)s")
    options.add_argument("--max-examples", type=int, default=2500, help="samples of each set (default: %(default)s)")
    options.add_argument("--methods", default="", help="some of the methods, separated by commas (default: all)")
    chosen = options.parse_args(arguments)
    start, folder = time.perf_counter(), output_folder(chosen)
    settings, cells, rows = Settings(folds=chosen.folds), Cells(folder / "cells"), []
    names = [name for name in chosen.methods.split(",") if name] or [*classifiers(None)]
    there = bundled_sets() if chosen.data is None else [path.stem for path in sorted(chosen.data.glob("*.npz"))]
    wanted = [name for name in chosen.sets.split(",") if name] or [name for name in there if name not in IMAGES]
    problems = load_problems(chosen.data, wanted, settings, 300 if chosen.quick else chosen.max_examples)
    problems += [generated(rate, settings) for rate in RATES]
    for problem in problems:
        for weight in (None, "balanced"):
            for name in names:
                key = {"set": problem.name, "job": name, "data": problem.digest(), "code": _CODE, "weight": weight}
                found = cells.finish(key | {"folds": chosen.folds}, partial(measure, problem, [name], weight))
                rows += [row | {"class_weight": weight or "none"} for row in found]
    write_csv(folder / "probabilities.csv", rows)
    is_made = [row["set"].startswith("generated") for row in rows]
    real = [*means([row for row, made in zip(rows, is_made, strict=True) if not made], ["class_weight", "method"])]
    made = [row for row, made in zip(rows, is_made, strict=True) if made]
    each = [*means(made, ["set", "class_weight", "method"])]
    print(text_table(real), text_table(each), sep="\n\n")
    by_set = [*means(rows, ["set", "class_weight", "method"])]
    parts = [about(__doc__), markdown_table(real), "## Generated outcomes", markdown_table(each)]
    parts += ["## Each set", markdown_table(by_set)]
    write_summary(folder, "Probabilities", "probabilities", arguments, time.perf_counter() - start, parts)
