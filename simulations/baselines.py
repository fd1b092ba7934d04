"""Baselines: FlyNN by SciPy and NumPy alone, torchhd, and the classifiers that the paper compares with.

- kNN and 1-NN for all k at once, by one matrix of distances;
- random forest, gradient boosting and logistic regression, centralised, with balanced class weights;
- SBFC, the paper's ablation of sparsity: a Bloom filter per class over SimHash;
- logistic regression and a multi-layer perceptron that see every training sample once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn import FlyHash

Array = npt.NDArray[Any]

BLOCK = 512  # samples whose distances are held at a time, at most
DISTANCES = 2**24  # distances that are held at a time


def lean_rows(n_features: int, hash_dim: int, row_nnz: int, seed: int = 0) -> Array:
    """(m, s) column indices, row by row with NumPy's `choice`, as a first implementation would draw them."""
    generator = np.random.default_rng(seed)
    return np.stack([generator.choice(n_features, row_nnz, replace=False) for _ in range(hash_dim)])


def lean_matrix(hasher: FlyHash) -> sp.csr_array:
    """The lifting matrix of an unsigned hash as CSR."""
    m, s = hasher.rows.shape
    ones = np.ones(m * s, np.float32)
    return sp.csr_array((ones, hasher.rows.ravel(), np.arange(0, m * s + 1, s)), shape=(m, hasher.n_features))


def lean_count(matrix: sp.csr_array, X: Array, y: Array, n_classes: int, hash_nnz: int, batch: int = 100) -> Array:
    """(L, m) counts: sparse product in batches, argpartition, bincount. No rule breaks ties."""
    m = matrix.shape[0]
    counts = np.zeros(n_classes * m, np.int64)
    for first in range(0, len(X), batch):
        sums = (matrix @ X[first : first + batch].T.astype(np.float32)).T
        active = np.argpartition(sums, m - hash_nnz, axis=1)[:, m - hash_nnz :]
        counts += np.bincount((active + y[first : first + batch, None] * m).ravel(), minlength=n_classes * m)
    return counts.reshape(n_classes, m)


def torchhd_count(n_features: int, hash_dim: int, n_classes: int, batch: int = 100) -> Callable[[Array, Array], Array]:
    """Training by torchhd: random projections in batches, their signs, and sums of these per class, on one thread.

    Returns
    -------
    callable
        ``count(X, y)`` returns the (L, m) float32 sums.

    Raises
    ------
    ImportError
        PyTorch or torchhd (the package torch-hd) is not installed.
    """
    torch, torchhd = import_module("torch"), import_module("torchhd")
    torch.set_num_threads(1)
    project = torchhd.embeddings.Projection(n_features, hash_dim)

    def count(X: Array, y: Array) -> Array:
        model = torchhd.models.Centroid(hash_dim, n_classes)
        points, labels = torch.from_numpy(X.astype(np.float32)), torch.from_numpy(y.astype(np.int64))
        for first in range(0, len(X), batch):
            part = slice(first, first + batch)
            model.add(torchhd.hard_quantize(project(points[part])), labels[part])
        sums: Array = model.weight.detach().numpy()
        return sums

    return count


def unit_rows(X: Array) -> Array:
    """Rows scaled to length 1; rows of zeros stay."""
    X = X.astype(np.float64)
    length = np.sqrt((X**2).sum(axis=1, keepdims=True))
    scaled: Array = X / np.where(length > 0, length, 1.0)
    return scaled


