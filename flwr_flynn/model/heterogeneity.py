"""Performance at several sites: its spread, and what to expect at a new one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit, logit, stdtrit

from flwr_flynn._types import Floats
from flwr_flynn.model.metrics import Figures
from flwr_flynn.model.recalibration import Z


def heterogeneity(areas: Sequence[Sequence[float]]) -> Figures | None:
    """Spread of AUROCs of sites, each a value with the ends of its 95 % interval.

    Values and variances are those of the log odds: `tau` is the standard deviation
    between sites there, and `i_squared` its share of all variation. `mean` and
    `prediction`, the interval for a new site, are AUROCs. Sites whose AUROC is 0 or 1
    are left out; None is returned below two sites, and there is no prediction below
    three.
    """
    ends = np.array([area for area in areas if 0 < area[0] < 1]).reshape(-1, 3)
    n_sites = len(ends)
    if n_sites < 2:
        return None
    values, low, high = logit(ends).T
    variances = ((high - low) / (2 * Z)) ** 2
    tau_squared = paule_mandel(values, variances)
    weights = 1 / (variances + tau_squared)
    mean = weights @ values / weights.sum()
    # The variance of the mean is that of Hartung and Knapp.
    residuals = weights @ (values - mean) ** 2 / (n_sites - 1)
    # Sites that are alike by chance leave the interval no smaller than without it.
    error = max(residuals, 1.0) / weights.sum()
    total = _weighted_squares(values, variances, 0.0)
    half = stdtrit(n_sites - 1, 0.975) * np.sqrt(error)
    prediction = None
    if n_sites > 2:
        beyond = stdtrit(n_sites - 2, 0.975) * np.sqrt(tau_squared + error)
        prediction = _areas(mean, beyond)
    i_squared = 0.0
    if total > n_sites - 1:
        i_squared = float(1 - (n_sites - 1) / total)
    return {
        "sites": n_sites,
        "tau": float(np.sqrt(tau_squared)),
        "i_squared": i_squared,
        "mean": _areas(mean, half),
        "prediction": prediction,
    }


def _areas(mean: float, half: float) -> list[float]:
    return expit([mean, mean - half, mean + half]).tolist()  # type: ignore[no-any-return]


def paule_mandel(values: Floats, variances: Floats) -> float:
    """Variance between sites, at which the weighted squares are as many as expected.

    It is 0 where those within sites explain all.
    """
    from scipy.optimize import brentq  # the time of its import

    expected = len(values) - 1

    def excess(tau_squared: float) -> float:
        return _weighted_squares(values, variances, tau_squared) - expected

    if excess(0.0) <= 0:
        return 0.0
    most = float(np.square(values - values.mean()).sum()) / expected
    return float(brentq(excess, 0.0, most, xtol=1e-14))


def _weighted_squares(values: Floats, variances: Floats, tau_squared: float) -> float:
    """Squares of the distances from the weighted mean, by their variances."""
    weights = 1 / (variances + tau_squared)
    mean = weights @ values / weights.sum()
    return float(weights @ (values - mean) ** 2)
