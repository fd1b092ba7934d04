"""HashSpec: what is refused, and how specifications travel and differ."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn.errors import SpecError
from tests.strategies import specs

SPEC = HashSpec(n_features=10, hash_dim=300, row_nnz=3, hash_nnz=7, seed=5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_features": 0}, "n_features: expected 1"),
        ({"hash_dim": 2**31}, "hash_dim"),
        ({"row_nnz": 11}, r"row_nnz: expected 1 to 10 \(n_features\), got 11"),
        ({"hash_nnz": 301}, r"hash_nnz: expected 1 to 300 \(hash_dim\), got 301"),
        ({"hash_nnz": 2.0}, "hash_nnz: expected a whole number, got float"),
        ({"seed": -1}, "seed: expected 0 to"),
        ({"seed": True}, "seed: expected a whole number, got bool"),
        ({"signed": 1}, "signed: expected True or False"),
        ({"center": (0.0,) * 9}, "center: expected 10 floats"),
        ({"center": "0123456789"}, "center: expected 10 floats"),
        ({"center": (float("nan"),) * 10}, "center: expected 10 finite"),
        ({"scale": (0.0,) * 10}, "scale: expected positive"),
        ({"scale": ("a",) * 10}, "scale: expected 10 floats"),
        ({"scale": ("1.5",) * 10}, "scale: expected 10 floats"),
        ({"center": [10**400] * 10}, "center: expected 10 floats"),
        ({"center": np.array(1.0)}, "center: expected 10 floats"),
        ({"center": 1.0}, "center: expected 10 floats"),
        ({"n_waves": -1}, "n_waves: expected 0"),
        ({"n_waves": 2, "wave_frequency": 0.5}, r"row_nnz: expected 1 to 2 \(n_waves\), got 3"),
        ({"n_waves": 5}, "wave_frequency: expected a finite number above 0, got 0"),
        ({"n_waves": 5, "wave_frequency": float("inf")}, "wave_frequency: expected a finite number above 0"),
        ({"wave_frequency": 0.5}, "wave_frequency: expected 0, as there are no waves"),
        ({"n_waves": 2**16 + 1, "wave_frequency": 1.0}, "n_waves: expected 0 to 65536"),
        ({"n_waves": 5, "wave_frequency": 10**400}, "wave_frequency: expected a number that is not so large"),
        ({"wave_frequency": "1"}, "wave_frequency: expected a number, got str"),
    ],
)
def test_a_bad_field_is_named(change, message):
    with pytest.raises(SpecError, match=message):
        HashSpec(**{**SPEC.to_dict(), **change})


@settings(max_examples=50, deadline=None)
@given(specs(3))
def test_specs_survive_json(spec):
    again = HashSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert hash(again) == hash(spec)
    assert FlyHash(again).fingerprint == FlyHash(spec).fingerprint
    assert again.difference(spec) == []


@pytest.mark.parametrize("values", [None, [], {}, {**SPEC.to_dict(), "extra": 1}, {"n_features": 3}])
def test_from_dict_refuses_what_is_not_a_spec(values):
    with pytest.raises(SpecError):
        HashSpec.from_dict(values)


def test_fingerprints_tell_specs_apart():
    base = SPEC.to_dict()
    changes = [
        {"hash_dim": 301},
        {"row_nnz": 4},
        {"hash_nnz": 8},
        {"seed": 6},
        {"signed": True},
        {"center": (0.0,) * 10},
    ]
    variants = [SPEC, *(HashSpec(**{**base, **change}) for change in changes)]
    assert len({FlyHash(spec).fingerprint for spec in variants}) == len(variants)
    minus = HashSpec(**{**base, "center": (-0.0,) * 10})
    assert FlyHash(minus).fingerprint == FlyHash(HashSpec(**{**base, "center": (0.0,) * 10})).fingerprint


def test_difference_names_fields():
    other = HashSpec(**{**SPEC.to_dict(), "seed": 6, "signed": True})
    assert SPEC.difference(other) == ["seed", "signed"]


@pytest.mark.parametrize("n_features", [1, 2, 4, 16, 64, 784, 20000])
@pytest.mark.parametrize("n_classes", [None, 2, 1000])
def test_suggested_sizes_are_valid_and_bounded(n_features, n_classes):
    spec = HashSpec.suggest(n_features, 1000, n_classes)
    assert spec.n_features == n_features
    assert spec.hash_dim * (n_classes or 1) <= 2**23
    noisy = HashSpec.suggest(n_features, 1000, n_classes or 2, noise_sigma=5.0)
    assert spec.hash_nnz <= noisy.hash_nnz or noisy.hash_nnz == noisy.hash_dim // 10
    with pytest.raises(SpecError, match="noise_sigma"):
        HashSpec.suggest(n_features, noise_sigma=1.0)
    for bad in ({"n_classes": "a"}, {"n_classes": 0}, {"n_examples": -1}, {"noise_sigma": float("nan")}):
        with pytest.raises(SpecError, match=next(iter(bad))):
            HashSpec.suggest(n_features, **bad)
