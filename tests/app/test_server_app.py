"""The app that `flwr run` starts at the server, without the processes."""

from __future__ import annotations

import csv
import errno
import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from flwr_flynn import FlyNNClassifier, FlyNNClient, FlyNNStrategy, message
from flwr_flynn.app import metrics_json as reports
from flwr_flynn.app import run_plan, server_app
from flwr_flynn.app.cli import main as show
from flwr_flynn.app.report.page import page
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_plan import RunPlan
from flwr_flynn.errors import AggregationError, ConfigError, DataError, FlyNNError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.samples import Samples
from flwr_flynn.flower.records import recorddict_compat as compat
from flwr_flynn.privacy import mechanism_from_dict
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.app.data.files import written
from tests.fakes import CLASSES, SPEC, FakeGrid, Node, points
from tests.raising import raises

TOO_MANY = "refused: counts: expected at most 19 examples, got 20"
EXIT_PAGE = (
    "Exit Code: 700\n\nAn unhandled exception occurred.\n\nFor more "
    "information, visit: <https://x>"
)


@pytest.fixture(autouse=True)
def a_logger_without_the_app_s_filter() -> Iterator[None]:
    """Undo the app's filters of Flower's logger, which end with the app's process."""
    flower = logging.getLogger("flwr")
    before = list(flower.filters)
    yield
    flower.filters[:] = before


# -------- failures


def streamed(
    settings: dict[str, Any], error: type[Exception], capfd: pytest.CaptureFixture[str]
) -> list[str]:
    """The lines of a failed run: those of the app, then those of Flower's process."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s :      %(message)s"))
    flower = logging.getLogger("flwr")
    flower.addHandler(handler)
    try:
        with pytest.raises(error) as raised:
            server_app.main(FakeGrid({}), Context(7, 0, {}, RecordDict(), settings))
        printed = capfd.readouterr().out
        flower.log(
            logging.ERROR, "%s raised an exception", "Simulation", exc_info=raised.value
        )
        flower.log(logging.ERROR, EXIT_PAGE)
    finally:
        flower.removeHandler(handler)
    return [line for line in (printed + stream.getvalue()).splitlines() if line]


def fail(error: BaseException) -> Callable[..., Any]:
    """A function that fails."""

    def failing(*_: Any) -> Any:
        raise error

    return failing


def test_a_wrong_setting_is_told_at_once_and_in_the_last_line(capfd):
    line = "FAILED: ConfigError: run-config alpha: expected a number above 0, got -1.0"
    assert streamed({"alpha": -1.0}, ConfigError, capfd) == [
        line,
        "ERROR :      Exit Code: 700",
        line,
    ]
    record = logging.LogRecord(
        "flwr", logging.INFO, "", 0, "a line of %s", ("another",), None
    )
    assert logging.getLogger("flwr").filter(record)  # later lines stay as they are
    assert record.getMessage() == "a line of another"


def test_data_that_cannot_be_used_are_told_before_parties_are_waited_for(
    capfd, monkeypatch, tmp_path
):
    path = written(tmp_path / "text.csv", "a,town,label\n" + 9 * "1,inf,0\n2,inf,1\n")
    monkeypatch.setattr(run_plan, "is_simulated", lambda _: True)
    monkeypatch.setattr(
        run_plan, "_simulated_parties", fail(AssertionError("waited for the parties"))
    )
    first, *_, last = streamed(
        {"dataset": str(path), "output-dir": str(tmp_path)}, DataError, capfd
    )
    assert first == last
    assert first.startswith("FAILED: DataError: text.csv: ")
    assert first.endswith("18 of 18 samples; in this file: 'town'")


@pytest.fixture
def lines_of_failure(capfd, monkeypatch, tmp_path) -> Callable[..., list[str]]:
    """The lines of a run that fails by an error with a note."""

    def lines(error: Exception) -> list[str]:
        error.add_note("it has 'a'")
        monkeypatch.setattr(server_app, "plan_run", fail(error))
        return streamed({"output-dir": str(tmp_path)}, type(error), capfd)

    return lines


@pytest.mark.parametrize(
    ("error", "line"),
    [
        pytest.param(
            AggregationError("1 of 2 parties counted"),
            "AggregationError: 1 of 2 parties counted; it has 'a'",
            id="one of ours",
        ),
        pytest.param(
            MemoryError("8 TiB"), "MemoryError: 8 TiB; it has 'a'", id="memory"
        ),
        pytest.param(
            AggregationError("no column " + "x" * 5000),
            f"AggregationError: no column {'x' * 1971}…",
            id="a long one",
        ),
    ],
)
def test_an_error_of_ours_is_told_in_one_line(error, line, lines_of_failure):
    first, *rest, last = lines_of_failure(error)
    assert first == last == f"FAILED: {line}"
    assert rest == ["ERROR :      Exit Code: 700"]


def test_another_error_is_told_in_one_line_with_its_traceback(lines_of_failure):
    first, *rest, last = lines_of_failure(ZeroDivisionError("two\nlines"))
    assert first == last == "FAILED: ZeroDivisionError: two lines; it has 'a'"
    for text in (
        "ERROR :      Simulation raised",
        "Traceback",
        "For more information, visit: <https://x>",
    ):
        assert any(line.startswith(text) for line in rest)


def test_the_output_folder_is_made_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert server_app.output_folder(RunConfig(), 7) == tmp_path / "flynn" / "7"
    (tmp_path / "file").touch()
    for odd in (
        "~nosuchuser/x",
        "a\0b",
        f"{tmp_path}/{'a' * 300}",
        str(tmp_path / "file" / "x"),
    ):
        with raises(ConfigError, field="run-config output-dir"):
            server_app.output_folder(RunConfig(output_dir=odd), 7)


class MessageRun:
    """A run over the message API whose grid fails in one kind of exchange."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.strategy = message.FlyNNStrategy(
            spec=SPEC, classes=CLASSES, min_parties=2, decay=0.5, min_available_nodes=2
        )

    def __call__(self) -> list[str]:
        nodes = {
            n: Node(
                FlyNNClient(*points(9, n), X_test=np.eye(4), y_test=np.arange(4) % 3)
            )
            for n in (1, 2)
        }
        plan = RunPlan(RunConfig(), None, None, self.strategy)
        grid = FakeGrid(nodes, between=self.fail)
        return server_app._run(plan, grid, Context(1, 0, {}, RecordDict(), {}))

    def fail(self, messages: list[Message]) -> list[Message]:
        if messages[0].metadata.message_type == self.failing:
            raise OSError("no connection")
        return []


