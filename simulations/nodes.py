"""Work of a simulation's workers: a party answers, a node adds up the replies of its children."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

from flwr.client import NumPyClient
from flwr.common import EvaluateRes, FitIns, FitRes

from flwr_flynn import AggregationError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import reply_of
from flwr_flynn.federated.disclosure import Traffic
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.protocol import TRAIN, Answer, Reply
from flwr_flynn.federated.roster import Failures
from flwr_flynn.federated.run import Run


@dataclass(frozen=True)
class Node:
    """The reply of a node, and the bytes of the parties below it."""

    reply: Reply
    traffic: Traffic


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back log lines below errors: a refusal becomes an exception in a simulation."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def answer(party: Party | NumPyClient, request: Any) -> tuple[Any, float]:
    """A party's answer to a request, and its seconds.

    Parameters
    ----------
    party : Party or NumPyClient
    request : mapping, FitIns or EvaluateIns
        For a `Party` the config entries of a request; for a Flower client Flower's own messages.

    Returns
    -------
    reply : Answer, FitRes or EvaluateRes
    seconds : float
    """
    start = time.perf_counter()
    with quiet():
        reply: Answer | FitRes | EvaluateRes
        if isinstance(party, Party):
            reply = party.answer(request)
        else:
            client = party.to_client()
            reply = client.fit(request) if isinstance(request, FitIns) else client.evaluate(request)
    return reply, time.perf_counter() - start


def options_of(settings: Mapping[str, Any], n_children: int) -> RunOptions:
    """Options of one node: every child is counted, and the decay follows from the counts alone."""
    return RunOptions(min_parties=n_children, fraction_evaluate=0.0, **settings)


def settled(run: Run, names: Sequence[str], replies: Sequence[Answer | Node]) -> Node:
    """Add up the children's replies, in the order of their names, to a request that `run` has made.

    Raises
    ------
    AggregationError
        A reply is refused; the message names its sender and the reason.
    """
    below = [each.traffic for each in replies if isinstance(each, Node)]
    taken = run.complete(
        [
            replace(each.reply, cid=name) if isinstance(each, Node) else reply_of(name, each)
            for name, each in zip(names, replies, strict=True)
        ],
        Failures(),
    )
    if taken is None or taken.missing:
        missing = {} if taken is None else taken.missing
        who = "; ".join(f"{name} ({reason})" for name, reason in list(missing.items())[:5])
        text = f"{len(missing)} of {len(names)} not counted: {who}"
        raise AggregationError(text, len(names) - len(missing), len(names), missing)
    traffic = run.traffic["counts"]
    if below:
        names_of_bytes = ("asked", "replied", "down", "up")
        totals = {name: sum(getattr(each, name) for each in below) for name in names_of_bytes}
        arrivals = reduce(add, (each.arrivals for each in below))
        traffic = Traffic(**totals, kind=below[0].kind, arrivals=arrivals)
    counts = run.counts
    return Node(Reply("", codec.write_tensors(codec.encode(counts)), int(counts.n_examples or 0), {}), traffic)


def summed(settings: Mapping[str, Any], names: Sequence[str], *replies: Answer | Node) -> Node:
    """The reply of a node below the root."""
    with quiet():
        run = Run(options_of(settings, len(names)))
        run.ask(TRAIN, names)  # notes who is asked; the request is that of the root
        return settled(run, names, replies)
