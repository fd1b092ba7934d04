"""Graded responses follow the written rule, in whole numbers.

The form and the length of a sample make no difference.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn.errors import DataError
from flwr_flynn.hashing import graded
from tests.memory import traced
from tests.raising import raises

SPECS = [
    HashSpec(5, 12, 2, 3, seed=1),
    HashSpec(5, 12, 3, 1, seed=2, signed=True),
    HashSpec(
        5,
        7,
        1,
        7,
        seed=3,
        signed=True,
        center=(0.5,) * 5,
        scale=(1.0, 2.0, 0.1, 1e3, 7.0),
    ),
    HashSpec(5, 30, 4, 9, seed=4, signed=True, n_waves=6, wave_frequency=0.25),
    HashSpec(
        5,
        20,
        3,
        5,
        seed=5,
        signed=True,
        coding="bumps",
        n_codes=4,
        edges=((-1.0, 0.0, 0.0, 2.5),) * 5,
    ),
]
SAMPLES = hnp.arrays(
    np.float64, st.tuples(st.integers(0, 6), st.just(5)), elements=st.floats(-1e6, 1e6)
)


def by_the_rule(hasher: FlyHash, inputs: np.ndarray) -> list[list[int]]:
    """Grades of one sample after the other, in Python's integers."""
    rows = []
    for x in inputs.tolist():
        largest = max(map(abs, x)) or 1.0
        # Halves go to even numbers, as with rint.
        levels = [round(value / largest * 1023) for value in x]
        if hasher.signs is None:
            signs = np.ones(hasher.rows.shape, int)
        else:
            signs = hasher.signs
        pairs = zip(hasher.rows.tolist(), signs.tolist(), strict=True)
        sums = [
            sum(sign * levels[column] for column, sign in zip(*pair, strict=True))
            for pair in pairs
        ]
        if hasher.hash_nnz < len(sums):
            least = sorted(sums, reverse=True)[hasher.hash_nnz]
        else:
            least = min(sums)
        excess = [max(total - least, 0) for total in sums]
        highest = max(excess) or 1
        rows.append([(30 * height + highest) // (2 * highest) for height in excess])
    return rows


def inputs_of(spec: HashSpec, X: np.ndarray) -> np.ndarray:
    hasher = FlyHash(spec)
    if hasher._features is not None:
        return hasher._features(X)
    center, scale = (
        0.0 if v is None else np.array(v)
        for v in (spec.center, spec.scale or (1.0,) * 5)
    )
    return ((X - center) * scale).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
@given(SAMPLES)
@example(np.zeros((2, 5)))
def test_grades_follow_the_written_rule(spec, X):
    hasher = FlyHash(spec)
    grades = hasher.graded(X)
    assert grades.dtype == np.uint8
    assert grades.shape == (len(X), spec.hash_dim)
    assert grades.tolist() == by_the_rule(hasher, inputs_of(spec, X))
    assert ((grades > 0).sum(axis=1) <= spec.hash_nnz).all()


def test_rows_of_many_entries_have_exact_sums_too():
    spec = HashSpec(600, 8, 500, 2, seed=1, signed=True)
    X = np.random.default_rng(2).normal(size=(5, 600)).astype(np.float32)
    assert FlyHash(spec).graded(X).tolist() == by_the_rule(
        FlyHash(spec), X.astype(float)
    )


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_form_dtype_batches_and_threads_make_no_difference(spec, monkeypatch):
    X = np.random.default_rng(0).integers(-9, 9, (700, 5))
    hasher = FlyHash(spec)
    expected = hasher.graded(X)
    for same in (
        X.astype(np.int8),
        X.astype(float),
        X.astype(np.float32),
        sp.csr_array(X),
        X.tolist(),
    ):
        assert_array_equal(hasher.graded(same), expected)
    assert_array_equal(hasher.graded(X, n_jobs=2), expected)
    monkeypatch.setattr(graded, "_SUMS", 50)
    assert_array_equal(hasher.graded(X), expected)


@pytest.mark.parametrize("scale", [None, (3.0,) * 50_000])
@pytest.mark.parametrize("signed", [False, True])
def test_wide_sparse_samples_have_the_grades_of_dense_ones_in_little_memory(
    signed, scale
):
    spec = HashSpec(50_000, 20, 5_000, 4, seed=1, signed=signed, scale=scale)
    X = sp.random_array(
        (64, 50_000), density=1e-4, format="csr", rng=np.random.default_rng(0)
    )
    X = sp.csr_array(sp.vstack([X, 0 * X[:2]]))
    hasher = FlyHash(spec)
    expected = hasher.graded(X.toarray())
    with traced() as memory:
        assert_array_equal(hasher.graded(X), expected)
    assert memory.peak < 2**22
    assert expected[:64].any(axis=1).sum() > 60
    assert not hasher.graded(0 * X).any()
    with raises(DataError, field="X"):
        hasher.graded(X * np.nan)
