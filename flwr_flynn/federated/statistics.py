"""Statistics of samples that add up: everything that a party ever sends.

The statistics of disjoint sets of samples add up to the statistic of all samples, exactly and in any order, because
they are integers. `ClassCounts` and `ColumnHistograms` have modules of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import CountsError
from flwr_flynn.model.counts import ClassCounts

Table = npt.NDArray[np.int64]


class Statistic(Protocol):
    """A value that adds, exactly."""

    def __add__(self, other: Self, /) -> Self:
        """Return the statistic of the samples of both."""


S = TypeVar("S", bound=Statistic)


@dataclass(frozen=True, eq=False)
class CountsOfSpecs:
    """Counts of the same samples, one part for each spec, in the run's order."""

    parts: tuple[ClassCounts, ...]

    def __add__(self, other: CountsOfSpecs) -> CountsOfSpecs:
        return self._each(other, operator.add)

    def __sub__(self, other: CountsOfSpecs) -> CountsOfSpecs:
        return self._each(other, operator.sub)

    def __eq__(self, other: object) -> bool:
        return self.parts == other.parts if isinstance(other, CountsOfSpecs) else NotImplemented

    @property
    def sha256(self) -> tuple[str, ...]:
        """SHA-256 of each part, in hexadecimal."""
        return tuple(part.sha256() for part in self.parts)

    def _each(self, other: CountsOfSpecs, combine: Callable[[ClassCounts, ClassCounts], ClassCounts]) -> CountsOfSpecs:
        if len(self.parts) != len(other.parts):
            raise CountsError("counts", f"{len(self.parts)} specs on both sides", len(other.parts))
        return CountsOfSpecs(tuple(combine(a, b) for a, b in zip(self.parts, other.parts, strict=True)))


@dataclass(frozen=True, eq=False)
class Tables:
    """Tables of integers, such as confusion matrices, that add entry by entry, within int64."""

    tables: tuple[Table, ...]

    def __add__(self, other: Tables) -> Tables:
        return self._combine(other, 1)

    def __sub__(self, other: Tables) -> Tables:
        return self._combine(other, -1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tables):
            return NotImplemented
        return len(self.tables) == len(other.tables) and all(map(np.array_equal, self.tables, other.tables))

    def _combine(self, other: Tables, sign: int) -> Tables:
        shapes = [table.shape for table in self.tables], [table.shape for table in other.tables]
        if shapes[0] != shapes[1]:
            raise CountsError("tables", f"shapes {shapes[0]} on both sides", str(shapes[1]))
        sums = []
        for first, second in zip(self.tables, other.tables, strict=True):
            total = first + second if sign > 0 else first - second
            # A result has left int64 where its sign is not that of `first`, and `second` cannot be why.
            unlike = first ^ second if sign < 0 else ~(first ^ second)
            if ((unlike & (first ^ total)) < 0).any():
                raise CountsError("tables", "sums within int64", "larger ones")
            sums.append(total)
        return Tables(tuple(sums))
