"""The options of a run: one frozen value that both strategies take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from flwr_flynn._validation import boolean, integer, number, one_of
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.labels import Label
from flwr_flynn.federated.phase import Phase
from flwr_flynn.federated.phases.columns import foreseen
from flwr_flynn.federated.phases.secure import LEAST_PARTIES
from flwr_flynn.federated.roster import Identify, unknown
from flwr_flynn.federated.run_spec import Plain, RunSpec, Secure, mode_of
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.scoring import given_readout
from flwr_flynn.privacy import Mechanism

PURPOSES = ("train", "join", "withdraw", "evaluate", "resume")
"""A run makes a new federation, or starts from a saved one: to add parties, to take them out, only to hand it out, or
to go on where it stopped."""


class RunOptionsDict(TypedDict, total=False):
    """`RunOptions` as keywords of a strategy."""

    spec: HashSpec | Sequence[HashSpec] | HashPlan
    classes: Sequence[Label]
    min_parties: int
    max_examples_per_party: int | None
    decay: float | str
    rule: str
    feature_names: Sequence[str] | None
    min_examples: int
    mechanism: Mechanism | None
    federation: Federation | None
    purpose: str
    identify: Identify
    secure_bound: int | None
    fraction_evaluate: float | None
    hand_out: bool
    accept_failures: bool
    phases: Sequence[Phase] | None


@dataclass(frozen=True)
class RunOptions:
    """What the user of a strategy decides about a run.

    Parameters
    ----------
    spec : HashSpec, sequence of HashSpec, or HashPlan
        The hash that all parties use. Of several, all are counted in the one round, and the parties' leave-one-out
        selects. A plan leaves it to the run to derive one or several from the sums of the parties' columns.
    classes : sequence of str or of int
        The class labels, all different. A party with a label outside the list refuses.
    min_parties : int
        Parties that must be counted in the end.
    max_examples_per_party : int, optional
        Refuse counts of more samples; of more than a 1024th of the sum's capacity by default, so that no party leaves
        the sum without room for the others.
    decay : float or "auto", default="auto"
        The model's gamma, 0 <= gamma < 1; "auto" has it selected by leave-one-out at the parties, or, if
        `fraction_evaluate` is 0 or nobody replies, suggested by the summed counts.
    rule : str, default="balanced"
        The model's decision rule, see `FlyNNClassifier`.
    feature_names : sequence of str, optional
        Names of the columns, for the model.
    min_examples : int, default=5
        Sums of columns: a party leaves out classes of fewer samples, by the larger of this number and its own. With 1,
        sums may be a single sample.
    mechanism : Mechanism, optional
        One of `flwr_flynn.privacy`, for the spec's `hash_nnz` and as many classes: parties send noisy counts only, and
        only those whose own policy allows it. There is one spec then, nothing is learned of columns, and there is
        nothing to select.
    federation : Federation, optional
        A saved run to start from, with its `spec`, `classes`, `mechanism` and `feature_names`. `min_parties` is then
        the number of parties that must join or leave; in a run that goes on, its members count too.
    purpose : {"train", "join", "withdraw", "evaluate", "resume"}, default="train"
        "train" makes a new federation. The others start from a saved one: "join" adds parties that are not in it,
        "withdraw" takes out those that ask for it, by the very counts that they were added by, "evaluate" hands it
        out as it is, and "resume" goes on at the phase where a run stopped.
    identify : callable, optional
        Gives the SHA-256 of the public key of the SuperNode with a node id, in hexadecimal, or "" where it is not
        known. Members of a saved run are known again by it, by their node id, or by the name they give.
    secure_bound : int, optional
        Count by a secure sum, of which the server learns no more than the total: a power of two that no party's counts
        exceed. The workflow must be `secagg.workflow`, and the parties' ClientApp have `secagg.mod`. There is one spec
        then and nothing to select; a `mechanism` is a `GaussianCounts` with `n_honest`.
    fraction_evaluate : float, optional
        Share of the parties that get the model and try it on the samples they held out; 0 leaves that out, and the
        selection with it: the model is then of the first spec. In the selection all counted parties have a say. By
        default 1.0; with a mechanism 0.0, which does not cover the confusion matrices that parties would send.
    hand_out : bool, default=False
        Where `fraction_evaluate` is 0: whether all parties get the model nevertheless. They then send nothing about it
        but, if they could not keep it, why.
    accept_failures : bool, default=True
        Whether a phase goes on without parties that fail or refuse; else its answers are set aside.
    phases : sequence of Phase, optional
        A plan of your own instead of the one that follows from the other options.

    Raises
    ------
    ConfigError
        An option is not as described; the message names it.
    """

    spec: HashSpec | Sequence[HashSpec] | HashPlan
    classes: Sequence[Label]
    min_parties: int
    max_examples_per_party: int | None = None
    decay: float | str = "auto"
    rule: str = "balanced"
    feature_names: Sequence[str] | None = None
    min_examples: int = 5
    mechanism: Mechanism | None = None
    federation: Federation | None = None
    purpose: str = "train"
    identify: Identify = unknown
    secure_bound: int | None = None
    fraction_evaluate: float | None = None
    hand_out: bool = False
    accept_failures: bool = True
    phases: Sequence[Phase] | None = None
    run_spec: RunSpec = field(init=False)

    def __post_init__(self) -> None:
        integer("min_parties", self.min_parties)
        integer("min_examples", self.min_examples)
        if self.max_examples_per_party is not None:
            integer("max_examples_per_party", self.max_examples_per_party)
        if self.fraction_evaluate is None:
            object.__setattr__(self, "fraction_evaluate", 1.0 if self.mechanism is None else 0.0)
        number("fraction_evaluate", self.fraction_evaluate, 0, 1)
        boolean("hand_out", self.hand_out)
        boolean("accept_failures", self.accept_failures)
        one_of("purpose", self.purpose, PURPOSES)
        if (self.federation is None) != (self.purpose == "train"):
            what = "none" if self.purpose == "train" else "a Federation"
            raise ConfigError("federation", f"{what} with purpose = {self.purpose}", type(self.federation).__name__)
        given_readout(self.rule, self.decay)
        object.__setattr__(self, "run_spec", self._run_spec())

    def _run_spec(self) -> RunSpec:
        mode, spec = mode_of(self.mechanism, self.secure_bound), self.spec
        if not isinstance(mode, Plain) and self.plan is not None:
            raise ConfigError("spec", f"no scaling by sums of columns with {mode.name} counts", self.plan.scaling)
        specs: Any = foreseen(spec) if isinstance(spec, HashPlan) else spec
        run = RunSpec(specs, self.classes, mode, self.feature_names)
        if isinstance(spec, HashPlan) and run.n_classes != spec.n_classes:
            raise ConfigError("classes", f"{spec.n_classes} as in the plan", run.n_classes)
        if isinstance(mode, Secure):
            integer("min_parties", self.min_parties, least=LEAST_PARTIES)
        if self.federation is not None:
            if self.plan is not None or run != self.federation.run_spec:
                raise ConfigError("spec, classes, mechanism", "those of the federation", "different ones")
            if len(run.specs) > 1 and self.purpose != "resume":
                raise ConfigError("purpose", "resume for a run that stopped before its selection", self.purpose)
            if isinstance(mode, Secure) and self.purpose != "evaluate":
                raise ConfigError(
                    "purpose",
                    "evaluate for a federation made by a secure sum, which shows nobody's counts",
                    self.purpose,
                )
        return run

    @property
    def plan(self) -> HashPlan | None:
        """The plan of `spec`, if the specs follow from the sums of the columns."""
        return self.spec if isinstance(self.spec, HashPlan) and self.spec.needs_sums else None

    @property
    def is_evaluated(self) -> bool:
        """Whether parties try the model."""
        return bool(self.fraction_evaluate)
