"""The estimator: scikit-learn's checks, and its own laws."""

from __future__ import annotations

import pickle
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits, make_blobs, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, LeaveOneOut, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from flwr_flynn import ClassCounts, FlyNNClassifier, HashSpec
from flwr_flynn.errors import ConfigError, CountsError, DataError, SpecError
from flwr_flynn.model import prediction
from flwr_flynn.model.candidates import HashPlan, decay_grid, suggest_decay
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.model import Model, ModelMember, ScoringRule
from flwr_flynn.model.scoring import RULES, TEMPERATURES
from tests import oracle
from tests.raising import raises
from tests.strategies import cases

SPEC = HashSpec(n_features=5, hash_dim=200, row_nnz=2, hash_nnz=10, seed=3, signed=True)
X, CODES = make_classification(
    120, 5, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=0
)
X = X.round(2)
LABELS = np.array(["ant", "bee", "cicada"])
Y = LABELS[CODES]


@parametrize_with_checks([FlyNNClassifier()])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([FlyNNClassifier(rule="novelty"), FlyNNClassifier(decay=0.5, n_jobs=2)])
def test_scikit_learns_checks_with_settings(estimator, check):
    check(estimator)


def fitted(**parameters):
    return FlyNNClassifier(spec=SPEC, **parameters).fit(X, Y)


# A model for each sample that is left out takes a while: of every fourth sample, and of all where nobody waits.
LEFT_OUT = pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])


def all_but_one(points, labels):
    """The counts of all samples but each."""
    model, places = FlyNNClassifier(spec=SPEC, decay=0.5), np.arange(len(labels))
    return [model.fit(points[places != i], labels[places != i]).counts_ for i in places]


def predicted_left_out(counts, points, method="predict", **scoring):
    """The predictions for each sample of the counts of all others."""
    models = (FlyNNClassifier.from_counts(SPEC, each, LABELS, **scoring) for each in counts)
    return [getattr(model, method)(point[None])[0] for model, point in zip(models, points, strict=True)]


# Laws


@given(cases(), st.data())
def test_training_and_inference_agree_with_the_paper_in_plain_python(case, data):
    spec, points = case
    if len(points) == 0:
        return
    codes = data.draw(st.lists(st.integers(0, 2), min_size=len(points), max_size=len(points)))
    decay = data.draw(st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(3, 4)]))
    try:
        model = FlyNNClassifier(spec=spec, decay=float(decay), rule="novelty").fit(points, codes)
    except DataError as error:
        assert (error.field, error.expected.endswith("(rescale the features)")) == ("X", True)
        return
    classes, codes = np.unique(codes, return_inverse=True)
    hashes = oracle.hashes(points, model.model_.member.hash)
    counts = oracle.count(hashes, codes, len(classes), spec.hash_dim)
    assert_array_equal(model.counts_.array, counts)
    assert_array_equal(model.predict(points), classes[oracle.predict(hashes, counts, decay)])


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array, sp.csc_matrix, sp.coo_array])
def test_one_shot_batches_and_one_by_one_are_equal(container):
    whole = FlyNNClassifier(spec=SPEC).partial_fit(container(X), Y, classes=LABELS)
    for step in (1, 7, 50):
        parts = FlyNNClassifier(spec=SPEC)
        for first in range(0, len(X), step):
            part = slice(first, first + step)
            parts.partial_fit(container(X[part]), Y[part], classes=LABELS if first == 0 else None)
        assert_array_equal(parts.counts_.array, whole.counts_.array)
        assert_array_equal(parts.decision_function(X), whole.decision_function(X))
    assert_array_equal(fitted().counts_.array, whole.counts_.array)


@given(st.lists(st.integers(0, 3), min_size=len(X), max_size=len(X)))
def test_merging_parties_is_training_on_the_pooled_data(party_of):
    empty = ClassCounts.zeros(fitted().model_.member.hash, 3)
    merged = FlyNNClassifier.from_counts(SPEC, empty, LABELS, decay=0.8, temperature=0.5)
    for party in range(4):
        mine = np.array(party_of) == party
        counts = ClassCounts.from_data(merged.model_.member.hash, X[mine], CODES[mine], 3)
        merged.merge(FlyNNClassifier.from_counts(SPEC, counts, LABELS))
    pooled = fitted(decay=0.8, temperature=0.5)
    assert_array_equal(merged.counts_.array, pooled.counts_.array)
    assert_array_equal(merged.predict_proba(X), pooled.predict_proba(X))


