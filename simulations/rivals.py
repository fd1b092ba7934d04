"""Methods whose federation is the pooled model on any split: sums of counts, of Gram
matrices, of gradients, of histograms.

All of these send sums that add exactly, so nothing depends on how the samples are
split, and each is trained here on the pooled training samples: balanced accuracy, AUROC
(of each class against the rest) and log-loss on held-out folds, the same for all, with
equal weight for each class. What differs is how often parties are asked, what they
send, and what they can learn.

- FlyNN is a run over five parties with `class-weight=balanced` and `min-examples=1` at
  each effort, with all of its messages, evaluation included.
- Ridge regression (one-shot federated ridge, arXiv 2601.08216) on standardised columns:
  class sizes, then two Gram matrices of weighted samples, one for each fold.
- LDA and QDA (read from class means and covariances as in GH-OFL, arXiv 2602.01186),
  with shrinkage, and equal priors.
- Bucketed ridge (in the way of SAFLe, arXiv 2512.03336, without its groups and
  embeddings, which are for neural features): 16 overlapping buckets a column at its
  quantiles, fewer where that would be more than 2048 of them, and ridge on them as
  above.
- Logistic regression on standardised columns by L-BFGS, from weights of zero: class
  sizes and moments of the columns, then gradient and loss up and weights down for the
  start and each iteration. All strengths and both folds share these exchanges, so that
  as many count as the longest of them needs; the chosen strength is then trained on all
  samples. Further steps of a line search are not counted.
- Strength or shrinkage of these five, and a temperature, without which ridge has no
  probabilities, are chosen in one more exchange: from correct samples of each class and
  the log-loss (counted at 64 temperatures), each fold by the models of the other. Of
  QDA the temperature lowers the AUROC on a few sets of several classes.
- Boosting on summed histograms (horizontal XGBoost of NVFlare and FATE): gradients and
  Hessians of 63 bins a column, as float32, for the root and one child of each split,
  the other being the difference; one exchange for each level. 100 trees of each class,
  or, with half the learning rate, as many as early stopping takes, up to 1000.
- A forest on summed class histograms (FedForest, arXiv 2602.03258, as far as its paper
  can be followed): 100 trees, one exchange for each level of all of them, int32
  histograms of 32 bins of the columns drawn for a node. For its probabilities each
  class has one vote more.

Bytes are those of one party, up and down, without envelopes: numbers of 8 bytes where
nothing else is said, models down as 16 bytes a node or 8 a weight. All but FlyNN are
pooled runs of scikit-learn whose messages are counted. Nothing but what is said here is
tuned; TabPFN is left out, as its weights cannot be installed offline. None of the
others has histograms with a floor, noise, or secure sums in these figures.
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
from simulations.baselines import figures
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
N_TREES = 100
N_TEMPERATURES = 64
FOREST = "histogram forest"
MOST_BUCKETS = 2048
NODE = 16
FIGURES = ("balanced accuracy", "AUROC", "log-loss")
CODE = code_digest(
    *FEDERATED, "simulations.rivals", "simulations.baselines", "simulations.data"
)


def flynn(
    X: Array, y: Array, X_test: Array, y_test: Array, n_classes: int, effort: str
) -> Row:
    """A run over parties with every fifth sample each."""
    parties = [slice(i, None, N_PARTIES) for i in range(N_PARTIES)]
    shares = [Samples(X[mine], y[mine], X_test[mine], y_test[mine]) for mine in parties]
    row, model = defaults(
        Parts(shares, n_classes), effort, class_weight="balanced", min_examples=1
    )
    return figures(model.predict_proba(X_test), y_test) | {
        "exchanges": row["exchanges"],
        "kB": (row["up"] + row["down"]) / 1000,
    }


def by_sums(
    X: Array, y: Array, X_test: Array, y_test: Array, n_classes: int, method: str
) -> Row:
    """A pooled model, and the messages of its federation."""
    model, spent = OTHERS[method](X.shape[1], n_classes)
    exchanges, size = spent(model.fit(X, y))
    if method not in TREES:
        model = calibrated(model.best_estimator_, X, y)
    p = np.zeros((len(X_test), n_classes))
    p[:, model.classes_] = model.predict_proba(X_test)
    if method == FOREST:
        p = (N_TREES * p + 1) / (N_TREES + n_classes)
    return figures(p, y_test) | {"exchanges": exchanges, "kB": size / 1000}


def calibrated(model: Any, X: Array, y: Array) -> Any:
    """A classifier trained again, with a temperature by two folds."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.utils.class_weight import compute_sample_weight

    scaled = CalibratedClassifierCV(model, method="temperature", cv=2, ensemble=False)
    return scaled.fit(X, y, sample_weight=compute_sample_weight("balanced", y))


def _tuned(model: Any, grid: dict[str, Any], **scores: Any) -> Any:
    from sklearn.model_selection import GridSearchCV

    scoring = {"balanced": "balanced_accuracy"} | scores
    return GridSearchCV(model, grid, scoring=scoring, refit="balanced", cv=2)


def _gram(width: int) -> int:
    """Numbers of two triangular matrices of sums of products, one for each fold."""
    return (width + 1) * (width + 2)


