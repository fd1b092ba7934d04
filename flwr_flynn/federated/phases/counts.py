"""Phase "counts": the class counts of every party, by each of the run's specs, and their sum.

A new federation starts from zeros. Parties join a saved run by adding to its sum, and leave it by sending once more the
counts they were counted by: their SHA-256 must be the same, so that the rest is the sum of the others, bit for bit.
A party whose samples have changed, some taken out, corrected or new, sends both, the counts of then and of now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.layout import Field, Sizes
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.permissions import NOISY_EXAMPLES, SampleAccess
from flwr_flynn.federated.phase import ALL, NEW, Context, Phase, RunState
from flwr_flynn.federated.protocol import NOISY, TRAIN, Answer, Config, Reply
from flwr_flynn.federated.request import RunRequest, register
from flwr_flynn.federated.roster import Member, Roster, Sender
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.counts import ClassCounts, CountsOfSpecs


def no_counts(run: RunSpec) -> CountsOfSpecs:
    """The sum of no parties."""
    return CountsOfSpecs(tuple(ClassCounts.zeros(hasher, run.n_classes) for hasher in run.hashers))


@register
@dataclass(frozen=True)
class CountsRequest(RunRequest[CountsOfSpecs]):
    """Ask for class counts by each of a run's specs, with noise in a run that has a mechanism."""

    max_examples: int | None = None  # of a party; a 1024th of the capacity by default
    totals: CountsOfSpecs | None = None  # of the saved run; the server's alone

    phase = "counts"
    sentence = "Sums by class: who is alone in a class is singled out, and a known row found, unless epsilon or secure."
    proves = True

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[codec.Array], party: SampleAccess) -> Self:
        return cls(cls.admitted(config, party))

    @property
    def start(self) -> CountsOfSpecs:
        return no_counts(self.run) if self.totals is None else self.totals

    @classmethod
    def disclosure(cls, run: RunSpec) -> str:
        return super().disclosure(run) if run.mechanism is None or run.is_secure else NOISY

    @property
    def most_examples(self) -> int:
        """Samples of a party, at most."""
        return self.max_examples or self.capacity // 1024

    def fields(self, sizes: Sizes) -> list[Field]:
        run = self.run
        if run.mechanism is None:
            return codec.counts_fields(run.hashers, run.n_classes, sizes.total)
        field = codec.release_field(run.hasher, run.mechanism, sizes.total)
        # Beyond the bound SecAgg+ would clip noisy counts as well; clipping depends on the release alone.
        return [field if run.bound is None else replace(field, most=sizes.total)]

    def compute(self, party: SampleAccess) -> Answer:
        if self.run.mechanism is None:
            return super().compute(party)
        return self.answer(CountsOfSpecs((party.release(self.run, self.is_withdrawal),)), NOISY_EXAMPLES)

    def parts(self, statistic: CountsOfSpecs) -> list[codec.Array]:
        parts = [counts.array for counts in statistic.parts]
        if self.run.mechanism is None or self.bound is None:
            return parts
        return [np.clip(part, -self.bound, self.bound) for part in parts]

    def of_parts(self, parts: list[codec.Array], n_parties: int) -> CountsOfSpecs:
        if self.run.mechanism is None:
            return CountsOfSpecs(codec.counts_of(parts, self.run.hashers))
        return CountsOfSpecs((codec.released(parts[0], self.run.hasher, self.run.mechanism, n_parties),))

    def measured(self, party: SampleAccess, before: bool = False) -> tuple[CountsOfSpecs, int]:
        """Counts of the party's samples, or of those `before` their change, and the number of samples."""
        X, codes = party.inputs(self.run, before)
        progress = party.progress(len(codes) * len(self.run.specs))
        counts = tuple(
            ClassCounts.from_data(hasher, X, codes, self.run.n_classes, n_jobs=party.options.n_jobs, progress=progress)
            for hasher in self.run.hashers
        )
        return CountsOfSpecs(counts), counts[0].n_examples

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        announced, most = reply.announced, self.most_examples
        if self.run.mechanism is not None:
            if announced != NOISY_EXAMPLES:
                raise PayloadError("num_examples", f"{NOISY_EXAMPLES} beside noisy counts", announced)
            return Sizes(most, most)
        if announced > most:
            raise PayloadError("counts", f"at most {most} examples", announced)
        return Sizes(announced, announced)

    def check(self, statistic: CountsOfSpecs, sizes: Sizes) -> None:
        if self.run.mechanism is None and (n_examples := statistic.parts[0].n_examples) != sizes.total:
            raise PayloadError("counts", f"{sizes.total} examples as announced", n_examples)

    def sizes(self, statistic: CountsOfSpecs) -> npt.NDArray[np.int64] | None:
        return statistic.parts[0].n_per_class if self.run.is_plain else None

    def load(self, statistic: CountsOfSpecs) -> int:
        counts = statistic.parts[0]
        return counts.n_examples if self.run.is_plain else int(np.abs(counts.array).max())

    @property
    def capacity(self) -> int:
        if self.run.is_plain:
            return min(codec.capacity(hasher) for hasher in self.run.hashers)
        return codec.noisy_capacity(self.run.hasher)

    @property
    def largest(self) -> int:
        return self.capacity

    def digests(self, statistic: CountsOfSpecs) -> tuple[str, ...]:
        return statistic.sha256


