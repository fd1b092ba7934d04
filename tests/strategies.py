"""Specifications, samples and sets of hashes for tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flwr_flynn import ClassCounts, HashSpec
from tests import oracle

FINGERPRINT = 64 * "0"


@st.composite
def specs(draw, n_features, max_dim=80, plain=False):
    """Specifications for `n_features` columns.

    `plain` ones have no sign, centre, scale or waves.
    """
    hash_dim = draw(st.integers(1, max_dim))
    seed = draw(st.integers(0, 2**64 - 1))
    hash_nnz = draw(st.integers(1, hash_dim))
    if plain:
        return HashSpec(
            n_features, hash_dim, draw(st.integers(1, n_features)), hash_nnz, seed
        )
    n_waves = draw(st.just(0) | st.integers(1, 9))
    return HashSpec(
        n_features,
        hash_dim,
        draw(st.integers(1, n_waves or n_features)),
        hash_nnz,
        seed,
        signed=draw(st.booleans()),
        center=draw(
            st.none() | st.tuples(*[st.floats(-10, 10, width=32)] * n_features)
        ),
        scale=draw(
            st.none() | st.tuples(*[st.floats(0.125, 8.0, width=32)] * n_features)
        ),
        n_waves=n_waves,
        wave_frequency=draw(st.floats(2**-20, 4.0)) if n_waves else 0.0,
    )


EDGES = st.sampled_from(
    [
        -1e300,
        -7.0,
        -1.0,
        -1e-310,
        0.0,
        5e-324,
        0.1,
        0.5,
        1.0,
        1.0009765625,
        2.0,
        255.0,
        1e30,
    ]
)


@st.composite
def coded_specs(draw, n_features, max_dim=80):
    """Specifications with rank codes for `n_features` columns.

    Their edges are often equal.
    """
    hash_dim, n_codes, n_edges = (
        draw(st.integers(*each)) for each in ((1, max_dim), (2, 6), (1, 5))
    )
    row = st.lists(EDGES | st.floats(-50, 50), min_size=n_edges, max_size=n_edges).map(
        sorted
    )
    edges = draw(st.lists(row, min_size=n_features, max_size=n_features))
    weights = draw(st.none() | st.tuples(*[st.integers(1, 255)] * n_features))
    n_inputs = n_features * n_codes
    return HashSpec(
        n_features=n_features,
        hash_dim=hash_dim,
        row_nnz=draw(
            st.integers(1, n_inputs if weights is None else (n_inputs + 1) // 2)
        ),
        hash_nnz=draw(st.integers(1, hash_dim)),
        seed=draw(st.integers(0, 2**64 - 1)),
        signed=draw(st.booleans()),
        coding=draw(st.sampled_from(["bumps", "steps"])),
        n_codes=n_codes,
        edges=edges,
        row_weights=weights,
    )


# Few distinct values, so that ties abound; wide ones; everything between.
ELEMENTS = {
    "bool": (np.bool_, st.booleans()),
    "uint8": (np.uint8, st.integers(0, 255)),
    "binary": (np.uint8, st.integers(0, 1)),
    "int8": (np.int8, st.integers(-128, 127)),
    "int16": (np.int16, st.integers(-3000, 3000)),
    "int64": (
        np.int64,
        st.sampled_from(
            [-(2**61), -(2**40) - 1, -(2**40), -7, 0, 1, 2**40, 2**40 + 1, 2**62]
        ),
    ),
    "uint64": (np.uint64, st.sampled_from([0, 1, 2**33, 2**33 + 1, 2**63, 2**64 - 1])),
    "whole floats": (np.float64, st.integers(-20, 20).map(float)),
    "wide whole floats": (
        np.float64,
        st.sampled_from([0.0, -0.0, 2.0**24 + 1, 2.0**24, -(2.0**30) - 1, 2.0**70]),
    ),
    "mixed floats": (
        np.float64,
        st.sampled_from([0.5, -0.5, 0.25, 1.0, 2.0**24 + 1, 2.0**40 + 1, 0.1]),
    ),
    "float32": (np.float32, st.floats(-1e3, 1e3, width=32)),
    "float64": (np.float64, st.floats(-1e30, 1e30)),
    "float16": (np.float16, st.floats(-100, 100, width=16)),
}


@st.composite
def coded_cases(draw, kinds=tuple(ELEMENTS)):
    """Specifications with rank codes, and samples.

    Some values are edges, zeros of both signs or outside all edges.
    """
    dtype, elements = ELEMENTS[draw(st.sampled_from(kinds))]
    n = draw(st.integers(0, 5))
    d = draw(st.integers(1, 5))
    if dtype == np.float64:
        elements = elements | EDGES | st.sampled_from([-0.0, -5e-324, 1e-320, -1e308])
    X = draw(hnp.arrays(dtype, (n, d), elements=elements))
    return draw(coded_specs(d)), X


@st.composite
def cases(draw, kinds=tuple(ELEMENTS), plain=False):
    dtype, elements = ELEMENTS[draw(st.sampled_from(kinds))]
    n = draw(st.integers(0, 5))
    d = draw(st.integers(1, 6))
    X = draw(hnp.arrays(dtype, (n, d), elements=elements))
    return draw(specs(d, plain=plain)), X


def counted(active, y, n_classes, hash_dim):
    """Counts of hashes, one at a time."""
    array = oracle.count(active, y, n_classes, hash_dim)
    return ClassCounts(array, hash_nnz=active.shape[1], spec_fingerprint=FINGERPRINT)


def hashes(rng, n_points, hash_dim, hash_nnz):
    rows = [
        np.sort(rng.choice(hash_dim, hash_nnz, replace=False)) for _ in range(n_points)
    ]
    return np.array(rows, np.int32).reshape(n_points, hash_nnz)


@st.composite
def training_sets(draw):
    """Hashes and classes of few bits and points.

    So ties, empty classes and classes of one point are common.
    """
    hash_dim = draw(st.integers(1, 9))
    hash_nnz = draw(st.integers(1, hash_dim))
    n_classes = draw(st.integers(1, 4))
    n_points = draw(st.integers(0, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return (
        hashes(rng, n_points, hash_dim, hash_nnz),
        rng.integers(0, n_classes, n_points),
        n_classes,
        hash_dim,
    )
