"""Jobs of the methods that FlyNN is compared with.

A job takes a data set with its folds and settings, and returns a row for each of its
methods. All jobs on a data set use the same folds. "Tuned" means as in the paper: the
best mean score over the very folds that are reported, which flatters; "nested" means
chosen within each training fold.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, SupportsFloat

import numpy as np

from simulations.data import DataSet
from simulations.results import Array, Row

# the better of two scalings: on the folds, or within each training fold
KNN = "kNN"
KNN_NESTED = "kNN, nested"
# on unscaled samples, as in the paper's tables, it seems
KNN_AS_IS = "kNN as is"
ONE_NN_AS_IS = "1-NN as is"
CENTRALISED = {
    "forest": "random forest",
    "boosting": "gradient boosting",
    "logistic": "logistic regression",
}


@dataclass(frozen=True)
class Settings:
    """Settings that the results depend on.

    Parameters
    ----------
    folds : int
    seed : int
        Seed of subsample, folds, hashes and random configurations.
    draws : int
        Random configurations of the paper's FlyNN, and sizes of SBFC.
    largest_dim : int
        The paper tunes m up to 2048 d; no m goes beyond this, so that a run stays
        affordable.
    largest_k : int
        Largest k of kNN.
    threads : int
        Threads of each method.
    """

    folds: int = 10
    seed: int = 0
    draws: int = 20
    largest_dim: int = 2**14
    largest_k: int = 64
    threads: int = 1


def row_of(
    method: str,
    scores: Iterable[SupportsFloat],
    seconds: float,
    detail: Row,
    **more: Any,
) -> Row:
    """The row of a method: its balanced accuracy in each fold, seconds in all, and what
    was chosen.
    """
    return {
        "method": method,
        "scores": [*map(float, scores)],
        "seconds": seconds,
        "detail": json.dumps(detail),
    } | more


def balanced_accuracy(y: Array, predicted: Array, n_classes: int) -> Array:
    """Mean recall of the classes that occur in y.

    Parameters
    ----------
    y : (n,) int array
    predicted : (n,) or (n, K) int array
        Predictions, or those of K methods.
    n_classes : int

    Returns
    -------
    float64 scalar or (K,) array
    """
    hits = (y == predicted.T).T.astype(np.float64)
    counts = np.bincount(y, minlength=n_classes)
    one_hot = (y == np.flatnonzero(counts)[:, None]).astype(np.float64)
    recalls: Array = (one_hot @ hits).T / counts[counts > 0]
    mean: Array = recalls.mean(axis=-1)
    return mean


def figures(p: Array, y: Array) -> Row:
    """Figures of probabilities, (n, L), for class indices, (n,).

    All are means over the classes that occur, of which there are two at least; AUROC is
    of each against the rest.
    """
    from sklearn.metrics import log_loss, roc_auc_score

    n_classes = p.shape[1]
    weights = 1 / np.bincount(y)[y]
    loss = log_loss(y, p, labels=range(n_classes), sample_weight=weights)
    aurocs = [roc_auc_score(y == label, p[:, label]) for label in np.unique(y)]
    return {
        "balanced accuracy": float(balanced_accuracy(y, p.argmax(axis=1), n_classes)),
        "AUROC": float(np.mean(aurocs)),
        "log-loss": loss,
    }


def trained(
    method: str,
    data: DataSet,
    make: Callable[[Array], Any],
    note: Callable[[Any], Any] = lambda fitted: None,
) -> Row:
    """The row of a classifier that is trained and timed in each fold.

    Parameters
    ----------
    method : str
    data : DataSet
    make : callable
        Returns an untrained classifier, given the classes of the training samples.
    note : callable
        Part of a fitted classifier that goes into the details.
    """
    begin = time.perf_counter()
    few = np.concatenate(
        [np.flatnonzero(data.y == label)[:8] for label in range(data.n_classes)]
    )
    # compiles what the first fold would count
    make(data.y[few]).fit(data.X[few], data.y[few]).predict(data.X[few])
    scores = []
    times = []
    notes = []
    for train, test in data.splits:
        known = data.X[train]
        labels = data.y[train]
        points = data.X[test]
        ticks = [time.perf_counter()]
        classifier = make(labels).fit(known, labels)
        ticks.append(time.perf_counter())
        predicted = classifier.predict(points)
        times.append(np.diff([*ticks, time.perf_counter()]).tolist())
        scores.append(balanced_accuracy(data.y[test], predicted, data.n_classes))
        notes.append(note(classifier))
    fit, predict = map(list, zip(*times, strict=True))
    if any(notes):
        detail = {"folds": notes}
    else:
        detail = {}
    return row_of(
        method, scores, time.perf_counter() - begin, detail, fit=fit, predict=predict
    )


# ---- nearest neighbours


def unit_rows(X: Array) -> Array:
    """Rows scaled to length 1; rows of zeros stay."""
    X = X.astype(np.float64)
    length = np.sqrt((X**2).sum(axis=1, keepdims=True))
    scaled: Array = X / np.where(length > 0, length, 1.0)
    return scaled


def standardised(X: Array, train: Array) -> Array:
    """Features less their mean, divided by their standard deviation, both of the rows
    `train`; constants become 0.
    """
    X = X.astype(np.float64)
    deviation = X[train].std(axis=0)
    scaled: Array = (X - X[train].mean(axis=0)) / np.where(
        deviation > 0, deviation, 1.0
    )
    return scaled


def neighbour_labels(train: Array, y: Array, points: Array | None, k: int) -> Array:
    """(p, k) labels of the nearest training samples, nearest first; without points, of
    each training sample's own.

    Of equally far ones among them the first in `train` comes first: squared distances
    are rounded to 2**-40 of the largest squared length, so that they tie whatever the
    order in which a matrix product adds.
    """
    from sklearn.neighbors import NearestNeighbors

    distances, nearest = (
        NearestNeighbors(n_neighbors=k, algorithm="brute").fit(train).kneighbors(points)
    )
    grain = 2.0**-39 * float((train**2).sum(axis=1).max()) or 1.0
    order = np.lexsort((nearest, np.rint(distances**2 / grain)))
    labels: Array = y[np.take_along_axis(nearest, order, axis=1)]
    return labels


def knn_predictions(labels: Array, n_classes: int) -> Array:
    """Predictions of kNN for every k: the most frequent label of the first k
    neighbours, the lowest of those that tie.

    Parameters
    ----------
    labels : (p, K) int array
        Labels of the neighbours, nearest first.
    n_classes : int

    Returns
    -------
    (p, K) int64 array
        Column k - 1 holds the predictions for k.
    """
    predicted = np.empty(labels.shape, np.int64)
    votes = np.zeros((len(labels), n_classes), np.int64)
    for column in range(labels.shape[1]):
        votes[np.arange(len(labels)), labels[:, column]] += 1
        predicted[:, column] = votes.argmax(axis=1)
    return predicted


def knn_rows(
    data: DataSet, name: str, scale: Callable[[Array, Array], Array], largest_k: int
) -> dict[str, Row]:
    """Rows of kNN on scaled samples by what is chosen: tuned, nested, and with k = 1.

    In leave-one-out, by which the nested k is chosen, the sample left out takes part in
    the scaling. The nested row has the leave-one-out accuracy of each choice as
    ``inside``.

    Parameters
    ----------
    data : DataSet
    name : str
        Of the scaling.
    scale : callable
        Returns the scaled samples, given all samples and the indices of those to learn
        from.
    largest_k : int
        k is less where training folds are smaller.
    """
    begin = time.perf_counter()
    L = data.n_classes
    k = max(1, min(largest_k, min(n for n, _ in data.sizes) - 1))
    tuned = []
    inside = []
    times = []
    for train, test in data.splits:
        ticks = [time.perf_counter()]
        points = scale(data.X, train)
        y = data.y[train]
        ticks.append(time.perf_counter())
        left_out = knn_predictions(neighbour_labels(points[train], y, None, k), L)
        inside.append(balanced_accuracy(y, left_out, L))
        ticks.append(time.perf_counter())
        labels = neighbour_labels(points[train], y, points[test], k)
        tuned.append(balanced_accuracy(data.y[test], knn_predictions(labels, L), L))
        times.append(np.diff([*ticks, time.perf_counter()]))
    seconds = time.perf_counter() - begin
    scaling, choosing, predicting = np.transpose(times)
    both = {"fit": scaling.tolist(), "predict": predicting.tolist()}

    def best(method: str, scores: Any) -> Row:
        place = int(np.mean(scores, axis=0).argmax())
        return row_of(
            method, np.array(scores)[:, place], seconds, {"k": place + 1}, **both
        )

    chosen = np.argmax(inside, axis=1)
    scores = np.array(tuned)[range(len(chosen)), chosen]
    nested = row_of(
        f"kNN {name}, nested", scores, seconds, {"k": (chosen + 1).tolist()}, **both
    )
    nested |= {
        "fit": (scaling + choosing).tolist(),
        "inside": np.max(inside, axis=1).tolist(),
    }
    return {
        "tuned": best(f"kNN {name}", tuned),
        "nested": nested,
        "single": best(f"1-NN {name}", np.array(tuned)[:, :1]),
    }


def knn(data: DataSet, settings: Settings) -> list[Row]:
    """KNN and 1-NN on rows of unit length and on standardised columns, and kNN with the
    better of these.
    """
    scalings = {"L2": lambda X, train: unit_rows(X), "standardised": standardised}
    rows = [
        knn_rows(data, name, scale, settings.largest_k)
        for name, scale in scalings.items()
    ]
    tuned, nested, single = (
        [row[kind] for row in rows] for kind in ("tuned", "nested", "single")
    )
    which = np.argmax([row["inside"] for row in nested], axis=0)
    chosen = {
        key: [nested[i][key][fold] for fold, i in enumerate(which)]
        for key in ("scores", "predict")
    }
    chosen |= {"fit": np.sum([row["fit"] for row in nested], axis=0).tolist()}
    seconds = sum(row["seconds"] for row in tuned)
    detail = {"scaling": [[*scalings][i] for i in which]}
    honest = row_of(KNN_NESTED, (), seconds, detail) | chosen
    return [
        _better(KNN, tuned),
        *tuned,
        honest,
        *nested,
        _better("1-NN", single),
        *single,
    ]


def _better(name: str, rows: Sequence[Row]) -> Row:
    better = max(rows, key=lambda row: float(np.mean(row["scores"])))
    detail = json.dumps({"is": better["method"]} | json.loads(better["detail"]))
    return better | {
        "method": name,
        "seconds": sum(row["seconds"] for row in rows),
        "detail": detail,
    }


def knn_as_is(data: DataSet, settings: Settings) -> list[Row]:
    """KNN and 1-NN on samples as they are."""
    rows = knn_rows(
        data, "as is", lambda X, train: X.astype(np.float64), settings.largest_k
    )
    return [rows["tuned"], rows["single"]]


# ---- SBFC, and models that are trained by gradients


def sbfc_sizes(n_features: int, n_sizes: int, largest: int) -> list[int]:
    """Hash sizes to try: half of them up to d, half beyond, up to 2048 d or `largest`,
    evenly in the logarithm.
    """
    top = max(min(2048 * n_features, largest), n_features)
    low = np.geomspace(max(1.0, n_features / 20), n_features, max(n_sizes // 2, 1))
    high = np.geomspace(n_features, top, n_sizes - len(low) + 1)[1:]
    return sorted({round(size) for size in [*low, *high]})


def sbfc_predictions(
    data: DataSet, planes: Array, sizes: Sequence[int], seed: int = 0
) -> Array:
    """SimHash Bloom filter classifier (SBFC), cross-validated, for several sizes of the
    hash at once.

    SimHash (Charikar 2002): bit i of a sample is 1 if it lies on the positive side of
    random plane i, so about half of the bits are ones. The filter of a class holds the
    bits that any of its training samples has. A sample goes to the class whose filter
    lacks the fewest of its bits; ties are broken at random, as in the paper's code.

    Parameters
    ----------
    data : DataSet
    planes : (d, m) array
        Normals of the planes.
    sizes : sequence of K int, ascending, at most m
        A hash of size k uses the first k planes.
    seed : int
        Seed of the random choice between ties.

    Returns
    -------
    (n, K) int64 array
        Each sample as predicted from the other folds.
    """
    # planes go through zero: lengths do not matter, except to float32
    points = unit_rows(data.X).astype(np.float32)
    one_hot = (data.y[:, None] == np.arange(data.n_classes)).astype(np.float32)
    held_out = [test for _, test in data.splits]
    # bits of each sample that the filter of each class lacks
    missing = np.zeros(one_hot.shape)
    predicted = np.empty((len(data.y), len(sizes)), np.int64)
    generator = np.random.default_rng(seed)
    start = 0
    for column, size in enumerate(sizes):
        for first in range(start, size, 1024):
            bits = (
                points @ planes[:, first : min(first + 1024, size)].astype(np.float32)
                > 0
            ).astype(np.float32)
            counts = one_hot.T @ bits  # integers, exact in float32 up to 2**24 samples
            for test in held_out:
                lacks = counts - one_hot[test].T @ bits[test] < 0.5
                missing[test] += bits[test] @ lacks.T.astype(np.float32)
        start = size
        predicted[:, column] = (missing + 0.5 * generator.random(missing.shape)).argmin(
            axis=1
        )
    return predicted


def sbfc(data: DataSet, settings: Settings) -> list[Row]:
    """SBFC, tuned over its dimension."""
    start = time.perf_counter()
    d = data.X.shape[1]
    sizes = sbfc_sizes(d, settings.draws, settings.largest_dim)
    planes = np.random.default_rng([settings.seed, 3]).standard_normal(
        (d, max(sizes)), np.float32
    )
    predicted = sbfc_predictions(data, planes, sizes, settings.seed)
    scores = np.array(
        [
            balanced_accuracy(data.y[test], predicted[test], data.n_classes)
            for _, test in data.splits
        ]
    )
    best = int(scores.mean(axis=0).argmax())
    return [
        row_of(
            "SBFC",
            scores[:, best],
            time.perf_counter() - start,
            {"m": sizes[best], "of": len(sizes)},
        )
    ]


GRIDS: dict[str, list[Row]] = {
    "LR": [
        {"C": C, "class_weight": weight}
        for C in (0.01, 0.1, 1.0, 10.0)
        for weight in (None, "balanced")
    ],
    "MLP": [
        {"hidden_layer_sizes": (64,), "batch_size": batch, "learning_rate_init": rate}
        for batch in (8, 32, 128)
        for rate in (0.001, 0.01)
    ],
}


def one_epoch(data: DataSet, settings: Settings, kind: str) -> list[Row]:
    """Logistic regression by SAGA or a perceptron by Adam, which see each sample once,
    tuned over a small grid.
    """
    start = time.perf_counter()
    grid = GRIDS[kind]
    scores = np.empty((len(grid), len(data.sizes)))
    for number, (train, test) in enumerate(data.splits):
        X = standardised(data.X, train)
        for i, parameters in enumerate(grid):
            model = once_trained(
                kind, parameters, X[train], data.y[train], settings.seed
            )
            scores[i, number] = balanced_accuracy(
                data.y[test], model.predict(X[test]), data.n_classes
            )
    best = int(scores.mean(axis=1).argmax())
    detail = grid[best] | {"of": len(grid)}
    return [
        row_of(f"{kind}, one epoch", scores[best], time.perf_counter() - start, detail)
    ]


def once_trained(
    kind: str, parameters: Mapping[str, Any], X: Array, y: Array, seed: int
) -> Any:
    """A model of scikit-learn's, "LR" or "MLP", trained by gradients on each sample
    once.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    if kind == "LR":
        model = LogisticRegression(
            solver="saga", max_iter=1, random_state=seed, **parameters
        )
    else:
        chosen = dict(parameters) | {
            "batch_size": min(parameters["batch_size"], len(X))
        }
        model = MLPClassifier(max_iter=1, random_state=seed, **chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one epoch is intended
        return model.fit(X, y)


# ---- trees and logistic regression, centralised


def centralised(kind: str, y: Array, seed: int, threads: int = 1) -> Any:
    """An untrained classifier of scikit-learn's, not tuned, with balanced class
    weights.

    Parameters
    ----------
    kind : {"forest", "boosting", "logistic"}
        200 trees; histograms; or logistic regression on standardised columns, trained
        to the end.
    y : (n,) array
        Classes of the training samples.
    seed : int
    threads : int
        Of the forest; the others take as many as there are.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    if kind == "forest":
        return RandomForestClassifier(
            200, class_weight="balanced", random_state=seed, n_jobs=threads
        )
    if kind == "boosting":
        # To stop early it holds out a stratified part, which needs two samples of each
        # class.
        early: bool | str = False
        if np.unique(y, return_counts=True)[1].min() > 1:
            early = "auto"
        return HistGradientBoostingClassifier(
            class_weight="balanced", random_state=seed, early_stopping=early
        )
    # in float32 the solver may not converge
    wide = FunctionTransformer(np.asarray, kw_args={"dtype": np.float64})
    return make_pipeline(
        wide,
        StandardScaler(),
        LogisticRegression(class_weight="balanced", max_iter=10_000),
    )


def pooled(data: DataSet, settings: Settings, kind: str) -> list[Row]:
    """A classifier of `centralised`, with no tuning."""
    make = partial(centralised, kind, seed=settings.seed, threads=settings.threads)
    return [trained(CENTRALISED[kind], data, make)]
