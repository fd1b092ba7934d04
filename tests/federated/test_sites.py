"""Figures by site: the model without it on its samples, and what it makes alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from flwr_flynn.federated import site_trial
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.run import Run
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.gram import GramMatrix
from flwr_flynn.model.metrics import event_figures, scored
from flwr_flynn.model.model import Model
from flwr_flynn.model.prior import counted_prior
from flwr_flynn.model.site_models import SiteClassifier
from flwr_flynn.privacy import GaussianCounts
from flwr_flynn.privacy.ledger import Budget
from flwr_flynn.privacy.release_policy import Policy
from tests.federated.secure_runs import secretly

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 6))
Y = (X @ [2.0, -1.5, 1.0, 0.5, 0, 0] + RNG.logistic(size=600) > 1).astype(int)
PLAN = HashPlan(6, 2, len(X), "auto", hash_dim=256, max_members=2)
TEST = np.arange(len(X)) % 5 == 0


def parts_of(n: int) -> list[dict[str, np.ndarray]]:
    """Samples of so many sites, a fifth of them held out."""
    parts = []
    for site in range(n):
        own = np.flatnonzero(np.arange(len(X)) // 2 % n == site)
        train = own[~TEST[own]]
        test = own[TEST[own]]
        parts.append(
            {
                "X": X[train],
                "y": Y[train],
                "X_test": X[test],
                "y_test": Y[test],
            }
        )
    return parts


def options(**changes: Any) -> RunOptions:
    given: dict[str, Any] = {"spec": PLAN, "classes": (0, 1), "min_parties": 1}
    return RunOptions(**given | changes)


def named(parts: list[dict[str, Any]], **changes: Any) -> list[Party]:
    given = {"min_examples": 1, "products": True, **changes}
    return [
        party_of(**part, name=f"site-{index}", member=f"secret of {index}", **given)
        for index, part in enumerate(parts)
    ]


def sites_of(run: Run) -> dict[str, dict[str, Any]]:
    return {site["name"]: site for site in run.state.results["evaluation"].sites}


def without(run: Run, others: list[dict[str, np.ndarray]]) -> Model:
    """The oracle: the model with the counts of the other sites alone."""
    model = run.model.model_
    X_others = np.concatenate([part["X"] for part in others])
    y_others = np.concatenate([part["y"] for part in others])
    members = []
    for member in model.members:
        counted = FlyNNClassifier(member.spec, decay=0.5).fit(X_others, y_others)
        members.append(replace(member, counts=counted.counts_))
    linear = None
    if model.linear is not None:
        terms = run.totals.linear.terms
        linear = GramMatrix.from_data(terms, X_others, y_others, 2).scoring
    prior = counted_prior(members[0].counts, None)
    return replace(model, members=tuple(members), prior=prior, linear=linear)


def figures(model: Model, part: dict[str, np.ndarray], event: int) -> dict[str, Any]:
    """Figures of a model on all samples of a site."""
    samples = np.concatenate([part["X_test"], part["X"]])
    true = np.concatenate([part["y_test"], part["y"]])
    scores = model.scores(samples)
    tables = scored(model.probabilities(scores), true, scores.argmax(axis=1))
    return event_figures(*tables, event)


@pytest.mark.parametrize("linear", [0, 512])
def test_without_a_site_is_the_model_of_the_others_on_all_of_its_samples(linear):
    parts = parts_of(4)
    run = federate(options(linear=linear), named(parts))
    assert (run.model.model_.linear is not None) == (linear > 0)
    for index, part in enumerate(parts):
        site = sites_of(run)[f"site-{index}"]
        model = without(run, parts[:index] + parts[index + 1 :])
        assert site["without"] == figures(model, part, event=1)
        assert site["without"]["rows"] == len(part["X"]) + len(part["X_test"])
        assert site["held_out"]["rows"] == len(part["X_test"])
        assert site["reasons"] == {}
        assert not site["is_validation"]


def test_alone_is_what_fit_makes_of_the_sites_training_samples():
    parts = parts_of(3)
    run = federate(options(), named(parts))
    for index, part in enumerate(parts):
        alone = sites_of(run)[f"site-{index}"]["alone"]
        own = FlyNNClassifier().fit(part["X"], part["y"])
        p = own.predict_proba(part["X_test"])
        expected = event_figures(*scored(p, part["y_test"], p.argmax(axis=1)), event=1)
        ours = run.model.predict(part["X_test"]) == part["y_test"]
        right = own.predict(part["X_test"]) == part["y_test"]
        paired = [
            [(ours & right).sum(), (ours & ~right).sum()],
            [(~ours & right).sum(), (~ours & ~right).sum()],
        ]
        assert expected.items() <= alone.items()
        assert alone["paired"] == paired
        assert 0 < alone["mcnemar"] <= 1


def test_products_are_told_where_two_other_sites_have_enough():
    run = federate(options(), named(parts_of(2)))
    assert run.model.model_.linear is not None
    for site in sites_of(run).values():
        assert site["without"] is None
        assert "linear part" in site["reasons"]["without"]
        assert site["alone"] is not None
    run = federate(options(linear=0), named(parts_of(2)))
    assert all(site["without"] for site in sites_of(run).values())


def test_a_site_without_samples_is_none_of_two_others():
    """Without its own products, each of two would have those of the other one alone."""
    *parts, last = parts_of(3)
    nobody = last | {"X": X[:0], "y": Y[:0]}
    run = federate(options(), named([*parts, nobody]))
    assert run.model.model_.linear is not None
    sites = sites_of(run)
    assert sites["site-0"]["without"] is None
    assert sites["site-1"]["without"] is None
    # It has nothing to take out.
    assert sites["site-2"]["is_validation"]
    assert sites["site-2"]["without"] == sites["site-2"]["held_out"]


@pytest.mark.parametrize("sizes", [(240, 240, 0), (440, 20, 20)])
def test_in_a_secure_sum_nobody_gets_the_products_of_few_others(sizes):
    """Sizes are hidden there, and a site may have no samples, or most of them."""
    train = np.split(np.flatnonzero(~TEST), np.cumsum(sizes)[:-1])
    parts = [
        {"X": X[rows], "y": Y[rows], "X_test": X[TEST][i::3], "y_test": Y[TEST][i::3]}
        for i, rows in enumerate(train)
    ]
    run = secretly({"spec": PLAN, "classes": (0, 1)}, parts, bound=512)
    assert run.model.model_.linear is not None
    (site,) = run.state.results["evaluation"].sites
    assert site["held_out"] is not None
    assert site["without"] is None


@pytest.mark.parametrize("purpose", ["join", "withdraw", "update"])
def test_products_are_not_told_again_once_their_sum_has_changed(purpose):
    """The difference of two totals would be the products of the site that changed."""
    *parts, newcomer = parts_of(6)[:5]
    run = federate(options(), named(parts))
    saved = run.federation("first")
    parties = named(parts)
    if purpose == "join":
        parties += named([*parts, newcomer])[-1:]
    else:
        first = parts[0]
        parties[0] = party_of(
            **first | {"X": first["X"][1:], "y": first["y"][1:]},
            name="site-0",
            member="secret of 0",
            min_examples=1,
            products=True,
            previous=Samples(first["X"], first["y"]),
        )
    if purpose == "withdraw":
        parties[0] = named(parts, leaves=True)[0]
    given: dict[str, Any] = {"spec": saved.run_spec.specs, "federation": saved}
    changed = federate(options(**given, purpose=purpose), parties)
    assert changed.totals.linear.n_examples != run.totals.linear.n_examples
    saved = changed.federation("second")
    given = {"spec": saved.run_spec.specs, "federation": saved}
    again = federate(options(**given, purpose="evaluate"), named(parts))
    for later in (changed, again):
        assert later.model.model_.linear is not None
        assert sites_of(later)["site-1"]["held_out"] is not None
        assert all(site["without"] is None for site in sites_of(later).values())


def test_a_site_without_training_samples_validates_the_model_on_all():
    *parts, last = parts_of(4)
    nobody = {
        "X": X[:0],
        "y": Y[:0],
        "X_test": np.concatenate([last["X_test"], last["X"]]),
        "y_test": np.concatenate([last["y_test"], last["y"]]),
    }
    run = federate(options(), named([*parts, nobody]))
    site = sites_of(run)["site-3"]
    assert site["is_validation"]
    assert site["without"] == site["held_out"]
    assert site["held_out"] == figures(run.model.model_, last, event=1)
    assert site["alone"] is None
    again = evaluated_later(run, [*parts, nobody])
    assert again["site-3"] == site
    assert again["site-0"] == sites_of(run)["site-0"]


def evaluated_later(run: Run, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a later run that tries the saved model."""
    saved: Federation = run.federation("first")
    later = options(spec=saved.run_spec.specs, federation=saved, purpose="evaluate")
    return sites_of(federate(later, named(parts)))


