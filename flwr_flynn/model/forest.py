"""Forest of a model: trees that are grown level by level, all at once, from sums.

A tree adds to the log odds of the classes what the rest of the model leaves unexplained.
It is grown on gradients of the log-loss, as in boosting, but all trees at the same time:
each on a bag of its own, and a sample is judged by the trees that it is not in the bag
of. So the scores of training samples are those of samples that were not seen, and no
sample is left out for a validation.

What follows from samples are sums of small integers, see `ForestSums`. A sample's part
in them follows from its content, its class and the forest so far: bags, the rounding of
gradients and the candidates of a split are by hashes. So sums add, and a federation
grows the forest of the pooled samples.

The bins of a column are its ranks among the 32 edges of a `Basis`, with one more for
gaps. The server keeps a `Growth`, which has all that the next sums depend on: parties
keep nothing.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn._types import Array, Floats, Integers, Matrix
from flwr_flynn.errors import DataError
from flwr_flynn._validation import n_threads
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.rank_codes import N_EDGES, ranks_of
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.counts import ClassCounts, Tables
from flwr_flynn.model.portable import INCREMENT, content_words, exp, log, mix
from flwr_flynn.model.prior import ClassWeight, counted_prior, weighted
from flwr_flynn.model.scoring import LOSS_UNIT, MAX_LOSS, Scores

MOST_TREES = 1000
N_BINS = 2 * N_EDGES + 2
"""Bins of a column: gaps, and the ranks of numbers."""

LEAF = -1
OPEN = -2
"""In the place of the column of a node: a leaf, and one that may be split yet."""

VALUE_UNIT = 2.0**-4
LARGEST_VALUE = 127  # of a leaf, in units

LEVELS = 12  # of a tree, at most
REFITS = 4  # further steps of the values of leaves
_PATIENCE = 3  # levels without a gain after which a forest is complete
N_CANDIDATES = 16  # of a split
_LEAST_SAMPLES = 2  # in the bag, on each side of a split
_GREEDY = 0.7  # share of candidates whose column is drawn by its gains so far
_BAG = 0.632  # share of the samples in a bag
GRADIENT_UNIT = 2.0**-4
_LARGEST_WEIGHT = 64.0  # of a class in gradients
LARGEST_GRADIENT = int(_LARGEST_WEIGHT / GRADIENT_UNIT) + 1
LARGEST_LOSS = int(_LARGEST_WEIGHT * MAX_LOSS / LOSS_UNIT) + 1  # in units
N_SKETCHES = 2  # of the gradients of more than two classes
_STEP = 0.35  # of Newton's method, of each level
_LARGEST_STEP = 1.5  # of the value of a leaf
# Values of all leaves, at most: so large is what travels at each level.
_MOST_VALUES = 2**18
LARGEST_GAINS = 2**52  # of a column, so that all of them fit int64
_LOWEST_SCORE = -12.0  # beside the highest of a sample

_BATCH = 2**12  # samples at a time


def n_values(n_classes: int) -> int:
    """Numbers of a leaf: one for each class, and one for two classes together."""
    if n_classes == 2:
        return 1
    return n_classes


def n_sketches(n_classes: int) -> int:
    """Sums of gradients by which a split is chosen."""
    return min(n_values(n_classes), N_SKETCHES)


def most_nodes(n_trees: int, n_classes: int) -> int:
    """Nodes of a forest, at most."""
    return 2 * max(_MOST_VALUES // n_values(n_classes), n_trees)


def memory_of_forest(n_trees: int, n_classes: int) -> int:
    """Estimate the memory of a forest and of the sums for a level of it, in bytes."""
    of_node = 32 + 8 * N_CANDIDATES * n_sketches(n_classes) + 24 * n_values(n_classes)
    return most_nodes(n_trees, n_classes) * (of_node + 16 * N_CANDIDATES)


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees over the columns of a basis. Immutable.

    Nodes are numbered level by level: first the roots, one of each tree, and then the
    two children of each node that is split, in the order of these.

    Parameters
    ----------
    basis : Basis
    n_classes : int
    n_trees : int
        From 1 to 1000.
    columns : (N,) array-like of int
        Index, among the columns of the basis, of the one that splits a node; `LEAF` or
        `OPEN` for nodes that are not split.
    cuts : (N,) array-like of int
        Samples in bins up to this one go to the first child.
    values : (N, w) array-like of int
        Log odds of each class in units of 1/16, from -127 to 127; of two classes that
        of the second alone, and of the first its negative.

    Raises
    ------
    DataError
        Arrays that are no forest.

    Examples
    --------
    >>> basis = Basis(1, [0], [10.0], [2.0], [[10.0] * 32], [False])
    >>> forest = Forest(basis, 2, 1, [0, LEAF, LEAF], [1, 0, 0], [[0], [-16], [32]])
    >>> forest.scores(np.array([[9.0], [11.0]]))
    array([[ 1., -1.],
           [-2.,  2.]])
    """

    basis: Basis
    n_classes: int
    n_trees: int
    columns: Integers
    cuts: Integers
    values: Integers

    def __post_init__(self) -> None:
        columns = _checked("columns", self.columns, OPEN, len(self.basis.columns) - 1)
        n_nodes = len(columns)
        cuts = _checked("cuts", self.cuts, 0, N_BINS - 1)
        values = _checked("values", self.values, -LARGEST_VALUE, LARGEST_VALUE)
        is_split = columns >= 0
        n_splits = int(is_split.sum())
        if not 1 <= self.n_trees <= MOST_TREES:
            raise DataError("trees", f"1 to {MOST_TREES}", self.n_trees)
        most = most_nodes(self.n_trees, self.n_classes)
        if n_nodes > most:
            raise DataError("forest", f"at most {most} nodes", n_nodes)
        if n_nodes != self.n_trees + 2 * n_splits or len(cuts) != n_nodes:
            expected = f"{self.n_trees} nodes, and two for each of {n_splits} splits"
            raise DataError("forest", expected, n_nodes)
        if values.shape != (n_nodes, n_values(self.n_classes)):
            raise DataError("values", f"numbers of {n_nodes} nodes", values.shape)
        object.__setattr__(self, "columns", columns.astype(np.int16))
        object.__setattr__(self, "cuts", cuts.astype(np.uint8))
        object.__setattr__(self, "values", values.astype(np.int8))
        self._check_levels()
        for array in (self.columns, self.cuts, self.values):
            array.flags.writeable = False

    def _check_levels(self) -> None:
        """Refuse nodes that are not level by level, or on more levels than trees have."""
        start = 0
        end = self.n_trees
        for _ in range(LEVELS):
            n_splits = int((self.columns[start:end] >= 0).sum())
            start = end
            end += 2 * n_splits
        n_nodes = len(self.columns)
        if end != n_nodes or (self.columns[start:end] >= 0).any():
            raise DataError("forest", f"nodes of at most {LEVELS} splits", n_nodes)

    @classmethod
    def planted(cls, basis: Basis, n_classes: int, n_trees: int) -> Forest:
        """Trees of one open node each, which add nothing."""
        zeros = np.zeros((n_trees, n_values(n_classes)), np.int8)
        columns = np.full(n_trees, OPEN)
        return cls(basis, n_classes, n_trees, columns, zeros[:, 0] * 0, zeros)

    @cached_property
    def children(self) -> Integers:
        """First child of each node, (N,); 0 for a node that is not split."""
        is_split = self.columns >= 0
        children: Integers = np.zeros(len(self.columns), np.int32)
        children[is_split] = self.n_trees + 2 * np.arange(is_split.sum())
        return children

    def pruned(self, values: Integers) -> Forest:
        """The forest of the first nodes, as many as have these values, (M, w)."""
        n_nodes = len(values)
        children = self.children[:n_nodes]
        columns = np.where(children < n_nodes, self.columns[:n_nodes], LEAF)
        columns[children == 0] = LEAF
        return replace(self, columns=columns, cuts=self.cuts[:n_nodes], values=values)

    def sha256(self) -> str:
        """SHA-256 of the trees, the same for equal ones everywhere."""
        facts = [self.basis.to_dict(), self.n_classes, self.n_trees]
        sha256 = hashlib.sha256(b"flynn forest 1 " + json.dumps(facts).encode())
        for array in (self.columns, self.cuts, self.values):
            sha256.update(np.ascontiguousarray(array, "<i8").data)
        return sha256.hexdigest()

    @property
    def leaves(self) -> Integers:
        """Indices of the nodes that are not split."""
        return np.flatnonzero(self.columns < 0)

    @property
    def open_nodes(self) -> Integers:
        """Indices of the nodes that may be split yet."""
        return np.flatnonzero(self.columns == OPEN)

    def bins(self, X: Matrix) -> npt.NDArray[np.uint8]:
        """Bins of the columns of samples, (n, k), of samples, (n, d)."""
        values = self.basis.values(X)
        bins = ranks_of(values, np.array(self.basis.edges)) + 1
        bins[np.isnan(values)] = 0
        return bins.astype(np.uint8)

    def leaves_of(self, bins: Array) -> npt.NDArray[np.int32]:
        """Leaf of each sample, with these bins, in each tree, (T, n)."""
        nodes = np.empty((self.n_trees, len(bins)), np.int32)
        _walk(bins, self.children, self.columns, self.cuts, nodes)
        return nodes

    def scores(self, X: Matrix) -> Scores:
        """Log odds that the forest adds, (n, L), to samples, (n, d): the mean of the
        trees.
        """
        scores = np.zeros((X.shape[0], self.n_classes))
        for rows in batches(len(scores), _BATCH):
            sums = np.zeros((len(scores[rows]), self.values.shape[1]), np.int64)
            _sum(self.bins(X[rows]), self.children, *self._arrays, self.n_trees, sums)
            scores[rows] = self._spread(sums * (VALUE_UNIT / self.n_trees))
        return scores

    def unseen_scores(self, X: Matrix) -> Scores:
        """The same of training samples, (n, L), by the trees that have not seen them."""
        leaves = self.leaves_of(self.bins(X))
        return self.unseen(leaves, content_words(X))

    @property
    def _arrays(self) -> tuple[Array, Array, Array]:
        return self.columns, self.cuts, self.values

    def unseen(self, leaves: Array, words: Array) -> Scores:
        """Scores of samples with these leaves and contents by the trees that have not
        seen them.
        """
        means = np.zeros((len(words), self.values.shape[1]))
        _mean_unseen(leaves, words, self.values, means)
        return self._spread(means)

    def _spread(self, means: Floats) -> Scores:
        """Scores of all classes, (n, L)."""
        if self.n_classes == 2:
            return np.concatenate([-means, means], axis=1)
        return means


