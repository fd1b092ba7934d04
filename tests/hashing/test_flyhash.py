"""HashSpec and FlyHash against the plain oracle, and the laws of the hash."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn._validation import n_threads
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.hashing.batching import _integer_samples
from flwr_flynn.hashing.philox import philox
from tests import oracle
from tests.raising import raises
from tests.strategies import cases, coded_cases, coded_specs

FLOAT32 = "values whose sums fit float32 (rescale the features)"
SPEC = HashSpec(n_features=10, hash_dim=300, row_nnz=3, hash_nnz=7, seed=5)


KINDS = pytest.mark.parametrize(
    "kind", [cases(), coded_cases()], ids=["plain", "codes"]
)


@KINDS
@given(data=st.data())
def test_hash_agrees_with_the_oracle(kind, data):
    spec, X = data.draw(kind)
    hasher = FlyHash(spec)
    expected = oracle.hashes(X, hasher)
    np.testing.assert_array_equal(hasher.active(X), expected)


SHAPE = (70, 12)
Draw = Callable[[np.random.Generator], np.ndarray]


def integers(low: int, high: int) -> Draw:
    """Draw integers from `low` to below `high`."""
    return lambda g: g.integers(low, high, SHAPE)


SPANS = {
    f"{dtype} of {span} from {offset}": (integers(offset, offset + span + 1), dtype)
    for span in (1, 40, 200, 3000, 6000, 20000, 10**7)
    for offset in (0, -150, 10**9)
    for dtype in ("i8", "f8")
}
MANY = {
    "bool": (integers(0, 2), "bool"),
    "all u1": (integers(0, 256), "u1"),
    "u1 of two": (integers(0, 2), "u1"),
    "all i1": (integers(-128, 128), "i1"),
    "i2": (integers(-3000, 3000), "i2"),
    "large i8": (integers(-(2**50), 2**50), "i8"),
    "large u8": (integers(0, 2**40), "u8"),
    "small f8": (integers(-9, 9), "f8"),
    "large f8": (integers(-(2**30), 2**30), "f8"),
    **SPANS,
    "mixed floats": (
        lambda g: g.integers(-(2**30), 2**30, SHAPE) * g.choice([1.0, 0.5], (70, 1)),
        "f8",
    ),
    "half floats": (lambda g: g.normal(size=SHAPE), "f2"),
    "double floats": (lambda g: g.normal(size=SHAPE) ** 3, "f8"),
    "normal": (lambda g: g.normal(size=SHAPE), "f4"),
    "heavy tails": (lambda g: g.standard_cauchy(SHAPE) ** 3, "f4"),
    "one giant": (
        lambda g: np.where(np.arange(12) == 3, 1e20, g.normal(size=SHAPE)),
        "f4",
    ),
    "far from zero": (lambda g: 1e6 + g.normal(size=SHAPE), "f4"),
    "nearly equal": (lambda g: 1.0 + 1e-7 * g.integers(0, 3, SHAPE), "f4"),
    "few levels": (lambda g: g.integers(0, 3, SHAPE) / 3, "f4"),
    "tiny": (lambda g: 1e-42 * g.normal(size=SHAPE), "f4"),
    "mixed kinds of point": (
        lambda g: g.normal(size=SHAPE) * 10.0 ** g.integers(-30, 30, (70, 1)),
        "f4",
    ),
}
"""Samples, and the types that they get."""


def stages():
    """Kinds of samples, with and without signs; of spans half of them are slow."""
    for kind, signed in product(MANY, [False, True]):
        marks = []
        if kind in SPANS and signed != kind.startswith("i8"):
            marks = [pytest.mark.slow]
        yield pytest.param(kind, signed, marks=marks)


@pytest.mark.parametrize(("kind", "signed"), [*stages()])
def test_hash_agrees_with_the_oracle_where_every_stage_of_selection_runs(kind, signed):
    # m is large beside hash_nnz, so lists fill up, thresholds rise and lists are cut
    # down several times.
    draw, dtype = MANY[kind]
    X = draw(np.random.default_rng(3)).astype(dtype)
    X[1] = X[0, 0]  # a constant point: all sums tie when unsigned
    X[2] = 0
    hasher = FlyHash(HashSpec(12, 2000, 5, 6, seed=9, signed=signed))
    np.testing.assert_array_equal(
        hasher.active(X), oracle.active(X, hasher.rows, 6, hasher.signs)
    )


@pytest.mark.parametrize("order", [1, -1], ids=["ascending", "descending"])
@pytest.mark.parametrize(
    ("dtype", "factor"), [("i1", 1), ("u1", 1), ("i2", 250), ("i8", 2**40), ("f4", 1)]
)
@pytest.mark.parametrize(("copies", "hash_nnz"), [(1, 5), (32, 5), (32, 40), (40, 90)])
def test_selection_survives_rows_in_the_worst_order(
    order, dtype, factor, copies, hash_nnz
):
    # Sums that only rise raise every threshold at every row. Sums that only fall make
    # the first rows no fair sample.
    rows = np.repeat(np.arange(120), copies)[::order, None]
    hasher = FlyHash.from_rows(rows, n_features=120, hash_nnz=hash_nnz)
    x = np.arange(120).astype(dtype)[None] * np.array(factor, dtype)
    np.testing.assert_array_equal(
        hasher.active(x), oracle.active(x, hasher.rows, hash_nnz)
    )


@KINDS
@given(data=st.data(), cut=st.integers(0, 4))
def test_winners_do_not_depend_on_batch_order_layout_threads_or_sparsity(
    kind, data, cut
):
    spec, X = data.draw(kind)
    hasher = FlyHash(spec)
    expected = hasher.active(X)
    np.testing.assert_array_equal(
        np.concatenate([hasher.active(X[:cut]), hasher.active(X[cut:])]), expected
    )
    np.testing.assert_array_equal(hasher.active(np.asfortranarray(X)), expected)
    np.testing.assert_array_equal(hasher.active(X[::-1])[::-1], expected)
    np.testing.assert_array_equal(hasher.active(X, n_jobs=2), expected)
    if X.dtype != np.float16:
        for container in (sp.csr_array, sp.csc_matrix, sp.coo_array):
            np.testing.assert_array_equal(hasher.active(container(X)), expected)


def many_points():
    generator = np.random.default_rng(0)
    X = generator.integers(0, 17, (2500, 10))
    X[1200:1300] *= 10**6
    return SPEC, X


def many_tails():
    X = np.random.default_rng(0).standard_cauchy((3000, 7)) ** 3
    coded = {
        "coding": "bumps",
        "n_codes": 5,
        "edges": np.sort(X[:32], axis=0).T.tolist(),
        "row_weights": range(1, 8),
    }
    return HashSpec(7, 300, 6, 8, 1, signed=True, **coded), X


@pytest.mark.parametrize("many", [many_points, many_tails])
def test_threads_and_chunks_change_nothing_on_many_points(many):
    spec, X = many()
    y = np.random.default_rng(1).integers(0, 3, len(X))
    hasher = FlyHash(spec)
    one = hasher.active(X)
    np.testing.assert_array_equal(one[::100], oracle.hashes(X[::100], hasher))
    np.testing.assert_array_equal(hasher.active(X, n_jobs=3), one)
    np.testing.assert_array_equal(
        np.concatenate([hasher.active(X[i : i + 7]) for i in range(0, len(X), 7)]), one
    )
    counts = oracle.count(one, y, 3, 300)
    done: list[int] = []
    np.testing.assert_array_equal(
        hasher.count(X, y, 3, n_jobs=4, progress=done.append), counts
    )
    assert sum(done) == len(X)
    np.testing.assert_array_equal(hasher.count(X, y, 3), counts)
    np.testing.assert_array_equal(
        hasher.count(sp.csr_array(X), y, 3, n_jobs=-1), counts
    )


def test_sums_that_only_float32_rounding_carries_beyond_its_range_are_refused():
    # The sum of 20 of them is within the range; added one by one they leave it.
    X = np.full((64, 20), -1.7014116e37, np.float32)
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
    if scale is not None:
        scale = (scale,) * d
    spec = HashSpec(d, 200, 5000, 4, seed=1, signed=signed, scale=scale)
    hasher = FlyHash(spec)
    np.testing.assert_array_equal(
        hasher.active(sp.csr_array(dense)), hasher.active(dense)
    )
    np.testing.assert_array_equal(
        hasher.active(sp.csr_array((3, d))), hasher.active(np.zeros((3, d)))
    )


# --- rows -----------------------------------------------------------------------------


KNOWN = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
"""An answer in the kat_vectors file of the authors' Random123 library."""


