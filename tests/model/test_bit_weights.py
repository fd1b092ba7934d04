"""Weights of the active bits in a model, as noisy refinement leaves them: scores, files, and what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.special import softmax
from sklearn.datasets import make_classification

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import DataError, ModelFileError
from flwr_flynn.model import model_file
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.noisy_rounds import LARGEST_WEIGHT, refined_scores, weights_sha256
from tests.memory import traced
from tests.model.forgery import put, rewrite, wrong_arrays
from tests.raising import raises

X, Y = make_classification(240, 4, n_informative=4, n_redundant=0, n_classes=3, random_state=1)
X = X.round(2)
NAMES = np.array(["ash", "birch", "cedar"])
SPEC = HashSpec(4, 64, 2, 6, 0, signed=True)
PLAIN = FlyNNClassifier(SPEC).fit(X, NAMES[Y]).model_
WEIGHTS = np.random.default_rng(0).integers(-500, 500, (64, 3)).astype(np.int32)
REFINED = replace(PLAIN, refined=WEIGHTS)


def test_scores_are_exact_sums_of_weights() -> None:
    active = PLAIN.member.hash.active(X[:9])
    fortran = np.asfortranarray(WEIGHTS)
    for each in (WEIGHTS, fortran):
        assert_array_equal(refined_scores(each, active), WEIGHTS[active].astype(np.int64).sum(axis=1) / 1024)
    assert weights_sha256(fortran) == weights_sha256(WEIGHTS) != weights_sha256(WEIGHTS[::-1])


def test_a_refined_model_is_another_model_and_gives_probabilities() -> None:
    classifier = FlyNNClassifier.from_model(REFINED)
    assert REFINED.sha256() != PLAIN.sha256()
    odds = classifier.decision_function(X)
    assert_array_equal(REFINED.scores(X), odds)
    assert_array_equal(classifier.predict(X), NAMES[odds.argmax(axis=1)])
    shares = classifier.predict_proba(X)
    np.testing.assert_allclose(shares, softmax(odds, axis=1), atol=1e-12)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-12)
    assert_array_equal(REFINED.novelty(X), PLAIN.novelty(X))


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_class_without_samples_never_wins(empty: int) -> None:
    some = empty != Y
    first = FlyNNClassifier(SPEC).partial_fit(X[some], Y[some], classes=range(3)).model_
    weights = np.full((64, 3), -1000, np.int32)
    weights[:, empty] = 0
    classifier = FlyNNClassifier.from_model(replace(first, refined=weights))
    assert empty not in classifier.predict(X)
    assert not classifier.predict_proba(X)[:, empty].any()
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1, atol=1e-12)


def test_one_class_alone_wins_with_weights_of_0() -> None:
    for classes in (None, range(3)):
        model = FlyNNClassifier(SPEC).partial_fit(X[Y == 1], Y[Y == 1], classes=classes or [1]).model_
        zeros = np.zeros((64, len(model.classes)), np.int32)
        assert set(FlyNNClassifier.from_model(replace(model, refined=zeros)).predict(X)) == {1}


def test_other_counts_drop_the_refinement() -> None:
    def fitted() -> FlyNNClassifier:
        return FlyNNClassifier.from_model(REFINED)

    some, labels = X[:5], NAMES[Y[:5]]
    same = fitted()
    same.merge(replaced_counts(same))
    assert same.model_.sha256() == REFINED.sha256()
    assert fitted().partial_fit(some, labels).model_.refined is None
    assert fitted().forget(some, labels).model_.refined is None
    assert fitted().merge(fitted()).model_.refined is None


def replaced_counts(classifier: FlyNNClassifier) -> FlyNNClassifier:
    """A classifier of the same members, of no samples."""
    empty = [replace(each, counts=each.counts - each.counts) for each in classifier.model_.members]
    return FlyNNClassifier.from_model(replace(classifier.model_, members=tuple(empty), refined=None))


# ---- weights that fit


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights[:-1],
        lambda weights: weights.T,
        lambda weights: weights[None],
        lambda weights: weights.astype(np.int64),
        lambda weights: weights.astype(np.float32),
        lambda weights: np.full_like(weights, LARGEST_WEIGHT + 1),
        lambda weights: np.full_like(weights, -LARGEST_WEIGHT - 1),
        lambda weights: np.full_like(weights, -(2**31)),
    ],
)
def test_weights_that_do_not_fit_the_member_are_refused(change: Any) -> None:
    with raises(DataError, field="refined"):
        replace(REFINED, refined=change(WEIGHTS))


def test_a_model_of_several_members_has_no_weights() -> None:
    with raises(DataError, field="refined"):
        replace(FlyNNClassifier(hash_dim=64).fit(X, NAMES[Y]).model_, refined=WEIGHTS)


def test_weights_of_a_model_cannot_be_changed() -> None:
    mine = WEIGHTS.copy()
    model = replace(PLAIN, refined=mine)
    before = model.sha256()
    mine[:] = 7
    assert model.sha256() == before == REFINED.sha256()
    assert model.refined is not None
    with pytest.raises(ValueError, match="read-only"):
        model.refined[0, 0] = 1


# ---- files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    FlyNNClassifier.from_model(REFINED).save(tmp_path / "model.npz")
    return tmp_path / "model.npz"


@pytest.mark.parametrize("extreme", [0, 1, 127, 128, -128, -129, 2**15 - 1, 2**15, -(2**15), 2**20, -(2**20)])
def test_weights_are_written_in_the_narrowest_type_that_has_them(extreme: int, tmp_path: Path) -> None:
    weights = np.zeros((64, 3), np.int32)
    weights[3, 1] = extreme
    model = replace(PLAIN, refined=weights)
    model_file.write(tmp_path / "m", model)
    assert FlyNNClassifier.load(tmp_path / "m").model_.sha256() == model.sha256()
    with np.load(tmp_path / "m") as file:
        width = 1 if -128 < extreme < 128 else 2 if -(2**15) < extreme < 2**15 else 4
        assert file["weights_0"].dtype == np.dtype(f"<i{width}")


HOSTILE: dict[str, tuple[Any, str]] = {
    "one is missing": (lambda _, arrays: arrays.pop("weights_0"), "arrays"),
    "one more": (put("weights_9", lambda array: array), "arrays"),
    "in format 9": (lambda fields, _: fields.update(format=9), "format"),
    **wrong_arrays("weights_0", "refined", 2**20),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_forged_weights_are_refused(path: Path, name: str) -> None:
    change, field = HOSTILE[name]
    rewrite(path, change)
    with raises(ModelFileError, field=field):
        FlyNNClassifier.load(path)


def test_the_digest_covers_the_weights(path: Path) -> None:
    rewrite(path, put("weights_0", lambda array: array + array.dtype.type(1)), seal=False)
    with raises(ModelFileError, field="digest"):
        FlyNNClassifier.load(path)


def test_the_memory_limit_counts_the_weights(tmp_path: Path) -> None:
    model, path = FlyNNClassifier(replace(SPEC, hash_dim=4096)).fit(X, Y).model_, tmp_path / "m"
    model_file.write(path, replace(model, refined=np.zeros((4096, 3), np.int32)))
    limit = memory_needed(model.member.spec, 3) + 4 * 3 * 4096
    assert FlyNNClassifier.load(path, max_bytes=limit).model_.refined is not None
    with traced() as memory, raises(ModelFileError, field="memory"):
        FlyNNClassifier.load(path, max_bytes=limit - 1)
    assert memory.peak < 10**6
