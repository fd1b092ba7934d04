"""Nodes that are asked in turns make the same model as at once.

Each reply is let go of, and there is a second chance at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from sklearn.datasets import load_digits

from flwr_flynn import message
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from tests.fakes import FakeGrid, Node

X, Y = (each[:120] for each in load_digits(return_X_y=True))
SPEC = HashSpec(64, 256, 6, 16, seed=1)


class Grid(FakeGrid):
    """A grid that notes how many are asked at a time."""

    def __init__(self, n: int) -> None:
        clients = [
            FlyNNClient(
                X[i::n], Y[i::n], X_test=X[i::n], y_test=Y[i::n], min_examples=1
            )
            for i in range(n)
        ]
        super().__init__(dict(enumerate(map(Node, clients))))
        self.turns: list[list[int]] = []

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        self.turns.append([message.metadata.dst_node_id for message in messages])
        return super().send_and_receive(messages)


def made(grid: Grid, **options: Any) -> message.FlyNNStrategy:
    given: dict[str, Any] = {
        "spec": SPEC,
        "classes": range(10),
        "min_parties": 1,
        "decay": 0.5,
        **options,
    }
    return message.FlyNNStrategy(min_available_nodes=len(grid.nodes), **given)


def ran(grid: Grid, **options: Any) -> message.FlyNNStrategy:
    strategy = made(grid, **options)
    strategy.start(grid)
    return strategy


AUTO = {"spec": HashPlan(64, 10, len(Y), "auto", hash_dim=64), "decay": "auto"}


@pytest.mark.parametrize("options", [{}, AUTO], ids=["one", "auto"])
def test_turns_end_in_the_same_model(options):
    at_once = Grid(6)
    whole = ran(at_once, **options)
    assert {len(turn) for turn in at_once.turns if turn} == {6}
    for size in (1, 4, 6):
        in_turns = Grid(6)
        parts = ran(in_turns, nodes_at_a_time=size, **options)
        assert parts.model.model_.sha256() == whole.model.model_.sha256()
        assert parts.evaluation == whole.evaluation
        assert parts.run.traffic == whole.run.traffic
        assert max(map(len, in_turns.turns)) == size


def test_who_gives_no_answer_or_an_error_is_missing_and_costs_the_others_nothing():
    grid = Grid(10)
    grid.nodes[1].fails = "broken"
    grid.nodes[4].spoil = lambda _: None
    strategy = ran(grid, nodes_at_a_time=4)
    assert grid.turns[:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert strategy.missing == {"node 1": "failed: broken", "node 4": "no reply"}
    assert len(strategy.parties) == 8
    counted = ~np.isin(np.arange(len(Y)) % 10, (1, 4))
    assert strategy.counts.n_per_class.tolist() == np.bincount(Y[counted]).tolist()


def test_a_loop_of_ones_own_asks_all_at_once():
    grid = Grid(5)
    strategy = made(grid, nodes_at_a_time=2)
    messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert len(strategy.parties) == 5
    assert grid.turns == [[0, 1, 2, 3, 4]]


def test_a_function_of_the_user_gets_all_replies():
    seen: list[int] = []

    def metrics(contents: Any, weighted_by: str) -> Any:
        seen.append(len(contents))
        return MetricRecord({"n": len(contents)})

    whole = ran(Grid(7), train_metrics_aggr_fn=metrics)
    parts = ran(Grid(7), nodes_at_a_time=2, train_metrics_aggr_fn=metrics)
    assert seen == [7, 7]
    assert parts.model.model_.sha256() == whole.model.model_.sha256()
