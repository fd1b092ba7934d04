"""Phases "pair scaling 1" to "pair scaling 5": what the scores from pair sums confuse, see `model.matrix_scaling`.

The server sends the scores' weights with the matrix that it tries; each party answers with loss and gradient over its
training samples, each about as if it had been left out. The best matrix becomes part of the model.

Asked are the parties in the pair sums; one that gives no answer is missing from that exchange alone, and the server
begins its search anew with those that are there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from sklearn.utils import gen_batches

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
    statistic_of,
)
from flwr_flynn.model.pair_readout import PairReadout
from flwr_flynn.model.pairs import memory_of_pairs
from flwr_flynn.model.subsample import N_LEFT_OUT, kept


@register
@dataclass(frozen=True, eq=False)
class PairScalingRequest(Summed[ScalingStatistic]):
    """Ask for loss and gradient of scores by a matrix, and for the curvature at the identity."""

    run: RunSpec  # with the specs of the pair sums
    readout: PairReadout  # without a matrix
    n_per_class: Array  # samples in the pair sums, (L,)
    matrix: Array

    phase = "pair scaling"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        entries = pairs_entries(self.run, self.readout)
        return {**self.run.to_config(), **entries, key("sizes"): json.dumps(self.n_per_class.tolist())}

    def arrays(self) -> list[Array]:
        return [pack_signed(self.readout.weights), pack_signed(self.matrix)]

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: Party) -> PairScalingRequest:
        run = pairs.admitted(config, party, cls.phase)
        n_classes = run.n_classes
        if not is_scaled(n_classes):
            raise PayloadError("classes", "few enough for a matrix", n_classes)
        n_rows = sum(spec.hash_dim for spec in run.specs)
        needed = memory_of_pairs(n_rows, n_classes) + memory_of_scaling(n_classes, _BATCH)
        party.check_memory(needed, f"the scaling of the scores of {n_classes} classes")
        check_packed(arrays, 2, "weights", "two packed arrays")
        readout = announced_pairs(config, run, arrays[:1], party)
        if readout.matrix is not None:
            raise PayloadError(key("pairs"), "no matrix", "one")
        if readout.specs != tuple(run.specs):
            raise PayloadError(key("pair_specs"), "the specs of the run", "others")
        matrix = unpack_signed(arrays[1], (n_classes + 1, n_classes), LARGEST_WEIGHT).astype(np.int32)
        sizes = pairs.checked_sizes(config.json("sizes", 20 * n_classes + 10), n_classes, "sizes")
        return cls(run, readout, sizes, matrix)

    def measured(self, party: Party) -> tuple[ScalingStatistic, int]:
        (X, *_), codes = party.inputs(self.run)
        total, left_out = self.nothing(), np.flatnonzero(kept(X, codes, self.n_per_class, N_LEFT_OUT))
        for batch in gen_batches(len(left_out), _BATCH) if len(left_out) else ():
            rows = left_out[batch]  # of small classes, as a server may announce them, all samples are kept
            scores = self.readout.left_out(X[rows], codes[rows], self.n_per_class, party.options.n_jobs)
            total += statistic_of(scores, codes[rows], self.n_per_class, self.matrix)
        return total, len(codes)

    def nothing(self) -> ScalingStatistic:
        """The statistic of no samples."""
        return ScalingStatistic.zeros(self.run.n_classes, is_identity(self.matrix))

    @property
    def layout(self) -> Layout:
        return list(zip([each.shape for each in self.nothing().parts], largest(self.bound or 0), strict=False))

    def packed(self, statistic: ScalingStatistic) -> list[Array]:
        return [pack_signed(np.atleast_2d(each)) for each in statistic.parts]

    def parts(self, statistic: ScalingStatistic) -> list[Array]:
        return list(statistic.parts)

    def of_parts(self, parts: list[Array], n_parties: int) -> ScalingStatistic:
        return _checked(parts)

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> ScalingStatistic:
        sizes, expected = counted_sizes(member, "pair scaling"), [each.shape for each in self.nothing().parts]
        check_all(reply.announced, sizes, "pair scaling")
        check_packed(arrays, len(expected), "pair scaling", f"{len(expected)} packed arrays")
        parts, most_judged = [], min(sum(sizes.tolist()), _MOST_JUDGED)
        for array, shape, most in zip(arrays, expected, largest(most_judged), strict=False):
            rows, columns = shape if len(shape) == 2 else (1, shape[0])
            parts.append(unpack_signed(array, (rows, columns), most).reshape(shape))
        return _checked(parts)


_BATCH = 2**10  # samples whose scores are held at a time
_MOST_JUDGED = 2**28  # samples of a party: sums of 4096 parties have room in int64


def _checked(parts: Sequence[Array]) -> ScalingStatistic:
    loss, _, *curvature = parts
    if (loss < 0).any():
        raise PayloadError("loss", "from 0", int(loss[0]))
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
    return PairScalingRequest(summed.run, trial.readout, summed.fit.n_per_class, search.trial)


def _nothing(state: RunState, context: Context, number: int) -> ScalingStatistic:
    return _ask(state, context, number).nothing()


def _fold(state: RunState, batch: Batch[ScalingStatistic], context: Context, number: int) -> RunState:
    search = _search(state, number)
    if batch.passed:
        search = search.take(batch.total, frozenset(batch.passed))
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
