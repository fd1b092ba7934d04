"""Phase "evaluation": the model goes to the parties, which keep it and try it on samples they held out.

A party may keep it with its own class frequencies beside it, see `model.class_prior`. Its answer has a second confusion
matrix then, of its own copy on the same samples. Unlike the first, the sum of these depends on the split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flwr_flynn.errors import DataError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch, collect_each
from flwr_flynn.federated.compression import pack_signed
from flwr_flynn.federated.layout import PLAIN, Field, Sizes
from flwr_flynn.federated.outcome import model_of, model_of_members, run_of_members
from flwr_flynn.federated.permissions import SampleAccess
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
    Scalar,
    key,
    refusing,
)
from flwr_flynn.federated.request import RunRequest, register
from flwr_flynn.federated.roster import Member, clean
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.metrics import summary
from flwr_flynn.model.model import Model

_MAX_EXAMPLES = 2**48  # of a party; 32768 matrices of so many samples add up within int64


@register
@dataclass(frozen=True)
class EvaluationRequest(RunRequest[Tables]):
    """Distribute the model, and ask for confusion matrices on held-out samples."""

    run: RunSpec  # with the specs of the model's members
    model: Model
    n_releases: int = 0  # noises in the counts
    tries: bool = True  # else parties only keep the model

    phase = "evaluation"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        return {
            **super().to_config(),
            key("scorings"): codec.members_text(self.model.members),
            key("n_releases"): self.n_releases,
            key("tries"): self.tries,
            key("is_refined"): self.model.refined is not None,
            **codec.gram_entries(self.run, self.model.gram),
        }

    def arrays(self) -> list[codec.Array]:
        model = self.model
        gram = [] if model.gram is None else [pack_signed(model.gram.weights)]
        return codec.encode(*(each.counts for each in model.members)) + codec.packed_weights(model.refined or ()) + gram

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[codec.Array], party: SampleAccess) -> EvaluationRequest:
        tries = config.boolean("tries")
        run = cls.admitted(config, party, RESULTS if tries else NOTHING)
        n_releases = config.integer("n_releases", 0, 2**31 - 1)
        refined = gram = None
        if "gram" in config:
            arrays, gram = arrays[:-1], codec.announced_gram(config, run, arrays[-1:], party)
        if config.boolean("is_refined"):
            n_members = len(run.specs)
            codec.check_room_for_weights(run, party)
            arrays, refined = arrays[:-n_members], codec.unpacked_weights(run, arrays[-n_members:])
        if run.mechanism is None:
            counts = codec.decode_all(arrays, run.hashers, run.n_classes)
        else:
            counts = (codec.decode_total(arrays, run.hasher, run.mechanism, n_releases),)
        with refusing():
            model = model_of_members(run, codec.announced_members(config, run, counts), refined, gram)
        return cls(run, model, n_releases, tries)

    @classmethod
    def channel_of(cls, entries: Mapping[str, Any]) -> str:
        return cls.channel

    @property
    def bound(self) -> None:
        """None: results travel in clear, in a run of secure sums, too."""
        return None

    @property
    def discloses(self) -> str:
        return RESULTS if self.tries else NOTHING

    def fields(self, sizes: Sizes) -> list[Field]:
        shape, names = (self.run.n_classes,) * 2, ("confusion matrix", "own confusion matrix")
        return [Field(name, shape, sizes.total, PLAIN, per_sample=1) for name in names]

    def compute(self, party: SampleAccess) -> Answer:
        answer = self._evaluated(party) if self.tries else Answer()
        if reason := party.keep(self.run, self.model):
            answer.metrics[UNKEPT] = reason
        return answer

    def _evaluated(self, party: SampleAccess) -> Answer:
        try:
            statistic, n_examples = self.measured(party)
        except Exception as error:  # noqa: BLE001 - its text may hold anything; `Party.reason` tells the kind alone
            is_ours = isinstance(error, DataError | PayloadError) and error.field in ("X", "y", "n_features")
            shown = DataError("X_test, y_test", text=f"X_test, y_test: {error}") if is_ours else error
            return Answer(metrics={REFUSED: party.reason("the evaluation", shown)})
        if not n_examples:
            return Answer()
        accuracy = float(np.trace(statistic.tables[0]) / n_examples)
        return Answer([*statistic.tables], n_examples, {"accuracy": accuracy}, statistic)

    def measured(self, party: SampleAccess) -> tuple[Tables, int]:
        matrices = party.confusion(self.run, self.model)
        return Tables(tuple(matrices)), int(matrices[0].sum()) if matrices else 0

    def parts(self, statistic: Tables) -> list[codec.Array]:
        return list(statistic.tables[:2])

    def of_parts(self, parts: list[codec.Array], n_parties: int) -> Tables:
        if not np.array_equal(parts[0].sum(axis=1), parts[1].sum(axis=1)):
            raise PayloadError("confusion matrix", "the same samples of each class in both", "different ones")
        return Tables((*parts, np.zeros((1, 1), np.int64)))

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        if reply.announced > _MAX_EXAMPLES:
            raise PayloadError("confusion matrix", f"at most {_MAX_EXAMPLES} examples", reply.announced)
        return Sizes(reply.announced, reply.announced)

    def check(self, statistic: Tables, sizes: Sizes) -> None:
        if (total := sum(statistic.tables[0].ravel().tolist())) != sizes.total:
            raise PayloadError("confusion matrix", f"{sizes.total} examples as announced", total)

    def read(self, arrays: Sequence[codec.Array], reply: Reply, member: Member | None) -> Tables | None:
        if not self.tries or reply.announced == 0:  # what nobody asked for is not looked at
            return None
        # A party without a class prior of its own has the shared model, and sends one matrix.
        has_own = self.run.is_plain and len(arrays) == 2
        found = super().read(arrays if has_own else [*arrays, *arrays], reply, member)
        assert found is not None
        return Tables((*found.tables[:2], np.full((1, 1), has_own, np.int64)))


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
    return Evaluation(figures(0) | {"class_prior": figures(1) | {"sent": sent} if sent else None}, missing, unkept)


def _request(state: RunState, context: Context) -> EvaluationRequest:
    run, model = run_of_members(state, context.options), model_of(state, context.options)
    n_releases = sum(release.times for release in model.members[0].counts.noise)
    if run.is_secure:
        n_releases = len(context.counted.members)  # each added a share of the noise
    return EvaluationRequest(run, model, n_releases, context.options.is_evaluated)


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    unkept = {
        context.names[cid]: clean(reply.metrics[UNKEPT], 200) or "no reason given"
        for cid, reply in batch.replies.items()
        if UNKEPT in reply.metrics
    }
    parts = {context.names[cid]: part for cid, part in batch.parts.items()}
    return state.with_result("evaluation", evaluated(batch.total, parts, dict(context.missing), unkept))


EVALUATION = Phase("evaluation", EVALUATE, _request, _fold, collect=partial(collect_each, keep=_right), audience=SAMPLE)
