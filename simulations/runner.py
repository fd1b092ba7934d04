"""Federations in one process or on Ray.

`federate` runs all phases of a run: the parties answer in this process one after the
other, or as tasks on Ray, on any machine of the cluster; a task whose worker dies is
run again. Integers are added, so that neither the place nor a repeated task changes a
bit: the result is that of `flwr_flynn.federated.algorithm.federate`.

`rounds` plays the rounds of any strategy of Flower's.

>>> import numpy as np
>>> from flwr_flynn import HashSpec
>>> from flwr_flynn.federated.algorithm import party_of
>>> X, y = np.arange(24.0).reshape(8, 3) % 5, np.arange(8) % 2
>>> parties = [party_of(X[i::4], y[i::4], name=f"party-{i}") for i in range(4)]
>>> spec = HashSpec(n_features=3, hash_dim=16, row_nnz=1, hash_nnz=2, seed=7)
>>> run(parties, spec=spec, classes=[0, 1]).model.counts_.n_per_class
array([4, 4])
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from flwr.client import NumPyClient
from flwr.common import FitRes, Parameters, ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flwr_flynn import AggregationError, FlyNNClassifier
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import reply_of
from flwr_flynn.federated.disclosure import n_bytes
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.protocol import EVALUATE, TRAIN
from flwr_flynn.federated.roster import Failures
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.traffic import Arrivals, Traffic
from simulations.workers import Workers, progress, quiet, workers


@dataclass(frozen=True)
class Federation:
    """Result of a federation.

    Parameters
    ----------
    run : Run
    seconds : float
        Wall time from the first request to the model.
    party_seconds : list of float
        Seconds of each answer, in the order of the parties, exchange by exchange.
    """

    run: Run
    seconds: float
    party_seconds: list[float] = field(repr=False)

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier of the federation."""
        return self.run.model

    @property
    def traffic(self) -> Traffic:
        """Bytes of the counting."""
        return self.run.traffic["counts"]


def federate(
    options: RunOptions,
    parties: Sequence[Party],
    where: str | Workers = "process",
    *,
    address: str | None = None,
    show_progress: bool | None = None,
) -> Federation:
    """Run all phases over some parties.

    Parameters
    ----------
    options : RunOptions
    parties : sequence of Party
        With Ray they are put into its store once, each with its samples.
    where : {"process", "ray"} or Workers
        See `workers`.
    address : str, optional
        Address of a Ray cluster.
    show_progress : bool, optional
        See `progress`.

    Raises
    ------
    AggregationError
        A party refused to be counted; the message names it and the reason.
    ConfigError
        A setting is not as described.
    """
    names = [party.options.name or f"party-{i}" for i, party in enumerate(parties)]
    expected = "at least one, of different names"
    if not names:
        raise ConfigError("parties", expected, "none")
    if len(set(names)) < len(names):
        raise ConfigError("parties", expected, "equal names")
    run = Run(options)
    seconds = list[float]()
    start = time.perf_counter()
    with workers(where, address=address) as place, quiet():
        laid = dict(zip(names, map(place.put, parties), strict=True))
        for channel in (TRAIN, EVALUATE) * run.num_rounds:
            ask = run.ask(channel, names)
            if ask is None:
                continue
            request = place.put((ask.config, codec.read_tensors(ask.tensors), channel))
            answers = place.answers((laid[name], request) for name in ask.cids)
            with progress(len(ask.cids), "parties", show_progress) as done:
                for name, (reply, took) in zip(ask.cids, answers, strict=True):
                    run.receive([reply_of(name, reply)])
                    seconds.append(took)
                    done()
            roster = run.complete([], Failures())
            if roster is None or roster.phase.name != "counts":
                continue
            missing = roster.missing
            if missing:
                who = "; ".join(
                    f"{name} ({reason})" for name, reason in list(missing.items())[:5]
                )
                text = f"{len(missing)} of {len(names)} not counted: {who}"
                raise AggregationError(
                    text, len(names) - len(missing), len(names), missing
                )
    return Federation(run, time.perf_counter() - start, seconds)


def run(
    parties: Sequence[Party], where: str | Workers = "process", *, address: str | None = None,
    show_progress: bool | None = None, **settings: Any,
) -> Federation:  # fmt: skip
    """`federate` without an evaluation; `settings` are options of `RunOptions`:
    ``spec``, ``classes`` and more.
    """
    options = RunOptions(
        min_parties=max(len(parties), 1), fraction_evaluate=0.0, **settings
    )
    return federate(
        options, parties, where, address=address, show_progress=show_progress
    )


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
    address: str | None = None,
) -> tuple[Parameters, Traffic]:
    """Play the rounds of a strategy as Flower's server does: fit, evaluation at the
    server, evaluation at the parties.

    Replies go to the strategy in the order of the parties: sums of floats depend on the
    order.

    Parameters
    ----------
    strategy : Strategy
        Such as Flower's `FedAvg` with initial parameters, or a `FlyNNStrategy`.
    parties : sequence of NumPyClient
    n_rounds : int
    where, address
        As for `federate`.

    Returns
    -------
    parameters : Parameters
        Those after the last round.
    traffic : Traffic
        Bytes of all rounds. Final parameters that no evaluation distributed are not in
        it.
    """
    clients = SimpleClientManager()
    for i in range(len(parties)):
        clients.register(StandIn(str(i)))
    traffic = Traffic()
    with workers(where, address=address) as place, quiet():
        laid = [place.put(party) for party in parties]

        def ask(
            requests: Sequence[tuple[ClientProxy, Any]],
        ) -> list[tuple[ClientProxy, Any]]:
            asked = sorted(requests, key=lambda pair: int(pair[0].cid))
            for _, request in asked:
                traffic.ask(1, request.parameters.tensors, request.config)
            pairs = [
                (laid[int(client.cid)], place.put(request)) for client, request in asked
            ]
            replies = [reply for reply, _ in place.answers(pairs)]
            for reply in replies:
                tensors: list[bytes] = []
                if isinstance(reply, FitRes):
                    tensors = reply.parameters.tensors
                size = sum(map(len, tensors)) + n_bytes(reply.metrics)
                traffic.arrivals += Arrivals(1, size)
            return [
                (client, reply)
                for (client, _), reply in zip(asked, replies, strict=True)
            ]

        parameters = strategy.initialize_parameters(clients) or ndarrays_to_parameters(
            []
        )
        for number in range(1, n_rounds + 1):
            results = ask(strategy.configure_fit(number, parameters, clients))
            parameters = strategy.aggregate_fit(number, results, [])[0] or parameters
            strategy.evaluate(number, parameters)
            tried = ask(strategy.configure_evaluate(number, parameters, clients))
            strategy.aggregate_evaluate(number, tried, [])
    return parameters, traffic
