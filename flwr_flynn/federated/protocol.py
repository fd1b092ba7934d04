"""The wire protocol: keys, requests and replies. Every key that this package sends begins with ``flynn-``.

A run is a list of phases. In each phase the server announces one `Request` to the parties, and every party answers with
one statistic of its own samples. A request travels as config entries and, where a model goes along, as arrays; an
answer as arrays, a number of samples and a few entries::

    request  flynn-phase = its name; its own fields, as ``key("...")``; arrays
    answer   arrays; num_examples; flynn-party, flynn-seconds, or flynn-refused with the reason

Adding a phase takes one module: a `Request` that is decorated with `register`, and a `Phase` that says how its total
changes the state of a run, see `federated.run`. Parties find the request by the name of its phase.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.statistics import S

if TYPE_CHECKING:
    from flwr_flynn.federated.party import Party
    from flwr_flynn.federated.roster import Member

Array = npt.NDArray[Any]
Scalar = bool | int | float | str | bytes

PREFIX = "flynn-"


def key(name: str) -> str:
    """The config or metrics key of a field: ``key("n_classes")`` is ``"flynn-n-classes"``."""
    return PREFIX + name.replace("_", "-")


PHASE = key("phase")
"""In a request: the name of its phase."""

PARTY, SECONDS, REFUSED, UNKEPT = key("party"), key("seconds"), key("refused"), key("unkept")
"""In an answer: the party's name, the seconds it took, why it refuses, why it could not keep the model."""

STATISTIC = key("statistic")
"""In an answer of the evaluate channel, whose replies carry no arrays: the arrays, joined by `codec.join`."""

TRAIN, EVALUATE = "train", "evaluate"
"""Channels of Flower: a phase asks by one of them."""

EXACT, NOISY, SECURE, RESULTS, NOTHING = "exact", "noisy", "secure", "results", "nothing"
"""What leaves a party with an answer: exact figures in clear, noisy counts, a summand of a secure sum, results on
held-out samples, or nothing. A party's policy decides by it, see `federated.party`."""


