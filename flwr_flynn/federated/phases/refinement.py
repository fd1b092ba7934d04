"""Phases "held-out" and "refinement 1", "refinement 2" and so on: rounds that refine the model, see `model.refinement`.

First the parties count their held-out samples, which the server takes out of the sums of the counts, so that these
samples judge what the others teach. Then each round sends weights to the parties, and takes one `RefinementStatistic`
of each. In the first round the counts go out instead: the weights to start from follow from them, and the model that is
not refined is evaluated on the held-out samples, too.

Asked are the parties whose counts are in the sum. One that gives no answer is missing from that round alone: the server
begins its search anew with those that are there. These statistics are exact figures of the samples, and tell more than
counts: every round tells a weighted sum of samples that the model is unsure of. With noisy counts
there is no refinement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from flwr_flynn.errors import CountsError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.layout import PLAIN, Field, Sizes
from flwr_flynn.federated.outcome import Refined, members_of, model_of_members, run_of_members
from flwr_flynn.federated.permissions import SampleAccess
from flwr_flynn.federated.phase import COUNTED, Context, Phase, RunState
from flwr_flynn.federated.phases.counts import ExactCountsRequest
from flwr_flynn.federated.protocol import EVALUATE, Array, Config, Reply, Scalar, key
from flwr_flynn.federated.request import RunRequest, counted_sizes, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.counts import CountsOfSpecs
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.refinement import (
    LARGEST_FACTOR,
    MOST_LOSS,
    UNIT,
    RefinementStatistic,
    Table,
    Weights,
    class_factors,
    hashed,
    start_weights,
    statistic_of,
)
from flwr_flynn.model.refinement_search import Search, held_out_counts, without_validation_samples

_MOST_GRADIENT = 2**40  # of a party: sums of 4096 parties have room


@register
@dataclass(frozen=True)
class HeldOutRequest(ExactCountsRequest):
    """Ask for the counts of the held-out samples by the specs of the model's members."""

    phase = "held-out"
    channel = EVALUATE

    def measured(self, party: SampleAccess) -> tuple[CountsOfSpecs, int]:
        (X, *_), codes = party.inputs(self.run)  # members are all of aligned samples, or none
        batches = hashed(self.run.hashers, X, codes, party.options.n_jobs, party.progress(len(codes)))
        counts = held_out_counts(self.run.hashers, self.run.n_classes, batches)
        return CountsOfSpecs(tuple(counts)), counts[0].n_examples

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        return Sizes(counted_sizes(member, self.phase), reply.announced)

    def check(self, statistic: CountsOfSpecs, sizes: Sizes) -> None:
        super().check(statistic, sizes)
        if (statistic.parts[0].n_per_class > sizes.per_class).any():
            raise PayloadError("held-out", "at most the party's samples of each class", "more")


@register
@dataclass(frozen=True, eq=False)
class RefinementRequest(RunRequest[RefinementStatistic]):
    """Ask for gradient, loss and results on held-out samples under given weights."""

    run: RunSpec  # with the specs of the model's members
    weights: Weights
    factors: Table
    members: tuple[ModelMember, ...] = ()  # in the first round, of the counts without the held-out samples

    phase = "refinement"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        if self.members:
            return {**super().to_config(), key("scorings"): codec.members_text(self.members)}
        return {**super().to_config(), key("factors"): json.dumps(self.factors.tolist())}

    def arrays(self) -> list[Array]:
        if self.members:
            return codec.encode(*(member.counts for member in self.members))
        return codec.packed_weights(self.weights)

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> RefinementRequest:
        run = cls.admitted(config, party)
        codec.check_room_for_weights(run, party)
        if "scorings" not in config:
            factors = np.array(config.integers("factors", run.n_classes, LARGEST_FACTOR), np.int64)
            return cls(run, codec.unpacked_weights(run, arrays), factors)
        counts = codec.decode_all(arrays, run.hashers, run.n_classes)
        members = codec.announced_members(config, run, counts)
        return cls(run, start_weights(counts), class_factors(counts[0].n_per_class), members)

    def measured(self, party: SampleAccess) -> tuple[RefinementStatistic, int]:
        (X, *_), codes = party.inputs(self.run)
        batches = hashed(self.run.hashers, X, codes, party.options.n_jobs, party.progress(len(codes)))
        before = model_of_members(self.run, self.members).scores_of_active if self.members else None
        return statistic_of(self.weights, self.factors, batches, before), len(codes)

    def fields(self, sizes: Sizes) -> list[Field]:
        return refinement_fields([each.shape for each in self.weights], self.factors.tolist(), sizes)

    def parts(self, statistic: RefinementStatistic) -> list[Array]:
        return list(statistic.tables)

    def of_parts(self, parts: list[Array], n_parties: int) -> RefinementStatistic:
        statistic = RefinementStatistic(tuple(parts))
        if (np.maximum(statistic.correct, statistic.before) > statistic.held_out).any():
            raise PayloadError("held-out", "at least the samples that are correct", "fewer")
        return statistic

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        sizes = super().sizes_of(reply, member)
        if (most := _most_gradient(self.factors.tolist(), sizes)) > _MOST_GRADIENT:
            raise PayloadError("factors", f"gradients up to {_MOST_GRADIENT}", most)
        return sizes


