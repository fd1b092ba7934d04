"""Probabilities of discrete noise, by its formula, over as many integers as matter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _pmf(log_weights: Callable[[Any], Any], reach: int) -> Any:
    weights = np.exp(log_weights(np.arange(-reach, reach + 1.0)))
    return weights / weights.sum()


def gaussian_pmf(sigma: float, n_sigmas: int = 12) -> Any:
    return _pmf(lambda x: -(x**2) / (2 * sigma**2), math.ceil(n_sigmas * sigma))


def laplace_pmf(scale: float) -> Any:
    return _pmf(lambda x: -np.abs(x) / scale, math.ceil(40 * scale))
