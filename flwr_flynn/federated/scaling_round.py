"""What stands around the counting of a run: the sums of the columns before it, and what all of it costs in bytes.

A run has up to four steps, of which the second is always there:

1. The parties send the sums of their columns (`SumsRound`), and the server derives the specs from them (`specs_from`).
2. They send their counts for every spec (`aggregation.Aggregator`).
3. They get all sums of counts, and answer how many of their training points each candidate gets right, see `choosing`.
4. They get the chosen counts, and try them on the points they held out.

>>> plan = HashPlan(n_features=2, n_classes=2, scaling="standard", hash_dim=64)
>>> server = SumsRound(SumsTerms(2, ("a", "b"), plan.needs_classes, min_examples=5))
>>> specs_from(plan, server.total)[1]
'no party sent the sums of any point'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flwr_flynn.errors import DataError, PayloadError, SpecError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import SumsTerms
from flwr_flynn.federated.roster import Ledger, Reply, Sizes, announced_examples
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_moments import ColumnMoments


class SumsRound(Ledger[ColumnMoments]):
    """The sums of the parties' columns, and who is in them.

    Parameters
    ----------
    terms : SumsTerms
        What the parties were asked for.
    max_examples_per_party : int, optional
        Refuse sums of more points.

    Attributes
    ----------
    total : ColumnMoments
    """

    def __init__(self, terms: SumsTerms, max_examples_per_party: int | None = None) -> None:
        nothing = ColumnMoments.zeros(terms.n_features, terms.n_rows)
        super().__init__(nothing, 1, 2**63 - 1, max_examples_per_party)
        self.terms = terms

    def config(self) -> dict[str, Any]:
        """The terms."""
        return {**self.terms.to_config()}

    def _read(self, reply: Reply, max_examples: int) -> tuple[ColumnMoments, Sizes]:
        n_examples = announced_examples(reply)
        try:
            arrays = codec.read_tensors(reply.tensors)
            sums = ColumnMoments.from_limbs(arrays, self.terms.n_features, self.terms.n_rows)
        except DataError as error:
            raise PayloadError(str(error)) from None
        if sums.n_examples != n_examples:
            raise PayloadError(f"column sums: expected {n_examples} examples as announced, got {sums.n_examples}")
        if n_examples > max_examples:
            raise PayloadError(f"column sums: expected at most {max_examples} examples, got {n_examples}")
        few = int(((sums.n_per_class > 0) & (sums.n_per_class < self.terms.min_examples)).sum())
        if few:
            raise PayloadError(
                f"column sums: expected classes of less than {self.terms.min_examples} examples to be left out, "
                f"got {few} of them"
            )
        return sums, sums.n_per_class

    def _begin(self) -> ColumnMoments:
        return self.total

    def _add(self, total: ColumnMoments, part: ColumnMoments) -> ColumnMoments:
        return total + part

    def _finish(self, total: ColumnMoments) -> ColumnMoments:
        return total


def specs_from(plan: HashPlan, sums: ColumnMoments) -> tuple[tuple[HashSpec, ...], str]:
    """The specs of a plan that `needs_sums`, and "" or why they are those of the same plan without scaling."""
    reason = "no party sent the sums of any point"
    if sums.n_examples:
        try:
            # Columns that do not vary make some candidates the same.
            return tuple(dict.fromkeys(plan.specs(sums))), ""
        except (SpecError, DataError) as error:
            reason = str(error)
    return _unscaled(plan).specs(), reason


def foreseen(plan: HashPlan) -> tuple[HashSpec, ...]:
    """Specs of the number and the sizes that the plan will have; other scaling apart they are what it leads to.

    Raises
    ------
    SpecError
        A size does not fit.
    """
    _unscaled(plan).specs()
    if not plan.needs_sums:
        return plan.specs()
    points = np.repeat(np.arange(3.0)[:, None], plan.n_features, axis=1)
    return plan.specs(
        ColumnMoments.from_data(points, np.zeros(3, np.int64), 1)
    )  # of one class: no need of room for all


def _unscaled(plan: HashPlan) -> HashPlan:
    # The width of the lifting matrix may be meant for waves, of which there can be more than columns.
    row_nnz = None if plan.row_nnz is None or not plan.needs_sums else min(plan.row_nnz, plan.n_features)
    return replace(plan, scaling=None, row_nnz=row_nnz) if plan.needs_sums else plan


@dataclass
class Traffic:
    """Bytes of one kind of request and of the replies to it, over all parties and rounds of a run.

    Texts and numbers that go with a message are in it, what Flower and the network put around it is not.
    """

    asked: int = 0
    replied: int = 0
    down: int = 0
    up: int = 0

    def ask(self, n_parties: int, tensors: Iterable[bytes], config: Mapping[str, Any]) -> None:
        """Note that so many parties get this."""
        self.asked += n_parties
        self.down += n_parties * (sum(map(len, tensors)) + _entries(config))

    def reply(self, tensors: Iterable[bytes], metrics: Mapping[str, Any]) -> None:
        """Note what came from one party."""
        self.replied += 1
        self.up += sum(map(len, tensors)) + _entries(metrics)

    @property
    def per_party(self) -> dict[str, int]:
        """Bytes up (from a party) and down (to it), on average."""
        return {"up": round(self.up / max(self.replied, 1)), "down": round(self.down / max(self.asked, 1))}


def _entries(config: Mapping[str, Any]) -> int:
    return sum(
        len(str(key)) + (len(value.encode(errors="replace")) if isinstance(value, str) else _size(value))
        for key, value in config.items()
    )


def _size(value: Any) -> int:
    return len(value) if isinstance(value, bytes) else 8
