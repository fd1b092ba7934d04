"""Prediction sets of a federation: their tables on any split, and their coverage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.datasets import make_classification

from flwr_flynn.errors import DataError, PayloadError
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.set_tables import (
    add_sets,
    check_sets,
    set_field,
    set_figures,
    shown_sets,
)
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.model import Model
from flwr_flynn.model.prediction_sets import COVERAGES
from flwr_flynn.model.selection import UnseenScoring
from flwr_flynn.privacy import GaussianCounts
from flwr_flynn.privacy.ledger import Budget
from flwr_flynn.privacy.release_policy import Policy
from tests.fakes import dealt
from tests.federated.secure_runs import secretly
from tests.raising import raises

X, Y = make_classification(
    700, 8, n_informative=5, n_classes=3, weights=[0.6, 0.3], random_state=2
)
TEST = np.arange(len(Y)) % 4 == 0
PLAN = HashPlan(8, 3, 525, "auto", hash_dim=256, max_members=2)


def parts_of(n: int, how: str = "dirichlet") -> list[dict[str, np.ndarray]]:
    """Samples of so many sites, a fourth of all held out."""
    return [
        {
            "X": X[own][~TEST[own]],
            "y": Y[own][~TEST[own]],
            "X_test": X[own][TEST[own]],
            "y_test": Y[own][TEST[own]],
        }
        for own in dealt(Y, n, how)
    ]


def options(plan: Any = PLAN, **changes: Any) -> RunOptions:
    return RunOptions(
        **{"spec": plan, "classes": (0, 1, 2), "min_parties": 1} | changes
    )


def named(parts: list[dict[str, Any]], **changes: Any) -> list[Party]:
    given = {"min_examples": 1, "products": True, **changes}
    return [
        party_of(**part, name=f"site-{index}", member=f"secret of {index}", **given)
        for index, part in enumerate(parts)
    ]


def levels_of(model: Any) -> Any:
    return model.model_.last_calibration.levels


def kept_by(parts: list[dict[str, Any]], **changes: Any) -> tuple[Run, list[Any]]:
    """A run, and the models that the sites keep."""
    kept: dict[int, Any] = {}
    parties = []
    for index, part in enumerate(parts):
        (party,) = named([part], **changes)
        keep = lambda model, index=index: kept.setdefault(index, model)  # noqa: E731
        own = replace(party.options, name=f"site-{index}", on_model=keep)
        parties.append(replace(party, options=own))
    run = federate(options(), parties)
    return run, [kept[index] for index in range(len(parts))]


# ---- laws of splits


@pytest.mark.parametrize("effort", ["default", "thorough"])
@pytest.mark.parametrize("how", ["dirichlet", "iid", "pathological"])
def test_the_table_of_any_split_is_that_of_the_pooled_samples(how, effort):
    plan = replace(PLAN, effort=effort)
    pooled = FlyNNClassifier(
        hash_dim=256, max_members=2, effort=effort, min_examples=1
    ).fit(X[~TEST], Y[~TEST])
    run = federate(options(plan), named(parts_of(4, how)))
    assert run.model.model_.sha256() == pooled.model_.sha256()
    assert levels_of(run.model) == levels_of(pooled)
    assert_array_equal(run.model.predict_set(X), pooled.predict_set(X))


def test_a_secure_sum_has_the_table_of_all_samples_and_tells_the_coverage_of_all():
    parts = parts_of(4)
    given = {"spec": PLAN, "classes": (0, 1, 2), "min_parties": 3}
    run = secretly(given, parts, bound=512)
    model = run.model.model_
    train = [np.concatenate([part[name] for part in parts]) for name in ("X", "y")]
    unseen = UnseenScoring(model, run.totals.linear.folds)
    assert levels_of(run.model) == unseen.levels(*train)
    # Sites try the thresholds of all then: nothing of their own is in their copies.
    table = np.zeros(set_field(model, 0).shape, np.int64)
    for part in parts:
        add_sets(table, model, model.shared_scores(part["X_test"]), part["y_test"])
    told = run.state.results["evaluation"].figures["sets"]
    assert told == set_figures(shown_sets(table, 5), (0, 1, 2))


@pytest.mark.parametrize("least", [1, 8])
def test_coverage_by_site_is_that_of_its_own_copy_on_its_held_out_samples(least):
    parts = parts_of(3)
    run, kept = kept_by(parts, min_examples=least)
    evaluation = run.state.results["evaluation"]
    sums = np.zeros((len(COVERAGES), 3, 7), np.int64)
    for site, part, model in zip(evaluation.sites, parts, kept, strict=True):
        expected = np.zeros((len(COVERAGES), 3, 7), np.int64)
        for block, coverage in zip(expected, COVERAGES, strict=True):
            is_in = model.predict_set(part["X_test"], coverage)
            for row, label in zip(is_in, part["y_test"], strict=True):
                size = row.sum()
                is_right = size == 1 and row[label]
                block[label] += [1, row[label], size == 1, size == 0, 0, is_right, size]
                if size == 1:
                    block[row.argmax(), 4] += 1
        sizes = expected[:, :, :1]
        expected *= (sizes == 0) | (sizes >= least)
        sums += expected
        assert site["sets"] == set_figures(expected.reshape(-1, 7), (0, 1, 2))
    assert evaluation.figures["sets"] == set_figures(sums.reshape(-1, 7), (0, 1, 2))
    nine_tenths = evaluation.figures["sets"][1]
    assert nine_tenths["coverage"] == 0.9
    assert 0.8 < nine_tenths["covered"] < 1
    assert nine_tenths["classes"][0].keys() >= {"class", "covered", "several", "none"}


def test_copies_of_the_sites_add_up_to_the_table_of_all():
    _, kept = kept_by(parts_of(3))
    tables = [model.model_.last_calibration for model in kept]
    total = np.sum([np.array(own.own_levels) for own in tables], axis=0)
    assert_array_equal(total, tables[0].levels)
    assert len({own.levels for own in tables}) == 1
    assert len({own.own_levels for own in tables}) == 3


def test_a_class_of_few_samples_is_not_in_the_table_of_a_party_in_clear():
    parts = parts_of(3)
    (party,) = named(parts[:1], min_examples=40)
    sizes = np.bincount(parts[0]["y"], minlength=3)
    assert (sizes < 40).any()
    assert (sizes >= 40).any()
    run = federate(options(), [party])
    told = np.array(levels_of(run.model)).sum(axis=1)
    assert_array_equal(told, np.where(sizes >= 40, sizes, 0))


# ---- who has none


def test_a_site_that_only_validates_has_the_thresholds_of_all():
    parts = parts_of(3)
    federation = federate(options(), named(parts[:2]))
    saved = federation.federation("three")
    validator = {**parts[2], "X": parts[2]["X"][:0], "y": parts[2]["y"][:0]}
    (party,) = named([validator])
    given = {"federation": saved, "purpose": "evaluate"}
    run = federate(options(saved.run_spec.specs, **given), [party])
    (site,) = run.state.results["evaluation"].sites
    table = np.zeros(set_field(run.model.model_, 0).shape, np.int64)
    scores = run.model.model_.shared_scores(validator["X_test"])
    add_sets(table, run.model.model_, scores, validator["y_test"])
    assert site["sets"] == set_figures(table, (0, 1, 2))


def test_a_site_whose_samples_are_not_counted_leans_on_all_and_keeps_its_prior():
    parts = parts_of(3)
    saved = federate(options(), named(parts[:2])).federation("two")
    kept: list[Any] = []
    (party,) = named(parts[2:], class_prior=True, on_model=kept.append)
    given = {"federation": saved, "purpose": "evaluate"}
    run = federate(options(saved.run_spec.specs, **given), [party])
    (model,) = kept
    assert model.model_.last_calibration.own_levels == ()
    assert model.model_.has_sets
    assert not np.array_equal(model.model_.prior, run.model.model_.prior)


def test_where_rows_are_related_held_out_samples_make_the_thresholds():
    parts = parts_of(3, "iid")
    parties = named(parts[:2]) + named(parts[2:], related_rows=True)
    run = federate(options(), parties)
    model = run.model.model_
    unseen = UnseenScoring(model, run.totals.linear.folds)
    tables = [unseen.levels(part["X"], part["y"]) for part in parts[:2]]
    of_last = (parts[2]["X_test"], parts[2]["y_test"])
    tables.append(replace(unseen, are_counted=False).levels(*of_last))
    assert_array_equal(np.sum([*map(np.array, tables)], axis=0), levels_of(run.model))
    sites = {site["name"]: site for site in run.state.results["evaluation"].sites}
    assert sites["site-1"]["sets"] != []
    names = {name for name, site in sites.items() if site["sets"] == []}
    assert len(names) == 1  # its held-out samples made thresholds


def test_related_rows_without_held_out_samples_make_no_table():
    parts = [{**part, "X_test": None, "y_test": None} for part in parts_of(2)]
    run = federate(options(), named(parts, related_rows=True))
    assert levels_of(run.model) == ()
    with raises(DataError, field="coverage"):
        run.model.predict_set(X)
    # Figures of others do not need it.
    saved = run.federation("two")
    validator = {**parts_of(2)[0], "X": X[:0], "y": Y[:0]}
    given = {"federation": saved, "purpose": "evaluate"}
    tried = federate(options(saved.run_spec.specs, **given), named([validator]))
    figures = tried.state.results["evaluation"].figures
    assert figures["examples"] == len(validator["y_test"])
    assert figures["sets"] == []


def test_no_order_of_more_held_out_than_training_samples_changes_the_table():
    tables = []
    for step in (1, -1):
        parts = [
            {
                "X": part["X_test"],
                "y": part["y_test"],
                "X_test": part["X"][::step],
                "y_test": part["y"][::step],
            }
            for part in parts_of(2, "iid")
        ]
        run = federate(options(), named(parts, related_rows=True))
        tables.append(levels_of(run.model))
        n_train = sum(len(part["y"]) for part in parts)
        assert np.sum(tables[-1]) == n_train
    assert tables[0] == tables[1]


def test_classes_below_every_floor_make_no_table_and_cost_no_figures():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(8), 3)
    parts = []
    for _ in range(3):
        numbers = rng.normal(size=(len(y), 8)) + y[:, None]
        parts.append({"X": numbers, "y": y, "X_test": numbers, "y_test": y})
    plan = replace(PLAN, n_classes=8)
    run = federate(options(plan, classes=(*range(8),)), named(parts, min_examples=5))
    assert levels_of(run.model) == ()
    assert run.state.results["evaluation"].figures["examples"] == 3 * len(y)


def test_a_site_without_the_scores_of_the_folds_has_the_thresholds_of_all():
    # Two made the linear part; the run with validators wants four for its sums.
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 1040)
    numbers = rng.normal(size=(len(y), 10)) + 0.35 * y[:, None]
    parts = []
    for rows in (slice(400), slice(400, 800), slice(0), slice(0)):
        parts.append({"X": numbers[rows], "y": y[rows]})
        parts[-1] |= {"X_test": numbers[800:], "y_test": y[800:]}
    plan = HashPlan(10, 2, 800, "auto", hash_dim=256, max_members=2)
    run = federate(options(plan, classes=(0, 1)), named(parts[:2]))
    assert run.model.model_.share
    saved = run.federation("two")
    given = {"classes": (0, 1), "federation": saved, "purpose": "evaluate"}
    for least, has_own in ((1, True), (4, False)):
        kept: list[Any] = []
        parties = named(parts[:1], on_model=kept.append) + named(parts)[1:]
        specs = saved.run_spec.specs
        federate(options(specs, min_parties=least, **given), parties)
        assert bool(kept[0].model_.last_calibration.own_levels) == has_own


def test_private_counts_and_effort_quick_have_none(tmp_path):
    quick = federate(options(replace(PLAN, effort="quick")), named(parts_of(3)))
    assert not quick.model.model_.has_sets
    assert quick.state.results["evaluation"].figures["sets"] == []
    spec = HashPlan(8, 3, 525, hash_dim=256).specs(None)[0]
    mechanism = GaussianCounts(1.0, 1e-5, hash_nnz=spec.hash_nnz, n_classes=3)
    parties = []
    for index, party in enumerate(named(parts_of(2))):
        budget = Budget(tmp_path / str(index), Policy(1.0, 1e-5))
        own = replace(party.options, budget=budget, evaluates=True, products=False)
        parties.append(replace(party, options=own))
    run = federate(options(spec, mechanism=mechanism, fraction_evaluate=1), parties)
    assert not run.model.model_.has_sets
    assert run.state.results["evaluation"].figures["sets"] == []


# ---- what a party may not say


def table_and_matrix() -> tuple[np.ndarray, np.ndarray, Model]:
    model = federate(options(), named(parts_of(2))).model.model_
    table = np.zeros(set_field(model, 0).shape, np.int64)
    add_sets(table, model, model.shared_scores(X[TEST]), Y[TEST])
    return table, np.diag(np.bincount(Y[TEST])), model


@pytest.mark.parametrize(
    ("sizes", "least", "shown"),
    [
        ((9, 4, 0), 5, (True, False, True)),
        ((9, 5, 0), 5, (True, True, True)),
        ((3, 0, 0), 5, (False, False, False)),  # sets of so few samples
        ((3, 0, 0), 1, (True, True, True)),
    ],
)
def test_classes_below_the_floor_are_not_told(sizes, least, shown):
    block = np.ones((3, 7), np.int64)
    block[:, 0] = sizes
    table = np.tile(block, (len(COVERAGES), 1))
    expected = np.tile(block * np.array(shown)[:, None], (len(COVERAGES), 1))
    assert_array_equal(shown_sets(table, least), expected)


def test_of_sets_of_one_class_the_share_that_is_of_it_is_told():
    table = np.zeros((len(COVERAGES), 2, 7), np.int64)
    table[:] = [[90, 85, 80, 5, 78, 76, 90], [10, 9, 8, 1, 10, 6, 11]]
    first, rare = set_figures(table.reshape(-1, 7), "ab")[1]["classes"]
    assert (first["right"], rare["right"]) == (76 / 78, 0.6)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        (0, -1),
        (1, 1000),
        (2, 1000),
        (3, 1000),
        (4, 1000),
        (5, 1000),
        (6, -500),
        (6, 5000),
    ],
)
def test_a_table_that_no_samples_make_is_refused(column, change):
    table, matrix, _ = table_and_matrix()
    check_sets(table, matrix)
    check_sets(shown_sets(table, 30), matrix)
    table[4, column] += change
    with raises(PayloadError, field="sets"):
        check_sets(table, matrix)
