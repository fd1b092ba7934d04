"""A phase of a run, the state that phases lead to, and what a state makes.

It makes the model and the federation file.

A phase is a name, a request that follows from the state, with the rules by which the
answers are checked and added up (`tally`), and a fold that puts the total into the
state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from flwr_flynn._types import T
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import SiteSetting
from flwr_flynn.federated.protocol import EXACT, NOISY, SECURE, TRAIN
from flwr_flynn.federated.roster import Member, Roster
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.tally import Tally
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.calibration import Calibration
from flwr_flynn.model.candidates import suggest_decay
from flwr_flynn.model.forest import LEVELS
from flwr_flynn.model.gram import NO_SAMPLES, GramMatrix, GramScoring
from flwr_flynn.model.growth import REFITS, Growth
from flwr_flynn.model.model import CalibratedForest, Model, ModelMember
from flwr_flynn.model.prior import counted_prior
from flwr_flynn.model.scoring import ScoringRule, given_scoring
from flwr_flynn.model.selection import Selection


@dataclass(frozen=True)
class RunState:
    """Results of the phases of a run so far, and parties without an answer.

    Both are by the names of the phases.
    """

    run_spec: RunSpec
    results: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Reasons, by the names of the parties."""
    members: Sequence[Member] | None = None
    """Parties whose counts this run added up; None before."""
    is_specified: bool = True
    """False until the specs of the run are known: nothing of it can be kept before."""

    def result_of(self, kind: type[T]) -> T | None:
        """The last result of a type; None without."""
        results = [*self.results.values()][::-1]
        return next((result for result in results if isinstance(result, kind)), None)

    def with_result(self, name: str, result: object) -> RunState:
        """The state with the result of a phase."""
        return replace(self, results={**self.results, name: result})

    def without(self, names: Iterable[str]) -> RunState:
        """The state without the results of some phases."""
        gone = set(names)
        return replace(
            self,
            results={
                name: result
                for name, result in self.results.items()
                if name not in gone
            },
        )


