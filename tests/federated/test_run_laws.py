"""Laws of every run, over a registry of plans.

A run ends in the pooled model, whoever leaves and whether or not it goes on from a file.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from flwr_flynn.errors import AggregationError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import PartyOptions
from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.model.candidates import HashPlan, placeholder_specs, suggest_decay
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.gram import GramMatrix
from flwr_flynn.model.model import counts_sha256
from flwr_flynn.model.selection import fit_members
from tests.federated.runs import (
    DRIVERS,
    DUE,
    GRID,
    LABELS,
    SPLITS,
    TRAINING,
    Exchange,
    X,
    Y,
    digest,
    exchange,
    in_process,
    options_for,
    saved_of,
    sha256,
    shares,
)
from tests.federated.secure_runs import BOUND, Spoil, lost, odd, secretly
from tests.raising import raises

PLAN = HashPlan(4, 3, 120, "auto", hash_dim=64)
RUNS: dict[str, dict[str, Any]] = {
    "one spec": {"spec": GRID[0]},
    "one spec and scoring": {"spec": GRID[0], "decay": 0.5},
    "two specs": {"spec": GRID},
    "committee": {"spec": PLAN},
    "quick": {"spec": replace(PLAN, effort="quick")},
    "committee of two": {"spec": replace(PLAN, max_members=2), "rule": "novelty"},
    "nobody evaluates the model": {
        "spec": PLAN,
        "fraction_evaluate": 0,
        "distribute": True,
    },
    "equal classes": {"spec": GRID[0], "decay": 0.5, "class_weight": "balanced"},
}
POOLED = FlyNNClassifier(hash_dim=64).fit(X[TRAINING], LABELS[TRAINING])


def options_of(name: str, **changes: Any) -> dict[str, Any]:
    """Options of a run of the registry."""
    return options_for(**{**RUNS[name], **changes})


@cache
def ended(name: str) -> tuple[Run, list[FlyNNClassifier]]:
    """A run of the registry that went well, and the models that its parties got.

    Its tests only read them.
    """
    models: list[FlyNNClassifier] = []
    return in_process(options_of(name), shares(), on_model=models.append), models


def whole_of(name: str) -> Run:
    """A run of the registry that went well."""
    return ended(name)[0]


def lonely() -> list[dict[str, Any]]:
    """All samples, at parties of which one is empty and two have a single sample."""
    first, *others = shares("pathological")
    none = {"X": X[:0], "y": LABELS[:0], "X_test": X[:0], "y_test": LABELS[:0]}
    one = {**none, "X": first["X"][:1], "y": first["y"][:1]}
    two = {**none, "X": first["X"][1:2], "y": first["y"][1:2]}
    rest = {**first, "X": first["X"][2:], "y": first["y"][2:]}
    return [one, none, two, rest, *others]


def shared_out(how: str) -> list[dict[str, Any]]:
    """Samples of the parties by a way of splitting them, or as `lonely` splits them."""
    if how == "lonely":
        return lonely()
    return shares(how)


def made(plan: HashPlan = PLAN, **changes: Any) -> Run:
    """A run by a plan."""
    return in_process(options_for(plan, **changes), shares("dirichlet"))


def pooled(**changes: Any) -> FlyNNClassifier:
    """The classifier of the pooled samples."""
    return FlyNNClassifier(**{"hash_dim": 64, **changes}).fit(
        X[TRAINING], LABELS[TRAINING]
    )


# What a driver adds is the same for both runs, and for any split in which each party has
# samples.
@pytest.mark.parametrize(
    ("driver", "how"),
    [("in process", how) for how in SPLITS]
    + [(driver, "lonely") for driver in DRIVERS],
)
def test_every_driver_ends_in_the_pooled_model(driver, how):
    parts = shared_out(how)
    run = DRIVERS[driver](options_of("committee"), parts)
    names = [phase.name for phase in run.phases]
    assert names == list(run.state.results) == list(run.traffic)
    assert not any(run.state.missing.values())
    for traffic in run.traffic.values():
        assert traffic.asked == len(parts)
        assert traffic.arrivals.parties == len(parts) or traffic.kind != "exact"
        assert min(traffic.per_party.values()) > 0
    assert "exact" in {traffic.kind for traffic in run.traffic.values()}
    model = run.model.model_
    assert model.sha256() == POOLED.model_.sha256()
    assert len(model.members) > 1
    assert {member.spec.hash_dim for member in model.members} == {64}
    assert {member.counts.n_examples for member in model.members} == {120}
    right = POOLED.predict(X[~TRAINING]) == LABELS[~TRAINING]
    assert run.state.results["evaluation"].figures["accuracy"] == np.mean(right)


SETTINGS: dict[str, dict[str, Any]] = {
    "quick": {"effort": "quick", "hash_dim": None},
    "default": {"effort": "default", "hash_dim": None},
    "thorough": {"effort": "thorough", "hash_dim": None},
    "novelty": {"rule": "novelty"},
    "given decay": {"decay": 0.5},
    "one member": {"max_members": 1},
    "two members": {"max_members": 2},
    "seed": {"seed": 5},
}
WIDTHS = {"quick": 2**14, "default": 2**15, "thorough": 2**15}
"""Widths of the hash by the effort."""


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_model_hold_for_the_pool_alike(name):
    changes = SETTINGS[name]
    of_plan = {key: value for key, value in changes.items() if hasattr(PLAN, key)}
    of_run = {key: value for key, value in changes.items() if key not in of_plan}
    model = made(replace(PLAN, **of_plan), **of_run).model.model_
    assert model.sha256() == pooled(**changes).model_.sha256()
    assert len(model.members) <= changes.get("max_members", PLAN.max_members)
    assert model.members[0].spec.hash_dim == WIDTHS.get(name, 64)


def test_a_plan_without_the_number_of_samples_has_it_from_the_columns(
    monkeypatch,
):
    monkeypatch.setattr("flwr_flynn.model.candidates._MANY", 100)
    run = made(HashPlan(4, 3, None, "auto"))
    assert digest(run) == pooled(hash_dim=None).model_.sha256()
    assert run.model.model_.members[0].spec.hash_dim == 2**16


SELECTING = [
    f"flwr_flynn.{part}"
    for part in (
        "model.selection",
        "model.classifier",
        "federated.phases.selection",
        "federated.phases.calibration",
    )
]


def no_row(X: Any, y: Any, n_per_class: Any) -> Any:
    """A subsample of nothing."""
    return np.zeros(len(y), bool)


@pytest.mark.parametrize("rule", ["balanced", "novelty"])
@pytest.mark.parametrize("has_none", [False, True])
def test_of_many_samples_some_are_left_out_or_none(has_none, rule, monkeypatch):
    """Equal samples stay or go together: a subsample may have none of them."""
    monkeypatch.setattr("flwr_flynn.model.subsample.N_LEFT_OUT", 60)
    if has_none:
        for module in SELECTING:
            monkeypatch.setattr(f"{module}.subsample_mask", no_row)
    run = made(rule=rule)
    calibrated = run.state.results["calibration"]
    assert calibrated.n_examples == run.state.results["selection"].examples
    assert (calibrated.calibration is None) == has_none
    n_left_out = run.state.results["selection"].examples
    assert 0 <= n_left_out < 120
    assert (n_left_out == 0) == has_none
    members = run.model.model_.members
    assert ([member.temperature for member in members] == [0.2]) == has_none
    assert digest(run) == pooled(rule=rule).model_.sha256()


@pytest.mark.parametrize("distribute", [False, True])
def test_where_nobody_tries_the_model_it_is_the_first_candidate(
    distribute,
):
    run = made(fraction_evaluate=0, distribute=distribute)
    phases = ["columns", "counts"]
    if distribute:
        phases.append("evaluation")
    assert list(run.state.results) == phases
    # Nobody counts what nobody compares.
    assert len(run.totals.parts) == 1
    member = run.model.model_.member
    assert member.spec == PLAN.specs(run.state.results["columns"].histograms)[0]
    counts = ClassCounts.from_data(member.hash, X[TRAINING], Y[TRAINING], 3)
    assert member.counts == counts
    assert member.scoring.decay == suggest_decay(counts)
    assert member.weight == 1.0


@pytest.mark.parametrize("effort", ["default", "thorough"])
@pytest.mark.parametrize("n_classes", [10, 64, 1000, 2**15])
def test_a_party_has_the_memory_for_all_candidates(effort, n_classes):
    specs = placeholder_specs(HashPlan(128, n_classes, 10**6, "auto", effort=effort))
    assert len(specs) == 5
    needed = sum(memory_needed(spec, n_classes) for spec in specs)
    assert needed < PartyOptions().memory_limit
    assert all(spec.hash_nnz <= spec.hash_dim // 16 for spec in specs)


def with_few_of_the_last_class(share: dict[str, Any]) -> dict[str, Any]:
    """The samples of a party but for four fifths of those of the last class."""
    is_last = share["y"] == LABELS[-1]
    chosen = ~is_last | (np.arange(len(is_last)) % 5 == 4)
    return {**share, "X": share["X"][chosen], "y": share["y"][chosen]}


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("how", SPLITS)
def test_the_prior_and_the_temperatures_for_it_are_those_of_the_pool(how, class_weight):
    parts = [with_few_of_the_last_class(share) for share in shares(how)]
    points = np.concatenate([part["X"] for part in parts])
    labels = np.concatenate([part["y"] for part in parts])
    pooled = FlyNNClassifier(hash_dim=64, class_weight=class_weight).fit(points, labels)
    options = options_of(
        "committee",
        spec=replace(PLAN, n_examples=len(labels)),
        class_weight=class_weight,
    )
    models: list[FlyNNClassifier] = []
    run = in_process(options, parts, on_model=models.append)
    assert digest(run) == digest(secretly(options, parts)) == pooled.model_.sha256()
    frequencies = np.unique(labels, return_counts=True)[1] / len(labels)
    assert frequencies.max() > 2 * frequencies.min()
    prior = run.model.model_.prior
    if class_weight is None:
        np.testing.assert_allclose(np.exp(prior), frequencies)
    else:
        assert prior is None
    assert {model.with_prior().model_.sha256() for model in models} == {digest(run)}
    assert {model.class_weight for model in models} == {class_weight}


@pytest.mark.parametrize("name", RUNS)
def test_the_parties_get_the_very_model_that_the_server_has(name):
    handed: list[FlyNNClassifier] = []
    in_process(options_of(name, distribute=True), shares(), on_model=handed.append)
    run, models = ended(name)
    digests = [model.with_prior().model_.sha256() for model in (*models, *handed)]
    assert digests == [digest(run)] * 8
    probabilities = models[0].with_prior().predict_proba(X)
    np.testing.assert_array_equal(probabilities, run.model.predict_proba(X))


def facts(run: Run) -> Any:
    """All that a run makes of the parties' training samples."""
    model = run.model.model_
    selection = run.state.results.get("selection")
    selected = None
    if selection is not None:
        selected = (
            selection.choices,
            selection.scorings,
            selection.accuracies,
            selection.examples,
        )
    members = [(member.scoring, member.weight) for member in model.members]
    sums = run.totals.sha256, counts_sha256(model.members)
    return run.state.run_spec.specs, sums, selected, members, model.sha256()


