"""Workers of a simulation: parties and nodes run in this process, or as tasks on Ray."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr_flynn.errors import ConfigError
from simulations.nodes import answer, summed

WHERE = ("process", "ray")

RETRIES = 3
"""Times that Ray repeats a task whose worker died."""


class Workers(ABC):
    """Runs parties and nodes. Arguments and results of the methods may be promises.

    Attributes
    ----------
    on_answer : callable
        Called for every party that has answered.
    """

    def __init__(self) -> None:
        self.on_answer: Callable[[], object] = lambda: None

    @abstractmethod
    def put(self, value: Any) -> Any:
        """Store a value that several calls need."""

    @abstractmethod
    def answer(self, party: Any, request: Any) -> tuple[Any, Any]:
        """Have a party answer: the reply, and the seconds that it took."""

    @abstractmethod
    def sum(self, settings: Any, names: Sequence[str], replies: Sequence[Any]) -> Any:
        """Have a node add up the replies of its children."""

    @abstractmethod
    def answered(self, seconds: Sequence[Any]) -> list[float]:
        """Wait for the parties whose seconds are promised here."""

    @abstractmethod
    def get(self, promises: Sequence[Any]) -> list[Any]:
        """The values of promises."""


class _Here(Workers):
    """Plain calls, branch by branch, so that few replies are held at a time."""

    def put(self, value: Any) -> Any:
        return value

    def answer(self, party: Any, request: Any) -> tuple[Any, Any]:
        reply = answer(party, request)
        self.on_answer()
        return reply

    def sum(self, settings: Any, names: Sequence[str], replies: Sequence[Any]) -> Any:
        return summed(settings, names, *replies)

    def answered(self, seconds: Sequence[Any]) -> list[float]:
        return list(seconds)

    def get(self, promises: Sequence[Any]) -> list[Any]:
        return list(promises)


class _OnRay(Workers):
    """Tasks on Ray, which keeps their results until the node above has run."""

    def __init__(self, ray: Any) -> None:
        super().__init__()
        self._ray = ray
        self._answer = ray.remote(num_returns=2, max_retries=RETRIES)(answer)
        self._summed = ray.remote(max_retries=RETRIES)(summed)

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
        Address of a Ray cluster, as for `ray.init`; the code of this project is sent there. By default a Ray of its own
        is started on this machine and ended with the context; one that is there already is used.
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
        raise ConfigError("where", f"one of {', '.join(WHERE)}", where)


@contextmanager
def _ray(address: str | None, n_cpus: int | None) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own next default; it says so in a warning that a progress bar does not survive.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("where: ray needs the package ray: pip install 'flwr-flynn[simulation]'") from None
    mine = not ray.is_initialized()
    quietly: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if mine and address is None:
        ray.init(
            address="local", num_cpus=n_cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    elif mine:
        root = Path(__file__).parents[1]
        code = {"py_modules": [str(root / name) for name in ("flwr_flynn", "simulations")]}
        ray.init(address=address, runtime_env=code, **quietly)
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
        Name of the things counted.
    shown : bool, optional
        By default only where standard error is a terminal.
    """
    from tqdm import tqdm

    with tqdm(total=total, desc=what, disable=None if shown is None else not shown, leave=False) as bar:
        yield bar.update
