"""What `flwr run` starts at the server, without the processes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from flwr_flynn import server_app
from flwr_flynn.config import RunConfig
from flwr_flynn.errors import AggregationError, ConfigError

REPORT: dict[str, Any] = {
    "parties": [{"name": "a", "examples": 3, "bytes": 900}, {"name": "b", "examples": 4, "bytes": 2_100_000}],
    "missing": {"c": "no reply"},
    "examples": 7,
    "evaluation": None,
    "sha256": {"federated": "12ab"},
}


def test_errors_of_ours_are_logged_in_one_line_and_others_whole() -> None:
    def record(error: Exception) -> logging.LogRecord:
        exc_info = (type(error), error, None)
        made = logging.LogRecord("flwr", logging.ERROR, "", 0, "%s raised an exception", ("ServerApp",), exc_info)
        assert server_app._one_line(made)
        return made

    ours, other = record(AggregationError("1 of 2 parties counted")), record(ZeroDivisionError("x"))
    assert (ours.getMessage(), ours.exc_info) == ("AggregationError: 1 of 2 parties counted", None)
    assert other.getMessage() == "ServerApp raised an exception"
    assert other.exc_info


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.json"
    server_app._write(path, "old")

    def fails(_: int) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fails)
        with pytest.raises(OSError, match="disk full"):
            server_app._write(path, "new")
    assert path.read_text() == "old"
    server_app._write(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.json"]


def test_the_output_folder_is_made_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert server_app._output_folder(RunConfig(), 7) == tmp_path / "flynn" / "7"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="run-config output-dir: expected a folder that can be written to"):
        server_app._output_folder(RunConfig(output_dir=str(tmp_path / "file" / "x")), 7)


def test_the_table_of_a_deployment_names_who_is_missing(tmp_path: Path) -> None:
    table = server_app._table(REPORT, tmp_path)
    rows = [line.split() for line in table.splitlines() if line]
    assert ["parties", "counted", "2", "of", "3"] in rows
    assert ["not", "counted:", "c", "no", "reply"] in rows
    assert "1.1 MB on average, 2.1 MB at most" in table
    assert "equal" not in table
    assert table.splitlines()[-1].endswith(str(tmp_path))


def test_the_table_says_loudly_when_the_counts_differ(tmp_path: Path) -> None:
    simulation = {"parties": 3, "points": 9, "handed_out": 8, "empty_parties": 1}
    sha = {"federated": "12ab", "pooled": "34cd", "equal": False}
    table = server_app._table(REPORT | {"simulation": simulation, "sha256": sha}, tmp_path)
    assert "8 of 9" in table
    assert "  equal" in table
    assert "NO" in table


@pytest.mark.parametrize("key", ["n-features", "classes", "min-available"])
def test_a_deployment_must_say_what_its_server_cannot_see(key: str) -> None:
    given = {"n-features": 4, "classes": "a,b", "min-available": 2}
    del given[key]
    with pytest.raises(ConfigError, match=f"^run-config {key}: "):
        server_app._what_to_train(RunConfig.parse(given), None)


def test_sizes_of_a_simulation_do_not_depend_on_the_split() -> None:
    pytest.importorskip("flwr_datasets")
    one = server_app._what_to_train(RunConfig(), 2)
    assert one == server_app._what_to_train(RunConfig(partitioner="shard"), 10)
    assert one[1] == list(range(10))
    with pytest.raises(ConfigError, match="min-parties: expected at most the simulation's 2 SuperNodes, got 3"):
        server_app._what_to_train(RunConfig(min_parties=3), 2)