@pytest.mark.parametrize(
    ("name", "how"),
    [("committee", how) for how in SPLITS if how != "pathological"]
    + [(name, "pathological") for name in RUNS if "distribute" not in RUNS[name]],
)
def test_a_secure_run_of_any_split_ends_in_the_model_of_the_run_in_clear(name, how):
    secret = secretly(options_of(name), shares(how))
    clear = whole_of(name)
    n_trained = len(secret.phases) - 1
    channels = [phase.channel for phase in secret.phases]
    assert channels == [TRAIN] * n_trained + [EVALUATE]
    assert secret.num_rounds == n_trained
    assert facts(secret) == facts(clear)
    in_clear = clear.state.results["evaluation"].figures["accuracy"]
    assert secret.state.results["evaluation"].figures["accuracy"] == in_clear


# ---- parties that are lost

REASONS = {
    "failed": "failed: no",
    "gone": "not there to be asked",
    "silent": "no reply",
}


def lost_in(
    phase: str, how: str = "failed", who: str = "3", **changes: Any
) -> Exchange:
    """A run with all kinds of phases, some of whose parties are lost in one of them."""
    steps = exchange(**{"spec": GRID, **changes}).until(phase)
    there = set("0123")
    failures = None
    if how == "silent":
        steps.lost = set(who)
    elif how == "gone":
        there -= set(who)
    else:
        failures = dict.fromkeys(who, "failed: no")
    steps.step(DUE, sorted(there), failures)
    steps.lost = set()
    return steps


