"""Rounds of a strategy through Flower's workflows.

A malformed reply costs its sender alone.

Flower's own workflows have no timeout. In them an exception while one reply is read
ends the run of all parties, and the error of a party loses its sender.
"""

from __future__ import annotations

from collections.abc import Iterable
from logging import ERROR
from typing import cast

from flwr.app import Context, Message, MessageType
from flwr.common.logger import log
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow
from flwr.server.workflow.default_workflows import default_evaluate_workflow
from flwr.serverapp import Grid

from flwr_flynn.flower.records import GridProxy
from flwr_flynn.flower.records import recorddict_compat as compat
from flwr_flynn.flower.secagg import workflow as secure_workflow
from flwr_flynn.flower.strategy import FlyNNStrategy


def run_rounds(
    strategy: FlyNNStrategy,
    grid: Grid,
    context: Context,
    num_rounds: int,
    timeout: float = 0,
    secure_threshold: float | None = None,
) -> list[str]:
    """Run the rounds of a strategy, and return the types of errors in the evaluation.

    The model stands without an evaluation.

    Parameters
    ----------
    strategy : FlyNNStrategy
    grid : Grid
    context : Context
    num_rounds : int
    timeout : float, default=0
        Seconds to wait for replies; 0: no limit.
    secure_threshold : float, optional
        Parties that must stay to the end of a secure sum, or a share of them as a
        float; None for counts in clear.
    """
    errors: list[str] = []

    def evaluate(grid: Grid, context: Context) -> None:
        try:
            default_evaluate_workflow(grid, context)
        except Exception as error:  # noqa: BLE001 - the model stands without figures
            log(ERROR, "FlyNN: the evaluation failed", exc_info=error)
            errors.append(type(error).__name__)

    counting = None
    if secure_threshold is not None and strategy.secure_bound is not None:
        counting = secure_workflow(strategy.secure_bound, secure_threshold, timeout)
    readable = _ReadableGrid(grid, strategy, timeout, is_secure=counting is not None)
    workflow = DefaultWorkflow(fit_workflow=counting, evaluate_workflow=evaluate)
    for _ in range(2):  # once more for rounds that went into counting once more
        legacy = LegacyContext(
            context, config=ServerConfig(num_rounds=num_rounds), strategy=strategy
        )
        workflow(cast(Grid, readable), legacy)
        num_rounds = strategy.run.rounds_left
        if errors or not num_rounds:
            break
    return errors


class _ReadableGrid(GridProxy):
    """A grid that returns the replies which Flower's workflow can read.

    It notes the failures of the others.
    """

    def __init__(
        self, grid: Grid, strategy: FlyNNStrategy, timeout: float, is_secure: bool
    ) -> None:
        super().__init__(grid)
        self._strategy = strategy
        self._timeout = timeout or None
        self._is_secure = is_secure

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        if timeout is None:
            timeout = self._timeout
        replies = self._grid.send_and_receive(messages, timeout=timeout)
        by_node = {message.metadata.dst_node_id: message for message in messages}
        by_id = {
            message.metadata.message_id: message
            for message in messages
            if message.metadata.message_id
        }
        return [reply for reply in replies if self._is_readable(reply, by_node, by_id)]

    def _is_readable(
        self, reply: Message, by_node: dict[int, Message], by_id: dict[str, Message]
    ) -> bool:
        request = by_node.get(reply.metadata.src_node_id)
        if reply.has_error():
            # Errors that the SuperLink makes for a lost party name the request, and not
            # the party.
            request = by_id.get(reply.metadata.reply_to_message_id, request)
            if request is None:
                return True  # Flower reports it without a sender
            reason = str(reply.error.reason)
        elif request is None:
            return False
        is_train = request.metadata.message_type == MessageType.TRAIN
        if is_train and self._is_secure:
            return True  # `flower.secagg` checks it
        if not reply.has_error():
            try:
                if is_train:
                    compat.recorddict_to_fitres(reply.content, keep_input=True)
                else:
                    compat.recorddict_to_evaluateres(reply.content)
                return True
            except Exception as error:  # noqa: BLE001 - a malformed reply may raise anything
                reason = f"its reply cannot be read ({type(error).__name__})"
        self._strategy.note_failure(
            str(request.metadata.dst_node_id), f"failed: {reason}"
        )
        return False