def test_over_the_message_api_the_model_stands_where_the_evaluation_fails():
    run = MessageRun(EVALUATE)
    assert run() == ["OSError"]
    assert len(run.strategy.parties) == 2


def test_over_the_message_api_there_is_no_model_where_the_counting_fails():
    run = MessageRun(TRAIN)
    with pytest.raises(OSError, match="no connection"):
        run()
    assert run.strategy.parties == []


# -------- one run against parties in this process

Spoil = Callable[[RecordDict, str], RecordDict]


class Loopback:
    """A grid of parties, on which `spoil` changes what the second, Mallory, sends."""

    def __init__(self, nodes: Iterable[int], spoil: Spoil, **more: Any) -> None:
        self.run = SimpleNamespace(run_id=1)
        self.spoil = spoil
        X, y = points(20)
        names = {1: "Ulm", 2: "Mallory", 3: "Bonn"}
        self.clients = {
            node: FlyNNClient(
                X, y, X_test=X, y_test=y, name=names[node], **more
            ).to_client()
            for node in nodes
        }

    def get_node_ids(self) -> list[int]:
        return list(self.clients)

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=node, public_key=b"key %d" % node) for node in self.clients
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [self.reply(message) for message in messages]

    def reply(self, message: Message) -> Message:
        client = self.clients[message.metadata.dst_node_id]
        kind = message.metadata.message_type
        if kind == MessageType.TRAIN:
            fitres = client.fit(compat.recorddict_to_fitins(message.content, True))
            content = compat.fitres_to_recorddict(fitres, False)
        else:
            evaluateres = client.evaluate(
                compat.recorddict_to_evaluateins(message.content, True)
            )
            content = compat.evaluateres_to_recorddict(evaluateres)
        if message.metadata.dst_node_id == 2:
            content = self.spoil(content, kind)
        return Message(content, reply_to=message)