PHASES = ("columns", "counts", "selection", "calibration", "evaluation")
LOST = [
    *product(PHASES, ("failed", "silent")),
    ("selection", "gone"),
    ("calibration", "gone"),
]
MISSED = {phase: (phase,) for phase in PHASES}
MISSED["counts"] = ("counts", "selection", "calibration")
"""Phases that have no samples of a party that is lost in one."""


@pytest.mark.parametrize(("phase", "how"), LOST)
def test_a_party_lost_in_a_phase_is_missing_from_that_alone(phase, how):
    run = lost_in(phase, how, spec=PLAN).rounds()
    results = run.state.results
    party = "party-3"
    if phase == "columns":
        party = "node 3"
    lost = {name: reasons for name, reasons in run.state.missing.items() if reasons}
    assert lost == {phase: {party: REASONS[how]}}
    examples = {
        "columns": results["columns"].histograms.n_examples,
        "counts": run.counts.n_examples,
        "selection": results["selection"].examples,
        "calibration": results["calibration"].n_examples,
        "evaluation": results["evaluation"].figures["examples"],
    }
    share = shares()[3]
    theirs = dict.fromkeys(PHASES, len(share["y"]))
    theirs["evaluation"] = len(share["y_test"])
    expected = dict.fromkeys(PHASES, 120) | {"evaluation": 30}
    for name in MISSED[phase]:
        expected[name] -= theirs[name]
    assert examples == expected


