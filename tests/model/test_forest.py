"""Trees of a model: their sums by plain Python, their growth, and what is no forest."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import log_loss

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import DataError
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.forest import (
    LARGEST_VALUE,
    LEAF,
    LEVELS,
    MOST_VALUES,
    OPEN,
    Forest,
    most_nodes,
)
from flwr_flynn.model.growth import (
    N_CANDIDATES,
    REFITS,
    ClassTerms,
    ForestSums,
    Growth,
    forest_sums,
)
from flwr_flynn.model.portable import content_words
from flwr_flynn.model.scoring import LOSS_UNIT
from tests.raising import raises

RANDOM = np.random.default_rng(5)
N = 160
X = RANDOM.normal(size=(N, 4)).round(1)
X[RANDOM.random(X.shape) < 0.05] = np.nan
Y = {
    2: (np.nan_to_num(X[:, 0] * X[:, 1]) > 0).astype(int),
    3: np.digitize(np.nan_to_num(X[:, 0]) + RANDOM.normal(size=N), (-0.5, 0.5)),
}
SCORES = {n_classes: RANDOM.normal(size=(N, n_classes)).round(2) for n_classes in Y}
N_TREES = 4


def basis_of(n_classes):
    return Basis.of_columns(ColumnHistograms.from_data(X, Y[n_classes], n_classes))


BASES = {n_classes: basis_of(n_classes) for n_classes in Y}


def terms_of(n_classes, weights=None):
    if weights is None:
        weights = np.ones(n_classes)
    return ClassTerms(np.log(np.arange(1.0, n_classes + 1)), np.array(weights))


def sums_of(growth, rows=slice(None), n_jobs=None, weights=None):
    n_classes = growth.forest.n_classes
    terms = terms_of(n_classes, weights)
    of_rows = (X[rows], Y[n_classes][rows], SCORES[n_classes][rows])
    return forest_sums(growth, *of_rows, terms, n_jobs)


def grown(n_classes, n_levels):
    growth = Growth.planted(BASES[n_classes], n_classes, N_TREES, 7)
    for _ in range(n_levels):
        growth = growth.grown(sums_of(growth))
    return growth


# ---- sums


def mixed(word):
    """SplitMix64's finisher on Python integers."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def share_of(word):
    return (word >> 11) / 2**53


STEP = 0x9E3779B97F4A7C15


def is_in_bag(word, tree):
    return share_of(mixed(word ^ mixed((tree + 1) * STEP % 2**64))) < 0.632


def leaf_of(forest, bins, tree):
    node = tree
    while forest.columns[node] >= 0:
        number = int((forest.columns[:node] >= 0).sum())
        first = forest.n_trees + 2 * number
        node = first + int(bins[forest.columns[node]] > forest.cuts[node])
    return node


def spread(value):
    """Scores of all classes of the value of a leaf."""
    if len(value) == 1:
        return np.array([-value[0], value[0]])
    return value


def slowly(growth, weights):
    """The sums of all samples, from their definition."""
    forest = growth.forest
    n_classes = forest.n_classes
    labels = range(n_classes)[-forest.values.shape[1] :]
    leaf_nodes = {node: place for place, node in enumerate(forest.leaf_nodes.tolist())}
    opened = {node: place for place, node in enumerate(forest.open_nodes.tolist())}
    tables = [table.tolist() for table in ForestSums.zeros(forest).tables]
    losses, counts, sketches, gradients, curvatures = tables
    terms = terms_of(n_classes, weights)
    rows = zip(
        forest.bins(X), content_words(X).tolist(), SCORES[n_classes], strict=True
    )
    for (bins, word, scores), true in zip(rows, Y[n_classes].tolist(), strict=True):
        nodes = [leaf_of(forest, bins, tree) for tree in range(N_TREES)]
        bags = [is_in_bag(word, tree) for tree in range(N_TREES)]
        unseen = [node for node, is_in in zip(nodes, bags, strict=True) if not is_in]
        own = np.array(scores) + terms.prior
        for node in unseen:
            value = forest.values[node] / 16 / len(unseen)
            own += spread(value)
        own = np.maximum(own - own.max(), -12)
        shares = np.exp(own) / np.exp(own).sum()
        weight = terms.weights[true]
        truth = np.eye(n_classes)[true]
        losses[0][0] += round(-math.log(shares[true]) * weight / LOSS_UNIT)
        losses[0][1] += round(weight / LOSS_UNIT)
        slopes = []
        curves = []
        for label in labels:
            key = mixed(
                word + (growth.level * n_classes + label + 1) * STEP & 2**64 - 1
            )
            slope = 16 * weight * (truth - shares)[label]
            slopes.append(math.floor(slope + share_of(key)))
            curve = 16 * weight * shares[label] * (1 - shares[label])
            curves.append(math.floor(curve + share_of(mixed(key))))
        sketch = slopes @ growth.signs
        for node, is_in in zip(nodes, bags, strict=True):
            if not is_in:
                continue
            for at in range(len(slopes)):
                gradients[leaf_nodes[node]][at] += slopes[at]
                curvatures[leaf_nodes[node]][at] += curves[at]
            if node not in opened:
                continue
            place = opened[node]
            counts[place][0] += 1
            for k in range(N_CANDIDATES):
                column = growth.candidates.columns[place, k]
                if column >= 0 and bins[column] <= growth.candidates.cuts[place, k]:
                    counts[place][1 + k] += 1
                    for q, part in enumerate(sketch.tolist()):
                        sketches[place][k * len(sketch) + q] += part
    return tables


