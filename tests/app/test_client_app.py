"""The app that `flwr run` starts at a party, without the processes."""

from __future__ import annotations

import logging
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.client import Client
from flwr.common import Code, EvaluateIns, FitIns, ndarrays_to_parameters

import flwr_flynn
from flwr_flynn.app import client_app
from flwr_flynn.app.client_app import (
    client_fn,
    deployed_client,
    in_message_api,
    simulated_budget,
    simulated_client,
)
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
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.app.data.files import written
from tests.fakes import FakeGrid, counting, decode_release, evaluation_of
from tests.snapshots import assert_refused_as_on_record

RUN = RunSpec(
    HashSpec(n_features=64, hash_dim=128, row_nnz=8, hash_nnz=4, seed=1),
    tuple(range(10)),
)
NAMES = tuple(f"x{i}" for i in range(64))
NAMED = RunSpec(RUN.spec, RUN.classes, feature_names=NAMES)
EMPTY = ClassCounts.zeros(RUN.hasher, 10)
X = np.eye(64)
Y = np.arange(64) % 10


def asking(request: Request[Any]) -> FitIns:
    return FitIns(
        ndarrays_to_parameters([]), {PHASE: request.phase, **request.to_config()}
    )


def context(node: dict[str, Any], **run: Any) -> Context:
    settings = {row.key: row.default for row in RunConfig.rows()}
    return Context(
        run_id=1,
        node_id=2,
        node_config=node,
        state=RecordDict(),
        run_config=settings | run,
    )


def counted(
    where: Context, run: RunSpec = RUN, made: Callable[[Context], Client] = client_fn
) -> Any:
    """The reply to a request for counts."""
    reply = made(where).fit(FitIns(ndarrays_to_parameters([]), counting(run)))
    assert reply.status.code == Code.OK
    return reply


def fit(
    where: Context, made: Callable[[Context], Client] = client_fn, run: RunSpec = RUN
) -> tuple[int, int, dict[str, Any]]:
    """Facts of a reply: its number of arrays, its number of samples, and its metrics."""
    reply = counted(where, run, made)
    return len(reply.parameters.tensors), reply.num_examples, reply.metrics


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """The node config of a party with a file of 64 samples."""
    np.savez(tmp_path / "mine.npz", X=X, y=Y)
    return {
        "data-path": str(tmp_path / "mine.npz"),
        "party-id": "Basel",
        "test-fraction": 0,
    }


def test_simulated_parties_hold_shares_of_one_data_set():
    pytest.importorskip("flwr_datasets")
    replies = [
        fit(context({"partition-id": i, "num-partitions": 3}), simulated_client)
        for i in range(3)
    ]
    assert [reply[2][PARTY] for reply in replies] == ["party-0", "party-1", "party-2"]
    assert sum(reply[1] for reply in replies) == 1447


def test_requests_of_both_apis_get_the_same_counts(monkeypatch):
    FakeGrid({})  # without any, no message can be made
    party = FlyNNClient(X, Y, name="Basel").to_client()
    monkeypatch.setattr(client_app, "client_fn", lambda _: party)
    asked = Message(
        records.request([], counting(RUN)),
        dst_node_id=2,
        message_type=MessageType.TRAIN,
    )
    reply = in_message_api(
        asked, context({}), lambda *_: pytest.fail("not Flower's to answer")
    )
    legacy = party.fit(FitIns(ndarrays_to_parameters([]), counting(RUN)))
    assert records.tensors_of(reply.content) == legacy.parameters.tensors
    assert records.config_of(reply.content)[PARTY] == legacy.metrics[PARTY] == "Basel"


@pytest.mark.parametrize(
    "kind", [MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY]
)
def test_other_requests_are_left_to_flower(kind):
    FakeGrid({})
    asked = Message(RecordDict(), dst_node_id=2, message_type=kind)
    assert in_message_api(asked, context({}), lambda request, _: request) is asked


def test_a_deployed_party_reads_its_own_file_whatever_tutorials_give_to_every_node(own):
    _, examples, metrics = fit(context(own | {"partition-id": 0, "num-partitions": 2}))
    assert (examples, metrics[PARTY]) == (64, "Basel")


# ---- parties that refuse


