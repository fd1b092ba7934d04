"""Phase "counts": class counts of every party by each of the run's specs.

A new federation starts from zeros. Parties join a saved run by adding to its sum, and
leave it by sending once more the counts they were counted by: their SHA-256 must be the
same, so that the rest is the sum of the others, bit for bit. A party whose samples have
changed, some taken out, corrected or new, sends both, the counts of then and of now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import ALL, NEW, Context, Phase, RunState
from flwr_flynn.federated.protocol import (
    NOISY,
    NOISY_EXAMPLES,
    TRAIN,
    Config,
    Entries,
    Reply,
)
from flwr_flynn.federated.reply_fields import Field, Sizes
from flwr_flynn.federated.request import RunRequest, announced_run, register
from flwr_flynn.federated.roster import Member, Roster, Sender
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.sample_access import SampleAccess, progress
from flwr_flynn.model.counts import ClassCounts, CountsOfSpecs


def no_counts(run: RunSpec) -> CountsOfSpecs:
    """The sum of no parties."""
    return CountsOfSpecs(
        tuple(ClassCounts.zeros(hasher, run.n_classes) for hasher in run.hashers)
    )


@register
@dataclass(frozen=True)
class CountsRequest(RunRequest[CountsOfSpecs]):
    """Ask for class counts by each of a run's specs.

    They have noise in a run that has a mechanism.
    """

    max_examples: int | None = None
    """Samples of a party, at most; by default a 1024th of the capacity."""
    totals: CountsOfSpecs | None = None
    """Sum of the saved run; the server's alone."""
    roster: Roster = field(default_factory=Roster)
    """Roster of the counts; the server's alone."""

    phase = "counts"
    sentence = (
        "Sums by class: who is alone in a class is singled out. A known row "
        "shows in the model, unless epsilon."
    )
    proves = True
    removes: ClassVar[bool] = False
    """True if an answer has counts that the server takes out of the sum."""

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], party: SampleAccess
    ) -> Self:
        return cls(announced_run(config, party))

    @property
    def start(self) -> CountsOfSpecs:
        if self.totals is None:
            return no_counts(self.run)
        return self.totals

    @property
    def discloses(self) -> str:
        if self.run.mechanism is None or self.run.is_secure:
            return super().discloses
        return NOISY

    @property
    def most_examples(self) -> int:
        """Samples of a party, at most."""
        return self.max_examples or self.capacity // 1024

    def fields(self, sizes: Sizes) -> list[Field]:
        run = self.run
        if run.mechanism is None:
            return codec.counts_fields(run.hashers, run.n_classes, sizes.total)
        field = codec.release_field(run.hasher, run.mechanism, sizes.total)
        if run.bound is None:
            return [field]
        # Beyond the bound SecAgg+ would clip noisy counts as well; clipping depends on
        # the release alone.
        return [replace(field, most=sizes.total)]

    def parts(self, statistic: CountsOfSpecs) -> list[Array]:
        parts = [counts.array for counts in statistic.parts]
        if self.run.mechanism is None or self.bound is None:
            return parts
        return [np.clip(part, -self.bound, self.bound) for part in parts]

    def of_parts(self, parts: list[Array], n_parties: int) -> CountsOfSpecs:
        if self.run.mechanism is None:
            return CountsOfSpecs(codec.counts_of(parts, self.run.hashers))
        counts = codec.released(
            parts[0], self.run.hasher, self.run.mechanism, n_parties
        )
        return CountsOfSpecs((counts,))

    def measured(self, party: SampleAccess) -> tuple[CountsOfSpecs, int]:
        if self.run.mechanism is not None:
            release = party.release(self.run, self.is_withdrawal)
            return CountsOfSpecs((release,)), NOISY_EXAMPLES
        counts = self.counts_of(party)
        return counts, counts.parts[0].n_examples

    def counts_of(self, party: SampleAccess, before: bool = False) -> CountsOfSpecs:
        """Counts of the party's samples, or of those `before` their change."""
        X, codes = party.samples_of(self.run, before)
        hashed = progress(len(codes) * len(self.run.specs))
        count = partial(
            ClassCounts.from_data, n_jobs=party.options.n_jobs, progress=hashed
        )
        return CountsOfSpecs(
            tuple(
                count(hasher, X, codes, self.run.n_classes)
                for hasher in self.run.hashers
            )
        )

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        announced = reply.announced
        most = self.most_examples
        if self.run.mechanism is not None:
            if announced != NOISY_EXAMPLES:
                raise PayloadError(
                    "num_examples", f"{NOISY_EXAMPLES} beside noisy counts", announced
                )
            return Sizes(most, most)
        if announced > most:
            raise PayloadError("counts", f"at most {most} examples", announced)
        return Sizes(announced, announced)

    def check(self, statistic: CountsOfSpecs, sizes: Sizes) -> None:
        if self.run.mechanism is not None:
            return
        n_examples = self.now(statistic).parts[0].n_examples
        if n_examples != sizes.total:
            raise PayloadError(
                "counts", f"{sizes.total} examples as announced", n_examples
            )

    def sizes(self, statistic: CountsOfSpecs) -> Integers | None:
        if not self.run.is_plain:
            return None
        n_per_class: Integers = self.now(statistic).parts[0].n_per_class
        return n_per_class

    def load(self, statistic: CountsOfSpecs) -> int:
        counts = self.now(statistic).parts[0]
        if self.is_withdrawal:
            return 0
        if self.run.is_plain:
            return counts.n_examples
        return int(np.abs(counts.array).max())

    @property
    def capacity(self) -> int:
        if self.run.is_plain:
            return min(codec.capacity(hasher) for hasher in self.run.hashers)
        return codec.noisy_capacity(self.run.hasher)

    @property
    def largest(self) -> int:
        return self.capacity

    def digests(self, statistic: CountsOfSpecs) -> tuple[str, ...]:
        return self.now(statistic).sha256

    def before(self, statistic: CountsOfSpecs) -> CountsOfSpecs | None:
        """Counts that the party was counted by, if the server takes them out."""
        if self.removes:
            return CountsOfSpecs(statistic.parts[: len(self.run.specs)])
        return None

    def now(self, statistic: CountsOfSpecs) -> CountsOfSpecs:
        """Counts of the party's samples as they are."""
        return CountsOfSpecs(statistic.parts[-len(self.run.specs) :])

    def match(
        self, statistic: CountsOfSpecs, sender: Sender, gone: set[int]
    ) -> int | None:
        then = self.before(statistic)
        if then is not None:
            return self._counted_by(then, sender, gone)
        indices = self.roster.find(*sender)
        if indices:
            member = self.roster.before[indices[0]]
            raise PayloadError(
                "member",
                "a new one",
                member,
                text=f"in the federation already, as {member}",
            )
        return None

    def _counted_by(self, then: CountsOfSpecs, sender: Sender, gone: set[int]) -> int:
        """Index of the member of the saved run that was counted by these very counts."""
        members = self.roster.before
        staying = self.roster.staying - gone
        proven = self.roster.proven(sender.cid, sender.proof)
        indices = [index for index in proven if index in staying]
        # Anybody can give the name of a member.
        if not indices and not staying.isdisjoint(self.roster.find(*sender)):
            expected = (
                "the node that was counted, or the secret of its node setting "
                "member-path"
            )
            raise PayloadError("member", expected, "its name alone")
        if not indices:
            raise PayloadError(
                "member", "one of the federation", "none", text="not in the federation"
            )
        if all(not members[index].sha256 for index in indices):
            text = (
                "added by a secure sum, in which nobody's counts are known: it "
                "cannot be taken out"
            )
            raise PayloadError(
                "member",
                "one whose counts are known",
                "added by a secure sum",
                text=text,
            )
        for index in indices:
            if members[index].sha256 == then.sha256:
                return index
        got = "counts of another SHA-256; have its data or settings changed?"
        raise PayloadError(
            "counts", f"those that {members[indices[0]]} was counted by", got
        )

    def change(self, statistic: CountsOfSpecs) -> Entries | None:
        then = self.before(statistic)
        if then is None or self.bound is not None:
            return None
        now = None
        if not self.is_withdrawal:
            now = _in_short(self.now(statistic))
        return {"before": _in_short(then), "now": now}

    def add(self, total: CountsOfSpecs, statistic: CountsOfSpecs) -> CountsOfSpecs:
        then = self.before(statistic)
        if then is not None:
            total = total - then
        if self.is_withdrawal:
            return total
        return total + self.now(statistic)