@pytest.mark.parametrize("n_levels", [0, 1, 4])
@pytest.mark.parametrize(
    ("n_classes", "weights"), [(2, (1, 1)), (3, (1, 1, 1)), (3, (0.25, 2, 1))]
)
def test_sums_are_those_of_their_definition(n_classes, weights, n_levels):
    growth = grown(n_classes, n_levels)
    tables = sums_of(growth, weights=weights).tables
    for table, slow in zip(tables, slowly(growth, weights), strict=True):
        assert_array_equal(table, np.array(slow).reshape(table.shape))


@pytest.mark.parametrize("n_classes", Y)
def test_sums_of_any_parts_and_threads_add_up(n_classes):
    growth = grown(n_classes, 3)
    parts = [0, 1, 4, 90, N]
    total = ForestSums.zeros(growth.forest)
    for first, last in pairwise(parts):
        total += sums_of(growth, slice(first, last), n_jobs=2)
    assert total == sums_of(growth)
    assert sums_of(growth, slice(0, 0)) == ForestSums.zeros(growth.forest)


def test_weights_of_samples_have_mean_1_and_equal_classes_equal_weight():
    sizes = np.array([30, 60, 10])
    bits = np.repeat(sizes[:, None], 4, axis=1)
    total = ClassCounts(bits, hash_nnz=4, spec_fingerprint="0" * 64)
    plain = ClassTerms.of(total, None)
    assert_allclose(plain.weights, 1)
    assert_allclose(np.exp(plain.prior), sizes / 100)
    equal = ClassTerms.of(total, "balanced")
    assert_allclose(equal.weights * sizes, 100 / 3)
    assert_allclose(equal.prior, 0)


# ---- growth


@pytest.mark.parametrize("n_classes", Y)
def test_a_level_splits_open_nodes_and_children_are_behind_them(n_classes):
    growth = Growth.planted(BASES[n_classes], n_classes, N_TREES, 7)
    while not growth.is_complete:
        forest = growth.forest
        growth = growth.grown(sums_of(growth))
        after = growth.forest
        was_split = after.columns[: len(forest.columns)] >= 0
        assert (forest.columns[was_split & (forest.columns < 0)] == OPEN).all()
        n_splits = int((after.columns >= 0).sum())
        assert len(after.columns) == N_TREES + 2 * n_splits
        assert not after.values[after.columns >= 0].any()
    assert growth.best_level < growth.level <= LEVELS + REFITS
    assert growth.best.columns.min() == LEAF


def test_candidates_are_within_the_box_of_their_node():
    growth = grown(2, 5)
    forest = growth.forest
    n_bins = forest.bins(X)
    nodes = forest.leaves_of(n_bins)
    assert (growth.candidates.columns >= 0).mean() > 0.5
    for place, node in enumerate(forest.open_nodes.tolist()):
        bounds = {}
        child = node
        for above in reversed(range(child)):
            first = forest.children[above]
            if not first or child not in (first, first + 1):
                continue
            column = forest.columns[above]
            low, high = bounds.get(column, (0, 65))
            cut = int(forest.cuts[above])
            if child == first:
                bounds[column] = (low, min(high, cut))
            else:
                bounds[column] = (max(low, cut + 1), high)
            child = above
        drawn = growth.candidates
        for column, cut in zip(drawn.columns[place], drawn.cuts[place], strict=True):
            if column >= 0:
                low, high = bounds.get(column, (0, 65))
                assert low <= cut < high
    assert nodes.shape == (N_TREES, N)


def test_a_forest_that_is_pruned_has_the_scores_that_it_had():
    growth = grown(3, 3)
    forest = growth.forest
    later = growth.grown(sums_of(growth)).forest
    pruned = later.pruned(forest.values)
    assert_array_equal(pruned.scores(X), forest.scores(X))
    assert_array_equal(pruned.unseen_scores(X), forest.unseen_scores(X))


@pytest.mark.parametrize("n_classes", Y)
def test_scores_are_means_of_leaves_and_unseen_ones_of_the_other_trees(n_classes):
    forest = grown(n_classes, 4).forest
    words = content_words(X).tolist()
    whole = []
    unseen = []
    for bins, word in zip(forest.bins(X), words, strict=True):
        leaf_nodes = [leaf_of(forest, bins, tree) for tree in range(N_TREES)]
        values = forest.values[leaf_nodes] / 16
        if n_classes == 2:
            values = np.concatenate([-values, values], axis=1)
        others = [not is_in_bag(word, tree) for tree in range(N_TREES)]
        whole.append(values.mean(axis=0))
        unseen.append(values[others].sum(axis=0) / max(sum(others), 1))
    assert_allclose(forest.scores(X), whole, atol=1e-12)
    assert_allclose(forest.unseen_scores(X), unseen, atol=1e-12)


