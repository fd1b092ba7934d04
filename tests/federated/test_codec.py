"""A message says what was counted, whole, or it is refused.

Nothing is allocated for a message that is refused.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.compression import pack
from tests.fakes import HASHER, RUN, counts_of, points
from tests.memory import traced
from tests.raising import raises

L = RUN.n_classes
M = HASHER.hash_dim
RHO = HASHER.hash_nnz


def good() -> list[np.ndarray]:
    return codec.encode(counts_of(*points(9)))


def repacked(change: object) -> list[np.ndarray]:
    """A message of other counts, which anybody can pack."""
    counts = counts_of(*points(9)).array.astype(np.uint64)
    return [good()[0], pack(change(counts))]


def one_more(array: np.ndarray) -> np.ndarray:
    array[0, 0] += 1
    return array


def balanced_row(array: np.ndarray) -> np.ndarray:
    """Counts of a right row sum for 2 points, with one entry above 2."""
    array[:] = 0
    array[0, :3] = 4, 2 * RHO - 5, 1
    return array


OF_CLASS = "counts of at most the samples of the class, 2 in row 0"
HOSTILE = [
    (one_more, "row sums that are multiples of hash_nnz, 3", "4 in row 0"),
    (balanced_row, OF_CLASS, "4"),
]


@pytest.mark.parametrize(("change", "expected", "got"), HOSTILE)
def test_counts_that_no_samples_have_are_refused(change, expected, got):
    with raises(PayloadError, field="counts", expected=expected, got=got):
        codec.decode_all(repacked(change), [HASHER], RUN.n_classes)


# ---- tensors


def npy(array: np.ndarray, **kwargs: object) -> bytes:
    stream = BytesIO()
    np.lib.format.write_array(stream, array, **kwargs)
    return stream.getvalue()


@pytest.mark.parametrize(
    "dtype", ["u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8", "<f4", "<f8"]
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (0, 3), (1, 2, 3, 4)])
@pytest.mark.parametrize("order", [np.ascontiguousarray, np.asfortranarray])
def test_tensors_are_read_as_numpy_reads_them(dtype, shape, order):
    array = order(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype))
    (read,) = codec.read_tensors([npy(array)])
    assert read.dtype == array.dtype
    assert not read.flags.writeable
    np.testing.assert_array_equal(read, array)


def with_header(text: str, body: bytes = b"") -> bytes:
    header = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


def shaped(shape: str, descr: str = "<f8", body: bytes = b"", more: str = "") -> bytes:
    """A tensor whose header declares this shape."""
    return with_header(
        f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}{more}",
        body,
    )


HOSTILE_TENSORS = {
    "nothing": b"",
    "header longer than all": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100),
    "surplus": npy(np.arange(10)) + b"\0",
    "pickle": npy(np.array([{}], object), allow_pickle=True),
    "big-endian": npy(np.arange(3, dtype=">i4")),
    "texts": npy(np.array(["a"])),
    "giant": shaped("9999999999, 9999999999"),
    "zero-size, u1": shaped("9999999999, 0, 9999999999", "|u1"),
    "zero-size, f8": shaped("9999999999, 9999999999, 9999999999, 0"),
    "no bytes": "text",
}


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_hostile_tensors_are_refused(name):
    with traced() as memory, raises(PayloadError, field="array 2"):
        codec.read_tensors([npy(np.arange(3)), HOSTILE_TENSORS[name]])
    assert memory.peak < 2**20
