"""The federation in one process, and what it compiles."""

from __future__ import annotations

import threading

from flwr_flynn.federated.algorithm import compile_kernels
from flwr_flynn.hashing.philox import philox
from flwr_flynn.hashing.rank_codes import _encode


def test_kernels_are_compiled_for_one_type_of_each_argument():
    before = {*threading.enumerate()}
    compile_kernels()
    for thread in {*threading.enumerate()} - before:
        thread.join()
    assert len(philox.signatures) == len(_encode.signatures) == 1
