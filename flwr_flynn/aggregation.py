"""The server's side of a run without any transport in it: who was asked, who is counted, and the sum.

An `Aggregator` is handed replies as they came and keeps the sum of those that pass every check. Checking
(`check`, `check_evaluation`) changes nothing; `commit` takes over what passed. Flower's strategies wire it to
messages.

Parties are told apart by the id under which the transport knows them (Flower's ``cid``), never by the name
they give themselves.

>>> from flwr.common import ndarrays_to_parameters
>>> from flwr_flynn import ClassCounts, HashSpec
>>> terms = Terms(HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7), (0, 1))
>>> party = ClassCounts.from_data(terms.hasher, [[0.0, 1.0], [1.0, 0.0]], [0, 1], n_classes=2)
>>> reply = Reply("17", ndarrays_to_parameters(payload.encode(party)).tensors, 2, {"flynn-party": "Basel"})
>>> server = Aggregator(terms, min_parties=2)
>>> server.ask(["17", "18"])
>>> server.commit(server.check([reply]))
>>> server.counts == party, [party.name for party in server.parties], server.missing
(True, ['Basel'], {'node 18': 'no reply'})
>>> server.require_enough()
Traceback (most recent call last):
...
flwr_flynn.errors.AggregationError: 1 of at least 2 parties counted; missing: node 18 (no reply)
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from flwr_flynn import payload
from flwr_flynn.counts import ClassCounts
from flwr_flynn.errors import AggregationError, PayloadError
from flwr_flynn.metrics import Confusion, confusion_from_bytes
from flwr_flynn.terms import Terms

T = TypeVar("T")

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
    """

    cid: str
    tensors: Sequence[bytes]
    n_examples: int
    metrics: Mapping[str, Any]

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
    examples : int
        Points in its counts.
    bytes : int
        Size of its reply.
    seconds : float or None
        How long it counted, by its own clock.
    """

    name: str
    cid: str
    examples: int
    bytes: int
    seconds: float | None = None


@dataclass
class Batch:
    """Replies that were checked together, and what accepting them would lead to.

    Parameters
    ----------
    total : ClassCounts
        The sum with those that passed.
    passed : list of Reply
    accepted : dict of cid to Party
    refused : dict of cid to reason
    repeated : list of cid
        Senders of replies that were ignored because they are counted, or about to be.
    names : dict of cid to name
        As the senders gave them.
    """

    total: ClassCounts
    passed: list[Reply] = field(default_factory=list)
    accepted: dict[str, Party] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


class Aggregator:
    """The sum of the parties' counts, and the ledger of who is in it.

    Parameters
    ----------
    terms : Terms
        What the parties were asked for.
    min_parties : int
        How many must be counted before there is a model.
    max_examples_per_party : int, optional
        Refuse counts of more points; of more than a 1024th of `payload.capacity` by default, so that no reply
        leaves the int64 sum without room for the others.

    Attributes
    ----------
    counts : ClassCounts
        The sum over the counted parties.
    """

    def __init__(self, terms: Terms, min_parties: int, max_examples_per_party: int | None = None) -> None:
        self.terms = terms
        self.min_parties = min_parties
        self.max_examples_per_party = max_examples_per_party or payload.capacity(terms.hasher) // 1024
        self.counts = ClassCounts.zeros(terms.hasher, terms.n_classes)
        self._counted: dict[str, Party] = {}
        self._reasons: dict[str, str] = {}  # why a party that was asked is not counted
        self._names: dict[str, str] = {}  # by cid, as the parties gave them

    @property
    def parties(self) -> list[Party]:
        """The counted parties, in the order in which they were counted."""
        names = self.names()
        return [replace(party, name=names[cid]) for cid, party in self._counted.items()]

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

    def check(self, replies: Iterable[Reply]) -> Batch:
        """Check replies, and add up those that pass, changing nothing yet.

        A party whose counts are in the sum already, or that replies twice, is not added again.
        """
        batch = Batch(self.counts)
        total = self.counts.array.copy()
        room = payload.capacity(self.terms.hasher) - self.counts.n_examples
        for reply in replies:
            if reply.cid in self._counted or reply.cid in batch.accepted:
                batch.repeated.append(reply.cid)
                continue
            name = clean(reply.metrics.get("flynn-party"), 64)
            if name:
                batch.names[reply.cid] = name
            counts = _attempt(reply, batch.refused, partial(self._read, room=room))
            if counts is None:
                continue
            total += counts.array
            room -= counts.n_examples
            batch.refused.pop(reply.cid, None)
            batch.passed.append(reply)
            seconds = _seconds(reply.metrics.get("flynn-seconds"))
            name = name or f"node {reply.cid}"
            batch.accepted[reply.cid] = Party(name, reply.cid, counts.n_examples, reply.n_bytes, seconds)
        if batch.accepted:
            hasher = self.terms.hasher
            batch.total = ClassCounts(total, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint)
        return batch

    def commit(self, batch: Batch) -> None:
        """Take over what `check` found."""
        self.counts = batch.total
        self._counted |= batch.accepted
        self._names |= batch.names
        self._reasons |= batch.refused
        for cid in batch.accepted:
            self._reasons.pop(cid, None)

    def discard(self, batch: Batch, reason: str) -> None:
        """Count nobody of a batch; those that passed are missing for `reason`."""
        self._names |= batch.names
        self._reasons |= dict.fromkeys(batch.accepted, reason) | batch.refused

    def check_evaluation(self, replies: Iterable[Reply]) -> tuple[dict[str, Confusion], dict[str, str]]:
        """Read the confusion matrices in replies to an evaluation.

        Returns
        -------
        matrices : dict of cid to int64 array of shape (L, L)
            Of every party that has points to test on; the first reply of each.
        refused : dict of cid to reason
        """
        matrices: dict[str, Confusion] = {}
        refused: dict[str, str] = {}
        seen: set[str] = set()
        for reply in replies:
            if reply.cid in seen:
                continue
            seen.add(reply.cid)
            matrix = _attempt(reply, refused, self._read_confusion)
            if matrix is not None:
                matrices[reply.cid] = matrix
        return matrices, refused

    def _read(self, reply: Reply, room: int) -> ClassCounts:
        n_examples = _n_examples(reply)
        arrays = payload.read_tensors(reply.tensors)
        return payload.decode(
            arrays,
            self.terms.hasher,
            self.terms.n_classes,
            mode=self.terms.mode,
            n_examples=n_examples,
            max_examples=min(room, self.max_examples_per_party),
        )

    def _read_confusion(self, reply: Reply) -> Confusion | None:
        if _n_examples(reply) == 0:
            return None
        return confusion_from_bytes(reply.metrics.get("flynn-confusion"), self.terms.n_classes, reply.n_examples)


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


def _attempt(reply: Reply, refused: dict[str, str], read: Callable[[Reply], T]) -> T | None:
    """What `read` makes of a reply. If it cannot, or the party itself declines, why is noted in `refused`."""
    try:
        if "flynn-refused" not in reply.metrics:
            return read(reply)
        reason = f"declined: {clean(reply.metrics['flynn-refused'], 200) or 'no reason given'}"
    except PayloadError as error:
        reason = f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not cost the others their count
        reason = f"refused: unreadable ({type(error).__name__})"
    refused[reply.cid] = reason
    return None


def _n_examples(reply: Reply) -> int:
    if type(reply.n_examples) is not int or not 0 <= reply.n_examples < 2**63:
        kind = type(reply.n_examples).__name__
        raise PayloadError(f"num_examples: expected a whole number from 0 to 2**63 - 1, got another {kind}")
    return reply.n_examples


def _seconds(value: Any) -> float | None:
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0 else None
