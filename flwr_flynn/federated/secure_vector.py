"""Integers of a reply quantised for a secure sum: one vector of small integers.

No entry is larger than the bound of the run, as SecAgg+ would clip it. Larger integers
are written in digits of base `bound`, each with the sign of the integer: the sums of
the digits make the sum of the integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.reply_fields import Field


def largest_sum(bound: int) -> int:
    """The largest magnitude at a party of integers whose sums are within int64.

    It holds for any number of parties.
    """
    return bound << 31


def _n_digits(most: int, bound: int) -> int:
    if most <= bound:
        return 1
    return -(-most.bit_length() // (bound.bit_length() - 1))


def n_entries(fields: Sequence[Field], bound: int) -> int:
    """Entries of the vector of a secure sum."""
    return sum(_n_digits(field.largest, bound) * field.size for field in fields)


def to_vector(fields: Sequence[Field], parts: Sequence[Array], bound: int) -> Integers:
    """A party's integers as one vector for a secure sum.

    Its entries have a magnitude of at most `bound`, a power of two.
    """
    bits = bound.bit_length() - 1
    digits = [np.zeros(0, np.int64)]
    for field, part in zip(fields, parts, strict=True):
        assert part.shape == field.shape
        sizes = np.abs(part)
        # SecAgg+ would clip a larger integer, which is data and not in the message.
        if (sizes > field.most).any():
            expected = f"counts of at most {bound} (run-config max-examples)"
            raise PayloadError("secure sum", expected, "a larger count")
        n = _n_digits(field.largest, bound)
        negative = part.ravel() < 0
        flat = sizes.ravel()
        for index in range(n):
            digit = flat
            if n > 1:
                digit = (flat >> bits * index) & (bound - 1)
            digits.append(np.where(negative, -digit, digit).astype(np.int64))
    return np.concatenate(digits)


def of_vector(
    fields: Sequence[Field], total: Integers, bound: int, n_parties: int
) -> list[Array]:
    """The sums of the parties' integers from the sum of their vectors."""
    bits = bound.bit_length() - 1
    parts = []
    for field in fields:
        n = _n_digits(field.largest, bound)
        digits: Array = total[: n * field.size].reshape(n, *field.shape)
        total = total[n * field.size :]
        if bits * (n - 1) > 30:  # hostile digits may leave int64
            digits = digits.astype(object)
        part = digits[-1]
        for digit in digits[-2::-1]:
            part = (part << bits) + digit
        field.check(part, n_parties, "secure sum")
        parts.append(part.astype(np.int64))
    return parts
