"""Counts of the same samples by several hashes, with the sums of a linear part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from flwr_flynn.errors import CountsError
from flwr_flynn.model.counts import Additive, ClassCounts
from flwr_flynn.model.gram import GramMatrix


@dataclass(frozen=True)
class CountsOfSpecs(Additive):
    """Counts of the same samples, one part for each spec, in the run's order.

    With a linear part they have its sums, of those parties that send some.
    """

    parts: tuple[ClassCounts, ...]
    linear: GramMatrix | None = None

    @property
    def sha256(self) -> tuple[str, ...]:
        """SHA-256 of each part, in hexadecimal, and of the sums of a linear part."""
        digests = tuple(part.sha256() for part in self.parts)
        if self.linear is None:
            return digests
        return (*digests, self.linear.sha256())

    def _combined(self, other: Self, sign: int) -> Self:
        sides = [
            (len(counts.parts), counts.linear is not None) for counts in (self, other)
        ]
        if sides[0] != sides[1]:
            raise CountsError(
                "counts", f"{sides[0][0]} specs on both sides", sides[1][0]
            )
        linear = self.linear
        if linear is not None and other.linear is not None:
            linear = linear._combined(other.linear, sign)
        pairs = zip(self.parts, other.parts, strict=True)
        parts = tuple(mine._combined(theirs, sign) for mine, theirs in pairs)
        return replace(self, parts=parts, linear=linear)
