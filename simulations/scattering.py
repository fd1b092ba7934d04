"""Scattering coefficients of images: fixed public features, integers that are the same
on every machine.

A scattering transform (Bruna and Mallat 2013) takes the moduli of an image filtered by
wavelets of several directions, filters these once more, and averages. Nothing in it is
learned, so it costs no privacy, and no party sends anything for it. Here it is a
pyramid of integers: blur by 1 2 1 and halve, or filter by Morlet wavelets of 7 x 7
integer taps in 8 directions. Of an image of h x w pixels stay maps of h/4 x w/4,
rounded up: the image itself, 8 moduli at each of two scales, and 64 moduli of the
moduli at the fine one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn._validation import integer
from flwr_flynn.errors import DataError

WHITE = 255
"""The value of the brightest pixel."""

_DIRECTIONS = 8
_RADIUS = 3
_WIDTH = 1.2
_FREQUENCY = 2.0
_SLANT = 0.5
_UNIT = 1024.0  # sum of the magnitudes of a wavelet's taps, before they are rounded
# by which moduli are divided: less than `_UNIT`, so that coefficients keep their digits
_GAIN = 200.0
_MAPS = 1 + 2 * _DIRECTIONS + _DIRECTIONS**2

Integers = npt.NDArray[np.int32]


def n_coefficients(shape: tuple[int, int]) -> int:
    """Number of the coefficients of an image of (rows, columns) pixels."""
    return _MAPS * math.prod(-(-side // 4) for side in shape)


def scattered(images: npt.ArrayLike, shape: tuple[int, int]) -> npt.NDArray[np.int16]:
    """Scattering coefficients, (n, `n_coefficients`) int16, of images, (n, rows x
    columns) integers from 0 to 255.

    Raises
    ------
    DataError
        Images of another shape or type, or with values out of range.

    Examples
    --------
    >>> square = np.zeros((8, 8), np.uint8)
    >>> square[2:6, 2:6] = 255
    >>> scattered(square.reshape(1, 64), (8, 8)).shape
    (1, 324)
    """
    rows, columns = (integer("shape", side, error=DataError) for side in shape)
    pixels = np.asarray(images)
    if (
        pixels.ndim != 2
        or pixels.shape[1] != rows * columns
        or pixels.dtype.kind not in "biu"
    ):
        raise DataError(
            "images",
            f"integers of shape (n, {rows * columns})",
            f"{pixels.dtype} {pixels.shape}",
        )
    if pixels.size and not 0 <= pixels.min() <= pixels.max() <= WHITE:
        raise DataError("images", f"integers from 0 to {WHITE}", "others")
    out = np.empty((len(pixels), n_coefficients((rows, columns))), np.int16)
    _scatter(pixels.astype(np.uint8), rows, columns, *wavelets(), out)
    return out


def wavelets() -> tuple[Integers, Integers]:
    """Real and imaginary taps of the Morlet wavelets, (8, 7, 7) int32 each, each of sum
    0.

    No tap is near a half before it is rounded, so that the last digits of a machine's
    sine decide nothing.
    """
    taps = morlet()
    parts = []
    for part in (taps.real, taps.imag):
        rounded = np.rint(part).astype(np.int32)
        rounded[:, _RADIUS, _RADIUS] -= rounded.sum(axis=(1, 2))
        parts.append(rounded)
    return parts[0], parts[1]


def morlet() -> npt.NDArray[Any]:
    """The wavelets before rounding, (8, 7, 7) complex."""
    y, x = np.mgrid[-_RADIUS : _RADIUS + 1, -_RADIUS : _RADIUS + 1].astype(np.float64)
    wavelets = []
    for direction in range(_DIRECTIONS):
        angle = direction * math.pi / _DIRECTIONS
        along = x * math.cos(angle) + y * math.sin(angle)
        across = y * math.cos(angle) - x * math.sin(angle)
        window = np.exp(-(along**2 + (_SLANT * across) ** 2) / (2 * _WIDTH**2))
        wave = window * np.exp(1j * _FREQUENCY * along)
        wave -= window * (wave.sum() / window.sum())
        wavelets.append(wave * (_UNIT / np.abs(wave).sum()))
    return np.array(wavelets)


@njit(nogil=True, cache=True)
def _scatter(
    images: npt.NDArray[np.uint8],
    height: int,
    width: int,
    real: Integers,
    imag: Integers,
    out: npt.NDArray[np.int16],
) -> None:
    """Write the coefficients of each image."""
    h2 = (height + 1) // 2
    w2 = (width + 1) // 2
    h4 = (h2 + 1) // 2
    w4 = (w2 + 1) // 2
    size = h4 * w4
    n = real.shape[0]
    for p in range(len(images)):
        image = np.empty((height, width), np.int32)
        for i in range(height):
            for j in range(width):
                image[i, j] = images[p, i * width + j]
        half = _halved(image)
        coarse = 1 + n + n * n
        maps = out[p].reshape((coarse + n, size))
        maps[0] = _halved(half).ravel()
        padded = _padded(image)
        padded_half = _padded(half)
        for a in range(n):
            fine = _halved(_modulus(padded, real[a], imag[a]))
            first = 1 + a * (n + 1)
            maps[first] = _halved(fine).ravel()
            padded_fine = _padded(fine)
            for b in range(n):
                maps[first + 1 + b] = _halved(
                    _modulus(padded_fine, real[b], imag[b])
                ).ravel()
            maps[coarse + a] = _halved(_modulus(padded_half, real[a], imag[a])).ravel()


@njit(nogil=True, cache=True)
def _padded(image: Integers) -> Integers:
    """The image with its edges repeated on all sides."""
    height, width = image.shape
    out = np.empty((height + 2 * _RADIUS, width + 2 * _RADIUS), np.int32)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = image[
                min(max(i - _RADIUS, 0), height - 1),
                min(max(j - _RADIUS, 0), width - 1),
            ]
    return out


@njit(nogil=True, cache=True)
def _halved(image: Integers) -> Integers:
    """Every second pixel of every second row of the image, blurred by 1 2 1 both ways,
    rounded.
    """
    height, width = image.shape
    out = np.empty(((height + 1) // 2, (width + 1) // 2), np.int32)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = 8
            for down in range(-1, 2):
                for right in range(-1, 2):
                    pixel = image[
                        min(max(2 * i + down, 0), height - 1),
                        min(max(2 * j + right, 0), width - 1),
                    ]
                    total += (2 - abs(down)) * (2 - abs(right)) * pixel
            out[i, j] = total // 16
    return out


@njit(nogil=True, cache=True)
def _modulus(padded: Integers, real: Integers, imag: Integers) -> Integers:
    """Moduli of the filtered image: sums of integers, and one root, which every machine
    rounds alike.
    """
    taps = real.shape[0]
    height = padded.shape[0] - taps + 1
    width = padded.shape[1] - taps + 1
    out = np.empty((height, width), np.int32)
    a = np.empty(width, np.int32)
    b = np.empty(width, np.int32)
    for i in range(height):
        a[:] = 0
        b[:] = 0
        for down in range(taps):
            for right in range(taps):
                re = real[down, right]
                im = imag[down, right]
                for j in range(width):
                    pixel = padded[i + down, j + right]
                    a[j] += re * pixel
                    b[j] += im * pixel
        for j in range(width):
            out[i, j] = np.int32(
                np.rint(
                    math.sqrt(np.float64(a[j]) ** 2 + np.float64(b[j]) ** 2) / _GAIN
                )
            )
    return out
