"""Runs of several steps, in Flower's own server loop: sums of columns, counts of several specs, choice, evaluation."""

from __future__ import annotations

import logging
import re
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from flwr.common import Code, EvaluateRes, Parameters, Status
from flwr.server import Server
from flwr.server.client_manager import SimpleClientManager
from flwr_flynn.federated.aggregator import Aggregator
from flwr_flynn.federated.scaling_round import SumsRound, Traffic, foreseen, specs_from
from flwr_flynn.federated.selection_round import CANDIDATES, Choosing
from sklearn.datasets import load_iris

from flwr_flynn.errors import AggregationError, ConfigError, SpecError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import SumsTerms, Terms
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.flower.strategy import FlyNNStrategy
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan, suggest_decay
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.column_moments import ColumnMoments
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.leave_one_out import TEMPERATURES
from flwr_flynn.model.selection import select
from tests.fakes import Proxy, dealt, fit_res, manager

X, Y = load_iris(return_X_y=True)
NAMES = ("setosa", "versicolor", "virginica")
LABELS = np.array(NAMES)[Y]
TRAIN = np.arange(150) % 5 != 0
AUTO = HashPlan(4, 3, 150, "auto", hash_dim=128)
GRID = [HashSpec(4, 100, 2, rho, seed, signed=True, center=(5.0, 3.0, 4.0, 1.0)) for rho, seed in ((5, 0), (20, 1))]
NO_PARAMETERS = Parameters([], "numpy.ndarray")
SPLITS = ("iid", "dirichlet", "pathological")


def parties(how: str = "iid", n: int = 4, received: list[FlyNNClassifier] | None = None, **changes: Any) -> list[Proxy]:
    """Parties that hold shares of iris, a fifth of it held out."""
    proxies = []
    for i, share in enumerate(dealt(LABELS, n, how)):
        train, test = share[TRAIN[share]], share[~TRAIN[share]]
        settings = {"min_examples": 1, "name": f"party-{i}", "X_test": X[test], "y_test": LABELS[test], **changes}
        if received is not None:
            settings["on_model"] = received.append
        proxies.append(Proxy(str(i), FlyNNClient(X[train], LABELS[train], **settings)))
    return proxies


def strategy_for(spec: Any, n: int = 4, **changes: Any) -> FlyNNStrategy:
    settings = {"min_available_clients": n, "min_parties": 1, "wait_timeout": 0, "min_examples": 1, **changes}
    return FlyNNStrategy(spec=spec, classes=NAMES, **settings)


def run(strategy: FlyNNStrategy, proxies: list[Proxy], num_rounds: int | None = None) -> Any:
    server = Server(client_manager=manager(*proxies), strategy=strategy)
    return server.fit(num_rounds or strategy.num_rounds, timeout=None)[0]


def pooled_sums(by_class: bool = True) -> ColumnMoments:
    codes = Y[TRAIN].astype(np.int64)
    return ColumnMoments.from_data(X[TRAIN], codes if by_class else 0 * codes, 3 if by_class else 1)


# ---- laws


@pytest.mark.parametrize("spec", [AUTO, GRID])
def test_a_party_without_points_changes_nothing_and_fails_at_nothing(spec: Any) -> None:
    with_it, without = strategy_for(spec, 5), strategy_for(spec)
    empty = FlyNNClient(X[:0], LABELS[:0], X_test=X[:0], y_test=LABELS[:0], name="empty", min_examples=1)
    run(with_it, [*parties(), Proxy("4", empty)])
    run(without, parties())
    assert not with_it.missing
    assert with_it.model.counts_ == without.model.counts_
    assert with_it.choice.missing == {}
    assert replace(with_it.choice, parties=4, cost=without.choice.cost) == without.choice
    assert with_it.evaluation["accuracy"] == without.evaluation["accuracy"]


@pytest.mark.parametrize("how", SPLITS)
@pytest.mark.parametrize("scaling", ["standard", "weighted"])
def test_sums_of_any_split_give_the_pooled_spec_to_the_last_bit(how: str, scaling: str) -> None:
    strategy = strategy_for(HashPlan(4, 3, 150, scaling, hash_dim=64), decay=0.5)
    assert strategy.num_rounds == 2
    run(strategy, parties(how))
    pooled = pooled_sums(by_class=scaling == "weighted")
    assert strategy.sums == pooled
    assert strategy.specs == HashPlan(4, 3, 150, scaling, hash_dim=64).specs(pooled)
    assert strategy.model.counts_ == ClassCounts.from_data(FlyHash(strategy.specs[0]), X[TRAIN], Y[TRAIN], 3)
    assert strategy.choice is None
    assert strategy.evaluation["examples"] == 30


