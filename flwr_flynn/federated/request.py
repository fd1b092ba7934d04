"""Requests: the announcement of a phase, its answer at a party, and its check at the
server.

A new phase takes one module: a `Request` decorated with `register`, by whose phase name
parties find it, and a `Phase`.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from flwr_flynn import __version__
from flwr_flynn._types import Array
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.layout import (
    Field,
    Sizes,
    contents,
    largest_sum,
    n_entries,
    of_arrays,
    of_vector,
    to_arrays,
    to_vector,
)
from flwr_flynn.federated.permissions import Content, PartyOptions
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
    Reply,
    Scalar,
)
from flwr_flynn.federated.roster import Member, Sender
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.sample_access import SampleAccess

ENTRY_BYTES = 64
"""Bytes of memory that an entry of the vector of a secure sum takes at a party, with
its masks."""

_PACKED_BYTES = 24  # that an integer of an answer in clear takes while it is packed


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

S = TypeVar("S")  # a statistic: a value of the party's samples that adds, exactly


class Request(ABC, Generic[S]):
    """Announcement of one phase: a request for integers, in clear or, with a `bound`,
    in a secure sum.

    `fields` declares the integers. Their packing, their checks, the vector of a secure
    sum, its length and its memory follow from that; `check` has the rules that are
    special to a phase. `from_config` and `compute` run at a party, the other methods at
    the server.
    """

    phase: ClassVar[str]  # its name, on the wire as well
    sentence: ClassVar[str] = SENTENCES[EXACT]  # about an answer of exact figures
    channel: ClassVar[str] = TRAIN
    # True if only parties that leave the federation answer
    is_withdrawal: ClassVar[bool] = False
    # True if only parties whose samples have changed answer
    is_update: ClassVar[bool] = False
    # True if the server keeps who answered, by the `MEMBER` proof as well
    proves: ClassVar[bool] = False

    @abstractmethod
    def to_config(self) -> dict[str, Scalar]:
        """Config entries for a party, without `PHASE`."""

    @classmethod
    @abstractmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], party: SampleAccess
    ) -> Request[S]:
        """The request that a server announced; a `PayloadError` if it is malformed or
        beyond the party's limits.
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
        """The statistic with these integers, within their bounds, of so many parties;
        an error if there is none.
        """

    def arrays(self) -> list[Array]:
        """Arrays that go along with the config entries."""
        return []

    def check(self, statistic: S, sizes: Sizes) -> None:
        """Raise a `PayloadError` unless an answer in clear is about samples of these
        sizes.
        """
        return

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        """Samples that an answer in clear is about, checked: by default all that are
        counted of the sender.
        """
        if member is None or member.sizes is None:
            raise PayloadError(
                self.phase,
                "a party whose counts are in the sum",
                "one that is not counted",
            )
        sizes = np.array(member.sizes, np.int64)
        if reply.announced != (n_counted := sum(sizes.tolist())):
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
        """Raise unless a party with these options gives an answer, which is asked once,
        before any sample.
        """
        if self.discloses == SECURE and self.bound is None:
            raise PayloadError(
                "bound", f"the bound of a secure sum, for phase {self.phase}", "nothing"
            )
        options.admit(self.discloses, self.phase, self.is_withdrawal)

    @property
    def layout(self) -> list[Field]:
        """The integers of an answer, with their bounds at one party in a secure sum; in
        clear the bounds are 0.
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
        return self.of_parts(
            [np.zeros(field.shape, np.int64) for field in self.layout], 0
        )

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
        # in every phase, so that none has them in its sum
        if self.bound is not None and n_examples > self.bound:
            raise PayloadError(
                "secure sum",
                f"at most {self.bound} samples (run-config max-examples)",
                "more",
            )
        return self.answer(statistic, n_examples)

    def answer(self, statistic: S, n_examples: int) -> Answer:
        """The answer with a statistic, of so many samples."""
        if self.bound is None:
            return Answer(
                to_arrays(self.layout, self.parts(statistic)),
                n_examples,
                statistic=statistic,
            )
        vector = to_vector(self.layout, self.parts(statistic), self.bound)
        return Answer([vector], NOISY_EXAMPLES, statistic=statistic)

    @property
    def contents(self) -> list[Content]:
        """Content of each array of an answer."""
        if self.bound is not None:
            return [
                Content(
                    tuple(dict.fromkeys(field.name for field in self.layout)),
                    (self.n_entries,),
                )
            ]
        return contents(self.layout)

    def read(
        self, arrays: Sequence[Array], reply: Reply, member: Member | None
    ) -> S | None:
        """The statistic in a reply; None without samples, a `PayloadError` if anything
        of the reply is wrong.

        `member` is the sender as the run knows it, with its class sizes; None if its
        counts are not in the sum.
        """
        sizes = self.sizes_of(reply, member)
        parts = of_arrays(
            arrays, [field.capped(self.largest) for field in self.fields(sizes)]
        )
        statistic = self.of_parts(parts, 1)
        self.check(statistic, sizes)
        return statistic

    def sizes(self, statistic: S) -> npt.NDArray[np.int64] | None:
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
        """SHA-256 of the parts of a statistic, by which a party that replies under two
        node ids is noticed.
        """
        return ()

    def change(self, statistic: S) -> dict[str, Any] | None:
        """Samples and SHA-256 of counts that an answer in clear replaces or takes out:
        "before", and "now" or None.
        """
        return None

    def party_result(self, statistic: S, n_before: int) -> Any:
        """The part of a statistic that is kept of its party, after those of so many
        others; None for nothing.
        """
        return None

    def match(self, statistic: S, sender: Sender, taken: set[int]) -> int | None:
        """The index of the member of the saved run that a reply takes out of the sum;
        None where it adds.

        `taken` are the indices that other replies of the batch take out. A
        `PayloadError` refuses the sender.
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
            got = (
                ", ".join(f"{array.dtype.str} {array.shape}" for array in arrays)
                or "none"
            )
            raise PayloadError("secure sum", f"one float64 array of shape {shape}", got)
        exact = arrays[0] * n
        total = np.rint(exact)
        if not (np.abs(total) <= n * bound).all() or not np.allclose(
            exact, total, 0, 1e-3
        ):
            raise PayloadError(
                "secure sum",
                f"integers of at most {n} x {bound}",
                "values that are not",
            )
        return self.of_parts(
            of_vector(self.layout, total.astype(np.int64), bound, n), n
        )


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
    """The run that a server announced, if the party has the memory for it and draws its
    rows.
    """
    run = RunSpec.from_config(config)
    party.check_run(run, config)
    return run


