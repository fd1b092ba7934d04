"""The two files of a party's ledger, as bytes: the ledger itself, and the marker beside its folder.

The entries form a hash chain; the marker has their number and the head of the chain. A request is an entry before its
samples are looked at, and the last one gets the SHA-256 of its release afterwards. The ledger is written before the
marker, so that it may be one of these steps ahead of it. Any other difference means that one of them is an older copy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr_flynn.privacy.release_policy import COMPOSITIONS, Cost

_FORMAT = 2
_LARGEST = 1e300  # of an amount: sums of integers beyond floating point raise
_COST = ("epsilon", "delta", "rho", "closes")
_FIELDS = {"request", *_COST, "file", "sha256"}


@dataclass(frozen=True)
class LedgerFile:
    """The content of a ledger. Immutable by convention."""

    composition: str = "basic"
    delta: float = 0.0
    data_path: str | None = None
    entries: Sequence[dict[str, Any]] = ()

    @property
    def costs(self) -> list[Cost]:
        """The costs of the releases, without rounds, which are paid for with the counts of their run."""
        charged = (entry for entry in self.entries if "round" not in entry["request"])
        return [Cost(**{name: entry[name] for name in _COST}) for entry in charged]

    def rounds(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The entries of a round, whatever weights it was asked with."""
        asked = {**request, "weights": None}
        return [entry for entry in self.entries if {**entry["request"], "weights": None} == asked]

    def find(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The entry of an answered request; None for one that is new, or whose process died before its release."""
        return next((entry for entry in self.entries if entry["request"] == request and entry["sha256"]), None)

    def with_entry(self, request: dict[str, Any], cost: Cost, file: str) -> LedgerFile:
        """This ledger with one more request, without its release."""
        entry = {"request": request, **{name: getattr(cost, name) for name in _COST}, "file": file, "sha256": ""}
        return replace(self, entries=[*self.entries, entry])

    def answered(self, sha256: str) -> LedgerFile:
        """This ledger with the SHA-256 of the release of the last request; "" takes it away."""
        return replace(self, entries=[*self.entries[:-1], {**self.entries[-1], "sha256": sha256}])

    def head(self, n_entries: int | None = None) -> str:
        """The head of the hash chain over the first entries, or over all of them."""
        head = digest_of([self.composition, self.delta, self.data_path])
        for entry in self.entries[:n_entries]:
            head = digest_of([head, entry])
        return head

    def to_bytes(self) -> bytes:
        """Content of the ledger's file, with a digest against alterations."""
        about = {"composition": self.composition, "delta": self.delta, "data_path": self.data_path}
        content = {"format": _FORMAT, **about, "entries": [*self.entries]}
        return json.dumps({**content, "sha256": digest_of(content)}).encode()

    def marker(self) -> bytes:
        """Content of the marker's file."""
        return json.dumps({"format": _FORMAT, "entries": len(self.entries), "head": self.head()}).encode()

    @classmethod
    def read(cls, raw: bytes, marker: bytes) -> tuple[LedgerFile, bool]:
        """A ledger from both files, and True if a process died before it wrote the last marker."""
        content = json.loads(raw)
        ledger = cls(content["composition"], content["delta"], content["data_path"], content["entries"])
        # The form first: one malformed entry ends the check, however many there are.
        if not ledger._is_sound() or ledger.to_bytes() != json.dumps(content).encode():
            raise ValueError
        marked = json.loads(marker)
        if marked.keys() != {"format", "entries", "head"} or marked["format"] != _FORMAT:
            raise ValueError
        n_entries = marked["entries"]
        if type(n_entries) is not int or not 0 <= len(ledger.entries) - n_entries <= 1:
            raise ValueError
        if ledger.head(n_entries) == marked["head"]:
            return ledger, len(ledger.entries) > n_entries
        if n_entries != len(ledger.entries) or not n_entries or ledger.answered("").head() != marked["head"]:
            raise ValueError
        return ledger, True

    def _is_sound(self) -> bool:
        return (
            self.composition in COMPOSITIONS
            and type(self.delta) in (int, float)
            and 0 <= self.delta < 1
            and (self.delta > 0 or self.composition == "basic")
            and (self.data_path is None or isinstance(self.data_path, str))
            and isinstance(self.entries, list)
            and all(_is_entry(entry, self.composition) for entry in self.entries)
            and not (any(entry["closes"] for entry in self.entries) and len(self.entries) > 1)
        )


def _is_entry(entry: Any, composition: str) -> bool:
    """True if a value has the form of an entry; a digest alone does not show that."""
    return (
        isinstance(entry, dict)
        and entry.keys() == _FIELDS
        and isinstance(entry["request"], dict)
        and isinstance(entry["request"].get("spec"), str)
        and all(_is_amount(entry[name]) for name in ("epsilon", "delta"))
        and (_is_amount(entry["rho"]) if composition == "zcdp" else entry["rho"] is None)
        and isinstance(entry["closes"], bool)
        and (composition == "zcdp" or not entry["closes"])
        and all(isinstance(entry[name], str) for name in ("file", "sha256"))
        and re.fullmatch(r"[0-9a-f]{32}\.npz", entry["file"]) is not None
    )


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _LARGEST


def digest_of(value: Any) -> str:
    """SHA-256 of a value as JSON with its keys in order, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