@pytest.mark.parametrize("rule", RULES)
def test_forgetting_is_never_having_learned(rule):
    keep = np.arange(len(X)) % 3 != 0
    model = fitted(decay=0.7, rule=rule).forget(X[~keep], Y[~keep])
    expected = FlyNNClassifier(spec=SPEC, decay=0.7, rule=rule).partial_fit(X[keep], Y[keep], classes=LABELS)
    assert_array_equal(model.counts_.array, expected.counts_.array)
    assert_array_equal(model.decision_function(X), expected.decision_function(X))


def test_what_was_not_learned_cannot_be_forgotten():
    model = fitted()
    before, decay = model.counts_, model.model_.member.scoring.decay
    for points, labels in [(-X[:1], Y[:1]), (np.tile(X[:1], (100, 1)), np.repeat(Y[:1], 100))]:
        with raises(CountsError, field="difference"):
            model.forget(points, labels)
    with raises(DataError, field="y", got="1 of 2 that are not"):
        model.forget(X[:2], [Y[0], "dog"])
    assert model.counts_ is before
    assert model.model_.member.scoring.decay == decay


def test_a_model_that_forgot_everything_predicts_the_first_class():
    model = fitted().forget(X, Y)
    assert model.counts_.n_examples == 0
    assert_array_equal(model.predict(X), LABELS[0])
    assert_allclose(model.predict_proba(X), 1 / 3)


@LEFT_OUT
def test_the_decay_is_chosen_by_leave_one_out(step):
    points, labels = X[::step], Y[::step]
    others = all_but_one(points, labels)
    for rule in ("balanced", "novelty"):
        model = FlyNNClassifier(spec=SPEC, rule=rule).fit(points, labels)
        grid = decay_grid(model.counts_, rule)
        scoring = {"rule": rule, "class_weight": "balanced"}  # by which the decay is judged
        left_out = [predicted_left_out(others, points, decay=decay, **scoring) for decay in grid]
        recalls = [balanced_accuracy_score(labels, each) for each in left_out]
        assert len(set(recalls)) > 1
        assert model.model_.member.scoring.decay == grid[int(np.argmax(np.round(recalls, 12)))]


@pytest.mark.parametrize(
    ("points", "labels", "change", "field"),
    [
        (pd.DataFrame(X[:, :4], columns=list("abcd")), Y, {"hash_nnz": 10**6}, "hash_nnz"),
        (pd.DataFrame(np.full((3, 4), np.nan), columns=list("abcd")), Y[:3], {}, "columns"),
        (X[:, :4], np.linspace(0, 1, len(X)), {}, None),
        (X[:, :4], Y, {"scaling": (None,)}, "scaling"),
        (X[:, :4] * 1e38, Y, {"scaling": None}, "X"),
    ],
)
@pytest.mark.parametrize("columns", [list("vwxyz"), None])
def test_a_fit_that_fails_leaves_the_model_as_it_was(points, labels, change, field, columns):
    before = X if columns is None else pd.DataFrame(X, columns=columns)
    model = FlyNNClassifier(hash_dim=64, hash_nnz=4).fit(before, Y)
    state, expected = dict(vars(model)), model.predict_proba(before)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - scikit-learn refuses continuous labels
        model.set_params(**change).fit(points, labels)
    assert getattr(caught.value, "field", None) == field
    assert field or "continuous" in str(caught.value)  # scikit-learn's own word
    model.set_params(**{name: state[name] for name in change})
    assert vars(model) == state
    assert_array_equal(model.predict_proba(before), expected)
    assert vars(model.fit(X[:, :4], Y)).keys() == state.keys() - {"feature_names_in_"}
    assert model.n_features_in_ == 4


