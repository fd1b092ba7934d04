"""Phase "column sums": noisy sums of the columns within public ranges, from which the
centre and the scale of the hash follow, see `model.column_sums`.

One charge of a party's ledger pays for them and for the noisy counts that follow. A
party that joins later is asked for counts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from flwr_flynn._types import Array
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import Context, Description, Phase, RunState
from flwr_flynn.federated.protocol import (
    NOISY,
    NOISY_EXAMPLES,
    TRAIN,
    Config,
    Reply,
    refusing,
)
from flwr_flynn.federated.reply_fields import PLAIN, Field, Sizes
from flwr_flynn.federated.request import Measured, RunRequest, announced_run, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.tally import Tally, check_hidden
from flwr_flynn.federated.views import View
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_sums import spec_of_sums
from flwr_flynn.model.counts import Tables
from flwr_flynn.privacy.mechanism import LARGEST_SUM


@register
@dataclass(frozen=True, eq=False)
class ColumnSumsRequest(RunRequest[Tables]):
    """Ask for noisy sums of the columns, within the ranges that the run's hash has."""

    phase = "column sums"

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> ColumnSumsRequest:
        run = announced_run(config, options)
        with refusing():
            run.require_sums()
        return cls(run)

    @property
    def discloses(self) -> str:
        if self.run.is_secure:
            return super().discloses
        return NOISY

    def fields(self, sizes: Sizes) -> list[Field]:
        mechanism = self.run.require_sums()
        shape = (mechanism.n_moments, self.run.spec.n_features)
        return [Field("sums", shape, _most(self.run), PLAIN, is_signed=True)]

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        return Tables(tuple(parts))

    def measured(self, view: View) -> Measured[Tables]:
        sums = view.release_sums(self.run)
        # As those of noisy counts: clipping depends on the release alone.
        most = _most(self.run)
        return Measured(Tables((sums.clip(-most, most),)), NOISY_EXAMPLES)


def _most(run: RunSpec) -> int:
    """Magnitude of a sum of a party, at most."""
    return run.bound or LARGEST_SUM


@dataclass(frozen=True, eq=False)
class ColumnSumsTally(Tally[Tables]):
    """Noisy sums that are added up."""

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        check_hidden("noisy sums", reply)
        return Sizes(0, 0)

    @property
    def largest(self) -> int:
        return LARGEST_SUM


def _tally(state: RunState, context: Context) -> ColumnSumsTally:
    return ColumnSumsTally(ColumnSumsRequest(state.run_spec))


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    run = state.run_spec
    mechanism = run.require_sums()
    plan = cast("HashPlan", context.options.spec)
    (sums,) = batch.total.tables
    variance = len(batch.passed) * mechanism.sums_sd**2
    spec = spec_of_sums(run.spec, sums, plan.n_examples or 0, variance)
    state = replace(state, run_spec=replace(run, specs=(spec,)), is_specified=True)
    return state.with_result(COLUMN_SUMS.name, batch.total)


def _describe(state: RunState, options: RunOptions) -> Description:
    return Description("", (), state.run_spec.hash_lines)


COLUMN_SUMS = Phase(
    "column sums",
    TRAIN,
    _tally,
    _fold,
    content="noisy sums of the columns within their public ranges",
    applies=lambda options: options.sums_columns,
    describe=_describe,
)
