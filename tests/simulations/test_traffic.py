"""`python -m simulations traffic`: every byte in its tables is one that was sent."""

from __future__ import annotations

import numpy as np
import pytest

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.federated import codec
from simulations import __main__ as command
from simulations import traffic
from simulations.gradients import Recipe
from simulations.splits import Parts, Samples, deal_out
from simulations.splits import read as read_set
from simulations.study import Cells
from simulations.traffic import Plan
from tests.simulations.tables import read

PLAN = Plan(rounds=3, seeds=(0, 1), largest=400)


# ---- the tables


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run, what it printed, and its cells' rows."""
    pytest.importorskip("flwr_datasets")
    out = tmp_path_factory.mktemp("traffic")
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
        patch.setattr(traffic, "QUICK", PLAN)
        patch.setattr(traffic, "RATES", (0.1, 1.0))
        assert command.main(["traffic", "--quick", "--out", str(out)]) == 0
    return out, "\n".join(lines)


def test_sizes_of_parties_are_those_of_their_packed_counts(finished):
    rows = read(finished[0] / "sizes.csv")
    assert [row["points"] for row in rows] == ["50", "180", "600"]
    data, spec = load_dataset("digits"), traffic.PAPER_SHAPES[0].spec
    order = np.random.default_rng(0).permutation(len(data.y))
    for row in rows:
        assert row["set"] == "Digits"
        mine = order[: int(row["points"])]
        counts = ClassCounts.from_data(FlyHash(spec), data.X[mine], data.y[mine], 10)
        assert int(row["packed"]) == codec.encode(counts)[1].nbytes
        share = np.unique(counts.array, return_counts=True)[1] / counts.array.size
        assert int(row["entropy"]) == round(-(share * np.log2(share)).sum() * counts.array.size / 8)
        assert (row["dense, narrow"], row["dense, int64"]) == ("163840", "1310720")
        assert row["on target"] == "True"
        assert int(row["bits, packed"]) < int(row["packed"])
        assert all(float(row[name]) > 0 for name in ("pack ms", "unpack ms", "hashing ms"))


def test_federations_tell_bytes_and_rounds(finished):
    rows = read(finished[0] / "federations.csv")
    assert [(row["seed"], row["method"]) for row in rows] == [
        (seed, method) for seed in "01" for method in ("FlyNN", "FedAvg LR", "FedAvg MLP")
    ]
    floats = {"FedAvg LR": (64 * 10, 10), "FedAvg MLP": (64 * 64, 64, 64 * 10, 10)}
    for row in rows:
        assert (row["set"], row["points"], row["parties"]) == ("digits", "400", "10")
        assert 0.2 < float(row["accuracy"]) <= 1
        if row["method"] == "FlyNN":
            assert int(row["counts up"]) <= int(row["up"]) < 20_000
            continue
        n_rounds = int(row["rounds"])
        assert 1 <= n_rounds <= 3
        a_model = sum(4 * n + 128 for n in floats[row["method"]])  # 128: the header of numpy.save
        assert (int(row["up"]), int(row["down"])) == (n_rounds * a_model, (n_rounds + 1) * a_model)


def test_flynn_is_that_of_the_pooled_points(finished):
    parts = deal_out(read_set("digits", 400), traffic.SPLIT, 10, seed=0)
    assert len(parts.shares) == 10
    assert sum(len(part.y) + len(part.y_test) for part in parts.shares) == 400
    row = traffic.flynn(parts)
    first = read(finished[0] / "federations.csv")[0]
    assert (str(row["accuracy"]), str(row["up"]), str(row["down"])) == (first["accuracy"], first["up"], first["down"])
    hasher = FlyHash(HashSpec.suggest(64, len(parts.pooled.y), 10))
    sent = [
        sum(map(len, codec.write_tensors(codec.encode(ClassCounts.from_data(hasher, part.X, part.y, 10)))))
        for part in parts.shares
    ]
    # What stands beside the arrays is the party's name.
    assert np.mean(sent) < row["counts up"] < np.mean(sent) + 100


