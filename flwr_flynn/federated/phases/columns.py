"""Phase "columns": exact histograms of the columns, from which specs follow.

They tell five digits of every value. With `min_examples` above 1 a party tells some
order statistics of each class alone, in groups of a size that it tells, whatever a
request says, see `ColumnHistograms.from_data`. The key of a value has 32 bits: sign,
exponent and the first 20 bits of a float64, turned so that keys rise with the values. A
gap has the key of NaN, above all numbers. For each filled cell, in order of class,
column and key, a party sends the number of cells since the one before, and its count
less 1.

In a secure run "bins 1" to "bins 5", and then the samples of each class, take its
place. Vectors of a secure sum have a length that everybody knows. So of the histograms,
of millions of bins, parties tell only what specs follow from: some quantiles, found by
splitting bins again and again, and the samples of each class between these. Requests
"bins" have the entries of "columns", "flynn-bound", "flynn-by-class" and, as packed
numbers, the distance of each cut but the first from the one before, less 1. A cut is
column * 2**32 + key. The answer is the number of samples from each cut to the next, (1,
cuts) or by class (L, cuts).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from flwr_flynn._types import Array, Floats, Integers
from flwr_flynn.errors import ConfigError, DataError, PayloadError
from flwr_flynn.federated.announced_specs import MAX_CHARS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_numbers, unpack_numbers
from flwr_flynn.federated.labels import Label, checked_classes, codes_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import FLOOR_OF_SITE, PartyOptions, SiteSetting
from flwr_flynn.federated.phase import (
    Context,
    Description,
    Needs,
    Phase,
    RunState,
    Scale,
    Section,
)
from flwr_flynn.federated.protocol import (
    FLOOR,
    TRAIN,
    Answer,
    Config,
    Entry,
    Scalars,
    refusing,
    sent,
)
from flwr_flynn.federated.reply_fields import NUMBERS, PLAIN, Field, Sizes
from flwr_flynn.federated.request import Measured, Request, register
from flwr_flynn.federated.run_spec import (
    NAMES,
    announced_bound,
    announced_names,
    names_in_json,
)
from flwr_flynn.federated.samples import Features, checked_names
from flwr_flynn.federated.tally import AnnouncedTally, Facts, Tally
from flwr_flynn.federated.views import View
from flwr_flynn.hashing.rank_codes import FIRST_GAP, KEY_BITS, MANTISSA_BITS
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.candidates import HashPlan, derive_specs
from flwr_flynn.model.column_histograms import LARGEST_GROUP, ColumnHistograms
from flwr_flynn.tables.schema import Schema

_BINS_CONTENT = "samples in bins of the columns"
_CONTENT = "histograms of the columns, and the samples of each class"
_MOST_CELLS = 2**24  # cells of one party: they take 128 MiB a column of numbers
_CELL_BYTES = 64  # memory of a cell while it is made, roughly
_MOST_SHOWN = 100  # parties whose columns the report shows
_SUM_BYTES = 96  # memory of a cell of the sum while relevance follows, roughly

USUAL_BINS: int = 2 ** (MANTISSA_BITS + 6)
"""Bins of a column with values of both signs within 32 powers of two."""


_COLUMN_ENTRIES = {
    "n_features": Entry(int, 2**31 - 1, least=1),
    "classes": Entry(str, MAX_CHARS),
    "feature_names": NAMES,
}


@register
@dataclass(frozen=True)
class ColumnsRequest(Request[ColumnHistograms]):
    """Ask for the histograms of the columns. The floor is the party's own."""

    n_features: int
    classes: Sequence[Label]
    features: Features = ()

    phase = "columns"
    sentence = (
        "Every min-examples-th value of a column, by class: no row follows, "
        "but a value may be one person's."
    )
    entries = _COLUMN_ENTRIES

    def to_config(self) -> Scalars:
        return sent(
            n_features=self.n_features,
            classes=json.dumps(self.classes),
            feature_names=names_in_json(self.features),
        )

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> ColumnsRequest:
        n_features = config["n_features"]
        with refusing():
            classes = checked_classes(config.json("classes"))
            names = announced_names(config)
            if names is not None:
                names = checked_names(names, n_features)
        needed = memory_of_sums(n_features, len(classes))
        what = f"histograms of {n_features} columns, {len(classes)} classes"
        options.check_memory(needed, what)
        return cls(n_features, classes, names or ())

    def answer(self, view: View) -> Answer:
        answer = super().answer(view)
        options = view.options
        if self.bound is None and (options.table_one or options.min_examples == 1):
            answer.metrics[FLOOR] = options.min_examples
        return answer

    def measured(self, view: View) -> Measured[ColumnHistograms]:
        """The histograms of the party's samples, in groups of at least its floor."""
        n_features = self.n_features
        X, codes = view.labelled(partial(codes_of, self.classes), n_features)
        n_values = X.shape[0] * n_features
        view.options.check_memory(
            _CELL_BYTES * min(n_values, _MOST_CELLS),
            f"histograms of {n_features} columns",
            False,
        )
        histograms = ColumnHistograms.from_data(
            X, codes, len(self.classes), view.options.min_examples
        )
        if len(histograms.cells) > _MOST_CELLS:
            raise PayloadError(
                "histograms",
                f"at most {_MOST_CELLS} cells (a larger min-examples makes fewer)",
                "more",
            )
        return Measured(histograms, histograms.n_examples)

    def fields(self, sizes: Sizes) -> list[Field]:
        n_classes = len(self.classes)
        n_cells = min(sizes.total * self.n_features, _MOST_CELLS)
        return [
            Field("class sizes", (n_classes,), sizes.per_class, PLAIN),
            Field(
                "gaps",
                (n_cells,),
                n_classes * self.n_features << KEY_BITS,
                NUMBERS,
                is_open=True,
            ),
            Field("cells", (n_cells,), max(sizes.total - 1, 0), NUMBERS, is_open=True),
            Field("group squares", (n_classes,), LARGEST_GROUP**2, PLAIN),
        ]

    def parts(self, statistic: ColumnHistograms) -> list[Array]:
        return [
            statistic.n_per_class,
            np.diff(statistic.cells, prepend=-1) - 1,
            statistic.counts - 1,
            statistic.group_squares,
        ]

    def of_parts(self, parts: list[Array], n_parties: int) -> ColumnHistograms:
        sizes, gaps, counts, squares = parts
        # Gaps are bounded, but not their sum, which may wrap around: then cells do not
        # ascend, and are refused.
        try:
            cells = np.cumsum(gaps + 1) - 1
            return ColumnHistograms(self.n_features, sizes, cells, counts + 1, squares)
        except DataError as error:
            raise PayloadError("histograms", error.expected, error.got) from None


