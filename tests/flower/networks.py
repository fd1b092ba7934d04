"""Parties in this process behind each of Flower's two APIs, by one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.server import Server

from flwr_flynn import message
from flwr_flynn.federated import codec
from flwr_flynn.flower import records
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.flower.strategy import FlyNNStrategy
from tests.fakes import (
    CLASSES,
    SPEC,
    FakeGrid,
    Node,
    Proxy,
    content_of,
    counts_of,
    manager,
    points,
)

X, Y = points(60)
POOLED = counts_of(X[:30], Y[:30])
Log = Callable[[int, list[np.ndarray]], None]
Note = Callable[[Sequence[bytes], int, dict[str, Any]], object]


def federation(n: int, **more: Any) -> list[FlyNNClient]:
    """Parties with interleaved shares of the samples, half of which are held out."""
    parts = [(slice(i, 30, n), slice(30 + i, None, n)) for i in range(n)]
    given = [
        {"X": X[mine], "y": Y[mine], "X_test": X[test], "y_test": Y[test]}
        for mine, test in parts
    ]
    return [
        FlyNNClient(**options, name=f"party-{i}", **more)
        for i, options in enumerate(given)
    ]


def settings(**changes: Any) -> dict[str, Any]:
    """Keywords of both strategies: a run of one spec, with nothing to select."""
    return {
        "spec": SPEC,
        "classes": CLASSES,
        "min_parties": 2,
        "wait_timeout": 0,
        "decay": 0.8,
        **changes,
    }


class WatchedProxy(Proxy):
    """A party whose replies are noted, and those to training requests are replaced."""

    note: Note = staticmethod(lambda *_: None)
    res: Any = None

    def _answer(self, name: str, ins: Any) -> Any:
        res = super()._answer(name, ins)
        self.note(
            res.parameters.tensors if name == "fit" else [],
            res.num_examples,
            res.metrics,
        )
        if name == "fit" and self.res is not None:
            return self.res
        return res


class Legacy:
    """Flower's `Strategy` API."""

    members = "clients"

    def __init__(self, parties: Sequence[FlyNNClient]) -> None:
        self.every: list[Any] = [
            WatchedProxy(str(i), party) for i, party in enumerate(parties)
        ]
        self.clients = manager(*self.every)

    def make(self, **changes: Any) -> Any:
        n = len(self.every)
        given = (
            settings(min_parties=min(n, 2) or 1) | {"min_available": n or 1} | changes
        )
        number = {f"min_available_{self.members}": given.pop("min_available")}
        return self.strategy(**given, **number)

    def strategy(self, **keywords: Any) -> Any:
        return FlyNNStrategy(**keywords)

    def run(
        self,
        strategy: Any,
        rounds: int | None = None,
        evaluate: Log | None = None,
        before: Any = lambda _: None,
    ) -> Any:
        """Run, and return the first round's metrics of training and evaluation."""
        strategy.evaluate_fn = None
        if evaluate is not None:
            strategy.evaluate_fn = lambda number, arrays, _: evaluate(number, arrays)
        strategy.configure_fit = _after(before, strategy.configure_fit)
        history, _ = Server(client_manager=self.clients, strategy=strategy).fit(
            rounds or strategy.num_rounds, None
        )
        found = history.metrics_distributed_fit, history.metrics_distributed
        return tuple(
            {name: values[0][1] for name, values in each.items()} for each in found
        )

    def finished(self, **options: Any) -> Any:
        """A run with all of these parties, by options of one's own."""
        strategy = self.strategy(
            **{f"min_available_{self.members}": len(self.every)}, **options
        )
        self.run(strategy)
        return strategy.run

    def watch(self, i: int, note: Note, is_late: bool = False) -> None:
        """Note the tensors, the number of samples and the metrics that leave a party.

        Those of a late one get lost.

        Over this API nobody is late.
        """
        self.every[i].note = note

    def asked(self) -> list[list[str]]:
        return [
            ["train"] * proxy.fits + ["evaluate"] * proxy.evaluations
            for proxy in self.every
        ]

    def leave(self, i: int) -> None:
        self.clients.unregister(self.every[i])

    def join(self, i: int) -> None:
        self.clients.register(self.every[i])

    def fail(self, i: int, reason: str | None) -> None:
        """Let a party fail from now on; None: no more."""
        self.every[i].fails = None
        if reason is not None:
            self.every[i].fails = RuntimeError(reason)

    def spoil(self, i: int, res: Any) -> None:
        """Replace what a party replies."""
        self.every[i].res = res


class Messages(Legacy):
    """Flower's Message API."""

    members = "nodes"

    def __init__(self, parties: Sequence[FlyNNClient]) -> None:
        self.every = [Node(party) for party in parties]
        self.nodes = dict(enumerate(self.every))

    def strategy(self, **keywords: Any) -> Any:
        return message.FlyNNStrategy(**keywords)

    def run(
        self,
        strategy: Any,
        rounds: int | None = None,
        evaluate: Log | None = None,
        before: Any = lambda _: None,
    ) -> Any:
        def evaluate_fn(number: int, arrays: Any) -> None:
            evaluate(
                number,
                codec.read_tensors(records.tensors_of(RecordDict({"arrays": arrays}))),
            )

        strategy.configure_train = _after(before, strategy.configure_train)
        if evaluate is None:
            more: dict[str, Any] = {}
        else:
            more = {"evaluate_fn": evaluate_fn}
        result = strategy.start(
            FakeGrid(self.nodes), num_rounds=rounds, timeout=7, **more
        )
        assert result.arrays == (
            strategy.arrays
            if strategy.run.is_specified and strategy.run.is_enough
            else {}
        )
        found = result.train_metrics_clientapp, result.evaluate_metrics_clientapp
        return tuple(dict(each.get(1, {})) for each in found)

    def watch(self, i: int, note: Note, is_late: bool = False) -> None:
        def look(content: RecordDict) -> RecordDict | None:
            metrics = dict(content["metrics"]) | dict(content["config"])
            n_examples = metrics.pop("num-examples")
            note(records.tensors_of(content), n_examples, metrics)
            if is_late:
                return None
            return content

        self.every[i].spoil = look

    def asked(self) -> list[list[str]]:
        return [node.asked for node in self.every]

    def leave(self, i: int) -> None:
        del self.nodes[i]

    def join(self, i: int) -> None:
        self.nodes[i] = self.every[i]

    def fail(self, i: int, reason: str | None) -> None:
        self.every[i].fails = reason

    def spoil(self, i: int, res: Any) -> None:
        """Replace what a party replies.

        It is replaced by a reply of the other API or the content of a message.
        """
        if isinstance(res, RecordDict):
            content = res
        else:
            content = content_of(res)
        self.every[i].spoil = lambda _: content


def _after(before: Callable[[int], object], configure: Any) -> Any:
    def configured(server_round: int, *args: Any, **more: Any) -> Any:
        before(server_round)
        return configure(server_round, *args, **more)

    return configured


BOTH = pytest.mark.parametrize("api", [Legacy, Messages], ids=["legacy", "message"])
Api = type[Legacy]
