"""Permissions of a party, and the record of each message that leaves or arrives.

The options of a party say what may leave it.

A party makes a `Disclosure` of every answer, refusals included, before it leaves, and
hands it to its option `on_answer`. It has exact figures about the party and stays
there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from flwr_flynn._validation import boolean, integer, n_threads, number
from flwr_flynn.errors import ConfigError, PrivacyError
from flwr_flynn.federated.protocol import (
    EXACT,
    NOISY,
    NOTHING,
    RESULTS,
    SECURE,
    Entries,
    Reply,
)
from flwr_flynn.federated.samples import Features, Samples
from flwr_flynn.privacy.ledger import Budget

if TYPE_CHECKING:
    from flwr_flynn.model.classifier import FlyNNClassifier


@dataclass(frozen=True)
class PartyOptions:
    """Permissions and resources of a party.

    A wrong one is the field of a `ConfigError`.

    Parameters
    ----------
    name : str, optional
        Its name in the server's log and report; by default its node id.
    member : str, default=""
        Proof that it is a member of the federation, for the server alone, which keeps
        its SHA-256: without it a party whose node id is another one by now cannot
        leave, or change its counts. At most 256 characters.
    memory_limit : int, default=4 GiB
        Bytes that the hash, the counts and the confusion matrix may need, beside the
        samples; checked before anything is allocated.
    min_examples : int, default=5
        Disclosure floor, which no request changes. Classes of fewer samples are left
        out of the histograms of columns; they are counted. Above 1 histograms tell
        order statistics alone, see `ColumnHistograms.from_data`. 2 and 3 are taken as
        4.
    n_jobs : int, optional
        Threads for hashing: None for one, -1 for all.
    budget : Budget, optional
        Ledger and policy. With one, nothing but noisy counts within the policy leaves
        the party, and samples that do not fit are left out; without one, requests for
        noisy counts are refused.
    evaluates : bool, default=False
        With `budget` or `secure`: let exact results on held-out samples leave all the
        same. A server that chooses its models can learn counts of the held-out samples
        from them.
    secure : bool, default=False
        Let figures leave in secure sums only, see `flwr_flynn.secagg`.
    gram : bool, default=False
        Let the Gram matrix leave in clear, see `model.gram`: it tells far more than
        counts. Classes of which one of its two folds has fewer than `min_examples`
        samples stay out of it. In a secure sum it needs no consent.
    class_prior : bool, default=True
        Give the party's copy of the model its own class frequencies, see `own_prior`.
        Not with a budget.
    leaves : bool, default=False
        Leave a federation: answer runs of action withdraw only, with the counts sent
        before.
    previous : Samples or callable, optional
        The training samples as they were counted, of a party whose samples have
        changed: it answers runs of action update. Of any kind that `load` may be.
    response_seconds : float, default=0
        With a budget: seconds that every answer takes, so that its time tells nothing.
        0: as long as it takes.
    on_model : callable, optional
        Called with the federated `FlyNNClassifier` when it arrived and was tried.
    on_answer : callable, optional
        Called with the `Disclosure` of each answer before it leaves, see
        `federated.permissions`. If it raises, a refusal without data leaves instead.
    """

    name: str | None = None
    memory_limit: int = 4 * 2**30
    min_examples: int = 5
    n_jobs: int | None = None
    budget: Budget | None = None
    evaluates: bool = False
    secure: bool = False
    gram: bool = False
    class_prior: bool = True
    leaves: bool = False
    previous: Samples | Callable[[Features], Samples] | None = None
    response_seconds: float = 0.0
    on_model: Callable[[FlyNNClassifier], object] | None = None
    on_answer: Callable[[Disclosure], object] | None = None
    member: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise ConfigError("budget", "a Budget", type(self.budget).__name__)
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigError("name", "a string", type(self.name).__name__)
        if not isinstance(self.member, str) or len(self.member) > 256:
            raise ConfigError(
                "member",
                "a string of at most 256 characters",
                type(self.member).__name__,
            )
        n_threads(self.n_jobs)
        for name in ("memory_limit", "min_examples"):
            object.__setattr__(self, name, integer(name, getattr(self, name)))
        for name in ("evaluates", "secure", "gram", "class_prior", "leaves"):
            boolean(name, getattr(self, name))
        number("response_seconds", self.response_seconds, least=0)

    def admit(self, discloses: str, phase: str, is_withdrawal: bool) -> None:
        """Raise unless the options allow what an answer in a phase discloses."""
        if discloses not in (EXACT, NOISY, SECURE, RESULTS, NOTHING):
            raise ConfigError(
                "discloses", "a kind of disclosure that this party knows", discloses
            )
        if is_withdrawal != self.leaves and discloses != NOTHING:
            expected = "no run with action=withdraw"
            if self.leaves:
                expected = "only runs with action=withdraw"
            raise ConfigError(
                "node-config leave",
                expected,
                text=f"node-config leave: this party answers {expected}",
            )
        if self.secure and discloses in (EXACT, NOISY):
            raise ConfigError(
                "node-config secure",
                "a secure sum, in which alone counts leave this party",
                discloses,
            )
        if self.budget is not None and discloses == EXACT:
            text = (
                "policy max-epsilon set: only noisy counts leave this party, not "
                f"phase {phase}"
            )
            raise PrivacyError("policy max-epsilon", NOISY, discloses, text=text)


@dataclass(frozen=True)
class Content:
    """The integers that an array of a message carries."""

    fields: tuple[str, ...]
    """Names, as in the layout of the request."""
    shape: tuple[int, ...] | None
    """The shape of the integers; None where it depends on the samples."""


@dataclass(frozen=True)
class SentArray:
    """An array as it leaves a party."""

    fields: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Disclosure:
    """One message of a party."""

    time: str  # UTC
    phase: str  # as the request names it; "" where it is not readable
    channel: str
    kind: str  # one of `protocol`'s disclosures
    refused: str | None  # reason
    examples: int  # number of samples that goes along
    arrays: tuple[SentArray, ...]
    entries: Mapping[str, int]  # bytes of the other entries, keys included, by name
    bytes: int  # size of arrays and entries together
    sha256: str | None
    """SHA-256 of the arrays' bytes, one array after the other; None without arrays, and
    in a secure sum."""
    change: Entries | None = None
    """Counts of before and now, of an update or a withdrawal in clear, see
    `Request.change`."""

    def to_json(self, **more: Any) -> str:
        """The record as one line, with `more` in it."""
        return json.dumps({**more, **asdict(self)}, allow_nan=False)


@dataclass(frozen=True)
class Arrivals:
    """Messages of some parties, all with the same content.

    The memory does not grow with them.
    """

    parties: int = 0
    bytes: int = 0  # size of arrays and entries
    contents: Sequence[Content] = ()
    sizes: tuple[tuple[int, int, int], ...] = ()
    """Bytes of each array: the lowest, total and highest."""

    @classmethod
    def of(cls, contents: Sequence[Content], reply: Reply) -> Arrivals:
        """The message of one party."""
        lengths = [len(tensor) for tensor in reply.tensors]
        sizes = tuple((length, length, length) for length in lengths)
        return cls(1, reply.n_bytes + n_bytes(reply.metrics), contents, sizes)

    def __add__(self, other: Arrivals) -> Arrivals:
        if not other.parties:
            return self
        if not self.parties:
            return other
        pairs = zip(self.sizes, other.sizes, strict=True)
        sizes = tuple(
            (min(low, other_low), total + other_total, max(high, other_high))
            for (low, total, high), (other_low, other_total, other_high) in pairs
        )
        return Arrivals(
            self.parties + other.parties, self.bytes + other.bytes, self.contents, sizes
        )

    def to_dict(self) -> dict[str, object]:
        """Parties, and the fields, shape and bytes of each array.

        Bytes are the lowest, the mean and the highest number.
        """
        fields = []
        for content, (low, total, high) in zip(self.contents, self.sizes, strict=True):
            shape = None
            if content.shape is not None:
                shape = list(content.shape)
            sizes = [low, round(total / self.parties), high]
            fields.append(
                {"name": ", ".join(content.fields), "shape": shape, "bytes": sizes}
            )
        return {"parties": self.parties, "fields": fields}


def n_bytes(entries: Entries) -> int:
    """Size of config or metrics entries: keys and texts as they are, 8 for a number."""
    size = 0
    for name, value in entries.items():
        size += len(str(name))
        if isinstance(value, str):
            size += len(value.encode(errors="replace"))
        elif isinstance(value, bytes):
            size += len(value)
        else:
            size += 8
    return size


@dataclass
class Traffic:
    """Bytes of one phase's requests and replies over all parties and rounds of a run.

    They are those of arrays and entries.
    """

    asked: int = 0
    replied: int = 0
    down: int = 0
    up: int = 0
    kind: str = ""  # kind of disclosure
    arrivals: Arrivals = field(default_factory=Arrivals)

    def ask(self, n_parties: int, tensors: Iterable[bytes], config: Entries) -> None:
        """Note that so many parties get this."""
        self.asked += n_parties
        self.down += n_parties * (sum(map(len, tensors)) + n_bytes(config))

    def add(self, arrivals: Arrivals) -> None:
        """Add the replies of an exchange."""
        self.replied += arrivals.parties
        self.up += arrivals.bytes
        self.arrivals += arrivals

    @property
    def per_party(self) -> dict[str, int]:
        """Bytes up (from a party) and down (to it), on average."""
        return {
            "up": round(self.up / max(self.replied, 1)),
            "down": round(self.down / max(self.asked, 1)),
        }