def test_philox_known_answers():
    words = np.empty(4, np.uint64)
    philox(words, *np.zeros(4, np.uint64))
    assert [int(word) for word in words] == KNOWN
    assert oracle.philox((0, 0, 0, 0), (0, 0)) == KNOWN


GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
"""Pinned on purpose: a change there means that models of different versions no longer
fit together."""


@pytest.mark.parametrize("golden", GOLDEN.values(), ids=GOLDEN)
def test_golden_values(golden):
    hasher = FlyHash(HashSpec.from_dict(golden["spec"]))
    X = np.array(golden.get("samples", []), float)
    made = {
        "fingerprint": lambda: hasher.fingerprint,
        "signs": lambda: hasher.signs.tolist(),
        "rows": lambda: hasher.rows[: len(golden["rows"])].tolist(),
        "active": lambda: hasher.active(X).tolist(),
        "inputs": lambda: hasher._features(X)[:1].tolist(),
    }
    names = golden.keys() - {"spec", "samples"}
    assert names <= made.keys()
    for name in names:
        assert made[name]() == golden[name], name


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 3, 2**64 - 1])
@pytest.mark.parametrize(
    ("d", "s"), [(1, 1), (5, 3), (5, 5), (64, 19), (130, 65), (1000, 200)]
)
def test_rows_and_signs_follow_the_written_generator(seed, d, s):
    hasher = FlyHash(HashSpec(d, 6, s, 1, seed=seed, signed=True))
    for row in range(6):
        assert hasher.rows[row].tolist() == oracle.draw_row(seed, row, d, s)
        assert hasher.signs[row].tolist() == oracle.draw_signs(seed, row, s)