# Scores


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_all_ways_to_predict_agree(rule, n_classes):
    some = n_classes > CODES
    model = FlyNNClassifier(spec=SPEC, rule=rule).fit(X[some], Y[some])
    points = np.random.default_rng(0).normal(size=(300, 5))
    probabilities, scores, predicted = (
        model.predict_proba(points),
        model.decision_function(points),
        model.predict(points),
    )
    assert_allclose(probabilities.sum(axis=1), 1)
    assert_array_equal(model.classes_[probabilities.argmax(axis=1)], predicted)
    if n_classes == 2:
        assert scores.shape == (300,)
        assert_array_equal(scores > 0, predicted == model.classes_[1])
    else:
        assert scores.shape == (300, 3)
        assert_array_equal(model.classes_[scores.argmax(axis=1)], predicted)
    novelty = model.novelty(points)
    assert novelty.shape == (300, n_classes)
    assert ((novelty >= 0) & (novelty <= 1)).all()


def test_a_class_without_points_gets_no_probability():
    model = FlyNNClassifier(spec=SPEC).partial_fit(X[CODES > 0], Y[CODES > 0], classes=LABELS)
    probabilities = model.predict_proba(X)
    assert_array_equal(probabilities[:, 0], 0)
    assert_allclose(probabilities.sum(axis=1), 1)


def test_batches_of_points_do_not_show(monkeypatch):
    expected = fitted().predict_proba(X)
    monkeypatch.setattr(prediction, "BATCH", 7)
    assert_array_equal(fitted().predict_proba(X), expected)


def test_it_classifies_digits():
    digits, y = load_digits(return_X_y=True)
    assert cross_val_score(FlyNNClassifier(), digits, y, cv=3).mean() > 0.92


# Labels, names, scikit-learn's machinery


@pytest.mark.parametrize(
    "labels",
    [
        np.array([5, -3, 7]),
        np.array([0.0, 1.0, 2.0]),
        LABELS,
        LABELS.astype(object),
        np.array([0, 1, 2], np.uint8),
        np.array([False, True, False]),
    ],
)
def test_labels_of_every_kind(labels, tmp_path):
    y = labels[CODES]
    model = FlyNNClassifier(spec=SPEC).fit(X, y)
    predicted = model.predict(X)
    assert predicted.dtype == y.dtype
    assert (predicted == y).mean() > 0.8
    path = tmp_path / "model.npz"
    model.save(path)
    loaded = FlyNNClassifier.load(path)
    assert loaded.classes_.dtype == model.classes_.dtype
    assert_array_equal(loaded.predict(X), predicted)


@pytest.mark.parametrize("y", [[0, 1], [1.5, 2.5], [True, False]])
def test_labels_of_another_kind_are_refused(y):
    model = fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - scikit-learn refuses continuous labels
            model.partial_fit(X[:2], y)
        assert getattr(caught.value, "field", None) == (None if y == [1.5, 2.5] else "y")
        assert y != [1.5, 2.5] or "continuous" in str(caught.value)  # scikit-learn's own word
    assert model.counts_ == fitted().counts_


def test_columns_have_names(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = FlyNNClassifier(spec=SPEC).fit(frame, pd.Series(Y))
    assert_array_equal(model.feature_names_in_, list("abcde"))
    with pytest.raises(ValueError, match="feature names"):  # scikit-learn's
        model.predict(frame[list("edcba")])
    model.save(tmp_path / "model")
    loaded = FlyNNClassifier.load(tmp_path / "model")
    assert_array_equal(loaded.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):  # scikit-learn's
        loaded.predict(frame[list("edcba")])
    with raises(DataError, field="merge", expected="equal feature_names_in_"):
        model.merge(FlyNNClassifier(spec=SPEC).fit(frame.rename(columns={"a": "f"}), Y))
    model.merge(fitted())  # which has none


def test_it_works_in_scikit_learns_machinery():
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), FlyNNClassifier(hash_dim=2048)),
        {"flynnclassifier__scaling": [None, "auto"], "flynnclassifier__rule": ["balanced", "novelty"]},
        cv=3,
        scoring="balanced_accuracy",
    ).fit(X, Y)
    assert search.best_score_ > 0.7
    best = search.best_estimator_[-1]
    copied = clone(best)
    assert copied.get_params() == best.get_params()
    assert not hasattr(copied, "counts_")
    revived = pickle.loads(pickle.dumps(search))
    assert_array_equal(revived.predict_proba(X), search.predict_proba(X))


