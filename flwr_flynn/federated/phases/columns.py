"""Phase "columns": exact histograms of the columns, from which the server derives the specs.

They tell five digits of every value. With `min_examples` above 1 a party tells some order statistics of each class
alone, whatever a request says, see `ColumnHistograms.from_data`. Where parties may align their columns, a phase
"aligned columns" follows: the histograms of the columns as each party aligns them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError, DataError, PayloadError
from flwr_flynn.federated.access import SampleAccess
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_numbers, unpack_numbers
from flwr_flynn.federated.phase import Context, Phase, RunState
from flwr_flynn.federated.protocol import TRAIN, Answer, Array, Config, Reply, Scalar, key
from flwr_flynn.federated.request import Request, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import MAX_CHARS, announced_names, announced_reference
from flwr_flynn.federated.samples import Label, checked_classes, checked_names, codes_of
from flwr_flynn.hashing.rank_codes import KEY_BITS, MANTISSA_BITS
from flwr_flynn.model.alignment import Reference
from flwr_flynn.model.candidates import HashPlan, derive_specs
from flwr_flynn.model.column_histograms import ColumnHistograms

_MOST_CELLS = 2**24  # of one party: they take 128 MiB a column of numbers
_CELL_BYTES = 64  # that a cell takes while it is made, roughly
_SUM_BYTES = 96  # that a cell of the sum takes while relevance follows from it, roughly

USUAL_BINS = 2 ** (MANTISSA_BITS + 6)
"""Bins of a column with values of both signs within 32 powers of two."""


@register
@dataclass(frozen=True)
class ColumnsRequest(Request[ColumnHistograms]):
    """Ask for the histograms of the columns.

    The floor is the party's own. Its groups of samples follow from the ranks of its values, which no alignment changes.
    So all answers of a party are about the same order statistics.
    """

    n_features: int
    classes: Sequence[Label]
    feature_names: Sequence[str] | None = None
    max_examples: int | None = None  # of a party; a 1024th of the capacity by default

    phase = "columns"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", checked_classes(self.classes))
        if self.feature_names is not None:
            object.__setattr__(self, "feature_names", checked_names(self.feature_names, self.n_features))

    @property
    def memory_needed(self) -> int:
        """Bytes that the sums of rows take, samples not included."""
        return 16 * len(self.classes) * self.n_features

    def memory_of_sum(self, n_examples: int | None, most_bins: int = USUAL_BINS, min_examples: int = 1) -> int:
        """Bytes that the sum of the parties takes at the server, roughly, for so many samples of all parties.

        A bin has at least as many of them as the lowest floor of a party, `min_examples`, and the values of a class in
        a column fall into `most_bins`. None: a number that is not known, taken as 0.
        """
        n_cells = (n_examples or 0) * self.n_features // min_examples
        return self.memory_needed + _SUM_BYTES * min(n_cells, most_bins * len(self.classes) * self.n_features)

    def to_config(self) -> dict[str, Scalar]:
        names = self.feature_names
        return {
            key("n_features"): self.n_features,
            key("classes"): json.dumps(self.classes),
            **({} if names is None else {key("feature_names"): json.dumps(names)}),
        }

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> ColumnsRequest:
        try:
            n_features, classes = config.integer("n_features", 1, 2**31 - 1), config.json("classes", MAX_CHARS)
            request = cls(n_features, classes, announced_names(config))
        except ConfigError as error:
            raise PayloadError(error.field or "config", error.expected, error.got, text=f"config: {error}") from None
        what = f"histograms of {request.n_features} columns, {len(request.classes)} classes"
        party.check_memory(request.memory_needed, what)
        return request

    def compute(self, party: SampleAccess) -> Answer:
        found = self.of_samples(party, *self.samples(party))
        return Answer(_packed(found), found.n_examples)

    def samples(self, party: SampleAccess) -> tuple[Any, npt.NDArray[np.int64]]:
        """The party's samples and their class codes."""
        X, codes = party.labelled(lambda y: codes_of(self.classes, y), self.n_features)
        n_values = X.shape[0] * self.n_features
        party.check_memory(_CELL_BYTES * min(n_values, _MOST_CELLS), f"histograms of {self.n_features} columns")
        return X, codes

    def of_samples(self, party: SampleAccess, X: Any, codes: npt.NDArray[np.int64]) -> ColumnHistograms:
        """The histograms of samples, in groups of at least the party's floor."""
        found = ColumnHistograms.from_data(X, codes, len(self.classes), party.options.min_examples)
        if len(found.cells) > _MOST_CELLS:
            raise PayloadError("histograms", f"at most {_MOST_CELLS} cells (a larger min-examples makes fewer)", "more")
        return found

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> ColumnHistograms:
        n_classes, announced = len(self.classes), reply.announced
        check_packed(arrays, 3, "histograms", "class sizes, gaps and counts", first=1)
        sizes = arrays[0]
        if sizes.dtype.str != "<i8" or sizes.shape != (n_classes,):
            raise PayloadError("histograms", f"{n_classes} class sizes of int64", f"{sizes.dtype} of {sizes.shape}")
        _check_sizes(sizes, announced, self.max_examples or self.capacity // 1024)
        n_cells = min(announced * self.n_features, _MOST_CELLS)
        gaps = unpack_numbers(arrays[1], n_cells, n_classes * self.n_features << KEY_BITS)
        counts = unpack_numbers(arrays[2], n_cells, max(announced - 1, 0))
        if len(gaps) != len(counts):
            raise PayloadError("histograms", f"{len(gaps)} counts, one for each gap", len(counts))
        # Gaps are bounded, but not their sum, which may wrap around: then cells do not ascend, and are refused.
        cells = np.cumsum(gaps + 1) - 1
        try:
            return ColumnHistograms(self.n_features, sizes.astype(np.int64), cells, counts + 1)
        except DataError as error:
            raise PayloadError("histograms", error.expected, error.got) from None

    def sizes(self, statistic: ColumnHistograms) -> npt.NDArray[np.int64]:
        return statistic.n_per_class

    @property
    def capacity(self) -> int:
        return 2**60


def _packed(found: ColumnHistograms) -> list[Array]:
    gaps = np.diff(found.cells, prepend=-1) - 1
    return [found.n_per_class.copy(), pack_numbers(gaps), pack_numbers(found.counts - 1)]


def _check_sizes(sizes: npt.NDArray[np.int64], announced: int, most: int) -> None:
    """Raise a `PayloadError` unless class sizes are 0 or more and have the announced sum, up to `most`."""
    if sizes.min() < 0:
        raise PayloadError("histograms", "class sizes from 0", "a negative one")
    n_examples = sum(sizes.tolist())
    if n_examples != announced:
        raise PayloadError("histograms", f"{announced} examples as announced", n_examples)
    if n_examples > most:
        raise PayloadError("histograms", f"at most {most} examples", n_examples)


@dataclass(frozen=True)
class Columns:
    """The result of the phase."""

    histograms: ColumnHistograms
    missing: dict[str, str]  # reasons of parties without an answer, by name
    trouble: str  # the reason why the columns are not scaled, or ""


def plan_of(context: Context) -> HashPlan:
    """The plan of a run that has this phase."""
    if (plan := context.options.plan) is None:
        raise ConfigError("spec", "a plan that needs the columns", type(context.options.spec).__name__)
    return plan


def request_of(state: RunState, context: Context) -> ColumnsRequest:
    """The request for the columns as they are, in clear."""
    run, n_features = state.run_spec, plan_of(context).n_features
    return ColumnsRequest(n_features, run.classes, run.feature_names, context.options.max_examples_per_party)


def nothing(state: RunState, context: Context) -> ColumnHistograms:
    """Histograms of no samples."""
    return ColumnHistograms.zeros(plan_of(context).n_features, state.run_spec.n_classes)


def fold(state: RunState, batch: Batch[ColumnHistograms], context: Context) -> RunState:
    """The state with the specs that follow from the histograms."""
    specs, trouble = derive_specs(plan_of(context), batch.total)
    state = replace(state, run_spec=replace(state.run_spec, specs=context.options.counted_specs(specs)))
    return state.with_result(COLUMNS.name, Columns(batch.total, dict(context.missing), trouble))


COLUMNS = Phase("columns", TRAIN, request_of, fold, nothing, derives_specs=True)


# ---- columns as each party aligns them


@dataclass(frozen=True)
class AlignedHistograms:
    """Histograms of aligned columns, and the number of parties that align theirs; those of others are as they are."""

    histograms: ColumnHistograms
    n_aligned: int = 0

    def __add__(self, other: AlignedHistograms) -> AlignedHistograms:
        return AlignedHistograms(self.histograms + other.histograms, self.n_aligned + other.n_aligned)


@register
@dataclass(frozen=True)
class AlignedColumnsRequest(Request[AlignedHistograms]):
    """Ask for the histograms of the columns as a party aligns them to the reference."""

    columns: ColumnsRequest
    reference: Reference

    phase = "aligned columns"

    def to_config(self) -> dict[str, Scalar]:
        return {**self.columns.to_config(), key("reference"): self.reference.data}

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> AlignedColumnsRequest:
        columns = ColumnsRequest.from_config(config, arrays, party)
        return cls(columns, announced_reference(config, len(columns.classes), columns.n_features))

    def compute(self, party: SampleAccess) -> Answer:
        X, codes = self.columns.samples(party)
        alignment = party.alignment(self.reference, X, codes)
        found = self.columns.of_samples(party, X if alignment is None else alignment.applied(X), codes)
        return Answer([*_packed(found), np.array([alignment is not None], np.int64)], found.n_examples)

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> AlignedHistograms:
        expected = "class sizes, gaps, counts, and 1 with an alignment or else 0"
        if len(arrays) != 4 or arrays[3].dtype.str != "<i8" or arrays[3].tolist() not in ([0], [1]):
            raise PayloadError("histograms", expected, f"{len(arrays)} arrays")
        return AlignedHistograms(self.columns.read(arrays[:3], reply, member), int(arrays[3][0]))

    def sizes(self, statistic: AlignedHistograms) -> npt.NDArray[np.int64]:
        return statistic.histograms.n_per_class

    @property
    def capacity(self) -> int:
        return self.columns.capacity


@dataclass(frozen=True)
class AlignedColumns:
    """The result of the phase."""

    n_aligned: int  # parties that have an alignment
    missing: dict[str, str]  # reasons of parties without an answer, by name


def _reference(state: RunState) -> Reference:
    columns: Columns = state.results[COLUMNS.name]
    return Reference.of(columns.histograms)


def _ask_aligned(state: RunState, context: Context) -> AlignedColumnsRequest:
    return AlignedColumnsRequest(request_of(state, context), _reference(state))


def _fold_aligned(state: RunState, batch: Batch[AlignedHistograms], context: Context) -> RunState:
    total, run = batch.total, state.run_spec
    if total.n_aligned and not state.results[COLUMNS.name].trouble:
        aligned, trouble = derive_specs(plan_of(context), total.histograms)
        if not trouble:
            run = replace(run, specs=(*run.specs, *aligned), n_aligned=len(aligned), reference=_reference(state))
    result = AlignedColumns(total.n_aligned, dict(context.missing))
    return replace(state, run_spec=run).with_result(ALIGNED_COLUMNS.name, result)


ALIGNED_COLUMNS = Phase(
    "aligned columns",
    TRAIN,
    _ask_aligned,
    _fold_aligned,
    lambda *given: AlignedHistograms(nothing(*given)),
    derives_specs=True,
)
