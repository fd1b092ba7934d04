"""Whole secure runs in this process.

Vectors are added in clear here, as SecAgg+ adds them masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_flynn.federated import codec
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.protocol import EVALUATE, TRAIN, Answer, Reply
from flwr_flynn.federated.run import Ask, Run
from tests.federated.runs import Exchange

BOUND = 64
Spoil = Callable[[Ask, str, np.ndarray], np.ndarray | None]


def as_it_is(ask: Ask, cid: str, vector: np.ndarray) -> np.ndarray | None:
    return vector


def lost(phase: str, who: str = "3") -> Spoil:
    """A party is lost in a phase."""

    def spoil(ask: Ask, cid: str, vector: np.ndarray) -> np.ndarray | None:
        if (ask.phase.name, cid) == (phase, who):
            return None
        return vector

    return spoil


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
    return [
        Reply(cid, codec.write_tensors([mean]), answer.n_examples, answer.metrics)
        for cid, answer in answers.items()
    ]


@dataclass
class Masked(Exchange):
    """A run whose vectors are summed; `masks` changes them."""

    masks: Spoil = as_it_is

    def replies(self, ask: Ask, cids: Sequence[str]) -> list[Reply]:
        if ask.request.bound is None:
            return super().replies(ask, cids)
        there = {}
        for cid in cids:
            answer = self.parties[cid].answer(
                dict(ask.config), codec.read_tensors(ask.tensors), TRAIN
            )
            # Without a vector the mod fails, and the party is lost.
            if not answer.arrays:
                continue
            (vector,) = answer.arrays
            assert vector.dtype == np.int64
            assert vector.shape == (ask.request.layout.n_entries,)
            assert np.abs(vector).max(initial=0) <= ask.request.bound
            assert answer.n_examples == 1
            assert answer.metrics.keys() == {"flynn-party"}
            spoiled = self.masks(ask, cid, vector)
            if spoiled is not None:
                there[cid] = Answer([spoiled], answer.n_examples, answer.metrics)
        return mean_of(there)


def secretly(
    options: dict[str, Any],
    parts: Any,
    spoil: Spoil = as_it_is,
    bound: int = BOUND,
    watch: Any = None,
    **more: Any,
) -> Run:
    """A secure run.

    `spoil` changes a party's vector, to None if the party is lost; `watch` sees each
    exchange.
    """
    given = {"secure": True, "evaluates": True, "min_examples": 1} | more
    parties = {
        str(i): Party(
            Samples(*part.values()),
            PartyOptions(name=f"party-{i}", **given),
            lambda *_: None,
        )
        for i, part in enumerate(parts)
    }
    run = Run(RunOptions(**options | {"secure_bound": bound, "min_parties": 3}))
    steps = Masked(run, parties, masks=spoil)
    for _ in range(run.num_rounds):
        for channel in (TRAIN, EVALUATE):
            outcome = steps.step(channel)
            if outcome is not None and watch is not None:
                watch(run, outcome)
    return run
