"""Figures of messages: smallest numbers of samples by the plain definition, and sums in memory that does not grow."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from flwr_flynn.federated.disclosure import Arrivals, Content
from flwr_flynn.federated.layout import OF_CLASS, OF_PARTY, Field, contents
from flwr_flynn.federated.party import Party, PartyOptions
from flwr_flynn.federated.phases.table_schema import SchemaRequest
from flwr_flynn.federated.samples import Samples

SIZES = np.array([0, 3, 7])


@pytest.mark.parametrize(
    ("per_sample", "part", "least"),
    [
        (0, [5, 6], None),
        (1, [0, 9, 2], 2),
        (1, [0, 0], None),
        (15, [0, 31, 16], 2),  # one sample adds 15 at most: two or more are behind 16
        (4, [-3, 9], 1),
        (OF_CLASS, [100, 0], 3),
        (OF_PARTY, [100], 10),
    ],
)
def test_the_smallest_number_of_samples_behind_an_integer(per_sample: int, part: list[int], least: int | None) -> None:
    field = Field("a", (1, len(part)), 100, is_signed=True, per_sample=per_sample)
    assert field.least(np.array([part]), SIZES) == least
    assert Field("a", (0,), 0, per_sample=per_sample).least(np.zeros(0, int), np.zeros(3, int)) is None


def test_vectors_that_travel_together_have_the_least_of_all() -> None:
    fields = [Field("a", (2,), 9, "plain"), Field("b", (3,), 9, "plain"), Field("c", (1, 2), 9, fingerprint="00" * 32)]
    assert contents(fields, [None, 4, 5]) == [
        Content(("a", "b"), (5,), 4), Content(("fingerprint",), (32,), None), Content(("c",), (1, 2), 5),
    ]  # fmt: skip


def test_arrivals_are_the_same_in_every_order_and_do_not_grow() -> None:
    random = np.random.default_rng(0)
    sizes, leasts = random.integers(1, 999, 500), random.integers(0, 50, 500)
    messages = [
        Arrivals.of([Content((name,), None, int(least) or None) for name in "ab"], [b"x" * int(n)] * (1 + i % 2))
        for i, (n, least) in enumerate(zip(sizes, leasts, strict=True))
    ]
    totals = [sum((messages[i] for i in order), Arrivals()) for order in (range(500), random.permutation(500))]
    assert totals[0] == totals[1]
    found, some = totals[0].to_dict()["fields"]
    odd = sizes[1::2]  # of the parties that send the second array, too
    assert some["bytes"] == [odd.min(), round(odd.sum() / 250), odd.max()]
    assert found["bytes"] == [sizes.min(), round(sizes.sum() / 500), sizes.max()]
    assert found["least"] == leasts[leasts > 0].min()
    assert sys.getsizeof(totals[0].arrays) == sys.getsizeof(messages[1].arrays)


@pytest.mark.parametrize("floor", [1, 5])
def test_a_schema_tells_of_no_fewer_rows_than_its_record_says(floor: int) -> None:
    levels = np.array([["a"]] * 9 + [["b"]] * 6 + [["c"]] * 2, object)
    kept: list[int | None] = []
    options = PartyOptions(min_examples=floor, on_answer=lambda record: kept.append(record.arrays[0].least))
    party = Party(Samples(levels, np.zeros(17, int)), options)
    party.answer({"flynn-phase": "schema", **SchemaRequest().to_config()})
    assert kept == [2 if floor == 1 else 5]
