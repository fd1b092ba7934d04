"""Phases "pair scaling 1" to "pair scaling 5": what the scores from pair sums confuse, see `model.matrix_scaling`.

The server sends the scores' weights with the matrix that it tries; each party answers with loss, gradient and correct
predictions over its training samples, each about as if it had been left out. The best matrix becomes part of the model.

Asked are the parties in the pair sums; one that gives no answer is missing from that exchange alone, and the server
begins its search anew with those that are there.
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
from flwr_flynn.federated.phases.evaluation import PairScaling, announced_pairs, pairs_entries
from flwr_flynn.federated.phases.secure import Layout, Summed
from flwr_flynn.federated.phases.selection import check_all, counted_sizes
from flwr_flynn.federated.protocol import EVALUATE, Array, Config, Reply, Scalar, key, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.matrix_scaling import (
    LARGEST_WEIGHT,
    N_EXCHANGES,
    Scaling,
    ScalingStatistic,
    identity,
    largest,
    shapes,
    statistic_of,
)
from flwr_flynn.model.pair_readout import PairReadout
from flwr_flynn.model.pairs import is_scaled
from flwr_flynn.model.subsample import N_LEFT_OUT, kept


@register
@dataclass(frozen=True, eq=False)
class PairScalingRequest(Summed[ScalingStatistic]):
    """Ask for loss, gradient and correct predictions of scores by a matrix, and for the curvature at the identity."""

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
        check_packed(arrays, 2, "weights", "two packed arrays")
        readout = announced_pairs(config, run, arrays[:1], party)
        if readout.matrix is not None:
            raise PayloadError(key("pairs"), "no matrix", "one")
        matrix = unpack_signed(arrays[1], (n_classes + 1, n_classes), LARGEST_WEIGHT).astype(np.int32)
        return cls(run, readout, _sizes(config, n_classes), matrix)

    def measured(self, party: Party) -> tuple[ScalingStatistic, int]:
        (X, *_), codes = party.inputs(self.run)
        n_examples, left_out = len(codes), kept(X, codes, self.n_per_class, N_LEFT_OUT)
        codes = codes[left_out]
        scores = self.readout.left_out(X[left_out], codes, self.n_per_class, party.options.n_jobs)
        return statistic_of(scores, codes, self.n_per_class, self.matrix), n_examples

    @property
    def is_first(self) -> bool:
        """True at the identity: the answers have the curvature then."""
        return np.array_equal(self.matrix, identity(self.run.n_classes))

    @property
    def layout(self) -> Layout:
        return list(zip(shapes(self.run.n_classes, self.is_first), largest(self.bound or 0), strict=False))

    def packed(self, statistic: ScalingStatistic) -> list[Array]:
        return [pack_signed(np.atleast_2d(each)) for each in statistic.parts]

    def parts(self, statistic: ScalingStatistic) -> list[Array]:
        return list(statistic.parts)

    def of_parts(self, parts: list[Array], n_parties: int) -> ScalingStatistic:
        return _checked(parts, np.full(self.run.n_classes, n_parties * (self.bound or 0)))

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> ScalingStatistic:
        sizes, expected = counted_sizes(member, "pair scaling"), shapes(self.run.n_classes, self.is_first)
        check_all(reply.announced, sizes, "pair scaling")
        check_packed(arrays, len(expected), "pair scaling", f"{len(expected)} packed arrays")
        parts = []
        most_judged = min(sum(sizes.tolist()), _MOST_JUDGED)
        for array, shape, most in zip(arrays, expected, largest(most_judged), strict=False):
            rows, columns = shape if len(shape) == 2 else (1, shape[0])
            parts.append(unpack_signed(array, (rows, columns), most).reshape(shape))
        return _checked(parts, sizes)


_MOST_JUDGED = 2**16
"""Samples of a party that are judged, at most, many times over: sums of 1024 parties have room."""


def _checked(parts: Sequence[Array], sizes: Array) -> ScalingStatistic:
    n_per_class, correct, loss, _, *curvature = parts
    if (n_per_class < 0).any() or (n_per_class > sizes).any():
        raise PayloadError("pair scaling", "from 0 to the party's samples of the class", "entries outside")
    if (correct < 0).any() or (correct > n_per_class).any():
        raise PayloadError("correct", "from 0 to the samples of the class", "entries outside")
    if (loss < 0).any():
        raise PayloadError("loss", "from 0", int(loss[0]))
    if any((_diagonals(each) < 0).any() for each in curvature):
        raise PayloadError("curvature", "diagonals from 0", "negative ones")
    return ScalingStatistic(*parts)


def _diagonals(curvature: Array) -> Array:
    """Diagonals of matrices of which the rows have the upper triangle."""
    return curvature[:, np.cumsum([0, *range(len(curvature) + 1, 1, -1)])]


def _sizes(config: Config, n_classes: int) -> Array:
    """Samples of each class in the sums, as a server announced them."""
    values = config.json("sizes", 20 * n_classes + 10)
    if not isinstance(values, list) or len(values) != n_classes:
        raise PayloadError(key("sizes"), f"{n_classes} integers", type(values).__name__)
    if not all(type(value) is int and 0 <= value < 2**48 for value in values) or not any(values):
        raise PayloadError(key("sizes"), "integers from 0, not all 0", "others")
    return np.array(values, np.int64)


def _search(state: RunState, number: int) -> Scaling:
    if number > 1:
        result: PairScaling = state.results[_name(number - 1)]
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
    request = _ask(state, context, number)
    return ScalingStatistic.zeros(request.run.n_classes, request.is_first)


def _fold(state: RunState, batch: Batch[ScalingStatistic], context: Context, number: int) -> RunState:
    search = _search(state, number)
    if batch.total.n_per_class.any():
        search = search.take(batch.total, frozenset(batch.passed))
    summed: pairs.Pairs = state.results[pairs.PAIRS.name]
    missing = {name: why for name, why in context.unheard(batch.passed).items() if name not in summed.missing}
    last = N_EXCHANGES if search.is_done else number
    for each in range(number, last + 1):  # those that have nothing left to do, too
        state = state.with_result(_name(each), PairScaling(search, missing if each == number else {}))
    return state


def _name(number: int) -> str:
    return f"{PairScalingRequest.phase} {number}"


SCALINGS = [
    Phase(
        _name(number),
        EVALUATE,
        partial(_ask, number=number),
        partial(_nothing, number=number),
        partial(_fold, number=number),
        audience=COUNTED,
        among=pairs.summed,
    )
    for number in range(1, N_EXCHANGES + 1)
]
