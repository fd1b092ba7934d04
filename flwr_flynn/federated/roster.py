"""Who was asked, who is counted, and the sum of what they sent.

A `Ledger` is handed replies as they came and keeps the sum of those that pass every check. Checking changes nothing;
`commit` takes over what passed. What is summed, and how a reply is read, its subclasses say: counts
(`aggregation.Aggregator`), or the sums of columns that come before them (`rounds.SumsRound`).

Parties are told apart by the id under which the transport knows them (Flower's ``cid``), never by the name they give
themselves.
"""

from __future__ import annotations

import math
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import AggregationError, PayloadError

T = TypeVar("T")
S = TypeVar("S")

Sizes = npt.NDArray[np.int64]

NO_REPLY = "no reply"

_LISTED = 20  # parties named in an error message


@dataclass(frozen=True)
class Reply:
    """What one party sent back. `cid` is the transport's word, everything else is the party's.

    Parameters
    ----------
    cid : str
        The transport's name for the sender.
    tensors : sequence of bytes
        Arrays as Flower carries them: the bytes of `numpy.save`.
    n_examples : int
    metrics : mapping of str to scalar
    fault : str
        Why it is to be refused, if already its form is not right.
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


@dataclass(frozen=True)
class Party:
    """A party that is counted.

    Parameters
    ----------
    name : str
        The name it gave itself, or "node <cid>"; with the cid behind it where the name alone could be
        mistaken.
    cid : str
        The transport's name for it.
    examples : int or None
        Points in its counts; None where noise hides them.
    bytes : int
        Size of its reply.
    seconds : float or None
        How long it counted, by its own clock.
    """

    name: str
    cid: str
    examples: int | None
    bytes: int
    seconds: float | None = None


@dataclass
class Batch(Generic[S]):
    """Replies that were checked together, and what accepting them would lead to.

    Parameters
    ----------
    total
        The sum with those that passed.
    passed : list of Reply
    accepted : dict of cid to Party
    sizes : dict of cid to (L,) int64 array
        Points of each class of those that passed.
    refused : dict of cid to reason
    repeated : list of cid
        Senders of replies that were ignored because they are counted, or about to be.
    names : dict of cid to name
        As the senders gave them.
    load : int
        How much of the sum's capacity it takes.
    digests : dict of cid to tuple of str
        SHA-256 of what each adds to the sum.
    """

    total: S
    passed: list[Reply] = field(default_factory=list)
    accepted: dict[str, Party] = field(default_factory=dict)
    sizes: dict[str, Sizes] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    load: int = 0
    digests: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Ledger(ABC, Generic[S]):
    """The sum of what parties sent, and who is in it.

    Parameters
    ----------
    nothing
        The sum of no parties.
    min_parties : int
        How many must be counted.
    capacity : int
        Points up to which the sum is certain to be right.
    max_examples_per_party : int, optional
        Refuse replies of more points; of more than a 1024th of `capacity` by default, so that none leaves the sum
        without room for the others.

    Attributes
    ----------
    total
        The sum over the counted parties.
    sizes : dict of cid to (L,) int64 array
        Points of each class of every counted party.
    tensor_bytes : dict of cid to tuple of int
        Size of each array in its reply.
    digests : dict of cid to tuple of str
        SHA-256, in hexadecimal, of what each counted party added; empty where nobody needs to know.
    """

    outcome, done = "accepted", "counted"
    """What the log says of a reply that passed, and of all such parties."""

    def __init__(self, nothing: S, min_parties: int, capacity: int, max_examples_per_party: int | None = None) -> None:
        self.total = nothing
        self.sizes: dict[str, Sizes] = {}
        self.tensor_bytes: dict[str, tuple[int, ...]] = {}
        self.digests: dict[str, tuple[str, ...]] = {}
        self.min_parties = min_parties
        self.max_examples_per_party = max_examples_per_party or capacity // 1024
        self._room = capacity
        self._counted: dict[str, Party] = {}
        self._reasons: dict[str, str] = {}  # why a party that was asked is not counted
        self._names: dict[str, str] = {}  # by cid, as the parties gave them

    # ---- what is summed

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What a party is told when it is asked."""

    @abstractmethod
    def _read(self, reply: Reply, max_examples: int) -> tuple[Any, Sizes]:
        """What a reply adds to the sum, and the points of each class in it; or a `PayloadError`."""

    def _load(self, part: Any, sizes: Sizes) -> int:
        """How much of the sum's capacity a part takes: its points."""
        return int(sum(sizes.tolist()))

    def _examples(self, sizes: Sizes) -> int | None:
        """Points of a party that is counted, if they are known."""
        return int(sum(sizes.tolist()))

    def _digests(self, part: Any) -> tuple[str, ...]:
        """SHA-256 of each piece of a part."""
        return ()

    @abstractmethod
    def _begin(self) -> Any:
        """The present sum in a form to which `_add` can add."""

    @abstractmethod
    def _add(self, total: Any, part: Any) -> Any:
        """The sum with one more part, of which nothing is kept."""

    @abstractmethod
    def _finish(self, total: Any) -> S:
        """The sum as it is kept."""

    @property
    def parties(self) -> list[Party]:
        """The counted parties, in the order in which they were counted."""
        names = self.names()
        return [replace(party, name=names[cid]) for cid, party in self._counted.items()]

    @property
    def n_parties(self) -> int:
        """How many parties the sum has in it."""
        return len(self._counted)

    @property
    def missing(self) -> dict[str, str]:
        """Why parties that were asked are not counted, by name."""
        names = self.names()
        return {names[cid]: reason for cid, reason in self._reasons.items()}

    @property
    def enough(self) -> bool:
        """Whether at least `min_parties` are counted."""
        return len(self._counted) >= self.min_parties

    def require_enough(self) -> None:
        """Raise an `AggregationError` that names who is missing and why, unless `min_parties` are counted."""
        if self.enough:
            return
        missing = [f"{name} ({reason})" for name, reason in self.missing.items()]
        if len(missing) > _LISTED:
            missing[_LISTED:] = [f"and {len(missing) - _LISTED} more"]
        who = ", ".join(missing) or "nobody else was asked; too few parties were connected"
        raise AggregationError(f"{len(self._counted)} of at least {self.min_parties} parties counted; missing: {who}")

    def is_counted(self, cid: str) -> bool:
        """Whether the sum has this party in it."""
        return cid in self._counted

    def is_due(self, cid: str) -> bool:
        """Whether this party is to be asked for its part."""
        return not self.is_counted(cid)

    def due(self, present: Iterable[str]) -> list[str]:
        """Those of these parties that are to be asked now."""
        return [cid for cid in present if self.is_due(cid)]

    def sizes_of(self, cid: str) -> Sizes | None:
        """Points of each class of a party that the sum has in it, where they are known."""
        return self.sizes.get(cid)

    def names(self, others: Iterable[str] = ()) -> dict[str, str]:
        """What messages call each party, by cid: those that were asked or replied, and `others`.

        No two names are alike, and none is one that a party could have made up for another: the cid follows a
        name that another party has too, and one that looks as if a cid followed already.
        """
        cids = dict.fromkeys([*self._counted, *self._reasons, *self._names, *others])
        given = {cid: self._names.get(cid, f"node {cid}") for cid in cids}
        times = Counter(given.values())
        return {
            cid: f"{name} (node {cid})" if times[name] > 1 or "(node " in name else name for cid, name in given.items()
        }

    def own_name(self, cid: str) -> str:
        """The name that a party gave itself, or ""."""
        return self._names.get(cid, "")

    def introduce(self, other: Ledger[Any]) -> None:
        """Take over the names that parties gave to another ledger."""
        self._names = {**other._names, **self._names}

    def namesakes(self) -> dict[str, list[str]]:
        """Names that several counted parties give themselves, with their cids."""
        cids: dict[str, list[str]] = {}
        for cid in self._counted:
            if cid in self._names:
                cids.setdefault(self._names[cid], []).append(cid)
        return {name: group for name, group in cids.items() if len(group) > 1}

    def ask(self, cids: Iterable[str]) -> None:
        """Note that these parties are asked for their counts. Until they are counted they are missing."""
        for cid in cids:
            if cid not in self._counted:
                self._reasons[cid] = NO_REPLY

    def fail(self, cid: str, reason: str) -> None:
        """Note why a party's answer is not there."""
        if cid not in self._counted:
            self._reasons[cid] = clean(reason, 200) or "failed without a reason"

    def check(self, replies: Iterable[Reply]) -> Batch[S]:
        """Check replies, and add up those that pass, changing nothing yet.

        A party whose reply is in the sum already, or that replies twice, is not added again. Nor is one with the name
        and the very part of another: that is a node that restarted under a new id.
        """
        batch = Batch(self.total)
        total = self._begin()
        known = {(self._names.get(cid), digests): cid for cid, digests in self.digests.items()}
        for reply in replies:
            if reply.cid in self._counted or reply.cid in batch.accepted:
                batch.repeated.append(reply.cid)
                continue
            name = clean(reply.metrics.get("flynn-party"), 64)
            if name:
                batch.names[reply.cid] = name
            most = min(self._room - batch.load, self.max_examples_per_party)
            read = attempt(reply, batch.refused, partial(self._read, max_examples=most))
            if read is None:
                continue
            part, sizes = read
            digests = self._digests(part)
            twin = known.setdefault((name, digests), reply.cid) if name and digests else reply.cid
            if twin != reply.cid:
                batch.refused[reply.cid] = f"refused: the same name and counts as node {twin}, which is counted"
                continue
            load = self._load(part, sizes)
            if batch.load + load > self._room:
                batch.refused[reply.cid] = "refused: the sum has no room for it"
                continue
            total = self._add(total, part)
            batch.load += load
            batch.digests[reply.cid] = digests
            batch.refused.pop(reply.cid, None)
            batch.passed.append(reply)
            batch.sizes[reply.cid] = sizes
            seconds = _seconds(reply.metrics.get("flynn-seconds"))
            name = name or f"node {reply.cid}"
            batch.accepted[reply.cid] = Party(name, reply.cid, self._examples(sizes), reply.n_bytes, seconds)
        if batch.accepted:
            batch.total = self._finish(total)
        return batch

    def commit(self, batch: Batch[S]) -> None:
        """Take over what `check` found."""
        self.total = batch.total
        self._counted |= batch.accepted
        self.sizes |= batch.sizes
        self.digests |= batch.digests
        self._room -= batch.load
        self.tensor_bytes |= {reply.cid: tuple(map(len, reply.tensors)) for reply in batch.passed}
        self._names |= batch.names
        self._reasons |= batch.refused
        for cid in batch.accepted:
            self._reasons.pop(cid, None)

    def discard(self, batch: Batch[S], reason: str) -> None:
        """Count nobody of a batch; those that passed are missing for `reason`."""
        self._names |= batch.names
        self._reasons |= dict.fromkeys(batch.accepted, reason) | batch.refused