class Runner:
    """Runs of the app against parties in this process, with one output folder.

    A run returns its metrics.json.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.grid: type[Loopback] = Loopback
        self.party: dict[str, Any] = {}  # further settings of all parties
        self.number = 1

    def __call__(
        self,
        *,
        nodes: Iterable[int] = (1, 2),
        spoil: Spoil = lambda content, kind: content,
        **settings: Any,
    ) -> dict[str, Any]:
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        defaults: dict[str, Any] = {
            "min-available": len(list(nodes)),
            "min-parties": 1,
            "output-dir": str(self.out),
            "timeout": 2,
        }
        if given.get("action", "train") == "train":
            defaults |= {
                "n-features": 4,
                "classes": ",".join(CLASSES),
                "hash-dim": 64,
            }
        context = Context(self.number, 0, {}, RecordDict(), defaults | given)
        server_app.main(self.grid(nodes, spoil, **self.party), context)
        report: dict[str, Any]
        if given.get("dry-run"):
            report = json.loads((self.out / "plan.json").read_text())
        else:
            report = json.loads((self.out / "metrics.json").read_text())
            assert (self.out / "report.html").read_text() == page(report)
        return report

    def make_private(self) -> None:
        """Give the parties a policy, and one ledger, which gives both the same answer."""
        pytest.importorskip("opendp")
        self.party["budget"] = Budget(self.folder / "state", Policy(1.0, 1e-5))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return Runner(tmp_path)


def empty(content: RecordDict, kind: str) -> RecordDict:
    return RecordDict()


def lost_once() -> Spoil:
    """Loses the first reply of a party."""
    replies: list[str] = []

    def spoil(content: RecordDict, kind: str) -> RecordDict:
        replies.append(kind)
        if len(replies) == 1:
            return RecordDict()
        return content

    return spoil


PLAIN: dict[str, Any] = {"min_parties": 2, "scaling": "none"}  # the counting is first
UNREAD = "failed: its reply cannot be read"


def names(report: dict[str, Any]) -> list[str]:
    return [party["name"] for party in report["parties"]]


def test_a_reply_to_the_counting_that_is_lost_once_costs_a_round_and_nothing_else(
    run, monkeypatch
):
    whole = run(**PLAIN)
    unfinished = run.out / "federation.unfinished.npz"
    report = run(spoil=lost_once(), **PLAIN)
    assert report["missing"] == report["absent"] == {}
    for name in ("selection", "evaluation", "sha256"):
        assert report[name] == whole[name], name
    assert not unfinished.exists()
    # A run that ends before its last phase can be resumed.
    with monkeypatch.context() as patch:
        patch.setattr(Run, "rounds_left", 0)
        assert run(spoil=lost_once(), **PLAIN)["evaluation"] is None
    assert unfinished.exists()
    resumed = run(action="resume", federation=str(run.out / "federation.npz"))
    assert resumed["sha256"] == whole["sha256"]


class Failing(Loopback):
    """A grid on which Ulm's reply cannot be read, Mallory's app fails, Bonn's works."""

    is_named = True
    """The failure is told by the party; otherwise by the SuperLink."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        for request in messages:
            # The SuperLink gives messages their ids.
            node = request.metadata.dst_node_id
            request.metadata.__dict__["_message_id"] = f"to {node}"
        stranger = Message(RecordDict(), dst_node_id=9, message_type=MessageType.TRAIN)
        return [
            *super().send_and_receive(messages),
            Message(RecordDict(), reply_to=stranger),
        ]

    def reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node == 2:
            return self.failure(message)
        reply = super().reply(message)
        records = reply.content.config_records
        (metrics,) = (name for name in records if name.endswith("res.metrics"))
        if node == 1:
            records[metrics] = ConfigRecord({"a": [1, 2]})
        return reply

    def failure(self, message: Message) -> Message:
        text = f"Traceback: {'a line, ' * 50} ZeroDivisionError: by none"
        reply = Message(Error(3, text), reply_to=message)
        if not self.is_named:
            reply.metadata.__dict__["_src_node_id"] = 1
        return reply


@pytest.mark.parametrize("is_named", [True, False])
def test_each_failure_is_told_of_its_own_party(is_named, run):
    run.grid = type("Failing", (Failing,), {"is_named": is_named})
    report = run(nodes=(1, 2, 3))
    assert names(report) == ["Bonn"]
    # All are asked again for the evaluation.
    assert report["evaluation"]["examples"] == 20
    for missing in (report["missing"], report["absent"]["evaluation"]):
        text = missing["node 2"]
        assert missing == {"node 1": f"{UNREAD} (TypeError)", "node 2": text}
        assert text.startswith("failed: Traceback: ")
        # The cause comes last.
        assert text.endswith("ZeroDivisionError: by none")
        assert len(text) <= 200


def test_a_run_with_columns_and_a_selection_reports_them(run, capsys):
    report = run(hash_dim=256)
    assert (report["format"], report["scaling"]) == (3, "auto")
    assert report["columns"]["examples"] <= 40
    selection = report["selection"]
    members = report["members"]
    assert len(report["specs"]) == len(selection["accuracies"]) == 5 > len(members) > 1
    assert max(map(max, selection["accuracies"])) == selection["accuracy"]
    assert sum(member["weight"] for member in members) == pytest.approx(1)
    assert list(report["traffic"]) == [
        "columns",
        "counts",
        "selection",
        "calibration",
        "evaluation",
    ]
    assert report["evaluation"]["examples"] == 40
    model = FlyNNClassifier.load(run.out / "model.npz").model_
    assert model.sha256() == report["sha256"]["model"]
    rows = zip(
        selection["choices"], selection["scorings"], members, model.members, strict=True
    )
    for (spec, _, weight), scoring, reported, member in rows:
        assert reported["weight"] == member.weight == weight
        assert [report["rule"], reported["decay"], reported["temperature"]] == scoring
        assert report["specs"][spec].items() <= reported.items()
        assert reported["spec"] == json.loads(json.dumps(member.spec.to_dict()))
        assert reported["spec"].keys() <= reported.keys()
        assert reported["fingerprint"] == member.counts.spec_fingerprint
    file = run.out / "federation.npz"
    assert len(Federation.load(file).totals.parts) == len(members)
    capsys.readouterr()
    assert show(["show", str(file)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["counts sha256"] == report["sha256"]["federated"]
    assert "Mallory" in [party["party"] for party in shown["parties"]]


@pytest.mark.parametrize("phase", ["counts", "selection", "evaluation"])
def test_a_run_that_stopped_goes_on(phase, run, monkeypatch):
    saved = run.folder / "kept.npz"
    unfinished = run.folder / "kept.unfinished.npz"
    settings: dict[str, Any] = {"federation": str(saved)}
    whole = run(federation=str(run.folder / "a.npz"))
    assert not (run.folder / "a.unfinished.npz").exists()
    with monkeypatch.context() as patch:
        complete = Run.complete

        def stops(self: Run, *args: Any) -> Any:
            if self.due is not None and self.due.name == phase:
                raise KeyboardInterrupt
            return complete(self, *args)

        patch.setattr(Run, "complete", stops)
        with pytest.raises(KeyboardInterrupt):
            run(**settings)
    assert (unfinished.is_file(), saved.exists()) == (True, False)
    with raises(ConfigError, field="run-config federation"):
        run(**settings)
    report = run(action="resume", **settings)
    assert report["sha256"]["model"] == whole["sha256"]["model"]
    assert report["evaluation"]["accuracy"] == whole["evaluation"]["accuracy"]
    assert len(report["federation"]) == 2
    assert (unfinished.exists(), Federation.load(saved).phase) == (False, "")
    with raises(ConfigError, field="run-config federation"):
        run(action="resume", **settings)


def test_a_run_that_stopped_is_found_by_its_output_folder(run, monkeypatch, caplog):
    """The file in the output folder is the `federation` that the settings mean.

    Without a folder either there is nothing to find: each run has a folder of its own.
    """
    whole = run(federation=str(run.folder / "a.npz"))
    with monkeypatch.context() as patch:
        patch.setattr(Run, "rounds_left", 0)
        run(spoil=lost_once(), **PLAIN)
    assert f"federation = {run.out / 'federation.npz'}" in caplog.text
    assert (run.out / "federation.unfinished.npz").exists()
    resumed = run(action="resume")
    assert resumed["sha256"] == run(**PLAIN)["sha256"]
    assert run(action="evaluate")["sha256"] == resumed["sha256"] != whole["sha256"]
    for action in ("resume", "join", "withdraw", "update", "evaluate"):
        with raises(ConfigError, field="run-config federation"):
            run(action=action, output_dir="")


class Second(Loopback):
    """A grid on which another run starts while this one is under way."""

    settings: ClassVar[dict[str, Any]] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        second = Context(2, 0, {}, RecordDict(), self.settings)
        with raises(ConfigError, field="run-config output-dir", got="federation.npz"):
            server_app.main(Loopback((), lambda content, _: content), second)
        return super().send_and_receive(messages, timeout=timeout)


def test_two_runs_do_not_write_into_one_folder(run):
    common = {"output-dir": str(run.out), "n-features": 4, "classes": "0,1,2"}
    of_its_own = {"federation": str(run.folder / "b.npz")}
    for first in ({}, {"federation": str(run.folder / "a.npz")}):
        for second in ({}, of_its_own):
            run.grid = type("Second", (Second,), {"settings": common | second})
            run(**first)
            (run.folder / "a.npz").unlink(missing_ok=True)
    run.grid = Loopback
    run()


NOISY: dict[str, Any] = {"epsilon": 1.0, "n_examples": 40, "any_noise": True}


def assert_of_public_ranges(report: dict[str, Any]) -> None:
    """No question about the columns, and one member whose codes have 32 edges."""
    assert report["columns"] is None
    assert "columns" not in report["traffic"]
    (member,) = report["members"]
    assert (member["coding"], member["edges"]) == ("bumps", True)
    assert member["spec"]["row_nnz"] == 6
    assert {len(edges) for edges in member["spec"]["edges"]} == {32}


def test_a_run_with_public_ranges_asks_for_nothing_of_the_columns(run):
    report = run(ranges="-1:5")
    assert_of_public_ranges(report)
    assert report["privacy"] is None
    assert report["selection"] is not None


def test_a_private_run_with_public_ranges_asks_for_noisy_sums_of_the_columns(run):
    run.make_private()
    report = run(ranges="-1:5", delta=1e-5, **NOISY)
    assert report["columns"] is None
    assert [*report["traffic"]][:2] == ["column sums", "counts"]
    (member,) = report["members"]
    assert "coding" not in member
    assert report["privacy"] is not None
    assert report["selection"] is None


# -------- federations that grow


def fingerprints(report: dict[str, Any]) -> set[str]:
    return {member["fingerprint"] for member in report["members"]}


def test_a_federation_goes_through_train_join_and_evaluate(run):
    file = run.folder / "kept.npz"

    def refused(expected: str = "", **settings: Any) -> None:
        with raises(ConfigError, field="run-config federation") as error:
            run(nodes={1}, **{"federation": str(file)} | settings)
        if expected:
            assert error.value.expected == expected

    for action in ("join", "withdraw", "evaluate"):
        refused("the server's own file", action=action)
    for name in ("model.npz", "metrics.json", "report.html", "figures.csv"):
        refused(federation=str(run.out / name))
    refused("a file", federation="~nobody-of-this-name/f.npz")
    first = run(nodes={1}, hash_dim=256, federation=str(file), rule="novelty")
    assert len(first["members"]) > 1
    again = run(nodes={1}, action="evaluate", federation=str(file))
    assert again["members"] == first["members"]
    assert again["sha256"] == first["sha256"]
    before = file.read_bytes()
    refused("none yet")
    with raises(AggregationError, counted=0, missing={"Mallory": TOO_MANY}):
        run(nodes={2}, action="join", federation=str(file), max_examples=19)
    assert file.read_bytes() == before
    joined = run(nodes={2}, action="join", federation=str(file), max_examples=20)
    assert (joined["rule"], joined["examples"]) == ("novelty", 40)
    assert fingerprints(joined) <= fingerprints(first)
    parties = [member.name for member in Federation.load(file).members]
    assert parties == ["Mallory", "Ulm"]
    before = file.read_bytes()
    assert run(action="evaluate", federation=str(file))["evaluation"]["examples"] == 40
    assert file.read_bytes() == before
    for name, value in (("decay", "0.5"), ("rule", "novelty"), ("max-examples", 20)):
        with raises(ConfigError, field=f"run-config {name}"):
            run(action="evaluate", federation=str(file), **{name: value})


def test_members_of_a_saved_run_have_their_names_in_the_report_of_a_later_one(run):
    file = str(run.folder / "kept.npz")
    run(nodes={2}, federation=file)
    # What Mallory sends, who is in the file, is empty.
    report = run(action="join", federation=file, spoil=empty)
    assert names(report) == ["Ulm"]
    assert report["absent"]["selection"].keys() == {"Mallory"}
    assert report["absent"]["evaluation"].keys() == {"Mallory"}
    report = run(action="evaluate", federation=file, spoil=empty)
    assert report["absent"]["evaluation"].keys() == {"Mallory"}


ONE_HASH = {"scaling": "none", "rule": "novelty", "decay": "0.5"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        ONE_HASH,
        {"scaling": "none", "decay": "0.5"},
        {"scaling": "none", "rule": "novelty"},
        {"ranges": "-1:5"},
        {"action": "join"},
        {"action": "evaluate"},
    ],
    ids=str,
)
def test_server_and_parties_without_anything_of_their_own_have_the_same_file(
    settings, run
):
    copy = run.folder / "party.npz"
    if "action" in settings:
        file = str(run.folder / "kept.npz")
        run(nodes={1}, federation=file, **ONE_HASH)
        settings = settings | {"federation": file}
    run.party = {"class_prior": False, "on_model": lambda model: model.save(copy)}
    report = run(**settings)
    assert copy.read_bytes() == (run.out / "model.npz").read_bytes()
    assert FlyNNClassifier.load(copy).model_.sha256() == report["sha256"]["model"]


# -------- private runs


def test_of_noisy_counts_the_copies_differ_in_the_record_of_the_releases_alone(run):
    copy = run.folder / "party.npz"
    run.make_private()
    run.party["on_model"] = lambda model: model.save(copy)
    run(**NOISY, delta=1e-5, scale="1")
    (server,) = FlyNNClassifier.load(run.out / "model.npz").model_.members
    (party,) = FlyNNClassifier.load(copy).model_.members
    assert server.spec == party.spec
    assert server.scoring == party.scoring
    assert (server.counts.array == party.counts.array).all()
    (noise,) = party.counts.noise
    variances = [release.variance * release.times for release in server.counts.noise]
    assert sum(variances) == noise.variance


@pytest.mark.parametrize("more", [{"delta": 1e-5}, {}, {"n_released": 20}])
def test_a_private_run_reports_its_guarantee(more, run, capsys):
    run.make_private()
    report = run(**NOISY, scale="1", **more)
    privacy = report["privacy"]
    model = FlyNNClassifier.load(run.out / "model.npz")
    mechanism = mechanism_from_dict(privacy["mechanism"])
    assert model.guarantee_ == privacy["guarantee"] == mechanism.guarantee()
    assert privacy["epsilon"] == pytest.approx(1.0, rel=0.01)
    assert privacy["delta"] == more.get("delta", 0.0)
    for name in ("examples", "evaluation", "selection", "columns"):
        assert report[name] is None, name
    assert [party["examples"] for party in report["parties"]] == [None, None]
    assert model.counts_.noise_variance == pytest.approx((2 * privacy["noise_sd"]) ** 2)
    printed = " ".join(capsys.readouterr().out.split())
    for text in ("hidden", "none: parties send no results", privacy["guarantee"]):
        assert text in printed


def test_parties_that_keep_their_results_are_named_where_they_are_asked(run):
    run.make_private()
    report = run(**NOISY, scale="1", evaluate=True)
    assert set(report["absent"]["evaluation"]) == {"Ulm", "Mallory"}
    with raises(AggregationError, counted=0) as caught:
        run(**NOISY | {"epsilon": 0.5}, scale="1", evaluate=True)
    assert caught.value.missing.keys() == {"Ulm", "Mallory"}
    assert all(
        reason.startswith("declined: policy max-epsilon:")
        for reason in caught.value.missing.values()
    )


# -------- results that are spoiled, or cannot be written


def test_whatever_fails_after_the_counting_the_model_is_there(run, monkeypatch):
    def spoil(content: RecordDict, kind: str) -> RecordDict:
        if kind == MessageType.TRAIN:
            return content
        return RecordDict()

    report = run(spoil=spoil)
    assert (report["missing"], report["examples"]) == ({}, 40)
    assert report["absent"]["evaluation"] == {"Mallory": f"{UNREAD} (KeyError)"}
    with monkeypatch.context() as patch:
        patch.setattr(FlyNNStrategy, "aggregate_evaluate", fail(KeyError("x")))
        report = run()
    assert (report["evaluation"], report["evaluation_errors"]) == (None, ["KeyError"])
    (run.out / "model.npz").unlink()
    monkeypatch.setattr(reports, "run_metrics", fail(KeyError("x")))
    with pytest.raises(KeyError):
        run()
    model = FlyNNClassifier.load(run.out / "model.npz").model_
    assert model.members[0].counts.n_examples == 40


RESULTS = [
    "federation.npz",
    "model.npz",
    "metrics.json",
    "report.html",
    "left.html",
    "figures.csv",
]
ALL = set(RESULTS)


def names_of_files(run: Runner) -> set[str]:
    return {path.name for path in run.out.iterdir()}


@pytest.fixture
def unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports say that the counts are not the pooled ones."""
    run_metrics = reports.run_metrics

    def reported(*args: Any) -> dict[str, Any]:
        report = run_metrics(*args)
        report["sha256"] |= {"pooled": "34cd", "equal": False}
        return report

    monkeypatch.setattr(reports, "run_metrics", reported)


