"""The one seam between experiments and where parties run: in this process, or on Ray.

What runs is the product itself: a party is a `FlyNNClient`, asked through Flower's own client wrapper and bytes, and
counts are added by `FlyNNStrategy`. Only Flower's network is left out.

`run` sums in a tree, the paper's all-reduce. A sum of counts is itself what one party could have sent, so that every
node of the tree is a small `FlyNNStrategy` over its children, which checks and adds as the root does, and sends on what
comes of it. On Ray, each party and each node is a task. A node runs as soon as its children are there, on any machine
of the cluster; a task whose worker dies is run again. Integers are added, so neither the order nor the shape of the
tree nor a second try changes a bit.

`rounds` plays the rounds of any strategy of Flower's, with all that belongs to them.

>>> import numpy as np
>>> from flwr_flynn import FlyNNClient, HashSpec
>>> X, y = np.arange(24.0).reshape(8, 3) % 5, np.arange(8) % 2
>>> parties = [FlyNNClient(X[i::4], y[i::4], name=f"party-{i}") for i in range(4)]
>>> spec = HashSpec(n_features=3, hash_dim=16, row_nnz=1, hash_nnz=2, seed=7)
>>> federation = run(parties, spec=spec, classes=[0, 1], fan_in=2)
>>> federation.model.counts_.n_per_class, federation.depth
(array([4, 4]), 2)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.common import FitRes, Parameters, ndarrays_to_parameters
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.scaling_round import Traffic
from simulations.nodes import Party, manager, quiet, request_of, settle, strategy_of
from simulations.workers import Workers, progress, workers


@dataclass(frozen=True)
class Federation:
    """What came of a `run`.

    Parameters
    ----------
    model : FlyNNClassifier
        Of the counts of all parties; those are ``model.counts_``.
    traffic : Traffic
        Bytes between the parties and the nodes that asked them.
    seconds : float
        From the first request to the model, by the clock.
    party_seconds : list of float
        How long each party took to answer, in the order of the parties.
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
) -> Federation:
    """Have all parties count, and add up their counts in a tree.

    Parameters
    ----------
    parties : sequence of FlyNNClient
        With Ray they are put into its store once, each with its data.
    where : {"process", "ray"} or Workers
        See `workers`.
    fan_in : int, default=16
        Children of a node, at most; at least 2.
    address : str, optional
        Of a Ray cluster.
    show_progress : bool, optional
        See `progress`.
    **settings
        Of `FlyNNStrategy`: ``spec``, ``classes`` and more. One spec: there is one round, nothing to
        choose and no evaluation, and a decay of "auto" comes of the summed counts. With a ``mechanism`` the root asks
        all parties itself: a sum of noisy counts is nothing that a single party could have sent.

    Returns
    -------
    Federation

    Raises
    ------
    AggregationError
        A party refused; the message names it and tells why.
    ConfigError
        A setting is not as described.
    """
    if not parties:
        raise ConfigError("parties: expected at least one, got none")
    if fan_in < 2:
        raise ConfigError(f"fan_in: expected at least 2, got {fan_in}")
    if settings.get("mechanism") is not None:
        fan_in = max(fan_in, len(parties))
    names = [getattr(party, "name", None) or f"party-{i}" for i, party in enumerate(parties)]
    if len(set(names)) < len(names):
        raise ConfigError("parties: expected different names, got the same for several")
    start = time.perf_counter()
    with workers(where, address=address) as place, quiet():
        groups = _groups(len(parties), fan_in)
        direct = len(groups) == len(parties)
        children = names if direct else [_group_name(group) for group in groups]
        root, clients = strategy_of(settings, len(children)), manager(children)
        if root.num_rounds != 1 or len(root.specs) != 1:
            raise ConfigError("spec: expected one HashSpec, got what takes more than the round of counting")
        request, shared = place.put(request_of(root, clients)), place.put(settings)
        taken: list[Any] = []

        def ask(i: int) -> Any:
            reply, seconds = place.answer(place.put(parties[i]), request)
            taken.append(seconds)
            return reply

        def node(group: range) -> Any:
            inner = _groups(len(group), fan_in, group.start)
            if len(inner) == len(group):
                return place.sum(shared, [names[i] for i in group], [ask(i) for i in group])
            return place.sum(shared, [_group_name(part) for part in inner], [node(part) for part in inner])

        with progress(len(parties), "parties", show_progress) as done:
            place.on_answer = done
            replies = [ask(group.start) if direct else node(group) for group in groups]
            seconds = place.answered(taken)
        top = settle(root, clients, place.get(replies))
        depth = 1 + _depth(len(parties), fan_in)
        return Federation(root.model, top.traffic, time.perf_counter() - start, seconds, depth)


def _groups(n: int, fan_in: int, start: int = 0) -> list[range]:
    """n neighbours from `start` in at most `fan_in` groups, of a size that itself is a power of `fan_in`."""
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


def rounds(
    strategy: Strategy,
    parties: Sequence[Party],
    n_rounds: int,
    where: str | Workers = "process",
    *,
    until: Callable[[], bool] = lambda: False,
    address: str | None = None,
) -> tuple[Parameters, Traffic]:
    """Play the rounds of a strategy as Flower's server would: fit, the server's own evaluation, that by the parties.

    Replies go to the strategy in the order of the parties, whichever came first and in whatever order it asked them:
    floats do not add up alike in every order.

    Parameters
    ----------
    strategy : Strategy
        Such as Flower's `FedAvg` with initial parameters, or a `FlyNNStrategy` that takes several rounds.
    parties : sequence of Client or NumPyClient
    n_rounds : int
        At most.
    where, address
        As for `run`.
    until : callable
        Asked behind the server's own evaluation; with True that round is the last.

    Returns
    -------
    parameters : Parameters
        The last ones that a round led to.
    traffic : Traffic
        Bytes of all rounds, without a hand-out of the final parameters that no evaluation has made.
    """
    clients = manager([str(i) for i in range(len(parties))])
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