def test_a_party_lost_in_the_counts_was_never_there():
    never = in_process(options_for(GRID), shares()[:3])
    assert facts(lost_in("counts").rounds()) == facts(never)


def test_where_nobody_answers_the_selection_it_is_the_first_spec():
    run = lost_in("selection", who="0123").run
    selection = run.state.results["selection"]
    assert selection.specs == (0,)
    assert selection.parties == 0
    assert selection.accuracies == ()
    assert selection.accuracy is None
    # The decay is the suggested one.
    suggested = suggest_decay(run.counts)
    assert selection.scorings[0].decay == suggested
    assert run.model.model_.member.scoring.decay == suggested


@pytest.mark.parametrize("phase", ["counts", "selection", "calibration"])
def test_a_secure_run_that_loses_a_party_ends_as_the_run_in_clear_does(
    phase,
):
    secret = secretly(options_for(GRID), shares(), lost(phase))
    clear = lost_in(phase).rounds()
    assert facts(secret) == facts(clear)
    party = "party-3"
    if phase == "counts":
        party = "node 3"
    assert set().union(*map(secret.state.missing.get, PHASES[1:4])) == {party}


NONSENSE: dict[str, tuple[str, Spoil]] = {
    "selection": ("selection", odd("selection", slice(None), -BOUND)),
    "a negative level": ("calibration", odd("calibration", -1, -BOUND)),
    "a digit too large": ("calibration", odd("calibration", -1, 5 * BOUND)),
}
"""Phases and the nonsense in them."""


@pytest.mark.parametrize("name", NONSENSE)
def test_a_secure_sum_with_nonsense_in_it_is_as_if_nobody_had_answered(
    name,
):
    phase, spoil = NONSENSE[name]
    secret = secretly(options_for(GRID), shares(), spoil)
    reasons = secret.state.missing[phase]
    assert len(reasons) == 4
    for reason in reasons.values():
        assert reason.startswith("refused: with its whole secure sum: ")
    assert facts(secret) == facts(lost_in(phase, who="0123").rounds())


# ---- saved and resumed