def test_a_site_whose_counts_are_not_in_the_sum_gets_no_figure_without():
    parts = parts_of(4)
    run = federate(options(), named(parts[:3]))
    changed = parts[0] | {"X": parts[0]["X"][:-1], "y": parts[0]["y"][:-1]}
    later = evaluated_later(run, [changed, *parts[1:]])
    for name in ("site-0", "site-3"):
        assert later[name]["without"] is None
        assert later[name]["reasons"].keys() == {"without"}
        assert later[name]["held_out"] is not None
    assert later["site-1"] == sites_of(run)["site-1"]


@pytest.mark.parametrize("most", [20, 40, 120])
def test_which_of_many_samples_are_tried_does_not_depend_on_their_order(
    most, monkeypatch
):
    monkeypatch.setattr(site_trial, "MOST_TRIED", most)
    parts = parts_of(3)
    sorted_parts = []
    for part in parts:
        held_out = np.argsort(part["y_test"])
        train = np.argsort(part["y"])
        sorted_parts.append(
            {
                "X": part["X"][train],
                "y": part["y"][train],
                "X_test": part["X_test"][held_out],
                "y_test": part["y_test"][held_out],
            }
        )
    sites = sites_of(federate(options(linear=0), named(parts)))
    again = sites_of(federate(options(linear=0), named(sorted_parts)))
    for name, site in sites.items():
        assert site["without"] == again[name]["without"]
        assert site["without"]["rows"] == max(most, site["held_out"]["rows"])


