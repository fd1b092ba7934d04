"""FlyNN in plain Python, as close to the paper and the tie rule as words can be.

It is slow.
"""

from __future__ import annotations

import math

import numpy as np


def philox(counter, key):
    """Philox4x32-10 as printed in Salmon et al. (2011), on Python integers."""
    c = list(counter)
    (k0, k1) = key
    for _ in range(10):
        low = 0xD2511F53 * c[0]
        high = 0xCD9E8D57 * c[2]
        c = [
            (high >> 32) ^ c[1] ^ k0,
            high % 2**32,
            (low >> 32) ^ c[3] ^ k1,
            low % 2**32,
        ]
        k0 = (k0 + 0x9E3779B9) % 2**32
        k1 = (k1 + 0xBB67AE85) % 2**32
    return c


def words(seed, row, stream):
    """The endless stream of 32-bit words of one row."""
    block = 0
    while True:
        yield from philox((block, row, stream, 0), (seed % 2**32, seed >> 32))
        block += 1


def draw_row(seed, row, n_features, row_nnz):
    """Floyd's subset algorithm over unbiased uniform integers."""
    stream = words(seed, row, 0)
    chosen = set()
    for j in range(n_features - row_nnz, n_features):
        word = next(stream)
        while word * (j + 1) % 2**32 < 2**32 % (j + 1):
            word = next(stream)
        column = word * (j + 1) >> 32
        chosen.add(j if column in chosen else column)
    return sorted(chosen)


def draw_signs(seed, row, row_nnz):
    stream = words(seed, row, 1)
    signs = []
    while len(signs) < row_nnz:
        word = next(stream)
        signs += [-1 if word >> bit & 1 else 1 for bit in range(32)]
    return signs[:row_nnz]


def draw_wave(seed, wave, n_features):
    """Phase, and slopes as set bits of 64 less 32 over 4."""
    stream = words(seed, wave, 2)
    phase = next(stream) / 2**32
    next(stream)
    return phase, [
        ((next(stream).bit_count() + next(stream).bit_count()) - 32) / 4
        for _ in range(n_features)
    ]


def draw_weighted_row(seed, row, weights, n_codes, row_nnz):
    """Features in proportion to their weights, and codes alike, all different."""
    stream = words(seed, row, 3)
    chosen = set()

    def below(size):
        word = next(stream)
        while word * size % 2**32 < 2**32 % size:
            word = next(stream)
        return word * size >> 32

    while len(chosen) < row_nnz:
        drawn = below(sum(weights))
        feature = 0
        while drawn >= weights[feature]:
            drawn -= weights[feature]
            feature += 1
        chosen.add(feature * n_codes + below(n_codes))
    return sorted(chosen)


def key(value):
    """Sign, exponent and twenty bits of the mantissa of a float64, as an integer.

    The integers are in the order of the values.
    """
    bits = int(np.float64(value + 0.0).view(np.uint64))
    # The integers ascend with the values.
    if bits >> 63:
        bits = 2**64 - 1 - bits
    else:
        bits = bits + 2**63
    return bits >> 32


def rank_codes(x, spec):
    """A sample as ranks among the edges, and the ranks as bumps or steps."""
    codes = []
    for value, edges in zip(x.tolist(), spec.edges, strict=True):
        codes += codes_of(key(float(value)), [key(edge) for edge in edges], spec)
    return codes


def codes_of(value, edges, spec):
    def shape(each):
        u = (
            sum(edge < each for edge in edges) + sum(edge <= each for edge in edges)
        ) / (2 * len(edges))
        if spec.coding == "steps":
            return [int(u > (b + 0.5) / spec.n_codes) for b in range(spec.n_codes)]
        gaps = spec.n_codes - 1
        return [
            round(15 * max(1 - ((u * gaps - b) / 1.54) ** 2, 0) ** 2)
            for b in range(spec.n_codes)
        ]

    codes = shape(value)
    if not spec.signed:
        return codes
    of_edges = [shape(edge) for edge in edges]
    return [
        len(edges) * code - sum(column)
        for code, column in zip(codes, zip(*of_edges, strict=True), strict=True)
    ]


def waves(x, spec):
    """A point as triangle waves see it."""
    center = spec.center or [0.0] * spec.n_features
    scale = spec.scale or [1.0] * spec.n_features
    levels = []
    for wave in range(spec.n_waves):
        phase, slopes = draw_wave(spec.seed, wave, spec.n_features)
        total = 0.0
        for value, c, factor, slope in zip(
            x.tolist(), center, scale, slopes, strict=True
        ):
            total += (float(value) - c) * factor * slope
        u = phase + spec.wave_frequency * total
        levels.append(round(127 * (4 * abs(u - math.floor(u) - 0.5) - 1)))
    return levels


