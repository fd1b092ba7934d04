"""FlyNN over Flower's Message API: a strategy, and the answers of a party.

In a ServerApp's main function::

    strategy = message.FlyNNStrategy(
        spec=spec, classes=range(10), min_available_nodes=10, min_parties=8
    )
    strategy.start(grid)
    strategy.model.save("model.npz")

and in a ClientApp::

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return message.train(msg, FlyNNClient(X, y))

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        return message.evaluate(msg, FlyNNClient(X, y, X_test=X_test, y_test=y_test))

The run is the same as with the module `strategy`; only the messages differ, see
`records`. An `action` separates the messages of FlyNN from those of another strategy in
the same ClientApp.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING
from typing import Any, cast

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.client import Client
from flwr.common import EvaluateIns, FitIns, Parameters
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flwr_flynn._validation import integer
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import (
    EVALUATE,
    PHASE,
    REFUSED,
    TRAIN,
    Entries,
    Reply,
)
from flwr_flynn.federated.roster import Failures
from flwr_flynn.federated.run import Figures
from flwr_flynn.flower import records
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.flower.progress import Progress
from flwr_flynn.flower.records import (
    EXAMPLES,
    NUMPY,
    GridProxy,
    answer_content,
    config_of,
    record,
    reply_of,
    tensors_of,
)
from flwr_flynn.flower.strategy import BaseStrategy

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
AggregationFn = Callable[[list[RecordDict], str], MetricRecord]

_DEFAULT = "default"


class FlyNNStrategy(BaseStrategy, Strategy):
    """Strategy that sums the class counts of all parties, over Flower's Message API.

    Parameters
    ----------
    min_available_nodes : int
        Parties to wait for before a round starts.
    wait_timeout : int, default=86400
        Seconds to wait for `min_available_nodes`. Then the round starts with the
        parties that are present.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As in `flwr.serverapp.strategy.FedAvg`: (replies, "num-examples") ->
        MetricRecord, of the counting and of the evaluation only. The result is added to
        FlyNN's own metrics.
    action : str, default="default"
        Name of the parties' functions: "flynn" for `@app.train("flynn")` and
        `@app.evaluate("flynn")`.
    nodes_at_a_time : int, default=1000
        Batch size of `start`: it asks so many nodes at a time, and adds their replies
        before it asks the next. A silent node delays its batch by `timeout`.
    **options
        Fields of `flwr_flynn.federated.options.RunOptions`; `spec`, `classes` and
        `min_parties` are required.

    Raises
    ------
    ConfigError
        A parameter is not as described; the message names it.

    Examples
    --------
    >>> from flwr_flynn import HashSpec, message
    >>> spec = HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7)
    >>> message.FlyNNStrategy(
    ...     spec=spec, classes=["cat", "dog"], min_available_nodes=3, min_parties=2
    ... )
    FlyNNStrategy(counted=0, min_parties=2, min_available_nodes=3)
    """

    _members = "nodes"

    def __init__(
        self,
        *,
        min_available_nodes: int,
        wait_timeout: float = 86400,
        train_metrics_aggr_fn: AggregationFn | None = None,
        evaluate_metrics_aggr_fn: AggregationFn | None = None,
        action: str = _DEFAULT,
        nodes_at_a_time: int = 1000,
        **options: Any,
    ) -> None:
        if not isinstance(action, str) or not action.isidentifier():
            raise ConfigError("action", "a name as of a Python variable", action)
        if (
            options.get("secure_bound") is not None
            and options.get("purpose") != "evaluate"
        ):
            expected = "None: Flower has SecAgg+ for its legacy API only"
            raise ConfigError("secure_bound", expected, options["secure_bound"])
        super().__init__(options, min_available_nodes, wait_timeout)
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self._check_functions()
        self.action = action
        self.nodes_at_a_time = integer("nodes_at_a_time", nodes_at_a_time)
        # Metadata of the latest requests, to which the grid gives their ids.
        self._sent: list[Metadata] = []

    @property
    def arrays(self) -> ArrayRecord:
        """The summed counts of the selected spec, as `codec.encode` writes them."""
        return record(codec.write_tensors(codec.encode(self.counts)))

    # ---- Flower's calls

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        **later: Any,
    ) -> Result:
        """Run the federation.

        Without `num_rounds` there are as many rounds as the run takes, and more where
        some go into counting once more. Keywords of later versions of Flower, such as
        `should_stop`, go to its own method.
        """

        progress = Progress(partial(log, INFO, "FlyNN: %s"))
        batched = cast(Grid, _BatchedGrid(grid, self.nodes_at_a_time, progress))
        if initial_arrays:
            expected = (
                "None: counting begins at 0, or with the federation of the options"
            )
            raise ConfigError(
                "initial_arrays", expected, f"{len(initial_arrays)} arrays"
            )
        rounds = self.num_rounds
        if num_rounds is not None:
            rounds = integer("num_rounds", num_rounds)
        on_counts = None
        if evaluate_fn is not None:
            on_counts = partial(self._evaluated, evaluate_fn)
        rest = (timeout, train_config, evaluate_config, on_counts)
        if self.run.due is None:
            log(
                WARNING,
                "FlyNN: the run of this strategy is over; another run takes a "
                "strategy of its own",
            )
        with progress:
            result = super().start(batched, ArrayRecord(), rounds, *rest, **later)
            rounds = self.run.rounds_left
            if num_rounds is None and rounds:
                result = super().start(batched, ArrayRecord(), rounds, *rest, **later)
        if self.run.due is not None:
            log(WARNING, "FlyNN: phase %s is not done", self.run.due.name)
        # Flower's arrays are the sums for all specs.
        result.arrays = ArrayRecord()
        if self.run.is_specified and self.run.is_enough:
            result.arrays = self.arrays
        return result

    def _evaluated(
        self, evaluate_fn: EvaluateFn, server_round: int, _: ArrayRecord
    ) -> MetricRecord | None:
        """Result of the user's function of the summed counts, once there is a spec."""
        if not self.run.is_specified:
            return None
        return evaluate_fn(server_round, self.arrays)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask the parties that are present, as the phase that is due has it."""
        return self._messages(
            TRAIN, self._wait_for(grid), {**config, "server-round": server_round}
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, and add the valid ones."""
        failures, figures = self._received(
            replies, reply_of, self.train_metrics_aggr_fn
        )
        tensors, metrics = self._add_train([], failures, figures)
        if tensors is None:
            return (None, None)
        return (record(tensors), MetricRecord(metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask the parties to keep the model, and to evaluate it."""
        return self._messages(
            EVALUATE, _present(grid), {**config, "server-round": server_round}
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Add the confusion matrices."""
        failures, figures = self._received(
            replies, evaluation_reply_of, self.evaluate_metrics_aggr_fn
        )
        metrics = self._add_evaluate([], failures, figures)
        if metrics is None:
            return None
        return MetricRecord(
            {
                name: figure
                for name, figure in metrics.items()
                if not isinstance(figure, str)
            }
        )

    # ---- messages

    def _wait_for(self, grid: Grid) -> list[str]:
        """Present parties, once there are `min_available_nodes`.

        Counted parties that left add to their number.
        """
        end = time.monotonic() + self.wait_timeout
        n_logged = -1
        while True:
            present = _present(grid)
            n_nodes = len(present) + self._left(present)
            if n_nodes >= self._min_available or not self._is_waiting:
                return present
            if len(present) != n_logged:
                n_logged = len(present)
                log(
                    INFO,
                    "FlyNN: waiting for nodes: %s are there, of %s",
                    n_logged,
                    self._min_available,
                )
            rest = end - time.monotonic()
            if rest <= 0:
                self._warn_of_few(n_nodes)
                return present
            time.sleep(min(rest, 1))

    def _messages(
        self, channel: str, present: list[str], user_config: Entries
    ) -> list[Message]:
        self._sent = []
        ask = self.run.ask(channel, present, lambda: user_config)
        if ask is None:
            return []
        # A channel has the name of Flower's message type.
        kind = channel
        if self.action != _DEFAULT:
            kind = f"{channel}.{self.action}"
        # One content for all, as in FedAvg: a grid sends equal content once.
        content = records.request(ask.tensors, ask.config)
        messages = [
            Message(content, dst_node_id=int(cid), message_type=kind)
            for cid in ask.cids
        ]
        self._sent = [message.metadata for message in messages]
        return messages

    def _received(
        self,
        messages: Iterable[Message],
        read: Callable[[str, RecordDict], Reply],
        aggregation_fn: AggregationFn | None,
    ) -> tuple[Failures, Figures | None]:
        """Failures, and the user's function of replies that the run has received.

        The run receives each reply at once, so that memory does not grow with them
        unless the user's function needs it.
        """
        failures = Failures()
        asked = {str(request.dst_node_id) for request in self._sent}
        addressees = dict[str, str]()
        for message in messages:
            request_id = message.metadata.reply_to_message_id
            # The requests of a batch have ids only since it was sent.
            if request_id not in addressees:
                addressees = self._addressees()
            sender = str(message.metadata.src_node_id)
            addressee = addressees.get(request_id)
            if message.has_error():
                # Errors that the SuperLink makes for a lost party name the request, and
                # not the party.
                cid = addressee or sender
                if cid in asked:
                    failures.named[cid] = f"failed: {message.error.reason}"
                else:
                    failures.unnamed.append(str(message.error.reason))
            elif sender not in asked or (addressees and addressee != sender):
                # A party answers for itself alone, and only the present request.
                log(
                    WARNING,
                    "FlyNN: node %s: replied to no request of this round, ignored",
                    sender,
                )
            else:
                content = _content(message)
                reply = read(sender, content)
                if aggregation_fn is not None:
                    reply = replace(reply, content=content)
                self.run.receive([reply])
        if aggregation_fn is None:
            return failures, None
        return failures, partial(_figures, aggregation_fn)

    def _addressees(self) -> dict[str, str]:
        """Node ids by the ids of the requests that were sent to them."""
        return {
            request.message_id: str(request.dst_node_id)
            for request in self._sent
            if request.message_id
        }


def _figures(aggregation_fn: AggregationFn, valid: list[Reply]) -> MetricRecord:
    return aggregation_fn([reply.content for reply in valid], EXAMPLES)


class _BatchedGrid(GridProxy):
    """A grid that asks some nodes at a time.

    It yields their replies before it asks the next.
    """

    def __init__(self, grid: Grid, size: int, progress: Progress) -> None:
        super().__init__(grid)
        self._size = size
        self._progress = progress

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        # As Flower does, it is asked with no messages, too.
        n = len(messages)
        for first in range(0, max(n, 1), self._size):
            if messages:
                phase = records.config_of(_content(messages[0])).get(PHASE)
                self._progress.step(f"phase {phase}: waiting for parties", first, n)
            yield from self._grid.send_and_receive(
                messages[first : first + self._size], timeout=timeout
            )


def train(message: Message, party: FlyNNClient | Client) -> Message:
    """Answer a message to `@app.train()`.

    The answer is the party's statistic for the phase that asks, such as its counts.
    """
    return _answer(message, party, TRAIN)


def evaluate(message: Message, party: FlyNNClient | Client) -> Message:
    """Answer a message to `@app.evaluate()`: receive the model, and evaluate it."""
    return _answer(message, party, EVALUATE)


def _answer(message: Message, party: FlyNNClient | Client, channel: str) -> Message:
    content = _content(message)
    if isinstance(party, FlyNNClient):
        client = party.to_client()
    else:
        client = party
    config = config_of(content)
    try:
        parameters = Parameters(tensors_of(content), NUMPY)
    except PayloadError as error:
        # Only clients of this package can record a refusal.
        declined = getattr(client, "declined", None)
        refusal = {REFUSED: str(error)}
        if declined is not None:
            refusal = declined(error, config, channel)
        return Message(answer_content([], 0, refusal), reply_to=message)
    if channel == TRAIN:
        fitted = client.fit(FitIns(parameters, config))
        tensors = fitted.parameters.tensors
        reply = answer_content(tensors, fitted.num_examples, fitted.metrics)
    else:
        evaluated = client.evaluate(EvaluateIns(parameters, config))
        reply = answer_content([], evaluated.num_examples, evaluated.metrics)
    return Message(reply, reply_to=message)


def _content(message: Message) -> RecordDict:
    if message.has_content():
        return message.content
    return RecordDict()


def evaluation_reply_of(cid: str, content: RecordDict) -> Reply:
    """A party's reply to `@app.evaluate()`."""
    reply = reply_of(cid, content)
    return records.reply_of_evaluation(cid, reply.n_examples, reply.metrics)


def _present(grid: Grid) -> list[str]:
    return [str(node_id) for node_id in grid.get_node_ids()]
