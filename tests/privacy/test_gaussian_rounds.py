"""One guarantee for counts and rounds: its sum beside dp-accounting, and an audit of releases."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from flwr_flynn.errors import ConfigError, PrivacyError
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.noisy_rounds import gradient_bound
from flwr_flynn.privacy import GaussianRounds, mechanism_from_dict, suggest_spec
from flwr_flynn.privacy.accounting import digits_up, zcdp_budget, zcdp_epsilon
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.privacy.mechanism import SeededNoise
from tests.raising import raises

pytest.importorskip("dp_accounting")
pytest.importorskip("opendp")

SHAPE = {"hash_nnz": 16, "n_classes": 10}
SEVERAL = [
    GaussianRounds(epsilon, delta, n_rounds, **SHAPE, n_honest=n_honest, neighbours=neighbours, records_per_person=k)
    for (epsilon, delta), n_rounds, n_honest, (neighbours, k) in product(
        [(0.1, 1e-5), (1.0, 1e-5), (8.0, 1e-9)],
        [1, 24, 200],
        [None, 2, 100],
        [("add-remove", 1), ("replace-one", 1), ("add-remove", 7)],
    )
]


@pytest.mark.parametrize("mechanism", SEVERAL, ids=str)
def test_the_whole_plan_costs_the_epsilon_that_was_asked_for_and_hardly_less(mechanism):
    epsilon = mechanism.epsilon(mechanism.delta)
    assert epsilon <= mechanism.target_epsilon
    if mechanism.n_honest != 100:  # shares have a least sigma
        assert epsilon >= 0.999 * mechanism.target_epsilon
    assert mechanism_from_dict(mechanism.to_dict()) == mechanism


@pytest.mark.parametrize("mechanism", [each for each in SEVERAL if each.n_honest is None], ids=str)
def test_the_sum_of_the_releases_by_dp_accounting_is_below_ours(mechanism):
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    both = 1 if mechanism.neighbours == "add-remove" else 2
    counts = mechanism.records_per_person * math.sqrt(16 * both)
    gradient = gradient_bound(16) * mechanism.records_per_person * both
    account = RdpAccountant(orders=[1 + 10 ** (i / 40 - 2) for i in range(200)])
    account.compose(GaussianDpEvent(mechanism.sigma / counts))
    account.compose(SelfComposedDpEvent(GaussianDpEvent(mechanism.gradient_sigma / gradient), mechanism.n_rounds))
    found = account.get_epsilon(mechanism.delta)
    assert 0.97 * mechanism.target_epsilon <= found <= 1.01 * mechanism.target_epsilon  # orders are a grid
    mu = math.sqrt((counts / mechanism.sigma) ** 2 + mechanism.n_rounds * (gradient / mechanism.gradient_sigma) ** 2)
    assert gaussian_delta(mechanism.target_epsilon, mu) <= mechanism.delta


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Delta of a Gaussian mechanism (Balle and Wang 2018)."""
    from scipy.special import log_ndtr

    return math.exp(log_ndtr(mu / 2 - epsilon / mu)) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def test_an_audit_of_counts_and_rounds_together_is_below_the_bound():
    """The likelihood ratio of all releases for the record that changes them most, 20000 releases a side."""
    mechanism = GaussianRounds(1.0, 1e-5, 4, hash_nnz=4, n_classes=2)
    n_runs, bound = 20000, gradient_bound(4)
    change = np.zeros((4, 2), np.int64)
    change[:, 0] = bound // 2  # of norm `bound`
    assert np.linalg.norm(change) == bound
    noise, scores = SeededNoise(3), np.zeros((2, n_runs))
    for side in (0, 1):
        counts = noise.gaussian(4 * n_runs, mechanism.sigma).reshape(n_runs, 4) + side
        scores[side] += counts.sum(axis=1) / mechanism.sigma**2
        for _ in range(mechanism.n_rounds):
            drawn = noise.gaussian(8 * n_runs, mechanism.gradient_sigma).reshape(n_runs, 4, 2) + side * change
            scores[side] += (drawn * change).sum(axis=(1, 2)) / mechanism.gradient_sigma**2
    mu = (scores[1].mean() - scores[0].mean()) / scores.std(axis=1).mean()
    slack = 4 / math.sqrt(n_runs)
    assert gaussian_delta(1.0, mu - slack) <= 1e-5
    assert mu > 0.8 * 0.268  # of a Gaussian mechanism of epsilon 1 and delta 1e-5


