"""Laws of every statistic: the sum over any partition, in any order, is that of the pooled samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.phases.counts import CountsRequest, no_counts
from flwr_flynn.federated.phases.evaluation import EvaluationRequest
from flwr_flynn.federated.phases.selection import SelectionRequest, candidates_for
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.statistics import CountsOfSpecs, Tables
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.scoring import ScoringRule
from tests.federated.runs import GRID, LABELS, NAMES, X, Y, statistic_of

SOME = np.array([0, 3, 9, 50, 51, 77, 100, 101, 102, 120, 149, 60])  # 12 samples of three classes
RUN = RunSpec(GRID, NAMES)
TOTALS = CountsOfSpecs(tuple(ClassCounts.from_data(flynn_hash(spec), X[SOME], Y[SOME], 3) for spec in GRID))
CANDIDATES = candidates_for(TOTALS, "balanced", "auto")
MODEL = EvaluationRequest(RUN.only([0]), TOTALS.parts[:1], (ScoringRule("balanced", 0.5, 1.0),), (1.0,))


@dataclass(frozen=True)
class Case:
    """A request, and the statistic of no samples."""

    request: Request[Any]
    zero: Callable[[], Any]
    held_out: bool = False

    def of(self, places: np.ndarray) -> Any:
        """The statistic of some samples, over the wire and back."""
        samples, labels = X[places], LABELS[places]
        nothing = X[:0], LABELS[:0]
        party = (
            party_of(*nothing, samples, labels, class_prior=False)
            if self.held_out
            else party_of(samples, labels, min_examples=1)
        )
        sizes = np.bincount(Y[places], minlength=3).tolist()
        found = statistic_of(self.request, party, Member("", "1", sizes=tuple(sizes)))
        return self.zero() if found is None else found


def no_tables() -> Tables:
    """The tables of the selection of no samples."""
    return SELECTION.of(SOME[:0])  # type: ignore[no-any-return]


SELECTION = Case(SelectionRequest(RUN, TOTALS, CANDIDATES), no_tables)
CASES = {
    "columns": Case(ColumnsRequest(4, NAMES), lambda: ColumnHistograms.zeros(4, 3)),
    "counts": Case(CountsRequest(RUN), lambda: no_counts(RUN)),
    "selection": SELECTION,
    "evaluation": Case(
        MODEL, lambda: Tables(tuple(np.zeros(shape, np.int64) for shape in ((3, 3), (3, 3), (1, 1)))), held_out=True
    ),
}
POOLED = {name: case.of(SOME) for name, case in CASES.items()}

one_class_each = Y[SOME].tolist()
one_sample_each = list(range(12))


@pytest.mark.parametrize("name", CASES)
@given(owners=st.lists(st.integers(0, 5), min_size=12, max_size=12), order=st.permutations(range(12)))
@example(owners=one_class_each, order=list(range(12)))
@example(owners=one_sample_each, order=list(range(12))[::-1])
@example(owners=[0] * 12, order=list(range(12)))
@settings(max_examples=15)
def test_the_sum_of_every_partition_in_every_order_is_the_pooled_statistic(
    name: str, owners: list[int], order: list[int]
) -> None:
    case = CASES[name]
    total = case.zero()
    for party in order:  # numbers that own nothing are parties without samples
        total = total + case.of(SOME[np.array(owners) == party])
    assert total == POOLED[name]


@pytest.mark.parametrize("name", CASES)
@given(gone=st.sets(st.integers(0, 11)))
@settings(max_examples=15)
def test_what_was_added_can_be_taken_out_exactly(name: str, gone: set[int]) -> None:
    case, leaves = CASES[name], np.isin(np.arange(12), list(gone))
    assert POOLED[name] - case.of(SOME[leaves]) == case.of(SOME[~leaves])


def test_forgetting_samples_gives_the_counts_and_histograms_never_trained_on_them() -> None:
    for kind in ("columns", "counts"):
        assert POOLED[kind] - POOLED[kind] == CASES[kind].zero()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ColumnHistograms.zeros(4, 3), ColumnHistograms.zeros(4, 1)),
        (ColumnHistograms.zeros(4, 3), ColumnHistograms.zeros(3, 4)),
        (TOTALS, CountsOfSpecs(TOTALS.parts[:1])),
        (TOTALS, CountsOfSpecs(TOTALS.parts[::-1])),
        (TOTALS, no_counts(RunSpec(GRID, (*NAMES, "no iris")))),
        (Tables((np.zeros((3, 3), np.int64),)), Tables((np.zeros((4, 4), np.int64),))),
        (Tables((np.zeros((3, 3), np.int64),)), Tables(())),
    ],
)
def test_statistics_of_different_requests_do_not_add(one: Any, other: Any) -> None:
    for combine in (lambda a, b: a + b, lambda a, b: a - b):
        with pytest.raises((CountsError, DataError)) as error:
            combine(one, other)
        assert error.value.field


def test_what_is_not_in_a_sum_cannot_be_taken_out() -> None:
    for kind in ("columns", "counts"):
        with pytest.raises((CountsError, DataError)):
            _ = CASES[kind].zero() - POOLED[kind]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
@example(-(2**63), -(2**63))
@example(0, -(2**63))
@example(2**63 - 1, 1)
def test_tables_add_exactly_or_not_at_all(a: int, b: int) -> None:
    one, other = (Tables((np.array([[value]], np.int64),)) for value in (a, b))
    for combine, exact in ((lambda: one + other, a + b), (lambda: one - other, a - b)):
        if -(2**63) <= exact < 2**63:
            assert combine().tables[0].item() == exact
        else:
            with pytest.raises(CountsError) as error:
                combine()
            assert error.value.field == "tables"


def test_statistics_are_values() -> None:
    again = CountsOfSpecs(tuple(ClassCounts(part.array, hash_nnz=part.hash_nnz, spec_fingerprint=part.spec_fingerprint)
                                for part in TOTALS.parts))  # fmt: skip
    assert again == TOTALS
    assert again.sha256 == tuple(part.sha256() for part in TOTALS.parts)
    assert CountsOfSpecs(TOTALS.parts[::-1]) != TOTALS
    one, same, turned = (Tables((np.array(table),)) for table in ([[1, 2]], [[1, 2]], [[1], [2]]))
    assert (one == same, one == turned, one == 3) == (True, False, False)
