"""Secure sums: their bound, their room, and the sum that the server makes of SecAgg+'s mean.

A party's vector follows from the layout of the request, see `federated.layout`. SecAgg+ gives the server one copy of
the mean for each party in the sum, see `flower.secagg`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr_flynn.errors import ConfigError, FlyNNError, PayloadError
from flwr_flynn.federated.collect import Batch, first_of_each
from flwr_flynn.federated.protocol import PARTY, Config, Reply, key
from flwr_flynn.federated.request import LayoutRequest, Request
from flwr_flynn.federated.roster import Member, Roster, clean
from flwr_flynn.federated.run_spec import LARGEST_BOUND, check_bound

MODULUS = 2**32


def bound_for(most: int) -> int:
    """The least power of two that is no less than a number of samples, and at least 2."""
    if not 1 <= most <= LARGEST_BOUND:
        raise ConfigError("secure sum", f"from 1 to {LARGEST_BOUND} samples at a party", most)
    return max(2, 1 << (most - 1).bit_length())


def check_room(n_parties: int, bound: int) -> None:
    """Raise a `ConfigError` if the sum of so many parties, of counts up to `bound`, could wrap around."""
    if n_parties > room(bound):
        raise ConfigError("secure sum", f"at most {room(bound)} parties with counts up to {bound}", n_parties)


def room(bound: int) -> int:
    """Parties that a sum has room for: at the modulus itself all weights together would be 0."""
    return (MODULUS - 1) // (2 * bound)


def announced_bound(config: Config, required: bool = False) -> int | None:
    """The bound of the secure sum that a request is for; None in clear, which is refused if it is `required`."""
    if "bound" not in config and not required:
        return None
    bound = config.json("bound", 20)
    try:
        check_bound(bound)
    except ConfigError as error:
        raise PayloadError(key("bound"), error.expected, error.got) from None
    return int(bound)


def collect_secure(
    request: Request[Any],
    total: Any,
    roster: Roster,
    counted: Roster,
    replies: Sequence[Reply],
    batch: Batch[Any] | None = None,
) -> Batch[Any]:
    """Make the sum out of copies of its mean: all senders are in it, or none is. See `collect.Collect`."""
    assert isinstance(request, LayoutRequest)  # of a plan that `plan.phases_of` made
    if batch is not None:
        if replies:
            raise ConfigError("secure sum", "all replies at once", f"{len(replies)} after others")
        return batch
    batch = Batch(total, repeated=[reply.cid for reply in replies if reply.cid in roster])
    first = {cid: reply for cid, reply in first_of_each(replies).items() if cid not in roster}
    if not first:
        return batch
    try:
        batch.total = request.add(total, request.summed(list(first.values())))
    except FlyNNError as error:
        batch.refused = dict.fromkeys(first, f"refused: with its whole secure sum: {error}")
        return batch
    for cid, reply in first.items():
        name = clean(reply.metrics.get(PARTY), 64)
        batch.names |= {cid: name} if name else {}
        batch.passed[cid] = reply
        batch.members[cid] = Member(name, cid, roster.identify(cid), bytes=reply.n_bytes)
    return batch
