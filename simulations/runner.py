"""The one seam between experiments and where parties run: in this process, or on Ray.

What runs is the product itself: a party is a `FlyNNClient`, asked through Flower's own client wrapper and bytes, and
counts are added by `FlyNNStrategy`. Only Flower's network is left out.

`run` sums in a tree, the paper's all-reduce. A sum of counts is itself what one party could have sent, so that every
node of the tree is a small `FlyNNStrategy` over its children, which checks and adds as the root does, and sends on what
comes of it. On Ray, each party and each node is a task. A node runs as soon as its children are there, on any machine
of the cluster; a task whose worker dies is run again. Integers are added, so neither the order nor the shape of the
tree nor a second try changes a bit.

`rounds` plays the rounds of any other strategy of Flower's with the same parties, for comparison.

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

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from flwr.client import Client, NumPyClient
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flwr_flynn import AggregationError, FlyNNClassifier, FlyNNStrategy
from flwr_flynn.errors import ConfigError
from flwr_flynn.rounds import Traffic

Party = NumPyClient | Client

WHERE = ("process", "ray")

RETRIES = 3
"""How often Ray runs a task again whose worker died."""

_OK = Status(Code.OK, "")


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


@dataclass(frozen=True)
class _Node:
    """The reply of a node, and what the parties below it got and sent."""

    reply: FitRes
    traffic: Traffic


class _StandIn(ClientProxy):
    """The name of a party or a node, for a strategy. What it is asked, the runner hands on."""

    def _unused(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("the runner asks the parties")

    fit = evaluate = get_properties = get_parameters = reconnect = _unused


def _manager(names: Sequence[str]) -> SimpleClientManager:
    clients = SimpleClientManager()
    for name in names:
        clients.register(_StandIn(name))
    return clients


@contextmanager
def _quiet() -> Iterator[None]:
    """Strategies log a line for every party and round; what matters of it becomes an error here."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# ---- what runs at a worker


def _answer(party: Party, request: FitIns) -> tuple[FitRes, float]:
    """A party's reply, and how long it took."""
    client = party.to_client() if isinstance(party, NumPyClient) else party
    start = time.perf_counter()
    with _quiet():
        reply = client.fit(request)
    return reply, time.perf_counter() - start


def _strategy(settings: Mapping[str, Any], n_children: int) -> FlyNNStrategy:
    """Of one node: every child is to be counted, and what the model is read out by comes of the counts alone."""
    return FlyNNStrategy(
        min_available_clients=n_children, min_parties=n_children, fraction_evaluate=0.0, wait_timeout=0, **settings
    )


def _request(strategy: FlyNNStrategy, clients: SimpleClientManager) -> FitIns:
    """What the strategy asks, which is the same for all."""
    parameters = strategy.initialize_parameters(clients)
    return strategy.configure_fit(1, parameters, clients)[0][1]


def _settle(strategy: FlyNNStrategy, clients: SimpleClientManager, replies: Sequence[FitRes | _Node]) -> _Node:
    """The sum of the children's replies as `strategy` makes it."""
    plain = [reply.reply if isinstance(reply, _Node) else reply for reply in replies]
    results = list(zip(clients.all().values(), plain, strict=True))
    parameters, metrics = strategy.aggregate_fit(1, results, [])
    if strategy.missing or parameters is None:
        who = "; ".join(f"{name} ({reason})" for name, reason in list(strategy.missing.items())[:5])
        raise AggregationError(f"{len(strategy.missing)} of {len(plain)} not counted: {who}")
    examples = int(metrics["examples"])
    below = [reply.traffic for reply in replies if isinstance(reply, _Node)]
    traffic = strategy.traffic["counts"]
    if below:
        sums = {name: sum(getattr(part, name) for part in below) for name in ("asked", "replied", "down", "up")}
        traffic = Traffic(**sums)
    return _Node(FitRes(_OK, parameters, examples, {}), traffic)