def test_a_site_without_held_out_samples_tells_nothing():
    first, *parts = parts_of(4)
    silent = first | {"X_test": None, "y_test": None}
    run = federate(options(), named([silent, *parts]))
    assert sites_of(run).keys() == {"site-1", "site-2", "site-3"}


@pytest.mark.parametrize(
    ("least", "held_out", "without"),
    [(5, True, True), (40, False, True), (60, False, True), (200, 0, 0)],
)
def test_figures_of_fewer_samples_than_the_floor_stay(least, held_out, without):
    run = federate(options(linear=0), named(parts_of(3), min_examples=least))
    for site in sites_of(run).values():
        told = {
            name: bool(site[name] and site[name]["auroc"])
            for name in ("held_out", "without", "alone")
        }
        assert told == {
            "held_out": bool(held_out),
            "without": bool(without),
            "alone": bool(held_out),
        }


def test_a_site_of_secure_sums_alone_shows_held_out_samples_only():
    parts = parts_of(3)
    run = federate(options(linear=0), named(parts))
    saved = run.federation("first")
    later = options(spec=saved.run_spec.specs, federation=saved, purpose="evaluate")
    sites = sites_of(federate(later, named(parts, secure=True, evaluates=True)))
    for index in range(3):
        site = sites[f"site-{index}"]
        assert site["held_out"] == sites_of(run)[f"site-{index}"]["held_out"]
        assert site["without"] is None
        assert site["alone"] is None


