"""Forest of a model: trees that add to the log odds of the classes what the rest of the
model leaves unexplained.

Each tree has a bag of samples of its own, by the content of samples. The mean over the
trees that do not have a training sample in their bag is the score of a sample that
these did not see; gradients of other samples, which they saw, know a little of it. So no
sample is left out for a validation.

The bins of a column are its ranks among the 32 edges of a `Basis`, with one more for
gaps. `model.growth` has what trees grow from.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn._types import Array, Floats, Integers, Matrix
from flwr_flynn._validation import freeze, integers
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.rank_codes import N_EDGES, ranks_of
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.portable import INCREMENT, content_words, mix
from flwr_flynn.model.scoring import Scores

MOST_TREES = 1000
LEVELS = 12  # of splits of a tree, at most
N_BINS = 2 * N_EDGES + 2
"""Bins of a column: gaps, and the ranks of numbers."""

LEAF = -1
OPEN = -2
"""In the place of the column of a node: a leaf, and one that may be split yet."""

VALUE_UNIT = 2.0**-4
LARGEST_VALUE = 127  # of a leaf, in units
MOST_VALUES = 2**18
"""Values of all leaves, at most: so many travel at each level."""

BATCH = 2**12  # samples at a time
_BAG = 0.632  # share of the samples in a bag


def n_values(n_classes: int) -> int:
    """Numbers of a leaf: one for each class, and one for two classes together."""
    if n_classes == 2:
        return 1
    return n_classes


def most_nodes(n_trees: int, n_classes: int, n_examples: int | None = None) -> int:
    """Nodes of a forest, at most; of so many samples, if they are known."""
    most = max(MOST_VALUES // n_values(n_classes), n_trees)
    if n_examples:
        most = min(most, n_trees * n_examples)
    return 2 * most


def memory_of_forest(n_nodes: int, n_classes: int) -> int:
    """Estimate the memory of a forest and of the sums for a level of it, in bytes."""
    return n_nodes * (1024 + 32 * n_values(n_classes))


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
    columns: Array
    cuts: Array
    values: Array

    def __post_init__(self) -> None:
        last = len(self.basis.columns) - 1
        columns = integers("columns", self.columns, (None,), OPEN, last, DataError)
        n_nodes = len(columns)
        cuts = integers("cuts", self.cuts, (n_nodes,), 0, N_BINS - 1, DataError)
        shape = (n_nodes, n_values(self.n_classes))
        values = integers(
            "values", self.values, shape, -LARGEST_VALUE, LARGEST_VALUE, DataError
        )
        is_split = columns >= 0
        n_splits = int(is_split.sum())
        if not 1 <= self.n_trees <= MOST_TREES:
            raise DataError("trees", f"1 to {MOST_TREES}", self.n_trees)
        most = most_nodes(self.n_trees, self.n_classes)
        if n_nodes > most:
            raise DataError("forest", f"at most {most} nodes", n_nodes)
        if n_nodes != self.n_trees + 2 * n_splits:
            expected = f"{self.n_trees} nodes, and two for each of {n_splits} splits"
            raise DataError("forest", expected, n_nodes)
        freeze(
            self,
            columns=columns.astype(np.int16),
            cuts=cuts.astype(np.uint8),
            values=values.astype(np.int8),
        )
        self._check_levels()

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
        return cls(basis, n_classes, n_trees, columns, np.zeros(n_trees, int), zeros)

    @cached_property
    def children(self) -> Integers:
        """First child of each node, (N,); 0 for a node that is not split."""
        is_split = self.columns >= 0
        children: Integers = np.zeros(len(self.columns), np.int32)
        children[is_split] = self.n_trees + 2 * np.arange(is_split.sum())
        return children

    def pruned(self, values: Array) -> Forest:
        """The forest of the first nodes, as many as have these values, (M, w)."""
        n_nodes = len(values)
        children = self.children[:n_nodes]
        columns = np.where(children < n_nodes, self.columns[:n_nodes], LEAF)
        columns[children == 0] = LEAF
        cuts = np.where(columns < 0, 0, self.cuts[:n_nodes])
        return replace(self, columns=columns, cuts=cuts, values=values)

    def sha256(self) -> str:
        """SHA-256 of the trees, the same for equal ones everywhere."""
        facts = [self.basis.to_dict(), self.n_classes, self.n_trees]
        sha256 = hashlib.sha256(b"flynn forest 1 " + json.dumps(facts).encode())
        for array in (self.columns, self.cuts, self.values):
            sha256.update(np.ascontiguousarray(array, "<i8").data)
        return sha256.hexdigest()

    @cached_property
    def parents(self) -> Integers:
        """Node whose child each one is, (N,); -1 for roots."""
        parents: Integers = np.full(len(self.columns), -1)
        parents[self.n_trees :] = np.repeat(np.flatnonzero(self.columns >= 0), 2)
        return parents

    @property
    def tree_of(self) -> Integers:
        """Index of the tree of each node, (N,)."""
        trees = np.arange(len(self.columns))
        for _ in range(LEVELS):
            trees = np.where(self.parents[trees] < 0, trees, self.parents[trees])
        return trees

    @property
    def leaf_nodes(self) -> Integers:
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
        for rows in batches(len(scores), BATCH):
            sums = np.zeros((len(scores[rows]), self.values.shape[1]), np.int64)
            _sum(
                self.bins(X[rows]),
                self.children,
                self.columns,
                self.cuts,
                self.values,
                self.n_trees,
                sums,
            )
            means = sums.astype(np.float64) * (VALUE_UNIT / self.n_trees)
            scores[rows] = self._spread(means)
        return scores

    def unseen_scores(self, X: Matrix) -> Scores:
        """The same of training samples, (n, L), by the trees that have not seen them."""
        leaf_nodes = self.leaves_of(self.bins(X))
        return self.unseen(leaf_nodes, content_words(X))

    def unseen(self, leaf_nodes: Array, words: Array) -> Scores:
        """Scores of samples with these leaves and contents by the trees that have not
        seen them.
        """
        means = np.zeros((len(words), self.values.shape[1]))
        _mean_unseen(leaf_nodes, words, self.values, means)
        return self._spread(means)

    def _spread(self, means: Floats) -> Scores:
        """Scores of all classes, (n, L)."""
        if self.n_classes == 2:
            return np.concatenate([-means, means], axis=1)
        return means


@njit(nogil=True, cache=True, inline="always")
def share_of(word):  # type: ignore[no-untyped-def]
    """Return a word as a number from 0 to below 1."""
    return np.float64(word >> np.uint64(11)) * 2.0**-53


@njit(nogil=True, cache=True, inline="always")
def bag_key(tree):  # type: ignore[no-untyped-def]
    """Return a word by which the bag of a tree is drawn."""
    return mix(np.uint64(tree + 1) * INCREMENT)


@njit(nogil=True, cache=True, inline="always")
def is_in_bag(word, key):  # type: ignore[no-untyped-def]
    return share_of(mix(word ^ key)) < _BAG


@njit(nogil=True, cache=True, inline="always")
def _leaf(bins, p, tree, children, columns, cuts):  # type: ignore[no-untyped-def]
    """Return the leaf of a sample in a tree."""
    node = tree
    while children[node]:
        side = bins[p, columns[node]] > cuts[node]
        node = children[node] + side
    return node


@njit(nogil=True, cache=True)
def _walk(bins, children, columns, cuts, leaf_nodes):  # type: ignore[no-untyped-def]
    """Write the leaf of each sample in each tree, (T, n)."""
    for tree in range(leaf_nodes.shape[0]):
        for p in range(leaf_nodes.shape[1]):
            leaf_nodes[tree, p] = _leaf(bins, p, tree, children, columns, cuts)


@njit(nogil=True, cache=True)
def _sum(bins, children, columns, cuts, values, n_trees, sums):  # type: ignore[no-untyped-def]
    """Add the values of the leaves of each sample, over all trees."""
    for p in range(len(bins)):
        for tree in range(n_trees):
            node = _leaf(bins, p, tree, children, columns, cuts)
            for label in range(values.shape[1]):
                sums[p, label] += values[node, label]


@njit(nogil=True, cache=True)
def _mean_unseen(leaf_nodes, words, values, means):  # type: ignore[no-untyped-def]
    """Write the mean value of the leaves of each sample, over the trees that it is not
    in the bag of; 0 without such trees.
    """
    width = means.shape[1]
    n_unseen = np.zeros(len(words), np.int64)
    for tree in range(leaf_nodes.shape[0]):
        key = bag_key(tree)
        for p in range(len(words)):
            if not is_in_bag(words[p], key):
                n_unseen[p] += 1
                for label in range(width):
                    means[p, label] += values[leaf_nodes[tree, p], label]
    for p in range(len(words)):
        for label in range(width):
            means[p, label] *= VALUE_UNIT / max(n_unseen[p], 1)