@pytest.mark.parametrize("how", SPLITS)
@pytest.mark.parametrize("spec", [AUTO, GRID, GRID[0]], ids=["auto", "grid", "one"])
def test_the_choice_of_any_split_is_the_pooled_one(how: str, spec: Any) -> None:
    received: list[FlyNNClassifier] = []
    strategy = strategy_for(spec)
    history = run(strategy, parties(how, received=received))
    specs = AUTO.specs(pooled_sums()) if spec is AUTO else GRID if spec is GRID else GRID[:1]
    assert list(strategy.specs) == list(specs)
    best = select(specs, X[TRAIN], Y[TRAIN], 3)
    model, choice = strategy.model, strategy.choice
    assert model.spec_ == best.spec == specs[choice.spec]
    assert (choice.rule, choice.decay, choice.temperature) == astuple(best.readout)
    assert (model.decay_, model.temperature_) == (best.readout.decay, best.readout.temperature)
    assert model.counts_ == strategy.counts == best.counts
    assert choice.accuracy == max(max(each) for each in choice.accuracies)
    assert (choice.parties, choice.examples, choice.missing) == (4, 120, {})

    test = X[~TRAIN], LABELS[~TRAIN]
    accuracy = np.mean(model.predict(test[0]) == test[1])
    assert strategy.evaluation["accuracy"] == accuracy
    assert history.losses_distributed == [(strategy.num_rounds, 1 - accuracy)]
    assert len(received) == 4
    for each in received:
        assert (each.spec_, each.decay_, each.temperature_) == (model.spec_, model.decay_, model.temperature_)
        assert np.array_equal(each.predict_proba(test[0]), model.predict_proba(test[0]))


@pytest.mark.parametrize(
    ("spec", "changes", "rounds"),
    [
        (GRID[0], {"decay": 0.5}, 1),
        (GRID[0], {"rule": "bayes"}, 1),
        (GRID[0], {}, 2),
        (GRID, {"decay": 0.5}, 2),
        (GRID, {"fraction_evaluate": 0}, 1),
        (HashPlan(4, 3), {}, 2),
        (HashPlan(4, 3, scaling="standard"), {"decay": 0.5}, 2),
        (HashPlan(4, 3, scaling="standard"), {"fraction_evaluate": 0}, 2),
        (AUTO, {"decay": 0.5}, 3),
        (AUTO, {}, 3),
    ],
)
def test_how_many_rounds_a_run_takes(spec: Any, changes: dict[str, Any], rounds: int) -> None:
    strategy = strategy_for(spec, **changes)
    assert strategy.num_rounds == rounds
    proxies = parties()
    run(strategy, proxies)
    assert strategy.model.counts_.n_examples == 120
    assert (strategy.evaluation is None) == (strategy.fraction_evaluate == 0)
    assert {proxy.fits for proxy in proxies} == {1 + (strategy.sums is not None)}
    more = strategy_for(spec, **changes)
    run(more, parties(), rounds + 2)
    assert more.model.counts_ == strategy.model.counts_
    assert more.evaluation == strategy.evaluation


def test_with_one_round_there_is_a_chosen_model_and_no_figures(caplog: pytest.LogCaptureFixture) -> None:
    strategy = strategy_for(GRID)
    with caplog.at_level(logging.INFO, logger="flwr"):
        run(strategy, parties(), num_rounds=1)
    best = select(GRID, X[TRAIN], Y[TRAIN], 3)
    assert (strategy.model.spec_, strategy.model.decay_) == (best.spec, best.readout.decay)
    assert strategy.evaluation is None
    assert "without one it ends here, without figures" in caplog.text


def test_without_an_evaluation_it_is_the_first_spec_and_a_suggested_decay() -> None:
    strategy = strategy_for(GRID, fraction_evaluate=0)
    run(strategy, parties())
    assert strategy.choice is None
    assert strategy.model.spec_ == GRID[0]
    assert strategy.model.decay_ == suggest_decay(strategy.counts)


