"""The server's side of a phase: how answers are checked and added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.protocol import NOISY_EXAMPLES, Entries, Reply
from flwr_flynn.federated.reply_fields import Sizes, of_arrays
from flwr_flynn.federated.request import Request, S
from flwr_flynn.federated.roster import Member, Sender


class Facts(NamedTuple):
    """Facts about the statistic of one party, for the roster and for reports."""

    sizes: Integers | None = None
    """(L,) samples of each class; None where they are hidden."""
    digests: tuple[str, ...] = ()
    """SHA-256 of the parts, by which a party that replies under two node ids is
    noticed."""
    change: Entries | None = None
    """See `protocol.Answer.change`."""
    result: object = None
    """Result of the party in reports; None without."""


@dataclass(frozen=True, eq=False)
class Tally(Generic[S]):
    """Rules by which the answers to a request are checked and added up.

    The defaults are those of a phase behind the counting: who answers is counted, and
    the answer is about all samples that are counted of the sender.
    """

    request: Request[S]

    @property
    def start(self) -> S:
        """The total before any answer: by default the statistic of no samples."""
        return self.request.of_parts(self.request.layout.zeros(), 0)

    @property
    def capacity(self) -> int:
        """Load up to which the sum stays exact."""
        return 2**63 - 1

    @property
    def largest(self) -> int:
        """The largest integer of one party in clear.

        Default: a 1024th of int64, so that 1024 parties fit.
        """
        return (2**63 - 1) // 1024

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        """The checked sizes of the samples that an answer in clear is about."""
        if member is None or member.sizes is None:
            raise PayloadError(
                self.request.phase,
                "a party whose counts are in the sum",
                "one that is not counted",
            )
        sizes = np.array(member.sizes, np.int64)
        n_counted = sum(sizes.tolist())
        if reply.announced != n_counted:
            raise PayloadError(
                self.request.phase,
                f"{n_counted} examples as counted",
                reply.announced,
            )
        return Sizes(sizes, n_counted)

    def check(self, statistic: S, sizes: Sizes) -> None:
        """Raise a `PayloadError` unless an answer in clear has samples of these sizes."""
        return

    def read(
        self, arrays: Sequence[Array], reply: Reply, member: Member | None
    ) -> S | None:
        """The statistic in a reply; None without samples.

        A `PayloadError` if anything of the reply is wrong.

        `member` is the sender as the run knows it, with its class sizes; None if its
        counts are not in the sum.
        """
        sizes = self.sizes_of(reply, member)
        fields = [field.capped(self.largest) for field in self.request.fields(sizes)]
        statistic = self.request.of_parts(of_arrays(arrays, fields), 1)
        self.check(statistic, sizes)
        return statistic

    def facts(self, statistic: S, n_before: int) -> Facts:
        """Facts about the statistic of a party, after those of so many others."""
        return Facts()

    def load(self, statistic: S) -> int:
        """Share of `capacity` that a statistic takes."""
        return 0

    def match(self, statistic: S, sender: Sender, gone: set[int]) -> int | None:
        """Index of the member of the saved run that a reply takes out of the sum.

        None where the reply adds. `gone` are the indices that other replies of the
        batch take out. A `PayloadError` refuses the sender.
        """
        return None


def check_announced(what: str, n_examples: int, sizes: Sizes) -> None:
    """Raise a `PayloadError` unless an answer has as many samples as it announces."""
    if n_examples != sizes.total:
        raise PayloadError(what, f"{sizes.total} examples as announced", n_examples)


def check_hidden(what: str, reply: Reply) -> None:
    """Raise a `PayloadError` if a reply with noise announces a number of samples."""
    if reply.announced != NOISY_EXAMPLES:
        expected = f"{NOISY_EXAMPLES} beside {what}"
        raise PayloadError("num_examples", expected, reply.announced)


@dataclass(frozen=True, eq=False)
class AnnouncedTally(Tally[S]):
    """Rules of a phase whose answers announce their numbers of samples.

    Nothing is counted before, and an answer has the samples that it announces; they are
    its load.
    """

    max_examples: int | None = None
    """Samples of a party, at most; by default a 1024th of the capacity."""

    what: ClassVar[str]  # the field of an error

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        announced = reply.announced
        most = self.max_examples or self.capacity // 1024
        if announced > most:
            raise PayloadError(self.what, f"at most {most} examples", announced)
        return Sizes(announced, announced)

    def check(self, statistic: S, sizes: Sizes) -> None:
        check_announced(self.what, self.load(statistic), sizes)
