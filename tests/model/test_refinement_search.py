"""The search for the weights of a refined model, and the classifier that has them."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import DataError, ModelFileError
from flwr_flynn.model import model_file, refinement_search
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.model import Model
from flwr_flynn.model.refinement import (
    GRID,
    LARGEST_WEIGHT,
    LEVELS,
    RefinementStatistic,
    Weights,
    hashed,
    held_out,
    statistic_of,
)
from flwr_flynn.model.refinement_search import Search, held_out_counts, refine, without_validation_samples
from tests.memory import traced
from tests.raising import raises

X, Y = make_classification(240, 4, n_informative=4, n_redundant=0, n_classes=3, random_state=1)
X = X.round(2)
NAMES = np.array(["ash", "birch", "cedar"])
SPEC = HashSpec(4, 64, 2, 6, 0, signed=True)
DIGITS, DIGIT = load_digits(return_X_y=True)


def committee(**changes: Any) -> FlyNNClassifier:
    """A classifier of several members."""
    return FlyNNClassifier(**{"hash_dim": 64, **changes}).fit(X, NAMES[Y])


PLAIN = committee().model_
REFINED = committee(refine_rounds=4).model_


def searching(model: Model, X: Any, y: np.ndarray) -> tuple[Search, Any]:
    """A search at its start, and a function that makes the statistic at its trial."""
    hashers = [member.hash for member in model.members]
    batches = list(hashed(hashers, X, y))
    out = held_out_counts(hashers, len(model.classes), batches)
    counts = [member.counts - part for member, part in zip(model.members, out, strict=True)]

    def statistic(search: Search, with_before: bool = False) -> RefinementStatistic:
        before = (
            replace(model, members=without_validation_samples(model.members, counts), refined=None).scores_of_active
            if with_before
            else None
        )
        return statistic_of(search.trial, search.factors, batches, before)

    return Search.of(counts), statistic


# ---- the minimum


class Objective:
    """The loss that is minimised, in plain NumPy, of the samples that are not held out."""

    def __init__(self, model: Model, factors: np.ndarray, levels: int = LEVELS) -> None:
        taught = ~held_out(X)
        bits = [member.hash.active(X[taught]) for member in model.members]
        ends = np.cumsum([0, *[member.spec.hash_dim for member in model.members]])
        self.active = np.zeros((int(taught.sum()), ends[-1]))
        for each, first in zip(bits, ends, strict=False):
            np.put_along_axis(self.active, each + first, 1.0, axis=1)
        self.labels, self.factors = Y[taught], factors[Y[taught]].astype(float)
        self.ridge = levels * 0.03 * sum(member.spec.hash_nnz for member in model.members)

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(-1, 3)
        scores = self.active @ weights
        n = np.arange(len(scores))
        losses = logsumexp(scores, axis=1) - scores[n, self.labels]
        residuals = softmax(scores, axis=1)
        residuals[n, self.labels] -= 1
        gradient = self.active.T @ (residuals * self.factors[:, None]) + self.ridge * weights
        return float(self.factors @ losses + self.ridge / 2 * (flat @ flat)), gradient.ravel()


def joined(weights: Weights) -> np.ndarray:
    return np.concatenate([each.ravel() for each in weights]) / 1024


MODELS = [FlyNNClassifier(SPEC).fit(X, Y).model_, PLAIN]


@pytest.mark.parametrize("model", MODELS, ids=["one", "several"])
@pytest.mark.parametrize(("levels", "gap"), [(LEVELS, 0.04), (2**13, 0.001)])
def test_the_search_comes_to_the_minimum(
    levels: int, gap: float, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As near as residuals of so many levels lead."""
    for module in ("refinement", "refinement_search"):
        monkeypatch.setattr(f"flwr_flynn.model.{module}.LEVELS", levels)
    search, statistic = searching(model, X, Y)
    objective = Objective(model, search.factors, levels)
    start, *losses = [objective(joined(search.trial))[0]]
    for number in range(80):
        search = search.advance(statistic(search, number == 0))
        losses.append(objective(joined(search.trial))[0])
        if search.is_done:
            break
    best = minimize(objective, np.zeros(len(joined(search.trial))), jac=True, method="L-BFGS-B", tol=1e-12)
    assert best.fun < start
    assert -1e-9 < (min(losses) - best.fun) / (start - best.fun) < gap


