"""Ridge regression from sums: scikit-learn's weights, leverages about the exact ones, the same on every machine."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.linear_model import Ridge as SklearnRidge

from flwr_flynn.model import ridge
from flwr_flynn.model.ridge import MOST_DIRECTIONS, MOST_STRENGTHS, Solution, solve


def sums_of(Z: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    centred, targets = Z - Z.mean(axis=0), Y - Y.mean(axis=0)
    return centred.T @ centred, np.ascontiguousarray(centred.T @ targets), len(Z)


def data(n: int, m: int, n_targets: int, seed: int = 0, rank: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Z = rng.integers(0, 16, (n, m)).astype(float)
    if rank:
        Z = Z[:, :rank] @ rng.normal(size=(rank, m)) + 0.3 * Z
    return Z, Z @ rng.normal(size=(m, n_targets)) / 10 + rng.normal(size=(n, n_targets))


@given(st.integers(2, 70), st.integers(1, 4), st.integers(0, 5))
def test_weights_are_those_of_scikit_learn(m, n_targets, seed):
    Z, Y = data(200, m, n_targets, seed)
    found = solve(*sums_of(Z, Y))
    assert 1 <= len(found.strengths) <= MOST_STRENGTHS
    for weights, strength in zip(found.weights, found.strengths, strict=True):
        expected = SklearnRidge(alpha=strength).fit(Z, Y).coef_.reshape(n_targets, m).T
        assert_allclose(weights, expected, rtol=1e-6, atol=1e-9)


def leverages(found: Solution, centred: np.ndarray) -> np.ndarray:
    """Leverages without the intercept's, (n, S)."""
    squares = (centred @ found.directions.T) ** 2
    outside = (centred**2).sum(axis=1) - squares.sum(axis=1)
    along = squares @ (1 / (found.eigenvalues[:, None] + found.strengths))
    return along + outside[:, None] * found.residual_leverage


@pytest.mark.parametrize(("n", "m", "rank", "error"), [(400, 20, 0, 1e-6), (60, 300, 40, 1e-6), (700, 420, 10, 0.1)])
def test_leverages_are_about_the_exact_ones(n, m, rank, error):
    """Exact where there is a direction for each feature, or each sample."""
    Z, Y = data(n, m, 2, rank=rank)
    found, centred = solve(*sums_of(Z, Y)), Z - Z.mean(axis=0)
    for each, strength in zip(leverages(found, centred).T, found.strengths, strict=True):
        exact = np.einsum("ij,ji->i", centred, np.linalg.solve(centred.T @ centred + strength * np.eye(m), centred.T))
        assert np.mean(np.abs(each / exact - 1)) < error
        assert each.mean() == pytest.approx(exact.mean(), rel=0.06)


def test_directions_are_those_of_the_largest_eigenvalues():
    Z, Y = data(400, 320, 1, rank=12)
    products, moments, n = sums_of(Z, Y)
    found = solve(products, moments, n)
    assert found.directions.shape == (MOST_DIRECTIONS, 320)
    assert_allclose(found.directions @ found.directions.T, np.eye(MOST_DIRECTIONS), atol=1e-12)
    assert_allclose(found.eigenvalues[:12], np.linalg.eigvalsh(products)[::-1][:12], rtol=1e-6)
    assert found.residual == pytest.approx(np.trace(products) - found.eigenvalues.sum())


def test_strengths_end_where_the_mean_leverage_is_a_half():
    Z, Y = data(20, 100, 2)
    found = solve(*sums_of(Z, Y))
    means = leverages(found, Z - Z.mean(axis=0)).mean(axis=0)
    assert len(means) == 1 or means.max() < 0.55
    assert np.isfinite(found.weights).all()
    assert found.weights[0].any()  # the first is solved in any case


@pytest.mark.parametrize("n", [20, 60, 300])
def test_one_strength_is_solved_as_among_all(n):
    Z, Y = data(n, 100, 2)
    every = solve(*sums_of(Z, Y))
    for at in range(MOST_STRENGTHS):
        one, last = solve(*sums_of(Z, Y), at=at), min(at, len(every.strengths) - 1)
        assert one.strengths == every.strengths[[last]]
        assert np.array_equal(one.weights, every.weights[[last]])
        assert one.residual_leverage == every.residual_leverage[[last]]


@pytest.mark.parametrize("n", [1, 5])
def test_weights_are_0_where_nothing_varies(n):
    found = solve(*sums_of(np.full((n, 6), 3.0), np.eye(5)[:n]))
    assert found.weights.shape == (1, 6, 5)
    assert not found.weights.any()


def test_products_that_no_samples_have_end_in_finite_figures():
    wrong = (-np.eye(4), np.full((4, 4), 1e300), *(np.diag(each) for each in ([1e18, -1e17, 0, 0], [2.0, -1.0, 0, 0])))
    for products in wrong:
        found = solve(products, np.ones((4, 2)), 9)
        assert all(np.isfinite(each).all() for each in found)


def test_the_factor_is_that_of_cholesky():
    Z, _ = data(300, 77, 1)
    products = Z.T @ Z
    factor = products.copy()
    assert ridge.factorise(factor, 5.0)
    assert_allclose(np.triu(factor), np.linalg.cholesky(products + 5 * np.eye(77)).T, rtol=1e-9, atol=1e-9)
    assert not ridge.factorise(-np.eye(3), 0.5)


_OTHER = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_every_processor_and_number_of_threads_finds_the_same_solution(tmp_path):
    code = (
        "import hashlib, numpy as np; from flwr_flynn.model.ridge import solve; from tests.model.test_ridge import *;"
        "Z, Y = data(300, 130, 3); Z = Z.astype(np.int64);"
        "G = 300 * (Z.T @ Z) - np.outer(Z.sum(0), Z.sum(0)); B = G[:, :3] * 1.5;"
        "found = solve(G / 300.0, B / 300.0, 300, -1);"
        "print(*(hashlib.sha256(np.asarray(each).tobytes()).hexdigest() for each in found))"
    )
    printed = []
    for more in ({}, _OTHER | {"NUMBA_CACHE_DIR": str(tmp_path)}):
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | more
        )
        printed.append(result.stdout)
    assert printed[0] == printed[1] != ""