@dataclass(frozen=True)
class JoinRequest(CountsRequest):
    """Ask parties that are not in a saved run for their counts; a party is asked as in a new federation."""

    roster: Roster = field(default_factory=Roster)

    def match(self, statistic: CountsOfSpecs, sender: Sender, taken: set[int]) -> int | None:
        if found := self.roster.find(*sender):
            member = self.roster.before[found[0]]
            raise PayloadError("member", "a new one", member, text=f"in the federation already, as {member}")
        return None


@register
@dataclass(frozen=True)
class WithdrawRequest(JoinRequest):
    """Ask parties that leave for the counts they were counted by; the server takes them out of the sum."""

    phase = "withdraw"
    is_withdrawal = True

    def match(self, statistic: CountsOfSpecs, sender: Sender, taken: set[int]) -> int | None:
        before = self.roster.before
        there = self.roster.staying - taken
        found = [index for index in self.roster.proven(sender.cid, sender.proof) if index in there]
        if not found and any(index in there for index in self.roster.find(*sender)):  # anybody can give its name
            expected = "the node that was counted, or the secret of its node setting member-path"
            raise PayloadError("member", expected, "its name alone")
        if not found:
            raise PayloadError("member", "one of the federation", "none", text="not in the federation")
        if all(not before[index].sha256 for index in found):
            text = "added by a secure sum, in which nobody's counts are known: it cannot be taken out"
            raise PayloadError("member", "one whose counts are known", "added by a secure sum", text=text)
        for index in found:
            if before[index].sha256 == statistic.sha256:
                return index
        got = "counts of another SHA-256; have its data or settings changed?"
        raise PayloadError("counts", f"those that {before[found[0]]} was counted by", got)

    def change(self, statistic: CountsOfSpecs) -> dict[str, Any] | None:
        return None if self.bound is not None else {"before": _in_short(statistic), "now": None}

    def load(self, statistic: CountsOfSpecs) -> int:
        return 0

    def add(self, total: CountsOfSpecs, statistic: CountsOfSpecs) -> CountsOfSpecs:
        return total - statistic


def _in_short(counts: CountsOfSpecs) -> dict[str, Any]:
    """Samples, None with noise, and SHA-256 of counts."""
    first = counts.parts[0]
    return {"examples": None if first.noise else first.n_examples, "sha256": list(counts.sha256)}


