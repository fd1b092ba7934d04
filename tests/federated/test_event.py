"""The event: the class whose figures are shown, by each driver and in each kind of run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.event import event_facts, event_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.metrics import event_figures, scored
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.federated.runs import DRIVERS, GRID, LABELS, NAMES, X, options_for, shares
from tests.raising import raises

ORDERS = (("rare", "usual"), ("usual", "rare"))
SPEC = HashSpec(4, 100, 2, 5, 0, signed=True, center=(5.0, 3.0, 4.0, 1.0))


def halves(n_rare: int, n_tested: int) -> list[dict[str, Any]]:
    """Two parties' samples: so many in all, and so many of the tested ones, are rare."""
    parts = []
    for half in (0, 1):
        y = np.array(["usual"] * 40, object)
        y[: n_rare // 2] = "rare"
        tested = np.array(["usual"] * 40, object)
        tested[: n_tested // 2] = "rare"
        rows = X[half * 40 : half * 40 + 40]
        parts.append({"X": rows, "y": y, "X_test": rows + 0.1, "y_test": tested})
    return parts


def run_of(classes: Any, parts: Any, settings: Any = None, **options: Any) -> Any:
    parties = [
        party_of(**part, name=f"{i}", min_examples=1, **(settings or [{}] * 2)[i % 2])
        for i, part in enumerate(parts)
    ]
    given = {
        "spec": SPEC,
        "classes": classes,
        "min_parties": 2,
        "decay": 0.5,
        "fraction_evaluate": 1,
        **options,
    }
    return federate(RunOptions(**given), parties)


def facts_of(run: Any) -> Any:
    return event_facts(run.state, run.options)


@pytest.mark.parametrize("classes", ORDERS)
@pytest.mark.parametrize(
    ("n_rare", "event"), [(20, "rare"), (60, "usual"), (40, None)], ids=str
)
def test_the_event_of_two_classes_is_the_rarer_of_the_counted(classes, n_rare, event):
    """The tested samples have no part in it; of equals it is the second."""
    run = run_of(classes, halves(n_rare, 80 - n_rare))
    expected = event or classes[1]
    index = classes.index(expected)
    assert event_of(run.state, run.options) == index
    assert facts_of(run) == {"label": expected, "index": index, "why": "rarer"}


@pytest.mark.parametrize("classes", ORDERS)
@pytest.mark.parametrize(("n_rare", "event"), [(20, "rare"), (60, "usual")], ids=str)
def test_where_counts_are_noisy_it_is_the_rarer_as_far_as_they_tell(
    classes, n_rare, event, tmp_path
):
    noise = SimulatedRelease(LaplaceCounts(5.0, hash_nnz=5, n_classes=2), 3)
    settings = [
        {
            "budget": Budget(tmp_path / name, Policy(50.0, mechanisms=("simulated",))),
            "evaluates": True,
        }
        for name in "ab"
    ]
    parts = halves(n_rare, 80 - n_rare)
    run = run_of(classes, parts, settings, mechanism=noise, trees=0)
    assert facts_of(run)["label"] == event


@pytest.mark.parametrize("classes", ORDERS)
@pytest.mark.parametrize("event", [None, "rare", "usual"])
def test_all_binary_figures_are_of_the_event(classes, event):
    """They are those of one against the rest, by parties as well."""
    parts = halves(20, 30)
    run = run_of(classes, parts, event=event)
    index = classes.index(event or "rare")
    evaluation = run.state.results["evaluation"]
    figures = evaluation.figures["figures"]
    by_class = figures["classes"][index]
    assert by_class["label"] == (event or "rare")
    overall_figures = figures["overall"]
    shared = by_class.keys() & overall_figures.keys() - {"examples"}
    assert len(shared) == 5
    assert all(by_class[name] == overall_figures[name] for name in shared)
    for i, part in enumerate(parts):
        p = run.model.predict_proba(part["X_test"])
        true = np.array([classes.index(label) for label in part["y_test"]])
        own = event_figures(*scored(p, true, p.argmax(axis=1)), index)
        (known,) = [site for site in evaluation.sites if site["name"] == f"{i}"]
        assert known["held_out"] == own


@pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)
def test_of_more_classes_figures_are_means_and_the_event_is_as_set(driver):
    runs = [
        driver(options_for(GRID[0], decay=0.5, event=event), shares())
        for event in (None, "virginica")
    ]
    plain, with_event = runs
    figures = [run.state.results["evaluation"].figures for run in runs]
    assert figures[0] == figures[1]
    assert event_of(plain.state, plain.options) is None
    assert facts_of(plain) is None
    expected = {"label": "virginica", "index": 2, "why": "set"}
    assert facts_of(with_event) == expected


@pytest.mark.parametrize("purpose", ["evaluate", "join"])
def test_a_saved_federation_has_the_event_of_the_new_run(purpose, tmp_path):
    run = run_of(ORDERS[0], halves(20, 20), event="usual")
    run.federation("1").save(tmp_path / "federation.npz")
    saved = type(run.federation("1")).load(tmp_path / "federation.npz")
    for event, index in ((None, 0), ("usual", 1)):
        again = run_of(
            ORDERS[0],
            halves(20, 20) * 2,
            purpose=purpose,
            federation=saved,
            event=event,
            min_parties=1,
            decay=0.5,
        )
        assert event_of(again.state, again.options) == index


def test_an_event_is_spelled_as_labels_are():
    given = options_for(GRID[0], event="  Setosa ")
    assert RunOptions(**given).event == "  Setosa "
    numbers = {**options_for(GRID[0]), "classes": [0, 1, 2], "event": "2"}
    state = federate(
        RunOptions(**numbers, decay=0.5),
        [party_of(X, np.arange(150) % 3, min_examples=1)],
    )
    assert event_of(state.state, state.options) == 2


@pytest.mark.parametrize("event", ["rose", "", 3, 1.5, None, ["setosa"]], ids=str)
def test_an_event_that_is_no_class_is_refused_before_anybody_is_asked(event):
    if event is None:
        assert RunOptions(**options_for(GRID[0], event=event)).event is None
        return
    with raises(
        ConfigError, field="event", expected="one of setosa, versicolor, virginica"
    ):
        RunOptions(**options_for(GRID[0], event=event))
    assert {*NAMES} == {*LABELS.tolist()}
    assert replace(RunOptions(**options_for(GRID[0])), event="setosa")
