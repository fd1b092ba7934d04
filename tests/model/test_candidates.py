"""Candidates: specifications of a plan, and decays from the counts alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_iris

from flwr_flynn import ClassCounts, FlyHash, HashPlan, HashSpec
from flwr_flynn.errors import ConfigError, DataError, SpecError
from flwr_flynn.model.candidates import candidate_scorings, gram_rows, row_weights, typical_counts
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.scoring import ScoringRule
from tests.raising import raises
from tests.strategies import FINGERPRINT, counted, hashes

X, Y = load_iris(return_X_y=True)
COLUMNS = ColumnHistograms.from_data(X, Y, 3)


def test_a_plan_without_scaling_needs_no_columns():
    plan = HashPlan(4, 3, 150, hash_dim=64, seed=5, signed=False)
    assert not plan.needs_columns
    assert plan.specs() == (HashSpec.suggest(4, 150, 3, hash_dim=64, seed=5),)
    pair = HashPlan(4, 3, scaling=((1.0,) * 4, None))
    assert not pair.needs_columns
    assert pair.specs()[0].center == (1.0,) * 4


CODED = ["bumps 5", "steps 16", "bumps 5"]


@pytest.mark.parametrize(
    ("d", "kinds"),
    [
        (4, [*CODED, "waves", "signed", "ones"]),
        (128, [*CODED, "waves", "signed", "ones"]),
        (129, [*CODED, "signed", "ones", "signed"]),
        (1025, ["signed", "ones", "signed"]),
    ],
)
def test_candidates_of_auto(d, kinds):
    points, labels = np.random.default_rng(0).normal(size=(60, d)), np.arange(60) % 2
    points[:, 0] += 3 * labels
    columns = ColumnHistograms.from_data(points, labels, 2)
    relevance, (center, deviation) = columns.relevance(), columns.center_and_deviation()
    specs = HashPlan(d, 2, scaling="auto").specs(columns)
    found = [
        f"{s.coding} {s.n_codes}" if s.coding else "waves" if s.n_waves else ("ones", "signed")[s.signed] for s in specs
    ]
    assert found == kinds
    assert len(set(specs)) == len(specs)
    weights = np.array(relevance) + 0.02
    for spec in specs:
        if spec.coding:
            assert (spec.signed, spec.center) == (True, None)
            np.testing.assert_array_equal(spec.edges, columns.edges())
            continue
        assert spec.center == tuple(center)
        if spec.signed:
            wanted = weights if d > 128 and spec is specs[-1] else weights / deviation
            np.testing.assert_allclose(spec.scale, wanted, rtol=1e-12)
        if spec.n_waves:
            assert spec.wave_frequency == pytest.approx(1 / (2.2 * np.sqrt(2 * (weights**2).sum())))
    if d <= 1024:
        by_relevance = tuple(max(1, round(255 * value**0.5)) for value in relevance)
        assert [spec.row_weights for spec in specs[:3]] == [by_relevance, by_relevance, None]


def test_rows_of_one_sign_if_they_are_asked_for():
    for signed in (True, False):
        specs = HashPlan(4, 3, scaling="auto", signed=signed).specs(COLUMNS)
        assert {spec.signed for spec in specs} == {signed}


@pytest.mark.parametrize("size", [1e-300, 1e-100, 1.0, 1e100, 1e300])
def test_columns_of_any_size_make_hashes_of_moderate_numbers(size):
    """The same candidates, of numbers that fit float32."""
    columns = ColumnHistograms.from_data(X * 2.0 ** round(math.log2(size)), Y, 3)
    specs = HashPlan(4, 3, 150, "auto", hash_dim=256).specs(columns)
    expected = HashPlan(4, 3, 150, "auto", hash_dim=256).specs(COLUMNS)
    for one, other in zip(specs, expected, strict=True):
        some = X[::10]
        np.testing.assert_array_equal(
            FlyHash(one).active(some * 2.0 ** round(math.log2(size))), FlyHash(other).active(some)
        )


def test_histograms_of_no_samples_are_refused():
    with raises(DataError, field="histograms"):
        HashPlan(4, 3, scaling="auto").specs(ColumnHistograms.zeros(4, 3))


def test_weights_of_rows():
    assert row_weights([1.0, 0.25, 0.0, 1e-9]) == (255, 128, 1, 1)


@pytest.mark.parametrize(
    ("effort", "n", "n_classes", "hash_dim", "hash_nnz"),
    [
        ("quick", 100, 8, 2**14, 64),
        ("quick", 10**6, 10, 2**14, 64),
        ("default", 4095, 8, 2**15, 128),
        ("default", 4095, 9, 2**14, 64),
        ("default", None, 3, 2**15, 128),  # as many as the histograms are of
        ("default", None, 10, 2**14, 64),
        ("default", 4096, 8, 2**16, 64),
        ("default", 4096, 10, 2**16, 64),
        ("default", 4096, 1000, 2**24 // 1000, 64),
        ("default", 4096, 2**14, 2**10, 64),
        ("default", 4096, 2**15, 2**9, 32),
        ("thorough", 100, 8, 2**15, 128),
        ("thorough", 100, 10, 2**14, 64),
        ("thorough", 4096, 1000, 2**24 // 1000, 64),
        ("quick", 4096, 10**6, 2**8, 16),
    ],
)
def test_sizes_of_efforts(effort, n, n_classes, hash_dim, hash_nnz):
    """All candidates of "auto" have them, where none are given; else they are those of `HashSpec.suggest`."""
    plan = HashPlan(4, n_classes, n, "auto", effort=effort)
    specs = plan.specs(COLUMNS)
    assert len(specs) == (1 if effort == "quick" else 6)
    assert (plan.has_gram, plan.most_members) == (effort == "thorough", 1 if effort == "quick" else 3)
    assert {(spec.hash_dim, spec.hash_nnz) for spec in specs} == {(hash_dim, hash_nnz)}
    shape = (4, 150 if n is None else n, n_classes)
    for given in ({"hash_dim": 512}, {"hash_nnz": 16}, {"hash_dim": 512, "hash_nnz": 16}):
        suggested = HashSpec.suggest(*shape, **given)
        specs = replace(plan, **given).specs(COLUMNS)
        sizes = {(suggested.hash_dim, suggested.hash_nnz)}
        assert {(spec.hash_dim, spec.hash_nnz) for spec in specs} == sizes


@pytest.mark.parametrize(
    ("n_features", "n_classes", "n", "rows"),
    [
        (64, 10, 2047, 1024),
        (64, 10, 2048, 2048),
        (64, 10, 10**6, 2048),  # 4096 rows take more bytes than a perceptron
        (16, 26, 16000, 2048),
        (36, 2, 8191, 1024),  # 2048 rows are more than an eighth of the samples times the classes
        (36, 2, 8192, 2048),
        (784, 10, 60000, 4096),
        (784, 10, 4095, 2048),
        (10, 200, 1000, 1024),
        (1, 2, 10**9, 1024),
        (24, 2, 10**9, 1024),  # the last of so few bytes, and the first of more
        (25, 2, 10**9, 2048),
        (96, 10, 10**9, 2048),
        (97, 10, 10**9, 4096),
        (784, 10, 4096, 4096),
    ],
)
def test_rows_of_the_gram_matrix_follow_from_the_data_and_the_bytes_of_a_perceptron(n_features, n_classes, n, rows):
    assert gram_rows(n_features, n_classes, n) == rows
    perceptron = 50 * 2 * 4 * 256 * (n_features + n_classes)
    assert rows == 1024 or (0.65 * rows**2 <= perceptron and rows <= n and 8 * rows <= n * n_classes)


def test_the_number_of_samples_is_that_of_the_histograms_where_it_is_not_given():
    rng = np.random.default_rng(0)
    for n, sizes in ((4095, (2**15, 128)), (4096, (2**16, 64))):
        points, labels = rng.normal(size=(n, 3)), np.arange(n) % 2
        columns = ColumnHistograms.from_data(points, labels, 2)
        specs = HashPlan(3, 2, scaling="auto").specs(columns)
        assert specs == HashPlan(3, 2, n, "auto").specs(columns)
        assert (specs[0].hash_dim, specs[0].hash_nnz) == sizes


def test_samples_that_are_all_alike_have_no_waves():
    columns = ColumnHistograms.from_data(np.ones((5, 2)), np.array([0, 1, 0, 1, 0]), 2)
    assert all(spec.n_waves == 0 for spec in HashPlan(2, 2, scaling="auto").specs(columns))


def test_bad_plans_are_refused():
    for scaling, got in (("standard", "standard"), ((None,), "1 entries")):
        with raises(SpecError, field="scaling", got=got):
            HashPlan(4, 3, scaling=scaling)
    with raises(SpecError, field="columns"):
        HashPlan(4, 3, scaling="auto").specs()
    for change in ({"effort": "much"}, {"max_members": 0}):
        with raises(SpecError, field=next(iter(change))):
            HashPlan(4, 3, **change)


@pytest.mark.parametrize(
    ("row_nnz", "n_inputs"),
    [(4, [20, 64, 20, 64, 4, 4]), (5, [20, 64, 20, 64]), (11, [64, 20, 64]), (21, [64, 64]), (33, [64]), (64, [64])],
)
def test_auto_has_the_candidates_that_can_have_so_many_entries_in_a_row(row_nnz, n_inputs):
    specs = HashPlan(4, 3, scaling="auto", row_nnz=row_nnz).specs(COLUMNS)
    assert [(spec.n_inputs, spec.row_nnz) for spec in specs] == [(n, row_nnz) for n in n_inputs]


@pytest.mark.parametrize("row_nnz", [0, 65, "many"])
def test_a_row_that_no_candidate_has_room_for_is_refused(row_nnz):
    with raises(SpecError, field="row_nnz", got=row_nnz):
        HashPlan(4, 3, scaling="auto", row_nnz=row_nnz).specs(COLUMNS)
    with raises(SpecError, field="row_nnz", got=1040):
        HashPlan(129, 3, scaling="auto", row_nnz=1040).specs(
            ColumnHistograms.from_data(np.zeros((3, 129)), np.arange(3), 3)
        )


@pytest.mark.parametrize(
    ("ranges", "got"),
    [
        (5, "shape ()"),
        (((0, 0),), "shape (1, 2)"),
        (((0, 0), (1, 1), (2, 2)), "shape (3, 2)"),
        (((0,), (1,)), "shape (2, 1)"),
        (((0, 0), (1,)), "tuple of another shape or type"),
        ((0, 1), "shape (2,)"),
        (("ab", "cd"), "tuple of another shape or type"),
        ((("0", "0"), ("1", "1")), "tuple of another shape or type"),
        (((0, 0), (1, -1)), "0.0 to -1.0 at index 1"),
        (((0, math.nan), (1, 1)), "NaN or infinity at index [0, 1]"),
        (((-1e308, 0), (1e308, 1)), "-1e+308 to 1e+308 at index 0"),
    ],
    ids=str,
)
def test_ranges_that_are_none_are_refused_by_their_name(ranges, got):
    with raises(SpecError, field="ranges", got=got):
        HashPlan(2, 2, ranges=ranges)


def test_ranges_may_be_arrays_and_empty():
    (spec,) = HashPlan(2, 2, ranges=([0, 1], [1, 1])).specs()
    assert spec.edges[1] == (1.0,) * 32
    assert HashPlan(2, 2, ranges=np.array([[0, 1], [1, 1]])).specs() == (spec,)


def test_a_given_decay_leaves_no_choice():
    counts = ClassCounts.from_data(FlyHash(HashSpec(4, 100, 2, 5, 0)), X, Y, 3)
    assert candidate_scorings(counts, "novelty", 0.5) == [ScoringRule("novelty", 0.5)]
    with raises(ConfigError, field="decay"):
        candidate_scorings(counts, "novelty", "best")


def test_typical_counts():
    counts = ClassCounts([[4, 2, 2, 0], [0, 0, 2, 2]], hash_nnz=2, spec_fingerprint=FINGERPRINT)  # 4 and 2 points
    typical, alike = typical_counts(counts.array, counts.n_per_class, "novelty")
    assert typical == (16 + 4 + 4 + 4 + 4) / 12
    assert alike == pytest.approx(((4**2 + 2**2 + 4**2 + 2**2) / 2 + 12) / 12)
    typical, _ = typical_counts(counts.array, counts.n_per_class, "balanced")  # scaled to 3 points each
    assert typical == pytest.approx((3**2 + 2 * 1.5**2 + 2 * 3**2) / 12)


@pytest.mark.parametrize("rule", ["balanced", "novelty"])
def test_typical_counts_are_added_in_order(rule):
    """The sums of a plain loop to the last bit: those of NumPy depend on its version."""
    rng = np.random.default_rng(3)
    array, sizes = rng.integers(0, 50, (3, 1000)), np.array([49, 50, 77])
    factors = [1.0] * 3 if rule == "novelty" else [(176 / 3) / size for size in sizes.tolist()]
    total = squares = poisson = of_all = 0.0
    pooled = [0.0] * 1000
    for factor, row in zip(factors, array.tolist(), strict=True):
        for i, count in enumerate(row):
            total += count * factor
            squares += (count * factor) * (count * factor)
            poisson += count * factor * factor
            pooled[i] += count * factor
    for value in pooled:
        of_all += value * value
    assert typical_counts(array, sizes, rule) == (squares / total, (of_all / 3 + poisson) / total)


@pytest.mark.parametrize("seed", range(3))
def test_classes_of_random_labels_are_alike(seed):
    rng = np.random.default_rng(seed)
    counts = counted(hashes(rng, 3000, 100, 10), rng.choice(3, 3000, p=[0.6, 0.3, 0.1]), 3, 100)
    typical, alike = typical_counts(counts.array, counts.n_per_class, "balanced")
    assert typical == pytest.approx(alike, rel=0.02)
