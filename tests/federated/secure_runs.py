"""Whole secure runs in this process: vectors are added in clear here, as SecAgg+ adds them masked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flwr_flynn.federated import codec
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.protocol import EVALUATE, TRAIN, Answer, Reply
from flwr_flynn.federated.roster import Failures
from flwr_flynn.federated.run import Ask, ExchangeResult, Run

BOUND = 64
Spoil = Callable[[Ask, str, np.ndarray], np.ndarray | None]


def as_it_is(ask: Ask, cid: str, vector: np.ndarray) -> np.ndarray | None:
    return vector


def lost(phase: str, who: str = "3") -> Spoil:
    """A party is lost in a phase."""
    return lambda ask, cid, vector: None if (ask.phase.name, cid) == (phase, who) else vector


def odd(phase: str, place: int | slice, value: int) -> Spoil:
    """A party sends other numbers at a place of its vector."""

    def spoil(ask: Ask, cid: str, vector: np.ndarray) -> np.ndarray:
        vector = vector.copy()
        if (ask.phase.name, cid) == (phase, "1"):
            vector[place] = value
        return vector

    return spoil


def mean_of(answers: dict[str, Answer]) -> list[Reply]:
    """The replies that Flower makes of the sum of some vectors."""
    if not answers:
        return []
    mean = sum(answer.arrays[0] for answer in answers.values()) / len(answers)
    return [Reply(cid, codec.write_tensors([mean]), each.n_examples, each.metrics) for cid, each in answers.items()]


def secretly(
    options: dict[str, Any],
    parts: Sequence[dict[str, Any]],
    spoil: Spoil = as_it_is,
    bound: int = BOUND,
    watch: Callable[[Run, ExchangeResult], object] = lambda *_: None,
    **more: Any,
) -> Run:
    """A secure run; `spoil` changes a party's vector; None if the party is lost."""
    run = Run(RunOptions(**options | {"secure_bound": bound, "min_parties": 3}))
    given = {"secure": True, "evaluates": True, "min_examples": 1} | more
    parties = [
        Party(Samples(*part.values()), PartyOptions(name=f"party-{i}", **given), lambda *_: None)
        for i, part in enumerate(parts)
    ]
    for _ in range(run.num_rounds):
        for channel in (TRAIN, EVALUATE):
            ask = run.ask(channel, [str(i) for i in range(len(parties))])
            if ask is None:
                continue
            arrays = codec.read_tensors(ask.tensors)
            answers = {cid: parties[int(cid)].answer(ask.config, arrays, channel) for cid in ask.cids}
            if channel == EVALUATE:
                replies = [
                    Reply(cid, codec.write_tensors(each.arrays), each.n_examples, each.metrics)
                    for cid, each in answers.items()
                ]
            else:
                there = {}
                for cid, answer in answers.items():
                    if answer.arrays:  # else the mod fails, and the party is lost
                        (vector,) = answer.arrays
                        assert (vector.dtype, vector.shape) == (np.int64, (ask.request.n_entries,))
                        assert np.abs(vector).max(initial=0) <= bound
                        assert (answer.n_examples, answer.metrics.keys()) == (1, {"flynn-party"})
                        if (spoiled := spoil(ask, cid, vector)) is not None:
                            there[cid] = Answer([spoiled], answer.n_examples, answer.metrics)
                replies = mean_of(there)
            taken = run.complete(replies, Failures())
            assert taken is not None
            watch(run, taken)
    return run
