"""Secure sums: a party's statistic as one vector of small integers, and the sum of the parties' vectors.

The vector of a request has as many entries as `Summed.layout` says, none larger than the run's bound. Larger integers
are written in digits of base `bound`, each with the sign of the integer: the sums of the digits make the sum of the
integers. SecAgg+ hands the server one copy of the mean for each party in it, see `flower.secagg`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError, FlyNNError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.access import NOISY_EXAMPLES, SampleAccess
from flwr_flynn.federated.collect import Batch, first_of_each
from flwr_flynn.federated.protocol import EXACT, PARTY, SECURE, TRAIN, Answer, Array, Config, Reply, key
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.roster import Member, Roster, clean
from flwr_flynn.federated.run_spec import LARGEST_BOUND, RunSpec, Secure, check_bound
from flwr_flynn.federated.statistics import S

MODULUS = 2**32

ENTRY_BYTES = 64
"""Bytes of memory that an entry of a vector takes at a party, with its masks."""

Layout = list[tuple[tuple[int, ...], int]]
"""Shape of each array of integers in a vector, and their largest magnitude at a party."""


def bound_for(most: int) -> int:
    """The least power of two that is no less than a number of samples, and at least 2."""
    if not 1 <= most <= LARGEST_BOUND:
        raise ConfigError("secure sum", f"from 1 to {LARGEST_BOUND} samples at a party", most)
    return max(2, 1 << (most - 1).bit_length())


def check_room(n_parties: int, bound: int) -> None:
    """Raise a `ConfigError` if the sum of so many parties, of counts up to `bound`, could wrap around."""
    if n_parties > room(bound):
        raise ConfigError("secure sum", f"at most {room(bound)} parties with counts up to {bound}", n_parties)


def room(bound: int) -> int:
    """Parties that a sum has room for: at the modulus itself all weights together would be 0."""
    return (MODULUS - 1) // (2 * bound)


def announced_bound(config: Config, required: bool = False) -> int | None:
    """The bound of the secure sum that a request is for; None in clear, which is refused if it is `required`."""
    if "bound" not in config and not required:
        return None
    bound = config.json("bound", 20)
    try:
        check_bound(bound)
    except ConfigError as error:
        raise PayloadError(key("bound"), error.expected, error.got) from None
    return int(bound)


def largest_sum(bound: int) -> int:
    """The largest magnitude at a party of integers whose sums are within int64, however many parties there are."""
    return bound << 31


class Summed(Request[S]):
    """A request that parties answer in clear or, if it has a `bound`, in a secure sum over the train channel."""

    run: RunSpec  # of those that have no bound of their own

    @property
    def bound(self) -> int | None:
        """The bound of the secure sum; None in clear."""
        return self.run.bound

    @classmethod
    def channel_of(cls, entries: Mapping[str, Any]) -> str:
        return TRAIN if key("bound") in entries else cls.channel

    @property
    def discloses(self) -> str:
        return EXACT if self.bound is None else SECURE

    @abstractmethod
    def measured(self, party: SampleAccess) -> tuple[S, int]:
        """The party's statistic, and the number of examples that goes with it in clear."""

    @abstractmethod
    def packed(self, statistic: S) -> list[Array]:
        """The arrays of an answer in clear."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The integers of a statistic in a secure sum."""

    @abstractmethod
    def parts(self, statistic: S) -> list[npt.NDArray[Any]]:
        """The arrays of integers that `layout` describes."""

    @abstractmethod
    def of_parts(self, parts: list[npt.NDArray[Any]], n_parties: int) -> S:
        """The sum of the parties' statistics from the sums of their parts; an error if it is the sum of none."""

    @property
    def n_entries(self) -> int:
        """Entries of the vector."""
        return sum(_n_digits(most, self.bound or 2) * math.prod(shape) for shape, most in self.layout)

    def compute(self, party: SampleAccess) -> Answer:
        if self.bound is None:
            statistic, n_examples = self.measured(party)
            return Answer(self.packed(statistic), n_examples)
        party.mask(Secure(self.bound))
        party.check_memory(ENTRY_BYTES * self.n_entries, f"a secure sum of {self.n_entries} integers")
        parts = self.parts(self.measured(party)[0])
        return Answer([to_vector(parts, self.layout, self.bound)], NOISY_EXAMPLES)

    def summed(self, replies: Sequence[Reply]) -> S:
        """The sum of the parties' statistics from copies of the mean of their vectors."""
        bound, n = self.bound or 2, len(replies)
        if any(tuple(reply.tensors) != tuple(replies[0].tensors) for reply in replies):
            raise PayloadError("secure sum", f"{n} copies of one mean", "different arrays")
        arrays, shape = codec.read_tensors(replies[0].tensors), (self.n_entries,)
        if len(arrays) != 1 or arrays[0].dtype.str != "<f8" or arrays[0].shape != shape:
            got = ", ".join(f"{array.dtype.str} {array.shape}" for array in arrays) or "none"
            raise PayloadError("secure sum", f"one float64 array of shape {shape}", got)
        exact = arrays[0] * n
        total = np.rint(exact)
        if not (np.abs(total) <= n * bound).all() or not np.allclose(exact, total, 0, 1e-3):
            raise PayloadError("secure sum", f"integers of at most {n} x {bound}", "values that are not")
        return self.of_parts(of_vector(total.astype(np.int64), self.layout, bound, n), n)


