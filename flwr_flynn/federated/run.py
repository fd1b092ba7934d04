"""A run at the server, without any transport: the steps from phase to phase, and the
parties in the counts.

Both strategies drive a `Run`: they carry what `Run.ask` returns to the parties, and
hand the replies to `Run.complete`. Counts that a party sent stay in the sum; every
later phase goes on with the answers of the parties that are there, and reports the
others as missing. A phase behind the counts that fewer than `min_parties` answer leaves
the model as it is. Counting goes on until enough parties are counted; later ones join
by a run of their own. Replies of parties that were not asked are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from flwr_flynn import __version__
from flwr_flynn.errors import AggregationError, ConfigError, clean
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch, collect, first_of_each
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.permissions import Traffic
from flwr_flynn.federated.phase import (
    ALL,
    COUNTED,
    NEW,
    PRESENT,
    Context,
    Phase,
    RunState,
    federation_of,
    member_indices,
    model_of,
    restart_of,
)
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.federated.protocol import (
    EVALUATE,
    PHASE,
    TRAIN,
    UNKEPT,
    VERSION,
    Reply,
    Scalar,
    merged,
)
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.roster import (
    Failures,
    Member,
    Roster,
    missing_text,
    require_samples,
)
from flwr_flynn.federated.run_spec import LEAST_PARTIES, check_room
from flwr_flynn.model.counts import ClassCounts, CountsOfSpecs

if TYPE_CHECKING:
    from flwr_flynn.model.classifier import FlyNNClassifier

Figures = Callable[[list[Reply]], Mapping[str, Any]]
"""A user's function of the replies that passed."""


@dataclass(frozen=True)
class Ask:
    """A request, and the parties that get it."""

    phase: Phase
    request: Request[Any]
    cids: list[str]
    tensors: list[bytes]
    config: dict[str, Scalar]
    roster: Roster  # of the phase
    start: Any  # the total before any answer


@dataclass(frozen=True)
class ExchangeResult:
    """Outcome of one exchange."""

    phase: Phase
    batch: Batch[Any]  # with nobody in it where the answers were set aside
    missing: dict[str, str]  # reasons of parties that gave no usable answer, by name
    names: dict[str, str]  # of parties in reports, by cid
    figures: Mapping[str, Any]  # of the user's function


