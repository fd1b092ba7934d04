"""Keys, requests and replies: nothing is assumed of what arrives."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from flwr_flynn import __version__
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import phases
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.protocol import PHASE, VERSION, Config, Reply, key
from flwr_flynn.federated.request import Request, register, request_of
from tests.raising import raises


def test_keys_are_written_with_hyphens() -> None:
    assert key("n_classes") == "flynn-n-classes"
    assert PHASE == "flynn-phase"


def test_a_party_s_process_knows_the_request_of_every_phase() -> None:
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
def test_an_unknown_phase_is_refused(name: Any) -> None:
    with raises(PayloadError, field=PHASE):
        request_of({PHASE: name})


@pytest.mark.parametrize(
    "version", ["0.0.1", "99.0", "", "x\n", __version__.partition(".")[0]]
)
def test_a_server_of_another_minor_version_is_declined_by_both_versions(
    version: str,
) -> None:
    patch = ".".join([*__version__.split(".")[:2], "99"])
    assert request_of({PHASE: "counts", VERSION: patch}) is CountsRequest
    for phase in ("counts", "a phase of tomorrow"):
        with raises(
            PayloadError, field=VERSION, expected=__version__, got=version
        ) as error:
            request_of({PHASE: phase, VERSION: version})
        assert __version__ in str(error.value)
        assert repr(version) in str(error.value)


def test_two_requests_of_one_name_are_an_error_of_the_program() -> None:
    class Counts(CountsRequest):
        pass

    with raises(ConfigError, field="phase", got="'counts' of CountsRequest"):
        register(Counts)
    assert request_of({PHASE: "counts"}) is CountsRequest


def test_fields_are_read_by_their_types_and_sizes() -> None:
    config = Config(
        {
            "flynn-text": "abc",
            "flynn-list": "[1]",
            "flynn-n-bins": 3,
            "flynn-tries": True,
        }
    )
    assert config.text("text", 3) == "abc"
    assert config.json("list", 3) == [1]
    assert config.integer("n_bins", 3, 3) == 3
    assert config.boolean("tries") is True
    assert "n_bins" in config
    assert "bins" not in config


OTHERS: dict[str, Any] = {
    "text": (None, 3, b"x", True, "x" * 9),
    "json": (None, 3, "{", "[" * 8, "x" * 9),
    "integer": (None, "3", 3.0, True, 0, 9, 2**70),
    "boolean": (None, 0, 1, "True"),
}
BOUNDS: dict[str, Any] = {"text": (8,), "json": (8,), "integer": (1, 8), "boolean": ()}


@pytest.mark.parametrize(
    ("read", "value"),
    [(read, value) for read, values in OTHERS.items() for value in values],
)
def test_any_other_value_is_refused_with_the_name_of_its_field(
    read: str, value: Any
) -> None:
    config = Config({} if value is None else {"flynn-n-bins": value})
    with raises(PayloadError, field="flynn-n-bins"):
        getattr(config, read)("n_bins", *BOUNDS[read])


@pytest.mark.parametrize("value", ["x" * 10**6, 10**400])
@pytest.mark.parametrize("read", BOUNDS)
def test_a_refusal_does_not_repeat_all_of_a_long_value(read: str, value: Any) -> None:
    with pytest.raises(PayloadError) as error:
        getattr(Config({"flynn-n": value}), read)("n", *BOUNDS[read])
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("n_examples", [None, 5.0, "5", True, -5, [5], 2**70])
def test_a_senseless_number_of_examples_is_refused(n_examples: Any) -> None:
    with raises(PayloadError, field="num_examples"):
        _ = Reply("1", [], n_examples, {}).announced
    assert Reply("1", [b"abc", b"d"], 5, {}).announced == 5
    assert Reply("1", [b"abc", b"d"], 5, {}).n_bytes == 4
