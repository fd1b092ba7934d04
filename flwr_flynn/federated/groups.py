"""Random groups of parties, and the server's own samples that decide which groups stay in the sum.

Anybody can claim anything in a sum. So the counts of some parties together are summed first, group by group, and groups
that make the model worse on labelled samples of the server's own are left out. What stays is a sum like any other.

The groups are drawn by a keyed hash of the node id, whose key no party knows. A party spoils its own group at most, and
its group is left out as a whole. docs/how_to/liars.md says what this stops, and docs/results/liars.md has the figures.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.counts import CountsOfSpecs
from flwr_flynn.model.scoring import ScoreTable, ScoringRule, add_log_probabilities

MOST_GROUPS = 256
"""Groups at most: the search tries all of them for each group that it leaves out."""

Table = npt.NDArray[np.int64]

NO_GRAM = "the Gram matrix is a sum over all parties, out of which no group can be taken"
"""Reason why a run with groups has no Gram matrix, see docs/how_to/liars.md."""


@dataclass(frozen=True)
class Grouping:
    """Groups by a keyed hash of the node id; `seed` is the key, 32 to 128 hexadecimal digits."""

    n_groups: int
    seed: str

    def __post_init__(self) -> None:
        text = self.seed if isinstance(self.seed, str) else ""
        if not 32 <= len(text) <= 128 or len(text) % 2 or set(text) - set("0123456789abcdef"):
            raise ConfigError("group_seed", "32 to 128 hexadecimal digits, an even number", f"{len(text)} characters")

    def of(self, cid: str) -> int:
        """Index of a party's group."""
        digest = hashlib.blake2b(cid.encode(), digest_size=8, key=bytes.fromhex(self.seed)).digest()
        return int.from_bytes(digest, "big") % self.n_groups


@dataclass(frozen=True, eq=False)
class GroupedCounts(CountsOfSpecs):
    """Sums of groups, by their indices; `parts` is the sum of all but those left out, and of a saved run."""

    groups: Mapping[int, CountsOfSpecs] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()

    def __add__(self, other: CountsOfSpecs) -> GroupedCounts:
        """The sum with the groups of both, none left out."""
        groups = dict(self.groups)
        if isinstance(other, GroupedCounts):
            other = other.leaving_out(())
            for index, counts in other.groups.items():
                groups[index] = groups[index] + counts if index in groups else counts
        return GroupedCounts(self.leaving_out(())._each(other, operator.add).parts, groups)

    def leaving_out(self, indices: Collection[int]) -> GroupedCounts:
        """The same groups with these left out."""
        total = CountsOfSpecs(self.parts)
        for index in self.left_out - set(indices):
            total += self.groups[index]
        for index in set(indices) - self.left_out:
            total -= self.groups[index]
        return GroupedCounts(total.parts, self.groups, frozenset(indices))


class Judge:
    """Labelled samples of the server's own, by which groups are left out.

    A sum is judged by the mean log-loss of naive Bayes (rule "bayes") on the samples, which has nothing to choose.
    Two searches start from all groups and from none, and leave out or add one group at a time, the best first. The
    first leaves a group out if the loss falls by more than the standard error of the difference; the second adds one
    unless the loss rises by more than that. Of the two results that of the lower loss is taken. Groups without samples
    stay.

    `run` has one spec. `trusted` are samples of every class, at least two, and their labels; a `DataError` refuses
    what does not fit the run.
    """

    def __init__(self, run: RunSpec, trusted: tuple[Any, Any] | None) -> None:
        if not isinstance(trusted, tuple | list) or len(trusted) != 2:
            raise ConfigError("trusted", "a pair (X, y) of samples that the server owns", type(trusted).__name__)
        try:
            active, self._codes = run.hasher.active(trusted[0]), run.codes(trusted[1])
        except DataError as error:
            raise DataError("trusted", text=f"trusted: {error}") from None
        if len(active) != len(self._codes) or len(active) < 2:
            got = f"{len(active)} samples and {len(self._codes)} labels"
            raise DataError("trusted", "at least two samples, each with a label", got)
        missing = np.flatnonzero(np.bincount(self._codes, minlength=run.n_classes) == 0)
        if len(missing):  # groups that alone have such a class would seem to spoil the model
            raise DataError("trusted", "samples of every class", f"none of {run.classes[missing[0]]!r}")
        self._bits, places = np.unique(active, return_inverse=True)
        self._active = places.reshape(active.shape).astype(np.int32)
        self._spread, self._temperature = run.spec.hash_dim / run.spec.hash_nnz, run.spec.hash_nnz / 2

    def harmful_groups(self, total: GroupedCounts) -> frozenset[int]:
        """Indices of the groups to leave out."""
        base = self._table(total.leaving_out(total.groups))
        sums = {i: self._table(counts) for i, counts in total.groups.items() if counts.parts[0].n_examples}
        return min((self._search(base, sums, start) for start in (sums.keys(), ())), key=operator.itemgetter(0))[1]

    def _table(self, counts: CountsOfSpecs) -> tuple[Table, Table]:
        """Counts at the bits that the samples have, (L, b), and samples of each class, (L,)."""
        (part,) = counts.parts
        return np.ascontiguousarray(part.array[:, self._bits]), part.n_per_class

    def _search(
        self, base: tuple[Table, Table], sums: Mapping[int, tuple[Table, Table]], start: Collection[int]
    ) -> tuple[float, frozenset[int]]:
        """Mean loss at the end, and the groups left out there; from `start`, all groups or none, in the sum."""
        array, sizes = base[0].copy(), base[1].copy()
        for index in start:
            array += sums[index][0]
            sizes += sums[index][1]
        sign = -1 if start else 1
        now, open_groups = self._losses(array, sizes), sorted(sums)
        while open_groups:
            tried = {i: self._losses(array + sign * sums[i][0], sizes + sign * sums[i][1]) for i in open_groups}
            best = min(open_groups, key=lambda i: _mean(tried[i]))
            gain = now - tried[best]
            error = math.sqrt(_mean((gain - _mean(gain)) ** 2) / (len(gain) - 1))
            # In doubt a group stays in: what is left out must be sure, what is added need not be.
            if _mean(gain) <= -sign * error:
                break
            array, sizes, now = array + sign * sums[best][0], sizes + sign * sums[best][1], tried[best]
            open_groups.remove(best)
        return _mean(now), frozenset(sums).difference(open_groups) if start else frozenset(open_groups)

    def _losses(self, array: Table, sizes: Table) -> npt.NDArray[np.float64]:
        """Minus the log probability of each sample's class, at most 20."""
        table = ScoreTable(array, sizes, self._spread, 1.0, ScoringRule("bayes", 0.0))
        scores = table.scores(self._active, np.full(len(self._active), -1, np.int64))
        total = np.zeros_like(scores)
        add_log_probabilities(scores, self._temperature, 1.0, total)
        return -np.maximum(total[np.arange(len(total)), self._codes], -20.0)


def _mean(values: npt.NDArray[np.float64]) -> float:
    """Mean that does not depend on the order in which a machine adds."""
    return math.fsum(values) / len(values)