def test_two_features_are_enough_for_blobs():
    blobs, y = make_blobs(200, centers=[(3, 3), (-3, -3)], random_state=1)
    assert cross_val_score(FlyNNClassifier(), blobs, y).mean() > 0.95


def test_unfitted():
    for call in ("predict", "predict_proba", "decision_function", "novelty"):
        with pytest.raises(NotFittedError):
            getattr(FlyNNClassifier(), call)(X)
    for act in (
        lambda m: m.merge(fitted()),
        lambda m: fitted().merge(m),
        lambda m: m.forget(X, Y),
        lambda m: m.save(""),
    ):
        with pytest.raises(NotFittedError):
            act(FlyNNClassifier())


# Hash


def test_a_spec_fixes_the_hash():
    model = FlyNNClassifier(SPEC, seed=99, signed=False, scaling=None, hash_dim=200).fit(X, Y)
    assert model.spec_ == SPEC
    assert model.model_.member.hash.fingerprint == model.counts_.spec_fingerprint
    with raises(SpecError, field="hash_nnz", got=11):
        FlyNNClassifier(SPEC, hash_nnz=11).fit(X, Y)
    with raises(DataError, field="X", expected="5 features", got=4):
        FlyNNClassifier(SPEC).fit(X[:, :4], Y)


def test_sizes_left_out_are_suggested_and_given_ones_are_heard_by_auto():
    suggested = HashSpec.suggest(5, len(X), 3, seed=7, signed=True, center=(0.0,) * 5)
    assert FlyNNClassifier(seed=7, scaling=([0.0] * 5, None)).fit(X, Y).spec_ == suggested
    for sizes in (
        {"hash_dim": 8},
        {"hash_dim": 10**5},
        {"row_nnz": 3},
        {"row_nnz": 6},  # for the candidates with more columns than five
        {"hash_nnz": 5},
        {"hash_dim": 50, "hash_nnz": 50},
        {"signed": True},
        {"signed": False},
    ):
        for member in FlyNNClassifier(**sizes).fit(X, Y).model_.members:
            assert {name: getattr(member.spec, name) for name in sizes} == sizes
    for member in FlyNNClassifier(hash_dim=10**5).fit(X, Y).model_.members:
        assert member.spec.hash_nnz > suggested.hash_nnz
    with raises(SpecError, field="row_nnz", got=6):
        FlyNNClassifier(row_nnz=6, scaling=None).fit(X, Y)
    with raises(SpecError, field="row_nnz", got=99):  # for no candidate
        FlyNNClassifier(row_nnz=99).fit(X, Y)


@pytest.mark.parametrize(
    "parameters",
    [
        {"decay": 1.0},
        {"decay": -0.1},
        {"decay": "best"},
        {"rule": "best"},
        {"scaling": "best"},
        {"temperature": 0.0},
        {"temperature": "warm"},
        {"scaling": (None,)},
        {"scaling": (None, [0] * 5)},
        {"hash_dim": 0},
        {"seed": -1},
        {"seed": 2**64},
        {"signed": "yes"},
        {"spec": {}},
        {"effort": "much"},
        {"max_members": 0},
    ],
)
def test_parameters_are_checked(parameters):
    (name,) = parameters
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - ours, or scikit-learn's about the same parameter
        FlyNNClassifier(**parameters).fit(X, Y)
    field = getattr(caught.value, "field", None)
    assert field in (name, {"scaling": "scale"}.get(name, name)) or f"The {name!r} parameter" in str(caught.value)


