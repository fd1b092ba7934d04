"""The estimator: scikit-learn's checks, the laws of DESIGN, and model files that somebody tampered with."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, LeaveOneOut, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from flwr_flynn import ClassCounts, FlyNNClassifier, HashSpec, classifier
from flwr_flynn.classifier import _column_statistics
from flwr_flynn.errors import ConfigError, CountsError, DataError, ModelFileError, SpecError
from flwr_flynn.readout import RULES

SPEC = HashSpec(n_features=5, hash_dim=200, row_nnz=2, hash_nnz=10, seed=3, signed=True)
X, CODES = make_classification(
    120, 5, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=0
)
X = X.round(2)
LABELS = np.array(["ant", "bee", "cicada"])
Y = LABELS[CODES]


@parametrize_with_checks([FlyNNClassifier(), FlyNNClassifier(rule="bayes"), FlyNNClassifier(decay=0.5, n_jobs=2)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def fitted(**parameters):
    return FlyNNClassifier(spec=SPEC, **parameters).fit(X, Y)


# Laws


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
    empty = ClassCounts.zeros(fitted().hash_, 3)
    merged = FlyNNClassifier.from_counts(SPEC, empty, LABELS, decay=0.8)
    for party in range(4):
        mine = np.array(party_of) == party
        counts = ClassCounts.from_data(merged.hash_, X[mine], CODES[mine], 3)
        merged.merge(FlyNNClassifier.from_counts(SPEC, counts, LABELS))
    pooled = fitted(decay=0.8)
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
    before, decay = model.counts_, model.decay_
    for points, labels in [(-X[:1], Y[:1]), (np.tile(X[:1], (100, 1)), np.repeat(Y[:1], 100))]:
        with pytest.raises(CountsError, match="difference: row"):
            model.forget(points, labels)
    with pytest.raises(DataError, match="y: 1 of 2 labels are not among the 3 classes"):
        model.forget(X[:2], [Y[0], "dog"])
    assert model.counts_ is before
    assert model.decay_ == decay


def test_a_model_that_forgot_everything_predicts_the_first_class():
    model = fitted().forget(X, Y)
    assert model.counts_.n_examples == 0
    assert_array_equal(model.predict(X), LABELS[0])
    assert_allclose(model.predict_proba(X), 1 / 3)


def test_the_decay_is_chosen_by_leave_one_out():
    for rule in ("balanced", "novelty"):
        model = fitted(rule=rule)
        grid = model.counts_.decay_grid(rule)
        recalls = []
        for decay in grid:
            one = FlyNNClassifier(spec=SPEC, decay=decay, rule=rule)
            recalls.append(balanced_accuracy_score(Y, cross_val_predict(one, X, Y, cv=LeaveOneOut())))
        assert len(set(recalls)) > 1
        assert model.decay_ == grid[int(np.argmax(np.round(recalls, 12)))]


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
    monkeypatch.setattr(classifier, "_BATCH", 7)
    assert_array_equal(fitted().predict_proba(X), expected)


def test_it_classifies_digits():
    digits, y = load_digits(return_X_y=True)
    assert cross_val_score(FlyNNClassifier(), digits, y, cv=3).mean() > 0.92


# Labels, names, scikit-learn's machinery


@pytest.mark.parametrize(
    "labels",
    [np.array([5, -3, 7]), np.array([0.0, 1.0, 2.0]), LABELS, LABELS.astype(object), np.array([0, 1, 2], np.uint8)],
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


def test_booleans_as_labels(tmp_path):
    model = FlyNNClassifier(spec=SPEC).fit(X, CODES == 1)
    model.save(tmp_path / "model")
    assert_array_equal(FlyNNClassifier.load(tmp_path / "model").predict(X), model.predict(X))
    assert model.predict(X).dtype == bool


@pytest.mark.parametrize("y", [[0, 1], [1.5, 2.5], [True, False]])
def test_labels_of_another_kind_are_refused(y):
    model = fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"label|y"):
            model.partial_fit(X[:2], y)
    assert model.counts_ == fitted().counts_


def test_columns_have_names(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = FlyNNClassifier(spec=SPEC).fit(frame, pd.Series(Y))
    assert_array_equal(model.feature_names_in_, list("abcde"))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("edcba")])
    model.save(tmp_path / "model")
    loaded = FlyNNClassifier.load(tmp_path / "model")
    assert_array_equal(loaded.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame[list("edcba")])
    with pytest.raises(DataError, match="feature_names_in_ differ"):
        model.merge(FlyNNClassifier(spec=SPEC).fit(frame.rename(columns={"a": "f"}), Y))
    model.merge(fitted())  # which has none


def test_it_works_in_scikit_learns_machinery():
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), FlyNNClassifier(hash_dim=256)),
        {"flynnclassifier__scaling": ["center", "standard"], "flynnclassifier__rule": ["balanced", "bayes"]},
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
    model = FlyNNClassifier(SPEC, seed=99, signed=False, scaling="center", hash_dim=200).fit(X, Y)
    assert model.spec_ == SPEC
    assert model.hash_.fingerprint == model.counts_.spec_fingerprint
    with pytest.raises(SpecError, match="hash_nnz: the spec has 10, but 11 was given"):
        FlyNNClassifier(SPEC, hash_nnz=11).fit(X, Y)
    with pytest.raises(ValueError, match="X has 4 features, but the spec has n_features 5"):
        FlyNNClassifier(SPEC).fit(X[:, :4], Y)


def test_sizes_left_out_are_suggested():
    model = FlyNNClassifier(seed=7).fit(X, Y)
    suggested = HashSpec.suggest(5, len(X), 3, seed=7, signed=True, center=model.spec_.center, scale=model.spec_.scale)
    assert model.spec_ == suggested
    for sizes in (
        {"hash_dim": 8},
        {"hash_dim": 10**5},
        {"row_nnz": 3},
        {"hash_nnz": 5},
        {"hash_dim": 50, "hash_nnz": 50},
    ):
        spec = FlyNNClassifier(**sizes).fit(X, Y).spec_
        assert {name: getattr(spec, name) for name in sizes} == sizes
    assert FlyNNClassifier(hash_dim=10**5).fit(X, Y).spec_.hash_nnz > suggested.hash_nnz
    with pytest.raises(SpecError, match="row_nnz"):
        FlyNNClassifier(row_nnz=6).fit(X, Y)


@pytest.mark.parametrize(
    "parameters",
    [
        {"decay": 1.0},
        {"decay": -0.1},
        {"decay": "best"},
        {"rule": "best"},
        {"scaling": "auto"},
        {"scaling": (None,)},
        {"scaling": (None, [0] * 5)},
        {"hash_dim": 0},
        {"seed": -1},
        {"seed": 2**64},
        {"signed": "yes"},
        {"spec": {}},
    ],
)
def test_parameters_are_checked(parameters):
    with pytest.raises(ValueError, match=next(iter(parameters))[:4]):
        FlyNNClassifier(**parameters).fit(X, Y)


def test_scaling():
    spec = FlyNNClassifier().fit(X, Y).spec_
    assert_allclose(spec.center, X.mean(axis=0), rtol=1e-9, atol=1e-12)
    assert_allclose(spec.scale, 1 / X.std(axis=0), rtol=1e-9)
    centred = FlyNNClassifier(scaling="center").fit(X, Y).spec_
    assert (centred.center, centred.scale) == (spec.center, None)
    assert (FlyNNClassifier(scaling=None).fit(X, Y).spec_.difference(spec)) == ["center", "scale"]
    given_one = FlyNNClassifier(scaling=(np.zeros(5), None)).fit(X, Y).spec_
    assert (given_one.center, given_one.scale) == ((0.0,) * 5, None)
    again = FlyNNClassifier(scaling=(spec.center, spec.scale)).fit(X, Y)
    assert again.spec_ == spec


def test_scaling_is_learned_once():
    model = FlyNNClassifier().partial_fit(X[:50], Y[:50], classes=LABELS)
    spec = model.spec_
    assert model.partial_fit(1000 * X[50:], Y[50:]).spec_ == spec
    assert model.fit(X, Y).spec_ != spec


@pytest.mark.parametrize("power", [-900, -300, 0, 300, 1000])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6])
def test_column_statistics(power, offset):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 3)) + offset
    mean, deviation = _column_statistics(np.ldexp(values, power))
    assert_allclose(np.ldexp(mean, -power), values.mean(axis=0), rtol=1e-12, atol=1e-13)
    assert_allclose(np.ldexp(deviation, -power), values.std(axis=0), rtol=1e-9)


def test_column_statistics_of_constant_columns():
    values = np.array([[0.1, 0.0, -7e300, 5e-324]] * 11)
    mean, deviation = _column_statistics(values)
    assert_array_equal(mean, values[0])
    assert_array_equal(deviation, 1)


@given(st.randoms(use_true_random=False), st.sampled_from([np.float64, np.float32, np.int16, np.uint8, np.bool_]))
def test_column_statistics_do_not_depend_on_how_the_data_lie(random, dtype):
    rng = np.random.default_rng(random.randrange(2**32))
    data = rng.normal(size=(40, 6)) * 100 * (rng.random((40, 6)) < 0.3)
    data = np.abs(data).astype(dtype) if dtype in (np.uint8, np.bool_) else data.astype(dtype)
    expected = _column_statistics(data)
    shuffled = data[rng.permutation(40)]
    for other in (
        shuffled,
        np.asfortranarray(shuffled),
        shuffled.astype(np.float64),
        sp.csr_array(shuffled),
        sp.csr_matrix(data.astype(float)),
    ):
        assert_array_equal(_column_statistics(other), expected)


def test_column_statistics_of_duplicate_entries():
    twice = sp.csr_array((np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    assert_array_equal(_column_statistics(twice), _column_statistics(twice.toarray()))
    assert twice.nnz == 3


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
        assert model.counts_ == expected.counts_
        assert model.decay_ == expected.decay_


# Merging and counts from elsewhere


@pytest.mark.parametrize("change", [{"seed": 4}, {"hash_nnz": 11}, {"signed": False}, {"center": (0.0,) * 5}])
def test_models_of_different_specs_do_not_merge(change):
    model = fitted()
    other = FlyNNClassifier(HashSpec(**(SPEC.to_dict() | change))).fit(X, Y)
    with pytest.raises(SpecError, match=f"differ in {next(iter(change))}"):
        model.merge(other)
    assert model.counts_ == fitted().counts_


def test_models_of_different_classes_do_not_merge():
    with pytest.raises(DataError, match="classes_ differ"):
        fitted().merge(FlyNNClassifier(SPEC).fit(X, CODES))
    with pytest.raises(DataError, match="classes_ differ"):
        fitted().merge(FlyNNClassifier(SPEC).fit(X[CODES > 0], Y[CODES > 0]))


def test_partial_fit_needs_the_classes_once():
    with pytest.raises(ValueError, match="classes: must be given"):
        FlyNNClassifier(SPEC).partial_fit(X, Y)
    with pytest.raises(ValueError, match="classes: expected the same"):
        fitted().partial_fit(X, Y, classes=["ant", "bee"])
    model = FlyNNClassifier(SPEC)
    with pytest.raises(DataError, match="labels are not among"):
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
    assert auto.decay_ == counts.suggest_decay()
    assert clone(auto).fit(X, Y).counts_ == counts


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"spec": HashSpec(**(SPEC.to_dict() | {"seed": 4}))}, SpecError),
        ({"classes": ["ant", "bee"]}, DataError),
        ({"classes": ["ant", "bee", "bee"]}, DataError),
        ({"feature_names": ["a"]}, DataError),
        ({"feature_names": [1, 2, 3, 4, 5]}, DataError),
        ({"decay": 1.0}, ConfigError),
        ({"decay": "best"}, ConfigError),
        ({"rule": "best"}, ConfigError),
    ],
)
def test_counts_that_do_not_fit_are_refused(change, error):
    arguments = {"spec": SPEC, "counts": fitted().counts_, "classes": LABELS} | change
    with pytest.raises(error, match=next(iter(change)) if "spec" not in change else "counts"):
        FlyNNClassifier.from_counts(**arguments)


# Model files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.npz"
    FlyNNClassifier(HashSpec(3, 20, 2, 3, seed=1, scale=(1.0, 2.0, 0.1))).fit(X[:, :3], Y).save(path)
    return path


@pytest.mark.parametrize("rule", RULES)
def test_models_come_back_from_files(rule, tmp_path):
    model = FlyNNClassifier(rule=rule, seed=5).fit(X, Y)
    model.save(tmp_path / "first")
    loaded = FlyNNClassifier.load(tmp_path / "first")
    assert loaded.counts_ == model.counts_
    assert loaded.spec_ == model.spec_
    assert loaded.decay_ == model.decay_
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    loaded.save(tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["first", "second"]
    assert loaded.merge(model).counts_ == model.counts_ + model.counts_


def test_files_are_plain_npz(path):
    with np.load(path, allow_pickle=False) as file:
        assert sorted(file) == ["counts", "digest", "header"]
        assert_array_equal(file["counts"], FlyNNClassifier.load(path).counts_.array)
        assert json.loads(file["header"].tobytes())["format"] == 1


def test_a_file_is_replaced_whole_or_not_at_all(path, monkeypatch):
    before = path.read_bytes()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        fitted().save(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["model.npz"]


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        FlyNNClassifier.load(tmp_path / "none.npz")


def test_truncated_files_are_refused(path):
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            FlyNNClassifier.load(path)


def test_altered_files_are_refused_or_say_the_same(path):
    """Nothing but what no reader looks at, such as a time stamp, can be altered."""
    model, content = FlyNNClassifier.load(path), path.read_bytes()
    survivors = 0
    for position in range(len(content)):
        for mask in (1, 0x80, 0xFF):
            altered = bytearray(content)
            altered[position] ^= mask
            path.write_bytes(altered)
            try:
                loaded = FlyNNClassifier.load(path)
            except ModelFileError:
                continue
            survivors += 1
            assert loaded.counts_ == model.counts_
            assert loaded.spec_ == model.spec_
            assert (loaded.decay_, loaded.rule) == (model.decay_, model.rule)
            assert_array_equal(loaded.classes_, model.classes_)
    assert survivors < 3 * len(content) / 4


def forge(path, header=None, counts=None, compression=zipfile.ZIP_DEFLATED, extra=()):
    """Rewrite a file with a header or counts of one's own, and a digest that fits."""
    with np.load(path) as file:
        fields, array = json.loads(file["header"].tobytes()), file["counts"]
    if callable(header):
        header(fields)
        header = None
    text = np.frombuffer(json.dumps(fields).encode() if header is None else header, np.uint8)
    array = array if counts is None else counts
    members = {"header": text, "counts": array, "digest": classifier._digest(text, array)}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, value in [*members.items(), *extra]:
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, value)


