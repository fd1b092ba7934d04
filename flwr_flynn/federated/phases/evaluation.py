"""Phase "evaluation": the model goes to the parties, which keep it and try it on samples they held out.

A party may keep it with its own class frequencies beside it, see `model.personal`. Its answer has a second confusion
matrix then, of its own copy on the same samples. Unlike the first, the sum of these depends on the split.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flwr_flynn._validation import number
from flwr_flynn.errors import ConfigError, DataError, PayloadError, SpecError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch, collect_each
from flwr_flynn.federated.compression import check_packed, pack_signed, unpack_signed
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.phase import SAMPLE, Context, Phase, RunState
from flwr_flynn.federated.protocol import (
    EVALUATE,
    NOTHING,
    REFUSED,
    RESULTS,
    UNKEPT,
    Answer,
    Config,
    Reply,
    Request,
    Scalar,
    key,
    register,
)
from flwr_flynn.federated.roster import Member, clean
from flwr_flynn.federated.run_spec import (
    Plain,
    RunSpec,
    Secure,
    announced_specs,
    check_fingerprints,
    deflated_specs,
)
from flwr_flynn.federated.statistics import Tables
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.candidates import suggest_decay
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.metrics import summary
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.pair_readout import LARGEST_BIAS, PairReadout, checked_pair_specs
from flwr_flynn.model.pair_readout import LARGEST_WEIGHT as PAIR_WEIGHT
from flwr_flynn.model.refinement import LARGEST_WEIGHT, Weights
from flwr_flynn.model.scoring import Readout, given_readout
from flwr_flynn.model.weight_search import Search

if TYPE_CHECKING:
    from flwr_flynn.federated.federation_file import Federation
    from flwr_flynn.federated.options import RunOptions

_WEIGHT_BYTES = 40  # that a weight takes at a party, with its gradient, while they are packed
_MAX_EXAMPLES = 2**48  # of a party; 32768 matrices of so many samples add up within int64


@register
@dataclass(frozen=True)
class EvaluationRequest(Request[Tables]):
    """Hand the model out, and ask for confusion matrices on held-out samples."""

    run: RunSpec  # with the specs of the model's members
    counts: tuple[ClassCounts, ...]  # of each member
    readouts: tuple[Readout, ...]
    weights: tuple[float, ...]
    n_releases: int = 0  # noises in the counts
    tries: bool = True  # else parties only keep the model
    refined: Weights | None = None
    pairs: PairReadout | None = None

    phase = "evaluation"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        return {
            **self.run.to_config(),
            key("readouts"): readouts_text(self.readouts, self.weights),
            key("n_releases"): self.n_releases,
            key("tries"): self.tries,
            key("is_refined"): self.refined is not None,
            **pairs_entries(self.run, self.pairs),
        }

    def arrays(self) -> list[codec.Array]:
        pairs = [] if self.pairs is None else [pack_signed(self.pairs.weights)]
        return codec.encode(*self.counts) + packed_weights(self.refined or ()) + pairs

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[codec.Array], party: Party) -> EvaluationRequest:
        run = RunSpec.from_config(config)
        tries = config.boolean("tries")
        party.check_run(run, config, cls.phase, RESULTS if tries else NOTHING)
        n_releases = config.integer("n_releases", 0, 2**31 - 1)
        refined = pairs = None
        if "pairs" in config:
            arrays, pairs = arrays[:-1], announced_pairs(config, run, arrays[-1:], party)
        if config.boolean("is_refined"):
            n_members = len(run.specs)
            check_room_for_weights(run, party)
            arrays, refined = arrays[:-n_members], unpacked_weights(run, arrays[-n_members:])
        if run.mechanism is None:
            counts = codec.decode_all(arrays, run.hashers, run.n_classes)
        else:
            counts = (codec.decode_total(arrays, run.hasher, run.mechanism, n_releases),)
        return cls(run, counts, *readouts_of(config, len(run.specs)), n_releases, tries, refined, pairs)

    @property
    def discloses(self) -> str:
        return RESULTS if self.tries else NOTHING

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier that is handed out."""
        members = tuple(map(ModelMember, self.run.specs, self.counts, self.readouts, self.weights))
        return classifier_of(self.run, members, self.refined, self.pairs)

    def compute(self, party: Party) -> Answer:
        model = self.model
        answer = self._tried(party, model) if self.tries else Answer()
        if reason := party.keep(self.run, model):
            answer.metrics[UNKEPT] = reason
        return answer

    def _tried(self, party: Party, model: FlyNNClassifier) -> Answer:
        try:
            matrices = party.confusion(self.run, model)
        except Exception as error:  # noqa: BLE001 - its text may hold anything; `Party.reason` tells the kind alone
            is_ours = isinstance(error, DataError | PayloadError) and error.field in ("X", "y", "n_features")
            told = DataError("X_test, y_test", text=f"X_test, y_test: {error}") if is_ours else error
            return Answer(metrics={REFUSED: party.reason("the evaluation", told)})
        if not matrices:
            return Answer()
        n_examples = int(matrices[0].sum())
        return Answer([*matrices], n_examples, {"accuracy": float(np.trace(matrices[0]) / n_examples)})

    def read(self, arrays: Sequence[codec.Array], reply: Reply, member: Member | None) -> Tables | None:
        announced = reply.announced
        if not self.tries or announced == 0:  # what nobody asked for is not looked at
            return None
        if announced > _MAX_EXAMPLES:
            raise PayloadError("confusion matrix", f"at most {_MAX_EXAMPLES} examples", announced)
        n = 2 if isinstance(self.run.mode, Plain) and len(arrays) == 2 else 1
        matrices = codec.tables(arrays, [(self.run.n_classes, self.run.n_classes)] * n)
        for matrix in matrices:
            if int(matrix.min()) < 0:
                raise PayloadError("confusion matrix", "no negative count", "at least one")
            # Python's integers, because counts near 2**63 would overflow an int64 sum.
            total = sum(matrix.ravel().tolist())
            if total != announced:
                raise PayloadError("confusion matrix", f"{announced} examples as announced", total)
        if not np.array_equal(matrices[0].sum(axis=1), matrices[-1].sum(axis=1)):
            raise PayloadError("confusion matrix", "the same samples of each class in both", "different ones")
        # A party without frequencies of its own has the shared model.
        return Tables((matrices[0], matrices[-1], np.full((1, 1), n - 1, np.int64)))