def _choice(n_settings: int, n_weights: int, n_classes: int) -> int:
    """Numbers of a choice by two folds: models down, class hits and losses up."""
    return 2 * n_settings * (n_weights + n_classes + N_TEMPERATURES)


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
    n_weights = n_classes * (d + 1)
    strengths = {"ridgeclassifier__alpha": [10.0**k for k in range(-2, 5)]}
    if kind == "LDA":
        lda = LinearDiscriminantAnalysis("lsqr", priors=priors)
        sent = 8 * (_gram(d) + 3 * n_weights + _choice(4, n_weights, n_classes))
        return _tuned(lda, {"shrinkage": [0.0, 0.01, 0.1, 0.5]}), lambda _: (2, sent)
    if kind == "QDA":
        qda = make_pipeline(
            StandardScaler(),
            QuadraticDiscriminantAnalysis(solver="eigen", priors=priors),
        )
        # parties shrink the covariances of a fold
        sent = 8 * (n_classes * _gram(d) * 5 // 2 + _choice(4, 0, n_classes))
        return _tuned(
            qda, {"quadraticdiscriminantanalysis__shrinkage": [0.01, 0.1, 0.3, 0.6]}
        ), lambda _: (2, sent)
    codes = max(2, min(16, MOST_BUCKETS // d))
    ridge = RidgeClassifier(class_weight="balanced")
    if kind == "bucketed ridge":
        n_weights = n_classes * codes * d
        sent = (
            8 * (d * BINS + n_classes)
            + 4 * _gram(codes * d)
            + 16 * n_weights
            + 8 * _choice(7, n_weights, n_classes)
        )
        return _tuned(make_pipeline(_Buckets(codes), ridge), strengths), lambda _: (
            3,
            sent,
        )
    choice = _choice(7, n_weights, n_classes)
    sent = 8 * (n_classes + _gram(d) + 3 * n_weights + choice)
    return _tuned(make_pipeline(StandardScaler(), ridge), strengths), lambda _: (
        3,
        sent,
    )


def logistic(d: int, n_classes: int) -> tuple[Any, Callable[[Any], tuple[int, float]]]:
    """The same of logistic regression, whose searches over strengths and folds share
    exchanges.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    n_weights = n_classes * (d + 1)
    if n_classes == 2:
        n_weights = d + 1

    def gradients(model: Any, *_: Any) -> int:
        return 1 + int(model[-1].n_iter_.max())

    def spent(search: Any) -> tuple[int, float]:
        folds = [search.cv_results_[f"split{fold}_test_gradients"] for fold in (0, 1)]
        last = gradients(search.best_estimator_)
        moments = 4 * (n_classes + 2 * d)
        sent = moments + (np.sum(folds) + last) * (2 * n_weights + 1)
        sent += _choice(7, 0, n_classes)
        return 2 + int(np.max(folds)) + last, float(8 * sent)

    model = LogisticRegression(class_weight="balanced", max_iter=1000)
    strengths = {"logisticregression__C": [10.0**k for k in range(-4, 3)]}
    pipeline = make_pipeline(StandardScaler(), model)
    return _tuned(pipeline, strengths, gradients=gradients), spent


def trees(
    kind: str, d: int, n_classes: int
) -> tuple[Any, Callable[[Any], tuple[int, float]]]:
    """The same of trees from sums of histograms."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

    if kind == FOREST:
        forest = RandomForestClassifier(
            N_TREES, class_weight="balanced", random_state=0
        )
        return forest, lambda made: _spent(
            [[tree.tree_ for tree in made]], 4 * int(d**0.5) * FOREST_BINS * n_classes
        )
    settings: dict[str, Any] = {"max_iter": 100, "early_stopping": False}
    if kind == "boosting, early stopping":
        settings = {"max_iter": 1000, "learning_rate": 0.05, "early_stopping": True}
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


TREES = (FOREST, "boosting, 100 trees", "boosting, early stopping")
OTHERS: dict[str, Callable[..., Any]] = {
    **{
        kind: partial(linear, kind)
        for kind in ("ridge", "LDA", "QDA", "bucketed ridge")
    },
    "logistic regression": logistic,
    **{kind: partial(trees, kind) for kind in TREES},
}
METHODS = (*EFFORTS, *OTHERS)
SPENT = {"kB a party": "kB", "exchanges": "exchanges"}


def measured(data: DataSet, method: str, n_folds: int) -> list[Row]:
    """A row for each of the first folds."""
    rows = []
    for number, (train, test) in enumerate([*data.splits][:n_folds]):
        samples = (data.X[train], data.y[train], data.X[test], data.y[test])
        # of columns that are alike, in discriminants; of regressions that are not done
        with warnings.catch_warnings(action="ignore"):
            if method in EFFORTS:
                row = flynn(*samples, data.n_classes, EFFORTS[method])
            else:
                row = by_sums(*samples, data.n_classes, method)
        rows.append(data.shape | {"method": method, "fold": number} | row)
    return rows


def table(rows: list[Row]) -> list[Row]:
    """A line for each method: means and medians over the sets, and sets where FlyNN's
    default is ahead.
    """
    frame = (
        pd.DataFrame(rows)
        .groupby(["set", "method"], sort=False)[[*FIGURES, "exchanges", "kB"]]
        .mean()
    )
    by_set = frame["balanced accuracy"].unstack("method")
    lines = []
    for method in (name for name in METHODS if name in by_set):
        line = frame.xs(method, level="method")
        ahead = by_set["FlyNN"] - by_set[method]
        counts = "/".join(
            str(int((np.sign(ahead.round(9)) == sign).sum())) for sign in (1, 0, -1)
        )
        means = {name: float(line[name].mean()) for name in FIGURES}
        spent = {
            f"{name}, median": f"{line[key].median():.0f}"
            for name, key in SPENT.items()
        }
        least = f"{ahead.min():+.3f} ({ahead.idxmin()})"
        lines.append(
            {"method": method}
            | means
            | spent
            | {"FlyNN ahead / equal / behind": counts, "least lead": least}
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
            (data.digest, n_folds, CODE),
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
        .groupby(["set", "method"], sort=False)["balanced accuracy"]
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