class Candidates(NamedTuple):
    """Candidates of the splits of open nodes, (o, K): column or `LEAF`, and cut."""

    columns: Integers
    cuts: Integers


class ForestSums(Tables):
    """Sums over samples for one level of a forest.

    `tables` are

    - log-loss and weight of the samples, (1, 2), in units of `LOSS_UNIT`, by the trees
      that have not seen them;
    - samples in the bag, (o, 1 + K): of each open node, and at or below the cut of each
      candidate;
    - sketches of the gradients of the latter, (o, K * q);
    - gradients and curvatures of each leaf, (l, w) each, in units of `GRADIENT_UNIT`.
    """

    @classmethod
    def zeros(cls, forest: Forest) -> ForestSums:
        """Sums of no samples."""
        shapes = sum_shapes(forest)
        return cls(tuple(np.zeros(shape, np.int64) for shape in shapes))


def sum_shapes(forest: Forest) -> list[tuple[int, int]]:
    """Shapes of the tables of sums."""
    n_open = len(forest.open_nodes)
    of_leaves = (len(forest.leaves), n_values(forest.n_classes))
    sketches = (n_open, N_CANDIDATES * n_sketches(forest.n_classes))
    return [(1, 2), (n_open, 1 + N_CANDIDATES), sketches, of_leaves, of_leaves]


