"""The disclosure record: the content of each message that leaves a party, in figures, and of those that arrive; bytes.

A party makes a `Disclosure` of every answer, refusals included, before it leaves, and hands it to its option
`on_answer`. It has exact figures about the party and stays there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Content:
    """The integers that an array of a message carries."""

    fields: tuple[str, ...]  # names, as in the layout of the request
    shape: tuple[int, ...] | None  # of the integers; None where it depends on the samples


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
    bytes: int  # of all of it
    sha256: str | None  # of the arrays' bytes, one after the other; None without any, and in a secure sum
    change: Mapping[str, Any] | None = None  # of an update or a withdrawal in clear, see `Request.change`

    def to_json(self, **more: Any) -> str:
        """The record as one line, with `more` in it."""
        return json.dumps({**more, **asdict(self)}, allow_nan=False)


@dataclass(frozen=True)
class Arrived:
    """Figures of one array of the messages of some parties."""

    fields: tuple[str, ...]
    shape: tuple[int, ...] | None
    bytes: tuple[int, int, int]  # lowest, total, highest
    n: int = 1  # parties that sent it

    def __add__(self, other: Arrived) -> Arrived:
        (low, total, high), (other_low, other_total, other_high) = self.bytes, other.bytes
        sizes = min(low, other_low), total + other_total, max(high, other_high)
        return Arrived(self.fields, self.shape, sizes, self.n + other.n)


@dataclass(frozen=True)
class Arrivals:
    """Messages of a phase with arrays, of so many parties, in memory that does not grow with them."""

    parties: int = 0
    arrays: tuple[Arrived, ...] = ()

    @classmethod
    def of(cls, contents: Sequence[Content], tensors: Sequence[bytes]) -> Arrivals:
        """The message of one party."""
        pairs = zip(contents, map(len, tensors), strict=False)
        return cls(1, tuple(Arrived(each.fields, each.shape, (n, n, n)) for each, n in pairs))

    def __add__(self, other: Arrivals) -> Arrivals:
        found: dict[tuple[tuple[str, ...], int], Arrived] = {}
        for arrays in (self.arrays, other.arrays):  # not every party sends all of them
            seen = Counter[tuple[str, ...]]()
            for each in arrays:
                key = each.fields, seen[each.fields]
                seen[each.fields] += 1
                found[key] = found[key] + each if key in found else each
        return Arrivals(self.parties + other.parties, tuple(found.values()))

    def to_dict(self) -> dict[str, Any]:
        """Parties; and for each array the names of its fields, shape and bytes (lowest, mean, highest)."""
        fields = []
        for each in self.arrays:
            (low, total, high), shape = each.bytes, None if each.shape is None else list(each.shape)
            sizes = [low, round(total / each.n), high]
            fields.append({"name": ", ".join(each.fields), "shape": shape, "bytes": sizes})
        return {"parties": self.parties, "fields": fields}


def n_bytes(entries: Mapping[str, Any]) -> int:
    """Size of config or metrics entries: keys and texts as they are, 8 for a number."""
    values = [value.encode(errors="replace") if isinstance(value, str) else value for value in entries.values()]
    return sum(map(len, map(str, entries))) + sum(len(each) if isinstance(each, bytes) else 8 for each in values)


@dataclass
class Traffic:
    """Bytes of one phase's requests and replies, arrays and entries, over all parties and rounds of a run."""

    asked: int = 0
    replied: int = 0
    down: int = 0
    up: int = 0
    kind: str = ""  # of disclosure
    arrivals: Arrivals = field(default_factory=Arrivals)

    def ask(self, n_parties: int, tensors: Iterable[bytes], config: Mapping[str, Any]) -> None:
        """Note that so many parties get this."""
        self.asked += n_parties
        self.down += n_parties * (sum(map(len, tensors)) + n_bytes(config))

    def reply(self, tensors: Iterable[bytes], metrics: Mapping[str, Any]) -> None:
        """Note a reply of one party."""
        self.replied += 1
        self.up += sum(map(len, tensors)) + n_bytes(metrics)

    def add(self, answered: Traffic, arrivals: Arrivals) -> None:
        """Add the replies of an exchange."""
        self.replied += answered.replied
        self.up += answered.up
        self.arrivals += arrivals

    @property
    def per_party(self) -> dict[str, int]:
        """Bytes up (from a party) and down (to it), on average."""
        return {"up": round(self.up / max(self.replied, 1)), "down": round(self.down / max(self.asked, 1))}
