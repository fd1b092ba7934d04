"""Contributions of columns, against an oracle that replaces one value at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from flwr_flynn import FlyHash, FlyNNClassifier, HashSpec
from flwr_flynn.hashing.rank_codes import edges_of_ranges
from flwr_flynn.model import reasons
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from tests.model.samples import LABELS, SPEC, X, Y
from tests.model.test_classifier_tables import FRAME
from tests.model.test_classifier_tables import Y as CLASSES

N = 12  # samples that are asked about
DAY = pd.Timestamp("1970-01-01")


def log_odds(model, samples, labels):
    """Log odds of a class of each sample against the others."""
    p = model.predict_proba(samples)
    own = labels[:, None] == model.classes_
    return np.log(p[own]) - np.log(np.where(own, 0, p).sum(axis=1))


def stand_ins(edges):
    """Four of 32 edges, and their weights."""
    quantiles = [edges[rank] for rank in (4, 12, 20, 28)]
    return {value: n / 4 for value, n in Counter(quantiles).items()}


def table_stand_ins(model):
    """Values in the place of those of each column of a data frame, and weights."""
    specs = [member.spec for member in model.model_.members]
    schema = model.model_.schema
    edges = next(spec.edges for spec in specs if spec.edges is not None)
    shares = dict(zip(schema.inputs, np.mean(edges, axis=1), strict=True))
    edges = dict(zip(schema.inputs, edges, strict=True))
    columns = {column.name: column for column in schema.columns}
    for name in model.feature_names_in_:
        column = columns[name]
        gaps = shares.get(f"{name} missing", 0.0)
        if column.kind == "category":
            values = {level: shares[f"{name}={level}"] for level in column.levels}
            gaps /= gaps + sum(values.values())
        elif column.kind == "date":
            days = stand_ins(edges[f"{name} days"])
            values = {DAY + pd.Timedelta(days=day): w for day, w in days.items()}
        else:
            values = stand_ins(edges[name])
        total = sum(values.values())
        values = {value: (1 - gaps) * w / total for value, w in values.items()}
        yield values | {None: gaps}


def by_oracle(model, samples, every):
    """Mean fall of the log odds, a value of a data frame at a time."""
    labels = model.predict(samples)
    before = log_odds(model, samples, labels)
    added = np.zeros(samples.shape)
    for j, values in enumerate(every):
        for value, weight in values.items():
            changed = samples.copy()
            changed[samples.columns[j]] = pd.Series(
                [value] * len(samples), samples.index, samples.dtypes.iloc[j]
            )
            added[:, j] += weight * (before - log_odds(model, changed, labels))
    return added


def of_spec(**fields):
    return FlyNNClassifier(replace(SPEC, **fields)).fit(X, Y)


def noisy():
    """A private model: public ranges, and noise in the counts."""
    spec = replace(
        SPEC, coding="bumps", n_codes=5, edges=edges_of_ranges([-3] * 5, [3] * 5)
    )
    counts = FlyNNClassifier(spec).fit(X, Y).counts_
    mechanism = LaplaceCounts(5.0, hash_nnz=spec.hash_nnz, n_classes=3)
    release = SimulatedRelease(mechanism, 3).release(counts)
    return FlyNNClassifier.from_counts(spec, release, LABELS)


def of_gaps(value):
    return lambda _: [{value: 1.0}] * X.shape[1]


def of_edges(model):
    return [stand_ins(edges) for edges in model.model_.members[0].spec.edges]


MODELS = {
    "zeros": (of_spec, of_gaps(0.0)),
    "gaps": (lambda: of_spec(center=(0.5,) * 5), of_gaps(np.nan)),
    "noise": (noisy, of_edges),
    "quick": (lambda: FlyNNClassifier(effort="quick").fit(X, Y), of_edges),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_contribution_is_the_mean_fall_of_the_log_odds(name):
    make, every = MODELS[name]
    model = make()
    samples = pd.DataFrame(X[:N])
    samples.columns = [*"abcde"]
    model.feature_names_in_ = np.array([*"abcde"], object)
    expected = by_oracle(model, samples, every(model))
    added = model.contributions(samples)
    assert added.dtype == np.float64
    assert_allclose(added, expected, atol=1e-6)
    assert np.abs(added).max(axis=0).min() > 0


@pytest.mark.parametrize("effort", ["quick", "thorough"])
def test_a_column_of_a_table_is_replaced_as_a_whole(effort):
    model = FlyNNClassifier(effort=effort).fit(FRAME, CLASSES)
    samples = FRAME[:N]
    added = model.contributions(samples)
    assert added.shape == (N, 4)
    expected = by_oracle(model, samples, table_stand_ins(model))
    assert_allclose(added, expected, atol=1e-5)


@pytest.mark.parametrize("n_texts", [5, 20, 35])
def test_numbers_stand_for_a_column_of_texts_beside_them_as_well(n_texts):
    cells = [*map(str, range(9, 89 - n_texts)), *["<5"] * n_texts]
    X = pd.DataFrame({"crp": cells})
    model = FlyNNClassifier(effort="quick").fit(X, np.arange(80) < 40)
    _, (_, values, weights) = reasons.substitutes(model.model_)
    shares = dict(zip(values[:, 0].tolist(), weights.tolist(), strict=True))
    assert sum(shares.values()) == pytest.approx(1)
    assert shares.get(1.0, 0) == pytest.approx(n_texts / 80, abs=1 / 32)
    assert shares[0.0] == pytest.approx(1 - n_texts / 80, abs=1 / 32)


def test_without_interactions_they_add_up_to_the_difference_from_typical_log_odds():
    """Of a linear part alone, all typical values of one column beside all of another."""
    generator = np.random.default_rng(0)
    samples = generator.normal(size=(400, 3))
    y = samples @ [2.0, -1.0, 0.5] + generator.logistic(size=400) > 0
    model = FlyNNClassifier().fit(samples, y)
    linear = replace(
        model.model_,
        calibration=replace(model.model_.calibration, share=1.0),
    )
    model = FlyNNClassifier.from_model(linear)
    edges = reasons.edges_of(linear)[:, [4, 12, 20, 28]]
    typical = np.stack(np.meshgrid(*edges), axis=-1).reshape(-1, 3)
    asked = samples[:N]
    side = np.where(model.predict(asked), 1, -1)
    away = model.decision_function(asked) - model.decision_function(typical).mean()
    assert_allclose(model.contributions(asked).sum(axis=1), side * away, atol=1e-9)


def test_a_column_that_the_model_ignores_adds_nothing():
    specs = (
        HashSpec(4, 8, 1, 2, seed=seed, signed=True, center=(0.0,) * 4)
        for seed in range(1000)
    )
    spec = next(spec for spec in specs if 2 not in FlyHash(spec).rows)
    added = FlyNNClassifier(spec).fit(X[:, :4], Y).contributions(X[:, :4])
    assert not added[:, 2].any()
    assert added.any(axis=0).sum() > 1


def test_order_batches_threads_and_storage_change_nothing(monkeypatch):
    model = of_spec()
    added = model.contributions(X)
    monkeypatch.setattr(reasons, "_MOST_NUMBERS", 7 * (5 + 256))
    assert_array_equal(model.contributions(X[::-1]), added[::-1])
    assert_array_equal(model.contributions(X[7:8]), added[7:8])
    assert_array_equal(model.set_params(n_jobs=2).contributions(X), added)
    assert_array_equal(model.contributions(sp.csr_array(X)), added)


def test_a_model_of_one_class_has_nothing_to_tell_apart():
    model = FlyNNClassifier(SPEC).partial_fit(X, Y.size * ["ant"], LABELS)
    assert not model.contributions(X).any()


def test_two_classes_have_opposite_contributions():
    model = FlyNNClassifier(SPEC).fit(X, Y == "ant")
    asked = X[:N]
    turned = FlyNNClassifier.from_model(
        replace(model.model_, classes=model.classes_[::-1])
    )
    assert_array_equal(turned.contributions(asked), model.contributions(asked))


# ---- of columns


def test_importance_is_the_mean_of_contributions_of_drawn_samples(monkeypatch):
    model = FlyNNClassifier().fit(X, Y).model_
    drawn = []
    whole = reasons.contributions
    monkeypatch.setattr(
        reasons, "contributions", lambda *about: drawn.append(about[1]) or whole(*about)
    )
    means = reasons.importance(model)
    (samples,) = drawn
    assert_allclose(means, np.abs(whole(model, samples)).mean(axis=0))
    for j, (place, values, _) in enumerate(reasons.substitutes(model)):
        assert place == slice(j, j + 1)
        assert {*samples[:, j]} <= {*values[:, 0]}
    assert_array_equal(reasons.importance(model), means)  # drawn alike


def test_columns_that_tell_more_are_more_important():
    rng = np.random.default_rng(1)
    samples = rng.normal(size=(600, 5))
    odds = samples @ [3.0, 1.5, 0.5, 0.0, 0.0]
    y = (odds + rng.logistic(size=600) > 0).astype(int)
    means = reasons.importance(FlyNNClassifier().fit(samples, y).model_)
    assert means[0] > means[1] > means[2:].max()
