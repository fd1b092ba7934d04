"""How far a long hashing is, told to a party's own log every few seconds.

>>> seconds = iter([0.0, 4.0, 11.0, 12.0])
>>> lines = []
>>> progress = Progress(3000, tell=lambda *line: lines.append(line[0] % line[1:]), clock=lambda: next(seconds))
>>> for _ in range(3):
...     progress(1000)
>>> lines
['FlyNN: 2000 of 3000 points hashed, 11 s']
"""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import INFO

from flwr.common.logger import log


def _tell(message: str, *values: object) -> None:
    log(INFO, message, *values)


class Progress:
    """Called with the number of points that were just hashed, it logs how many they are by now.

    Numbers of points stay on this machine: of a private party nobody else may know them.

    Parameters
    ----------
    total : int
        Points to hash, several times if there are several hashes.
    every : float, default=10
        Seconds from one line to the next. What takes less is not told of at all.
    tell, clock : callable, optional
        Where lines go, Flower's log, and what tells the time.
    """

    def __init__(
        self,
        total: int,
        every: float = 10.0,
        tell: Callable[..., object] = _tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._every, self._tell, self._clock = total, every, tell, clock
        self._done = 0
        self._start = self._last = clock()

    def __call__(self, n_points: int) -> None:
        """Note that so many more points are hashed."""
        self._done += n_points
        now = self._clock()
        if now - self._last >= self._every:
            self._last = now
            self._tell("FlyNN: %d of %d points hashed, %.0f s", self._done, self._total, now - self._start)
