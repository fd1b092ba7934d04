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
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flwr_flynn._types import Array
from flwr_flynn.federated.announced_specs import MAX_CHARS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.gram_fields import (
    capacity,
    check_sizes,
    gram_fields,
    gram_of_parts,
    gram_parts,
    without_few,
)
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import COUNTED, Context, Phase, RunState
from flwr_flynn.federated.protocol import TRAIN, Config, Entry, Scalar, key, refusing
from flwr_flynn.federated.reply_fields import Field, Sizes
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
    GramMatrix,
    GramScoring,
    Responses,
    class_weights,
    memory_of_gram,
    responses_of,
)


@register
@dataclass(frozen=True)
class GramRequest(RunRequest[GramMatrix]):
    """Ask for the Gram matrix."""

    run: RunSpec  # its specs are the hashes of the Gram matrix
    weights: tuple[int, ...]  # one for each class

    phase = "gram"
    sentence = (
        "Products of rows: a person may be singled out where rows are few, so "
        "they need products=true or secure."
    )

    entries = RUN_ENTRIES | {"weights": Entry(str, MAX_CHARS)}
    consent = "products"

    def to_config(self) -> dict[str, Scalar]:
        return {**super().to_config(), key("weights"): json.dumps(self.weights)}

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> GramRequest:
        run = RunSpec.from_config(config)
        with refusing(key("specs")):
            n_rows = _terms(run).n_terms
        weights = config.integers("weights", run.n_classes, 1, LARGEST_CLASS_WEIGHT)
        needed = memory_of_gram(n_rows, run.n_classes)
        options.check_memory(needed, f"products of the Gram matrix of {n_rows} rows")
        check_run(run, config, options)
        return cls(run, tuple(weights))

    def measured(self, view: View) -> Measured[GramMatrix]:
        X, codes = view.samples_of(self.run)
        n_counted = len(codes)
        if self.bound is None:
            least = view.options.min_examples
            X, codes = without_few(X, codes, self.run.n_classes, least)
        matrix = GramMatrix.from_data(
            _terms(self.run),
            self.weights,
            X,
            codes,
            view.options.n_jobs,
            progress(len(codes)),
        )
        return Measured(matrix, n_counted)

    def fields(self, sizes: Sizes) -> list[Field]:
        return gram_fields(_terms(self.run), self.weights, sizes)

    def parts(self, statistic: GramMatrix) -> list[Array]:
        return gram_parts(statistic)

    def of_parts(self, parts: list[Array], n_parties: int) -> GramMatrix:
        return gram_of_parts(parts, _terms(self.run), self.weights)


def _terms(run: RunSpec) -> Responses:
    """The responses by the hashes of a Gram matrix."""
    return Responses(run.specs)


@dataclass(frozen=True, eq=False)
class GramTally(Tally[GramMatrix]):
    """Gram matrices that are added up."""

    request: GramRequest

    @property
    def capacity(self) -> int:
        return capacity(_terms(self.request.run))

    def load(self, statistic: GramMatrix) -> int:
        return sum(statistic.n_per_class.ravel().tolist())

    def check(self, statistic: GramMatrix, sizes: Sizes) -> None:
        check_sizes(statistic, sizes)


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
    terms = responses_of(state.run_spec.specs, n_rows)
    run = replace(state.run_spec, specs=terms.specs)
    return GramTally(GramRequest(run, class_weights(counts.n_per_class)))


def _solve(state: RunState, batch: Batch[GramMatrix], context: Context) -> RunState:
    request: GramRequest = context.request
    is_empty = batch.total.n_per_class.sum(axis=0) == 0
    scoring = None
    folds: tuple[GramScoring, ...] = ()
    if not state.results["counts"].parts[0].n_per_class[is_empty].any():
        # Else the scores would speak against a class that they never saw.
        scorings = batch.total.scorings(_terms(request.run), request.weights)
        if scorings is not None:
            scoring = scorings.whole
            folds = scorings.folds
    n_examples = sum(batch.total.n_per_class.ravel().tolist())
    result = GramResult(scoring, folds, _terms(request.run).n_terms, n_examples)
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
