"""Phase "calibration": temperature of the model, and an intercept for each class.

Every counted party gets the selected members with the sums of their counts, and, with a
linear part, the scores for the samples of each fold. Its answer is the sums of
`model.calibration` over its training samples, each scored by what has not seen it: the
members without the sample, and the linear part of the other fold. Added up they are
those of the pooled samples. Of very many samples some are left out in turn, as in the
selection.

Where parties with fewer than half of the samples answer, the model keeps the
calibration of the saved run, or has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.announced_specs import MAX_SPECS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.gram_fields import (
    announced_linear,
    linear_entries,
    weights_of,
)
from flwr_flynn.federated.labels import Codes
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import (
    COUNTED,
    Context,
    Description,
    Phase,
    RunState,
    Section,
    calibration_of,
    linear_sums,
    members_of,
    model_of_members,
    run_of_members,
)
from flwr_flynn.federated.protocol import (
    EXACT,
    SECURE,
    TRAIN,
    Config,
    Scalars,
    key,
    refusing,
)
from flwr_flynn.federated.reply_fields import NUMBERS, Field, Sizes
from flwr_flynn.federated.request import (
    Measured,
    RunRequest,
    S,
    announced_run,
    register,
)
from flwr_flynn.federated.run_spec import RUN_ENTRIES, RunSpec
from flwr_flynn.federated.tally import Tally
from flwr_flynn.federated.views import View
from flwr_flynn.model.calibration import (
    Calibration,
    CalibrationSums,
    n_products,
    n_settings,
)
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.forest import Forest
from flwr_flynn.model.gram import N_FOLDS, GramScoring
from flwr_flynn.model.model import Model
from flwr_flynn.model.portable import content_words
from flwr_flynn.model.prediction_sets import N_LEVELS, most_levels
from flwr_flynn.model.scoring import LOSS_UNIT, MAX_LOSS
from flwr_flynn.model.selection import UnseenScoring
from flwr_flynn.model.subsample import class_terms, subsample_mask

_UNITS = int(1 / LOSS_UNIT)  # of a sample of weight 1
_CONTENT = (
    "log-losses, sums of probabilities and samples by class at each level, by "
    "leave-one-out, at 9 temperatures and 5 shares of a linear part"
)


@dataclass(frozen=True, eq=False)
class UnseenRequest(RunRequest[S]):
    """A request about scores of training samples by what has not seen them."""

    run: RunSpec  # it has the specs of the model's members alone
    model: Model  # of the members alone
    linear: tuple[GramScoring, ...] = ()
    """Scores of a linear part for the samples of each fold; () without one."""
    calibration: Calibration | None = None
    """That of model and linear part, beside trees."""
    trees: Forest | None = None

    entries = RUN_ENTRIES | codec.MODEL_ENTRIES | codec.CALIBRATION_ENTRIES
    n_arrays = 2 * MAX_SPECS + N_FOLDS + codec.N_FOREST_ARRAYS

    def to_config(self) -> Scalars:
        return {
            **super().to_config(),
            **codec.scoring_entries(self.model.members),
            **linear_entries(self.run, self.linear),
            **codec.calibration_entries(self.calibration),
            **codec.forest_entries(self.run, self.trees),
        }

    def arrays(self) -> list[Array]:
        arrays = codec.encode(*(member.counts for member in self.model.members))
        arrays += weights_of(self.linear)
        return arrays + codec.forest_arrays(self.trees)

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> Self:
        run = announced_run(config, options)
        trees, arrays = codec.announced_forest(config, run, arrays, options)
        linear, arrays = announced_linear(config, run, arrays, N_FOLDS)
        calibration = codec.announced_calibration(config, run.n_classes)
        if (trees is None) != (calibration is None):
            raise PayloadError(key("calibration"), "one beside trees alone", "others")
        counts = codec.decode_all(arrays, run.hashers, run.n_classes)
        with refusing():
            members = codec.announced_members(config, run, counts)
            model = model_of_members(run, members)
        return cls(run, model, linear, calibration, trees)


@register
@dataclass(frozen=True, eq=False)
class CalibrationRequest(UnseenRequest[CalibrationSums]):
    """Ask for sums of losses and probabilities of training samples.

    With `trees` they are for these beside all the rest, else for the linear part.
    """

    phase = "calibration"
    sentence = (
        "Sums of probabilities and losses: of few rows they tell the probabilities "
        "of each."
    )

    def measured(self, view: View) -> Measured[CalibrationSums]:
        X, codes = view.samples_of(self.run)
        counts = self.model.members[0].counts
        n_examples = len(codes)
        has_part = _has_part(self.linear, self.trees)
        rows = subsample_mask(X, codes, counts.n_per_class)
        if self.bound is None and rows.sum() < view.options.min_examples:
            zeros = CalibrationSums.zeros(self.run.n_classes, has_part)
            return Measured(zeros, n_examples)

        def summed(unseen: UnseenScoring, X: Array, codes: Codes) -> CalibrationSums:
            scores = unseen.with_trees(self.calibration, self.trees, X, codes)
            weight = self.run.class_weight
            return CalibrationSums.of_scores(scores, counts, weight, has_part)

        unseen = UnseenScoring(self.model, self.linear, view.options.n_jobs)
        sums = summed(unseen, X[rows], codes[rows])
        if view.options.related_rows:
            view.require(EXACT, SECURE)
            X, codes = view.held_out_samples(self.run)
            rows = _at_most(X, codes, sums.tables[0][0])
            unseen = replace(unseen, are_counted=False)
            sums = sums.with_levels_of(summed(unseen, X[rows], codes[rows]))
        if self.bound is None:
            sums = sums.above_floor(view.options.min_examples)
        return Measured(sums, n_examples)

    def fields(self, sizes: Sizes) -> list[Field]:
        n_classes = self.run.n_classes
        n = n_settings(_has_part(self.linear, self.trees))
        most = _UNITS * sizes.total
        return [
            Field("left out", (1, n_classes), sizes.per_class, NUMBERS),
            Field("log-losses", (n, 1), int(MAX_LOSS) * most, NUMBERS),
            Field("probabilities", (n, n_classes), most, NUMBERS),
            Field("products", (n, n_products(n_classes)), most, NUMBERS),
            Field("levels", (n, most_levels(n_classes)), sizes.total),
        ]

    def of_parts(self, parts: list[Array], n_parties: int) -> CalibrationSums:
        left_out, losses, probabilities, _, levels = parts
        counts = self.model.members[0].counts
        if (left_out > counts.n_per_class).any():
            raise PayloadError("left out", "at most the samples of the class", "more")
        _, weights = class_terms(counts, self.run.class_weight)
        in_all = float((left_out * weights).sum()) / LOSS_UNIT
        # Each is rounded: of a sample by half a unit at most.
        room = float(left_out.sum() * (self.run.n_classes + 1))
        sums = CalibrationSums(tuple(parts))
        for index, own in enumerate(probabilities):
            slopes = np.diag(sums.slopes(index)) / LOSS_UNIT
            if (
                abs(own.sum() - in_all) > room
                or (slopes > own + room).any()
                or losses[index, 0] > MAX_LOSS * in_all + room
            ):
                expected = "sums that the samples left out can have"
                raise PayloadError("probabilities", expected, "others")
        if levels.size:
            n_told = levels.reshape(len(levels), -1, N_LEVELS).sum(axis=2)
            if (n_told > left_out).any() or (n_told != n_told[0]).any():
                raise PayloadError("levels", "those of the samples left out", "others")
        return sums


def _at_most(X: Array, codes: Codes, most: Array) -> Array:
    """Indices of samples of each class, as many as `most` has of it, by content."""
    order = np.argsort(content_words(X), kind="stable")
    own = (order[codes[order] == label][:n] for label, n in enumerate(most))
    return np.concatenate([*own])


def _has_part(linear: Sequence[GramScoring], trees: Forest | None) -> bool:
    """True if shares are tried, of a linear part or of trees."""
    return bool(linear) or trees is not None


@dataclass(frozen=True)
class CalibrationResult:
    """The calibration of a run, and the samples that it follows from."""

    calibration: Calibration | None
    """None where too few replied: the model keeps that of the saved run."""
    n_examples: int

    def described(self) -> str:
        """The calibration in a line."""
        if self.calibration is None:
            return "not chosen: too few samples, or parties, replied"
        lowest = min(self.calibration.intercepts)
        highest = max(self.calibration.intercepts)
        share = ""
        if self.calibration.share:
            share = f"share {self.calibration.share}, "
        return (
            f"{share}temperature {self.calibration.temperature}, intercepts from "
            f"{lowest:.2f} to {highest:.2f}, by {self.n_examples} samples left out"
        )


def request_of(state: RunState, options: RunOptions) -> CalibrationRequest:
    """The request for the sums by which model and linear part are calibrated."""
    run = run_of_members(state, options)
    model = model_of_members(run, members_of(state, options))
    sums = linear_sums(state, options)
    linear: tuple[GramScoring, ...] = ()
    if sums is not None:
        linear = sums.folds
    return CalibrationRequest(run, model, linear)


def _ask(state: RunState, context: Context) -> Tally[CalibrationSums]:
    return Tally(request_of(state, context.options))


def fold(
    state: RunState, batch: Batch[CalibrationSums], context: Context, name: str
) -> RunState:
    """The state with a calibration, as the result of the phase of this name."""
    request: CalibrationRequest = context.request
    counts = request.model.members[0].counts
    n_examples = int(batch.total.tables[0].sum())
    calibration = None
    if _is_half(batch, context, counts):
        calibration = batch.total.calibration(counts, request.run.class_weight)
    return state.with_result(name, CalibrationResult(calibration, n_examples))


def describe(state: RunState, options: RunOptions, name: str) -> Description:
    """The calibration of the phase of this name."""
    result: CalibrationResult = state.results[name]
    return Description(result.described())


def _is_half(
    batch: Batch[CalibrationSums], context: Context, counts: ClassCounts
) -> bool:
    """True if the parties that replied have half of the counted samples, or, of secure
    sums, are half of the parties.
    """
    if context.request.bound is not None:
        return 2 * len(batch.passed) >= len(context.counted.members)
    n_examples = sum(reply.announced for reply in batch.passed.values())
    return 2 * n_examples >= counts.n_examples


def _report(state: RunState, options: RunOptions) -> Section:
    """The calibration of the model, and a line about that of the run."""
    result: CalibrationResult | None = state.results.get("calibration")
    if result is None:
        return Section({"calibration": None})
    text = result.described()
    entries: dict[str, object] = {"text": text}
    calibration = calibration_of(state, options)
    if calibration is not None:
        entries |= calibration.facts()
    return Section({"calibration": entries}, {"calibration": text})


CALIBRATION = Phase(
    "calibration",
    TRAIN,
    _ask,
    partial(fold, name="calibration"),
    audience=COUNTED,
    content=_CONTENT,
    applies=lambda options: options.calibrates,
    describe=partial(describe, name="calibration"),
    report=_report,
)
