"""A secure run makes what the same run makes in clear, bit for bit.

Otherwise it says what is missing.
"""

from __future__ import annotations

from dataclasses import replace
from logging import WARNING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_flynn import message
from flwr_flynn.errors import AggregationError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.run import ExchangeResult, Run
from flwr_flynn.flower.logging import result_lines
from tests.federated.registry import SECURE, SECURE_CASES, SOME
from tests.federated.runs import (
    AUTO,
    GRID,
    LABELS,
    X,
    in_process,
    options_for,
    refusal,
    shares,
)
from tests.federated.secure_runs import BOUND, lost, odd, secretly
from tests.raising import raises

# ---- runs


@pytest.mark.parametrize("n_large", [1, 4, 5])
def test_parties_of_more_samples_than_allowed_are_in_no_sum(n_large):
    parts = shares(n=5)
    for part in parts[:n_large]:
        for name in ("X", "y"):
            part[name] = np.concatenate([part[name]] * 4)
    run = secretly(options_for(AUTO), parts)
    for name, roster in run.rosters.items():
        assert not [cid for cid in "01234"[:n_large] if cid in roster], name
    if n_large == 1:
        assert len(run.model.model_.members)
        return
    with raises(AggregationError, counted=0) as caught:
        _ = run.model
    assert "max-examples" in str(caught.value)


@pytest.mark.parametrize("name", ["bins", "evaluation"])
def test_what_is_for_secure_sums_alone_is_refused_without_a_bound(name):
    if name == "evaluation":
        changes = {"flynn-bound": None, "flynn-mode": "plain"}
    else:
        changes = {"flynn-bound": None}
    party = SECURE_CASES[name].party(SOME, secure=True)
    reason = refusal(SECURE[name], party, changes)
    assert reason.startswith(("flynn-bound: ", "secure sum: "))


# ---- columns


@given(st.sampled_from([64, 2**28]), st.integers(0, 10**6))
@settings(max_examples=10)
def test_columns_of_any_size_are_summed_as_in_clear(bound, seed):
    random = np.random.default_rng(seed)
    if seed % 2:
        scales = 2.0 ** random.integers(-1000, 500, 4)
    else:
        scales = np.ones(4)
    parts = []
    for part in shares("dirichlet"):
        if seed % 3:
            X = np.rint(part["X"] * random.choice([1, 100]))
        else:
            X = part["X"]
        parts.append({**part, "X": X * scales, "X_test": part["X_test"] * scales})
    options = options_for(replace(AUTO, hash_dim=64), fraction_evaluate=0.0)
    clear = in_process(options, parts)
    secret = secretly(options, parts, bound=bound)
    assert secret.state.run_spec.specs == clear.state.run_spec.specs
    assert secret.totals.sha256 == clear.totals.sha256


@pytest.mark.parametrize("phase", ["bins 1", "bins 3", "columns"])
def test_a_party_lost_before_the_counts_costs_its_columns_alone(phase):
    parts = shares(n=6)
    run = secretly(options_for(AUTO), parts, lost(phase, "1"))
    assert len(run.counted) == 6
    assert run.state.results["selection"].parties == 6
    assert run.model.score(X, LABELS) > 0.9
    missing = [name for name, roster in run.rosters.items() if roster.missing]
    before = list(run.rosters)[: list(run.rosters).index("columns") + 1]
    # Otherwise the difference of two sums would be the party's alone.
    assert missing == before[before.index(phase) :]


@pytest.mark.parametrize("phase", ["bins 2", "columns"])
def test_columns_with_nonsense_in_them_are_left_as_they_are(phase):
    run = secretly(options_for(AUTO), shares(), odd(phase, slice(None), -BOUND))
    assert len(run.counted) == 4
    assert all(
        "refused: with its whole" in reason
        for reason in run.rosters[phase].missing.values()
    )
    assert bool(run.state.results["columns"].fallback_reason) == (phase != "bins 2")
    assert run.model.score(X, LABELS) > 0.6


def test_a_sum_that_differs_by_one_party_from_another_is_told():
    warned: list[str] = []

    def watch(run: Run, taken: ExchangeResult) -> None:
        lines = [line for level, line in result_lines(run, taken) if level == WARNING]
        differing = [line for line in lines if "the difference discloses" in line]
        warned.extend([taken.phase.name] * len(differing))

    secretly(options_for(AUTO), shares(n=5), lost("bins 2", "1"), watch=watch)
    assert warned == [
        "bins 2",
        "bins 3",
        "bins 4",
        "bins 5",
        "columns",
        "counts",
        "selection",
        "calibration",
        "secure evaluation",
    ]
    warned.clear()
    secretly(options_for(AUTO), shares(n=5), watch=watch)
    assert not warned


# ---- saved


def test_a_federation_of_several_members_is_kept_and_distributed(tmp_path):
    options = options_for(GRID)
    parts = shares()
    made = secretly(options, parts)
    made.federation("1").save(tmp_path / "f.npz")
    before = Federation.load(tmp_path / "f.npz")
    assert before.run_spec.is_secure
    assert before.phase == ""
    assert len(before.members) == 4
    assert before.model.model_.sha256() == made.model.model_.sha256()
    later = {"spec": before.run_spec.specs, "federation": before, "purpose": "evaluate"}
    handed = secretly(options_for(**later), parts)
    assert [phase.name for phase in handed.phases] == ["evaluation"]
    in_clear, summed = (
        run.state.results["evaluation"].figures for run in (handed, made)
    )
    of_parties = dict.fromkeys(("parties", "worst_party", "best_party", "accuracy_std"))
    assert in_clear | of_parties == summed | of_parties
    assert not any(summed[name] for name in of_parties)
    # The reason is that nobody is counted.
    alone = options_for(**later) | {"secure_bound": BOUND, "min_parties": 1}
    assert RunOptions(**alone).min_parties == 1
    assert (
        message.FlyNNStrategy(**alone, min_available_nodes=1).run.phases
        == handed.phases
    )
