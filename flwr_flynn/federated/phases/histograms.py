"""Phase "histograms": exact histograms of the columns, from which the server derives rank codes and weights.

They tell about three digits of every value. With `min_examples` above 1 a party tells some order statistics of each
class alone, whatever a request says, see `ColumnHistograms.from_data`.
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
from flwr_flynn.federated.phases.columns import Columns, check_sizes
from flwr_flynn.federated.protocol import TRAIN, Answer, Array, Config, Reply, Scalar, key
from flwr_flynn.federated.request import Request, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import MAX_CHARS, announced_names, announced_reference
from flwr_flynn.federated.samples import Label, checked_classes, checked_names, codes_of
from flwr_flynn.hashing.rank_codes import KEY_BITS
from flwr_flynn.model.alignment import Reference
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.derived_specs import derive_specs

_MOST_CELLS = 2**24  # of one party: they take 128 MiB a column of numbers
_CELL_BYTES = 64  # that a cell takes while it is made, roughly
_SUM_BYTES = 96  # that a cell of the sum takes while relevance is told from it, roughly

USUAL_BINS = 2**16
"""Bins of a column with values of both signs within 32 powers of two: 1024 for each of these and each sign."""


@dataclass(frozen=True, eq=False)
class BothHistograms:
    """Histograms of columns as they are; and where parties may align them, of aligned ones, and of how many parties.

    Columns of a party that has no alignment are in both as they are.
    """

    plain: ColumnHistograms
    aligned: ColumnHistograms | None = None
    n_aligned: int = 0

    def __add__(self, other: BothHistograms) -> BothHistograms:
        pair = self.aligned, other.aligned
        aligned = None if pair[0] is None or pair[1] is None else pair[0] + pair[1]
        return BothHistograms(self.plain + other.plain, aligned, self.n_aligned + other.n_aligned)


@register
@dataclass(frozen=True, eq=False)
class HistogramsRequest(Request[BothHistograms]):
    """Ask for the histograms of the columns less their centre.

    The floor is the party's own. Its groups of samples follow from the ranks of its values, which neither the centre
    nor an alignment changes. So all answers of a party are about the same order statistics: another centre tells
    further digits of these, and nothing of any other value.
    """

    center: npt.NDArray[np.float64]  # (n_features,)
    classes: Sequence[Label]
    feature_names: Sequence[str] | None = None
    max_examples: int | None = None  # of a party; a 1024th of the capacity by default
    reference: Reference | None = None  # to which parties align their columns

    phase = "histograms"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", checked_classes(self.classes))
        if self.feature_names is not None:
            object.__setattr__(self, "feature_names", checked_names(self.feature_names, self.n_features))

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.center)

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
        most = most_bins * len(self.classes) * self.n_features
        return self.memory_needed + _SUM_BYTES * min(n_cells, most) * (1 if self.reference is None else 2)

    def to_config(self) -> dict[str, Scalar]:
        names = self.feature_names
        return {
            key("classes"): json.dumps(self.classes),
            **({} if names is None else {key("feature_names"): json.dumps(names)}),
            **({} if self.reference is None else {key("reference"): self.reference.data}),
        }

    def arrays(self) -> list[Array]:
        return [self.center]

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> HistogramsRequest:
        if len(arrays) != 1 or arrays[0].dtype.str != "<f8" or arrays[0].ndim != 1 or not len(arrays[0]):
            got = ", ".join(f"{array.dtype.str} {array.shape}" for array in arrays[:3]) or "none"
            raise PayloadError("center", "one float64 array of shape (features,)", got)
        if not np.isfinite(arrays[0]).all():
            raise PayloadError("center", "finite numbers", "NaN or infinity")
        try:
            request = cls(arrays[0], config.json("classes", MAX_CHARS), announced_names(config))
            if "reference" in config:
                found = announced_reference(config, len(request.classes), request.n_features)
                request = replace(request, reference=found)
        except ConfigError as error:
            raise PayloadError(error.field or "config", error.expected, error.got, text=f"config: {error}") from None
        what = f"histograms of {request.n_features} columns, {len(request.classes)} classes"
        party.check_memory(request.memory_needed, what)
        return request

    def samples(self, party: SampleAccess) -> tuple[Any, npt.NDArray[np.int64], int]:
        """The party's samples, their class codes, and its floor."""
        X, codes = party.labelled(lambda y: codes_of(self.classes, y), self.n_features)
        n_values = X.shape[0] * self.n_features
        party.check_memory(_CELL_BYTES * min(n_values, _MOST_CELLS), f"histograms of {self.n_features} columns")
        return X, codes, party.options.min_examples

    def compute(self, party: SampleAccess) -> Answer:
        X, codes, least = self.samples(party)
        alignment = party.alignment(self.reference, X, codes)
        if alignment is None:
            found = self.of_samples(X, codes, least)
            return Answer(_packed(found), found.n_examples)
        aligned = self.of_samples(alignment.applied(X), codes, least)
        # Two histograms of the same order statistics would tell further digits of them.
        plain = aligned if least > 1 else self.of_samples(X, codes, least)
        return Answer(_packed(plain) + _packed(aligned), aligned.n_examples)

    def of_samples(self, X: Any, codes: npt.NDArray[np.int64], least: int) -> ColumnHistograms:
        """The histograms of samples, in groups of at least so many."""
        found = ColumnHistograms.from_data(X, codes, len(self.classes), self.center.tolist(), least)
        if len(found.cells) > _MOST_CELLS:
            raise PayloadError("histograms", f"at most {_MOST_CELLS} cells (a larger min-examples makes fewer)", "more")
        return found

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> BothHistograms:
        plain = self._read(arrays[:3], reply.announced)
        if self.reference is None:
            check_packed(arrays, 3, "histograms", "class sizes, gaps and counts", first=1)
            return BothHistograms(plain)
        if len(arrays) == 3:
            return BothHistograms(plain, plain)
        aligned = self._read(arrays[3:], reply.announced)
        if not np.array_equal(plain.n_per_class, aligned.n_per_class):
            raise PayloadError("histograms", "the same samples of each class in both", "different ones")
        return BothHistograms(plain, aligned, 1)

    def _read(self, arrays: Sequence[Array], announced: int) -> ColumnHistograms:
        n_classes = len(self.classes)
        check_packed(arrays, 3, "histograms", "class sizes, gaps and counts", first=1)
        sizes = arrays[0]
        if sizes.dtype.str != "<i8" or sizes.shape != (n_classes,):
            raise PayloadError("histograms", f"{n_classes} class sizes of int64", f"{sizes.dtype} of {sizes.shape}")
        most = self.max_examples or self.capacity // 1024
        check_sizes(sizes, announced, most, "histograms")
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

    def sizes(self, statistic: BothHistograms) -> npt.NDArray[np.int64]:
        return statistic.plain.n_per_class

    @property
    def capacity(self) -> int:
        return 2**60


