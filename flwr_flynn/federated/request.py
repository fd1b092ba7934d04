"""Requests: the announcement of a phase, its answer at a party, and its check at the server.

A new phase takes one module: a `Request` decorated with `register`, by whose phase name parties find it, and a `Phase`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from flwr_flynn import __version__
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.access import SampleAccess
from flwr_flynn.federated.protocol import EXACT, PHASE, TRAIN, VERSION, Answer, Array, Config, Reply, Scalar
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.statistics import S


class Request(ABC, Generic[S]):
    """Announcement of one phase. `from_config` and `compute` run at a party, the other methods at the server."""

    phase: ClassVar[str]  # its name, on the wire as well
    channel: ClassVar[str] = TRAIN

    @abstractmethod
    def to_config(self) -> dict[str, Scalar]:
        """Config entries for a party, without `PHASE`."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> Request[S]:
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
    def compute(self, party: SampleAccess) -> Answer:
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
