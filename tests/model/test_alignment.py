"""Alignment of a party's columns: by what its classes tell, against a plain oracle, and never by chance alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from flwr_flynn import ClassCounts, FlyNNClassifier, HashSpec
from flwr_flynn.errors import DataError, ModelFileError
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.alignment import Alignment, Reference
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.model import Model, ModelMember, ScoringRule
from tests.raising import raises

SPEC = HashSpec(3, 60, 2, 8, seed=1, signed=True)
CENTRES = np.array([[0.0, 0.0, 5.0], [3.0, 1.0, 5.0], [0.0, 4.0, 5.0]])


def drawn(n_per_class: Any, seed: int = 0) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Samples of three classes; the fourth column never varies."""
    y = np.repeat(np.arange(3), n_per_class)
    X = np.random.default_rng(seed).normal(size=(len(y), 3)) + CENTRES[y]
    return np.column_stack([X, np.full(len(y), 2.0)]), y


def reference_of(X: Any, y: Any, n_classes: int = 3) -> Reference:
    return Reference.of(ColumnHistograms.from_data(X, y, n_classes))


def of_edges(X: Any) -> tuple[Any, Any]:
    """Mean and deviation of 32 quantiles of each column."""
    edges = np.sort(X, axis=0)[[(2 * k + 1) * len(X) // 64 for k in range(32)]]
    return edges.mean(axis=0), edges.std(axis=0)


def expected(reference: Reference, X: Any, y: Any) -> tuple[Any, Any]:
    """Gain and offset of the columns that vary, by class means and deviations of both."""
    means, deviations = reference.arrays
    shares = np.bincount(y, minlength=reference.n_classes) / len(y)
    there = shares > 0
    own_means, own_deviations = np.zeros_like(means), np.zeros_like(means)
    for label in np.flatnonzero(there):
        own_means[label], own_deviations[label] = of_edges(X[y == label])

    def pooled(each: Any, spreads: Any) -> tuple[Any, Any, Any]:
        mean = shares @ each
        return mean[:3], (shares @ spreads**2)[:3], (shares @ (each - mean) ** 2)[:3]

    mean, own_within, own_between = pooled(own_means, own_deviations)
    wanted, within, between = pooled(np.where(there[:, None], means, 0), deviations)
    ratio = np.sqrt((within + between) / (own_within + own_between))
    error = ((shares[there] ** 2 / reference.sizes[there]) @ deviations[there] ** 2)[:3]
    z = (wanted - mean) / np.sqrt(np.maximum(within, own_within) / len(y) + error)
    assert (z**2).mean() > 3 + 8 / 3
    stretch = np.mean(2 * len(y) * (ratio - 1) ** 2)
    gain = 1 + max(0, 1 - 1 / stretch) * (ratio - 1)
    return gain, mean + (1 - 1 / (z**2).mean()) * (wanted - mean) - gain * mean


# ---- reference


def test_a_reference_has_means_and_deviations_of_each_class() -> None:
    X, y = drawn([20, 0, 1])
    means, deviations = reference_of(X, y).arrays
    for label in (0, 2):
        mean, deviation = of_edges(X[y == label])
        assert_allclose(means[label], mean, atol=1e-5)
        assert_allclose(deviations[label], deviation, atol=1e-5)
    assert_array_equal(reference_of(X, y).sizes, [20, 0, 1])
    same = Reference(3, 4, reference_of(X, y).data)
    assert same == reference_of(X[::-1], y[::-1])


def with_value(place: tuple[int, int, int], value: float) -> bytes:
    reference = reference_of(*drawn([5, 5, 5]))
    arrays = reference.arrays.copy()
    arrays[place] = value
    return reference.sizes.tobytes() + arrays.tobytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a" * 215,
        [0.0] * 27,
        np.array([-1, 5, 5]).tobytes() + b"\0" * 192,
        None,
        with_value((0, 0, 0), np.nan),
        with_value((0, 0, 0), np.inf),
        with_value((1, 2, 3), -1.0),
    ],
    ids=["none", "size", "list", "class", "missing", "nan", "infinity", "negative"],
)
def test_other_references_are_refused(data: Any) -> None:
    with raises(DataError, field="reference"):
        Reference(3, 4, data)


# ---- alignment


@pytest.mark.parametrize("n_per_class", [[60, 60, 60], [200, 5, 30], [0, 150, 10]])
def test_a_shifted_party_is_aligned_as_its_classes_tell(n_per_class: list[int]) -> None:
    reference = reference_of(*drawn([300, 300, 300]))
    X, y = drawn(n_per_class, seed=1)
    shifted = X * [1.5, 0.7, 1.0, 3.0] + [2.0, -1.0, 0.5, 0.0]
    alignment = reference.alignment(shifted, y)
    assert alignment is not None
    gain, offset = expected(reference, shifted, y)
    assert_allclose(alignment.gain, [*gain, 1.0], atol=1e-5)
    assert_allclose(alignment.offset, [*offset, 0.0], atol=1e-5)
    assert_array_equal(alignment.applied(shifted), shifted * alignment.gain + alignment.offset)
    assert np.abs(alignment.applied(shifted) - X)[:, :3].mean() < 0.2 < np.abs(shifted - X)[:, :3].mean()
    again = reference.alignment(shifted[::-1], y[::-1])
    assert again is not None
    assert_array_equal(again.gain, alignment.gain)
    assert_array_equal(again.offset, alignment.offset)
    sparse = reference.alignment(sp.csr_array(shifted), y)
    assert sparse is not None
    assert_array_equal(sparse.applied(sp.csr_array(shifted)), alignment.applied(shifted))