def test_the_digest_covers_header_and_counts(path):
    """Checksums of the zip format can be mended by any tool; counts and header are valid, only not those saved."""
    with np.load(path) as file:
        members = dict(file)
    model = FlyNNClassifier.load(path)
    fewer = model.counts_.array.copy()
    fewer[0] = 0
    header = members["header"].tobytes().replace(b'"balanced"', b'"novelty"')
    for change in ({"counts": fewer.astype(np.uint8)}, {"header": np.frombuffer(header, np.uint8)}):
        with open(path, "wb") as stream:
            np.savez(stream, **(members | change))
        with pytest.raises(ModelFileError, match="altered: the digest"):
            FlyNNClassifier.load(path)
    with open(path, "wb") as stream:
        np.savez(stream, **members)
    assert FlyNNClassifier.load(path).counts_ == model.counts_


def set_to(*keys, value):
    def change(fields):
        for key in keys[:-1]:
            fields = fields[key]
        fields[keys[-1]] = value

    return change


def test_forging_works(path):
    expected = FlyNNClassifier.load(path).counts_
    forge(path)
    assert FlyNNClassifier.load(path).counts_ == expected


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "not a model file"),
        (b"[]", "not a model file"),
        (b"[" * 10**5, "not a model file"),
        (b"\xff", "not a model file"),
        (b"{}", "not a model file"),
        (set_to("format", value=2), "format 2, this version reads format 1"),
        (set_to("spec", value=None), "spec"),
        (set_to("spec", "seed", value=2), "rows of M are others"),
        (set_to("spec", "center", value=[0, 0, float("nan")]), "center"),
        (set_to("spec", "hash_dim", value=21), "counts"),
        (set_to("spec", "hash_nnz", value=2), "rows of M are others"),
        (set_to("spec", "row_nnz", value=2**40), "row_nnz"),
        (set_to("fingerprint", value=64 * "0"), "rows of M are others"),
        (set_to("classes", value=None), "not a model file"),
        (set_to("classes", "values", value=["ant", "bee"]), "counts"),
        (set_to("classes", "values", value=["ant", "bee", "bee"]), "classes"),
        (set_to("classes", "values", value=["ant", "bee", ["cicada"]]), "not a model file"),
        (set_to("classes", "values", value=[1, 2, 3]), "classes"),
        (set_to("classes", "dtype", value="<U1000000000"), "classes"),
        (set_to("classes", "dtype", value="V1000000000"), "classes"),
        (set_to("feature_names", value="abc"), "feature_names"),
        (set_to("feature_names", value=["a", "b", 3]), "feature_names"),
        (set_to("decay", value=1.0), "decay"),
        (set_to("decay", value=None), "decay"),
        (set_to("decay_", value=float("nan")), "decay"),
        (set_to("decay_", value="auto"), "decay"),
        (set_to("rule", value="best"), "rule"),
        (set_to("rule", value=["balanced"]), "rule"),
    ],
)
def test_forged_headers_are_refused(path, header, message):
    forge(path, header)
    with pytest.raises(ModelFileError, match=message):
        FlyNNClassifier.load(path)


