"""Phase "gram": the Gram matrix of the parties' samples, see `model.gram`.

Every counted party sends the sums of its samples, by hashes that follow from the
candidates, with weights of the classes that follow from the counts. The server solves a
regression, which becomes part of the model.

Asked are the parties whose counts are in the sum; one that gives no answer is missing
from this exchange alone. The sums tell far more of the samples than counts: those of a
fold with fewer samples than there are rows determine the responses of its samples up to
a rotation. In clear, a class stays at home of which a party has samples in a fold, but
fewer than `min_examples`. With noisy counts there is no Gram matrix.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.announced_specs import MAX_CHARS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.labels import Codes
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import COUNTED, Context, Phase, RunState
from flwr_flynn.federated.protocol import TRAIN, Config, Entry, Scalar, key, refusing
from flwr_flynn.federated.reply_fields import PLAIN, Field, Sizes
from flwr_flynn.federated.request import (
    Measured,
    RunRequest,
    check_run,
    register,
)
from flwr_flynn.federated.run_spec import RUN_ENTRIES, RunSpec
from flwr_flynn.federated.tally import Tally
from flwr_flynn.federated.views import View, progress
from flwr_flynn.model.gram import (
    LARGEST_CLASS_WEIGHT,
    LARGEST_PRODUCT,
    LEVELS,
    N_FOLDS,
    GramMatrix,
    GramScoring,
    checked_gram_specs,
    class_weights,
    fold_sizes,
    gram_specs,
    memory_of_gram,
)

log = logging.getLogger("flwr")  # Flower's own, which is not imported here

_CAPACITY = (2**63 - 1) // LARGEST_PRODUCT  # samples whose sums are int64


@register
@dataclass(frozen=True)
class GramRequest(RunRequest[GramMatrix]):
    """Ask for the Gram matrix."""

    run: RunSpec  # its specs are the hashes of the Gram matrix
    weights: tuple[int, ...]  # one for each class

    phase = "gram"
    sentence = (
        "Products of rows: a person may be singled out where rows are few, so "
        "they need gram=true or secure."
    )

    entries = RUN_ENTRIES | {"weights": Entry(str, MAX_CHARS)}
    consent = "gram"

    def to_config(self) -> dict[str, Scalar]:
        return {**super().to_config(), key("weights"): json.dumps(self.weights)}

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> GramRequest:
        run = RunSpec.from_config(config)
        with refusing(key("specs")):
            checked_gram_specs(run.specs)
        weights = config.integers("weights", run.n_classes, 1, LARGEST_CLASS_WEIGHT)
        n_rows = _n_rows(run)
        needed = memory_of_gram(n_rows, run.n_classes)
        options.check_memory(needed, f"products of the Gram matrix of {n_rows} rows")
        check_run(run, config, options)
        return cls(run, tuple(weights))

    def measured(self, view: View) -> Measured[GramMatrix]:
        X, codes = view.samples_of(self.run)
        n_counted = len(codes)
        least = view.options.min_examples
        if self.bound is None and least > 1:
            X, codes = _without_few(X, codes, self.run.n_classes, least)
        matrix = GramMatrix.from_data(
            self.run.specs,
            self.weights,
            X,
            codes,
            view.options.n_jobs,
            progress(len(codes)),
        )
        return Measured(matrix, n_counted)

    def fields(self, sizes: Sizes) -> list[Field]:
        n_rows = _n_rows(self.run)
        n_classes = self.run.n_classes
        # The products of a fold are the upper triangle row by row; its sums are those
        # of the rows by class.
        return [
            Field("class sizes", (N_FOLDS, n_classes), sizes.per_class, PLAIN),
            Field(
                "products",
                (N_FOLDS, n_rows * (n_rows + 1) // 2),
                LEVELS**2 * max(self.weights) * sizes.total,
            ),
            Field("sums", (N_FOLDS * n_classes, n_rows), LEVELS * sizes.total),
        ]

    def parts(self, statistic: GramMatrix) -> list[Array]:
        return [
            statistic.n_per_class,
            statistic.products,
            statistic.sums.reshape(-1, _n_rows(self.run)),
        ]

    def of_parts(self, parts: list[Array], n_parties: int) -> GramMatrix:
        sizes, products, sums = parts
        n_examples = sum(sizes.ravel().tolist())
        if n_examples > _CAPACITY:
            raise PayloadError(
                "Gram matrix", f"that of at most {_CAPACITY} samples", n_examples
            )
        by_class = sums.reshape(N_FOLDS, self.run.n_classes, _n_rows(self.run))
        weights = np.array(self.weights)
        folds = zip(products, by_class, sizes, strict=True)
        if not all(_is_possible(weights, *fold) for fold in folds):
            raise PayloadError(
                "Gram matrix",
                "products and sums that so many samples can have",
                "others",
            )
        return GramMatrix((products, by_class, sizes))


def _n_rows(run: RunSpec) -> int:
    """Rows of all hashes together."""
    return sum(spec.hash_dim for spec in run.specs)


def _without_few(
    X: Array, codes: Codes, n_classes: int, least: int
) -> tuple[Array, Codes]:
    """Samples and class codes without small classes.

    Of these a fold has some samples, but fewer than `least`.
    """
    sizes = fold_sizes(X, codes, n_classes)
    stays = ~np.any((sizes > 0) & (sizes < least), axis=0)[codes]
    if stays.all():
        return X, codes
    text = (
        "FlyNN: %s samples are not in the Gram matrix: a fold has fewer than "
        "%s of a class, see min-examples"
    )
    log.warning(text, int((~stays).sum()), least)
    return X[stays], codes[stays]


def _is_possible(weights: Array, products: Array, sums: Array, sizes: Array) -> bool:
    """True if samples can have the sums of a fold, as far as single products tell.

    False sums could spoil the whole matrix.
    """
    if (sums > LEVELS * sizes[:, None]).any():  # else totals may be beyond int64
        return False
    totals = weights @ sums
    n_weighted = sum((weights * sizes).tolist())
    start = 0
    for index, total in enumerate(totals.tolist()):
        row = products[start : start + len(totals) - index]
        start += len(row)
        square = int(row[0])
        if total > square or total * total > n_weighted * square:
            return False
        if (row > LEVELS * np.minimum(total, totals[index:])).any():
            return False
    return True


@dataclass(frozen=True, eq=False)
class GramTally(Tally[GramMatrix]):
    """Gram matrices that are added up."""

    capacity = _CAPACITY

    def load(self, statistic: GramMatrix) -> int:
        return sum(statistic.n_per_class.ravel().tolist())

    def check(self, statistic: GramMatrix, sizes: Sizes) -> None:
        n_per_class = statistic.n_per_class.sum(axis=0)
        if not ((n_per_class == sizes.per_class) | (n_per_class == 0)).all():
            raise PayloadError(
                "Gram matrix",
                "the party's samples of each class as counted, or none",
                "other numbers",
            )


@dataclass(frozen=True)
class GramResult:
    """The scores from the Gram matrix, and its size."""

    scoring: GramScoring | None
    """None where no party with samples replied, or sums lack a class."""
    folds: tuple[GramScoring, ...]  # see `GramScorings`
    n_rows: int
    n_examples: int  # fewer than are counted where small classes stay at home


def _ask(state: RunState, context: Context) -> GramTally:
    counts = state.results["counts"].parts[0]
    n_rows = context.options.gram_rows(
        counts.n_examples, state.run_spec.spec.n_features
    )
    run = replace(state.run_spec, specs=gram_specs(state.run_spec.specs, n_rows))
    return GramTally(GramRequest(run, class_weights(counts.n_per_class)))


def _solve(state: RunState, batch: Batch[GramMatrix], context: Context) -> RunState:
    request: GramRequest = context.request
    is_empty = batch.total.n_per_class.sum(axis=0) == 0
    scoring = None
    folds: tuple[GramScoring, ...] = ()
    if not state.results["counts"].parts[0].n_per_class[is_empty].any():
        # Else the scores would speak against a class that they never saw.
        scorings = batch.total.scorings(request.run.specs, request.weights)
        if scorings is not None:
            scoring = scorings.whole
            folds = scorings.folds
    n_examples = sum(batch.total.n_per_class.ravel().tolist())
    result = GramResult(scoring, folds, _n_rows(request.run), n_examples)
    return state.with_result(GRAM.name, result)


_PRODUCTS = (
    "products of the samples' hashes with each other in two folds, and their "
    "sums by class"
)
# A run that stopped here resumes at the selection: the products depend on candidates
# that are not selected, too, which are not saved.
GRAM = Phase(
    "gram",
    TRAIN,
    _ask,
    _solve,
    audience=COUNTED,
    resumes_at=("selection",),
    content=_PRODUCTS,
    applies=lambda options: options.has_gram,
)
