"""Figures from confusion matrices are scikit-learn's, and adding matrices is pooling points."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score

from flwr_flynn.errors import PayloadError
from flwr_flynn.model.metrics import confusion, confusion_from_bytes, confusion_to_bytes, scores, summary

codes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(codes)
def test_scores_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    true, predicted = np.array(pairs).T
    matrix = confusion(true, predicted, 4)
    np.testing.assert_array_equal(matrix, confusion_matrix(true, predicted, labels=range(4)))
    assert scores(matrix) == pytest.approx(
        {
            "accuracy": accuracy_score(true, predicted),
            "balanced_accuracy": balanced_accuracy_score(true, predicted),
            "macro_f1": f1_score(true, predicted, average="macro", zero_division=0),
        }
    )


@given(st.lists(codes, min_size=1, max_size=5))
def test_the_sum_over_parties_is_the_pooled_matrix(parties: list[list[tuple[int, int]]]) -> None:
    matrices = {f"p{i}": confusion(*np.array(pairs).T, 4) for i, pairs in enumerate(parties)}
    pooled = confusion(*np.array([pair for pairs in parties for pair in pairs]).T, 4)
    figures = summary(matrices)
    assert figures["confusion"] == pooled.tolist()
    assert figures["accuracy"] == scores(pooled)["accuracy"]
    each = [scores(matrix)["accuracy"] for matrix in matrices.values()]
    assert figures["worst_party"]["accuracy"] == min(each)
    assert figures["best_party"]["accuracy"] == max(each)
    assert figures["accuracy_std"] == pytest.approx(np.std(each))
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures


def test_a_matrix_survives_the_wire() -> None:
    matrix = np.array([[3, 1], [0, 2**40]])
    np.testing.assert_array_equal(confusion_from_bytes(confusion_to_bytes(matrix), 2, 4 + 2**40), matrix)


@pytest.mark.parametrize(
    ("raw", "n_examples", "reason"),
    [
        (None, 4, "expected 32 bytes, got NoneType"),
        ("x" * 32, 4, "expected 32 bytes, got str"),
        (bytes(31), 4, "got 31 bytes"),
        (bytes(40), 4, "got 40 bytes"),
        (confusion_to_bytes(np.array([[5, -1], [0, 0]])), 4, "a negative count"),
        (confusion_to_bytes(np.array([[1, 1], [1, 0]])), 4, "expected 4 examples as announced, got 3"),
        # wraps around to 4 in int64
        (confusion_to_bytes(np.array([[2**62, 2**62], [2**62, 2**62]]) + np.array([[4, 0], [0, 0]])), 4, "got 1844"),
        (confusion_to_bytes(np.array([[2**60, 0], [0, 0]])), 2**60, "expected at most"),
    ],
)
def test_hostile_matrices_are_refused(raw: object, n_examples: int, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason) as raised:
        confusion_from_bytes(raw, 2, n_examples)
    assert raised.value.field == "confusion matrix"
