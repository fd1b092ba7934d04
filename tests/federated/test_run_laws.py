"""Laws of every run, over a registry of plans: the pooled model, whoever leaves or goes
on from a file.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
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
    "committee of two": {"spec": replace(PLAN, max_members=2), "rule": "novelty"},
    "nobody evaluates the model": {
        "spec": PLAN,
        "fraction_evaluate": 0,
        "distribute": True,
    },
    "gram": {"spec": PLAN, "gram": 32},
    "pairs of a spec and scoring": {"spec": GRID[0], "gram": 16, "decay": 0.5},
    "equal classes": {"spec": GRID[0], "decay": 0.5, "class_weight": "balanced"},
}
POOLED = {
    name: FlyNNClassifier(hash_dim=64, gram=RUNS[name].get("gram", 0)).fit(
        X[TRAINING], LABELS[TRAINING]
    )
    for name in ("committee", "gram")
}


def options_of(name: str, **changes: Any) -> dict[str, Any]:
    """Options of a run of the registry."""
    return options_for(**{**RUNS[name], **changes})


@cache
def ended(name: str) -> tuple[Run, list[FlyNNClassifier]]:
    """A run of the registry that went well, and the models that its parties got; its
    tests only read them.
    """
    kept: list[FlyNNClassifier] = []
    return in_process(options_of(name), shares(), on_model=kept.append), kept


def whole_of(name: str) -> Run:
    """A run of the registry that went well."""
    return ended(name)[0]


def lonely() -> list[dict[str, Any]]:
    """All samples, at parties of which one is empty and two have a single sample."""
    first, *others = shares("pathological")
    none = {"X": X[:0], "y": LABELS[:0], "X_test": X[:0], "y_test": LABELS[:0]}
    one, two = ({**none, "X": first["X"][[i]], "y": first["y"][[i]]} for i in (0, 1))
    rest = {**first, "X": first["X"][2:], "y": first["y"][2:]}
    return [one, none, two, rest, *others]


def made(plan: HashPlan = PLAN, **changes: Any) -> Run:
    """A run by a plan."""
    return in_process(options_for(plan, **changes), shares("dirichlet"))


def pooled(**changes: Any) -> FlyNNClassifier:
    """The classifier of the pooled samples."""
    return FlyNNClassifier(**{"hash_dim": 64, **changes}).fit(
        X[TRAINING], LABELS[TRAINING]
    )


# What a driver adds is the same for both, and for any split but the one with parties of
# nothing.
@pytest.mark.parametrize(
    ("name", "driver", "how"),
    [("gram", "in process", how) for how in SPLITS]
    + [(name, driver, "lonely") for name in POOLED for driver in DRIVERS],
)
def test_every_driver_ends_in_the_pooled_model(
    name: str, driver: str, how: str
) -> None:
    run = DRIVERS[driver](
        options_of(name), lonely() if how == "lonely" else shares(how)
    )
    names = [phase.name for phase in run.phases]
    assert names == list(run.state.results) == list(run.traffic)
    assert not run.state.absent(*names)
    n_parties = 4
    if how == "lonely":
        n_parties = 7
    assert {each.asked for each in run.traffic.values()} == {n_parties}
    assert {each.replied for each in run.traffic.values() if each.kind == "exact"} == {
        n_parties
    }
    assert min(min(each.per_party.values()) for each in run.traffic.values()) > 0
    model = run.model.model_
    pooled = POOLED[name]
    assert model.sha256() == pooled.model_.sha256()
    assert len(model.members) > 1
    assert (model.gram is not None) == (name == "gram")
    assert {
        (member.spec.hash_dim, member.counts.n_examples) for member in model.members
    } == {(64, 120)}
    right = pooled.predict(X[~TRAINING]) == LABELS[~TRAINING]
    assert run.state.results["evaluation"].figures["accuracy"] == np.mean(right)


SETTINGS: dict[str, dict[str, Any]] = {
    **{
        effort: {"effort": effort, "hash_dim": None}
        for effort in ("quick", "default", "thorough")
    },
    "novelty": {"rule": "novelty"},
    "given decay": {"decay": 0.5},
    "one member": {"max_members": 1},
    "two members": {"max_members": 2},
    "seed": {"seed": 5},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_model_hold_for_the_pool_alike(name: str) -> None:
    changes = SETTINGS[name]
    of_plan = {name: value for name, value in changes.items() if hasattr(PLAN, name)}
    run = made(
        replace(PLAN, **of_plan),
        **{name: changes[name] for name in changes.keys() - of_plan.keys()},
    )
    model = run.model.model_
    assert model.sha256() == pooled(**changes).model_.sha256()
    assert len(model.members) <= changes.get("max_members", PLAN.max_members)
    assert model.members[0].spec.hash_dim == {
        "quick": 2**14,
        "default": 2**15,
        "thorough": 2**15,
    }.get(name, 64)
    assert (None if model.gram is None else len(model.gram.weights)) == (
        1024 if name == "thorough" else None
    )


def test_a_plan_without_the_number_of_samples_has_it_from_the_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flwr_flynn.model.candidates._MANY", 100)
    run = made(HashPlan(4, 3, None, "auto"))
    assert digest(run) == pooled(hash_dim=None).model_.sha256()
    assert run.model.model_.members[0].spec.hash_dim == 2**16


@pytest.mark.parametrize("rule", ["balanced", "novelty"])
@pytest.mark.parametrize("is_none", [False, True], ids=["some", "none"])
def test_of_many_samples_some_or_none_are_left_out(
    is_none: bool, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal samples are kept or dropped together, so that a subsample may have none of
    them.
    """
    for module in (
        "flwr_flynn.model.selection",
        "flwr_flynn.federated.phases.selection",
    ):
        if is_none:
            monkeypatch.setattr(
                f"{module}.subsample_mask",
                lambda X, y, n_per_class, n: np.zeros(len(y), bool),
            )
        monkeypatch.setattr(f"{module}.N_LEFT_OUT", 60)
    run = made(rule=rule)
    assert (run.state.results["selection"].examples == 0) == is_none
    assert run.state.results["selection"].examples < 120
    assert {member.temperature == 0.2 for member in run.model.model_.members} >= {
        is_none
    }
    assert len(run.model.model_.members) == 1 or not is_none
    assert digest(run) == pooled(rule=rule).model_.sha256()


