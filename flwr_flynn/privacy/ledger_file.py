"""The two files of a party's ledger: the ledger itself, and the marker beside its folder. No disk is touched here.

The entries form a hash chain; the marker has their number and the head of the chain. The ledger is written before the
marker, so that it may be one entry ahead of it. Any other difference means that one of them is an older copy.

The first format, of version 0.1.0, had an empty marker, and in each entry a digest of the data, which is dropped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr_flynn.privacy.policy import COMPOSITIONS, Cost

_FORMAT = 2
_MOST = 1e300  # of an amount: sums of integers beyond floating point raise
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
        """The costs of the releases."""
        return [Cost(**{name: entry[name] for name in _COST}) for entry in self.entries]

    def find(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The entry of a request that was answered."""
        return next((entry for entry in self.entries if entry["request"] == request), None)

    def with_entry(self, request: dict[str, Any], cost: Cost, file: str, sha256: str) -> LedgerFile:
        """This ledger with one release more."""
        entry = {"request": request, **{name: getattr(cost, name) for name in _COST}, "file": file, "sha256": sha256}
        return replace(self, entries=[*self.entries, entry])

    def head(self, n_entries: int | None = None) -> str:
        """The head of the hash chain over the first entries, or over all of them."""
        head = digest_of([self.composition, self.delta, self.data_path])
        for entry in self.entries[:n_entries]:
            head = digest_of([head, entry])
        return head

    def to_bytes(self) -> bytes:
        """The ledger's file, with a digest by which it notices that it was altered."""
        about = {"composition": self.composition, "delta": self.delta, "data_path": self.data_path}
        content = {"format": _FORMAT, **about, "entries": [*self.entries]}
        return json.dumps({**content, "sha256": digest_of(content)}).encode()

    def marker(self) -> bytes:
        """The marker's file."""
        return json.dumps({"format": _FORMAT, "entries": len(self.entries), "head": self.head()}).encode()

    @classmethod
    def read(cls, raw: bytes, marker: bytes) -> tuple[LedgerFile, bool]:
        """A ledger from its file and the marker's, and whether a process died before it wrote the last marker."""
        content = json.loads(raw)
        if content["format"] == 1:
            ledger = _first_format(content)
            if not marker:
                return ledger, False
        else:
            ledger = cls(content["composition"], content["delta"], content["data_path"], content["entries"])
            # The form first: of entries that are none, however many, the first one ends it.
            if not ledger._is_sound() or ledger.to_bytes() != json.dumps(content).encode():
                raise ValueError
        marked = json.loads(marker)
        if marked.keys() != {"format", "entries", "head"} or marked["format"] != _FORMAT:
            raise ValueError
        n_entries = marked["entries"]
        if type(n_entries) is not int or not 0 <= len(ledger.entries) - n_entries <= 1:
            raise ValueError
        if ledger.head(n_entries) != marked["head"]:
            raise ValueError
        return ledger, len(ledger.entries) > n_entries

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


def _first_format(content: Any) -> LedgerFile:
    entries = content["entries"]
    digest = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    whole = json.dumps({"format": 1, "sha256": digest, "entries": entries})
    if json.dumps(content) != whole or not isinstance(entries, list):
        raise ValueError
    kept = []
    for entry in entries:
        if not isinstance(entry["data"], str) or entry.keys() & {"rho", "closes"}:
            raise ValueError
        kept.append({name: entry[name] for name in entry if name != "data"} | {"rho": None, "closes": False})
    ledger = LedgerFile(entries=kept)
    if not ledger._is_sound():
        raise ValueError
    return ledger


def _is_entry(entry: Any, composition: str) -> bool:
    """True if a value has the form of an entry, which a digest that fits does not promise."""
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
    return type(value) in (int, float) and 0 <= value <= _MOST


def digest_of(value: Any) -> str:
    """SHA-256 of a value as JSON with its keys in order, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
