"""Federations in one process or on Ray, with the counts added up in a tree.

A party is a `Party` of this package, and a node of the tree is a `Run`: it checks and adds the replies of its children
as the server does, and sends on the sum. A sum of counts is itself a message that one party could have sent, so that
every level of the tree is the same. On Ray, each party and each node is a task. A node runs as soon as its children are
there, on any machine of the cluster; a task whose worker dies is run again. Integers are added, so that no order, tree
or repeated task changes a bit. A run of all phases is `flwr_flynn.federated.algorithm.federate`.

`rounds` plays the rounds of any strategy of Flower's.

>>> import numpy as np
>>> from flwr_flynn import HashSpec
>>> from flwr_flynn.federated.algorithm import party_of
>>> X, y = np.arange(24.0).reshape(8, 3) % 5, np.arange(8) % 2
>>> parties = [party_of(X[i::4], y[i::4], name=f"party-{i}") for i in range(4)]
>>> spec = HashSpec(n_features=3, hash_dim=16, row_nnz=1, hash_nnz=2, seed=7)
>>> tree = run(parties, spec=spec, classes=[0, 1], fan_in=2)
>>> tree.model.counts_.n_per_class, tree.depth
(array([4, 4]), 2)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from flwr.client import NumPyClient
from flwr.common import FitRes, Parameters, ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.disclosure import Traffic
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.run import Run
from simulations.nodes import options_of, quiet, settled
from simulations.workers import Workers, progress, workers


@dataclass(frozen=True)
class Tree:
    """Result of a `run`.

    Parameters
    ----------
    model : FlyNNClassifier
        Classifier of the counts of all parties, which are ``model.counts_``.
    traffic : Traffic
        Bytes between the parties and the nodes that asked them.
    seconds : float
        Wall time from the first request to the model.
    party_seconds : list of float
        Seconds of each party's answer, in the order of the parties.
    depth : int
        Levels of the tree below the root; 1 is a root that asks the parties itself.
    """

    model: FlyNNClassifier
    traffic: Traffic
    seconds: float
    party_seconds: list[float] = field(repr=False)
    depth: int


def run(
    parties: Sequence[Party],
    where: str | Workers = "process",
    *,
    fan_in: int = 16,
    address: str | None = None,
    show_progress: bool | None = None,
    **settings: Any,
) -> Tree:
    """Have all parties count, and add up their counts in a tree.

    Parameters
    ----------
    parties : sequence of Party
        With Ray they are put into its store once, each with its samples.
    where : {"process", "ray"} or Workers
        See `workers`.
    fan_in : int, default=16
        Children of a node, at most; at least 2.
    address : str, optional
        Address of a Ray cluster.
    show_progress : bool, optional
        See `progress`.
    **settings
        Options of `RunOptions`: ``spec``, ``classes`` and more. One spec: the only phase is the counting, and a decay
        of "auto" follows from the summed counts. With a ``mechanism`` the root asks all parties itself: a sum of noisy
        counts is not a message that a single party could have sent.

    Returns
    -------
    Tree

    Raises
    ------
    AggregationError
        A party refused; the message names it and the reason.
    ConfigError
        A setting is not as described.
    """
    if not parties:
        raise ConfigError("parties", "at least one", "none")
    if fan_in < 2:
        raise ConfigError("fan_in", "at least 2", fan_in)
    if settings.get("mechanism") is not None:
        fan_in = max(fan_in, len(parties))
    names = [party.options.name or f"party-{i}" for i, party in enumerate(parties)]
    if len(set(names)) < len(names):
        raise ConfigError("parties", "different names", "the same name for several")
    start = time.perf_counter()
    with workers(where, address=address) as place, quiet():
        groups = groups_of(len(parties), fan_in)
        direct = len(groups) == len(parties)
        children = names if direct else [_group_name(group) for group in groups]
        root = Run(options_of(settings, len(children)))
        if len(root.phases) != 1 or len(root.options.run_spec.specs) != 1:
            raise ConfigError("spec", "one HashSpec", "a spec that needs more phases than the counting")
        asked = root.ask(TRAIN, children)
        assert asked is not None
        request, shared = place.put(asked.config), place.put(settings)
        taken: list[Any] = []

        def ask(i: int) -> Any:
            reply, seconds = place.answer(place.put(parties[i]), request)
            taken.append(seconds)
            return reply

        def node(group: range) -> Any:
            inner = groups_of(len(group), fan_in, group.start)
            if len(inner) == len(group):
                return place.sum(shared, [names[i] for i in group], [ask(i) for i in group])
            return place.sum(shared, [_group_name(part) for part in inner], [node(part) for part in inner])

        with progress(len(parties), "parties", show_progress) as done:
            place.on_answer = done
            replies = [ask(group.start) if direct else node(group) for group in groups]
            seconds = place.answered(taken)
        top = settled(root, children, place.get(replies))
        depth = 1 + _depth(len(parties), fan_in)
        return Tree(root.model, top.traffic, time.perf_counter() - start, seconds, depth)


def groups_of(n: int, fan_in: int, start: int = 0) -> list[range]:
    """Consecutive integers from `start` in at most `fan_in` groups, whose size is a power of `fan_in`."""
    size = fan_in ** _depth(n, fan_in)
    return [range(i, min(i + size, start + n)) for i in range(start, start + n, size)]


def _depth(n: int, fan_in: int) -> int:
    """Levels of nodes between the root and n parties."""
    depth = 0
    while fan_in ** (depth + 1) < n:
        depth += 1
    return depth


def _group_name(group: range) -> str:
    return f"parties {group.start}-{group.stop - 1}"


class StandIn(ClientProxy):
    """Name of a party for a strategy of Flower's; the runner delivers the requests."""

    def _unused(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("the runner asks the parties")

    fit = evaluate = get_properties = get_parameters = reconnect = _unused


def rounds(
    strategy: Strategy,
    parties: Sequence[NumPyClient],
    n_rounds: int,
    where: str | Workers = "process",
    *,
    until: Callable[[], bool] = lambda: False,
    address: str | None = None,
) -> tuple[Parameters, Traffic]:
    """Play the rounds of a strategy as Flower's server does: fit, evaluation at the server, evaluation at the parties.

    Replies go to the strategy in the order of the parties: sums of floats depend on the order.

    Parameters
    ----------
    strategy : Strategy
        Such as Flower's `FedAvg` with initial parameters, or a `FlyNNStrategy`.
    parties : sequence of NumPyClient
    n_rounds : int
        The largest number of rounds.
    where, address
        As for `run`.
    until : callable
        Called after the evaluation at the server; True makes that round the last.

    Returns
    -------
    parameters : Parameters
        Those after the last round.
    traffic : Traffic
        Bytes of all rounds. Final parameters that no evaluation distributed are not in it.
    """
    clients = SimpleClientManager()
    for i in range(len(parties)):
        clients.register(StandIn(str(i)))
    traffic = Traffic()
    with workers(where, address=address) as place, quiet():
        laid = [place.put(party) for party in parties]

        def ask(requests: Sequence[tuple[ClientProxy, Any]]) -> list[tuple[ClientProxy, Any]]:
            asked = sorted(requests, key=lambda pair: int(pair[0].cid))
            for _, request in asked:
                traffic.ask(1, request.parameters.tensors, request.config)
            replies = place.get([place.answer(laid[int(client.cid)], request)[0] for client, request in asked])
            for reply in replies:
                traffic.reply(reply.parameters.tensors if isinstance(reply, FitRes) else (), reply.metrics)
            return [(client, reply) for (client, _), reply in zip(asked, replies, strict=True)]

        parameters = strategy.initialize_parameters(clients) or ndarrays_to_parameters([])
        for number in range(1, n_rounds + 1):
            results = ask(strategy.configure_fit(number, parameters, clients))
            parameters = strategy.aggregate_fit(number, results, [])[0] or parameters
            strategy.evaluate(number, parameters)
            tried = ask(strategy.configure_evaluate(number, parameters, clients))
            strategy.aggregate_evaluate(number, tried, [])
            if until():
                break
    return parameters, traffic
