"""Figures from confusion matrices are scikit-learn's; sums of them are the pool's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
)

from flwr_flynn.model.metrics import accuracies, confusion, evaluation_figures

codes = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(codes)
def test_scores_are_those_of_scikit_learn(pairs):
    true, predicted = np.array(pairs).T
    matrix = confusion(true, predicted, 4)
    np.testing.assert_array_equal(
        matrix, confusion_matrix(true, predicted, labels=range(4))
    )
    assert accuracies(matrix) == pytest.approx(
        {
            "accuracy": accuracy_score(true, predicted),
            "balanced_accuracy": balanced_accuracy_score(true, predicted),
            "macro_f1": f1_score(true, predicted, average="macro", zero_division=0),
        }
    )


@given(st.lists(codes, min_size=1, max_size=5))
def test_the_sum_over_parties_is_the_pooled_matrix(
    parties,
):
    matrices = {
        f"p{i}": confusion(*np.array(pairs).T, 4) for i, pairs in enumerate(parties)
    }
    pooled = confusion(*np.array([pair for pairs in parties for pair in pairs]).T, 4)
    figures = evaluation_figures(
        pooled,
        {
            name: (int(np.trace(matrix)), int(matrix.sum()))
            for name, matrix in matrices.items()
        },
    )
    assert figures["confusion"] == pooled.tolist()
    assert figures["accuracy"] == accuracies(pooled)["accuracy"]
    of_parties = [accuracies(matrix)["accuracy"] for matrix in matrices.values()]
    assert figures["worst_party"]["accuracy"] == min(of_parties)
    assert figures["best_party"]["accuracy"] == max(of_parties)
    assert figures["accuracy_std"] == pytest.approx(np.std(of_parties))
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
