"""Layout of an answer: its fields in order, and how their integers travel.

They travel in clear, each field as `reply_fields` packs it, or as the vector of a secure
sum, see `secure_vector`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.disclosure import Content
from flwr_flynn.federated.protocol import Reply
from flwr_flynn.federated.reply_fields import Field, contents, to_arrays
from flwr_flynn.federated.secure_vector import n_entries, of_vector, to_vector

ENTRY_BYTES = 64
"""Bytes of memory that an entry of the vector of a secure sum takes at a party, with
its masks."""

_PACKED_BYTES = 24  # memory of an integer of an answer in clear while it is packed


@dataclass(frozen=True, eq=False)
class Layout:
    """The integers of an answer.

    Parameters
    ----------
    fields : sequence of Field
        With their bounds at one party in a secure sum; in clear the bounds are 0.
    bound : int or None
        The bound of the secure sum; None in clear.
    """

    fields: Sequence[Field]
    bound: int | None

    @property
    def n_entries(self) -> int:
        """Entries of the vector of a secure sum."""
        return n_entries(self.fields, self.bound or 2)

    @property
    def memory(self) -> tuple[int, str]:
        """Bytes that an answer takes at a party while it is made, and what takes them."""
        if self.bound is not None:
            needed = ENTRY_BYTES * self.n_entries
            return needed, f"{self.n_entries} integers of a secure sum"
        n_integers = sum(field.size for field in self.fields)
        return _PACKED_BYTES * n_integers, f"{n_integers} integers of an answer"

    @property
    def contents(self) -> list[Content]:
        """Content of each array of an answer."""
        if self.bound is None:
            return contents(self.fields)
        names = dict.fromkeys(field.name for field in self.fields)
        return [Content(tuple(names), (self.n_entries,))]

    def zeros(self) -> list[Array]:
        """The integers of no samples."""
        return [np.zeros(field.shape, np.int64) for field in self.fields]

    def packed(self, parts: Sequence[Array]) -> list[Array]:
        """The arrays of an answer, from the integers of each field."""
        if self.bound is None:
            return to_arrays(self.fields, parts)
        return [to_vector(self.fields, parts, self.bound)]

    def summed(self, replies: Sequence[Reply]) -> list[Array]:
        """The sums of the parties' integers from copies of the mean of their vectors.

        A `PayloadError` where no parties have such a mean.
        """
        bound = self.bound or 2
        n = len(replies)
        if any(tuple(reply.tensors) != tuple(replies[0].tensors) for reply in replies):
            raise PayloadError(
                "secure sum", f"{n} copies of one mean", "different arrays"
            )
        arrays = codec.read_tensors(replies[0].tensors)
        shape = (self.n_entries,)
        if len(arrays) != 1 or arrays[0].dtype.str != "<f8" or arrays[0].shape != shape:
            got = ", ".join(f"{array.dtype.str} {array.shape}" for array in arrays)
            expected = f"one float64 array of shape {shape}"
            raise PayloadError("secure sum", expected, got or "none")
        exact = arrays[0] * n
        total = np.rint(exact)
        is_bounded = (np.abs(total) <= n * bound).all()
        if not is_bounded or not np.allclose(exact, total, 0, 1e-3):
            raise PayloadError(
                "secure sum",
                f"integers of at most {n} x {bound}",
                "values that are not",
            )
        return of_vector(self.fields, total.astype(np.int64), bound, n)