def test_secure_sums_tell_the_figures_of_all_sites_together():
    given = {"spec": PLAN, "classes": (0, 1)}
    few = secretly(given, parts_of(4), bound=128)
    assert few.state.results["evaluation"].sites[0]["without"]["rows"] == 4 * 128
    parts = [
        {name: rows[: 28 if "test" in name else 100] for name, rows in part.items()}
        for part in parts_of(4)
    ]
    clear = federate(options(), named(parts))
    assert clear.model.model_.linear is not None
    run = secretly(given, parts, bound=128)
    assert run.model.model_.sha256() == clear.model.model_.sha256()
    results = [done.state.results["evaluation"] for done in (run, clear)]
    secret, open_ = (result.figures["figures"] for result in results)
    for figure in ("overall", "classes"):
        assert secret[figure] == open_[figure]
    (site,) = results[0].sites
    sites = sites_of(clear).values()
    for name in ("held_out", "without", "alone"):
        for figure in ("rows", "events"):
            assert site[name][figure] == sum(own[name][figure] for own in sites)
    paired = np.sum([own["alone"]["paired"] for own in sites], axis=0)
    assert site["alone"]["paired"] == paired.tolist()


def test_a_sum_compares_models_on_the_same_samples_alone():
    parts = parts_of(4)
    is_none = parts[0]["y"] == 0
    parts[0] |= {"X": parts[0]["X"][is_none], "y": parts[0]["y"][is_none]}
    run = secretly({"spec": PLAN, "classes": (0, 1)}, parts, bound=256)
    (site,) = run.state.results["evaluation"].sites
    assert site["alone"]["rows"] == site["held_out"]["rows"] - len(parts[0]["X_test"])
    assert site["alone"]["federation_auroc"] is None


def test_a_sum_without_figures_has_their_reasons():
    parts = [
        {name: values[: 9 if "test" in name else 24] for name, values in part.items()}
        for part in parts_of(3)
    ]
    run = secretly({"spec": PLAN, "classes": (0, 1)}, parts, bound=64)
    (site,) = run.state.results["evaluation"].sites
    assert site["without"] is None
    assert "linear part" in site["reasons"]["without"]


def test_a_private_site_takes_out_the_counts_it_sent_and_tries_held_out_samples(
    tmp_path,
):
    spec = HashPlan(6, 2, len(X), hash_dim=256).specs(None)[0]
    mechanism = GaussianCounts(1.0, 1e-5, hash_nnz=spec.hash_nnz, n_classes=2)
    parts = parts_of(3)
    parties = [
        Party(
            Samples(*part.values()),
            PartyOptions(
                name=f"site-{index}",
                evaluates=True,
                min_examples=1,
                budget=Budget(tmp_path / str(index), Policy(1.0, 1e-5)),
            ),
        )
        for index, part in enumerate(parts)
    ]
    given = options(spec=spec, mechanism=mechanism, fraction_evaluate=1.0)
    run = federate(given, parties)
    for index, site in sites_of(run).items():
        assert site["without"]["rows"] == site["held_out"]["rows"], index
        assert site["alone"] is None


def test_another_class_as_the_event_mirrors_the_figures():
    parts = parts_of(3)
    first, second = (
        sites_of(federate(options(linear=0, event=event), named(parts)))["site-1"]
        for event in (0, 1)
    )
    for name in ("held_out", "without", "alone"):
        assert first[name]["rows"] == second[name]["rows"]
        total = first[name]["events"] + second[name]["events"]
        assert total == first[name]["rows"]
        assert first[name]["auroc"] == pytest.approx(second[name]["auroc"], abs=1e-3)


HEART = Path(__file__).parents[3] / "shared" / "data" / "raw"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@pytest.mark.skipif(not HEART.exists(), reason="the files are not here")
def test_a_hospital_that_takes_itself_out_is_as_one_that_never_was_in():
    """Four hospitals; one of them has 8 patients of a class, and so has no say."""
    parts = {}
    for name in HOSPITALS:
        frame = pd.read_csv(HEART / f"heart_{name}.csv")
        y = frame.pop("num").to_numpy(dtype=str)
        test = np.arange(len(y)) % 5 == 0
        parts[name] = {
            "X": frame[~test],
            "y": y[~test],
            "X_test": frame[test],
            "y_test": y[test],
        }
    plan = HashPlan(13, 2, scaling="auto")
    classes = ("'not_present'", "'present'")
    learned = options(spec=plan, classes=classes, learn_schema=True)
    told = sites_of(federate(learned, named([*parts.values()])))
    for index, name in enumerate(HOSPITALS):
        others = [part for other, part in parts.items() if other != name]
        model = federate(learned, named(others)).model
        own = parts[name]
        p = model.predict_proba(pd.concat([own["X"], own["X_test"]]))[:, 1]
        again = roc_auc_score(np.r_[own["y"], own["y_test"]] == classes[1], p)
        room = 0.03
        if name == "switzerland":
            room = 0.06
        without = told[f"site-{index}"]["without"]["auroc"][0]
        assert without == pytest.approx(again, abs=room)


