"""Phase "evaluation": the model goes to the parties, which keep it and try it on samples they held out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

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
from flwr_flynn.model.scoring import Readout, given_readout

if TYPE_CHECKING:
    from flwr_flynn.federated.options import RunOptions

_MAX_EXAMPLES = 2**48  # of a party; 32768 matrices of so many samples add up within int64


@register
@dataclass(frozen=True)
class EvaluationRequest(Request[Tables]):
    """Hand the model out, and ask for its confusion matrix on held-out samples."""

    run: RunSpec
    counts: ClassCounts
    readout: Readout
    n_releases: int = 0  # noises in the counts
    tries: bool = True  # else parties only keep the model

    phase = "evaluation"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        return {
            **self.run.to_config(),
            key("readout"): json.dumps([self.readout.rule, self.readout.decay, self.readout.temperature]),
            key("n_releases"): self.n_releases,
            key("tries"): self.tries,
        }

    def arrays(self) -> list[codec.Array]:
        return codec.encode(self.counts)

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[codec.Array], party: Party) -> EvaluationRequest:
        run = RunSpec.from_config(config)
        if len(run.specs) > 1:
            raise PayloadError("spec", "the one of the model", len(run.specs))
        tries = config.boolean("tries")
        party.check_run(run, config, cls.phase, RESULTS if tries else NOTHING)
        n_releases = config.integer("n_releases", 0, 2**31 - 1)
        if run.mechanism is None:
            counts = codec.decode(arrays, run.hasher, run.n_classes)
        else:
            counts = codec.decode_total(arrays, run.hasher, run.mechanism, n_releases)
        return cls(run, counts, _readout(config), n_releases, tries)

    @property
    def discloses(self) -> str:
        return RESULTS if self.tries else NOTHING

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier that is handed out."""
        return classifier_of(self.run, self.counts, self.readout)

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


def _readout(config: Config) -> Readout:
    """The readout that a server announced, with a temperature."""
    values = config.json("readout", 200)
    if not isinstance(values, list) or len(values) != 3 or values[2] is None:
        raise PayloadError(key("readout"), "a list of rule, decay and temperature", type(values).__name__)
    try:
        return Readout(*values)
    except ConfigError as error:
        raise PayloadError(key("readout"), error.expected, error.got, text=f"{key('readout')}: {error}") from None


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


def selected(state: RunState) -> int:
    """Index of the spec of the model: the selected one, the first where nothing was selected."""
    selection = state.results.get("selection")
    return 0 if selection is None else int(selection.spec)


def model_of(state: RunState, options: RunOptions) -> FlyNNClassifier:
    """The classifier that the results so far make."""
    selection, run, saved = state.results.get("selection"), state.run_spec, options.federation
    index = selected(state)
    counts = state.results["counts"].parts[index]
    if selection is not None:
        readout = selection.readout
    elif (
        saved is not None
        and state.results["counts"] is saved.totals
        and (options.purpose == "evaluate" or saved.phase not in ("counts", "selection"))
    ):
        readout = saved.readout  # chosen for these very counts
    else:
        suggested = Readout(options.rule, suggest_decay(counts, options.rule))
        readout = given_readout(options.rule, options.decay) or suggested
    return classifier_of(run.only(index), counts, readout)


def classifier_of(run: RunSpec, counts: ClassCounts, readout: Readout) -> FlyNNClassifier:
    """The classifier of a run's counts for its only spec."""
    member = ModelMember(run.spec, counts, readout)
    return FlyNNClassifier.from_model(Model((member,), np.array(run.classes), run.feature_names, run.guarantee))


def _request(state: RunState, context: Context) -> EvaluationRequest:
    model = model_of(state, context.options)
    counts: ClassCounts = model.counts_
    run = state.run_spec.only(selected(state))
    readout = replace(model.model_.member.readout, temperature=model.temperature_)
    n_releases = sum(release.times for release in counts.noise)
    if isinstance(run.mode, Secure):
        n_releases = len(context.counted.members)  # each added a share of the noise
    return EvaluationRequest(run, counts, readout, n_releases, context.options.is_evaluated)


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