def test_scaling():
    raw = FlyNNClassifier(scaling=None).fit(X, Y).spec_
    assert (raw.center, raw.scale, raw.signed) == (None, None, False)
    assert FlyNNClassifier(scaling=None, signed=True).fit(X, Y).spec_.difference(raw) == ["signed"]
    centred = FlyNNClassifier(scaling=(np.zeros(5), None)).fit(X, Y).spec_
    assert (centred.center, centred.scale, centred.signed) == ((0.0,) * 5, None, True)


@LEFT_OUT
def test_auto_takes_the_best_of_its_candidates_by_leave_one_out(step):
    points, labels = X[::step], Y[::step]
    model = FlyNNClassifier(max_members=1).fit(points, labels)
    plan = HashPlan(5, 3, len(points), "auto")
    specs = plan.specs(ColumnHistograms.from_data(points, CODES[::step], 3))
    assert len(set(specs)) == 6
    recalls = []
    for spec in specs:
        one = FlyNNClassifier(spec=spec).fit(points, labels)
        alone = FlyNNClassifier(
            spec=spec, decay=one.model_.member.scoring.decay, class_weight="balanced"
        )  # by which it is judged
        recalls.append(balanced_accuracy_score(labels, cross_val_predict(alone, points, labels, cv=LeaveOneOut())))
    assert model.spec_ == specs[int(np.argmax(np.round(recalls, 12)))]
    # The members are the best by the same results, and their weights follow from these.
    members = FlyNNClassifier(max_members=3).fit(points, labels).model_.members
    order = np.argsort(-np.round(recalls, 12), kind="stable")[:3]
    behind = np.round(recalls, 12)[order[0]] - np.round(recalls, 12)[order]
    weights = 2.0 ** -(np.floor(behind * 173) / 4)
    heavy = weights >= 1 / 16
    assert [member.spec for member in members] == [specs[i] for i in order[heavy]]
    assert_allclose([member.weight for member in members], weights[heavy] / weights[heavy].sum())


def test_many_columns_are_left_as_they_are():
    rng = np.random.default_rng(0)
    wide = sp.csr_array(sp.random(30, 2**14 + 1, density=0.001, random_state=rng))
    spec = FlyNNClassifier(hash_dim=64).fit(wide, np.arange(30) % 2).spec_
    assert (spec.center, spec.scale, spec.n_waves) == (None, None, 0)


@LEFT_OUT
def test_temperatures_are_chosen_by_leave_one_out(step):
    points, labels = X[::step], Y[::step]
    model = FlyNNClassifier(spec=SPEC).fit(points, labels)
    others, losses = all_but_one(points, labels), []
    frequencies = np.exp(model.model_.prior)
    for temperature in TEMPERATURES:
        scoring = {"decay": model.model_.member.scoring.decay, "temperature": temperature, "class_weight": "balanced"}
        posterior = np.array(predicted_left_out(others, points, "predict_proba", **scoring)) * frequencies
        losses.append(log_loss(labels, posterior / posterior.sum(axis=1, keepdims=True)))
    assert losses[TEMPERATURES.index(model.model_.member.temperature)] < min(losses) + 1e-5
    assert_array_equal(model.predict_proba(X).argmax(axis=1), model.decision_function(X).argmax(axis=1))


def test_columns_of_noise_do_not_make_it_sure():
    rng = np.random.default_rng(0)
    for n, d in ((100, 1000), (200, 200), (300, 60)):
        points, labels = rng.normal(size=(n + 1000, d)), rng.integers(0, 2, n + 1000)
        model = FlyNNClassifier(hash_dim=4096).fit(points[:n], labels[:n])
        assert log_loss(labels[n:], model.predict_proba(points[n:])) < 0.78  # log 2 is 0.69


@pytest.mark.parametrize("factor", [1e39, 1e-46, 1e200, 1e-200])
def test_units_do_not_matter(factor):
    expected, model = FlyNNClassifier().fit(X, Y), FlyNNClassifier().fit(X * factor, Y)
    assert (model.predict(X * factor) == expected.predict(X)).mean() > 0.95


