"""Phases "pair scaling 1" to "pair scaling 5": what the scores from pair sums confuse, see `model.matrix_scaling`.

The server sends the scores' weights with the matrix that it tries and the best so far; each party answers with losses
and gradient over its training samples, each about as if it had been left out. The best matrix joins the model.

Asked are the parties in the pair sums; one that gives no answer is missing from that exchange alone, and the others
judge the matrix beside the best so far. No gradient is asked for twice: of two secure sums of different parties at the
same matrix the difference would be that of the parties in one of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_signed, unpack_signed
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.phase import COUNTED, Context, Phase, RunState
from flwr_flynn.federated.phases import pairs
from flwr_flynn.federated.phases.evaluation import SCALING_NAMES, PairScaling, announced_pairs, pairs_entries
from flwr_flynn.federated.phases.secure import Layout, Summed
from flwr_flynn.federated.phases.selection import check_all, counted_sizes
from flwr_flynn.federated.protocol import EVALUATE, Array, Config, Reply, Scalar, key, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.matrix_scaling import (
    LARGEST_WEIGHT,
    Scaling,
    ScalingStatistic,
    is_identity,
    is_scaled,
    largest,
    memory_of_scaling,
    shapes,
    statistic_of,
)
from flwr_flynn.model.pair_readout import PairReadout
from flwr_flynn.model.pairs import memory_of_pairs
from flwr_flynn.model.subsample import N_LEFT_OUT, batches_of_kept


@register
@dataclass(frozen=True, eq=False)
class PairScalingRequest(Summed[ScalingStatistic]):
    """Ask for losses and gradient of scores by a matrix, and for the curvature at the identity."""

    run: RunSpec  # with the specs of the pair sums
    readout: PairReadout  # without a matrix
    n_per_class: Array  # samples in the pair sums, (L,)
    matrix: Array
    best: Array  # so far

    phase = "pair scaling"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        entries = pairs_entries(self.run, self.readout)
        return {**self.run.to_config(), **entries, key("sizes"): json.dumps(self.n_per_class.tolist())}

    def arrays(self) -> list[Array]:
        return [pack_signed(each) for each in (self.readout.weights, self.matrix, self.best)]

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: Party) -> PairScalingRequest:
        run = pairs.admitted(config, party, cls.phase)
        n_classes = run.n_classes
        if not is_scaled(n_classes):
            raise PayloadError("classes", "few enough for a matrix", n_classes)
        needed = memory_of_pairs(pairs.n_rows_of(run), n_classes) + memory_of_scaling(n_classes, _BATCH)
        party.check_memory(needed, f"the scaling of the scores of {n_classes} classes")
        check_packed(arrays, 3, "weights", "three packed arrays")
        readout = announced_pairs(config, run, arrays[:1], party)
        if readout.matrix is not None:
            raise PayloadError(key("pairs"), "no matrix", "one")
        if readout.specs != tuple(run.specs):
            raise PayloadError(key("pair_specs"), "the specs of the run", "others")
        shape = n_classes + 1, n_classes
        matrices = [unpack_signed(each, shape, LARGEST_WEIGHT).astype(np.int32) for each in arrays[1:]]
        sizes = pairs.checked_sizes(config.json("sizes", 20 * n_classes + 10), n_classes, "sizes")
        return cls(run, readout, sizes, *matrices)

    def measured(self, party: Party) -> tuple[ScalingStatistic, int]:
        (X, *_), codes = party.inputs(self.run)
        total = self.nothing()
        for rows in batches_of_kept(X, codes, self.n_per_class, N_LEFT_OUT, _BATCH):
            scores = self.readout.left_out(X[rows], codes[rows], self.n_per_class, party.options.n_jobs)
            total += statistic_of(scores, codes[rows], self.n_per_class, self.matrix, self.best)
        return total, len(codes)

    def nothing(self) -> ScalingStatistic:
        """The statistic of no samples."""
        return ScalingStatistic.zeros(self.run.n_classes, is_identity(self.matrix))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the arrays of a statistic."""
        return shapes(self.run.n_classes, is_identity(self.matrix))

    @property
    def layout(self) -> Layout:
        return list(zip(self.shapes, largest(self.bound or 0), strict=False))

    def load(self, statistic: ScalingStatistic) -> int:
        return max(int(np.abs(part).max(initial=0)) for part in statistic.parts)

    def packed(self, statistic: ScalingStatistic) -> list[Array]:
        return [pack_signed(np.atleast_2d(each)) for each in statistic.parts]

    def parts(self, statistic: ScalingStatistic) -> list[Array]:
        return list(statistic.parts)

    def of_parts(self, parts: list[Array], n_parties: int) -> ScalingStatistic:
        return _checked(parts)

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> ScalingStatistic:
        sizes, parts = counted_sizes(member, "pair scaling"), []
        check_all(reply.announced, sizes, "pair scaling")
        check_packed(arrays, len(self.shapes), "pair scaling", f"{len(self.shapes)} packed arrays")
        for array, shape, most in zip(arrays, self.shapes, largest(sum(sizes.tolist())), strict=False):
            rows, columns = shape if len(shape) == 2 else (1, shape[0])
            parts.append(unpack_signed(array, (rows, columns), min(most, self.capacity)).reshape(shape))
        return _checked(parts)


_BATCH = 2**10  # samples whose scores are held at a time


def _checked(parts: Sequence[Array]) -> ScalingStatistic:
    loss, _, *curvature = parts
    if (loss < 0).any():
        raise PayloadError("loss", "from 0", int(loss.min()))
    if any((_diagonals(each) < 0).any() for each in curvature):
        raise PayloadError("curvature", "diagonals from 0", "negative ones")
    return ScalingStatistic(*parts)


def _diagonals(curvature: Array) -> Array:
    """Diagonals, (L, L + 1), of the curvature of each class, whose upper triangle is a row."""
    return curvature[:, np.cumsum([0, *range(len(curvature) + 1, 1, -1)])]


def _search(state: RunState, number: int) -> Scaling:
    if number > 1:
        result: PairScaling = state.results[SCALING_NAMES[number - 2]]
        assert result.search is not None
        return result.search
    return Scaling.of(state.run_spec.n_classes)


def _ask(state: RunState, context: Context, number: int) -> PairScalingRequest:
    summed: pairs.Pairs = state.results[pairs.PAIRS.name]
    trial: pairs.PairTrial = state.results[pairs.PAIR_TRIAL.name]
    search = _search(state, number)
    assert trial.readout is not None
    return PairScalingRequest(summed.run, trial.readout, summed.fit.n_per_class, search.trial, search.known)


def _nothing(state: RunState, context: Context, number: int) -> ScalingStatistic:
    return _ask(state, context, number).nothing()


def _fold(state: RunState, batch: Batch[ScalingStatistic], context: Context, number: int) -> RunState:
    search = _search(state, number).take(batch.total, frozenset(batch.passed))
    summed: pairs.Pairs = state.results[pairs.PAIRS.name]
    missing = {name: why for name, why in context.unheard(batch.passed).items() if name not in summed.missing}
    state = state.with_result(SCALING_NAMES[number - 1], PairScaling(search, missing))
    for name in SCALING_NAMES[number:] if search.is_done else ():  # they have nothing left to do
        state = state.with_result(name, PairScaling(search, {}))
    return state


SCALINGS = [
    Phase(
        name,
        EVALUATE,
        partial(_ask, number=number),
        partial(_nothing, number=number),
        partial(_fold, number=number),
        audience=COUNTED,
        among=pairs.summed,
    )
    for number, name in enumerate(SCALING_NAMES, start=1)
]
