"""Lower bounds on the epsilon of a mechanism, from runs on two neighbouring data sets."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.stats import beta, norm

ERROR = 1e-4  # with which a lower bound may be wrong


def upper(hits, runs):
    """Clopper-Pearson upper bound of a probability."""
    if hits == runs:
        return 1.0
    return beta.ppf(1 - ERROR / 2, hits + 1, runs - hits)


def lower(hits, runs):
    return 1 - upper(runs - hits, runs)


def pure_epsilon(with_record, without):
    """Lower bound from whether one event occurred in each run."""
    more = lower(with_record.sum(), len(with_record))
    less = upper(without.sum(), len(without))
    if more:
        return math.log(more / less)
    return 0.0


def gaussian_epsilon(with_record, without, threshold, delta):
    """Lower bound for a mechanism known to be Gaussian.

    It follows from a statistic in each run: a bound of mu, which is converted.
    """
    false_positive = upper((without >= threshold).sum(), len(without))
    false_negative = upper((with_record < threshold).sum(), len(with_record))
    mu = norm.ppf(1 - false_positive) - norm.ppf(false_negative)
    if mu <= 0:
        return 0.0

    def excess(epsilon):
        return (
            norm.cdf(mu / 2 - epsilon / mu)
            - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
            - delta
        )

    if excess(0) > 0:
        return brentq(excess, 0, 200)
    return 0.0
