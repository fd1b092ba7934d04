"""Integer noise: OpenDP's exact samplers for real releases, NumPy's for simulations.

OpenDP draws exactly, from the operating system's randomness, some 100 000 numbers a second.

Needs the extra `privacy`: ``pip install "flwr-flynn[privacy]"``; `SeededNoise` does not.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flwr_flynn.privacy.accounting import privacy_extra

Integers = npt.NDArray[np.int64]

_CHUNK = 2**16  # numbers that stand as Python integers at a time


class Sampler(Protocol):
    """Source of a mechanism's randomness."""

    def gaussian(self, size: int, sigma: float) -> Integers:
        """Draw `size` integers with P(x) proportional to exp(-x ** 2 / (2 sigma ** 2))."""

    def laplace(self, size: int, scale: float) -> Integers:
        """Draw `size` integers with P(x) proportional to exp(-abs(x) / scale)."""

    def top(self, scores: Integers, n_drawn: int, scale: float) -> Integers:
        """The indices of the largest of score + Gumbel noise: in law the exponential mechanism, again and again.

        That is drawing without replacement by exp(score / scale) (Durfee and Rogers 2019, Lemma 4.2).
        """


class OpenDPNoise:
    """Noise for real releases, from OpenDP."""

    def gaussian(self, size: int, sigma: float) -> Integers:
        return _draw("gaussian", size, sigma)

    def laplace(self, size: int, scale: float) -> Integers:
        return _draw("laplace", size, scale)

    def top(self, scores: Integers, n_drawn: int, scale: float) -> Integers:
        return np.array(_noisy_top(n_drawn, float(scale))(scores.tolist()), np.int64)


class SeededNoise:
    """Noise of the same distributions from NumPy, from a seed: anyone who knows the seed can take it away again."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def gaussian(self, size: int, sigma: float) -> Integers:
        unrounded = math.sqrt(max(sigma**2 - 1 / 12, 0.0))  # rounding adds the rest
        return np.rint(self._generator.normal(0.0, unrounded, size)).astype(np.int64)

    def laplace(self, size: int, scale: float) -> Integers:
        stop = -math.expm1(-1 / scale)
        difference: Integers = self._generator.geometric(stop, size) - self._generator.geometric(stop, size)
        return difference

    def top(self, scores: Integers, n_drawn: int, scale: float) -> Integers:
        noisy = scores + self._generator.gumbel(0.0, scale, scores.size)
        return np.argsort(-noisy, kind="stable")[:n_drawn]


@lru_cache(maxsize=8)
def _noisy_top(n_drawn: int, scale: float) -> Any:
    dp = privacy_extra("opendp.prelude")
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    # Under zero-concentrated divergence OpenDP's noisy top k adds Gumbel noise; under max-divergence exponential noise,
    # of a different distribution (permute-and-flip).
    return dp.m.make_noisy_top_k(
        domain, dp.linf_distance(T="i64"), dp.zero_concentrated_divergence(), k=n_drawn, scale=scale
    )


def _draw(kind: str, size: int, scale: float) -> Integers:
    dp = privacy_extra("opendp.prelude")
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if kind == "gaussian":
        add = dp.m.make_gaussian(domain, dp.l2_distance(T="i64"), scale=float(scale))
    else:
        add = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=float(scale))
    drawn = np.empty(size, np.int64)
    for first in range(0, size, _CHUNK):
        part: Any = drawn[first : first + _CHUNK]
        part[:] = add([0] * len(part))
    return drawn
