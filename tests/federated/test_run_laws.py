"""Laws of every run, over a registry of plans: the pooled model, whoever leaves or goes on from a file."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn.errors import AggregationError, ModelFileError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.model import counts_sha256
from tests.federated.runs import (
    DRIVERS,
    GRID,
    LABELS,
    SPLITS,
    TRAINING,
    Exchange,
    X,
    exchange,
    in_process,
    options_for,
    sha256,
    shares,
)
from tests.federated.secure_runs import secretly
from tests.raising import raises

PLAN = HashPlan(4, 3, 120, "auto", hash_dim=64)
RUNS: dict[str, dict[str, Any]] = {
    "one spec": {"spec": GRID[0]},
    "one spec and scoring": {"spec": GRID[0], "decay": 0.5},
    "two specs": {"spec": GRID},
    "committee": {"spec": PLAN},
    "committee of two": {"spec": replace(PLAN, max_members=2), "rule": "novelty"},
    "nobody evaluates the model": {"spec": PLAN, "fraction_evaluate": 0, "distribute": True},
    "gram": {"spec": PLAN, "gram": 32},
    "pairs of a spec and scoring": {"spec": GRID[0], "gram": 16, "decay": 0.5},
    "equal classes": {"spec": GRID[0], "decay": 0.5, "class_weight": "balanced"},
}
POOLED = {
    name: FlyNNClassifier(hash_dim=64, gram=RUNS[name].get("gram", 0)).fit(X[TRAINING], LABELS[TRAINING])
    for name in ("committee", "gram")
}


def options_of(name: str, **changes: Any) -> dict[str, Any]:
    """Options of a run of the registry."""
    return options_for(**{**RUNS[name], **changes})


def steps_of(name: str) -> Exchange:
    """A run of the registry that has not begun."""
    return exchange(**RUNS[name])


@cache
def ended(name: str) -> tuple[Run, list[FlyNNClassifier]]:
    """A run of the registry that went well, and the models that its parties got; its tests only read them."""
    kept: list[FlyNNClassifier] = []
    return in_process(options_of(name), shares(), on_model=kept.append), kept


def whole_of(name: str) -> Run:
    """A run of the registry that went well."""
    return ended(name)[0]


def digest(run: Run) -> str:
    """SHA-256 of the model."""
    return run.model.model_.sha256()


def saved_of(run: Run, path: Path, name: str = "1") -> Federation:
    """The run's file, written and read."""
    run.federation(name).save(path)
    return Federation.load(path)


def lonely() -> list[dict[str, Any]]:
    """All samples, at parties of which one is empty and two have a single sample."""
    first, *others = shares("pathological")
    none = {"X": X[:0], "y": LABELS[:0], "X_test": X[:0], "y_test": LABELS[:0]}
    one, two = ({**none, "X": first["X"][[i]], "y": first["y"][[i]]} for i in (0, 1))
    rest = {**first, "X": first["X"][2:], "y": first["y"][2:]}
    return [one, none, two, rest, *others]


