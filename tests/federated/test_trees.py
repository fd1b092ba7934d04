"""Trees of a run: pooled on any split, with consent alone, level by level, never forged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import ConfigError, ModelFileError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions
from flwr_flynn.federated.phase import TREES
from flwr_flynn.federated.run import Run
from flwr_flynn.model import model_file
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.forest import LEAF, Forest
from tests.federated.hostile import integers, plus
from tests.federated.runs import (
    DUE,
    Exchange,
    digest,
    in_process,
    refusal,
    saved_of,
)
from tests.federated.secure_runs import secretly
from tests.federated.test_run_laws import nobody
from tests.model.test_forest import circles
from tests.raising import raises

N = 480
X, Y = circles(11, N)
PLAN = HashPlan(8, 2, N, "auto", hash_dim=64)
OPTIONS = {"spec": PLAN, "classes": (0, 1), "min_parties": 1, "trees": 8}
POOLED = FlyNNClassifier(hash_dim=64, trees=8).fit(X, Y)
ORDER = np.random.default_rng(4).permutation(N)
QUARTERS = np.split(ORDER, 4)


def samples(rows):
    return {"X": X[rows], "y": Y[rows], "X_test": X[rows], "y_test": Y[rows]}


def parties_of(rows=QUARTERS, n_consents=4):
    """Parties by their node ids, of which the first ones let their products leave."""
    return {
        str(n): party_with(own, products=n < n_consents) for n, own in enumerate(rows)
    }


def party_with(rows, y=Y, **changes):
    options = {"min_examples": 1, "products": True, **changes}
    return party_of(X[rows], y[rows], X[rows], y[rows], **options)


def go(parties, before=None, **changes):
    """A run that has not begun, of a plan or from a file."""
    options = OPTIONS | changes
    if before is not None:
        options |= {"spec": before.run_spec.specs, "federation": before}
    return Exchange(Run(RunOptions(**options)), parties)


def test_the_pooled_model_has_trees():
    assert POOLED.model_.forest.calibration.share > 0


@pytest.mark.parametrize(
    "cuts", [(120, 180, 340), (0, 1, 4), range(17, N, 17)], ids=str
)
def test_of_any_split_the_model_is_the_pooled_one(cuts):
    parts = list(map(samples, np.split(ORDER, cuts)))
    for run in (in_process(OPTIONS, parts), secretly(OPTIONS, parts, bound=512)):
        assert digest(run) == POOLED.model_.sha256()


def test_phases_that_the_forest_does_not_need_are_left_out():
    exchange = go(parties_of())
    run = exchange.rounds()
    asked = [name for name, _ in exchange.asked]
    levels = [name for name in asked if name.startswith("trees")]
    assert levels == list(TREES[: len(levels)])
    assert len(levels) < len(TREES)
    assert asked[-2:] == ["forest", "evaluation"]
    assert run.due is None


def test_where_no_level_helps_there_is_no_forest_and_no_phase_for_it():
    by_chance = np.random.default_rng(1).permutation(Y)
    parties = {str(n): party_with(own, by_chance) for n, own in enumerate(QUARTERS)}
    exchange = go(parties)
    assert exchange.rounds().model.model_.forest is None
    assert "forest" not in dict(exchange.asked)


@pytest.mark.parametrize("phase", ["trees 1", "trees 3", "forest", "evaluation", ""])
def test_a_saved_run_keeps_the_growth_and_goes_on(phase, tmp_path):
    stopped = go(parties_of()).until(phase)
    saved = saved_of(stopped.run, tmp_path / "f.npz")
    assert (saved.growth is None) == (phase in ("trees 1", ""))
    resumed = go(parties_of(), saved, purpose="resume").rounds(30)
    assert digest(resumed) == POOLED.model_.sha256()


@pytest.mark.parametrize("purpose", ["join", "withdraw"])
def test_a_change_of_the_counts_grows_the_trees_anew(purpose):
    first = parties_of()
    there = parties_of()
    if purpose == "join":
        first = parties_of(QUARTERS[:3])
    else:
        there["3"] = party_with(QUARTERS[3], leaves=True)
    before = go(first).rounds().federation("1")
    run = go(there, before, purpose=purpose).rounds()
    left = parties_of()
    if purpose == "withdraw":
        del left["3"]
    anew = go(left, nobody(before), purpose="join").rounds()
    assert "trees 1" in run.state.results
    assert digest(run) == digest(anew)


# ---- who takes part


def test_without_consent_no_level_leaves_and_the_model_is_that_without_trees():
    run = go(parties_of(n_consents=0)).rounds()
    none = go(parties_of(n_consents=0), trees=0).rounds()
    assert digest(run) == digest(none)
    assert set(run.state.missing["trees 1"]) == {f"node {n}" for n in range(4)}


def test_who_misses_a_level_is_out_of_the_next_ones():
    exchange = go(parties_of())
    exchange.until("trees 2").lost.add("2")
    exchange.step(DUE)
    exchange.lost.clear()
    exchange.rounds()
    by_phase = dict(exchange.asked)
    assert by_phase["trees 2"] == ["0", "1", "2", "3"]
    assert by_phase["trees 3"] == ["0", "1", "3"]
    assert by_phase["forest"] == ["0", "1", "2", "3"]
    (reason,) = exchange.run.state.missing["trees 3"].values()
    assert reason.startswith("not asked")
    assert exchange.run.model.model_.forest is not None


def test_fewer_than_min_parties_end_the_forest():
    exchange = go(parties_of(), min_parties=3).until("trees 3")
    exchange.lost.update(("1", "2"))
    exchange.step(DUE)
    exchange.lost.clear()
    before = exchange.run.state.results["trees 2"]
    after = exchange.run.state.results["trees 3"]
    assert after.is_complete
    assert after.best is before.best
    exchange.rounds()
    assert "trees 4" not in dict(exchange.asked)


@pytest.mark.parametrize("phase", ["calibration", "trees 1", "trees 3", "forest"])
@pytest.mark.parametrize("n_silent", [1, 3, 4])
def test_whoever_is_silent_the_run_ends_with_a_model(phase, n_silent, tmp_path):
    exchange = go(parties_of()).until(phase)
    exchange.lost.update([*"0123"][:n_silent])
    exchange.step(DUE)
    exchange.lost.clear()
    saved = saved_of(exchange.run, tmp_path / "f.npz")
    assert saved.shared.sha256() == digest(exchange.run)
    assert exchange.rounds(30).due is None
    assert exchange.run.federation("1").phase == ""


def test_a_run_that_goes_on_has_the_trees_that_it_began_with(tmp_path):
    stopped = go(parties_of()).until("trees 3")
    saved = saved_of(stopped.run, tmp_path / "f.npz")
    resumed = go(parties_of(), saved, purpose="resume", trees=None).rounds(30)
    assert digest(resumed) == POOLED.model_.sha256()
    assert resumed.federation("1").n_trees == 8


@pytest.mark.parametrize(
    "changes",
    [{"linear": 0}, {"decay": 0.5}, {"spec": PLAN.specs}, {"fraction_evaluate": 0}],
    ids=str,
)
def test_trees_need_a_linear_part(changes):
    if "spec" in changes:
        changes = {"spec": replace(PLAN, scaling=None)}
    with raises(ConfigError, field="trees"):
        RunOptions(**OPTIONS | changes)


# ---- forged replies, hostile requests and files


def all_below(parts):
    """All but two samples below each cut, and none of their gradients."""
    counts, sketches = parts[1:3]
    counts[:, 1:] = np.maximum(counts[:, :1] - 2, 0)
    sketches[:] = 0
    parts[3] += 200
    return parts


def in_every_leaf(index, factor):
    """The largest sum of all samples at every leaf at once."""

    def change(parts):
        n_samples = len(QUARTERS[3])
        parts[index] = 0 * parts[index] + factor * n_samples
        return parts

    return change


FORGED = {
    "gradients of all on two sides of a cut": integers(all_below),
    "gradients of all in every leaf": integers(in_every_leaf(3, 16)),
    "curvatures of all in every leaf": integers(in_every_leaf(4, 4)),
    "samples of all in every node": integers(in_every_leaf(1, 1)),
    "more below a cut than in the node": plus(1, (1, 10**4)),
    "a sketch beyond that of so many": plus(2, (0, 10**6)),
    "a gradient beyond the largest": plus(3, (0, 10**8)),
    "a loss beyond that of its samples": plus(0, (0, 2**34)),
    "a weight of other samples": plus(0, (1, 1)),
    "a curvature beyond the largest": plus(4, (0, 10**8)),
    "a level less": integers(lambda parts: [part[:-1] for part in parts]),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_reply_costs_its_sender_alone(name):
    steps = go(parties_of()).until("trees 2")
    assert steps.spoiled(FORGED[name]).startswith("refused: ")
    assert steps.rounds().model.model_.forest is not None


def asked():
    """A request for the third level."""
    run = go(parties_of()).until("trees 3").run
    return run.ask("train", list("0123")).request


REQUEST = asked()


@pytest.mark.parametrize(
    ("entries", "start"),
    [
        ({"flynn-trees": 5}, "flynn-trees"),
        ({"flynn-trees": 1001}, "flynn-trees"),
        ({"flynn-trees": None}, "flynn-calibration"),
        ({"flynn-calibration": None}, "flynn-calibration"),
        ({"flynn-level": 16}, "flynn-level"),
        ({"flynn-basis": b"junk"}, "flynn-basis"),
    ],
    ids=str,
)
def test_hostile_entries_are_refused_before_samples_are_loaded(entries, start):
    own = Party(lambda _: pytest.fail("loaded"), PartyOptions(products=True))
    assert refusal(REQUEST, own, entries).startswith(start)


@pytest.mark.parametrize("index", range(4))
def test_hostile_arrays_are_refused_before_samples_are_loaded(index):
    own = Party(lambda _: pytest.fail("loaded"), PartyOptions(products=True))
    place = [0, -3, -2, -1][index]
    arrays = REQUEST.arrays()
    for junk in (np.zeros(3, np.uint8), arrays[place][:-1], arrays[place] ^ 255):
        changed = list(arrays)
        changed[place] = junk
        assert refusal(REQUEST, own, {}, changed)


def test_a_forest_beyond_the_memory_of_a_party_is_refused():
    columns = np.repeat([0, 0, 0, 0, LEAF], np.array([1, 2, 4, 8, 16]) * 1000)
    zeros = np.zeros((len(columns), 1), int)
    trees = Forest(REQUEST.trees.basis, 2, 1000, columns, zeros[:, 0], zeros)
    options = PartyOptions(products=True, memory_limit=2**24)
    own = Party(lambda _: pytest.fail("loaded"), options)
    request = replace(REQUEST, trees=trees)
    assert refusal(request, own, {}).startswith("memory: trees of 31000 nodes")


@pytest.mark.parametrize(
    "changes",
    [{"n_trees": 7}, {"level": -1}, {"best_loss": None}, {"more": 1}],
    ids=str,
)
def test_a_file_with_a_growth_that_is_none_is_refused(changes, tmp_path, monkeypatch):
    saved = go(parties_of()).until("trees 4").run.federation("1")
    saved.save(tmp_path / "f.npz")
    assert Federation.load(tmp_path / "f.npz").growth.level == 3

    def write(path, model, extra, further):
        extra["growth"] |= changes
        written(path, model, extra=extra, further=further)

    written = model_file.write
    monkeypatch.setattr(model_file, "write", write)
    saved.save(tmp_path / "f.npz")
    with raises(ModelFileError):
        Federation.load(tmp_path / "f.npz")
