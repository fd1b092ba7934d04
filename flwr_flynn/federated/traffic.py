"""Bytes and contents of the messages of a phase, as the server saw them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flwr_flynn.federated.disclosure import Content, n_bytes
from flwr_flynn.federated.protocol import Entries, Reply


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


@dataclass
class Traffic:
    """Bytes of one phase's requests and replies over all parties and rounds of a run.

    They are those of arrays and entries.
    """

    asked: int = 0
    down: int = 0
    kind: str = ""  # kind of disclosure
    sentence: str = ""  # about an answer, for a data-protection officer
    arrivals: Arrivals = field(default_factory=Arrivals)

    def ask(self, n_parties: int, tensors: Iterable[bytes], config: Entries) -> None:
        """Note that so many parties get this."""
        self.asked += n_parties
        self.down += n_parties * (sum(map(len, tensors)) + n_bytes(config))

    @property
    def per_party(self) -> dict[str, int]:
        """Bytes up (from a party) and down (to it), on average."""
        return {
            "up": round(self.arrivals.bytes / max(self.arrivals.parties, 1)),
            "down": round(self.down / max(self.asked, 1)),
        }
