"""Mixed tables of numbers and categories with gaps: FlyNN on them as they are, beside encoders, trees and kNN.

Balanced accuracy, stratified folds, the same for all methods. "FlyNN" and "FlyNN thorough" get the table as it is.
"FlyNN encoded" is the same classifier behind scikit-learn's one-hot encoder, to which a gap is a level, and the mean of
the column in place of missing numbers; on a complete table both get the same numbers. "boosting" is scikit-learn's
HistGradientBoosting with its defaults, which takes categories and gaps as they are; "small boosting" has 8 leaves and a
learning rate of .05, which suits tables of this size better. "forest" (200 trees), "logistic" regression and "kNN" (k
from 1 to 45 by cross-validation within the training samples) stand behind `skrub.tabular_pipeline`. All have balanced
class weights but kNN, whose votes are not weighted.

Each table is measured as it comes, and with 10 % and 30 % of its cells emptied, in training and test samples alike:
"at random", or "by value": a number with a probability that grows with its rank among the values of its column, from
0 to twice the share, a level with a probability of its own. The tables were chosen before any result was seen
(`simulations.mixed_tables`).

Finished cells are kept under the output folder. Needs the extra `tables`; tables and methods whose package is not
installed are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_flynn import FlyNNClassifier
from simulations import mixed_tables
from simulations.baselines import balanced_accuracy
from simulations.mixed_tables import BY_VALUE, COMPLETELY, emptied, load
from simulations.plots import _panels, _save
from simulations.results import (
    MODEL,
    Cells,
    Row,
    about,
    against,
    by_method,
    code_digest,
    markdown_table,
    output_folder,
    parser,
    text_table,
    write_csv,
    write_summary,
)

Array = npt.NDArray[Any]

FLYNN, THOROUGH, ENCODED, BOOSTING, SMALL, FOREST, LOGISTIC, KNN = (
    "FlyNN", "FlyNN thorough", "FlyNN encoded", "boosting", "small boosting", "forest", "logistic", "kNN",
)  # fmt: skip

_NEIGHBOURS = (1, 3, 5, 9, 15, 25, 45)
_VERSION = 1  # in the key of every cell; raise it when a method other than FlyNN, or the folds, change
_CODE = code_digest(*MODEL, "flwr_flynn.tables")


@dataclass(frozen=True)
class Variant:
    """A share of emptied cells, and the kind of emptying."""

    share: float = 0.0
    kind: str = COMPLETELY

    def __str__(self) -> str:
        return f"{self.share:.0%} emptied {self.kind}" if self.share else "as it comes"


VARIANTS = (Variant(), *(Variant(share, kind) for kind in (COMPLETELY, BY_VALUE) for share in (0.1, 0.3)))


def encoded(frame: pd.DataFrame) -> Any:
    """FlyNN behind one-hot encoding and the mean of a column for its missing numbers, column by column.

    The columns are in the order in which FlyNN takes those of a table, so that equal numbers have equal hashes.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    def step(name: str) -> Any:
        if isinstance(frame[name].dtype, pd.CategoricalDtype):
            return OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        return SimpleImputer(keep_empty_features=True)

    columns = ColumnTransformer([(f"column {name}", step(name), [name]) for name in sorted(frame, key=str)])
    return make_pipeline(columns, FlyNNClassifier(n_jobs=1, class_weight="balanced"))


def _boosting(frame: pd.DataFrame, **more: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        categorical_features="from_dtype", class_weight="balanced", early_stopping=False, random_state=0, **more
    )


def _forest(frame: pd.DataFrame) -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from skrub import tabular_pipeline  # type: ignore[import-untyped]

    return tabular_pipeline(RandomForestClassifier(200, class_weight="balanced", random_state=0))


def _logistic(frame: pd.DataFrame) -> Any:
    from sklearn.linear_model import LogisticRegression
    from skrub import tabular_pipeline

    return tabular_pipeline(LogisticRegression(class_weight="balanced", max_iter=2000))


