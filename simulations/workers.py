"""Workers of a simulation: parties answer in this process, or as tasks on Ray."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.client import NumPyClient
from flwr.common import EvaluateRes, FitIns, FitRes

import flwr_flynn.federated.run  # noqa: F401  (a task on Ray needs the phases of a run)
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.protocol import Answer
from simulations.study import ROOT

WHERE = ("process", "ray")

RETRIES = 3
"""Times that Ray repeats a task whose worker died."""


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
    request : tuple, FitIns or EvaluateIns
        For a `Party` the arguments of `Party.answer`; for a Flower client Flower's own
        messages.

    Returns
    -------
    reply : Answer, FitRes or EvaluateRes
    seconds : float
    """
    start = time.perf_counter()
    with quiet():
        reply: Answer | FitRes | EvaluateRes
        if isinstance(party, Party):
            reply = party.answer(*request)
        else:
            client = party.to_client()
            if isinstance(request, FitIns):
                reply = client.fit(request)
            else:
                reply = client.evaluate(request)
    return reply, time.perf_counter() - start


class Workers:
    """Parties that answer in this process, one after the other."""

    def put(self, value: Any) -> Any:
        """Store a value that several answers need."""
        return value

    def answers(self, asked: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, float]]:
        """The answers to pairs of a party and its request, which were `put`, in their
        order, as `answer` has them.
        """
        for party, request in asked:
            yield answer(party, request)


class _OnRay(Workers):
    """Tasks on Ray, on any machine of the cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._answer = ray.remote(max_retries=RETRIES)(answer)

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def answers(self, asked: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, float]]:
        waiting = deque(self._answer.remote(*pair) for pair in asked)
        try:
            while waiting:
                yield self._ray.get(waiting[0])
                waiting.popleft()
        finally:
            # after Ctrl-C too: a Ray that somebody else started goes on, and must not
            # go on with this
            for promise in waiting:
                self._ray.cancel(promise, force=True)


@contextmanager
def workers(
    where: str | Workers = "process",
    *,
    address: str | None = None,
    n_cpus: int | None = None,
) -> Iterator[Workers]:
    """Workers to hand to several runs as their `where`.

    Parameters
    ----------
    where : {"process", "ray"} or Workers
        Workers are passed on as they are.
    address : str, optional
        Address of a Ray cluster, as for `ray.init`; the code of this project is sent
        there. By default a Ray of its own is started on this machine and ended with the
        context; one that is there already is used.
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
        yield Workers()
    elif where == "ray":
        with _ray(address, n_cpus) as ray:
            yield _OnRay(ray)
    else:
        raise ConfigError("where", f"one of {', '.join(WHERE)}", where)


@contextmanager
def _ray(address: str | None, n_cpus: int | None) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own next default; it says so in a warning that a progress bar does not
    # survive.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "where: ray needs the package ray: pip install 'flwr-flynn[simulation]'"
        ) from None
    mine = not ray.is_initialized()
    if mine:
        code = {
            "py_modules": [str(ROOT / name) for name in ("flwr_flynn", "simulations")]
        }
        place: dict[str, Any] = {"address": address, "runtime_env": code}
        if address is None:
            place = {
                "address": "local",
                "num_cpus": n_cpus,
                "include_dashboard": False,
            }
        ray.init(**place, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


@contextmanager
def progress(
    total: int, what: str, shown: bool | None = None
) -> Iterator[Callable[[], object]]:
    """A bar on a terminal, nothing elsewhere; yields the function that moves it on by
    one.

    Parameters
    ----------
    total : int
    what : str
        Name of the things counted.
    shown : bool, optional
        By default only where standard error is a terminal.
    """
    from tqdm import tqdm

    with tqdm(
        total=total,
        desc=what,
        disable=None if shown is None else not shown,
        leave=False,
    ) as bar:
        yield bar.update
