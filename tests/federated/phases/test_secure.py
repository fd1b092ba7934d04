"""A secure sum: copies of one mean give the exact sum, or nobody is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch, collect
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phases.counts import CountsRequest, no_counts
from flwr_flynn.federated.protocol import TRAIN, Reply
from flwr_flynn.federated.roster import Roster
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.secure_bound import LARGEST_BOUND, bound_for, check_room, room
from tests.fakes import CLASSES, SPEC, counts_of, points, tally_of
from tests.raising import raises

RUN = RunSpec(SPEC, CLASSES, bound=256)
REQUEST = CountsRequest(RUN)
PARTS = [counts_of(*points(5 + i, seed=i)) for i in range(3)]
TOTAL = PARTS[0] + PARTS[1] + PARTS[2]


def copies(array: np.ndarray, n: int = 3, **metrics: Any) -> list[Reply]:
    """The replies that Flower makes of a mean."""
    return [
        Reply(str(i), codec.write_tensors([array]), 1, dict(metrics)) for i in range(n)
    ]


def collected(replies: list[Reply], roster: Roster | None = None) -> Any:
    roster = roster or Roster()
    batch = Batch(no_counts(RUN))
    collect(tally_of(REQUEST), batch, roster, roster, replies)
    return batch


@example(39, 12345)  # whose means are not exact
@given(st.integers(3, 40), st.integers(0, 2**30))
def test_the_mean_of_any_number_of_parties_gives_the_exact_sum(n, seed):
    parts = [counts_of(*points(seed % (i + 2), seed=seed % 1000 + i)) for i in range(n)]
    total = sum(parts[1:], start=parts[0])
    assert collected(copies(total.array.ravel() / n, n)).total.parts[0] == total


MEAN = TOTAL.array.ravel() / 3


def test_all_senders_are_in_the_sum_and_in_no_other_and_nobody_s_sizes_are_known():
    roster = Roster()
    batch = collected(copies(MEAN, **{"flynn-party": "Basel"}), roster)
    assert batch.total.parts[0] == TOTAL
    assert list(batch.passed) == ["0", "1", "2"]
    for member in batch.members.values():
        assert member.name == "Basel"
        assert member.sizes is None
        assert member.sha256 == ()
        assert member.examples is None
        roster.enter(member)
    again = collected(copies(MEAN), roster)
    assert again.repeated == ["0", "1", "2"]
    assert again.passed == {}


def test_the_sum_has_room_for_all_or_nobody_is_asked():
    run = Run(RunOptions(SPEC, CLASSES, 3, secure_bound=LARGEST_BOUND))
    assert room(LARGEST_BOUND) == 3
    with pytest.raises(ConfigError):
        run.ask(TRAIN, list("0123"))


@given(st.integers(1, LARGEST_BOUND))
def test_the_bound_is_the_least_power_of_two(most):
    bound = bound_for(most)
    assert most <= bound <= max(2, 2 * most - 1)
    assert bound & (bound - 1) == 0
    check_room(room(bound), bound)
    with pytest.raises(ConfigError):
        check_room(room(bound) + 1, bound)


@pytest.mark.parametrize("most", [0, -1, LARGEST_BOUND + 1])
def test_no_bound_is_beyond_the_modulus(most):
    with raises(ConfigError, field="secure sum"):
        bound_for(most)
