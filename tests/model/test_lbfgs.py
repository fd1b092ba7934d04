"""L-BFGS beside the products of matrices that define it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from flwr_flynn.model.refinement_search import Step, descent, is_low_enough, shorter

N = 6


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def curvature(rng: np.random.Generator) -> np.ndarray:
    factor = rng.normal(size=(N, N))
    return factor @ factor.T + np.eye(N)


def inverse_of(steps: list[Step], start: np.ndarray) -> np.ndarray:
    """Inverse of the curvature after these steps, by the update of BFGS (Nocedal & Wright, equation 6.17)."""
    inverse = start
    for step in steps:
        s, y = step.weights[:, None], step.gradient[:, None]
        left = np.eye(N) - step.inverse * s @ y.T
        inverse = left @ inverse @ left.T + step.inverse * s @ s.T
    return inverse


@pytest.mark.parametrize("n_steps", [0, 1, 2, 4])
def test_the_direction_is_that_of_the_product_of_matrices(
    n_steps: int, curvature: np.ndarray, rng: np.random.Generator
) -> None:
    gradient, rough = rng.normal(size=N), rng.uniform(0.5, 2, N)
    given = gradient.copy()
    steps: list[Step] = []
    for moved in rng.normal(size=(n_steps, N)):
        steps += Step.between(moved, curvature @ moved)
    start = np.diag(1 / rough)
    if steps:
        y = steps[-1].gradient
        start /= steps[-1].inverse * (y @ start @ y)
    found = descent(gradient, steps, lambda vector: vector / rough)
    assert len(steps) == n_steps
    assert_allclose(found, -inverse_of(steps, start) @ given, rtol=1e-9)
    assert (gradient == given).all()


def test_a_step_without_upward_curvature_is_left_out(rng: np.random.Generator) -> None:
    moved = rng.normal(size=N)
    assert Step.between(moved, -moved) == Step.between(moved, 0 * moved) == []
    (step,) = Step.between(moved, 2 * moved, np.float32)
    assert step.weights.dtype == step.gradient.dtype == np.float32


@pytest.mark.parametrize("best", [0.15, 0.3, 0.5])
def test_the_shorter_length_is_at_the_minimum_of_a_parabola(best: float) -> None:
    slope = -2.0
    change = slope + 1 / best  # of the parabola slope x + x**2 / best, at 1: its minimum is at `best`
    assert shorter(change, slope, 1.0) == pytest.approx(best)


def test_a_length_shrinks_to_half_at_least_and_a_tenth_at_most() -> None:
    assert shorter(1e9, -1.0, 4.0) == pytest.approx(0.4)
    assert shorter(-1.99, -1.0, 4.0) == 2.0


def test_a_loss_is_low_enough_only_if_it_fell_by_a_share_of_the_slope() -> None:
    assert is_low_enough(-1e-3, -1.0, 1.0)
    assert not is_low_enough(-1e-5, -1.0, 1.0)
    assert not is_low_enough(np.nan, -1.0, 1.0)
