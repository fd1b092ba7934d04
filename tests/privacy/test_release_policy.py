"""Sums of releases: no account admits more than it promises.

The figures are worked out here once more.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from flwr_flynn import ClassCounts
from flwr_flynn.errors import ConfigError, PrivacyError
from flwr_flynn.privacy import (
    GaussianCounts,
    LaplaceCounts,
    SimulatedRelease,
    TopTLaplace,
    accounting,
)
from flwr_flynn.privacy.ledger import Budget
from flwr_flynn.privacy.release_policy import Account, Policy
from tests.privacy.distributions import gaussian_pmf, laplace_pmf
from tests.raising import raises

SHAPE = {"hash_nnz": 16, "n_classes": 2}
HERE = ClassCounts(
    [[1] * 16 + [0] * 4, [0] * 20], hash_nnz=16, spec_fingerprint=64 * "0"
)
ROUNDING = 1 + 2e-9

GAUSSIANS = [
    GaussianCounts(0.2, 1e-6, **SHAPE),
    GaussianCounts(1.0, 1e-5, **SHAPE),
    GaussianCounts(0.05, 1e-3, **SHAPE),
    GaussianCounts(0.3, 1e-6, **SHAPE, neighbours="replace-one", records_per_person=3),
]
SHARE = GaussianCounts(0.5, 1e-6, **SHAPE, n_honest=5)
PURE = [
    LaplaceCounts(0.5, **SHAPE),
    LaplaceCounts(0.1, **SHAPE, neighbours="replace-one", records_per_person=2),
    TopTLaplace(0.25, 10, **SHAPE),
    TopTLaplace(2.0, 10, **SHAPE, neighbours="replace-one"),
]
REQUESTS = [*GAUSSIANS, SHARE, *PURE]


def rho_of(mechanism):
    """The parameter from the noise that is drawn and from what a person changes."""
    both = 2
    if mechanism.neighbours == "add-remove":
        both = 1
    k = mechanism.records_per_person
    rho = mechanism.hash_nnz
    if mechanism.kind == "gaussian":
        # Shares are summed; for sigma of 3 the sum is a discrete Gaussian.
        variance = Fraction(mechanism.sigma) ** 2 * (mechanism.n_honest or 1)
        return Fraction(both * rho * k**2) / (2 * variance)
    if mechanism.kind == "laplace":
        return (Fraction(both * rho * k) / Fraction(mechanism.scale)) ** 2 / 2
    draws = Fraction(mechanism.n_released * k * both) * Fraction(mechanism.exponent)
    return (
        draws
        + Fraction(min(mechanism.n_released, both * rho) * k)
        / Fraction(mechanism.scale)
    ) ** 2 / 2


def delta_of(rho, epsilon):
    """Delta of rho-zCDP (Canonne, Kamath and Steinke 2020), by a search of its own."""

    def log_delta(place):
        beyond = math.exp(place)
        order = 1 + beyond
        return beyond * (order * rho - epsilon) - order * math.log1p(1 / beyond) - place

    starts = np.linspace(-12, 18, 241)
    best = min(starts, key=log_delta)
    minimum = minimize_scalar(
        log_delta,
        bounds=(best - 0.2, best + 0.2),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return math.exp(min(minimum.fun, log_delta(best)))


def admitted(policy, requests):
    """The requests that a policy admits, one after the other, behind their costs."""
    costs = []
    which = []
    for request in requests:
        try:
            costs.append(policy.admit(request, costs))
            which.append(request)
        except PrivacyError:
            pass
    return costs, which


POLICIES = {"max_epsilon": st.floats(0.05, 8), "max_delta": st.floats(1e-9, 1e-2)}


@given(
    st.fixed_dictionaries(POLICIES), st.lists(st.sampled_from(REQUESTS), max_size=30)
)
def test_basic_admits_no_more_than_its_sums(bounds, requests):
    policy = Policy(**bounds, secure_sum=True)
    costs, which = admitted(policy, requests)
    epsilon = sum(Fraction(request.epsilon(request.delta)) for request in which)
    delta = sum(Fraction(request.delta) for request in which)
    assert epsilon <= Fraction(bounds["max_epsilon"] * ROUNDING)
    assert delta <= Fraction(bounds["max_delta"] * ROUNDING)
    assert Account("basic", 0.0).total(costs) == (
        pytest.approx(float(epsilon)),
        pytest.approx(float(delta)),
    )
    assert not any(cost.closes for cost in costs)
    for request in REQUESTS:
        if not admits(policy, request, costs):
            # With what was asked for it would not fit.
            sum_of_epsilons = epsilon + Fraction(request.target_epsilon)
            sum_of_deltas = delta + Fraction(request.delta)
            is_epsilon_too_large = sum_of_epsilons > bounds["max_epsilon"]
            assert is_epsilon_too_large or sum_of_deltas > bounds["max_delta"]


def admits(policy, request, costs):
    try:
        policy.admit(request, costs)
    except PrivacyError:
        return False
    return True


@given(
    st.fixed_dictionaries(POLICIES), st.lists(st.sampled_from(REQUESTS), max_size=30)
)
def test_zcdp_admits_no_more_than_its_filter(bounds, requests):
    policy = Policy(**bounds, secure_sum=True, composition="zcdp")
    costs, which = admitted(policy, requests)
    most = bounds["max_epsilon"]
    delta = bounds["max_delta"]
    rho = float(sum(map(rho_of, which)))
    if costs and costs[0].closes:
        (only,) = which
        assert only.epsilon(only.delta) <= most * ROUNDING
        assert only.delta <= delta * ROUNDING
        assert delta_of(rho, most) > delta * (1 - 1e-6)
        assert Account("zcdp", delta).total(costs) == (
            only.epsilon(only.delta),
            only.delta,
        )
        assert not any(admits(policy, request, costs) for request in REQUESTS)
        return
    assert delta_of(rho, most) <= delta * (1 + 1e-6)
    if costs:
        epsilon, at = Account("zcdp", delta).total(costs)
        assert epsilon <= most * ROUNDING
        assert at == delta
        assert epsilon == 0 or delta_of(rho, epsilon) == pytest.approx(delta, rel=1e-4)
    for request in REQUESTS:
        if not admits(policy, request, costs):
            assert delta_of(rho + float(rho_of(request)), most) > delta * (1 - 1e-6)


@given(
    st.lists(st.sampled_from(REQUESTS), min_size=2, max_size=6),
    st.randoms(use_true_random=False),
)
@pytest.mark.parametrize("composition", ["basic", "zcdp"])
def test_the_total_does_not_depend_on_the_order(composition, requests, draw):
    policy = Policy(100.0, 0.1, secure_sum=True, composition=composition)
    costs, which = admitted(policy, requests)
    assert len(which) == len(requests)
    shuffled, _ = admitted(policy, draw.sample(requests, len(requests)))
    account = Account(composition, 0.1)
    assert account.total(shuffled) == account.total(costs)


@pytest.mark.parametrize("composition", ["basic", "zcdp"])
@given(
    requests=st.lists(
        st.tuples(st.sampled_from(GAUSSIANS + PURE), st.sampled_from("abc")), max_size=8
    )
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_ledger_admits_what_its_policy_does_and_replays_cost_nothing(
    tmp_path_factory, composition, requests
):
    policy = Policy(1.5, 2e-5, ["simulated"], composition=composition)
    ledger = Budget(tmp_path_factory.mktemp("ledger") / "state", policy)
    costs = []
    known = {}
    for mechanism, terms in requests:
        request = SimulatedRelease(mechanism, 1)
        key = repr((request, terms))
        before = ledger.spent()
        try:
            released = ledger.release(
                request,
                HERE.spec_fingerprint,
                lambda request=request: request.release(HERE).array,
                terms=terms,
            )
        except PrivacyError:
            assert key not in known
            assert not admits(policy, request, costs)
            assert ledger.spent() == before
            continue
        assert released.repeated == (key in known)
        array = released.array.tolist()
        assert known.setdefault(key, array) == array
        if released.repeated:
            assert ledger.spent() == before
        else:
            costs.append(policy.admit(request, costs))
        assert ledger.spent() == Account(composition, 2e-5).total(costs)


# The parameter


def divergence(p, q, order):
    with np.errstate(divide="ignore"):
        logs = order * np.log(p) + (1 - order) * np.log(q)
    logs = logs[np.isfinite(logs)]
    return (np.log(np.exp(logs - logs.max()).sum()) + logs.max()) / (order - 1)


@pytest.mark.parametrize("n_parties", [1, 2, 4])
@pytest.mark.parametrize("sigma", [0.55, 0.8, 3.0])
@pytest.mark.parametrize("shift", [1, 3])
def test_gaussian_noise_and_sums_of_it_are_of_the_stated_parameter(
    sigma, n_parties, shift
):
    total = np.pad(reduce(np.convolve, n_parties * [gaussian_pmf(sigma, 16)]), shift)
    bound = accounting.gaussian_rho(sigma, 1, shift, n_parties)
    sharp = shift**2 / (2 * n_parties * sigma**2)
    assert bound >= sharp
    for order in (1.01, 1.5, 2, 3):
        largest = max(
            divergence(total[:-shift], total[shift:], order),
            divergence(total[shift:], total[:-shift], order),
        )
        assert largest <= order * bound * (1 + 1e-9)
        if sigma == 3.0:
            assert largest >= order * sharp * 0.999
    assert accounting.gaussian_rho(0.4, 1, 1, 2) == math.inf


@pytest.mark.parametrize("scale", [0.5, 2.0, 30.0])
def test_laplace_noise_is_of_the_stated_parameter(scale):
    noise = np.pad(laplace_pmf(scale), 1)
    bound = accounting.pure_rho(1 / scale)
    for order in (1.01, 1.5, 2, 5, 20):
        assert divergence(noise[1:-2], noise[2:-1], order) <= order * bound


@pytest.mark.parametrize("mechanism", REQUESTS, ids=lambda mechanism: mechanism.kind)
def test_the_parameter_of_every_mechanism(mechanism):
    rho = float(rho_of(mechanism))
    assert rho <= mechanism.zcdp_rho <= rho * (1 + 1e-9)
    simulated = SimulatedRelease(mechanism, 1)
    assert simulated.zcdp_rho == math.inf
    account = Account("zcdp", 1e-5)
    assert account.cost(simulated) == account.cost(mechanism)
    assert Account().cost(mechanism).rho is None


@pytest.mark.parametrize("rho", [1e-7, 1e-3, 0.02, 0.5, 4.0, 300.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2, 0.3])
def test_the_conversion_is_that_of_dp_accounting(rho, delta):
    rdp = accounting.privacy_extra("dp_accounting.rdp.rdp_privacy_accountant")
    orders = [1 + math.exp(place) for place in np.linspace(-8, 14, 2001)]
    theirs, _ = rdp.compute_epsilon(orders, [order * rho for order in orders], delta)
    assert accounting.zcdp_epsilon(rho, delta) == pytest.approx(
        theirs, rel=1e-4, abs=1e-9
    )


def test_the_conversion_refuses_what_is_none():
    for rho, delta in (
        (-1.0, 0.1),
        (math.nan, 0.1),
        (1.0, 0.0),
        (1.0, 1.0),
        (1.0, math.nan),
    ):
        with pytest.raises(ConfigError):
            accounting.zcdp_epsilon(rho, delta)


def test_the_conversion_of_nothing_and_of_everything():
    assert accounting.zcdp_epsilon(0.0, 1e-5) == 0
    assert accounting.zcdp_epsilon(math.inf, 1e-5) == math.inf


# What it is for


@pytest.mark.parametrize("composition", ["basic", "zcdp"])
def test_a_mechanism_without_a_promise_is_refused(composition, monkeypatch):
    mechanism = LaplaceCounts(0.1, **SHAPE)
    monkeypatch.setattr(LaplaceCounts, "epsilon", lambda self, delta=0.0: math.inf)
    monkeypatch.setattr(LaplaceCounts, "zcdp_rho", 0.001)
    with raises(PrivacyError, field="policy max-epsilon"):
        Policy(100.0, 1e-5, composition=composition).admit(mechanism, [])