def test_a_run_that_stopped_in_its_counting_goes_on(tmp_path):
    steps = exchange(PLAN, min_parties=4)
    steps.step(TRAIN)
    for present, n_members in (("01", 2), ("2", 3)):
        steps.step(TRAIN, present)
        saved = saved_of(steps.run, tmp_path / "f.npz")
        assert saved.phase == "counts"
        assert len(saved.members) == n_members
        assert not saved.is_selected
        assert saved.max_members == PLAN.max_members
        resumed = options_for(
            saved.run_spec.specs, federation=saved, purpose="resume", min_parties=4
        )
        steps.run = Run(RunOptions(**resumed))
        assert steps.run.needed == 4 - n_members
    assert digest(steps.rounds()) == pooled().model_.sha256()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_may_stop_after_every_phase(name, tmp_path):
    whole = whole_of(name)
    stopped = exchange(**RUNS[name])
    names = [phase.name for phase in whole.phases]
    for stop, phase in enumerate(whole.phases, 1):
        stopped.step(phase.channel)
        left = whole.phases[stop:]
        steps = replace(stopped)
        if "columns" in [phase.name for phase in left]:
            # The candidates are not known yet.
            with raises(AggregationError, counted=0):
                steps.run.federation("1")
            continue
        saved = saved_of(steps.run, tmp_path / "f.npz")
        expected = ""
        if left:
            expected = left[0].resumed_at(names)
        assert saved.phase == expected
        resumed = options_of(
            name, spec=saved.run_spec.specs, federation=saved, purpose="resume"
        )
        steps.run = Run(RunOptions(**resumed))
        steps.asked.clear()
        steps.rounds(len(names))
        planned = [phase.name for phase in steps.run.phases]
        assert [asked for asked, _ in steps.asked] == planned
        assert sha256(steps.run.model) == sha256(whole.model)
        if left and "evaluation" in names:
            evaluation = steps.run.state.results["evaluation"]
            assert evaluation == whole.state.results["evaluation"]
        after = saved_of(steps.run, tmp_path / "after.npz", "2")
        assert after.phase == ""
        assert after.model.model_.sha256() == digest(whole)


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_model_is_distributed_as_it_is(name, tmp_path):
    whole = whole_of(name)
    saved = saved_of(whole, tmp_path / "f.npz")
    assert FlyNNClassifier.load(tmp_path / "f.npz").model_.sha256() == digest(whole)
    options = options_of(
        name, spec=saved.run_spec.specs, federation=saved, purpose="evaluate"
    )
    models: list[FlyNNClassifier] = []
    run = in_process(options, shares(), on_model=models.append)
    assert [phase.name for phase in run.phases] == ["evaluation"]
    digests = [model.with_prior().model_.sha256() for model in models]
    assert digests == [digest(whole)] * 4
    assert digest(run) == digest(whole)
    assert run.federation("2") is saved


# ---- members that join and leave


def go(
    name: str,
    before: Federation,
    purpose: str,
    who: str,
    leaver: str = "",
    **changes: Any,
) -> Run:
    """A run that starts from a file, with some of the parties."""
    parts = shares()
    parties = {}
    for cid in who:
        parties[f"{purpose}{cid}"] = party_of(
            **parts[int(cid)],
            name=f"party-{cid}",
            member=f"secret of {cid}",
            leaves=cid == leaver,
            min_examples=1,
            products=True,
        )
    given = {
        "spec": before.run_spec.specs,
        "federation": before,
        "purpose": purpose,
        **changes,
    }
    return Exchange(Run(RunOptions(**options_of(name, **given))), parties).rounds()


def nobody(federation: Federation) -> Federation:
    """A federation of the same members of the model, before anybody was counted."""
    run = federation.run_spec
    empty = Run(RunOptions(run.specs, run.classes, min_parties=1)).totals
    pairs = zip(federation.shared.members, empty.parts, strict=True)
    members = tuple(replace(member, counts=counts) for member, counts in pairs)
    parts = {"linear": None, "calibration": None, "forest": None}
    linear = None
    if federation.basis is not None:
        linear = GramMatrix.zeros(federation.basis, run.n_classes)
    return replace(
        federation,
        shared=replace(federation.shared, members=members, **parts),
        members=(),
        linear=linear,
    )


@pytest.mark.parametrize("name", RUNS)
def test_a_party_that_leaves_was_never_there(name, tmp_path):
    whole = saved_of(whole_of(name), tmp_path / "f.npz")
    left = go(name, whole, "withdraw", "0123", leaver="3")
    never = go(name, nobody(whole), "join", "012")
    assert len(left.counted.members) == 3
    assert sha256(left.model) == sha256(never.model)
    after = left.federation("2")
    again = go(name, after, "join", "0123")
    assert digest(again) == digest(go(name, nobody(after), "join", "0123"))
    n_left = len(shares()[3]["y"])
    assert {member.counts.n_examples for member in left.model.model_.members} == {
        120 - n_left
    }
    assert {member.counts.n_examples for member in again.model.model_.members} == {120}


def test_a_party_that_joins_a_committee_makes_the_model_of_all_at_fixed_members():
    before = in_process(options_of("committee"), shares()[:3]).federation("1")
    specs = before.run_spec.specs
    joined = go("committee", before, "join", "0123")
    assert len(joined.counted.members) == 4
    assert joined.model.model_.members == fit_members(
        specs, X[TRAINING], Y[TRAINING], 3, max_members=len(specs)
    )
    assert joined.state.results["selection"].examples == 120