# What a driver adds is the same for both, and for any split but the one with parties of nothing.
@pytest.mark.parametrize(
    ("name", "driver", "how"),
    [("gram", "in process", how) for how in SPLITS]
    + [(name, driver, "lonely") for name in POOLED for driver in DRIVERS],
)
def test_every_driver_ends_in_the_pooled_model(name: str, driver: str, how: str) -> None:
    run = DRIVERS[driver](options_of(name), lonely() if how == "lonely" else shares(how))
    names = [phase.name for phase in run.phases]
    assert names == list(run.state.results) == list(run.traffic)
    assert not any(getattr(result, "missing", {}) for result in run.state.results.values())
    assert run.counted.missing == {}
    model, pooled = run.model.model_, POOLED[name]
    assert model.sha256() == pooled.model_.sha256()
    assert len(model.members) > 1
    assert (model.gram is not None) == (name == "gram")
    assert {(member.spec.hash_dim, member.counts.n_examples) for member in model.members} == {(64, 120)}
    right = pooled.predict(X[~TRAINING]) == LABELS[~TRAINING]
    assert run.state.results["evaluation"].figures["accuracy"] == np.mean(right)
    if model.gram is not None:
        assert pooled.model_.gram is not None
        assert model.gram.sha256() == pooled.model_.gram.sha256()


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("how", SPLITS)
def test_the_prior_and_the_temperatures_for_it_are_those_of_the_pool(how: str, class_weight: str | None) -> None:
    rows = [np.arange(len(share["y"])) % 5 > 4 * (share["y"] == LABELS[-1]) - 1 for share in shares(how)]
    parts = [{**s, "X": s["X"][some], "y": s["y"][some]} for s, some in zip(shares(how), rows, strict=True)]
    points, labels = (np.concatenate([share[name] for share in parts]) for name in "Xy")
    pooled = FlyNNClassifier(hash_dim=64, class_weight=class_weight).fit(points, labels)
    options = options_of("committee", spec=replace(PLAN, n_examples=len(labels)), class_weight=class_weight)
    kept: list[FlyNNClassifier] = []
    run = in_process(options, parts, on_model=kept.append)
    assert digest(run) == digest(secretly(options, parts)) == pooled.model_.sha256()
    frequencies = np.unique(labels, return_counts=True)[1] / len(labels)
    assert frequencies.max() > 2 * frequencies.min()
    prior = run.model.model_.prior
    if class_weight is None:
        np.testing.assert_allclose(np.exp(prior), frequencies)
    assert (prior is None) == (class_weight is not None)
    assert {each.with_prior().model_.sha256() for each in kept} == {digest(run)}
    assert {each.class_weight for each in kept} == {class_weight}


@pytest.mark.parametrize("name", RUNS)
def test_the_parties_get_the_very_model_that_the_server_has(name: str) -> None:
    handed: list[FlyNNClassifier] = []
    in_process(options_of(name, distribute=True), shares(), on_model=handed.append)
    run, kept = ended(name)
    assert [model.with_prior().model_.sha256() for model in (*kept, *handed)] == [digest(run)] * 8
    np.testing.assert_array_equal(kept[0].with_prior().predict_proba(X), run.model.predict_proba(X))


@pytest.mark.parametrize("name", ["one spec", "nobody evaluates the model", "gram"])
def test_a_plan_given_by_hand_makes_the_same_model(name: str) -> None:
    own = phases_of(RunOptions(**options_of(name)))
    given = in_process(options_of(name, phases=own), shares())
    assert digest(given) == digest(whole_of(name))


def facts(run: Run) -> Any:
    """All that a run makes of the parties' training samples."""
    model, selection = run.model.model_, run.state.results.get("selection")
    selected = selection and (selection.choices, selection.scorings, selection.accuracies, selection.examples)
    members = [(member.scoring, member.weight) for member in model.members]
    sums = run.totals.sha256, counts_sha256(model.members)
    return run.state.run_spec.specs, sums, selected, members, model.sha256()


@pytest.mark.parametrize(
    ("name", "how"),
    [("gram", how) for how in SPLITS if how != "pathological"]
    + [(name, "pathological") for name in RUNS if "distribute" not in RUNS[name]],
)
def test_a_secure_run_of_any_split_ends_in_the_model_of_the_run_in_clear(name: str, how: str) -> None:
    secret, clear = secretly(options_of(name), shares(how)), whole_of(name)
    assert [phase.channel for phase in secret.phases] == [TRAIN] * (len(secret.phases) - 1) + [EVALUATE]
    assert facts(secret) == facts(clear)
    assert secret.num_rounds == len(secret.phases) - 1
    figures = [run.state.results["evaluation"].figures["accuracy"] for run in (clear, secret)]
    assert figures[0] == figures[1]


# ---- saved and resumed


