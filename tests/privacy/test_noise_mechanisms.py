"""Mechanisms: their promises, their noise, and the least that they give away."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from functools import partial, reduce
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare, kstest

from flwr_flynn import ClassCounts, privacy
from flwr_flynn.errors import ConfigError, CountsError, MissingExtraError
from flwr_flynn.federated import codec
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.column_sums import moments
from flwr_flynn.model.counts import SIZE_ENTRIES
from flwr_flynn.privacy import (
    GaussianCounts,
    LaplaceCounts,
    SimulatedRelease,
    TopTLaplace,
    accounting,
    mechanism_from_dict,
)
from flwr_flynn.privacy.accounting import rounded_up, shown_bound
from flwr_flynn.privacy.ledger import Policy
from flwr_flynn.privacy.mechanism import OpenDPNoise, SeededNoise
from tests import audit
from tests.fakes import HASHER
from tests.privacy.distributions import gaussian_pmf, laplace_pmf
from tests.raising import raises
from tests.snapshots import assert_refused_as_on_record

FINGERPRINT = 64 * "0"
RUNS = 20000
FEW = 5000  # of an audit, at least; where fewer show enough
UNLIKELY = 1e-6

SHAPE = {"hash_nnz": 4, "n_classes": 2}
WIDER = {"neighbours": "replace-one", **SHAPE}
ALL = {
    "gaussian": GaussianCounts(1.0, 1e-5, **SHAPE),
    "gaussian, three records": GaussianCounts(1.0, 1e-5, **WIDER, records_per_person=3),
    "gaussian, shared": GaussianCounts(0.5, 1e-6, **SHAPE, n_honest=5),
    "gaussian, a pair": GaussianCounts(1.0, 1e-5, **SHAPE, n_columns=3),
    "laplace": LaplaceCounts(1.0, **SHAPE),
    "laplace, a pair": LaplaceCounts(1.0, **SHAPE, n_columns=3),
    "laplace, two records": LaplaceCounts(2.0, **WIDER, records_per_person=2),
    "top-t": TopTLaplace(1.0, 10, **SHAPE),
    "top-t, two records": TopTLaplace(2.0, 10, **WIDER, records_per_person=2),
}
ONE = ALL["gaussian"]
MIRRORED = GaussianCounts(1.0, 1e-5, **SHAPE, n_columns=3, mirrored=True)
DESCRIBED = [*ALL.values(), MIRRORED, SimulatedRelease(MIRRORED, 3)]
EACH = pytest.mark.parametrize("mechanism", ALL.values(), ids=ALL)


def counts(array, hash_nnz=4):
    return ClassCounts(array, hash_nnz=hash_nnz, spec_fingerprint=FINGERPRINT)


def exact_delta(epsilon, sigma, n_entries):
    """Delta of discrete Gaussian noise where n entries differ by one.

    All depends on their sum s alone: the logarithm of P(s with) / P(s without) is
    (2 s - n) / (2 sigma ** 2).
    """
    pmf = reduce(np.convolve, n_entries * [gaussian_pmf(sigma)])
    total = np.arange(len(pmf)) - len(pmf) // 2 + n_entries  # with the record
    loss = (2 * total - n_entries) / (2 * sigma**2)
    return float((pmf * np.maximum(0, -np.expm1(np.minimum(epsilon - loss, 0)))).sum())


# The promise


@given(st.integers(1, 2**53), st.floats(1e-9, 1e9))
def test_a_scale_is_the_least_that_keeps_its_promise(dividend, divisor):
    scale = rounded_up(dividend, divisor)
    assert Fraction(scale) * Fraction(divisor) >= dividend
    assert Fraction(math.nextafter(scale, 0)) * Fraction(divisor) < dividend


@pytest.mark.parametrize("n_entries", [1, 4, 30])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.25, 1e-5), (1.0, 1e-3), (4.0, 1e-9)])
def test_sigma_is_what_the_promise_takes_and_no_more(epsilon, delta, n_entries):
    sigma = accounting.gaussian_sigma(epsilon, delta, n_entries)
    most = delta * (1 + 1e-9)
    assert exact_delta(epsilon, sigma, n_entries) <= most
    assert accounting.gaussian_epsilon(sigma, delta, n_entries) <= epsilon
    less = 0.997 * sigma
    assert exact_delta(epsilon, less, n_entries) > most
    assert accounting.gaussian_epsilon(less, delta, n_entries) > epsilon
    for noise in (sigma, less):
        bound = accounting.gaussian_epsilon(noise, delta, n_entries)
        # The exact delta is of a sum of up to 30 convolutions.
        assert exact_delta(bound, noise, n_entries) <= delta * (1 + 1e-6)
        assert exact_delta(0.999 * bound - 1e-3, noise, n_entries) > delta


@pytest.mark.parametrize("largest", [2, 5])
def test_several_records_of_a_person_are_bounded_however_they_overlap(largest):
    """Epsilon is below the bound in the same entries, and in as many different ones."""
    sigma = 30.0
    n_entries = 9
    delta = 1e-5
    bound = accounting.gaussian_epsilon(sigma, delta, n_entries, largest)
    wide = accounting.gaussian_epsilon(sigma, delta, n_entries * largest)
    high = accounting.privacy_extra(
        "dp_accounting.pld.privacy_loss_distribution"
    ).from_discrete_gaussian_mechanism(
        sigma,
        sensitivity=largest,
        value_discretization_interval=1e-3,
        use_connect_dots=True,
    )
    same = high.self_compose(n_entries).get_epsilon_for_delta(delta)
    assert wide < same < bound < 1.15 * same


@EACH
def test_what_was_asked_for_is_what_is_promised(mechanism):
    epsilon = mechanism.epsilon(mechanism.delta)
    assert epsilon <= mechanism.target_epsilon * (1 + 1e-12)
    assert epsilon > 0.99 * mechanism.target_epsilon


@given(
    st.floats(1e-3, 100),
    st.integers(1, 10**4),
    st.integers(1, 10**3),
    st.sampled_from(privacy.NEIGHBOURS),
    st.integers(1, 100),
)
def test_no_rounding_makes_the_noise_too_small_and_it_is_no_larger_than_it_must_be(
    epsilon, rho, n_released, neighbours, k
):
    """In exact arithmetic, with the very floats that the samplers get."""
    common = {
        "hash_nnz": rho,
        "n_classes": 2,
        "neighbours": neighbours,
        "records_per_person": k,
    }
    both = 2
    if neighbours == "add-remove":
        both = 1
    laplace = LaplaceCounts(epsilon, **common)
    top = TopTLaplace(epsilon, n_released, **common)
    selected = Fraction(n_released * k * both) / Fraction(top.gumbel_scale)
    released = Fraction(min(n_released, both * rho) * k) / Fraction(top.scale)
    pair = LaplaceCounts(epsilon, n_columns=n_released, **common)
    sums = Fraction(both * 256 * n_released * k) / Fraction(pair.sums_scale)
    exact = {laplace: Fraction(both * rho * k) / Fraction(laplace.scale)}
    exact[pair] = sums + Fraction(both * rho * k) / Fraction(pair.scale)
    exact[top] = selected + released
    for mechanism, spent in exact.items():
        assert epsilon * (1 - 1e-14) <= spent <= Fraction(epsilon)
        assert epsilon * (1 - 1e-14) <= mechanism.epsilon() <= epsilon


@given(st.floats(1e-12, 1e6), st.integers(1, 6))
def test_a_bound_is_shown_rounded_up(bound, digits):
    shown = float(shown_bound(bound, digits))
    assert bound <= shown <= bound * (1 + 1.0001 * 10.0 ** (1 - digits))
    assert float(shown_bound(shown, digits)) == shown


def test_opendp_gives_away_no_more_by_its_own_maps():
    dp = accounting.privacy_extra("opendp.prelude")
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    for mechanism in (
        LaplaceCounts(0.3, **SHAPE),
        LaplaceCounts(0.75, **SHAPE, neighbours="replace-one"),
    ):
        theirs = dp.m.make_laplace(
            domain, dp.l1_distance(T="i64"), scale=mechanism.scale
        )
        epsilon = mechanism.target_epsilon
        assert theirs.map(mechanism.l1_sensitivity) <= epsilon * (1 + 1e-12)
        assert theirs.map(2 * mechanism.l1_sensitivity) > 1.99 * epsilon
    # OpenDP accounts for Gaussian noise by zCDP.
    gaussian = GaussianCounts(1.0, 1e-5, **SHAPE, records_per_person=3)
    add = dp.m.make_gaussian(domain, dp.l2_distance(T="i64"), scale=gaussian.sigma)
    theirs = dp.c.make_zCDP_to_approxDP(add)
    assert theirs.map(3 * 2).epsilon(1e-5) == pytest.approx(
        gaussian.epsilon(1e-5), rel=0.05
    )


def test_gaussian_noise_promises_nothing_at_delta_0_and_top_t_spends_half_in_each_step():
    assert ONE.epsilon(0.0) == math.inf
    top = TopTLaplace(1.0, 10, **SHAPE)
    assert (top.exponent, top.scale) == (1 / 20, 8.0)


@pytest.mark.parametrize("n_honest", [1, 2, 10, 100])
def test_shares_of_distributed_noise_carry_it_together(n_honest):
    shared = GaussianCounts(1.0, 1e-5, hash_nnz=100, n_classes=2, n_honest=n_honest)
    whole = GaussianCounts(1.0, 1e-5, hash_nnz=100, n_classes=2).sigma / math.sqrt(
        n_honest
    )
    assert max(3, whole * (1 - 1e-12)) <= shared.sigma <= max(3.0, 1.001 * whole)
    assert shared.epsilon(1e-5) <= 1.0
    assert "securely computed sum" in shared.guarantee()


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 7.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1, 0.5])
def test_a_zcdp_parameter_is_the_largest_that_keeps_its_promise(epsilon, delta):
    rho = accounting.zcdp_rho(epsilon, delta)
    assert accounting.zcdp_epsilon(rho, delta) <= epsilon
    assert accounting.zcdp_epsilon(rho, delta) >= epsilon * (1 - 1e-3)


@pytest.mark.parametrize("least", [1.0001, 3.7252, 9.9999, 14.901, 71.347, 999.99])
def test_a_sigma_whose_rounding_is_too_small_gets_the_next_one(least):
    """Many numbers of five digits were rounded to themselves, for ever."""
    rounded = list[float]()

    def bound(sigma: float, *_: object) -> float:
        if sigma == float(f"{sigma:.4e}"):
            rounded.append(sigma)
            is_enough = len(rounded) == 4
        else:
            is_enough = sigma >= least
        assert len(rounded) < 9
        if is_enough:
            return 1.0
        return 2.0

    sigma = accounting._least_sigma(bound, 1.0, 1e-5, 16, 1)
    assert least < sigma < least * 1.001
    assert len({*rounded}) == len(rounded) == 4


@given(st.floats(1e-2, 1e9))
@example(8192.25)
def test_five_digits_are_rounded_up(sigma):
    rounded = accounting.of_five_digits(sigma)
    assert 1 - 1e-15 <= rounded / sigma <= 1 + 2e-4
    assert rounded == float(f"{rounded:.4e}")


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("neighbours", privacy.NEIGHBOURS)
@pytest.mark.parametrize("records_per_person", [1, 3])
@pytest.mark.parametrize("n_honest", [None, 2, 5])
def test_sums_and_counts_together_cost_what_was_asked_for(
    mirrored, neighbours, records_per_person, n_honest
):
    if mirrored and neighbours == "replace-one":
        return
    pair = GaussianCounts(
        1.0,
        1e-5,
        **SHAPE,
        n_columns=3,
        mirrored=mirrored,
        neighbours=neighbours,
        records_per_person=records_per_person,
        n_honest=n_honest,
    )
    assert 0.999 < pair.epsilon(1e-5) <= 1.0
    columns = 256**2 + 128**2
    changed = 4
    if neighbours == "replace-one":
        columns = 512**2
        changed = 8
    if mirrored:
        changed = 2 * 4 + SIZE_ENTRIES
    parts = [3 * columns / pair.sums_sd**2, changed / pair.sigma**2]
    rho = sum(parts) * records_per_person**2 / 2 / (n_honest or 1)
    assert rho <= pair.zcdp_rho < rho * 1.0001
    assert accounting.zcdp_epsilon(rho, 1e-5) <= 1.0
    assert parts[0] / sum(parts) == pytest.approx(0.1, rel=0.01)
    assert SimulatedRelease(pair, 1).sums_sd == pair.sums_sd


@pytest.mark.parametrize(("sigma", "n_parties"), [(0.6, 2), (0.8, 3), (1.0, 4)])
def test_a_sum_of_discrete_gaussians_is_as_near_to_one_as_stated(sigma, n_parties):
    total = reduce(np.convolve, n_parties * [gaussian_pmf(sigma)])
    x = np.arange(len(total)) - len(total) // 2
    whole = np.exp(-(x**2) / (2 * n_parties * sigma**2))
    # Beyond, rounding errors take over.
    near = np.abs(x) < 6 * sigma * math.sqrt(n_parties)
    gap = np.abs(np.log(total[near] / (whole / whole.sum())[near])).max()
    assert 0 < gap <= accounting.sum_of_gaussians_gap(sigma, n_parties)
    assert accounting.sum_of_gaussians_gap(3.0, 1000) < 1e-30


# The noise


def goodness(drawn, pmf):
    reach = len(pmf) // 2
    expected = pmf * len(drawn)
    observed = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(pmf))
    often = expected >= 10

    def with_one_rest(numbers):
        return np.append(numbers[often], numbers[~often].sum())

    return chisquare(with_one_rest(observed), with_one_rest(expected)).pvalue


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.8, 1.2, 20.0])
@pytest.mark.parametrize(
    "sampler", [OpenDPNoise(), SeededNoise(3)], ids=["opendp", "seeded"]
)
def test_noise_has_the_distribution_that_is_accounted_for(sampler, scale):
    assert goodness(sampler.laplace(40000, scale), laplace_pmf(scale)) > UNLIKELY
    if isinstance(sampler, OpenDPNoise) or scale > 1:
        assert goodness(sampler.gaussian(40000, scale), gaussian_pmf(scale)) > UNLIKELY


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "top-t"])
def test_no_seed_decides_what_leaves_a_party(kind, monkeypatch):
    """Neither NumPy's generators nor Python's have a part in it."""
    exact = counts([[1] * 4 + [0] * 28, [0] * 32])
    mechanism = ALL[kind]
    releases = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        releases.append(mechanism.release(exact))
    assert releases[0] != releases[1]
    monkeypatch.setattr(np.random, "default_rng", None)
    monkeypatch.setattr(random, "random", None)
    mechanism.release(exact)


def test_wide_noise_has_the_distribution_that_is_accounted_for():
    drawn = OpenDPNoise().gaussian(20000, 500.0)
    smooth = drawn + np.random.default_rng(0).random(drawn.size) - 0.5
    assert kstest(smooth, "norm", (0, 500.0)).pvalue > UNLIKELY


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler", [OpenDPNoise(), SeededNoise(5)], ids=["opendp", "seeded"]
)
def test_the_largest_noisy_scores_are_draws_without_replacement(sampler):
    scores = np.array([4, 0, 1, 2])
    how_many = 2
    scale = 2.0
    weights = np.exp(scores / scale)
    total = weights.sum()
    expected = {
        (i, j): RUNS * weights[i] / total * weights[j] / (total - weights[i])
        for i, j in permutations(range(4), 2)
    }
    drawn = dict.fromkeys(expected, 0)
    for _ in range(RUNS):
        drawn[tuple(sampler.top(scores, how_many, scale).tolist())] += 1
    fit = chisquare(list(drawn.values()), list(expected.values()))
    assert fit.pvalue > UNLIKELY


# What is released


@EACH
def test_a_release_is_noisy_counts_of_the_stated_variance(mechanism):
    exact = counts(np.tile([[5, 5, 5, 5], [0, 0, 0, 0]], 1000))
    release = mechanism.release(exact)
    assert release.noise_variance == pytest.approx(mechanism.noise_sd**2)
    if mechanism.kind == "top-t":
        assert np.count_nonzero(release.array) <= 10
        assert release.n_per_class is None
    else:
        noise = release.array - exact.array
        assert noise.std() == pytest.approx(mechanism.noise_sd, rel=0.1)
        assert (release.array < 0).any()  # never clipped
        assert_array_equal(release.n_per_class, release.array.sum(axis=1) / 4)
    assert mechanism.received(release.array, FINGERPRINT) == release
    assert mechanism.release(exact) != release
    assert (release + exact) - release == exact


def test_no_count_is_refused_and_none_overflows():
    """Counts beyond the limit, which leaves room for sums, are clipped.

    Far below it noise is all that changes.
    """
    limit = (2**63 - 1) // 4 // 4
    far = 1e-12  # the probability that noise is larger than this many scales
    for size in (0, 1000, 2**61 // 4, (2**63 - 1) // 4):
        mechanism = LaplaceCounts(1.0, **SHAPE)
        release = mechanism.release(counts([[size] * 4, [0] * 4]))
        noise = release.array.astype(object) - min(size, limit) * np.array([[1], [0]])
        assert abs(noise).max() < -math.log(far) * mechanism.scale
        assert release.array.max() <= limit


def test_more_can_be_released_than_there_is():
    """Then all entries are, and none of them is drawn."""
    exact = counts([[900] * 4, [0] * 4])
    mechanism = TopTLaplace(1.0, 100, **SHAPE)
    released = mechanism.release(exact).array
    assert released.shape == (2, 4)
    assert_allclose(released, exact.array, atol=30 * mechanism.scale)
    assert len(np.unique(released)) > 1


@EACH
def test_what_is_released_must_be_what_the_mechanism_is_for(mechanism):
    exact = counts([[1, 1, 1, 1], [0, 0, 0, 0]])
    release = LaplaceCounts(1.0, **SHAPE).release(exact)
    for wrong, field, expected, got in [
        (counts([[1, 1, 1, 1]]), "release n_classes", "2", "1"),
        (counts([[1, 1], [0, 0]], hash_nnz=2), "release hash_nnz", "4", "2"),
        (release, "release", "counts without noise", "noisy ones"),
    ]:
        with raises(CountsError, field=field, expected=expected, got=got):
            mechanism.release(wrong)
    with raises(CountsError, field="release n_classes", expected="2", got=1):
        mechanism.received(release.array[:1], FINGERPRINT)
    with raises(CountsError, field="array", got="float64 of shape (2, 1)"):
        mechanism.received([[0.5], [1.0]], FINGERPRINT)


@EACH
def test_simulated_releases_can_be_repeated_and_protect_nobody(mechanism):
    exact = counts([[1, 1, 1, 1], [0, 0, 0, 0]])
    one = SimulatedRelease(mechanism, 1)
    same = SimulatedRelease(mechanism, 1)
    first = one.release(exact)
    second = one.release(exact)
    assert first != second
    assert same.release(exact) == first
    assert same.release(exact) == second
    assert SimulatedRelease(mechanism, 2).release(exact) != first
    assert one.epsilon(1e-5) == math.inf
    assert one.guarantee().startswith("No privacy")
    if one.n_columns:
        zeros = np.zeros((one.n_moments, one.n_columns), np.int64)
        sums = [one.released_sums(zeros).tolist() for _ in range(2)]
        assert sums[0] != sums[1]
        assert [same.released_sums(zeros).tolist() for _ in range(2)] == sums
    # Other facts are those of the mechanism that it simulates.
    assert one.received(first.array, FINGERPRINT) == first
    assert one.noise_sd == mechanism.noise_sd


# In words and as data


@pytest.mark.parametrize("mechanism", DESCRIBED, ids=repr)
def test_a_description_is_all_there_is(mechanism):
    same = mechanism_from_dict(json.loads(json.dumps(mechanism.to_dict())))
    assert same == mechanism
    assert hash(same) == hash(mechanism)
    assert repr(same) == repr(mechanism)
    assert same.guarantee() == mechanism.guarantee()


def test_different_mechanisms_have_different_descriptions():
    assert len(set(map(repr, DESCRIBED))) == len(DESCRIBED)


def test_a_guarantee_says_what_is_promised_and_what_is_not():
    words = ALL["gaussian, three records"].guarantee()
    for expected in (
        "epsilon 1 and",
        "delta 1e-05",
        "2.72, and by 1e-05 more",
        "discrete Gaussian",
    ):
        assert expected in words, words
    for expected in ("at most 3", "replaced", "Not covered", "add"):
        assert expected in words, words


KNOWN = {
    "gaussian": ONE,
    "top-t": TopTLaplace(1.0, 5, **SHAPE),
    "simulated": SimulatedRelease(ONE, 1),
}


def described(known, values):
    return mechanism_from_dict(known.to_dict() | values)


def test_policies_and_descriptions_are_refused_as_it_is_on_record():
    takes = {kind: partial(described, known) for kind, known in KNOWN.items()}
    takes |= {
        "policy": lambda values: Policy(**{"max_epsilon": 1.0} | values),
        "mechanism": mechanism_from_dict,
    }
    assert_refused_as_on_record(Path(__file__).parent / "refused.txt", takes)


@pytest.mark.parametrize("missing", ONE.to_dict())
def test_nothing_may_be_missing_from_a_description(missing):
    values = ONE.to_dict()
    del values[missing]
    got = f"none named {missing}"
    if missing == "mechanism":
        got = "None"
    with raises(ConfigError, got=got):
        mechanism_from_dict(values)


HUGE = {"hash_nnz": 2**31 - 1, "n_classes": 1}


@pytest.mark.parametrize(
    ("mechanism", "got"),
    [
        (LaplaceCounts(0.001, **HUGE, records_per_person=10**6), "0.001"),
        (GaussianCounts(0.001, 1e-5, **HUGE), "one with sigma 9.45e+07"),
    ],
    ids=["laplace", "gaussian"],
)
def test_noise_that_no_sampler_draws_is_refused(mechanism, got):
    with raises(ConfigError, field="epsilon", got=got):
        mechanism.release(counts(np.zeros((1, 3), int), hash_nnz=2**31 - 1))


def test_further_refusals():
    with raises(ConfigError, field="delta", got="0.0"):
        accounting.gaussian_epsilon(1.0, 0.0, 1)
    with raises(ConfigError, field="mechanism", got="SimulatedRelease"):
        SimulatedRelease(SimulatedRelease(ONE, 1), 1)


def test_a_missing_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(accounting, "import_module", missing)
    with raises(MissingExtraError, field="opendp", expected="flwr-flynn[privacy]"):
        LaplaceCounts(1.0, **SHAPE).release(counts([[1] * 4, [0] * 4]))


DIGITS = {"n_features": 64, "n_examples": 1444, "n_classes": 10, "n_parties": 10}
MNIST = {"n_features": 784, "n_examples": 60000, "n_classes": 10, "n_parties": 2}
TABLE = {"n_features": 30, "n_examples": 10000, "n_classes": 2, "n_parties": 2}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (DIGITS | {"delta": 1e-5}, {"hash_dim": 512, "hash_nnz": 51}),
        (MNIST | {"delta": 1e-5}, {"hash_dim": 2**14}),
        (DIGITS | {"delta": 0.0}, {"hash_dim": 64}),
        (TABLE | {"delta": 0.0}, {"hash_dim": 2000, "hash_nnz": 24}),
        (TABLE | {"delta": 0.0, "neighbours": "replace-one"}, {"hash_dim": 1000}),
        (
            TABLE | {"delta": 0.0, "hash_dim": 64, "hash_nnz": 5},
            {"hash_dim": 64, "hash_nnz": 5},
        ),
    ],
    ids=[
        "digits",
        "MNIST",
        "digits, pure",
        "a table, pure",
        "a table, records replaced",
        "given sizes",
    ],
)
def test_sizes_of_private_counts(settings, expected):
    spec = privacy.suggest_spec(1.0, seed=3, **settings)
    assert spec.seed == 3
    for name, size in expected.items():
        assert getattr(spec, name) == size, name


# Audits


class HalvedNoise(OpenDPNoise):
    """A mistake that an audit must notice."""

    def gaussian(self, size, sigma):
        return super().gaussian(size, sigma / 2)

    def laplace(self, size, scale):
        return super().laplace(size, scale / 2)

    def top(self, scores, how_many, scale):
        return super().top(scores, how_many, scale / 2)


def neighbours(mechanism):
    """Counts of one class without and with a person's records.

    They are as far apart as the mechanism says they may be. Behind the counts are sums
    of columns.
    """
    rho = mechanism.hash_nnz
    k = mechanism.records_per_person
    without, with_person = np.zeros((2, max(mechanism.n_changed, 8)), np.int64)
    with_person[:rho] = k
    if mechanism.neighbours == "replace-one":
        without[rho : 2 * rho] = k
    if mechanism.mirrored:
        with_person[rho:] = k
        with_person[rho : 2 * rho] = -k
    if mechanism.kind == "top-t":
        return without, with_person
    sums = np.zeros((2, mechanism.n_columns or 0), np.int64)
    spec = HashSpec(1, 8, 1, 1, 0, center=(0.0,), scale=(1.0,))
    ends = np.array([[-1.0], [1.0]])
    if mechanism.n_columns is not None:
        sums = k * moments(ends, spec, mechanism.n_moments)[:, :, 0]
        sums = np.tile(sums, mechanism.n_columns)
    if mechanism.neighbours == "add-remove":
        sums[0] = 0
    n = mechanism.n_changed
    return np.append(without[:n], sums[0]), np.append(with_person[:n], sums[1])


def runs(mechanism, sampler, array, n):
    """Releases, or classes of one release: noise on all counts is independent."""
    if mechanism.kind == "top-t":
        exact = counts([array], mechanism.hash_nnz)
        return np.array(
            [mechanism.release(exact, sampler=sampler).array[0] for _ in range(n)]
        )
    exact = np.tile(array, (2 * n, 1))
    changed, sums = np.split(exact, [mechanism.n_changed], axis=1)
    released = mechanism.noisy(changed, sampler)
    if mechanism.n_columns is not None:
        released = np.hstack([released, mechanism._draw_sums(sums, sampler)])
    return released


def shown_by(mechanism, without, with_person, before, after):
    """Lower bound on epsilon that releases show, of counts before and after a change."""
    change = after - before
    changed = np.flatnonzero(change)
    if mechanism.kind == "gaussian":
        sds = np.full(len(change), mechanism.noise_sd)
        if mechanism.n_columns is not None:
            sds[mechanism.n_changed :] = mechanism.sums_sd
        weights = change / sds**2
        half = (weights @ before + weights @ after) / 2
        return audit.gaussian_epsilon(
            with_person @ weights, without @ weights, half, mechanism.delta
        )

    def event(released):
        ahead = (released[:, changed] - after[changed]) * np.sign(change[changed])
        return (ahead >= 0).all(axis=1)

    return audit.pure_epsilon(event(with_person), event(without))


def audited(mechanism, sampler, n=RUNS):
    """Lower bound on epsilon for the person who changes most."""
    before, after = neighbours(mechanism)
    without = runs(mechanism, sampler, before, n)
    with_person = runs(mechanism, sampler, after, n)
    return shown_by(mechanism, without, with_person, before, after)


REPLACED = {"neighbours": "replace-one", "hash_nnz": 2, "n_classes": 1}
SMALL = {"hash_nnz": 1, "n_classes": 1}
AUDITS = {
    "gaussian": GaussianCounts(1.0, 1e-5, hash_nnz=4, n_classes=1),
    "laplace": LaplaceCounts(1.0, hash_nnz=4, n_classes=1),
    "top-t": TopTLaplace(1.0, 1, **SMALL),
    "gaussian-replaced": GaussianCounts(1.0, 1e-5, **REPLACED),
    "gaussian-three": GaussianCounts(1.0, 1e-5, **REPLACED, records_per_person=3),
    "laplace-replaced": LaplaceCounts(1.0, **REPLACED),
    "laplace-three": LaplaceCounts(1.0, **REPLACED, records_per_person=3),
    "gaussian-mirrored": GaussianCounts(1.0, 1e-5, **SMALL, mirrored=True),
    "gaussian-pair": GaussianCounts(1.0, 1e-5, **SMALL, n_columns=1, mirrored=True),
    "gaussian-pair-three": GaussianCounts(
        1.0, 1e-5, **REPLACED, n_columns=2, records_per_person=3
    ),
    "laplace-pair": LaplaceCounts(1.0, **SMALL, n_columns=2),
    "laplace-pair-replaced": LaplaceCounts(1.0, **REPLACED, n_columns=1),
    "top-t-three": TopTLaplace(1.0, 1, **SMALL, records_per_person=3),
}
AUDITED = pytest.mark.parametrize("mechanism", AUDITS.values(), ids=AUDITS)


@pytest.mark.slow
@AUDITED
def test_audit(mechanism):
    shown = audited(mechanism, OpenDPNoise())
    print(
        f"{mechanism!r}: at least {shown:.3f} of "
        f"{mechanism.epsilon(mechanism.delta):.3f}"
    )
    assert 0.6 <= shown <= mechanism.epsilon(mechanism.delta)


@pytest.mark.slow
@AUDITED
def test_an_audit_notices_halved_noise(mechanism):
    shown = audited(mechanism, HalvedNoise(), FEW)
    print(f"{mechanism!r}, noise halved: at least {shown:.3f}")
    assert shown > mechanism.epsilon(mechanism.delta)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    [
        GaussianCounts(4.0, 1e-5, hash_nnz=2, n_classes=1),
        LaplaceCounts(1.0, hash_nnz=2, n_classes=1),
    ],
)
def test_audit_of_the_messages_that_leave_a_party(mechanism):
    """Nothing in a message gives away more than the noisy counts."""
    before = np.array([0, 0, 1, 1])
    after = np.array([1, 1, 1, 1])
    field = codec.release_field(HASHER, mechanism, 0)

    def sent(array):
        exact = counts([array], hash_nnz=2)
        return np.array(
            [field.packed(mechanism.release(exact).array)[0] for _ in range(FEW)]
        )

    shown = shown_by(mechanism, sent(before), sent(after), before, after)
    promised = mechanism.epsilon(mechanism.delta)
    print(f"messages of {mechanism!r}: at least {shown:.3f} of {promised:.3f}")
    assert 0.6 * promised <= shown <= promised


@pytest.mark.parametrize("foreign", [{"n_honest": 5}, {"delta": 0.3}], ids=str)
def test_a_mechanism_takes_no_parameter_of_another(foreign):
    """A guarantee about parties that its noise is not made for would be false."""
    with pytest.raises(TypeError):
        LaplaceCounts(1.0, **SHAPE, **foreign)