def test_the_loss_of_every_point_that_is_accepted_falls() -> None:
    search, statistic = searching(PLAIN, X, Y)
    objective = Objective(PLAIN, search.factors)
    accepted = []
    for _ in range(12):
        tried = joined(search.trial)
        search = search.advance(statistic(search))
        if search._at is not None and np.array_equal(search._at, tried):
            accepted.append(objective(tried)[0])
            assert search._loss == pytest.approx(accepted[-1], rel=1e-3)
    assert len(accepted) > 5
    assert all(later < earlier for earlier, later in pairwise(accepted))


def test_what_rounding_takes_away_is_added_to_the_next_step() -> None:
    search, statistic = searching(PLAIN, X, Y)
    for _ in range(12):
        before, search = search, search.advance(statistic(search))
        sent, wanted = joined(search.trial), search._next
        is_coarse = not any((each % GRID).any() for each in search.trial)
        assert is_coarse or np.abs(wanted - joined(before.trial)).max() <= GRID / 2 / 1024 + 1e-9
        assert np.abs(sent - wanted).max() <= (GRID if is_coarse else 1) / 2 / 1024 + 1e-9
        assert_array_equal(wanted, search._unrounded + search._length * search._direction)
        if search._at is not before._at and before._at is not None:
            assert_array_equal(search._unrounded, before._next)


@pytest.mark.parametrize("model", MODELS, ids=["one", "several"])
def test_no_weights_are_refused_twice_and_the_search_ends(model: Model) -> None:
    search, statistic = searching(model, X, Y)
    refused: list[np.ndarray] = []
    for _ in range(150):
        at, tried = search._at, joined(search.trial)
        assert not any(np.array_equal(tried, each) for each in refused)
        search = search.advance(statistic(search))
        refused = [*refused, tried] if search._at is at else []
        if search.is_done:
            break
    assert search.is_done
    assert len(search.accuracies) > 20
    assert_array_equal(joined(search.trial), search._at)


def with_loss(statistic: RefinementStatistic, loss: int) -> RefinementStatistic:
    return RefinementStatistic((np.array([loss]), *statistic.tables[1:]))


def test_a_step_that_is_too_long_is_taken_back() -> None:
    search, statistic = searching(PLAIN, X, Y)
    search = search.advance(statistic(search))
    at, length = search._at, search._length
    worse = with_loss(statistic(search), 10**12)
    shorter = search.advance(worse)
    assert shorter._at is at
    assert 0.1 * length <= shorter._length <= 0.5 * length
    for _ in range(60):
        shorter = shorter.advance(worse)
    assert shorter.is_done
    assert_array_equal(joined(shorter.trial), at)


# ---- parties that come and go


def test_with_other_parties_the_search_begins_anew_at_its_trial() -> None:
    search, statistic = searching(PLAIN, X, Y)
    all_of_them = frozenset("abc")
    for number in range(3):
        search = search.advance(statistic(search, number == 0), all_of_them)
    assert search._steps
    trial, other = search.trial, with_loss(statistic(search), 10**15)
    fewer = search.advance(other, frozenset("ab"))  # what was worse is now the place to begin
    assert_array_equal(fewer._at, joined(trial))
    assert fewer._steps == ()
    fresh = replace(Search.of(search.counts), trial=trial).advance(other, frozenset("ab"))
    assert_array_equal(joined(fewer.trial), joined(fresh.trial))
    assert len(fewer.accuracies) == 5
    same = search.advance(other, all_of_them)
    assert not np.array_equal(joined(same.trial), joined(fewer.trial))


# ---- the best


def judged(
    search: Search, correct: list[int], sizes: list[int], before: list[int] | None = None
) -> RefinementStatistic:
    zeros = RefinementStatistic.zeros([each.shape for each in search.trial])
    gradient = tuple(np.full_like(each, 1000) for each in zeros.gradient)
    tables = [np.array(table, np.int64) for table in (sizes, correct, before or [0, 0, 0])]
    return RefinementStatistic((np.array([10**6]), *tables, *gradient))


def test_kept_are_the_best_weights_of_all_and_the_first_among_equals() -> None:
    search = Search.of([member.counts for member in PLAIN.members])
    found = [(2, 5, None), (3, 6, None), (2, 9, 2), (4, 4, 2), (4, 5, 4), (0, 0, 4)]
    trials = []
    for first, second, best in found:
        trials.append(search.trial)
        search = replace(search.advance(judged(search, [first, second, 0], [4, 10, 0], [3, 6, 0])), is_done=False)
        assert search.best is (None if best is None else trials[best])
    assert search.accuracies == (0.675, 0.5, 0.675, 0.7, 0.7, 0.75, 0.0)


