"""Probabilities of FlyNN beside boosting, a calibrated forest and logistic regression.

Stratified folds of each set, the same for all methods, and generated outcomes of given
frequencies. All methods take the frequencies of the training samples, or all have
``class_weight="balanced"``. The Brier score is the sum over classes. Calibration error,
slope, intercept and AUROC are those of `flwr_flynn.model.metrics`: of the second of two
classes, or the mean over the classes, each against the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from flwr_flynn import FlyNNClassifier
from flwr_flynn.model.metrics import overall, scored
from simulations.data import DataSet, data_sets, files, folded
from simulations.results import Array, Row, chosen, markdown_table
from simulations.study import MODEL, SETS, Option, Study, at_least, code_digest, names

IMAGES = ("fashion_mnist", "mnist")
RATES = (0.01, 0.03, 0.09, 0.2)
FIGURES = (
    "log-loss",
    "Brier",
    "ECE",
    "slope",
    "intercept",
    "AUROC",
    "accuracy",
    "balanced accuracy",
    "observed / expected",
)
_CODE = code_digest(
    *MODEL, "flwr_flynn.model.metrics", "simulations.probabilities", "simulations.data"
)
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
        "logistic": make_pipeline(
            StandardScaler(), LogisticRegression(class_weight=weight, max_iter=2000)
        ),
    }


def figures(p: Array, y: Array) -> Row:
    """Figures of probabilities, (n, L), for class indices, (n,)."""
    from sklearn.metrics import balanced_accuracy_score

    best = p.argmax(axis=1)
    n_classes = p.shape[1]
    summary = overall(*scored(p, y, best))
    names = {
        "ECE": "calibration_error",
        "slope": "calibration_slope",
        "intercept": "calibration_intercept",
    }
    return {
        "log-loss": float(-np.log(np.maximum(p[np.arange(len(y)), y], _LEAST)).mean()),
        "Brier": float(((p - np.eye(n_classes)[y]) ** 2).sum(axis=1).mean()),
        **{
            name: (summary[key] or [np.nan])[0]
            for name, key in (names | {"AUROC": "auroc"}).items()
        },
        "accuracy": float((best == y).mean()),
        "balanced accuracy": float(balanced_accuracy_score(y, best)),
        "observed / expected": float((y == n_classes - 1).sum() / p[:, -1].sum()),
    }


def measure(data: DataSet, methods: Sequence[str], weight: str | None) -> list[Row]:
    """A row for each fold and method."""
    rows = []
    for number, (train, test) in enumerate(data.splits):
        X = np.asarray(data.X, np.float64)
        y = data.y
        for name in methods:
            model = classifiers(weight)[name]
            p = np.zeros((len(test), data.n_classes))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few samples of a class
                model.fit(X[train], y[train])
                p[:, model.classes_] = model.predict_proba(X[test])
                rows.append(
                    {"set": data.name, "fold": number, "method": name}
                    | figures(p, y[test])
                )
    return rows


def generated(rate: float, folds: int) -> DataSet:
    """An outcome of a given frequency, whose log odds follow from twelve columns and a
    product of two.
    """
    generator = np.random.default_rng(1)
    X = generator.normal(size=(5800, 12))
    odds = (
        X[:, :6] @ np.array([1.2, -1.0, 0.8, 0.6, -0.5, 0.4]) + 0.8 * X[:, 6] * X[:, 7]
    )
    low = -20.0
    high = 20.0
    for _ in range(60):  # the intercept of this frequency
        shift = (low + high) / 2
        if (1 / (1 + np.exp(-odds - shift))).mean() < rate:
            low = shift
        else:
            high = shift
    y = (generator.random(len(X)) < 1 / (1 + np.exp(-odds - shift))).astype(np.int64)
    return folded(f"generated, {rate:.0%}", X, y, folds=folds)


def means(rows: list[Row], by: list[str]) -> Iterator[Row]:
    """Means of the figures over sets and folds; of slope and intercept the medians."""
    for key, group in pd.DataFrame(rows).groupby(by, sort=False):
        per_set = group.groupby("set")[list(FIGURES)].mean()
        middle = per_set[["slope", "intercept"]].median().to_dict()
        yield dict(zip(by, key, strict=True)) | per_set.mean().to_dict() | middle


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    known = tuple(classifiers(None))
    study = Study(
        "probabilities",
        "Probabilities",
        __doc__,
        arguments,
        sets=SETS._replace(
            what="names of data sets, with commas between (default: all but images)"
        ),
        folds=Option("default: 5", at_least(2), 5),
        max_examples=Option("samples of each set (default: 2500)", at_least(1), 2500),
        methods=Option(
            f"some of {', '.join(known)}, with commas between (default: all)", names, ()
        ),
    )
    folds = study.chosen.folds
    there = files(study.chosen.data)
    wanted = [
        name
        for name in study.wanted(there)
        if name in study.chosen.sets or name not in IMAGES
    ]
    most = study.sized(study.chosen.max_examples, 300)
    sets = [
        *data_sets(there, wanted, folds=folds, most=most),
        *(generated(rate, folds) for rate in RATES),
    ]
    rows: list[Row] = []
    for data, weight, name in product(
        sets, (None, "balanced"), study.wanted(known, "methods")
    ):
        label = f"{data.name}: {name}, weight {weight}"
        work = partial(measure, data, [name], weight)
        measured = study.cells.finish(label, (data.digest, _CODE), work)
        rows += [
            row
            | {
                "class_weight": weight or "none",
                "made": row["set"].startswith("generated"),
            }
            for row in measured
        ]
    study.write("probabilities", rows)
    real = [*means(chosen(rows, made=False), ["class_weight", "method"])]
    made = [*means(chosen(rows, made=True), ["set", "class_weight", "method"])]
    print(markdown_table(real), markdown_table(made), sep="\n\n")
    parts = [
        study.about,
        markdown_table(real),
        "## Generated outcomes",
        markdown_table(made),
        "## Each set",
    ]
    study.finish(
        [*parts, markdown_table([*means(rows, ["set", "class_weight", "method"])])]
    )