def clean(text: Any, longest: int) -> str:
    """A party's text as one short line that can be printed: no control or direction characters.

    >>> clean("Basel\\n[ERROR] \\u202eall is lost", longest=20)
    'Basel [ERROR] all i…'
    """
    if not isinstance(text, str):
        return ""
    # Unicode's categories C (control, format, surrogates, unassigned) and Z (separators); cut first, it may be huge.
    shown = (" " if unicodedata.category(c)[0] == "Z" or c in "\n\t" else c for c in text[: 4 * longest])
    line = " ".join("".join(c for c in shown if unicodedata.category(c)[0] != "C").split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def attempt(reply: Reply, refused: dict[str, str], read: Callable[[Reply], T]) -> T | None:
    """What `read` makes of a reply. If it cannot, or the party itself declines, why is noted in `refused`."""
    try:
        if "flynn-refused" not in reply.metrics:
            if reply.fault:
                raise PayloadError(reply.fault)
            return read(reply)
        reason = f"declined: {clean(reply.metrics['flynn-refused'], 200) or 'no reason given'}"
    except PayloadError as error:
        reason = f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not cost the others their count
        reason = f"refused: unreadable ({type(error).__name__})"
    refused[reply.cid] = reason
    return None


def first_of_each(replies: Iterable[Reply], read: Callable[[Reply], T | None]) -> tuple[dict[str, T], dict[str, str]]:
    """What `read` makes of the first reply of each party, and why of some it makes nothing."""
    found: dict[str, T] = {}
    refused: dict[str, str] = {}
    seen: set[str] = set()
    for reply in replies:
        if reply.cid not in seen:
            seen.add(reply.cid)
            value = attempt(reply, refused, read)
            if value is not None:
                found[reply.cid] = value
    return found, refused


def announced_examples(reply: Reply) -> int:
    """The number of points that a sender gave, if it is one."""
    if type(reply.n_examples) is not int or not 0 <= reply.n_examples < 2**63:
        kind = type(reply.n_examples).__name__
        raise PayloadError(f"num_examples: expected a whole number from 0 to 2**63 - 1, got another {kind}")
    return reply.n_examples


def _seconds(value: Any) -> float | None:
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0 else None