def standardised(X: Array, train: Array) -> Array:
    """Features less their mean, divided by their standard deviation, both of the rows `train`; constants become 0."""
    X = X.astype(np.float64)
    deviation = X[train].std(axis=0)
    scaled: Array = (X - X[train].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return scaled


def neighbours(train: Array, points: Array, k: int, own: Array | None = None) -> Array:
    """Indices of the k nearest training samples, nearest first; of equally far ones the first in `train` wins.

    Parameters
    ----------
    train : (n, d) float64 array
    points : (p, d) float64 array
    k : int
        At most n, less one if `own` is given.
    own : (p,) int array, optional
        Index of each sample among the training samples, where it is one and must not be its own neighbour; else -1.

    Returns
    -------
    (p, k) int64 array

    Notes
    -----
    Squared distances are rounded to 2**-40 of the largest |a|**2 + |b|**2, so that samples which are equally far tie
    whatever the order in which the matrix product adds.
    """
    if own is None:
        own = np.full(len(points), -1)
    nearest = np.empty((len(points), k), np.int64)
    squares = (train**2).sum(axis=1)
    grain = 2.0**-40 * (squares.max() + (points**2).sum(axis=1).max()) or 1.0
    step = max(1, min(BLOCK, DISTANCES // len(train)))
    for first in range(0, len(points), step):
        part = slice(first, first + step)
        block = points[part]
        distances = (block**2).sum(axis=1)[:, None] + squares - 2 * (block @ train.T)
        # The index in the last digits: no two are equal, and the first of equally far ones is the least.
        ranked = np.rint(distances / grain).astype(np.int64) * len(train) + np.arange(len(train))
        itself = np.flatnonzero(own[part] >= 0)
        ranked[itself, own[part][itself]] = np.iinfo(np.int64).max
        nearest[part] = np.sort(np.partition(ranked, k - 1, axis=1)[:, :k], axis=1) % len(train)
    return nearest


def knn_predictions(labels: Array, n_classes: int, class_sizes: Array | None = None) -> Array:
    """Predictions of kNN for every k: the most frequent label of the first k neighbours, the lowest of those that tie.

    Parameters
    ----------
    labels : (p, K) int array
        Labels of the neighbours, nearest first.
    n_classes : int
    class_sizes : (L,) int array, optional
        Training samples of each class: votes are then divided by them, which is to kNN what the balanced rule is to
        FlyNN.

    Returns
    -------
    (p, K) int64 array
        Column k - 1 holds the predictions for k.
    """
    predicted = np.empty(labels.shape, np.int64)
    weights = np.ones(n_classes) if class_sizes is None else 1.0 / np.maximum(class_sizes, 1)
    votes = np.zeros((len(labels), n_classes), np.int64)
    for column in range(labels.shape[1]):
        votes[np.arange(len(labels)), labels[:, column]] += 1
        predicted[:, column] = (votes * weights).argmax(axis=1)
    return predicted


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


class KNNScores(NamedTuple):
    """Balanced accuracies and seconds of cross-validated kNN."""

    tuned: Array
    """(folds, K): for every k from 1 to K."""
    balanced: Array
    """The same with votes divided by the sizes of the classes."""
    nested: list[float]
    """With k chosen by leave-one-out in each training fold, the smallest of equals."""
    nested_k: list[int]
    inside: list[float]
    """Leave-one-out accuracy of that choice."""
    scaling: list[float]
    """Seconds of the scaling, fold by fold."""
    choosing: list[float]
    """Seconds of the choice of k by leave-one-out."""
    predicting: list[float]
    """Seconds of the predictions for every k."""


def cross_validated_knn(
    X: Array, y: Array, fold: Array, scale: Callable[[Array, int, Array], Array], largest_k: int
) -> KNNScores:
    """KNN for k up to `largest_k`, less where training folds are smaller.

    Parameters
    ----------
    X : (n, d) array
    y : (n,) int array
    fold : (n,) int array
        The fold in which each sample is held out.
    scale : callable
        ``scale(X, number of the fold, indices of its training samples)`` returns the scaled samples. In leave-one-out
        the sample left out takes part in the scaling.
    largest_k : int
    """
    n_classes = int(y.max()) + 1
    k = max(1, min(largest_k, min(len(train) for train, _ in blocks_of(fold)) - 1))
    result = KNNScores(np.empty((0, k)), np.empty((0, k)), [], [], [], [], [], [])
    tuned, balanced = [], []
    for number, (train, test) in enumerate(blocks_of(fold)):
        ticks = [time.perf_counter()]
        points = scale(X, number, train)
        known = points[train]
        ticks.append(time.perf_counter())
        inside = y[train][neighbours(known, known, k, np.arange(len(train)))]
        left_out = balanced_accuracy(y[train], knn_predictions(inside, n_classes), n_classes)
        ticks.append(time.perf_counter())
        labels = y[train][neighbours(known, points[test], k)]
        predicted = knn_predictions(labels, n_classes)
        ticks.append(time.perf_counter())
        for seconds, mine in zip(np.diff(ticks), (result.scaling, result.choosing, result.predicting), strict=True):
            mine.append(float(seconds))
        by_size = knn_predictions(labels, n_classes, np.bincount(y[train], minlength=n_classes))
        balanced.append(balanced_accuracy(y[test], by_size, n_classes))
        scores = balanced_accuracy(y[test], predicted, n_classes)
        best = int(left_out.argmax())
        tuned.append(scores)
        result.nested.append(float(scores[best]))
        result.nested_k.append(best + 1)
        result.inside.append(float(left_out[best]))
    return result._replace(tuned=np.array(tuned), balanced=np.array(balanced))


def knn_probabilities(X: Array, y: Array, points: Array, n_classes: int, largest_k: int) -> Array:
    """(p, L) shares of the votes and of `a` more for all classes together; k and a by leave-one-out log-loss."""
    inside = y[neighbours(X, X, min(largest_k, len(X) - 1), np.arange(len(X)))]
    own = (inside == y[:, None]).cumsum(axis=1)
    losses = {
        (k, extra): -float(np.log((own[:, k - 1] + extra / n_classes) / (k + extra)).mean())
        for k in range(1, inside.shape[1] + 1)
        for extra in (0.1, 0.3, 1.0)
    }
    k, extra = min(losses, key=lambda choice: losses[choice])
    nearest = y[neighbours(X, points, k)]
    votes = (nearest[:, :, None] == np.arange(n_classes)).sum(axis=1)
    shares: Array = (votes + extra / n_classes) / (k + extra)
    return shares


def sbfc_sizes(n_features: int, n_sizes: int, largest: int) -> list[int]:
    """Hash sizes to try: half of them up to d, half beyond, up to 2048 d or `largest`, evenly in the logarithm."""
    top = max(min(2048 * n_features, largest), n_features)
    low = np.geomspace(max(1.0, n_features / 20), n_features, max(n_sizes // 2, 1))
    high = np.geomspace(n_features, top, n_sizes - len(low) + 1)[1:]
    return sorted({round(size) for size in [*low, *high]})


def sbfc_predictions(X: Array, y: Array, fold: Array, planes: Array, sizes: Sequence[int], seed: int = 0) -> Array:
    """SimHash Bloom filter classifier (SBFC), cross-validated, for several sizes of the hash at once.

    SimHash (Charikar 2002): bit i of a sample is 1 if it lies on the positive side of random plane i, so about half of
    the bits are ones. The filter of a class holds the bits that any of its training samples has. A sample goes to the
    class whose filter lacks the fewest of its bits; ties are broken at random, as in the paper's code.

    Parameters
    ----------
    X : (n, d) array
    y : (n,) int array
    fold : (n,) int array
        The fold in which each sample is held out.
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
    points = unit_rows(X).astype(np.float32)  # planes go through zero: lengths do not matter, except to float32
    one_hot = (y[:, None] == np.arange(y.max() + 1)).astype(np.float32)
    held_out = [np.flatnonzero(fold == number) for number in np.unique(fold)]
    missing = np.zeros(one_hot.shape)  # bits of each sample that the filter of each class lacks
    predicted = np.empty((len(X), len(sizes)), np.int64)
    generator = np.random.default_rng(seed)
    start = 0
    for column, size in enumerate(sizes):
        for first in range(start, size, 1024):
            bits = (points @ planes[:, first : min(first + 1024, size)].astype(np.float32) > 0).astype(np.float32)
            counts = one_hot.T @ bits  # integers, exact in float32 up to 2**24 samples
            for test in held_out:
                lacks = counts - one_hot[test].T @ bits[test] < 0.5
                missing[test] += bits[test] @ lacks.T.astype(np.float32)
        start = size
        predicted[:, column] = (missing + 0.5 * generator.random(missing.shape)).argmin(axis=1)
    return predicted


LR_GRID: tuple[dict[str, Any], ...] = tuple(
    {"C": C, "class_weight": weight} for C in (0.01, 0.1, 1.0, 10.0) for weight in (None, "balanced")
)
MLP_GRID: tuple[dict[str, Any], ...] = tuple(
    {"hidden_layer_sizes": (64,), "batch_size": batch, "learning_rate_init": rate}
    for batch in (8, 32, 128)
    for rate in (0.001, 0.01)
)


def one_epoch(kind: str, parameters: Mapping[str, Any], X: Array, y: Array, points: Array, seed: int) -> Array:
    """Predictions of a model trained by gradients that sees each training sample once.

    Parameters
    ----------
    kind : {"LR", "MLP"}
        Logistic regression by SAGA, or a perceptron by Adam.
    parameters : mapping
        Parameters of scikit-learn's class.
    X, y
        Training samples, standardised, and their classes.
    points : (p, d) array
    seed : int

    Returns
    -------
    (p,) array
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    if kind == "LR":
        model = LogisticRegression(solver="saga", max_iter=1, random_state=seed, **parameters)
    else:
        chosen = dict(parameters) | {"batch_size": min(parameters["batch_size"], len(X))}
        model = MLPClassifier(max_iter=1, random_state=seed, **chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one epoch is intended
        model.fit(X, y)
    predicted: Array = model.predict(points)
    return predicted


def centralised(kind: str, y: Array, seed: int, threads: int = 1) -> Any:
    """An untrained classifier of scikit-learn's, not tuned, with balanced class weights.

    Parameters
    ----------
    kind : {"forest", "boosting", "logistic"}
        200 trees; histograms; or logistic regression on standardised columns, trained to the end.
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
        return RandomForestClassifier(200, class_weight="balanced", random_state=seed, n_jobs=threads)
    if kind == "boosting":
        # To stop early it holds out a stratified part, which needs two samples of each class.
        early = "auto" if np.unique(y, return_counts=True)[1].min() > 1 else False
        return HistGradientBoostingClassifier(class_weight="balanced", random_state=seed, early_stopping=early)
    wide = FunctionTransformer(np.asarray, kw_args={"dtype": np.float64})  # in float32 the solver may not converge
    return make_pipeline(wide, StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=10_000))


class Trained(NamedTuple):
    """Results of one classifier, fold by fold."""

    scores: list[float]
    """Balanced accuracies."""
    fit: list[float]
    """Seconds."""
    predict: list[float]
    """Seconds."""
    notes: list[Any]
    """Results of `note` for the fitted classifiers."""


def cross_validated_classifier(
    X: Array, y: Array, fold: Array, make: Callable[[Array], Any], note: Callable[[Any], Any] = lambda fitted: None
) -> Trained:
    """Train and time a classifier in each fold.

    Parameters
    ----------
    X : (n, d) array
    y : (n,) int array
        Class numbers, 0 to L - 1.
    fold : (n,) int array
        As for `blocks_of`.
    make : callable
        Returns an untrained classifier, given the classes of the training samples.
    note : callable
        What to keep of a fitted classifier.
    """
    n_classes = int(y.max()) + 1
    few = np.concatenate([np.flatnonzero(y == label)[:8] for label in range(n_classes)])
    make(y[few]).fit(X[few], y[few]).predict(X[few])  # compiles and imports what would be counted for the first fold
    result = Trained([], [], [], [])
    for train, test in blocks_of(fold):
        known, labels, points = X[train], y[train], X[test]
        start = time.perf_counter()
        classifier = make(labels).fit(known, labels)
        fitted = time.perf_counter()
        predicted = classifier.predict(points)
        result.predict.append(time.perf_counter() - fitted)
        result.fit.append(fitted - start)
        result.scores.append(float(balanced_accuracy(y[test], predicted, n_classes)))
        result.notes.append(note(classifier))
    return result


def blocks_of(fold: Array) -> Iterator[tuple[Array, Array]]:
    """Training and held-out indices, fold by fold; samples of fold -1 are never held out."""
    for number in np.unique(fold[fold >= 0]):
        yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)
