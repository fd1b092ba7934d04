"""Candidates: specifications of a plan, and decays from the counts alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from flwr_flynn import ClassCounts, FlyHash, HashPlan, HashSpec
from flwr_flynn.errors import ConfigError, DataError, SpecError
from flwr_flynn.model.candidates import candidate_scorings, typical_counts
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.scoring import ScoringRule
from tests.raising import raises
from tests.snapshots import assert_refused_as_on_record
from tests.strategies import counted, hashes

X, Y = load_iris(return_X_y=True)
COLUMNS = ColumnHistograms.from_data(X, Y, 3)


def test_a_plan_without_scaling_needs_no_columns():
    plan = HashPlan(4, 3, 150, hash_dim=64, seed=5, signed=False)
    assert not plan.needs_columns
    assert plan.specs() == (HashSpec.suggest(4, 150, 3, hash_dim=64, seed=5),)
    pair = HashPlan(4, 3, scaling=((1.0,) * 4, None))
    assert not pair.needs_columns
    assert pair.specs()[0].center == (1.0,) * 4


CODED = ["bumps 5", "steps 16"]


KINDS = {
    4: [*CODED, "waves", "signed", "ones"],
    128: [*CODED, "waves", "signed", "ones"],
}
KINDS |= {129: [*CODED, "signed", "ones", "signed"], 1025: ["signed", "ones", "signed"]}


def kind(spec):
    coded = f"{spec.coding} {spec.n_codes}"
    if spec.coding:
        return coded
    if spec.n_waves:
        return "waves"
    if spec.signed:
        return "signed"
    return "ones"


@pytest.mark.parametrize(("d", "kinds"), KINDS.items())
def test_candidates_of_auto(d, kinds):
    points = np.random.default_rng(0).normal(size=(60, d))
    labels = np.arange(60) % 2
    points[:, 0] += 3 * labels
    columns = ColumnHistograms.from_data(points, labels, 2)
    relevance = columns.relevance()
    (center, deviation) = columns.center_and_deviation()
    specs = HashPlan(d, 2, scaling="auto").specs(columns)
    assert [kind(spec) for spec in specs] == kinds
    assert len(set(specs)) == len(specs)
    weights = np.array(relevance) + 0.02
    for spec in specs:
        if spec.coding:
            assert (spec.signed, spec.center) == (True, None)
            np.testing.assert_array_equal(spec.edges, columns.edges())
            continue
        assert spec.center == tuple(center)
        if spec.signed:
            if d > 128 and spec is specs[-1]:
                wanted = weights
            else:
                wanted = weights / deviation
            np.testing.assert_allclose(spec.scale, wanted, rtol=1e-12)
        if spec.n_waves:
            assert spec.wave_frequency == pytest.approx(
                1 / (2.2 * np.sqrt(2 * (weights**2).sum()))
            )
    by_relevance = tuple(max(1, round(255 * value**0.5)) for value in relevance)
    assert [spec.row_weights for spec in specs[:3]] == [
        by_relevance,
        by_relevance,
        None,
    ] or d > 1024


@pytest.mark.parametrize("exponent", [-997, -332, 332, 997])
def test_columns_of_any_size_make_hashes_of_moderate_numbers(exponent):
    """The same candidates, of numbers that fit float32."""
    plan = HashPlan(4, 3, 150, "auto", hash_dim=256)
    size = 2.0**exponent
    specs = plan.specs(ColumnHistograms.from_data(X * size, Y, 3))
    for one, other in zip(specs, plan.specs(COLUMNS), strict=True):
        np.testing.assert_array_equal(
            FlyHash(one).active(X[::10] * size), FlyHash(other).active(X[::10])
        )


def sizes(case):
    """Rows and active bits of an effort, of so many samples and classes.

    With given ones they are as in `HashSpec.suggest`.
    """
    effort, n, n_classes = case
    plan = HashPlan(4, n_classes, n, "auto", effort=effort)
    specs = plan.specs(COLUMNS)
    if effort == "quick":
        assert len(specs) == plan.most_members == 1
    else:
        assert len(specs) == 5
        assert plan.most_members == 3
    assert plan.n_trees == {"thorough": 100}.get(effort, 0)
    for given in (
        {"hash_dim": 512},
        {"hash_nnz": 16},
        {"hash_dim": 512, "hash_nnz": 16},
    ):
        n_samples = n
        if n is None:
            n_samples = 150
        suggested = HashSpec.suggest(4, n_samples, n_classes, **given)
        for spec in replace(plan, **given).specs(COLUMNS):
            assert spec.hash_dim == suggested.hash_dim
            assert spec.hash_nnz == suggested.hash_nnz
    # All candidates have the same sizes.
    ((hash_dim, hash_nnz),) = {(spec.hash_dim, spec.hash_nnz) for spec in specs}
    return f"{hash_dim} rows, {hash_nnz} of them active"


def with_entries(row_nnz):
    """Columns of the candidates of "auto" that can have so many entries in a row."""
    specs = HashPlan(4, 3, scaling="auto", row_nnz=row_nnz).specs(COLUMNS)
    assert {spec.row_nnz for spec in specs} == {row_nnz}
    return f"of columns {[spec.n_inputs for spec in specs]}"


def test_sizes_of_candidates_are_those_on_record():
    takes = {"sizes": sizes, "entries": with_entries}
    assert_refused_as_on_record(Path(__file__).parent / "sizes.txt", takes)


def test_samples_that_are_all_alike_have_no_waves():
    columns = ColumnHistograms.from_data(np.ones((5, 2)), np.array([0, 1, 0, 1, 0]), 2)
    assert all(
        spec.n_waves == 0 for spec in HashPlan(2, 2, scaling="auto").specs(columns)
    )


def test_columns_are_needed_with_samples_and_a_row_that_a_candidate_can_have():
    plan = HashPlan(4, 3, scaling="auto")
    wide = ColumnHistograms.from_data(np.zeros((3, 129)), np.arange(3), 3)
    with raises(SpecError, field="columns"):
        plan.specs()
    with raises(DataError, field="histograms"):
        plan.specs(ColumnHistograms.zeros(4, 3))
    with raises(SpecError, field="row_nnz"):
        HashPlan(129, 3, scaling="auto", row_nnz=1040).specs(wide)


def test_ranges_may_be_arrays_and_empty():
    (spec,) = HashPlan(2, 2, ranges=([0, 1], [1, 1])).specs()
    assert spec.edges[1] == (1.0,) * 32
    assert HashPlan(2, 2, ranges=np.array([[0, 1], [1, 1]])).specs() == (spec,)


def test_a_given_decay_leaves_no_choice():
    counts = ClassCounts.from_data(FlyHash(HashSpec(4, 100, 2, 5, 0)), X, Y, 3)
    assert candidate_scorings(counts, "novelty", 0.5) == [ScoringRule("novelty", 0.5)]
    with raises(ConfigError, field="decay"):
        candidate_scorings(counts, "novelty", "best")


@pytest.mark.parametrize("rule", ["balanced", "novelty"])
def test_typical_counts_are_added_in_order(rule):
    """The sums of a plain loop to the last bit: those of NumPy depend on its version."""
    array = np.random.default_rng(3).integers(0, 50, (3, 1000))
    sizes = np.array([49, 50, 77])
    if rule == "novelty":
        factors = [1.0] * 3
    else:
        factors = [(176 / 3) / size for size in sizes.tolist()]
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
    assert typical_counts(array, sizes, rule) == (
        squares / total,
        (of_all / 3 + poisson) / total,
    )


@pytest.mark.parametrize("seed", range(3))
def test_classes_of_random_labels_are_alike(seed):
    rng = np.random.default_rng(seed)
    counts = counted(
        hashes(rng, 3000, 100, 10), rng.choice(3, 3000, p=[0.6, 0.3, 0.1]), 3, 100
    )
    typical, alike = typical_counts(counts.array, counts.n_per_class, "balanced")
    assert typical == pytest.approx(alike, rel=0.02)
