"""A matrix of counts in few bytes: the gaps between entries that are not zero, and the entries, each deflated.

A party's counts are mostly zeros, and the rest mostly small. How many bytes they need if every entry is coded by
itself, their entropy, is what a packed matrix is measured against: it takes 1.0 to 1.2 times that for 50 to 60000
points (``python -m simulations traffic``).

The bytes, little-endian::

    1   version, 1
    1   width of a gap in bytes (1, 2 or 4) + 16 x its coder
    1   width of an entry in bytes (1, 2, 4 or 8) + 16 x its coder
    4   L, and 4 more: m, unsigned
    4   number of entries that are not zero, unsigned
    4   bytes of the gaps, unsigned
    4   CRC-32 of the bytes before it and after it
    .   gaps: zeros before each entry, row by row
    .   entries, each less 1

Each list is written byte plane by byte plane (first the lowest byte of each number, and so on), and then by a coder: 0
as it is, 1 deflate, 2 LZMA. What they write may depend on the machine's libraries; what is unpacked does not.

>>> packed = pack(np.array([[0, 3, 0, 0], [0, 0, 1, 0]]))
>>> packed.dtype, packed.shape
(dtype('uint8'), (27,))
>>> unpack(packed, (2, 4), largest=3)
array([[0, 3, 0, 0],
       [0, 0, 1, 0]])
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import PayloadError

try:
    import lzma
except ImportError:  # a Python that was built without it packs a little less well, and cannot read what others packed
    lzma = None  # type: ignore[assignment]

_VERSION = 1
_HEADER, _SUM = struct.Struct("<BBBIIII"), struct.Struct("<I")
_PLAIN, _DEFLATE, _LZMA = range(3)
_BROKEN: tuple[type[Exception], ...] = (zlib.error, EOFError, *((lzma.LZMAError,) if lzma is not None else ()))
_DICTIONARY, _SHORT = 2**20, 2**10
_LARGEST_SIZE = 2**31  # entries: positions are summed up in int64

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def pack(counts: npt.NDArray[Any]) -> Bytes:
    """Counts as bytes.

    Parameters
    ----------
    counts : integer array of shape (L, m)
        None below zero; at least one, and fewer than 2**31 of them.

    Returns
    -------
    uint8 array of shape (k,)
    """
    if counts.size >= _LARGEST_SIZE:
        raise ValueError(f"counts: expected fewer than 2**31 entries, got {counts.size}")
    flat = counts.reshape(-1)
    places = np.flatnonzero(flat)
    entries = flat[places].astype(np.uint64) - np.uint64(1)
    gap_code, gaps = _written(np.diff(places, prepend=-1) - 1)
    entry_code, rest = _written(entries)
    header = _HEADER.pack(_VERSION, gap_code, entry_code, *counts.shape, len(places), len(gaps))
    return np.frombuffer(sealed(header + bytes(_SUM.size) + gaps + rest), np.uint8)


def sealed(raw: bytes) -> bytes:
    """Packed bytes with the checksum that they should have.

    With gaps for places, one bit can make other counts of the same points. The checksum is against accidents: who
    forges counts can forge it.
    """
    start, end = _HEADER.size, _HEADER.size + _SUM.size
    return raw[:start] + _SUM.pack(zlib.crc32(raw[end:], zlib.crc32(raw[:start]))) + raw[end:]


def unpack(packed: Bytes, shape: tuple[int, int], largest: int) -> Numbers:
    """The counts in bytes that may come from anybody.

    Nothing larger than a few times the matrix that is expected is allocated, whatever the bytes say.

    Parameters
    ----------
    packed : uint8 array of shape (k,)
    shape : (int, int)
        L and m, as expected.
    largest : int
        The largest entry that is allowed, below 2**63.

    Returns
    -------
    int64 array of shape (L, m)

    Raises
    ------
    PayloadError
        Not such bytes, of another version, more or less than one matrix of this shape, or an entry above `largest`.
    """
    raw, size = packed.tobytes(), math.prod(shape)
    if len(raw) < _HEADER.size + _SUM.size or raw[0] != _VERSION:
        raise PayloadError(f"counts: expected packed counts of version {_VERSION}, got others")
    _, gap_code, entry_code, *theirs, n, n_bytes = _HEADER.unpack_from(raw)
    body = raw[_HEADER.size + _SUM.size :]
    if raw != sealed(raw):
        raise PayloadError("counts: damaged on the way, the checksum does not fit")
    if tuple(theirs) != shape:
        raise PayloadError(f"counts: expected shape {shape}, got {tuple(theirs)}")
    if n > size or size >= _LARGEST_SIZE:
        raise PayloadError(f"counts: expected at most {size} entries that are not zero, got {n}")
    if n_bytes > len(body):
        raise PayloadError(f"counts: expected at most {len(body)} bytes of gaps, got {n_bytes}")
    gaps = _read(body[:n_bytes], gap_code, n, (1, 2, 4), "gaps")
    entries = _read(body[n_bytes:], entry_code, n, (1, 2, 4, 8), "entries")
    counts = np.zeros(size, np.int64)
    if not n:
        return counts.reshape(shape)
    if int(gaps.max()) >= size:
        raise PayloadError(f"counts: expected gaps below {size}, got larger ones")
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if int(places[-1]) >= size:
        raise PayloadError(f"counts: expected entries within {shape[0]} rows of {shape[1]}, got some beyond")
    if int(entries.max()) >= largest:
        raise PayloadError(f"counts: expected entries of at most {largest}, got larger ones")
    counts[places] = entries.astype(np.int64) + 1
    return counts.reshape(shape)


def entropy(counts: npt.NDArray[Any]) -> float:
    """Zero-order entropy in bytes: what a code must take on average that codes every entry by itself.

    >>> entropy(np.array([[0, 1], [1, 0]]))
    0.5
    """
    _, times = np.unique(counts, return_counts=True)
    share = times / counts.size
    return float(-(share * np.log2(share)).sum() * counts.size / 8)


def _written(numbers: npt.NDArray[Any]) -> tuple[int, bytes]:
    """Numbers from 0 by the coder that makes least of them, behind the code for it and their width."""
    largest = int(numbers.max(initial=0))
    width = next(width for width in (1, 2, 4, 8) if largest < 2 ** (8 * width))
    planes = numbers.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T.tobytes()
    written = {_PLAIN: planes}
    # LZMA makes a tenth less of it, but for a few hundred bytes and at a cost of a megabyte or two.
    if len(planes) < _SHORT or lzma is None:
        written[_DEFLATE] = zlib.compress(planes, 9)
    else:
        written[_LZMA] = lzma.compress(planes, lzma.FORMAT_RAW, filters=_filters(len(planes)))
    coder = min(written, key=lambda coder: len(written[coder]))
    return width + 16 * coder, written[coder]


def _read(raw: bytes, code: int, n: int, widths: tuple[int, ...], what: str) -> npt.NDArray[Any]:
    """n numbers that `_written` wrote, or a `PayloadError`."""
    coder, width = divmod(code, 16)
    if width not in widths:
        raise PayloadError(f"counts: expected {what} of {' or '.join(map(str, widths))} bytes, got {width}")
    planes = _expanded(raw, coder, n * width, what)
    if planes is None or len(planes) != n * width:
        raise PayloadError(f"counts: expected {n} {what}, got others")
    return np.frombuffer(planes, np.uint8).reshape(width, n).T.copy().view(f"<u{width}").reshape(n)


def _expanded(raw: bytes, coder: int, size: int, what: str) -> bytes | None:
    """What a coder wrote, of at most `size` bytes; None if it did not write this."""
    if coder == _PLAIN:
        return raw
    if coder == _LZMA and lzma is None:
        raise PayloadError(f"counts: {what} are packed by LZMA, which this Python was built without")
    try:
        if coder == _DEFLATE:
            inflater = zlib.decompressobj()
            planes = inflater.decompress(raw, size + 1)
            return planes if inflater.eof and not inflater.unused_data else None
        if coder == _LZMA:
            expander = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_filters(_DICTIONARY))
            planes = expander.decompress(raw, size + 1)
            return planes if expander.eof and not expander.unused_data else None
    except _BROKEN:
        return None
    raise PayloadError(f"counts: expected {what} by coder 0, 1 or 2, got {coder}")


def _filters(size: int) -> list[dict[str, int]]:
    """LZMA's parameters for so many bytes: numbers are no text, and a reader must hold no more than 1 MiB."""
    dictionary = min(max(2 ** (size - 1).bit_length(), 4096), _DICTIONARY)
    return [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": dictionary, "lc": 0, "lp": 0, "pb": 0}]
