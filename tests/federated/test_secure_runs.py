"""A secure run makes what the same run makes in clear, bit for bit, or says what is missing."""

from __future__ import annotations

from dataclasses import replace
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_flynn import message
from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.protocol import REFUSED, TRAIN
from flwr_flynn.federated.run import Ask, ExchangeResult, Run
from flwr_flynn.flower.logging import result_lines
from flwr_flynn.model.gram import GramMatrix, class_weights, gram_specs
from tests.federated.runs import AUTO, GRID, LABELS, SPLITS, X, in_process, options_for, shares
from tests.federated.secure_runs import BOUND, Spoil, secretly
from tests.federated.test_run_laws import facts
from tests.own_phase_app.own_phase_app.histogram import HISTOGRAM
from tests.raising import raises

# ---- runs


def lost(phase: str, who: str) -> Spoil:
    """A party is lost in a phase."""
    return lambda ask, cid, vector: None if (ask.phase.name, cid) == (phase, who) else vector


def wrong(phase: str) -> Spoil:
    """A party sends negative numbers in a phase."""
    return lambda ask, cid, vector: 0 * vector - BOUND if (ask.phase.name, cid) == (phase, "1") else vector


def test_a_party_lost_in_the_selection_stays_in_the_counts() -> None:
    parts = shares(n=5)
    run = secretly(
        options_for(GRID),
        parts,
        lambda ask, cid, vector: None if (ask.phase.name, cid) == ("selection", "2") else vector,
    )
    clear = in_process(options_for(GRID), parts)
    assert run.totals.sha256 == clear.totals.sha256
    selection = run.state.results["selection"]
    assert (selection.parties, list(run.state.absent("selection"))) == (4, ["party-2"])
    assert selection.examples == 120 - len(parts[2]["X"])


def test_a_party_lost_in_the_counts_is_in_none_of_it() -> None:
    parts = shares(n=5)
    run = secretly(options_for(GRID), parts, lost("counts", "2"))
    others = in_process(options_for(GRID), parts[:2] + parts[3:])
    assert facts(run) == facts(others)


@pytest.mark.parametrize("phase", ["counts", "selection"])
def test_a_sum_with_nonsense_in_it_is_refused_whole(phase: str) -> None:
    run = secretly(options_for(GRID), shares(), wrong(phase))
    if phase == "counts":
        assert run.counted.counted == []
        assert all("refused: with its whole secure sum: " in each for each in run.counted.missing.values())
        return
    selection = run.state.results["selection"]
    assert (selection.parties, selection.examples, len(run.state.absent("selection"))) == (0, 0, 4)
    assert run.model.model_.members[0].spec == GRID[0]


def test_a_phase_of_too_few_parties_is_not_asked_for() -> None:
    run = secretly(options_for(GRID), shares(n=3))
    run.state = run.state.without(["selection", "evaluation"])
    assert run.ask(TRAIN, ["0", "1"]) is None
    assert run.due is not None
    assert run.due.name == "selection"


def test_the_train_channel_of_a_secure_run_has_secure_sums_alone() -> None:
    plan = [HISTOGRAM, *secretly(options_for(GRID[0]), shares()).phases]
    with raises(ConfigError, field="phases", got="histogram"):
        secretly(options_for(GRID[0], phases=plan), shares())


@pytest.mark.parametrize("n_large", [1, 4, 5])
def test_parties_of_more_samples_than_allowed_are_in_no_sum(n_large: int) -> None:
    parts = shares(n=5)
    for part in parts[:n_large]:
        for name in ("X", "y"):
            part[name] = np.concatenate([part[name]] * 4)
    run = secretly(options_for(AUTO), parts)
    large = {f"{i}" for i in range(n_large)}
    for name, roster in run.rosters.items():
        assert not [cid for cid in large if cid in roster], name
    if n_large == 1:
        assert len(run.model.model_.members)
        return
    with raises(AggregationError, counted=0) as caught:
        _ = run.model
    assert "max-examples" in str(caught.value)


# ---- columns