def test_without_samples_held_out_nothing_is_refined() -> None:
    search = Search.of([member.counts for member in PLAIN.members])
    for _ in range(3):
        search = search.advance(judged(search, [0, 0, 0], [0, 0, 0]))
    assert (search.best, search.accuracies) == (None, (0.0,) * 4)
    taught = ~held_out(X)
    plain, asked = (FlyNNClassifier(SPEC, refine_rounds=k).fit(X[taught], Y[taught]) for k in (0, 3))
    assert asked.model_.refined is None
    assert asked.model_.sha256() == plain.model_.sha256()


def test_weights_that_are_no_better_than_none_are_left() -> None:
    search = Search.of([member.counts for member in PLAIN.members])
    for _ in range(3):
        search = search.advance(judged(search, [5, 5, 5], [5, 5, 5], [5, 5, 5]))
    assert search.best is None


# ---- the whole refinement


def test_a_refinement_is_the_search_over_the_samples() -> None:
    search, statistic = searching(PLAIN, X, Y)
    for number in range(4):
        search = search.advance(statistic(search, number == 0))
    assert search.best is not None
    assert REFINED.refined is not None
    assert_array_equal(joined(REFINED.refined), joined(search.best))
    assert replace(REFINED, refined=None).sha256() == PLAIN.sha256()


def test_a_refinement_gives_the_same_bits_however_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = REFINED.sha256()
    assert refine(PLAIN, X, Y, 4).sha256() == expected
    assert refine(PLAIN, X, Y, 4, n_jobs=2).sha256() == expected
    order = np.random.default_rng(0).permutation(240)
    assert refine(PLAIN, X[order], Y[order], 4).sha256() == expected
    monkeypatch.setattr(refinement_search, "_KEPT", 0)  # hashed anew in each round
    monkeypatch.setattr("flwr_flynn.model.refinement.HELD", 200)
    assert refine(PLAIN, X, Y, 4).sha256() == expected


def test_no_rounds_refine_nothing() -> None:
    assert refine(PLAIN, X, Y, 0).refined is None


def test_a_search_that_is_done_asks_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def take(self: Search, total: RefinementStatistic) -> Search:
        calls.append(self)
        return replace(self, is_done=len(calls) == 2, best=self.trial)

    monkeypatch.setattr(Search, "advance", take)
    assert refine(PLAIN, X, Y, 9).refined is not None
    assert len(calls) == 2


def test_a_search_takes_no_more_memory_than_is_said() -> None:
    model = FlyNNClassifier(hash_dim=16384, max_members=1).fit(X, Y).model_
    search, statistic = searching(model, X, Y)
    n_weights = sum(each.size for each in search.trial)
    search = search.advance(statistic(search))
    with traced() as memory:
        for _ in range(7):
            search = search.advance(statistic(search))
    assert len(search._steps) == 5
    assert (
        0.5 * refinement_search.BYTES_PER_WEIGHT * n_weights
        < memory.peak
        < refinement_search.BYTES_PER_WEIGHT * n_weights
    )


def test_refinement_makes_digits_better() -> None:
    places = np.arange(len(DIGIT)) % 2 == 0
    plain, refined = (
        FlyNNClassifier(hash_dim=1024, refine_rounds=k).fit(DIGITS[places], DIGIT[places]) for k in (0, 10)
    )
    assert refined.score(DIGITS[~places], DIGIT[~places]) >= plain.score(DIGITS[~places], DIGIT[~places])


# ---- the classifier


@pytest.mark.parametrize("rounds", [-1, 1.5, "4", None])
def test_rounds_are_checked(rounds: Any) -> None:
    with pytest.raises(ValueError, match="refine_rounds"):
        FlyNNClassifier(SPEC, refine_rounds=rounds).fit(X, Y)


def test_scikit_learn_sees_the_rounds() -> None:
    copy = clone(FlyNNClassifier(refine_rounds=4, hash_dim=64))
    assert copy.get_params()["refine_rounds"] == 4
    assert copy.fit(X, NAMES[Y]).model_.sha256() == REFINED.sha256()


