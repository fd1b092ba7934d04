"""Differences between versions of Flower, and versions in the logs."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

import flwr_flynn
from flwr_flynn import message
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import request
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.protocol import PHASE, VERSION
from flwr_flynn.flower import client as clients
from flwr_flynn.flower import records
from tests.fakes import CLASSES, SPEC, FakeGrid, Node, counting, points
from tests.raising import raises


def test_a_party_logs_the_version_and_the_place_of_the_package_once(
    caplog,
):
    clients._log_package.cache_clear()
    for _ in range(2):
        flwr_flynn.FlyNNClient(*points(5)).fit([], counting())
    (record,) = (
        record for record in caplog.records if "flwr-flynn" in record.getMessage()
    )
    assert record.args == (
        flwr_flynn.__version__,
        Path(flwr_flynn.__file__).parent,
        version("flwr"),
    )


def test_a_grid_of_somebody_else_s_is_no_simulation():
    assert not records.is_simulated(object())


@pytest.mark.parametrize(
    ("server", "party", "fits"),
    [
        (flwr_flynn.__version__, flwr_flynn.__version__, True),
        ("0.8.0", flwr_flynn.__version__, False),
        (flwr_flynn.__version__, "0.8.0", False),
        ("0.9.0", "0.9.0.dev0", True),
        ("0.9.1", "0.9.0", True),
        ("0.10.0", "0.1.0", False),
        ("1.9.0", "0.9.0", False),
        ("", "0.9.0", False),
        ("0", "0.9.0", False),
        ("x\n", "0.9.0", False),
    ],
)
def test_a_party_reads_requests_of_its_own_minor_version_alone(
    server, party, fits, monkeypatch
):
    monkeypatch.setattr(request, "__version__", party)
    entries = counting() | {VERSION: server}
    if fits:
        assert request.kind_of(entries) is CountsRequest
        return
    for phase in ("counts", "a phase of tomorrow"):
        with raises(PayloadError, field=VERSION, expected=party, got=server):
            request.kind_of(entries | {PHASE: phase})


@pytest.mark.parametrize("server", ["99.0.0", "0.8.0"])
def test_parties_of_another_version_decline_and_the_server_says_so(server, monkeypatch):
    monkeypatch.setattr("flwr_flynn.federated.run.__version__", server)
    nodes = {
        number: Node(flwr_flynn.FlyNNClient(*points(5), name=name))
        for number, name in ((1, "Ulm"), (2, "Basel"))
    }
    run = message.FlyNNStrategy(
        spec=SPEC, classes=CLASSES, min_available_nodes=2, min_parties=2
    )
    run.start(FakeGrid(nodes))
    assert run.missing.keys() == {"Ulm", "Basel"}
    for reason in run.missing.values():
        assert server in reason
        assert flwr_flynn.__version__ in reason
