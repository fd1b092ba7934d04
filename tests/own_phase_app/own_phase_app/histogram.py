"""A phase that the package does not know: a histogram of the first column, in bins of
width 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import DataError, PayloadError
from flwr_flynn.federated.announced_specs import MAX_CHARS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.labels import codes_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import Context, Phase, RunState
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.federated.protocol import TRAIN, Config, Entry, Reply, Scalar, key
from flwr_flynn.federated.reply_fields import PLAIN, Field, Sizes
from flwr_flynn.federated.request import Measured, Request, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.tally import Tally
from flwr_flynn.federated.views import View
from flwr_flynn.model.counts import Tables

MOST_BINS = 1000


@register
@dataclass(frozen=True)
class HistogramRequest(Request[Tables]):
    """Ask how many samples have a value from i to i + 1 in the first column, for each
    bin i.
    """

    n_features: int
    classes: Sequence[Any]
    n_bins: int

    phase = "histogram"
    entries: ClassVar = {
        "n_features": Entry(int, 2**31 - 1, least=1),
        "classes": Entry(str, MAX_CHARS),
        "n_bins": Entry(int, MOST_BINS, least=1),
    }

    def to_config(self) -> dict[str, Scalar]:
        return {
            key("n_features"): self.n_features,
            key("classes"): " ".join(self.classes),
            key("n_bins"): self.n_bins,
        }

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Any], options: PartyOptions
    ) -> HistogramRequest:
        classes = config["classes"].split(" ")
        return cls(config["n_features"], classes, config["n_bins"])

    def fields(self, sizes: Sizes) -> list[Field]:
        return [Field("histogram", (1, self.n_bins), sizes.total, PLAIN)]

    def measured(self, view: View) -> Measured[Tables]:
        X, _ = view.labelled(lambda y: codes_of(self.classes, y), self.n_features)
        return Measured(Tables((histogram(X, self.n_bins)[None],)), len(X))

    def parts(self, statistic: Tables) -> list[Any]:
        return list(statistic.tables)

    def of_parts(self, parts: list[Any], n_parties: int) -> Tables:
        return Tables(tuple(parts))


class HistogramTally(Tally[Tables]):
    """Histograms that are added up, before anybody is counted."""

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        return Sizes(reply.announced, reply.announced)

    def check(self, statistic: Tables, sizes: Sizes) -> None:
        if sum(statistic.tables[0].ravel().tolist()) != sizes.total:
            raise PayloadError(
                "histogram", f"{sizes.total} samples as announced", "another number"
            )


def histogram(X: npt.NDArray[Any], n_bins: int) -> npt.NDArray[np.int64]:
    """Samples in each bin."""
    bins = np.floor(X[:, 0]).astype(np.int64)
    if ((bins < 0) | (bins >= n_bins)).any():
        raise DataError("X", f"a first column from 0 to {n_bins}", "values outside")
    return np.bincount(bins, minlength=n_bins)


def _tally(state: RunState, context: Context) -> HistogramTally:
    run = state.run_spec
    return HistogramTally(HistogramRequest(run.spec.n_features, run.classes, 20))


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    return state.with_result("histogram", batch.total.tables[0][0])


HISTOGRAM = Phase("histogram", TRAIN, _tally, _fold)


def with_histogram(**options: Any) -> dict[str, Any]:
    """Options of a run whose plan begins with the histogram."""
    return {**options, "phases": (HISTOGRAM, *phases_of(RunOptions(**options)))}