@dataclass(frozen=True, eq=False)
class UpdatedCounts(CountsOfSpecs):
    """Counts of a party, and those that they replace."""

    before: CountsOfSpecs

    def _each(self, other: CountsOfSpecs, combine: Callable[[ClassCounts, ClassCounts], ClassCounts]) -> CountsOfSpecs:
        after = super()._each(other, combine)
        if not isinstance(other, UpdatedCounts):
            return after
        return UpdatedCounts(after.parts, self.before._each(other.before, combine))


@register
@dataclass(frozen=True)
class UpdateRequest(WithdrawRequest):
    """Ask parties whose samples have changed for the counts they were counted by, and for the new ones.

    The server replaces the former by the latter, if they are those of the saved run by their SHA-256: then the sum is
    that of parties which never had other samples, bit for bit.
    """

    phase = "update"
    is_withdrawal = False
    is_update = True

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[codec.Array], party: SampleAccess) -> Self:
        found = super().from_config(config, arrays, party)
        if not found.run.is_plain:
            raise PayloadError("mode", "exact counts in clear, which alone can be updated", found.run.mode)
        return found

    def fields(self, sizes: Sizes) -> list[Field]:
        before = [replace(field, name="counts before") for field in super().fields(Sizes(0, self.most_examples))]
        return before + super().fields(sizes)

    def measured(self, party: SampleAccess, before: bool = False) -> tuple[CountsOfSpecs, int]:
        then, _ = super().measured(party, before=True)
        after, n_examples = super().measured(party)
        first = after.parts[0]
        changed = -(-np.abs(first.array - then.parts[0].array).sum(axis=1) // first.hash_nnz)
        party.warn_of_few(changed.tolist())
        return UpdatedCounts(after.parts, then), n_examples

    def parts(self, statistic: CountsOfSpecs) -> list[codec.Array]:
        assert isinstance(statistic, UpdatedCounts)  # of this request
        return super().parts(statistic.before) + super().parts(statistic)

    def of_parts(self, parts: list[codec.Array], n_parties: int) -> CountsOfSpecs:
        n = len(self.run.specs)
        before, after = (super(UpdateRequest, self).of_parts(each, n_parties) for each in (parts[:n], parts[n:]))
        return UpdatedCounts(after.parts, before)

    @property
    def zero(self) -> CountsOfSpecs:
        return UpdatedCounts(no_counts(self.run).parts, no_counts(self.run))

    def match(self, statistic: CountsOfSpecs, sender: Sender, taken: set[int]) -> int | None:
        assert isinstance(statistic, UpdatedCounts)  # of this request
        return super().match(statistic.before, sender, taken)

    def change(self, statistic: CountsOfSpecs) -> dict[str, Any] | None:
        assert isinstance(statistic, UpdatedCounts)  # of this request
        return {"before": _in_short(statistic.before), "now": _in_short(statistic)}

    def load(self, statistic: CountsOfSpecs) -> int:
        return statistic.parts[0].n_examples

    def add(self, total: CountsOfSpecs, statistic: CountsOfSpecs) -> CountsOfSpecs:
        assert isinstance(statistic, UpdatedCounts)  # of this request
        return total - statistic.before + CountsOfSpecs(statistic.parts)


_KINDS = {"withdraw": WithdrawRequest, "update": UpdateRequest}


def _request(state: RunState, context: Context) -> CountsRequest:
    options = context.options
    announced = state.run_spec, options.max_examples_per_party
    if options.federation is None:
        return CountsRequest(*announced)
    return _KINDS.get(options.purpose, JoinRequest)(*announced, options.federation.totals, context.counted)


def _fold(state: RunState, batch: Batch[CountsOfSpecs], context: Context) -> RunState:
    return state.with_result("counts", batch.total)


def phase_for(options: RunOptions) -> Phase:
    """The counting of a run: added to nothing or to a saved sum, or taken out of one, or replaced in it."""
    audience = ALL if options.purpose in _KINDS else NEW
    content = "class counts of the active bits of each hash"
    return Phase("counts", TRAIN, _request, _fold, is_counting=True, audience=audience, content=content)
