"""Phase "counts": class counts of every party by each of the run's specs.

A new federation starts from zeros. Parties join a saved run by adding to its sum, and
leave it by sending once more the counts they were counted by: their SHA-256 must be the
same, so that the rest is the sum of the others, bit for bit. A party whose samples have
changed, some taken out, corrected or new, sends both, the counts of then and of now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn._validation import listed
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.announced_specs import (
    MAX_CHARS,
    announced_basis,
    deflated_basis,
)
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.gram_fields import (
    CAPACITY,
    check_sizes,
    gram_fields,
    gram_parts,
    linear_of_parts,
    without_few,
)
from flwr_flynn.federated.layout import ENTRY_BYTES
from flwr_flynn.federated.loader import Loader
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import PartyOptions, SiteSetting
from flwr_flynn.federated.phase import (
    ALL,
    NEW,
    Context,
    Needs,
    Phase,
    RunState,
    Scale,
    Section,
    basis_of,
    counted_members,
    members_of,
    model_of,
    senders_of_linear,
    why_no_linear,
)
from flwr_flynn.federated.protocol import (
    NOISY,
    NOISY_EXAMPLES,
    TRAIN,
    Config,
    Entries,
    Entry,
    Reply,
    Scalars,
    key,
    sent,
)
from flwr_flynn.federated.reply_fields import Field, Sizes
from flwr_flynn.federated.request import Measured, RunRequest, announced_run, register
from flwr_flynn.federated.roster import Member, Roster, Sender
from flwr_flynn.federated.run_spec import RUN_ENTRIES, RunSpec
from flwr_flynn.federated.tally import (
    AnnouncedTally,
    Facts,
    check_announced,
    check_hidden,
)
from flwr_flynn.federated.unit_warnings import elsewhere
from flwr_flynn.federated.views import View, progress
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.class_means import meaning_of
from flwr_flynn.model.counts import Additive, ClassCounts, memory_needed
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.gram import BATCH, GramMatrix, memory_of_gram
from flwr_flynn.tables.schema import Schema

_TERM_BYTES = 24  # memory of a term of a sample while products are summed, roughly


def no_counts(run: RunSpec, basis: Basis | None = None) -> CountsOfSpecs:
    """The sum of no parties."""
    linear = None
    if basis is not None:
        linear = GramMatrix.zeros(basis, run.n_classes)
    return CountsOfSpecs(
        tuple(ClassCounts.zeros(hasher, run.n_classes) for hasher in run.hashers),
        linear,
    )


@dataclass(frozen=True)
class CountsChange(Additive):
    """Counts that a party was counted by, which the server takes out of the sum.

    Added to a sum of counts, it makes the sum without them, and with those of now.
    """

    before: CountsOfSpecs
    now: CountsOfSpecs | None = None
    """None for a party that leaves."""

    @property
    def every(self) -> tuple[CountsOfSpecs, ...]:
        """Counts before the change, and those of now."""
        if self.now is None:
            return (self.before,)
        return (self.before, self.now)

    def _combined(self, other: Self, sign: int) -> Self:
        before = self.before._combined(other.before, sign)
        now = None
        if self.now is not None and other.now is not None:
            now = self.now._combined(other.now, sign)
        return replace(self, before=before, now=now)

    def __radd__(self, total: CountsOfSpecs) -> CountsOfSpecs:
        total = total - self.before
        if self.now is None:
            return total
        return total + self.now

    @property
    def described(self) -> Entries:
        """Samples, None with noise, and SHA-256 of the counts before and now."""
        return {"before": _described(self.before), "now": _described(self.now)}


def _described(counts: CountsOfSpecs | None) -> Entries | None:
    if counts is None:
        return None
    n_examples = None
    if not counts.parts[0].noise:
        n_examples = counts.parts[0].n_examples
    return {"examples": n_examples, "sha256": [*counts.sha256]}


AnyCounts = CountsOfSpecs | CountsChange
Statistic = TypeVar("Statistic", CountsOfSpecs, CountsChange)


def _announced(counts: CountsOfSpecs) -> int:
    """Number of samples that travels beside counts."""
    if counts.parts[0].noise:
        return NOISY_EXAMPLES
    return counts.parts[0].n_examples


# -------- requests


@dataclass(frozen=True)
class _OfCounts(RunRequest[Statistic]):
    """A request for class counts by each of a run's specs.

    They have noise in a run that has a mechanism. With a basis, sums for the linear part
    go with them: of a party that does not let them leave, they are those of no samples.
    """

    run: RunSpec
    basis: Basis | None = None

    sentence = (
        "Sums by class: who is alone in a class is singled out. A known row "
        "shows in the model, unless epsilon. With products=true, sums of products of "
        "columns: they tell pairs of levels, rare ones too."
    )
    proves = True
    entries = RUN_ENTRIES | {"basis": Entry(bytes, MAX_CHARS, is_needed=False)}

    def to_config(self) -> Scalars:
        basis = None
        if self.basis is not None:
            basis = deflated_basis(self.basis, self.run.specs)
        return super().to_config() | sent(basis=basis)

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> Self:
        run = announced_run(config, options)
        if "basis" not in config:
            return cls(run)
        if run.mechanism is not None:
            raise PayloadError(key("basis"), "none beside noisy counts", "one")
        basis = announced_basis(config, run.specs)
        needed = memory_of_gram(basis.n_terms, run.n_classes)
        needed += _TERM_BYTES * BATCH * basis.n_terms
        options.check_memory(needed, f"products of {basis.n_terms} terms of columns")
        return cls(run, basis)

    @property
    def discloses(self) -> str:
        if self.run.mechanism is None or self.run.is_secure:
            return super().discloses
        return NOISY

    def fields(self, sizes: Sizes) -> list[Field]:
        run = self.run
        if run.mechanism is None:
            fields = codec.counts_fields(run.hashers, run.n_classes, sizes.total)
            if self.basis is not None:
                fields += gram_fields(self.basis, run.n_classes, sizes)
            return fields
        field = codec.release_field(run.hasher, run.mechanism, sizes.total)
        if run.bound is None:
            return [field]
        # Beyond the bound SecAgg+ would clip noisy counts as well; clipping depends on
        # the release alone.
        return [replace(field, most=sizes.total)]

    def parts(self, statistic: Statistic) -> list[Array]:
        every: tuple[CountsOfSpecs, ...]
        if isinstance(statistic, CountsChange):
            every = statistic.every
        else:
            every = (statistic,)
        parts: list[Array] = []
        for counts in every:
            parts += [part.array for part in counts.parts]
            if counts.linear is not None:
                parts += gram_parts(counts.linear)
        if self.run.mechanism is None or self.bound is None:
            return parts
        return [np.clip(part, -self.bound, self.bound) for part in parts]


def _of_parts(
    run: RunSpec, basis: Basis | None, parts: list[Array], n_parties: int
) -> CountsOfSpecs:
    """Counts with these integers, of so many parties."""
    if run.mechanism is not None:
        counts = codec.released(parts[0], run.hasher, run.mechanism, n_parties)
        return CountsOfSpecs((counts,))
    n = len(run.specs)
    exact = codec.counts_of(parts[:n], run.hashers)
    if basis is None:
        return CountsOfSpecs(exact)
    return CountsOfSpecs(exact, linear_of_parts(parts[n:], basis, exact[0]))


def counts_of(
    run: RunSpec,
    basis: Basis | None,
    view: View,
    *,
    recall: bool = False,
) -> CountsOfSpecs:
    """Counts of the party's samples by each spec.

    With a basis they have the sums of a linear part, as they leave the party. With
    `recall` they were sent before: noisy counts are those, and no unit is asked about.
    """
    if run.mechanism is not None:
        return CountsOfSpecs((view.release(run, recall),))
    X, codes = view.samples_of(run)
    if isinstance(view.features, Schema) and not recall:
        for name in elsewhere(run.specs, view.features, X):
            log.warning(
                "FlyNN: %s, column %r: numbers are far from those of other parties; is "
                "the unit the same?",
                view.options.name or "this party",
                name,
            )
    hashed = progress(len(codes) * len(run.specs))
    n_jobs = view.options.n_jobs
    counts = tuple(
        ClassCounts.from_data(hasher, X, codes, run.n_classes, n_jobs, hashed)
        for hasher in run.hashers
    )
    if basis is None:
        return CountsOfSpecs(counts)
    if run.bound is None and not view.options.products:
        return CountsOfSpecs(counts, GramMatrix.zeros(basis, run.n_classes))
    if run.bound is None:
        X, codes = without_few(X, codes, run.n_classes, view.options.min_examples)
    linear = GramMatrix.from_data(basis, X, codes, run.n_classes)
    return CountsOfSpecs(counts, linear)


@register
@dataclass(frozen=True)
class CountsRequest(_OfCounts[CountsOfSpecs]):
    """Ask for class counts."""

    phase = "counts"

    def of_parts(self, parts: list[Array], n_parties: int) -> CountsOfSpecs:
        return _of_parts(self.run, self.basis, parts, n_parties)

    def measured(self, view: View) -> Measured[CountsOfSpecs]:
        counts = counts_of(self.run, self.basis, view)
        return Measured(counts, _announced(counts))


@register
@dataclass(frozen=True)
class WithdrawRequest(_OfCounts[CountsChange]):
    """Ask parties that leave for the counts they were counted by.

    The server takes these out of the sum.
    """

    phase = "withdraw"
    stays = False

    def of_parts(self, parts: list[Array], n_parties: int) -> CountsChange:
        return CountsChange(_of_parts(self.run, self.basis, parts, n_parties))

    def measured(self, view: View) -> Measured[CountsChange]:
        change = CountsChange(counts_of(self.run, self.basis, view, recall=True))
        return Measured(change, _announced(change.before), change.described)


@register
@dataclass(frozen=True)
class UpdateRequest(_OfCounts[CountsChange]):
    """Ask parties whose samples have changed for their counts of before and of now.

    The server replaces the former by the latter, if they are those of the saved run by
    their SHA-256: then the sum is that of parties which never had other samples, bit
    for bit.
    """

    phase = "update"

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> UpdateRequest:
        request = super().from_config(config, arrays, options)
        if not request.run.is_plain:
            expected = "exact counts in clear, which alone can be updated"
            raise PayloadError("mode", expected, request.run.mode)
        return request

    def fields(self, sizes: Sizes) -> list[Field]:
        most = capacity_of(self.run) // 1024
        if self.basis is not None:
            most = min(most, CAPACITY // 1024)
        before = super().fields(Sizes(most, most))
        named = [replace(field, name="counts before") for field in before]
        return named + super().fields(sizes)

    def of_parts(self, parts: list[Array], n_parties: int) -> CountsChange:
        n = len(parts) // 2
        before, now = (
            _of_parts(self.run, self.basis, own, n_parties)
            for own in (parts[:n], parts[n:])
        )
        return CountsChange(before, now)

    def measured(self, view: View) -> Measured[CountsChange]:
        before = counts_of(self.run, self.basis, _before(view), recall=True)
        now = counts_of(self.run, self.basis, view)
        _warn_of_few(before.parts[0], now.parts[0], view.options.min_examples)
        change = CountsChange(before, now)
        return Measured(change, _announced(now), change.described)


def _before(view: View) -> View:
    """The samples as they were counted."""
    previous = view.options.previous
    if previous is None:
        expected = (
            "the samples as they were counted, at a party whose samples have changed"
        )
        raise ConfigError("node-config previous-path", expected, "none")
    return replace(view, loader=Loader(previous))


def _warn_of_few(before: ClassCounts, now: ClassCounts, least: int) -> None:
    """Warn if the difference of counts is of so few samples that it shows them.

    They are the samples of each class that do not cancel out in the difference: at
    least as many have changed.
    """
    n_bits = np.abs(now.array - before.array).sum(axis=1)
    changed = -(-n_bits // now.hash_nnz)
    few = min((n for n in changed.tolist() if n), default=0)
    if 0 < few < least:
        log.warning(
            "FlyNN: the difference is that of %s samples in a class: it shows "
            "them to the server",
            few,
        )


# -------- the sum at the server


def capacity_of(run: RunSpec) -> int:
    """Load up to which the sum of the counts of a run stays exact."""
    if run.is_plain:
        return min(codec.capacity(hasher) for hasher in run.hashers)
    return codec.noisy_capacity(run.hasher)


@dataclass(frozen=True, eq=False)
class CountsTally(AnnouncedTally[AnyCounts]):
    """Counts that are added to a sum, taken out of it, or replaced in it."""

    request: _OfCounts[Any]
    totals: CountsOfSpecs | None = None
    """Sum of the saved run."""
    roster: Roster = field(default_factory=Roster)
    """Roster of the counts."""

    what = "counts"

    @property
    def start(self) -> CountsOfSpecs:
        if self.totals is None:
            return no_counts(self.request.run, self.request.basis)
        return self.totals

    @property
    def capacity(self) -> int:
        most = capacity_of(self.request.run)
        if self.request.basis is not None:
            most = min(most, CAPACITY)
        return most

    @property
    def largest(self) -> int:
        return self.capacity

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        if self.request.run.mechanism is None:
            return super().sizes_of(reply, member)
        check_hidden("noisy counts", reply)
        most = self.max_examples or self.capacity // 1024
        return Sizes(most, most)

    def check(self, statistic: AnyCounts, sizes: Sizes) -> None:
        if self.request.run.mechanism is None:
            counts = _sent(statistic)
            check_announced(self.what, counts.parts[0].n_examples, sizes)
            if counts.linear is not None:
                per_class = counts.parts[0].n_per_class
                check_sizes(counts.linear, Sizes(per_class, sizes.total))

    def facts(self, statistic: AnyCounts, n_before: int) -> Facts:
        counts = _sent(statistic)
        change = None
        sizes = None
        if self.request.run.is_plain:
            sizes = counts.parts[0].n_per_class
        if isinstance(statistic, CountsChange):
            change = statistic.described
        return Facts(sizes, counts.sha256, change)

    def load(self, statistic: AnyCounts) -> int:
        if isinstance(statistic, CountsChange) and statistic.now is None:
            return 0
        counts = _sent(statistic).parts[0]
        if self.request.run.is_plain:
            return counts.n_examples
        return int(np.abs(counts.array).max())

    def match(self, statistic: AnyCounts, sender: Sender, gone: set[int]) -> int | None:
        if isinstance(statistic, CountsChange):
            return _counted_by(self.roster, statistic.before, sender, gone)
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


def _sent(statistic: AnyCounts) -> CountsOfSpecs:
    """The counts of the party's samples as they are, or were when it left."""
    if isinstance(statistic, CountsChange):
        return statistic.now or statistic.before
    return statistic