def readouts_text(readouts: Sequence[Readout], weights: Sequence[float]) -> str:
    """Readouts of members, with their temperatures, and the members' weights, as a server announces them."""
    pairs = zip(readouts, weights, strict=True)
    return json.dumps([[readout.rule, readout.decay, readout.temperature, weight] for readout, weight in pairs])


def readouts_of(config: Config, n_members: int) -> tuple[tuple[Readout, ...], tuple[float, ...]]:
    """The readouts and weights that a server announced."""
    lists = config.json("readouts", 200 * n_members)
    expected = f"{n_members} lists of rule, decay, temperature and weight"
    if not isinstance(lists, list) or len(lists) != n_members:
        raise PayloadError(key("readouts"), expected, len(lists) if isinstance(lists, list) else type(lists).__name__)
    if any(not isinstance(values, list) or len(values) != 4 or values[2] is None for values in lists):
        raise PayloadError(key("readouts"), expected, "other lists")
    try:
        readouts = tuple(Readout(*values[:3]) for values in lists)
        weights = tuple(number("weight", values[3], above=0, most=1) for values in lists)
    except ConfigError as error:
        text = f"{key('readouts')}: {error}"
        raise PayloadError(key("readouts"), error.expected, error.got, text=text) from None
    return readouts, weights


def pairs_entries(run: RunSpec, pairs: PairReadout | None) -> dict[str, Scalar]:
    """Config entries of scores from pair sums, without their weights; none without them."""
    if pairs is None:
        return {}
    figures = [pairs.bias.tolist(), *pairs.figures.values()]
    prints = " ".join(flynn_hash(spec).fingerprint for spec in pairs.specs)
    return {
        key("pairs"): json.dumps(figures),
        key("pair_specs"): deflated_specs(pairs.specs, run.specs),
        key("pair_fingerprints"): prints,
    }


