"""`python -m simulations scaling` in miniature."""

from __future__ import annotations

import numpy as np
import pytest

from flwr_flynn import ClassCounts, FlyHash
from simulations import __main__ as command
from simulations.bench import SHAPES
from simulations.paper import scaling
from simulations.paper.scaling import PARTIES, PATH, PRINTED, SIZES
from tests.simulations.tables import read, run_again, shown

DIGITS = SHAPES[0]


@pytest.mark.slow
def test_a_run_writes_a_row_for_each_number_of_parties_and_keeps_its_cells(tmp_path):
    arguments = [
        "scaling",
        "--quick",
        "--no-wall",
        "--sets",
        "Digits",
        "--examples",
        "80",
    ]
    assert command.main([*arguments, "--out", str(tmp_path)]) == 0
    table = read(tmp_path / "scaling.csv")
    rows = [row for row in table if row["measured"] == PATH]
    assert [int(row["parties"]) for row in rows] == list(PARTIES)
    assert len(table) == 2 * len(rows)  # and the paper's
    assert all(float(row["seconds"]) > 0 and int(row["bytes up"]) > 0 for row in rows)
    assert len({row["sha256"] for row in rows}) == 1
    text = shown(tmp_path, "scaling")
    for part in (
        "3.63 s (1.00)",
        "| critical path |",
        "All federations of a set led to the same counts",
    ):
        assert part in text
    run_again(arguments, tmp_path, (scaling, "timed"))


def test_the_critical_path_is_the_slowest_party_and_what_comes_after_them():
    assert scaling.critical_path(10.0, [2.0, 5.0, 1.0]) == 5.0 + 2.0
    X, y, source = scaling.data(DIGITS, None, scaling.Plan(60, 1))
    asked = scaling.parties(X, y, 2)
    seconds, done = scaling.timed(DIGITS, asked, "process")
    assert max(party.cpu_seconds for party in asked) <= seconds
    assert source == "bundled"
    assert done.model.counts_ == ClassCounts.from_data(FlyHash(DIGITS.spec), X, y, 10)


def test_the_papers_speed_ups_are_those_of_its_times():
    lines = scaling.speed_ups(scaling.printed(list(SIZES)), scaling.PAPER)
    assert list(lines) == list(SIZES) == list(PRINTED)
    # Of the shapes, these are the paper's.
    assert list(SIZES) == [
        shape.name for shape in SHAPES if not shape.name.endswith("k")
    ]
    assert lines["MNIST"][16] == pytest.approx(8.39, abs=0.05)  # as printed
    assert lines["Digits"][2] == pytest.approx(1.11, abs=0.01)


def test_stand_ins_are_repeated_to_their_full_size():
    X, y, source = scaling.data(SHAPES[1], None, scaling.Plan(5000, 1))
    assert (source, X.shape, len(y)) == ("stand-in", (5000, 16), 5000)
    np.testing.assert_array_equal(X[:100], X[2000:2100])
