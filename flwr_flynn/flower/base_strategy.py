"""A run as its strategy leads it, whichever of Flower's two APIs carries the messages.

`Course` knows which step a run is at. A `Conductor` knows what to ask of whom at that step, checks and takes what comes
back, and logs it. The two strategies, `strategy.FlyNNStrategy` and `message.FlyNNStrategy`, are conductors that
translate a `Request` into Flower's messages, and Flower's replies into `Reply` and `Failures`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, ClassVar

from flwr.common.logger import log

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.membership import Identify
from flwr_flynn.federated.protocol import PREFIX, TRY, UNKEPT, Label, whole_number
from flwr_flynn.federated.roster import NO_REPLY, Batch, Party, Reply, clean
from flwr_flynn.federated.run_state import Course
from flwr_flynn.federated.scaling_round import Traffic
from flwr_flynn.federated.selection_round import Choice, Choosing
from flwr_flynn.flower.logging import choice_line, evaluation_line, hash_lines, round_lines
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.column_moments import ColumnMoments
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.metrics import summary
from flwr_flynn.privacy import Mechanism

More = Callable[[list[Reply]], Mapping[str, Any]]
"""What a user's function makes of the replies that passed."""


@dataclass(frozen=True)
class Request:
    """What to send to whom.

    Parameters
    ----------
    cids : list of str
    tensors : list of bytes
        Arrays as `codec.write_tensors` writes them.
    config : dict
    """

    cids: list[str]
    tensors: list[bytes]
    config: dict[str, Any]


@dataclass(frozen=True)
class Failures:
    """Answers that are none.

    Parameters
    ----------
    named : dict of cid to reason
    unnamed : list of str
        The texts of those that came without their sender.
    """

    named: dict[str, str] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.named or self.unnamed)

    def reasons(self, unanswered: list[str]) -> dict[str, str]:
        """Why parties that were asked are not among the replies, by cid."""
        # Whose a failure without a name is, is certain only where a single one is missing.
        texts, unknown = self.unnamed, NO_REPLY
        if texts and len(set(unanswered) - self.named.keys()) == 1:
            unknown = f"failed: {texts[0]}"
        elif texts:
            unknown = f"{NO_REPLY} or a failure ({len(texts)} without a name, the first: {texts[0][:100]})"
        reasons = dict.fromkeys(unanswered, unknown) | self.named
        return {cid: clean(reason, 200) for cid, reason in reasons.items()}


