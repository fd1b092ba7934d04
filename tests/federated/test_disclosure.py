"""Figures of messages: arrays that travel together, and sums in memory that does not grow."""

from __future__ import annotations

import sys

import numpy as np

from flwr_flynn.federated.disclosure import Arrivals, Content
from flwr_flynn.federated.layout import Field, contents


def test_vectors_that_follow_one_another_travel_together() -> None:
    fields = [Field("a", (2,), 9, "plain"), Field("b", (3,), 9, "plain"), Field("c", (1, 2), 9, fingerprint="00" * 32)]
    assert contents(fields) == [
        Content(("a", "b"), (5,)), Content(("fingerprint",), (32,)), Content(("c",), (1, 2)),
    ]  # fmt: skip


def test_arrivals_are_the_same_in_every_order_and_do_not_grow() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(1, 999, 500)
    messages = [
        Arrivals.of([Content((name,), None) for name in "ab"], [b"x" * int(n)] * (1 + i % 2))
        for i, n in enumerate(sizes)
    ]
    totals = [sum((messages[i] for i in order), Arrivals()) for order in (range(500), random.permutation(500))]
    assert totals[0] == totals[1]
    found, some = totals[0].to_dict()["fields"]
    odd = sizes[1::2]  # of the parties that send the second array, too
    assert some["bytes"] == [odd.min(), round(odd.sum() / 250), odd.max()]
    assert found["bytes"] == [sizes.min(), round(sizes.sum() / 500), sizes.max()]
    assert sys.getsizeof(totals[0].arrays) == sys.getsizeof(messages[1].arrays)
