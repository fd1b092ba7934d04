"""Sums of the columns within public ranges, and the hash that follows from them with
noise.

A private run looks at its columns twice: at these sums, with noise, for a centre and a
scale of the hash, and then at the counts. A value is 1 at one end of its public range
and -1 at the other, as an integer of 1 / 256; beyond the range it is clipped. A sample
adds its values and, as second moments, their squares less a half, so that it adds at
most `largest_norm` whatever it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flwr_flynn._types import Array, Floats, Integers
from flwr_flynn.errors import SpecError
from flwr_flynn.hashing.spec import HashSpec

UNIT = 256
"""Integer of a value at the end of its range."""

# Least variance of a column, as a share of their mean: a column of less would outweigh
# the others by the noise in its variance.
_LEAST_SHARE = 0.5
_LEAST_VARIANCE = 1e-3  # of the mean of the columns


def moments(X: Array, spec: HashSpec, n_moments: int) -> Integers:
    """Integers of samples, (n, n_moments, d), within the ranges that a hash has before
    the sums: `center` and one over `scale`, the middle and half of the width.
    """
    if spec.center is None or spec.scale is None:
        raise SpecError("center, scale", "those of public ranges", "none")
    values = (X - np.array(spec.center)) * np.array(spec.scale)
    # A gap is at the centre, for the hash as well. What is no number adds as little as
    # any other value: the guarantee is about that.
    bounded = np.clip(np.nan_to_num(values, nan=0.0), -1.0, 1.0)
    ends = np.rint(UNIT * bounded)
    every = [ends, np.rint(ends**2 / UNIT - UNIT / 2)]
    return np.stack(every[:n_moments], axis=1).astype(np.int64)


def largest_norm(n_columns: int, n_moments: int, order: int, replaced: bool) -> float:
    """Norm of order 1 (of one moment) or 2 of the integers of a sample, at most; of the
    difference of two samples where one is replaced.
    """
    column = float(UNIT)
    if replaced:  # of ends: their second moments are equal
        column = 2.0 * UNIT
    elif n_moments > 1:
        column = math.sqrt(UNIT**2 + (UNIT // 2) ** 2)
    if order == 1:
        return column * n_columns
    return column * math.sqrt(n_columns)


def spec_of_sums(
    spec: HashSpec, sums: Integers, n_examples: int, variance: float
) -> HashSpec:
    """The hash with a centre, and with second moments a scale, of the columns.

    Parameters
    ----------
    spec : HashSpec
        That of the public ranges, as in `moments`.
    sums : (n_moments, d) integers
        Noisy sums of all parties together.
    n_examples : int
        A public figure.
    variance : float
        That of the noise in a sum.

    Notes
    -----
    Means and variances of the columns are shrunk to those of all columns, by the known
    noise. A column varies by half as much as the mean of all, at least.
    """
    center = np.array(spec.center)
    scale = np.array(spec.scale)
    size = UNIT * max(n_examples, 1)
    noise = variance / size**2
    means = _shrunk(sums[0] / size, noise)
    center = center + np.clip(means, -1.0, 1.0) / scale
    if len(sums) > 1:
        variances = sums[1] / size + 0.5 - means**2
        level = max(float(variances.mean()), _LEAST_VARIANCE)
        variances = np.maximum(_shrunk(variances, noise), _LEAST_SHARE * level)
        scale = scale / np.sqrt(variances + noise)
    return replace(spec, center=tuple(center.tolist()), scale=tuple(scale.tolist()))


def _shrunk(values: Floats, noise: float) -> Floats:
    """Values of columns nearer to their mean, by their noise beside their spread."""
    mean = values.mean()
    spread = max(float(values.var()) - noise, 0.0)
    if not spread:
        return np.full(len(values), mean)
    shrunk: Floats = mean + (values - mean) * spread / (spread + noise)
    return shrunk
