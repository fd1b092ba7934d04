"""The counting: of one spec or several, in clear, with noise; added, joined, taken out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phases.counts import (
    CountsChange,
    CountsRequest,
    CountsTally,
    WithdrawRequest,
    no_counts,
)
from flwr_flynn.federated.private_rows import inputs_of
from flwr_flynn.federated.protocol import TRAIN, Config
from flwr_flynn.federated.roster import Member, Roster, Sender
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from tests.fakes import tally_of
from tests.federated.runs import (
    GRID,
    LABELS,
    NAMES,
    X,
    Y,
    exchange,
    in_process,
    options_for,
    shares,
    statistic_of,
)
from tests.raising import raises

RUN = RunSpec(GRID, NAMES)
REQUEST = CountsRequest(RUN)


def test_threads_change_nothing():
    assert statistic_of(REQUEST, party_of(X, LABELS, n_jobs=2)) == statistic_of(
        REQUEST, party_of(X, LABELS)
    )


def test_a_party_that_was_refused_may_mend_its_counts():
    steps = exchange(GRID, max_examples_per_party=50, min_parties=4)
    outcome = steps.step(
        TRAIN,
        spoil=lambda reply: (
            replace(reply, n_examples=60) if reply.cid == "3" else reply
        ),
    )
    assert list(outcome.missing) == ["party-3"]
    assert steps.run.totals == in_process(options_for(GRID), shares()[:3]).totals
    steps.step(TRAIN)
    assert steps.run.counts.n_examples == 120


def test_the_memory_limit_covers_all_specs_before_any_is_drawn(
    monkeypatch,
):
    config = Config(REQUEST.to_config(), CountsRequest.entries)
    needed = sum(memory_needed(spec, 3) for spec in GRID) + 32 * 9
    needed += 64 * (32 * 4 + 8 * max(map(inputs_of, GRID)))  # 64 rows
    assert (
        CountsRequest.from_config(config, [], PartyOptions(memory_limit=needed)).run
        == RUN
    )
    monkeypatch.setattr(
        "flwr_flynn.federated.request.check_fingerprints",
        lambda *_: pytest.fail("drew the rows"),
    )
    with raises(PayloadError, field="memory"):
        CountsRequest.from_config(config, [], PartyOptions(memory_limit=needed - 1))


# ---- the room of a sum


def test_a_sum_has_the_room_of_the_hash_that_has_the_least():
    run = RunSpec([GRID[0], replace(GRID[1], hash_dim=200)], NAMES)
    small, large = map(codec.capacity, run.hashers[::-1])
    assert tally_of(CountsRequest(run)).capacity == small < large


def test_noisy_counts_take_the_room_of_their_largest_entry():
    noise = SimulatedRelease(LaplaceCounts.for_spec(GRID[0], 3, 1.0), 3)
    release = noise.release(ClassCounts.from_data(FlyHash(GRID[0]), X, Y, 3))
    tally = tally_of(CountsRequest(RunSpec(GRID[0], NAMES, noise)))
    assert tally.load(CountsOfSpecs((release,))) == np.abs(release.array).max()


# ---- members


def test_of_two_of_one_name_the_one_of_these_very_counts_leaves():
    statistic = statistic_of(REQUEST, party_of(X, LABELS))
    members = [
        Member("a", "1", sha256=("x",) * 2, proof="p"),
        Member("a", "2", sha256=statistic.sha256, proof="p"),
    ]
    tally = CountsTally(WithdrawRequest(RUN), roster=Roster(members))
    change = CountsChange(statistic)
    assert tally.match(change, Sender("9", "a", "p"), set()) == 1
    with pytest.raises(PayloadError):
        tally.match(change, Sender("9", "a", "p"), {1})
    assert statistic + change == no_counts(RUN)
    assert tally.load(change) == 0  # it takes no room


def test_who_was_added_by_a_secure_sum_cannot_be_taken_out():
    roster = Roster([Member("a", "1")])
    tally = CountsTally(WithdrawRequest(RUN), roster=roster)
    change = CountsChange(statistic_of(REQUEST, party_of(X, LABELS)))
    with raises(PayloadError, field="member", got="added by a secure sum"):
        tally.match(change, Sender("1", "a"), set())
