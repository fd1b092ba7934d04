"""HashSpec and FlyHash against the plain oracle, and the laws of the hash."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from math import comb

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn._validation import n_threads
from flwr_flynn.errors import ConfigError, DataError, SpecError
from flwr_flynn.hashing.philox import philox
from tests import oracle
from tests.raising import raises
from tests.strategies import ELEMENTS, cases, coded_cases, coded_specs, specs

FLOAT32 = "values whose sums fit float32 (rescale the features)"
NOT_FINITE = {"got": "NaN or infinity in 1 of 10 features"}
SPEC = HashSpec(n_features=10, hash_dim=300, row_nnz=3, hash_nnz=7, seed=5)


KINDS = pytest.mark.parametrize("kind", [cases(), coded_cases()], ids=["plain", "codes"])


@KINDS
@given(data=st.data())
def test_hash_agrees_with_the_oracle(kind, data):
    spec, X = data.draw(kind)
    hasher = FlyHash(spec)
    expected = oracle.hashes(X, hasher)
    np.testing.assert_array_equal(hasher.active(X), expected)


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("signed", [False, True])
def test_hash_agrees_with_the_oracle_where_every_stage_of_selection_runs(kind, signed):
    # m is large beside hash_nnz, so lists fill up, thresholds rise and lists are cut down several times.
    generator = np.random.default_rng(3)
    dtype = ELEMENTS[kind][0]
    X = {
        "bool": lambda: generator.random((70, 12)) < 0.5,
        "uint8": lambda: generator.integers(0, 256, (70, 12)),
        "binary": lambda: generator.integers(0, 2, (70, 12)),
        "int8": lambda: generator.integers(-128, 128, (70, 12)),
        "int16": lambda: generator.integers(-3000, 3000, (70, 12)),
        "int64": lambda: generator.integers(-(2**50), 2**50, (70, 12)),
        "uint64": lambda: generator.integers(0, 2**40, (70, 12)),
        "whole floats": lambda: generator.integers(-9, 9, (70, 12)),
        "wide whole floats": lambda: generator.integers(-(2**30), 2**30, (70, 12)),
        "mixed floats": lambda: generator.integers(-(2**30), 2**30, (70, 12)) * generator.choice([1.0, 0.5], (70, 1)),
        "float32": lambda: generator.normal(size=(70, 12)),
        "float64": lambda: generator.normal(size=(70, 12)) ** 3,
        "float16": lambda: generator.normal(size=(70, 12)),
    }[kind]().astype(dtype)
    X[1] = X[0, 0]  # a constant point: all sums tie when unsigned
    X[2] = 0
    hasher = FlyHash(HashSpec(12, 2000, 5, 6, seed=9, signed=signed))
    np.testing.assert_array_equal(hasher.active(X), oracle.active(X, hasher.rows, 6, hasher.signs))


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64, np.float32])
@pytest.mark.parametrize(("copies", "hash_nnz"), [(1, 5), (32, 5), (32, 40), (40, 90)])
def test_selection_survives_rows_in_the_worst_order(order, dtype, copies, hash_nnz):
    # Sums that only rise raise every threshold at every row. Sums that only fall make the first rows no fair sample.
    rows = np.repeat(np.arange(120), copies)[:, None]
    if order == "descending":
        rows = rows[::-1]
    hasher = FlyHash.from_rows(rows, n_features=120, hash_nnz=hash_nnz)
    x = np.arange(120).astype(dtype)[None]
    if dtype == np.int16:
        x = x * 250
    if dtype == np.int64:
        x = x * 2**40
    np.testing.assert_array_equal(hasher.active(x), oracle.active(x, hasher.rows, hash_nnz))


FLOATS = {
    "normal": lambda g: g.normal(size=(66, 20)),
    "heavy tails": lambda g: g.standard_cauchy((66, 20)) ** 3,
    "one giant": lambda g: np.where(np.arange(20) == 3, 1e20, g.normal(size=(66, 20))),
    "far from zero": lambda g: 1e6 + g.normal(size=(66, 20)),
    "nearly equal": lambda g: 1.0 + 1e-7 * g.integers(0, 3, (66, 20)),
    "few levels": lambda g: g.integers(0, 3, (66, 20)) / 3,
    "tiny": lambda g: 1e-42 * g.normal(size=(66, 20)),
    "mixed kinds of point": lambda g: g.normal(size=(66, 20)) * 10.0 ** g.integers(-30, 30, (66, 1)),
}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", FLOATS)
def test_approximation_never_decides_a_winner(kind, signed):
    X = FLOATS[kind](np.random.default_rng(8)).astype(np.float32)
    hasher = FlyHash(HashSpec(20, 3000, 6, 5, seed=2, signed=signed))
    np.testing.assert_array_equal(hasher.active(X), oracle.active(X, hasher.rows, 5, hasher.signs))


@KINDS
@given(data=st.data(), cut=st.integers(0, 4))
def test_winners_do_not_depend_on_batch_order_layout_threads_or_sparsity(kind, data, cut):
    spec, X = data.draw(kind)
    hasher = FlyHash(spec)
    expected = hasher.active(X)
    np.testing.assert_array_equal(np.concatenate([hasher.active(X[:cut]), hasher.active(X[cut:])]), expected)
    np.testing.assert_array_equal(hasher.active(np.asfortranarray(X)), expected)
    np.testing.assert_array_equal(hasher.active(X[::-1])[::-1], expected)
    np.testing.assert_array_equal(hasher.active(X, n_jobs=2), expected)
    if X.dtype != np.float16:
        for container in (sp.csr_array, sp.csc_matrix, sp.coo_array):
            np.testing.assert_array_equal(hasher.active(container(X)), expected)


def test_threads_and_chunks_change_nothing_on_many_points():
    generator = np.random.default_rng(0)
    X = generator.integers(0, 17, (2500, 10))
    X[1200:1300] *= 10**6
    y = generator.integers(0, 3, 2500)
    hasher = FlyHash(SPEC)
    one = hasher.active(X)
    np.testing.assert_array_equal(hasher.active(X, n_jobs=3), one)
    np.testing.assert_array_equal(np.concatenate([hasher.active(X[i : i + 7]) for i in range(0, 2500, 7)]), one)
    counts = oracle.count(one, y, 3, 300)
    np.testing.assert_array_equal(hasher.count(X, y, 3), counts)
    done: list[int] = []
    np.testing.assert_array_equal(hasher.count(X, y, 3, n_jobs=4, progress=done.append), counts)
    assert sum(done) == len(X)
    np.testing.assert_array_equal(hasher.count(sp.csr_array(X), y, 3, n_jobs=-1), counts)


@given(cases(kinds=("binary", "uint8", "whole floats", "int16"), plain=True), st.integers(-40, 40))
def test_winners_do_not_change_when_a_point_is_scaled_by_a_power_of_two(case, exponent):
    # Of values that float32 can add without rounding. Where it cannot, being whole makes a difference: see FlyHash.
    spec, X = case
    X = X.astype(np.float64)
    hasher = FlyHash(spec)
    np.testing.assert_array_equal(hasher.active(X * 2.0**exponent), hasher.active(X))


def test_sums_that_only_float32_rounding_carries_beyond_its_range_are_refused():
    X = np.full((64, 20), -1.7014116e37, np.float32)  # 20 of them are within the range, added one by one they are not
    hasher = FlyHash(HashSpec(20, 40, 20, 3, 0))
    for points in (X, -X):
        with raises(DataError, field="X", expected=FLOAT32):
            hasher.count(points, np.zeros(64, int), 1)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_wide_sparse_points_hash_as_dense_ones(signed, scale):
    d = 40_000
    generator = np.random.default_rng(6)
    dense = np.zeros((70, d))
    for point in dense:
        point[generator.integers(0, 300, 12)] = generator.normal(size=12)
    spec = HashSpec(d, 200, 5000, 4, seed=1, signed=signed, scale=None if scale is None else (scale,) * d)
    hasher = FlyHash(spec)
    np.testing.assert_array_equal(hasher.active(sp.csr_array(dense)), hasher.active(dense))
    np.testing.assert_array_equal(hasher.active(sp.csr_array((3, d))), hasher.active(np.zeros((3, d))))


@given(cases(kinds=("binary",), plain=True))
def test_every_dtype_that_holds_the_points_gives_the_same_winners(case):
    spec, X = case
    hasher = FlyHash(spec)
    for dtype in (
        bool,
        np.int8,
        np.uint16,
        np.int32,
        np.int64,
        np.uint64,
        np.float16,
        np.float32,
        np.float64,
        np.longdouble,
    ):
        np.testing.assert_array_equal(hasher.active(X.astype(dtype)), hasher.active(X))


def test_wide_whole_numbers_are_exact_in_floats_too():
    X = np.array([[2**30, 2**30 + 1, 2**30 - 1, 5]])
    hasher = FlyHash(HashSpec(4, 40, 2, 3, seed=0))
    np.testing.assert_array_equal(hasher.active(X.astype(np.float64)), hasher.active(X))
    np.testing.assert_array_equal(hasher.active(X), oracle.active(X, hasher.rows, 3))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("offset", [0, -150, 10**9])
@pytest.mark.parametrize("span", [1, 40, 200, 3000, 6000, 20000, 10**7])
def test_whole_numbers_of_every_range(span, offset, signed):
    # Every way in which whole numbers travel, with points that tie everywhere among them.
    X = np.random.default_rng(1).integers(0, span + 1, (70, 10)) + offset
    X[3] = X[3, 0]
    hasher = FlyHash(HashSpec(10, 900, 3, 7, seed=5, signed=signed))
    expected = oracle.active(X, hasher.rows, 7, hasher.signs)
    np.testing.assert_array_equal(hasher.active(X), expected)
    np.testing.assert_array_equal(hasher.active(X.astype(np.float64)), expected)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_philox_known_answers():
    # From the kat_vectors file of the authors' Random123 library.
    words = np.empty(4, np.uint64)
    philox(words, np.uint64(0), 0, 0, 0)
    assert [int(word) for word in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert oracle.philox((0, 0, 0, 0), (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


# Pinned on purpose: a change here means that models of different versions no longer fit together.
GOLDEN = [
    (
        HashSpec(5, 4, 3, 2, seed=0),
        [[1, 3, 4], [1, 2, 3], [0, 1, 3], [1, 2, 3]],
        None,
        "79fc76ee7b817ace57acb5980d36a332ada3c917153d171df94733d17ecdb517",
    ),
    (
        HashSpec(300, 3, 4, 2, seed=2**64 - 1, signed=True),
        [[24, 40, 133, 186], [33, 75, 155, 280], [59, 114, 117, 197]],
        [[-1, 1, -1, -1], [-1, 1, -1, -1], [-1, -1, 1, 1]],
        "4a51c7f205a6686ee8c9bfb4186965b1eb41673127529a9d9b8b753bc4136b6b",
    ),
    (
        HashSpec(2, 3, 4, 2, seed=9, n_waves=7, wave_frequency=0.25),
        [[2, 3, 5, 6], [0, 3, 4, 5], [0, 1, 2, 5]],
        None,
        "1eb6dd6b408de93dd68f6f7e65f6a2d7e83e3ccafab65e2230b017b038bf88a4",
    ),
]


@pytest.mark.parametrize(("spec", "rows", "signs", "fingerprint"), GOLDEN)
def test_golden_rows(spec, rows, signs, fingerprint):
    hasher = FlyHash(spec)
    assert hasher.rows.tolist() == rows
    assert signs is None or hasher.signs.tolist() == signs
    assert hasher.fingerprint == fingerprint


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 3, 2**64 - 1])
@pytest.mark.parametrize(("d", "s"), [(1, 1), (5, 5), (64, 19), (130, 65), (1000, 200)])
def test_rows_and_signs_follow_the_written_generator(seed, d, s):
    hasher = FlyHash(HashSpec(d, 6, s, 1, seed=seed, signed=True))
    for row in range(6):
        assert hasher.rows[row].tolist() == oracle.draw_row(seed, row, d, s)
        assert hasher.signs[row].tolist() == oracle.draw_signs(seed, row, s)


@given(coded_specs(3, max_dim=12))
def test_weighted_rows_follow_the_written_generator(spec):
    weights = spec.row_weights or (7, 1, 255)
    row_nnz = min(spec.row_nnz, (spec.n_inputs + 1) // 2)
    hasher = FlyHash(replace(spec, row_weights=weights, row_nnz=row_nnz))
    for row in range(spec.hash_dim):
        assert hasher.rows[row].tolist() == oracle.draw_weighted_row(spec.seed, row, weights, spec.n_codes, row_nnz)
        assert not spec.signed or hasher.signs[row].tolist() == oracle.draw_signs(spec.seed, row, row_nnz)


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 3, 2**64 - 1])
@pytest.mark.parametrize(("d", "s"), [(1, 1), (5, 3), (64, 19), (1000, 200)])
def test_weighted_rows_without_codes_follow_the_written_generator(seed, d, s):
    weights = [1 + 37 * j % 255 for j in range(d)]
    hasher = FlyHash(HashSpec(d, 6, s, 1, seed=seed, row_weights=weights))
    for row in range(6):
        assert hasher.rows[row].tolist() == oracle.draw_weighted_row(seed, row, weights, 1, s)


def test_more_weighted_rows_extend_fewer():
    spec = HashSpec(5, 40, 2, 1, seed=4, row_weights=[1, 2, 3, 4, 5])
    np.testing.assert_array_equal(FlyHash(replace(spec, hash_dim=90)).rows[:40], FlyHash(spec).rows)


@pytest.mark.parametrize("n_codes", [1, 3])
def test_weighted_rows_draw_features_in_proportion_to_their_weights(n_codes):
    from scipy.stats import chisquare

    weights = np.array([1, 2, 40, 255, 100, 3])
    coding = {} if n_codes == 1 else {"coding": "steps", "n_codes": n_codes, "edges": [[0.0]] * 6}
    spec = HashSpec(6, 60000, 1, 1, seed=11, row_weights=weights.tolist(), **coding)
    observed = np.bincount(FlyHash(spec).rows[:, 0], minlength=6 * n_codes)
    expected = np.repeat(weights / weights.sum() / n_codes, n_codes) * 60000
    assert chisquare(observed, expected).pvalue > 1e-4
    # Of two, drawn one after the other without putting the first back.
    p = weights / weights.sum()
    pairs = np.outer(p, p / 1.0) / (1 - p)[:, None]
    pairs = np.triu(pairs + pairs.T, 1)
    rows = FlyHash(HashSpec(6, 60000, 2, 1, seed=12, row_weights=weights.tolist())).rows
    table = np.zeros((6, 6))
    np.add.at(table, (rows[:, 0], rows[:, 1]), 1)
    upper = np.triu_indices(6, 1)
    assert chisquare(table[upper], pairs[upper] * 60000).pvalue > 1e-4


@given(specs(9))
def test_rows_are_ascending_subsets_that_depend_on_seed_and_row_alone(spec):
    hasher = FlyHash(spec)
    assert hasher.rows.shape == (spec.hash_dim, spec.row_nnz)
    assert 0 <= hasher.rows.min() <= hasher.rows.max() < spec.n_inputs
    assert (np.diff(hasher.rows, axis=1) > 0).all()
    longer = FlyHash(HashSpec(spec.n_inputs, spec.hash_dim + 5, spec.row_nnz, spec.hash_nnz, spec.seed, spec.signed))
    np.testing.assert_array_equal(longer.rows[: spec.hash_dim], hasher.rows)
    if spec.signed:
        np.testing.assert_array_equal(longer.signs[: spec.hash_dim], hasher.signs)
        assert set(np.unique(hasher.signs)) <= {-1, 1}


@pytest.mark.parametrize(("d", "s"), [(6, 1), (6, 2), (6, 3), (6, 5), (70, 1)])
def test_rows_are_uniform_over_all_subsets(d, s):
    from scipy.stats import chisquare

    rows = FlyHash(HashSpec(d, 60000, s, 1, seed=11)).rows
    _, observed = np.unique(rows, axis=0, return_counts=True)
    assert len(observed) == comb(d, s)
    assert chisquare(observed).pvalue > 1e-4


def test_signs_are_fair_and_independent_of_position():
    from scipy.stats import chisquare

    signs = FlyHash(HashSpec(200, 20000, 150, 1, seed=4, signed=True)).signs
    positive = (signs > 0).sum(axis=0)
    assert chisquare([positive.sum(), signs.size - positive.sum()]).pvalue > 1e-4
    assert (np.abs(positive - 10000) < 5 * np.sqrt(5000)).all()


def test_rows_are_the_same_in_another_process():
    code = "from flwr_flynn import FlyHash, HashSpec;print(FlyHash(HashSpec(10, 300, 3, 7, seed=5)).fingerprint)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == FlyHash(SPEC).fingerprint


def test_rows_and_signs_are_read_only():
    hasher = FlyHash(HashSpec(4, 8, 2, 2, seed=0, signed=True))
    for array in (hasher.rows, hasher.signs):
        assert not array.flags.writeable


# --- given rows, bad input --------------------------------------------------------------------------------------------


def test_given_rows_hash_like_drawn_ones():
    drawn = FlyHash(HashSpec(10, 300, 3, 7, seed=5, signed=True))
    given_rows = FlyHash.from_rows(drawn.rows, 10, 7, drawn.signs)
    X = np.random.default_rng(0).normal(size=(20, 10))
    np.testing.assert_array_equal(given_rows.active(X), drawn.active(X))
    assert given_rows.spec is None
    assert given_rows.fingerprint != drawn.fingerprint
    assert pickle.loads(pickle.dumps(given_rows)).fingerprint == given_rows.fingerprint
    assert pickle.loads(pickle.dumps(drawn)).fingerprint == drawn.fingerprint


@pytest.mark.parametrize("rows", [[0, 1], [[0.5]], np.empty((0, 2), int), [[1, 0]], [[1, 1]], [[0, 10]], [[-1, 0]]])
def test_bad_rows_are_refused(rows):
    with pytest.raises(SpecError):
        FlyHash.from_rows(rows, n_features=10, hash_nnz=1)


@pytest.mark.parametrize(
    ("X", "facts"),
    [
        (np.zeros(10), {"got": "shape (10,)"}),
        (np.zeros((2, 9)), {"got": "shape (2, 9)"}),
        (np.zeros((2, 10), complex), {"got": "dtype complex128"}),
        ([[0.0] * 10, [0.0] * 9], {"got": "rows of different lengths"}),
        (np.full((2, 10), "a"), {"got": "dtype <U1"}),
        (np.array([[np.nan] + [0.0] * 9]), NOT_FINITE),
        (np.array([[np.inf] + [0.0] * 9]), NOT_FINITE),
        (sp.csr_array(np.array([[np.nan] + [0.0] * 9])), NOT_FINITE),
        (np.full((1, 10), 2e38, np.float64), {"expected": FLOAT32}),
        (np.full((1, 10), 1e300), {"expected": FLOAT32}),
    ],
)
def test_bad_points_are_refused(X, facts):
    hasher = FlyHash(SPEC)
    with raises(DataError, field="X", **facts):
        hasher.active(X)
    with raises(DataError, field="X", **facts):
        hasher.count(X, np.zeros(X.shape[0] if hasattr(X, "shape") else len(X), int), 1)


@pytest.mark.parametrize("n_classes", [0, -1, 2.0, True])
def test_bad_numbers_of_classes_are_refused(n_classes):
    with raises(DataError, field="n_classes", got=repr(n_classes)):
        FlyHash(SPEC).count(np.zeros((2, 10)), [0, 0], n_classes)


@pytest.mark.parametrize("y", [[0], [0, 3], [0, -1], [0.0, 1.0], [[0, 1]]])
def test_bad_class_numbers_are_refused(y):
    with raises(DataError, field="y", expected="2 class indices from 0 to 2"):
        FlyHash(SPEC).count(np.zeros((2, 10)), y, 3)


def test_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert n_threads(None) == 1
    assert n_threads(3) == 3
    assert n_threads(-1) == 1
    for odd in ("", "²", "x"):
        monkeypatch.setenv("OMP_NUM_THREADS", odd)
        assert n_threads(-1) >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1,2")
    assert n_threads(-1) == 1
    for bad in (0, True, 1.5):
        with raises(ConfigError, field="n_jobs", got=bad):
            n_threads(bad)
