"""Replies of one phase, checked one by one and added up.

Nothing of the run is changed until the batch is accepted.

A reply in clear is used whole or refused with a reason, and costs its sender alone: the
others are added all the same. Of a secure sum SecAgg+ gives the server one copy of the
mean for each party: all of them are added, or none.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, cast

from flwr_flynn.errors import ConfigError, FlyNNError, PayloadError, clean
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import REFUSED, SECONDS, Reply
from flwr_flynn.federated.request import S
from flwr_flynn.federated.roster import Member, Roster, Sender
from flwr_flynn.federated.tally import Facts, Tally
from flwr_flynn.federated.traffic import Arrivals


@dataclass
class Batch(Generic[S]):
    """Replies that were checked together, and the sum that accepting them leads to.

    All dicts are by cid.
    """

    total: S
    """The sum before, with the replies that passed."""
    known: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)
    """Cids by the name of a sender and the digests of its counts."""
    answered: dict[tuple[str, str], str] = field(default_factory=dict)
    """Cids by node and name of the members of a saved run that replied."""
    passed: dict[str, Reply] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    """Results of the parties, in phases that report on parties."""
    members: dict[str, Member] = field(default_factory=dict)
    """Senders of the replies that passed."""
    taken_out: dict[str, int] = field(default_factory=dict)
    """Indices in the saved run of senders whose counts are taken out."""
    refused: dict[str, str] = field(default_factory=dict)
    """Reasons why replies are refused."""
    repeated: list[str] = field(default_factory=list)
    """Senders of ignored replies: they are in the sum already."""
    names: dict[str, str] = field(default_factory=dict)
    """Names that the senders gave themselves."""
    replies: dict[str, Reply] = field(default_factory=dict)
    """The first reply of each sender, whatever came of it."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """Messages that passed."""

    def without(self, start: S, reason: str) -> Batch[S]:
        """The batch with nobody in it; those that passed are refused for `reason`."""
        return Batch(
            start,
            refused=dict.fromkeys(self.passed, reason) | self.refused,
            repeated=self.repeated,
            names=self.names,
            replies=self.replies,
            arrivals=self.arrivals,
        )


def collect(
    tally: Tally[S],
    batch: Batch[S],
    roster: Roster,
    counted: Roster,
    replies: Sequence[Reply],
) -> None:
    """Add replies to a batch.

    `roster` is that of the phase, and `counted` that of the counts. Replies in clear are
    checked one by one. No party is added twice: not if it replies again, and not if it
    has the name and the very counts of a party in the sum, as a node that restarted
    under a new id has.
    """
    if tally.request.bound is not None:
        _add_sum(tally, batch, roster, replies)
        return
    for reply in replies:
        sender = Sender.of(reply)
        cid, name, _ = sender
        if cid in roster or cid in batch.passed:
            batch.repeated.append(cid)
            continue
        if name:
            batch.names[cid] = name
        if REFUSED in reply.metrics:
            reason = clean(reply.metrics[REFUSED], 200) or "no reason given"
            batch.refused[cid] = f"declined: {reason}"
            continue
        try:
            _add(tally, batch, roster, counted, reply, sender)
        except FlyNNError as error:
            batch.refused[cid] = f"refused: {error}"
        except Exception as error:  # noqa: BLE001
            # Whatever it is, it must not cost the others their count.
            batch.refused[cid] = f"refused: unreadable ({type(error).__name__})"


def _add(
    tally: Tally[S],
    batch: Batch[S],
    roster: Roster,
    counted: Roster,
    reply: Reply,
    sender: Sender,
) -> None:
    """Add a reply to a batch, unless it has no samples.

    An error refuses it, and leaves the batch as it is.
    """
    cid = sender.cid
    member = counted.member(cid, sender.name or None, sender.proof)
    if reply.fault:
        raise PayloadError(reply.fault)
    statistic = tally.read(codec.read_tensors(reply.tensors), reply, member)
    if statistic is None:
        return
    facts = tally.facts(statistic, len(batch.parts))
    _check_new(batch, roster, sender, facts.digests, member)
    if tally.load(batch.total) + tally.load(statistic) > tally.capacity:
        raise PayloadError("the sum has no room for it")
    index = tally.match(statistic, sender, set(batch.taken_out.values()))
    party = _member(facts, roster, reply, sender)
    arrivals = batch.arrivals + Arrivals.of(tally.request.layout.contents, reply)
    batch.total = cast(S, operator.add(batch.total, statistic))
    if sender.name and facts.digests:
        batch.known[sender.name, facts.digests] = cid
    if member is not None and cid not in counted:
        batch.answered[member.node, member.name] = cid
    if index is not None:
        batch.taken_out[cid] = index
    batch.refused.pop(cid, None)
    batch.passed[cid] = reply
    batch.members[cid] = party
    batch.arrivals = arrivals
    if facts.result is not None:
        batch.parts[cid] = facts.result


def _member(facts: Facts, roster: Roster, reply: Reply, sender: Sender) -> Member:
    """The member that a party becomes by its reply."""
    per_class = None
    if facts.sizes is not None:
        per_class = tuple(facts.sizes.tolist())
    seconds = reply.metrics.get(SECONDS)
    if not isinstance(seconds, float) or not 0 <= seconds < math.inf:
        seconds = None
    return Member(
        sender.name,
        sender.cid,
        roster.identify(sender.cid),
        per_class,
        facts.digests,
        bytes=reply.n_bytes,
        seconds=seconds,
        proof=sender.proof,
        change=facts.change,
    )


def _check_new(
    batch: Batch[Any],
    roster: Roster,
    sender: Sender,
    digests: tuple[str, ...],
    member: Member | None,
) -> None:
    """Refuse a party that is in the sum, or in the batch, under another node id."""
    twin = roster.twin(sender.cid, sender.name, digests)
    if twin is None:
        twin = batch.known.get((sender.name, digests))
    if twin is not None:
        raise PayloadError(f"the same name and counts as node {twin}, which is counted")
    if member is None:
        return
    first = batch.answered.get((member.node, member.name))
    if first is not None:
        raise PayloadError(f"the same member as node {first}, which replied")


def _add_sum(
    tally: Tally[S], batch: Batch[S], roster: Roster, replies: Sequence[Reply]
) -> None:
    """Add the sum that copies of its mean make: all senders are in it, or none is."""
    if not replies:
        return
    if batch.passed or batch.refused:
        raise ConfigError(
            "secure sum", "all replies at once", f"{len(replies)} after others"
        )
    batch.repeated += [reply.cid for reply in replies if reply.cid in roster]
    first = {
        cid: reply for cid, reply in first_of_each(replies).items() if cid not in roster
    }
    if not first:
        return
    try:
        request = tally.request
        parts = request.layout.summed([*first.values()])
        statistic = request.of_parts(parts, len(first))
        batch.total = cast(S, operator.add(batch.total, statistic))
    except FlyNNError as error:
        batch.refused = dict.fromkeys(
            first, f"refused: with its whole secure sum: {error}"
        )
        return
    for cid, reply in first.items():
        sender = Sender.of(reply)
        if sender.name:
            batch.names[cid] = sender.name
        batch.passed[cid] = reply
        batch.arrivals += Arrivals.of(request.layout.contents, reply)
        batch.members[cid] = _member(Facts(), roster, reply, sender)


def first_of_each(replies: Iterable[Reply]) -> dict[str, Reply]:
    """The first reply of each sender."""
    first: dict[str, Reply] = {}
    for reply in replies:
        first.setdefault(reply.cid, reply)
    return first