@pytest.mark.parametrize(
    "counts",
    [
        np.zeros((3, 19), np.uint8),
        np.zeros(60, np.uint8),
        np.zeros((3, 20), np.int64),
        np.zeros((3, 20)),
        np.zeros((3, 20), ">u2"),
        np.ones((3, 20), np.uint8),
        np.full((3, 20), 2**63, np.uint64),
        np.asfortranarray(np.zeros((3, 20), np.uint8)),
        np.zeros((3, 20), "u1,u1"),
    ],
)
def test_forged_counts_are_refused(path, counts):
    forge(path, counts=counts)
    with pytest.raises(ModelFileError, match=r"counts|row"):
        FlyNNClassifier.load(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(path, compression):
    forge(path, compression=compression)
    with pytest.raises(ModelFileError, match="compressed by another method"):
        FlyNNClassifier.load(path)


def test_other_contents_are_refused(path):
    forge(path, extra=[("more", np.zeros(1))])
    with pytest.raises(ModelFileError, match="other contents"):
        FlyNNClassifier.load(path)


def test_pickles_are_refused(path):
    forge(path, counts=np.array([[{}]], object))
    with pytest.raises(ModelFileError, match="counts"):
        FlyNNClassifier.load(path)


def test_small_files_do_not_take_much_memory(path):
    """Each of these would need gigabytes if it were believed."""
    import tracemalloc

    forgeries = [
        {"header": set_to("spec", "hash_dim", value=2**31 - 1)},
        {"header": set_to("spec", value=SPEC.to_dict() | {"n_features": 2**31 - 1, "row_nnz": 2**31 - 1})},
        {"header": set_to("spec", value=SPEC.to_dict() | {"n_features": 2**31 - 1})},
        {"header": b'{"format": 1, "spec": ' + b" " * 2**26 + b"}"},
        {"counts": np.zeros((3, 2**24), np.uint8)},
    ]
    content = path.read_bytes()
    for forgery in forgeries:
        path.write_bytes(content)
        forge(path, **forgery)
        assert path.stat().st_size < 10**6
        tracemalloc.start()
        with pytest.raises(ModelFileError):
            FlyNNClassifier.load(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10**7


def test_the_memory_limit_can_be_moved(tmp_path):
    model = FlyNNClassifier().fit(X, Y)
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"needs about 1\.9 MiB, the limit is 0\.95 MiB"):
        FlyNNClassifier.load(tmp_path / "model", max_bytes=10**6)
    assert FlyNNClassifier.load(tmp_path / "model", max_bytes=2 * 10**6).counts_ == model.counts_