def sums(x, rows, signs=None, center=None, scale=None):
    """The m sums of one point, in the arithmetic of the specification."""
    whole = (
        center is None
        and scale is None
        and all(float(v).is_integer() for v in x.tolist())
    )
    s = rows.shape[1]
    if whole and max((abs(int(v)) for v in x.tolist()), default=0) <= 2 ** (
        ((2**63 - 1) // s).bit_length() - 1
    ):
        values = np.array([int(v) for v in x.tolist()], object)  # Python's integers
    else:
        exact = x.astype(np.float64)
        exact = exact - (0.0 if center is None else np.array(center))
        exact = exact * (1.0 if scale is None else np.array(scale))
        values = exact.astype(np.float32)
    totals = None  # of all rows, one column after the other
    for k in range(s):
        column = values[rows[:, k]]
        if signs is not None:
            column = np.where(signs[:, k] > 0, column, -column)
        if totals is None:
            totals = column
        else:
            totals = totals + column
    return totals.tolist()


def active(X, rows, hash_nnz, signs=None, center=None, scale=None):
    """Winner takes all: higher value first, then lower row index."""
    hashes = []
    for x in X:
        totals = sums(x, rows, signs, center, scale)
        # Equal ones stay in their order.
        ranked = sorted(range(len(totals)), key=lambda i: -totals[i])
        hashes.append(sorted(ranked[:hash_nnz]))
    return np.array(hashes, np.int32).reshape(len(X), hash_nnz)


def hashes(X, hasher):
    """Active bits of points by the hash of a specification.

    Only rows and signs are those of the package.
    """
    spec = hasher.spec
    if spec.coding:
        codes = np.array([rank_codes(x, spec) for x in X], np.int64).reshape(
            len(X), spec.n_inputs
        )
        return active(codes, hasher.rows, spec.hash_nnz, hasher.signs)
    if not spec.n_waves:
        return active(
            X, hasher.rows, spec.hash_nnz, hasher.signs, spec.center, spec.scale
        )
    levels = np.array([waves(x, spec) for x in X], np.int64).reshape(
        len(X), spec.n_waves
    )
    return active(levels, hasher.rows, spec.hash_nnz, hasher.signs)


def count(hashes, y, n_classes, hash_dim):
    """Algorithm 1, lines 4-7, as counts: C[y, h(x)] += 1."""
    counts = np.zeros((n_classes, hash_dim), np.int64)
    for bits, label in zip(hashes, y, strict=True):
        for bit in bits:
            counts[label, bit] += 1
    return counts


def predict(hashes, counts, decay):
    """Algorithm 1, inference.

    The class is that of the smallest sum of decay ** C over the active bits, the first
    of equals.
    """
    predicted = []
    for bits in hashes:
        scores = [sum(decay ** int(row[bit]) for bit in bits) for row in counts]
        predicted.append(scores.index(min(scores)))
    return predicted


def gram_log_odds(z, y, fold, new):
    """Log probabilities of new terms by regressions.

    They are on the samples of each fold and of both, one by one.
    """
    n_classes = y.max() + 1
    targets = np.eye(n_classes)[y]

    def regression(of, share):
        mean = z[of].mean(0)
        level = targets[of].mean(0)
        centred = z[of] - mean
        products = centred.T @ centred
        strength = share * np.trace(products)
        found = np.linalg.solve(
            products + strength * np.eye(z.shape[1]),
            centred.T @ (targets[of] - level),
        )
        return lambda each: (each - mean) @ found + level

    best = None
    for k in range(6, 20, 2):
        scores = np.empty((len(z), n_classes))
        for of in (fold, ~fold):
            scores[~of] = regression(of, 2.0**-k)(z[~of])
        means = np.array([scores[y == label].mean(0) for label in range(n_classes)])
        rest = scores - means[y]
        within = rest.T @ rest / len(y)
        between = np.cov(means.T, bias=True)
        within += 1e-9 * (np.trace(within) + np.trace(between)) * np.eye(n_classes)
        trace = np.trace(np.linalg.solve(within, between))
        if best is None or trace > best[0]:
            best = trace, k, means, within + 0.1 * between
    _, k, means, covariance = best
    scores = regression(np.ones(len(z), bool), 2.0**-k / 8)(new)
    inverse = np.linalg.inv(covariance)
    centre = means.mean(0)
    scores = scores - centre
    means = means - centre
    odds = (
        scores @ inverse @ means.T - np.einsum("li,ij,lj->l", means, inverse, means) / 2
    )
    return odds