def test_of_very_many_classes_there_are_fewer_trees_with_room_for_splits():
    growth = Growth.planted(BASES[2], 400, 1000, 0)
    assert 8 * 400 * growth.forest.n_trees <= MOST_VALUES


def test_a_label_changes_sums_of_the_first_level_in_its_own_bags_alone():
    growth = Growth.planted(BASES[2], 2, 50, 7)
    terms = terms_of(2)
    y = Y[2].copy()
    before = forest_sums(growth, X, y, SCORES[2], terms).tables[3]
    y[3] = 1 - y[3]
    after = forest_sums(growth, X, y, SCORES[2], terms).tables[3]
    word = int(content_words(X[3:4])[0])
    bags = [is_in_bag(word, tree) for tree in range(50)]
    assert_array_equal((before != after)[:, 0], bags)


# ---- in a model


def circles(seed, n):
    """Samples whose class depends on thresholds of three columns."""
    random = np.random.default_rng(seed)
    samples = random.normal(size=(n, 8)).round(2)
    inside = (samples[:, 0] > 0.3) ^ (samples[:, 1] > -0.2) & (samples[:, 2] > 0)
    return samples, (inside ^ (random.random(n) < 0.05)).astype(int)


def test_fit_grows_trees_where_they_help_and_the_file_has_them(tmp_path):
    samples, y = circles(1, 900)
    losses = {}
    for trees in (0, 20):
        classifier = FlyNNClassifier(hash_dim=256, trees=trees)
        classifier.fit(samples[:500], y[:500])
        assert (classifier.model_.forest is None) == (trees == 0)
        proba = classifier.predict_proba(samples[500:])
        losses[trees] = log_loss(y[500:], proba)
    assert losses[20] < 0.8 * losses[0]
    classifier.save(tmp_path / "model.npz")
    loaded = FlyNNClassifier.load(tmp_path / "model.npz")
    assert loaded.model_.sha256() == classifier.model_.sha256()
    assert_array_equal(loaded.predict_proba(samples[500:]), proba)


def test_there_are_none_where_they_help_nothing():
    samples, y = circles(2, 300)
    y = np.random.default_rng(2).permutation(y)
    classifier = FlyNNClassifier(hash_dim=256, trees=20).fit(samples, y)
    assert classifier.model_.forest is None


def test_partial_fit_keeps_them_and_forget_and_merge_drop_them():
    samples, y = circles(3, 600)
    classifier = FlyNNClassifier(hash_dim=256, trees=10).fit(samples[:500], y[:500])
    trees = classifier.model_.forest.trees
    other = FlyNNClassifier(hash_dim=256, trees=0).fit(samples[:500], y[:500])
    classifier.partial_fit(samples[500:], y[500:])
    assert classifier.model_.forest.trees is trees
    with pytest.warns(UserWarning, match="trees"):
        classifier.forget(samples[500:], y[500:])
    assert classifier.model_.forest is None
    again = FlyNNClassifier(hash_dim=256, trees=10).fit(samples[:500], y[:500])
    with pytest.warns(UserWarning, match="trees"):
        again.merge(other)
    assert again.model_.forest is None


# ---- no forests

FOREST = grown(2, 2).forest


def changed(name, place, value):
    array = np.array(getattr(FOREST, name)).astype(int)
    array.flat[place] = value
    return {name: array}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"n_trees": 0}, "trees"),
        ({"n_trees": 1001}, "trees"),
        ({"n_trees": N_TREES - 1}, "forest"),
        ({"columns": FOREST.columns[:-1]}, "cuts"),
        ({"cuts": FOREST.cuts[:-1]}, "cuts"),
        ({"cuts": FOREST.cuts / 2}, "cuts"),
        ({"values": FOREST.values[:-1]}, "values"),
        ({"n_classes": 3}, "values"),
        (changed("columns", 0, LEAF), "forest"),
        (changed("columns", 0, len(BASES[2].columns)), "columns"),
        (changed("columns", 0, OPEN - 1), "columns"),
        (changed("cuts", 0, 66), "cuts"),
        (changed("values", 0, LARGEST_VALUE + 1), "values"),
    ],
)
def test_arrays_that_are_no_forest_are_refused(changes, field):
    with raises(DataError, field=field):
        replace(FOREST, **changes)


def test_trees_have_no_more_levels_and_nodes_than_they_may():
    columns = [0] + [0, LEAF] * LEVELS + [LEAF, LEAF]
    zeros = np.zeros((len(columns), 1), int)
    with raises(DataError, field="forest"):
        Forest(BASES[2], 2, 1, columns, zeros[:, 0], zeros)
    most = most_nodes(1, 2)
    zeros = np.zeros((most + 1, 1), int)
    with raises(DataError, field="forest"):
        Forest(BASES[2], 2, 1, zeros[:, 0] + LEAF, zeros[:, 0], zeros)
