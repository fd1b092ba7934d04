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


@pytest.mark.parametrize(
    ("change", "expected", "got"),
    [
        ({"n_features": 0}, "from 1 to", "0"),
        ({"hash_dim": 2**31}, "from 1 to 2147483647", str(2**31)),
        ({"row_nnz": 11}, "from 1 to 10 (n_features)", "11"),
        ({"hash_nnz": 301}, "from 1 to 300 (hash_dim)", "301"),
        ({"hash_nnz": 2.0}, "an integer", "2.0"),
        ({"seed": -1}, "from 0 to", "-1"),
        ({"seed": True}, "an integer", "True"),
        ({"signed": 1}, "True or False", "1"),
        ({"center": (0.0,) * 9}, "10 finite floats", "shape (9,)"),
        ({"center": "0123456789"}, "10 finite floats", "str"),
        ({"center": (0.0,) * 9 + (float("nan"),)}, "10 finite floats", "NaN or infinity at index [9]"),
        ({"scale": (1.0,) + (0.0,) * 9}, "positive", "0.0 at index 1"),
        ({"scale": ("a",) * 10}, "10 finite floats", "tuple"),
        ({"scale": ("1.5",) * 10}, "10 finite floats", "tuple"),
        ({"center": [10**400] * 10}, "10 finite floats", "list"),
        ({"center": np.zeros((10, 1))}, "10 finite floats", "shape (10, 1)"),
        ({"center": np.array(1.0)}, "10 finite floats", "shape ()"),
        ({"center": 1.0}, "10 finite floats", "shape ()"),
        ({"n_waves": -1}, "from 0 to", "-1"),
        ({"row_nnz": 3, "n_waves": 2, "wave_frequency": 0.5}, "from 1 to 2 (n_waves)", "3"),
        ({"wave_frequency": 0.0, "n_waves": 5}, "a finite number above 0", "0.0"),
        ({"wave_frequency": float("inf"), "n_waves": 5}, "a number", "inf"),
        ({"wave_frequency": 0.5}, "0, as n_waves is 0", "0.5"),
        ({"n_waves": 2**16 + 1, "wave_frequency": 1.0}, "from 0 to 65536", "65537"),
        ({"wave_frequency": 10**400, "n_waves": 5}, "a number", "1000"),
        ({"wave_frequency": "1"}, "a number", "1"),
    ],
)
def test_a_bad_field_is_named(change, expected, got):
    with raises(SpecError, field=next(iter(change))) as raised:
        HashSpec(**{**SPEC.to_dict(), **change})
    assert expected in raised.value.expected
    assert got in raised.value.got


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


def test_edges_may_be_as_far_apart_as_floats_are():
    edges = ((-1.7e308, 1.7e308),)
    assert HashSpec(1, 4, 1, 1, 0, coding="steps", n_codes=2, edges=edges).edges == edges


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
    with raises(SpecError, field="noise_sigma"):
        HashSpec.suggest(n_features, noise_sigma=1.0)
    for bad in ({"n_classes": "a"}, {"n_classes": 0}, {"n_examples": -1}, {"noise_sigma": float("nan")}):
        with raises(SpecError, field=next(iter(bad))):
            HashSpec.suggest(n_features, **bad)