@pytest.mark.usefixtures("unequal")
def test_counts_that_are_not_the_pooled_ones_fail_the_run(run, capsys):
    with raises(FlyNNError, field="results", got="equal"):
        run()
    assert "NO" in capsys.readouterr().out
    assert names_of_files(run) == ALL | {".federation.npz.lock"}


@pytest.mark.usefixtures("unequal")
def test_counts_that_are_not_the_pooled_ones_fail_the_run_on_a_full_disk(
    run, monkeypatch, capsys
):
    monkeypatch.setattr(os, "fsync", fail(OSError(errno.ENOSPC, "x")))
    with raises(FlyNNError, field="results", got="federation.npz, model.npz, equal"):
        run()
    assert "NO" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("full", "refused", "renamed"),
    [
        (ALL, {"federation.npz", "figures.csv"}, set()),
        ({"model.npz"}, {"model.npz"}, ALL - {"model.npz"}),
        (
            {"report.html"},
            {"report.html"},
            {"federation.npz", "left.html", "figures.csv"},
        ),
        ({"metrics.json"}, {"metrics.json"}, ALL - {"model.npz", "metrics.json"}),
        (
            {"federation.npz", "metrics.json"},
            {"federation.npz", "metrics.json"},
            {"report.html", "left.html", "figures.csv"},
        ),
    ],
    ids=["all", "model", "page", "metrics", "federation and metrics"],
)
def test_results_that_cannot_be_written_are_told_after_the_report(
    full, refused, renamed, run, monkeypatch, capsys, caplog
):
    """Results replace the old ones one after another, the model last.

    Behind one that cannot, all others stay as they were.
    """
    replace = os.replace

    def fails(source: Any, target: Any) -> None:
        if Path(target).name in full:
            raise OSError(errno.EROFS, "x", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with (
        caplog.at_level(logging.ERROR, logger="flwr"),
        raises(FlyNNError, field="results") as error,
    ):
        run()
    assert set(error.value.got.split(", ")) == refused
    assert str(error.value).count(os.strerror(errno.EROFS)) == len(refused)
    assert str(run.folder) not in str(error.value)
    assert all(str(run.folder) in record.getMessage() for record in caplog.records)
    out = capsys.readouterr().out
    expected = renamed | {".federation.npz.lock"}
    if "federation.npz" in full:
        # The run can go on from what is there.
        expected |= {"federation.unfinished.npz"}
    assert names_of_files(run) == expected
    # The whole of a report that cannot be written stands in the log.
    report, _ = json.JSONDecoder().raw_decode(out[out.index("{") :])
    if "metrics.json" in renamed:
        assert json.loads((run.out / "metrics.json").read_text()) == report
    assert report["examples"] == 40
    lines = [line.split() for line in out.splitlines()]
    digest = report["sha256"]["federated"]
    assert ["SHA-256", "of", "the", "counts", digest] in lines
    assert f"{report['evaluation']['accuracy']:.3f}" in out
    for name in {"model.npz", "federation.npz"} & renamed:
        members = FlyNNClassifier.load(run.out / name).model_.members
        assert reports.counts_sha256(members) == digest


def runs_of(folder: Path) -> dict[str, str]:
    """The run that each result says it is of; of the model its SHA-256."""
    report = json.loads((folder / "metrics.json").read_text())
    pages = {
        name: re.search(r"report of run (\d+)", (folder / name).read_text())
        for name in ("report.html", "left.html")
    }
    with (folder / "figures.csv").open(newline="") as stream:
        figures = {row["figure"]: row["value"] for row in csv.DictReader(stream)}
    return {
        "metrics.json": report["run"]["run_id"],
        **{name: page[1] for name, page in pages.items() if page},
        "figures.csv": figures["run"],
        "model.npz": FlyNNClassifier.load(folder / "model.npz").model_.sha256(),
    }


def full_disk(where: str, step: int, goes_on: bool, calls: list[str]) -> Any:
    """A function of `os` that finds no room for a result after so many calls.

    The results are noted in `calls`. With `goes_on` there is no room later, either.
    """
    original = getattr(os, where)

    def fails(first: Any, *rest: Any, **more: Any) -> Any:
        path = str(first)
        if isinstance(first, int):
            path = os.readlink(f"/proc/self/fd/{first}")
        if any(f".{name}.partial" in path for name in RESULTS[1:]):
            calls.append(path)
            if len(calls) == step + 1 or (goes_on and len(calls) > step):
                raise OSError(errno.ENOSPC, "x", path)
        return original(first, *rest, **more)

    return fails


@pytest.mark.parametrize("goes_on", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("where", ["open", "fsync", "replace"])
def test_on_a_full_disk_results_are_those_of_one_run_or_say_of_which(
    where, goes_on, run, monkeypatch
):
    whole = run()
    for step in range(4):
        contents = {name: (run.out / name).read_bytes() for name in RESULTS[1:]}
        before = runs_of(run.out)
        # The report names the model that is its own.
        assert before["model.npz"] == whole["sha256"]["model"]
        run.number += 1
        settings = {"hash_dim": 64 * run.number}
        calls = list[str]()
        with monkeypatch.context() as patch:
            patch.setattr(os, where, full_disk(where, step, goes_on, calls))
            with raises(FlyNNError, field="results") as error:
                run(**settings)
        assert len(calls) > step
        assert os.strerror(errno.ENOSPC) in str(error.value)
        after = runs_of(run.out)
        now = {name: (run.out / name).read_bytes() for name in RESULTS[1:]}
        if where != "replace":
            assert after == before
            assert now == contents
        for name, content in contents.items():
            assert (now[name] == content) == (after[name] == before[name])
        assert not [*run.out.glob(".*.partial.*")]
        whole = run(**settings)
        reports_of = ("metrics.json", "report.html", "left.html", "figures.csv")
        last = dict.fromkeys(reports_of, str(run.number))
        assert runs_of(run.out) == last | {"model.npz": whole["sha256"]["model"]}


def test_an_update_is_in_the_report_with_its_digests(run, capsys):
    file = str(run.folder / "kept.npz")
    X, y = points(20)
    first = run(federation=file)
    run.party["previous"] = Samples(X, y)
    same = run(action="update", federation=file)
    assert same["sha256"]["federated"] == first["sha256"]["federated"]
    assert [update["party"] for update in same["updates"]] == ["Ulm", "Mallory"]
    for update in same["updates"]:
        assert update["before"] == update["now"]
    assert "parties updated" in capsys.readouterr().out
    run.party["previous"] = Samples(X[1:], y[1:])  # not what was counted
    with pytest.raises(AggregationError):
        run(action="update", federation=file)
    assert run(action="evaluate", federation=file)["sha256"] == same["sha256"]
