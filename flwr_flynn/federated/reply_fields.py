"""Fields of a reply: its arrays of integers, each declared once.

From the fields follow the arrays of a message and the checks of one that arrives, sizes
before anything is unpacked; and the vector of a secure sum, see `secure_vector`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.compression import (
    pack,
    pack_numbers,
    pack_signed,
    unpack,
    unpack_numbers,
    unpack_signed,
)
from flwr_flynn.federated.disclosure import Content
from flwr_flynn.model.model_file import narrowed

COUNTS = "counts"
NUMBERS = "numbers"
PLAIN = "plain"
"""Forms of a field in a message: packed as a matrix of mostly small integers, packed
one after the other, or an array of NumPy. Packed ones are described in `compression`.
"""

_FINGERPRINT_BYTES = 32


class Sizes(NamedTuple):
    """Upper bounds of the sample counts."""

    per_class: Integers | int  # (L,), or one number for all classes
    total: int


@dataclass(frozen=True, eq=False)
class Field:
    """One array of integers in an answer.

    Parameters
    ----------
    name : str
        The field of a `PayloadError`.
    shape : tuple of int
        Two dimensions for `COUNTS`.
    most : int or array of int
        The largest magnitude of the integers of one party.
    form : {"counts", "numbers", "plain"}, default="counts"
    is_signed : bool, default=False
        True if integers may be negative.
    types : tuple of str, default=("<i8",)
        In plain form: NumPy's types in which it may travel. It is written in the only
        one, within whose range it is clipped, or in the narrowest.
    fingerprint : str, default=""
        Of the hash whose counts these are, in hexadecimal; it travels before them,
        uint8 (32,).
    is_open : bool, default=False
        True if there may be fewer integers than the shape says, in form "numbers".
    """

    name: str
    shape: tuple[int, ...]
    most: int | Integers
    form: str = COUNTS
    is_signed: bool = False
    types: tuple[str, ...] = ("<i8",)
    fingerprint: str = ""
    is_open: bool = False

    @property
    def size(self) -> int:
        """Number of integers."""
        return math.prod(self.shape)

    @property
    def largest(self) -> int:
        """The largest magnitude of all."""
        if isinstance(self.most, int):
            return self.most
        return int(self.most.max(initial=0))

    def capped(self, most: int) -> Field:
        """The field with integers up to `most` alone."""
        if isinstance(self.most, int):
            return replace(self, most=min(self.most, most))
        return replace(self, most=np.minimum(self.most, most))

    def check(self, part: Array, n_parties: int = 1, name: str = "") -> None:
        """Raise a `PayloadError` unless these integers can be those of so many parties.

        The error has the field `name`, by default the field's own.
        """
        most = n_parties * self.most
        largest = n_parties * self.largest
        if self.is_signed:
            is_low = part < -most
            least = -largest
        else:
            is_low = part < 0
            least = 0
        if is_low.any() or (part > most).any():
            raise PayloadError(
                name or self.name,
                f"entries from {least} to {largest}",
                "an entry outside",
            )

    def packed(self, part: Array) -> Array:
        """The integers as an array of a message."""
        if self.form == NUMBERS:
            return pack_numbers(part.ravel())
        if self.form == COUNTS:
            if self.is_signed:
                return pack_signed(part)
            return pack(part)
        if len(self.types) > 1:
            return narrowed(part)
        limit = np.iinfo(self.types[0]).max
        return np.clip(part, -limit, limit).astype(self.types[0])

    def unpacked(self, array: Array) -> Array:
        """The integers in an array whose form was checked.

        A `PayloadError` unless they are within their bounds.
        """
        if self.form == NUMBERS:
            part = unpack_numbers(array, self.size, self.largest)
            if self.is_open:
                self.check(part)
                return part
            if len(part) != self.size:
                raise PayloadError(self.name, f"{self.size} integers", len(part))
        elif self.form == COUNTS:
            n_rows, n_columns = self.shape
            unpacking = unpack
            if self.is_signed:
                unpacking = unpack_signed
            part = unpacking(array, (n_rows, n_columns), self.largest)
        else:
            part = array.astype(np.int64)
        part = part.reshape(self.shape)
        self.check(part)
        return part


def _check_typed(
    array: object, name: str, types: tuple[str, ...], shape: tuple[int, ...] | None
) -> None:
    """Raise a `PayloadError` unless an array has one of these types and this shape.

    None stands for the shapes of one dimension.
    """
    if not isinstance(array, np.ndarray):
        raise PayloadError(name, "an array", type(array).__name__)
    if array.dtype.str not in types:
        raise PayloadError(name, f"type {' or '.join(types)}", array.dtype.str[:20])
    if shape is None and array.ndim != 1:
        raise PayloadError(name, "1 dimension", array.ndim)
    if shape is not None and array.shape != shape:
        raise PayloadError(name, f"shape {shape}", str(array.shape)[:60])


def contents(fields: Sequence[Field]) -> list[Content]:
    """Content of each array of a message."""
    announced = []
    for field in fields:
        if field.fingerprint:
            announced.append(Content(("fingerprint",), (_FINGERPRINT_BYTES,)))
        shape: tuple[int, ...] | None = field.shape
        if field.is_open:
            shape = None
        announced.append(Content((field.name,), shape))
    return announced


def to_arrays(fields: Sequence[Field], parts: Sequence[Array]) -> list[Array]:
    """The arrays of a message, from the integers of each field."""
    arrays = []
    for field, part in zip(fields, parts, strict=True):
        if field.fingerprint:
            arrays.append(np.frombuffer(bytes.fromhex(field.fingerprint), np.uint8))
        arrays.append(field.packed(part))
    return arrays


def of_arrays(arrays: Sequence[Array], fields: Sequence[Field]) -> list[Array]:
    """The integers of each field in a message that may come from anybody.

    A `PayloadError` if anything is wrong. All arrays are looked at before one of them
    is unpacked.
    """
    _check_number(arrays, [content.fields[0] for content in contents(fields)])
    rest = iter(arrays)
    packed = []
    for field in fields:
        if field.fingerprint:
            array = next(rest)
            _check_typed(array, "fingerprint", ("|u1",), (_FINGERPRINT_BYTES,))
            got = array.tobytes().hex()
            if got != field.fingerprint:
                raise PayloadError(
                    "fingerprint", f"{field.fingerprint[:12]}...", f"{got[:12]}..."
                )
        array = next(rest)
        if field.form == PLAIN:
            _check_typed(array, field.name, field.types, field.shape)
        else:
            _check_typed(array, field.name, ("|u1",), None)
        packed.append(array)
    return [field.unpacked(array) for field, array in zip(fields, packed, strict=True)]


def _check_number(arrays: object, names: Sequence[str]) -> None:
    """Raise a `PayloadError` unless a message has an array for each of these names."""
    got = type(arrays).__name__
    if isinstance(arrays, Sequence):
        if len(arrays) == len(names):
            return
        got = f"{len(arrays)} arrays"
    expected = ", ".join(names[:4])
    if len(names) > 4:
        expected += ", ..."
    raise PayloadError("message", f"{len(names)} arrays ({expected})", got)
