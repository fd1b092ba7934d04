"""Packed counts come out as they went in, and take little more than their entropy.

No bytes make the reader do more than it expects.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import entropy

from flwr_flynn.errors import CountsError, PayloadError
from flwr_flynn.federated.compression import (
    pack,
    pack_numbers,
    pack_signed,
    sealed,
    unpack,
    unpack_numbers,
    unpack_signed,
)
from tests.memory import traced
from tests.raising import raises

SHAPES = st.tuples(st.integers(0, 6), st.integers(0, 40))
RATES = np.geomspace(0.01, 4, 10)
SKEWED = st.one_of(
    st.just(0), st.integers(0, 3), st.integers(0, 300), st.integers(0, 2**63 - 1)
)


@given(arrays(np.int64, SHAPES, elements=SKEWED))
def test_what_is_packed_is_unpacked(counts):
    packed = pack(counts)
    largest = int(counts.max(initial=0))
    np.testing.assert_array_equal(pack(np.asfortranarray(counts)), packed)
    for most in (largest, 2**63 - 1):
        np.testing.assert_array_equal(unpack(packed, counts.shape, most), counts)
    if largest:
        with raises(
            PayloadError, field="counts", expected=f"entries of at most {largest - 1}"
        ):
            unpack(packed, counts.shape, largest - 1)


def bytes_of_entropy(counts: np.ndarray) -> float:
    """The least that a code of single entries takes on average."""
    _, frequencies = np.unique(counts, return_counts=True)
    return float(entropy(frequencies, base=2)) * counts.size / 8


@pytest.mark.parametrize(
    "mean", [0.0, 1e-4, 0.003, 0.03, 0.1, 0.3, 0.5, 1.0, 3.0, 30.0, 3e4]
)
@pytest.mark.parametrize("spread", ["alike", "clustered", "by class"])
def test_matrices_of_any_density_take_little_more_than_their_entropy(mean, spread):
    random = np.random.default_rng(0)
    rates = {
        "alike": np.ones((10, 1)),
        "clustered": random.gamma(0.2, 5.0, (10, 16384)),
        "by class": RATES[:, None],
    }
    counts = random.poisson(mean * rates[spread], (10, 16384))
    packed = pack(counts)
    np.testing.assert_array_equal(unpack(packed, counts.shape, 2**40), counts)
    least = bytes_of_entropy(counts)
    assert packed.nbytes <= max(1.25 * least, least + 512)


@cache
def deflated_plane(plane: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(plane) + deflater.flush()


def deflated(*planes: bytes) -> bytes:
    return b"".join(map(deflated_plane, planes))


def by_hand(
    n: int,
    *planes: bytes,
    widths: Any = (1, 1),
    behind: bytes = b"",
    version: int = 1,
    shape: Any = (2, 4),
) -> bytes:
    header = struct.pack("<BBBIII", version, *widths, *shape, n)
    return signed(header, deflated(*planes) + behind)


def signed(header: bytes, body: bytes) -> bytes:
    """With the checksum that anybody can make right."""
    return header + struct.pack("<I", zlib.crc32(header + body)) + body


GOOD = by_hand(2, b"\x01\x04", b"\x02\x00")


def test_the_format_is_as_it_is_written_down():
    read = unpack(np.frombuffer(GOOD, np.uint8), (2, 4), largest=3)
    assert read.tolist() == [[0, 3, 0, 0], [0, 0, 1, 0]]
    wide = by_hand(1, b"\x02", b"\x00", b"\xff", b"\x01", widths=(2, 2), shape=(1, 4))
    read = unpack(np.frombuffer(wide, np.uint8), (1, 4), largest=512)
    assert read.tolist() == [[0, 0, 512, 0]]
    dense = by_hand(4, b"\x00\x05\x00\x01", widths=(0, 1), shape=(1, 4))
    read = unpack(np.frombuffer(dense, np.uint8), (1, 4), largest=5)
    assert read.tolist() == [[0, 5, 0, 1]]
    with raises(PayloadError, field="counts", expected="entries of at most 4"):
        unpack(np.frombuffer(dense, np.uint8), (1, 4), largest=4)


OF_COUNTS = "packed counts of version 1"
OF_WIDTHS = "gaps of 0 to 4 and entries of 1 to 8 bytes"
DAMAGED = "bytes of their checksum"
BEHIND = "nothing behind the entries"
FEW = "more or fewer"
WITHIN_100 = "entries of at most 100"
LARGER = "a larger entry"
PLANES = (b"\x01\x04", b"\x02\x00")
ZERO = b"\0"
LONG = bytes(2**24)
NO_COUNTS = {
    "nothing": (b"", OF_COUNTS, "no bytes"),
    "half a header": (GOOD[:18], OF_COUNTS, "version 1"),
    "another version": (by_hand(2, *PLANES, version=2), OF_COUNTS, "version 2"),
    "turned": (by_hand(2, *PLANES, shape=(4, 2)), "shape (2, 4)", (4, 2)),
    "another shape": (
        by_hand(2, *PLANES, shape=(2**32 - 1, 0)),
        "shape (2, 4)",
        (2**32 - 1, 0),
    ),
    "an entry too many": (by_hand(9, ZERO, ZERO), "at most 8 entries", 9),
    "as many entries as can be said": (
        by_hand(2**32 - 1, ZERO, ZERO),
        "at most 8 entries",
        2**32 - 1,
    ),
    "gaps of 3 bytes": (by_hand(1, ZERO, ZERO, widths=(3, 1)), OF_WIDTHS, "3 and 1"),
    "entries of 0 bytes": (by_hand(1, ZERO, ZERO, widths=(1, 0)), OF_WIDTHS, "1 and 0"),
    "entries of 255 bytes": (
        by_hand(1, ZERO, ZERO, widths=(1, 255)),
        OF_WIDTHS,
        "1 and 255",
    ),
    "no gaps and 7 entries": (by_hand(7, bytes(7), widths=(0, 1)), "all 8 entries", 7),
    "another byte": (GOOD[:20] + ZERO + GOOD[21:], DAMAGED, "damaged bytes"),
    "a byte behind": (by_hand(2, *PLANES, behind=ZERO), BEHIND, "1 bytes"),
    "a plane behind": (by_hand(2, *PLANES, behind=deflated(ZERO)), BEHIND, "3 bytes"),
    "a gap too few": (by_hand(2, b"\x01", b"\0\0"), "2 gaps", FEW),
    "a gap too many": (by_hand(1, b"\0\0", ZERO), "1 gaps", FEW),
    "an entry more than gaps": (by_hand(1, ZERO, b"\0\0"), "1 entries", FEW),
    "no entries": (by_hand(1, ZERO), "1 entries", FEW),
    "half an entry": (by_hand(1, ZERO, ZERO, widths=(1, 2)), "1 entries", FEW),
    "no planes": (by_hand(1, behind=b"\xff" * 3), "1 gaps", FEW),
    "a long plane": (by_hand(8, LONG, widths=(0, 1)), "8 entries", FEW),
    "8 long planes": (by_hand(8, *[LONG] * 8, widths=(0, 8)), "8 entries", FEW),
    "a long plane behind good ones": (
        by_hand(8, *[bytes(8)] * 8, LONG, widths=(1, 8)),
        "8 entries",
        FEW,
    ),
    "long gaps": (by_hand(8, LONG, LONG), "8 gaps", FEW),
    "a gap out of the table": (
        by_hand(1, b"\x08", ZERO),
        "gaps below 8",
        "a larger gap",
    ),
    "gaps that lead out of the table": (
        by_hand(2, b"\x04\x03", b"\0\0"),
        "entries within 2 rows of 4",
        "an index beyond",
    ),
    "the largest entry": (
        by_hand(1, ZERO, *[b"\xff"] * 8, widths=(1, 8)),
        WITHIN_100,
        LARGER,
    ),
    "the largest entries": (
        by_hand(8, *[b"\xff" * 8] * 8, widths=(0, 8)),
        WITHIN_100,
        LARGER,
    ),
    "an entry of 101": (by_hand(1, ZERO, b"\x64"), WITHIN_100, LARGER),
}
"""Bytes by what is wrong with them, and what the error expects and gets."""


@pytest.mark.parametrize(("raw", "expected", "got"), NO_COUNTS.values(), ids=NO_COUNTS)
def test_bytes_that_are_no_counts_are_refused(raw, expected, got):
    with (
        traced() as memory,
        raises(PayloadError, field="counts", expected=expected, got=got),
    ):
        unpack(np.frombuffer(raw, np.uint8), (2, 4), largest=100)
    assert memory.peak < 2**16 + 4 * len(raw)


CHANGES = st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), max_size=4)


def changed(
    whole: bytes, changes: list[tuple[int, int]], length: int, is_sealed: bool
) -> Any:
    """Packed bytes of which some are others, or missing.

    A sender that means it makes the checksum right.
    """
    raw = bytearray(whole)
    for place, value in changes:
        raw[place % len(raw)] = value
    message = bytes(raw[: length or len(raw)])
    if is_sealed and len(message) > 19:
        message = sealed(message)
    return np.frombuffer(message, np.uint8)


def table_of_numbers(raw: Any, shape: tuple[int, int], most: int) -> np.ndarray:
    """Numbers, with as many zeros behind them as make a table."""
    numbers = unpack_numbers(raw, 600, most)
    return np.append(numbers, np.zeros(600 - len(numbers), numbers.dtype)).reshape(
        shape
    )


RANDOM = np.random.default_rng(0)
RARE = RANDOM.poisson(0.02, (3, 200))
FREQUENT = RANDOM.poisson(0.5, (3, 200))
LARGE = RANDOM.poisson(40, (3, 200))
PACKED = {
    "rare counts": (pack(RARE), unpack, 0),
    "frequent counts": (pack(FREQUENT), unpack, 0),
    "large counts": (pack(LARGE), unpack, 0),
    "signed": (pack_signed(RANDOM.integers(-9, 10, (3, 200))), unpack_signed, -100),
    "numbers": (pack_numbers(RANDOM.integers(0, 90, 600)), table_of_numbers, 0),
}
"""Messages, functions that read them, and the least number that one has."""


@pytest.mark.parametrize("name", PACKED)
@given(CHANGES, st.sampled_from([0, 0, 0, 10, 19, 50]), st.booleans())
def test_changed_bytes_are_read_within_bounds_or_refused(
    name, changes, length, is_sealed
):
    whole, read, least = PACKED[name]
    raw = changed(whole.tobytes(), changes, length, is_sealed)
    with traced() as memory, suppress(PayloadError):
        table = read(raw, (3, 200), 100)
        assert table.shape == (3, 200)
        assert table.dtype == np.int64
        assert least <= table.min() <= table.max() <= 100
    assert memory.peak < 2**19


def test_a_matrix_too_large_to_be_packed_is_refused():
    huge = np.broadcast_to(np.uint8(0), (2**16, 2**15))
    with raises(CountsError, field="counts", got=2**31):
        pack(huge)
    empty = np.frombuffer(by_hand(0, b"", b"", shape=huge.shape), np.uint8)
    expected = f"at most {2**31} entries"
    with raises(PayloadError, field="counts", expected=expected, got=0):
        unpack(empty, huge.shape, 9)


# ---- numbers


@given(arrays(np.int64, st.integers(0, 60), elements=SKEWED))
def test_numbers_make_the_round_trip(numbers):
    read = unpack_numbers(pack_numbers(numbers), len(numbers), 2**63 - 1)
    np.testing.assert_array_equal(read, numbers)
    assert read.dtype == np.int64


def test_the_form_of_numbers_is_as_it_is_written_down():
    numbers = np.array([1, 256, 3])
    by_hand = struct.pack("<QB", 3, 2) + deflated(b"\1\0\3", b"\0\1\0")
    read = unpack_numbers(np.frombuffer(by_hand, np.uint8), 3, 256)
    np.testing.assert_array_equal(read, numbers)
    assert pack_numbers(numbers).tobytes()[:9] == by_hand[:9]


def of_numbers(n: int, width: int, *planes: bytes) -> bytes:
    """Numbers of so many bytes, in planes."""
    body = b""
    if planes:
        body = deflated(*planes)
    return struct.pack("<QB", n, width) + body


NO_NUMBERS = {
    "nothing": b"",
    "half a header": bytes(8),
    "a number too many": of_numbers(4, 1, bytes(4)),
    "as many as can be said": of_numbers(2**63, 1),
    "no width": of_numbers(3, 0),
    "a width of 3": of_numbers(3, 3, *[bytes(3)] * 3),
    "a byte behind": of_numbers(3, 1, bytes(3)) + b"x",
    "a number of 101": of_numbers(3, 1, b"\0\0\x65"),
    "a large number": of_numbers(3, 8, *[bytes(3)] * 7, b"\0\0\xff"),
}
NO_PLANES = {
    "no plane": of_numbers(3, 1),
    "junk": of_numbers(3, 1) + b"junk",
    "a short plane": of_numbers(3, 1, bytes(2)),
    "a long plane": of_numbers(3, 1, LONG),
    "a plane too few": of_numbers(3, 2, bytes(3)),
}
"""Bytes by what is wrong with them."""


@pytest.mark.parametrize(
    ("field", "raw"),
    [
        *(("numbers", raw) for raw in NO_NUMBERS.values()),
        *(("counts", raw) for raw in NO_PLANES.values()),
    ],
    ids=[*NO_NUMBERS, *NO_PLANES],
)
def test_bytes_that_are_no_numbers_are_refused(field, raw):
    with traced() as memory, raises(PayloadError, field=field):
        unpack_numbers(np.frombuffer(raw, np.uint8), 3, 100)
    assert memory.peak < 100_000 + 4 * len(raw)


def test_numbers_beyond_int64_are_refused_whatever_is_allowed():
    with raises(PayloadError, field="numbers"):
        unpack_numbers(pack_numbers(np.array([2**63], np.uint64)), 1, 2**70)


@pytest.mark.parametrize("entries", [[2**63, 1, 2], [0, 2**64 - 2, 0]])
def test_counts_beyond_int64_are_refused_whatever_is_allowed(
    entries,
):
    packed = pack(np.array([entries], np.uint64))
    with raises(PayloadError, field="counts"):
        unpack(packed, (1, 3), 2**70)


def test_the_largest_count_of_int64_is_read():
    packed = pack(np.array([[0, 2**63 - 1, 0]], np.uint64))
    np.testing.assert_array_equal(unpack(packed, (1, 3), 2**70), [[0, 2**63 - 1, 0]])


# ---- tables of both signs


SIGNED = st.one_of(
    st.just(0), st.integers(-3, 3), st.integers(-300, 300), st.integers(-(2**61), 2**61)
)


@given(arrays(np.int64, SHAPES, elements=SIGNED))
def test_tables_of_both_signs_make_the_round_trip(table):
    packed = pack_signed(table)
    largest = int(np.abs(table).max(initial=0))
    read = unpack_signed(packed, table.shape, largest)
    np.testing.assert_array_equal(read, table)
    assert read.dtype == np.int64
    if largest:
        with raises(PayloadError, field="counts"):
            unpack_signed(packed, table.shape, largest - 1)


def test_small_magnitudes_of_either_sign_are_small_numbers():
    table = np.array([[0, -1, 1, -2, 2]])
    read = unpack(pack_signed(table), (1, 5), 4)
    assert read.tolist() == [[0, 1, 2, 3, 4]]
    random = np.random.default_rng(0).integers(-1, 2, (10, 1000))
    assert pack_signed(random).nbytes < 10_000 / 4