@pytest.mark.parametrize("name", RUNS)
def test_a_run_may_stop_after_every_phase(name: str, tmp_path: Path) -> None:
    whole, stopped = whole_of(name), steps_of(name)
    names = [phase.name for phase in whole.phases]
    for stop, phase in enumerate(whole.phases, 1):
        stopped.step(phase.channel)
        left, steps = whole.phases[stop:], replace(stopped)
        if any(phase.derives_specs for phase in left):  # the candidates are not known yet
            with raises(AggregationError, counted=0):
                steps.run.federation("1")
            continue
        saved = saved_of(steps.run, tmp_path / "f.npz")
        assert saved.phase == (left[0].resumed_at(names) if left else "")
        is_without = whole.model.model_.gram is None or saved.phase not in ("evaluation", "")
        assert (saved.shared.gram is None) == is_without
        resumed = options_of(name, spec=saved.run_spec.specs, federation=saved, purpose="resume")
        steps.run = Run(RunOptions(**resumed))
        steps.asked.clear()
        steps.rounds(len(names))
        assert [asked for asked, _ in steps.asked] == [phase.name for phase in steps.run.phases]
        assert sha256(steps.run.model) == sha256(whole.model)
        if left and "evaluation" in names:
            assert steps.run.state.results["evaluation"] == whole.state.results["evaluation"]
        after = saved_of(steps.run, tmp_path / "after.npz", "2")
        assert (after.phase, after.model.model_.sha256()) == ("", digest(whole))


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_model_is_distributed_as_it_is(name: str, tmp_path: Path) -> None:
    whole = whole_of(name)
    saved, kept = saved_of(whole, tmp_path / "f.npz"), []
    assert FlyNNClassifier.load(tmp_path / "f.npz").model_.sha256() == digest(whole)
    changes = {"federation": saved, "purpose": "evaluate", "gram": 0}
    run = in_process(options_of(name, spec=saved.run_spec.specs, **changes), shares(), on_model=kept.append)
    assert [phase.name for phase in run.phases] == ["evaluation"]
    assert [model.with_prior().model_.sha256() for model in kept] == [digest(whole)] * 4
    assert digest(run) == digest(whole)
    assert run.federation("2") is saved
    if saved.shared.gram is not None:
        for phase in ("selection", "gram"):
            with raises(ModelFileError, field="phase"):
                replace(saved, phase=phase)


# ---- members that join and leave


def go(name: str, before: Federation, purpose: str, who: str, leaver: str = "", **changes: Any) -> Run:
    """A run that starts from a file, with some of the parties."""
    parts = dict(zip("0123", shares(), strict=True))
    changes = {"spec": before.run_spec.specs, "federation": before, "purpose": purpose, **changes}
    parties = {
        f"{purpose}{cid}": party_of(
            **parts[cid],
            name=f"party-{cid}",
            member=f"secret of {cid}",
            min_examples=1,
            gram=True,
            leaves=cid == leaver,
        )
        for cid in who
    }
    return Exchange(Run(RunOptions(**options_of(name, **changes))), parties).rounds()


def nobody(federation: Federation) -> Federation:
    """A federation of the same members of the model, before anybody was counted."""
    empty = Run(RunOptions(**options_for(federation.run_spec.specs))).totals
    pairs = zip(federation.shared.members, empty.parts, strict=True)
    members = tuple(replace(member, counts=counts) for member, counts in pairs)
    return replace(federation, shared=replace(federation.shared, members=members, gram=None), members=())


@pytest.mark.parametrize("name", RUNS)
def test_a_party_that_leaves_was_never_there(name: str, tmp_path: Path) -> None:
    whole = saved_of(whole_of(name), tmp_path / "f.npz")
    left = go(name, whole, "withdraw", "0123", leaver="3")
    never = go(name, nobody(whole), "join", "012")
    assert len(left.counted.members) == 3
    assert sha256(left.model) == sha256(never.model)
    again = go(name, left.federation("2"), "join", "0123")
    assert digest(again) == digest(go(name, nobody(left.federation("2")), "join", "0123"))
    n_left = len(shares()[3]["y"])
    assert {member.counts.n_examples for member in left.model.model_.members} == {120 - n_left}
    assert {member.counts.n_examples for member in again.model.model_.members} == {120}


def test_whoever_joins_ends_what_is_not_done_anew() -> None:
    three = in_process(options_of("gram"), shares()[:3]).federation("1")
    assert go("gram", three, "join", "0123", gram=0).model.model_.gram is None
