"""Mixed tables of numbers and categories with gaps: FlyNN on them as they are, beside
encoders, trees and kNN.

Balanced accuracy, stratified folds, the same for all methods. "FlyNN" and "FlyNN
thorough" get the table as it is. "FlyNN encoded" is the same classifier behind
scikit-learn's one-hot encoder, to which a gap is a level, and the mean of the column in
place of missing numbers; on a complete table both get the same numbers. "boosting" is
scikit-learn's HistGradientBoosting with its defaults, which takes categories and gaps
as they are; "small boosting" has 8 leaves and a learning rate of .05, which suits
tables of this size better. "forest" (200 trees), "logistic" regression and "kNN" (k
from 1 to 45 by cross-validation within the training samples) stand behind
`skrub.tabular_pipeline`. All have balanced class weights but kNN, whose votes are not
weighted.

Each table is measured as it comes, and with 10 % and 30 % of its cells emptied, in
training and test samples alike: "at random", or "by value": a number with a probability
that grows with its rank among the values of its column, from 0 to twice the share, a
level with a probability of its own. The tables were chosen before any result was seen
(`simulations.mixed_tables`).

Finished cells are kept under the output folder. Needs the extra `tables`; tables and
methods whose package is not installed are left out.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import DataError
from simulations import mixed_tables, plots
from simulations.baselines import balanced_accuracy
from simulations.mixed_tables import BY_VALUE, COMPLETELY, emptied, load
from simulations.plots import Line, Panel
from simulations.results import (
    Array,
    Row,
    against,
    by_method,
    chosen,
    mean_by,
    with_headings,
)
from simulations.study import (
    MODEL,
    MOST,
    SETS,
    Cells,
    Option,
    Study,
    at_least,
    code_digest,
)

FLYNN = "FlyNN"
THOROUGH = "FlyNN thorough"
ENCODED = "FlyNN encoded"
BOOSTING = "boosting"
SMALL = "small boosting"
FOREST = "forest"
LOGISTIC = "logistic"
KNN = "kNN"

_NEIGHBOURS = (1, 3, 5, 9, 15, 25, 45)
# in the key of every cell; raise it when a method other than FlyNN, or the folds,
# change
_VERSION = 1
_CODE = code_digest(*MODEL, "flwr_flynn.tables")


@dataclass(frozen=True)
class Variant:
    """A share of emptied cells, and the kind of emptying."""

    share: float = 0.0
    kind: str = COMPLETELY

    def __str__(self) -> str:
        if self.share:
            return f"{self.share:.0%} emptied {self.kind}"
        return "as it comes"


VARIANTS = (
    Variant(),
    *(Variant(share, kind) for kind in (COMPLETELY, BY_VALUE) for share in (0.1, 0.3)),
)


def encoded(frame: pd.DataFrame) -> Any:
    """FlyNN behind one-hot encoding and the mean of a column for its missing numbers,
    column by column.

    The columns are in the order in which FlyNN takes those of a table, so that equal
    numbers have equal hashes.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    def step(name: str) -> Any:
        if isinstance(frame[name].dtype, pd.CategoricalDtype):
            return OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        return SimpleImputer(keep_empty_features=True)

    columns = ColumnTransformer(
        [(f"column {name}", step(name), [name]) for name in sorted(frame, key=str)]
    )
    return make_pipeline(columns, FlyNNClassifier(n_jobs=1, class_weight="balanced"))


def _boosting(frame: pd.DataFrame, **more: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        categorical_features="from_dtype",
        class_weight="balanced",
        early_stopping=False,
        random_state=0,
        **more,
    )


def _forest(frame: pd.DataFrame) -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from skrub import tabular_pipeline

    return tabular_pipeline(
        RandomForestClassifier(200, class_weight="balanced", random_state=0)
    )


def _logistic(frame: pd.DataFrame) -> Any:
    from sklearn.linear_model import LogisticRegression
    from skrub import tabular_pipeline

    return tabular_pipeline(LogisticRegression(class_weight="balanced", max_iter=2000))


def _knn(frame: pd.DataFrame) -> Any:
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsClassifier
    from skrub import tabular_pipeline

    choice = {"n_neighbors": _NEIGHBOURS}
    return tabular_pipeline(
        GridSearchCV(KNeighborsClassifier(), choice, scoring="balanced_accuracy", cv=3)
    )


METHODS: dict[str, Callable[[pd.DataFrame], Any]] = {
    FLYNN: lambda frame: FlyNNClassifier(n_jobs=1, class_weight="balanced"),
    ENCODED: encoded,
    BOOSTING: _boosting,
    SMALL: lambda frame: _boosting(frame, max_leaf_nodes=8, learning_rate=0.05),
    FOREST: _forest,
    LOGISTIC: _logistic,
    KNN: _knn,
    THOROUGH: lambda frame: FlyNNClassifier(
        effort="thorough", n_jobs=1, class_weight="balanced"
    ),
}
_BEHIND_SKRUB = (FOREST, LOGISTIC, KNN)


def scores(method: str, frame: pd.DataFrame, y: Array, n_folds: int) -> list[Row]:
    """A row with the balanced accuracy of each fold, and seconds of fit and prediction
    together.
    """
    from sklearn.model_selection import StratifiedKFold
    from threadpoolctl import threadpool_limits

    rows = []
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    for number, (train, test) in enumerate(folds.split(frame, y)):
        start = time.perf_counter()
        with threadpool_limits(1), warnings.catch_warnings():
            # about columns without values, and levels that a fold lacks
            warnings.simplefilter("ignore")
            model = METHODS[method](frame).fit(frame.iloc[train], y[train])
            score = balanced_accuracy(
                y[test], model.predict(frame.iloc[test]), int(y.max()) + 1
            )
        rows.append(
            {
                "fold": number,
                "score": float(score),
                "seconds": time.perf_counter() - start,
            }
        )
    return rows


