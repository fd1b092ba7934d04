"""What happens when kernels are called for the first time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flwr_flynn.hashing import compiling


def test_kernels_work_where_locks_do_not(monkeypatch):
    monkeypatch.setattr(compiling, "_called", set())
    monkeypatch.setattr(compiling.tempfile, "gettempdir", lambda: os.devnull)
    with compiling.first_call("a kernel"):
        pass
    assert "a kernel" in compiling._called


def test_a_failed_first_call_is_made_again(monkeypatch):
    monkeypatch.setattr(compiling, "_called", set())
    with pytest.raises(KeyError), compiling.first_call("a kernel"):
        raise KeyError
    assert not compiling._called
    with compiling.first_call("a kernel"):  # the lock is free again
        pass


@pytest.mark.slow
def test_workers_that_start_together_compile_each_kernel_once(tmp_path):
    code = (
        "import numpy as np; from flwr_flynn import FlyHash, HashSpec\n"
        "hasher = FlyHash(HashSpec(8, 200, 3, 5, seed=1))\n"
        "X = np.arange(80).reshape(10, 8); print(hasher.active(X).sum(), hasher.active(X / 3).sum())"
    )

    def start(folder):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
        return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)

    alone = start(tmp_path / "alone")
    expected = alone.communicate()[0]
    together = [start(tmp_path / "together") for _ in range(4)]
    assert [worker.communicate()[0] for worker in together] == [expected] * 4
    compiled = [sum(1 for _ in folder.rglob("*.nbc")) for folder in (tmp_path / "alone", tmp_path / "together")]
    assert compiled[0] == compiled[1] > 0