def memory_of_sums(n_features: int, n_classes: int) -> int:
    """Bytes that the sums of rows take, samples not included."""
    return 16 * n_classes * n_features


def memory(options: RunOptions, scale: Scale) -> Needs:
    """Bytes of the histograms at the server, roughly.

    A bin has at least as many samples as the lowest floor of a party, and the values of
    a class in a column fall into a number of bins that is known. A number of samples
    that is not known is taken as 0.
    """
    plan = options.plan
    assert plan is not None  # as the phase is in the plan of the run
    n_features = plan.n_features
    n_classes = options.run_spec.n_classes
    n_bins = scale.n_values or USUAL_BINS
    if options.run_spec.is_secure:
        n_bins = MOST_BINS
    n_cells = (plan.n_examples or 0) * n_features // scale.min_examples
    n_bytes = memory_of_sums(n_features, n_classes)
    n_bytes += _SUM_BYTES * min(n_cells, n_bins * n_classes * n_features)
    what = f"the histograms of {n_features} columns for {n_classes} classes"
    return Needs({what: n_bytes}, {})


def _asks(options: RunOptions) -> list[SiteSetting]:
    if options.run_spec.is_secure:
        return []
    why = "true lets the report show the site's columns"
    return [FLOOR_OF_SITE, SiteSetting("table_one", None, why)]


@dataclass(frozen=True, eq=False)
class ColumnsTally(AnnouncedTally[ColumnHistograms]):
    """Histograms that are added up."""

    what = "histograms"
    capacity = 2**60
    largest = 2**63 - 1  # that of gaps, which do not add

    def load(self, statistic: ColumnHistograms) -> int:
        return statistic.n_examples

    def facts(self, statistic: ColumnHistograms, n_before: int) -> Facts:
        result = None
        if n_before < _MOST_SHOWN and statistic.n_examples:
            has_none = np.equal(statistic.n_numbers, 0)[:, None]
            result = np.where(has_none, np.nan, statistic.edges())
        return Facts(statistic.n_per_class, result=result)


