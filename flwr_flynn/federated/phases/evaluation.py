"""Phase "evaluation": the model goes to the parties, which keep it and try it on samples they held out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flwr_flynn._validation import number
from flwr_flynn.errors import ConfigError, DataError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch, collect_each
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
from flwr_flynn.federated.run_spec import RunSpec, Secure
from flwr_flynn.federated.statistics import Tables
from flwr_flynn.model.candidates import suggest_decay
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.metrics import summary
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.scoring import Readout, given_readout, suggest_temperature

if TYPE_CHECKING:
    from flwr_flynn.federated.federation_file import Federation
    from flwr_flynn.federated.options import RunOptions

_MAX_EXAMPLES = 2**48  # of a party; 32768 matrices of so many samples add up within int64


@register
@dataclass(frozen=True)
class EvaluationRequest(Request[Tables]):
    """Hand the model out, and ask for its confusion matrix on held-out samples."""

    run: RunSpec  # with the specs of the model's members
    counts: tuple[ClassCounts, ...]  # of each member
    readouts: tuple[Readout, ...]
    weights: tuple[float, ...]
    n_releases: int = 0  # noises in the counts
    tries: bool = True  # else parties only keep the model

    phase = "evaluation"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        return {
            **self.run.to_config(),
            key("readouts"): json.dumps(
                [
                    [readout.rule, readout.decay, readout.temperature, weight]
                    for readout, weight in zip(self.readouts, self.weights, strict=True)
                ]
            ),
            key("n_releases"): self.n_releases,
            key("tries"): self.tries,
        }

    def arrays(self) -> list[codec.Array]:
        return codec.encode(*self.counts)

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[codec.Array], party: Party) -> EvaluationRequest:
        run = RunSpec.from_config(config)
        tries = config.boolean("tries")
        party.check_run(run, config, cls.phase, RESULTS if tries else NOTHING)
        n_releases = config.integer("n_releases", 0, 2**31 - 1)
        if run.mechanism is None:
            counts = codec.decode_all(arrays, run.hashers, run.n_classes)
        else:
            counts = (codec.decode_total(arrays, run.hasher, run.mechanism, n_releases),)
        return cls(run, counts, *_readouts(config, len(run.specs)), n_releases, tries)

    @property
    def discloses(self) -> str:
        return RESULTS if self.tries else NOTHING

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier that is handed out."""
        return classifier_of(self.run, self.counts, self.readouts, self.weights)

    def compute(self, party: Party) -> Answer:
        model = self.model
        answer = self._tried(party, model) if self.tries else Answer()
        if reason := party.keep(model):
            answer.metrics[UNKEPT] = reason
        return answer

    def _tried(self, party: Party, model: FlyNNClassifier) -> Answer:
        try:
            matrix = party.confusion(self.run, model)
        except Exception as error:  # noqa: BLE001 - its text may hold anything; `Party.reason` tells the kind alone
            is_ours = isinstance(error, DataError | PayloadError)
            told = DataError("X_test, y_test", text=f"X_test, y_test: {error}") if is_ours else error
            return Answer(metrics={REFUSED: party.reason("the evaluation", told)})
        if matrix is None:
            return Answer()
        n_examples = int(matrix.sum())
        return Answer([matrix], n_examples, {"accuracy": float(np.trace(matrix) / n_examples)})

    def read(self, arrays: Sequence[codec.Array], reply: Reply, member: Member | None) -> Tables | None:
        announced = reply.announced
        if not self.tries or announced == 0:  # what nobody asked for is not looked at
            return None
        if announced > _MAX_EXAMPLES:
            raise PayloadError("confusion matrix", f"at most {_MAX_EXAMPLES} examples", announced)
        (matrix,) = codec.tables(arrays, [(self.run.n_classes, self.run.n_classes)])
        if int(matrix.min()) < 0:
            raise PayloadError("confusion matrix", "no negative count", "at least one")
        # Python's integers, because counts near 2**63 would overflow an int64 sum.
        total = sum(matrix.ravel().tolist())
        if total != announced:
            raise PayloadError("confusion matrix", f"{announced} examples as announced", total)
        return Tables((matrix,))