@given(coded_specs(3, max_dim=12))
@example(HashSpec(1, 6, 1, 1, seed=7, signed=True))
@example(HashSpec(1000, 6, 200, 1, seed=2**64 - 1, signed=True))
def test_weighted_rows_follow_the_written_generator(spec):
    weights = spec.row_weights or [1 + 37 * j % 255 for j in range(spec.n_features)]
    row_nnz = min(spec.row_nnz, (spec.n_inputs + 1) // 2)
    hasher = FlyHash(replace(spec, row_weights=weights, row_nnz=row_nnz))
    for row in range(spec.hash_dim):
        drawn = oracle.draw_weighted_row(
            spec.seed, row, weights, spec.n_codes or 1, row_nnz
        )
        assert hasher.rows[row].tolist() == drawn
        if spec.signed:
            signs = oracle.draw_signs(spec.seed, row, row_nnz)
            assert hasher.signs[row].tolist() == signs


# --- given rows, bad input ------------------------------------------------------------


def test_given_rows_hash_like_drawn_ones():
    drawn = FlyHash(HashSpec(10, 300, 3, 7, seed=5, signed=True))
    given_rows = FlyHash.from_rows(drawn.rows, 10, 7, drawn.signs)
    X = np.random.default_rng(0).normal(size=(20, 10))
    np.testing.assert_array_equal(given_rows.active(X), drawn.active(X))
    assert given_rows.spec is None
    for array in (drawn.rows, drawn.signs, given_rows.rows):
        assert not array.flags.writeable
    assert given_rows.fingerprint != drawn.fingerprint
    assert repr(given_rows) == "<FlyHash of given rows, m=300>"
    assert repr(drawn) == f"FlyHash({drawn.spec!r})"
    for hasher in (given_rows, drawn):
        again = pickle.loads(pickle.dumps(hasher))
        assert again.fingerprint == hasher.fingerprint


HASHER = FlyHash(SPEC)

GAP = np.array([[np.nan] + [0.0] * 9])
POINTS = {
    "one dimension": np.zeros(10),
    "a feature less": np.zeros((2, 9)),
    "complex": np.zeros((2, 10), complex),
    "rows of different lengths": [[0.0] * 10, [0.0] * 9],
    "texts": np.full((2, 10), "a"),
    "a gap": GAP,
    "infinity": np.array([[np.inf] + [0.0] * 9]),
    "a sparse gap": sp.csr_array(GAP),
    "sums beyond float32": np.full((1, 10), 2e38),
    "beyond float32": np.full((1, 10), 1e300),
}


def counted(X):
    n = 2
    if not isinstance(X, list):
        n = X.shape[0]
    return HASHER.count(X, np.zeros(n, int), 1)


@pytest.mark.parametrize("act", [HASHER.active, counted])
@pytest.mark.parametrize("X", POINTS.values(), ids=POINTS)
def test_other_samples_are_refused(X, act):
    with raises(DataError, field="X"):
        act(X)


def test_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert [n_threads(number) for number in (None, 3, -1)] == [1, 3, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "1,2")
    assert n_threads(-1) == 1
    for odd in ("", "²", "x"):
        monkeypatch.setenv("OMP_NUM_THREADS", odd)
        assert n_threads(-1) >= 1
    for bad in (0, True, 1.5):
        with raises(ConfigError, field="n_jobs", got=bad):
            n_threads(bad)


def test_integers_beyond_the_bound_are_no_samples():
    X = np.array([[3, -4], [2**40, 1], [-(2**62), 0]])
    fits, largest = _integer_samples(X, 10)
    assert fits.tolist() == [True, False, False]
    assert largest == 4


@pytest.mark.parametrize(
    "refused", [3.0, [[1.0] * 10, [1.0]], np.zeros((2, 10), "M8[s]"), np.zeros(10)]
)
def test_remembered_refuses_what_active_refuses(refused):
    hasher = FlyHash(SPEC)
    for hashed in (hasher.active, hasher.remembered):
        with raises(DataError, field="X"):
            hashed(refused)


def test_threads_share_the_remembered_bits():
    spec = HashSpec(n_features=4, hash_dim=4096, row_nnz=2, hash_nnz=256, seed=1)
    hasher = FlyHash(spec)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def of(seed: int) -> bool:
        samples = np.random.default_rng(seed).normal(size=(1 + seed % 60, 4))
        return bool((hasher.remembered(samples) == hasher.active(samples)).all())

    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(of, range(1500)))
    finally:
        sys.setswitchinterval(before)
