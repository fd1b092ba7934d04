"""The strategy as Flower calls it: mock replies first, then Flower's own server loop over parties in this process."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.common import Code, EvaluateRes, FitRes, Parameters, Status
from flwr.server import Server

from flwr_flynn.errors import AggregationError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import STATISTIC, Reply
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.flower.strategy import FlyNNStrategy
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.metrics import scores
from tests.fakes import CLASSES, HASHER, SPEC, Proxy, counting, counts_of, fit_res, good_res, manager, points
from tests.federated.phases.test_evaluation import with_matrix
from tests.raising import raises


def make(**changes: Any) -> FlyNNStrategy:
    """A strategy with nothing to select."""
    settings = {"spec": SPEC, "classes": CLASSES, "min_available_clients": 2, "min_parties": 2, "wait_timeout": 0}
    settings["decay"] = 0.8
    return FlyNNStrategy(**{**settings, **changes})


def state(strategy: FlyNNStrategy) -> tuple[Any, ...]:
    """All that a bad reply must leave alone."""
    return strategy.counts.sha256(), strategy.counts.n_examples, strategy.parties, strategy.evaluation


def decoded(parameters: Parameters | None) -> Any:
    return codec.decode_all(codec.read_tensors(parameters.tensors), [HASHER], len(CLASSES))[0]


NO_PARAMETERS = Parameters([], "numpy.ndarray")


def take(strategy: FlyNNStrategy, server_round: int, results: Any, failures: Any = (), asked: str = "") -> Any:
    """One training step in which the senders of these replies, and the parties in `asked`, are asked."""
    proxies = [client for client, _ in results] + [Proxy(cid) for cid in asked]
    strategy.configure_fit(server_round, NO_PARAMETERS, manager(*{proxy.cid: proxy for proxy in proxies}.values()))
    return strategy.aggregate_fit(server_round, results, list(failures))


def tried(strategy: FlyNNStrategy, results: Any, failures: Any = (), asked: str = "") -> Any:
    """The same of an evaluation."""
    proxies = {proxy.cid: proxy for proxy in [*(client for client, _ in results), *map(Proxy, asked)]}
    strategy.configure_evaluate(1, NO_PARAMETERS, manager(*proxies.values()))
    return strategy.aggregate_evaluate(1, results, list(failures))


# ---- fit


def test_the_initial_parameters_are_the_model_of_no_samples(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        parameters = make().initialize_parameters(manager())
    assert decoded(parameters) == counts_of(*points(0))
    assert HASHER.fingerprint[:16] in caplog.text


def test_every_party_that_is_there_is_asked() -> None:
    theirs = {"lr": 0.1}
    strategy = make(on_fit_config_fn=lambda server_round: theirs)
    asked = strategy.configure_fit(1, NO_PARAMETERS, manager(*map(Proxy, "abc")))
    assert sorted(client.cid for client, _ in asked) == ["a", "b", "c"]
    for _, ins in asked:
        assert ins.config == {"lr": 0.1, **counting()}
        assert ins.parameters.tensors == []
    assert theirs == {"lr": 0.1}
    assert len({id(ins.config) for _, ins in asked}) == 3
    assert strategy.missing == {"node a": "no reply", "node b": "no reply", "node c": "no reply"}


def test_replies_are_added_up(caplog: pytest.LogCaptureFixture) -> None:
    strategy = make()
    replies = [(Proxy(str(i)), good_res(5 + i, seed=i, flynn_party=f"site {i}")) for i in range(3)]
    with caplog.at_level(logging.INFO, logger="flwr"):
        parameters, metrics = take(strategy, 1, replies)
    total = sum((counts_of(*points(5 + i, seed=i)) for i in range(3)), start=counts_of(*points(0)))
    assert decoded(parameters) == strategy.counts == total
    n_bytes = sum(party.bytes for party in strategy.parties)
    assert metrics == {"parties": 3, "examples": 18, "bytes": n_bytes}
    assert n_bytes == sum(sum(map(len, res.parameters.tensors)) for _, res in replies)
    for i in range(3):
        facts = (f"site {i}", str(5 + i), str(strategy.parties[i].bytes))
        assert any(all(fact in record.getMessage() for fact in facts) for record in caplog.records)
    assert isinstance(strategy.model, FlyNNClassifier)
    assert strategy.model.counts_ == total
    assert strategy.model is strategy.model


ZERO_SIZE = b"{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999, 0, 9999999999), }".ljust(117) + b"\n"


def with_tensor(place: int, tensor: bytes) -> FitRes:
    res = good_res()
    res.parameters.tensors[place] = tensor
    return res


HOSTILE = {
    "nothing": (fit_res([], 0), "refused: message: "),
    "a refusal": (fit_res([], 0, flynn_refused="X: \n3 columns"), "declined: X: 3 columns"),
    "a refusal with counts": (good_res(flynn_refused=7), "declined: no reason given"),
    "truncated": (with_tensor(1, good_res().parameters.tensors[1][:-1]), "refused: array 2: "),
    "bit flip": (with_tensor(0, good_res().parameters.tensors[0][:-1] + b"\0"), "refused: fingerprint: "),
    "junk": (with_tensor(1, b"junk"), "refused: array 2: "),
    "wrong number": (fit_res(codec.encode(counts_of(*points(5))), 6), "refused: counts: "),
    "no number": (fit_res(codec.encode(counts_of(*points(5))), 5.0), "refused: num_examples: "),
    "averaged weights": (fit_res([np.zeros((3, 24)), np.zeros(3)], 5), "refused: fingerprint: "),
    "zero among huge sizes": (with_tensor(1, good_res().parameters.tensors[1][:10] + ZERO_SIZE), "refused: array 2: "),
    "three arrays": (fit_res([*codec.encode(counts_of(*points(5))), np.zeros(1)], 5), "refused: message: "),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_is_refused_and_changes_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    res, reason = HOSTILE[name]
    res.metrics["flynn-party"] = "Mallory\n2026 INFO all is well"
    strategy = make()
    take(strategy, 1, [(Proxy("1"), good_res())])
    before = state(strategy)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        assert take(strategy, 2, [(Proxy("2"), res)]) == (None, {})
    assert state(strategy) == before
    told = strategy.missing["Mallory 2026 INFO all is well"]
    assert told.startswith(reason)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [f"Mallory 2026 INFO all is well ({told})" in line for line in lines].count(True) == 1


def test_good_replies_count_beside_bad_ones() -> None:
    strategy = make()
    results = [(Proxy(name), res) for name, (res, _) in HOSTILE.items()]
    results[3:3] = [(Proxy("good"), good_res())]
    parameters, metrics = take(strategy, 1, results)
    assert decoded(parameters) == counts_of(*points(5))
    assert metrics["parties"] == 1
    assert len(strategy.missing) == len(HOSTILE)


def test_a_reply_that_comes_twice_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    strategy = make()
    take(strategy, 1, [(Proxy("1"), good_res()), (Proxy("1"), good_res(9, seed=1))])
    assert take(strategy, 2, [(Proxy("1"), good_res(9))]) == (None, {})  # nobody was asked
    assert strategy.counts == counts_of(*points(5))
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("node 1: " in line for line in told) == 1


def failed(cid: str, message: str) -> tuple[Proxy, FitRes]:
    return Proxy(cid), FitRes(Status(Code.FIT_NOT_IMPLEMENTED, message), NO_PARAMETERS, 0, {})


def test_missing_is_asked_minus_counted_with_reasons() -> None:
    strategy = make()
    strategy.configure_fit(1, NO_PARAMETERS, manager(*map(Proxy, "abcd")))
    strategy.aggregate_fit(
        1,
        [(Proxy("a"), good_res()), (Proxy("b"), fit_res([], 0, flynn_refused="too big"))],
        [failed("c", "no `fit`\x07")],
    )
    assert strategy.missing == {"node b": "declined: too big", "node c": "failed: no `fit`", "node d": "no reply"}
    with raises(AggregationError, counted=1, min_parties=2, missing=strategy.missing):
        _ = strategy.model


# ---- evaluate


def counted(**changes: Any) -> FlyNNStrategy:
    """A strategy in which parties 1 and 2 are counted."""
    strategy = make(**changes)
    take(strategy, 1, [(Proxy("1"), good_res()), (Proxy("2"), good_res(seed=1))])
    return strategy


def test_the_model_is_distributed_once() -> None:
    strategy = counted(on_evaluate_config_fn=lambda server_round: {"round": server_round})
    clients = manager(*map(Proxy, "12"))
    asked = strategy.configure_evaluate(1, NO_PARAMETERS, clients)
    assert sorted(client.cid for client, _ in asked) == ["1", "2"]
    for _, ins in asked:
        scorings = f'[["balanced", 0.8, {strategy.model.model_.member.temperature}, 1.0]]'
        more = {"flynn-scorings": scorings, "flynn-n-releases": 0, "flynn-tries": True}
        assert ins.config == {"round": 1, **counting(phase="evaluation"), **more}
        assert decoded(ins.parameters) == strategy.counts
    strategy.aggregate_evaluate(1, [(proxy, eval_res(GOOD)) for proxy, _ in asked], [])
    assert strategy.configure_evaluate(2, NO_PARAMETERS, clients) == []


NO_REPLY = Reply("", (), 0, {})


def eval_res(matrix: Any, n: int | None = None, own: Any = None, **metrics: Any) -> EvaluateRes:
    metrics = {key.replace("_", "-"): value for key, value in metrics.items()}
    if matrix is not None:
        metrics[STATISTIC] = codec.join(with_matrix(NO_REPLY, matrix, own=own).tensors)
        n = int(np.sum(matrix)) if n is None else n
    return EvaluateRes(Status(Code.OK, "Success"), float("nan"), n, metrics)


GOOD, BAD = [[3, 0, 0], [0, 2, 1], [0, 0, 4]], [[0, 1, 0], [0, 1, 0], [0, 0, 0]]


def test_confusion_matrices_are_added_up() -> None:
    strategy = counted()
    results = [(Proxy("1"), eval_res(GOOD)), (Proxy("2"), eval_res(BAD)), (Proxy("3"), eval_res(None, 0))]
    loss, metrics = tried(strategy, results)
    figures = scores(np.array(GOOD) + np.array(BAD))
    assert loss == 1 - figures["accuracy"]
    assert {name: strategy.evaluation[name] for name in figures} == figures
    assert metrics == {
        **figures,
        "accuracy_std": pytest.approx(0.2),
        "examples": 12,
        "worst_accuracy": 0.5,
        "best_accuracy": 0.9,
        "worst_party": "node 2",
    }


def test_results_with_class_prior_are_beside_those_of_the_model() -> None:
    res = eval_res(GOOD, own=[[3, 0, 0], [0, 3, 0], [0, 0, 4]])
    strategy = counted()
    loss, metrics = tried(strategy, [(Proxy("1"), res), (Proxy("2"), eval_res(BAD)), (Proxy("3"), eval_res(None, 0))])
    assert loss == 1 - metrics["accuracy"] == 1 - 10 / 12
    assert metrics["class_prior_accuracy"] == 11 / 12
    assert (metrics["class_prior_worst_accuracy"], metrics["worst_accuracy"]) == (0.5, 0.5)
    assert strategy.evaluation["class_prior"]["sent"] == 1


@pytest.mark.parametrize("joined", [3, "text", None, b"1234567", b"\xff" * 9, b"\x05" + bytes(7) + b"junk!"])
def test_a_statistic_that_is_none_costs_its_sender_alone(joined: Any) -> None:
    strategy = counted(min_parties=1)
    res = eval_res(None, 3, **{STATISTIC: joined})
    tried(strategy, [(Proxy("1"), eval_res(GOOD)), (Proxy("2"), res)], asked="3")
    assert strategy.evaluation["examples"] == 10
    missing = strategy.run.state.absent("evaluation")
    assert missing.keys() == {"node 2", "node 3"}
    assert missing["node 2"].startswith("refused: ")


def test_a_model_that_nobody_was_there_to_receive_is_distributed_later() -> None:
    strategy = counted()
    assert strategy.configure_evaluate(1, NO_PARAMETERS, manager()) == []
    assert len(strategy.configure_evaluate(2, NO_PARAMETERS, manager(Proxy("1")))) == 1


# ---- the whole run, in Flower's own server loop


def federation(n_parties: int, n_points: int = 60) -> tuple[list[Proxy], list[FlyNNClassifier], Any]:
    """Parties that hold interleaved shares of some points, what they receive, and the points to train on."""
    X, y = points(n_points)
    received: list[FlyNNClassifier] = []
    proxies = []
    for i in range(n_parties):
        share, test = slice(i, n_points // 2, n_parties), slice(n_points // 2 + i, None, n_parties)
        client = FlyNNClient(
            X[share], y[share], X_test=X[test], y_test=y[test], name=f"party-{i}", on_model=received.append
        )
        proxies.append(Proxy(str(i), client))
    return proxies, received, (X[: n_points // 2], y[: n_points // 2], X[n_points // 2 :], y[n_points // 2 :])


def test_stragglers_are_counted_in_a_later_round() -> None:
    proxies, _, (X, y, _, _) = federation(3)
    late, broken = proxies[2], proxies[1]
    clients = manager(proxies[0], broken)
    broken.fails = ConnectionError("not yet")

    class LaterRounds(FlyNNStrategy):
        def configure_fit(self, server_round: int, *args: Any, **kwargs: Any) -> Any:
            if server_round == 2:
                clients.register(late)
            if server_round == 3:
                broken.fails = None
                clients.unregister(proxies[0])  # counted already: nothing is lost, and nobody waits for it
            return super().configure_fit(server_round, *args, **kwargs)

    strategy = LaterRounds(
        spec=SPEC, classes=CLASSES, min_available_clients=3, min_parties=3, wait_timeout=0, decay=0.8
    )
    Server(client_manager=clients, strategy=strategy).fit(4, timeout=None)
    assert strategy.model.counts_ == counts_of(X, y)
    assert [proxy.fits for proxy in proxies] == [1, 3, 1]
    assert late.evaluations == 1


def test_a_run_with_too_few_says_who_is_missing_and_why() -> None:
    proxies, _, (X, y, _, _) = federation(4)
    proxies[1] = Proxy("1", FlyNNClient(X, np.full(len(X), "oak"), name="Ulm"))
    proxies[2] = Proxy("2", FlyNNClient(X[:, :3], y, name="Genf"))
    proxies[3].fails = RuntimeError("node unavailable")
    strategy = make(min_available_clients=4, min_parties=2)
    Server(client_manager=manager(*proxies), strategy=strategy).fit(1, timeout=None)
    with pytest.raises(AggregationError) as error:
        _ = strategy.model
    text = str(error.value)
    assert text.startswith("1 of at least 2 parties counted; missing: ")
    assert "Ulm (declined: y: some labels are not in the class list" in text
    assert "Genf (declined: n_features: expected the run's 4 columns, got 3 at this party)" in text
    assert "node 3 (failed: node unavailable)" in text
    assert "oak" not in text