@pytest.mark.parametrize("n_per_class", [[50, 50, 50], [150, 0, 0], [0, 3, 40], [10, 0, 0], [1000, 10, 10]])
def test_parties_that_differ_in_their_classes_alone_are_not_aligned(n_per_class: list[int]) -> None:
    reference = reference_of(*drawn([300, 300, 300]))
    seen = [reference.alignment(*drawn(n_per_class, seed)) for seed in range(40)]
    assert sum(each is not None for each in seen) <= 1


def test_too_few_samples_and_classes_without_a_reference_give_none() -> None:
    reference = reference_of(*drawn([300, 0, 300]))
    X, y = drawn([20, 0, 0])
    assert reference.alignment(X[:9] + 10, y[:9]) is None
    assert reference.alignment(X[:10] + 10, y[:10]) is not None
    X, y = drawn([9, 100, 0])
    assert reference.alignment(X + 10, y) is None
    assert reference.alignment(X[:0], y[:0]) is None
    assert reference.alignment(np.ones((30, 4)), np.zeros(30, int)) is None  # nothing varies


@pytest.mark.parametrize("factor", [1e150, 1e-160])
def test_values_of_any_size_give_finite_numbers_or_none(factor: float) -> None:
    X, y = drawn([100, 100, 100])
    alignment = reference_of(X * factor, y).alignment((X + 3) * factor, y)
    if alignment is not None:
        assert np.isfinite(alignment.applied(X * factor)).all()


@pytest.mark.parametrize(
    ("gain", "offset"),
    [([1.0], [0.0]), (np.ones(2), np.ones(3)), (np.ones((1, 2)), np.ones((1, 2))), (np.ones(2), np.array([0, np.inf]))],
)
def test_other_alignments_are_refused(gain: Any, offset: Any) -> None:
    if isinstance(gain, list):
        gain = np.array(gain, np.float32)
    with raises(DataError, field="alignment"):
        Alignment(gain, offset)


def test_samples_that_overflow_are_refused() -> None:
    with raises(DataError, field="X"):
        Alignment(np.array([1e300]), np.array([0.0])).applied(np.array([[1e300]]))


# ---- in a model

ALIGNMENT = Alignment(np.array([2.0, 0.5, 1.0]), np.array([-1.0, 0.0, 3.0]))


@pytest.fixture
def model() -> Model:
    X, y = drawn([30, 20, 10])
    counts = ClassCounts.from_data(flynn_hash(SPEC), X[:, :3], y, 3)
    return Model(
        (ModelMember(SPEC, counts, ScoringRule("balanced", 0.6, 0.7)),), np.array(["a", "b", "c"]), aligned=True
    )


def test_a_model_with_an_alignment_aligns_what_it_looks_at(model: Model) -> None:
    X = drawn([4, 4, 4], 3)[0][:, :3]
    own = replace(model, alignment=ALIGNMENT)
    aligned = ALIGNMENT.applied(X)
    for method in ("scores", "novelty", "shared_scores"):
        assert_array_equal(getattr(own, method)(X), getattr(model, method)(aligned))
    assert own.sha256() == model.sha256() != replace(model, aligned=False).sha256()
    learned = FlyNNClassifier.from_model(own).partial_fit(X, ["a"] * 12)
    assert learned.counts_ == FlyNNClassifier.from_model(model).partial_fit(aligned, ["a"] * 12).counts_
    assert learned.model_.alignment is ALIGNMENT
    assert learned.forget(X, ["a"] * 12).counts_ == model.member.counts


def test_models_of_aligned_and_other_samples_do_not_merge(model: Model) -> None:
    plain = FlyNNClassifier.from_model(replace(model, aligned=False))
    with raises(DataError, field="merge"):
        FlyNNClassifier.from_model(model).merge(plain)


def test_an_alignment_is_of_an_aligned_model_of_as_many_features(model: Model) -> None:
    for wrong in ({"aligned": False, "alignment": ALIGNMENT}, {"alignment": Alignment(np.ones(2), np.ones(2))}):
        with raises(DataError, field="alignment"):
            replace(model, **wrong)
    with raises(DataError, field="aligned"):
        replace(model, aligned=1)


def test_an_alignment_of_another_size_in_a_file_is_refused(model: Model, tmp_path: Any) -> None:
    path = tmp_path / "model.npz"
    own = replace(model, alignment=ALIGNMENT)
    object.__setattr__(own, "alignment", Alignment(np.ones(2), np.ones(2)))
    FlyNNClassifier.from_model(own).save(path)
    with raises(ModelFileError, field="alignment"):
        FlyNNClassifier.load(path)


@pytest.mark.parametrize("seed", range(3))
def test_under_a_floor_an_alignment_is_made_of_nothing_but_what_the_party_tells(seed: int) -> None:
    reference = reference_of(*drawn(200))
    X, y = drawn(20, seed + 1)
    X[:, :3] = 2 * X[:, :3] + 4
    told = ColumnHistograms.from_data(X, y, 3, 5)
    alignment = reference.alignment(X, y, 5)
    assert alignment is not None
    n_same = 0
    for row in range(len(X)):
        other = X.copy()
        other[row, 0] += 0.2
        if ColumnHistograms.from_data(other, y, 3, 5) != told:
            continue
        n_same += 1
        again = reference.alignment(other, y, 5)
        assert again is not None
        assert_array_equal(again.gain, alignment.gain)
        assert_array_equal(again.offset, alignment.offset)
    assert n_same > 20
