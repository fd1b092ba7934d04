"""HashSpec: what is refused, and how specifications travel and differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn.errors import SpecError
from tests.raising import raises
from tests.snapshots import assert_refused_as_on_record
from tests.strategies import coded_specs, specs

SPEC = HashSpec(n_features=10, hash_dim=300, row_nnz=3, hash_nnz=7, seed=5)


CODED = HashSpec(
    3,
    40,
    4,
    5,
    7,
    coding="steps",
    n_codes=4,
    edges=[[0.0, 1.0]] * 3,
    row_weights=[1, 2, 3],
)


def changed(base, **change):
    return HashSpec(**{**base.to_dict(), **change})


TAKES = {
    "plain": lambda change: changed(SPEC, **change),
    "coded": lambda change: changed(CODED, **change),
    "spec": HashSpec.from_dict,
    "sizes": lambda given: HashSpec.suggest(4, **given),
    "rows": lambda rows: FlyHash.from_rows(rows, 10, 1),
    "n_classes": lambda number: FlyHash(SPEC).count(np.zeros((2, 10)), [0, 0], number),
    "y": lambda y: FlyHash(SPEC).count(np.zeros((2, 10)), y, 3),
}


def test_specifications_and_sizes_that_are_none_are_refused_as_it_is_on_record():
    """A changed field is named, or the one that does not go with it."""
    assert_refused_as_on_record(Path(__file__).parent / "refused.txt", TAKES)


VECTORS = [[10**400] * 10, np.zeros((10, 1)), np.array(1.0)]
NO_JSON = [(SPEC, {name: vector}) for name in ("center", "scale") for vector in VECTORS]
NO_JSON += [
    (CODED, {"edges": bad})
    for bad in ([[10**400]] * 3, [[0.0] * 257] * 3, np.zeros((3, 2, 2)))
]
NO_JSON += [
    (CODED, {"scale": np.ones(3)}),
    (SPEC, {"n_waves": 5, "wave_frequency": 10**400}),
]


@pytest.mark.parametrize(("base", "change"), NO_JSON)
def test_arrays_and_numbers_that_no_record_holds_are_refused_by_name(base, change):
    with raises(SpecError, field=[*change][-1]):
        changed(base, **change)


def test_specs_without_codes_look_as_before():
    plain = HashSpec(3, 40, 2, 5, 7)
    assert set(plain.to_dict()).isdisjoint(
        {"coding", "n_codes", "edges", "row_weights"}
    )
    far = ((-1.7e308, 1.7e308),) * 3  # as far apart as floats are
    assert changed(CODED, edges=far).edges == far


@given(specs(3) | coded_specs(3))
def test_specs_survive_json(spec):
    again = HashSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert hash(again) == hash(spec)
    assert FlyHash(again).fingerprint == FlyHash(spec).fingerprint
    assert again.difference(spec) == []


SPEC_CHANGES = {
    "hash_dim": 301,
    "row_nnz": 4,
    "hash_nnz": 8,
    "seed": 6,
    "signed": True,
    "center": (0.0,) * 10,
}
CODE_CHANGES = [
    ("coding", "bumps"),
    ("edges", [[0.0, 2.0]] * 3),
    ("edges", [[0.0, 0.5, 1.0]] * 3),
    ("n_codes", 5),
]
CODE_CHANGES += [("row_weights", None), ("row_weights", [2, 4, 6]), ("signed", True)]


@pytest.mark.parametrize(
    ("base", "changes"),
    [(SPEC, SPEC_CHANGES.items()), (CODED, CODE_CHANGES)],
    ids=["plain", "codes"],
)
def test_fingerprints_tell_specs_apart(base, changes):
    variants = [base, *(changed(base, **{name: value}) for name, value in changes)]
    assert len({FlyHash(spec).fingerprint for spec in variants}) == len(variants)
    assert [base.difference(spec) for spec in variants] == [
        [],
        *([name] for name, _ in changes),
    ]
    one, minus = (changed(SPEC, center=(zero,) * 10) for zero in (0.0, -0.0))
    assert FlyHash(minus).fingerprint == FlyHash(one).fingerprint


@pytest.mark.parametrize("n_features", [1, 2, 4, 16, 64, 784, 20000])
@pytest.mark.parametrize("n_classes", [None, 2, 1000])
def test_suggested_sizes_are_valid_and_bounded(n_features, n_classes):
    spec = HashSpec.suggest(n_features, 1000, n_classes)
    assert spec.n_features == n_features
    assert spec.hash_dim * (n_classes or 1) <= 2**23
    noisy = HashSpec.suggest(n_features, 1000, n_classes or 2, noise_sigma=5.0)
    assert spec.hash_nnz <= noisy.hash_nnz or noisy.hash_nnz == noisy.hash_dim // 10
