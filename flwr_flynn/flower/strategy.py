"""FlyNN as a Flower strategy: ask every party once for its counts, add them up, hand the model back.

In a ServerApp's main function::

    spec = HashSpec.suggest(n_features=64)
    strategy = FlyNNStrategy(spec=spec, classes=range(10), min_available_clients=10, min_parties=8)
    config = ServerConfig(num_rounds=strategy.num_rounds)
    DefaultWorkflow()(grid, LegacyContext(context, config=config, strategy=strategy))
    strategy.model.save("model.npz")

`FlyNNStrategy.num_rounds` is the number of rounds that the run needs; more rounds are for late parties. Nothing of
Flower runs after the last round: `FlyNNStrategy.model` is the result, or an `AggregationError` where fewer than
`min_parties` were counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, MetricsAggregationFn, NDArrays, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flwr_flynn.federated import codec
from flwr_flynn.federated.options import RunOptions, RunOptionsDict
from flwr_flynn.federated.protocol import EVALUATE, TRAIN, Reply
from flwr_flynn.federated.roster import Failures
from flwr_flynn.federated.run import Ask, Figures
from flwr_flynn.flower.base_strategy import BaseStrategy
from flwr_flynn.flower.records import reply_of_evaluation

ConfigFn = Callable[[int], dict[str, Scalar]]
EvaluateFn = Callable[[int, NDArrays, dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None]


class FlyNNStrategy(BaseStrategy, Strategy):
    """Strategy that sums the class counts of all parties.

    Parameters
    ----------
    min_available_clients : int
        Parties to wait for before a round starts.
    min_evaluate_clients : int, default=1
        Parties that try the model, at least, where only a fraction is drawn.
    wait_timeout : int, default=86400
        Seconds to wait for `min_available_clients`. Then the round starts with the parties that are there.
    evaluate_fn, on_fit_config_fn, on_evaluate_config_fn, fit_metrics_aggregation_fn, evaluate_metrics_aggregation_fn
        As in `flwr.server.strategy.FedAvg`. `evaluate_fn` gets the summed counts of the selected spec, as
        `codec.encode` writes them, once there is a spec. The functions for metrics see the replies of the counting and
        of the evaluation only.
    **options
        Fields of `flwr_flynn.federated.options.RunOptions`: `spec`, `classes` and `min_parties` must be given;
        `max_examples_per_party`, `decay`, `rule`, `feature_names`, `mechanism`, `federation`,
        `purpose`, `identify`, `secure_bound`, `fraction_evaluate`, `distribute`, `accept_failures`, `refine_rounds`,
        `gram`, `align`, `groups`, `trusted`, `group_seed`, `phases` and `on_phase` may be.

    Raises
    ------
    ConfigError
        A parameter is not as described; the message names it.

    Examples
    --------
    >>> from flwr_flynn import HashSpec
    >>> spec = HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7)
    >>> FlyNNStrategy(spec=spec, classes=["cat", "dog"], min_available_clients=3, min_parties=2)
    FlyNNStrategy(counted=0, min_parties=2, min_available_clients=3)
    """

    _members = "clients"

    def __init__(
        self,
        *,
        min_available_clients: int,
        min_evaluate_clients: int = 1,
        wait_timeout: float = 86400,
        evaluate_fn: EvaluateFn | None = None,
        on_fit_config_fn: ConfigFn | None = None,
        on_evaluate_config_fn: ConfigFn | None = None,
        fit_metrics_aggregation_fn: MetricsAggregationFn | None = None,
        evaluate_metrics_aggregation_fn: MetricsAggregationFn | None = None,
        **options: Unpack[RunOptionsDict],
    ) -> None:
        super().__init__(RunOptions(**options), min_available_clients, min_evaluate_clients, wait_timeout)
        self.evaluate_fn = evaluate_fn
        self.on_fit_config_fn = on_fit_config_fn
        self.on_evaluate_config_fn = on_evaluate_config_fn
        self.fit_metrics_aggregation_fn = fit_metrics_aggregation_fn
        self.evaluate_metrics_aggregation_fn = evaluate_metrics_aggregation_fn
        self._clients: dict[str, ClientProxy] = {}  # those that are there in this round
        self._manager: ClientManager

    # ---- Flower's calls, in the order in which they come

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """The counts of no samples: never None, for which Flower would ask some party."""
        self.summary()
        counts = codec.encode(*self.run.totals.parts) if self.run.is_specified else []
        return Parameters(codec.write_tensors(counts), "numpy.ndarray")

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Try the counts with `evaluate_fn`, if there is one."""
        if self.evaluate_fn is None or not self.run.is_specified:
            return None
        # Not Flower's parameters: those are of all specs, and none where there was no spec yet.
        return self.evaluate_fn(server_round, codec.encode(self.counts), {})

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Ask every party that is there and not counted yet."""
        self._clients = self._wait_for(client_manager)
        ask = self._ask(TRAIN, list(self._clients), lambda: _own(self.on_fit_config_fn, server_round))
        return self._instructions(ask, FitIns)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Check the replies and add up those that pass."""
        replies = [Reply(client.cid, res.parameters.tensors, res.num_examples, res.metrics) for client, res in results]
        tensors, metrics = self._take_train(replies, _failures(failures), _figures(self.fit_metrics_aggregation_fn))
        return None if tensors is None else Parameters(tensors, "numpy.ndarray"), metrics

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Ask the parties about the present counts: for the selection, or hand the model out."""
        self._clients, self._manager = _present(client_manager), client_manager
        ask = self._ask(EVALUATE, list(self._clients), lambda: _own(self.on_evaluate_config_fn, server_round))
        return self._instructions(ask, EvaluateIns)

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Add up the confusion matrices, or make the selection."""
        replies = [reply_of_evaluation(client.cid, res.num_examples, res.metrics) for client, res in results]
        figures = _figures(self.evaluate_metrics_aggregation_fn)
        metrics = self._take_evaluate(replies, _failures(failures), figures)
        return (None, {}) if metrics is None else (1 - metrics["accuracy"], metrics)

    def _instructions(self, ask: Ask | None, kind: Callable[[Parameters, dict[str, Scalar]], Any]) -> list[Any]:
        if ask is None:
            return []
        # To each its own config: what a client does to it stays there.
        sent = Parameters(ask.tensors, "numpy.ndarray")
        return [(self._clients[cid], kind(sent, dict(ask.config))) for cid in ask.cids]

    def _wait_for(self, client_manager: ClientManager) -> dict[str, ClientProxy]:
        """The parties that are there, once they and the counted ones that left make up `min_available_clients`."""
        left = self._left(_present(client_manager))
        if self._is_waiting and not client_manager.wait_for(self._min_available - left, int(self.wait_timeout)):
            self._warn_of_few(client_manager.num_available() + left)
        return _present(client_manager)

    def _draw(self, size: int, present: Sequence[str]) -> list[str]:
        drawn = {client.cid: client for client in self._manager.sample(size, min_num_clients=0)}
        self._clients.update(drawn)
        return list(drawn)


def _present(client_manager: ClientManager) -> dict[str, ClientProxy]:
    # Copied before it is gone through: Flower's thread adds to and takes from this very dict.
    return {client.cid: client for client in dict(client_manager.all()).values()}


def _own(config_fn: ConfigFn | None, server_round: int) -> dict[str, Scalar]:
    return {} if config_fn is None else config_fn(server_round)


def _figures(aggregation_fn: MetricsAggregationFn | None) -> Figures | None:
    if aggregation_fn is None:
        return None
    return lambda replies: aggregation_fn([(reply.n_examples, dict(reply.metrics)) for reply in replies])


def _failures(failures: Sequence[Any]) -> Failures:
    named = {each[0].cid: f"failed: {each[1].status.message}" for each in failures if isinstance(each, tuple)}
    return Failures(named, [str(each) for each in failures if isinstance(each, BaseException)])  # without a sender
