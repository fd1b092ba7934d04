"""The server's side of the counting without any transport in it: the sum of the counts, and who is in it.

An `Aggregator` is handed replies as they came and keeps the sum of those that pass every check. Checking
(`check`, `check_evaluation`) changes nothing; `commit` takes over what passed. Flower's strategies wire it to
messages.

>>> from flwr.common import ndarrays_to_parameters
>>> from flwr_flynn import ClassCounts, HashSpec
>>> terms = Terms(HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7), (0, 1))
>>> party = ClassCounts.from_data(terms.hasher, [[0.0, 1.0], [1.0, 0.0]], [0, 1], n_classes=2)
>>> reply = Reply("17", ndarrays_to_parameters(codec.encode(party)).tensors, 2, {"flynn-party": "Basel"})
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

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import Terms
from flwr_flynn.federated.roster import Ledger, Reply, Sizes, announced_examples, first_of_each
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.metrics import Confusion, confusion_from_bytes
from flwr_flynn.model.noise_record import Release, add_noise

Totals = tuple[ClassCounts, ...]

NOISY_EXAMPLES = 1
"""The number of examples that goes with noisy counts: the same for every party, so that it tells nothing."""

_Sums = list[tuple[npt.NDArray[np.int64], dict[str, Release]]]


class Aggregator(Ledger[Totals]):
    """The sums of the parties' counts, one for every spec: a party is in all of them or in none.

    Parameters
    ----------
    terms : Terms
        What the parties were asked for.
    min_parties : int
        How many must be counted before there is a model.
    max_examples_per_party : int, optional
        Refuse counts of more points; of more than a 1024th of `codec.capacity` by default.

    Attributes
    ----------
    total : tuple of ClassCounts
        The sum over the counted parties for each of the terms' specs.
    """

    def __init__(self, terms: Terms, min_parties: int, max_examples_per_party: int | None = None) -> None:
        nothing = tuple(ClassCounts.zeros(hasher, terms.n_classes) for hasher in terms.hashers)
        capacity = min(codec.capacity(hasher) for hasher in terms.hashers)
        if terms.mechanism is not None:
            capacity = codec.noisy_capacity(terms.hasher)
        super().__init__(nothing, min_parties, capacity, max_examples_per_party)
        self.terms = terms

    @property
    def counts(self) -> ClassCounts:
        """The sum for the first spec."""
        return self.total[0]

    @property
    def n_releases(self) -> int:
        """How many parties' noise is in the sum; 0 without any."""
        return sum(release.times for release in self.total[0].noise)

    @property
    def block_bytes(self) -> list[int]:
        """Bytes that the counted parties sent for each spec, all together."""
        sent = [batch[2 * i] + batch[2 * i + 1] for batch in self.tensor_bytes.values() for i in range(len(batch) // 2)]
        return [sum(sent[i :: len(self.total)]) for i in range(len(self.total))]

    def config(self) -> dict[str, Any]:
        """The terms."""
        return {**self.terms.to_config()}

    def check_evaluation(self, replies: Iterable[Reply]) -> tuple[dict[str, Confusion], dict[str, str]]:
        """Read the confusion matrices in replies to an evaluation.

        Returns
        -------
        matrices : dict of cid to int64 array of shape (L, L)
            Of every party that has points to test on; the first reply of each.
        refused : dict of cid to reason
        """
        return first_of_each(replies, self._read_confusion)

    def _read(self, reply: Reply, max_examples: int) -> tuple[Totals, Sizes]:
        n_examples = announced_examples(reply)
        if self.terms.mechanism is not None:
            # It tells nothing of a party's points, so that any other number is a fault.
            if n_examples != NOISY_EXAMPLES:
                raise PayloadError(f"num_examples: expected {NOISY_EXAMPLES} beside noisy counts, got another")
            tensors = codec.read_tensors(reply.tensors)
            release = codec.decode_release(tensors, self.terms.hasher, self.terms.mechanism, max_examples)
            return (release,), np.zeros(self.terms.n_classes, np.int64)
        counts = codec.decode_all(
            codec.read_tensors(reply.tensors),
            self.terms.hashers,
            self.terms.n_classes,
            n_examples=n_examples,
            max_examples=max_examples,
        )
        return counts, counts[0].n_per_class

    def _load(self, part: Totals, sizes: Sizes) -> int:
        if self.terms.mechanism is None:
            return super()._load(part, sizes)
        return int(np.abs(part[0].array).max())  # what a party adds to any entry of the sum, at most

    def _examples(self, sizes: Sizes) -> int | None:
        return super()._examples(sizes) if self.terms.mechanism is None else None

    def _digests(self, part: Totals) -> tuple[str, ...]:
        return tuple(counts.sha256() for counts in part)

    def _begin(self) -> _Sums:
        return [(counts.array.copy(), {release.name: release for release in counts.noise}) for counts in self.total]

    def _add(self, total: _Sums, part: Totals) -> _Sums:
        for (array, noise), counts in zip(total, part, strict=True):
            add_noise(noise, counts.noise, 1)
            array += counts.array
        return total

    def _finish(self, total: _Sums) -> Totals:
        return tuple(
            ClassCounts(
                array, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint, noise=tuple(noise.values())
            )
            for (array, noise), hasher in zip(total, self.terms.hashers, strict=True)
        )

    def _read_confusion(self, reply: Reply) -> Confusion | None:
        if announced_examples(reply) == 0:
            return None
        return confusion_from_bytes(reply.metrics.get("flynn-confusion"), self.terms.n_classes, reply.n_examples)