def test_noise_has_the_sigma_that_is_promised():
    mechanism = GaussianRounds(1.0, 1e-5, 4, **SHAPE)
    drawn = mechanism.noisy_gradient(np.zeros((50, 40), np.int64))
    assert drawn.dtype == np.int64
    assert drawn.std() == pytest.approx(mechanism.gradient_sigma, rel=0.1)
    assert abs(drawn.mean()) < 5 * mechanism.gradient_sigma / math.sqrt(drawn.size)


def test_the_budget_is_the_inverse_of_the_conversion():
    for epsilon, delta in product([1e-3, 0.1, 1.0, 50.0], [1e-12, 1e-5, 0.1]):
        budget = zcdp_budget(epsilon, delta)
        assert zcdp_epsilon(budget, delta) <= epsilon < zcdp_epsilon(budget * (1 + 1e-8), delta)


def test_digits_are_rounded_up():
    for value in (1.0, 1.00001, 123456.7, 0.000123456789):
        assert value <= digits_up(value) <= value * 1.0001


@pytest.mark.parametrize("n_rounds", [0, -1, 201, 1.5, "3"])
def test_rounds_out_of_range_are_refused(n_rounds):
    with raises(ConfigError, field="n_rounds"):
        GaussianRounds(1.0, 1e-5, n_rounds, **SHAPE)


def test_sizes_follow_from_public_figures():
    few = suggest_spec(1.0, 1e-5, 64, 1438, 10, 10, n_rounds=24)
    many = suggest_spec(1.0, 1e-5, 784, 60000, 10, 2, n_rounds=24)
    assert (few.hash_dim, few.hash_nnz, few.signed) == (512, 51, False)
    assert (many.hash_dim, many.signed) == (8192, True)
    assert 300 < many.hash_nnz < 500
    given = suggest_spec(1.0, 1e-5, 784, 60000, 10, 2, n_rounds=24, hash_dim=100, hash_nnz=7, signed=False)
    assert (given.hash_dim, given.hash_nnz, given.signed) == (100, 7, False)
    assert suggest_spec(1.0, 1e-5, 64, 1438, 10, 1, n_rounds=24).hash_dim > 512  # one noise for all
    with raises(ConfigError, field="n_rounds"):
        suggest_spec(1.0, 0.0, 64, 1438, 10, 10, n_rounds=24)


@pytest.mark.parametrize("composition", ["basic", "zcdp"])
def test_a_plan_takes_all_of_a_policy_by_either_account_and_leaves_nothing(composition, tmp_path):
    mechanism = GaussianRounds(1.0, 1e-5, 3, hash_nnz=4, n_classes=2)
    counts = ClassCounts(np.full((2, 8), 2), hash_nnz=4, spec_fingerprint=64 * "0")
    ledger = Budget(tmp_path / "state", Policy(1.0, 1e-5, composition=composition))
    ledger.release(mechanism, counts.spec_fingerprint, lambda: counts)
    for number in (3, 1, 2):  # in any order
        ledger.release_round(mechanism, counts.spec_fingerprint, number, "w", lambda: np.ones((8, 2), np.int64))
    assert ledger.spent() == pytest.approx((1.0, 1e-5), rel=1e-3)
    assert Budget(tmp_path / "state", ledger.policy).spent() == ledger.spent()
    with raises(PrivacyError, field="policy max-epsilon"):
        ledger.release(mechanism, counts.spec_fingerprint, lambda: counts, terms="another")
