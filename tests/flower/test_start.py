"""`FlyNNStrategy.start` as engineers call it.

Rounds are missing, classes are subclasses, names are wrong, functions are theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from flwr_flynn import message
from flwr_flynn.errors import AggregationError, ConfigError
from tests.flower.test_turns import AUTO, Grid, ran
from tests.raising import raises

PLAN: dict[str, Any] = {**AUTO, "min_parties": 4}
GIVEN = {"classes": range(10), "min_available_nodes": 4, **PLAN}
OPTIONS = "options of the strategy"


class Flaky(Grid):
    """A grid on which one node fails once, when it is to count."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        is_counting = any(
            message.content["config"].get("flynn-phase") == "counts"
            for message in messages
        )
        self.nodes[1].fails = None
        if is_counting and not self.turns_of_counts:
            self.nodes[1].fails = "broken"
        self.turns_of_counts += is_counting
        return super().send_and_receive(messages, timeout=timeout)

    turns_of_counts = 0


def test_a_failure_while_counting_costs_a_round_and_nothing_else(
    caplog,
):
    whole = ran(Grid(4), **PLAN)
    grid = Flaky(4)
    flaky = ran(grid, **PLAN)
    assert grid.turns_of_counts == 2
    assert flaky.model.model_.sha256() == whole.model.model_.sha256()
    assert flaky.evaluation == whole.evaluation
    few = message.FlyNNStrategy(**GIVEN)
    few.start(Grid(4), num_rounds=2)
    assert few.selection is None
    assert "phase selection is not done" in caplog.text
    few.start(Grid(4))
    assert few.model.model_.sha256() == whole.model.model_.sha256()
    assert "is over" not in caplog.text
    few.start(Grid(4))
    assert "is over" in caplog.text


class Listing(message.FlyNNStrategy):
    """A strategy whose subclass looks at all replies before they are added."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, list(replies))


def test_replies_of_all_turns_may_be_listed():
    whole = ran(Grid(4), **PLAN)
    listing = Listing(**GIVEN, nodes_at_a_time=2)
    listing.start(Grid(4))
    assert listing.model.model_.sha256() == whole.model.model_.sha256()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"min_partys": 2}, OPTIONS),
        ({"fraction_train": 0.5}, OPTIONS),
        ({"spec": None}, "spec"),
    ],
)
def test_options_of_other_names_and_types_are_refused(change, field):
    with raises(ConfigError, field=field) as caught:
        message.FlyNNStrategy(**{**GIVEN, **change})
    assert field == "spec" or next(iter(change)) in str(caught.value.got)


def test_missing_options_and_numbers_of_rounds_that_are_none_are_refused():
    with raises(
        ConfigError, field=OPTIONS, got="missing a required argument: 'classes'"
    ):
        message.FlyNNStrategy(min_available_nodes=4, **PLAN)
    with raises(ConfigError, field="num_rounds", got="three"):
        message.FlyNNStrategy(**GIVEN).start(Grid(4), num_rounds="three")


def test_arrays_to_begin_with_are_refused_as_a_federation_is_what_one_goes_on_from():
    strategy = message.FlyNNStrategy(**GIVEN)
    with raises(ConfigError, field="initial_arrays"):
        strategy.start(Grid(4), ArrayRecord([np.zeros(3)]))
    strategy.start(Grid(4), ArrayRecord())
    assert strategy.selection is not None


def test_a_function_of_metrics_that_returns_nothing_leaves_the_run_as_it_was():
    strategy = message.FlyNNStrategy(**GIVEN, train_metrics_aggr_fn=lambda *_: None)
    with pytest.raises(TypeError):
        strategy.start(Grid(4))
    assert strategy.parties == []
    with pytest.raises(AggregationError):
        _ = strategy.model
