"""L-BFGS (Nocedal & Wright, Numerical Optimization, 2006, section 7.2) whose bits do not depend on the machine.

Sums of floats run in a fixed order, and products stand for powers, which are rounded differently from machine to
machine. Losses and gradients come from elsewhere, one exchange with the parties each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.model.portable import dot

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Step:
    """A step of the search: differences of weights and gradients, (n,) float32 or float64, and 1 / their product."""

    weights: npt.NDArray[Any]
    gradient: npt.NDArray[Any]
    inverse: float

    @classmethod
    def between(cls, weights: Floats, gradient: Floats, dtype: npt.DTypeLike = np.float64) -> list[Step]:
        """The step with these differences in a list; an empty list where it tells of no curvature upwards."""
        product = dot(weights, gradient)
        return [cls(weights.astype(dtype), gradient.astype(dtype), 1 / product)] if product > 0 else []


def descent(gradient: Floats, steps: Sequence[Step], solved: Callable[[Floats], Floats]) -> Floats:
    """Direction, (n,): minus the gradient times an approximate inverse of the curvature.

    `solved` multiplies vectors by the inverse of a rough curvature, to which the steps, the oldest first, add.
    """
    direction, shares = gradient.copy(), []
    for step in reversed(steps):
        shares.append(step.inverse * dot(step.weights, direction))
        direction -= shares[-1] * step.gradient.astype(np.float64)
    direction = solved(direction)
    if steps:
        last = steps[-1].gradient.astype(np.float64)
        direction /= steps[-1].inverse * dot(last, solved(last))
    for step, share in zip(steps, reversed(shares), strict=True):
        direction += (share - step.inverse * dot(step.gradient, direction)) * step.weights.astype(np.float64)
    return -direction


def is_low_enough(change: float, slope: float, length: float) -> bool:
    """True if the loss changed as a step of this length along a direction of this slope lets one expect (Armijo)."""
    return change <= 1e-4 * length * slope


def shorter(change: float, slope: float, length: float) -> float:
    """Length to try instead: where a parabola through what is known has its minimum, from a tenth to half."""
    return max(0.1 * length, min(0.5 * length, -slope * length * length / 2 / (change - slope * length)))