def _packed(found: ColumnHistograms) -> list[Array]:
    gaps = np.diff(found.cells, prepend=-1) - 1
    return [found.n_per_class.copy(), pack_numbers(gaps), pack_numbers(found.counts - 1)]


@dataclass(frozen=True)
class Histograms:
    """The result of the phase."""

    histograms: ColumnHistograms
    n_aligned: int  # parties that have an alignment
    missing: dict[str, str]  # reasons of parties without an answer, by name
    trouble: str  # the reason why the columns are not scaled, or ""


def request_of(state: RunState, context: Context) -> HistogramsRequest:
    """The request for the histograms, in clear."""
    options, run = context.options, state.run_spec
    columns: Columns = state.results["columns"]
    center = (
        np.zeros(run.spec.n_features) if columns.trouble else np.array(columns.moments.center_and_scale("center")[0])
    )
    reference = Reference.of(columns.moments) if options.align and not columns.trouble else None
    names, most = run.feature_names, options.max_examples_per_party
    return HistogramsRequest(center, run.classes, names, most, reference)


def _nothing(state: RunState, context: Context) -> BothHistograms:
    nothing = ColumnHistograms.zeros(state.run_spec.spec.n_features, state.run_spec.n_classes)
    return BothHistograms(nothing, nothing if context.options.align else None)


def fold(state: RunState, batch: Batch[BothHistograms], context: Context) -> RunState:
    """The state with the specs that follow from the histograms."""
    options, total, run = context.options, batch.total, state.run_spec
    plan = options.plan
    assert plan is not None  # only such a plan has this phase
    columns: Columns = state.results["columns"]
    specs, trouble = derive_specs(plan, columns.moments, total.plain)
    specs = options.counted_specs(specs)
    if total.n_aligned and not trouble:
        aligned, _ = derive_specs(plan, columns.moments, total.aligned)
        reference = Reference.of(columns.moments)
        run = replace(run, specs=specs + aligned, n_aligned=len(aligned), reference=reference)
    else:
        run = replace(run, specs=specs)
    result = Histograms(total.plain, total.n_aligned, dict(context.missing), trouble)
    return replace(state, run_spec=run).with_result(HISTOGRAMS.name, result)


HISTOGRAMS = Phase("histograms", TRAIN, request_of, fold, _nothing, derives_specs=True)