def test_the_files_are_named_and_the_figure_is_there(finished):
    folder, printed = finished
    for name in ("sizes.csv", "federations.csv", "traffic.png", "summary.md"):
        assert f"written: {(folder / name).resolve()}" in printed
    assert (folder / "traffic.png").stat().st_size > 20_000
    assert "FedAvg MLP" in printed


def test_a_second_run_computes_nothing(finished, monkeypatch):
    monkeypatch.setattr(traffic, "QUICK", PLAN)
    monkeypatch.setattr(traffic, "RATES", (0.1, 1.0))
    for name in ("flynn", "by_averaging"):
        monkeypatch.setattr(traffic, name, lambda *args: pytest.fail("computed again"))
    before = (finished[0] / "federations.csv").read_bytes()
    rows = list(traffic.federations("digits", PLAN, Cells(finished[0] / "cells")))
    assert [row["method"] for row in rows] == ["FlyNN", "FedAvg LR", "FedAvg MLP"] * 2
    assert (finished[0] / "federations.csv").read_bytes() == before


def separated(n=300):
    """Parties of three clusters far apart, of one class each."""
    y = np.arange(n) % 3
    X = 9 * np.eye(3, 5)[y] + np.random.default_rng(0).normal(size=(n, 5))
    shares = [Samples(*(part for k in (1, 0) for part in (X[y == c][k::2], y[y == c][k::2]))) for c in range(3)]
    return Parts(shares, 3)


def test_averaging_ends_when_it_is_as_accurate():
    parts, recipe = separated(), Recipe(0.1, 1)
    row = traffic.by_averaging(parts, "LR", recipe, 0.9, 50, 0)
    assert row["reached"]
    assert row["accuracy"] == row["curve"][-1] >= 0.9
    assert all(accuracy < 0.9 for accuracy in row["curve"][:-1])
    assert row["rounds"] == len(row["curve"]) < 50
    never = traffic.by_averaging(parts, "LR", recipe, 1.1, 4, 0)
    assert not never["reached"]
    assert (never["rounds"], never["accuracy"]) == (4, max(never["curve"]))


def test_the_best_recipe_is_the_one_that_needs_fewest_rounds():
    def row(reached, rounds, accuracy):
        return {"reached": reached, "rounds": rounds, "accuracy": accuracy}

    slow, quick, never, worse = row(True, 9, 0.99), row(True, 3, 0.91), row(False, 10, 0.9), row(False, 10, 0.5)
    assert traffic.best_of([never, slow, quick, worse]) is quick
    assert traffic.best_of([worse, never]) is never


def test_the_summary_says_what_was_not_reached():
    common = {"set": "a", "method": "FedAvg LR", "up": 1000, "down": 2000, "accuracy": 0.5, "most": 7}
    recipe = {"rate": 0.1, "epochs": 5, "batch": 32}
    rows = [common | {"seed": i, "reached": i < 1, "rounds": (3, 7)[i], "recipe": recipe} for i in range(2)]
    (mixed,) = traffic.in_short(rows)
    assert mixed["rounds"] == "3 in 1 of 2 seeds, else not reached in 7"
    assert (mixed["kB up"], mixed["recipes"]) == ("1.0", "rate 0.1, epochs 5")
    assert traffic.in_short(rows[:1])[0]["rounds"] == "3"
    assert traffic.in_short(rows[1:])[0]["rounds"] == "not reached in 7"


def test_sets_without_a_file_are_left_out(tmp_path):
    assert list(traffic.party_rows(traffic.PAPER_SHAPES[2], tmp_path, 100)) == []
    letters = traffic.PAPER_SHAPES[1]
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "letters.npz", X=generator.integers(0, 16, (90, 16), np.uint8), y=np.arange(90) % 26)
    assert [row["points"] for row in traffic.party_rows(letters, tmp_path, 60000)] == [50, 90]
    with pytest.raises(SystemExit):
        command.main(["traffic", "--data", str(tmp_path / "nowhere")])
