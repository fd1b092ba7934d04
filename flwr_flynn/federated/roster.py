"""The roster of a run: parties that were asked, counted or are missing.

It also has the names by which messages call them.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from flwr_flynn._validation import listed
from flwr_flynn.errors import AggregationError, clean
from flwr_flynn.federated.protocol import MEMBER, PARTY, Entries, Reply

NO_REPLY = "no reply"
_LONGEST_PROOF = 256  # characters

Identify = Callable[[str], str]
"""The SHA-256 of the public key of the node with this id, or "" where it is not known.
"""


def unknown(_cid: str) -> str:
    """The `Identify` that knows no key."""
    return ""


@dataclass(frozen=True, slots=True)
class Member:
    """A party whose counts are in the sum.

    Parameters
    ----------
    name : str
        The name it gave itself (`party-id`), or "".
    node : str
        The node id under which it was counted.
    key : str, default=""
        SHA-256 of its SuperNode's public key, in hexadecimal, or "".
    sizes : tuple of L int, or None
        Samples of each class; None where noise or a secure sum hides them.
    sha256 : tuple of str, default=()
        SHA-256 of its counts, one for each spec; () where nobody saw them.
    run : str, default=""
        The run that counted it.
    bytes : int, default=0
        Size of its reply.
    seconds : float, optional
        Time that counting took, by the party's own clock.
    proof : str, default=""
        SHA-256 of the proof of membership that it sends with counts, or "".
    change : mapping, optional
        Of a party whose counts this run replaced or took out, see `protocol.Answer.change`.
    """

    name: str
    node: str
    key: str = ""
    sizes: tuple[int, ...] | None = None
    sha256: tuple[str, ...] = ()
    run: str = ""
    bytes: int = 0
    seconds: float | None = None
    proof: str = ""
    change: Entries | None = field(default=None, compare=False, repr=False)

    @property
    def examples(self) -> int | None:
        """Samples in all; None where they are hidden."""
        if self.sizes is None:
            return None
        return sum(self.sizes)

    def __str__(self) -> str:
        return self.name or f"node {self.node}"


class Sender(NamedTuple):
    """A party that replied."""

    cid: str  # its node id
    name: str  # the name that it gave
    proof: str = ""  # SHA-256 of its proof of membership, or ""

    @classmethod
    def of(cls, reply: Reply) -> Sender:
        """The sender of a reply as it arrived."""
        proof = reply.metrics.get(MEMBER)
        digest = ""
        if isinstance(proof, str) and 0 < len(proof) <= _LONGEST_PROOF:
            digest = hashlib.sha256(proof.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(reply.cid, clean(reply.metrics.get(PARTY), 64), digest)


class Roster:
    """Parties of a run: asked, counted and missing.

    `before` are the members of the saved run that it starts from.
    """

    def __init__(
        self, before: Sequence[Member] = (), identify: Identify = unknown
    ) -> None:
        self.before = tuple(before)
        self.identify = identify
        # By cid:
        self._counted: dict[str, Member] = {}
        self._reasons: dict[str, str] = {}
        self._names: dict[str, str] = {}  # as the parties gave them
        self._gone: set[str] = set()  # cids of parties taken out
        self._out: set[int] = set()  # indices in `before`, with replaced members
        # Node ids by name and SHA-256 of the counts.
        self._twins: dict[tuple[str, tuple[str, ...]], str] = {}
        # Indices in `before` by the name and the text of a field of the member.
        self._indices: dict[tuple[str, str], list[int]] = {}
        for index, member in enumerate(self.before):
            for name in ("node", "key", "name", "proof"):
                same = self._indices.setdefault((name, getattr(member, name)), [])
                same.append(index)

    @property
    def counted(self) -> list[Member]:
        """Parties that this run counted or took out, by the names in messages.

        They come in the order of their replies.
        """
        names = self.names()
        return [
            replace(member, name=names[cid]) for cid, member in self._counted.items()
        ]

    def staying(self, indices: Iterable[int], gone: Container[int] = ()) -> list[int]:
        """Those of the indices in `before` whose counts of then are in the sum.

        Those of `gone` are about to be taken out.
        """
        return [
            index for index in indices if index not in self._out and index not in gone
        ]

    @property
    def members(self) -> list[Member]:
        """Parties whose counts are in the sum now, by the names they gave themselves."""
        added = [
            member for cid, member in self._counted.items() if cid not in self._gone
        ]
        staying = self.staying(range(len(self.before)))
        return [self.before[index] for index in staying] + added

    def __contains__(self, cid: str) -> bool:
        return cid in self._counted

    def __len__(self) -> int:
        return len(self._counted)

    def member(
        self, cid: str, name: str | None = None, proof: str = ""
    ) -> Member | None:
        """The member of a node.

        It was counted by this run, or is the only one of `before` that the node can be,
        see `find`.
        """
        if cid in self._gone:
            return None
        if cid in self._counted:
            return self._counted[cid]
        # Nodes that are not registered have another id and key after every start: then
        # the name alone is left.
        indices = self.staying(self.find(cid, name, proof))
        if len(indices) == 1:
            return self.before[indices[0]]
        return None

    def find(self, cid: str, name: str | None = None, proof: str = "") -> list[int]:
        """Indices in `before` of the members that a node is for certain.

        Without any they are those of members with its name, which anybody can give. The
        name is by default the one that the node gave before.
        """
        if name is None:
            name = self._names.get(cid, "")
        indices = self.proven(cid, proof)
        if not indices and name:
            return self._indices.get(("name", name), [])
        return indices

    def proven(self, cid: str, proof: str) -> list[int]:
        """Indices in `before` of the members that a node is for certain.

        It is so by its id, its key, or the SHA-256 `proof`.
        """
        indices: set[int] = set()
        marks = {"node": cid, "key": self.identify(cid), "proof": proof}
        for name, mark in marks.items():
            if mark:
                indices.update(self._indices.get((name, mark), ()))
        return sorted(indices)

    def twin(self, cid: str, name: str, sha256: tuple[str, ...]) -> str | None:
        """The node id of a counted party with this name and these counts.

        It is that of a node which restarted under a new id.
        """
        if not name or not sha256:
            return None
        twin = self._twins.get((name, sha256))
        if twin == cid:
            return None
        return twin

    def ask(self, cids: Iterable[str]) -> None:
        """Note that these parties are asked.

        Until they are counted they are missing.
        """
        for cid in cids:
            if cid not in self._counted:
                self._reasons[cid] = NO_REPLY

    def fail(self, cid: str, reason: str) -> None:
        """Note why a party is not counted."""
        if cid not in self._counted:
            self._reasons[cid] = (
                clean(reason, 200, ends=True) or "failed without a reason"
            )

    def enter(
        self, member: Member, taken_out: int | None = None, stays: bool = False
    ) -> None:
        """Note that a party is counted.

        With `taken_out` the member of `before` with this index was taken out. If it
        `stays`, its new counts are in the sum instead.
        """
        self._counted[member.node] = member
        if member.name and member.sha256:
            self._twins.setdefault((member.name, member.sha256), member.node)
        self._reasons.pop(member.node, None)
        if taken_out is not None:
            self._out.add(taken_out)
            if not stays:
                self._gone.add(member.node)
        self.introduce({member.node: member.name})

    def introduce(self, names: dict[str, str]) -> None:
        """Note names that parties gave themselves, by cid."""
        self._names |= {cid: name for cid, name in names.items() if name}

    @property
    def missing(self) -> dict[str, str]:
        """Reasons why parties that were asked are not counted, by name."""
        names = self.names()
        return {names[cid]: reason for cid, reason in self._reasons.items()}

    def require(self, min_parties: int, hint: str = "") -> None:
        """Raise an `AggregationError` unless `min_parties` are counted.

        It names who is missing, and why.
        """
        if len(self._counted) >= min_parties:
            return
        missing = self.missing
        nobody = "nobody else was asked; too few parties were connected"
        names = missing_text(missing) or nobody
        text = (
            f"{len(self._counted)} of at least {min_parties} parties "
            f"counted{hint}; missing: {names}"
        )
        raise AggregationError(text, len(self._counted), min_parties, missing)

    def names(self, others: Iterable[str] = ()) -> dict[str, str]:
        """Names in messages, by cid, of parties that were asked or counted.

        Those of `others` are among them, too. All are different: the cid follows a name
        that two parties have, and one that looks as if a cid followed it.
        """
        cids = dict.fromkeys([*self._counted, *self._reasons, *self._names, *others])
        given = {
            cid: self._names.get(cid) or self._name_before(cid) or f"node {cid}"
            for cid in cids
        }
        times = Counter(given.values())
        unclear = {name for name, n in times.items() if n > 1 or "(node " in name}
        clear = dict(given)
        for cid, name in given.items():
            if name in unclear:
                clear[cid] = f"{name} (node {cid})"
        return clear

    def _name_before(self, cid: str) -> str:
        """The name that a node has in the saved run, by its id or key; "" without."""
        indices = self.find(cid, "")
        if len(indices) == 1:
            return self.before[indices[0]].name
        return ""

    def namesakes(self) -> dict[str, list[str]]:
        """Names that several counted parties give themselves, with their cids."""
        cids = defaultdict[str, list[str]](list)
        for cid in self._counted:
            cids[self._names.get(cid, "")].append(cid)
        return {name: group for name, group in cids.items() if name and len(group) > 1}


def require_samples(n_examples: int, n_parties: int, min_parties: int) -> None:
    """Raise an `AggregationError` where the parties that replied have no samples."""
    if not n_examples:
        raise AggregationError(
            f"no party has samples: all of the {n_parties} that replied have none",
            0,
            min_parties,
        )


def missing_text(missing: Mapping[str, str]) -> str:
    """Names of at most 20 missing parties with the reasons, and the number of others."""
    return listed([f"{name} ({reason})" for name, reason in missing.items()], 20)


@dataclass(frozen=True)
class Failures:
    """Failed replies of a round: texts by node id, and texts without a sender."""

    named: dict[str, str] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)

    def reasons(self, unanswered: Sequence[str]) -> dict[str, str]:
        """Reasons why parties that were asked did not reply, by cid."""
        # The sender of a failure without a name is only certain where a single party is
        # missing.
        texts = self.unnamed
        reason = NO_REPLY
        if texts and len(set(unanswered) - self.named.keys()) == 1:
            reason = f"failed: {texts[0]}"
        elif texts:
            first = clean(texts[0], 100, ends=True)
            reason = (
                f"{NO_REPLY} or a failure ({len(texts)} without a name, the "
                f"first: {first})"
            )
        reasons = dict.fromkeys(unanswered, reason) | self.named
        return {cid: clean(text, 200, ends=True) for cid, text in reasons.items()}