def _counted_by(
    roster: Roster, before: CountsOfSpecs, sender: Sender, gone: set[int]
) -> int:
    """Index of the member of the saved run that was counted by these very counts."""
    members = roster.before
    indices = roster.staying(roster.proven(sender.cid, sender.proof), gone)
    # Anybody can give the name of a member.
    if not indices and roster.staying(roster.find(*sender), gone):
        expected = (
            "the node that was counted, or the secret of its node setting member-path"
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
        if members[index].sha256 == before.sha256:
            return index
    got = "counts of another SHA-256; have its data or settings changed?"
    n = len(before.parts)
    if any(members[index].sha256[:n] == before.sha256[:n] for index in indices):
        got = (
            "other sums of products; set the node settings products and min-examples as "
            "they were, withdraw, then join again"
        )
    raise PayloadError(
        "counts", f"those that {members[indices[0]]} was counted by", got
    )


_KINDS: dict[str, type[_OfCounts[Any]]] = {
    "withdraw": WithdrawRequest,
    "update": UpdateRequest,
}


def _tally(state: RunState, context: Context) -> CountsTally:
    options = context.options
    most = options.max_examples_per_party
    totals = None
    if options.federation is not None:
        totals = options.federation.totals
    kind = _KINDS.get(options.purpose, CountsRequest)
    request = kind(state.run_spec, basis_of(state, options))
    return CountsTally(request, most, totals, context.counted)


def _fold(state: RunState, batch: Batch[CountsOfSpecs], context: Context) -> RunState:
    state = replace(state, members=context.counted.members)
    return state.with_result("counts", batch.total)


def memory(options: RunOptions, scale: Scale) -> Needs:
    """Bytes of the counts, and of the sums of a linear part."""
    run = options.run_spec
    n_classes = run.n_classes
    specs = run.specs
    counted = options.counted_specs(specs)
    size = f"{specs[0].hash_dim} rows of {specs[0].row_nnz} entries"
    rows = f"{size} and {n_classes} classes"
    if len(specs) != 1:
        rows = f"{len(specs)} hashes with {rows}"
    server = {rows: sum(memory_needed(spec, n_classes) for spec in specs)}
    party = {"the counts": sum(memory_needed(spec, n_classes) for spec in counted)}
    entry = max(ENTRY_BYTES, 16 * scale.n_parties)
    if options.has_linear:
        n_terms = min(options.linear, 3 * run.spec.n_features)
        what = f"the linear part of up to {n_terms} terms (linear sets their number)"
        needed = memory_of_gram(n_terms, n_classes)
        server[what] = needed
        party[what] = needed
        if run.is_secure:
            server[what] += entry * n_terms**2
            party[what] += ENTRY_BYTES * n_terms**2
    if run.is_secure:
        n_entries = n_classes * sum(spec.hash_dim for spec in specs)
        n_own_entries = n_classes * sum(spec.hash_dim for spec in counted)
        server[f"a secure sum of {rows}"] = entry * n_entries
        party["the secure sum of counts"] = ENTRY_BYTES * n_own_entries
    return Needs(server, party)


def _report(state: RunState, options: RunOptions) -> Section:
    """Size of the sums of the linear part, its share, and the parties without it; of
    noisy counts the distance of the class means.
    """
    sums = state.results["counts"].linear
    if sums is None:
        means = members_of(state, options)[0].means
        if means is None:
            return Section({"linear": None, "separation": None})
        z = means.separation
        text = f"{z:.2g} standard deviations of their noise apart: {meaning_of(z)}"
        return Section({"linear": None, "separation": z}, {"class means": text})
    members = counted_members(state, options)
    senders = {str(member) for member in senders_of_linear(members)}
    without = [str(member) for member in members if str(member) not in senders]
    lack = why_no_linear(state, options)
    share = model_of(state, options).share
    entries = {
        "terms": sums.terms.n_terms,
        "examples": sums.n_examples,
        "share": share,
        "lack": lack,
        "without": without,
    }
    use = f"not used: {lack or 'it makes no better probabilities'}"
    if share:
        use = f"share {share}"
    text = f"{sums.terms.n_terms} terms, {sums.n_examples} samples, {use}"
    if without:
        names = listed(without, 8)
        text += f"; no sums (node setting products, or few rows) from {names}"
    return Section({"linear": entries, "separation": None}, {"linear part": text})


def _asks(options: RunOptions) -> list[SiteSetting]:
    run = options.run_spec
    asked = []
    if options.has_linear and not run.is_secure:
        why = "true lets the sums of the linear part, and of trees, leave in clear"
        asked.append(SiteSetting("products", None, why))
    if run.is_plain:
        why = "exact figures leave in clear; a site with true refuses"
        asked.append(SiteSetting("secure", False, why))
    return asked


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
        _tally,
        _fold,
        is_counting=True,
        audience=audience,
        content=content,
        report=_report,
        asks=_asks,
        memory=memory,
    )