def test_centralised_evaluation_gets_the_chosen_counts_and_nothing_before_there_is_a_spec() -> None:
    seen = []

    def evaluate(server_round: int, arrays: list[np.ndarray], config: dict[str, Any]) -> None:
        place = [hasher.fingerprint for hasher in map(FlyHash, strategy.specs)].index(arrays[0].tobytes().hex())
        counts = codec.decode(arrays, FlyHash(strategy.specs[place]), 3)
        seen.append((server_round, place, counts.n_examples))

    strategy = strategy_for(AUTO, evaluate_fn=evaluate)
    run(strategy, parties())
    assert seen == [(1, 0, 0), (2, 0, 120), (3, strategy.choice.spec, 120)]


# ---- who is lost, and who comes late


class Meddling(FlyNNStrategy):
    """Calls `before(step, server_round)` before parties are asked."""

    before: Any = staticmethod(lambda step, server_round: None)

    def configure_fit(self, server_round: int, *args: Any, **kwargs: Any) -> Any:
        self.before("fit", server_round)
        return super().configure_fit(server_round, *args, **kwargs)

    def configure_evaluate(self, server_round: int, *args: Any, **kwargs: Any) -> Any:
        self.before("evaluate", server_round)
        return super().configure_evaluate(server_round, *args, **kwargs)


def meddling(spec: Any, proxies: list[Proxy], before: Any, num_rounds: int, **changes: Any) -> FlyNNStrategy:
    settings = {"min_available_clients": 4, "min_parties": 1, "wait_timeout": 0, "min_examples": 1, **changes}
    strategy = Meddling(spec=spec, classes=NAMES, **settings)
    clients: SimpleClientManager = manager(*proxies)
    strategy.before = lambda step, server_round: before(clients, step, server_round)
    Server(client_manager=clients, strategy=strategy).fit(num_rounds, timeout=None)
    return strategy


def test_a_party_lost_between_sums_and_counts_stays_in_the_sums() -> None:
    proxies = parties()

    def lose(clients: SimpleClientManager, step: str, server_round: int) -> None:
        if (step, server_round) == ("fit", 2):
            proxies[3].fails = ConnectionError("gone")

    strategy = meddling(AUTO, proxies, lose, 3)
    assert strategy.sums == pooled_sums()
    assert strategy.missing == {"party-3": "failed: gone"}
    assert len(strategy.parties) == 3
    assert strategy.choice.parties == 3
    assert strategy.choice.examples == strategy.counts.n_examples


