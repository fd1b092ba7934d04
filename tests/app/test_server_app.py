"""The app that `flwr run` starts at the server, without the processes."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.server import Server
from flwr.supercore.task_identity import TaskIdentity

from flwr_flynn import FlyNNClassifier, FlyNNClient, FlyNNStrategy, message
from flwr_flynn.app import failure, server_app
from flwr_flynn.app import report as reports
from flwr_flynn.app.config import RunConfig
from flwr_flynn.app.data import datasets
from flwr_flynn.errors import AggregationError, ConfigError, DataError, FlyNNError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.federation_file import main as show
from flwr_flynn.federated.groups import Grouping
from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.flower.compat import recorddict_compat as compat
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.privacy import mechanism_from_dict
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import CLASSES, SPEC, FakeGrid, Node, Proxy, manager, points
from tests.raising import raises

TOO_MANY = "refused: counts: expected at most 19 examples, got 20"
REPORT: dict[str, Any] = {
    "action": "train",
    "parties": [{"name": "a", "examples": 3, "bytes": 900}, {"name": "b", "examples": 4, "bytes": 2_100_000}],
    "missing": {"c": "no reply"},
    "examples": 7,
    "privacy": None,
    "evaluates": True,
    "evaluation": None,
    "evaluation_missing": {},
    "unkept": {},
    "evaluation_trouble": [],
    "columns": None,
    "selection": None,
    "refinement": None,
    "gram": None,
    "alignment": None,
    "groups": None,
    "specs": [],
    "members": [],
    "traffic": {},
    "sha256": {"federated": "12ab"},
}


@pytest.fixture(autouse=True)
def a_logger_without_the_app_s_filter() -> Iterator[None]:
    """Undo the app's filters of Flower's logger, which end with the process of the app, at the end of a test."""
    flower = logging.getLogger("flwr")
    before = list(flower.filters)
    yield
    flower.filters[:] = before


EXIT_PAGE = "Exit Code: 700\n\nAn unhandled exception occurred.\n\nFor more information, visit: <https://x>"


def streamed(
    settings: dict[str, Any], grid: Any, error: type[Exception], capfd: pytest.CaptureFixture[str]
) -> list[str]:
    """The lines of a failed run: those of the app, then those that Flower's process logs about it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s :      %(message)s"))
    flower = logging.getLogger("flwr")
    flower.addHandler(handler)
    try:
        with pytest.raises(error) as raised:
            server_app.main(grid, Context(7, 0, {}, RecordDict(), settings))
        told = capfd.readouterr().out
        flower.log(logging.ERROR, "%s raised an exception", "Simulation", exc_info=raised.value)
        flower.log(logging.ERROR, EXIT_PAGE)
    finally:
        flower.removeHandler(handler)
    return [line for line in (told + stream.getvalue()).splitlines() if line]


def test_a_wrong_setting_is_told_at_once_and_in_the_last_line(capfd: pytest.CaptureFixture[str]) -> None:
    line = "FAILED: ConfigError: run-config alpha: expected a number above 0, got -1.0"
    found = streamed({"alpha": -1.0}, FakeGrid([]), ConfigError, capfd)
    assert found == [line, "ERROR :      Exit Code: 700", line]


