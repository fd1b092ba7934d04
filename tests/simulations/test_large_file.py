"""The experiment on a file larger than memory, with a small one."""

from __future__ import annotations

import pytest

from simulations import __main__ as command
from simulations import large_file
from tests.simulations.tables import read


def test_the_file_has_the_rows_that_it_should(tmp_path, monkeypatch):
    monkeypatch.setattr(large_file, "_BLOCK", 300)
    large_file.write_file(tmp_path / "large.csv", 700)
    lines = (tmp_path / "large.csv").read_text().splitlines()
    assert len(lines) == 701
    assert {line.count(";") for line in lines} == {9}


def test_the_experiment_writes_its_files(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(large_file, "_BLOCK", 300)
    arguments = ["large_file", "--rows", "400", "700", "--out", str(tmp_path), "--folder", str(tmp_path)]
    assert command.main(arguments) == 0
    rows = read(tmp_path / "large_file.csv")
    assert [row["rows"] for row in rows] == ["400", "700"]
    assert all(float(row["own memory at most, MiB"]) > 0 for row in rows)
    assert not list(tmp_path.glob("*/large.csv"))
    assert (tmp_path / "summary.md").exists()
