"""HashSpec: what is refused, and how specifications travel and differ."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn.errors import SpecError
from tests.raising import raises
from tests.strategies import coded_specs, specs

SPEC = HashSpec(n_features=10, hash_dim=300, row_nnz=3, hash_nnz=7, seed=5)


CODED = HashSpec(3, 40, 4, 5, 7, coding="steps", n_codes=4, edges=[[0.0, 1.0]] * 3, row_weights=[1, 2, 3])
NAN, INF = float("nan"), float("inf")
VECTORS = [
    *((0.0,) * 9, (0.0,) * 9 + (NAN,), "0123456789", ("1.5",) * 10, [10**400] * 10),
    *(np.zeros((10, 1)), np.array(1.0), 1.0),
]
BAD = [
    *[({"n_features": 0}, "n_features"), ({"hash_dim": 2**31}, "hash_dim"), ({"row_nnz": 11}, "row_nnz")],
    *(({"hash_nnz": bad}, "hash_nnz") for bad in (301, 2.0)),
    *(({"seed": bad}, "seed") for bad in (-1, True)),
    *[
        ({"signed": 1}, "signed"),
        ({"n_waves": -1}, "n_waves"),
        ({"n_waves": 2**16 + 1, "wave_frequency": 1.0}, "n_waves"),
    ],
    *(({name: bad}, name) for name in ("center", "scale") for bad in VECTORS),
    ({"scale": (1.0,) + (0.0,) * 9}, "scale"),
    ({"row_nnz": 3, "n_waves": 2, "wave_frequency": 0.5}, "row_nnz"),
    *(({"n_waves": 5, "wave_frequency": bad}, "wave_frequency") for bad in (0.0, INF, 10**400, "1")),
    ({"wave_frequency": 0.5}, "wave_frequency"),  # of no waves
    ({"row_weights": [1] * 10, "n_waves": 4, "wave_frequency": 1.0}, "row_weights"),
]
EDGES = [
    *(None, "abc", 5, {}, [[], [], []], [[0.0, 1.0]] * 2, [[0.0], [0.0], [0.0, 1.0]], [["0.0"]] * 3, [[True]] * 3),
    *([[1.0, 0.0]] * 3, [[0.0, float("inf")]] * 3, [[float("nan")]] * 3, [[10**400]] * 3, [[0.0] * 257] * 3),
    np.zeros((3, 2, 2)),
]
WEIGHTS = [(1, 2), (0, 1, 2), (1, 2, 256), (1, 2, 2.5), (1, 2, True), "abc", 5]
BAD_CODES = [
    *(({"coding": bad}, "coding") for bad in ("stairs", None)),
    *[({"coding": ""}, "n_codes"), ({"coding": "", "n_codes": 0}, "edges")],
    *(({"n_codes": bad}, "n_codes") for bad in (0, 1, 65, 2.0)),
    *(({"edges": bad}, "edges") for bad in EDGES),
    *[({"center": (1.0,) * 3}, "center"), ({"scale": np.ones(3)}, "scale")],
    ({"n_waves": 3, "wave_frequency": 1.0}, "n_waves"),
    *(({"row_weights": bad}, "row_weights") for bad in WEIGHTS),
    *[({"row_nnz": 7}, "row_nnz"), ({"row_nnz": 13, "row_weights": None}, "row_nnz")],
]


def changed(base, **change):
    return HashSpec(**{**base.to_dict(), **change})


@pytest.mark.parametrize(
    ("base", "change", "field"), [*((SPEC, *row) for row in BAD), *((CODED, *row) for row in BAD_CODES)]
)
def test_a_bad_field_is_named(base, change, field):
    with raises(SpecError, field=field):
        changed(base, **change)


def test_specs_without_codes_look_as_before():
    plain = HashSpec(3, 40, 2, 5, 7)
    assert set(plain.to_dict()).isdisjoint({"coding", "n_codes", "edges", "row_weights"})
    assert (plain.coding, plain.n_codes, plain.edges, plain.row_weights, plain.n_inputs) == ("", 0, None, None, 3)
    assert (CODED.n_inputs, CODED.edges, CODED.row_weights) == (12, ((0.0, 1.0),) * 3, (1, 2, 3))
    far = ((-1.7e308, 1.7e308),) * 3  # as far apart as floats are
    assert changed(CODED, edges=far).edges == far


@given(specs(3) | coded_specs(3))
def test_specs_survive_json(spec):
    again = HashSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert hash(again) == hash(spec)
    assert FlyHash(again).fingerprint == FlyHash(spec).fingerprint
    assert again.difference(spec) == []


@pytest.mark.parametrize("values", [None, [], {}, {**SPEC.to_dict(), "extra": 1}, {"n_features": 3}])
def test_from_dict_refuses_what_is_not_a_spec(values):
    with raises(SpecError, field="spec"):
        HashSpec.from_dict(values)


SPEC_CHANGES = [
    {"hash_dim": 301},
    {"row_nnz": 4},
    {"hash_nnz": 8},
    {"seed": 6},
    {"signed": True},
    {"center": (0.0,) * 10},
]
CODE_CHANGES = [
    *[{"coding": "bumps"}, {"edges": [[0.0, 2.0]] * 3}, {"edges": [[0.0, 0.5, 1.0]] * 3}],
    *[{"row_weights": None}, {"row_weights": [2, 4, 6]}, {"n_codes": 5}, {"signed": True}],
]


@pytest.mark.parametrize(("base", "changes"), [(SPEC, SPEC_CHANGES), (CODED, CODE_CHANGES)], ids=["plain", "codes"])
def test_fingerprints_tell_specs_apart(base, changes):
    variants = [base, *(changed(base, **change) for change in changes)]
    assert len({FlyHash(spec).fingerprint for spec in variants}) == len(variants)
    assert [base.difference(spec) for spec in variants] == [[], *(list(change) for change in changes)]
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


@pytest.mark.parametrize(
    "bad", [{"noise_sigma": 1.0}, {"n_classes": "a"}, {"n_classes": 0}, {"n_examples": -1}, {"noise_sigma": NAN}]
)
def test_sizes_of_what_cannot_be_are_refused(bad):
    with raises(SpecError, field=next(iter(bad))):
        HashSpec.suggest(4, **bad)
