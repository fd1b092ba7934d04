"""The estimator on tables as they are: categories, gaps and dates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import DataError, SpecError
from flwr_flynn.tables.schema import Schema
from tests.raising import raises

RNG = np.random.default_rng(0)
N = 400
Y = RNG.integers(0, 3, N)
FRAME = pd.DataFrame(
    {
        "number": np.where(RNG.random(N) < 0.2, np.nan, Y + RNG.normal(size=N)),
        "text": np.where(RNG.random(N) < 0.6, np.array(["a", "b", "c"])[Y], "d"),
        "date": pd.Timestamp("2020-01-01")
        + pd.to_timedelta(RNG.integers(0, 900, N) + 200 * Y, unit="D"),
        "flag": RNG.random(N) < 0.5,
    }
)
FRAME.loc[::7, "text"] = None


@pytest.mark.parametrize("effort", ["quick", "default", "thorough"])
def test_a_frame_is_learned_as_it_is(effort, tmp_path):
    model = FlyNNClassifier(effort=effort).fit(FRAME[:300], Y[:300])
    assert model.score(FRAME[300:], Y[300:]) > 0.7
    assert model.feature_names_in_.tolist() == list(FRAME.columns)
    assert_array_equal(
        model.predict_proba(FRAME[FRAME.columns[::-1]]), model.predict_proba(FRAME)
    )
    model.save(tmp_path / "model.npz")
    again = FlyNNClassifier.load(tmp_path / "model.npz")
    assert again.model_.sha256() == model.model_.sha256()
    assert again.model_.schema == model.model_.schema
    assert_array_equal(again.predict(FRAME), model.predict(FRAME))


def test_what_does_not_fit_is_refused_by_column():
    """What a schema refuses else is in `tests.tables`."""
    model = FlyNNClassifier().fit(FRAME, Y)
    with pytest.warns(UserWarning, match="'flag' is not there"):
        model.predict(FRAME.drop(columns="flag"))
    with raises(DataError, field="columns", got="1 of 4 missing: 'flag'; 1 others"):
        model.predict(FRAME.rename(columns={"flag": "flagged"}))
    with raises(DataError, field="X", expected="at least 1 sample"):
        model.predict(FRAME[:0])
    with pytest.warns(UserWarning, match="'text': no value"):
        assert_array_equal(
            *(model.predict(FRAME.assign(text=text)) for text in ("new", "newer"))
        )


def test_gaps_in_an_array_have_a_bit_of_their_own():
    X = RNG.normal(size=(N, 4))
    # Nothing but the gaps tells of the class.
    X[RNG.random((N, 4)) < 0.2 + 0.2 * Y[:, None]] = np.nan
    model = FlyNNClassifier().fit(X[:300], Y[:300])
    assert model.n_features_in_ == 4
    assert not hasattr(model, "feature_names_in_")
    assert model.score(X[300:], Y[300:]) > 0.45
    with raises(DataError, field="X", expected="4 columns"):
        model.predict(X[:, :3])


def test_numbers_without_gaps_give_the_model_that_they_gave():
    X = RNG.normal(size=(N, 4)) + Y[:, None]
    model = FlyNNClassifier().fit(X, Y)
    frames = [
        pd.DataFrame(X),
        pd.DataFrame(X, dtype="Float64"),
        X.astype(object),
        X.tolist(),
    ]
    for same in frames:
        assert FlyNNClassifier().fit(same, Y).model_.sha256() == model.model_.sha256()
    assert model.model_.schema is None
    gaps = X.copy()
    gaps[:2, 0] = np.nan
    assert model.predict(gaps).shape == (N,)  # a gap is at the centre of its column


def test_models_of_tables_merge_and_forget():
    first = FlyNNClassifier(effort="quick").partial_fit(
        FRAME[:200], Y[:200], classes=[0, 1, 2]
    )
    both = FlyNNClassifier.from_model(first.model_).partial_fit(FRAME[200:], Y[200:])
    alone = FlyNNClassifier.from_model(both.model_).forget(FRAME[:200], Y[:200])
    assert first.merge(alone).counts_ == both.counts_
    with raises(SpecError, field="merge"):
        first.merge(FlyNNClassifier(effort="quick").fit(FRAME[["number", "date"]], Y))
    renamed = [
        replace(column, name=f"{column.name}s")
        for column in first.model_.schema.columns
    ]
    with raises(DataError, field="merge", expected="equal schemas"):
        first.merge(
            FlyNNClassifier.from_model(
                replace(first.model_, feature_names=Schema(renamed))
            )
        )
