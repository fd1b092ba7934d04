"""Replies and requests that a phase must refuse, by the names of its cases.

The cases themselves are in `registry`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flwr_flynn.federated import codec
from flwr_flynn.federated.announced_specs import deflated_specs
from flwr_flynn.federated.compression import pack_signed
from flwr_flynn.federated.protocol import REFUSED, Reply
from flwr_flynn.federated.reply_fields import Sizes, of_arrays, to_arrays
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.rank_codes import KEY_BITS
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.gram import (
    LARGEST_WEIGHT,
    LEVELS,
)
from tests.federated.runs import GRID, NAMES, X, Y

Spoil = Callable[[Request[Any], Reply], Reply]
Change = Callable[[list[Any]], Sequence[Any]]

# ---- replies


def integers(change: Change) -> Spoil:
    """Put other integers into the fields of a reply."""

    def spoil(request: Request[Any], reply: Reply) -> Reply:
        fields = request.fields(Sizes(reply.n_examples, reply.n_examples))
        parts = of_arrays(codec.read_tensors(reply.tensors), fields)
        changed = change([part.copy() for part in parts])
        return replace(reply, tensors=codec.write_tensors(to_arrays(fields, changed)))

    return spoil


def plus(index: int, *entries: tuple[int, int]) -> Spoil:
    """Add numbers to some integers of a field, each by its index."""

    def change(parts: list[Any]) -> list[Any]:
        for place, value in entries:
            parts[index].flat[place] += value
        return parts

    return integers(change)


def filled(index: int, times: int) -> Spoil:
    """Make all integers of a field so many times the number of samples."""

    def change(parts: list[Any]) -> list[Any]:
        n_samples = parts[0].sum()
        parts[index] = 0 * parts[index] + times * n_samples
        return parts

    return integers(change)


def counting(n: int, *parts: ClassCounts) -> Spoil:
    """Put other counts into a reply, and their number of samples."""
    return lambda _, reply: replace(
        reply, tensors=codec.write_tensors(codec.encode(*parts)), n_examples=n
    )


def counted(spec: HashSpec, n: int = 10, codes: Any = Y) -> ClassCounts:
    """Counts of some samples."""
    return ClassCounts.from_data(FlyHash(spec), X[:n], codes[:n], 3)


def histograms_of(n: int) -> Spoil:
    """Put the histograms of so many samples into a reply of the columns."""
    histograms = ColumnHistograms.from_data(
        X[100 - n : 100], Y[100 - n : 100].astype(np.int64), 3
    )

    def spoil(request: Request[Any], reply: Reply) -> Reply:
        arrays = to_arrays(request.fields(Sizes(n, n)), request.parts(histograms))
        return replace(reply, tensors=codec.write_tensors(arrays), n_examples=n)

    return spoil


def checkerboard(parts: list[Any]) -> list[Any]:
    """Products 0 of each row with itself, and the largest of every other two."""
    sizes, products, sums = parts
    rows, columns = np.triu_indices(sums.shape[1])
    is_odd = (rows + columns) % 2 == 1
    return [sizes, 0 * products + np.where(is_odd, LEVELS**2 * 5, 0), sums]


def large_response(parts: list[Any]) -> list[Any]:
    """One response more than the samples of its class can have.

    The product beside it has room for it.
    """
    sizes, products, sums = parts
    sums[0, 0] = LEVELS * sizes[0, 0] + 1
    products[0, 0] = LEVELS * sums[:3, 0].sum()
    return parts


def small_square(parts: list[Any]) -> list[Any]:
    """A product of a row with itself that is its response alone.

    All classes weigh 1.
    """
    _, products, sums = parts
    totals = sums[:3].sum(axis=0)
    row = int(totals.argmax())
    # Products are sent in this order.
    rows, columns = np.triu_indices(len(totals))
    products[0, (rows == row) & (columns == row)] = totals[row]
    return parts


def one_less(parts: list[Any]) -> list[Any]:
    """A sample less in the confusion matrix, and no second one."""
    parts[0].flat[0] -= 1
    parts[1][:] = 0
    return parts


def without_row(parts: list[Any]) -> list[Any]:
    """No probabilities of a class for its own samples."""
    parts[2][3] = 0
    return parts


def longer(*indices: int) -> Spoil:
    """Add a zero at the end of some fields of open length."""

    def change(parts: list[Any]) -> list[Any]:
        for index in indices:
            parts[index] = np.append(parts[index], 0)
        return parts

    return integers(change)


ANY: dict[str, tuple[str, Spoil]] = {
    "junk": (
        "refused: array 1: ",
        lambda _, reply: replace(reply, tensors=[b"junk", *reply.tensors[1:]]),
    ),
    "a refusal": (
        "declined: no",
        lambda _, reply: replace(reply, metrics={**reply.metrics, REFUSED: "no"}),
    ),
    "a fault of form": (
        "refused: statistic: no",
        lambda _, reply: replace(reply, fault="statistic: no"),
    ),
}
"""Reasons, and changes of a reply of any phase."""

REPLIES: dict[str, dict[str, tuple[str, Spoil]]] = {
    "columns": {
        "more counts than cells": ("refused: histograms: ", longer(2)),
        "a cell more": ("refused: histograms: ", longer(1, 2)),
        "a count more": ("refused: histograms: ", plus(2, (0, 1))),
        "a count moved to a class of others": (
            "refused: histograms: ",
            plus(2, (0, 1), (-1, -1)),
        ),
        "a cell beyond": ("refused: histograms: ", plus(1, (-1, 1 << KEY_BITS))),
        "more cells than values": (
            "refused: numbers: ",
            integers(lambda parts: [parts[0], *[np.zeros(999, int)] * 2, parts[3]]),
        ),
        "too many samples": ("refused: histograms: ", histograms_of(90)),
    },
    "counts": {
        "another order": (
            "refused: fingerprint: ",
            counting(10, *map(counted, GRID[::-1])),
        ),
        "other samples": (
            "refused: counts: ",
            counting(
                10,
                counted(GRID[0], codes=np.full(10, 0)),
                counted(GRID[1], codes=np.full(10, 1)),
            ),
        ),
        "too many samples": (
            "refused: counts: ",
            counting(60, *(counted(spec, 60) for spec in GRID)),
        ),
    },
    "selection": {
        "fewer left out than correct": ("refused: correct: ", filled(0, 0)),
    },
    "calibration": {
        "probabilities of another sample": (
            "refused: probabilities: ",
            plus(2, (0, 2**21)),
        ),
        "products above the probabilities": (
            "refused: probabilities: ",
            filled(3, 2**19),
        ),
        "probabilities of nobody": ("refused: probabilities: ", filled(2, 0)),
    },
    "gram": {
        "sizes of other samples": (
            "refused: Gram matrix: ",
            plus(0, (0, 1), (1, -1), (3, 1), (4, -1)),
        ),
        "a sample more of a class": ("refused: Gram matrix: ", plus(0, (0, 1))),
        "responses above those of the class": (
            "refused: Gram matrix: ",
            integers(large_response),
        ),
        "products of nobody": ("refused: Gram matrix: ", filled(1, 0)),
        "products that are all the largest": (
            "refused: Gram matrix: ",
            filled(1, LEVELS**2),
        ),
        "a square below the responses": (
            "refused: Gram matrix: ",
            integers(small_square),
        ),
        "products that are no squares": (
            "refused: Gram matrix: ",
            integers(checkerboard),
        ),
    },
    "evaluation": {
        "another number of samples": (
            "refused: confusion matrix: ",
            integers(one_less),
        ),
        "too many samples": (
            "refused: confusion matrix: ",
            lambda _, reply: replace(reply, n_examples=2**48 + 1),
        ),
        "other samples in the second": (
            "refused: confusion matrix: ",
            plus(1, (0, 1), (4, -1)),
        ),
        "a score less of a class": ("refused: scores: ", integers(without_row)),
        "sums of another number": ("refused: sums of scores: ", plus(3, (0, -1))),
        "more right than in the matrix": (
            "refused: sums of scores: ",
            plus(3, (1, -1)),
        ),
    },
}

# ---- requests


class Row(NamedTuple):
    """A request that a party refuses.

    Parameters
    ----------
    start : str
        Start of the refusal.
    entries : dict
        Changed entries of the config.
    change : callable, optional
        Change of the arrays.
    """

    start: str
    entries: dict[str, Any]
    change: Change | None = None


def spoiled(start: str, change: Change) -> Row:
    """A request that is refused for its arrays."""
    return Row(start, {}, change)


def run_of(*specs: HashSpec) -> dict[str, Any]:
    """The entries of a run of other specs."""
    return {
        "flynn-specs": deflated_specs(specs),
        "flynn-fingerprints": " ".join(FlyHash(spec).fingerprint for spec in specs),
    }


def gram_of(*specs: HashSpec) -> dict[str, Any]:
    """The entries of scores by the Gram matrix of other specs."""
    prints = " ".join(FlyHash(spec).fingerprint for spec in specs)
    return {
        "flynn-gram-specs": deflated_specs(specs, GRID[:1]),
        "flynn-gram-fingerprints": prints,
    }


def weights(value: int, n_rows: int = 64) -> Change:
    """Put other weights of the Gram matrix behind the counts of a model."""
    table = np.zeros((n_rows, 3), np.int64)
    table[1, 1] = value
    return lambda arrays: [*arrays[:-1], pack_signed(table)]


TWO = tuple(HashSpec(4, 32, 2, 8, seed, signed=True) for seed in (0, 1))
"""Specs of the Gram matrix in the requests that are changed."""
_TOO_MANY = (replace(TWO[0], hash_dim=4000), replace(TWO[1], hash_dim=97))
_SIX = [replace(TWO[0], seed=seed) for seed in range(6)]
_OTHER = [replace(spec, n_features=5) for spec in TWO]
_MIXED = (TWO[0], _OTHER[1])
_ENDLESS = "[" + " " * 10**6 + "1, 1, 1]"

REQUESTS: dict[str, dict[str, Row]] = {
    "selection": {
        "many candidates": Row(
            "flynn-candidates",
            {"flynn-candidates": json.dumps([[["balanced", 0.5]] * 65] * 2)},
        ),
        "counts of one spec": spoiled("message", lambda arrays: arrays[:2]),
        "counts in another order": spoiled(
            "fingerprint", lambda arrays: [*arrays[2:], *arrays[:2]]
        ),
    },
    "calibration with a Gram matrix": {
        "no arrays": spoiled("weights", lambda _: []),
        "weights of one fold": spoiled("weights", lambda arrays: arrays[-1:]),
        "biases of one fold": Row("flynn-gram", {"flynn-gram": "[1, 2, 3]"}),
        "fewer counts": spoiled(
            "counts", lambda arrays: [arrays[0], arrays[1][:2], *arrays[2:]]
        ),
        "two specs": Row("message", RunSpec(GRID, NAMES).to_config()),
        "weights too large": spoiled("counts", weights(LARGEST_WEIGHT + 1)),
    },
    "gram": {
        "too many rows": Row("flynn-specs", run_of(*_TOO_MANY)),
        "six specs": Row("flynn-specs", run_of(*_SIX)),
        "specs of different features": Row("config: spec", run_of(*_MIXED)),
        "samples of other features": Row("n_features", run_of(*_OTHER)),
        "endless weights": Row("flynn-weights", {"flynn-weights": _ENDLESS}),
    },
    "evaluation with a Gram matrix": {
        "no arrays": spoiled("weights", lambda _: []),
        "no weights": spoiled("counts", lambda arrays: arrays[:-1]),
        "fewer counts": spoiled(
            "counts", lambda arrays: [arrays[0], arrays[1][:2], *arrays[2:]]
        ),
        "damaged counts": spoiled(
            "counts", lambda arrays: [arrays[0], arrays[1] // 2, *arrays[2:]]
        ),
        "counts of another hash": spoiled(
            "fingerprint", lambda arrays: [arrays[0] ^ 1, *arrays[1:]]
        ),
        "two specs": Row("message", RunSpec(GRID, NAMES).to_config()),
        "weights of a row less": spoiled("counts", weights(1, 63)),
        "weights too large": spoiled("counts", weights(LARGEST_WEIGHT + 1)),
        "weights too small": spoiled("counts", weights(-LARGEST_WEIGHT - 1)),
        "junk": spoiled(
            "counts", lambda arrays: [*arrays[:-1], np.arange(60, dtype=np.uint8)]
        ),
        "a temperature that is none": Row(
            "flynn-calibration", {"flynn-calibration": "[29, 0, 0, 0]"}
        ),
        "a share of no linear part": Row(
            "config: linear", {"flynn-calibration": "[9, 0, 0, 0]"}
        ),
        "an intercept too large": Row(
            "flynn-calibration", {"flynn-calibration": f"[4, 0, 0, {2**22 + 1}]"}
        ),
        "intercepts of two classes": Row(
            "flynn-calibration", {"flynn-calibration": "[4, 0, 0]"}
        ),
        "endless biases": Row("flynn-gram", {"flynn-gram": _ENDLESS}),
        "specs of junk": Row("flynn-gram", {"flynn-gram-specs": b"junk"}),
        "six specs of the Gram matrix": Row("flynn-gram", gram_of(*_SIX)),
        "too many rows": Row("flynn-gram", gram_of(*_TOO_MANY)),
        "specs of different features": Row("flynn-gram", gram_of(*_MIXED)),
        "specs of other features": Row("config: gram", gram_of(*_OTHER)),
    },
}
"""Requests that a party refuses, by the names of the cases and of the changes.

`refused.txt` has those that other entries of plain values make.
"""
