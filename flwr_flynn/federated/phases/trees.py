"""Phases "trees 1" to "trees 16" and "forest": trees that are grown from sums.

Each of the first is a level of all trees, see `model.forest`. Every counted party gets
the model so far, its calibration and the forest so far, and answers with sums over all
its samples: it keeps nothing from level to level, but the scores of its samples by the
model, where its process lives on. A party that missed a level is not asked for the next
ones of the run. Levels that the forest does not need are left out. In the last phase, which is a
calibration again, parties tell the log-losses at each share of the forest.

Most leaves hold few samples, often one of a party: in clear the sums tell classes and
columns of single samples, so that they need a party's consent. No floor holds there, and
with noise there are no trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_numbers, unpack_numbers
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import (
    COUNTED,
    TREES,
    Context,
    Description,
    Needs,
    Phase,
    RunState,
    Scale,
    Section,
    basis_of,
    calibration_of,
    forest_of,
    growth_of,
    run_of_members,
)
from flwr_flynn.federated.phases import calibration
from flwr_flynn.federated.phases.calibration import (
    CalibrationRequest,
    UnseenRequest,
    request_of,
)
from flwr_flynn.federated.protocol import TRAIN, Config, Entry, Scalars, key, sent
from flwr_flynn.federated.reply_fields import Field, Sizes
from flwr_flynn.federated.request import Measured, register
from flwr_flynn.federated.tally import Tally
from flwr_flynn.federated.views import View
from flwr_flynn.model.calibration import Calibration, CalibrationSums
from flwr_flynn.model.forest import LEVELS, Forest, memory_of_forest, most_nodes
from flwr_flynn.model.growth import (
    LARGEST_GAINS,
    LARGEST_GRADIENT,
    LARGEST_LOSSES,
    REFITS,
    ClassTerms,
    ForestSums,
    Growth,
    forest_sums,
    sum_shapes,
)
from flwr_flynn.model.scoring import MAX_LOSS
from flwr_flynn.model.selection import UnseenScoring

_SCORE_BYTES = 32  # of a score of a sample, while it is made
_CONTENT = (
    "samples, gradients and curvatures of the log-loss at the nodes of trees, and at or "
    "below the cuts of candidates"
)


@register
@dataclass(frozen=True, eq=False)
class TreesRequest(UnseenRequest[ForestSums]):
    """Ask for the sums for a level of a forest."""

    calibration: Calibration = field(kw_only=True)
    trees: Forest = field(kw_only=True)
    growth: Growth = field(kw_only=True)
    """With `trees` as its forest; what sums do not depend on stays at the server."""

    phase = "trees"
    sentence = (
        "Sums over few rows in trees: columns and class of one person may follow, so "
        "they need products=true or secure."
    )
    entries = UnseenRequest.entries | {"level": Entry(int, LEVELS + REFITS - 1)}
    n_arrays = UnseenRequest.n_arrays + 1
    consent = "products"

    def to_config(self) -> Scalars:
        return super().to_config() | sent(level=self.growth.level)

    def arrays(self) -> list[Array]:
        return [pack_numbers(self.growth.gains), *super().arrays()]

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> TreesRequest:
        check_packed(arrays[:1], "gains")
        base = CalibrationRequest.from_config(config, arrays[1:], options)
        trees = base.trees
        if trees is None:
            raise PayloadError(key("trees"), "the forest so far", "none")
        n_columns = len(trees.basis.columns)
        gains = unpack_numbers(arrays[0], n_columns, LARGEST_GAINS)
        if len(gains) != n_columns:
            raise PayloadError("gains", f"those of {n_columns} columns", len(gains))
        growth = Growth(trees, base.run.spec.seed, gains, config["level"])
        return cls(**vars(base), growth=growth)

    def measured(self, view: View) -> Measured[ForestSums]:
        X, codes = view.samples_of(self.run)
        n_scores = len(codes) * self.run.n_classes
        view.options.check_memory(_SCORE_BYTES * n_scores, "scores for trees", False)
        n_jobs = view.options.n_jobs
        unseen = UnseenScoring(self.model, self.linear, n_jobs)
        linear = [scoring.sha256() for scoring in self.linear]
        scores = view.loader.made(
            (self.features, self.model.sha256(), self.calibration, linear),
            partial(unseen.calibrated, self.calibration, X, codes),
        )
        terms = ClassTerms.of(self.model.members[0].counts, self.run.class_weight)
        sums = forest_sums(self.growth, X, codes, scores, terms, n_jobs)
        return Measured(sums, len(codes))

    def fields(self, sizes: Sizes) -> list[Field]:
        losses, counts, sketches, gradients, curvatures = sum_shapes(self.trees)
        most = LARGEST_GRADIENT * sizes.total
        of_classes = most * self.run.n_classes
        return [
            Field("losses", losses, np.array(LARGEST_LOSSES) * sizes.total),
            Field("samples", counts, sizes.total),
            Field("sketches", sketches, of_classes, is_signed=True),
            Field("gradients", gradients, most, is_signed=True),
            Field("curvatures", curvatures, most),
        ]

    def of_parts(self, parts: list[Array], n_parties: int) -> ForestSums:
        losses, counts, *_ = parts
        loss, weight = losses[0].tolist()
        if loss > MAX_LOSS * weight + n_parties:
            raise PayloadError("losses", f"at most {MAX_LOSS} of a sample", "more")
        if (counts[:, 1:] > counts[:, :1]).any():
            expected = "no more at or below a cut than in the node"
            raise PayloadError("samples", expected, "more")
        return ForestSums(tuple(parts))


@dataclass(frozen=True, eq=False)
class TreesTally(Tally[ForestSums]):
    """Sums for a level, each within what the samples counted can have."""

    request: TreesRequest

    def check(self, statistic: ForestSums, sizes: Sizes) -> None:
        counts = self.request.model.members[0].counts
        terms = ClassTerms.of(counts, self.request.run.class_weight)
        growth = self.request.growth
        if not growth.is_possible(statistic, terms, np.asarray(sizes.per_class)):
            raise PayloadError("trees", "sums of the samples counted", "others")


def _planted(state: RunState, options: RunOptions) -> Growth | None:
    """The start of a forest; None without a basis, or a model to begin with."""
    basis = basis_of(state, options)
    calibrated = calibration_of(state, options)
    if basis is None or calibrated is None or not options.n_trees:
        return None
    run = run_of_members(state, options)
    return Growth.planted(basis, run.n_classes, options.n_trees, run.spec.seed)


def _growth(state: RunState, options: RunOptions) -> Growth | None:
    """The forest so far, or its start."""
    return growth_of(state, options) or _planted(state, options)


def _is_idle(state: RunState, options: RunOptions) -> bool:
    """True where the forest is complete, or none can grow."""
    growth = _growth(state, options)
    return growth is None or growth.is_complete


def _request(
    state: RunState, options: RunOptions, trees: Forest | None
) -> CalibrationRequest:
    """The request for a calibration of these trees, beside the calibrated model."""
    request = request_of(state, options)
    base = calibration_of(state, options)
    linear = request.linear
    if base is not None:
        base = base.without_levels
        if not base.share:
            linear = ()
    return replace(request, linear=linear, calibration=base, trees=trees)


def _ask(state: RunState, context: Context) -> Tally[ForestSums]:
    growth = _growth(state, context.options)
    if growth is None:
        raise ConfigError("trees", "a basis and a calibration", "none")
    base = _request(state, context.options, growth.forest)
    return TreesTally(TreesRequest(**vars(base), growth=growth))


def _fold(
    state: RunState, batch: Batch[ForestSums], context: Context, name: str
) -> RunState:
    """The state with a level more; without answers the forest stays as it is."""
    growth = _growth(state, context.options)
    if growth is not None and batch.passed:
        growth = growth.grown(batch.total)
    elif growth is not None:
        growth = growth.stopped()
    return state.with_result(name, growth)


def _best(state: RunState, options: RunOptions) -> Forest | None:
    growth = growth_of(state, options)
    if growth is None:
        return None
    return growth.best


def _ask_calibration(state: RunState, context: Context) -> Tally[CalibrationSums]:
    options = context.options
    return Tally(_request(state, options, _best(state, options)))


def _describe(state: RunState, options: RunOptions) -> Description:
    """Leaves so far, and the least log-loss of samples that have not seen them."""
    growth = growth_of(state, options)
    if growth is None or growth.best_loss > MAX_LOSS:
        return Description("no sums, so no trees")
    n_nodes = len(growth.forest.leaf_nodes)
    loss = f"least log-loss so far {growth.best_loss:.4f}"
    return Description(f"{n_nodes} leaf nodes, {loss}")


def memory(options: RunOptions, scale: Scale) -> Needs:
    """Bytes of the trees and their sums."""
    n_examples = 0
    if options.plan is not None:
        n_examples = options.plan.n_examples or 0
    n_classes = options.run_spec.n_classes
    nodes = most_nodes(options.n_trees, n_classes, n_examples)
    needed = {
        f"{options.n_trees} trees (trees sets their number)": memory_of_forest(
            nodes, n_classes
        )
    }
    return Needs(needed, needed)


def _phase(name: str, before: str) -> Phase:
    """The phase of a level, behind another."""
    return Phase(
        name,
        TRAIN,
        _ask,
        partial(_fold, name=name),
        audience=COUNTED,
        content=_CONTENT,
        applies=lambda options: options.has_trees,
        is_idle=_is_idle,
        follows=before,
        describe=_describe,
        memory=memory,
    )


def _report(state: RunState, options: RunOptions) -> Section:
    """Size of the forest, its share, and log-losses of samples without trees and by
    those that have not seen them.
    """
    growth = growth_of(state, options)
    if growth is None:
        return Section({"trees": None})
    start = state.results.get(TREES[0], growth)
    losses = [start.best_loss, growth.best_loss]
    lack = ""
    if growth.best_loss > MAX_LOSS:
        losses = []
        lack = "no sums: no party consents, or too few replied"
    entries: dict[str, object] = {
        "trees": growth.forest.n_trees,
        "leaf_nodes": None,
        "share": None,
        "levels": growth.best_level,
        "log_losses": losses,
        "lack": lack,
    }
    text = f"{growth.forest.n_trees}, not used: {lack or 'they make no better probabilities'}"
    forest = forest_of(state, options)
    if forest is not None:
        n_nodes = len(forest.trees.leaf_nodes)
        share = forest.calibration.share
        entries |= {"leaf_nodes": n_nodes, "share": share}
        gain = " to ".join(f"{loss:.4f}" for loss in losses)
        text = (
            f"{growth.forest.n_trees}, {n_nodes} leaf nodes, share {share}, log-loss "
            f"{gain} in {growth.best_level} levels"
        )
    return Section({"trees": entries}, {"trees": text})


LEVEL_PHASES = [*map(_phase, TREES, ["", *TREES])]
FOREST = replace(
    calibration.CALIBRATION,
    name="forest",
    content="log-losses and sums of probabilities at 5 shares of the trees",
    tally=_ask_calibration,
    fold=partial(calibration.fold, name="forest"),
    describe=partial(calibration.describe, name="forest"),
    report=_report,
    applies=lambda options: options.has_trees,
    is_idle=lambda state, options: _best(state, options) is None,
)
PHASES = [*LEVEL_PHASES, FOREST]
