"""A secure run makes what the same run makes in clear, bit for bit, or says what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.phases.secure import LARGEST_BOUND, Layout, largest_sum, of_vector, room, to_vector
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.model.model import counts_sha256
from tests.federated.runs import GRID, SPLITS, in_process, options_for, shares
from tests.federated.secure_runs import Spoil, secretly
from tests.own_phase_app.own_phase_app.histogram import HISTOGRAM
from tests.raising import raises


def facts(run: Run) -> Any:
    """All that a run makes of the parties' training samples."""
    model = run.model.model_
    selection = run.state.results.get("selection")
    return (
        run.state.run_spec.specs,
        run.totals.sha256,
        counts_sha256(model.members),
        None
        if selection is None
        else (selection.choices, selection.readouts, selection.accuracies, selection.examples),
        [(member.readout, member.weight) for member in model.members],
        model.sha256(),
    )


# ---- vectors


@st.composite
def several(draw: st.DrawFn) -> tuple[list[list[np.ndarray]], Layout, int]:
    """The integers of some parties, and what is known of them."""
    bound = 2 ** draw(st.integers(1, 29))
    n_parties = draw(st.integers(1, min(room(bound), 5)))
    large = st.sampled_from([bound, bound + 1, bound**2, largest_sum(bound), largest_sum(bound) + 1, 2**2000])
    layout = draw(st.lists(st.tuples(st.sampled_from([(2,), (1, 3), (0, 2)]), large), min_size=1, max_size=4))
    parties = []
    for _ in range(n_parties):
        parts = []
        for shape, most in layout:
            n = int(np.prod(shape))
            numbers = draw(st.lists(st.integers(-most, most), min_size=n, max_size=n))
            parts.append(np.array(numbers, object if most >= 2**63 else np.int64).reshape(shape))
        parties.append(parts)
    return parties, layout, bound


@given(several())
def test_the_sum_of_vectors_is_the_vector_of_sums(given: tuple[list[list[np.ndarray]], Layout, int]) -> None:
    parties, layout, bound = given
    vectors = [to_vector(parts, layout, bound) for parts in parties]
    assert all(np.abs(vector).max(initial=0) <= bound for vector in vectors)
    found = of_vector(np.sum(vectors, axis=0), layout, bound, len(parties))
    for i, ((shape, most), part) in enumerate(zip(layout, found, strict=True)):
        exact = sum(parts[i].astype(object) for parts in parties)
        assert part.shape == shape
        assert part.tolist() == exact.tolist()
        assert part.dtype == (np.int64 if most <= largest_sum(bound) else object)


def test_integers_beyond_what_was_agreed_do_not_leave() -> None:
    for layout, number in (([((1,), 8)], 9), ([((1,), 100)], -101)):
        with raises(PayloadError, field="secure sum"):
            to_vector([np.array([number])], layout, 8)
    with raises(PayloadError, field="secure sum"):  # digits of more than three parties can have
        of_vector(np.array([24, 24, 24]), [((1,), 100)], 8, 3)


def test_sums_within_int64_have_room_for_all_parties() -> None:
    for bound in (2, 2048, LARGEST_BOUND):
        assert largest_sum(bound) * room(bound) < 2**62


# ---- runs


@pytest.mark.parametrize("how", SPLITS)
@pytest.mark.parametrize("spec", [GRID, GRID[0]], ids=["two", "one"])
def test_counts_and_selection_are_those_in_clear(how: str, spec: Any) -> None:
    options, parts = options_for(spec), shares(how)
    clear, secret = in_process(options, parts), secretly(options, parts)
    assert [phase.name for phase in secret.phases] == ["counts", "selection", "evaluation"]
    assert [phase.channel for phase in secret.phases] == ["train", "train", "evaluate"]
    assert facts(secret) == facts(clear)
    assert secret.num_rounds == 2
    found = secret.state.results["evaluation"].figures
    assert found["accuracy"] == clear.state.results["evaluation"].figures["accuracy"]


def lost(phase: str, who: str) -> Spoil:
    """A party is lost in a phase."""
    return lambda ask, cid, vector: None if (ask.phase.name, cid) == (phase, who) else vector


def wrong(phase: str) -> Spoil:
    """A party adds one to each entry of its vector in a phase."""
    return lambda ask, cid, vector: vector + 1 if (ask.phase.name, cid) == (phase, "1") else vector


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
    assert (selection.parties, list(selection.missing)) == (4, ["party-2"])
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
    assert (selection.parties, selection.examples, len(selection.missing)) == (0, 0, 4)
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