def test_a_member_whose_rows_are_all_tried_does_not_validate_the_model():
    """Its counts are in the sum still."""
    parts = parts_of(4)
    run = federate(options(), named(parts))
    first = parts[0]
    tried = {
        "X": X[:0],
        "y": Y[:0],
        "X_test": np.concatenate([first["X_test"], first["X"]]),
        "y_test": np.concatenate([first["y_test"], first["y"]]),
    }
    site = evaluated_later(run, [tried, *parts[1:]])["site-0"]
    assert site["without"] is None
    assert not site["is_validation"]
    assert site["reasons"].keys() == {"without", "alone"}
    assert "test-fraction" not in site["reasons"]["without"]


def test_a_member_is_known_by_its_counts_under_another_node():
    parts = parts_of(3)
    run = federate(options(linear=0), named(parts))
    saved = run.federation("first")
    given = {"spec": saved.run_spec.specs, "federation": saved, "linear": 0}
    parties = named(parts)[::-1]
    again = federate(options(**given, purpose="evaluate"), parties)
    assert sites_of(again) == sites_of(run)


def test_a_site_that_was_counted_twice_is_not_without_its_counts():
    parts = parts_of(4)
    sites = sites_of(federate(options(), named([parts[0], *parts])))
    for name in ("site-0", "site-1"):
        assert sites[name]["without"] is None
    assert sites["site-2"]["without"] is not None


@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_a_model_that_fails_costs_no_other_figures(error, monkeypatch):
    parts = parts_of(3)
    whole = sites_of(federate(options(), named(parts)))

    def fails(*_: Any) -> Any:
        raise error("for a reason")

    monkeypatch.setattr(SiteClassifier, "probabilities", fails)
    sites = sites_of(federate(options(), named(parts)))
    for name, site in sites.items():
        assert site["alone"] is None
        assert site["held_out"] == whole[name]["held_out"]
        assert site["without"] == whole[name]["without"]


def test_a_site_makes_no_model_alone_beyond_its_memory_limit():
    parts = parts_of(3)
    limited = named(parts, memory_limit=2**23)
    sites = sites_of(federate(options(linear=0), limited))
    whole = sites_of(federate(options(linear=0), named(parts)))
    for name, site in sites.items():
        assert site["alone"] is None
        assert site["without"] == whole[name]["without"]


def test_training_samples_below_the_floor_are_not_tried():
    first, *others = parts_of(4)
    few = {name: rows[:3] for name, rows in first.items() if "test" not in name}
    run = federate(options(linear=0), named([first | few, *others], min_examples=5))
    site = sites_of(run)["site-0"]
    assert site["without"]["rows"] == site["held_out"]["rows"]


def test_observed_and_expected_events_are_of_the_same_sites():
    """A site with fewer events than its floor has a part in neither."""
    first, *others = parts_of(4)
    is_event = first["y_test"] == 1
    rare = np.flatnonzero(~is_event).tolist() + np.flatnonzero(is_event)[:2].tolist()
    few = {name: first[name][rare] for name in ("X_test", "y_test")}
    parties = named([first | few, *others], min_examples=5)
    run = federate(options(linear=0, event=1), parties)
    overall = run.state.results["evaluation"].figures["figures"]["overall"]
    p = [run.model.predict_proba(part["X_test"])[:, 1].sum() for part in others]
    n_events = sum(int((part["y_test"] == 1).sum()) for part in others)
    ratio = overall["observed_expected"][0]
    assert ratio == pytest.approx(n_events / sum(p), rel=1e-4)
