"""The options of a run: one frozen value that both strategies take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

from flwr_flynn._validation import boolean, freeze, integer, listed, number, one_of
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.labels import Label, codebook
from flwr_flynn.federated.protocol import Entries
from flwr_flynn.federated.purposes import PURPOSES
from flwr_flynn.federated.roster import Identify, unknown
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.secure_bound import LEAST_PARTIES
from flwr_flynn.federated.subgroups import subgroup_names
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.basis import MOST_TERMS
from flwr_flynn.model.candidates import HashPlan, placeholder_specs
from flwr_flynn.model.forest import MOST_TREES
from flwr_flynn.model.metrics import N_LEVELS
from flwr_flynn.model.scoring import given_scoring
from flwr_flynn.privacy import Mechanism
from flwr_flynn.tables.schema import Schema

_MOST_SCORES = 2**24  # integers in the histograms of all subgroups


def conflicts(
    *, trees: int | None, is_thorough: bool, is_evaluated: bool, is_noisy: bool, is_secure: bool,
    learns_columns: bool, learns_schema: bool,
) -> Iterator[tuple[str, bool, str]]:  # fmt: skip
    """Decisions that exclude each other.

    They are the run setting, True where it conflicts, and the value that is expected.

    `trees` is their number, 0 for none, or None where the effort decides.
    Without `is_evaluated` parties do not evaluate a new model.
    """
    yield (
        "scaling",
        learns_columns and is_noisy,
        "none beside noisy counts (give center and scale, or ranges)",
    )
    yield "trees", bool(trees) and is_noisy, "0 with noisy counts"
    yield (
        "trees",
        bool(trees) and not is_evaluated,
        "0 where parties do not evaluate a new model",
    )
    has_trees = is_thorough and trees is None
    yield (
        "effort",
        has_trees and not (learns_columns and is_evaluated),
        "quick or default where no committee is tried",
    )
    is_open = learns_columns and not is_secure
    yield (
        "schema",
        learns_schema and not is_open,
        "a given one where columns are not learned of in clear",
    )


_OPTIONS = {"scaling": "spec", "effort": "spec", "schema": "learn_schema"}
"""Options that stand for settings of other names."""


def options_of(given: Entries) -> RunOptions:
    """Options by their names; a `ConfigError` about a name that is none, or is missing."""
    options = signature(RunOptions)
    try:
        options.bind(**given)
    except TypeError as error:
        raise ConfigError(
            "options of the strategy", ", ".join(options.parameters), str(error)
        ) from None
    return RunOptions(**given)


@dataclass(frozen=True)
class RunOptions:
    """Decisions of a strategy's user about a run.

    A wrong one is the field of a `ConfigError`.

    Parameters
    ----------
    spec : HashSpec, sequence of HashSpec, or HashPlan
        The hash of all parties. Several are all counted in the one round, and the
        parties' leave-one-out selects one. A plan can have the run derive specs from
        the histograms of the parties' columns.
    classes : sequence of str or of int
        The class labels, all different. A party with another label refuses.
    min_parties : int
        Parties that must be counted in the end, and must reply in each phase behind the
        counts: where fewer do, the model stays as it was before that phase.
    max_examples_per_party : int, optional
        Refuse counts of more samples; by default of more than a 1024th of the sum's
        capacity.
    decay : float or "auto", default="auto"
        The model's gamma, 0 <= gamma < 1. "auto" selects it by leave-one-out at the
        parties; if `fraction_evaluate` is 0 or nobody replies, the summed counts
        suggest it.
    rule : str, default="balanced"
        The model's decision rule, see `FlyNNClassifier`.
    feature_names : sequence of str, or Schema, optional
        Names of the columns, for the model; or the schema by which all parties make
        numbers of their columns.
    learn_schema : bool, default=False
        Derive the schema from summaries of the parties' columns, by one more exchange,
        see `phases.table_schema`; the `n_features` of the plan is then a placeholder.
        Only with a `HashPlan` of scaling "auto", for purpose "train", without
        `feature_names` and `secure_bound`.
    ignore, keep : sequence of str, default=()
        With `learn_schema`: columns that are not used, and columns that are used though
        their values nearly all differ as those of ids and notes do.
    mechanism : Mechanism, optional
        Of `flwr_flynn.privacy`, for the spec's `hash_nnz` and as many classes: parties
        send noisy counts only, within their own policies. There is one spec then,
        without histograms of columns, and no selection.
    federation : Federation, optional
        A saved run to start from, with its `spec`, `classes`, `mechanism`,
        `feature_names` and `class_weight`. `min_parties` is then the number of parties
        that must join or leave; with purpose "resume" its members count too.
    purpose : {"train", "join", "withdraw", "update", "evaluate", "resume"}, default="train"
        "train" makes a new federation. The others start from a saved one: "join" adds
        parties, "withdraw" takes out those that ask for it, "update" replaces the
        counts of parties whose samples have changed, "evaluate" distributes it, and
        "resume" goes on at the phase where a run stopped.
    identify : callable, optional
        Node id -> SHA-256 of its SuperNode's public key, in hexadecimal, or "". Members
        of a saved run are known again by it, by their node id, or by the secret that
        they send.
    secure_bound : int, optional
        Learn sums alone, by secure sums: a power of two that no party's counts exceed.
        The workflow must be `secagg.workflow`, and the parties' ClientApp have
        `secagg.mod`. A `mechanism` is a `GaussianCounts` with `n_honest`.
    fraction_evaluate : {0, 1}, optional
        1: all parties evaluate the model on held-out samples; 0 leaves out evaluation
        and selection. By default 1; with a mechanism 0, as it does not cover the
        parties' confusion matrices.
    distribute : bool, default=False
        With `fraction_evaluate` 0: hand the model to all parties nevertheless, which
        send no results.
    group_column : str, default=""
        Category among the columns of the run's schema, by whose levels the evaluation
        reports as well.
    event : str or int, optional
        The class whose probability, thresholds and curves are shown. Default: the rarer
        of two, see `event.event_of`.
    trees : int, optional
        Trees of the model, from 0 to 1000; 0: none. Only with exact counts, where
        parties evaluate the model. Default: by the `effort` of a `HashPlan`, 100 of
        effort "thorough".
    linear : int, default=512
        Terms of the linear part of the model, at most, see `model.basis`; 0: none. A
        saved run has those of its file.
    class_weight : "balanced", optional
        All classes are equally frequent for the model, as they always are with rule
        "novelty". Default: they are as frequent as among the counted samples.
    phases : sequence of Phase, optional
        A plan of your own instead of the one that follows from the other options.
    on_phase : callable, optional
        Called with the `Run` after each exchange, so that its state can be kept: once
        `run.is_specified`, ``run.federation("name").save(path)`` writes what purpose
        "resume" goes on from.
    """

    spec: HashSpec | Sequence[HashSpec] | HashPlan
    classes: Sequence[Label]
    min_parties: int
    max_examples_per_party: int | None = None
    decay: float | str = "auto"
    rule: str = "balanced"
    feature_names: Sequence[str] | Schema | None = None
    learn_schema: bool = False
    ignore: Sequence[str] = ()
    keep: Sequence[str] = ()
    mechanism: Mechanism | None = None
    federation: Federation | None = None
    purpose: str = "train"
    identify: Identify = unknown
    secure_bound: int | None = None
    fraction_evaluate: float | None = None
    distribute: bool = False
    group_column: str = ""
    event: Label | None = None
    trees: int | None = None
    linear: int = MOST_TERMS
    class_weight: str | None = None
    phases: Sequence[Any] | None = None
    on_phase: Callable[[Any], object] | None = None
    run_spec: RunSpec = field(init=False)

    def __post_init__(self) -> None:
        self._check_values()
        decisions = conflicts(
            trees=self.trees,
            is_thorough=self.plan is not None and self.plan.n_trees > 0,
            is_evaluated=self.purpose != "evaluate" and self.is_evaluated,
            is_noisy=self.mechanism is not None,
            is_secure=self.secure_bound is not None,
            learns_columns=self.plan is not None,
            learns_schema=self.learn_schema,
        )
        self._refuse(decisions)
        freeze(self, run_spec=self._run_spec())
        self._refuse(self._conflicts())

    def _refuse(self, decisions: Iterator[tuple[str, bool, str]]) -> None:
        for name, is_violated, expected in decisions:
            if is_violated:
                option = _OPTIONS.get(name, name)
                raise ConfigError(option, expected, getattr(self, option))

    def _check_values(self) -> None:
        """Check each option by itself, and those that stand for a saved run or a plan."""
        integer("min_parties", self.min_parties)
        if self.max_examples_per_party is not None:
            integer("max_examples_per_party", self.max_examples_per_party)
        if self.fraction_evaluate is None:
            usual = 0.0
            if self.mechanism is None:
                usual = 1.0
            freeze(self, fraction_evaluate=usual)
        if number("fraction_evaluate", self.fraction_evaluate) not in (0, 1):
            raise ConfigError(
                "fraction_evaluate",
                "1 or 0, all parties or none",
                self.fraction_evaluate,
            )
        integer("linear", self.linear, least=0, most=MOST_TERMS)
        for name in ("distribute", "learn_schema"):
            boolean(name, getattr(self, name))
        if self.trees is not None:
            integer("trees", self.trees, least=0, most=MOST_TREES)
        one_of("purpose", self.purpose, tuple(PURPOSES))
        given_scoring(self.rule, self.decay)
        expected = "a Federation"
        if self.purpose == "train":
            expected = "none"
        is_new = self.federation is None
        if is_new != (self.purpose == "train"):
            raise ConfigError(
                "federation",
                f"{expected} with purpose = {self.purpose}",
                type(self.federation).__name__,
            )
        if self.phases is not None:
            self._check_phases(self.phases)

    def _check_phases(self, phases: Sequence[Any]) -> None:
        """Refuse a plan of one's own without different names, or without a counting."""
        names = [phase.name for phase in phases]
        if len(set(names)) < len(names):
            raise ConfigError("phases", "different names", ", ".join(names))
        if self.federation is None and not any(phase.is_counting for phase in phases):
            raise ConfigError("phases", "one that counts", ", ".join(names) or "none")

    def _conflicts(self) -> Iterator[tuple[str, bool, str]]:
        """Further options that exclude each other, as in `conflicts`.

        These need the run's spec.
        """
        run = self.run_spec
        purpose = self.purpose
        expected = (
            f"none with purpose = {purpose}: the samples of noisy counts cannot be "
            "taken out of them"
        )
        is_wrong = PURPOSES[purpose].is_exact and run.mechanism is not None
        yield "mechanism", is_wrong, expected
        is_mirrored = run.mechanism is not None and run.mechanism.mirrored
        is_wrong = is_mirrored and self.rule != "balanced"
        yield "rule", is_wrong, "balanced with mirrored counts"
        is_wrong = self.sums_columns and not getattr(self.spec, "n_examples", 0)
        yield "spec", is_wrong, "a HashPlan with n_examples beside n_columns"
        groups = subgroup_names(self.feature_names, self.group_column)
        is_unknown = bool(self.group_column) and not self.learn_schema and not groups
        yield "group_column", is_unknown, "a category of the run's schema, or none"
        n_scores = 2 * self.run_spec.n_classes * N_LEVELS * len(groups)
        yield (
            "group_column",
            n_scores > _MOST_SCORES,
            "one of fewer levels, or none with so many classes",
        )
        if self.event is not None:
            is_unknown = codebook(run.classes).code(self.event) < 0
            yield "event", is_unknown, f"one of {listed([*map(str, run.classes)], 20)}"
        yield (
            "trees",
            bool(self.trees) and not self.has_trees,
            "0 without a linear part (scaling and decay auto, linear above 0)",
        )
        for name in ("ignore", "keep"):
            yield (
                name,
                bool(getattr(self, name)) and not self.learn_schema,
                "none where no schema is learned",
            )
        yield (
            "learn_schema",
            self.learn_schema and self.feature_names is not None,
            "False beside feature_names",
        )

    def _run_spec(self) -> RunSpec:
        spec = self.spec
        specs: Any = spec
        if isinstance(spec, HashPlan):
            specs = placeholder_specs(spec)
        weight = self.class_weight
        if self.rule == "novelty":
            weight = "balanced"
        run = RunSpec(
            specs,
            self.classes,
            self.mechanism,
            self.secure_bound,
            self.feature_names,
            weight,
        )
        if isinstance(spec, HashPlan) and run.n_classes != spec.n_classes:
            raise ConfigError(
                "classes", f"{spec.n_classes} as in the plan", run.n_classes
            )
        if run.is_secure and self.purpose != "evaluate":
            integer("min_parties", self.min_parties, least=LEAST_PARTIES)
        if self.federation is not None:
            self._check_federation(self.federation, run)
        return run

    def _check_federation(self, federation: Federation, run: RunSpec) -> None:
        """Refuse a saved run of other settings, or one that cannot serve the purpose."""
        if self.plan is not None or run != federation.run_spec:
            raise ConfigError(
                "spec, classes, mechanism, class_weight",
                "those of the federation",
                "different ones",
            )
        is_open = len(run.specs) > 1 and not federation.is_selected
        if is_open and self.purpose != "resume":
            raise ConfigError(
                "purpose",
                "resume for a run that stopped before its selection",
                self.purpose,
            )
        if run.is_secure and self.purpose != "evaluate":
            expected = (
                "evaluate for a federation made by a secure sum, which "
                "shows nobody's counts"
            )
            raise ConfigError("purpose", expected, self.purpose)

    @property
    def plan(self) -> HashPlan | None:
        """The plan of `spec`, if the specs follow from the histograms of the columns."""
        if isinstance(self.spec, HashPlan) and self.spec.needs_columns:
            return self.spec
        return None

    @property
    def is_specified(self) -> bool:
        """True if the specs are known before anything is learned of the columns."""
        return self.plan is None and not self.sums_columns

    @property
    def sums_columns(self) -> bool:
        """True if noisy sums of columns come before the counts."""
        mechanism = self.run_spec.mechanism
        if mechanism is None or self.purpose != "train":
            return False
        return mechanism.n_columns is not None

    @property
    def has_trees(self) -> bool:
        """True if the model gets trees."""
        makes_model = self.calibrates and self.purpose != "evaluate"
        return bool(self.n_trees) and makes_model and self.has_linear

    @property
    def n_trees(self) -> int:
        """Number of trees of the model, if it gets some."""
        if self.trees is not None:
            return self.trees
        if self.federation is not None:
            return self.federation.n_trees
        if self.plan is None:
            return 0
        return self.plan.n_trees

    @property
    def is_calibrated(self) -> bool:
        """True unless the effort of a plan or a saved run leaves out the calibration."""
        if self.federation is not None:
            return self.federation.is_calibrated
        return self.plan is None or self.plan.is_calibrated

    @property
    def calibrates(self) -> bool:
        """True if the parties' sums calibrate the model."""
        return self.is_calibrated and self.selects and self.decay == "auto"

    @property
    def has_linear(self) -> bool:
        """True if parties may send sums for a linear part of the model."""
        if self.federation is not None:
            return self.federation.basis is not None
        return bool(self.linear) and self.calibrates and self.plan is not None

    @property
    def selects(self) -> bool:
        """True if the parties' leave-one-out selects among candidates."""
        several = len(self.run_spec.specs) > 1 or self.decay == "auto"
        return self.is_evaluated and self.mechanism is None and several

    @property
    def has_members(self) -> bool:
        """True if a saved run selected the specs: all are members of the model."""
        return self.federation is not None and self.federation.is_selected

    @property
    def max_members(self) -> int:
        """Members of the model, at most."""
        if isinstance(self.spec, HashPlan):
            return self.spec.most_members
        if self.federation is None:
            return 1
        if self.federation.is_selected:
            return len(self.run_spec.specs)
        return self.federation.max_members

    def counted_specs(self, specs: Sequence[HashSpec]) -> tuple[HashSpec, ...]:
        """The specs to count: all candidates, or the first where nothing is selected."""
        if self.selects:
            return tuple(specs)
        return (specs[0],)

    def going_on(self, federation: Federation) -> RunOptions:
        """Options of the same run from the state in a federation."""
        run = federation.run_spec
        trees = 0
        if federation.basis is not None:
            trees = self.n_trees  # the effort is lost with the plan
        return replace(
            self,
            trees=trees,
            learn_schema=False,
            feature_names=run.feature_names,
            spec=run.specs,
            federation=federation,
            purpose="resume",
        )

    @property
    def sums_results(self) -> bool:
        """True if the results of the evaluation are learned in a secure sum."""
        return self.is_evaluated and self.run_spec.is_secure and self.purpose == "train"

    @property
    def is_evaluated(self) -> bool:
        """True if parties evaluate the model."""
        return bool(self.fraction_evaluate)
