"""Phases of a secure run alone: "range" before the columns, and "bins 1" to "bins 4" and "histograms" after them.

Vectors of a secure sum have a length that everybody knows. So the parties first tell which digits their sums of columns
have at all. And of the histograms, of millions of bins, they tell only what rank codes and weights follow from: some
quantiles, found by halving bins again and again, and the samples of each class between these.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.access import SampleAccess
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_numbers, unpack_numbers
from flwr_flynn.federated.layout import PLAIN, Field, Sizes
from flwr_flynn.federated.phase import Context, Phase, RunState
from flwr_flynn.federated.phases import columns, histograms
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.phases.histograms import BothHistograms, HistogramsRequest
from flwr_flynn.federated.protocol import TRAIN, Array, Config, Reply, Scalar, key
from flwr_flynn.federated.request import LayoutRequest, announced_bound, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.statistics import Tables
from flwr_flynn.hashing.rank_codes import KEY_BITS
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.column_moments import SUM_BITS

_SPLITS = (128, 32, 32, 32)  # parts that a bin is split into: 2**22 of them in the end
MOST_BINS = 2048
"""Bins of a column: 39 quantiles in bins of 32 parts, and what is between them."""


class _SecureOnly(LayoutRequest[Tables]):
    """A request for tables that nobody answers in clear."""

    def packed(self, statistic: Tables) -> list[Array]:
        raise PayloadError(key("bound"), "one", "none")

    def parts(self, statistic: Tables) -> list[Array]:
        return list(statistic.tables)

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        return Tables(tuple(parts))

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> Tables:
        raise PayloadError(key("bound"), "one", "none")


@register
@dataclass(frozen=True)
class RangeRequest(_SecureOnly):
    """Ask for the lowest and the highest digit, base `bound`, of all sums of columns, and of all sums of squares."""

    columns: ColumnsRequest

    phase = "range"

    @property
    def bound(self) -> int | None:
        return self.columns.bound

    def to_config(self) -> dict[str, Scalar]:
        return self.columns.to_config()

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> RangeRequest:
        announced_bound(config, required=True)
        return cls(ColumnsRequest.from_config(config, arrays, party))

    def measured(self, party: SampleAccess) -> tuple[Tables, int]:
        sums, n_examples = self.columns.measured(party)
        bits, tables = self.columns.digit_bits, []
        for each, digits in zip((sums.sums, sums.squares), self.layout, strict=True):
            together = reduce(or_, map(abs, each.ravel().tolist()), 0)
            table = np.zeros(digits.shape, np.int64)
            if together:
                table[[((together & -together).bit_length() - 1) // bits, (together.bit_length() - 1) // bits]] = 1
            tables.append(table)
        return Tables(tuple(tables)), n_examples

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        if any(table.sum() > 2 * n_parties for table in parts):
            raise PayloadError("range", f"two digits of each of {n_parties} parties at most", "others")
        return Tables(tuple(parts))

    def fields(self, sizes: Sizes) -> list[Field]:
        return [Field("digits", (most // self.columns.digit_bits + 1,), 1, PLAIN) for most in SUM_BITS]


def _ask_range(state: RunState, context: Context) -> RangeRequest:
    return RangeRequest(columns.request_of(state, context))


def _range(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    window: list[int] = []
    for table in batch.total.tables:
        there = np.flatnonzero(table).tolist() or [0]
        window += [there[0], there[-1] - there[0] + 1]
    return state.with_result("range", tuple(window))


@register
@dataclass(frozen=True, eq=False)
class BinsRequest(_SecureOnly):
    """Ask for the number of samples, of all classes or of each, in bins of the columns less their centre.

    `cuts` are the first keys of the bins, ascending, each behind the index of its column, see `ColumnHistograms.table`.
    """

    histograms: HistogramsRequest
    bound: int | None = None
    cuts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    by_class: bool = False

    phase = "bins"

    def to_config(self) -> dict[str, Scalar]:
        ours: dict[str, Scalar] = {key("bound"): json.dumps(self.bound), key("by_class"): self.by_class}
        return {**self.histograms.to_config(), **ours}

    def arrays(self) -> list[Array]:
        return [*self.histograms.arrays(), pack_numbers(np.diff(self.cuts) - 1)]

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> BinsRequest:
        bound = announced_bound(config, required=True)
        check_packed(arrays, 2, "bins", "a centre and packed gaps", first=1)
        asked = HistogramsRequest.from_config(config, arrays[:1], party)
        most = asked.n_features * MOST_BINS
        party.check_memory(32 * most, f"bins of {asked.n_features} columns")
        gaps = unpack_numbers(arrays[1], most, asked.n_features << KEY_BITS)
        cuts = np.concatenate([[0], np.cumsum(gaps + 1)])
        starts = np.arange(asked.n_features) << KEY_BITS
        # Sums of gaps may wrap around: then cuts do not ascend.
        if (np.diff(cuts) <= 0).any() or cuts[-1] >> KEY_BITS >= asked.n_features or not np.isin(starts, cuts).all():
            raise PayloadError("bins", "cuts that ascend, with the lowest key of each column", "others")
        return cls(asked, bound, cuts, config.boolean("by_class"))

    def measured(self, party: SampleAccess) -> tuple[Tables, int]:
        found = self.histograms.of_samples(*self.histograms.samples(party))
        return Tables((found.table(self.cuts, self.by_class),)), found.n_examples

    def fields(self, sizes: Sizes) -> list[Field]:
        n_classes = len(self.histograms.classes) if self.by_class else 1
        return [Field("bins", (n_classes, len(self.cuts)), sizes.total)]

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        self.found(parts[0])
        return Tables(tuple(parts))

    def found(self, table: npt.NDArray[np.int64]) -> ColumnHistograms:
        """The histograms with these samples in the bins; a `DataError` if there are none such."""
        return ColumnHistograms.of_table(self.histograms.n_features, self.cuts, table)


def _ask_bins(state: RunState, context: Context, number: int) -> BinsRequest:
    asked = histograms.request_of(state, context)
    if number:
        cuts = state.results[_name(number - 1)]
    else:
        parts = np.arange(_SPLITS[0]) << KEY_BITS
        cuts = ((np.arange(asked.n_features)[:, None] << KEY_BITS) + parts // _SPLITS[0]).ravel()
    return BinsRequest(asked, context.options.secure_bound, cuts, number == len(_SPLITS))


def _bins(state: RunState, batch: Batch[Tables], context: Context, number: int) -> RunState:
    asked = _ask_bins(state, context, number)
    found = asked.found(batch.total.tables[0])
    if number == len(_SPLITS):
        return histograms.fold(state, replace(batch, total=BothHistograms(found)), context)  # type: ignore[arg-type]
    parts = (*_SPLITS[1:], 1)[number]
    cuts = found.finer(asked.cuts, parts) if found.n_examples else asked.cuts
    return state.with_result(_name(number), cuts)


def _name(number: int) -> str:
    return "histograms" if number == len(_SPLITS) else f"bins {number + 1}"


def _phase(number: int) -> Phase:
    request, fold = partial(_ask_bins, number=number), partial(_bins, number=number)
    return Phase(_name(number), TRAIN, request, fold, derives_specs=True)


RANGE = Phase("range", TRAIN, _ask_range, _range, derives_specs=True)
BINS = [_phase(number) for number in range(len(_SPLITS) + 1)]
