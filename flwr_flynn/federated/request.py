"""Requests: announcements of phases, answers at a party, and checks at the server.

A new phase takes one module: a `Request` decorated with `register`, by whose phase name
parties find it, and a `Phase`.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np

from flwr_flynn import __version__
from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.disclosure import Content
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.protocol import (
    EXACT,
    NOISY,
    NOISY_EXAMPLES,
    NOTHING,
    PHASE,
    RESULTS,
    SECURE,
    TRAIN,
    VERSION,
    Answer,
    Config,
    Entries,
    Reply,
    Scalar,
)
from flwr_flynn.federated.reply_fields import (
    Field,
    Sizes,
    contents,
    of_arrays,
    to_arrays,
)
from flwr_flynn.federated.roster import Member, Sender
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.sample_access import SampleAccess
from flwr_flynn.federated.secure_vector import (
    largest_sum,
    n_entries,
    of_vector,
    to_vector,
)

ENTRY_BYTES = 64
"""Bytes of memory that an entry of the vector of a secure sum takes at a party, with
its masks."""

_PACKED_BYTES = 24  # memory of an integer of an answer in clear while it is packed


SENTENCES = {
    NOISY: "Sums with noise: nobody is singled out beyond the bound epsilon, which "
    "max-epsilon keeps.",
    SECURE: "A masked summand: a server that follows the protocol (secure) reads sums "
    "alone; a known row shows there.",
    RESULTS: "Results on held-out rows: only who knows all others can single one out; "
    "test-fraction=0 keeps them.",
    NOTHING: "Nothing about the rows: nobody is singled out.",
    EXACT: "Exact figures of another app about the rows: ask its authors whether a "
    "person is singled out.",
}
"""A sentence about a message, for a data-protection officer, by its kind of disclosure.
"""

S = TypeVar("S")
"""A statistic: a value of the party's samples that adds, exactly."""