class Config:
    """Fields of a request as they arrived; each read checks type and size."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.entries = entries

    def __contains__(self, name: str) -> bool:
        return key(name) in self.entries

    def text(self, name: str, longest: int) -> str:
        """A string of at most `longest` characters; a `PayloadError` for anything else."""
        value = self.entries.get(key(name))
        if not isinstance(value, str):
            raise PayloadError(key(name), "a string", "nothing" if value is None else type(value).__name__)
        if len(value) > longest:
            raise PayloadError(key(name), f"at most {longest} characters", len(value))
        return value

    def json(self, name: str, longest: int) -> Any:
        """The value that a string of at most `longest` characters holds as JSON."""
        text = self.text(name, longest)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise PayloadError(key(name), "JSON", f"{len(text)} characters that are none") from None

    def integer(self, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
        """An integer within bounds."""
        value = self.entries.get(key(name))
        if type(value) is not int or not least <= value <= most:
            got = str(value)[:40] if type(value) is int else type(value).__name__
            raise PayloadError(key(name), f"an integer from {least} to {most}", got)
        return value

    def boolean(self, name: str) -> bool:
        """True or False."""
        value = self.entries.get(key(name))
        if not isinstance(value, bool):
            raise PayloadError(key(name), "True or False", type(value).__name__)
        return value


@dataclass(frozen=True)
class Reply:
    """One party's reply as it arrived. Only `cid` is the transport's word; all else is the party's.

    Parameters
    ----------
    cid : str
        The transport's name for the sender.
    tensors : sequence of bytes
        Arrays as Flower carries them: the bytes of `numpy.save`.
    n_examples : int
    metrics : mapping of str to scalar
    fault : str
        Why the reply is refused, if its form alone is wrong.
    """

    cid: str
    tensors: Sequence[bytes]
    n_examples: int
    metrics: Mapping[str, Any]
    fault: str = ""

    @property
    def n_bytes(self) -> int:
        """Size of the tensors."""
        return sum(map(len, self.tensors))

    @property
    def announced(self) -> int:
        """The number of samples that the sender gave; a `PayloadError` if it is no number of samples."""
        if type(self.n_examples) is not int or not 0 <= self.n_examples < 2**63:
            got = str(self.n_examples)[:40] if type(self.n_examples) is int else type(self.n_examples).__name__
            raise PayloadError("num_examples", "an integer from 0 to 2**63 - 1", got)
        return self.n_examples


@dataclass(frozen=True)
class Answer:
    """A party's answer before it travels.

    Parameters
    ----------
    arrays : list of arrays
        The statistic.
    n_examples : int
        Number of samples in it, or a constant where the number would tell something.
    metrics : dict
        Further entries, such as ``accuracy``, for the user's own functions.
    """

    arrays: list[Array] = field(default_factory=list)
    n_examples: int = 0
    metrics: dict[str, Scalar] = field(default_factory=dict)


class Request(ABC, Generic[S]):
    """What the server announces in one phase, and how the answers to it are made and read.

    Attributes
    ----------
    phase : str
        Name of the phase, on the wire as well.
    channel : {"train", "evaluate"}
        Flower's channel that carries it.
    """

    phase: ClassVar[str]
    channel: ClassVar[str] = TRAIN

    # ---- both ways over the wire

    @abstractmethod
    def to_config(self) -> dict[str, Scalar]:
        """Config entries for a party, without `PHASE`."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: Party) -> Request[S]:
        """The request that a server announced, checked for everything that a party can check."""

    def arrays(self) -> list[Array]:
        """Arrays that go along."""
        return []

    @property
    def discloses(self) -> str:
        """What leaves a party with its answer, one of `EXACT`, `NOISY`, `SECURE`, `RESULTS` and `NOTHING`."""
        return EXACT

    @property
    def is_withdrawal(self) -> bool:
        """Whether only parties that leave the federation answer."""
        return False

    # ---- at a party

    @abstractmethod
    def compute(self, party: Party) -> Answer:
        """The party's answer: a statistic of its samples."""

    # ---- at the server

    @abstractmethod
    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> S | None:
        """The statistic in a reply, checked for everything that can be checked; None if it has no samples.

        Parameters
        ----------
        arrays : sequence of arrays
            What arrived. Nothing is assumed of it.
        reply : Reply
        member : Member or None
            The sender as the run knows it so far, with its class sizes; None if it is not counted.

        Raises
        ------
        PayloadError
            Nothing of the reply is used.
        """

    def sizes(self, statistic: S) -> npt.NDArray[np.int64] | None:
        """(L,) samples of each class in a statistic; None where nobody knows them."""
        return None

    def load(self, statistic: S) -> int:
        """Capacity that a statistic takes in the sum, see `capacity`: by default its number of samples."""
        sizes = self.sizes(statistic)
        return 0 if sizes is None else sum(sizes.tolist())

    @property
    def capacity(self) -> int:
        """Load up to which the sum stays exact."""
        return 2**63 - 1

    def digests(self, statistic: S) -> tuple[str, ...]:
        """SHA-256 of the parts of a statistic, by which a party that replies under two node ids is noticed."""
        return ()

    def match(self, statistic: S, cid: str, name: str, taken: set[int]) -> int | None:
        """The index of the member of the saved run that a reply takes out of the sum; None where it adds.

        Parameters
        ----------
        statistic : statistic
        cid, name : str
            The sender, and the name it gives itself.
        taken : set of int
            Members that other replies of the same batch take out.

        Raises
        ------
        PayloadError
            The sender cannot be added to the sum, or taken out of it.
        """
        return None

    def add(self, total: S, statistic: S) -> S:
        """The total with one more statistic."""
        return total + statistic


R = TypeVar("R", bound=type[Request[Any]])

_REQUESTS: dict[str, type[Request[Any]]] = {}


def register(request: R) -> R:
    """Make a request known to the parties of this process by the name of its phase."""
    known = _REQUESTS.setdefault(request.phase, request)
    if known is not request and known.__qualname__ != request.__qualname__:
        raise ValueError(f"phase: expected a new name, got {request.phase!r} of {known.__qualname__}")
    _REQUESTS[request.phase] = request
    return request


def request_of(entries: Mapping[str, Any]) -> type[Request[Any]]:
    """The kind of request that config entries from a server announce."""
    name = Config(entries).text("phase", 64)
    if name not in _REQUESTS:
        raise PayloadError(PHASE, f"one of {', '.join(sorted(_REQUESTS))}", name)
    return _REQUESTS[name]
