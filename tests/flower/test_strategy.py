"""The strategy as Flower's server calls it, with replies made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.common import Code, EvaluateRes, FitRes, Parameters, Status

from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import STATISTIC, Reply
from flwr_flynn.flower.strategy import FlyNNStrategy
from flwr_flynn.model.metrics import accuracies
from tests.fakes import (
    CLASSES,
    HASHER,
    Proxy,
    counting,
    counts_of,
    good_res,
    manager,
    points,
)
from tests.federated.phases.test_evaluation import BAD, GOOD, with_matrix
from tests.flower.networks import settings

NO_PARAMETERS = Parameters([], "numpy.ndarray")


def make(**changes: Any) -> FlyNNStrategy:
    return FlyNNStrategy(**settings(min_available_clients=2, **changes))


def decoded(parameters: Parameters | None) -> Any:
    return codec.decode_all(
        codec.read_tensors(parameters.tensors), [HASHER], len(CLASSES)
    )[0]


def take(strategy: FlyNNStrategy, server_round: int, *results: Any) -> Any:
    """One training step in which the senders of these replies are asked."""
    proxies = {client.cid: client for client, _ in results}
    strategy.configure_fit(server_round, NO_PARAMETERS, manager(*proxies.values()))
    return strategy.aggregate_fit(server_round, results, [])


def tried(strategy: FlyNNStrategy, *results: Any) -> Any:
    """An evaluation in which the senders of these replies are asked.

    A party that gives no reply is asked, too.
    """
    strategy.configure_evaluate(
        1, NO_PARAMETERS, manager(*(client for client, _ in results), Proxy("silent"))
    )
    return strategy.aggregate_evaluate(1, results, [])


def test_the_initial_parameters_are_the_model_of_no_samples(
    caplog,
):
    parameters = make().initialize_parameters(manager())
    assert decoded(parameters) == counts_of(*points(0))
    assert HASHER.fingerprint[:16] in caplog.text


def test_every_party_that_is_there_is_asked():
    theirs = {"lr": 0.1}
    strategy = make(on_fit_config_fn=lambda server_round: theirs)
    asked = strategy.configure_fit(1, NO_PARAMETERS, manager(*map(Proxy, "abc")))
    assert sorted(client.cid for client, _ in asked) == ["a", "b", "c"]
    for _, ins in asked:
        assert ins.config == {"lr": 0.1, **counting()}
        assert ins.parameters.tensors == []
    assert theirs == {"lr": 0.1}
    assert len({id(ins.config) for _, ins in asked}) == 3
    assert strategy.missing == {
        "node a": "no reply",
        "node b": "no reply",
        "node c": "no reply",
    }


def test_missing_is_asked_minus_counted_with_reasons():
    strategy = make()
    strategy.configure_fit(1, NO_PARAMETERS, manager(*map(Proxy, "abc")))
    failed = FitRes(
        Status(Code.FIT_NOT_IMPLEMENTED, "no `fit`\x07"), NO_PARAMETERS, 0, {}
    )
    strategy.aggregate_fit(1, [(Proxy("a"), good_res())], [(Proxy("b"), failed)])
    assert strategy.missing == {"node b": "failed: no `fit`", "node c": "no reply"}


# ---- evaluate


def counted(**changes: Any) -> FlyNNStrategy:
    """A strategy in which parties 1 and 2 are counted."""
    strategy = make(**changes)
    take(strategy, 1, (Proxy("1"), good_res()), (Proxy("2"), good_res(seed=1)))
    return strategy


def eval_res(
    matrix: Any, n: int | None = None, own: Any = None, **metrics: Any
) -> EvaluateRes:
    if matrix is not None:
        metrics[STATISTIC] = codec.join(
            with_matrix(Reply("", (), 0, {}), matrix, own=own).tensors
        )
        if n is None:
            n = int(np.sum(matrix))
    return EvaluateRes(Status(Code.OK, "Success"), float("nan"), n, metrics)


def test_the_model_is_distributed_once_there_is_somebody_to_receive_it():
    strategy = counted(
        on_evaluate_config_fn=lambda server_round: {"round": server_round}
    )
    clients = manager(*map(Proxy, "12"))
    assert strategy.configure_evaluate(1, NO_PARAMETERS, manager()) == []
    asked = strategy.configure_evaluate(2, NO_PARAMETERS, clients)
    assert sorted(client.cid for client, _ in asked) == ["1", "2"]
    for _, ins in asked:
        scorings = (
            f'[["balanced", 0.8, {strategy.model.model_.member.temperature}, 1.0]]'
        )
        more = {"flynn-scorings": scorings, "flynn-n-releases": 0, "flynn-tries": True}
        assert ins.config == {"round": 2, **counting(phase="evaluation"), **more}
        assert decoded(ins.parameters) == strategy.counts
    strategy.aggregate_evaluate(2, [(proxy, eval_res(GOOD)) for proxy, _ in asked], [])
    assert strategy.configure_evaluate(3, NO_PARAMETERS, clients) == []


def test_figures_of_the_evaluation_are_flower_s_metrics_with_those_of_class_prior_beside_them():
    strategy = counted()
    own = [[3, 0, 0], [0, 3, 0], [0, 0, 4]]
    replies = eval_res(GOOD, own=own), eval_res(BAD), eval_res(None, 0)
    loss, metrics = tried(strategy, *zip(map(Proxy, "123"), replies, strict=True))
    figures = accuracies(np.array(GOOD) + np.array(BAD))
    assert loss == 1 - figures["accuracy"] == 1 - 10 / 12
    assert {name: strategy.evaluation[name] for name in figures} == figures
    assert strategy.evaluation["class_prior"]["sent"] == 1
    more = {
        "accuracy_std": pytest.approx(0.2),
        "worst_accuracy": 0.5,
        "best_accuracy": 0.9,
        "worst_party": "node 2",
    }
    prior = {"class_prior_accuracy": 11 / 12, "class_prior_worst_accuracy": 0.5}
    assert metrics == {**figures, **more, **prior, "examples": 12}


@pytest.mark.parametrize(
    "joined", [3, None, b"1234567", b"\xff" * 9, b"\x05" + bytes(7) + b"junk!"]
)
def test_a_statistic_that_is_none_costs_its_sender_alone(joined):
    strategy = counted(min_parties=1)
    tried(
        strategy,
        (Proxy("1"), eval_res(GOOD)),
        (Proxy("2"), eval_res(None, 3, **{STATISTIC: joined})),
    )
    assert strategy.evaluation["examples"] == 10
    missing = strategy.run.state.missing["evaluation"]
    assert missing.keys() == {"node 2", "node silent"}
    assert missing["node 2"].startswith("refused: ")