class Request(ABC, Generic[S]):
    """Announcement of one phase: a request for integers.

    They are asked for in clear or, with a `bound`, in a secure sum.

    `fields` declares the integers. Their packing, their checks, the vector of a secure
    sum, its length and its memory follow from that; `check` has the rules that are
    special to a phase. `from_config` and `compute` run at a party, the other methods at
    the server.
    """

    phase: ClassVar[str]  # its name, on the wire as well
    sentence: ClassVar[str] = SENTENCES[EXACT]  # about an answer of exact figures
    channel: ClassVar[str] = TRAIN
    is_withdrawal: ClassVar[bool] = False
    """True if only parties that leave the federation answer."""
    is_update: ClassVar[bool] = False
    """True if only parties whose samples have changed answer."""
    proves: ClassVar[bool] = False
    """True if the server keeps who answered, by the `MEMBER` proof as well."""

    @abstractmethod
    def to_config(self) -> dict[str, Scalar]:
        """Config entries for a party, without `PHASE`."""

    @classmethod
    @abstractmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], party: SampleAccess
    ) -> Request[S]:
        """The request that a server announced.

        A `PayloadError` if it is malformed, or beyond the party's limits.
        """

    @abstractmethod
    def fields(self, sizes: Sizes) -> list[Field]:
        """The integers of an answer about samples of these sizes."""

    @abstractmethod
    def measured(self, party: SampleAccess) -> tuple[S, int]:
        """The party's statistic, and the number of examples that goes with it in clear."""

    def parts(self, statistic: S) -> list[Array]:
        """The integers of each field: by default those of `Tables`."""
        return [*statistic.tables]  # type: ignore[attr-defined]

    @abstractmethod
    def of_parts(self, parts: list[Array], n_parties: int) -> S:
        """The statistic with these integers, within their bounds, of so many parties.

        An error if there is none.
        """

    def arrays(self) -> list[Array]:
        """Arrays that go along with the config entries."""
        return []

    def check(self, statistic: S, sizes: Sizes) -> None:
        """Raise a `PayloadError` unless an answer in clear has samples of these sizes."""
        return

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        """The checked sizes of the samples that an answer in clear is about.

        By default these are all samples that are counted of the sender.
        """
        if member is None or member.sizes is None:
            raise PayloadError(
                self.phase,
                "a party whose counts are in the sum",
                "one that is not counted",
            )
        sizes = np.array(member.sizes, np.int64)
        n_counted = sum(sizes.tolist())
        if reply.announced != n_counted:
            raise PayloadError(
                self.phase, f"{n_counted} examples as counted", reply.announced
            )
        return Sizes(sizes, n_counted)

    @property
    def bound(self) -> int | None:
        """The bound of the secure sum; None in clear."""
        return None

    @property
    def discloses(self) -> str:
        """Kind of disclosure: `EXACT`, `NOISY`, `SECURE`, `RESULTS` or `NOTHING`."""
        if self.bound is None:
            return EXACT
        return SECURE

    def admit(self, options: PartyOptions) -> None:
        """Raise unless a party with these options gives an answer.

        It is called once, before any sample is looked at.
        """
        if self.discloses == SECURE and self.bound is None:
            raise PayloadError(
                "bound", f"the bound of a secure sum, for phase {self.phase}", "nothing"
            )
        options.admit(self.discloses, self.phase, self.is_withdrawal)

    @property
    def layout(self) -> list[Field]:
        """The integers of an answer, with their bounds at one party in a secure sum.

        In clear the bounds are 0.
        """
        bound = self.bound or 0
        return [
            field.capped(largest_sum(bound))
            for field in self.fields(Sizes(bound, bound))
        ]

    @property
    def largest(self) -> int:
        """The largest integer of one party in clear.

        Default: a 1024th of int64, so that 1024 parties fit.
        """
        return (2**63 - 1) // 1024

    @property
    def n_entries(self) -> int:
        """Entries of the vector of a secure sum."""
        return n_entries(self.layout, self.bound or 2)

    @property
    def zero(self) -> S:
        """The statistic of no samples."""
        zeros: list[Array] = [np.zeros(field.shape, np.int64) for field in self.layout]
        return self.of_parts(zeros, 0)

    @property
    def start(self) -> S:
        """The total before any answer."""
        return self.zero

    def compute(self, party: SampleAccess) -> Answer:
        """The party's answer.

        An error is a refusal: its text travels to the server and holds no value of the
        data.
        """
        if self.bound is not None:
            party.mask(self.bound, None)
            party.check_memory(
                ENTRY_BYTES * self.n_entries,
                f"a secure sum of {self.n_entries} integers",
            )
        else:
            n_integers = sum(field.size for field in self.layout)
            party.check_memory(
                _PACKED_BYTES * n_integers, f"an answer of {n_integers} integers"
            )
        statistic, n_examples = self.measured(party)
        # Checked in every phase, so that no phase has them in its sum.
        if self.bound is not None and n_examples > self.bound:
            raise PayloadError(
                "secure sum",
                f"at most {self.bound} samples (run-config max-examples)",
                "more",
            )
        return self.answer(statistic, n_examples)

    def answer(self, statistic: S, n_examples: int) -> Answer:
        """The answer with a statistic, of so many samples."""
        parts = self.parts(statistic)
        if self.bound is None:
            arrays = to_arrays(self.layout, parts)
            return Answer(arrays, n_examples, statistic=statistic)
        vector = to_vector(self.layout, parts, self.bound)
        return Answer([vector], NOISY_EXAMPLES, statistic=statistic)

    @property
    def contents(self) -> list[Content]:
        """Content of each array of an answer."""
        if self.bound is None:
            return contents(self.layout)
        names = dict.fromkeys(field.name for field in self.layout)
        return [Content(tuple(names), (self.n_entries,))]

    def read(
        self, arrays: Sequence[Array], reply: Reply, member: Member | None
    ) -> S | None:
        """The statistic in a reply; None without samples.

        A `PayloadError` if anything of the reply is wrong.

        `member` is the sender as the run knows it, with its class sizes; None if its
        counts are not in the sum.
        """
        sizes = self.sizes_of(reply, member)
        fields = [field.capped(self.largest) for field in self.fields(sizes)]
        statistic = self.of_parts(of_arrays(arrays, fields), 1)
        self.check(statistic, sizes)
        return statistic

    def sizes(self, statistic: S) -> Integers | None:
        """(L,) samples of each class in a statistic; None where they are hidden."""
        return None

    def load(self, statistic: S) -> int:
        """Share of `capacity` that a statistic takes: by default its number of samples."""
        sizes = self.sizes(statistic)
        if sizes is None:
            return 0
        return sum(sizes.tolist())

    @property
    def capacity(self) -> int:
        """Load up to which the sum stays exact."""
        return 2**63 - 1

    def digests(self, statistic: S) -> tuple[str, ...]:
        """SHA-256 of the parts of a statistic.

        By them a party that replies under two node ids is noticed.
        """
        return ()

    def change(self, statistic: S) -> Entries | None:
        """Samples and SHA-256 of counts that an answer in clear replaces or takes out.

        They are those of "before", and of "now" or None.
        """
        return None

    def party_result(self, statistic: S, n_before: int) -> object:
        """Result of a party in reports, after those of so many others; None without."""
        return None

    def match(self, statistic: S, sender: Sender, gone: set[int]) -> int | None:
        """Index of the member of the saved run that a reply takes out of the sum.

        None where the reply adds. `gone` are the indices that other replies of the
        batch take out. A `PayloadError` refuses the sender.
        """
        return None

    def add(self, total: S, statistic: S) -> S:
        """The total with one more statistic."""
        return cast(S, operator.add(total, statistic))

    def summed(self, replies: Sequence[Reply]) -> S:
        """The sum of the parties' statistics from copies of the mean of their vectors."""
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
        parts = of_vector(self.layout, total.astype(np.int64), bound, n)
        return self.of_parts(parts, n)


