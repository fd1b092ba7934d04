"""Memory that a block of code takes, as Python's allocators see it.

They do not see the arrays of kernels.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Traced:
    """Bytes that were held at once, at most; known after the block."""

    peak: int = 0


@contextmanager
def traced() -> Iterator[Traced]:
    """Trace the memory of a block.

    >>> with traced() as memory:
    ...     _ = bytes(10**6)
    >>> 10**6 < memory.peak < 2 * 10**6
    True
    """
    memory = Traced()
    tracemalloc.start()
    try:
        yield memory
        memory.peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