@dataclass(frozen=True)
class Context:
    """Facts besides the state that a request or a fold may use."""

    options: RunOptions
    counted: Roster
    """Roster of the counts."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """In a fold: reasons of parties without an answer, by name."""
    names: Mapping[str, str] = field(default_factory=dict)
    """In a fold: names of parties in reports, by cid."""
    request: Any = None
    """In a fold: the request that was answered."""

    def unanswered_by(self, passed: Iterable[str]) -> dict[str, str]:
        """In a fold: reasons of counted parties without an answer, by name.

        `passed` are the cids of the parties with an answer.
        """
        answered = {self.counted.member(cid) for cid in passed}
        silent = [member for member in self.counted.members if member not in answered]
        absent = {
            self.names.get(member.node, str(member)): "not there to be asked"
            for member in silent
        }
        return absent | dict(self.missing)


ALL = "all"
NEW = "new"
COUNTED = "counted"
PRESENT = "present"
"""Audiences: parties that this phase has no answer of; those of them that are not in
the saved federation; parties whose counts are in the sum; parties that are there."""


class Description(NamedTuple):
    """The result of a phase in words."""

    text: str = ""
    """Outcome in less than a line; "" where the answers alone are told."""
    warnings: Sequence[str] = ()
    details: Sequence[str] = ()


class Section(NamedTuple):
    """A phase in the report of a run."""

    entries: Mapping[str, object]
    """Entries of metrics.json."""
    facts: Mapping[str, str] = MappingProxyType({})
    """Texts by their names, for the log and the page."""


class Scale(NamedTuple):
    """Sizes of a run that are not among its options."""

    n_parties: int
    min_examples: int = 1
    """The lowest floor of a party, as far as it is known."""
    n_values: int | None = None
    """Values of a column, at most, where few are known."""


class Needs(NamedTuple):
    """Bytes that a phase needs at the server, and at a party beside its samples, by their
    use.
    """

    server: Mapping[str, float]
    party: Mapping[str, float]


def _figures_of_counts(options: RunOptions) -> str:
    """Kind of disclosure of a phase in clear: by default that of the counts."""
    if options.run_spec.mechanism is None:
        return EXACT
    return NOISY


@dataclass(frozen=True)
class Phase:
    """One step of a run.

    ``tests/own_phase_app`` is a Flower app with a histogram as a phase of its own.

    Parameters
    ----------
    name : str
        Key of its result in the state.
    channel : {"train", "evaluate"}
    tally : callable
        (state, context) -> Tally, with the request.
    fold : callable
        (state, batch, context) -> state with the phase's result.
    is_counting : bool, default=False
        True for the counting, which goes on in the next round until enough parties are
        counted.
    audience : {"all", "new", "counted", "present"}, default="all"
    resumes_at : tuple of str, default=()
        Earlier phases behind the counting, with results that this one needs and that no
        file keeps. A run
        that stopped before this phase was done begins anew at the first of them that
        its plan has.
    content : str, default=""
        That of a party's answer in words, for the dry run.
    applies : callable, default=always
        Options of a run -> True where its plan has the phase.
    is_idle : callable, default=never
        (state, options) -> True where the phase has nothing to do, and is left out.
    follows : str, default=""
        An earlier phase: only parties that answered there are asked.
    describe : callable, default=nothing
        (state, options) -> Description of the result, for the log.
    report : callable, default=nothing
        (state, options) -> Section of the report, for phases that a run leaves out, too.
    announce : callable, default=nothing
        Options -> lines about the phase, for the log before the run.
    discloses : callable, default=EXACT or NOISY
        Options -> kind of disclosure of an answer in clear.
    asks : callable, default=nothing
        Options -> settings of a site that the phase looks at, as `SiteSetting`.
    memory : callable, default=nothing
        (options, `Scale`) -> `Needs`.
    """

    name: str
    channel: str
    tally: Callable[[RunState, Context], Tally[Any]]
    fold: Callable[[RunState, Batch[Any], Context], RunState]
    is_counting: bool = False
    audience: str = ALL
    resumes_at: tuple[str, ...] = ()
    content: str = ""
    applies: Callable[[RunOptions], bool] = lambda _options: True
    is_idle: Callable[[RunState, RunOptions], bool] = lambda _state, _options: False
    follows: str = ""
    describe: Callable[[RunState, RunOptions], Description] = lambda *_: Description()
    report: Callable[[RunState, RunOptions], Section] = lambda *_: Section({})
    announce: Callable[[RunOptions], Sequence[str]] = lambda _options: ()
    discloses: Callable[[RunOptions], str] = _figures_of_counts
    asks: Callable[[RunOptions], Sequence[SiteSetting]] = lambda _options: ()
    memory: Callable[[RunOptions, Scale], Needs] = lambda _options, _: Needs({}, {})

    @property
    def makes_model(self) -> bool:
        """False where the model stands, whatever comes of the phase."""
        return self.audience != PRESENT

    def described(self, state: RunState, options: RunOptions) -> Description:
        """The result in words; nothing without one."""
        if self.name not in state.results:
            return Description()
        return self.describe(state, options)

    def kind(self, options: RunOptions) -> str:
        """Kind of disclosure of an answer, see `protocol`."""
        if options.run_spec.is_secure and self.channel == TRAIN:
            return SECURE
        return self.discloses(options)

    def resumed_at(self, names: Collection[str]) -> str:
        """Name of the phase at which a run that lacks this one begins anew.

        `names` are those of its plan.
        """
        return next((name for name in self.resumes_at if name in names), self.name)


# -------- the model of a state


def member_indices(state: RunState, options: RunOptions) -> tuple[int, ...]:
    """Indices, among the run's specs, of the model's members.

    It is the first where nothing is selected, or not yet.
    """
    selection = state.result_of(Selection)
    if selection is not None:
        return tuple(selection.specs)
    if options.has_members:
        return tuple(range(len(state.run_spec.specs)))
    return (0,)


def members_of(state: RunState, options: RunOptions) -> tuple[ModelMember, ...]:
    """The members of the model that the results so far make."""
    selection = state.result_of(Selection)
    saved = options.federation
    totals = state.results["counts"]
    indices = member_indices(state, options)
    parts = [totals.parts[index] for index in indices]
    is_chosen = saved is not None and (
        saved.is_selected or options.purpose == "evaluate"
    )
    weights: Sequence[float] = (1.0,)
    scorings: Sequence[ScoringRule]
    if selection is not None:
        scorings = selection.scorings
        weights = tuple(choice.weight for choice in selection.choices)
    elif saved is not None and totals is saved.totals and is_chosen:
        # The saved run chose them for these very counts.
        chosen = [saved.shared.members[index] for index in indices]
        scorings = [member.scoring for member in chosen]
        weights = [member.weight for member in chosen]
    else:
        given = given_scoring(options.rule, options.decay)
        scorings = [
            given or ScoringRule(options.rule, suggest_decay(counts, options.rule))
            for counts in parts
        ]
        if saved is not None and saved.is_selected:
            weights = [member.weight for member in saved.shared.members]
    specs = [state.run_spec.specs[index] for index in indices]
    if len(specs) == 1:
        weights = (1.0,)
    members = map(ModelMember, specs, parts, scorings, weights)
    # Parties get scorings with the temperature.
    return tuple(
        replace(member, scoring=replace(member.scoring, temperature=member.temperature))
        for member in members
    )


def basis_of(state: RunState, options: RunOptions) -> Basis | None:
    """Basis of the linear part, if parties may send sums for one.

    It follows from the columns of this run, or is that of the saved one.
    """
    columns = state.results.get("columns")
    if columns is not None:
        return cast("Basis | None", columns.basis)
    if options.federation is not None:
        return options.federation.basis
    return None


def senders_of_linear(members: Sequence[Member]) -> list[Member]:
    """Members whose products are in the sums of the linear part, as far as is known.

    Those without samples have none to send.
    """
    return [
        member
        for member in members
        if not member.sha256 or member.sha256[-1] != NO_SAMPLES or member.examples == 0
    ]


def linear_sums(state: RunState, options: RunOptions) -> GramMatrix | None:
    """Sums of the linear part, if scores follow from them and enough parties sent some.

    These are `min_parties`, of this run and of the saved one, with half of the counted
    samples.
    """
    counts = state.results["counts"]
    linear: GramMatrix | None = counts.linear
    if linear is None or why_no_linear(state, options):
        return None
    return linear


def why_no_linear(state: RunState, options: RunOptions) -> str:
    """A reason why there are no scores of a linear part, or ""."""
    counts = state.results["counts"]
    n_parties = len(senders_of_linear(counted_members(state, options)))
    if n_parties < min_senders(options):
        return f"sums of {n_parties} of at least {min_senders(options)} parties"
    if 2 * counts.linear.n_examples < counts.parts[0].n_per_class.sum():
        return "sums of fewer than half of the samples"
    if counts.linear.scoring is None:
        return "no scores follow from the sums"
    return ""


def min_senders(options: RunOptions) -> int:
    """Parties whose sums a linear part needs."""
    if options.federation is None:
        return options.min_parties
    return max(options.min_parties, options.federation.min_parties)


def is_changed(options: RunOptions) -> bool:
    """True if parties joined a saved sum, left it or updated it, now or before."""
    saved = options.federation
    if saved is None:
        return False
    return saved.is_changed or options.purpose not in ("evaluate", "resume")


def counted_members(state: RunState, options: RunOptions) -> Sequence[Member]:
    """Parties whose counts are in the sum, of this run or of the saved one."""
    members = state.members
    if members is None and options.federation is not None:
        members = options.federation.members
    return members or ()


def linear_of(state: RunState, options: RunOptions) -> GramScoring | None:
    """Scores of the linear part, where the calibration gives it a share."""
    calibration = calibration_of(state, options)
    if calibration is None or not calibration.share:
        return None
    saved = options.federation
    is_saved = saved is not None and state.results["counts"] is saved.totals
    if saved is not None and is_saved and calibration is saved.shared.calibration:
        return saved.shared.linear
    linear = linear_sums(state, options)
    if linear is None:
        return None
    return linear.scoring


TREES = tuple(f"trees {level}" for level in range(1, LEVELS + REFITS + 1))
"""Names of the phases in which a forest grows."""


def growth_of(state: RunState, options: RunOptions) -> Growth | None:
    """The forest so far: of this run, or of the saved one that this one goes on with."""
    growth = state.result_of(Growth)
    if growth is not None:
        return growth
    if options.federation is not None and options.purpose == "resume":
        return options.federation.growth
    return None


def forest_of(state: RunState, options: RunOptions) -> CalibratedForest | None:
    """Forest of the model, where its calibration gives it a share.

    It is that of this run, or of the saved one whose counts it has.
    """
    result = state.results.get("forest")
    saved = options.federation
    if result is None:
        if saved is None or state.results["counts"] is not saved.totals:
            return None
        return saved.shared.forest
    growth = growth_of(state, options)
    calibration = result.calibration
    if growth is None or growth.best is None or calibration is None:
        return None
    if not calibration.share:
        return None
    return CalibratedForest(growth.best, calibration)


def calibration_of(state: RunState, options: RunOptions) -> Calibration | None:
    """Calibration of the model, if there is one.

    It is that of this run, or of the saved one where too few answered, or were asked.
    """
    result = state.results.get("calibration")
    if result is not None and result.calibration is not None:
        return cast("Calibration", result.calibration)
    if options.federation is None:
        return None
    saved = options.federation.shared
    calibration = saved.calibration
    if calibration is None:
        return None
    is_changed = state.results["counts"] is not options.federation.totals
    if is_changed and calibration.share and linear_sums(state, options) is None:
        calibration = replace(calibration.without_levels, share=0.0)
    scorings = [member.scoring for member in saved.members]
    if scorings == [member.scoring for member in members_of(state, options)]:
        return calibration
    # The temperature was that of other scorings; intercepts stay.
    return replace(calibration.without_levels, temperature=1.0)


def run_of_members(state: RunState, options: RunOptions) -> RunSpec:
    """The run with the specs of the model's members alone."""
    return state.run_spec.only(member_indices(state, options))


