"""The app that `flwr run` starts at a party, without the processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.client import Client
from flwr.common import Code, EvaluateIns, FitIns, Parameters, ndarrays_to_parameters

from flwr_flynn.app import client_app
from flwr_flynn.app.client_app import client_fn, in_message_api, simulated_budget, simulated_client
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.federated import codec
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.protocol import PARTY, PHASE, REFUSED, UNKEPT
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.flower import records
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts, Mechanism, SimulatedRelease
from tests.fakes import FakeGrid, counting, decode_release, evaluation_of

RUN = RunSpec(HashSpec(n_features=64, hash_dim=128, row_nnz=8, hash_nnz=4, seed=1), tuple(range(10)))


def asking(request: Request[Any]) -> FitIns:
    return FitIns(ndarrays_to_parameters([]), {PHASE: request.phase, **request.to_config()})


def context(node: dict[str, Any], **run: Any) -> Context:
    settings = {row.key: row.default for row in RunConfig.rows()}
    return Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config=settings | run)


def fit(where: Context, made: Callable[[Context], Client] = client_fn) -> tuple[int, int, dict[str, Any]]:
    nothing: Parameters = ndarrays_to_parameters([])
    reply = made(where).fit(FitIns(nothing, counting(RUN)))
    assert reply.status.code == Code.OK
    return len(reply.parameters.tensors), reply.num_examples, reply.metrics


def test_simulated_parties_hold_shares_of_one_data_set() -> None:
    pytest.importorskip("flwr_datasets")
    nodes = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
    replies = [fit(context(node), simulated_client) for node in nodes]
    assert [reply[2][PARTY] for reply in replies] == ["party-0", "party-1", "party-2"]
    assert sum(reply[1] for reply in replies) == 1444


def test_requests_of_both_apis_get_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGrid({})  # without any, no message can be made
    party = FlyNNClient(np.eye(64), np.arange(64) % 10, name="Basel").to_client()
    monkeypatch.setattr(client_app, "client_fn", lambda _: party)
    node = context({})
    asked = Message(records.request([], counting(RUN)), dst_node_id=2, message_type=MessageType.TRAIN)
    reply = in_message_api(asked, node, lambda *_: pytest.fail("not Flower's to answer"))
    legacy = party.fit(FitIns(ndarrays_to_parameters([]), counting(RUN)))
    assert records.tensors_of(reply.content) == legacy.parameters.tensors
    assert records.config_of(reply.content)[PARTY] == legacy.metrics[PARTY] == "Basel"


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY])
def test_other_requests_are_left_to_flower(kind: str) -> None:
    FakeGrid({})
    asked = Message(RecordDict(), dst_node_id=2, message_type=kind)
    assert in_message_api(asked, context({}), lambda request, _: request) is asked


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """The node config of a party with a file of 64 samples."""
    np.savez(tmp_path / "mine.npz", X=np.eye(64), y=np.arange(64) % 10)
    return {"data-path": str(tmp_path / "mine.npz"), "party-id": "Basel", "test-fraction": 0}


@pytest.mark.parametrize("more", [{}, {"partition-id": 0, "num-partitions": 2}])  # which tutorials give to every node
def test_a_deployed_party_reads_its_own_file(more: dict[str, Any], own: dict[str, Any]) -> None:
    _, examples, metrics = fit(context(own | more))
    assert (examples, metrics[PARTY]) == (64, "Basel")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({}, "node-config data-path: expected the party's own `.csv`, `.parquet` or `.npz` file, got missing"),
        ({"data-path": "/secret/folder/a.npz"}, "node-config data-path: expected a file 'a.npz', got no such file"),
        ({"data-path": "a.npz", "memory-limit": 0}, "node-config memory-limit: expected a number above 0, got 0"),
        ({"data-path": "~nosuchuser/a.npz"}, "node-config data-path: expected a file 'a.npz', got no such file"),
    ],
)
def test_a_party_that_cannot_take_part_says_so_by_name(node: dict[str, Any], reason: str) -> None:
    tensors, examples, metrics = fit(context(node | {"party-id": "Basel"}))
    assert (tensors, examples) == (0, 0)
    assert metrics == {REFUSED: reason, PARTY: "Basel"}


def test_an_error_that_nobody_thought_of_comes_with_a_name_and_without_its_text() -> None:
    metrics = fit(context({"partition-id": "x", "num-partitions": 2}), simulated_client)[2]
    assert metrics == {REFUSED: "failed with ValueError", PARTY: "party-x"}


def test_a_file_without_a_header_tells_the_server_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mine.csv").write_text("63,male,HIV+\n41,female,HIV-\n")
    with caplog.at_level("WARNING", "flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        metrics = fit(context({"data-path": str(tmp_path / "mine.csv"), "party-id": "Basel"}))[2]
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert metrics[REFUSED].startswith("mine.csv: ")
    assert not any(word in metrics[REFUSED] for word in ("63", "male", "HIV"))
    assert "HIV+" in caplog.text  # the party's own log


@pytest.mark.parametrize(("key", "value", "default"), [("memory-limit", 1.0, 4.0), ("min-examples", 2, 5)])
def test_some_settings_are_those_of_the_node_or_of_the_simulation(
    key: str, value: Any, default: Any, own: dict[str, Any]
) -> None:
    pytest.importorskip("flwr_datasets")

    def found(client: Any) -> Any:
        option = getattr(client.client.party.options, key.replace("-", "_"))
        return option / 2**30 if key == "memory-limit" else option

    simulated = {"partition-id": 0, "num-partitions": 1}
    assert found(client_fn(context(own | {key: value}))) == value
    assert found(client_fn(context(own, **{key: value}))) == default  # the run's is not the party's
    assert found(simulated_client(context(simulated, **{key: value}))) == value


def test_the_party_s_limits_are_kept(own: dict[str, Any]) -> None:
    assert str(fit(context(own | {"memory-limit": 1e-6}))[2][REFUSED]).startswith("memory: ")
    said = "node-config secure: expected a secure sum"  # of a run in clear
    assert str(fit(context(own | {"secure": True}))[2][REFUSED]).startswith(said)
    request = asking(ColumnsRequest(64, tuple(range(10))))
    assert [client_fn(context(own | {"min-examples": n})).fit(request).num_examples for n in (6, 7)] == [64, 28]


# ---- private counts

LAPLACE = LaplaceCounts(1.0, hash_nnz=4, n_classes=10)


def noisy(mechanism: Mechanism = LAPLACE, names: tuple[str, ...] | None = None) -> RunSpec:
    return RunSpec(RUN.spec, RUN.classes, mechanism, feature_names=names)


PRIVATE = noisy(names=tuple(f"x{i}" for i in range(64)))


def private_fit(
    where: Context, run: RunSpec = PRIVATE, made: Callable[[Context], Client] = client_fn
) -> tuple[int, int, dict[str, Any]]:
    pytest.importorskip("opendp")
    reply = made(where).fit(FitIns(ndarrays_to_parameters([]), counting(run)))
    return len(reply.parameters.tensors), reply.num_examples, reply.metrics


def write_csv(path: Path, rows: list[str]) -> dict[str, Any]:
    names = ",".join([f"x{i}" for i in range(64)])
    path.write_text("\n".join([f"{names},label", *rows]) + "\n")
    return {"data-path": str(path), "party-id": "Basel"}


ROWS = [",".join(map(str, [*row, i % 10])) for i, row in enumerate(np.eye(64))]


def test_a_deployed_party_gives_private_counts_where_its_own_config_allows_it(tmp_path: Path) -> None:
    node = write_csv(tmp_path / "mine.csv", ROWS)
    assert "policy max-epsilon not set" in private_fit(context(node))[2][REFUSED]
    assert "node-config state-path: expected" in private_fit(context(node | {"max-epsilon": 1.0}))[2][REFUSED]
    allowed = node | {"max-epsilon": 1.0, "state-path": str(tmp_path / "state")}
    assert private_fit(context(allowed)) == (2, 1, {PARTY: "Basel"})
    assert fit(context(allowed))[2][REFUSED].startswith("policy max-epsilon set: ")
    other = replace(PRIVATE, mechanism=LaplaceCounts(0.5, hash_nnz=4, n_classes=10))
    assert "policy max-epsilon" in private_fit(context(allowed), other)[2][REFUSED]
    unnamed = private_fit(context(allowed | {"max-epsilon": 9.0}), noisy())[2][REFUSED]
    assert unnamed.startswith("feature_names: ")  # the columns of the file have names: positions may differ elsewhere
    seeded = noisy(SimulatedRelease(LAPLACE, 1))
    assert private_fit(context(allowed), seeded)[2][REFUSED].startswith("policy mechanisms: expected ")


@pytest.mark.parametrize(
    "rows",
    [
        [],
        ROWS[:1],
        [*ROWS, "," * 64],
        [*ROWS, ROWS[0].replace("1.0", "HIV+")],
        [ROWS[0] + ",1,2,3", *ROWS],
        [*ROWS, "1,2"],
        [*ROWS, ROWS[0].replace("1.0", "1e999")],
    ],
)
def test_no_row_of_a_file_shows_in_the_form_of_a_private_reply(rows: list[str], tmp_path: Path) -> None:
    node = write_csv(tmp_path / "mine.csv", rows)
    policy = {"max-epsilon": 1.0, "state-path": str(tmp_path / "state")}
    assert private_fit(context(node | policy)) == (2, 1, {PARTY: "Basel"})


def test_a_private_simulation_keeps_its_ledgers_under_the_output_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    budget = simulated_budget(RunConfig.parse({"epsilon": 1, "noise": "seeded"}), 7, 2)
    assert budget is not None
    assert budget.path == tmp_path / "home" / "flynn" / "7" / "state" / "7" / "party-2"
    assert (budget.policy.max_epsilon, budget.policy.mechanisms) == (1.0, ("simulated",))
    assert simulated_budget(RunConfig(), 7, 2) is None
    pytest.importorskip("flwr_datasets")
    run = {"epsilon": 1.0, "output-dir": str(tmp_path)}
    for i in range(2):
        assert private_fit(context({"partition-id": i, "num-partitions": 2}, **run), made=simulated_client)[1] == 1
        assert (tmp_path / "state" / "1" / f"party-{i}" / "ledger.json").exists()
    other = noisy(LaplaceCounts(2.0, hash_nnz=4, n_classes=10))
    where = context({"partition-id": 0, "num-partitions": 2}, **run)
    assert "policy max-epsilon" in private_fit(where, other, simulated_client)[2][REFUSED]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone.csv", "node-config data-path: expected a file 'gone.csv', got no such file"),
        ("a.txt", "node-config data-path: expected a .csv, .parquet or .npz file, got 'a.txt'"),
        ("bad.npz", "bad.npz: expected a readable .npz file"),
        ("flat.npz", "flat.npz: expected a matrix of numbers"),
        ("other.npz", "other.npz: expected an array 'y', got 1 others"),
        ("other.csv", "other.csv: expected a column 'label', got 2 others"),
    ],
)
def test_files_that_no_record_spoils_are_refused_by_name(name: str, reason: str, tmp_path: Path) -> None:
    for text in ("a.txt", "bad.npz"):
        (tmp_path / text).write_text("?")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    np.savez(tmp_path / "flat.npz", X=np.zeros(4), y=np.zeros(4, int))
    np.savez(tmp_path / "other.npz", X=np.zeros((4, 2)))
    node = {"data-path": str(tmp_path / name), "max-epsilon": 1, "state-path": str(tmp_path / "state")}
    assert private_fit(context(node))[2][REFUSED].startswith(reason)


# ---- columns by name, and the party's own copy of the model

NAMES = tuple(f"x{i}" for i in range(64))
NAMED = RunSpec(RUN.spec, RUN.classes, feature_names=NAMES)


def evaluation(run: RunSpec, counts: ClassCounts, n_releases: int = 0, tries: bool = False) -> EvaluateIns:
    request = evaluation_of(run, (counts,), (ScoringRule("balanced", 0.5, 1.0),), (1.0,), n_releases, tries=tries)
    return EvaluateIns(ndarrays_to_parameters(request.arrays()), {PHASE: request.phase, **request.to_config()})


@pytest.fixture
def shuffled(tmp_path: Path) -> dict[str, Any]:
    """A party whose file has the run's columns backwards, and two more; one of them is no number."""
    rows = [[f"Anna{i}", 7, *row[::-1], i % 10] for i, row in enumerate(np.eye(64))]
    lines = [["who", "extra", *NAMES[::-1], "label"], *rows]
    (tmp_path / "mine.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    return {"data-path": str(tmp_path / "mine.csv"), "party-id": "Basel", "test-fraction": 0}


@pytest.mark.parametrize("private", [False, True])
def test_counts_and_sums_are_of_the_announced_columns(
    shuffled: dict[str, Any], private: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if private:
        pytest.importorskip("opendp")
        node = shuffled | {"max-epsilon": 100, "state-path": str(tmp_path / "state")}
        mechanism = LaplaceCounts(100.0, hash_nnz=4, n_classes=10)  # next to no noise
        run = noisy(mechanism, NAMES)
        reply = client_fn(context(node)).fit(FitIns(ndarrays_to_parameters([]), counting(run)))
        arrays = codec.read_tensors(reply.parameters.tensors)
        counts = decode_release(arrays, RUN.hasher, mechanism, 1000).array
    else:
        with caplog.at_level("INFO", "flwr"):
            reply = client_fn(context(shuffled)).fit(FitIns(ndarrays_to_parameters([]), counting(NAMED)))
        counts = codec.decode_all(codec.read_tensors(reply.parameters.tensors), [RUN.hasher], 10)[0].array
        assert (2, "'who', 'extra'") in [record.args for record in caplog.records]
        columns = client_fn(context(shuffled)).fit(asking(ColumnsRequest(64, RUN.classes, NAMES)))
        assert columns.num_examples == 64
    expected = ClassCounts.from_data(RUN.hasher, np.eye(64), np.arange(64) % 10, 10).array
    assert (counts == expected).mean() > 0.99


def test_the_model_is_written_to_the_partys_own_place(shuffled: dict[str, Any], tmp_path: Path) -> None:
    counts = ClassCounts.from_data(RUN.hasher, np.eye(64), np.arange(64) % 10, 10)
    place = tmp_path / "model.npz"
    node = shuffled | {"model-path": f" {place} "}
    assert client_fn(context(shuffled | {"model-path": "  "})).client.party.options.on_model is None
    reply = client_fn(context(node)).evaluate(evaluation(NAMED, counts))
    assert (reply.num_examples, reply.metrics) == (0, {PARTY: "Basel"})
    model = FlyNNClassifier.load(place)
    assert model.counts_ == counts
    assert tuple(model.feature_names_in_) == NAMES
    before = place.read_bytes()
    kept = client_fn(context(node)).evaluate(evaluation(NAMED, ClassCounts.zeros(RUN.hasher, 10)))
    assert kept.metrics == {PARTY: "Basel"}
    assert place.read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.csv", "model.npz"]


@pytest.mark.parametrize("cell", [("x5", ""), ("x5", "NA"), ("x5", "word"), ("label", "z"), ("x5", None)])
@pytest.mark.parametrize("more", [{}, {"secure": True}], ids=str)
def test_a_party_whose_file_is_refused_gets_the_model_all_the_same(
    cell: tuple[str, str | None], more: dict[str, Any], tmp_path: Path
) -> None:
    column, text = cell
    header = [name if name != column or text is not None else "other" for name in (*NAMES, "label")]
    rows = [[*map(str, row), str(i % 10)] for i, row in enumerate(np.eye(64))]
    rows[3][header.index(column) if column in header else 0] = text or ""
    (tmp_path / "mine.csv").write_text("".join(",".join(line) + "\n" for line in [header, *rows]))
    place = tmp_path / "model.npz"
    node = {"data-path": str(tmp_path / "mine.csv"), "model-path": str(place), "test-fraction": 0} | more
    counts = ClassCounts.zeros(RUN.hasher, 10)
    counted = client_fn(context(node)).fit(FitIns(ndarrays_to_parameters([]), counting(NAMED)))
    assert counted.metrics[REFUSED]
    for ins in (evaluation(NAMED, counts, tries=True), evaluation(NAMED, counts)):
        client_fn(context(node)).evaluate(ins)
        assert FlyNNClassifier.load(place).counts_ == counts
        place.unlink()


def test_a_refused_file_has_one_reason_in_all_phases(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(f"{','.join(NAMES)},label\n{'inf,' * 64}1\n")
    node = {"data-path": str(tmp_path / "mine.csv")}
    tried = evaluation(NAMED, ClassCounts.zeros(RUN.hasher, 10), tries=True)
    counted = client_fn(context(node)).fit(FitIns(ndarrays_to_parameters([]), counting(NAMED)))
    assert client_fn(context(node)).evaluate(tried).metrics == counted.metrics
    assert counted.metrics[REFUSED].startswith("mine.csv: expected finite numbers that float64 holds")


def test_a_private_party_gets_the_model_and_answers_nothing(shuffled: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    node = shuffled | {"max-epsilon": 1.0, "state-path": str(tmp_path / "state"), "model-path": str(tmp_path / "m.npz")}
    run = noisy(names=NAMES)
    release = client_fn(context(node)).fit(FitIns(ndarrays_to_parameters([]), counting(run)))
    arrays = codec.read_tensors(release.parameters.tensors)
    counts = decode_release(arrays, RUN.hasher, LAPLACE, 1000)
    reply = client_fn(context(node)).evaluate(evaluation(run, counts, n_releases=1))
    assert (reply.loss, reply.num_examples, reply.metrics) == (0.0, 0, {PARTY: "Basel"})
    assert FlyNNClassifier.load(tmp_path / "m.npz").guarantee_ == LAPLACE.guarantee()


def test_a_model_that_cannot_be_written_is_told_without_a_path(
    shuffled: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    (tmp_path / "model.npz").write_text("the one before")
    monkeypatch.setattr("flwr_flynn.model.model_file.os.fsync", full)
    node = shuffled | {"model-path": str(tmp_path / "model.npz")}
    counts = ClassCounts.zeros(RUN.hasher, 10)
    with caplog.at_level("ERROR", "flwr"):
        metrics = client_fn(context(node)).evaluate(evaluation(NAMED, counts)).metrics
    assert metrics == {PARTY: "Basel", UNKEPT: "failed with WriteError: No space left on device"}
    assert str(tmp_path) in caplog.text
    assert (tmp_path / "model.npz").read_text() == "the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.csv", "model.npz"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("gone/model.npz", "a file in a folder that can be written to, got no such file"),
        ("", "a file in a folder that can be written to, got no such file"),
        ("mine.csv/model.npz", "a file in a folder that can be written to, got no such file"),
        ("m\0.npz", "a file in a folder that can be written to, got no such file"),
        ("../{}/mine.csv", "a file other than data-path, got the same file"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_known_before_the_counting(
    path: str, expected: str, shuffled: dict[str, Any], tmp_path: Path
) -> None:
    node = shuffled | {"model-path": str(tmp_path / path.format(tmp_path.name))}
    _, examples, metrics = fit(context(node))
    assert (examples, metrics[REFUSED]) == (0, f"node-config model-path: expected {expected}")


@pytest.mark.parametrize("place", ["state", "state.exists", "state.lock", "state/model.npz", "link/model.npz"])
def test_the_model_never_replaces_a_file_of_the_ledger(place: str, tmp_path: Path) -> None:
    node = write_csv(tmp_path / "a.csv", ["1,2,0", "3,4,1"])
    node |= {"max-epsilon": 1.0, "max-delta": 1e-4, "state-path": str(tmp_path / "state")}
    (tmp_path / "link").symlink_to(tmp_path / "state")
    _, _, metrics = fit(context(node | {"model-path": str(tmp_path / place)}))
    assert str(metrics[REFUSED]).startswith("node-config model-path: expected a file other than the ledger's")
