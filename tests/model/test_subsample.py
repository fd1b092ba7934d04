"""Subsamples by content: the same samples, wherever and in whatever form they lie."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal

from flwr_flynn.model import subsample
from flwr_flynn.model.portable import content_shares
from flwr_flynn.model.subsample import subsample_mask

WORD = 2**64
ELEMENTS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 5e-324]) | st.floats(
    allow_nan=False, allow_infinity=False
)
SAMPLES = hnp.arrays(
    np.float64, st.tuples(st.integers(0, 6), st.integers(1, 5)), elements=ELEMENTS
) | hnp.arrays(
    st.sampled_from([np.uint8, np.int64, np.float32]),
    (5, 3),
    elements=st.integers(0, 3),
)


def mix(word):
    """Finisher of SplitMix64 on Python integers."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def share(sample):
    total = 0
    for column, value in enumerate(sample):
        if value != 0:
            bits = int(np.float64(value).view(np.uint64))
            total += mix(mix((column + 0x9E3779B97F4A7C15) % WORD) ^ bits)
    return (mix((total + 0x9E3779B97F4A7C15) % WORD) >> 11) / 2**53


@given(SAMPLES)
def test_shares_agree_with_the_oracle_in_every_form(X):
    expected = [share(sample) for sample in X.tolist()]
    assert content_shares(X).tolist() == expected
    assert content_shares(np.asfortranarray(X)).tolist() == expected
    assert content_shares(X[::-1])[::-1].tolist() == expected
    for container in (sp.csr_array, sp.csc_matrix, sp.coo_array):
        assert content_shares(container(X)).tolist() == expected
    columns = np.tile(np.arange(X.shape[1]), len(X))
    ends = np.arange(len(X) + 1) * X.shape[1]
    with_zeros = sp.csr_array((X.ravel(), columns, ends), shape=X.shape)
    assert content_shares(with_zeros).tolist() == expected


def test_entries_in_parts_and_in_any_order_are_one_entry():
    values = np.array([1.0, 2.0, 0.25, 3.0])
    columns = np.array([2, 0, 2, 1])
    split = sp.csr_array((values, columns, np.array([0, 3, 4])), shape=(2, 3))
    assert content_shares(split).tolist() == [
        share([2.0, 0.0, 1.25]),
        share([0.0, 3.0, 0.0]),
    ]
    assert split.nnz == 4  # the caller's array is as it was


def pool(n_per_class, d=4, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(n_per_class)), n_per_class))
    return rng.normal(size=(len(y), d)), y


@given(st.integers(0, 2**32 - 1), st.integers(1, 400))
def test_every_split_in_every_form_and_batch_keeps_the_same_samples(seed, n_samples):
    sizes = np.array([300, 40, 0, 7])
    X, y = pool(sizes, seed=seed)
    party = np.random.default_rng(seed).integers(0, 5, len(y))  # the last is empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subsample, "N_LEFT_OUT", n_samples)
        expected = subsample_mask(X, y, sizes)
        patch.setattr(subsample, "_BATCH", 12)
        for mine in (party == k for k in range(6)):
            assert_array_equal(subsample_mask(X[mine], y[mine], sizes), expected[mine])
            assert_array_equal(
                subsample_mask(sp.csr_array(X[mine]), y[mine], sizes),
                expected[mine],
            )


def test_small_classes_are_kept_whole_and_the_size_is_about_the_one_set(monkeypatch):
    sizes = np.array([20000, 6000, 900, 0, 30])
    X, y = pool(sizes)
    monkeypatch.setattr(subsample, "N_LEFT_OUT", 4000)
    sizes_kept = np.bincount(y[subsample_mask(X, y, sizes)], minlength=5)
    assert sizes_kept[2:].tolist() == [900, 0, 30]
    for label in (0, 1):
        spread = np.sqrt(1000 * (1 - 1000 / sizes[label]))
        assert abs(sizes_kept[label] - 1000) < 5 * spread
    monkeypatch.setattr(subsample, "N_LEFT_OUT", 4 * 20000)
    assert subsample_mask(X, y, sizes).all()


@pytest.mark.parametrize("d", [1, 3])
def test_shares_are_uniform(d):
    from scipy.stats import chisquare, kstest

    shares = content_shares(np.random.default_rng(1).normal(size=(20000, d)))
    assert kstest(shares, "uniform").pvalue > 1e-4
    # Small integers differ in few bits.
    grid = np.stack(np.meshgrid(*[np.arange(1, 28)] * 3), -1).reshape(-1, 3)
    counts = np.bincount((content_shares(grid) * 64).astype(int), minlength=64)
    assert chisquare(counts).pvalue > 1e-4