def _summed(settings: Mapping[str, Any], names: Sequence[str], *replies: FitRes | _Node) -> _Node:
    """A node of the tree below the root."""
    with _quiet():
        strategy, clients = _strategy(settings, len(names)), _manager(names)
        _request(strategy, clients)  # notes who is asked; the parents' request is the same and went down before
        return _settle(strategy, clients, replies)


# ---- where it runs


class Workers(ABC):
    """Who runs parties and nodes. What goes into one of these methods, and comes out of it, may be a promise.

    Attributes
    ----------
    on_answer : callable
        Called for every party that has answered.
    """

    def __init__(self) -> None:
        self.on_answer: Callable[[], object] = lambda: None

    @abstractmethod
    def put(self, value: Any) -> Any:
        """Lay down a value that several calls need."""

    @abstractmethod
    def answer(self, party: Any, request: Any) -> tuple[Any, Any]:
        """Have a party answer: the reply, and the seconds that it took."""

    @abstractmethod
    def sum(self, settings: Any, names: Sequence[str], replies: Sequence[Any]) -> Any:
        """Have a node add up what its children sent."""

    @abstractmethod
    def answered(self, seconds: Sequence[Any]) -> list[float]:
        """Wait for the parties whose seconds are promised here."""

    @abstractmethod
    def get(self, promises: Sequence[Any]) -> list[Any]:
        """The values."""


class _Here(Workers):
    """Plain calls. They go down the tree branch by branch, so that few replies are held at a time."""

    def put(self, value: Any) -> Any:
        return value

    def answer(self, party: Any, request: Any) -> tuple[Any, Any]:
        answer = _answer(party, request)
        self.on_answer()
        return answer

    def sum(self, settings: Any, names: Sequence[str], replies: Sequence[Any]) -> Any:
        return _summed(settings, names, *replies)

    def answered(self, seconds: Sequence[Any]) -> list[float]:
        return list(seconds)

    def get(self, promises: Sequence[Any]) -> list[Any]:
        return list(promises)


class _OnRay(Workers):
    """Tasks. Ray keeps what they return until the node has run that it is for."""

    def __init__(self, ray: Any) -> None:
        super().__init__()
        self._ray = ray
        self._answer = ray.remote(num_returns=2, max_retries=RETRIES)(_answer)
        self._summed = ray.remote(max_retries=RETRIES)(_summed)

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def answer(self, party: Any, request: Any) -> tuple[Any, Any]:
        reply, seconds = self._answer.remote(party, request)
        return reply, seconds

    def sum(self, settings: Any, names: Sequence[str], replies: Sequence[Any]) -> Any:
        return self._summed.remote(settings, names, *replies)

    def answered(self, seconds: Sequence[Any]) -> list[float]:
        waiting = list(seconds)
        try:
            while waiting:
                ready, waiting = self._ray.wait(waiting, num_returns=1)
                self._ray.get(ready)  # raises what the task raised, while others are still under way
                self.on_answer()
        except BaseException:  # Ctrl-C too: a Ray that somebody else started goes on, and must not go on with this
            for promise in waiting:
                self._ray.cancel(promise, force=True)
            raise
        return self.get(seconds)

    def get(self, promises: Sequence[Any]) -> list[Any]:
        return list(self._ray.get(list(promises)))


@contextmanager
def workers(
    where: str | Workers = "process", *, address: str | None = None, n_cpus: int | None = None
) -> Iterator[Workers]:
    """Workers to hand to several runs as their `where`.

    Parameters
    ----------
    where : {"process", "ray"} or Workers
        Workers are passed on as they are.
    address : str, optional
        Of a Ray cluster, as for `ray.init`; the code of this project is sent there. By default a Ray of its own is
        started on this machine and ended with the context; one that is there already is used.
    n_cpus : int, optional
        Tasks at a time on a Ray of its own; all CPUs by default.

    Raises
    ------
    ConfigError
        `where` is none of these, or Ray is not installed.
    """
    if isinstance(where, Workers):
        yield where
    elif where == "process":
        yield _Here()
    elif where == "ray":
        with _ray(address, n_cpus) as ray:
            yield _OnRay(ray)
    else:
        raise ConfigError(f"where: expected one of {', '.join(WHERE)}, got {where!r}")