@dataclass(frozen=True)
class Columns:
    """The result of the phase."""

    histograms: ColumnHistograms
    fallback_reason: str  # the reason why the columns are not scaled, or ""
    basis: Basis | None = None
    """That of the linear part; None without one."""
    sites: Mapping[str, tuple[int, Floats]] = field(default_factory=dict)
    """Floors of parties that agree to be shown, and edges of columns, by cid."""


def plan_of(state: RunState, context: Context) -> HashPlan:
    """The plan of a run that has this phase.

    With a learned schema it is for as many features as the schema has numbers.
    """
    plan = context.options.plan
    if plan is None:
        raise ConfigError(
            "spec", "a plan that needs the columns", type(context.options.spec).__name__
        )
    return replace(plan, n_features=state.run_spec.spec.n_features)


def request_of(state: RunState, context: Context) -> ColumnsRequest:
    """The request for the columns as they are, in clear."""
    run = state.run_spec
    n_features = plan_of(state, context).n_features
    return ColumnsRequest(n_features, run.classes, run.features)


def _tally(state: RunState, context: Context) -> ColumnsTally:
    most = context.options.max_examples_per_party
    return ColumnsTally(request_of(state, context), most)


def fold(state: RunState, batch: Batch[ColumnHistograms], context: Context) -> RunState:
    """The state with the specs that follow from the histograms."""
    specs, trouble = derive_specs(plan_of(state, context), batch.total)
    counted = context.options.counted_specs(specs)
    run = replace(state.run_spec, specs=counted)
    state = replace(state, run_spec=run, is_specified=True)
    basis = None
    if context.options.has_linear and not trouble:
        basis = Basis.of_columns(batch.total, context.options.linear)
    sites = {}
    for cid, edges in batch.parts.items():
        floor = batch.passed[cid].metrics.get(FLOOR)
        if type(floor) is int and floor > 0:
            sites[cid] = (floor, edges)
    return state.with_result(COLUMNS.name, Columns(batch.total, trouble, basis, sites))


def _describe(state: RunState, options: RunOptions) -> Description:
    """The hashes, which follow from the columns."""
    columns: Columns | None = state.results.get(COLUMNS.name)
    warnings = []
    if columns is None:  # bins are split first
        return Description()
    if columns.fallback_reason:
        warnings.append(f"COLUMNS NOT SCALED: {columns.fallback_reason}")
    return Description("", warnings, state.run_spec.hash_lines)


def _report(state: RunState, options: RunOptions) -> Section:
    columns: Columns | None = state.results.get(COLUMNS.name)
    if columns is None or options.plan is None:
        return Section({"columns": None})
    n_examples = columns.histograms.n_examples
    text = f"{options.plan.scaling}, from histograms of the columns of {n_examples} samples"
    return Section({"columns": {"examples": n_examples}}, {"scaling": text})


COLUMNS = Phase(
    "columns",
    TRAIN,
    _tally,
    fold,
    content=_CONTENT,
    applies=lambda options: options.plan is not None,
    describe=_describe,
    report=_report,
    asks=_asks,
    memory=memory,
)


SPLITS = (1024, 128, 32, 32, 32)
"""Parts that a bin is split into: 2**KEY_BITS of them in the end."""

_SPLITTING = [f"bins {number}" for number, _ in enumerate(SPLITS, 1)]
"""Names of the phases that split bins."""

MOST_BINS = 4609
"""Bins of a column: 34 quantiles in bins of 128 parts, what is between them, and the
gaps."""


