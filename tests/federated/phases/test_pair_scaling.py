"""Matrix scaling of pair sums over the wire: what comes from others is checked; see also `test_pairs`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from flwr_flynn.errors import FlyNNError, PayloadError
from flwr_flynn.federated.collect import Reply
from flwr_flynn.federated.compression import pack_signed, unpack_signed
from flwr_flynn.federated.phases.pair_scaling import PairScalingRequest
from flwr_flynn.federated.protocol import EVALUATE, REFUSED, Config, key
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.matrix_scaling import LARGEST_WEIGHT, identity, largest, shapes, statistic_of
from tests.federated.phases.test_pairs import (
    EXCHANGES,
    LABELS,
    LEARNED,
    NAMES,
    TWO,
    X,
    Y,
    changed,
    counted,
    digest,
    party_of,
)
from tests.federated.runs import statistic_of as answered

assert LEARNED is not None
RUN, READOUT = RunSpec(TWO, NAMES), replace(LEARNED, matrix=None)
SIZES = np.bincount(Y)
FIRST = PairScalingRequest(RUN, READOUT, SIZES, identity(3))
LATER = replace(FIRST, matrix=np.array(identity(3) + 5, np.int32))


@pytest.mark.parametrize("request_", [FIRST, LATER], ids=["first", "later"])
def test_a_request_makes_the_round_trip_and_is_answered(request_: PairScalingRequest) -> None:
    config = request_.to_config()
    again = PairScalingRequest.from_config(Config(config), request_.arrays(), party_of(X, LABELS))
    assert again.to_config() == config
    assert all(map(np.array_equal, again.arrays(), request_.arrays()))
    found = answered(request_, party_of(X, LABELS), Member("", "1", sizes=tuple(SIZES.tolist())))
    scores = READOUT.left_out(X, Y, SIZES)
    for one, other in zip(found.parts, statistic_of(scores, Y, SIZES, request_.matrix).parts, strict=True):
        assert_array_equal(one, other)


def test_only_counted_parties_are_heard() -> None:
    for member in (None, Member("", "1")):
        with pytest.raises(PayloadError):
            answered(FIRST, party_of(X, LABELS), member)


CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no sizes": lambda config: config.pop(key("sizes")),
    **{
        f"sizes {values}": lambda config, values=values: config.update({key("sizes"): json.dumps(values)})
        for values in (
            [80, 80],
            [80] * 4,
            [0, 0, 0],
            [-1, 80, 80],
            [80.0, 80, 80],
            [True, 1, 1],
            [2**48, 1, 1],
            "80",
            {},
        )
    },
    "no scores": lambda config: config.pop(key("pairs")),
    "a matrix already": lambda config: config.update(
        {key("pairs"): json.dumps([*json.loads(config[key("pairs")]), identity(3).tolist()])}
    ),
    "too many figures": lambda config: config.update(
        {key("pairs"): json.dumps([*json.loads(config[key("pairs")]), None, None])}
    ),
}
ARRAYS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "none": lambda _: [],
    "no matrix": lambda arrays: arrays[:1],
    "one more": lambda arrays: [*arrays, arrays[0]],
    "floats": lambda arrays: [arrays[0], np.eye(4, 3)],
    "of another shape": lambda arrays: [arrays[0], pack_signed(np.eye(3, dtype=np.int32))],
    "too large": lambda arrays: [arrays[0], pack_signed(identity(3) + LARGEST_WEIGHT)],
    "weights of another shape": lambda arrays: [pack_signed(np.zeros((3, 3), np.int32)), arrays[1]],
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hostile_request_is_refused(name: str) -> None:
    config = dict(FIRST.to_config())
    CONFIGS[name](config)
    with pytest.raises(FlyNNError):
        PairScalingRequest.from_config(Config(config), FIRST.arrays(), party_of(X, LABELS))


@pytest.mark.parametrize("name", ARRAYS)
def test_hostile_arrays_are_refused(name: str) -> None:
    with pytest.raises(PayloadError):
        PairScalingRequest.from_config(Config(FIRST.to_config()), ARRAYS[name](FIRST.arrays()), party_of(X, LABELS))


def test_a_party_that_allows_no_pair_sums_refuses() -> None:
    party = party_of(X, LABELS, pairs=False)
    answer = party.answer({key("phase"): FIRST.phase, **FIRST.to_config()}, FIRST.arrays(), EVALUATE)
    assert "pairs" in str(answer.metrics[REFUSED])
    assert answer.arrays == []


def part(place: int, value: int, entry: tuple[int, int] = (0, 0)) -> Callable[[list[Any], bool], list[Any]]:
    """Put a value into an array of the answer: sizes, correct ones, loss, gradient, curvature."""

    def change(arrays: list[Any], is_first: bool) -> list[Any]:
        shape = shapes(3, is_first)[place]
        table = unpack_signed(arrays[place], shape if len(shape) == 2 else (1, shape[0]), 2**60)
        table[entry] = value
        return [*arrays[:place], pack_signed(table), *arrays[place + 1 :]]

    return change


MOST = largest(60)  # of a party's 60 samples
HOSTILE: dict[str, Callable[[list[Any], bool], list[Any]]] = {
    "nothing": lambda _arrays, _: [],
    "an array less": lambda arrays, _: arrays[:-1],
    "an array more": lambda arrays, _: [*arrays, arrays[0]],
    "floats": lambda arrays, _: [arrays[0], np.ones(3), *arrays[2:]],
    "negative sizes": part(0, -1),
    "more than it has": part(0, 61),
    "more right than tried": part(1, 61),
    "negative right": part(1, -1),
    "negative loss": part(2, -1),
    "too large a loss": part(2, MOST[2] + 1),
    "too large a gradient": part(3, MOST[3] + 1),
    "too small a gradient": part(3, -MOST[3] - 1, (3, 2)),
}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", [*HOSTILE, "negative curvature", "too large a curvature"])
def test_a_hostile_reply_costs_its_sender_s_say_alone(name: str, number: int) -> None:
    changes = HOSTILE | {"negative curvature": part(4, -1, (1, 4)), "too large a curvature": part(4, MOST[4] + 1)}
    if number == 2 and name not in HOSTILE:
        return

    def spoil(reply: Reply) -> Reply:
        return changed(reply, lambda arrays: changes[name](arrays, number == 1)) if reply.cid == "3" else reply

    steps, silent = counted(), counted()
    phase = f"pair scaling {number}"
    for each in (steps, silent):
        for _ in EXCHANGES[: EXCHANGES.index(phase)]:
            each.step(EVALUATE)
    taken = steps.step(EVALUATE, spoil=spoil)
    assert taken is not None
    assert taken.phase.name == phase
    assert list(taken.missing) == ["party-3"]
    assert "unreadable" not in taken.missing["party-3"]
    silent.step(EVALUATE, failures={"3": "failed"})
    assert digest(steps.rounds()) == digest(silent.rounds())