@pytest.mark.parametrize("distribute", [False, True])
def test_where_nobody_tries_the_model_it_is_the_first_candidate(
    distribute: bool,
) -> None:
    run = made(fraction_evaluate=0, distribute=distribute)
    assert list(run.state.results) == [
        "columns",
        "counts",
        *(["evaluation"] if distribute else []),
    ]
    assert len(run.totals.parts) == 1  # nobody counts what nobody compares
    member = run.model.model_.member
    assert member.spec == PLAN.specs(run.state.results["columns"].histograms)[0]
    assert member.counts == ClassCounts.from_data(
        member.hash, X[TRAINING], Y[TRAINING], 3
    )
    assert (member.scoring.decay, member.weight) == (suggest_decay(member.counts), 1.0)


@pytest.mark.parametrize("effort", ["default", "thorough"])
@pytest.mark.parametrize("n_classes", [10, 64, 1000, 2**15])
def test_a_party_has_the_memory_for_all_candidates(effort: str, n_classes: int) -> None:
    specs = placeholder_specs(HashPlan(128, n_classes, 10**6, "auto", effort=effort))
    assert len(specs) == 6
    assert (
        sum(memory_needed(spec, n_classes) for spec in specs)
        < PartyOptions().memory_limit
    )
    assert all(spec.hash_nnz <= spec.hash_dim // 16 for spec in specs)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("how", SPLITS)
def test_the_prior_and_the_temperatures_for_it_are_those_of_the_pool(
    how: str, class_weight: str | None
) -> None:
    rows = [
        np.arange(len(share["y"])) % 5 > 4 * (share["y"] == LABELS[-1]) - 1
        for share in shares(how)
    ]
    parts = [
        {**s, "X": s["X"][some], "y": s["y"][some]}
        for s, some in zip(shares(how), rows, strict=True)
    ]
    points, labels = (np.concatenate([share[name] for share in parts]) for name in "Xy")
    pooled = FlyNNClassifier(hash_dim=64, class_weight=class_weight).fit(points, labels)
    options = options_of(
        "committee",
        spec=replace(PLAN, n_examples=len(labels)),
        class_weight=class_weight,
    )
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
    assert [model.with_prior().model_.sha256() for model in (*kept, *handed)] == [
        digest(run)
    ] * 8
    np.testing.assert_array_equal(
        kept[0].with_prior().predict_proba(X), run.model.predict_proba(X)
    )


def facts(run: Run) -> Any:
    """All that a run makes of the parties' training samples."""
    model = run.model.model_
    selection = run.state.results.get("selection")
    selected = selection and (
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
    [("gram", how) for how in SPLITS if how != "pathological"]
    + [(name, "pathological") for name in RUNS if "distribute" not in RUNS[name]],
)
def test_a_secure_run_of_any_split_ends_in_the_model_of_the_run_in_clear(
    name: str, how: str
) -> None:
    secret = secretly(options_of(name), shares(how))
    clear = whole_of(name)
    assert [phase.channel for phase in secret.phases] == [TRAIN] * (
        len(secret.phases) - 1
    ) + [EVALUATE]
    assert facts(secret) == facts(clear)
    assert secret.num_rounds == len(secret.phases) - 1
    figures = [
        run.state.results["evaluation"].figures["accuracy"] for run in (clear, secret)
    ]
    assert figures[0] == figures[1]


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
    steps = exchange(**{"spec": GRID, "gram": 16, **changes}).until(phase)
    if how == "silent":
        steps.lost = set(who)
    else:
        steps.lost = set()
    there = set("0123") - set(who if how == "gone" else "")
    steps.step(
        DUE,
        sorted(there),
        dict.fromkeys(who, "failed: no") if how == "failed" else None,
    )
    steps.lost = set()
    return steps


LOST = [
    *product(
        ("columns", "counts", "selection", "gram", "evaluation"), ("failed", "silent")
    )
]


@pytest.mark.parametrize(
    ("phase", "how"), [*LOST, ("selection", "gone"), ("gram", "gone")]
)
def test_a_party_lost_in_a_phase_is_missing_from_that_alone(
    phase: str, how: str
) -> None:
    run = lost_in(phase, how, spec=PLAN).rounds()
    results = run.state.results
    absent = {
        name: run.state.absent(name) for name in results if run.state.absent(name)
    }
    assert absent == {
        phase: {"node 3" if phase == "columns" else "party-3": REASONS[how]}
    }
    examples = {
        "columns": results["columns"].histograms.n_examples,
        "counts": run.counts.n_examples,
        "selection": results["selection"].examples,
        "gram": results["gram"].n_examples,
        "evaluation": results["evaluation"].figures["examples"],
    }
    if phase == "counts":
        missed = ("counts", "selection", "gram")
    else:
        missed = (phase,)
    theirs = {
        name: len(shares()[3]["y_test" if name == "evaluation" else "y"])
        for name in missed
    }
    whole = dict.fromkeys(examples, 120) | {"evaluation": 30}
    assert examples == {name: whole[name] - theirs.get(name, 0) for name in examples}


def test_a_party_lost_in_the_counts_was_never_there() -> None:
    assert facts(lost_in("counts").rounds()) == facts(
        in_process(options_for(GRID, gram=16), shares()[:3])
    )


def test_where_nobody_answers_the_selection_it_is_the_first_spec_and_the_suggested_decay() -> (
    None
):
    run = lost_in("selection", who="0123", gram=0).run
    selection = run.state.results["selection"]
    suggested = suggest_decay(run.counts)
    assert (
        selection.specs,
        selection.parties,
        selection.accuracies,
        selection.accuracy,
    ) == ((0,), 0, (), None)
    assert (
        run.model.model_.member.scoring.decay
        == selection.scorings[0].decay
        == suggested
    )


@pytest.mark.parametrize("phase", ["counts", "selection", "gram"])
def test_a_secure_run_that_loses_a_party_ends_as_the_run_in_clear_does(
    phase: str,
) -> None:
    secret = secretly(options_for(GRID, gram=16), shares(), lost(phase))
    clear = lost_in(phase).rounds()
    assert facts(secret) == facts(clear)
    assert secret.state.absent("counts", "selection", "gram").keys() == {
        "party-3" if phase != "counts" else "node 3"
    }


NONSENSE: dict[str, tuple[str, Spoil]] = {
    "selection": ("selection", odd("selection", slice(None), -BOUND)),
    "a negative product": ("gram", odd("gram", 1, -BOUND)),
    "a digit too large": ("gram", odd("gram", -1, 5 * BOUND)),
    # the upper digit
    "responses that so many samples cannot have": ("gram", odd("gram", -1, 14)),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_a_secure_sum_with_nonsense_in_it_is_as_if_nobody_had_answered(
    name: str,
) -> None:
    phase, spoil = NONSENSE[name]
    secret = secretly(options_for(GRID, gram=16), shares(), spoil)
    reasons = secret.state.absent(phase)
    assert len(reasons) == 4
    assert all(
        reason.startswith("refused: with its whole secure sum: ")
        for reason in reasons.values()
    )
    assert facts(secret) == facts(lost_in(phase, who="0123").rounds())


# ---- saved and resumed


def test_a_run_that_stopped_in_its_counting_goes_on(tmp_path: Path) -> None:
    steps = exchange(PLAN, min_parties=4)
    steps.step(TRAIN)
    for present, n_members in (("01", 2), ("2", 3)):
        steps.step(TRAIN, present)
        saved = saved_of(steps.run, tmp_path / "f.npz")
        assert (saved.phase, len(saved.members), saved.is_selected) == (
            "counts",
            n_members,
            False,
        )
        assert saved.max_members == PLAN.max_members
        resumed = {
            "spec": saved.run_spec.specs,
            "federation": saved,
            "purpose": "resume",
            "min_parties": 4,
        }
        steps.run = Run(RunOptions(**options_for(**resumed)))
        assert steps.run.needed == 4 - n_members
    assert digest(steps.rounds()) == pooled().model_.sha256()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_may_stop_after_every_phase(name: str, tmp_path: Path) -> None:
    whole = whole_of(name)
    stopped = exchange(**RUNS[name])
    names = [phase.name for phase in whole.phases]
    for stop, phase in enumerate(whole.phases, 1):
        stopped.step(phase.channel)
        left = whole.phases[stop:]
        steps = replace(stopped)
        # the candidates are not known yet
        if any(phase.derives_specs for phase in left):
            with raises(AggregationError, counted=0):
                steps.run.federation("1")
            continue
        saved = saved_of(steps.run, tmp_path / "f.npz")
        assert saved.phase == (left[0].resumed_at(names) if left else "")
        is_without = whole.model.model_.gram is None or saved.phase not in (
            "evaluation",
            "",
        )
        assert (saved.shared.gram is None) == is_without
        resumed = options_of(
            name, spec=saved.run_spec.specs, federation=saved, purpose="resume"
        )
        steps.run = Run(RunOptions(**resumed))
        steps.asked.clear()
        steps.rounds(len(names))
        assert [asked for asked, _ in steps.asked] == [
            phase.name for phase in steps.run.phases
        ]
        assert sha256(steps.run.model) == sha256(whole.model)
        if left and "evaluation" in names:
            assert (
                steps.run.state.results["evaluation"]
                == whole.state.results["evaluation"]
            )
        after = saved_of(steps.run, tmp_path / "after.npz", "2")
        assert (after.phase, after.model.model_.sha256()) == ("", digest(whole))


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_model_is_distributed_as_it_is(name: str, tmp_path: Path) -> None:
    whole = whole_of(name)
    saved = saved_of(whole, tmp_path / "f.npz")
    kept = []
    assert FlyNNClassifier.load(tmp_path / "f.npz").model_.sha256() == digest(whole)
    changes = {"federation": saved, "purpose": "evaluate", "gram": 0}
    run = in_process(
        options_of(name, spec=saved.run_spec.specs, **changes),
        shares(),
        on_model=kept.append,
    )
    assert [phase.name for phase in run.phases] == ["evaluation"]
    assert [model.with_prior().model_.sha256() for model in kept] == [digest(whole)] * 4
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
    parts = dict(zip("0123", shares(), strict=True))
    changes = {
        "spec": before.run_spec.specs,
        "federation": before,
        "purpose": purpose,
        **changes,
    }
    given = {"min_examples": 1, "gram": True}
    parties = {}
    for cid in who:
        known = {
            "name": f"party-{cid}",
            "member": f"secret of {cid}",
            "leaves": cid == leaver,
        }
        parties[f"{purpose}{cid}"] = party_of(**parts[cid], **known, **given)
    return Exchange(Run(RunOptions(**options_of(name, **changes))), parties).rounds()


def nobody(federation: Federation) -> Federation:
    """A federation of the same members of the model, before anybody was counted."""
    empty = Run(RunOptions(**options_for(federation.run_spec.specs))).totals
    pairs = zip(federation.shared.members, empty.parts, strict=True)
    members = tuple(replace(member, counts=counts) for member, counts in pairs)
    return replace(
        federation,
        shared=replace(federation.shared, members=members, gram=None),
        members=(),
    )


@pytest.mark.parametrize("name", RUNS)
def test_a_party_that_leaves_was_never_there(name: str, tmp_path: Path) -> None:
    whole = saved_of(whole_of(name), tmp_path / "f.npz")
    left = go(name, whole, "withdraw", "0123", leaver="3")
    never = go(name, nobody(whole), "join", "012")
    assert len(left.counted.members) == 3
    assert sha256(left.model) == sha256(never.model)
    again = go(name, left.federation("2"), "join", "0123")
    assert digest(again) == digest(
        go(name, nobody(left.federation("2")), "join", "0123")
    )
    n_left = len(shares()[3]["y"])
    assert {member.counts.n_examples for member in left.model.model_.members} == {
        120 - n_left
    }
    assert {member.counts.n_examples for member in again.model.model_.members} == {120}


def test_whoever_joins_ends_what_is_not_done_anew() -> None:
    three = in_process(options_of("gram"), shares()[:3]).federation("1")
    assert go("gram", three, "join", "0123", gram=0).model.model_.gram is None


def test_a_party_that_joins_a_committee_makes_the_model_of_all_at_fixed_members() -> (
    None
):
    specs = (
        part := in_process(options_of("committee"), shares()[:3]).federation("1")
    ).run_spec.specs
    joined = go("committee", part, "join", "0123")
    assert len(joined.counted.members) == 4
    assert joined.model.model_.members == fit_members(
        specs, X[TRAINING], Y[TRAINING], 3, max_members=len(specs)
    )
    assert joined.state.results["selection"].examples == 120
