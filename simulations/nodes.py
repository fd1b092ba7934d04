"""What runs at the workers of a simulation: a party that answers, a node that adds up what its children sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from flwr.client import Client, NumPyClient
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Status
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy

from flwr_flynn import AggregationError, FlyNNStrategy
from flwr_flynn.federated.scaling_round import Traffic

Party = NumPyClient | Client

_OK = Status(Code.OK, "")


@dataclass(frozen=True)
class Node:
    """The reply of a node, and what the parties below it got and sent."""

    reply: FitRes
    traffic: Traffic


class StandIn(ClientProxy):
    """The name of a party or a node, for a strategy. What it is asked, the runner hands on."""

    def _unused(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("the runner asks the parties")

    fit = evaluate = get_properties = get_parameters = reconnect = _unused


def manager(names: Sequence[str]) -> SimpleClientManager:
    clients = SimpleClientManager()
    for name in names:
        clients.register(StandIn(name))
    return clients


@contextmanager
def quiet() -> Iterator[None]:
    """Strategies log a line for every party and round; what matters of it becomes an error here."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def answer(party: Party, request: FitIns | EvaluateIns) -> tuple[FitRes | EvaluateRes, float]:
    """A party's reply, and how long it took."""
    client = party.to_client() if isinstance(party, NumPyClient) else party
    start = time.perf_counter()
    with quiet():
        reply = client.fit(request) if isinstance(request, FitIns) else client.evaluate(request)
    return reply, time.perf_counter() - start


def strategy_of(settings: Mapping[str, Any], n_children: int) -> FlyNNStrategy:
    """Of one node: every child is to be counted, and what the model is read out by comes of the counts alone."""
    return FlyNNStrategy(
        min_available_clients=n_children, min_parties=n_children, fraction_evaluate=0.0, wait_timeout=0, **settings
    )


def request_of(strategy: FlyNNStrategy, clients: SimpleClientManager) -> FitIns:
    """What the strategy asks, which is the same for all."""
    parameters = strategy.initialize_parameters(clients)
    return strategy.configure_fit(1, parameters, clients)[0][1]


def settle(strategy: FlyNNStrategy, clients: SimpleClientManager, replies: Sequence[FitRes | Node]) -> Node:
    """The sum of the children's replies as `strategy` makes it."""
    plain = [reply.reply if isinstance(reply, Node) else reply for reply in replies]
    results = list(zip(clients.all().values(), plain, strict=True))
    parameters, metrics = strategy.aggregate_fit(1, results, [])
    if strategy.missing or parameters is None:
        who = "; ".join(f"{name} ({reason})" for name, reason in list(strategy.missing.items())[:5])
        raise AggregationError(f"{len(strategy.missing)} of {len(plain)} not counted: {who}")
    examples = int(metrics.get("examples", 0))  # 0 of noisy counts, which go no further
    below = [reply.traffic for reply in replies if isinstance(reply, Node)]
    traffic = strategy.traffic["counts"]
    if below:
        sums = {name: sum(getattr(part, name) for part in below) for name in ("asked", "replied", "down", "up")}
        traffic = Traffic(**sums)
    return Node(FitRes(_OK, parameters, examples, {}), traffic)


def summed(settings: Mapping[str, Any], names: Sequence[str], *replies: FitRes | Node) -> Node:
    """A node of the tree below the root."""
    with quiet():
        strategy, clients = strategy_of(settings, len(names)), manager(names)
        request_of(strategy, clients)  # notes who is asked; the parents' request is the same and went down before
        return settle(strategy, clients, replies)
