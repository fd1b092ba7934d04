"""Class counts on the wire: `ClassCounts` <-> the list of arrays that Flower carries.

A message is a list of blocks, one for each hash specification it speaks of, usually one. A block is two
arrays:

1. the fingerprint of the specification, uint8, shape (32,): the bytes of `FlyHash.fingerprint`;
2. the counts: packed, uint8, shape (k,), see `packing`; noisy ones as they are, shape (L, m), in a signed type, which
   for what a party releases does not depend on them.

Everything that arrives was written by somebody else. `read_tensors` and `decode` check sizes, types and
shapes before they allocate, and a message is used whole or refused with a `PayloadError` that says what was
expected and what came.

>>> import numpy as np
>>> from flwr_flynn import ClassCounts, FlyHash, HashSpec
>>> hasher = FlyHash(HashSpec(n_features=4, hash_dim=8, row_nnz=2, hash_nnz=3, seed=7))
>>> counts = ClassCounts.from_data(hasher, np.eye(4), np.array([0, 0, 1, 1]), n_classes=2)
>>> message = encode(counts)
>>> [(array.dtype.name, array.ndim) for array in message]
[('uint8', 1), ('uint8', 1)]
>>> decode(message, hasher, n_classes=2) == counts
True
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._files import npy_header
from flwr_flynn.errors import ConfigError, CountsError, PayloadError
from flwr_flynn.federated.compression import pack, unpack
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.privacy.mechanisms import Mechanism

Array = npt.NDArray[Any]

_FINGERPRINT_BYTES = 32
_MOST_DIMENSIONS = 4
_TAIL = 40  # standard deviations that no noise goes beyond: Laplace noise does so with probability exp(-56)
_SIGNED = ("|i1", "<i2", "<i4", "<i8")


def encode(*counts: ClassCounts) -> list[Array]:
    """Counts as a message of a block each."""
    message = []
    for block in counts:
        message.append(np.frombuffer(bytes.fromhex(block.spec_fingerprint), dtype=np.uint8))
        if not block.noise:
            message.append(pack(block.array))
            continue
        # A signed type holds as much above as below zero, and one more below.
        largest = int(block.array.max(initial=0))
        least = min(int(block.array.min(initial=0)), -largest - 1)
        message.append(block.array.astype(np.min_scalar_type(least)))
    return message


def decode(
    arrays: Sequence[Array],
    hasher: FlyHash,
    n_classes: int,
    *,
    n_examples: int | None = None,
    max_examples: int | None = None,
) -> ClassCounts:
    """The counts in a message of one block, checked against what can have been sent."""
    (counts,) = decode_all(arrays, [hasher], n_classes, n_examples=n_examples, max_examples=max_examples)
    return counts


def decode_all(
    arrays: Sequence[Array],
    hashers: Sequence[FlyHash],
    n_classes: int,
    *,
    n_examples: int | None = None,
    max_examples: int | None = None,
) -> tuple[ClassCounts, ...]:
    """The counts in a message of one block for each of several hashes of the same samples."""
    # All of them are looked at before one of them is unpacked.
    blocks = _blocks(arrays, hashers, ("|u1",))
    counts = tuple(
        _check_plain(block, hasher, n_classes, n_examples, max_examples)
        for block, hasher in zip(blocks, hashers, strict=True)
    )
    for other in counts[1:]:
        if not np.array_equal(other.n_per_class, counts[0].n_per_class):
            raise PayloadError("counts", "blocks of as many samples of each class", "different numbers")
    return counts


def capacity(hasher: FlyHash) -> int:
    """The number of samples up to which the sum of any row of counts is certain to stay within int64."""
    return (2**63 - 1) // int(hasher.hash_dim)


# ---- noisy counts


def encode_release(release: ClassCounts, mechanism: Mechanism) -> list[Array]:
    """A party's private release as a message, of as many bytes whatever its counts are."""
    dtype = _release_type(mechanism)
    limit = np.iinfo(dtype).max
    fingerprint = np.frombuffer(bytes.fromhex(release.spec_fingerprint), dtype=np.uint8)
    return [fingerprint, np.clip(release.array, -limit, limit).astype(dtype)]


