"""Methods whose federation is the pooled model on any split: sums of counts, of Gram
matrices, of histograms.

All of these send sums that add exactly, so nothing depends on how the samples are
split, and each is trained here on the pooled training samples: balanced accuracy on
held-out folds, the same for all. What differs is how often parties are asked, what they
send, and what they can learn.

- FlyNN is a run over five parties with `class-weight=balanced` and `min-examples=1` at
  each effort, with all of its messages, evaluation included.
- Ridge regression (one-shot federated ridge, arXiv 2601.08216) on standardised columns:
  class sizes, then two Gram matrices of weighted samples, one for each fold, from which
  the strength follows.
- LDA and QDA (read from class means and covariances as in GH-OFL, arXiv 2602.01186),
  with shrinkage chosen by two folds, and equal priors.
- Bucketed ridge (in the way of SAFLe, arXiv 2512.03336, without its groups and
  embeddings, which are for neural features): 16 overlapping buckets a column at its
  quantiles, fewer where that would be more than 2048 of them, and ridge on them as
  above.
- Boosting on summed histograms (horizontal XGBoost of NVFlare and FATE): gradients and
  Hessians of 63 bins a column, as float32, for the root and one child of each split,
  the other being the difference; one exchange for each level. 100 trees of each class,
  or as many as early stopping takes, up to 1000.
- A forest on summed class histograms (FedForest, arXiv 2602.03258, as far as its paper
  can be followed): 100 trees, one exchange for each level of all of them, int32
  histograms of 32 bins of the columns drawn for a node.

Bytes are those of one party, up and down, without envelopes: numbers of 8 bytes where
nothing else is said, models down as 16 bytes a node or 8 a weight. All but FlyNN are
pooled runs of scikit-learn whose messages are counted. Nothing but what is said here is
tuned. None of the others has histograms with a floor, noise, or secure sums in these
figures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin

from flwr_flynn.federated.samples import Samples
from simulations import plots
from simulations.baselines import balanced_accuracy
from simulations.data import DataSet, data_sets, files
from simulations.plots import Line, Panel
from simulations.results import Array, Row, markdown_table
from simulations.splits import Parts, defaults
from simulations.study import (
    FEDERATED,
    JOBS,
    MOST,
    SETS,
    Option,
    Piece,
    Study,
    at_least,
    code_digest,
)

EFFORTS = {"FlyNN quick": "quick", "FlyNN": "default", "FlyNN thorough": "thorough"}
N_PARTIES = 5
BINS = 63
FOREST_BINS = 32
MOST_BUCKETS = 2048
NODE = 16
_CODE = code_digest(*FEDERATED, "simulations.rivals", "simulations.data")


def flynn(
    X: Array, y: Array, X_test: Array, y_test: Array, n_classes: int, effort: str
) -> Row:
    """A run over parties with every fifth sample each."""
    parties = [slice(i, None, N_PARTIES) for i in range(N_PARTIES)]
    shares = [Samples(X[mine], y[mine], X_test[mine], y_test[mine]) for mine in parties]
    row, _ = defaults(
        Parts(shares, n_classes), effort, class_weight="balanced", min_examples=1
    )
    return {
        "balanced": row["balanced"],
        "exchanges": row["exchanges"],
        "kB": (row["up"] + row["down"]) / 1000,
    }


def _tuned(model: Any, grid: dict[str, Any]) -> Any:
    from sklearn.model_selection import GridSearchCV

    return GridSearchCV(model, grid, scoring="balanced_accuracy", cv=2)


def _gram(width: int) -> int:
    """Numbers of two triangular matrices of sums of products, one for each fold."""
    return (width + 1) * (width + 2)


class _Buckets(BaseEstimator, TransformerMixin):  # type: ignore[misc]
    """Overlapping buckets of each column: 1 for each quantile that a value reaches, 0
    for others.
    """

    def __init__(self, n: int) -> None:
        self.n = n

    def fit(self, X: Array, y: Any = None) -> _Buckets:
        """Take the quantiles of the columns."""
        self.edges_ = np.quantile(
            X, np.arange(1, self.n + 1) / (self.n + 1), axis=0, method="higher"
        )
        return self

    def transform(self, X: Array) -> Array:
        """Compute the buckets, (n, n_buckets d)."""
        return (X[:, None, :] >= self.edges_).reshape(len(X), -1).astype(np.float32)


def linear(
    kind: str, d: int, n_classes: int
) -> tuple[Any, Callable[[Any], tuple[int, float]]]:
    """An untrained classifier from sums of products, and a function of the trained one:
    exchanges and bytes.
    """
    from sklearn.discriminant_analysis import (
        LinearDiscriminantAnalysis,
        QuadraticDiscriminantAnalysis,
    )
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    priors = np.full(n_classes, 1 / n_classes)
    strengths = {"ridgeclassifier__alpha": [10.0**k for k in range(-2, 5)]}
    if kind == "LDA":
        lda = LinearDiscriminantAnalysis("lsqr", priors=priors)
        sent = 8 * (_gram(d) + 3 * n_classes * (d + 1))
        return _tuned(lda, {"shrinkage": [0.0, 0.01, 0.1, 0.5]}), lambda _: (1, sent)
    if kind == "QDA":
        qda = make_pipeline(
            StandardScaler(),
            QuadraticDiscriminantAnalysis(solver="eigen", priors=priors),
        )
        sent = 8 * n_classes * _gram(d) * 3 // 2
        return _tuned(
            qda, {"quadraticdiscriminantanalysis__shrinkage": [0.01, 0.1, 0.3, 0.6]}
        ), lambda _: (1, sent)
    codes = max(2, min(16, MOST_BUCKETS // d))
    ridge = RidgeClassifier(class_weight="balanced")
    if kind == "bucketed ridge":
        sent = (
            8 * (d * BINS + n_classes)
            + 4 * _gram(codes * d)
            + 16 * n_classes * codes * d
        )
        return _tuned(make_pipeline(_Buckets(codes), ridge), strengths), lambda _: (
            2,
            sent,
        )
    sent = 8 * (n_classes + _gram(d) + 3 * n_classes * (d + 1))
    return _tuned(make_pipeline(StandardScaler(), ridge), strengths), lambda _: (
        2,
        sent,
    )


def trees(
    kind: str, d: int, n_classes: int
) -> tuple[Any, Callable[[Any], tuple[int, float]]]:
    """The same of trees from sums of histograms."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

    if kind == "histogram forest":
        forest = RandomForestClassifier(100, class_weight="balanced", random_state=0)
        return forest, lambda made: _spent(
            [[tree.tree_ for tree in made]], 4 * int(d**0.5) * FOREST_BINS * n_classes
        )
    settings: dict[str, Any] = {"max_iter": 100, "early_stopping": False}
    if kind == "boosting, early stopping":
        settings = {"max_iter": 1000, "early_stopping": True}
    boosting = HistGradientBoostingClassifier(
        class_weight="balanced", max_bins=BINS, random_state=0, **settings
    )

    def spent(made: Any) -> tuple[int, float]:
        return _spent(
            [
                [_Nodes(tree.nodes) for tree in same_round]
                for same_round in made._predictors
            ],
            8 * d * BINS,
        )

    return boosting, spent


