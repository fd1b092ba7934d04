"""A run at the server, without any transport.

It has the steps from phase to phase, and the parties in the counts.

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
)
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.federated.protocol import (
    EVALUATE,
    NOTHING,
    PHASE,
    TRAIN,
    UNKEPT,
    VERSION,
    Reply,
    Scalars,
    merged,
)
from flwr_flynn.federated.request import Request, sentence_of
from flwr_flynn.federated.roster import (
    Failures,
    Member,
    Roster,
    missing_text,
    require_samples,
)
from flwr_flynn.federated.secure_bound import LEAST_PARTIES, check_room
from flwr_flynn.federated.tally import Tally
from flwr_flynn.federated.traffic import Traffic
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.counts_of_specs import CountsOfSpecs

if TYPE_CHECKING:
    from flwr_flynn.model.classifier import FlyNNClassifier

Figures = Callable[[list[Reply]], Mapping[str, Any]]
"""A user's function of the replies that passed."""


@dataclass(frozen=True)
class Ask:
    """A request, and the parties that get it."""

    phase: Phase
    tally: Tally[Any]
    cids: list[str]
    tensors: list[bytes]
    config: Scalars
    roster: Roster  # roster of the phase
    start: Any  # the total before any answer

    @property
    def request(self) -> Request[Any]:
        """The request."""
        return self.tally.request


@dataclass(frozen=True)
class ExchangeResult:
    """Outcome of one exchange."""

    phase: Phase
    batch: Batch[Any]  # nobody is in it where the answers were set aside
    missing: dict[str, str]  # reasons of parties that gave no usable answer, by name
    names: dict[str, str]  # names of parties in reports, by cid
    figures: Mapping[str, Any]  # those of the user's function