@dataclass(frozen=True, eq=False)
class Growth:
    """A forest that grows: its levels so far, and the best of them.

    Parameters
    ----------
    forest : Forest
    seed : int
        Of bags and candidates.
    gains : (k,) array of int
        Gains of splits so far by column.
    level : int, default=0
        Number of sums that it has grown by.
    best : Forest, optional
        The one of least loss so far; None where that is the model without a forest.
    best_loss : float, default=inf
        Mean log-loss of it.
    best_level : int, default=0
    """

    forest: Forest
    seed: int
    gains: Integers
    level: int = 0
    best: Forest | None = None
    best_loss: float = float("inf")
    best_level: int = 0

    @classmethod
    def planted(cls, basis: Basis, n_classes: int, n_trees: int, seed: int) -> Growth:
        """The start of a forest."""
        gains = np.zeros(len(basis.columns), np.int64)
        return cls(Forest.planted(basis, n_classes, n_trees), seed, gains)

    def stopped(self) -> Growth:
        """The growth without further levels."""
        return replace(self, level=LEVELS + REFITS)

    @property
    def is_complete(self) -> bool:
        """True where further levels are not tried."""
        is_late = self.level - self.best_level > _PATIENCE
        return is_late or self.level >= LEVELS + REFITS

    @cached_property
    def candidates(self) -> Candidates:
        """Candidates of the splits of the open nodes."""
        forest = self.forest
        nodes = forest.open_nodes
        shape = (len(nodes), N_CANDIDATES)
        drawn = Candidates(np.full(shape, LEAF, np.int16), np.zeros(shape, np.int16))
        parents = np.full(len(forest.columns), -1, np.int32)
        is_split = forest.columns >= 0
        for side in range(2):
            parents[forest.children[is_split] + side] = np.flatnonzero(is_split)
        up_to = np.cumsum(self.gains)
        seed = np.uint64(self.seed)
        _draw(
            nodes,
            parents,
            forest.children,
            forest.columns,
            forest.cuts,
            up_to,
            seed,
            *drawn,
        )
        return drawn

    @cached_property
    def signs(self) -> Integers:
        """Signs of the classes in each sketch of their gradients, (w, q)."""
        width = n_values(self.forest.n_classes)
        if width == 1:
            return np.ones((1, 1), np.int64)
        word = np.uint64(self.seed) + INCREMENT * np.uint64(1 + self.level)
        words = [int(mix(word + np.uint64(1 + label))) for label in range(width)]
        bits = [[word >> q & 1 for q in range(N_SKETCHES)] for word in words]
        return 1 - 2 * np.array(bits)

    def grown(self, sums: ForestSums) -> Growth:
        """The forest a level on, by sums of all samples."""
        losses, counts, sketches, gradients, curvatures = sums.tables
        forest = self.forest
        grown = self
        loss, weight = losses[0].tolist()
        mean = loss / max(weight, 1)
        if mean < self.best_loss:
            best = None
            if self.level:
                best = forest.pruned(forest.values)
            grown = replace(self, best=best, best_loss=mean, best_level=self.level)
        values = forest.values.astype(np.int64)
        values[forest.leaves] = _stepped(
            values[forest.leaves], gradients, curvatures, forest.n_classes
        )
        columns = forest.columns.astype(np.int64)
        cuts = forest.cuts.astype(np.int64)
        nodes = forest.open_nodes
        columns[nodes] = LEAF
        chosen, at, gains = self._splits(counts, sketches, gradients)
        split = nodes[chosen]
        columns[split] = self.candidates.columns[chosen, at]
        cuts[split] = self.candidates.cuts[chosen, at]
        n_left = counts[chosen, 1 + at]
        sizes = np.stack([n_left, counts[chosen, 0] - n_left], axis=1).ravel()
        children = np.full(len(sizes), LEAF)
        if self.level + 1 < LEVELS:
            children[sizes >= 2 * _LEAST_SAMPLES] = OPEN
        inherited = np.repeat(values[split], 2, axis=0)
        values[split] = 0
        after = Forest(
            forest.basis,
            forest.n_classes,
            forest.n_trees,
            np.concatenate([columns, children]),
            np.concatenate([cuts, np.zeros(len(children), np.int64)]),
            np.concatenate([values, inherited]),
        )
        total = self.gains.copy()
        np.add.at(total, columns[split], np.rint(gains).astype(np.int64))
        return replace(grown, forest=after, gains=total, level=self.level + 1)

    def _splits(
        self, counts: Array, sketches: Array, gradients: Array
    ) -> tuple[Integers, Integers, Floats]:
        """Open nodes that are split, the candidates that split them, and their gains.

        Those of the largest gains where all would be more leaves than may travel.
        """
        forest = self.forest
        n_open = len(counts)
        of_open = forest.columns[forest.leaves] == OPEN
        whole = gradients[of_open] @ self.signs
        left = sketches.reshape(n_open, N_CANDIDATES, len(self.signs[0]))
        n_left = counts[:, 1:]
        n_right = counts[:, :1] - n_left
        gains = _evidence(left, n_left)
        gains += _evidence(whole[:, None] - left, n_right)
        gains -= _evidence(whole, counts[:, 0])[:, None]
        is_small = np.minimum(n_left, n_right) < _LEAST_SAMPLES
        gains[is_small | (self.candidates.columns < 0)] = 0.0
        at = gains.argmax(axis=1)
        best = gains[np.arange(n_open), at]
        room = _MOST_VALUES // n_values(forest.n_classes) - len(forest.leaves)
        order = np.argsort(-best, kind="stable")[: max(room, 0)]
        chosen = np.sort(order[best[order] > 0])
        return chosen, at[chosen], best[chosen]


