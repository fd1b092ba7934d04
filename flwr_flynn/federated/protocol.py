"""The wire protocol: keys, requests and replies. Every key that this package sends begins with ``flynn-``.

In each phase of a run the server announces one `Request` to the parties, and every party answers with one statistic of
its samples::

    request  flynn-phase = its name; its own fields, as ``key("...")``; arrays
    answer   arrays; num_examples; flynn-party, flynn-seconds, or flynn-refused with the reason

A new phase takes one module: a `Request` decorated with `register`, by whose phase name parties find it, and a `Phase`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from flwr_flynn import __version__
from flwr_flynn.errors import ConfigError, PayloadError
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
"""Key of a request: the name of its phase."""

VERSION = key("version")
"""Key of a request: the version of the server's package. A party of another minor version declines."""

PARTY, SECONDS, REFUSED, UNKEPT = key("party"), key("seconds"), key("refused"), key("unkept")
"""Keys of an answer: the party's name, its seconds, the reason of a refusal, the reason why the model was not kept."""

STATISTIC = key("statistic")
"""Key of an answer of the evaluate channel, whose replies carry no arrays: the arrays, joined by `codec.join`."""

TRAIN, EVALUATE = "train", "evaluate"
"""Flower's two channels; each phase uses one."""

EXACT, NOISY, SECURE, RESULTS, NOTHING = "exact", "noisy", "secure", "results", "nothing"
"""Disclosures by an answer: exact figures in clear, noisy counts, a summand of a secure sum, results on held-out
samples, or nothing. A party admits or refuses by them, see `federated.party`."""


class Config:
    """Fields of a request as they arrived; each read checks type and size, or raises a `PayloadError`."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.entries = entries

    def __contains__(self, name: str) -> bool:
        return key(name) in self.entries

    def text(self, name: str, longest: int) -> str:
        """A string of at most `longest` characters."""
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
        return _integer(key(name), self.entries.get(key(name)), least, most)

    def boolean(self, name: str) -> bool:
        """True or False."""
        value = self.entries.get(key(name))
        if not isinstance(value, bool):
            raise PayloadError(key(name), "True or False", type(value).__name__)
        return value


def _integer(field: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        got = str(value)[:40] if type(value) is int else type(value).__name__
        raise PayloadError(field, f"an integer from {least} to {most}", got)
    return value


@dataclass(frozen=True, slots=True)
class Reply:
    """One party's reply as it arrived. Only `cid` is the transport's word; all else is the party's."""

    cid: str  # the sender's node id
    tensors: Sequence[bytes]  # arrays as `numpy.save` writes them
    n_examples: int
    metrics: Mapping[str, Any]
    fault: str = ""  # the reason to refuse it, if its form alone is wrong

    @property
    def n_bytes(self) -> int:
        """Size of the tensors."""
        return sum(map(len, self.tensors))

    @property
    def announced(self) -> int:
        """The number of samples that the sender gave, checked."""
        return _integer("num_examples", self.n_examples, 0, 2**63 - 1)


@dataclass(frozen=True)
class Answer:
    """A party's answer before it travels."""

    arrays: list[Array] = field(default_factory=list)  # the statistic
    n_examples: int = 0  # samples in it, or a constant where the number would tell something
    metrics: dict[str, Scalar] = field(default_factory=dict)  # further entries, such as ``accuracy``


class Request(ABC, Generic[S]):
    """Announcement of one phase. `from_config` and `compute` run at a party, the other methods at the server."""

    phase: ClassVar[str]  # its name, on the wire as well
    channel: ClassVar[str] = TRAIN

    @abstractmethod
    def to_config(self) -> dict[str, Scalar]:
        """Config entries for a party, without `PHASE`."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: Party) -> Request[S]:
        """The request that a server announced; a `PayloadError` if it is malformed or beyond the party's limits."""

    @classmethod
    def channel_of(cls, entries: Mapping[str, Any]) -> str:
        """The channel of a request with these entries."""
        return cls.channel

    def arrays(self) -> list[Array]:
        """Arrays that go along with the config entries."""
        return []

    @property
    def discloses(self) -> str:
        """Kind of disclosure: `EXACT`, `NOISY`, `SECURE`, `RESULTS` or `NOTHING`."""
        return EXACT

    @property
    def is_withdrawal(self) -> bool:
        """True if only parties that leave the federation answer."""
        return False

    @abstractmethod
    def compute(self, party: Party) -> Answer:
        """The party's answer. An error is a refusal: its text travels to the server and holds no value of the data."""

    @abstractmethod
    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> S | None:
        """The statistic in a reply; None without samples, a `PayloadError` if anything of the reply is wrong.

        `member` is the sender as the run knows it, with its class sizes; None if its counts are not in the sum.
        """

    def sizes(self, statistic: S) -> npt.NDArray[np.int64] | None:
        """(L,) samples of each class in a statistic; None where they are hidden."""
        return None

    def load(self, statistic: S) -> int:
        """Share of `capacity` that a statistic takes: by default its number of samples."""
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

        `taken` are the indices that other replies of the batch take out. A `PayloadError` refuses the sender.
        """
        return None

    def add(self, total: S, statistic: S) -> S:
        """The total with one more statistic."""
        return total + statistic


R = TypeVar("R", bound=type[Request[Any]])

_REQUESTS: dict[str, type[Request[Any]]] = {}


def register(request: R) -> R:
    """Make a request known to the parties of this process; a `ConfigError` if its phase name is another request's."""
    known = _REQUESTS.setdefault(request.phase, request)
    if known is not request and known.__qualname__ != request.__qualname__:
        raise ConfigError("phase", "a new name", f"{request.phase!r} of {known.__qualname__}")
    _REQUESTS[request.phase] = request
    return request


def request_of(entries: Mapping[str, Any]) -> type[Request[Any]]:
    """The class of request that config entries from a server announce."""
    config = Config(entries)
    if "version" in config and (theirs := config.text("version", 40)).split(".")[:2] != __version__.split(".")[:2]:
        both = f"this party runs flwr-flynn {__version__}, the server {theirs!r}"
        raise PayloadError(VERSION, __version__, theirs, text=f"version: {both}; the minor version must be the same")
    name = config.text("phase", 64)
    if name not in _REQUESTS:
        raise PayloadError(PHASE, f"one of {', '.join(sorted(_REQUESTS))}", name)
    return _REQUESTS[name]
