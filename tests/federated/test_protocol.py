"""Keys, requests and replies: nothing is assumed of what arrives."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import phases
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.protocol import PHASE, Config, Entry, Reply, key
from flwr_flynn.federated.request import Request, kind_of, register
from tests.raising import raises


def test_keys_are_written_with_hyphens():
    assert key("n_classes") == "flynn-n-classes"
    assert PHASE == "flynn-phase"


def test_a_party_s_process_knows_the_request_of_every_phase():
    modules = [
        import_module(f"{phases.__name__}.{module.name}")
        for module in iter_modules(phases.__path__)
    ]
    kinds = [
        kind
        for each in modules
        for kind in vars(each).values()
        if isinstance(kind, type)
    ]
    names = {
        kind.phase
        for kind in kinds
        if issubclass(kind, Request) and "phase" in vars(kind)
    }
    code = (
        "import flwr_flynn.flower.client, flwr_flynn.federated.request as r; "
        "print(*r._REQUESTS, sep=',')"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert set(found.stdout.strip().split(",")) == names


@pytest.mark.parametrize(
    "name",
    [None, 3, b"counts", "", "Counts", "counts\n", "x" * 65, "refinement-of-tomorrow"],
)
def test_an_unknown_phase_is_refused(name):
    with raises(PayloadError, field=PHASE):
        kind_of({PHASE: name})


def test_two_requests_of_one_name_are_an_error_of_the_program():
    class Counts(CountsRequest):
        pass

    with raises(ConfigError, field="phase", got="'counts' of CountsRequest"):
        register(Counts)
    assert kind_of({PHASE: "counts"}) is CountsRequest


def test_fields_are_read_by_their_types_and_sizes():
    config = Config(
        {
            "flynn-text": "abc",
            "flynn-list": "[1]",
            "flynn-n-bins": 3,
            "flynn-tries": True,
            "the users own": None,
        },
        {
            "text": Entry(str, 3),
            "list": Entry(str, 3),
            "n_bins": Entry(int, 3, least=3),
            "tries": Entry(bool),
            "bins": Entry(bytes, 3, is_needed=False),
        },
    )
    assert config["text"] == "abc"
    assert config.json("list") == [1]
    assert config["n_bins"] == 3
    assert config["tries"] is True
    assert "n_bins" in config
    assert "bins" not in config


OTHERS: dict[Entry, Any] = {
    Entry(str, 8): (None, 3, b"x", True, "x" * 9),
    Entry(bytes, 8): (None, 3, "x", True, b"x" * 9),
    Entry(int, 8, least=1): (None, "3", 3.0, True, 0, 9, 2**70),
    Entry(bool): (None, 0, 1, "True"),
}


@pytest.mark.parametrize(
    ("entry", "value"),
    [(entry, value) for entry, values in OTHERS.items() for value in values],
)
def test_any_other_value_is_refused_with_the_name_of_its_field(entry, value):
    entries = {}
    if value is not None:
        entries["flynn-n-bins"] = value
    with raises(PayloadError, field="flynn-n-bins"):
        Config(entries, {"n_bins": entry})
    if value is None:
        Config(entries, {"n_bins": replace(entry, is_needed=False)})


@pytest.mark.parametrize("n_examples", [None, 5.0, "5", True, -5, [5], 2**70])
def test_a_senseless_number_of_examples_is_refused(n_examples):
    with raises(PayloadError, field="num_examples"):
        _ = Reply("1", [], n_examples, {}).announced
