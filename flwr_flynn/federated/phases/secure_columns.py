"""Phases of a secure run in the place of "columns": "bins 1" to "bins 5", and then the samples of each class.

Vectors of a secure sum have a length that everybody knows. So of the histograms, of millions of bins, parties tell only
what specs follow from: some quantiles, found by splitting bins again and again, and the samples of each class between
these.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_numbers, unpack_numbers
from flwr_flynn.federated.layout import Field, Sizes
from flwr_flynn.federated.permissions import SampleAccess
from flwr_flynn.federated.phase import Context, Phase, RunState
from flwr_flynn.federated.phases import columns
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.protocol import TRAIN, Array, Config, Scalar, key
from flwr_flynn.federated.request import Request, register
from flwr_flynn.federated.run_spec import announced_bound
from flwr_flynn.hashing.rank_codes import FIRST_GAP, KEY_BITS
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import Tables
from flwr_flynn.tables.schema import Schema

SPLITS = (1024, 128, 32, 32, 32)
"""Parts that a bin is split into: 2**KEY_BITS of them in the end."""

MOST_BINS = 4609
"""Bins of a column: 34 quantiles in bins of 128 parts, what is between them, and the gaps."""


@register
@dataclass(frozen=True, eq=False)
class BinsRequest(Request[Tables]):
    """Ask for the number of samples, of all classes or of each, in bins of the columns; never in clear.

    `cuts` are the first keys of the bins, ascending, each behind the index of its column, see `ColumnHistograms.table`.
    """

    columns: ColumnsRequest
    cuts: npt.NDArray[np.int64]
    by_class: bool
    bound: int | None = None

    phase = "bins"

    def to_config(self) -> dict[str, Scalar]:
        ours: dict[str, Scalar] = {key("bound"): json.dumps(self.bound), key("by_class"): self.by_class}
        return {**self.columns.to_config(), **ours}

    def arrays(self) -> list[Array]:
        return [pack_numbers(np.diff(self.cuts) - 1)]

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> BinsRequest:
        bound = announced_bound(config)
        check_packed(arrays, 1, "bins", "packed gaps")
        asked = ColumnsRequest.from_config(config, arrays, party)
        most = asked.n_features * MOST_BINS
        party.check_memory(32 * most, f"bins of {asked.n_features} columns")
        gaps = unpack_numbers(arrays[0], most, asked.n_features << KEY_BITS)
        cuts = np.concatenate([[0], np.cumsum(gaps + 1)])
        starts = np.arange(asked.n_features) << KEY_BITS
        # Sums of gaps may wrap around: then cuts do not ascend.
        if (np.diff(cuts) <= 0).any() or cuts[-1] >> KEY_BITS >= asked.n_features or not np.isin(starts, cuts).all():
            raise PayloadError("bins", "cuts that ascend, with the lowest key of each column", "others")
        return cls(asked, cuts, config.boolean("by_class"), bound)

    def measured(self, party: SampleAccess) -> tuple[Tables, int]:
        found = self.columns.of_samples(party, *self.columns.samples(party))
        return Tables((found.table(self.cuts, self.by_class),)), found.n_examples

    def fields(self, sizes: Sizes) -> list[Field]:
        n_classes = len(self.columns.classes) if self.by_class else 1
        return [Field("bins", (n_classes, len(self.cuts)), sizes.total)]

    def parts(self, statistic: Tables) -> list[Array]:
        return list(statistic.tables)

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        self.found(parts[0])
        return Tables(tuple(parts))

    def found(self, table: npt.NDArray[np.int64]) -> ColumnHistograms:
        """The histograms with these samples in the bins; a `DataError` if there are none such."""
        return ColumnHistograms.of_table(self.columns.n_features, self.cuts, table)


def _ask(state: RunState, context: Context, before: str) -> BinsRequest:
    """The request for the bins that the phase `before` led to; without one for those of equal width."""
    asked = columns.request_of(state, context)
    if before:
        cuts = state.results[before]
    else:
        parts = np.arange(SPLITS[0]) << KEY_BITS
        cuts = ((np.arange(asked.n_features)[:, None] << KEY_BITS) + parts // SPLITS[0]).ravel()
        if isinstance(asked.feature_names, Schema):  # else there are no gaps
            cuts = np.union1d(cuts, (np.arange(asked.n_features) << KEY_BITS) + FIRST_GAP)
    return BinsRequest(asked, cuts, before == _PARTS[-1][0], context.options.secure_bound)


def _split(state: RunState, batch: Batch[Tables], context: Context, name: str, n_parts: int) -> RunState:
    """The state with finer cuts, as the result of the phase of this name."""
    asked: BinsRequest = context.request
    found = asked.found(batch.total.tables[0])
    return state.with_result(name, found.finer(asked.cuts, n_parts) if found.n_examples else asked.cuts)


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    found = context.request.found(batch.total.tables[0])
    return columns.fold(state, replace(batch, total=found), context)  # type: ignore[arg-type]


_PARTS = [(f"bins {number}", n_parts) for number, n_parts in enumerate((*SPLITS[1:], 1), 1)]
"""Phases that split bins, and the parts that each splits them into."""

_FOLDS: list[tuple[str, Any]] = [
    *((name, partial(_split, name=name, n_parts=n)) for name, n in _PARTS),
    (columns.COLUMNS.name, _fold),
]

BINS = [
    Phase(name, TRAIN, partial(_ask, before=before), fold, derives_specs=True, content="samples in bins of the columns")
    for (name, fold), before in zip(_FOLDS, ("", *(name for name, _ in _PARTS)), strict=True)
]