@dataclass(frozen=True, eq=False)
class RunRequest(Request[S]):
    """A request about the party's samples as the specs of a run hash them."""

    run: RunSpec

    @property
    def bound(self) -> int | None:
        return self.run.bound

    def to_config(self) -> dict[str, Scalar]:
        return {**self.run.to_config()}


def announced_run(config: Config, party: SampleAccess) -> RunSpec:
    """The run that a server announced, if the party can hash by it.

    It needs the memory, and rows of its hashes with the announced fingerprints.
    """
    run = RunSpec.from_config(config)
    party.check_run(run, config)
    return run


AnyRequest = type[Request[Any]]
R = TypeVar("R", bound=AnyRequest)

_REQUESTS: dict[str, AnyRequest] = {}


def register(request: R) -> R:
    """Make a request known to the parties of this process.

    A `ConfigError` if its phase has the name of another request's.
    """
    known = _REQUESTS.setdefault(request.phase, request)
    if known is not request and known.__qualname__ != request.__qualname__:
        raise ConfigError(
            "phase", "a new name", f"{request.phase!r} of {known.__qualname__}"
        )
    _REQUESTS[request.phase] = request
    return request


def sentence_of(phase: str, kind: str) -> str:
    """A sentence about a message.

    It goes by the phase where the figures are exact, else by the kind of disclosure.
    """
    request = _REQUESTS.get(phase)
    if kind == EXACT and request is not None:
        return request.sentence
    return SENTENCES.get(kind, SENTENCES[EXACT])


def request_of(entries: Entries) -> AnyRequest:
    """The class of request that config entries from a server announce."""
    config = Config(entries)
    if "version" in config:
        _check_version(config.text("version", 40))
    name = config.text("phase", 64)
    if name not in _REQUESTS:
        raise PayloadError(PHASE, f"one of {', '.join(sorted(_REQUESTS))}", name)
    return _REQUESTS[name]


def _check_version(server: str) -> None:
    """Refuse the requests of a server of another minor version."""
    if server.split(".")[:2] == __version__.split(".")[:2]:
        return
    both = f"this party runs flwr-flynn {__version__}, the server {server!r}"
    raise PayloadError(
        VERSION,
        __version__,
        server,
        text=f"version: {both}; the minor version must be the same",
    )
