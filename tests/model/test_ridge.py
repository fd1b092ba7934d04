"""Ridge regression from sums: scikit-learn's weights, leverages that are about the trace, the same on every machine."""

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
from flwr_flynn.model.ridge import MOST_LEVERAGE, solve


def sums_of(Z: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, int]:
    centred, targets = Z - Z.mean(axis=0), Y - Y.mean(axis=0)
    return centred.T @ centred, np.ascontiguousarray(centred.T @ targets), float((targets**2).sum()), len(Z)


def data(n: int, m: int, n_targets: int, seed: int = 0, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Z = rng.integers(0, 16, (n, m)).astype(float)
    return Z, Z @ rng.normal(size=(m, n_targets)) / 10 + noise * rng.normal(size=(n, n_targets))


def by_eigenvalues(products, moments, variance, n):
    """Cross-validation of each strength with the exact trace."""
    values, vectors = np.linalg.eigh(products)
    turned, found = vectors.T @ moments, []
    for share in ridge._STRENGTHS:
        strength = share * np.trace(products)
        leverage = (values / (values + strength)).sum() / n
        weights = turned / (values + strength)[:, None]
        residual = variance - 2 * (weights * turned).sum() + (weights**2 * values[:, None]).sum()
        found.append((residual / (1 - leverage - 1 / n) ** 2, strength, leverage))
    return found


@given(st.integers(2, 70), st.integers(1, 4), st.integers(0, 5))
def test_weights_are_those_of_scikit_learn_at_one_of_the_strengths(m, n_targets, seed):
    Z, Y = data(200, m, n_targets, seed)
    sums = sums_of(Z, Y)
    found = solve(sums[0].copy(), *sums[1:])
    trace = np.trace(sums[0])
    fitted = [SklearnRidge(alpha=share * trace).fit(Z, Y).coef_ for share in ridge._STRENGTHS]
    best = min(fitted, key=lambda coef: np.abs(coef.reshape(n_targets, m).T - found.weights).max())
    assert_allclose(found.weights, best.reshape(n_targets, m).T, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("noise", [0.1, 3.0, 30.0])
def test_the_strength_is_that_of_the_lowest_cross_validation(noise):
    Z, Y = data(400, 120, 3, noise=noise)
    sums = sums_of(Z, Y)
    found = solve(sums[0].copy(), *sums[1:])
    exact = by_eigenvalues(*sums)
    alike = [np.linalg.solve(sums[0] + strength * np.eye(120), sums[1]) for _, strength, _ in exact]
    chosen = int(np.argmin([np.abs(each - found.weights).max() for each in alike]))
    assert exact[chosen][0] <= 1.02 * min(each[0] for each in exact if each[2] <= MOST_LEVERAGE)  # a trace by 16 probes
    assert found.leverage == pytest.approx(exact[chosen][2], abs=0.03)


def test_few_samples_are_fitted_with_care():
    Z, Y = data(20, 100, 2)
    found = solve(*sums_of(Z, Y))
    assert 0 < found.leverage <= MOST_LEVERAGE
    assert np.isfinite(found.weights).all()


@pytest.mark.parametrize("n", [1, 5])
def test_weights_are_0_where_nothing_varies(n):
    found = solve(*sums_of(np.full((n, 6), 3.0), np.eye(5)[:n]))
    assert not found.weights.any()
    assert found.leverage == 0


def test_the_factor_is_that_of_cholesky():
    Z, _ = data(300, 77, 1)
    products = Z.T @ Z
    factor = products.copy()
    assert ridge.factorise(factor, 5.0)
    assert_allclose(np.triu(factor), np.linalg.cholesky(products + 5 * np.eye(77)).T, rtol=1e-9, atol=1e-9)
    assert not ridge.factorise(-np.eye(3), 0.5)


@pytest.mark.slow
def test_every_processor_finds_the_same_weights(tmp_path):
    code = (
        "import hashlib, numpy as np; from flwr_flynn.model.ridge import solve; from tests.model.test_ridge import *;"
        "Z, Y = data(300, 130, 3); Z = Z.astype(np.int64);"
        "G = 300 * (Z.T @ Z) - np.outer(Z.sum(0), Z.sum(0)); B = G[:, :3] * 1.5;"
        "found = solve(G / 300.0, B / 300.0, 1e6, 300);"
        "print(hashlib.sha256(found.weights.tobytes()).hexdigest(), found.leverage)"
    )
    printed = []
    for more in ({}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}):
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | more
        )
        printed.append(result.stdout)
    assert printed[0] == printed[1] != ""
