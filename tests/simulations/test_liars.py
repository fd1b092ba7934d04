"""`python -m simulations liars`: lies are as its page says, and its figures are those of runs with these parties."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from scipy.special import log_softmax

from flwr_flynn import HashPlan
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.groups import GroupedCounts
from flwr_flynn.federated.options import RunOptions
from simulations import __main__ as command
from simulations import liars
from simulations.liars import CLAIMERS, FLIPPERS, HIDERS, INVENTORS, KINDS, METHODS, TWO_ORDERS, Plan, task_of
from simulations.splits import read
from tests.docs.pages import text_of

PLAN = Plan(
    ("IID",), (0.2,), parties=6, largest=300, rounds=1, rates=(0.1,),
    gram=32, pair_splits=("IID",), pair_shares=(0.2,), pair_seeds=(0,),
)  # fmt: skip


@pytest.fixture
def task():
    pytest.importorskip("flwr_datasets")
    return task_of(read("digits", 300), "IID", PLAN, 0)


def test_the_server_s_samples_are_no_party_s(task):
    own = {row.tobytes() for row in task.trusted[0]}
    assert np.bincount(task.trusted[1]).tolist() == [5] * 10
    parties = task.parts.pooled
    assert len(parties.y) + len(parties.y_test) == 250
    assert not own & {row.tobytes() for row in np.concatenate([parties.X, parties.X_test])}


def test_liars_of_more_parties_are_the_same_and_more(task):
    assert task.liars(0) == frozenset()
    assert task.liars(0.2) < task.liars(0.4)
    assert len(task.liars(0.5)) == 3


@pytest.mark.parametrize("cap", [None, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_a_liar_claims_what_the_page_says(task, kind, cap):
    honest = liars.honest_parties(task)
    (liar,) = task.liars(0.2)
    parties = liars.lying_parties(task, honest, frozenset({liar}), kind, cap)
    assert [a is b for a, b in zip(parties, honest, strict=True)] == [i != liar for i in range(6)]
    share, found = task.parts.shares[liar], parties[liar]
    n = len(share.y)
    assert len(found.y) == {FLIPPERS: n, HIDERS: n}.get(kind, 10 * n if cap is None else cap)
    for row, label in zip(found.X, found.y, strict=True):
        (true,) = {int(y) for x, y in zip(share.X, share.y, strict=True) if (x == row).all()}
        wrong = (true + 1) % 10
        expected = {FLIPPERS: wrong, INVENTORS: wrong, CLAIMERS: 0, HIDERS: 2 if true == 1 else true}
        assert label == expected[kind]


def test_the_median_is_numpy_s_of_the_models_of_the_groups(task):
    run = liars.summed(task, liars.honest_parties(task), 4)
    total = run.state.results["counts"]
    assert isinstance(total, GroupedCounts)
    X = task.parts.pooled.X_test
    tables = []
    for counts in total.groups.values():
        (part,) = counts.parts
        model = liars.FlyNNClassifier.from_counts(run.state.run_spec.spec, part, range(10)).model_
        table = log_softmax(model.log_odds(model.scores(X)) / model.temperature, axis=1)
        table[:, part.n_per_class == 0] = np.nan
        tables.append(table)
    with np.errstate(all="ignore"):
        expected = np.nanmedian(tables, axis=0)
    found = liars.median_scores(run, X)
    assert np.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("kind", [pytest.param(FLIPPERS, marks=pytest.mark.slow), INVENTORS])
def test_the_gram_matrix_is_measured_with_a_cap_and_without_one(task, kind):
    rows = liars.by_gram(task, kind, 0.2, PLAN)
    assert [row["method"] for row in rows] == list(TWO_ORDERS)
    (liar,) = task.liars(0.2)
    for n_rows, cap, row in zip((0, 0, 32, 32), (None, task.cap) * 2, rows, strict=True):
        lying = liars.lying_parties(task, liars.honest_parties(task), frozenset({liar}), kind, cap)
        parties = [party_of(each.X, each.y, name=each.name, gram=True) for each in lying]
        plan = HashPlan(64, 10, task.plan.n_examples, "auto")
        run = federate(RunOptions(plan, range(10), 6, gram=n_rows), parties)
        assert (run.model.model_.gram is not None) is bool(n_rows)
        predicted = run.model.predict(task.parts.pooled.X_test)
        assert row["accuracy"] == float((predicted == task.parts.pooled.y_test).mean())


def test_the_guide_states_the_figures_of_the_page_for_the_gram_matrix():
    page = text_of("docs/results/liars.md")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    start = next(i for i, line in enumerate(lines) if line == ["kind", "share", *TWO_ORDERS])
    table = {(line[0], float(line[1])): dict(zip(TWO_ORDERS, line[2:], strict=True)) for line in lines[start + 2 :][:5]}
    assert set(table) == {("none", 0.0), *((kind, share) for kind in (FLIPPERS, INVENTORS) for share in (0.2, 0.4))}
    cases = [(("none", 0.0), ""), ((FLIPPERS, 0.2), ""), ((INVENTORS, 0.2), ""), ((INVENTORS, 0.2), " cap")]
    told = [table[case][f"{method}{cap}"] for case, cap in cases for method in (liars.COUNTS, liars.GRAM)]
    text = text_of("docs/how_to/liars.md")
    assert "results/liars.md" in text
    assert [figure for figure in told if figure.removeprefix("0") not in text] == []
    for guide in ("docs/how_to/gram.md", "docs/explanation/threat_model.md"):
        assert "liars.md#gram-matrix-and-liars" in text_of(guide), guide


@pytest.mark.slow
def test_figures_are_those_of_runs_and_are_computed_once(tmp_path, monkeypatch, task):
    monkeypatch.setattr(liars, "QUICK", PLAN)
    for work in ("by_gradients", "by_counts", "by_gram"):
        command.main(["liars", "--quick", "--sets", "digits", "--out", str(tmp_path)])
        monkeypatch.setattr(liars, work, divmod)  # what was finished is not computed again
    with (tmp_path / "liars.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {*METHODS, *TWO_ORDERS}
    assert {(row["kind"], row["share"]) for row in rows} == {("none", "0.0")} | {(kind, "0.2") for kind in KINDS}
    assert {row["kind"] for row in rows if row["method"] in TWO_ORDERS} == {"none", FLIPPERS, INVENTORS}
    for figure in ("liars.png", "gram.png"):
        assert (tmp_path / figure).stat().st_size > 0
        assert f"]({figure})" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    parties = [party_of(s.X, (s.y + 1) % 10 if i in task.liars(0.2) else s.y) for i, s in enumerate(task.parts.shares)]
    run = federate(RunOptions(task.plan, range(10), 6, fraction_evaluate=0.0), parties)
    (row,) = [row for row in rows if (row["kind"], row["method"]) == (FLIPPERS, liars.SUM)]
    assert float(row["accuracy"]) == task.score(run.model.predict(task.parts.pooled.X_test))["accuracy"]
