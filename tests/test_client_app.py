"""What `flwr run` starts at a party, without the processes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common import Code, FitIns, Parameters, ndarrays_to_parameters

from flwr_flynn.client_app import client_fn
from flwr_flynn.config import RunConfig
from flwr_flynn.spec import HashSpec
from flwr_flynn.terms import SumsTerms, Terms

TERMS = Terms(HashSpec(n_features=64, hash_dim=128, row_nnz=8, hash_nnz=4, seed=1), tuple(range(10)))


def context(node: dict[str, Any], **run: Any) -> Context:
    settings = {key: default for key, default, _ in RunConfig.table()}
    return Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config=settings | run)


def fit(where: Context) -> tuple[int, int, dict[str, Any]]:
    nothing: Parameters = ndarrays_to_parameters([])
    reply = client_fn(where).fit(FitIns(nothing, TERMS.to_config()))
    assert reply.status.code == Code.OK
    return len(reply.parameters.tensors), reply.num_examples, reply.metrics


def test_simulated_parties_hold_shares_of_one_data_set() -> None:
    pytest.importorskip("flwr_datasets")
    replies = [fit(context({"partition-id": i, "num-partitions": 3})) for i in range(3)]
    assert [reply[2]["flynn-party"] for reply in replies] == ["party-0", "party-1", "party-2"]
    assert sum(reply[1] for reply in replies) == 1444


def test_a_deployed_party_reads_its_own_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", X=np.eye(64), y=np.arange(64) % 10)
    node = {"data-path": str(tmp_path / "mine.npz"), "party-id": "Basel", "test-fraction": 0}
    _, examples, metrics = fit(context(node))
    assert (examples, metrics["flynn-party"]) == (64, "Basel")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({}, "node-config data-path: missing; the party's own `.csv`, `.parquet` or `.npz` file"),
        ({"data-path": "/secret/folder/a.npz"}, "node-config data-path: no such file: 'a.npz'"),
        (
            {"data-path": "a.npz", "memory-limit": 0},
            "node-config memory-limit: expected a number above 0, got 0",
        ),
        ({"data-path": "~nosuchuser/a.npz"}, "node-config data-path: no such file: 'a.npz'"),
    ],
)
def test_a_party_that_cannot_take_part_says_so_by_name(node: dict[str, Any], reason: str) -> None:
    tensors, examples, metrics = fit(context(node | {"party-id": "Basel"}))
    assert (tensors, examples) == (0, 0)
    assert metrics == {"flynn-refused": reason, "flynn-party": "Basel"}


def test_a_file_of_ones_own_goes_before_a_share_of_the_simulation(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", X=np.eye(64), y=np.arange(64) % 10)
    node = {"data-path": str(tmp_path / "mine.npz"), "test-fraction": 0, "partition-id": 0, "num-partitions": 2}
    assert fit(context(node))[1] == 64


def test_an_error_that_nobody_thought_of_comes_with_a_name_and_without_its_text() -> None:
    metrics = fit(context({"partition-id": "x", "num-partitions": 2}))[2]
    assert metrics == {"flynn-refused": "failed with ValueError", "flynn-party": "party-x"}


def test_a_file_without_a_header_tells_the_server_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mine.csv").write_text("63,male,HIV+\n41,female,HIV-\n")
    with caplog.at_level("WARNING", "flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        metrics = fit(context({"data-path": str(tmp_path / "mine.csv"), "party-id": "Basel"}))[2]
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert metrics["flynn-refused"] == "mine.csv: no column 'label' for the label among 3"
    assert "HIV+" in caplog.text  # the party's own log


def test_the_memory_limit_is_the_partys_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", X=np.eye(64), y=np.arange(64) % 10)
    metrics = fit(context({"data-path": str(tmp_path / "mine.npz"), "memory-limit": 1e-6}))[2]
    assert str(metrics["flynn-refused"]).startswith("memory: ")


def test_the_least_of_points_in_a_sum_is_the_partys_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", X=np.eye(64)[:30], y=np.arange(30) % 10)
    node = {"data-path": str(tmp_path / "mine.npz"), "test-fraction": 0}
    request = FitIns(ndarrays_to_parameters([]), SumsTerms(64, tuple(range(10)), True, 1).to_config())
    assert client_fn(context(node, **{"min-examples": 1})).fit(request).num_examples == 0
    assert client_fn(context(node | {"min-examples": 3})).fit(request).num_examples == 30
    pytest.importorskip("flwr_datasets")
    simulated = {"partition-id": 0, "num-partitions": 1}
    assert client_fn(context(simulated, **{"min-examples": 140})).fit(request).num_examples < 1444
    assert client_fn(context(simulated, **{"min-examples": 1})).fit(request).num_examples == 1444
