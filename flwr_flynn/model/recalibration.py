"""Regressions of a class on its predicted probability, from samples by level."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

from flwr_flynn._types import Floats

Z = 1.959963984540054  # of the standard normal distribution, for intervals of 95 %

_N_POINTS = 33  # of a curve


def coefficient(
    own: Floats, rest: Floats, log_odds: Floats, index: int
) -> list[float] | None:
    """Intercept (0) or slope (1) of a logistic regression on the log odds, with its
    interval, or None where it has no minimum.

    `own` and `rest` are the samples of the class and of others at each of the log odds.
    The intercept is that of a regression with a slope of 1.
    """
    from scipy.optimize import root  # the time of its import

    n = own + rest
    design = np.stack([np.ones(len(n)), log_odds])[: index + 1]

    # The coefficients are those beyond an intercept of 0 and a slope of 1.
    def gradient(at: Floats) -> Floats:
        return np.asarray(design @ (n * expit(log_odds + at @ design) - own))

    def hessian(at: Floats) -> Floats:
        p = expit(log_odds + at @ design)
        return np.asarray((design * (n * p * (1 - p))) @ design.T)

    start = np.zeros(index + 1)
    with np.errstate(over="ignore"):  # of samples in levels of next to 0 and 1
        fit = root(gradient, start, jac=hessian, method="lm", tol=1e-12)
        covariance = np.linalg.pinv(hessian(fit.x), hermitian=True)
        variance = covariance[index, index]
        if index == 0:  # right whatever the slope is
            p = expit(log_odds + fit.x[0])
            variance = (own @ (1 - p) ** 2 + rest @ p**2) * variance**2
    half = Z * math.sqrt(variance)
    if np.abs(fit.fun).max() > 1e-6 * n.sum() or half > 1e3:
        return None
    value = float(fit.x[index]) + index
    return [value, value - half, value + half]


def local_shares(
    own: Floats, rest: Floats, levels: Floats
) -> tuple[Floats, Floats, Floats]:
    """Points, the share of the class at each by local linear regression with a Gaussian
    kernel, and the number of samples whose mean would have the same variance.
    """
    is_filled = own + rest > 0
    x = levels[is_filled]
    n = (own + rest)[is_filled]
    total = n.sum()
    spread = math.sqrt(n @ (x - n @ x / total) ** 2 / total)
    width = max(spread * total**-0.2, 0.01)
    low, high = x[np.searchsorted(np.cumsum(n), [0.01 * total, 0.99 * total])]
    points = np.linspace(low, high, _N_POINTS)
    gaps = x - points[:, None]
    weights = n * np.exp(-((gaps / width) ** 2) / 2)
    first = (weights * gaps).sum(axis=1, keepdims=True)
    # The small part is for samples of one level, which have no slope.
    second = (weights * (gaps**2 + 1e-6)).sum(axis=1, keepdims=True)
    weights *= second - first * gaps
    weights /= weights.sum(axis=1, keepdims=True)
    shares = weights @ (own[is_filled] / n)
    return points, shares, 1 / (weights**2 / n).sum(axis=1)