def _evidence(sketches: Array, n: Array) -> Floats:
    """Squares of summed gradients, (..., q), beside the samples, (...)."""
    squares: Floats = np.square(sketches.astype(np.float64)).sum(axis=-1) / (n + 1.0)
    return squares


def _stepped(
    values: Integers, gradients: Array, curvatures: Array, n_classes: int
) -> Integers:
    """Values of leaves, (l, w), after a step of Newton's method on their log-loss."""
    steps = gradients * GRADIENT_UNIT / (curvatures * GRADIENT_UNIT + 1.0)
    steps = np.clip(_STEP * steps, -_LARGEST_STEP, _LARGEST_STEP)
    stepped = values + np.rint(steps / VALUE_UNIT).astype(np.int64)
    return np.clip(stepped, -LARGEST_VALUE, LARGEST_VALUE)


class ClassTerms(NamedTuple):
    """Log frequency of each class, (L,), and the weight of its samples in gradients."""

    prior: Floats
    weights: Floats

    @classmethod
    def of(cls, counts: ClassCounts, class_weight: ClassWeight) -> ClassTerms:
        """The terms of counts of all samples; weights have mean 1 over these."""
        prior = counted_prior(counts, class_weight)
        if prior is None:
            prior = np.zeros(counts.n_classes)
        sizes = np.maximum(counts.n_per_class, 1.0)
        weights = weighted(sizes, class_weight) / sizes
        mean = (weights * sizes).sum() / sizes.sum()
        return cls(prior, np.minimum(weights / mean, _LARGEST_WEIGHT))