def _knn(frame: pd.DataFrame) -> Any:
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsClassifier
    from skrub import tabular_pipeline

    choice = {"n_neighbors": _NEIGHBOURS}
    return tabular_pipeline(GridSearchCV(KNeighborsClassifier(), choice, scoring="balanced_accuracy", cv=3))


METHODS: dict[str, Callable[[pd.DataFrame], Any]] = {
    FLYNN: lambda frame: FlyNNClassifier(n_jobs=1, class_weight="balanced"),
    ENCODED: encoded,
    BOOSTING: _boosting,
    SMALL: lambda frame: _boosting(frame, max_leaf_nodes=8, learning_rate=0.05),
    FOREST: _forest,
    LOGISTIC: _logistic,
    KNN: _knn,
    THOROUGH: lambda frame: FlyNNClassifier(effort="thorough", n_jobs=1, class_weight="balanced"),
}
_BEHIND_SKRUB = (FOREST, LOGISTIC, KNN)


def scores(method: str, frame: pd.DataFrame, y: Array, n_folds: int) -> list[Row]:
    """A row with the balanced accuracy of each fold, and seconds of fit and prediction together."""
    import warnings

    from sklearn.model_selection import StratifiedKFold
    from threadpoolctl import threadpool_limits

    rows = []
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    for number, (train, test) in enumerate(folds.split(frame, y)):
        start = time.perf_counter()
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about columns without values, and levels that a fold lacks
            model = METHODS[method](frame).fit(frame.iloc[train], y[train])
            score = balanced_accuracy(y[test], model.predict(frame.iloc[test]), int(y.max()) + 1)
        rows.append({"fold": number, "score": float(score), "seconds": time.perf_counter() - start})
    return rows


def measured(tables: Sequence[str], names: Sequence[str], n_folds: int, largest: int, cells: Cells) -> list[Row]:
    """A row for each table, variant and method, finished cells as they are kept."""
    rows = []
    read = {name: load(name, mixed_tables.SOURCES[name], largest) for name in tables}
    for method in names:  # the slow method last
        for name, (frame, y) in read.items():
            for variant in VARIANTS:
                X = emptied(frame, variant.share, variant.kind)
                key = {"set": name, "job": f"{method}, {variant}", "data": joblib.hash((X, y)), "folds": n_folds}
                key |= {"version": _VERSION, "code": _CODE if method.startswith(FLYNN) else ""}
                found = cells.finish(key, lambda method=method, X=X, y=y: scores(method, X, y, n_folds))  # type: ignore[misc]
                rows.append(_row(name, variant, method, X, y, found))
    return rows


def _row(name: str, variant: Variant, method: str, X: pd.DataFrame, y: Array, folds: Sequence[Row]) -> Row:
    found = np.array([fold["score"] for fold in folds])
    n_categories = sum(isinstance(dtype, pd.CategoricalDtype) for dtype in X.dtypes)
    return {
        "set": name, "variant": str(variant), "method": method, "n": len(X), "numbers": X.shape[1] - n_categories,
        "categories": n_categories, "gaps": float(X.isna().to_numpy().mean()), "classes": int(y.max()) + 1,
        "mean": float(found.mean()), "sd": float(found.std(ddof=1)),
        "seconds": sum(fold["seconds"] for fold in folds), "folds": len(folds),
    }  # fmt: skip


# ---- output


def means(rows: Sequence[Row]) -> list[Row]:
    """A line for each variant: means of the methods over the tables."""
    lines = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        table = by_method(row for row in rows if row["variant"] == variant)
        lines.append({"variant": variant} | {name: float(np.mean(list(of.values()))) for name, of in table.items()})
    return lines


def draw(rows: Sequence[Row], path: Path) -> None:
    """Mean accuracy by the share of emptied cells, a panel for each kind of emptying."""
    line_of = {line["variant"]: line for line in means(rows)}
    plt, figure, axes = _panels(2, 4.8, 3.8)
    for axis, kind in zip(axes, (COMPLETELY, BY_VALUE), strict=True):
        shown = [each for each in VARIANTS if not each.share or each.kind == kind]
        for method in METHODS:
            if method in line_of[str(shown[0])]:
                values = [line_of[str(each)][method] for each in shown]
                dash = "-" if method.startswith(FLYNN) else "--"
                axis.plot([100 * each.share for each in shown], values, f"o{dash}", label=method)
        axis.set(xlabel=f"% of the cells emptied {kind}", ylabel="balanced accuracy, mean over tables")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=6, fontsize=8, frameon=False)
    _save(plt, figure, path)