@pytest.mark.parametrize("leaves", [True, False])
def test_a_party_lost_between_counts_and_choice_is_counted_without_a_say(
    leaves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    proxies = parties()

    def lose(clients: SimpleClientManager, step: str, server_round: int) -> None:
        if (step, server_round) == ("evaluate", 1):
            proxies[3].fails = ConnectionError("gone")
            if leaves:
                clients.unregister(proxies[3])

    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy = meddling(GRID, proxies, lose, 2)
    assert strategy.counts.n_examples == 120
    reason = "not there to be asked" if leaves else "failed: gone"
    assert strategy.choice.missing == {"party-3": reason}
    assert f"party-3: no say in the choice: {reason}" in caplog.text
    lost = dealt(LABELS, 4, "iid")[3]
    assert strategy.choice.examples == 120 - int(TRAIN[lost].sum())
    assert strategy.evaluation is not None


def test_where_nobody_replies_to_the_choice_it_is_the_first_spec(caplog: pytest.LogCaptureFixture) -> None:
    proxies = parties()

    def lose(clients: SimpleClientManager, step: str, server_round: int) -> None:
        for proxy in proxies:
            proxy.fails = ConnectionError("gone") if (step, server_round) == ("evaluate", 1) else None

    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy = meddling(GRID, proxies, lose, 2)
    choice = strategy.choice
    assert (choice.spec, choice.parties, choice.accuracies, choice.accuracy) == (0, 0, (), None)
    assert choice.decay == strategy.model.decay_ == suggest_decay(strategy.counts)
    assert "chose spec 1 of 2" in caplog.text
    assert "from 0 of 4 parties: not compared" in caplog.text
    assert strategy.evaluation is not None  # they are back


def test_stragglers_are_added_and_the_choice_is_made_again() -> None:
    proxies = parties()
    choices = []

    def late(clients: SimpleClientManager, step: str, server_round: int) -> None:
        if (step, server_round) == ("fit", 1):
            clients.unregister(proxies[3])
        if (step, server_round) == ("fit", 2):
            choices.append(strategy_of[0].choice)
            clients.register(proxies[3])
            clients.unregister(proxies[0])  # counted: nothing is lost, but it has no say any more
        if (step, server_round) == ("evaluate", 2):
            clients.register(proxies[0])

    strategy_of: list[FlyNNStrategy] = []

    class Known(Meddling):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            strategy_of.append(self)

    settings = {"min_available_clients": 4, "min_parties": 1, "wait_timeout": 0}
    strategy = Known(spec=GRID, classes=NAMES, **settings)
    clients = manager(*proxies)
    strategy.before = lambda step, server_round: late(clients, step, server_round)
    Server(client_manager=clients, strategy=strategy).fit(3, timeout=None)
    best = select(GRID, X[TRAIN], Y[TRAIN], 3)
    assert choices[0].parties == 3
    assert strategy.choice.parties == 4
    assert (strategy.model.spec_, strategy.model.decay_) == (best.spec, best.readout.decay)
    assert strategy.evaluation["examples"] == 30
    assert [proxy.fits for proxy in proxies] == [1, 1, 1, 1]


def test_where_no_party_sends_sums_the_columns_are_left_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    strategy = strategy_for(AUTO)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        run(strategy, parties(min_examples=1000))
    assert strategy.sums.n_examples == 0
    assert strategy.specs == HashPlan(4, 3, 150, None, hash_dim=128).specs()
    assert "THE COLUMNS ARE LEFT AS THEY ARE: no party sent the sums of any point" in caplog.text
    assert strategy.model.counts_.n_examples == 120
    assert strategy.evaluation is not None


@pytest.mark.parametrize("scaling", ["weighted", "standard"])
def test_small_classes_stay_out_of_the_sums_and_are_counted(scaling: str) -> None:
    """Where classes are summed up as one, too: the difference of two answers would be the small class."""
    some = np.concatenate([np.flatnonzero(Y == 0)[:4], np.flatnonzero(Y == 1)[:6]])
    proxy = Proxy("0", FlyNNClient(X[some], LABELS[some], min_examples=1))
    strategy = strategy_for(HashPlan(4, 3, scaling=scaling, hash_dim=64), n=1, min_examples=5)
    run(strategy, [proxy])
    kept = ColumnMoments.from_data(X[some[4:]], np.zeros(6, np.int64), 1)
    assert strategy.sums.n_examples == 6
    assert (strategy.sums.sums.sum(axis=0) == kept.sums[0]).all()
    assert strategy.counts.n_examples == 10


def test_a_party_s_own_minimum_goes_before_the_server_s() -> None:
    strategy = strategy_for(HashPlan(4, 3, scaling="standard", hash_dim=64), n=1, min_examples=1)
    run(strategy, [Proxy("0", FlyNNClient(X[:4], LABELS[:4]))])
    assert strategy.sums.n_examples == 0


def test_without_the_sums_there_is_no_model_and_the_error_says_who_is_missing() -> None:
    strategy = strategy_for(AUTO, accept_failures=False)
    proxies = parties()
    proxies[2] = Proxy("2", FlyNNClient(X[:, :3], LABELS, name="Genf"))
    run(strategy, proxies)
    with pytest.raises(AggregationError, match=r"no party was asked to count.*Genf \(declined: spec: n_features is 4"):
        _ = strategy.model
    assert strategy.parties == []
    assert strategy.sums is None
    with pytest.raises(AggregationError):
        _ = strategy.counts


def test_where_failures_are_not_accepted_a_choice_is_whole_or_none() -> None:
    proxies = parties()

    def lose(clients: SimpleClientManager, step: str, server_round: int) -> None:
        proxies[3].fails = ConnectionError("gone") if (step, server_round) == ("evaluate", 1) else None

    strategy = meddling(GRID, proxies, lose, 2, accept_failures=False)
    assert strategy.choice.parties == 0
    assert strategy.model.spec_ == GRID[0]


# ---- hostile sums, one by one


def limbs(n: int = 10, **changes: Any) -> list[np.ndarray]:
    sizes, sums, squares = ColumnMoments.from_data(X[:n], np.zeros(n, np.int64), 3).to_limbs()
    return list({"sizes": sizes, "sums": sums, "squares": squares, **changes}.values())


SIZES, SUMS, SQUARES = limbs()
HOSTILE_SUMS = {
    "nothing": (fit_res([], 0), "expected 3 arrays"),
    "a refusal": (fit_res([], 0, flynn_refused="no"), "declined: no"),
    "two arrays": (fit_res([SIZES, SUMS], 10), "expected 3 arrays"),
    "counts": (fit_res([SIZES, SUMS, SQUARES, SQUARES], 10), "expected 3 arrays"),
    "another width": (fit_res([SIZES, SUMS[:, :3], SQUARES[:, :3]], 10), r"expected uint32 of shape \(3, 4, limbs\)"),
    "another number of classes": (fit_res([SIZES[:2], SUMS[:2], SQUARES[:2]], 10), "expected 3 class sizes"),
    "floats": (fit_res([SIZES, SUMS.astype(float), SQUARES], 10), "expected uint32"),
    "negative sizes": (fit_res([-SIZES, SUMS, SQUARES], 10), "class sizes from 0"),
    "sums of no points": (fit_res([0 * SIZES, SUMS, SQUARES], 0), "column moments: "),
    "impossible squares": (fit_res([SIZES, SUMS, SQUARES * np.uint32(0)], 10), "column moments: "),
    "another number": (fit_res([SIZES, SUMS, SQUARES], 11), "expected 11 examples as announced, got 10"),
    "no number": (fit_res([SIZES, SUMS, SQUARES], 10.0), "num_examples"),
    "too few": (fit_res(limbs(4), 4), "classes of less than 5 examples to be left out, got 1 of them"),
    "too many": (fit_res(limbs(60), 60), "expected at most 50 examples, got 60"),
    "junk": (fit_res([SIZES, SUMS, SQUARES], 10), "array 2: expected the bytes of numpy.save"),
}
HOSTILE_SUMS["junk"][0].parameters.tensors[1] = b"junk"


@pytest.mark.parametrize("name", HOSTILE_SUMS)
def test_hostile_sums_are_refused_and_change_nothing(name: str) -> None:
    res, reason = HOSTILE_SUMS[name]
    strategy = strategy_for(AUTO, n=2, min_examples=5, max_examples_per_party=50)
    strategy.configure_fit(1, NO_PARAMETERS, manager(Proxy("1"), Proxy("2")))
    good = fit_res(limbs(), 10)
    strategy.aggregate_fit(1, [(Proxy("1"), good), (Proxy("2"), res), (Proxy("1"), fit_res(limbs(20), 20))], [])
    assert strategy.sums == ColumnMoments.from_data(X[:10], np.zeros(10, np.int64), 3)
    assert list(strategy.sums_missing) == ["node 2"]
    assert re.search(reason, strategy.sums_missing["node 2"])


def test_a_request_for_sums_is_checked_by_the_party() -> None:
    terms = SumsTerms(4, NAMES, True, 5).to_config()
    client = FlyNNClient(X, LABELS)
    arrays, n, _ = client.fit([], terms)
    assert n == 150
    assert ColumnMoments.from_limbs(arrays, 4, 3) == ColumnMoments.from_data(X, Y.astype(np.int64), 3)
    for change, reason in (
        ({"flynn-features": 5}, "n_features is 5, but the data has 4 columns"),
        ({"flynn-features": "4"}, "n_features: expected a whole number"),
        ({"flynn-min-examples": 0}, "min_examples"),
        ({"flynn-min-examples": None}, "min_examples"),
        ({"flynn-by-class": 1}, "by_class"),
        ({"flynn-classes": "[]"}, "classes"),
        ({"flynn-classes": '["setosa"]'}, "100 of 150 labels are not in the class list"),
    ):
        arrays, n, metrics = client.fit([], {**terms, **change})
        assert (arrays, n) == ([], 0)
        assert reason in metrics["flynn-refused"]
    refused = FlyNNClient(X, LABELS, memory_limit=1024 * 12 - 1).fit([], terms)[2]["flynn-refused"]
    assert refused.startswith("memory: the sums of 4 columns for 3 classes need about ")
    bad = X.copy()
    bad[3, 2] = np.nan
    assert "NaN" in FlyNNClient(bad, LABELS).fit([], terms)[2]["flynn-refused"]


@pytest.mark.parametrize("convert", ["csr_matrix", "csc_array", "coo_array"])
def test_sums_of_sparse_points_are_those_of_dense_ones(convert: str) -> None:
    terms = SumsTerms(4, NAMES, True, 5).to_config()
    sparse = FlyNNClient(getattr(sp, convert)(X), LABELS).fit([], terms)[0]
    assert all(map(np.array_equal, sparse, FlyNNClient(X, LABELS).fit([], terms)[0]))


# ---- hostile blocks, one by one


def blocks(n: int = 10, specs: list[HashSpec] = GRID, **metrics: Any) -> Any:
    counts = [ClassCounts.from_data(FlyHash(spec), X[:n], Y[:n], 3) for spec in specs]
    return fit_res(codec.encode(*counts), n, **metrics)


def mixed() -> Any:
    """Ten points of class 0 for the first spec, ten of class 1 for the second."""
    first = ClassCounts.from_data(FlyHash(GRID[0]), X[:10], np.zeros(10, int), 3)
    second = ClassCounts.from_data(FlyHash(GRID[1]), X[:10], np.ones(10, int), 3)
    return fit_res(codec.encode(first, second), 10)


HOSTILE_BLOCKS = {
    "one block": (blocks(specs=GRID[:1]), "expected 4 arrays (fingerprint, counts), got 2"),
    "three blocks": (blocks(specs=[*GRID, GRID[0]]), "expected 4 arrays (fingerprint, counts), got 6"),
    "another order": (blocks(specs=GRID[::-1]), "fingerprint: expected"),
    "the same twice": (blocks(specs=[GRID[0], GRID[0]]), "fingerprint: expected"),
    "other points": (mixed(), "expected blocks of as many points of each class"),
}


@pytest.mark.parametrize("name", HOSTILE_BLOCKS)
def test_hostile_blocks_are_refused_for_all_specs(name: str) -> None:
    res, reason = HOSTILE_BLOCKS[name]
    strategy = strategy_for(GRID, n=2)
    strategy.aggregate_fit(1, [(Proxy("1"), blocks()), (Proxy("2"), res), (Proxy("1"), blocks(20))], [])
    assert reason in strategy.missing["node 2"]
    assert [counts.n_examples for counts in strategy._course.aggregator.total] == [10, 10]
    assert strategy.aggregate_fit(2, [(Proxy("1"), blocks(30))], []) == (None, {})
    assert strategy.counts.n_examples == 10


def test_the_memory_limit_covers_all_specs_before_any_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Terms(GRID, NAMES).to_config()
    needed = sum(memory_needed(spec, 3) for spec in GRID) + 16 * 9
    assert FlyNNClient(X, LABELS, memory_limit=needed).fit([], config)[1] == 150
    monkeypatch.setattr(Terms, "agree_on_rows", lambda *_: pytest.fail("drew the rows"))
    refused = FlyNNClient(X, LABELS, memory_limit=needed - 1).fit([], config)[2]["flynn-refused"]
    assert refused.startswith("memory: hash_dim 100, row_nnz 2 and 3 classes in the first of 2 specs need about ")


# ---- hostile ballots, one by one


def asked() -> tuple[FlyNNStrategy, dict[str, Any]]:
    """A strategy that counted parties 1 and 2 and waits for their ballots, and a good one of party 1."""
    strategy = strategy_for(GRID, n=2)
    clients = [FlyNNClient(X[i::2], LABELS[i::2], name=f"site {i}") for i in range(2)]
    proxies = [Proxy(str(i), client) for i, client in enumerate(clients)]
    fits = strategy.configure_fit(1, NO_PARAMETERS, manager(*proxies))
    parameters, _ = strategy.aggregate_fit(1, [(proxy, proxy.fit(ins)) for proxy, ins in fits], [])
    requests = strategy.configure_evaluate(1, parameters, manager(*proxies, Proxy("stranger")))
    assert sorted(proxy.cid for proxy, _ in requests) == ["0", "1"]  # a stranger has no say
    return strategy, {proxy.cid: proxy.evaluate(ins) for proxy, ins in requests}


def spoiled(res: EvaluateRes, n: Any = None, **changes: Any) -> EvaluateRes:
    metrics = dict(res.metrics)
    for key, value in changes.items():
        name = f"flynn-{key}"
        metrics[name] = value(metrics.get(name)) if callable(value) else value
    return EvaluateRes(Status(Code.OK, ""), 0.0, res.num_examples if n is None else n, metrics)


def entry(value: int) -> Any:
    return lambda raw: int(value).to_bytes(8, "little", signed=True) + raw[8:]


HOSTILE_BALLOTS: dict[str, tuple[dict[str, Any], str]] = {
    "no hits": ({"hits": None}, "hits: expected 432 bytes, got NoneType"),
    "text": ({"hits": "x" * 432}, "hits: expected 432 bytes, got str"),
    "short": ({"hits": lambda raw: raw[:-8]}, "got 424 bytes"),
    "negative hits": ({"hits": entry(-1)}, "hits: expected from 0 to"),
    "more hits than points": ({"hits": entry(26)}, "hits: expected from 0 to"),
    "no losses": ({"losses": None}, "losses: expected"),
    "negative losses": ({"losses": entry(-1)}, "losses: expected from 0 to"),
    "endless losses": ({"losses": entry(75 * 64 * 2**20 + 1)}, "losses: expected from 0 to"),
    "another number": ({"n": 74}, "expected 75 examples as counted, got 74"),
    "no number": ({"n": 75.0}, "num_examples"),
    "a refusal": ({"refused": "no"}, "declined: no"),
    "a confusion matrix": ({"hits": None, "losses": None, "confusion": bytes(72)}, "hits: expected"),
}


@pytest.mark.parametrize("name", HOSTILE_BALLOTS)
def test_a_hostile_ballot_costs_its_sender_only(name: str) -> None:
    changes, reason = HOSTILE_BALLOTS[name]
    strategy, good = asked()
    before = strategy.counts.sha256()
    results = [(Proxy("0"), good["0"]), (Proxy("1"), spoiled(good["1"], **changes))]
    assert strategy.aggregate_evaluate(1, results, []) == (None, {})
    assert strategy.choice.parties == 1
    assert strategy.choice.examples == 75
    assert reason in strategy.choice.missing["site 1"]
    assert strategy.counts.sha256() == before or strategy.choice.spec == 1


def test_ballots_count_once_and_strangers_do_not() -> None:
    strategy, good = asked()
    results = [(Proxy(cid), good[name]) for cid, name in (("0", "0"), ("0", "1"), ("1", "1"), ("9", "0"))]
    strategy.aggregate_evaluate(1, results, [])
    best = select(GRID, X, Y, 3)
    assert (strategy.choice.spec, strategy.choice.decay) == (GRID.index(best.spec), best.readout.decay)
    assert strategy.choice.examples == 150
    assert strategy.choice.temperature in TEMPERATURES


def test_a_party_refuses_a_choice_among_counts_that_it_is_not_in() -> None:
    aggregator = Aggregator(Terms(GRID, NAMES), 1)
    choosing = Choosing(aggregator, "balanced", "auto")
    config = choosing.config()
    party = FlyNNClient(X, LABELS)
    arrays = codec.encode(*aggregator.total)
    refused = party.evaluate(arrays, config)
    assert refused[:2] == (0.0, 0)
    assert "expected samples that are in the counts" in refused[2]["flynn-refused"]
    assert FlyNNClient(X[:0], LABELS[:0]).evaluate(arrays, config)[1] == 0
    full = codec.encode(*(ClassCounts.from_data(FlyHash(spec), X, Y, 3) for spec in GRID))
    assert party.evaluate(full, config)[1] == 150
    for arrays, change, reason in (
        (full[:2], {}, "expected 4 arrays"),
        (full, {CANDIDATES: "[]"}, "1 to 64 read-outs for each of 2 specs"),
        (full, {CANDIDATES: "[[], []]"}, "1 to 64 read-outs"),
        (full, {CANDIDATES: "{"}, "in JSON"),
        (full, {CANDIDATES: 7}, "expected a text"),
        (full, {CANDIDATES: "x" * 10**6}, "expected a text of at most"),
        (full, {CANDIDATES: '[[["balanced", 0.5]], [["balanced"]]]'}, "in JSON"),
        (full, {CANDIDATES: '[[["balanced", 0.5]], [["balanced", "0.5"]]]'}, "decay: expected"),
        (full, {CANDIDATES: '[[["balanced", 0.5]], [["balanced", 1.5]]]'}, "decay: expected"),
        (full, {CANDIDATES: '[[["balanced", NaN]], [["balanced", 0.5]]]'}, "decay: expected"),
        (full, {CANDIDATES: '[[["best", 0.5]], [["balanced", 0.5]]]'}, "rule: expected"),
    ):
        loss, n, metrics = party.evaluate(arrays, {**config, **change})
        assert (loss, n) == (0.0, 0)
        assert reason in metrics["flynn-refused"]


def test_a_party_takes_no_model_of_several_specs() -> None:
    full = codec.encode(*(ClassCounts.from_data(FlyHash(spec), X, Y, 3) for spec in GRID))
    config = {**Terms(GRID, NAMES).to_config(), "flynn-decay": 0.5, "flynn-rule": "balanced"}
    received: list[FlyNNClassifier] = []
    party = FlyNNClient(X, LABELS, on_model=received.append)
    assert "expected the one of the model, got 2" in party.evaluate(full, config)[2]["flynn-refused"]
    config = {**Terms(GRID[0], NAMES).to_config(), "flynn-decay": 0.5, "flynn-rule": "balanced"}
    assert "flynn-temperature" in party.evaluate(full[:2], {**config, "flynn-temperature": "1"})[2]["flynn-refused"]
    assert "temperature" in party.evaluate(full[:2], {**config, "flynn-temperature": 0.0})[2]["flynn-refused"]
    assert received == []


# ---- pieces


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ([], "expected 1 to 16 specs, got 0"),
        ([GRID[0]] * 2, "expected different specs, got 1 of them again"),
        ([GRID[0], HashSpec(5, 10, 1, 1, 0)], "expected specs of the same n_features"),
        ([GRID[0], 3], "expected only HashSpecs, got a int"),
        (HashPlan(4, 2), "classes: expected 2 as in the plan, got 3"),
    ],
)
def test_bad_grids_are_refused(spec: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        strategy_for(spec)


def test_sizes_that_do_not_fit_are_known_before_the_sums() -> None:
    with pytest.raises(SpecError, match="row_nnz"):
        strategy_for(HashPlan(4, 3, scaling="standard", row_nnz=9, waves=False))
    assert len(foreseen(AUTO)) == 4
    assert [spec.hash_dim for spec in foreseen(AUTO)] == [128] * 4
    waves = HashPlan(4, 3, scaling="standard", row_nnz=9)
    assert foreseen(waves)[0].n_waves == 64
    assert specs_from(waves, ColumnMoments.zeros(4, 1))[0][0].row_nnz == 4


def test_columns_that_are_all_alike_make_fewer_specs() -> None:
    same = ColumnMoments.from_data(np.ones((9, 4)), np.arange(9) % 3, 3)
    specs, trouble = specs_from(AUTO, same)
    assert trouble == ""
    assert len(specs) == len(set(specs)) < 4


def test_every_step_s_bytes_are_told() -> None:
    strategy = strategy_for(AUTO)
    run(strategy, parties())
    assert strategy.traffic.keys() == {"sums", "counts", "choice", "model"}
    assert all(each.asked == each.replied == 4 for each in strategy.traffic.values())
    cost = strategy.choice.cost
    assert cost.keys() == {"sums", "extra_specs", "choice"}
    assert all(each["up"] > 0 and each["down"] > 0 for each in cost.values())
    assert cost["sums"] == strategy.traffic["sums"].per_party
    chosen = strategy._course.aggregator.block_bytes[strategy.choice.spec] / 4
    sent = np.mean([party.bytes for party in strategy.parties])
    assert cost["extra_specs"]["up"] == pytest.approx(sent - chosen, abs=1)
    traffic = Traffic()
    traffic.ask(2, [b"123"], {"a": "é", "b": 1, "c": b"12"})
    traffic.reply([b"12345"], {"d": 0.5})
    assert traffic.per_party == {"up": 14, "down": 18}


def test_sums_cannot_overflow() -> None:
    terms = SumsTerms(1, NAMES, False, 1)
    server = SumsRound(terms)
    assert server.max_examples_per_party == (2**63 - 1) // 1024
