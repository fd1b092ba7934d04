"""A sum of which nobody sees the parts: what it has room for, and the server's side of it without any transport.

`secagg` has the wiring to Flower's SecAgg+, and says why the sum is exact.

>>> bound_for(1437)
2048
>>> check_room(n_parties=10, bound=2048)
>>> check_room(n_parties=2**21, bound=2048)
Traceback (most recent call last):
...
flwr_flynn.errors.ConfigError: secure sum: expected at most 1048575 parties of at most 2048 points each, got 2097152
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flwr_flynn.errors import ConfigError, CountsError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.aggregator import Aggregator, Totals
from flwr_flynn.federated.protocol import LARGEST_BOUND, Terms
from flwr_flynn.federated.roster import Batch, Party, Reply, clean
from flwr_flynn.model.counts import ClassCounts

MODULUS = 2**32

LEAST_PARTIES = 3
"""Of a secure sum: in one of two, each sees what the other sent."""


def bound_for(most: int) -> int:
    """The least power of two that is no less than a number of points, and at least 2."""
    if not 1 <= most <= LARGEST_BOUND:
        raise ConfigError(f"secure sum: expected from 1 to {LARGEST_BOUND} points at a party, got {most}")
    return max(2, 1 << (most - 1).bit_length())


def check_room(n_parties: int, bound: int) -> None:
    """Refuse sums that could wrap around.

    Raises
    ------
    ConfigError
        So many parties, of counts up to `bound`, do not fit.
    """
    most = room(bound)
    if n_parties > most:
        raise ConfigError(
            f"secure sum: expected at most {most} parties of at most {bound} points each, got {n_parties}"
        )


def room(bound: int) -> int:
    """How many parties a sum has room for. At the modulus itself all weights together would be 0."""
    return (MODULUS - 1) // (2 * bound)


class SecureAggregator(Aggregator):
    """The sum of the counts where nobody's own are known.

    Parameters
    ----------
    terms : Terms
        Of mode "secure".
    min_parties, max_examples_per_party
        As for `Aggregator`; at least three parties.
    """

    def __init__(self, terms: Terms, min_parties: int, max_examples_per_party: int | None = None) -> None:
        super().__init__(terms, min_parties, max_examples_per_party)
        if min_parties < LEAST_PARTIES:
            raise ConfigError(f"min_parties: expected at least {LEAST_PARTIES} for a secure sum, got {min_parties}")

    @property
    def n_releases(self) -> int:
        """How many parties' noise is in the sum."""
        return self.n_parties

    def due(self, present: Iterable[str]) -> list[str]:
        """As `Ledger.due`; nobody, if it would be a sum of too few."""
        due = super().due(present)
        if len(due) >= LEAST_PARTIES:
            return due
        for cid in due:
            self.fail(cid, "not asked: too few are left for a secure sum")
        return []

    def ask(self, cids: Iterable[str]) -> None:
        """Note that these parties are asked for their counts, if their sum has room."""
        cids = list(cids)
        assert self.terms.bound is not None
        check_room(len(cids), self.terms.bound)
        super().ask(cids)

    def check(self, replies: Iterable[Reply]) -> Batch[Totals]:
        """Make the sum out of the means that Flower hands over, one copy for each party that is in it."""
        batch: Batch[Totals] = Batch(self.total)
        first: dict[str, Reply] = {}
        for reply in replies:
            if reply.cid in self._counted or reply.cid in first:
                batch.repeated.append(reply.cid)
            else:
                first[reply.cid] = reply
        if not first:
            return batch
        try:
            batch.total = (self.total[0] + self._sum(list(first.values())),)
        except (PayloadError, CountsError) as error:
            batch.total = self.total
            batch.refused = dict.fromkeys(first, f"refused: with its whole secure sum: {error}")
            return batch
        for cid, reply in first.items():
            name = clean(reply.metrics.get("flynn-party"), 64)
            if name:
                batch.names[cid] = name
            batch.passed.append(reply)
            batch.sizes[cid] = np.zeros(self.terms.n_classes, np.int64)
            batch.accepted[cid] = Party(name or f"node {cid}", cid, None, reply.n_bytes)
        return batch

    def _sum(self, replies: list[Reply]) -> ClassCounts:
        if any(tuple(reply.tensors) != tuple(replies[0].tensors) for reply in replies):
            raise PayloadError("expected as many copies of one mean as there are parties, got different ones")
        arrays = codec.read_tensors(replies[0].tensors)
        shape = self.terms.n_classes, self.terms.hasher.hash_dim
        if len(arrays) != 1 or arrays[0].dtype.str != "<f8" or arrays[0].shape != shape:
            raise PayloadError(f"expected one array of floats of shape {shape}, got others")
        exact = arrays[0] * len(replies)
        total = np.rint(exact)
        assert self.terms.bound is not None
        if not (np.abs(total) <= len(replies) * self.terms.bound).all() or not np.allclose(exact, total, 0, 1e-3):
            raise PayloadError(f"expected whole numbers of at most {len(replies)} x {self.terms.bound}, got others")
        array, hasher, mechanism = total.astype(np.int64), self.terms.hasher, self.terms.mechanism
        if mechanism is not None:
            return mechanism.received(array, hasher.fingerprint, len(replies))
        return ClassCounts(array, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint)
