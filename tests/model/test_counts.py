"""The algebra of class counts, and what is refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.model.candidates import decay_grid, suggest_decay
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.scoring import ScoringRule, class_scores
from flwr_flynn.model.selection import left_out_scores
from tests import oracle
from tests.memory import traced
from tests.raising import raises

SPEC = HashSpec(n_features=3, hash_dim=12, row_nnz=2, hash_nnz=4, seed=7, signed=True)
HASHER = FlyHash(SPEC)
FINGERPRINT = 64 * "0"


def make(array, hash_nnz=2, spec_fingerprint=FINGERPRINT):
    return ClassCounts(array, hash_nnz=hash_nnz, spec_fingerprint=spec_fingerprint)


@st.composite
def labelled_points(draw, n_classes=3):
    n = draw(st.integers(0, 12))
    X = draw(st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=n, max_size=n))
    y = draw(st.lists(st.integers(0, n_classes - 1), min_size=n, max_size=n))
    return np.array(X, float).reshape(n, 3), np.array(y, int)


def train(points, n_classes=3):
    return ClassCounts.from_data(HASHER, *points, n_classes)


@given(labelled_points())
def test_training_is_algorithm_1(points):
    X, y = points
    active = oracle.active(X, HASHER.rows, HASHER.hash_nnz, HASHER.signs)
    counts = train(points)
    assert_array_equal(counts.array, oracle.count(active, y, 3, HASHER.hash_dim))
    assert_array_equal(counts.n_per_class, np.bincount(y, minlength=3))
    assert (counts.n_examples, counts.n_classes, counts.hash_dim) == (len(y), 3, 12)
    assert ClassCounts.from_active(HASHER, active, y, 3) == counts


@given(labelled_points(), labelled_points())
def test_a_difference_is_counts_or_refused(a, b):
    a = train(a)
    b = train(b)
    difference = a.array - b.array
    sizes = difference.sum(axis=1) // 4
    if (difference >= 0).all() and (difference <= sizes[:, None]).all():
        assert_array_equal((a - b).array, difference)
    else:
        with raises(CountsError, field="difference"):
            a - b


@given(
    st.lists(
        st.lists(st.integers(-1, 4), min_size=4, max_size=4), min_size=1, max_size=3
    ),
    st.integers(1, 4),
)
def test_an_array_is_taken_only_if_hashes_can_make_it(rows, hash_nnz):
    def makeable(row):
        # Give each bit in turn to the next points of a round; full circles fill every
        # point with different bits.
        if min(row) < 0 or sum(row) % hash_nnz:
            return False
        n_points = sum(row) // hash_nnz
        points = [set() for _ in range(n_points)]
        turn = 0
        for bit, count in enumerate(row):
            for _ in range(count):
                if bit in points[turn % n_points]:
                    return False
                points[turn % n_points].add(bit)
                turn += 1
        return all(len(point) == hash_nnz for point in points)

    if all(makeable(row) for row in rows):
        assert_array_equal(make(rows, hash_nnz).array, rows)
    else:
        with raises(CountsError, field="array"):
            make(rows, hash_nnz)


OTHERS = [
    make([[1, 1]], 2, 64 * "1"),
    make([[1, 1]], 1),
    make([[1, 1], [1, 1]]),
    make([[1, 1, 0]]),
]
ACTIVE = HASHER.active(np.eye(3))
TWO = ClassCounts.from_active(HASHER, ACTIVE[:2], [0, 1], 2)


def left_out(active, y):
    return lambda: list(left_out_scores(TWO, active, y, [ScoringRule("balanced", 0.5)]))


REFUSED = [
    *[
        (lambda a=a: make(a), CountsError, "array")
        for a in (np.zeros((0, 4), int), np.zeros((2, 0), int))
    ],
    *[(lambda o=o: make([[1, 1]]) + o, CountsError, "sum") for o in OTHERS],
    *[(lambda o=o: make([[1, 1]]) - o, CountsError, "difference") for o in OTHERS],
    (lambda: make([[2**62]], 1) + make([[2**62]], 1), CountsError, "sum"),
    *[
        (left_out(ACTIVE[i], y), DataError, "active, y")
        for i, y in (([2], [0]), ([0], [1]), ([0, 0], [0, 0]))
    ],
]


@pytest.mark.parametrize(("act", "error", "field"), REFUSED)
def test_what_no_samples_make_is_refused(act, error, field):
    with raises(error, field=field):
        act()


@pytest.mark.parametrize("stranger", [1, np.ones((1, 2), int), "counts"])
def test_counts_and_what_is_none_do_not_combine(stranger):
    counts = make([[1, 1]])
    assert all(counts != other for other in (*OTHERS, stranger))
    with pytest.raises(TypeError):
        counts + stranger
    with pytest.raises(TypeError):
        counts - stranger


def test_counts_are_immutable():
    given_array = np.array([[1, 1]])
    counts = make(given_array)
    given_array[0, 0] = 9
    assert_array_equal(counts.array, [[1, 1]])
    for copied in (counts, pickle.loads(pickle.dumps(counts)), copy.deepcopy(counts)):
        assert (copied, hash(copied)) == (counts, hash(counts))
        for array in (copied.array, copied.n_per_class):
            assert (array.dtype, array.flags.writeable) == (np.int64, False)
        with pytest.raises(AttributeError):
            copied.hash_nnz = 3
    assert "1 samples, 1 classes" in repr(counts)
    assert f"spec {counts.spec_fingerprint[:12]}>" in repr(counts)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, ">i4", np.uint64])
def test_the_dtype_that_comes_in_does_not_matter(dtype):
    rows = [[1, 1, 0], [0, 2, 2]]
    assert make(np.asfortranarray(np.array(rows, dtype))) == make(rows)


def test_the_digest_is_pinned():
    digest = "55e17de91f7f962d91235807d95db613e7f14ba1e444d1b79c7a1017fe78bab9"
    assert make([[1, 1, 0], [0, 2, 2]]).sha256() == digest
    others = [
        make([[1, 0, 1], [0, 2, 2]]),
        make([[1, 1, 0, 0, 2, 2]], hash_nnz=2),
        make([[1, 1, 0], [0, 2, 2]], 1),
    ]
    assert len({digest, *(other.sha256() for other in others)}) == 4


@pytest.mark.parametrize("rule", ["balanced", "novelty"])
@pytest.mark.parametrize("copies", [0, 1, 1000, 10**15])
def test_suggested_decays_can_be_used(rule, copies):
    counts = make(np.array([[1, 1, 0, 0], [0, 1, 2, 1]]) * copies)
    grid = decay_grid(counts, rule)
    assert suggest_decay(counts, rule) == grid[0]
    assert all(0 < decay < 1 for decay in grid)
    assert np.isfinite(
        [class_scores(counts, [[0, 1]], ScoringRule(rule, decay)) for decay in grid]
    ).all()


SIZES = [
    (100, 2**14, 40, 1),
    (2**15 + 1, 2**13, 40, 1),
    (10, 2**12, 2, 100),
    (100, 2**12, 40, 50),
]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("n_features", "hash_dim", "row_nnz", "n_classes"), SIZES)
def test_the_memory_that_is_needed_is_foreseen(
    n_features, hash_dim, row_nnz, n_classes, signed
):
    """Of one hash and its counts, from the drawing to the message.

    Tracemalloc does not see the kernels' own arrays.
    """
    spec = HashSpec(n_features, hash_dim, row_nnz, hash_nnz=16, seed=1, signed=signed)
    FlyHash(HashSpec(n_features, 16, row_nnz, 16, seed=1, signed=signed))  # compiles
    with traced() as memory:
        hasher = FlyHash(spec)
        counts = ClassCounts.from_data(hasher, np.empty((0, n_features)), [], n_classes)
        message = counts.array.astype(np.uint64)
    hidden = hasher.rows.nbytes
    if signed:
        hidden += hasher.signs.nbytes
    assert counts.array.nbytes == message.nbytes == 8 * n_classes * hash_dim
    assert 0.5 < (memory.peak + hidden) / memory_needed(spec, n_classes) < 1.2
