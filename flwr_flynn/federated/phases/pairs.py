"""Phases "pairs" and "pair trial": pair sums, and what the scores from them are worth, see `model.pairs`.

First every counted party sends its pair sums by hashes that follow from the candidates. The server solves a ridge
regression, and sends its weights for a trial: each party answers how many of its training samples they classify
correctly, about as if the sample had been left out, with the log-losses that calibrate them. The weights become part of
the model.

Asked are the parties whose counts are in the sum, for the trial those in the pair sums; one that gives no answer is
missing from that exchange alone. Pair sums tell far more of the samples than counts: the sums of a party with fewer
samples than there are rows determine the responses of its samples up to a rotation. With noisy counts there are none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flwr_flynn.errors import DataError, PayloadError, PrivacyError
from flwr_flynn.federated.access import SampleAccess
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_signed, unpack_signed
from flwr_flynn.federated.layout import PLAIN, Field, Sizes
from flwr_flynn.federated.outcome import run_of_members
from flwr_flynn.federated.phase import COUNTED, Context, Phase, RunState
from flwr_flynn.federated.phases.selection import LeaveOneOutRequest
from flwr_flynn.federated.protocol import EVALUATE, EXACT, SECURE, Array, Config, Scalar, key
from flwr_flynn.federated.request import RunRequest, register
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.statistics import Tables
from flwr_flynn.hashing.graded import LEVELS
from flwr_flynn.model.leave_one_out import TEMPERATURES, LeaveOneOutTables
from flwr_flynn.model.pair_scoring import (
    LARGEST_BIAS,
    LARGEST_LEVERAGE,
    LARGEST_WEIGHT,
    PairScoring,
    checked_pair_specs,
)
from flwr_flynn.model.pairs import LARGEST_PRODUCT, PairFit, PairSums, memory_of_pairs, pair_specs
from flwr_flynn.model.subsample import N_LEFT_OUT, batches_of_kept

_CAPACITY = (2**63 - 1) // LARGEST_PRODUCT  # samples whose sums are int64


@register
@dataclass(frozen=True)
class PairsRequest(RunRequest[PairSums]):
    """Ask for pair sums."""

    run: RunSpec  # with the specs of the pair sums

    phase = "pairs"
    channel = EVALUATE

    @property
    def n_rows(self) -> int:
        """Rows of all hashes together."""
        return n_rows_of(self.run)

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> PairsRequest:
        return cls(admitted(config, party, cls.phase))

    def measured(self, party: SampleAccess) -> tuple[PairSums, int]:
        (X, *_), codes = party.inputs(self.run)  # hashes are all of aligned samples, or none
        run, progress = self.run, party.progress(len(codes))
        sums = PairSums.from_data(run.specs, X, codes, run.n_classes, party.options.n_jobs, progress)
        return sums, len(codes)

    def load(self, statistic: PairSums) -> int:
        return sum(statistic.n_per_class.tolist())

    @property
    def capacity(self) -> int:
        return _CAPACITY

    def fields(self, sizes: Sizes) -> list[Field]:
        return pair_fields(self.n_rows, self.run.n_classes, sizes)

    def parts(self, statistic: PairSums) -> list[Array]:
        return [statistic.n_per_class, statistic.products[None], statistic.sums]

    def of_parts(self, parts: list[Array], n_parties: int) -> PairSums:
        sizes, products, sums = parts
        return _checked(products[0], sums, sizes)

    def check(self, statistic: PairSums, sizes: Sizes) -> None:
        if not np.array_equal(statistic.n_per_class, sizes.per_class):
            raise PayloadError("pair sums", "the party's samples of each class as counted", "other numbers")


def pair_fields(n_rows: int, n_classes: int, sizes: Sizes) -> list[Field]:
    """Samples of each class, the upper triangle of the products row by row, and the sums of the rows by class."""
    return [
        Field("class sizes", (n_classes,), sizes.per_class, PLAIN),
        Field("products", (1, n_rows * (n_rows + 1) // 2), LARGEST_PRODUCT * sizes.total),
        Field("sums", (n_classes, n_rows), LEVELS * sizes.total),
    ]


def n_rows_of(run: RunSpec) -> int:
    """Rows of all hashes of pair sums together."""
    return sum(spec.hash_dim for spec in run.specs)


def _checked(products: Array, sums: Array, sizes: Array) -> PairSums:
    """Pair sums that samples can have as far as single products tell: a few false ones could spoil the regression."""
    if (n_examples := sum(sizes.tolist())) > _CAPACITY:
        raise PayloadError("pair sums", f"those of at most {_CAPACITY} samples", n_examples)
    totals, start = sums.sum(axis=0), 0
    is_possible = not (sums > LEVELS * sizes[:, None]).any()  # else biases would have no bounds
    for i, total in enumerate(totals.tolist()):
        row = products[start : start + len(totals) - i]
        start += len(row)
        square = int(row[0])
        is_possible &= total <= square and total * total <= n_examples * square
        is_possible &= not (row > LEVELS * np.minimum(total, totals[i:])).any()
    if not is_possible:
        raise PayloadError("pair sums", "products and sums that so many samples can have", "others")
    return PairSums(products, sums, sizes)


def admitted(config: Config, party: SampleAccess, phase: str) -> RunSpec:
    """The run of a request about pair sums that a party answers; a `FlyNNError` if it does not."""
    run = RunSpec.from_config(config)
    try:
        checked_pair_specs(run.specs)
    except DataError as error:
        raise PayloadError(key("specs"), error.expected, error.got) from None
    n_rows = n_rows_of(run)
    party.check_memory(memory_of_pairs(n_rows, run.n_classes), f"pair sums of {n_rows} rows")
    party.check_run(run, config, phase, EXACT if run.bound is None else SECURE)
    if run.bound is None and not party.options.pairs:  # trials of chosen weights would tell the sums, too
        raise PrivacyError("node-config pairs", "true, without which no pair sums leave in clear", False)
    return run


@register
@dataclass(frozen=True, eq=False)
class PairTrialRequest(LeaveOneOutRequest):
    """Ask for the samples that given weights classify correctly, and for log-losses, at each of `TEMPERATURES`."""

    run: RunSpec  # with the specs of the pair sums
    fit: PairFit

    phase = "pair trial"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        figures = [each.tolist() for each in (self.fit.bias, self.fit.n_per_class, self.fit.leverages)]
        return {**super().to_config(), key("fit"): json.dumps(figures)}

    def arrays(self) -> list[Array]:
        return [pack_signed(self.fit.weights)]

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> PairTrialRequest:
        run = admitted(config, party, cls.phase)
        check_packed(arrays, 1, "weights", "one packed array")
        weights = unpack_signed(arrays[0], (n_rows_of(run), run.n_classes), LARGEST_WEIGHT).astype(np.int32)
        return cls(run, PairFit(weights, *_figures(config, run.n_classes)))

    def measured(self, party: SampleAccess) -> tuple[Tables, int]:
        (X, *_), codes = party.inputs(self.run)
        totals = list(self.zero.tables)
        for rows in batches_of_kept(X, codes, self.fit.n_per_class, N_LEFT_OUT):
            tables = self.fit.tables(self.run.specs, X[rows], codes[rows], party.options.n_jobs)
            left_out = np.bincount(codes[rows], minlength=self.run.n_classes)[None]
            for total, part in zip(totals, (left_out, *tables), strict=True):
                total += part
        return Tables(tuple(totals)), len(codes)

    @property
    def table_heights(self) -> list[tuple[int, int]]:
        return [(len(TEMPERATURES), 1)]


def _figures(config: Config, n_classes: int) -> tuple[Array, Array, Array]:
    """Biases, samples and leverages of the classes that a server announced."""
    values = config.json("fit", 80 * n_classes + 100)
    expected = f"{n_classes} biases, class sizes and leverages"
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(each, list) for each in values):
        raise PayloadError(key("fit"), expected, type(values).__name__)
    bias, sizes, leverages = values
    if any(len(each) != n_classes for each in values):
        raise PayloadError(key("fit"), expected, f"{len(bias)}, {len(sizes)} and {len(leverages)}")
    if not all(type(each) is int and abs(each) <= LARGEST_BIAS for each in bias):
        raise PayloadError(key("fit"), f"biases up to {LARGEST_BIAS}", "others")
    if not all(type(each) in (int, float) and 0 <= each <= LARGEST_LEVERAGE for each in leverages):
        raise PayloadError(key("fit"), f"leverages from 0 to {LARGEST_LEVERAGE}", "others")
    return np.array(bias, np.int64), checked_sizes(sizes, n_classes, "fit"), np.array(leverages, np.float64)


def checked_sizes(values: Any, n_classes: int, name: str) -> Array:
    """Samples of each class in the sums, (L,) int64, as a server announced them in an entry of this name."""
    expected = f"{n_classes} class sizes from 0, not all 0"
    if not isinstance(values, list) or len(values) != n_classes:
        raise PayloadError(key(name), expected, type(values).__name__)
    if not all(type(value) is int and 0 <= value < 2**48 for value in values) or not any(values):
        raise PayloadError(key(name), expected, "others")
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Pairs:
    """The result of the sums: the regression, who is in it, and who is missing from it."""

    run: RunSpec  # with the specs of the pair sums
    fit: PairFit
    answered: frozenset[str]  # cids of the parties in the sums
    missing: dict[str, str]  # reasons of parties without an answer, by name


@dataclass(frozen=True)
class PairTrial:
    """The result of the trial."""

    scoring: PairScoring | None  # None where no party with samples replied, or sums lack a class
    missing: dict[str, str]


def _ask(state: RunState, context: Context) -> PairsRequest:
    members, every = run_of_members(state, context.options), state.run_spec
    n_plain = len(every.specs) - every.n_aligned
    # Those that the members were chosen from: of aligned samples, or of the others.
    run = every.only(range(n_plain, len(every.specs)) if members.n_aligned else range(n_plain))
    specs = pair_specs(run.specs, context.options.pairs)
    return PairsRequest(replace(run, specs=specs, n_aligned=len(specs) if members.n_aligned else 0))


def _fold_sums(state: RunState, batch: Batch[PairSums], context: Context) -> RunState:
    fit, missing = PairFit.of(batch.total), context.unanswered_by(batch.passed)
    state = state.with_result(PAIRS.name, Pairs(_ask(state, context).run, fit, frozenset(batch.passed), missing))
    is_empty = fit.n_per_class == 0
    if is_empty.all() or state.results["counts"].parts[0].n_per_class[is_empty].any():
        # The scores would speak against a class that they never saw: there are none then, and no trial.
        return state.with_result(PAIR_TRIAL.name, PairTrial(None, missing))
    return state


def _ask_trial(state: RunState, context: Context) -> PairTrialRequest:
    result: Pairs = state.results[PAIRS.name]
    return PairTrialRequest(result.run, result.fit)


def _fold_trial(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    result: Pairs = state.results[PAIRS.name]
    selection = state.results.get("selection")
    left_out, *tables = batch.total.tables
    accuracy = None if selection is None else selection.accuracy
    scoring = result.fit.scoring(result.run.specs, left_out[0], LeaveOneOutTables(*tables), accuracy)
    silent = {name: why for name, why in context.unanswered_by(batch.passed).items() if name not in result.missing}
    return state.with_result(PAIR_TRIAL.name, PairTrial(scoring, silent))


def summed(state: RunState) -> frozenset[str]:
    """Cids of the parties in the sums: the trial takes their samples out again."""
    result: Pairs = state.results[PAIRS.name]
    return result.answered


# They depend on candidates that are not selected, too, and on the selection's accuracy, which are not saved.
PAIRS = Phase("pairs", EVALUATE, _ask, _fold_sums, audience=COUNTED, resumes_at=("selection",))
PAIR_TRIAL = Phase(
    "pair trial",
    EVALUATE,
    _ask_trial,
    _fold_trial,
    audience=COUNTED,
    eligible=summed,
    resumes_at=("selection", "pairs"),
)
