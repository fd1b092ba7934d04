"""Lines about work that takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FIRST = 5.0
"""Seconds before the first line."""

LATER = 10.0
"""Seconds between later ones."""


class Progress:
    """Lines about the steps of some work while it goes on, from the fifth second on.

    A thread writes them within a `with` block, so that one long step has lines, too.

    Parameters
    ----------
    write : function
        It takes each line.

    Examples
    --------
    >>> with Progress(print) as progress:
    ...     progress.step("counts: Ulm", 0, 2)
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._step = ("", 0, 0)
        self._latest = time.monotonic()  # the step that goes on
        self._first = self._latest  # the first of its kind
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._lines, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def step(self, what: str, n_done: int, n: int) -> None:
        """Note the step that begins, after so many of `n` steps of this kind."""
        self._latest = time.monotonic()
        if n_done == 0:
            self._first = self._latest
        self._step = (what, n_done, n)

    def line(self, now: float) -> str:
        """The line about the step that is done at a time, "" before the first."""
        what, n_done, n = self._step
        if not what:
            return ""
        text = f"{what} ({n_done} of {n} done)"
        if n_done:
            each = (self._latest - self._first) / n_done
            left = each * (n - n_done) - (now - self._latest)
            text += f", about {max(left, 1):.0f} s left"
        return text

    def _lines(self) -> None:
        pause = FIRST
        while not self._ended.wait(pause):
            pause = LATER
            line = self.line(time.monotonic())
            if line:
                self._write(line)
