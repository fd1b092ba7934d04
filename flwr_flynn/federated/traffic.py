"""Bytes of a run: those of each phase's messages, counted while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr_flynn.federated import codec
from flwr_flynn.federated.disclosure import Arrivals


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
        self.down += n_parties * (sum(map(len, tensors)) + codec.n_bytes(config))

    def reply(self, tensors: Iterable[bytes], metrics: Mapping[str, Any]) -> None:
        """Note a reply of one party."""
        self.replied += 1
        self.up += sum(map(len, tensors)) + codec.n_bytes(metrics)

    def add(self, answered: Traffic, arrivals: Arrivals) -> None:
        """Add the replies of an exchange."""
        self.replied += answered.replied
        self.up += answered.up
        self.arrivals += arrivals

    @property
    def per_party(self) -> dict[str, int]:
        """Bytes up (from a party) and down (to it), on average."""
        return {"up": round(self.up / max(self.replied, 1)), "down": round(self.down / max(self.asked, 1))}