def model_of(state: RunState, options: RunOptions) -> Model:
    """The model that the results so far make."""
    run = run_of_members(state, options)
    members = members_of(state, options)
    return model_of_members(run, members, **_parts_of(state, options))


def _parts_of(state: RunState, options: RunOptions) -> dict[str, Any]:
    """Parts of the model beside its members."""
    return {
        "calibration": calibration_of(state, options),
        "linear": linear_of(state, options),
        "forest": forest_of(state, options),
    }


def model_of_members(
    run: RunSpec,
    members: Sequence[ModelMember],
    calibration: Calibration | None = None,
    linear: GramScoring | None = None,
    forest: CalibratedForest | None = None,
) -> Model:
    """The model of some members, with the facts of a run.

    They are the classes, the names, the privacy guarantee and the class weight.
    """
    return Model(
        tuple(members),
        np.array(run.classes),
        run.feature_names,
        run.guarantee,
        counted_prior(members[0].counts, run.class_weight),
        calibration,
        linear,
        forest,
    )


def federation_of(
    state: RunState, options: RunOptions, members: Sequence[Member], phase: str
) -> Federation:
    """The state of a run as a file, at the phase where a later run goes on; after the
    selection of its specs alone.
    """
    run = state.run_spec
    chosen = members_of(state, options)
    selection = state.result_of(Selection)
    is_selected = phase == "" or selection is not None or options.has_members
    most_members = 1
    if is_selected:
        indices = member_indices(state, options)
        n_specs = len(run.specs)
        run = run.only(indices)
        members = [_only(member, n_specs, indices) for member in members]
    else:
        most_members = options.max_members
        totals = state.results["counts"]
        scoring = chosen[0].scoring
        chosen = tuple(
            ModelMember(spec, counts, scoring)
            for spec, counts in zip(run.specs, totals.parts, strict=True)
        )
    model = model_of_members(run, chosen, **_parts_of(state, options))
    growth = None
    if phase:
        growth = growth_of(state, options)
    return Federation(
        run,
        model,
        members,
        phase,
        most_members,
        is_selected,
        options.n_trees,
        options.is_calibrated,
        state.results["counts"].linear,
        min_senders(options),
        growth,
        is_changed(options),
    )


def _only(member: Member, n_specs: int, indices: Sequence[int]) -> Member:
    """A member with the SHA-256 of the counts for some of the specs, and of the sums of
    a linear part.
    """
    if not member.sha256:
        return member
    digests = [member.sha256[index] for index in indices]
    return replace(member, sha256=(*digests, *member.sha256[n_specs:]))
