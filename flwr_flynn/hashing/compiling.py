"""Compiled loops are compiled at their first call and kept on disk: by one worker, however many start together."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

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
    descriptor = _locked()
    try:
        yield
        _called.add(kernel)
    finally:
        if descriptor is not None:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a fork may hold the descriptor, too
            os.close(descriptor)


def _locked() -> int | None:
    """A descriptor that holds the lock, or None where there are no locks or somebody has held it for a minute."""
    try:
        import fcntl  # not on Windows

        path = os.path.join(tempfile.gettempdir(), f"flwr-flynn-{os.getuid()}.lock")
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):
        return None
    for _ in range(600):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:
            break
        else:
            return descriptor
    os.close(descriptor)
    return None
