"""Refused values of counts, rules, members, models and plans, on record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import ClassCounts, FlyHash, FlyNNClassifier, HashPlan, HashSpec
from flwr_flynn.errors import FlyNNError
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import Release
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.scoring import ScoringRule, class_novelty, class_scores
from flwr_flynn.model.selection import left_out_scores
from tests.model.samples import LABELS, SPEC, X, Y
from tests.snapshots import assert_refused_as_on_record

HASHER = FlyHash(
    HashSpec(n_features=3, hash_dim=12, row_nnz=2, hash_nnz=4, seed=7, signed=True)
)
ACTIVE = HASHER.active(np.eye(3))
HALF = ScoringRule("balanced", 0.5)
TWO = ClassCounts.from_active(HASHER, ACTIVE[:2], [0, 1], 2)
MEMBER = ModelMember(HASHER.spec, TWO, HALF)
MODEL = Model((MEMBER,), ["a", "b"], ["p", "q", "r"])
FOUR = Model(
    (replace(MEMBER, counts=ClassCounts.zeros(HASHER, 4)),),
    ["ash", "birch", "cedar", "date"],
)
COUNTS = {"array": [[1, 1]], "hash_nnz": 2, "spec_fingerprint": 64 * "0"}
RELEASE = asdict(Release(64 * "a", 2.0, -3, True))
PARAMETERS = FlyNNClassifier().get_params()
COLUMNS = ColumnHistograms.from_data(np.arange(12.0).reshape(3, 4), np.arange(3), 3)


def left_out(active: Any, y: Any) -> object:
    return list(left_out_scores(TWO, active, y, [HALF]))


def alike(*acts: Callable[[Any], object]) -> Callable[[Any], str]:
    """The one error by which all of these refuse a value."""

    def take(value: Any) -> str:
        errors = set()
        for act in acts:
            with pytest.raises(FlyNNError) as caught:
                act(value)
            errors.add(f"{type(caught.value).__name__} {caught.value.field}")
        (error,) = errors
        return error

    return take


def left_alone(act: Callable[[FlyNNClassifier, Any], object]) -> Callable[[Any], str]:
    """The error of a classifier about a value, which leaves its model as it was.

    Of an error of scikit-learn's it is the parameter.
    """

    def take(value: Any) -> str:
        classifier = FlyNNClassifier(SPEC).fit(X, Y)
        before = classifier.model_
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - what it is about is on record
            act(classifier, value)
        assert classifier.model_ is before
        error = caught.value
        if isinstance(error, FlyNNError):
            return f"{type(error).__name__} {error.field}, got {error.got}"
        words = str(error).replace("'", " ").split()
        return f"scikit-learn's {next(word for word in words if word in PARAMETERS)}"

    return take


TAKES = {
    "fit": left_alone(
        lambda model, change: model.set_params(spec=None, **change).fit(X, Y)
    ),
    "fit-with-spec": left_alone(
        lambda model, change: model.set_params(**change).fit(X, Y)
    ),
    "learn": left_alone(
        lambda model, given: model.partial_fit(X[: len(given["y"])], **given)
    ),
    "merge": left_alone(
        lambda model, change: model.merge(
            FlyNNClassifier(replace(SPEC, **change)).fit(X, Y)
        )
    ),
    "from-counts": left_alone(
        lambda model, change: FlyNNClassifier.from_counts(
            **({"spec": SPEC, "counts": model.counts_, "classes": LABELS} | change)
        )
    ),
    "counts": lambda change: ClassCounts(**(COUNTS | change)),
    "active": alike(
        lambda bits: ClassCounts.from_active(HASHER, bits, [0], 2),
        lambda bits: left_out(bits, [0]),
        lambda bits: class_scores(TWO, bits, HALF),
        lambda bits: class_novelty(TWO, bits, 0.5),
    ),
    "y": alike(
        lambda y: ClassCounts.from_active(HASHER, ACTIVE[:1], y, 2),
        lambda y: left_out(ACTIVE[:1], y),
    ),
    "release": lambda change: Release.from_dict(RELEASE | change),
    "decay": alike(
        lambda decay: ScoringRule("novelty", decay),
        lambda decay: class_novelty(TWO, ACTIVE, decay),
    ),
    "rule": lambda values: ScoringRule(*values),
    "member": lambda change: replace(MEMBER, **change),
    "model": lambda change: replace(MODEL, **change),
    "prior": lambda given: FlyNNClassifier.from_model(FOUR).with_prior(**given),
    "plan": lambda given: HashPlan(**({"n_features": 4, "n_classes": 2} | given)),
    "candidates": lambda given: HashPlan(4, 3, 9, "auto", **given).specs(COLUMNS),
}


def test_values_that_are_none_are_refused_as_it_is_on_record():
    assert_refused_as_on_record(Path(__file__).parent / "refused.txt", TAKES)
