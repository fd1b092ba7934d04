"""Phases "gram" and "gram evaluation": the Gram matrix of the parties' samples, see `model.gram`.

First every counted party sends its Gram matrix, by hashes that follow from the candidates. The server solves a ridge
regression at a few strengths. Then each party evaluates them by leave-one-out: how many of its training samples each
classifies correctly without the sample itself, and the log-losses. The best becomes part of the model.

Asked are the parties whose counts are in the sum, for the evaluation those in the Gram matrix; one that gives no answer
is missing from that exchange alone. The Gram matrix tells far more of the samples than counts: that of a party with
fewer samples than there are rows determines the responses of its samples up to a rotation. With noisy counts there is
none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flwr_flynn.errors import DataError, PayloadError, PrivacyError
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_signed, unpack_signed
from flwr_flynn.federated.layout import NUMBERS, PLAIN, Field, Sizes
from flwr_flynn.federated.permissions import SampleAccess
from flwr_flynn.federated.phase import COUNTED, Context, Phase, RunState
from flwr_flynn.federated.phases.selection import MAX_SAMPLE_LOSS
from flwr_flynn.federated.protocol import EVALUATE, EXACT, SECURE, Array, Config, Scalar, key
from flwr_flynn.federated.request import RunRequest, register
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.graded import LEVELS
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.gram import (
    DIRECTION_UNIT,
    GRAM_TEMPERATURES,
    LARGEST_PRODUCT,
    MEAN_UNIT,
    GramFit,
    GramMatrix,
    LeverageModel,
    gram_specs,
    memory_of_gram,
)
from flwr_flynn.model.gram_scoring import LARGEST_BIAS, LARGEST_WEIGHT, GramScoring, checked_gram_specs
from flwr_flynn.model.ridge import MOST_DIRECTIONS, MOST_STRENGTHS
from flwr_flynn.model.selection import N_LEFT_OUT, batches_of_kept

LARGEST_COLUMN = max(round(1 / DIRECTION_UNIT), round(LEVELS / MEAN_UNIT)) + 1
"""Largest magnitude of an entry of a direction, and of a mean response, as integers."""

_LARGEST_FIGURE = 1e18  # of sums of squared responses: of more samples than a sum has room for
_CAPACITY = (2**63 - 1) // LARGEST_PRODUCT  # samples whose sums are int64


@register
@dataclass(frozen=True)
class GramRequest(RunRequest[GramMatrix]):
    """Ask for the Gram matrix."""

    run: RunSpec  # with the hashes of the Gram matrix

    phase = "gram"
    channel = EVALUATE

    @property
    def n_rows(self) -> int:
        """Rows of all hashes together."""
        return n_rows_of(self.run)

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> GramRequest:
        return cls(admitted(config, party, cls.phase))

    def measured(self, party: SampleAccess) -> tuple[GramMatrix, int]:
        X, codes = party.inputs(self.run)
        run, progress = self.run, party.progress(len(codes))
        sums = GramMatrix.from_data(run.specs, X, codes, run.n_classes, party.options.n_jobs, progress)
        return sums, len(codes)

    def load(self, statistic: GramMatrix) -> int:
        return sum(statistic.n_per_class.tolist())

    @property
    def capacity(self) -> int:
        return _CAPACITY

    def fields(self, sizes: Sizes) -> list[Field]:
        n_rows, n_classes = self.n_rows, self.run.n_classes
        return [  # the upper triangle of the products row by row, and the sums of the rows by class
            Field("class sizes", (n_classes,), sizes.per_class, PLAIN),
            Field("products", (1, n_rows * (n_rows + 1) // 2), LARGEST_PRODUCT * sizes.total),
            Field("sums", (n_classes, n_rows), LEVELS * sizes.total),
        ]

    def parts(self, statistic: GramMatrix) -> list[Array]:
        return [statistic.n_per_class, statistic.products[None], statistic.sums]

    def of_parts(self, parts: list[Array], n_parties: int) -> GramMatrix:
        sizes, products, sums = parts
        return _checked(products[0], sums, sizes)

    def check(self, statistic: GramMatrix, sizes: Sizes) -> None:
        if not np.array_equal(statistic.n_per_class, sizes.per_class):
            raise PayloadError("Gram matrix", "the party's samples of each class as counted", "other numbers")


def n_rows_of(run: RunSpec) -> int:
    """Rows of all hashes of the Gram matrix together."""
    return sum(spec.hash_dim for spec in run.specs)


def _checked(products: Array, sums: Array, sizes: Array) -> GramMatrix:
    """The Gram matrix, if samples can have it as far as single products tell: a few false ones could spoil it all."""
    if (n_examples := sum(sizes.tolist())) > _CAPACITY:
        raise PayloadError("Gram matrix", f"that of at most {_CAPACITY} samples", n_examples)
    totals, start = sums.sum(axis=0), 0
    is_possible = not (sums > LEVELS * sizes[:, None]).any()  # else biases would have no bounds
    for i, total in enumerate(totals.tolist()):
        row = products[start : start + len(totals) - i]
        start += len(row)
        square = int(row[0])
        is_possible &= total <= square and total * total <= n_examples * square
        is_possible &= not (row > LEVELS * np.minimum(total, totals[i:])).any()
    if not is_possible:
        raise PayloadError("Gram matrix", "products and sums that so many samples can have", "others")
    return GramMatrix((products, sums, sizes))


def admitted(config: Config, party: SampleAccess, phase: str) -> RunSpec:
    """The run of a request about the Gram matrix that a party answers; a `FlyNNError` if it does not."""
    run = RunSpec.from_config(config)
    try:
        checked_gram_specs(run.specs)
    except DataError as error:
        raise PayloadError(key("specs"), error.expected, error.got) from None
    n_rows = n_rows_of(run)
    party.check_memory(memory_of_gram(n_rows, run.n_classes), f"products of the Gram matrix of {n_rows} rows")
    party.check_run(run, config, phase, EXACT if run.bound is None else SECURE)
    if run.bound is None and not party.options.gram:  # results of chosen weights would tell the sums, too
        raise PrivacyError(
            "node-config gram", "true (FlyNNClient: gram=True) to let the Gram matrix leave in clear", False
        )
    return run


@register
@dataclass(frozen=True, eq=False)
class GramEvaluationRequest(RunRequest[Tables]):
    """Ask for the leave-one-out results of a regression at each of its strengths and of `GRAM_TEMPERATURES`."""

    run: RunSpec  # with the hashes of the Gram matrix
    fit: GramFit

    phase = "gram evaluation"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        leverage = self.fit.leverage
        vectors = [each.tolist() for each in (leverage.eigenvalues, leverage.strengths, leverage.residual_leverage)]
        figures = [self.fit.bias.tolist(), self.fit.n_per_class.tolist(), *vectors, leverage.residual]
        return {**super().to_config(), key("fit"): json.dumps(figures)}

    def arrays(self) -> list[Array]:
        leverage = self.fit.leverage
        weights = np.concatenate(list(self.fit.weights), axis=1)  # (m, S L)
        return [pack_signed(weights), pack_signed(np.column_stack([leverage.directions, leverage.mean]))]

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> GramEvaluationRequest:
        run = admitted(config, party, cls.phase)
        bias, sizes, values, strengths, rest, outside = _figures(config, run.n_classes, n_rows_of(run))
        check_packed(arrays, 2, "fit", "packed weights, and packed directions with the mean")
        n_rows, n_strengths = n_rows_of(run), len(strengths)
        weights = unpack_signed(arrays[0], (n_rows, n_strengths * run.n_classes), LARGEST_WEIGHT).astype(np.int32)
        columns = unpack_signed(arrays[1], (n_rows, len(values) + 1), LARGEST_COLUMN).astype(np.int32)
        leverage = LeverageModel(columns[:, :-1], columns[:, -1], values, outside, strengths, rest)
        return cls(run, GramFit(np.stack(np.split(weights, n_strengths, axis=1)), bias, sizes, leverage))

    def measured(self, party: SampleAccess) -> tuple[Tables, int]:
        X, codes = party.inputs(self.run)
        left_out, correct, losses = (table.copy() for table in self.zero.tables)
        for rows in batches_of_kept(X, codes, self.fit.n_per_class, N_LEFT_OUT):
            found = self.fit.tables(self.run.specs, X[rows], codes[rows], party.options.n_jobs)
            left_out += np.bincount(codes[rows], minlength=self.run.n_classes)
            correct += found[0].reshape(correct.shape)
            losses += found[1].reshape(losses.shape)
        return Tables((left_out, correct, losses)), len(codes)

    def fields(self, sizes: Sizes) -> list[Field]:
        shape = self.fit.n_strengths * len(GRAM_TEMPERATURES), self.run.n_classes
        return [
            Field("left out", (1, self.run.n_classes), sizes.per_class, NUMBERS),
            Field("correct", shape, sizes.per_class, NUMBERS),
            Field("log-losses", shape, MAX_SAMPLE_LOSS * sizes.per_class, NUMBERS),
        ]

    def parts(self, statistic: Tables) -> list[Array]:
        return list(statistic.tables)

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        if (parts[1] > parts[0]).any() or (parts[2] > MAX_SAMPLE_LOSS * parts[0]).any():
            raise PayloadError("correct, log-losses", "those of the samples left out", "larger ones")
        return Tables(tuple(parts))


def _figures(config: Config, n_classes: int, n_rows: int) -> tuple[Array, Array, Array, Array, Array, float]:
    """Biases, class sizes, values, strengths, rests and outside of a `GramFit` that a server announced."""
    most = MOST_STRENGTHS * (n_classes + 2) + n_classes + MOST_DIRECTIONS + 1
    lists, expected = config.json("fit", 30 * most + 100), "five lists and a number, of a regression"
    if not isinstance(lists, list) or len(lists) != 6 or not all(isinstance(each, list) for each in lists[:5]):
        raise PayloadError(key("fit"), expected, type(lists).__name__)
    bias, sizes, values, strengths, rest, outside = lists
    n_strengths = len(strengths)
    if not (1 <= n_strengths <= MOST_STRENGTHS and 1 <= len(values) <= min(MOST_DIRECTIONS, n_rows)):
        expected = f"1 to {MOST_STRENGTHS} strengths, and 1 to {min(MOST_DIRECTIONS, n_rows)} directions"
        raise PayloadError(key("fit"), expected, f"{n_strengths} and {len(values)}")
    if len(rest) != n_strengths or len(bias) != n_strengths or any(type(row) is not list for row in bias):
        raise PayloadError(key("fit"), f"{n_strengths} lists of biases, and as many rests", f"{len(bias)}, {len(rest)}")
    if not all(len(row) == n_classes and all(type(n) is int and abs(n) <= LARGEST_BIAS for n in row) for row in bias):
        raise PayloadError(key("fit"), f"{n_classes} biases up to {LARGEST_BIAS} for each strength", "others")
    numbers = [*values, *strengths, *rest, outside]
    if not all(type(each) in (int, float) and 0 <= each <= _LARGEST_FIGURE for each in numbers) or not all(strengths):
        raise PayloadError(key("fit"), f"numbers from 0 to {_LARGEST_FIGURE:g}, strengths above 0", "others")
    if len(sizes) != n_classes or not all(type(n) is int and 0 <= n < 2**48 for n in sizes) or not any(sizes):
        raise PayloadError(key("fit"), f"{n_classes} class sizes from 0, not all 0", "others")
    floats = [np.array(each, np.float64) for each in (values, strengths, rest)]
    return (np.array(bias, np.int64), np.array(sizes, np.int64), floats[0], floats[1], floats[2], float(outside))


@dataclass(frozen=True)
class GramSolution:
    """The regression, the parties in the Gram matrix, and those missing from it."""

    run: RunSpec  # with the hashes of the Gram matrix
    fit: GramFit
    answered: frozenset[str]  # cids of the parties in the sums
    missing: dict[str, str]  # reasons of parties without an answer, by name


@dataclass(frozen=True)
class GramResult:
    """The scores from the Gram matrix, and the parties missing from their evaluation."""

    scoring: GramScoring | None  # None where no party with samples replied, or sums lack a class
    missing: dict[str, str]


def _ask(state: RunState, context: Context) -> GramRequest:
    n_examples = state.results["counts"].parts[0].n_examples
    n_rows = context.options.gram_rows(n_examples, state.run_spec.spec.n_features)
    return GramRequest(replace(state.run_spec, specs=gram_specs(state.run_spec.specs, n_rows)))


def _solve(state: RunState, batch: Batch[GramMatrix], context: Context) -> RunState:
    fit, missing = GramFit.of(batch.total, -1), context.unanswered_by(batch.passed)
    state = state.with_result(GRAM.name, GramSolution(context.request.run, fit, frozenset(batch.passed), missing))
    is_empty = fit.n_per_class == 0
    if is_empty.all() or state.results["counts"].parts[0].n_per_class[is_empty].any():
        # The scores would speak against a class that they never saw: there are none then, and no evaluation.
        return state.with_result(GRAM_EVALUATION.name, GramResult(None, missing))
    return state


def _ask_evaluation(state: RunState, context: Context) -> GramEvaluationRequest:
    result: GramSolution = state.results[GRAM.name]
    return GramEvaluationRequest(result.run, result.fit)


def _choose(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    result: GramSolution = state.results[GRAM.name]
    (left_out,), *tables = batch.total.tables
    correct, losses = (table.reshape(result.fit.n_strengths, len(GRAM_TEMPERATURES), -1) for table in tables)
    coverage = int(result.fit.n_per_class.sum()) / max(state.results["counts"].parts[0].n_examples, 1)
    scoring = result.fit.scoring(result.run.specs, left_out, correct, losses, coverage)
    silent = {name: why for name, why in context.unanswered_by(batch.passed).items() if name not in result.missing}
    return state.with_result(GRAM_EVALUATION.name, GramResult(scoring, silent))


def summed(state: RunState) -> frozenset[str]:
    """Cids of the parties in the Gram matrix: only their samples can be left out of it."""
    result: GramSolution = state.results[GRAM.name]
    return result.answered


# They depend on candidates that are not selected, too, which are not saved.
_PRODUCTS = "products of the samples' hashes with each other, and their sums by class"
GRAM = Phase("gram", EVALUATE, _ask, _solve, audience=COUNTED, resumes_at=("selection",), content=_PRODUCTS)
GRAM_EVALUATION = Phase(
    "gram evaluation",
    EVALUATE,
    _ask_evaluation,
    _choose,
    audience=COUNTED,
    eligible=summed,
    resumes_at=("selection", "gram"),
    content="correct samples and log-losses by leave-one-out, for each regression",
)
