"""Bound of the entries of a party's vector in a secure sum, and room for the sum."""

from __future__ import annotations

from typing import cast

from flwr_flynn.errors import ConfigError

LARGEST_BOUND = 2**29
"""The largest bound of a secure sum: it has room for three parties."""

MODULUS = 2**32
"""Modulus of a secure sum."""

LEAST_PARTIES = 3
"""Parties of a secure sum: in a sum of two, each sees the other's counts."""


def check_bound(bound: object) -> None:
    """Raise a `ConfigError` unless `bound` can be the bound of a secure sum."""
    is_small = type(bound) is int and 2 <= bound <= LARGEST_BOUND
    if not is_small or cast(int, bound).bit_count() != 1:
        raise ConfigError(
            "bound", f"a power of two from 2 to {LARGEST_BOUND}", str(bound)[:40]
        )


def bound_for(most: int) -> int:
    """The least power of two that is no less than a number of samples, and at least 2."""
    if not 1 <= most <= LARGEST_BOUND:
        raise ConfigError(
            "secure sum", f"from 1 to {LARGEST_BOUND} samples at a party", most
        )
    return max(2, 1 << (most - 1).bit_length())


def check_room(n_parties: int, bound: int) -> None:
    """Raise a `ConfigError` if the sum of so many parties could wrap around.

    Their counts are at most `bound`.
    """
    if n_parties > room(bound):
        raise ConfigError(
            "secure sum",
            f"at most {room(bound)} parties with counts up to {bound}",
            n_parties,
        )


def room(bound: int) -> int:
    """Parties that a sum has room for.

    The modulus itself is too many: all weights together would be 0.
    """
    return (MODULUS - 1) // (2 * bound)