def _n_digits(most: int, bound: int) -> int:
    return 1 if most <= bound else -(-most.bit_length() // (bound.bit_length() - 1))


def to_vector(parts: Sequence[npt.NDArray[Any]], layout: Layout, bound: int) -> npt.NDArray[np.int64]:
    """A party's integers as one vector of integers of magnitude up to `bound`, a power of two."""
    bits, digits = bound.bit_length() - 1, [np.zeros(0, np.int64)]
    for part, (shape, most) in zip(parts, layout, strict=True):
        assert part.shape == shape
        flat = part.ravel()
        sizes = np.abs(flat)
        if (sizes > most).any():  # SecAgg+ would clip it; the integer itself is data
            expected = f"counts of at most {bound} (run-config max-examples)"
            raise PayloadError("secure sum", expected, "a larger count")
        n = _n_digits(most, bound)
        for k in range(n):
            digit = sizes if n == 1 else (sizes >> bits * k) & (bound - 1)
            digits.append(np.where(flat < 0, -digit, digit).astype(np.int64))
    return np.concatenate(digits)


def of_vector(total: npt.NDArray[np.int64], layout: Layout, bound: int, n_parties: int) -> list[npt.NDArray[Any]]:
    """The sums of the parties' integers from the sum of their vectors; Python integers where they may leave int64."""
    bits, parts = bound.bit_length() - 1, []
    for shape, most in layout:
        n, size = _n_digits(most, bound), math.prod(shape)
        digits: npt.NDArray[Any] = total[: n * size].reshape(n, *shape)
        total = total[n * size :]
        if bits * (n - 1) > 30:
            digits = digits.astype(object)
        part = digits[-1]
        for digit in digits[-2::-1]:
            part = (part << bits) + digit
        if (np.abs(part) > n_parties * most).any():
            raise PayloadError("secure sum", f"integers that {n_parties} parties can have", "larger ones")
        parts.append(part.astype(np.int64) if most <= largest_sum(bound) else part.astype(object))
    return parts


def collect_secure(
    request: Request[Any],
    total: Any,
    roster: Roster,
    counted: Roster,
    replies: Sequence[Reply],
    batch: Batch[Any] | None = None,
) -> Batch[Any]:
    """Make the sum out of copies of its mean: all senders are in it, or none is. See `collect.Collect`."""
    assert isinstance(request, Summed)  # of a plan that `plan.phases_of` made
    if batch is not None:
        if replies:
            raise ConfigError("secure sum", "all replies at once", f"{len(replies)} after others")
        return batch
    batch = Batch(total, repeated=[reply.cid for reply in replies if reply.cid in roster])
    first = {cid: reply for cid, reply in first_of_each(replies).items() if cid not in roster}
    if not first:
        return batch
    try:
        batch.total = request.add(total, request.summed(list(first.values())))
    except FlyNNError as error:
        batch.refused = dict.fromkeys(first, f"refused: with its whole secure sum: {error}")
        return batch
    for cid, reply in first.items():
        name = clean(reply.metrics.get(PARTY), 64)
        batch.names |= {cid: name} if name else {}
        batch.passed[cid] = reply
        batch.members[cid] = Member(name, cid, roster.identify(cid), bytes=reply.n_bytes)
    return batch
