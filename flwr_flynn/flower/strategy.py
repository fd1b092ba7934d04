"""The strategy for Flower's `Strategy` API, and the logic that both strategies share.

In a ServerApp's main function::

    spec = HashSpec.suggest(n_features=64)
    strategy = FlyNNStrategy(spec=spec, classes=range(10), min_available_clients=10, min_parties=8)
    config = ServerConfig(num_rounds=strategy.num_rounds)
    DefaultWorkflow()(grid, LegacyContext(context, config=config, strategy=strategy))
    strategy.model.save("model.npz")

A run needs `FlyNNStrategy.num_rounds` rounds; more are for runs in which too few
parties were counted at first. After the last round `FlyNNStrategy.model` is the result.
It raises an `AggregationError` if fewer than `min_parties` were counted.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Sequence
from functools import partial
from logging import WARNING
from typing import TYPE_CHECKING, Any, ClassVar

from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    MetricsAggregationFn,
    NDArrays,
    Parameters,
    Scalar,
)
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flwr_flynn._types import T
from flwr_flynn._validation import integer, number
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import options_of
from flwr_flynn.federated.protocol import EVALUATE, TRAIN, Entries, Reply
from flwr_flynn.federated.results import Evaluation
from flwr_flynn.federated.roster import Failures, Member
from flwr_flynn.federated.run import ExchangeResult, Figures, Run
from flwr_flynn.flower.logging import log_lines, plan_lines, result_lines
from flwr_flynn.flower.records import reply_of_evaluation
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.selection import Selection

if TYPE_CHECKING:
    from flwr_flynn.model.classifier import FlyNNClassifier

ConfigFn = Callable[[int], dict[str, Scalar]]
EvaluateFn = Callable[
    [int, NDArrays, dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None
]


class BaseStrategy(ABC):
    """Logic of both strategies: options, the run, its results, and the log.

    Subclasses translate messages.
    """

    _members: ClassVar[str]  # Flower's word for parties in the names of parameters

    def __init__(self, given: Entries, min_available: int, wait_timeout: float) -> None:
        options = options_of(given)
        self._min_available = integer(f"min_available_{self._members}", min_available)
        self.wait_timeout = number("wait_timeout", wait_timeout, 0, 10**9)
        if options.min_parties > self._min_available:
            expected = f"at most min_available_{self._members} = {self._min_available}"
            raise ConfigError("min_parties", expected, options.min_parties)
        self.run = Run(options)
        # Reasons that `note_failure` got about the present request, by cid.
        self._failures: dict[str, str] = {}

    def _check_functions(self) -> None:
        """Refuse functions of the user's that cannot be called, before a party counts."""
        for name, function in vars(self).items():
            if name.endswith("_fn") and not (function is None or callable(function)):
                raise ConfigError(name, "a function, or None", function)

    def __repr__(self) -> str:
        return (
            f"FlyNNStrategy(counted={len(self.run.counted)}, "
            f"min_parties={self.run.options.min_parties}, "
            f"min_available_{self._members}={self._min_available})"
        )

    # ---- results

    @property
    def num_rounds(self) -> int:
        """Flower rounds of a run in which all parties are present from the start."""
        return self.run.num_rounds

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier of the counts of all parties."""
        return self.run.model

    @property
    def counts(self) -> ClassCounts:
        """Sum over the parties counted so far, for the selected spec.

        Before the selection it is the sum for the first spec.
        """
        return self.run.counts

    @property
    def parties(self) -> list[Member]:
        """The parties counted so far, with the sizes of their samples and replies."""
        return self.run.counted.counted

    @property
    def missing(self) -> dict[str, str]:
        """Reasons of the parties that were asked and are not counted, by name."""
        return self.run.counted.missing

    @property
    def selection(self) -> Selection | None:
        """Spec and scoring selected for the present counts.

        None before the selection, or without one.
        """
        return self.run.state.result_of(Selection)

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """`metrics.evaluation_figures` of the parties' evaluation of the present counts.

        None before the evaluation.
        """
        evaluation: Evaluation | None = self.run.state.results.get("evaluation")
        if evaluation is None:
            return None
        return evaluation.figures

    @property
    def secure_bound(self) -> int | None:
        """Upper bound of every count in a secure sum; None for counts in clear."""
        return self.run.state.run_spec.bound

    @property
    def guarantee(self) -> str | None:
        """Privacy guarantee of the run, see `privacy.Mechanism.guarantee`.

        None without a mechanism.
        """
        return self.run.state.run_spec.guarantee

    def federation(self, run: str) -> Federation:
        """Saved form of the run, from which a later run starts; for the server alone."""
        return self.run.federation(run)

    def note_failure(self, cid: str, reason: str) -> None:
        """Note why a party gave no answer to the present request.

        The reason of a failed reply goes before it.
        """
        self._failures.setdefault(cid, reason)

    def summary(self) -> None:
        """Log the plan of the run."""
        log_lines(plan_lines(self.run, self._min_available, self.wait_timeout))

    # ---- exchanges

    def _left(self, present: Collection[str]) -> int:
        """Number of counted parties that left; nobody waits for them."""
        return sum(1 for member in self.parties if member.node not in present)

    @property
    def _is_waiting(self) -> bool:
        """True until enough parties are counted.

        Later rounds ask the parties that are present, without waiting.
        """
        return not (len(self.run.counted) and self.run.is_enough)

    def _warn_of_few(self, n_present: int) -> None:
        text = "FlyNN: waited %g s for %s parties; starting with the %s that are there"
        log(WARNING, text, self.wait_timeout, self._min_available, n_present)

    def _go_on(
        self,
        channel: str,
        replies: Sequence[Reply],
        failures: Failures,
        figures: Figures | None,
    ) -> ExchangeResult | None:
        """Hand the replies of an exchange to the run, and log its result.

        None if nobody was asked.
        """
        phase = self.run.phase(channel)
        answered = {reply.cid for reply in replies}
        noted = {
            cid: reason for cid, reason in self._failures.items() if cid not in answered
        }
        failures = Failures(failures.named | noted, failures.unnamed)
        self._failures = {}
        if phase is None or (phase.makes_model and not phase.is_counting):
            figures = None
        result = self.run.complete(replies, failures, figures)
        if result is not None:
            log_lines(result_lines(self.run, result))
        return result

    def _add_train(
        self, replies: Sequence[Reply], failures: Failures, figures: Figures | None
    ) -> tuple[list[bytes] | None, dict[str, Any]]:
        """Sum and metrics of the counting.

        (None, {}) after any other phase, and where nothing was added.
        """
        result = self._go_on(TRAIN, replies, failures, figures)
        if result is None or not result.phase.is_counting or not result.batch.passed:
            return None, {}
        parties = self.parties
        counts = self.run.counts
        metrics = {
            "parties": len(parties),
            "bytes": sum(party.bytes for party in parties),
        }
        if not counts.noise:
            metrics["examples"] = counts.n_examples
        totals = codec.encode(*self.run.totals.parts)
        return codec.write_tensors(totals), metrics | dict(result.figures)

    def _add_evaluate(
        self, replies: Sequence[Reply], failures: Failures, figures: Figures | None
    ) -> dict[str, Any] | None:
        """Metrics of the evaluation; None after any other phase, and without figures."""
        result = self._go_on(EVALUATE, replies, failures, figures)
        if result is None:
            return None
        metrics = getattr(
            self.run.state.results.get(result.phase.name), "metrics", None
        )
        if not metrics:
            return None
        return {**metrics, **result.figures}


class FlyNNStrategy(BaseStrategy, Strategy):
    """Strategy that sums the class counts of all parties.

    Parameters
    ----------
    min_available_clients : int
        Parties to wait for before a round starts.
    wait_timeout : int, default=86400
        Seconds to wait for `min_available_clients`. Then the round starts with the
        parties that are present.
    evaluate_fn, on_fit_config_fn, on_evaluate_config_fn
        As in `flwr.server.strategy.FedAvg`. `evaluate_fn` gets the summed counts of the
        selected spec, as `codec.encode` writes them, once there is a spec.
    fit_metrics_aggregation_fn, evaluate_metrics_aggregation_fn
        As in `flwr.server.strategy.FedAvg`. They see the replies of the counting and of
        the evaluation only.
    **options
        Fields of `flwr_flynn.federated.options.RunOptions`, where each is described;
        `spec`, `classes` and `min_parties` are required.

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
        wait_timeout: float = 86400,
        evaluate_fn: EvaluateFn | None = None,
        on_fit_config_fn: ConfigFn | None = None,
        on_evaluate_config_fn: ConfigFn | None = None,
        fit_metrics_aggregation_fn: MetricsAggregationFn | None = None,
        evaluate_metrics_aggregation_fn: MetricsAggregationFn | None = None,
        **options: Any,
    ) -> None:
        super().__init__(options, min_available_clients, wait_timeout)
        self.evaluate_fn = evaluate_fn
        self.on_fit_config_fn = on_fit_config_fn
        self.on_evaluate_config_fn = on_evaluate_config_fn
        self.fit_metrics_aggregation_fn = fit_metrics_aggregation_fn
        self.evaluate_metrics_aggregation_fn = evaluate_metrics_aggregation_fn
        self._check_functions()
        self._clients: dict[str, ClientProxy] = {}  # present in this round, by cid

    # ---- Flower's calls, in the order in which they come

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Counts of no samples; for None Flower would ask a party."""
        self.summary()
        if self.run.is_specified:
            counts = codec.encode(*self.run.totals.parts)
        else:
            counts = []
        return Parameters(codec.write_tensors(counts), "numpy.ndarray")

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Evaluate the counts by `evaluate_fn`, if there is one."""
        if self.evaluate_fn is None or not self.run.is_specified:
            return None
        # Flower's parameters are the sums for all specs, and empty before there is a
        # spec.
        return self.evaluate_fn(server_round, codec.encode(self.counts), {})

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Ask the parties that are present, as the phase that is due has it."""
        self._clients = self._wait_for(client_manager)
        return self._instructions(TRAIN, self.on_fit_config_fn, server_round, FitIns)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Check the replies, and add the valid ones."""
        replies = [
            Reply(client.cid, res.parameters.tensors, res.num_examples, res.metrics)
            for client, res in results
        ]
        figures = _figures(self.fit_metrics_aggregation_fn)
        tensors, metrics = self._add_train(replies, _failures(failures), figures)
        if tensors is None:
            return (None, metrics)
        return (Parameters(tensors, "numpy.ndarray"), metrics)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Ask the parties to keep the model, and to evaluate it."""
        self._clients = _present(client_manager)
        return self._instructions(
            EVALUATE, self.on_evaluate_config_fn, server_round, EvaluateIns
        )

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Add the confusion matrices."""
        replies = [
            reply_of_evaluation(client.cid, res.num_examples, res.metrics)
            for client, res in results
        ]
        figures = _figures(self.evaluate_metrics_aggregation_fn)
        metrics = self._add_evaluate(replies, _failures(failures), figures)
        if metrics is None:
            return (None, {})
        return (1 - metrics["accuracy"], metrics)

    def _instructions(
        self,
        channel: str,
        config_fn: ConfigFn | None,
        server_round: int,
        kind: Callable[[Parameters, dict[str, Scalar]], T],
    ) -> list[tuple[ClientProxy, T]]:
        """The request that is due on a channel, for each present party that gets it."""
        user_config = None
        if config_fn is not None:
            user_config = partial(config_fn, server_round)
        ask = self.run.ask(channel, list(self._clients), user_config)
        if ask is None:
            return []
        # Each party gets a config of its own: a client in this process may change it.
        sent = Parameters(ask.tensors, "numpy.ndarray")
        return [(self._clients[cid], kind(sent, dict(ask.config))) for cid in ask.cids]

    def _wait_for(self, client_manager: ClientManager) -> dict[str, ClientProxy]:
        """Present parties, once there are `min_available_clients`.

        Counted parties that left add to their number.
        """
        left = self._left(_present(client_manager))
        if self._is_waiting and not client_manager.wait_for(
            self._min_available - left, int(self.wait_timeout)
        ):
            self._warn_of_few(client_manager.num_available() + left)
        return _present(client_manager)


def _present(client_manager: ClientManager) -> dict[str, ClientProxy]:
    # A copy: Flower's thread changes this very dict meanwhile.
    return {client.cid: client for client in dict(client_manager.all()).values()}


def _figures(aggregation_fn: MetricsAggregationFn | None) -> Figures | None:
    if aggregation_fn is None:
        return None
    return lambda replies: aggregation_fn(
        [(reply.n_examples, dict(reply.metrics)) for reply in replies]
    )


def _failures(
    failures: Sequence[tuple[ClientProxy, FitRes | EvaluateRes] | BaseException],
) -> Failures:
    """Failed replies by their sender, and errors, which have none."""
    texts = Failures()
    for failure in failures:
        if isinstance(failure, BaseException):
            texts.unnamed.append(str(failure))
        else:
            client, reply = failure
            texts.named[client.cid] = f"failed: {reply.status.message}"
    return texts