class _Nodes:
    """The nodes of one of scikit-learn's boosted trees, by the names of a forest's."""

    def __init__(self, nodes: Array) -> None:
        self.children_left = np.where(nodes["is_leaf"], -1, nodes["left"].astype(int))
        self.children_right = np.where(nodes["is_leaf"], -1, nodes["right"].astype(int))
        self.max_depth = int(nodes["depth"].max())
        self.node_count = len(nodes)


def _spent(rounds: list[list[Any]], size: int) -> tuple[int, float]:
    """Exchanges and bytes of trees that grow together, by rounds, with histograms of
    this size; bins come first.
    """
    exchanges = 1
    n_histograms = 1
    n_nodes = 0
    for trees_of_round in rounds:
        exchanges += max(tree.max_depth for tree in trees_of_round)
        for tree in trees_of_round:
            # index -1: the children of a leaf
            is_split = np.append(tree.children_left >= 0, False)
            asked = is_split[tree.children_left] | is_split[tree.children_right]
            n_histograms += int(is_split[0]) + int(asked.sum())
            n_nodes += tree.node_count
    return exchanges, float(n_histograms * size + NODE * n_nodes)


OTHERS: dict[str, Callable[..., Any]] = {
    **{
        kind: partial(linear, kind)
        for kind in ("ridge", "LDA", "QDA", "bucketed ridge")
    },
    **{
        kind: partial(trees, kind)
        for kind in (
            "histogram forest",
            "boosting, 100 trees",
            "boosting, early stopping",
        )
    },
}
METHODS = (*EFFORTS, *OTHERS)
SPENT = {"kB a party": "kB", "exchanges": "exchanges"}