class Run:
    """A run of the server: the state of its plan, and its parties."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.phases = phases_of(options)
        self.state = RunState(options.run_spec, is_specified=options.is_specified)
        # A saved run is where its counts are; with "counts" first in the plan more are
        # added to them.
        if options.federation is not None and (
            self.counting is None or self.needed <= 0
        ):
            self.state = self.state.with_result("counts", options.federation.totals)
        before: Sequence[Member] = ()
        if options.federation is not None:
            before = options.federation.members
        # Both are by the names of the phases.
        self.rosters = {"counts": Roster(before, options.identify)}
        self.traffic: dict[str, Traffic] = {}
        self.asked: Ask | None = None  # the last request, until it is complete
        self._asked_cids: frozenset[str] = frozenset()
        # Reasons of parties that the last request leaves out, by cid.
        self._unasked: dict[str, str] = {}
        self._batch = Batch[Any](None)
        self._model: tuple[RunState, FlyNNClassifier] | None = None

    @property
    def num_rounds(self) -> int:
        """Flower rounds that the plan takes if all parties are there.

        A round is a train step and then an evaluate step.
        """
        return rounds_of(self.phases)

    @property
    def rounds_left(self) -> int:
        """Flower rounds that are missing where some went into counting once more.

        0 until enough are counted.
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
        for phase in self.phases:
            if phase.is_counting and not self.is_enough:
                return phase
            if phase.name not in done and not phase.is_idle(self.state, self.options):
                return phase
        return None

    @property
    def restart(self) -> Phase | None:
        """The phase at which a later run goes on from the file of this one; None at the
        end.

        It is the earliest behind the counting at which a phase that is not done begins
        anew.
        """
        due = self.due
        behind = self.phases
        if self.counting is not None:
            behind = behind[behind.index(self.counting) + 1 :]
        if due not in behind:
            return due
        names = [phase.name for phase in behind]
        start = len(behind)
        first = behind.index(due)
        while first < start:
            start = first
            needed = [phase.resumed_at(names) for phase in behind[start:]]
            first = min(map(names.index, needed))
        return behind[start]

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
        """The request that is due on a channel, and the parties that get it.

        None without either.

        `user_config`, called only if somebody is asked, returns the user's config
        entries, without keys of this package.
        """
        self.asked = None
        self._unasked = {}
        phase = self.phase(channel)
        if phase is None:
            return None
        cids = self._audience(phase, list(present))
        if not cids:
            return None
        tally = phase.tally(self.state, Context(self.options, self.counted))
        request = tally.request
        ours = {PHASE: request.phase, VERSION: __version__, **request.to_config()}
        self._check_request(phase, request)
        config = merged((user_config or dict)(), ours)
        roster = self._roster(phase)
        if phase.channel == TRAIN:
            roster.ask(cids)
        tensors = codec.write_tensors(request.arrays())
        kind = request.discloses
        said = sentence_of(request.phase, kind)
        traffic = self.traffic.setdefault(phase.name, Traffic(kind=kind, sentence=said))
        traffic.ask(len(cids), tensors, config)
        start = None
        if phase.is_counting:
            start = self.state.results.get(phase.name)
        if start is None:
            start = tally.start
        self.asked = Ask(phase, tally, cids, tensors, config, roster, start)
        self._asked_cids = frozenset(cids)
        self._batch = Batch(start)
        return self.asked

    def _check_request(self, phase: Phase, request: Request[Any]) -> None:
        """Refuse a request of another channel, or in clear beside secure sums."""
        if request.channel != phase.channel:
            expected = (
                f"{request.channel} for phase {phase.name}, as its request has it"
            )
            raise ConfigError("channel", expected, phase.channel)
        is_secure = self.state.run_spec.is_secure and phase.channel == TRAIN
        if is_secure and request.bound is None:
            raise ConfigError(
                "phases", "phases of secure sums alone on the train channel", phase.name
            )

    def receive(self, replies: Sequence[Reply]) -> None:
        """Check some replies to the last request, and add up those that pass.

        `complete` goes on with them later. Their arrays are let go of, so that memory
        does not grow with the replies. Replies of parties that were not asked are
        ignored.
        """
        ask = self.asked
        if ask is None:
            return
        batch = self._batch
        replies = [reply for reply in replies if reply.cid in self._asked_cids]
        collect(ask.tally, batch, ask.roster, self.counted, replies)
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
        """Check replies to the last request, add up those that pass, and go on.

        None if nobody was asked. `replies` are those that `receive` has not had;
        `figures` is called with those that passed, before anything is changed.
        """
        ask = self.asked
        if ask is None:
            return None
        is_first = not self._batch.replies
        self.receive(replies)
        unanswered = [cid for cid in ask.cids if cid not in self._batch.replies]
        failed = failures.reasons(unanswered)
        batch = self._usable(ask)
        user_figures: Mapping[str, Any] = {}
        try:
            if figures is not None and batch.passed:
                user_figures = dict(figures(list(batch.passed.values())))
        except BaseException:  # the replies may come again
            if is_first:
                self._batch = Batch(ask.start)
            raise
        reasons = {**self._unasked, **failed, **batch.refused}
        self._note_parties(ask, batch, reasons)
        names = self.counted.names([*ask.cids, *batch.replies, *self._unasked])
        missing = {names[cid]: clean(reason, 200) for cid, reason in reasons.items()}
        # The model stands without answers to a phase behind the counts.
        is_behind = ask.phase.audience in (COUNTED, PRESENT)
        if is_behind or batch.passed or not ask.phase.is_counting:
            context = Context(self.options, self.counted, missing, names, ask.request)
            self._fold(ask.phase, batch, context)
        self.asked = None
        if self.options.on_phase is not None:
            self.options.on_phase(self)
        return ExchangeResult(ask.phase, batch, missing, names, user_figures)

    def _usable(self, ask: Ask) -> Batch[Any]:
        """The batch; with nobody in it where too few answered a phase that needs them."""
        batch = self._batch
        tells = not ask.phase.makes_model and ask.request.discloses != NOTHING
        if ask.phase.audience != COUNTED and not tells:
            return batch
        needed = self.options.min_parties
        n_answered = len(batch.replies.keys() - batch.refused.keys())
        if n_answered >= needed:
            return batch
        return batch.without(
            ask.start,
            f"set aside: {n_answered} of at least {needed} parties replied",
        )

    def _note_parties(
        self, ask: Ask, batch: Batch[Any], reasons: Mapping[str, str]
    ) -> None:
        """Note in the rosters who answered, who is counted, and why the others are not."""
        self.traffic[ask.phase.name].arrivals += batch.arrivals
        ask.roster.introduce(batch.names)
        self.counted.introduce(batch.names)
        for cid, reason in reasons.items():
            ask.roster.fail(cid, reason)
        for cid, member in batch.members.items():
            index = batch.taken_out.get(cid)
            ask.roster.enter(member, index, stays=ask.request.stays)

    def _roster(self, phase: Phase) -> Roster:
        """The roster of a phase; a new one for every exchange on the evaluate channel."""
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
        # In a run without a counting a party of the saved run is known by its reply,
        # whatever its node id is now.
        if phase.audience != COUNTED or self.counting is None:
            return present
        cids = [cid for cid in present if self.counted.member(cid) is not None]
        return self._enough_for_secure(phase, self._still_in(phase.follows, cids))

    def _still_in(self, before: str, cids: list[str]) -> list[str]:
        """The parties that answered an earlier phase; the others are noted."""
        earlier = self.rosters.get(before)
        if not earlier:
            return cids
        reason = f"not asked, as it is not in the sum of {before}"
        self._unasked = {cid: reason for cid in cids if cid not in earlier}
        return [cid for cid in cids if cid in earlier]

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
        if index and not phase.is_counting and phase.audience != COUNTED:
            # A party in one of two such sums would be their difference.
            cids = self._still_in(self.phases[index - 1].name, cids)
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
        """True if the specs are known."""
        return self.state.is_specified

    def require_specs(self) -> None:
        """Raise an `AggregationError` while the specs wait for the columns."""
        if self.is_specified:
            return
        due = ""
        if self.due is not None:
            due = self.due.name
        missing: dict[str, str] = {}
        if due in self.rosters:
            missing = self.rosters[due].missing
        nobody = "nobody was asked; too few parties were connected"
        names = missing_text(missing) or nobody
        text = (
            f"no party was asked to count{self._hint}, phase {due} is not "
            f"done; missing: {names}"
        )
        raise AggregationError(text, 0, self.options.min_parties, missing)

    @property
    def totals(self) -> CountsOfSpecs:
        """The sums of the parties counted so far, for each spec."""
        self.require_specs()
        counting = self.counting
        totals = self.state.results.get("counts")
        if totals is None and counting is not None:
            context = Context(self.options, self.counted)
            totals = counting.tally(self.state, context).start
        return cast(CountsOfSpecs, totals)

    @property
    def counts(self) -> ClassCounts:
        """The sum for the first member of the model.

        It is the sum for the first spec until members are selected.
        """
        return self.totals.parts[member_indices(self.state, self.options)[0]]

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier of the selected counts.

        An `AggregationError` while fewer than `min_parties` are counted.
        """
        from flwr_flynn.model.classifier import FlyNNClassifier

        self.require_specs()
        if self.counting is not None:
            self.counted.require(self.needed, self._hint)
            is_exact = self.state.run_spec.mechanism is None
            if is_exact and self.options.purpose in ("train", "resume"):
                require_samples(
                    self.counts.n_examples, len(self.counted), self.options.min_parties
                )
        if self._model is None or self._model[0] is not self.state:
            model = model_of(self.state, self.options)
            self._model = (self.state, FlyNNClassifier.from_model(model))
        return self._model[1]

    @property
    def _hint(self) -> str:
        """A reason that parties of a secure sum do not give: it would tell their size."""
        bound = self.state.run_spec.bound
        mechanism = self.state.run_spec.mechanism
        if bound is None or mechanism:
            return ""
        return f" (with at most {bound} samples each, by max-examples)"

    def federation(self, run: str) -> Federation:
        """The run, by this name, as a file for a later run to start from."""
        self.require_specs()
        saved = self.options.federation
        is_evaluation = self.counting is None and self.options.purpose == "evaluate"
        if is_evaluation and saved is not None:
            return saved
        state = self.state.with_result("counts", self.totals)
        name = ""
        restart = self.restart
        if restart is not None:
            name = restart.name
        if restart is not None and restart is not self.due:
            repeated = self.phases[self.phases.index(restart) :]
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
        if phase.channel == TRAIN or last == EVALUATE:
            rounds += 1
        last = phase.channel
    return rounds