def forest_sums(
    growth: Growth,
    X: Matrix,
    y: Integers,
    calibrated: Scores,
    terms: ClassTerms,
    n_jobs: int | None = None,
) -> ForestSums:
    """Sums for a level of samples, (n, d), with class indices, (n,).

    `calibrated`, (n, L), are their scores by the rest of the model, which has not seen
    them.
    """
    forest = growth.forest
    sums = ForestSums.zeros(forest)
    losses, *of_nodes = sums.tables
    n_nodes = len(forest.columns)
    slots = [_slots(forest.leaves, n_nodes), _slots(forest.open_nodes, n_nodes)]
    threads = n_threads(n_jobs)
    parts = [*batches(forest.n_trees, -(-forest.n_trees // threads))]
    firsts = [part.start for part in parts]
    lasts = [part.stop for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        for rows in batches(len(y), _BATCH):
            bins = forest.bins(X[rows])
            words = content_words(X[rows])
            leaves = forest.leaves_of(bins)
            scores = calibrated[rows] + terms.prior
            scores += forest.unseen(leaves, words)
            slopes = np.zeros((len(words), n_values(forest.n_classes)), np.int64)
            curves = np.zeros_like(slopes)
            true = y[rows]
            _differentiate(
                scores, true, terms.weights, words, growth.level, slopes, curves, losses
            )
            of_samples = (leaves, words, bins, slopes, curves, slopes @ growth.signs)
            add = partial(
                _add_sums, *of_samples, *slots, *growth.candidates, *of_nodes
            )
            # Each thread has trees, and so sums, of its own.
            list(pool.map(add, firsts, lasts))
    return sums


def _slots(nodes: Integers, n_nodes: int) -> Integers:
    """Place of each node, (N,), among some of them; -1 for the others."""
    slots: Integers = np.full(n_nodes, -1, np.int64)
    slots[nodes] = np.arange(len(nodes))
    return slots


def _checked(name: str, values: npt.ArrayLike, least: int, most: int) -> Integers:
    """Integers within bounds as int64."""
    array = np.asarray(values)
    expected = f"integers from {least} to {most}"
    if array.dtype.kind not in "iu":
        raise DataError(name, expected, array.dtype)
    if array.size and not least <= int(array.min()) <= int(array.max()) <= most:
        raise DataError(name, expected, "some outside")
    return array.astype(np.int64)


@njit(nogil=True, cache=True, inline="always")
def _share(word):  # type: ignore[no-untyped-def]
    """Return a word as a number from 0 to below 1."""
    return np.float64(word >> np.uint64(11)) * 2.0**-53


@njit(nogil=True, cache=True, inline="always")
def _bag_key(tree):  # type: ignore[no-untyped-def]
    """Return a word by which the bag of a tree is drawn."""
    return mix(np.uint64(tree + 1) * INCREMENT)


@njit(nogil=True, cache=True, inline="always")
def _is_in_bag(word, key):  # type: ignore[no-untyped-def]
    return _share(mix(word ^ key)) < _BAG


@njit(nogil=True, cache=True)
def _draw(  # type: ignore[no-untyped-def]
    nodes, parents, children, columns, cuts, up_to, seed, drawn, drawn_cuts
):
    """Draw the candidates of each node: a column, by its gains or any, and a cut within
    the bins that the splits above leave to the node.
    """
    n_columns = len(up_to)
    total = np.float64(up_to[-1])
    for o in range(len(nodes)):
        key = mix(np.uint64(seed) + np.uint64(nodes[o] + 1) * INCREMENT)
        for k in range(drawn.shape[1]):
            word = mix(key + np.uint64(k + 1) * INCREMENT)
            share = _share(word)
            column = min(int(share * n_columns), n_columns - 1)
            if total > 0 and _share(mix(word + np.uint64(1))) < _GREEDY:
                at = np.searchsorted(up_to, share * total, side="right")
                column = min(int(at), n_columns - 1)
            low = 0
            high = N_BINS - 1
            node = nodes[o]
            while parents[node] >= 0:
                above = parents[node]
                if columns[above] == column:
                    if node == children[above]:
                        high = min(high, int(cuts[above]))
                    else:
                        low = max(low, int(cuts[above]) + 1)
                node = above
            if low < high:
                cut = low + int(_share(mix(word + np.uint64(2))) * (high - low))
                drawn[o, k] = column
                drawn_cuts[o, k] = cut


@njit(nogil=True, cache=True)
def _walk(bins, children, columns, cuts, leaves):  # type: ignore[no-untyped-def]
    """Write the leaf of each sample in each tree, (T, n)."""
    for tree in range(leaves.shape[0]):
        for p in range(leaves.shape[1]):
            node = tree
            while children[node]:
                side = bins[p, columns[node]] > cuts[node]
                node = children[node] + side
            leaves[tree, p] = node


@njit(nogil=True, cache=True)
def _sum(bins, children, columns, cuts, values, n_trees, sums):  # type: ignore[no-untyped-def]
    """Add the values of the leaves of each sample, over all trees."""
    for p in range(len(bins)):
        for tree in range(n_trees):
            node = tree
            while children[node]:
                side = bins[p, columns[node]] > cuts[node]
                node = children[node] + side
            for label in range(values.shape[1]):
                sums[p, label] += values[node, label]


@njit(nogil=True, cache=True)
def _mean_unseen(leaves, words, values, means):  # type: ignore[no-untyped-def]
    """Write the mean value of the leaves of each sample, over the trees that it is not
    in the bag of; 0 without such trees.
    """
    width = means.shape[1]
    n_unseen = np.zeros(len(words), np.int64)
    for tree in range(leaves.shape[0]):
        key = _bag_key(tree)
        for p in range(len(words)):
            if not _is_in_bag(words[p], key):
                n_unseen[p] += 1
                for label in range(width):
                    means[p, label] += values[leaves[tree, p], label]
    for p in range(len(words)):
        for label in range(width):
            means[p, label] *= VALUE_UNIT / max(n_unseen[p], 1)


@njit(nogil=True, cache=True)
def _differentiate(  # type: ignore[no-untyped-def]
    scores, true, weights, words, level, gradients, curvatures, losses
):
    """Write gradients and curvatures of the log-loss of each sample by the scores of
    the classes, as integers, and add the losses.

    They are rounded up or down by the content of a sample, so that they are right in
    the mean.
    """
    n_classes = scores.shape[1]
    width = gradients.shape[1]
    shares = np.empty(n_classes)
    for p in range(len(scores)):
        weight = weights[true[p]]
        top = scores[p].max()
        total = 0.0
        for label in range(n_classes):
            shares[label] = exp(max(scores[p, label] - top, _LOWEST_SCORE))
            total += shares[label]
        own = max(scores[p, true[p]] - top, _LOWEST_SCORE)
        loss = min(log(total) - own, MAX_LOSS)
        losses[0, 0] += np.int64(np.rint(loss * weight / LOSS_UNIT))
        losses[0, 1] += np.int64(np.rint(weight / LOSS_UNIT))
        for at in range(width):
            label = n_classes - width + at
            share = shares[label] / total
            is_true = np.float64(label == true[p])
            key = mix(words[p] + np.uint64(level * n_classes + label + 1) * INCREMENT)
            scale = weight / GRADIENT_UNIT
            slope = scale * (is_true - share) + _share(key)
            gradients[p, at] = np.int64(np.floor(slope))
            curvature = scale * share * (1.0 - share) + _share(mix(key))
            curvatures[p, at] = np.int64(np.floor(curvature))


@njit(nogil=True, cache=True)
def _add_sums(  # type: ignore[no-untyped-def]
    leaves, words, bins, gradients, curvatures, sketches,
    slot_of_leaf, slot_of_open, columns, cuts,
    counts, left, summed_gradients, summed_curvatures, first, last
):
    """Add the samples in the bags of some trees to the sums of leaves and candidates."""
    n_sketches = sketches.shape[1]
    for tree in range(first, last):
        key = _bag_key(tree)
        for p in range(len(words)):
            if not _is_in_bag(words[p], key):
                continue
            node = leaves[tree, p]
            leaf = slot_of_leaf[node]
            for label in range(gradients.shape[1]):
                summed_gradients[leaf, label] += gradients[p, label]
                summed_curvatures[leaf, label] += curvatures[p, label]
            place = slot_of_open[node]
            if place < 0:
                continue
            counts[place, 0] += 1
            for k in range(columns.shape[1]):
                column = columns[place, k]
                if column >= 0 and bins[p, column] <= cuts[place, k]:
                    counts[place, 1 + k] += 1
                    for q in range(n_sketches):
                        left[place, k * n_sketches + q] += sketches[p, q]