class Run:
    """A run of the server: the state of its plan, and its parties."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.phases = phases_of(options)
        self.state = RunState(options.run_spec)
        # A saved run is where its counts are; with "counts" first in the plan more are
        # added to them.
        if options.federation is not None and (
            self.counting is None or self.needed <= 0
        ):
            self.state = self.state.with_result("counts", options.federation.totals)
        if options.federation is None:
            before: Sequence[Member] = ()
        else:
            before = options.federation.members
        # by the names of the phases
        self.rosters = {"counts": Roster(before, options.identify)}
        self.traffic: dict[str, Traffic] = {}  # likewise
        self.asked: Ask | None = None  # until it is complete
        self._asked_cids: frozenset[str] = frozenset()
        # reasons, of parties that the last request leaves out
        self._unasked: dict[str, str] = {}
        self._batch = Batch[Any](None)
        self._model: tuple[RunState, FlyNNClassifier] | None = None

    @property
    def num_rounds(self) -> int:
        """Flower rounds, each a train and then an evaluate step, that the plan takes if
        all parties are there.
        """
        return rounds_of(self.phases)

    @property
    def rounds_left(self) -> int:
        """Flower rounds that are missing where some went into counting once more; 0
        until enough are counted.
        """
        if self.due is None or not self.is_enough:
            return 0
        return rounds_of(self.phases[self.phases.index(self.due) :])

    @property
    def counting(self) -> Phase | None:
        """The phase "counts"; None in a run that only distributes a model."""
        return next((phase for phase in self.phases if phase.is_counting), None)

    @property
    def counted(self) -> Roster:
        """The roster of the counts."""
        return self.rosters["counts"]

    @property
    def needed(self) -> int:
        """Parties that this run must count; a resumed run has those of the saved run."""
        federation = self.options.federation
        saved = 0
        if federation is not None and self.options.purpose == "resume":
            saved = len(federation.members)
        return self.options.min_parties - saved

    @property
    def is_enough(self) -> bool:
        """True if enough parties are counted, or none is to be counted."""
        return self.counting is None or len(self.counted) >= self.needed

    @property
    def due(self) -> Phase | None:
        """The first phase that is not done; None at the end."""
        done = self.state.results.keys()
        left = (
            each
            for each in self.phases
            if each.name not in done or (each.is_counting and not self.is_enough)
        )
        return next(left, None)

    @property
    def restart(self) -> Phase | None:
        """The phase at which a later run goes on from the file of this one; None at the
        end.
        """
        due = self.due
        if due is None:
            return None
        return restart_of(self.phases, due)

    def phase(self, channel: str) -> Phase | None:
        """The phase for a channel's next step, if the one that is due is on it."""
        due = self.due
        if due is not None and due.channel == channel:
            return due
        return None

    def ask(
        self,
        channel: str,
        present: Sequence[str],
        user_config: Callable[[], Mapping[str, Any]] | None = None,
    ) -> Ask | None:
        """The request that is due on a channel, and the parties that get it; None
        without either.

        `user_config`, called only if somebody is asked, returns the user's config
        entries, without keys of this package.
        """
        self.asked, self._unasked, phase = None, {}, self.phase(channel)
        if phase is None or not (cids := self._audience(phase, list(present))):
            return None
        request = phase.request(self.state, Context(self.options, self.counted))
        ours = {PHASE: request.phase, VERSION: __version__, **request.to_config()}
        if request.channel != phase.channel:
            expected = (
                f"{request.channel} for phase {phase.name}, as its request has it"
            )
            raise ConfigError("channel", expected, phase.channel)
        if (
            request.bound is None
            and self.state.run_spec.is_secure
            and phase.channel == TRAIN
        ):
            raise ConfigError(
                "phases", "phases of secure sums alone on the train channel", phase.name
            )
        config = merged({} if user_config is None else user_config(), ours)
        roster = self._roster(phase)
        if phase.channel == TRAIN:
            roster.ask(cids)
        tensors = codec.write_tensors(request.arrays())
        self.traffic.setdefault(phase.name, Traffic(kind=request.discloses)).ask(
            len(cids), tensors, config
        )
        counts = None
        if phase.is_counting:
            counts = self.state.results.get(phase.name)
        if counts is None:
            start = request.start
        else:
            start = counts
        self.asked = Ask(phase, request, cids, tensors, config, roster, start)
        self._asked_cids = frozenset(cids)
        self._batch = Batch(start)
        return self.asked

    def receive(self, replies: Sequence[Reply]) -> None:
        """Check some replies to the last request and add up those that pass, for a
        later `complete`.

        Their arrays are let go of, so that memory does not grow with the replies.
        """
        ask = self.asked
        if ask is None:
            return
        batch = self._batch
        # others are ignored
        replies = [reply for reply in replies if reply.cid in self._asked_cids]
        collect(ask.request, batch, ask.roster, self.counted, replies)
        for cid, reply in first_of_each(replies).items():
            entries = {
                name: value for name, value in reply.metrics.items() if name == UNKEPT
            }
            known = replace(reply, tensors=(), metrics=entries, content=None)
            batch.replies.setdefault(cid, known)
            if cid in batch.passed:
                batch.passed[cid] = replace(batch.passed[cid], tensors=())

    def complete(
        self,
        replies: Sequence[Reply],
        failures: Failures,
        figures: Figures | None = None,
    ) -> ExchangeResult | None:
        """Check replies to the last request, add up those that pass, and go on; None if
        nobody was asked.

        `replies` are those that `receive` has not had; `figures` is called with those
        that passed, before anything is changed.
        """
        ask = self.asked
        if ask is None:
            return None
        is_first = not self._batch.replies
        self.receive(replies)
        batch = self._batch
        phase = ask.phase
        roster = ask.roster
        failed = failures.reasons([cid for cid in ask.cids if cid not in batch.replies])
        is_asked = phase.audience == COUNTED or (
            phase.audience == PRESENT and self.options.is_evaluated
        )
        needed = 0
        if is_asked:
            needed = self.options.min_parties
        n_answered = len(batch.replies.keys() - batch.refused.keys())
        if n_answered < needed:
            batch = batch.without(
                ask.start,
                f"set aside: {n_answered} of at least {needed} parties replied",
            )
        try:
            if figures is not None and batch.passed:
                found = dict(figures(list(batch.passed.values())))
            else:
                found = {}
        except BaseException:  # the replies may come again
            if is_first:
                self._batch = Batch(ask.start)
            raise
        self.traffic[phase.name].add(batch.arrivals)
        reasons = {**self._unasked, **failed, **batch.refused}
        for each in (roster, self.counted):
            each.introduce(batch.names)
        for cid, reason in reasons.items():
            roster.fail(cid, reason)
        for cid, member in batch.members.items():
            roster.count(member, batch.taken_out.get(cid), ask.request.is_update)
        names = self.counted.names([*ask.cids, *batch.replies, *self._unasked])
        missing = {names[cid]: clean(reason, 200) for cid, reason in reasons.items()}
        # the counts: the model stands without these answers
        is_behind = phase.audience in (COUNTED, PRESENT)
        if is_behind or batch.passed or not phase.is_counting:
            self._fold(
                phase,
                batch,
                Context(self.options, self.counted, missing, names, ask.request),
            )
        self.asked = None
        if self.options.on_phase is not None:
            self.options.on_phase(self)
        return ExchangeResult(phase, batch, missing, names, found)

    def _roster(self, phase: Phase) -> Roster:
        """The roster of a phase; another one for every exchange of the evaluate
        channel.
        """
        if phase.is_counting:
            return self.counted
        if phase.channel == TRAIN:
            return self.rosters.setdefault(phase.name, Roster())
        return Roster(identify=self.options.identify)

    def _audience(self, phase: Phase, present: list[str]) -> list[str]:
        if phase.audience in (ALL, NEW):
            roster = self._roster(phase)
            cids = [cid for cid in present if cid not in roster]
            if phase.audience == NEW:
                cids = [cid for cid in cids if not self.counted.find(cid)]
            return self._enough_for_secure(phase, cids)
        if phase.audience == COUNTED:
            if self.counting is None:
                # by its reply a party of the saved run is known, whatever its node id
                # is now
                return present
            return self._enough_for_secure(
                phase, [cid for cid in present if self.counted.member(cid) is not None]
            )
        return present

    def _fold(self, phase: Phase, batch: Batch[Any], context: Context) -> None:
        """Put the total of a phase into the state, and who gave no answer."""
        if phase.audience == COUNTED:
            missing: Mapping[str, str] = context.unanswered_by(batch.passed)
        else:
            missing = context.missing
        state = phase.fold(self.state, batch, context)
        self.state = replace(state, missing={**state.missing, phase.name: missing})

    def _enough_for_secure(self, phase: Phase, cids: list[str]) -> list[str]:
        bound = self.state.run_spec.bound
        if bound is None or phase.channel != TRAIN:
            return cids
        index = self.phases.index(phase)
        earlier = None
        if index and not phase.is_counting:
            earlier = self.rosters.get(self.phases[index - 1].name)
        # a party in one of two such sums would be their difference
        if earlier and phase.audience != COUNTED:
            reason = (
                f"not asked, as it is not in the sum of {self.phases[index - 1].name}"
            )
            self._unasked = {cid: reason for cid in cids if cid not in earlier}
            cids = [cid for cid in cids if cid in earlier]
        if len(cids) < LEAST_PARTIES:
            for cid in cids:
                self._roster(phase).fail(
                    cid, "not asked: too few are left for a secure sum"
                )
            return []
        check_room(len(cids), bound)
        return cids

    @property
    def is_specified(self) -> bool:
        """True if no phase is left that derives the specs."""
        if self.counting:
            before = self.phases[: self.phases.index(self.counting)]
        else:
            before = ()
        return all(
            phase.name in self.state.results for phase in before if phase.derives_specs
        )

    def require_specs(self) -> None:
        """Raise an `AggregationError` while the specs wait for the columns."""
        if not self.is_specified:
            due = ""
            if self.due is not None:
                due = self.due.name
            if due in self.rosters:
                missing = self.rosters[due].missing
            else:
                missing = {}
            who = (
                missing_text(missing)
                or "nobody was asked; too few parties were connected"
            )
            text = (
                f"no party was asked to count{self._hint}, phase {due} is not "
                f"done; missing: {who}"
            )
            raise AggregationError(text, 0, self.options.min_parties, missing)

    @property
    def totals(self) -> CountsOfSpecs:
        """The sums of the parties counted so far, for each spec."""
        self.require_specs()
        counting = self.counting
        totals = self.state.results.get("counts")
        if totals is None and counting is not None:
            totals = counting.request(
                self.state, Context(self.options, self.counted)
            ).start
        return cast(CountsOfSpecs, totals)

    @property
    def counts(self) -> ClassCounts:
        """The sum for the first member of the model; for the first spec until members
        are selected.
        """
        return self.totals.parts[member_indices(self.state, self.options)[0]]

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier of the selected counts; an `AggregationError` while fewer than
        `min_parties` are counted.
        """
        from flwr_flynn.model.classifier import FlyNNClassifier

        self.require_specs()
        if self.counting is not None:
            self.counted.require(self.needed, self._hint)
            if (
                self.options.purpose in ("train", "resume")
                and self.state.run_spec.mechanism is None
            ):
                require_samples(
                    self.counts.n_examples, len(self.counted), self.options.min_parties
                )
        if self._model is None or self._model[0] is not self.state:
            self._model = (
                self.state,
                FlyNNClassifier.from_model(model_of(self.state, self.options)),
            )
        return self._model[1]

    @property
    def _hint(self) -> str:
        """A reason that parties of a secure sum do not give, as it would tell their
        size.
        """
        bound = self.state.run_spec.bound
        mechanism = self.state.run_spec.mechanism
        if bound is None or mechanism:
            return ""
        return f" (with at most {bound} samples each, by max-examples)"

    def federation(self, run: str) -> Federation:
        """The run, by this name, as a file for a later run to start from."""
        self.require_specs()
        if (
            self.counting is None
            and (before := self.options.federation)
            and self.options.purpose == "evaluate"
        ):
            return before
        # of no samples before it
        state = self.state.with_result("counts", self.totals)
        name = ""
        due = self.due
        restart = self.restart
        if due is not None and restart is not None:
            name = restart.name
            start = self.phases.index(restart)
            repeated = self.phases[start : self.phases.index(due)]
            state = state.without([phase.name for phase in repeated])
        members = [
            replace(member, run=member.run or run) for member in self.counted.members
        ]
        return federation_of(state, self.options, members, name)


def rounds_of(phases: Sequence[Phase]) -> int:
    """Flower rounds that some phases take."""
    rounds = 0
    last = EVALUATE
    for phase in phases:
        rounds += phase.channel == TRAIN or last == EVALUATE
        last = phase.channel
    return rounds
