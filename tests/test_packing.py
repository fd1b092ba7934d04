"""Packed counts: what goes in comes out, near the entropy, and no bytes make the reader do more than it expects."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.datasets import load_digits

from flwr_flynn import ClassCounts, FlyHash, HashSpec, packing
from flwr_flynn.errors import PayloadError
from flwr_flynn.packing import entropy, pack, sealed, unpack

SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 40))
SKEWED = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 300), st.integers(0, 2**63 - 1))


@given(arrays(np.int64, SHAPES, elements=SKEWED))
def test_what_is_packed_is_unpacked(counts: np.ndarray) -> None:
    packed = pack(counts)
    np.testing.assert_array_equal(unpack(packed, counts.shape, 2**63 - 1), counts)
    np.testing.assert_array_equal(pack(np.asfortranarray(counts)), packed)
    largest = int(counts.max())
    np.testing.assert_array_equal(unpack(packed, counts.shape, largest), counts)
    if largest:
        with pytest.raises(PayloadError, match="expected entries of at most"):
            unpack(packed, counts.shape, largest - 1)


@pytest.mark.parametrize("without", ["lzma", "nothing"])
def test_a_python_without_lzma_packs_too(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.random.default_rng(0).poisson(0.1, (10, 4096))
    best = pack(counts)
    assert best[1] // 16 == 2
    if without == "lzma":
        monkeypatch.setattr(packing, "lzma", None)
        with pytest.raises(PayloadError, match="built without"):
            unpack(best, counts.shape, 9)
    np.testing.assert_array_equal(unpack(pack(counts), counts.shape, 9), counts)


@pytest.mark.parametrize("n", [50, 180, 600, 1797])
@pytest.mark.parametrize("hash_dim", [512, 16384, 131072])
def test_a_party_sends_little_more_than_its_counts_entropy(n: int, hash_dim: int) -> None:
    X, y = load_digits(return_X_y=True)
    hasher = FlyHash(HashSpec(n_features=64, hash_dim=hash_dim, row_nnz=19, hash_nnz=max(hash_dim // 512, 8), seed=7))
    few = np.random.default_rng(0).permutation(len(y))[:n]
    counts = ClassCounts.from_data(hasher, X[few], y[few], 10).array
    size, least = pack(counts).nbytes, entropy(counts)
    assert size <= max(1.25 * least, least + 512)


def test_entropy_is_that_of_the_entries() -> None:
    assert entropy(np.zeros((3, 8), int)) == 0
    assert entropy(np.arange(256).reshape(2, 128)) == 256
    share = np.array([0.25, 0.75])
    assert entropy(np.array([[0, 0, 0, 5] * 8])) == pytest.approx(-(share * np.log2(share)).sum() * 32 / 8)


def packed_by_hand(
    gaps: bytes, entries: bytes, n: int, codes: tuple[int, int] = (1, 1), size: int | None = None
) -> bytes:
    return struct.pack("<BBBQQ", 1, *codes, n, len(gaps) if size is None else size) + gaps + entries


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "version 1"),
        (b"\x01" + bytes(17), "version 1"),
        (b"\x02" + bytes(18), "version 1"),
        (packed_by_hand(b"", b"", 9), "at most 8 entries that are not zero, got 9"),
        (packed_by_hand(b"", b"", 2**64 - 1), "at most 8 entries"),
        (packed_by_hand(b"", b"", 0, size=1), "at most 0 bytes of gaps, got 1"),
        (packed_by_hand(b"", b"", 0, size=2**64 - 1), "at most 0 bytes of gaps"),
        (packed_by_hand(b"\0", b"\0", 1, codes=(3, 1)), "gaps of 1 or 2 or 4 bytes, got 3"),
        (packed_by_hand(b"\0", b"\0", 1, codes=(0, 1)), "gaps of 1 or 2 or 4 bytes, got 0"),
        (packed_by_hand(b"\0", b"\0", 1, codes=(1, 9)), "entries of 1 or 2 or 4 or 8 bytes, got 9"),
        (packed_by_hand(b"\0", b"\0", 1, codes=(1 + 48, 1)), "gaps by coder 0, 1 or 2, got 3"),
        (packed_by_hand(b"\0", b"\0", 1, codes=(1, 1 + 240)), "entries by coder 0, 1 or 2, got 15"),
        (packed_by_hand(b"\0", b"\0", 2), "expected 2 gaps, got others"),
        (packed_by_hand(b"\0", b"\0\0", 1), "expected 1 entries, got others"),
        (packed_by_hand(b"\0\0", b"\0", 1), "expected 1 gaps, got others"),
        (packed_by_hand(b"\0", b"\0", 1, codes=(1 + 16, 1)), "expected 1 gaps, got others"),
        (packed_by_hand(b"\0", b"\0", 1, codes=(1 + 32, 1)), "expected 1 gaps, got others"),
        (packed_by_hand(b"\x08", b"\0", 1), "gaps below 8"),
        (packed_by_hand(b"\x04\x03", b"\0\0", 2), "within 2 rows of 4, got some beyond"),
        (packed_by_hand(b"\0", b"\xff" * 8, 1, codes=(1, 8)), "entries of at most 100"),
        (packed_by_hand(b"\0", b"\x64", 1), "entries of at most 100"),
    ],
)
def test_bytes_that_are_no_counts_are_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        unpack(np.frombuffer(sealed(raw, (2, 4)), np.uint8), (2, 4), largest=100)


def test_every_flipped_bit_and_every_other_shape_is_noticed() -> None:
    packed = pack(np.array([[0, 3, 0, 0], [0, 0, 1, 0]]))
    for bit in range(8 * packed.nbytes):
        flipped = packed.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PayloadError, match=r"altered|version"):
            unpack(flipped, (2, 4), largest=100)
    for shape in ((1, 8), (4, 2), (2, 5), (3, 4)):
        with pytest.raises(PayloadError, match="altered on their way, or of another shape"):
            unpack(packed, shape, largest=100)


@given(data=st.data())
def test_whatever_is_done_to_packed_counts_they_are_counts_or_refused(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 3)))
    counts = random.poisson(random.choice([0.02, 0.5, 40]), (3, 200))
    raw = bytearray(pack(counts).tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    raw = sealed(bytes(raw[:-4]), (3, 200)) if data.draw(st.booleans()) else raw
    tracemalloc.start()
    try:
        read = unpack(np.frombuffer(bytes(raw), np.uint8), (3, 200), largest=1000)
        assert read.shape == (3, 200)
        assert read.dtype == np.int64
        assert 0 <= read.min() <= read.max() <= 1000
    except PayloadError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**22


def test_a_matrix_too_large_to_be_packed_is_refused() -> None:
    huge = np.broadcast_to(np.uint8(0), (2**16, 2**15))
    with pytest.raises(ValueError, match=r"fewer than 2\*\*31"):
        pack(huge)
    with pytest.raises(PayloadError, match="counts: expected"):
        unpack(np.frombuffer(sealed(packed_by_hand(b"", b"", 0), huge.shape), np.uint8), huge.shape, 9)