def _parts(rows: Sequence[Row]) -> tuple[dict[str, list[Row]], dict[str, list[Row]]]:
    """Tables that are printed, and those for the summary alone, by their headings."""
    others = (ENCODED, BOOSTING, SMALL, FOREST, LOGISTIC, KNN)
    printed, more = {"Mean balanced accuracy over the tables:": means(rows)}, {}
    for variant in VARIANTS:
        mine = [row for row in rows if row["variant"] == str(variant)]
        for ours in (FLYNN, THOROUGH):
            printed[f"{ours}, {variant}:"] = against(mine, ours, others if ours == FLYNN else (FLYNN, *others))
        about_set = {row["set"]: {what: row[what] for what in _SHAPE} for row in mine}
        table = by_method(mine)
        more[f"Balanced accuracy, {variant}:"] = [
            shape | {method: of[name] for method, of in table.items()} for name, shape in about_set.items()
        ]
    return printed, more


_SHAPE = ("set", "n", "numbers", "categories", "gaps", "classes")


def main(arguments: list[str]) -> None:
    """Compare, print, write."""
    options = parser("tables", __doc__)
    options.add_argument("--sets", default="", help=f"some of {', '.join(mixed_tables.SOURCES)}, commas between")
    options.add_argument("--max-examples", type=int, help="rows of each table, 0 for all (default: 2000, quick: 300)")
    options.add_argument("--folds", type=int, help="default: 5, quick: 3")
    chosen = options.parse_args(arguments)
    largest = chosen.max_examples if chosen.max_examples is not None else 300 if chosen.quick else 2000
    n_folds = chosen.folds if chosen.folds is not None else 3 if chosen.quick else 5
    if n_folds < 2 or largest < 0:
        options.error("expected --folds of at least 2 and --max-examples of at least 0")
    wanted = [name.strip() for name in chosen.sets.split(",") if name.strip()] or list(mixed_tables.SOURCES)
    if unknown := [name for name in wanted if name not in mixed_tables.SOURCES]:
        options.error(f"--sets: expected some of {', '.join(mixed_tables.SOURCES)}, got {', '.join(unknown)}")
    absent = mixed_tables.missing(mixed_tables.SOURCES)
    for name in wanted:
        if name in absent:
            print(f"left out: {name}, as the package {absent[name]} is not installed")
    names = [name for name in METHODS if name not in _BEHIND_SKRUB or find_spec("skrub") is not None]
    for name in (name for name in METHODS if name not in names):
        print(f"left out: {name}, as the package skrub is not installed")
    if not (tables := [name for name in wanted if name not in absent]):
        options.error("expected a table whose package is installed: pip install 'flwr-flynn[tables]'")
    _run(chosen, tables, names, n_folds, largest, arguments)


def _run(options: Any, tables: list[str], names: list[str], n_folds: int, largest: int, arguments: list[str]) -> None:
    start, folder = time.perf_counter(), output_folder(options)
    rows = measured(tables, names, n_folds, largest, Cells(folder / "cells"))
    printed, more = _parts(rows)
    for heading, table in printed.items():
        if table:
            print(f"{heading}\n{text_table(table)}\n")
    write_csv(folder / "tables.csv", rows)
    draw(rows, folder / "tables.png")
    shown = {**printed, **more}
    parts = [part for heading, table in shown.items() if table for part in (heading, markdown_table(table))]
    figure = "![balanced accuracy by the share of emptied cells](tables.png)"
    parts = [about(__doc__), *parts[:2], figure, *parts[2:]]
    write_summary(folder, "Mixed tables", "tables", arguments, time.perf_counter() - start, parts)
