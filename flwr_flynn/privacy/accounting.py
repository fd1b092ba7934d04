"""Privacy accounting: the sigma of a guarantee (epsilon, delta), the epsilon of a
sigma, and bounds never rounded down.

A record changes some entries of the counts by one. With discrete Gaussian noise on
every entry, the privacy loss is that of as many discrete Gaussian mechanisms of
sensitivity 1. The privacy loss distributions of dp-accounting compose them exactly up
to rounding, which is upwards; losses are multiples of 1 / (2 sigma ** 2), the lattice
of the rounding.

A person with several records may change an entry by more than one, in many ways.
Zero-concentrated differential privacy, which depends on the L2 distance alone (Canonne,
Kamath and Steinke 2020, Theorem 14), bounds them all, at about 8 % more noise. The same
bound serves where sigma is above 1000: exact distributions take minutes there.

Needs the extra `privacy`: ``pip install "flwr-flynn[privacy]"``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from typing import Any

from flwr_flynn.errors import ConfigError, MissingExtraError

# The smallest delta: distributions are cut where less than about 1e-15 is left.
SMALLEST_DELTA = 1e-12

_LARGEST_EXACT = 1000.0
"""Largest sigma with exact accounting; beyond it a distribution takes seconds to
minutes."""

_UP = 1 + 1e-12  # more than a few roundings take away


def privacy_extra(module: str) -> Any:
    """A module of the extra `privacy`."""
    try:
        return import_module(module)
    except ImportError:
        package = module.split(".")[0].replace("_", "-")
        text = f'{package} is missing; install it by: pip install "flwr-flynn[privacy]"'
        raise MissingExtraError(
            package, "flwr-flynn[privacy]", "none", text=text
        ) from None


def gaussian_epsilon(
    sigma: float, delta: float, n_entries: int, largest: int = 1
) -> float:
    """Epsilon of discrete Gaussian noise on integers, `n_entries` of which change by at
    most `largest`.
    """
    if not SMALLEST_DELTA <= delta < 1:
        raise ConfigError("delta", f"a number from {SMALLEST_DELTA:g} below 1", delta)
    if largest == 1:
        _require_measurable(sigma, n_entries)
        if sigma <= _LARGEST_EXACT:
            return _composed_epsilon(sigma, delta, n_entries)
    return _renyi_epsilon(sigma, delta, n_entries, largest)


def _require_measurable(sigma: float, n_entries: int) -> None:
    # Exact distributions would have that many points.
    if sigma * math.sqrt(n_entries) > 1e6:
        raise ConfigError(
            "epsilon",
            "a larger number, with less noise to account for",
            f"one with sigma {sigma:.3g}",
        )


def _renyi_epsilon(sigma: float, delta: float, n_entries: int, largest: int) -> float:
    return zcdp_epsilon(gaussian_rho(sigma, n_entries, largest), delta)


@lru_cache(maxsize=256)
def _composed_epsilon(sigma: float, delta: float, n_entries: int) -> float:
    distribution = privacy_extra("dp_accounting.pld.privacy_loss_distribution")
    # The lattice, or a coarser one where it would be needlessly fine; rounding then
    # costs some 1e-5 of epsilon.
    interval = max(0.5 / sigma**2, 1e-4 * math.sqrt(n_entries) / sigma)
    one = distribution.from_discrete_gaussian_mechanism(
        sigma,
        sensitivity=1,
        value_discretization_interval=interval,
        use_connect_dots=True,
    )
    return float(one.self_compose(n_entries).get_epsilon_for_delta(delta))


@lru_cache(maxsize=256)
def gaussian_sigma(
    epsilon: float, delta: float, n_entries: int, largest: int = 1
) -> float:
    """The smallest sigma with a `gaussian_epsilon` of at most `epsilon`, rounded up by
    less than .1 %.
    """
    sigma = _least_sigma(_renyi_epsilon, epsilon, delta, n_entries, largest)
    if largest == 1 and sigma <= _LARGEST_EXACT:
        return _least_sigma(gaussian_epsilon, epsilon, delta, n_entries, largest)
    if largest == 1:
        _require_measurable(sigma, n_entries)
    return sigma


def _least_sigma(
    bound: Callable[[float, float, int, int], float],
    epsilon: float,
    delta: float,
    n_entries: int,
    largest: int,
) -> float:
    high = (
        largest
        * math.sqrt(n_entries)
        * (math.sqrt(2 * math.log(1.25 / delta)) / epsilon + 1)
    )
    while bound(high, delta, n_entries, largest) > epsilon:
        high *= 2
    low = high / 4
    while low > 1e-3 and bound(low, delta, n_entries, largest) <= epsilon:
        high = low
        low = low / 2
    while high - low > 2e-4 * low:
        middle = (low + high) / 2
        if bound(middle, delta, n_entries, largest) > epsilon:
            low = middle
        else:
            high = middle
    sigma = of_five_digits(high)
    # The rounding of epsilon is not monotone.
    while bound(sigma, delta, n_entries, largest) > epsilon:
        sigma = of_five_digits(sigma * (1 + 1e-9))  # beyond what division rounds away
    return sigma


def of_five_digits(sigma: float) -> float:
    """The least number of five digits that is not below: the same on machines whose
    logarithms differ in the last digit.
    """
    power = math.floor(math.log10(sigma)) - 4
    digits = math.ceil(sigma / 10.0**power)
    return float(f"{digits}e{power}")


@lru_cache(maxsize=256)
def zcdp_rho(epsilon: float, delta: float) -> float:
    """The largest zCDP parameter with a `zcdp_epsilon` of at most `epsilon`, less a
    millionth.
    """
    from scipy.optimize import brentq

    def beyond(rho: float) -> float:
        return zcdp_epsilon(rho, delta) - epsilon

    # Even at a delta of 1 / 2, the epsilon of a parameter is at most 1 below it.
    return float(brentq(beyond, 1e-9 * epsilon, epsilon + 2, xtol=1e-15)) * (1 - 1e-6)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Epsilon of zero-concentrated differential privacy: Proposition 12 of Canonne,
    Kamath and Steinke 2020.
    """
    if not 0 < delta < 1 or not rho >= 0:
        raise ConfigError(
            "rho, delta",
            "a number of at least 0 and one between 0 and 1",
            f"{rho!r} and {delta!r}",
        )
    if rho == 0 or rho == math.inf:
        return rho
    from scipy.optimize import minimize_scalar

    def bound(log_beyond: float) -> float:
        beyond = math.exp(log_beyond)  # the order less 1
        order = 1 + beyond
        return (
            order * rho
            - math.log1p(1 / beyond)
            - (math.log(delta) + math.log(order)) / beyond
        )

    # Every order gives a bound. The best one is near that of a Gaussian.
    middle = math.log(-math.log(delta) / rho) / 2
    best = minimize_scalar(
        bound, bounds=(middle - 6, middle + 6), options={"xatol": 1e-9}
    )
    return max(float(best.fun) * _UP, 0.0)