def test_a_party_that_cannot_take_part_says_so_as_it_is_on_record_and_writes_nothing(
    own, tmp_path, monkeypatch
):
    """Settings, files, and places for the model and the record.

    They are named without their folders; no record of a file spoils it.
    """
    monkeypatch.chdir(tmp_path)
    for name, text in {"a.txt": "?", "bad.npz": "?", "other.csv": "a,b\n1,2\n"}.items():
        written(tmp_path / name, text)
    np.savez("flat.npz", X=np.zeros(4), y=np.zeros(4, int))
    np.savez("other.npz", X=np.zeros((4, 2)))
    Path("link").symlink_to(tmp_path / "state")
    Path("data.jsonl").symlink_to(tmp_path / "mine.npz")

    def files() -> dict[str, bytes]:
        return {
            path.name: path.read_bytes()
            for path in tmp_path.iterdir()
            if path.is_file()
        }

    def reason(settings: dict[str, Any]) -> str:
        node = own | settings
        for key, value in settings.items():
            if value is None:
                del node[key]
            elif isinstance(value, str):
                node[key] = value.format(tmp_path)
        before = files()
        tensors, examples, metrics = fit(context(node), deployed_client)
        assert tensors == examples == 0
        assert metrics.keys() == {REFUSED, PARTY}
        assert metrics[PARTY] == "Basel"
        assert files() == before
        return metrics[REFUSED]

    assert_refused_as_on_record(
        Path(__file__).parent / "unready.txt", {"party": reason}
    )


def test_an_error_that_nobody_thought_of_comes_with_a_name_and_without_its_text():
    metrics = fit(
        context({"partition-id": "x", "num-partitions": 2}), simulated_client
    )[2]
    assert metrics == {REFUSED: "failed with ValueError", PARTY: "party-x"}