def announced_pairs(config: Config, run: RunSpec, arrays: Sequence[codec.Array], party: Party) -> PairReadout:
    """Scores from pair sums in a message that may come from anybody, with their weights as the one array."""
    values = config.json("pairs", 80 * (run.n_classes + 1) + 200)
    expected = "biases, temperature, share, accuracy and leverages"
    if not isinstance(values, list) or len(values) != 5 or not isinstance(values[0], list):
        raise PayloadError(key("pairs"), expected, type(values).__name__)
    bias, temperature, share, accuracy, leverages = values
    if not all(type(each) is int and abs(each) <= LARGEST_BIAS for each in bias) or len(bias) != run.n_classes:
        raise PayloadError(key("pairs"), f"{run.n_classes} biases up to {LARGEST_BIAS}", f"{len(bias)}, or larger ones")
    try:
        specs = checked_pair_specs(announced_specs(config, "pair_specs", 2, run.specs))
        n_rows = sum(spec.hash_dim for spec in specs)
        needed = sum(memory_needed(spec, run.n_classes) for spec in specs) + 64 * n_rows * run.n_classes
        party.check_memory(needed, f"scores from pair sums of {n_rows} rows")
        check_fingerprints(config, "pair_fingerprints", [flynn_hash(spec) for spec in specs])
        check_packed(arrays, 1, "weights", "one packed array of pair sums")
        weights = unpack_signed(arrays[0], (n_rows, run.n_classes), PAIR_WEIGHT).astype(np.int32)
        if not isinstance(leverages, list) or any(
            type(each) not in (int, float) for each in (temperature, share, accuracy, *leverages)
        ):
            raise PayloadError(key("pairs"), expected, "other types")
        return PairReadout(specs, weights, np.array(bias, np.int64), temperature, share, accuracy, leverages)
    except (DataError, SpecError) as error:
        if isinstance(error, PayloadError):
            raise
        raise PayloadError(key("pairs"), error.expected, error.got) from None


@dataclass(frozen=True)
class Refined:
    """The result of a round of the refinement."""

    search: Search | None  # of the newest round alone
    missing: dict[str, str]  # reasons of parties without an answer, by name


def packed_weights(weights: Weights | Sequence[Any]) -> list[codec.Array]:
    """Weights as a message has them: one array for each member."""
    return [pack_signed(each) for each in weights]


def check_room_for_weights(run: RunSpec, party: Party) -> None:
    """Raise a `PayloadError` if weights for all members of a run are more than the party has memory for."""
    n_weights = run.n_classes * sum(spec.hash_dim for spec in run.specs)
    party.check_memory(_WEIGHT_BYTES * n_weights, f"{n_weights} weights")


def unpacked_weights(run: RunSpec, arrays: Sequence[codec.Array]) -> Weights:
    """The weights of a run's members in arrays that may come from anybody."""
    check_packed(arrays, len(run.specs), "weights", f"{len(run.specs)} packed arrays")
    pairs = zip(arrays, run.specs, strict=True)
    tables = [unpack_signed(array, (spec.hash_dim, run.n_classes), LARGEST_WEIGHT) for array, spec in pairs]
    return tuple(table.astype(np.int32) for table in tables)


@dataclass(frozen=True)
class Evaluation:
    """Results of one evaluation."""

    figures: dict[str, Any] | None  # see `metrics.summary`, with those of the parties' own models; None without any
    missing: dict[str, str]  # reasons of parties without an answer, by name
    unkept: dict[str, str]  # reasons of parties that could not keep the model, by name


Right = tuple[int, int, int]
"""Samples of a party: those that the model gets right, those that the party's own copy does, and all."""


def _right(tables: Tables) -> Right:
    shared, own, _ = tables.tables
    return int(np.trace(shared)), int(np.trace(own)), int(shared.sum())


def evaluated(total: Tables, parts: Mapping[str, Right], missing: dict[str, str], unkept: dict[str, str]) -> Evaluation:
    """Results from the sum of confusion matrices, and what is right at each party, by name."""
    if not parts:
        return Evaluation(None, missing, unkept)

    def figures(i: int) -> dict[str, Any]:
        return summary(total.tables[i], {name: (part[i], part[2]) for name, part in parts.items()})

    sent = int(total.tables[2].item())
    return Evaluation(figures(0) | {"personal": figures(1) | {"sent": sent} if sent else None}, missing, unkept)


def kept_specs(state: RunState, options: RunOptions) -> tuple[int, ...]:
    """Indices, among the run's specs, of the model's members; the first where nothing is selected, or not yet."""
    selection, n_specs = state.results.get("selection"), len(state.run_spec.specs)
    if selection is None:
        return tuple(range(n_specs)) if options.has_members else (0,)
    return tuple(selection.specs)


