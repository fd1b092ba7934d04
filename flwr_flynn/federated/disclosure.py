"""Record of each message that leaves a party.

A party makes a `Disclosure` of every answer, refusals included, before it leaves, and
hands it to its option `on_answer`. It has exact figures about the party and stays
there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flwr_flynn.federated.protocol import Entries


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
    """Counts of before and now, where some were taken out of a sum in clear, see
    `protocol.Answer.change`."""

    def to_json(self, **more: Any) -> str:
        """The record as one line, with `more` in it."""
        return json.dumps({**more, **asdict(self)}, allow_nan=False)


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