def refinement_fields(shapes: Sequence[tuple[int, ...]], factors: Sequence[int], sizes: Sizes) -> list[Field]:
    """Loss; held-out samples, correct ones under the weights and under the model before; a gradient of each shape."""
    most, names = _most_gradient(factors, sizes), ("held-out", "correct", "before refinement")
    return [
        Field("loss", (1,), int(most * MOST_LOSS / UNIT), PLAIN),
        *(Field(name, (len(factors),), sizes.per_class, PLAIN, per_sample=1) for name in names),
        *(Field("gradient", shape, most, is_signed=True, per_sample=max(factors)) for shape in shapes),
    ]


def _most_gradient(factors: Sequence[int], sizes: Sizes) -> int:
    """The largest magnitude of an entry of the gradient of samples of these sizes."""
    return sum(a * b for a, b in zip(factors, sizes.of_classes(len(factors)), strict=True))


def _ask_held_out(state: RunState, context: Context) -> HeldOutRequest:
    return HeldOutRequest(run_of_members(state, context.options))


def _without_held_out(state: RunState, batch: Batch[CountsOfSpecs], context: Context) -> RunState:
    if not batch.passed:  # nothing would judge the rounds: there are none, and the model stays as it is
        missing = context.unanswered_by(batch.passed)
        for number in range(context.options.refine_rounds + 1):
            state = state.with_result(_name(number), Refined(None, missing if number == 0 else {}))
        return state
    counts = tuple(member.counts for member in members_of(state, context.options))
    try:
        others = (CountsOfSpecs(counts) - batch.total).parts
    except CountsError:  # somebody counted others than before; then nothing is held out of the start
        others = counts
    return state.with_result(HELD_OUT.name, Refined(Search.of(others), context.unanswered_by(batch.passed)))


def _search(state: RunState, number: int) -> Search:
    result: Refined = state.results[_name(number - 1)]
    assert isinstance(result.search, Search)
    return result.search


def _ask(state: RunState, context: Context, number: int) -> RefinementRequest:
    search, run = _search(state, number), run_of_members(state, context.options)
    members: tuple[ModelMember, ...] = ()
    if not search.accuracies:
        members = without_validation_samples(members_of(state, context.options), search.counts)
    return RefinementRequest(run, search.trial, search.factors, members)


def _fold(state: RunState, batch: Batch[RefinementStatistic], context: Context, number: int, n_rounds: int) -> RunState:
    search, missing = _search(state, number), context.unanswered_by(batch.passed)
    before: Refined = state.results[_name(number - 1)]
    state = state.with_result(_name(number - 1), Refined(None, before.missing))
    if batch.passed:
        search = search.advance(batch.total, frozenset(batch.passed))
    last = n_rounds if search.is_done else number
    for done in range(number, last):  # rounds that have nothing left to do
        state = state.with_result(_name(done), Refined(None, missing))
    return state.with_result(_name(last), Refined(search, missing))


def _name(number: int) -> str:
    return f"refinement {number}" if number else HELD_OUT.name


def refinements(n_rounds: int) -> list[Phase]:
    """The phases of so many rounds of refinement."""
    rounds = [
        Phase(
            _name(number),
            EVALUATE,
            partial(_ask, number=number),
            partial(_fold, number=number, n_rounds=n_rounds),
            audience=COUNTED,
            resumes_at=(HELD_OUT.name,),
        )
        for number in range(1, n_rounds + 1)
    ]
    return [HELD_OUT, *rounds]


HELD_OUT = Phase("held-out", EVALUATE, _ask_held_out, _without_held_out, audience=COUNTED)