def pure_rho(epsilon: float) -> float:
    """The zCDP parameter of pure differential privacy, rounded up: Proposition 1.4 of
    Bun and Steinke 2016.
    """
    return epsilon**2 / 2 * _UP


def gaussian_rho(
    sigma: float, n_entries: int, largest: int, n_parties: int = 1
) -> float:
    """The zCDP parameter of discrete Gaussian noise on integers, or of a sum of such
    noise, rounded up.

    For a sum this is the last bound of Proposition 14 of Kairouz, Liu and Steinke 2021,
    with sigma of at least 1 / 2. Its dimensions are the entries in which neighbours
    differ; the divergence of the others is 0.
    """
    if n_parties > 1 and sigma < 0.5:
        return math.inf
    gap = sum_of_gaussians_gap(sigma, n_parties) * math.sqrt(n_entries * largest)
    return (largest * math.sqrt(n_entries / n_parties) / sigma + gap) ** 2 / 2 * _UP


def sum_of_gaussians_gap(sigma: float, n_parties: int) -> float:
    """The distance of a sum of discrete Gaussians from a discrete Gaussian, in the
    logarithm of probabilities.

    Theorem 9 of Kairouz, Liu and Steinke 2021, with the largest term of its sum instead
    of each.
    """
    if n_parties == 1:
        return 0.0
    return 10 * (n_parties - 1) * math.exp(-(math.pi**2) * sigma**2)


def laplace_sd(scale: float) -> float:
    """Standard deviation of the discrete Laplace distribution: variance 2 q / (1 - q)
    ** 2 with q = exp(-1 / scale).
    """
    q = math.exp(-1 / scale)
    return math.sqrt(2 * q) / -math.expm1(-1 / scale)


def rounded_up(dividend: int, divisor: float) -> float:
    """Quotient, never below the true one.

    A smaller scale of noise would break the guarantee.
    """
    quotient = dividend / divisor
    enough = Fraction(quotient) * Fraction(divisor) >= dividend
    if enough:
        return quotient
    return math.nextafter(quotient, math.inf)


def shown_bound(bound: float, digits: int = 4) -> str:
    """A bound as text, rounded up, because the printed bound is the guarantee."""
    shown = f"{bound:.{digits}g}"
    if 0 < bound < math.inf and float(shown) < bound:
        step = 10.0 ** (math.floor(math.log10(bound)) - digits + 1)
        shown = f"{float(shown) + step:.{digits}g}"
    return shown