def measured(
    tables: Sequence[str],
    names: Sequence[str],
    n_folds: int,
    largest: int,
    cells: Cells,
) -> list[Row]:
    """A row for each table, variant and method, finished pieces as they are kept."""
    rows = []
    read = {name: load(name, mixed_tables.SOURCES[name], largest) for name in tables}
    for method, name, variant in product(names, read, VARIANTS):  # the slow method last
        frame, y = read[name]
        X = emptied(frame, variant.share, variant.kind)
        code = ""
        if method.startswith(FLYNN):
            code = _CODE
        folds = cells.finish(
            f"{name}: {method}, {variant}",
            (joblib.hash((X, y)), n_folds, _VERSION, code),
            partial(scores, method, X, y, n_folds),
        )
        rows.append(_row(name, variant, method, X, y, folds))
    return rows


def _row(
    name: str,
    variant: Variant,
    method: str,
    X: pd.DataFrame,
    y: Array,
    folds: Sequence[Row],
) -> Row:
    by_fold = np.array([fold["score"] for fold in folds])
    n_categories = sum(isinstance(dtype, pd.CategoricalDtype) for dtype in X.dtypes)
    return {
        "set": name,
        "variant": str(variant),
        "method": method,
        "n": len(X),
        "numbers": X.shape[1] - n_categories,
        "categories": n_categories,
        "gaps": float(X.isna().to_numpy().mean()),
        "classes": int(y.max()) + 1,
        "mean": float(by_fold.mean()),
        "sd": float(by_fold.std(ddof=1)),
        "seconds": sum(fold["seconds"] for fold in folds),
        "folds": len(folds),
    }


# ---- output


def means(rows: Sequence[Row]) -> list[Row]:
    """A line for each variant: means of the methods over the tables."""
    frame = mean_by(rows, ["variant", "method"])["mean"]
    return [
        {"variant": variant} | frame[variant].to_dict()
        for variant in dict.fromkeys(row["variant"] for row in rows)
    ]


def draw(rows: Sequence[Row], path: Path) -> str:
    """Mean accuracy by the share of emptied cells, a panel for each kind of emptying."""
    line_of = {line["variant"]: line for line in means(rows)}
    panels = []
    for kind in (COMPLETELY, BY_VALUE):
        shown = [
            variant for variant in VARIANTS if not variant.share or variant.kind == kind
        ]
        x = [100 * variant.share for variant in shown]
        there = [method for method in METHODS if method in line_of[str(shown[0])]]
        lines = [
            Line(method, x, [line_of[str(variant)][method] for variant in shown])
            for method in there
        ]
        axes = {
            "xlabel": f"% of the cells emptied {kind}",
            "ylabel": "balanced accuracy, mean over tables",
        }
        panels.append(Panel("", lines, axes))
    return plots.lines(panels, path, (4.8, 3.8))


def _parts(rows: Sequence[Row]) -> tuple[dict[str, list[Row]], dict[str, list[Row]]]:
    """Tables that are printed, and those for the summary alone, by their headings."""
    others = (ENCODED, BOOSTING, SMALL, FOREST, LOGISTIC, KNN)
    printed = {"Mean balanced accuracy over the tables:": means(rows)}
    more = {}
    for variant in VARIANTS:
        mine = chosen(rows, variant=str(variant))
        printed[f"{FLYNN}, {variant}:"] = against(mine, FLYNN, others)
        printed[f"{THOROUGH}, {variant}:"] = against(mine, THOROUGH, (FLYNN, *others))
        about_set = {row["set"]: {what: row[what] for what in _SHAPE} for row in mine}
        table = by_method(mine)
        more[f"Balanced accuracy, {variant}:"] = [
            shape | {method: of[name] for method, of in table.items()}
            for name, shape in about_set.items()
        ]
    return printed, more


_SHAPE = ("set", "n", "numbers", "categories", "gaps", "classes")


def main(arguments: list[str]) -> None:
    """Compare, print, write."""
    study = Study(
        "tables",
        "Mixed tables",
        __doc__,
        arguments,
        sets=SETS,
        max_examples=MOST._replace(
            what="rows of each table, 0 for all (default: 2000, quick: 300)"
        ),
        folds=Option("default: 5, quick: 3", at_least(2)),
    )
    absent = mixed_tables.missing(mixed_tables.SOURCES)
    wanted = study.wanted(mixed_tables.SOURCES)
    if not find_spec("skrub"):
        absent |= dict.fromkeys(_BEHIND_SKRUB, "skrub")
    for name in (name for name in (*wanted, *METHODS) if name in absent):
        print(f"left out: {name}, as the package {absent[name]} is not installed")
    tables, methods = (
        [name for name in some if name not in absent] for some in (wanted, METHODS)
    )
    if not tables:
        raise DataError(
            "--sets",
            "a table whose package is installed, pip install 'flwr-flynn[tables]'",
            "none",
        )
    if study.chosen.max_examples is None:
        most = study.sized(2000, 300)
    else:
        most = study.chosen.max_examples
    rows = measured(
        tables, methods, study.chosen.folds or study.sized(5, 3), most, study.cells
    )
    printed, more = _parts(rows)
    study.write("tables", rows)
    shown = with_headings(printed)
    print("\n".join(shown))
    figure = draw(rows, study.folder / "tables.png")
    study.finish([study.about, *shown[:2], figure, *shown[2:], *with_headings(more)])