def members_of(state: RunState, options: RunOptions) -> tuple[ModelMember, ...]:
    """The members of the model that the results so far make."""
    selection, saved, totals = state.results.get("selection"), options.federation, state.results["counts"]
    indices = kept_specs(state, options)
    parts = [totals.parts[index] for index in indices]
    weights: Sequence[float] = (1.0,)
    readouts: Sequence[Readout]
    if selection is not None:
        readouts = selection.readouts
        weights = tuple(choice.weight for choice in selection.choices)
    elif saved is not None and totals is saved.totals and _is_chosen(saved, options):
        readouts, weights = [saved.readouts[index] for index in indices], saved.weights  # chosen for these very counts
    else:
        given = given_readout(options.rule, options.decay)
        readouts = [given or Readout(options.rule, suggest_decay(counts, options.rule)) for counts in parts]
        if saved is not None and saved.is_selected:
            weights = saved.weights
    specs = [state.run_spec.specs[index] for index in indices]
    if len(specs) == 1:
        weights = (1.0,)
    members = map(ModelMember, specs, parts, readouts, weights)
    return tuple(replace(member, readout=member.calibrated) for member in members)  # as the parties get it


def _is_chosen(saved: Federation, options: RunOptions) -> bool:
    return saved.is_selected or options.purpose == "evaluate" or saved.phase not in ("counts", "selection")


def searched(state: RunState) -> Search | None:
    """The search of the refinement, as far as it came; None without one."""
    searches = [result.search for result in state.results.values() if isinstance(result, Refined)]
    return next((search for search in reversed(searches) if search is not None), None)


def refined_of(state: RunState, options: RunOptions) -> Weights | None:
    """The weights of the model, if it is refined: in this run, or in the saved one whose counts it has."""
    search, saved = searched(state), options.federation
    if search is not None:
        return search.best
    return saved.refined if saved is not None and state.results["counts"] is saved.totals else None


def is_of_pairs(name: str) -> bool:
    """True for the names of the phases of pair sums."""
    return name in ("pairs", "pair trial")


def pairs_of(state: RunState, options: RunOptions) -> PairReadout | None:
    """Scores of the model from pair sums, if there are any: of this run, or of the saved one whose counts it has."""
    trial, saved = state.results.get("pair trial"), options.federation
    if trial is not None:
        found: PairReadout | None = trial.readout
        return found
    return saved.pairs if saved is not None and state.results["counts"] is saved.totals else None


def members_run(state: RunState, options: RunOptions) -> RunSpec:
    """The run with the specs of the model's members alone."""
    return state.run_spec.only(kept_specs(state, options))


def model_of(state: RunState, options: RunOptions) -> FlyNNClassifier:
    """The classifier that the results so far make."""
    run, members = members_run(state, options), members_of(state, options)
    return classifier_of(run, members, refined_of(state, options), pairs_of(state, options))


def classifier_of(
    run: RunSpec,
    members: tuple[ModelMember, ...],
    refined: Weights | None = None,
    pairs: PairReadout | None = None,
) -> FlyNNClassifier:
    """The classifier of members of the model, with the classes and the promise of a run."""
    names, is_aligned = run.feature_names, bool(run.n_aligned)
    model = Model(members, np.array(run.classes), names, run.guarantee, refined, aligned=is_aligned, pairs=pairs)
    return FlyNNClassifier.from_model(model)


def _request(state: RunState, context: Context) -> EvaluationRequest:
    members = members_of(state, context.options)
    run = members_run(state, context.options)
    counts = tuple(member.counts for member in members)
    readouts = tuple(member.readout for member in members)
    weights = tuple(member.weight for member in members)
    n_releases = sum(release.times for release in counts[0].noise)
    if isinstance(run.mode, Secure):
        n_releases = len(context.counted.members)  # each added a share of the noise
    refined, pairs = refined_of(state, context.options), pairs_of(state, context.options)
    return EvaluationRequest(run, counts, readouts, weights, n_releases, context.options.is_evaluated, refined, pairs)


def _start(state: RunState, context: Context) -> Tables:
    shape = (state.run_spec.n_classes,) * 2
    return Tables((np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros((1, 1), np.int64)))


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    unkept = {
        context.names[cid]: clean(reply.metrics[UNKEPT], 200) or "no reason given"
        for cid, reply in batch.replies.items()
        if UNKEPT in reply.metrics
    }
    parts = {context.names[cid]: part for cid, part in batch.parts.items()}
    return state.with_result("evaluation", evaluated(batch.total, parts, dict(context.missing), unkept))


EVALUATION = Phase(
    "evaluation", EVALUATE, _request, _start, _fold, collect=partial(collect_each, keep=_right), audience=SAMPLE
)
