"""Scattering coefficients: a plain oracle, the same bits everywhere, and schemas of images alone and in a run."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.ndimage import correlate
from sklearn.datasets import load_digits

from flwr_flynn.errors import DataError, SchemaError
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.tables.column import Column
from flwr_flynn.tables.row_wise import encode_rows
from flwr_flynn.tables.scattering import morlet, n_coefficients, scattered, wavelets
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.schema_file import parsed, to_toml
from tests.raising import raises

IMAGES = np.random.default_rng(5).integers(0, 256, (3, 7 * 10), np.uint8)
DIGITS, DIGIT = load_digits(return_X_y=True)
SCHEMA = Schema.of_images((8, 8), 16)


def halved(image: Any) -> Any:
    blurred = correlate(image.astype(np.int64), np.outer([1, 2, 1], [1, 2, 1]), mode="nearest")
    return ((blurred + 8) // 16)[::2, ::2]


def modulus(image: Any, real: Any, imag: Any) -> Any:
    a, b = (correlate(image.astype(np.int64), taps.astype(np.int64), mode="nearest") for taps in (real, imag))
    return np.rint(np.hypot(a, b) / 200).astype(np.int64)


def test_coefficients_are_those_of_the_definition() -> None:
    pairs = list(zip(*wavelets(), strict=True))
    for image, found in zip(IMAGES.reshape(3, 7, 10), scattered(IMAGES, (7, 10)), strict=True):
        maps = [halved(halved(image))]
        for pair in pairs:
            fine = halved(modulus(image, *pair))
            maps += [halved(fine), *(halved(modulus(fine, *second)) for second in pairs)]
        maps += [halved(modulus(halved(image), *pair)) for pair in pairs]
        assert_array_equal(found, np.concatenate([each.ravel() for each in maps]))
        assert len(found) == n_coefficients((7, 10)) == 81 * 2 * 3


def test_coefficients_are_the_same_everywhere() -> None:
    """No tap is near a half, sums are exact, and a root is rounded alike: so this digest is that of every machine."""
    for part in (morlet().real, morlet().imag):
        assert (np.abs(np.abs(part % 1) - 0.5) > 1e-3).all()
    assert all((taps.sum(axis=(1, 2)) == 0).all() for taps in wavelets())
    digest = hashlib.sha256(scattered(DIGITS.astype(np.uint8) * 15, (8, 8)).astype("<i2").tobytes())
    assert digest.hexdigest()[:16] == "b7525b04956bf9fe"
    extremes = scattered(np.random.default_rng(0).integers(0, 2, (50, 256), np.uint8) * 255, (16, 16))
    assert 0 <= extremes.min() <= extremes.max() < 2000


@pytest.mark.parametrize(
    "images", [IMAGES[:, 1:], IMAGES[0], IMAGES.astype(float), IMAGES.astype(int) + 1, IMAGES.astype(int) - 1]
)
def test_what_is_no_image_is_refused(images: Any) -> None:
    with raises(DataError, field="images"):
        scattered(images, (7, 10))


def test_a_schema_of_images_makes_coefficients_of_pixels_in_its_range() -> None:
    pixels = np.rint(DIGITS * 255 / 16).astype(np.uint8)
    assert_array_equal(SCHEMA.encode(DIGITS), scattered(pixels, (8, 8)))
    assert (SCHEMA.width, len(SCHEMA.inputs), SCHEMA.is_plain, SCHEMA.ranges) == (324, 324, False, None)
    for values in (DIGITS + 1, np.where(DIGITS == 16, np.nan, DIGITS)):
        with raises(DataError):
            SCHEMA.encode(values)
    values = DIGITS[:4].copy()
    values[1, 3], values[2, 5] = np.nan, 17
    numbers, fits = encode_rows(SCHEMA, values)
    assert fits.tolist() == [True, False, False, True]
    assert_array_equal(numbers[fits], SCHEMA.encode(DIGITS[[0, 3]]))


def test_a_schema_of_images_is_written_and_read() -> None:
    assert parsed(to_toml(SCHEMA)) == Schema.from_dict(SCHEMA.to_dict()) == SCHEMA


@pytest.mark.parametrize(
    "images", [[8], [8, 8, 1], [4, 8], [64.0, 1], [True, 64], [0, 64], [-8, -8], "88", 64, [[8], [8]], [10**9, 1]]
)
def test_other_shapes_are_refused(images: Any) -> None:
    with raises(SchemaError, field="images"):
        Schema.from_dict(SCHEMA.to_dict() | {"images": images})


@pytest.mark.parametrize("change", [{"gaps": True}, {"low": None}, {"high": 17.0}, {"high": 0.0}])
def test_columns_that_are_no_pixels_are_refused(change: dict[str, Any]) -> None:
    values = SCHEMA.to_dict()
    values["columns"][5] |= change
    with raises(SchemaError, field="columns"):
        Schema.from_dict(values)


def test_a_range_that_floats_cannot_span_is_refused() -> None:
    pixels = [Column(str(index), "number", gaps=False, low=-1e308, high=1e308) for index in range(64)]
    with raises(SchemaError, field="columns"):
        Schema(pixels, False, images=(8, 8))


def test_too_large_images_are_refused() -> None:
    for shape in ((128, 128), (2**20, 2**20)):
        with raises(SchemaError):
            Schema.of_images(shape)


def test_federated_images_give_the_pooled_model() -> None:
    X, y = DIGITS[:300], DIGIT[:300]
    plan = HashPlan(324, 10, 300, "auto", hash_dim=256, hash_nnz=8)
    options = RunOptions(plan, range(10), min_parties=1, feature_names=SCHEMA)
    run = federate(options, [party_of(X[DIGIT[:300] % 3 == i], y[y % 3 == i], min_examples=1) for i in range(3)])
    Z = SCHEMA.encode(X)
    specs = plan.specs(ColumnHistograms.from_data(Z, y, 10))
    pooled = FlyNNClassifier(hash_dim=256, hash_nnz=8).fit(Z, y).model_
    assert [member.spec for member in run.model.model_.members] == [member.spec for member in pooled.members]
    assert {member.spec for member in pooled.members} <= set(specs)
    assert_array_equal(run.model.decision_function(X), FlyNNClassifier.from_model(pooled).decision_function(Z))