def test_merging_nothing_changes_nothing():
    model = fitted()
    before = model.model_.member.scoring.decay, model.model_.member.temperature
    empty = FlyNNClassifier.from_counts(SPEC, ClassCounts.zeros(model.model_.member.hash, 3), LABELS)
    model.merge(empty)
    assert (model.model_.member.scoring.decay, model.model_.member.temperature) == before


@pytest.mark.filterwarnings("ignore:X has feature names, but FlyNNClassifier was fitted without:UserWarning")
def test_what_is_missing_is_told_by_column():
    frame = pd.DataFrame(X.copy(), columns=list("abcde"))
    frame.loc[[4, 5], "e"] = np.inf
    wanted = "NaN or infinity in 1 of 5 columns: e (2 of 120 samples)"
    for model, call in ((FlyNNClassifier(), lambda m, x: m.fit(x, Y)), (fitted(), lambda m, x: m.predict(x))):
        with raises(DataError, field="X", got=wanted):
            call(model, frame)
    frame.loc[3, "b"] = np.nan
    with raises(DataError, field="column 'e'", expected="finite numbers", got="others"):
        FlyNNClassifier().fit(frame, Y)
    wanted = "NaN or infinity in 2 of 5 columns: b (1 of 120 samples), e (2 of 120 samples)"
    with raises(DataError, field="X", got=wanted):
        fitted().predict(frame)
    with raises(DataError, field="X", got="NaN or infinity in 1 of 5 columns: column 1 (1 of 4 samples)"):
        fitted().predict(sp.csr_array(frame.to_numpy()[:4]))


def test_categories_go_through_a_column_transformer():
    rng = np.random.default_rng(0)
    colour = rng.choice(["red", "green", "blue"], 300)
    size = rng.normal(size=300)
    frame = pd.DataFrame({"colour": colour, "size": size, "shape": rng.choice(["round", "square"], 300)})
    y = np.where((colour == "red") | ((colour == "blue") & (size > 0)), "yes", "no")
    encode = ColumnTransformer(
        [("text", OneHotEncoder(handle_unknown="ignore"), ["colour", "shape"])], remainder="passthrough"
    )
    model = make_pipeline(encode, FlyNNClassifier()).fit(frame[:200], y[:200])
    assert (model.predict(frame[200:]) == y[200:]).mean() > 0.9


def test_scaling_is_learned_once():
    model = FlyNNClassifier().partial_fit(X[:50], Y[:50], classes=LABELS)
    before = [(member.spec, member.weight) for member in model.model_.members]
    model.partial_fit(1000 * X[50:], Y[50:])
    assert [(member.spec, member.weight) for member in model.model_.members] == before
    assert [member.spec for member in model.fit(X, Y).model_.members] != [spec for spec, _ in before]


def test_the_model_does_not_depend_on_how_the_data_lie():
    expected = FlyNNClassifier().fit(X, Y)
    order = np.random.default_rng(0).permutation(len(X))
    for points, labels in [
        (X[order], Y[order]),
        (np.asfortranarray(X), Y),
        (sp.csc_array(X), Y),
        (X.tolist(), list(Y)),
    ]:
        model = FlyNNClassifier().fit(points, labels)
        assert model.model_.members == expected.model_.members
        assert model.model_.sha256() == expected.model_.sha256()


# Merging and counts from elsewhere


@pytest.mark.parametrize("change", [{"seed": 4}, {"hash_nnz": 11}, {"signed": False}, {"center": (0.0,) * 5}])
def test_models_of_different_specs_do_not_merge(change):
    model = fitted()
    other = FlyNNClassifier(HashSpec(**(SPEC.to_dict() | change))).fit(X, Y)
    with raises(SpecError, field="merge", got=f"differences in {next(iter(change))}"):
        model.merge(other)
    assert model.counts_ == fitted().counts_


def test_models_of_different_classes_do_not_merge():
    with raises(DataError, field="merge", expected="equal classes_"):
        fitted().merge(FlyNNClassifier(SPEC).fit(X, CODES))
    with raises(DataError, field="merge", expected="equal classes_"):
        fitted().merge(FlyNNClassifier(SPEC).fit(X[CODES > 0], Y[CODES > 0]))