@register
@dataclass(frozen=True, eq=False, kw_only=True)
class BinsRequest(ColumnsRequest):
    """Ask for the number of samples in bins of the columns, never in clear.

    They are the samples of all classes together, or of each. `cuts` are the first keys
    of the bins, ascending, each behind the index of its column, see
    `ColumnHistograms.table`. The sum is histograms as if all of a bin had one value.
    """

    cuts: Integers
    by_class: bool
    bound: int | None = None

    phase = "bins"
    entries = _COLUMN_ENTRIES | {
        "bound": Entry(str, 20),
        "by_class": Entry(bool),
    }
    n_arrays = 1

    def to_config(self) -> Scalars:
        bound = json.dumps(self.bound)
        return super().to_config() | sent(bound=bound, by_class=self.by_class)

    def arrays(self) -> list[Array]:
        return [pack_numbers(np.diff(self.cuts) - 1)]

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> BinsRequest:
        bound = announced_bound(config)
        check_packed(arrays, "bins")
        columns = ColumnsRequest.from_config(config, arrays, options)
        n_features = columns.n_features
        most = n_features * MOST_BINS
        options.check_memory(32 * most, f"bins of {n_features} columns")
        gaps = unpack_numbers(arrays[0], most, n_features << KEY_BITS)
        cuts = np.concatenate([[0], np.cumsum(gaps + 1)])
        # Sums of gaps may wrap around: then cuts do not ascend.
        ascend = (np.diff(cuts) > 0).all() and cuts[-1] >> KEY_BITS < n_features
        if not ascend or not np.isin(_first_keys(n_features), cuts).all():
            raise PayloadError(
                "bins", "cuts that ascend, with the lowest key of each column", "others"
            )
        by_class = config["by_class"]
        return cls(**vars(columns), cuts=cuts, by_class=by_class, bound=bound)

    def fields(self, sizes: Sizes) -> list[Field]:
        n_classes = 1
        if self.by_class:
            n_classes = len(self.classes)
        return [
            Field("bins", (n_classes, len(self.cuts)), sizes.total),
            Field("group squares", (n_classes,), LARGEST_GROUP**2, PLAIN),
        ]

    def parts(self, statistic: ColumnHistograms) -> list[Array]:
        squares = statistic.group_squares
        if not self.by_class:
            squares = squares[:1]
        return [statistic.table(self.cuts, self.by_class), squares]

    def of_parts(self, parts: list[Array], n_parties: int) -> ColumnHistograms:
        return ColumnHistograms.of_table(self.n_features, self.cuts, *parts)


def _first_keys(n_features: int) -> Integers:
    """The lowest key of each column, behind the index of the column."""
    return np.arange(n_features) << KEY_BITS


def _equal_cuts(n_features: int, with_gaps: bool) -> Integers:
    """Cuts of bins of equal width; gaps, which a schema may have, are a bin."""
    first_keys = _first_keys(n_features)
    offsets = (np.arange(SPLITS[0]) << KEY_BITS) // SPLITS[0]
    cuts = (first_keys[:, None] + offsets).ravel()
    if with_gaps:
        cuts = np.union1d(cuts, first_keys + FIRST_GAP)
    return cuts


def _ask(state: RunState, context: Context, before: str) -> Tally[ColumnHistograms]:
    """The request for the bins that the phase `before` led to.

    Without such a phase the bins have equal widths.
    """
    columns = request_of(state, context)
    if before:
        cuts = state.results[before]
    else:
        with_gaps = isinstance(columns.features, Schema)
        cuts = _equal_cuts(columns.n_features, with_gaps)
    bins = BinsRequest(
        **vars(columns),
        cuts=cuts,
        by_class=before == _SPLITTING[-1],
        bound=context.options.secure_bound,
    )
    return Tally(bins)


def _split(
    state: RunState,
    batch: Batch[ColumnHistograms],
    context: Context,
    name: str,
    n_parts: int,
) -> RunState:
    """The state with finer cuts, as the result of the phase of this name."""
    cuts = context.request.cuts
    if batch.total.n_examples:
        cuts = batch.total.finer(cuts, n_parts)
    return state.with_result(name, cuts)


def _phase(before: str, name: str, n_parts: int = 0) -> Phase:
    """The phase that splits the bins of the one before it into so many parts.

    Without parts it counts the samples of each class in them.
    """
    folded = fold
    if n_parts:
        folded = partial(_split, name=name, n_parts=n_parts)
    tally = partial(_ask, before=before)
    return replace(COLUMNS, name=name, tally=tally, fold=folded, content=_BINS_CONTENT)


BINS = [
    *map(_phase, ["", *_SPLITTING], _SPLITTING, (*SPLITS[1:], 1)),
    _phase(_SPLITTING[-1], COLUMNS.name),
]


def phases_for(options: RunOptions) -> list[Phase]:
    """The phase of a run in clear, or those of a secure one."""
    if options.run_spec.is_secure:
        return BINS
    return [COLUMNS]
