"""Class counts on the wire: `ClassCounts` <-> the list of arrays that Flower carries.

A message has one block for each hash specification. A block is two arrays: the fingerprint of the specification, uint8
(32,), and the counts. Exact counts are packed, uint8 (k,), see `compression`; noisy counts are (L, m) in a signed type.

Nothing is assumed of an array that arrives. Sizes, types and shapes are checked before anything is allocated, and a
message is used whole or refused with a `PayloadError`.
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
from flwr_flynn.model.model_file import narrowed
from flwr_flynn.privacy import Mechanism

Array = npt.NDArray[Any]

_FINGERPRINT_BYTES = 32
_MOST_DIMENSIONS = 4
_TAIL = 40  # standard deviations that no noise goes beyond: Laplace noise does so with probability exp(-56)
_SIGNED = ("|i1", "<i2", "<i4", "<i8")


def encode(*counts: ClassCounts) -> list[Array]:
    """Counts as a message of one block each; sums of noisy counts in the narrowest signed type that holds them."""
    message = []
    for block in counts:
        packed = narrowed(block.array) if block.noise else pack(block.array)
        message += [_fingerprint(block), packed]
    return message


def _fingerprint(counts: ClassCounts) -> Array:
    return np.frombuffer(bytes.fromhex(counts.spec_fingerprint), dtype=np.uint8)


def decode(arrays: Sequence[Array], hasher: FlyHash, n_classes: int, **limits: int | None) -> ClassCounts:
    """The exact counts in a message of one block; the limits are those of `decode_all`."""
    return decode_all(arrays, [hasher], n_classes, **limits)[0]


def decode_all(
    arrays: Sequence[Array],
    hashers: Sequence[FlyHash],
    n_classes: int,
    *,
    n_examples: int | None = None,
    max_examples: int | None = None,
) -> tuple[ClassCounts, ...]:
    """The exact counts of the same samples by several hashes.

    Refused are counts that no samples make, of more than `max_examples`, or not of the announced `n_examples`.
    """
    # All blocks are looked at before one of them is unpacked.
    pairs = zip(_blocks(arrays, hashers, ("|u1",)), hashers, strict=True)
    counts = tuple(_plain(block, hasher, n_classes, n_examples, max_examples) for block, hasher in pairs)
    check_same_samples(counts)
    return counts


def check_same_samples(counts: Sequence[ClassCounts]) -> None:
    """Raise a `PayloadError` unless counts by several specs have the same samples of each class."""
    for other in counts[1:]:
        if not np.array_equal(other.n_per_class, counts[0].n_per_class):
            raise PayloadError("counts", "the same samples of each class in all blocks", "different numbers")


def capacity(hasher: FlyHash) -> int:
    """The number of samples up to which the sum of any row of counts is certain to stay within int64."""
    return (2**63 - 1) // int(hasher.hash_dim)


def encode_release(release: ClassCounts, mechanism: Mechanism) -> list[Array]:
    """A party's private release as a message, whose size does not depend on the counts."""
    dtype = _release_type(mechanism)
    limit = np.iinfo(dtype).max
    return [_fingerprint(release), np.clip(release.array, -limit, limit).astype(dtype)]


def decode_release(
    arrays: Sequence[Array], hasher: FlyHash, mechanism: Mechanism, max_examples: int | None = None
) -> ClassCounts:
    """The noisy counts of one party; their entries can exceed `max_examples` by what the noise can add."""
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
    return capacity(hasher) // 2


def _release_type(mechanism: Mechanism) -> np.dtype[Any]:
    # By the noise alone, which is public: what the counts are must not show in the number of bytes.
    return np.dtype("<i4" if _TAIL * mechanism.noise_sd < 2**30 else "<i8")


def _received(array: Array, hasher: FlyHash, mechanism: Mechanism, n_releases: int, most: int) -> ClassCounts:
    if int(array.max()) > most or int(array.min()) < -most:
        raise PayloadError("counts", f"entries from -{most} to {most}", "an entry outside")
    try:
        return mechanism.received(array.astype(np.int64), hasher.fingerprint, n_releases)
    except (CountsError, ConfigError) as error:
        raise PayloadError("counts", error.expected, error.got, text=f"counts: {error}") from None


