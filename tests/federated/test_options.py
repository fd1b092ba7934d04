"""Options of a run hold as described, or are refused before anything begins."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import numpy as np
import pytest

from flwr_flynn.errors import ConfigError, SpecError
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from tests.fakes import CLASSES, LAPLACE, SHARE, SPEC, make, points
from tests.raising import raises


def test_the_keywords_of_the_strategies_are_documented():
    names = {field.name for field in fields(RunOptions) if field.init}
    rows = re.findall(r"^ {4}(\w+(?:, \w+)*) : ", RunOptions.__doc__ or "", re.M)
    assert {name for row in rows for name in row.split(", ")} == names


PLAN = HashPlan(4, 3, scaling="auto")
SHARED = {"secure_bound": 256, "min_parties": 3, "mechanism": SHARE}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"spec": HashPlan(4, 2)}, "classes"),
        ({"mechanism": SHARE}, "mechanism"),
        ({"mechanism": LAPLACE, "spec": PLAN}, "spec"),
        ({**SHARED, "spec": PLAN}, "spec"),
    ],
    ids=str,
)
def test_bad_options_are_refused_at_once(change, field):
    """`refused.txt` has others."""
    with raises(ConfigError, field=field):
        make(**change)


@pytest.mark.parametrize("trees", [0, 1, 1000, np.int64(64)])
def test_numpy_s_integers_and_bounds_are_taken(trees):
    options = make(
        spec=PLAN,
        min_parties=np.int64(2),
        max_examples_per_party=np.uint8(5),
        trees=trees,
    )
    assert options.min_parties == 2
    assert options.max_examples_per_party == 5
    assert options.trees == options.n_trees == trees


@pytest.mark.parametrize("changes", [{}, {"distribute": True}], ids=str)
def test_trees_follow_from_the_effort_where_parties_evaluate_the_model(changes):
    thorough = replace(PLAN, effort="thorough")
    sizes = [make(spec=plan).n_trees for plan in (PLAN, thorough)]
    assert sizes == [0, 100]
    assert make(spec=thorough, trees=7).n_trees == 7
    nobody = {"fraction_evaluate": 0, **changes}
    with raises(ConfigError, field="spec"):
        make(spec=thorough, **nobody)
    assert not make(spec=thorough, trees=0, **nobody).has_trees
    assert not make(spec=PLAN, **nobody).has_trees


def test_a_saved_thorough_run_has_trees_anew_unless_none_are_asked_for():
    run = federate(make(), [party_of(*points(9), name="a")])
    saved = replace(run.federation("1"), n_trees=100)
    joining = {"federation": saved, "purpose": "join"}
    assert make(**joining).n_trees == 100
    assert not make(**joining, trees=0).has_trees
    with raises(ConfigError, field="trees"):
        make(**joining | {"purpose": "evaluate"}, trees=16)


def test_a_saved_run_goes_with_its_own_spec_classes_and_purpose():
    federation = federate(
        make(fraction_evaluate=0), [party_of(*points(9), name="a")]
    ).federation("1")
    assert make(federation=federation, purpose="join").run_spec == federation.run_spec
    changes = {
        "spec": replace(SPEC, seed=8),
        "classes": CLASSES[::-1],
        "mechanism": LAPLACE,
    }
    for name, value in [*changes.items(), ("spec", PLAN), ("class_weight", "balanced")]:
        with raises(ConfigError, field="spec, classes, mechanism, class_weight"):
            make(**{"federation": federation, "purpose": "join", name: value})
    with raises(ConfigError, field="federation"):
        make(federation=federation, purpose="train")


def test_a_run_before_its_selection_can_only_go_on():
    specs = [SPEC, replace(SPEC, seed=8)]
    run = federate(make(spec=specs), [])
    federation = run.federation("1")
    assert len(federation.run_spec.specs) == 2
    make(spec=specs, federation=federation, purpose="resume")
    with raises(ConfigError, field="purpose"):
        make(spec=specs, federation=federation, purpose="join")


def test_sizes_that_do_not_fit_are_known_before_the_columns():
    with raises(SpecError, field="row_nnz"):
        make(spec=replace(PLAN, row_nnz=99))
    plan = HashPlan(4, 3, 150, "auto", hash_dim=128)
    assert make(spec=plan).plan is plan
    assert [spec.hash_dim for spec in make(spec=plan).run_spec.specs] == [128] * 5
    assert make(spec=HashPlan(4, 3)).plan is None
    assert make(spec=HashSpec(4, 24, 2, 3, 7)).plan is None