def decode_release(
    arrays: Sequence[Array],
    hasher: FlyHash,
    mechanism: Mechanism,
    max_examples: int | None = None,
) -> ClassCounts:
    """The noisy counts in a party's message of one block, checked for all that can be checked of them."""
    shape = mechanism.n_classes, hasher.hash_dim
    (array,) = _blocks(arrays, [hasher], (_release_type(mechanism).str,), shape)
    most = noisy_capacity(hasher)
    if max_examples is not None:
        most = min(most, max_examples + math.ceil(_TAIL * mechanism.noise_sd))
    return _received(array, hasher, mechanism, 1, most)


def decode_total(arrays: Sequence[Array], hasher: FlyHash, mechanism: Mechanism, n_releases: int) -> ClassCounts:
    """The sum of releases that a server hands out, as `encode` writes it."""
    (array,) = _blocks(arrays, [hasher], _SIGNED, (mechanism.n_classes, hasher.hash_dim))
    return _received(array, hasher, mechanism, n_releases, noisy_capacity(hasher))


def noisy_capacity(hasher: FlyHash) -> int:
    """The size up to which an entry of noisy counts may grow in a sum, see `ClassCounts`."""
    return (2**63 - 1) // int(hasher.hash_dim) // 2


def _release_type(mechanism: Mechanism) -> np.dtype[Any]:
    # By the noise alone, which is public: what the counts are must not show in the number of bytes.
    return np.dtype("<i4" if _TAIL * mechanism.noise_sd < 2**30 else "<i8")


def _received(array: Array, hasher: FlyHash, mechanism: Mechanism, n_releases: int, most: int) -> ClassCounts:
    if int(array.max()) > most or int(array.min()) < -most:
        raise PayloadError("counts", f"from -{most} to {most}", "an entry outside")
    try:
        return mechanism.received(array.astype(np.int64), hasher.fingerprint, n_releases)
    except (CountsError, ConfigError) as error:
        raise PayloadError(f"counts: {error}") from None


def _blocks(
    arrays: Any, hashers: Sequence[FlyHash], types: tuple[str, ...], shape: tuple[int, int] | None = None
) -> list[Array]:
    """What stands for the counts of each block, if it is of the right hash, type and shape, (k,) for None."""
    expected = 2 * len(hashers)
    if not isinstance(arrays, Sequence) or len(arrays) != expected:
        got = f"{len(arrays)} arrays" if isinstance(arrays, Sequence) else type(arrays).__name__
        raise PayloadError("message", f"{expected} arrays (fingerprint, counts)", got)
    return [_block(arrays[2 * i], arrays[2 * i + 1], hasher, types, shape) for i, hasher in enumerate(hashers)]


def _block(
    fingerprint: Any, counts: Any, hasher: FlyHash, types: tuple[str, ...], shape: tuple[int, int] | None
) -> Array:
    got = _typed(fingerprint, "fingerprint", ("|u1",), (_FINGERPRINT_BYTES,)).tobytes().hex()
    if got != hasher.fingerprint:
        raise PayloadError("fingerprint", f"{hasher.fingerprint[:12]}...", f"{got[:12]}...")
    return _typed(counts, "counts", types, shape)


def _typed(array: Any, name: str, types: tuple[str, ...], shape: tuple[int, ...] | None) -> Array:
    """`array`, if it is an array of one of these types and of this shape, or of any length where that is None."""
    if not isinstance(array, np.ndarray):
        raise PayloadError(name, "an array", type(array).__name__)
    if array.dtype.str not in types:
        raise PayloadError(name, f"type {' or '.join(types)}", array.dtype.str[:20])
    if shape is None:
        if array.ndim != 1:
            raise PayloadError(name, "1 dimension", array.ndim)
    elif array.shape != shape:
        raise PayloadError(name, f"shape {shape}", str(array.shape)[:60])
    return array