def _readouts(config: Config, n_members: int) -> tuple[tuple[Readout, ...], tuple[float, ...]]:
    """The readouts that a server announced, with their temperatures, and the weights of the members."""
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


@dataclass(frozen=True)
class Evaluation:
    """Results of one evaluation."""

    figures: dict[str, Any] | None  # see `metrics.summary`; None without any matrix
    missing: dict[str, str]  # reasons of parties without an answer, by name
    unkept: dict[str, str]  # reasons of parties that could not keep the model, by name


def evaluated(parts: Mapping[str, Tables], missing: dict[str, str], unkept: dict[str, str]) -> Evaluation:
    """Results from confusion matrices, by the names of the parties."""
    matrices = {name: part.tables[0] for name, part in parts.items()}
    return Evaluation(summary(matrices) if matrices else None, missing, unkept)


def kept_specs(state: RunState) -> tuple[int, ...]:
    """Indices, among the run's specs, of the model's members; the first where nothing is selected, or not yet."""
    selection, n_specs = state.results.get("selection"), len(state.run_spec.specs)
    if selection is None:
        return tuple(range(n_specs)) if state.is_selected else (0,)
    return tuple(selection.specs)


def members_of(state: RunState, options: RunOptions) -> tuple[ModelMember, ...]:
    """The members of the model that the results so far make."""
    selection, saved, totals = state.results.get("selection"), options.federation, state.results["counts"]
    indices = kept_specs(state)
    parts = [totals.parts[index] for index in indices]
    weights: Sequence[float] = (1.0,)
    if selection is not None:
        readouts = [
            each if each.temperature else replace(each, temperature=suggest_temperature(counts, each.rule))
            for each, counts in zip(selection.readouts, parts, strict=True)
        ]
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
    return tuple(map(ModelMember, specs, parts, readouts, weights))


def _is_chosen(saved: Federation, options: RunOptions) -> bool:
    return saved.is_selected or options.purpose == "evaluate" or saved.phase not in ("counts", "selection")


def model_of(state: RunState, options: RunOptions) -> FlyNNClassifier:
    """The classifier that the results so far make."""
    return _classifier(state.run_spec, members_of(state, options))


def classifier_of(
    run: RunSpec, counts: Sequence[ClassCounts], readouts: Sequence[Readout], weights: Sequence[float] = (1.0,)
) -> FlyNNClassifier:
    """The classifier of a run's counts for its specs."""
    return _classifier(run, tuple(map(ModelMember, run.specs, counts, readouts, weights)))


def _classifier(run: RunSpec, members: tuple[ModelMember, ...]) -> FlyNNClassifier:
    return FlyNNClassifier.from_model(Model(members, np.array(run.classes), run.feature_names, run.guarantee))


def _request(state: RunState, context: Context) -> EvaluationRequest:
    members = members_of(state, context.options)
    run = state.run_spec.only(kept_specs(state))
    counts = tuple(member.counts for member in members)
    readouts = tuple(replace(member.readout, temperature=member.temperature) for member in members)
    weights = tuple(member.weight for member in members)
    n_releases = sum(release.times for release in counts[0].noise)
    if isinstance(run.mode, Secure):
        n_releases = len(context.counted.members)  # each added a share of the noise
    return EvaluationRequest(run, counts, readouts, weights, n_releases, context.options.is_evaluated)


def _start(state: RunState, context: Context) -> Tables:
    return Tables((np.zeros((state.run_spec.n_classes,) * 2, np.int64),))


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    unkept = {
        context.names[cid]: clean(reply.metrics[UNKEPT], 200) or "no reason given"
        for cid, reply in batch.replies.items()
        if UNKEPT in reply.metrics
    }
    parts = {context.names[cid]: part for cid, part in batch.parts.items()}
    return state.with_result("evaluation", evaluated(parts, dict(context.missing), unkept))


EVALUATION = Phase(
    "evaluation", EVALUATE, _request, _start, _fold, collect=partial(collect_each, keep=True), audience=SAMPLE
)
