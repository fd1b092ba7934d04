"""The pieces of the kernels that can be looked at alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flwr_flynn.hashing import winner_kernels
from flwr_flynn.hashing.batching import batches


@pytest.mark.parametrize("signed", [False, True])
@given(
    X=hnp.arrays(np.float32, (3, 6), elements=st.floats(-1e6, 1e6, width=32)),
    row_nnz=st.integers(1, 6),
    levels=st.sampled_from([1, 7, 255, 5461]),
)
def test_slack_covers_what_the_approximation_does_to_sums(signed, X, row_nnz, levels):
    approximation = np.empty(X.shape, np.int64)
    slack = np.empty(3, np.int64)
    crowding = np.empty(3)
    winner_kernels.approximate(
        X, row_nnz, signed, levels, approximation, slack, crowding
    )
    assert approximation.min() >= 0
    assert approximation.max() <= levels
    generator = np.random.default_rng(0)
    for x, q, margin in zip(X, approximation, slack, strict=True):
        rows = np.stack([generator.permutation(6)[:row_nnz] for _ in range(20)])
        if signed:
            signs = generator.choice([-1, 1], rows.shape)
        else:
            signs = np.ones(rows.shape, np.int64)
        exact = np.zeros(20, np.float32)
        coarse = np.zeros(20, np.int64)
        for k in range(row_nnz):
            exact = exact + x[rows[:, k]] * signs[:, k].astype(np.float32)
            coarse += np.where(signs[:, k] > 0, q[rows[:, k]], levels - q[rows[:, k]])
        if not x.any():
            # All sums are equal, and the caller does not approximate such a point.
            continue
        for a in range(20):
            for b in range(20):
                assert coarse[a] > coarse[b] - margin or exact[a] < exact[b]


@given(st.integers(0, 100), st.integers(1, 40))
def test_batches_have_every_sample_once_and_in_order(n, size):
    slices = [list(range(n))[part] for part in batches(n, size)]
    assert [i for part in slices for i in part] == list(range(n))
    assert all(0 < len(part) <= size for part in slices)
