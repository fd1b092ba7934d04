"""The sum of a secure run: SecAgg+ hands the server one copy of the mean for each party in it, see `flower.secagg`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_flynn.errors import ConfigError, CountsError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch, first_of_each
from flwr_flynn.federated.protocol import PARTY, Reply, Request
from flwr_flynn.federated.roster import Member, Roster, clean
from flwr_flynn.federated.run_spec import LARGEST_BOUND, RunSpec
from flwr_flynn.federated.statistics import CountsOfSpecs
from flwr_flynn.model.counts import ClassCounts

MODULUS = 2**32

LEAST_PARTIES = 3
"""Parties of a secure sum: in a sum of two, each sees the other's counts."""


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


def collect_secure(
    request: Request[Any],
    total: CountsOfSpecs,
    roster: Roster,
    counted: Roster,
    replies: Sequence[Reply],
    batch: Batch[CountsOfSpecs] | None = None,
) -> Batch[CountsOfSpecs]:
    """Make the sum out of copies of its mean: all senders are in it, or none is. See `collect.Collect`."""
    if batch is not None:
        if replies:
            raise ConfigError("secure sum", "all replies at once", f"{len(replies)} after others")
        return batch
    batch = Batch(total, repeated=[reply.cid for reply in replies if reply.cid in roster])
    first = {cid: reply for cid, reply in first_of_each(replies).items() if cid not in roster}
    if not first:
        return batch
    try:
        batch.total = total + CountsOfSpecs((_sum(request.run, list(first.values())),))  # type: ignore[attr-defined]
    except (PayloadError, CountsError) as error:
        batch.refused = dict.fromkeys(first, f"refused: with its whole secure sum: {error}")
        return batch
    for cid, reply in first.items():
        name = clean(reply.metrics.get(PARTY), 64)
        batch.names |= {cid: name} if name else {}
        batch.passed[cid] = reply
        batch.members[cid] = Member(name, cid, roster.identify(cid), bytes=reply.n_bytes)
    return batch


def _sum(run: RunSpec, replies: list[Reply]) -> ClassCounts:
    if any(tuple(reply.tensors) != tuple(replies[0].tensors) for reply in replies):
        raise PayloadError("secure sum", f"{len(replies)} copies of one mean", "different arrays")
    arrays = codec.read_tensors(replies[0].tensors)
    shape, bound = (run.n_classes, run.hasher.hash_dim), run.bound or 0
    if len(arrays) != 1 or arrays[0].dtype.str != "<f8" or arrays[0].shape != shape:
        got = ", ".join(f"{array.dtype.str} {array.shape}" for array in arrays) or "none"
        raise PayloadError("secure sum", f"one float64 array of shape {shape}", got)
    exact = arrays[0] * len(replies)
    total = np.rint(exact)
    if not (np.abs(total) <= len(replies) * bound).all() or not np.allclose(exact, total, 0, 1e-3):
        raise PayloadError("secure sum", f"integers of at most {len(replies)} x {bound}", "values that are not")
    array, hasher = total.astype(np.int64), run.hasher
    if run.mechanism is not None:
        return run.mechanism.received(array, hasher.fingerprint, len(replies))
    return ClassCounts(array, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint)