def _blocks(
    arrays: Any, hashers: Sequence[FlyHash], types: tuple[str, ...], shape: tuple[int, int] | None = None
) -> list[Array]:
    """The counts array of each block, of the right hash, type and shape; shape None stands for (k,)."""
    expected = 2 * len(hashers)
    if not isinstance(arrays, Sequence) or len(arrays) != expected:
        got = f"{len(arrays)} arrays" if isinstance(arrays, Sequence) else type(arrays).__name__
        raise PayloadError("message", f"{expected} arrays (fingerprint, counts)", got)
    blocks = []
    for fingerprint, counts, hasher in zip(arrays[::2], arrays[1::2], hashers, strict=True):
        got = _typed(fingerprint, "fingerprint", ("|u1",), (_FINGERPRINT_BYTES,)).tobytes().hex()
        if got != hasher.fingerprint:
            raise PayloadError("fingerprint", f"{hasher.fingerprint[:12]}...", f"{got[:12]}...")
        blocks.append(_typed(counts, "counts", types, shape))
    return blocks


def _typed(array: Any, name: str, types: tuple[str, ...], shape: tuple[int, ...] | None) -> Array:
    """`array` if it has one of these types and this shape; shape None stands for one dimension."""
    if not isinstance(array, np.ndarray):
        raise PayloadError(name, "an array", type(array).__name__)
    if array.dtype.str not in types:
        raise PayloadError(name, f"type {' or '.join(types)}", array.dtype.str[:20])
    if shape is None and array.ndim != 1:
        raise PayloadError(name, "1 dimension", array.ndim)
    if shape is not None and array.shape != shape:
        raise PayloadError(name, f"shape {shape}", str(array.shape)[:60])
    return array


def _plain(
    packed: Array, hasher: FlyHash, n_classes: int, n_examples: int | None, max_examples: int | None
) -> ClassCounts:
    array = unpack(packed, (n_classes, hasher.hash_dim), capacity(hasher))
    try:
        counts = ClassCounts(array, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint)
    except CountsError as error:
        raise PayloadError("counts", error.expected, error.got, text=f"counts: {error}") from None
    limit = capacity(hasher) if max_examples is None else max_examples
    if counts.n_examples > limit:
        raise PayloadError("counts", f"at most {limit} examples", counts.n_examples)
    if n_examples is not None and counts.n_examples != n_examples:
        raise PayloadError("counts", f"{n_examples} examples as announced", counts.n_examples)
    return counts


def write_tensors(arrays: Sequence[Array]) -> list[bytes]:
    """Arrays as Flower carries them: the bytes of `numpy.save`."""
    tensors = []
    for array in arrays:
        stream = io.BytesIO()
        np.save(stream, array, allow_pickle=False)
        tensors.append(stream.getvalue())
    return tensors


def read_tensors(tensors: Sequence[bytes]) -> list[Array]:
    """Flower's tensors as views of their bytes. `numpy.load` would allocate whatever a header declares."""
    arrays = []
    for name, tensor in ((f"array {i}", tensor) for i, tensor in enumerate(tensors, start=1)):
        if not isinstance(tensor, bytes):
            raise PayloadError(name, "the bytes of numpy.save", type(tensor).__name__)
        stream = io.BytesIO(tensor)  # of the same bytes, not of a copy
        header = npy_header(stream, name, PayloadError, r"[<|](?:[iu][1248]|f[248])")
        if len(header.shape) > _MOST_DIMENSIONS:
            raise PayloadError(name, f"at most {_MOST_DIMENSIONS} dimensions", len(header.shape))
        start = stream.tell()
        if header.n_bytes != len(tensor) - start:
            raise PayloadError(name, f"{header.n_bytes} bytes as its header declares", len(tensor) - start)
        arrays.append(header.array(tensor, start))
    return arrays


def tables(arrays: Sequence[Array], shapes: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.int64]]:
    """Arrays that arrived, as int64 tables of these shapes."""
    if not isinstance(arrays, Sequence) or len(arrays) != len(shapes):
        got = len(arrays) if isinstance(arrays, Sequence) else type(arrays).__name__
        raise PayloadError("tables", f"{len(shapes)} arrays", got)
    pairs = enumerate(zip(arrays, shapes, strict=True), start=1)
    return [_typed(array, f"table {i}", ("<i8",), shape).astype(np.int64) for i, (array, shape) in pairs]


def join(tensors: Sequence[bytes]) -> bytes:
    """Tensors as one value: Flower's evaluate channel carries no arrays back, but bytes."""
    return b"".join(struct.pack("<Q", len(tensor)) + tensor for tensor in tensors)


def split(joined: Any) -> list[bytes]:
    """The tensors in a value that `join` made."""
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
    values = [value.encode(errors="replace") if isinstance(value, str) else value for value in entries.values()]
    return sum(map(len, map(str, entries))) + sum(len(each) if isinstance(each, bytes) else 8 for each in values)