def test_a_refined_model_is_another_model_and_gives_probabilities() -> None:
    classifier = FlyNNClassifier.from_model(REFINED)
    assert REFINED.sha256() != PLAIN.sha256()
    assert REFINED.temperature == 1.0
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
    weights = tuple(np.full((64, 3), -1000, np.int32) for _ in first.members)
    weights[0][:, empty] = 0
    classifier = FlyNNClassifier.from_model(replace(first, refined=weights))
    assert empty not in classifier.predict(X)
    assert not classifier.predict_proba(X)[:, empty].any()
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1, atol=1e-12)
    refined = refine(first, X[some], Y[some], 3)
    assert empty not in FlyNNClassifier.from_model(refined).predict(X)


def test_a_class_whose_samples_are_all_held_out_never_wins() -> None:
    """No sample taught its weights: beside classes whose scores are negative, 0 would win."""
    one_class = Y == 1
    some = ~one_class | held_out(X)
    assert (some & one_class).sum() > 0
    model = FlyNNClassifier(SPEC).fit(X[some], Y[some]).model_
    search, _ = searching(model, X[some], Y[some])
    assert search.factors.tolist()[1] == 0
    assert not any(each[:, 1].any() for each in search.trial)
    lowered = tuple(each - np.int32([2000, 0, 2000]) for each in search.trial)
    refined = FlyNNClassifier.from_model(replace(model, refined=tuple(each.astype(np.int32) for each in lowered)))
    assert refined.model_.empty_classes.tolist() == [False, True, False]
    assert 1 not in refined.predict(X)
    assert not refined.predict_proba(X)[:, 1].any()


def test_one_class_alone_wins_with_weights_of_0() -> None:
    for classes in (None, range(3)):
        model = FlyNNClassifier(SPEC).partial_fit(X[Y == 1], Y[Y == 1], classes=classes or [1]).model_
        zeros = tuple(np.zeros((64, len(model.classes)), np.int32) for _ in model.members)
        assert set(FlyNNClassifier.from_model(replace(model, refined=zeros)).predict(X)) == {1}


def test_other_counts_drop_the_refinement() -> None:
    def fitted() -> FlyNNClassifier:
        classifier = FlyNNClassifier(hash_dim=64, refine_rounds=4).fit(X, NAMES[Y])
        assert classifier.model_.refined is not None
        return classifier

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
        lambda weights: (*weights, weights[0]),
        lambda weights: (weights[0].T, *weights[1:]),
        lambda weights: (weights[0].astype(np.int64), *weights[1:]),
        lambda weights: (weights[0].astype(np.float32), *weights[1:]),
        lambda weights: (np.full_like(weights[0], LARGEST_WEIGHT + 1), *weights[1:]),
        lambda weights: (np.full_like(weights[0], -LARGEST_WEIGHT - 1), *weights[1:]),
        lambda weights: (np.full_like(weights[0], -(2**31)), *weights[1:]),
    ],
)
def test_weights_that_do_not_fit_the_members_are_refused(change: Any) -> None:
    with raises(DataError, field="refined"):
        replace(REFINED, refined=change(REFINED.refined))


def test_weights_of_a_model_cannot_be_changed() -> None:
    mine = [np.array(each) for each in REFINED.refined or ()]
    model = replace(PLAIN, refined=mine)
    before = model.sha256()
    mine[0][:] = 7
    assert model.sha256() == before == REFINED.sha256()
    assert model.refined is not None
    with pytest.raises(ValueError, match="read-only"):
        model.refined[0][0, 0] = 1


# ---- files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    FlyNNClassifier.from_model(REFINED).save(tmp_path / "model.npz")
    return tmp_path / "model.npz"


def test_a_refined_model_comes_back_from_its_file(path: Path) -> None:
    loaded = FlyNNClassifier.load(path)
    assert loaded.model_.sha256() == REFINED.sha256()
    assert_array_equal(loaded.predict_proba(X), FlyNNClassifier.from_model(REFINED).predict_proba(X))
    again = path.with_name("again")
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    with np.load(path, allow_pickle=False) as file:
        n = len(REFINED.members)
        names = [f"{name}_{i}" for name in ("counts", "weights") for i in range(n)]
        assert sorted(file) == sorted(["digest", "header", *names])
        assert json.loads(file["header"].tobytes())["format"] == 10