def _check_plain(
    packed: Array, hasher: FlyHash, n_classes: int, n_examples: int | None, max_examples: int | None
) -> ClassCounts:
    """Exact counts: they are what some set of samples makes, or they are refused."""
    # No entry is larger than the number of samples.
    array = unpack(packed, (n_classes, hasher.hash_dim), capacity(hasher))
    try:
        counts = ClassCounts(array, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint)
    except CountsError as error:
        raise PayloadError(f"counts: {error}") from None
    limit = capacity(hasher) if max_examples is None else max_examples
    if counts.n_examples > limit:
        raise PayloadError("counts", f"at most {limit} examples", counts.n_examples)
    if n_examples is not None and counts.n_examples != n_examples:
        raise PayloadError("counts", f"{n_examples} examples as announced", counts.n_examples)
    return counts


def write_tensors(arrays: Sequence[Array]) -> list[bytes]:
    """Arrays as Flower carries them: the bytes of `numpy.save`."""
    return [_saved(array) for array in arrays]


def _saved(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def read_tensors(tensors: Sequence[bytes]) -> list[Array]:
    """Flower's tensors as arrays that lie in the very bytes that came.

    Flower carries arrays as `numpy.save` wrote them and reads them with `numpy.load`, which allocates what a
    header declares before it looks at how much follows. This reader allocates nothing.
    """
    return [_read_tensor(tensor, f"array {i + 1}") for i, tensor in enumerate(tensors)]


def _read_tensor(tensor: bytes, name: str) -> Array:
    if not isinstance(tensor, bytes):
        raise PayloadError(name, "the bytes of numpy.save", type(tensor).__name__)
    stream = io.BytesIO(tensor)  # of the same bytes, not of a copy
    header = npy_header(stream, name, PayloadError, r"[<|](?:[iu][1248]|f[248])")
    if len(header.shape) > _MOST_DIMENSIONS:
        raise PayloadError(name, f"at most {_MOST_DIMENSIONS} dimensions", len(header.shape))
    start = stream.tell()
    if header.n_bytes != len(tensor) - start:
        raise PayloadError(name, f"{header.n_bytes} bytes as its header declares", len(tensor) - start)
    return header.array(tensor, start)


# ---- tables of integers, and arrays where Flower carries none


def tables(arrays: Sequence[Array], shapes: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.int64]]:
    """Arrays as int64 tables of these shapes."""
    if not isinstance(arrays, Sequence) or len(arrays) != len(shapes):
        got = len(arrays) if isinstance(arrays, Sequence) else type(arrays).__name__
        raise PayloadError("tables", f"{len(shapes)} arrays", got)
    return [
        _typed(array, f"table {i + 1}", ("<i8",), shape).astype(np.int64)
        for i, (array, shape) in enumerate(zip(arrays, shapes, strict=True))
    ]


def join(tensors: Sequence[bytes]) -> bytes:
    """Tensors as one value: Flower's evaluate channel carries no arrays back, but bytes."""
    return b"".join(struct.pack("<Q", len(tensor)) + tensor for tensor in tensors)


def split(joined: Any) -> list[bytes]:
    """The tensors that `join` made one value of."""
    if not isinstance(joined, bytes):
        raise PayloadError("statistic", "bytes", type(joined).__name__)
    tensors, start = [], 0
    while start < len(joined):
        if len(joined) < start + 8:
            raise PayloadError("statistic", "8 bytes with the size of a tensor", len(joined) - start)
        (size,) = struct.unpack_from("<Q", joined, start)
        if size > len(joined) - start - 8:
            raise PayloadError("statistic", f"{size} bytes of a tensor", len(joined) - start - 8)
        tensors.append(joined[start + 8 : start + 8 + size])
        start += 8 + size
    return tensors


def n_bytes(entries: Mapping[str, Any]) -> int:
    """Size of config or metrics entries: keys and texts as they are, 8 for a number."""
    return sum(len(str(name)) + _size(value) for name, value in entries.items())


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    return len(value) if isinstance(value, bytes) else 8