R = TypeVar("R", bound=type[Request[Any]])

_REQUESTS: dict[str, type[Request[Any]]] = {}


def register(request: R) -> R:
    """Make a request known to the parties of this process; a `ConfigError` if its phase
    name is another request's.
    """
    known = _REQUESTS.setdefault(request.phase, request)
    if known is not request and known.__qualname__ != request.__qualname__:
        raise ConfigError(
            "phase", "a new name", f"{request.phase!r} of {known.__qualname__}"
        )
    _REQUESTS[request.phase] = request
    return request


def sentence_of(phase: str, kind: str) -> str:
    """A message in a sentence: by its phase where its figures are exact, else by its
    kind of disclosure.
    """
    request = _REQUESTS.get(phase)
    if kind == EXACT and request is not None:
        return request.sentence
    return SENTENCES.get(kind, SENTENCES[EXACT])


def request_of(entries: Mapping[str, Any]) -> type[Request[Any]]:
    """The class of request that config entries from a server announce."""
    config = Config(entries)
    if (
        "version" in config
        and (server := config.text("version", 40)).split(".")[:2]
        != __version__.split(".")[:2]
    ):
        both = f"this party runs flwr-flynn {__version__}, the server {server!r}"
        raise PayloadError(
            VERSION,
            __version__,
            server,
            text=f"version: {both}; the minor version must be the same",
        )
    name = config.text("phase", 64)
    if name not in _REQUESTS:
        raise PayloadError(PHASE, f"one of {', '.join(sorted(_REQUESTS))}", name)
    return _REQUESTS[name]