@contextmanager
def _ray(address: str | None, n_cpus: int | None) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own next default; it says so in a warning that a progress bar does not survive.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("where = ray needs Ray: pip install 'flwr-flynn[simulation]'") from None
    mine = not ray.is_initialized()
    if mine and address is None:
        ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    elif mine:
        root = Path(__file__).parents[1]
        code = {"py_modules": [str(root / name) for name in ("flwr_flynn", "simulations")]}
        ray.init(address=address, runtime_env=code, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


@contextmanager
def progress(total: int, what: str, shown: bool | None = None) -> Iterator[Callable[[], object]]:
    """A bar on a terminal, nothing elsewhere; yields the function that moves it on by one.

    Parameters
    ----------
    total : int
    what : str
        What is counted.
    shown : bool, optional
        By default only where standard error is a terminal.
    """
    from tqdm import tqdm

    with tqdm(total=total, desc=what, disable=None if shown is None else not shown, leave=False) as bar:
        yield bar.update


# ---- runs


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
        Of `FlyNNStrategy`: ``spec``, ``classes`` and more. One spec, and exact counts: there is one round, nothing to
        choose and no evaluation, and a decay of "auto" comes of the summed counts.

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
    names = [getattr(party, "name", None) or f"party-{i}" for i, party in enumerate(parties)]
    if len(set(names)) < len(names):
        raise ConfigError("parties: expected different names, got the same for several")
    start = time.perf_counter()
    with workers(where, address=address) as place, _quiet():
        groups = _groups(len(parties), fan_in)
        direct = len(groups) == len(parties)
        children = names if direct else [_group_name(group) for group in groups]
        root, clients = _strategy(settings, len(children)), _manager(children)
        request, shared = place.put(_request(root, clients)), place.put(settings)
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
        top = _settle(root, clients, place.get(replies))
        depth = 1 + _depth(len(parties), fan_in)
        return Federation(root.model, replace(top.traffic), time.perf_counter() - start, seconds, depth)


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
    address: str | None = None,
) -> tuple[Parameters, Traffic]:
    """Play rounds of fits of a strategy such as Flower's `FedAvg`; its server's `evaluate` is asked after each.

    Replies go to the strategy in the order of the parties, whichever came first and in whatever order it asked them:
    floats do not add up alike in every order.

    Parameters
    ----------
    strategy : Strategy
        With initial parameters of its own.
    parties : sequence of Client or NumPyClient
    n_rounds : int
    where, address
        As for `run`.

    Returns
    -------
    parameters : Parameters
        After the last round.
    traffic : Traffic
        Bytes of all rounds, without the hand-out of the final parameters.

    Raises
    ------
    AggregationError
        A round led to no parameters.
    """
    clients = _manager([str(i) for i in range(len(parties))])
    traffic = Traffic()
    with workers(where, address=address) as place, _quiet():
        laid = [place.put(party) for party in parties]
        parameters = strategy.initialize_parameters(clients) or ndarrays_to_parameters([])
        for number in range(1, n_rounds + 1):
            asked = sorted(strategy.configure_fit(number, parameters, clients), key=lambda pair: int(pair[0].cid))
            for _, request in asked:
                traffic.ask(1, request.parameters.tensors, request.config)
            replies = place.get([place.answer(laid[int(client.cid)], request)[0] for client, request in asked])
            for reply in replies:
                traffic.reply(reply.parameters.tensors, reply.metrics)
            results = [(client, reply) for (client, _), reply in zip(asked, replies, strict=True)]
            aggregated, _ = strategy.aggregate_fit(number, results, [])
            if aggregated is None:
                raise AggregationError(f"round {number}: no parameters came of {len(replies)} replies")
            parameters = aggregated
            strategy.evaluate(number, parameters)
    return parameters, traffic