def _in_short(counts: CountsOfSpecs) -> dict[str, object]:
    """Samples, None with noise, and SHA-256 of counts."""
    first = counts.parts[0]
    n_examples = None
    if not first.noise:
        n_examples = first.n_examples
    return {"examples": n_examples, "sha256": list(counts.sha256)}


@register
@dataclass(frozen=True)
class WithdrawRequest(CountsRequest):
    """Ask parties that leave for the counts they were counted by.

    The server takes these out of the sum.
    """

    phase = "withdraw"
    removes = True
    is_withdrawal = True


@register
@dataclass(frozen=True)
class UpdateRequest(CountsRequest):
    """Ask parties whose samples have changed for their counts of before and of now.

    The server replaces the former by the latter, if they are those of the saved run by
    their SHA-256: then the sum is that of parties which never had other samples, bit
    for bit. A statistic has the counts of then and those of now.
    """

    phase = "update"
    removes = True
    is_update = True

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], party: SampleAccess
    ) -> Self:
        request = super().from_config(config, arrays, party)
        run = request.run
        if not run.is_plain:
            expected = "exact counts in clear, which alone can be updated"
            raise PayloadError("mode", expected, run.mode)
        return request

    def fields(self, sizes: Sizes) -> list[Field]:
        before = [
            replace(field, name="counts before")
            for field in super().fields(Sizes(0, self.most_examples))
        ]
        return before + super().fields(sizes)

    def measured(self, party: SampleAccess) -> tuple[CountsOfSpecs, int]:
        then = self.counts_of(party, before=True)
        now = self.counts_of(party)
        first = now.parts[0]
        n_bits = np.abs(first.array - then.parts[0].array).sum(axis=1)
        n_changed = -(-n_bits // first.hash_nnz)  # samples of each class, at least
        party.warn_of_few(n_changed.tolist())
        return CountsOfSpecs(then.parts + now.parts), first.n_examples

    def of_parts(self, parts: list[Array], n_parties: int) -> CountsOfSpecs:
        n = len(self.run.specs)
        then = super().of_parts(parts[:n], n_parties)
        now = super().of_parts(parts[n:], n_parties)
        return CountsOfSpecs(then.parts + now.parts)


_KINDS = {"withdraw": WithdrawRequest, "update": UpdateRequest}


def _request(state: RunState, context: Context) -> CountsRequest:
    options = context.options
    totals = None
    if options.federation is not None:
        totals = options.federation.totals
    kind = _KINDS.get(options.purpose, CountsRequest)
    return kind(state.run_spec, options.max_examples_per_party, totals, context.counted)


def _fold(state: RunState, batch: Batch[CountsOfSpecs], context: Context) -> RunState:
    return state.with_result("counts", batch.total)


def phase_for(options: RunOptions) -> Phase:
    """The counting of a run.

    Counts are added to nothing or to a saved sum, taken out of one, or replaced in it.
    """
    audience = NEW
    if options.purpose in _KINDS:
        audience = ALL
    content = "class counts of the active bits of each hash"
    return Phase(
        "counts",
        TRAIN,
        _request,
        _fold,
        is_counting=True,
        audience=audience,
        content=content,
    )
