"""Compiled loops are compiled at their first call and kept on disk: by one worker, however many start together."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from flwr_flynn._files import lock

_called: set[Hashable] = set()


@contextmanager
def first_call(kernel: Hashable) -> Iterator[None]:
    """Around a call of a kernel: let one process of this user at a time make its first one.

    A kernel is compiled when it is first called, and kept on disk. Of many workers that start together the first one
    compiles and the others wait, instead of all compiling the same at the same time. Where locking fails they just do.
    """
    if kernel in _called:
        yield
        return
    with _locked():
        yield
        _called.add(kernel)


def _locked() -> AbstractContextManager[object]:
    """The lock, or nothing where there are no locks or somebody has held it for a minute."""
    try:
        return lock(os.path.join(tempfile.gettempdir(), f"flwr-flynn-{os.getuid()}.lock"), wait=60)
    except (AttributeError, OSError):  # Windows knows no users by number
        return nullcontext()
