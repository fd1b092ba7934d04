"""Specs that a `HashPlan` derives from the statistics of the columns, and those that it has without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flwr_flynn.errors import DataError, SpecError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.column_moments import ColumnMoments


def derive_specs(
    plan: HashPlan, sums: ColumnMoments, histograms: ColumnHistograms | None = None
) -> tuple[tuple[HashSpec, ...], str]:
    """Specs of a plan that `needs_sums`, and "" or the reason why they are unscaled."""
    reason = no_samples(sums)
    if not reason and histograms is not None and not histograms.n_examples:
        reason = "no party sent the histograms of any sample"
    if not reason:
        try:
            return plan.specs(sums, histograms), ""
        except (SpecError, DataError) as error:
            reason = str(error)
    return unscaled(plan).specs(), reason


def no_samples(sums: ColumnMoments) -> str:
    """The reason why nothing follows from the sums of no samples, or ""."""
    return "" if sums.n_examples else "no party sent the sums of any sample"


def foreseen(plan: HashPlan) -> tuple[HashSpec, ...]:
    """Specs of the number and the sizes of the plan's; only what is learned of the columns may change."""
    unscaled(plan).specs()
    if not plan.needs_sums:
        return plan.specs()
    samples = np.repeat(np.arange(3.0)[:, None], plan.n_features, axis=1)
    one = np.zeros(3, np.int64)  # one class is enough
    histograms = ColumnHistograms.from_data(samples, one, 1) if plan.needs_histograms else None
    return plan.specs(ColumnMoments.from_data(samples, one, 1), histograms)


def unscaled(plan: HashPlan) -> HashPlan:
    """The plan without anything that is learned of the columns."""
    if not plan.needs_sums:
        return plan
    # row_nnz may be meant for waves, of which there can be more than columns.
    row_nnz = None if plan.row_nnz is None else min(plan.row_nnz, plan.n_features)
    return replace(plan, scaling=None, row_nnz=row_nnz)