@pytest.mark.parametrize(("how", "least"), [*((how, 5) for how in SPLITS), ("dirichlet", 1)])
def test_specs_are_those_in_clear(how: str, least: int) -> None:
    options, parts = options_for(AUTO), shares(how)
    clear, secret = (run(options, parts, min_examples=least) for run in (in_process, secretly))
    assert facts(secret) == facts(clear)
    columns, found = (run.state.results["columns"].histograms for run in (clear, secret))
    assert found.quantiles.tolist() == columns.quantiles.tolist()
    assert found.relevance() == columns.relevance()
    assert found.n_per_class.tolist() == columns.n_per_class.tolist()
    assert len(found.cells) <= 3 * 4 * 70


@given(st.sampled_from([64, 2**28]), st.integers(0, 10**6))
@settings(max_examples=10)
def test_columns_of_any_size_are_summed_as_in_clear(bound: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    scales = 2.0 ** random.integers(-1000, 500, 4) if seed % 2 else np.ones(4)
    parts = []
    for part in shares("dirichlet"):
        X = np.rint(part["X"] * random.choice([1, 100])) if seed % 3 else part["X"]
        parts.append({**part, "X": X * scales, "X_test": part["X_test"] * scales})
    options = options_for(replace(AUTO, hash_dim=64), fraction_evaluate=0.0)
    clear, secret = in_process(options, parts), secretly(options, parts, bound=bound)
    assert secret.state.run_spec.specs == clear.state.run_spec.specs
    assert secret.totals.sha256 == clear.totals.sha256


@pytest.mark.parametrize("phase", ["bins 1", "bins 3", "columns"])
def test_a_party_lost_before_the_counts_costs_its_columns_alone(phase: str) -> None:
    parts = shares(n=6)
    run = secretly(options_for(AUTO), parts, lost(phase, "1"))
    assert len(run.counted) == 6
    assert run.state.results["selection"].parties == 6
    assert run.model.score(X, LABELS) > 0.9
    missing = [name for name, roster in run.rosters.items() if roster.missing]
    before = list(run.rosters)[: list(run.rosters).index("columns") + 1]
    assert missing == before[before.index(phase) :]  # else the difference of two sums would be the party's alone


@pytest.mark.parametrize("phase", ["bins 2", "columns"])
def test_columns_with_nonsense_in_them_are_left_as_they_are(phase: str) -> None:
    run = secretly(options_for(AUTO), shares(), wrong(phase))
    assert len(run.counted) == 4
    assert all("refused: with its whole" in reason for reason in run.rosters[phase].missing.values())
    assert bool(run.state.results["columns"].fallback_reason) == (phase != "bins 2")
    assert run.model.score(X, LABELS) > 0.6


def test_a_sum_that_differs_by_one_party_from_another_is_told() -> None:
    warned: list[str] = []

    def watch(run: Run, taken: ExchangeResult) -> None:
        lines = [line for level, line in result_lines(run, taken) if level == WARNING]
        differing = [line for line in lines if "the difference discloses" in line]
        warned.extend([taken.phase.name] * len(differing))

    secretly(options_for(AUTO), shares(n=5), lost("bins 2", "1"), watch=watch)
    assert warned == ["bins 2", "bins 3", "bins 4", "bins 5", "columns", "counts", "selection", "secure evaluation"]
    warned.clear()
    secretly(options_for(AUTO), shares(n=5), watch=watch)
    assert not warned


def test_what_is_for_secure_sums_alone_is_refused_without_a_bound() -> None:
    asked: list[Ask] = []

    def note(ask: Ask, cid: str, vector: np.ndarray) -> np.ndarray:
        asked.extend([ask] if ask.phase.name == "bins 1" else [])
        return vector

    parts = shares()
    secretly(options_for(AUTO), parts, note)
    config = {name: value for name, value in asked[0].config.items() if name != "flynn-bound"}
    open_party = Party(Samples(*parts[0].values()), PartyOptions(min_examples=1))
    answer = open_party.answer(config, codec.read_tensors(asked[0].tensors), TRAIN)
    assert REFUSED in answer.metrics
    assert not answer.arrays


# ---- the Gram matrix


@pytest.mark.parametrize("bound", [64, 2**20, 2**28])
def test_the_gram_matrix_of_any_bound_is_that_in_clear(bound: int) -> None:
    options, parts = options_for(GRID[0], gram=16), shares()
    secret = secretly(options, parts, bound=bound)
    assert secret.counted.missing == {}
    assert facts(secret) == facts(in_process(options, parts))


def test_a_party_lost_in_the_gram_matrix_is_missing_from_that_exchange_alone() -> None:
    parts = shares(n=5)
    run = secretly(options_for(GRID[0], decay=0.5, gram=16), parts, lost("gram", "1"))
    assert list(run.state.absent("gram")) == ["party-1"]
    (spec,) = specs = gram_specs(GRID[:1], 16)
    codes = [run.state.run_spec.codes(part["y"]) for part in parts]
    weights, others = class_weights(np.bincount(np.concatenate(codes))), [0, 2, 3, 4]
    sums = GramMatrix.from_data(
        specs, weights, np.concatenate([parts[i]["X"] for i in others]), np.concatenate([codes[i] for i in others])
    )
    expected = sums.scoring(specs, weights)
    assert expected is not None
    assert run.model.model_.gram is not None
    assert run.model.model_.gram.sha256() == expected.sha256()
    assert spec.hash_dim == 16


def odd(phase: str, place: int, value: int) -> Spoil:
    """A party sends another digit at a place of its vector."""

    def spoil(ask: Ask, cid: str, vector: np.ndarray) -> np.ndarray:
        if (ask.phase.name, cid) == (phase, "1"):
            vector = vector.copy()
            vector[place] = value
        return vector

    return spoil


@pytest.mark.parametrize("how", ["one negative", "too large"])
def test_a_gram_matrix_with_nonsense_in_it_is_refused_whole(how: str) -> None:
    spoil = {"one negative": odd("gram", 1, -BOUND), "too large": odd("gram", -1, 5 * BOUND)}
    run = secretly(options_for(GRID[0], gram=16), shares(), spoil[how])
    reasons = run.state.absent("gram")
    assert len(reasons) == 4
    assert all(reason.startswith("refused: with its whole secure sum: ") for reason in reasons.values())
    assert run.state.results["gram"].scoring is None
    assert run.model.model_.gram is None
    assert run.model.model_.sha256() == in_process(options_for(GRID[0]), shares()).model.model_.sha256()


# ---- the federation that is left


def test_responses_that_so_many_samples_cannot_have_are_refused_whole() -> None:
    run = secretly(options_for(GRID[0], gram=16), shares(), odd("gram", -1, 14))  # the upper digit: 14 times the bound
    (reason,) = set(run.state.absent("gram").values())
    assert "Gram matrix" in reason
    assert run.model.model_.gram is None


@pytest.mark.parametrize("changes", [{}, {"gram": 16}], ids=str)
def test_a_federation_of_several_members_is_kept_and_distributed(changes: dict[str, Any], tmp_path: Path) -> None:
    options, parts = options_for(GRID, **changes), shares()
    made = secretly(options, parts)
    made.federation("1").save(tmp_path / "f.npz")
    before = Federation.load(tmp_path / "f.npz")
    assert (before.run_spec.is_secure, before.phase, len(before.members)) == (True, "", 4)
    assert before.model.model_.sha256() == made.model.model_.sha256()
    later = {"spec": before.run_spec.specs, "federation": before, "purpose": "evaluate"}
    handed = secretly(options_for(**later), parts)
    assert [phase.name for phase in handed.phases] == ["evaluation"]
    in_clear, summed = (run.state.results["evaluation"].figures for run in (handed, made))
    of_parties = {"parties", "worst_party", "best_party", "accuracy_std"}
    assert {name: in_clear[name] for name in in_clear.keys() - of_parties - {"figures"}} == {
        name: summed[name] for name in summed.keys() - of_parties - {"figures"}
    }
    assert not any(summed[name] for name in of_parties)
    assert in_clear["figures"] | {"parties": []} == summed["figures"]
    alone = options_for(**later) | {"secure_bound": BOUND, "min_parties": 1}  # as nobody is counted
    assert RunOptions(**alone).min_parties == 1
    assert message.FlyNNStrategy(**alone, min_available_nodes=1).run.phases == handed.phases
    for purpose in ("join", "withdraw", "resume"):
        with raises(ConfigError, field="purpose"):
            secretly(options_for(**later | {"purpose": purpose}), parts)
