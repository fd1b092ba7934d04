"""Scattering coefficients: a plain oracle, and the same bits everywhere."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.ndimage import correlate
from sklearn.datasets import load_digits

from flwr_flynn.errors import DataError
from simulations.scattering import morlet, n_coefficients, scattered, wavelets
from tests.raising import raises

IMAGES = np.random.default_rng(5).integers(0, 256, (3, 7 * 10), np.uint8)


def halved(image: Any) -> Any:
    blurred = correlate(
        image.astype(np.int64), np.outer([1, 2, 1], [1, 2, 1]), mode="nearest"
    )
    return ((blurred + 8) // 16)[::2, ::2]


def modulus(image: Any, real: Any, imag: Any) -> Any:
    a, b = (
        correlate(image.astype(np.int64), taps.astype(np.int64), mode="nearest")
        for taps in (real, imag)
    )
    return np.rint(np.hypot(a, b) / 200).astype(np.int64)


def test_coefficients_are_those_of_the_definition():
    pairs = list(zip(*wavelets(), strict=True))
    rows = scattered(IMAGES, (7, 10))
    for image, coefficients in zip(IMAGES.reshape(3, 7, 10), rows, strict=True):
        maps = [halved(halved(image))]
        for pair in pairs:
            fine = halved(modulus(image, *pair))
            maps += [
                halved(fine),
                *(halved(modulus(fine, *second)) for second in pairs),
            ]
        maps += [halved(modulus(halved(image), *pair)) for pair in pairs]
        assert_array_equal(coefficients, np.concatenate(list(map(np.ravel, maps))))
        assert len(coefficients) == n_coefficients((7, 10)) == 81 * 2 * 3


def test_coefficients_are_the_same_everywhere():
    """This digest is that of every machine.

    No tap is near a half, sums are exact, and a root is rounded alike.
    """
    for part in (morlet().real, morlet().imag):
        assert (np.abs(np.abs(part % 1) - 0.5) > 1e-3).all()
    assert all((taps.sum(axis=(1, 2)) == 0).all() for taps in wavelets())
    digest = hashlib.sha256(
        scattered(load_digits().data.astype(np.uint8) * 15, (8, 8))
        .astype("<i2")
        .tobytes()
    )
    assert digest.hexdigest()[:16] == "b7525b04956bf9fe"
    extremes = scattered(
        np.random.default_rng(0).integers(0, 2, (50, 256), np.uint8) * 255, (16, 16)
    )
    assert 0 <= extremes.min() <= extremes.max() < 2000


@pytest.mark.parametrize(
    "images",
    [
        IMAGES[:, 1:],
        IMAGES[0],
        IMAGES.astype(float),
        IMAGES.astype(int) + 1,
        IMAGES.astype(int) - 1,
    ],
)
def test_what_is_no_image_is_refused(images):
    with raises(DataError, field="images"):
        scattered(images, (7, 10))
