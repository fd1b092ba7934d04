"""Growth of a forest, level by level, from sums of small integers.

All trees grow at the same time, each on a bag of its own, on gradients of the log-loss,
as in boosting; a sample's gradients are those of the trees that it is not in the bag of.
A sample's part in the sums follows from its content, its class and the forest so far:
bags, the rounding of gradients and the candidates of a split are by hashes. So sums add,
and a federation grows the forest of the pooled samples. The server keeps a `Growth`,
which has all that the next sums depend on: parties keep nothing.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import numpy as np
from numba import njit

from flwr_flynn._types import Array, Floats, Integers, Matrix
from flwr_flynn._validation import n_threads
from flwr_flynn.hashing.batching import batches
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.counts import ClassCounts, Tables
from flwr_flynn.model.forest import (
    BATCH,
    LARGEST_VALUE,
    LEAF,
    LEVELS,
    MOST_VALUES,
    N_BINS,
    OPEN,
    VALUE_UNIT,
    Forest,
    bag_key,
    is_in_bag,
    n_values,
    share_of,
)
from flwr_flynn.model.portable import (
    INCREMENT,
    content_words,
    exp,
    log,
    maximum,
    mix,
)
from flwr_flynn.model.prior import ClassWeight, counted_prior, weighted
from flwr_flynn.model.scoring import LOSS_UNIT, MAX_LOSS, Scores

REFITS = 4  # steps of the values of leaves behind the last level
_PATIENCE = 3  # levels without a gain after which a forest is complete
_FIRST_PATIENCE = 6  # and before the first gain: some classes show behind some splits
N_CANDIDATES = 16  # of a split
_LEAST_LEAVES = 8  # of a tree, so that there is room for splits
_LEAST_SAMPLES = 2  # in the bag, on each side of a split
_GREEDY = 0.7  # share of candidates whose column is drawn by its gains so far
GRADIENT_UNIT = 2.0**-4
_LARGEST_WEIGHT = 64.0  # of a class in gradients
LARGEST_GRADIENT = int(_LARGEST_WEIGHT / GRADIENT_UNIT) + 1
_UNITS = int(_LARGEST_WEIGHT / LOSS_UNIT) + 1
LARGEST_LOSSES = (int(MAX_LOSS) * _UNITS, _UNITS)
"""Log-loss and weight of a sample, at most, in units of `LOSS_UNIT`."""

LARGEST_GAINS = 2**52  # of a column, so that all of them fit int64
_N_SKETCHES = 2  # of the gradients of more than two classes
_STEP = 0.25  # of Newton's method, of each level
_RIDGE = 1.0  # beside the curvature of a leaf
_LARGEST_STEP = 1.5  # of the value of a leaf
_NO_LOSS = 1e9  # above the mean loss of all models
_LOWEST_SCORE = -12.0  # beside the highest of a sample


def n_sketches(n_classes: int) -> int:
    """Sums of gradients by which a split is chosen."""
    return min(n_values(n_classes), _N_SKETCHES)


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
    of_leaves = (len(forest.leaf_nodes), n_values(forest.n_classes))
    sketches = (n_open, N_CANDIDATES * n_sketches(forest.n_classes))
    return [(1, 2), (n_open, 1 + N_CANDIDATES), sketches, of_leaves, of_leaves]


@dataclass(frozen=True, eq=False)
class Growth:
    """A forest that grows: its levels so far, and the best of them.

    Parameters
    ----------
    forest : Forest
    seed : int
        Of candidates and sketches.
    gains : (k,) array of int
        Gains of splits so far by column.
    level : int, default=0
        Number of sums that it has grown by.
    best : Forest, optional
        The one of least loss so far; None where that is the model without a forest.
    best_loss : float, default=1e9
        Mean log-loss of it.
    best_level : int, default=0
    """

    forest: Forest
    seed: int
    gains: Integers
    level: int = 0
    best: Forest | None = None
    best_loss: float = _NO_LOSS
    best_level: int = 0

    @classmethod
    def planted(cls, basis: Basis, n_classes: int, n_trees: int, seed: int) -> Growth:
        """The start of a forest; of very many classes it has fewer trees."""
        n_trees = min(n_trees, MOST_VALUES // (_LEAST_LEAVES * n_values(n_classes)))
        gains = np.zeros(len(basis.columns), np.int64)
        return cls(Forest.planted(basis, n_classes, n_trees), seed, gains)

    def stopped(self) -> Growth:
        """The growth without further levels."""
        return replace(self, level=LEVELS + REFITS)

    @property
    def is_complete(self) -> bool:
        """True where further levels are not tried."""
        patience = _PATIENCE
        if self.best is None:
            patience = _FIRST_PATIENCE
        is_late = self.level - self.best_level > patience
        return is_late or self.level >= LEVELS + REFITS

    @cached_property
    def candidates(self) -> Candidates:
        """Candidates of the splits of the open nodes."""
        forest = self.forest
        nodes = forest.open_nodes
        shape = (len(nodes), N_CANDIDATES)
        drawn = Candidates(np.full(shape, LEAF, np.int16), np.zeros(shape, np.int16))
        up_to = np.cumsum(self.gains)
        seed = np.uint64(self.seed)
        _draw(
            nodes,
            forest.parents,
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
        labels = np.arange(1, width + 1, dtype=np.uint64)
        keys = labels + np.uint64(width * self.level)
        words = mix(keys * INCREMENT + np.uint64(self.seed))
        bits = words[:, None] >> np.arange(_N_SKETCHES, dtype=np.uint64) & np.uint64(1)
        signs: Integers = 1 - 2 * bits.astype(np.int64)
        return signs

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
        values[forest.leaf_nodes] = _stepped(
            values[forest.leaf_nodes], gradients, curvatures, forest.n_classes
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
        total = np.minimum(total, LARGEST_GAINS)
        return replace(grown, forest=after, gains=total, level=self.level + 1)

    def is_possible(
        self, sums: ForestSums, terms: ClassTerms, n_per_class: Integers
    ) -> bool:
        """True if so many samples of the classes, (L,), can have these sums, as far as
        those of single nodes and trees tell.
        """
        losses, counts, sketches, gradients, curvatures = sums.tables
        forest = self.forest
        units = np.rint(terms.weights / LOSS_UNIT).astype(np.int64)
        if losses[0, 1] != (units * n_per_class).sum():
            return False
        n_examples = int(n_per_class.sum())
        largest = int(terms.weights.max() / GRADIENT_UNIT) + 1
        tree_of = forest.tree_of
        of_leaves = tree_of[forest.leaf_nodes]
        by_tree = (
            np.bincount(tree_of[forest.open_nodes], counts[:, 0]),
            np.bincount(of_leaves, np.abs(gradients).max(axis=1)) / largest,
            # The product of a share and the rest is at most a quarter.
            np.bincount(of_leaves, curvatures.max(axis=1)) / (largest // 4 + 1),
        )
        if max(table.max(initial=0) for table in by_tree) > n_examples:
            return False
        whole, left = self._sketches(sketches, gradients)
        largest *= n_values(forest.n_classes)
        n_left = counts[:, 1:, None]
        n_right = counts[:, :1, None] - n_left
        too_large = np.abs(left) > largest * n_left
        too_large |= np.abs(whole[:, None] - left) > largest * n_right
        return not too_large[self.candidates.columns >= 0].any()

    def _sketches(self, sketches: Array, gradients: Array) -> tuple[Array, Array]:
        """Sketches of open nodes, (o, q), and at or below the cuts, (o, K, q)."""
        of_open = self.forest.columns[self.forest.leaf_nodes] == OPEN
        whole = gradients[of_open] @ self.signs
        shape = (len(sketches), N_CANDIDATES, whole.shape[1])
        return whole, sketches.reshape(shape)

    def _splits(
        self, counts: Array, sketches: Array, gradients: Array
    ) -> tuple[Integers, Integers, Floats]:
        """Open nodes that are split, the candidates that split them, and their gains.

        Those of the largest gains where all would be more leaves than may travel.
        """
        forest = self.forest
        n_open = len(counts)
        whole, left = self._sketches(sketches, gradients)
        n_left = counts[:, 1:]
        n_right = counts[:, :1] - n_left
        gains = _evidence(left, n_left)
        gains += _evidence(whole[:, None] - left, n_right)
        gains -= _evidence(whole, counts[:, 0])[:, None]
        is_small = np.minimum(n_left, n_right) < _LEAST_SAMPLES
        gains[is_small | (self.candidates.columns < 0)] = 0.0
        at = gains.argmax(axis=1)
        best = gains[np.arange(n_open), at]
        room = MOST_VALUES // n_values(forest.n_classes) - len(forest.leaf_nodes)
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
    steps = gradients * GRADIENT_UNIT / (curvatures * GRADIENT_UNIT + _RIDGE)
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
        mean = math.fsum((weights * sizes).tolist()) / sizes.sum()
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
    slots = [_slots(forest.leaf_nodes, n_nodes), _slots(forest.open_nodes, n_nodes)]
    threads = n_threads(n_jobs)
    parts = [*batches(forest.n_trees, -(-forest.n_trees // threads))]
    firsts = [part.start for part in parts]
    lasts = [part.stop for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        for rows in batches(len(y), BATCH):
            bins = forest.bins(X[rows])
            words = content_words(X[rows])
            leaf_nodes = forest.leaves_of(bins)
            scores = calibrated[rows] + terms.prior
            scores += forest.unseen(leaf_nodes, words)
            slopes = np.zeros((len(words), n_values(forest.n_classes)), np.int64)
            curves = np.zeros_like(slopes)
            true = y[rows]
            _differentiate(
                scores, true, terms.weights, words, growth.level, slopes, curves, losses
            )
            of_samples = (
                leaf_nodes,
                words,
                bins,
                slopes,
                curves,
                slopes @ growth.signs,
            )
            kernel = cast(Any, _add_sums)
            add = partial(kernel, *of_samples, *slots, *growth.candidates, *of_nodes)
            # Each thread has trees, and so sums, of its own.
            list(pool.map(add, firsts, lasts))
    return sums


def _slots(nodes: Integers, n_nodes: int) -> Integers:
    """Place of each node, (N,), among some of them; -1 for the others."""
    slots: Integers = np.full(n_nodes, -1, np.int64)
    slots[nodes] = np.arange(len(nodes))
    return slots


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
            share = share_of(word)
            column = min(int(share * n_columns), n_columns - 1)
            if total > 0 and share_of(mix(word + np.uint64(1))) < _GREEDY:
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
                cut = low + int(share_of(mix(word + np.uint64(2))) * (high - low))
                drawn[o, k] = column
                drawn_cuts[o, k] = cut


@njit(nogil=True, cache=True)
def _differentiate(  # type: ignore[no-untyped-def]
    scores, true, weights, words, level, gradients, curvatures, losses
):
    """Write gradients and curvatures of the log-loss of each sample by the scores of
    the classes, as integers, and add the losses.

    They are rounded up or down by the content of a sample, so that they are right in
    the mean of different samples.
    """
    n_classes = scores.shape[1]
    width = gradients.shape[1]
    shares = np.empty(n_classes)
    for p in range(len(scores)):
        weight = weights[true[p]]
        top = maximum(scores[p])
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
            slope = scale * (is_true - share) + share_of(key)
            gradients[p, at] = np.int64(np.floor(slope))
            curvature = scale * share * (1.0 - share) + share_of(mix(key))
            curvatures[p, at] = np.int64(np.floor(curvature))


@njit(nogil=True, cache=True)
def _add_sums(  # type: ignore[no-untyped-def]
    leaf_nodes,
    words,
    bins,
    gradients,
    curvatures,
    sketches,
    slot_of_leaf,
    slot_of_open,
    columns,
    cuts,
    counts,
    left,
    summed_gradients,
    summed_curvatures,
    first,
    last,
):
    """Add the samples in the bags of some trees to the sums of leaves and candidates."""
    n_sketches = sketches.shape[1]
    for tree in range(first, last):
        key = bag_key(tree)
        for p in range(len(words)):
            if not is_in_bag(words[p], key):
                continue
            node = leaf_nodes[tree, p]
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
