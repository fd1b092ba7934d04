"""A model and its members: what is checked, and what identifies them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.errors import DataError, SpecError
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.scoring import ScoringRule
from tests.raising import raises

SPEC = HashSpec(n_features=2, hash_dim=16, row_nnz=1, hash_nnz=3, seed=1)
HASHER = FlyHash(SPEC)
COUNTS = ClassCounts.from_data(HASHER, [[1.0, 0.0], [0.0, 1.0]], [0, 1], 2)
READOUT = ScoringRule("balanced", 0.5, 0.2)
MEMBER = ModelMember(SPEC, COUNTS, READOUT)
OTHER = HashSpec(n_features=3, hash_dim=16, row_nnz=1, hash_nnz=3, seed=1)


def test_members_of_another_hash_are_refused():
    with raises(SpecError, field="counts"):
        replace(MEMBER, spec=replace(SPEC, seed=2))


def empty(spec, n_classes):
    return ModelMember(spec, ClassCounts.zeros(FlyHash(spec), n_classes), READOUT)


@pytest.mark.parametrize(
    "other", [empty(OTHER, 2), empty(SPEC, 3)], ids=["features", "classes"]
)
def test_members_of_other_features_or_classes_are_refused(other):
    """`refused.txt` has the other arguments that `ModelMember` and `Model` refuse.

    `forged.txt` has the altered files.
    """
    with raises(DataError, field="members"):
        Model((MEMBER, other), ["a", "b"])


def test_a_model_is_immutable_and_identified_by_its_contents():
    labels = np.array(["a", "b"])
    model = Model([MEMBER], labels, ["p", "q"], "epsilon 1")
    labels[0] = "c"
    assert (model.classes.tolist(), model.classes.flags.writeable) == (
        ["a", "b"],
        False,
    )
    assert model.members == (MEMBER,)
    assert model.member == MEMBER
    assert model.feature_names == ("p", "q")
    with pytest.raises(FrozenInstanceError):
        model.guarantee = None
    # The guarantee plays no part in predictions.
    assert replace(model, guarantee=None).sha256() == model.sha256()
    light = replace(MEMBER, weight=0.5)
    two = replace(model, members=(MEMBER, MEMBER))
    scored = replace(MEMBER, scoring=ScoringRule("balanced", 0.5, 0.3))
    twice = replace(MEMBER, counts=COUNTS + COUNTS)
    different = [
        model,
        two,
        Model((MEMBER,), ["b", "a"], ["p", "q"]),
        Model((MEMBER,), ["a", "b"]),
        replace(model, members=(scored,)),
        replace(model, members=(twice,)),
        replace(model, members=(MEMBER, light)),
        replace(model, members=(light, MEMBER)),
    ]
    assert len({one.sha256() for one in different}) == 8
    with raises(DataError, field="members", got="2"):
        _ = two.member
