"""Server logic that both strategies share: options, the run they drive, its results, and what is logged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from logging import WARNING
from typing import Any, ClassVar

from flwr.common.logger import log

from flwr_flynn._validation import integer, number
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.protocol import EVALUATE, TRAIN, Reply
from flwr_flynn.federated.roster import Failures, Member
from flwr_flynn.federated.run import Ask, Figures, Run
from flwr_flynn.flower.compat import untested
from flwr_flynn.flower.logging import log_lines, plan_lines, result_lines
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts


class BaseStrategy(ABC):
    """Both strategies without their messages."""

    _members: ClassVar[str]  # what Flower's API calls the parties, in the names of parameters

    def __init__(self, options: RunOptions, min_available: int, min_evaluate: int, wait_timeout: float) -> None:
        self._min_available = integer(f"min_available_{self._members}", min_available)
        self._min_evaluate = integer(f"min_evaluate_{self._members}", min_evaluate)
        self.wait_timeout = number("wait_timeout", wait_timeout, 0, 10**9)
        if options.min_parties > self._min_available:
            raise ConfigError(
                "min_parties", f"at most min_available_{self._members} = {self._min_available}", options.min_parties
            )
        self.run = Run(options)
        self._noted: dict[str, str] = {}  # reasons of parties that do not answer the present request, by cid
        self._told: dict[str, str] = {}  # reasons of missing parties that the log has, by name

    def __repr__(self) -> str:
        return (
            f"FlyNNStrategy(counted={len(self.run.counted)}, min_parties={self.run.options.min_parties}, "
            f"min_available_{self._members}={self._min_available})"
        )

    # ---- results

    @property
    def num_rounds(self) -> int:
        """Rounds of Flower that a run takes if all parties are there from the start."""
        return self.run.num_rounds

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier that the counts of all parties make."""
        return self.run.model

    @property
    def counts(self) -> ClassCounts:
        """The sum over the parties counted so far; of several specs that of the selected one, the first until then."""
        return self.run.counts

    @property
    def parties(self) -> list[Member]:
        """The parties counted so far, with the numbers of their samples and the size of their reply."""
        return self.run.counted.counted

    @property
    def missing(self) -> dict[str, str]:
        """Reasons why parties that were asked are not counted, by name."""
        return self.run.counted.missing

    @property
    def left_out(self) -> list[Member]:
        """Parties in groups that are left out of the sum, see the option `groups`."""
        return self.run.left_out

    @property
    def selection(self) -> Any:
        """Spec and scoring selected for the present counts; None until then, and where nothing is to be selected."""
        return self.run.state.results.get("selection")

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """`metrics.summary` of the parties' evaluation of the present counts; None until there is one."""
        result = self.run.state.results.get("evaluation")
        return None if result is None else result.figures

    @property
    def secure_bound(self) -> int | None:
        """Upper bound of every count in a secure sum; None where counts travel in clear."""
        return self.run.state.run_spec.bound

    @property
    def guarantee(self) -> str | None:
        """The promise of a private run, `privacy.Mechanism.guarantee`; None without a mechanism."""
        return self.run.state.run_spec.guarantee

    def federation(self, run: str) -> Federation:
        """The run as a file keeps it, for a later run to start from; not for the parties' eyes."""
        return self.run.federation(run)

    def note_failure(self, cid: str, reason: str) -> None:
        """Note why a party that is asked does not answer, where the transport does not tell by a failed reply."""
        self._noted.setdefault(cid, reason)

    def summary(self) -> None:
        """Log what is going to happen."""
        if warning := untested():
            log(WARNING, "FlyNN: %s", warning)
        log_lines(plan_lines(self.run, self._min_available, self.wait_timeout))

    # ---- exchanges

    def _left(self, present: Collection[str]) -> int:
        """Number of counted parties that are not there any more; nobody waits for them."""
        return sum(1 for member in self.parties if member.node not in present)

    @property
    def _is_waiting(self) -> bool:
        """True until enough parties are counted: later rounds ask those that are there, and wait for nobody."""
        return not (len(self.run.counted) and self.run.is_enough)

    def _warn_of_few(self, n_there: int) -> None:
        log(
            WARNING,
            "FlyNN: waited %g s for %s parties; starting with the %s that are there",
            self.wait_timeout,
            self._min_available,
            n_there,
        )

    def _ask(self, channel: str, present: Sequence[str], theirs: Callable[[], Mapping[str, Any]]) -> Ask | None:
        def sample(size: int) -> list[str]:
            return self._draw(min(max(size, self._min_evaluate), len(present)), present)

        return self.run.ask(channel, present, theirs, sample)

    @abstractmethod
    def _draw(self, size: int, present: Sequence[str]) -> list[str]:
        """So many of the parties that are there, drawn as Flower does."""

    def _take_train(
        self, replies: Sequence[Reply], failures: Failures, figures: Figures | None
    ) -> tuple[list[bytes] | None, dict[str, Any]]:
        phase, answered = self.run.phase(TRAIN), {reply.cid for reply in replies}
        noted = {cid: reason for cid, reason in self._noted.items() if cid not in answered}
        failures, self._noted = Failures(failures.named | noted, failures.unnamed), {}
        taken = self.run.complete(replies, failures, figures if phase is not None and phase.is_counting else None)
        if taken is None:
            return None, {}
        log_lines(result_lines(self.run, taken, self._told))
        if not taken.phase.is_counting or not taken.batch.passed:
            return None, {}
        parties, counts = self.parties, self.run.counts
        ours = {"parties": len(parties), "bytes": sum(party.bytes for party in parties)}
        ours |= {} if counts.noise else {"examples": counts.n_examples}
        return codec.write_tensors(codec.encode(*self.run.totals.parts)), {**ours, **taken.figures}

    def _take_evaluate(
        self, replies: Sequence[Reply], failures: Failures, figures: Figures | None
    ) -> dict[str, Any] | None:
        phase = self.run.phase(EVALUATE)
        wanted = figures if phase is not None and phase.name == "evaluation" else None
        taken = self.run.complete(replies, failures, wanted)
        if taken is None:
            return None
        log_lines(result_lines(self.run, taken, self._told))
        found = self.evaluation
        if taken.phase.name != "evaluation" or found is None:
            return None
        same = ("accuracy", "balanced_accuracy", "macro_f1", "accuracy_std", "examples")
        ours = {name: found[name] for name in same}
        ours |= {f"{which}_accuracy": found[f"{which}_party"]["accuracy"] for which in ("worst", "best")}
        ours["worst_party"] = found["worst_party"]["name"]
        if own := found["class_prior"]:
            ours |= {
                "class_prior_accuracy": own["accuracy"],
                "class_prior_worst_accuracy": own["worst_party"]["accuracy"],
            }
        return {**ours, **taken.figures}