@pytest.mark.parametrize("extreme", [0, 1, 127, 128, -128, -129, 2**15 - 1, 2**15, -(2**15), 2**20, -(2**20)])
def test_weights_are_written_in_the_narrowest_type_that_has_them(extreme: int, tmp_path: Path) -> None:
    weights = tuple(np.zeros(each.shape, np.int32) for each in REFINED.refined or ())
    weights[0][3, 1] = extreme
    model = replace(PLAIN, refined=weights)
    model_file.write(tmp_path / "m", model)
    assert FlyNNClassifier.load(tmp_path / "m").model_.sha256() == model.sha256()
    with np.load(tmp_path / "m") as file:
        width = 1 if -128 < extreme < 128 else 2 if -(2**15) < extreme < 2**15 else 4
        assert file["weights_0"].dtype == np.dtype(f"<i{width}")


def forge(path: Path, change: Any, seal: bool = True) -> None:
    """Rewrite a file with changed arrays, and a digest that fits."""
    with np.load(path) as file:
        arrays = dict(file)
    fields = json.loads(arrays.pop("header").tobytes())
    digest = arrays.pop("digest")
    change(fields, arrays)
    parts = [np.frombuffer(json.dumps(fields).encode(), np.uint8), *arrays.values()]
    arrays = {"header": parts[0], **arrays, "digest": model_file.digest_of(*parts) if seal else digest}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, array)


def put(name: str, change: Any) -> Any:
    def apply(_: Any, arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = change(arrays.get(name, np.zeros(1, np.int8)))

    return apply


HOSTILE: dict[str, tuple[Any, str]] = {
    "one is missing": (lambda _, arrays: arrays.pop("weights_0"), "arrays"),
    "one more": (put("weights_9", lambda array: array), "arrays"),
    "in format 9": (lambda fields, _: fields.update(format=9), "format"),
    "transposed": (put("weights_0", lambda array: np.ascontiguousarray(array.T)), "refined"),
    "in another order": (put("weights_0", np.asfortranarray), "weights_0"),
    "flat": (put("weights_0", np.ravel), "refined"),
    "a row less": (put("weights_0", lambda array: array[1:]), "refined"),
    "a row more": (put("weights_0", lambda array: np.tile(array.astype(np.int32), (2, 1))), "weights_0"),
    "unsigned": (put("weights_0", lambda array: np.abs(array).astype(np.uint8)), "weights_0"),
    "floats": (put("weights_0", lambda array: array.astype(np.float32)), "weights_0"),
    "wide": (put("weights_0", lambda array: array.astype(np.int64)), "weights_0"),
    "of the other end": (put("weights_0", lambda array: array.astype(">i4")), "weights_0"),
    "objects": (put("weights_0", lambda array: array.astype(object)), "weights_0"),
    "too large": (put("weights_0", lambda array: np.full(array.shape, 2**20 + 1, np.int32)), "refined"),
    "too small": (put("weights_0", lambda array: np.full(array.shape, -(2**31), np.int32)), "refined"),
}


def test_forging_works(path: Path) -> None:
    forge(path, lambda *_: None)
    assert FlyNNClassifier.load(path).model_.sha256() == REFINED.sha256()


@pytest.mark.parametrize("name", HOSTILE)
def test_forged_weights_are_refused(path: Path, name: str) -> None:
    change, field = HOSTILE[name]
    forge(path, change)
    with raises(ModelFileError, field=field):
        FlyNNClassifier.load(path)


def test_the_digest_covers_the_weights(path: Path) -> None:
    forge(path, put("weights_1", lambda array: array + array.dtype.type(1)), seal=False)
    with raises(ModelFileError, field="digest"):
        FlyNNClassifier.load(path)


def test_the_memory_limit_counts_the_weights(tmp_path: Path) -> None:
    model, path = FlyNNClassifier(hash_dim=4096).fit(X, Y).model_, tmp_path / "m"
    zeros = tuple(np.zeros((4096, 3), np.int32) for _ in model.members)
    model_file.write(path, replace(model, refined=zeros))
    limit = sum(memory_needed(member.spec, 3) + 4 * 3 * 4096 for member in model.members)
    assert FlyNNClassifier.load(path, max_bytes=limit).model_.refined is not None
    with traced() as memory, raises(ModelFileError, field="memory"):
        FlyNNClassifier.load(path, max_bytes=limit - 1)
    assert memory.peak < 10**6