def test_a_file_without_a_header_tells_the_server_nothing(tmp_path, caplog):
    path = written(tmp_path / "mine.csv", "63,male,HIV+\n41,female,HIV-\n")
    with caplog.at_level("WARNING", "flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        metrics = fit(context({"data-path": str(path), "party-id": "Basel"}))[2]
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert metrics[REFUSED].startswith("mine.csv: ")
    assert not any(word in metrics[REFUSED] for word in ("63", "male", "HIV"))
    assert "HIV+" in caplog.text  # the party's own log


@pytest.mark.parametrize(
    ("key", "value", "default"), [("memory-limit", 1.0, 4.0), ("min-examples", 2, 5)]
)
def test_some_settings_are_those_of_the_node_or_of_the_simulation(
    key, value, default, own
):
    pytest.importorskip("flwr_datasets")

    def found(client: Any) -> Any:
        option = getattr(client.client.party.options, key.replace("-", "_"))
        if key == "memory-limit":
            return option / 2**30
        return option

    simulated = {"partition-id": 0, "num-partitions": 1}
    assert found(client_fn(context(own | {key: value}))) == value
    # The run's setting is not the party's.
    assert found(client_fn(context(own, **{key: value}))) == default
    assert found(simulated_client(context(simulated, **{key: value}))) == value


def test_a_party_below_its_floor_tells_the_columns_of_fewer_samples(own):
    request = asking(ColumnsRequest(64, tuple(range(10))))
    assert [
        client_fn(context(own | {"min-examples": n})).fit(request).num_examples
        for n in (6, 7)
    ] == [64, 28]


# ---- private counts

LAPLACE = LaplaceCounts(1.0, hash_nnz=4, n_classes=10)


def noisy(
    mechanism: Mechanism = LAPLACE, names: tuple[str, ...] | None = NAMES
) -> RunSpec:
    pytest.importorskip("opendp")
    return RunSpec(RUN.spec, RUN.classes, mechanism, feature_names=names)


def csv_file(path: Path, rows: list[str]) -> dict[str, Any]:
    """The node config of a party with a file of these rows."""
    written(path, "\n".join([",".join((*NAMES, "label")), *rows]) + "\n")
    return {"data-path": str(path), "party-id": "Basel"}


ROWS = [",".join(map(str, [*row, i % 10])) for i, row in enumerate(X)]


def test_a_deployed_party_gives_private_counts_where_its_own_config_allows_it(tmp_path):
    node = csv_file(tmp_path / "mine.csv", ROWS)

    def refused(run: RunSpec, **settings: Any) -> str:
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        return str(fit(context(node | given), run=run)[2][REFUSED])

    allowed = {"max_epsilon": 1.0, "state_path": str(tmp_path / "state")}
    assert "policy max-epsilon not set" in refused(noisy())
    assert "node-config state-path: expected" in refused(noisy(), max_epsilon=1.0)
    node |= {"max-epsilon": 1.0, "state-path": str(tmp_path / "state")}
    assert fit(context(node), run=noisy()) == (2, 1, {PARTY: "Basel"})
    assert refused(RUN).startswith("policy max-epsilon set: ")
    assert "policy max-epsilon" in refused(
        noisy(LaplaceCounts(0.5, hash_nnz=4, n_classes=10))
    )
    unnamed = refused(noisy(names=None), **allowed | {"max_epsilon": 9.0})
    # The columns of the file have names: positions may differ elsewhere.
    assert unnamed.startswith("feature_names: ")
    assert refused(noisy(SimulatedRelease(LAPLACE, 1))).startswith(
        "policy mechanisms: expected "
    )


@pytest.mark.parametrize(
    "rows", [[], ROWS[:1], [*ROWS, "1,2"]], ids=["none", "one", "a short one"]
)
def test_no_row_of_a_file_shows_in_the_form_of_a_private_reply(rows, tmp_path):
    node = csv_file(tmp_path / "mine.csv", rows) | {
        "max-epsilon": 1.0,
        "state-path": str(tmp_path / "state"),
    }
    assert fit(context(node), run=noisy()) == (2, 1, {PARTY: "Basel"})


def test_a_private_simulation_keeps_its_ledgers_under_the_output_folder(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    budget = simulated_budget(RunConfig.parse({"epsilon": 1, "noise": "seeded"}), 7, 2)
    assert budget is not None
    assert budget.path == tmp_path / "home" / "flynn" / "7" / "state" / "7" / "party-2"
    assert (budget.policy.max_epsilon, budget.policy.mechanisms) == (
        1.0,
        ("simulated",),
    )
    assert simulated_budget(RunConfig(), 7, 2) is None
    pytest.importorskip("flwr_datasets")
    for i in range(2):
        where = context(
            {"partition-id": i, "num-partitions": 2},
            epsilon=1.0,
            **{"output-dir": str(tmp_path)},
        )
        assert fit(where, simulated_client, noisy())[1] == 1
        assert (tmp_path / "state" / "1" / f"party-{i}").is_file()
    other = noisy(LaplaceCounts(2.0, hash_nnz=4, n_classes=10))
    assert "policy max-epsilon" in fit(where, simulated_client, other)[2][REFUSED]


# ---- columns by name, and the party's own copy of the model


def evaluation(
    run: RunSpec, counts: ClassCounts, n_releases: int = 0, tries: bool = False
) -> EvaluateIns:
    request = evaluation_of(
        run,
        (counts,),
        (ScoringRule("balanced", 0.5, 1.0),),
        (1.0,),
        n_releases,
        tries=tries,
    )
    return EvaluateIns(
        ndarrays_to_parameters(request.arrays()),
        {PHASE: request.phase, **request.to_config()},
    )


@pytest.fixture
def shuffled(tmp_path: Path) -> dict[str, Any]:
    """A party whose file has a text and a number, then the run's columns backwards."""
    rows = [[f"Anna{i}", 7, *row[::-1], i % 10] for i, row in enumerate(X)]
    lines = [["who", "extra", *NAMES[::-1], "label"], *rows]
    written(
        tmp_path / "mine.csv",
        "".join(",".join(map(str, line)) + "\n" for line in lines),
    )
    return {
        "data-path": str(tmp_path / "mine.csv"),
        "party-id": "Basel",
        "test-fraction": 0,
    }


@pytest.mark.parametrize("private", [False, True])
def test_counts_and_sums_are_of_the_announced_columns(
    shuffled, private, tmp_path, caplog
):
    expected = ClassCounts.from_data(RUN.hasher, X, Y, 10).array
    if private:
        mechanism = LaplaceCounts(100.0, hash_nnz=4, n_classes=10)  # next to no noise
        node = shuffled | {"max-epsilon": 100, "state-path": str(tmp_path / "state")}
        arrays = codec.read_tensors(
            counted(context(node), noisy(mechanism)).parameters.tensors
        )
        assert (
            decode_release(arrays, RUN.hasher, mechanism, 1000).array == expected
        ).mean() > 0.99
        return
    with caplog.at_level("INFO", "flwr"):
        arrays = codec.read_tensors(
            counted(context(shuffled), NAMED).parameters.tensors
        )
    assert (codec.decode_all(arrays, [RUN.hasher], 10)[0].array == expected).all()
    assert (2, "'who', 'extra'") in [record.args for record in caplog.records]
    assert (
        client_fn(context(shuffled))
        .fit(asking(ColumnsRequest(64, RUN.classes, NAMES)))
        .num_examples
        == 64
    )


def test_the_model_is_written_to_the_partys_own_place(shuffled, tmp_path):
    counts = ClassCounts.from_data(RUN.hasher, X, Y, 10)
    place = tmp_path / "model.npz"
    assert (
        client_fn(
            context(shuffled | {"model-path": "  "})
        ).client.party.options.on_model
        is None
    )
    for sent in (EMPTY, counts):
        reply = client_fn(context(shuffled | {"model-path": f" {place} "})).evaluate(
            evaluation(NAMED, sent)
        )
        assert (reply.num_examples, reply.metrics) == (0, {PARTY: "Basel"})
        model = FlyNNClassifier.load(place)
        assert (model.counts_, tuple(model.feature_names_in_)) == (sent, NAMES)
        # It is nobody else's, also where an older one could be read by others.
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        place.chmod(0o644)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.csv", "model.npz"]


@pytest.mark.parametrize(
    "cell", [("x5", ""), ("x5", "NA"), ("x5", "word"), ("label", "z"), ("x5", None)]
)
@pytest.mark.parametrize("more", [{}, {"secure": True}], ids=str)
def test_a_party_whose_file_is_refused_gets_the_model_all_the_same(
    cell, more, tmp_path
):
    columns = {
        **dict(zip(NAMES, X.T.astype(object), strict=True)),
        "label": Y.astype(object),
    }
    if cell[1] is None:
        columns["other"] = columns.pop(cell[0])
    else:
        columns[cell[0]][3] = cell[1]
    path = written(tmp_path / "mine.csv", columns)
    place = tmp_path / "model.npz"
    where = context(
        {"data-path": str(path), "model-path": str(place), "test-fraction": 0} | more
    )
    assert fit(where, run=NAMED)[2][REFUSED]
    for tries in (True, False):
        client_fn(where).evaluate(evaluation(NAMED, EMPTY, tries=tries))
        assert FlyNNClassifier.load(place).counts_ == EMPTY
        place.unlink()


def test_a_refused_file_has_one_reason_in_all_phases(tmp_path):
    where = context(csv_file(tmp_path / "mine.csv", ["inf," * 64 + "1"]))
    metrics = fit(where, run=NAMED)[2]
    assert (
        client_fn(where).evaluate(evaluation(NAMED, EMPTY, tries=True)).metrics
        == metrics
    )
    assert metrics[REFUSED].startswith(
        "mine.csv: expected finite numbers that float64 holds"
    )


def test_a_private_party_gets_the_model_and_answers_nothing(shuffled, tmp_path):
    place = tmp_path / "m.npz"
    node = shuffled | {
        "max-epsilon": 1.0,
        "state-path": str(tmp_path / "state"),
        "model-path": str(place),
    }
    arrays = codec.read_tensors(counted(context(node), noisy()).parameters.tensors)
    counts = decode_release(arrays, RUN.hasher, LAPLACE, 1000)
    reply = client_fn(context(node)).evaluate(evaluation(noisy(), counts, n_releases=1))
    assert (reply.loss, reply.num_examples, reply.metrics) == (0.0, 0, {PARTY: "Basel"})
    assert FlyNNClassifier.load(place).guarantee_ == LAPLACE.guarantee()


def test_another_map_of_the_file_is_a_new_request_of_a_private_party(
    shuffled, tmp_path
):
    policy = Policy(max_epsilon=100.0)
    site = written(tmp_path / "site.toml", 'gap-texts = ["-9"]\n')
    node = shuffled | {"max-epsilon": 100.0, "state-path": str(tmp_path / "state")}
    spent = []
    for more in (
        {},
        {},
        {"site": str(site)},
        {"gap-texts": "-9"},
        {"convert": "extra:mg*2"},
        {"convert": "extra:mg*3"},
        {},
    ):
        fit(context(node | more), run=noisy())
        spent.append(Budget(tmp_path / "state", policy).spent()[0])
    assert [round(amount / spent[0]) for amount in spent] == [1, 1, 2, 2, 3, 4, 4]


def test_a_model_that_cannot_be_written_is_told_without_a_path(
    shuffled, tmp_path, monkeypatch, caplog
):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    place = written(tmp_path / "model.npz", "the one before")
    monkeypatch.setattr("flwr_flynn.model.model_file.os.fsync", full)
    with caplog.at_level("ERROR", "flwr"):
        reply = client_fn(context(shuffled | {"model-path": str(place)})).evaluate(
            evaluation(NAMED, EMPTY)
        )
    assert reply.metrics == {
        PARTY: "Basel",
        UNKEPT: "failed with WriteError: No space left on device",
    }
    assert str(tmp_path) in caplog.text
    assert place.read_text() == "the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.csv", "model.npz"]


def test_a_worker_takes_the_package_from_which_the_app_was_made(tmp_path):
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    (tmp_path / "flwr_flynn.py").write_text("raise SystemExit('another')")
    (tmp_path / "call").write_bytes(
        cloudpickle.dumps(client_app.of_this_copy("in_simulation"))
    )
    code = (
        "import pickle, sys; print(pickle.load(open('call', 'rb'))()); "
        "print(sys.modules['flwr_flynn'].__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", flwr_flynn.__file__], done.stderr
