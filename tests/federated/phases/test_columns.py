"""The histograms of the columns: exact, floored at the party, or refused.

They are refused where no samples have such histograms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.compression import pack_numbers, unpack_numbers
from flwr_flynn.federated.phases.columns import ColumnsRequest, memory_of_sums
from flwr_flynn.federated.protocol import REFUSED, TRAIN, Reply
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_cells import coarse
from flwr_flynn.model.column_histograms import ColumnHistograms
from tests.fakes import config_of, tally_of
from tests.federated.runs import (
    AUTO,
    LABELS,
    NAMES,
    X,
    Y,
    exchange,
    refusal,
    replied,
    statistic_of,
)
from tests.raising import raises

REQUEST = ColumnsRequest(4, NAMES)
CODES = Y.astype(np.int64)


def histograms(places: Any, least: int = 1) -> ColumnHistograms:
    return ColumnHistograms.from_data(X[places], CODES[places], 3, least)


# ---- at a party


def test_the_memory_limit_is_asked_before_anything_is_counted(
    monkeypatch,
):
    needed = 64 * X.size
    assert (
        REFUSED
        not in replied(REQUEST, party_of(X, LABELS, memory_limit=needed)).metrics
    )
    monkeypatch.setattr(
        ColumnHistograms, "from_data", lambda *_: pytest.fail("counted")
    )
    for limit in (memory_of_sums(4, 3) - 1, needed - 1):
        refused = replied(REQUEST, party_of(X, LABELS, memory_limit=limit)).metrics[
            REFUSED
        ]
        assert str(refused).startswith("memory: ")


# ---- the floor


SWEPT = 1.02 ** np.arange(97)  # values of a column, two per cent apart
MET = np.random.default_rng(0).permutation(97)
TOLD = [*range(4, 90, 5), 90]  # ranks of the values that a floor of 5 tells


def of_told() -> ColumnHistograms:
    """Histograms of the values that a floor of 5 tells.

    The ranks are rounded to a thirty-second, which is 3.
    """
    met = np.sort(SWEPT)
    least, most = (met[np.clip(np.add(TOLD, by), 0, 96)] for by in (-3, 3))
    values = coarse(met[TOLD], least, most, met[-1] - met[0], False)
    return ColumnHistograms.from_data(
        np.repeat(values, [5] * 18 + [7])[:, None], np.zeros(97, np.int64), 1
    )


@pytest.mark.parametrize("floor", [0, 1, 3, 5, 97, 10**6, "1"])
def test_the_floor_is_the_party_s_own(floor):
    """A request has none: another one would have the party tell of other values."""
    request = ColumnsRequest(1, ("a",))
    party = party_of(SWEPT[MET, None], np.full(97, "a"))
    entries = {"flynn-min-examples": floor}
    assert refusal(request, party, entries).startswith("flynn-min-examples: ")
    sizes, *packed, squares = party.answer(config_of(request)).arrays
    gaps, counts = (unpack_numbers(table, 10**6, 2**63 - 1) for table in packed)
    cells = np.cumsum(gaps + 1) - 1
    sent = ColumnHistograms(1, sizes, cells, counts + 1, squares)
    assert sent == replace(of_told(), group_squares=np.array([25]))


def test_bins_and_classes_of_few_samples_stay_at_home():
    some = np.concatenate(
        [
            np.flatnonzero(Y == 0)[:4],
            np.flatnonzero(Y == 1)[:23],
            np.flatnonzero(Y == 2),
        ]
    )
    found = statistic_of(REQUEST, party_of(X[some], LABELS[some], min_examples=5))
    assert found == histograms(some, 5)
    assert found.n_per_class.tolist() == [0, 23, 50]
    assert found.counts.min() >= 5


def junk(reply: Reply) -> Reply:
    return replace(reply, tensors=[b"junk"])


@pytest.mark.parametrize(
    ("floor", "spoil", "n_missing"),
    [(1000, None, 0), (1, junk, 4)],
    ids=["few", "junk"],
)
def test_where_no_histogram_comes_back_the_columns_are_left_as_they_are(
    floor, spoil, n_missing
):
    steps = exchange(AUTO, floor=floor)
    steps.step(TRAIN, spoil=spoil)
    result = steps.run.state.results["columns"]
    assert result.histograms.n_examples == 0
    assert result.fallback_reason == "no party sent the histograms of any sample"
    assert len(steps.run.state.missing["columns"]) == n_missing
    specs = HashPlan(4, 3, 120, None, hash_dim=128).specs()
    assert steps.run.state.run_spec.specs == specs
    members = steps.rounds().model.model_.members
    assert {member.counts.n_examples for member in members} == {120}


# ---- hostile replies


@pytest.mark.parametrize(
    ("n_features", "n", "gaps"), [(2**20, 1, np.full(2**20, 2**43)), (1, 2**53, [5])]
)
def test_gaps_that_wrap_around_and_too_large_histograms_are_refused(
    n_features, n, gaps
):
    request = ColumnsRequest(n_features, NAMES)
    tally = tally_of(request)
    assert tally.capacity // 1024 < 2**53
    arrays = [
        np.array([n, 0, 0]),
        pack_numbers(np.array(gaps)),
        pack_numbers(np.full(len(gaps), n - 1)),
        np.zeros(3, np.int64),
    ]
    with raises(PayloadError, field="histograms"):
        tally.read(arrays, Reply("1", (), n, {}), None)
