"""Action update: samples go, are corrected and come.

The sum is that of parties that never had others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, Samples
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.model.counts import ClassCounts
from tests.federated.runs import GRID, LABELS, Exchange, X, Y, options_for

Rows = dict[str, np.ndarray]
"""Places of the samples of each party, by its name."""


def party(name: str, rows: Any, before: Any = None, **more: Any) -> Party:
    previous = None
    if before is not None:
        previous = Samples(X[before], LABELS[before])
    options = {"min_examples": 1, "previous": previous, **more}
    return party_of(
        X[rows], LABELS[rows], X[rows[::4]], LABELS[rows[::4]], name=name, **options
    )


def go(
    purpose: str,
    parties: list[Party],
    saved: Federation | None = None,
    stops: bool = False,
    **more: Any,
) -> Run:
    """A run with these parties, which may stop after the counting.

    The node ids of the parties are their names.
    """
    if saved is None:
        given: dict[str, Any] = {"spec": GRID}
    else:
        given = {"spec": saved.run_spec.specs, "federation": saved}
    options = options_for(purpose=purpose, min_parties=1, **given, **more)
    nodes = {str(party.options.name): party for party in parties}
    steps = Exchange(Run(RunOptions(**options)), nodes)
    steps.step(TRAIN)
    if stops:
        return steps.run
    return steps.rounds()


def is_pooled(saved: Federation, rows: Rows) -> bool:
    places = np.concatenate(list(rows.values()))
    counts = [
        ClassCounts.from_data(hasher, X[places], Y[places], 3)
        for hasher in saved.run_spec.hashers
    ]
    return list(saved.totals.parts) == counts


ROWS: Rows = {f"party-{i}": np.arange(i, 150, 3) for i in range(3)}


@pytest.fixture(scope="module")
def saved() -> Federation:
    return go("train", [party(name, rows) for name, rows in ROWS.items()]).federation(
        "1"
    )


def test_changed_samples_take_the_place_of_those_before(saved):
    # Some are gone, some are new.
    new = np.r_[ROWS["party-1"][5:], 0, 3, 3]
    parties = [
        party("party-0", ROWS["party-0"]),
        party("party-1", new, ROWS["party-1"]),
    ]
    run = go("update", parties, saved)
    after = run.federation("2")
    assert is_pooled(after, {**ROWS, "party-1": new})
    assert [member.run for member in after.members] == ["1", "2", "1"]
    # The samples of this party have not changed.
    assert list(run.counted.missing) == ["party-0"]
    (change,) = [member.change for member in run.counted.counted]
    for name, member in (("before", saved.members[1]), ("now", after.members[1])):
        assert change[name] == {
            "examples": member.examples,
            "sha256": list(member.sha256),
        }
    # The former counts of the party are not in the sum any more.
    again = go("update", parties, after)
    assert again.federation("3").totals == after.totals
    assert "another SHA-256" in again.counted.missing["party-1"]


OTHERS = [
    pytest.param("party-1", ROWS["party-1"][1:], id="not all samples"),
    pytest.param("party-1", ROWS["party-0"], id="samples of another party"),
    pytest.param("party-7", ROWS["party-1"], id="a party that was never there"),
]


@pytest.mark.parametrize(("name", "before"), OTHERS)
def test_who_was_counted_otherwise_changes_nothing(saved, name, before):
    run = go("update", [party(name, ROWS["party-2"], before)], saved)
    assert list(run.counted.missing) == [name]
    assert not run.counted.counted
    assert run.state.results.get("counts", saved.totals) == saved.totals
    after = run.federation("2")
    assert after.totals == saved.totals
    assert after.members == saved.members


SOME = ROWS["party-1"][4:]


@pytest.mark.parametrize(
    ("new", "covered"),
    [
        pytest.param(SOME, 4, id="4 go"),
        pytest.param(np.r_[ROWS["party-1"], 0, 3], 2, id="2 come"),
        pytest.param(np.r_[SOME, 147], 1, id="1 in the place of another"),
    ],
)
def test_few_changes_warn(saved, new, covered, caplog):
    run = go("update", [party("party-1", new, ROWS["party-1"], min_examples=3)], saved)
    assert len(run.counted.counted) == 1
    assert ("shows them to the server" in caplog.text) == (covered < 3)


def test_a_party_may_lose_all_its_samples_and_get_some_again(saved):
    rows = ROWS["party-1"]
    empty = np.zeros(0, np.int64)
    gone = go("update", [party("party-1", empty, rows)], saved).federation("2")
    assert is_pooled(gone, {**ROWS, "party-1": empty})
    back = go("update", [party("party-1", rows, empty)], gone).federation("3")
    assert back.totals == saved.totals


def purposes_with(n_parties: int) -> list[str]:
    """Purposes that leave from one to six parties."""
    if n_parties == 1:
        return ["join", "update"]
    if n_parties == 6:
        return ["update"]
    return ["join", "update", "withdraw"]


LONG = pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("n_steps", [12, LONG])
def test_any_sequence_of_purposes_has_the_pooled_counts(n_steps, tmp_path):
    rng = np.random.default_rng(n_steps)
    rows: Rows = {"party-0": np.arange(20)}
    saved = go("train", [party("party-0", rows["party-0"])]).federation("0")
    for step in range(1, n_steps + 1):
        places = rng.choice(150, rng.integers(1, 30))
        name = str(rng.choice(list(rows)))
        purpose = str(rng.choice(purposes_with(len(rows))))
        if purpose == "join":
            name = f"party-{step}"
            who = party(name, places)
        elif purpose == "update":
            stay = rng.choice(rows[name], len(rows[name]) // 2, replace=False)
            places = rng.permutation(np.r_[stay, places])
            who = party(name, places, rows[name])
        else:
            who = party(name, rows[name], leaves=True)
        rows = {other: rows[other] for other in rows if other != name}
        if purpose != "withdraw":
            rows[name] = places
        stops = bool(rng.random() < 0.3)
        run = go(purpose, [who], saved, stops, fraction_evaluate=float(stops))
        run.federation(str(step)).save(tmp_path / "federation.npz")
        saved = Federation.load(tmp_path / "federation.npz")
        assert bool(saved.phase) == stops
        if stops:
            # Others are there when it goes on.
            there = [party(k, v) for k, v in rows.items() if rng.random() < 0.5]
            saved = go("resume", there, saved).federation(str(step))
        assert is_pooled(saved, rows), (step, purpose)
        assert {member.name: member.sizes for member in saved.members} == {
            k: tuple(np.bincount(Y[v], minlength=3).tolist()) for k, v in rows.items()
        }
