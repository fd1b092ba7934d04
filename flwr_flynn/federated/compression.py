"""A matrix of counts in few bytes.

They are the gaps between entries that are not zero, and the entries, each deflated.

A party's counts are mostly zeros, and the rest mostly small. The bytes of packed
counts, an (L, m) matrix:

- 1 byte each: version, 1; bytes of a gap (1, 2 or 4), or 0: no gaps, every entry
  follows; bytes of an entry (1, 2, 4 or 8)
- 4 bytes each: L, m, number of entries that follow, CRC-32 of all other bytes
- gaps: zeros before each entry that is not zero, row by row
- these entries, each less 1; or all entries, as they are

Numbers are little-endian, and written as byte planes, that of the lowest bytes first,
each a raw deflate stream (RFC 1951). In signed counts 0, -1, 1, -2, 2 and so on travel
as 0, 1, 2, 3, 4. Packed numbers are their number (8 bytes), the bytes of each (1 byte),
and byte planes. What zlib writes may depend on its version; what is unpacked does not.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import CountsError, PayloadError

_VERSION = 1
_HEADER = struct.Struct("<BBBIII")
_CHECKSUM = struct.Struct("<I")
_START = _HEADER.size + _CHECKSUM.size
_GAP_WIDTHS = (1, 2, 4)
_ENTRY_WIDTHS = (1, 2, 4, 8)
_LARGEST_SIZE = 2**31  # entries: positions are summed up in int64

Bytes = npt.NDArray[np.uint8]


def pack(counts: Array) -> Bytes:
    """Counts as bytes."""
    if counts.size >= _LARGEST_SIZE:
        raise CountsError("counts", "fewer than 2**31 entries", counts.size)
    flat = counts.reshape(-1)
    indices = np.flatnonzero(flat)
    gap_width, gaps = _written(np.diff(indices, prepend=-1) - 1)
    width, entries = _written(flat[indices].astype(np.uint64) - np.uint64(1))
    n = len(indices)
    body = gaps + entries
    if 4 * n > flat.size:
        dense_width, dense = _written(flat)
        if len(dense) < len(body):
            gap_width = 0
            width = dense_width
            n = flat.size
            body = dense
    header = _HEADER.pack(_VERSION, gap_width, width, *counts.shape, n)
    return np.frombuffer(sealed(header + bytes(_CHECKSUM.size) + body), np.uint8)


def sealed(raw: bytes) -> bytes:
    """Packed bytes with the checksum that they should have.

    It finds accidents, such as a changed bit in a gap; whoever forges counts can forge
    it.
    """
    header = raw[: _HEADER.size]
    body = raw[_START:]
    return header + _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(header))) + body


def unpack(packed: Bytes, shape: tuple[int, int], largest: int) -> Integers:
    """The (L, m) counts in bytes that may come from anybody.

    Entries are at most `largest`, and below 2**63.

    Whatever the bytes say, no more is allocated than a few times the expected matrix.
    """
    raw = packed.tobytes()
    size = math.prod(shape)
    if len(raw) < _START or raw[0] != _VERSION:
        got = "no bytes"
        if raw:
            got = f"version {raw[0]}"
        raise PayloadError("counts", f"packed counts of version {_VERSION}", got)
    if raw != sealed(raw):
        raise PayloadError("counts", "bytes of their checksum", "damaged bytes")
    _, gap_width, width, n_rows, n_columns, n = _HEADER.unpack_from(raw)
    if (n_rows, n_columns) != shape:
        raise PayloadError("counts", f"shape {shape}", (n_rows, n_columns))
    if n > size or size >= _LARGEST_SIZE:
        raise PayloadError("counts", f"at most {size} entries", n)
    if gap_width not in (0, *_GAP_WIDTHS) or width not in _ENTRY_WIDTHS:
        raise PayloadError(
            "counts",
            "gaps of 0 to 4 and entries of 1 to 8 bytes",
            f"{gap_width} and {width}",
        )
    if not gap_width and n != size:
        raise PayloadError("counts", f"all {size} entries", n)
    gaps, rest = _read(raw[_START:], n, gap_width, "gaps")
    entries, rest = _read(rest, n, width, "entries")
    if rest:
        raise PayloadError("counts", "nothing behind the entries", f"{len(rest)} bytes")
    largest = min(largest, 2**63 - 1)
    largest_written = largest
    if gap_width and n:
        largest_written -= 1  # beside gaps, entries are written less 1
    if int(entries.max(initial=0)) > largest_written:
        raise PayloadError("counts", f"entries of at most {largest}", "a larger entry")
    if not gap_width:
        return entries.astype(np.int64).reshape(shape)
    return _placed(gaps, entries, shape)


def _placed(gaps: Array, entries: Array, shape: tuple[int, int]) -> Integers:
    """Counts with entries, each written less 1, behind gaps of zeros."""
    size = math.prod(shape)
    if len(gaps) and int(gaps.max()) >= size:
        raise PayloadError("counts", f"gaps below {size}", "a larger gap")
    indices = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(indices) and int(indices[-1]) >= size:
        raise PayloadError(
            "counts", f"entries within {shape[0]} rows of {shape[1]}", "an index beyond"
        )
    counts = np.zeros(size, np.int64)
    counts[indices] = entries.astype(np.int64) + 1
    return counts.reshape(shape)


def pack_signed(table: Array) -> Bytes:
    """A table of integers of both signs as bytes.

    0, -1, 1, -2 and so on become counts 0, 1, 2, 3.
    """
    wide = table.astype(np.int64)
    return pack((wide << 1) ^ (wide >> 63))


def unpack_signed(packed: Bytes, shape: tuple[int, int], largest: int) -> Integers:
    """The table in bytes that may come from anybody.

    Entries have a magnitude of at most `largest`, which is below 2**62.
    """
    counts = unpack(packed, shape, 2 * largest)
    return (counts >> 1) ^ -(counts & 1)


def pack_numbers(numbers: Array) -> Bytes:
    """Integers from 0 to below 2**63 as bytes.

    The bytes are their number, their width, and then deflated byte planes.
    """
    width, body = _written(numbers.astype(np.uint64))
    return np.frombuffer(struct.pack("<QB", len(numbers), width) + body, np.uint8)


def check_packed(arrays: Sequence[Array], field: str) -> None:
    """Raise a `PayloadError` unless a message has one array of packed numbers."""
    if len(arrays) != 1 or arrays[0].dtype.str != "|u1" or arrays[0].ndim != 1:
        raise PayloadError(field, "one packed array", f"{len(arrays)} arrays")


def unpack_numbers(packed: Bytes, most: int, largest: int) -> Integers:
    """The integers in bytes that may come from anybody.

    They are at most `most`, each at most `largest`.
    """
    raw = packed.tobytes()
    if len(raw) < 9:
        raise PayloadError("numbers", "at least 9 bytes", len(raw))
    n, width = struct.unpack_from("<QB", raw)
    if n > most or width not in _ENTRY_WIDTHS:
        raise PayloadError(
            "numbers", f"at most {most} of 1 to 8 bytes each", f"{n} of {width}"
        )
    numbers, rest = _read(raw[9:], n, width, "numbers")
    if rest:
        raise PayloadError("numbers", "nothing behind them", f"{len(rest)} bytes")
    if n and int(numbers.max()) > min(largest, 2**63 - 1):
        raise PayloadError("numbers", f"at most {largest} each", "a larger one")
    return numbers.astype(np.int64)


def _written(numbers: Array) -> tuple[int, bytes]:
    """Numbers from 0 as deflated byte planes, behind their width."""
    largest = int(numbers.max(initial=0))
    width = next(width for width in _ENTRY_WIDTHS if largest < 2 ** (8 * width))
    planes = numbers.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T
    return width, b"".join(_deflated(plane.tobytes()) for plane in planes)


def _deflated(plane: bytes) -> bytes:
    """Deflate by Huffman codes alone, or by those and runs: the shorter."""
    written = []
    for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE):
        deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, strategy)
        written.append(deflater.compress(plane) + deflater.flush())
    return min(written, key=len)


def _read(raw: bytes, n: int, width: int, what: str) -> tuple[Array, bytes]:
    """n numbers that `_written` wrote, and the bytes behind them."""
    planes = []
    for _ in range(width):
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # No more is expanded, however much there is.
            plane = inflater.decompress(raw, n + 1)
        except zlib.error:
            plane = b""
        if not inflater.eof or len(plane) != n:
            raise PayloadError("counts", f"{n} {what}", "more or fewer")
        planes.append(np.frombuffer(plane, np.uint8))
        raw = inflater.unused_data
    if not planes:
        return np.zeros(0, np.uint8), raw
    return np.stack(planes, axis=1).view(f"<u{width}").reshape(n), raw
