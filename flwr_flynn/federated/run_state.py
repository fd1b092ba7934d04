"""The course of a run, without any transport in it: which step it is at, and what the steps before have led to.

The steps are those of `rounds`. A `Course` starts with the sums of the columns where the specs come of them, else with
the counting. Flower's strategies wire it to messages.

>>> from flwr_flynn import HashSpec
>>> spec = HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7)
>>> Course(spec, ["cat", "dog"], min_parties=2).num_rounds
2
>>> Course(spec, ["cat", "dog"], min_parties=2, decay=0.5).num_rounds
1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.federated.aggregator import Aggregator, Totals
from flwr_flynn.federated.codec import NOISY, PLAIN, SECURE
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.membership import PURPOSES, STARTS, Identify, Joining, Leaving, Standing, members, unknown
from flwr_flynn.federated.protocol import Label, SumsTerms, Terms
from flwr_flynn.federated.roster import Ledger
from flwr_flynn.federated.scaling_round import SumsRound, Traffic, foreseen, specs_from
from flwr_flynn.federated.secure_sum import SecureAggregator
from flwr_flynn.federated.selection_round import Choice, Choosing, Tables, is_choice_needed
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.column_moments import ColumnMoments
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import ModelMember, Readout
from flwr_flynn.model.scoring import given_readout
from flwr_flynn.privacy import Mechanism


class Course:
    """Where a run stands.

    Parameters
    ----------
    spec, classes, min_parties, max_examples_per_party, decay, rule, feature_names, min_examples
        As for `FlyNNStrategy`.
    compares : bool, default=True
        Whether parties are asked for their part of the choice; never about noisy counts.
    mechanism, federation, purpose, identify, secure_bound
        As for `FlyNNStrategy`.

    Attributes
    ----------
    terms : Terms
        Of the counting; before the sums of the columns are there, a guess at the number and sizes of its specs.
    plan : HashPlan or None
        What the specs are derived by, if the sums of the columns are needed for that.
    sums : ColumnMoments or None
    sums_missing : dict of name to reason
    choice : Choice or None
        For the present counts.
    traffic : dict of str to Traffic
    """

    def __init__(
        self,
        spec: HashSpec | Sequence[HashSpec] | HashPlan,
        classes: Sequence[Label],
        min_parties: int,
        max_examples_per_party: int | None = None,
        decay: float | str = "auto",
        rule: str = "balanced",
        feature_names: Sequence[str] | None = None,
        min_examples: int = 5,
        compares: bool = True,
        mechanism: Mechanism | None = None,
        federation: Federation | None = None,
        purpose: str = "train",
        identify: Identify = unknown,
        secure_bound: int | None = None,
    ) -> None:
        if purpose not in PURPOSES:
            raise ConfigError(f"purpose: expected one of {', '.join(PURPOSES)}, got {str(purpose)[:40]!r}")
        if (federation is None) != (purpose == "train"):
            what = "none" if purpose == "train" else "one"
            raise ConfigError(f"federation: expected {what} with purpose = {purpose}, got {type(federation).__name__}")
        given_readout(rule, decay)
        mode = SECURE if secure_bound is not None else PLAIN if mechanism is None else NOISY
        if mode != PLAIN and isinstance(spec, HashPlan) and spec.needs_sums:
            raise ConfigError(f"spec: scaling = {spec.scaling} sums up columns, which {mode} counts would not cover")
        specs: Any = foreseen(spec) if isinstance(spec, HashPlan) else spec
        self.terms = Terms(specs, classes, mode, feature_names, mechanism, secure_bound)
        if isinstance(spec, HashPlan) and self.terms.n_classes != spec.n_classes:
            raise ConfigError(f"classes: expected {spec.n_classes} as in the plan, got {self.terms.n_classes}")
        self.plan = spec if isinstance(spec, HashPlan) and spec.needs_sums else None
        self.decay, self.rule, self.compares = decay, rule, compares and mode == PLAIN
        self.sums: ColumnMoments | None = None
        self.sums_missing: dict[str, str] = {}
        self.choice: Choice | None = None
        self.traffic: dict[str, Traffic] = {}
        self._limits = min_parties, max_examples_per_party
        self._aggregator: Aggregator | None = None  # once the specs are known
        self._summing: SumsRound | None = None  # until then
        self._chosen_for: Totals | None = None
        self._model: FlyNNClassifier | None = None  # of the present counts and choice
        self._before, self._identify, self.purpose = federation, identify, purpose
        if federation is not None:
            if self.plan is not None or self.terms != federation.terms:
                raise ConfigError("spec, classes, mechanism: expected those of the federation, got others")
            if mode == SECURE and purpose != "evaluate":
                raise ConfigError(f"federation: made by a secure sum, which shows nobody's counts: no {purpose}")
            self._aggregator = STARTS[purpose](federation, *self._limits, identify)
            self.compares = self.compares and purpose != "evaluate"
        elif self.plan is None:
            self._aggregator = (SecureAggregator if mode == SECURE else Aggregator)(self.terms, *self._limits)
        else:
            wanted = SumsTerms(
                self.plan.n_features,
                self.terms.classes,
                self.plan.needs_classes,
                min_examples,
                self.terms.feature_names,
            )
            self._summing = SumsRound(wanted, max_examples_per_party)

    @property
    def num_rounds(self) -> int:
        """Rounds that a run takes if all parties are there from the start."""
        return 1 + (self.plan is not None) + self._chooses

    @property
    def _chooses(self) -> bool:
        return self.compares and is_choice_needed(len(self.terms.specs), self.rule, self.decay)

    # ---- the present step

    @property
    def is_summing(self) -> bool:
        """Whether the parties are to send the sums of their columns."""
        return self._summing is not None

    @property
    def ledger(self) -> Ledger[Any]:
        """Of the present step: who is asked for sums or counts, and who is in."""
        ledger: Ledger[Any] | None = self._aggregator or self._summing
        assert ledger is not None
        return ledger

    @property
    def aggregator(self) -> Aggregator:
        """The sums of the counts.

        Raises
        ------
        AggregationError
            There is no spec yet; the message tells who is missing and why.
        """
        if self._aggregator is None:
            missing = [f"{name} ({reason})" for name, reason in list(self.ledger.missing.items())[:20]]
            raise AggregationError(
                "no party was asked to count, the sums of the columns are not in; missing: "
                + (", ".join(missing) or "nobody was asked; too few parties were connected")
            )
        return self._aggregator

    def traffic_of(self, step: str) -> Traffic:
        """The bytes of "sums", "counts", "choice" or "model"."""
        return self.traffic.setdefault(step, Traffic())

    @property
    def fit_step(self) -> str:
        """How `traffic` calls what `ledger` is about."""
        return "sums" if self.is_summing else "counts"

    # ---- from step to step

    def derive_specs(self) -> str:
        """Go on to the counting, by the specs that the sums lead to; "", or why those are without scaling."""
        assert self._summing is not None
        assert self.plan is not None
        summing = self._summing
        specs, trouble = specs_from(self.plan, summing.total)
        terms = replace(self.terms, specs=specs)
        aggregator = Aggregator(terms, *self._limits)
        aggregator.introduce(summing)
        self.sums, self.sums_missing = summing.total, summing.missing
        self.terms, self._aggregator, self._summing = terms, aggregator, None
        return trouble

    def recount(self) -> None:
        """Note that parties were added: what was chosen for the counts before does not hold any more."""
        self.choice = self._model = None

    @property
    def is_choice_due(self) -> bool:
        """Whether the parties are still to be asked about the present counts."""
        return self._chooses and self._chosen_for is not self.aggregator.total

    def choosing(self) -> Choosing:
        """A choice for the present counts."""
        return Choosing(self.aggregator, self.rule, self.decay)

    def ask(self, choosing: Choosing) -> None:
        """Note that parties are asked for their part of it, which they are once for the same counts."""
        self._chosen_for = choosing.totals

    def choose(
        self, choosing: Choosing, ballots: Mapping[str, tuple[Tables, Tables]], missing: Mapping[str, str]
    ) -> Choice:
        """Take the choice that ballots lead to; see `Choosing.conclude`."""
        choice = choosing.conclude(ballots, missing)
        self.choice, self._model = replace(choice, cost=self._cost(choice.spec)), None
        return self.choice

    def _cost(self, chosen: int) -> dict[str, dict[str, int]]:
        """Bytes per party beyond the counts of the chosen spec, see `Choice`."""
        terms, aggregator = self.terms, self.aggregator
        requests = [sum(map(len, each.to_config().values())) for each in (terms, terms.only(chosen))]
        blocks = sum(size for place, size in enumerate(aggregator.block_bytes) if place != chosen)
        return {
            "sums": self.traffic.get("sums", Traffic()).per_party,
            "extra_specs": {"up": round(blocks / len(aggregator.parties)), "down": requests[0] - requests[1]},
            "choice": self.traffic_of("choice").per_party,
        }

    # ---- what came of it

    @property
    def place(self) -> int:
        """Of the chosen spec; the first until one is chosen."""
        return self.choice.spec if self.choice else 0

    @property
    def counts(self) -> ClassCounts:
        """The sum for the chosen spec."""
        return self.aggregator.total[self.place]

    @property
    def model_terms(self) -> Terms:
        """The terms with the chosen spec alone."""
        return self.aggregator.terms.only(self.place)

    def federation(self, run: str) -> Federation:
        """What the counts are, how they are read, and who is in them: all that a later run starts from.

        Raises an `AggregationError` if too few parties are in them.
        """
        model, aggregator = self.model, self.aggregator
        if isinstance(aggregator, Standing):
            return aggregator.federation(run)
        if isinstance(aggregator, Joining | Leaving):
            after = aggregator.federation(run)
            # The guarantee, too: a file that everybody had left has none.
            after = replace(after, decay=self.decay, rule=self.rule, guarantee=self.guarantee)
        else:
            added = members(aggregator, self.place, run, self._identify)
            after = Federation(
                self.model_terms, self.counts, added, self.decay, rule=self.rule, guarantee=self.guarantee
            )
        return replace(after, decay_=model.decay_, temperature_=model.temperature_)

    @property
    def guarantee(self) -> str | None:
        """What the run's mechanism promises, in words."""
        return None if self.terms.mechanism is None else self.terms.mechanism.guarantee()

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier of the chosen counts; raises an `AggregationError` if too few parties are in them."""
        self.aggregator.require_enough()
        if self._model is None and self.purpose == "evaluate" and self._before is not None:
            self._model = self._before.model
        if self._model is None:
            terms, choice = self.model_terms, self.choice
            model = FlyNNClassifier.from_counts(
                terms.spec,
                self.counts,
                list(terms.classes),
                decay=self.decay,
                rule=self.rule,
                feature_names=terms.feature_names,
                guarantee=self.guarantee,
            )
            if choice is not None:
                readout = Readout(choice.rule, choice.decay, choice.temperature or model.temperature_)
                chosen = replace(model.model_, members=(ModelMember(terms.spec, self.counts, readout),))
                model = FlyNNClassifier.from_model(chosen, decay=self.decay, temperature="auto")
            self._model = model
        return self._model
