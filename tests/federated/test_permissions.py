"""Figures of messages: contents of arrays, and sums in memory that does not grow."""

from __future__ import annotations

import sys

import numpy as np

from flwr_flynn.federated.disclosure import Content
from flwr_flynn.federated.protocol import Reply
from flwr_flynn.federated.traffic import Arrivals


def test_arrivals_are_the_same_in_every_order_and_do_not_grow():
    random = np.random.default_rng(0)
    sizes = random.integers(1, 999, 500)
    contents = [Content((name,), None) for name in "ab"]
    messages = [
        Arrivals.of(contents, Reply("1", [b"x" * n, b"x" * 2 * n], 1, {"a": 1}))
        for n in sizes.tolist()
    ]
    total = sum(messages, Arrivals())
    other = sum((messages[i] for i in random.permutation(500)), Arrivals())
    assert total == other
    assert total.parties == 500
    assert total.bytes == 3 * sizes.sum() + 500 * 9
    first, second = total.to_dict()["fields"]
    mean = sizes.sum() / 500
    assert first["bytes"] == [sizes.min(), round(mean), sizes.max()]
    assert second["bytes"] == [2 * sizes.min(), round(2 * mean), 2 * sizes.max()]
    assert sys.getsizeof(total.sizes) == sys.getsizeof(messages[1].sizes)
