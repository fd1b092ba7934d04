"""Joining a federation that is there already, and leaving it: the server's side, without any transport in it.

Both start from a `Federation` instead of nothing. `Joining` adds the counts of parties that are not in it; `Leaving`
takes out those of parties that ask for it, who send once more what they were counted by: counts with another SHA-256
are refused, so that what is left is, bit for bit, what the others' counts add up to.

>>> from flwr.common import ndarrays_to_parameters
>>> from flwr_flynn import ClassCounts, HashSpec
>>> from flwr_flynn.federated import codec
>>> from flwr_flynn.federated.federation_file import Federation, Member
>>> from flwr_flynn.federated.roster import Reply
>>> from flwr_flynn.federated.protocol import Terms
>>> terms = Terms(HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7), ["cat", "dog"])
>>> basel = ClassCounts.from_data(terms.hasher, [[0.0, 1.0]], [0], n_classes=2)
>>> empty = Federation(terms, ClassCounts.zeros(terms.hasher, 2), ())
>>> reply = Reply("17", ndarrays_to_parameters(codec.encode(basel)).tensors, 1, {"flynn-party": "Basel"})
>>> joining = Joining(empty, min_parties=1)
>>> joining.commit(joining.check([reply]))
>>> full = joining.federation(run="1")
>>> [(member.name, member.sizes) for member in full.members]
[('Basel', (1, 0))]
>>> leaving = Leaving(full, min_parties=1)
>>> leaving.commit(leaving.check([reply]))
>>> leaving.counts.n_examples, leaving.federation(run="2").members
(0, ())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.aggregator import Aggregator, Totals
from flwr_flynn.federated.federation_file import Federation, Member
from flwr_flynn.federated.roster import Batch, Reply, Sizes, clean
from flwr_flynn.model.noise_record import add_noise

Identify = Callable[[str], str]
"""The SHA-256 of the public key of the node with this cid, or "" where it is not known."""

PURPOSES = ("train", "join", "withdraw", "evaluate")
"""What a run can be for: a new federation, or one that is there: to add parties, to take out, or only to hand out."""

LEAVE = {"flynn-action": "leave"}
"""What a request has beside the terms if it is for the counts of parties that leave."""


def unknown(_cid: str) -> str:
    """The `Identify` that knows nothing."""
    return ""


def members(aggregator: Aggregator, place: int, run: str, identify: Identify = unknown) -> list[Member]:
    """What an aggregator's counted parties are in a ledger.

    Parameters
    ----------
    aggregator : Aggregator
    place : int
        Of the spec that the federation keeps.
    run : str
    identify : callable
    """
    found = []
    for party in aggregator.parties:
        sizes = None if party.examples is None else tuple(aggregator.sizes[party.cid].tolist())
        digests = aggregator.digests.get(party.cid, ())
        name = aggregator.own_name(party.cid)
        found.append(Member(name, party.cid, identify(party.cid), sizes, digests[place] if digests else None, run))
    return found


class _Starting(Aggregator):
    """An aggregator that starts from a federation.

    Parameters
    ----------
    federation : Federation
    min_parties, max_examples_per_party
        As for `Aggregator`; of those that this run counts.
    identify : callable, optional
    """

    def __init__(
        self,
        federation: Federation,
        min_parties: int,
        max_examples_per_party: int | None = None,
        identify: Identify = unknown,
    ) -> None:
        super().__init__(federation.terms, min_parties, max_examples_per_party)
        self.before = federation
        self.total = (federation.counts,)
        self.identify = identify
        points = federation.counts.n_per_class if federation.terms.mechanism is None else None
        self._room -= super()._load(self.total, np.zeros(0, np.int64) if points is None else points)
        self._stands_for: dict[int, str] = {}  # places of members, and who was first to come as each

    def sizes_of(self, cid: str) -> Sizes | None:
        """Points of each class of a party that is in the counts, where they are known."""
        if cid in self.sizes or not self.is_counted(cid):
            return self.sizes.get(cid)
        places = self._places(cid)
        if len(places) != 1 or self._stands_for.setdefault(places[0], cid) != cid:
            return None
        return _sizes(self.before.members[places[0]].sizes)

    def _places(self, cid: str, name: str | None = None) -> list[int]:
        """Where the federation has this party; by the name it gave before, if none is given."""
        return self.before.find(cid, self.identify(cid), self.own_name(cid) if name is None else name)


class Joining(_Starting):
    """The sums of a federation and of parties that are not in it yet."""

    def is_counted(self, cid: str) -> bool:
        """Whether the sum has this party in it, from before or now."""
        return super().is_counted(cid) or bool(self._places(cid))

    @property
    def n_parties(self) -> int:
        """How many parties the sum has in it."""
        return len(self.before.members) + len(self._counted)

    def federation(self, run: str) -> Federation:
        """The federation with those who joined."""
        joined = [*self.before.members, *members(self, 0, run, self.identify)]
        return replace(self.before, counts=self.counts, members=joined)

    def _read(self, reply: Reply, max_examples: int) -> tuple[Totals, Sizes]:
        places = self._places(reply.cid, clean(reply.metrics.get("flynn-party"), 64))
        if places:
            raise PayloadError(f"in the federation already, as {self.before.members[places[0]]}")
        return super()._read(reply, max_examples)


class Standing(_Starting):
    """The sums of a federation as it is: nobody is asked."""

    def is_counted(self, cid: str) -> bool:
        """Whether the sum has this party in it."""
        return bool(self._places(cid))

    def is_due(self, cid: str) -> bool:
        """Nobody is."""
        return False

    @property
    def n_parties(self) -> int:
        """How many parties the sum has in it."""
        return len(self.before.members)

    @property
    def enough(self) -> bool:
        """Yes: the federation had enough when it was made."""
        return True

    def federation(self, run: str) -> Federation:
        """The federation as it was."""
        return self.before


class Leaving(_Starting):
    """The sums of a federation without those that leave it."""

    outcome, done = "taken out", "taken out"

    def __init__(
        self,
        federation: Federation,
        min_parties: int,
        max_examples_per_party: int | None = None,
        identify: Identify = unknown,
    ) -> None:
        super().__init__(federation, min_parties, max_examples_per_party, identify)
        self._gone: dict[str, int] = {}  # by cid: places of the members that left, or are about to

    def is_counted(self, cid: str) -> bool:
        """Whether the sum has this party in it still."""
        return cid not in self._counted and bool(self._places(cid))

    def config(self) -> dict[str, Any]:
        """The terms, and that they are for parties that leave."""
        return {**super().config(), **LEAVE}

    def is_due(self, cid: str) -> bool:
        """Whether this party was not heard yet: which node is which member may show in its reply only."""
        return cid not in self._counted

    @property
    def n_parties(self) -> int:
        """How many parties the sum has in it still."""
        return len(self.before.members) - len(self._counted)

    def check(self, replies: Iterable[Reply]) -> Batch[Totals]:
        """As `Ledger.check`; the total is what is left."""
        self._gone = {cid: place for cid, place in self._gone.items() if cid in self._counted}
        return super().check(replies)

    def federation(self, run: str) -> Federation:
        """The federation without those who left; `run` leaves no trace in it."""
        gone = {self._gone[cid] for cid in self._counted}
        left = [member for place, member in enumerate(self.before.members) if place not in gone]
        return replace(self.before, counts=self.counts, members=left)

    def _read(self, reply: Reply, max_examples: int) -> tuple[Totals, Sizes]:
        places = self._places(reply.cid, clean(reply.metrics.get("flynn-party"), 64))
        places = [place for place in places if place not in self._gone.values()]
        if not places:
            raise PayloadError("not in the federation")
        if all(self.before.members[place].sha256 is None for place in places):
            raise PayloadError("added by a secure sum, in which nobody's counts are known: it cannot be taken out")
        part, sizes = super()._read(reply, max_examples)
        sha256 = part[0].sha256()
        for place in places:
            if self.before.members[place].sha256 == sha256:
                self._gone[reply.cid] = place
                return part, sizes
        raise PayloadError(
            f"counts: expected those that {self.before.members[places[0]]} was counted by, got others; "
            "have its data or settings changed?"
        )

    def _load(self, part: Totals, sizes: Sizes) -> int:
        return 0

    def _add(self, total: Any, part: Totals) -> Any:
        (array, noise), (counts,) = total[0], part
        add_noise(noise, counts.noise, -1)
        array -= counts.array
        return total


def _sizes(sizes: Any) -> Sizes | None:
    return None if sizes is None else np.array(sizes, np.int64)


STARTS: dict[str, type[Joining | Leaving | Standing]] = {"join": Joining, "withdraw": Leaving, "evaluate": Standing}
"""How each purpose of `PURPOSES` that is about a federation starts from it."""