def test_partial_fit_needs_the_classes_once():
    with raises(DataError, field="classes", got="None"):
        FlyNNClassifier(SPEC).partial_fit(X, Y)
    with raises(DataError, field="classes", got="2 labels"):
        fitted().partial_fit(X, Y, classes=["ant", "bee"])
    model = FlyNNClassifier(SPEC)
    with raises(DataError, field="y", expected="labels among the 2 classes"):
        model.partial_fit(X, Y, classes=["ant", "bee"])
    assert not hasattr(model, "counts_")
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_counts_from_elsewhere():
    counts = fitted().counts_
    order = [2, 0, 1]
    moved = ClassCounts(counts.array[order], hash_nnz=10, spec_fingerprint=counts.spec_fingerprint)
    model = FlyNNClassifier.from_counts(SPEC, moved, LABELS[order], decay=0.8)
    assert_array_equal(model.classes_, LABELS[order])
    assert_array_equal(model.predict(X), fitted(decay=0.8).predict(X))
    model.partial_fit(X, Y).forget(X, Y)
    assert model.counts_ == moved
    auto = FlyNNClassifier.from_counts(SPEC, counts, LABELS)
    assert auto.model_.member.scoring.decay == suggest_decay(counts)
    assert clone(auto).fit(X, Y).counts_ == counts


def test_a_model_becomes_a_classifier_whose_scoring_stays():
    given = fitted(rule="novelty", decay=0.6, temperature=0.3)
    made = FlyNNClassifier.from_model(given.model_)
    assert made.model_ is given.model_
    assert {name: getattr(made, name) for name in ("spec", "rule", "decay", "temperature")} == {
        "spec": SPEC,
        "rule": "novelty",
        "decay": 0.6,
        "temperature": 0.3,
    }
    assert_array_equal(made.predict_proba(X), given.predict_proba(X))
    assert made.forget(X[:9], Y[:9]).model_.member.scoring.decay == 0.6
    again = FlyNNClassifier.from_model(given.model_, decay="auto", temperature="auto")
    assert again.model_.member.scoring.decay == 0.6
    assert again.forget(X[:9], Y[:9]).model_.member.scoring.decay == suggest_decay(again.counts_, "novelty")
    member = given.model_.member
    two = FlyNNClassifier.from_model(Model((member, member), LABELS))  # whose parameters are nobody's alone
    assert (two.spec, two.decay, two.temperature, two.rule) == (None, "auto", "auto", "novelty")
    assert (two.n_features_in_, two.classes_.tolist()) == (5, LABELS.tolist())
    for name in ("counts_", "spec_"):
        assert not hasattr(two, name)
        with raises(DataError, field="members", got="2"):
            getattr(two, name)
    bare = ModelMember(SPEC, member.counts, ScoringRule("novelty", 0.5))
    assert FlyNNClassifier.from_model(Model((bare,), LABELS)).model_.member.temperature == 0.2


def test_parameters_set_after_the_fit_do_not_change_its_model():
    model = fitted()
    expected = model.predict_proba(X)
    model.set_params(rule="novelty", decay=0.1, temperature=9.0)
    assert_array_equal(model.predict_proba(X), expected)


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"spec": HashSpec(**(SPEC.to_dict() | {"seed": 4}))}, SpecError, "counts"),
        ({"classes": ["ant", "bee"]}, DataError, "classes"),
        ({"classes": ["ant", "bee", "bee"]}, DataError, "classes"),
        ({"feature_names": ["a"]}, DataError, "feature_names"),
        ({"feature_names": [1, 2, 3, 4, 5]}, DataError, "feature_names"),
        ({"decay": 1.0}, ConfigError, "decay"),
        ({"decay": "best"}, ConfigError, "decay"),
        ({"rule": "best"}, ConfigError, "rule"),
    ],
)
def test_counts_that_do_not_fit_are_refused(change, error, field):
    arguments = {"spec": SPEC, "counts": fitted().counts_, "classes": LABELS} | change
    with raises(error, field=field):
        FlyNNClassifier.from_counts(**arguments)