class Conductor(ABC):
    """What both strategies are.

    Parameters
    ----------
    spec, classes, min_parties, max_examples_per_party, decay, rule, feature_names, min_examples, mechanism, \
federation, purpose, identify, secure_bound, fraction_evaluate, wait_timeout, accept_failures, hand_out
        As for `strategy.FlyNNStrategy`.
    """

    _members: ClassVar[str]  # what Flower's API calls the parties, in the names of parameters

    def __init__(
        self,
        *,
        spec: HashSpec | Sequence[HashSpec] | HashPlan,
        classes: Sequence[Label],
        min_parties: int,
        max_examples_per_party: int | None,
        decay: float | str,
        rule: str,
        feature_names: Sequence[str] | None,
        min_examples: int,
        mechanism: Mechanism | None,
        federation: Federation | None,
        purpose: str,
        identify: Identify,
        secure_bound: int | None,
        fraction_evaluate: float | None,
        wait_timeout: int,
        accept_failures: bool,
        hand_out: bool = False,
    ) -> None:
        self.min_parties = whole_number("min_parties", min_parties)
        if max_examples_per_party is not None:
            max_examples_per_party = whole_number("max_examples_per_party", max_examples_per_party)
        if min_parties > self._min_available:
            raise ConfigError(
                f"min_parties: expected at most min_available_{self._members} = {self._min_available}, "
                f"got {min_parties}"
            )
        if fraction_evaluate is None:
            fraction_evaluate = 1.0 if mechanism is None else 0.0
        for name, share, most in (
            ("fraction_evaluate", fraction_evaluate, 1),
            ("wait_timeout", wait_timeout, 10**9),
        ):
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= most:
                raise ConfigError(f"{name}: expected a number from 0 to {most}, got {share!r}")
        if not isinstance(hand_out, bool):
            raise ConfigError(f"hand_out: expected True or False, got {hand_out!r}")
        self.fraction_evaluate = fraction_evaluate
        self.hand_out = hand_out
        self.wait_timeout = wait_timeout
        self.accept_failures = accept_failures
        self.evaluation: dict[str, Any] | None = None
        self.evaluation_missing: dict[str, str] = {}
        self.unkept: dict[str, str] = {}
        self._course = Course(
            spec,
            classes,
            self.min_parties,
            max_examples_per_party,
            decay,
            rule,
            feature_names,
            min_examples,
            compares=fraction_evaluate > 0,
            mechanism=mechanism,
            federation=federation,
            purpose=purpose,
            identify=identify,
            secure_bound=secure_bound,
        )
        self._choosing: Choosing | None = None  # while the parties are asked
        self._handed_out: object = None  # the counts that were
        self._asked: list[str] = []  # in the current fit or evaluate round

    def __repr__(self) -> str:
        return (
            f"FlyNNStrategy(counted={len(self.parties)}, min_parties={self.min_parties}, "
            f"min_available_{self._members}={self._min_available})"
        )

    @property
    @abstractmethod
    def _min_available(self) -> int:
        """How many parties to wait for."""

    @property
    @abstractmethod
    def _min_evaluate(self) -> int:
        """How many parties are to try the model, at least."""

    @property
    def num_rounds(self) -> int:
        """Rounds that a run takes if all parties are there from the start."""
        return self._course.num_rounds

    # ---- what came of it

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier that the counts of all parties make.

        Raises
        ------
        AggregationError
            Fewer than `min_parties` are counted; the message tells who is missing and why.
        """
        return self._course.model

    def federation(self, run: str) -> Federation:
        """What a later run can start from, to add parties or to take them out; not for the parties' eyes.

        Parameters
        ----------
        run : str
            How to call this run in it.

        Raises
        ------
        AggregationError
            As for `model`.
        """
        return self._course.federation(run)

    @property
    def mechanism(self) -> Mechanism | None:
        """What parties make noisy counts by."""
        return self._course.terms.mechanism

    @property
    def secure_bound(self) -> int | None:
        """What no count in a secure sum exceeds; None where it is none."""
        return self._course.terms.bound

    @property
    def guarantee(self) -> str | None:
        """What the mechanism promises, in words; the model has it as `guarantee_`."""
        return self._course.guarantee

    @property
    def specs(self) -> tuple[HashSpec, ...]:
        """What the parties count by; raises an `AggregationError` while that waits for the sums of the columns."""
        return tuple(self._course.aggregator.terms.specs)

    @property
    def counts(self) -> ClassCounts:
        """The sum over the parties counted so far; of several specs that of the chosen one, the first until then."""
        return self._course.counts

    @property
    def parties(self) -> list[Party]:
        """The parties counted so far, with the number of their examples and the size of their reply."""
        return [] if self._course.is_summing else self._course.aggregator.parties

    @property
    def missing(self) -> dict[str, str]:
        """The parties that were asked and are not counted, with the reason."""
        return self._course.ledger.missing

    @property
    def choice(self) -> Choice | None:
        """What was chosen for the present counts, and how it compares.

        None until then, and where there is nothing to choose.
        """
        return self._course.choice

    @property
    def sums(self) -> ColumnMoments | None:
        """The summed columns that the specs are derived from. None until then, and where they are not needed."""
        return self._course.sums

    @property
    def sums_missing(self) -> dict[str, str]:
        """The parties that were asked for the sums of their columns and are not in them, with the reason."""
        return self._course.sums_missing

    @property
    def traffic(self) -> dict[str, Traffic]:
        """Bytes of the rounds so far: "sums", "counts", "choice" and "model", the evaluation."""
        return self._course.traffic

    def summary(self) -> None:
        """Log what is going to happen."""
        terms, plan = self._course.terms, self._course.plan
        evaluated = f"{self.fraction_evaluate:.0%} of the parties" if self.fraction_evaluate else "left out"
        if self.hand_out and not self.fraction_evaluate:
            evaluated += ", they only get the model"
        failures = "accepted" if self.accept_failures else "not accepted"
        hashes = hash_lines(terms) if plan is None else [f"  hash: from sums of the columns, scaling {plan.scaling}"]
        for line in (
            "FlyNN: one sum of class counts, by all parties",
            *hashes,
            f"  classes: {terms.n_classes}; counts: {terms.mode}; read-out: {self._course.rule}, "
            f"decay {self._course.decay}",
            f"  parties: waits for {self._min_available} (at most {self.wait_timeout} s), "
            f"needs {self.min_parties} counted; failures {failures}",
            f"  evaluation by the parties: {evaluated}; rounds: {self.num_rounds}",
            *self._promises(),
        ):
            log(INFO, line)

    def _promises(self) -> list[str]:
        if self.guarantee is None:
            return []
        uncovered = ["  NOT COVERED: the confusion matrices that parties send in the evaluation"]
        return [f"  privacy: {self.guarantee}", *(uncovered if self.fraction_evaluate else [])]

    # ---- the counting, or the sums of the columns

    def note_failure(self, cid: str, reason: str) -> None:
        """Note why a party is not counted, where the transport does not tell by a failed reply."""
        self._course.ledger.fail(cid, reason)

    def _left(self, present: Collection[str]) -> int:
        """How many counted parties are not there any more; nobody waits for them."""
        return sum(1 for party in self._course.ledger.parties if party.cid not in present)

    def _warn_of_few(self, n_there: int) -> None:
        log(
            WARNING,
            "FlyNN: waited %s s for %s parties; starting with the %s that are there",
            self.wait_timeout,
            self._min_available,
            n_there,
        )

    def _ask_to_count(self, present: Iterable[str], config: dict[str, Any]) -> Request:
        """Ask every party that is there and not counted yet. No tensors, as a party counts from nothing."""
        ledger = self._course.ledger
        self._asked = ledger.due(present)
        ledger.ask(self._asked)
        self._course.traffic_of(self._course.fit_step).ask(len(self._asked), [], config)
        return Request(self._asked, [], config)

    def _take_counts(
        self, replies: Sequence[Reply], failures: Failures, more: More | None
    ) -> tuple[list[bytes] | None, dict[str, Any]]:
        """Check replies and add up those that pass.

        Returns
        -------
        tensors : list of bytes or None
            All counts so far; None if this round added nobody, or was for the sums of the columns.
        metrics : dict
            Number of parties, examples (not of noisy counts) and bytes so far, and what `more` makes of the replies
            that passed.
        """
        course = self._course
        batch = course.ledger.check(replies)
        if course.is_summing:
            if self._settle(batch, failures, "sums of columns of "):
                self._derive_specs()
            return None, {}
        # What can raise comes before anything is changed.
        tensors = codec.write_tensors(codec.encode(*batch.total))
        theirs = more(batch.passed) if more is not None and batch.passed else {}
        if not self._settle(batch, failures) or not batch.accepted:
            return None, {}
        course.recount()
        self.evaluation, self.evaluation_missing, self.unkept = None, {}, {}
        parties = self.parties
        ours = {
            "parties": len(parties),
            **({} if self.counts.noise else {"examples": self.counts.n_examples}),
            "bytes": sum(party.bytes for party in parties),
        }
        return tensors, {**ours, **theirs}

    def _settle(self, batch: Batch[Any], failures: Failures, what: str = "") -> bool:
        """Commit a checked batch and note who is missing; or set it aside, if failures are not accepted."""
        ledger = self._course.ledger
        replied = {*batch.accepted, *batch.refused, *batch.repeated}
        failed = failures.reasons([cid for cid in self._asked if cid not in replied])
        for cid, reason in failed.items():
            ledger.fail(cid, reason)
        accepted = self.accept_failures or not (failures or failed or batch.refused)
        if accepted:
            ledger.commit(batch)
        else:
            ledger.discard(batch, "set aside with its round, because others failed")
        for reply in batch.passed:
            self._course.traffic_of(self._course.fit_step).reply(reply.tensors, reply.metrics)
        for level, line in round_lines(ledger, batch, what):
            log(level, line)
        if not self._course.is_summing:
            enough = "" if ledger.enough else f"; at least {self.min_parties} are needed"
            log(INFO, "FlyNN: %s parties %s%s", len(self.parties), ledger.done, enough)
        return accepted

    def _derive_specs(self) -> None:
        trouble = self._course.derive_specs()
        if trouble:
            log(WARNING, "FlyNN: THE COLUMNS ARE LEFT AS THEY ARE: %s", trouble)
        for line in hash_lines(self._course.terms):
            log(INFO, "FlyNN:%s", line.removeprefix(" "))

    # ---- the choice, and the evaluation

    def _ask_about_model(
        self,
        server_round: int,
        present: list[str],
        theirs: Callable[[], Mapping[str, Any]],
        sample: Callable[[int], list[str]],
    ) -> Request | None:
        """Ask for the choice, or hand the chosen model out: each once for all counts that enough parties are in.

        Parameters
        ----------
        server_round : int
        present : list of cid
        theirs : callable
            Gives the user's part of the config; called only if somebody is asked.
        sample : callable
            Draws so many of the parties that are there.
        """
        course, self._choosing, self._asked = self._course, None, []
        wanted = self.fraction_evaluate or self.hand_out
        if not wanted or course.is_summing or not course.aggregator.enough:
            return None
        if course.is_choice_due:
            return self._ask_for_choice(server_round, present, theirs)
        if self._handed_out is course.aggregator.total:
            return None
        model = self.model
        ours = {
            **course.model_terms.to_config(),
            "flynn-decay": float(model.decay_),
            "flynn-rule": model.rule,
            "flynn-temperature": float(model.temperature_),
        }
        if self.mechanism is not None:
            ours["flynn-releases"] = course.aggregator.n_releases
        if not self.fraction_evaluate:
            ours[TRY] = False
        config = merged(theirs(), server_round, ours)
        if 0 < self.fraction_evaluate < 1:
            size = max(int(len(present) * self.fraction_evaluate), self._min_evaluate)
            # Of those that are there now: FedAvg's sample would wait for parties that left after the fit.
            present = sample(min(size, len(present)))
        if present:
            self._handed_out = course.aggregator.total
        return self._request(present, [self.counts], config, "model")

    def _ask_for_choice(
        self, server_round: int, present: list[str], theirs: Callable[[], Mapping[str, Any]]
    ) -> Request | None:
        aggregator = self._course.aggregator
        cids = [cid for cid in present if aggregator.is_counted(cid)]
        if not cids:
            return None
        choosing = self._course.choosing()
        config = merged(theirs(), server_round, choosing.config())
        self._choosing = choosing
        self._course.ask(choosing)
        return self._request(cids, aggregator.total, config, "choice")

    def _request(self, cids: list[str], counts: Iterable[ClassCounts], config: dict[str, Any], what: str) -> Request:
        tensors = codec.write_tensors(codec.encode(*counts))
        self._asked = cids
        self._course.traffic_of(what).ask(len(cids), tensors, config)
        return Request(cids, tensors, config)

    def _take_answers(self, replies: Sequence[Reply], failures: Failures, more: More | None) -> dict[str, Any] | None:
        """Add up the confusion matrices, or make the choice.

        Returns
        -------
        dict or None
            The figures of `evaluation` that Flower's history can hold, and what `more` makes of the replies of parties
            with points. None without any, and after a choice.
        """
        aggregator = self._course.aggregator
        first = {reply.cid: reply for reply in reversed(replies)}
        missing = failures.reasons([cid for cid in self._asked if cid not in first])
        names = aggregator.names([*self._asked, *first])
        if self._choosing is not None:
            self._choose(self._choosing, replies, missing, names, bool(failures))
            return None
        matrices, refused = aggregator.check_evaluation(replies)
        if not self.fraction_evaluate:  # what nobody asked for is not looked at
            matrices = {}
        for cid in matrices:
            self._course.traffic_of("model").reply((), first[cid].metrics)
        missing |= refused
        what = "did not evaluate" if self.fraction_evaluate else "did not take the model"
        for cid, reason in missing.items():
            log(WARNING, "FlyNN: %s: %s: %s", names[cid], what, reason)
        self.unkept = {
            names[cid]: clean(reply.metrics[UNKEPT], 200) or "no reason given"
            for cid, reply in first.items()
            if UNKEPT in reply.metrics
        }
        for name, reason in self.unkept.items():
            log(WARNING, "FlyNN: %s: could not keep the model: %s", name, reason)
        usable = matrices and (self.accept_failures or not (failures or missing))
        figures = summary({names[cid]: matrix for cid, matrix in matrices.items()}) if usable else None
        self.evaluation = figures
        self.evaluation_missing = {names[cid]: reason for cid, reason in missing.items()}
        if figures is None:
            return None
        metrics = more([first[cid] for cid in matrices]) if more is not None else {}
        log(INFO, evaluation_line(figures))
        same = ("accuracy", "balanced_accuracy", "macro_f1", "accuracy_std", "examples")
        return {
            **{name: figures[name] for name in same},
            "worst_accuracy": figures["worst_party"]["accuracy"],
            "best_accuracy": figures["best_party"]["accuracy"],
            "worst_party": figures["worst_party"]["name"],
            **metrics,
        }

    def _choose(
        self,
        choosing: Choosing,
        replies: Sequence[Reply],
        missing: dict[str, str],
        names: dict[str, str],
        failures: bool,
    ) -> None:
        """Take what the parties that replied lead to, for the counts that they were asked about."""
        ballots, refused = choosing.check(replies)
        missing |= refused
        for cid, metrics in {reply.cid: reply.metrics for reply in reversed(replies)}.items():
            if cid in ballots:
                self._course.traffic_of("choice").reply((), metrics)
        absent = {party.cid: party.name for party in self.parties if party.cid not in ballots}
        reasons = {name: missing.get(cid, "not there to be asked") for cid, name in absent.items()}
        for name, reason in {**reasons, **{names[cid]: missing[cid] for cid in missing.keys() - absent.keys()}}.items():
            log(WARNING, "FlyNN: %s: no say in the choice: %s", name, reason)
        if not self.accept_failures and (failures or missing):
            ballots = {}
        self._choosing = None
        choice = self._course.choose(choosing, ballots, reasons)
        log(INFO, choice_line(choice, len(self.specs), self._course.aggregator.n_parties))
        log(INFO, "FlyNN: the next round hands the chosen model out; without one it ends here, without figures")


def merged(theirs: Mapping[str, Any], server_round: int, ours: Mapping[str, Any]) -> dict[str, Any]:
    """Our config entries beside the user's."""
    taken = sorted(str(key) for key in theirs if str(key).startswith(PREFIX))
    if taken:
        raise ConfigError(f"config of round {server_round}: keys with {PREFIX} are taken, got {', '.join(taken[:5])}")
    return {**theirs, **ours}