def measured(data: DataSet, method: str, n_folds: int) -> list[Row]:
    """A row for each of the first folds."""
    rows = []
    for number, (train, test) in enumerate([*data.splits][:n_folds]):
        X = data.X[train]
        y = data.y[train]
        X_test = data.X[test]
        y_test = data.y[test]
        n_classes = data.n_classes
        # of columns that are alike, in discriminants
        with warnings.catch_warnings(action="ignore"):
            if method in EFFORTS:
                row = flynn(X, y, X_test, y_test, n_classes, EFFORTS[method])
            else:
                model, spent = OTHERS[method](X.shape[1], n_classes)
                predicted = model.fit(X, y).predict(X_test)
                exchanges, size = spent(model)
                accuracy = float(balanced_accuracy(y_test, predicted, n_classes))
                row = {"balanced": accuracy, "exchanges": exchanges, "kB": size / 1000}
        rows.append(data.shape | {"method": method, "fold": number} | row)
    return rows


def table(rows: list[Row]) -> list[Row]:
    """A line for each method: means and medians over the sets, and sets where FlyNN's
    default is ahead.
    """
    frame = (
        pd.DataFrame(rows)
        .groupby(["set", "method"], sort=False)[["balanced", "exchanges", "kB"]]
        .mean()
    )
    by_set = frame["balanced"].unstack("method")
    lines = []
    for method in (name for name in METHODS if name in by_set):
        line = frame.xs(method, level="method")
        ahead = by_set["FlyNN"] - by_set[method]
        counts = "/".join(
            str(int((np.sign(ahead.round(9)) == sign).sum())) for sign in (1, 0, -1)
        )
        spent = {
            f"{name}, median": f"{line[key].median():.0f}"
            for name, key in SPENT.items()
        }
        mine = {
            "method": method,
            "balanced accuracy": float(line["balanced"].mean()),
        } | spent
        least = f"{ahead.min():+.3f} ({ahead.idxmin()})"
        lines.append(
            mine | {"FlyNN ahead / equal / behind": counts, "least lead": least}
        )
    return lines


def draw(lines: list[Row], path: Any) -> str:
    """Mean accuracy by bytes and by exchanges."""
    panels = []
    for name in SPENT:
        look = {"linestyle": "none", "markersize": 10}
        pairs = [
            (float(line[f"{name}, median"]), line["balanced accuracy"])
            for line in lines
        ]
        points = [
            Line(line["method"], [x], [y], look=look)
            for line, (x, y) in zip(lines, pairs, strict=True)
        ]
        axes = {
            "xscale": "log",
            "xlabel": f"{name}, median",
            "ylabel": "balanced accuracy, mean over sets",
        }
        panels.append(Panel("", points, axes))
    return plots.lines(panels, path, (5.2, 4.4))


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    folds = Option(
        "of five folds, so many are held out in turn (default: 2, quick: 1)",
        at_least(1),
    )
    more = {"sets": SETS, "max_examples": MOST, "jobs": JOBS, "folds": folds}
    study = Study(
        "rivals", "Rivals with exact sums", __doc__, arguments, full="", **more
    )
    if study.chosen.max_examples is None:
        most = study.sized(2500, 300)
    else:
        most = study.chosen.max_examples
    known = files(study.chosen.data)
    n_folds = study.chosen.folds or study.sized(2, 1)
    sets = data_sets(known, study.wanted(known), folds=5, most=most)
    pieces = [
        Piece(
            f"{data.name}: {method}",
            (data.digest, n_folds, _CODE),
            partial(measured, data, method, n_folds),
        )
        for data in sets
        for method in METHODS
    ]
    finished = study.cells.run(pieces, study.chosen.jobs)
    rows = [row for of_piece in finished for row in of_piece]
    lines = table(rows)
    study.write("rivals", rows)
    shown = markdown_table(lines)
    by_set = (
        pd.DataFrame(rows)
        .groupby(["set", "method"], sort=False)["balanced"]
        .mean()
        .unstack("method")
    )
    lines_of_sets = [
        {"set": name} | {str(key): float(value) for key, value in line.items()}
        for name, line in by_set.iterrows()
    ]
    print(shown)
    study.finish(
        [
            shown,
            draw(lines, study.folder / "rivals.png"),
            "## The methods",
            study.about,
            markdown_table(lines_of_sets),
        ]
    )
