"""The estimator: scikit-learn's checks, and its own laws."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.utils.estimator_checks import parametrize_with_checks

from flwr_flynn import ClassCounts, FlyNNClassifier, HashSpec
from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.model import prediction
from flwr_flynn.model.candidates import HashPlan, suggest_decay
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.scoring import RULES, ScoringRule
from tests import oracle
from tests.model.samples import CODES, LABELS, SPEC, X, Y
from tests.raising import raises
from tests.strategies import cases


@parametrize_with_checks([FlyNNClassifier()])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [FlyNNClassifier(rule="novelty"), FlyNNClassifier(decay=0.5, n_jobs=2)]
)
def test_scikit_learns_checks_with_settings(estimator, check):
    check(estimator)


def fitted(**parameters):
    return FlyNNClassifier(spec=SPEC, **parameters).fit(X, Y)


# Laws


@given(cases(), st.data())
def test_training_and_inference_agree_with_the_paper_in_plain_python(case, data):
    spec, points = case
    if len(points) == 0:
        return
    codes = data.draw(
        st.lists(st.integers(0, 2), min_size=len(points), max_size=len(points))
    )
    decay = data.draw(st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(3, 4)]))
    try:
        model = FlyNNClassifier(spec=spec, decay=float(decay), rule="novelty").fit(
            points, codes
        )
    except DataError as error:
        assert (error.field, error.expected.endswith("(rescale the features)")) == (
            "X",
            True,
        )
        return
    classes, codes = np.unique(codes, return_inverse=True)
    hashes = oracle.hashes(points, model.model_.member.hash)
    counts = oracle.count(hashes, codes, len(classes), spec.hash_dim)
    assert_array_equal(model.counts_.array, counts)
    assert_array_equal(
        model.predict(points), classes[oracle.predict(hashes, counts, decay)]
    )


BARE = pd.DataFrame(X[:, :4], columns=list("abcd"))
FAILING = [
    (BARE, Y, {"hash_nnz": 10**6}, "hash_nnz"),
    (BARE[:3] * np.nan, Y[:3], {}, "columns"),
    # Scikit-learn refuses continuous labels.
    (X[:, :4], np.linspace(0, 1, len(X)), {}, None),
    (X[:, :4], Y, {"scaling": (None,)}, "scaling"),
    (X[:, :4] * 1e38, Y, {"scaling": None}, "X"),
]


@pytest.mark.parametrize(("points", "labels", "change", "field"), FAILING)
@pytest.mark.parametrize("columns", [list("vwxyz"), None])
def test_a_fit_that_fails_leaves_the_model_as_it_was(
    points, labels, change, field, columns
):
    if columns is None:
        before = X
    else:
        before = pd.DataFrame(X, columns=columns)
    model = FlyNNClassifier(hash_dim=64, hash_nnz=4).fit(before, Y)
    state = dict(vars(model))
    expected = model.predict_proba(before)
    with pytest.raises(ValueError, match=r".") as caught:
        model.set_params(**change).fit(points, labels)
    if field is None:
        assert "continuous" in str(caught.value)
    else:
        assert caught.value.field == field
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
    scores = model.decision_function(points)
    predicted = model.predict(points)
    novelty = model.novelty(points)
    probabilities = model.predict_proba(points)
    assert_allclose(probabilities.sum(axis=1), 1)
    assert_array_equal(model.classes_[probabilities.argmax(axis=1)], predicted)
    if n_classes == 2:
        assert scores.shape == (300,)
        best = (scores > 0).astype(int)
    else:
        assert scores.shape == (300, 3)
        best = scores.argmax(axis=1)
    assert_array_equal(model.classes_[best], predicted)
    assert novelty.shape == (300, n_classes)
    assert ((novelty >= 0) & (novelty <= 1)).all()
    # After the fit these parameters change nothing.
    model.set_params(rule="novelty", decay=0.1, temperature=9.0)
    assert_array_equal(model.predict_proba(points), probabilities)


def test_batches_of_points_do_not_show(monkeypatch):
    expected = fitted().predict_proba(X)
    monkeypatch.setattr(prediction, "BATCH", 7)
    assert_array_equal(fitted().predict_proba(X), expected)


# Labels, names, scikit-learn's machinery


KINDS = [
    np.array([5, -3, 7]),
    np.array([0.0, 1.0, 2.0]),
    LABELS,
    LABELS.astype(object),
    np.array([0, 1, 2], np.uint8),
]


@pytest.mark.parametrize(
    "labels",
    [*KINDS, np.array([False, True, False])],
    ids=lambda labels: str(labels.dtype),
)
def test_labels_of_every_kind(labels, tmp_path):
    y = labels[CODES]
    model = FlyNNClassifier(spec=SPEC).fit(X, y)
    predicted = model.predict(X)
    assert predicted.dtype == y.dtype
    assert (predicted == y).mean() > 0.8
    model.save(tmp_path / "model.npz")
    loaded = FlyNNClassifier.load(tmp_path / "model.npz")
    assert loaded.classes_.dtype == model.classes_.dtype
    assert_array_equal(loaded.predict(X), predicted)


def test_columns_have_names(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = FlyNNClassifier(spec=SPEC).fit(frame, pd.Series(Y))
    assert_array_equal(model.feature_names_in_, list("abcde"))
    model.save(tmp_path / "model")
    loaded = FlyNNClassifier.load(tmp_path / "model")
    assert_array_equal(loaded.predict(frame), model.predict(frame))
    for each in (model, loaded):
        with pytest.raises(ValueError, match="feature names"):  # scikit-learn's
            each.predict(frame[list("edcba")])
    with raises(DataError, field="merge", expected="equal feature_names_in_"):
        model.merge(FlyNNClassifier(spec=SPEC).fit(frame.rename(columns={"a": "f"}), Y))
    model.merge(fitted())  # which has none


CALLS = {
    **dict.fromkeys(("predict", "predict_proba", "decision_function", "novelty"), (X,)),
    "forget": (X, Y),
}


@pytest.mark.parametrize(
    ("call", "arguments"), [*CALLS.items(), ("save", ("",)), ("merge", (fitted(),))]
)
def test_unfitted(call, arguments):
    with pytest.raises(NotFittedError):
        getattr(FlyNNClassifier(), call)(*arguments)
    with pytest.raises(NotFittedError):
        fitted().merge(FlyNNClassifier())


# Hash


def test_a_spec_fixes_the_hash():
    model = FlyNNClassifier(
        SPEC, seed=99, signed=False, scaling=None, hash_dim=200
    ).fit(X, Y)
    assert model.spec_ == SPEC
    assert model.model_.member.hash.fingerprint == model.counts_.spec_fingerprint


def test_sizes_left_out_are_suggested_and_given_ones_are_heard_by_auto():
    suggested = HashSpec.suggest(5, len(X), 3, seed=7, signed=True, center=(0.0,) * 5)
    assert (
        FlyNNClassifier(seed=7, scaling=([0.0] * 5, None)).fit(X, Y).spec_ == suggested
    )
    # 6 entries of a row are for the candidates with more columns than five.
    for sizes in (
        {"hash_dim": 8},
        {"row_nnz": 6},
        {"hash_nnz": 5},
        {"hash_nnz": 50},
        {"signed": False},
    ):
        for member in FlyNNClassifier(**sizes).fit(X, Y).model_.members:
            assert {name: getattr(member.spec, name) for name in sizes} == sizes
    for member in FlyNNClassifier(hash_dim=10**5).fit(X, Y).model_.members:
        assert member.spec.hash_nnz > suggested.hash_nnz
    raw = FlyNNClassifier(scaling=None).fit(X, Y).spec_
    assert (raw.center, raw.scale, raw.signed) == (None, None, False)
    assert FlyNNClassifier(scaling=None, signed=True).fit(X, Y).spec_.difference(
        raw
    ) == ["signed"]


def forget(points, labels):
    return lambda model: model.forget(points, labels)


def merge(points, labels):
    return lambda model: model.merge(FlyNNClassifier(SPEC).fit(points, labels))


REFUSED = [  # other parameters are in `refused.txt`
    (
        lambda model: model.fit(X[:, :4], Y),
        DataError,
        {"field": "X", "expected": "5 features", "got": "4"},
    ),
    # It learns no schema.
    (
        lambda model: model.fit(np.where(X[0, 0] == X, np.nan, X), Y),
        DataError,
        {"field": "X"},
    ),
    # Scikit-learn refuses these.
    (lambda model: model.partial_fit(X[:2], [1.5, 2.5]), ValueError, {}),
    (forget(-X[:1], Y[:1]), CountsError, {"field": "difference"}),
    (
        forget(np.tile(X[:1], (100, 1)), np.repeat(Y[:1], 100)),
        CountsError,
        {"field": "difference"},
    ),
    (
        forget(X[:2], [Y[0], "dog"]),
        DataError,
        {"field": "y", "got": "1 of 2 that are not"},
    ),
    (merge(X, CODES), DataError, {"field": "merge", "expected": "equal classes_"}),
    (
        merge(X[CODES > 0], Y[CODES > 0]),
        DataError,
        {"field": "merge", "expected": "equal classes_"},
    ),
]


def test_a_missing_label_is_refused_in_one_line():
    y = [*map(str, CODES.tolist()[1:]), None]
    for labels in (y, np.array(y, object)):
        expected = "a label for each sample"
        with raises(DataError, field="y", expected=expected) as caught:
            FlyNNClassifier().fit(X, labels)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("act", "error", "facts"), REFUSED)
def test_what_is_refused_leaves_the_model_as_it_was(act, error, facts):
    model = fitted()
    before = model.model_
    with raises(error, **facts):
        act(model)
    assert model.model_ is before


def test_classes_are_needed_once_and_a_model_without_them_stays_unfitted():
    none = FlyNNClassifier(SPEC)
    for classes, field in ((None, "classes"), (["ant", "bee"], "y")):
        with raises(DataError, field=field):
            none.partial_fit(X, Y, classes=classes)
    assert not hasattr(none, "counts_")
    with pytest.raises(NotFittedError):
        none.predict(X)


# Every fourth sample, and all.
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_auto_takes_the_best_of_its_candidates_by_leave_one_out(step):
    points = X[::step]
    labels = Y[::step]
    model = FlyNNClassifier(max_members=1).fit(points, labels)
    specs = HashPlan(5, 3, len(points), "auto").specs(
        ColumnHistograms.from_data(points, CODES[::step], 3)
    )
    assert len(set(specs)) == 5
    recalls = []
    for spec in specs:
        decay = (
            FlyNNClassifier(spec=spec).fit(points, labels).model_.member.scoring.decay
        )
        # Candidates are judged by balanced accuracy.
        alone = FlyNNClassifier(spec=spec, decay=decay, class_weight="balanced")
        recalls.append(
            balanced_accuracy_score(
                labels, cross_val_predict(alone, points, labels, cv=LeaveOneOut())
            )
        )
    assert model.spec_ == specs[int(np.argmax(np.round(recalls, 12)))]


@pytest.mark.filterwarnings(
    "ignore:X has feature names, but FlyNNClassifier was fitted without:UserWarning"
)
def test_what_is_missing_is_told_by_column():
    frame = pd.DataFrame(X.copy(), columns=list("abcde"))
    frame.loc[[4, 5], "e"] = np.inf
    wanted = "NaN or infinity in 1 of 5 columns: e (2 of 120 samples)"
    for act in (
        lambda: FlyNNClassifier().fit(frame, Y),
        lambda: fitted().predict(frame),
    ):
        with raises(DataError, field="X", got=wanted):
            act()
    frame.loc[3, "b"] = np.nan
    with raises(DataError, field="column 'e'", expected="finite numbers", got="others"):
        FlyNNClassifier().fit(frame, Y)
    wanted = (
        "NaN or infinity in 2 of 5 columns: b (1 of 120 samples), e (2 of 120 samples)"
    )
    with raises(DataError, field="X", got=wanted):
        fitted().predict(frame)
    with raises(
        DataError,
        field="X",
        got="NaN or infinity in 1 of 5 columns: column 1 (1 of 4 samples)",
    ):
        fitted().predict(sp.csr_array(frame.to_numpy()[:4]))


def test_scaling_is_learned_once():
    model = FlyNNClassifier().partial_fit(X[:50], Y[:50], classes=LABELS)
    before = [(member.spec, member.weight) for member in model.model_.members]
    model.partial_fit(1000 * X[50:], Y[50:])
    assert [(member.spec, member.weight) for member in model.model_.members] == before
    assert [member.spec for member in model.fit(X, Y).model_.members] != [
        spec for spec, _ in before
    ]


def test_the_model_does_not_depend_on_how_the_data_lie():
    expected = FlyNNClassifier().fit(X, Y).model_
    order = np.random.default_rng(0).permutation(len(X))
    forms = [
        (X[order], Y[order]),
        (np.asfortranarray(X), Y),
        (sp.csc_array(X), Y),
        (X.tolist(), list(Y)),
    ]
    for points, labels in forms:
        model = FlyNNClassifier().fit(points, labels).model_
        assert model.members == expected.members
        assert model.sha256() == expected.sha256()


# Merging and counts from elsewhere


def test_counts_from_elsewhere():
    counts = fitted().counts_
    order = [2, 0, 1]
    moved = ClassCounts(
        counts.array[order], hash_nnz=10, spec_fingerprint=counts.spec_fingerprint
    )
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
    assert (made.spec, made.rule, made.decay, made.temperature) == (
        SPEC,
        "novelty",
        0.6,
        0.3,
    )
    assert_array_equal(made.predict_proba(X), given.predict_proba(X))
    assert made.forget(X[:9], Y[:9]).model_.member.scoring.decay == 0.6
    again = FlyNNClassifier.from_model(given.model_, decay="auto", temperature="auto")
    assert again.model_.member.scoring.decay == 0.6
    assert again.forget(X[:9], Y[:9]).model_.member.scoring.decay == suggest_decay(
        again.counts_, "novelty"
    )
    member = given.model_.member
    # The parameters of a member are not those of the two.
    two = FlyNNClassifier.from_model(Model((member, member), LABELS))
    assert (two.spec, two.decay, two.temperature, two.rule) == (
        None,
        "auto",
        "auto",
        "novelty",
    )
    assert (two.n_features_in_, two.classes_.tolist()) == (5, LABELS.tolist())
    for name in ("counts_", "spec_"):
        assert not hasattr(two, name)
        with raises(DataError, field="members", got="2"):
            getattr(two, name)
    bare = ModelMember(SPEC, member.counts, ScoringRule("novelty", 0.5))
    assert (
        FlyNNClassifier.from_model(Model((bare,), LABELS)).model_.member.temperature
        == 0.2
    )