def test_an_unexpected_error_is_told_in_one_line_and_keeps_its_traceback(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(server_app, "_run", broken)
    found = streamed({"output-dir": str(tmp_path)}, FakeGrid([]), ZeroDivisionError, capfd)
    assert found[0] == found[-1] == "FAILED: ZeroDivisionError: two lines"
    assert "ERROR :      Simulation raised an exception" in found
    assert any(line.startswith("Traceback") for line in found)
    assert "For more information, visit: <https://x>" in found


def test_later_lines_of_a_failed_run_stay_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    streamed({"alpha": -1.0}, FakeGrid([]), ConfigError, capfd)
    record = logging.LogRecord("flwr", logging.INFO, "", 0, "a line of %s", ("another",), None)
    assert logging.getLogger("flwr").filter(record)
    assert record.getMessage() == "a line of another"


@pytest.mark.parametrize("more", [{}, {"groups": 2, "scaling": "none"}])
def test_data_that_cannot_be_used_are_told_before_parties_are_waited_for(
    more: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def waits(_: Any) -> None:
        raise AssertionError("waited for the parties")

    text = tmp_path / "text.csv"
    text.write_text("a,town,label\n" + 9 * "1,Basel,0\n2,Bern,1\n")
    settings: dict[str, Any] = {"dataset": str(text), "output-dir": str(tmp_path)}
    if more:
        settings = more | {"output-dir": str(tmp_path), "trusted": str(text)}
    monkeypatch.setattr(server_app, "is_simulated", lambda _: True)
    monkeypatch.setattr(server_app, "_simulated_parties", waits)
    kind = ConfigError if more else DataError
    name = "run-config trusted: " if more else ""
    expected = f"{name}text.csv: expected numbers, got texts in 1 of 2 features: number 2 (18 of 18 samples)"
    found = streamed(settings, FakeGrid([]), kind, capfd)
    assert found[0] == found[-1] == f"FAILED: {kind.__name__}: {expected}; in this file: 'town'"


def test_errors_of_ours_are_logged_in_one_line_and_others_whole() -> None:
    def record(error: Exception) -> logging.LogRecord:
        exc_info = (type(error), error, None)
        made = logging.LogRecord("flwr", logging.ERROR, "", 0, "%s raised an exception", ("ServerApp",), exc_info)
        assert failure.one_line(made)
        return made

    ours, other = record(AggregationError("1 of 2 parties counted")), record(ZeroDivisionError("x"))
    assert (ours.getMessage(), ours.exc_info) == ("AggregationError: 1 of 2 parties counted", None)
    noted = AggregationError("no column")
    noted.add_note("it has 'a'")
    assert record(noted).getMessage() == "AggregationError: no column; it has 'a'"
    assert record(MemoryError("8 TiB")).exc_info is None
    assert other.getMessage() == "ServerApp raised an exception"
    assert other.exc_info


def test_the_output_folder_is_made_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert server_app.output_folder(RunConfig(), 7) == tmp_path / "flynn" / "7"
    for odd in ("~nosuchuser/x", "a\0b", f"{tmp_path}/{'a' * 300}"):
        with raises(ConfigError, field="run-config output-dir"):
            server_app.output_folder(RunConfig(output_dir=odd), 7)
    (tmp_path / "file").touch()
    with raises(ConfigError, field="run-config output-dir"):
        server_app.output_folder(RunConfig(output_dir=str(tmp_path / "file" / "x")), 7)


def test_the_table_of_a_deployment_names_who_is_missing(tmp_path: Path) -> None:
    traffic = {"counts": {"up": 900_000.0, "down": 40.0}, "evaluation": {"up": 200_000.0, "down": 2000.0}}
    table = reports.table(REPORT | {"traffic": traffic}, tmp_path)
    rows = [line.split() for line in table.splitlines() if line]
    assert ["parties", "counted", "2", "of", "3"] in rows
    assert ["not", "counted:", "c", "no", "reply"] in rows
    assert ["bytes", "per", "party", "1.1", "MB", "up,", "2.0", "kB", "down"] in rows
    assert ["counts", "900.0", "kB", "up,", "40", "B", "down"] in rows
    assert "equal" not in table
    assert table.splitlines()[-1].endswith(str(tmp_path))


def test_the_table_tells_the_reason_of_a_party_for_each_phase(tmp_path: Path) -> None:
    columns = {"examples": 7, "missing": {"c": "no reply"}}
    report = REPORT | {"columns": columns, "scaling": "auto", "evaluation_missing": {"b": "other"}}
    rows = [line.split() for line in reports.table(report, tmp_path).splitlines() if line]
    assert ["not", "counted:", "c", "no", "reply"] in rows
    assert ["no", "histograms:", "c", "no", "reply"] in rows
    assert ["not", "evaluated:", "b", "other"] in rows


def test_the_table_says_loudly_when_the_counts_differ(tmp_path: Path) -> None:
    simulation = {"parties": 3, "points": 9, "handed_out": 8, "empty_parties": 1}
    sha = {"federated": "12ab", "pooled": "34cd", "equal": False}
    table = reports.table(REPORT | {"simulation": simulation, "sha256": sha}, tmp_path)
    assert "8 of 9" in table
    assert "  equal" in table
    assert "NO" in table


def test_the_table_does_not_compare_some_parties_with_all_points(tmp_path: Path) -> None:
    simulation = {"parties": 3, "points": 9, "handed_out": 8, "empty_parties": 1}
    sha = {"federated": "12ab", "pooled": "34cd", "equal": None}
    table = reports.table(REPORT | {"simulation": simulation, "sha256": sha}, tmp_path)
    assert "n/a, 1 missing" in table
    assert "NO" not in table


def test_the_table_tells_an_evaluation_that_failed_from_none(tmp_path: Path) -> None:
    assert "none: no party holds test samples" in reports.table(REPORT, tmp_path)
    table = reports.table(REPORT | {"evaluation_missing": {"a": "declined: X_test", "b": "no reply"}}, tmp_path)
    assert "failed at 2 parties" in table
    assert [line.split()[:3] for line in table.splitlines() if "declined" in line] == [["not", "evaluated:", "a"]]
    assert "failed with KeyError" in reports.table(REPORT | {"evaluation_trouble": ["KeyError"]}, tmp_path)
    silent = {"evaluates": False, "evaluation_missing": {"a": "no reply"}, "unkept": {"b": "disk full"}}
    table = " ".join(reports.table(REPORT | silent, tmp_path).split())
    assert "evaluation none: no results leave the parties has no model: a no reply" in table
    assert "could not keep the model: b disk full" in table


def test_the_table_has_results_with_class_prior_where_there_are_any(tmp_path: Path) -> None:
    figures = {"accuracy": 0.75, "worst_party": {"name": "Ulm", "accuracy": 0.5, "examples": 2}, "examples": 8}
    evaluation = {"balanced_accuracy": 0.75, "macro_f1": 0.75, **figures}
    own = {"accuracy": 0.875, "worst_party": {"name": "Bonn", "accuracy": 0.625, "examples": 8}, "sent": 2}
    table = reports.table(REPORT | {"evaluation": {**evaluation, "class_prior": own}}, tmp_path)
    assert "with class prior 0.8750, worst party 0.6250 (Bonn)" in " ".join(table.split())
    assert "class prior" not in reports.table(REPORT | {"evaluation": {**evaluation, "class_prior": None}}, tmp_path)


@pytest.mark.parametrize("key", ["n-features", "classes", "min-available"])
def test_a_deployment_must_say_what_its_server_cannot_see(key: str) -> None:
    given = {"n-features": 4, "classes": "a,b", "min-available": 2}
    del given[key]
    with raises(ConfigError, field=f"run-config {key}", got="missing"):
        server_app.training_plan(RunConfig.parse(given), None)


def test_a_hash_that_the_server_cannot_afford_is_refused_before_it_is_drawn() -> None:
    given = {"n-features": 4, "classes": "a,b", "min-available": 2, "hash-dim": 2 * 10**9, "scaling": "none"}
    with raises(ConfigError, field="run-config memory-limit", expected="at most 4 GiB") as caught:
        server_app.training_plan(RunConfig.parse(given), None)
    assert caught.value.got.startswith("178.")


def test_sizes_of_a_simulation_do_not_depend_on_the_split() -> None:
    pytest.importorskip("flwr_datasets")
    one = server_app.training_plan(RunConfig(), 2)
    assert one == server_app.training_plan(RunConfig(partitioner="shard"), 10)
    assert one[1] == list(range(10))
    with raises(ConfigError, field="run-config min-parties", got=3):
        server_app.training_plan(RunConfig(min_parties=3), 2)


def test_settings_for_a_deployment_are_named_in_a_simulation(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("flwr_datasets")
    with caplog.at_level(logging.WARNING, logger="flwr"):
        server_app.training_plan(RunConfig.parse({"n-features": 3, "classes": "a,b"}), 2)
    assert [record.args for record in caplog.records] == [("n-features, classes",)]


def test_the_memory_limit_of_the_server_covers_all_hashes() -> None:
    given = {"n-features": 20, "classes": "a,b", "min-available": 2, "hash-dim": 2**20}
    for scaling, hashes, fits in (("none", "", 0.3), ("auto", "6 hashes with ", 1.8)):
        settings = {**given, "scaling": scaling}
        server_app.training_plan(RunConfig.parse({**settings, "memory-limit": 10 * fits}), None)
        with raises(ConfigError, field="run-config memory-limit") as caught:
            server_app.training_plan(RunConfig.parse({**settings, "memory-limit": fits / 10}), None)
        assert f"for {hashes}1048576 rows" in caught.value.got


def test_the_memory_limit_of_the_server_covers_the_refinement() -> None:
    given = {"n-features": 20, "classes": ",".join("abcdefghij"), "min-available": 2, "hash-dim": 2**18}
    given |= {"scaling": "none", "memory-limit": 0.4}
    server_app.training_plan(RunConfig.parse(given), None)
    server_app.training_plan(RunConfig.parse(given | {"refine-rounds": 1, "memory-limit": 0.6}), None)
    with raises(ConfigError, field="run-config memory-limit") as caught:
        server_app.training_plan(RunConfig.parse(given | {"refine-rounds": 1}), None)
    assert caught.value.got == f"0.49 GiB for the refinement of {10 * 2**18} weights"


def test_columns_that_the_server_cannot_afford_are_refused() -> None:
    classes = ",".join(map(str, range(1000)))
    given = {"n-features": 2000, "classes": classes, "min-available": 2, "hash-dim": 256, "memory-limit": 1}
    given |= {"n-features": 16384, "classes": ",".join(map(str, range(5000)))}
    server_app.training_plan(RunConfig.parse({**given, "scaling": "none"}), None)
    with raises(ConfigError, field="run-config memory-limit", expected="at most 1 GiB") as caught:
        server_app.training_plan(RunConfig.parse({**given, "scaling": "auto"}), None)
    assert "16384 columns" in caught.value.got


def test_the_memory_limit_of_the_server_covers_the_histograms() -> None:
    given = {"n-features": 1000, "classes": "a,b", "min-available": 2, "hash-dim": 64, "hash-nnz": 4}

    def decide(gib: float, **more: Any) -> None:
        server_app.training_plan(RunConfig.parse({**given, "memory-limit": gib, **more}), None)

    samples = {"n-examples": 10**5}  # 1e8 values in as many bins of 96 bytes, as a party may have any floor
    decide(9, **samples)
    with raises(ConfigError, field="run-config memory-limit", expected="at most 8 GiB") as caught:
        decide(8, **samples)
    assert caught.value.got == "8.94 GiB for the histograms of 1000 columns for 2 classes"
    decide(1)  # of samples that nobody knows


def test_the_histograms_of_pixels_have_few_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(min_examples=1, memory_limit=1.0, hash_dim=64, hash_nnz=4)
    monkeypatch.setattr(server_app, "training_points", lambda _: 10**5)
    monkeypatch.setattr(datasets, "simulated_shares", lambda *_: [])

    def decide(X: np.ndarray) -> None:
        dataset = datasets.Dataset(X, np.arange(4) % 2, [0, 1], "images")
        monkeypatch.setattr(datasets, "simulated_dataset", lambda _: dataset)
        server_app.training_plan(config, 2)

    decide(np.zeros((4, 1000), np.uint8))
    with raises(ConfigError, field="run-config memory-limit") as caught:
        decide(np.zeros((4, 1000), np.float32))
    assert "histograms of 1000 columns" in caught.value.got
    config = replace(config, memory_limit=2.0)
    with raises(ConfigError, field="run-config memory-limit"):
        decide(np.zeros((4, 1000), np.float32))
    config = replace(config, min_examples=5)  # the simulated parties' own: a bin has five values or more
    decide(np.zeros((4, 1000), np.float32))


@pytest.mark.parametrize("failing", [TRAIN, EVALUATE])
def test_of_a_run_in_turns_the_model_stands_where_the_evaluation_fails(failing: str) -> None:
    nodes = {n: Node(FlyNNClient(*points(9, n), X_test=np.eye(4), y_test=np.arange(4) % 3)) for n in (1, 2)}

    def fail(messages: list[Message]) -> list[Message]:
        if messages[0].metadata.message_type == failing:
            raise OSError("no connection")
        return []

    given: dict[str, Any] = {"spec": SPEC, "classes": CLASSES, "min_parties": 2, "decay": 0.5, "min_available_nodes": 2}
    strategy, trouble = message.FlyNNStrategy(**given), list[str]()
    with nullcontext() if failing == EVALUATE else pytest.raises(OSError, match="no connection"):
        server_app._in_turns(strategy, FakeGrid(nodes, between=fail), strategy.num_rounds, 1, trouble)
    assert trouble == ["OSError"] * (failing == EVALUATE)
    assert len(strategy.parties) == 2 * (failing == EVALUATE)


def test_rounds_must_do_for_the_counting() -> None:
    config = RunConfig.parse({"scaling": "auto", "rounds": 1})
    plan = config.plan(4, None, 3)
    strategy = FlyNNStrategy(spec=plan, classes=CLASSES, min_available_clients=1, min_parties=1)
    with raises(ConfigError, field="run-config rounds", got=1):
        server_app.n_rounds(config, plan, strategy)
    assert server_app.n_rounds(RunConfig(rounds=2), plan, strategy) == 2
    assert server_app.n_rounds(RunConfig(), plan, strategy) == 3  # columns; counts, selection; evaluation


def member(**more: Any) -> dict[str, Any]:
    return {"hash_dim": 64, "hash_nnz": 16, "weight": 0.5, "decay": 0.25} | more


def test_the_table_shows_the_selection(tmp_path: Path) -> None:
    selection = {
        "choices": [[1, 0, 0.75], [0, 0, 0.25]],
        "scorings": [["balanced", 0.25, 1.5], ["balanced", 0.5, 1.0]],
        "candidates": [[["balanced", 0.5]], [["balanced", 0.25]], [["balanced", 0.5]]],
        "accuracies": [[0.75], [0.875], [0.5]],
        "accuracy": 0.875,
        "examples": 7,
        "missing": {"b": "no reply"},
    }
    columns = {"examples": 6, "missing": {"a": "declined: ranks"}}
    steps = ("columns", "counts", "selection", "evaluation")
    traffic = {name: {"parties": 2, "up": 10, "down": 20} for name in steps}
    equal = {"federated": "12ab", "pooled": "12ab", "equal": True, "columns_equal": None, "selection_equal": False}
    changes = {"selection": selection, "columns": columns, "scaling": "auto"}
    changes |= {"specs": [{}] * 3, "traffic": traffic, "members": [member(), member(hash_dim=128, decay=0.5)]}
    table = reports.table(REPORT | changes | {"sha256": equal}, tmp_path)
    rows = {" ".join(line.split()) for line in table.splitlines()}
    assert {
        "scaling auto, from histograms of the columns of 6 samples",
        "no histograms: a declined: ranks",
        "candidates 3 with 1 decays each, compared on 7 samples",
        "leave-one-out 0.7500, 0.8750, 0.5000",
        "member 2 weight 0.75, decay 0.25, 64 rows, 16 winners",
        "member 1 weight 0.25, decay 0.5, 128 rows, 16 winners",
        "not in the selection: b no reply",
        "histograms of the columns 10 B up, 20 B down",
        "selection 10 B up, 20 B down",
        "model and evaluation 10 B up, 20 B down",
        "equal yes",
        "histograms of the columns equal n/a, not all samples took part",
        "selection equal NO",
    } <= rows
    table = reports.table(REPORT | {"selection": selection | {"accuracies": []}}, tmp_path)
    assert "none: too few parties with samples replied" in table


def test_the_table_shows_the_refinement(tmp_path: Path) -> None:
    refinement = {
        "accuracy_before": 0.75,
        "accuracies": [0.5, 0.875, 0.875],
        "is_used": True,
        "missing": {"refinement 2": {"b": "no reply"}},
    }

    def shown(**changes: Any) -> set[str]:
        sha = {"federated": "12ab", "pooled": "12ab", "equal": True, "refined_equal": True}
        table = reports.table(REPORT | {"refinement": refinement | changes, "sha256": sha}, tmp_path)
        return {" ".join(line.split()) for line in table.splitlines()}

    assert {
        "refinement, held out 0.7500 before, 0.8750 in round 2 of 3",
        "refinement 2: b no reply",
        "refinement equal yes",
    } <= shown()
    left = shown(accuracies=[0.75], is_used=False, missing={})
    assert "refinement, held out 0.7500 before, 0.7500 in round 1 of 1; the model is left as it was" in left
    assert "refinement none: no party with samples replied" in shown(accuracies=[], accuracy_before=None)


def test_the_table_shows_the_gram_matrix(tmp_path: Path) -> None:
    pairs = {"rows": 64, "accuracy": 0.875, "share": 0.625, "missing": {"gram evaluation": {"b": "no reply"}}}

    def shown(**changes: Any) -> set[str]:
        sha = {"federated": "12ab", "pooled": "12ab", "equal": True, "gram_equal": False}
        table = reports.table(REPORT | {"gram": pairs | changes, "sha256": sha}, tmp_path)
        return {" ".join(line.split()) for line in table.splitlines()}

    assert {
        "Gram matrix 64 rows, leave-one-out 0.8750, weight 0.62",
        "gram evaluation: b no reply",
        "Gram matrix equal NO",
    } <= shown()
    (row,) = [row for row in shown(accuracy=None, share=None) if row.startswith("Gram matrix none")]
    assert "regression" in row


@pytest.mark.parametrize(
    "given", [{}, {"decay": 0.5, "spec": HashSpec(4, 64, 2, 6, 0, signed=True)}], ids=["plan", "spec"]
)
def test_the_gram_matrix_is_compared_with_that_of_the_pooled_samples(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = points(60)
    codes = np.array([CLASSES.index(label) for label in y])
    config = RunConfig.parse({"hash-dim": 64, "min-examples": 1, "gram": 32})
    plan = config.plan(4, 60, 3)
    proxies = [Proxy(str(i), FlyNNClient(X[i::3], y[i::3], min_examples=1, gram=True)) for i in range(3)]
    strategy = FlyNNStrategy(
        **{"spec": plan, "classes": CLASSES, **given}, min_available_clients=3, min_parties=3, gram=32
    )
    Server(client_manager=manager(*proxies), strategy=strategy).fit(strategy.num_rounds, timeout=None)

    def compared(pooled: np.ndarray) -> Any:
        monkeypatch.setattr(datasets, "pooled_training", lambda *_: (pooled, codes, 3))
        return reports.compared(config, strategy, 3, strategy.federation("1"))["gram_equal"]

    assert reports._gram(strategy.run) == {
        "rows": 32,
        "accuracy": strategy.model.model_.gram.accuracy,
        "share": strategy.model.model_.gram.share,
        "missing": {},
    }
    assert compared(X) is True
    assert compared(X[::-1].copy()) is not True


@pytest.mark.parametrize(
    "given", [{}, {"decay": 0.5, "spec": HashSpec(4, 64, 2, 6, 0, signed=True)}], ids=["plan", "spec"]
)
def test_the_refinement_is_compared_with_that_of_the_pooled_points(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = points(60)
    codes = np.array([CLASSES.index(label) for label in y])
    config = RunConfig.parse({"hash-dim": 64, "min-examples": 1, "refine-rounds": 2})
    plan = config.plan(4, 60, 3)
    proxies = [Proxy(str(i), FlyNNClient(X[i::3], y[i::3], min_examples=1)) for i in range(3)]
    strategy = FlyNNStrategy(
        **{"spec": plan, "classes": CLASSES, **given},
        min_available_clients=3,
        min_parties=3,
        refine_rounds=2,
    )
    Server(client_manager=manager(*proxies), strategy=strategy).fit(strategy.num_rounds, timeout=None)

    def compared(pooled: np.ndarray) -> Any:
        monkeypatch.setattr(datasets, "pooled_training", lambda *_: (pooled, codes, 3))
        return reports.compared(config, strategy, 3, strategy.federation("1"))["refined_equal"]

    assert compared(X) is True
    assert compared(X[::-1].copy()) is not True


@pytest.mark.parametrize("n_left_out", [4096, 60])
@pytest.mark.parametrize("step", [0.0, 6.0])
def test_an_aligned_run_is_compared_with_the_pooled_model_of_aligned_points(
    step: float, n_left_out: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("flwr_flynn.model.selection", "flwr_flynn.federated.phases.selection"):
        monkeypatch.setattr(f"{module}.N_LEFT_OUT", n_left_out)
    X, y = points(180)
    codes = np.array([CLASSES.index(label) for label in y])
    shares = [(X[i::3] + step * (i - 1), codes[i::3]) for i in range(3)]  # each party has an offset of its own
    config = RunConfig.parse({"hash-dim": 256, "min-examples": 1, "align": True})
    plan = config.plan(4, 180, 3)
    clients = [FlyNNClient(rows, y[i::3], min_examples=1) for i, (rows, _) in enumerate(shares)]
    strategy = FlyNNStrategy(spec=plan, classes=CLASSES, min_available_clients=3, min_parties=3, align=config.align)
    proxies = [Proxy(str(i), client) for i, client in enumerate(clients)]
    Server(client_manager=manager(*proxies), strategy=strategy).fit(strategy.num_rounds, timeout=None)
    pooled = np.concatenate([rows for rows, _ in shares]), np.concatenate([labels for _, labels in shares]), 3
    monkeypatch.setattr(datasets, "pooled_training", lambda *_: pooled)
    monkeypatch.setattr(datasets, "training_shares", lambda *_: shares)
    report = REPORT | {"alignment": reports._alignment(strategy.run)}
    aligned = bool(step)
    assert report["alignment"]["parties"] == (2 if aligned else 0)
    assert report["alignment"]["is_used"] == aligned == strategy.model.model_.aligned
    assert (report["alignment"]["accuracies"] is not None) == aligned
    found = reports.compared(config, strategy, 3, strategy.federation("1"))
    assert (found["equal"], found["selection_equal"], found["columns_equal"]) == (True, True, True)
    assert "alignment" in reports.table(report | {"selection": _SELECTION, "members": [member()]}, tmp_path)


_SELECTION = {
    "choices": [[0, 1, 1.0]],
    "candidates": [[["balanced", 0.5], ["balanced", 0.25]], [["balanced", 0.5]]],
    "accuracies": [[0.75, 0.875], [0.5]],
    "examples": 7,
    "missing": {},
}


def test_the_table_of_one_candidate_shows_its_decay(tmp_path: Path) -> None:
    selection = {
        "choices": [[0, 1, 1.0]],
        "candidates": [[["balanced", 0.5], ["balanced", 0.25]]],
        "accuracies": [[0.75, 0.875]],
        "examples": 7,
        "missing": {},
    }
    table = reports.table(REPORT | {"selection": selection, "members": [member()]}, tmp_path)
    rows = [" ".join(line.split()) for line in table.splitlines()]
    assert "decay 0.25, leave-one-out 0.8750, 2 compared on 7 samples" in rows
    assert not any(row.startswith(("candidates", "member")) for row in rows)


def test_columns_and_selection_are_compared_with_those_of_the_pooled_points(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = points(60)
    codes = np.array([CLASSES.index(label) for label in y])

    def compared(min_examples: int, pooled: np.ndarray) -> dict[str, Any]:
        config = RunConfig.parse({"hash-dim": 64, "min-examples": min_examples})
        plan = config.plan(4, 60, 3)
        clients = [FlyNNClient(X[i::3], y[i::3], min_examples=min_examples) for i in range(3)]
        proxies = [Proxy(str(i), client) for i, client in enumerate(clients)]
        strategy = FlyNNStrategy(spec=plan, classes=CLASSES, min_available_clients=3, min_parties=3)
        Server(client_manager=manager(*proxies), strategy=strategy).fit(4, timeout=None)
        monkeypatch.setattr(datasets, "pooled_training", lambda *_: (pooled, codes, 3))
        found = reports.compared(config, strategy, 3, strategy.federation("1"))
        return {name: found[name] for name in reports.EQUALITIES if name in found}

    everything = {"equal": True, "columns_equal": True, "selection_equal": True}
    assert compared(1, X) == everything
    # What was learned of fewer samples is not that of the pool; the choice among the hashes that it gave is.
    assert compared(8, X) == everything | {"columns_equal": None}
    assert compared(1, X[::-1].copy())["equal"] is False
    nudged = X.copy()
    nudged[0, 0] = X[0, 0] + 1
    assert compared(1, nudged)["columns_equal"] is False


# -------- one run against parties in this process

Spoil = Callable[[RecordDict, str], RecordDict]


def test_before_flower_1_38_nobody_is_known_by_a_key() -> None:
    assert server_app._identify(object())("7") == ""


class Loopback:
    """A grid of two parties; what the second one, Mallory, sends goes through `spoil` first. `nodes`: who is there."""

    def __init__(self, spoil: Spoil, nodes: Iterable[int] = (1, 2), **more: Any) -> None:
        self.run = SimpleNamespace(run_id=1)
        self.spoil = spoil
        X, y = points(20)
        names = {1: "Ulm", 2: "Mallory", 3: "Bonn"}
        self.clients = {
            node: FlyNNClient(X, y, X_test=X, y_test=y, name=names[node], **more).to_client() for node in nodes
        }

    def get_node_ids(self) -> list[int]:
        return list(self.clients)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=b"key %d" % node) for node in self.clients]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self.reply(message) for message in messages]

    def reply(self, message: Message) -> Message:
        client, kind = self.clients[message.metadata.dst_node_id], message.metadata.message_type
        if kind == MessageType.TRAIN:
            fitres = client.fit(compat.recorddict_to_fitins(message.content, True))
            content = compat.fitres_to_recorddict(fitres, False)
        else:
            evaluateres = client.evaluate(compat.recorddict_to_evaluateins(message.content, True))
            content = compat.evaluateres_to_recorddict(evaluateres)
        return Message(self.spoil(content, kind) if message.metadata.dst_node_id == 2 else content, reply_to=message)


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, **more: Any) -> dict[str, Any]:
    """The app's main function with these parties; its metrics.json."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    settings = {"n-features": 4, "classes": ",".join(CLASSES), "min-available": 2, "min-parties": 1, "hash-dim": 64}
    settings |= more
    context = Context(1, 0, {}, RecordDict(), settings | {"output-dir": str(tmp_path / "out"), "timeout": 2})
    server_app.main(Loopback(spoil), context)
    report: dict[str, Any] = json.loads((tmp_path / "out" / "metrics.json").read_text())
    return report


def status_77(content: RecordDict, kind: str) -> RecordDict:
    content.config_records["fitres.status" if kind == MessageType.TRAIN else "evaluateres.status"]["code"] = 77
    return content


def list_valued(content: RecordDict, kind: str) -> RecordDict:
    name = "fitres.metrics" if kind == MessageType.TRAIN else "evaluateres.metrics"
    content.config_records[name] = ConfigRecord({"a": [1, 2]})
    return content


@pytest.mark.parametrize("spoil", [lambda content, kind: RecordDict(), status_77, list_valued])
def test_a_reply_that_flower_cannot_read_costs_its_sender_only(
    spoil: Spoil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(tmp_path, monkeypatch, spoil)
    assert [party["name"] for party in report["parties"]] == ["Ulm"]
    (reason,) = report["missing"].values()
    assert report["missing"] == {"node 2": reason}
    assert reason in [f"failed: its reply cannot be read ({kind})" for kind in ("KeyError", "ValueError", "TypeError")]
    # It is asked again for the evaluation, and spoils that reply, too.
    assert report["evaluation"]["examples"] == 20
    assert list(report["evaluation_missing"].values()) == [reason]


class Failing(Loopback):
    """A grid on which Ulm's reply cannot be read, Mallory's app fails, and Bonn's works."""

    is_named = True  # as the party tells its failure; else as the SuperLink does

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        for each in messages:
            each.metadata.__dict__["_message_id"] = f"to {each.metadata.dst_node_id}"  # as the SuperLink does
        return super().send_and_receive(messages)

    def reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node != 2:
            return super().reply(message) if node == 3 else Message(RecordDict(), reply_to=message)
        made = Message(Error(3, f"Traceback: {'a line, ' * 50} ZeroDivisionError: by none"), reply_to=message)
        if not self.is_named:
            made.metadata.__dict__["_src_node_id"] = 1
        return made


@pytest.mark.parametrize("is_named", [True, False])
def test_each_failure_is_told_of_its_own_party(is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "is_named", is_named)
    monkeypatch.setattr(f"{__name__}.Loopback", partial(Failing, nodes=(1, 2, 3)))
    report = run(tmp_path, monkeypatch, lambda content, kind: content)
    assert [party["name"] for party in report["parties"]] == ["Bonn"]
    for missing in (report["missing"], report["evaluation_missing"]):
        assert missing.keys() == {"node 1", "node 2"}
        assert missing["node 1"] == "failed: its reply cannot be read (KeyError)"
        assert missing["node 2"].startswith("failed: Traceback: ")
        assert missing["node 2"].endswith("ZeroDivisionError: by none")  # the cause, which comes last
        assert len(missing["node 2"]) <= 200


class Lying(Loopback):
    """A grid on which Mallory gives each class the name of the next, and Ulm tells the truth."""

    def __init__(self, spoil: Spoil, **more: Any) -> None:
        super().__init__(spoil, **more)
        X, y = points(20)
        named = np.roll(CLASSES, -1)[[CLASSES.index(label) for label in y]]
        self.clients[2] = FlyNNClient(X, named, X_test=X, y_test=named, name="Mallory").to_client()


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a run in groups, with one party in each."""
    monkeypatch.setattr(f"{__name__}.Loopback", Lying)
    monkeypatch.setattr("flwr_flynn.federated.options.secrets.token_hex", lambda size: "5e" * size)
    X, y = points(20)
    np.savez(tmp_path / "trusted.npz", X=X, y=y)
    return {"groups": 200, "trusted": str(tmp_path / "trusted.npz"), "scale": "1"}


def test_the_group_of_a_liar_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: dict[str, Any]
) -> None:
    report = run(tmp_path, monkeypatch, lambda content, kind: content, **trusted)
    groups = report["groups"]
    assert (groups["n_groups"], groups["seed"], groups["samples"]) == (200, "5e" * 16, 20)
    assert groups["groups"] == sorted(Grouping(200, "5e" * 16).of(cid) for cid in ("1", "2"))
    assert groups["left_out"] == [Grouping(200, "5e" * 16).of("2")]
    assert groups["parties_left_out"] == ["Mallory"]
    assert groups["accuracy"] == report["evaluation"]["best_party"]["accuracy"]  # of Ulm, who has the same samples
    assert {party["name"] for party in report["parties"]} == {"Ulm", "Mallory"}
    assert report["examples"] == 20
    rows = [line.split() for line in reports.table(report, tmp_path).splitlines() if line]
    assert ["groups", "left", "out", "1", "of", "2;"] in [row[:6] for row in rows]
    assert ["left", "out:", "Mallory"] in [row[:3] for row in rows]
    saved = Federation.load(tmp_path / "out" / "federation.npz")
    assert saved.counts.n_examples == 20
    assert [member.name for member in saved.members] == ["Ulm"]


def test_samples_of_the_server_that_cannot_be_used_end_the_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: dict[str, Any]
) -> None:
    X, y = points(20)
    np.savez(tmp_path / "narrow.npz", X=X[:, :3], y=y)
    np.savez(tmp_path / "odd.npz", X=X, y=np.full(20, "none of them"))
    np.savez(tmp_path / "lacks.npz", X=X)
    monkeypatch.setattr(Lying, "send_and_receive", None)  # nobody is asked
    for name in ("narrow.npz", "odd.npz", "lacks.npz", "not there.npz", "digits", "trusted.txt"):
        with pytest.raises(FlyNNError) as caught:
            run(tmp_path, monkeypatch, lambda content, kind: content, **trusted | {"trusted": str(tmp_path / name)})
        assert "trusted" in str(caught.value)
    with raises(ConfigError, field="run-config memory-limit"):
        run(tmp_path, monkeypatch, lambda content, kind: content, **trusted | {"hash-dim": 2**16, "memory-limit": 1e-3})


def test_a_party_of_more_points_than_allowed_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(tmp_path, monkeypatch, lambda content, kind: content, **{"max-examples": 20})
    assert [party["examples"] for party in report["parties"]] == [20, 20]
    with raises(AggregationError, counted=0, missing=dict.fromkeys(("Ulm", "Mallory"), TOO_MANY)):
        run(tmp_path, monkeypatch, lambda content, kind: content, **{"max-examples": 19})


def test_a_run_with_columns_and_a_selection_reports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(tmp_path, monkeypatch, lambda content, kind: content, **{"hash-dim": 256})
    assert (report["format"], report["scaling"]) == (3, "auto")
    assert report["columns"]["examples"] <= 40
    selection, members = report["selection"], report["members"]
    assert len(report["specs"]) == len(selection["accuracies"]) == 6
    assert 2 <= len(members) == len(selection["choices"]) <= 3
    assert [member["weight"] for member in members] == [weight for _, _, weight in selection["choices"]]
    assert sum(member["weight"] for member in members) == pytest.approx(1)
    for (spec, _, _), scoring, each in zip(selection["choices"], selection["scorings"], members, strict=True):
        assert [report["rule"], each["decay"], each["temperature"]] == scoring
        assert report["specs"][spec].items() <= each.items()
        assert each["spec"].keys() <= each.keys()
        assert each["spec"]["hash_dim"] == each["hash_dim"]
    assert list(report["traffic"]) == ["columns", "counts", "selection", "evaluation"]
    assert report["evaluation"]["examples"] == 40
    model = FlyNNClassifier.load(tmp_path / "out" / "model.npz")
    assert model.model_.sha256() == report["sha256"]["model"]
    assert len(model.model_.members) == len(members)
    for each, member_ in zip(members, model.model_.members, strict=True):
        assert (each["fingerprint"], each["weight"]) == (member_.counts.spec_fingerprint, member_.weight)
        assert each["spec"] == json.loads(json.dumps(member_.spec.to_dict()))


@pytest.mark.parametrize("phase", ["counts", "selection", "refinement 1", "evaluation"])
def test_a_run_that_stopped_goes_on(phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"hash-dim": 64, "refine-rounds": 2, "federation": str(tmp_path / "kept.npz")}
    resumed = {"action": "resume", "n-features": 0, "classes": "", "hash-dim": 0} | {
        "federation": settings["federation"]
    }
    whole = run(
        tmp_path, monkeypatch, lambda content, kind: content, **{**settings, "federation": str(tmp_path / "a.npz")}
    )
    assert not (tmp_path / "a.unfinished.npz").exists()
    with monkeypatch.context() as patch:

        def stops(self: Run, *args: Any) -> Any:
            if self.due is not None and self.due.name == phase:
                raise KeyboardInterrupt
            return taken(self, *args)

        taken = Run.complete
        patch.setattr(Run, "complete", stops)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, patch, lambda content, kind: content, **settings)
    unfinished = tmp_path / "kept.unfinished.npz"
    assert unfinished.is_file()
    assert not (tmp_path / "kept.npz").exists()
    with raises(ConfigError, field="run-config federation"):
        run(tmp_path, monkeypatch, lambda content, kind: content, **settings)
    report = run(tmp_path, monkeypatch, lambda content, kind: content, **{"refine-rounds": 2}, **resumed)
    assert report["sha256"]["model"] == whole["sha256"]["model"]
    assert report["evaluation"]["accuracy"] == whole["evaluation"]["accuracy"]
    assert len(report["federation"]) == 2
    assert not unfinished.exists()
    assert Federation.load(tmp_path / "kept.npz").phase == ""
    with raises(ConfigError, field="run-config federation"):
        run(tmp_path, monkeypatch, lambda content, kind: content, **resumed)


@pytest.mark.parametrize("settings", [{"hash-dim": 64}, {"preset": "paper", "hash-dim": 64}], ids=str)
def test_a_refined_run_reports_its_rounds(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(tmp_path, monkeypatch, lambda content, kind: content, **settings, **{"refine-rounds": 2})
    refinement, names = report["refinement"], ["held-out", "refinement 1", "refinement 2"]
    assert [name for name in report["traffic"] if name in names] == names
    assert refinement.keys() == {"accuracy_before", "accuracies", "is_used", "missing"}
    assert all(0 <= each <= 1 for each in (refinement["accuracy_before"], *refinement["accuracies"]))
    assert refinement["missing"] == {}
    assert refinement["is_used"] == (max(refinement["accuracies"]) > refinement["accuracy_before"])
    model = FlyNNClassifier.load(tmp_path / "out" / "model.npz").model_
    assert (model.refined is not None) == refinement["is_used"]
    assert model.sha256() == report["sha256"]["model"]
    assert run(tmp_path, monkeypatch, lambda content, kind: content, **settings)["refinement"] is None


def test_a_run_of_one_hash_reports_one_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = run(tmp_path, monkeypatch, lambda content, kind: content, preset="paper")
    assert (paper["scaling"], paper["columns"], paper["selection"]) == ("none", None, None)
    (member,) = paper["members"]
    assert (member["decay"], paper["rule"], member["spec"]["signed"]) == (0.5, "novelty", False)
    assert member["weight"] == 1
    assert paper["evaluation"]["examples"] == 40
    best = run(tmp_path, monkeypatch, lambda content, kind: content, **{"max-members": 1})
    assert (len(best["specs"]), len(best["members"])) == (6, 1)
    assert best["selection"]["choices"][0][2] == 1
    assert max(map(max, best["selection"]["accuracies"])) == best["selection"]["accuracy"]


@pytest.mark.parametrize("private", [False, True])
def test_a_run_with_public_ranges_asks_for_nothing_of_the_columns(
    private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: dict[str, Any] = {"ranges": "-1:5"}
    if private:
        private_parties(tmp_path, monkeypatch)
        more |= {"epsilon": 1.0, "delta": 1e-5, "n-examples": 40}
    report = run(tmp_path, monkeypatch, lambda content, kind: content, **more)
    assert report["columns"] is None
    assert "columns" not in report["traffic"]
    (member,) = report["members"]
    assert (member["coding"], member["edges"], member["spec"]["row_nnz"]) == ("bumps", True, 6)
    assert {len(edges) for edges in member["spec"]["edges"]} == {32}
    assert (report["privacy"] is None) != private
    assert (report["selection"] is None) == private


def test_a_federation_goes_through_train_join_and_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def go(nodes: set[int], action: str, **more: Any) -> dict[str, Any]:
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}.Loopback", partial(Loopback, nodes=nodes))
            later = {} if action == "train" else {"n-features": 0, "classes": "", "hash-dim": 0, "min-available": 1}
            settings = {"action": action, "federation": str(kept)} | later | more
            return run(tmp_path, patch, lambda content, kind: content, **settings)

    kept = tmp_path / "kept.npz"
    for action in ("join", "withdraw", "evaluate"):
        with raises(ConfigError, field="run-config federation", expected="the server's own file"):
            go({1}, action)
    for name in ("model.npz", "metrics.json"):
        with raises(ConfigError, field="run-config federation", got=name):
            go({1}, "train", federation=str(tmp_path / "out" / name))
    with raises(ConfigError, field="run-config federation", expected="a file", got="'~nobody-of-this-name/f.npz'"):
        go({1}, "train", federation="~nobody-of-this-name/f.npz")
    go({1}, "train", rule="novelty", **{"min-available": 1})
    before = kept.read_bytes()
    with raises(ConfigError, field="run-config federation", expected="none yet"):
        go({1}, "train")
    with raises(AggregationError, counted=0, missing={"Mallory": TOO_MANY}):
        go({2}, "join", **{"max-examples": 19})
    assert kept.read_bytes() == before
    assert go({2}, "join", **{"max-examples": 20})["rule"] == "novelty"
    assert [member.name for member in Federation.load(kept).members] == ["Mallory", "Ulm"]
    before = kept.read_bytes()
    assert go({1, 2}, "evaluate")["evaluation"]["examples"] == 40
    assert kept.read_bytes() == before
    for setting in ({"decay": "0.5"}, {"rule": "bayes"}, {"max-examples": 20}):
        (name,) = setting
        with raises(ConfigError, field=f"run-config {name}"):
            go({1, 2}, "evaluate", **setting)


def test_members_of_a_saved_run_have_their_names_in_the_report_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go(nodes: set[int], action: str, spoil: Spoil = lambda content, kind: content, **more: Any) -> dict[str, Any]:
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}.Loopback", partial(Loopback, nodes=nodes))
            settings = {"action": action, "federation": str(tmp_path / "kept.npz"), "min-available": 1}
            later = {} if action == "train" else {"n-features": 0, "classes": "", "hash-dim": 0}
            return run(tmp_path, patch, spoil, **settings | later | more)

    go({2}, "train")
    report = go({1, 2}, "join", lambda content, kind: RecordDict())  # Mallory, who is in the file
    assert [party["name"] for party in report["parties"]] == ["Ulm"]
    assert report["evaluation_missing"].keys() == report["selection"]["missing"].keys() == {"Mallory"}
    report = go({1, 2}, "evaluate", lambda content, kind: RecordDict())
    assert report["evaluation_missing"].keys() == {"Mallory"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"preset": "paper"},
        {"scaling": "none", "decay": "0.5"},
        {"scaling": "none", "rule": "bayes"},
        {"preset": "paper", "refine-rounds": 2},
        {"ranges": "-1:5"},
        {"action": "join"},
        {"action": "evaluate"},
    ],
    ids=str,
)
def test_server_and_parties_without_anything_of_their_own_have_the_same_file(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "party.npz"
    more = {"class_prior": False, "on_model": lambda model: model.save(kept)}
    if "action" in settings:
        settings = settings | {"federation": str(tmp_path / "kept.npz")}
        monkeypatch.setattr(f"{__name__}.Loopback", partial(Loopback, nodes=(1,)))
        run(tmp_path, monkeypatch, lambda content, kind: content, federation=settings["federation"], preset="paper")
        settings |= {"n-features": 0, "classes": "", "hash-dim": 0, "min-available": 1}
    monkeypatch.setattr(f"{__name__}.Loopback", partial(Loopback, nodes=(1, 2), **more))
    report = run(tmp_path, monkeypatch, lambda content, kind: content, **settings)
    assert kept.read_bytes() == (tmp_path / "out" / "model.npz").read_bytes()
    assert FlyNNClassifier.load(kept).model_.sha256() == report["sha256"]["model"]


def test_of_noisy_counts_the_copies_differ_in_the_record_of_the_releases_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_parties(tmp_path, monkeypatch)
    kept = tmp_path / "party.npz"
    more = {"nodes": (1, 2), "on_model": lambda model: model.save(kept)}
    monkeypatch.setattr(f"{__name__}.Loopback", partial(Loopback, **more))
    run(tmp_path, monkeypatch, lambda content, kind: content, epsilon=1.0, delta=1e-5, **{"n-examples": 40})
    (server,), (party,) = (FlyNNClassifier.load(path).model_.members for path in (tmp_path / "out/model.npz", kept))
    assert (server.spec, server.scoring) == (party.spec, party.scoring)
    assert (server.counts.array == party.counts.array).all()
    assert sum(each.variance * each.times for each in server.counts.noise) == party.counts.noise[0].variance
    assert len(party.counts.noise) == 1


def test_a_federation_of_several_members_grows_and_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go(nodes: set[int], action: str, **more: Any) -> dict[str, Any]:
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}.Loopback", partial(Loopback, nodes=nodes))
            settings = {"action": action, "federation": str(tmp_path / "kept.npz"), "min-available": 1} | more
            return run(tmp_path, patch, lambda content, kind: content, **settings)

    first = go({1}, "train", **{"hash-dim": 256})
    assert len(first["members"]) > 1
    none = {"n-features": 0, "classes": "", "hash-dim": 0}
    again = go({1}, "evaluate", **none)
    assert again["members"] == first["members"]
    assert again["sha256"] == first["sha256"]
    joined = go({2}, "join", **none)
    assert joined["examples"] == 40
    assert {each["fingerprint"] for each in joined["members"]} <= {each["fingerprint"] for each in first["members"]}


def test_a_federation_of_several_members_is_shown_with_the_sum_of_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(tmp_path, monkeypatch, lambda content, kind: content, **{"hash-dim": 256})
    kept = tmp_path / "out" / "federation.npz"
    assert len(Federation.load(kept).totals.parts) == len(report["members"]) > 1
    capsys.readouterr()
    assert show(["show", str(kept)]) == 0
    printed = capsys.readouterr().out
    assert f"2 parties, SHA-256 of the counts {report['sha256']['federated']}" in printed
    assert "Mallory" in printed


def private_parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties of `run` with a policy; both at one ledger, which gives the two the same answer."""
    pytest.importorskip("opendp")
    budget = Budget(tmp_path / "state", Policy(1.0, 1e-5))
    monkeypatch.setattr(f"{__name__}.Loopback", partial(Loopback, budget=budget))


@pytest.mark.parametrize("more", [{"delta": 1e-5}, {}, {"mechanism": "top-t", "n-released": 20}])
def test_a_private_run_reports_its_guarantee(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    private_parties(tmp_path, monkeypatch)
    report = run(tmp_path, monkeypatch, lambda content, kind: content, epsilon=1.0, **{"n-examples": 40}, **more)
    privacy = report["privacy"]
    model = FlyNNClassifier.load(tmp_path / "out" / "model.npz")
    assert model.guarantee_ == privacy["guarantee"]
    assert mechanism_from_dict(privacy["mechanism"]).guarantee() == privacy["guarantee"]
    assert (privacy["epsilon"], privacy["delta"]) == (pytest.approx(1.0, rel=0.01), more.get("delta", 0.0))
    assert (report["examples"], report["evaluation"], report["selection"], report["columns"]) == (
        None,
        None,
        None,
        None,
    )
    assert [party["examples"] for party in report["parties"]] == [None, None]
    assert model.counts_.noise_variance == pytest.approx((2 * privacy["noise_sd"]) ** 2)
    printed = capsys.readouterr().out
    assert "hidden" in printed
    assert "none: no results leave the parties" in printed
    assert privacy["guarantee"] in " ".join(printed.split())


def test_a_private_run_in_a_deployment_needs_public_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private_parties(tmp_path, monkeypatch)
    with raises(ConfigError, field="run-config n-examples", got="missing"):
        run(tmp_path, monkeypatch, lambda content, kind: content, epsilon=1.0)
    more = {"n-examples": 40, "noise": "seeded"}
    with raises(ConfigError, field="run-config noise", got="seeded"):
        run(tmp_path, monkeypatch, lambda content, kind: content, epsilon=1.0, **more)


def test_parties_that_keep_their_results_are_named_where_they_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_parties(tmp_path, monkeypatch)
    more = {"n-examples": 40, "evaluate": True}
    report = run(tmp_path, monkeypatch, lambda content, kind: content, epsilon=1.0, **more)
    assert set(report["evaluation_missing"]) == {"Ulm", "Mallory"}
    with raises(AggregationError, counted=0) as caught:
        run(tmp_path, monkeypatch, lambda content, kind: content, epsilon=0.5, **more)
    assert caught.value.missing.keys() == {"Ulm", "Mallory"}
    assert all(reason.startswith("declined: policy max-epsilon:") for reason in caught.value.missing.values())


def test_sizes_of_a_private_simulation_follow_from_its_training_points() -> None:
    pytest.importorskip("flwr_datasets")
    pytest.importorskip("dp_accounting")
    config = RunConfig.parse({"epsilon": 1, "delta": 1e-5})
    plan, _, _ = server_app.training_plan(config, 3)
    assert (plan.n_examples, plan.needs_columns) == (1444, False)
    more, _, _ = server_app.training_plan(config, 10)
    assert more.hash_nnz >= plan.hash_nnz


def test_a_spoiled_evaluation_leaves_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(tmp_path, monkeypatch, lambda content, kind: content if kind == MessageType.TRAIN else RecordDict())
    assert report["missing"] == {}
    assert report["examples"] == 40
    assert report["evaluation_missing"] == {"Mallory": "failed: its reply cannot be read (KeyError)"}


def test_whatever_fails_after_the_counting_the_model_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("x")

    with monkeypatch.context() as patch:
        patch.setattr(FlyNNStrategy, "aggregate_evaluate", fails)
        report = run(tmp_path, patch, lambda content, kind: content)
    assert report["evaluation"] is None
    assert report["evaluation_trouble"] == ["KeyError"] * 2  # the selection's, too
    (tmp_path / "out" / "model.npz").unlink()
    monkeypatch.setattr(reports, "compiled", fails)
    with pytest.raises(KeyError):
        run(tmp_path, monkeypatch, lambda content, kind: content)
    assert FlyNNClassifier.load(tmp_path / "out" / "model.npz").model_.members[0].counts.n_examples == 40


def test_a_run_whose_counts_are_not_the_pooled_ones_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = reports.compiled

    def unequal(*args: Any) -> dict[str, Any]:
        report = whole(*args)
        return report | {"sha256": report["sha256"] | {"pooled": "34cd", "equal": False}}

    monkeypatch.setattr(reports, "compiled", unequal)
    with raises(FlyNNError, field="results", got="equal"):
        run(tmp_path, monkeypatch, lambda content, kind: content)
    assert "NO" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".federation.npz.lock",
        "federation.npz",
        "metrics.json",
        "model.npz",
    ]


ALL = {"federation.npz", "model.npz", "metrics.json"}


@pytest.mark.parametrize("full", [ALL, {"model.npz"}, {"metrics.json"}, {"federation.npz", "metrics.json"}], ids=sorted)
@pytest.mark.parametrize("cause", [errno.ENOSPC, errno.EROFS])
def test_results_that_cannot_be_written_are_told_after_the_report(
    full: set[str],
    cause: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    replace = os.replace

    def fails(source: Any, target: Any) -> None:
        if Path(target).name in full:
            raise OSError(cause, "x", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with caplog.at_level(logging.ERROR, logger="flwr"), raises(FlyNNError, field="results") as error:
        run(tmp_path, monkeypatch, lambda content, kind: content)
    assert set(error.value.got.split(", ")) == full
    text = str(error.value)
    assert text.count(os.strerror(cause)) == len(full)
    assert str(tmp_path) not in text
    assert all(str(tmp_path) in record.getMessage() for record in caplog.records)
    out, folder = capsys.readouterr().out, tmp_path / "out"
    kept = {"federation.unfinished.npz"} if "federation.npz" in full else set()  # from which the run can go on
    assert {path.name for path in folder.iterdir()} == (ALL - full) | {".federation.npz.lock"} | kept
    if "metrics.json" in full:  # the whole of it stands in the log
        report = json.JSONDecoder().raw_decode(out[out.index("{") :])[0]
    else:
        report = json.loads((folder / "metrics.json").read_text())
    assert report["examples"] == 40
    told = ["SHA-256", "of", "the", "counts", report["sha256"]["federated"]]
    assert told in [line.split() for line in out.splitlines()]
    assert f"{report['evaluation']['accuracy']:.4f}" in out
    for name in ALL - full - {"metrics.json"}:
        members = FlyNNClassifier.load(folder / name).model_.members
        assert reports.counts_sha256(members) == report["sha256"]["federated"]


def test_full_disk_and_unequal_counts_are_both_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reports.compiled

    def unequal(*args: Any) -> dict[str, Any]:
        report = whole(*args)
        return report | {"sha256": report["sha256"] | {"pooled": "34cd", "equal": False}}

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "x")

    monkeypatch.setattr(reports, "compiled", unequal)
    monkeypatch.setattr(os, "fsync", full)
    with raises(FlyNNError, field="results", got="federation.npz, model.npz, metrics.json, equal"):
        run(tmp_path, monkeypatch, lambda content, kind: content)
